"""The tasks of the synthetic language, made by the grammar of its documents, with their ceilings.

A *ceiling* is the best possible accuracy (for spans: F1) on the test items of a reader with limited
context. `static` sees context-free vectors (of the word in question; for sentiment, of all words
without their order), `left` sees the words up to the one in question, and `both` sees all words.
"""

import math
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass
from itertools import product
from typing import Any, NamedTuple

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
Items = list[dict[str, Any]]  # rows of a table

LEFT_TO_RIGHT_CEILINGS = {"static": 0.5, "left": 1.0, "both": 1.0}  # of a binary choice


@dataclass(frozen=True)
class SyntheticTask:
    """The items of a task, and their ceilings.

    `splits` holds train, validation and test; minimal pairs have only test, and sentiment also has
    unlabelled. Columns:

    - text classification: text, label, group
    - word sense: tokens, target, label, group
    - token classification: tokens, label, group
    - semantic roles: tokens, predicate, label, group
    - minimal pairs: good, bad, group
    - unlabelled: text

    A label is an index into `labels`; for token classification and semantic roles it is a tag per
    token. A target or a predicate is an index into tokens.
    """

    kind: str
    labels: tuple[str, ...]
    splits: dict[str, pd.DataFrame]
    ceilings: Ceilings  # static, left, both: on the whole test split
    group_ceilings: dict[str, Ceilings]  # by group


@dataclass(frozen=True)
class GeneratorConfig:
    """A grammar, its language, and the seed of the items."""

    seed: int
    grammar_seed: int
    language: str

    def make_generator(
        self, *stream: int, zipf: bool = False, generic_prob: float = 0.0, rare_prob: float = 0.0
    ) -> SentenceGenerator:
        """Return a generator for a stream of items."""
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
    """Generate a task by its name, a key of TASK_BUILDERS."""
    if name not in TASK_BUILDERS:
        raise InputError(
            f"generated: synthetic: no task {name!r}; a generated task is named by its key: use "
            f"one of {', '.join(TASK_BUILDERS)}"
        )
    return TASK_BUILDERS[name](GeneratorConfig(seed, grammar_seed, language))


def _shuffled_table(items: Items, generator: SentenceGenerator) -> pd.DataFrame:
    return pd.DataFrame([items[index] for index in generator.sampler.permutation(len(items))])


def _make_task(
    kind: str,
    labels: tuple[str, ...],
    splits: dict[str, pd.DataFrame],
    group_ceilings: dict[str, Ceilings],
) -> SyntheticTask:
    """Make a task whose ceilings are known by group: those of the test split are their means."""
    groups = splits["test"]["group"]
    known = {group: group_ceilings[group] for group in sorted(set(groups))}
    ceilings = {}
    for reader in ("static", "left", "both"):
        by_group = {group: values[reader] for group, values in known.items()}
        ceilings[reader] = float(groups.map(by_group).mean())
    return SyntheticTask(kind, labels, splits, ceilings, known)


# Word sense: only the words of an ambiguous noun's own sentence tell which field's sense is meant.
# The cues of the test items occur as cues in no training item, so their meaning can only be learned
# from running text.

SENSE_PAIRS = {"train": 7, "validation": 2, "test": 40}  # per ambiguous noun: one item per sense
SENSE_TEST_NOUNS = 8  # few, so that each has many texts, among which neighbours can be found
LEFT_CUE_SHARE = 0.65  # of the pairs; the others have every cue to the right of the target


def _build_sense(config: GeneratorConfig) -> SyntheticTask:
    splits = _ambiguous_noun_splits(
        config, 0, SENSE_PAIRS, _sense_pair, num_test_nouns=SENSE_TEST_NOUNS
    )
    group_ceilings = {
        "cue_left": {"static": 0.5, "left": 1.0, "both": 1.0},
        "cue_right": {"static": 0.5, "left": 0.5, "both": 1.0},
    }
    return _make_task("word_sense", ("field_a", "field_b"), splits, group_ceilings)


