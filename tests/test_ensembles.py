"""An ensemble averages the probabilities of its members and counts as two budgets."""

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from lineage import artifacts
from lineage.analysis.build import build_results
from lineage.analysis.records import Analysis, PretrainingBudget
from lineage.config.params import ReportParams, parse_params
from lineage.config.records import read_yaml
from lineage.config.resolve import merge_trees
from lineage.errors import InputError
from lineage.report.costs import add_pretraining_costs
from lineage.results import Note, notes_to_json
from tests.helpers.notes import format_reason
from tests.helpers.study_rows import (
    ENSEMBLE,
    GRID,
    LABEL_NAMES,
    Study,
    render_pages,
    with_probabilities,
)

Results = tuple[pd.DataFrame, Analysis]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    results_dir = Study(tmp_path_factory.mktemp("study")).write()
    with_probabilities(results_dir)
    return results_dir


@pytest.fixture(scope="module")
def results(folder: Path) -> Results:
    return build_results(folder, ENSEMBLE, ReportParams())


def select_rows(table: pd.DataFrame, **where: Any) -> pd.DataFrame:
    """Return the rows with these values."""
    return table[(table[list(where)] == pd.Series(where)).all(axis=1)]


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_an_ensemble_predicts_by_the_mean_probability_of_its_members(
    seed: int, folder: Path, results: Results
) -> None:
    cell = {
        "init": "pretrained",
        "transfer": "finetuned",
        "label_count": "100",
        "finetune_seed": seed,
        "split": "test",
    }
    paths = [
        folder / f"predictions/evaluate-{name}-0-sentiment.parquet" for name in ("elmo", "gpt")
    ]
    elmo_rows, gpt_rows = (
        select_rows(artifacts.read_table(path), **cell).set_index("id") for path in paths
    )
    columns = [f"p {label}" for label in LABEL_NAMES]
    means = (elmo_rows[columns] + gpt_rows.loc[elmo_rows.index, columns]) / 2
    is_correct = means.to_numpy().argmax(1) == [
        LABEL_NAMES.index(label) for label in elmo_rows["label"]
    ]
    rows = select_rows(results[0], **cell, model="duet", task="sentiment", metric="accuracy")
    assert len(rows) == 1
    assert rows["value"].item() == pytest.approx(is_correct.mean())
    assert rows["num_examples"].item() == 400
    assert any(
        (is_correct != member["correct"].astype(bool)).any() for member in (elmo_rows, gpt_rows)
    ), "the ensemble must differ from a member"


def test_ensemble_rows_add_the_budgets_of_both_members(results: Results) -> None:
    table, analysis = results
    ensemble_rows = table[table["model"] == "duet"]
    assert set(ensemble_rows["family"]) == {"ensemble"}
    assert set(ensemble_rows["init"]) == {"pretrained", "adapted", "random"}
    assert set(ensemble_rows["text_bytes"]) == {8_000_000}, "each member read four megabytes"
    assert set(ensemble_rows["task"]) == {"sentiment", "sense"}, (
        "a zero-shot task gives no class probabilities"
    )
    budgets = {budget.model: budget for budget in analysis.budget}

    def budget_values(budget: PretrainingBudget) -> np.ndarray:
        return np.array(
            [
                budget.text_bytes,
                budget.body_parameters,
                budget.total_parameters,
                budget.train_flops,
                budget.epochs,
            ]
        )

    expected = budget_values(budgets["elmo"]) + budget_values(budgets["gpt"])
    assert budget_values(budgets["duet"]) == pytest.approx(expected)


def test_an_ensemble_is_compared_only_with_its_baseline_and_members_and_never_leads(
    results: Results,
) -> None:
    comparisons = results[1].comparisons
    ensemble_comparisons = {
        (comparison.comparison_type, comparison.second.model, comparison.second.init)
        for comparison in comparisons
        if comparison.first.model == "duet"
    }
    assert ensemble_comparisons == {
        ("pretraining", "duet", "random"),
        ("adaptation", "duet", "pretrained"),
        ("ensemble", "elmo", "pretrained"),
        ("ensemble", "gpt", "pretrained"),
        ("ensemble", "elmo", "adapted"),
        ("ensemble", "gpt", "adapted"),
    }
    assert "duet" not in {
        comparison.second.model for comparison in comparisons if comparison.first.model != "duet"
    }


def test_all_other_results_are_the_same_without_ensembles(folder: Path, results: Results) -> None:
    table, expected_analysis = build_results(folder, GRID, ReportParams())
    other_rows = results[0][results[0]["model"] != "duet"].reset_index(drop=True)
    pd.testing.assert_frame_equal(table, other_rows)
    analysis = results[1]
    other_analysis = dataclasses.replace(
        analysis,
        grid=expected_analysis.grid,
        scores=tuple(record for record in analysis.scores if record.system.model != "duet"),
        comparisons=tuple(
            record for record in analysis.comparisons if record.first.model != "duet"
        ),
        budget=analysis.budget[:-1],
    )
    assert expected_analysis == other_analysis


