"""Stages evaluate@MODEL-SEED-TASK and evaluate_...@: rows, predictions, curves and systems.

`evaluate` compares a pretrained model with its random-init baseline. `evaluate_adapted` is for an
adapted model, `evaluate_target_only` for one that was pretrained on the task's text alone.
`evaluate_joined` concatenates frozen features with static vectors.
"""

import sys
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pandas as pd

from lineage.artifacts import artifact_digest, read_json, write_table
from lineage.config.params import Params, read_recorded_params
from lineage.data.task_data import TaskData
from lineage.evaluation.contexts import open_context, pretrained_dir
from lineage.evaluation.evaluate import (
    EvaluationOutput,
    RunCost,
    concatenate,
    evaluate_runs,
    intermediate_predictions,
    list_kept_systems,
    select_intermediate_runs,
)
from lineage.evaluation.requested_runs import (
    EVALUATIONS,
    Evaluation,
    intermediate_part,
    list_requested_runs,
)
from lineage.evaluation.result_rows import (
    curve_points,
    heldout_rows,
    mean_values,
    unknown_token_rows,
)
from lineage.evaluation.unigram_control import has_unigram_control, unigram_control_rows
from lineage.methods.base import find_method
from lineage.methods.encoder import EvalContext, EvalRun
from lineage.networks.checkpoint import INTERMEDIATE_PREFIX, Checkpoint
from lineage.results import ResultRow, results_frame
from lineage.runtime.stage import Stage, run_stage
from lineage.serving.systems import write_systems
from lineage.study.models import load_model_config
from lineage.training.devices import configure_torch
from lineage.work import WorkLog

VERB_FLAGS = {
    "--adapted": "evaluate_adapted",
    "--target-only": "evaluate_target_only",
    "--joined": "evaluate_joined",
}


def work(stage: Stage) -> None:
    """Evaluate what is not in the resume folder yet, and write results and systems."""
    name, seed, task = stage.arguments
    evaluation = EVALUATIONS[stage.verb]
    params = read_recorded_params()
    configure_torch(params.threads)
    model_dir = evaluation.model_dir(name, seed, task)
    task_dir = Path(f"artifacts/tasks/{task}")
    context = load_context(params, name, seed, model_dir, task_dir)
    inputs = [model_dir, task_dir]
    if evaluation.joins_static:
        static_name = params.grid.join_static_model
        stage.watch_model(static_name)
        static_dir = pretrained_dir(static_name, seed)
        static_context = load_context(params, static_name, seed, static_dir, task_dir)
        context = replace(context, static_context=static_context)
        inputs.append(static_dir)
    stage.metadata["device"] = str(context.device)
    parameters: dict[str, Any] = {
        **params.compute_settings,
        "evaluate": {name: asdict(method) for name, method in context.settings.methods.items()},
        "label_count": params.grid.label_counts,
        "finetune_seeds": params.grid.finetune_seeds,
        "split": params.report.split,
    }
    if has_unigram_control(context):
        parameters["tfidf_C"] = params.grid.tfidf_C
    input_digests = [artifact_digest(folder) for folder in inputs]
    cache_dir = stage.prepare_resume_folder(parameters | {"inputs": input_digests})
    stage.load_elapsed_seconds(cache_dir)
    tags = {**context.model_columns, "pretrain_seed": seed, "task": task}
    with stage.track(parameters=parameters, inputs=inputs, **tags) as tracker:
        runs = list_requested_runs(context, params.grid, evaluation, name)
        output = evaluate(stage, context, runs, cache_dir, stage.work)
        stage.metadata["run_costs"] = [
            describe_cost(context, run, cost) for run, cost in output.costs.items()
        ]
        system_dirs = list_kept_systems(context, runs, output.rows, cache_dir)
        rows = [*output.rows, *list_further_rows(context, params, evaluation, runs, model_dir)]
        predictions = [output.predictions]
        if evaluation.has_intermediate:
            predictions += evaluate_intermediate(stage, context, runs, model_dir, cache_dir)
        tracker.log_summary(mean_values(rows))
        for point in curve_points(output.curves):
            tracker.log_metrics(point.values, step=point.step)
    if not evaluation.joins_static:
        write_systems(stage.file_name, system_dirs)
    results = Path("artifacts/results")
    write_table(results / f"predictions/{stage.file_name}.parquet", concatenate(predictions))
    write_table(results / f"curves/{stage.file_name}.parquet", output.curves)
    write_table(results / f"rows/{stage.file_name}.parquet", results_frame(rows))
    stage.clear_resume_folder()


