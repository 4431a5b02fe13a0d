"""ELMo as bilm-tf trains it: AdaGrad on a scaled, clipped gradient against steps by hand; windows that start cold; words in place of characters."""

import dataclasses
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from lineage.artifacts import create_artifact
from lineage.config.params import read_params
from lineage.errors import InputError
from lineage.formats import bilm
from lineage.models.checkpoint import Checkpoint
from lineage.models.elmo import ElmoModel
from lineage.models.layers.lstm import ProjectedLSTM
from lineage.runtime.tracking import MlflowTracker
from lineage.training.loop import TrainPlan, train, validate
from lineage.training.objectives import bidirectional_lm_loss
from lineage.training.optimizers import build_pretraining_optimizer
from lineage.training.pretrain import TrainContext, TrainOutput, pretrain
from lineage.training.schedules import LR_SCHEDULES
from lineage.training.state import RngState, TrainState
from tests import tiny

RECIPE = {
    "optimizer": "adagrad",
    "learning_rate": 0.2,
    "schedule": "constant",
    "warmup_ratio": 0.0,
    "scale_loss_by_seq_len": True,
    "weight_decay": 0.0,
}


def pretrained(
    name: str, folder: Path, text_bytes: int, **over: Any
) -> tuple[TrainOutput, Checkpoint]:
    """A tiny model trained on its ids in a folder, the whole way."""
    checkpoint = tiny.checkpoint(name, **over)
    with create_artifact(folder / "tokens", "tokens") as draft:
        tiny.tokens(name).save(draft, "train")
        tiny.tokens(name).save(draft, "valid")
    params = read_params(Path(__file__).parent.parent / "params.yaml")
    params = dataclasses.replace(
        params, budget=dataclasses.replace(params.budget, text_bytes=text_bytes)
    )
    conditions = TrainContext(tiny.CPU, MlflowTracker(None), folder / "resume", 99, lambda *_: None)
    return pretrain(checkpoint, folder / "tokens", params, conditions), checkpoint


@pytest.mark.parametrize("clip_norm", [10.0, 0.5])
def test_pretraining_takes_the_steps_of_bilm_tf(clip_norm: float, tmp_path: Path) -> None:
    """By hand: the gradient of the loss times the length, cut to the norm; its squares added to 1.0; a step of the rate over their root."""
    over = {"pretrain": {**RECIPE, "max_grad_norm": clip_norm}}
    outcome, checkpoint = pretrained("elmo", tmp_path, 700, **over)
    model = checkpoint.build(tiny.CPU, load_weights=False)
    stream = checkpoint.family.batch_sampler(
        tiny.tokens("elmo"), checkpoint.tokenizer, checkpoint.pretrain, seed=checkpoint.seed
    )  # type: ignore[misc]
    stream.set_epoch(0)
    values = {name: p.detach().numpy().astype(float) for name, p in model.named_parameters()}
    squares = {name: np.ones_like(value) for name, value in values.items()}
    carry, norms = None, []
    for index in range(int(outcome.budget_used.steps or 0)):
        model.zero_grad()
        out = bidirectional_lm_loss(model, stream.get_batch(index), carry)
        out.loss.backward()
        carry = out.recurrent_state
        gradients = {
            name: checkpoint.pretrain.seq_len * p.grad.numpy().astype(float)
            for name, p in model.named_parameters()
            if p.grad is not None
        }
        norms.append(sum(float((g**2).sum()) for g in gradients.values()) ** 0.5)
        for name, gradient in gradients.items():
            gradient = gradient * min(1.0, clip_norm / norms[-1])
            squares[name] += gradient**2
            values[name] -= 0.2 * gradient / np.sqrt(squares[name])
        with torch.no_grad():
            for name, parameter in model.named_parameters():
                parameter.copy_(torch.from_numpy(values[name]))
    assert len(norms) >= 5 and (max(norms) > clip_norm) == (clip_norm < 1), (
        "else the clipping is not tried"
    )
    for name, parameter in outcome.model.named_parameters():
        np.testing.assert_allclose(
            parameter.detach().numpy(), values[name], atol=2e-6, err_msg=name
        )
    first = outcome.curve.points[0]
    assert first.learning_rate == 0.2 and first.loss == pytest.approx(
        np.log(tiny.reader("elmo").vocab_size), rel=0.1
    ), "the loss itself is shown"


