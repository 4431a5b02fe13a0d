"""Metrics against scikit-learn, scipy, seqeval, the scripts of conlleval and SQuAD, and sacrebleu; bits per byte against counts made by hand."""

import json
from collections.abc import Iterable
from typing import Any

import numpy as np
import pytest
from sacrebleu.metrics.bleu import BLEU
from sacrebleu.metrics.chrf import CHRF

from lineage.evaluation.metrics import (
    ANSWER_SEPARATOR,
    answer_f1,
    bleu,
    chrf,
    correlation,
    exact_match,
    get_bleu_signature,
    matthews_correlation,
    normalize_answer,
    score_answers,
)
from lineage.evaluation.spans import (
    SpanScore,
    TaggingScheme,
    extract_spans,
    score_spans,
    token_accuracy,
)
from lineage.training.objectives import LossSums, compute_lm_metrics
from tests.bootstrap import bootstrap
from tests.golden import golden


def cases(name: str) -> dict[str, Any]:
    return json.loads((golden("metrics") / f"{name}.json").read_text(encoding="utf-8"))


def column(values: Iterable[Any]) -> np.ndarray:
    """One object an example, as in a table's column."""
    return np.fromiter(values, object)


def test_matthews_correlation_is_scikit_learns() -> None:
    found = [case for name, case in cases("correlation").items() if name.startswith("mcc")]
    assert found
    for case in found:
        assert matthews_correlation(
            np.array(case["y_true"]), np.array(case["y_pred"])
        ) == pytest.approx(case["mcc"], abs=1e-9)


def test_correlations_and_their_p_are_scipys_and_there_is_none_with_a_constant() -> None:
    found = [case for name, case in cases("correlation").items() if name.startswith("corr")]
    assert any(case["pearson"] is not None for case in found)
    assert all(
        np.isnan(correlation(np.arange(4.0), np.ones(4), method)).all()
        for method in ("pearson", "spearman")
    )
    for case in found:
        for method in ("pearson", "spearman"):
            wanted = [
                float("nan") if case[key] is None else case[key] for key in (method, f"{method}_p")
            ]
            for one, other in (("x", "y"), ("y", "x")):
                assert correlation(
                    np.array(case[one]), np.array(case[other]), method
                ) == pytest.approx(wanted, abs=1e-9, nan_ok=True)


@pytest.mark.parametrize(("scheme", "name", "ends"), [("conlleval", "default", "inclusive"), ("IOB2", "strict_IOB2", "exclusive"),
                                                      ("IOB1", "strict_IOB1", "exclusive")])  # fmt: skip
def test_spans_and_their_scores_are_seqevals(scheme: TaggingScheme, name: str, ends: str) -> None:
    said = cases("ner")
    for sequence in said["sequences"]:
        for side in ("gold", "pred"):
            wanted = [
                (kind, first, last + (ends == "inclusive"))
                for kind, first, last in sequence[name][f"{side}_entities_{ends}_end"]
            ]
            assert extract_spans(sequence[side], scheme) == wanted
        alone = score_spans(column([sequence["gold"]]), column([sequence["pred"]]), scheme).micro
        assert (alone.precision, alone.recall, alone.f1) == pytest.approx(
            [sequence[name][key] for key in ("precision", "recall", "f1")], abs=1e-9
        )
    gold, prediction = (
        column(sequence[side] for sequence in said["sequences"]) for side in ("gold", "pred")
    )
    found, corpus = score_spans(gold, prediction, scheme), said["corpus"][name]
    for average in ("micro", "macro"):
        score = getattr(found, average)
        assert (score.precision, score.recall, score.f1) == pytest.approx(
            [corpus[average][key] for key in ("precision", "recall", "f1")], abs=1e-9
        )
    weights = [score.support for score in found.by_type.values()]
    mean = [
        np.average([getattr(score, key) for score in found.by_type.values()], weights=weights)
        for key in ("precision", "recall", "f1")
    ]
    scores = {
        **found.by_type,
        "micro avg": found.micro,
        "macro avg": found.macro,
        "weighted avg": SpanScore(*mean, sum(weights)),
    }
    assert set(scores) == set(corpus["per_type"])
    for kind, wanted in corpus["per_type"].items():
        score = scores[kind]
        assert (score.precision, score.recall, score.f1, score.support) == pytest.approx(
            list(wanted.values()), abs=1e-9
        )


