"""The analysis -> the tables of the pages, except those of the tasks and their data."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from lineage.analysis.crossover import CrossoverLine, CrossoverTable, build_crossover_tables
from lineage.analysis.disagreements import DisagreementItem, Disagreements
from lineage.analysis.effects import Effect, build_effects
from lineage.analysis.gains import (
    Gain,
    GainSummary,
    GainTable,
    Method,
    OutcomeCounts,
    summarize_gains,
)
from lineage.analysis.literature import (
    PUBLISHED_METRICS,
    PublishedMetric,
    read_published_results,
)
from lineage.analysis.records import (
    AdaptationEffect,
    Analysis,
    BenchmarkScore,
    Comparison,
    Failure,
    GroupScore,
    NgramComparison,
    OurBenchmarkScore,
    PretrainingBudget,
)
from lineage.answers.metrics import RANKING_METRICS
from lineage.report import figures
from lineage.report.curves import format_loss_name
from lineage.report.figures import EffectRow
from lineage.report.formatting import (
    NO_VALUE,
    TRANSFER_NAMES,
    format_comparison,
    format_difference,
    format_kind,
    format_label_count,
    format_model,
    format_percent,
    format_si,
    format_system,
    format_verdict,
    join_with_and,
    metric_heading,
    plural,
)
from lineage.report.styles import (
    Style,
    format_model_name,
    format_unmatched_reason,
    model_style,
)
from lineage.report.task_sections import loss_did_not_fall

GAIN_MARKS = {"better": " ▲", "worse": " ▼", "equivalent": " =", "identical predictions": " ="}
GAIN_DEFINITIONS = {
    "pretraining": "The baseline is the same network with random weights, trained on the same "
    "labels, if there are any.",
    "adaptation": "Adaptation goes on with pretraining on the task's own text, without its labels.",
    "general_text": "The baseline has read the task's text alone, and no general text before.",
    "continuation": "The baseline is the same public checkpoint before it went on with the corpus.",
}
# For each type of gain: what was added, the model that has it, and its baseline.
GAIN_NAMES = {
    "pretraining": ("pretraining", "a pretrained model", "random init"),
    "adaptation": ("adaptation", "an adapted model", "the same model before adaptation"),
    "general_text": (
        "the general text",
        "an adapted model",
        "the same model pretrained on the target's text alone",
    ),
    "continuation": (
        "continued pretraining",
        "a public checkpoint that continued on the corpus",
        "the same checkpoint as it is",
    ),
}


@dataclass(frozen=True)
class GainCountLine:
    """Outcome counts with the names that head the line."""

    name: str
    method: str
    counts: OutcomeCounts


@dataclass(frozen=True)
class GainCell:
    """One gain in points."""

    text: str
    outcome: str
    interval: str


@dataclass(frozen=True)
class GainTableLine:
    """The gains on one task."""

    task: str
    labels: str
    cells: tuple[GainCell | None, ...]


@dataclass(frozen=True)
class GainTableView:
    """The gains of one method."""

    method: str
    columns: tuple[str, ...]
    lines: tuple[GainTableLine, ...]


@dataclass(frozen=True)
class GainSection:
    """The gains of pretraining, of adaptation, or of general text before adaptation."""

    added: str
    model: str
    baseline: str
    intervals_note: str  # where the intervals are; empty: nowhere else
    finding: str
    definition: str
    has_several_tasks: bool  # of a kind
    has_near_chance: bool  # a gain is over a baseline at chance
    has_weak_models: bool
    figures: tuple[str, ...]  # SVG, one for each kind of task
    kind_counts: tuple[GainCountLine, ...]
    model_counts: tuple[GainCountLine, ...]
    tables: tuple[GainTableView, ...]


@dataclass(frozen=True)
class CrossoverCell:
    """A comparison with TF-IDF."""

    interval: str
    verdict: str


@dataclass(frozen=True)
class CrossoverTableLine:
    """The comparisons of a system with TF-IDF, and its crossover point."""

    system: str
    cells: tuple[CrossoverCell | None, ...]
    crossover: str


@dataclass(frozen=True)
class CrossoverTableView:
    """The crossover points of a task."""

    task: str
    columns: tuple[str, ...]
    lines: tuple[CrossoverTableLine, ...]


@dataclass(frozen=True)
class GroupCell:
    """A score of a group; `is_best` if no other one is as high."""

    value: str
    is_best: bool


@dataclass(frozen=True)
class GroupLine:
    """The scores of a group."""

    group: str
    num_examples: int
    cells: tuple[GroupCell, ...]


@dataclass(frozen=True)
class GroupTable:
    """Scores by group of a task."""

    task: str
    labels: str
    heading: str
    systems: tuple[str, ...]
    lines: tuple[GroupLine, ...]


@dataclass(frozen=True)
class CleanScoreLine:
    """A system's score with and without contaminated items."""

    system: str
    all_items: str
    clean_items: str


