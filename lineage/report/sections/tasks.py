"""A part for each task: all systems with their scores, and what went wrong."""

from collections import Counter
from collections.abc import Iterator, Sequence

from lineage.analysis.cells import split_test_set
from lineage.analysis.convergence import FinetuneCurve
from lineage.analysis.gains import Gain
from lineage.analysis.records import (
    CHANCE_BASELINES,
    Analysis,
    SeedProblem,
    Setting,
    SystemScore,
    group_by,
)
from lineage.analysis.settings import SILENT_OUTCOMES, chance_level, find_random_score
from lineage.config.data import extra_test_task
from lineage.report import charts, figures
from lineage.report.answers import list_answer_figures
from lineage.report.cells import difference_cell
from lineage.report.decisions import find_largest_decisions
from lineage.report.disagreements import fold_disagreements
from lineage.report.figures import LinearScale, LineSeries
from lineage.report.formatting import (
    css_class,
    format_comparison,
    format_count_range,
    format_kind,
    format_percent,
    format_verdict,
    metric_heading,
    metric_unit,
    plural,
)
from lineage.report.group_scores import fold_group_scores
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
from lineage.report.styles import format_unmatched_reason, model_curve, model_style
from lineage.report.task_notes import (
    describe_collapsed_runs,
    describe_convergence,
    describe_few_groups,
    describe_rare_labels,
    describe_task_data,
    format_folds,
)
from lineage.report.task_scores import (
    TaskScores,
    format_problem_status,
    format_usage,
    list_task_scores,
    name_model,
)
from lineage.tasks.base import load_kind

FEATURE_NAMES = {
    "static": "without order or context",
    "left": "with left context",
    "both": "with both sides",
}
TABLE_NOTE = (
    "Line in the strips: TF-IDF; dotted: chance; tick: the same network with random init. Baseline: "
    "for a pretrained model that network, for an adapted one the model before. A difference "
    "without a word is not significant; in brackets, neither is shown to be above chance, or "
    "fine-tuning did not converge. °: over a baseline that is not shown to be above chance, or "
    "hardly is. Underlined: the system to use; another one of its model may score higher, since "
    "validation chooses."
)
CHANCE_NOTE = (
    "An interval may lie above chance where its system is not shown to be: the majority class, on "
    "the same items, is uncertain too."
)
BLEU_NOTE = (
    "TF-IDF: the translation of the nearest training source. BLEU by sacrebleu; its signature is in "
    "each row's reason."
)


def build(report: ReportData) -> Section:
    """Return a part for each task with a score."""
    parts: list[Section] = []
    for scores in list_task_scores(report.analysis, report.decisions):
        parts.append(build_task_section(report, scores, is_first=not parts))
    return Section(blocks=parts, anchor="task-by-task", link="Tasks")


def build_task_section(report: ReportData, scores: TaskScores, *, is_first: bool) -> Section:
    """Return the tables and figures of a task, with notes."""
    task = scores.task
    blocks: list[Block] = [*build_score_tables(report, scores)]
    if is_first:
        blocks.append(Paragraph(TABLE_NOTE, "note", only="html"))
        if any(_is_hardly_above_chance(report.analysis, one) for one in report.analysis.scores):
            blocks.append(Paragraph(CHANCE_NOTE, "note"))
    blocks += [build_label_count_table(scores, count) for count in scores.train_examples]
    decision = find_largest_decisions(report.decisions).get(task)
    answers = list_answer_figures(report.analysis, decision) if decision is not None else []
    labels = f"With {scores.format_labels(scores.largest)}:"
    if answers:
        blocks.append(Paragraph(labels, "deck", only="html"))
        blocks.append(Figures(answers, caption_below=True, only="html"))
    blocks += fold_group_scores(report.analysis, task)
    blocks += fold_disagreements(report.disagreements, task)
    curves = draw_finetune_curves(report.analysis, task)
    if curves:
        note = Paragraph(_describe_curves(report.analysis, task), "note")
        title = "Learning curves of fine-tuning"
        blocks.append(Section(title, [note, Figures(curves)], is_folded=True, only="html"))
    aside = [*_list_notes(report, scores)]
    if answers:
        sentences = " ".join(one.caption for one in answers)
        aside.append(Paragraph(f"{labels} {sentences}", only="markdown"))
    return Section(task, blocks, aside=aside, css="task")


def _is_hardly_above_chance(analysis: Analysis, score: SystemScore) -> bool:
    """Return whether an interval is above chance, and a comparison on the same items is not."""
    chance = chance_level(analysis, score.setting)
    is_silent = not _is_drawn(score) and not score.above_chance
    return is_silent and score.ci_low is not None and 0 < chance < score.ci_low


