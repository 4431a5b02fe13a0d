"""Train a language model to the end of a plan: validate, record the curve, resume after a kill."""

import contextlib
import math
import shutil
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import zip_longest
from pathlib import Path

import torch

from lineage.artifacts import create_artifact, is_intact
from lineage.errors import EvaluationError
from lineage.networks.base import Objective
from lineage.networks.batch import BatchSampler
from lineage.runtime.recorder import Tracker
from lineage.runtime.rehearsal import end_early, rehearsal_limit
from lineage.training.best_weights import BestWeights
from lineage.training.curve import CurvePoint, LearningCurve
from lineage.training.intermediate import IntermediateCheckpoints
from lineage.training.loop import StepOutput, TrainPlan, train, validate
from lineage.training.objectives import compute_lm_metrics
from lineage.training.optimizers import AveragedSGD, is_averaging, swap_averaged_weights
from lineage.training.state import TrainState, read_counters
from lineage.work import Stopwatch, WorkLog

RESUME_POINT = "resume_point"  # the kind of artifact
NUM_LOG_POINTS = 200  # points of the loss curve, about
NUM_VALIDATIONS = 10
VALIDATION_BATCHES = 10  # of a validation that decides nothing
# The names of work: how many validations of each sort there are.
SHORT_VALIDATIONS = "short validations"
ALL_TEXT_VALIDATIONS = "validations of all text"
ALL_BATCHES = 1_000_000  # more than any held-out text has


@dataclass(frozen=True)
class TrainContext:
    """The environment of a training run. It does not change the result."""

    device: torch.device
    tracker: Tracker
    checkpoint_dir: Path  # resume points of these inputs alone
    checkpoint_seconds: float
    report_progress: Callable[[float, str], None]
    work: WorkLog = field(default_factory=WorkLog)


@dataclass(frozen=True)
class TrainPhase:
    """A part of a training run: its batches, those of held-out text, and its end."""

    train_sampler: BatchSampler
    validation_sampler: BatchSampler
    end_progress: float = 1.0
    continues: bool = False  # it goes on in the text where the part before it has ended


