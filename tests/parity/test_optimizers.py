"""Optimizers, schedules and clipping against BERT's released code and torch, and the slanted triangle against ULMFiT's formula."""

import json
import math
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from lineage.models.base import LossOutput
from lineage.models.batch import Batch
from lineage.training.loop import TrainPlan, train
from lineage.training.optimizers import (
    BertAdam,
    build_adamw,
    build_param_groups,
    clip_gradients,
    set_learning_rates,
)
from lineage.training.schedules import (
    bert_schedule_with_warmup,
    cosine_schedule_with_warmup,
    gpt_schedule_with_warmup,
    linear_schedule_with_warmup,
    slanted_triangular_schedule,
)
from lineage.training.state import RngState, TrainState
from tests.golden import golden
from tests.tiny import OneBatch


def facts() -> dict[str, Any]:
    return json.loads((golden("bert") / "optimizer_config.json").read_text())


def numbers() -> dict[str, torch.Tensor]:
    return load_file(golden("bert") / "optimizer_cases.safetensors")


@pytest.mark.parametrize("which", ["bert_adamweightdecay", "adamw_bias_corrected"])
@pytest.mark.parametrize("case", ["given", "quadratic"])
def test_parameters_and_moments_after_each_step(which: str, case: str) -> None:
    said, found = facts(), numbers()
    w, b = torch.nn.Parameter(found["in.w0"].clone()), torch.nn.Parameter(found["in.b0"].clone())
    groups: list[dict[str, object]] = [
        {"params": [w], "weight_decay": said["weight_decay"], "lr_scale": 1.0}, {"params": [b], "weight_decay": 0.0, "lr_scale": 1.0},
    ]  # fmt: skip
    make = BertAdam if which.startswith("bert") else build_adamw
    optimizer = make(groups, betas=tuple(said["betas"]), epsilon=said["eps"])
    set_learning_rates(optimizer, said["lr"])
    for number, expected in enumerate(found[f"{case}.{which}"]):
        for row, parameter in enumerate((w, b)):
            given = (
                found["in.given_grads"][number, row]
                if number < len(found["in.given_grads"])
                else None
            )
            parameter.grad = (
                given
                if case == "given"
                else found["in.A"] @ (parameter.detach() - found["in.target"])
            )
        optimizer.step()
        rows = [
            x
            for p in (w, b)
            for x in (p.detach(), optimizer.state[p]["exp_avg"], optimizer.state[p]["exp_avg_sq"])
        ]
        torch.testing.assert_close(
            torch.stack(rows), expected, atol=1e-6, rtol=1e-6
        )  # one step of float32 at 8 is 1e-6


def test_the_first_step_without_correction_is_about_three_times_as_long() -> None:
    for make, expected in ((BertAdam, 0.1 / 0.001**0.5), (build_adamw, 1.0)):
        p = torch.nn.Parameter(torch.zeros(3))
        optimizer = make(
            build_param_groups([[p]], weight_decay=0.0), betas=(0.9, 0.999), epsilon=1e-6
        )
        set_learning_rates(optimizer, 0.01)
        p.grad = torch.tensor([1.0, -2.0, 5.0])
        optimizer.step()
        torch.testing.assert_close(
            p.detach(), -0.01 * expected * p.grad.sign(), rtol=1e-3, atol=1e-7
        )


def test_schedules_are_those_of_bert_s_code_and_of_transformers() -> None:
    found = numbers()
    for number, said in enumerate(facts()["schedules"]):
        total, share = said["total"], said["warmup"] / said["total"]
        for make, name in (
            (bert_schedule_with_warmup, "bert_original"),
            (linear_schedule_with_warmup, "transformers_linear"),
        ):
            rate, expected = make(share), found[f"schedule{number}.{name}"].numpy()
            ours = [said["init_lr"] * rate(step / total) for step in range(len(expected))]
            np.testing.assert_allclose(
                ours, expected, rtol=1e-6, atol=2e-7 * said["init_lr"]
            )  # 1 - step / total, in float32 there


def test_gpt_s_rate_falls_during_the_warm_up_too() -> None:
    rate = gpt_schedule_with_warmup(0.002)
    assert (
        rate(0.002) == pytest.approx(0.998)
        and rate(0.001) == pytest.approx(0.5 * 0.999)
        and rate(0.5) == 0.5
        and rate(1.0) == 0.0
    )
    assert gpt_schedule_with_warmup(0.0)(0.0) == 1.0


