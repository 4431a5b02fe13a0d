"""Find a pretrained or adapted model of the study by its name."""

from pathlib import Path

from lineage.artifacts import check_intact
from lineage.config.params import Params
from lineage.config.records import suggest_nearest
from lineage.errors import InputError


def locate_trained_model(params: Params, name: str) -> Path:
    """Return the folder of MODEL, or of MODEL@TASK, which is the model adapted to a task's text.

    It is that of the first seed of pretraining. Raises InputError, also if the model is damaged.
    """
    model, _, task = name.partition("@")
    grid = params.grid
    if model not in grid.models:
        raise InputError(f"the study has no model '{model}'{suggest_nearest(model, grid.models)}")
    seed = grid.pretrain_seeds[0]
    folder = Path(f"artifacts/pretrained/{model}/{seed}")
    if not task:
        check_intact(folder)
        return folder
    if model not in grid.adapt_models or task not in grid.adapt_tasks:
        pairs = [f"{one}@{other}" for one in grid.adapt_models for other in grid.adapt_tasks]
        raise InputError(
            f"the study does not adapt '{model}' to '{task}'; adapted models: "
            f"{', '.join(pairs) or 'none'}"
        )
    folder = Path(f"artifacts/adapted/{model}/{seed}/{task}")
    check_intact(folder)
    return folder
