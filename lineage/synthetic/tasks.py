"""The tasks of the synthetic language: items from the grammar of its documents, and the ceilings of what can be known about them.

A *ceiling* is the accuracy (of spans: F1) of the best reader of a kind, on the very items of the test split: `static` sees context-free vectors
(of the one word in question; for sentiment, of all words without their order), `left` the words up to the one in question, `both` all of them.
"""

import math
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass
from itertools import product
from typing import Any

import pandas as pd

from lineage.errors import InputError
from lineage.synthetic.grammar import (
    DEFAULT_GRAMMAR_SEED,
    GENERIC_WORD_PROB,
    ITEM_STREAM,
    UNLABELED_STREAM,
    NounPhrase,
    Sampler,
    SentenceGenerator,
    generate_sentence,
)
from lineage.synthetic.words import (
    FIELD_TOPICS,
    NUM_FIELDS,
    NUM_TOPICS,
    AmbiguousNoun,
    build_lexicon,
    topic_field,
)

Ceilings = dict[str, float]
BagOfWords = tuple[int, int, int, bool]
Items = list[dict[str, Any]]


@dataclass(frozen=True)
class SyntheticTask:
    """A task's items and what is known about them.

    `splits` holds train, validation, test (minimal_pairs: only test; sentiment: unlabelled too). Columns: classify id, text, label, group; sense id,
    tokens, target, label, group; tag id, tokens, label, group; minimal_pairs id, good, bad, group; unlabelled id, text. A label is an index into
    `labels`, that of a tag task a tag for each token; a target is an index into tokens.
    """

    name: str
    kind: str
    labels: tuple[str, ...]
    splits: dict[str, pd.DataFrame]
    ceilings: Ceilings  # static, left, both: accuracies on test, of tags F1 of spans
    group_ceilings: dict[str, Ceilings]  # the same, a group


@dataclass(frozen=True)
class GeneratorConfig:
    """Which synthetic language, in which language, and which items of it."""

    seed: int
    grammar_seed: int
    language: str

    def make_generator(
        self, *stream: int, zipf: bool = False, generic_prob: float = 0.0, rare_prob: float = 0.0
    ) -> SentenceGenerator:
        """Who writes the items of a stream."""
        sampler = Sampler(self.grammar_seed, stream[0], self.seed, *stream[1:])
        return SentenceGenerator(
            build_lexicon(self.grammar_seed, self.language),
            sampler,
            zipf=zipf,
            generic_prob=generic_prob,
            rare_prob=rare_prob,
        )


def generate_task(
    name: str, *, seed: int, grammar_seed: int = DEFAULT_GRAMMAR_SEED, language: str = "en"
) -> SyntheticTask:
    """The task `name` (a key of TASKS) of the synthetic language; raises InputError for another name, or a language that it does not have."""
    if name not in TASK_BUILDERS:
        raise InputError(
            f"generated: synthetic: no task {name!r}; a generated task is named by its key: take one of {', '.join(TASK_BUILDERS)}"
        )
    return TASK_BUILDERS[name](GeneratorConfig(seed, grammar_seed, language))


def _shuffled_table(
    name: str, split: str, items: Items, generator: SentenceGenerator
) -> pd.DataFrame:
    """Items in random order, named by their place in it."""
    items = [items[place] for place in generator.sampler.permutation(len(items))]
    return pd.DataFrame(
        [{"id": f"{name}-{split}-{place:04d}", **item} for place, item in enumerate(items)]
    )


def _mean_ceilings(
    items: pd.DataFrame, group_ceilings: dict[str, Ceilings]
) -> tuple[Ceilings, dict[str, Ceilings]]:
    """Means over the items of what is known about their group; and the groups that there are."""
    groups = {group: group_ceilings[group] for group in sorted(set(items["group"]))}
    return {
        window: float(items["group"].map({g: group_ceilings[g][window] for g in groups}).mean())
        for window in ("static", "left", "both")
    }, groups


# Sense: which field's sense of an ambiguous noun is meant is told by the words of its own sentence only. The words that tell it in the test
# items do so in no training item: what they mean can be learned from running text alone.

