"""Stage pretrain@V-S: ids -> a trained model, within the budget. What a killed process had done is gone on with. A public one is taken in whole."""

import dataclasses
from pathlib import Path

from lineage.artifacts import create, digest, file_digest, read_json, write_json
from lineage.checkpoint import Checkpoint
from lineage.params import read_params
from lineage.pretraining import Conditions, adopted, pretrain
from lineage.randomness import seed_of
from lineage.running.runtime import data_root, read_runtime
from lineage.running.stage import Stage, run
from lineage.study import variant
from lineage.text.tokenization import Reader
from lineage.training.budget import sized
from lineage.training.curve import write_curve
from lineage.training.train import compute_device, prepare_torch


def work(stage: Stage) -> None:
    """Build at the solved width, train to the end of the budget, write weights, curve and what was spent."""
    name, seed = stage.arguments[0], int(stage.arguments[1])
    params, runtime = read_params(), read_runtime()
    prepare_torch(params.threads)
    found, folder = variant(params, name), Path("artifacts/tokens") / name
    device = compute_device("cpu" if found.family.fit or found.family.adopt else params.device_class, runtime.device_index)
    stage.facts["device"] = str(device)
    reader = Reader.load(folder)
    config, public = sized(found.family, found.model, vocabulary=reader.vocabulary, parameters=params.budget.parameters), None
    settings = found.pretrain
    if found.family.adopt:
        assert found.origin is not None, "the study was checked"
        looked_at = read_json(Path(f"artifacts/sources/variants/{name}.json"))["source"]
        config, public = found.family.adopt(found.origin.unchanged(data_root(), looked_at), config)
        settings = settings.within(config.positions)
    checkpoint = Checkpoint(name, found.family, config, settings, reader, seed=seed_of(params.seed, seed))
    about = params.computing | {
        "model": dataclasses.asdict(config),
        "pretrain": dataclasses.asdict(settings),
        "budget": dataclasses.asdict(params.budget),
    }
    resume = stage.resume_folder(about | {"tokens": digest(folder)})
    with stage.tracked(parameters=about, inputs=[folder], family=found.family.name, variant=name, pretrain_seed=seed) as tracker:
        with stage.progress("pretrain", 1.0) as report:
            conditions = Conditions(device, tracker, resume, runtime.checkpoint_seconds, report)
            outcome = pretrain(checkpoint, folder, params, conditions) if public is None else adopted(public)
        with create(Path("artifacts/pretrained") / name / str(seed), "model", status=outcome.status, reason=outcome.reason) as draft:
            checkpoint.save(draft, outcome.model)
            write_json(draft / "spent.json", outcome.spent)
        named = {"variant": name, "pretrain_seed": seed, "status": outcome.status} | ({} if public is None else {"matched": False})
        write_json(Path(f"artifacts/results/budgets/{stage.file_name}.json"), named | outcome.spent)
        curve = Path(f"artifacts/results/curves/{stage.file_name}.parquet")
        write_curve(curve, outcome.curve)
        stage.facts["curve_sha256"], stage.earlier_seconds = file_digest(curve), outcome.curve.earlier_seconds
        if outcome.status != "ok":
            tracker.failed = True
    stage.drop_resume()


def main() -> None:
    """Run the stage."""
    run("pretrain", work)


if __name__ == "__main__":
    main()
