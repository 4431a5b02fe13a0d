"""With `tie_positions`, GPT-1 has one matrix of tokens and positions, as in its released code.

Dropout applies to this matrix as a whole, and the softmax ranges over all of its rows.
"""

import pytest
import torch
from torch.nn import functional as F

from lineage.errors import InputError
from lineage.families.gpt import GPTModel
from lineage.training.objectives import causal_lm_loss
from tests.helpers import tiny


def build_gpt(**architecture: object) -> GPTModel:
    return tiny.model("gpt", architecture=architecture)


def test_with_tied_positions_the_softmax_includes_positions_and_nothing_else_changes() -> None:
    tied = build_gpt(tie_positions=True).eval()
    untied = build_gpt().eval()
    tokenizer = tiny.tokenizer("gpt")
    batch = tokenizer.collate([tokenizer.encode(tiny.documents()[0][:40])])
    layers = tied.encode(batch)
    untied_layers = untied.encode(batch)
    assert all(
        torch.allclose(actual, expected, atol=1e-6)
        for actual, expected in zip(layers, untied_layers, strict=True)
    )
    logits = tied.logits(layers[-1])
    untied_logits = untied.logits(untied_layers[-1])
    V = tokenizer.vocab_size
    assert logits.shape[-1] == V + tied.config.max_positions
    assert torch.allclose(logits[..., :V], untied_logits, atol=1e-5)
    assert torch.allclose(
        logits[..., V:], layers[-1] @ tied.position_embeddings.weight.T, atol=1e-6
    )
    assert sum(p.numel() for p in tied.parameters()) == sum(p.numel() for p in untied.parameters())


def test_input_and_softmax_share_the_dropout_mask_of_the_matrix() -> None:
    """Input and softmax use the same dropped matrix, so dropped entries get no gradient."""
    model = build_gpt(tie_positions=True, dropout=0.4)
    tokenizer = tiny.tokenizer("gpt")
    model.train()
    batch = tiny.batch("gpt", 0)
    torch.manual_seed(3)
    layers = model.encode(batch)
    torch.manual_seed(3)
    V, T = tokenizer.vocab_size, batch.ids_BT.shape[1]
    matrix = torch.cat([model.token_embeddings.weight, model.position_embeddings.weight])
    dropped = F.dropout(torch.ones_like(matrix), 0.4) * matrix
    assert 0.3 < float((dropped == 0).float().mean()) < 0.5
    assert torch.equal(layers[0], dropped[batch.ids_BT] + dropped[V : V + T])
    torch.manual_seed(3)
    output = causal_lm_loss(model, batch)
    assert torch.equal(model.softmax_weight(), dropped)
    output.loss.backward()
    gradient = model.token_embeddings.weight.grad
    assert bool((gradient[dropped[:V] == 0] == 0).all())
    assert bool(gradient[dropped[:V] != 0].any())


def test_tied_positions_require_learned_positions() -> None:
    with pytest.raises(
        InputError,
        match="tie_positions needs a learned row for each position, but position_encoding is sinusoidal",
    ):
        tiny.model_config(
            "gpt", architecture={"tie_positions": True, "position_encoding": "sinusoidal"}
        )
