"""Build the analysis from results and predictions, as a pure function of them.

It does not depend on a clock, a host name or a path.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import numpy as np
import pandas as pd

from lineage import artifacts, results
from lineage.analysis import statistics
from lineage.analysis.answers import describe_answers
from lineage.analysis.cells import (
    ResultCell,
    disambiguate,
    drop_duplicate_label_counts,
    group_by_setting,
    read_result_cells,
    read_rows,
)
from lineage.analysis.claims import Evidence, judge_claims
from lineage.analysis.comparisons import (
    best_systems,
    is_above_chance,
    plan_comparisons,
    run_comparisons,
)
from lineage.analysis.contamination import (
    build_clean_scores,
    count_contaminated_items,
    read_contamination,
    score_clean_items,
)
from lineage.analysis.convergence import list_controls, read_finetune_curves
from lineage.analysis.ensembles import build_ensembles
from lineage.analysis.groups import build_group_scores
from lineage.analysis.labels import measure_label_gains
from lineage.analysis.layers import build_layer_curves
from lineage.analysis.literature import find_benchmark_scores
from lineage.analysis.long_distance import read_distant_cells
from lineage.analysis.neighbours import build_sense_neighbours
from lineage.analysis.ngram import compare_with_ngrams
from lineage.analysis.outside import list_outside_prices
from lineage.analysis.ranking import rank_setting
from lineage.analysis.records import (
    AdaptationEffect,
    Analysis,
    Ceiling,
    Comparison,
    Failure,
    LossCurve,
    PretrainingBudget,
    SwapConsistency,
    SystemScore,
    UnknownTokenShare,
)
from lineage.analysis.saved_epochs import measure_saved_epochs
from lineage.analysis.spreadsheets import escape_cells, unescape_cells
from lineage.analysis.tasks import (
    add_label_counts,
    build_task_summaries,
    read_all_dataset_stats,
)
from lineage.analysis.text_curves import TextPoints, build_text_curves, read_text_points
from lineage.analysis.trials import count_chosen_trials, count_trials
from lineage.config.data import Task
from lineage.config.params import Grid, ReportParams
from lineage.evaluation.ngram_bits import read_ngram_file
from lineage.results import (
    HELDOUT_TEST_SET,
    NGRAM_STAGE,
    PUBLIC_FAMILY,
    UNKNOWN_TOKEN_METRIC,
)
from lineage.training.recipes import RecipeSearch, read_search

MAX_CURVE_POINTS = 200  # of each curve; more cannot be seen
BUDGET_FIELDS = (
    "text_bytes",
    "epochs",
    "tokens",
    "body_parameters",
    "total_parameters",
    "train_flops",
)
VALIDATION_PREFIX = "validation_"  # of the columns of a curve
Row = dict[str, Any]


def build_results(
    results_dir: Path,
    grid: Grid,
    report: ReportParams,
    tasks: Mapping[str, Task] | None = None,
    continued_models: Mapping[str, str] | None = None,
    models: Mapping[str, Any] | None = None,
) -> tuple[pd.DataFrame, Analysis]:
    """Return all result rows and the analysis, from `artifacts/results`.

    `tasks`, `continued_models` and `models` are those of `Params`. Raises InputError.
    """
    split = report.split
    grid_tasks = {name: tasks[name] for name in grid.tasks if tasks and name in tasks}
    ensemble_rows, ensemble_predictions = build_ensembles(results_dir, grid, grid_tasks)
    table = results.sort_results(pd.concat([read_rows(results_dir, grid), *ensemble_rows]))
    all_cells = _read_cells(results_dir, grid, table, grid_tasks, ensemble_predictions, split=split)
    cells, duplicate_label_counts = drop_duplicate_label_counts(all_cells)
    groups = group_by_setting(cells)
    ranked_systems = _best_systems_by_setting(groups.values(), grid)
    overlaps = read_contamination(results_dir, grid)
    clean_rows = score_clean_items(
        results_dir, grid, table, overlaps, ensemble_predictions, split=split
    )
    planned = plan_comparisons(cells, grid, continued_models)
    comparisons = run_comparisons(planned)
    rankings = [one for own in groups.values() for one in rank_setting(own, [*grid.ablation_of])]
    text_points = read_text_points(all_cells, results_dir, grid, split=split)
    analysis = Analysis(
        split=split,
        grid=grid,
        scores=tuple(_summarize_cells(cells)),
        rankings=tuple(rankings),
        label_gains=tuple(measure_label_gains(cells, rankings)),
        answer_details=describe_answers(rankings, results_dir, grid, split=split),
        comparisons=tuple(comparisons),
        public_models=_public_models(grid, table),
        group_scores=tuple(build_group_scores(table, ranked_systems, split=split)),
        published_benchmarks=tuple(
            find_benchmark_scores(grid_tasks, table, best_systems=ranked_systems, split=split)
        ),
        duplicate_label_counts=tuple(duplicate_label_counts),
        contamination=tuple(count_contaminated_items(overlaps)),
        clean_scores=tuple(build_clean_scores(clean_rows, ranked_systems)),
        **_table_fields(results_dir, grid, grid_tasks, table, split=split),
        **_language_model_fields(results_dir, grid, table, comparisons, text_points),
    )
    evidence = Evidence(
        analysis,
        planned,
        models or {},
        text_points.list_first_and_last(),
        measure_saved_epochs(results_dir, grid),
        read_distant_cells(all_cells, results_dir, grid, split=split),
    )
    analysis = replace(analysis, claims=judge_claims(evidence))
    return (_add_rows(table, clean_rows) if len(clean_rows) else table), analysis


def _read_cells(
    results_dir: Path,
    grid: Grid,
    table: pd.DataFrame,
    tasks: Mapping[str, Task],
    ensemble_predictions: Iterable[pd.DataFrame],
    *,
    split: str,
) -> list[ResultCell]:
    """Read the cells, each with the number of labels that its subsets are drawn from."""
    cells = read_result_cells(
        results_dir,
        grid,
        table=table,
        split=split,
        tasks=tasks,
        ensemble_predictions=ensemble_predictions,
    )
    add_label_counts(cells, read_all_dataset_stats(results_dir, grid))
    return cells


def _add_rows(table: pd.DataFrame, rows: pd.DataFrame) -> pd.DataFrame:
    return results.sort_results(pd.concat([table, rows]))


def _table_fields(
    results_dir: Path, grid: Grid, tasks: Mapping[str, Task], table: pd.DataFrame, *, split: str
) -> dict[str, Any]:
    """Return the fields of the analysis that follow from the rows and the counts of the data."""
    dataset_stats = read_all_dataset_stats(results_dir, grid)
    return {
        "tasks": tuple(build_task_summaries(dataset_stats, tasks, table, split=split)),
        "ceilings": tuple(_list_ceilings(table)),
        "layer_curves": tuple(build_layer_curves(results_dir, grid, table, tasks, split=split)),
        "sense_neighbours": tuple(build_sense_neighbours(results_dir, grid, split=split)),
        "unknown_token_shares": tuple(unknown_token_shares(table, split)),
        "swap_consistency": tuple(swap_consistency(table, split)),
        "trials": count_trials(table),
        "chosen_trials": count_chosen_trials(table),
        "failures": tuple(list_failures(table)),
        "outside_prices": tuple(list_outside_prices(tasks)),
        "convergence_controls": tuple(list_controls(table, split)),
        "finetune_curves": tuple(read_finetune_curves(results_dir, grid)),
        "confidence_level": statistics.CONFIDENCE_LEVEL,
        "equivalence_margin": statistics.EQUIVALENCE_MARGIN,
    }


def _language_model_fields(
    results_dir: Path,
    grid: Grid,
    table: pd.DataFrame,
    comparisons: Sequence[Comparison],
    text_points: TextPoints,
) -> dict[str, Any]:
    """Return the fields of the analysis that are about pretraining and adaptation."""
    curves = tuple(_loss_curves(results_dir, grid))
    ngrams = read_ngram_file(results_dir / NGRAM_STAGE / f"{NGRAM_STAGE}.json")
    public_models = _public_models(grid, table)
    trained = [name for name in grid.models if name not in public_models]
    budget = tuple(_pretraining_budgets(results_dir, grid))
    return {
        "adaptation": tuple(_adaptation_effects(results_dir, grid, table)),
        "budget": budget,
        "text_curves": tuple(build_text_curves(text_points, budget)),
        "curves": curves,
        "recipe_searches": tuple(_read_recipe_searches(results_dir, grid)),
        "ngram_bits": ngrams.models,
        "ngram_comparisons": tuple(compare_with_ngrams(trained, ngrams, curves, comparisons)),
    }


def _read_recipe_searches(results_dir: Path, grid: Grid) -> list[RecipeSearch]:
    """Return the searches for recipes that have ended."""
    paths = [results_dir / "recipes" / f"recipe-{model}.json" for model in grid.sweep]
    return [read_search(path) for path in paths if path.is_file()]


def _best_systems_by_setting(
    groups: Iterable[list[ResultCell]], grid: Grid
) -> list[list[ResultCell]]:
    """Return the best systems of each setting that has any, best first."""
    found = (
        best_systems([cell for cell in group if cell.system.model not in grid.ablation_of])
        for group in groups
    )
    return [ranked for ranked in found if ranked]


def _summarize_cells(cells: list[ResultCell]) -> list[SystemScore]:
    by_setting = group_by_setting(cells)
    return [
        cell.summarize(above_chance=is_above_chance(cell, by_setting[cell.setting]))
        for cell in cells
    ]


def _public_models(grid: Grid, table: pd.DataFrame) -> tuple[str, ...]:
    public = {*table.loc[table["family"] == PUBLIC_FAMILY, "model"]}
    return tuple(name for name in grid.models if name in public)


def write_results_csv(path: Path, table: pd.DataFrame) -> None:
    """Write rows as CSV, with the same bytes for the same rows; missing values are empty.

    People open it in spreadsheets, for which texts are escaped.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    escape_cells(table).to_csv(path, index=False, lineterminator="\n")


