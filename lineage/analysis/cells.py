"""Read the rows and predictions of the grid's stages into result cells.

A cell holds its scores by seed and by item, so that two cells can be compared on the same ones.
"""

from collections.abc import Hashable, Iterable, Mapping
from dataclasses import astuple, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd

from lineage import artifacts, results
from lineage.analysis import statistics
from lineage.analysis.contributions import ItemRange, split_score
from lineage.analysis.records import (
    BASELINES,
    CHANCE_BASELINES,
    MEAN_TOLERANCE,
    TEST_SET_SEPARATOR,
    DuplicateLabelCount,
    SeedProblem,
    SeedScore,
    Setting,
    System,
    SystemScore,
    group_by,
)
from lineage.answers.metrics import MIN_SCORES, RANKING_METRICS
from lineage.config.data import Task
from lineage.config.params import Grid
from lineage.errors import InputError, is_short_name, shorten_value
from lineage.results import HELDOUT_TEST_SET, NGRAM_STAGE, PUBLIC_FAMILY
from lineage.tasks.base import load_kind

# The pretraining and the fine-tuning seed of a repetition; None if a seed plays no part.
SeedPair = tuple[int | None, int | None]
SYSTEM_COLUMNS = tuple(System.__dataclass_fields__)
RESULT_KEY = (*SYSTEM_COLUMNS, "task", "label_count")  # the columns that identify a cell
CellKey = tuple[str, ...]  # their values
Row = dict[Hashable, Any]  # a cell has a handful, and a table for each would be slow
MIN_OVERLAPPING_SHARE = 0.2  # of all labels: smaller subsets have little in common
MIN_CLUSTERS = 10  # fewer groups do not tell how much groups differ
TRANSFER_ORDER = ("frozen", "none", "finetuned", "setfit", "zero_shot")
INIT_ORDER = ("pretrained", "adapted", "target_only", "random", "none")


