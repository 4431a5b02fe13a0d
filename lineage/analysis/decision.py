"""The decision of a setting: which system to use, what it costs, and what to do next.

The rules are in docs/explanation/statistics.md. They are pure functions of the rankings, the
forecasts and the costs.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from lineage.analysis.cells import split_test_set
from lineage.analysis.records import (
    MEAN_TOLERANCE,
    Analysis,
    LabelForecast,
    Ranking,
    Setting,
    Standing,
    System,
)
from lineage.analysis.settings import OmittedMethod, find_omitted_methods
from lineage.answers.metrics import RANKING_METRICS

Certainty = Literal[
    "clear",  # no other system may be the best
    "cheapest",  # others may be better, by no more than the margin
    "open",  # others may be better by more than the margin
    "alone",  # there is no other system
]
Advice = Literal[
    "nothing above chance",
    "nothing above a 5-gram model",
    "use a public model",
    "label more first",
    "use TF-IDF",
    "pretrain on your text",
]


@dataclass(frozen=True)
class SystemCost:
    """The cost of building a system on the machines of this run; None if unknown."""

    seconds: float | None = None  # pretraining, adaptation, and training of the head
    peak_memory_bytes: float | None = None
    model_bytes: float | None = None
    items_per_second: float | None = None  # answered, the encoder included
    on_gpu: bool = False  # at least one of its stages ran on a GPU


# Times that differ by less count as equal, since the same stage takes longer on a busy machine.
SAME_COST_FACTOR = 1.5
SHORTEST_SECONDS = 10.0  # shorter times count as this, since the load of the machine decides them
Costs = Mapping[tuple[System, Setting], SystemCost]


@dataclass(frozen=True)
class Choice:
    """A system of a decision, with its cost."""

    standing: Standing
    cost: SystemCost


@dataclass(frozen=True)
class Decision:
    """The system to use in a setting, and the next step."""

    task: str
    label_count: str
    train_examples: int
    metric: str
    use: Choice  # a public model if it is worth it, or else the best under the study's budget
    certainty: Certainty
    as_good: tuple[Choice, ...]  # others that may be the best, or are within the margin of it
    under_budget: Choice | None  # None if nothing was trained under the budget
    overall: Choice | None  # if public checkpoints may be used; None without any
    overall_gain: float | None  # its lead over the best of the budget; None without one
    forecast: LabelForecast | None  # for the system to use, or for another one of its model
    advice: Advice
    omitted: tuple[OmittedMethod, ...] = ()  # methods that were not run with this number of labels
    unused_labels: int = 0  # labelled training items that the task's limit leaves out
    counting_score: float | None = None  # of a 5-gram model, if nothing is shown to be better

    @property
    def setting(self) -> Setting:
        return Setting(self.task, self.label_count)

    @property
    def expected_score(self) -> float:
        """The score of the system to use, in the unit of the metric."""
        return self.use.standing.mean * RANKING_METRICS[self.metric]


def decide(analysis: Analysis, costs: Costs) -> list[Decision]:
    """Decide every setting, under the budget if something was trained for it."""
    rankings: dict[str, dict[Setting, Ranking]] = {"budget": {}, "overall": {}}
    for ranking in analysis.rankings:
        rankings[ranking.scope][ranking.setting] = ranking
    decisions = []
    for setting in dict.fromkeys(ranking.setting for ranking in analysis.rankings):
        decision = _decide_setting(
            rankings["budget"].get(setting),
            rankings["overall"].get(setting),
            costs,
            analysis.label_forecasts,
            margin=analysis.equivalence_margin,
        )
        if decision.advice == "pretrain on your text" and _ngram_does_as_well(analysis, setting):
            counting_score = _find_ngram_score(analysis, setting)
            decision = replace(
                decision, advice="nothing above a 5-gram model", counting_score=counting_score
            )
        omitted = [
            method
            for method in find_omitted_methods(analysis, setting.task)
            if method.label_count == setting.label_count
        ]
        unused_labels = _count_unused_labels(analysis, setting)
        decisions.append(replace(decision, omitted=tuple(omitted), unused_labels=unused_labels))
    return decisions


def _ngram_does_as_well(analysis: Analysis, setting: Setting) -> bool:
    """Return whether no system is shown to be better than a 5-gram model, which only counts."""
    verdicts = [
        comparison.verdict
        for comparison in analysis.comparisons
        if comparison.comparison_type == "kneser_ney" and comparison.setting == setting
    ]
    return bool(verdicts) and "better" not in verdicts


def _find_ngram_score(analysis: Analysis, setting: Setting) -> float | None:
    for score in analysis.scores_of(setting):
        if score.system.model == "kneser_ney":
            return score.mean
    return None


def _count_unused_labels(analysis: Analysis, setting: Setting) -> int:
    """Return how many labelled training items a limit leaves out, with all labels of a task."""
    task, extra_test_set = split_test_set(setting.task)
    if setting.label_count != "all" or extra_test_set:
        return 0
    summary = next((summary for summary in analysis.tasks if summary.task == task), None)
    train = None if summary is None else summary.splits.get("train")
    return 0 if train is None else train.dropped.get("limit", 0)


def _decide_setting(
    budget: Ranking | None,
    overall: Ranking | None,
    costs: Costs,
    forecasts: Sequence[LabelForecast],
    *,
    margin: float,
) -> Decision:
    ranking = budget or overall
    assert ranking is not None, "a setting has a ranking"
    use, certainty = choose(ranking, costs, margin=margin)
    forecast = _find_forecast(forecasts, ranking, use)
    advice = _advise(budget, overall, use, forecast, costs, margin=margin)
    under_budget = None if budget is None else _with_cost(use, budget, costs)
    overall_choice = None
    overall_gain = None
    if overall is not None:
        best_overall, overall_certainty = choose(overall, costs, margin=margin)
        overall_choice = _with_cost(best_overall, overall, costs)
        if budget is not None:
            overall_gain = best_overall.mean - budget.best.mean
        if advice == "use a public model":
            ranking = overall
            use, certainty = best_overall, overall_certainty
            forecast = _find_forecast(forecasts, overall, use)
    return Decision(
        task=ranking.task,
        label_count=ranking.label_count,
        train_examples=ranking.train_examples,
        metric=ranking.metric,
        use=_with_cost(use, ranking, costs),
        certainty=certainty,
        as_good=_list_as_good(ranking, use.system, costs, margin=margin),
        under_budget=under_budget,
        overall=overall_choice,
        overall_gain=overall_gain,
        forecast=forecast,
        advice=advice,
    )


def _list_as_good(
    ranking: Ranking, chosen: System, costs: Costs, *, margin: float
) -> tuple[Choice, ...]:
    return tuple(
        _with_cost(standing, ranking, costs)
        for standing in ranking.standings
        if standing.system != chosen and is_as_good(standing, margin=margin)
    )


def _find_forecast(
    forecasts: Sequence[LabelForecast], ranking: Ranking, use: Standing
) -> LabelForecast | None:
    """Return the forecast for the system to use, or else for the best other one of its model.

    A forecast is for the largest number of labels of a task. One for another system counts only if
    it reaches the score of the system to use; else it says nothing about that system.
    """
    own = [
        forecast
        for forecast in forecasts
        if (forecast.task, forecast.system.model) == (ranking.task, use.system.model)
        and forecast.label_counts[-1] == ranking.train_examples
    ]
    if not own:
        return None
    best = max(own, key=lambda forecast: (forecast.system == use.system, forecast.scores[-1]))
    if best.system != use.system and best.scores[-1] + best.gain < use.mean:
        return None
    return best


def choose(ranking: Ranking, costs: Costs, *, margin: float) -> tuple[Standing, Certainty]:
    """Choose the cheapest system that is shown to be at most `margin` below the best.

    Among systems that take about as long to build, the highest score wins, and of equal scores
    TF-IDF, which needs no pretraining. If no system is shown to be that close to the best, choose
    the highest score that is above chance, or else the highest of all; the cheapest of equal scores.
    """
    if len(ranking.standings) == 1:
        return ranking.best, "alone"
    above_chance = [standing for standing in ranking.standings if standing.above_chance]
    if not above_chance:
        return ranking.best, "open"
    close = [standing for standing in above_chance if standing.behind_low >= -margin]
    if not close:
        return _choose_cheapest(_select_highest(above_chance), ranking, costs), "open"
    chosen = _choose_cheapest(close, ranking, costs)
    others = [standing for standing in ranking.standings if standing.system != chosen.system]
    if not any(is_as_good(standing, margin=margin) for standing in others):
        return chosen, "clear"
    return chosen, "cheapest"


def _select_highest(standings: Sequence[Standing]) -> list[Standing]:
    """Return those with the highest score, which comes first."""
    highest = standings[0].mean
    return [standing for standing in standings if highest - standing.mean <= MEAN_TOLERANCE]


def _choose_cheapest(standings: Sequence[Standing], ranking: Ranking, costs: Costs) -> Standing:
    """Return the highest score among those that take about as long to build as the fastest.

    `standings` begin with the highest score. Of equal scores it is TF-IDF.
    """
    shortest = min(_seconds(standing, ranking, costs) for standing in standings)
    cheap = [
        standing
        for standing in standings
        if _seconds(standing, ranking, costs) <= SAME_COST_FACTOR * shortest
    ]
    equals = _select_highest(cheap)
    without_pretraining = [one for one in equals if one.system.family == "tfidf"]
    return (without_pretraining or equals)[0]


def is_as_good(standing: Standing, *, margin: float) -> bool:
    """Return whether a system may be the best, or is shown to be within the margin of it."""
    return standing.may_be_best or standing.behind_low >= -margin


def _seconds(standing: Standing, ranking: Ranking, costs: Costs) -> float:
    """Return the time it takes to build the system; an unknown one is short for TF-IDF alone."""
    seconds = costs.get((standing.system, ranking.setting), SystemCost()).seconds
    if seconds is None:
        return SHORTEST_SECONDS if standing.system.family == "tfidf" else float("inf")
    return max(seconds, SHORTEST_SECONDS)


def _with_cost(standing: Standing, ranking: Ranking, costs: Costs) -> Choice:
    return Choice(standing, costs.get((standing.system, ranking.setting), SystemCost()))


def _advise(
    budget: Ranking | None,
    overall: Ranking | None,
    use: Standing,
    forecast: LabelForecast | None,
    costs: Costs,
    *,
    margin: float,
) -> Advice:
    """Give one line of advice, by the first rule that holds."""
    if overall is not None:
        best_overall, _ = choose(overall, costs, margin=margin)
        if _is_worth_it(best_overall, budget, overall, margin=margin):
            return "use a public model"
    if not use.above_chance:
        return "nothing above chance"
    lead = 0.0 if budget is None else use.mean - _cheapest(budget).mean
    is_own = forecast is not None and forecast.system == use.system
    if forecast is not None and is_own and forecast.gain_low > max(margin, lead):
        return "label more first"
    if use.system.family == "tfidf":
        return "use TF-IDF"
    return "pretrain on your text"


def _is_worth_it(
    best: Standing, budget: Ranking | None, overall: Ranking, *, margin: float
) -> bool:
    """Return whether the best is a public model that is better than the budget's best.

    It must be better by more than the margin, and not by accident.
    """
    if not (best.is_public and best.above_chance):
        return False
    if budget is None:
        return True
    own_best = next(
        standing for standing in overall.standings if standing.system == budget.best.system
    )
    return not own_best.may_be_best and best.mean - own_best.mean > margin


def _cheapest(ranking: Ranking) -> Standing:
    """Return TF-IDF, which costs next to nothing, or else the lowest score."""
    for standing in ranking.standings:
        if standing.system.family == "tfidf":
            return standing
    return ranking.standings[-1]


def pareto_front(choices: Sequence[Choice]) -> list[Choice]:
    """Return the choices that score higher than every cheaper one, the cheapest first.

    Choices without a known time are left out.
    """
    timed = [(choice.cost.seconds, choice) for choice in choices if choice.cost.seconds is not None]
    front: list[Choice] = []
    for _, choice in sorted(timed, key=lambda pair: (pair[0], -pair[1].standing.mean)):
        if not front or choice.standing.mean > front[-1].standing.mean:
            front.append(choice)
    return front


def largest_label_counts(rankings: Sequence[Ranking]) -> dict[str, Ranking]:
    """Return the budget ranking of each task that has the most labels."""
    largest: dict[str, Ranking] = {}
    for ranking in rankings:
        if ranking.scope != "budget":
            continue
        known = largest.get(ranking.task)
        if known is None or ranking.train_examples > known.train_examples:
            largest[ranking.task] = ranking
    return largest


def widest_ranking(rankings: Sequence[Ranking], ranking: Ranking) -> Ranking:
    """Return the ranking of the same setting with public models, if there is one."""
    for other in rankings:
        if other.scope == "overall" and other.setting == ranking.setting:
            return other
    return ranking
