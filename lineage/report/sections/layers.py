"""Probes of single layers: where in a network form and meaning can be read."""

from collections.abc import Iterator, Sequence

from lineage.analysis.records import Analysis, LayerCurve, LayerScore, SenseNeighbours, group_by
from lineage.report import charts
from lineage.report.figures import choose_layout
from lineage.report.formatting import (
    NO_VALUE,
    format_difference,
    format_model,
    format_percent,
    format_range,
    join_with_and,
    metric_heading,
)
from lineage.report.section import (
    Cell,
    Columns,
    Figure,
    Figures,
    Paragraph,
    ReportData,
    Row,
    Section,
    Table,
    numbers,
    small,
)
from lineage.report.styles import model_curve
from lineage.tasks.base import load_kind

FORM_METRIC = "token_accuracy"  # of tags of words, such as parts of speech
SPAN_METRIC = "span_f1"  # of chunks, which are form, as well as of names, which are meaning
READING = (
    "A linear probe on each layer alone: 0 is the embeddings. Full lines are pretrained models, "
    "dashed ones the same networks with random weights. Form is a tag of each word, such as its "
    "part of speech, and the length, order and tree of sentences. Spans, such as chunks and names, "
    "count as neither form nor meaning. Other tasks are about meaning."
)
NOTE = (
    "Intervals are for other test items. Selectivity: the share of words with the right tag, less "
    "that of a tag drawn at random for each word (Hewitt and Liang 2019); a probe that learns by "
    "heart has little. Not shown where most words have one tag. Mix: a probe on the weighted mean of "
    "all layers, whose center of gravity is the mean layer by its weights (Tenney et al. 2019). It is "
    "fitted with other penalties than the frozen systems of the tasks, and may score differently. Top "
    "minus 1: the top layer minus the first one above the embeddings, in points, for other seeds too "
    "and corrected (Holm)."
)


def build(report: ReportData) -> Section | None:
    """Return a chart and a table for each task, and what they show of each model."""
    analysis = report.analysis
    if not analysis.layer_curves:
        return None
    by_task = group_by(analysis.layer_curves, lambda curve: curve.task)
    sentences = [Paragraph(text, "strong") for text in describe_models(analysis)]
    charts_by_task = [Figure(_draw(analysis, curves), "", task) for task, curves in by_task.items()]
    figures = Figures(charts_by_task, choose_layout(len(by_task)), file="layers", only="html")
    tables = [_build_table(task, curves) for task, curves in by_task.items()]
    folded = Section("Scores of all layers", [Paragraph(NOTE, "note"), *tables], is_folded=True)
    return Section(
        "What does each layer know?",
        [figures, folded],
        aside=(*sentences, Paragraph(READING, "note")),
        anchor="layers",
        link="Layers",
    )


def describe_models(analysis: Analysis) -> Iterator[str]:
    """Say of each pretrained model whether lower layers carry form and upper ones meaning."""
    pretrained = [
        one
        for one in analysis.layer_curves
        if one.init == "pretrained" and one.top_gain is not None
    ]
    open_models = []
    for model, curves in group_by(pretrained, lambda one: one.model).items():
        lower = [one for one in curves if _is_form(one) and _verdict(one) == "worse"]
        higher = [one for one in curves if not _is_form(one) and _verdict(one) == "better"]
        upper = [one for one in higher if one.metric != SPAN_METRIC]
        name = format_model(model)
        if lower and upper:
            yield (
                f"In {name} lower layers carry form and upper ones meaning. Points of the top layer "
                f"over layer 1: {_list_gains([*lower, *upper])}."
            )
        elif lower:
            gains = _list_gains(lower)
            yield f"In {name} form is read better from layer 1 than from the top: {gains}."
        elif higher:
            gains = _list_gains(higher)
            yield f"In {name} more is read from the top than from layer 1: {gains}."
        else:
            open_models.append(name)
    if open_models:
        yield (
            "That lower layers carry form and upper ones meaning is not shown for "
            f"{join_with_and(open_models)}."
        )


def _is_form(curve: LayerCurve) -> bool:
    return curve.metric == FORM_METRIC or load_kind(curve.kind).is_about_form


def _verdict(curve: LayerCurve) -> str:
    if curve.top_gain is None:
        return ""
    return curve.top_gain.verdict


def _list_gains(curves: Sequence[LayerCurve]) -> str:
    return join_with_and([f"{one.task} {_format_gain(one)}" for one in curves])


def _format_gain(curve: LayerCurve) -> str:
    gain = curve.top_gain
    if gain is None:
        return NO_VALUE
    return f"{format_difference(gain.gain)} ({format_range(gain.ci_low, gain.ci_high)})"


def _draw(analysis: Analysis, curves: Sequence[LayerCurve]) -> str:
    scores = [[layer.mean for layer in curve.layers] for curve in curves]
    return draw_layers(analysis, curves, scores, y_label=metric_heading(curves[0].metric))


def draw_layers(
    analysis: Analysis,
    curves: Sequence[LayerCurve | SenseNeighbours],
    scores: Sequence[Sequence[float]],
    *,
    y_label: str,
) -> str:
    """Draw the scores of the layers of models on one task."""
    series = []
    for curve, own in zip(curves, scores, strict=True):
        layers = [float(one.layer) for one in curve.layers]
        series.append(model_curve(analysis, curve.model, curve.init, layers, own))
    return charts.draw_line_chart(
        series, title=curves[0].task, x_label="layer", y_label=y_label, percent=True
    )


def _build_table(task: str, curves: Sequence[LayerCurve]) -> Table:
    """Return a line for each model and start of its weights, with the scores of its layers."""
    most = max(len(curve.layers) for curve in curves)
    columns: Columns = [
        "model",
        "top minus 1",
        *numbers("center", *map(str, range(most)), "mix"),
    ]
    rows = [_layer_row(curve, most) for curve in curves]
    heading = f"{metric_heading(curves[0].metric)}, {curves[0].train_examples:,} labels"
    return Table(columns, rows, title=task, subtitle=heading)


def _layer_row(curve: LayerCurve, num_columns: int) -> Row:
    name = format_model(curve.model)
    if curve.init == "random":
        name += ", random init"
    gain = _format_gain(curve)
    if curve.top_gain is not None:
        gain += f": {curve.top_gain.verdict}"
    center = NO_VALUE
    if curve.center is not None:
        center = f"{curve.center:.1f}"
    has_selectivity = curve.metric == FORM_METRIC
    scores = [_score_cell(one, has_selectivity) for one in curve.layers]
    missing = [Cell(NO_VALUE)] * (num_columns - len(scores))
    return Row([name, gain, center, *scores, *missing, _score_cell(curve.mix, has_selectivity)])


def _score_cell(score: LayerScore | None, has_selectivity: bool) -> Cell:
    """Format a score with its interval, and with its selectivity if it is to be shown."""
    if score is None:
        return Cell(NO_VALUE)
    pieces = []
    if score.ci_low is not None and score.ci_high is not None:
        pieces += small(
            f"{format_percent(score.ci_low)} to {format_percent(score.ci_high)}", "muted"
        )
    if has_selectivity and score.selectivity is not None:
        pieces += small(f"selectivity {format_percent(score.selectivity)}", "muted", plain=", {}")
    return Cell(format_percent(score.mean), more=pieces)
