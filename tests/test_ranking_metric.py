"""Systems are compared by the metric that a task names first.

The tests follow it from the column `correct` over trials and baselines to the report.
"""

from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from lineage.analysis.build import build_results
from lineage.analysis.ensembles import build_ensembles
from lineage.answers.metrics import CONTRIBUTIONS, METRICS, RANKING_METRICS
from lineage.artifacts import read_table, write_table
from lineage.config.data import Task
from lineage.config.params import Grid, ReportParams
from lineage.data.dataset_stats import compute_dataset_stats, write_dataset_stats
from lineage.methods.heads import FittedHead, StartedHead
from lineage.methods.linear_probe import LinearProbeMethod
from lineage.methods.trials import Trial, fit_best_trial
from lineage.results import results_frame
from lineage.tasks.base import choose_metrics, load_kind
from tests.helpers import tiny
from tests.helpers.study_rows import (
    ENSEMBLE,
    Study,
    analyze,
    with_probabilities,
    write_no_ngrams,
    write_overlap,
)
from tests.helpers.tasks import build_table_task


def build_imbalanced_rows(count: int, seed: int) -> pd.DataFrame:
    """Return texts of which nine in ten have one label.

    One of two words predicts the label most of the time.
    """
    rng = np.random.default_rng(seed)
    rare = rng.random(count) < 0.1
    has_signal_word = np.where(rng.random(count) < 0.8, rare, rng.random(count) < 0.3)
    return pd.DataFrame(
        {
            "text": [
                f"{'alarm' if signal else 'calm'} {i}" for i, signal in enumerate(has_signal_word)
            ],
            "label": np.where(rare, "rare", "common"),
        }
    )


@pytest.mark.parametrize("metric", ["macro_f1", "matthews"])
@pytest.mark.parametrize("num_labels", [2, 5])
def test_contributions_match_the_jackknife_and_average_to_the_metric(
    metric: str, num_labels: int
) -> None:
    rng = np.random.default_rng(4)
    # The last label occurs once.
    labels = np.array([f"l{n}" for n in [*rng.integers(0, num_labels, 40), num_labels]], object)
    predictions = np.where(rng.random(41) < 0.6, labels, "l0")
    contributions = CONTRIBUTIONS[metric](labels, predictions)
    score = METRICS[metric](labels, predictions)
    assert contributions.mean() == pytest.approx(score, abs=1e-12)
    leave_one_out = np.array(
        [METRICS[metric](np.delete(labels, i), np.delete(predictions, i)) for i in range(41)]
    )
    np.testing.assert_allclose(
        contributions - contributions.mean(), 40 * (leave_one_out.mean() - leave_one_out), atol=1e-9
    )
    assert CONTRIBUTIONS[metric](labels[:1], predictions[:1]) == [
        METRICS[metric](labels[:1], predictions[:1])
    ]


def test_every_ranking_metric_has_contributions() -> None:
    assert CONTRIBUTIONS.keys() == RANKING_METRICS.keys() <= METRICS.keys()


@pytest.mark.parametrize(("kind", "named", "expected"), [
    ("text_classification", None, ["accuracy"]),
    ("text_classification", ("matthews",), ["matthews", "accuracy"]),
    ("text_classification", ("accuracy", "macro_f1"), ["accuracy", "macro_f1"]),
    ("text_regression", ("spearman",), ["spearman", "pearson"]),
    ("extractive_qa", ("exact_match",), ["exact_match", "f1"]),
    ("translation", ("chrf",), ["bleu", "chrf"]),  # chrF has no contributions
])  # fmt: skip
def test_the_first_metric_of_a_task_is_used_for_comparison(
    kind: str, named: tuple[str, ...] | None, expected: list[str]
) -> None:
    assert (
        choose_metrics(Task(kind=kind, generated="synthetic", metric=named), load_kind(kind))
        == expected
    )


@pytest.mark.parametrize(
    ("metric", "expected"), [("accuracy", 0), ("matthews", 1), ("macro_f1", 1)]
)
def test_trials_are_chosen_by_the_ranking_metric(metric: str, expected: int) -> None:
    """One trial always predicts the common label; the other is less accurate but separates both."""
    labels = np.array(["common"] * 80 + ["rare"] * 20, object)
    constant_prediction = np.full(100, "common", object)
    varied_prediction = np.where(np.arange(100) % 4, labels, "rare")
    predictions = {"0": constant_prediction, "1": varied_prediction, "2": varied_prediction}
    settings = LinearProbeMethod(trials=(Trial(l2=0.1), Trial(l2=0.2), Trial(l2=0.3)))
    outcome = fit_best_trial(
        settings,
        start=lambda settings: StartedHead(FittedHead(lambda part: (np.zeros(0), None), dict)),
        predict_validation=lambda head, trial: pd.DataFrame(
            {"label": labels, "prediction": predictions[trial]}
        ),
        score=partial(load_kind("text_classification").answer.score, metric),
    )
    assert outcome.best.number == expected, "ties go to the first"


