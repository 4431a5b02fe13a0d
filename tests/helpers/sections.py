"""Read the records of the page as tests want them."""

from collections.abc import Iterator, Sequence
from typing import TypeVar

from lineage.analysis.decision import Decision
from lineage.analysis.records import Analysis
from lineage.report import markdown
from lineage.report.section import (
    Block,
    Cell,
    Figure,
    Figures,
    Paragraph,
    ReportData,
    Section,
    Table,
    as_column,
    as_figure,
    as_row,
)

Kind = TypeVar("Kind", Paragraph, Table, Figures)


def find_blocks(block: Block | None, kind: type[Kind]) -> list[Kind]:
    """Return all blocks of one type in a section, also those beside it and folded ones."""
    return [*_walk(block, kind)]


def _walk(block: Block | None, kind: type[Kind]) -> Iterator[Kind]:
    if isinstance(block, kind):
        yield block
    if isinstance(block, Section):
        for part in (*block.aside, *block.blocks):
            yield from _walk(part, kind)


def find_figures(block: Block | None) -> list[Figure]:
    """Return all figures of a section."""
    return [
        as_figure(figure) for figures in find_blocks(block, Figures) for figure in figures.figures
    ]


def find_texts(block: Block | None) -> list[str]:
    """Return all paragraphs of a section."""
    return [paragraph.text for paragraph in find_blocks(block, Paragraph)]


def column_names(table: Table) -> list[str]:
    """Return the headings of a table."""
    return [as_column(column).name for column in table.columns]


def read_table(table: Table) -> list[dict[str, str]]:
    """Return the text of the cells of each row, by the names of the columns."""
    return [
        dict(zip(column_names(table), map(read_cell, as_row(row).cells), strict=True))
        for row in table.rows
    ]


def read_cell(cell: str | Cell) -> str:
    """Return what Markdown shows of a cell."""
    return markdown.format_cell(cell)


def report_of(analysis: Analysis, decisions: Sequence[Decision] = ()) -> ReportData:
    """Return a report whose costs are unknown."""
    return ReportData(analysis, decisions)
