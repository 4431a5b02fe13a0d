"""Cosines of words, analogies and rank-correlation contributions match numpy and scipy."""

import numpy as np
import pandas as pd
import pytest
from scipy import stats

from lineage.answers.metrics import (
    RANKING_METRICS,
    mean_spearman_by_group,
    pearson,
    spearman_contributions,
)
from lineage.answers.words import (
    AnalogyAnswer,
    SimilarityAnswer,
    cosine_matrix,
    list_distinct_words,
)
from lineage.errors import EvaluationError
from lineage.methods.word_vectors import cosines_by_layer
from lineage.report.notes import format_note, format_notes
from tests.helpers.word_items import make_items, unit_vectors_by_hand


def test_a_pair_scores_the_cosine_of_the_mean_of_centred_layers() -> None:
    rng = np.random.default_rng(3)
    # All vectors point in nearly the same direction.
    vectors = rng.normal(size=(7, 3, 5)) + np.array([40, -3, 7])[:, None]
    table = make_items(("c", "a"), ("b", "g"), ("d", "d"), ("e", "f"), label=[1.0, 5.0, 9.0, 2.0])
    assert list_distinct_words(table) == list("abcdefg")
    answers = SimilarityAnswer.columns(
        table, cosines_by_layer(vectors, np.ones(7, bool)), np.ones(7, bool)
    )
    x = unit_vectors_by_hand(vectors)
    expected = [x[2] @ x[0], x[1] @ x[6], 1.0, x[4] @ x[5]]
    np.testing.assert_allclose(answers["score"], expected, atol=1e-9)
    np.testing.assert_array_equal(answers["prediction"].astype(float), answers["score"])
    for layer in range(3):
        x = unit_vectors_by_hand(vectors[:, layer : layer + 1])
        np.testing.assert_allclose(
            answers[f"layer {layer}"].astype(float),
            [x[2] @ x[0], x[1] @ x[6], 1.0, x[4] @ x[5]],
            atol=1e-9,
        )
    assert answers["correct"].mean() == pytest.approx(
        stats.spearmanr([1, 5, 9, 2], expected).statistic
    )
    assert cosine_matrix(np.array([[4.0, 0.0], [0.0, 0.0]])).tolist() == [[1, 0], [0, 0]], (
        "a zero vector has cosine 0 with everything"
    )


def test_an_analogy_answers_the_word_nearest_to_b_minus_a_plus_c() -> None:
    rng = np.random.default_rng(4)
    words = [f"w{n:02d}" for n in range(30)]
    vectors = rng.normal(size=(30, 2, 6))
    rows = [tuple(rng.choice(words, 4, replace=False)) for _ in range(50)]
    table = make_items(*rows)
    assert list_distinct_words(table) == words
    answers = AnalogyAnswer.columns(
        table, cosines_by_layer(vectors, np.ones(30, bool)), np.ones(30, bool)
    )
    x = dict(zip(words, unit_vectors_by_hand(vectors), strict=True))
    expected = []
    for a, b, c, _ in rows:
        target = x[b] - x[a] + x[c]
        expected.append(
            max(
                (word for word in words if word not in (a, b, c)),
                key=lambda word: x[word] @ target / np.linalg.norm(target),
            )
        )
    assert answers["prediction"].tolist() == expected
    assert answers["label"].tolist() == [d for *_, d in rows]
    assert answers["correct"].tolist() == [
        float(d == answer) for (*_, d), answer in zip(rows, expected, strict=True)
    ]
    np.testing.assert_allclose(
        answers["score"], [x[d] @ (x[b] - x[a] + x[c]) for a, b, c, d in rows], atol=1e-9
    )


def test_exact_analogies_are_answered_correctly() -> None:
    """Each vector is a place plus its type, country or capital; all are shifted far from zero."""
    capitals = ("paris", "rome", "oslo")
    countries = ("france", "italy", "norway")
    vector_by_word = {
        word: np.r_[np.eye(3)[i], np.eye(2)[j]] + 9
        for j, words in enumerate((capitals, countries))
        for i, word in enumerate(words)
    }
    table = make_items(
        *[
            (capitals[i], countries[i], capitals[j], countries[j])
            for i in range(3)
            for j in range(3)
            if i != j
        ]
    )
    vectors = np.array([vector_by_word[word] for word in list_distinct_words(table)])[:, None]
    answers = AnalogyAnswer.columns(
        table, cosines_by_layer(vectors, np.ones(6, bool)), np.ones(6, bool)
    )
    assert answers["correct"].tolist() == [1.0] * 6


