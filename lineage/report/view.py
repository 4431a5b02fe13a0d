"""The analysis -> the content of both pages and of the terminal, so that they cannot disagree.

This file has the task tables and the charts, `decisions` the first screen, and `tables` the rest.
"""

import math
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from lineage.analysis.cells import INIT_ORDER, split_test_set
from lineage.analysis.convergence import FinetuneCurve
from lineage.analysis.records import (
    BASELINES,
    AdaptationEffect,
    Analysis,
    Comparison,
    SeedProblem,
    Setting,
    System,
    SystemScore,
)
from lineage.analysis.settings import (
    baseline_is_near_chance,
    find_collapsed_runs,
    fine_tuned_scores,
)
from lineage.report import figures
from lineage.report.figures import LineSeries, ReferenceLine
from lineage.report.formatting import (
    CONTINUED_ON_CORPUS,
    INIT_NAMES,
    NOT_BUDGET_MATCHED,
    TRANSFER_NAMES,
    format_comparison,
    format_difference,
    format_head,
    format_kind,
    format_label_count,
    format_percent,
    format_system,
    metric_heading,
    metric_unit,
    plural,
)
from lineage.report.tasks import describe_task_data, format_folds

WORDS_PATTERN = re.compile(r"\bwords\b,?")
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
MAX_NAMES_IN_TITLE = 4  # of a chart; more have no room, and the legend names them


@dataclass(frozen=True)
class Style:
    """The colour and the marker of a model, the same in every figure."""

    color: str
    marker: str


@dataclass(frozen=True)
class LegendEntry:
    """A model of the legend."""

    name: str
    style: Style
    budget_matched: bool


@dataclass(frozen=True)
class BaselineDifference:
    """The difference of a score from its baseline: random init, or before adaptation."""

    difference: str
    verdict: str
    interval: str
    near_chance: bool


@dataclass(frozen=True)
class TableCell:
    """One score of a task table."""

    value: float | None
    mean: str
    low: str
    high: str
    seeds: tuple[str, ...]
    problems: tuple[SeedProblem, ...]
    lost_seeds: str
    strip: str  # SVG
    vs_baseline: BaselineDifference | None
    is_recommended: bool


@dataclass(frozen=True)
class TableLine:
    """One system of a task table, with a cell for each label count."""

    model: str
    init: str
    is_baseline: bool
    unmatched_reason: str
    usage: str  # init, transfer and head
    recipe: str
    text: str  # the whole system
    style: Style
    cells: tuple[TableCell | None, ...]


@dataclass(frozen=True)
class TableColumn:
    """One label count of a task table."""

    labels: str
    axis: str  # SVG


@dataclass(frozen=True)
class TaskTable:
    """All scores of a task."""

    name: str
    kind: str
    heading: str
    unit: str
    num_examples: int
    num_groups: int  # which intervals are over; 0 if they are over items
    folds: str
    columns: tuple[TableColumn, ...]
    lines: tuple[TableLine, ...]
    notes: tuple[str, ...]
    ceilings: tuple[tuple[str, str], ...]  # features and score
    convergence: tuple[str, ...]  # what did not converge, in sentences
    finetune_curves: tuple[str, ...]  # SVG


def model_style(analysis: Analysis, model: str) -> Style:
    """Return the colour and the marker of a model."""
    names = analysis.model_names
    if model not in names:
        return Style(figures.MUTED_COLOR, "circle")
    place = names.index(model)
    return Style(figures.palette_color(place), figures.marker_shape(place))


def format_unmatched_reason(analysis: Analysis, model: str) -> str:
    """Tell why a model is not budget-matched: `two budgets: there and back`; empty if it is."""
    if model in analysis.public_models:
        has_read_corpus = any(one.model == model and one.text_bytes for one in analysis.budget)
        return CONTINUED_ON_CORPUS if has_read_corpus else NOT_BUDGET_MATCHED
    if model in analysis.grid.ensembles:
        return f"two budgets: {' and '.join(analysis.grid.ensembles[model])}"
    if model in analysis.grid.two_budget_systems:  # its name tells whose budgets
        return "two budgets"
    return ""


def format_model_name(analysis: Analysis, model: str) -> str:
    """Name a model, and why it is not budget-matched: `roberta (not budget-matched)`."""
    reason = format_unmatched_reason(analysis, model)
    return f"{model} ({reason})" if reason else model


def build_legend(analysis: Analysis) -> list[LegendEntry]:
    """Return the models and their styles."""
    return [
        LegendEntry(
            name=format_model_name(analysis, model),
            style=model_style(analysis, model),
            budget_matched=model not in analysis.public_models,
        )
        for model in analysis.grid.models
    ]


