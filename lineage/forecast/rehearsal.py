"""A rehearsal: a scratch study with a user's parameters and models, and little of all else.

Its stages are the real ones. Models, tasks and seeds that take equally long are rehearsed once.
"""

import json
import math
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from lineage.artifacts import write_json
from lineage.config.params import RECORDED_PARAMS_FILE, Params, Sweep
from lineage.data.task_data import TaskData
from lineage.forecast.data import copy_corpus, copy_task, measure_corpus, sample_corpus, sample_task
from lineage.runtime.rehearsal import start_rehearsal
from lineage.study.resolved import resolved_values
from lineage.tasks.base import load_kind
from lineage.work import Stopwatch

BUDGET_BYTES = 150_000
TRAINING_SECONDS = 4.0  # of a pretraining
NUM_SEEDS = 2  # of fine-tuning: the first one has first calls in it, and chooses trials
MIN_TRAIN_ITEMS = 24
MAX_TRAIN_ITEMS = 128
# The bytes of an item, times the parameters that read it. Larger models get fewer items.
MAX_ITEM_WORK = 1.2e10
UNKNOWN_PARAMETERS = 1_000_000
LENGTH_STEP = 2.0
FEW_LABELS_DIVISOR = 3  # so small a part of the training items is the smaller label count


@dataclass(frozen=True)
class StudyData:
    """A study's data, and the sample of it that is rehearsed."""

    corpus: dict[str, int]  # bytes by split
    sampled_corpus: dict[str, int]
    tasks: dict[str, TaskData]
    sampled_tasks: dict[str, TaskData]
    task_folders: dict[str, Path]
    item_bytes: dict[str, float]  # mean bytes of a task's items
    copy_seconds: dict[str, float]  # by the stage that copies data


@dataclass(frozen=True)
class Rehearsal:
    """A scratch study, and the stages that each of its stages represents."""

    root: Path
    params: Params  # of the study
    small: Params  # of the rehearsal
    data: StudyData
    stand_ins: dict[str, str]  # models, tasks and seeds of the study -> those that are rehearsed

    def find_stage(self, name: str) -> str:
        """Return the stage that is rehearsed for a stage of the study."""
        if name == "publish":  # writes what report has computed
            return "report"
        verb, at, arguments = name.partition("@")
        parts = [self.stand_ins.get(part, part) for part in arguments.split("-")]
        return verb + at + "-".join(parts)


def prepare_rehearsal(params: Params, data_root: Path, root: Path) -> Rehearsal:
    """Write the scratch study, whose stage sources has run. Raises InputError."""
    data = _copy_data(params, data_root, root)
    stand_ins = _choose_stand_ins(params, data)
    small = _shrink(params, data, stand_ins)
    tree: dict[str, Any] = resolved_values(small, shorten=True)
    for path in (root / "params.yaml", root / RECORDED_PARAMS_FILE):
        write_json(path, tree)  # which is YAML
    start_rehearsal(root, training_seconds=TRAINING_SECONDS)
    return Rehearsal(root, params, small, data, stand_ins)


def _copy_data(params: Params, data_root: Path, root: Path) -> StudyData:
    """Copy the data, and write the samples as the artifacts of the scratch study."""
    artifacts = root / "artifacts"
    copy_seconds = {}
    stopwatch = Stopwatch()
    name = params.budget.corpus
    corpus_folder = copy_corpus(params, data_root, root / "full")
    copy_seconds[f"corpus@{name}"] = stopwatch.seconds
    sample_corpus(corpus_folder, artifacts / "corpora" / name, seed=params.seed)
    folders, tasks, sampled_tasks, item_bytes = {}, {}, {}, {}
    for task in params.grid.tasks:
        stopwatch = Stopwatch()
        folders[task] = copy_task(task, params, data_root, root / "full")
        copy_seconds[f"task@{task}"] = stopwatch.seconds
        tasks[task] = TaskData.load(folders[task], split=params.report.split)
        item_bytes[task] = _mean_item_bytes(tasks[task])
        target = artifacts / "tasks" / task
        max_items = _count_train_items(item_bytes[task], params)
        sample_task(folders[task], target, max_train_items=max_items, seed=params.seed)
        sampled_tasks[task] = TaskData.load(target, split=params.report.split)
    return StudyData(
        measure_corpus(corpus_folder),
        measure_corpus(artifacts / "corpora" / name),
        tasks,
        sampled_tasks,
        folders,
        item_bytes,
        copy_seconds,
    )


