"""The runs of a stage that evaluates a model, for each of these verbs."""

from dataclasses import dataclass
from pathlib import Path

from lineage.config.params import Grid
from lineage.evaluation.evaluate import (
    count_features,
    count_runs,
    list_runs,
    select_intermediate_runs,
)
from lineage.methods.base import is_requested
from lineage.methods.encoder import EvalRun, Init, TaskContext
from lineage.work import Work


@dataclass(frozen=True)
class Evaluation:
    """The model that one of the verbs evaluates, in the folder of one of its stages."""

    inits: tuple[Init, ...]
    folder: str  # of the models, in artifacts
    per_task: bool = True  # each task has a model of its own
    joins_static: bool = False  # static vectors of the model that the grid names
    has_intermediate: bool = False  # the model has checkpoints from the middle of its training
    is_adapted: bool = False  # the text of the task was held out from its training

    def model_dir(self, name: str, seed: str, task: str) -> Path:
        folder = Path("artifacts") / self.folder / name / seed
        return folder / task if self.per_task else folder


EVALUATIONS = {
    "evaluate": Evaluation(
        ("pretrained", "random"), "pretrained", per_task=False, has_intermediate=True
    ),
    "evaluate_adapted": Evaluation(("adapted",), "adapted", is_adapted=True),
    "evaluate_target_only": Evaluation(("target_only",), "target_only"),
    "evaluate_joined": Evaluation(
        ("pretrained", "random"), "pretrained", per_task=False, joins_static=True
    ),
}


def list_requested_runs(
    context: TaskContext, grid: Grid, evaluation: Evaluation, model: str
) -> list[EvalRun]:
    """Return the runs of a model on a task that the grid asks for."""
    methods = [
        method
        for method in context.settings.methods.values()
        if method.is_in_grid(model, grid)
        and (method.reads_frozen_features or not evaluation.joins_static)
    ]
    info = context.task.info
    runs = list_runs(info, methods, evaluation.inits, grid.label_counts, grid.finetune_seeds)
    return [run for run in runs if is_requested(context, run)]


def intermediate_part(part: str) -> str:
    """Return the name of work that is done again for a checkpoint from the middle of training."""
    return f"intermediate {part}"


def count_evaluation(
    context: TaskContext, grid: Grid, evaluation: Evaluation, model: str
) -> list[Work]:
    """Return all work of a stage, before it is done."""
    runs = list_requested_runs(context, grid, evaluation, model)
    counted = [*count_runs(context, runs).values(), *count_features(context, runs)]
    if evaluation.has_intermediate:
        repeated = select_intermediate_runs(context, runs)
        again = [*count_runs(context, repeated).values(), *count_features(context, repeated)]
        for _ in grid.text_shares:
            counted += [Work(intermediate_part(one.part), one.count) for one in again]
    return counted
