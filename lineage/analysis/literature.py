"""Published results, for orientation.

literature.csv holds the numbers that the papers of ELMo, ULMFiT, GPT and BERT print for their
models and baselines. A task names its benchmark (`benchmark`), and which split of the benchmark
our test items are (`official_split`). The published numbers on that split are shown next to ours.
"""

import csv
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from functools import cache
from importlib import resources
from typing import Any, Literal

import pandas as pd

from lineage.analysis.cells import ResultCell, is_whole_task
from lineage.analysis.records import BenchmarkScore, OurBenchmarkScore
from lineage.config.data import Task
from lineage.config.records import suggest_nearest
from lineage.errors import InputError


@dataclass(frozen=True)
class PublishedResult:
    """One number of one paper. `value` and `split` are as printed there."""

    source: str
    system: str
    task: str  # the name of the benchmark
    metric: str  # a key of PUBLISHED_METRICS
    split: str
    value: str
    training_examples: int  # as counted by the paper, or else by the data set
    note: str


@dataclass(frozen=True)
class PublishedMetric:
    """How papers print a metric: `offset` + `scale` times our value.

    `our_metric` is empty if we have no such metric.
    """

    description: str
    our_metric: str = ""
    scale: float = 100.0
    offset: float = 0.0


PUBLISHED_METRICS = {
    "accuracy": PublishedMetric("% correct", "accuracy"),
    "error %": PublishedMetric("% wrong", "accuracy", scale=-100.0, offset=100.0),
    "f1": PublishedMetric("F1 of the class yes"),  # our macro_f1 is a mean over classes
    "matthews": PublishedMetric("Matthews' r x 100", "matthews"),
    "pearson": PublishedMetric("Pearson's r x 100", "pearson"),
    "spearman": PublishedMetric("Spearman's rho x 100", "spearman"),
    "span_f1": PublishedMetric("F1 of spans", "span_f1"),
    "exact_match": PublishedMetric("% exact match", "exact_match", scale=1.0),
    "answer_f1": PublishedMetric("F1 of words", "f1", scale=1.0),
}


@cache
def read_published_results() -> tuple[PublishedResult, ...]:
    """Return every row of literature.csv, in its order."""
    text = (resources.files("lineage.analysis") / "literature.csv").read_text(encoding="utf-8")
    published = []
    for row in csv.DictReader(text.splitlines()):
        values: dict[str, Any] = {**row, "training_examples": int(row["training_examples"])}
        published.append(PublishedResult(**values))
    return tuple(published)


def check_benchmark_name(task: Task, where: str) -> None:
    """Raise InputError if a task names a benchmark, or a split, without published results."""
    published = read_published_results()
    known = {result.task for result in published}
    if task.benchmark is not None and task.benchmark not in known:
        raise InputError(
            f"{where}.benchmark: there are no published results for '{task.benchmark}'"
            f"{suggest_nearest(task.benchmark, known)}"
        )
    splits = {result.split for result in published if result.task == task.benchmark}
    if task.official_split and task.official_split not in splits:
        raise InputError(
            f"{where}.official_split: there are no published results for {task.benchmark} on "
            f"'{task.official_split}'; there are on: {', '.join(sorted(splits))}; name the split "
            "that your test items are, or write false"
        )


def find_benchmark_scores(
    tasks: Mapping[str, Task],
    table: pd.DataFrame,
    *,
    best_systems: Iterable[list[ResultCell]],
    split: str,
) -> list[BenchmarkScore]:
    """Return our best score on each task that names a benchmark, by every metric of the task.

    `best_systems` are those of each setting, best first; `table` has all rows. The best score is
    given only if the scored split is one that papers report.
    """
    leaders = [cells[0] for cells in best_systems]
    scores = []
    for name, task in tasks.items():
        if task.benchmark is None:
            continue
        official_split: str | Literal[False] = False
        candidates = []
        if split == "test" and task.official_split:
            official_split = task.official_split
            candidates = [cell for cell in leaders if cell.task == name]
        best = max(candidates, key=lambda cell: cell.mean, default=None)
        ours = None if best is None else _score_all_metrics(best, table, split=split)
        scores.append(BenchmarkScore(name, task.benchmark, official_split, ours))
    return scores


def _score_all_metrics(cell: ResultCell, table: pd.DataFrame, *, split: str) -> OurBenchmarkScore:
    """Return the means of a cell over its repetitions, by metric."""
    where = {
        **asdict(cell.system),
        "task": cell.task,
        "test_set": cell.task,
        "label_count": cell.label_count,
        "split": split,
        "status": "ok",
    }
    is_cell = (table[list(where)] == pd.Series(where)).all(axis=1)
    rows = table[is_cell & is_whole_task(table)]
    means = rows.groupby("metric")["value"].mean()
    return OurBenchmarkScore(
        system=cell.system,
        label_count=cell.label_count,
        train_examples=cell.train_examples,
        num_examples=int(rows["num_examples"].max()),
        metric=cell.metric,
        values={str(metric): float(value) for metric, value in means.items()},
    )
