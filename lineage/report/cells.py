"""Cells of tables that several sections show."""

from lineage.analysis.records import Analysis, Comparison
from lineage.report.formatting import css_class, format_comparison, format_model, format_verdict
from lineage.report.section import Cell, Piece, small
from lineage.report.styles import model_style


def verdict_cell(comparison: Comparison) -> Cell:
    """Return a verdict in its colour, with the difference and its interval."""
    verdict = format_verdict(comparison)
    interval = small(format_comparison(comparison), "muted")
    return Cell(more=[Piece(verdict, css_class(verdict)), *interval])


def difference_cell(
    comparison: Comparison, *, note: str, css: str, is_silent: bool = False
) -> Cell:
    """Return a difference in the colour of `css`, with its interval and a note behind it.

    `+2.9 (+2.0 to +3.8) better`; without a note `+0.3 (−2.2 to +2.8)`. A silent one, which says
    nothing about the models, is in brackets: `(+2.9)`.
    """
    points, _, interval = format_comparison(comparison).partition(" points")
    if is_silent:
        return Cell(more=[Piece(f"({points})", css, interval.removeprefix(", "))])
    pieces = [Piece(points, css)]
    if interval:
        pieces.append(Piece(interval.removeprefix(", "), "interval", plain=" ({})"))
    if note:
        pieces.append(Piece(note, "word muted"))
    return Cell(more=pieces)


def model_cell(analysis: Analysis, model: str, note: str = "") -> Cell:
    """Return the name of a model with its mark."""
    return Cell(format_model(model), small(note), svg=model_style(analysis, model).mark)


def task_cell(task: str, detail: str) -> Cell:
    """Return the name of a task with its number of labels or its metric in small type."""
    return Cell(task, small(detail, "muted", plain=", {}"))
