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


def model_cell(analysis: Analysis, model: str, note: str = "") -> Cell:
    """Return the name of a model with its mark."""
    return Cell(format_model(model), small(note), svg=model_style(analysis, model).mark)


def task_cell(task: str, detail: str) -> Cell:
    """Return the name of a task with its number of labels or its metric in small type."""
    return Cell(task, small(detail, "muted", plain=", {}"))
