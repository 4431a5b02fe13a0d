"""The synthetic language: the same bytes for the same seeds, sizes, frequencies, and ceilings that brute force finds too."""

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
MAX_WORDS = 24  # of an item
FULL_STOP, PLURAL = SCRIPTS["en"].full_stop, SCRIPTS["en"].plural_suffix
DOCUMENTS_DIGEST = "d243be3b3556e701"
TASK_DIGESTS = {"sentiment": "78692ac2b9302b1a", "sense": "2c8604f82399e3d7", "entities": "1699dad4a3742256", "agreement": "223a201bc91118f1",
                "order": "323d11ba2eb52b45"}  # fmt: skip


@cache
def corpus() -> tuple[str, ...]:
    return tuple(generate_documents(2000, seed=7))


@cache
def made(name: str, grammar_seed: int = DEFAULT_GRAMMAR_SEED) -> SyntheticTask:
    return generate_task(name, seed=7, grammar_seed=grammar_seed)


def texts(frame: pd.DataFrame) -> list[str]:
    """Every text of a table's items."""
    if "tokens" in frame:
        return [" ".join(tokens) for tokens in frame["tokens"]]
    return [text for column in ("text", "good", "bad") if column in frame for text in frame[column]]


def digest(parts: list[str]) -> str:
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()[:16]


def test_same_seeds_give_the_same_bytes_and_others_do_not() -> None:
    first = list(generate_documents(3, seed=7))
    assert digest(first) == DOCUMENTS_DIGEST
    assert first == list(generate_documents(5, seed=7))[:3], (
        "a document does not depend on how many there are"
    )
    assert first != list(generate_documents(3, seed=8)) and first != list(
        generate_documents(3, seed=7, grammar_seed=1)
    )


