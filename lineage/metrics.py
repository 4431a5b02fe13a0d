"""Metrics of labels: gold and prediction as arrays of equal length, any label type."""

from collections.abc import Callable

import numpy as np


def accuracy(gold: np.ndarray, prediction: np.ndarray) -> float:
    """The share of items that are right."""
    return float(np.mean(gold == prediction))


def macro_f1(gold: np.ndarray, prediction: np.ndarray) -> float:
    """The mean over labels of F1; labels that stand in neither array do not count."""
    scores = []
    for label in np.union1d(gold, prediction):
        hits = np.sum((gold == label) & (prediction == label))
        scores.append(2 * hits / (np.sum(gold == label) + np.sum(prediction == label)))
    return float(np.mean(scores))


def matthews(gold: np.ndarray, prediction: np.ndarray) -> float:
    """Matthews correlation, for any number of labels (Gorodkin 2004); 0 where gold or prediction holds one label only."""
    labels = np.union1d(gold, prediction)
    g_NL, p_NL = (array[:, None] == labels for array in (np.asarray(gold), np.asarray(prediction)))
    g_L, p_L, items = g_NL.sum(0).astype(float), p_NL.sum(0).astype(float), float(len(gold))
    covariance = np.sum(g_NL & p_NL) * items - g_L @ p_L
    spread = np.sqrt((items**2 - g_L @ g_L) * (items**2 - p_L @ p_L))
    return float(covariance / spread) if spread else 0.0


METRICS: dict[str, Callable[[np.ndarray, np.ndarray], float]] = {"accuracy": accuracy, "macro_f1": macro_f1, "matthews": matthews}
