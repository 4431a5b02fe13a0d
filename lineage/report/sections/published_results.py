"""Results of papers on the same benchmarks, which are not comparable."""

from collections.abc import Iterator, Sequence

from lineage.analysis.literature import (
    PUBLISHED_METRICS,
    PublishedMetric,
    PublishedResult,
    read_published_results,
)
from lineage.analysis.records import BenchmarkScore, OurBenchmarkScore
from lineage.answers.metrics import RANKING_METRICS
from lineage.report.formatting import format_system, metric_heading
from lineage.report.section import (
    Block,
    Cell,
    Cells,
    Column,
    Columns,
    Paragraph,
    ReportData,
    Row,
    Section,
    Table,
    small,
)

COLUMNS: Columns = (
    "system",
    Column("value", "n"),
    "metric",
    "split",
    Column("training examples", "n"),
    "source",
)
NOTE = (
    "The published models differ from ours in size, in the text they read and often in the number "
    "of labels."
)


def build(report: ReportData) -> Section | None:
    """Return a table for each task that names a benchmark."""
    scores = report.analysis.published_benchmarks
    if not scores:
        return None
    blocks: list[Block] = [Paragraph(NOTE, "note")]
    for one in scores:
        blocks += _list_blocks(one, split=report.analysis.split)
    return Section("Published results", blocks, subtitle="not comparable")


def _list_blocks(score: BenchmarkScore, *, split: str) -> Iterator[Block]:
    rows = list_benchmark_rows(score, split=split)
    if not rows:
        yield Paragraph(
            f"{score.task}: the published results of {score.benchmark} are for another split than "
            "the one scored here, so they are not shown."
        )
        return
    note = "" if score.ours is not None else "Ours has no score."
    subtitle = f"published as {score.benchmark}"
    yield Table(COLUMNS, rows, title=score.task, subtitle=subtitle, lead=note)


def list_benchmark_rows(score: BenchmarkScore, *, split: str) -> list[Row | Cells]:
    """Return our line or lines, then the published ones; none on another split than the papers'.

    Ours has every metric of the papers that we measure, or else our ranking metric.
    """
    if not score.official_split:
        return []
    published = [
        one
        for one in read_published_results()
        if (one.task, one.split) == (score.benchmark, score.official_split)
    ]
    rows: list[Row | Cells] = []
    if score.ours is not None:
        names = dict.fromkeys(one.metric for one in published)
        metrics = [PUBLISHED_METRICS[name] for name in names]
        rows += _our_rows(score.ours, metrics, split=split)
    rows += [_published_row(one) for one in published]
    return rows


def _our_rows(
    ours: OurBenchmarkScore, metrics: Sequence[PublishedMetric], *, split: str
) -> list[Row]:
    shared = [metric for metric in metrics if metric.our_metric in ours.values]
    if not shared:
        scale = 100 / RANKING_METRICS[ours.metric]
        shared = [PublishedMetric(metric_heading(ours.metric), ours.metric, scale=scale)]
    rows = []
    for metric in shared:
        value = metric.offset + metric.scale * ours.values[metric.our_metric]
        cells: Cells = [
            Cell(format_system(ours.system), small("our best")),
            f"{value:.1f}",
            metric.description,
            f"{split}, {ours.num_examples:,} items",
            f"{ours.train_examples:,}",
            "this report",
        ]
        rows.append(Row(cells, css="ours"))
    return rows


def _published_row(result: PublishedResult) -> Cells:
    return [
        result.system,
        result.value,
        PUBLISHED_METRICS[result.metric].description,
        result.split,
        f"{result.training_examples:,}",
        Cell(result.source, small(result.note, "muted", plain="; {}")),
    ]
