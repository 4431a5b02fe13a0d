"""What the cosines of words say of pairs and analogies, beside a few lines of numpy; shares of a correlation of ranks; words that are unknown."""

import numpy as np
import pandas as pd
import pytest
from scipy import stats

from lineage.analysis.cells import ResultCell as Compared
from lineage.analysis.records import System
from lineage.errors import EvaluationError
from lineage.evaluation.metrics import (
    RANKING_METRICS,
    mean_spearman_by_group,
    pearson,
    spearman_contributions,
)
from lineage.evaluation.word_vectors import (
    answer_items,
    cosine_matrix,
    cosines_by_layer,
    list_distinct_words,
    missing_value_note,
    unknown_words_note,
)
from lineage.report.notes import format_note
from lineage.tasks.base import load_kind

SIMILARITY = load_kind("word_similarity")
ANALOGY = load_kind("word_analogy")


def items_of(
    *rows: tuple[str, ...], label: list[float] | None = None, group: str | list[str] = "all"
) -> pd.DataFrame:
    table = pd.DataFrame(
        {
            "id": [str(i) for i in range(len(rows))],
            "words": [list(row) for row in rows],
            "group": group,
        }
    )
    return table if label is None else table.assign(label=label)


def by_hand(vectors_VLD: np.ndarray) -> np.ndarray:
    """Vectors of length 1 of the mean over centred layers."""
    x_VD = np.mean(
        [layer - layer.mean(0) for layer in vectors_VLD.transpose(1, 0, 2).astype(float)], 0
    )
    return x_VD / np.linalg.norm(x_VD, axis=1, keepdims=True)


def test_a_pairs_score_is_the_cosine_of_the_mean_of_centred_layers() -> None:
    rng = np.random.default_rng(3)
    vectors = (
        rng.normal(size=(7, 3, 5)) + np.array([40, -3, 7])[:, None]
    )  # nearly all in one direction
    table = items_of(("c", "a"), ("b", "g"), ("d", "d"), ("e", "f"), label=[1.0, 5.0, 9.0, 2.0])
    assert list_distinct_words(table) == list("abcdefg")
    found = answer_items(
        SIMILARITY, table, cosines_by_layer(vectors, np.ones(7, bool)), np.ones(7, bool)
    )
    x = by_hand(vectors)
    expected = [x[2] @ x[0], x[1] @ x[6], 1.0, x[4] @ x[5]]
    np.testing.assert_allclose(found["score"], expected, atol=1e-9)
    np.testing.assert_array_equal(found["prediction"].astype(float), found["score"])
    for layer in range(3):
        x = by_hand(vectors[:, layer : layer + 1])
        np.testing.assert_allclose(
            found[f"layer {layer}"].astype(float),
            [x[2] @ x[0], x[1] @ x[6], 1.0, x[4] @ x[5]],
            atol=1e-9,
        )
    assert found["correct"].mean() == pytest.approx(
        stats.spearmanr([1, 5, 9, 2], expected).statistic
    )
    assert cosine_matrix(np.array([[4.0, 0.0], [0.0, 0.0]])).tolist() == [[1, 0], [0, 0]], (
        "a vector without a length is like nothing"
    )


def test_an_analogy_is_the_nearest_word_to_b_minus_a_plus_c_but_these() -> None:
    rng = np.random.default_rng(4)
    words, vectors = [f"w{n:02d}" for n in range(30)], rng.normal(size=(30, 2, 6))
    rows = [tuple(rng.choice(words, 4, replace=False)) for _ in range(50)]
    table = items_of(*rows)
    assert list_distinct_words(table) == words
    found = answer_items(
        ANALOGY, table, cosines_by_layer(vectors, np.ones(30, bool)), np.ones(30, bool)
    )
    x, expected = dict(zip(words, by_hand(vectors), strict=True)), []
    for a, b, c, _ in rows:
        aim = x[b] - x[a] + x[c]
        expected.append(
            max(
                (w for w in words if w not in (a, b, c)),
                key=lambda w: x[w] @ aim / np.linalg.norm(aim),
            )
        )
    assert found["prediction"].tolist() == expected
    assert found["label"].tolist() == [d for *_, d in rows]
    assert found["correct"].tolist() == [
        float(d == said) for (*_, d), said in zip(rows, expected, strict=True)
    ]
    np.testing.assert_allclose(
        found["score"], [x[d] @ (x[b] - x[a] + x[c]) for a, b, c, d in rows], atol=1e-9
    )


def test_analogies_that_hold_are_found() -> None:
    """A country is its place and what makes a country, a capital the place and what makes a capital; all is moved far off."""
    capitals, countries = ("paris", "rome", "oslo"), ("france", "italy", "norway")
    places = {
        word: np.r_[np.eye(3)[i], np.eye(2)[j]] + 9
        for j, some in enumerate((capitals, countries))
        for i, word in enumerate(some)
    }
    table = items_of(
        *[
            (capitals[i], countries[i], capitals[j], countries[j])
            for i in range(3)
            for j in range(3)
            if i != j
        ]
    )
    vectors = np.array([places[word] for word in list_distinct_words(table)])[:, None]
    found = answer_items(
        ANALOGY, table, cosines_by_layer(vectors, np.ones(6, bool)), np.ones(6, bool)
    )
    assert found["correct"].tolist() == [1.0] * 6


