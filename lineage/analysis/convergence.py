"""Has fine-tuning converged? The unigram control of each task, and the learning curves."""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pandas as pd

from lineage import artifacts
from lineage.config.params import Grid
from lineage.results import UNIGRAM_PREFIX

# How far a bag of word embeddings may lie below logistic regression on the same tokens.
CONTROL_MARGIN = 0.03
CONTROL_COLUMNS = ["task", "model", "label_count"]
CURVE_KEY = ["init", "transfer", "head"]


@dataclass(frozen=True)
class ConvergenceControl:
    """A bag of words that was fine-tuned from random init, and its unigram control.

    Both are means over seeds and folds. `lineage.evaluation.unigram_control` says more.
    """

    task: str
    label_count: str
    model: str
    metric: str
    fine_tuned: float
    unigrams: float

    @property
    def has_converged(self) -> bool:
        """The bag of words is at most CONTROL_MARGIN below the control."""
        return self.fine_tuned >= self.unigrams - CONTROL_MARGIN


@dataclass(frozen=True)
class FinetuneCurve:
    """The learning curve of one trained head, with the most labels and the first seeds."""

    task: str
    model: str
    init: str
    transfer: str
    head: str
    metric: str
    kept_epoch: float  # of the weights that are used
    # None if a value is not finite: a correlation of constant predictions has none.
    epoch: tuple[float, ...]
    train_loss: tuple[float | None, ...]
    validation_loss: tuple[float | None, ...]
    validation_score: tuple[float | None, ...]


def list_controls(table: pd.DataFrame, split: str) -> Iterator[ConvergenceControl]:
    """Yield the controls of all rows, in the order of the table."""
    is_scored = (table["split"] == split) & (table["trial"] == "chosen") & (table["group"] == "all")
    is_own = table["test_set"] == table["task"]
    is_bag = (table["init"] == "random") & (table["transfer"] == "finetuned")
    rows = table[is_scored & is_own & is_bag & (table["status"] == "ok")]
    is_control = rows["metric"].str.startswith(UNIGRAM_PREFIX)
    for key, controls in rows[is_control].groupby(CONTROL_COLUMNS, sort=False):
        task, model, label_count = map(str, key)
        metric = controls["metric"].iloc[0].removeprefix(UNIGRAM_PREFIX)
        is_same = (rows[CONTROL_COLUMNS] == list(key)).all(axis=1)
        fine_tuned = rows[is_same & (rows["metric"] == metric)]
        if len(fine_tuned):
            yield ConvergenceControl(
                task,
                label_count,
                model,
                metric,
                float(fine_tuned["value"].mean()),
                float(controls["value"].mean()),
            )


def read_finetune_curves(results_dir: Path, grid: Grid) -> Iterator[FinetuneCurve]:
    """Yield the learning curves of models that were fine-tuned, pretrained and random-init ones."""
    for task in grid.tasks:
        for model in grid.models:
            name = f"evaluate-{model}-{grid.pretrain_seeds[0]}-{task}"
            path = results_dir / "curves" / f"{name}.parquet"
            if path.is_file():
                yield from _first_curves(artifacts.read_table(path))


def _first_curves(table: pd.DataFrame) -> Iterator[FinetuneCurve]:
    chosen = table[(table["trial"] == "chosen") & (table["transfer"] == "finetuned")]
    for _, curves in chosen.groupby(CURVE_KEY, sort=False):
        most_labels = max(
            curves["label_count"], key=lambda count: math.inf if count == "all" else float(count)
        )
        curve = curves[curves["label_count"] == most_labels]
        curve = curve[curve["finetune_seed"] == curve["finetune_seed"].min()]
        if curve["fold"].notna().any():
            curve = curve[curve["fold"] == curve["fold"].min()]
        first = curve.iloc[0]
        yield FinetuneCurve(
            task=str(first["task"]),
            model=str(first["model"]),
            init=str(first["init"]),
            transfer=str(first["transfer"]),
            head=str(first["head"]),
            metric=str(first["metric"]),
            kept_epoch=float(curve.loc[curve["is_kept"].astype(bool), "epoch"].iloc[0]),
            epoch=tuple(curve["epoch"].astype(float)),
            train_loss=_finite_values(curve["train_loss"]),
            validation_loss=_finite_values(curve["validation_loss"]),
            validation_score=_finite_values(curve["validation_score"]),
        )


def _finite_values(column: pd.Series) -> tuple[float | None, ...]:
    """Return the values, None for those that are not finite, which JSON cannot hold."""
    values = column.astype(float)
    return tuple(value if math.isfinite(value) else None for value in values)
