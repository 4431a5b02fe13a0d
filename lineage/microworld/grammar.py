"""The grammar of the microworld, and its documents.

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

from lineage.microworld.words import FIELD_TOPICS, FIELDS, Lexicon, Vocabulary, field, lexicon

VERSION = 1  # rises with every change of the bytes that a seed gives
DEFAULT_GRAMMAR_SEED = 2018
DOCUMENTS, UNLABELLED, ITEMS = 1, 2, 3  # streams of random numbers, which share none

MOVE = 0.4  # of the sentences change the topic
OPINION = 0.16  # of the sentences
FLIP = 0.02  # of the sentences turn the mood
NAME = 0.1  # of the subjects
ATTRACTOR = 0.4  # of the subjects that are noun phrases
NEGATED = 0.12  # of the opinions
PAIRED = 0.7  # of the opinions have two polar words side by side
CONTRAST = 0.15  # of the sentences of opinions
SECOND = 0.3  # of the others have a second opinion
COMPLEMENT = 0.95  # of the sentences
ADVERB = 0.35  # of the sentences
AGAIN = 0.2  # of the other subjects repeat the last object, where the topic stays
NEUTRAL = 0.12  # of the auxiliaries are of no field
PLURALS = 0.4  # of the nouns
GENERIC = 0.03  # of the open-class words
RARE = 0.01  # of the nouns and polar words in documents are of the review domain

NounPhrase = tuple[list[str], bool]  # its words, and whether it is plural
Item = TypeVar("Item")


class Dice:
    """Uniform numbers of a generator's stream, drawn in blocks for speed; every choice is made from these."""

    def __init__(self, *key: int) -> None:
        self._rng = np.random.default_rng(list(key))
        self._block: list[float] = []

    def roll(self) -> float:
        if not self._block:
            self._block = self._rng.random(512).tolist()
        return self._block.pop()

    def chance(self, probability: float) -> bool:
        return self.roll() < probability

    def one(self, items: Sequence[Item]) -> Item:
        return items[int(self.roll() * len(items))]

    def order(self, count: int) -> list[int]:
        """The numbers below `count` in random order."""
        return sorted(range(count), key=[self.roll() for _ in range(count)].__getitem__)


@cache
def _zipf(count: int) -> list[float]:
    """Cumulative probabilities of ranks 1 to `count`."""
    weights = [1 / rank for rank in range(1, count + 1)]
    total = sum(weights)
    return [sum(weights[: rank + 1]) / total for rank in range(count)]


@dataclass(frozen=True)
class Writer:
    """Writes phrases and sentences, as lists of words, from one lexicon and one stream of random numbers."""

    lexicon: Lexicon
    dice: Dice
    zipf: bool = True  # else every word of a class is equally likely: items are then of no sentence of a document
    generic: float = GENERIC
    rare: float = RARE  # of the nouns and of the polar words

    @property
    def stop(self) -> str:
        """What ends a sentence."""
        return self.lexicon.script.full_stop

    def form(self, noun: str, plural: bool) -> str:
        """A noun as it is written."""
        return noun + self.lexicon.script.plural * plural

    def text(self, words: Sequence[str]) -> str:
        """Words and stops as running text."""
        return self.lexicon.script.join(words)

    def pick(self, words: Sequence[str]) -> str:
        if not self.zipf:
            return self.dice.one(words)
        return words[min(bisect_right(_zipf(len(words)), self.dice.roll()), len(words) - 1)]

    def vocabulary(self, topic: int) -> Vocabulary:
        return self.lexicon.generic if self.dice.chance(self.generic) else self.lexicon.topics[topic]

    def noun(self, topic: int) -> str:
        if self.dice.chance(self.rare):
            return self.dice.one(self.lexicon.domain_nouns)
        return self.pick(self.lexicon.generic.nouns if self.dice.chance(self.generic) else self.lexicon.nouns[topic])

    def noun_phrase(self, topic: int, *, adjective: float = 0.0, plural: bool | None = None, noun: str | None = None) -> NounPhrase:
        """A noun and, with the probability `adjective`, an adjective."""
        plural = self.dice.chance(PLURALS) if plural is None else plural
        words = [self.form(noun or self.noun(topic), plural)]
        if self.dice.chance(adjective):
            words.append(self.pick(self.vocabulary(topic).adjectives))
        return words, plural

    def subject(self, topic: int, *, adjective: float = 0.0, plural: bool | None = None, noun: str | None = None) -> NounPhrase:
        """A noun phrase with the determiner that only the subjects of sentences have."""
        words, number = self.noun_phrase(topic, adjective=adjective, plural=plural, noun=noun)
        return [self.lexicon.determiners[number], *words], number

    def attractor(self, topic: int, head: bool, *, clause: bool, plural: bool | None = None) -> list[str]:
        """What stands between a subject, whose head is plural or not, and its auxiliary: a phrase or a clause with a noun of its own number."""
        words, _ = self.noun_phrase(topic, plural=plural)
        if clause:
            return [self.lexicon.relative[head], *words, self.pick(self.vocabulary(topic).verbs)]
        return [self.dice.one(self.lexicon.prepositions), *words]

    def full_subject(self, topic: int) -> NounPhrase:
        """A subject with an attractor, an adjective or neither."""
        if self.dice.chance(ATTRACTOR):
            words, plural = self.subject(topic)
            return words + self.attractor(topic, plural, clause=self.dice.chance(0.5)), plural
        return self.subject(topic, adjective=0.9)

    def predicate(self, topic: int, plural: bool, *, neutral: bool) -> list[str]:
        """An auxiliary of the topic's field or, neutral, of none; and a verb."""
        return [self.lexicon.auxiliaries[FIELDS if neutral else field(topic)][plural], self.pick(self.vocabulary(topic).verbs)]

    def polar(self, polarity: int) -> str:
        if self.dice.chance(self.rare):
            return self.dice.one(self.lexicon.domain_polar[polarity])
        return self.pick(self.lexicon.polar[polarity])

    def opinion(self, subject: NounPhrase, mood: int, *, negated: bool, words: int = 1) -> list[str]:
        """A clause with polar words of one polarity: that of the mood (0 or 1), or, negated, the other."""
        strong = [self.dice.one(self.lexicon.intensifiers)] if self.dice.chance(0.2) else []
        polar = [self.polar(mood ^ negated) for _ in range(words)]
        return [*subject[0], self.lexicon.copula[subject[1]], *[self.lexicon.negation] * negated, *strong, *polar]

    def opinions(self, topic: int, subject: NounPhrase, mood: int) -> list[str]:
        """A sentence of one or two opinions; after the contrast word stands the one that decides, of the mood."""
        contrast = self.dice.chance(CONTRAST)
        written = self._loose_opinion(subject, mood ^ contrast)
        if contrast or self.dice.chance(SECOND):
            link = self.lexicon.contrast if contrast else self.lexicon.also
            written = [*written, link, *self._loose_opinion(self.subject(topic), mood)]
        return [*written, self.stop]

    def _loose_opinion(self, subject: NounPhrase, mood: int) -> list[str]:
        return self.opinion(subject, mood, negated=self.dice.chance(NEGATED), words=1 + self.dice.chance(PAIRED))