def test_spearman_contributions_match_the_jackknife_and_average_over_groups() -> None:
    rng = np.random.default_rng(5)
    group = np.array(["a"] * 40 + ["b"] * 10 + ["c"] * 3, object)
    labels = rng.integers(0, 7, 53).astype(float)
    predictions = rng.normal(size=53)
    # Without the last item the labels have no order.
    labels[-3:] = 1, 1, 2
    predictions[-3:] = 0.1, 0.3, 0.2
    value_by_group = {
        name: stats.spearmanr(labels[group == name], predictions[group == name]).statistic
        for name in "abc"
    }
    contributions = spearman_contributions(labels, predictions, group)
    assert contributions.mean() == pytest.approx(np.mean([*value_by_group.values()]), abs=1e-12)
    assert mean_spearman_by_group(labels, predictions, group) == pytest.approx(
        contributions.mean(), abs=1e-12
    )
    for name, value in value_by_group.items():
        assert contributions[group == name].sum() * 3 / 53 == pytest.approx(value, abs=1e-12)
    x, y = (stats.rankdata(values[:40]) for values in (labels, predictions))
    leave_one_out = np.array([pearson(np.delete(x, i), np.delete(y, i)) for i in range(40)])
    jackknife = value_by_group["a"] + 39 * (leave_one_out.mean() - leave_one_out)
    np.testing.assert_allclose(contributions[:40] * (3 * 40 / 53), jackknife, atol=1e-9)
    order = rng.permutation(53)
    np.testing.assert_allclose(
        spearman_contributions(labels[order], predictions[order], group[order]),
        contributions[order],
        atol=1e-9,
    )


def test_pairs_with_an_unknown_word_score_the_mean_and_such_analogies_are_wrong() -> None:
    rng = np.random.default_rng(6)
    vectors = rng.normal(size=(6, 1, 4))
    is_known = np.array([True] * 5 + [False])  # f is unknown
    vectors[5] = 1000  # it must not change any score, nor the centre
    table = make_items(
        ("a", "b"), ("c", "d"), ("f", "a"), ("e", "a"), ("f", "f"), label=[1.0, 2.0, 3.0, 4.0, 5.0]
    )
    answers = SimilarityAnswer.columns(table, cosines_by_layer(vectors, is_known), is_known)
    x = unit_vectors_by_hand(vectors[:5])
    known_scores = [x[0] @ x[1], x[2] @ x[3], x[4] @ x[0]]
    np.testing.assert_allclose(
        answers["score"],
        [
            known_scores[0],
            known_scores[1],
            np.mean(known_scores),
            known_scores[2],
            np.mean(known_scores),
        ],
        atol=1e-9,
    )
    frame = pd.DataFrame(answers)
    assert (
        format_notes(SimilarityAnswer.describe_answers(frame))
        == "2 of 5 pairs have a word that the model does not know; each was given the mean cosine of the others"
    )
    assert SimilarityAnswer.describe_answers(frame[:2]) == []
    table = make_items(
        ("a", "b", "c", "f"), ("f", "b", "c", "d"), ("a", "b", "c", "d"), ("a", "c", "b", "e")
    )
    answers = AnalogyAnswer.columns(table, cosines_by_layer(vectors, is_known), is_known)
    assert answers["prediction"][:2].tolist() == ["", ""]
    assert answers["correct"][:2].tolist() == [0, 0]
    assert np.isnan(answers["score"][:2]).all()
    assert set(answers["prediction"][2:]) <= {"d", "e"}, "an unknown word is not a candidate"
    assert (
        format_notes(AnalogyAnswer.describe_answers(pd.DataFrame(answers)))
        == "2 of 4 analogies have a word that the model does not know; none of them is right"
    )


def test_a_group_whose_scores_are_all_equal_has_no_value_and_a_reason() -> None:
    table = make_items(
        ("a", "b"),
        ("c", "d"),
        ("a", "d"),
        ("e", "f"),
        ("e", "a"),
        ("e", "b"),
        label=[1.0, 2.0, 3.0] * 2,
        group=["x"] * 3 + ["y"] * 3,
    )
    vectors = np.random.default_rng(7).normal(size=(6, 1, 4))
    is_known = np.array([True] * 4 + [False] * 2)
    answers = pd.DataFrame(
        SimilarityAnswer.columns(table, cosines_by_layer(vectors, is_known), is_known)
    ).assign(group=table["group"].to_numpy())
    assert answers["correct"].isna().tolist() == [False] * 3 + [True] * 3
    assert np.isnan(SimilarityAnswer.score("spearman", answers))
    assert format_note(SimilarityAnswer.describe_undefined("spearman", answers)).startswith(
        "every pair of group 'y' has the same cosine"
    )
    assert SimilarityAnswer.score("spearman", answers[:3]) == 0.5
    for is_known, message in (
        (np.array([True] + [False] * 5), "knows both words of no pair; raise"),
        (np.zeros(6, bool), "knows none of the task's words; raise"),
    ):
        with pytest.raises(EvaluationError, match=message):
            SimilarityAnswer.columns(table, cosines_by_layer(vectors, is_known), is_known)


def test_a_regression_task_is_compared_by_pearson() -> None:
    assert list(RANKING_METRICS).index("pearson") < list(RANKING_METRICS).index("spearman")
