"""Rows and predictions of the grid's stages -> cells that can be compared, example by example and seed by seed."""

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from lineage import artifacts, rows, statistics
from lineage.data import Task
from lineage.errors import InputError
from lineage.metrics import COMPARED, LOWEST
from lineage.params import Grid
from lineage.rows import HELD_TEXT, PUBLIC

Seeds = tuple[int | None, int | None]  # of pretraining and of fine-tuning; None where it has no part
ON = " on "  # between a task and its second test set
CONTROLS = ("tfidf", "majority", "chance", "copy")
SAME = 1e-9  # means that differ by less are the same: the order of sums rounds otherwise
SAME_ANSWERS = "same answers"  # the verdict where each item is right or wrong in both, in every repetition
GUESSES = ("majority", "chance")  # what knows nothing of an item: a lead is one only above each of them


@dataclass(frozen=True)
class Way:
    """How a prediction was come by."""

    variant: str
    family: str
    init: str
    adapt_text: str
    transfer: str
    features: str
    head: str
    recipe: str

    @property
    def reading(self) -> tuple[str, str, str]:
        """What two ways share when only their models differ. Recipes differ with the model: they are no part of it."""
        return self.transfer, self.features, self.head


WAY = tuple(Way.__dataclass_fields__)
KEY = (*WAY, "task", "labels")  # what a cell is known by


@dataclass
class Cell:
    """All repetitions of one way on one task with one number of labels. Values are shares of a perfect score: such as 1 right, or 100 BLEU."""

    way: Way
    task: str
    kind: str
    labels: str
    metric: str
    train_examples: int = 0
    examples: int = 0  # scored in each repetition, in all folds
    values: dict[Seeds, float] = field(default_factory=dict)
    validation: list[float] = field(default_factory=list)
    scores: dict[Seeds, pd.Series] = field(default_factory=dict)  # `correct` by id
    problems: list[dict[str, Any]] = field(default_factory=list)

    @property
    def mean(self) -> float:
        """Mean over repetitions."""
        return float(np.mean(list(self.values.values())))

    def facts(self) -> dict[str, Any]:
        """The cell for results.json: mean, interval over examples and repetitions, and every repetition."""
        found: dict[str, Any] = asdict(self.way) | {"task": self.task, "kind": self.kind, "labels": self.labels, "metric": self.metric}
        found["train_examples"] = self.train_examples
        found["seeds"] = [{"pretrain_seed": p, "seed": s, "value": value} for (p, s), value in self.values.items()]
        found["problems"] = self.problems
        found |= {"mean": None, "low": None, "high": None, "standard_error_examples": None, "examples": 0, "units": 0}
        if self.values:
            found["mean"] = self.mean
        if self.scores:
            table, pretrain_seeds = matrix(list(self.scores.items()))
            found["examples"], found["units"] = self.examples, table.shape[1]
            if table.shape[1] > 1:
                one = statistics.estimate(statistics.units(table, pretrain_seeds), bounds=(LOWEST.get(self.metric, 0.0), 1.0))
                found |= {"low": one.low, "high": one.high, "standard_error_examples": statistics.standard_error(table.mean(axis=0))}
        return found


def stage_names(grid: Grid) -> list[str]:
    """The stages whose rows belong to this grid, in its order; files of earlier grids are left aside."""
    return [f"{verb}-{cell}" for verb in ("evaluate", "evaluate_adapted", "evaluate_joined", "control") for cell in grid.cells[verb]]


def read_rows(folder: Path, grid: Grid) -> pd.DataFrame:
    """All rows of the grid, in the contract's columns. Raises InputError."""
    return rows.tidy(pd.concat([read_table(folder / "rows" / f"{name}.parquet") for name in stage_names(grid)]))


def read_cells(
    folder: Path, grid: Grid, *, table: pd.DataFrame, split: str, tasks: Mapping[str, Task], more: Iterable[pd.DataFrame] = ()
) -> list[Cell]:
    """The cells of `table`, with their predictions on `split` from the grid's stages and from `more`, in the order of the grid. Raises InputError."""
    cells = _cells(table, split=split, tasks=tasks)
    for predictions in chain((read_table(folder / "predictions" / f"{name}.parquet") for name in stage_names(grid)), more):
        chosen = predictions[(predictions["split"] == split) & (predictions["trial"] == "chosen")]
        repetitions = told_apart(chosen).groupby([*KEY, "pretrain_seed", "seed"], dropna=False, sort=True)
        for (*key, p, s), one in repetitions[["id", "group", "fold", "correct"]]:
            cell = cells.get(tuple(key))
            if cell is None or one["correct"].isna().any():
                continue  # of a score that does not exist, which its row says
            if (seeds := _seeds(cell.way, p, s)) in cell.values:  # of a repetition of which a fold failed the others count for nothing
                cell.scores.setdefault(seeds, _scores(one))
    ranks = _ranks(grid)
    return sorted(_without_low_chance(cells.values()), key=lambda cell: ranks(cell))


