"""Forecast seconds, memory and disk of every stage of a study from a short probe."""

import math
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import torch

from lineage.config.params import Params
from lineage.data.contamination import DOCUMENTS_PER_BATCH
from lineage.data.task_data import TaskData
from lineage.evaluation.evaluate import select_intermediate_runs
from lineage.forecast.data import CorpusSizes, copy_corpus, copy_task
from lineage.forecast.evaluation import (
    ADAPTED,
    PRETRAINED,
    PRETRAINED_AND_RANDOM,
    TARGET_ONLY,
    EvaluationCosts,
    EvaluationCounts,
    HeadCosts,
    count_evaluation,
    count_prediction_tables,
    evaluation_disk,
    evaluation_memory,
    evaluation_seconds,
)
from lineage.forecast.measure import Stopwatch, time_call
from lineage.forecast.ngram_probe import SAMPLE_BYTES, NgramCosts, count_train_bytes
from lineage.forecast.probe import Key, Measured, Measurement, Probe, ProbeSetup
from lineage.forecast.records import StageForecast, StudyForecast
from lineage.forecast.task_probe import TaskCosts, forecast_baselines
from lineage.forecast.training import TokenizerCosts, TrainingCosts, forecast_pretraining
from lineage.methods.encoder import Init
from lineage.networks.base import Static
from lineage.results import NGRAM_STAGE
from lineage.runtime.scratch import scratch_folder
from lineage.study.checks import check_study
from lineage.study.models import ModelConfig
from lineage.tasks.base import list_sentence_tasks, load_kind

LENGTH_STEP = 1.3  # tasks whose items differ less in length are measured once
# The share of the probe's time that measurements may use. The rest goes to what cannot be made
# shorter: imports, first calls, a tokenizer for each model.
USABLE_SHARE = 0.5
# The shares of a model's time, and the weight of a task relative to a model.
PRETRAIN_SHARE = 0.4
EVALUATE_SHARE = 0.5
TOKENIZER_SHARE = 0.1
TASK_WEIGHT = 0.2
LOAD_SECONDS = 0.1  # of the stage ngram: to read the parameters and the tokens


def ignore_progress(done: float, note: str) -> None:
    """Report nothing."""


def forecast_study(
    params: Params,
    models: Mapping[str, ModelConfig],
    data_root: Path,
    *,
    jobs: int = 1,
    device_index: int = 0,
    probe_seconds: float = 60.0,
    on_progress: Callable[[float, str], None] = ignore_progress,
) -> StudyForecast:
    """Return the forecast of every stage in the grid of a study whose data were checked.

    `jobs` stages run at a time, in the study and in the probe. The forecast is for the stages' own
    work; what DVC and the scheduler add is not in it. Raises InputError.
    """
    start_time = time.perf_counter()
    with scratch_folder() as scratch:
        setup = ProbeSetup(params, scratch, data_root, device_index)
        shares = _TimeShares.of(params, probe_seconds * jobs)
        with Probe(setup, jobs=jobs) as probe:
            data = _copy_data(params, data_root, scratch)
            measured = probe.measure(
                _first_chains(params, shares),
                lambda done, note: on_progress(done / 2, note),
            )
            groups = _group_tasks(params, measured)
            measured |= probe.measure(
                _evaluation_chains(params, groups, shares),
                lambda done, note: on_progress((1 + done) / 2, note),
            )
        study = _MeasuredStudy(params, models, data, measured, groups)
        stages = study.forecast_stages()
    return StudyForecast(
        stages,
        probe_seconds=time.perf_counter() - start_time,
        lacks_gpu=params.device == "cuda" and not torch.cuda.is_available(),
    )


@dataclass(frozen=True)
class _StudyData:
    """The study's data: the sizes of the corpus, the tasks, and the seconds to find them."""

    corpus: CorpusSizes
    corpus_seconds: float
    tasks: Mapping[str, TaskData]
    task_seconds: Mapping[str, float]
    check_seconds: float  # of the parameters

    @property
    def sources_seconds(self) -> float:
        """Seconds of the stage sources if the data are prepared: it finds and checks them."""
        return self.check_seconds + self.corpus_seconds + sum(self.task_seconds.values())


