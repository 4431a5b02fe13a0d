"""The gains of pretraining, adaptation, general text, and continuing a public checkpoint."""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence

from lineage.analysis.claims import STATIC
from lineage.analysis.effects import Effect, build_effects
from lineage.analysis.gains import Gain, GainSummary, summarize_gains
from lineage.analysis.records import Analysis, group_by
from lineage.analysis.settings import SILENT_OUTCOMES
from lineage.analysis.statistics import MIN_SEEDS
from lineage.methods.registry import list_uses
from lineage.networks.registry import load_family
from lineage.report import figures
from lineage.report.cells import task_cell
from lineage.report.figures import IntervalRow
from lineage.report.formatting import (
    NO_VALUE,
    THESE_LABELS,
    css_class,
    format_comparison,
    format_count_range,
    format_difference,
    format_kind,
    format_label_count,
    format_model,
    format_range,
    format_these_labels,
    join_with_and,
    metric_heading,
    plural,
)
from lineage.report.section import (
    Block,
    Cell,
    Cells,
    Figures,
    Paragraph,
    Piece,
    ReportData,
    Section,
    Table,
    numbers,
)
from lineage.report.styles import find_weak_models, format_model_name, mark_model, model_style

GAIN_MARKS = {
    "better": " ▲",
    "worse": " ▼",
    "equivalent": " =",
    "identical predictions": " =",
    "too few seeds": " ?",
}
GAIN_DEFINITIONS = {
    "pretraining": "The baseline is the same network with random weights. Frozen: a classifier on "
    "it learns from the same labels. Fine-tuned: all of it learns.",
    "adaptation": "Adaptation goes on with pretraining on the task's own text, without its labels.",
    "general_text": "The baseline has read the task's text alone, and no general text before.",
    "continuation": "The baseline is the same public checkpoint before it went on with the corpus.",
}
NOT_SWITCHED = "The choice of labels above changes nothing here."
GAIN_NAMES = {
    "pretraining": "pretraining",
    "adaptation": "adaptation",
    "general_text": "the general text",
    "continuation": "continued pretraining",
}


def build(report: ReportData) -> Section | None:
    """Return a part for each type of gain that was measured."""
    parts: list[Section] = []
    for summary in summarize_gains(report.analysis):
        parts.append(_build_part(report, summary, is_first=not parts))
    if not parts:
        return None
    return Section(blocks=parts, anchor="pretraining", link="Pretraining")


def _build_part(report: ReportData, summary: GainSummary, *, is_first: bool) -> Section:
    """Return the gains of one type: forest plots, and the gain on each task."""
    analysis = report.analysis
    added = GAIN_NAMES[summary.comparison_type]
    effects = build_effects(summary)
    definition = GAIN_DEFINITIONS[summary.comparison_type]
    if summary.comparison_type == "pretraining":
        definition += _describe_new_networks(analysis, summary)
    aside = [Paragraph(definition)]
    if len(analysis.grid.label_counts) > 1 and is_first:
        aside.insert(0, Paragraph(NOT_SWITCHED, "note", only="html"))
    if finding := _describe_gains(analysis, summary):
        aside.insert(0, Paragraph(finding, "strong"))
    if note := " ".join(_describe_marks(effects, is_first=is_first)):
        aside.append(Paragraph(note, "note", only="html"))
    num_pretrainings = len(analysis.grid.pretrain_seeds)
    if is_first and num_pretrainings < MIN_SEEDS:
        runs = "One pretraining run" if num_pretrainings == 1 else "Two pretraining runs"
        text = f"{runs} of each model: this is not about pretraining in general."
        aside.append(Paragraph(text, "note"))
    blocks = list(_list_details(report, summary, is_first=is_first))
    details = Section("By task", blocks, is_folded=True, css="note")
    forest = Figures(_draw_effects(analysis, effects), "forest")
    return Section(f"What {added} adds", [forest, details], aside=aside)


def _describe_new_networks(analysis: Analysis, summary: GainSummary) -> str:
    """Name the models whose random weights read no context, if their frozen gains are shown."""
    names = [
        format_model(model)
        for model in dict.fromkeys(
            gain.model
            for gain in summary.at_most_labels
            if gain.comparison.first.transfer == "frozen"
        )
        if model in analysis.grid.models  # ensembles have no family
        and not load_family(analysis.model_families[model]).new_network_reads_context
    ]
    if not names:
        return ""
    return (
        f" That of {join_with_and(names)}, frozen, reads no context, since its output matrices "
        "start at zero: a frozen gain is one over random vectors of tokens."
    )


