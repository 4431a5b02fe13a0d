"""GPT-1 as the code released with it has it: one matrix of tokens and positions, dropped as a whole, over all of whose rows the softmax goes."""

import numpy as np
import pytest
import torch
from torch.nn import functional as F

from lineage.errors import InputError
from lineage.models.gpt import GPTModel
from lineage.training.objectives import causal_lm_loss
from tests import tiny


def model_of(**over: object) -> GPTModel:
    model = tiny.model("gpt", architecture=over)
    assert isinstance(model, GPTModel)
    return model


def test_the_softmax_ranges_over_positions_too_and_else_nothing_changes() -> None:
    one, apart, reader = model_of(tie_positions=True).eval(), model_of().eval(), tiny.reader("gpt")
    batch = reader.collate([reader.encode(tiny.documents()[0][:40])])
    layers, plain = one.encode(batch), apart.encode(batch)
    assert all(torch.allclose(a, b, atol=1e-6) for a, b in zip(layers, plain, strict=True)) and len(
        layers
    ) == len(plain)
    logits, fewer, V = one.logits(layers[-1]), apart.logits(plain[-1]), reader.vocab_size
    assert logits.shape[-1] == V + one.config.max_positions and torch.allclose(
        logits[..., :V], fewer, atol=1e-5
    )
    assert torch.allclose(logits[..., V:], layers[-1] @ one.position_embeddings.weight.T, atol=1e-6)
    assert sum(p.numel() for p in one.parameters()) == sum(p.numel() for p in apart.parameters())


def test_dropout_falls_on_the_matrix_so_that_input_and_softmax_lack_the_same_entries() -> None:
    """x is a token's row of the dropped matrix plus a position's, and the loss is of the very same matrix: what is dropped learns nothing."""
    model, reader = model_of(tie_positions=True, dropout=0.4), tiny.reader("gpt")
    model.train()
    stream = tiny.variant("gpt").family.batch_sampler(
        tiny.tokens("gpt"), reader, tiny.variant("gpt").pretrain, seed=1
    )  # type: ignore[misc]
    stream.set_epoch(0)
    batch = stream.get_batch(0)
    torch.manual_seed(3)
    layers = model.encode(batch)
    torch.manual_seed(3)
    V, T = reader.vocab_size, batch.ids_BT.shape[1]
    whole = torch.cat([model.token_embeddings.weight, model.position_embeddings.weight])
    dropped = F.dropout(torch.ones_like(whole), 0.4) * whole
    assert 0.3 < float((dropped == 0).float().mean()) < 0.5
    assert torch.equal(layers[0], dropped[batch.ids_BT] + dropped[V : V + T])
    torch.manual_seed(3)
    out = causal_lm_loss(model, batch)
    assert torch.equal(model.softmax_weight(), dropped)
    out.loss.backward()
    gradient = model.token_embeddings.weight.grad
    assert (
        gradient is not None
        and bool((gradient[dropped[:V] == 0] == 0).all())
        and bool(gradient[dropped[:V] != 0].any())
    )


def test_the_mask_is_another_one_in_each_step_and_none_in_evaluation() -> None:
    model, reader = model_of(tie_positions=True, dropout=0.4), tiny.reader("gpt")
    batch = reader.collate([reader.encode("the cat sat .")])
    model.train()
    first = model.encode(batch)[0]
    assert not torch.equal(first, model.encode(batch)[0])
    model.eval()
    assert torch.equal(model.encode(batch)[0], model.encode(batch)[0]) and np.array_equal(
        model.softmax_weight().shape, model.train().softmax_weight().shape
    )


def test_tied_positions_are_learned_positions() -> None:
    with pytest.raises(
        InputError,
        match="tie_positions needs a learned row for each position, but position_encoding is sinusoidal",
    ):
        tiny.variant("gpt", architecture={"tie_positions": True, "position_encoding": "sinusoidal"})
