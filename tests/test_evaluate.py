"""Evaluation gives all systems the same labels and extracts features without dropout."""

import dataclasses
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from lineage.answers import text_features
from lineage.answers.number import NumberAnswer
from lineage.data.splits import nested_stratified_subset
from lineage.data.task_data import TaskData
from lineage.evaluation import evaluate as evaluation
from lineage.methods import tfidf
from lineage.methods.encoder import EvalRun
from lineage.methods.frozen_features import FeatureExtractor
from lineage.methods.head_method import HeadMethod, HeadStarter
from lineage.tasks.base import load_kind
from tests.helpers import tiny
from tests.helpers.first_word import build_context
from tests.helpers.fitting import cache_features, extract_features

TEXTS = [
    " ".join(document.split()[: 3 + number]) for number, document in enumerate(tiny.documents()[:9])
]


def run_evaluation(
    data: TaskData, runs: list[EvalRun], cache_dir: Path
) -> evaluation.EvaluationOutput:
    return tiny.evaluate_runs(build_context("gpt", data), runs, cache_dir)


@pytest.mark.usefixtures("without_weights")
def test_models_random_init_and_baselines_of_a_seed_learn_from_the_same_labels(
    task: TaskData, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    train_rows: dict[Any, Any] = {}

    def record(starter: HeadStarter, method: HeadMethod) -> None:
        run = starter.run
        name = run.method if run.init == "none" else run.init
        train_rows[name, run.finetune_seed] = starter.problem.train_rows.tolist()

    tiny.record_starts(monkeypatch, record)
    run_evaluation(
        task,
        [
            EvalRun(init, "linear_probe", 20, seed)
            for init in ("pretrained", "random")
            for seed in (0, 1)
        ],
        tmp_path,
    )
    data = TaskData(dataclasses.replace(task.info, counts={}), task.splits)
    tiny.evaluate_baselines(
        load_kind("text_classification"), data, finetune_seeds=[0, 1], label_counts=[20]
    )
    expected = [
        nested_stratified_subset(task.splits["train"]["label"].to_numpy(), 20, seed=seed).tolist()
        for seed in (0, 1)
    ]
    assert expected[0] != expected[1]
    assert all(
        train_rows[name, seed] == expected[seed]
        for name in ("pretrained", "random", "tfidf", "majority")
        for seed in (0, 1)
    )


def test_the_answer_is_built_from_the_training_labels_and_rows_count_them(
    task: TaskData, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The answer of a regression has its scale; there may be fewer labels than requested."""
    label_counts = []

    def record(starter: HeadStarter, method: HeadMethod) -> None:
        label_counts.append(len(starter.problem.train_rows))

    tiny.record_starts(monkeypatch, record)
    rows, *_ = run_evaluation(
        task, [EvalRun("random", "linear_probe", count, 0) for count in (20, 100)], tmp_path
    )
    assert label_counts == [20, 60]
    row_counts = {(row.label_count, row.train_examples) for row in rows}
    assert row_counts == {("20", 20), ("100", 60)}


@pytest.mark.parametrize("name", ["gpt", "ulmfit"])
def test_features_are_extracted_without_dropout(name: str) -> None:
    model, tokenizer = (
        tiny.model(name, architecture=tiny.dropout_config(name, 0.5)),
        tiny.tokenizer(name),
    )
    items = tiny.encode(name, pd.DataFrame({"id": [*map(str, range(9))], "text": TEXTS}))
    first, second = (extract_features(model.train(), tokenizer, items) for _ in range(2))
    assert np.array_equal(first, second)
    first, second = (cache_features(model.train(), tokenizer, items).layers[3][0] for _ in range(2))
    assert np.array_equal(first, second), "features for a BiLSTM probe"


def test_tfidf_uses_only_words_of_train_and_a_tiny_c_predicts_a_constant() -> None:
    def vectors_shape(test_texts: Sequence[str]) -> tuple[int, ...]:
        vectorizer = text_features.fit_text_vectorizer([["a b"]], "en")
        shape: tuple[int, ...] = text_features.text_features(
            vectorizer, [list(test_texts)], symmetric=False
        ).shape
        return shape

    assert vectors_shape(["a c"]) == vectors_shape(["a d e f"]) == (1, 3)
    train = pd.DataFrame({"text": ["a b", "c d", "a d", "c b"], "label": [1.0, 2.0, 1.0, 2.0]})
    kind = load_kind("text_regression")
    range_with_tiny_C, range_with_large_C = (
        np.ptp(
            tfidf.fit_tfidf(
                kind, NumberAnswer(), train, language="en", symmetric=False, C=C
            ).outputs(train)
        )
        for C in (1e-9, 1e3)
    )
    assert range_with_tiny_C < 1e-3 and range_with_large_C > 0.9


@pytest.mark.usefixtures("without_weights")
def test_the_speed_of_a_frozen_system_includes_its_encoder(
    task: TaskData, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    runs = [EvalRun("pretrained", "linear_probe", "all", seed) for seed in (0, 1)]
    store = FeatureExtractor.store

    def slow_store(self: FeatureExtractor, *args: Any, **kwargs: Any) -> Any:
        start = time.process_time()
        while time.process_time() < start + 1.0:  # waiting would not count
            pass
        return store(self, *args, **kwargs)

    monkeypatch.setattr(FeatureExtractor, "store", slow_store)
    output = run_evaluation(task, runs, tmp_path)
    num_items = sum(map(len, task.splits.values()))
    for run in runs:
        rate = output.costs[run].items_per_second
        assert rate is not None and 0 < rate < num_items, "the features alone took a second"
    assert run_evaluation(task, runs, tmp_path).costs == output.costs, "kept beside predictions"


@pytest.mark.usefixtures("without_weights")
@pytest.mark.parametrize("file_name", ["predictions.parquet", "run.json", "manifest.json"])
def test_a_damaged_finished_run_is_repeated(
    task: TaskData, tmp_path: Path, capsys: pytest.CaptureFixture[str], file_name: str
) -> None:
    runs = [EvalRun("pretrained", "linear_probe", "all", seed) for seed in (0, 1)]
    expected = run_evaluation(task, runs, tmp_path)
    (first, _) = sorted(path for path in tmp_path.iterdir() if path.is_dir())
    content = bytearray((first / file_name).read_bytes())
    content[len(content) // 2] ^= 1
    (first / file_name).write_bytes(content)
    again = run_evaluation(task, runs, tmp_path)
    assert capsys.readouterr().err.count("this finished run is damaged") == 1
    pd.testing.assert_frame_equal(again.predictions, expected.predictions)
