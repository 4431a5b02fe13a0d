"""The models that cross contextualizer and direction differ in nothing else.

The tests check which positions each direction sees, what it predicts, and how a model knows the
order of words.
"""

import dataclasses
import math

import pytest
import torch

from lineage.config.params import Params, parse_params
from lineage.networks.batch import IGNORE_INDEX, Batch
from lineage.networks.layers.transformer import sinusoidal_positions
from lineage.study.models import load_model_config
from lineage.training.budget import count_parameters_by_role
from tests.helpers import tiny

TEXT = " ".join(tiny.documents()[0].split()[:15])
# An LSTM has no heads and needs no positions.
ALLOWED_DIFFERENCES = {"contextualizer", "direction", "position_encoding", "num_heads"}


def build_batch(name: str, ids: list[int]) -> Batch:
    ids_BT = torch.tensor([ids])
    return Batch(ids_BT, torch.ones_like(ids_BT, dtype=torch.bool))


@pytest.mark.parametrize("name", [name for name in tiny.CELLS if not name.startswith("masked")])
def test_directional_models_predict_every_token_of_the_unmasked_text(name: str) -> None:
    config = tiny.model_config(name)
    model = tiny.model(name).eval()
    batch = tiny.batch(name, 1)
    is_masked = batch.targets_BT != IGNORE_INDEX
    assert (batch.ids_BT != batch.targets_BT)[is_masked].any(), "otherwise nothing was masked"
    output = config.family.objective(model, batch)
    unmasked = dataclasses.replace(
        batch,
        ids_BT=torch.where(is_masked, batch.targets_BT, batch.ids_BT),
        targets_BT=torch.full_like(batch.ids_BT, IGNORE_INDEX),
    )
    assert float(output.loss.detach()) == float(
        config.family.objective(model, unmasked).loss.detach()
    )
    directions = ("forward", "backward") if name.startswith("joined") else ("causal",)
    assert output.target_counts == dict.fromkeys(directions, int(batch.text_mask_BT.sum())), (
        "all tokens but the special ones are predicted"
    )
    assert float(output.loss.detach()) == pytest.approx(
        sum(float(output.nats[direction]) for direction in directions)
        / len(directions)
        / output.target_counts[directions[0]],
        rel=1e-6,
    )


@pytest.mark.parametrize("name", ["left_lstm", "joined_transformer"])
@torch.inference_mode()
def test_scores_are_sums_of_token_log_probabilities(name: str) -> None:
    model = tiny.model(name).eval()
    tokenizer = tiny.tokenizer(name)
    family = tiny.model_config(name).family
    ids = tokenizer.encode(TEXT).ids
    top_TD = model.encode(tokenizer.collate([tokenizer.encode(TEXT)]))[-1][0]
    D = model.config.hidden_size
    log_probs = {
        step: torch.log_softmax(model.logits(x_TD), -1)
        for step, x_TD in ((1, top_TD[:, :D]), (-1, top_TD[:, D:]))
        if x_TD.shape[1]
    }
    expected = sum(
        float(log_p_TV[t - step, ids[t]])
        for step, log_p_TV in log_probs.items()
        for t in range(1, len(ids) - 1)
    )
    assert family.score_texts(model, tokenizer, [TEXT], limit=None)[0, 0] == pytest.approx(
        expected, rel=1e-5
    )


def test_two_joined_directions_share_only_the_embedding_and_the_softmax() -> None:
    model = tiny.model("joined_lstm")
    batch = tiny.tokenizer("joined_lstm").collate([tiny.tokenizer("joined_lstm").encode(TEXT)])
    D = model.config.hidden_size
    for direction, half in (("forward_body", slice(0, D)), ("backward_body", slice(D, None))):
        model.zero_grad()
        model.logits(model.encode(batch)[-1][0, :, half]).sum().backward()
        modules_with_gradient = {
            key.split(".")[1]
            for key, p in model.named_parameters()
            if p.grad is not None and p.grad.any() and key.startswith("body.")
        }
        assert modules_with_gradient == {direction}
        assert (
            model.token_embeddings.weight.grad is not None
            and model.mlm_dense.weight.grad is not None
        )


