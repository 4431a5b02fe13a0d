"""The five kinds of dropout of AWD-LSTM do what their names say.

Its windows vary in length as in the paper.
"""

import dataclasses

import numpy as np
import pytest
import torch

from lineage.families.ulmfit import ULMFiTConfig, ULMFiTModel
from lineage.networks.base import Encoder
from lineage.networks.batch import Batch
from lineage.networks.layers import awd_lstm
from lineage.networks.layers.awd_lstm import AwdDropouts, AwdLSTM, WeightDropLSTM
from lineage.training.budget import count_parameters_by_role
from lineage.training.objectives import regularized_lm_loss
from tests.helpers import tiny

NO_DROPOUT = dict.fromkeys(("embedding", "input", "weight", "hidden", "output"), 0.0)


def build_body(**dropouts: float) -> AwdLSTM:
    model = AwdLSTM(
        vocab_size=50,
        embedding_size=6,
        hidden_size=10,
        num_layers=3,
        dropouts=AwdDropouts(**(NO_DROPOUT | dropouts)),
    )
    model.init_weights(torch.Generator().manual_seed(2))
    return model.train()


IDS = torch.arange(1, 22).view(3, 7)


def run_twice(model: AwdLSTM) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
    return model(IDS, None)[0], model(IDS, None)[0]


def test_weight_dropout_changes_the_output_from_the_second_position_on() -> None:
    """A mask on an attribute that the fused kernel does not read would change nothing."""
    one, other = run_twice(build_body(weight=0.5))
    assert torch.equal(one[1][:, 0], other[1][:, 0])
    assert not torch.equal(one[1][:, 1], other[1][:, 1])
    one, other = run_twice(build_body(weight=0.5).eval())
    assert torch.equal(one[-1], other[-1])


def test_dropped_recurrent_weights_get_no_gradient() -> None:
    layer = WeightDropLSTM(4, 5)
    for parameter in layer.parameters():
        torch.nn.init.normal_(parameter, generator=torch.Generator().manual_seed(1))
    output, _ = layer(torch.randn(2, 6, 4), (torch.zeros(1, 2, 5), torch.zeros(1, 2, 5)), drop=0.5)
    output.sum().backward()
    share = float((layer.weight_hh.grad == 0).float().mean())
    assert 0.3 < share < 0.7, "dropped weights must get no gradient"


@pytest.mark.parametrize("name", ["embedding", "input", "hidden", "output"])
def test_each_kind_of_dropout_applies_where_its_name_says(name: str) -> None:
    torch.manual_seed(1)  # two of its small masks could be equal by chance
    model = build_body(**{name: 0.5})
    model_without_dropout = build_body()
    outputs, dropped_top, _ = model(IDS, None)
    _, top_without_dropout, _ = model_without_dropout(IDS, None)
    if name == "embedding":
        is_dropped = (outputs[0] == 0).all(-1)
        assert (
            is_dropped.any()
            and not is_dropped.all()
            and torch.equal((outputs[0] == 0).any(-1), is_dropped)
        ), "whole words must be dropped"
        repeated_word = torch.tensor([[3, 4, 3]]).expand(8, 3)
        zero = (build_body(embedding=0.5)(repeated_word, None)[0][0] == 0).all(-1)
        assert torch.equal(zero[:, 0], zero[:, 2]), "a word must be dropped at all its positions"
    elif name == "output":
        is_dropped = dropped_top == 0
        assert (
            is_dropped.any()
            and torch.equal(is_dropped[:, 0], is_dropped[:, -1])
            and not torch.equal(is_dropped[0], is_dropped[1])
        ), "an item must have one mask for all positions"
        assert torch.allclose(dropped_top[~is_dropped], 2 * top_without_dropout[~is_dropped])
    else:
        layer = 0 if name == "input" else 1
        inputs: list[torch.Tensor] = []
        model.layers[layer].register_forward_pre_hook(lambda _, args: inputs.append(args[0]))
        outputs = model(IDS, None)[0]
        is_dropped = inputs[0] == 0
        assert (
            is_dropped.any()
            and torch.equal(is_dropped, is_dropped[:, :1].expand_as(is_dropped))
            and not torch.equal(is_dropped[0], is_dropped[1])
        ), "an item must have one mask for all positions"
        assert torch.allclose(inputs[0][~is_dropped], 2 * outputs[layer][~is_dropped])
        one, other = run_twice(model)
        assert all(
            torch.equal(a, b) for a, b in zip(one[: layer + 1], other[: layer + 1], strict=True)
        )
        assert not torch.equal(one[layer + 1], other[layer + 1])


