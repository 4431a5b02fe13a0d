"""What pretraining and adaptation share: a language-model training that validates, draws its curve, saves, and goes on after a kill."""

import math
import shutil
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import nn

from lineage.checkpoint import Checkpoint
from lineage.errors import CellError
from lineage.family import Encoder
from lineage.params import Params
from lineage.randomness import seed_of
from lineage.running.recorder import Recorder
from lineage.text.tokens import Tokens
from lineage.training.budget import parameters_by_part, train_flops
from lineage.training.curve import Curve
from lineage.training.objectives import measures
from lineage.training.optim import SCHEDULES, AveragedSGD, averages, exchange_averages, pretraining_optimizer
from lineage.training.static import read_text
from lineage.training.streams import Stream, batches
from lineage.training.train import Course, Draws, Objective, Run, Step, train, validate

LOGGED, VALIDATIONS = 200, 10  # points of the loss curve, about, and of the validation curve
VALIDATION_BATCHES = 10  # of a look on the way, where it chooses nothing
WHOLE_TEXT = 1_000_000  # batches


@dataclass(frozen=True)
class Conditions:
    """Where a training runs and who is told of it. Nothing here changes a result."""

    device: torch.device
    tracker: Recorder
    resume: Path  # the folder of resume points, of these inputs alone
    checkpoint_seconds: float
    report: Callable[[float, str], None]


@dataclass(frozen=True)
class Part:
    """A part of a training: its batches, held text cut in the same way, and the progress at which it ends."""

    stream: Stream
    held: Stream
    end: float = 1.0


def train_language_model(run: Run, objective: Objective, parts: Sequence[Part], course: Course, conditions: Conditions, curve: Curve) -> None:
    """Train to the end of the plan, drawing `curve`, from the last checkpoint if there is one. Raises CellError on a loss that is not finite.

    No checkpoint is made by the last step of a part, so that what was spent tells to which part a checkpoint's place in the stream belongs.
    Where the optimizer has averaged the weights, their means are what is left in the end.
    """
    newest = max(conditions.resume.glob("step-*"), key=lambda p: int(p.name[5:]), default=None)
    if newest is not None:
        run.load(newest / "run")
        curve.load(newest)
        for point in curve.points:  # the run in MLflow may be another one's, as after a commit in between; it has no point twice
            _track(point, conditions.tracker)
    saved, clock, since = time.monotonic(), time.monotonic(), run.spent.tokens
    for part, step in _steps(run, objective, parts, course):
        if _note(curve, step, run, objective, part.held, course.precision):
            _track(curve.points[-1], conditions.tracker)
        speed = (step.spent.tokens - since) / max(time.monotonic() - clock, 1e-9)
        conditions.report(step.progress, f"{_shown(curve)} {speed:,.0f} tokens/s")
        if time.monotonic() - saved >= conditions.checkpoint_seconds and step.progress < part.end:
            _checkpoint(run, curve, conditions.resume, seconds=time.monotonic() - clock)
            conditions.tracker.flush()
            saved = time.monotonic()
    exchange_averages(run.optimizer)


def _track(point: Mapping[str, float], tracker: Recorder) -> None:
    values = {key: value for key, value in point.items() if key not in ("step", "text_bytes")}
    tracker.metrics(values, step=int(point["step"]), text_bytes=int(point["text_bytes"]))


def _steps(run: Run, objective: Objective, parts: Sequence[Part], course: Course) -> Iterator[tuple[Part, Step]]:
    """The steps of every part that is not done yet; the next one's stream begins at its beginning."""
    for part in parts:
        if course.progress(run.spent) < part.end:
            yield from ((part, step) for step in train(run, objective, part.stream, replace(course, end=part.end)))
            run.passed = run.index = 0