def test_a_run_by_adagrad_is_saved_and_loaded_whole(tmp_path: Path) -> None:
    over: dict[str, Any] = {"pretrain": RECIPE}
    settings = tiny.variant("elmo", **over).pretrain

    def fresh() -> tuple[TrainState, Any]:
        model = tiny.model("elmo")
        stream = tiny.variant("elmo").family.batch_sampler(
            tiny.tokens("elmo"), tiny.reader("elmo"), settings, seed=1
        )  # type: ignore[misc]
        return TrainState(
            model, build_pretraining_optimizer([*model.parameters()], settings), RngState(3)
        ), stream

    whole, stream = fresh()
    course = TrainPlan(
        lambda spent: spent.steps / 8,
        LR_SCHEDULES["constant"](0.0),
        0.2,
        10.0,
        "fp32",
        loss_scale=7.0,
    )
    for number, _ in enumerate(train(whole, bidirectional_lm_loss, stream, course)):
        if number == 3:
            whole.save(tmp_path / "run")
    again, stream = fresh()
    again.load(tmp_path / "run")
    assert len([*train(again, bidirectional_lm_loss, stream, course)]) == 4
    for one, other in zip(whole.model.parameters(), again.model.parameters(), strict=True):
        assert torch.equal(one, other)


def test_the_constant_schedule_rises_and_stays() -> None:
    assert [LR_SCHEDULES["constant"](0.5)(p) for p in (0.0, 0.25, 0.5, 1.0)] == [0.0, 0.5, 1.0, 1.0]
    assert LR_SCHEDULES["constant"](0.0)(0.0) == 1.0


@pytest.mark.parametrize("name", ["elmo", "taglm"])
@pytest.mark.parametrize("stateful", [True, False])
def test_windows_go_on_from_the_state_before_or_start_cold(name: str, *, stateful: bool) -> None:
    """In training and in validation alike; nothing learns here, so that only the state can make a difference."""
    found, model = tiny.variant(name, pretrain={"carry_state": stateful}), tiny.model(name)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(3.0)
    assert found.family.batch_sampler is not None and found.family.objective is not None
    stream = found.family.batch_sampler(
        tiny.tokens(name), tiny.reader(name), found.pretrain, seed=1
    )
    run = TrainState(
        model, build_pretraining_optimizer([*model.parameters()], found.pretrain), RngState(1)
    )
    course = TrainPlan(lambda spent: spent.steps / 3, lambda progress: 0.0, 1.0, 1.0, "fp32")
    losses = [step.loss for step in train(run, found.family.objective, stream, course)]
    stream.set_epoch(0)
    carry, warm, cold = None, [], []
    for index in range(3):
        out = found.family.objective(model, stream.get_batch(index), carry)
        warm.append(float(out.loss.detach()))
        cold.append(
            float(found.family.objective(model, stream.get_batch(index), None).loss.detach())
        )
        carry = out.recurrent_state
    assert warm[0] == cold[0] and warm[1:] != cold[1:]
    assert losses == pytest.approx(warm if stateful else cold, rel=1e-6)
    sums = validate(model, found.family.objective, stream, max_batches=3, precision="fp32")
    share = 0.5 if name == "elmo" else 1.0
    assert sum(
        share * sums.nats[way] / sums.target_counts[way] for way in sums.nats
    ) == pytest.approx(np.mean(losses), rel=1e-5)


