"""Choose subsets of a task's items, split off validation, check folds, and count repeated items.

Subsets are nested: a smaller one is contained in a larger one.

Shapes: N items.
"""

import math
from collections import Counter
from typing import Any, Literal

import numpy as np
import pandas as pd

from lineage.config.data import Task
from lineage.errors import InputError, shorten_value
from lineage.randomness import generator
from lineage.tasks.base import Kind
from lineage.tasks.info import TaskInfo

MIN_FOLD_SIZE_FOR_CORRELATION = 3  # the correlation of two items is 1 or -1
MIN_REPEATED_SHARE = 0.1  # of the items of a split, from which on repeats cause a warning


def nested_stratified_subset(
    labels: np.ndarray, count: int | Literal["all"], *, seed: int, cover_labels: bool = True
) -> np.ndarray:
    """Return the ascending indices of `count` items, or of all if there are no more.

    Any prefix is stratified. With `cover_labels` the first items cover every label once. Without
    it, labels whose share is less than one item are drawn by lot, with another lot for another
    count.
    """
    labels = np.asarray(labels)
    if count == "all" or count >= len(labels):
        return np.arange(len(labels))
    rng = np.random.default_rng([seed, 1])
    order = rng.permutation(len(labels))
    rank = np.empty(len(labels))  # in [0, 1) within each label; below 0 comes first
    for label in np.unique(labels):
        rows = order[labels[order] == label]
        # If rare labels all had the same rank, either all of them or none would be chosen.
        is_rare = not cover_labels and len(rows) * count < len(labels)
        offset = rng.random() if is_rare else 0.5
        rank[rows] = (np.arange(len(rows)) + offset) / len(rows)
        if cover_labels:
            rank[rows[0]] -= 1
    tie = np.argsort(order)
    return np.sort(np.lexsort((tie, rank))[:count])


def choose_heldout(labels: np.ndarray, count: int, *, seed: int) -> np.ndarray:
    """Choose about `count` held-out items, stratified by label; return their ascending indices.

    No label loses all its items. Of many labels with few items only some are held out.
    """
    rows = {label: np.flatnonzero(labels == label) for label in np.unique(labels)}
    repeated_labels = [label for label, own_rows in rows.items() if len(own_rows) > 1]
    candidates = np.flatnonzero(np.isin(labels, repeated_labels))
    subset = nested_stratified_subset(labels[candidates], count, seed=seed, cover_labels=False)
    chosen = candidates[subset]
    last_items = [own_rows[0] for own_rows in rows.values() if np.isin(own_rows, chosen).all()]
    return np.setdiff1d(chosen, last_items)


def stratification_labels(items: pd.DataFrame) -> np.ndarray:
    """Return (N,) the labels by which to stratify; zeros for numbers, tags or no labels."""
    if "label" not in items:
        return np.zeros(len(items))
    labels = items["label"].to_numpy()
    is_text = len(labels) > 0 and isinstance(labels[0], str)
    if is_text or np.issubdtype(labels.dtype, np.integer):
        return labels
    return np.zeros(len(items))


def nested_random_subset(
    num_items: int, count: int | None, *, rng: np.random.Generator
) -> np.ndarray:
    """Return the ascending indices of `count` random items; of all if None or no more."""
    if count is None or count >= num_items:
        return np.arange(num_items)
    return np.sort(rng.permutation(num_items)[:count])


