"""The table of decisions, the main figure, and how to read them."""

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace

from lineage.analysis.cells import split_test_set
from lineage.analysis.decision import (
    Choice,
    Decision,
    SystemCost,
    widest_rankings,
)
from lineage.analysis.records import (
    MEAN_TOLERANCE,
    Analysis,
    Ranking,
    Standing,
    SystemScore,
    TrialCounts,
)
from lineage.analysis.settings import chance_level, find_random_score
from lineage.analysis.statistics import MIN_SEEDS
from lineage.methods.registry import find_method_type, list_method_types
from lineage.methods.saved import REFITTED_SUFFIX, system_name
from lineage.methods.tfidf import TfidfMethod
from lineage.report import figures
from lineage.report.cells import task_cell
from lineage.report.costs import describe_devices
from lineage.report.decisions import (
    MAX_NAMES,
    NOTHING_TO_USE,
    describe_decision,
    describe_label_gain,
    describe_limits,
    describe_what_decides,
    find_largest_decisions,
    find_lead,
    format_interval,
    is_sure,
    name_label_choice,
    name_labels,
    name_system,
    order_decisions,
)
from lineage.report.figures import IntervalRow
from lineage.report.formatting import (
    INIT_MEANINGS,
    INIT_NAMES,
    NO_VALUE,
    format_build_time,
    format_difference,
    format_model,
    format_percent,
    format_range,
    format_si,
    format_system,
    format_use,
    join_with_and,
    metric_heading,
    metric_unit,
    note_these_labels,
)
from lineage.report.section import (
    Block,
    Cell,
    Column,
    Figures,
    Only,
    Paragraph,
    Piece,
    Refit,
    ReportData,
    Row,
    Section,
    Table,
    small,
)
from lineage.report.styles import find_weak_models, mark_model, model_style
from lineage.results import OUTSIDE_FAMILY
from lineage.tasks.base import load_kind

MORE_TEXT = "Let models read more text"
NEXT_STEPS = {
    "nothing above chance": "Label more, or let models read more text",
    "nothing above a 5-gram model": MORE_TEXT,
    "use a public model": "Use the public model",
    "label more first": "Label more before you choose a model",
    "decide with more data": "Undecided; cheapest: {model}",
    "use TF-IDF": "Use TF-IDF",
    "pretrain on your text": "Use {model}",
}
AS_GOOD = "May be as good or better"
KNOWLEDGE = "Not for use: it tells which model knows most about {knowledge}"
NO_LABEL_GAIN = "run {system} with a second number of labels to see what labels bring"


def build(report: ReportData) -> Section | None:
    """Return the decisions with their figure, and how to read them."""
    if not report.decisions:
        return None
    counts = list_shown_label_counts(report.analysis)
    choices = {
        count: name_label_choice(report.decisions, count) for count in counts if count != "none"
    }
    reading = [
        Paragraph(_explain_decisions(report), "note", has_markup=True),
        Paragraph(explain_names(report.analysis), "note", has_markup=True),
        Paragraph(_explain_comparisons(report), "note", has_markup=True),
    ]
    return Section(
        blocks=[
            build_decision_table(report),
            *_main_figures(report, counts),
            *_notes_on_use(report, [*choices]),
            Section("How to read this", reading, is_folded=True, css="note"),
        ],
        label="What to use",
        switch=choices if len(choices) > 1 else {},
    )


def build_decision_table(report: ReportData) -> Table:
    """Return a line for each setting, tasks in their order and the most labels first."""
    ordered = order_decisions(report.decisions)
    largest = find_largest_decisions(ordered)
    columns = [
        Column("Task", short="Task"),
        Column("Use", note="cost", short="Use"),
        Column(f"Score, {report.confidence} interval", "n", short="Score"),
        Column("vs TF-IDF", "n", short="vs TF-IDF"),
        Column("Sure?", "sure", short="Sure?"),
        Column(AS_GOOD, "wrap", short=AS_GOOD),
        Column("Next step", "wrap next", short="Next step"),
    ]
    if report.analysis.public_models:
        columns.insert(-1, Column("Alternative", "wrap", short="Alternative"))
    rows = [_decision_row(report.analysis, one, largest[one.task]) for one in ordered]
    return Table(columns, rows, css="use", is_wide=True)


