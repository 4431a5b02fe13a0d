"""The data of the tasks: items used, truncated, dropped, repeated and contaminated."""

from collections.abc import Iterable, Iterator, Mapping

from lineage.analysis.cells import split_test_set
from lineage.analysis.records import (
    TRAINED_INITS,
    Analysis,
    CleanScores,
    TaskSummary,
)
from lineage.config.data import SPLITS
from lineage.data.dataset_stats import SplitStats
from lineage.report.formatting import (
    INIT_NAMES,
    NO_VALUE,
    format_label_count,
    format_model,
    format_percent,
    format_system,
    metric_heading,
)
from lineage.report.notes import format_note
from lineage.report.section import (
    Block,
    Cell,
    Cells,
    Column,
    Columns,
    Paragraph,
    ReportData,
    Section,
    Table,
    numbers,
)
from lineage.report.task_notes import DROP_REASONS, format_folds

LONG_TEXT = 12  # characters, from which on a cell is wrapped
LONG_NUMBER = 8
GIVEN = "given"


def build(report: ReportData) -> Section:
    """Return a line for each task and extra test set, and what is known about its texts."""
    analysis = report.analysis
    clean = (_clean_score_table(one) for one in analysis.clean_scores)
    blocks: list[Block] = [
        build_data_table(analysis),
        *clean,
        *_truncation_notes(analysis),
        *build_unknown_token_tables(analysis),
    ]
    return Section("Data", blocks, anchor="data", link="Data", is_folded=True)


def build_data_table(analysis: Analysis) -> Table:
    """Return a line for each task and extra test set."""
    has_unlabelled = any("unlabelled" in task.splits for task in analysis.tasks)
    splits = [name for name in SPLITS if has_unlabelled or name != "unlabelled"]
    has_sources = any(_name_test_set(analysis, task) != GIVEN for task in analysis.tasks)
    columns: Columns = [
        "task",
        "metric",
        *numbers(*splits),
        *(["test set"] if has_sources else []),
        Column("max length", "wrap"),
        Column("dropped", "wrap"),
        "duplicates in train",
        Column("contaminated", "wrap"),
    ]
    rows = [_data_row(analysis, task, splits, has_sources=has_sources) for task in analysis.tasks]
    return Table(columns, rows, note=_describe_table(analysis), css="how", is_wide=True)


def _data_row(
    analysis: Analysis, task: TaskSummary, splits: Iterable[str], *, has_sources: bool
) -> Cells:
    scored = [one for one in analysis.scores_of_task(task.task) if one.mean is not None]
    folds = format_folds(analysis, task.task)
    counts = _count_items(task, has_folds=bool(folds))
    validation = counts["validation"]
    cells = {name: Cell(text) for name, text in counts.items()}
    if len(validation) >= LONG_NUMBER:
        cells["validation"] = Cell(validation, css="wrap")
    return [
        task.task,
        metric_heading(scored[0].metric) if scored else NO_VALUE,
        *(cells[name] for name in splits),
        *([_wrap_if_long(_name_test_set(analysis, task))] if has_sources else []),
        _format_truncation(task),
        _format_dropped(task),
        _wrap_if_long(format_duplicates(task.splits)),
        _format_contamination(analysis, task.task),
    ]


def _count_items(task: TaskSummary, *, has_folds: bool) -> dict[str, str]:
    """Return the number of items of each split as text."""
    counts = dict.fromkeys(SPLITS, NO_VALUE)
    for name, stats in task.splits.items():
        counts[name] = f"{stats.items:,}"
        if stats.held_out_from_train:
            counts[name] += ", from train"
    if has_folds:
        counts |= {"validation": "part of the other folds", "test": "each item once"}
    return counts


def _wrap_if_long(text: str) -> Cell:
    return Cell(text, css="wrap" if len(text) > LONG_TEXT else "")


def _describe_table(analysis: Analysis) -> str:
    public = ""
    if analysis.public_models:
        public = "; what public checkpoints have read is unknown"
    return (
        "Items used, the same for every model. Max length: longer texts are truncated, and "
        "counted. Duplicates: items whose text also occurs in train. Contaminated: "
        f"{analysis.split} items that share {format_overlap_length(analysis.tasks)} in a row with "
        f"text that models have read, or all of a shorter item{public}. They are scored all the "
        "same."
    )


def _truncation_notes(analysis: Analysis) -> Iterator[Paragraph]:
    """Yield `mood, within its maximum length: bert: 12% of the texts were longer ..., and cut.`"""
    for task in analysis.tasks:
        models_by_text: dict[str, list[str]] = {}
        for one in task.truncation_notes:
            models_by_text.setdefault(format_note(one.note), []).extend(one.models)
        notes = [
            f"{', '.join(dict.fromkeys(map(format_model, models)))}: {text}"
            for text, models in models_by_text.items()
        ]
        if notes:
            yield Paragraph(f"{task.task}, within its maximum length: {'; '.join(notes)}.", "note")


