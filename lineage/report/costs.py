"""The cost of building each system: time, memory and size, from the metadata of the stages."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from statistics import median
from typing import Any

from lineage import artifacts
from lineage.analysis.cells import split_test_set
from lineage.analysis.decision import Costs, SystemCost
from lineage.analysis.records import (
    AdaptationEffect,
    Analysis,
    PretrainingBudget,
    Ranking,
    Setting,
    System,
)
from lineage.config.params import Grid
from lineage.report.provenance import StageMetadata

BYTES_PER_WEIGHT = 4  # float32
STAGE_OF_INIT = {"pretrained": "evaluate", "adapted": "evaluate_adapted"}


def add_costs(
    analysis: Analysis, stage_metadata: Mapping[str, StageMetadata], grid: Grid, *, curves_dir: Path
) -> Analysis:
    """Return the analysis with the time and memory of pretraining and adaptation."""
    return replace(
        analysis,
        adaptation=add_adaptation_seconds(
            analysis.adaptation, stage_metadata, grid, curves_dir=curves_dir
        ),
        budget=add_pretraining_costs(analysis.budget, stage_metadata, curves_dir=curves_dir),
    )


def add_pretraining_costs(
    budget: Sequence[PretrainingBudget],
    stage_metadata: Mapping[str, StageMetadata],
    *,
    curves_dir: Path,
) -> tuple[PretrainingBudget, ...]:
    """Add the seconds and the peak memory of pretraining: means over seeds, None if unknown.

    Stage metadata counts only if it belongs to the curve that is in `curves_dir`.
    """
    found: dict[str, PretrainingBudget] = {}
    for one in budget:
        if one.members:
            found[one.model] = _sum_costs(one, [found[member] for member in one.members])
            continue
        own: list[StageMetadata] = []
        if one.text_bytes is not None:  # copying a public checkpoint does not cost its training
            stage_ids = [f"{one.model}-{seed}" for seed in one.pretrain_seeds]
            own = _find_training_metadata("pretrain", stage_ids, stage_metadata, curves_dir)
        found[one.model] = replace(
            one,
            seconds=_mean_of_known(map(_training_seconds, own)),
            peak_memory_bytes=_mean_of_known([meta.get("peak_memory_bytes") for meta in own]),
        )
    return tuple(found.values())


def _training_seconds(metadata: StageMetadata) -> float | None:
    """Return the seconds of a training without those in which other programs used the cores.

    Metadata of version 0.2 has only the time that passed.
    """
    seconds: float | None = metadata.get("own_seconds", metadata.get("seconds"))
    return seconds


def _mean_of_known(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if known else None


def _sum_costs(
    budget: PretrainingBudget, members: Sequence[PretrainingBudget]
) -> PretrainingBudget:
    """Add the cost of two trainings, one after the other."""
    seconds = [one.seconds for one in members if one.seconds is not None]
    memory = [one.peak_memory_bytes for one in members if one.peak_memory_bytes is not None]
    return replace(
        budget,
        seconds=sum(seconds) if len(seconds) == len(members) else None,
        peak_memory_bytes=max(memory) if len(memory) == len(members) else None,
    )


def add_adaptation_seconds(
    effects: Iterable[AdaptationEffect],
    stage_metadata: Mapping[str, StageMetadata],
    grid: Grid,
    *,
    curves_dir: Path,
) -> tuple[AdaptationEffect, ...]:
    """Add the seconds of adaptation, as `add_pretraining_costs` does."""
    found = []
    for one in effects:
        stage_ids = [f"{one.model}-{seed}-{one.task}" for seed in grid.pretrain_seeds]
        own = _find_training_metadata("adapt", stage_ids, stage_metadata, curves_dir)
        found.append(replace(one, seconds=_mean_of_known(map(_training_seconds, own))))
    return tuple(found)


def _find_training_metadata(
    verb: str,
    stage_ids: Iterable[str],
    stage_metadata: Mapping[str, StageMetadata],
    curves_dir: Path,
) -> list[StageMetadata]:
    found = []
    for stage_id in stage_ids:
        own = stage_metadata.get(f"{verb}@{stage_id}")
        curve = curves_dir / f"{verb}-{stage_id}.parquet"
        if own and curve.is_file() and own.get("curve_sha256") == artifacts.file_digest(curve):
            found.append(own)
    return found


def build_costs(
    analysis: Analysis, stage_metadata: Mapping[str, StageMetadata]
) -> dict[tuple[System, Setting], SystemCost]:
    """Return the cost of every candidate of every setting.

    The time is that of one pretraining, one adaptation and one training of the head with its
    trials.
    """
    return {
        (standing.system, ranking.setting): _system_cost(
            analysis, ranking, standing.system, stage_metadata
        )
        for ranking in analysis.rankings
        for standing in ranking.standings
    }


def _system_cost(
    analysis: Analysis,
    ranking: Ranking,
    system: System,
    stage_metadata: Mapping[str, StageMetadata],
) -> SystemCost:
    task, _ = split_test_set(ranking.task)
    if system.family == "tfidf":
        baselines = stage_metadata.get(f"baselines@{task}", {})
        models = {one["label_count"]: one for one in baselines.get("tfidf", [])}
        model = models.get(ranking.label_count, {})
        return SystemCost(
            model.get("seconds"),
            baselines.get("peak_memory_bytes"),
            model.get("model_bytes"),
            model.get("items_per_second"),
        )
    stage = STAGE_OF_INIT[system.init]
    names = [f"{stage}@{system.model}-{seed}-{task}" for seed in analysis.grid.pretrain_seeds]
    evaluation = next((stage_metadata[name] for name in names if name in stage_metadata), {})
    budget = next((one for one in analysis.budget if one.model == system.model), None)
    if budget is None:
        return SystemCost()
    runs = [
        run
        for run in evaluation.get("run_costs", [])
        if _is_run_of(run, system, ranking.label_count)
    ]
    seconds = [float(run["seconds"]) for run in runs]
    rates = [run.get("items_per_second") for run in runs]
    # The longest run: the first seed has tried the hyperparameters.
    parts = [max(seconds, default=None)]
    if system.transfer == "zero_shot":  # nothing was trained: the time is that of the answers
        parts = [0.0]
        rates = [ranking.num_examples / one for one in seconds if one]
    if budget.budget_matched or budget.text_bytes:  # else others have pretrained it
        parts.append(budget.seconds)
        names += [f"pretrain@{system.model}-{seed}" for seed in analysis.grid.pretrain_seeds]
    if system.init == "adapted":
        own = [one for one in analysis.adaptation if (one.model, one.task) == (system.model, task)]
        parts.append(own[0].seconds if own else None)
        names += [f"adapt@{system.model}-{seed}-{task}" for seed in analysis.grid.pretrain_seeds]
    devices = [str(stage_metadata.get(name, {}).get("device", "")) for name in names]
    memory = [evaluation.get("peak_memory_bytes"), budget.peak_memory_bytes]
    weights = budget.total_parameters
    return SystemCost(
        seconds=_sum_if_known(parts),
        peak_memory_bytes=max((one for one in memory if one is not None), default=None),
        model_bytes=None if weights is None else BYTES_PER_WEIGHT * weights,
        items_per_second=_median_if_known(rates),
        on_gpu=any(device.startswith("cuda") for device in devices),
    )


def _is_run_of(run: Mapping[str, Any], system: System, label_count: str) -> bool:
    same_head = system.transfer != "frozen" or system.head.startswith(run["head"])
    count = "none" if run["label_count"] is None else str(run["label_count"])
    same_use = (run["init"], run["transfer"]) == (system.init, system.transfer)
    return same_use and same_head and count == label_count


def _sum_if_known(parts: list[float | None]) -> float | None:
    known = [part for part in parts if part is not None]
    return sum(known) if len(known) == len(parts) else None


def _median_if_known(rates: list[float | None]) -> float | None:
    known = [rate for rate in rates if rate is not None]
    return median(known) if known else None


def describe_devices(costs: Costs) -> str:
    """Say that times on a GPU and on a CPU were mixed; empty if they were not."""
    devices = {
        cost.on_gpu
        for (system, _), cost in costs.items()
        if cost.seconds is not None and system.family != "tfidf"
    }
    if len(devices) < 2:
        return ""
    return (
        "Some models were built on a GPU and others on a CPU, so their times differ by machine too."
    )
