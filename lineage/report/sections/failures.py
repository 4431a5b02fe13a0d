"""Results of the grid that have no value, and why."""

from lineage.analysis.records import Failure
from lineage.report.formatting import format_system
from lineage.report.notes import format_notes
from lineage.report.section import (
    Cell,
    Cells,
    Column,
    Columns,
    Paragraph,
    ReportData,
    Section,
    Table,
)

NAMES = ("task", "system", "labels", "seeds", "metric", "status")


def build(report: ReportData) -> Section:
    """Return a line for each result without a value."""
    analysis = report.analysis
    several = len(analysis.grid.pretrain_seeds) > 1
    rows = [_failure_row(one, several_pretrainings=several) for one in analysis.failures]
    title = "Failed or not applicable"
    if not rows:
        text = "Every result that the grid asks for has a value."
        return Section(title, [Paragraph(text, "muted")], anchor="failed")
    columns: Columns = [*NAMES, Column("reason", "wrap")]
    table = Table(columns, rows, is_wide=True, has_row_names=False)
    return Section(title, [table], anchor="failed")


def _failure_row(failure: Failure, *, several_pretrainings: bool) -> Cells:
    task = failure.task
    if failure.group != "all":
        task += f", group {failure.group}"
    status = failure.status.replace("_", " ")
    return [
        task,
        format_system(failure),
        failure.label_count,
        _format_failed_seeds(failure, several_pretrainings=several_pretrainings),
        failure.metric,
        Cell(status, css="worse" if failure.status == "failed" else ""),
        format_notes(failure.reason),
    ]


def _format_failed_seeds(failure: Failure, *, several_pretrainings: bool) -> str:
    """Name seeds: `0, 1, 2`; with several pretrainings `0, 1, 2 of pretraining 1`."""
    seeds = ", ".join(map(str, failure.finetune_seeds))
    if several_pretrainings and failure.pretrain_seeds:
        return f"{seeds or 'all'} of pretraining {', '.join(map(str, failure.pretrain_seeds))}"
    return seeds
