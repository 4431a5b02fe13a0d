"""Scores over the text read, in figures, sentences and a table: would more text help?"""

from collections.abc import Sequence
from dataclasses import dataclass

from lineage.analysis.decision import Decision
from lineage.analysis.records import Analysis, TextCurve, TextGain
from lineage.report import charts
from lineage.report.curves import Finding, find_largest_decisions
from lineage.report.figures import LineSeries, PanelSize, choose_panel_size
from lineage.report.formatting import (
    format_difference,
    format_model,
    format_percent,
    format_si,
    format_use,
    metric_heading,
)
from lineage.report.styles import model_style


@dataclass(frozen=True)
class TextLine:
    """A model's scores on a task after each share of its text, and its last gain."""

    task: str
    heading: str  # of the scores
    system: str
    scores: tuple[str, ...]  # empty where a share was not scored
    gain: str
    start: str  # of the gain, such as 50 %


@dataclass(frozen=True)
class TextTable:
    """The scores of all curves."""

    shares: tuple[str, ...]
    lines: tuple[TextLine, ...]


def build_text_findings(analysis: Analysis, decisions: Sequence[Decision]) -> list[Finding]:
    """Return a panel for each task with curves, and what its last text has brought."""
    recommended = find_largest_decisions(decisions)
    curves_by_task = _group_by_task(analysis)
    size = choose_panel_size(len(curves_by_task))
    found = []
    for task, curves in curves_by_task.items():
        decision = recommended.get(task)
        best = decision.use.standing.system.model if decision is not None else ""
        shown = choose_described_curve(curves, best=best)
        sentence = describe_text_gain(shown, margin=analysis.equivalence_margin)
        found.append(Finding(task, sentence, _draw_text_panel(analysis, curves, shown, size)))
    return found


def _group_by_task(analysis: Analysis) -> dict[str, list[TextCurve]]:
    groups: dict[str, list[TextCurve]] = {}
    for curve in analysis.text_curves:
        groups.setdefault(curve.task, []).append(curve)
    return groups


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
    return f"{points} ({format_difference(last.low)} to {format_difference(last.high)})"


def _draw_text_panel(
    analysis: Analysis, curves: Sequence[TextCurve], shown: TextCurve, size: PanelSize
) -> str:
    uses = {format_use(curve.system) for curve in curves}
    series = []
    for curve in curves:
        style = model_style(analysis, curve.system.model)
        name = format_model(curve.system.model)
        if len(uses) > 1:
            name = f"{name} {format_use(curve.system)}"
        series.append(
            LineSeries(
                name,
                style.color,
                curve.text_bytes,
                curve.scores,
                marker=style.marker,
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


def build_text_table(analysis: Analysis) -> TextTable | None:
    """Return the scores of all curves; None without any."""
    curves = analysis.text_curves
    if not curves:
        return None
    shares = sorted({share for curve in curves for share in curve.shares})
    return TextTable(
        tuple(format_share(share) for share in shares),
        tuple(_build_line(curve, shares) for curve in curves),
    )


def _build_line(curve: TextCurve, shares: Sequence[float]) -> TextLine:
    scores = dict(zip(curve.shares, curve.scores, strict=True))
    name = format_model(curve.system.model)
    return TextLine(
        task=curve.task,
        heading=metric_heading(curve.metric),
        system=f"{name}, {format_use(curve.system)}",
        scores=tuple(format_percent(scores[share]) if share in scores else "" for share in shares),
        gain=format_gain(curve.last_gain),
        start=format_share(curve.last_gain.share),
    )


def format_share(share: float) -> str:
    """Format a share of the text: `12.5 %`; `all`."""
    return "all" if share == 1 else f"{100 * share:g} %"
