"""Models next to those that differ from them in a single setting."""

from lineage.analysis.records import Analysis
from lineage.report.cells import verdict_cell
from lineage.report.formatting import format_label_count, format_system
from lineage.report.section import Paragraph, ReportData, Rows, Section, Table

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
    return Section("Ablations", [Paragraph(NOTE, "note", has_markup=True), *tables])


def _build_tables(analysis: Analysis) -> list[Table]:
    train_examples = {one.setting: one.train_examples for one in analysis.scores}
    ablations = [one for one in analysis.comparisons if one.comparison_type == "ablation"]
    found = []
    for setting in dict.fromkeys(one.setting for one in ablations):
        labels = format_label_count(setting.label_count, train_examples=train_examples[setting])
        rows: Rows = [
            [format_system(one.first), format_system(one.second), verdict_cell(one)]
            for one in ablations
            if one.setting == setting
        ]
        found.append(Table(COLUMNS, rows, title=setting.task, subtitle=labels))
    return found
