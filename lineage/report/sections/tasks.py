"""A part for each task: all systems with their scores, and what went wrong."""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from lineage.analysis.cells import INIT_ORDER, split_test_set
from lineage.analysis.convergence import FinetuneCurve
from lineage.analysis.decision import Decision
from lineage.analysis.records import (
    BASELINES,
    Analysis,
    Comparison,
    SeedProblem,
    Setting,
    System,
    SystemScore,
)
from lineage.analysis.settings import baseline_is_near_chance, chance_level, comparison_outcome
from lineage.report import charts, figures
from lineage.report.answers import list_answer_figures
from lineage.report.decisions import describe_decision, find_largest_decisions
from lineage.report.figures import LinearScale, LineSeries
from lineage.report.formatting import (
    INIT_NAMES,
    NO_VALUE,
    TRANSFER_NAMES,
    css_class,
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
from lineage.report.notes import format_notes
from lineage.report.section import (
    Block,
    Cell,
    Cells,
    Column,
    Columns,
    Figures,
    Paragraph,
    Piece,
    ReportData,
    Row,
    Section,
    Table,
    small,
)
from lineage.report.sections.disagreements import fold_disagreements
from lineage.report.sections.group_scores import fold_group_scores
from lineage.report.styles import format_unmatched_reason, loss_did_not_fall, model_style
from lineage.report.task_notes import (
    describe_collapsed_runs,
    describe_convergence,
    describe_task_data,
    format_folds,
)
from lineage.tasks.base import load_kind

FEATURE_NAMES = {
    "static": "without order or context",
    "left": "with left context",
    "both": "with both sides",
}
TABLE_NOTE = (
    "The line in the strips is TF-IDF, the dotted one chance. A difference from the baseline "
    "without a word is not significant. Baseline: for a pretrained model the same network with "
    "random init, for an adapted one the same model before adaptation. °: a gain over a baseline "
    "that is not shown to be above chance, or hardly is. Underlined: the system to use. Validation "
    "chooses among the systems of a model, so another one may score higher here."
)
BLEU_NOTE = (
    "TF-IDF: the translation of the nearest training source. BLEU by sacrebleu; its signature is in "
    "each row's reason."
)


@dataclass(frozen=True)
class SystemLine:
    """The scores of one system, by label count."""

    scores: Mapping[str, SystemScore]

    @property
    def first(self) -> SystemScore:
        """Return any of the scores."""
        return next(iter(self.scores.values()))

    @property
    def system(self) -> System:
        """Return the system."""
        return self.first.system


@dataclass(frozen=True)
class TaskScores:
    """All scores of a task, and what its tables need to know."""

    analysis: Analysis
    task: str
    recommended: Mapping[Setting, System]
    # The comparison with random init, or with the model before adaptation.
    baselines: Mapping[tuple[System, Setting], Comparison]

    @cached_property
    def scores(self) -> list[SystemScore]:
        """Return the scores of all systems at all label counts."""
        return self.analysis.scores_of_task(self.task)

    @property
    def metric(self) -> str:
        """Return the metric that systems are ranked by."""
        return self.scores[0].metric

    @cached_property
    def train_examples(self) -> dict[str, int]:
        """Return the label counts in the order of their numbers of training items."""
        found: dict[str, int] = {}
        for one in self.scores:
            found[one.label_count] = max(found.get(one.label_count, 0), one.train_examples)
        return dict(sorted(found.items(), key=lambda pair: pair[1]))

    @property
    def largest(self) -> str:
        """Return the label count with the most training items."""
        return [*self.train_examples][-1]

    @cached_property
    def lines(self) -> list[SystemLine]:
        """Return the systems: those with the most labels first, and the best of them first."""
        by_system: dict[tuple[str, ...], dict[str, SystemScore]] = {}
        for one in self.scores:
            system = one.system
            key = (*system.line_key, system.features, system.recipe)
            by_system.setdefault(key, {})[one.label_count] = one
        return [SystemLine(own) for own in sorted(by_system.values(), key=self._line_order)]

    def _line_order(self, own: Mapping[str, SystemScore]) -> tuple[int, float, int, int]:
        """Sort by the most labels that a system was run with, and then by its score with them."""
        label_counts = [*reversed(self.train_examples)]
        most = next(place for place, count in enumerate(label_counts) if count in own)
        score = own[label_counts[most]]
        place = _model_place(self.analysis, score.system.model)
        mean = score.mean if score.mean is not None else -2.0
        return most, -mean, place, INIT_ORDER.index(score.system.init)

    def format_labels(self, label_count: str) -> str:
        """Name a label count: `all 600 labels`."""
        return format_label_count(label_count, train_examples=self.train_examples[label_count])

    def is_recommended(self, score: SystemScore) -> bool:
        """Return whether a system is the one to use in its setting."""
        return self.recommended.get(score.setting) == score.system


def build(report: ReportData) -> Section:
    """Return a part for each task with a score."""
    parts: list[Section] = []
    for scores in list_task_scores(report.analysis, report.decisions):
        parts.append(build_task_section(report, scores, is_first=not parts))
    return Section(blocks=parts, anchor="task-by-task", link="Tasks")


def list_task_scores(analysis: Analysis, decisions: Sequence[Decision]) -> list[TaskScores]:
    """Return the scores of each task that has any."""
    recommended = {
        one.setting: one.use.standing.system for one in decisions if one.use.standing.above_chance
    }
    baselines: dict[tuple[System, Setting], Comparison] = {}
    for one in analysis.comparisons:
        if one.comparison_type in ("pretraining", "adaptation"):
            baselines.setdefault((one.first, one.setting), one)
    tasks = dict.fromkeys(one.task for one in analysis.scores if one.mean is not None)
    return [TaskScores(analysis, task, recommended, baselines) for task in tasks]


def build_task_section(report: ReportData, scores: TaskScores, *, is_first: bool) -> Section:
    """Return the tables and figures of a task, with notes."""
    task = scores.task
    blocks: list[Block] = [build_score_table(report, scores)]
    if is_first:
        blocks.append(Paragraph(TABLE_NOTE, "note", only="html"))
    blocks += [build_label_count_table(scores, count) for count in scores.train_examples]
    decision = find_largest_decisions(report.decisions).get(task)
    answers = list_answer_figures(report.analysis, decision) if decision is not None else []
    if answers:
        blocks.append(Figures(answers, caption_below=True, only="html"))
    blocks += fold_group_scores(report.analysis, task)
    blocks += fold_disagreements(report.disagreements, task)
    curves = draw_finetune_curves(report.analysis, task)
    if curves:
        title = "Learning curves of fine-tuning, first seed, most labels; dashed: random init"
        blocks.append(Section(title, [Figures(curves)], is_folded=True, only="html"))
    sentences = [Paragraph(one.caption, only="markdown") for one in answers]
    aside = [*_list_notes(scores, decision), *sentences]
    return Section(task, blocks, aside=aside, css="task")


def _list_notes(scores: TaskScores, decision: Decision | None) -> Iterator[Paragraph]:
    analysis = scores.analysis
    task = scores.task
    yield Paragraph(describe_items(scores), "muted")
    if decision is not None:
        yield Paragraph(describe_decision(decision), only="html")
    for text in describe_convergence(analysis, task):
        yield Paragraph(text, "worse")
    for text in describe_collapsed_runs(analysis, task):
        yield Paragraph(text, "worse")
    ceilings = [
        f"{FEATURE_NAMES[one.features]} {format_percent(one.value)} {metric_unit(scores.metric)}"
        for one in sorted(analysis.ceilings, key=lambda one: one.value)
        if one.task == task
    ]
    if ceilings:
        yield Paragraph(f"The best possible here: {', '.join(ceilings)}.", "note")
    for text in describe_task_data(analysis, task):
        yield Paragraph(text, "note")
    if scores.metric == "bleu":
        yield Paragraph(BLEU_NOTE, "note")


def describe_items(scores: TaskScores) -> str:
    """Tell what is scored: `word sense, 400 test items in 40 groups; intervals are over groups`."""
    num_examples = max(one.num_examples for one in scores.scores)
    num_clusters = max(one.num_clusters for one in scores.scores)
    text = f"{format_kind(scores.scores[0].kind)}, {num_examples:,} {scores.analysis.split} items"
    if 0 < num_clusters < num_examples:
        text += f" in {num_clusters} groups; intervals are over groups"
    if folds := format_folds(scores.analysis, scores.task):
        text += f"; scored by {folds}"
    return text


def build_score_table(report: ReportData, scores: TaskScores) -> Table:
    """Return a line for each system with its mean at each label count, and a strip."""
    scale = _fit_scale(scores)
    heading = metric_heading(scores.metric)
    counts = [*scores.train_examples]
    labels = "" if scores.largest == "none" else " with labels"
    group_columns: Columns = [
        "",
        Column(f"{heading}{labels}", "n", span=len(counts)),
        Column(f"{report.confidence} interval", "interval"),
        Column(css="strip", svg=figures.draw_strip_axis(scale, unit=heading)),
        "vs baseline",
    ]
    columns: Columns = [
        "system",
        *(Column(_short_labels(scores, count), "n") for count in counts),
        Column(scores.format_labels(scores.largest), "interval"),
        Column(css="strip"),
        "",
    ]
    has_random = any(line.system.init == "random" for line in scores.lines)
    return Table(
        columns,
        [_score_row(scores, line, scale) for line in scores.lines],
        css="main",
        is_wide=True,
        option="show random-init baselines" if has_random else "",
        group_columns=group_columns,
        only="html",
    )


def _short_labels(scores: TaskScores, label_count: str) -> str:
    """Return the number of labels alone."""
    if label_count == "none":
        return "score"
    return f"{scores.train_examples[label_count]:,}" if label_count == "all" else label_count


def _fit_scale(scores: TaskScores) -> LinearScale:
    """Return the scale of the strips, from the scores at the most labels."""
    values = []
    for one in scores.scores:
        if one.label_count == scores.largest:
            known = (one.mean, one.ci_low, one.ci_high)
            values += [value for value in known if value is not None]
    return figures.fit_strip_scale(values or [0.0, 1.0])


def _score_row(scores: TaskScores, line: SystemLine, scale: LinearScale) -> Row:
    system = line.system
    last = line.scores.get(scores.largest)
    recipe = "" if system.recipe == "none" else system.recipe.replace("+", " + ")
    css = system.init
    if last is not None and scores.is_recommended(last):
        css += " used"
    name = Cell(
        more=[
            Piece(name_model(line.first), is_strong=True),
            Piece(format_usage(scores.analysis, line.first)),
            *small(format_unmatched_reason(scores.analysis, system.model), "muted"),
        ],
        svg=model_style(scores.analysis, system.model).mark,
    )
    means = [_mean_cell(scores, line.scores.get(count)) for count in scores.train_examples]
    return Row([name, *means, *_last_cells(scores, last, scale)], css=css, title=recipe)


def _mean_cell(scores: TaskScores, score: SystemScore | None) -> Cell:
    """Return a mean over seeds, in bold at the most labels, underlined for the system to use."""
    if score is None:
        return Cell(NO_VALUE, css="n muted")
    if score.mean is None:
        css = f"n {_problem_css(score.problems[0])}"
        return Cell(_short_problem(score), css=css, title=format_notes(score.problems[0].reason))
    css = "mean" if score.label_count == scores.largest else ""
    if scores.is_recommended(score):
        css = "mean best-cell"
    pieces = [Piece(format_percent(score.mean), css)]
    if lost := _format_lost_seeds(score.problems):
        reason = format_notes(score.problems[0].reason)
        pieces.append(Piece(lost, "worse", reason, is_small=True))
    return Cell(more=pieces, title=f"seeds {_format_seeds(score)}")


def _last_cells(scores: TaskScores, score: SystemScore | None, scale: LinearScale) -> list[Cell]:
    """Return the interval, the strip and the difference from the baseline, at the most labels."""
    if score is None:
        return [Cell(), Cell(), Cell()]
    if score.mean is None:
        css = f"{_problem_css(score.problems[0])} wrap"
        return [Cell(_format_problem(score.problems[0]), css=css, span=3)]
    return [
        Cell(_format_interval(score)),
        Cell(svg=_draw_strip(scores, score, scale)),
        _baseline_cell(scores, score),
    ]


def _baseline_cell(scores: TaskScores, score: SystemScore) -> Cell:
    comparison = scores.baselines.get((score.system, score.setting))
    if comparison is None:
        return Cell()
    outcome = comparison_outcome(scores.analysis, comparison)
    words = []
    if outcome != "no significant difference":
        words.append(_describe_outcome(scores.analysis, comparison))
    if baseline_is_near_chance(scores.analysis, comparison):
        words.append("°")
    difference = format_difference(comparison.difference)
    pieces = [Piece(difference, css_class(outcome), format_comparison(comparison))]
    if words:
        pieces.append(Piece(" ".join(words), "word muted"))
    return Cell(more=pieces)


def _describe_outcome(analysis: Analysis, comparison: Comparison) -> str:
    outcome = comparison_outcome(analysis, comparison)
    return outcome if outcome == "both at chance" else format_verdict(comparison)


def _draw_strip(scores: TaskScores, score: SystemScore, scale: LinearScale) -> str:
    assert score.mean is not None
    interval = None
    if score.ci_low is not None and score.ci_high is not None:
        interval = (score.ci_low, score.ci_high)
    tfidf = [
        one.mean
        for one in scores.scores
        if one.system.family == "tfidf" and one.label_count == scores.largest
    ]
    style = model_style(scores.analysis, score.system.model)
    return figures.draw_strip(
        scale,
        value=score.mean,
        interval=interval,
        reference=tfidf[0] if tfidf else None,
        chance=chance_level(scores.analysis, score.setting),
        color=style.color,
        marker=style.marker,
        faint=score.system.init == "random",
    )


def build_label_count_table(scores: TaskScores, label_count: str) -> Table:
    """Return all that is known of the scores at one label count, for Markdown."""
    heading = Column(metric_heading(scores.metric), "n")
    columns: Columns = ["system", heading, "interval", "seeds", "vs. baseline"]
    rows = [
        _label_count_row(scores, line.scores[label_count])
        for line in scores.lines
        if label_count in line.scores
    ]
    title = scores.format_labels(label_count).capitalize()
    return Table(columns, rows, title=title, only="markdown")


def _label_count_row(scores: TaskScores, score: SystemScore) -> Cells:
    name = name_model(score)
    if reason := format_unmatched_reason(scores.analysis, score.system.model):
        name += f" ({reason})"
    if usage := format_usage(scores.analysis, score):
        name += f", {usage}"
    interval = _format_problem(score.problems[0]) if score.mean is None else _format_interval(score)
    lost = _format_lost_seeds(score.problems)
    if lost and score.mean is not None:
        interval += f"; {lost}"
    mean = Piece(format_percent(score.mean), is_strong=scores.is_recommended(score))
    comparison = scores.baselines.get((score.system, score.setting))
    difference = ""
    if comparison is not None:
        difference = format_comparison(comparison)
        outcome = _describe_outcome(scores.analysis, comparison)
        if "too few seeds" not in outcome:
            difference += f": {outcome}"
        if baseline_is_near_chance(scores.analysis, comparison):
            difference += " °"
    return [name, Cell(more=[mean]), interval, _format_seeds(score), difference]


def build_mean_tables(analysis: Analysis, decisions: Sequence[Decision]) -> list[Table]:
    """Return the means of each task for the terminal. All tables have the same rows."""
    tasks = list_task_scores(analysis, decisions)
    order = list(dict.fromkeys(format_system(score.system) for score in analysis.scores))
    models = {
        format_system(line.system): line.system.model for task in tasks for line in task.lines
    }
    names = sorted(
        models, key=lambda name: (_model_place(analysis, models[name]), order.index(name))
    )
    return [_mean_table(task, names) for task in tasks]


def _mean_table(scores: TaskScores, names: Sequence[str]) -> Table:
    heading = metric_heading(scores.metric)
    unit = "" if heading == "% correct" else f", {heading}"
    cells: dict[str, dict[str, Cell]] = {name: {} for name in names}
    for line in scores.lines:
        for label_count, score in line.scores.items():
            text = _short_problem(score) if score.mean is None else format_percent(score.mean)
            css = "used" if scores.is_recommended(score) else ""
            cells[format_system(line.system)][label_count] = Cell(text, css=css)
    counts = [*scores.train_examples]
    rows = [[name, *(cells[name].get(count, "") for count in counts)] for name in names]
    labels = [scores.format_labels(count) for count in counts]
    title = f"{scores.task}{unit}"
    return Table(["", *labels], rows, title=title, subtitle=heading)


def _model_place(analysis: Analysis, model: str) -> int:
    names = [*analysis.model_names, *BASELINES]
    return names.index(model) if model in names else len(names)


def name_model(score: SystemScore) -> str:
    """Name a model, or the simplest answer to tasks that have no classes."""
    kind = load_kind(score.kind)
    if score.system.model == "majority" and kind.answered_by == "sentence_probability":
        return "chance"
    if score.system.model == "majority" and kind.answer_type == "number":
        return "mean score"
    return format_model(score.system.model)


def _format_interval(score: SystemScore) -> str:
    return f"{format_percent(score.ci_low)} to {format_percent(score.ci_high)}"


def _format_seeds(score: SystemScore) -> str:
    return ", ".join(format_percent(seed.value) for seed in score.seeds)


def _format_problem(problem: SeedProblem) -> str:
    return f"{problem.status.replace('_', ' ')}: {format_notes(problem.reason)}"


def _short_problem(score: SystemScore) -> str:
    return "failed" if score.problems[0].status == "failed" else "n/a"


def _problem_css(problem: SeedProblem) -> str:
    return "worse" if problem.status == "failed" else "muted"


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


def _format_lost_seeds(problems: Sequence[SeedProblem]) -> str:
    """Count the repetitions without a score: `1 seed failed`, `2 seeds not applicable`."""
    lost = {(one.pretrain_seed, one.finetune_seed, one.status) for one in problems}
    counts = Counter(status for *_, status in lost)
    parts = [
        f"{plural(count, 'seed')} {status.replace('_', ' ')}"
        for status, count in sorted(counts.items())
    ]
    return ", ".join(parts)


def draw_finetune_curves(analysis: Analysis, task: str) -> list[str]:
    """Draw the training loss and the validation score of a task's fine-tuned models by epoch."""
    curves = [one for one in analysis.finetune_curves if one.task == task]
    if not curves:
        return []
    measures = (
        ("training", "loss", "train_loss"),
        ("validation", metric_heading(curves[0].metric), "validation_score"),
    )
    drawn = []
    for title, y_label, field in measures:
        series = [_finetune_series(analysis, curve, field) for curve in curves]
        measured = [one for one in series if one.x]
        if measured:
            drawn.append(
                charts.draw_line_chart(
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
    finite = [(epoch, value) for epoch, value in points if value is not None]
    return LineSeries(
        format_model(curve.model),
        style.color,
        [epoch for epoch, _ in finite],
        [value for _, value in finite],
        hollow=curve.init == "random",
        marker=style.marker,
    )
