"""Infer the kind of task of a user's table, and the column of a corpus that holds its texts."""

from collections import Counter
from itertools import chain

from lineage.errors import InputError, is_short_name, shorten_value
from lineage.tasks.base import Kind, list_kinds, load_kind
from lineage.tasks.columns import TableColumns
from lineage.tasks.recognition import (
    GROUP_NAME,
    SIGNS,
    Column,
    ColumnChoice,
    Recognition,
    RequestedColumns,
    SampleTable,
)

MIN_GROUPS = 5  # fewer cannot be split into folds and validation
MAX_GROUP_SHARE = 0.3  # of the rows in one group: a larger one would fill a fold alone


def list_recognized_kinds() -> list[Kind]:
    """Return the kinds that `lineage init` proposes, those with the surest signs first."""
    kinds = [kind for kind in map(load_kind, list_kinds()) if kind.recognition is not None]
    return sorted(kinds, key=lambda kind: SIGNS.index(_recognition(kind).sign))


def _recognition(kind: Kind) -> Recognition:
    assert kind.recognition is not None, f"{kind.name} is not proposed"
    return kind.recognition


def choose_columns(
    table: TableColumns, requested: RequestedColumns, task: str, where: str
) -> tuple[Kind, ColumnChoice]:
    """Return the kind of task, and its columns; one of the task's name is its label.

    Raises InputError.
    """
    sample = _make_sample(table, requested, task, where)
    for name in (*requested.text, *filter(None, [requested.label])):
        if name not in table:
            raise sample.refusal(f"there is no column '{name}'")
    kinds = list_recognized_kinds() if requested.kind is None else [load_kind(requested.kind)]
    for kind in kinds:
        choice = _recognition(kind).choose(sample)
        if choice is not None:
            return kind, choice
    raise sample.refusal(f"kind={kind.name} needs {_recognition(kind).needs}")


def find_group_column(table: TableColumns, choice: ColumnChoice) -> str | None:
    """Return the column that says by its name which rows belong together, such as `author`.

    None if the choice of columns needs all that have such names, or if its values are no names.
    """
    used = [[one] if isinstance(one, str) else one for one in choice.keys.values()]
    for name, values in table.items():
        column = Column(name, values)
        if not GROUP_NAME.fullmatch(name) or name in chain.from_iterable(used):
            continue
        are_names = len(column.filled) == len(values) and all(map(is_short_name, column.texts))
        if not are_names or column.is_list or column.num_distinct < MIN_GROUPS:
            continue
        if Counter(column.texts).most_common(1)[0][1] <= MAX_GROUP_SHARE * len(values):
            return name
    return None


def _make_sample(
    table: TableColumns, requested: RequestedColumns, task: str, where: str
) -> SampleTable:
    columns = {name: Column(name, values) for name, values in table.items()}
    return SampleTable(columns, requested, task, where)


def choose_corpus_text(table: TableColumns, where: str) -> tuple[str, tuple[str, ...]]:
    """Return the column with the texts of a corpus, and others. Raises InputError."""
    if len(table) == 1:
        return next(iter(table)), ()
    texts, others = _make_sample(table, RequestedColumns(), "", where).choose_texts()
    if len(texts) > 1:
        raise InputError(
            f"{where}: 2 columns look like texts: {', '.join(map(shorten_value, texts))}; name "
            f"one, as text={shorten_value(texts[0])}"
        )
    return texts[0], others