SENSE_PAIRS = {
    "train": 7,
    "validation": 2,
    "test": 8,
}  # of each ambiguous noun; a pair is the same form once in each sense
LEFT_CUE_SHARE = 0.65  # of the pairs; the other items have every cue right of the target


def _build_sense(config: GeneratorConfig) -> SyntheticTask:
    splits = {}
    for number, (split, pairs) in enumerate(SENSE_PAIRS.items()):
        generator = config.make_generator(ITEM_STREAM, 0, number)
        words = [word for word in generator.lexicon.ambiguous_nouns for _ in range(pairs)]
        left = set(generator.sampler.permutation(len(words))[: round(LEFT_CUE_SHARE * len(words))])
        half = int(split != "train")
        items = [
            item
            for place, word in enumerate(words)
            for item in _sense_pair(generator, word, left=place in left, half=half)
        ]
        splits[split] = _shuffled_table("sense", split, items, generator)
    known = {
        "cue_left": {"static": 0.5, "left": 1.0, "both": 1.0},
        "cue_right": {"static": 0.5, "left": 0.5, "both": 1.0},
    }
    return SyntheticTask(
        "sense",
        "word_sense",
        ("field_a", "field_b"),
        splits,
        *_mean_ceilings(splits["test"], known),
    )


def _sense_pair(
    generator: SentenceGenerator, word: AmbiguousNoun, *, left: bool, half: int
) -> Items:
    """The two senses of one form. Its neighbours are like its own sentence, down to an ambiguous noun: only their place tells which one counts."""
    sampler = generator.sampler
    plural = sampler.bernoulli(0.5)
    before, after = sampler.choice(((True, False), (False, True), (True, True)))
    earlier, later = (
        int(sampler.bernoulli(0.5)),
        int(sampler.bernoulli(0.5)),
    )  # the senses of the neighbours, the same for both labels

    def neighbour(sense: int) -> list[str]:
        return _cued_sentence(
            generator,
            sampler.choice(generator.lexicon.ambiguous_nouns),
            sense,
            plural=sampler.bernoulli(0.5),
            left=left,
            half=half,
        )

    items = []
    for label in range(NUM_FIELDS):
        own = _cued_sentence(generator, word, label, plural=plural, left=left, half=half)
        first, last = neighbour(earlier) if before else [], neighbour(later) if after else []
        target = len(first) + own.index(generator.inflect_noun(word.noun, plural))
        items.append(
            {
                "tokens": [*first, *own, *last],
                "target": target,
                "label": label,
                "group": "cue_left" if left else "cue_right",
            }
        )
    return items


def _cued_sentence(
    generator: SentenceGenerator,
    word: AmbiguousNoun,
    sense: int,
    *,
    plural: bool,
    left: bool,
    half: int,
) -> list[str]:
    """A sentence of 7 words with an ambiguous noun and three cues to its sense, all on one side of it: a noun, an adjective and a verb.

    Cues are from one half of their vocabularies; the auxiliary is of no field.
    """
    topic = word.topics[sense]
    words = generator.lexicon.topics[topic]
    noun, adjective, verb = (
        generator.sampler.choice(some[half::2])
        for some in (words.nouns, words.adjectives, words.verbs)
    )
    subject, number = (
        generator.subject(topic, noun=noun)
        if left
        else generator.subject(topic, noun=word.noun, plural=plural)
    )
    complement, _ = (
        generator.noun_phrase(topic, noun=word.noun, plural=plural)
        if left
        else generator.noun_phrase(topic, noun=noun)
    )
    return [
        *subject,
        adjective,
        generator.lexicon.auxiliaries[NUM_FIELDS][number],
        verb,
        *complement,
        generator.full_stop,
    ]


# Entities: a name, and an ambiguous noun, whose type is the field that is meant: as in sense, the words of its own sentence tell it, and in no
# training item. No name of the test items is in a training item either. An item has one span of each, and no other ambiguous noun.

ENTITY_PAIRS = {"train": 2, "validation": 1, "test": 2}  # of each ambiguous noun
ENTITY_TYPES = ("field_a", "field_b")


