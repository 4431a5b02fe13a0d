"""A task's items from its data: what its kind makes of the user's columns, put into splits, limited, and counted."""

import dataclasses
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from lineage.errors import InputError
from lineage.kind import COLUMN_KEYS, Columns, Kind, cells, check_task, label_names, metrics_of
from lineage.microworld import grammar
from lineage.microworld import tasks as microworld
from lineage.params import Task
from lineage.sourcing import resolve, task_tables
from lineage.subsets import nested_choice, nested_subset, strata
from lineage.tags import broken, iob2, is_spans
from lineage.text import first_words

LABELLED = ("train", "validation", "test")


@dataclass(frozen=True)
class Items:
    """A task ready to be learned: a table a split, and what task.json says."""

    splits: dict[str, pd.DataFrame]
    facts: dict[str, Any]


def task_facts(task: Task, root: Path, where: str) -> dict[str, Any]:
    """What tells a task's data from any other: the digests of its files, a Hub revision, or a generator's version and seed."""
    record, how = resolve(task, root, where)
    assert isinstance(record, Task)
    if how == "generated":
        return {"read": how, "generator": record.generated, "version": grammar.VERSION, "grammar_seed": _grammar_seed(record)}
    return {"read": how, "splits": {split: table.facts() for split, table in task_tables(record, root, where).items()}}


def check_files(task: Task, kind: Kind, *, root: Path, where: str, deep: bool) -> None:
    """Raise InputError for keys that do not fit the kind, for files that are missing and, where `deep`, that are empty, damaged or lack a column."""
    record, how = resolve(task, root, where)
    assert isinstance(record, Task)
    check_task(record, kind, where)
    if how != "generated":
        for split, table in task_tables(record, root, where).items():
            if deep:
                table.check(_wanted(record, split))


def build(name: str, task: Task, kind: Kind, *, seed: int, root: Path, where: str) -> Items:
    """Read a task and make its items. Raises InputError that names the file and the row."""
    record, how = resolve(task, root, where)
    assert isinstance(record, Task)
    check_task(record, kind, where)
    ceilings: dict[str, Any] = {"ceilings": None, "ceiling_groups": {}}
    if how == "generated":
        record, found, ceilings = _generated(name, record, kind, seed=seed, where=where)
    else:
        tables = task_tables(record, root, where)
        found = {split: (table.columns(_wanted(record, split)), f"{table.where}: {table.name}") for split, table in tables.items()}
    dropped: dict[str, dict[str, int]] = {split: {} for split in found}
    splits = {split: _items(columns, split, record, kind, place, dropped) for split, (columns, place) in found.items() if split != "unlabelled"}
    places = {split: place for split, (_, place) in found.items()}
    labels = NAMES[kind.answer](splits, places) if kind.answer else []
    carved = _carve(splits, record, seed=seed, where=where) if kind.trained else 0
    splits = {split: _limited(splits[split], split, record, dropped, seed=seed) for split in LABELLED if split in splits}
    for split, table in splits.items() if kind.whole else ():
        kind.whole(table, record, places[split])  # type: ignore[misc]
    cut = {split: int(table.pop("cut").sum()) for split, table in splits.items()}
    mended = {split: int(table.pop("mended").sum()) for split, table in splits.items() if "mended" in table}
    if "unlabelled" in found:
        splits["unlabelled"] = _unlabelled(*found["unlabelled"], record, dropped, _scored(splits, kind, record), seed=seed)
    own = kind.metrics[0] if kind.answer != "tags" else tag_metric(labels, record.metric or (), where)
    place_of = {label: i for i, label in enumerate(labels)}
    for table in splits.values() if labels else ():
        if kind.answer == "tags" and "label" in table:
            table["label"] = [[place_of[tag] for tag in tags] for tags in table["label"]]
        elif "label" in table:
            table["label"] = table["label"].map(place_of).astype("int64")
    facts = {"name": name, "kind": kind.name, "language": record.language, "answer": kind.answer, "labels": labels,
             "metric": metrics_of(record, kind, own=own), "symmetric": record.symmetric, "heads": list(record.heads),
             "max_tokens": record.max_tokens, "counts": {s: len(t) for s, t in splits.items()}, "dropped": dropped, "cut": cut,
             "carved": carved, "mended_tags": mended,
             "repeated_in_train": _repeats(splits, kind), "has": sorted(splits), **ceilings}  # fmt: skip
    return Items(splits, facts)


