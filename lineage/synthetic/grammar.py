"""The grammar of the synthetic language, and its documents.

    sentence    -> subject auxiliary verb [[preposition] noun phrase] [adverb] "." | opinion "." | opinion link opinion "."
    subject     -> name | determiner noun [adjective | attractor]     opinion   -> subject copula [negation] [intensifier] polar [polar]
    noun phrase -> noun [adjective]                                   attractor -> preposition noun | relative noun verb

A determiner stands before subjects and nowhere else. Determiners, nouns, relatives and auxiliaries (or the copula) show number; the
head of the subject, not the noun that stands nearer, rules the relative and the auxiliary. All open-class words of a sentence are of its topic or of
the topic's field, but for a few generic ones; the adjective follows its noun, so that to foresee it one must know which sense is meant.

A document goes to and fro between two topics, one of each field. From sentence to sentence the topic stays or changes; names, and now and then the
last object, come back as the subject; opinions follow the document's mood. So a sentence goes with the one before it, and in its own field its own
words count for more than its neighbours'.
"""

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from typing import TypeVar

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
DOCUMENT_STREAM, UNLABELED_STREAM, ITEM_STREAM = (
    1,
    2,
    3,
)  # streams of random numbers, which share none

TOPIC_CHANGE_PROB = 0.4  # of the sentences change the topic
OPINION_PROB = 0.16  # of the sentences
MOOD_FLIP_PROB = 0.02  # of the sentences turn the mood
NAME_PROB = 0.1  # of the subjects
ATTRACTOR_PROB = 0.4  # of the subjects that are noun phrases
NEGATION_PROB = 0.12  # of the opinions
TWO_POLAR_WORDS_PROB = 0.7  # of the opinions have two polar words side by side
CONTRAST_PROB = 0.15  # of the sentences of opinions
SECOND_OPINION_PROB = 0.3  # of the others have a second opinion
COMPLEMENT_PROB = 0.95  # of the sentences
ADVERB_PROB = 0.35  # of the sentences
OBJECT_REPEAT_PROB = 0.2  # of the other subjects repeat the last object, where the topic stays
NEUTRAL_AUXILIARY_PROB = 0.12  # of the auxiliaries are of no field
PLURAL_PROB = 0.4  # of the nouns
GENERIC_WORD_PROB = 0.03  # of the open-class words
RARE_WORD_PROB = 0.01  # of the nouns and polar words in documents are of the review domain

NounPhrase = tuple[list[str], bool]  # its words, and whether it is plural
Item = TypeVar("Item")


class Sampler:
    """Uniform numbers of a generator's stream, drawn in blocks for speed; every choice is made from these."""

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
        """The numbers below `count` in random order."""
        return sorted(range(count), key=[self.uniform() for _ in range(count)].__getitem__)


@cache
def _zipf_cdf(count: int) -> list[float]:
    """Cumulative probabilities of ranks 1 to `count`."""
    weights = [1 / rank for rank in range(1, count + 1)]
    total = sum(weights)
    return [sum(weights[: rank + 1]) / total for rank in range(count)]


