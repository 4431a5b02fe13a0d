"""Search the recipe of a pretraining: short trainings, of which held-out text chooses one.

Every model gets the same search: learning rates and batch sizes around its own, then the same
weight decays, then dropouts, each with the best of what was tried before. A trial is a training
with a part of the budget and a schedule of its own. No trial sees a task.
"""

import dataclasses
import itertools
import math
import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path

from lineage.artifacts import read_json, write_json
from lineage.config.params import Params, Sweep
from lineage.config.records import parse_record
from lineage.errors import InputError
from lineage.networks.base import LanguageModelFamily
from lineage.networks.checkpoint import Checkpoint
from lineage.runtime.recorder import Tracker
from lineage.runtime.rehearsal import rehearsal_limit
from lineage.tokenizers.token_ids import TokenizedCorpus
from lineage.training.curve import total_loss
from lineage.training.pretrain import (
    build_phase,
    build_training,
    compute_held_out_metrics,
    run_training,
)
from lineage.training.recipes import Recipe, RecipeSearch, Trial
from lineage.training.train_run import ALL_TEXT_VALIDATIONS, TrainContext
from lineage.work import Stopwatch


def search_recipe(
    checkpoint: Checkpoint, tokens_dir: Path, params: Params, context: TrainContext
) -> RecipeSearch:
    """Train all trials of a model, and choose one. Raises InputError if every trial failed."""
    trials: list[Trial] = []
    own = Recipe.of(checkpoint.architecture, checkpoint.pretrain)
    total = count_trials(own, params.sweep)
    for recipes in _list_rounds(own, params.sweep, trials):
        for recipe in recipes:
            number = len(trials)
            trial_context = _trial_context(context, number, total)
            trials.append(_run_trial(checkpoint, recipe, tokens_dir, params, trial_context))
    best = find_best(trials)
    if best is None and rehearsal_limit() is not None:
        best = trials[0]  # the search itself tries other learning rates
    if best is None:
        raise InputError(
            f"params.yaml: models.{checkpoint.model_name}: no trial of the sweep has a finite loss; "
            "lower its learning_rate"
        )
    chosen = tuple(dataclasses.replace(trial, is_chosen=trial is best) for trial in trials)
    return RecipeSearch(checkpoint.model_name, own, chosen)


def _trial_context(context: TrainContext, number: int, total: int) -> TrainContext:
    """Return the environment of one trial, with a folder of its own.

    Its curve is not logged, since trials would share one line of steps.
    """

    def report_progress(done: float, note: str) -> None:
        context.report_progress((number + done) / total, f"trial {number + 1} of {total} {note}")

    return dataclasses.replace(
        context,
        tracker=Tracker(),
        checkpoint_dir=context.checkpoint_dir / f"trial-{number}",
        report_progress=report_progress,
    )


def find_best(trials: Sequence[Trial]) -> Trial | None:
    """Return the trial with the lowest loss, the first of equal ones; None if all have failed."""
    losses = [math.inf if trial.loss is None else trial.loss for trial in trials]
    lowest = min(losses, default=math.inf)
    return trials[losses.index(lowest)] if math.isfinite(lowest) else None


def _list_rounds(own: Recipe, sweep: Sweep, trials: Sequence[Trial]) -> Iterator[list[Recipe]]:
    """Yield the recipes of each round. A later one starts from the best of the `trials` so far."""
    recipes = [
        dataclasses.replace(
            own,
            learning_rate=own.learning_rate * rate_factor,
            batch_size=max(1, round(own.batch_size * batch_factor)),
        )
        for rate_factor, batch_factor in itertools.product(sweep.learning_rate, sweep.batch_size)
    ]
    yield [*dict.fromkeys(recipes)]  # half of a batch of one sequence is one sequence too
    for key in ("weight_decay", "dropout"):
        best = find_best(trials)
        recipe = own if best is None else best.recipe
        current = getattr(recipe, key)
        if current is not None:
            values = [value for value in getattr(sweep, key) if value != current]
            yield [dataclasses.replace(recipe, **{key: value}) for value in values]


def count_trials(own: Recipe, sweep: Sweep) -> int:
    """Count the trials of a model; a value that its recipe has already is not tried again."""
    rounds = _list_rounds(own, sweep, [])
    return sum(len(recipes) for recipes in rounds)


def _run_trial(
    checkpoint: Checkpoint, recipe: Recipe, tokens_dir: Path, params: Params, context: TrainContext
) -> Trial:
    """Train with a recipe, and measure the loss on all held-out text."""
    path = context.checkpoint_dir / "trial.json"
    if path.is_file():
        return parse_record(Trial, read_json(path), str(path))
    architecture, settings = recipe.apply(checkpoint.architecture, checkpoint.pretrain)
    tried = dataclasses.replace(checkpoint, architecture=architecture, pretrain=settings)
    tokens = TokenizedCorpus.load(tokens_dir, "train")
    validation_tokens = TokenizedCorpus.load(tokens_dir, "valid")
    text_bytes = max(1, round(params.sweep.text_share * params.budget.text_bytes))
    short = dataclasses.replace(
        params, budget=dataclasses.replace(params.budget, text_bytes=text_bytes)
    )
    training = build_training(tried, tokens, validation_tokens, short, context.device)
    output = run_training(training, tried, context, corpus_bytes=tokens.text_bytes)
    metrics: dict[str, float] = {}
    if output.status == "ok":
        family = checkpoint.family
        assert isinstance(family, LanguageModelFamily), "the study was checked"
        stopwatch = Stopwatch()
        # The same batches for every trial: which words are masked, or come first in a row, depends
        # on the size of the batch.
        phase = build_phase(
            checkpoint, checkpoint.pretrain.phases[-1].settings, tokens, validation_tokens, seed=0
        )
        metrics = compute_held_out_metrics(
            output.model, family.objective, phase.validation_sampler, precision=params.precision
        )
        context.work.add(ALL_TEXT_VALIDATIONS, 1, 0.0)
        context.work.add("validation", validation_tokens.text_bytes, stopwatch.seconds)
    trial = Trial(
        recipe,
        total_loss(metrics) if metrics else None,
        metrics,
        output.budget_used.text_bytes or 0,
        output.budget_used.steps or 0,
        output.budget_used.train_flops or 0,
    )
    write_json(path, dataclasses.asdict(trial))
    for folder in context.checkpoint_dir.glob("step-*"):
        shutil.rmtree(folder)  # they would add up, and workers copy them
    return trial
