"""Cross-validation in folds, groups that stay together, and second test sets: who learns from what, and what the report makes of it."""

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from lineage.artifacts import write_table
from lineage.controls import control_rows
from lineage.data import Task
from lineage.errors import InputError
from lineage.evaluation import cells, evaluate
from lineage.items import build, check_files
from lineage.kind import load_kind
from lineage.params import Grid
from lineage.records import load
from lineage.report.cells import read_cells, read_rows
from lineage.rows import table
from lineage.subject import Setting
from lineage.taskdata import TaskData, dealt
from tests import tiny

AUTHORS = 9


def texts(count: int, *, seed: int = 0) -> pd.DataFrame:
    """Sentences whose words tell the label, by authors who have written unlike numbers of them."""
    rng = np.random.default_rng(seed)
    label = rng.integers(0, 2, count)
    words = np.where(label[:, None] == 1, rng.choice(["good", "fine"], (count, 3)), rng.choice(["bad", "poor"], (count, 3)))
    author = np.minimum(rng.geometric(0.25, count), AUTHORS)
    return pd.DataFrame({"text": [f"{' '.join(row)} {i}" for i, row in enumerate(words)], "label": label, "author": [f"author {a}" for a in author]})


def made(tmp_path: Path, frame: pd.DataFrame, *, where: str = "tasks.small", **keys: Any) -> TaskData:
    frame.to_csv(tmp_path / "train.csv", index=False)
    common = {"kind": "classify", "text": ["text"], "label": "label", "files": {"train": "train.csv", "test": "test.csv"}}
    task, bad = (load(Task, common | {"also_test": {"other": second | more}}, "tasks.small") for more in ({}, {"text": ["txt"]}))
    check_files(task, load_kind("classify"), root=tmp_path, where="tasks.small", deep=True)
    with pytest.raises(InputError, match=r"tasks\.small\.also_test\.other.*no column 'txt'"):
        check_files(bad, load_kind("classify"), root=tmp_path, where="tasks.small", deep=True)
    rows, predictions = evaluated(data, tmp_path)
    frozen = rows[(rows["transfer"] == "frozen") & (rows["init"] == "untrained")]
    assert set(zip(frozen["split"], frozen["test_set"], frozen["examples"], strict=True)) == {
        ("validation", "small", 6), ("test", "small", 20), ("test", "other", 30)}  # fmt: skip
    results = tmp_path / "results"
    controls = [*control_rows(load_kind("classify"), data, split="test", seeds=(0, 1), labels=("all",))]
    write_table(results / "rows/evaluate-word2vec-0-small.parquet", rows)
    write_table(results / "predictions/evaluate-word2vec-0-small.parquet", predictions)
    write_table(results / "rows/control-small.parquet", table([row for some, _ in controls for row in some]))
    write_table(results / "predictions/control-small.parquet", pd.concat([one for _, one in controls]))
    grid = Grid(("word2vec",), ("small",), (0,), (), (), (0, 1), ("all",))
    found = read_cells(results, grid, table=read_rows(results, grid), split="test")
    assert list(dict.fromkeys(c.task for c in found)) == ["small", "small on other"]
    both = {c.task: c for c in found if c.way.variant == "tfidf"}
    assert both["small on other"].mean > 0.9 and both["small on other"].examples == 30 and both["small"].examples == 20
    own = {c.task: c for c in found if (c.way.variant, c.way.init, c.way.transfer) == ("word2vec", "untrained", "frozen")}
    assert own["small on other"].validation == own["small"].validation != []
    hidden = TaskData(data.facts, {n: t for n, t in data.splits.items() if not n.startswith("test")}, tested=False)
    assert [part.split for part in hidden.parts(seed=0, fold=None)] == ["train", "validation"] and hidden.scored == ["validation"]
