"""Rows and predictions of the grid's stages -> cells that can be compared, example by example and seed by seed."""

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from lineage import artifacts, results
from lineage.analysis import statistics
from lineage.config.data import Task
from lineage.config.params import Grid
from lineage.errors import InputError
from lineage.evaluation.metrics import MIN_SCORES, RANKING_METRICS
from lineage.results import ENSEMBLE_FAMILY, HELDOUT_TEST_SET, JOINED_FAMILY, PUBLIC_FAMILY
from lineage.tasks.base import load_kind

SeedPair = tuple[
    int | None, int | None
]  # of pretraining and of fine-tuning; None where it has no part
TEST_SET_SEPARATOR = " on "  # between a task and its second test set
BASELINES = ("tfidf", "majority", "chance", "copy")
TRAINED_INITS = ("pretrained", "adapted")
TWO_BUDGET_FAMILIES = (ENSEMBLE_FAMILY, JOINED_FAMILY)
UNMATCHED_FAMILIES = (
    *TWO_BUDGET_FAMILIES,
    PUBLIC_FAMILY,
)  # families of what has not one budget: shown beside the others, and never in the lead
MEAN_TOLERANCE = 1e-9  # means that differ by less are the same: the order of sums rounds otherwise
IDENTICAL_PREDICTIONS = (
    "same answers"  # the verdict where both say the same of each item, in every repetition
)
CHANCE_BASELINES = (
    "majority",
    "chance",
)  # what knows nothing of an item: a lead is one only above each of them


@dataclass(frozen=True)
class System:
    """How a prediction was come by."""

    model: str
    family: str
    init: str
    adapt_text: str
    transfer: str
    features: str
    head: str
    recipe: str

    @property
    def method(self) -> tuple[str, str, str]:
        """What two ways share when only their models differ. Recipes differ with the model: they are no part of it."""
        return self.transfer, self.features, self.head


SYSTEM_COLUMNS = tuple(System.__dataclass_fields__)
RESULT_KEY = (*SYSTEM_COLUMNS, "task", "label_count")  # what a cell is known by


@dataclass
class ResultCell:
    """All repetitions of one way on one task with one number of labels. Values are shares of a perfect score: such as 1 right, or 100 BLEU."""

    system: System
    task: str
    kind: str
    label_count: str
    metric: str
    train_examples: int = 0
    num_examples: int = 0  # scored in each repetition, in all folds
    seed_values: dict[SeedPair, float] = field(default_factory=dict)
    validation_values: list[float] = field(default_factory=list)
    item_scores: dict[SeedPair, pd.Series] = field(default_factory=dict)  # `correct` by id
    prediction_hashes: dict[SeedPair, int] = field(
        default_factory=dict
    )  # one number for all that was said; of other answers another one
    scored_by_group: bool = False  # whether scores are of groups of items, and not of items
    problems: list[dict[str, Any]] = field(default_factory=list)

    @property
    def mean(self) -> float:
        """Mean over repetitions."""
        return float(np.mean(list(self.seed_values.values())))

    @property
    def num_grouped_items(self) -> int:
        """How many items the groups hold that the scores are of; 0 where the scores are of items."""
        return self.num_examples if self.scored_by_group else 0

    def to_record(self) -> dict[str, Any]:
        """The cell for results.json: mean, interval over examples and repetitions, and every repetition."""
        record: dict[str, Any] = asdict(self.system) | {
            "task": self.task,
            "kind": self.kind,
            "label_count": self.label_count,
            "metric": self.metric,
        }
        record["train_examples"] = self.train_examples
        record["seeds"] = [
            {"pretrain_seed": p, "finetune_seed": s, "value": value}
            for (p, s), value in self.seed_values.items()
        ]
        record["problems"] = self.problems
        record |= {
            "mean": None,
            "low": None,
            "high": None,
            "standard_error_examples": None,
            "num_examples": 0,
            "units": 0,
        }
        if self.seed_values:
            record["mean"] = self.mean
        if self.item_scores:
            table = stack_scores(list(self.item_scores.values()))
            record["num_examples"], record["units"] = self.num_examples, table.shape[1]
            if table.shape[1] > 1:
                bounds, seeds = (
                    (MIN_SCORES.get(self.metric, 0.0), 1.0),
                    np.array([[estimate or 0 for estimate in own] for own in self.item_scores]),
                )
                estimate = statistics.estimate_mean(
                    table, bounds=bounds, seeds=seeds, num_items=self.num_grouped_items
                )
                record |= {
                    "low": estimate.low,
                    "high": estimate.high,
                    "standard_error_examples": statistics.standard_error(table.mean(axis=0)),
                }
        return record


