"""Models next to those that differ from them in a single setting."""

from lineage.analysis.records import group_by
from lineage.report.cells import verdict_cell
from lineage.report.formatting import format_label_count, format_system, note_these_labels
from lineage.report.section import Block, Paragraph, ReportData, Rows, Section, Table

COLUMNS = ("with the change", "without it", "difference, with its interval")
NOTE = (
    "Each model next to the one that differs from it in a single setting (`grid.ablation_of`), "
    "used in the same way, in points."
)


def build(report: ReportData) -> Section | None:
    """Return a table for each setting."""
    analysis = report.analysis
    train_examples = {one.setting: one.train_examples for one in analysis.scores}
    ablations = [one for one in analysis.comparisons if one.comparison_type == "ablation"]
    if not ablations:
        return None
    note = NOTE + note_these_labels(ablations)
    blocks: list[Block] = [Paragraph(note, "note", has_markup=True)]
    for setting, own in group_by(ablations, lambda one: one.setting).items():
        labels = format_label_count(setting.label_count, train_examples=train_examples[setting])
        rows: Rows = [
            [format_system(one.first), format_system(one.second), verdict_cell(one)] for one in own
        ]
        blocks.append(Table(COLUMNS, rows, title=setting.task, subtitle=labels))
    return Section("Ablations", blocks)