@dataclass(frozen=True)
class CleanScoreTable:
    """The clean scores of a setting."""

    task: str
    labels: str
    heading: str
    lines: tuple[CleanScoreLine, ...]


@dataclass(frozen=True)
class ComparisonLine:
    """One comparison."""

    comparison_type: str
    task: str
    label_count: str
    first: str
    second: str
    interval: str
    verdict: str
    detectable: str  # the smallest difference that would have been found, where none was
    num_examples: int
    repetitions: int


@dataclass(frozen=True)
class AblationTable:
    """The ablations of a setting."""

    task: str
    labels: str
    lines: tuple[ComparisonLine, ...]


@dataclass(frozen=True)
class BudgetLine:
    """The budget of a model, with its style."""

    model: str
    style: Style
    unmatched_reason: str
    budget: PretrainingBudget


@dataclass(frozen=True)
class NgramLine:
    """A pretrained model beside 5-gram models of the same text."""

    model: str
    style: Style
    bits_per_byte: str
    ngram_bits_per_byte: str
    minimal_pairs: str
    has_more_bits: bool
    has_weak_pairs: bool  # they alone decide, and they show nothing


@dataclass(frozen=True)
class AdaptationLine:
    """An adaptation and its outcome."""

    model: str
    style: Style
    loss: str
    outcome: str
    improved: bool  # in every pretraining seed
    loss_did_not_fall: bool
    effect: AdaptationEffect


@dataclass(frozen=True)
class FailureLine:
    """A result without a value."""

    task: str
    system: str
    seeds: str
    failure: Failure


@dataclass(frozen=True)
class BenchmarkLine:
    """A published result, or ours."""

    is_ours: bool
    system: str
    value: str
    metric: str
    split: str
    train_examples: str
    source: str
    note: str


@dataclass(frozen=True)
class BenchmarkTable:
    """Published results of a task; no lines if we score another split."""

    task: str
    benchmark: str
    has_our_score: bool
    lines: tuple[BenchmarkLine, ...]


@dataclass(frozen=True)
class DisagreementLine:
    """An item on which two systems disagree."""

    id: str
    label: str
    predictions: tuple[str, ...]
    text: str


@dataclass(frozen=True)
class DisagreementTable:
    """The items of a task on which its two best systems disagree."""

    task: str
    systems: tuple[str, ...]
    lines: tuple[DisagreementLine, ...]


def build_gain_sections(analysis: Analysis) -> list[GainSection]:
    """Return the gains of each type."""
    return [_gain_section(analysis, summary) for summary in summarize_gains(analysis)]


def describe_gains(analysis: Analysis, summary: GainSummary) -> str:
    """Tell for which models a gain is shown at the most labels, and in how many comparisons.

    The models that others have pretrained come last. Nothing is said about own models that are not
    shown to have learned more than a 5-gram model.
    """
    compared = {model for table in summary.tables for model in table.models}
    weak = [model for model in find_weak_models(analysis) if model in compared]
    own = [
        model
        for model in analysis.grid.models
        if model not in analysis.public_models and model not in weak
    ]
    most_labels = _describe_most_labels(summary)
    sentences = _describe_model_gains(own, summary, most_labels)
    if weak and sentences:
        names = join_with_and([format_model(model) for model in weak])
        sentences.append(
            f"Nothing follows about {names}: not shown to have learned more than a 5-gram model."
        )
    is_continuation = summary.comparison_type == "continuation"  # of public models only
    start = most_labels if is_continuation else "Of public models"
    sentences += _describe_model_gains(analysis.public_models, summary, start)
    return " ".join(sentences)


