"""The interface between a task's data and all other code.

A *task* is a few lines of params.yaml. Its *kind*, one file of this package with `KIND =
Kind(...)`, turns the user's columns into *items*, a table with the same columns for every task of
the kind, and names the type of answer that they have. Code outside this package asks for its
properties or its answer, never for its name.
"""

import functools
import importlib
import pkgutil
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, fields
from typing import Any, Literal

import pandas as pd

import lineage.tasks
from lineage.answers.base import Answer
from lineage.answers.metrics import METRICS, RANKING_METRICS
from lineage.config.data import Task
from lineage.config.records import suggest_nearest
from lineage.errors import InputError
from lineage.tasks.columns import TableColumns, read_group_column
from lineage.tasks.recognition import Recognition

# Modules of this package that are not kinds.
SUPPORT_MODULES = ("base", "columns", "info", "probing", "recognition", "tagged_words")
Unit = Literal["text", "choice", "sentence", "word"]


@dataclass(frozen=True)
class Kind:
    """One kind of task, with everything that other code needs to know about it."""

    name: str
    # The part that gets one answer, and which vector a head reads: the pooled vector of a text, or
    # of a text with one of its choices; the vector of a word. A sentence is answered without a head.
    unit: Unit
    required_columns: tuple[str, ...]  # keys of the task that must name a column
    # (user's columns, task, where) -> items. They have the columns that what answers them reads:
    # for a head label and what `encode_items` reads (`lineage.methods.encoding`), for the
    # probability of sentences good and bad, for the vectors of words words, for a translator source
    # and target; and truncated, if items can be. The index is the user's row number; unusable rows
    # are left out. Raises InputError that names the row. If the task names no column for one of
    # `label_columns`, the items are new ones, without labels.
    make_items: Callable[[TableColumns, Task, str], pd.DataFrame]
    # (items, language) -> the texts that TF-IDF reads: one list for each text of an item
    extract_texts: Callable[[pd.DataFrame, str], list[list[str]]]
    answer: type[Answer]
    metrics: tuple[str, ...]  # that make sense; the first is the default

    may_truncate: bool = True  # False: an item that is cut would be another item
    # Columns whose texts a model must read, or learn to write, in one piece.
    whole_text_columns: tuple[str, ...] = ()
    # (items of a split, task, where): a last check, which raises InputError
    check_items: Callable[[pd.DataFrame, Task, str], None] | None = None
    optional_columns: tuple[str, ...] = ("group",)  # keys that may name a column
    label_columns: tuple[str, ...] = ("label",)  # keys whose columns only labelled items have
    # Those of them that a task may name for test alone, where they replace the others.
    test_label_columns: tuple[str, ...] = ()
    # Keys whose columns hold whole numbers; the others hold texts or lists of texts.
    integer_columns: tuple[str, ...] = ()
    # Item columns that make two items the same: everything that is read, without label, group, id.
    identity_columns: tuple[str, ...] = ()
    # `make_items` gives a column group, of items that belong together, if the task names none.
    makes_groups: bool = False
    # A model reads two texts of an item together, whatever number of columns `text` names.
    reads_pairs: bool = False
    # Keys that may name one column with lists of texts, in place of a column for each text.
    text_list_columns: tuple[str, ...] = ()
    # task -> the cells of a row that can be read, by column; None: any texts and zeros can.
    make_example: Callable[[Task], dict[str, Any]] | None = None
    # Its answers follow from the form of sentences, as probes of layers ask, and not their meaning.
    is_about_form: bool = False
    # The knowledge that a score measures, such as grammar, where nobody needs the answers
    # themselves. Empty: people have items whose labels a system can give.
    knowledge: str = ""
    # The columns by which `lineage init` recognizes the kind; None: it does not propose it.
    recognition: Recognition | None = None

    def __post_init__(self) -> None:
        unknown = {*self.required_columns, *self.optional_columns} - {*self.column_keys}
        assert not unknown, f"{self.name}: add {sorted(unknown)} to the fields of Task"

    @property
    def column_keys(self) -> tuple[str, ...]:
        """The keys of a task of this kind that name columns, in the order of `Task`."""
        own = {*self.required_columns, *self.optional_columns}
        return tuple(field.name for field in fields(Task) if field.name in own)

    def read_items(self, columns: TableColumns, task: Task, where: str) -> pd.DataFrame:
        """Return the items of a user's table, with the columns group and truncated."""
        items = self.make_items(columns, task, where)
        if "truncated" not in items:
            items = items.assign(truncated=False)
        if self.makes_groups and task.group is None:
            return items
        groups = read_group_column(columns, task.group, where)
        return items.assign(group=[groups[row] for row in items.index])

    def is_grouped(self, task: Task) -> bool:
        """Return whether items have groups, which splits and folds keep whole."""
        return self.makes_groups or task.group is not None

    @property
    def trains_head(self) -> bool:
        """A head is trained on the task's labels, over frozen features or with the network."""
        return self.answer.answered_by == "head"

    @property
    def has_train_split(self) -> bool:
        """Something is trained on the task's items; other kinds are answered zero-shot."""
        return self.answer.answered_by in ("head", "translator")

    @property
    def labels_new_items(self) -> bool:
        """A system of this kind is worth keeping: people have items whose labels it can give."""
        return not self.knowledge

    def suits_setfit(self, task: Task) -> bool:
        """Return whether SetFit can learn a task of this kind: one text has one label."""
        return self.unit == "text" and self.answer.has_one_label and not self.is_text_pair(task)

    def is_text_pair(self, task: Task) -> bool:
        """Return whether an item is two texts that are read together."""
        return self.reads_pairs or len(task.text or ()) == 2

    @property
    def input_columns(self) -> tuple[str, ...]:
        """The keys of the columns that an item is read from, without those of labels."""
        return tuple(key for key in self.required_columns if key not in self.label_columns)

    def keys_of_split(self, split: str, given: Collection[str]) -> list[str]:
        """Return the `given` keys of a task whose columns are read from the files of a split."""
        unread = self.test_label_columns
        if split == "test" and any(key in given for key in self.test_label_columns):
            unread = tuple(key for key in self.label_columns if key not in unread)
        return [key for key in given if key not in unread]

    @property
    def required_splits(self) -> tuple[str, ...]:
        """The splits that a task of this kind must have."""
        return ("train", "test") if self.has_train_split else ("test",)


