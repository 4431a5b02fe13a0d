"""Claims of papers, and what this study says of each."""

from collections.abc import Mapping, Sequence

from lineage.analysis.records import ClaimFinding, Comparison, group_by
from lineage.analysis.statistics import MIN_SEEDS
from lineage.methods.registry import name_use
from lineage.report.formatting import (
    format_difference,
    format_model,
    format_percent,
    format_range,
    plural,
)
from lineage.report.section import (
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
    Column("claim", short="claim"),
    Column("printed there", "wrap", short="printed there"),
    Column("here", "wrap", short="here"),
    Column("could have found", "n", short="could have found"),
    Column("verdict", short="verdict"),
)
NOTE = (
    "Each claim of a paper, with the comparisons that could show it, at every number of labels "
    "that was run; all of one claim have one correction (Holm), so a gain that is shown above may"
    " not be shown here. Supported: shown in at least half of them, and the opposite in none; in "
    "part: in fewer, but at least one; mixed: it and its opposite; contradicted: only the "
    "opposite; not shown: neither. Could have found: the smallest difference in points that half "
    "of the comparisons would have shown in 80 of 100 studies. Models that are not shown to have "
    "learned more than 5-grams count for grammar and today's recipe, and in ablations where "
    "pretraining helps on the task. Epochs are counted until the validation score is as high as "
    "both models ever get; what is saved is a share of the longer count. Points at most: over a "
    "training that was stopped before its learning rate had come down. Data, sizes and budgets "
    "differ from the papers'."
)
LOST_TO_MORE_LABELS = "lost to far more than ten times the labels (no contradiction)"
POINTS = "points"  # the unit that the heading means
VERDICT_STYLES = {"supported": "better", "supported in part": "better", "contradicted": "worse"}
FEW_PRETRAININGS = (
    " With fewer than three pretraining runs of each model, verdicts are about these models."
)


def build(report: ReportData) -> Section | None:
    """Return a line for each claim for which the study has comparisons."""
    findings = report.analysis.claims
    if not findings:
        return None
    note = NOTE
    if len(report.analysis.grid.pretrain_seeds) < MIN_SEEDS:
        note += FEW_PRETRAININGS
    rows: list[Cells | Row] = []
    for question, own in group_by(findings, lambda one: one.question).items():
        rows.append(Row([Cell(question, span=len(COLUMNS))], "question"))
        rows += map(_build_row, own)
    table = Table(COLUMNS, rows, css="use")
    return Section(
        "What the papers claim",
        [Paragraph(note, "note"), table],
        anchor="claims",
        link="Claims",
        is_folded=True,
    )


def _build_row(finding: ClaimFinding) -> Cells:
    return [
        finding.text,
        Cell(finding.published, small(finding.source, "muted", plain=" ({})")),
        describe_evidence(finding),
        _format_detectable(finding),
        Cell(finding.verdict, css=VERDICT_STYLES.get(finding.verdict, "muted")),
    ]


def describe_evidence(finding: ClaimFinding) -> str:
    """Count what is shown: `shown in 3 of 4 comparisons (sense 3 of 3, mood 0 of 1), −5.1 to +5.0`."""
    comparisons = finding.comparisons
    total = plural(len(comparisons), "comparison")
    parts = [f"{_name_models(comparisons)}shown in {finding.num_for} of {total}"]
    uses = {name_use(one.first.transfer, one.first.head) for one in comparisons}
    if len(uses) == 1 and len(comparisons) > 1:
        parts[0] += f", all {uses.pop()}"
    by_task = group_by(comparisons, lambda one: one.task)
    if finding.num_for and len(by_task) > 1:
        parts[0] += f" ({_count_by_task(by_task)})"
    elif len(by_task) == 1:
        parts[0] += f" ({comparisons[0].task})"
    if finding.num_against:
        parts.append(f"the opposite in {finding.num_against}")
    if finding.num_excused:
        parts.append(f"{finding.num_excused} {LOST_TO_MORE_LABELS}")
    parts.append(_describe_range(comparisons, finding.unit))
    return ", ".join(parts)


def _format_detectable(finding: ClaimFinding) -> str:
    if finding.unit.startswith(POINTS):
        return format_percent(finding.detectable)
    if finding.detectable > 1:
        return f"more than 100 {finding.unit}"
    return f"{format_percent(finding.detectable)} {finding.unit}"


def _count_by_task(by_task: Mapping[str, Sequence[Comparison]]) -> str:
    """Count what is shown on each task: `sense 3 of 3, mood 0 of 1`; `of 3 each: sense 3, mood 0`."""
    counts = {task: sum(one.verdict == "better" for one in own) for task, own in by_task.items()}
    totals = {len(own) for own in by_task.values()}
    if len(totals) == 1:
        listed = ", ".join(f"{task} {count}" for task, count in counts.items())
        return f"of {totals.pop()} each: {listed}"
    return ", ".join(f"{task} {count} of {len(by_task[task])}" for task, count in counts.items())


def _name_models(comparisons: Sequence[Comparison]) -> str:
    """Name the two models of all comparisons: `GPT-BERT beside modern GPT: `; else nothing."""
    pairs = {(one.first.model, one.second.model) for one in comparisons}
    if len(pairs) != 1:
        return ""
    ((first, second),) = pairs
    if first == second:
        return f"{format_model(first)}: "
    return f"{format_model(first)} beside {format_model(second)}: "


def _describe_range(comparisons: Sequence[Comparison], unit: str) -> str:
    if len(comparisons) == 1:
        (one,) = comparisons
        points = f"{format_difference(one.difference)} {unit}"
        return f"{points} ({format_range(one.ci_low, one.ci_high)})"
    differences = sorted(one.difference for one in comparisons)
    return f"{format_range(differences[0], differences[-1])} {unit}"
