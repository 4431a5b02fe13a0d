"""By which metric ways are compared: the one that a task names first. From the column `correct`, over trials and controls, to the report."""

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from lineage.analysis.build import build_results
from lineage.analysis.ensembles import build_ensembles
from lineage.artifacts import read_table, write_table
from lineage.config.data import Task
from lineage.config.params import Grid, ReportParams
from lineage.data.dataset_stats import compute_dataset_stats, write_dataset_stats
from lineage.evaluation.baselines import evaluate_baselines
from lineage.evaluation.evaluate import evaluate_runs, list_runs
from lineage.evaluation.metrics import CONTRIBUTIONS, METRICS, RANKING_METRICS
from lineage.evaluation.predictions import add_correct_column
from lineage.evaluation.systems import EvalContext
from lineage.evaluation.trials import best_trial
from lineage.results import results_frame
from lineage.tasks.base import choose_metrics, load_kind
from tests import tiny
from tests.study_rows import Study, overlap
from tests.test_ensembles import ENSEMBLE, with_probabilities
from tests.test_folds import made


def unlike(count: int, seed: int) -> pd.DataFrame:
    """Texts of which nine in ten have one label; a word tells it, most of the time."""
    rng = np.random.default_rng(seed)
    rare = rng.random(count) < 0.1
    told = np.where(rng.random(count) < 0.8, rare, rng.random(count) < 0.3)
    return pd.DataFrame(
        {
            "text": [f"{'alarm' if one else 'calm'} {i}" for i, one in enumerate(told)],
            "label": np.where(rare, "rare", "common"),
        }
    )


@pytest.mark.parametrize("metric", ["macro_f1", "matthews"])
@pytest.mark.parametrize("labels", [2, 5])
def test_shares_of_labels_are_the_jackknifes_and_their_mean_is_the_metric(
    metric: str, labels: int
) -> None:
    rng = np.random.default_rng(4)
    gold = np.array(
        [f"l{n}" for n in [*rng.integers(0, labels, 40), labels]], object
    )  # the last label stands there once
    said = np.where(rng.random(41) < 0.6, gold, "l0")
    shares, whole = CONTRIBUTIONS[metric](gold, said), METRICS[metric](gold, said)
    assert shares.mean() == pytest.approx(whole, abs=1e-12)
    left = np.array([METRICS[metric](np.delete(gold, i), np.delete(said, i)) for i in range(41)])
    np.testing.assert_allclose(shares - shares.mean(), 40 * (left.mean() - left), atol=1e-9)
    assert CONTRIBUTIONS[metric](gold[:1], said[:1]) == [METRICS[metric](gold[:1], said[:1])]


def test_every_metric_that_ways_are_compared_by_has_shares() -> None:
    assert CONTRIBUTIONS.keys() == RANKING_METRICS.keys() <= METRICS.keys()


@pytest.mark.parametrize(("kind", "named", "expected"), [
    ("text_classification", None, ["accuracy"]),
    ("text_classification", ("matthews",), ["matthews", "accuracy"]),
    ("text_classification", ("accuracy", "macro_f1"), ["accuracy", "macro_f1"]),
    ("text_regression", ("spearman",), ["spearman", "pearson"]),
    ("extractive_qa", ("exact_match",), ["exact_match", "f1"]),
    ("translation", ("chrf",), ["bleu", "chrf"]),  # chrF has no shares
])  # fmt: skip
def test_what_a_task_names_first_is_what_ways_are_compared_by(
    kind: str, named: tuple[str, ...] | None, expected: list[str]
) -> None:
    assert (
        choose_metrics(Task(kind=kind, generated="synthetic", metric=named), load_kind(kind))
        == expected
    )


def test_trials_are_chosen_by_it() -> None:
    """One trial says the common label always; the other is right less often, and tells labels apart."""
    gold = np.array(["common"] * 80 + ["rare"] * 20, object)
    always, apart = np.full(100, "common", object), np.where(np.arange(100) % 4, gold, "rare")
    for metric, expected in (("accuracy", 0), ("matthews", 1), ("macro_f1", 1)):
        tried = [
            pd.DataFrame(add_correct_column({"label": gold, "prediction": said}, metric)).assign(
                trial=str(n)
            )
            for n, said in enumerate((always, apart))
        ]
        assert best_trial(pd.concat(tried)) == expected, metric


