"""Count the work of a study's stages, in the units in which the stages log it.

The counts of evaluations come from the methods. How often a training is validated, the rehearsed
one has logged itself.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from lineage.config.params import Params
from lineage.data.task_data import TaskData
from lineage.evaluation.evaluate import count_runs, list_runs
from lineage.evaluation.heldout import MAX_HELDOUT_BYTES, heldout_part
from lineage.evaluation.requested_runs import EVALUATIONS, count_evaluation, list_requested_runs
from lineage.forecast.rehearsal import Rehearsal
from lineage.language import byte_count
from lineage.methods.base import count_items, find_method
from lineage.methods.encoder import BaselineContext, EvalRun, LabelCount, TaskContext, features_part
from lineage.methods.registry import list_baselines
from lineage.networks.base import Static
from lineage.study.models import ModelConfig
from lineage.training.adapt import split_target_texts
from lineage.training.pretrain import count_static_bytes
from lineage.training.recipes import Recipe
from lineage.training.sweep import count_trials
from lineage.training.target_only import MAX_EPOCHS
from lineage.training.train_run import ALL_TEXT_VALIDATIONS, SHORT_VALIDATIONS, VALIDATION_BATCHES
from lineage.work import Work


@dataclass(frozen=True)
class StageName:
    """The verb of a stage, and the model and the task that it names, or empty."""

    verb: str
    model: str
    task: str

    @classmethod
    def parse(cls, name: str, params: Params) -> "StageName":
        """Split evaluate@gpt-0-sense."""
        verb, _, arguments = name.partition("@")
        parts = arguments.split("-")
        model = next((part for part in parts if part in params.grid.models), "")
        task = next((part for part in parts if part in params.grid.tasks), "")
        return cls(verb, model, task)


def count_stage(
    stage: StageName, rehearsal: Rehearsal, done: Sequence[Work], models: dict[str, ModelConfig]
) -> list[Work]:
    """Return the work of a stage of the study; `done` is that of the rehearsed one."""
    if stage.verb in EVALUATIONS or stage.verb == "baselines":
        counted = count_runs_of(stage, rehearsal.params, rehearsal.data.tasks[stage.task], models)
        ratio = 1.0
        stand_in = rehearsal.stand_ins[stage.task]
        if stand_in != stage.task:  # its items may be longer
            item_bytes = rehearsal.data.item_bytes
            ratio = item_bytes[stage.task] / item_bytes[stand_in]
        return [Work(work.part, ratio * work.count) for work in counted]
    if stage.verb in ("recipe", "pretrain", "adapt", "target_only"):
        return _count_training(stage, rehearsal, done, models[stage.model])
    ratio = count_corpus_ratio(rehearsal)
    budgets = [
        min(params.budget.text_bytes, corpus["train"])
        for params, corpus in (
            (rehearsal.params, rehearsal.data.corpus),
            (rehearsal.small, rehearsal.data.sampled_corpus),
        )
    ]
    ratios = {"corpus": ratio, "budget": budgets[0] / budgets[1]}
    if stage.verb == "ngram":
        done = [*done, *_list_further_models(rehearsal, done)]
        heldout_bytes = [
            min(corpus["valid"], MAX_HELDOUT_BYTES)
            for corpus in (rehearsal.data.corpus, rehearsal.data.sampled_corpus)
        ]
        parts = map(heldout_part, rehearsal.params.grid.models)
        ratios |= dict.fromkeys(parts, heldout_bytes[0] / heldout_bytes[1])
    return [Work(work.part, ratios.get(work.part, 1.0) * work.count) for work in done]


def _list_further_models(rehearsal: Rehearsal, done: Sequence[Work]) -> list[Work]:
    """Return the work of the stage ngram for models and seeds that others represent."""
    further = []
    for model in rehearsal.params.grid.models:
        stand_in = rehearsal.stand_ins[model]
        own = [one for one in done if one.part == heldout_part(stand_in)]
        num_seeds = len(rehearsal.params.grid.pretrain_seeds)
        further += (num_seeds if stand_in != model else num_seeds - 1) * own
    return further


def count_corpus_ratio(rehearsal: Rehearsal) -> float:
    """Return how many times larger the corpus is than its sample."""
    return rehearsal.data.corpus["train"] / rehearsal.data.sampled_corpus["train"]


def count_runs_of(
    stage: StageName, params: Params, task: TaskData, models: dict[str, ModelConfig]
) -> list[Work]:
    """Return the work of the runs of a stage that evaluates a model, or baselines."""
    grid = params.grid
    if stage.verb != "baselines":
        context = BaselineContext(task, models[stage.model].evaluate)
        return count_evaluation(context, grid, EVALUATIONS[stage.verb], stage.model)
    return [*count_runs(*_list_runs_of(stage, params, task, models)).values()]


def _list_runs_of(
    stage: StageName, params: Params, task: TaskData, models: dict[str, ModelConfig]
) -> tuple[TaskContext, list[EvalRun]]:
    """Return the runs of a stage that evaluates a model, or baselines, and their context."""
    grid = params.grid
    if stage.verb != "baselines":
        context = BaselineContext(task, models[stage.model].evaluate)
        return context, list_requested_runs(context, grid, EVALUATIONS[stage.verb], stage.model)
    context = BaselineContext(task, list_baselines(grid.tfidf_C))
    methods = context.settings.methods.values()
    runs = list_runs(task.info, methods, ("none",), grid.label_counts, grid.finetune_seeds)
    return context, [*runs]


def count_refits(
    stage: StageName, params: Params, task: TaskData, models: dict[str, ModelConfig]
) -> dict[LabelCount, list[list[Work]]]:
    """Return the work of fitting each system of a stage again, once, by its number of labels."""
    context, runs = _list_runs_of(stage, params, task, models)
    if not context.keeps_systems:
        return {}
    first_seed = params.grid.finetune_seeds[0]
    found: dict[LabelCount, list[list[Work]]] = {}
    for run in runs:
        is_first = run.finetune_seed == first_seed and not run.fold
        if run.label_count is None or run.init == "random" or not is_first:
            continue
        items = count_items(context, run, chooses_trial=False)
        num_train = items.train + items.validation
        items = replace(items, train=num_train, scored=items.validation)
        method = find_method(context, run)
        work = [Work(f"{run.init} {method.name}", method.count_work(items))]
        if method.reads_frozen_features:
            work.append(Work(features_part(run.init, method.name), num_train + items.validation))
        found.setdefault(run.label_count, []).append(work)
    return found


def _count_training(
    stage: StageName, rehearsal: Rehearsal, done: Sequence[Work], model: ModelConfig
) -> list[Work]:
    """Return the bytes of text of a training that does not end early, and of its validations."""
    params = rehearsal.params
    budget_bytes = params.budget.text_bytes
    heldout_bytes = rehearsal.data.corpus["valid"]
    num_trainings = 1
    if stage.verb == "recipe":
        num_trainings = 0
        if stage.model in params.grid.sweep:
            own = Recipe.of(model.architecture, model.pretrain)
            num_trainings = count_trials(own, params.sweep)
        budget_bytes = round(params.sweep.text_share * budget_bytes)
    elif stage.verb == "pretrain":
        if isinstance(model.family, Static):
            train_bytes = rehearsal.data.corpus["train"]
            budget_bytes = count_static_bytes(model.family, budget_bytes, train_bytes)
    else:
        is_adapted = stage.verb == "adapt"
        max_bytes = params.max_adaptation_bytes if is_adapted else budget_bytes
        folder = rehearsal.data.task_folders[stage.task]
        texts, heldout_texts = split_target_texts(folder, params, max_bytes=max_bytes)
        max_epochs = params.adapt.max_epochs if is_adapted else MAX_EPOCHS
        budget_bytes = min(max_bytes, max_epochs * sum(map(byte_count, texts)))
        heldout_bytes = sum(map(byte_count, heldout_texts))
    totals = {part: sum(one.count for one in done if one.part == part) for part in _parts(done)}
    step_bytes = totals.get("training", 0.0) / max(1.0, totals.get("steps", 0.0))
    short_bytes = min(heldout_bytes, VALIDATION_BATCHES * step_bytes)
    validation_bytes = totals.get(SHORT_VALIDATIONS, 0.0) * short_bytes
    validation_bytes += totals.get(ALL_TEXT_VALIDATIONS, 0.0) * heldout_bytes
    trainings = [Work("training", budget_bytes), Work("validation", validation_bytes)]
    return num_trainings * trainings


def _parts(done: Sequence[Work]) -> set[str]:
    return {one.part for one in done}
