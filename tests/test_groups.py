"""Scores by group are the means of each model's best system in every group of a task."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from lineage import artifacts
from lineage.analysis.build import build_results
from lineage.analysis.cells import SYSTEM_COLUMNS, system_key
from lineage.analysis.groups import sort_groups
from lineage.analysis.records import Analysis, Setting
from lineage.config.params import ReportParams
from lineage.data.task_data import TaskData
from lineage.results import results_frame
from lineage.tasks.base import load_kind
from tests.helpers import tiny
from tests.helpers.chance_study import TASK_KEYS, analyze_study, build_choices
from tests.helpers.study_rows import SENSE_GRID, Study, render_pages
from tests.helpers.tasks import build_table_task, build_task_items

KEY_COLUMNS = [
    "model",
    "init",
    "transfer",
    "head",
    "label_count",
    "pretrain_seed",
    "finetune_seed",
    "split",
]


def add_groups(folder: Path, task: str) -> pd.DataFrame:
    """Put every third item of a task in the group `rare` and the others in `often`.

    Rows are added as an evaluation writes them. The test predictions are returned.
    """
    test_predictions = []
    for path in sorted((folder / "predictions").glob(f"*-{task}.parquet")):
        predictions = artifacts.read_table(path)
        rows = artifacts.read_table(folder / "rows" / path.name)
        is_rare = predictions["id"].str.rpartition("-")[2].astype(int) % 3 == 0
        predictions["group"] = np.where(is_rare, "rare", "often")
        scores = (
            predictions.groupby([*KEY_COLUMNS, "group"], dropna=False)["correct"]
            .agg(["mean", "size"])
            .reset_index()
        )
        group_rows = (
            rows[rows["family"] != "ceiling"].drop(columns=["group"]).merge(scores, on=KEY_COLUMNS)
        )
        group_rows = group_rows.assign(value=group_rows["mean"], num_examples=group_rows["size"])[
            rows.columns
        ]
        artifacts.write_table(path, predictions)
        artifacts.write_table(
            folder / "rows" / path.name, pd.concat([rows, group_rows]).astype(rows.dtypes)
        )
        test_predictions.append(predictions[predictions["split"] == "test"])
    return pd.concat(test_predictions)


@pytest.fixture(scope="module")
def study(tmp_path_factory: pytest.TempPathFactory) -> tuple[Analysis, pd.DataFrame]:
    folder = Study(tmp_path_factory.mktemp("study"), SENSE_GRID).write()
    predictions = add_groups(folder, "sense")
    return build_results(folder, SENSE_GRID, ReportParams())[1], predictions


def test_groups_have_the_means_of_best_systems_at_the_largest_label_count(
    study: tuple[Analysis, pd.DataFrame],
) -> None:
    analysis, predictions = study
    (group_scores,) = analysis.group_scores
    assert (group_scores.task, group_scores.label_count, group_scores.train_examples) == (
        "sense",
        "all",
        600,
    )
    sizes = [(group.group, group.num_examples) for group in group_scores.groups]
    assert sizes == [("often", 266), ("rare", 134)]
    (ranking,) = [one for one in analysis.rankings if one.setting == Setting("sense", "all")]
    assert group_scores.systems == tuple(one.system for one in ranking.standings)
    predictions_of_all_labels = predictions[predictions["label_count"] == "all"]
    for position, system in enumerate(group_scores.systems):
        is_system = (predictions_of_all_labels[list(SYSTEM_COLUMNS)] == [*system_key(system)]).all(
            axis=1
        )
        for group in group_scores.groups:
            correct = predictions_of_all_labels.loc[
                is_system & (predictions_of_all_labels["group"] == group.group), "correct"
            ]
            assert group.values[position] == pytest.approx(correct.mean(), abs=1e-12)


def test_pages_mark_the_best_system_of_a_group_only_without_ties(
    study: tuple[Analysis, pd.DataFrame],
) -> None:
    analysis, _ = study
    (group_scores,) = analysis.group_scores
    often, rare = group_scores.groups
    num_others = len(group_scores.systems) - 2
    groups = (
        replace(often, values=(0.75, 0.5, *[0.25] * num_others)),
        replace(rare, values=(0.75, 0.7501, None, *[0.1] * (num_others - 1))),
    )
    pages = render_pages(replace(analysis, group_scores=(replace(group_scores, groups=groups),)))
    assert "| often | 266 | **75.0** | 50.0 | 25.0 |" in pages["md"]
    assert "| rare | 134 | 75.0 | 75.0 | – |" in pages["md"]
    assert pages["html"].count("<b>75.0</b>") == 1


def test_a_group_without_a_value_in_one_repetition_has_no_mean(tmp_path: Path) -> None:
    folder = Study(tmp_path, SENSE_GRID, items=40).write()
    add_groups(folder, "sense")
    for path in (folder / "rows").glob("evaluate-*-sense.parquet"):
        rows = artifacts.read_table(path)
        rows.loc[(rows["group"] == "rare") & (rows["finetune_seed"] == 0), "value"] = np.nan
        artifacts.write_table(path, rows)
    (group_scores,) = build_results(folder, SENSE_GRID, ReportParams())[1].group_scores
    is_trained = [system.init != "none" for system in group_scores.systems]
    often, rare = group_scores.groups
    assert [value is None for value in rare.values] == is_trained and None not in often.values


def test_ceilings_by_group_are_ignored(tmp_path: Path) -> None:
    folder = Study(tmp_path, SENSE_GRID, items=40).write()
    add_groups(folder, "sense")
    before = build_results(folder, SENSE_GRID, ReportParams())[1].group_scores
    path = folder / "rows/baselines-sense.parquet"
    rows = artifacts.read_table(path)
    ceilings = [
        rows[rows["family"] == "ceiling"].assign(group=group) for group in ("often", "rare")
    ]
    artifacts.write_table(path, pd.concat([rows, *ceilings]).astype(rows.dtypes))
    assert build_results(folder, SENSE_GRID, ReportParams())[1].group_scores == before


def test_tasks_without_groups_have_no_table_of_groups(
    study_results: tuple[pd.DataFrame, Analysis],
) -> None:
    _, analysis = study_results
    assert analysis.group_scores == ()
    assert all("in each group of items" not in text for text in render_pages(analysis).values())


COLUMNS: dict[str, dict[str, Any]] = {
    "text_classification": {"text": ["text"], "label": "label", "metric": ["accuracy", "macro_f1"]},
    "multiple_choice": {"text": ["text"], "choices": ["one", "two"], "label": "label"},
    "text_regression": {"text": ["text"], "label": "place"},
    "token_classification": {"tokens": "text", "label": "tags"},
    "minimal_pairs": {"good": "one", "bad": "two"},
    "word_similarity": {"words": ["a", "b"], "label": "place"},
    "word_analogy": {"words": ["a", "b", "c", "d"]},
    "translation": {"source": "text", "target": "one"},
    "summarization": {"source": "text", "target": "one"},
}


def build_grouped_task(tmp_path: Path, kind: str, **overrides: Any) -> TaskData:
    """Build a task of any kind with thirty items, a third of which are `rare`."""
    position = np.arange(30)
    frame = pd.DataFrame(
        {
            "place": position,
            "label": position % 2,
            "group": np.where(position % 3, "often", "rare"),
            "tags": "x y z",
        }
    )
    frame["text"] = [f"it {['was', 'is'][n % 2]} word{n}" for n in position]
    frame["one"] = [f"it was {n} so" for n in position]
    frame["two"] = [f"it is {n} so" for n in position]
    for name, suffix in zip("abcd", ("ing", "ed", "ing", "ed"), strict=True):
        shift = int(name > "b")
        frame[name] = [f"w{chr(97 + n % 26)}{chr(97 + (n + shift) % 7)}{suffix}" for n in position]
    frame.to_csv(tmp_path / "all.csv", index=False)
    splits = ("train", "test") if load_kind(kind).has_train_split else ("test",)
    tree = (
        {"kind": kind, "group": "group", "files": dict.fromkeys(splits, "all.csv")}
        | COLUMNS[kind]
        | overrides
    )
    items = build_task_items(tmp_path, tree, name="small", seed=3, where="tasks.small")
    return TaskData(items.info, items.splits)


@pytest.mark.parametrize("kind", COLUMNS)
def test_baselines_have_a_row_for_each_group_if_they_have_a_value(
    tmp_path: Path, kind: str
) -> None:
    data = build_grouped_task(tmp_path, kind)
    cells = [
        *tiny.evaluate_baselines(
            load_kind(kind), data, split="test", finetune_seeds=(0,), label_counts=("all",)
        )
    ]
    all_rows = results_frame([row for rows, _ in cells for row in rows])
    rows_of_all = all_rows[(all_rows["group"] == "all") & (all_rows["status"] == "ok")]
    assert "tfidf" in {*rows_of_all["model"]} or kind == "minimal_pairs" == data.info.kind
    for _, row_of_all in rows_of_all.iterrows():
        group_rows = all_rows[
            (all_rows["model"] == row_of_all["model"])
            & (all_rows["metric"] == row_of_all["metric"])
            & (all_rows["group"] != "all")
        ]
        assert dict(zip(group_rows["group"], group_rows["num_examples"], strict=True)) == {
            "often": 20,
            "rare": 10,
        }
        assert group_rows["value"].notna().all()
        if row_of_all["metric"] == "accuracy":
            assert np.average(
                group_rows["value"], weights=group_rows["num_examples"].astype(float)
            ) == pytest.approx(row_of_all["value"])
    without_value = all_rows[(all_rows["group"] == "all") & (all_rows["status"] != "ok")]["model"]
    assert not {*without_value} & {*all_rows.loc[all_rows["group"] != "all", "model"]}, (
        "a baseline without a value must have one row, not one per group"
    )


def test_groups_kept_together_by_folds_have_no_rows(tmp_path: Path) -> None:
    frame = pd.DataFrame(
        {
            "text": [f"it is {n}" for n in range(60)],
            "label": np.arange(60) % 2,
            "group": np.arange(60) // 6,
        }
    )
    data = build_table_task(tmp_path, frame, folds=3, group="group")
    cells = tiny.evaluate_baselines(
        load_kind("text_classification"),
        data,
        split="test",
        finetune_seeds=(0,),
        label_counts=("all",),
    )
    assert {row.group for rows, _ in cells for row in rows} == {"all"}


def test_no_baseline_column_is_empty(tmp_path: Path) -> None:
    """The best baseline here is chance, in bold as it is above the model; TF-IDF has values too."""
    frame = build_choices(300, share=0.35, seed=2).assign(group=np.arange(300) % 3)
    frame.to_csv(tmp_path / "test.csv", index=False)
    train = build_choices(100, share=0.55, seed=1).assign(group="mine")
    data = build_table_task(
        tmp_path,
        train,
        **TASK_KEYS,
        group="group",
        files={"train": "train.csv", "test": "test.csv"},
    )
    analysis = analyze_study(tmp_path / "results", data, accuracy=0.4)[1]
    (group_scores,) = analysis.group_scores
    positions = [
        position for position, system in enumerate(group_scores.systems) if system.init == "none"
    ]
    assert [group_scores.systems[position].model for position in positions] == ["chance", "tfidf"]
    assert len(group_scores.groups) == 3
    assert all(
        group.values[position] is not None
        for group in group_scores.groups
        for position in positions
    )
    section = render_pages(analysis)["md"].partition("in each group of items")[2]
    assert section.partition("## ")[0].count("**50.0**") == 3


def test_groups_that_end_in_numbers_are_sorted_by_number() -> None:
    assert [*sort_groups(dict.fromkeys(["u10", "u0", "v1", "u2", "u1"]))] == [
        "u0",
        "u1",
        "u2",
        "u10",
        "v1",
    ]
    assert [*sort_groups(dict.fromkeys(["10", "9"]))] == ["9", "10"]
    assert [*sort_groups(dict.fromkeys(["u10", "u2", "other"]))] == ["other", "u10", "u2"]
