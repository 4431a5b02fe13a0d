"""Measure whether fine-tuning converges: scores after 2 to 20 epochs, and with early stopping.

    python -m benchmarks.convergence STUDY
    python -m benchmarks.convergence --table

STUDY is the folder of a study whose stages `task` and `pretrain` have run, such as one with the
params.yaml of studies/convergence.yaml. Each model and its random-init baseline is fine-tuned for
20 epochs at each learning rate of its grid. The test items are scored after 2, 3, 5, 10 and 20
epochs, and wherever validation is the best so far. What early stopping would have kept follows
from the validations. Finished trainings are kept, so a run that was stopped goes on. No choice
reads a test score.
"""

import argparse
import contextlib
import json
import math
import multiprocessing
import os
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Any

# Without it two runs on a GPU may differ. CUDA reads it once, when it starts.
os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")

import numpy as np
import pandas as pd
import torch

from lineage.answers.base import HeadAnswer
from lineage.config.params import read_params
from lineage.data.task_data import SplitItems, TaskData
from lineage.errors import EvaluationError
from lineage.methods.early_stopping import EarlyStopper, EarlyStopping, Validation
from lineage.methods.encoder import EncoderUnderTest, EvalContext, Init
from lineage.methods.finetuning import (
    FinetunedModel,
    FinetuneMethod,
    score_finetuned,
    start_finetuning,
)
from lineage.networks.base import Trained
from lineage.networks.checkpoint import Checkpoint
from lineage.study.models import load_model_config
from lineage.training.devices import configure_torch, select_device

RESULTS = Path(__file__).parent / "results" / "convergence.jsonl"
NUM_EPOCHS = 20
DEFAULT_PATIENCE = EarlyStopping.patience or NUM_EPOCHS
SHOWN_EPOCHS = (2, 3, 5, 10, 20)
INITS: tuple[Init, ...] = ("pretrained", "random")


@dataclass(frozen=True)
class Training:
    """One fine-tuning, which is one line of the results."""

    task: str
    model: str
    init: Init
    trial: int
    seed: int


@dataclass(frozen=True)
class Point:
    """One validation of a training."""

    epoch: float
    train_loss: float
    validation_loss: float
    validation_score: float
    test_score: float | None  # None: it was not needed


class Scorer:
    """Scores a model on the validation and test items of a task."""

    def __init__(self, context: EvalContext, answer: HeadAnswer) -> None:
        self.context = context
        self.answer = answer
        self.test_scores: list[float | None] = []
        self.best = -math.inf
        parts = context.task.split_items(seed=0, fold=None)
        name = context.task.info.name
        by_split = {part.split: part for part in parts if part.test_set == name}
        self.validation = by_split["validation"]
        self.test = by_split["test"]

    def validate(self, model: FinetunedModel) -> Validation:
        """Return the validation, and remember the test score where it may be read."""
        validation = self._score(model, self.validation)
        epoch = len(self.test_scores) + 1
        test_score = None
        # Of equal scores the one with the lower loss is kept.
        if not validation.score < self.best or epoch in SHOWN_EPOCHS:
            test_score = self._score(model, self.test).score
        self.best = max(self.best, validation.score)
        self.test_scores.append(test_score)
        return validation

    def _score(self, model: FinetunedModel, part: SplitItems) -> Validation:
        context = self.context
        items = context.task.select_items(part)
        encoded = [context.items[part.table][i] for i in part.rows_N]
        outputs_MK, loss = score_finetuned(
            model,
            context.checkpoint.tokenizer,
            encoded,
            self.answer.labels(items),
            precision=context.precision,
        )
        if not np.isfinite(outputs_MK).all():
            raise EvaluationError("the predictions are not finite")
        columns = self.answer.prediction_columns(items, outputs_MK)
        answers = pd.DataFrame({name: columns[name] for name in ("label", "prediction")})
        return Validation(
            context.kind.answer.score(context.task.info.ranking_metric, answers), loss
        )