def test_the_report_compares_by_it_and_has_the_others_in_the_rows(tmp_path: Path) -> None:
    frame = unlike(300, 1)
    frame[200:].to_csv(tmp_path / "test.csv", index=False)
    how: dict[str, Any] = {
        "files": {"train": "train.csv", "test": "test.csv"},
        "metric": ["matthews"],
    }
    data = made(tmp_path, frame[:200], **how)
    assert data.info["metric"] == ["matthews", "accuracy"]
    setting = EvalContext(
        tiny.checkpoint("word2vec"),
        data,
        tiny.variant("word2vec").evaluate,
        0,
        1000,
        "fp32",
        tiny.CPU,
    )
    some = [
        cell
        for cell in list_runs(data.info, ("random",), ("all",), (0, 1))
        if cell.transfer == "frozen"
    ]
    rows, predictions = evaluate_runs(
        setting, some, cache_dir=tmp_path / "keep", report_progress=lambda *_: None
    )
    controls = [
        *evaluate_baselines(
            load_kind("text_classification"),
            data,
            split="test",
            finetune_seeds=(0, 1),
            label_counts=("all",),
        )
    ]
    results = tmp_path / "results"
    of_controls = (
        [row for some, _ in controls for row in some],
        pd.concat([one for _, one in controls]),
    )
    for stage, own_rows, own in (
        ("evaluate-word2vec-0-small", rows, predictions),
        ("baselines-small", *of_controls),
    ):
        write_table(results / f"rows/{stage}.parquet", results_frame(own_rows))
        write_table(results / f"predictions/{stage}.parquet", own)
    grid = Grid(("word2vec",), ("small",), (0,), (), (), (0, 1), ("all",))
    tasks = {"small": Task(kind="text_classification", files=how["files"], metric=("matthews",))}
    overlap(results, "small", predictions["id"].unique())
    write_dataset_stats(
        results / "statistics/baselines-small.json",
        compute_dataset_stats(data, grid.finetune_seeds),
    )
    found, analysis = build_results(results, grid, ReportParams(), tasks)
    assert {score.metric for score in analysis.scores} == {"matthews"}
    assert set(found["metric"]) >= {"matthews", "accuracy"}
    for score in analysis.scores:
        own = found[
            (found["metric"] == "matthews")
            & (found["model"] == score.system.model)
            & (found["split"] == "test")
        ]
        assert score.mean == pytest.approx(own["value"].mean())
        assert -1 <= score.ci_low <= score.mean <= score.ci_high <= 1
    baselines = {one.system.model: one for one in analysis.scores if one.system.init == "none"}
    majority = baselines["majority"]
    assert majority.mean == 0 == majority.standard_error_over_items, "it is constant"
    assert baselines["tfidf"].ci_high > baselines["tfidf"].mean > 0.2
    without = build_results(results, grid, ReportParams())[1]
    assert {score.metric for score in without.scores} == {"accuracy"}, "no task names a metric"


def test_an_ensemble_s_examples_add_up_to_it(tmp_path: Path) -> None:
    folder = Study(tmp_path, items=40).write()
    with_probabilities(folder)
    for metric in ("accuracy", "macro_f1"):
        for path in (folder / "rows").glob("evaluate*-sentiment.parquet"):
            own = read_table(path)
            own = own[own["metric"] == "accuracy"]
            write_table(path, pd.concat([own, own.assign(metric="macro_f1")]))
        tasks = {
            "sentiment": Task(kind="text_classification", generated="synthetic", metric=(metric,))
        }
        tables, predictions = build_ensembles(folder, ENSEMBLE, tasks)
        key = ["init", "transfer", "label_count", "finetune_seed", "split"]
        for rows, said in zip(tables, predictions, strict=True):
            own = rows[(rows["task"] == "sentiment") & (rows["metric"] == metric)]
            for row in own.to_dict("records"):
                cell = said[(said[key] == [row[name] for name in key]).all(axis=1)]
                assert cell["correct"].mean() == pytest.approx(row["value"], abs=1e-12)