def read_results_csv(path: Path) -> list[Row]:
    """Read the file of `write_results_csv`, with None for missing values."""
    numbers = {**dict.fromkeys(results.INTEGER_COLUMNS, "Int64"), "value": "Float64"}
    types = {name: numbers.get(name, "str") for name in results.RESULT_COLUMNS}
    missing = {name: [""] for name in numbers}
    table = pd.read_csv(path, dtype=types, keep_default_na=False, na_values=missing)
    table = unescape_cells(table)
    table = table.astype(object).where(table.notna(), None)
    return [{str(name): value for name, value in row.items()} for row in table.to_dict("records")]


def _list_ceilings(table: pd.DataFrame) -> list[Ceiling]:
    is_ceiling = (table["family"] == "ceiling") & (table["group"] == "all")
    rows = table[is_ceiling & (table["status"] == "ok")]
    return [
        Ceiling(task, features, float(value))
        for task, features, value in rows[["task", "features", "value"]].itertuples(index=False)
    ]


def _adaptation_effects(
    results_dir: Path, grid: Grid, table: pd.DataFrame
) -> list[AdaptationEffect]:
    """Return one effect per model, task and metric, over the pretraining seeds with both values."""
    heldout = table[(table["test_set"] == HELDOUT_TEST_SET) & (table["status"] == "ok")]
    effects = []
    for (model, task, metric), group in heldout.groupby(["model", "task", "metric"], sort=True):
        by_seed = group.pivot_table(index="pretrain_seed", columns="init", values="value")
        paired = by_seed.reindex(columns=["pretrained", "adapted"]).dropna()
        if paired.empty:
            continue  # all adaptations failed
        before, after = paired["pretrained"], paired["adapted"]
        improved = after > before if str(metric).endswith("_accuracy") else after < before
        effects.append(
            AdaptationEffect(
                model=str(model),
                task=str(task),
                metric=str(metric),
                num_improved=int(improved.sum()),
                num_pretrainings=len(improved),
                before=float(before.mean()),
                after=float(after.mean()),
                notes=_merge_notes(group["reason"]),
                text_bytes=_adaptation_text_bytes(
                    results_dir, grid, model=str(model), task=str(task)
                ),
            )
        )
    return effects


