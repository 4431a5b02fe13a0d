"""Where in a network knowledge sits: the scores of probes of single layers.

The results of `lineage.methods.layer_probe` are no systems, so they are in no ranking and no
comparison. All differences between the top layer and the lowest contextual one are read together,
those of pretrained models and those of models with random weights apart.
"""

from collections.abc import Mapping
from pathlib import Path

import pandas as pd

from lineage.analysis import statistics
from lineage.analysis.cells import (
    ResultCell,
    add_predictions,
    build_cells,
    read_predictions,
)
from lineage.analysis.comparisons import estimate_gain
from lineage.analysis.records import LayerCurve, LayerGain, LayerScore
from lineage.config.data import Task
from lineage.config.params import Grid
from lineage.methods.base import MIX_WEIGHT, SELECTIVITY
from lineage.methods.layer_probe import LayerProbeMethod
from lineage.results import JOINED_FAMILY, LAYER_TRIAL, MIX_LAYER

INITS = ("pretrained", "random")
FIRST_CONTEXTUAL = 1  # layer 0 is the embeddings
Layers = dict[str, ResultCell]  # by number, and MIX_LAYER


def build_layer_curves(
    results_dir: Path, grid: Grid, table: pd.DataFrame, tasks: Mapping[str, Task], *, split: str
) -> list[LayerCurve]:
    """Return a curve for each task, model and start of its weights, at the most labels.

    Raises InputError if a file of predictions is missing.
    """
    is_probe = table["head"] == LayerProbeMethod.head
    rows = table[is_probe & table["init"].isin(INITS) & (table["family"] != JOINED_FAMILY)]
    rows = rows[rows["test_set"] == rows["task"]]
    if rows.empty:
        return []
    found = _read_layers(results_dir, grid, rows, tasks, split=split)
    estimates = {key: _estimate_top_gain(layers) for key, layers in found.items()}
    gains: dict[tuple[str, str, str], LayerGain] = {}
    verdict: statistics.Verdict
    for init in INITS:
        known = {key: one for key, one in estimates.items() if one is not None and key[2] == init}
        judged = statistics.judge_differences([*known.values()])
        for (key, estimate), one in zip(known.items(), judged, strict=True):
            verdict = "too few seeds" if _has_too_few_seeds(found[key]) else one.verdict
            gains[key] = LayerGain(estimate.mean, one.low, one.high, verdict)
    curves = [_build_curve(layers, rows, gains.get(key), split) for key, layers in found.items()]
    return sorted(
        curves,
        key=lambda one: (grid.tasks.index(one.task), grid.models.index(one.model), one.init),
    )


def _read_layers(
    results_dir: Path,
    grid: Grid,
    rows: pd.DataFrame,
    tasks: Mapping[str, Task],
    *,
    split: str,
) -> dict[tuple[str, str, str], Layers]:
    """Return the cells of all layers by task, model and init, each at its most labels."""
    kept = []
    for predictions in read_predictions(results_dir, grid):
        is_layer = predictions["trial"].str.startswith(LAYER_TRIAL)
        is_layer &= predictions["head"] == LayerProbeMethod.head
        kept.append(predictions[is_layer & (predictions["split"] == split)])
    answers = pd.concat(kept, ignore_index=True)
    found: dict[tuple[str, str, str], dict[str, Layers]] = {}
    most: dict[tuple[str, str, str], tuple[int, str]] = {}
    for layer in sorted({*rows["layer"]}, key=_order_of_layer):
        own = rows[rows["layer"] == layer].assign(layer="none")
        cells = build_cells(own, split=split, tasks=tasks)
        of_layer = answers[answers["trial"] == f"{LAYER_TRIAL}{layer}"].assign(trial="chosen")
        add_predictions(cells, of_layer, split=split)
        for cell in cells.values():
            if not cell.item_scores:
                continue
            key = (cell.task, cell.system.model, cell.system.init)
            found.setdefault(key, {}).setdefault(cell.label_count, {})[layer] = cell
            most[key] = max(most.get(key, (0, "")), (cell.train_examples, cell.label_count))
    return {key: by_count[most[key][1]] for key, by_count in found.items()}


def _order_of_layer(layer: str) -> tuple[bool, int]:
    return (layer == MIX_LAYER, 0 if layer == MIX_LAYER else int(layer))


def _estimate_top_gain(layers: Layers) -> statistics.Estimate | None:
    numbers = sorted(int(layer) for layer in layers if layer != MIX_LAYER)
    if not numbers or numbers[-1] <= FIRST_CONTEXTUAL:
        return None
    return estimate_gain(layers[str(numbers[-1])], layers[str(FIRST_CONTEXTUAL)])


def _has_too_few_seeds(layers: Layers) -> bool:
    """Return whether the seeds do not tell how others would turn out, as in comparisons."""
    (cell, *_) = layers.values()
    return len({finetune_seed for _, finetune_seed in cell.item_scores}) < statistics.MIN_SEEDS


def _build_curve(
    layers: Layers, rows: pd.DataFrame, gain: LayerGain | None, split: str
) -> LayerCurve:
    scores = {layer: _score_layer(layer, cell, rows, split) for layer, cell in layers.items()}
    mix = scores.pop(MIX_LAYER, None)
    first = next(iter(layers.values()))
    return LayerCurve(
        task=first.task,
        kind=first.kind,
        label_count=first.label_count,
        train_examples=first.train_examples,
        metric=first.metric,
        model=first.system.model,
        init=first.system.init,
        layers=tuple(scores.values()),
        mix=mix,
        top_gain=gain,
    )


def _score_layer(layer: str, cell: ResultCell, rows: pd.DataFrame, split: str) -> LayerScore:
    own = rows[
        (rows["layer"] == layer)
        & (rows["task"] == cell.task)
        & (rows["model"] == cell.system.model)
        & (rows["init"] == cell.system.init)
        & (rows["label_count"] == cell.label_count)
        & (rows["split"] == split)
    ]
    means = own.groupby("metric")["value"].mean().dropna()  # the mix has no selectivity
    low, high = cell.interval_over_items() or (None, None)
    return LayerScore(layer, cell.mean, low, high, means.get(SELECTIVITY), means.get(MIX_WEIGHT))