def test_the_pages_mark_an_ensemble_with_two_budgets_everywhere(
    results: Results, folder: Path
) -> None:
    analysis = results[1]
    stages = {}
    for name in ENSEMBLE.models:
        digest = artifacts.file_digest(folder / f"curves/pretrain-{name}-0.parquet")
        costs = {"seconds": 40.0, "peak_memory_bytes": 7e8}
        stages[f"pretrain@{name}-0"] = {"curve_sha256": digest, **costs}
    budget = add_pretraining_costs(analysis.budget, stages, curves_dir=folder / "curves")
    ensemble_budget = budget[-1]
    assert (ensemble_budget.model, ensemble_budget.seconds, ensemble_budget.peak_memory_bytes) == (
        "duet",
        80.0,
        7e8,
    )
    pages = render_pages(dataclasses.replace(analysis, budget=budget))
    for kind, text in pages.items():
        lines = [line for line in text.splitlines() if "duet" in line]
        assert len(lines) > 8 and all("two budgets" in line for line in lines), kind


def test_a_member_that_failed_leaves_the_ensemble_without_a_value(tmp_path: Path) -> None:
    results_dir = Study(tmp_path, items=40).write()
    with_probabilities(results_dir)
    path = results_dir / "rows/evaluate-gpt-0-sense.parquet"
    table = artifacts.read_table(path)
    is_failed = (table["init"] == "pretrained") & (table["transfer"] == "finetuned")
    table.loc[is_failed, ["value", "status", "reason"]] = [
        None,
        "failed",
        notes_to_json([Note("error", "the loss is nan")]),
    ]
    artifacts.write_table(path, table)
    rows = build_results(results_dir, ENSEMBLE, ReportParams())[0]
    ensemble_rows = rows[(rows["model"] == "duet") & (rows["task"] == "sense")]
    failed_rows = ensemble_rows[
        (ensemble_rows["init"] == "pretrained") & (ensemble_rows["transfer"] == "finetuned")
    ]
    assert set(failed_rows["status"]) == {"failed"}
    assert set(failed_rows["reason"].map(format_reason)) == {"gpt: the loss is nan"}
    assert failed_rows["value"].isna().all()
    assert set(ensemble_rows.drop(failed_rows.index)["status"]) == {"ok"}


def test_metrics_that_need_more_than_the_predictions_are_left_out(tmp_path: Path) -> None:
    """Whether swapped texts get the same answer is known only for the members."""
    results_dir = Study(tmp_path, items=40).write()
    with_probabilities(results_dir)
    for name in ("elmo", "gpt"):
        path = results_dir / f"rows/evaluate-{name}-0-sentiment.parquet"
        table = artifacts.read_table(path)
        finetuned_rows = table[table["transfer"] == "finetuned"]
        extra_rows = finetuned_rows.assign(metric="swap_consistency")
        artifacts.write_table(path, pd.concat([table, extra_rows]))
    rows = build_results(results_dir, ENSEMBLE, ReportParams())[0]
    assert "swap_consistency" in set(rows[rows["model"] == "gpt"]["metric"])
    ensemble_rows = rows[rows["model"] == "duet"]
    assert len(ensemble_rows)
    assert "swap_consistency" not in set(ensemble_rows["metric"])


@pytest.mark.parametrize(
    ("grid", "message"),
    [
        (
            {"ensembles": {"duet": ["gpt", "gtp"]}},
            r"grid.ensembles.duet: 'gtp' has no entry in grid.models; did you mean 'gpt'\?",
        ),
        (
            {"ensembles": {"duet": ["gpt", "gpt"]}},
            "grid.ensembles.duet: found gpt, gpt; name two different models",
        ),
        (
            {"ensembles": {"duet": ["gpt"]}},
            "grid.ensembles.duet: found gpt; name two different models",
        ),
        ({"ensembles": {"bert": ["gpt", "elmo"]}}, "grid.ensembles: the name 'bert' must"),
        (
            {"ensembles": {"duet": ["gpt", "elmo"]}, "adapt_models": ["gpt"]},
            "only one of its members is in grid.adapt_models",
        ),
    ],
)
def test_an_invalid_ensemble_is_refused_when_params_are_parsed(
    grid: dict[str, Any], message: str
) -> None:
    params = read_yaml(Path(__file__).parent.parent / "params.yaml")
    with pytest.raises(InputError, match=message):
        parse_params(merge_trees(params, {"grid": grid}), "params.yaml")
