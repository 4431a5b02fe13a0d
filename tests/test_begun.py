"""Training begins with the right weights, random states, settings and texts.

Each seed has its own initialization, order and random draws.
"""

import dataclasses
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any
from unittest.mock import MagicMock

import pandas as pd
import pytest
import torch
from safetensors.torch import save_file

from lineage.artifacts import create_artifact
from lineage.config.params import AdaptationBudget
from lineage.methods import bilstm_probe, finetuning
from lineage.methods.cached_features import cache_features
from lineage.methods.encoding import encode_items
from lineage.networks.base import Encoder
from lineage.networks.layers.awd_lstm import WeightDropLSTM
from lineage.tokenizers.token_ids import encode_corpus
from lineage.training import adapt, pretrain, train_run
from lineage.training.budget import TrainCounters
from lineage.training.curve import LearningCurve
from lineage.training.objectives import LossSums
from lineage.training.optimizers import build_pretraining_optimizer
from lineage.training.settings import NonMonotonicTrigger
from lineage.training.train_run import TrainPhase
from tests.helpers import tiny
from tests.helpers.first_word import FINETUNE
from tests.helpers.fitting import finetune, fit_bilstm_probe
from tests.helpers.trainings import (
    ADAPT_SETTINGS,
    DEMO_PARAMS,
    build_averaged_run,
    build_train_context,
    train_to_4000_bytes,
)

TABLE = pd.DataFrame(
    {
        "id": [*map(str, range(9))],
        "text": [" ".join(document.split()[:9]) for document in tiny.documents()[:9]],
    }
)
LABELS = (TABLE.index % 2).to_numpy()


@pytest.mark.parametrize("method", ["finetuned", "network"])
def test_each_seed_has_its_own_start_order_and_random_state(
    method: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """This holds for fine-tuning and the BiLSTM probe.

    Batch size, clipping and weight decay are those of the settings.
    """
    tokenizer = tiny.tokenizer("bert")
    recorded: dict[str, Any] = {}
    items = encode_items(TABLE, tokenizer, max_length=None, language="en")
    overrides = {"batch_size": 2, "max_grad_norm": 0.7, "weight_decay": 0.3}

    def record_start(
        state: Any, model: Any, objective: Any, sampler: Any, settings: Any, **_: Any
    ) -> MagicMock:
        sampler.set_epoch(0)
        trained = model.head if method == "finetuned" else model
        decay = {
            group["weight_decay"]
            for group in state.optimizer.param_groups
            if any(p.dim() > 1 for p in group["params"])
        }
        recorded.update(start=[p.tolist() for p in trained.parameters()], order=[group.tolist() for group in sampler.batch_indices],
                     draws=state.rng_state.state.tolist(), clip=settings.max_grad_norm, decay=decay)  # fmt: skip
        return MagicMock(model=model)

    def start_training(seed: int) -> dict[str, Any]:
        if method == "finetuned":
            finetune(
                tiny.model("bert"),
                tokenizer,
                items,
                LABELS,
                tiny.label_answer(2),
                dataclasses.replace(FINETUNE, **overrides),
                seed=seed,
                precision="fp32",
            )
        else:
            cached = cache_features(tiny.model("bert"), tokenizer, items, precision="fp32")
            fit_bilstm_probe(
                cached,
                LABELS,
                tiny.label_answer(2),
                dataclasses.replace(tiny.BILSTM_PROBE, **overrides),
                seed=seed,
                device=tiny.CPU,
            )
        return dict(recorded)

    monkeypatch.setattr(
        finetuning if method == "finetuned" else bilstm_probe, "ValidatedTraining", record_start
    )
    one, same, other = map(start_training, (3, 3, 4))
    for key in ("start", "order", "draws"):
        assert one[key] == same[key] and one[key] != other[key], key
    assert one["clip"] == 0.7 and one["decay"] == {0.3}


def record_run_training(monkeypatch: pytest.MonkeyPatch, module: ModuleType) -> dict[str, Any]:
    """Replace this module's training, and return a dict of the arguments of its last call."""
    recorded: dict[str, Any] = {}

    def record(
        training: pretrain.Training, checkpoint: Any, context: Any, **_: Any
    ) -> pretrain.TrainOutput:
        recorded.update(vars(training))
        model: Any = training.state.model
        return pretrain.TrainOutput(model, LearningCurve(), pretrain.BudgetUsed(), "failed", "x")

    monkeypatch.setattr(module, "run_training", record)
    return recorded


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


def test_adaptation_starts_from_trained_weights_and_reads_max_epochs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Gradients are clipped in the same groups as in pretraining; each seed has its own order."""
    recorded = record_run_training(monkeypatch, adapt)
    seeds = []
    params = dataclasses.replace(
        DEMO_PARAMS, adapt=AdaptationBudget(text_bytes=10**6, max_epochs=2)
    )
    texts = list(tiny.documents()[:20])
    validation_texts = list(tiny.documents()[20:24])
    for seed in (1, 2):
        weights = {key: value + 0.125 for key, value in tiny.model("taglm").state_dict().items()}
        save_file(weights, tmp_path / "model.safetensors")
        checkpoint = dataclasses.replace(
            tiny.checkpoint("taglm"), weights_path=tmp_path / "model.safetensors", seed=seed
        )
        adapt.adapt(
            checkpoint,
            ADAPT_SETTINGS,
            texts,
            validation_texts,
            params,
            build_train_context(tmp_path / "resume"),
        )
        assert all(
            torch.equal(value, weights[key])
            for key, value in recorded["state"].model.state_dict().items()
        )
        seeds.append(recorded["phases"][0].train_sampler.seed)
    text_bytes = sum(len(text.encode()) for text in texts)
    assert recorded["plan"].progress(TrainCounters(text_bytes=2 * text_bytes)) == pytest.approx(1.0)
    assert len(recorded["plan"].clip_groups) == 2 and seeds[0] != seeds[1]


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


@pytest.mark.parametrize("name", ["context2vec", "masked_lstm"])
def test_only_the_biases_of_forget_gates_are_initialized_to_one(name: str) -> None:
    model: Encoder = tiny.model(name)
    lstms = [part for part in model.modules() if isinstance(part, WeightDropLSTM)]
    assert lstms
    for lstm in lstms:
        # torch's order is input, forget, cell, output.
        gates = (lstm.bias_ih + lstm.bias_hh).view(4, -1)
        assert (gates[1] == 1).all() and (gates[[0, 2, 3]] != 1).all()


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