def grid_stage_names(grid: Grid) -> list[str]:
    """The stages whose rows belong to this grid, in its order; files of earlier grids are left aside."""
    return [
        f"{verb}-{cell}"
        for verb in ("evaluate", "evaluate_adapted", "evaluate_joined", "baselines")
        for cell in grid.stage_instances[verb]
    ]


def read_rows(results_dir: Path, grid: Grid) -> pd.DataFrame:
    """All rows of the grid, in the contract's columns. Raises InputError."""
    return results.sort_results(
        pd.concat(
            [
                read_table(results_dir / "rows" / f"{name}.parquet")
                for name in grid_stage_names(grid)
            ]
        )
    )


def read_result_cells(
    results_dir: Path,
    grid: Grid,
    *,
    table: pd.DataFrame,
    split: str,
    tasks: Mapping[str, Task],
    ensemble_predictions: Iterable[pd.DataFrame] = (),
) -> list[ResultCell]:
    """The cells of `table`, with their predictions on `split` from the grid's stages and from `more`, in the order of the grid. Raises InputError."""
    result_cells = _build_cells(table, split=split, tasks=tasks)
    for predictions in chain(
        (
            read_table(results_dir / "predictions" / f"{name}.parquet")
            for name in grid_stage_names(grid)
        ),
        ensemble_predictions,
    ):
        chosen = predictions[(predictions["split"] == split) & (predictions["trial"] == "chosen")]
        repetitions = disambiguate(chosen).groupby(
            [*RESULT_KEY, "pretrain_seed", "finetune_seed"], dropna=False, sort=True
        )
        for (*key, p, s), one in repetitions[["id", "group", "fold", "correct", "prediction"]]:
            result = result_cells.get(tuple(key))
            if result is None or one["correct"].isna().any():
                continue  # of a score that does not exist, which its row says
            if (
                (seeds := normalize_seeds(result.system, p, s)) in result.seed_values
            ):  # of a repetition of which a fold failed the others count for nothing
                result.scored_by_group = (
                    bool(one["fold"].notna().any()) and one["group"].nunique() > 1
                )
                result.item_scores.setdefault(
                    seeds, _score_items(one, by_group=result.scored_by_group)
                )
                result.prediction_hashes.setdefault(seeds, _hash_predictions(one))
    ranks = _grid_order(grid)
    return sorted(_drop_redundant_chance(result_cells.values()), key=lambda cell: ranks(cell))


def read_table(path: Path) -> pd.DataFrame:
    """A stage's table of rows, predictions or items. Raises InputError where there is none."""
    if not path.is_file():
        raise InputError(
            f"{path}: there is no such file, though the grid has its cell; run `dvc repro`"
        )
    return artifacts.read_table(path)


def group_by_setting(result_cells: Iterable[ResultCell]) -> dict[tuple[str, str], list[ResultCell]]:
    """Cells by task and number of labels, in their order."""
    groups: dict[tuple[str, str], list[ResultCell]] = {}
    for result in result_cells:
        groups.setdefault((result.task, result.label_count), []).append(result)
    return groups


def drop_duplicate_label_counts(
    result_cells: list[ResultCell],
) -> tuple[list[ResultCell], list[dict[str, Any]]]:
    """The cells without those of another number of labels that comes to as many, as 100 where there are 49 in all: a question counts once.

    `all` stays, or else the smallest such number. What was left out is said: the task, the labels, how many there are, and what is the same. Ways
    that were not asked there, or have no value there, keep the question.
    """
    groups, kept, dropped = (
        group_by_setting(result_cells),
        list[ResultCell](),
        list[dict[str, Any]](),
    )
    num_examples = {key: max(cell.train_examples for cell in own) for key, own in groups.items()}
    for (task, labels), own in groups.items():
        count = num_examples[task, labels]
        equivalents = [
            other
            for (name, other), known in num_examples.items()
            if name == task and known == count
        ]
        same = (
            min(equivalents, key=lambda other: -1 if other == "all" else int(other))
            if count
            else labels
        )
        if same == labels or not {cell.system for cell in own} <= {
            cell.system for cell in groups[task, same] if cell.seed_values
        }:
            kept += own
        else:
            dropped.append(
                {"task": task, "label_count": labels, "train_examples": count, "same": same}
            )
    return kept, dropped


