"""The report is right when several options are combined.

The tests combine trials with ensembles, probes with ablations, and seeds with failures.
"""

import dataclasses
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from flows.scheduler import count_failed_results
from lineage import artifacts, results
from lineage.analysis.build import build_results, count_trials, write_results_csv
from lineage.analysis.comparisons import (
    best_systems,
    plan_comparisons,
    run_comparisons,
)
from lineage.analysis.records import TrialCounts
from lineage.config.params import ReportParams
from lineage.report import formatting
from lineage.report.section import Table
from lineage.report.sections.adaptation import build
from lineage.report.sections.tasks import format_usage
from lineage.report.sections.what_to_use import describe_intervals
from tests.sections import find_blocks, read_table, report_of
from tests.study_rows import GRID, Study, render_pages
from tests.test_comparisons import ITEMS, REPETITIONS, build_cell


def draw_scores(rng: np.random.Generator, share: float) -> np.ndarray:
    return (rng.random((REPETITIONS, ITEMS)) < share).astype(float)


def test_an_ablation_is_compared_with_the_same_probe_only() -> None:
    rng = np.random.default_rng(11)
    cells = [build_cell(name, draw_scores(rng, 0.6)) for name in ("gpt", "bare")]
    cells += [replace(one, system=replace(one.system, head="bilstm")) for one in cells]
    planned = plan_comparisons(cells, replace(GRID, ablation_of={"bare": "gpt"}))
    heads = [(p.comparison_type, p.first.system.head, p.second.system.head) for p in planned]
    assert heads == [("ablation", "linear", "linear"), ("ablation", "bilstm", "bilstm")]
    counts = [one.num_comparisons for one in run_comparisons(planned)]
    assert counts == [1, 1], "the tests of each probe are corrected separately"


def test_the_best_baseline_is_a_rival_whatever_a_model_is_called() -> None:
    rng = np.random.default_rng(12)
    cells = [
        build_cell("control", draw_scores(rng, 0.7)),
        build_cell("gpt", draw_scores(rng, 0.8)),
        build_cell("tfidf", draw_scores(rng, 0.6), init="none"),
    ]
    assert [one.system.model for one in best_systems(cells)] == ["gpt", "control", "tfidf"]


def trial_rows(trials: list[str], **changes: Any) -> list[results.ResultRow]:
    """Return one row per trial; "chosen" is scored on test, and the others on validation."""
    values: dict[str, Any] = {
        "model": "gpt",
        "family": "gpt",
        "init": "pretrained",
        "transfer": "finetuned",
        "task": "mr",
        "kind": "text_classification",
        "metric": "accuracy",
        "value": 0.7,
        "num_examples": 10,
        "label_count": "100",
        "train_examples": 100,
    }
    values |= changes
    return [
        results.ResultRow(
            **values, trial=trial, split="test" if trial == "chosen" else "validation"
        )
        for trial in trials
    ]


def test_systems_without_trials_do_not_count_as_tuned_less() -> None:
    trials = ["0", "1", "chosen"]
    tfidf = {"model": "tfidf", "family": "tfidf", "init": "none", "transfer": "none"}
    matched = [*trial_rows(trials), *trial_rows(trials, **tfidf)]
    without_choice = [
        *trial_rows(["chosen"], model="duet", family=results.ENSEMBLE_FAMILY),
        *trial_rows(["chosen"], kind="translation", task="de"),
    ]
    table = results.results_frame([*matched, *without_choice])
    tfidf_counts = TrialCounts("tfidf", 2, 2)
    assert count_trials(table) == (TrialCounts("finetune", 2, 2), tfidf_counts)
    fewer = trial_rows(["chosen"], model="bert", family="bert")
    assert count_trials(results.results_frame([*matched, *fewer])) == (
        TrialCounts("finetune", 1, 2),
        tfidf_counts,
    )