def _decision_row(analysis: Analysis, decision: Decision, largest: Decision) -> Row:
    """Return a line; `largest` is the decision of the task at its most labels."""
    use = decision.use.standing
    cells: list[str | Cell] = [
        task_cell(decision.task, name_labels(decision)),
        _use_cell(analysis, decision),
        _score_cell(use, metric_unit(decision.metric)),
        _lead_cell(analysis, decision),
        _sure_cell(analysis, decision),
        _list_as_good(decision, find_weak_models(analysis)),
        _next_step_cell(analysis, decision, largest),
    ]
    if analysis.public_models:
        cells.insert(-1, describe_alternative(analysis, decision) or NO_VALUE)
    return Row(cells, title=describe_decision(decision), labels=decision.label_count)


def _use_cell(analysis: Analysis, decision: Decision) -> Cell:
    """Name the system to use, and what it costs."""
    system = decision.use.standing.system
    name = mark_model(analysis, system.model)
    if decision.advice in NOTHING_TO_USE:
        name = name_system(system).replace(format_model(system.model), name, 1)
        return Cell(more=[_strong("none"), *small(f"{name} scores highest", "muted")])
    pieces = [_strong(name)]
    if use := format_use(system):
        pieces.append(Piece(use))
    if decision.knowledge:
        pieces.insert(0, Piece("Highest:"))
    else:
        pieces += small(format_cost(decision.use.cost), "muted")
    return Cell(more=pieces, svg=model_style(analysis, system.model).mark)


def _sure_cell(analysis: Analysis, decision: Decision) -> Cell:
    """Tell whether the system is surely one to use, and if it may not be, how probably the best."""
    if is_sure(analysis, decision):
        return Cell("yes")
    probability = decision.use.standing.probability_best
    is_open = decision.certainty == "open" and decision.advice not in NOTHING_TO_USE
    if not is_open or probability is None:
        return Cell("no")
    return Cell("no", small(f"P = {probability:.2f} of being the best", "muted"))


def _lead_cell(analysis: Analysis, decision: Decision) -> Cell:
    """Return how far the system to use, or one that may be better, is from what only counts."""
    lead = decision.undecided_lead or find_lead(analysis, decision)
    if lead is None:
        return Cell(NO_VALUE)
    pieces = []
    if lead is decision.undecided_lead:
        pieces += small(f"{name_system(lead.first)}:", "muted", plain="{}")
    pieces += [
        _strong(format_difference(lead.difference)),
        Piece(format_range(lead.ci_low, lead.ci_high), "interval", plain=" ({})"),
    ]
    if lead.comparison_type == "kneser_ney":
        pieces += small("vs the 5-gram model", "muted", plain=", {}")
    return Cell(more=pieces)


def _strong(text: str) -> Piece:
    return Piece(text, is_strong=True)


def _score_cell(use: Standing, unit: str) -> Cell:
    interval = format_interval(use)
    pieces = [
        _strong(format_percent(use.mean)),
        Piece(unit, only="markdown" if unit == "%" else ""),
    ]
    if interval:
        pieces.append(Piece(interval, "interval", plain=" ({})"))
    if use.validation is not None:
        validation = f"validation {format_percent(use.validation)}"
        pieces += small(validation, "muted", plain=", {}")
    return Cell(more=pieces)


