"""The training loop resumes exactly after a kill, ignores validation, and stops on a bad loss."""

import contextlib
import dataclasses
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from lineage.artifacts import file_digest
from lineage.errors import EvaluationError
from lineage.networks.base import LossOutput
from lineage.training import state as state_module
from lineage.training.budget import TrainCounters
from lineage.training.loop import StepOutput, TrainPlan, train, validate
from lineage.training.optimizers import build_adamw, build_param_groups, set_learning_rates
from lineage.training.schedules import schedule_with_warmup
from lineage.training.state import RngState, TrainState
from tests.helpers import tiny
from tests.helpers.checkout import ROOT
from tests.helpers.killed_training import SHARES, run_training


def start_training(name: str, resume: Path, out: Path, text_bytes: int) -> "subprocess.Popen[str]":
    """Start a training process that prints one line per step."""
    arguments = (name, str(resume), str(out), str(text_bytes))
    return subprocess.Popen(
        [sys.executable, "-m", "tests.helpers.killed_training", *arguments],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


def newest_step(resume: Path) -> int:
    """Return the step of the newest checkpoint, or 0 if there is none."""
    return max((int(path.name[5:]) for path in resume.glob("step-*")), default=0)


@pytest.fixture(scope="module")
def finished_training(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """Return a function that trains a model without an interruption, and returns its folder."""

    @cache
    def train_once(name: str) -> Path:
        folder = tmp_path_factory.mktemp(name)
        run_training(name, folder / "none", folder / "whole", count_bytes(name))
        return folder / "whole"

    return train_once


def count_bytes(name: str) -> int:
    """Return how much text a training reads: about 140 steps for gpt.

    Where steps are fast, the kills need 80 of them.
    """
    return 15_000 if name == "gpt" else 60_000


def assert_same_files(folder: Path, other: Path) -> None:
    """Compare the models, their curves, and the models that were kept on the way."""
    kept = [f"intermediate-{share}/model.safetensors" for share in SHARES]
    for file in ("model.safetensors", "config.json", "tokenizer.json", "curve.parquet", *kept):
        assert file_digest(folder / file) == file_digest(other / file)


@pytest.mark.parametrize(
    "name",
    [
        "gpt",
        *tiny.mark_slow(
            (*sorted({*tiny.TRAINED} - {"gpt"}), "elmo_sparse", "masked_lstm", "joined_transformer")
        ),
    ],
)
def test_a_training_that_is_killed_and_then_told_to_end_ends_with_identical_files(
    name: str, tmp_path: Path, finished_training: Callable[[str], Path]
) -> None:
    """What is killed loses some steps, and what is told to end loses none."""
    whole = finished_training(name)
    resume = tmp_path / "resume"

    def start() -> "subprocess.Popen[str]":
        return start_training(name, resume, tmp_path / "stopped", count_bytes(name))

    running = start()
    num_lost_steps = 0
    for _ in running.stdout:
        num_lost_steps = num_lost_steps + 1 if newest_step(resume) > 0 else 0
        if num_lost_steps >= 9:  # enough steps after a checkpoint
            break
    os.killpg(running.pid, signal.SIGKILL)
    running.wait()
    assert running.returncode == -signal.SIGKILL, "it ended before it could be killed"
    first_step = newest_step(resume)
    running = start()
    lines = [running.stdout.readline() for _ in range(20)]
    running.send_signal(signal.SIGTERM)
    output = running.stdout.read()  # with the lines that readline has buffered
    running.wait(timeout=60)
    assert running.returncode == 128 + signal.SIGTERM
    assert newest_step(resume) == first_step + len(lines) + len(output.splitlines())
    final_run = start()
    output, _ = final_run.communicate(timeout=240)
    assert final_run.returncode == 0 and len(output.splitlines()) > 0
    assert_same_files(whole, tmp_path / "stopped")


def build_state(name: str, **overrides: dict[str, object]) -> tuple[TrainState, Any]:
    """Return the state of a tiny training with dropout, and its sampler."""
    model = tiny.model(name, **overrides)
    optimizer = build_adamw(build_param_groups([[*model.parameters()]], weight_decay=0.01))
    return TrainState(model, optimizer, RngState(1)), tiny.sampler(name, **overrides)


def build_plan(text_bytes: int, **overrides: Any) -> TrainPlan:
    """Return a plan that trains until this many bytes of text are read."""
    plan = TrainPlan(
        progress=lambda counters: counters.text_bytes / text_bytes,
        lr_schedule=schedule_with_warmup("linear", 0.1),
        learning_rate=0.003,
        max_grad_norm=1.0,
        precision="fp32",
    )
    return dataclasses.replace(plan, **overrides)


def train_steps(
    name: str, state: TrainState, sampler: Any, text_bytes: int, **overrides: Any
) -> list[StepOutput]:
    """Train until the budget is used, and return all steps."""
    return [
        *train(
            state,
            tiny.model_config(name).family.objective,
            sampler,
            build_plan(text_bytes, **overrides),
        )
    ]


@pytest.mark.parametrize("name", [*tiny.TRAINED, *tiny.CELLS])
def test_the_budget_is_met_within_one_batch_and_counted_in_raw_bytes(name: str) -> None:
    state, sampler = build_state(name)
    steps = train_steps(name, state, sampler, 5000)
    excess = steps[-1].counters.text_bytes - 5000
    assert 0 <= excess < 5000 / len(steps) * 4 and steps[-1].progress == 1.0


def test_one_epoch_of_windows_reads_the_corpus_once() -> None:
    corpus = tiny.corpus("gpt")
    sampler = tiny.sampler("gpt")
    read_bytes = sum(sampler.get_batch(index).text_bytes for index in range(sampler.set_epoch(0)))
    assert corpus.text_bytes == sum(len(document.encode()) for document in tiny.documents())
    assert 0.995 * corpus.text_bytes < read_bytes <= corpus.text_bytes


@pytest.mark.parametrize("name", [*tiny.TRAINED, *tiny.mark_slow(tiny.CELLS)])
def test_validation_does_not_change_training(name: str) -> None:
    plain_state, sampler = build_state(name, architecture=tiny.dropout_config(name, 0.3))
    plain_steps = train_steps(name, plain_state, sampler, 2000)
    state, sampler = build_state(name, architecture=tiny.dropout_config(name, 0.3))
    family = tiny.model_config(name).family
    validation_sampler = tiny.sampler(name)
    losses = []
    for step in train(state, family.objective, sampler, build_plan(2000)):
        losses.append(step.loss)
        first, second = (
            validate(
                state.model, family.objective, validation_sampler, max_batches=3, precision="fp32"
            )
            for _ in range(2)
        )  # type: ignore[arg-type]
        assert first == second
        torch.rand(7)
        assert state.model.training
    assert losses == [step.loss for step in plain_steps] and len(losses) > 2


@pytest.mark.parametrize("tensors", [1, 2, 3])
def test_recurrent_state_with_any_number_of_tensors_per_layer_is_saved_and_loaded(
    tensors: int, tmp_path: Path
) -> None:
    # With 12 layers, sorting names as text would put 10 before 2.
    recurrent_state = tuple(
        tuple(torch.full((1, 3, 5), 10.0 * layer + tensor_index) for tensor_index in range(tensors))
        for layer in range(12)
    )
    state = build_state("gpt")[0]
    loaded = build_state("gpt")[0]
    state.recurrent_state = recurrent_state
    state.save(tmp_path / "run")
    loaded.load(tmp_path / "run")
    assert [[float(tensor[0, 0, 0]) for tensor in layer] for layer in loaded.recurrent_state] == [
        [float(tensor[0, 0, 0]) for tensor in layer] for layer in recurrent_state
    ]


def test_training_leaves_the_global_rng_alone_and_advances_its_own() -> None:
    state, sampler = build_state("gpt", architecture={"dropout": 0.5})
    before = torch.get_rng_state()
    train_steps("gpt", state, sampler, 2000)
    assert torch.equal(before, torch.get_rng_state())
    states = [state.rng_state.state.clone()]
    with state.rng_state.activate(tiny.CPU):
        torch.rand(1)
    assert not torch.equal(states[0], state.rng_state.state)


def test_accumulated_batches_equal_one_larger_batch() -> None:
    large_state, sampler = build_state("gpt", pretrain={"batch_size": 6})
    large_steps = train_steps("gpt", large_state, sampler, 3000)
    small_state, sampler = build_state("gpt", pretrain={"batch_size": 3})
    small_steps = train_steps("gpt", small_state, sampler, 3000, grad_accum_steps=2)
    assert len(large_steps) == len(small_steps)
    for large_parameter, small_parameter in zip(
        large_state.model.parameters(), small_state.model.parameters(), strict=True
    ):
        torch.testing.assert_close(large_parameter, small_parameter, atol=2e-5, rtol=1e-3)


def test_the_budget_ends_on_a_whole_step_and_steps_use_their_starting_rate() -> None:
    state, sampler = build_state("gpt")
    steps = train_steps("gpt", state, sampler, 3000, grad_accum_steps=7)
    assert steps[-1].progress == 1.0 and steps[-1].counters == state.counters
    start_progress = [0.0, *(step.progress for step in steps[:-1])]
    assert [step.learning_rate for step in steps] == pytest.approx(
        [0.003 * schedule_with_warmup("linear", 0.1)(progress) for progress in start_progress]
    )


def spoil_loss(state: TrainState, value: float) -> Any:
    """Return GPT's objective, whose loss after four steps is not finite."""
    objective = tiny.model_config("gpt").family.objective

    def spoiled(model: torch.nn.Module, batch: object, recurrent_state: object) -> LossOutput:
        output = objective(model, batch, recurrent_state)
        factor = value if state.counters.steps == 4 else 1.0
        return dataclasses.replace(output, loss=output.loss * factor)

    return spoiled


def test_a_non_finite_loss_stops_training_and_names_the_step() -> None:
    state, sampler = build_state("gpt")
    with pytest.raises(EvaluationError, match="nan after 4 steps"):
        for _ in train(state, spoil_loss(state, float("nan")), sampler, build_plan(9000)):
            pass


def test_bf16_training_has_nearly_the_loss_of_fp32() -> None:
    losses = []
    for precision in ("fp32", "bf16"):
        state, sampler = build_state("gpt")
        losses.append(
            [step.loss for step in train_steps("gpt", state, sampler, 20_000, precision=precision)][
                -20:
            ]
        )
    assert losses[0] != losses[1]
    assert np.mean(losses[1]) == pytest.approx(np.mean(losses[0]), rel=0.03)


def test_layer_decay_scales_the_rate_and_only_matrices_have_weight_decay() -> None:
    model = tiny.model("bert")
    groups = build_param_groups(model.layer_groups(), weight_decay=0.1, layer_lr_decay=1 / 2.6)
    optimizer = build_adamw(groups)
    set_learning_rates(optimizer, 1.0)
    by_depth = {group["depth"]: group["lr"] for group in optimizer.param_groups}
    assert by_depth == {
        0: pytest.approx(1.0),
        1: pytest.approx(1 / 2.6),
        2: pytest.approx(1 / 2.6**2),
    }
    for group in optimizer.param_groups:
        assert all(
            (parameter.dim() > 1) == (group["weight_decay"] > 0) for parameter in group["params"]
        )


def test_counters_add_up_bytes_steps_and_tokens() -> None:
    batches = [tiny.batch("bert", index) for index in range(4)]
    counters = TrainCounters()
    for batch in batches:
        counters = counters.add_batch(batch, steps=1)
    assert counters.text_bytes == sum(b.text_bytes for b in batches) and counters.steps == 4
    assert (
        counters.tokens
        == sum(int(b.mask_BT.sum()) for b in batches)
        <= counters.tokens_with_padding
    )
    word_batch = tiny.tokenizer("elmo").collate(
        tiny.tokenizer("elmo").encode_batch(["one", "two words of it"])
    )
    padded_batch = dataclasses.replace(
        word_batch, targets_BT=word_batch.ids_BT, num_tokens=int(word_batch.mask_BT.sum())
    )
    assert (
        TrainCounters().add_batch(padded_batch, steps=1).tokens_with_padding
        == word_batch.ids_BT.numel()
        > padded_batch.num_tokens
    ), "padding also counts for character-based words"


def test_the_rate_of_an_accumulated_step_averages_over_its_window_lengths() -> None:
    state, sampler = build_state("ulmfit", pretrain={"seq_len": 12, "variable_bptt": True})
    scales = [sampler.get_batch(index).learning_rate_scale for index in range(sampler.set_epoch(0))]
    objective = tiny.model_config("ulmfit").family.objective
    assert objective is not None and len({*scales[:6]}) > 1
    plan = dataclasses.replace(
        build_plan(10**9), grad_accum_steps=3, lr_schedule=lambda progress: 1.0, learning_rate=0.01
    )
    learning_rates = [
        step.learning_rate
        for step, _ in zip(train(state, objective, sampler, plan), range(2), strict=False)
    ]
    assert learning_rates == pytest.approx(
        [0.01 * sum(scales[index : index + 3]) / 3 for index in (0, 3)]
    )


def test_checking_for_finite_values_less_often_gives_the_same_result(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """On a GPU, reading a value means waiting for it."""
    weights = []
    for interval in (1, 64):
        monkeypatch.setitem(state_module.FINITE_CHECK_INTERVAL, "cpu", interval)
        state, sampler = build_state("gpt", architecture=tiny.dropout_config("gpt", 0.3))
        train_steps("gpt", state, sampler, 4000)
        weights.append([*state.model.parameters()])
        assert not state.pending_finite_checks
    assert all(
        torch.equal(parameter, other_parameter)
        for parameter, other_parameter in zip(*weights, strict=True)
    )

    state, sampler = build_state("gpt")
    bad_objective = spoil_loss(state, float("inf"))
    for _, number in zip(
        train(state, bad_objective, sampler, build_plan(9000)), range(9), strict=False
    ):
        assert number < 9
    assert state.counters.steps > 6  # training continued after the bad loss
    with pytest.raises(EvaluationError, match=r"the loss is (inf|nan) after 4 steps"):
        state.save(tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_a_non_finite_gradient_is_found_by_the_end_of_training(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(state_module.FINITE_CHECK_INTERVAL, "cpu", 10**6)
    state, sampler = build_state("gpt")
    next(state.model.parameters()).register_hook(
        lambda gradient: gradient * (float("nan") if state.counters.steps == 3 else 1.0)
    )
    with pytest.raises(EvaluationError, match="the gradient is nan after 4 steps"):
        train_steps("gpt", state, sampler, 4000)


@pytest.mark.parametrize("name", ["elmo", "ulmfit", "gpt", "bert", "taglm", "seq2seq"])
def test_a_training_step_reads_no_value_from_the_device(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The meta device has no values, so any operation that would wait for a GPU raises."""
    monkeypatch.setitem(state_module.FINITE_CHECK_INTERVAL, "meta", 10**6)
    # `is_autocast_enabled` does not support the meta device.
    monkeypatch.setattr(torch, "is_autocast_enabled", lambda kind: False)
    monkeypatch.setattr(torch, "autocast", lambda *_, **__: contextlib.nullcontext())
    overrides = {
        "architecture": tiny.dropout_config(name, 0.3)
        | ({"softmax_samples": 50} if name == "elmo" else {}),
        "pretrain": {"batch_size": 3},
    }
    state, sampler = build_state(name, **overrides)
    meta_model = state.model.to("meta")
    state.optimizer = torch.optim.SGD(
        [{"params": [*meta_model.parameters()], "lr_scale": 1.0}], lr=0.0
    )
    objective = tiny.model_config(name).family.objective
    # seq2seq has two language models; a step trains one of them.
    clip_groups = state.model.grad_clip_groups()
    steps = [
        step
        for step, _ in zip(
            train(
                state,
                objective,
                sampler,
                dataclasses.replace(build_plan(10**9), clip_groups=clip_groups),
            ),
            range(4),
            strict=False,
        )
    ]
    assert len(steps) == 4 and steps[-1].loss.is_meta
