"""Summaries of the tasks: their parameters, and the statistics of their data."""

from collections.abc import Iterable, Mapping
from pathlib import Path

import pandas as pd

from lineage.analysis.cells import ResultCell, disambiguate, split_test_set
from lineage.analysis.records import TEST_SET_SEPARATOR, TaskSummary, TruncationNote
from lineage.config.data import Task, extra_test_task
from lineage.config.params import Grid
from lineage.data.dataset_stats import DatasetStats, SplitStats, read_dataset_stats
from lineage.language import is_spaceless
from lineage.results import notes_from_json, notes_to_json
from lineage.tasks.base import load_kind

# Kinds of notes on a task's items that a model could not read in full.
TRUNCATION_NOTES = ("truncated", "unreadable_words", "answers_cut_off")


def read_all_dataset_stats(results_dir: Path, grid: Grid) -> list[DatasetStats]:
    """Read the statistics of every task of the grid. Raises InputError."""
    folder = results_dir / "statistics"
    return [read_dataset_stats(folder / f"baselines-{task}.json") for task in grid.tasks]


def add_label_counts(cells: Iterable[ResultCell], stats: Iterable[DatasetStats]) -> None:
    """Tell the cells how many labelled items the subsets of their task are drawn from."""
    counts = {one.task: one.splits["train"].items for one in stats if "train" in one.splits}
    for cell in cells:
        base_task, _ = split_test_set(cell.task)
        cell.num_labels = counts.get(base_task, 0)


def build_task_summaries(
    stats: list[DatasetStats], tasks: Mapping[str, Task], table: pd.DataFrame, *, split: str
) -> list[TaskSummary]:
    """Return one summary per task and extra test set, in the order of `stats`.

    `tasks` are those of params.yaml, if known; `table` has all rows.
    """
    rows = disambiguate(table[["task", "test_set", "model", "split", "status", "reason"]])
    scored = rows[(rows["split"] == split) & (rows["status"] == "ok") & (rows["reason"] != "")]
    summaries = []
    for task_stats in stats:
        task_name = task_stats.task
        task = tasks.get(task_name)
        summaries.append(_summarize(task_name, task_stats, task_stats.splits, task, scored))
        for name in sorted(task_stats.extra_test_sets):
            extra = None
            if task is not None:
                extra = extra_test_task(task, name, f"params.yaml: tasks.{task_name}")
            full_name = f"{task_name}{TEST_SET_SEPARATOR}{name}"
            splits = {"test": task_stats.extra_test_sets[name]}
            summaries.append(_summarize(full_name, task_stats, splits, extra, scored))
    return summaries


def _summarize(
    name: str,
    stats: DatasetStats,
    splits: dict[str, SplitStats],
    task: Task | None,
    scored: pd.DataFrame,
) -> TaskSummary:
    kind = load_kind(stats.kind)
    is_extra = name != stats.task
    return TaskSummary(
        task=name,
        kind=stats.kind,
        may_truncate=kind.may_truncate,
        max_words=task.max_words if task and kind.may_truncate else None,
        unit="characters" if task and is_spaceless(task.language) else "words",
        generated=task is not None and task.generated is not None,
        averages_groups=kind.answer.averages_groups,
        splits=splits,
        cross_validation=None if is_extra else stats.cross_validation,
        truncation_notes=_truncation_notes(scored[scored["task"] == name]),
    )


def _truncation_notes(scored: pd.DataFrame) -> tuple[TruncationNote, ...]:
    """Return the notes of scored rows on how their items were read, with the models."""
    models_by_note: dict[str, list[str]] = {}
    pairs = scored[["model", "reason"]].drop_duplicates()
    for model, reason in pairs.itertuples(index=False):
        for note in notes_from_json(str(reason)):
            if note.kind in TRUNCATION_NOTES:
                models = models_by_note.setdefault(notes_to_json([note]), [])
                if str(model) not in models:
                    models.append(str(model))
    return tuple(
        TruncationNote(tuple(models), notes_from_json(text)[0])
        for text, models in models_by_note.items()
    )
