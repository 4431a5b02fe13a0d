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
from lineage.data import Task, second_test
from lineage.errors import InputError, shown
from lineage.kind import COLUMN_KEYS, Columns, Kind, RowError, check_task, filled_rows, metrics_of
from lineage.loading.carving import carve, of_groups_in_train, repeats, repeats_in_folds
from lineage.loading.golds import NAMES, answerable, named, tag_metric, unlearned_tags, unread_spans
from lineage.loading.sourcing import Table, resolve, task_tables
from lineage.loading.subsets import nested_choice, nested_subset, strata
from lineage.loading.taskdata import SECOND
from lineage.loading.unlabelled import column_of, unlabelled
from lineage.microworld import examples, grammar
from lineage.microworld import tasks as microworld

LEAST_OF_NUMBERS = 3  # in a fold: the correlation of two is 1 or -1


@dataclass(frozen=True)
class Items:
    """A task ready to be learned: a table a split, and what task.json says."""

    splits: dict[str, pd.DataFrame]
    facts: dict[str, Any]


def task_facts(task: Task, root: Path, where: str) -> dict[str, Any]:
    """What tells a task's data from any other: the digests of its files, a Hub revision, or a generator's version and seed."""
    record, how = resolve(task, root, where)
    assert isinstance(record, Task)
    if record.generated == "examples":
        return {"read": how, "generator": record.generated, "sha256": file_digest(examples.PATH)}
    if how == "generated":
        return {"read": how, "generator": record.generated, "version": grammar.VERSION, "grammar_seed": grammar.seed_of(record.grammar_seed)}
    found: dict[str, Any] = {"read": how, "splits": {split: table.facts() for split, table in task_tables(record, root, where).items()}}
    return found | {"also_test": {n: task_facts(second_test(task, n, where), root, f"{where}.also_test.{n}") for n in task.also_test}}


def check_files(task: Task, kind: Kind, *, root: Path, where: str, deep: bool, second: bool = False) -> None:
    """Raise InputError for keys that do not fit the kind, for files that are missing and, where `deep`, that are empty, damaged or lack a column."""
    record, how = resolve(task, root, where)
    assert isinstance(record, Task)
    check_task(record, kind, where, second=second)
    if how != "generated":
        for split, table in task_tables(record, root, where).items():
            if deep:
                table.check(_wanted(record, split, table))
    for name in task.also_test:
        check_files(second_test(task, name, where), kind, root=root, where=f"{where}.also_test.{name}", deep=deep, second=True)


def build(name: str, task: Task, kind: Kind, *, seed: int, root: Path, where: str) -> Items:
    """Read a task and make its items. Raises InputError that names the file and the row."""
    record, found, ceilings = _read(name, task, kind, seed=seed, root=root, where=where)
    records = dict.fromkeys(found, record)
    for second in task.also_test:
        records[SECOND + second], found[SECOND + second] = _second(task, second, root, where)
    dropped: dict[str, dict[str, int]] = {split: {} for split in found}
    labelled = {split: both for split, both in found.items() if split != "unlabelled"}
    splits = {split: _items(columns, split, records[split], kind, place, dropped) for split, (columns, place) in labelled.items()}
    places = {split: place for split, (_, place) in found.items()}
    splits = named(splits, places, records, dropped, where)
    labels = NAMES[kind.answer](splits, places, {split: records[split].label or "" for split in splits}) if kind.answer else []
    carved = carve(splits, record, dropped, grouped=task.group is not None, seed=seed, where=where) if kind.trained and not task.folds else 0
    if kind.answer == "span":
        answerable(splits, places, dropped, folds=task.folds)
    splits = {split: _limited(table, split, records.get(split, record), dropped, seed=seed) for split, table in splits.items()}
    if kind.trained and labels and kind.answer != "choice":
        _check_limited(splits["train"]["label"], len(labels), kind, places["train"])
    if task.folds:
        _check_folds(splits["train"], task, kind, places["train"])
    for split, table in splits.items() if kind.whole else ():
        kind.whole(table, record, places[split])  # type: ignore[misc]
    cut = {split: int(table.pop("cut").sum()) for split, table in splits.items()}
    lost = {split: int((table["label"].map(len) == 0).sum()) for split, table in splits.items()} if kind.answer == "span" else {}
    mended, blank = ({split: int(table.pop(name).sum()) for split, table in splits.items() if name in table} for name in ("mended", "blank"))
    if "unlabelled" in found:
        splits["unlabelled"], dropped["unlabelled"] = unlabelled(found, records, kind, splits, seed=seed)
    own = kind.metrics[0] if kind.answer != "tags" else tag_metric(labels, record.metric or (), where)
    grouped = {split for split in splits if (records[split] if split.startswith(SECOND) else task).group}  # a generated task names its own groups
    facts = {"name": name, "kind": kind.name, "language": record.language, "answer": kind.answer, "labels": labels,
             "metric": metrics_of(record, kind, own=own), "symmetric": record.symmetric, "heads": list(record.heads),
             "counts": {s: len(t) for s, t in splits.items()}, "dropped": dropped, "cut": cut, "lost": lost, "mended_tags": mended,
             "blank_words": blank, "unlearned_tags": unlearned_tags(splits, kind), **unread_spans(labels, kind, record), "carved": carved,
             "repeated_in_train": repeats(splits, record, kind), "repeated_in_folds": repeats_in_folds(splits, task, kind),
             "group_in_train": of_groups_in_train(splits, grouped), "has": sorted(splits),
             "also_test": [*task.also_test], "folds": task.folds, "grouped": task.group is not None,
             "validation_share": task.validation_share, **ceilings}  # fmt: skip
    _index(splits, labels, kind)
    return Items(splits, facts)


