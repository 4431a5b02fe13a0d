"""The recipes of pretrainings: the settings that a search varies, and its trials.

See `sweep` for the search.
"""

import dataclasses
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from lineage.artifacts import read_json
from lineage.config.params import Params
from lineage.config.records import parse_record
from lineage.networks.base import with_dropout

if TYPE_CHECKING:
    from lineage.study.models import ModelConfig

Architecture = TypeVar("Architecture")


@dataclass(frozen=True)
class Recipe:
    """The settings of a pretraining that a sweep varies."""

    learning_rate: float
    batch_size: int  # sequences
    weight_decay: float
    dropout: float | None  # the greatest of the model's dropouts; None: it has none

    @classmethod
    def of(cls, architecture: Any, settings: Any) -> "Recipe":
        """Return a model's own recipe."""
        return cls(
            settings.learning_rate,
            settings.batch_size,
            settings.weight_decay,
            greatest_dropout(architecture),
        )

    def apply(self, architecture: Architecture, settings: Any) -> tuple[Architecture, Any]:
        """Return a model's architecture and block `pretrain` with this recipe."""
        if self.dropout is not None:
            architecture = with_dropout(architecture, self.dropout)
        settings = dataclasses.replace(
            settings,
            learning_rate=self.learning_rate,
            batch_size=self.batch_size,
            weight_decay=self.weight_decay,
        )
        return architecture, settings


@dataclass(frozen=True)
class Trial:
    """A recipe, what it has learned and what it cost."""

    recipe: Recipe
    loss: float | None  # on all held-out text; None: the training failed
    metrics: dict[str, float]
    text_bytes: int
    steps: int
    train_flops: int
    is_chosen: bool = False


@dataclass(frozen=True)
class RecipeSearch:
    """The trials of a model; without any, its recipe is that of params.yaml."""

    model: str
    own_recipe: Recipe | None = None
    trials: tuple[Trial, ...] = ()

    @property
    def chosen(self) -> Trial:
        """The trial whose recipe the model is pretrained with."""
        return next(trial for trial in self.trials if trial.is_chosen)

    @property
    def own(self) -> Trial | None:
        """The trial of the model's own recipe, if it was tried."""
        return next((one for one in self.trials if one.recipe == self.own_recipe), None)


def recipe_file(model: str) -> Path:
    """Return the file that the stage recipe writes for a model."""
    return Path("artifacts/results/recipes") / f"recipe-{model}.json"


def read_search(path: Path) -> RecipeSearch:
    """Read the file of a model. Raises InputError."""
    return parse_record(RecipeSearch, read_json(path), str(path))


def with_recipe(model: "ModelConfig", params: Params) -> "ModelConfig":
    """Return a model with the recipe that its search has chosen, if `grid.sweep` names it."""
    if model.name not in params.grid.sweep:
        return model
    recipe = read_search(recipe_file(model.name)).chosen.recipe
    architecture, settings = recipe.apply(model.architecture, model.pretrain)
    return dataclasses.replace(model, architecture=architecture, pretrain=settings)


def greatest_dropout(architecture: Any) -> float | None:
    """Return the greatest dropout of a model, None if its config has no dropouts."""
    if hasattr(architecture, "dropouts"):
        return max(vars(architecture.dropouts).values())
    return getattr(architecture, "dropout", None)
