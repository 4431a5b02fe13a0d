"""Scores by group: the means of each model's best system in every group of a task."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from study_rows import GRID, Study

from lineage import artifacts
from lineage.analysis.build import build_results
from lineage.analysis.cells import SYSTEM_COLUMNS, system_key
from lineage.analysis.groups import sort_groups
from lineage.analysis.records import Analysis
from lineage.config.data import Task
from lineage.config.params import ReportParams
from lineage.config.records import parse_record
from lineage.data.items import build_items
from lineage.data.task_data import TaskData
from lineage.evaluation.baselines import evaluate_baselines
from lineage.report import page
from lineage.results import results_frame
from lineage.tasks.base import load_kind
from tests import test_chance

KEY = [
    "model",
    "init",
    "transfer",
    "head",
    "label_count",
    "pretrain_seed",
    "finetune_seed",
    "split",
]


def with_groups(folder: Path, task: str) -> pd.DataFrame:
    """Give each third item of a task the group `rare` and the others `often`, with rows as an evaluation writes them; the test predictions."""
    seen = []
    for path in sorted((folder / "predictions").glob(f"*-{task}.parquet")):
        predictions, rows = (
            artifacts.read_table(path),
            artifacts.read_table(folder / "rows" / path.name),
        )
        third = predictions["id"].str.rpartition("-")[2].astype(int) % 3 == 0
        predictions["group"] = np.where(third, "rare", "often")
        scores = (
            predictions.groupby([*KEY, "group"], dropna=False)["correct"]
            .agg(["mean", "size"])
            .reset_index()
        )
        more = rows[rows["family"] != "ceiling"].drop(columns=["group"]).merge(scores, on=KEY)
        more = more.assign(value=more["mean"], num_examples=more["size"])[rows.columns]
        artifacts.write_table(path, predictions)
        artifacts.write_table(
            folder / "rows" / path.name, pd.concat([rows, more]).astype(rows.dtypes)
        )
        seen.append(predictions[predictions["split"] == "test"])
    return pd.concat(seen)


@pytest.fixture(scope="module")
def study(tmp_path_factory: pytest.TempPathFactory) -> tuple[Analysis, pd.DataFrame]:
    folder = Study(tmp_path_factory.mktemp("study")).write()
    predictions = with_groups(folder, "sense")
    return build_results(folder, GRID, ReportParams())[1], predictions


def test_each_group_has_the_means_of_the_best_systems_at_the_largest_label_count(
    study: tuple[Analysis, pd.DataFrame],
) -> None:
    analysis, predictions = study
    (one,) = analysis.group_scores
    assert (one.task, one.label_count, one.train_examples) == ("sense", "all", 600)
    sizes = [(group.group, group.num_examples) for group in one.groups]
    assert sizes == [("often", 266), ("rare", 134)]
    leader = [
        c
        for c in analysis.comparisons
        if c.comparison_type == "leader" and (c.task, c.label_count) == ("sense", "all")
    ]
    assert one.systems == (leader[0].first, *(c.second for c in leader))
    own = predictions[predictions["label_count"] == "all"]
    for place, system in enumerate(one.systems):
        is_system = (own[list(SYSTEM_COLUMNS)] == [*system_key(system)]).all(axis=1)
        for group in one.groups:
            correct = own.loc[is_system & (own["group"] == group.group), "correct"]
            assert group.values[place] == pytest.approx(correct.mean(), abs=1e-12)


def test_the_pages_mark_the_best_system_of_a_group_if_it_is_alone(
    study: tuple[Analysis, pd.DataFrame],
) -> None:
    analysis, _ = study
    (one,) = analysis.group_scores
    often, rare = one.groups
    others = len(one.systems) - 2
    groups = (
        replace(often, values=(0.75, 0.5, *[0.25] * others)),
        replace(rare, values=(0.75, 0.7501, None, *[0.1] * (others - 1))),
    )
    pages = page.render_report(replace(analysis, group_scores=(replace(one, groups=groups),)))
    assert "| often | 266 | **75.0** | 50.0 | 25.0 |" in pages["md"]
    assert "| rare | 134 | 75.0 | 75.0 | – |" in pages["md"]
    assert pages["html"].count("<b>75.0</b>") == 1


def test_a_group_without_a_value_in_one_repetition_has_none(tmp_path: Path) -> None:
    folder = Study(tmp_path).write()
    with_groups(folder, "sense")
    for path in (folder / "rows").glob("evaluate-*-sense.parquet"):
        rows = artifacts.read_table(path)
        rows.loc[(rows["group"] == "rare") & (rows["finetune_seed"] == 0), "value"] = np.nan
        artifacts.write_table(path, rows)
    (one,) = build_results(folder, GRID, ReportParams())[1].group_scores
    is_trained = [system.init != "none" for system in one.systems]
    often, rare = one.groups
    assert [value is None for value in rare.values] == is_trained and None not in often.values


def test_ceilings_by_group_do_not_count(tmp_path: Path) -> None:
    folder = Study(tmp_path).write()
    with_groups(folder, "sense")
    before = build_results(folder, GRID, ReportParams())[1].group_scores
    path = folder / "rows/baselines-sense.parquet"
    rows = artifacts.read_table(path)
    of_groups = [
        rows[rows["family"] == "ceiling"].assign(group=group) for group in ("often", "rare")
    ]
    artifacts.write_table(path, pd.concat([rows, *of_groups]).astype(rows.dtypes))
    assert build_results(folder, GRID, ReportParams())[1].group_scores == before


def test_tasks_without_groups_have_no_such_table(tmp_path: Path) -> None:
    analysis = build_results(Study(tmp_path).write(), GRID, ReportParams())[1]
    assert analysis.group_scores == ()
    assert all("Scores by group" not in text for text in page.render_report(analysis).values())


COLUMNS: dict[str, dict[str, Any]] = {
    "text_classification": {"text": ["text"], "label": "label", "metric": ["accuracy", "macro_f1"]},
    "multiple_choice": {"text": ["text"], "choices": ["one", "two"], "label": "label"},
    "text_regression": {"text": ["text"], "label": "place"},
    "token_classification": {"tokens": "text", "label": "tags"},
    "minimal_pairs": {"good": "one", "bad": "two"},
    "word_similarity": {"words": ["a", "b"], "label": "place"},
    "word_analogy": {"words": ["a", "b", "c", "d"]},
    "translation": {"source": "text", "target": "one"},
}


def grouped(tmp_path: Path, kind: str, **more: Any) -> TaskData:
    """Thirty items of any kind, a third of which are `rare`."""
    place = np.arange(30)
    frame = pd.DataFrame(
        {
            "place": place,
            "label": place % 2,
            "group": np.where(place % 3, "often", "rare"),
            "tags": "x y z",
        }
    )
    frame["text"] = [f"it {['was', 'is'][n % 2]} word{n}" for n in place]
    frame["one"], frame["two"] = [f"it was {n} so" for n in place], [f"it is {n} so" for n in place]
    for name, end in zip("abcd", ("ing", "ed", "ing", "ed"), strict=True):
        frame[name] = [f"w{chr(97 + n % 26)}{chr(97 + (n + (name > 'b')) % 7)}{end}" for n in place]
    frame.to_csv(tmp_path / "all.csv", index=False)
    splits = ("train", "test") if load_kind(kind).has_train_split else ("test",)
    tree = (
        {"kind": kind, "group": "group", "files": dict.fromkeys(splits, "all.csv")}
        | COLUMNS[kind]
        | more
    )
    items = build_items(
        "small",
        parse_record(Task, tree, "tasks.small"),
        load_kind(kind),
        seed=3,
        root=tmp_path,
        where="tasks.small",
    )
    return TaskData(items.info, items.splits)


@pytest.mark.parametrize("kind", COLUMNS)
def test_controls_have_a_row_a_group_wherever_they_have_a_value(tmp_path: Path, kind: str) -> None:
    data = grouped(tmp_path, kind)
    cells = [
        *evaluate_baselines(
            load_kind(kind), data, split="test", finetune_seeds=(0,), label_counts=("all",)
        )
    ]
    found = results_frame([row for rows, _ in cells for row in rows])
    whole = found[(found["group"] == "all") & (found["status"] == "ok")]
    assert "tfidf" in {*whole["model"]} or kind == "minimal_pairs" == data.info["kind"]
    for _, one in whole.iterrows():
        own = found[
            (found["model"] == one["model"])
            & (found["metric"] == one["metric"])
            & (found["group"] != "all")
        ]
        assert (
            dict(zip(own["group"], own["num_examples"], strict=True)) == {"often": 20, "rare": 10}
            and own["value"].notna().all()
        )
        if one["metric"] == "accuracy":
            assert np.average(
                own["value"], weights=own["num_examples"].astype(float)
            ) == pytest.approx(one["value"])
    said_once = found[(found["group"] == "all") & (found["status"] != "ok")]["model"]
    assert not {*said_once} & {*found.loc[found["group"] != "all", "model"]}, (
        "what has no value at all says so once"
    )


def test_groups_that_folds_keep_together_have_no_rows(tmp_path: Path) -> None:
    frame = pd.DataFrame(
        {
            "text": [f"it is {n}" for n in range(60)],
            "label": np.arange(60) % 2,
            "group": np.arange(60) // 6,
        }
    )
    data = test_chance.made(tmp_path, frame, folds=3, group="group")
    cells = evaluate_baselines(
        load_kind("text_classification"),
        data,
        split="test",
        finetune_seeds=(0,),
        label_counts=("all",),
    )
    assert {row.group for rows, _ in cells for row in rows} == {"all"}


def test_no_control_column_is_empty(tmp_path: Path) -> None:
    """The best control is chance here, and in bold where it stands above the family; TF-IDF is there all the same."""
    frame = test_chance.choices(300, share=0.35, seed=2).assign(group=np.arange(300) % 3)
    frame.to_csv(tmp_path / "test.csv", index=False)
    learned = test_chance.choices(100, share=0.55, seed=1).assign(group="mine")
    data = test_chance.made(
        tmp_path,
        learned,
        **test_chance.KEYS,
        group="group",
        files={"train": "train.csv", "test": "test.csv"},
    )
    analysis = test_chance.study(tmp_path / "results", data, right=0.4)[1]
    (one,) = analysis.group_scores
    places = [place for place, system in enumerate(one.systems) if system.init == "none"]
    assert [one.systems[place].model for place in places] == ["chance", "tfidf"]
    assert len(one.groups) == 3
    assert all(group.values[place] is not None for group in one.groups for place in places)
    section = page.render_report(analysis)["md"].partition("## Scores by group")[2]
    assert section.partition("## ")[0].count("**50.0**") == 3


def test_groups_that_end_in_numbers_stand_in_their_order() -> None:
    assert [*sort_groups(dict.fromkeys(["u10", "u0", "v1", "u2", "u1"]))] == [
        "u0",
        "u1",
        "u2",
        "u10",
        "v1",
    ]
    assert [*sort_groups(dict.fromkeys(["10", "9"]))] == ["9", "10"]
    assert [*sort_groups(dict.fromkeys(["u10", "u2", "other"]))] == ["other", "u10", "u2"]
