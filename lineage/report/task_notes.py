"""Notes on a task: its data, its settings, and how its scores are to be read."""

from collections.abc import Iterator, Sequence

from lineage.analysis.cells import MIN_CLUSTERS, split_test_set
from lineage.analysis.records import (
    TRAINED_INITS,
    Analysis,
    AnswerDetails,
    SwapConsistency,
    TaskSummary,
    group_by,
)
from lineage.analysis.settings import find_collapsed_runs, fine_tuned_scores
from lineage.methods.extracts import EXTRACTS
from lineage.report.formatting import (
    format_label_count,
    format_model,
    format_percent,
    format_system,
    metric_unit,
    plural,
)
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
ROUGE_NOTE = (
    "TF-IDF: the summary of the most similar training document. ROUGE: F-measure by rouge-score, "
    "without stemming; an item with several reference summaries has the mean over them."
)
MIN_LABEL_ITEMS = 20  # with fewer, the score of a label is hardly known
# Then this is hardly known, for one label and for several.
COUNTED_BY_LABEL = {
    "macro_f1": ("its part of macro-F1 is", "their parts of macro-F1 are"),
    "matthews": ("Matthews correlation is", "Matthews correlation is"),
}
MIN_TRUNCATED_SHARE = 0.1  # from which on the task's own section mentions it
UNUSABLE_ITEMS = "unusable"  # the reason of items that cannot be used
DROP_REASONS = {
    "unusable": "without words, or with texts that are the same",
    "limit": "left out by the limit",
    "per_group": "left out by max_per_group",
    "blank": "blank",
    "scored": "among the scored items",
    "answer_cut_off": "with a truncated answer",
    "unused_label": "with an unused label",
}


def format_folds(analysis: Analysis, task: str) -> str:
    """Describe cross-validation; empty if the task has a test set.

    Such as `5 folds of train, drawn anew for each of 3 seeds, its 40 groups kept whole`.
    """
    summary = analysis.find_task(task)
    stats = None if summary is None else summary.cross_validation
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
    summary = analysis.find_task(task)
    scores = [one for one in analysis.scores_of_task(task) if one.label_count == "all"]
    most = max((one.train_examples for one in scores), default=0)
    if summary is None or not summary.cross_validation or not most:
        return ""
    return (
        f"Each fold trains on about {most:,} of the {summary.splits['train'].items:,} labelled "
        "items, since one part is tested and another is validation."
    )


def describe_task_data(analysis: Analysis, task: str) -> list[str]:
    """Return the notes on a task: its data, its settings, and how its scores are to be read."""
    notes = []
    summary = analysis.find_task(task)
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
    notes += _summary_notes(analysis, task)
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
            items = "item was" if unusable == 1 else "items were"
            reason = DROP_REASONS[UNUSABLE_ITEMS]
            notes.append(f"{unusable} {split} {items} dropped: {reason}.")
    notes += _truncation_note(task)
    for name, text in DATA_NOTES.items():
        for split, stats in task.splits.items():
            if count := getattr(stats, name):
                items = f"{stats.items:,}"
                notes.append(text.format(count=f"{count:,}", items=items, split=split))
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
    for label_count, own in group_by(swaps, lambda one: one.label_count).items():
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


def describe_few_groups(analysis: Analysis, task: str, column: str | None) -> Iterator[str]:
    """Tell if items are drawn although they have groups, which are too few to be a sample."""
    scores = analysis.scores_of_task(task)
    has_items_as_units = any(0 < one.num_examples == one.num_clusters for one in scores)
    for one in analysis.group_scores:
        if one.task == task and len(one.groups) < MIN_CLUSTERS and has_items_as_units:
            name = f" of '{column}'" if column else ""
            yield (
                f"{len(one.groups)} groups{name}: intervals are for these groups, not for others."
            )


def describe_rare_labels(analysis: Analysis, task: str) -> Iterator[str]:
    """Warn of labels with few test items, where the score counts each label on its own."""
    metrics = {one.metric for one in analysis.scores_of_task(task)}
    for details in analysis.answer_details:
        if details.task != task:
            continue
        num_spans = sum(one.count for one in details.classes)
        if "span_f1" in metrics and 0 < num_spans < MIN_LABEL_ITEMS:
            yield f"There are only {num_spans:.0f} spans to find, so F1 is hardly known."
        for metric in metrics & COUNTED_BY_LABEL.keys():  # one at most: systems share a metric
            yield from _describe_rare_labels(details, *COUNTED_BY_LABEL[metric])


def _describe_rare_labels(
    details: AnswerDetails, part_of_one: str, part_of_several: str
) -> Iterator[str]:
    rare = [one for one in details.classes if one.count < MIN_LABEL_ITEMS]
    if not rare:
        return
    rarest = rare[-1]
    text = f"Label '{rarest.label}' has {plural(round(rarest.count), 'test item')}"
    others = len(rare) - 1
    if not others:
        yield f"{text}: {part_of_one} hardly known."
        return
    verb = "has" if others == 1 else "have"
    yield (
        f"{text}, and {plural(others, 'other label')} {verb} fewer than {MIN_LABEL_ITEMS}: "
        f"{part_of_several} hardly known."
    )


def _summary_notes(analysis: Analysis, task: str) -> list[str]:
    """Say how summaries are scored, and if a part of each document is better than all of them."""
    scores = [one for one in analysis.scores_of_task(task) if one.mean is not None]
    extracts = [one for one in scores if one.system.family in EXTRACTS]
    written = [one for one in scores if one.system.init in TRAINED_INITS]
    if not extracts:
        return []
    notes = [ROUGE_NOTE]
    if not written:
        return notes
    extract = max(extracts, key=lambda one: one.mean or 0.0)
    model = max(written, key=lambda one: one.mean or 0.0)
    if (extract.mean or 0.0) <= (model.mean or 0.0):
        return notes
    names = f"{format_model(extract.system.model)} {format_percent(extract.mean)}"
    names += f", {format_system(model.system)} {format_percent(model.mean)}"
    text = "No model's summaries score higher than a part of each document"
    return [*notes, f"{text}: {names} {metric_unit(model.metric)}. No test has compared them."]


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