def _build_entities(config: GeneratorConfig) -> SyntheticTask:
    splits = {}
    for number, (split, pairs) in enumerate(ENTITY_PAIRS.items()):
        generator = config.make_generator(ITEM_STREAM, 4, number)
        words = [word for word in generator.lexicon.ambiguous_nouns for _ in range(pairs)]
        left = set(generator.sampler.permutation(len(words))[: round(LEFT_CUE_SHARE * len(words))])
        half = int(split != "train")
        items = [
            item
            for place, word in enumerate(words)
            for item in _entity_pair(generator, word, left=place in left, half=half)
        ]
        splits[split] = _shuffled_table("entities", split, items, generator)
    # F1 of two spans an item: both can be found by their words alone; the type of the noun, one of two equally likely ones, by its context.
    known = {
        "cue_left": {"static": 0.75, "left": 1.0, "both": 1.0},
        "cue_right": {"static": 0.75, "left": 0.75, "both": 1.0},
    }
    return SyntheticTask(
        "entities", "token_classification", (), splits, *_mean_ceilings(splits["test"], known)
    )


def _entity_pair(
    generator: SentenceGenerator, word: AmbiguousNoun, *, left: bool, half: int
) -> Items:
    """The two senses of one form, beside the same sentence with a name."""
    sampler, topic = generator.sampler, int(generator.sampler.uniform() * NUM_TOPICS)
    name, plural, first = (
        sampler.choice(generator.lexicon.names[half::2]),
        sampler.bernoulli(0.5),
        sampler.bernoulli(0.5),
    )
    object_, _ = generator.noun_phrase(
        topic, adjective_prob=0.7, noun=sampler.choice(generator.lexicon.topics[topic].nouns)
    )
    named = [
        name,
        *generator.predicate(topic, False, neutral=sampler.bernoulli(0.3)),
        *object_,
        generator.full_stop,
    ]
    marked = ["B-name", *["O"] * (len(named) - 1)]
    items = []
    for sense in range(NUM_FIELDS):
        own = _cued_sentence(generator, word, sense, plural=plural, left=left, half=half)
        at, kind = own.index(generator.inflect_noun(word.noun, plural)), ENTITY_TYPES[sense]
        tags = [f"B-{kind}" if place == at else "O" for place in range(len(own))]
        tokens, label = (named + own, marked + tags) if first else (own + named, tags + marked)
        items.append(
            {"tokens": tokens, "label": label, "group": "cue_left" if left else "cue_right"}
        )
    return items


# Agreement: the auxiliary agrees with the subject's head, whatever stands between.

PAIRS_PER_GROUP = 200
AGREEMENT_GROUPS = {
    "simple": None,
    "phrase_same": (False, True),
    "phrase_other": (False, False),
    "clause_same": (True, True),
    "clause_other": (True, False),
}


def _build_agreement(config: GeneratorConfig) -> SyntheticTask:
    generator = config.make_generator(ITEM_STREAM, 1)
    items = [
        _agreement_pair(generator, group, bool(place % 2))
        for group in AGREEMENT_GROUPS
        for place in range(PAIRS_PER_GROUP)
    ]
    test = _shuffled_table("agreement", "test", items, generator)
    known = {group: {"static": 0.5, "left": 1.0, "both": 1.0} for group in AGREEMENT_GROUPS}
    return SyntheticTask(
        "agreement", "minimal_pairs", (), {"test": test}, *_mean_ceilings(test, known)
    )


def _agreement_pair(generator: SentenceGenerator, group: str, plural: bool) -> dict[str, Any]:
    topic = int(generator.sampler.uniform() * NUM_TOPICS)
    between = AGREEMENT_GROUPS[group]
    subject, _ = generator.subject(
        topic, adjective_prob=0.5 if between is None else 0.0, plural=plural
    )
    if between is not None:
        clause, same = between
        subject = subject + generator.attractor(topic, plural, clause=clause, plural=plural == same)
    neutral = generator.sampler.bernoulli(0.5)
    auxiliary, verb = generator.predicate(topic, plural, neutral=neutral)
    bad = generator.lexicon.auxiliaries[NUM_FIELDS if neutral else topic_field(topic)][not plural]
    rest, _ = generator.noun_phrase(topic, adjective_prob=1.0)
    first, number = generator.subject(
        topic
    )  # of a sentence before, since in running text a sentence seldom stands first
    before = [*first, *generator.predicate(topic, number, neutral=True), generator.full_stop]
    good_words, bad_words = (
        [*before, *subject, form, verb, *rest, generator.full_stop] for form in (auxiliary, bad)
    )
    return {
        "good": generator.join_words(good_words),
        "bad": generator.join_words(bad_words),
        "group": group,
    }