def _merge_notes(reasons: pd.Series) -> tuple[results.Note, ...]:
    """Return the distinct notes of all rows, except no_improvement: `num_improved` counts it."""
    notes = [note for text in sorted(set(reasons)) for note in results.notes_from_json(text)]
    distinct = {results.notes_to_json([note]): note for note in notes}
    return tuple(note for note in distinct.values() if note.kind != "no_improvement")


def _adaptation_text_bytes(results_dir: Path, grid: Grid, *, model: str, task: str) -> float | None:
    """Return the bytes of target text at the end of the adaptation curves, the mean over seeds."""
    counts = []
    for seed in grid.pretrain_seeds:
        path = results_dir / "curves" / f"adapt-{model}-{seed}-{task}.parquet"
        if path.is_file():
            counts.append(artifacts.read_table(path, ["text_bytes"])["text_bytes"].max())
    finite = [count for count in counts if np.isfinite(count)]  # NaN if its pretraining failed
    return float(np.mean(finite)) if finite else None


def _pretraining_budgets(results_dir: Path, grid: Grid) -> list[PretrainingBudget]:
    """Return the budget of each model's pretraining, then the sums for systems of two models.

    A model has the means over seeds, which differ by a batch at most. Seeds that failed count
    only if all of them did.
    """
    budgets: dict[str, PretrainingBudget] = {}
    for model in grid.models:
        records = {}
        for seed in grid.pretrain_seeds:
            path = results_dir / "budgets" / f"pretrain-{model}-{seed}.json"
            if path.is_file():
                records[seed] = artifacts.read_json(path)
        succeeded = {
            seed: record for seed, record in records.items() if record.get("status", "ok") == "ok"
        }
        used = succeeded or records
        if used:
            budgets[model] = _mean_budget(model, used)
    for name, members in grid.two_budget_systems.items():
        if budgets.keys() >= {*members}:
            budgets[name] = _sum_budgets(name, [budgets[member] for member in members])
    return list(budgets.values())


