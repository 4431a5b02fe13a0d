"""Ensembles: the mean of two variants' class probabilities, such as of a forward and a backward model (Howard and Ruder 2018, section 3.3).

An ensemble has used two budgets. It stands in the tables and says so, and never among those that serve best within one.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from lineage import rows
from lineage.data import Task
from lineage.params import Grid
from lineage.report.cells import compared_by, read_table
from lineage.rows import ENSEMBLE, PREDICTIONS, PROBABILITY
from lineage.scoring.metrics import METRICS, SHARES

# What the cells of two members share on one task and pretraining seed: all but what belongs to their models.
KEY = ["init", "adapt_text", "transfer", "features", "head", "labels", "seed", "fold", "split", "test_set"]
ROW_KEY = [*KEY, "metric", "group", "items", "layer", "trial"]
OF_CLASSES = ("classify", "choose", "sense")  # kinds whose predictions hold probabilities that can be averaged
NO_FOLD = -1  # of tasks without folds here: a missing value is no key
OTHER = " of the other"  # a column of the second member beside the first one's


def joined(folder: Path, grid: Grid, tasks: Mapping[str, Task]) -> tuple[list[pd.DataFrame], list[pd.DataFrame]]:
    """Rows and predictions of every ensemble, stage by stage, on tasks whose predictions hold class probabilities. Raises InputError."""
    tables, predictions = [], []
    for name, members in grid.ensembles.items():
        for verb in ("evaluate", "evaluate_adapted"):
            for cell in grid.cells[verb]:
                variant, rest = cell.split("-", 1)
                if variant == members[0]:
                    files = [f"{verb}-{member}-{rest}.parquet" for member in members]
                    own, said = ([_read(folder / place / file) for file in files] for place in ("rows", "predictions"))
                    mixed = _mixed(name, *said, metric=compared_by(tasks.get(own[0]["task"].iloc[0]), own[0]["metric"]))
                    tables.append(_without_folds(_rows(name, *own, mixed=mixed)))
                    predictions.append(_without_folds(mixed))
    return tables, predictions


def _read(path: Path) -> pd.DataFrame:
    """A stage's table without the trials of its arms: an ensemble is of what was chosen."""
    table = read_table(path)
    return table[table["trial"] == "chosen"].assign(fold=table["fold"].fillna(NO_FOLD))


def _without_folds(table: pd.DataFrame) -> pd.DataFrame:
    folds = table["fold"].astype("Int64")
    return table.assign(fold=folds.mask(folds == NO_FOLD))


def _mixed(name: str, first: pd.DataFrame, second: pd.DataFrame, *, metric: str) -> pd.DataFrame:
    """One prediction an example in each cell that both members have: the label of the highest mean probability; `correct` by the metric."""
    columns = [str(c) for c in first if str(c).startswith(PROBABILITY) and c in second]
    if not columns:
        return pd.DataFrame(columns=list(PREDICTIONS))
    both = first.merge(second, on=[*KEY, "id"], suffixes=("", OTHER), validate="one_to_one")
    assert (both["gold"] == both[f"gold{OTHER}"]).all(), "both members read the same items"
    means = pd.DataFrame({c.removeprefix(PROBABILITY): (both[c] + both[f"{c}{OTHER}"]) / 2 for c in columns})
    said, gold = means.idxmax(axis=1), both["gold"]
    score = means.to_numpy()[np.arange(len(means)), means.columns.get_indexer(pd.Index(gold))]
    gold_N, said_N, correct_N = gold.to_numpy(), said.to_numpy(), np.full(len(both), np.nan)
    for cell in both.groupby(KEY).indices.values():
        correct_N[cell] = SHARES[metric](gold_N[cell], said_N[cell])
    found = both.assign(variant=name, family=ENSEMBLE, recipe=_recipe(both), prediction=said, score=score, correct=correct_N)
    return found[list(PREDICTIONS)]


def _rows(name: str, first: pd.DataFrame, second: pd.DataFrame, *, mixed: pd.DataFrame) -> pd.DataFrame:
    """The rows of one stage: as those of its members, with the text of both; what one member could not compute has no value here either."""
    if not first["kind"].isin(OF_CLASSES).all():
        return first.iloc[:0][list(rows.COLUMNS)]
    known = list(METRICS)  # what predictions alone give: not whether swapped texts get the same answer
    one, other = (table[table["transfer"].isin(["frozen", "tuned"]) & table["metric"].isin(known)] for table in (first, second))
    both = one.merge(other, on=ROW_KEY, suffixes=("", OTHER), validate="one_to_one")
    both["text_bytes"] += both[f"text_bytes{OTHER}"]
    cells = dict(iter(mixed.groupby(KEY)))
    values = pd.DataFrame([_value(row, cells.get(tuple(row[column] for column in KEY))) for row in both.to_dict("records")], both.index)
    if values.empty:
        return both[list(rows.COLUMNS)]
    table = both.assign(variant=name, family=ENSEMBLE, recipe=_recipe(both), **{str(column): values[column] for column in values})
    return table.loc[table["status"] != "", list(rows.COLUMNS)]


def _value(row: Any, cell: pd.DataFrame | None) -> dict[str, Any]:
    """A row's value from the predictions of its cell, or why it has none; an empty status where the task has no classes to choose from."""
    without = [end for end in ("", OTHER) if row[f"status{end}"] != "ok"]
    if without:
        reason = "; ".join(f"{row[f'variant{end}']}: {row[f'reason{end}']}" for end in without)
        return {"value": None, "examples": 0, "status": row[f"status{without[0]}"], "reason": reason}
    if cell is None:
        return {"value": None, "examples": 0, "status": "", "reason": ""}
    some = cell if row["group"] == "all" else cell[cell["group"] == row["group"]]
    value = METRICS[row["metric"]](some["gold"].to_numpy(), some["prediction"].to_numpy())
    return {"value": value, "examples": len(some), "status": "ok", "reason": ""}


def _recipe(both: pd.DataFrame) -> pd.Series:
    """The members' tuning techniques; both, where they differ."""
    one, other = both["recipe"], both[f"recipe{OTHER}"]
    return one.where(one == other, one + " and " + other)
