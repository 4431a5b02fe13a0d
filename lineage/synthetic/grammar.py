"""The grammar of the synthetic language, and its documents.

    sentence    -> subject auxiliary verb [[preposition] noun phrase] [adverb] "."
                 | opinion "." | opinion link opinion "."
    subject     -> name | determiner noun [adjective | attractor]
    noun phrase -> noun [adjective]
    attractor   -> preposition noun | relative noun verb
    opinion     -> subject copula [negation] [intensifier] polar [polar]

A determiner is only before subjects. Determiners, nouns, relatives and auxiliaries (or the
copula) show number; the head of the subject, not the nearer noun, rules the relative and the
auxiliary. All open-class words of a sentence belong to its topic or to the topic's field, except
for a few generic ones. The adjective follows its noun, so predicting it requires knowing which
sense is meant.

A document moves between two topics, one of each field. From sentence to sentence the topic stays
or changes; names, and now and then the last object, return as the subject; opinions follow the
document's mood. So a sentence is related to the one before it, and in an ambiguous sentence its
own words say more about its field than its neighbours' words.
"""

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from typing import NamedTuple, TypeVar

import numpy as np

from lineage.synthetic.words import (
    FIELD_TOPICS,
    NUM_FIELDS,
    Lexicon,
    OpenClassWords,
    build_lexicon,
    topic_field,
)

GRAMMAR_VERSION = 1  # rises with every change of the bytes that a seed gives
DEFAULT_GRAMMAR_SEED = 2018
# Independent streams of random numbers.
DOCUMENT_STREAM = 1
UNLABELED_STREAM = 2
ITEM_STREAM = 3

# Probabilities
TOPIC_CHANGE_PROB = 0.4  # of a sentence
OPINION_PROB = 0.16  # of a sentence
MOOD_FLIP_PROB = 0.02  # of a sentence
NAME_PROB = 0.1  # of a subject
ATTRACTOR_PROB = 0.4  # of a subject that is a noun phrase
NEGATION_PROB = 0.12  # of an opinion
TWO_POLAR_WORDS_PROB = 0.7  # of an opinion
CONTRAST_PROB = 0.15  # of a sentence of opinions
SECOND_OPINION_PROB = 0.3  # of a sentence of opinions without contrast
COMPLEMENT_PROB = 0.95  # of a sentence
ADVERB_PROB = 0.35  # of a sentence
OBJECT_REPEAT_PROB = 0.2  # of a subject that is no name, if there is a last object
NEUTRAL_AUXILIARY_PROB = 0.12  # of an auxiliary
PLURAL_PROB = 0.4  # of a noun
GENERIC_WORD_PROB = 0.03  # of an open-class word
RARE_WORD_PROB = 0.01  # of a noun or polar word in a document to be one of the review domain

Item = TypeVar("Item")


class NounPhrase(NamedTuple):
    """The words of a noun phrase, and its number."""

    words: list[str]
    is_plural: bool


class Sampler:
    """Random choices, made from uniform numbers that are drawn in blocks for speed."""

    def __init__(self, *key: int) -> None:
        self._rng = np.random.default_rng(list(key))
        self._block: list[float] = []

    def uniform(self) -> float:
        if not self._block:
            self._block = self._rng.random(512).tolist()
        return self._block.pop()

    def bernoulli(self, probability: float) -> bool:
        return self.uniform() < probability

    def choice(self, items: Sequence[Item]) -> Item:
        return items[int(self.uniform() * len(items))]

    def permutation(self, count: int) -> list[int]:
        """Return the numbers below `count` in random order."""
        keys = [self.uniform() for _ in range(count)]
        return sorted(range(count), key=keys.__getitem__)


@cache
def _zipf_cdf(count: int) -> list[float]:
    """Return the cumulative probabilities of ranks 1 to `count`."""
    weights = [1 / rank for rank in range(1, count + 1)]
    total = sum(weights)
    return [sum(weights[: rank + 1]) / total for rank in range(count)]


