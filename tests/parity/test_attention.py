"""Attention probabilities of BERT, GPT-1 and GPT-2 beside those of `transformers`: who reads whom, which outputs alone can hide.

Shapes: B items, H heads, T positions, N real positions.
"""

from typing import Any

import pytest
import torch
import transformers
from safetensors.torch import load_file
from torch.nn import functional as F

from lineage.formats import huggingface
from lineage.models.base import Encoder
from lineage.models.batch import Batch
from tests.golden import golden

NEAR = {"atol": 3e-5, "rtol": 0.0}


def probabilities(
    model: Encoder, batch: Batch, monkeypatch: pytest.MonkeyPatch
) -> list[torch.Tensor]:
    """(B, H, T, T) of each block: the fused function, called as the block calls it, that reads the rows of an identity in place of values."""
    fused, found = F.scaled_dot_product_attention, []

    def beside(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, **how: Any) -> torch.Tensor:
        found.append(fused(q, k, torch.eye(k.shape[2]).expand(*k.shape[:2], -1, -1), **how))
        return fused(q, k, v, **how)

    with monkeypatch.context() as patch, torch.no_grad():
        patch.setattr(F, "scaled_dot_product_attention", beside)
        model.encode(batch)
    return found


def match(
    model: Encoder, batch: Batch, expected: list[torch.Tensor], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of every query that is no padding, and all keys; one that is padding reads what it likes."""
    found = probabilities(model, batch, monkeypatch)
    assert len(found) == len(expected) > 0
    for ours_BHTT, theirs_BHTT in zip(found, expected, strict=True):
        assert ours_BHTT.shape == theirs_BHTT.shape
        ours_NHT, theirs_NHT = (x.transpose(1, 2)[batch.mask_BT] for x in (ours_BHTT, theirs_BHTT))
        torch.testing.assert_close(ours_NHT, theirs_NHT, **NEAR)


def of_layers(found: dict[str, torch.Tensor], start: str) -> list[torch.Tensor]:
    """The reference's, one a layer."""
    names = {name for name in found if name.startswith(start)}
    return [found[f"{start}{number}"] for number in range(len(names))]


def test_bert_attends_as_the_reference_does(monkeypatch: pytest.MonkeyPatch) -> None:
    model, found = (
        huggingface.read_hf_folder(golden("bert") / "hf"),
        load_file(golden("bert") / "cases.safetensors"),
    )
    ids, segments = found["in.input_ids"].long(), found["in.token_type_ids"].long()
    match(
        model,
        Batch(ids, found["in.attention_mask"].bool(), segment_ids_BT=segments),
        of_layers(found, "attention"),
        monkeypatch,
    )


def test_bert_without_a_mask_attends_as_the_library_does(monkeypatch: pytest.MonkeyPatch) -> None:
    """The reference's numbers have no probabilities of that case."""
    folder = golden("bert") / "hf"
    ids = load_file(golden("bert") / "cases.safetensors")["in.input_ids"].long()
    theirs = transformers.BertForPreTraining.from_pretrained(
        folder, attn_implementation="eager"
    ).eval()
    with torch.no_grad():
        expected = theirs(input_ids=ids, output_attentions=True).attentions
    match(
        huggingface.read_hf_folder(folder),
        Batch(ids, torch.ones_like(ids, dtype=torch.bool)),
        [*expected],
        monkeypatch,
    )


@pytest.mark.parametrize("name", ["gpt1", "gpt2"])
@pytest.mark.parametrize("case", ["full", "rightpad", "leftpad"])
def test_gpt_attends_as_the_reference_does(
    name: str, case: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What was padded on the left is turned, rows and columns, as its text is."""
    model, found = (
        huggingface.read_hf_folder(golden(name) / "hf"),
        load_file(golden(name) / "cases.safetensors"),
    )
    ids, expected = found[f"in.{case}.input_ids"].long(), of_layers(found, f"{case}.attention")
    real = (
        torch.ones_like(ids, dtype=torch.bool)
        if case == "full"
        else found[f"in.{case}.attention_mask"].bool()
    )
    last = (~real).int().argsort(dim=1, stable=True)
    turned = [
        x.gather(2, last[:, None, :, None].expand_as(x)).gather(3, last[:, None, None].expand_as(x))
        for x in expected
    ]
    match(model, Batch(ids.gather(1, last), real.gather(1, last)), turned, monkeypatch)