def _copy_data(params: Params, data_root: Path, scratch: Path) -> _StudyData:
    """Copy the tasks and a sample of the corpus into the scratch folder, as the stages do."""
    stopwatch = Stopwatch()
    corpus = copy_corpus(params, data_root, scratch)
    corpus_seconds = stopwatch.seconds
    tasks = {}
    task_seconds = {}
    for name in params.grid.tasks:
        stopwatch = Stopwatch()
        folder = copy_task(name, params, data_root, scratch)
        task_seconds[name] = stopwatch.seconds
        tasks[name] = TaskData.load(folder, split=params.report.split)
    check_seconds = time_call(lambda: check_study(params))
    return _StudyData(corpus, corpus_seconds, tasks, task_seconds, check_seconds)


@dataclass(frozen=True)
class _TimeShares:
    """Seconds for each measurement."""

    task: float
    tokenizer: float
    pretrain: float
    evaluate: float  # of all tasks of a model

    @classmethod
    def of(cls, params: Params, total_seconds: float) -> "_TimeShares":
        """Share the time out, models alike and tasks alike."""
        weight = len(params.grid.models) + TASK_WEIGHT * len(params.grid.tasks)
        model_seconds = USABLE_SHARE * total_seconds / weight
        return cls(
            task=TASK_WEIGHT * model_seconds,
            tokenizer=TOKENIZER_SHARE * model_seconds,
            pretrain=PRETRAIN_SHARE * model_seconds,
            evaluate=EVALUATE_SHARE * model_seconds,
        )


def _first_chains(params: Params, shares: _TimeShares) -> list[list[Measurement]]:
    """Return the first measurements: trainings, each after its tokenizer, and tasks."""
    chains = [
        [
            Measurement("tokenizer_part", model=name, max_seconds=shares.tokenizer),
            Measurement("tokenizer", model=name, max_seconds=shares.tokenizer),
            Measurement("pretrain", model=name, max_seconds=shares.pretrain),
        ]
        for name in params.grid.models
    ]
    chains += [
        [Measurement("task", task=name, max_seconds=shares.task)] for name in params.grid.tasks
    ]
    return [*chains, [Measurement("ngram")]]


def _group_tasks(params: Params, measured: Mapping[Key, Measured]) -> dict[str, str]:
    """Return for each task the task that is measured for it: of the same kind, about as long."""
    first: dict[tuple[object, ...], str] = {}
    groups = {}
    for name in params.grid.tasks:
        task = params.tasks[name]
        costs = measured["task", "", name].costs
        length = round(math.log(max(1.0, costs.characters_per_item)) / math.log(LENGTH_STEP))
        key = (task.kind, task.is_text_pair, task.symmetric, task.probes, length)
        groups[name] = first.setdefault(key, name)
    return groups


def _evaluation_chains(
    params: Params, groups: Mapping[str, str], shares: _TimeShares
) -> list[list[Measurement]]:
    tasks = sorted(set(groups.values()))
    max_seconds = shares.evaluate / len(tasks)
    return [
        [Measurement("evaluate", model=model, task=task, max_seconds=max_seconds)]
        for model in params.grid.models
        for task in tasks
    ]


