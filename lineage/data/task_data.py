"""A task's items as the task stage wrote them, and which of them are learned from, chosen by and scored: its splits, or folds of train.

Shapes: N items of a table.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pandas as pd

from lineage.artifacts import read_json, read_manifest, read_table
from lineage.data.subsets import choose_heldout, stratification_labels
from lineage.randomness import generator

Split = Literal["train", "validation", "test"]
EXTRA_TEST_PREFIX = "test-"  # and a name: the table of a second test set


@dataclass(frozen=True)
class SplitItems:
    """Some items of one of a task's tables, ascending, and what they are for."""

    split: Split
    table: str
    rows_N: np.ndarray
    test_set: str  # the task's name, or that of its second test set


def fold_numbers(info: dict[str, Any]) -> list[int | None]:
    """The folds of each repetition; None alone where the task has splits of its own."""
    return [*range(info["folds"])] if info.get("folds") else [None]


@dataclass(frozen=True)
class TaskData:
    """One artifacts/tasks folder. Test files are opened only where the report asks for the test split."""

    info: dict[str, Any]  # task.json
    splits: dict[
        str, pd.DataFrame
    ]  # tables by name: the splits, `test-NAME` of a second test set; with folds train alone
    include_test: bool = True  # whether test items are scored

    @classmethod
    def load(cls, folder: Path, *, split: str) -> "TaskData":
        """Train, validation, and all test sets where `split` is test."""
        read_manifest(folder, "task")
        facts, tested = read_json(folder / "task.json"), split == "test"
        names = [
            "train",
            "validation",
            *(
                ["test", *map(EXTRA_TEST_PREFIX.__add__, facts["extra_test_sets"])]
                if tested
                else []
            ),
        ]
        return cls(
            facts,
            {
                n: read_table(folder / f"{n}.parquet")
                for n in names
                if (folder / f"{n}.parquet").is_file()
            },
            tested,
        )

    @property
    def scored_splits(self) -> list[Split]:
        """The splits that get predictions."""
        folds = fold_numbers(self.info) != [None]
        has: dict[Split, bool] = {
            "validation": folds or "validation" in self.splits,
            "test": self.include_test and (folds or "test" in self.splits),
        }
        return [split for split, there in has.items() if there]

    def select_items(self, part: SplitItems) -> pd.DataFrame:
        """The items of a part."""
        table = self.splits[part.table]
        return table if len(part.rows_N) == len(table) else table.iloc[part.rows_N]

    def split_items(self, *, seed: int, fold: int | None) -> list[SplitItems]:
        """Train first, then what is scored. With folds the seed is that of the repetition: each deals the items out anew."""
        own: str = self.info["name"]
        if fold is not None:
            rows = assign_fold_splits(
                self.splits["train"],
                fold=fold,
                seed=seed,
                folds=self.info["folds"],
                by_group=self.info["grouped"],
                validation_share=self.info["validation_share"],
            )
            if (
                self.info["answer"] == "span"
            ):  # a question whose answer was cut off is scored, and nothing can be learned from it
                rows["train"] = rows["train"][
                    (self.splits["train"]["label"].map(len) > 0).to_numpy()[rows["train"]]
                ]
            return [
                SplitItems(split, "train", some, own)
                for split, some in rows.items()
                if split == "train" or split in self.scored_splits
            ]
        found = []
        for name, table in self.splits.items():
            split: Any = "test" if name.startswith(EXTRA_TEST_PREFIX) else name
            found.append(
                SplitItems(
                    split,
                    name,
                    np.arange(len(table)),
                    name.removeprefix(EXTRA_TEST_PREFIX)
                    if name.startswith(EXTRA_TEST_PREFIX)
                    else own,
                )
            )
        return sorted(found, key=lambda part: part.split != "train")


def assign_fold_splits(
    items: pd.DataFrame,
    *,
    folds: int,
    fold: int,
    seed: int,
    by_group: bool,
    validation_share: float,
) -> dict[Split, np.ndarray]:
    """(N,) indices of the items for each split: the fold is test; of the rest a share is validation; what is left is learned from.

    Folds differ by an item at most, and in each label too. With `grouped` whole groups are dealt out instead, and stay together in validation too:
    what is learned of an author, a document or a patient is never scored on the same one. No side is empty where there are as many items, or
    groups, as folds, and three folds or more of groups. Without groups validation takes no label's last item.
    """
    rng, names_N, labels_N = (
        generator("deal", seed),
        items["group"].to_numpy(str),
        stratification_labels(items),
    )
    if by_group:
        groups = rng.permutation(np.unique(names_N))
        fold_N = pd.Series(np.arange(len(groups)) % folds, groups)[names_N].to_numpy()
    else:
        order, fold_N = rng.permutation(len(items)), np.empty(len(items), int)
        fold_N[order[np.argsort(labels_N[order], kind="stable")]] = np.arange(len(items)) % folds
    rest, test = np.flatnonzero(fold_N != fold), np.flatnonzero(fold_N == fold)
    rng = generator("folds", seed, fold)
    if by_group:
        order = rng.permutation(np.unique(names_N[rest]))
        sizes = np.cumsum([(names_N[rest] == name).sum() for name in order])
        count = min(1 + int(np.searchsorted(sizes, validation_share * len(rest))), len(order) - 1)
        chosen = np.isin(names_N[rest], order[:count])
    else:
        count = min(max(1, round(validation_share * len(rest))), len(rest) - 1)
        some = choose_heldout(labels_N[rest], count, seed=seed)
        chosen = np.isin(
            np.arange(len(rest)), some if len(some) else [0]
        )  # every label but once there: one of them has to go
    return {"train": rest[~chosen], "validation": rest[chosen], "test": test}
