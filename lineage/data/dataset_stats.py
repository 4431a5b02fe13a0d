"""Statistics of a task's data: the numbers of items, and of those dropped, cut or repeated."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

from lineage import artifacts
from lineage.config.records import parse_record
from lineage.data.task_data import EXTRA_TEST_PREFIX, TaskData
from lineage.tasks.base import load_kind
from lineage.tasks.info import TaskInfo

# Counts that task.json has for each split, by the names of SplitStats.
SPLIT_COUNTS = (
    "truncated",
    "duplicates_of_train",
    "duplicates_in_folds",
    "groups_in_train",
    "invalid_tags",
    "blank_words",
    "tags_not_in_train",
    "numeric_tags",
    "tags_without_scheme",
)


@dataclass(frozen=True)
class SplitStats:
    """Counts of one split. Unless a comment says otherwise, they count items."""

    items: int
    truncated: int = 0
    held_out_from_train: bool = False  # a validation split that was taken out of train
    duplicates_of_train: int = 0  # with the very text of an item of train
    duplicates_in_folds: int = 0  # with the very text of another item, perhaps in another fold
    groups_in_train: int = 0  # of a group that train has too
    invalid_tags: int = 0  # sentences whose tags break their scheme
    blank_words: int = 0  # words
    tags_not_in_train: int = 0  # sentences with a tag that train lacks
    numeric_tags: int = 0  # tags that are numbers without names
    tags_without_scheme: int = 0  # tags such as O and others without B- or I-
    dropped: dict[str, int] = field(default_factory=dict)  # reason -> items of the source


@dataclass(frozen=True)
class FoldStats:
    """Counts of a task that is scored by cross-validation."""

    folds: int
    groups: int  # groups that are kept whole; 0 without groups
    missing_a_label: int  # training sets, over all seeds, that lack a label
    training_sets: int  # folds times seeds


@dataclass(frozen=True)
class DatasetStats:
    """Statistics of a task: of its splits, its extra test sets, and its folds."""

    task: str
    kind: str
    splits: dict[str, SplitStats]
    extra_test_sets: dict[str, SplitStats]
    cross_validation: FoldStats | None


def compute_dataset_stats(task: TaskData, finetune_seeds: Sequence[int]) -> DatasetStats:
    """Collect the statistics of a task from task.json and its folds."""
    info = task.info
    splits = {}
    extra_test_sets = {}
    for name in info.counts:
        if name.startswith(EXTRA_TEST_PREFIX):
            extra_test_sets[name.removeprefix(EXTRA_TEST_PREFIX)] = compute_split_stats(info, name)
        else:
            splits[name] = compute_split_stats(info, name)
    return DatasetStats(
        task=info.name,
        kind=info.kind,
        splits=splits,
        extra_test_sets=extra_test_sets,
        cross_validation=compute_fold_stats(task, finetune_seeds) if info.folds else None,
    )


def compute_split_stats(info: TaskInfo, name: str) -> SplitStats:
    """Collect the counts of one split, or of an extra test set, from task.json."""
    counts = {stat: getattr(info, stat).get(name, 0) for stat in SPLIT_COUNTS}
    dropped = {reason: n for reason, n in info.dropped.get(name, {}).items() if n}
    return SplitStats(
        items=info.counts[name],
        held_out_from_train=name == "validation" and bool(info.held_out_from_train),
        dropped=dropped,
        **counts,
    )


def compute_fold_stats(task: TaskData, finetune_seeds: Sequence[int]) -> FoldStats:
    """Count the folds of a task, and the training sets that lack a label."""
    info = task.info
    assert info.folds is not None
    training_sets = [
        task.split_items(seed=seed, fold=fold)[0]
        for seed in finetune_seeds
        for fold in info.fold_numbers
    ]
    missing_a_label = 0
    if load_kind(info.kind).answer.has_one_label:
        for part in training_sets:
            missing_a_label += task.select_items(part)["label"].nunique() < len(info.labels)
    return FoldStats(
        folds=info.folds,
        groups=task.splits["train"]["group"].nunique() if info.grouped else 0,
        missing_a_label=missing_a_label,
        training_sets=len(training_sets),
    )


def write_dataset_stats(path: Path, stats: DatasetStats) -> None:
    """Write the statistics as JSON."""
    artifacts.write_json(path, asdict(stats))


def read_dataset_stats(path: Path) -> DatasetStats:
    """Read the statistics of one task. Raises InputError if the file is missing or malformed."""
    return parse_record(DatasetStats, artifacts.read_json(path), str(path))
