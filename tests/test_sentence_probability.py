"""Of two sentences, the one to which a model gives the higher probability is its answer."""

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch

from lineage.data.task_data import TaskData
from lineage.methods.encoder import EvalContext, EvalRun
from lineage.networks.base import Encoder
from lineage.networks.batch import Batch
from lineage.report.notes import format_notes
from lineage.tasks.info import TaskInfo
from lineage.tokenizers.tokenizer import Tokenizer
from lineage.training import sentence_scores
from tests.helpers import tiny
from tests.helpers.first_word import build_context

RUN = EvalRun("random", "sentence_probability")


def pairs_context(good: list[str], bad: list[str], **options: Any) -> EvalContext:
    """Return a context with an untrained GPT and these pairs, the last of them in a group."""
    info = TaskInfo(name="pairs", kind="minimal_pairs", metric=["accuracy"], language="en")
    ids = [str(number) for number in range(len(good))]
    group = ["x"] * (len(good) - 1) + ["y"]
    pairs = pd.DataFrame({"id": ids, "good": good, "bad": bad, "group": group})
    context = build_context("gpt", TaskData(info, {"test": pairs}))
    return dataclasses.replace(context, **options)


def test_equal_scores_of_a_pair_count_as_half_correct(tmp_path: Path) -> None:
    sentences = ["a b", "b", "c d"]
    context = pairs_context(sentences, sentences)
    runs = tiny.list_runs(tiny.task_info("minimal_pairs"), ("random",), ("all",), (0, 1))
    rows, predictions, *_ = tiny.evaluate_runs(context, runs, tmp_path)
    assert {(row.group, row.value) for row in rows} == {("all", 0.5), ("x", 0.5), ("y", 0.5)}
    assert set(predictions["prediction"]) == {"tie"}


def test_minimal_pairs_report_accuracy_by_sum_and_by_mean_per_piece(tmp_path: Path) -> None:
    """With equally improbable pieces, the sum prefers the shorter sentence and the mean ties."""
    context = pairs_context(["a", "b a"], ["a b c d", "b a c"])

    def score(
        model: Encoder, tokenizer: Tokenizer, texts: list[str], *, limit: int | None
    ) -> np.ndarray:
        word_counts = [len(text.split()) for text in texts]
        return np.array([[-2.0 * count, count] for count in word_counts])

    family = dataclasses.replace(context.checkpoint.family, score_texts=score)
    checkpoint = dataclasses.replace(context.checkpoint, family=family)
    context = dataclasses.replace(context, checkpoint=checkpoint)
    rows, predictions, *_ = tiny.evaluate_runs(context, [RUN], tmp_path)
    values = {row.metric: row.value for row in rows if row.group == "all"}
    assert values == {"accuracy": 1.0, "accuracy_per_piece": 0.5}
    assert predictions["correct"].tolist() == [1.0, 1.0]


def test_a_sentence_longer_than_any_in_training_is_not_scored(tmp_path: Path) -> None:
    limit = pairs_context(["a"], ["b"]).max_input_positions
    assert limit is not None and limit < tiny.checkpoint("gpt").architecture.max_positions, (
        "the limit must come from training"
    )
    context = pairs_context(["a " * (limit - 1) + "a"], ["a b"])
    (row,), *_ = tiny.evaluate_runs(context, [RUN], tmp_path)
    assert row.status == "failed"
    assert f"longer than the {limit}" in format_notes(row.reason)


def test_pairs_are_scored_without_dropout(tmp_path: Path) -> None:
    checkpoint = tiny.checkpoint("gpt", architecture={"dropout": 0.5})
    context = pairs_context(["a b c"], ["a c b"], checkpoint=checkpoint)
    first, second = (
        tiny.evaluate_runs(context, [RUN], tmp_path / folder).predictions for folder in "ab"
    )
    assert len(first) == 1 and first["score"].tolist() == second["score"].tolist()


def test_sentences_with_the_same_encoding_get_the_same_score(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Two sentences that differ only in an unknown word tie, whichever batches they are in.

    A model that reads characters tells them apart.
    """
    monkeypatch.setattr(sentence_scores, "MAX_LOGITS_PER_BATCH", 1)  # one sentence per batch
    batches: list[Batch] = []

    def score(model: Any, batch: Batch) -> sentence_scores.LogProbsAndCounts:
        batches.append(batch)
        return torch.tensor([float(len(batches))]), torch.tensor([3])

    for name, is_distinguished in (("ulmfit", False), ("bert", False), ("elmo", True)):
        texts = ["the zzqq .", "zzqq", "the qqzz .", "zzqq"]
        scores = sentence_scores.score_in_batches(
            score, tiny.model(name), tiny.tokenizer(name), texts, limit=None
        )[:, 0]
        assert (scores[0] != scores[2]) == is_distinguished, name
        assert scores[1] == scores[3] != scores[0], name
