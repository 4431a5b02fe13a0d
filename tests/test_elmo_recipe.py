"""ELMo can be trained with the recipe of bilm-tf, and with words instead of characters.

The tests compare AdaGrad on a scaled, clipped gradient with steps computed in NumPy.
"""

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from lineage.artifacts import create_artifact
from lineage.errors import InputError
from lineage.families.elmo import ElmoModel
from lineage.formats import bilm
from lineage.networks.checkpoint import Checkpoint
from lineage.networks.layers.lstm import ProjectedLSTM
from lineage.training.loop import TrainPlan, train, validate
from lineage.training.objectives import bidirectional_lm_loss
from lineage.training.optimizers import build_pretraining_optimizer
from lineage.training.schedules import schedule_with_warmup
from lineage.training.state import RngState, TrainState
from tests.helpers import tiny
from tests.helpers.trainings import pretrain_tiny_model

RECIPE = {
    "optimizer": "adagrad",
    "learning_rate": 0.2,
    "schedule": "constant",
    "warmup_ratio": 0.0,
    "scale_loss_by_seq_len": True,
    "weight_decay": 0.0,
}


@pytest.mark.parametrize("clip_norm", [10.0, 0.5])
def test_pretraining_takes_the_same_optimizer_steps_as_bilm_tf(
    clip_norm: float, tmp_path: Path
) -> None:
    """The expected steps are computed in NumPy.

    The gradient of the loss is multiplied by the sequence length and clipped to the norm. Its
    squares are added to 1.0, and a step divides the gradient by the root of this sum.
    """
    overrides = {"pretrain": {**RECIPE, "max_grad_norm": clip_norm}}
    train_output, checkpoint = pretrain_tiny_model("elmo", tmp_path, 700, **overrides)
    model = checkpoint.build(tiny.CPU, load_weights=False)
    sampler = checkpoint.family.batch_sampler(
        tiny.corpus("elmo"), checkpoint.tokenizer, checkpoint.pretrain, seed=checkpoint.seed
    )  # type: ignore[misc]
    sampler.set_epoch(0)
    values = {
        name: parameter.detach().numpy().astype(float)
        for name, parameter in model.named_parameters()
    }
    squares = {name: np.ones_like(value) for name, value in values.items()}
    state = None
    norms = []
    for index in range(int(train_output.budget_used.steps or 0)):
        model.zero_grad()
        output = bidirectional_lm_loss(model, sampler.get_batch(index), state)
        output.loss.backward()
        state = output.recurrent_state
        gradients = {
            name: checkpoint.pretrain.seq_len * parameter.grad.numpy().astype(float)
            for name, parameter in model.named_parameters()
            if parameter.grad is not None
        }
        norms.append(sum(float((gradient**2).sum()) for gradient in gradients.values()) ** 0.5)
        for name, gradient in gradients.items():
            gradient = gradient * min(1.0, clip_norm / norms[-1])
            squares[name] += gradient**2
            values[name] -= 0.2 * gradient / np.sqrt(squares[name])
        with torch.no_grad():
            for name, parameter in model.named_parameters():
                parameter.copy_(torch.from_numpy(values[name]))
    assert len(norms) >= 5
    assert (max(norms) > clip_norm) == (clip_norm < 1), "otherwise clipping is not tested"
    for name, parameter in train_output.model.named_parameters():
        np.testing.assert_allclose(
            parameter.detach().numpy(), values[name], atol=2e-6, err_msg=name
        )
    first_point = train_output.curve.points[0]
    assert first_point.learning_rate == 0.2
    chance_loss = np.log(tiny.tokenizer("elmo").vocab_size)
    assert first_point.loss == pytest.approx(chance_loss, rel=0.1), "the loss is not scaled"


def test_a_run_with_adagrad_resumes_exactly_from_its_saved_state(tmp_path: Path) -> None:
    overrides: dict[str, Any] = {"pretrain": RECIPE}
    settings = tiny.model_config("elmo", **overrides).pretrain

    def build_state() -> tuple[TrainState, Any]:
        model = tiny.model("elmo")
        sampler = tiny.model_config("elmo").family.batch_sampler(
            tiny.corpus("elmo"), tiny.tokenizer("elmo"), settings, seed=1
        )  # type: ignore[misc]
        return TrainState(model, build_pretraining_optimizer(model, settings), RngState(3)), sampler

    uninterrupted, sampler = build_state()
    plan = TrainPlan(
        lambda counters: counters.steps / 8,
        schedule_with_warmup("constant", 0.0),
        0.2,
        10.0,
        "fp32",
        loss_scale=7.0,
    )
    for index, _ in enumerate(train(uninterrupted, bidirectional_lm_loss, sampler, plan)):
        if index == 3:
            uninterrupted.save(tmp_path / "run")
    resumed, sampler = build_state()
    resumed.load(tmp_path / "run")
    assert len([*train(resumed, bidirectional_lm_loss, sampler, plan)]) == 4
    for expected, actual in zip(
        uninterrupted.model.parameters(), resumed.model.parameters(), strict=True
    ):
        assert torch.equal(expected, actual)


