"""Stages evaluate@V-S-T, evaluate_adapted@V-S-T and evaluate_joined@V-S-T: a model on a task, beside its untrained twin -> rows and predictions.

Of a model that is tuned, its weights too. Joined are frozen features with the static vectors of `grid.join_static` beside them.
"""

import dataclasses
import shutil
import sys
from pathlib import Path

import pandas as pd

from lineage.artifacts import (
    artifact_digest,
    create_artifact,
    read_json,
    read_manifest,
    write_table,
)
from lineage.config.params import Params, read_params
from lineage.config.study import load_model_config
from lineage.data.task_data import TaskData
from lineage.evaluation.evaluate import evaluate_runs, list_runs
from lineage.evaluation.result_rows import heldout_rows, mean_values, unknown_token_rows
from lineage.evaluation.systems import EvalContext, Init, is_requested
from lineage.models.checkpoint import Checkpoint
from lineage.results import ResultRow, results_frame
from lineage.runtime.settings import read_runtime_settings
from lineage.runtime.stage import Stage, run_stage
from lineage.training.devices import configure_torch, select_device

VERB_FLAGS = {"--adapted": "evaluate_adapted", "--joined": "evaluate_joined"}


def work(stage: Stage) -> None:
    """Compute the cells that are not kept yet, and write the outs."""
    (name, seed, task), adapted, joined = (
        stage.arguments,
        stage.verb == "evaluate_adapted",
        stage.verb == "evaluate_joined",
    )
    params = read_params()
    configure_torch(params.threads)
    folders = [
        Path(f"artifacts/{place}")
        for place in (
            f"adapted/{name}/{seed}/{task}" if adapted else f"pretrained/{name}/{seed}",
            f"tasks/{task}",
        )
    ]
    context = load_context(params, name, int(seed), *folders)
    if joined:
        stage.watch_model(params.grid.join_static_model)
        folders.append(Path(f"artifacts/pretrained/{params.grid.join_static_model}/{seed}"))
        context = dataclasses.replace(
            context,
            static_context=load_context(
                params, params.grid.join_static_model, int(seed), folders[-1], folders[1]
            ),
        )
    stage.metadata["device"] = str(context.device)
    inits: tuple[Init, ...] = ("adapted",) if adapted else ("pretrained", "random")
    all_runs = list_runs(
        context.task.info,
        inits,
        params.grid.label_counts,
        params.grid.finetune_seeds,
        finetuned=not joined,
    )
    runs = [cell for cell in all_runs if is_requested(context, cell)]
    parameters = params.compute_settings | {
        "evaluate": dataclasses.asdict(context.settings),
        "label_count": params.grid.label_counts,
        "finetune_seeds": params.grid.finetune_seeds,
    }
    parameters |= {"split": params.report.split}
    cache_dir = stage.prepare_resume_folder(
        parameters | {"inputs": [artifact_digest(folder) for folder in folders]}
    )
    stage.load_elapsed_seconds(cache_dir)
    tags = context.model_columns | {"pretrain_seed": seed, "task": task}
    with stage.track(parameters=parameters, inputs=folders, **tags) as tracker:
        with stage.show_progress("cells", 1.0) as report:

            def report_and_save(done: float, note: str) -> None:
                stage.save_elapsed_seconds(
                    cache_dir
                )  # a cell begins, so that those before it are kept
                report(done, note)

            rows, predictions = evaluate_runs(
                context, runs, cache_dir=cache_dir, report_progress=report_and_save
            )
        if adapted:
            rows += heldout_rows(
                context,
                read_json(folders[0] / "held.json"),
                adapted_bytes=read_json(folders[0] / "spent.json")["text_bytes"],
            )
        rows += unknown_token_rows(context, inits[0]) if not joined else []
        tracker.log_summary(mean_values(rows))
    _write_outputs(stage, cache_dir, rows, predictions, finetuned=not joined)
    stage.clear_resume_folder()


def load_context(
    params: Params, name: str, pretrain_seed: int, model_dir: Path, task_dir: Path
) -> EvalContext:
    """A model of `source`, pretrained or adapted, on the task of `target`."""
    pretrained = Path(f"artifacts/pretrained/{name}/{pretrain_seed}")
    spent = [
        read_json(folder / "spent.json")["text_bytes"]
        for folder in dict.fromkeys([pretrained, model_dir])
    ]
    return EvalContext(
        checkpoint=Checkpoint.load(model_dir),
        task=TaskData.load(task_dir, split=params.report.split),
        settings=load_model_config(params, name).evaluate,
        pretrain_seed=pretrain_seed,
        text_bytes=None if None in spent else sum(spent),
        precision=params.precision,
        device=select_device(params.device, read_runtime_settings().device_index),
        tokens_dir=Path(f"artifacts/tokens/{name}") if model_dir == pretrained else None,
        failure_reason=read_manifest(model_dir, "model")["reason"],
    )


def _write_outputs(
    stage: Stage,
    cache_dir: Path,
    rows: list[ResultRow],
    predictions: pd.DataFrame,
    *,
    finetuned: bool,
) -> None:
    if finetuned:
        with create_artifact(Path(f"artifacts/finetuned/{stage.file_name}"), "finetuned") as draft:
            if (cache_dir / "finetuned.safetensors").is_file():
                shutil.copy(cache_dir / "finetuned.safetensors", draft)
    write_table(Path(f"artifacts/results/predictions/{stage.file_name}.parquet"), predictions)
    write_table(Path(f"artifacts/results/rows/{stage.file_name}.parquet"), results_frame(rows))


def main() -> None:
    """Run the stage."""
    verbs = [verb for flag, verb in VERB_FLAGS.items() if flag in sys.argv]
    sys.argv = [word for word in sys.argv if word not in VERB_FLAGS]
    run_stage(verbs[0] if verbs else "evaluate", work)


if __name__ == "__main__":
    main()