@dataclass
class ResultCell:
    """All repetitions of a system in a setting. Scores are shares of a perfect score."""

    system: System
    task: str
    kind: str
    label_count: str
    metric: str
    train_examples: int = 0
    num_examples: int = 0  # scored in each repetition, over all folds
    seed_values: dict[SeedPair, float] = field(default_factory=dict)
    validation_values: list[float] = field(default_factory=list)
    item_scores: dict[SeedPair, pd.Series] = field(default_factory=dict)  # `correct` by item id
    prediction_hashes: dict[SeedPair, int] = field(default_factory=dict)  # of all predictions
    # If item_scores has one value per group of items: the number of items of each.
    group_sizes: pd.Series | None = None
    problems: list[SeedProblem] = field(default_factory=list)
    # The ranges of `lineage.analysis.contributions`, where the score is no mean over items.
    item_ranges: dict[SeedPair, ItemRange] = field(default_factory=dict)
    num_folds: int = 0  # of cross-validation; 0 if the task has a test set
    num_labels: int = 0  # from which the training items are drawn; 0 if that is unknown

    @property
    def setting(self) -> Setting:
        return Setting(self.task, self.label_count)

    @property
    def mean(self) -> float:
        """Return the mean over repetitions."""
        return float(np.mean(list(self.seed_values.values())))

    @property
    def validation_mean(self) -> float | None:
        """Return the mean score on validation; None if there is none."""
        return float(np.mean(self.validation_values)) if self.validation_values else None

    @property
    def num_grouped_items(self) -> int:
        """Return how many items the scored groups hold; 0 if items are scored one by one."""
        return 0 if self.group_sizes is None else self.num_examples

    @property
    def item_range(self) -> ItemRange | None:
        """Return the mean range over repetitions; None if scores are means over items."""
        if not self.item_ranges:
            return None
        lowest, highest = np.mean(list(self.item_ranges.values()), axis=0)
        return float(lowest), float(highest)

    def group_sizes_of(self, tables: Iterable[pd.Series]) -> npt.NDArray[np.float64] | None:
        """Return the sizes of the groups that all tables share; None if items are no groups."""
        if self.group_sizes is None:
            return None
        shared = self.group_sizes.index
        for table in tables:
            if not table.index.equals(shared):
                shared = shared.intersection(table.index)
        return self.group_sizes.loc[shared.sort_values()].to_numpy(dtype=np.float64)

    @property
    def training_sets(self) -> statistics.TrainingSets:
        """Return how the seeds draw their training sets."""
        has_folds = self.num_folds > 1
        num_labels = self.num_labels * (1 - 1 / self.num_folds) if has_folds else self.num_labels
        share = 1.0
        if self.label_count.isdecimal() and num_labels:
            share = min(self.train_examples / num_labels, 1.0)
        if not has_folds and not MIN_OVERLAPPING_SHARE <= share < 1:
            share = 0.0  # with all labels there is one training set
        return statistics.TrainingSets(self.num_folds, share)

    def summarize(self, *, above_chance: bool = False) -> SystemScore:
        """Return the mean with its interval over items, and every repetition."""
        mean = self.mean if self.seed_values else None
        low = high = None
        num_examples = num_clusters = 0
        if self.item_scores:
            scores = stack_scores(list(self.item_scores.values()))
            num_examples = self.num_examples
            num_clusters = scores.shape[1]
            interval = self.interval_over_items()
            if interval is not None:
                low, high = interval
        return SystemScore(
            system=self.system,
            task=self.task,
            label_count=self.label_count,
            kind=self.kind,
            metric=self.metric,
            train_examples=self.train_examples,
            seeds=tuple(SeedScore(*seeds, value) for seeds, value in self.seed_values.items()),
            problems=tuple(self.problems),
            mean=mean,
            ci_low=low,
            ci_high=high,
            num_examples=num_examples,
            num_clusters=num_clusters,
            above_chance=above_chance,
        )

    def interval_over_items(self) -> tuple[float, float] | None:
        """Return the confidence interval of the mean over seeds, for other items and these seeds.

        It is None if there are fewer than two items, or groups of them.
        """
        tables = list(self.item_scores.values())
        scores = stack_scores(tables).mean(axis=0, keepdims=True)
        if scores.shape[1] < 2:
            return None
        estimate = statistics.estimate_mean(
            scores,
            bounds=(MIN_SCORES.get(self.metric, 0.0), 1.0),
            group_sizes_N=self.group_sizes_of(tables),
            item_range=self.item_range,
        )
        return estimate.low, estimate.high


def grid_stage_names(grid: Grid) -> list[str]:
    """Return the stages whose rows belong to this grid, in its order.

    Files of earlier grids may lie in the same folder and are ignored.
    """
    verbs = (
        "evaluate",
        "evaluate_adapted",
        "evaluate_target_only",
        "evaluate_joined",
        "baselines",
    )
    names = [f"{verb}-{name}" for verb in verbs for name in grid.stage_instances[verb]]
    return [*names, NGRAM_STAGE]


def task_stage_names(grid: Grid, task: str) -> list[str]:
    """Return the stages of the grid that score a task."""
    return [name for name in grid_stage_names(grid) if name.endswith(f"-{task}")]


def read_rows(results_dir: Path, grid: Grid) -> pd.DataFrame:
    """Read all rows of the grid, in the columns of `RESULT_COLUMNS`. Raises InputError."""
    names = grid_stage_names(grid)
    tables = [read_table(results_dir / "rows" / f"{name}.parquet") for name in names]
    return results.sort_results(pd.concat(tables))


def read_predictions(results_dir: Path, grid: Grid) -> Iterable[pd.DataFrame]:
    """Read the predictions of the grid, stage by stage. Raises InputError."""
    for name in grid_stage_names(grid):
        yield read_table(results_dir / "predictions" / f"{name}.parquet")