def split_off_validation(
    splits: dict[str, pd.DataFrame],
    task: Task,
    dropped: dict[str, dict[str, int]],
    *,
    by_group: bool,
    seed: int,
    where: str,
) -> int:
    """Move items from train to validation if no validation split is given.

    Return how many were taken. Raises InputError. With `by_group` whole groups are taken; if every
    group is too large, items are taken as without groups. If train has a limit and validation none,
    validation keeps only its share of what is used.
    """
    if "validation" in splits:
        return 0
    train = splits["train"]
    count = round(task.validation_share * len(train))
    if not 0 < count < len(train):
        raise InputError(
            f"{where}: there is no validation split, and {task.validation_share} of {len(train)} "
            "training items leaves one side empty; give a validation split, or change "
            "validation_share"
        )
    labels_N = stratification_labels(train)
    chosen = np.zeros(0, int)
    if by_group:
        groups_N = train["group"].to_numpy(str)
        chosen = choose_whole_groups(groups_N, labels_N, count, rng=generator("carve", seed))
    if len(chosen) == 0:
        chosen = choose_heldout(labels_N, count, seed=seed)
    if len(chosen) == 0:
        raise InputError(
            f"{where}: there is no validation split, and column '{task.label}' has no label that "
            f"occurs twice among {len(train):,} items: is this a text_regression task, "
            "or another column? If not, give more items"
        )
    splits["train"] = train.drop(index=list(chosen)).reset_index(drop=True)
    num_taken = len(chosen)
    num_used = num_taken
    share = task.validation_share
    if task.limit.train is not None and task.limit.validation is None and share < 1:
        num_used = max(1, round(share / (1 - share) * task.limit.train))
    if num_used < num_taken:
        dropped["validation"] = {"limit": num_taken - num_used}
        kept = nested_stratified_subset(labels_N[chosen], num_used, seed=seed, cover_labels=False)
        chosen = chosen[kept]
    splits["validation"] = train.iloc[chosen].reset_index(drop=True)
    return num_taken


def choose_whole_groups(
    groups_N: np.ndarray, labels_N: np.ndarray, count: int, *, rng: np.random.Generator
) -> np.ndarray:
    """Return the ascending indices of the items of whole groups, about `count` in all.

    Groups that fit are taken in random order, then the smallest if that comes nearer to `count`;
    none if all are too large. A group with the last items of a label stays.
    """
    indices = pd.Series(range(len(groups_N))).groupby(groups_N).indices
    rows = {str(group): np.asarray(own_rows) for group, own_rows in indices.items()}
    num_left = Counter(labels_N.tolist())
    chosen: dict[str, np.ndarray] = {}

    def add_groups(groups: list[str], *, may_exceed: bool) -> None:
        for group in groups:
            size = sum(map(len, chosen.values()))
            new_size = size + len(rows[group])
            if may_exceed:
                fits = abs(new_size - count) < abs(size - count)
            else:
                fits = new_size <= count
            labels = Counter(labels_N[rows[group]].tolist())
            leaves_all_labels = all(num_left[label] > number for label, number in labels.items())
            if group not in chosen and fits and leaves_all_labels:
                num_left.subtract(labels)
                chosen[group] = rows[group]

    order = rng.permutation(sorted(rows)).tolist()
    add_groups(order, may_exceed=False)
    add_groups(sorted(order, key=lambda group: len(rows[group])), may_exceed=True)
    return np.sort(np.concatenate([np.zeros(0, int), *chosen.values()]))


def check_folds(items: pd.DataFrame, task: Task, kind: Kind, where: str) -> None:
    """Raise InputError if some fold could not be the test set."""
    assert task.folds is not None
    is_grouped = kind.is_grouped(task)
    noun = "groups" if is_grouped else "items"
    count = items["group"].nunique() if is_grouped else len(items)
    if count < task.folds or count - math.ceil(count / task.folds) < 2:
        raise InputError(
            f"{where}: {count} {noun} are too few for {task.folds} folds: each fold needs one, and "
            "must leave one for training and one for validation; give more, or change the number "
            "of folds"
        )
    if kind.answer.are_numbers:
        size = f"{len(items)} items in {count} {noun}"
        _check_fold_correlations(items, task.folds, size, where, is_grouped=is_grouped)
    _check_fold_labels(items, where, is_grouped=is_grouped)