def _drop_redundant_chance(result_cells: Iterable[ResultCell]) -> list[ResultCell]:
    """The cells without chance among labels where it gets no more than the commonest: of balanced ones both say the same. Choices keep both."""
    kept = []
    for candidates in group_by_setting(result_cells).values():
        majority_means = [
            cell.mean for cell in candidates if cell.system.model == "majority" and cell.seed_values
        ]
        kept += [
            cell
            for cell in candidates
            if cell.system.model != "chance"
            or load_kind(cell.kind).answer_type == "choice"
            or all(cell.mean > mean + MEAN_TOLERANCE for mean in majority_means)
        ]
    return kept


def choose_comparison_metric(task: Task | None, metrics: Iterable[str]) -> str:
    """By which of the metrics that a task's rows have its ways are compared: the first that it names, else the first of COMPARED."""
    order = [*((task and task.metric) or ()), *RANKING_METRICS]
    return min((name for name in {*metrics} if name in RANKING_METRICS), key=order.index)


def disambiguate(table: pd.DataFrame) -> pd.DataFrame:
    """The table with `mr on cr` for a task on its second test set, which is a question of its own."""
    on_extra_test_set = ~table["test_set"].isin(["", HELDOUT_TEST_SET]) & (
        table["test_set"] != table["task"]
    )
    return table.assign(
        task=table["task"].where(
            ~on_extra_test_set, table["task"] + TEST_SET_SEPARATOR + table["test_set"]
        )
    )


def _score_items(predictions: pd.DataFrame, *, by_group: bool) -> pd.Series:
    """`correct` by id, in order; by group where folds keep groups together, whose items are no independent cases.

    A group's number is the mean of all, and what its items have more or less than that: so their mean is that of the items, and a group does not
    stand apart by its size alone.
    """
    if not by_group:
        return pd.Series(
            predictions["correct"].to_numpy(dtype=np.float64), index=pd.Index(predictions["id"])
        ).sort_index()
    mean, groups = predictions["correct"].mean(), predictions.groupby("group")["correct"]
    return mean + (groups.sum() - mean * groups.size()) * (groups.ngroups / len(predictions))


def _hash_predictions(predictions: pd.DataFrame) -> int:
    predicted = pd.Series(
        predictions["prediction"].astype(str).to_numpy(),
        index=pd.Index(predictions["id"].astype(str)),
    )
    return int(pd.util.hash_pandas_object(predicted).sum())  # in whatever order


def _build_cells(
    table: pd.DataFrame, *, split: str, tasks: Mapping[str, Task]
) -> dict[tuple[Any, ...], ResultCell]:
    """Cells from rows: the chosen trial on all of the task's own items."""
    whole_task = (
        (table["trial"] == "chosen")
        & (table["item_filter"] == "all")
        & (table["group"] == "all")
        & (table["layer"] == "none")
    )
    known = (table["family"] != "ceiling") & (table["test_set"] != HELDOUT_TEST_SET)
    scored = disambiguate(table[whole_task & known & table["metric"].isin(list(RANKING_METRICS))])
    metrics = {str(task): own["metric"] for task, own in scored.groupby("task")}
    comparison_metrics = {
        task: choose_comparison_metric(tasks.get(task.split(TEST_SET_SEPARATOR)[0]), own)
        for task, own in metrics.items()
    }
    scored = scored[scored["metric"] == scored["task"].map(comparison_metrics)]
    result_cells = {}
    for key, group in _group_rows_by_key(scored):
        if own := [row for row in group if row["split"] == split]:
            result_cells[key] = _build_cell(System(*key[: len(SYSTEM_COLUMNS)]), own)
            valid = [row for row in group if row["split"] == "validation" and row["status"] == "ok"]
            result_cells[key].validation_values = [
                float(row["value"]) / RANKING_METRICS[row["metric"]] for row in valid
            ]
    for (*system, task, labels), result in result_cells.items():
        if TEST_SET_SEPARATOR in task:  # validation is the task's own
            result.validation_values = result_cells[
                *system, task.split(TEST_SET_SEPARATOR)[0], labels
            ].validation_values
    return result_cells