def _next_step_cell(analysis: Analysis, decision: Decision, largest: Decision) -> Cell:
    """Say what to do; what labels have brought stands at the most labels of a task."""
    system = decision.use.standing.system
    step = NEXT_STEPS[decision.advice].format(model=format_model(system.model))
    if decision.knowledge and decision.advice not in NOTHING_TO_USE:
        step = KNOWLEDGE.format(knowledge=decision.knowledge)
    is_trained = decision.train_examples > 0
    if decision.advice == "nothing above chance" and not is_trained:
        step = MORE_TEXT
    label_gain = describe_label_gain(decision)
    if not label_gain and decision is largest and is_trained and decision.undecided_lead is None:
        label_gain = NO_LABEL_GAIN.format(system=name_system(system))
    sentences = [f"{label_gain[0].upper()}{label_gain[1:]}."] if label_gain else []
    if decision.undecided_lead is not None:
        if system == decision.undecided_lead.first:
            sentences.append("TF-IDF is not shown to be above chance.")
        elif decision.undecided_lead.difference > 0:
            sentences.append(f"{name_system(system)} scores lower here, which may be luck.")
        needed = describe_what_decides(decision.undecided_lead)
        sentences.append(f"{needed[0].upper()}{needed[1:]} would decide.")
    sentences += describe_limits(analysis, decision)
    if decision is not largest:
        use = largest.use.standing
        labels = f"{largest.train_examples:,} labels"
        name = format_model(use.system.model)
        sentences.append(f"With {labels}, {name} has {format_percent(use.mean)}.")
    return Cell(more=[_strong(f"{step}."), Piece(" ".join(sentences))])


def describe_alternative(analysis: Analysis, decision: Decision) -> str:
    """Name the best of the other group, with or without public models; empty without one."""
    if decision.overall is None:
        return ""
    if decision.advice == "use a public model":
        own = decision.under_budget
        if own is None:
            return ""
        if not own.standing.above_chance:
            highest = f"{format_system(own.standing.system)}, {format_percent(own.standing.mean)}"
            return (
                f"without public weights: nothing is shown to be above chance (highest: {highest})"
            )
        text = f"without public weights: {_name_with_cost(own)}"
        if decision.budget_lead_may_be_luck:
            text += ", whose lead over TF-IDF may be luck"
        return text
    if decision.overall.standing.system == decision.use.standing.system:
        return "with public weights: the same"
    gain = ""
    if decision.overall_gain is not None:
        gain = f" ({format_difference(decision.overall_gain)})"
    return f"with public weights: {_name_with_cost(decision.overall)}{gain}"


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


def _list_as_good(decision: Decision, weak_models: Collection[str]) -> str:
    """Name the systems that are as good, and what they cost; ‡ behind models that learned little."""
    if decision.certainty == "alone":
        return "nothing to compare with"
    names = []
    for one in decision.as_good:
        model = one.standing.system.model
        shown = format_model(model)
        score = f"{shown} {format_percent(one.standing.mean)}"
        name = score if decision.knowledge else _name_with_cost(one)
        names.append(name.replace(shown, f"{shown} ‡", 1) if model in weak_models else name)
    if decision.counting_score is not None:
        names.insert(0, f"a 5-gram model {format_percent(decision.counting_score)}")
    if not names:
        return "no other model"
    if len(names) > MAX_NAMES:
        return f"{len(names)} others, such as {names[0]}"
    return join_with_and(names)


def _name_with_cost(choice: Choice) -> str:
    """Name a system with its score and the time it takes: `BERT (fine-tuned) 100.0 in 69 s`."""
    text = f"{name_system(choice.standing.system)} {format_percent(choice.standing.mean)}"
    if choice.cost.seconds is not None:
        text += f" in {format_build_time(choice.cost)}"
    return text


def _notes_on_use(report: ReportData, choices: Sequence[str]) -> Iterator[Paragraph]:
    """Yield how to use the systems at each choice of labels; in Markdown at the most labels."""
    if len(choices) > 1:
        for count in choices:
            own = {one.task: one for one in report.decisions if one.label_count == count}
            option = "" if count == choices[-1] else f" --labels {count}"
            texts = [_describe_prediction(report, own, option), _describe_refits(report, own)]
            yield from (
                Paragraph(text, "note", has_markup=True, labels=count, only="html")
                for text in texts
                if text
            )
    largest = find_largest_decisions(report.decisions)
    texts = [_describe_prediction(report, largest, ""), _describe_refits(report, largest)]
    only: Only = "markdown" if len(choices) > 1 else ""
    yield from (Paragraph(text, "note", has_markup=True, only=only) for text in texts if text)


