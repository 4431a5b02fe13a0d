"""Scores over the text read: would more text help?"""

from collections.abc import Sequence

from lineage.analysis.decision import Decision
from lineage.analysis.records import Analysis, TextCurve, TextGain, group_by
from lineage.report import charts
from lineage.report.cells import task_cell
from lineage.report.decisions import find_largest_decisions
from lineage.report.figures import LineSeries, PanelSize, choose_layout, choose_panel_size
from lineage.report.formatting import (
    NO_VALUE,
    format_difference,
    format_model,
    format_percent,
    format_range,
    format_si,
    format_use,
    metric_heading,
)
from lineage.report.section import (
    Cells,
    Columns,
    Figure,
    Figures,
    Paragraph,
    ReportData,
    Section,
    Table,
    numbers,
)
from lineage.report.styles import model_style


def build(report: ReportData) -> Section | None:
    """Return a panel for each task with curves, and a table of all scores."""
    analysis = report.analysis
    if not analysis.text_curves:
        return None
    panels = build_text_panels(analysis, report.decisions)
    figures = Figures(panels, choose_layout(len(panels)), file="text-curves")
    table = build_text_table(analysis)
    title = "Scores after each share of the text"
    return Section(
        "Would more text help?",
        [figures, Section(title, [table], is_folded=True)],
        aside=(
            Paragraph(
                "The score over the text that a model had read: earlier checkpoints of its one "
                "pretraining, frozen with the most labels, or zero-shot."
            ),
            Paragraph(
                "At the earlier checkpoints the learning rate has not come down yet. A training "
                "that ended there would probably score higher, so a rise is the most that the text "
                f"has added. Intervals are over {analysis.split} items, for these trained models "
                "alone.",
                "note",
            ),
        ),
        anchor="text",
        link="Text",
    )


def build_text_panels(analysis: Analysis, decisions: Sequence[Decision]) -> list[Figure]:
    """Return a panel for each task, and what its last text has brought."""
    recommended = find_largest_decisions(decisions)
    curves_by_task = group_by(analysis.text_curves, lambda curve: curve.task)
    size = choose_panel_size(len(curves_by_task))
    found = []
    for task, curves in curves_by_task.items():
        decision = recommended.get(task)
        best = decision.use.standing.system.model if decision is not None else ""
        shown = choose_described_curve(curves, best=best)
        sentence = describe_text_gain(shown, margin=analysis.equivalence_margin)
        found.append(Figure(_draw_text_panel(analysis, curves, shown, size), sentence, task))
    return found


def choose_described_curve(curves: Sequence[TextCurve], *, best: str) -> TextCurve:
    """Return the curve of the recommended model, or else of the one that validation prefers."""
    for curve in curves:
        if curve.system.model == best:
            return curve
    if all(curve.validation_score is not None for curve in curves):
        return max(curves, key=lambda curve: curve.validation_score or 0.0)
    return max(curves, key=lambda curve: curve.scores[-1])


def describe_text_gain(curve: TextCurve, *, margin: float) -> str:
    """Tell what the last text has brought one model, and what that says about more text."""
    last = curve.last_gain
    name = f"{format_model(curve.system.model)}, {format_use(curve.system)},"
    text = "the last half of its text"
    if last.share != 0.5:
        text = f"its text after the first {100 * last.share:g} %"
    change = f"{name} changed by {format_gain(last)} with {text}"
    if last.low is None or last.high is None:
        return f"{change}; a single item has no interval."
    if -margin < last.low and last.high < margin:
        return f"{change}, which is within ±{100 * margin:g}: more text should bring little."
    if last.low > 0:
        return f"{change}: more text may help."
    if last.high < 0:
        return f"{change}: more text may not help."
    return f"{change}: too uncertain to tell."


def format_gain(last: TextGain) -> str:
    """Format a gain with its interval: `+1.2 points (−0.4 to +2.9)`."""
    points = f"{format_difference(last.gain)} points"
    if last.low is None or last.high is None:
        return points
    return f"{points} ({format_range(last.low, last.high)})"


def _draw_text_panel(
    analysis: Analysis, curves: Sequence[TextCurve], shown: TextCurve, size: PanelSize
) -> str:
    uses = {format_use(curve.system) for curve in curves}
    series = []
    for curve in curves:
        name = format_model(curve.system.model)
        if len(uses) > 1:
            name = f"{name} {format_use(curve.system)}"
        series.append(
            LineSeries(
                name,
                model_style(analysis, curve.system.model),
                curve.text_bytes,
                curve.scores,
                bold=curve is shown,
            )
        )
    heading = metric_heading(shown.metric)
    return charts.draw_label_panel(
        series,
        title=shown.task,
        subtitle=heading if len(uses) != 1 else f"{heading}, {uses.pop()}",
        size=size,
        format_x=lambda count: format_si(count, "B"),
        x_name="of text",
    )


def build_text_table(analysis: Analysis) -> Table:
    """Return the scores of all curves."""
    shares = sorted({share for curve in analysis.text_curves for share in curve.shares})
    columns: Columns = ["task", "system", *numbers(*map(format_share, shares), "gain", "from")]
    return Table(columns, [_text_row(curve, shares) for curve in analysis.text_curves])


def _text_row(curve: TextCurve, shares: Sequence[float]) -> Cells:
    scores = dict(zip(curve.shares, curve.scores, strict=True))
    return [
        task_cell(curve.task, metric_heading(curve.metric)),
        f"{format_model(curve.system.model)}, {format_use(curve.system)}",
        *(format_percent(scores[one]) if one in scores else NO_VALUE for one in shares),
        format_gain(curve.last_gain),
        format_share(curve.last_gain.share),
    ]


def format_share(share: float) -> str:
    """Format a share of the text: `12.5 %`; `all`."""
    return "all" if share == 1 else f"{100 * share:g} %"
