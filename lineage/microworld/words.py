"""The words of the microworld: a lexicon of about 2,000 forms, made from a seed.

Ten topics, five in each of two *fields*, have nouns and adjectives of their own, and the verbs, adverbs and auxiliary of their field. An
*ambiguous* noun belongs to two topics, one of each field: its form says nothing about which is meant. A script is `_Forms` (how a form is made),
`PLURAL` and `join`; another one (characters without spaces) would replace these three and nothing else.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

TOPICS = 10
FIELDS = 2
AMBIGUOUS = 40
PLURAL = "s"  # no other form ends so
CONSONANTS = "bdfgklmnprtvz"
VOWELS = "aeiou"
FULL_STOP = "."


@dataclass(frozen=True)
class Vocabulary:
    """Open-class words of a topic, each class by falling frequency; nouns are singular."""

    nouns: tuple[str, ...]
    verbs: tuple[str, ...]
    adjectives: tuple[str, ...]
    adverbs: tuple[str, ...]


@dataclass(frozen=True)
class Ambiguous:
    """A noun with two senses: `topics[f]` is its topic in field f."""

    noun: str
    topics: tuple[int, int]


@dataclass(frozen=True)
class Lexicon:
    """All words of a microworld. Pairs are (singular, plural) for number, (negative, positive) for polarity."""

    topics: tuple[Vocabulary, ...]  # their nouns do not hold the ambiguous ones
    ambiguous: tuple[Ambiguous, ...]
    generic: Vocabulary  # of no topic
    domain_nouns: tuple[str, ...]  # rare but in reviews
    determiners: tuple[str, str]
    auxiliaries: tuple[tuple[str, str], ...]  # of each field, and that of none
    copula: tuple[str, str]
    prepositions: tuple[str, ...]
    intensifiers: tuple[str, ...]
    negation: str
    relative: tuple[str, str]
    also: str
    contrast: str
    names: tuple[str, ...]
    polar: tuple[tuple[str, ...], tuple[str, ...]]
    domain_polar: tuple[tuple[str, ...], tuple[str, ...]]  # rare but in reviews

    @cached_property
    def nouns(self) -> tuple[tuple[str, ...], ...]:
        """The nouns of each topic by falling frequency, its ambiguous ones at every other rank."""
        return tuple(self._nouns(topic) for topic in range(TOPICS))

    def _nouns(self, topic: int) -> tuple[str, ...]:
        nouns = list(self.topics[topic].nouns)
        for place, noun in enumerate(word.noun for word in self.ambiguous if topic in word.topics):
            nouns.insert(1 + 2 * place, noun)
        return tuple(nouns)

    def domain_forms(self) -> frozenset[str]:
        """The forms that are rare in the documents and common in reviews."""
        plurals = [noun + PLURAL for noun in self.domain_nouns]
        return frozenset((*self.domain_nouns, *plurals, *self.domain_polar[0], *self.domain_polar[1]))


def field(topic: int) -> int:
    """The field, 0 or 1, of a topic."""
    return topic * FIELDS // TOPICS


FIELD_TOPICS = tuple(tuple(topic for topic in range(TOPICS) if field(topic) == sense) for sense in range(FIELDS))


def join(tokens: Sequence[str]) -> str:
    """Tokens (words and full stops) as text."""
    return " ".join(tokens)


class _Forms:
    """Invented words, none twice."""

    def __init__(self, rng: np.random.Generator) -> None:
        self.rng = rng
        self.taken: set[str] = set()

    def one(self, shape: str) -> str:
        while True:
            form = "".join(letters[int(self.rng.random() * len(letters))] for letters in (CONSONANTS if s == "c" else VOWELS for s in shape))
            if form not in self.taken:
                self.taken.add(form)
                return form

    def few(self, count: int, shape: str = "cv") -> tuple[str, ...]:
        return tuple(self.one(shape) for _ in range(count))

    def many(self, count: int, shapes: tuple[str, str, str]) -> tuple[str, ...]:
        """Words by falling frequency, the frequent ones shorter."""
        return tuple(self.one(shapes[min(2, 4 * place // count)]) for place in range(count))

    def nouns(self, count: int) -> tuple[str, ...]:
        return self.many(count, ("cvccv", "cvcvcv", "cvccvcv"))

    def others(self, count: int) -> tuple[str, ...]:
        return self.many(count, ("cvcvc", "cvccvc", "cvcvcvc"))


def lexicon(grammar_seed: int) -> Lexicon:
    """The lexicon of a grammar seed. The same seed gives the same words, whatever they are used for."""
    rng = np.random.default_rng([grammar_seed, 0])
    forms = _Forms(rng)
    pairs = [(a, b) for a in range(TOPICS // FIELDS) for b in range(TOPICS // FIELDS, TOPICS)]
    # Each topic gets equally many: whole rounds of the five diagonals of the 5 x 5 pairs, which a seed may start anywhere.
    start = int(rng.random() * 5)
    chosen = [pairs[5 * (i % 5) + (i + i // 5 + start) % 5] for i in range(AMBIGUOUS)]
    shared = [Vocabulary((), forms.others(14), (), forms.others(8)) for _ in range(FIELDS)]
    return Lexicon(
        negation=forms.one("cv"),
        relative=(forms.one("cv"), forms.one("cv")),
        also=forms.one("v"),
        contrast=forms.one("vc"),
        copula=(forms.one("vc"), forms.one("vc")),
        determiners=(forms.one("cv"), forms.one("cv")),
        auxiliaries=tuple((forms.one("cvc"), forms.one("cvc")) for _ in range(FIELDS + 1)),
        prepositions=forms.few(8, "vcv"),
        intensifiers=forms.few(3, "cvc"),
        ambiguous=tuple(Ambiguous(noun, pair) for noun, pair in zip(forms.few(AMBIGUOUS, "cvccv"), chosen, strict=True)),
        topics=tuple(replace(shared[field(topic)], nouns=forms.nouns(8), adjectives=forms.others(8)) for topic in range(TOPICS)),
        generic=Vocabulary(forms.nouns(240), forms.others(240), forms.others(260), forms.others(60)),
        names=forms.few(300, "vcvcvc"),
        polar=(forms.others(16), forms.others(16)),
        domain_nouns=forms.nouns(75),
        domain_polar=(forms.others(30), forms.others(30)),
    )