def test_a_text_is_pooled_at_the_position_that_has_seen_all_of_it() -> None:
    for name, position in (("left_transformer", 1), ("joined_lstm", 1), ("masked_lstm", -1)):
        model = tiny.model(name).eval()
        ids = list(range(20, 35))
        changed = ids.copy()
        changed[position] = 77  # pooling at the wrong end would not see this change
        pooled = [
            model.pool(model.encode(text), text)
            for text in (build_batch(name, ids), build_batch(name, changed))
        ]
        assert not torch.equal(*pooled)
    model = tiny.model("joined_lstm").eval()
    batch = build_batch("joined_lstm", ids)
    layers = model.encode(batch)
    D = model.hidden_sizes()[0] // 2
    expected = torch.cat([layers[-1][:, -1, :D], layers[-1][:, 0, D:]], -1)
    torch.testing.assert_close(model.pool(layers, batch), torch.tanh(model.pooler(expected)))  # type: ignore[operator]


def test_the_six_models_differ_only_in_contextualizer_and_direction() -> None:
    models = {name: load_model_config(parse_cells_params(), name) for name in tiny.CELLS}
    first = models["masked_transformer"]
    for name, model in models.items():
        assert (model.tokenizer, model.pretrain, model.adapt, model.evaluate) == (
            first.tokenizer,
            first.pretrain,
            first.adapt,
            first.evaluate,
        )
        own, reference = vars(model.architecture), vars(first.architecture)
        assert {key for key in own if own[key] != reference[key]} <= ALLOWED_DIFFERENCES
        contextualizer = "lstm" if name.endswith("lstm") else "transformer"
        assert model.architecture.contextualizer == contextualizer
        assert not model.pretrain.next_sentence_prediction
    switches = {
        (model.architecture.contextualizer, model.architecture.direction)
        for model in models.values()
    }
    assert len(switches) == 6


def parse_cells_params() -> Params:
    """Return the parameters of the study with the six models."""
    return parse_params(tiny.study_params("cells"), "params.yaml")


def test_sinusoidal_positions_follow_the_formula_of_the_paper() -> None:
    positions = sinusoidal_positions(9, 7, device=tiny.CPU)
    for t in range(9):
        for unit in range(7):
            angle = t / 10_000 ** (unit // 2 * 2 / 7)
            assert float(positions[t, unit]) == pytest.approx(
                math.cos(angle) if unit % 2 else math.sin(angle), abs=1e-6
            )


@pytest.mark.parametrize("name", ["gpt", "bert"])
def test_only_learned_positions_have_parameters(name: str) -> None:
    counts = {
        kind: count_parameters_by_role(tiny.model(name, architecture={"position_encoding": kind}))
        for kind in ("learned", "sinusoidal", "none")
    }
    config = tiny.checkpoint(name).architecture
    assert counts["none"] == counts["sinusoidal"]
    assert (
        counts["learned"]["total"] - counts["none"]["total"]
        == config.max_positions * config.hidden_size
    )
    assert counts["learned"]["body"] == counts["none"]["body"]


@pytest.mark.parametrize(
    ("kind", "is_equal"), [("none", True), ("learned", False), ("sinusoidal", False)]
)
@torch.inference_mode()
def test_bert_knows_word_order_only_from_positions(kind: str, is_equal: bool) -> None:
    model = tiny.model("bert", architecture={"position_encoding": kind}).eval()
    ids = list(range(20, 35))
    order = [3, 0, 14, *range(4, 14), 1, 2]
    permuted_ids = [ids[i] for i in order]
    original, permuted = (
        model.encode(build_batch("bert", input_ids))[-1][0] for input_ids in (ids, permuted_ids)
    )
    assert torch.allclose(original[order], permuted, atol=1e-5) == is_equal


@pytest.mark.parametrize("kind", ["none", "learned", "sinusoidal"])
@torch.inference_mode()
def test_gpt_without_positions_knows_word_order_from_its_second_layer_on(kind: str) -> None:
    """The first layer sees an unordered set of words.

    The second layer sees states that depend on the words before them, so the causal mask reveals
    the order (Haviv et al. 2022).
    """
    # Small weights would attend to all words equally.
    model = tiny.model("gpt", architecture={"position_encoding": kind, "init_std": 0.5}).eval()
    ids = list(range(20, 35))
    reordered_ids = [*ids[:-1][::-1], ids[-1]]
    layers = model.encode(build_batch("gpt", ids))
    reordered_layers = model.encode(build_batch("gpt", reordered_ids))
    _, first, second = [
        torch.allclose(x_BTD[0, -1], y_BTD[0, -1], atol=1e-5)
        for x_BTD, y_BTD in zip(layers, reordered_layers, strict=True)
    ]
    assert first == (kind == "none") and not second
