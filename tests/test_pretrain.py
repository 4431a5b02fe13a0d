"""Pretraining uses the right text, random states and optimizer, and counts its work."""

import dataclasses
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from lineage.artifacts import create_artifact
from lineage.tokenizers.token_ids import encode_corpus
from lineage.training import pretrain, train_run
from lineage.training.budget import TrainCounters
from lineage.training.optimizers import build_pretraining_optimizer
from lineage.training.train_run import TrainPhase
from tests.helpers import tiny
from tests.helpers.trainings import DEMO_PARAMS, build_train_context, record_run_training


def test_pretraining_validates_on_other_text_and_each_seed_has_its_random_state(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with create_artifact(tmp_path / "tokens", "tokens") as draft:
        tiny.corpus("gpt").save(draft, "train")
        encode_corpus(tiny.documents()[:4], tiny.tokenizer("gpt")).save(draft, "valid")
    recorded = record_run_training(monkeypatch, pretrain)
    states = []
    for seed in (1, 2):
        pretrain.pretrain(
            dataclasses.replace(tiny.checkpoint("gpt"), seed=seed),
            tmp_path / "tokens",
            DEMO_PARAMS,
            build_train_context(tmp_path / "resume"),
        )
        states.append(recorded["state"].rng_state.state.tolist())
    (phase,) = recorded["phases"]
    assert (
        phase.train_sampler.tokens.text_bytes
        == tiny.corpus("gpt").text_bytes
        > 5 * phase.validation_sampler.tokens.text_bytes
        > 0
    )
    assert states[0] != states[1]


def test_train_flops_of_two_phases_count_the_tokens_of_each(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pretrain, "_count_flops_per_token", lambda *_: 7.0)
    monkeypatch.setattr(
        train_run.TrainRun,
        "run",
        lambda self: setattr(self.state, "counters", TrainCounters(tokens=100)),
    )
    phases: Any = [TrainPhase(None, None, 0.6), TrainPhase(None, None, 1.0)]  # type: ignore[arg-type]
    state: Any = SimpleNamespace(model=tiny.model("gpt"), counters=TrainCounters())
    unused_plan: Any = None
    assert (
        pretrain.run_training(
            pretrain.Training(state, phases, unused_plan),
            tiny.checkpoint("gpt"),
            build_train_context(tmp_path / "resume"),
            corpus_bytes=9,
        ).budget_used.train_flops
        == 700
    )


@pytest.mark.parametrize("bias_correction", [True, False])
def test_pretraining_uses_the_configured_adam(bias_correction: bool) -> None:
    settings = tiny.model_config(
        "gpt",
        pretrain={
            "betas": [0.8, 0.9],
            "epsilon": 1e-5,
            "weight_decay": 0.3,
            "bias_correction": bias_correction,
        },
    ).pretrain
    optimizer = build_pretraining_optimizer(tiny.model("gpt"), settings)
    assert {(tuple(group["betas"]), group["eps"]) for group in optimizer.param_groups} == {
        ((0.8, 0.9), 1e-5)
    }
    assert {group["weight_decay"] for group in optimizer.param_groups} == {0.0, 0.3}
