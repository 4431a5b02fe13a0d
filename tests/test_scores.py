"""Metrics of tags, answers and numbers on cases small enough to count by hand, and what must hold for any input."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from lineage.errors import InputError
from lineage.evaluation.metrics import METRICS, correlation, pearson, score_answers, spearman
from lineage.evaluation.spans import (
    Span,
    SpanScore,
    TaggingScheme,
    extract_spans,
    score_spans,
    span_f1,
    token_accuracy,
)

KINDS = ("PER", "LOC", "A-B")
TAGS = st.sampled_from(["O", *(f"{prefix}-{kind}" for prefix in "BI" for kind in KINDS)])
PAIRS = st.lists(
    st.lists(st.tuples(TAGS, TAGS), max_size=6), min_size=1, max_size=5
)  # examples of (gold tag, predicted tag)
PIECES = st.lists(st.tuples(st.sampled_from([None, *KINDS]), st.integers(1, 3)), max_size=6)


def column(*values: Any) -> np.ndarray:
    return np.fromiter(values, object)


def sides(pairs: list[list[tuple[str, str]]]) -> tuple[np.ndarray, np.ndarray]:
    return tuple(
        column(*([pair[side] for pair in example] for example in pairs)) for side in (0, 1)
    )  # type: ignore[return-value]


def written(
    pieces: list[tuple[str | None, int]], scheme: TaggingScheme
) -> tuple[list[str], list[Span]]:
    """Tags of pieces with or without a type, side by side, and their spans."""
    tags: list[str] = []
    there: list[Span] = []
    for kind, size in pieces:
        after_own = bool(there) and there[-1][0] == kind and there[-1][2] == len(tags)
        if kind is None:
            tags += ["O"] * size
            continue
        there.append((kind, len(tags), len(tags) + size))
        tags += [
            f"{'B' if scheme == 'IOB2' or after_own else 'I'}-{kind}",
            *[f"I-{kind}"] * (size - 1),
        ]
    return tags, there


@settings(deadline=None, derandomize=True, database=None)
@given(PIECES)
def test_spans_come_back_from_the_tags_that_either_scheme_writes(
    pieces: list[tuple[str | None, int]],
) -> None:
    for scheme in ("IOB2", "IOB1"):
        tags, there = written(pieces, scheme)
        assert extract_spans(tags, scheme) == there and extract_spans(tags) == there


def test_what_begins_with_i_is_a_span_for_conlleval_and_none_in_iob2() -> None:
    tags = ["I-PER", "I-PER", "O", "B-LOC", "I-PER", "B", "I"]
    assert extract_spans(tags) == [("PER", 0, 2), ("LOC", 3, 4), ("PER", 4, 5), ("_", 5, 7)]
    assert extract_spans(tags, "IOB2") == [("LOC", 3, 4), ("_", 5, 7)]
    assert extract_spans(["B-PER", "I-PER"], "IOB1") == [("PER", 1, 2)], (
        "a B after nothing of its type is no tag of IOB1"
    )
    assert extract_spans([]) == extract_spans([], "IOB2") == extract_spans(["O"], "IOB1") == []


def test_scores_of_two_sentences_counted_by_hand() -> None:
    gold = column("B-PER I-PER O B-LOC", ["O", "B-PER"])
    said = column(
        "B-PER O O B-LOC", ["B-LOC", "B-PER"]
    )  # PER: 1 of 2 found, 1 of 2 right; LOC: 1 of 1 and 1 of 2
    found = score_spans(gold, said)
    assert found.by_type == {
        "LOC": SpanScore(1 / 2, 1.0, 2 / 3, 1),
        "PER": SpanScore(1 / 2, 1 / 2, 1 / 2, 2),
    }
    assert found.micro == SpanScore(2 / 4, 2 / 3, 4 / 7, 3) and span_f1(gold, said) == 4 / 7
    assert found.macro == SpanScore(1 / 2, 3 / 4, pytest.approx(7 / 12), 3)
    assert token_accuracy(gold, said) == pytest.approx(4 / 6)


def test_where_there_is_no_span_scores_are_zero() -> None:
    nothing = SpanScore(0.0, 0.0, 0.0, 0)
    for example in ("O O", ""):
        found = score_spans(column(example), column(example))
        assert found.micro == found.macro == nothing and not found.by_type


@settings(deadline=None, derandomize=True, database=None)
@given(PAIRS)
def test_gold_and_prediction_changed_over_change_precision_and_recall_over(
    pairs: list[list[tuple[str, str]]],
) -> None:
    gold, said = sides(pairs)
    for scheme in ("conlleval", "IOB2", "IOB1"):
        one, other = score_spans(gold, said, scheme).micro, score_spans(said, gold, scheme).micro
        assert (one.precision, one.recall, one.f1) == (other.recall, other.precision, other.f1)
        assert (
            min(one.precision, one.recall) - 1e-12
            <= one.f1
            <= max(one.precision, one.recall) + 1e-12
        )
    assert span_f1(gold, gold) == float(any(tag != "O" for example in gold for tag in example))


@pytest.mark.parametrize("tag", ["S-PER", "E-PER", "PER", "O-PER", "B-", "NN", "b-per", ""])
def test_what_is_no_tag_of_iob_is_refused_by_its_place(tag: str) -> None:
    with pytest.raises(
        InputError, match=rf"tag 2 of 3: '{tag}' is neither O nor B-TYPE nor I-TYPE"
    ):
        extract_spans(["O", tag, "O"])


def test_tags_that_are_not_one_a_token_are_refused_by_their_example() -> None:
    for metric in (span_f1, token_accuracy):
        with pytest.raises(InputError, match="example 2: 1 predicted tags for 2 tokens"):
            metric(column("O", "O O"), column("O", "O"))


@pytest.mark.parametrize(
    ("golds", "said", "match", "f1"),
    [
        (["a"], "The", 1, 0),  # nothing is left of either
        (["a", "b"], "the", 1, 0),
        (["word"], "", 0, 0),
        ("The U.S.A.", "usa", 1, 1),  # one gold, as a text
        (["twenty one"], "twenty-one", 0, 0),  # no space for the hyphen
        (["theatre", "an atre"], "the atre", 1, 1),  # articles are whole words
        (["atre"], "theatre", 0, 0),
        (["dog dog cat"], "dog dog dog", 0, 2 / 3),  # words count as often as they stand there
        (["one two", "three"], "one three", 0, 2 / 3),  # the best of both
        (["Paris"], None, 0, 0),
        (["Paris"], float("nan"), 0, 0),
    ],
)  # fmt: skip
def test_answers(golds: list[str] | str, said: Any, match: float, f1: float) -> None:
    alone = score_answers(column(golds), column(said))
    assert alone.shape == (1, 2) and alone[0] == pytest.approx([match, f1])
    both = column(golds, ["x"]), column(said, "x")
    assert METRICS["exact_match"](*both) == pytest.approx(50 * (match + 1)) and METRICS["f1"](
        *both
    ) == pytest.approx(50 * (f1 + 1))


def test_a_constant_has_no_correlation_and_says_nothing_aloud(
    recwarn: pytest.WarningsRecorder,
) -> None:
    constant, other = np.full(9, 0.1), np.arange(9.0)
    for both in ((constant, other), (other, constant), (constant, constant)):
        assert np.isnan([pearson(*both), spearman(*both), *correlation(*both, "pearson")]).all()
    assert not recwarn.list


def test_spearman_is_pearson_of_ranks_with_ties_and_sees_only_the_order() -> None:
    rng = np.random.default_rng(11)
    gold, said = rng.integers(0, 5, 60).astype(float), rng.integers(0, 9, 60).astype(float)
    assert spearman(gold, said) == pytest.approx(
        pearson(stats.rankdata(gold), stats.rankdata(said)), abs=1e-12
    )
    assert spearman(gold, np.exp(said)) == pytest.approx(spearman(gold, said), abs=1e-12)
    assert pearson(gold, 3 - 2 * said) == pytest.approx(-pearson(gold, said), abs=1e-12)
    assert abs(pearson(gold, np.exp(said)) - pearson(gold, said)) > 1e-3
