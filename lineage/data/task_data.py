"""Load the items that the task stage wrote, and assign them to train, validation and test.

Shapes: N items of a table.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Literal, cast

import numpy as np
import pandas as pd

from lineage.artifacts import check_intact, read_manifest, read_table
from lineage.data.splits import choose_heldout, stratification_labels
from lineage.randomness import generator
from lineage.results import Note
from lineage.tasks.base import load_kind
from lineage.tasks.info import INFO_FILE, TaskInfo

Split = Literal["train", "validation", "test"]
EXTRA_TEST_PREFIX = "test-"  # the table of an extra test set is test-NAME


@dataclass(frozen=True)
class SplitItems:
    """Some items of one of a task's tables, and what they are used for."""

    split: Split
    table: str
    rows_N: np.ndarray  # ascending
    test_set: str  # the name of the task, or of its extra test set


@dataclass(frozen=True)
class TaskData:
    """One folder of artifacts/tasks. Test files are read only if the report needs them."""

    info: TaskInfo
    # Tables by name: the splits, and test-NAME of extra test sets; with folds train alone.
    splits: dict[str, pd.DataFrame]
    include_test: bool = True  # whether test items are scored

    @classmethod
    def load(cls, folder: Path, *, split: str) -> "TaskData":
        """Load train and validation, and all test sets if `split` is test.

        Raises InputError if a file that is read is damaged.
        """
        read_manifest(folder, "task")
        check_intact(folder, INFO_FILE)
        info = TaskInfo.read(folder)
        include_test = split == "test"
        names = ["train", "validation"]
        if include_test:
            names.append("test")
            names.extend(f"{EXTRA_TEST_PREFIX}{name}" for name in info.extra_test_sets)
        check_intact(folder, *(f"{name}.parquet" for name in names))
        splits = {}
        for name in names:
            path = folder / f"{name}.parquet"
            if path.is_file():
                splits[name] = read_table(path)
        return cls(info, splits, include_test)

    @property
    def scored_splits(self) -> list[Split]:
        """The splits that get predictions."""
        has_folds = bool(self.info.folds)
        scored: list[Split] = []
        if has_folds or "validation" in self.splits:
            scored.append("validation")
        if self.include_test and (has_folds or "test" in self.splits):
            scored.append("test")
        return scored

    def select_items(self, part: SplitItems) -> pd.DataFrame:
        """Return the items of a part."""
        table = self.splits[part.table]
        return table if len(part.rows_N) == len(table) else table.iloc[part.rows_N]

    def split_items(self, *, seed: int, fold: int | None) -> list[SplitItems]:
        """Return train first, then the scored parts; with folds each `seed` assigns items again."""
        if fold is not None:
            return self._fold_parts(seed=seed, fold=fold)
        parts = []
        for name, table in self.splits.items():
            rows_N = np.arange(len(table))
            if name.startswith(EXTRA_TEST_PREFIX):
                test_set = name.removeprefix(EXTRA_TEST_PREFIX)
                parts.append(SplitItems("test", name, rows_N, test_set))
            else:
                parts.append(SplitItems(cast(Split, name), name, rows_N, self.info.name))
        return sorted(parts, key=lambda part: part.split != "train")

    def _fold_parts(self, *, seed: int, fold: int) -> list[SplitItems]:
        """Return the parts of `split_items` for one fold of the table train."""
        items = self.splits["train"]
        assert self.info.folds is not None
        rows = assign_fold_splits(
            items,
            folds=self.info.folds,
            fold=fold,
            seed=seed,
            by_group=self.info.grouped,
            validation_share=self.info.validation_share,
        )
        # A question whose answer was cut off is scored, but nothing can be learned from it.
        can_be_learned_N = load_kind(self.info.kind).answer.can_be_learned(items)
        rows["train"] = rows["train"][can_be_learned_N[rows["train"]]]
        return [
            SplitItems(split, "train", rows_N, self.info.name)
            for split, rows_N in rows.items()
            if split == "train" or split in self.scored_splits
        ]


def assign_fold_splits(
    items: pd.DataFrame,
    *,
    folds: int,
    fold: int,
    seed: int,
    by_group: bool,
    validation_share: float,
) -> dict[Split, np.ndarray]:
    """Return (N,) indices of the items of each split.

    The fold is test, and a share of the rest validation. Folds differ by at most one item, in each
    label too. With `by_group` whole groups are assigned instead. No split is empty if there are as
    many items, or groups, as folds, and with groups at least three folds. Without groups validation
    does not take the last item of a label.
    """
    rng = generator("deal", seed)
    if by_group:
        groups_N = items["group"].to_numpy(str)
        groups = rng.permutation(np.unique(groups_N))
        fold_N = pd.Series(np.arange(len(groups)) % folds, groups)[groups_N].to_numpy()
        rest = np.flatnonzero(fold_N != fold)
        order = generator("folds", seed, fold).permutation(np.unique(groups_N[rest]))
        cumulative_sizes = np.cumsum([(groups_N[rest] == group).sum() for group in order])
        # Validation takes the first groups that together reach its share, and leaves one to train.
        num_groups = 1 + int(np.searchsorted(cumulative_sizes, validation_share * len(rest)))
        num_groups = min(num_groups, len(order) - 1)
        is_validation = np.isin(groups_N[rest], order[:num_groups])
    else:
        labels_N = stratification_labels(items)
        order = rng.permutation(len(items))
        fold_N = np.empty(len(items), int)
        # Assigned label by label, so that every fold gets its share of each label.
        by_label = order[np.argsort(labels_N[order], kind="stable")]
        fold_N[by_label] = np.arange(len(items)) % folds
        rest = np.flatnonzero(fold_N != fold)
        count = min(max(1, round(validation_share * len(rest))), len(rest) - 1)
        heldout = choose_heldout(labels_N[rest], count, seed=seed)
        if len(heldout) == 0:  # every label occurs once: one of them has to go
            heldout = np.array([0])
        is_validation = np.isin(np.arange(len(rest)), heldout)
    return {
        "train": rest[~is_validation],
        "validation": rest[is_validation],
        "test": np.flatnonzero(fold_N == fold),
    }


def truncated_answers_notes(info: TaskInfo, table: str) -> list[Note]:
    """Return a note on the questions of a table whose answer max_words cut off, if any."""
    num_lost = info.truncated_answers.get(table, 0)
    if not num_lost:
        return []
    return [Note("answers_cut_off", {"count": num_lost, "of": info.counts[table]})]