def load_context(study: Path, model: str, task: str, device: str) -> EvalContext:
    """Load the model and the task of a study."""
    params = read_params(study / "params.yaml")
    return EvalContext(
        checkpoint=Checkpoint.load(study / "artifacts" / "pretrained" / model / "0"),
        task=TaskData.load(study / "artifacts" / "tasks" / task, split="test"),
        settings=load_model_config(params, model).evaluate,
        pretrain_seed=0,
        text_bytes=params.budget.text_bytes,
        precision=params.precision,
        device=select_device(device),
    )


def finetune_settings(context: EvalContext, trial: int) -> FinetuneMethod:
    """Return the settings of a trial, without early stopping."""
    settings = context.settings.finetune.with_trial(trial)
    return replace(settings, epochs=NUM_EPOCHS, min_steps=None, patience=None)


def run_training(context: EvalContext, training: Training) -> dict[str, Any]:
    """Fine-tune once, and return the line of the results."""
    start = time.monotonic()
    items = context.task.splits["train"]
    answer = context.kind.answer.fit(context.task.info.labels, items)
    assert isinstance(answer, HeadAnswer)
    scorer = Scorer(context, answer)
    settings = finetune_settings(context, training.trial)
    family = context.checkpoint.family
    error = ""
    points: list[Point] = []
    try:
        started = start_finetuning(
            EncoderUnderTest(context, training.init).build_encoder(
                body_dropout=settings.body_dropout
            ),
            context.checkpoint.tokenizer,
            context.items["train"],
            answer.labels(items),
            answer,
            settings,
            seed=training.seed,
            precision=context.precision,
            auxiliary_loss=family.auxiliary_loss if isinstance(family, Trained) else None,
            validate=scorer.validate,
        )
        started.train_to_end()
        points = [
            Point(
                point.epoch, point.train_loss, point.validation_loss, point.validation_score, score
            )
            for point, score in zip(started.curve, scorer.test_scores, strict=True)
        ]
    except EvaluationError as failure:
        error = str(failure)
    return {
        **asdict(training),
        "metric": context.task.info.ranking_metric,
        "learning_rate": settings.learning_rate,
        "text_bytes": context.text_bytes,
        "device": torch.cuda.get_device_name() if context.device.type == "cuda" else "cpu",
        "seconds": round(time.monotonic() - start, 1),
        "error": error,
        "points": [asdict(point) for point in points],
    }


_loaded: dict[tuple[str, str], EvalContext] = {}


def run_in_worker(arguments: tuple[Path, Training, str]) -> dict[str, Any]:
    """Run one training in a process that keeps the contexts it has loaded."""
    study, training, device = arguments
    configure_torch(1)
    key = (training.model, training.task)
    if key not in _loaded:
        _loaded[key] = load_context(study, training.model, training.task, device)
    return run_training(_loaded[key], training)


def list_trainings(
    study: Path,
    models: Sequence[str],
    tasks: Sequence[str],
    seeds: Sequence[int],
    finished: Sequence[dict[str, Any]],
) -> Iterator[Training]:
    """Yield the trainings of the first seed at all learning rates, the middle one first.

    Further seeds have the learning rate that validation with the first seed chose, once it is
    known.
    """
    params = read_params(study / "params.yaml")
    models = models or params.grid.models
    tasks = tasks or params.grid.tasks
    for trial in (1, 0, 2):
        for task in tasks:
            for model in models:
                for init in INITS:
                    if trial < len(load_model_config(params, model).evaluate.finetune.trials):
                        yield Training(task, model, init, trial, seeds[0])
    for seed in seeds[1:]:
        for chosen in choose_trials(finished):
            if chosen["model"] in models and chosen["task"] in tasks:
                names = ("task", "model", "init", "trial")
                yield Training(**{name: chosen[name] for name in names}, seed=seed)


