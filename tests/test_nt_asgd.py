"""NT-ASGD: averaging begins when the rule says so, what is validated and kept is the average, and a killed training remembers it all."""

import itertools
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from unittest.mock import MagicMock

import numpy as np
import pytest
import torch

from lineage.config.records import parse_record
from lineage.errors import InputError
from lineage.training import pretrain
from lineage.training.curve import LearningCurve
from lineage.training.loop import TrainPlan
from lineage.training.objectives import LossSums
from lineage.training.optimizers import (
    AveragedSGD,
    is_averaging,
    set_learning_rates,
    swap_averaged_weights,
)
from lineage.training.pretrain import TrainContext, TrainPhase, train_language_model
from lineage.training.schedules import constant_schedule_with_warmup
from lineage.training.settings import NonMonotonicTrigger
from lineage.training.state import RngState, TrainState
from tests import tiny

RULE = NonMonotonicTrigger(checks=20, patience=5)


def first_trigger(losses: list[float]) -> int | None:
    """The check at which salesforce/awd-lstm-lm (main.py) goes over to ASGD, in its own words."""
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
        ([5, 6, 6, 6, 6, 6, 6], 6),  # not before there are more than five earlier ones
        ([5, 6, 6, 6, 6, 5, 5, 5, 5], None),  # as good as the best is not worse
        ([5, 4, 3, 4, 4, 4, 4, 4, 4], 8),  # 3 is old enough only then
        (
            [9, 8, 7, 6, 5, 4, 7.5, 7.5, 7.5],
            8,
        ),  # worse than the five before is not enough: it must be worse than an older one
    ],
)
def test_the_rule_is_the_one_of_the_released_code(
    losses: list[float], expected: int | None
) -> None:
    assert first_trigger(losses) == expected
    held = [RULE.is_triggered(losses[: n + 1]) for n in range(len(losses))]
    assert (held.index(True) if True in held else None) == expected


def test_the_rule_agrees_with_the_released_code_on_many_curves() -> None:
    for seed in range(300):
        losses = [float(v) for v in np.random.default_rng(seed).integers(0, 12, 14) - np.arange(14)]
        held = [RULE.is_triggered(losses[: n + 1]) for n in range(len(losses))]
        assert (held.index(True) if True in held else None) == first_trigger(losses)


def test_weights_and_their_mean_are_those_of_torch_s_asgd() -> None:
    """SGD for five steps, then ASGD with t0 = 0 and lambd = 0, on the same gradients."""
    start = torch.Generator().manual_seed(1)
    ours, theirs = (
        torch.nn.Parameter(torch.randn(7, 5, generator=start.manual_seed(1))) for _ in range(2)
    )
    optimizer = AveragedSGD(
        [{"params": [ours], "weight_decay": 0.01, "lr_scale": 1.0}],
        NonMonotonicTrigger(checks=9, patience=1),
    )
    set_learning_rates(optimizer, 0.3)
    reference: torch.optim.Optimizer = torch.optim.SGD([theirs], lr=0.3, weight_decay=0.01)
    for step in range(14):
        if step == 5:
            optimizer.update_trigger([1.0, 1.0, 2.0])
            reference = torch.optim.ASGD([theirs], lr=0.3, t0=0, lambd=0.0, weight_decay=0.01)
        ours.grad = torch.randn(7, 5, generator=start)
        theirs.grad = ours.grad.clone()
        optimizer.step()
        reference.step()
        torch.testing.assert_close(ours, theirs, atol=1e-6, rtol=0)
        if step >= 5:
            torch.testing.assert_close(
                optimizer.state[ours]["average"], reference.state[theirs]["ax"], atol=1e-6, rtol=0
            )
    before = ours.detach().clone()
    swap_averaged_weights(optimizer)
    torch.testing.assert_close(ours.detach(), reference.state[theirs]["ax"], atol=1e-6, rtol=0)
    swap_averaged_weights(optimizer)
    assert torch.equal(ours, before), "a second exchange leaves no trace"


def averaged_run(rule: NonMonotonicTrigger) -> tuple[TrainState, Any, Any]:
    """A tiny AWD-LSTM with dropout under SGD, its stream and a held one."""
    found = tiny.variant("ulmfit", architecture=tiny.dropping("ulmfit", 0.1))
    assert found.family.batch_sampler is not None
    streams = [
        found.family.batch_sampler(
            tiny.tokens("ulmfit"), tiny.reader("ulmfit"), found.pretrain, seed=seed
        )
        for seed in (1, 0)
    ]
    model = tiny.model("ulmfit", architecture=tiny.dropping("ulmfit", 0.1))
    return TrainState(
        model,
        AveragedSGD(
            [{"params": [*model.parameters()], "weight_decay": 1.2e-6, "lr_scale": 1.0}], rule
        ),
        RngState(1),
    ), *streams


