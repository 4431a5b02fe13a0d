"""The decision of a setting: which system to use, what it costs, and what to do next.

The rules are in docs/explanation/statistics.md. They are pure functions of the rankings, the
gains and the costs.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from lineage.analysis.cells import split_test_set
from lineage.analysis.records import (
    MEAN_TOLERANCE,
    Analysis,
    Comparison,
    LabelGain,
    Ranking,
    Setting,
    Standing,
    System,
    group_by,
)
from lineage.analysis.settings import OmittedMethod, find_omitted_methods
from lineage.answers.metrics import RANKING_METRICS
from lineage.tasks.base import load_kind

Certainty = Literal[
    "clear",  # no other system may be the best
    "cheapest",  # others may be better, by no more than the margin
    "open",  # others may be better by more than the margin
    "alone",  # there is no other system
    # A lead over TF-IDF is not shown, so TF-IDF is used, which is the cheapest, if it is above chance.
    "undecided",
]
Advice = Literal[
    "nothing above chance",
    "nothing above a 5-gram model",
    "use a public model",
    "label more first",
    "decide with more data",
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
# The gain of a larger step in labels says little about the next doubling.
MAX_DOUBLINGS = 2.0
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
    # Its lead over the best of the budget, both as printed; None without one.
    overall_gain: float | None
    label_gain: LabelGain | None  # of the system to use
    advice: Advice
    omitted: tuple[OmittedMethod, ...] = ()  # methods that were not run with this number of labels
    # The comparison of the highest score with TF-IDF, if it does not show that it is better.
    undecided_lead: Comparison | None = None
    available_labels: int = 0  # labelled items of the task, with those that its limit leaves out
    unused_labels: int = 0  # of these, the ones that the limit leaves out
    tuning_labels: int = 0  # labelled validation items, by which hyperparameters were chosen
    # That of `under_budget` over TF-IDF: tests over seeds do not show it.
    budget_lead_may_be_luck: bool = False
    counting_score: float | None = None  # of a 5-gram model, if nothing is shown to be better
    # `Kind.knowledge` of the task, which is not for use; empty: the system is one to use.
    knowledge: str = ""

    @property
    def setting(self) -> Setting:
        return Setting(self.task, self.label_count)

    @property
    def expected_score(self) -> float:
        """The score of the system to use, in the unit of the metric."""
        return self.use.standing.mean * RANKING_METRICS[self.metric]


def printed_gap(high: float, low: float) -> float:
    """Return the difference of two scores as they are printed, so that readers find no other."""
    return round(round(high, 3) - round(low, 3), 3)


def decide(analysis: Analysis, costs: Costs) -> list[Decision]:
    """Decide every setting, under the budget if something was trained for it."""
    by_setting = group_by(analysis.rankings, lambda ranking: ranking.setting)
    return [_decide_setting(analysis, rankings, costs) for rankings in by_setting.values()]


def _decide_setting(analysis: Analysis, rankings: Sequence[Ranking], costs: Costs) -> Decision:
    margin = analysis.equivalence_margin
    by_scope = {ranking.scope: ranking for ranking in rankings}
    budget = by_scope.get("budget")
    overall = by_scope.get("overall")
    ranking = budget or overall
    assert ranking is not None, "a setting has a ranking"
    setting = ranking.setting
    use, certainty = _choose(ranking, costs, margin=margin)
    without_public = None if budget is None else use
    undecided_lead = None if budget is None else _find_undecided_lead(analysis, budget, use)
    if undecided_lead is not None:
        use = _choose_undecided(list_choices(ranking, costs), use)
        certainty = "undecided"
    under_budget = None if budget is None else use
    label_gain = _find_label_gain(analysis.label_gains, ranking, use.standing)
    advice = _advise(budget, use.standing, label_gain, margin=margin)
    if undecided_lead is not None and advice != "label more first":
        advice = "decide with more data"
    best_overall = None
    overall_gain = None
    if overall is not None:
        best_overall, overall_certainty = _choose(overall, costs, margin=margin)
        if budget is not None:
            overall_gain = printed_gap(best_overall.standing.mean, budget.best.mean)
        if _is_worth_it(best_overall.standing, budget, overall, margin=margin):
            advice = "use a public model"
            ranking = overall
            use, certainty = best_overall, overall_certainty
            undecided_lead = None
            under_budget = without_public  # its lead over TF-IDF may be luck, as the page says
            label_gain = _find_label_gain(analysis.label_gains, overall, use.standing)
    counting_score = None
    if advice == "pretrain on your text" and _ngram_does_as_well(analysis, setting):
        advice = "nothing above a 5-gram model"
        counting_score = _find_ngram_score(analysis, setting)
    return Decision(
        task=setting.task,
        label_count=setting.label_count,
        train_examples=ranking.train_examples,
        metric=ranking.metric,
        use=use,
        certainty=certainty,
        as_good=_list_as_good(ranking, costs, use, margin=margin),
        under_budget=under_budget,
        overall=best_overall,
        overall_gain=overall_gain,
        knowledge=load_kind(ranking.kind).knowledge,
        label_gain=label_gain,
        advice=advice,
        omitted=_list_omitted(analysis, setting),
        undecided_lead=undecided_lead,
        available_labels=_count_available_labels(analysis, setting),
        unused_labels=_count_unused_labels(analysis, setting),
        tuning_labels=_count_tuning_labels(analysis, setting),
        budget_lead_may_be_luck=under_budget is not None
        and lacks_gain(analysis, setting, under_budget.standing.system),
        counting_score=counting_score,
    )


def _list_as_good(
    ranking: Ranking, costs: Costs, use: Choice, *, margin: float
) -> tuple[Choice, ...]:
    return tuple(
        choice
        for choice in list_choices(ranking, costs)
        if choice.standing.system != use.standing.system
        and _is_as_good(choice.standing, margin=margin)
    )


def _list_omitted(analysis: Analysis, setting: Setting) -> tuple[OmittedMethod, ...]:
    return tuple(
        method
        for method in find_omitted_methods(analysis, setting.task)
        if method.label_count == setting.label_count
    )


def _find_undecided_lead(analysis: Analysis, budget: Ranking, use: Choice) -> Comparison | None:
    """Return the comparison of the chosen system with TF-IDF, unless it is shown to be better.

    With too few seeds, it is the test items alone that may exclude TF-IDF from the best.
    A task that measures knowledge is not about use, so nothing is undecided.
    """
    if load_kind(budget.kind).knowledge or not use.standing.above_chance:
        return None
    for one in analysis.comparisons:
        is_own = one.setting == budget.setting and one.first == use.standing.system
        if one.comparison_type != "tfidf" or not is_own or one.verdict == "better":
            continue
        for standing in budget.standings:
            if standing.system == one.second:
                is_excluded = one.verdict == "too few seeds" and not standing.may_be_best
                return None if is_excluded else one
    return None


def lacks_gain(analysis: Analysis, setting: Setting, system: System) -> bool:
    """Return whether tests over seeds do not show a system to be better than TF-IDF."""
    return any(
        one.comparison_type == "tfidf"
        and (one.setting, one.first) == (setting, system)
        and one.verdict != "better"
        for one in analysis.comparisons
    )


def _choose_undecided(choices: Sequence[Choice], use: Choice) -> Choice:
    """Return TF-IDF, which `use` is not shown to beat; or `use` if TF-IDF is at chance."""
    tfidf = next(choice for choice in choices if choice.standing.system.family == "tfidf")
    return tfidf if tfidf.standing.above_chance else use


def _ngram_does_as_well(analysis: Analysis, setting: Setting) -> bool:
    """Return whether no system is shown to be better than a 5-gram model, which only counts."""
    verdicts = [
        comparison.verdict
        for comparison in analysis.comparisons
        if comparison.comparison_type == "kneser_ney" and comparison.setting == setting
    ]
    return bool(verdicts) and "better" not in verdicts


def _find_ngram_score(analysis: Analysis, setting: Setting) -> float | None:
    scores = analysis.scores_of(setting)
    return next((score.mean for score in scores if score.system.model == "kneser_ney"), None)


def _count_unused_labels(analysis: Analysis, setting: Setting) -> int:
    """Return how many labelled training items a limit leaves out, with all labels of a task."""
    task, extra_test_set = split_test_set(setting.task)
    if setting.label_count != "all" or extra_test_set:
        return 0
    summary = analysis.find_task(task)
    train = None if summary is None else summary.splits.get("train")
    return 0 if train is None else train.dropped.get("limit", 0)


def _count_available_labels(analysis: Analysis, setting: Setting) -> int:
    """Return how many labelled items there are for training, with those left out; 0 if unknown."""
    task, extra_test_set = split_test_set(setting.task)
    summary = analysis.find_task(task)
    if summary is None or extra_test_set or "train" not in summary.splits:
        return 0
    train = summary.splits["train"]
    return train.items + train.dropped.get("limit", 0)


def _count_tuning_labels(analysis: Analysis, setting: Setting) -> int:
    """Return the validation items of a task, in folds those of each; 0 where nothing is trained."""
    task, _ = split_test_set(setting.task)
    summary = analysis.find_task(task)
    if setting.label_count == "none" or summary is None:
        return 0
    if "validation" in summary.splits:
        return summary.splits["validation"].items
    if summary.cross_validation is None:
        return 0
    num_items = summary.splits["train"].items
    scores = [one for one in analysis.scores_of_task(task) if one.label_count == "all"]
    num_learned = max((one.train_examples for one in scores), default=0)
    num_tested = round(num_items / summary.cross_validation.folds)
    return max(0, num_items - num_tested - num_learned) if num_learned else 0


def _find_label_gain(
    gains: Sequence[LabelGain], ranking: Ranking, use: Standing
) -> LabelGain | None:
    """Return the gain of the system to use from labels, at a task's largest number of them."""
    for gain in gains:
        is_own = (gain.task, gain.system) == (ranking.task, use.system)
        if is_own and gain.most == ranking.train_examples:
            return gain
    return None


