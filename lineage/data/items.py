"""Build a task's items from its data: turn rows into items, split, limit and count them."""

import dataclasses
import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from lineage.answers.annotations import is_span_annotation
from lineage.answers.base import LabelledSplits
from lineage.artifacts import file_digest
from lineage.config.data import Task, extra_test_task
from lineage.data.labels import apply_label_map
from lineage.data.sources import DataTable, open_task_tables, resolve_origin
from lineage.data.splits import (
    check_folds,
    count_groups_in_train,
    count_repeats_in_folds,
    count_repeats_in_train,
    nested_random_subset,
    nested_stratified_subset,
    split_off_validation,
    stratification_labels,
)
from lineage.data.task_data import EXTRA_TEST_PREFIX
from lineage.data.unlabelled import UserTable, collect_unlabelled, text_column_name
from lineage.errors import InputError, RowError
from lineage.synthetic import examples, grammar
from lineage.synthetic import tasks as synthetic_tasks
from lineage.synthetic.tasks import Ceilings
from lineage.tasks.base import Kind, check_extra_texts, check_task, choose_metrics, load_kind
from lineage.tasks.columns import find_filled_rows
from lineage.tasks.info import TaskInfo


@dataclass(frozen=True)
class TaskItems:
    """A task's items: a table for each split, and the content of task.json."""

    splits: dict[str, pd.DataFrame]
    info: TaskInfo
    label_warnings: list[str] = dataclasses.field(default_factory=list)


@dataclass(frozen=True)
class _RawTask:
    """A task's data as the user has it, by split; test-NAME is that of an extra test set."""

    task: Task  # as it is read: with the keys of its mirror, or the columns of a generated task
    tables: dict[str, UserTable]
    # The best possible scores of a generated task, also by group.
    ceilings: Ceilings | None = None
    ceiling_groups: dict[str, Ceilings] = dataclasses.field(default_factory=dict)

    @property
    def places(self) -> dict[str, str]:
        """The place of each split, for messages."""
        return {split: table.place for split, table in self.tables.items()}


def task_fingerprint(task: Task, root: Path, where: str) -> dict[str, Any]:
    """Return what identifies a task's data: file digests, a revision, or a version and seed."""
    resolved_task, origin = resolve_origin(task, root, where)
    if resolved_task.generated == "examples":
        return {
            "read": origin,
            "generator": resolved_task.generated,
            "sha256": file_digest(examples.EXAMPLES_PATH),
        }
    if origin == "generated":
        return {
            "read": origin,
            "generator": resolved_task.generated,
            "version": grammar.GRAMMAR_VERSION,
            "grammar_seed": grammar.resolve_grammar_seed(resolved_task.grammar_seed),
        }
    tables = open_task_tables(resolved_task, root, where)
    extra_test_sets = {}
    for name in task.extra_test_sets:
        place = f"{where}.extra_test_sets.{name}"
        extra_task = extra_test_task(task, name, where)
        extra_test_sets[name] = task_fingerprint(extra_task, root, place)
    return {
        "read": origin,
        "splits": {split: table.fingerprint() for split, table in tables.items()},
        "extra_test_sets": extra_test_sets,
    }


def check_task_files(
    task: Task,
    kind: Kind,
    *,
    root: Path,
    where: str,
    read_files: bool,
    is_extra_test_set: bool = False,
) -> None:
    """Check that the keys fit the kind, and that all files are there."""
    resolved_task, origin = resolve_origin(task, root, where)
    check_task(resolved_task, kind, where, is_extra_test_set=is_extra_test_set)
    if origin != "generated":
        for split, table in open_task_tables(resolved_task, root, where).items():
            if read_files:
                table.check(columns_to_read(resolved_task, split, table))
    for name in task.extra_test_sets:
        place = f"{where}.extra_test_sets.{name}"
        extra_task = extra_test_task(task, name, where)
        check_extra_texts(task, extra_task, kind, place)
        check_task_files(
            extra_task, kind, root=root, where=place, read_files=read_files, is_extra_test_set=True
        )