def read_table(path: Path) -> pd.DataFrame:
    """Read a stage's table of rows, predictions or items. Raises InputError if it is missing."""
    if not path.is_file():
        raise InputError(f"{path}: this file of the grid is missing; run `dvc repro`")
    return artifacts.read_table(path)


def read_result_cells(
    results_dir: Path,
    grid: Grid,
    *,
    table: pd.DataFrame,
    split: str,
    tasks: Mapping[str, Task],
    ensemble_predictions: Iterable[pd.DataFrame] = (),
) -> list[ResultCell]:
    """Build the cells of `table` with their predictions on `split`, in the order of the grid.

    Raises InputError if a file of predictions is missing.
    """
    cells = build_cells(table, split=split, tasks=tasks)
    for predictions in read_predictions(results_dir, grid):
        add_predictions(cells, predictions, split=split)
    for predictions in ensemble_predictions:
        add_predictions(cells, predictions, split=split)
    kept = _drop_redundant_chance(cells.values())
    return sorted(kept, key=lambda cell: _grid_order(cell, grid))


def build_cells(
    table: pd.DataFrame, *, split: str, tasks: Mapping[str, Task]
) -> dict[CellKey, ResultCell]:
    """Build cells from the rows of chosen trials; `add_predictions` adds the scores of items."""
    scored = _rows_of_comparison_metric(table, tasks)
    cells: dict[CellKey, ResultCell] = {}
    rows_by_key = group_by(
        scored.to_dict("records"), lambda row: tuple(row[name] for name in RESULT_KEY)
    )
    for key, group in sorted(rows_by_key.items()):
        rows = [row for row in group if row["split"] == split]
        if not rows:
            continue
        cell = _build_cell(System(*key[: len(SYSTEM_COLUMNS)]), rows)
        for row in group:
            if row["split"] == "validation" and row["status"] == "ok":
                value = float(row["value"]) / RANKING_METRICS[row["metric"]]
                cell.validation_values.append(value)
        cells[key] = cell
    for (*system, task, label_count), cell in cells.items():
        base_task, extra_test_set = split_test_set(task)
        if extra_test_set:  # systems are chosen on the task's own validation split
            cell.validation_values = cells[*system, base_task, label_count].validation_values
    return cells


def _rows_of_comparison_metric(table: pd.DataFrame, tasks: Mapping[str, Task]) -> pd.DataFrame:
    """Return the rows of systems with the one metric by which each task compares them."""
    is_system = (table["family"] != "ceiling") & (table["test_set"] != HELDOUT_TEST_SET)
    is_ranking = table["metric"].isin(list(RANKING_METRICS))
    scored = disambiguate(table[is_whole_task(table) & is_system & is_ranking])
    metrics = {}
    for name, rows in scored.groupby("task"):
        base_task, _ = split_test_set(str(name))
        metrics[str(name)] = choose_comparison_metric(tasks.get(base_task), rows["metric"])
    return scored[scored["metric"] == scored["task"].map(metrics)]


def is_whole_task(table: pd.DataFrame) -> pd.Series:
    """Return which rows are of chosen trials, for all items of a task and all layers together."""
    return (
        (table["trial"] == "chosen")
        & (table["item_filter"] == "all")
        & (table["group"] == "all")
        & (table["layer"] == "none")
    )


def disambiguate(table: pd.DataFrame) -> pd.DataFrame:
    """Rename the task of rows on an extra test set, which is a setting of its own: `mr on cr`."""
    is_extra = ~table["test_set"].isin(["", HELDOUT_TEST_SET])
    is_extra &= table["test_set"] != table["task"]
    names = table["task"] + TEST_SET_SEPARATOR + table["test_set"]
    return table.assign(task=table["task"].where(~is_extra, names))


def split_test_set(task: str) -> tuple[str, str]:
    """Return the task and the extra test set of a name such as `mr on cr`; "" without one."""
    base_task, _, extra_test_set = task.partition(TEST_SET_SEPARATOR)
    return base_task, extra_test_set