def find_weak_models(analysis: Analysis) -> list[str]:
    """Return own models that are not shown to have learned more than a 5-gram model."""
    return [
        one.model
        for one in analysis.ngram_comparisons
        if one.learned_less and one.model not in analysis.public_models
    ]


def _describe_most_labels(summary: GainSummary) -> str:
    """Tell with how many labels the comparisons are: `With the most labels (fine-tuned: 100)`.

    Methods are named that were not run with as many labels as the first one.
    """
    own: dict[str, list[str]] = {}
    most: dict[str, int] = {}
    for table in summary.tables:
        for line in table.lines:
            most[line.setting.task] = max(most.get(line.setting.task, 0), line.train_examples)
    for table in summary.tables:
        for line in table.lines:
            if line.train_examples < most[line.setting.task] and line.train_examples:
                own.setdefault(format_method(table.method), []).append(f"{line.train_examples:,}")
    if not own:
        return "With the most labels"
    parts = [f"{name}: {join_with_and([*dict.fromkeys(counts)])}" for name, counts in own.items()]
    return f"With the most labels of each method ({'; '.join(parts)})"


def _describe_model_gains(models: Sequence[str], summary: GainSummary, start: str) -> list[str]:
    helped: dict[tuple[int, int], list[str]] = {}
    not_shown: list[str] = []
    worse: list[str] = []
    for model in models:
        gains = [
            gain
            for table in summary.tables
            for line in table.lines
            for name, gain in zip(table.models, line.gains, strict=True)
            if name == model and gain is not None
        ]
        if not gains:
            continue
        outcomes = [gain.outcome for gain in gains]
        better = [gain for gain in gains if gain.outcome == "better"]
        num_better = outcomes.count("better")
        num_worse = outcomes.count("worse")
        name = format_model(model)
        if num_better:
            if all(gain.baseline_near_chance for gain in better):
                name += "°"
            helped.setdefault((num_better, len(outcomes)), []).append(name)
        elif not num_worse:
            not_shown.append(name)
        if num_worse:
            worse.append(f"{name} in {num_worse} of {len(outcomes)}")
    sentences = []
    if helped:
        groups: list[str] = []
        for (count, total), names in sorted(helped.items(), key=lambda one: -one[0][0] / one[0][1]):
            noun = " comparisons" if not groups else ""
            each = " each" if len(names) > 1 else ""
            groups.append(f"{join_with_and(names)} in {count} of {total}{noun}{each}")
        sentences.append(f"{start}, a gain is shown for {'; '.join(groups)}.")
    if not_shown:
        lead = "No gain is shown" if helped else f"{start}, no gain is shown"
        sentences.append(f"{lead} for {join_with_and(not_shown)}.")
    if worse:
        if not sentences:
            worse[0] += " comparisons"
        lead = "A loss is shown" if sentences else f"{start}, a loss is shown"
        sentences.append(f"{lead} for {join_with_and(worse)}.")
    return sentences


def _draw_effects(analysis: Analysis, summary: GainSummary) -> tuple[str, ...]:
    """Draw a forest plot for each kind of task, without systems of two models."""
    by_kind: dict[tuple[str, str], list[Effect]] = {}
    for effect in build_effects(analysis, summary):
        if effect.model in analysis.grid.models:
            by_kind.setdefault((effect.kind, effect.metric), []).append(effect)
    drawn = []
    for (kind, metric), effects in by_kind.items():
        effects.sort(key=lambda effect: effect.method.order)
        num_tasks = len({task.task for effect in effects for task in effect.tasks})
        drawn.append(
            figures.draw_forest(
                [_effect_row(analysis, effect) for effect in effects],
                title=format_kind(kind),
                subtitle=f"{metric_heading(metric)}, {plural(num_tasks, 'task')}",
            )
        )
    return tuple(drawn)


