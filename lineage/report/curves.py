"""Curves and costs: scores over labels and over cost, training, and losses over the text read."""

from collections.abc import Sequence
from dataclasses import dataclass

from lineage.analysis.convergence import FinetuneCurve
from lineage.analysis.crossover import (
    LabelCurve,
    build_label_curves,
    build_system_curve,
    find_overtaking,
    labels_needed,
)
from lineage.analysis.decision import (
    Choice,
    Costs,
    Decision,
    SystemCost,
    largest_label_counts,
    pareto_front,
    widest_ranking,
)
from lineage.analysis.records import Analysis, Ranking
from lineage.report import charts
from lineage.report.charts import CostPoint
from lineage.report.figures import LineSeries, PanelSize, choose_panel_size
from lineage.report.formatting import (
    format_build_time,
    format_difference,
    format_model,
    format_use,
    join_with_and,
    metric_heading,
    printed_gap,
)
from lineage.report.styles import model_style

LOSS_NAMES = {
    "bits_per_byte": "bits per byte, left to right",
    "bits_per_byte_forward": "bits per byte, forward",
    "bits_per_byte_backward": "bits per byte, backward",
    "masked_nats": "nats per masked token",
    "next_sentence_nats": "nats per next-sentence prediction",
    "next_sentence_accuracy": "accuracy of next-sentence prediction",
    "sampled_nats": "nats per word, sampled softmax",
    "rebuilt_nats": "nats per reconstructed token",
    "word_nats": "nats per word",
    "source_nats": "nats per source token",
    "target_nats": "nats per target token",
}
MAX_NAMES_IN_TITLE = 4  # of a chart


@dataclass(frozen=True)
class Finding:
    """A figure with the sentence that says what it shows."""

    task: str
    sentence: str
    figure: str  # SVG
    has_forecast: bool = False


def build_label_findings(analysis: Analysis, decisions: Sequence[Decision]) -> list[Finding]:
    """Return a panel for each task that has several numbers of labels."""
    recommended = find_largest_decisions(decisions)
    curves_by_task = build_label_curves(analysis)
    size = choose_panel_size(len(curves_by_task))
    found = []
    for task, curves in curves_by_task.items():
        decision = recommended.get(task)
        best = decision.use.standing.system.model if decision is not None else ""
        shown = [*curves, *_build_recommended_curves(analysis, task, curves, decisions)]
        sentence = describe_label_curves(shown, best=best)
        panel = _draw_label_panel(analysis, shown, decision, size)
        has_forecast = decision is not None and decision.forecast is not None
        found.append(Finding(task, sentence, panel, has_forecast=has_forecast))
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


def find_largest_decisions(decisions: Sequence[Decision]) -> dict[str, Decision]:
    """Return the decision of each task at its most labels."""
    found: dict[str, Decision] = {}
    for one in decisions:
        known = found.get(one.task)
        if known is None or one.train_examples > known.train_examples:
            found[one.task] = one
    return found


