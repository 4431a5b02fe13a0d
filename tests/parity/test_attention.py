"""Attention probabilities of BERT, GPT-1 and GPT-2 equal those of `transformers`.

Outputs alone can hide which position attends to which.
Shapes: B items, H heads, T positions, N real positions.
"""

from typing import Any

import pytest
import torch
import transformers
from safetensors.torch import load_file
from torch.nn import functional as F

from lineage.formats import huggingface
from lineage.networks.base import Encoder
from lineage.networks.batch import Batch
from tests.helpers.golden import golden_folder

TOLERANCE = {"atol": 3e-5, "rtol": 0.0}


def attention_probabilities(
    model: Encoder, batch: Batch, monkeypatch: pytest.MonkeyPatch
) -> list[torch.Tensor]:
    """Return the probabilities of each block, (B, H, T, T).

    The fused attention function is called as the block calls it, but with an identity matrix as
    values, so that it returns the probabilities.
    """
    fused_attention = F.scaled_dot_product_attention
    recorded = []

    def record(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, **options: Any) -> torch.Tensor:
        identity = torch.eye(k.shape[2]).expand(*k.shape[:2], -1, -1)
        recorded.append(fused_attention(q, k, identity, **options))
        return fused_attention(q, k, v, **options)

    with monkeypatch.context() as patch, torch.no_grad():
        patch.setattr(F, "scaled_dot_product_attention", record)
        model.encode(batch)
    return recorded


def assert_attention_matches(
    model: Encoder, batch: Batch, expected: list[torch.Tensor], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Compare the probabilities of every query that is not padding, over all keys."""
    actual = attention_probabilities(model, batch, monkeypatch)
    assert len(actual) == len(expected) > 0
    for ours_BHTT, theirs_BHTT in zip(actual, expected, strict=True):
        assert ours_BHTT.shape == theirs_BHTT.shape
        ours_NHT, theirs_NHT = (x.transpose(1, 2)[batch.mask_BT] for x in (ours_BHTT, theirs_BHTT))
        torch.testing.assert_close(ours_NHT, theirs_NHT, **TOLERANCE)


def reference_layers(tensors: dict[str, torch.Tensor], prefix: str) -> list[torch.Tensor]:
    """Return the reference's tensors with this prefix, one per layer."""
    names = {name for name in tensors if name.startswith(prefix)}
    return [tensors[f"{prefix}{number}"] for number in range(len(names))]


def test_bert_attention_matches_the_reference(monkeypatch: pytest.MonkeyPatch) -> None:
    model = huggingface.read_hf_folder(golden_folder("bert") / "hf")
    cases = load_file(golden_folder("bert") / "cases.safetensors")
    batch = Batch(
        cases["in.input_ids"].long(),
        cases["in.attention_mask"].bool(),
        segment_ids_BT=cases["in.token_type_ids"].long(),
    )
    assert_attention_matches(model, batch, reference_layers(cases, "attention"), monkeypatch)


def test_bert_attention_without_a_mask_matches_transformers(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The reference numbers do not have the probabilities of this case."""
    folder = golden_folder("bert") / "hf"
    ids = load_file(golden_folder("bert") / "cases.safetensors")["in.input_ids"].long()
    hf_model = transformers.BertForPreTraining.from_pretrained(
        folder, attn_implementation="eager"
    ).eval()
    with torch.no_grad():
        expected = hf_model(input_ids=ids, output_attentions=True).attentions
    assert_attention_matches(
        huggingface.read_hf_folder(folder),
        Batch(ids, torch.ones_like(ids, dtype=torch.bool)),
        [*expected],
        monkeypatch,
    )


@pytest.mark.parametrize("name", ["gpt1", "gpt2"])
@pytest.mark.parametrize("case", ["full", "rightpad", "leftpad"])
def test_gpt_attention_matches_the_reference(
    name: str, case: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Left padding is moved to the right, in the ids and in rows and columns of the reference."""
    model = huggingface.read_hf_folder(golden_folder(name) / "hf")
    cases = load_file(golden_folder(name) / "cases.safetensors")
    ids = cases[f"in.{case}.input_ids"].long()
    if case == "full":
        real = torch.ones_like(ids, dtype=torch.bool)
    else:
        real = cases[f"in.{case}.attention_mask"].bool()
    order = (~real).int().argsort(dim=1, stable=True)
    expected = []
    for attention in reference_layers(cases, f"{case}.attention"):
        rows = attention.gather(2, order[:, None, :, None].expand_as(attention))
        expected.append(rows.gather(3, order[:, None, None].expand_as(attention)))
    assert_attention_matches(
        model, Batch(ids.gather(1, order), real.gather(1, order)), expected, monkeypatch
    )
