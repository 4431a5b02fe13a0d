"""Sparse gradients of embeddings give the same steps as dense ones for every optimizer."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from lineage.networks import base
from lineage.networks.base import embed
from lineage.training.loop import TrainPlan, train
from lineage.training.optimizers import (
    build_pretraining_optimizer,
    clip_gradients,
    densify_gradients,
)
from lineage.training.schedules import schedule_with_warmup
from lineage.training.state import RngState, TrainState
from tests.helpers import tiny
from tests.helpers.trainings import BILM_RECIPE

WORDS = {"input_unit": "words", "tie_word_embeddings": False}
CASES: dict[str, tuple[str, dict[str, Any], dict[str, Any]]] = {  # family, model, pretrain
    "elmo": ("elmo", {}, BILM_RECIPE),
    "elmo, words": ("elmo", WORDS, BILM_RECIPE),
    "elmo, tied": ("elmo", WORDS | {"tie_word_embeddings": True}, BILM_RECIPE),
    "elmo, tied, full softmax": (
        "elmo",
        WORDS | {"tie_word_embeddings": True, "softmax_samples": None},
        BILM_RECIPE,
    ),
    "taglm": ("taglm", {}, BILM_RECIPE),
    "decay": ("elmo", WORDS, BILM_RECIPE | {"weight_decay": 0.1}),
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


def build_run(case: str) -> tuple[TrainState, Any, Any]:
    """Return a tiny run, its sampler and its objective, with 20 softmax samples of 301 words."""
    name, model, pretrain = CASES[case]
    changes = {
        "architecture": {"softmax_samples": 20, "dropout": 0.1} | model,
        "pretrain": pretrain,
    }
    config = tiny.model_config(name, **changes)
    built_model = tiny.model(name, **changes)
    optimizer = build_pretraining_optimizer(built_model, config.pretrain)
    state = TrainState(built_model, optimizer, RngState(3))
    return state, tiny.sampler(name, **changes), config.family.objective


def build_plan(run: TrainState, *, steps: int = 6, **changes: Any) -> TrainPlan:
    """Return a plan with two batches per step."""
    options = {"max_grad_norm": 10.0, "precision": "fp32", "loss_scale": 7.0} | changes
    adagrad = isinstance(run.optimizer, torch.optim.Adagrad)
    learning_rate = 0.2 if adagrad else 0.01
    clip_groups = run.model.grad_clip_groups()  # type: ignore[operator]
    return TrainPlan(
        lambda counters: counters.steps / steps,
        schedule_with_warmup("constant", 0.0),
        learning_rate,
        grad_accum_steps=2,
        clip_groups=clip_groups,
        **options,
    )


def train_run(
    case: str, monkeypatch: pytest.MonkeyPatch, *, dense: bool, **changes: Any
) -> tuple[TrainState, int, list[float]]:
    """Train, and return the run, the number of sparse gradients at clipping, and the losses."""
    monkeypatch.setattr(base, "MIN_ROWS_PER_LOOKUP", 10**9 if dense else 1)
    run, sampler, objective = build_run(case)
    num_sparse = 0

    def counting_densify(*arguments: Any, **options: Any) -> torch.optim.Optimizer:
        nonlocal num_sparse
        num_sparse += sum(p.grad is not None and p.grad.is_sparse for p in run.model.parameters())
        return densify_gradients(*arguments, **options)

    monkeypatch.setattr("lineage.training.loop.densify_gradients", counting_densify)
    averaging = getattr(run.optimizer, "update_trigger", None)
    losses = []
    for step in train(run, objective, sampler, build_plan(run, **changes)):
        losses.append(float(step.loss))
        if averaging and len(losses) == 2:
            averaging([1.0, 1.0, 1.0, 2.0])
    return run, num_sparse, losses


@pytest.mark.parametrize("clip_norm", [100.0, 0.5])
@pytest.mark.parametrize("case", CASES)
def test_steps_equal_those_of_dense_gradients(
    case: str, clip_norm: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    dense_run, dense_count, expected = train_run(
        case, monkeypatch, dense=True, max_grad_norm=clip_norm
    )
    start = [p.detach().clone() for p in build_run(case)[0].model.parameters()]
    run, sparse_count, losses = train_run(case, monkeypatch, dense=False, max_grad_norm=clip_norm)
    num_tables = {
        "elmo": 1,
        "decay": 2,
        "elmo, words": 2,
        "elmo, tied": 1,
        "elmo, tied, full softmax": 0,
        "adam": 2,
    }.get(case, 4)
    assert dense_count == 0 and sparse_count == 6 * num_tables, (
        "every embedding has a sparse gradient in all six steps, unless a full softmax adds to it"
    )
    assert losses == pytest.approx(expected, abs=1e-6)
    for actual, reference, initial in zip(
        run.model.parameters(), dense_run.model.parameters(), start, strict=True
    ):
        assert not torch.equal(reference, initial)
        torch.testing.assert_close(actual, reference, atol=1e-6, rtol=0)
        for name, value in dense_run.optimizer.state[reference].items():
            torch.testing.assert_close(
                run.optimizer.state[actual][name], value, atol=1e-6, rtol=1e-5
            )


def test_steps_under_bf16_equal_those_of_dense_gradients(monkeypatch: pytest.MonkeyPatch) -> None:
    dense_run, _, expected = train_run("elmo, words", monkeypatch, dense=True, precision="bf16")
    run, sparse_count, losses = train_run("elmo, words", monkeypatch, dense=False, precision="bf16")
    assert sparse_count == 12 and losses == pytest.approx(expected, abs=1e-4)
    for actual, reference in zip(run.model.parameters(), dense_run.model.parameters(), strict=True):
        torch.testing.assert_close(actual, reference, atol=1e-4, rtol=0)


@pytest.mark.parametrize("case", ["elmo", "elmo, words", "adam", "uncorrected adam"])
def test_a_run_with_sparse_gradients_resumes_exactly(
    case: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """AdaGrad, Adam and BERT's Adam save all of their state."""
    monkeypatch.setattr(base, "MIN_ROWS_PER_LOOKUP", 1)
    uninterrupted, sampler, objective = build_run(case)
    for number, _ in enumerate(train(uninterrupted, objective, sampler, build_plan(uninterrupted))):
        if number == 2:
            uninterrupted.save(tmp_path / "run")
    resumed, sampler, objective = build_run(case)
    resumed.load(tmp_path / "run")
    assert len([*train(resumed, objective, sampler, build_plan(resumed))]) == 3
    for expected, actual in zip(
        uninterrupted.model.parameters(), resumed.model.parameters(), strict=True
    ):
        assert torch.equal(expected, actual)
        for name, value in uninterrupted.optimizer.state[expected].items():
            assert torch.equal(value, resumed.optimizer.state[actual][name])