def _choose(ranking: Ranking, costs: Costs, *, margin: float) -> tuple[Choice, Certainty]:
    """Choose the cheapest system that is shown to be at most `margin` below the best.

    Among systems that take about as long to build, the highest score wins, and of equal scores
    TF-IDF, which needs no pretraining. If no system is shown to be that close to the best, choose
    the highest score that is above chance, or else the highest of all; the cheapest of equal scores.
    What measures knowledge is about the highest score alone.
    """
    choices = list_choices(ranking, costs)
    if len(choices) == 1:
        return choices[0], "alone"
    above_chance = [choice for choice in choices if choice.standing.above_chance]
    if not above_chance:
        return _choose_cheapest(_select_highest(choices)), "open"
    highest = _choose_cheapest(_select_highest(above_chance))
    close = [choice for choice in above_chance if choice.standing.behind_low >= -margin]
    is_by_cost = bool(close) and not load_kind(ranking.kind).knowledge
    chosen = _choose_cheapest(close) if is_by_cost else highest
    others = [choice for choice in choices if choice != chosen]
    if close and not any(_is_as_good(choice.standing, margin=margin) for choice in others):
        return chosen, "clear"
    return chosen, "cheapest" if is_by_cost else "open"


def list_choices(ranking: Ranking, costs: Costs) -> list[Choice]:
    """Return the candidates of a setting with their costs, highest score first."""
    return [
        Choice(standing, costs.get((standing.system, ranking.setting), SystemCost()))
        for standing in ranking.standings
    ]


