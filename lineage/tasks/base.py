"""The seam between a task's data and everything else. A kind is one file in `lineage/tasks` that holds `KIND = Kind(...)`.

A *task* is a few lines of params.yaml: a kind, where its data is, and which columns hold what. Its kind turns the user's columns into
*items*, a table with the same columns for every task of the kind, and says what a reader of these items is scored by.
"""

import importlib
import math
import pkgutil
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import pandas as pd

import lineage.tasks
from lineage.config.data import Task
from lineage.config.records import suggest_nearest
from lineage.data.language import (
    cell_to_text,
    is_blank,
    normalize_text,
    split_words,
    truncate_pair_lengths,
    truncate_to_words,
)
from lineage.errors import InputError, display_width, shorten_value
from lineage.evaluation.metrics import METRICS, RANKING_METRICS

# Keys of a task that name columns.
COLUMN_KEYS = (
    "text",
    "choices",
    "label",
    "tokens",
    "source",
    "target",
    "context",
    "question",
    "answers",
    "answer_starts",
    "good",
    "bad",
    "words",
    "group",
)
TableColumns = dict[str, list[Any]]  # a user's table: values by column
DECIMAL_WHOLE_NUMBER = re.compile(r"(-?\d+)\.0+")
WHOLE_NUMBER = re.compile(r"-?\d+")
NON_FINITE = ("nan", "inf", "-inf")  # as a column of numbers has them where one is missing
MAX_NAME_WIDTH = 80  # letters of a label or a group, which reports and logs show: more are a text
MAX_BLANK_SHARE = (
    0.1  # of a split's rows may have a blank text: where more have, another column was meant
)
LIST_SEPARATOR = (
    "\x02"  # between the words of a cell in Hadoop's tables, and in PaddleNLP's of named entities
)
STRINGIFIED_LIST = re.compile(
    r"\[\s*(['\"]|-?\d|[\w.]+\().*\]", re.DOTALL
)  # of texts, of numbers, or of numpy's


@dataclass(frozen=True)
class Kind:
    """One kind of task. Labels and tags are texts in `items` and become indices when the splits are put together; numbers stay."""

    name: str
    required_columns: tuple[str, ...]  # keys of the task that must name a column
    # (user's columns, task, where) -> items with a column `cut`; the index tells the user's row, and rows of no use are left out.
    make_items: Callable[
        [TableColumns, Task, str], pd.DataFrame
    ]  # raises InputError that names the row
    extract_texts: Callable[
        [pd.DataFrame, str], list[list[str]]
    ]  # (items, language) -> what a reader without a network sees: a list for each text of an item
    metrics: tuple[str, ...]  # that make sense; the first is the default
    answer_type: Literal["label", "choice", "number", "tags", "span"] | None = (
        "label"  # what an item has as its gold one (`lineage.evaluation.answers`)
    )
    has_train_split: bool = True  # there is a train split
    check_items: Callable[[pd.DataFrame, Task, str], None] | None = (
        None  # (items of a split, task, where): a last check of them, which raises InputError
    )
    optional_columns: tuple[str, ...] = ("group",)  # keys that name a column where the data has one
    identity_columns: tuple[
        str, ...
    ] = ()  # item columns by which two items are the same: all that are read, and no label, group or id

    @property
    def required_splits(self) -> tuple[str, ...]:
        """The splits that a task of this kind must have."""
        return ("train", "test") if self.has_train_split else ("test",)


def load_kind(name: str, where: str = "kind") -> Kind:
    """The kind of this name. Raises InputError that names the nearest."""
    known = [m.name for m in pkgutil.iter_modules(lineage.tasks.__path__) if m.name != "base"]
    if name not in known:
        raise InputError(
            f"{where}: there is no kind of task '{name}'{suggest_nearest(name, known)}"
        )
    kind = importlib.import_module(f"lineage.tasks.{name}").KIND
    assert isinstance(kind, Kind) and kind.name == name
    return kind


