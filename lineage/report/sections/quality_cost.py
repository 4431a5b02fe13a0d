"""Scores over the time that it takes to build a system."""

from collections.abc import Sequence

from lineage.analysis.decision import (
    Choice,
    Costs,
    Decision,
    largest_label_counts,
    list_choices,
    pareto_front,
    widest_rankings,
)
from lineage.analysis.records import Analysis, Ranking
from lineage.report import charts
from lineage.report.charts import CostPoint
from lineage.report.costs import describe_devices
from lineage.report.decisions import find_largest_decisions
from lineage.report.figures import PanelSize, choose_layout, choose_panel_size
from lineage.report.formatting import (
    format_build_time,
    format_difference,
    format_model,
    join_with_and,
    metric_heading,
)
from lineage.report.section import Figure, Figures, Paragraph, ReportData, Section
from lineage.report.sections.outside_systems import describe_prices
from lineage.report.styles import find_weak_models, model_style
from lineage.tasks.base import load_kind


def build(report: ReportData) -> Section | None:
    """Return a panel for each task with at least two systems whose times are known."""
    panels = build_cost_panels(report.analysis, report.decisions, report.costs)
    if not panels:
        return None
    devices = describe_devices(report.costs)
    text = (
        "Each model's best system by validation, over the time to pretrain, adapt and train it "
        "here. The line joins those that no cheaper one beats; their names are bold. "
        f"{devices}"
    )
    short = f"The time to pretrain, adapt and train once. {devices}"
    prices = describe_prices(report.analysis)
    return Section(
        "What quality costs",
        [Figures(panels, choose_layout(len(panels)), caption_below=True)],
        aside=(
            Paragraph(text.strip(), only="html"),
            Paragraph(short.strip(), only="markdown"),
            *([Paragraph(prices)] if prices else []),
        ),
        anchor="cost",
        link="Cost",
    )


def build_cost_panels(
    analysis: Analysis, decisions: Sequence[Decision], costs: Costs
) -> list[Figure]:
    """Return a panel for each task: the score of each model over the time it takes to build.

    A task in which nothing is better than counting 5-grams has nothing to buy, and no panel.
    """
    drawn = []
    nothing = {one.setting for one in decisions if one.advice == "nothing above a 5-gram model"}
    for ranking in largest_label_counts(analysis.rankings).values():
        if ranking.setting in nothing:
            continue
        widest = widest_rankings(analysis.rankings)[ranking.setting]
        timed = [one for one in list_choices(widest, costs) if one.cost.seconds]
        if len(timed) > 1:
            drawn.append((ranking, timed))
    size = choose_panel_size(len(drawn))
    largest = find_largest_decisions(decisions)
    found = []
    for ranking, timed in drawn:
        decision = largest.get(ranking.task)
        sentence = describe_front(
            pareto_front(timed),
            margin=analysis.equivalence_margin,
            use=None if decision is None else decision.use,
            train_examples=ranking.train_examples,
        )
        if load_kind(ranking.kind).knowledge:
            sentence = _describe_knowledge(analysis, timed)
        panel = _draw_cost_panel(analysis, ranking, timed, size)
        found.append(Figure(panel, sentence, ranking.task))
    return found


def _describe_knowledge(analysis: Analysis, choices: Sequence[Choice]) -> str:
    """Tell what more time buys on minimal pairs, without the models that learned little."""
    weak = find_weak_models(analysis)
    strong = [one for one in choices if one.standing.system.model not in weak]
    mark = " without ‡" if len(strong) < len(choices) else ""
    if not strong:
        return ""
    text = describe_front(pareto_front(strong), margin=analysis.equivalence_margin)
    return f"Of the pretrained models{mark}, {text}"


def describe_front(
    front: Sequence[Choice],
    *,
    margin: float,
    use: Choice | None = None,
    train_examples: int = 0,
) -> str:
    """Tell what more time buys: `TF-IDF is the cheapest; ELMo takes 107 s for +19.8 points.`

    With the number of labels if there are any: `With 100 labels, TF-IDF is the cheapest`.
    Steps of less than `margin` are left out. The system to `use` is named in any case.
    """
    last = front[0]
    steps = []
    for one in front[1:]:
        gain = one.standing.mean - last.standing.mean
        if gain >= margin:
            name = format_model(one.standing.system.model)
            points = format_difference(gain)
            steps.append(f"{name} takes {format_build_time(one.cost)} for {points} points")
            last = one
    labels = f"With {train_examples:,} labels, " if train_examples else ""
    cheapest = f"{labels}{format_model(front[0].standing.system.model)} is the cheapest"
    if len(front) == 1:
        text = f"{cheapest}, and no other scores higher."
    elif not steps:
        text = f"{cheapest}; no other scores {100 * margin:g} points more."
    else:
        text = f"{cheapest}; {join_with_and(steps)}."
    if use is None or use.cost.seconds is None or use.standing.system == last.standing.system:
        return text
    return text + _describe_use(use, last)


def _describe_use(use: Choice, last: Choice) -> str:
    """Name the system to use, and how far it is above the last one that was named."""
    name = format_model(use.standing.system.model)
    name = f"{name[0].upper()}{name[1:]}"
    other = format_model(last.standing.system.model)
    points = format_difference(use.standing.mean - last.standing.mean)
    return f" {name}, the one to use, takes {format_build_time(use.cost)}: {points} points against {other}."


def _draw_cost_panel(
    analysis: Analysis, ranking: Ranking, choices: Sequence[Choice], size: PanelSize
) -> str:
    front = pareto_front(choices)
    points = []
    for one in choices:
        assert one.cost.seconds is not None
        model = one.standing.system.model
        points.append(
            CostPoint(
                format_model(model),
                model_style(analysis, model),
                one.cost.seconds,
                one.standing.mean,
                on_front=one in front,
            )
        )
    return charts.draw_cost_panel(
        points,
        title=ranking.task,
        subtitle=f"{metric_heading(ranking.metric)} over time",
        size=size,
    )
