"""A task's items from its data: what its kind makes of the user's columns, put into splits, limited, and counted."""

import dataclasses
import math
import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from lineage.artifacts import file_digest
from lineage.config.data import Task, extra_test_task
from lineage.data.labels import (
    LABEL_CHECKS,
    apply_label_map,
    choose_tag_metric,
    count_unread_spans,
    count_unseen_tags,
    drop_unanswerable,
)
from lineage.data.sources import DataTable, open_task_tables, resolve_origin
from lineage.data.splits import (
    count_groups_in_train,
    count_repeats_in_folds,
    count_repeats_in_train,
    split_off_validation,
)
from lineage.data.subsets import (
    nested_random_subset,
    nested_stratified_subset,
    stratification_labels,
)
from lineage.data.task_data import EXTRA_TEST_PREFIX
from lineage.data.unlabelled import collect_unlabelled, text_column_name
from lineage.errors import InputError, shorten_value
from lineage.synthetic import examples, grammar
from lineage.synthetic import tasks as microworld
from lineage.tasks.base import COLUMN_KEYS, Kind, check_task, choose_metrics
from lineage.tasks.columns import RowError, TableColumns, find_filled_rows

MIN_FOLD_SIZE_FOR_CORRELATION = 3  # in a fold: the correlation of two is 1 or -1


@dataclass(frozen=True)
class TaskItems:
    """A task ready to be learned: a table a split, and what task.json says."""

    splits: dict[str, pd.DataFrame]
    info: dict[str, Any]


def task_fingerprint(task: Task, root: Path, where: str) -> dict[str, Any]:
    """What tells a task's data from any other: the digests of its files, a Hub revision, or a generator's version and seed."""
    record, how = resolve_origin(task, root, where)
    assert isinstance(record, Task)
    if record.generated == "examples":
        return {
            "read": how,
            "generator": record.generated,
            "sha256": file_digest(examples.EXAMPLES_PATH),
        }
    if how == "generated":
        return {
            "read": how,
            "generator": record.generated,
            "version": grammar.GRAMMAR_VERSION,
            "grammar_seed": grammar.resolve_grammar_seed(record.grammar_seed),
        }
    found: dict[str, Any] = {
        "read": how,
        "splits": {
            split: table.fingerprint()
            for split, table in open_task_tables(record, root, where).items()
        },
    }
    return found | {
        "extra_test_sets": {
            n: task_fingerprint(
                extra_test_task(task, n, where), root, f"{where}.extra_test_sets.{n}"
            )
            for n in task.extra_test_sets
        }
    }


def check_task_files(
    task: Task,
    kind: Kind,
    *,
    root: Path,
    where: str,
    read_files: bool,
    extra_test_set: bool = False,
) -> None:
    """Raise InputError for keys that do not fit the kind, for files that are missing and, where `deep`, that are empty, damaged or lack a column."""
    record, how = resolve_origin(task, root, where)
    assert isinstance(record, Task)
    check_task(record, kind, where, is_extra_test_set=extra_test_set)
    if how != "generated":
        for split, table in open_task_tables(record, root, where).items():
            if read_files:
                table.check(_columns_to_read(record, split, table))
    for name in task.extra_test_sets:
        check_task_files(
            extra_test_task(task, name, where),
            kind,
            root=root,
            where=f"{where}.extra_test_sets.{name}",
            read_files=read_files,
            extra_test_set=True,
        )


