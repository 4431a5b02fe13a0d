"""Validation that is carved out of train, and what stands in train too: the same items, and items of the same groups.

Shapes: N items.
"""

from collections import Counter
from typing import Any

import numpy as np
import pandas as pd

from lineage.config.data import Task
from lineage.data.subsets import choose_heldout, nested_stratified_subset, stratification_labels
from lineage.errors import InputError
from lineage.randomness import generator
from lineage.tasks.base import Kind


def split_off_validation(
    splits: dict[str, pd.DataFrame],
    task: Task,
    dropped: dict[str, dict[str, int]],
    *,
    by_group: bool,
    seed: int,
    where: str,
) -> int:
    """Take validation out of train where none is given; how many items were taken. Raises InputError.

    With `grouped` these are whole groups, in which labels have not their shares, but none is taken whole; where every group is too large for that,
    as where they are two kinds of question, items, as without. In these each label has its share.
    Where train has a limit and validation none, validation is the share of what is used, not of what there is: of the items taken it keeps so many.
    """
    if "validation" in splits:
        return 0
    train = splits["train"]
    count = round(task.validation_share * len(train))
    if not 0 < count < len(train):
        raise InputError(
            f"{where}: there is no validation split, and {task.validation_share} of {len(train)} training items leaves one side empty; "
            "give a validation split, or change validation_share"
        )
    chosen = (
        choose_whole_groups(
            train["group"].to_numpy(str),
            stratification_labels(train),
            count,
            rng=generator("carve", seed),
        )
        if by_group
        else np.zeros(0, int)
    )
    if len(chosen) == 0:
        chosen = choose_heldout(stratification_labels(train), count, seed=seed)
    if len(chosen) == 0:
        raise InputError(
            f"{where}: there is no validation split, and column '{task.label}' has no label with an item to spare, {len(train):,} in "
            "as many items: is this a regress task, or another column? If not, give more items"
        )
    splits["train"], taken = train.drop(index=list(chosen)).reset_index(drop=True), len(chosen)
    if task.limit.train is not None and task.limit.validation is None and task.validation_share < 1:
        used = max(1, round(task.validation_share / (1 - task.validation_share) * task.limit.train))
        if used < taken:
            dropped["validation"] = {"limit": taken - used}
            chosen = chosen[
                nested_stratified_subset(
                    stratification_labels(train)[chosen], used, seed=seed, cover_labels=False
                )
            ]
    splits["validation"] = train.iloc[chosen].reset_index(drop=True)
    return taken


def choose_whole_groups(
    groups_N: np.ndarray, labels_N: np.ndarray, count: int, *, rng: np.random.Generator
) -> np.ndarray:
    """Indices, ascending, of the items of whole groups: in a random order those that fit into `count`, then the smallest if that comes nearer.

    None where all are too large. A group that has a label's last items stays.
    """
    rows = {
        str(name): np.asarray(own)
        for name, own in pd.Series(range(len(groups_N))).groupby(groups_N).indices.items()
    }
    left, chosen, size = Counter(labels_N.tolist()), dict[str, np.ndarray](), 0
    order = rng.permutation(sorted(rows)).tolist()
    for name, last in [
        *((name, False) for name in order),
        *((name, True) for name in sorted(order, key=lambda name: len(rows[name]))),
    ]:
        after, labels = size + len(rows[name]), Counter(labels_N[rows[name]].tolist())
        fits = abs(after - count) < abs(size - count) if last else after <= count
        if (
            name not in chosen
            and fits
            and all(left[label] > number for label, number in labels.items())
        ):
            left.subtract(labels)
            chosen[name], size = rows[name], after
    return np.sort(np.concatenate([np.zeros(0, int), *chosen.values()]))


def count_repeats_in_train(
    splits: dict[str, pd.DataFrame], task: Task, kind: Kind
) -> dict[str, int]:
    """How many items of validation and test are read word for word in train; they are counted, not removed."""
    if "train" not in splits:
        return {}
    seen = {
        split: _item_texts(table, task, kind)
        for split, table in splits.items()
        if split != "unlabelled"
    }
    return {
        split: int(keys.isin(set(seen["train"])).sum())
        for split, keys in seen.items()
        if split != "train"
    }


def count_repeats_in_folds(
    splits: dict[str, pd.DataFrame], task: Task, kind: Kind
) -> dict[str, int]:
    """How many items stand several times in train, of the same words, and may therefore stand on both sides of a fold: in several groups, if any."""
    if not task.folds:
        return {}
    seen = _item_texts(splits["train"], task, kind)
    units = splits["train"]["group"] if task.group else seen.index.to_series()
    return {"train": int((units.groupby(seen).transform("nunique") > 1).sum())}


def _item_texts(table: pd.DataFrame, task: Task, kind: Kind) -> "pd.Series[Any]":
    """What of each item is read, in a text; two texts that are symmetric are the same the other way round."""
    own = table[[column for column in kind.identity_columns if column in table]].astype(str)
    return pd.Series(
        [
            "\0".join(sorted(texts) if task.symmetric else texts)
            for texts in own.itertuples(index=False)
        ],
        table.index,
        dtype="str",
    )


def count_groups_in_train(
    splits: dict[str, pd.DataFrame], grouped_splits: set[str]
) -> dict[str, int]:
    """How many items of each of the `named` splits, whose groups the user names, are of groups that train has items of too."""
    known = set(splits["train"]["group"]) if "train" in splits else set()
    return {
        split: int(splits[split]["group"].isin(known).sum())
        for split in grouped_splits
        if split != "train" and "group" in splits[split]
    }
