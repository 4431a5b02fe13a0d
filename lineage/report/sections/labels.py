"""Scores over the number of labels."""

from collections.abc import Sequence

from lineage.analysis.crossover import (
    LabelCurve,
    build_label_curves,
    build_outside_curves,
    build_system_curve,
    find_overtaking,
    labels_needed,
)
from lineage.analysis.decision import Decision
from lineage.analysis.records import Analysis
from lineage.report import charts
from lineage.report.crossovers import fold_crossovers
from lineage.report.decisions import find_largest_decisions
from lineage.report.figures import LineSeries, PanelSize, choose_layout, choose_panel_size
from lineage.report.formatting import (
    INIT_NAMES,
    format_model,
    format_transfer,
    format_use,
    join_with_and,
    metric_heading,
)
from lineage.report.section import Figure, Figures, Paragraph, ReportData, Section
from lineage.report.styles import model_style
from lineage.results import OUTSIDE_FAMILY


def build(report: ReportData) -> Section | None:
    """Return a panel for each task that has several numbers of labels, and the tests."""
    panels = build_label_panels(report.analysis, report.decisions)
    if not panels:
        return None
    figures = Figures(panels, choose_layout(len(panels)), file="label-curves")
    reading = Paragraph("Read off the mean scores; the tests are below.", only="markdown")
    has_sentences = any(panel.caption for panel in panels)
    return Section(
        "How many labels does it take?",
        [*([reading] if has_sentences else []), figures, *fold_crossovers(report.analysis)],
        aside=_describe_panels(report),
        anchor="labels",
        link="Labels",
    )


def _describe_panels(report: ReportData) -> tuple[Paragraph, ...]:
    text = (
        "One system of each model, of those with the most numbers of labels: the best on "
        "validation if it is one, or else the highest at its end. Systems to use are always shown."
    )
    tasks = build_label_curves(report.analysis)
    if any(build_outside_curves(report.analysis, task) for task in tasks):
        text += " A dashed level line is an outside system; sentences are about the others."
    text += " Sentences are read off the mean scores; the tests are below."
    return (Paragraph(text, "note", only="html"),)


def build_label_panels(analysis: Analysis, decisions: Sequence[Decision]) -> list[Figure]:
    """Return a panel with its sentence for each task."""
    recommended = find_largest_decisions(decisions)
    curves_by_task = build_label_curves(analysis)
    size = choose_panel_size(len(curves_by_task))
    found = []
    for task, curves in curves_by_task.items():
        decision = recommended.get(task)
        best = decision.use.standing.system.model if decision is not None else ""
        shown = [*curves, *_build_recommended_curves(analysis, task, curves, decisions)]
        sentence = describe_label_curves(shown, best=best)
        shown += build_outside_curves(analysis, task)
        found.append(Figure(_draw_label_panel(analysis, shown, decision, size), sentence, task))
    return found


def _build_recommended_curves(
    analysis: Analysis, task: str, curves: Sequence[LabelCurve], decisions: Sequence[Decision]
) -> list[LabelCurve]:
    """Return the curves of recommended systems that no curve shows, such as SetFit."""
    shown = {curve.system.line_key for curve in curves}
    found = []
    for decision in decisions:
        system = decision.use.standing.system
        if decision.task == task and system.line_key not in shown:
            shown.add(system.line_key)
            curve = build_system_curve(analysis, task, system)
            if curve is not None:
                found.append(curve)
    return found


