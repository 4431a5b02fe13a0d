"""Metrics agree with scikit-learn, scipy, seqeval, sacrebleu and the official scripts.

The scripts are those of conlleval and SQuAD. Bits per byte are compared with hand counts.
"""

import json
from collections.abc import Iterable
from typing import Any

import numpy as np
import pytest

from lineage.answers.metrics import (
    ANSWER_SEPARATOR,
    METRICS,
    answer_f1,
    bleu,
    chrf,
    exact_match,
    get_bleu_signature,
    matthews_correlation,
    normalize_answer,
    score_answers,
)
from lineage.answers.spans import count_spans, extract_spans, score_spans, token_accuracy
from lineage.training.objectives import LossSums, compute_lm_metrics
from tests.helpers.golden import golden_folder


def load_cases(name: str) -> dict[str, Any]:
    return json.loads((golden_folder("metrics") / f"{name}.json").read_text(encoding="utf-8"))


def object_array(values: Iterable[Any]) -> np.ndarray:
    """Return an array of objects, one per example, as in a table's column."""
    return np.fromiter(values, object)


def test_matthews_correlation_matches_scikit_learn() -> None:
    selected = [case for name, case in load_cases("correlation").items() if name.startswith("mcc")]
    assert selected
    for case in selected:
        assert matthews_correlation(
            np.array(case["y_true"]), np.array(case["y_pred"])
        ) == pytest.approx(case["mcc"], abs=1e-9)


def test_correlations_match_scipy_and_are_nan_for_a_constant() -> None:
    selected = [case for name, case in load_cases("correlation").items() if name.startswith("corr")]
    assert any(case["pearson"] is not None for case in selected)
    for method in ("pearson", "spearman"):
        correlate = METRICS[method]
        assert np.isnan(correlate(np.arange(4.0), np.ones(4)))
        for case in selected:
            expected = float("nan") if case[method] is None else case[method]
            for one, other in (("x", "y"), ("y", "x")):
                assert correlate(np.array(case[one]), np.array(case[other])) == pytest.approx(
                    expected, abs=1e-9, nan_ok=True
                )


def test_spans_and_their_scores_match_seqeval() -> None:
    reference = load_cases("ner")
    for sequence in reference["sequences"]:
        for side in ("gold", "pred"):
            expected = [
                (kind, first, last + 1)
                for kind, first, last in sequence["default"][f"{side}_entities_inclusive_end"]
            ]
            assert extract_spans(sequence[side]) == expected
        score = score_spans(
            object_array([sequence["gold"]]), object_array([sequence["pred"]])
        ).micro
        assert score.f1 == pytest.approx(sequence["default"]["f1"], abs=1e-9)
    labels, prediction = (
        object_array(sequence[side] for sequence in reference["sequences"])
        for side in ("gold", "pred")
    )
    actual = score_spans(labels, prediction)
    expected_scores = reference["corpus"]["default"]["per_type"]
    scores = {**actual.by_type, "micro avg": actual.micro}
    assert set(scores) == set(expected_scores) - {"macro avg", "weighted avg"}
    for kind, score in scores.items():
        expected = expected_scores[kind]
        assert (score.f1, score.support) == pytest.approx(
            (expected["f1-score"], expected["support"]), abs=1e-9
        )


def test_our_counts_match_the_output_of_the_conlleval_script() -> None:
    reference = load_cases("ner")
    labels, prediction = (
        object_array(" ".join(sequence[side]) for sequence in reference["sequences"])
        for side in ("gold", "pred")
    )
    scores = score_spans(labels, prediction)
    accuracy = token_accuracy(labels, prediction)
    assert accuracy == pytest.approx(reference["corpus"]["token_accuracy"], abs=1e-9)
    num_correct, num_predicted, num_labels = np.sum(count_spans(labels, prediction), axis=0)
    first, *lines = [text for text in reference["conlleval_pl_output"] if text]
    assert first.endswith(
        f"with {num_labels} phrases; found: {num_predicted} phrases; correct: {num_correct}."
    )
    f1 = [f"{100 * score.f1:.2f}" for score in (scores.micro, *scores.by_type.values())]
    assert f1 == [text.partition("FB1: ")[2].split()[0] for text in lines]
    assert [*scores.by_type] == [text.partition(":")[0].strip() for text in lines[1:]]


