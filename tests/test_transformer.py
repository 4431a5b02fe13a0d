"""Where a Transformer drops in training, how much and of what shape; and BERT's start, cut at two deviations.

Shapes: B items, T positions, D width, H heads, R rows of GPT-1's one matrix.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from lineage.models.base import Encoder
from tests import tiny

SHARE = 0.37
Dropped = list[tuple[str, float, tuple[int, ...]]]  # place, share, shape
SWITCHES: dict[str, tuple[str, dict[str, Any]]] = {
    "bert": ("bert", {}),
    "gpt-1": ("gpt", {"norm_first": False, "tie_positions": True}),
    "gpt-2": ("gpt", {"norm_first": True}),
}


@contextmanager
def recorded(model: nn.Module) -> Iterator[Dropped]:
    """What is dropped within: the module that made the tensor, or "attention" or "matrix", with the share and the shape; shares of 0 are left out."""
    made: dict[
        int, tuple[str, torch.Tensor]
    ] = {}  # the tensor is kept, so that no other one gets its id
    found: Dropped = []
    drop, attend = F.dropout, F.scaled_dot_product_attention

    def note(place: str, share: float, shape: torch.Size) -> None:
        if share:
            found.append((place, share, tuple(shape)))

    def dropout(
        x: torch.Tensor, p: float = 0.5, training: bool = True, inplace: bool = False
    ) -> torch.Tensor:
        note(made.get(id(x), ("matrix", x))[0], p if training else 0.0, x.shape)
        return drop(x, p, training, inplace)

    def attention(
        q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *, dropout_p: float = 0.0, **others: Any
    ) -> torch.Tensor:
        note("attention", dropout_p, q.shape[:-1] + k.shape[-2:-1])
        return attend(q, k, v, dropout_p=dropout_p, **others)

    def remember(name: str) -> Callable[[nn.Module, Any, Any], None]:
        return lambda module, given, x: (
            made.update({id(x): (name, x)}) if isinstance(x, torch.Tensor) else None
        )

    hooks = [part.register_forward_hook(remember(name)) for name, part in model.named_modules()]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(F, "dropout", dropout)
        patch.setattr(F, "scaled_dot_product_attention", attention)
        yield found
    for hook in hooks:
        hook.remove()


@pytest.mark.parametrize("name", SWITCHES)
def test_training_drops_the_embeddings_what_attention_weighs_and_both_branches_and_reading_nothing(
    name: str,
) -> None:
    """Devlin et al. 2019, appendix A.2, and Radford et al. 2018, section 4.1: 0.1 on all of them. GPT-1's embeddings are dropped as one matrix."""
    family, switches = SWITCHES[name]
    model, reader = (
        tiny.model(family, architecture={**switches, "dropout": SHARE}),
        tiny.reader(family),
    )
    batch = reader.collate(reader.encode_batch(["the cat sat .", "a bank of the river ."]))
    (B, T), D, H = batch.ids_BT.shape, model.hidden_sizes()[0], model.config.num_heads  # type: ignore[union-attr]
    rows = (reader.vocab_size + model.config.max_positions, D)  # type: ignore[union-attr]
    embedded = {
        "bert": ("embedding_norm", SHARE, (B, T, D)),
        "gpt-1": ("matrix", SHARE, rows),
        "gpt-2": ("position_embeddings", SHARE, (B, T, D)),
    }
    expected: Dropped = [embedded[name]]
    for block in ("body.blocks.0", "body.blocks.1"):
        expected += [
            ("attention", SHARE, (B, H, T, T)),
            (f"{block}.out_proj", SHARE, (B, T, D)),
            (f"{block}.ffn_out", SHARE, (B, T, D)),
        ]
    for training in (True, False):
        with recorded(model.train(training)) as found:
            model.encode(batch)
        assert found == (expected if training else [])


def test_bert_starts_from_a_normal_cut_at_two_deviations_and_gpt_from_a_whole_one() -> None:
    """modeling.py of google-research/bert, create_initializer; of 1,000 weights of a whole normal 45 lie beyond, of a cut one 12 within 1.9 and 2."""

    def furthest(model: Encoder) -> list[float]:
        weights = [
            parameter
            for key, parameter in model.named_parameters()
            if parameter.dim() == 2 and parameter.numel() >= 1000
        ]
        assert len(weights) >= 6
        return [float(weight.detach().abs().max()) / model.config.init_std for weight in weights]  # type: ignore[union-attr]

    assert all(1.9 < far <= 2 for far in furthest(tiny.model("bert")))
    assert all(far > 2 for far in furthest(tiny.model("gpt")))