def _describe_prediction(report: ReportData, decisions: Mapping[str, Decision], option: str) -> str:
    """Tell how `lineage predict` uses these systems: for tasks, and not for extra test sets."""
    used = [task for task, decision in decisions.items() if _is_kept(report, decision)]
    tasks = list(dict.fromkeys(split_test_set(one)[0] for one in used))
    if not tasks:
        return ""
    others = f"; likewise for {', '.join(tasks[1:])}" if len(tasks) > 1 else ""
    most = " with the system for the most labels (`--labels` chooses another number)"
    chosen = "" if option else most
    return (
        f"Label a file{chosen}, in the study's folder: "
        f"`lineage predict FILE -o OUT.csv --task {tasks[0]}{option}`{others}."
    )


def _is_kept(report: ReportData, decision: Decision) -> bool:
    """Return whether there is a system to use that labels new items: TF-IDF keeps no texts."""
    if decision.advice in NOTHING_TO_USE:
        return False
    is_tfidf = decision.use.standing.system.family == "tfidf"
    kinds = [load_kind(one.kind) for one in report.analysis.scores_of_task(decision.task)]
    return all(one.labels_new_items and not (is_tfidf and one.answer.are_texts) for one in kinds)


def _describe_refits(report: ReportData, decisions: Mapping[str, Decision]) -> str:
    """Tell what the systems in use have learned from, which the scored ones have not."""
    used = [one for one in report.refits if _is_of(one, decisions.get(one.task))]
    if not used:
        return ""
    numbers = [f"{one.task} ({one.train_examples:,}, not {one.scored_examples:,})" for one in used]
    text = (
        f"For use, they are fitted again with the validation items: {join_with_and(numbers)}. "
        "The scores are those before"
    )
    num_seeds = max(one.num_seeds for one in used)
    if num_seeds > 1:
        text += f", and means over {num_seeds} seeds; seed {used[0].finetune_seed} is in use"
    return f"{text}."


def _is_of(refit: Refit, decision: Decision | None) -> bool:
    """Return whether a system that was fitted again is the one to use by a decision."""
    if decision is None:
        return False
    system = decision.use.standing.system
    name = system_name(system.model, system.init, system.transfer, system.head)
    return (refit.label_count, refit.system) == (
        decision.label_count,
        f"{name}{REFITTED_SUFFIX}",
    )


def list_shown_label_counts(analysis: Analysis) -> list[str]:
    """Return the numbers of labels that have a figure of their own; "none" without any labels."""
    present = {one.label_count for one in analysis.rankings}
    counts = [str(count) for count in analysis.grid.label_counts]
    return [count for count in counts if count in present] or ["none"]


def _main_figures(report: ReportData, counts: Sequence[str]) -> Iterator[Block]:
    """Yield the panels of each number of labels under its title, and how to read them all."""
    for count in counts:
        panels = draw_main_panels(report.analysis, count)
        layout = "few" if len(panels) <= figures.MAX_WIDE_PANELS else "wide"
        title = f"**{_name_figure(report, count)}**"
        yield Paragraph(title, "deck", has_markup=True, labels=count, only="html")
        yield Figures(panels, layout, file="scores", labels=count, only="html")
    yield Paragraph(_describe_figures(report), "note", only="html")


def _name_figure(report: ReportData, count: str) -> str:
    title = "Each model's best system by validation"
    if count == "none":
        return title
    return f"{title}, {name_label_choice(report.decisions, count)} labels"


def _describe_figures(report: ReportData) -> str:
    reference = "TF-IDF"
    if any(one.system.model == "kneser_ney" for one in report.analysis.scores):
        reference += ", on minimal pairs a 5-gram model"
    outside = ""
    if any(one.system.family == OUTSIDE_FAMILY for one in report.analysis.scores):
        outside = " Outside systems come last, and are not counted among the best."
    return (
        f"Lines: {report.confidence} intervals. Bold: the highest score. Filled marks may be the "
        f"best, open ones are behind on these test items. Grey band: {reference}; dotted line: chance; grey tick: the same network with random init; small dots: other systems of the "
        f"model.{outside}"
    )