def read_results(path: Path = RESULTS) -> list[dict[str, Any]]:
    """Return the finished trainings."""
    if not path.is_file():
        return []
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def run(arguments: argparse.Namespace) -> None:
    """Run what is not finished, and append each result."""
    deadline = time.monotonic() + 60 * arguments.minutes
    finished = read_results(arguments.out)
    keys = [field.name for field in fields(Training)]
    done = {tuple(line[key] for key in keys) for line in finished}
    trainings = list_trainings(
        arguments.study, arguments.models, arguments.tasks, arguments.seeds, finished
    )
    todo = [training for training in trainings if tuple(asdict(training).values()) not in done]
    jobs = [(arguments.study, training, arguments.device) for training in todo]
    # A worker is killed at the deadline; what it had not finished is done again.
    with multiprocessing.get_context("spawn").Pool(arguments.jobs) as pool:
        results = pool.imap_unordered(run_in_worker, jobs)
        for number in range(len(jobs)):
            seconds_left = max(0.0, deadline - time.monotonic())
            try:
                line = results.next(timeout=None if math.isinf(seconds_left) else seconds_left)
            except multiprocessing.TimeoutError:
                print(f"time is up: {number} of {len(jobs)} trainings are done", file=sys.stderr)
                return
            with arguments.out.open("a", encoding="utf-8") as file:
                file.write(json.dumps(line) + "\n")
            names = (line[name] for name in ("task", "model", "init", "learning_rate", "seed"))
            print(f"{number + 1}/{len(jobs)}", *names, f"{line['seconds']} s", file=sys.stderr)


def stop_early(line: dict[str, Any], patience: int) -> dict[str, Any]:
    """Return the point that early stopping keeps, with the epochs that it trains."""
    stopper = EarlyStopper(patience)
    for index, point in enumerate(line["points"]):
        validation = Validation(point["validation_score"], point["validation_loss"])
        train_loss = point["train_loss"]
        if train_loss is None:  # early results lack it; the training counts as begun
            train_loss = 0.0 if index else math.inf
        stopper.update(validation, train_loss)
        if stopper.is_over:
            break
    return line["points"][stopper.best_index] | {"num_epochs": stopper.num_validations}


def choose_trials(
    lines: Sequence[dict[str, Any]], *, patience: int = DEFAULT_PATIENCE
) -> list[dict[str, Any]]:
    """Return, for each task, model and start, the trial that validation chooses."""
    chosen: dict[tuple[Any, ...], dict[str, Any]] = {}
    for line in sorted(lines, key=lambda line: line["trial"]):
        if line["error"] or line["seed"] != 0:
            continue
        key = (line["task"], line["model"], line["init"])
        score = stop_early(line, patience)["validation_score"]
        if key not in chosen or score > stop_early(chosen[key], patience)["validation_score"]:
            chosen[key] = line
    return [*chosen.values()]


def format_table(lines: Sequence[dict[str, Any]], *, patience: int = DEFAULT_PATIENCE) -> str:
    """Return the table as Markdown: 100 times the metric on the test items."""
    header = ["task", "model", "start", "learning rate", *(f"{n} epochs" for n in SHOWN_EPOCHS)]
    header += ["early stopping", "epochs trained", "share of the best"]
    rows = ["| " + " | ".join(header) + " |", "|---" * len(header) + "|"]
    for line in choose_trials(lines, patience=patience):
        shown = [100 * line["points"][epoch - 1]["test_score"] for epoch in SHOWN_EPOCHS]
        kept = stop_early(line, patience)
        score = 100 * kept["test_score"]
        cells = [line["task"], line["model"], line["init"], f"{line['learning_rate']:g}"]
        cells += [f"{value:.1f}" for value in shown]
        best = max([*shown, score])
        share = score / best if best > 0 else math.nan
        cells += [f"{score:.1f}", str(kept["num_epochs"]), f"{share:.1%}"]
        rows.append("| " + " | ".join(cells) + " |")
    return "\n".join(rows)