def _note(curve: Curve, step: Step, run: Run, objective: Objective, held: Stream, precision: str) -> bool:
    """Add a point where progress passes a mark; where it passes a mark of validation, validate. The marks depend on progress alone.

    What NT-ASGD has to remember, the losses of its checks, is in the curve, and is kept with it in each checkpoint.
    """
    curve.waiting.append(step.loss)
    before = curve.points[-1]["progress"] if curve.points else 0.0
    averaging = run.optimizer if isinstance(run.optimizer, AveragedSGD) else None
    looks, most = (averaging.rule.checks, WHOLE_TEXT) if averaging else (VALIDATIONS, VALIDATION_BATCHES)
    look = math.floor(step.progress * looks) > math.floor(before * looks)
    if not look and math.floor(step.progress * LOGGED) == math.floor(before * LOGGED) and step.progress < 1:
        return False
    run.look()
    losses = curve.waited()  # of all steps since the last point
    point = {
        "step": step.index,
        "progress": step.progress,
        "text_bytes": step.spent.text_bytes,
        "loss": sum(losses) / len(losses),
        "rate": step.rate,
    }
    if look:
        if averages(run.optimizer):
            point["averaged"] = 1.0
        exchange_averages(run.optimizer)
        found = measures(*validate(run.model, objective, held, most=most, precision=precision))
        exchange_averages(run.optimizer)
        point |= {f"validation_{name}": value for name, value in found.items()}
        if not all(math.isfinite(value) for value in found.values()):
            raise CellError(f"validation is not finite at step {step.index}: {found}; lower the rate")
    curve.points.append(point)
    curve.waiting = []
    if look and averaging:
        averaging.check(curve.validations)
    return True


def _shown(curve: Curve) -> str:
    """The last point's loss and the last validation. The loss of the step itself would have to be waited for on a GPU."""
    seen = next((point for point in reversed(curve.points) if any(name.startswith("validation_") for name in point)), {})
    shown = {"loss": curve.points[-1]["loss"]} if curve.points else {}
    shown |= {name.removeprefix("validation_"): value for name, value in seen.items() if name.startswith("validation_")}
    return " ".join(f"{name} {value:.3f}" for name, value in shown.items())


def _checkpoint(run: Run, curve: Curve, resume: Path, *, seconds: float) -> None:
    """Save beside the older one, which goes only when the new one is whole."""
    folder = resume / f"step-{run.spent.steps}"
    draft = resume / ".draft"
    shutil.rmtree(draft, ignore_errors=True)
    run.save(draft / "run")
    curve.save(draft, seconds=seconds)
    draft.rename(folder)
    for old in resume.glob("step-*"):
        if old != folder:
            shutil.rmtree(old)


def held_measures(model: nn.Module, objective: Objective, stream: Stream, *, precision: str) -> dict[str, float]:
    """Bits per byte, or nats a masked target, on a held text, of windows without its last words that fill none; what is not finite is left out."""
    found = measures(*validate(model, objective, stream, most=WHOLE_TEXT, precision=precision))
    return {name: value for name, value in found.items() if math.isfinite(value)}


@dataclass(frozen=True)
class Outcome:
    """A training that ended: well, or failed for good with its reason."""

    model: Encoder
    curve: Curve
    spent: dict[str, float | None]  # None where a family has no such thing
    status: str = "ok"
    reason: str = ""


def pretrain(checkpoint: Checkpoint, folder: Path, params: Params, conditions: Conditions) -> Outcome:
    """Train a new model on a folder of ids within the budget."""
    family, settings, budget = checkpoint.family, checkpoint.pretrain, params.budget
    if family.fit is not None:
        return _fitted(checkpoint, Tokens.load(folder, "train"), budget.text_bytes, conditions.report)
    assert family.stream is not None
    tokens = {split: Tokens.load(folder, split) for split in ("train", "valid")}
    parts = []
    for number, (end, how) in enumerate(settings.parts):
        seed = seed_of("part", number, checkpoint.seed) if number else checkpoint.seed  # else its pairs and masks would be the same draws
        stream = family.stream(tokens["train"], checkpoint.reader, how, seed=seed)
        parts.append(Part(stream, family.stream(tokens["valid"], checkpoint.reader, as_measured(how), seed=0), end))
    model = checkpoint.build(conditions.device, trained=False)
    run = Run(model, pretraining_optimizer([*model.parameters()], settings), Draws(seed_of("pretrain", checkpoint.seed)))
    schedule = SCHEDULES[settings.schedule](settings.warmup_share)
    course = Course(
        progress=lambda spent: spent.text_bytes / budget.text_bytes,
        rate=lambda progress: schedule(settings.share_of_steps(progress)),
        highest=settings.rate,
        clip_norm=settings.clip_norm,
        precision=params.precision,
        accumulation=settings.accumulation,
        loss_factor=settings.length if getattr(settings, "loss_by_length", False) else 1.0,
        clipped=model.independent(),
    )
    return trained(run, checkpoint, parts, course, conditions, corpus_bytes=tokens["train"].text_bytes)


