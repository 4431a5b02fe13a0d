"""Print what the searches for recipes have chosen, as a table.

    python -m benchmarks.recipes benchmarks/results/recipes/2MB

The folder holds recipe-MODEL.json, as the stage `recipe` writes it (studies/recipes.yaml).
"""

import sys
from pathlib import Path

from lineage.report.formatting import format_model
from lineage.training.recipes import Recipe, Trial, read_search


def format_recipe(recipe: Recipe) -> str:
    """Return `0.009, 8, 0.1, 0`: learning rate, sequences, weight decay and dropout."""
    dropout = "none" if recipe.dropout is None else f"{recipe.dropout:g}"
    return f"{recipe.learning_rate:.3g}, {recipe.batch_size}, {recipe.weight_decay:g}, {dropout}"


def format_loss(trial: Trial | None) -> str:
    """Return the loss of a trial, or that it has none."""
    if trial is None or trial.loss is None:
        return "failed"
    return f"{trial.loss:.3f}"


def main(folders: list[str]) -> None:
    """Print a table for each folder, a line for each model."""
    for folder in folders:
        print(
            "| model | own recipe | loss | chosen | loss | trials |\n|---|---|---:|---|---:|---:|"
        )
        for path in sorted(Path(folder).glob("recipe-*.json")):
            search = read_search(path)
            assert search.own_recipe is not None
            cells = [
                format_model(search.model),
                format_recipe(search.own_recipe),
                format_loss(search.own),
                format_recipe(search.chosen.recipe),
                format_loss(search.chosen),
                str(len(search.trials)),
            ]
            print(f"| {' | '.join(cells)} |")
        print()


if __name__ == "__main__":
    main(sys.argv[1:])