def list_further_rows(
    context: EvalContext,
    params: Params,
    evaluation: Evaluation,
    runs: list[EvalRun],
    model_dir: Path,
) -> list[ResultRow]:
    """Return the rows of what no run scores: controls, held-out text and unknown tokens."""
    rows: list[ResultRow] = []
    if has_unigram_control(context):
        rows += unigram_control_rows(context, runs, params.grid.tfidf_C)
    if evaluation.is_adapted:
        rows += heldout_rows(
            context,
            read_json(model_dir / "held.json"),
            adapted_bytes=read_json(model_dir / "spent.json")["text_bytes"],
        )
    if not evaluation.joins_static:
        rows += unknown_token_rows(context, evaluation.inits[0])
    return rows


def describe_cost(context: EvalContext, run: EvalRun, cost: RunCost) -> dict[str, Any]:
    """Return the cost of a run for the metadata of the stage."""
    method = find_method(context, run)
    use = {"transfer": method.transfer, "head": method.head}
    return {**vars(run), **use, **cost._asdict()}


def load_context(
    params: Params, name: str, seed: str, model_dir: Path, task_dir: Path
) -> EvalContext:
    """Load a model and a task. Raises InputError if their files are damaged."""
    return open_context(
        params,
        load_model_config(params, name).evaluate,
        source_dir=pretrained_dir(name, seed),
        model_dir=model_dir,
        task=TaskData.load(task_dir, split=params.report.split),
        seed=int(seed),
    )


def evaluate(
    stage: Stage,
    context: EvalContext,
    runs: list[EvalRun],
    cache_dir: Path,
    work: WorkLog,
    *,
    runs_dir: Path | None = None,
) -> EvaluationOutput:
    """Evaluate the systems of all runs, show progress, and log the work.

    `runs_dir` is a folder in the resume folder for the finished runs; None: the resume folder.
    """
    with stage.show_progress("results", 1.0) as report:

        def report_and_save(done: float, note: str) -> None:
            # A run begins, or a training was saved: what was before it is in the resume folder.
            stage.save_elapsed_seconds(cache_dir)
            report(done, note)

        return evaluate_runs(
            context,
            runs,
            cache_dir=runs_dir or cache_dir,
            report_progress=report_and_save,
            work=work,
        )


def evaluate_intermediate(
    stage: Stage, context: EvalContext, runs: list[EvalRun], model_dir: Path, cache_dir: Path
) -> list[pd.DataFrame]:
    """Return the predictions of the intermediate checkpoints of a pretrained model, if any."""
    repeated = select_intermediate_runs(context, runs)
    tables: list[pd.DataFrame] = []
    if not (repeated and context.task.scored_splits):
        return tables
    for folder in sorted(model_dir.glob(f"{INTERMEDIATE_PREFIX}*")):
        spent = read_json(folder / "spent.json")
        runs_dir = cache_dir / folder.name
        runs_dir.mkdir(exist_ok=True)
        at_share = replace(context, checkpoint=Checkpoint.load(folder))
        work = WorkLog()
        output = evaluate(stage, at_share, repeated, cache_dir, work, runs_dir=runs_dir)
        stage.work.done += [replace(one, part=intermediate_part(one.part)) for one in work.done]
        tables.append(
            intermediate_predictions(
                output.predictions, split=context.task.scored_splits[-1], **spent
            )
        )
    return tables


if __name__ == "__main__":
    verb = "evaluate"
    for flag in VERB_FLAGS.keys() & set(sys.argv):
        sys.argv.remove(flag)
        verb = VERB_FLAGS[flag]
    run_stage(verb, work)
