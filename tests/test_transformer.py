"""Transformers apply dropout where the papers do, and BERT starts from a truncated normal.

Shapes: B items, T positions, D width, H heads.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from lineage.networks.base import Encoder
from tests.helpers import tiny

DROPOUT = 0.37
Dropped = list[tuple[str, float, tuple[int, ...]]]  # place, share, shape
VARIANTS: dict[str, tuple[str, dict[str, Any]]] = {
    "bert": ("bert", {}),
    "gpt-1": ("gpt", {"norm_first": False, "tie_positions": True}),
    "gpt-2": ("gpt", {"norm_first": True}),
}


@contextmanager
def record_dropout(model: nn.Module) -> Iterator[Dropped]:
    """Record every dropout within the block as (place, share, shape), without shares of 0.

    The place is the module that returned the tensor, or "attention", or "matrix".
    """
    # Keep each tensor, so that its id is not reused.
    outputs: dict[int, tuple[str, torch.Tensor]] = {}
    records: Dropped = []
    original_dropout, original_attention = F.dropout, F.scaled_dot_product_attention

    def note(place: str, share: float, shape: torch.Size) -> None:
        if share:
            records.append((place, share, tuple(shape)))

    def dropout(
        x: torch.Tensor, p: float = 0.5, training: bool = True, inplace: bool = False
    ) -> torch.Tensor:
        note(outputs.get(id(x), ("matrix", x))[0], p if training else 0.0, x.shape)
        return original_dropout(x, p, training, inplace)

    def attention(
        q: torch.Tensor,
        k: torch.Tensor,
        v: torch.Tensor,
        *,
        dropout_p: float = 0.0,
        **keywords: Any,
    ) -> torch.Tensor:
        note("attention", dropout_p, q.shape[:-1] + k.shape[-2:-1])
        return original_attention(q, k, v, dropout_p=dropout_p, **keywords)

    def remember(name: str) -> Callable[[nn.Module, Any, Any], None]:
        return lambda module, inputs, x: (
            outputs.update({id(x): (name, x)}) if isinstance(x, torch.Tensor) else None
        )

    hooks = [part.register_forward_hook(remember(name)) for name, part in model.named_modules()]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(F, "dropout", dropout)
        patch.setattr(F, "scaled_dot_product_attention", attention)
        yield records
    for hook in hooks:
        hook.remove()


@pytest.mark.parametrize("name", VARIANTS)
def test_dropout_applies_to_embeddings_attention_and_both_residual_branches(name: str) -> None:
    """Devlin et al. 2019, appendix A.2; Radford et al. 2018, section 4.1: 0.1 on all of them.

    GPT-1 drops its embeddings as one matrix. Outside training nothing is dropped.
    """
    family, architecture = VARIANTS[name]
    model = tiny.model(family, architecture={**architecture, "dropout": DROPOUT})
    tokenizer = tiny.tokenizer(family)
    batch = tokenizer.collate(tokenizer.encode_batch(["the cat sat .", "a bank of the river ."]))
    (B, T), D, H = batch.ids_BT.shape, model.hidden_sizes()[0], model.config.num_heads  # type: ignore[union-attr]
    matrix_shape = (tokenizer.vocab_size + model.config.max_positions, D)  # type: ignore[union-attr]
    embedding_dropout = {
        "bert": ("embedding_norm", DROPOUT, (B, T, D)),
        "gpt-1": ("matrix", DROPOUT, matrix_shape),
        "gpt-2": ("position_embeddings", DROPOUT, (B, T, D)),
    }
    expected: Dropped = [embedding_dropout[name]]
    for block in ("body.blocks.0", "body.blocks.1"):
        expected += [
            ("attention", DROPOUT, (B, H, T, T)),
            (f"{block}.out_proj", DROPOUT, (B, T, D)),
            (f"{block}.ffn_out", DROPOUT, (B, T, D)),
        ]
    for training in (True, False):
        with record_dropout(model.train(training)) as records:
            model.encode(batch)
        assert records == (expected if training else [])


def test_bert_starts_from_a_truncated_normal_and_gpt_from_a_full_normal() -> None:
    """See create_initializer in modeling.py of google-research/bert.

    Of 1,000 weights, 45 of a full normal lie beyond two deviations; of a truncated one, 12 lie
    between 1.9 and 2.
    """

    def largest_deviations(model: Encoder) -> list[float]:
        weights = [
            parameter
            for key, parameter in model.named_parameters()
            if parameter.dim() == 2 and parameter.numel() >= 1000
        ]
        assert len(weights) >= 6
        return [float(weight.detach().abs().max()) / model.config.init_std for weight in weights]  # type: ignore[union-attr]

    assert all(1.9 < deviation <= 2 for deviation in largest_deviations(tiny.model("bert")))
    assert all(deviation > 2 for deviation in largest_deviations(tiny.model("gpt")))
