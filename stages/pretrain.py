"""Stage pretrain@MODEL-SEED: token ids -> a model trained within the budget.

It resumes what a killed process has done. A public checkpoint is imported as it is, or continues
on the corpus.
"""

import dataclasses
from pathlib import Path
from typing import Any

from lineage.artifacts import artifact_digest, check_intact, read_json, write_json
from lineage.config.params import read_recorded_params
from lineage.runtime.settings import resolve_data_root
from lineage.runtime.stage import Stage, run_stage
from lineage.study.models import load_model_config
from lineage.tokenizers.tokenizer import Tokenizer
from lineage.training.outputs import open_training, prepare_torch, write_training
from lineage.training.pretrain import build_checkpoint, pretrain, wrap_public_model
from lineage.training.recipes import with_recipe


def work(stage: Stage) -> None:
    """Build the model, train it to the end of the budget, and write weights, curve and budget."""
    name = stage.arguments[0]
    seed = int(stage.arguments[1])
    params = read_recorded_params()
    model = with_recipe(load_model_config(params, name), params)
    device = prepare_torch(stage, params, on_cpu=not model.is_trained_by_loop)
    tokens_dir = Path("artifacts/tokens") / name
    check_intact(tokens_dir)
    inputs: dict[str, Any] = {"tokens": artifact_digest(tokens_dir)}
    public_folder = None
    if model.checkpoint_source is not None:
        inputs["public"] = read_json(Path(f"artifacts/sources/models/{name}.json"))["source"]
        public_folder = model.checkpoint_source.verify_unchanged(
            resolve_data_root(), inputs["public"]
        )
    checkpoint, public_model = build_checkpoint(
        model, params, Tokenizer.load(tokens_dir), seed=seed, public_folder=public_folder
    )
    parameters: dict[str, Any] = {
        **params.compute_settings,
        "architecture": dataclasses.asdict(checkpoint.architecture),
        "pretrain": dataclasses.asdict(checkpoint.pretrain),
        "budget": dataclasses.asdict(params.budget),
    }
    if model.is_trained_by_loop and params.grid.text_shares:
        parameters["text_shares"] = params.grid.text_shares
    resume_dir = stage.prepare_resume_folder(parameters | inputs)
    tags = {"family": model.family.name, "model": name, "pretrain_seed": seed}
    with stage.track(parameters=parameters, inputs=[tokens_dir], **tags) as tracker:
        if model.family.reads_corpus(model.pretrain):
            with open_training(stage, "pretrain", device, tracker, resume_dir) as context:
                output = pretrain(
                    checkpoint, tokens_dir, params, context, public_model=public_model
                )
        else:
            assert public_model is not None, "every other family is trained"
            output = wrap_public_model(public_model)
        folder = Path(f"artifacts/pretrained/{name}/{seed}")
        running_text = tokens_dir if model.family.can_translate else None
        write_training(stage, folder, checkpoint, output, running_text=running_text)
        budget_row = {"model": name, "pretrain_seed": seed, "status": output.status}
        if public_model is not None:
            budget_row["matched"] = False
        write_json(
            Path(f"artifacts/results/budgets/{stage.file_name}.json"),
            {**budget_row, **dataclasses.asdict(output.budget_used)},
        )
        tracker.training_failed = output.status != "ok"
    stage.clear_resume_folder()


if __name__ == "__main__":
    run_stage("pretrain", work)
