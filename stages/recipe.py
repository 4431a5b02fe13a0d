"""Stage recipe@MODEL: short trainings -> the recipe that the model is pretrained with.

A model that is not in `grid.sweep` keeps its recipe, and the file has an empty list of trials.
"""

import dataclasses
from pathlib import Path
from typing import Any

from lineage.artifacts import artifact_digest, check_intact, write_json
from lineage.config.params import Params, read_recorded_params
from lineage.runtime.stage import Stage, run_stage
from lineage.study.models import load_model_config
from lineage.tokenizers.tokenizer import Tokenizer
from lineage.training.outputs import open_training, prepare_torch
from lineage.training.pretrain import build_checkpoint
from lineage.training.recipes import RecipeSearch, recipe_file
from lineage.training.sweep import search_recipe


def work(stage: Stage) -> None:
    """Search, if the grid asks for it, and write the trials."""
    (name,) = stage.arguments
    params = read_recorded_params()
    result = RecipeSearch(name)
    if name in params.grid.sweep:
        result = search(stage, params, name)
    write_json(recipe_file(name), dataclasses.asdict(result))
    stage.clear_resume_folder()


def search(stage: Stage, params: Params, name: str) -> RecipeSearch:
    """Train the trials of a model."""
    device = prepare_torch(stage, params)
    tokens_dir = Path("artifacts/tokens") / name
    check_intact(tokens_dir)
    model = load_model_config(params, name)
    tokenizer = Tokenizer.load(tokens_dir)
    checkpoint, _ = build_checkpoint(model, params, tokenizer, seed=params.grid.pretrain_seeds[0])
    parameters: dict[str, Any] = {
        **params.compute_settings,
        "architecture": dataclasses.asdict(checkpoint.architecture),
        "pretrain": dataclasses.asdict(checkpoint.pretrain),
        "budget": dataclasses.asdict(params.budget),
        "sweep": dataclasses.asdict(params.sweep),
        "pretrain_seed": params.grid.pretrain_seeds[0],
    }
    resume_dir = stage.prepare_resume_folder(parameters | {"tokens": artifact_digest(tokens_dir)})
    tags = {"family": model.family.name, "model": name}
    with (
        stage.track(parameters=parameters, inputs=[tokens_dir], **tags) as tracker,
        open_training(stage, "trials", device, tracker, resume_dir) as context,
    ):
        result = search_recipe(checkpoint, tokens_dir, params, context)
        losses = {f"trial_{n}/loss": one.loss for n, one in enumerate(result.trials)}
        tracker.log_summary({name: loss for name, loss in losses.items() if loss is not None})
    return result


if __name__ == "__main__":
    run_stage("recipe", work)
