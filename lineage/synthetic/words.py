"""The words of the synthetic language: a lexicon of about 2,000 forms, made from a seed.

Ten topics, five in each of two *fields*, have nouns and adjectives of their own, and the verbs, adverbs and auxiliary of their field. An
*ambiguous* noun belongs to two topics, one of each field: its form says nothing about which is meant. A `Script` is all that tells one language
of the microworld from another: the letters, the stop, the plural, and what stands between words. The grammar is the same.
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
    plural_suffix: str  # at the end of a noun; no other form ends so
    full_stop: str
    word_separator: str  # two words
    ambiguous_nouns: tuple[
        str, ...
    ] = ()  # nouns of the real language that begin the list of the ambiguous ones; no form has a letter of theirs

    def join(self, tokens: Sequence[str]) -> str:
        """Tokens (words and full stops) as text."""
        return self.word_separator.join(tokens)


# In Chinese a syllable is a character, so that a form has as many characters as its shape has vowels: from one to three.
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


def get_script(language: str) -> Script:
    """The script of a language. Raises InputError where the synthetic language is not written in it."""
    if language not in SCRIPTS:
        raise InputError(
            f"generated: synthetic: no language {language!r}; take one of {', '.join(SCRIPTS)}"
        )
    return SCRIPTS[language]


@dataclass(frozen=True)
class OpenClassWords:
    """Open-class words of a topic, each class by falling frequency; nouns are singular."""

    nouns: tuple[str, ...]
    verbs: tuple[str, ...]
    adjectives: tuple[str, ...]
    adverbs: tuple[str, ...]


@dataclass(frozen=True)
class AmbiguousNoun:
    """A noun with two senses: `topics[f]` is its topic in field f."""

    noun: str
    topics: tuple[int, int]


@dataclass(frozen=True)
class Lexicon:
    """All words of a synthetic language, and how they are written. Pairs are (singular, plural) for number, (negative, positive) for polarity."""

    script: Script
    topics: tuple[OpenClassWords, ...]  # their nouns do not hold the ambiguous ones
    ambiguous_nouns: tuple[AmbiguousNoun, ...]
    generic: OpenClassWords  # of no topic
    domain_nouns: tuple[str, ...]  # rare but in reviews
    determiners: tuple[str, str]
    auxiliaries: tuple[tuple[str, str], ...]  # of each field, and that of none
    copula: tuple[str, str]
    prepositions: tuple[str, ...]
    intensifiers: tuple[str, ...]
    negation: str
    relative_pronouns: tuple[str, str]
    additive_conjunction: str
    contrastive_conjunction: str
    names: tuple[str, ...]
    polar_words: tuple[tuple[str, ...], tuple[str, ...]]
    domain_polar_words: tuple[tuple[str, ...], tuple[str, ...]]  # rare but in reviews

    @cached_property
    def nouns(self) -> tuple[tuple[str, ...], ...]:
        """The nouns of each topic by falling frequency, its ambiguous ones at every other rank."""
        return tuple(self._topic_nouns(topic) for topic in range(NUM_TOPICS))

    def _topic_nouns(self, topic: int) -> tuple[str, ...]:
        nouns = list(self.topics[topic].nouns)
        for place, noun in enumerate(
            word.noun for word in self.ambiguous_nouns if topic in word.topics
        ):
            nouns.insert(1 + 2 * place, noun)
        return tuple(nouns)


def topic_field(topic: int) -> int:
    """The field, 0 or 1, of a topic."""
    return topic * NUM_FIELDS // NUM_TOPICS


FIELD_TOPICS = tuple(
    tuple(topic for topic in range(NUM_TOPICS) if topic_field(topic) == sense)
    for sense in range(NUM_FIELDS)
)


class _WordForms:
    """Invented words, none twice."""

    def __init__(self, rng: np.random.Generator, script: Script) -> None:
        self.rng, self.letters = rng, {"c": script.consonants, "v": script.vowels}
        self.taken: set[str] = set()

    def make(self, shape: str) -> str:
        while True:
            form = "".join(
                letters[int(self.rng.random() * len(letters))]
                for letters in map(self.letters.__getitem__, shape)
            )
            if form not in self.taken:
                self.taken.add(form)
                return form

    def make_many(self, count: int, shape: str = "cv") -> tuple[str, ...]:
        return tuple(self.make(shape) for _ in range(count))

    def make_by_frequency(self, count: int, shapes: tuple[str, str, str]) -> tuple[str, ...]:
        """Words by falling frequency, the frequent ones shorter."""
        return tuple(self.make(shapes[min(2, 4 * place // count)]) for place in range(count))

    def make_nouns(self, count: int) -> tuple[str, ...]:
        return self.make_by_frequency(count, ("cvccv", "cvcvcv", "cvccvcv"))

    def make_other_words(self, count: int) -> tuple[str, ...]:
        return self.make_by_frequency(count, ("cvcvc", "cvccvc", "cvcvcvc"))


def build_lexicon(grammar_seed: int, language: str = "en") -> Lexicon:
    """The lexicon of a grammar seed. The same seed gives the same words, whatever they are used for. Raises InputError for an unknown language."""
    rng, own = np.random.default_rng([grammar_seed, 0]), get_script(language)
    forms = _WordForms(rng, own)
    pairs = [
        (a, b)
        for a in range(NUM_TOPICS // NUM_FIELDS)
        for b in range(NUM_TOPICS // NUM_FIELDS, NUM_TOPICS)
    ]
    # Each topic gets equally many: whole rounds of the five diagonals of the 5 x 5 pairs, which a seed may start anywhere.
    start = int(rng.random() * 5)
    chosen = [pairs[5 * (i % 5) + (i + i // 5 + start) % 5] for i in range(NUM_AMBIGUOUS_NOUNS)]
    shared = [
        OpenClassWords((), forms.make_other_words(14), (), forms.make_other_words(8))
        for _ in range(NUM_FIELDS)
    ]
    return Lexicon(
        script=own,
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
            AmbiguousNoun(noun, pair)
            for noun, pair in zip(_ambiguous_nouns(forms, own), chosen, strict=True)
        ),
        topics=tuple(
            replace(
                shared[topic_field(topic)],
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


def _ambiguous_nouns(forms: _WordForms, own: Script) -> tuple[str, ...]:
    return (
        *own.ambiguous_nouns,
        *forms.make_many(NUM_AMBIGUOUS_NOUNS - len(own.ambiguous_nouns), "cvccv"),
    )
