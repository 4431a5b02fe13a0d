"""The decisions in sentences, the same on the page, in MLflow, in Prefect and on screen."""

from collections.abc import Iterable, Iterator, Sequence

from lineage.analysis.decision import (
    Choice,
    Decision,
    lacks_gain,
    printed_gap,
)
from lineage.analysis.outside import find_outside_leads
from lineage.analysis.records import Analysis, Comparison, Standing, System, group_by
from lineage.analysis.statistics import MIN_SEEDS
from lineage.report.formatting import (
    format_build_time,
    format_count_range,
    format_label_count,
    format_model,
    format_percent,
    format_range,
    format_system,
    format_these_labels,
    format_transfer,
    format_use,
    join_with_and,
    metric_unit,
)

MAX_NAMES = 3  # of systems that are as good, in a cell, and of tasks in the title
NOTHING_TO_USE = ("nothing above chance", "nothing above a 5-gram model")
COUNTING_COMPARISONS = ("tfidf", "kneser_ney")
FINDINGS = {
    "use": "use {model} for {tasks}",
    "use a public model": "use the public model {model} for {tasks}",
    "undecided": "undecided for {tasks} ({model} or TF-IDF)",
    "nothing above chance": "nothing above chance for {tasks}",
    "nothing above a 5-gram model": "no model is shown to beat 5-grams on {tasks}",
}
KNOWLEDGE_FINDING = "on {advice} ({tasks}), {model} scores highest"


def name_system(system: System) -> str:
    """Name a system in a sentence: `elmo (adapted, fine-tuned)`; `TF-IDF`."""
    detail = format_use(system)
    name = format_model(system.model)
    return f"{name} ({detail})" if detail else name


def order_decisions(decisions: Sequence[Decision]) -> list[Decision]:
    """Return the decisions with tasks in their order, and the most labels of a task first."""
    tasks = list(dict.fromkeys(one.task for one in decisions))
    return sorted(decisions, key=lambda one: (tasks.index(one.task), -one.train_examples))


def list_decisions(decisions: Sequence[Decision]) -> list[str]:
    """Return each decision as an item of a list in Markdown: `- **sentiment, 100 labels**: ...`."""
    return [
        f"- **{one.task}, {name_labels(one)}**: {describe_decision(one)}"
        for one in order_decisions(decisions)
    ]


def find_largest_decisions(decisions: Sequence[Decision]) -> dict[str, Decision]:
    """Return the decision of each task at its most labels."""
    by_task = group_by(decisions, lambda one: one.task)
    return {task: max(own, key=lambda one: one.train_examples) for task, own in by_task.items()}


def name_labels(decision: Decision) -> str:
    """Name a number of labels: `2,000 of 67,349 labels`; `100 labels + 300 for tuning`."""
    count = decision.train_examples
    text = format_label_count(decision.label_count, train_examples=count)
    if decision.label_count == "all" and decision.available_labels > count:
        text = f"{count:,} of {decision.available_labels:,} labels"
    if decision.tuning_labels:
        text += f" + {decision.tuning_labels:,} for tuning"
    return text


def name_label_choice(decisions: Sequence[Decision], label_count: str) -> str:
    """Name a choice of the page: `100`; `all`, or the numbers where more labels are available."""
    if label_count != "all":
        return f"{int(label_count):,}"
    own = [one for one in decisions if one.label_count == "all"]
    if any(one.available_labels > one.train_examples for one in own):
        return format_count_range(one.train_examples for one in own)
    return "all"


def format_interval(standing: Standing) -> str:
    """Format the interval of a score: `84.4 to 87.1`; empty without one."""
    if standing.ci_low is None:
        return ""
    return f"{format_percent(standing.ci_low)} to {format_percent(standing.ci_high)}"


def describe_label_gain(decision: Decision) -> str:
    """Tell what the last step to more labels brought."""
    gain = decision.label_gain
    if gain is None:
        return ""
    step = f"from {gain.fewer:,} to {gain.most:,} labels"
    if gain.low <= 0:
        return f"{step} no gain is shown"
    points = f"{format_percent(gain.gain)} points ({format_range(gain.low, gain.high)})"
    return f"{step} it gained {points}, so more may help"


def find_lead(analysis: Analysis, decision: Decision) -> Comparison | None:
    """Return the comparison of the system to use with TF-IDF, or of minimal pairs with 5-grams."""
    for one in analysis.comparisons:
        is_own = (one.setting, one.first) == (decision.setting, decision.use.standing.system)
        if is_own and one.comparison_type in COUNTING_COMPARISONS:
            return one
    return None


