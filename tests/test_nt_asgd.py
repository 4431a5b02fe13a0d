"""NT-ASGD starts averaging by its rule, and validates and keeps the averaged weights.

A training that was interrupted resumes exactly.
"""

import itertools
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest.mock import MagicMock

import numpy as np
import pytest
import torch

from lineage.config.records import parse_record
from lineage.errors import InputError
from lineage.training import train_run
from lineage.training.best_weights import BestWeights
from lineage.training.objectives import LossSums
from lineage.training.optimizers import (
    AveragedSGD,
    is_averaging,
    set_learning_rates,
    swap_averaged_weights,
)
from lineage.training.settings import NonMonotonicTrigger
from lineage.training.state import TrainState
from tests.helpers import tiny
from tests.helpers.trainings import build_averaged_run, train_to_4000_bytes

TRIGGER = NonMonotonicTrigger(checks=20, patience=5)


def released_code_trigger(losses: list[float]) -> int | None:
    """Return the check at which salesforce/awd-lstm-lm (main.py) switches to ASGD, in its code."""
    best_val_loss: list[float] = []
    for number, val_loss in enumerate(losses):
        if len(best_val_loss) > 5 and val_loss > min(best_val_loss[:-5]):
            return number
        best_val_loss.append(val_loss)
    return None


@pytest.mark.parametrize(
    ("losses", "expected"),
    [
        ([9, 8, 7, 6, 5, 4, 3, 2, 1], None),
        ([5, 6, 6, 6, 6, 6, 6], 6),  # it needs more than five earlier checks
        ([5, 6, 6, 6, 6, 5, 5, 5, 5], None),  # equal to the best is not worse
        ([5, 4, 3, 4, 4, 4, 4, 4, 4], 8),  # only then is the 3 more than five checks old
        # The loss must be worse than one from before the last five checks.
        ([9, 8, 7, 6, 5, 4, 7.5, 7.5, 7.5], 8),
    ],
)
def test_the_trigger_matches_the_released_code(losses: list[float], expected: int | None) -> None:
    assert released_code_trigger(losses) == expected
    triggered = [TRIGGER.is_triggered(losses[: number + 1]) for number in range(len(losses))]
    assert (triggered.index(True) if True in triggered else None) == expected


def test_the_trigger_matches_the_released_code_on_random_curves() -> None:
    for seed in range(300):
        losses = [
            float(value)
            for value in np.random.default_rng(seed).integers(0, 12, 14) - np.arange(14)
        ]
        triggered = [TRIGGER.is_triggered(losses[: number + 1]) for number in range(len(losses))]
        assert (triggered.index(True) if True in triggered else None) == released_code_trigger(
            losses
        )


def test_weights_and_their_average_match_torch_asgd() -> None:
    """SGD for five steps, then ASGD with t0 = 0 and lambd = 0, on the same gradients."""
    generator = torch.Generator().manual_seed(1)
    actual, expected = (
        torch.nn.Parameter(torch.randn(7, 5, generator=generator.manual_seed(1))) for _ in range(2)
    )
    optimizer = AveragedSGD(
        [{"params": [actual], "weight_decay": 0.01, "lr_scale": 1.0}],
        NonMonotonicTrigger(checks=9, patience=1),
    )
    set_learning_rates(optimizer, 0.3)
    reference: torch.optim.Optimizer = torch.optim.SGD([expected], lr=0.3, weight_decay=0.01)
    for step in range(14):
        if step == 5:
            optimizer.update_trigger([1.0, 1.0, 2.0])
            reference = torch.optim.ASGD([expected], lr=0.3, t0=0, lambd=0.0, weight_decay=0.01)
        actual.grad = torch.randn(7, 5, generator=generator)
        expected.grad = actual.grad.clone()
        optimizer.step()
        reference.step()
        torch.testing.assert_close(actual, expected, atol=1e-6, rtol=0)
        if step >= 5:
            torch.testing.assert_close(
                optimizer.state[actual]["average"],
                reference.state[expected]["ax"],
                atol=1e-6,
                rtol=0,
            )
    before = actual.detach().clone()
    swap_averaged_weights(optimizer)
    torch.testing.assert_close(actual.detach(), reference.state[expected]["ax"], atol=1e-6, rtol=0)
    swap_averaged_weights(optimizer)
    assert torch.equal(actual, before), "a second swap restores the weights"


