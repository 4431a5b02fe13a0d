"""Scores by group: the means of the ways that stand for the variants, beside the number of items, and nothing where there are no groups."""

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from study_rows import GRID, Study

from lineage import artifacts
from lineage.params import Report
from lineage.report import page
from lineage.report.results import read_results

KEY = ["variant", "init", "transfer", "head", "labels", "pretrain_seed", "seed", "split"]


def with_groups(folder: Path, task: str) -> pd.DataFrame:
    """Give each third item of a task the group `rare` and the others `often`, with rows as an evaluation writes them; the test predictions."""
    seen = []
    for path in sorted((folder / "predictions").glob(f"*-{task}.parquet")):
        predictions, rows = artifacts.read_table(path), artifacts.read_table(folder / "rows" / path.name)
        third = predictions["id"].str.rpartition("-")[2].astype(int) % 3 == 0
        predictions["group"] = np.where(third, "rare", "often")
        scores = predictions.groupby([*KEY, "group"], dropna=False)["correct"].agg(["mean", "size"]).reset_index()
        more = rows[rows["family"] != "ceiling"].drop(columns=["group"]).merge(scores, on=KEY)
        more = more.assign(value=more["mean"], examples=more["size"])[rows.columns]
        artifacts.write_table(path, predictions)
        artifacts.write_table(folder / "rows" / path.name, pd.concat([rows, more]).astype(rows.dtypes))
        seen.append(predictions[predictions["split"] == "test"])
    return pd.concat(seen)


@pytest.fixture(scope="module")
def study(tmp_path_factory: pytest.TempPathFactory) -> tuple[dict[str, Any], pd.DataFrame]:
    folder = Study(tmp_path_factory.mktemp("study")).write()
    predictions = with_groups(folder, "sense")
    return read_results(folder, GRID, Report())[1], predictions


def test_each_group_has_the_mean_of_the_ways_that_stand_for_the_variants_at_the_most_labels(study: tuple[dict[str, Any], pd.DataFrame]) -> None:
    tree, predictions = study
    (one,) = tree["groups"]
    assert (one["task"], one["labels"], one["train_examples"]) == ("sense", "all", 600)
    assert [(group["group"], group["examples"]) for group in one["groups"]] == [("often", 266), ("rare", 134)]
    best = [c for c in tree["comparisons"] if c["question"] == "best" and (c["task"], c["labels"]) == ("sense", "all")]
    assert one["ways"] == [best[0]["first"], *(c["second"] for c in best)]
    for place, way in enumerate(one["ways"]):
        own = predictions[(predictions["labels"] == "all") & (predictions[list(way)] == [*way.values()]).all(axis=1)]
        for group in one["groups"]:
            assert group["values"][place] == pytest.approx(own.loc[own["group"] == group["group"], "correct"].mean(), abs=1e-12)


def test_the_pages_mark_the_best_of_a_group_where_it_stands_alone(study: tuple[dict[str, Any], pd.DataFrame]) -> None:
    tree, _ = study
    (one,) = tree["groups"]
    first, second = one["groups"]
    first["values"], second["values"] = [0.75, 0.5, *first["values"][2:]], [0.75, 0.7501, None, *[0.1] * (len(one["ways"]) - 3)]
    first["values"][2:] = [0.25] * (len(one["ways"]) - 2)
    said = page.render(tree, budget=[], provenance={"stages": []})
    assert "| often | 266 | **75.0** | 50.0 | 25.0 |" in said["md"] and "| rare | 134 | 75.0 | 75.0 | – |" in said["md"]
    assert said["html"].count("<b>75.0</b>") == 1


def test_a_repetition_without_a_value_leaves_its_group_without_one(tmp_path: Path) -> None:
    folder = Study(tmp_path).write()
    with_groups(folder, "sense")
    for path in (folder / "rows").glob("evaluate-*-sense.parquet"):
        rows = artifacts.read_table(path)
        rows.loc[(rows["group"] == "rare") & (rows["seed"] == 0), "value"] = np.nan
        artifacts.write_table(path, rows)
    tree = read_results(folder, GRID, Report())[1]
    (one,) = tree["groups"]
    control = [way["init"] == "none" for way in one["ways"]]
    often, rare = one["groups"]
    assert [value is None for value in rare["values"]] == [not own for own in control] and None not in often["values"]


def test_ceilings_by_group_count_for_nothing(tmp_path: Path) -> None:
    folder = Study(tmp_path).write()
    with_groups(folder, "sense")
    before = read_results(folder, GRID, Report())[1]["groups"]
    path = folder / "rows/control-sense.parquet"
    rows = artifacts.read_table(path)
    of_groups = [rows[rows["family"] == "ceiling"].assign(group=group) for group in ("often", "rare")]
    artifacts.write_table(path, pd.concat([rows, *of_groups]).astype(rows.dtypes))
    assert read_results(folder, GRID, Report())[1]["groups"] == before


def test_tasks_without_groups_have_no_such_table(tmp_path: Path) -> None:
    tree = read_results(Study(tmp_path).write(), GRID, Report())[1]
    assert tree["groups"] == []
    assert all("By group" not in text for text in page.render(tree, budget=[], provenance={"stages": []}).values())
