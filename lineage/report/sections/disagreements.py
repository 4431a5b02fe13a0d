"""Items on which the best two systems of a task disagree."""

from collections.abc import Iterator, Sequence
from dataclasses import replace

from lineage.analysis.disagreements import DisagreementItem, Disagreements
from lineage.report.formatting import format_percent, format_system
from lineage.report.section import Cell, Column, Paragraph, ReportData, Row, Section, Table

TITLE = "Items on which the best two systems disagree"


def build(report: ReportData) -> Section | None:
    """Return the items as a section of their own, which the page folds below each task."""
    if not report.disagreements:
        return None
    tables = []
    for one in report.disagreements:
        table = _build_table(one)
        if _has_texts(one):
            rows = [
                Row((*row.cells, item.text))
                for row, item in zip(table.rows, one.items, strict=True)
            ]
            table = replace(table, columns=(*table.columns, Column("text")), rows=tuple(rows))
        tables.append(replace(table, title=one.task))
    note = _build_note(report.disagreements[0])
    return Section(TITLE, (note, *tables), only="markdown")


def fold_disagreements(found: Sequence[Disagreements], task: str) -> Iterator[Section]:
    """Yield the items of a task as a folded part of the page, each text below its item."""
    for one in found:
        if one.task == task:
            table = _build_table(one)
            rows: list[Row] = []
            for row, item in zip(table.rows, one.items, strict=True):
                rows.append(row)
                if item.text:
                    rows.append(Row((Cell(item.text, css="muted", span=len(row.cells)),)))
            blocks = (_build_note(one), replace(table, rows=tuple(rows)))
            yield Section(TITLE, blocks, is_folded=True, only="html")


def _has_texts(disagreements: Disagreements) -> bool:
    return bool(disagreements.items[0].text)


def _build_note(disagreements: Disagreements) -> Paragraph:
    text = (
        "Items that one system predicts correctly in more of its repetitions than the other, by id"
    )
    if not _has_texts(disagreements):
        text += "; `report.show_text: true` shows their texts"
    return Paragraph(f"{text}.", "note", has_markup=True)


def _build_table(disagreements: Disagreements) -> Table:
    systems = [format_system(system) for system in disagreements.systems]
    columns = tuple(map(Column, ["item", "label", *systems]))
    return Table(columns, tuple(_item_row(item) for item in disagreements.items))


def _item_row(item: DisagreementItem) -> Row:
    predictions = [
        f"{one.prediction} ({format_percent(one.accuracy)} % correct)" for one in item.predictions
    ]
    return Row((item.id, item.label, *predictions))