@dataclass
class TrainRun:
    """A training of a language model, which fills `curve` and can be resumed.

    With `best` it ends when validation no longer improves in its last phase, and the best weights
    of that phase are restored. With `intermediate` it writes intermediate checkpoints.
    """

    state: TrainState
    objective: Objective
    phases: Sequence[TrainPhase]
    plan: TrainPlan
    context: TrainContext
    curve: LearningCurve = field(default_factory=LearningCurve)
    best: BestWeights | None = None
    intermediate: IntermediateCheckpoints | None = None

    def run(self) -> None:
        """Train to the end of the plan, from the newest resume point if there is one.

        Averaged weights remain at the end. A training that gets SIGTERM saves a resume point first.
        Raises EvaluationError if a loss is not finite.
        """
        self._load_resume_point()
        self.plan = replace(self.plan, progress=end_early(self.plan.progress))
        self.context.work.add(self._validations_part, self._num_validations, 0.0)
        if self.intermediate is not None:
            self.intermediate.reached = self.plan.progress(self.state.counters)
        with _delay_sigterm() as stop_requested:
            self._train(stop_requested)
        swap_averaged_weights(self.state.optimizer)
        if self.best is not None:
            self.best.restore()

    def _load_resume_point(self) -> None:
        newest = self._find_resume_point()
        if newest is None:
            return
        self.state.load(newest / "run")
        self.curve.load(newest)
        if self.best is not None:
            self.best.load(newest)
        for point in self.curve.points:
            # MLflow's run may be another one, for example after a commit in between. Points are
            # not logged twice.
            self._log_point(point)

    def _find_resume_point(self) -> Path | None:
        """Return the newest intact resume point, with the intermediate checkpoints before it."""
        for folder in reversed(self._list_resume_points()):
            if is_intact(folder, RESUME_POINT):
                progress = self.plan.progress(read_counters(folder / "run"))
                if self.intermediate is None or self.intermediate.has_all_until(progress):
                    return folder
            print(
                f"{folder}: this resume point is damaged, so it is deleted, and the training goes "
                "on from an older one or from the start",
                file=sys.stderr,
            )
            shutil.rmtree(folder)
        return None

    def _list_resume_points(self) -> list[Path]:
        return sorted(
            self.context.checkpoint_dir.glob("step-*"),
            key=lambda folder: int(folder.name.removeprefix("step-")),
        )

    def _train(self, stop_requested: Callable[[], bool]) -> None:
        stopwatch = Stopwatch()
        start_tokens = self.state.counters.tokens
        last_saved = time.monotonic()
        for phase, step in self._iterate_steps():
            point = self._record_point(step, phase)
            if point is not None:
                self._log_point(point)
                # Another phase has validations of another length, whose losses are not comparable.
                if phase is self.phases[-1] and self._update_best(point):
                    break
            if self.intermediate is not None:
                self.intermediate.update(self.state, step.progress)
            num_tokens = step.counters.tokens - start_tokens
            tokens_per_second = num_tokens / max(stopwatch.elapsed_seconds, 1e-9)
            self.context.report_progress(
                step.progress, f"{_format_metrics(self.curve)} {tokens_per_second:,.0f} tokens/s"
            )
            is_stopping = stop_requested()
            is_due = is_stopping or time.monotonic() - last_saved >= self.context.checkpoint_seconds
            # No resume point after the last step of a phase: the counters could belong to either
            # phase.
            if is_due and step.progress < phase.end_progress:
                self._save_resume_point(stopwatch)
                if is_stopping:
                    sys.exit(128 + signal.SIGTERM)  # as in a stage outside of training
                last_saved = time.monotonic()

    def _iterate_steps(self) -> Iterator[tuple[TrainPhase, StepOutput]]:
        for phase, following in zip_longest(self.phases, self.phases[1:]):
            if self.plan.progress(self.state.counters) >= phase.end_progress:
                continue
            phase_plan = replace(self.plan, end_progress=phase.end_progress)
            steps = train(self.state, self.objective, phase.train_sampler, phase_plan)
            for step in self._measure_steps(steps):
                yield phase, step
            if following is None or not following.continues:
                self.state.epoch = 0
                self.state.batch_index = 0

    @property
    def _averaging(self) -> AveragedSGD | None:
        optimizer = self.state.optimizer
        return optimizer if isinstance(optimizer, AveragedSGD) else None

    @property
    def _num_validations(self) -> int:
        """The validations of a training that does not end early."""
        return self._averaging.trigger.checks if self._averaging else NUM_VALIDATIONS

    @property
    def _validations_part(self) -> str:
        """The text that a validation reads: all of it, if it decides something."""
        decides = self._averaging is not None or self.best is not None
        return ALL_TEXT_VALIDATIONS if decides else SHORT_VALIDATIONS

    def _measure_steps(self, steps: Iterator[StepOutput]) -> Iterator[StepOutput]:
        """Yield the steps of a phase. In a rehearsal, log how long they take."""
        if rehearsal_limit() is None:
            yield from steps
            return
        work: list[tuple[int, float]] = []  # bytes and seconds of each step
        text_bytes = self.state.counters.text_bytes
        stopwatch = Stopwatch()
        for step in steps:
            work.append((step.counters.text_bytes - text_bytes, stopwatch.seconds))
            text_bytes = step.counters.text_bytes
            yield step
            stopwatch = Stopwatch()
        for part in (work[:1], work[1:]):
            if part:
                counts, seconds = zip(*part, strict=True)
                self.context.work.add("training", sum(counts), sum(seconds))
        self.context.work.add("steps", len(work), 0.0)

    def _record_point(self, step: StepOutput, phase: TrainPhase) -> CurvePoint | None:
        """Add a point, with a validation, where they are due, and return it; None if none is due.

        This depends on progress alone.
        """
        curve = self.curve
        curve.pending_losses.append(step.loss)
        previous_progress = curve.points[-1].progress if curve.points else 0.0

        def is_due(count: int) -> bool:
            return math.floor(step.progress * count) > math.floor(previous_progress * count)

        averaging = self._averaging
        is_validation_due = is_due(self._num_validations)
        if not is_validation_due and not is_due(NUM_LOG_POINTS) and step.progress < 1:
            return None
        self.state.run_finite_checks()
        losses = curve.pending_loss_values()
        point = CurvePoint(
            step.step,
            step.progress,
            step.counters.text_bytes,
            sum(losses) / len(losses),
            step.learning_rate,
        )
        if is_validation_due:
            is_short = self._validations_part == SHORT_VALIDATIONS
            validation = self._validate(
                phase.validation_sampler, VALIDATION_BATCHES if is_short else ALL_BATCHES
            )
            point = replace(
                point, weights_averaged=is_averaging(self.state.optimizer), validation=validation
            )
        curve.points.append(point)
        curve.pending_losses = []
        if is_validation_due and averaging:
            averaging.update_trigger(curve.validation_losses())
        return point

    def _validate(self, sampler: BatchSampler, max_batches: int) -> dict[str, float]:
        """Validate the averaged weights if there are any, else the weights.

        Raises EvaluationError if a metric is not finite.
        """
        state = self.state
        stopwatch = Stopwatch()
        swap_averaged_weights(state.optimizer)
        sums = validate(
            state.model,
            self.objective,
            sampler,
            max_batches=max_batches,
            precision=self.plan.precision,
        )
        swap_averaged_weights(state.optimizer)
        self.context.work.add("validation", sums.text_bytes, stopwatch.seconds)
        metrics = compute_lm_metrics(sums)
        if not all(math.isfinite(value) for value in metrics.values()):
            raise EvaluationError(
                f"validation is not finite at step {state.counters.steps}: {metrics}; "
                "lower the learning rate"
            )
        return metrics

    def _update_best(self, point: CurvePoint) -> bool:
        """Keep the weights if they are the best so far, and return whether training is over."""
        if self.best is None or not point.validation:
            return False
        swap_averaged_weights(self.state.optimizer)
        self.best.update(point.validation_loss)
        swap_averaged_weights(self.state.optimizer)
        return self.best.is_over

    def _log_point(self, point: CurvePoint) -> None:
        self.context.tracker.log_metrics(
            point.metrics(), step=point.step, text_bytes=point.text_bytes
        )

    def _save_resume_point(self, stopwatch: Stopwatch) -> None:
        """Save a resume point, and keep the one before it, in case the new one is damaged."""
        older = self._list_resume_points()
        folder = self.context.checkpoint_dir / f"step-{self.state.counters.steps}"
        with create_artifact(folder, RESUME_POINT) as draft:
            self.state.save(draft / "run")
            self.curve.save(draft, stopwatch)
            if self.best is not None:
                self.best.save(draft)
        for folder in older[:-1]:
            shutil.rmtree(folder)


@contextlib.contextmanager
def _delay_sigterm() -> Iterator[Callable[[], bool]]:
    """Delay SIGTERM to the end of the block; yield a function that tells whether it has come."""
    if threading.current_thread() is not threading.main_thread():  # others get no signals
        yield lambda: False
        return
    has_come = threading.Event()
    handler = signal.signal(signal.SIGTERM, lambda *_: has_come.set())
    try:
        yield has_come.is_set
    finally:
        signal.signal(signal.SIGTERM, handler)
    if has_come.is_set():
        signal.raise_signal(signal.SIGTERM)


def _format_metrics(curve: LearningCurve) -> str:
    """Show the last point's loss and the last validation."""
    metrics = {}
    if curve.points:
        metrics["loss"] = curve.points[-1].loss
    validations = (point.validation for point in reversed(curve.points) if point.validation)
    metrics |= next(validations, {})
    return " ".join(f"{name} {value:.3f}" for name, value in metrics.items())
