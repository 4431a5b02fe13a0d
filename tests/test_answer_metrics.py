"""Metrics of tags, answers and numbers are right on small examples and in general properties."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from lineage.answers.metrics import METRICS, pearson, score_answers, spearman
from lineage.answers.spans import (
    Span,
    SpanScore,
    extract_spans,
    score_spans,
    span_f1,
    token_accuracy,
)
from lineage.errors import InputError

KINDS = ("PER", "LOC", "A-B")
TAGS = st.sampled_from(["O", *(f"{prefix}-{kind}" for prefix in "BI" for kind in KINDS)])
PAIRS = st.lists(
    st.lists(st.tuples(TAGS, TAGS), max_size=6), min_size=1, max_size=5
)  # examples of (label tag, predicted tag)
SPAN_PARTS = st.lists(st.tuples(st.sampled_from([None, *KINDS]), st.integers(1, 3)), max_size=6)


def object_array(*values: Any) -> np.ndarray:
    return np.fromiter(values, object)


def label_and_prediction_columns(
    pairs: list[list[tuple[str, str]]],
) -> tuple[np.ndarray, np.ndarray]:
    labels = [[label for label, _ in example] for example in pairs]
    predictions = [[prediction for _, prediction in example] for example in pairs]
    return object_array(*labels), object_array(*predictions)


def write_tags(parts: list[tuple[str | None, int]], scheme: str) -> tuple[list[str], list[Span]]:
    """Return the tags of consecutive parts, each with a type or without, and their spans."""
    tags: list[str] = []
    spans: list[Span] = []
    for kind, size in parts:
        follows_same_type = bool(spans) and spans[-1][0] == kind and spans[-1][2] == len(tags)
        if kind is None:
            tags += ["O"] * size
            continue
        spans.append((kind, len(tags), len(tags) + size))
        tags += [
            f"{'B' if scheme == 'IOB2' or follows_same_type else 'I'}-{kind}",
            *[f"I-{kind}"] * (size - 1),
        ]
    return tags, spans


@settings(deadline=None, derandomize=True, database=None)
@given(SPAN_PARTS)
def test_spans_are_recovered_from_the_tags_of_either_scheme(
    parts: list[tuple[str | None, int]],
) -> None:
    for scheme in ("IOB2", "IOB1"):
        tags, spans = write_tags(parts, scheme)
        assert extract_spans(tags) == spans


def test_a_span_may_begin_with_i() -> None:
    tags = ["I-PER", "I-PER", "O", "B-LOC", "I-PER", "B", "I"]
    assert extract_spans(tags) == [("PER", 0, 2), ("LOC", 3, 4), ("PER", 4, 5), ("_", 5, 7)]
    assert extract_spans([]) == extract_spans(["O"]) == []


def test_scores_of_two_sentences_counted_by_hand() -> None:
    labels = object_array("B-PER I-PER O B-LOC", ["O", "B-PER"])
    predictions = object_array(
        "B-PER O O B-LOC", ["B-LOC", "B-PER"]
    )  # PER: 1 of 2 found, 1 of 2 predicted is right; LOC: 1 of 1 and 1 of 2
    scores = score_spans(labels, predictions)
    assert scores.by_type == {
        "LOC": SpanScore(2 / 3, 1),
        "PER": SpanScore(1 / 2, 2),
    }
    assert scores.micro == SpanScore(4 / 7, 3)
    assert span_f1(labels, predictions) == 4 / 7
    assert token_accuracy(labels, predictions) == pytest.approx(4 / 6)


def test_scores_are_zero_without_any_span() -> None:
    zero = SpanScore(0.0, 0)
    for example in ("O O", ""):
        scores = score_spans(object_array(example), object_array(example))
        assert scores.micro == zero and not scores.by_type


@settings(deadline=None, derandomize=True, database=None)
@given(PAIRS)
def test_swapping_labels_and_predictions_leaves_f1_as_it_is(
    pairs: list[list[tuple[str, str]]],
) -> None:
    labels, predictions = label_and_prediction_columns(pairs)
    assert span_f1(predictions, labels) == span_f1(labels, predictions)
    has_span = any(set(example) - {"O"} for example in labels)
    assert span_f1(labels, labels) == float(has_span)


@pytest.mark.parametrize("tag", ["S-PER", "E-PER", "PER", "O-PER", "B-", "NN", "b-per", ""])
def test_an_invalid_iob_tag_is_refused_with_its_position(tag: str) -> None:
    with pytest.raises(
        InputError, match=rf"tag 2 of 3: '{tag}' is neither O nor B-TYPE nor I-TYPE"
    ):
        extract_spans(["O", tag, "O"])


def test_a_wrong_number_of_predicted_tags_is_refused_with_the_example() -> None:
    for metric in (span_f1, token_accuracy):
        with pytest.raises(InputError, match="example 2: 1 predicted tags for 2 tokens"):
            metric(object_array("O", "O O"), object_array("O", "O"))


@pytest.mark.parametrize(
    ("labels", "prediction", "match", "f1"),
    [
        (["a"], "The", 1, 0),  # nothing is left of either one
        (["a", "b"], "the", 1, 0),
        (["word"], "", 0, 0),
        ("The U.S.A.", "usa", 1, 1),  # a single label, as a text
        (["twenty one"], "twenty-one", 0, 0),  # a hyphen does not become a space
        (["theatre", "an atre"], "the atre", 1, 1),  # articles are whole words
        (["atre"], "theatre", 0, 0),
        (["dog dog cat"], "dog dog dog", 0, 2 / 3),  # words count as often as they occur
        (["one two", "three"], "one three", 0, 2 / 3),  # the best label counts
        (["Paris"], None, 0, 0),
        (["Paris"], float("nan"), 0, 0),
    ],
)  # fmt: skip
def test_answers_are_scored_as_in_squad(
    labels: list[str] | str, prediction: Any, match: float, f1: float
) -> None:
    scores = score_answers(object_array(labels), object_array(prediction))
    assert scores.shape == (1, 2) and scores[0] == pytest.approx([match, f1])
    columns = object_array(labels, ["x"]), object_array(prediction, "x")
    assert METRICS["exact_match"](*columns) == pytest.approx(50 * (match + 1))
    assert METRICS["f1"](*columns) == pytest.approx(50 * (f1 + 1))


def test_a_constant_has_no_correlation_and_gives_no_warning(
    recwarn: pytest.WarningsRecorder,
) -> None:
    constant = np.full(9, 0.1)
    other = np.arange(9.0)
    for columns in ((constant, other), (other, constant), (constant, constant)):
        assert np.isnan([pearson(*columns), spearman(*columns)]).all()
    assert not recwarn.list


def test_spearman_is_pearson_of_tied_ranks_and_depends_only_on_the_order() -> None:
    rng = np.random.default_rng(11)
    labels = rng.integers(0, 5, 60).astype(float)
    predictions = rng.integers(0, 9, 60).astype(float)
    assert spearman(labels, predictions) == pytest.approx(
        pearson(stats.rankdata(labels), stats.rankdata(predictions)), abs=1e-12
    )
    assert spearman(labels, np.exp(predictions)) == pytest.approx(
        spearman(labels, predictions), abs=1e-12
    )
    assert pearson(labels, 3 - 2 * predictions) == pytest.approx(
        -pearson(labels, predictions), abs=1e-12
    )
    assert abs(pearson(labels, np.exp(predictions)) - pearson(labels, predictions)) > 1e-3