def _ambiguous_noun_splits(
    config: GeneratorConfig,
    stream: int,
    num_pairs: dict[str, int],
    make_pair: Callable[[SentenceGenerator, "_Cue"], Items],
    *,
    num_test_nouns: int | None = None,
) -> dict[str, pd.DataFrame]:
    """Make pairs of items for every ambiguous noun, or for as many of them in the test split.

    Test cues differ from training cues.
    """
    splits = {}
    for number, (split, count) in enumerate(num_pairs.items()):
        generator = config.make_generator(ITEM_STREAM, stream, number)
        used = generator.lexicon.ambiguous_nouns
        if split == "test":
            used = used[:num_test_nouns]
        nouns = [noun for noun in used for _ in range(count)]
        order = generator.sampler.permutation(len(nouns))
        left_places = set(order[: round(LEFT_CUE_SHARE * len(nouns))])
        vocabulary_half = int(split != "train")
        items: Items = []
        for place, noun in enumerate(nouns):
            items += make_pair(generator, _Cue(noun, place in left_places, vocabulary_half))
        splits[split] = _shuffled_table(items, generator)
    return splits


class _Cue(NamedTuple):
    """The side of the cues to a noun's sense, and the half of the vocabularies they are from."""

    noun: AmbiguousNoun
    on_left: bool
    vocabulary_half: int

    @property
    def group(self) -> str:
        return "cue_left" if self.on_left else "cue_right"


def _sense_pair(generator: SentenceGenerator, cue: _Cue) -> Items:
    """Make an item for each of the two senses of a noun."""
    sampler = generator.sampler
    plural = sampler.bernoulli(0.5)
    has_before, has_after = sampler.choice(((True, False), (False, True), (True, True)))
    sense_before = int(sampler.bernoulli(0.5))
    sense_after = int(sampler.bernoulli(0.5))

    def neighbour(sense: int) -> list[str]:
        noun = sampler.choice(generator.lexicon.ambiguous_nouns)
        neighbour_plural = sampler.bernoulli(0.5)
        return _cued_sentence(generator, cue._replace(noun=noun), sense, plural=neighbour_plural)

    items = []
    for label in range(NUM_FIELDS):
        own = _cued_sentence(generator, cue, label, plural=plural)
        before = neighbour(sense_before) if has_before else []
        after = neighbour(sense_after) if has_after else []
        position = own.index(generator.inflect_noun(cue.noun.noun, plural))
        item = {
            "tokens": [*before, *own, *after],
            "target": len(before) + position,
            "label": label,
            "group": cue.group,
        }
        items.append(item)
    return items


def _cued_sentence(
    generator: SentenceGenerator, cue: _Cue, sense: int, *, plural: bool
) -> list[str]:
    """Write a sentence of 7 words with an ambiguous noun and three cues on one side of it."""
    topic = cue.noun.topics[sense]
    vocabulary = generator.lexicon.topics[topic]
    sampler = generator.sampler
    cue_noun = sampler.choice(vocabulary.nouns[cue.vocabulary_half :: 2])
    cue_adjective = sampler.choice(vocabulary.adjectives[cue.vocabulary_half :: 2])
    cue_verb = sampler.choice(vocabulary.verbs[cue.vocabulary_half :: 2])
    if cue.on_left:
        subject = generator.subject(topic, noun=cue_noun)
        complement = generator.noun_phrase(topic, noun=cue.noun.noun, plural=plural)
    else:
        subject = generator.subject(topic, noun=cue.noun.noun, plural=plural)
        complement = generator.noun_phrase(topic, noun=cue_noun)
    auxiliary = generator.lexicon.auxiliaries[NUM_FIELDS][subject.is_plural]
    return [
        *subject.words,
        cue_adjective,
        auxiliary,
        cue_verb,
        *complement.words,
        generator.full_stop,
    ]


# Entities: a name, and an ambiguous noun whose type is the field that is meant. As for word sense,
# only the words of its own sentence tell it, and the cues and names of the test items occur in no
# training item. An item has one span of each, and no other ambiguous noun.

ENTITY_PAIRS = {"train": 2, "validation": 1, "test": 2}  # per ambiguous noun
ENTITY_TYPES = ("field_a", "field_b")


