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

from lineage.analysis.cells import ResultCell
from lineage.config.data import Task
from lineage.config.records import suggest_nearest
from lineage.errors import InputError
from lineage.evaluation.metrics import RANKING_METRICS
from lineage.report import sentences

JsonDict = dict[str, Any]
WHOLE_TASK_FILTER = {
    "trial": "chosen",
    "item_filter": "all",
    "group": "all",
    "layer": "none",
    "status": "ok",
}  # rows of all of a task's own items


@dataclass(frozen=True)
class PublishedResult:
    """One number of one paper. `value` and `split` are as they are printed there."""

    source: str
    system: str
    task: str  # the benchmark's name, which a task of params.yaml gives
    metric: str  # a key of MEASURES
    split: str
    value: str
    training_examples: (
        int  # as the paper counts them, or the data set's own number where it does not
    )
    note: str


@dataclass(frozen=True)
class PublishedMetric:
    """How papers count, and what it is in our metrics: `start` and `scale` times ours; `ours` is empty where we have no such metric."""

    description: str
    our_metric: str = ""
    scale: float = 100.0
    offset: float = 0.0


PUBLISHED_METRICS = {
    "accuracy": PublishedMetric("% right", "accuracy"),
    "error %": PublishedMetric("% wrong", "accuracy", scale=-100.0, offset=100.0),
    "f1": PublishedMetric("F1 of the class yes"),  # not our macro_f1, which is a mean over classes
    "matthews": PublishedMetric("Matthews' r x 100", "matthews"),
    "pearson": PublishedMetric("Pearson's r x 100", "pearson"),
    "spearman": PublishedMetric("Spearman's r x 100", "spearman"),
    "span_f1": PublishedMetric("F1 of spans", "span_f1"),
    "exact_match": PublishedMetric("% matched exactly", "exact_match", scale=1.0),
    "answer_f1": PublishedMetric("F1 of words", "f1", scale=1.0),
}


@cache
def read_published_results() -> tuple[PublishedResult, ...]:
    """Every row of literature.csv, in its order."""
    text = (resources.files("lineage.report") / "literature.csv").read_text(encoding="utf-8")
    rows: list[dict[str, Any]] = [{**row} for row in csv.DictReader(text.splitlines())]
    return tuple(
        PublishedResult(**row | {"training_examples": int(row["training_examples"])})
        for row in rows
    )


def check_benchmark_name(task: Task, where: str) -> None:
    """Raise InputError where a task names a benchmark, or a split of it, of which there are no published numbers."""
    known = {one.task for one in read_published_results()}
    if task.benchmark is not None and task.benchmark not in known:
        raise InputError(
            f"{where}.published: there are no published numbers of '{task.benchmark}'{suggest_nearest(task.benchmark, known)}"
        )
    splits = {one.split for one in read_published_results() if one.task == task.benchmark}
    if task.official_split and task.official_split not in splits:
        raise InputError(
            f"{where}.official_split: there are no numbers of {task.benchmark} on '{task.official_split}', but on: "
            f"{', '.join(sorted(splits))}; name the one that your test items are, or say false"
        )


def find_benchmark_results(
    tasks: Mapping[str, Task],
    table: pd.DataFrame,
    *,
    best_systems: Iterable[list[ResultCell]],
    split: str,
) -> list[JsonDict]:
    """For results.json, a record a task that names a benchmark: the best of ours there, by every metric that it was measured by.

    `winners`: the best way of each variant, best first, a list a question; `table`: all rows. `ours` is None where nothing has a value.
    """
    first = [some[0] for some in best_systems]
    found = []
    for name, task in tasks.items():
        if task.benchmark is not None:
            official = (
                task.official_split if split == "test" and task.official_split else False
            )  # what papers scored
            result_cells = [cell for cell in first if cell.task == name] if official else []
            best = max(result_cells, key=lambda cell: cell.mean, default=None)
            ours = None if best is None else _measure_all_metrics(best, table, split=split)
            found.append(
                {"task": name, "name": task.benchmark, "official_split": official, "ours": ours}
            )
    return found


def _measure_all_metrics(result: ResultCell, table: pd.DataFrame, *, split: str) -> JsonDict:
    """A cell's way, its labels and its values, means over repetitions."""
    where = (
        asdict(result.system)
        | WHOLE_TASK_FILTER
        | {
            "task": result.task,
            "test_set": result.task,
            "label_count": result.label_count,
            "split": split,
        }
    )
    own = table[(table[list(where)] == pd.Series(where)).all(axis=1)]
    values = {
        str(metric): float(value) for metric, value in own.groupby("metric")["value"].mean().items()
    }
    return {
        "way": asdict(result.system),
        "label_count": result.label_count,
        "train_examples": result.train_examples,
        "num_examples": int(own["num_examples"].max()),
        "metric": result.metric,
        "values": values,
    }


def build_benchmark_table(record: JsonDict, *, split: str) -> list[JsonDict]:
    """The lines of one benchmark: ours, in every measure of the papers that we have, or else in the one that we compare by; then theirs."""
    paper_results = [
        one
        for one in read_published_results()
        if (one.task, one.split) == (record["name"], record["official_split"])
    ]
    lines = [
        {
            "ours": False,
            "system": one.system,
            "value": one.value,
            "metric": PUBLISHED_METRICS[one.metric].description,
            "split": one.split,
            "num_examples": f"{one.training_examples:,}",
            "source": one.source,
            "note": one.note,
        }
        for one in paper_results
    ]
    return [
        *_our_lines(
            record["ours"],
            [
                PUBLISHED_METRICS[name]
                for name in dict.fromkeys(one.metric for one in paper_results)
            ],
            split=split,
        ),
        *lines,
    ]


def _our_lines(
    ours: JsonDict | None, metrics: list[PublishedMetric], *, split: str
) -> list[JsonDict]:
    if ours is None:
        return []
    same = [measure for measure in metrics if ours["values"].get(measure.our_metric) is not None]
    own = PublishedMetric(
        sentences.metric_heading(ours["metric"]),
        ours["metric"],
        scale=100 / RANKING_METRICS[ours["metric"]],
    )
    return [
        {
            "ours": True,
            "system": sentences.format_system(ours["way"]),
            "value": f"{one.offset + one.scale * ours['values'][one.our_metric]:.1f}",
            "metric": one.description,
            "split": f"{split}, {ours['num_examples']:,} items",
            "num_examples": f"{ours['train_examples']:,}",
            "source": "this report",
            "note": "",
        }
        for one in same or [own]
    ]