def weights_vector(train_state: TrainState) -> torch.Tensor:
    return torch.nn.utils.parameters_to_vector(train_state.model.parameters()).detach().clone()


def test_the_averaged_weights_are_validated_and_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With these losses, a trigger with a patience of two holds at the fifth check."""
    losses = iter([5.0, 3.0, 4.0, 4.0, 4.0, *[9.0] * 20])
    validated, weights_by_step, averaging_start = [], [], []
    train_state, sampler, validation_sampler = build_averaged_run(
        NonMonotonicTrigger(checks=10, patience=2)
    )

    def validate(model: torch.nn.Module, *_: object, **__: object) -> LossSums:
        validated.append((len(weights_by_step), weights_vector(train_state)))
        return LossSums({"forward": next(losses)}, {"forward": 1}, 1)

    def after_step() -> None:
        weights_by_step.append(weights_vector(train_state))
        if is_averaging(train_state.optimizer) and not averaging_start:
            averaging_start.append((len(weights_by_step), len(validated)))

    monkeypatch.setattr(train_run, "validate", validate)
    curve = train_to_4000_bytes(train_state, sampler, validation_sampler, tmp_path, after_step)
    ((first_step, checks),) = averaging_start
    assert checks == 5, "averaging starts at the fifth check"
    averages = [
        torch.stack(weights_by_step[first_step + 1 : end]).mean(0)
        for end in range(first_step + 2, len(weights_by_step) + 1)
    ]
    torch.testing.assert_close(weights_vector(train_state), averages[-1], atol=1e-6, rtol=1e-5)
    assert not torch.allclose(weights_vector(train_state), weights_by_step[-1], atol=1e-4)
    # Validation runs before the progress report of its step.
    for steps, validated_weights in validated[:5]:
        assert steps == 0 or not torch.equal(validated_weights, weights_by_step[steps - 1])
    for steps, validated_weights in validated[6:-1]:
        assert not torch.allclose(validated_weights, weights_by_step[steps], atol=1e-5), (
            "the validated weights are not the latest ones"
        )
        torch.testing.assert_close(
            validated_weights, averages[steps - first_step - 1], atol=1e-6, rtol=1e-5
        )
    is_averaged = [point.weights_averaged for point in curve.points if point.validation]
    assert is_averaged == [False] * 5 + [True] * (len(is_averaged) - 5) and len(is_averaged) == 10


def test_the_best_weights_are_averaged_ones_if_these_were_validated(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Averaging begins at the fifth check, and the seventh has the lowest loss."""
    losses = iter([5.0, 3.0, 4.0, 4.0, 4.0, 4.0, 2.0, *[9.0] * 20])
    validated = []
    train_state, sampler, validation_sampler = build_averaged_run(
        NonMonotonicTrigger(checks=10, patience=2)
    )

    def validate(model: torch.nn.Module, *_: object, **__: object) -> LossSums:
        validated.append(weights_vector(train_state))
        return LossSums({"forward": next(losses)}, {"forward": 1}, 1)

    monkeypatch.setattr(train_run, "validate", validate)
    best = BestWeights(train_state.model, math.inf, patience=None)
    curve = train_to_4000_bytes(train_state, sampler, validation_sampler, tmp_path, best=best)
    points = [point for point in curve.points if point.validation]
    assert points[6].weights_averaged and not points[4].weights_averaged
    assert torch.equal(weights_vector(train_state), validated[6])