def test_the_constant_schedule_warms_up_and_stays_constant() -> None:
    assert [schedule_with_warmup("constant", 0.5)(p) for p in (0.0, 0.25, 0.5, 1.0)] == [
        0.0,
        0.5,
        1.0,
        1.0,
    ]
    assert schedule_with_warmup("constant", 0.0)(0.0) == 1.0


@pytest.mark.parametrize("name", ["elmo", "taglm"])
@pytest.mark.parametrize("carry_state", [True, False])
def test_windows_continue_from_the_carried_state_or_from_zeros(
    name: str, *, carry_state: bool
) -> None:
    """This holds in training and validation; the learning rate is 0, so only the state differs."""
    config = tiny.model_config(name, pretrain={"carry_state": carry_state})
    model = tiny.model(name)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(3.0)
    assert config.family.batch_sampler is not None and config.family.objective is not None
    sampler = config.family.batch_sampler(
        tiny.corpus(name), tiny.tokenizer(name), config.pretrain, seed=1
    )
    train_state = TrainState(
        model, build_pretraining_optimizer(model, config.pretrain), RngState(1)
    )
    plan = TrainPlan(lambda counters: counters.steps / 3, lambda progress: 0.0, 1.0, 1.0, "fp32")
    losses = [step.loss for step in train(train_state, config.family.objective, sampler, plan)]
    sampler.set_epoch(0)
    state = None
    losses_with_state, losses_without_state = [], []
    for index in range(3):
        output = config.family.objective(model, sampler.get_batch(index), state)
        losses_with_state.append(float(output.loss.detach()))
        losses_without_state.append(
            float(config.family.objective(model, sampler.get_batch(index), None).loss.detach())
        )
        state = output.recurrent_state
    assert losses_with_state[0] == losses_without_state[0]
    assert losses_with_state[1:] != losses_without_state[1:]
    assert losses == pytest.approx(
        losses_with_state if carry_state else losses_without_state, rel=1e-6
    )
    sums = validate(model, config.family.objective, sampler, max_batches=3, precision="fp32")
    direction_weight = 0.5 if name == "elmo" else 1.0
    validation_loss = sum(
        direction_weight * sums.nats[direction] / sums.target_counts[direction]
        for direction in sums.nats
    )
    assert validation_loss == pytest.approx(np.mean(losses), rel=1e-5)


@pytest.mark.parametrize("tied", [False, True])
def test_word_embeddings_can_replace_characters_and_be_tied_to_the_softmax(
    tmp_path: Path, *, tied: bool
) -> None:
    overrides: dict[str, Any] = {
        "architecture": {"input_unit": "words", "tie_word_embeddings": tied}
    }
    checkpoint = tiny.checkpoint("elmo", **overrides)
    tokenizer = tiny.tokenizer("elmo")
    model = checkpoint.build(tiny.CPU, load_weights=False).eval()
    assert isinstance(model, ElmoModel) and model.word_embeddings is not None
    batch = tokenizer.collate([tokenizer.encode("zzz qqq"), tokenizer.encode("zzz")])
    layers = model.encode(batch)
    assert torch.equal(layers[0][0, 1], layers[0][0, 2]), "both words are unknown"
    assert torch.equal(
        layers[0][0, 1, :10], model.word_embeddings.weight[tokenizer.special_token_ids["<unk>"]]
    )
    assert torch.equal(
        model.logits(layers[1][0, :, :10]),
        torch.nn.functional.linear(layers[1][0, :, :10], model.softmax_inputs(layers[1])[1]),
    )
    assert (model.softmax_inputs(layers[1])[1] is model.word_embeddings.weight) == tied
    V, P = model.word_embeddings.weight.shape
    num_parameters = sum(p.numel() for p in model.parameters())
    body_parameters = sum(p.numel() for p in model.body.parameters())
    num_tables = 1 if tied else 2
    assert num_parameters == body_parameters + V + V * P * num_tables
    sampler = checkpoint.family.batch_sampler(
        tiny.corpus("elmo"), tokenizer, checkpoint.pretrain, seed=1
    )  # type: ignore[misc]
    sampler.set_epoch(0)
    bidirectional_lm_loss(model.train(), sampler.get_batch(0), None).loss.backward()
    assert all(p.grad is not None and p.grad.abs().sum() > 0 for p in model.parameters())
    with create_artifact(tmp_path / "model", "model") as draft:
        checkpoint.save(draft, model)
    loaded = Checkpoint.load(tmp_path / "model").build(tiny.CPU).eval()
    assert all(
        torch.equal(actual, expected)
        for actual, expected in zip(loaded.encode(batch), model.eval().encode(batch), strict=True)
    )
    with pytest.raises(InputError, match="input_unit: characters"):
        bilm.write_bilm(
            model, tmp_path / "options.json", tmp_path / "weights.hdf5", max_word_bytes=50
        )