def _generated(name: str, task: Task, kind: Kind, *, seed: int, where: str) -> tuple[Task, dict[str, tuple[Columns, str]], dict[str, Any]]:
    """The microworld's task of this name, as if its tables were a user's."""
    try:
        made = microworld.task(name, seed=seed, grammar_seed=_grammar_seed(task))
    except InputError as error:
        raise InputError(f"{where}: {error}; a generated task is named by its key") from None
    if made.kind != kind.name:
        raise InputError(f"{where}.kind: the generated task '{name}' is of kind {made.kind}, not {kind.name}; correct the kind")
    named: dict[str, Any] = {key: (key,) if key == "text" else key for key in kind.needs}
    task = dataclasses.replace(task, group="group", **named)
    found = {split: ({str(c): list(table[c]) for c in table}, f"{where}: {split}") for split, table in made.splits.items()}
    for columns, _ in found.values():
        if "label" in columns and made.labels:
            columns["label"] = [made.labels[i] for i in columns["label"]]
    return task, found, {"ceilings": made.ceilings, "ceiling_groups": made.ceiling_groups}


def _wanted(task: Task, split: str) -> list[str]:
    """The columns that are read from a split; of unlabelled text only the text."""
    if split == "unlabelled":
        plain = ".txt" in Path({**(task.files or {})}.get("unlabelled", "")).suffixes[-2:]
        return [task.text[0] if task.text and not plain else "text"]
    given = [getattr(task, key) for key in COLUMN_KEYS if getattr(task, key) is not None]
    return list(dict.fromkeys(column for names in given for column in (names if isinstance(names, tuple) else (names,))))


def _items(columns: Columns, split: str, task: Task, kind: Kind, where: str, dropped: dict[str, dict[str, int]]) -> pd.DataFrame:
    """The kind's items; `id` is the split and the row of the user's table, the first of which is 1."""
    table = kind.items(columns, task, where)
    table.insert(0, "id", [f"{split}-{row + 1}" for row in table.index])
    if left_out := len(next(iter(columns.values()))) - len(table):
        dropped[split]["of_no_use"] = left_out
    if table.empty:
        raise InputError(f"{where}: no row is of use to kind {kind.name}; check which columns are named")
    return table.reset_index(drop=True)


def _check_labels(splits: dict[str, pd.DataFrame], places: dict[str, str]) -> list[str]:
    """The names of the labels, which train decides. Raises InputError where another split has one that train lacks."""
    labels = label_names(list(splits["train"]["label"]))
    if len(labels) < 2:
        raise InputError(f"{places['train']}: every label is '{labels[0]}'; there is nothing to learn, check the column that 'label' names")
    for split, table in splits.items():
        if strange := sorted(set(table["label"]) - set(labels)):
            first = table.iloc[int(table["label"].isin(strange).to_numpy().argmax())]
            raise InputError(f"{places[split]}: row {str(first['id']).split('-')[1]}: label '{first['label']}' does not occur in train, which has "
                             f"{', '.join(labels[:8])}{' ...' if len(labels) > 8 else ''}; correct it, or add such items to train")  # fmt: skip
    return labels


def _check_choices(splits: dict[str, pd.DataFrame], places: dict[str, str]) -> list[str]:
    """The places of the choices, which are the labels whether or not train has them all. Raises InputError where a split has another number."""
    counts = {split: len(table["choices"].iloc[0]) for split, table in splits.items()}
    for split, count in counts.items():
        if count != counts["train"]:
            raise InputError(f"{places[split]}: its items have {count} choices, those of train {counts['train']}; give all of them as many")
    return [str(place) for place in range(counts["train"])]


def _check_numbers(splits: dict[str, pd.DataFrame], places: dict[str, str]) -> list[str]:
    """Numbers have no names. Raises InputError where all of train are the same."""
    if splits["train"]["label"].nunique() < 2:
        raise InputError(
            f"{places['train']}: every number is {splits['train']['label'].iloc[0]}; there is nothing to learn, check what 'label' names"
        )
    return []


def _check_tags(splits: dict[str, pd.DataFrame], places: dict[str, str]) -> list[str]:
    """The tags of all splits, spans in IOB2 whatever scheme they were written in. Raises InputError."""
    if is_spans({tag for table in splits.values() for tags in table["label"] for tag in tags}):
        for split, table in splits.items():
            table["mended"] = broken(list(table["label"]))
            table["label"] = [_in_iob2(tags, row_id, places[split]) for tags, row_id in zip(table["label"], table["id"], strict=True)]
    names = {split: {tag for tags in table["label"] for tag in tags} for split, table in splits.items()}
    if len(names["train"]) < 2:
        raise InputError(f"{places['train']}: every tag is '{next(iter(names['train']))}'; there is nothing to learn, check what 'label' names")
    return label_names([tag for some in names.values() for tag in some])


def _in_iob2(tags: list[str], row_id: str, where: str) -> list[str]:
    try:
        return iob2(tags)
    except InputError as error:
        raise InputError(f"{where}: row {row_id.split('-')[1]}: {error}") from None


NAMES: dict[str, Callable[[dict[str, pd.DataFrame], dict[str, str]], list[str]]] = {
    "label": _check_labels, "choice": _check_choices, "number": _check_numbers, "tags": _check_tags}  # fmt: skip