def _mean_item_bytes(task: TaskData) -> float:
    """Return the mean bytes of all texts of an item."""
    table = next(iter(task.splits.values())).head(1000)
    columns = load_kind(task.info.kind).extract_texts(table, task.info.language)
    num_bytes = sum(len(text.encode()) for column in columns for text in column)
    return max(1.0, num_bytes / max(1, len(table)))


def _count_train_items(item_bytes: float, params: Params) -> int:
    parameters = params.budget.body_parameters or UNKNOWN_PARAMETERS
    affordable = int(MAX_ITEM_WORK / (item_bytes * parameters))
    return min(max(affordable, MIN_TRAIN_ITEMS), MAX_TRAIN_ITEMS)


def _choose_stand_ins(params: Params, data: StudyData) -> dict[str, str]:
    """Map models with equal blocks, similar tasks, and all seeds to the first of them."""
    stand_ins = {}
    first: dict[str, str] = {}
    for name in params.grid.models:
        block = json.dumps(["model", {"family": name} | params.models[name]], sort_keys=True)
        stand_ins[name] = first.setdefault(block, name)
    for name in params.grid.tasks:
        task = params.tasks[name]
        length = round(math.log(data.item_bytes[name], LENGTH_STEP))
        is_pair = load_kind(task.kind).is_text_pair(task)
        form = [length, task.kind, is_pair, task.symmetric, task.probes, bool(task.folds)]
        stand_ins[name] = first.setdefault(json.dumps(["task", form], default=str), name)
    for seed in params.grid.pretrain_seeds:
        stand_ins[str(seed)] = str(params.grid.pretrain_seeds[0])
    return stand_ins


def _shrink(params: Params, data: StudyData, stand_ins: dict[str, str]) -> Params:
    """Return the parameters of the rehearsal."""
    grid = params.grid
    names: dict[str, Any] = {
        key: tuple(dict.fromkeys(stand_ins[name] for name in getattr(grid, key)))
        for key in (
            "models",
            "tasks",
            "adapt_models",
            "adapt_tasks",
            "target_only_models",
            "join_models",
            "join_tasks",
            "setfit_models",
            "sweep",
        )
    }
    num_train = [
        len(task.splits["train"]) for task in data.sampled_tasks.values() if "train" in task.splits
    ]
    few = max(1, min(num_train, default=FEW_LABELS_DIVISOR) // FEW_LABELS_DIVISOR)
    small_grid = replace(
        grid,
        **names,
        pretrain_seeds=grid.pretrain_seeds[:1],
        finetune_seeds=tuple(range(NUM_SEEDS)),
        label_counts=(few, "all"),
        join_static_model=stand_ins.get(grid.join_static_model, grid.join_static_model),
        ensembles={},
        ablation_of={},
    )
    budget = replace(params.budget, text_bytes=min(params.budget.text_bytes, BUDGET_BYTES))
    # One trial, as long as a pretraining, since the first steps take longer. The largest batch that
    # is tried needs the most memory.
    batch_sizes = (max(params.sweep.batch_size),)
    one_trial = Sweep(
        1.0, learning_rate=(1.0,), batch_size=batch_sizes, weight_decay=(), dropout=()
    )
    device = params.device if torch.cuda.is_available() else "cpu"
    return replace(params, grid=small_grid, budget=budget, sweep=one_trial, device=device)
