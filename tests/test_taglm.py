"""TagLM's two language models match numpy, share nothing, and train together as if alone."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from lineage.families.taglm import TagLMConfig, TagLMModel, independent_lm_losses
from lineage.networks.base import LossOutput
from lineage.networks.batch import Batch
from lineage.training.loop import TrainPlan, train
from lineage.training.optimizers import build_adamw, build_param_groups
from lineage.training.state import RngState, TrainState
from tests.helpers import tiny
from tests.helpers.by_hand import (
    arrays_with_prefix,
    assert_gradients_match_finite_differences,
    cross_entropy_nats,
    parameter_arrays,
    projected_lstm_step,
)
from tests.helpers.trainings import pretrain_tiny_model

CLIPS = 0.25, 0.1  # clip values of cell and projection
WINDOWS = [
    torch.tensor([[1, 5, 3], [2, 6, 6], [4, 1, 0], [3, 3, 5]]),
    torch.tensor([[3, 2, 1], [6, 0, 4], [0, 2, 2], [5, 1, 6]]),
]
TARGETS = [
    torch.tensor([[5, 3, 3], [6, 6, 6], [1, 0, 0], [3, 5, 5]]),
    torch.tensor([[2, 1, 4], [0, 4, 1], [2, 2, 3], [1, 6, 0]]),
]


def small_model(**overrides: Any) -> TagLMModel:
    """Return a double-precision model with 7 words, projection size 3 and cell size 5."""
    defaults: dict[str, Any] = {"directions": "bidirectional", "num_layers": 1, "cell_to_projection_ratio": 4, "dropout": 0.0, "cell_clip": CLIPS[0], "projection_clip": CLIPS[1],
                             "softmax_samples": None, "projection_size": 3, "cell_size": 5}  # fmt: skip
    model = TagLMModel(TagLMConfig(**defaults | overrides), vocab_size=7)
    model.init_weights(torch.Generator().manual_seed(8))
    return model.double()


def run_windows(model: TagLMModel, windows: range = range(2)) -> LossOutput:
    """Return the output of the last of these windows, carrying the state between them."""
    recurrent_state = None
    for window in windows:
        output = independent_lm_losses(
            model,
            Batch(
                WINDOWS[window],
                torch.ones_like(WINDOWS[window], dtype=torch.bool),
                targets_BT=TARGETS[window],
            ),
            recurrent_state,
        )
        recurrent_state = output.recurrent_state
    return output


def by_hand(
    p: dict[str, np.ndarray], state: tuple[np.ndarray, np.ndarray], window: int
) -> tuple[float, tuple[np.ndarray, np.ndarray]]:
    """Return the loss of one window, and the (4, 3) outputs and (4, 5) cells after it.

    The forward model reads rows 0 and 1, the backward model rows 2 and 3.
    """
    outputs = state[0].copy()
    cells = state[1].copy()
    loss = 0.0
    for row in range(4):
        model_weights = arrays_with_prefix(p, f"language_models.{row // 2}")
        for t in range(3):
            word = model_weights["word_embeddings.weight"][int(WINDOWS[window][row, t])]
            outputs[row], cells[row] = projected_lstm_step(
                word,
                outputs[row],
                cells[row],
                arrays_with_prefix(model_weights, "body.layers.0"),
                CLIPS,
            )
            loss += (
                cross_entropy_nats(
                    model_weights["softmax.weight"] @ outputs[row] + model_weights["softmax.bias"],
                    int(TARGETS[window][row, t]),
                )
                / 6
            )
    return loss, (outputs, cells)


ZERO_STATE = np.zeros((4, 3)), np.zeros((4, 5))


def test_losses_states_and_gradients_match_numpy() -> None:
    model = small_model()
    first_loss, state = by_hand(parameter_arrays(model), ZERO_STATE, 0)
    second_loss, end_state = by_hand(parameter_arrays(model), state, 1)
    assert (np.abs(state[1]) == CLIPS[0]).any() and (np.abs(state[0]) == CLIPS[1]).any(), (
        "both clips must take effect"
    )
    assert float(run_windows(model, range(1)).loss.detach()) == pytest.approx(first_loss, abs=1e-12)
    output = run_windows(model)
    assert float(output.loss.detach()) == pytest.approx(second_loss, abs=1e-12)
    for direction, (projection, cell) in enumerate(output.recurrent_state):
        np.testing.assert_allclose(
            projection[0].numpy(), end_state[0][2 * direction : 2 * direction + 2], atol=1e-12
        )
        np.testing.assert_allclose(
            cell[0].numpy(), end_state[1][2 * direction : 2 * direction + 2], atol=1e-12
        )
    output.loss.backward()  # only the second window: the carried state has no gradient
    assert_gradients_match_finite_differences(model, lambda p: by_hand(p, state, 1)[0])


@pytest.mark.parametrize("direction", ["forward", "backward"])
def test_training_both_directions_together_equals_training_each_alone(direction: str) -> None:
    """A joint gradient norm would couple the two models when gradients are clipped."""
    results = []
    for directions in ("bidirectional", direction):
        model = model_of_size_seven(directions)
        with torch.no_grad():
            for number, parameter in enumerate(
                model.language_models[model.direction_names.index(direction)].parameters()
            ):
                torch.nn.init.normal_(
                    parameter, std=0.3, generator=torch.Generator().manual_seed(number)
                )
        sampler = build_sampler()
        state = TrainState(
            model,
            build_adamw(build_param_groups([[*model.parameters()]], weight_decay=0.0)),
            RngState(1),
        )
        plan = TrainPlan(
            lambda counters: counters.steps / 9,
            lambda progress: 1.0,
            0.01,
            0.05,
            "fp32",
            clip_groups=model.grad_clip_groups(),
        )
        losses: list[float] = []

        def objective(
            model: TagLMModel, batch: Batch, recurrent_state: Any, losses: list[float] = losses
        ) -> LossOutput:
            output = independent_lm_losses(model, batch, recurrent_state)
            losses.append(float(output.nats[direction]))
            return output

        assert len([*train(state, objective, sampler, plan)]) == 9
        results.append(
            (model.language_models[model.direction_names.index(direction)].state_dict(), losses)
        )
    assert results[0][1] == results[1][1] and len(results[0][1]) == 9
    for name, value in results[0][0].items():
        assert torch.equal(value, results[1][0][name]), name


def model_of_size_seven(directions: str) -> TagLMModel:
    """Return an untrained model with projection size 7."""
    config = tiny.model_config(
        "taglm", architecture={"directions": directions, "projection_size": 7, "cell_size": 11}
    ).architecture
    model = TagLMModel(config, vocab_size=tiny.tokenizer("taglm").vocab_size)
    model.init_weights(torch.Generator().manual_seed(2))
    return model


def build_sampler() -> Any:
    """Return TagLM's sampler over the tiny documents."""
    config = tiny.model_config("taglm")
    assert config.family.batch_sampler is not None
    return config.family.batch_sampler(
        tiny.corpus("taglm"), tiny.tokenizer("taglm"), config.pretrain, seed=1
    )


