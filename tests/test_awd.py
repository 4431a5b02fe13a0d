"""AWD-LSTM's five kinds of dropout do what their names say, and its windows vary as in the paper."""

import dataclasses

import numpy as np
import pytest
import torch

from lineage.models.batch import Batch
from lineage.models.layers import awd_lstm
from lineage.models.layers.awd_lstm import AwdDropouts, AwdLSTM, WeightDropLSTM
from lineage.models.ulmfit import ULMFiTConfig, ULMFiTModel
from lineage.training.budget import count_parameters_by_role
from lineage.training.objectives import regularized_lm_loss
from tests import tiny

NONE = dict.fromkeys(("embedding", "input", "weight", "hidden", "output"), 0.0)


def body(**shares: float) -> AwdLSTM:
    made = AwdLSTM(
        vocab_size=50,
        embedding_size=6,
        hidden_size=10,
        num_layers=3,
        dropouts=AwdDropouts(**(NONE | shares)),
    )
    made.init_weights(torch.Generator().manual_seed(2))
    return made.train()


IDS = torch.arange(1, 22).view(3, 7)


def twice(made: AwdLSTM) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
    return made(IDS, None)[0], made(IDS, None)[0]


def test_weight_drop_is_seen_in_the_output_from_the_second_position_on() -> None:
    """A mask that only changes an attribute which the fused kernel does not read would change nothing."""
    one, other = twice(body(weight=0.5))
    assert torch.equal(one[1][:, 0], other[1][:, 0]) and not torch.equal(
        one[1][:, 1], other[1][:, 1]
    )
    assert torch.equal(*(made(IDS, None)[0][-1] for made in [body(weight=0.5).eval()] * 2))


def test_the_recurrent_matrix_is_learned_through_its_mask() -> None:
    layer = WeightDropLSTM(4, 5)
    for parameter in layer.parameters():
        torch.nn.init.normal_(parameter, generator=torch.Generator().manual_seed(1))
    output, _ = layer(torch.randn(2, 6, 4), (torch.zeros(1, 2, 5), torch.zeros(1, 2, 5)), drop=0.5)
    output.sum().backward()
    assert layer.weight_hh.grad is not None
    share = float((layer.weight_hh.grad == 0).float().mean())
    assert 0.3 < share < 0.7, "what is dropped learns nothing this time"


@pytest.mark.parametrize("name", ["embedding", "input", "hidden", "output"])
def test_each_kind_drops_where_its_name_says(name: str) -> None:
    made, plain = body(**{name: 0.5}), body()
    outputs, dropped, _ = made(IDS, None)
    _, kept, _ = plain(IDS, None)
    if name == "embedding":
        gone = (outputs[0] == 0).all(-1)
        assert gone.any() and not gone.all() and torch.equal((outputs[0] == 0).any(-1), gone), (
            "whole words"
        )
        twice_there = torch.tensor([[3, 4, 3]]).expand(8, 3)
        zero = (body(embedding=0.5)(twice_there, None)[0][0] == 0).all(-1)
        assert torch.equal(zero[:, 0], zero[:, 2]), "a word wherever it stands"
    elif name == "output":
        gone = dropped == 0
        assert (
            gone.any()
            and torch.equal(gone[:, 0], gone[:, -1])
            and not torch.equal(gone[0], gone[1])
        ), "one mask an item, at all positions"
        assert torch.allclose(dropped[~gone], 2 * kept[~gone])
    else:
        layer = 0 if name == "input" else 1
        read: list[torch.Tensor] = []
        made.layers[layer].register_forward_pre_hook(lambda _, given: read.append(given[0]))
        outputs = made(IDS, None)[0]
        gone = read[0] == 0
        assert (
            gone.any()
            and torch.equal(gone, gone[:, :1].expand_as(gone))
            and not torch.equal(gone[0], gone[1])
        ), "one mask an item, at all positions"
        assert torch.allclose(read[0][~gone], 2 * outputs[layer][~gone])
        one, other = twice(made)
        assert all(
            torch.equal(a, b) for a, b in zip(one[: layer + 1], other[: layer + 1], strict=True)
        )
        assert not torch.equal(one[layer + 1], other[layer + 1])


def test_state_goes_from_window_to_window_and_holds_no_history() -> None:
    made = body().eval()
    whole, _, last = made(IDS, None)
    first, _, middle = made(IDS[:, :4], None)
    second, _, end = made(IDS[:, 4:], middle)
    torch.testing.assert_close(torch.cat([first[-1], second[-1]], 1), whole[-1])
    torch.testing.assert_close(end, last)
    assert not any(x.requires_grad for layer in end for x in layer)


