"""The items on which the best way and the next one differ most: by their ids, and with their text only where `report.show_text` asks for it."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pandas as pd

from lineage import artifacts
from lineage.analysis.cells import SYSTEM_COLUMNS, TEST_SET_SEPARATOR, grid_stage_names
from lineage.config.params import Grid
from lineage.errors import is_short_name, shorten_value
from lineage.report import sentences
from lineage.report.tree import find_result
from lineage.tasks.base import load_kind

JsonDict = dict[str, Any]
MAX_ITEMS_PER_SIDE = 3  # items to either side
MAX_TEXT_CHARACTERS = 300  # of a text


def find_disagreements(
    tree: JsonDict, grid: Grid, *, results_dir: Path, tasks_dir: Path, show_text: bool
) -> list[JsonDict]:
    """A table a task, at the most labels that it was learned with: items that one of the two has right in more of its repetitions than the other.

    Only of kinds whose answers are names, not texts or numbers; a sentence is read only with `show_text`.
    """
    settings = [
        setting
        for setting in sentences.summarize_settings(tree)
        if setting["rivals"] and load_kind(setting["cell"]["kind"]).has_named_answers
    ]
    largest_settings = {
        setting["task"]: setting
        for setting in sorted(settings, key=lambda question: int(question["train_examples"]))
    }
    found = []
    for task, setting in largest_settings.items():
        systems = [
            setting["way"],
            max(
                (one["second"] for one in setting["rivals"]),
                key=lambda way: _mean_score(tree, way, setting),
            ),
        ]
        base_task = task.split(TEST_SET_SEPARATOR)[0]
        folder = results_dir / "predictions"
        table = pd.concat(
            [
                artifacts.read_table(folder / f"{name}.parquet")
                for name in grid_stage_names(grid)
                if name.endswith(f"-{base_task}")
            ]
        )
        table = table[
            (table["split"] == tree["split"])
            & (table["trial"] == "chosen")
            & (table["test_set"] == task.split(TEST_SET_SEPARATOR)[-1])
        ]
        predictions = [
            _item_accuracy(
                table[table["label_count"] == setting["label_count"]], way, setting["cell"]["kind"]
            )
            for way in systems
        ]
        paired = predictions[0].join(
            predictions[1], how="inner", lsuffix=" first", rsuffix=" second"
        )
        gap = paired["correct first"] - paired["correct second"]
        chosen = [
            *gap[gap > 0].nlargest(MAX_ITEMS_PER_SIDE).index,
            *gap[gap < 0].nsmallest(MAX_ITEMS_PER_SIDE).index,
        ]
        if not chosen:
            continue
        texts = _read_texts(tasks_dir / base_task, chosen) if show_text else {}
        found.append(
            {
                "task": task,
                "ways": [sentences.format_system(way) for way in systems],
                "items": [
                    {
                        "id": item,
                        "label": _format_label(paired.loc[item, "gold first"]),
                        "text": texts.get(item, ""),
                        "said": [
                            f"{_format_label(paired.loc[item, f'prediction {side}'])} ({sentences.format_percent(paired.loc[item, f'correct {side}'])} % right)"
                            for side in ("first", "second")
                        ],
                    }
                    for item in chosen
                ],
            }
        )
    return found


def _format_label(name: object) -> str:
    """A label, whole where it is a name, and else as much of it as a message shows."""
    return str(name) if is_short_name(str(name), is_label=True) else shorten_value(name)


def _mean_score(tree: JsonDict, system: JsonDict, setting: JsonDict) -> float:
    return float(
        find_result(tree, system, task=setting["task"], label_count=setting["label_count"])["mean"]
    )


def _item_accuracy(table: pd.DataFrame, system: Mapping[str, str], kind: str) -> pd.DataFrame:
    """Each item's share of repetitions that had it right, its gold answer, and what was said of it in the first of them."""
    own = table[
        (table[list(SYSTEM_COLUMNS)] == [system[name] for name in SYSTEM_COLUMNS]).all(axis=1)
    ].sort_values(["pretrain_seed", "finetune_seed"], kind="stable")
    if not load_kind(
        kind
    ).has_ties:  # of the others `correct` may be a share of a metric that is no mean over items
        own = own.assign(
            correct=own["score"]
            if system["model"] == "chance"
            else own["prediction"] == own["label"]
        )
    own = own.astype({"correct": float})
    return own.groupby("id").agg(
        correct=("correct", "mean"), gold=("label", "first"), prediction=("prediction", "first")
    )


def _read_texts(task_dir: Path, item_ids: list[str]) -> dict[str, str]:
    """The texts of items, by id, from the tables of a task."""
    task_record = artifacts.read_json(task_dir / "task.json")
    tables = [
        artifacts.read_table(task_dir / f"{name}.parquet")
        for name in task_record["has"]
        if name != "unlabelled"
    ]
    items = pd.concat([table[table["id"].isin(item_ids)] for table in tables], ignore_index=True)
    columns = load_kind(task_record["kind"]).extract_texts(items, task_record["language"])
    return {
        item: _shorten(" | ".join(parts))
        for item, *parts in zip(items["id"], *columns, strict=True)
    }


def _shorten(text: str) -> str:
    return text if len(text) <= MAX_TEXT_CHARACTERS else text[: MAX_TEXT_CHARACTERS - 4] + " ..."
