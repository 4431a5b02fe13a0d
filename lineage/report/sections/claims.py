"""What the papers claim, and what this study says of it."""

from collections.abc import Sequence

from lineage.analysis.records import ClaimFinding, Comparison
from lineage.analysis.statistics import MIN_SEEDS
from lineage.report.formatting import format_difference, format_percent, format_range, plural
from lineage.report.section import (
    Cell,
    Cells,
    Column,
    Columns,
    Paragraph,
    ReportData,
    Section,
    Table,
    small,
)

COLUMNS: Columns = (
    Column("claim", "wrap"),
    Column("printed there", "wrap"),
    Column("here", "wrap"),
    Column("could have found", "n"),
    "verdict",
)
NOTE = (
    "Each claim of a paper, with the comparisons of this study that could show it; all of one claim "
    "have one correction (Holm). Supported: shown in at least half of them, and the opposite in "
    "none; in part: shown in fewer. Not shown: neither it nor its opposite. Could have found: the "
    "difference in points that half of the comparisons would show in 80 of 100 studies. Models that "
    "are not shown to have learned more than 5-grams are left out. Data, sizes and budgets differ "
    "from the papers'."
)
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
    table = Table(COLUMNS, [_build_row(one) for one in findings])
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
        format_percent(finding.detectable),
        Cell(finding.verdict, css=VERDICT_STYLES.get(finding.verdict, "muted")),
    ]


VERDICT_STYLES = {"supported": "better", "supported in part": "better", "contradicted": "worse"}


def describe_evidence(finding: ClaimFinding) -> str:
    """Count what is shown: `shown in 10 of 12 comparisons, −5.1 to +50.0 points`."""
    comparisons = finding.comparisons
    total = plural(len(comparisons), "comparison")
    parts = [f"shown in {finding.num_for} of {total}"]
    if finding.num_against:
        parts.append(f"the opposite in {finding.num_against}")
    parts.append(_describe_range(comparisons))
    return ", ".join(parts)


def _describe_range(comparisons: Sequence[Comparison]) -> str:
    if len(comparisons) == 1:
        (one,) = comparisons
        points = f"{format_difference(one.difference)} points"
        return f"{points} ({format_range(one.ci_low, one.ci_high)})"
    differences = sorted(one.difference for one in comparisons)
    return f"{format_range(differences[0], differences[-1])} points"