@functools.cache
def list_kinds() -> tuple[str, ...]:
    """Return the names of all kinds: the modules of this package that are kinds."""
    modules = pkgutil.iter_modules(lineage.tasks.__path__)
    return tuple(module.name for module in modules if module.name not in SUPPORT_MODULES)


@functools.cache
def list_column_keys() -> tuple[str, ...]:
    """Return the keys that name columns for any kind, in the order of `Task`."""
    named = {key for name in list_kinds() for key in load_kind(name).column_keys}
    return tuple(field.name for field in fields(Task) if field.name in named)


def load_kind(name: str, where: str = "kind") -> Kind:
    """Return the kind of this name."""
    known = list_kinds()
    if name not in known:
        raise InputError(
            f"{where}: there is no kind of task '{name}'{suggest_nearest(name, known)}"
        )
    kind = importlib.import_module(f"lineage.tasks.{name}").KIND
    assert isinstance(kind, Kind) and kind.name == name
    return kind


def list_sentence_tasks(tasks: Mapping[str, Task], names: Iterable[str]) -> list[str]:
    """Return the names of the tasks that are answered by the probabilities of sentences."""
    return [
        name
        for name in names
        if load_kind(tasks[name].kind).answer.answered_by == "sentence_probability"
    ]


def check_task(task: Task, kind: Kind, where: str, *, is_extra_test_set: bool = False) -> None:
    """Raise InputError if the task's keys do not fit its kind."""
    _check_columns(task, kind, where)
    if not is_extra_test_set:
        _check_splits(task, kind, where)
    kind.answer.check_task(task, kind.name, where)
    if task.symmetric and kind.unit != "text":
        raise _unused_key(kind, f"{where}.symmetric")
    if task.probes != ("linear",) and not kind.trains_head:
        raise InputError(
            f"{where}.probes: no probe is trained for a task of kind {kind.name}; remove the key"
        )
    for metric in task.metric or ():
        if metric not in kind.metrics:
            raise InputError(
                f"{where}.metric: '{metric}' is not a metric of kind {kind.name}"
                f"{suggest_nearest(metric, kind.metrics)}"
            )
    if task.max_per_group is not None and not (task.group or task.generated):
        raise InputError(
            f"{where}.max_per_group: it needs 'group', the column that names the groups; add it, "
            "or remove max_per_group"
        )