def test_pretraining_clips_each_model_by_its_own_norm(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clipped: list[int] = []
    clip_grad_norm = torch.nn.utils.clip_grad_norm_

    def recording_clip(parameters: list[torch.nn.Parameter], norm: float) -> torch.Tensor:
        clipped.append(len(parameters))
        return clip_grad_norm(parameters, norm)

    monkeypatch.setattr(torch.nn.utils, "clip_grad_norm_", recording_clip)
    output, _ = pretrain_tiny_model("taglm", tmp_path, 600)
    num_parameters = len([*output.model.parameters()]) // 2
    assert set(clipped) == {num_parameters} and len(clipped) == 2 * (output.budget_used.steps or 0)


@pytest.mark.parametrize("position", [3, 6, 9])
def test_neither_direction_sees_the_other_side(position: int) -> None:
    model = tiny.model("taglm").eval()
    tokenizer = tiny.tokenizer("taglm")
    batch = tokenizer.collate([tokenizer.encode(" ".join(tiny.documents()[3].split()[:14]))])
    changed_ids = batch.ids_BT.clone()
    changed_ids[0, position] += 1
    (before,), (after,) = model.encode(batch), model.encode(Batch(changed_ids, batch.mask_BT))
    P = model.hidden_sizes()[0] // 2
    assert torch.equal(before[0, :position, :P], after[0, :position, :P])
    assert torch.equal(before[0, position + 1 :, P:], after[0, position + 1 :, P:])
    assert not torch.allclose(before[0, position:, :P], after[0, position:, :P])
    assert not torch.allclose(before[0, : position + 1, P:], after[0, : position + 1, P:])


def test_bidirectional_scores_are_the_sum_of_the_two_directions() -> None:
    tokenizer = tiny.tokenizer("taglm")
    texts = [" ".join(d.split()[:9]) for d in tiny.documents()[:3]]
    scores = {}
    for directions in ("bidirectional", "forward", "backward"):
        model = model_of_size_seven(directions).eval()
        assert model.hidden_sizes() == ((14 if directions == "bidirectional" else 7),)
        for direction, language_model in model.models_by_direction().items():
            for number, parameter in enumerate(language_model.parameters()):
                torch.nn.init.normal_(
                    parameter,
                    generator=torch.Generator().manual_seed(number + 99 * (direction == "forward")),
                )
        score = tiny.model_config("taglm").family.score_texts
        assert score is not None
        scores[directions] = score(model, tokenizer, texts, limit=None)
    np.testing.assert_allclose(
        scores["bidirectional"], scores["forward"] + scores["backward"], rtol=1e-5
    )
    assert not np.allclose(scores["forward"], scores["backward"])