def choose_comparison_metric(task: Task | None, metrics: Iterable[str]) -> str:
    """Choose the metric by which systems are compared, from those that a task's rows have.

    It is the first one that the task names, or else the first of RANKING_METRICS.
    """
    named = (task.metric or ()) if task else ()
    order = [*named, *RANKING_METRICS]
    return min({*metrics} & RANKING_METRICS.keys(), key=order.index)


def _build_cell(system: System, rows: list[Row]) -> ResultCell:
    first = rows[0]
    cell = ResultCell(
        system=system,
        task=first["task"],
        kind=first["kind"],
        label_count=first["label_count"],
        metric=first["metric"],
        train_examples=max(int(row["train_examples"]) for row in rows),
    )
    repetitions = group_by(
        rows, lambda row: (_int_or_none(row["pretrain_seed"]), _int_or_none(row["finetune_seed"]))
    )
    none_last = sorted(repetitions, key=lambda seeds: [(seed is None, seed or 0) for seed in seeds])
    for raw_seeds in none_last:
        _add_repetition(cell, normalize_seeds(system, *raw_seeds), repetitions[raw_seeds])
    return cell


def _add_repetition(cell: ResultCell, seeds: SeedPair, folds: list[Row]) -> None:
    """Add the mean over the folds of a repetition, or the reasons why it has no score."""
    failures = {row["reason"]: row["status"] for row in folds if row["status"] != "ok"}
    for reason, status in failures.items():
        notes = tuple(results.notes_from_json(reason))
        cell.problems.append(SeedProblem(*seeds, status, notes))
    if failures:
        return
    values = [row["value"] for row in folds]
    weights = [float(row["num_examples"]) for row in folds]
    mean = float(np.average(values, weights=weights))
    cell.seed_values[seeds] = mean / RANKING_METRICS[cell.metric]
    cell.num_examples = int(sum(row["num_examples"] for row in folds))


def normalize_seeds(system: System, pretrain_seed: Any, finetune_seed: Any) -> SeedPair:
    """Return the seeds of a repetition, with None for those that change nothing.

    A public checkpoint is the same under every pretraining seed. Its random-init baselines, its
    adaptations, and what has continued on the corpus are not.
    """
    is_unchanged = system.init == "pretrained" and system.adapt_text == "none"
    if system.family == PUBLIC_FAMILY and is_unchanged:
        return None, _int_or_none(finetune_seed)
    return _int_or_none(pretrain_seed), _int_or_none(finetune_seed)


def _int_or_none(value: Any) -> int | None:
    return None if pd.isna(value) else int(value)


def add_predictions(
    cells: Mapping[CellKey, ResultCell], predictions: pd.DataFrame, *, split: str
) -> None:
    """Add item scores and prediction hashes to the cells that these predictions belong to."""
    chosen = predictions[(predictions["split"] == split) & (predictions["trial"] == "chosen")]
    chosen = disambiguate(chosen).assign(hash=_hash_predictions(chosen))
    key_columns = [*RESULT_KEY, "pretrain_seed", "finetune_seed"]
    repetitions = chosen.groupby(key_columns, dropna=False, sort=True)
    item_columns = ["id", "group", "fold", "label", "prediction", "correct", "hash"]
    for (*key, pretrain_seed, finetune_seed), items in repetitions[item_columns]:
        cell = cells.get(tuple(map(str, key)))
        if cell is None or items["correct"].isna().any():
            continue  # there is no score, and the row says why
        seeds = normalize_seeds(cell.system, pretrain_seed, finetune_seed)
        if seeds not in cell.seed_values:
            continue  # one fold failed, so the other folds of this repetition do not count
        contributions = split_score(cell.metric, items)
        if contributions is not None and cell.system.model not in CHANCE_BASELINES:
            contributions_N, item_range = contributions
            items = items.assign(correct=contributions_N)
            cell.item_ranges.setdefault(seeds, item_range)
        cell.num_folds = items["fold"].nunique()
        if _has_clusters(items):
            cell.group_sizes = items.groupby("group")["correct"].size()
        scores = _score_items(items, by_group=cell.group_sizes is not None)
        # A public checkpoint comes with several pretraining seeds, which are one repetition.
        cell.item_scores.setdefault(seeds, scores)
        cell.prediction_hashes.setdefault(seeds, int(items["hash"].sum()))


