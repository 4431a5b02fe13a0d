"""The sense of the nearest occurrences of a word: precision at k, by model and layer.

The results of `lineage.methods.neighbours` are no systems, so they are in no ranking and no
comparison. Each layer of a pretrained model is compared with the same layer under random weights,
and all these differences are read together. Where there are enough words, a word is one unit.
"""

import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, fields
from pathlib import Path

import pandas as pd

from lineage import artifacts
from lineage.analysis import statistics
from lineage.analysis.cells import ResultCell, add_predictions, read_predictions
from lineage.analysis.comparisons import estimate_gain
from lineage.analysis.records import (
    Analysis,
    LayerGain,
    LayerPrecision,
    MapPoint,
    NeighbourExample,
    SenseNeighbours,
    System,
)
from lineage.config.params import Grid
from lineage.language import join_words
from lineage.methods.neighbours import CHANCE, MAP, NEAREST, PRECISION, NeighboursMethod
from lineage.results import LAYER_TRIAL
from lineage.tasks.info import TaskInfo

MAX_EXAMPLES = 3
MAX_MAP_POINTS = 200
SHOWN_WORDS = 8  # on each side of an occurrence


@dataclass(frozen=True)
class OccurrenceText:
    """A word in its context, which the page may show."""

    task: str
    id: str
    left: str
    word: str
    right: str


@dataclass(frozen=True)
class _Occurrences:
    """The predictions of one model and start of its weights, by layer."""

    layers: list[pd.DataFrame]  # from the embeddings upwards
    cells: list[ResultCell]


def build_sense_neighbours(results_dir: Path, grid: Grid, *, split: str) -> list[SenseNeighbours]:
    """Return the precision of each model's layers, in the order of the grid.

    Raises InputError if a file of predictions is missing.
    """
    tables = []
    for predictions in read_predictions(results_dir, grid):
        is_shown = (predictions["head"] == NeighboursMethod.head) & (predictions["split"] == split)
        if is_shown.any():
            tables.append(predictions[is_shown])
    if not tables:
        return []
    found: dict[tuple[str, str, str], _Occurrences] = {}
    for (task, model, init), table in pd.concat(tables).groupby(["task", "model", "init"]):
        found[str(task), str(model), str(init)] = _split_layers(table, split)
    gains = _judge_gains(found)
    order = {name: number for number, name in enumerate([*grid.tasks, *grid.models])}
    keys = sorted(found, key=lambda key: (order[key[0]], order[key[1]], key[2]))
    return [_summarize(key, found[key], gains) for key in keys]


def _split_layers(table: pd.DataFrame, split: str) -> _Occurrences:
    numbers = table["trial"].str.removeprefix(LAYER_TRIAL).astype(int)
    layers = [own.assign(trial="chosen") for _, own in table.groupby(numbers)]
    return _Occurrences(layers, [_build_cell(own, split) for own in layers])


def _build_cell(table: pd.DataFrame, split: str) -> ResultCell:
    """Return the scores of one layer by occurrence, or by word where there are enough."""
    first = table.iloc[0]
    system = System(**{field.name: str(first[field.name]) for field in fields(System)})
    cell = ResultCell(system, first["task"], "", first["label_count"], PRECISION)
    for seed, own in table.groupby("pretrain_seed"):
        cell.seed_values[int(str(seed)), None] = float(own["correct"].mean())
        cell.num_examples = len(own)
    key = (*(getattr(system, field.name) for field in fields(System)), cell.task, cell.label_count)
    add_predictions({key: cell}, table, split=split)
    return cell


def _judge_gains(
    found: dict[tuple[str, str, str], _Occurrences],
) -> dict[tuple[str, str, int], LayerGain]:
    """Compare each layer with the same one under random weights, by task, model and layer."""
    estimates: dict[tuple[str, str, int], statistics.Estimate] = {}
    for (task, model, init), pretrained in found.items():
        control = found.get((task, model, "random"))
        if init != "pretrained" or control is None:
            continue
        for layer, cells in enumerate(zip(pretrained.cells, control.cells, strict=True)):
            estimate = estimate_gain(*cells)
            if estimate is not None:
                estimates[task, model, layer] = estimate
    judged = statistics.judge_differences([*estimates.values()])
    return {
        key: LayerGain(estimate.mean, one.low, one.high, one.verdict)
        for (key, estimate), one in zip(estimates.items(), judged, strict=True)
    }