@dataclass(frozen=True)
class _MeasuredStudy:
    """A study and all that was measured of it."""

    params: Params
    models: Mapping[str, ModelConfig]
    data: _StudyData
    measured: Mapping[Key, Measured]
    groups: Mapping[str, str]

    def forecast_stages(self) -> dict[str, StageForecast]:
        """Return the forecast of each stage by its name."""
        params = self.params
        base_memory = min(measured.memory_bytes for measured in self.measured.values())
        corpus = self.data.corpus
        stages = {
            "sources": StageForecast(self.data.sources_seconds, base_memory, 0),
            f"corpus@{params.budget.corpus}": StageForecast(
                self.data.corpus_seconds, base_memory, corpus.disk_bytes
            ),
        }
        for name in params.grid.tasks:
            disk_bytes = self._task(name).disk_bytes
            stages[f"task@{name}"] = StageForecast(
                self.data.task_seconds[name], base_memory, disk_bytes
            )
            stages[f"contamination@{name}"] = self._forecast_contamination(name)
            stages[f"baselines@{name}"] = self._forecast_baselines(name)
        for name in params.grid.models:
            stages |= self._forecast_model(name)
        stages[NGRAM_STAGE] = self._forecast_ngram(base_memory)
        report_memory = max(stage.memory_bytes for stage in stages.values())
        for name in ("report", "publish"):
            stages[name] = StageForecast(self._report_seconds(), report_memory, 0)
        return stages

    def _task(self, name: str) -> TaskCosts:
        costs = self.measured["task", "", name].costs
        assert isinstance(costs, TaskCosts)
        return costs

    def _training(self, model: str) -> TrainingCosts:
        costs = self.measured["pretrain", model, ""].costs
        assert isinstance(costs, TrainingCosts)
        return costs

    def _tokenizer(self, model: str) -> TokenizerCosts:
        costs = self.measured["tokenizer", model, ""].costs
        assert isinstance(costs, TokenizerCosts)
        return costs

    def _evaluation(self, model: str, task: str) -> EvaluationCosts:
        """Return the costs of a task, or those of the task that was measured for it, scaled."""
        measured_task = self.groups[task]
        costs = self.measured["evaluate", model, measured_task].costs
        assert isinstance(costs, EvaluationCosts)
        length = self._task(task).characters_per_item
        return costs.scaled(length / max(1.0, self._task(measured_task).characters_per_item))

    @property
    def _extra_corpus_bytes(self) -> int:
        """The bytes of the corpus that the probe has not read."""
        corpus = self.data.corpus
        return max(0, corpus.train_bytes + corpus.valid_bytes - corpus.sample_bytes)

    def _forecast_contamination(self, task: str) -> StageForecast:
        """Searching holds the corpus's whole text, and the words of some documents at a time."""
        measured = self.measured["task", "", task]
        costs = self._task(task)
        corpus = self.data.corpus
        batch_bytes = min(
            corpus.train_bytes, DOCUMENTS_PER_BATCH * corpus.train_bytes / corpus.train_documents
        )
        word_bytes = costs.search_memory * max(0.0, batch_bytes - corpus.sample_bytes)
        return StageForecast(
            costs.contamination.seconds(corpus.train_bytes + costs.searched_bytes),
            measured.memory_bytes + self._extra_corpus_bytes + round(word_bytes),
            0,
        )

    def _forecast_baselines(self, task: str) -> StageForecast:
        num_train = len(self.data.tasks[task].splits.get("train", ()))
        seconds = forecast_baselines(self._task(task), self.params, num_train)
        return StageForecast(seconds, self.measured["task", "", task].memory_bytes, 0)

    def _forecast_ngram(self, base_memory: int) -> StageForecast:
        """Count the corpus, then the tokens of each model; score minimal pairs."""
        params = self.params
        tasks = list_sentence_tasks(params.tasks, params.grid.tasks)
        models = [model for model in self.models.values() if model.family.predicts_next_token]
        if not (models or tasks):
            return StageForecast(LOAD_SECONDS, base_memory, 0)
        measured = self.measured["ngram", "", ""]
        costs = measured.costs
        assert isinstance(costs, NgramCosts)
        num_bytes = count_train_bytes(params, self.data.corpus.train_bytes)
        seconds = num_bytes * (costs.corpus_seconds + len(models) * costs.count_seconds)
        scored_bytes = float(self.data.corpus.valid_bytes)
        for name in tasks:
            num_pairs = len(self.data.tasks[name].splits.get(params.report.split, ()))
            scored_bytes += 2 * num_pairs * self._task(name).characters_per_item
        seconds += scored_bytes * costs.sentence_seconds
        growth = costs.memory_bytes * max(0, num_bytes - SAMPLE_BYTES)
        return StageForecast(LOAD_SECONDS + seconds, measured.memory_bytes + round(growth), 0)

    def _forecast_model(self, name: str) -> dict[str, StageForecast]:
        """Return the forecast of all stages of one model."""
        params = self.params
        stages = {f"tokenizer@{name}": self._forecast_tokenizer(name)}
        pretraining = self._forecast_pretraining(name)
        for seed in params.grid.pretrain_seeds:
            stages[f"pretrain@{name}-{seed}"] = pretraining
        for task in params.grid.tasks:
            evaluation = self._add_intermediate(
                self._forecast_evaluation(name, task, PRETRAINED_AND_RANDOM), name, task
            )
            joined = name in params.grid.join_models and task in params.grid.join_tasks
            adapted = name in params.grid.adapt_models and task in params.grid.adapt_tasks
            for seed in params.grid.pretrain_seeds:
                stages[f"evaluate@{name}-{seed}-{task}"] = evaluation
                if adapted:
                    stages[f"adapt@{name}-{seed}-{task}"] = self._forecast_adaptation(name, task)
                    stages[f"evaluate_adapted@{name}-{seed}-{task}"] = self._forecast_evaluation(
                        name, task, ADAPTED
                    )
                if adapted and name in params.grid.target_only_models:
                    stages[f"target_only@{name}-{seed}-{task}"] = self._forecast_target_only(
                        name, task
                    )
                    stages[f"evaluate_target_only@{name}-{seed}-{task}"] = (
                        self._forecast_evaluation(name, task, TARGET_ONLY)
                    )
                if joined:
                    stages[f"evaluate_joined@{name}-{seed}-{task}"] = self._forecast_joined(
                        name, task
                    )
        return stages

    def _forecast_tokenizer(self, name: str) -> StageForecast:
        measured = self.measured["tokenizer", name, ""]
        costs = self._tokenizer(name)
        corpus = self.data.corpus
        num_bytes = corpus.train_bytes + corpus.valid_bytes
        model = self.models[name]
        if not model.family.reads_corpus(model.pretrain):  # the corpus is not encoded
            seconds = costs.train.fixed_seconds
            return StageForecast(seconds, measured.memory_bytes, costs.fixed_disk_bytes)
        seconds = costs.train.seconds(corpus.train_bytes)
        seconds += num_bytes * costs.encode_seconds_per_byte
        part = self.measured["tokenizer_part", name, ""]
        assert isinstance(part.costs, TokenizerCosts)
        memory_growth = max(0, measured.memory_bytes - part.memory_bytes)
        growth_per_byte = memory_growth / max(1, costs.sample_bytes - part.costs.sample_bytes)
        extra_bytes = growth_per_byte * self._extra_corpus_bytes
        return StageForecast(
            seconds, measured.memory_bytes + round(extra_bytes), costs.disk_bytes(num_bytes)
        )

    def _forecast_pretraining(self, name: str) -> StageForecast:
        """Token ids are mapped from disk, and batches that carry state copy them once."""
        measured = self.measured["pretrain", name, ""]
        costs = self._training(name)
        seconds = forecast_pretraining(costs, self.models[name], self.params, self.data.corpus)
        token_bytes = self._extra_corpus_bytes * self._tokenizer(name).disk_bytes_per_byte
        memory_bytes = measured.memory_bytes + 2 * round(token_bytes)
        num_models = 1 + self._num_intermediate(name)
        return StageForecast(seconds, memory_bytes, num_models * costs.disk_bytes)

    def _num_intermediate(self, name: str) -> int:
        """Return the number of intermediate checkpoints of a model."""
        is_kept = self.models[name].is_trained_by_loop
        return len(self.params.grid.text_shares) if is_kept else 0

    def _forecast_adaptation(self, name: str, task: str) -> StageForecast:
        measured = self.measured["pretrain", name, ""]
        costs = self._training(name)
        task_costs = self._task(task)
        train_bytes = task_costs.adapt_train_bytes
        heldout_bytes = task_costs.adapt_heldout_bytes
        seconds = task_costs.adapt_seconds
        seconds += (train_bytes + heldout_bytes) * self._tokenizer(name).encode_seconds_per_byte
        seconds += costs.adaptation_seconds(
            self.params, train_bytes=train_bytes, heldout_bytes=heldout_bytes
        )
        return StageForecast(seconds, measured.memory_bytes, costs.disk_bytes)

    def _forecast_target_only(self, name: str, task: str) -> StageForecast:
        """Assume that the training reads the whole budget, as pretraining does."""
        pretraining = self._forecast_pretraining(name)
        disk_bytes = self._training(name).disk_bytes
        costs = self._tokenizer(name)
        train_bytes = self._task(task).adapt_train_bytes
        seconds = costs.train.seconds(train_bytes) + train_bytes * costs.encode_seconds_per_byte
        return replace(pretraining, seconds=pretraining.seconds + seconds, disk_bytes=disk_bytes)

    def _count_evaluation(
        self, name: str, task: str, inits: tuple[Init, ...], *, finetuned: bool = True
    ) -> EvaluationCounts | None:
        """Return the counts of a stage; None if the model cannot answer such a task."""
        model = self.models[name]
        kind = load_kind(self.params.tasks[task].kind)
        if not model.family.can_answer(kind.answer.answered_by, model.architecture):
            return None
        suits_setfit = kind.suits_setfit(self.params.tasks[task])
        return count_evaluation(
            self.data.tasks[task],
            model.evaluate,
            self.params,
            inits=inits,
            finetuned=finetuned,
            setfit=finetuned and name in self.params.grid.setfit_models and suits_setfit,
        )

    def _forecast_evaluation(
        self, name: str, task: str, inits: tuple[Init, ...], *, finetuned: bool = True
    ) -> StageForecast:
        measured = self.measured["evaluate", name, self.groups[task]]
        costs = self._evaluation(name, task)
        counts = self._count_evaluation(name, task, inits, finetuned=finetuned)
        if counts is None:
            return StageForecast(costs.load_seconds, measured.memory_bytes, 0)
        seconds, disk_bytes = self._measure_runs(counts, costs, name, task)
        memory_bytes = evaluation_memory(counts, costs, probe_memory_bytes=measured.memory_bytes)
        return StageForecast(seconds, memory_bytes, disk_bytes)

    def _measure_runs(
        self, counts: EvaluationCounts, costs: EvaluationCosts, name: str, task: str
    ) -> tuple[float, int]:
        """Return the seconds and the bytes on disk of these runs of a model on a task."""
        task_costs = self._task(task)
        seconds = evaluation_seconds(
            counts,
            costs,
            self.models[name].evaluate,
            answered_by=load_kind(self.params.tasks[task].kind).answer.answered_by,
            scoring_seconds=task_costs.scoring_seconds,
        )
        disk = evaluation_disk(counts, costs, prediction_bytes=task_costs.prediction_bytes)
        return seconds, disk

    def _add_intermediate(self, own: StageForecast, name: str, task: str) -> StageForecast:
        """Return the forecast of an evaluation with that of the intermediate checkpoints."""
        num_checkpoints = self._num_intermediate(name)
        counts = self._count_evaluation(name, task, PRETRAINED, finetuned=False)
        if not num_checkpoints or counts is None:
            return own
        repeated = select_intermediate_runs([one.run for one in counts.runs])
        if not repeated:
            return own
        runs = tuple(one for one in counts.runs if one.run in repeated)
        counts = replace(counts, runs=runs)
        # Costs that occur once in a process are in the forecast of its other runs.
        costs = replace(
            self._evaluation(name, task), load_seconds=0.0, finetune=HeadCosts(), setfit=HeadCosts()
        )
        seconds, disk_bytes = self._measure_runs(counts, costs, name, task)
        return replace(
            own,
            seconds=own.seconds + num_checkpoints * seconds,
            disk_bytes=own.disk_bytes + num_checkpoints * disk_bytes,
        )

    def _forecast_joined(self, name: str, task: str) -> StageForecast:
        """Return the forecast of probes on features that are joined with static vectors."""
        own = self._forecast_evaluation(name, task, PRETRAINED_AND_RANDOM, finetuned=False)
        static_name = self.params.grid.join_static_model
        assert isinstance(self.models[static_name].family, Static), "the study was checked"
        static = self._evaluation(static_name, task)
        num_items = sum(map(len, self.data.tasks[task].splits.values()))
        own_bytes = max(1.0, self._evaluation(name, task).feature_bytes)
        widening = 1 + static.feature_bytes / own_bytes
        seconds = widening * own.seconds
        item_seconds = 2 * static.encode_seconds + static.feature_seconds + static.cache_seconds
        seconds += num_items * item_seconds
        return StageForecast(seconds, round(widening * own.memory_bytes), 0)

    def _report_seconds(self) -> float:
        """Return the seconds of the stage report, which scores all tables of predictions again."""
        seconds = 0.0
        grid = self.params.grid
        for names, tasks, inits in (
            (grid.models, grid.tasks, PRETRAINED_AND_RANDOM),
            (grid.adapt_models, grid.adapt_tasks, ADAPTED),
            (grid.target_only_models, grid.adapt_tasks, TARGET_ONLY),
        ):
            for name in names:
                for task in tasks:
                    counts = self._count_evaluation(name, task, inits)
                    if counts is not None:
                        num_tables = count_prediction_tables(counts)
                        seconds += num_tables * self._task(task).scoring_seconds
        return len(grid.pretrain_seeds) * seconds
