"""Scale a rehearsal to its study: seconds, memory and disk of every stage."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from lineage.evaluation.requested_runs import EVALUATIONS
from lineage.forecast.counts import (
    StageName,
    count_corpus_ratio,
    count_refits,
    count_runs_of,
    count_stage,
)
from lineage.forecast.records import StageForecast
from lineage.forecast.rehearsal import Rehearsal
from lineage.methods.encoder import LabelCount
from lineage.methods.feature_store import MAX_MEMORY_BYTES
from lineage.study.models import ModelConfig
from lineage.work import Work

MIN_SPREAD = 1.5  # of counts through which a line can be drawn
WEIGHTS_SUFFIX = ".safetensors"
REFITTED_VERBS = ("baselines", "evaluate", "evaluate_adapted")  # of systems that may be the best


@dataclass(frozen=True)
class RehearsedStage:
    """The cost of a stage in the rehearsal."""

    seconds: float
    memory_bytes: int
    done: list[Work]
    disk: dict[str, int]  # bytes of its outputs, by the suffix of the files

    @classmethod
    def read(cls, metadata: Mapping[str, Any], disk: dict[str, int]) -> "RehearsedStage":
        """Read the metadata of a stage."""
        done = [Work(**tree) for tree in metadata["work"]]
        return cls(metadata["work_seconds"], metadata["peak_memory_bytes"], done, disk)

    @property
    def other_seconds(self) -> float:
        """The seconds besides the logged work: to start, to read and to write."""
        return max(0.0, self.seconds - sum(work.seconds for work in self.done))


@dataclass(frozen=True)
class PartCost:
    """The seconds of a part of the work."""

    first_seconds: float  # that the first time takes longer than others
    fixed_seconds: float
    seconds_per_count: float

    def seconds(self, counts: Sequence[float]) -> float:
        """Return the seconds of work with these counts."""
        repeated = len(counts) * self.fixed_seconds + sum(counts) * self.seconds_per_count
        return self.first_seconds + repeated if counts else 0.0


def fit_cost(points: Sequence[Work]) -> PartCost:
    """Return the cost of a part, whose first time may take longer than the others.

    A line is drawn through different counts. Neither of its parts is negative.
    """
    others = [work for work in points[1:] if work.count] or [*points]
    counts = np.array([work.count for work in others])
    seconds = np.array([work.seconds for work in others])
    ratio = seconds.sum() / max(counts.sum(), 1e-9)
    slope = ratio
    if counts.max() > MIN_SPREAD * max(counts.min(), 1e-9):
        slope = float(np.clip(np.polyfit(counts, seconds, 1)[0], 0.0, ratio))
    fixed = max(0.0, float(seconds.mean() - slope * counts.mean()))
    first = max(0.0, points[0].seconds - fixed - slope * points[0].count)
    return PartCost(first, fixed, float(slope))


def scale_rehearsal(
    rehearsal: Rehearsal,
    stages: Mapping[str, RehearsedStage],
    models: dict[str, ModelConfig],
    names: Sequence[str],
) -> dict[str, StageForecast]:
    """Return the forecast of each stage of the study by its name."""
    rehearsed = _Rehearsed(rehearsal, stages, models)
    return {name: rehearsed.forecast(name) for name in names}


@dataclass(frozen=True)
class _Rehearsed:
    rehearsal: Rehearsal
    stages: Mapping[str, RehearsedStage]
    models: dict[str, ModelConfig]

    @property
    def base_seconds(self) -> float:
        """The seconds of a stage without work."""
        return min(stage.other_seconds for stage in self.stages.values())

    @property
    def base_memory(self) -> int:
        """The memory of a stage without data."""
        return min(stage.memory_bytes for stage in self.stages.values())

    def forecast(self, name: str) -> StageForecast:
        """Return the forecast of a stage of the study."""
        copy_seconds = self.rehearsal.data.copy_seconds.get(name)
        if copy_seconds is not None:
            folder = self.rehearsal.root / "full" / _artifact_of(name)
            disk_bytes = sum(path.stat().st_size for path in folder.iterdir())
            seconds = self.base_seconds + copy_seconds
            return StageForecast(seconds, self.base_memory, disk_bytes)
        stage = StageName.parse(name, self.rehearsal.params)
        if stage.verb == "refit":
            return self._forecast_refit(stage.task)
        rehearsed_name = self.rehearsal.find_stage(name)
        measured = self.stages[rehearsed_name]
        counted = count_stage(stage, self.rehearsal, measured.done, self.models)
        seconds = _work_seconds(measured.done, counted)
        memory = self._memory(stage, measured, counted)
        growth = self._output_growth(stage, rehearsed_name)
        disk = self._disk(stage, measured, growth)
        return StageForecast(measured.other_seconds + seconds, memory, disk)

    def _forecast_refit(self, task: str) -> StageForecast:
        """Return the most that a stage can take: at each number of labels, the dearest system."""
        params = self.rehearsal.params
        seconds: dict[LabelCount, float] = {}
        memory = self.base_memory
        weights = 0
        for verb in REFITTED_VERBS:
            for instance in params.grid.stage_instances[verb]:
                name = f"{verb}@{instance}"
                stage = StageName.parse(name, params)
                if stage.task != task:
                    continue
                measured = self.stages[self.rehearsal.find_stage(name)]
                memory = max(memory, self.forecast(name).memory_bytes)
                weights = max(weights, measured.disk.get(WEIGHTS_SUFFIX, 0))
                data = self.rehearsal.data.tasks[task]
                refits = count_refits(stage, params, data, self.models)
                for label_count, counted in refits.items():
                    longest = max(_work_seconds(measured.done, one) for one in counted)
                    seconds[label_count] = max(longest, seconds.get(label_count, 0.0))
        total = self.base_seconds + sum(seconds.values())
        return StageForecast(total, memory, weights * len(seconds))

    def _output_growth(self, stage: StageName, rehearsed_name: str) -> float:
        """Return how many times more output the stage has than in the rehearsal."""
        data = self.rehearsal.data
        if stage.verb == "tokenizer":
            return count_corpus_ratio(self.rehearsal)
        if stage.verb in EVALUATIONS or stage.verb == "baselines":
            small = StageName.parse(rehearsed_name, self.rehearsal.small)
            full_runs = count_runs_of(
                stage, self.rehearsal.params, data.tasks[stage.task], self.models
            )
            small_runs = count_runs_of(
                small, self.rehearsal.small, data.sampled_tasks[small.task], self.models
            )
            items = [
                sum(len(table) for split, table in task.splits.items() if split != "train")
                for task in (data.tasks[stage.task], data.sampled_tasks[small.task])
            ]
            return len(full_runs) * items[0] / max(1, len(small_runs) * items[1])
        return 1.0

    def _memory(self, stage: StageName, measured: RehearsedStage, counted: list[Work]) -> int:
        """Return the memory of a stage: features grow with the items, texts with the corpus."""
        num_bytes = float(measured.memory_bytes)
        if stage.task:
            num_tables = len(self.rehearsal.data.tasks[stage.task].splits)
            num_bytes += grow_features(measured.done, counted, num_tables=num_tables)
        if any(work.part == "corpus" for work in measured.done):
            grown = measured.memory_bytes - self.base_memory
            num_bytes += grown * (count_corpus_ratio(self.rehearsal) - 1)
        return round(num_bytes)

    def _disk(self, stage: StageName, measured: RehearsedStage, growth: float) -> int:
        """Return the bytes of the outputs; a model's weights do not grow."""
        return round(
            sum(
                num_bytes * (1.0 if suffix == WEIGHTS_SUFFIX else growth)
                for suffix, num_bytes in measured.disk.items()
            )
        )


def grow_features(done: Sequence[Work], counted: Sequence[Work], *, num_tables: int) -> float:
    """Return the bytes that features take beyond those of the rehearsal.

    A table counts as MAX_MEMORY_BYTES at most; a larger one is kept in a file.
    """
    full = {work.part: work.count for work in counted}
    grown = 0.0
    for work in done:
        if work.memory_bytes:
            kept = work.memory_bytes * full.get(work.part, 0.0) / work.count
            limit = num_tables * MAX_MEMORY_BYTES
            grown += max(0.0, min(kept, limit) - work.memory_bytes)
    return grown


def _work_seconds(done: Sequence[Work], counted: Sequence[Work]) -> float:
    """Return the seconds of counted work. What the rehearsal could not do costs nothing."""
    seconds = 0.0
    for part in dict.fromkeys(work.part for work in done):
        points = [work for work in done if work.part == part]
        counts = [work.count for work in counted if work.part == part]
        seconds += fit_cost(points).seconds(counts)
    return seconds


def _artifact_of(name: str) -> str:
    verb, _, argument = name.partition("@")
    return f"{'corpora' if verb == 'corpus' else 'tasks'}/{argument}"