def _describe_marks(effects: Sequence[Effect], *, is_first: bool) -> Iterator[str]:
    if is_first:
        if any(len(effect.gains) > 1 for effect in effects):
            yield (
                "A mark is the mean over the tasks of a kind, a small dot one task. A line is the "
                "95 % interval; the mean of two tasks has none."
            )
        elif any(effect.pooled.low is not None for effect in effects):
            yield "A mark is the gain, a line its 95 % interval."
        else:
            yield f"A mark is the gain. There are no intervals with fewer than {MIN_SEEDS} seeds."
    if any(gain.outcome in SILENT_OUTCOMES for effect in effects for gain in effect.gains):
        yield (
            "In brackets: on a task neither system is shown to be above chance, or fine-tuning did "
            "not converge."
        )
    if any(gain.baseline_near_chance for effect in effects for gain in effect.gains):
        yield (
            "°: the baseline is not shown to be above chance, or hardly is: the gain does not say "
            "what pretraining is worth elsewhere."
        )


def _list_details(report: ReportData, summary: GainSummary, *, is_first: bool) -> Iterator[Block]:
    added = GAIN_NAMES[summary.comparison_type]
    if is_first:
        yield Paragraph(_explain_marks(report), "note")
    weak = find_weak_models(report.analysis)
    headings = [
        format_model_name(report.analysis, model) + (" ‡" if model in weak else "")
        for model in summary.models
    ]
    for method, gains in group_by(summary.at_most_labels, lambda gain: gain.method).items():
        by_task = group_by(gains, lambda gain: gain.comparison.task)
        rows = [_gain_row(own, summary.models) for own in by_task.values()]
        yield Table(["task", *numbers(*headings)], rows, title=method, subtitle=added)


def _explain_marks(report: ReportData) -> str:
    return (
        "Points with the most labels of each task and method. ▲ better, ▼ worse, = equivalent "
        f"(within ±{report.margin} points) or identical, ? too few seeds to tell; in brackets: "
        "neither is shown to be above chance, or fine-tuning did not converge; °: the baseline is "
        "not shown to be above chance, or has less than a tenth of the other's lead over it; ‡: not "
        "shown to have learned more than 5-grams. Each verdict holds within its own setting and "
        "method: a few of many are chance. Intervals are in the tables of the tasks."
    )


def _describe_gains(analysis: Analysis, summary: GainSummary) -> str:
    """Tell for which models a gain is shown at the most labels, and in how many comparisons.

    The models that others have pretrained come last. Of own models that are not shown to have
    learned more than a 5-gram model only gains are told: what they do not gain says nothing.
    """
    weak = [model for model in find_weak_models(analysis) if model in summary.models]
    own = [
        model
        for model in analysis.grid.models
        if model not in analysis.public_models and model not in weak
    ]
    most_labels = _describe_most_labels(summary)
    sentences = _describe_model_gains(own, summary, most_labels)
    sentences += _count_by_task(own, summary)
    if weak:
        names = join_with_and([format_model(model) for model in weak])
        sentences.append(f"Not counted: {names} (‡), not shown to have learned more than 5-grams.")
        if helped := _list_helped(weak, summary):
            sentences.append(f"All the same, a gain is shown for {_count_better(helped)}.")
    if summary.comparison_type == "pretraining":
        sentences += _list_untested(analysis, [one for one in own if one in summary.models])
    if tasks := _list_unconverged(summary):
        sentences.append(
            f"Fine-tuning did not converge on {join_with_and(tasks)}, so nothing is said about it."
        )
    is_continuation = summary.comparison_type == "continuation"  # of public models only
    start = most_labels if is_continuation else "Of public models"
    sentences += _describe_model_gains(analysis.public_models, summary, start)
    return " ".join(sentences)


