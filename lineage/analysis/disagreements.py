"""The items on which the best two systems of a task disagree most."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd

from lineage import artifacts
from lineage.analysis.cells import (
    read_setting_predictions,
    select_system,
    shorten_label,
    split_test_set,
)
from lineage.analysis.decision import largest_label_counts, widest_rankings
from lineage.analysis.records import Analysis, System
from lineage.tasks.base import load_kind
from lineage.tasks.info import TaskInfo

MAX_ITEMS_PER_SIDE = 3  # items on which the first system is better, and the second
MAX_TEXT_CHARACTERS = 300


@dataclass(frozen=True)
class ItemPrediction:
    """A system's prediction in its first repetition, and its accuracy over all of them."""

    prediction: str
    accuracy: float


@dataclass(frozen=True)
class DisagreementItem:
    """One item, the correct label, and the predictions of both systems."""

    id: str
    label: str
    predictions: tuple[ItemPrediction, ItemPrediction]
    text: str


@dataclass(frozen=True)
class Disagreements:
    """The items of one task."""

    task: str
    systems: tuple[System, System]
    items: tuple[DisagreementItem, ...]


def find_disagreements(
    analysis: Analysis, *, results_dir: Path, tasks_dir: Path, show_text: bool
) -> list[Disagreements]:
    """Return the items of most disagreement for each task, at its largest label count.

    These are items on which one system is right in more of its repetitions than the other. Kinds of
    task without named answers are left out. Without `show_text` there are none, since ids alone say
    nothing.
    """
    disagreements: list[Disagreements] = []
    if not show_text:
        return disagreements
    for task, ranking in largest_label_counts(analysis.rankings).items():
        kind = ranking.kind
        ranking = widest_rankings(analysis.rankings)[ranking.setting]
        if len(ranking.standings) < 2 or not load_kind(kind).answer.can_be_shown:
            continue
        systems = (ranking.standings[0].system, ranking.standings[1].system)
        predictions = read_setting_predictions(
            results_dir, analysis.grid, ranking.setting, split=analysis.split
        )
        paired = _item_accuracy(predictions, systems[0], kind).join(
            _item_accuracy(predictions, systems[1], kind), how="inner", rsuffix="_second"
        )
        gap = paired["accuracy"] - paired["accuracy_second"]
        first_better = gap[gap > 0].nlargest(MAX_ITEMS_PER_SIDE).index
        second_better = gap[gap < 0].nsmallest(MAX_ITEMS_PER_SIDE).index
        ids = [*first_better, *second_better]
        if not ids:
            continue
        texts = _read_texts(tasks_dir / split_test_set(task)[0], ids)
        rows = paired.loc[ids].to_dict("index")
        items = tuple(_disagreement_item(rows[item_id], item_id, texts[item_id]) for item_id in ids)
        disagreements.append(Disagreements(task, systems, items))
    return disagreements


def _disagreement_item(row: dict[Any, Any], item_id: str, text: str) -> DisagreementItem:
    predictions = (
        ItemPrediction(shorten_label(row["prediction"]), float(row["accuracy"])),
        ItemPrediction(shorten_label(row["prediction_second"]), float(row["accuracy_second"])),
    )
    return DisagreementItem(item_id, shorten_label(row["label"]), predictions, text)


def _item_accuracy(table: pd.DataFrame, system: System, kind: str) -> pd.DataFrame:
    """Return each item's accuracy over repetitions, its label, and the first prediction."""
    rows = select_system(table, system)
    rows = rows.sort_values(["pretrain_seed", "finetune_seed"], kind="stable")
    # `correct` is 0, 1/2 or 1 in kinds with ties. In others it is a contribution to the metric.
    accuracy = rows["correct"]
    if not load_kind(kind).answer.has_ties:
        is_chance = system.model == "chance"
        accuracy = rows["score"] if is_chance else rows["prediction"] == rows["label"]
    rows = rows.assign(accuracy=accuracy.astype(float))
    return rows.groupby("id").agg(
        accuracy=("accuracy", "mean"), label=("label", "first"), prediction=("prediction", "first")
    )


def _read_texts(task_dir: Path, ids: list[str]) -> dict[str, str]:
    """Return the texts of items by id, from the tables of a task."""
    info = TaskInfo.read(task_dir)
    names = [name for name in info.has if name != "unlabelled"]
    tables = [artifacts.read_table(task_dir / f"{name}.parquet") for name in names]
    items = pd.concat([table[table["id"].isin(ids)] for table in tables], ignore_index=True)
    columns = load_kind(info.kind).extract_texts(items, info.language)
    parts_by_id = zip(items["id"], *columns, strict=True)
    return {item_id: _shorten_text(" | ".join(parts)) for item_id, *parts in parts_by_id}


def _shorten_text(text: str) -> str:
    if len(text) <= MAX_TEXT_CHARACTERS:
        return text
    return text[: MAX_TEXT_CHARACTERS - 4] + " ..."
