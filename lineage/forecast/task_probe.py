"""Measure the stages of a task that need no model: task, contamination and baselines."""

from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import NamedTuple

import pandas as pd

from lineage.artifacts import folder_bytes, read_table, write_table
from lineage.config.params import Params
from lineage.data.contamination import NgramIndex
from lineage.data.task_data import TaskData, fold_numbers
from lineage.evaluation.evaluate import evaluate_untrained, sort_predictions
from lineage.forecast.measure import (
    LinearCost,
    Stopwatch,
    measure_growing,
    peak_memory_bytes,
    time_call,
)
from lineage.language import byte_count
from lineage.methods.registry import list_baselines
from lineage.tasks.base import Kind, load_kind
from lineage.training.adapt import split_target_texts

FIRST_TRAIN_ITEMS = 50  # of a baseline


@dataclass(frozen=True)
class TaskCosts:
    """The cost of the stages of one task, and the sizes that the stages of models need."""

    characters_per_item: float
    disk_bytes: int
    contamination: LinearCost  # by bytes of the texts that are searched
    search_memory: float  # bytes for each byte of text
    searched_bytes: int  # of the task's unlabelled text
    baseline: LinearCost  # all baselines at one number of labels, by training items
    scoring_seconds: float  # of one table of predictions
    prediction_bytes: float  # on disk, of one item
    # The text that models adapt to, and the time to split it; zero if no model adapts.
    adapt_seconds: float = 0.0
    adapt_train_bytes: int = 0
    adapt_heldout_bytes: int = 0


def probe_task(name: str, params: Params, scratch: Path, *, max_seconds: float) -> TaskCosts:
    """Measure a task whose artifact is in the scratch folder."""
    folder = scratch / "tasks" / name
    task = TaskData.load(folder, split=params.report.split)
    kind = load_kind(task.info["kind"])
    search = _probe_contamination(task, kind, params, scratch)
    baselines = _probe_baselines(task, kind, params, scratch, max_seconds=max_seconds)
    adapt_seconds = 0.0
    train_texts: list[str] = []
    heldout_texts: list[str] = []
    if name in params.grid.adapt_tasks:
        stopwatch = Stopwatch()
        train_texts, heldout_texts = split_target_texts(
            folder, params, max_bytes=params.max_adaptation_bytes
        )
        adapt_seconds = stopwatch.seconds
    return TaskCosts(
        characters_per_item=_characters_per_item(task, kind),
        disk_bytes=folder_bytes(folder),
        contamination=search.cost,
        search_memory=search.memory_bytes_per_byte,
        searched_bytes=_unlabelled_bytes(folder),
        baseline=baselines.cost,
        scoring_seconds=_probe_scoring(task, kind, params),
        prediction_bytes=baselines.prediction_bytes,
        adapt_seconds=adapt_seconds,
        adapt_train_bytes=sum(map(byte_count, train_texts)),
        adapt_heldout_bytes=sum(map(byte_count, heldout_texts)),
    )


def _characters_per_item(task: TaskData, kind: Kind) -> float:
    name = "train" if "train" in task.splits else task.scored_splits[-1]
    table = task.splits[name]
    texts = kind.extract_texts(table, task.info["language"])
    return sum(len(text) for column in texts for text in column) / max(1, len(table))


class _SearchCosts(NamedTuple):
    """Measure how long a search for the items of a task takes, by bytes of text."""

    cost: LinearCost
    memory_bytes_per_byte: float


def _probe_contamination(task: TaskData, kind: Kind, params: Params, scratch: Path) -> _SearchCosts:
    """Search the sample of the corpus for the items of every test set."""
    language = task.info["language"]
    has_folds = fold_numbers(task.info) != [None]
    scored_split = "train" if has_folds else params.report.split
    fixed_seconds = 0.0
    seconds_per_byte = 0.0
    corpus_file = scratch / "corpora" / params.budget.corpus / "train.parquet"
    documents = read_table(corpus_file, ["text"])["text"].tolist()
    num_bytes = max(1, sum(map(byte_count, documents)))
    earlier_peak = peak_memory_bytes()
    for part in task.split_items(seed=0, fold=None):
        if part.split != scored_split:
            continue
        stopwatch = Stopwatch()
        index = NgramIndex(kind.extract_texts(task.select_items(part), language), language)
        fixed_seconds += stopwatch.seconds
        seconds_per_byte += time_call(partial(index.find_items, documents)) / num_bytes
    return _SearchCosts(
        LinearCost(fixed_seconds, seconds_per_byte),
        (peak_memory_bytes() - earlier_peak) / num_bytes,
    )


def _unlabelled_bytes(folder: Path) -> int:
    """Return the bytes of a task's unlabelled text."""
    path = folder / "unlabelled.parquet"
    if not path.is_file():
        return 0
    return sum(map(byte_count, read_table(path, ["text"])["text"]))


class _BaselineCosts(NamedTuple):
    """The cost of all baselines at one number of labels, and the size of their predictions."""

    cost: LinearCost  # by training items
    prediction_bytes: float  # of an item


def _probe_baselines(
    task: TaskData, kind: Kind, params: Params, scratch: Path, *, max_seconds: float
) -> _BaselineCosts:
    """Measure all baselines with one seed, at growing numbers of labels."""
    split = params.report.split
    if split not in task.scored_splits:
        return _BaselineCosts(LinearCost(), 0.0)
    predictions: list[pd.DataFrame] = []

    def evaluate(num_labels: int) -> None:
        methods = list_baselines(params.grid.tfidf_C[:1])
        output = evaluate_untrained(task, [*methods.methods.values()], (num_labels,))
        predictions[:] = [output.predictions]

    if kind.has_train_split:
        cost = measure_growing(
            evaluate,
            first_size=FIRST_TRAIN_ITEMS,
            full_size=len(task.splits["train"]),
            max_seconds=max_seconds,
        ).cost
    else:
        cost = LinearCost(fixed_seconds=time_call(lambda: evaluate(1)))
    table = sort_predictions(predictions)
    path = scratch / f"predictions-{task.info['name']}.parquet"
    write_table(path, table)
    return _BaselineCosts(cost, path.stat().st_size / max(1, len(table)))


def _probe_scoring(task: TaskData, kind: Kind, params: Params) -> float:
    """Return the seconds to format and score a table of predictions: that of the majority class."""
    split = params.report.split
    if kind.answer.answered_by != "head" or split not in task.scored_splits:
        return 0.0
    majority = list_baselines().methods["majority"]
    evaluate_untrained(task, [majority], (FIRST_TRAIN_ITEMS,))
    return time_call(lambda: evaluate_untrained(task, [majority], (FIRST_TRAIN_ITEMS,)))


def forecast_baselines(costs: TaskCosts, params: Params, num_train: int) -> float:
    """Return the seconds of the stage baselines: fits of all label counts, seeds and values of C."""
    if not num_train:
        return costs.baseline.fixed_seconds
    grid = params.grid
    seconds = 0.0
    for count in grid.label_counts:
        num_items = num_train if count == "all" else min(count, num_train)
        num_fits = len(grid.finetune_seeds)
        if len(grid.tfidf_C) > 1:  # the first seed tries every value
            num_fits += len(grid.tfidf_C)
        seconds += num_fits * costs.baseline.seconds(num_items)
    return seconds