def format_patience_table(lines: Sequence[dict[str, Any]]) -> str:
    """Return a table as Markdown: what each patience costs, and what it loses on validation."""
    rows = [
        "| patience | share of the best validation score | lowest | epochs |",
        "|---|---|---|---|",
    ]
    finished = [line for line in lines if not line["error"]]
    for patience in (3, 4, 5, 6, 8, 10, NUM_EPOCHS):
        shares = []
        epochs = []
        for line in finished:
            best = max(point["validation_score"] for point in line["points"])
            kept = stop_early(line, patience)
            shares.append(kept["validation_score"] / best)
            epochs.append(kept["num_epochs"])
        cells = [f"{np.mean(shares):.1%}", f"{min(shares):.1%}", f"{np.mean(epochs):.1f}"]
        rows.append(f"| {patience} | " + " | ".join(cells) + " |")
    return "\n".join(rows)


def group_trials(lines: Sequence[dict[str, Any]]) -> list[list[dict[str, Any]]]:
    """Return the trials of each task, model, start and seed that had more than one."""
    groups: dict[tuple[Any, ...], list[dict[str, Any]]] = {}
    for line in sorted(lines, key=lambda line: line["trial"]):
        key = tuple(line[name] for name in ("task", "model", "init", "seed"))
        if not line["error"]:
            groups.setdefault(key, []).append(line)
    return [trials for trials in groups.values() if len(trials) > 1]


def find_leader(trials: Sequence[dict[str, Any]], num_validations: int) -> dict[str, Any]:
    """Return the trial that is best after some validations, or when early stopping ends it."""

    def rank(line: dict[str, Any]) -> tuple[float, float]:
        points = line["points"][:num_validations]
        kept = stop_early(line | {"points": points}, DEFAULT_PATIENCE)
        return Validation(kept["validation_score"], kept["validation_loss"]).rank

    return max(trials, key=rank)


def format_race_table(lines: Sequence[dict[str, Any]]) -> str:
    """Return a table as Markdown: what is lost if only the leader of a race is trained further."""
    rows = [
        "| validations | the leader wins | share of the winner's validation score | lowest |",
        "|---|---|---|---|",
    ]
    groups = group_trials(lines)
    for num_validations in (2, 3, 4, 5, 6, 8):
        num_wins = 0
        shares = []
        for trials in groups:
            leader = find_leader(trials, num_validations)
            winner = find_leader(trials, NUM_EPOCHS)
            num_wins += leader is winner
            score, best = (
                stop_early(line, DEFAULT_PATIENCE)["validation_score"] for line in (leader, winner)
            )
            shares.append(score / best)
        cells = [f"{num_wins} of {len(groups)}", f"{np.mean(shares):.1%}", f"{min(shares):.1%}"]
        rows.append(f"| {num_validations} | " + " | ".join(cells) + " |")
    return "\n".join(rows)


def parse_arguments() -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("study", type=Path, nargs="?", help="the folder of a study")
    parser.add_argument("--table", action="store_true", help="print the table of the results")
    parser.add_argument(
        "--patience", action="store_true", help="print what each patience costs, by validation"
    )
    parser.add_argument(
        "--race", action="store_true", help="print how often an early leader wins, by validation"
    )
    parser.add_argument("--models", nargs="+", default=[])
    parser.add_argument("--tasks", nargs="+", default=[])
    parser.add_argument("--seeds", nargs="+", type=int, default=[0])
    parser.add_argument("--jobs", type=int, default=1, help="processes of one thread each")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--minutes", type=float, default=math.inf, help="time limit")
    parser.add_argument("--out", type=Path, default=RESULTS)
    return parser.parse_args()


def main() -> None:
    """Run the trainings, or print the table."""
    arguments = parse_arguments()
    if arguments.study is not None:
        with contextlib.suppress(KeyboardInterrupt):
            run(arguments)
    if arguments.table:
        print(format_table(read_results(arguments.out)))
    if arguments.patience:
        print(format_patience_table(read_results(arguments.out)))
    if arguments.race:
        print(format_race_table(read_results(arguments.out)))


if __name__ == "__main__":
    main()
