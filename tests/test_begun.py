"""What a training begins with: each seed its own start, order and draws, the settings that were given, text that is held out, trained weights."""

import dataclasses
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any
from unittest.mock import MagicMock

import pandas as pd
import pytest
import torch
from safetensors.torch import save_file

from lineage.artifacts import create_artifact
from lineage.config.params import AdaptationBudget, read_params
from lineage.evaluation import bilstm_probe, finetuning
from lineage.evaluation.bilstm_probe import cache_features, fit_bilstm_probe
from lineage.evaluation.encoding import encode_items
from lineage.evaluation.finetuning import finetune
from lineage.models.base import Encoder
from lineage.models.layers.awd_lstm import WeightDropLSTM
from lineage.tokenizers.token_ids import encode_corpus
from lineage.training import adapt, pretrain
from lineage.training.budget import TrainCounters
from lineage.training.objectives import LossSums
from lineage.training.optimizers import build_pretraining_optimizer
from lineage.training.pretrain import TrainContext, TrainPhase
from lineage.training.settings import NonMonotonicTrigger
from tests import tiny
from tests.test_adaptation import PLAIN
from tests.test_nt_asgd import averaged_run, trained
from tests.test_transfer import TUNED

PARAMS = read_params(Path(__file__).parent.parent / "params.yaml")
TABLE = pd.DataFrame(
    {
        "id": [*map(str, range(9))],
        "text": [" ".join(document.split()[:9]) for document in tiny.documents()[:9]],
    }
)
GOLD = (TABLE.index % 2).to_numpy()


def conditions(folder: Path) -> TrainContext:
    return TrainContext(tiny.CPU, MagicMock(), folder / "resume", 99, lambda *_: None)