def test_state_is_carried_between_windows_and_detached() -> None:
    model = build_body().eval()
    all_outputs, _, last = model(IDS, None)
    first, _, middle = model(IDS[:, :4], None)
    second, _, end = model(IDS[:, 4:], middle)
    torch.testing.assert_close(torch.cat([first[-1], second[-1]], 1), all_outputs[-1])
    torch.testing.assert_close(end, last)
    assert not any(x.requires_grad for layer in end for x in layer)


def test_penalties_are_added_only_in_training() -> None:
    model = tiny.model("ulmfit")
    batch = tiny.batch("ulmfit", 0)
    outputs, dropped, _ = model.train().run_layers(batch.ids_BT, None)
    top = outputs[-1]
    expected = 2.0 * dropped.square().mean() + 1.0 * (top[:, 1:] - top[:, :-1]).square().mean()
    penalty = (
        regularized_lm_loss(model.train(), batch).loss
        - regularized_lm_loss(model.eval(), batch).loss
    )
    torch.testing.assert_close(penalty, expected, atol=1e-6, rtol=1e-4)


def test_activation_penalty_is_after_dropout_and_temporal_penalty_before(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    model = tiny.model("ulmfit", architecture={"dropouts": NO_DROPOUT | {"output": 0.5}}).train()
    ids = torch.arange(5, 26).view(3, 7)
    batch = Batch(ids, torch.ones_like(ids, dtype=torch.bool), targets_BT=ids.flip(1))
    mask = torch.rand(
        3, 1, model.hidden_sizes()[-1], generator=torch.Generator().manual_seed(1)
    ).round()
    monkeypatch.setattr(awd_lstm, "sample_keep_mask", lambda *_: mask)
    outputs, dropped, _ = model.run_layers(ids, None)
    raw = outputs[-1]
    out = regularized_lm_loss(model, batch)
    assert not torch.allclose(raw, dropped)
    expected = (
        out.nats["forward"] / 21
        + 2.0 * (raw * mask * 2).square().mean()
        + 1.0 * (raw[:, 1:] - raw[:, :-1]).square().mean()
    )
    torch.testing.assert_close(out.loss, expected)


def test_window_lengths_vary_with_the_learning_rate_and_cover_all_text() -> None:
    sampler = tiny.sampler(
        "ulmfit", pretrain={"seq_len": 40, "batch_size": 1, "variable_bptt": True}
    )
    batches = [sampler.get_batch(i) for i in range(sampler.set_epoch(0))]
    lengths = np.array([batch.ids_BT.shape[1] for batch in batches[:-1]])
    assert abs(np.median(lengths) - 40) <= 3 and len(set(lengths)) > 8 and lengths.min() >= 5
    assert 0.01 < (lengths < 28).mean() < 0.12, (
        "about one window in twenty must have half the length"
    )
    assert [batch.learning_rate_scale for batch in batches[:-1]] == pytest.approx(lengths / 40)
    assert sum(batch.text_bytes for batch in batches) >= 0.999 * tiny.corpus("ulmfit").text_bytes
    assert [b.ids_BT.shape for b in batches] == [
        sampler.get_batch(i).ids_BT.shape for i in range(sampler.set_epoch(0))
    ], "the same epoch must give the same windows"
    assert sampler.set_epoch(1)
    assert [b.ids_BT.shape for b in batches[:9]] != [
        sampler.get_batch(i).ids_BT.shape for i in range(9)
    ]


@pytest.mark.parametrize(
    ("vocab_size", "expected"),
    [(10_000, 24_221_600), (33_278, 33_556_078)],
    ids=["Penn Treebank", "WikiText-2"],
)
def test_the_paper_s_models_have_the_parameter_count_of_the_released_code(
    vocab_size: int, expected: int
) -> None:
    """The papers' tables 1 and 2 give 24 and 33 million (Merity et al. 2018)."""
    block = dataclasses.asdict(tiny.model_config("ulmfit").architecture)
    config = ULMFiTConfig(
        **{
            **block,
            "num_layers": 3,
            "embedding_size": 400,
            "hidden_size": 1150,
            "dropouts": tiny.model_config("ulmfit").architecture.dropouts,
        }
    )
    with torch.device("meta"):
        model = ULMFiTModel(config, vocab_size=vocab_size)
    assert count_parameters_by_role(model)["total"] == expected


@pytest.mark.parametrize("name", ["context2vec", "masked_lstm"])
def test_only_the_biases_of_forget_gates_are_initialized_to_one(name: str) -> None:
    model: Encoder = tiny.model(name)
    lstms = [part for part in model.modules() if isinstance(part, WeightDropLSTM)]
    assert lstms
    for lstm in lstms:
        # torch's order is input, forget, cell, output.
        gates = (lstm.bias_ih + lstm.bias_hh).view(4, -1)
        assert (gates[1] == 1).all() and (gates[[0, 2, 3]] != 1).all()