def read_table(path: Path) -> pd.DataFrame:
    """A stage's table of rows, predictions or items. Raises InputError where there is none."""
    if not path.is_file():
        raise InputError(f"{path}: there is no such file, though the grid has its cell; run `dvc repro`")
    return artifacts.read_table(path)


def by_question(cells: Iterable[Cell]) -> dict[tuple[str, str], list[Cell]]:
    """Cells by task and number of labels, in their order."""
    groups: dict[tuple[str, str], list[Cell]] = {}
    for cell in cells:
        groups.setdefault((cell.task, cell.labels), []).append(cell)
    return groups


def asked_once(cells: list[Cell]) -> tuple[list[Cell], list[dict[str, Any]]]:
    """The cells without those of as many labels as a task has or more, as 100 where there are 49, since `all` asks the same: a question counts once.

    What was left out is said: the task, the labels, and how many there are. Ways that were not asked with all labels keep the question.
    """
    groups = by_question(cells)
    kept, left = list[Cell](), list[dict[str, Any]]()
    for (task, labels), own in groups.items():
        whole = groups.get((task, "all"), [])
        there = max((cell.train_examples for cell in whole), default=0)
        if labels.isdigit() and 0 < there <= int(labels) and {cell.way for cell in own} <= {cell.way for cell in whole}:
            left.append({"task": task, "labels": labels, "train_examples": there})
        else:
            kept += own
    return kept, left


def _without_low_chance(cells: Iterable[Cell]) -> list[Cell]:
    """The cells without chance among labels where it gets no more than the commonest: of balanced ones both say the same. Choices keep both."""
    kept = []
    for some in by_question(cells).values():
        commonest = [cell.mean for cell in some if cell.way.variant == "majority" and cell.values]
        kept += [cell for cell in some
                 if cell.way.variant != "chance" or cell.kind == "choose" or all(cell.mean > mean + SAME for mean in commonest)]  # fmt: skip
    return kept


def compared_by(task: Task | None, metrics: Iterable[str]) -> str:
    """By which of the metrics that a task's rows have its ways are compared: the first that it names, else the first of COMPARED."""
    order = [*((task and task.metric) or ()), *COMPARED]
    return min((name for name in {*metrics} if name in COMPARED), key=order.index)


def told_apart(table: pd.DataFrame) -> pd.DataFrame:
    """The table with `mr on cr` for a task on its second test set, which is a question of its own."""
    second = ~table["test_set"].isin(["", HELD_TEXT]) & (table["test_set"] != table["task"])
    return table.assign(task=table["task"].where(~second, table["task"] + ON + table["test_set"]))


def _scores(one: pd.DataFrame) -> pd.Series:
    """`correct` by id, in order; by group where folds keep groups together, whose items are no independent cases: shares with the items' mean."""
    if one["fold"].notna().any() and one["group"].nunique() > 1:
        return one.groupby("group")["correct"].sum() * (one["group"].nunique() / len(one))
    return pd.Series(one["correct"].to_numpy(dtype=np.float64), index=pd.Index(one["id"])).sort_index()


def _cells(table: pd.DataFrame, *, split: str, tasks: Mapping[str, Task]) -> dict[tuple[Any, ...], Cell]:
    """Cells from rows: the chosen trial on all of the task's own items."""
    whole = (table["trial"] == "chosen") & (table["items"] == "all") & (table["group"] == "all") & (table["layer"] == "none")
    known = (table["family"] != "ceiling") & (table["test_set"] != HELD_TEXT)
    scored = told_apart(table[whole & known & table["metric"].isin(list(COMPARED))])
    metrics = {str(task): own["metric"] for task, own in scored.groupby("task")}
    firsts = {task: compared_by(tasks.get(task.split(ON)[0]), own) for task, own in metrics.items()}
    scored = scored[scored["metric"] == scored["task"].map(firsts)]
    cells = {}
    for key, group in _by_key(scored):
        if own := [row for row in group if row["split"] == split]:
            cells[key] = _cell(Way(*key[: len(WAY)]), own)
            valid = [row for row in group if row["split"] == "validation" and row["status"] == "ok"]
            cells[key].validation = [float(row["value"]) / COMPARED[row["metric"]] for row in valid]
    for (*way, task, labels), cell in cells.items():
        if ON in task:  # validation is the task's own
            cell.validation = cells[*way, task.split(ON)[0], labels].validation
    return cells