def build_items(
    name: str, task: Task, kind: Kind, *, seed: int, root: Path, where: str
) -> TaskItems:
    """Read a task and make its items. Raises InputError that names the file and the row."""
    record, found, ceilings = _read_task(name, task, kind, seed=seed, root=root, where=where)
    records = dict.fromkeys(found, record)
    for second in task.extra_test_sets:
        records[EXTRA_TEST_PREFIX + second], found[EXTRA_TEST_PREFIX + second] = (
            _read_extra_test_set(task, second, root, where)
        )
    dropped: dict[str, dict[str, int]] = {split: {} for split in found}
    labelled = {split: both for split, both in found.items() if split != "unlabelled"}
    splits = {
        split: _make_items(columns, split, records[split], kind, place, dropped)
        for split, (columns, place) in labelled.items()
    }
    places = {split: place for split, (_, place) in found.items()}
    splits = apply_label_map(splits, places, records, dropped, where)
    labels = (
        LABEL_CHECKS[kind.answer_type](
            splits, places, {split: records[split].label or "" for split in splits}
        )
        if kind.answer_type
        else []
    )
    carved = (
        split_off_validation(
            splits, record, dropped, by_group=task.group is not None, seed=seed, where=where
        )
        if kind.has_train_split and not task.folds
        else 0
    )
    if kind.answer_type == "span":
        drop_unanswerable(splits, places, dropped, folds=task.folds)
    splits = {
        split: _apply_limits(table, split, records.get(split, record), dropped, seed=seed)
        for split, table in splits.items()
    }
    if kind.has_train_split and labels and kind.answer_type != "choice":
        _check_limited_labels(splits["train"]["label"], len(labels), kind, places["train"])
    if task.folds:
        _check_folds(splits["train"], task, kind, places["train"])
    for split, table in splits.items() if kind.check_items else ():
        kind.check_items(table, record, places[split])  # type: ignore[misc]
    cut = {split: int(table.pop("cut").sum()) for split, table in splits.items()}
    lost = (
        {split: int((table["label"].map(len) == 0).sum()) for split, table in splits.items()}
        if kind.answer_type == "span"
        else {}
    )
    mended, blank = (
        {split: int(table.pop(name).sum()) for split, table in splits.items() if name in table}
        for name in ("mended", "blank")
    )
    if "unlabelled" in found:
        splits["unlabelled"], dropped["unlabelled"] = collect_unlabelled(
            found, records, kind, splits, seed=seed
        )
    own = (
        kind.metrics[0]
        if kind.answer_type != "tags"
        else choose_tag_metric(labels, record.metric or (), where)
    )
    grouped = {
        split
        for split in splits
        if (records[split] if split.startswith(EXTRA_TEST_PREFIX) else task).group
    }  # a generated task names its own groups
    facts = {
        "name": name,
        "kind": kind.name,
        "language": record.language,
        "answer": kind.answer_type,
        "labels": labels,
        "metric": choose_metrics(record, kind, default=own),
        "symmetric": record.symmetric,
        "probes": list(record.probes),
        "counts": {s: len(t) for s, t in splits.items()},
        "dropped": dropped,
        "cut": cut,
        "lost": lost,
        "mended_tags": mended,
        "blank_words": blank,
        "unlearned_tags": count_unseen_tags(splits, kind),
        **count_unread_spans(labels, kind, record),
        "carved": carved,
        "repeated_in_train": count_repeats_in_train(splits, record, kind),
        "repeated_in_folds": count_repeats_in_folds(splits, task, kind),
        "group_in_train": count_groups_in_train(splits, grouped),
        "has": sorted(splits),
        "extra_test_sets": [*task.extra_test_sets],
        "folds": task.folds,
        "grouped": task.group is not None,
        "validation_share": task.validation_share,
        **ceilings,
    }
    _labels_to_ids(splits, labels, kind)
    return TaskItems(splits, facts)


def _read_task(
    name: str, task: Task, kind: Kind, *, seed: int, root: Path, where: str
) -> tuple[Task, dict[str, tuple[TableColumns, str]], dict[str, Any]]:
    """The task as it is read, each split's columns with the place for messages, and its ceilings where it is a generated one."""
    record, how = resolve_origin(task, root, where)
    assert isinstance(record, Task)
    check_task(record, kind, where)
    if how == "generated":
        return _read_generated_task(name, record, kind, seed=seed, where=where)
    tables = open_task_tables(record, root, where)
    found = {
        split: (table.read_columns(_columns_to_read(record, split, table)), table.location)
        for split, table in tables.items()
    }
    _check_first_lines(record, kind, found)
    return record, found, {"ceilings": None, "ceiling_groups": {}}