def _check_fold_correlations(
    items: pd.DataFrame, folds: int, size: str, where: str, *, is_grouped: bool
) -> None:
    """Raise InputError if the numbers of a fold may have no correlation; `size` is for messages."""
    units = items.groupby("group" if is_grouped else "id")["label"]
    num_units = units.ngroups
    # The smallest groups may meet in one fold.
    smallest_fold = int(units.size().nsmallest(num_units // folds).sum())
    # With fewer than two groups for each fold, some folds are a single group.
    may_be_one_group = is_grouped and num_units < 2 * folds
    may_be_constant = may_be_one_group and units.nunique().min() < 2
    if smallest_fold < MIN_FOLD_SIZE_FOR_CORRELATION or may_be_constant:
        raise InputError(
            f"{where}: {size} and {folds} folds: a fold may have only {smallest_fold} items, "
            "or a single group with the same number in all, so that it has no correlation; use "
            "fewer folds, or give more items"
        )


def _check_fold_labels(items: pd.DataFrame, where: str, *, is_grouped: bool) -> None:
    units = items["group"] if is_grouped else range(len(items))
    units_and_labels = pd.DataFrame({"label": stratification_labels(items), "unit": units})
    num_units = units_and_labels.groupby("label")["unit"].nunique()
    if len(num_units) > 1 and (num_units > 1).sum() < 2:
        rare_labels = num_units.index[num_units < 2][:3]
        rare = ", ".join(f"'{shorten_value(label)}'" for label in rare_labels)
        if len(num_units) > len(items) / 2:
            raise InputError(
                f"{where}: {len(num_units):,} labels for {len(items):,} items ({rare}, …) look like "
                "ids; name the column that holds the label"
            )
        raise InputError(
            f"{where}: all items of label {rare} are in one fold, and a model trained without "
            "that fold would see one label only; give more of them"
        )


def count_repeats_in_train(
    splits: dict[str, pd.DataFrame], task: Task, kind: Kind
) -> dict[str, int]:
    """Count the items of each other split whose texts occur in train; none are removed."""
    if "train" not in splits:
        return {}
    train_texts = set(item_texts(splits["train"], task, kind))
    return {
        split: int(item_texts(table, task, kind).isin(train_texts).sum())
        for split, table in splits.items()
        if split not in ("train", "unlabelled")
    }


def count_repeats_in_folds(
    splits: dict[str, pd.DataFrame], task: Task, kind: Kind
) -> dict[str, int]:
    """Count the items whose texts occur several times in train, so perhaps in several folds."""
    if not task.folds:
        return {}
    texts = item_texts(splits["train"], task, kind)
    units = splits["train"]["group"] if kind.is_grouped(task) else texts.index.to_series()
    return {"train": int((units.groupby(texts).transform("nunique") > 1).sum())}


def describe_blank_rows(info: TaskInfo) -> list[str]:
    """Return a warning for each split some of whose rows are blank."""
    counts = {split: dropped.get("blank", 0) for split, dropped in info.dropped.items()}
    return [
        f"{split} has {count:,} row{'s' if count > 1 else ''} without text, left out here"
        for split, count in counts.items()
        if count
    ]


def describe_repeats(info: TaskInfo) -> list[str]:
    """Return a warning for each split many of whose texts may be both learned and scored."""
    endings = {
        "duplicates_of_train": "train has too, word for word, so they are learned and then scored; "
        "remove them from train or from here",
        "duplicates_in_folds": "occur several times, so copies may be in both parts of a fold; "
        "keep one of each",
    }
    warnings = []
    for stat, ending in endings.items():
        for split, count in getattr(info, stat).items():
            num_items = info.counts[split]
            if count and count >= MIN_REPEATED_SHARE * num_items:
                warnings.append(f"{split} has {count:,} of {num_items:,} texts that {ending}")
    return warnings


def item_texts(table: pd.DataFrame, task: Task, kind: Kind) -> "pd.Series[Any]":
    """Return all that is read of each item as one text; symmetric pairs are sorted."""
    columns = [column for column in kind.identity_columns if column in table]
    rows = table[columns].astype(str).itertuples(index=False)
    texts = ["\0".join(sorted(row) if task.symmetric else row) for row in rows]
    return pd.Series(texts, table.index, dtype="str")


def count_groups_in_train(
    splits: dict[str, pd.DataFrame], grouped_splits: set[str]
) -> dict[str, int]:
    """Count the items of each split with named groups whose group occurs in train."""
    known = set(splits["train"]["group"]) if "train" in splits else set()
    return {
        split: int(splits[split]["group"].isin(known).sum())
        for split in grouped_splits
        if split != "train" and "group" in splits[split]
    }