def _select_highest(choices: Sequence[Choice]) -> list[Choice]:
    """Return those with the highest score, which comes first."""
    highest = choices[0].standing.mean
    return [choice for choice in choices if highest - choice.standing.mean <= MEAN_TOLERANCE]


def _choose_cheapest(choices: Sequence[Choice]) -> Choice:
    """Return the highest score among those that take about as long to build as the fastest.

    `choices` begin with the highest score. Of equal scores it is TF-IDF.
    """
    shortest = min(map(_seconds, choices))
    equals = _select_highest(
        [choice for choice in choices if _seconds(choice) <= SAME_COST_FACTOR * shortest]
    )
    without_pretraining = [one for one in equals if one.standing.system.family == "tfidf"]
    return (without_pretraining or equals)[0]


def _is_as_good(standing: Standing, *, margin: float) -> bool:
    """Return whether a system may be the best, or is shown to be within the margin of it."""
    return standing.may_be_best or standing.behind_low >= -margin


def _seconds(choice: Choice) -> float:
    """Return the time it takes to build the system; an unknown one is short for TF-IDF alone."""
    if choice.cost.seconds is not None:
        return max(choice.cost.seconds, SHORTEST_SECONDS)
    return SHORTEST_SECONDS if choice.standing.system.family == "tfidf" else float("inf")


def _advise(
    budget: Ranking | None, use: Standing, label_gain: LabelGain | None, *, margin: float
) -> Advice:
    """Give one line of advice, by the first rule that holds."""
    if not use.above_chance:
        return "nothing above chance"
    if label_gain is not None and label_gain.doublings <= MAX_DOUBLINGS:
        lead = 0.0 if budget is None else use.mean - _cheapest(budget).mean
        if label_gain.low / label_gain.doublings > max(margin, lead):
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
    own = [ranking for ranking in rankings if ranking.scope == "budget"]
    by_task = group_by(own, lambda ranking: ranking.task)
    return {
        task: max(group, key=lambda ranking: ranking.train_examples)
        for task, group in by_task.items()
    }


def widest_rankings(rankings: Sequence[Ranking]) -> dict[Setting, Ranking]:
    """Return the ranking of each setting, with public models if there are any."""
    return {ranking.setting: ranking for ranking in rankings}
