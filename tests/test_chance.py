"""Guessing: what knows nothing of the items, that a lead must stand above. Among choices it is the commonest place, or a lot, whichever gets more."""

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from lineage.artifacts import write_table
from lineage.controls import control_rows, predictions_table
from lineage.kind import load_kind
from lineage.params import Grid, Report
from lineage.report import words
from lineage.report.disagreements import disagreements
from lineage.report.results import read_results
from lineage.rows import table
from lineage.taskdata import TaskData
from tests.test_folds import made

KEYS: dict[str, Any] = {"kind": "choose", "choices": ["one", "two"], "label": "label"}
GRID = Grid(("gpt",), ("small",), (0,), (), (), (0, 1), ("all",))


def choices(count: int, *, share: float, seed: int) -> pd.DataFrame:
    """Two endings of which nothing tells the right one; the first is right in this share."""
    label = (np.arange(count) >= share * count).astype(int)
    return pd.DataFrame({"text": [f"text {seed} {n}" for n in range(count)], "one": "it was", "two": "it is", "label": label})


def study(tmp_path: Path, data: TaskData, *, right: float) -> tuple[Path, dict[str, Any]]:
    """The report's tree of the controls beside a family that is right in this share of items, whatever the seed."""
    controls = [*control_rows(load_kind("choose"), data, split="test", seeds=GRID.seeds, labels=GRID.labels)]
    rows, predictions = [row for own, _ in controls for row in own], predictions_table([own for _, own in controls])
    family = predictions[predictions["variant"] == "majority"].copy()
    family[["variant", "family", "init", "transfer", "pretrain_seed"]] = ["gpt", "gpt", "pretrained", "frozen", 0]
    number = family["id"].str.extract(r"(\d+)$", expand=False).astype(int)
    family["correct"] = (number * 7919 % 1000 < 1000 * right).astype(float)
    said = [row for row in rows if row.variant == "majority"]
    told = {"variant": "gpt", "family": "gpt", "init": "pretrained", "transfer": "frozen", "pretrain_seed": 0, "value": family["correct"].mean()}
    of_family = table(said).assign(**told)
    for stage, own_rows, own in (("evaluate-gpt-0-small", of_family, family), ("control-small", table(rows), predictions)):
        write_table(tmp_path / f"rows/{stage}.parquet", own_rows)
        write_table(tmp_path / f"predictions/{stage}.parquet", own)
    return tmp_path, read_results(tmp_path, GRID, Report())[1]


@pytest.mark.parametrize(("first_in_train", "hardest"), [(0.55, "chance"), (0.3, "majority")])
def test_a_lead_among_choices_stands_above_the_commonest_place_and_above_a_lot(tmp_path: Path, first_in_train: float, hardest: str) -> None:
    """Of the test items 35 % have the first place right: who learned to say it is below a lot, who learned the second far above."""
    choices(1000, share=0.35, seed=2).to_csv(tmp_path / "test.csv", index=False)
    data = made(tmp_path, choices(100, share=first_in_train, seed=1), **KEYS, files={"train": "train.csv", "test": "test.csv"})
    results, tree = study(tmp_path / "results", data, right=0.515)
    means = {cell["variant"]: cell["mean"] for cell in tree["cells"]}
    assert means["chance"] == 0.5 and means["majority"] == pytest.approx(0.35 if hardest == "chance" else 0.65)
    (asked,) = words.questions(tree)
    assert asked["guess"]["second"]["variant"] == hardest or asked["way"]["variant"] == hardest
    assert asked["guessed"] and " nothing is shown to be better than guessing" in words.summary(tree)
    told = disagreements(tree, GRID, results=results, tasks=tmp_path, show_text=False)
    said = [said for table in told for item in table["items"] for said in item["said"]]
    assert bool(said) == (hardest == "chance") == any("tie (50.0 % right)" in one for one in said)


def test_what_is_better_than_both_serves_best(tmp_path: Path) -> None:
    choices(1000, share=0.35, seed=2).to_csv(tmp_path / "test.csv", index=False)
    data = made(tmp_path, choices(100, share=0.55, seed=1), **KEYS, files={"train": "train.csv", "test": "test.csv"})
    (asked,) = words.questions(study(tmp_path / "results", data, right=0.9)[1])
    assert asked["way"]["variant"] == "gpt" and not asked["guessed"]


def test_a_lot_is_drawn_in_every_fold(tmp_path: Path) -> None:
    data = made(tmp_path, choices(60, share=0.5, seed=1), **KEYS, folds=3)
    asked = {"split": "test", "seeds": (0, 1), "labels": ("all",), "penalties": (1.0, 10.0)}
    own = [(rows[0], said) for rows, said in control_rows(load_kind("choose"), data, **asked) if rows[0].variant == "chance"]
    assert [(row.seed, row.fold, row.value, row.reason) for row, _ in own] == [(s, f, 0.5, "") for s in (0, 1) for f in range(3)]
    assert len({*pd.concat([said for _, said in own])["id"]}) == 60 and {*own[0][1]["gold"]} == {"0", "1"}


def test_other_kinds_have_no_lot(tmp_path: Path) -> None:
    frame = choices(60, share=0.5, seed=1)
    data = made(tmp_path, frame, folds=3)
    controls = control_rows(load_kind("classify"), data, split="test", seeds=(0,), labels=("all",))
    assert {rows[0].variant for rows, _ in controls} == {"majority", "tfidf"}
