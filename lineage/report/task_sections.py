"""The section of each task: all systems with their scores, and what went wrong."""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from lineage.analysis.cells import INIT_ORDER, split_test_set
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
    chance_level,
    comparison_outcome,
    find_collapsed_runs,
    fine_tuned_scores,
)
from lineage.report import figures
from lineage.report.curves import draw_finetune_curves
from lineage.report.figures import LinearScale
from lineage.report.formatting import (
    INIT_NAMES,
    TRANSFER_NAMES,
    format_comparison,
    format_difference,
    format_head,
    format_kind,
    format_label_count,
    format_model,
    format_percent,
    format_system,
    format_verdict,
    metric_heading,
    metric_unit,
    plural,
)
from lineage.report.styles import Style, format_unmatched_reason, model_style
from lineage.report.tasks import describe_task_data, format_folds
from lineage.tasks.base import load_kind


@dataclass(frozen=True)
class BaselineDifference:
    """The difference of a score from its baseline: random init, or before adaptation."""

    difference: str
    verdict: str
    text: str  # the verdict in words
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
    vs_baseline: BaselineDifference | None
    is_recommended: bool


@dataclass(frozen=True)
class TableLine:
    """One system of a task table, with a cell for each label count."""

    model: str
    name: str  # of the model
    init: str
    unmatched_reason: str
    usage: str  # init, transfer and head
    recipe: str
    text: str  # the whole system
    style: Style
    cells: tuple[TableCell | None, ...]
    strip: str  # SVG: the score at the most labels, with its interval; empty without one


@dataclass(frozen=True)
class TableColumn:
    """One label count of a task table."""

    labels: str
    short: str  # the number alone


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
    columns: tuple[TableColumn, ...]  # the most labels last
    axis: str  # SVG, of the strips
    lines: tuple[TableLine, ...]
    notes: tuple[str, ...]
    ceilings: tuple[tuple[str, str], ...]  # features and score
    convergence: tuple[str, ...]  # what did not converge, in sentences
    finetune_curves: tuple[str, ...]  # SVG


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
            (one.features, format_percent(one.value))
            for one in sorted(analysis.ceilings, key=lambda one: one.value)
            if one.task == task
        ]
        train_examples: dict[str, int] = {}
        for one in self.scores:
            known = train_examples.get(one.label_count, 0)
            train_examples[one.label_count] = max(known, one.train_examples)
        # The label counts in the order of their numbers of training items.
        self.train_examples = dict(sorted(train_examples.items(), key=lambda pair: pair[1]))
        self.largest = [*self.train_examples][-1]
        self.scale = self._fit_scale()

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
            columns=tuple(self._column(count) for count in self.train_examples),
            axis=figures.draw_strip_axis(self.scale, unit=metric_heading(self.metric)),
            lines=tuple(self._lines()),
            notes=tuple(describe_task_data(self.analysis, self.task)),
            ceilings=tuple(self.ceilings),
            convergence=(
                *describe_convergence(self.analysis, self.task),
                *describe_collapsed_runs(self.analysis, self.task),
            ),
            finetune_curves=tuple(draw_finetune_curves(self.analysis, self.task)),
        )

    def _fit_scale(self) -> LinearScale:
        """Return the scale of the strips, from the scores at the most labels."""
        values = []
        for one in self.scores:
            if one.label_count == self.largest:
                known = (one.mean, one.ci_low, one.ci_high)
                values += [value for value in known if value is not None]
        return figures.fit_strip_scale(values or [0.0, 1.0])

    def _column(self, label_count: str) -> TableColumn:
        train_examples = self.train_examples[label_count]
        short = f"{train_examples:,}" if label_count == "all" else label_count
        return TableColumn(
            format_label_count(label_count, train_examples=train_examples),
            "score" if label_count == "none" else short,
        )

    def _lines(self) -> list[TableLine]:
        by_system: dict[tuple[str, ...], dict[str, SystemScore]] = {}
        for one in self.scores:
            system = one.system
            key = (*system.line_key, system.features, system.recipe)
            by_system.setdefault(key, {})[one.label_count] = one
        ordered = sorted(by_system.values(), key=self._line_order)
        return [self._line(own) for own in ordered]

    def _line_order(self, own: Mapping[str, SystemScore]) -> tuple[int, float, int, int]:
        """Sort by the most labels that a system was run with, and then by its score with them."""
        label_counts = [*reversed(self.train_examples)]
        most = next(place for place, count in enumerate(label_counts) if count in own)
        score = own[label_counts[most]]
        system = score.system
        names = [*self.analysis.model_names, *BASELINES]
        place = names.index(system.model) if system.model in names else len(names)
        mean = score.mean if score.mean is not None else -2.0
        return most, -mean, place, INIT_ORDER.index(system.init)

    def _line(self, own: Mapping[str, SystemScore]) -> TableLine:
        cells = [self._cell(own[n]) if n in own else None for n in self.train_examples]
        score = next(iter(own.values()))
        system = score.system
        return TableLine(
            model=system.model,
            name=self._name(system.model),
            init=system.init,
            unmatched_reason=format_unmatched_reason(self.analysis, system.model),
            usage=format_usage(self.analysis, score),
            recipe="" if system.recipe == "none" else system.recipe.replace("+", " + "),
            text=format_system(system),
            style=model_style(self.analysis, system.model),
            cells=tuple(cells),
            strip=self._strip(own[self.largest]) if self.largest in own else "",
        )

    def _name(self, model: str) -> str:
        """Name a model, or the simplest answer to tasks that have no classes."""
        answer = load_kind(self.scores[0].kind).answer
        if model == "majority" and answer.majority_name:
            return answer.majority_name
        return format_model(model)

    def _cell(self, score: SystemScore) -> TableCell:
        return TableCell(
            value=score.mean,
            mean=format_percent(score.mean),
            low=format_percent(score.ci_low),
            high=format_percent(score.ci_high),
            seeds=tuple(format_percent(seed.value) for seed in score.seeds),
            problems=score.problems,
            lost_seeds=_format_lost_seeds(score.problems),
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
        return figures.draw_strip(
            self.scale,
            value=score.mean,
            interval=interval,
            reference=self._tfidf_mean(),
            chance=chance_level(self.analysis, score.setting),
            color=style.color,
            marker=style.marker,
            faint=score.system.init == "random",
        )

    def _tfidf_mean(self) -> float | None:
        for one in self.scores:
            if one.system.family == "tfidf" and one.label_count == self.largest:
                return one.mean
        return None

    def _vs_baseline(self, score: SystemScore) -> BaselineDifference | None:
        comparison = self.baselines.get((score.system, score.setting))
        if comparison is None:
            return None
        outcome = comparison_outcome(self.analysis, comparison)
        is_at_chance = outcome == "both at chance"
        return BaselineDifference(
            difference=format_difference(comparison.difference),
            verdict=outcome,
            text=outcome if is_at_chance else format_verdict(comparison),
            interval=format_comparison(comparison),
            near_chance=baseline_is_near_chance(self.analysis, comparison),
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