@dataclass(frozen=True)
class SentenceGenerator:
    """Writes phrases and sentences, as lists of words, from one lexicon and one stream of random numbers."""

    lexicon: Lexicon
    sampler: Sampler
    zipf: bool = True  # else every word of a class is equally likely: items are then of no sentence of a document
    generic_prob: float = GENERIC_WORD_PROB
    rare_prob: float = RARE_WORD_PROB  # of the nouns and of the polar words

    @property
    def full_stop(self) -> str:
        """What ends a sentence."""
        return self.lexicon.script.full_stop

    def inflect_noun(self, noun: str, plural: bool) -> str:
        """A noun as it is written."""
        return noun + self.lexicon.script.plural_suffix * plural

    def join_words(self, words: Sequence[str]) -> str:
        """Words and stops as running text."""
        return self.lexicon.script.join(words)

    def sample_word(self, words: Sequence[str]) -> str:
        if not self.zipf:
            return self.sampler.choice(words)
        return words[
            min(bisect_right(_zipf_cdf(len(words)), self.sampler.uniform()), len(words) - 1)
        ]

    def sample_vocabulary(self, topic: int) -> OpenClassWords:
        return (
            self.lexicon.generic
            if self.sampler.bernoulli(self.generic_prob)
            else self.lexicon.topics[topic]
        )

    def sample_noun(self, topic: int) -> str:
        if self.sampler.bernoulli(self.rare_prob):
            return self.sampler.choice(self.lexicon.domain_nouns)
        return self.sample_word(
            self.lexicon.generic.nouns
            if self.sampler.bernoulli(self.generic_prob)
            else self.lexicon.nouns[topic]
        )

    def noun_phrase(
        self,
        topic: int,
        *,
        adjective_prob: float = 0.0,
        plural: bool | None = None,
        noun: str | None = None,
    ) -> NounPhrase:
        """A noun and, with the probability `adjective`, an adjective."""
        plural = self.sampler.bernoulli(PLURAL_PROB) if plural is None else plural
        words = [self.inflect_noun(noun or self.sample_noun(topic), plural)]
        if self.sampler.bernoulli(adjective_prob):
            words.append(self.sample_word(self.sample_vocabulary(topic).adjectives))
        return words, plural

    def subject(
        self,
        topic: int,
        *,
        adjective_prob: float = 0.0,
        plural: bool | None = None,
        noun: str | None = None,
    ) -> NounPhrase:
        """A noun phrase with the determiner that only the subjects of sentences have."""
        words, number = self.noun_phrase(
            topic, adjective_prob=adjective_prob, plural=plural, noun=noun
        )
        return [self.lexicon.determiners[number], *words], number

    def attractor(
        self, topic: int, head: bool, *, clause: bool, plural: bool | None = None
    ) -> list[str]:
        """What stands between a subject, whose head is plural or not, and its auxiliary: a phrase or a clause with a noun of its own number."""
        words, _ = self.noun_phrase(topic, plural=plural)
        if clause:
            return [
                self.lexicon.relative_pronouns[head],
                *words,
                self.sample_word(self.sample_vocabulary(topic).verbs),
            ]
        return [self.sampler.choice(self.lexicon.prepositions), *words]

    def full_subject(self, topic: int) -> NounPhrase:
        """A subject with an attractor, an adjective or neither."""
        if self.sampler.bernoulli(ATTRACTOR_PROB):
            words, plural = self.subject(topic)
            return words + self.attractor(topic, plural, clause=self.sampler.bernoulli(0.5)), plural
        return self.subject(topic, adjective_prob=0.9)

    def predicate(self, topic: int, plural: bool, *, neutral: bool) -> list[str]:
        """An auxiliary of the topic's field or, neutral, of none; and a verb."""
        return [
            self.lexicon.auxiliaries[NUM_FIELDS if neutral else topic_field(topic)][plural],
            self.sample_word(self.sample_vocabulary(topic).verbs),
        ]

    def sample_polar_word(self, polarity: int) -> str:
        if self.sampler.bernoulli(self.rare_prob):
            return self.sampler.choice(self.lexicon.domain_polar_words[polarity])
        return self.sample_word(self.lexicon.polar_words[polarity])

    def opinion_clause(
        self, subject: NounPhrase, mood: int, *, negated: bool, num_polar_words: int = 1
    ) -> list[str]:
        """A clause with polar words of one polarity: that of the mood (0 or 1), or, negated, the other."""
        strong = (
            [self.sampler.choice(self.lexicon.intensifiers)] if self.sampler.bernoulli(0.2) else []
        )
        polar = [self.sample_polar_word(mood ^ negated) for _ in range(num_polar_words)]
        return [
            *subject[0],
            self.lexicon.copula[subject[1]],
            *[self.lexicon.negation] * negated,
            *strong,
            *polar,
        ]

    def opinion_sentence(self, topic: int, subject: NounPhrase, mood: int) -> list[str]:
        """A sentence of one or two opinions; after the contrast word stands the one that decides, of the mood."""
        contrast = self.sampler.bernoulli(CONTRAST_PROB)
        written = self._random_opinion(subject, mood ^ contrast)
        if contrast or self.sampler.bernoulli(SECOND_OPINION_PROB):
            link = (
                self.lexicon.contrastive_conjunction
                if contrast
                else self.lexicon.additive_conjunction
            )
            written = [*written, link, *self._random_opinion(self.subject(topic), mood)]
        return [*written, self.full_stop]

    def _random_opinion(self, subject: NounPhrase, mood: int) -> list[str]:
        return self.opinion_clause(
            subject,
            mood,
            negated=self.sampler.bernoulli(NEGATION_PROB),
            num_polar_words=1 + self.sampler.bernoulli(TWO_POLAR_WORDS_PROB),
        )