def _draw_label_panel(
    analysis: Analysis,
    curves: Sequence[LabelCurve],
    decision: Decision | None,
    size: PanelSize,
) -> str:
    best = decision.use.standing.system.model if decision is not None else ""
    uses = {format_use(curve.system) for curve in curves if curve.system.family != "tfidf"}
    most_labels = max(curve.train_examples[-1] for curve in curves)
    series: list[LineSeries] = []
    seen: set[str] = set()
    for curve in curves:
        style = model_style(analysis, curve.system.model)
        name = format_model(curve.system.model)
        if len(uses) > 1:
            name = f"{name} {format_use(curve.system)}".strip()
        if curve.train_examples[-1] < most_labels:
            name += f", {curve.train_examples[-1]:,}"
        series.append(
            LineSeries(
                name,
                style.color,
                curve.train_examples,
                curve.scores,
                dashed=curve.system.model in seen,
                marker=style.marker,
                bold=curve.system.model in (best, "tfidf"),
            )
        )
        seen.add(curve.system.model)
    forecast = None
    if decision is not None and decision.forecast is not None:
        end = decision.forecast
        for curve, one in zip(curves, series, strict=True):
            if curve.system == end.system:
                forecast = (one.name, end.doubled, end.scores[-1] + end.gain)
    heading = metric_heading(curves[0].metric)
    return charts.draw_label_panel(
        series,
        title=curves[0].task,
        subtitle=heading if len(uses) != 1 else f"{heading}, {uses.pop()}",
        size=size,
        forecast=forecast,
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
        return f"TF-IDF scores higher than {name} with {tfidf.train_examples[-1]:,} labels."
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


def _describe_tfidf_lead(tfidf: LabelCurve, others: Sequence[LabelCurve]) -> str:
    """Tell at which of the numbers of labels TF-IDF scores at least as high as all that is shown."""
    highest: dict[int, float] = {}
    for curve in others:
        for count, score in zip(curve.train_examples, curve.scores, strict=True):
            highest[count] = max(highest.get(count, score), score)
    leads: list[str] = []
    trails: list[str] = []
    for count, score in zip(tfidf.train_examples, tfidf.scores, strict=True):
        if count in highest:
            own = leads if score >= highest[count] else trails
            own.append(f"{count:,}")
    if not leads:
        return ""
    if not trails:
        return "TF-IDF leads at every number of labels."
    return f"TF-IDF leads with {join_with_and(leads)} labels, but not with {join_with_and(trails)}."


def round_labels(count: float) -> str:
    """Round a number that was read off a curve to two digits: `about 440`."""
    return f"{float(f'{count:.2g}'):,.0f}"


def build_cost_findings(
    analysis: Analysis, decisions: Sequence[Decision], costs: Costs
) -> list[Finding]:
    """Return a panel for each task: the score of each model over the time it takes to build.

    A task in which nothing is better than counting 5-grams has nothing to buy, and no panel.
    """
    drawn = []
    nothing = {one.setting for one in decisions if one.advice == "nothing above a 5-gram model"}
    for ranking in largest_label_counts(analysis.rankings).values():
        if ranking.setting in nothing:
            continue
        widest = widest_ranking(analysis.rankings, ranking)
        choices = [
            Choice(one, costs.get((one.system, ranking.setting), SystemCost()))
            for one in widest.standings
        ]
        timed = [one for one in choices if one.cost.seconds]
        if len(timed) > 1:
            drawn.append((ranking, timed))
    size = choose_panel_size(len(drawn))
    found = []
    for ranking, timed in drawn:
        sentence = describe_front(pareto_front(timed), margin=analysis.equivalence_margin)
        panel = _draw_cost_panel(analysis, ranking, timed, size)
        found.append(Finding(ranking.task, sentence, panel))
    return found


def describe_devices(costs: Costs) -> str:
    """Say that times on a GPU and on a CPU were mixed; empty if they were not.

    TF-IDF is always built on a CPU.
    """
    devices = {
        cost.on_gpu
        for (system, _), cost in costs.items()
        if cost.seconds is not None and system.family != "tfidf"
    }
    if len(devices) < 2:
        return ""
    return (
        "Some models were built on a GPU and others on a CPU, so their times differ by machine too."
    )


def describe_front(front: Sequence[Choice], *, margin: float) -> str:
    """Tell what more time buys: `TF-IDF is the cheapest; ELMo takes 107 s for +19.8 points.`

    Steps of less than `margin` are left out.
    """
    last = front[0]
    steps = []
    for one in front[1:]:
        gain = one.standing.mean - last.standing.mean
        if gain >= margin:
            name = format_model(one.standing.system.model)
            points = format_difference(printed_gap(one.standing.mean, last.standing.mean))
            steps.append(f"{name} takes {format_build_time(one.cost)} for {points} points")
            last = one
    cheapest = f"{format_model(front[0].standing.system.model)} is the cheapest"
    if len(front) == 1:
        return f"{cheapest}, and no other scores higher."
    if not steps:
        return f"{cheapest}; no other scores {100 * margin:g} points more."
    return f"{cheapest}; {join_with_and(steps)}."


def _draw_cost_panel(
    analysis: Analysis, ranking: Ranking, choices: Sequence[Choice], size: PanelSize
) -> str:
    front = pareto_front(choices)
    points = []
    for one in choices:
        assert one.cost.seconds is not None
        style = model_style(analysis, one.standing.system.model)
        points.append(
            CostPoint(
                format_model(one.standing.system.model),
                one.cost.seconds,
                one.standing.mean,
                style.color,
                style.marker,
                on_front=one in front,
            )
        )
    return charts.draw_cost_panel(
        points, title=ranking.task, subtitle=metric_heading(ranking.metric), size=size
    )


def draw_finetune_curves(analysis: Analysis, task: str) -> list[str]:
    """Draw the training loss and the validation score of a task's fine-tuned models by epoch."""
    curves = [one for one in analysis.finetune_curves if one.task == task]
    if not curves:
        return []
    measures = (
        ("training", "loss", "train_loss"),
        ("validation", metric_heading(curves[0].metric), "validation_score"),
    )
    drawn = []
    for title, y_label, field in measures:
        series = [_finetune_series(analysis, curve, field) for curve in curves]
        measured = [one for one in series if one.x]
        if measured:
            drawn.append(
                charts.draw_line_chart(
                    measured,
                    title=f"{task}, {title}",
                    x_label="epoch",
                    y_label=y_label,
                    percent=field == "validation_score",
                )
            )
    return drawn


def _finetune_series(analysis: Analysis, curve: FinetuneCurve, field: str) -> LineSeries:
    style = model_style(analysis, curve.model)
    points = zip(curve.epoch, getattr(curve, field), strict=True)
    finite = [(epoch, value) for epoch, value in points if value is not None]
    return LineSeries(
        format_model(curve.model),
        style.color,
        [epoch for epoch, _ in finite],
        [value for _, value in finite],
        hollow=curve.init == "random",
        marker=style.marker,
    )


def draw_loss_curves(analysis: Analysis) -> list[str]:
    """Draw validation losses over text read, a chart per metric.

    Metrics that count different things, such as masked tokens, never share an axis.
    """
    found = []
    for metric in sorted({curve.metric for curve in analysis.curves}):
        series = []
        models: dict[str, None] = {}
        for curve in analysis.curves:
            if curve.metric == metric:
                models[curve.model] = None
                style = model_style(analysis, curve.model)
                megabytes = [count / 1e6 for count in curve.text_bytes]
                series.append(
                    LineSeries(
                        curve.model, style.color, megabytes, curve.value, marker=style.marker
                    )
                )
        title = ", ".join(format_model(model) for model in models)
        if len(models) > MAX_NAMES_IN_TITLE:
            title = f"{len(models)} models"
        found.append(
            charts.draw_line_chart(
                series, title=title, x_label="text read, MB", y_label=format_loss_name(metric)
            )
        )
    return found


def format_loss_name(metric: str) -> str:
    """Name a loss, with the unit it counts."""
    return LOSS_NAMES.get(metric, metric.replace("_", " "))