def _fitted(checkpoint: Checkpoint, tokens: Tokens, text_bytes: int, report: Callable[[float, str], None]) -> Outcome:
    """A model that its family trains in its own way. It has no loss to draw, and nothing to resume: it begins again.

    What is spent is what was read: of a budget of several passes one, where the family counts.
    """
    assert checkpoint.family.fit is not None
    model = checkpoint.build(torch.device("cpu"), trained=False)
    most = min(text_bytes, tokens.text_bytes) if checkpoint.family.counts else text_bytes
    text = read_text(tokens, checkpoint.reader, seed=checkpoint.seed, text_bytes=most)
    checkpoint.family.fit(model, text, checkpoint.reader, checkpoint.pretrain, seed=checkpoint.seed, report=report)
    parts = parameters_by_part(model)
    facts: dict[str, float | None] = {"text_bytes": text.text_bytes, "passes": text.passes, "tokens": text.tokens, "steps": None,
             "body_parameters": parts["body"], "total_parameters": parts["total"], "train_flops": None, "real_token_share": None}  # fmt: skip
    if all(bool(torch.isfinite(p).all()) for p in model.parameters()):
        return Outcome(model, Curve(), facts)
    return Outcome(model, Curve(), facts, "failed", "the vectors are not finite; lower the rate")


def adopted(model: Encoder) -> Outcome:
    """A public model as it came. What was spent on it nobody here knows: it is large as it is, and not matched."""
    parts, unknown = parameters_by_part(model), ("text_bytes", "passes", "tokens", "steps", "train_flops", "real_token_share")
    sizes = {"body_parameters": parts["body"], "total_parameters": parts["total"]}
    return Outcome(model, Curve(), {**dict.fromkeys(unknown), **sizes})


def as_measured(settings: Any) -> Any:
    """The block `pretrain` for held text: whatever a variant learns from, it is asked about the masks of Devlin et al. 2019, section 3.1, so that
    losses compare. Short sequences are off, since all or none of a few held documents would be such; second segments stay the variant's own.
    """
    asked = {"mask_share": 0.15, "become": (0.8, 0.1), "whole_word": False, "most_masked": None, "short_share": 0.0}
    return replace(settings, **{name: value for name, value in asked.items() if hasattr(settings, name)})


def trained(run: Run, checkpoint: Checkpoint, parts: Sequence[Part], course: Course, conditions: Conditions, *, corpus_bytes: int) -> Outcome:
    """Train along a course, and say what was spent. A training that fails for good is an outcome too."""
    model, objective = run.model, checkpoint.family.objective
    assert isinstance(model, Encoder) and objective is not None
    starts, flops = [0.0, *(part.end for part in parts)], 0.0
    status, reason, curve = "ok", "", Curve()
    try:
        flops = sum((part.end - start) * _flops(checkpoint, part.stream, model) for start, part in zip(starts, parts, strict=False))
        train_language_model(run, objective, parts, course, conditions, curve)
    except CellError as error:
        status, reason = "failed", str(error)
    roles, spent = parameters_by_part(model), run.spent
    facts: dict[str, float | None] = {
        "text_bytes": spent.text_bytes,
        "passes": spent.text_bytes / max(corpus_bytes, 1),
        "tokens": spent.tokens,
        "steps": spent.steps,
        "body_parameters": roles["body"],
        "total_parameters": roles["total"],
        "train_flops": round(flops * spent.tokens),
        "real_token_share": spent.tokens / max(spent.slots, 1),
    }
    return Outcome(model, curve, facts, status, reason)


def _flops(checkpoint: Checkpoint, stream: Stream, model: Encoder) -> float:
    """Operations a real token, from the first batch."""
    _, _, batch = next(batches(stream))
    device = next(model.parameters()).device
    with Draws(0).on(device):
        return train_flops(model, checkpoint.family, batch.to(device)) / batch.tokens