def _clean_score_table(scores: CleanScores) -> Table:
    labels = format_label_count(scores.label_count, train_examples=scores.train_examples)
    rows = [
        [format_system(one.system), format_percent(one.all_items), format_percent(one.clean_items)]
        for one in scores.systems
    ]
    return Table(
        ["system", *numbers("all items", "clean items")],
        rows,
        title=f"{scores.task} without contaminated items",
        subtitle=f"{labels}, {metric_heading(scores.metric)}, the best system of each model",
    )


def _name_test_set(analysis: Analysis, task: TaskSummary) -> str:
    """Name the folds of a task, or where its test set is from."""
    if folds := format_folds(analysis, task.task):
        return folds
    for one in analysis.published_benchmarks:
        if one.task == task.task and one.official_split:
            return f"{one.benchmark}'s own"
    _, extra_test_set = split_test_set(task.task)
    if extra_test_set:
        return "extra"
    return "generated" if task.generated else GIVEN


def format_duplicates(splits: Mapping[str, SplitStats]) -> str:
    """Count duplicates: `3 of test`; `3 of test; by group 40 of test`; `3 within train`."""
    repeated = sum(one.duplicates_in_folds for one in splits.values())
    if repeated:
        return f"{repeated:,} within train"
    text = _format_split_counts(splits, "duplicates_of_train")
    if any(one.groups_in_train for one in splits.values()):
        text += f"; by group {_format_split_counts(splits, 'groups_in_train')}"
    return text


def _format_truncation(task: TaskSummary) -> str:
    """Tell the maximum length and how many items exceed it: `128 words: 12 of train`."""
    if not task.may_truncate:
        return "never truncated"
    truncated = _format_split_counts(task.splits, "truncated")
    return f"{task.max_words} {task.unit}: {truncated}" if task.max_words else truncated


def _format_dropped(task: TaskSummary) -> str:
    """Count dropped items: `left out by the limit: 4,000 of train; blank: 3 of train, 1 of test`."""
    parts = []
    for reason, name in DROP_REASONS.items():
        counts = [
            f"{task.splits[split].dropped[reason]:,} of {split}"
            for split in SPLITS
            if split in task.splits and reason in task.splits[split].dropped
        ]
        if counts:
            parts.append(f"{name}: {', '.join(counts)}")
    return "; ".join(parts) or "none"


def _format_split_counts(splits: Mapping[str, SplitStats], name: str) -> str:
    counts = {split: getattr(splits[split], name) for split in SPLITS if split in splits}
    return ", ".join(f"{count:,} of {split}" for split, count in counts.items() if count) or "none"


def _format_contamination(analysis: Analysis, task: str) -> str:
    """Count contaminated items; a dash if nothing is scored.

    Such as `3 of 1,000 in the corpus, 1 in its unlabelled text; 240 are too short to tell`.
    """
    counts = next((one for one in analysis.contamination if one.task == task), None)
    if counts is None:
        return NO_VALUE
    searched = counts.items - counts.too_short
    if not searched:
        return "all are too short to tell"
    text = f"{counts.in_corpus:,} of {searched:,} in the corpus"
    if counts.in_unlabelled is not None:
        text += f", {counts.in_unlabelled:,} in its unlabelled text"
    if counts.too_short:
        verb = "is" if counts.too_short == 1 else "are"
        text += f"; {counts.too_short:,} {verb} too short to tell"
    return text


def format_overlap_length(tasks: Iterable[TaskSummary]) -> str:
    """Tell how long a shared passage must be for an item to count as contaminated."""
    units = {task.unit for task in tasks}
    if len(units) > 1:
        return "13 words (20 characters of Chinese or Japanese)"
    return "20 characters" if units == {"characters"} else "13 words"


def build_unknown_token_tables(analysis: Analysis) -> list[Table]:
    """Return the shares of unknown tokens by task, and the models without any, if that is known."""
    shares = _list_unknown_shares(analysis)
    shown = [name for name, values in shares.items() if any(values.values())]
    without = [name for name, values in shares.items() if values and name not in shown]
    if not shown and not without:
        return []
    note = "A model reads all of them as the same token."
    if without:
        note += f" No unknown tokens: {', '.join(without)}."
    rows = []
    for task in analysis.tasks:
        cells = [format_percent(shares[name].get(task.task)) for name in shown]
        rows.append([task.task, *cells])
    columns: Columns = ["task", *numbers(*shown)] if shown else []
    subtitle = f"% of all tokens of the {analysis.split} texts"
    return [Table(columns, rows, title="Unknown tokens", subtitle=subtitle, note=note)]


def _list_unknown_shares(analysis: Analysis) -> dict[str, dict[str, float]]:
    """Return the shares by model and task.

    Adapted models, and those that are pretrained on the target's text alone, have columns of their
    own where their shares differ, because they have other words.
    """
    shares: dict[str, dict[str, float]] = {}
    for model in analysis.grid.models:
        own: dict[str, dict[str, float]] = {init: {} for init in TRAINED_INITS}
        for one in analysis.unknown_token_shares:
            if one.model == model and one.init in own:
                own[one.init][one.task] = one.value
        shares[format_model(model)] = own["pretrained"]
        for init in TRAINED_INITS[1:]:
            if not own[init].items() <= own["pretrained"].items():
                shares[f"{format_model(model)} {INIT_NAMES[init]}"] = own[init]
    return shares
