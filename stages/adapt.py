"""Stage adapt@V-S-T: a pretrained model goes on with its own objective on the target task's text, and is measured on held target text."""

import dataclasses
from pathlib import Path

from lineage.artifacts import (
    artifact_digest,
    create_artifact,
    file_digest,
    read_manifest,
    write_json,
)
from lineage.config.params import read_params
from lineage.config.study import load_model_config
from lineage.models.checkpoint import Checkpoint
from lineage.runtime.settings import read_runtime_settings
from lineage.runtime.stage import Stage, run_stage
from lineage.training.adapt import adapt, find_new_words, split_target_texts
from lineage.training.curve import write_curve
from lineage.training.devices import configure_torch, select_device
from lineage.training.pretrain import TrainContext


def work(stage: Stage) -> None:
    """Adapt, write the model, its curve, and the measures before and after."""
    name, seed, task = stage.arguments
    params, runtime = read_params(), read_runtime_settings()
    configure_torch(params.threads)
    device = select_device(params.device, runtime.device_index)
    stage.metadata["device"] = str(device)
    settings = load_model_config(params, name).adapt
    assert settings is not None, "the study was checked"
    source, target = Path(f"artifacts/pretrained/{name}/{seed}"), Path(f"artifacts/tasks/{task}")
    before, checkpoint = read_manifest(source, "model"), Checkpoint.load(source)
    texts, heldout_texts = split_target_texts(target, params.adapt, seed=params.seed)
    parameters = params.compute_settings | {
        "adapt": dataclasses.asdict(settings),
        "budget": dataclasses.asdict(params.adapt),
    }
    resume = stage.prepare_resume_folder(
        parameters | {"inputs": [artifact_digest(source), artifact_digest(target)]}
    )
    tags = {"family": checkpoint.family.name, "model": name, "pretrain_seed": seed, "task": task}
    if settings.new_words and not before["reason"]:
        checkpoint = checkpoint.with_added_words(
            find_new_words(texts, checkpoint.tokenizer, **vars(settings.new_words))
        )
    with stage.track(parameters=parameters, inputs=[source, target], **tags) as tracker:
        with stage.show_progress("adapt", 1.0) as report:
            conditions = TrainContext(device, tracker, resume, runtime.checkpoint_seconds, report)
            outcome, heldout_metrics = adapt(
                checkpoint,
                settings,
                texts,
                heldout_texts,
                params,
                conditions,
                failure_reason=before["reason"],
            )
        with create_artifact(
            Path(f"artifacts/adapted/{name}/{seed}/{task}"),
            "model",
            status=outcome.status,
            reason=outcome.reason,
        ) as draft:
            checkpoint.save(draft, outcome.model)
            write_json(draft / "spent.json", dataclasses.asdict(outcome.budget_used))
            write_json(draft / "held.json", dataclasses.asdict(heldout_metrics))
        curve = Path(f"artifacts/results/curves/{stage.file_name}.parquet")
        write_curve(curve, outcome.curve)
        stage.metadata["curve_sha256"], stage.earlier_seconds = (
            file_digest(curve),
            outcome.curve.previous_seconds,
        )
        if outcome.status != "ok":
            tracker.training_failed = True
        tracker.log_summary(
            {
                f"held_{when}_{key}": value
                for when, found in dataclasses.asdict(heldout_metrics).items()
                for key, value in found.items()
            }
        )
        tracker.log_summary({"new_words": checkpoint.num_new_words})
    stage.clear_resume_folder()


def main() -> None:
    """Run the stage."""
    run_stage("adapt", work)


if __name__ == "__main__":
    main()
