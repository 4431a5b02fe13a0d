"""Items on which the best two systems of a task disagree, where the page may show their texts."""

from collections.abc import Iterator, Sequence

from lineage.analysis.disagreements import DisagreementItem, Disagreements
from lineage.report.formatting import format_percent, format_system
from lineage.report.section import Block, Cell, Cells, Paragraph, ReportData, Section, Table

TITLE = "Items on which the best two systems disagree"
NOTE = Paragraph(
    "Items that one system predicts correctly in more of its repetitions than the other.", "note"
)


def build(report: ReportData) -> Section | None:
    """Return the items as a section of their own, which the page folds below each task."""
    tables = []
    for one in report.disagreements:
        if _has_texts(one):
            rows = [[*_item_row(item), item.text] for item in one.items]
            tables.append(Table([*_list_columns(one), "text"], rows, title=one.task))
    if not tables:
        return None
    return Section(TITLE, [NOTE, *tables], only="markdown")


def fold_disagreements(found: Sequence[Disagreements], task: str) -> Iterator[Section]:
    """Yield the items of a task as a folded part of the page, each text below its item."""
    for one in found:
        if one.task == task and _has_texts(one):
            columns = _list_columns(one)
            rows: list[Cells] = []
            for item in one.items:
                rows.append(_item_row(item))
                rows.append([Cell(item.text, css="muted", span=len(columns))])
            blocks: list[Block] = [NOTE, Table(columns, rows)]
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