def test_what_conllevals_script_prints_of_tags_is_what_we_count() -> None:
    said = cases("ner")
    gold, prediction = (
        column(" ".join(sequence[side]) for sequence in said["sequences"])
        for side in ("gold", "pred")
    )
    found, accuracy = score_spans(gold, prediction), token_accuracy(gold, prediction)
    assert accuracy == pytest.approx(said["corpus"]["token_accuracy"], abs=1e-9)

    def line(start: str, score: SpanScore) -> str:
        return f"{start} precision: {100 * score.precision:6.2f}%; recall: {100 * score.recall:6.2f}%; FB1: {100 * score.f1:6.2f}"

    ours = [
        line(f"accuracy: {100 * accuracy:6.2f}%;", found.micro),
        *(line(f"{kind:>17}:", score) for kind, score in found.by_type.items()),
    ]
    _, first, *rest = [text for text in said["conlleval_pl_output"] if text]
    assert ours == [first, *(text.rsplit("  ", 1)[0] for text in rest)], (
        "but for the number of spans found, at the end of a type's line"
    )


def test_answers_are_scored_as_by_squads_script_and_version_2_differs_where_nothing_is_left() -> (
    None
):
    said = cases("squad")
    pairs = said["pairs"]
    gold, prediction = (
        column(pair["golds"] for pair in pairs),
        column(pair["prediction"] for pair in pairs),
    )
    found = score_answers(gold, prediction)
    np.testing.assert_allclose(
        found, [(pair["v11_em"], pair["v11_f1"]) for pair in pairs], atol=1e-9
    )
    written = column(
        ANSWER_SEPARATOR.join(texts) for texts in gold
    )  # as the predictions of a task have them
    np.testing.assert_allclose(score_answers(written, prediction), found, atol=1e-9)
    for pair, (match, f1) in zip(pairs, found, strict=True):
        assert normalize_answer(pair["prediction"]) == pair["normalised_prediction"]
        assert [normalize_answer(text) for text in pair["golds"]] == pair["normalised_golds"]
        nothing = not pair["normalised_prediction"] and "" in pair["normalised_golds"]
        assert (pair["v20_em"], pair["v20_f1"]) == pytest.approx(
            (match, 1.0 if nothing else f1), abs=1e-9
        )
    wanted = said["aggregate_without"]
    assert (exact_match(gold, prediction), answer_f1(gold, prediction)) == pytest.approx(
        (wanted["exact_match"], wanted["f1"]), abs=1e-9
    )
    more, wanted = (
        (column([*gold, ["x"]]), column([*prediction, None])),
        said["aggregate_v11_with_one_extra_unanswered_question"],
    )
    assert (exact_match(*more), answer_f1(*more)) == pytest.approx(
        (wanted["exact_match"], wanted["f1"]), abs=1e-9
    )


def library(facts: dict[str, str]) -> Any:
    """sacrebleu's metric with the settings of a signature."""
    if "nc" in facts:
        return CHRF(
            char_order=int(facts["nc"]),
            word_order=int(facts["nw"]),
            whitespace=facts["space"] == "yes",
            eps_smoothing=facts["eff"] == "no",
        )
    smooth, _, value = facts["smooth"].rstrip("]").partition("[")
    return BLEU(lowercase=facts["case"] == "lc", tokenize=facts["tok"], smooth_method=smooth, smooth_value=float(value) if value else None,
                effective_order=facts["eff"] == "yes", force=True)  # fmt: skip


def test_bleu_and_chrf_are_sacrebleus_with_these_settings() -> None:
    said = cases("mt")
    gold, prediction = (
        column(pair[side] for pair in said["pairs"]) for side in ("reference", "hypothesis")
    )
    assert bleu(gold, prediction) == pytest.approx(
        said["expected"]["corpus_bleu_13a"]["score"], abs=1e-9
    )
    assert get_bleu_signature(gold, prediction) == said["expected"]["corpus_bleu_13a"]["signature"]
    assert chrf(gold, prediction) == pytest.approx(
        said["expected"]["corpus_chrF2"]["score"], abs=1e-9
    )