def _build_entities(config: GeneratorConfig) -> SyntheticTask:
    splits = _ambiguous_noun_splits(config, 4, ENTITY_PAIRS, _entity_pair)
    # F1 of two spans per item. Both can be found by their words alone; the type of the noun, one of
    # two equally likely ones, only by its context.
    group_ceilings = {
        "cue_left": {"static": 0.75, "left": 1.0, "both": 1.0},
        "cue_right": {"static": 0.75, "left": 0.75, "both": 1.0},
    }
    return _make_task("token_classification", (), splits, group_ceilings)


def _entity_pair(generator: SentenceGenerator, cue: _Cue) -> Items:
    """Make an item for each of the two senses of a noun, next to the same sentence with a name."""
    sampler = generator.sampler
    topic = int(sampler.uniform() * NUM_TOPICS)
    name = sampler.choice(generator.lexicon.names[cue.vocabulary_half :: 2])
    plural = sampler.bernoulli(0.5)
    name_first = sampler.bernoulli(0.5)
    object_noun = sampler.choice(generator.lexicon.topics[topic].nouns)
    object_phrase = generator.noun_phrase(topic, adjective_prob=0.7, noun=object_noun)
    neutral = sampler.bernoulli(0.3)
    predicate = generator.predicate(topic, False, neutral=neutral)
    name_sentence = [name, *predicate, *object_phrase.words, generator.full_stop]
    name_tags = ["B-name", *["O"] * (len(name_sentence) - 1)]
    items = []
    for sense in range(NUM_FIELDS):
        own = _cued_sentence(generator, cue, sense, plural=plural)
        own_tags = ["O"] * len(own)
        position = own.index(generator.inflect_noun(cue.noun.noun, plural))
        own_tags[position] = f"B-{ENTITY_TYPES[sense]}"
        if name_first:
            item = {"tokens": name_sentence + own, "label": name_tags + own_tags}
        else:
            item = {"tokens": own + name_sentence, "label": own_tags + name_tags}
        items.append({**item, "group": cue.group})
    return items


# Agreement: the auxiliary agrees with the subject's head, whatever is between.

PAIRS_PER_GROUP = 200


class _AttractorKind(NamedTuple):
    """The words between the subject's head and the auxiliary."""

    is_clause: bool
    same_number: bool  # as the head


AGREEMENT_GROUPS = {
    "simple": None,
    "phrase_same": _AttractorKind(False, True),
    "phrase_other": _AttractorKind(False, False),
    "clause_same": _AttractorKind(True, True),
    "clause_other": _AttractorKind(True, False),
}


def _build_agreement(config: GeneratorConfig) -> SyntheticTask:
    generator = config.make_generator(ITEM_STREAM, 1)
    items = [
        _agreement_pair(generator, group, bool(place % 2))
        for group in AGREEMENT_GROUPS
        for place in range(PAIRS_PER_GROUP)
    ]
    return _make_pairs_task(items, generator)


def _make_pairs_task(items: Items, generator: SentenceGenerator) -> SyntheticTask:
    test = _shuffled_table(items, generator)
    group_ceilings = dict.fromkeys(test["group"], LEFT_TO_RIGHT_CEILINGS)
    return _make_task("minimal_pairs", (), {"test": test}, group_ceilings)


def _agreement_pair(generator: SentenceGenerator, group: str, plural: bool) -> dict[str, Any]:
    topic = int(generator.sampler.uniform() * NUM_TOPICS)
    attractor = AGREEMENT_GROUPS[group]
    if attractor is None:
        subject = generator.subject(topic, adjective_prob=0.5, plural=plural).words
    else:
        subject = generator.subject(topic, plural=plural).words
        subject = subject + generator.attractor(
            topic, plural, clause=attractor.is_clause, plural=plural == attractor.same_number
        )
    neutral = generator.sampler.bernoulli(0.5)
    auxiliary, verb = generator.predicate(topic, plural, neutral=neutral)
    field = NUM_FIELDS if neutral else topic_field(topic)
    wrong_auxiliary = generator.lexicon.auxiliaries[field][not plural]
    rest = generator.noun_phrase(topic, adjective_prob=1.0).words
    before = _sentence_before(generator, topic)
    good = [*before, *subject, auxiliary, verb, *rest, generator.full_stop]
    bad = [*before, *subject, wrong_auxiliary, verb, *rest, generator.full_stop]
    return {"good": generator.join_words(good), "bad": generator.join_words(bad), "group": group}


