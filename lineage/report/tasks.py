"""The data of the tasks: items used, truncated, dropped and repeated, for the page."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from lineage.analysis.cells import split_test_set
from lineage.analysis.records import (
    TRAINED_INITS,
    Analysis,
    ContaminationCounts,
    SwapConsistency,
    TaskSummary,
)
from lineage.analysis.settings import find_omitted_methods
from lineage.config.data import SPLITS
from lineage.data.dataset_stats import SplitStats
from lineage.report.formatting import (
    INIT_NAMES,
    NO_VALUE,
    TRANSFER_NAMES,
    format_head,
    format_kind,
    format_label_count,
    format_model,
    format_percent,
    format_system,
    metric_heading,
)
from lineage.report.notes import format_note
from lineage.results import JOINED_FAMILY

# A statistic of a split -> the note on its task, with the count and the items of the split.
DATA_NOTES = {
    "duplicates_of_train": (
        "{count} of the {items} {split} items also occur in train, word for word."
    ),
    "duplicates_in_folds": (
        "{count} of the {items} items occur more than once in train, word for word, so copies can "
        "be in both parts of a fold."
    ),
    "groups_in_train": "{count} of the {items} {split} items belong to groups that train has too.",
    "invalid_tags": (
        "{count} of the {items} {split} sentences have tags that break their scheme, or spans that "
        "overlap: conlleval's rules decide what is a span, and the longest span is kept."
    ),
    "blank_words": "{count} blank words of {split} were dropped, with their tags.",
    "tags_not_in_train": (
        "{count} of the {items} {split} sentences have a tag or a type of span that train lacks, "
        "so it is never predicted."
    ),
    "numeric_tags": (
        "The {count} tags are numbers without names, so accuracy is scored. If they mark spans, "
        "give their names in `label_map`."
    ),
    "tags_without_scheme": (
        "The {count} tags have no span scheme, so accuracy is scored. If they mark spans, give "
        "names such as I-PER in `label_map`."
    ),
}
MIN_TRUNCATED_SHARE = 0.1  # from which on the task's own section mentions it
UNUSABLE_ITEMS = "unusable"  # the reason of items that cannot be used
DROP_REASONS = {
    "unusable": "empty or not distinguishable",
    "limit": "left out by the limit",
    "per_group": "left out by max_per_group",
    "blank": "blank",
    "scored": "among the scored items",
    "answer_cut_off": "with a truncated answer",
    "unused_label": "with an unused label",
}


@dataclass(frozen=True)
class TaskDataLine:
    """A task in the table of the data."""

    task: str
    kind: str
    metric: str
    num_items: dict[str, str]  # by split
    test_set: str  # its origin
    max_length: str
    dropped: str
    duplicates: str
    contamination: str
    notes: tuple[str, ...]


@dataclass(frozen=True)
class UnknownTokenLine:
    """Shares of unknown tokens of one task."""

    task: str
    cells: tuple[str, ...]


@dataclass(frozen=True)
class UnknownTokenTable:
    """Shares of unknown tokens by task and model, and the models without any."""

    columns: tuple[str, ...]
    lines: tuple[UnknownTokenLine, ...]
    models_without_unknown: tuple[str, ...]


def build_task_data_table(analysis: Analysis) -> list[TaskDataLine]:
    """Return a line per task and extra test set."""
    return [_task_data_line(analysis, task) for task in analysis.tasks]


def _task_data_line(analysis: Analysis, task: TaskSummary) -> TaskDataLine:
    scored = [one for one in analysis.scores_of_task(task.task) if one.mean is not None]
    folds = format_folds(analysis, task.task)
    num_items = dict.fromkeys(SPLITS, NO_VALUE)
    for name, stats in task.splits.items():
        num_items[name] = f"{stats.items:,}"
        if stats.held_out_from_train:
            num_items[name] += ", from train"
    if folds:
        num_items |= {"validation": "part of the other folds", "test": "each item once"}
    return TaskDataLine(
        task=task.task,
        kind=format_kind(task.kind),
        metric=metric_heading(scored[0].metric) if scored else NO_VALUE,
        num_items=num_items,
        test_set=folds or _test_set_source(analysis, task),
        max_length=_format_truncation(task),
        dropped=_format_dropped(task),
        duplicates=format_duplicates(task.splits),
        contamination=format_contamination(analysis, task.task),
        notes=_format_truncation_notes(task),
    )


def _format_truncation_notes(task: TaskSummary) -> tuple[str, ...]:
    """Return `bert, gpt: 12% of the texts were longer than 128 tokens, and cut`, ..."""
    models_by_text: dict[str, list[str]] = {}
    for one in task.truncation_notes:
        models_by_text.setdefault(format_note(one.note), []).extend(one.models)
    return tuple(
        f"{', '.join(dict.fromkeys(map(format_model, models)))}: {text}"
        for text, models in models_by_text.items()
    )


def _test_set_source(analysis: Analysis, task: TaskSummary) -> str:
    for one in analysis.published_benchmarks:
        if one.task == task.task and one.official_split:
            return f"{one.benchmark}'s own"
    _, extra_test_set = split_test_set(task.task)
    if extra_test_set:
        return "extra"
    return "generated" if task.generated else "given"


def format_folds(analysis: Analysis, task: str) -> str:
    """Describe cross-validation; empty if the task has a test set.

    Such as `5 folds of train, drawn anew for each of 3 seeds, its 40 groups kept whole`.
    """
    stats = next((one.cross_validation for one in analysis.tasks if one.task == task), None)
    if stats is None:
        return ""
    text = f"{stats.folds} folds of train"
    num_seeds = len(analysis.grid.finetune_seeds)
    if num_seeds > 1:
        text += f", drawn anew for each of {num_seeds} seeds"
    if stats.groups:
        text += f", its {stats.groups:,} groups kept whole"
    return text


def describe_fold_training(analysis: Analysis, task: str) -> str:
    """Tell why `all labels` are fewer than the labelled items; empty if the task has no folds."""
    folded = [one for one in analysis.tasks if one.task == task and one.cross_validation]
    most = max(
        (one.train_examples for one in analysis.scores_of_task(task) if one.label_count == "all"),
        default=0,
    )
    if not folded or not most:
        return ""
    return (
        f"Each fold trains on about {most:,} of the {folded[0].splits['train'].items:,} labelled "
        "items, since one part is tested and another is validation."
    )


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
    """Count dropped items: `train: 4,000 left out by the limit, 3 blank`."""
    parts = []
    for split in SPLITS:
        stats = task.splits.get(split)
        if stats and stats.dropped:
            counts = [
                f"{stats.dropped[r]:,} {name}"
                for r, name in DROP_REASONS.items()
                if r in stats.dropped
            ]
            parts.append(f"{split}: {', '.join(counts)}")
    return "; ".join(parts) or "none"


def _format_split_counts(splits: Mapping[str, SplitStats], name: str) -> str:
    counts = {split: getattr(splits[split], name) for split in SPLITS if split in splits}
    return ", ".join(f"{count:,} of {split}" for split, count in counts.items() if count) or "none"


def format_contamination(analysis: Analysis, task: str) -> str:
    """Count contaminated items; a dash if nothing is scored.

    Such as `3 of 1,000 in the corpus, 1 in its unlabelled text; 240 are too short to tell`.
    """
    for one in analysis.contamination:
        if one.task == task:
            return _format_contamination(one)
    return NO_VALUE


def _format_contamination(counts: ContaminationCounts) -> str:
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


def build_unknown_token_table(analysis: Analysis) -> UnknownTokenTable:
    """Return the shares of unknown tokens by task.

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
    columns = [name for name, values in shares.items() if any(values.values())]
    lines = []
    for task in analysis.tasks:
        cells = tuple(format_percent(shares[name].get(task.task)) for name in columns)
        lines.append(UnknownTokenLine(task.task, cells))
    without = [name for name, values in shares.items() if values and name not in columns]
    return UnknownTokenTable(tuple(columns), tuple(lines), tuple(without))


