"""Models that only count score what language models score, and the analysis compares the two."""

import json
import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from lineage.analysis.ngram import compare_with_ngrams
from lineage.analysis.records import Comparison, LossCurve, NgramComparison
from lineage.analysis.statistics import estimate_ratio
from lineage.data.task_data import TaskData
from lineage.evaluation import ngram
from lineage.evaluation.evaluate import evaluate_untrained
from lineage.evaluation.ngram_bits import (
    HeldoutLosses,
    NgramBits,
    NgramFile,
    read_ngram_file,
    write_ngram_file,
)
from lineage.language import byte_count
from lineage.report.section import Cell, Table, as_row
from lineage.report.sections import ngrams
from lineage.report.sections.answer import summarize_ngram_comparisons
from lineage.report.sections.ngrams import describe_weak_pairs
from lineage.tasks.info import TaskInfo
from tests.helpers import tiny
from tests.helpers.result_cells import compare_on
from tests.helpers.sections import column_names, find_blocks, read_table, report_of
from tests.helpers.study_rows import build_analysis

TEXTS = tiny.documents()[:40]
HELD_OUT = tiny.documents()[40:]


def test_documents_are_counted_up_to_the_bytes_that_models_read() -> None:
    sizes = np.array([400, 100, 300, 200])
    everything = ngram.select_documents(sizes, text_bytes=5000, seed=0)
    assert everything.tolist() == [0, 1, 2, 3]
    some = ngram.select_documents(sizes, text_bytes=450, seed=0)
    assert 450 <= sizes[some].sum() < 450 + 400 and len(some) < 4
    assert np.array_equal(some, ngram.select_documents(sizes, text_bytes=450, seed=0))
    many = np.full(60, 1_000_000)
    assert many[ngram.select_documents(many, text_bytes=10**9, seed=0)].sum() == 25_000_000


def test_a_sentence_model_predicts_each_sentence_with_its_end_and_any_text() -> None:
    model = ngram.fit_sentence_model(TEXTS, "en")
    one, other, both = model.log_probs(
        ["A dog barks.", "The cat sleeps.", "A dog barks. The cat sleeps."]
    )
    assert both == pytest.approx(one + other)
    without_end, _ = model.log_probs(["A dog barks", "A dog"])
    assert without_end != one
    assert np.isfinite(model.log_probs(["\U0001f989 \u4e2d\u6587 zzqx", ""])).all()


def test_held_out_bits_are_lower_than_without_contexts() -> None:
    model = ngram.fit_sentence_model(TEXTS, "en")
    bits = ngram.measure_heldout_text(model, HELD_OUT, TEXTS)
    unigrams = replace(model, ngrams=replace(model.ngrams, orders=()))
    assert (
        0 < bits.bits_per_byte < ngram.measure_heldout_text(unigrams, HELD_OUT, TEXTS).bits_per_byte
    )
    assert bits.text_bytes == sum(map(byte_count, HELD_OUT))


def test_word_frequency_is_the_product_of_the_words_whatever_their_order() -> None:
    scorer = ngram.count_words(["a b b", "b c"], "en")
    values = scorer.log_probs(["b", "a b c zz", "zz c b a", "yy c b a", "a"])
    assert values[0] == pytest.approx(math.log(4 / 9))
    assert values[1] == values[2] == values[3]
    assert values[0] > values[4]


class LettersAreUnlikely:
    """A scorer that prefers short sentences."""

    def log_probs(self, texts: Sequence[str]) -> np.ndarray:
        return -np.array([len(text) for text in texts], float)


