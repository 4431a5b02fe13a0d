"""Results of the grid that failed, and why."""

from lineage.analysis.records import Failure
from lineage.report.formatting import format_system
from lineage.report.notes import format_notes
from lineage.report.section import (
    Cells,
    Column,
    Columns,
    ReportData,
    Section,
    Table,
)

NAMES = ("task", "system", "labels", "seeds", "metric")


def build(report: ReportData) -> Section | None:
    """Return a line for each result that failed."""
    analysis = report.analysis
    several = len(analysis.grid.pretrain_seeds) > 1
    rows = [
        _failure_row(one, several_pretrainings=several)
        for one in analysis.failures
        if one.status == "failed"
    ]
    if not rows:
        return None
    columns: Columns = [*NAMES, Column("reason", "wrap")]
    table = Table(columns, rows, is_wide=True, has_row_names=False)
    return Section("Failed", [table], anchor="failed")


def _failure_row(failure: Failure, *, several_pretrainings: bool) -> Cells:
    task = failure.task
    if failure.group != "all":
        task += f", group {failure.group}"
    return [
        task,
        format_system(failure),
        failure.label_count,
        _format_failed_seeds(failure, several_pretrainings=several_pretrainings),
        failure.metric,
        format_notes(failure.reason),
    ]


def _format_failed_seeds(failure: Failure, *, several_pretrainings: bool) -> str:
    """Name seeds: `0, 1, 2`; with several pretrainings `0, 1, 2 of pretraining 1`."""
    seeds = ", ".join(map(str, failure.finetune_seeds))
    if several_pretrainings and failure.pretrain_seeds:
        return f"{seeds or 'all'} of pretraining {', '.join(map(str, failure.pretrain_seeds))}"
    return seeds