@dataclass(frozen=True)
class SentenceGenerator:
    """Write phrases and sentences, as lists of words, from a lexicon and a stream of choices.

    The order of choices is part of the language: another order gives other documents.
    """

    lexicon: Lexicon
    sampler: Sampler
    zipf: bool = True  # else all words of a class are equally likely, unlike in documents
    generic_prob: float = GENERIC_WORD_PROB
    rare_prob: float = RARE_WORD_PROB

    @property
    def full_stop(self) -> str:
        """Return the sign that ends a sentence."""
        return self.lexicon.script.full_stop

    def inflect_noun(self, noun: str, plural: bool) -> str:
        """Return the singular or plural form of a noun."""
        return noun + self.lexicon.script.plural_suffix * plural

    def join_words(self, words: Sequence[str]) -> str:
        """Join words and full stops to a text."""
        return self.lexicon.script.word_separator.join(words)

    def sample_word(self, words: Sequence[str]) -> str:
        if not self.zipf:
            return self.sampler.choice(words)
        rank = bisect_right(_zipf_cdf(len(words)), self.sampler.uniform())
        return words[min(rank, len(words) - 1)]

    def sample_vocabulary(self, topic: int) -> OpenClassWords:
        if self.sampler.bernoulli(self.generic_prob):
            return self.lexicon.generic
        return self.lexicon.topics[topic]

    def sample_noun(self, topic: int) -> str:
        if self.sampler.bernoulli(self.rare_prob):
            return self.sampler.choice(self.lexicon.domain_nouns)
        if self.sampler.bernoulli(self.generic_prob):
            return self.sample_word(self.lexicon.generic.nouns)
        return self.sample_word(self.lexicon.nouns[topic])

    def noun_phrase(
        self,
        topic: int,
        *,
        adjective_prob: float = 0.0,
        plural: bool | None = None,
        noun: str | None = None,
    ) -> NounPhrase:
        """Write a noun, followed by an adjective with a probability."""
        if plural is None:
            plural = self.sampler.bernoulli(PLURAL_PROB)
        words = [self.inflect_noun(noun or self.sample_noun(topic), plural)]
        if self.sampler.bernoulli(adjective_prob):
            words.append(self.sample_word(self.sample_vocabulary(topic).adjectives))
        return NounPhrase(words, plural)

    def subject(
        self,
        topic: int,
        *,
        adjective_prob: float = 0.0,
        plural: bool | None = None,
        noun: str | None = None,
    ) -> NounPhrase:
        """Write a noun phrase with a determiner, which only subjects have."""
        phrase = self.noun_phrase(topic, adjective_prob=adjective_prob, plural=plural, noun=noun)
        determiner = self.lexicon.determiners[phrase.is_plural]
        return NounPhrase([determiner, *phrase.words], phrase.is_plural)

    def attractor(
        self, topic: int, head_is_plural: bool, *, clause: bool, plural: bool | None = None
    ) -> list[str]:
        """Write a phrase or clause between a subject and its auxiliary; its noun has a number."""
        words, _ = self.noun_phrase(topic, plural=plural)
        if clause:
            relative = self.lexicon.relative_pronouns[head_is_plural]
            return [relative, *words, self.sample_word(self.sample_vocabulary(topic).verbs)]
        return [self.sampler.choice(self.lexicon.prepositions), *words]

    def full_subject(self, topic: int) -> NounPhrase:
        """Write a subject with an attractor, an adjective or neither."""
        if self.sampler.bernoulli(ATTRACTOR_PROB):
            words, is_plural = self.subject(topic)
            is_clause = self.sampler.bernoulli(0.5)
            attractor = self.attractor(topic, is_plural, clause=is_clause)
            return NounPhrase(words + attractor, is_plural)
        return self.subject(topic, adjective_prob=0.9)

    def predicate(self, topic: int, plural: bool, *, neutral: bool) -> list[str]:
        """Write an auxiliary, of the topic's field or neutral, and a verb."""
        field = NUM_FIELDS if neutral else topic_field(topic)
        auxiliary = self.lexicon.auxiliaries[field][plural]
        return [auxiliary, self.sample_word(self.sample_vocabulary(topic).verbs)]

    def sample_polar_word(self, polarity: int) -> str:
        if self.sampler.bernoulli(self.rare_prob):
            return self.sampler.choice(self.lexicon.domain_polar_words[polarity])
        return self.sample_word(self.lexicon.polar_words[polarity])

    def opinion_clause(
        self, subject: NounPhrase, mood: int, *, negated: bool, num_polar_words: int = 1
    ) -> list[str]:
        """Write a clause with polar words of the mood (0 or 1), or of the opposite if negated."""
        words = [*subject.words, self.lexicon.copula[subject.is_plural]]
        if negated:
            words.append(self.lexicon.negation)
        if self.sampler.bernoulli(0.2):
            words.append(self.sampler.choice(self.lexicon.intensifiers))
        words += [self.sample_polar_word(mood ^ negated) for _ in range(num_polar_words)]
        return words

    def opinion_sentence(self, topic: int, subject: NounPhrase, mood: int) -> list[str]:
        """Write one or two opinions; after the contrast word stands the one of the mood."""
        contrast = self.sampler.bernoulli(CONTRAST_PROB)
        words = self._random_opinion(subject, mood ^ contrast)
        if contrast:
            words.append(self.lexicon.contrastive_conjunction)
            words += self._random_opinion(self.subject(topic), mood)
        elif self.sampler.bernoulli(SECOND_OPINION_PROB):
            words.append(self.lexicon.additive_conjunction)
            words += self._random_opinion(self.subject(topic), mood)
        return [*words, self.full_stop]

    def _random_opinion(self, subject: NounPhrase, mood: int) -> list[str]:
        negated = self.sampler.bernoulli(NEGATION_PROB)
        num_polar_words = 1 + self.sampler.bernoulli(TWO_POLAR_WORDS_PROB)
        return self.opinion_clause(subject, mood, negated=negated, num_polar_words=num_polar_words)