def test_gpt_s_pretraining_falls_along_half_a_cosine() -> None:
    rate = cosine_schedule_with_warmup(0.2)
    assert [rate(p) for p in (0.0, 0.1, 0.2, 0.6, 1.0)] == pytest.approx([0.0, 0.5, 1.0, 0.5, 0.0])


def test_clipping_is_torch_s_and_near_tensorflow_s() -> None:
    found = numbers()
    (grads,) = [
        step
        for step in found["in.given_grads"]
        if torch.isclose(step.norm(), found["clip.global_norm"][0], rtol=1e-6)
    ]
    parameters = [torch.nn.Parameter(torch.zeros_like(grad)) for grad in grads]
    for parameter, grad in zip(parameters, grads, strict=True):
        parameter.grad = grad.clone()
    norm = clip_gradients(parameters, 1.0)
    torch.testing.assert_close(norm.reshape(1), found["clip.global_norm"], atol=1e-6, rtol=1e-6)
    clipped = torch.stack([p.grad for p in parameters if p.grad is not None])
    for rule in ("torch", "tf_rule"):
        torch.testing.assert_close(clipped, found[f"clip.clipped_by_{rule}"], atol=1e-6, rtol=1e-6)


def whole(number: float) -> bool:
    return abs(number - round(number)) < 1e-9


def test_the_slanted_triangle_and_discriminative_rates_are_those_of_the_paper() -> None:
    """Where T x cut is whole the paper's formula, elsewhere its repaired form: read literally it ends below zero."""
    said = json.loads((golden("awd_lstm") / "config.json").read_text())
    schedules = json.loads((golden("awd_lstm") / "schedules.json").read_text())
    for T in said["T"]:
        rate = slanted_triangular_schedule(said["cut"], said["ratio"], steps=T)
        ours = [said["lr"] * rate(t / T) for t in range(T)]
        np.testing.assert_allclose(ours, schedules[f"stlr.denominator_T_minus_cut_T{T}"], rtol=1e-9)
        alike = (
            T if whole(T * said["cut"]) else math.floor(T * said["cut"]) + 1
        )  # up to the peak both forms are one
        np.testing.assert_allclose(ours[:alike], schedules[f"stlr.paper_T{T}"][:alike], rtol=1e-9)
    groups = build_param_groups(
        [[torch.nn.Parameter(torch.zeros(2, 2))] for _ in range(said["ngroups"])],
        weight_decay=0.0,
        layer_lr_decay=said["dec"],
    )
    ours = [said["lr"] * float(group["lr_scale"]) for group in groups]  # type: ignore[arg-type]
    np.testing.assert_allclose(
        ours, schedules["discriminative_lr_group0_is_lowest_layer"], rtol=1e-12
    )


def test_a_training_takes_the_triangles_rates_step_by_step_and_layer_by_layer() -> None:
    said = json.loads((golden("awd_lstm") / "config.json").read_text())
    schedules = json.loads((golden("awd_lstm") / "schedules.json").read_text())
    T = len(schedules["discriminative_x_stlr_paper"])
    expected = np.array(schedules["discriminative_x_stlr_paper"])
    if not whole(
        T * said["cut"]
    ):  # where the paper's formula falls below zero: the form that does not
        expected = (
            np.outer(
                schedules[f"stlr.denominator_T_minus_cut_T{T}"],
                schedules["discriminative_lr_group0_is_lowest_layer"],
            )
            / said["lr"]
        )
    model = torch.nn.ModuleList(torch.nn.Linear(1, 1, bias=False) for _ in range(said["ngroups"]))
    run = TrainState(
        model,
        build_adamw(
            build_param_groups(
                [[*part.parameters()] for part in model],
                weight_decay=0.0,
                layer_lr_decay=said["dec"],
            )
        ),
        RngState(0),
    )
    course = TrainPlan(
        lambda spent: spent.steps / T,
        slanted_triangular_schedule(said["cut"], said["ratio"], steps=T),
        learning_rate=said["lr"],
        max_grad_norm=1.0,
        precision="fp32",
    )

    def objective(model: torch.nn.ModuleList, batch: Batch, carry: None) -> LossOutput:
        return LossOutput(sum(p.sum() for p in model.parameters()), {}, {})  # type: ignore[arg-type]

    found = []
    for step in train(
        run, objective, OneBatch(Batch(torch.zeros(1, 1).long(), torch.ones(1, 1).bool())), course
    ):
        found.append([group["lr"] for group in run.optimizer.param_groups])
        assert step.learning_rate == found[-1][-1]
    np.testing.assert_allclose(found, expected, rtol=1e-9)