def build_items(
    name: str, task: Task, kind: Kind, *, seed: int, root: Path, where: str
) -> TaskItems:
    """Read a task and make its items. Raises InputError that names the file and the row."""
    raw = _read_task(name, task, kind, seed=seed, root=root, where=where)
    dropped: dict[str, dict[str, int]] = {split: {} for split in raw.tables}
    splits = {}
    for split, table in raw.tables.items():
        if split != "unlabelled":
            splits[split] = make_items(table, split, kind, dropped[split])
    splits = apply_label_map(splits, raw.tables, dropped, where)
    label_warnings = kind.answer.warn_of_labels(splits, raw.task)
    label_columns = {split: raw.tables[split].task.label or "" for split in splits}
    labelled = LabelledSplits(splits, raw.places, label_columns)
    labels = kind.answer.check_labels(labelled)
    num_validation_taken = 0
    if kind.has_train_split and not task.folds:
        num_validation_taken = split_off_validation(
            splits, raw.task, dropped, by_group=kind.is_grouped(task), seed=seed, where=where
        )
    kind.answer.drop_unanswerable(labelled, dropped, folds=task.folds)
    for split, items in splits.items():
        # Validation may come from train; then it has no table of its own.
        split_task = raw.tables[split].task if split in raw.tables else raw.task
        split_dropped = dropped.setdefault(split, {})
        splits[split] = _apply_limits(items, split, split_task, split_dropped, seed=seed)
    _check_limited_items(splits, labels, raw, task, kind)
    counters = _pop_counters(splits)
    if "unlabelled" in raw.tables:
        splits["unlabelled"], dropped["unlabelled"] = collect_unlabelled(
            raw.tables, kind, splits, seed=seed
        )
    doubtful = kind.answer.count_doubtful(splits, labels, raw.task)
    label_warnings += kind.answer.warn_of_doubtful(doubtful)
    facts = _describe_items(name, task, kind, raw, splits, labels, dropped, where)
    facts |= doubtful | counters | {"held_out_from_train": num_validation_taken}
    character_spans = False
    if kind.answer.are_words:
        user_labels = raw.tables["train"].columns[raw.task.label or ""]
        character_spans = any(map(is_span_annotation, user_labels))  # texts were split into words
    info = TaskInfo(**facts, character_spans=character_spans)
    for items in splits.values():
        if labels and "label" in items:
            items["label"] = kind.answer.index_labels(items["label"], labels)
    return TaskItems(splits, info, label_warnings)


def _read_task(name: str, task: Task, kind: Kind, *, seed: int, root: Path, where: str) -> _RawTask:
    """Read all splits of a task, and its extra test sets. Raises InputError."""
    resolved_task, origin = resolve_origin(task, root, where)
    check_task(resolved_task, kind, where)
    if origin == "generated":
        raw = _read_generated_task(name, resolved_task, kind, seed=seed, where=where)
    else:
        tables = {}
        for split, table in open_task_tables(resolved_task, root, where).items():
            columns = table.read_columns(columns_to_read(resolved_task, split, table))
            tables[split] = UserTable(columns, table.location, resolved_task)
        _check_first_lines(resolved_task, kind, tables)
        raw = _RawTask(resolved_task, tables)
    for extra_name in task.extra_test_sets:
        place = f"{where}.extra_test_sets.{extra_name}"
        extra_task, _ = resolve_origin(extra_test_task(task, extra_name, where), root, place)
        table = open_task_tables(extra_task, root, place)["test"]
        columns = table.read_columns(columns_to_read(extra_task, "test", table))
        extra_table = UserTable(columns, table.location, extra_task)
        raw.tables[EXTRA_TEST_PREFIX + extra_name] = extra_table
    return raw


def columns_to_read(task: Task, split: str, table: DataTable) -> list[str]:
    """Return the columns that are read from a split; of unlabelled text only the text.

    A label that `columns` names there is read too, for the check of `collect_unlabelled`.
    """
    if split == "unlabelled":
        columns = ["text" if table.is_plain_text else text_column_name(task)]
        text_format = table.text_format
        if text_format is not None and text_format.row_unit == "line" and task.text and task.label:
            columns += [name for name in text_format.column_names if name == task.label]
        return columns
    kind = load_kind(task.kind)
    given = [key for key in kind.column_keys if getattr(task, key) is not None]
    return list(dict.fromkeys(task.list_columns(kind.keys_of_split(split, given))))