def test_penalties_are_there_in_training_alone() -> None:
    model = tiny.model("ulmfit")
    assert isinstance(model, ULMFiTModel)
    stream = tiny.variant("ulmfit").family.batch_sampler(
        tiny.tokens("ulmfit"), tiny.reader("ulmfit"), tiny.variant("ulmfit").pretrain, seed=1
    )  # type: ignore[misc]
    stream.set_epoch(0)
    batch = stream.get_batch(0)
    outputs, dropped, _ = model.train().run_layers(batch.ids_BT, None)
    top = outputs[-1]
    expected = 2.0 * dropped.square().mean() + 1.0 * (top[:, 1:] - top[:, :-1]).square().mean()
    added = (
        regularized_lm_loss(model.train(), batch).loss
        - regularized_lm_loss(model.eval(), batch).loss
    )
    torch.testing.assert_close(added, expected, atol=1e-6, rtol=1e-4)


def test_the_one_penalty_is_on_what_was_dropped_and_the_other_on_what_was_not(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    model = tiny.model("ulmfit", architecture={"dropouts": NONE | {"output": 0.5}}).train()
    assert isinstance(model, ULMFiTModel)
    ids = torch.arange(5, 26).view(3, 7)
    batch = Batch(ids, torch.ones_like(ids, dtype=torch.bool), targets_BT=ids.flip(1))
    mask = torch.rand(
        3, 1, model.hidden_sizes()[-1], generator=torch.Generator().manual_seed(1)
    ).round()
    monkeypatch.setattr(awd_lstm, "sample_keep_mask", lambda *_: mask)
    outputs, dropped, _ = model.run_layers(ids, None)
    raw, out = outputs[-1], regularized_lm_loss(model, batch)
    assert not torch.allclose(raw, dropped)
    expected = (
        out.nats["forward"] / 21
        + 2.0 * (raw * mask * 2).square().mean()
        + 1.0 * (raw[:, 1:] - raw[:, :-1]).square().mean()
    )
    torch.testing.assert_close(out.loss, expected)


def test_windows_vary_in_length_with_the_rate_and_read_everything() -> None:
    found = tiny.variant("ulmfit", pretrain={"seq_len": 40, "batch_size": 1, "variable_bptt": True})
    assert found.family.batch_sampler is not None
    stream = found.family.batch_sampler(
        tiny.tokens("ulmfit"), tiny.reader("ulmfit"), found.pretrain, seed=1
    )
    some = [stream.get_batch(i) for i in range(stream.set_epoch(0))]
    lengths = np.array([batch.ids_BT.shape[1] for batch in some[:-1]])
    assert abs(np.median(lengths) - 40) <= 3 and len(set(lengths)) > 8 and lengths.min() >= 5
    assert 0.01 < (lengths < 28).mean() < 0.12, "about one in twenty is of half the length"
    assert [batch.learning_rate_scale for batch in some[:-1]] == pytest.approx(lengths / 40)
    assert sum(batch.text_bytes for batch in some) >= 0.999 * tiny.tokens("ulmfit").text_bytes
    assert [b.ids_BT.shape for b in some] == [
        stream.get_batch(i).ids_BT.shape for i in range(stream.set_epoch(0))
    ], "the same again"
    assert stream.set_epoch(1) and [b.ids_BT.shape for b in some[:9]] != [
        stream.get_batch(i).ids_BT.shape for i in range(9)
    ]


@pytest.mark.parametrize(
    ("vocabulary", "expected"),
    [(10_000, 24_221_600), (33_278, 33_556_078)],
    ids=["Penn Treebank", "WikiText-2"],
)
def test_the_paper_s_models_have_as_many_parameters_as_the_released_code_prints(
    vocabulary: int, expected: int
) -> None:
    """24 and 33 million (Merity et al. 2018, tables 1 and 2)."""
    block = dataclasses.asdict(tiny.variant("ulmfit").architecture)
    config = ULMFiTConfig(
        **{
            **block,
            "num_layers": 3,
            "embedding_size": 400,
            "hidden_size": 1150,
            "dropouts": tiny.variant("ulmfit").architecture.dropouts,
        }
    )
    with torch.device("meta"):
        model = ULMFiTModel(config, vocab_size=vocabulary)
    assert count_parameters_by_role(model)["total"] == expected
