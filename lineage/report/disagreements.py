"""Items on which the best two systems of a task disagree, where the page may show their texts."""

from collections.abc import Iterator, Sequence

from lineage.analysis.disagreements import DisagreementItem, Disagreements
from lineage.report.formatting import format_percent, format_system
from lineage.report.section import Block, Cell, Cells, Paragraph, Section, Table

NOTE = Paragraph(
    "Items that one system predicts correctly in more of its repetitions than the other.", "note"
)


def fold_disagreements(found: Sequence[Disagreements], task: str) -> Iterator[Section]:
    """Yield the items of a task as a folded part of the page, each text below its item."""
    for one in found:
        if one.task == task and one.items[0].text:
            columns = ["item", "label", *map(format_system, one.systems)]
            rows: list[Cells] = []
            for item in one.items:
                rows.append(_item_row(item))
                rows.append([Cell(item.text, css="muted", span=len(columns))])
            blocks: list[Block] = [NOTE, Table(columns, rows)]
            yield Section("Items on which the best two systems disagree", blocks, is_folded=True)


def _item_row(item: DisagreementItem) -> list[str]:
    predictions = [
        f"{one.prediction} ({format_percent(one.accuracy)} % correct)" for one in item.predictions
    ]
    return [item.id, item.label, *predictions]