def test_a_failed_trial_does_not_count_as_a_failed_result(tmp_path: Path) -> None:
    failed: dict[str, Any] = {
        "status": "failed",
        "reason": [results.Note("error", "the loss is nan")],
        "value": None,
    }
    failed_trials = trial_rows(["0"], **failed)
    chosen = trial_rows(["chosen"])
    for more, count in (([], 0), (trial_rows(["chosen"], model="bert", **failed), 1)):
        table = results.results_frame([*chosen, *failed_trials, *more])
        write_results_csv(tmp_path / "reports" / "results.csv", table)
        assert count_failed_results(tmp_path) == count


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (999_400, "999 kB"),
        (999_700, "1 MB"),
        (999_960_000, "1 GB"),
        (999.6, "1 kB"),
        (12_340, "12.3 kB"),
        (12.3, "12.3 B"),
    ],
)
def test_three_digits_are_rounded_before_their_prefix_is_chosen(value: float, text: str) -> None:
    assert formatting.format_si(value, "B") == text


def test_the_text_on_intervals_names_only_what_was_repeated(tmp_path: Path) -> None:
    grid = replace(
        GRID, tasks=("agreement",), pretrain_seeds=(0, 1), adapt_models=(), adapt_tasks=()
    )
    analysis = build_results(Study(tmp_path, grid=grid).write(), grid, ReportParams())[1]
    text = describe_intervals(analysis)
    assert text.startswith("over items and pretraining seeds") and "fine-tuning" not in text


def change_rows(folder: Path, pattern: str, change: Callable[[pd.DataFrame], pd.DataFrame]) -> None:
    for path in folder.glob(f"rows/{pattern}"):
        artifacts.write_table(path, change(artifacts.read_table(path)))


def test_adapted_results_are_marked_on_extra_test_sets_too(tmp_path: Path) -> None:
    """A loss that fell for some pretraining seeds only is marked, and the seeds are counted."""
    grid = replace(GRID, pretrain_seeds=(0, 1))
    folder = Study(tmp_path, grid=grid).write()

    def raise_loss(table: pd.DataFrame) -> pd.DataFrame:
        is_risen = (
            (table["test_set"] == results.HELDOUT_TEST_SET)
            & (table["model"] == "gpt")
            & (table["init"] == "adapted")
            & (table["pretrain_seed"] == 1)
        )
        return table.assign(value=table["value"].where(~is_risen, 9.0))

    change_rows(folder, "evaluate_adapted-gpt-*.parquet", raise_loss)
    analysis = build_results(folder, grid, ReportParams())[1]
    (table,) = find_blocks(build(report_of(analysis)), Table)
    (line,) = [one for one in read_table(table) if one["model"] == "GPT"]
    assert line["outcome"] == "† fell in 1 of 2 pretrainings"
    assert table.note.startswith("† This loss did not fall")
    score = next(
        one
        for one in analysis.scores
        if (one.system.model, one.system.init, one.system.transfer)
        == ("gpt", "adapted", "finetuned")
    )
    for task in ("sentiment", "sentiment on other"):
        usage = format_usage(analysis, dataclasses.replace(score, task=task))
        assert usage == "adapted †, fine-tuned"


@pytest.mark.parametrize(
    ("status", "text"), [("failed", "1 seed failed"), ("not_applicable", "1 seed not applicable")]
)
def test_a_lost_seed_is_shown_with_its_status_on_both_pages(
    status: str, text: str, tmp_path: Path
) -> None:
    folder = Study(tmp_path, items=40).write()

    why = results.notes_to_json([results.Note("error", "why")])

    def lose_seed(table: pd.DataFrame) -> pd.DataFrame:
        is_lost = (
            (table["init"] == "pretrained")
            & (table["transfer"] == "finetuned")
            & (table["label_count"] == "100")
            & (table["finetune_seed"] == 1)
            & (table["split"] == "test")
        )
        return table.assign(
            value=table["value"].mask(is_lost),
            status=table["status"].mask(is_lost, status),
            reason=table["reason"].mask(is_lost, why),
        )

    change_rows(folder, "evaluate-gpt-0-sentiment.parquet", lose_seed)
    analysis = build_results(folder, GRID, ReportParams())[1]
    pages = render_pages(analysis)
    assert f"; {text} |" in pages["md"] and f'title="why">{text}<' in pages["html"]
