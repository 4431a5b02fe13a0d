"""Show how many rows of a file are done."""

import contextlib
from collections.abc import Callable, Iterator

from rich.console import Console


def format_rows(num_rows: int) -> str:
    """Return a number of rows in words."""
    return "1 row" if num_rows == 1 else f"{num_rows:,} rows"


@contextlib.contextmanager
def show_rows() -> Iterator[Callable[[int], None]]:
    """Show the number of rows on a terminal; nothing elsewhere."""
    console = Console(stderr=True)
    if not console.is_terminal:
        yield lambda num_rows: None
        return
    with console.status("reading") as status:
        yield lambda num_rows: status.update(format_rows(num_rows))