def _check_first_lines(task: Task, kind: Kind, found: dict[str, tuple[TableColumns, str]]) -> None:
    """Raise InputError where several files begin with names of columns, other ones than `columns` gives: they would be an item and a class."""
    label, files = task.label, task.files or {}
    if task.columns is None or kind.answer_type != "label" or label is None:
        return
    own = [
        (columns, rows[0])
        for columns in {
            files[split]: found[split][0] for split in files if split != "unlabelled"
        }.values()
        if (rows := find_filled_rows(columns))
    ]
    first = {tuple(str(values[row]) for values in columns.values()) for columns, row in own}
    alone = all(
        columns[label].count(columns[label][row]) == 1
        and str(columns[label][row]) not in task.label_names_by_value
        for columns, row in own
    )
    if len(own) > 1 and len(first) == 1 and alone:
        raise InputError(
            f"{found['train'][1]}: its first line is that of the other splits too, and its '{label}' stands nowhere else: if it holds "
            "names of columns, give those, in columns and in what names them; if not, say so in 'names'"
        )


def _labels_to_ids(splits: dict[str, pd.DataFrame], labels: list[str], kind: Kind) -> None:
    """Labels and tags become their places among the names."""
    place_of = {label: i for i, label in enumerate(labels)}
    for table in splits.values() if labels else ():
        if kind.answer_type == "tags" and "label" in table:
            table["label"] = [[place_of[tag] for tag in tags] for tags in table["label"]]
        elif "label" in table:
            table["label"] = table["label"].map(place_of).astype("int64")


def _read_generated_task(
    name: str, task: Task, kind: Kind, *, seed: int, where: str
) -> tuple[Task, dict[str, tuple[TableColumns, str]], dict[str, Any]]:
    """The synthetic language's task of this name, or the examples, as if their tables were a user's."""
    try:
        made = (
            examples.load_word_sense_task(name, language=task.language)
            if task.generated == "examples"
            else microworld.generate_task(
                name,
                seed=seed,
                grammar_seed=grammar.resolve_grammar_seed(task.grammar_seed),
                language=task.language,
            )
        )
    except InputError as error:
        raise InputError(f"{where}: {error}") from None
    if made.kind != kind.name:
        raise InputError(
            f"{where}.kind: the generated task '{name}' is of kind {made.kind}, not {kind.name}; correct the kind"
        )
    named: dict[str, Any] = {key: (key,) if key == "text" else key for key in kind.required_columns}
    task = dataclasses.replace(task, group="group", **named)
    found = {
        split: ({str(c): list(table[c]) for c in table}, f"{where}: {split}")
        for split, table in made.splits.items()
    }
    for columns, _ in found.values():
        if "label" in columns and made.labels:
            columns["label"] = [made.labels[i] for i in columns["label"]]
    return task, found, {"ceilings": made.ceilings, "ceiling_groups": made.group_ceilings}


def _read_extra_test_set(
    task: Task, name: str, root: Path, where: str
) -> tuple[Task, tuple[TableColumns, str]]:
    """A second test set: how it is read, and its columns with the place for messages. Raises InputError."""
    place = f"{where}.extra_test_sets.{name}"
    record, _ = resolve_origin(extra_test_task(task, name, where), root, place)
    assert isinstance(record, Task)
    table = open_task_tables(record, root, place)["test"]
    return record, (table.read_columns(_columns_to_read(record, "test", table)), table.location)


def _check_limited_labels(labels: "pd.Series[Any]", count: int, kind: Kind, where: str) -> None:
    """Raise InputError where the limit has left too few items in train for what is to be learned of them."""
    seen = labels.explode().nunique()
    if seen < (count if kind.answer_type == "label" else 2):
        raise InputError(
            f"{where}: limit.train or validation leaves {len(labels)} items, with {seen} of the {count} labels; raise the limit, or give more"
        )