def draw_main_panels(analysis: Analysis, count: str) -> list[str]:
    """Draw each model's best system at one number of labels, a panel per task."""
    widest = widest_rankings(analysis.rankings).values()
    rankings = [one for one in widest if one.label_count in (count, "none")]
    width = figures.choose_panel_size(len(rankings)).width
    return [_draw_panel(analysis, ranking, width) for ranking in rankings]


def _draw_panel(analysis: Analysis, ranking: Ranking, width: int) -> str:
    rows = []
    reference = None
    in_order = sorted(ranking.standings, key=lambda one: analysis.place_of_model(one.system.model))
    for standing in in_order:
        row = replace(
            _interval_row(analysis, standing),
            others=_other_scores(analysis, ranking, standing),
            baseline=find_random_score(analysis, standing.system, ranking.setting),
            detail=format_use(standing.system),
            is_filled=standing.may_be_best,
            is_best=ranking.best.mean - standing.mean <= MEAN_TOLERANCE,
        )
        rows.append(row)
        if standing.system.family == "tfidf":
            reference = row
    for score in analysis.scores_of(ranking.setting):
        if score.system.model == "kneser_ney" and score.mean is not None:
            reference = _interval_row(analysis, score)  # on minimal pairs
            is_behind = _is_shown_behind(analysis, ranking.best, score)
            reference = replace(reference, is_filled=not is_behind)
            rows.append(reference)
        if score.system.family == OUTSIDE_FAMILY and score.mean is not None:
            rows.append(_interval_row(analysis, score))
    return figures.draw_interval_panel(
        rows,
        title=ranking.task,
        subtitle=metric_heading(ranking.metric),
        reference=reference,
        chance=chance_level(analysis, ranking.setting),
        width=width,
    )


def _is_shown_behind(analysis: Analysis, best: Standing, score: SystemScore) -> bool:
    """Return whether the best model is shown to be better than a 5-gram model."""
    return any(
        one.comparison_type == "kneser_ney"
        and (one.setting, one.first) == (score.setting, best.system)
        and one.verdict == "better"
        for one in analysis.comparisons
    )


def _interval_row(analysis: Analysis, score: Standing | SystemScore) -> IntervalRow:
    assert score.mean is not None
    interval = None
    if score.ci_low is not None and score.ci_high is not None:
        interval = (score.ci_low, score.ci_high)
    model = score.system.model
    name = mark_model(analysis, model)
    style = model_style(analysis, model)
    return IntervalRow(name, style, score.mean, interval, format_percent(score.mean))


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


def _explain_decisions(report: ReportData) -> str:
    analysis = report.analysis
    chosen = ", or on the scored items if it has no validation score"
    if analysis.split == "validation":
        chosen = (
            "; here validation is also what is scored, so these systems were chosen on the scored "
            "items: `--final` scores the test split"
        )
    public = ""
    if analysis.public_models:
        public = (
            "It is a public model if that is better than your own by more than the margin, and not "
            "by accident; then **Alternative** has the best without public weights, trained here "
            "on your text and labels alone. "
        )
    return (
        "These are statements about the models trained here, for other test items. A score is the "
        "mean over seeds. Each model stands by its system (pretrained or adapted) that is best on "
        f"validation{chosen}. **Use**: the system that is cheapest to build among those shown to be "
        f"at most {report.margin} points below the best; if none is, the highest score. Times below "
        "10 s, or within a factor of 1.5, count as equal; then the higher score decides, then "
        "TF-IDF, or the model that the study lists first. If seeds do not show that system to be "
        "better than TF-IDF, it is **undecided**, and TF-IDF is used, the cheapest, if it is above "
        "chance. "
        f"{public}**{AS_GOOD}**: systems that may be the best, or are within {report.margin} points "
        f"of it. Both hold together with {report.confidence} confidence in each row. **Sure?** is "
        f"yes if, of what was run, the system is shown to be at most {report.margin} points below "
        "the best, and better than TF-IDF unless it is that. The interval of a score allows for "
        "its being picked among these; those in the tables of the tasks do not. **Cost**: time to pretrain, adapt and train once, size of the weights, and test "
        "items answered in a second on the machine of this run. "
        f"{describe_devices(report.costs)}"
    ).strip()


