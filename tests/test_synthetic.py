"""The synthetic language is reproducible and has the planned sizes, frequencies and ceilings.

The tests recompute the ceilings by brute force.
"""

import hashlib
import math
from collections import Counter
from functools import cache
from itertools import pairwise

import numpy as np
import pandas as pd
import pytest
from sklearn.feature_extraction.text import CountVectorizer, TfidfVectorizer
from sklearn.linear_model import LogisticRegression

from lineage.errors import InputError
from lineage.synthetic.grammar import DEFAULT_GRAMMAR_SEED, generate_documents
from lineage.synthetic.tasks import TASK_BUILDERS, SyntheticTask, generate_task
from lineage.synthetic.words import SCRIPTS, Lexicon, build_lexicon, topic_field

GRAMMARS = (DEFAULT_GRAMMAR_SEED, 1, 2)
NAMES = tuple(TASK_BUILDERS)
MAX_WORDS = 24  # per item
FULL_STOP, PLURAL = SCRIPTS["en"].full_stop, SCRIPTS["en"].plural_suffix
DOCUMENTS_DIGEST = "d243be3b3556e701"
TASK_DIGESTS = {"sentiment": "78692ac2b9302b1a", "sense": "41ee904a0e9a53e3", "entities": "1699dad4a3742256", "agreement": "223a201bc91118f1",
                "order": "323d11ba2eb52b45", "roles": "b2c841f46c9aee63"}  # fmt: skip


@cache
def corpus() -> tuple[str, ...]:
    return tuple(generate_documents(2000, seed=7))


@cache
def build_task(name: str, grammar_seed: int = DEFAULT_GRAMMAR_SEED) -> SyntheticTask:
    return generate_task(name, seed=7, grammar_seed=grammar_seed)


def texts(frame: pd.DataFrame) -> list[str]:
    """Return all texts of the items in a table."""
    if "tokens" in frame:
        return [" ".join(tokens) for tokens in frame["tokens"]]
    return [text for column in ("text", "good", "bad") if column in frame for text in frame[column]]


def digest(parts: list[str]) -> str:
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()[:16]


def test_same_seeds_give_the_same_bytes_and_others_do_not() -> None:
    first = list(generate_documents(3, seed=7))
    assert digest(first) == DOCUMENTS_DIGEST
    assert first == list(generate_documents(5, seed=7))[:3], (
        "a document does not depend on the number of documents"
    )
    assert first != list(generate_documents(3, seed=8))
    assert first != list(generate_documents(3, seed=7, grammar_seed=1))


