"""The numbers and curves that DVC compares between versions of a study."""

import json
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from lineage import artifacts
from lineage.analysis.decision import Decision, widest_rankings
from lineage.analysis.records import Analysis
from lineage.answers.metrics import RANKING_METRICS

TEXT_COLUMN = "text_mb"
VALUE_COLUMN = "value"
LABELS_COLUMN = "training labels"  # no task has such a name
Point = dict[str, float | None]


def write_metrics(path: Path, analysis: Analysis, decisions: Sequence[Decision]) -> None:
    """Write the scores to expect by task and label count, and the end of each pretraining."""
    scores: dict[str, dict[str, float]] = {}
    for one in decisions:
        score = one.expected_score
        scores.setdefault(one.task, {})[one.label_count] = score
    pretraining: dict[str, dict[str, float | None]] = {}
    for (model, metric), points in _pretraining_points(analysis).items():
        pretraining.setdefault(model, {})[metric] = points[-1][VALUE_COLUMN]
    artifacts.write_json(path, {"score": scores, "pretraining": pretraining})


def write_plots(folder: Path, analysis: Analysis) -> None:
    """Write the curves of pretraining by model and metric, and the scores of each model."""
    shutil.rmtree(folder, ignore_errors=True)
    for (model, metric), points in _pretraining_points(analysis).items():
        _write_points(folder / "pretraining" / f"{model}-{metric}.json", points)
    for model, points in _score_points(analysis).items():
        _write_points(folder / "scores" / f"{model}.json", points)


def _pretraining_points(analysis: Analysis) -> dict[tuple[str, str], list[Point]]:
    """Return a validation metric over the text read, by model and metric: means over seeds."""
    values: dict[tuple[str, str], dict[int, list[float]]] = {}
    for curve in analysis.curves:
        by_text = values.setdefault((curve.model, curve.metric), {})
        for text_bytes, value in zip(curve.text_bytes, curve.value, strict=True):
            by_text.setdefault(text_bytes, []).append(value)
    found: dict[tuple[str, str], list[Point]] = {}
    for key, by_text in values.items():
        found[key] = [
            {TEXT_COLUMN: text_bytes / 1e6, VALUE_COLUMN: float(np.mean(by_text[text_bytes]))}
            for text_bytes in sorted(by_text)
        ]
    return found


def _score_points(analysis: Analysis) -> dict[str, list[Point]]:
    """Return the score of each model's best system, and of TF-IDF, over the number of labels.

    A point has the scores of all tasks, None where a task has none: DVC wants equal keys.
    """
    tasks = analysis.grid.tasks  # without their extra test sets
    found: dict[str, dict[int, Point]] = {}
    for ranking in widest_rankings(analysis.rankings).values():
        if ranking.label_count == "none" or ranking.task not in tasks:
            continue
        for standing in ranking.standings:
            points = found.setdefault(standing.system.model, {})
            empty: Point = dict.fromkeys(tasks)
            point = points.setdefault(ranking.train_examples, empty)
            point[LABELS_COLUMN] = ranking.train_examples
            point[ranking.task] = standing.mean * RANKING_METRICS[ranking.metric]
    return {model: [points[count] for count in sorted(points)] for model, points in found.items()}


def _write_points(path: Path, points: Sequence[dict[str, Any]]) -> None:
    """Write a JSON list with one point a line."""
    path.parent.mkdir(parents=True, exist_ok=True)
    lines = ",\n".join(json.dumps(one, sort_keys=True, allow_nan=False) for one in points)
    path.write_text(f"[\n{lines}\n]\n", encoding="utf-8")
