"""Models next to those that differ from them in a single setting."""

from lineage.analysis.records import Analysis, Comparison
from lineage.report.formatting import (
    css_class,
    format_comparison,
    format_label_count,
    format_system,
    format_verdict,
)
from lineage.report.section import (
    Cell,
    Column,
    Paragraph,
    Piece,
    ReportData,
    Row,
    Section,
    Table,
    small,
)

COLUMNS = ("with the change", "without it", "difference, with its interval")
NOTE = (
    "Each model next to the one that differs from it in a single setting (`grid.ablation_of`), "
    "used in the same way, in points."
)


def build(report: ReportData) -> Section | None:
    """Return a table for each setting."""
    tables = _build_tables(report.analysis)
    if not tables:
        return None
    return Section("Ablations", (Paragraph(NOTE, "note", has_markup=True), *tables))


def _build_tables(analysis: Analysis) -> list[Table]:
    train_examples = {one.setting: one.train_examples for one in analysis.scores}
    ablations = [one for one in analysis.comparisons if one.comparison_type == "ablation"]
    found = []
    for setting in dict.fromkeys(one.setting for one in ablations):
        labels = format_label_count(setting.label_count, train_examples=train_examples[setting])
        rows = [_ablation_row(one) for one in ablations if one.setting == setting]
        columns = tuple(map(Column, COLUMNS))
        found.append(Table(columns, tuple(rows), title=setting.task, subtitle=labels))
    return found


def _ablation_row(comparison: Comparison) -> Row:
    verdict = format_verdict(comparison)
    interval = format_comparison(comparison)
    result = Cell(more=(Piece(verdict, css_class(verdict)), *small(interval, "muted")))
    return Row((format_system(comparison.first), format_system(comparison.second), result))