def _list_untested(analysis: Analysis, models: Sequence[str]) -> Iterator[str]:
    """Tell which language models are counted without a test against 5-grams, if others have one."""
    known = {one.model: one for one in analysis.ngram_comparisons}
    reasons = []
    for model in models:
        comparison = known.get(model)
        if analysis.model_families.get(model) in STATIC or not known:
            continue
        if comparison is None or comparison.difference is None:
            reasons.append(f"{format_model(model)} (not compared)")
        elif not comparison.has_interval:
            reasons.append(f"{format_model(model)} (too little text)")
    if reasons:
        yield f"Counted, but not tested against 5-grams: {join_with_and(reasons)}."


def _count_by_task(models: Sequence[str], summary: GainSummary) -> Iterator[str]:
    """Tell on which tasks gains are shown, if on some of several."""
    known = [
        gain
        for gain in summary.at_most_labels
        if gain.model in models and gain.outcome != "not converged"
    ]
    by_task = group_by(known, lambda gain: gain.comparison.task)
    counts = [
        f"{task} in {sum(gain.outcome == 'better' for gain in own)} of {len(own)}"
        for task, own in by_task.items()
    ]
    if len(counts) > 1 and any(gain.outcome == "better" for gain in known):
        yield f"By task: {', '.join(counts)}."


def _list_unconverged(summary: GainSummary) -> list[str]:
    """Return the tasks on which fine-tuning did not converge at the most labels."""
    tasks = [
        gain.comparison.task for gain in summary.at_most_labels if gain.outcome == "not converged"
    ]
    return [*dict.fromkeys(tasks)]


def _describe_most_labels(summary: GainSummary) -> str:
    """Tell with how many labels the comparisons are: `With the most labels (fine-tuned: 100)`.

    Each method is named with its numbers if some were not run with as many labels as others.
    """
    has_all = bool(format_these_labels(gain.comparison for gain in summary.at_most_labels))
    start = f"{THESE_LABELS.capitalize()}, the most" if has_all else "With the most labels"
    by_task = group_by(summary.at_most_labels, lambda gain: gain.comparison.task)
    most = {task: max(gain.train_examples for gain in own) for task, own in by_task.items()}
    trained = [gain for gain in summary.at_most_labels if gain.train_examples > 0]
    if not trained:
        return "Without labels"
    if all(gain.train_examples == most[gain.comparison.task] for gain in trained):
        return f"{start} of each task" if has_all else start
    counts = {
        method: format_count_range(gain.train_examples for gain in own)
        for method, own in group_by(trained, lambda gain: gain.method).items()
    }
    methods = group_by(counts, lambda method: counts[method])
    parts = [f"{join_with_and(own)}: {count}" for count, own in methods.items()]
    return f"{start} of each method ({'; '.join(parts)})"


def _describe_model_gains(models: Sequence[str], summary: GainSummary, start: str) -> list[str]:
    helped = _list_helped(models, summary)
    not_shown: list[str] = []
    unknown: list[str] = []
    worse: list[str] = []
    for model in models:
        gains = _list_converged(model, summary)
        outcomes = Counter(gain.outcome for gain in gains)
        name = format_model(model)
        if outcomes["too few seeds"] and not outcomes["worse"] + outcomes["better"]:
            unknown.append(name)
        elif gains and not outcomes["worse"] + outcomes["better"]:
            not_shown.append(name)
        if outcomes["worse"]:
            worse.append(f"{name} in {outcomes['worse']} of {len(gains)}")
    sentences = []
    if helped:
        sentences.append(f"{start}, a gain is shown for {_count_better(helped)}.")
    if not_shown:
        lead = "We" if helped else f"{start}, we"
        added = GAIN_NAMES[summary.comparison_type]
        names = join_with_and(not_shown)
        sentences.append(f"{lead} could not show that {added} helped {names}.")
    if unknown:
        verb = "gain" if len(unknown) > 1 else "gains"
        sentences.append(
            f"Whether {join_with_and(unknown)} {verb} is not known: there are fewer than "
            f"{MIN_SEEDS} seeds of fine-tuning."
        )
    if worse:
        if not sentences:
            worse[0] += " comparisons"
        lead = "A loss is shown" if sentences else f"{start}, a loss is shown"
        sentences.append(f"{lead} for {join_with_and(worse)}.")
    return sentences