def is_sure(analysis: Analysis, decision: Decision) -> bool:
    """Return whether other test items or seeds are not expected to change what to use."""
    return (
        decision.certainty in ("clear", "cheapest")
        and decision.advice not in NOTHING_TO_USE
        and not lacks_gain(analysis, decision.setting, decision.use.standing.system)
    )


def describe_limits(analysis: Analysis, decision: Decision) -> list[str]:
    """Tell what tests do not show, where more labels are, and what is better from elsewhere."""
    limits = []
    use = decision.use.standing
    if use.above_chance and lacks_gain(analysis, decision.setting, use.system):
        limits.append("Its lead over TF-IDF may be luck.")
    gain = decision.label_gain
    brings_nothing = gain is not None and gain.low <= 0
    if decision.unused_labels and not brings_nothing:
        limits.append(
            f"{decision.unused_labels:,} more labelled items are available: raise the task's limit."
        )
    limits += [
        f"{format_system(one.second)} is shown to be better than the best system trained here, by "
        f"{format_percent(-one.difference)} points{format_these_labels([one])}."
        for one in find_outside_leads(analysis, decision.setting)
    ]
    return limits


def describe_omitted(decision: Decision) -> str:
    """Name the methods that were not run with this number of labels; empty without any."""
    if not decision.omitted:
        return ""
    methods = [format_transfer(one.transfer, one.head) for one in decision.omitted]
    return f"Not run with {decision.train_examples:,} labels: {join_with_and(methods)}."


def describe_decision(decision: Decision) -> str:
    """Return the decision as one or two sentences, with certainty, cost and what labels brought."""
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
    start = "Use" if decision.undecided_lead is None else "Undecided; the cheapest is"
    if decision.knowledge:
        without = "" if decision.train_examples else " without labels"
        start = f"The highest on {decision.knowledge}{without} is"
    text = f"{start} {public}{_describe_score(decision.use, decision.metric)}"
    if public and decision.overall_gain is not None:
        text += f", {_format_lead(decision)} points above the best without public weights"
    text += f"; {_describe_certainty(decision)}"
    if decision.use.cost.seconds is not None:
        text += f"; it takes {format_build_time(decision.use.cost, ' to build')}"
    if label_gain := describe_label_gain(decision):
        text += f"; {label_gain}"
    if public and decision.under_budget is not None:
        return f"{text}. {_describe_under_budget(decision, decision.under_budget)}"
    return f"{text}."


def _describe_under_budget(decision: Decision, choice: Choice) -> str:
    """Tell what to use where public models may not be used."""
    if not choice.standing.above_chance:
        return "Without public weights, nothing is shown to be above chance."
    verb = "the highest is" if decision.knowledge else "use"
    text = f"Without public weights, {verb} {_describe_score(choice, decision.metric)}"
    if decision.budget_lead_may_be_luck:
        text += ", whose lead over TF-IDF may be luck"
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
    if decision.undecided_lead is not None:
        return _describe_undecided_lead(decision.undecided_lead)
    names = _join_names(decision.as_good)
    if decision.certainty == "cheapest":
        if all(one.standing.mean <= use.mean for one in decision.as_good):
            return f"{names} may be as good"
        return _describe_cheapest(decision)
    chance = ""
    if use.probability_best is not None:
        chance = f" (P = {use.probability_best:.2f} of being the best)"
    return f"no other model scores higher{chance}, but {names} may be as good"


def _describe_undecided_lead(lead: Comparison) -> str:
    """Tell how far a system is above TF-IDF, and what would decide whether it leads."""
    points = f"{format_percent(abs(lead.difference))} points"
    direction = "more" if lead.difference >= 0 else "less"
    interval = format_range(lead.ci_low, lead.ci_high)
    if lead.verdict == "too few seeds":
        interval += " for these models"
    name = name_system(lead.first)
    needed = describe_what_decides(lead)
    these = format_these_labels([lead])
    return f"{name} scores {points} {direction}{these} ({interval}), and {needed} would decide"


def describe_what_decides(lead: Comparison) -> str:
    """Say what would show whether a system leads TF-IDF: `more test items or seeds`."""
    if lead.verdict == "too few seeds":
        return f"{MIN_SEEDS} seeds of fine-tuning, and more test items,"
    return "more test items or seeds"


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