def test_the_sacrebleu_that_is_installed_gives_the_numbers_of_the_other_settings_and_of_sentences() -> (
    None
):
    said = cases("mt")
    gold, prediction = (
        [pair[side] for pair in said["pairs"]] for side in ("reference", "hypothesis")
    )
    for name, wanted in said["expected"].items():
        sentences = name.startswith("sentence")
        corpus = said["expected"][
            name.replace("sentence_bleu_effective_order", "corpus_bleu").replace(
                "sentence_chrF", "corpus_chrF"
            )
        ]
        facts = dict(part.split(":") for part in corpus["signature"].split("|"))
        metric = library(facts | {"eff": "yes"} if "effective_order" in name else facts)
        if sentences:
            found = [
                metric.sentence_score(text, [right]).score
                for text, right in zip(prediction, gold, strict=True)
            ]
            assert found == pytest.approx(
                [one["score"] if isinstance(one, dict) else one for one in wanted], abs=1e-9
            ), name
        else:
            assert metric.corpus_score(prediction, [gold]).score == pytest.approx(
                wanted["score"], abs=1e-9
            ), name


def test_the_paired_bootstrap_over_saved_indices_gives_every_p_and_the_interval() -> None:
    said = cases("bootstrap")
    indices = np.load(golden("metrics") / "bootstrap_indices.npz")["idx"]
    assert indices.shape == (said["resamples"], said["n"])
    pairs = [case for case in said.values() if isinstance(case, dict)]
    assert pairs
    for case in pairs:
        apart = np.array(case["system_a"]) - np.array(case["system_b"])
        found, strict = (
            bootstrap(lambda some, apart=apart: float(apart[some].mean()), indices, ties=ties)
            for ties in (True, False)
        )
        assert found.observed == pytest.approx(case["observed_mean_difference"], abs=1e-9)
        assert (found.low, found.high) == pytest.approx(
            case["percentile_ci95_mean_difference"], abs=1e-9
        )
        assert found.p_not_above == pytest.approx(
            case["p_one_sided_koehn_fraction_of_resamples_with_diff_le_0"], abs=1e-9
        )
        assert strict.p_not_above == pytest.approx(case["p_one_sided_strict_lt_0"], abs=1e-9)
        assert found.p_shifted == pytest.approx(
            case["p_one_sided_berg_kirkpatrick_fraction_diff_ge_2x_observed"], abs=1e-9
        )
        assert strict.p_shifted == pytest.approx(case["p_strict_gt_2x"], abs=1e-9)
        assert found.p_two_sided == pytest.approx(
            case["p_two_sided_centred_fraction_abs_diff_minus_obs_ge_abs_obs"], abs=1e-9
        )
        assert found.p_add_one == pytest.approx(case["p_two_sided_add_one"], abs=1e-9)


def test_bits_per_byte_counts_bytes_of_utf8_and_is_a_ratio_of_sums() -> None:
    said = cases("bits_per_byte")
    texts = [text for text in said["texts"] if text["utf8_bytes"]]
    for text in texts:
        assert len(text["text"].encode()) == text["utf8_bytes"]
        nats, count = sum(text["token_nll_nats"]), len(text["token_nll_nats"])
        assert compute_lm_metrics(
            LossSums({"causal": nats}, {"causal": count}, text["utf8_bytes"])
        )["bits_per_byte"] == pytest.approx(text["bits_per_byte"], abs=1e-9)
    nats, size = (
        sum(sum(text["token_nll_nats"]) for text in texts),
        sum(text["utf8_bytes"] for text in texts),
    )
    found = compute_lm_metrics(
        LossSums({"forward": nats}, {"forward": said["corpus"]["tokens"]}, size)
    )
    assert found["bits_per_byte_forward"] == pytest.approx(
        said["corpus"]["bits_per_byte"], abs=1e-9
    )