def _effect_row(analysis: Analysis, effect: Effect) -> EffectRow:
    pooled = effect.pooled
    style = model_style(analysis, effect.model)
    is_weak = effect.model in find_weak_models(analysis)
    text = format_difference(pooled.mean)
    interval = None
    if pooled.low is not None and pooled.high is not None:
        interval = (pooled.low, pooled.high)
        low, high = (format_difference(edge) for edge in interval)
        text += f" ({low} to {high})"
    if any(task.baseline_near_chance for task in effect.tasks):
        text += " °"
    return EffectRow(
        group=_name_effect_group(effect),
        name=format_model(effect.model) + (" ‡" if is_weak else ""),
        mean=pooled.mean,
        interval=interval,
        dots=[task.difference for task in effect.tasks],
        color=style.color,
        marker=style.marker,
        text=text,
    )


def _name_effect_group(effect: Effect) -> str:
    """Name the method, with its number of labels if that is not all: `fine-tuned, 100 labels`."""
    name = format_method(effect.method)
    counts = {one.label_count for one in effect.tasks} - {"all", "none"}
    return f"{name}, {join_with_and(sorted(counts))} labels" if counts else name


def _gain_section(analysis: Analysis, summary: GainSummary) -> GainSection:
    kinds = [GainCountLine(format_kind(one.kind), "", one.counts) for one in summary.kind_counts]
    models = [
        GainCountLine(format_model_name(analysis, one.model), format_method(one.method), one.counts)
        for one in summary.model_counts
    ]
    added, model, baseline = GAIN_NAMES[summary.comparison_type]
    effects = build_effects(analysis, summary)
    weak = find_weak_models(analysis)
    return GainSection(
        added=added,
        finding=describe_gains(analysis, summary),
        definition=GAIN_DEFINITIONS[summary.comparison_type],
        has_several_tasks=any(len(effect.tasks) > 1 for effect in effects),
        has_near_chance=any(one.baseline_near_chance for effect in effects for one in effect.tasks),
        has_weak_models=any(effect.model in weak for effect in effects),
        figures=_draw_effects(analysis, summary),
        model=model,
        baseline=baseline,
        # A line of a task's table has one baseline: that of an adapted model is the same before.
        intervals_note=""
        if summary.comparison_type in ("general_text", "continuation")
        else " The tables of the tasks have the intervals.",
        kind_counts=tuple(kinds),
        model_counts=tuple(models),
        tables=tuple(_gain_table(analysis, table) for table in summary.tables),
    )


def format_method(method: Method) -> str:
    """Name a method: `frozen`; `frozen + BiLSTM(-CRF)`; `fine-tuned`.

    Whether a BiLSTM has a CRF follows from the kind of task.
    """
    head = " + BiLSTM(-CRF)" if method.has_bilstm else ""
    return TRANSFER_NAMES[method.transfer] + head


def _gain_table(analysis: Analysis, table: GainTable) -> GainTableView:
    lines = []
    for line in table.lines:
        labels = format_label_count(line.setting.label_count, train_examples=line.train_examples)
        cells = tuple(_gain_cell(gain) if gain else None for gain in line.gains)
        lines.append(GainTableLine(line.setting.task, labels, cells))
    columns = tuple(format_model_name(analysis, model) for model in table.models)
    return GainTableView(format_method(table.method), columns, tuple(lines))


def _gain_cell(gain: Gain) -> GainCell:
    """Format a gain: `+1.2 ▲`; with ° if the baseline is near chance; `(+1.2)` at chance."""
    points = format_difference(gain.comparison.difference)
    if gain.outcome == "both at chance":
        text = f"({points})"
    else:
        text = points + GAIN_MARKS.get(gain.outcome, "")
        text += "°" if gain.baseline_near_chance else ""
    return GainCell(text, gain.outcome, format_comparison(gain.comparison))


