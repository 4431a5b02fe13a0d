"""Where the numbers come from."""

from collections.abc import Iterable, Sequence

from lineage.analysis.records import group_by
from lineage.report.formatting import format_seconds, format_si
from lineage.report.provenance import StageProvenance
from lineage.report.section import (
    Block,
    Cells,
    Columns,
    Facts,
    ReportData,
    Section,
    Table,
    numbers,
)

COLUMNS: Columns = ("stages", *numbers("count", "time", "peak memory"))
NOTE = "Times are added up. The digest of each stage is in comparison.json, under provenance."


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
    """Return a line for the stages of each name, with their machines if there were several."""
    hosts, devices = ({one.host for one in stages}, {one.device for one in stages})
    has_machines = len(hosts - {""}) > 1 or len(devices - {""}) > 1
    rows: list[Cells] = []
    for name, own in group_by(stages, lambda stage: stage.stage.partition("@")[0]).items():
        machines = [_join_names(one.host for one in own), _join_names(one.device for one in own)]
        rows.append([*_stage_cells(name, own), *(machines if has_machines else [])])
    columns = [*COLUMNS, *(["host", "device"] if has_machines else [])]
    return Table(columns, rows, note=NOTE, only="html")


def _stage_cells(name: str, stages: Sequence[StageProvenance]) -> Cells:
    seconds = [one.seconds for one in stages if one.seconds is not None]
    memory = [one.peak_memory_bytes for one in stages if one.peak_memory_bytes is not None]
    return [
        name,
        str(len(stages)),
        format_seconds(sum(seconds) if seconds else None),
        format_si(max(memory, default=None), "B"),
    ]


def _join_names(names: Iterable[str]) -> str:
    return ", ".join(sorted(set(names) - {""}))