def test_the_report_compares_by_the_first_metric_and_keeps_the_others_in_rows(
    tmp_path: Path,
) -> None:
    frame = build_imbalanced_rows(300, 1)
    frame[200:].to_csv(tmp_path / "test.csv", index=False)
    task_keys: dict[str, Any] = {
        "files": {"train": "train.csv", "test": "test.csv"},
        "metric": ["matthews"],
    }
    data = build_table_task(tmp_path, frame[:200], **task_keys)
    assert data.info.metric == ["matthews", "accuracy"]
    context = tiny.eval_context("word2vec", data, tiny.model_config("word2vec").evaluate)
    runs = tiny.list_runs(data.info, ("random",), ("all",), (0, 1), method="_probe")
    rows, predictions, *_ = tiny.evaluate_runs(context, runs, tmp_path / "keep")
    baseline_cells = tiny.evaluate_baselines(
        load_kind("text_classification"), data, finetune_seeds=(0, 1)
    )
    results = tmp_path / "results"
    baseline_rows = [row for cell_rows, _ in baseline_cells for row in cell_rows]
    baseline_predictions = pd.concat([table for _, table in baseline_cells])
    for stage, stage_rows, stage_predictions in (
        ("evaluate-word2vec-0-small", rows, predictions),
        ("baselines-small", baseline_rows, baseline_predictions),
    ):
        write_table(results / f"rows/{stage}.parquet", results_frame(stage_rows))
        write_table(results / f"predictions/{stage}.parquet", stage_predictions)
    grid = Grid(("word2vec",), ("small",), (0,), (), (), (), (0, 1), ("all",))
    tasks = {
        "small": Task(kind="text_classification", files=task_keys["files"], metric=("matthews",))
    }
    write_no_ngrams(results)
    write_overlap(results, "small", predictions["id"].unique())
    write_dataset_stats(
        results / "statistics/baselines-small.json",
        compute_dataset_stats(data, grid.finetune_seeds),
    )
    result_rows, analysis = build_results(results, grid, ReportParams(), tasks)
    assert {score.metric for score in analysis.scores} == {"matthews"}
    assert set(result_rows["metric"]) >= {"matthews", "accuracy"}
    for score in analysis.scores:
        rows_of_model = result_rows[
            (result_rows["metric"] == "matthews")
            & (result_rows["model"] == score.system.model)
            & (result_rows["split"] == "test")
        ]
        assert score.mean == pytest.approx(rows_of_model["value"].mean())
        assert -1 <= score.ci_low <= score.mean <= score.ci_high <= 1
    baselines = {
        score.system.model: score for score in analysis.scores if score.system.init == "none"
    }
    majority = baselines["majority"]
    assert majority.mean == 0, "the majority class is constant"
    assert baselines["tfidf"].ci_high > baselines["tfidf"].mean > 0.2
    without = analyze(results, grid)
    assert {score.metric for score in without.scores} == {"accuracy"}, (
        "without tasks, no metric is named"
    )


def test_an_ensemble_s_correct_column_averages_to_its_score(tmp_path: Path) -> None:
    folder = Study(tmp_path, items=40).write()
    with_probabilities(folder)
    for metric in ("accuracy", "macro_f1"):
        for path in (folder / "rows").glob("evaluate*-sentiment.parquet"):
            metric_rows = read_table(path)
            metric_rows = metric_rows[metric_rows["metric"] == "accuracy"]
            write_table(path, pd.concat([metric_rows, metric_rows.assign(metric="macro_f1")]))
        tasks = {
            "sentiment": Task(kind="text_classification", generated="synthetic", metric=(metric,))
        }
        tables, predictions = build_ensembles(folder, ENSEMBLE, tasks)
        key = ["init", "transfer", "label_count", "finetune_seed", "split"]
        for rows, table in zip(tables, predictions, strict=True):
            metric_rows = rows[(rows["task"] == "sentiment") & (rows["metric"] == metric)]
            for row in metric_rows.to_dict("records"):
                cell = table[(table[key] == [row[name] for name in key]).all(axis=1)]
                assert cell["correct"].mean() == pytest.approx(row["value"], abs=1e-12)