@pytest.mark.parametrize("tied", [False, True])
def test_words_can_take_the_place_of_characters_and_be_the_softmax(
    tmp_path: Path, *, tied: bool
) -> None:
    over: dict[str, Any] = {"architecture": {"input_unit": "words", "tie_word_embeddings": tied}}
    checkpoint, reader = tiny.checkpoint("elmo", **over), tiny.reader("elmo")
    model = checkpoint.build(tiny.CPU, load_weights=False).eval()
    assert isinstance(model, ElmoModel) and model.word_embeddings is not None
    batch = reader.collate([reader.encode("zzz qqq"), reader.encode("zzz")])
    layers = model.encode(batch)
    assert torch.equal(layers[0][0, 1], layers[0][0, 2]), "both are unknown"
    assert torch.equal(
        layers[0][0, 1, :10], model.word_embeddings.weight[reader.special_token_ids["<unk>"]]
    )
    assert torch.equal(
        model.logits(layers[1][0, :, :10]),
        torch.nn.functional.linear(layers[1][0, :, :10], model.softmax_inputs(layers[1])[1]),
    )
    assert (model.softmax_inputs(layers[1])[1] is model.word_embeddings.weight) == tied
    V, P = model.word_embeddings.weight.shape
    assert sum(p.numel() for p in model.parameters()) == sum(
        p.numel() for p in model.body.parameters()
    ) + V + V * P * (1 if tied else 2)
    stream = checkpoint.family.batch_sampler(
        tiny.tokens("elmo"), reader, checkpoint.pretrain, seed=1
    )  # type: ignore[misc]
    stream.set_epoch(0)
    bidirectional_lm_loss(model.train(), stream.get_batch(0), None).loss.backward()
    assert all(p.grad is not None and p.grad.abs().sum() > 0 for p in model.parameters())
    with create_artifact(tmp_path / "model", "model") as draft:
        checkpoint.save(draft, model)
    again = Checkpoint.load(tmp_path / "model").build(tiny.CPU).eval()
    assert all(
        torch.equal(a, b)
        for a, b in zip(again.encode(batch), model.eval().encode(batch), strict=True)
    )
    with pytest.raises(InputError, match="input_unit: characters"):
        bilm.write_bilm(
            model, tmp_path / "options.json", tmp_path / "weights.hdf5", max_word_bytes=50
        )


def test_a_warm_start_is_the_state_that_the_training_text_ended_in(tmp_path: Path) -> None:
    """Kept in the checkpoint; texts are read from it alike, in whatever order, and the language model's training is what it was."""
    outcome, checkpoint = pretrained(
        "elmo", tmp_path / "warm", 900, architecture={"initial_state": "trained"}
    )
    plain, _ = pretrained("elmo", tmp_path / "cold", 900)
    ends = list(outcome.model.buffers())
    assert len(ends) == 2 * checkpoint.architecture.num_layers and all(
        bool(end.any()) for end in ends
    )
    cold = dict(plain.model.named_parameters())
    assert all(torch.equal(value, cold[name]) for name, value in outcome.model.named_parameters())
    with create_artifact(tmp_path / "model", "model") as draft:
        checkpoint.save(draft, outcome.model)
    model, reader = Checkpoint.load(tmp_path / "model").build(tiny.CPU).eval(), tiny.reader("elmo")
    assert isinstance(model, ElmoModel)
    texts = [reader.encode(text) for text in ("zzz qqq .", "zzz")]
    together, turned = (
        model.encode(reader.collate(texts)),
        model.encode(reader.collate(texts[::-1])),
    )
    for x_BTD, y_BTD in zip(together, turned, strict=True):
        assert torch.allclose(x_BTD[0], y_BTD[1], atol=1e-6)
    state = tuple(
        (ends[2 * i][:, None].repeat(1, 2, 1), ends[2 * i + 1][:, None].repeat(1, 2, 1))
        for i in range(checkpoint.architecture.num_layers)
    )
    assert all(
        torch.equal(a, b)
        for a, b in zip(
            together, model.encode_from_state(reader.collate(texts), state)[0], strict=True
        )
    )
    assert not torch.allclose(
        together[1], model.encode_from_state(reader.collate(texts), None)[0][1], atol=1e-4
    )
    for other in (model, tiny.model("taglm"), tiny.model("gpt")):
        with pytest.raises(InputError, match="initial_state: zeros"):
            bilm.write_bilm(
                other, tmp_path / "options.json", tmp_path / "weights.hdf5", max_word_bytes=50
            )  # type: ignore[arg-type]
    assert not [*tmp_path.glob("*.*")]
    twin = checkpoint.build(tiny.CPU, load_weights=False).eval()
    assert isinstance(twin, ElmoModel) and torch.equal(
        twin.encode(reader.collate(texts))[1],
        twin.encode_from_state(reader.collate(texts), None)[0][1],
    )