def _hash_predictions(predictions: pd.DataFrame) -> npt.NDArray[np.uint64]:
    """Return a hash of each prediction and its item id; sums of them do not depend on the order."""
    predicted = pd.Series(
        predictions["prediction"].astype(str).to_numpy(),
        index=pd.Index(predictions["id"].astype(str)),
    )
    return np.asarray(pd.util.hash_pandas_object(predicted), dtype=np.uint64)


def _has_clusters(items: pd.DataFrame) -> bool:
    """Return whether the items of a group are one unit of the intervals.

    Those of an author, a document or a template are alike, and other groups could have been in the
    test set. A few groups, such as the phenomena of a test suite, are no sample of anything.
    """
    num_groups = items["group"].nunique()
    has_folds = bool(items["fold"].notna().any())  # which keep groups whole, however few
    return num_groups >= MIN_CLUSTERS or (has_folds and num_groups > 1)


def _score_items(predictions: pd.DataFrame, *, by_group: bool) -> pd.Series:
    """Return `correct` by item id, sorted.

    Items of a group may be alike. Then the result is by group: the overall mean plus the sum of the
    group's deviations from it, scaled so that the mean over groups is the mean over items. The size
    of a group alone does not make its score extreme.
    """
    if not by_group:
        correct = predictions["correct"].to_numpy(dtype=np.float64)
        return pd.Series(correct, index=pd.Index(predictions["id"])).sort_index()
    mean = predictions["correct"].mean()
    groups = predictions.groupby("group")["correct"]
    return mean + (groups.sum() - mean * groups.size()) * (groups.ngroups / len(predictions))


def stack_scores(item_scores: list[pd.Series]) -> np.ndarray:
    """Return (R, N) scores of the items that all repetitions share."""
    shared = item_scores[0].index
    if all(scores.index.equals(shared) for scores in item_scores):
        # Nearly always true, and much faster than joining.
        return np.stack([scores.to_numpy(dtype=np.float64) for scores in item_scores])
    joined = pd.concat(item_scores, axis=1, join="inner").sort_index()
    return joined.to_numpy(dtype=np.float64).T


def _drop_redundant_chance(cells: Iterable[ResultCell]) -> list[ResultCell]:
    """Drop the chance level if it is not above the majority class, except in multiple choice.

    With balanced labels the two are equal.
    """
    kept = []
    for group in group_by_setting(cells).values():
        majority_means = [
            cell.mean for cell in group if cell.system.model == "majority" and cell.seed_values
        ]
        for cell in group:
            has_names = load_kind(cell.kind).answer.names_labels  # choices have none
            may_drop = cell.system.model == "chance" and has_names
            if not may_drop or all(cell.mean > mean + MEAN_TOLERANCE for mean in majority_means):
                kept.append(cell)
    return kept


def group_by_setting(cells: Iterable[ResultCell]) -> dict[Setting, list[ResultCell]]:
    """Group cells by setting, in their order."""
    return group_by(cells, lambda cell: cell.setting)


def _grid_order(cell: ResultCell, grid: Grid) -> tuple[Any, ...]:
    """Sort by task, label count, model, transfer, init, features, head and recipe."""
    base_task, extra_test_set = split_test_set(cell.task)
    system = cell.system
    return (
        grid.tasks.index(base_task),
        extra_test_set,
        _index_or_last([str(count) for count in grid.label_counts], cell.label_count),
        _index_or_last([*grid.models, *grid.two_budget_systems, *BASELINES], system.model),
        TRANSFER_ORDER.index(system.transfer),
        INIT_ORDER.index(system.init),
        system.features,
        system.head,
        system.recipe,
    )


