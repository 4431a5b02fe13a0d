"""Tables -> the terminal, as many next to each other as fit."""

from collections.abc import Sequence

import rich.table
from rich import box
from rich.console import Console
from rich.measure import Measurement

from lineage.report.section import Cell, Table, as_cell, as_column, as_row

MAX_TABLE_WIDTH = 10_000  # characters; wider than any table
MARKED = "used"  # the class of cells that a star marks
LEGEND = "; * is the one to use; between lines of one model, validation decides"


def print_tables(tables: Sequence[Table], console: Console) -> None:
    """Print tables whose rows have the same names in the same order.

    Output that is not a terminal is plain ASCII.
    """
    remaining = list(tables)
    while remaining:
        count = len(remaining)
        table = _join_tables(remaining, console)
        while count > 1 and _table_width(table, console) > console.width:
            count -= 1
            table = _join_tables(remaining[:count], console)
        console.print(table)
        headings = " or ".join(dict.fromkeys(one.subtitle for one in remaining[:count]))
        legend = LEGEND if any(map(_has_mark, remaining[:count])) else ""
        console.print(f"{headings}, mean over seeds{legend}\n", style="italic")
        remaining = remaining[count:]


def print_lines(lines: Sequence[str], console: Console) -> None:
    """Print lines of text, which a terminal wraps."""
    text = make_plain("\n".join(lines), console)
    console.print(text, highlight=False, markup=False, soft_wrap=not console.is_terminal)


def make_plain(text: str, console: Console) -> str:
    """Return a text in ASCII unless it is for a terminal."""
    return text if console.is_terminal else text.replace("−", "-").replace("±", "+/-")


def _table_width(table: rich.table.Table, console: Console) -> int:
    """Return the width of a table if nothing in it is folded."""
    options = console.options.update(max_width=MAX_TABLE_WIDTH)
    return Measurement.get(console, options, table).maximum


def _join_tables(tables: Sequence[Table], console: Console) -> rich.table.Table:
    """Return one table of these next to each other, without rows that are empty."""
    joined = rich.table.Table(
        box=box.SIMPLE_HEAD if console.is_terminal else box.ASCII2, pad_edge=False
    )
    joined.add_column("", no_wrap=True)
    for table in tables:
        for column in table.columns[1:]:
            heading = f"{table.title}\n{as_column(column).name}"
            joined.add_column(heading, justify="right", overflow="fold")
    for rows in zip(*(table.rows for table in tables), strict=True):
        cells = [cell for row in rows for cell in as_row(row).cells[1:]]
        texts = [_text(as_cell(cell), console) for cell in cells]
        if any(texts):
            joined.add_row(as_cell(as_row(rows[0]).cells[0]).text, *texts)
    return joined


def _text(cell: Cell, console: Console) -> str:
    """Return a cell with room for its star; nothing for an empty one."""
    star = "*" if cell.css == MARKED else " "
    return make_plain(cell.text, console) + star if cell.text else ""


def _has_mark(table: Table) -> bool:
    return any(as_cell(cell).css == MARKED for row in table.rows for cell in as_row(row).cells)
