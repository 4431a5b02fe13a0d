"""An ensemble is the mean of its members' probabilities, and is shown as two budgets."""

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from study_rows import GRID, Study

from flows.profiles import merge_params
from lineage import artifacts
from lineage.analysis.build import build_results
from lineage.analysis.records import Analysis, PretrainingBudget
from lineage.config.params import ReportParams, parse_params
from lineage.config.records import read_yaml
from lineage.errors import InputError
from lineage.report import page, publication
from lineage.report.notes import format_reason
from lineage.results import Note, notes_to_json

Results = tuple[pd.DataFrame, Analysis]
ENSEMBLE = dataclasses.replace(GRID, ensembles={"duet": ("elmo", "gpt")})
LABELS = ("no", "other", "yes")


def with_probabilities(folder: Path) -> None:
    """Give the made-up predictions of classifiers the columns of their labels' probabilities, highest where they predict."""
    for path in (folder / "predictions").glob("evaluate*-s*.parquet"):
        table = artifacts.read_table(path)
        rng = np.random.default_rng(len(path.name))
        p_NK = rng.uniform(0.0, 0.3, (len(table), len(LABELS)))
        p_NK[np.arange(len(table)), [LABELS.index(said) for said in table["prediction"]]] = (
            rng.uniform(0.3, 1.0, len(table))
        )
        p_NK /= p_NK.sum(1, keepdims=True)
        artifacts.write_table(
            path,
            table.assign(
                **{
                    f"p {label}": p_NK[:, place].astype(np.float32)
                    for place, label in enumerate(LABELS)
                }
            ),
        )


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    found = Study(tmp_path_factory.mktemp("study")).write()
    with_probabilities(found)
    return found


@pytest.fixture(scope="module")
def results(folder: Path) -> Results:
    return build_results(folder, ENSEMBLE, ReportParams())


def of(table: pd.DataFrame, **where: Any) -> pd.DataFrame:
    return table[(table[list(where)] == pd.Series(where)).all(axis=1)]


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_an_ensemble_chooses_by_the_mean_of_its_members_probabilities(
    seed: int, folder: Path, results: Results
) -> None:
    cell = {
        "init": "pretrained",
        "transfer": "finetuned",
        "label_count": "100",
        "finetune_seed": seed,
        "split": "test",
    }
    stages = [
        folder / f"predictions/evaluate-{name}-0-sentiment.parquet" for name in ("elmo", "gpt")
    ]
    one, other = (of(artifacts.read_table(stage), **cell).set_index("id") for stage in stages)
    columns = [f"p {label}" for label in LABELS]
    means = (one[columns] + other.loc[one.index, columns]) / 2
    right = means.to_numpy().argmax(1) == [LABELS.index(gold) for gold in one["label"]]
    row = of(results[0], **cell, model="duet", task="sentiment", metric="accuracy")
    assert (
        len(row) == 1
        and row["value"].item() == pytest.approx(right.mean())
        and row["num_examples"].item() == 400
    )
    assert any((right != member["correct"].astype(bool)).any() for member in (one, other)), (
        "else this shows nothing"
    )


def test_its_rows_are_those_of_two_budgets(results: Results) -> None:
    table, analysis = results
    own = table[table["model"] == "duet"]
    assert set(own["family"]) == {"ensemble"} and set(own["init"]) == {
        "pretrained",
        "adapted",
        "random",
    }
    assert set(own["text_bytes"]) == {8_000_000}, "each member has read four megabytes"
    assert set(own["task"]) == {"sentiment", "sense"}, (
        "a zero-shot task gives no class probabilities"
    )
    budgets = {one.model: one for one in analysis.budget}

    def values(one: PretrainingBudget) -> np.ndarray:
        return np.array(
            [one.text_bytes, one.body_parameters, one.total_parameters, one.train_flops, one.epochs]
        )

    both = values(budgets["elmo"]) + values(budgets["gpt"])
    assert values(budgets["duet"]) == pytest.approx(both)