def test_minimal_pairs_have_rows_by_group_and_ties_count_half() -> None:
    items = pd.DataFrame(
        {
            "id": ["test-0", "test-1", "test-2", "test-3"],
            "good": ["a", "a b", "a b", "a"],
            "bad": ["a b", "a", "b a", "b b"],
            "group": ["one", "one", "two", "two"],
        }
    )
    info = TaskInfo(name="pairs", kind="minimal_pairs", metric=["accuracy"])
    method = ngram.KneserNeyMethod(scorer=LettersAreUnlikely())
    result = evaluate_untrained(TaskData(info, {"test": items}), [method])
    values = {row.group: row.value for row in result.rows}
    assert values == {"all": 0.625, "one": 0.5, "two": 0.75}
    assert [*result.predictions["prediction"]] == ["good", "bad", "tie", "good"]
    assert {row.model for row in result.rows} == {"kneser_ney"}


def test_losses_are_read_as_they_were_written(tmp_path: Path) -> None:
    bits = (NgramBits("kneser_ney", "bits_per_byte", 2.125, 1000, 5000),)
    write_ngram_file(tmp_path / "ngram.json", bits, [LOSSES])
    assert read_ngram_file(tmp_path / "ngram.json") == NgramFile(bits, (LOSSES,))
    old = {"models": [vars(bits[0])]}
    (tmp_path / "old.json").write_text(json.dumps(old))
    assert read_ngram_file(tmp_path / "old.json") == NgramFile(bits)


LOSSES = HeldoutLosses(
    "bert",
    "masked tokens",
    5000,
    num_units=(100, 120, 90, 110),
    model_nats=((300.0, 350.0, 280.0, 330.0), (310.0, 370.0, 280.0, 340.0)),
    ngram_nats=(330.0, 410.0, 300.0, 360.0),
    frequency_nats=(600.0, 700.0, 550.0, 650.0),
)
OLD_BITS = (
    NgramBits("gpt", "bits_per_byte", 2.0, 1000, 5000),
    NgramBits("elmo", "bits_per_byte_forward", 1.8, 1000, 5000),
)


def compare(
    ngrams: NgramFile = NgramFile(()),
    curves: Sequence[LossCurve] = (),
    comparisons: Sequence[Comparison] = (),
) -> dict[str, NgramComparison]:
    found = compare_with_ngrams(["elmo", "gpt", "bert"], ngrams, curves, comparisons)
    return {one.model: one for one in found}


def test_the_interval_of_a_difference_is_over_blocks_of_the_mean_of_pretrainings() -> None:
    (bert,) = compare(NgramFile((), (LOSSES,))).values()
    difference = np.array([305.0, 360.0, 280.0, 335.0]) - LOSSES.ngram_nats
    estimate = estimate_ratio(difference / math.log(2), LOSSES.num_units)
    assert bert.difference == pytest.approx(estimate.mean)
    assert (bert.low, bert.high) == (estimate.low, estimate.high)
    assert bert.num_units == 420 and bert.predicted == "masked tokens"
    assert bert.bits == pytest.approx(1280 / 420 / math.log(2))
    assert bert.frequency_bits == pytest.approx(2500 / 420 / math.log(2))
    assert bert.verdict == "better" and not bert.learned_less
    worse = replace(LOSSES, ngram_nats=(280.0, 320.0, 260.0, 310.0))
    (bert,) = compare(NgramFile((), (worse,))).values()
    assert bert.verdict == "worse" and bert.learned_less
    unclear = replace(LOSSES, ngram_nats=(280.0, 410.0, 260.0, 360.0))
    (bert,) = compare(NgramFile((), (unclear,))).values()
    assert bert.verdict == "not shown" and bert.learned_less


def test_reports_without_intervals_compare_the_last_validation() -> None:
    curves = [
        LossCurve("gpt", 0, "bits_per_byte", (1, 2), (1.0, 2.3)),
        LossCurve("gpt", 1, "bits_per_byte", (1, 2), (9.0, 1.9)),
        LossCurve("elmo", 0, "bits_per_byte_forward", (1, 2), (4.0, 1.7)),
        LossCurve("elmo", 0, "bits_per_byte_backward", (1, 2), (4.0, 9.9)),
        LossCurve("bert", 0, "masked_nats", (1, 2), (4.0, 9.9)),
    ]
    found = compare(NgramFile(OLD_BITS), curves)
    assert found.keys() == {"elmo", "gpt"}
    assert found["gpt"].bits == pytest.approx(2.1) and found["gpt"].learned_less
    assert found["gpt"].num_units == 1000 and not found["gpt"].has_interval
    assert not found["elmo"].learned_less