def _document(writer: Writer, names: Sequence[str]) -> list[str]:
    """The words of one document."""
    dice = writer.dice
    palette = [dice.one(topics) for topics in FIELD_TOPICS]
    topic, mood = dice.one(palette), int(dice.chance(0.5))
    last: NounPhrase | None = None
    words: list[str] = []
    for _ in range(26 + int(dice.roll() * 41)):
        if dice.chance(MOVE):
            topic, last = palette[1 - field(topic)], None
        mood ^= dice.chance(FLIP)
        written, last = sentence(writer, topic, mood, last, names)
        words += written
    return words


def sentence(
    writer: Writer, topic: int, mood: int, last: NounPhrase | None, names: Sequence[str], *, opinion: float = OPINION
) -> tuple[list[str], NounPhrase | None]:
    """A sentence of running text, and its object, which the next sentence may take up."""
    dice = writer.dice
    if dice.chance(NAME):
        subject: NounPhrase = [dice.one(names)], False
    else:
        again = last and dice.chance(AGAIN)
        subject = ([writer.lexicon.determiners[last[1]], *last[0]], last[1]) if last and again else writer.full_subject(topic)
    if dice.chance(opinion):
        return writer.opinions(topic, subject, mood), None
    words = subject[0] + writer.predicate(topic, subject[1], neutral=dice.chance(NEUTRAL))
    complement = writer.noun_phrase(topic, adjective=0.85) if dice.chance(COMPLEMENT) else None
    if complement:
        words += [dice.one(writer.lexicon.prepositions)] * dice.chance(0.2) + complement[0]
    if dice.chance(ADVERB):
        words.append(writer.pick(writer.vocabulary(topic).adverbs))
    return [*words, writer.stop], complement


def seed_of(given: int | None) -> int:
    """The grammar of a record that names one, or the shipped one."""
    return DEFAULT_GRAMMAR_SEED if given is None else given


def documents(count: int, *, seed: int, grammar_seed: int = DEFAULT_GRAMMAR_SEED, language: str = "en") -> Iterator[str]:
    """The first `count` documents of the microworld.

    A document is one line of 26 to 66 connected sentences, about 400 words: in English in small letters, each sentence ending in " .", 2,050 bytes;
    in Chinese without spaces, ending in "。", about 700 characters. The n-th document of a seed is the same whatever `count` is. Raises InputError
    for a language that the microworld does not have.
    """
    words = lexicon(grammar_seed, language)
    for number in range(count):
        writer = Writer(words, Dice(grammar_seed, DOCUMENTS, seed, number))
        names = [words.names[place] for place in writer.dice.order(len(words.names))[:2]]
        yield writer.text(_document(writer, names))