def test_an_interrupted_training_resumes_exactly_before_and_after_averaging_begins(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The validation loss is the norm of the weights, which grows and triggers averaging."""

    def weight_norm(model: torch.nn.Module, *_: object, **__: object) -> LossSums:
        norm = sum(float(parameter.detach().norm()) for parameter in model.parameters())
        return LossSums({"forward": norm}, {"forward": 1}, 1)

    monkeypatch.setattr(train_run, "validate", weight_norm)
    trigger = NonMonotonicTrigger(checks=12, patience=1)
    uninterrupted, sampler, validation_sampler = build_averaged_run(trigger)
    curve = train_to_4000_bytes(uninterrupted, sampler, validation_sampler, tmp_path / "whole")
    num_steps = uninterrupted.counters.steps
    averaged_steps = [point.step for point in curve.points if point.weights_averaged]
    assert num_steps > 30 and is_averaging(uninterrupted.optimizer)
    assert 4 < averaged_steps[0] < 30, "the interruptions are before and after averaging begins"

    for stop_step in (4, 13, 30):
        calls = itertools.count(1)

        def kill(calls: Iterator[int] = calls, stop_step: int = stop_step) -> None:
            if next(calls) == stop_step:
                raise KeyboardInterrupt

        interrupted, sampler, validation_sampler = build_averaged_run(trigger)
        with pytest.raises(KeyboardInterrupt):
            train_to_4000_bytes(
                interrupted, sampler, validation_sampler, tmp_path / str(stop_step), kill
            )
        resumed_state, sampler, validation_sampler = build_averaged_run(trigger)
        resumed_curve = train_to_4000_bytes(
            resumed_state, sampler, validation_sampler, tmp_path / str(stop_step)
        )
        assert torch.equal(weights_vector(resumed_state), weights_vector(uninterrupted)), stop_step
        assert resumed_state.counters == uninterrupted.counters, stop_step
        assert resumed_curve.points == curve.points, stop_step


def test_too_few_checks_and_a_decreasing_learning_rate_are_refused() -> None:
    with pytest.raises(InputError, match="6 checks are too few for a patience of 5"):
        parse_record(
            NonMonotonicTrigger,
            {"checks": 6, "patience": 5},
            "params.yaml: models.ulmfit.pretrain.nt_asgd",
        )
    with pytest.raises(
        InputError,
        match=r"models.ulmfit.pretrain: nt_asgd .* schedule is linear; set it to constant",
    ):
        tiny.model_config("ulmfit", pretrain={"nt_asgd": {"checks": 40, "patience": 5}})
    assert tiny.model_config(
        "ulmfit", pretrain={"nt_asgd": {"checks": 40, "patience": 5}, "schedule": "constant"}
    ).pretrain.nt_asgd == NonMonotonicTrigger(40, 5)


def test_nt_asgd_decides_on_averaging_by_all_validation_text(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    batch_limits = []

    def count_batches(*_: Any, max_batches: int, **__: Any) -> LossSums:
        batch_limits.append(max_batches)
        return LossSums({"forward": 1.0}, {"forward": 1}, 1)

    monkeypatch.setattr(train_run, "validate", count_batches)
    state, sampler, validation_sampler = build_averaged_run(
        NonMonotonicTrigger(checks=4, patience=1)
    )
    train_to_4000_bytes(state, sampler, validation_sampler, tmp_path)
    assert len(batch_limits) == 4
    assert min(batch_limits) >= validation_sampler.set_epoch(0) > train_run.VALIDATION_BATCHES


@pytest.mark.slow
def test_a_resumed_training_logs_its_whole_curve_again(tmp_path: Path) -> None:
    """Its run in MLflow may be a new one, for example after a commit in between."""
    trackers = [MagicMock(), MagicMock()]
    (tmp_path / "resume").mkdir()

    def stop() -> None:
        if len(trackers[0].log_metrics.mock_calls) == 5:
            raise KeyboardInterrupt

    state, *samplers = build_averaged_run(NonMonotonicTrigger(checks=20, patience=18))
    with pytest.raises(KeyboardInterrupt):
        train_to_4000_bytes(state, *samplers, tmp_path / "resume", stop, trackers[0])
    state, *samplers = build_averaged_run(NonMonotonicTrigger(checks=20, patience=18))
    curve = train_to_4000_bytes(state, *samplers, tmp_path / "resume", tracker=trackers[1])
    first, second = (
        [
            (call.kwargs["step"], call.kwargs["text_bytes"], call.args[0])
            for call in tracker.log_metrics.mock_calls
        ]
        for tracker in trackers
    )
    assert [step for step, *_ in second] == [point.step for point in curve.points]
    assert len(second) > 5
    assert first[:4] == second[:4] and 0 < second[0][1] < second[-1][1]