def tag_metric(labels: list[str], asked: Sequence[str], where: str) -> str:
    """F1 of spans where tags are of spans, else the share of tags that are right. Raises InputError where spans are asked for and there are none."""
    if is_spans(labels):
        return "span_f1"
    if "span_f1" in asked:
        raise InputError(f"{where}.metric: span_f1 is of spans, and the tags ({', '.join(labels[:5])}, ...) are neither O nor B-TYPE nor I-TYPE"
                         f"{' but numbers: write their names' if all(map(str.isdecimal, labels)) else ''}; take it out, or name another "
                         "column")  # fmt: skip
    return "token_accuracy"


def _carve(splits: dict[str, pd.DataFrame], task: Task, *, seed: int, where: str) -> int:
    """Take validation out of train where none is given; how many items were taken."""
    if "validation" in splits:
        return 0
    train = splits["train"]
    count = round(task.validation_share * len(train))
    if not 0 < count < len(train):
        raise InputError(f"{where}: there is no validation split, and {task.validation_share} of {len(train)} training items leaves one side empty; "
                         "give a validation split, or change validation_share")  # fmt: skip
    labels = strata(train)
    chosen = nested_subset(labels, count, seed=seed)
    kept = {label: np.flatnonzero(labels == label) for label in np.unique(labels)}
    only = [int(rows[0]) for rows in kept.values() if set(rows.tolist()) <= set(chosen.tolist())]  # no label leaves train altogether
    chosen = np.setdiff1d(chosen, only)
    if len(chosen) == 0:
        raise InputError(f"{where}: there is no validation split, and hardly a label has items to spare for one; give one, or more items")
    splits["validation"] = train.iloc[chosen].reset_index(drop=True)
    splits["train"] = train.drop(index=list(chosen)).reset_index(drop=True)
    return len(chosen)


def _limited(table: pd.DataFrame, split: str, task: Task, dropped: dict[str, dict[str, int]], *, seed: int) -> pd.DataFrame:
    """At most `per_group` items of a group, then at most `limit` in all."""
    rng = np.random.default_rng([seed, zlib.crc32(split.encode())])
    reasons = dropped.setdefault(split, {})
    if task.per_group is not None:
        groups = [rows[nested_choice(len(rows), task.per_group, rng=rng)] for _, rows in sorted(table.groupby("group").indices.items())]
        kept = np.sort(np.concatenate(groups))
        reasons["per_group"] = len(table) - len(kept)
        table = table.iloc[kept]
    chosen = nested_choice(len(table), getattr(task.limit, split), rng=rng)
    if len(chosen) < len(table):
        reasons["limit"] = len(table) - len(chosen)
    return table.iloc[chosen].reset_index(drop=True)


def _scored(splits: dict[str, pd.DataFrame], kind: Kind, task: Task) -> set[str]:
    """Every text that validation or test holds, cut as unlabelled text is before the two are compared (some kinds cut nothing)."""
    found: set[str] = set()
    for split in ("validation", "test"):
        if split in splits:
            found = found.union(*kind.texts(splits[split], task.language))
    return {first_words(text, task.max_tokens, task.language) for text in found}


def _unlabelled(columns: Columns, where: str, task: Task, dropped: dict[str, dict[str, int]], scored: set[str], *, seed: int) -> pd.DataFrame:
    """Running text: what is blank is dropped and counted, as in a corpus; and so is what is scored, which no model may adapt to (transduction)."""
    texts = cells(columns, task.text[0] if task.text and task.text[0] in columns else "text", where)
    table = pd.DataFrame([(f"unlabelled-{row}", text) for row, text in enumerate(texts, 1) if text], columns=["id", "text"], dtype="str")
    if table.empty:
        raise InputError(f"{where}: every row is blank; fill it, or take the split out")
    if blank := len(texts) - len(table):
        dropped["unlabelled"]["blank"] = blank
    seen = table["text"].map(lambda text: first_words(text, task.max_tokens, task.language) in scored)
    if seen.any():
        dropped["unlabelled"]["scored"], table = int(seen.sum()), table[~seen]
    if table.empty:
        raise InputError(f"{where}: every text is one of validation or test; give others, or take the split out")
    rng = np.random.default_rng([seed, zlib.crc32(b"unlabelled")])
    chosen = nested_choice(len(table), task.limit.unlabelled, rng=rng)
    if len(chosen) < len(table):
        dropped["unlabelled"]["limit"] = len(table) - len(chosen)
    return table.iloc[chosen].reset_index(drop=True)


def _repeats(splits: dict[str, pd.DataFrame], kind: Kind) -> dict[str, int]:
    """How many items of validation and test are read word for word in train; they are counted, not removed."""
    if "train" not in splits:
        return {}
    reads = [column for column in kind.reads if column in splits["train"]]
    seen = {split: splits[split][reads].astype(str).agg("\0".join, axis=1) for split in LABELLED if split in splits}
    return {split: int(keys.isin(set(seen["train"])).sum()) for split, keys in seen.items() if split != "train"}


def _grammar_seed(record: Task) -> int:
    return grammar.DEFAULT_GRAMMAR_SEED if record.grammar_seed is None else record.grammar_seed