@pytest.mark.parametrize("max_norm", [0.3, 1e6])
def test_a_clipped_norm_sums_repeated_rows_first(max_norm: float) -> None:
    """The two gradients of a row that is looked up twice are added, and may cancel."""
    generator = torch.Generator().manual_seed(2)
    start = torch.randn(40, 3, generator=generator)
    bias_start = torch.randn(5, generator=generator)
    results = []
    for sparse in (True, False):
        table = nn.Parameter(start.clone())
        bias = nn.Parameter(bias_start.clone())
        ids = torch.tensor([3, 7, 3, 0])
        weights = torch.tensor([[1.0], [2.0], [-0.5], [1.0]])
        (torch.nn.functional.embedding(ids, table, sparse=sparse) * weights).sum().backward()
        (bias**2).sum().backward()
        assert table.grad is not None and bias.grad is not None and table.grad.is_sparse == sparse
        norm = clip_gradients([table, bias, nn.Parameter(torch.zeros(1))], max_norm)
        results.append((norm, table.grad.to_dense() if sparse else table.grad, bias.grad))
    for sparse_result, dense_result in zip(*results, strict=True):
        torch.testing.assert_close(sparse_result, dense_result, atol=1e-6, rtol=1e-6)
    assert float(results[0][0]) > 1


def test_only_lookups_of_few_rows_have_sparse_gradients() -> None:
    table = nn.Parameter(torch.randn(40, 3, generator=torch.Generator().manual_seed(2)))
    for ids, is_sparse in ((torch.arange(10), True), (torch.arange(11), False)):
        rows = embed(table, ids)
        assert torch.equal(rows, table[ids])
        assert torch.autograd.grad(rows.sum(), table)[0].is_sparse == is_sparse
