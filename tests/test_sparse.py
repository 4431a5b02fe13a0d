"""Gradients of the rows that were read, against dense ones: the same steps for every optimizer, and after a training that stopped and went on."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from lineage.models import base
from lineage.models.base import embed
from lineage.training.loop import TrainPlan, train
from lineage.training.optimizers import (
    build_pretraining_optimizer,
    clip_gradients,
    densify_gradients,
)
from lineage.training.schedules import LR_SCHEDULES
from lineage.training.state import RngState, TrainState
from tests import tiny

ADAGRAD = {
    "optimizer": "adagrad",
    "schedule": "constant",
    "warmup_ratio": 0.0,
    "learning_rate": 0.2,
    "scale_loss_by_seq_len": True,
    "weight_decay": 0.0,
}
WORDS = {"input_unit": "words", "tie_word_embeddings": False}
CASES: dict[str, tuple[str, dict[str, Any], dict[str, Any]]] = {  # family, model, pretrain
    "elmo": ("elmo", {}, ADAGRAD),
    "elmo, words": ("elmo", WORDS, ADAGRAD),
    "elmo, tied": ("elmo", WORDS | {"tie_word_embeddings": True}, ADAGRAD),
    "elmo, tied, full softmax": (
        "elmo",
        WORDS | {"tie_word_embeddings": True, "softmax_samples": None},
        ADAGRAD,
    ),
    "taglm": ("taglm", {}, ADAGRAD),
    "decay": ("elmo", WORDS, ADAGRAD | {"weight_decay": 0.1}),
    "adam": ("elmo", WORDS, {"optimizer": "adam", "weight_decay": 0.1, "epsilon": 1e-4}),
    "uncorrected adam": (
        "taglm",
        {},
        {"optimizer": "adam", "bias_correction": False, "weight_decay": 0.1, "epsilon": 1e-4},
    ),
    "nt-asgd": (
        "taglm",
        {},
        {"nt_asgd": {"checks": 9, "patience": 2}, "schedule": "constant", "weight_decay": 0.1},
    ),
}


def run_of(case: str) -> tuple[TrainState, Any, Any]:
    """A tiny run, its stream and its objective: 20 candidates of 301 words."""
    name, model, pretrain = CASES[case]
    over = {"architecture": {"softmax_samples": 20, "dropout": 0.1} | model, "pretrain": pretrain}
    found, made = tiny.variant(name, **over), tiny.model(name, **over)
    assert found.family.batch_sampler is not None
    stream = found.family.batch_sampler(
        tiny.tokens(name), tiny.reader(name), found.pretrain, seed=1
    )
    return (
        TrainState(
            made, build_pretraining_optimizer([*made.parameters()], found.pretrain), RngState(3)
        ),
        stream,
        found.family.objective,
    )


def course(run: TrainState, *, steps: int = 6, **over: Any) -> TrainPlan:
    """Two batches a step."""
    kept = {"max_grad_norm": 10.0, "precision": "fp32", "loss_scale": 7.0} | over
    adagrad = isinstance(run.optimizer, torch.optim.Adagrad)
    highest = 0.2 if adagrad else 0.01
    clipped = run.model.grad_clip_groups()  # type: ignore[operator]
    return TrainPlan(
        lambda spent: spent.steps / steps,
        LR_SCHEDULES["constant"](0.0),
        highest,
        grad_accum_steps=2,
        clip_groups=clipped,
        **kept,
    )


def trained(
    case: str, monkeypatch: pytest.MonkeyPatch, *, dense: bool, **over: Any
) -> tuple[TrainState, int, list[float]]:
    """A whole training, how many gradients were sparse when they were clipped, and the losses."""
    monkeypatch.setattr(base, "MIN_ROWS_PER_LOOKUP", 10**9 if dense else 1)
    run, stream, objective = run_of(case)
    sparse = 0

    def counted(*given: Any, **more: Any) -> torch.optim.Optimizer:
        nonlocal sparse
        sparse += sum(p.grad is not None and p.grad.is_sparse for p in run.model.parameters())
        return densify_gradients(*given, **more)

    monkeypatch.setattr("lineage.training.loop.densify_gradients", counted)
    averaging = getattr(run.optimizer, "update_trigger", None)
    losses = []
    for step in train(run, objective, stream, course(run, **over)):
        losses.append(float(step.loss))
        if averaging and len(losses) == 2:
            averaging([1.0, 1.0, 1.0, 2.0])
    return run, sparse, losses


@pytest.mark.parametrize("clip_norm", [100.0, 0.5])
@pytest.mark.parametrize("case", CASES)
def test_steps_are_those_of_dense_gradients(
    case: str, clip_norm: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain, none, expected = trained(case, monkeypatch, dense=True, max_grad_norm=clip_norm)
    start = [p.detach().clone() for p in run_of(case)[0].model.parameters()]
    run, some, losses = trained(case, monkeypatch, dense=False, max_grad_norm=clip_norm)
    tables = {
        "elmo": 1,
        "decay": 2,
        "elmo, words": 2,
        "elmo, tied": 1,
        "elmo, tied, full softmax": 0,
        "adam": 2,
    }.get(case, 4)
    assert none == 0 and some == 6 * tables, (
        "each table's gradient is sparse in each of the six steps, but where a full softmax adds to it"
    )
    assert losses == pytest.approx(expected, abs=1e-6)
    for ours, theirs, before in zip(
        run.model.parameters(), plain.model.parameters(), start, strict=True
    ):
        assert not torch.equal(theirs, before)
        torch.testing.assert_close(ours, theirs, atol=1e-6, rtol=0)
        for name, value in plain.optimizer.state[theirs].items():
            torch.testing.assert_close(run.optimizer.state[ours][name], value, atol=1e-6, rtol=1e-5)


def test_steps_under_bf16_are_those_of_dense_gradients(monkeypatch: pytest.MonkeyPatch) -> None:
    plain, _, expected = trained("elmo, words", monkeypatch, dense=True, precision="bf16")
    run, some, losses = trained("elmo, words", monkeypatch, dense=False, precision="bf16")
    assert some == 12 and losses == pytest.approx(expected, abs=1e-4)
    for ours, theirs in zip(run.model.parameters(), plain.model.parameters(), strict=True):
        torch.testing.assert_close(ours, theirs, atol=1e-4, rtol=0)


def test_a_run_with_sparse_gradients_is_saved_and_loaded_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(base, "MIN_ROWS_PER_LOOKUP", 1)
    whole, stream, objective = run_of("elmo, words")
    for number, _ in enumerate(train(whole, objective, stream, course(whole))):
        if number == 2:
            whole.save(tmp_path / "run")
    again, stream, objective = run_of("elmo, words")
    again.load(tmp_path / "run")
    assert len([*train(again, objective, stream, course(again))]) == 3
    for one, other in zip(whole.model.parameters(), again.model.parameters(), strict=True):
        assert torch.equal(one, other) and torch.equal(
            whole.optimizer.state[one]["sum"], again.optimizer.state[other]["sum"]
        )


@pytest.mark.parametrize("most", [0.3, 1e6])
def test_a_clipped_norm_is_that_of_the_whole_table(most: float) -> None:
    """A row that is read twice is one row, whose parts may cancel."""
    draw = torch.Generator().manual_seed(2)
    start, other = torch.randn(40, 3, generator=draw), torch.randn(5, generator=draw)
    found = []
    for sparse in (True, False):
        table, bias = nn.Parameter(start.clone()), nn.Parameter(other.clone())
        ids, weights = torch.tensor([3, 7, 3, 0]), torch.tensor([[1.0], [2.0], [-0.5], [1.0]])
        (torch.nn.functional.embedding(ids, table, sparse=sparse) * weights).sum().backward()
        (bias**2).sum().backward()
        assert table.grad is not None and bias.grad is not None and table.grad.is_sparse == sparse
        norm = clip_gradients([table, bias, nn.Parameter(torch.zeros(1))], most)
        found.append((norm, table.grad.to_dense() if sparse else table.grad, bias.grad))
    for one, two in zip(*found, strict=True):
        torch.testing.assert_close(one, two, atol=1e-6, rtol=1e-6)
    assert float(found[0][0]) > 1


def test_only_a_few_rows_of_a_table_are_worth_a_sparse_gradient() -> None:
    table = nn.Parameter(torch.randn(40, 3, generator=torch.Generator().manual_seed(2)))
    for ids, sparse in ((torch.arange(10), True), (torch.arange(11), False)):
        found = embed(table, ids)
        assert torch.equal(found, table[ids])
        assert torch.autograd.grad(found.sum(), table)[0].is_sparse == sparse