def build_crossover_views(analysis: Analysis) -> list[CrossoverTableView]:
    """Return the crossover points with TF-IDF of all tasks."""
    return [_crossover_view(table) for table in build_crossover_tables(analysis)]


def _crossover_view(table: CrossoverTable) -> CrossoverTableView:
    largest = table.label_counts[-1].train_examples
    lines = [
        CrossoverTableLine(
            system=format_system(line.system),
            cells=tuple(_crossover_cell(one) if one else None for one in line.comparisons),
            crossover=format_crossover(line, largest=largest),
        )
        for line in table.lines
    ]
    columns = tuple(
        format_label_count(one.label_count, train_examples=one.train_examples)
        for one in table.label_counts
    )
    return CrossoverTableView(table.task, columns, tuple(lines))


def _crossover_cell(comparison: Comparison) -> CrossoverCell:
    return CrossoverCell(format_comparison(comparison), format_verdict(comparison))


def format_crossover(line: CrossoverLine, *, largest: int) -> str:
    """Name the crossover point: `from 100 labels`; `at 30 labels, but not at more`; `none`.

    `largest` is the largest number of labels of the task.
    """
    if line.crossover is None:
        if not line.better_at:
            return "none"
        counts = join_with_and([str(count) for count in line.better_at])
        return f"at {counts} labels, but not at more"
    compared_everywhere = line.largest_compared == largest
    if line.crossover == line.largest_compared:
        word = "number" if compared_everywhere else "number compared"
        return f"at {line.crossover} labels, the largest {word}"
    if compared_everywhere:
        return f"from {line.crossover} labels"
    return f"from {line.crossover} to {line.largest_compared} labels, the largest number compared"


def build_group_tables(analysis: Analysis) -> list[GroupTable]:
    """Return the scores by group."""
    found = []
    for one in analysis.group_scores:
        lines = [GroupLine(g.group, g.num_examples, _group_cells(g)) for g in one.groups]
        found.append(
            GroupTable(
                task=one.task,
                labels=format_label_count(one.label_count, train_examples=one.train_examples),
                heading=metric_heading(one.metric),
                systems=tuple(format_system(system) for system in one.systems),
                lines=tuple(lines),
            )
        )
    return found


def _group_cells(group: GroupScore) -> tuple[GroupCell, ...]:
    """Format the scores of a group, and mark the best one if it is alone as shown."""
    texts = [format_percent(value) for value in group.values]
    known = [value for value in group.values if value is not None]
    best = None
    if len(known) > 1 and texts.count(format_percent(max(known))) == 1:
        best = group.values.index(max(known))
    return tuple(GroupCell(text, place == best) for place, text in enumerate(texts))


def build_clean_score_tables(analysis: Analysis) -> list[CleanScoreTable]:
    """Return the scores without contaminated items."""
    found = []
    for one in analysis.clean_scores:
        lines = [
            CleanScoreLine(
                format_system(score.system),
                format_percent(score.all_items),
                format_percent(score.clean_items),
            )
            for score in one.systems
        ]
        labels = format_label_count(one.label_count, train_examples=one.train_examples)
        heading = metric_heading(one.metric)
        found.append(CleanScoreTable(one.task, labels, heading, tuple(lines)))
    return found


def build_comparison_table(analysis: Analysis) -> list[ComparisonLine]:
    """Return every comparison."""
    return [_comparison_line(one) for one in analysis.comparisons]


def _comparison_line(comparison: Comparison) -> ComparisonLine:
    return ComparisonLine(
        comparison_type=comparison.comparison_type,
        task=comparison.task,
        label_count=comparison.label_count,
        first=format_system(comparison.first),
        second=format_system(comparison.second),
        interval=format_comparison(comparison),
        verdict=format_verdict(comparison),
        detectable=_format_detectable(comparison),
        num_examples=comparison.num_examples,
        repetitions=comparison.repetitions,
    )


