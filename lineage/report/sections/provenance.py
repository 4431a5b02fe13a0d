"""Where the numbers come from."""

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

COLUMNS: Columns = (
    "stage",
    "inputs and outputs, sha256",
    *numbers("time", "peak memory"),
    "host",
    "device",
)


def build(report: ReportData) -> Section | None:
    """Return the facts, and the stages."""
    provenance = report.provenance
    if provenance is None:
        return None
    blocks: list[Block] = [Facts(provenance.facts)]
    if provenance.stages:
        rows = [_stage_row(stage) for stage in provenance.stages]
        table = Table(COLUMNS, rows, is_wide=True, has_row_names=False)
        title = f"{len(rows)} stages"
        blocks.append(Section(title, [table], is_folded=True, only="html"))
    return Section("Provenance", blocks, anchor="provenance", link="Provenance")


def _stage_row(stage: StageProvenance) -> Cells:
    return [
        stage.stage,
        Cell(more=[Piece(stage.digest[:16], is_code=True)]),
        format_seconds(stage.seconds),
        format_si(stage.peak_memory_bytes, "B"),
        stage.host,
        stage.device,
    ]