def _list_notes(report: ReportData, scores: TaskScores) -> Iterator[Paragraph]:
    analysis = scores.analysis
    task = scores.task
    yield Paragraph(describe_items(scores), "muted")
    for text in describe_convergence(analysis, task):
        yield Paragraph(text, "worse")
    for text in describe_collapsed_runs(analysis, task):
        yield Paragraph(text, "worse")
    for text in describe_rare_labels(analysis, task):
        yield Paragraph(text, "worse")
    ceilings = [
        f"{FEATURE_NAMES[one.features]} {format_percent(one.value)} {metric_unit(scores.metric)}"
        for one in sorted(analysis.ceilings, key=lambda one: one.value)
        if one.task == task
    ]
    if ceilings:
        yield Paragraph(f"The best possible here: {', '.join(ceilings)}.", "note")
    for text in describe_few_groups(analysis, task, _group_column(report, task)):
        yield Paragraph(text, "note")
    for text in describe_task_data(analysis, task):
        yield Paragraph(text, "note")
    if scores.metric == "bleu":
        yield Paragraph(BLEU_NOTE, "note")


def _group_column(report: ReportData, task: str) -> str | None:
    """Return the column of a task's groups; None if there is none, or the parameters are unknown."""
    base_task, extra_test_set = split_test_set(task)
    if report.params is None or base_task not in report.params.tasks:
        return None
    own = report.params.tasks[base_task]
    if extra_test_set:
        own = extra_test_task(own, extra_test_set, f"params.yaml: tasks.{base_task}")
    return own.group


def describe_items(scores: TaskScores) -> str:
    """Tell what is scored: `word sense, 400 test items in 40 groups; intervals are over groups`."""
    num_examples = max(one.num_examples for one in scores.scores)
    num_clusters = max(one.num_clusters for one in scores.scores)
    text = f"{format_kind(scores.scores[0].kind)}, {num_examples:,} {scores.analysis.split} items"
    if 0 < num_clusters < num_examples:
        text += f" in {num_clusters} groups; intervals are over groups"
    if chance := chance_level(scores.analysis, Setting(scores.task, scores.largest)):
        answer = load_kind(scores.scores[0].kind).answer
        name = "text of the source" if answer.are_texts else answer.majority_name or "chance"
        text += f"; {name} {format_percent(chance)} {metric_unit(scores.metric)}"
    if folds := format_folds(scores.analysis, scores.task):
        text += f"; scored by {folds}"
    return text


def build_score_tables(report: ReportData, scores: TaskScores) -> Iterator[Table]:
    """Yield a table with strips for each label count; the switch of the page shows one of them."""
    scale = _fit_scale(scores)
    for label_count in scores.train_examples:
        yield _build_score_table(report, scores, label_count, scale)


def _build_score_table(
    report: ReportData, scores: TaskScores, label_count: str, scale: LinearScale
) -> Table:
    """Return a line for each system; the strips show chance and random init."""
    heading = metric_heading(scores.metric)
    columns: Columns = [
        "system",
        Column(heading, "n", note=scores.format_labels(label_count)),
        Column(f"{report.confidence} interval", "interval"),
        Column(css="strip", svg=figures.draw_strip_axis(scale, unit=heading)),
        Column("vs baseline", "difference"),
    ]
    found = [one for one in scores.list_scores(label_count) if not _is_drawn(one)]
    return Table(
        columns,
        [_score_row(scores, one, scale) for one in found],
        css="main",
        is_wide=True,
        labels=_list_switched(report.analysis, scores, label_count),
        only="html",
    )


def _is_drawn(score: SystemScore) -> bool:
    """Return whether the strips show a score as a line or a tick, so that it has no line."""
    return score.system.init == "random" or score.system.family in CHANCE_BASELINES


def _list_switched(analysis: Analysis, scores: TaskScores, label_count: str) -> str:
    """Return the choices of the switch at which a table is shown: `all 1000`.

    The table with the most labels stands in for those that the task does not have.
    """
    choices = [label_count]
    if label_count == scores.largest:
        counts = map(str, analysis.grid.label_counts)
        choices += [one for one in counts if one not in scores.train_examples]
    return "none" if label_count == "none" else " ".join(choices)


def _fit_scale(scores: TaskScores) -> LinearScale:
    """Return the scale of all strips of a task, so that its tables can be compared."""
    values = []
    for one in scores.scores:
        if one.system.init != "random":
            known = (one.mean, one.ci_low, one.ci_high)
            values += [value for value in known if value is not None]
    return figures.fit_strip_scale(values or [0.0, 1.0])


def _score_row(scores: TaskScores, score: SystemScore, scale: LinearScale) -> Row:
    system = score.system
    recipe = "" if system.recipe == "none" else system.recipe.replace("+", " + ")
    name = Cell(
        more=[
            Piece(name_model(score), is_strong=True),
            Piece(format_usage(scores.analysis, score)),
            *small(format_unmatched_reason(scores.analysis, system.model), "muted"),
        ],
        svg=model_style(scores.analysis, system.model).mark,
    )
    css = "used" if scores.is_recommended(score) else ""
    return Row([name, *_score_cells(scores, score, scale)], css=css, title=recipe)