def _group_rows_by_key(table: pd.DataFrame) -> list[tuple[tuple[Any, ...], list[dict[str, Any]]]]:
    """The rows of each cell, in the order of its key. A cell has a handful, too few for a table of their own."""
    found: dict[tuple[Any, ...], list[dict[str, Any]]] = {}
    for row in table.to_dict("records"):
        found.setdefault(tuple(row[name] for name in RESULT_KEY), []).append(
            {str(name): value for name, value in row.items()}
        )
    return sorted(found.items(), key=lambda one: one[0])


def _build_cell(system: System, rows: list[dict[str, Any]]) -> ResultCell:
    """A cell from the rows of the split that is asked about."""
    first = rows[0]
    result = ResultCell(
        system,
        first["task"],
        first["kind"],
        first["label_count"],
        first["metric"],
        max(int(row["train_examples"]) for row in rows),
    )
    repetitions: dict[SeedPair, list[dict[str, Any]]] = {}
    for row in rows:
        repetitions.setdefault(
            (_int_or_none(row["pretrain_seed"]), _int_or_none(row["finetune_seed"])), []
        ).append(row)
    for raw_seeds, folds in sorted(
        repetitions.items(), key=lambda one: [(seed is None, seed or 0) for seed in one[0]]
    ):
        seeds, failures = (
            normalize_seeds(system, *raw_seeds),
            {row["reason"]: row["status"] for row in folds if row["status"] != "ok"},
        )
        for reason, status in failures.items():
            result.problems.append(
                {
                    "pretrain_seed": seeds[0],
                    "finetune_seed": seeds[1],
                    "status": status,
                    "reason": reason,
                }
            )
        if not failures:
            values, weights = (
                [row["value"] for row in folds],
                [float(row["num_examples"]) for row in folds],
            )
            result.seed_values[seeds] = (
                float(np.average(values, weights=weights)) / RANKING_METRICS[result.metric]
            )
            result.num_examples = int(sum(row["num_examples"] for row in folds))
    return result


def normalize_seeds(system: System, pretrain_seed: Any, finetune_seed: Any) -> SeedPair:
    """A public checkpoint is one, whatever the seed of pretraining: what is read of it again is no repetition. Its twins and adaptations differ."""
    return None if system.family == PUBLIC_FAMILY and system.init == "pretrained" else _int_or_none(
        pretrain_seed
    ), _int_or_none(finetune_seed)


def _int_or_none(value: Any) -> int | None:
    return None if pd.isna(value) else int(value)


def _grid_order(grid: Grid) -> Any:
    models, labels = (
        [*grid.models, *grid.two_budget_systems, *BASELINES],
        [str(count) for count in grid.label_counts],
    )
    inits = ["pretrained", "adapted", "random", "none"]

    def rank(cell: ResultCell) -> tuple[Any, ...]:
        task, *second = cell.task.split(TEST_SET_SEPARATOR)
        place = (
            grid.tasks.index(task),
            second,
            labels.index(cell.label_count) if cell.label_count in labels else len(labels),
        )
        way = cell.system
        return (
            *place,
            models.index(way.model) if way.model in models else len(models),
            way.transfer,
            inits.index(way.init),
            way.features,
            way.head,
            way.recipe,
        )

    return rank


def stack_scores(item_scores: list[pd.Series]) -> np.ndarray:
    """(R, N) scores of the examples that all repetitions share."""
    shared = item_scores[0].index
    if all(
        one.index.equals(shared) for one in item_scores
    ):  # as nearly always, and joining costs far more than looking
        return np.stack([one.to_numpy(dtype=np.float64) for one in item_scores])
    return pd.concat(item_scores, axis=1, join="inner").sort_index().to_numpy(dtype=np.float64).T