def _by_key(table: pd.DataFrame) -> list[tuple[tuple[Any, ...], list[dict[str, Any]]]]:
    """The rows of each cell, in the order of its key. A cell has a handful, too few for a table of their own."""
    found: dict[tuple[Any, ...], list[dict[str, Any]]] = {}
    for row in table.to_dict("records"):
        found.setdefault(tuple(row[name] for name in KEY), []).append({str(name): value for name, value in row.items()})
    return sorted(found.items(), key=lambda one: one[0])


def _cell(way: Way, rows: list[dict[str, Any]]) -> Cell:
    """A cell from the rows of the split that is asked about."""
    first = rows[0]
    cell = Cell(way, first["task"], first["kind"], first["labels"], first["metric"], max(int(row["train_examples"]) for row in rows))
    repetitions: dict[Seeds, list[dict[str, Any]]] = {}
    for row in rows:
        repetitions.setdefault((_seed(row["pretrain_seed"]), _seed(row["seed"])), []).append(row)
    for given, folds in sorted(repetitions.items(), key=lambda one: [(seed is None, seed or 0) for seed in one[0]]):
        seeds, bad = _seeds(way, *given), {row["reason"]: row["status"] for row in folds if row["status"] != "ok"}
        for reason, status in bad.items():
            cell.problems.append({"pretrain_seed": seeds[0], "seed": seeds[1], "status": status, "reason": reason})
        if not bad:
            values, weights = [row["value"] for row in folds], [float(row["examples"]) for row in folds]
            cell.values[seeds] = float(np.average(values, weights=weights)) / COMPARED[cell.metric]
            cell.examples = int(sum(row["examples"] for row in folds))
    return cell


def _seeds(way: Way, pretrain_seed: Any, seed: Any) -> Seeds:
    """A public checkpoint is one, whatever the seed of pretraining: what is read of it again is no repetition. Its twins and adaptations differ."""
    return None if way.family == PUBLIC and way.init == "pretrained" else _seed(pretrain_seed), _seed(seed)


def _seed(value: Any) -> int | None:
    return None if pd.isna(value) else int(value)


def _ranks(grid: Grid) -> Any:
    variants, labels = [*grid.families, *grid.two_budgets, *CONTROLS], [str(count) for count in grid.labels]
    inits = ["pretrained", "adapted", "untrained", "none"]

    def rank(cell: Cell) -> tuple[Any, ...]:
        task, *second = cell.task.split(ON)
        place = (grid.tasks.index(task), second, labels.index(cell.labels) if cell.labels in labels else len(labels))
        way = cell.way
        return (*place, variants.index(way.variant) if way.variant in variants else len(variants), way.transfer, inits.index(way.init), way.features,
                way.head, way.recipe)  # fmt: skip

    return rank


def matrix(scores: list[tuple[Seeds, pd.Series]]) -> tuple[np.ndarray, list[int]]:
    """(R, N) scores of the examples that all repetitions share, and the pretraining seed of each."""
    seeds, shared = [p or 0 for (p, _), _ in scores], scores[0][1].index
    if all(one.index.equals(shared) for _, one in scores):  # as nearly always, and joining costs far more than looking
        return np.stack([one.to_numpy(dtype=np.float64) for _, one in scores]), seeds
    return pd.concat([one for _, one in scores], axis=1, join="inner").sort_index().to_numpy(dtype=np.float64).T, seeds


def paired(first: Cell, second: Cell) -> tuple[np.ndarray, np.ndarray] | None:
    """(R, N) scores of two cells by unit of repetition, on the same examples, seed by seed; None where they share none.

    A cell without a seed (a control, a zero-shot reading) stands beside each of the other's.
    """

    def meets(one: int | None, other: int | None) -> bool:
        return one is None or other is None or one == other

    pairs = [(a, b) for a in first.scores for b in second.scores if meets(a[0], b[0]) and meets(a[1], b[1])]
    if not pairs:
        return None
    seeds: list[Seeds] = [(a[0] if a[0] is not None else b[0], None) for a, b in pairs]
    columns = [(seed, first.scores[a]) for seed, (a, _) in zip(seeds, pairs, strict=True)]
    columns += [(seed, second.scores[b]) for seed, (_, b) in zip(seeds, pairs, strict=True)]
    table, pretrain_seeds = matrix(columns)
    if table.shape[1] < 2:
        return None
    half = len(pairs)
    return statistics.units(table[:half], pretrain_seeds[:half]), statistics.units(table[half:], pretrain_seeds[:half])