def test_answer_scores_match_the_squad_script_except_for_empty_answers_in_v2() -> None:
    """Version 2 differs if nothing is left of an answer after normalization."""
    reference = load_cases("squad")
    pairs = reference["pairs"]
    labels = object_array(pair["golds"] for pair in pairs)
    prediction = object_array(pair["prediction"] for pair in pairs)
    scores = score_answers(labels, prediction)
    np.testing.assert_allclose(
        scores, [(pair["v11_em"], pair["v11_f1"]) for pair in pairs], atol=1e-9
    )
    # The predictions of a task hold all answers in one text.
    joined_answers = object_array(ANSWER_SEPARATOR.join(texts) for texts in labels)
    np.testing.assert_allclose(score_answers(joined_answers, prediction), scores, atol=1e-9)
    for pair, (match, f1) in zip(pairs, scores, strict=True):
        assert normalize_answer(pair["prediction"]) == pair["normalised_prediction"]
        assert [normalize_answer(text) for text in pair["golds"]] == pair["normalised_golds"]
        both_empty = not pair["normalised_prediction"] and "" in pair["normalised_golds"]
        assert (pair["v20_em"], pair["v20_f1"]) == pytest.approx(
            (match, 1.0 if both_empty else f1), abs=1e-9
        )
    expected = reference["aggregate_without"]
    assert (exact_match(labels, prediction), answer_f1(labels, prediction)) == pytest.approx(
        (expected["exact_match"], expected["f1"]), abs=1e-9
    )
    with_unanswered = (object_array([*labels, ["x"]]), object_array([*prediction, None]))
    expected = reference["aggregate_v11_with_one_extra_unanswered_question"]
    assert (exact_match(*with_unanswered), answer_f1(*with_unanswered)) == pytest.approx(
        (expected["exact_match"], expected["f1"]), abs=1e-9
    )


def test_bleu_and_chrf_match_sacrebleu() -> None:
    reference = load_cases("mt")
    labels, prediction = (
        object_array(pair[side] for pair in reference["pairs"])
        for side in ("reference", "hypothesis")
    )
    assert bleu(labels, prediction) == pytest.approx(
        reference["expected"]["corpus_bleu_13a"]["score"], abs=1e-9
    )
    assert (
        get_bleu_signature(labels, prediction)
        == reference["expected"]["corpus_bleu_13a"]["signature"]
    )
    assert chrf(labels, prediction) == pytest.approx(
        reference["expected"]["corpus_chrF2"]["score"], abs=1e-9
    )


def test_bits_per_byte_is_a_ratio_of_sums_over_utf8_bytes() -> None:
    reference = load_cases("bits_per_byte")
    texts = [text for text in reference["texts"] if text["utf8_bytes"]]
    for text in texts:
        assert len(text["text"].encode()) == text["utf8_bytes"]
        nats = sum(text["token_nll_nats"])
        count = len(text["token_nll_nats"])
        assert compute_lm_metrics(
            LossSums({"causal": nats}, {"causal": count}, text["utf8_bytes"])
        )["bits_per_byte"] == pytest.approx(text["bits_per_byte"], abs=1e-9)
    nats = sum(sum(text["token_nll_nats"]) for text in texts)
    size = sum(text["utf8_bytes"] for text in texts)
    metrics = compute_lm_metrics(
        LossSums({"forward": nats}, {"forward": reference["corpus"]["tokens"]}, size)
    )
    assert metrics["bits_per_byte_forward"] == pytest.approx(
        reference["corpus"]["bits_per_byte"], abs=1e-9
    )
