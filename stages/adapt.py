"""Stage adapt@MODEL-SEED-TASK: go on pretraining on the task's text -> a model and metrics.

The metrics are measured on held-out text of the task.
"""

import dataclasses
from pathlib import Path
from typing import Any

from lineage.artifacts import artifact_digest, check_intact, read_manifest
from lineage.config.params import read_recorded_params
from lineage.networks.checkpoint import Checkpoint
from lineage.runtime.stage import Stage, run_stage
from lineage.study.models import load_model_config
from lineage.training.adapt import adapt, find_new_words, split_target_texts
from lineage.training.outputs import open_training, prepare_torch, write_training


def work(stage: Stage) -> None:
    """Adapt, and write the model, its curve, and the metrics before and after."""
    name, seed, task = stage.arguments
    params = read_recorded_params()
    device = prepare_torch(stage, params)
    settings = load_model_config(params, name).adapt
    assert settings is not None, "the study was checked"
    model_dir = Path(f"artifacts/pretrained/{name}/{seed}")
    task_dir = Path(f"artifacts/tasks/{task}")
    check_intact(model_dir)
    failure_reason = read_manifest(model_dir, "model")["reason"]
    checkpoint = Checkpoint.load(model_dir)
    texts, heldout_texts = split_target_texts(
        task_dir, params, max_bytes=params.max_adaptation_bytes
    )
    if settings.new_words and not failure_reason:
        new_words = find_new_words(texts, checkpoint.tokenizer, **vars(settings.new_words))
        checkpoint = checkpoint.with_added_words(new_words)
    parameters: dict[str, Any] = {
        **params.compute_settings,
        "adapt": dataclasses.asdict(settings),
        "budget": dataclasses.asdict(params.adapt) | {"text_bytes": params.max_adaptation_bytes},
    }
    input_digests = [artifact_digest(model_dir), artifact_digest(task_dir)]
    resume_dir = stage.prepare_resume_folder(parameters | {"inputs": input_digests})
    tags = {"family": checkpoint.family.name, "model": name, "pretrain_seed": seed, "task": task}
    with stage.track(parameters=parameters, inputs=[model_dir, task_dir], **tags) as tracker:
        with open_training(stage, "adapt", device, tracker, resume_dir) as context:
            output, heldout_metrics = adapt(
                checkpoint,
                settings,
                texts,
                heldout_texts,
                params,
                context,
                failure_reason=failure_reason,
            )
        metrics = dataclasses.asdict(heldout_metrics)
        folder = Path(f"artifacts/adapted/{name}/{seed}/{task}")
        write_training(stage, folder, checkpoint, output, extra_files={"held.json": metrics})
        tracker.training_failed = output.status != "ok"
        for when, values in metrics.items():
            tracker.log_summary({f"held_{when}_{key}": value for key, value in values.items()})
        tracker.log_summary({"new_words": checkpoint.num_new_words})
    stage.clear_resume_folder()


if __name__ == "__main__":
    run_stage("adapt", work)