def _mean_budget(model: str, records: Mapping[int, Row]) -> PretrainingBudget:
    first = next(iter(records.values()))
    means = {}
    for name in BUDGET_FIELDS:
        values = [record[name] for record in records.values()]
        means[name] = None if first[name] is None else float(np.mean(values))
    return PretrainingBudget(
        model=model,
        pretrain_seeds=tuple(records),
        members=(),
        budget_matched=first.get("matched", True),
        **means,
    )


def _sum_budgets(name: str, members: Sequence[PretrainingBudget]) -> PretrainingBudget:
    sums = {}
    for field in BUDGET_FIELDS:
        values = [getattr(member, field) for member in members]
        sums[field] = None if None in values else sum(values)
    names = tuple(member.model for member in members)
    return replace(
        members[0], model=name, pretrain_seeds=(), members=names, budget_matched=True, **sums
    )


def _loss_curves(results_dir: Path, grid: Grid) -> list[LossCurve]:
    """Return the validation curves of all pretrained models."""
    curves = []
    for model in grid.models:
        for seed in grid.pretrain_seeds:
            path = results_dir / "curves" / f"pretrain-{model}-{seed}.parquet"
            if path.is_file():
                curves += _read_curves(path, model, seed)
    return curves


def _read_curves(path: Path, model: str, seed: int) -> list[LossCurve]:
    table = artifacts.read_table(path)
    curves = []
    for column in [name for name in table.columns if name.startswith(VALIDATION_PREFIX)]:
        measured = table[np.isfinite(table[column].astype(float))]
        if not len(measured):
            continue
        positions = np.linspace(0, len(measured) - 1, MAX_CURVE_POINTS).round().astype(int)
        points = measured.iloc[np.unique(positions)]
        curves.append(
            LossCurve(
                model=model,
                pretrain_seed=seed,
                metric=column.removeprefix(VALIDATION_PREFIX),
                text_bytes=tuple(points["text_bytes"].astype(int).tolist()),
                value=tuple(points[column].astype(float).tolist()),
            )
        )
    return curves


def unknown_token_shares(table: pd.DataFrame, split: str) -> list[UnknownTokenShare]:
    """Return the share of a task's tokens that each model does not know: means over seeds."""
    is_share = (table["metric"] == UNKNOWN_TOKEN_METRIC) & (table["split"] == split)
    groups = disambiguate(table[is_share]).groupby(["task", "model", "init"], sort=True)
    return [
        UnknownTokenShare(str(task), str(model), str(init), float(rows["value"].mean()))
        for (task, model, init), rows in groups
    ]


def swap_consistency(table: pd.DataFrame, split: str) -> list[SwapConsistency]:
    """Return how often answers stay the same when the two texts are swapped: means over seeds."""
    is_consistency = (
        (table["metric"] == "swap_consistency")
        & (table["group"] == "all")
        & (table["split"] == split)
        & (table["trial"] == "chosen")
    )
    columns = ["task", "label_count", "model", "family", "init", "transfer", "head"]
    groups = disambiguate(table[is_consistency]).groupby(columns, sort=True)
    return [
        SwapConsistency(
            **dict(zip(columns, map(str, key), strict=True)), value=float(rows["value"].mean())
        )
        for key, rows in groups
    ]


def list_failures(table: pd.DataFrame) -> list[Failure]:
    """Return the results without a value, merging all seeds with the same reason."""
    columns = [name for name in Failure.__dataclass_fields__ if not name.endswith("_seeds")]
    failed = disambiguate(table[(table["status"] != "ok") & (table["trial"] == "chosen")])
    pretrain_seeds: dict[tuple[Any, ...], list[int]] = {}
    groups = failed.groupby([*columns, "pretrain_seed"], sort=True, dropna=False)
    for columns_and_seed, rows in groups:
        *key, pretrain_seed = cast(tuple[Any, ...], columns_and_seed)
        finetune_seeds = tuple(sorted({int(seed) for seed in rows["finetune_seed"].dropna()}))
        seeds = pretrain_seeds.setdefault((*key, finetune_seeds), [])
        if not pd.isna(pretrain_seed):
            seeds.append(int(pretrain_seed))
    failures = []
    for (*key, finetune_seeds), seeds in pretrain_seeds.items():
        values = dict(zip(columns, key, strict=True))
        values["reason"] = tuple(results.notes_from_json(values["reason"]))
        failures.append(
            Failure(**values, finetune_seeds=finetune_seeds, pretrain_seeds=tuple(seeds))
        )
    return failures
