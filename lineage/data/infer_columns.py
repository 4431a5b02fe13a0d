"""Infer the kind of task of a user's table, and the column of a corpus that holds its texts."""

from lineage.errors import InputError, shorten_value
from lineage.tasks.base import Kind, list_kinds, load_kind
from lineage.tasks.columns import TableColumns
from lineage.tasks.recognition import (
    SIGNS,
    Column,
    ColumnChoice,
    Recognition,
    RequestedColumns,
    SampleTable,
)


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