def explain_names(analysis: Analysis) -> str:
    """Say what the names of ways of using a model mean: those that occur, in a sentence each."""
    systems = [one.system for one in analysis.scores if one.mean is not None]
    meanings = {}
    for system in systems:
        method = find_method_type(system.transfer, system.head)
        if method is not None and method.meanings:
            meanings[method.titles[system.head]] = method.meanings[system.head]
    inits = dict.fromkeys(system.init for system in systems)
    meanings |= {INIT_NAMES[init]: INIT_MEANINGS[init] for init in inits if init in INIT_NAMES}
    if any(system.family == TfidfMethod.name for system in systems):
        meanings["TF-IDF"] = TfidfMethod.meanings["linear"]
    return " ".join(f"**{_capitalize(name)}**: {text}." for name, text in meanings.items())


def _capitalize(name: str) -> str:
    return f"{name[0].upper()}{name[1:]}"


def _explain_comparisons(report: ReportData) -> str:
    return (
        "Below, comparisons of methods are paired by item and by seed, so equal scores can "
        "differ in verdict; their intervals are "
        f"{report.confidence}, {describe_intervals(report.analysis)} Those that are read together "
        "are corrected (Holm), and their seed variances are moderated. **Better**, **worse**: the "
        "interval excludes zero. **Equivalent**: an equivalence test and the interval put it within "
        f"±{report.margin} points. **Identical predictions**: the same for every item and seed. "
        "**No significant difference**: anything else, and no evidence of equality."
        f"{note_these_labels(report.analysis.comparisons)} {describe_trials(report.analysis.trials)}"
    )


def describe_intervals(analysis: Analysis) -> str:
    """Return the sources of variation in intervals: the words behind `Intervals are 95 %, `."""
    if max((one.repetitions for one in analysis.comparisons), default=0) <= 1:
        return "over items only. Nothing was repeated with another seed."
    num_pretrain_seeds = 0
    num_finetune_seeds = 0
    for score in analysis.scores:
        pretrain_seeds = {seed.pretrain_seed for seed in score.seeds} - {None}
        finetune_seeds = {seed.finetune_seed for seed in score.seeds} - {None}
        num_pretrain_seeds = max(num_pretrain_seeds, len(pretrain_seeds))
        num_finetune_seeds = max(num_finetune_seeds, len(finetune_seeds))
    sources = ["items"]
    if num_pretrain_seeds >= MIN_SEEDS:
        sources.append("pretraining seeds")
    if num_finetune_seeds >= MIN_SEEDS:
        sources.append("fine-tuning seeds")
    text = f"over {join_with_and(sources)}."
    if 0 < num_finetune_seeds < MIN_SEEDS:
        noun = "seed" if num_finetune_seeds == 1 else "seeds"
        text += (
            f" With {num_finetune_seeds} fine-tuning {noun}, nothing is known about others; "
            f"{MIN_SEEDS} are the fewest that tell."
        )
    return text


def describe_trials(trials: Sequence[TrialCounts]) -> str:
    """Tell how many configurations were tried, and warn if tuning is not matched."""
    nouns = {TfidfMethod.name: TfidfMethod.noun}
    nouns |= {method.name: method.noun for method in list_method_types()}
    unmatched = [one for one in trials if one.min != one.max]
    if unmatched:
        parts = [
            f"{one.min} to {one.max} configurations of {nouns[one.method]}" for one in unmatched
        ]
        return (
            f"Validation chose among {join_with_and(parts)}, depending on the system: tuning is "
            "not matched."
        )
    tuned = [one for one in trials if one.max > 1]
    if not tuned:
        return "Each system had one configuration: nothing was tuned on validation."
    parts = [f"{one.max} configurations of {nouns[one.method]}" for one in tuned]
    return (
        "For every system, random-init baselines too, validation chose among "
        f"{join_with_and(parts)}."
    )