def _list_converged(model: str, summary: GainSummary) -> list[Gain]:
    """Return the gains of a model at the most labels, where fine-tuning converged."""
    return [
        gain
        for gain in summary.at_most_labels
        if gain.model == model and gain.outcome != "not converged"
    ]


def _list_helped(models: Sequence[str], summary: GainSummary) -> dict[tuple[int, int], list[str]]:
    """Return the models with a gain, by the number of gains that are shown and of comparisons."""
    helped: dict[tuple[int, int], list[str]] = {}
    for model in models:
        gains = _list_converged(model, summary)
        better = [gain for gain in gains if gain.outcome == "better"]
        if better:
            mark = "°" if all(gain.baseline_near_chance for gain in better) else ""
            helped.setdefault((len(better), len(gains)), []).append(format_model(model) + mark)
    return helped


def _count_better(helped: Mapping[tuple[int, int], Sequence[str]]) -> str:
    """Name the models by their counts: `ELMo in 3 of 4 comparisons; GPT and BERT in 1 of 4 each`."""
    groups: list[str] = []
    for (count, total), names in sorted(helped.items(), key=lambda one: -one[0][0] / one[0][1]):
        noun = " comparisons" if not groups else ""
        each = " each" if len(names) > 1 else ""
        groups.append(f"{join_with_and(names)} in {count} of {total}{noun}{each}")
    return "; ".join(groups)


def _draw_effects(analysis: Analysis, effects: Sequence[Effect]) -> list[str]:
    """Draw a forest plot for each kind of task, without systems of two models."""
    shown = [effect for effect in effects if effect.model in analysis.grid.models]
    drawn = []
    for (kind, metric), own in group_by(shown, lambda one: (one.kind, one.metric)).items():
        own.sort(key=lambda effect: list_uses().index(effect.method))
        rows = {
            group: [_effect_row(analysis, effect) for effect in effects_of_group]
            for group, effects_of_group in group_by(own, _name_effect_group).items()
        }
        num_tasks = len({gain.comparison.task for effect in own for gain in effect.gains})
        subtitle = f"{metric_heading(metric)}, {plural(num_tasks, 'task')}"
        drawn.append(figures.draw_forest(rows, title=format_kind(kind), subtitle=subtitle))
    return drawn


def _name_effect_group(effect: Effect) -> str:
    """Name the method, with its number of labels if that is not all: `fine-tuned, 100 labels`."""
    counts = {gain.comparison.label_count for gain in effect.gains} - {"all", "none"}
    return f"{effect.method}, {join_with_and(sorted(counts))} labels" if counts else effect.method


def _effect_row(analysis: Analysis, effect: Effect) -> IntervalRow:
    pooled = effect.pooled
    text = format_difference(pooled.mean)
    if any(gain.outcome in SILENT_OUTCOMES for gain in effect.gains):
        text = f"({text})"
    interval = None
    if pooled.low is not None and pooled.high is not None:
        interval = (pooled.low, pooled.high)
        text += f" ({format_range(*interval)})"
    if any(gain.baseline_near_chance for gain in effect.gains):
        text += " °"
    differences = [gain.comparison.difference for gain in effect.gains]
    return IntervalRow(
        mark_model(analysis, effect.model),
        model_style(analysis, effect.model),
        pooled.mean,
        interval,
        text,
        others=differences if len(differences) > 1 else (),
    )


def _gain_row(gains: Sequence[Gain], models: Sequence[str]) -> Cells:
    first = gains[0]
    labels = format_label_count(first.comparison.label_count, train_examples=first.train_examples)
    cells = {gain.model: _gain_cell(gain) for gain in gains}
    return [
        task_cell(first.comparison.task, labels),
        *(cells.get(model, NO_VALUE) for model in models),
    ]


def _gain_cell(gain: Gain) -> Cell:
    """Format a gain: `+1.2 ▲`; with ° if the baseline is near chance; `(+1.2)` at chance."""
    points = format_difference(gain.comparison.difference)
    interval = format_comparison(gain.comparison)
    if gain.outcome in SILENT_OUTCOMES:
        return Cell(more=[Piece(f"({points})", "muted", interval)])
    text = points + GAIN_MARKS.get(gain.outcome, "")
    text += "°" if gain.baseline_near_chance else ""
    return Cell(more=[Piece(text, css_class(gain.outcome), interval)])