def check_task(task: Task, kind: Kind, where: str, *, is_extra_test_set: bool = False) -> None:
    """Raise InputError where the task's keys do not fit its kind; `second`: where it is a second test set, which has no other split."""
    for key in COLUMN_KEYS:
        given = getattr(task, key) is not None
        if given and key not in (*kind.required_columns, *kind.optional_columns):
            raise InputError(
                f"{where}.{key}: a task of kind {kind.name} has no use for it; remove the key"
            )
        if not given and key in kind.required_columns and not task.generated:
            raise InputError(
                f"{where}: the key '{key}' is missing; name the column of the data that holds it"
            )
    if not is_extra_test_set:
        _check_splits(task, kind, where)
    _check_label_map(task, kind, where)
    if task.symmetric and kind.name not in ("text_classification", "text_regression"):
        raise InputError(
            f"{where}.symmetric: a task of kind {kind.name} has no use for it; remove the key"
        )
    if task.probes != ("linear",) and kind.answer_type is None:
        raise InputError(
            f"{where}.heads: a task of kind {kind.name} has no reader of frozen features; remove the key"
        )
    for metric in task.metric or ():
        if metric not in kind.metrics:
            raise InputError(
                f"{where}.metric: '{metric}' is no metric of kind {kind.name}{suggest_nearest(metric, kind.metrics)}"
            )
    if task.max_per_group is not None and not (task.group or task.generated):
        raise InputError(
            f"{where}.max_per_group: it needs 'group', the column that tells the groups; name it, or remove per_group"
        )


def _check_label_map(task: Task, kind: Kind, where: str) -> None:
    if task.label_map and kind.answer_type not in ("label", "tags"):
        raise InputError(
            f"{where}.names: a task of kind {kind.name} has no labels with names; remove the key"
        )
    for name in task.label_names_by_value.values() if kind.answer_type == "tags" else ():
        if name is None:
            raise InputError(
                f"{where}.names: null leaves out items with that label, and a tag is one word's; give it a name, such as O"
            )
        if len(name.split()) != 1:
            raise InputError(
                f"{where}.names: the tag '{name}' is not one word, and tags are written with spaces between; give it another name"
            )


def _check_splits(task: Task, kind: Kind, where: str) -> None:
    if (task.folds or task.extra_test_sets) and (
        not kind.has_train_split or kind.answer_type is None
    ):
        key = "folds" if task.folds else "extra_test_sets"
        raise InputError(
            f"{where}.{key}: a task of kind {kind.name} learns from no labels; remove the key"
        )
    if task.folds and task.extra_test_sets:
        raise InputError(
            f"{where}.extra_test_sets: with folds every item of train is test once, by a model of its own; take extra_test_sets out, or folds"
        )
    origin = task.files or task.splits
    if task.folds and (
        given := sorted({"validation", "test", "generated"} & {*(origin or ("generated",))})
    ):
        raise InputError(
            f"{where}.folds: {given[0]} is given, and with folds every item of train is test once; give train alone, or remove folds"
        )
    if task.folds and (
        unused := [
            split for split in ("validation", "test") if getattr(task.limit, split) is not None
        ]
    ):
        raise InputError(
            f"{where}.limit.{unused[0]}: with folds every item of train is test once; remove the key, or limit train"
        )
    for split in kind.required_splits[:1] if task.folds else kind.required_splits:
        if origin is not None and split not in origin:
            folds = (
                ", or have each item of train be test once with 'folds'"
                if split == "test" and kind.has_train_split and kind.answer_type is not None
                else ""
            )
            raise InputError(
                f"{where}: there is no {split} split; add '{split}:' to {'files' if task.files else 'splits'}{folds}"
            )


def choose_metrics(task: Task, kind: Kind, *, default: str | None = None) -> list[str]:
    """The names of the metrics by which the task is scored, each a key of `lineage.evaluation.metrics.METRICS`.

    First stands what ways are compared by: the first that the task names and ways can be compared by, or the `own` one, the kind's first if no other
    one is given, which is always among them.
    """
    default, named = default or kind.metrics[0], task.metric or ()
    chosen = list(
        dict.fromkeys([*(name for name in named if name in RANKING_METRICS), default, *named])
    )
    assert all(name in METRICS for name in chosen)
    return chosen