def _check_first_lines(task: Task, kind: Kind, tables: dict[str, UserTable]) -> None:
    """Raise InputError if several files seem to begin with a header other than `columns`.

    That is so if all begin with the same row, whose label occurs nowhere else.
    """
    if task.columns is None or not kind.answer.has_one_label or task.label is None:
        return
    # By file, since several splits may be read from one.
    tables_by_file = {
        path: tables[split] for split, path in (task.files or {}).items() if split != "unlabelled"
    }
    first_rows = []
    for columns, *_ in tables_by_file.values():
        filled_rows = find_filled_rows(columns)
        if not filled_rows:
            continue
        row = filled_rows[0]
        label = columns[task.label][row]
        is_unique = columns[task.label].count(label) == 1
        if not is_unique or str(label) in task.label_names_by_value:
            return
        first_rows.append(tuple(str(values[row]) for values in columns.values()))
    if len(first_rows) > 1 and len(set(first_rows)) == 1:
        raise InputError(
            f"{tables['train'].place}: all splits begin with this line, and its '{task.label}' "
            "occurs nowhere else: if the line is a header, use its names in 'columns' and in the "
            "keys that name columns; if it is an item, name its label in 'label_map'"
        )


def _read_generated_task(name: str, task: Task, kind: Kind, *, seed: int, where: str) -> _RawTask:
    """Generate the task in the synthetic language, or load the examples, as a user's tables."""
    try:
        if task.generated == "examples":
            generated = examples.load_word_sense_task(task.language)
        else:
            generated = synthetic_tasks.generate_task(
                name,
                seed=seed,
                grammar_seed=grammar.resolve_grammar_seed(task.grammar_seed),
                language=task.language,
            )
    except InputError as error:
        raise InputError(f"{where}: {error}") from None
    if generated.kind != kind.name:
        raise InputError(
            f"{where}.kind: the generated task '{name}' is of kind {generated.kind}, not "
            f"{kind.name}; correct the kind"
        )
    task = name_generated_columns(task, kind)
    tables = {}
    for split, table in generated.splits.items():
        columns = {str(column): list(table[column]) for column in table}
        if "label" in columns and generated.labels:
            columns["label"] = [generated.labels[index] for index in columns["label"]]
        tables[split] = UserTable(columns, f"{where}: {split}", task)
    return _RawTask(
        task, tables, ceilings=generated.ceilings, ceiling_groups=generated.group_ceilings
    )


def name_generated_columns(task: Task, kind: Kind) -> Task:
    """Return a generated task with the columns that its tables have."""
    column_keys: dict[str, Any] = {
        key: (key,) if key == "text" else key for key in kind.required_columns
    }
    return dataclasses.replace(task, group="group", **column_keys)


def make_items(
    user_table: UserTable, split: str, kind: Kind, dropped: dict[str, int]
) -> pd.DataFrame:
    """Make the kind's items. Their `id` is the split and the row of the user's table, from 1.

    Count in `dropped` the rows that give none. Raises InputError if no row gives one.
    """
    columns, where, task = user_table
    num_rows = len(next(iter(columns.values())))
    rows = find_filled_rows(columns)
    if not rows:
        raise InputError(
            f"{where}: every row is blank in {', '.join(columns)}; fill it, or correct which "
            "columns are named"
        )
    if len(rows) < num_rows:
        dropped["blank"] = num_rows - len(rows)
        columns = {name: [values[row] for row in rows] for name, values in columns.items()}
    try:
        items = kind.read_items(columns, task, where)
    except RowError as error:
        raise error.renumber(lambda row: rows[row]) from None
    items.insert(0, "id", [f"{split}-{rows[row] + 1}" for row in items.index])
    if len(items) < len(rows):
        dropped["unusable"] = len(rows) - len(items)
    if items.empty:
        raise InputError(
            f"{where}: no row can be used by kind {kind.name}; check which columns are named"
        )
    return items.reset_index(drop=True)


