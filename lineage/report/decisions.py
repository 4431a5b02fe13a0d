"""The first screen of the report: the answer in a sentence, what to use, and the main figure."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from lineage.analysis.decision import Choice, Decision, SystemCost
from lineage.analysis.records import (
    MEAN_TOLERANCE,
    Analysis,
    Ranking,
    Standing,
    System,
)
from lineage.analysis.settings import chance_level
from lineage.report import figures
from lineage.report.figures import IntervalRow
from lineage.report.formatting import (
    TRANSFER_NAMES,
    format_build_time,
    format_difference,
    format_head,
    format_label_count,
    format_model,
    format_percent,
    format_si,
    format_use,
    join_with_and,
    metric_heading,
    metric_unit,
    plural,
    printed_gap,
)
from lineage.report.styles import model_style

SMALLEST_GAIN = 0.0005  # it would be printed as 0.0 points
NO_FORECAST = (
    "To forecast what more labels would bring, run this system with at least three label counts"
)
MAX_NAMES = 3  # of systems that are as good, in a cell
NEXT_STEPS = {
    "nothing above chance": "Label more, or let models read more text",
    "nothing above a 5-gram model": "Let models read more text",
    "use a public model": "Use the public model",
    "label more first": "Label more before you choose a model",
    "use TF-IDF": "Use TF-IDF",
    "pretrain on your text": "Use {model}",
}


@dataclass(frozen=True)
class DecisionLine:
    """One line of the table "what to use"."""

    task: str
    labels: str
    label_count: str  # that the switch of the table shows; "none" is always shown
    use: str
    detail: str  # how the model is used
    mark: str  # SVG
    score: str
    interval: str
    unit: str
    as_good: str
    cost: str
    # The best without public weights, if a public model is to be used, or else the best with them.
    alternative: str
    next_step: str
    forecast: str
    limits: str  # tests that show no gain, labels that are available, methods that were not run
    sentence: str


@dataclass(frozen=True)
class MainFigure:
    """The best system of each model on every task, at one number of labels."""

    label_count: str
    panels: tuple[str, ...]  # SVG


def name_system(system: System) -> str:
    """Name a system in a sentence: `elmo (adapted, fine-tuned)`; `TF-IDF`."""
    detail = format_use(system)
    name = format_model(system.model)
    return f"{name} ({detail})" if detail else name


def build_decision_lines(analysis: Analysis, decisions: Sequence[Decision]) -> list[DecisionLine]:
    """Return a line for each setting, tasks in their order and the most labels first."""
    tasks = list(dict.fromkeys(one.task for one in decisions))
    ordered = sorted(decisions, key=lambda one: (tasks.index(one.task), -one.train_examples))
    most_labels = {one.task: one.train_examples for one in reversed(ordered)}
    return [
        _decision_line(analysis, one, most_labels=one.train_examples == most_labels[one.task])
        for one in ordered
    ]


def _decision_line(analysis: Analysis, decision: Decision, *, most_labels: bool) -> DecisionLine:
    """Return a line; a forecast is for the most labels of a task."""
    lacks_forecast = most_labels and decision.train_examples > 0
    use = decision.use.standing
    style = model_style(analysis, use.system.model)
    return DecisionLine(
        task=decision.task,
        labels=_name_label_count(decision),
        label_count=decision.label_count,
        use=format_model(use.system.model),
        detail=format_use(use.system),
        mark=style.mark,
        score=format_percent(use.mean),
        interval=format_interval(use),
        unit=metric_unit(decision.metric),
        as_good=_list_as_good(decision),
        cost=format_cost(decision.use.cost),
        alternative=_describe_alternative(analysis, decision),
        next_step=NEXT_STEPS[decision.advice].format(model=format_model(use.system.model)),
        forecast=describe_forecast(decision) or (NO_FORECAST if lacks_forecast else ""),
        limits=" ".join(describe_limits(analysis, decision)),
        sentence=describe_decision(decision),
    )


def _name_label_count(decision: Decision) -> str:
    """Name a number of labels: `all 600 labels`; `2,000 labels` where a limit leaves others out."""
    if decision.unused_labels:
        return f"{decision.train_examples:,} labels"
    return format_label_count(decision.label_count, train_examples=decision.train_examples)


def _describe_alternative(analysis: Analysis, decision: Decision) -> str:
    """Name the best of the other group, with or without public models; empty without one."""
    if decision.overall is None:
        return ""
    if decision.advice == "use a public model":
        own = decision.under_budget
        if own is None:
            return ""
        text = f"without public weights: {_name_with_cost(own)}"
        if _lacks_gain(analysis, decision, own):
            text += ", not shown to be better than TF-IDF if trained again"
        return text
    if decision.overall.standing.system == decision.use.standing.system:
        return "with public weights: the same"
    gain = ""
    if decision.overall_gain is not None:
        gain = f" ({format_difference(decision.overall_gain)})"
    return f"with public weights: {_name_with_cost(decision.overall)}{gain}"


def format_interval(standing: Standing) -> str:
    """Format the interval of a score: `84.4 to 87.1`; empty without one."""
    if standing.ci_low is None:
        return ""
    return f"{format_percent(standing.ci_low)} to {format_percent(standing.ci_high)}"


def format_cost(cost: SystemCost) -> str:
    """Format what is known of a cost: `12 min to build · 16 MB · 340 items/s`."""
    parts = []
    if cost.seconds is not None:
        parts.append(format_build_time(cost, " to build"))
    if cost.model_bytes is not None:
        parts.append(format_si(cost.model_bytes, "B"))
    if cost.items_per_second is not None:
        parts.append(f"{float(f'{cost.items_per_second:.2g}'):,g} items/s")
    return " · ".join(parts)


def _list_as_good(decision: Decision) -> str:
    """Name the systems that are as good, and what they cost beside the recommended one."""
    if decision.certainty == "alone":
        return "nothing to compare with"
    names = [_name_with_cost(one) for one in decision.as_good]
    if decision.counting_score is not None:
        names.insert(0, f"a 5-gram model {format_percent(decision.counting_score)}")
    if not names:
        return "none"
    if len(names) > MAX_NAMES:
        return f"{len(names)} others, such as {names[0]}"
    return join_with_and(names)


def _name_with_cost(choice: Choice) -> str:
    """Name a system with its score and the time it takes: `BERT (fine-tuned) 100.0 in 69 s`."""
    text = f"{name_system(choice.standing.system)} {format_percent(choice.standing.mean)}"
    if choice.cost.seconds is not None:
        text += f" in {format_build_time(choice.cost)}"
    return text


def describe_forecast(decision: Decision) -> str:
    """Tell what as many labels again should bring.

    Such as `240 more labels should bring +3.5 points (+2.1 to +3.9)`.
    """
    forecast = decision.forecast
    if forecast is None:
        return ""
    is_sure = forecast.gain_low >= SMALLEST_GAIN or forecast.gain_high < SMALLEST_GAIN
    verb = "should" if is_sure else "may"
    text = f"{forecast.doubled - forecast.label_counts[-1]:,} more labels {verb} bring"
    if forecast.system != decision.use.standing.system:
        text += f" {name_system(forecast.system)}"
    if forecast.gain_high < SMALLEST_GAIN:
        return f"{text} no gain"
    low = format_difference(forecast.gain_low)
    high = format_difference(forecast.gain_high)
    gain = format_difference(forecast.gain)
    reached = format_percent(forecast.scores[-1] + forecast.gain)
    return f"{text} {gain} points ({low} to {high}), to {reached}"


def _lacks_gain(analysis: Analysis, decision: Decision, choice: Choice) -> bool:
    """Return whether tests over seeds do not show a choice to be better than TF-IDF.

    The choice itself is about the systems that were trained, so the two can differ.
    """
    return any(
        one.comparison_type == "tfidf"
        and one.task == decision.task
        and one.label_count == decision.label_count
        and one.first == choice.standing.system
        and one.verdict != "better"
        for one in analysis.comparisons
    )


def describe_limits(analysis: Analysis, decision: Decision) -> list[str]:
    """Tell what tests do not show, where more labels are, and which methods were not run."""
    limits = []
    if decision.use.standing.above_chance and _lacks_gain(analysis, decision, decision.use):
        limits.append("Trained again, it is not shown to be better than TF-IDF.")
    if decision.unused_labels:
        limits.append(
            f"{decision.unused_labels:,} more labelled items are available: raise the task's limit."
        )
    if decision.omitted:
        methods = [TRANSFER_NAMES[one.transfer] + format_head(one.head) for one in decision.omitted]
        limits.append(f"Not run with {decision.train_examples:,} labels: {join_with_and(methods)}.")
    return limits


def describe_decision(decision: Decision) -> str:
    """Return the decision as one or two sentences, with certainty, cost and forecast."""
    use = decision.use.standing
    if not use.above_chance:
        return (
            "Nothing is shown to be above chance; of each model's best system on validation, "
            f"{name_system(use.system)} scores highest, {format_percent(use.mean)} "
            f"{metric_unit(decision.metric)}."
        )
    if decision.advice == "nothing above a 5-gram model":
        return (
            "No model is shown to be better than a 5-gram model, which only counts; "
            f"{_describe_score(decision.use, decision.metric)}; {_describe_certainty(decision)}."
        )
    public = "the public model " if decision.advice == "use a public model" else ""
    text = f"Use {public}{_describe_score(decision.use, decision.metric)}"
    if public and decision.overall_gain is not None:
        text += f", {_format_lead(decision)} points above the best without public weights"
    text += f"; {_describe_certainty(decision)}"
    if decision.use.cost.seconds is not None:
        text += f"; it takes {format_build_time(decision.use.cost, ' to build')}"
    if forecast := describe_forecast(decision):
        text += f"; {forecast}"
    if public and decision.under_budget is not None:
        return f"{text}. {_describe_under_budget(decision.under_budget, decision.metric)}"
    return f"{text}."


def _describe_under_budget(choice: Choice, metric: str) -> str:
    """Tell what to use where public models may not be used."""
    if not choice.standing.above_chance:
        return "Without public weights, nothing is shown to be above chance."
    text = f"Without public weights, use {_describe_score(choice, metric)}"
    if choice.cost.seconds is not None:
        text += f"; it takes {format_build_time(choice.cost, ' to build')}"
    return f"{text}."


def _describe_score(choice: Choice, metric: str) -> str:
    """Name a system with its score and interval: `ELMo, frozen: 93.1 % (91.3 to 94.9)`."""
    standing = choice.standing
    name = ", ".join(
        part for part in (format_model(standing.system.model), format_use(standing.system)) if part
    )
    score = f"{format_percent(standing.mean)} {metric_unit(metric)}"
    interval = format_interval(standing)
    return f"{name}: {score} ({interval})" if interval else f"{name}: {score}"


def _describe_certainty(decision: Decision) -> str:
    use = decision.use.standing
    if decision.certainty == "alone":
        return "there is nothing to compare it with"
    if decision.certainty == "clear":
        others = "all other models"  # a model's other systems are not candidates
        if decision.omitted:
            others += " that were run with so many labels"
        return f"{others} are shown to score lower"
    names = _join_names(decision.as_good)
    if decision.certainty == "cheapest":
        if _is_highest(decision):
            return f"{names} may be as good"
        return _describe_cheapest(decision)
    chance = ""
    if use.probability_best is not None:
        chance = f" (P = {use.probability_best:.2f} of being the best)"
    return f"no other model scores higher{chance}, but {names} may be as good"


def _describe_cheapest(decision: Decision) -> str:
    """Name the systems that are known to take longer, and then the others that may be as good."""
    seconds = decision.use.cost.seconds
    dearer = [
        one
        for one in decision.as_good
        if seconds is not None and one.cost.seconds is not None and one.cost.seconds > seconds
    ]
    others = [one for one in decision.as_good if one not in dearer]
    text = "it is at most 2 points below the best"
    if dearer:
        text += f" and cheaper than {_join_names(dearer)}"
    if others:
        text += f"; {_join_names(others)} may be as good"
    return text


def _join_names(choices: Sequence[Choice]) -> str:
    return join_with_and([name_system(one.standing.system) for one in choices])


def _is_highest(decision: Decision) -> bool:
    mean = decision.use.standing.mean
    return all(one.standing.mean <= mean for one in decision.as_good)


def summarize_decisions(analysis: Analysis, decisions: Sequence[Decision]) -> str:
    """Answer the question of the report: what to use for which task, at the most labels.

    It says so where another model is to be used with fewer labels.
    """
    largest: dict[str, Decision] = {}
    for one in decisions:
        known = largest.get(one.task)
        if known is None or one.train_examples > known.train_examples:
            largest[one.task] = one
    if not largest:
        return "No system has a score. The reasons are listed under the failures."
    groups: dict[tuple[str, str], list[Decision]] = {}
    for one in largest.values():
        groups.setdefault(_answer_key(one), []).append(one)
    others = {(one.task, one.use.standing.system.model) for one in decisions}
    answers = []
    for (advice, model), group in groups.items():
        used = {(one.task, one.use.standing.system.model) for one in group}
        tasks = {one.task for one in group}
        has_other_uses = any(one not in used for one in others if one[0] in tasks)
        answer = _answer(analysis, advice, model, group)
        if has_other_uses:
            answer = f"With the most labels, {answer[0].lower()}{answer[1:]}"
        answers.append(answer)
    return " ".join(answers)


def _answer_key(decision: Decision) -> tuple[str, str]:
    """Return the advice with the model that it names."""
    if decision.advice == "use a public model":
        assert decision.overall is not None
        return decision.advice, decision.overall.standing.system.model
    if decision.advice in ("nothing above chance", "nothing above a 5-gram model"):
        return decision.advice, ""
    return "use", decision.use.standing.system.model


def _answer(analysis: Analysis, advice: str, model: str, group: Sequence[Decision]) -> str:
    noun = "task" if len(group) == 1 else "tasks"
    tasks = f"the {noun} {join_with_and([one.task for one in group])}"
    if advice == "nothing above chance":
        return f"For {tasks}, nothing is shown to be above chance."
    if advice == "nothing above a 5-gram model":
        return (
            f"For {tasks}, no model is shown to be better than a 5-gram model, which only counts."
        )
    if advice == "use a public model":
        answer = f"For {tasks}, use the public model {format_model(model)}"
        gains = [_format_lead(one) for one in group if one.overall_gain is not None]
        if gains:
            answer += f": {join_with_and(gains)} points above the best without public weights"
        return f"{answer}.{_describe_continuation(analysis, group)}"
    if model == "tfidf":
        answer = f"For {tasks}, use TF-IDF: no pretrained model is shown to be worth more"
        if any(method.transfer == "finetuned" for one in group for method in one.omitted):
            answer += " (with so many labels, none was fine-tuned)"
        return f"{answer}."
    named = []
    for one in group:
        notes = [*_describe_lead(analysis, one), *_describe_equals(one)]
        named.append(f"{one.task} ({'; '.join(notes)})" if notes else one.task)
    return f"Use {format_model(model)}, pretrained on your text, for {join_with_and(named)}."


def _format_lead(decision: Decision) -> str:
    """Format the lead of the best public system over the best without public weights."""
    assert decision.overall is not None and decision.overall_gain is not None
    best = decision.overall.standing.mean
    return format_percent(printed_gap(best, best - decision.overall_gain))


def _describe_continuation(analysis: Analysis, group: Sequence[Decision]) -> str:
    """Tell what the public models lose or gain by reading the corpus; empty if nothing is shown."""
    uses = {(one.setting, one.use.standing.system) for one in group}
    text = ""
    for one in analysis.comparisons:
        is_of_group = (one.setting, one.second) in uses
        if one.comparison_type != "continuation" or not is_of_group:
            continue
        if one.verdict in ("better", "worse"):
            verb = "gains" if one.verdict == "better" else "loses"
            points = format_percent(abs(one.difference))
            text += (
                f" On {one.task}, continuing its pretraining on your text {verb} {points} points."
            )
    return text


def _describe_lead(analysis: Analysis, decision: Decision) -> list[str]:
    """Tell how far the system to use is from TF-IDF; nothing if TF-IDF has no score."""
    tfidf = _find_tfidf(analysis, decision)
    if tfidf is None:
        return []
    if not tfidf.above_chance:
        return ["TF-IDF is at chance"]
    lead = printed_gap(decision.use.standing.mean, tfidf.mean)
    direction = "above" if lead >= 0 else "below"
    return [f"{format_percent(abs(lead))} points {direction} TF-IDF"]


def _describe_equals(decision: Decision) -> list[str]:
    """Name the models that may be as good, but not all of many."""
    if not decision.as_good:
        return []
    names = [format_model(one.standing.system.model) for one in decision.as_good]
    if len(names) > MAX_NAMES:
        return [f"{len(names)} others may be as good"]
    return [f"{join_with_and(names)} may be as good"]


def _find_tfidf(analysis: Analysis, decision: Decision) -> Standing | None:
    for ranking in analysis.rankings:
        if ranking.scope == "budget" and ranking.setting == decision.setting:
            for standing in ranking.standings:
                if standing.system.family == "tfidf":
                    return standing
    return None


def describe_runs(analysis: Analysis) -> str:
    """Tell what the statements rest on, and what their intervals do not cover."""
    grid = analysis.grid
    pretrainings = plural(len(grid.pretrain_seeds), "pretraining run")
    finetunings = plural(len(grid.finetune_seeds), "fine-tuning seed")
    text = (
        f"{pretrainings} of each model and {finetunings}. Intervals are for other {analysis.split} "
        "items; they do not cover how another pretraining would turn out."
    )
    if analysis.public_models:
        text += " What public checkpoints have read is unknown, and may include these items."
    generated = [one.task for one in analysis.tasks if one.generated]
    if generated and len(generated) == len(analysis.tasks):
        text = f"All tasks are generated: their scores say nothing about real text. {text}"
    elif generated:
        text += f" Generated, not real: {join_with_and(generated)}."
    return text


def build_main_figures(analysis: Analysis) -> list[MainFigure]:
    """Return a figure for each number of labels, with a panel per task."""
    widest = {one.setting: one for one in analysis.rankings}  # with public models, if there are any
    counts = [str(count) for count in analysis.grid.label_counts]
    present = {one.label_count for one in widest.values()}
    label_counts = [count for count in counts if count in present] or ["none"]
    found = []
    for count in label_counts:
        rankings = [one for one in widest.values() if one.label_count in (count, "none")]
        width = figures.choose_panel_size(len(rankings)).width
        panels = [_draw_panel(analysis, ranking, width) for ranking in rankings]
        found.append(MainFigure(count, tuple(panels)))
    return found


def _draw_panel(analysis: Analysis, ranking: Ranking, width: int) -> str:
    rows = []
    band = None
    reference = None
    for standing in _in_grid_order(analysis, ranking.standings):
        if standing.system.family == "tfidf":
            reference = standing.mean
            band = _interval(standing)
        style = model_style(analysis, standing.system.model)
        rows.append(
            IntervalRow(
                name=format_model(standing.system.model),
                detail=format_use(standing.system),
                value=standing.mean,
                others=_other_scores(analysis, ranking, standing),
                interval=_interval(standing),
                color=style.color,
                marker=style.marker,
                filled=standing.may_be_best,
                text=format_percent(standing.mean),
                is_best=ranking.best.mean - standing.mean <= MEAN_TOLERANCE,
            )
        )
    counting = _counting_row(analysis, ranking)
    if counting is not None:
        rows.append(counting)
        reference = counting.value
        band = counting.interval
    return figures.draw_interval_panel(
        rows,
        title=ranking.task,
        subtitle=metric_heading(ranking.metric),
        band=band,
        reference=reference,
        chance=chance_level(analysis, ranking.setting),
        width=width,
    )


def _counting_row(analysis: Analysis, ranking: Ranking) -> IntervalRow | None:
    """Return the row of the 5-gram model, the reference on minimal pairs; None on other tasks."""
    for score in analysis.scores_of(ranking.setting):
        if score.system.model != "kneser_ney" or score.mean is None:
            continue
        style = model_style(analysis, score.system.model)
        interval = None
        if score.ci_low is not None and score.ci_high is not None:
            interval = (score.ci_low, score.ci_high)
        return IntervalRow(
            name=format_model(score.system.model),
            detail="",
            value=score.mean,
            others=(),
            interval=interval,
            color=style.color,
            marker=style.marker,
            filled=True,
            text=format_percent(score.mean),
            is_best=False,
        )
    return None


def _other_scores(analysis: Analysis, ranking: Ranking, standing: Standing) -> list[float]:
    """Return the scores of the other trained systems of a model in the same setting."""
    return [
        score.mean
        for score in analysis.scores_of(ranking.setting)
        if score.system.model == standing.system.model
        and score.system != standing.system
        and score.system.init != "random"
        and score.mean is not None
    ]


def _in_grid_order(analysis: Analysis, standings: Iterable[Standing]) -> list[Standing]:
    names = list(analysis.model_names)

    def place(standing: Standing) -> int:
        model = standing.system.model
        return names.index(model) if model in names else len(names)

    return sorted(standings, key=place)


def _interval(standing: Standing) -> tuple[float, float] | None:
    if standing.ci_low is None or standing.ci_high is None:
        return None
    return standing.ci_low, standing.ci_high
