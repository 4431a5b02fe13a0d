"""Choices that are nested: a smaller number is always contained in a larger one, and every arm of the comparison gets the same."""

from typing import Literal

import numpy as np
import pandas as pd


def nested_stratified_subset(
    labels: np.ndarray, count: int | Literal["all"], *, seed: int, cover_labels: bool = True
) -> np.ndarray:
    """Indices, ascending, of `count` items, or of all where there are no more.

    The first items `cover` every label once, as what is learned from has to; from there on each label has its share of the whole, so that any
    prefix is stratified. Without `cover` each has its share from the start, those that come to less than one item by lot, which is another lot for
    another count.
    """
    labels = np.asarray(labels)
    if count == "all" or count >= len(labels):
        return np.arange(len(labels))
    rng = np.random.default_rng([seed, 1])
    order = rng.permutation(len(labels))
    place = np.empty(len(labels))
    for label in np.unique(labels):
        own = order[labels[order] == label]
        few = not cover_labels and len(own) * count < len(
            labels
        )  # less than one item: where each of many had the same place, all of them or none were in
        place[own] = (np.arange(len(own)) + (rng.random() if few else 0.5)) / len(own)
        place[own[0]] -= cover_labels  # at least one of each
    tie = np.argsort(order)
    return np.sort(np.lexsort((tie, place))[:count])


def choose_heldout(labels: np.ndarray, count: int, *, seed: int) -> np.ndarray:
    """Indices, ascending, of `count` items that training can do without: fewer where a label would leave the others altogether.

    Of many labels with few items some have one there: one of each would be all of it.
    """
    rows = {label: np.flatnonzero(labels == label) for label in np.unique(labels)}
    several = np.flatnonzero(
        np.isin(labels, [label for label, own in rows.items() if len(own) > 1])
    )
    chosen = several[
        nested_stratified_subset(labels[several], count, seed=seed, cover_labels=False)
    ]
    return np.setdiff1d(chosen, [own[0] for own in rows.values() if np.isin(own, chosen).all()])


def stratification_labels(items: pd.DataFrame) -> np.ndarray:
    """By what a subset of a task's items is stratified: their labels, or nothing where they have none, or numbers, or a tag for each word."""
    labels = items["label"].to_numpy() if "label" in items else np.zeros(0)
    return (
        labels
        if np.issubdtype(labels.dtype, np.integer) or (len(labels) and isinstance(labels[0], str))
        else np.zeros(len(items))
    )


def nested_random_subset(
    num_items: int, count: int | None, *, rng: np.random.Generator
) -> np.ndarray:
    """Indices, ascending, of `count` of so many items chosen at random; all of them where there are no more or count is None."""
    if count is None or count >= num_items:
        return np.arange(num_items)
    return np.sort(rng.permutation(num_items)[:count])