def trained(
    run: TrainState,
    stream: Any,
    held: Any,
    resume: Path,
    each: Callable[[], None] = lambda: None,
    tracker: Any = None,
) -> LearningCurve:
    """To 4,000 bytes at a constant rate, with a resume point after every step; `each` is called after every step."""
    objective, curve = tiny.variant("ulmfit").family.objective, LearningCurve()
    assert objective is not None
    course = TrainPlan(
        lambda spent: spent.text_bytes / 4000,
        constant_schedule_with_warmup(0.0),
        learning_rate=2.0,
        max_grad_norm=0.25,
        precision="fp32",
    )
    conditions = TrainContext(
        tiny.CPU,
        tracker or MagicMock(),
        resume,
        checkpoint_seconds=0.0,
        report_progress=lambda *_: each(),
    )
    train_language_model(run, objective, [TrainPhase(stream, held)], course, conditions, curve)
    return curve


def vector(run: TrainState) -> torch.Tensor:
    return torch.nn.utils.parameters_to_vector(run.model.parameters()).detach().clone()


def test_what_is_validated_and_what_is_kept_is_the_mean_of_the_weights(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Losses by hand: the rule with a patience of two holds at the fifth check."""
    losses, seen, weights, started = iter([5.0, 3.0, 4.0, 4.0, 4.0, *[9.0] * 20]), [], [], []
    run, stream, held = averaged_run(NonMonotonicTrigger(checks=10, patience=2))

    def validate(model: torch.nn.Module, *_: object, **__: object) -> LossSums:
        seen.append((len(weights), vector(run)))
        return LossSums({"forward": next(losses)}, {"forward": 1}, 1)

    def after_a_step() -> None:
        weights.append(vector(run))
        if is_averaging(run.optimizer) and not started:
            started.append((len(weights), len(seen)))

    monkeypatch.setattr(pretrain, "validate", validate)
    curve = trained(run, stream, held, tmp_path, after_a_step)
    ((begun, checks),) = started
    assert checks == 5, "neither sooner nor later"
    means = [
        torch.stack(weights[begun + 1 : end]).mean(0) for end in range(begun + 2, len(weights) + 1)
    ]
    torch.testing.assert_close(vector(run), means[-1], atol=1e-6, rtol=1e-5)
    assert not torch.allclose(vector(run), weights[-1], atol=1e-4), "else this shows nothing"
    for steps, found in seen[:5]:  # validation comes before the report of its step
        assert steps == 0 or not torch.equal(found, weights[steps - 1])
    for steps, found in seen[6:-1]:
        assert not torch.allclose(found, weights[steps], atol=1e-5), "not the last weights"
        torch.testing.assert_close(found, means[steps - begun - 1], atol=1e-6, rtol=1e-5)
    marked = [point.weights_averaged for point in curve.points if point.validation]
    assert marked == [False] * 5 + [True] * (len(marked) - 5) and len(marked) == 10


def test_a_killed_training_goes_on_to_the_same_bytes_before_and_after_the_averaging_begins(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The validation loss is here the size of the weights, which grows, so that the rule holds at the third check."""

    def size(model: torch.nn.Module, *_: object, **__: object) -> LossSums:
        size = sum(float(p.detach().norm()) for p in model.parameters())
        return LossSums({"forward": size}, {"forward": 1}, 1)

    monkeypatch.setattr(pretrain, "validate", size)
    rule = NonMonotonicTrigger(checks=12, patience=1)
    whole, stream, held = averaged_run(rule)
    curve = trained(whole, stream, held, tmp_path / "whole")
    steps = whole.counters.steps
    marked = [point.step for point in curve.points if point.weights_averaged]
    assert steps > 30 and is_averaging(whole.optimizer) and 4 < marked[0] < 30, (
        "else this shows nothing"
    )

    for stop in (4, 13, 30):
        calls = itertools.count(1)

        def kill(calls: Iterator[int] = calls, stop: int = stop) -> None:
            if next(calls) == stop:
                raise KeyboardInterrupt

        killed, stream, held = averaged_run(rule)
        with pytest.raises(KeyboardInterrupt):
            trained(killed, stream, held, tmp_path / str(stop), kill)
        again, stream, held = averaged_run(rule)
        resumed = trained(again, stream, held, tmp_path / str(stop))
        assert torch.equal(vector(again), vector(whole)) and again.counters == whole.counters, stop
        assert resumed.points == curve.points, stop


def test_a_rule_that_could_never_hold_or_a_rate_that_falls_is_refused() -> None:
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
        tiny.variant("ulmfit", pretrain={"nt_asgd": {"checks": 40, "patience": 5}})
    assert tiny.variant(
        "ulmfit", pretrain={"nt_asgd": {"checks": 40, "patience": 5}, "schedule": "constant"}
    ).pretrain.nt_asgd == NonMonotonicTrigger(40, 5)