def test_a_character_encoder_cannot_be_tied_to_the_softmax() -> None:
    with pytest.raises(
        InputError, match="tie_word_embeddings is true, but a character encoder has no table"
    ):
        tiny.variant("elmo", architecture={"tie_word_embeddings": True})


def test_it_begins_as_bilm_tf_does() -> None:
    """Convolutions uniform in 0.05, and highways whose gates are nearly shut (bilm-tf, training.py)."""
    characters = tiny.model("elmo").require_char_cnn()  # type: ignore[operator]
    assert all(
        float(convolution.weight.detach().abs().max()) <= 0.05
        for convolution in characters.convolutions
    )
    assert all(
        (highway.carry.bias == -2).all() and not highway.transform.bias.any()
        for highway in characters.highways
    )
    tanh = tiny.model("elmo", architecture={"activation": "tanh"}).require_char_cnn()  # type: ignore[operator]
    assert all(
        float(c.weight.detach().std()) == pytest.approx(c.weight[0].numel() ** -0.5, rel=0.25)
        for c in tanh.convolutions
    )
    body = ProjectedLSTM(
        num_layers=2,
        projection_size=40,
        cell_size=160,
        cell_clip=3.0,
        projection_clip=3.0,
        dropout=0.0,
    )
    body.init_weights(torch.Generator().manual_seed(1))
    for layer in body.layers:  # TensorFlow's Glorot, over the matrix of input and state
        for weight, bound in (
            (layer.weight_ih, (6 / (2 * 40 + 4 * 160)) ** 0.5),
            (layer.weight_hh, (6 / 720) ** 0.5),
            (layer.weight_hr, (6 / 200) ** 0.5),
        ):
            assert 0.99 * bound < float(weight.detach().abs().max()) <= bound and float(
                weight.detach().std()
            ) == pytest.approx(bound / 3**0.5, rel=0.03)


def test_dropout_falls_on_the_way_round_a_layer_and_on_the_last_output() -> None:
    """Where all is dropped, the second layer gives what it gives of nothing, and the softmax knows its bias alone."""
    variant = tiny.variant("elmo", architecture={"dropout": 1.0, "softmax_samples": None})
    model = tiny.model("elmo", architecture={"dropout": 1.0, "softmax_samples": None}).train()
    for layer in model.body.layers:  # type: ignore[union-attr]
        torch.nn.init.normal_(
            layer.bias, generator=torch.Generator().manual_seed(1)
        )  # else nothing in would be nothing out
    x = torch.randn(2, 1, 5, model.config.projection_size)  # type: ignore[union-attr, arg-type]
    outputs, _ = model.body(x, None)  # type: ignore[operator]
    alone, _ = model.body.layers[1](torch.zeros_like(x), model.body.zero_state(x)[1])  # type: ignore[union-attr, index, operator]
    assert outputs[0].any()
    torch.testing.assert_close(outputs[1], alone)
    stream = variant.family.batch_sampler(
        tiny.tokens("elmo"), tiny.reader("elmo"), variant.pretrain, seed=1
    )  # type: ignore[misc]
    stream.set_epoch(0)
    loss = bidirectional_lm_loss(model, stream.get_batch(0)).loss
    assert float(loss.detach()) == pytest.approx(math.log(tiny.reader("elmo").vocab_size), abs=1e-5)
