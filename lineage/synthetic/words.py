"""The words of the synthetic language: a lexicon of about 2,000 forms, made from a seed.

There are ten topics, five in each of two *fields*. An *ambiguous* noun belongs to two topics, one
of each field. The scripts of the language differ in letters, full stop, plural suffix and word
separator.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from lineage.errors import InputError

NUM_TOPICS = 10
NUM_FIELDS = 2
NUM_AMBIGUOUS_NOUNS = 40


@dataclass(frozen=True)
class Script:
    """How words are written."""

    consonants: Sequence[str]
    vowels: Sequence[str]
    plural_suffix: str  # only plural nouns end with it
    full_stop: str
    word_separator: str
    # Nouns of the real language that begin the list of ambiguous ones. No form has their letters.
    ambiguous_nouns: tuple[str, ...] = ()


# In Chinese a syllable is a character, so a form has as many characters as its shape has vowels.
CHINESE_CHARACTERS = (
    "的一是在不了有和人这中大为上个国我以要他时来用生到作地于出就分对成会可主发年动同工也能下过子说产种面而方后多定学法所民得经"
    "三之进着等部度家电力里如水化高自二理起小物现实加量都两体制机当使点从业本去把性好应开它合还因由其些然前外天政四日那社义事"
    "平形相全表间样与关各重新线内数正心反你明看原又么利比或但质气第向道命此变条只没结解问意建月公无系军很情者最立代想已通并提"
    "直题党程展五料象员革位入常文总次品式活设及管特件长求老头基资边流路级少图山统接知较将组见计别她手角期根论运农指几九区强放"
)
SCRIPTS = {
    "en": Script("bdfgklmnprtvz", "aeiou", plural_suffix="s", full_stop=".", word_separator=" "),
    "zh": Script(
        ("",),
        CHINESE_CHARACTERS,
        plural_suffix="们",
        full_stop="。",
        word_separator="",
        ambiguous_nouns=("苹果", "打", "银行"),
    ),
}


@dataclass(frozen=True)
class OpenClassWords:
    """Nouns (singular), verbs, adjectives and adverbs, each by falling frequency."""

    nouns: tuple[str, ...]
    verbs: tuple[str, ...]
    adjectives: tuple[str, ...]
    adverbs: tuple[str, ...]


@dataclass(frozen=True)
class AmbiguousNoun:
    """A noun with two senses; `topics[f]` is its topic in field f."""

    noun: str
    topics: tuple[int, int]


@dataclass(frozen=True)
class Lexicon:
    """All words of the language.

    Pairs are (singular, plural) for number and (negative, positive) for polarity.
    """

    script: Script
    topics: tuple[OpenClassWords, ...]  # their nouns exclude the ambiguous ones
    ambiguous_nouns: tuple[AmbiguousNoun, ...]
    generic: OpenClassWords  # words without a topic
    domain_nouns: tuple[str, ...]  # frequent in reviews only
    determiners: tuple[str, str]
    auxiliaries: tuple[tuple[str, str], ...]  # one per field, and a neutral one
    copula: tuple[str, str]
    prepositions: tuple[str, ...]
    intensifiers: tuple[str, ...]
    negation: str
    relative_pronouns: tuple[str, str]
    additive_conjunction: str
    contrastive_conjunction: str
    names: tuple[str, ...]
    polar_words: tuple[tuple[str, ...], tuple[str, ...]]
    domain_polar_words: tuple[tuple[str, ...], tuple[str, ...]]  # frequent in reviews only

    @cached_property
    def nouns(self) -> tuple[tuple[str, ...], ...]:
        """Return each topic's nouns by falling frequency; ambiguous ones at every other rank."""
        nouns_by_topic = []
        for topic in range(NUM_TOPICS):
            nouns = list(self.topics[topic].nouns)
            ambiguous = [word.noun for word in self.ambiguous_nouns if topic in word.topics]
            for place, noun in enumerate(ambiguous):
                nouns.insert(1 + 2 * place, noun)
            nouns_by_topic.append(tuple(nouns))
        return tuple(nouns_by_topic)


def topic_field(topic: int) -> int:
    """Return the field of a topic, 0 or 1."""
    return topic * NUM_FIELDS // NUM_TOPICS


