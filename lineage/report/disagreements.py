"""The items on which the best way and the next one differ most: by their ids, and with their text only where `report.show_text` asks for it."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pandas as pd

from lineage import artifacts
from lineage.errors import is_name, shown
from lineage.kind import load_kind
from lineage.params import Grid
from lineage.report import words
from lineage.report.cells import ON, WAY, stage_names
from lineage.report.ensembles import OF_CLASSES
from lineage.report.tree import cell_of

Tree = dict[str, Any]
MOST = 3  # items to either side
CHARACTERS = 300  # of a text


def disagreements(tree: Tree, grid: Grid, *, results: Path, tasks: Path, show_text: bool) -> list[Tree]:
    """A table a task, at the most labels that it was learned with: items that one of the two has right in more of its repetitions than the other.

    Only of kinds whose answers are names, not texts or numbers; a sentence is read only with `show_text`.
    """
    asked = [question for question in words.questions(tree) if question["rivals"] and question["cell"]["kind"] in (*OF_CLASSES, "minimal_pairs")]
    most = {question["task"]: question for question in sorted(asked, key=lambda question: int(question["train_examples"]))}
    found = []
    for task, question in most.items():
        ways = [question["way"], max((one["second"] for one in question["rivals"]), key=lambda way: _mean(tree, way, question))]
        own = task.split(ON)[0]
        folder = results / "predictions"
        table = pd.concat([artifacts.read_table(folder / f"{name}.parquet") for name in stage_names(grid) if name.endswith(f"-{own}")])
        table = table[(table["split"] == tree["split"]) & (table["trial"] == "chosen") & (table["test_set"] == task.split(ON)[-1])]
        said = [_of_way(table[table["labels"] == question["labels"]], way, question["cell"]["kind"]) for way in ways]
        both = said[0].join(said[1], how="inner", lsuffix=" first", rsuffix=" second")
        gap = both["correct first"] - both["correct second"]
        chosen = [*gap[gap > 0].nlargest(MOST).index, *gap[gap < 0].nsmallest(MOST).index]
        if not chosen:
            continue
        texts = _texts(tasks / own, chosen) if show_text else {}
        found.append({"task": task, "ways": [words.way_words(way) for way in ways], "items": [
            {"id": item, "gold": _label(both.loc[item, "gold first"]), "text": texts.get(item, ""),
             "said": [f"{_label(both.loc[item, f'prediction {side}'])} ({words.percent(both.loc[item, f'correct {side}'])} % right)"
                      for side in ("first", "second")]} for item in chosen]})  # fmt: skip
    return found


def _label(name: object) -> str:
    """A label, whole where it is a name, and else as much of it as a message shows."""
    return str(name) if is_name(str(name), label=True) else shown(name)


def _mean(tree: Tree, way: Tree, question: Tree) -> float:
    return float(cell_of(tree, way, task=question["task"], labels=question["labels"])["mean"])


def _of_way(table: pd.DataFrame, way: Mapping[str, str], kind: str) -> pd.DataFrame:
    """Each item's share of repetitions that had it right, its gold answer, and what was said of it in the first of them."""
    own = table[(table[list(WAY)] == [way[name] for name in WAY]).all(axis=1)].sort_values(["pretrain_seed", "seed"], kind="stable")
    if kind != "minimal_pairs":  # of the others `correct` may be a share of a metric that is no mean over items
        own = own.assign(correct=own["score"] if way["variant"] == "chance" else own["prediction"] == own["gold"])
    own = own.astype({"correct": float})
    return own.groupby("id").agg(correct=("correct", "mean"), gold=("gold", "first"), prediction=("prediction", "first"))


def _texts(folder: Path, chosen: list[str]) -> dict[str, str]:
    """The texts of items, by id, from the tables of a task."""
    facts = artifacts.read_json(folder / "task.json")
    tables = [artifacts.read_table(folder / f"{name}.parquet") for name in facts["has"] if name != "unlabelled"]
    items = pd.concat([table[table["id"].isin(chosen)] for table in tables], ignore_index=True)
    columns = load_kind(facts["kind"]).texts(items, facts["language"])
    return {item: _short(" | ".join(parts)) for item, *parts in zip(items["id"], *columns, strict=True)}


def _short(text: str) -> str:
    return text if len(text) <= CHARACTERS else text[: CHARACTERS - 4] + " ..."
