"""The loop: exact after a kill, undisturbed by validation, stopped by a loss that is not finite, and on schedule."""

import contextlib
import dataclasses
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from lineage.artifacts import file_digest
from lineage.errors import EvaluationError
from lineage.models.base import LossOutput
from lineage.training import state as state_module
from lineage.training.budget import TrainCounters
from lineage.training.loop import StepOutput, TrainPlan, train, validate
from lineage.training.optimizers import (
    BertAdam,
    build_adamw,
    build_param_groups,
    set_learning_rates,
)
from lineage.training.schedules import linear_schedule_with_warmup, slanted_triangular_schedule
from lineage.training.state import RngState, TrainState
from tests import tiny

ROOT = Path(__file__).parent.parent


def process(name: str, resume: Path, out: Path, text_bytes: int) -> "subprocess.Popen[str]":
    """A training that prints a line a step."""
    return subprocess.Popen(
        [
            sys.executable,
            "-m",
            "tests.killed_training",
            name,
            str(resume),
            str(out),
            str(text_bytes),
        ],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


def steps_of(resume: Path) -> int:
    """The step of the newest resume point, 0 where there is none."""
    return max((int(p.name[5:]) for p in resume.glob("step-*")), default=0)


@pytest.mark.parametrize(
    "name",
    [
        "gpt",
        *tiny.slow(
            (*sorted({*tiny.TRAINED} - {"gpt"}), "elmo_sparse", "masked_lstm", "joined_transformer")
        ),
    ],
)
def test_a_training_that_is_killed_twice_ends_in_the_same_bytes(name: str, tmp_path: Path) -> None:
    text_bytes = (
        30_000 if name == "gpt" else 60_000
    )  # of gpt some 280 steps, of which the kills need 80 where steps are fast
    whole = process(name, tmp_path / "none", tmp_path / "whole", text_bytes)
    whole.communicate(timeout=240)
    assert whole.returncode == 0
    resume, lost = tmp_path / "resume", 0
    for wait in (5, 9):
        running, since = process(name, resume, tmp_path / "killed", text_bytes), 0
        first = steps_of(resume)
        assert running.stdout is not None
        for _ in running.stdout:
            since = since + 1 if steps_of(resume) > first else 0
            if since >= wait:  # so many steps after a resume point
                break
        os.killpg(running.pid, signal.SIGKILL)
        running.wait()
        assert running.returncode == -signal.SIGKILL, "it ended before it could be killed"
        lost += since
    last = process(name, resume, tmp_path / "killed", text_bytes)
    redone, _ = last.communicate(timeout=240)
    assert last.returncode == 0 and lost >= 2 and len(redone.splitlines()) > 0
    for file in ("model.safetensors", "config.json", "tokenizer.json"):
        assert file_digest(tmp_path / "whole" / file) == file_digest(tmp_path / "killed" / file)
    assert file_digest(tmp_path / "whole" / "curve.parquet") == file_digest(
        tmp_path / "killed" / "curve.parquet"
    )


def run_of(name: str, **over: dict[str, object]) -> tuple[TrainState, object]:
    """A tiny run with dropout, and its stream."""
    found = tiny.variant(name, **over)
    model = tiny.model(name, **over)
    stream = found.family.batch_sampler(
        tiny.tokens(name), tiny.reader(name), found.pretrain, seed=1
    )
    return TrainState(
        model,
        build_adamw(build_param_groups([[*model.parameters()]], weight_decay=0.01)),
        RngState(1),
    ), stream


def course(text_bytes: int, **over: Any) -> TrainPlan:
    """To a budget."""
    plain = TrainPlan(
        progress=lambda spent: spent.text_bytes / text_bytes,
        lr_schedule=linear_schedule_with_warmup(0.1),
        learning_rate=0.003,
        max_grad_norm=1.0,
        precision="fp32",
    )
    return dataclasses.replace(plain, **over)


def steps(
    name: str, run: TrainState, stream: Any, text_bytes: int, **over: Any
) -> list[StepOutput]:
    """All steps to a budget."""
    return [*train(run, tiny.variant(name).family.objective, stream, course(text_bytes, **over))]


@pytest.mark.parametrize("name", [*tiny.TRAINED, *tiny.CELLS])
def test_the_budget_is_met_within_one_batch_and_counted_in_raw_bytes(name: str) -> None:
    run, stream = run_of(name)
    found = steps(name, run, stream, 5000)
    over = found[-1].counters.text_bytes - 5000
    assert 0 <= over < 5000 / len(found) * 4 and found[-1].progress == 1.0


def test_one_pass_of_windows_reads_the_corpus_once() -> None:
    found, tokens = tiny.variant("gpt"), tiny.tokens("gpt")
    stream = found.family.batch_sampler(tokens, tiny.reader("gpt"), found.pretrain, seed=1)
    read = sum(stream.get_batch(i).text_bytes for i in range(stream.set_epoch(0)))
    assert tokens.text_bytes == sum(len(d.encode()) for d in tiny.documents())
    assert 0.995 * tokens.text_bytes < read <= tokens.text_bytes


@pytest.mark.parametrize("name", [*tiny.TRAINED, *tiny.slow(tiny.CELLS)])
def test_validation_disturbs_nothing(name: str) -> None:
    plain_run, stream = run_of(name, architecture=tiny.dropping(name, 0.3))
    plain = steps(name, plain_run, stream, 2000)
    run, stream = run_of(name, architecture=tiny.dropping(name, 0.3))
    family, held = tiny.variant(name).family, run_of(name)[1]
    losses = []
    for step in train(run, family.objective, stream, course(2000)):
        losses.append(step.loss)
        one, two = (
            validate(run.model, family.objective, held, max_batches=3, precision="fp32")
            for _ in range(2)
        )  # type: ignore[arg-type]
        assert one == two
        torch.rand(7)
        assert run.model.training
    assert losses == [step.loss for step in plain] and len(losses) > 2


def test_a_run_without_bias_correction_is_saved_and_loaded_whole(tmp_path: Path) -> None:
    def fresh() -> tuple[TrainState, Any]:
        run, stream = run_of("gpt")
        groups = build_param_groups([[*run.model.parameters()]], weight_decay=0.01)
        return TrainState(
            run.model, BertAdam(groups, betas=(0.9, 0.999), epsilon=1e-6), RngState(3)
        ), stream

    whole, stream = fresh()
    objective = tiny.variant("gpt").family.objective
    assert objective is not None
    for number, _ in enumerate(train(whole, objective, stream, course(4000))):
        if number == 3:
            whole.save(tmp_path / "run")
    again, stream = fresh()
    again.load(tmp_path / "run")
    assert (
        again.counters.steps == 4
        and len([*train(again, objective, stream, course(4000))]) == whole.counters.steps - 4
    )
    for one, other in zip(whole.model.parameters(), again.model.parameters(), strict=True):
        assert torch.equal(one, other)


@pytest.mark.parametrize("tensors", [1, 2, 3])
def test_a_state_of_any_number_of_tensors_a_layer_is_saved_and_loaded_whole(
    tensors: int, tmp_path: Path
) -> None:
    carried = tuple(
        tuple(torch.full((1, 3, 5), 10.0 * layer + own) for own in range(tensors))
        for layer in range(12)
    )  # as numbers 10 follows 9
    run, again = run_of("gpt")[0], run_of("gpt")[0]
    run.recurrent_state = carried
    run.save(tmp_path / "run")
    again.load(tmp_path / "run")
    assert [[float(one[0, 0, 0]) for one in layer] for layer in again.recurrent_state] == [
        [float(one[0, 0, 0]) for one in layer] for layer in carried
    ]


def test_dropout_draws_anew_each_step_and_the_world_is_left_alone() -> None:
    run, stream = run_of("gpt", architecture={"dropout": 0.5})
    before = torch.get_rng_state()
    steps("gpt", run, stream, 2000)
    assert torch.equal(before, torch.get_rng_state())
    states = [run.rng_state.state.clone()]
    with run.rng_state.activate(tiny.CPU):
        torch.rand(1)
    assert not torch.equal(states[0], run.rng_state.state)


def test_accumulated_batches_are_one_larger_batch() -> None:
    one, stream = run_of("gpt", pretrain={"batch_size": 6})
    large = steps("gpt", one, stream, 3000)
    two, stream = run_of("gpt", pretrain={"batch_size": 3})
    small = steps("gpt", two, stream, 3000, grad_accum_steps=2)
    assert len(large) == len(small)
    for a, b in zip(one.model.parameters(), two.model.parameters(), strict=True):
        torch.testing.assert_close(a, b, atol=2e-5, rtol=1e-3)


def test_the_budget_ends_on_a_whole_step_and_a_step_takes_the_rate_of_where_it_begins() -> None:
    run, stream = run_of("gpt")
    found = steps("gpt", run, stream, 3000, grad_accum_steps=7)
    assert found[-1].progress == 1.0 and found[-1].counters == run.counters
    begun = [0.0, *(step.progress for step in found[:-1])]
    assert [step.learning_rate for step in found] == pytest.approx(
        [0.003 * linear_schedule_with_warmup(0.1)(progress) for progress in begun]
    )


def test_a_loss_that_is_not_finite_stops_with_its_step() -> None:
    run, stream = run_of("gpt")

    def bad(model: torch.nn.Module, batch: object, carry: object) -> LossOutput:
        out = tiny.variant("gpt").family.objective(model, batch, carry)
        return dataclasses.replace(
            out, loss=out.loss * (float("nan") if run.counters.steps == 4 else 1.0)
        )

    with pytest.raises(EvaluationError, match="nan after 4 steps"):
        for _ in train(run, bad, stream, course(9000)):
            pass


def test_bf16_trains_near_fp32() -> None:
    results = []
    for precision in ("fp32", "bf16"):
        run, stream = run_of("gpt")
        results.append(
            [s.loss for s in steps("gpt", run, stream, 20_000, precision=precision)][-20:]
        )
    assert results[0] != results[1]
    assert np.mean(results[1]) == pytest.approx(np.mean(results[0]), rel=0.03)


@pytest.mark.parametrize("total", [100, 105, 37])
def test_the_slanted_triangle_has_its_ends_and_its_peak(total: int) -> None:
    """Also where total x cut is not whole: the paper's own denominator would turn negative there."""
    rate = slanted_triangular_schedule(0.1, 32.0)
    values = [rate(t / total) for t in range(total + 1)]
    assert (
        values[0] == pytest.approx(1 / 32)
        and values[-1] == pytest.approx(1 / 32)
        and rate(0.1) == pytest.approx(1.0)
    )
    assert min(values) >= 1 / 32 - 1e-12 and max(values) <= 1.0
    assert rate(0.55) == pytest.approx((1 + 1 / 32) / 2), "a straight line down, to the very end"


def test_warmup_rises_and_falls_to_nothing() -> None:
    rate = linear_schedule_with_warmup(0.25)
    assert [rate(p) for p in (0.0, 0.125, 0.25, 0.625, 1.0)] == pytest.approx(
        [0, 0.5, 1.0, 0.5, 0.0]
    )


def test_layers_have_rates_that_fall_by_the_factor_and_only_matrices_decay() -> None:
    model = tiny.model("bert")
    groups = build_param_groups(model.layer_groups(), weight_decay=0.1, layer_lr_decay=2.6)
    optimizer = build_adamw(groups)
    set_learning_rates(optimizer, 1.0)
    by_depth = {group["depth"]: group["lr"] for group in optimizer.param_groups}
    assert by_depth == {
        0: pytest.approx(1.0),
        1: pytest.approx(1 / 2.6),
        2: pytest.approx(1 / 2.6**2),
    }
    for group in optimizer.param_groups:
        assert all((p.dim() > 1) == (group["weight_decay"] > 0) for p in group["params"])


def test_spending_adds_up() -> None:
    stream = run_of("bert")[1]
    stream.set_epoch(0)  # type: ignore[attr-defined]
    batches = [stream.get_batch(i) for i in range(4)]  # type: ignore[attr-defined]
    spent = TrainCounters()
    for batch in batches:
        spent = spent.add_batch(batch, steps=1)
    assert spent.text_bytes == sum(b.text_bytes for b in batches) and spent.steps == 4
    assert spent.tokens == sum(int(b.mask_BT.sum()) for b in batches) <= spent.tokens_with_padding
    words = tiny.reader("elmo").collate(
        tiny.reader("elmo").encode_batch(["one", "two words of it"])
    )
    padded = dataclasses.replace(
        words, targets_BT=words.ids_BT, num_tokens=int(words.mask_BT.sum())
    )
    assert (
        TrainCounters().add_batch(padded, steps=1).tokens_with_padding
        == words.ids_BT.numel()
        > padded.num_tokens
    ), "padding of words read by their letters too"


def test_the_rate_of_a_step_of_several_windows_follows_all_of_their_lengths() -> None:
    run, stream = run_of("ulmfit", pretrain={"seq_len": 12, "variable_bptt": True})
    shares = [stream.get_batch(i).learning_rate_scale for i in range(stream.set_epoch(0))]
    objective = tiny.variant("ulmfit").family.objective
    assert objective is not None and len({*shares[:6]}) > 1
    flat = dataclasses.replace(
        course(10**9), grad_accum_steps=3, lr_schedule=lambda progress: 1.0, learning_rate=0.01
    )
    found = [
        step.learning_rate
        for step, _ in zip(train(run, objective, stream, flat), range(2), strict=False)
    ]
    assert found == pytest.approx([0.01 * sum(shares[i : i + 3]) / 3 for i in (0, 3)])


def test_looking_late_changes_no_weight_and_finds_the_same_step(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """As on a GPU, where to look at a value is to wait for it."""
    weights = []
    for looks in (1, 64):
        monkeypatch.setitem(state_module.FINITE_CHECK_INTERVAL, "cpu", looks)
        run, stream = run_of("gpt", architecture=tiny.dropping("gpt", 0.3))
        steps("gpt", run, stream, 4000)
        weights.append([*run.model.parameters()])
        assert not run.pending_finite_checks
    assert all(torch.equal(one, other) for one, other in zip(*weights, strict=True))

    run, stream = run_of("gpt")
    objective = tiny.variant("gpt").family.objective

    def bad(model: torch.nn.Module, batch: object, carry: object) -> LossOutput:
        out = objective(model, batch, carry)  # type: ignore[misc]
        return dataclasses.replace(
            out, loss=out.loss * (float("inf") if run.counters.steps == 4 else 1.0)
        )

    for _, number in zip(train(run, bad, stream, course(9000)), range(9), strict=False):
        assert number < 9
    assert run.counters.steps > 6  # it went on
    with pytest.raises(EvaluationError, match=r"the loss is (inf|nan) after 4 steps"):
        run.save(tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_a_gradient_that_is_not_finite_is_found_at_the_end_at_the_latest(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(state_module.FINITE_CHECK_INTERVAL, "cpu", 10**6)
    run, stream = run_of("gpt")
    next(run.model.parameters()).register_hook(
        lambda gradient: gradient * (float("nan") if run.counters.steps == 3 else 1.0)
    )
    with pytest.raises(EvaluationError, match="the gradient is nan after 4 steps"):
        steps("gpt", run, stream, 4000)


@pytest.mark.parametrize("name", ["elmo", "ulmfit", "gpt", "bert", "taglm", "seq2seq"])
def test_no_step_asks_the_device_for_a_value(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """On the meta device there are no values: whatever would make a GPU be waited for (a branch, a size, a number) raises."""
    monkeypatch.setitem(state_module.FINITE_CHECK_INTERVAL, "meta", 10**6)
    monkeypatch.setattr(
        torch, "is_autocast_enabled", lambda kind: False
    )  # which knows no meta device
    monkeypatch.setattr(torch, "autocast", lambda *_, **__: contextlib.nullcontext())
    over = {
        "architecture": tiny.dropping(name, 0.3)
        | ({"softmax_samples": 50} if name == "elmo" else {}),
        "pretrain": {"batch_size": 3},
    }
    run, stream = run_of(name, **over)
    meta = run.model.to("meta")
    run.optimizer = torch.optim.SGD([{"params": [*meta.parameters()], "lr_scale": 1.0}], lr=0.0)
    objective = tiny.variant(name).family.objective
    assert objective is not None
    clipped = (
        run.model.grad_clip_groups()
    )  # of seq2seq two language models, of which a step trains one
    found = [
        step
        for step, _ in zip(
            train(run, objective, stream, dataclasses.replace(course(10**9), clip_groups=clipped)),
            range(4),
            strict=False,
        )
    ]
    assert len(found) == 4 and found[-1].loss.is_meta