@pytest.mark.parametrize("arm", ["finetuned", "network"])
def test_a_reader_of_a_seed_has_its_own_start_order_and_draws_and_the_settings_that_were_given(
    arm: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    reader, found = tiny.reader("bert"), dict[str, Any]()
    items = encode_items(TABLE, reader, max_length=None, language="en")
    own = {"batch_size": 2, "max_grad_norm": 0.7, "weight_decay": 0.3}

    def begun(run: Any, objective: Any, stream: Any, course: Any) -> Iterator[Any]:
        learned = run.model.head if arm == "finetuned" else run.model
        decay = {
            group["weight_decay"]
            for group in run.optimizer.param_groups
            if any(p.dim() > 1 for p in group["params"])
        }
        found.update(start=[p.tolist() for p in learned.parameters()], order=[group.tolist() for group in stream.batch_indices],
                     draws=run.rng_state.state.tolist(), clip=course.max_grad_norm, decay=decay)  # fmt: skip
        return iter(())

    def begins(seed: int) -> dict[str, Any]:
        if arm == "finetuned":
            finetune(
                tiny.model("bert"),
                reader,
                items,
                GOLD,
                tiny.labels(2),
                dataclasses.replace(TUNED, **own),
                seed=seed,
                precision="fp32",
            )
        else:
            cached = cache_features(tiny.model("bert"), reader, items, precision="fp32")
            fit_bilstm_probe(
                cached,
                GOLD,
                tiny.labels(2),
                dataclasses.replace(tiny.NETWORK, **own),
                seed=seed,
                device=tiny.CPU,
            )
        return dict(found)

    monkeypatch.setattr(finetuning if arm == "finetuned" else bilstm_probe, "train", begun)
    one, same, other = map(begins, (3, 3, 4))
    for key in ("start", "order", "draws"):
        assert one[key] == same[key] and one[key] != other[key], key
    assert one["clip"] == 0.7 and one["decay"] == {0.3}


def beginnings(monkeypatch: pytest.MonkeyPatch, module: ModuleType) -> dict[str, Any]:
    """What the last training of this module was to begin with; none is done."""
    got: dict[str, Any] = {}

    def begun(
        run: Any, checkpoint: Any, parts: Any, course: Any, conditions: Any, *, corpus_bytes: int
    ) -> pretrain.TrainOutput:
        got.update(run=run, parts=parts, course=course)
        return pretrain.TrainOutput(
            run.model, pretrain.LearningCurve(), pretrain.BudgetUsed(), "failed", "x"
        )

    monkeypatch.setattr(module, "run_training", begun)
    return got


def test_pretraining_holds_other_text_than_it_reads_and_each_seed_draws_for_itself(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with create_artifact(tmp_path / "tokens", "tokens") as draft:
        tiny.tokens("gpt").save(draft, "train")
        encode_corpus(tiny.documents()[:4], tiny.reader("gpt")).save(draft, "valid")
    got, states = beginnings(monkeypatch, pretrain), []
    for seed in (1, 2):
        pretrain.pretrain(
            dataclasses.replace(tiny.checkpoint("gpt"), seed=seed),
            tmp_path / "tokens",
            PARAMS,
            conditions(tmp_path),
        )
        states.append(got["run"].rng_state.state.tolist())
    (part,) = got["parts"]
    assert (
        part.train_sampler.tokens.text_bytes
        == tiny.tokens("gpt").text_bytes
        > 5 * part.validation_sampler.tokens.text_bytes
        > 0
    )
    assert states[0] != states[1]


def test_adaptation_begins_with_trained_weights_reads_so_many_passes_and_clips_as_pretraining_does(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    got, seeds = beginnings(monkeypatch, adapt), []
    params = dataclasses.replace(PARAMS, adapt=AdaptationBudget(text_bytes=10**6, max_epochs=2))
    texts, held = list(tiny.documents()[:20]), list(tiny.documents()[20:24])
    for seed in (1, 2):
        weights = {key: value + 0.125 for key, value in tiny.model("taglm").state_dict().items()}
        save_file(weights, tmp_path / "model.safetensors")
        made = dataclasses.replace(
            tiny.checkpoint("taglm"), weights_path=tmp_path / "model.safetensors", seed=seed
        )
        adapt.adapt(made, PLAIN, texts, held, params, conditions(tmp_path))
        assert all(
            torch.equal(value, weights[key]) for key, value in got["run"].model.state_dict().items()
        )
        seeds.append(got["parts"][0].train_sampler.seed)
    size = sum(len(text.encode()) for text in texts)
    assert got["course"].progress(TrainCounters(text_bytes=2 * size)) == pytest.approx(1.0)
    assert len(got["course"].clip_groups) == 2 and seeds[0] != seeds[1]


def test_operations_of_two_parts_are_each_of_the_text_that_it_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pretrain, "_count_flops_per_token", lambda *_: 7.0)
    monkeypatch.setattr(
        pretrain,
        "train_language_model",
        lambda run, *_: setattr(run, "counters", TrainCounters(tokens=100)),
    )
    parts: Any = [TrainPhase(None, None, 0.6), TrainPhase(None, None, 1.0)]  # type: ignore[arg-type]
    run: Any = SimpleNamespace(model=tiny.model("gpt"), counters=TrainCounters())
    nothing: Any = None
    assert (
        pretrain.run_training(
            run, tiny.checkpoint("gpt"), parts, nothing, conditions(tmp_path), corpus_bytes=9
        ).budget_used.train_flops
        == 700
    )


@pytest.mark.parametrize("correction", [True, False])
def test_the_recipe_s_adam_is_the_one_that_pretrains(correction: bool) -> None:
    settings = tiny.variant(
        "gpt",
        pretrain={
            "betas": [0.8, 0.9],
            "epsilon": 1e-5,
            "weight_decay": 0.3,
            "bias_correction": correction,
        },
    ).pretrain
    optimizer = build_pretraining_optimizer([*tiny.model("gpt").parameters()], settings)
    assert {(tuple(group["betas"]), group["eps"]) for group in optimizer.param_groups} == {
        ((0.8, 0.9), 1e-5)
    }
    assert {group["weight_decay"] for group in optimizer.param_groups} == {0.0, 0.3}


def test_the_averaging_of_nt_asgd_is_decided_on_all_held_text(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = []

    def validated(*_: Any, max_batches: int, **__: Any) -> LossSums:
        asked.append(max_batches)
        return LossSums({"forward": 1.0}, {"forward": 1}, 1)

    monkeypatch.setattr(pretrain, "validate", validated)
    run, stream, held = averaged_run(NonMonotonicTrigger(checks=4, patience=1))
    trained(run, stream, held, tmp_path)
    assert len(asked) == 4 and min(asked) >= held.set_epoch(0) > pretrain.VALIDATION_BATCHES


@pytest.mark.parametrize("name", ["context2vec", "masked_lstm"])
def test_forget_gates_begin_open_and_the_others_do_not(name: str) -> None:
    model: Encoder = tiny.model(name)
    lstms = [part for part in model.modules() if isinstance(part, WeightDropLSTM)]
    assert lstms
    for lstm in lstms:
        gates = (lstm.bias_ih + lstm.bias_hh).view(
            4, -1
        )  # input, forget, cell, output, as torch has them
        assert (gates[1] == 1).all() and (gates[[0, 2, 3]] != 1).all()


def test_a_resumed_training_tells_its_whole_curve_again(tmp_path: Path) -> None:
    """Its run in MLflow may be a new one, as after a commit in between."""
    trackers = [MagicMock(), MagicMock()]
    (tmp_path / "resume").mkdir()

    def stop() -> None:
        if len(trackers[0].log_metrics.mock_calls) == 5:
            raise KeyboardInterrupt

    run, *streams = averaged_run(NonMonotonicTrigger(checks=20, patience=18))
    with pytest.raises(KeyboardInterrupt):
        trained(run, *streams, tmp_path / "resume", stop, trackers[0])
    run, *streams = averaged_run(NonMonotonicTrigger(checks=20, patience=18))
    curve = trained(run, *streams, tmp_path / "resume", tracker=trackers[1])
    first, second = (
        [
            (call.kwargs["step"], call.kwargs["text_bytes"], call.args[0])
            for call in one.log_metrics.mock_calls
        ]
        for one in trackers
    )
    assert [step for step, *_ in second] == [point.step for point in curve.points] and len(
        second
    ) > 5
    assert first[:4] == second[:4] and 0 < second[0][1] < second[-1][1]