def _summarize(
    key: tuple[str, str, str],
    occurrences: _Occurrences,
    gains: dict[tuple[str, str, int], LayerGain],
) -> SenseNeighbours:
    task, model, init = key
    layers = []
    for number, cell in enumerate(occurrences.cells):
        low, high = cell.interval_over_items() or (None, None)
        gain = gains.get((task, model, number)) if init == "pretrained" else None
        layers.append(LayerPrecision(number, cell.mean, low, high, gain))
    best = max(layers, key=lambda one: one.precision).layer
    table = occurrences.layers[best]
    table = table[table["pretrain_seed"] == table["pretrain_seed"].min()]
    num_neighbours = max(
        len(json.loads(nearest)) for own in occurrences.layers for nearest in own[NEAREST]
    )
    return SenseNeighbours(
        task=task,
        model=model,
        init=init,
        num_neighbours=num_neighbours,
        num_words=table["group"].nunique(),
        num_occurrences=table["id"].nunique(),
        chance=float(table[CHANCE].mean()),
        layers=tuple(layers),
        points=tuple(_place_points(table)),
        examples=tuple(_choose_examples(table)) if num_neighbours else (),
    )


def _words_by_frequency(table: pd.DataFrame) -> list[str]:
    counts = table.groupby("group")["id"].nunique()
    return [str(word) for word in counts.sort_values(ascending=False, kind="stable").index]


def _place_points(table: pd.DataFrame) -> Iterator[MapPoint]:
    """Yield the places of the occurrences of the most frequent word."""
    own = table[table["group"] == _words_by_frequency(table)[0]].sort_values("id")
    for row in own.head(MAX_MAP_POINTS).to_dict("records"):
        yield MapPoint(str(row["id"]), str(row["label"]), float(row[MAP[0]]), float(row[MAP[1]]))


def _choose_examples(table: pd.DataFrame) -> Iterator[NeighbourExample]:
    """Yield the first occurrence of each of the most frequent words, so that none is chosen."""
    for word in _words_by_frequency(table)[:MAX_EXAMPLES]:
        row = table[table["group"] == word].sort_values("id").iloc[0]
        nearest = [(item, own) for item, own in json.loads(row[NEAREST])[:MAX_EXAMPLES]]
        yield NeighbourExample(str(row["id"]), str(row["label"]), tuple(nearest))


def read_occurrences(
    analysis: Analysis, *, tasks_dir: Path, show_text: bool
) -> tuple[OccurrenceText, ...]:
    """Return the texts that the examples and maps name; none if texts may not be shown."""
    if not show_text:
        return ()
    wanted: dict[str, set[str]] = {}
    for one in analysis.sense_neighbours:
        ids = wanted.setdefault(one.task, set())
        ids |= {point.id for point in one.points[:1]}
        for example in one.examples:
            ids |= {example.id, *(item for item, _ in example.nearest)}
    return tuple(
        text for task, ids in wanted.items() for text in _read_texts(tasks_dir / task, task, ids)
    )


def _read_texts(folder: Path, task: str, ids: Iterable[str]) -> Iterator[OccurrenceText]:
    info = TaskInfo.read(folder)
    tables = [
        artifacts.read_table(folder / f"{name}.parquet")
        for name in info.has
        if name != "unlabelled"
    ]
    items = pd.concat([table[table["id"].isin({*ids})] for table in tables])
    for row in items.sort_values("id").to_dict("records"):
        tokens: Sequence[str] = [str(token) for token in row["tokens"]]
        target = int(row["target"])
        yield OccurrenceText(
            task,
            str(row["id"]),
            join_words(tokens[max(0, target - SHOWN_WORDS) : target], info.language),
            tokens[target],
            join_words(tokens[target + 1 : target + 1 + SHOWN_WORDS], info.language),
        )
