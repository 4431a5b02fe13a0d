"""TagLM: two language models that share nothing, written out by hand; trained together as if each were alone."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from lineage.models.base import LossOutput
from lineage.models.batch import Batch
from lineage.models.taglm import TagLMConfig, TagLMModel, independent_lm_losses
from lineage.training.loop import TrainPlan, train
from lineage.training.optimizers import build_adamw, build_param_groups
from lineage.training.state import RngState, TrainState
from tests import tiny
from tests.by_hand import (
    assert_gradients_are_central_differences,
    nats,
    numbers,
    part,
    projected_step,
)
from tests.test_elmo_recipe import pretrained

CLIPS = 0.25, 0.1  # of cell and projection
WINDOWS = [
    torch.tensor([[1, 5, 3], [2, 6, 6], [4, 1, 0], [3, 3, 5]]),
    torch.tensor([[3, 2, 1], [6, 0, 4], [0, 2, 2], [5, 1, 6]]),
]
TARGETS = [
    torch.tensor([[5, 3, 3], [6, 6, 6], [1, 0, 0], [3, 5, 5]]),
    torch.tensor([[2, 1, 4], [0, 4, 1], [2, 2, 3], [1, 6, 0]]),
]


def small(**over: Any) -> TagLMModel:
    """A model in double precision, of 7 words, 3 units out and 5 inside."""
    plain: dict[str, Any] = {"directions": "bidirectional", "num_layers": 1, "cell_to_projection_ratio": 4, "dropout": 0.0, "cell_clip": CLIPS[0], "projection_clip": CLIPS[1],
                             "softmax_samples": None, "projection_size": 3, "cell_size": 5}  # fmt: skip
    model = TagLMModel(TagLMConfig(**plain | over), vocab_size=7)
    model.init_weights(torch.Generator().manual_seed(8))
    return model.double()


def run(model: TagLMModel, windows: range = range(2)) -> LossOutput:
    carry = None
    for i in windows:
        out = independent_lm_losses(
            model,
            Batch(WINDOWS[i], torch.ones_like(WINDOWS[i], dtype=torch.bool), targets_BT=TARGETS[i]),
            carry,
        )
        carry = out.recurrent_state
    return out


def by_hand(
    p: dict[str, np.ndarray], state: tuple[np.ndarray, np.ndarray], window: int
) -> tuple[float, tuple[np.ndarray, np.ndarray]]:
    """The loss of one window, and (4, 3) outputs and (4, 5) cells after it; the forward model reads rows 0 and 1, the backward one 2 and 3."""
    outs, cells, total = state[0].copy(), state[1].copy(), 0.0
    for row in range(4):
        own = part(p, f"language_models.{row // 2}")
        for t in range(3):
            word = own["word_embeddings.weight"][int(WINDOWS[window][row, t])]
            outs[row], cells[row] = projected_step(
                word, outs[row], cells[row], part(own, "body.layers.0"), CLIPS
            )
            total += (
                nats(
                    own["softmax.weight"] @ outs[row] + own["softmax.bias"],
                    int(TARGETS[window][row, t]),
                )
                / 6
            )
    return total, (outs, cells)


COLD = np.zeros((4, 3)), np.zeros((4, 5))


def test_losses_carried_states_and_gradients_are_those_written_by_hand() -> None:
    model = small()
    first, state = by_hand(numbers(model), COLD, 0)
    second, end = by_hand(numbers(model), state, 1)
    assert (np.abs(state[1]) == CLIPS[0]).any() and (np.abs(state[0]) == CLIPS[1]).any(), (
        "else the clips are not tried"
    )
    assert float(run(model, range(1)).loss.detach()) == pytest.approx(first, abs=1e-12)
    out = run(model)
    assert float(out.loss.detach()) == pytest.approx(second, abs=1e-12)
    for way, (output, cell) in enumerate(out.recurrent_state):
        np.testing.assert_allclose(output[0].numpy(), end[0][2 * way : 2 * way + 2], atol=1e-12)
        np.testing.assert_allclose(cell[0].numpy(), end[1][2 * way : 2 * way + 2], atol=1e-12)
    out.loss.backward()  # of the second window: what was carried into it has no history
    assert_gradients_are_central_differences(model, lambda p: by_hand(p, state, 1)[0])


@pytest.mark.parametrize("way", ["forward", "backward"])
def test_trained_together_each_is_what_it_is_trained_alone(way: str) -> None:
    """Also where gradients are clipped, which by one norm for both would tie them together."""
    found = []
    for directions in ("bidirectional", way):
        model = of_seven(directions)
        with torch.no_grad():
            for number, parameter in enumerate(
                model.language_models[model.direction_names.index(way)].parameters()
            ):
                torch.nn.init.normal_(
                    parameter, std=0.3, generator=torch.Generator().manual_seed(number)
                )
        stream = lanes()
        some = TrainState(
            model,
            build_adamw(build_param_groups([[*model.parameters()]], weight_decay=0.0)),
            RngState(1),
        )
        course = TrainPlan(
            lambda spent: spent.steps / 9,
            lambda progress: 1.0,
            0.01,
            0.05,
            "fp32",
            clip_groups=model.grad_clip_groups(),
        )
        told: list[float] = []

        def objective(
            model: TagLMModel, batch: Batch, carry: Any, told: list[float] = told
        ) -> LossOutput:
            out = independent_lm_losses(model, batch, carry)
            told.append(float(out.nats[way]))
            return out

        assert len([*train(some, objective, stream, course)]) == 9
        found.append((model.language_models[model.direction_names.index(way)].state_dict(), told))
    assert found[0][1] == found[1][1] and len(found[0][1]) == 9
    for name, value in found[0][0].items():
        assert torch.equal(value, found[1][0][name]), name


def of_seven(directions: str) -> TagLMModel:
    config = tiny.variant(
        "taglm", architecture={"directions": directions, "projection_size": 7, "cell_size": 11}
    ).architecture
    model = TagLMModel(config, vocab_size=tiny.reader("taglm").vocab_size)
    model.init_weights(torch.Generator().manual_seed(2))
    return model


def lanes() -> Any:
    settings = tiny.variant("taglm")
    assert settings.family.batch_sampler is not None
    return settings.family.batch_sampler(
        tiny.tokens("taglm"), tiny.reader("taglm"), settings.pretrain, seed=1
    )


def test_pretraining_clips_each_model_by_its_own_norm(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clipped: list[int] = []
    real = torch.nn.utils.clip_grad_norm_
    monkeypatch.setattr(
        torch.nn.utils,
        "clip_grad_norm_",
        lambda some, norm: clipped.append(len(some)) or real(some, norm),
    )
    outcome, _ = pretrained("taglm", tmp_path, 600)
    own = len([*outcome.model.parameters()]) // 2
    assert set(clipped) == {own} and len(clipped) == 2 * (outcome.budget_used.steps or 0)


@pytest.mark.parametrize("place", [3, 6, 9])
def test_neither_model_sees_the_other_side(place: int) -> None:
    model, reader = tiny.model("taglm").eval(), tiny.reader("taglm")
    batch = reader.collate([reader.encode(" ".join(tiny.documents()[3].split()[:14]))])
    other = batch.ids_BT.clone()
    other[0, place] += 1
    (before,), (after,) = model.encode(batch), model.encode(Batch(other, batch.mask_BT))
    P = model.hidden_sizes()[0] // 2
    assert torch.equal(before[0, :place, :P], after[0, :place, :P]) and torch.equal(
        before[0, place + 1 :, P:], after[0, place + 1 :, P:]
    )
    assert not torch.allclose(before[0, place:, :P], after[0, place:, :P])
    assert not torch.allclose(before[0, : place + 1, P:], after[0, : place + 1, P:])


def test_one_direction_alone_is_read_and_scored() -> None:
    reader, texts = tiny.reader("taglm"), [" ".join(d.split()[:9]) for d in tiny.documents()[:3]]
    scores = {}
    for directions in ("bidirectional", "forward", "backward"):
        model = of_seven(directions).eval()
        assert model.hidden_sizes() == ((14 if directions == "bidirectional" else 7),)
        for way, one in model.models_by_direction().items():
            for number, parameter in enumerate(one.parameters()):
                torch.nn.init.normal_(
                    parameter,
                    generator=torch.Generator().manual_seed(number + 99 * (way == "forward")),
                )
        score = tiny.variant("taglm").family.score_texts
        assert score is not None
        scores[directions] = score(model, reader, texts, limit=None)
    np.testing.assert_allclose(
        scores["bidirectional"], scores["forward"] + scores["backward"], rtol=1e-5
    )
    assert not np.allclose(scores["forward"], scores["backward"])
