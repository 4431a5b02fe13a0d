"""Stage adapt@V-S-T: a pretrained model goes on with its own objective on the target task's text, and is measured on held target text."""

import dataclasses
from pathlib import Path

from lineage.adaptation import adapt, new_words, target_texts
from lineage.artifacts import create, digest, file_digest, manifest, write_json
from lineage.checkpoint import Checkpoint
from lineage.params import read_params
from lineage.pretraining import Conditions
from lineage.running.runtime import read_runtime
from lineage.running.stage import Stage, run
from lineage.study import variant
from lineage.training.curve import write_curve
from lineage.training.train import compute_device, prepare_torch


def work(stage: Stage) -> None:
    """Adapt, write the model, its curve, and the measures before and after."""
    name, seed, task = stage.arguments
    params, runtime = read_params(), read_runtime()
    prepare_torch(params.threads)
    device = compute_device(params.device_class, runtime.device_index)
    stage.facts["device"] = str(device)
    settings = variant(params, name).adapt
    assert settings is not None, "the study was checked"
    source, target = Path(f"artifacts/pretrained/{name}/{seed}"), Path(f"artifacts/tasks/{task}")
    before, checkpoint = manifest(source, "model"), Checkpoint.load(source)
    texts, held = target_texts(target, params.adapt, seed=params.seed)
    about = params.computing | {"adapt": dataclasses.asdict(settings), "budget": dataclasses.asdict(params.adapt)}
    resume = stage.resume_folder(about | {"inputs": [digest(source), digest(target)]})
    tags = {"family": checkpoint.family.name, "variant": name, "pretrain_seed": seed, "task": task}
    if settings.new_words and not before["reason"]:
        checkpoint = checkpoint.with_words(new_words(texts, checkpoint.reader, **vars(settings.new_words)))
    with stage.tracked(parameters=about, inputs=[source, target], **tags) as tracker:
        with stage.progress("adapt", 1.0) as report:
            conditions = Conditions(device, tracker, resume, runtime.checkpoint_seconds, report)
            outcome, held_text = adapt(checkpoint, settings, texts, held, params, conditions, failed=before["reason"])
        with create(Path(f"artifacts/adapted/{name}/{seed}/{task}"), "model", status=outcome.status, reason=outcome.reason) as draft:
            checkpoint.save(draft, outcome.model)
            write_json(draft / "spent.json", outcome.spent)
            write_json(draft / "held.json", held_text)
        curve = Path(f"artifacts/results/curves/{stage.file_name}.parquet")
        write_curve(curve, outcome.curve)
        stage.facts["curve_sha256"], stage.earlier_seconds = file_digest(curve), outcome.curve.earlier_seconds
        if outcome.status != "ok":
            tracker.failed = True
        tracker.summary({f"held_{when}_{key}": value for when, found in held_text.items() for key, value in found.items()})
        tracker.summary({"new_words": checkpoint.new_words})
    stage.drop_resume()


def main() -> None:
    """Run the stage."""
    run("adapt", work)


if __name__ == "__main__":
    main()