def test_shares_are_the_jackknifes_of_ranks_and_their_mean_is_the_mean_over_groups() -> None:
    rng = np.random.default_rng(5)
    group = np.array(["a"] * 40 + ["b"] * 10 + ["c"] * 3, object)
    gold, said = rng.integers(0, 7, 53).astype(float), rng.normal(size=53)
    gold[-3:], said[-3:] = (
        (1, 1, 2),
        (0.1, 0.3, 0.2),
    )  # without the last one there is no order among the others
    each = {
        name: stats.spearmanr(gold[group == name], said[group == name]).statistic for name in "abc"
    }
    shares = spearman_contributions(gold, said, group)
    assert shares.mean() == pytest.approx(np.mean([*each.values()]), abs=1e-12)
    assert mean_spearman_by_group(gold, said, group) == pytest.approx(shares.mean(), abs=1e-12)
    for name, value in each.items():
        assert shares[group == name].sum() * 3 / 53 == pytest.approx(value, abs=1e-12)
    x, y = (stats.rankdata(values[:40]) for values in (gold, said))
    without = np.array([pearson(np.delete(x, i), np.delete(y, i)) for i in range(40)])
    jackknife = each["a"] + 39 * (without.mean() - without)
    np.testing.assert_allclose(shares[:40] * (3 * 40 / 53), jackknife, atol=1e-9)
    order = rng.permutation(53)
    np.testing.assert_allclose(
        spearman_contributions(gold[order], said[order], group[order]), shares[order], atol=1e-9
    )


def test_a_pair_of_an_unknown_word_has_the_mean_and_an_analogy_of_one_is_wrong() -> None:
    rng = np.random.default_rng(6)
    vectors, known = rng.normal(size=(6, 1, 4)), np.array([True] * 5 + [False])  # f
    vectors[5] = 1000  # must move nothing, the centre neither
    table = items_of(
        ("a", "b"), ("c", "d"), ("f", "a"), ("e", "a"), ("f", "f"), label=[1.0, 2.0, 3.0, 4.0, 5.0]
    )
    found = answer_items(SIMILARITY, table, cosines_by_layer(vectors, known), known)
    x = by_hand(vectors[:5])
    own = [x[0] @ x[1], x[2] @ x[3], x[4] @ x[0]]
    np.testing.assert_allclose(
        found["score"], [own[0], own[1], np.mean(own), own[2], np.mean(own)], atol=1e-9
    )
    frame = pd.DataFrame(found)
    assert (
        format_note(unknown_words_note(SIMILARITY, frame))
        == "2 of 5 pairs have a word that the model does not know; each was given the mean cosine of the others"
    )
    assert unknown_words_note(SIMILARITY, frame[:2]) is None
    table = items_of(
        ("a", "b", "c", "f"), ("f", "b", "c", "d"), ("a", "b", "c", "d"), ("a", "c", "b", "e")
    )
    found = answer_items(ANALOGY, table, cosines_by_layer(vectors, known), known)
    assert (
        found["prediction"][:2].tolist() == ["", ""]
        and found["correct"][:2].tolist() == [0, 0]
        and np.isnan(found["score"][:2]).all()
    )
    assert set(found["prediction"][2:]) <= {"d", "e"}, "a word that is not known is no candidate"
    assert (
        format_note(unknown_words_note(ANALOGY, pd.DataFrame(found)))
        == "2 of 4 analogies have a word that the model does not know; none of them is right"
    )


def test_where_no_order_exists_the_group_says_why() -> None:
    table = items_of(
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
    known = np.array([True] * 4 + [False] * 2)
    found = pd.DataFrame(
        answer_items(SIMILARITY, table, cosines_by_layer(vectors, known), known)
    ).assign(group=table["group"].to_numpy())
    assert found["correct"].isna().tolist() == [False] * 3 + [True] * 3 and np.isnan(
        SIMILARITY.score("spearman", found)
    )
    assert (
        format_note(missing_value_note(found)).startswith(
            "every pair of group 'y' has the same cosine"
        )
        and SIMILARITY.score("spearman", found[:3]) == 0.5
    )
    for known, said in (
        (np.array([True] + [False] * 5), "knows both words of no pair; raise"),
        (np.zeros(6, bool), "knows none of the task's words; raise"),
    ):
        with pytest.raises(EvaluationError, match=said):
            answer_items(SIMILARITY, table, cosines_by_layer(vectors, known), known)


def test_a_correlation_of_ranks_is_compared_where_no_other_metric_comes_first() -> None:
    assert list(RANKING_METRICS).index("pearson") < list(RANKING_METRICS).index("spearman"), (
        "a task of numbers is compared by pearson"
    )
    way = System("gpt", "gpt", "pretrained", "none", "zero_shot", "none", "none", "none")
    cell = Compared(way, "x", "word_similarity", "none", "spearman", 0, {(0, None): -0.4})
    cell.item_scores[0, None] = pd.Series([-0.4, -0.9, 0.1, -0.4], [*"abcd"])
    found = cell.summarize()
    assert found.ci_low is not None and found.ci_high is not None
    assert -1 <= found.ci_low < -0.4 < found.ci_high <= 1