def _score_cells(scores: TaskScores, score: SystemScore, scale: LinearScale) -> list[Cell]:
    """Return the mean, its interval, the strip and the difference from the baseline."""
    if score.mean is None:
        problem = score.problems[0]
        css = _problem_css(problem)
        status = Cell(format_problem_status(score), css=f"n {css}")
        return [status, Cell(_format_problem(problem), css=f"{css} wrap", span=3)]
    return [
        _mean_cell(scores, score),
        Cell(_format_interval(score)),
        Cell(svg=_draw_strip(scores, score, scale)),
        _baseline_cell(scores, score),
    ]


def _mean_cell(scores: TaskScores, score: SystemScore) -> Cell:
    """Return a mean over seeds, underlined for the system to use."""
    css = "mean best-cell" if scores.is_recommended(score) else "mean"
    pieces = [Piece(format_percent(score.mean), css)]
    if lost := _format_lost_seeds(score.problems):
        reason = format_notes(score.problems[0].reason)
        pieces.append(Piece(lost, "worse", reason, is_small=True))
    return Cell(more=pieces, title=f"seeds {_format_seeds(score)}")


def _baseline_cell(scores: TaskScores, score: SystemScore) -> Cell:
    """Return the difference with its interval, and the outcome unless it is not significant.

    One that says nothing about the models is in brackets.
    """
    gain = scores.baselines.get((score.system, score.setting))
    if gain is None:
        return Cell()
    words = [] if gain.outcome == "no significant difference" else [_describe_outcome(gain)]
    if gain.baseline_near_chance:
        words.append("°")
    is_silent = gain.outcome in SILENT_OUTCOMES
    css = "muted" if is_silent else css_class(gain.outcome)
    return difference_cell(gain.comparison, note=" ".join(words), css=css, is_silent=is_silent)


def _describe_outcome(gain: Gain) -> str:
    if gain.outcome in SILENT_OUTCOMES:
        return gain.outcome
    return format_verdict(gain.comparison)


def _draw_strip(scores: TaskScores, score: SystemScore, scale: LinearScale) -> str:
    assert score.mean is not None
    interval = None
    if score.ci_low is not None and score.ci_high is not None:
        interval = (score.ci_low, score.ci_high)
    tfidf = [
        one.mean
        for one in scores.scores
        if one.system.family == "tfidf" and one.label_count == score.label_count
    ]
    return figures.draw_strip(
        scale,
        value=score.mean,
        interval=interval,
        reference=tfidf[0] if tfidf else None,
        chance=chance_level(scores.analysis, score.setting),
        baseline=find_random_score(scores.analysis, score.system, score.setting),
        style=model_style(scores.analysis, score.system.model),
    )


def build_label_count_table(scores: TaskScores, label_count: str) -> Table:
    """Return all that is known of the scores at one label count, for Markdown."""
    heading = Column(metric_heading(scores.metric), "n")
    columns: Columns = ["system", heading, "interval", "seeds", "vs. baseline"]
    rows = [_label_count_row(scores, score) for score in scores.list_scores(label_count)]
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
    gain = scores.baselines.get((score.system, score.setting))
    difference = ""
    if gain is not None:
        difference = format_comparison(gain.comparison)
        outcome = _describe_outcome(gain)
        if "too few seeds" not in outcome:
            difference += f": {outcome}"
        if gain.baseline_near_chance:
            difference += " °"
    return [name, Cell(more=[mean]), interval, _format_seeds(score), difference]


def _format_interval(score: SystemScore) -> str:
    return f"{format_percent(score.ci_low)} to {format_percent(score.ci_high)}"


def _format_seeds(score: SystemScore) -> str:
    return ", ".join(format_percent(seed.value) for seed in score.seeds)


def _format_problem(problem: SeedProblem) -> str:
    return f"{problem.status.replace('_', ' ')}: {format_notes(problem.reason)}"


def _problem_css(problem: SeedProblem) -> str:
    return "worse" if problem.status == "failed" else "muted"


def _format_lost_seeds(problems: Sequence[SeedProblem]) -> str:
    """Count the repetitions without a score: `1 seed failed`, `2 seeds not applicable`."""
    lost = {(one.pretrain_seed, one.finetune_seed, one.status) for one in problems}
    counts = Counter(status for *_, status in lost)
    parts = [
        f"{plural(count, 'seed')} {status.replace('_', ' ')}"
        for status, count in sorted(counts.items())
    ]
    return ", ".join(parts)


def _describe_curves(analysis: Analysis, task: str) -> str:
    """Tell of which seed and of how many labels the curves are: the most of fine-tuning."""
    tuned = [one for one in analysis.scores_of_task(task) if one.system.transfer == "finetuned"]
    models = group_by(tuned, lambda one: one.system.model)
    most = {model: max(one.train_examples for one in own) for model, own in models.items()}
    shown = {one.model for one in analysis.finetune_curves if one.task == task}
    labels = format_count_range(most[model] for model in shown if model in most)
    return f"First seed, {labels} labels; dashed: random init."


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
    points = zip(curve.epoch, getattr(curve, field), strict=True)
    finite = [(epoch, value) for epoch, value in points if value is not None]
    epochs = [epoch for epoch, _ in finite]
    return model_curve(analysis, curve.model, curve.init, epochs, [value for _, value in finite])