def _sentence_before(generator: SentenceGenerator, topic: int) -> list[str]:
    """Write a sentence that precedes a pair, since few sentences of running text come first."""
    subject, is_plural = generator.subject(topic)
    predicate = generator.predicate(topic, is_plural, neutral=True)
    return [*subject, *predicate, generator.full_stop]


# Order: the same words in the order of the grammar or in another one: the auxiliary after its verb,
# or the whole sentence but its stop backwards. Without word order the two cannot be distinguished.

ORDER_GROUPS = ("verb_first", "reversed")


def _build_order(config: GeneratorConfig) -> SyntheticTask:
    generator = config.make_generator(ITEM_STREAM, 3)
    items = [
        _order_pair(generator, group) for group in ORDER_GROUPS for _ in range(PAIRS_PER_GROUP)
    ]
    return _make_pairs_task(items, generator)


def _order_pair(generator: SentenceGenerator, group: str) -> dict[str, Any]:
    topic = int(generator.sampler.uniform() * NUM_TOPICS)
    before = _sentence_before(generator, topic)
    subject, is_plural = generator.subject(topic)
    neutral = generator.sampler.bernoulli(0.5)
    auxiliary, verb = generator.predicate(topic, is_plural, neutral=neutral)
    rest = generator.noun_phrase(topic, adjective_prob=1.0).words
    words = [*subject, auxiliary, verb, *rest]
    if group == "verb_first":
        wrong_order = [*subject, verb, auxiliary, *rest]
    else:
        wrong_order = words[::-1]
    return {
        "good": generator.join_words([*before, *words, generator.full_stop]),
        "bad": generator.join_words([*before, *wrong_order, generator.full_stop]),
        "group": group,
    }


# Roles: who does what a verb says, and to whom. The verb has no topic, and a sense in each field: in
# one its subject acts, and in the other its subject is acted on, like those of `like` and `please`.
# Both arguments are ambiguous nouns, so only the other words of the sentence tell the field. The
# cues and verbs of the test items occur in no training item. The sentence before or after it has a
# verb and a field of its own.

ROLE_PAIRS = {"train": 7, "validation": 2, "test": 5}  # per ambiguous noun: one item per field
ROLES = (("ARG0", "ARG1"), ("ARG1", "ARG0"))  # by field: of the subject, of the noun after the verb


def _build_roles(config: GeneratorConfig) -> SyntheticTask:
    splits = _ambiguous_noun_splits(config, 5, ROLE_PAIRS, _roles_pair)
    # F1 of two spans per item. Words and places tell which ones, and nothing about their roles.
    group_ceilings = {
        "cue_left": {"static": 0.5, "left": 1.0, "both": 1.0},
        "cue_right": {"static": 0.5, "left": 0.5, "both": 1.0},
    }
    return _make_task("semantic_roles", (), splits, group_ceilings)


class _Clause(NamedTuple):
    """A verb without a topic, its subject, and the noun after it."""

    subject: NounPhrase
    verb: str
    following: NounPhrase


def _roles_pair(generator: SentenceGenerator, cue: _Cue) -> Items:
    """Make an item for each of the two fields, next to the same sentence with another verb."""
    sampler = generator.sampler
    neighbour_cue = cue._replace(noun=sampler.choice(generator.lexicon.ambiguous_nouns))
    neighbour_clause = _sample_clause(generator, neighbour_cue)
    neighbour_field = int(sampler.bernoulli(0.5))
    neighbour = _clause_sentence(generator, neighbour_clause, neighbour_cue, neighbour_field)
    is_first = sampler.bernoulli(0.5)
    clause = _sample_clause(generator, cue)
    items = []
    for field in range(NUM_FIELDS):
        own = _clause_sentence(generator, clause, cue, field)
        before = [] if is_first else neighbour
        after = neighbour if is_first else []
        predicate = len(before) + own.index(clause.verb)
        tags = ["O"] * (len(own) + len(neighbour))
        tags[len(before) + 1], tags[predicate + 1] = ROLES[field]
        tags[predicate] = "V"
        tokens = [*before, *own, *after]
        items.append({"tokens": tokens, "predicate": predicate, "label": tags, "group": cue.group})
    return items