def _read(name: str, task: Task, kind: Kind, *, seed: int, root: Path, where: str) -> tuple[Task, dict[str, tuple[Columns, str]], dict[str, Any]]:
    """The task as it is read, each split's columns with the place for messages, and its ceilings where it is a generated one."""
    record, how = resolve(task, root, where)
    assert isinstance(record, Task)
    check_task(record, kind, where)
    if how == "generated":
        return _generated(name, record, kind, seed=seed, where=where)
    tables = task_tables(record, root, where)
    found = {split: (table.columns(_wanted(record, split, table)), table.place) for split, table in tables.items()}
    _check_first_lines(record, kind, found)
    return record, found, {"ceilings": None, "ceiling_groups": {}}


def _check_first_lines(task: Task, kind: Kind, found: dict[str, tuple[Columns, str]]) -> None:
    """Raise InputError where several files begin with names of columns, other ones than `columns` gives: they would be an item and a class."""
    label, files = task.label, task.files or {}
    if task.columns is None or kind.answer != "label" or label is None:
        return
    own = [(columns, rows[0]) for columns in {files[split]: found[split][0] for split in files if split != "unlabelled"}.values()
           if (rows := filled_rows(columns))]  # fmt: skip
    first = {tuple(str(values[row]) for values in columns.values()) for columns, row in own}
    alone = all(columns[label].count(columns[label][row]) == 1 and str(columns[label][row]) not in task.renamed for columns, row in own)
    if len(own) > 1 and len(first) == 1 and alone:
        raise InputError(f"{found['train'][1]}: its first line is that of the other splits too, and its '{label}' stands nowhere else: if it holds "
                         "names of columns, give those, in columns and in what names them; if not, say so in 'names'")  # fmt: skip


def _index(splits: dict[str, pd.DataFrame], labels: list[str], kind: Kind) -> None:
    """Labels and tags become their places among the names."""
    place_of = {label: i for i, label in enumerate(labels)}
    for table in splits.values() if labels else ():
        if kind.answer == "tags" and "label" in table:
            table["label"] = [[place_of[tag] for tag in tags] for tags in table["label"]]
        elif "label" in table:
            table["label"] = table["label"].map(place_of).astype("int64")


def _generated(name: str, task: Task, kind: Kind, *, seed: int, where: str) -> tuple[Task, dict[str, tuple[Columns, str]], dict[str, Any]]:
    """The microworld's task of this name, or the examples, as if their tables were a user's."""
    try:
        made = (examples.task(name, language=task.language) if task.generated == "examples" else
                microworld.task(name, seed=seed, grammar_seed=grammar.seed_of(task.grammar_seed), language=task.language))  # fmt: skip
    except InputError as error:
        raise InputError(f"{where}: {error}") from None
    if made.kind != kind.name:
        raise InputError(f"{where}.kind: the generated task '{name}' is of kind {made.kind}, not {kind.name}; correct the kind")
    named: dict[str, Any] = {key: (key,) if key == "text" else key for key in kind.needs}
    task = dataclasses.replace(task, group="group", **named)
    found = {split: ({str(c): list(table[c]) for c in table}, f"{where}: {split}") for split, table in made.splits.items()}
    for columns, _ in found.values():
        if "label" in columns and made.labels:
            columns["label"] = [made.labels[i] for i in columns["label"]]
    return task, found, {"ceilings": made.ceilings, "ceiling_groups": made.ceiling_groups}


def _second(task: Task, name: str, root: Path, where: str) -> tuple[Task, tuple[Columns, str]]:
    """A second test set: how it is read, and its columns with the place for messages. Raises InputError."""
    place = f"{where}.also_test.{name}"
    record, _ = resolve(second_test(task, name, where), root, place)
    assert isinstance(record, Task)
    table = task_tables(record, root, place)["test"]
    return record, (table.columns(_wanted(record, "test", table)), table.place)


