"""Models that only count score what language models score, and the analysis compares the two."""

import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest

from lineage.analysis.ngram import compare_with_ngrams
from lineage.analysis.records import Comparison, LossCurve, NgramComparison
from lineage.data.task_data import TaskData
from lineage.evaluation import ngram
from lineage.evaluation.evaluate import evaluate_untrained
from lineage.evaluation.kneser_ney import KneserNey
from lineage.evaluation.ngram_bits import NgramBits, read_ngram_bits, write_ngram_bits
from lineage.language import byte_count
from lineage.networks.base import LanguageModelFamily
from lineage.report.section import Cell, Table, as_row
from lineage.report.sections import ngrams
from lineage.report.sections.answer import summarize_ngram_comparisons
from lineage.report.sections.ngrams import (
    describe_ngram_comparisons,
    describe_weak_pairs,
)
from lineage.tasks.info import TaskInfo
from lineage.training.loop import validate
from lineage.training.objectives import compute_lm_metrics
from lineage.training.pretrain import to_validation_settings
from lineage.training.train_run import VALIDATION_BATCHES
from tests.helpers import tiny
from tests.helpers.result_cells import compare_on
from tests.helpers.sections import column_names, find_blocks, report_of
from tests.helpers.study_rows import build_analysis

PREDICT_NEXT_TOKEN = ("elmo", "gpt", "gpt_modern", "taglm", "ulmfit")
TEXTS = tiny.documents()[:40]
HELD_OUT = tiny.documents()[40:]


def write_tokens(name: str, folder: Path) -> Path:
    """Write the documents as a model's tokens, the same for training and validation."""
    folder.mkdir()
    tiny.tokenizer(name).save(folder)
    for split in ("train", "valid"):
        tiny.corpus(name).save(folder, split)
    return folder


def measure(name: str, tokens_dir: Path) -> NgramBits:
    config = tiny.model_config(name)
    fitted = ngram.ModelNgrams(np.arange(len(tiny.documents())))
    return fitted.measure(name, config.family, config.pretrain, tokens_dir)


def test_the_families_that_predict_the_next_token_say_so() -> None:
    families = {name: tiny.model_config(name).family for name in tiny.FAMILIES}
    found = {name for name, family in families.items() if family.predicts_next_token}
    assert found == {*PREDICT_NEXT_TOKEN}


@pytest.mark.parametrize("name", PREDICT_NEXT_TOKEN)
def test_an_ngram_model_predicts_the_tokens_of_a_models_validation(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With one nat for each token, the bits tell how many tokens were predicted."""
    config = tiny.model_config(name)
    family = config.family
    assert isinstance(family, LanguageModelFamily)
    sampler = family.batch_sampler(
        tiny.corpus(name), tiny.tokenizer(name), to_validation_settings(config.pretrain), seed=0
    )
    sums = validate(
        tiny.model(name),
        family.objective,
        sampler,
        max_batches=VALIDATION_BATCHES,
        precision="fp32",
    )
    one_nat = SimpleNamespace(log_probs=lambda ids_N, is_start_N: np.where(is_start_N, 0.0, -1.0))
    monkeypatch.setattr(ngram, "fit_kneser_ney", lambda *_, **__: one_nat)
    bits = measure(name, write_tokens(name, tmp_path / "tokens"))
    assert bits.metric in compute_lm_metrics(sums)
    direction = {"bits_per_byte": "causal"}.get(bits.metric, "forward")
    num_predicted = bits.bits_per_byte * math.log(2) * bits.text_bytes
    assert num_predicted == pytest.approx(sums.target_counts[direction])
    assert bits.text_bytes == sums.text_bytes
    assert bits.train_bytes == tiny.corpus(name).text_bytes


@pytest.mark.parametrize("name", ["gpt", "elmo"])
def test_a_context_ends_at_the_window_unless_the_model_carries_its_state(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    starts: list[int] = []
    original = KneserNey.log_probs

    def count_starts(self: KneserNey, ids_N: np.ndarray, is_start_N: np.ndarray) -> np.ndarray:
        starts.append(int(is_start_N.sum()))
        return original(self, ids_N, is_start_N)

    monkeypatch.setattr(KneserNey, "log_probs", count_starts)
    bits = measure(name, write_tokens(name, tmp_path / "tokens"))
    assert 0 < bits.bits_per_byte < 8
    batch_size = tiny.model_config(name).pretrain.batch_size
    windows = VALIDATION_BATCHES * batch_size
    assert starts == [windows if name == "gpt" else batch_size]


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


def test_bits_are_read_as_they_were_written(tmp_path: Path) -> None:
    bits = (NgramBits("gpt", "bits_per_byte", 2.125, 1000, 5000),)
    write_ngram_bits(tmp_path / "ngram.json", bits)
    assert read_ngram_bits(tmp_path / "ngram.json") == bits


BITS = [
    NgramBits("gpt", "bits_per_byte", 2.0, 1000, 5000),
    NgramBits("elmo", "bits_per_byte_forward", 1.8, 1000, 5000),
]


def compare(
    curves: Sequence[LossCurve] = (), comparisons: Sequence[Comparison] = ()
) -> dict[str, NgramComparison]:
    found = compare_with_ngrams(["elmo", "gpt", "bert"], BITS, curves, comparisons)
    return {one.model: one for one in found}


def test_a_model_with_more_bits_at_its_end_has_learned_less() -> None:
    curves = [
        LossCurve("gpt", 0, "bits_per_byte", (1, 2), (1.0, 2.3)),
        LossCurve("gpt", 1, "bits_per_byte", (1, 2), (9.0, 1.9)),
        LossCurve("elmo", 0, "bits_per_byte_forward", (1, 2), (4.0, 1.7)),
        LossCurve("elmo", 0, "bits_per_byte_backward", (1, 2), (4.0, 9.9)),
        LossCurve("bert", 0, "masked_nats", (1, 2), (4.0, 9.9)),
    ]
    found = compare(curves)
    assert found.keys() == {"elmo", "gpt"}
    assert found["gpt"].bits_per_byte == pytest.approx(2.1) and found["gpt"].learned_less
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
    assert found["gpt"].bits_per_byte is None, "its pretraining has failed"


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


def test_bits_per_byte_decide_where_both_models_have_them() -> None:
    """Minimal pairs are few: no significant difference there is no evidence of equality."""
    one = NgramComparison("elmo", 1.45, 1.49, (), ("blimp",))
    assert one.is_never_better and not one.learned_less
    assert summarize_ngram_comparisons([one]) == "" and describe_ngram_comparisons([one]) == []
    assert describe_weak_pairs([one]) == (
        "ELMo predicts held-out text better than a 5-gram model, but on blimp it is not "
        "significantly better."
    )
    less = NgramComparison("gpt", 2.1, 2.0, (), ("blimp",))
    assert describe_weak_pairs([less]) == "", "it is among those that have learned less"
    bert = NgramComparison("bert", None, None, (), ("blimp",))
    marked = {comparison.model: find_worse_columns(comparison) for comparison in (one, less, bert)}
    assert marked == {"elmo": [], "gpt": ["bits per byte"], "bert": ["minimal pairs"]}