def make_text_items(columns: TableColumns, task: Task, where: str) -> pd.DataFrame:
    """Columns text, of two texts also second, both together cut at max_tokens words, and cut; rows with a blank text are left out.

    Raises InputError, also where more than a few rows have one.
    """
    assert task.text is not None
    if len(task.text) not in (1, 2):
        raise InputError(
            f"{where}: text: {list(task.text)} names {len(task.text)} columns; {task.kind} reads one text or two, name one or two"
        )
    if task.symmetric and len(task.text) == 1:
        raise InputError(
            f"{where}: symmetric is of two texts, and text names one column; name two, or take symmetric out"
        )
    text_columns = [read_cells(columns, name, where) for name in task.text]
    for name, column in zip(task.text, text_columns, strict=True):
        good = [not is_blank(text) for text in column]
        if good.count(False) > MAX_BLANK_SHARE * len(good):
            _check_all(good, where, f"column '{name}': the text is blank")
    kept = {
        row: texts
        for row, texts in enumerate(zip(*text_columns, strict=True))
        if not any(map(is_blank, texts))
    }
    short = [
        _truncate_pair(*texts, task)
        if len(texts) == 2
        else (truncate_to_words(texts[0], task.max_tokens, task.language),)
        for texts in kept.values()
    ]
    cut = [own != texts for own, texts in zip(short, kept.values(), strict=True)]
    return pd.DataFrame(
        short, columns=["text", "second"][: len(text_columns)], index=[*kept]
    ).assign(cut=cut)


def extract_item_texts(items: pd.DataFrame, language: str) -> list[list[str]]:
    """The texts of such items themselves, or the first and the second ones."""
    return [list(items[name]) for name in ("text", "second") if name in items]


def extract_item_words(items: pd.DataFrame, language: str) -> list[list[str]]:
    """Of items of single words a list for each place: the first words, the second ones, ..."""
    return [list(column) for column in zip(*items["words"], strict=True)]


def _truncate_pair(first: str, second: str, task: Task) -> tuple[str, str]:
    a, b = truncate_pair_lengths(
        len(split_words(first, task.language)),
        len(split_words(second, task.language)),
        max_length=task.max_tokens,
    )
    return truncate_to_words(first, a, task.language), truncate_to_words(second, b, task.language)


def read_text_column(
    columns: TableColumns, name: str, where: str, *, noun: str = "text"
) -> list[str]:
    """A column as clean texts. Raises InputError where one is missing or blank."""
    values = read_cells(columns, name, where)
    _check_all([not is_blank(v) for v in values], where, f"column '{name}': the {noun} is blank")
    return values


def read_label_column(columns: TableColumns, name: str, where: str) -> list[str]:
    """A column as label names: whole numbers without a point. Raises InputError where one is missing, also where it is `nan` among numbers."""
    values = [normalize_label(value) for value in read_cells(columns, name, where)]
    numbers = all(v.lower() in NON_FINITE or WHOLE_NUMBER.fullmatch(v) for v in values)
    _check_all(
        [not is_blank(v) and not (numbers and v.lower() in NON_FINITE) for v in values],
        where,
        f"column '{name}': the label is missing",
    )
    return _check_name_lengths(values, name, where, noun="label")


def _check_name_lengths(values: list[str], name: str, where: str, *, noun: str) -> list[str]:
    """The same, each short enough for a name. Raises InputError."""
    long = f"column '{name}': the {noun} has more than {MAX_NAME_WIDTH} letters, and reports show it: it is taken for a text (wide letters count as five)"
    _check_all([display_width(value) <= MAX_NAME_WIDTH for value in values], where, long)
    return values


def normalize_label(text: str) -> str:
    """`1` of 1.0, as csv and parquet hold a column of whole numbers of which one was missing once."""
    found = DECIMAL_WHOLE_NUMBER.fullmatch(text)
    return found[1] if found else text


def parse_integer(value: Any) -> int:
    """The whole number of a cell, also as a column with gaps has it: 5.0. Raises TypeError, ValueError or OverflowError at anything else."""
    if isinstance(value, bool) or "_" in str(value) or (number := float(value)) != int(number):
        raise ValueError
    return int(number)


def read_number_column(columns: TableColumns, name: str, where: str) -> list[float]:
    """A column as numbers. Raises InputError where a value is none, or is not finite."""
    found = []
    for row, value in enumerate(columns[name]):
        try:
            number = float(value)
            if (
                isinstance(value, bool) or "_" in str(value) or not math.isfinite(number)
            ):  # 1_000 is a number to Python alone
                raise ValueError
        except (TypeError, ValueError):
            raise row_error(
                row, where, f"column '{name}': '{shorten_value(value)}' is no number"
            ) from None
        found.append(number)
    return found