def describe_task_data(analysis: Analysis, task: str) -> list[str]:
    """Return the notes on a task: its data, its settings, and how its scores are to be read."""
    notes = []
    summary = next((one for one in analysis.tasks if one.task == task), None)
    if folds := describe_fold_training(analysis, task):
        notes.append(folds)
    if summary is not None:
        notes += _data_notes(summary)
    for one in analysis.duplicate_label_counts:
        if one.task == task:
            notes.append(
                f"There are only {one.train_examples} labels, so {one.label_count} labels are "
                f"the same setting as {one.same_as}."
            )
    train_task, extra_test_set = split_test_set(task)
    if extra_test_set:
        notes.append(
            f"Trained on {train_task} and scored on {extra_test_set}. The majority class is that "
            f"of {train_task}."
        )
    notes += _grouped_score_note(analysis, task, summary)
    notes += _omitted_settings_note(analysis, task)
    notes += _swap_notes([one for one in analysis.swap_consistency if one.task == task])
    if any(one.system.family == JOINED_FAMILY for one in analysis.scores_of_task(task)):
        static_model = analysis.grid.join_static_model
        notes.append(
            f"With {static_model} vectors added, the random-init baseline has the trained vectors "
            "too. The difference is what the other model's pretraining adds to them."
        )
    return notes