def _generate_document(generator: SentenceGenerator, names: Sequence[str]) -> list[str]:
    """The words of one document."""
    sampler = generator.sampler
    palette = [sampler.choice(topics) for topics in FIELD_TOPICS]
    topic, mood = sampler.choice(palette), int(sampler.bernoulli(0.5))
    last: NounPhrase | None = None
    words: list[str] = []
    for _ in range(26 + int(sampler.uniform() * 41)):
        if sampler.bernoulli(TOPIC_CHANGE_PROB):
            topic, last = palette[1 - topic_field(topic)], None
        mood ^= sampler.bernoulli(MOOD_FLIP_PROB)
        written, last = generate_sentence(generator, topic, mood, last, names)
        words += written
    return words


def generate_sentence(
    generator: SentenceGenerator,
    topic: int,
    mood: int,
    last_object: NounPhrase | None,
    names: Sequence[str],
    *,
    opinion_prob: float = OPINION_PROB,
) -> tuple[list[str], NounPhrase | None]:
    """A sentence of running text, and its object, which the next sentence may take up."""
    sampler = generator.sampler
    if sampler.bernoulli(NAME_PROB):
        subject: NounPhrase = [sampler.choice(names)], False
    else:
        again = last_object and sampler.bernoulli(OBJECT_REPEAT_PROB)
        subject = (
            ([generator.lexicon.determiners[last_object[1]], *last_object[0]], last_object[1])
            if last_object and again
            else generator.full_subject(topic)
        )
    if sampler.bernoulli(opinion_prob):
        return generator.opinion_sentence(topic, subject, mood), None
    words = subject[0] + generator.predicate(
        topic, subject[1], neutral=sampler.bernoulli(NEUTRAL_AUXILIARY_PROB)
    )
    complement = (
        generator.noun_phrase(topic, adjective_prob=0.85)
        if sampler.bernoulli(COMPLEMENT_PROB)
        else None
    )
    if complement:
        words += [sampler.choice(generator.lexicon.prepositions)] * sampler.bernoulli(
            0.2
        ) + complement[0]
    if sampler.bernoulli(ADVERB_PROB):
        words.append(generator.sample_word(generator.sample_vocabulary(topic).adverbs))
    return [*words, generator.full_stop], complement


def resolve_grammar_seed(grammar_seed: int | None) -> int:
    """The grammar of a record that names one, or the shipped one."""
    return DEFAULT_GRAMMAR_SEED if grammar_seed is None else grammar_seed


def generate_documents(
    count: int, *, seed: int, grammar_seed: int = DEFAULT_GRAMMAR_SEED, language: str = "en"
) -> Iterator[str]:
    """The first `count` documents of the microworld.

    A document is one line of 26 to 66 connected sentences, about 400 words: in English in small letters, each sentence ending in " .", 2,050 bytes;
    in Chinese without spaces, ending in "。", about 700 characters. The n-th document of a seed is the same whatever `count` is. Raises InputError
    for a language that the microworld does not have.
    """
    words = build_lexicon(grammar_seed, language)
    for number in range(count):
        generator = SentenceGenerator(words, Sampler(grammar_seed, DOCUMENT_STREAM, seed, number))
        names = [
            words.names[place] for place in generator.sampler.permutation(len(words.names))[:2]
        ]
        yield generator.join_words(_generate_document(generator, names))