def _sample_clause(generator: SentenceGenerator, cue: _Cue) -> _Clause:
    lexicon = generator.lexicon
    topic = cue.noun.topics[0]  # it chooses no word, since the nouns are given
    return _Clause(
        generator.subject(topic, noun=cue.noun.noun),
        generator.sampler.choice(lexicon.generic.verbs[cue.vocabulary_half :: 2]),
        generator.noun_phrase(topic, noun=generator.sampler.choice(lexicon.ambiguous_nouns).noun),
    )


def _clause_sentence(
    generator: SentenceGenerator, clause: _Clause, cue: _Cue, field: int
) -> list[str]:
    """Write a sentence of 8 or 9 words, with two cues between its subject and its verb or at its end."""
    sampler = generator.sampler
    topic = cue.noun.topics[field]
    vocabulary = generator.lexicon.topics[topic]
    half = slice(cue.vocabulary_half, None, 2)
    attractor: list[str] = []
    rest: list[str] = []
    if cue.on_left:
        relative = generator.lexicon.relative_pronouns[clause.subject.is_plural]
        cue_noun = generator.noun_phrase(topic, noun=sampler.choice(vocabulary.nouns[half]))
        attractor = [relative, *cue_noun.words, sampler.choice(vocabulary.verbs[half])]
    else:
        rest = [
            sampler.choice(vocabulary.adjectives[half]),
            sampler.choice(vocabulary.adverbs[half]),
        ]
    auxiliary = generator.lexicon.auxiliaries[NUM_FIELDS][clause.subject.is_plural]
    before = [*clause.subject.words, *attractor, auxiliary]
    return [*before, clause.verb, *clause.following.words, *rest, generator.full_stop]


# Sentiment: two or three opinions, negated or not; after a contrast the last one decides. Reviews
# use the words and topics of the review domain.

SENTIMENT_SIZES = {"train": 600, "validation": 200, "test": 640}
REVIEW_NEGATION_PROB = 0.2  # of an opinion in a labelled review, which has one polar word
REVIEW_CONTRAST_PROB = 0.3  # of a labelled review
REVIEW_BYTES = 550_000
REVIEW_RARE_WORD_PROB = 0.28  # of a review's nouns and polar words
REVIEW_OPINION_PROB = 0.6  # of a sentence in an unlabelled review


def _build_sentiment(config: GeneratorConfig) -> SyntheticTask:
    order = Sampler(config.grammar_seed, UNLABELED_STREAM)
    topics = [order.choice(topics) for topics in FIELD_TOPICS]
    splits = {}
    items = pd.DataFrame()
    for number, (split, count) in enumerate(SENTIMENT_SIZES.items()):
        generator = config.make_generator(ITEM_STREAM, 2, number, rare_prob=REVIEW_RARE_WORD_PROB)
        reviews = [_labeled_review(generator, topics, place % 2) for place in range(count)]
        items = _shuffled_table(reviews, generator)
        splits[split] = items[["text", "label", "group"]]
    # `items` are now those of the test split.
    ceiling_by_bag = _bag_of_words_ceilings()
    items["static"] = [ceiling_by_bag[bag] for bag in items["bag"]]
    group_ceilings = {
        str(group): {"static": float(part["static"].mean()), "left": 1.0, "both": 1.0}
        for group, part in items.groupby("group")
    }
    generator = config.make_generator(
        UNLABELED_STREAM, zipf=True, generic_prob=GENERIC_WORD_PROB, rare_prob=REVIEW_RARE_WORD_PROB
    )
    splits["unlabelled"] = _unlabeled_reviews(generator, topics)
    ceilings = {"static": float(items["static"].mean()), "left": 1.0, "both": 1.0}
    labels = ("negative", "positive")
    return SyntheticTask("text_classification", labels, splits, ceilings, group_ceilings)


class BagOfWords(NamedTuple):
    """The words of a labelled review that matter for its label, without their order."""

    num_clauses: int
    num_positive_words: int
    num_negations: int
    contrast: bool