def _format_detectable(comparison: Comparison) -> str:
    if comparison.verdict != "no significant difference" or comparison.detectable is None:
        return ""
    return format_percent(comparison.detectable)


def build_ablation_tables(analysis: Analysis) -> list[AblationTable]:
    """Return the ablations (`grid.ablation_of`) by setting."""
    train_examples = {one.setting: one.train_examples for one in analysis.scores}
    ablations = [one for one in analysis.comparisons if one.comparison_type == "ablation"]
    found = []
    for setting in dict.fromkeys(one.setting for one in ablations):
        labels = format_label_count(setting.label_count, train_examples=train_examples[setting])
        lines = [_comparison_line(one) for one in ablations if one.setting == setting]
        found.append(AblationTable(setting.task, labels, tuple(lines)))
    return found


def build_budget_table(analysis: Analysis) -> list[BudgetLine]:
    """Return the budget of each model."""
    return [
        BudgetLine(
            model=format_model(one.model),
            style=model_style(analysis, one.model),
            unmatched_reason=format_unmatched_reason(analysis, one.model),
            budget=one,
        )
        for one in analysis.budget
    ]


def build_ngram_table(analysis: Analysis) -> list[NgramLine]:
    """Return the models that can be compared with a 5-gram model."""
    return [
        NgramLine(
            model=format_model(one.model),
            style=model_style(analysis, one.model),
            bits_per_byte=format_bits(one.bits_per_byte),
            ngram_bits_per_byte=format_bits(one.ngram_bits_per_byte),
            minimal_pairs=_format_minimal_pairs(one),
            has_more_bits=one.has_more_bits,
            has_weak_pairs=one.learned_less and not one.has_more_bits,
        )
        for one in analysis.ngram_comparisons
    ]


def format_bits(value: float | None) -> str:
    """Format bits per byte: `1.934`."""
    return NO_VALUE if value is None else f"{value:.3f}"


def _format_minimal_pairs(comparison: NgramComparison) -> str:
    """Name the tasks by verdict: `better on blimp; not better on agreement`."""
    parts = []
    if comparison.better_tasks:
        parts.append(f"better on {join_with_and(comparison.better_tasks)}")
    if comparison.not_better_tasks:
        parts.append(f"not better on {join_with_and(comparison.not_better_tasks)}")
    return "; ".join(parts) or NO_VALUE


def build_adaptation_table(analysis: Analysis) -> list[AdaptationLine]:
    """Return the adaptations by task, in the order of the grid."""
    models = list(analysis.grid.models)
    effects = sorted(
        analysis.adaptation, key=lambda one: (one.task, models.index(one.model), one.metric)
    )
    return [
        AdaptationLine(
            model=format_model_name(analysis, one.model),
            style=model_style(analysis, one.model),
            loss=format_loss_name(one.metric),
            outcome=format_adaptation_outcome(one),
            improved=one.num_improved == one.num_pretrainings,
            loss_did_not_fall=loss_did_not_fall(one),
            effect=one,
        )
        for one in effects
    ]


def format_adaptation_outcome(effect: AdaptationEffect) -> str:
    """Tell whether a loss fell, or an accuracy rose; a dagger marks a loss that did not fall."""
    is_accuracy = effect.metric.endswith("_accuracy")
    verb = "rose" if is_accuracy else "fell"
    if effect.num_improved == effect.num_pretrainings:
        return verb
    dagger = "† " if loss_did_not_fall(effect) else ""
    if effect.num_improved:
        return f"{dagger}{verb} in {effect.num_improved} of {effect.num_pretrainings} pretrainings"
    return f"{dagger}did not {'rise' if is_accuracy else 'fall'}"


def build_failure_table(analysis: Analysis) -> list[FailureLine]:
    """Return the results without a value."""
    several = len(analysis.grid.pretrain_seeds) > 1
    found = []
    for one in analysis.failures:
        task = one.task if one.group == "all" else f"{one.task}, group {one.group}"
        seeds = _format_failed_seeds(one, several_pretrainings=several)
        found.append(FailureLine(task, format_system(one), seeds, one))
    return found