def parse_list(
    value: Any, row: int, name: str, where: str, *, allow_blank: bool = False
) -> list[str]:
    """A cell as a list of words, tags or choices; a text is cut at its spaces (csv and txt have no lists), or at the signs some have in their place.

    An entry may be blank with `blanks` alone. Raises InputError at what is no list.
    """
    if not isinstance(value, str | list | tuple) and not hasattr(value, "tolist"):
        raise row_error(
            row,
            where,
            f"column '{name}' holds no list"
            if value is not None
            else f"column '{name}': an entry is blank, or there are none",
        )
    if isinstance(value, str) and STRINGIFIED_LIST.fullmatch(value):
        raise row_error(
            row,
            where,
            f"column '{name}' holds a list written as text; write the words with spaces between them, or use jsonl or parquet",
        )
    try:
        found = [
            normalize_text(cell_to_text(one))
            for one in (
                value.split(LIST_SEPARATOR if LIST_SEPARATOR in value else None)
                if isinstance(value, str)
                else value
            )
        ]
    except TypeError as error:
        raise row_error(row, where, f"column '{name}': an entry {error}") from None
    if not found or not (allow_blank or all(found)):
        raise row_error(row, where, f"column '{name}': an entry is blank, or there are none")
    return found


def read_cells(columns: TableColumns, name: str, where: str) -> list[str]:
    """A column as clean texts, blank where a value is missing. Raises InputError where one is no single value."""
    values = []
    for row, value in enumerate(columns[name]):
        try:
            values.append(normalize_text(cell_to_text(value)))
        except TypeError as error:
            raise row_error(row, where, f"column '{name}' {error}") from None
    return values


def read_group_column(columns: TableColumns, name: str | None, where: str) -> list[str]:
    """The group of each item; `all` where the task names no column. Raises InputError where one of several is called so."""
    if name is None:
        return ["all"] * len(next(iter(columns.values())))
    found = _check_name_lengths(
        read_text_column(columns, name, where, noun="group"), name, where, noun="group"
    )
    if len({*found}) > 1:
        _check_all(
            [group != "all" for group in found],
            where,
            f"column '{name}': 'all' is what all groups together are called",
        )
    return found


def read_word_columns(
    columns: TableColumns, task: Task, where: str, *, num_words: int
) -> list[list[str]]:
    """Each item's words, from the columns that `words` names. Raises InputError where it names another number, or where a word is blank."""
    names = task.words or ()
    if len(names) != num_words:
        raise InputError(
            f"{where}: words: {list(names)} names {len(names)} columns; {task.kind} reads {num_words} words, name a column for each"
        )
    return [
        list(own)
        for own in zip(
            *(read_text_column(columns, name, where, noun="word") for name in names), strict=True
        )
    ]


def sort_labels(labels: Sequence[str]) -> list[str]:
    """The distinct labels, sorted: as numbers where all are whole numbers."""
    distinct = sorted(set(labels))  # 1 and 01 are two labels, and one number
    return (
        sorted(distinct, key=int)
        if all(WHOLE_NUMBER.fullmatch(name) for name in distinct)
        else distinct
    )


class RowError(InputError):
    """An error about a row: what stands before its number, the number, counted from 0, and what stands after it."""

    def __str__(self) -> str:
        before, row, after = self.args
        return f"{before}{row + 1}{after}"


def row_error(row: int, where: str, problem: str, num_others: int = 0) -> RowError:
    """An error that names a row of the user's data; the first row of data is row 1."""
    more = f" (and {num_others} more)" if num_others else ""
    return RowError(
        f"{where}: row ", row, f"{more}: {problem}; correct the data, or remove the row"
    )


def find_filled_rows(columns: TableColumns) -> list[int]:
    """The rows that hold anything in any of the columns. Below the table of a spreadsheet there may be others."""
    return [
        row
        for row, values in enumerate(zip(*columns.values(), strict=True))
        if not all(map(_is_empty, values))
    ]


def _is_empty(value: Any) -> bool:
    if isinstance(value, str | float):
        return is_blank(cell_to_text(value))
    return value is None or (isinstance(value, list) and not value)


def _check_all(valid: list[bool], where: str, problem: str) -> None:
    if not all(valid):
        raise row_error(valid.index(False), where, problem, valid.count(False) - 1)
