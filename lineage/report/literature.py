"""Published numbers, for orientation: literature.csv holds what the papers of ELMo, ULMFiT, GPT and BERT print of themselves and their baselines.

A task names its benchmark there (`published`), and which of its splits is scored as test (`official_split`): the numbers on it stand beside ours.
"""

import csv
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from functools import cache
from importlib import resources
from typing import Any

import pandas as pd

from lineage.data import Task
from lineage.errors import InputError
from lineage.records import nearest
from lineage.report import words
from lineage.report.cells import Cell
from lineage.scoring.metrics import COMPARED

Tree = dict[str, Any]
WHOLE = {"trial": "chosen", "items": "all", "group": "all", "layer": "none", "status": "ok"}  # rows of all of a task's own items


@dataclass(frozen=True)
class Published:
    """One number of one paper. `value` and `split` are as they are printed there."""

    source: str
    system: str
    task: str  # the benchmark's name, which a task of params.yaml gives
    metric: str  # a key of MEASURES
    split: str
    value: str
    training_examples: int  # as the paper counts them, or the data set's own number where it does not
    note: str


@dataclass(frozen=True)
class Measure:
    """How papers count, and what it is in our metrics: `start` and `scale` times ours; `ours` is empty where we have no such metric."""

    words: str
    ours: str = ""
    scale: float = 100.0
    start: float = 0.0


MEASURES = {
    "accuracy": Measure("% right", "accuracy"),
    "error %": Measure("% wrong", "accuracy", scale=-100.0, start=100.0),
    "f1": Measure("F1 of the class yes"),  # not our macro_f1, which is a mean over classes
    "matthews": Measure("Matthews' r x 100", "matthews"),
    "pearson": Measure("Pearson's r x 100", "pearson"),
    "spearman": Measure("Spearman's r x 100", "spearman"),
    "span_f1": Measure("F1 of spans", "span_f1"),
    "exact_match": Measure("% matched exactly", "exact_match", scale=1.0),
    "answer_f1": Measure("F1 of words", "f1", scale=1.0),
}


@cache
def published() -> tuple[Published, ...]:
    """Every row of literature.csv, in its order."""
    text = (resources.files("lineage.report") / "literature.csv").read_text(encoding="utf-8")
    rows: list[dict[str, Any]] = [{**row} for row in csv.DictReader(text.splitlines())]
    return tuple(Published(**row | {"training_examples": int(row["training_examples"])}) for row in rows)


def check_published(task: Task, where: str) -> None:
    """Raise InputError where a task names a benchmark, or a split of it, of which there are no published numbers."""
    known = {one.task for one in published()}
    if task.published is not None and task.published not in known:
        raise InputError(f"{where}.published: there are no published numbers of '{task.published}'{nearest(task.published, known)}")
    splits = {one.split for one in published() if one.task == task.published}
    if task.official_split and task.official_split not in splits:
        raise InputError(f"{where}.official_split: there are no numbers of {task.published} on '{task.official_split}', but on: "
                         f"{', '.join(sorted(splits))}; name the one that your test items are, or say false")  # fmt: skip


def named(tasks: Mapping[str, Task], table: pd.DataFrame, *, winners: Iterable[list[Cell]], split: str) -> list[Tree]:
    """For results.json, a record a task that names a benchmark: the best of ours there, by every metric that it was measured by.

    `winners`: the best way of each variant, best first, a list a question; `table`: all rows. `ours` is None where nothing has a value.
    """
    first = [some[0] for some in winners]
    found = []
    for name, task in tasks.items():
        if task.published is not None:
            official = task.official_split if split == "test" and task.official_split else False  # what papers scored
            cells = [cell for cell in first if cell.task == name] if official else []
            best = max(cells, key=lambda cell: cell.mean, default=None)
            ours = None if best is None else _measured(best, table, split=split)
            found.append({"task": name, "name": task.published, "official_split": official, "ours": ours})
    return found


def _measured(cell: Cell, table: pd.DataFrame, *, split: str) -> Tree:
    """A cell's way, its labels and its values, means over repetitions."""
    where = asdict(cell.way) | WHOLE | {"task": cell.task, "test_set": cell.task, "labels": cell.labels, "split": split}
    own = table[(table[list(where)] == pd.Series(where)).all(axis=1)]
    values = {str(metric): float(value) for metric, value in own.groupby("metric")["value"].mean().items()}
    return {"way": asdict(cell.way), "labels": cell.labels, "train_examples": cell.train_examples,
            "examples": int(own["examples"].max()), "metric": cell.metric, "values": values}  # fmt: skip


def beside(record: Tree, *, split: str) -> list[Tree]:
    """The lines of one benchmark: ours, in every measure of the papers that we have, or else in the one that we compare by; then theirs."""
    theirs = [one for one in published() if (one.task, one.split) == (record["name"], record["official_split"])]
    lines = [{"ours": False, "system": one.system, "value": one.value, "metric": MEASURES[one.metric].words, "split": one.split,
              "examples": f"{one.training_examples:,}", "source": one.source, "note": one.note} for one in theirs]  # fmt: skip
    return [*_ours(record["ours"], [MEASURES[name] for name in dict.fromkeys(one.metric for one in theirs)], split=split), *lines]


def _ours(ours: Tree | None, measures: list[Measure], *, split: str) -> list[Tree]:
    if ours is None:
        return []
    same = [measure for measure in measures if ours["values"].get(measure.ours) is not None]
    own = Measure(words.heading(ours["metric"]), ours["metric"], scale=100 / COMPARED[ours["metric"]])
    return [{"ours": True, "system": words.way_words(ours["way"]), "value": f"{one.start + one.scale * ours['values'][one.ours]:.1f}",
             "metric": one.words, "split": f"{split}, {ours['examples']:,} items", "examples": f"{ours['train_examples']:,}",
             "source": "this report", "note": ""} for one in same or [own]]  # fmt: skip