def _apply_limits(
    items: pd.DataFrame, split: str, task: Task, dropped: dict[str, int], *, seed: int
) -> pd.DataFrame:
    """Keep at most `max_per_group` items of a group, then at most `limit` in all."""
    rng = np.random.default_rng([seed, zlib.crc32(split.encode())])
    if task.max_per_group is not None:
        kept = []
        for _, rows in sorted(items.groupby("group").indices.items()):
            kept.append(rows[nested_random_subset(len(rows), task.max_per_group, rng=rng)])
        kept_rows = np.sort(np.concatenate(kept))
        dropped["per_group"] = len(items) - len(kept_rows)
        items = items.iloc[kept_rows]
    is_extra = split.startswith(EXTRA_TEST_PREFIX)
    limit = getattr(task.limit, "test" if is_extra else split)
    if split == "train" and limit is not None:
        # Stratified, so that a small limit keeps rare labels.
        chosen = nested_stratified_subset(stratification_labels(items), limit, seed=seed)
    else:
        chosen = nested_random_subset(len(items), limit, rng=rng)
    if len(chosen) < len(items):
        dropped["limit"] = len(items) - len(chosen)
    return items.iloc[chosen].reset_index(drop=True)


def _check_limited_items(
    splits: dict[str, pd.DataFrame], labels: list[str], raw: _RawTask, task: Task, kind: Kind
) -> None:
    if kind.has_train_split and labels and kind.answer.names_labels:
        train_labels = splits["train"]["label"]
        num_seen = train_labels.explode().nunique()
        if num_seen < (len(labels) if kind.answer.has_one_label else 2):
            raise InputError(
                f"{raw.places['train']}: limit.train or validation leaves {len(train_labels)} "
                f"items, with {num_seen} of the {len(labels)} labels; raise the limit, or give more"
            )
    if task.folds:
        check_folds(splits["train"], task, kind, raw.places["train"])
    if kind.check_items is not None:
        for split, table in splits.items():
            kind.check_items(table, raw.task, raw.places[split])


def _pop_counters(splits: dict[str, pd.DataFrame]) -> dict[str, dict[str, int]]:
    """Remove the columns that only count something from the items, and return their sums."""
    columns = {"truncated": "truncated", "invalid_tags": "has_invalid_tags", "blank_words": "blank"}
    return {
        counter: {
            split: int(table.pop(column).sum())
            for split, table in splits.items()
            if column in table
        }
        for counter, column in columns.items()
    }


def _describe_items(
    name: str,
    task: Task,
    kind: Kind,
    raw: _RawTask,
    splits: dict[str, pd.DataFrame],
    labels: list[str],
    dropped: dict[str, dict[str, int]],
    where: str,
) -> dict[str, Any]:
    # A generated task names groups, but not for the user's splits.
    grouped_splits = {
        split
        for split in splits
        if kind.is_grouped(raw.tables[split].task if split.startswith(EXTRA_TEST_PREFIX) else task)
    }
    default_metric = kind.answer.choose_metric(labels, raw.task.metric or (), where)
    return {
        "name": name,
        "kind": kind.name,
        "language": raw.task.language,
        "labels": labels,
        "metric": choose_metrics(raw.task, kind, default=default_metric),
        "symmetric": raw.task.symmetric,
        "is_pair": kind.is_text_pair(raw.task),
        "probes": list(raw.task.probes),
        "counts": {split: len(table) for split, table in splits.items()},
        "dropped": dropped,
        "duplicates_of_train": count_repeats_in_train(splits, raw.task, kind),
        "duplicates_in_folds": count_repeats_in_folds(splits, task, kind),
        "groups_in_train": count_groups_in_train(splits, grouped_splits),
        "has": sorted(splits),
        "extra_test_sets": list(task.extra_test_sets),
        "folds": task.folds,
        "grouped": kind.is_grouped(task),
        "validation_share": task.validation_share,
        "ceilings": raw.ceilings,
        "ceiling_groups": raw.ceiling_groups,
    }