def _format_failed_seeds(failure: Failure, *, several_pretrainings: bool) -> str:
    """Name seeds: `0, 1, 2`; with several pretrainings `0, 1, 2 of pretraining 1`."""
    seeds = ", ".join(map(str, failure.finetune_seeds))
    if several_pretrainings and failure.pretrain_seeds:
        return f"{seeds or 'all'} of pretraining {', '.join(map(str, failure.pretrain_seeds))}"
    return seeds


def build_model_descriptions(
    descriptions: Sequence[Mapping[str, str]], budget: Sequence[PretrainingBudget]
) -> list[dict[str, str]]:
    """Return the descriptions of the models with their training cost per byte of text."""
    budgets = {one.model: one for one in budget}
    return [
        {**description, "cost": format_training_cost(budgets.get(description["model"]))}
        for description in descriptions
    ]


def format_training_cost(budget: PretrainingBudget | None) -> str:
    """Format FLOPs per byte of text: `775 k FLOPs a byte`; `n/a` if FLOPs are not counted."""
    if budget is None or budget.train_flops is None or not budget.text_bytes:
        return "n/a"
    return f"{format_si(budget.train_flops / budget.text_bytes)} FLOPs a byte"


def build_benchmark_tables(analysis: Analysis) -> list[BenchmarkTable]:
    """Return a table per task that names a benchmark."""
    return [
        BenchmarkTable(
            task=one.task,
            benchmark=one.benchmark,
            has_our_score=one.ours is not None,
            lines=tuple(build_benchmark_lines(one, split=analysis.split)),
        )
        for one in analysis.published_benchmarks
    ]


def build_benchmark_lines(score: BenchmarkScore, *, split: str) -> list[BenchmarkLine]:
    """Return our line or lines, then the published ones; none on another split than the papers'.

    Ours has every metric of the papers that we measure, or else our ranking metric.
    """
    if not score.official_split:
        return []
    published = [
        one
        for one in read_published_results()
        if (one.task, one.split) == (score.benchmark, score.official_split)
    ]
    lines = []
    if score.ours is not None:
        names = dict.fromkeys(one.metric for one in published)
        metrics = [PUBLISHED_METRICS[name] for name in names]
        lines += _our_benchmark_lines(score.ours, metrics, split=split)
    for one in published:
        lines.append(
            BenchmarkLine(
                is_ours=False,
                system=one.system,
                value=one.value,
                metric=PUBLISHED_METRICS[one.metric].description,
                split=one.split,
                train_examples=f"{one.training_examples:,}",
                source=one.source,
                note=one.note,
            )
        )
    return lines


def _our_benchmark_lines(
    ours: OurBenchmarkScore, metrics: Sequence[PublishedMetric], *, split: str
) -> list[BenchmarkLine]:
    shared = [metric for metric in metrics if metric.our_metric in ours.values]
    if not shared:
        scale = 100 / RANKING_METRICS[ours.metric]
        shared = [PublishedMetric(metric_heading(ours.metric), ours.metric, scale=scale)]
    return [
        BenchmarkLine(
            is_ours=True,
            system=format_system(ours.system),
            value=f"{metric.offset + metric.scale * ours.values[metric.our_metric]:.1f}",
            metric=metric.description,
            split=f"{split}, {ours.num_examples:,} items",
            train_examples=f"{ours.train_examples:,}",
            source="this report",
            note="",
        )
        for metric in shared
    ]


def build_disagreement_tables(found: Sequence[Disagreements]) -> list[DisagreementTable]:
    """Return the items on which the best two systems disagree."""
    return [
        DisagreementTable(
            task=one.task,
            systems=tuple(format_system(system) for system in one.systems),
            lines=tuple(_disagreement_line(item) for item in one.items),
        )
        for one in found
    ]


def _disagreement_line(item: DisagreementItem) -> DisagreementLine:
    predictions = tuple(
        f"{one.prediction} ({format_percent(one.accuracy)} % correct)" for one in item.predictions
    )
    return DisagreementLine(item.id, item.label, predictions, item.text)