def _index_or_last(values: list[str], value: str) -> int:
    return values.index(value) if value in values else len(values)


def read_cell(
    results_dir: Path,
    grid: Grid,
    system: System,
    setting: Setting,
    *,
    split: str,
    tasks: Mapping[str, Task],
) -> ResultCell:
    """Read one cell, which is among the results. Raises InputError if a file is missing."""
    base_task, _ = split_test_set(setting.task)
    names = task_stage_names(grid, base_task)
    rows = [read_table(results_dir / "rows" / f"{name}.parquet") for name in names]
    key = (*system_key(system), setting.task, setting.label_count)
    cell = build_cells(pd.concat(rows), split=split, tasks=tasks)[key]
    for name in names:
        predictions = read_table(results_dir / "predictions" / f"{name}.parquet")
        add_predictions({key: cell}, predictions, split=split)
    return cell


def system_key(system: System) -> tuple[str, ...]:
    """Return a system as the values of `SYSTEM_COLUMNS`."""
    return astuple(system)


def select_system(table: pd.DataFrame, system: System) -> pd.DataFrame:
    """Return the rows of one system."""
    is_system = (table[list(SYSTEM_COLUMNS)] == list(system_key(system))).all(axis=1)
    return table[is_system]


def read_setting_predictions(
    results_dir: Path, grid: Grid, setting: Setting, *, split: str
) -> pd.DataFrame:
    """Read the predictions of one setting: the chosen trial on `split`. Raises InputError."""
    base_task, extra_test_set = split_test_set(setting.task)
    tables = [
        read_table(results_dir / "predictions" / f"{name}.parquet")
        for name in task_stage_names(grid, base_task)
    ]
    table = pd.concat(tables)
    return table[
        (table["split"] == split)
        & (table["trial"] == "chosen")
        & (table["test_set"] == (extra_test_set or base_task))
        & (table["label_count"] == setting.label_count)
    ]


def shorten_label(label: object) -> str:
    """Return a label in full if it is a short name. Shorten other texts, which may be private."""
    return str(label) if is_short_name(str(label), is_label=True) else shorten_value(label)


def drop_duplicate_label_counts(
    cells: list[ResultCell],
) -> tuple[list[ResultCell], list[DuplicateLabelCount]]:
    """Drop settings with as many labels as another one, such as 100 when there are only 49.

    "all" is kept, or else the smallest of such label counts. A setting also stays if it has a
    system that the kept one lacks, or that has no score there.
    """
    groups = group_by_setting(cells)
    train_examples = {
        setting: max(cell.train_examples for cell in group) for setting, group in groups.items()
    }
    kept: list[ResultCell] = []
    dropped = []
    for setting, group in groups.items():
        count = train_examples[setting]
        same_as = _representative_setting(setting, train_examples)
        scored_there = {cell.system for cell in groups[same_as] if cell.seed_values}
        only_here = {cell.system for cell in group} - scored_there
        if same_as == setting or only_here:
            kept += group
        else:
            dropped.append(
                DuplicateLabelCount(setting.task, setting.label_count, count, same_as.label_count)
            )
    return kept, dropped


def _representative_setting(setting: Setting, train_examples: Mapping[Setting, int]) -> Setting:
    """Return the setting of the same task that represents all with as many labels."""
    count = train_examples[setting]
    if not count:
        return setting
    label_counts = [
        other.label_count
        for other, other_count in train_examples.items()
        if other.task == setting.task and other_count == count
    ]
    if "all" in label_counts:
        return Setting(setting.task, "all")
    return Setting(setting.task, min(label_counts, key=int))