def _check_folds(items: pd.DataFrame, task: Task, kind: Kind, where: str) -> None:
    """Raise InputError where a fold could not be test with something left to learn from, and something to choose by."""
    assert task.folds is not None
    count, what = (items["group"].nunique(), "groups") if task.group else (len(items), "items")
    if count < task.folds or count - math.ceil(count / task.folds) < 2:
        raise InputError(
            f"{where}: {count} {what} are too few for {task.folds} folds, each of which holds one at least, and leaves one to train and "
            "one to validation; give more, or another number of folds"
        )
    if kind.answer_type == "number":
        units = items.groupby("group" if task.group else "id")["label"]
        fewest, alone = (
            int(units.size().nsmallest(count // task.folds).sum()),
            task.group and count < 2 * task.folds,
        )
        if fewest < MIN_FOLD_SIZE_FOR_CORRELATION or (alone and units.nunique().min() < 2):
            raise InputError(
                f"{where}: {len(items)} items in {count} {what} and {task.folds} folds: a fold may be {fewest} items, or a single group "
                "with the same number in all, and have no correlation; give fewer folds, or more items"
            )
    labels = stratification_labels(items)
    apart = (
        pd.DataFrame({"label": labels, "unit": items["group"] if task.group else range(len(items))})
        .groupby("label")["unit"]
        .nunique()
    )
    if len(apart) > 1 and (apart > 1).sum() < 2:
        rare = ", ".join(f"'{shorten_value(label)}'" for label in apart.index[apart < 2][:3])
        raise InputError(
            f"{where}: all items of label {rare} are in one fold, and what is learned without it knows one label; give more of them"
        )


def _columns_to_read(task: Task, split: str, table: DataTable) -> list[str]:
    """The columns that are read from a split; of unlabelled text only the text."""
    if split == "unlabelled":
        names = (
            table.text_format.column_names
            if table.text_format and table.text_format.row_unit == "line"
            else []
        )
        return [
            "text" if table.is_plain_text else text_column_name(task),
            *(name for name in names if task.text and name == task.label),
        ]
    given = [getattr(task, key) for key in COLUMN_KEYS if getattr(task, key) is not None]
    return list(
        dict.fromkeys(
            column
            for names in given
            for column in (names if isinstance(names, tuple) else (names,))
        )
    )


def _make_items(
    columns: TableColumns,
    split: str,
    task: Task,
    kind: Kind,
    where: str,
    dropped: dict[str, dict[str, int]],
) -> pd.DataFrame:
    """The kind's items; `id` is the split and the row of the user's table, the first of which is 1."""
    rows = find_filled_rows(columns)
    if blank_rows := len(next(iter(columns.values()))) - len(rows):
        dropped[split]["blank"] = blank_rows
        columns = {name: [values[row] for row in rows] for name, values in columns.items()}
    if not rows:
        raise InputError(
            f"{where}: every row is blank in {', '.join(columns)}; fill it, or correct which columns are named"
        )
    try:
        table = kind.make_items(columns, task, where)
    except RowError as error:
        before, row, after = error.args
        raise RowError(before, rows[row], after) from None
    table.index = pd.Index([rows[row] for row in table.index])
    table.insert(0, "id", [f"{split}-{row + 1}" for row in table.index])
    if left_out := len(next(iter(columns.values()))) - len(table):
        dropped[split]["of_no_use"] = left_out
    if table.empty:
        raise InputError(
            f"{where}: no row is of use to kind {kind.name}; check which columns are named"
        )
    return table.reset_index(drop=True)


def _apply_limits(
    table: pd.DataFrame, split: str, task: Task, dropped: dict[str, dict[str, int]], *, seed: int
) -> pd.DataFrame:
    """At most `per_group` items of a group, then at most `limit` in all."""
    rng = np.random.default_rng([seed, zlib.crc32(split.encode())])
    reasons = dropped.setdefault(split, {})
    if task.max_per_group is not None:
        groups = [
            rows[nested_random_subset(len(rows), task.max_per_group, rng=rng)]
            for _, rows in sorted(table.groupby("group").indices.items())
        ]
        kept = np.sort(np.concatenate(groups))
        reasons["per_group"] = len(table) - len(kept)
        table = table.iloc[kept]
    limit = getattr(task.limit, "test" if split.startswith(EXTRA_TEST_PREFIX) else split)
    if split == "train" and limit is not None:
        chosen = nested_stratified_subset(
            stratification_labels(table), limit, seed=seed
        )  # a rare label stays
    else:
        chosen = nested_random_subset(len(table), limit, rng=rng)
    if len(chosen) < len(table):
        reasons["limit"] = len(table) - len(chosen)
    return table.iloc[chosen].reset_index(drop=True)