def test_the_trained_initial_state_is_the_state_at_the_end_of_the_training_text(
    tmp_path: Path,
) -> None:
    """The state is saved in the checkpoint, and every text of a batch starts from it.

    Training itself does not change.
    """
    train_output, checkpoint = pretrain_tiny_model(
        "elmo", tmp_path / "warm", 900, architecture={"initial_state": "trained"}
    )
    output_from_zeros, _ = pretrain_tiny_model("elmo", tmp_path / "cold", 900)
    final_states = list(train_output.model.buffers())
    assert len(final_states) == 2 * checkpoint.architecture.num_layers
    assert all(bool(final_state.any()) for final_state in final_states)
    parameters_from_zeros = dict(output_from_zeros.model.named_parameters())
    assert all(
        torch.equal(value, parameters_from_zeros[name])
        for name, value in train_output.model.named_parameters()
    )
    with create_artifact(tmp_path / "model", "model") as draft:
        checkpoint.save(draft, train_output.model)
    model = Checkpoint.load(tmp_path / "model").build(tiny.CPU).eval()
    tokenizer = tiny.tokenizer("elmo")
    assert isinstance(model, ElmoModel)
    texts = [tokenizer.encode(text) for text in ("zzz qqq .", "zzz")]
    layers = model.encode(tokenizer.collate(texts))
    layers_reversed = model.encode(tokenizer.collate(texts[::-1]))
    for x_BTD, y_BTD in zip(layers, layers_reversed, strict=True):
        assert torch.allclose(x_BTD[0], y_BTD[1], atol=1e-6)
    state = tuple(
        (
            final_states[2 * i][:, None].repeat(1, 2, 1),
            final_states[2 * i + 1][:, None].repeat(1, 2, 1),
        )
        for i in range(checkpoint.architecture.num_layers)
    )
    assert all(
        torch.equal(actual, expected)
        for actual, expected in zip(
            layers, model.encode_from_state(tokenizer.collate(texts), state)[0], strict=True
        )
    )
    assert not torch.allclose(
        layers[1], model.encode_from_state(tokenizer.collate(texts), None)[0][1], atol=1e-4
    )
    for other_model in (model, tiny.model("taglm"), tiny.model("gpt")):
        with pytest.raises(InputError, match="initial_state: zeros"):
            bilm.write_bilm(
                other_model, tmp_path / "options.json", tmp_path / "weights.hdf5", max_word_bytes=50
            )  # type: ignore[arg-type]
    assert not [*tmp_path.glob("*.*")]
    random_init = checkpoint.build(tiny.CPU, load_weights=False).eval()
    assert isinstance(random_init, ElmoModel) and torch.equal(
        random_init.encode(tokenizer.collate(texts))[1],
        random_init.encode_from_state(tokenizer.collate(texts), None)[0][1],
    )


def test_a_character_encoder_cannot_be_tied_to_the_softmax() -> None:
    with pytest.raises(
        InputError, match="tie_word_embeddings is true, but a character encoder has no table"
    ):
        tiny.model_config("elmo", architecture={"tie_word_embeddings": True})


def test_weights_are_initialized_as_in_bilm_tf() -> None:
    """Convolutions are uniform in ±0.05 and highway gates nearly closed (bilm-tf, training.py)."""
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
    for layer in body.layers:  # TensorFlow's Glorot over the joint matrix of input and state
        for weight, bound in (
            (layer.weight_ih, (6 / (2 * 40 + 4 * 160)) ** 0.5),
            (layer.weight_hh, (6 / 720) ** 0.5),
            (layer.weight_hr, (6 / 200) ** 0.5),
        ):
            assert 0.99 * bound < float(weight.detach().abs().max()) <= bound and float(
                weight.detach().std()
            ) == pytest.approx(bound / 3**0.5, rel=0.03)


def test_dropout_applies_to_the_input_and_residual_of_a_layer_and_to_the_last_output() -> None:
    """With dropout 1, the second layer sees zeros, and the softmax has only its bias."""
    config = tiny.model_config("elmo", architecture={"dropout": 1.0, "softmax_samples": None})
    model = tiny.model("elmo", architecture={"dropout": 1.0, "softmax_samples": None}).train()
    for layer in model.body.layers:  # type: ignore[union-attr]
        # With zero biases, zeros in would give zeros out.
        torch.nn.init.normal_(layer.bias, generator=torch.Generator().manual_seed(1))
    x = torch.randn(2, 1, 5, model.config.projection_size)  # type: ignore[union-attr, arg-type]
    outputs, _ = model.body(x, None)  # type: ignore[operator]
    output_of_zeros, _ = model.body.layers[1](torch.zeros_like(x), model.body.zero_state(x)[1])  # type: ignore[union-attr, index, operator]
    assert outputs[0].any()
    torch.testing.assert_close(outputs[1], output_of_zeros)
    sampler = config.family.batch_sampler(
        tiny.corpus("elmo"), tiny.tokenizer("elmo"), config.pretrain, seed=1
    )  # type: ignore[misc]
    sampler.set_epoch(0)
    loss = bidirectional_lm_loss(model, sampler.get_batch(0)).loss
    assert float(loss.detach()) == pytest.approx(
        math.log(tiny.tokenizer("elmo").vocab_size), abs=1e-5
    )
