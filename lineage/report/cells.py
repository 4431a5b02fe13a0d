"""Rows and predictions of the grid's stages -> cells that can be compared, example by example and seed by seed."""

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from lineage import artifacts, rows
from lineage.data import Task
from lineage.errors import InputError
from lineage.params import Grid
from lineage.rows import ENSEMBLE, HELD_TEXT, JOINED, PUBLIC
from lineage.scoring import statistics
from lineage.scoring.metrics import COMPARED, LOWEST

Seeds = tuple[int | None, int | None]  # of pretraining and of fine-tuning; None where it has no part
ON = " on "  # between a task and its second test set
CONTROL_ROWS = ("tfidf", "majority", "chance", "copy")
TRAINED = ("pretrained", "adapted")
TWO_BUDGETS = (ENSEMBLE, JOINED)
APART = (*TWO_BUDGETS, PUBLIC)  # families of what has not one budget: shown beside the others, and never in the lead
SAME = 1e-9  # means that differ by less are the same: the order of sums rounds otherwise
SAME_ANSWERS = "same answers"  # the verdict where both say the same of each item, in every repetition
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
    answers: dict[Seeds, int] = field(default_factory=dict)  # one number for all that was said; of other answers another one
    grouped: bool = False  # whether scores are of groups of items, and not of items
    problems: list[dict[str, Any]] = field(default_factory=list)

    @property
    def mean(self) -> float:
        """Mean over repetitions."""
        return float(np.mean(list(self.values.values())))

    @property
    def items(self) -> int:
        """How many items the groups hold that the scores are of; 0 where the scores are of items."""
        return self.examples if self.grouped else 0

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
            table = matrix(list(self.scores.values()))
            found["examples"], found["units"] = self.examples, table.shape[1]
            if table.shape[1] > 1:
                bounds, seeds = (LOWEST.get(self.metric, 0.0), 1.0), np.array([[one or 0 for one in own] for own in self.scores])
                one = statistics.estimate(table, bounds=bounds, seeds=seeds, items=self.items)
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
        for (*key, p, s), one in repetitions[["id", "group", "fold", "correct", "prediction"]]:
            cell = cells.get(tuple(key))
            if cell is None or one["correct"].isna().any():
                continue  # of a score that does not exist, which its row says
            if (seeds := seeds_of(cell.way, p, s)) in cell.values:  # of a repetition of which a fold failed the others count for nothing
                cell.grouped = bool(one["fold"].notna().any()) and one["group"].nunique() > 1
                cell.scores.setdefault(seeds, _scores(one, by_group=cell.grouped))
                cell.answers.setdefault(seeds, _answers(one))
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
    """The cells without those of another number of labels that comes to as many, as 100 where there are 49 in all: a question counts once.

    `all` stays, or else the smallest such number. What was left out is said: the task, the labels, how many there are, and what is the same. Ways
    that were not asked there, or have no value there, keep the question.
    """
    groups, kept, left = by_question(cells), list[Cell](), list[dict[str, Any]]()
    there = {key: max(cell.train_examples for cell in own) for key, own in groups.items()}
    for (task, labels), own in groups.items():
        count = there[task, labels]
        alike = [other for (name, other), known in there.items() if name == task and known == count]
        same = min(alike, key=lambda other: -1 if other == "all" else int(other)) if count else labels
        if same == labels or not {cell.way for cell in own} <= {cell.way for cell in groups[task, same] if cell.values}:
            kept += own
        else:
            left.append({"task": task, "labels": labels, "train_examples": count, "same": same})
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


def _scores(one: pd.DataFrame, *, by_group: bool) -> pd.Series:
    """`correct` by id, in order; by group where folds keep groups together, whose items are no independent cases.

    A group's number is the mean of all, and what its items have more or less than that: so their mean is that of the items, and a group does not
    stand apart by its size alone.
    """
    if not by_group:
        return pd.Series(one["correct"].to_numpy(dtype=np.float64), index=pd.Index(one["id"])).sort_index()
    mean, groups = one["correct"].mean(), one.groupby("group")["correct"]
    return mean + (groups.sum() - mean * groups.size()) * (groups.ngroups / len(one))


def _answers(one: pd.DataFrame) -> int:
    said = pd.Series(one["prediction"].astype(str).to_numpy(), index=pd.Index(one["id"].astype(str)))
    return int(pd.util.hash_pandas_object(said).sum())  # in whatever order


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
        seeds, bad = seeds_of(way, *given), {row["reason"]: row["status"] for row in folds if row["status"] != "ok"}
        for reason, status in bad.items():
            cell.problems.append({"pretrain_seed": seeds[0], "seed": seeds[1], "status": status, "reason": reason})
        if not bad:
            values, weights = [row["value"] for row in folds], [float(row["examples"]) for row in folds]
            cell.values[seeds] = float(np.average(values, weights=weights)) / COMPARED[cell.metric]
            cell.examples = int(sum(row["examples"] for row in folds))
    return cell


def seeds_of(way: Way, pretrain_seed: Any, seed: Any) -> Seeds:
    """A public checkpoint is one, whatever the seed of pretraining: what is read of it again is no repetition. Its twins and adaptations differ."""
    return None if way.family == PUBLIC and way.init == "pretrained" else _seed(pretrain_seed), _seed(seed)


def _seed(value: Any) -> int | None:
    return None if pd.isna(value) else int(value)


def _ranks(grid: Grid) -> Any:
    variants, labels = [*grid.families, *grid.two_budgets, *CONTROL_ROWS], [str(count) for count in grid.labels]
    inits = ["pretrained", "adapted", "untrained", "none"]

    def rank(cell: Cell) -> tuple[Any, ...]:
        task, *second = cell.task.split(ON)
        place = (grid.tasks.index(task), second, labels.index(cell.labels) if cell.labels in labels else len(labels))
        way = cell.way
        return (*place, variants.index(way.variant) if way.variant in variants else len(variants), way.transfer, inits.index(way.init), way.features,
                way.head, way.recipe)  # fmt: skip

    return rank


def matrix(scores: list[pd.Series]) -> np.ndarray:
    """(R, N) scores of the examples that all repetitions share."""
    shared = scores[0].index
    if all(one.index.equals(shared) for one in scores):  # as nearly always, and joining costs far more than looking
        return np.stack([one.to_numpy(dtype=np.float64) for one in scores])
    return pd.concat(scores, axis=1, join="inner").sort_index().to_numpy(dtype=np.float64).T