def generate_sentence(
    generator: SentenceGenerator,
    topic: int,
    mood: int,
    last_object: NounPhrase | None,
    names: Sequence[str],
    *,
    opinion_prob: float = OPINION_PROB,
) -> tuple[list[str], NounPhrase | None]:
    """Write a sentence of a document; return its object too, which the next may take up."""
    sampler = generator.sampler
    lexicon = generator.lexicon
    if sampler.bernoulli(NAME_PROB):
        subject = NounPhrase([sampler.choice(names)], False)
    elif last_object and sampler.bernoulli(OBJECT_REPEAT_PROB):
        determiner = lexicon.determiners[last_object.is_plural]
        subject = NounPhrase([determiner, *last_object.words], last_object.is_plural)
    else:
        subject = generator.full_subject(topic)
    if sampler.bernoulli(opinion_prob):
        return generator.opinion_sentence(topic, subject, mood), None
    neutral = sampler.bernoulli(NEUTRAL_AUXILIARY_PROB)
    words = subject.words + generator.predicate(topic, subject.is_plural, neutral=neutral)
    complement = None
    if sampler.bernoulli(COMPLEMENT_PROB):
        complement = generator.noun_phrase(topic, adjective_prob=0.85)
        preposition = sampler.choice(lexicon.prepositions)
        if sampler.bernoulli(0.2):
            words.append(preposition)
        words += complement.words
    if sampler.bernoulli(ADVERB_PROB):
        words.append(generator.sample_word(generator.sample_vocabulary(topic).adverbs))
    return [*words, generator.full_stop], complement


def resolve_grammar_seed(grammar_seed: int | None) -> int:
    """Return the given grammar seed, or the default."""
    return DEFAULT_GRAMMAR_SEED if grammar_seed is None else grammar_seed


def generate_documents(
    count: int, *, seed: int, grammar_seed: int = DEFAULT_GRAMMAR_SEED, language: str = "en"
) -> Iterator[str]:
    """Generate the first `count` documents of a seed.

    A document is one line of 26 to 66 connected sentences, in English about 2,050 bytes. The n-th
    is the same for any `count`. Raises InputError for an unknown language.
    """
    lexicon = build_lexicon(grammar_seed, language)
    for number in range(count):
        sampler = Sampler(grammar_seed, DOCUMENT_STREAM, seed, number)
        generator = SentenceGenerator(lexicon, sampler)
        name_indices = sampler.permutation(len(lexicon.names))[:2]
        names = [lexicon.names[index] for index in name_indices]
        yield generator.join_words(_generate_document(generator, names))


def _generate_document(generator: SentenceGenerator, names: Sequence[str]) -> list[str]:
    sampler = generator.sampler
    topic_by_field = [sampler.choice(topics) for topics in FIELD_TOPICS]
    topic = sampler.choice(topic_by_field)
    mood = int(sampler.bernoulli(0.5))
    last_object: NounPhrase | None = None
    words: list[str] = []
    for _ in range(26 + int(sampler.uniform() * 41)):
        if sampler.bernoulli(TOPIC_CHANGE_PROB):
            topic = topic_by_field[1 - topic_field(topic)]
            last_object = None
        mood ^= sampler.bernoulli(MOOD_FLIP_PROB)
        sentence, last_object = generate_sentence(generator, topic, mood, last_object, names)
        words += sentence
    return words