def _draw_label_panel(
    analysis: Analysis, curves: Sequence[LabelCurve], decision: Decision | None, size: PanelSize
) -> str:
    best = decision.use.standing.system.model if decision is not None else ""
    pretrained = [curve.system for curve in curves if format_use(curve.system)]
    methods = {format_transfer(one.transfer, one.head) for one in pretrained}
    most_labels = max(curve.train_examples[-1] for curve in curves)
    series: list[LineSeries] = []
    seen: set[str] = set()
    for curve in curves:
        name = format_model(curve.system.model)
        if len(methods) > 1:
            name = f"{name} {format_use(curve.system)}".strip()
        elif curve.system.init in INIT_NAMES:
            name += f" ({INIT_NAMES[curve.system.init]})"
        if curve.train_examples[-1] < most_labels:
            name += f", {curve.train_examples[-1]:,}"
        series.append(
            LineSeries(
                name,
                model_style(analysis, curve.system.model),
                curve.train_examples,
                curve.scores,
                dashed=curve.system.model in seen or curve.system.family == OUTSIDE_FAMILY,
                bold=curve.system.model in (best, "tfidf"),
            )
        )
        seen.add(curve.system.model)
    heading = f"{metric_heading(curves[0].metric)} over labels"
    return charts.draw_label_panel(
        series,
        title=curves[0].task,
        subtitle=heading if len(methods) != 1 else f"{heading}, {methods.pop()}",
        size=size,
    )


def describe_label_curves(curves: Sequence[LabelCurve], *, best: str) -> str:
    """Tell how many labels the recommended model saves, read off the means; empty without TF-IDF.

    With TF-IDF recommended, tell with how many labels it leads. A model may have several curves,
    one for each of its systems; the first with most numbers of labels is compared.
    """
    tfidf = next((curve for curve in curves if curve.system.model == "tfidf"), None)
    if tfidf is None or len(tfidf.scores) < 2:
        return ""
    own = [curve for curve in curves if curve.system.model == best]
    if best == "tfidf" or not own:
        return _describe_tfidf_lead(tfidf, [curve for curve in curves if curve is not tfidf])
    curve = max(own, key=lambda one: len(one.scores))
    name = f"{format_model(best)}, {format_use(curve.system)},"
    crossing = find_overtaking(curve, tfidf)
    if crossing is None:
        return _describe_higher_tfidf(curve, own, tfidf)
    first = curve.train_examples[0]
    if crossing > first:
        return f"{name} passes TF-IDF at about {round_labels(crossing)} labels."
    needed = labels_needed(tfidf, curve.scores[0])
    if needed is None:
        return (
            f"{name} with {first:,} labels is above TF-IDF with {tfidf.train_examples[-1]:,} "
            "labels."
        )
    if needed <= first:
        return f"{name} is above TF-IDF at every number of labels."
    return f"{name} with {first:,} labels equals TF-IDF with about {round_labels(needed)} labels."


def _describe_higher_tfidf(curve: LabelCurve, own: Sequence[LabelCurve], tfidf: LabelCurve) -> str:
    """Tell that a curve ends below TF-IDF, and which other system of the model does not."""
    labels = f"{tfidf.train_examples[-1]:,} labels"
    name = format_model(curve.system.model)
    use = format_use(curve.system)
    for one in own:
        is_last = one.train_examples[-1] == tfidf.train_examples[-1]
        if is_last and one.scores[-1] > tfidf.scores[-1]:
            better = format_use(one.system)
            return f"{name}, {better}, with {labels} is above TF-IDF; {use} it is not."
    return f"TF-IDF scores higher than {name}, {use}, with {labels}."


def _describe_tfidf_lead(tfidf: LabelCurve, others: Sequence[LabelCurve]) -> str:
    """Tell at which of the numbers of labels TF-IDF scores higher than all that is shown."""
    highest: dict[int, float] = {}
    for curve in others:
        for count, score in zip(curve.train_examples, curve.scores, strict=True):
            highest[count] = max(highest.get(count, score), score)
    leads: list[str] = []
    trails: list[str] = []
    for count, score in zip(tfidf.train_examples, tfidf.scores, strict=True):
        if count in highest:
            own = leads if score > highest[count] else trails
            own.append(f"{count:,}")
    if not leads:
        return ""
    if not trails:
        return "TF-IDF leads at every number of labels."
    return f"TF-IDF leads with {join_with_and(leads)} labels, but not with {join_with_and(trails)}."


def round_labels(count: float) -> str:
    """Round a number that was read off a curve to two digits: `about 440`."""
    return f"{float(f'{count:.2g}'):,.0f}"