# Order: the same words, in the order of the grammar or in another one. Who does not know where a word stands cannot tell the two apart.

ORDER_GROUPS = (
    "verb_first",
    "reversed",
)  # the auxiliary behind its verb; the whole sentence backwards, but for its stop


def _build_order(config: GeneratorConfig) -> SyntheticTask:
    generator = config.make_generator(ITEM_STREAM, 3)
    items = [
        _order_pair(generator, group) for group in ORDER_GROUPS for _ in range(PAIRS_PER_GROUP)
    ]
    test = _shuffled_table("order", "test", items, generator)
    known = {group: {"static": 0.5, "left": 1.0, "both": 1.0} for group in ORDER_GROUPS}
    return SyntheticTask("order", "minimal_pairs", (), {"test": test}, *_mean_ceilings(test, known))


def _order_pair(generator: SentenceGenerator, group: str) -> dict[str, Any]:
    topic = int(generator.sampler.uniform() * NUM_TOPICS)
    first, earlier = generator.subject(topic)  # of a sentence before, as above
    before = [*first, *generator.predicate(topic, earlier, neutral=True), generator.full_stop]
    subject, number = generator.subject(topic)
    auxiliary, verb = generator.predicate(topic, number, neutral=generator.sampler.bernoulli(0.5))
    rest, _ = generator.noun_phrase(topic, adjective_prob=1.0)
    other = (
        [*subject, verb, auxiliary, *rest]
        if group == "verb_first"
        else [*reversed([*subject, auxiliary, verb, *rest])]
    )
    good = [*before, *subject, auxiliary, verb, *rest, generator.full_stop]
    return {
        "good": generator.join_words(good),
        "bad": generator.join_words([*before, *other, generator.full_stop]),
        "group": group,
    }


# Sentiment: two or three opinions, negated or not; after a contrast the last one decides. In the words and topics of the review domain.

SENTIMENT_SIZES = {"train": 600, "validation": 200, "test": 640}
REVIEW_NEGATION_PROB = 0.2  # of the opinions in labelled reviews, which have one polar word each
REVIEW_CONTRAST_PROB = 0.3  # of the labelled reviews
REVIEW_BYTES = 550_000
REVIEW_RARE_WORD_PROB = 0.28  # of a review's nouns and polar words
REVIEW_OPINION_PROB = 0.6  # of the sentences of unlabelled reviews


def _build_sentiment(config: GeneratorConfig) -> SyntheticTask:
    order = Sampler(config.grammar_seed, UNLABELED_STREAM)
    topics = [order.choice(topics) for topics in FIELD_TOPICS]
    splits, facts = {}, pd.DataFrame()
    for number, (split, count) in enumerate(SENTIMENT_SIZES.items()):
        generator = config.make_generator(ITEM_STREAM, 2, number, rare_prob=REVIEW_RARE_WORD_PROB)
        facts = _shuffled_table(
            "sentiment",
            split,
            [_labeled_review(generator, topics, place % 2) for place in range(count)],
            generator,
        )
        splits[split] = facts[["id", "text", "label", "group"]]
    known = _bag_of_words_ceilings()
    facts["static"] = [known[bag] for bag in facts["bag"]]
    groups = {
        str(group): {"static": float(part["static"].mean()), "left": 1.0, "both": 1.0}
        for group, part in facts.groupby("group")
    }
    splits["unlabelled"] = _unlabeled_reviews(
        config.make_generator(
            UNLABELED_STREAM,
            zipf=True,
            generic_prob=GENERIC_WORD_PROB,
            rare_prob=REVIEW_RARE_WORD_PROB,
        ),
        topics,
    )
    ceilings = {"static": float(facts["static"].mean()), "left": 1.0, "both": 1.0}
    return SyntheticTask(
        "sentiment", "text_classification", ("negative", "positive"), splits, ceilings, groups
    )