def test_it_is_compared_with_its_baseline_and_its_members_and_never_leads(
    results: Results,
) -> None:
    comparisons = results[1].comparisons
    own = {
        (one.comparison_type, one.second.model, one.second.init)
        for one in comparisons
        if one.first.model == "duet"
    }
    assert own == {
        ("pretraining", "duet", "random"),
        ("adaptation", "duet", "pretrained"),
        ("ensemble", "elmo", "pretrained"),
        ("ensemble", "gpt", "pretrained"),
        ("ensemble", "elmo", "adapted"),
        ("ensemble", "gpt", "adapted"),
    }
    assert "duet" not in {one.second.model for one in comparisons if one.first.model != "duet"}


def test_without_ensembles_all_other_results_are_the_same(folder: Path, results: Results) -> None:
    table, plain = build_results(folder, GRID, ReportParams())
    rest = results[0][results[0]["model"] != "duet"].reset_index(drop=True)
    pd.testing.assert_frame_equal(table, rest)
    analysis = results[1]
    kept = dataclasses.replace(
        analysis,
        grid=plain.grid,
        scores=tuple(one for one in analysis.scores if one.system.model != "duet"),
        comparisons=tuple(one for one in analysis.comparisons if one.first.model != "duet"),
        budget=analysis.budget[:-1],
    )
    assert plain == kept


def test_the_pages_mark_it_with_two_budgets_everywhere(results: Results, folder: Path) -> None:
    analysis = results[1]
    stages = {}
    for name in ENSEMBLE.models:
        digest = artifacts.file_digest(folder / f"curves/pretrain-{name}-0.parquet")
        costs = {"seconds": 40.0, "peak_memory_bytes": 7e8}
        stages[f"pretrain@{name}-0"] = {"curve_sha256": digest, **costs}
    budget = publication.add_pretraining_costs(
        analysis.budget, stages, curves_dir=folder / "curves"
    )
    own = budget[-1]
    assert (own.model, own.seconds, own.peak_memory_bytes) == ("duet", 80.0, 7e8)
    pages = page.render_report(dataclasses.replace(analysis, budget=budget))
    for kind, text in pages.items():
        lines = [line for line in text.splitlines() if "duet" in line]
        assert len(lines) > 8 and all("two budgets" in line for line in lines), kind


def test_a_member_that_failed_leaves_the_ensemble_without_a_value(tmp_path: Path) -> None:
    found = Study(tmp_path).write()
    with_probabilities(found)
    path = found / "rows/evaluate-gpt-0-sense.parquet"
    table = artifacts.read_table(path)
    bad = (table["init"] == "pretrained") & (table["transfer"] == "finetuned")
    table.loc[bad, ["value", "status", "reason"]] = [
        None,
        "failed",
        notes_to_json([Note("error", "the loss is nan")]),
    ]
    artifacts.write_table(path, table)
    rows = build_results(found, ENSEMBLE, ReportParams())[0]
    own = rows[(rows["model"] == "duet") & (rows["task"] == "sense")]
    lost = own[(own["init"] == "pretrained") & (own["transfer"] == "finetuned")]
    assert (
        set(lost["status"]) == {"failed"}
        and set(lost["reason"].map(format_reason)) == {"gpt: the loss is nan"}
        and lost["value"].isna().all()
    )
    assert set(own.drop(lost.index)["status"]) == {"ok"}


def test_what_its_predictions_cannot_say_is_left_out(tmp_path: Path) -> None:
    """Whether swapped texts get the same answer is known of the members alone."""
    found = Study(tmp_path).write()
    with_probabilities(found)
    for name in ("elmo", "gpt"):
        path = found / f"rows/evaluate-{name}-0-sentiment.parquet"
        table = artifacts.read_table(path)
        artifacts.write_table(
            path,
            pd.concat(
                [table, table[table["transfer"] == "finetuned"].assign(metric="swap_consistency")]
            ),
        )
    rows = build_results(found, ENSEMBLE, ReportParams())[0]
    assert "swap_consistency" in set(rows[rows["model"] == "gpt"]["metric"])
    own = rows[rows["model"] == "duet"]
    assert len(own) and "swap_consistency" not in set(own["metric"])


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
def test_an_ensemble_that_cannot_be_is_refused_before_anything_runs(
    grid: dict[str, Any], message: str
) -> None:
    shipped = read_yaml(Path(__file__).parent.parent / "params.yaml")
    with pytest.raises(InputError, match=message):
        parse_params(merge_params(shipped, {"grid": grid}), "params.yaml")
