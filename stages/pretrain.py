"""Stage pretrain@V-S: ids -> a trained model, within the budget. What a killed process had done is gone on with. A public one is taken in whole."""

import dataclasses
from pathlib import Path

from lineage.artifacts import artifact_digest, create_artifact, file_digest, read_json, write_json
from lineage.config.params import read_params
from lineage.config.study import load_model_config
from lineage.models.base import Public, Trained
from lineage.models.checkpoint import Checkpoint
from lineage.randomness import derive_seed
from lineage.runtime.settings import read_runtime_settings, resolve_data_root
from lineage.runtime.stage import Stage, run_stage
from lineage.tokenizers.tokenizer import Tokenizer
from lineage.training.budget import match_parameter_budget
from lineage.training.curve import write_curve
from lineage.training.devices import configure_torch, select_device
from lineage.training.pretrain import TrainContext, pretrain, wrap_public_model


def work(stage: Stage) -> None:
    """Build at the solved width, train to the end of the budget, write weights, curve and what was spent."""
    name, seed = stage.arguments[0], int(stage.arguments[1])
    params, runtime = read_params(), read_runtime_settings()
    configure_torch(params.threads)
    model, folder = load_model_config(params, name), Path("artifacts/tokens") / name
    device = select_device(
        params.device if isinstance(model.family, Trained) else "cpu",
        runtime.device_index,
    )
    stage.metadata["device"] = str(device)
    tokenizer = Tokenizer.load(folder)
    config, public = (
        match_parameter_budget(
            model.family,
            model.architecture,
            vocab_size=tokenizer.vocab_size,
            body_parameters=params.budget.body_parameters,
        ),
        None,
    )
    settings = model.pretrain
    if isinstance(model.family, Public):
        assert model.checkpoint_source is not None, "the study was checked"
        source_record = read_json(Path(f"artifacts/sources/models/{name}.json"))["source"]
        config, public = model.family.load_pretrained(
            model.checkpoint_source.verify_unchanged(resolve_data_root(), source_record), config
        )
        settings = settings.with_default_seq_len(config.max_positions)
    checkpoint = Checkpoint(
        name, model.family, config, settings, tokenizer, seed=derive_seed(params.seed, seed)
    )
    parameters = params.compute_settings | {
        "architecture": dataclasses.asdict(config),
        "pretrain": dataclasses.asdict(settings),
        "budget": dataclasses.asdict(params.budget),
    }
    resume = stage.prepare_resume_folder(parameters | {"tokens": artifact_digest(folder)})
    with stage.track(
        parameters=parameters,
        inputs=[folder],
        family=model.family.name,
        variant=name,
        pretrain_seed=seed,
    ) as tracker:
        with stage.show_progress("pretrain", 1.0) as report:
            conditions = TrainContext(device, tracker, resume, runtime.checkpoint_seconds, report)
            outcome = (
                pretrain(checkpoint, folder, params, conditions)
                if public is None
                else wrap_public_model(public)
            )
        with create_artifact(
            Path("artifacts/pretrained") / name / str(seed),
            "model",
            status=outcome.status,
            reason=outcome.reason,
        ) as draft:
            checkpoint.save(draft, outcome.model)
            write_json(draft / "spent.json", dataclasses.asdict(outcome.budget_used))
        budget_columns = {"model": name, "pretrain_seed": seed, "status": outcome.status} | (
            {} if public is None else {"matched": False}
        )
        write_json(
            Path(f"artifacts/results/budgets/{stage.file_name}.json"),
            budget_columns | dataclasses.asdict(outcome.budget_used),
        )
        curve = Path(f"artifacts/results/curves/{stage.file_name}.parquet")
        write_curve(curve, outcome.curve)
        stage.metadata["curve_sha256"], stage.earlier_seconds = (
            file_digest(curve),
            outcome.curve.previous_seconds,
        )
        if outcome.status != "ok":
            tracker.training_failed = True
    stage.clear_resume_folder()


def main() -> None:
    """Run the stage."""
    run_stage("pretrain", work)


if __name__ == "__main__":
    main()
