"""Cells of csv files that people open: a spreadsheet must show a text, not compute it.

A text that begins like a formula gets an apostrophe in front, as OWASP advises (CSV injection).
Numbers stay as they are. Reading takes the apostrophe away, so that values do not change.
"""

import re
from collections.abc import Callable

import pandas as pd

# Spreadsheets also take the wide forms of East Asian keyboards. Apostrophes before them are
# doubled, so that a text which has one already is read back as it was.
FORMULA = re.compile(r"'*[=+\-@\t\r＝＋－＠]")
NUMBER = re.compile(r"[+-]?\d+([.,]\d+)?([eE][+-]?\d+)?")


def escape_cells(table: pd.DataFrame) -> pd.DataFrame:
    """Return a table whose texts no spreadsheet takes for a formula."""
    return _map_texts(table, escape_cell)


def unescape_cells(table: pd.DataFrame) -> pd.DataFrame:
    """Return the table that `escape_cells` was given."""
    return _map_texts(table, _unescape)


def escape_cell(value: object) -> object:
    """Return a value with an apostrophe in front if it is a text that begins like a formula."""
    if isinstance(value, str) and FORMULA.match(value) and not NUMBER.fullmatch(value):
        return f"'{value}"
    return value


def _map_texts(table: pd.DataFrame, change: Callable[[object], object]) -> pd.DataFrame:
    texts = table.select_dtypes(exclude="number")
    return table.assign(**{str(name): texts[name].map(change) for name in texts})


def _unescape(value: object) -> object:
    if isinstance(value, str) and value.startswith("'") and FORMULA.match(value):
        return value[1:]
    return value