def build_task_tables(analysis: Analysis, recommended: Mapping[Setting, System]) -> list[TaskTable]:
    """Return one table per task with a score: a line per system, a column per label count."""
    baselines = _baseline_comparisons(analysis)
    tasks = dict.fromkeys(one.task for one in analysis.scores if one.mean is not None)
    return [_TaskTableBuilder(analysis, task, recommended, baselines).build() for task in tasks]


def _baseline_comparisons(analysis: Analysis) -> dict[tuple[System, Setting], Comparison]:
    """Return the comparison with the baseline: random init, or the model before adaptation."""
    found: dict[tuple[System, Setting], Comparison] = {}
    for one in analysis.comparisons:
        if one.comparison_type in ("pretraining", "adaptation"):
            found.setdefault((one.first, one.setting), one)
    return found


class _TaskTableBuilder:
    """Builds the table of one task."""

    def __init__(
        self,
        analysis: Analysis,
        task: str,
        recommended: Mapping[Setting, System],
        baselines: Mapping[tuple[System, Setting], Comparison],
    ) -> None:
        self.analysis = analysis
        self.task = task
        self.recommended = recommended
        self.baselines = baselines
        self.scores = analysis.scores_of_task(task)
        self.metric = self.scores[0].metric
        self.ceilings = [
            ReferenceLine(one.value, "ceiling", one.features)
            for one in sorted(analysis.ceilings, key=lambda one: one.value)
            if one.task == task
        ]
        self.references = self._references()
        self.scale = figures.fit_strip_scale(self._shown_values())

    def build(self) -> TaskTable:
        """Return the table."""
        num_examples = max(one.num_examples for one in self.scores)
        num_clusters = max(one.num_clusters for one in self.scores)
        has_clusters = 0 < num_clusters < num_examples
        return TaskTable(
            name=self.task,
            kind=format_kind(self.scores[0].kind),
            heading=metric_heading(self.metric),
            unit=metric_unit(self.metric),
            num_examples=num_examples,
            num_groups=num_clusters if has_clusters else 0,
            folds=format_folds(self.analysis, self.task),
            columns=tuple(self._column(count) for count in self.references),
            lines=tuple(sorted(self._lines(), key=self._line_order)),
            notes=tuple(describe_task_data(self.analysis, self.task)),
            ceilings=tuple((one.name, format_percent(one.value)) for one in self.ceilings),
            convergence=(
                *describe_convergence(self.analysis, self.task),
                *describe_collapsed_runs(self.analysis, self.task),
            ),
            finetune_curves=tuple(draw_finetune_curves(self.analysis, self.task)),
        )

    def _references(self) -> dict[str, list[ReferenceLine]]:
        """Return the ceilings and the baselines by label count."""
        found = {one.label_count: list(self.ceilings) for one in self.scores}
        for one in self.scores:
            family = one.system.family
            if family in BASELINES and one.mean is not None:
                found[one.label_count].append(ReferenceLine(one.mean, family, family))
        return found

    def _shown_values(self) -> list[float]:
        values = [line.value for line in self.ceilings]
        for one in self.scores:
            seeds = [seed.value for seed in one.seeds]
            known = [v for v in (one.mean, one.ci_low, one.ci_high) if v is not None]
            values += [*known, *seeds]
        return values

    def _column(self, label_count: str) -> TableColumn:
        own = [one.train_examples for one in self.scores if one.label_count == label_count]
        axis = figures.draw_strip_axis(
            self.scale, references=self.references[label_count], unit=metric_heading(self.metric)
        )
        return TableColumn(format_label_count(label_count, train_examples=max(own)), axis)

    def _lines(self) -> list[TableLine]:
        by_system: dict[tuple[str, ...], dict[str, SystemScore]] = {}
        for one in self.scores:
            system = one.system
            key = (*system.line_key, system.features, system.recipe)
            by_system.setdefault(key, {})[one.label_count] = one
        lines = []
        for own in by_system.values():
            cells = [self._cell(own[n]) if n in own else None for n in self.references]
            first = next(iter(own.values()))
            lines.append(_table_line(self.analysis, first, tuple(cells)))
        return lines

    def _line_order(self, line: TableLine) -> tuple[int, int]:
        names = [*self.analysis.model_names, *BASELINES]
        place = names.index(line.model) if line.model in names else len(names)
        return place, INIT_ORDER.index(line.init)

    def _cell(self, score: SystemScore) -> TableCell:
        return TableCell(
            value=score.mean,
            mean=format_percent(score.mean),
            low=format_percent(score.ci_low),
            high=format_percent(score.ci_high),
            seeds=tuple(format_percent(seed.value) for seed in score.seeds),
            problems=score.problems,
            lost_seeds=_format_lost_seeds(score.problems),
            strip=self._strip(score),
            vs_baseline=self._vs_baseline(score),
            is_recommended=self.recommended.get(score.setting) == score.system,
        )

    def _strip(self, score: SystemScore) -> str:
        if score.mean is None:
            return ""
        interval = None
        if score.ci_low is not None and score.ci_high is not None:
            interval = (score.ci_low, score.ci_high)
        style = model_style(self.analysis, score.system.model)
        seeds = ", ".join(format_percent(seed.value) for seed in score.seeds)
        title = (
            f"{format_system(score.system)}: {format_percent(score.mean)} "
            f"{metric_unit(score.metric)} ({format_percent(score.ci_low)} to "
            f"{format_percent(score.ci_high)}); seeds {seeds}"
        )
        return figures.draw_strip_plot(
            self.scale,
            dots=[seed.value for seed in score.seeds],
            mean=score.mean,
            interval=interval,
            references=self.references[score.label_count],
            color=style.color,
            marker=style.marker,
            hollow=score.system.init == "random",
            title=title,
        )

    def _vs_baseline(self, score: SystemScore) -> BaselineDifference | None:
        comparison = self.baselines.get((score.system, score.setting))
        if comparison is None:
            return None
        return BaselineDifference(
            difference=format_difference(comparison.difference),
            verdict=comparison.verdict,
            interval=format_comparison(comparison),
            near_chance=baseline_is_near_chance(self.analysis, comparison),
        )