def check_extra_texts(task: Task, extra: Task, kind: Kind, where: str) -> None:
    """Raise InputError if items of an extra test set have more or fewer texts than the task's."""
    num_texts = len(extra.text or ())
    own_num_texts = len(task.text or ())
    if num_texts != own_num_texts and not kind.reads_pairs:
        raise InputError(
            f"{where}.text: {num_texts} columns, but the task's own items have {own_num_texts}; "
            "name as many"
        )


def _unused_key(kind: Kind, key: str) -> InputError:
    return InputError(f"{key}: a task of kind {kind.name} does not use it; remove the key")


def _check_columns(task: Task, kind: Kind, where: str) -> None:
    for key in list_column_keys():
        is_given = getattr(task, key) is not None
        if is_given and key not in kind.column_keys:
            raise _unused_key(kind, f"{where}.{key}")
        if getattr(task, key) == ():
            raise InputError(
                f"{where}: '{key}' is empty; name at least one column, or remove the key"
            )
        if not is_given and key in kind.required_columns and not task.generated:
            raise InputError(
                f"{where}: the key '{key}' is missing; name the column of the data that holds it"
            )


def _check_splits(task: Task, kind: Kind, where: str) -> None:
    """Check that the splits which the kind needs are given, and that folds replace all others."""
    if not kind.has_train_split:
        for key, is_given in (("folds", task.folds), ("extra_test_sets", task.extra_test_sets)):
            if is_given:
                raise InputError(
                    f"{where}.{key}: a task of kind {kind.name} does not learn from labels; "
                    "remove the key"
                )
    if task.folds:
        _check_folds(task, where)
    origin = task.files or task.splits
    if origin is None:
        return
    required_splits = ("train",) if task.folds else kind.required_splits
    for split in required_splits:
        if split not in origin:
            block = "files" if task.files else "splits"
            folds = ""
            if split == "test" and kind.has_train_split:
                folds = ", or use 'folds', which test each item of train once"
            raise InputError(
                f"{where}: there is no {split} split; add '{split}:' to {block}{folds}"
            )


def _check_folds(task: Task, where: str) -> None:
    """Check that nothing but train is given: with folds each item of train is tested once."""
    if task.extra_test_sets:
        raise InputError(
            f"{where}.extra_test_sets: with folds each item of train is tested once, by a model of "
            "its fold; remove extra_test_sets, or folds"
        )
    origin = task.files or task.splits
    given_splits = {"generated"} if origin is None else {*origin}
    for given in ("generated", "test", "validation"):
        if given in given_splits:
            raise InputError(
                f"{where}.folds: {given} is given, but with folds each item of train is tested "
                "once; give train alone, or remove folds"
            )
    for split in ("validation", "test"):
        if getattr(task.limit, split) is not None:
            raise InputError(
                f"{where}.limit.{split}: with folds each item of train is tested once; remove the "
                "key, or limit train"
            )


def choose_metrics(task: Task, kind: Kind, *, default: str | None = None) -> list[str]:
    """Return the names of the metrics that score the task, keys of `answers.metrics.METRICS`.

    The first one ranks the systems: the first that the task names and that can rank, else the
    `default`, or the first of the kind.
    """
    default = default or kind.metrics[0]
    named = task.metric or ()
    ranking = [name for name in named if name in RANKING_METRICS]
    metrics = list(dict.fromkeys([*ranking, default, *named]))
    assert all(name in METRICS for name in metrics)
    return metrics