def describe_finding(decisions: Sequence[Decision]) -> str:
    """Say in a few words what to use: `Use ELMo for sense; undecided for mood (GPT or TF-IDF)`."""
    parts = []
    for (advice, model), group in group_by(decisions, _finding_key).items():
        tasks = join_with_and([one.task for one in group])
        if len(group) > MAX_NAMES:
            is_all = len(group) == len(decisions)
            tasks = (
                f"all {len(group)} tasks" if is_all else f"{len(group)} of {len(decisions)} tasks"
            )
        finding = FINDINGS.get(advice, KNOWLEDGE_FINDING)
        parts.append(finding.format(advice=advice, model=format_model(model), tasks=tasks))
    text = "; ".join(parts) or "no system has a score"
    return f"{text[0].upper()}{text[1:]}"


def _finding_key(decision: Decision) -> tuple[str, str]:
    """Return the advice with the models that it names; undecided are all that may be the best."""
    advice, model = _answer_key(decision)
    if advice != "undecided":
        return advice, model
    others = [one.standing.system.model for one in decision.as_good]
    models = dict.fromkeys([model, *(one for one in others if one != "tfidf")])
    if len(models) > MAX_NAMES:
        return advice, f"{len(models)} models"
    return advice, ", ".join(map(format_model, models))


def summarize_decisions(analysis: Analysis, decisions: Sequence[Decision]) -> str:
    """Say what to use for which task at the most labels, and where fewer need another model."""
    largest = find_largest_decisions(decisions)
    if not largest:
        return "No system has a score. The reasons are listed under the failures."
    others = {(one.task, one.use.standing.system.model) for one in decisions}
    answers = []
    for (advice, model), group in group_by(largest.values(), _answer_key).items():
        used = {(one.task, one.use.standing.system.model) for one in group}
        tasks = {one.task for one in group}
        has_other_uses = any(one not in used for one in others if one[0] in tasks)
        answer = _answer(analysis, advice, model, group)
        if has_other_uses:
            answer = f"With the most labels, {answer[0].lower()}{answer[1:]}"
        answers.append(answer)
    return " ".join([*answers, *_describe_outside_leads(analysis, largest.values())])


def _describe_outside_leads(analysis: Analysis, decisions: Iterable[Decision]) -> Iterator[str]:
    """Name the outside systems that are shown to be better than all that is trained here."""
    leads = [
        lead for decision in decisions for lead in find_outside_leads(analysis, decision.setting)
    ]
    for system, own in group_by(leads, lambda one: one.second).items():
        tasks = [f"{one.task} (by {format_percent(-one.difference)} points)" for one in own]
        yield (
            f"{format_system(system)} is shown to be better than the best system trained here for "
            f"{join_with_and(tasks)}{format_these_labels(own)}."
        )


def _answer_key(decision: Decision) -> tuple[str, str]:
    """Return the advice, or the knowledge that is measured, with the model that it names."""
    model = decision.use.standing.system.model
    if decision.knowledge and decision.advice not in NOTHING_TO_USE:
        return decision.knowledge, model
    if decision.advice == "use a public model":
        return decision.advice, model
    if decision.advice in NOTHING_TO_USE:
        return decision.advice, ""
    if decision.undecided_lead is not None:
        return "undecided", decision.undecided_lead.first.model
    return "use", model


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
    if advice == "undecided":
        return (
            f"For {tasks}, it is undecided whether {format_model(model)} is better than TF-IDF, "
            "which is the cheapest."
        )
    if model == "tfidf" and not group[0].knowledge:
        answer = f"For {tasks}, use TF-IDF: no pretrained model is shown to be worth more"
        if any(method.transfer == "finetuned" for one in group for method in one.omitted):
            answer += " (with so many labels, none was fine-tuned)"
        return f"{answer}."
    named = []
    for one in group:
        notes = [*_describe_lead(analysis, one), *_describe_equals(one)]
        named.append(f"{one.task} ({'; '.join(notes)})" if notes else one.task)
    if advice == group[0].knowledge:
        start = f"{format_model(model)} scores highest on the {advice} of {join_with_and(named)}."
        return start if group[0].train_examples else f"Without labels, {start}"
    return f"Use {format_model(model)}, pretrained on your text, for {join_with_and(named)}."


def _format_lead(decision: Decision) -> str:
    """Format the lead of the best public system over the best without public weights."""
    return format_percent(decision.overall_gain)


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
                f" On {one.task}, continuing its pretraining on your text {verb} {points} points"
                f"{format_these_labels([one])}."
            )
    return text


def _describe_lead(analysis: Analysis, decision: Decision) -> list[str]:
    """Tell how far the system to use is from TF-IDF; nothing if TF-IDF has no score."""
    budget = [
        one
        for one in analysis.rankings
        if one.scope == "budget" and one.setting == decision.setting
    ]
    standings = budget[0].standings if budget else ()
    tfidf = next((one for one in standings if one.system.family == "tfidf"), None)
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
