"""Optimizers, schedules and clipping agree with BERT's released code, torch and the papers."""

import math

import numpy as np
import pytest
import torch

from lineage.networks.base import LossOutput
from lineage.networks.batch import Batch
from lineage.training.loop import TrainPlan, train
from lineage.training.optimizers import (
    BertAdam,
    build_adamw,
    build_param_groups,
    clip_gradients,
    set_learning_rates,
)
from lineage.training.schedules import schedule_with_warmup, slanted_triangular_schedule
from lineage.training.state import RngState, TrainState
from tests.helpers.golden import golden_settings, golden_tensors
from tests.helpers.tiny import OneBatchSampler


@pytest.mark.parametrize("optimizer_name", ["bert_adamweightdecay", "adamw_bias_corrected"])
@pytest.mark.parametrize("case", ["given", "quadratic"])
def test_parameters_and_moments_match_the_reference_after_each_step(
    optimizer_name: str, case: str
) -> None:
    settings = golden_settings("bert", "optimizer_config.json")
    reference = golden_tensors("bert", "optimizer_cases.safetensors")
    w = torch.nn.Parameter(reference["in.w0"].clone())
    b = torch.nn.Parameter(reference["in.b0"].clone())
    groups: list[dict[str, object]] = [
        {"params": [w], "weight_decay": settings["weight_decay"], "lr_scale": 1.0}, {"params": [b], "weight_decay": 0.0, "lr_scale": 1.0},
    ]  # fmt: skip
    build_optimizer = BertAdam if optimizer_name.startswith("bert") else build_adamw
    optimizer = build_optimizer(groups, betas=tuple(settings["betas"]), epsilon=settings["eps"])
    set_learning_rates(optimizer, settings["lr"])
    for number, expected in enumerate(reference[f"{case}.{optimizer_name}"]):
        for row, parameter in enumerate((w, b)):
            if case == "quadratic":
                grad = reference["in.A"] @ (parameter.detach() - reference["in.target"])
            elif number < len(reference["in.given_grads"]):
                grad = reference["in.given_grads"][number, row]
            else:
                grad = None
            parameter.grad = grad
        optimizer.step()
        rows = [
            x
            for p in (w, b)
            for x in (p.detach(), optimizer.state[p]["exp_avg"], optimizer.state[p]["exp_avg_sq"])
        ]
        # Neighbouring float32 numbers near 8 differ by 1e-6.
        torch.testing.assert_close(torch.stack(rows), expected, atol=1e-6, rtol=1e-6)


def test_the_first_step_without_bias_correction_is_about_three_times_longer() -> None:
    for build_optimizer, expected in ((BertAdam, 0.1 / 0.001**0.5), (build_adamw, 1.0)):
        p = torch.nn.Parameter(torch.zeros(3))
        optimizer = build_optimizer(
            build_param_groups([[p]], weight_decay=0.0), betas=(0.9, 0.999), epsilon=1e-6
        )
        set_learning_rates(optimizer, 0.01)
        p.grad = torch.tensor([1.0, -2.0, 5.0])
        optimizer.step()
        torch.testing.assert_close(
            p.detach(), -0.01 * expected * p.grad.sign(), rtol=1e-3, atol=1e-7
        )


def test_schedules_match_bert_s_code_and_transformers() -> None:
    reference = golden_tensors("bert", "optimizer_cases.safetensors")
    for number, settings in enumerate(
        golden_settings("bert", "optimizer_config.json")["schedules"]
    ):
        total = settings["total"]
        warmup_ratio = settings["warmup"] / total
        for schedule_name, name in (("bert", "bert_original"), ("linear", "transformers_linear")):
            schedule = schedule_with_warmup(schedule_name, warmup_ratio)
            expected = reference[f"schedule{number}.{name}"].numpy()
            actual = [settings["init_lr"] * schedule(step / total) for step in range(len(expected))]
            # The reference computes 1 - step / total in float32.
            np.testing.assert_allclose(actual, expected, rtol=1e-6, atol=2e-7 * settings["init_lr"])


