"""Items on which the best two systems of a task disagree."""

from collections.abc import Iterator, Sequence

from lineage.analysis.disagreements import DisagreementItem, Disagreements
from lineage.report.formatting import format_percent, format_system
from lineage.report.section import Block, Cell, Cells, Paragraph, ReportData, Section, Table

TITLE = "Items on which the best two systems disagree"


def build(report: ReportData) -> Section | None:
    """Return the items as a section of their own, which the page folds below each task."""
    if not report.disagreements:
        return None
    tables = []
    for one in report.disagreements:
        rows = [_item_row(item) for item in one.items]
        columns = _list_columns(one)
        if _has_texts(one):
            columns.append("text")
            rows = [[*row, item.text] for row, item in zip(rows, one.items, strict=True)]
        tables.append(Table(columns, rows, title=one.task))
    note = _build_note(report.disagreements[0])
    return Section(TITLE, [note, *tables], only="markdown")


def fold_disagreements(found: Sequence[Disagreements], task: str) -> Iterator[Section]:
    """Yield the items of a task as a folded part of the page, each text below its item."""
    for one in found:
        if one.task == task:
            columns = _list_columns(one)
            rows: list[Cells] = []
            for item in one.items:
                rows.append(_item_row(item))
                if item.text:
                    rows.append([Cell(item.text, css="muted", span=len(columns))])
            blocks: list[Block] = [_build_note(one), Table(columns, rows)]
            yield Section(TITLE, blocks, is_folded=True, only="html")


def _list_columns(disagreements: Disagreements) -> list[str]:
    return ["item", "label", *map(format_system, disagreements.systems)]


def _item_row(item: DisagreementItem) -> list[str]:
    predictions = [
        f"{one.prediction} ({format_percent(one.accuracy)} % correct)" for one in item.predictions
    ]
    return [item.id, item.label, *predictions]


def _has_texts(disagreements: Disagreements) -> bool:
    return bool(disagreements.items[0].text)


def _build_note(disagreements: Disagreements) -> Paragraph:
    text = (
        "Items that one system predicts correctly in more of its repetitions than the other, by id"
    )
    if not _has_texts(disagreements):
        text += "; `report.show_text: true` shows their texts"
    return Paragraph(f"{text}.", "note", has_markup=True)
