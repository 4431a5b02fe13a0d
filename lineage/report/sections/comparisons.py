"""Every comparison, in a table that can be searched."""

from lineage.analysis.records import Analysis, Comparison
from lineage.analysis.settings import SILENT_OUTCOMES, comparison_outcome
from lineage.report.formatting import (
    css_class,
    format_comparison,
    format_percent,
    format_system,
    format_verdict,
    note_these_labels,
)
from lineage.report.section import (
    Cell,
    Cells,
    Columns,
    Paragraph,
    ReportData,
    Section,
    Table,
    numbers,
)

NAMES = ("type", "task", "labels", "first", "second", "difference", "verdict")
COLUMNS: Columns = (*NAMES, *numbers("could find", "items", "repetitions"))
NOTE = (
    "Could find: where there is no significant difference, the smallest one that these items and "
    "seeds would have shown in 80 of 100 studies, in points."
)


def build(report: ReportData) -> Section:
    """Return a line for each comparison."""
    rows = [_comparison_row(report.analysis, one) for one in report.analysis.comparisons]
    note = NOTE + note_these_labels(report.analysis.comparisons)
    table = Table(COLUMNS, rows, css="filtered", is_wide=True, has_row_names=False, has_filter=True)
    return Section(
        "All comparisons",
        [Paragraph(note, "note"), table],
        subtitle=str(len(rows)),
        anchor="comparisons",
        link="Comparisons",
        is_folded=True,
        only="html",
    )


def _comparison_row(analysis: Analysis, comparison: Comparison) -> Cells:
    verdict = format_verdict(comparison)
    style = css_class(verdict)
    outcome = comparison_outcome(analysis, comparison)
    if outcome in SILENT_OUTCOMES:  # the verdict holds, and says nothing about the models
        verdict, style = f"{verdict} ({outcome})", "muted"
    detectable = ""
    if comparison.verdict == "no significant difference" and comparison.detectable is not None:
        detectable = format_percent(comparison.detectable)
    return [
        comparison.comparison_type,
        comparison.task,
        comparison.label_count,
        format_system(comparison.first),
        format_system(comparison.second),
        format_comparison(comparison),
        Cell(verdict, css=style),
        detectable,
        str(comparison.num_examples),
        str(comparison.repetitions),
    ]