def test_clipping_matches_torch_and_tensorflow() -> None:
    reference = golden_tensors("bert", "optimizer_cases.safetensors")
    (grads,) = [
        step
        for step in reference["in.given_grads"]
        if torch.isclose(step.norm(), reference["clip.global_norm"][0], rtol=1e-6)
    ]
    parameters = [torch.nn.Parameter(torch.zeros_like(grad)) for grad in grads]
    for parameter, grad in zip(parameters, grads, strict=True):
        parameter.grad = grad.clone()
    norm = clip_gradients(parameters, 1.0)
    torch.testing.assert_close(norm.reshape(1), reference["clip.global_norm"], atol=1e-6, rtol=1e-6)
    clipped = torch.stack([p.grad for p in parameters if p.grad is not None])
    for rule in ("torch", "tf_rule"):
        torch.testing.assert_close(
            clipped, reference[f"clip.clipped_by_{rule}"], atol=1e-6, rtol=1e-6
        )


def is_integer(value: float) -> bool:
    return abs(value - round(value)) < 1e-9


def test_slanted_triangular_and_discriminative_rates_match_the_paper() -> None:
    """Where T x cut is an integer the paper's formula is used, elsewhere its corrected form.

    Read literally, the formula ends below zero there.
    """
    settings = golden_settings("awd_lstm")
    schedules = golden_settings("awd_lstm", "schedules.json")
    for T in settings["T"]:
        schedule = slanted_triangular_schedule(settings["cut"], settings["ratio"], steps=T)
        actual = [settings["lr"] * schedule(t / T) for t in range(T)]
        np.testing.assert_allclose(
            actual, schedules[f"stlr.denominator_T_minus_cut_T{T}"], rtol=1e-9
        )
        # Up to the peak both forms are equal.
        num_equal = math.floor(T * settings["cut"]) + 1
        if is_integer(T * settings["cut"]):
            num_equal = T
        paper = schedules[f"stlr.paper_T{T}"]
        np.testing.assert_allclose(actual[:num_equal], paper[:num_equal], rtol=1e-9)
    groups = build_param_groups(
        [[torch.nn.Parameter(torch.zeros(2, 2))] for _ in range(settings["ngroups"])],
        weight_decay=0.0,
        layer_lr_decay=1 / settings["dec"],
    )
    actual = [settings["lr"] * float(group["lr_scale"]) for group in groups]  # type: ignore[arg-type]
    np.testing.assert_allclose(
        actual, schedules["discriminative_lr_group0_is_lowest_layer"], rtol=1e-12
    )


def test_training_uses_the_slanted_triangular_rate_of_each_step_and_layer() -> None:
    settings = golden_settings("awd_lstm")
    schedules = golden_settings("awd_lstm", "schedules.json")
    T = len(schedules["discriminative_x_stlr_paper"])
    expected = np.array(schedules["discriminative_x_stlr_paper"])
    if not is_integer(T * settings["cut"]):
        # The paper's formula falls below zero here, so the corrected form is expected.
        rates = np.outer(
            schedules[f"stlr.denominator_T_minus_cut_T{T}"],
            schedules["discriminative_lr_group0_is_lowest_layer"],
        )
        expected = rates / settings["lr"]
    model = torch.nn.ModuleList(
        torch.nn.Linear(1, 1, bias=False) for _ in range(settings["ngroups"])
    )
    state = TrainState(
        model,
        build_adamw(
            build_param_groups(
                [[*part.parameters()] for part in model],
                weight_decay=0.0,
                layer_lr_decay=1 / settings["dec"],
            )
        ),
        RngState(0),
    )
    plan = TrainPlan(
        lambda counters: counters.steps / T,
        slanted_triangular_schedule(settings["cut"], settings["ratio"], steps=T),
        learning_rate=settings["lr"],
        max_grad_norm=1.0,
        precision="fp32",
    )

    def objective(model: torch.nn.ModuleList, batch: Batch, recurrent_state: None) -> LossOutput:
        return LossOutput(sum(p.sum() for p in model.parameters()), {}, {})  # type: ignore[arg-type]

    actual = []
    batch = Batch(torch.zeros(1, 1).long(), torch.ones(1, 1).bool())
    for step in train(state, objective, OneBatchSampler(batch), plan):
        actual.append([group["lr"] for group in state.optimizer.param_groups])
        assert step.learning_rate == actual[-1][-1]
    np.testing.assert_allclose(actual, expected, rtol=1e-9)
