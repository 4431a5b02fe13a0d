"""The tasks of the microworld: items from the grammar of its documents, and the ceilings of what can be known about them.

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
from lineage.microworld.grammar import DEFAULT_GRAMMAR_SEED, GENERIC, ITEMS, UNLABELLED, Dice, NounPhrase, Writer, sentence
from lineage.microworld.words import FIELD_TOPICS, FIELDS, TOPICS, Ambiguous, field, lexicon

Ceilings = dict[str, float]
Bag = tuple[int, int, int, bool]
Split = list[dict[str, Any]]


@dataclass(frozen=True)
class GeneratedTask:
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
    ceiling_groups: dict[str, Ceilings]  # the same, a group


@dataclass(frozen=True)
class World:
    """Which microworld, in which language, and which items of it."""

    seed: int
    grammar_seed: int
    language: str

    def writer(self, *stream: int, zipf: bool = False, generic: float = 0.0, rare: float = 0.0) -> Writer:
        """Who writes the items of a stream."""
        dice = Dice(self.grammar_seed, stream[0], self.seed, *stream[1:])
        return Writer(lexicon(self.grammar_seed, self.language), dice, zipf=zipf, generic=generic, rare=rare)


def task(name: str, *, seed: int, grammar_seed: int = DEFAULT_GRAMMAR_SEED, language: str = "en") -> GeneratedTask:
    """The task `name` (a key of TASKS) of the microworld; raises InputError for another name, or a language that it does not have."""
    if name not in TASKS:
        raise InputError(f"generated: microworld: no task {name!r}; a generated task is named by its key: take one of {', '.join(TASKS)}")
    return TASKS[name](World(seed, grammar_seed, language))


def _frame(name: str, split: str, items: Split, writer: Writer) -> pd.DataFrame:
    """Items in random order, named by their place in it."""
    items = [items[place] for place in writer.dice.order(len(items))]
    return pd.DataFrame([{"id": f"{name}-{split}-{place:04d}", **item} for place, item in enumerate(items)])


def _ceilings(items: pd.DataFrame, known: dict[str, Ceilings]) -> tuple[Ceilings, dict[str, Ceilings]]:
    """Means over the items of what is known about their group; and the groups that there are."""
    groups = {group: known[group] for group in sorted(set(items["group"]))}
    return {window: float(items["group"].map({g: known[g][window] for g in groups}).mean()) for window in ("static", "left", "both")}, groups


# Sense: which field's sense of an ambiguous noun is meant is told by the words of its own sentence only. The words that tell it in the test
# items do so in no training item: what they mean can be learned from running text alone.

SENSE_PAIRS = {"train": 7, "validation": 2, "test": 8}  # of each ambiguous noun; a pair is the same form once in each sense
CUE_LEFT = 0.65  # of the pairs; the other items have every cue right of the target


def _sense(world: World) -> GeneratedTask:
    splits = {}
    for number, (split, pairs) in enumerate(SENSE_PAIRS.items()):
        writer = world.writer(ITEMS, 0, number)
        words = [word for word in writer.lexicon.ambiguous for _ in range(pairs)]
        left = set(writer.dice.order(len(words))[: round(CUE_LEFT * len(words))])
        half = int(split != "train")
        items = [item for place, word in enumerate(words) for item in _sense_pair(writer, word, left=place in left, half=half)]
        splits[split] = _frame("sense", split, items, writer)
    known = {"cue_left": {"static": 0.5, "left": 1.0, "both": 1.0}, "cue_right": {"static": 0.5, "left": 0.5, "both": 1.0}}
    return GeneratedTask("sense", "sense", ("field_a", "field_b"), splits, *_ceilings(splits["test"], known))


def _sense_pair(writer: Writer, word: Ambiguous, *, left: bool, half: int) -> Split:
    """The two senses of one form. Its neighbours are like its own sentence, down to an ambiguous noun: only their place tells which one counts."""
    dice = writer.dice
    plural = dice.chance(0.5)
    before, after = dice.one(((True, False), (False, True), (True, True)))
    earlier, later = int(dice.chance(0.5)), int(dice.chance(0.5))  # the senses of the neighbours, the same for both labels

    def neighbour(sense: int) -> list[str]:
        return _cued(writer, dice.one(writer.lexicon.ambiguous), sense, plural=dice.chance(0.5), left=left, half=half)

    items = []
    for label in range(FIELDS):
        own = _cued(writer, word, label, plural=plural, left=left, half=half)
        first, last = neighbour(earlier) if before else [], neighbour(later) if after else []
        target = len(first) + own.index(writer.form(word.noun, plural))
        items.append({"tokens": [*first, *own, *last], "target": target, "label": label, "group": "cue_left" if left else "cue_right"})
    return items


def _cued(writer: Writer, word: Ambiguous, sense: int, *, plural: bool, left: bool, half: int) -> list[str]:
    """A sentence of 7 words with an ambiguous noun and three cues to its sense, all on one side of it: a noun, an adjective and a verb.

    Cues are from one half of their vocabularies; the auxiliary is of no field.
    """
    topic = word.topics[sense]
    words = writer.lexicon.topics[topic]
    noun, adjective, verb = (writer.dice.one(some[half::2]) for some in (words.nouns, words.adjectives, words.verbs))
    subject, number = writer.subject(topic, noun=noun) if left else writer.subject(topic, noun=word.noun, plural=plural)
    complement, _ = writer.noun_phrase(topic, noun=word.noun, plural=plural) if left else writer.noun_phrase(topic, noun=noun)
    return [*subject, adjective, writer.lexicon.auxiliaries[FIELDS][number], verb, *complement, writer.stop]


# Entities: a name, and an ambiguous noun, whose type is the field that is meant: as in sense, the words of its own sentence tell it, and in no
# training item. No name of the test items is in a training item either. An item has one span of each, and no other ambiguous noun.

ENTITY_PAIRS = {"train": 2, "validation": 1, "test": 2}  # of each ambiguous noun
ENTITY_TYPES = ("field_a", "field_b")


def _entities(world: World) -> GeneratedTask:
    splits = {}
    for number, (split, pairs) in enumerate(ENTITY_PAIRS.items()):
        writer = world.writer(ITEMS, 4, number)
        words = [word for word in writer.lexicon.ambiguous for _ in range(pairs)]
        left = set(writer.dice.order(len(words))[: round(CUE_LEFT * len(words))])
        half = int(split != "train")
        items = [item for place, word in enumerate(words) for item in _entity_pair(writer, word, left=place in left, half=half)]
        splits[split] = _frame("entities", split, items, writer)
    # F1 of two spans an item: both can be found by their words alone; the type of the noun, one of two equally likely ones, by its context.
    known = {"cue_left": {"static": 0.75, "left": 1.0, "both": 1.0}, "cue_right": {"static": 0.75, "left": 0.75, "both": 1.0}}
    return GeneratedTask("entities", "tag", (), splits, *_ceilings(splits["test"], known))


def _entity_pair(writer: Writer, word: Ambiguous, *, left: bool, half: int) -> Split:
    """The two senses of one form, beside the same sentence with a name."""
    dice, topic = writer.dice, int(writer.dice.roll() * TOPICS)
    name, plural, first = dice.one(writer.lexicon.names[half::2]), dice.chance(0.5), dice.chance(0.5)
    object_, _ = writer.noun_phrase(topic, adjective=0.7, noun=dice.one(writer.lexicon.topics[topic].nouns))
    named = [name, *writer.predicate(topic, False, neutral=dice.chance(0.3)), *object_, writer.stop]
    marked = ["B-name", *["O"] * (len(named) - 1)]
    items = []
    for sense in range(FIELDS):
        own = _cued(writer, word, sense, plural=plural, left=left, half=half)
        at, kind = own.index(writer.form(word.noun, plural)), ENTITY_TYPES[sense]
        tags = [f"B-{kind}" if place == at else "O" for place in range(len(own))]
        tokens, label = (named + own, marked + tags) if first else (own + named, tags + marked)
        items.append({"tokens": tokens, "label": label, "group": "cue_left" if left else "cue_right"})
    return items


# Agreement: the auxiliary agrees with the subject's head, whatever stands between.

PAIRS_PER_GROUP = 200
AGREEMENT = {"simple": None, "phrase_same": (False, True), "phrase_other": (False, False), "clause_same": (True, True), "clause_other": (True, False)}


def _agreement(world: World) -> GeneratedTask:
    writer = world.writer(ITEMS, 1)
    items = [_agreement_pair(writer, group, bool(place % 2)) for group in AGREEMENT for place in range(PAIRS_PER_GROUP)]
    test = _frame("agreement", "test", items, writer)
    known = {group: {"static": 0.5, "left": 1.0, "both": 1.0} for group in AGREEMENT}
    return GeneratedTask("agreement", "minimal_pairs", (), {"test": test}, *_ceilings(test, known))


def _agreement_pair(writer: Writer, group: str, plural: bool) -> dict[str, Any]:
    topic = int(writer.dice.roll() * TOPICS)
    between = AGREEMENT[group]
    subject, _ = writer.subject(topic, adjective=0.5 if between is None else 0.0, plural=plural)
    if between is not None:
        clause, same = between
        subject = subject + writer.attractor(topic, plural, clause=clause, plural=plural == same)
    neutral = writer.dice.chance(0.5)
    auxiliary, verb = writer.predicate(topic, plural, neutral=neutral)
    bad = writer.lexicon.auxiliaries[FIELDS if neutral else field(topic)][not plural]
    rest, _ = writer.noun_phrase(topic, adjective=1.0)
    first, number = writer.subject(topic)  # of a sentence before, since in running text a sentence seldom stands first
    before = [*first, *writer.predicate(topic, number, neutral=True), writer.stop]
    good_words, bad_words = ([*before, *subject, form, verb, *rest, writer.stop] for form in (auxiliary, bad))
    return {"good": writer.text(good_words), "bad": writer.text(bad_words), "group": group}


# Order: the same words, in the order of the grammar or in another one. Who does not know where a word stands cannot tell the two apart.

ORDER = ("verb_first", "reversed")  # the auxiliary behind its verb; the whole sentence backwards, but for its stop


def _order(world: World) -> GeneratedTask:
    writer = world.writer(ITEMS, 3)
    items = [_order_pair(writer, group) for group in ORDER for _ in range(PAIRS_PER_GROUP)]
    test = _frame("order", "test", items, writer)
    known = {group: {"static": 0.5, "left": 1.0, "both": 1.0} for group in ORDER}
    return GeneratedTask("order", "minimal_pairs", (), {"test": test}, *_ceilings(test, known))


def _order_pair(writer: Writer, group: str) -> dict[str, Any]:
    topic = int(writer.dice.roll() * TOPICS)
    first, earlier = writer.subject(topic)  # of a sentence before, as above
    before = [*first, *writer.predicate(topic, earlier, neutral=True), writer.stop]
    subject, number = writer.subject(topic)
    auxiliary, verb = writer.predicate(topic, number, neutral=writer.dice.chance(0.5))
    rest, _ = writer.noun_phrase(topic, adjective=1.0)
    other = [*subject, verb, auxiliary, *rest] if group == "verb_first" else [*reversed([*subject, auxiliary, verb, *rest])]
    good = [*before, *subject, auxiliary, verb, *rest, writer.stop]
    return {"good": writer.text(good), "bad": writer.text([*before, *other, writer.stop]), "group": group}


# Sentiment: two or three opinions, negated or not; after a contrast the last one decides. In the words and topics of the review domain.

SENTIMENT_SIZES = {"train": 600, "validation": 200, "test": 640}
NEGATED = 0.2  # of the opinions in labelled reviews, which have one polar word each
CONTRAST = 0.3  # of the labelled reviews
REVIEW_BYTES = 550_000
REVIEW_RARE = 0.28  # of a review's nouns and polar words
REVIEW_OPINION = 0.6  # of the sentences of unlabelled reviews


def _sentiment(world: World) -> GeneratedTask:
    order = Dice(world.grammar_seed, UNLABELLED)
    topics = [order.one(topics) for topics in FIELD_TOPICS]
    splits, facts = {}, pd.DataFrame()
    for number, (split, count) in enumerate(SENTIMENT_SIZES.items()):
        writer = world.writer(ITEMS, 2, number, rare=REVIEW_RARE)
        facts = _frame("sentiment", split, [_review(writer, topics, place % 2) for place in range(count)], writer)
        splits[split] = facts[["id", "text", "label", "group"]]
    known = _order_free()
    facts["static"] = [known[bag] for bag in facts["bag"]]
    groups = {str(group): {"static": float(part["static"].mean()), "left": 1.0, "both": 1.0} for group, part in facts.groupby("group")}
    splits["unlabelled"] = _reviews(world.writer(UNLABELLED, zipf=True, generic=GENERIC, rare=REVIEW_RARE), topics)
    ceilings = {"static": float(facts["static"].mean()), "left": 1.0, "both": 1.0}
    return GeneratedTask("sentiment", "classify", ("negative", "positive"), splits, ceilings, groups)


def _review(writer: Writer, topics: list[int], label: int) -> dict[str, Any]:
    """A labelled review, and its bag of words as far as that says anything of the label."""
    dice, topic = writer.dice, writer.dice.one(topics)
    long, contrast = dice.chance(0.5), dice.chance(CONTRAST)
    moods = _moods(label, long=long, contrast=contrast, first=int(dice.chance(0.5)))
    negated = [dice.chance(NEGATED) for _ in moods]
    clauses = [writer.opinion(writer.subject(topic), mood, negated=flip) for mood, flip in zip(moods, negated, strict=True)]
    words = [*clauses[0], writer.stop] if long else []
    words += [*clauses[-2], writer.lexicon.contrast if contrast else writer.lexicon.also, *clauses[-1], writer.stop]
    group = ("plain", "negation", "contrast", "negation_contrast")[any(negated) + 2 * contrast]
    return {"text": writer.text(words), "label": label, "group": group, "bag": _bag(moods, negated, contrast)}


def _moods(label: int, *, long: bool, contrast: bool, first: int) -> list[int]:
    """What each clause holds, negation counted: all the same without a contrast; with one, the clause before the last the opposite."""
    return ([first if contrast else label] if long else []) + [label ^ contrast, label]


def _bag(moods: list[int], negated: list[bool], contrast: bool) -> Bag:
    """Clauses, positive words, negations, contrast."""
    return len(moods), sum(mood ^ flip for mood, flip in zip(moods, negated, strict=True)), sum(negated), contrast


def _order_free() -> dict[Bag, float]:
    """For each bag, how often its likelier label is right: over every way to build a review, with its probability."""
    weights: dict[Bag, list[float]] = defaultdict(lambda: [0.0, 0.0])
    ways = product((0, 1), (0, 1), (False, True), (False, True), product((False, True), repeat=3))
    for label, first, long, contrast, flips in ways:
        moods = _moods(label, long=long, contrast=contrast, first=first)
        negated = list(flips[: len(moods)])  # where `first` or a flip plays no part, the sum over it does no harm
        chance = (CONTRAST if contrast else 1 - CONTRAST) * math.prod(NEGATED if flip else 1 - NEGATED for flip in flips)
        weights[_bag(moods, negated, contrast)][label] += chance
    return {bag: max(pair) / sum(pair) for bag, pair in weights.items()}


def _reviews(writer: Writer, topics: list[int]) -> pd.DataFrame:
    """Unlabelled reviews of 40 to 60 words, each of one mood, until there are enough bytes."""
    texts: list[str] = []
    size = 0
    while size < REVIEW_BYTES:
        mood, length = int(writer.dice.chance(0.5)), 40 + 10 * writer.dice.roll()
        words: list[str] = []
        last: NounPhrase | None = None
        while len(words) < length:
            written, last = sentence(writer, writer.dice.one(topics), mood, last, writer.lexicon.names, opinion=REVIEW_OPINION)
            words += written
        texts.append(writer.text(words))
        size += len(texts[-1].encode())
    return pd.DataFrame({"id": [f"sentiment-unlabelled-{place:04d}" for place in range(len(texts))], "text": texts})


TASKS: dict[str, Callable[[World], GeneratedTask]] = {
    "sentiment": _sentiment, "sense": _sense, "entities": _entities, "agreement": _agreement, "order": _order}  # fmt: skip
