"""Stage target_only@MODEL-SEED-TASK: pretrain on the text of a task alone -> a model.

It resumes what a killed process has done.
"""

import dataclasses
from pathlib import Path
from typing import Any

from lineage.artifacts import artifact_digest, read_json
from lineage.config.params import read_recorded_params
from lineage.runtime.stage import Stage, run_stage
from lineage.study.models import load_model_config
from lineage.training.adapt import split_target_texts
from lineage.training.outputs import open_training, prepare_torch, write_training
from lineage.training.pretrain import build_checkpoint
from lineage.training.recipes import with_recipe
from lineage.training.target_only import pretrain_on_target, train_target_tokenizer


def work(stage: Stage) -> None:
    """Train tokenizer and model, and write the model and its curve."""
    name, seed, task = stage.arguments
    params = read_recorded_params()
    device = prepare_torch(stage, params)
    model = with_recipe(load_model_config(params, name), params)
    tokenizer_settings = model.tokenizer
    assert tokenizer_settings is not None, "the study was checked"
    task_dir = Path(f"artifacts/tasks/{task}")
    texts, held_out_texts = split_target_texts(task_dir, params, max_bytes=params.budget.text_bytes)
    tokenizer = train_target_tokenizer(model, texts, read_json(task_dir / "task.json")["language"])
    checkpoint, _ = build_checkpoint(model, params, tokenizer, seed=int(seed))
    parameters: dict[str, Any] = {
        **params.compute_settings,
        "architecture": dataclasses.asdict(checkpoint.architecture),
        "pretrain": dataclasses.asdict(checkpoint.pretrain),
        "budget": dataclasses.asdict(params.budget),
        "tokenizer": dataclasses.asdict(tokenizer_settings),
        "patience": params.adapt.patience,
        "heldout_share": params.adapt.heldout_share,
    }
    resume_dir = stage.prepare_resume_folder(parameters | {"input": artifact_digest(task_dir)})
    tags = {"family": model.family.name, "model": name, "pretrain_seed": seed, "task": task}
    with stage.track(parameters=parameters, inputs=[task_dir], **tags) as tracker:
        with open_training(stage, "pretrain", device, tracker, resume_dir) as context:
            output = pretrain_on_target(checkpoint, texts, held_out_texts, params, context)
        folder = Path(f"artifacts/target_only/{name}/{seed}/{task}")
        write_training(stage, folder, checkpoint, output)
        tracker.training_failed = output.status != "ok"
    stage.clear_resume_folder()


if __name__ == "__main__":
    run_stage("target_only", work)