def _check_limited(labels: "pd.Series[Any]", count: int, kind: Kind, where: str) -> None:
    """Raise InputError where the limit has left too few items in train for what is to be learned of them."""
    seen = labels.explode().nunique()
    if seen < (count if kind.answer == "label" else 2):
        raise InputError(
            f"{where}: limit.train or validation leaves {len(labels)} items, with {seen} of the {count} labels; raise the limit, or give more"
        )


def _check_folds(items: pd.DataFrame, task: Task, kind: Kind, where: str) -> None:
    """Raise InputError where a fold could not be test with something left to learn from, and something to choose by."""
    assert task.folds is not None
    count, what = (items["group"].nunique(), "groups") if task.group else (len(items), "items")
    if count < task.folds or count - math.ceil(count / task.folds) < 2:
        raise InputError(f"{where}: {count} {what} are too few for {task.folds} folds, each of which holds one at least, and leaves one to train and "
                         "one to validation; give more, or another number of folds")  # fmt: skip
    if kind.answer == "number":
        units = items.groupby("group" if task.group else "id")["label"]
        fewest, alone = int(units.size().nsmallest(count // task.folds).sum()), task.group and count < 2 * task.folds
        if fewest < LEAST_OF_NUMBERS or (alone and units.nunique().min() < 2):
            raise InputError(f"{where}: {len(items)} items in {count} {what} and {task.folds} folds: a fold may be {fewest} items, or a single group "
                             "with the same number in all, and have no correlation; give fewer folds, or more items")  # fmt: skip
    labels = strata(items)
    apart = pd.DataFrame({"label": labels, "unit": items["group"] if task.group else range(len(items))}).groupby("label")["unit"].nunique()
    if len(apart) > 1 and (apart > 1).sum() < 2:
        rare = ", ".join(f"'{shown(label)}'" for label in apart.index[apart < 2][:3])
        raise InputError(f"{where}: all items of label {rare} are in one fold, and what is learned without it knows one label; give more of them")


def _wanted(task: Task, split: str, table: Table) -> list[str]:
    """The columns that are read from a split; of unlabelled text only the text."""
    if split == "unlabelled":
        names = table.form.names if table.form and table.form.row == "line" else []
        return ["text" if table.plain else column_of(task), *(name for name in names if task.text and name == task.label)]
    given = [getattr(task, key) for key in COLUMN_KEYS if getattr(task, key) is not None]
    return list(dict.fromkeys(column for names in given for column in (names if isinstance(names, tuple) else (names,))))


def _items(columns: Columns, split: str, task: Task, kind: Kind, where: str, dropped: dict[str, dict[str, int]]) -> pd.DataFrame:
    """The kind's items; `id` is the split and the row of the user's table, the first of which is 1."""
    rows = filled_rows(columns)
    if blank_rows := len(next(iter(columns.values()))) - len(rows):
        dropped[split]["blank"] = blank_rows
        columns = {name: [values[row] for row in rows] for name, values in columns.items()}
    if not rows:
        raise InputError(f"{where}: every row is blank in {', '.join(columns)}; fill it, or correct which columns are named")
    try:
        table = kind.items(columns, task, where)
    except RowError as error:
        before, row, after = error.args
        raise RowError(before, rows[row], after) from None
    table.index = pd.Index([rows[row] for row in table.index])
    table.insert(0, "id", [f"{split}-{row + 1}" for row in table.index])
    if left_out := len(next(iter(columns.values()))) - len(table):
        dropped[split]["of_no_use"] = left_out
    if table.empty:
        raise InputError(f"{where}: no row is of use to kind {kind.name}; check which columns are named")
    return table.reset_index(drop=True)


def _limited(table: pd.DataFrame, split: str, task: Task, dropped: dict[str, dict[str, int]], *, seed: int) -> pd.DataFrame:
    """At most `per_group` items of a group, then at most `limit` in all."""
    rng = np.random.default_rng([seed, zlib.crc32(split.encode())])
    reasons = dropped.setdefault(split, {})
    if task.per_group is not None:
        groups = [rows[nested_choice(len(rows), task.per_group, rng=rng)] for _, rows in sorted(table.groupby("group").indices.items())]
        kept = np.sort(np.concatenate(groups))
        reasons["per_group"] = len(table) - len(kept)
        table = table.iloc[kept]
    limit = getattr(task.limit, "test" if split.startswith(SECOND) else split)
    if split == "train" and limit is not None:
        chosen = nested_subset(strata(table), limit, seed=seed)  # a rare label stays
    else:
        chosen = nested_choice(len(table), limit, rng=rng)
    if len(chosen) < len(table):
        reasons["limit"] = len(table) - len(chosen)
    return table.iloc[chosen].reset_index(drop=True)