def _labeled_review(generator: SentenceGenerator, topics: list[int], label: int) -> dict[str, Any]:
    sampler = generator.sampler
    topic = sampler.choice(topics)
    long = sampler.bernoulli(0.5)
    contrast = sampler.bernoulli(REVIEW_CONTRAST_PROB)
    first_mood = int(sampler.bernoulli(0.5))
    moods = _clause_moods(label, long=long, contrast=contrast, first_mood=first_mood)
    negated = [sampler.bernoulli(REVIEW_NEGATION_PROB) for _ in moods]
    clauses = [
        generator.opinion_clause(generator.subject(topic), mood, negated=is_negated)
        for mood, is_negated in zip(moods, negated, strict=True)
    ]
    conjunction = generator.lexicon.additive_conjunction
    if contrast:
        conjunction = generator.lexicon.contrastive_conjunction
    words = [*clauses[0], generator.full_stop] if long else []
    words += [*clauses[-2], conjunction, *clauses[-1], generator.full_stop]
    group = ("plain", "negation", "contrast", "negation_contrast")[any(negated) + 2 * contrast]
    return {
        "text": generator.join_words(words),
        "label": label,
        "group": group,
        "bag": _bag_of_words(moods, negated, contrast),
    }


def _clause_moods(label: int, *, long: bool, contrast: bool, first_mood: int) -> list[int]:
    """Return the mood that each clause expresses, negation included.

    Without a contrast all mean the label. With one, the clause before the last means the opposite,
    and the first of three has a mood of its own.
    """
    moods = [label ^ contrast, label]
    if long:
        moods.insert(0, first_mood if contrast else label)
    return moods


def _bag_of_words(moods: list[int], negated: list[bool], contrast: bool) -> BagOfWords:
    num_positive = sum(mood ^ is_negated for mood, is_negated in zip(moods, negated, strict=True))
    return BagOfWords(len(moods), num_positive, sum(negated), contrast)


def _bag_of_words_ceilings() -> dict[BagOfWords, float]:
    """Return for each bag the probability of its likelier label."""
    weights: dict[BagOfWords, list[float]] = defaultdict(lambda: [0.0, 0.0])
    for label, first_mood, long, contrast, negations in product(
        (0, 1), (0, 1), (False, True), (False, True), product((False, True), repeat=3)
    ):
        moods = _clause_moods(label, long=long, contrast=contrast, first_mood=first_mood)
        negated = list(negations[: len(moods)])
        probability = REVIEW_CONTRAST_PROB if contrast else 1 - REVIEW_CONTRAST_PROB
        probability *= math.prod(
            REVIEW_NEGATION_PROB if is_negated else 1 - REVIEW_NEGATION_PROB
            for is_negated in negations
        )
        weights[_bag_of_words(moods, negated, contrast)][label] += probability
    return {bag: max(pair) / sum(pair) for bag, pair in weights.items()}


def _unlabeled_reviews(generator: SentenceGenerator, topics: list[int]) -> pd.DataFrame:
    """Write reviews of 40 to 60 words, each of one mood, until there are enough bytes."""
    sampler = generator.sampler
    texts: list[str] = []
    num_bytes = 0
    while num_bytes < REVIEW_BYTES:
        mood = int(sampler.bernoulli(0.5))
        min_words = 40 + 10 * sampler.uniform()
        words: list[str] = []
        last_object: NounPhrase | None = None
        while len(words) < min_words:
            sentence, last_object = generate_sentence(
                generator,
                sampler.choice(topics),
                mood,
                last_object,
                generator.lexicon.names,
                opinion_prob=REVIEW_OPINION_PROB,
            )
            words += sentence
        texts.append(generator.join_words(words))
        num_bytes += len(texts[-1].encode())
    return pd.DataFrame({"text": texts})


TASK_BUILDERS: dict[str, Callable[[GeneratorConfig], SyntheticTask]] = {
    "sentiment": _build_sentiment,
    "sense": _build_sense,
    "entities": _build_entities,
    "agreement": _build_agreement,
    "order": _build_order,
    "roles": _build_roles,
}
