"""Choices that are nested: a smaller number is always contained in a larger one, and every arm of the comparison gets the same."""

from typing import Literal

import numpy as np
import pandas as pd


def nested_subset(labels: np.ndarray, count: int | Literal["all"], *, seed: int) -> np.ndarray:
    """Indices, ascending, of `count` items, or of all where there are no more.

    The first items cover every label once; from there on each label has its share of the whole, so that any prefix is stratified.
    """
    labels = np.asarray(labels)
    if count == "all" or count >= len(labels):
        return np.arange(len(labels))
    rng = np.random.default_rng([seed, 1])
    order = rng.permutation(len(labels))
    place = np.empty(len(labels))
    for label in np.unique(labels):
        own = order[labels[order] == label]
        place[own] = (np.arange(len(own)) + 0.5) / len(own)
        place[own[0]] -= 1  # at least one of each
    tie = np.argsort(order)
    return np.sort(np.lexsort((tie, place))[:count])


def spared(labels: np.ndarray, count: int, *, seed: int) -> np.ndarray:
    """Indices, ascending, of `count` items that training can do without: fewer where a label would leave the others altogether."""
    chosen = nested_subset(labels, count, seed=seed)
    rows = [np.flatnonzero(labels == label) for label in np.unique(labels)]
    return np.setdiff1d(chosen, [own[0] for own in rows if np.isin(own, chosen).all()])


def strata(items: pd.DataFrame) -> np.ndarray:
    """By what a subset of a task's items is stratified: their labels, or nothing where they have none, or numbers, or a tag for each word."""
    labels = items["label"].to_numpy() if "label" in items else np.zeros(0)
    return labels if np.issubdtype(labels.dtype, np.integer) or (len(labels) and isinstance(labels[0], str)) else np.zeros(len(items))


def nested_choice(items: int, count: int | None, *, rng: np.random.Generator) -> np.ndarray:
    """Indices, ascending, of `count` of so many items chosen at random; all of them where there are no more or count is None."""
    if count is None or count >= items:
        return np.arange(items)
    return np.sort(rng.permutation(items)[:count])