def _table_line(
    analysis: Analysis, score: SystemScore, cells: tuple[TableCell | None, ...]
) -> TableLine:
    system = score.system
    return TableLine(
        model=system.model,
        init=system.init,
        is_baseline=system.init == "none",
        unmatched_reason=format_unmatched_reason(analysis, system.model),
        usage=format_usage(analysis, score),
        recipe="" if system.recipe == "none" else system.recipe.replace("+", " + "),
        text=format_system(system),
        style=model_style(analysis, system.model),
        cells=cells,
    )


def format_usage(analysis: Analysis, score: SystemScore) -> str:
    """Tell how a system uses its model: `adapted, fine-tuned`.

    A dagger marks an adaptation that did not lower its loss.
    """
    system = score.system
    parts = []
    if system.init in INIT_NAMES:
        task, _ = split_test_set(score.task)
        effects = [one for one in analysis.adaptation if one.model == system.model]
        failed = any(loss_did_not_fall(one) for one in effects if one.task == task)
        dagger = " †" if system.init == "adapted" and failed else ""
        parts.append(INIT_NAMES[system.init] + dagger)
    if system.transfer in TRANSFER_NAMES:
        parts.append(TRANSFER_NAMES[system.transfer] + format_head(system.head))
    return ", ".join(parts)


def loss_did_not_fall(effect: AdaptationEffect) -> bool:
    """Return whether the language model's loss did not fall in every pretraining seed.

    Next-sentence prediction is another matter.
    """
    return effect.num_improved < effect.num_pretrainings and not effect.metric.startswith(
        "next_sentence_"
    )


def _format_lost_seeds(problems: Sequence[SeedProblem]) -> str:
    """Count the repetitions without a score: `1 seed failed`, `2 seeds not applicable`."""
    lost = {(one.pretrain_seed, one.finetune_seed, one.status) for one in problems}
    counts = Counter(status for *_, status in lost)
    parts = [
        f"{plural(count, 'seed')} {status.replace('_', ' ')}"
        for status, count in sorted(counts.items())
    ]
    return ", ".join(parts)


def draw_label_curves(analysis: Analysis) -> list[str]:
    """Draw score over number of labels, if there are several: a chart per task and method."""
    found = []
    for task in dict.fromkeys(one.task for one in analysis.scores):
        scores = [
            one
            for one in analysis.scores_of_task(task)
            if one.mean is not None and one.label_count != "none"
        ]
        if len({one.train_examples for one in scores}) < 2:
            continue
        pretrained = [one for one in scores if one.system.init == "pretrained"]
        for transfer, head in sorted({(c.system.transfer, c.system.head) for c in pretrained}):
            own = [
                one
                for one in pretrained
                if (one.system.transfer, one.system.head) == (transfer, head)
            ]
            title = f"{task}, {TRANSFER_NAMES[transfer]}{format_head(head)}"
            found.append(_draw_label_chart(analysis, scores, own, title=title))
    return found