@pytest.mark.parametrize("name", NAMES)
def test_a_task_is_the_same_each_time(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    again = generate_task(name, seed=7)
    for split, frame in made(name).splits.items():
        pd.testing.assert_frame_equal(frame, again.splits[split])
    assert digest(texts(again.splits["test"])[:50]) == TASK_DIGESTS[name]
    monkeypatch.setattr(
        "lineage.synthetic.tasks.REVIEW_BYTES", 1
    )  # reviews without labels, of which nothing is asked
    assert texts(generate_task(name, seed=8).splits["test"]) != texts(again.splits["test"])


def test_an_unknown_task_or_language_is_named_with_what_there_is() -> None:
    with pytest.raises(
        InputError, match=r"no task 'sens'.*sentiment, sense, entities, agreement, order"
    ):
        generate_task("sens", seed=0)
    with pytest.raises(InputError, match=r"no language 'fr'.*en, zh"):
        next(generate_documents(1, seed=0, language="fr"))


def test_documents_are_as_large_as_they_should_be() -> None:
    words = " ".join(corpus()).split()
    assert 4_000_000 < sum(len(text.encode()) for text in corpus()) < 4_300_000
    assert 750_000 < len(words) < 850_000
    assert 7 < len(words) / words.count(FULL_STOP) < 9
    assert all(text.endswith(" .") and "\n" not in text for text in corpus())
    assert len(set(corpus())) == len(corpus())


def test_forms_are_about_two_thousand_and_like_zipf() -> None:
    counts = np.array([count for _, count in Counter(" ".join(corpus()).split()).most_common()])
    assert 1_800 <= len(counts) <= 2_100
    ranks = np.unique(np.geomspace(5, 1500, 60).astype(int))
    slope, _ = np.polyfit(np.log(ranks), np.log(counts[ranks - 1]), 1)
    assert -1.6 < slope < -0.8
    assert np.corrcoef(np.log(ranks), np.log(counts[ranks - 1]))[0, 1] < -0.93


def test_the_forms_of_all_words_are_distinct() -> None:
    words = build_lexicon(1)
    topics = [*words.topics, words.generic]
    nouns = [
        *(noun for topic in topics for noun in topic.nouns),
        *(word.noun for word in words.ambiguous_nouns),
        *words.domain_nouns,
    ]
    others = [
        *(w for topic in topics for w in topic.adjectives),
        *words.names,
        *(w for pair in (words.polar_words, words.domain_polar_words) for w in sum(pair, ())),
    ]
    others += {w for topic in topics for w in (*topic.verbs, *topic.adverbs)}
    assert len(set(nouns) | set(others)) == len(nouns) + len(others)
    assert not any(word.endswith(PLURAL) for word in (*nouns, *others))
    assert Counter(
        topic for word in words.ambiguous_nouns for topic in word.topics
    ) == dict.fromkeys(range(10), 8)


@cache
def runs_of_four() -> set[tuple[str, ...]]:
    """All four words in a row of the corpus: without one an item's words cannot stand there, which is sooner known than whether its text does."""
    words = "\n".join(corpus()).split()
    return {*zip(words, words[1:], words[2:], words[3:], strict=False)}


@pytest.mark.parametrize("name", NAMES)
def test_items_keep_to_their_limits_and_stand_in_no_document(name: str) -> None:
    text = "\n".join(corpus())
    for split, frame in made(name).splits.items():
        assert frame["id"].is_unique
        if split == "unlabelled":
            continue
        assert len(frame) <= {"train": 600, "validation": 200, "test": 1000}[split]
        assert max(len(item.split()) for item in texts(frame)) <= MAX_WORDS
        perhaps = [
            item
            for item in texts(frame)
            if len(w := item.split()) < 6 or tuple(w[1:5]) in runs_of_four()
        ]  # within, words are whole
        assert not [item for item in perhaps if item in text]
    columns = {
        "sentiment": ["id", "text", "label", "group"],
        "sense": ["id", "tokens", "target", "label", "group"],
        "entities": ["id", "tokens", "label", "group"],
        "agreement": ["id", "good", "bad", "group"],
        "order": ["id", "good", "bad", "group"],
    }
    assert list(made(name).splits["test"].columns) == columns[name]


def test_next_sentences_go_with_each_other() -> None:
    """Sentences side by side share words that sentences of two documents do not."""
    closed = {word for word, _ in Counter(" ".join(corpus()).split()).most_common(40)}

    def shared(one: str, other: str) -> bool:
        return bool((set(one.split()) & set(other.split())) - closed)

    firsts = [text.split(FULL_STOP)[:2] for text in corpus()]
    near = np.mean([shared(a, b) for a, b in firsts])
    far = np.mean([shared(a, b) for (a, _), (_, b) in pairwise(firsts)])
    assert near > 2 * far


def test_a_sense_target_says_nothing_by_its_form() -> None:
    for frame in made("sense").splits.values():
        forms = [
            tokens[target] for tokens, target in zip(frame["tokens"], frame["target"], strict=True)
        ]
        assert (pd.crosstab(forms, frame["label"]).nunique(axis=1) == 1).all()
        assert len({form.removesuffix(PLURAL) for form in forms}) == 40


@pytest.mark.parametrize("grammar_seed", GRAMMARS)
def test_a_bag_of_words_stays_far_below_the_ceiling_on_sense(grammar_seed: int) -> None:
    found = made("sense", grammar_seed)
    train, test = found.splits["train"], found.splits["test"]
    for vectorizer in (TfidfVectorizer(), TfidfVectorizer(ngram_range=(1, 2)), CountVectorizer()):
        features = vectorizer.fit_transform(texts(train))
        model = LogisticRegression(C=10.0, max_iter=1000).fit(features, train["label"])
        assert (
            model.score(vectorizer.transform(texts(test)), test["label"])
            < found.ceilings["both"] - 0.22
        )


def cue_fields(words: Lexicon) -> dict[str, int]:
    """The field of each word that has one."""
    found = {}
    for topic, vocabulary in enumerate(words.topics):
        for word in (
            *vocabulary.nouns,
            *vocabulary.verbs,
            *vocabulary.adjectives,
            *vocabulary.adverbs,
        ):
            found[word] = found[word + PLURAL] = topic_field(topic)
    for sense, numbers in enumerate(words.auxiliaries[:2]):
        found |= dict.fromkeys(numbers, sense)
    return found


@pytest.mark.parametrize("grammar_seed", GRAMMARS)
def test_the_ceilings_of_sense_are_what_reading_the_words_finds(grammar_seed: int) -> None:
    """Own sentence by its full stops, then the fields of its words, on the left or on both sides: certain, or a coin."""
    found, fields = made("sense", grammar_seed), cue_fields(build_lexicon(grammar_seed))
    test = found.splits["test"]
    right: dict[str, list[float]] = {"left": [], "both": []}
    for tokens, target, label in zip(test["tokens"], test["target"], test["label"], strict=True):
        start = max((i + 1 for i in range(target) if tokens[i] == FULL_STOP), default=0)
        end = tokens.index(FULL_STOP, target)
        for window, seen in (
            ("left", tokens[start:target]),
            ("both", tokens[start:target] + tokens[target + 1 : end]),
        ):
            told = {fields[word] for word in seen if word in fields}
            assert told <= {label}, "every cue of the own sentence is to the sense meant"
            right[window].append(1.0 if told else 0.5)
    assert {window: pytest.approx(np.mean(values)) for window, values in right.items()} == {
        w: found.ceilings[w] for w in right
    }
    assert (
        found.ceilings["static"] == 0.5
        and 0.78 <= found.ceilings["left"] <= 0.85
        and found.ceilings["both"] >= 0.95
    )


def test_cues_of_the_test_items_are_cues_in_no_training_item() -> None:
    fields = cue_fields(build_lexicon(DEFAULT_GRAMMAR_SEED))
    cues = {
        name: {w.removesuffix(PLURAL) for tokens in part["tokens"] for w in tokens if w in fields}
        for name, part in made("sense").splits.items()
    }
    assert len(cues["train"]) > 90 and len(cues["test"]) > 90
    assert not cues["train"] & (cues["validation"] | cues["test"])


def test_entities_are_a_name_and_an_ambiguous_noun_whose_words_tell_its_type() -> None:
    """Both types of a form equally often, a field's cues in its own sentence; names and cues of the test items are in no training item."""
    words, found = build_lexicon(DEFAULT_GRAMMAR_SEED), made("entities")
    fields, names, cues = cue_fields(words), dict[str, set[str]](), dict[str, set[str]]()
    nouns = {word.noun for word in words.ambiguous_nouns}
    for split, part in found.splits.items():
        kinds = Counter[tuple[str, str]]()
        names[split], cues[split] = set(), set()
        for tokens, tags in zip(part["tokens"], part["label"], strict=True):
            (named,) = (token for token, tag in zip(tokens, tags, strict=True) if tag == "B-name")
            ((at, kind),) = (
                (place, tag[2:]) for place, tag in enumerate(tags) if tag.startswith("B-field")
            )
            assert len([tag for tag in tags if tag != "O"]) == 2 and named in words.names
            assert [token.removesuffix(PLURAL) in nouns for token in tokens].count(True) == 1, (
                "no other ambiguous noun"
            )
            first = max((i + 1 for i in range(at) if tokens[i] == FULL_STOP), default=0)
            own = tokens[first : tokens.index(FULL_STOP, at)]
            told = [word for word in own if word in fields and word != tokens[at]]
            assert {f"field_{'ab'[fields[word]]}" for word in told} == {kind}
            names[split].add(named)
            cues[split] |= {word.removesuffix(PLURAL) for word in told if word in fields} - {
                form for pair in words.auxiliaries for form in pair
            }
            kinds[tokens[at].removesuffix(PLURAL), kind] += 1
        assert len(kinds) == 80 and len(set(kinds.values())) == 1
    assert not names["train"] & (names["validation"] | names["test"]) and not cues["train"] & (
        cues["validation"] | cues["test"]
    )
    assert found.ceilings == {
        "static": 0.75,
        "left": pytest.approx(0.75 + 0.25 * 0.65),
        "both": 1.0,
    }


def test_what_stands_left_of_the_own_sentence_says_nothing_of_the_sense() -> None:
    fields = cue_fields(build_lexicon(DEFAULT_GRAMMAR_SEED))
    for split in made("sense").splits.values():
        before = split[split["target"] >= 7]
        first = [
            next(fields[word] for word in tokens if word in fields) for tokens in before["tokens"]
        ]
        assert (pd.crosstab(first, before["label"]).nunique(axis=1) == 1).all()


def test_the_ceilings_of_sentiment_are_what_counting_finds(monkeypatch: pytest.MonkeyPatch) -> None:
    """The best order-free reader, from counts of words in six other seeds' items, is as good on the test items as the formula says."""
    words = build_lexicon(DEFAULT_GRAMMAR_SEED)
    positive, negative = (
        {*words.polar_words[mood], *words.domain_polar_words[mood]} for mood in (1, 0)
    )

    def bag(text: str) -> tuple[int, ...]:
        seen = text.split()
        return (
            sum(w in positive for w in seen),
            sum(w in negative for w in seen),
            seen.count(words.negation),
            seen.count(words.contrastive_conjunction),
        )

    test = made("sentiment").splits["test"]
    monkeypatch.setattr(
        "lineage.synthetic.tasks.REVIEW_BYTES", 1
    )  # reviews without labels, of which nothing is asked
    counts: Counter[tuple[tuple[int, ...], int]] = Counter()
    for seed in range(100, 106):
        for frame in (
            generate_task("sentiment", seed=seed).splits[split] for split in ("train", "test")
        ):
            counts.update(zip(map(bag, frame["text"]), frame["label"], strict=True))
    best = [
        max(counts[bag(text), 0], counts[bag(text), 1])
        / (counts[bag(text), 0] + counts[bag(text), 1])
        for text in test["text"]
    ]
    assert np.mean(best) == pytest.approx(made("sentiment").ceilings["static"], abs=0.015)
    assert 0.75 <= made("sentiment").ceilings["static"] <= 0.85


def test_sentiment_is_decided_by_negation_and_contrast() -> None:
    words = build_lexicon(DEFAULT_GRAMMAR_SEED)
    for text, label in zip(
        made("sentiment").splits["test"]["text"],
        made("sentiment").splits["test"]["label"],
        strict=True,
    ):
        last = (
            text.replace(f" {words.contrastive_conjunction} ", f" {words.additive_conjunction} ")
            .split(f" {words.additive_conjunction} ")[-1]
            .split()
        )
        positive = last[-2] in words.polar_words[1] or last[-2] in words.domain_polar_words[1]
        assert label == positive ^ (words.negation in last)


def test_unlabelled_reviews_are_a_domain_of_their_own() -> None:
    words = build_lexicon(DEFAULT_GRAMMAR_SEED)
    rare = {
        *words.domain_nouns,
        *(noun + PLURAL for noun in words.domain_nouns),
        *words.domain_polar_words[0],
        *words.domain_polar_words[1],
    }
    reviews = made("sentiment").splits["unlabelled"]["text"]
    assert 550_000 <= sum(len(text.encode()) for text in reviews) < 560_000
    assert all(40 <= len(text.split()) <= 70 for text in reviews)
    seen, general = Counter(" ".join(reviews).split()), Counter(" ".join(corpus()).split())
    assert 0.08 < sum(seen[form] for form in rare) / seen.total() < 0.12
    assert sum(general[form] for form in rare) / general.total() < 0.005
    assert sum(general[form] > 0 for form in rare) > 0.9 * len(rare)


def test_order_pairs_are_the_same_words_in_another_order() -> None:
    test = made("order").splits["test"]
    for good, bad in zip(test["good"], test["bad"], strict=True):
        assert sorted(good.split()) == sorted(bad.split()) and good != bad
    assert (
        test["group"].value_counts().to_dict() == {"verb_first": 200, "reversed": 200}
        and test["good"].is_unique
    )


def test_agreement_pairs_differ_in_the_auxiliary_alone_and_in_balance() -> None:
    words, test = build_lexicon(DEFAULT_GRAMMAR_SEED), made("agreement").splits["test"]
    numbers = {form: number for forms in words.auxiliaries for number, form in enumerate(forms)}
    for good, bad in zip(test["good"].str.split(), test["bad"].str.split(), strict=True):
        different = [(a, b) for a, b in zip(good, bad, strict=True) if a != b]
        assert len(different) == 1 and numbers[different[0][0]] != numbers[different[0][1]]
        assert numbers[different[0][0]] == words.determiners.index(good[good.index(FULL_STOP) + 1])
    plural = test["good"].str.contains(f" {FULL_STOP} {words.determiners[1]} ", regex=False)
    assert (plural.groupby(test["group"]).mean() == 0.5).all()
    assert made("agreement").ceilings == {"static": 0.5, "left": 1.0, "both": 1.0}


def test_ceilings_are_the_means_of_their_groups() -> None:
    for name in NAMES:
        found = made(name)
        sizes = found.splits["test"]["group"].value_counts()
        assert set(sizes.index) == set(found.group_ceilings)
        for window, value in found.ceilings.items():
            mean = (
                sum(
                    found.group_ceilings[str(group)][window] * size for group, size in sizes.items()
                )
                / sizes.sum()
            )
            assert math.isclose(value, mean)