def _data_notes(task: TaskSummary) -> list[str]:
    notes = []
    for split, stats in task.splits.items():
        if unusable := stats.dropped.get(UNUSABLE_ITEMS):
            notes.append(f"{unusable} {split} items were dropped: {DROP_REASONS[UNUSABLE_ITEMS]}.")
    train = task.splits.get("train")
    if train is not None and (omitted := train.dropped.get("limit")):
        notes.append(
            f"{omitted:,} more train items are there, left out by the limit in params.yaml."
        )
    notes += _truncation_note(task)
    for name, text in DATA_NOTES.items():
        for split, stats in task.splits.items():
            if count := getattr(stats, name):
                notes.append(text.format(count=count, items=stats.items, split=split))
    folds = task.cross_validation
    if folds and folds.missing_a_label:
        notes.append(
            f"In {folds.missing_a_label} of {folds.training_sets} folds train lacks a label."
        )
    return notes


def _truncation_note(task: TaskSummary) -> list[str]:
    """Tell if many scored texts are cut; the table of the data has all counts."""
    stats = task.splits.get("test") or task.splits.get("train")
    if not task.max_words or stats is None or not stats.items:
        return []
    share = stats.truncated / stats.items
    if share < MIN_TRUNCATED_SHARE:
        return []
    words = f"{task.max_words} {task.unit}"
    return [
        f"{share:.0%} of the test texts are longer than {words}, and are cut there for every model."
    ]


def _swap_notes(swaps: Sequence[SwapConsistency]) -> list[str]:
    """Tell how often answers stay the same when the two texts of an item are swapped."""
    notes = []
    for label_count in dict.fromkeys(one.label_count for one in swaps):
        own = [one for one in swaps if one.label_count == label_count]
        parts = [
            f"{format_system(one)} {format_percent(one.value)} %" for one in own if one.value < 1
        ]
        if len(parts) < len(own):
            parts.append("all others 100 %" if parts else "all 100 %")
        labels = format_label_count(label_count)
        notes.append(f"Same answer when the two texts are swapped, {labels}: {', '.join(parts)}.")
    return notes


def _grouped_score_note(analysis: Analysis, task: str, summary: TaskSummary | None) -> list[str]:
    """Tell if a score is a mean over groups."""
    num_groups = next((len(one.groups) for one in analysis.group_scores if one.task == task), 0)
    if summary is None or not summary.averages_groups or num_groups < 2:
        return []
    return [f"The score is the mean over {num_groups} groups, each with its own correlation."]


def _omitted_settings_note(analysis: Analysis, task: str) -> list[str]:
    """Tell which systems the study left out for a task.

    They are those without some of its label counts, and BiLSTM probes if only other tasks have
    them.
    """
    missing = [
        f"{TRANSFER_NAMES[one.transfer]}{format_head(one.head)} with "
        f"{format_label_count(one.label_count)}"
        for one in find_omitted_methods(analysis, task)
    ]
    bilstm_tasks = {one.task for one in analysis.scores if one.system.head.startswith("bilstm")}
    has_linear = any(
        (one.system.transfer, one.system.head) == ("frozen", "linear")
        for one in analysis.scores_of_task(task)
    )
    if bilstm_tasks and task not in bilstm_tasks and has_linear:
        missing.append("a BiLSTM probe")
    return [f"Not run: {', '.join(missing)}."] if missing else []