def _draw_label_chart(
    analysis: Analysis, scores: Sequence[SystemScore], own: Sequence[SystemScore], *, title: str
) -> str:
    """Draw the curves of `own`, and that of TF-IDF among `scores`."""
    series = []
    for model in analysis.grid.models:
        of_model = [one for one in own if one.system.model == model]
        series.append(_label_curve(analysis, of_model, name=model))
    tfidf = [one for one in scores if one.system.family == "tfidf"]
    series.append(_label_curve(analysis, tfidf, name="tfidf", hollow=True))
    return figures.draw_line_chart(
        [one for one in series if one.x],
        title=title,
        x_label="training labels (log)",
        y_label=metric_heading(scores[0].metric),
        log_x=True,
        percent=True,
    )


def _label_curve(
    analysis: Analysis, scores: Sequence[SystemScore], *, name: str, hollow: bool = False
) -> LineSeries:
    style = model_style(analysis, name)
    scores = sorted(scores, key=lambda one: one.train_examples)
    lows = [one.ci_low for one in scores if one.ci_low is not None]
    highs = [one.ci_high for one in scores if one.ci_high is not None]
    has_band = not hollow and len(lows) == len(scores)
    return LineSeries(
        name,
        style.color,
        [one.train_examples for one in scores],
        [one.mean or 0.0 for one in scores],
        lows if has_band else (),
        highs if has_band else (),
        hollow=hollow,
        marker=style.marker,
    )


def describe_convergence(analysis: Analysis, task: str) -> Iterator[str]:
    """Tell where a bag of words learned less than logistic regression on the same words."""
    for control in analysis.convergence_controls:
        if control.task == task and not control.has_converged:
            unit = metric_unit(control.metric)
            labels = format_label_count(control.label_count)
            yield (
                f"Fine-tuning did not converge here with {labels}, or it overfits: {control.model} "
                f"with random init has {format_percent(control.fine_tuned)} {unit}, and logistic "
                f"regression on the same tokens {format_percent(control.unigrams)}. Look at the "
                "learning curves before you trust fine-tuned scores. If the training loss still "
                "falls, try more steps or other learning rates; if it is near zero, add labels."
            )


def describe_collapsed_runs(analysis: Analysis, task: str) -> Iterator[str]:
    """Tell which fine-tuned runs are at chance while other seeds of the same system are not."""
    collapsed = find_collapsed_runs(analysis, task)
    if not collapsed:
        return
    num_runs = sum(len(score.seeds) for score in fine_tuned_scores(analysis, task))
    named = []
    for one in collapsed:
        seeds = f"fine-tuning seed {one.run.finetune_seed}"
        if len(analysis.grid.pretrain_seeds) > 1:
            seeds += f", pretraining seed {one.run.pretrain_seed}"
        named.append(
            f"{format_system(one.system)}, {format_label_count(one.setting.label_count)}, {seeds} "
            f"({format_percent(one.run.value)}, the others {format_percent(one.siblings_mean)})"
        )
    yield (
        f"{len(collapsed)} of {num_runs} fine-tuned runs collapsed: at chance, unlike other seeds of "
        f"the same system. {'; '.join(named)}. Their means and intervals say little."
    )


def draw_finetune_curves(analysis: Analysis, task: str) -> list[str]:
    """Draw the training loss and the validation score of a task's fine-tuned models by epoch."""
    curves = [one for one in analysis.finetune_curves if one.task == task]
    if not curves:
        return []
    charts = (
        ("training", "loss", "train_loss"),
        ("validation", metric_heading(curves[0].metric), "validation_score"),
    )
    drawn = []
    for title, y_label, field in charts:
        series = [_finetune_series(analysis, curve, field) for curve in curves]
        measured = [one for one in series if one.x]
        if measured:
            drawn.append(
                figures.draw_line_chart(
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
    finite = [(epoch, value) for epoch, value in points if math.isfinite(value)]
    return LineSeries(
        curve.model,
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
        title = ", ".join(models)
        if len(models) > MAX_NAMES_IN_TITLE:
            title = f"{len(models)} models"
        found.append(
            figures.draw_line_chart(
                series, title=title, x_label="text read, MB", y_label=format_loss_name(metric)
            )
        )
    return found


def format_loss_name(metric: str) -> str:
    """Name a loss, with the unit it counts."""
    return LOSS_NAMES.get(metric, metric.replace("_", " "))