def test_a_model_that_is_better_on_no_minimal_pairs_has_learned_less() -> None:
    found = compare(
        comparisons=[
            compare_on("blimp", "bert", "no significant difference"),
            compare_on("blimp", "bert", "better", init="adapted"),
            compare_on("blimp", "gpt", "worse"),
            compare_on("agreement", "gpt", "better"),
        ]
    )
    assert found["bert"].learned_less and found["bert"].not_better_tasks == ("blimp",)
    assert not found["gpt"].learned_less
    assert found["gpt"].better_tasks == ("agreement",)
    assert found["gpt"].bits is None, "its pretraining has failed"


def find_worse_columns(comparison: NgramComparison) -> list[str]:
    """Return the columns in which the table shows a model as worse than the 5-gram model."""
    section = ngrams.build(report_of(build_analysis(ngram_comparisons=(comparison,))))
    (table,) = find_blocks(section, Table)
    (row,) = table.rows
    return [
        name
        for name, cell in zip(column_names(table), as_row(row).cells, strict=True)
        if isinstance(cell, Cell) and "worse" in cell.css
    ]


def test_held_out_text_decides_where_both_predict_it() -> None:
    """Minimal pairs are few: no significant difference there is no evidence of equality."""
    one = NgramComparison("elmo", 1.45, 1.49, (), ("blimp",), low=-0.05, high=-0.03)
    assert one.is_never_better and not one.learned_less
    assert summarize_ngram_comparisons([one]) == ""
    assert describe_weak_pairs([one]) == (
        "ELMo predicts held-out text better than a 5-gram model, but on blimp it is not "
        "significantly better."
    )
    less = NgramComparison("gpt", 2.1, 2.0, (), ("blimp",), low=0.05, high=0.15)
    assert describe_weak_pairs([less]) == "", "it is among those that have learned less"
    old = replace(less, low=None, high=None)
    taglm = NgramComparison("taglm", None, None, (), ("blimp",))
    marked = {found.model: find_worse_columns(found) for found in (one, less, taglm)}
    assert marked == {"elmo": [], "gpt": ["bits", "difference"], "taglm": ["minimal pairs"]}
    assert find_worse_columns(old) == ["bits", "difference"]


def test_the_page_says_worse_only_where_that_is_shown() -> None:
    worse = NgramComparison("gpt", 2.1, 2.0, (), (), low=0.05, high=0.15, num_units=943_000)
    masked = replace(
        worse, model="bert", predicted="masked tokens", num_units=35_170, frequency_bits=9.1
    )
    unclear = NgramComparison("ulmfit", 1.99, 2.0, (), (), low=-0.03, high=0.01, num_units=9000)
    old = NgramComparison("elmo", 2.1, 2.0, (), (), num_units=22_000)
    assert summarize_ngram_comparisons([worse, masked, unclear]) == (
        "Do not judge GPT and BERT by this run: they predict text worse than counting 5-grams of "
        "the same text. Do not judge ULMFiT by this run: it is not shown to predict text better "
        "than counting 5-grams of the same text."
    )
    assert summarize_ngram_comparisons([old]) == (
        "Do not judge ELMo by this run: it is not shown to have learned more than a 5-gram model "
        "of the same text, which only counts."
    )
    section = ngrams.build(report_of(build_analysis(ngram_comparisons=(worse, masked))))
    (table,) = find_blocks(section, Table)
    assert read_table(table)[1] == {
        "model": "BERT",
        "predicts": "masked tokens",
        "held-out text": "35,170 tokens",
        "bits": "2.100",
        "5-gram": "2.000",
        "token frequency": "9.100",
        "difference": "+0.100 (+0.050 to +0.150)",
    }
