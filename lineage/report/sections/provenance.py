"""Where the numbers come from."""

from collections.abc import Sequence

from lineage.report.formatting import format_seconds, format_si
from lineage.report.provenance import StageProvenance
from lineage.report.section import (
    Block,
    Cell,
    Cells,
    Columns,
    Facts,
    Piece,
    ReportData,
    Section,
    Table,
    numbers,
)

COLUMNS: Columns = ("stage", "inputs and outputs, sha256", *numbers("time", "peak memory"))


def build(report: ReportData) -> Section | None:
    """Return the facts, and the stages."""
    provenance = report.provenance
    if provenance is None:
        return None
    blocks: list[Block] = [Facts(provenance.facts)]
    if provenance.stages:
        blocks.append(_build_stage_table(provenance.stages))
    return Section("Provenance", blocks, anchor="provenance", link="Provenance", is_folded=True)


def _build_stage_table(stages: Sequence[StageProvenance]) -> Table:
    """Return a line for each stage, with its machine if there were several."""
    columns = [*COLUMNS]
    rows = [_stage_row(stage) for stage in stages]
    if len({(stage.host, stage.device) for stage in stages}) > 1:
        columns += ["host", "device"]
        rows = [[*row, one.host, one.device] for row, one in zip(rows, stages, strict=True)]
    return Table(columns, rows, is_wide=True, has_row_names=False, only="html")


def _stage_row(stage: StageProvenance) -> Cells:
    return [
        stage.stage,
        Cell(more=[Piece(stage.digest[:16], is_code=True)]),
        format_seconds(stage.seconds),
        format_si(stage.peak_memory_bytes, "B"),
    ]