@pytest.mark.parametrize("name", NAMES)
def test_a_task_is_the_same_every_time(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    task = generate_task(name, seed=7)
    for split, frame in build_task(name).splits.items():
        pd.testing.assert_frame_equal(frame, task.splits[split])
    assert digest(texts(task.splits["test"])[:50]) == TASK_DIGESTS[name]
    # Unlabelled reviews are not needed here.
    monkeypatch.setattr("lineage.synthetic.tasks.REVIEW_BYTES", 1)
    assert texts(generate_task(name, seed=8).splits["test"]) != texts(task.splits["test"])


def test_an_unknown_task_or_language_is_reported_with_the_known_ones() -> None:
    with pytest.raises(
        InputError, match=r"no task 'sens'.*sentiment, sense, entities, agreement, order, roles"
    ):
        generate_task("sens", seed=0)
    with pytest.raises(InputError, match=r"no language 'fr'.*en, zh"):
        next(generate_documents(1, seed=0, language="fr"))


def test_documents_have_the_planned_size() -> None:
    words = " ".join(corpus()).split()
    assert 4_000_000 < sum(len(text.encode()) for text in corpus()) < 4_300_000
    assert 750_000 < len(words) < 850_000
    assert 7 < len(words) / words.count(FULL_STOP) < 9
    assert all(text.endswith(" .") and "\n" not in text for text in corpus())
    assert len(set(corpus())) == len(corpus())


def test_there_are_about_2000_word_forms_with_a_zipf_distribution() -> None:
    counts = np.array([count for _, count in Counter(" ".join(corpus()).split()).most_common()])
    assert 1_800 <= len(counts) <= 2_100
    ranks = np.unique(np.geomspace(5, 1500, 60).astype(int))
    slope, _ = np.polyfit(np.log(ranks), np.log(counts[ranks - 1]), 1)
    assert -1.6 < slope < -0.8
    assert np.corrcoef(np.log(ranks), np.log(counts[ranks - 1]))[0, 1] < -0.93


def test_all_words_have_distinct_forms() -> None:
    lexicon = build_lexicon(1)
    topics = [*lexicon.topics, lexicon.generic]
    nouns = [
        *(noun for topic in topics for noun in topic.nouns),
        *(word.noun for word in lexicon.ambiguous_nouns),
        *lexicon.domain_nouns,
    ]
    others = [
        *(adjective for topic in topics for adjective in topic.adjectives),
        *lexicon.names,
        *(
            word
            for pair in (lexicon.polar_words, lexicon.domain_polar_words)
            for word in sum(pair, ())
        ),
    ]
    others += {word for topic in topics for word in (*topic.verbs, *topic.adverbs)}
    assert len(set(nouns) | set(others)) == len(nouns) + len(others)
    assert not any(word.endswith(PLURAL) for word in (*nouns, *others))
    assert Counter(
        topic for word in lexicon.ambiguous_nouns for topic in word.topics
    ) == dict.fromkeys(range(10), 8)


@cache
def four_word_sequences() -> set[tuple[str, ...]]:
    """Return all sequences of four words in the corpus.

    Looking up four words of an item is faster than a search for its text.
    """
    words = "\n".join(corpus()).split()
    return {*zip(words, words[1:], words[2:], words[3:], strict=False)}


@pytest.mark.parametrize("name", NAMES)
def test_items_stay_within_limits_and_occur_in_no_document(name: str) -> None:
    text = "\n".join(corpus())
    for split, frame in build_task(name).splits.items():
        if split == "unlabelled":
            continue
        assert len(frame) <= {"train": 600, "validation": 200, "test": 1000}[split]
        assert max(len(item.split()) for item in texts(frame)) <= MAX_WORDS
        for item in texts(frame):
            words = item.split()
            # The first word of an item may match the end of a longer word, so it is left out.
            if len(words) < 6 or tuple(words[1:5]) in four_word_sequences():
                assert item not in text
    columns = {
        "sentiment": ["text", "label", "group"],
        "sense": ["tokens", "target", "label", "group"],
        "entities": ["tokens", "label", "group"],
        "agreement": ["good", "bad", "group"],
        "order": ["good", "bad", "group"],
        "roles": ["tokens", "predicate", "label", "group"],
    }
    assert list(build_task(name).splits["test"].columns) == columns[name]


def test_consecutive_sentences_share_words() -> None:
    """Neighbouring sentences share more words than sentences of different documents."""
    frequent_words = {word for word, _ in Counter(" ".join(corpus()).split()).most_common(40)}

    def share_a_word(first: str, second: str) -> bool:
        return bool((set(first.split()) & set(second.split())) - frequent_words)

    first_sentences = [text.split(FULL_STOP)[:2] for text in corpus()]
    within_documents = np.mean(
        [share_a_word(sentence, next_sentence) for sentence, next_sentence in first_sentences]
    )
    across_documents = np.mean(
        [
            share_a_word(sentence, next_sentence)
            for (sentence, _), (_, next_sentence) in pairwise(first_sentences)
        ]
    )
    assert within_documents > 2 * across_documents


def test_the_form_of_a_target_word_does_not_reveal_its_sense() -> None:
    for split, frame in build_task("sense").splits.items():
        forms = [
            tokens[target] for tokens, target in zip(frame["tokens"], frame["target"], strict=True)
        ]
        assert (pd.crosstab(forms, frame["label"]).nunique(axis=1) == 1).all()
        num_nouns = 8 if split == "test" else 40
        assert len({form.removesuffix(PLURAL) for form in forms}) == num_nouns


@pytest.mark.parametrize("grammar_seed", GRAMMARS)
def test_a_bag_of_words_stays_far_below_the_ceiling_on_sense(grammar_seed: int) -> None:
    task = build_task("sense", grammar_seed)
    train, test = task.splits["train"], task.splits["test"]
    for vectorizer in (TfidfVectorizer(), TfidfVectorizer(ngram_range=(1, 2)), CountVectorizer()):
        features = vectorizer.fit_transform(texts(train))
        model = LogisticRegression(C=10.0, max_iter=1000).fit(features, train["label"])
        accuracy = model.score(vectorizer.transform(texts(test)), test["label"])
        assert accuracy < task.ceilings["both"] - 0.22


def sentence_of(tokens: list[str], position: int) -> tuple[int, int]:
    """Return where the sentence around a word begins and ends, without its full stop."""
    starts = (before + 1 for before in range(position) if tokens[before] == FULL_STOP)
    return max(starts, default=0), tokens.index(FULL_STOP, position)


def cue_fields(lexicon: Lexicon) -> dict[str, int]:
    """Return the field of each word that has one."""
    fields = {}
    for topic, vocabulary in enumerate(lexicon.topics):
        for word in (
            *vocabulary.nouns,
            *vocabulary.verbs,
            *vocabulary.adjectives,
            *vocabulary.adverbs,
        ):
            fields[word] = fields[word + PLURAL] = topic_field(topic)
    for sense, numbers in enumerate(lexicon.auxiliaries[:2]):
        fields |= dict.fromkeys(numbers, sense)
    return fields


@pytest.mark.parametrize("grammar_seed", GRAMMARS)
def test_the_ceilings_of_sense_match_a_classifier_that_knows_the_cues(grammar_seed: int) -> None:
    """The ceilings are recomputed from the fields of the words in the target's sentence.

    If the left side or both sides contain a cue, the answer is certain, and otherwise a coin flip.
    """
    task = build_task("sense", grammar_seed)
    fields = cue_fields(build_lexicon(grammar_seed))
    test = task.splits["test"]
    accuracies: dict[str, list[float]] = {"left": [], "both": []}
    for tokens, target, label in zip(test["tokens"], test["target"], test["label"], strict=True):
        start, end = sentence_of(tokens, target)
        for window, words in (
            ("left", tokens[start:target]),
            ("both", tokens[start:target] + tokens[target + 1 : end]),
        ):
            cued_fields = {fields[word] for word in words if word in fields}
            assert cued_fields <= {label}, "every cue of the sentence points to the right sense"
            accuracies[window].append(1.0 if cued_fields else 0.5)
    for window, values in accuracies.items():
        assert task.ceilings[window] == pytest.approx(np.mean(values))
    assert task.ceilings["static"] == 0.5
    assert 0.78 <= task.ceilings["left"] <= 0.85
    assert task.ceilings["both"] >= 0.95


def test_cues_of_test_items_do_not_occur_in_training_items() -> None:
    fields = cue_fields(build_lexicon(DEFAULT_GRAMMAR_SEED))
    cues = {
        name: {
            word.removesuffix(PLURAL)
            for tokens in part["tokens"]
            for word in tokens
            if word in fields
        }
        for name, part in build_task("sense").splits.items()
    }
    assert len(cues["train"]) > 90 and len(cues["test"]) > 90
    assert not cues["train"] & (cues["validation"] | cues["test"])


def test_entities_are_a_name_and_an_ambiguous_noun_whose_sentence_reveals_its_type() -> None:
    """Both types of a noun are equally frequent, and its sentence has cues of its field.

    Names and cues of test items do not occur in training items.
    """
    lexicon = build_lexicon(DEFAULT_GRAMMAR_SEED)
    task = build_task("entities")
    fields = cue_fields(lexicon)
    names: dict[str, set[str]] = {}
    cues: dict[str, set[str]] = {}
    nouns = {word.noun for word in lexicon.ambiguous_nouns}
    for split, part in task.splits.items():
        type_counts = Counter[tuple[str, str]]()
        names[split], cues[split] = set(), set()
        for tokens, tags in zip(part["tokens"], part["label"], strict=True):
            (name,) = (token for token, tag in zip(tokens, tags, strict=True) if tag == "B-name")
            ((noun_index, field_type),) = (
                (index, tag[2:]) for index, tag in enumerate(tags) if tag.startswith("B-field")
            )
            assert len([tag for tag in tags if tag != "O"]) == 2 and name in lexicon.names
            assert [token.removesuffix(PLURAL) in nouns for token in tokens].count(True) == 1, (
                "only one ambiguous noun"
            )
            start, end = sentence_of(tokens, noun_index)
            sentence = tokens[start:end]
            cue_words = [word for word in sentence if word in fields and word != tokens[noun_index]]
            assert {f"field_{'ab'[fields[word]]}" for word in cue_words} == {field_type}
            names[split].add(name)
            auxiliaries = {form for pair in lexicon.auxiliaries for form in pair}
            stems = {word.removesuffix(PLURAL) for word in cue_words if word in fields}
            cues[split] |= stems - auxiliaries
            type_counts[tokens[noun_index].removesuffix(PLURAL), field_type] += 1
        assert len(type_counts) == 80 and len(set(type_counts.values())) == 1
    assert not names["train"] & (names["validation"] | names["test"])
    assert not cues["train"] & (cues["validation"] | cues["test"])
    assert task.ceilings == {"static": 0.75, "left": pytest.approx(0.75 + 0.25 * 0.65), "both": 1.0}


def test_the_field_of_its_sentence_gives_the_roles_of_a_verb_and_nothing_else_does() -> None:
    """Arguments, verbs and places have both orders of roles equally often.

    Verbs and cues of test items do not occur in training items.
    """
    lexicon = build_lexicon(DEFAULT_GRAMMAR_SEED)
    fields = cue_fields(lexicon)
    verbs: dict[str, set[str]] = {}
    cues: dict[str, set[str]] = {}
    for split, part in build_task("roles").splits.items():
        verbs[split], cues[split] = set(), set()
        orders: dict[str, list[str]] = {"arguments": [], "first role": []}
        items = zip(part["tokens"], part["predicate"], part["label"], part["group"], strict=True)
        for tokens, predicate, tags, group in items:
            assert tags[predicate] == "V" and tokens[predicate] in lexicon.generic.verbs
            start, end = sentence_of(tokens, predicate)
            places = [place for place, tag in enumerate(tags) if tag.startswith("ARG")]
            assert places == [start + 1, predicate + 1], "the other sentence has no roles"
            left, right = range(start + 2, predicate), range(predicate + 2, end)
            cued = [place for place in (*left, *right) if tokens[place] in fields]
            assert all(place in (left if group == "cue_left" else right) for place in cued)
            (field,) = {fields[tokens[place]] for place in cued}
            first_roles = ("ARG0", "ARG1") if field == 0 else ("ARG1", "ARG0")
            assert tuple(tags[place] for place in places) == first_roles
            orders["first role"].append(first_roles[0])
            arguments = [tokens[place] for place in (*places, predicate)]
            orders["arguments"].append(" ".join([*arguments, str(predicate)]))
            verbs[split].add(tokens[predicate])
            cues[split] |= {tokens[place].removesuffix(PLURAL) for place in cued}
        table = pd.crosstab(orders["arguments"], orders["first role"])
        assert (table["ARG0"] == table["ARG1"]).all()
    assert not verbs["train"] & (verbs["validation"] | verbs["test"])
    assert not cues["train"] & (cues["validation"] | cues["test"])


def test_earlier_sentences_do_not_reveal_the_sense() -> None:
    fields = cue_fields(build_lexicon(DEFAULT_GRAMMAR_SEED))
    for split in build_task("sense").splits.values():
        later_targets = split[split["target"] >= 7]
        first_fields = [
            next(fields[word] for word in tokens if word in fields)
            for tokens in later_targets["tokens"]
        ]
        assert (pd.crosstab(first_fields, later_targets["label"]).nunique(axis=1) == 1).all()


def test_the_static_ceiling_of_sentiment_matches_an_estimate_from_counts(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The best order-free classifier, counted on six other seeds, is as accurate as the formula."""
    lexicon = build_lexicon(DEFAULT_GRAMMAR_SEED)
    positive, negative = (
        {*lexicon.polar_words[mood], *lexicon.domain_polar_words[mood]} for mood in (1, 0)
    )

    def count_features(text: str) -> tuple[int, ...]:
        words = text.split()
        return (
            sum(word in positive for word in words),
            sum(word in negative for word in words),
            words.count(lexicon.negation),
            words.count(lexicon.contrastive_conjunction),
        )

    test = build_task("sentiment").splits["test"]
    # Unlabelled reviews are not needed here.
    monkeypatch.setattr("lineage.synthetic.tasks.REVIEW_BYTES", 1)
    counts: Counter[tuple[tuple[int, ...], int]] = Counter()
    for seed in range(100, 106):
        for frame in (
            generate_task("sentiment", seed=seed).splits[split] for split in ("train", "test")
        ):
            counts.update(zip(map(count_features, frame["text"]), frame["label"], strict=True))
    accuracies = [
        max(counts[features, 0], counts[features, 1]) / (counts[features, 0] + counts[features, 1])
        for features in map(count_features, test["text"])
    ]
    assert np.mean(accuracies) == pytest.approx(
        build_task("sentiment").ceilings["static"], abs=0.015
    )
    assert 0.75 <= build_task("sentiment").ceilings["static"] <= 0.85


def test_sentiment_is_decided_by_negation_and_contrast() -> None:
    lexicon = build_lexicon(DEFAULT_GRAMMAR_SEED)
    for text, label in zip(
        build_task("sentiment").splits["test"]["text"],
        build_task("sentiment").splits["test"]["label"],
        strict=True,
    ):
        last_clause = (
            text.replace(
                f" {lexicon.contrastive_conjunction} ", f" {lexicon.additive_conjunction} "
            )
            .split(f" {lexicon.additive_conjunction} ")[-1]
            .split()
        )
        is_positive = (
            last_clause[-2] in lexicon.polar_words[1]
            or last_clause[-2] in lexicon.domain_polar_words[1]
        )
        assert label == is_positive ^ (lexicon.negation in last_clause)


def test_unlabelled_reviews_have_a_vocabulary_of_their_own() -> None:
    lexicon = build_lexicon(DEFAULT_GRAMMAR_SEED)
    domain_words = {
        *lexicon.domain_nouns,
        *(noun + PLURAL for noun in lexicon.domain_nouns),
        *lexicon.domain_polar_words[0],
        *lexicon.domain_polar_words[1],
    }
    reviews = build_task("sentiment").splits["unlabelled"]["text"]
    assert 550_000 <= sum(len(text.encode()) for text in reviews) < 560_000
    assert all(40 <= len(text.split()) <= 70 for text in reviews)
    review_counts = Counter(" ".join(reviews).split())
    corpus_counts = Counter(" ".join(corpus()).split())
    assert 0.08 < sum(review_counts[form] for form in domain_words) / review_counts.total() < 0.12
    assert sum(corpus_counts[form] for form in domain_words) / corpus_counts.total() < 0.005
    assert sum(corpus_counts[form] > 0 for form in domain_words) > 0.9 * len(domain_words)


def test_order_pairs_are_the_same_words_in_another_order() -> None:
    test = build_task("order").splits["test"]
    for good, bad in zip(test["good"], test["bad"], strict=True):
        assert sorted(good.split()) == sorted(bad.split()) and good != bad
    assert test["group"].value_counts().to_dict() == {"verb_first": 200, "reversed": 200}
    assert test["good"].is_unique


def test_agreement_pairs_differ_only_in_the_auxiliary_and_are_balanced() -> None:
    lexicon = build_lexicon(DEFAULT_GRAMMAR_SEED)
    test = build_task("agreement").splits["test"]
    numbers = {form: number for forms in lexicon.auxiliaries for number, form in enumerate(forms)}
    for good, bad in zip(test["good"].str.split(), test["bad"].str.split(), strict=True):
        different = [
            (good_word, bad_word)
            for good_word, bad_word in zip(good, bad, strict=True)
            if good_word != bad_word
        ]
        assert len(different) == 1 and numbers[different[0][0]] != numbers[different[0][1]]
        assert numbers[different[0][0]] == lexicon.determiners.index(
            good[good.index(FULL_STOP) + 1]
        )
    plural = test["good"].str.contains(f" {FULL_STOP} {lexicon.determiners[1]} ", regex=False)
    assert (plural.groupby(test["group"]).mean() == 0.5).all()
    assert build_task("agreement").ceilings == {"static": 0.5, "left": 1.0, "both": 1.0}


def test_the_ceilings_of_a_task_are_the_means_of_its_groups() -> None:
    for name in NAMES:
        task = build_task(name)
        sizes = task.splits["test"]["group"].value_counts()
        assert set(sizes.index) == set(task.group_ceilings)
        for window, value in task.ceilings.items():
            total = sum(
                task.group_ceilings[str(group)][window] * size for group, size in sizes.items()
            )
            assert math.isclose(value, total / sizes.sum())