def _labeled_review(generator: SentenceGenerator, topics: list[int], label: int) -> dict[str, Any]:
    """A labelled review, and its bag of words as far as that says anything of the label."""
    sampler, topic = generator.sampler, generator.sampler.choice(topics)
    long, contrast = sampler.bernoulli(0.5), sampler.bernoulli(REVIEW_CONTRAST_PROB)
    moods = _clause_moods(label, long=long, contrast=contrast, first=int(sampler.bernoulli(0.5)))
    negated = [sampler.bernoulli(REVIEW_NEGATION_PROB) for _ in moods]
    clauses = [
        generator.opinion_clause(generator.subject(topic), mood, negated=flip)
        for mood, flip in zip(moods, negated, strict=True)
    ]
    words = [*clauses[0], generator.full_stop] if long else []
    words += [
        *clauses[-2],
        generator.lexicon.contrastive_conjunction
        if contrast
        else generator.lexicon.additive_conjunction,
        *clauses[-1],
        generator.full_stop,
    ]
    group = ("plain", "negation", "contrast", "negation_contrast")[any(negated) + 2 * contrast]
    return {
        "text": generator.join_words(words),
        "label": label,
        "group": group,
        "bag": _bag_of_words(moods, negated, contrast),
    }


def _clause_moods(label: int, *, long: bool, contrast: bool, first: int) -> list[int]:
    """What each clause holds, negation counted: all the same without a contrast; with one, the clause before the last the opposite."""
    return ([first if contrast else label] if long else []) + [label ^ contrast, label]


def _bag_of_words(moods: list[int], negated: list[bool], contrast: bool) -> BagOfWords:
    """Clauses, positive words, negations, contrast."""
    return (
        len(moods),
        sum(mood ^ flip for mood, flip in zip(moods, negated, strict=True)),
        sum(negated),
        contrast,
    )


def _bag_of_words_ceilings() -> dict[BagOfWords, float]:
    """For each bag, how often its likelier label is right: over every way to build a review, with its probability."""
    weights: dict[BagOfWords, list[float]] = defaultdict(lambda: [0.0, 0.0])
    ways = product((0, 1), (0, 1), (False, True), (False, True), product((False, True), repeat=3))
    for label, first, long, contrast, flips in ways:
        moods = _clause_moods(label, long=long, contrast=contrast, first=first)
        negated = list(
            flips[: len(moods)]
        )  # where `first` or a flip plays no part, the sum over it does no harm
        chance = (REVIEW_CONTRAST_PROB if contrast else 1 - REVIEW_CONTRAST_PROB) * math.prod(
            REVIEW_NEGATION_PROB if flip else 1 - REVIEW_NEGATION_PROB for flip in flips
        )
        weights[_bag_of_words(moods, negated, contrast)][label] += chance
    return {bag: max(pair) / sum(pair) for bag, pair in weights.items()}


def _unlabeled_reviews(generator: SentenceGenerator, topics: list[int]) -> pd.DataFrame:
    """Unlabelled reviews of 40 to 60 words, each of one mood, until there are enough bytes."""
    texts: list[str] = []
    size = 0
    while size < REVIEW_BYTES:
        mood, length = int(generator.sampler.bernoulli(0.5)), 40 + 10 * generator.sampler.uniform()
        words: list[str] = []
        last: NounPhrase | None = None
        while len(words) < length:
            written, last = generate_sentence(
                generator,
                generator.sampler.choice(topics),
                mood,
                last,
                generator.lexicon.names,
                opinion_prob=REVIEW_OPINION_PROB,
            )
            words += written
        texts.append(generator.join_words(words))
        size += len(texts[-1].encode())
    return pd.DataFrame(
        {"id": [f"sentiment-unlabelled-{place:04d}" for place in range(len(texts))], "text": texts}
    )


TASK_BUILDERS: dict[str, Callable[[GeneratorConfig], SyntheticTask]] = {
    "sentiment": _build_sentiment,
    "sense": _build_sense,
    "entities": _build_entities,
    "agreement": _build_agreement,
    "order": _build_order,
}