FIELD_TOPICS = tuple(
    tuple(topic for topic in range(NUM_TOPICS) if topic_field(topic) == field)
    for field in range(NUM_FIELDS)
)


class _WordForms:
    """Invented words, all different. A shape is a string of c (consonant) and v (vowel)."""

    def __init__(self, rng: np.random.Generator, script: Script) -> None:
        self.rng = rng
        self.letters = {"c": script.consonants, "v": script.vowels}
        self.taken: set[str] = set()

    def make(self, shape: str) -> str:
        while True:
            choices = [self.letters[kind] for kind in shape]
            form = "".join(letters[int(self.rng.random() * len(letters))] for letters in choices)
            if form not in self.taken:
                self.taken.add(form)
                return form

    def make_many(self, count: int, shape: str = "cv") -> tuple[str, ...]:
        return tuple(self.make(shape) for _ in range(count))

    def make_by_frequency(self, count: int, shapes: tuple[str, str, str]) -> tuple[str, ...]:
        """Make words by falling frequency; frequent ones are shorter."""
        return tuple(self.make(shapes[min(2, 4 * place // count)]) for place in range(count))

    def make_nouns(self, count: int) -> tuple[str, ...]:
        return self.make_by_frequency(count, ("cvccv", "cvcvcv", "cvccvcv"))

    def make_other_words(self, count: int) -> tuple[str, ...]:
        return self.make_by_frequency(count, ("cvcvc", "cvccvc", "cvcvcvc"))


def build_lexicon(grammar_seed: int, language: str = "en") -> Lexicon:
    """Make the lexicon of a grammar seed."""
    if language not in SCRIPTS:
        raise InputError(
            f"generated: synthetic: no language {language!r}; use one of {', '.join(SCRIPTS)}"
        )
    rng = np.random.default_rng([grammar_seed, 0])
    script = SCRIPTS[language]
    forms = _WordForms(rng, script)
    topic_pairs = _choose_topic_pairs(rng)
    by_field = [
        OpenClassWords((), forms.make_other_words(14), (), forms.make_other_words(8))
        for _ in range(NUM_FIELDS)
    ]
    num_invented = NUM_AMBIGUOUS_NOUNS - len(script.ambiguous_nouns)
    return Lexicon(
        script=script,
        negation=forms.make("cv"),
        relative_pronouns=(forms.make("cv"), forms.make("cv")),
        additive_conjunction=forms.make("v"),
        contrastive_conjunction=forms.make("vc"),
        copula=(forms.make("vc"), forms.make("vc")),
        determiners=(forms.make("cv"), forms.make("cv")),
        auxiliaries=tuple((forms.make("cvc"), forms.make("cvc")) for _ in range(NUM_FIELDS + 1)),
        prepositions=forms.make_many(8, "vcv"),
        intensifiers=forms.make_many(3, "cvc"),
        ambiguous_nouns=tuple(
            map(
                AmbiguousNoun,
                (*script.ambiguous_nouns, *forms.make_many(num_invented, "cvccv")),
                topic_pairs,
            )
        ),
        topics=tuple(
            replace(
                by_field[topic_field(topic)],
                nouns=forms.make_nouns(8),
                adjectives=forms.make_other_words(8),
            )
            for topic in range(NUM_TOPICS)
        ),
        generic=OpenClassWords(
            forms.make_nouns(240),
            forms.make_other_words(240),
            forms.make_other_words(260),
            forms.make_other_words(60),
        ),
        names=forms.make_many(300, "vcvcvc"),
        polar_words=(forms.make_other_words(16), forms.make_other_words(16)),
        domain_nouns=forms.make_nouns(75),
        domain_polar_words=(forms.make_other_words(30), forms.make_other_words(30)),
    )


def _choose_topic_pairs(rng: np.random.Generator) -> list[tuple[int, int]]:
    """Choose the two topics of each ambiguous noun, so that every topic gets equally many."""
    first_topics, second_topics = FIELD_TOPICS
    pairs = [(first, second) for first in first_topics for second in second_topics]
    start = int(rng.random() * 5)
    return [pairs[5 * (i % 5) + (i + i // 5 + start) % 5] for i in range(NUM_AMBIGUOUS_NOUNS)]
