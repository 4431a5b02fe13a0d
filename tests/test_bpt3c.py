"""Long texts that are classified are read in windows: the state runs over all of them, gradients stay in theirs (BPT3C)."""

import dataclasses
from collections.abc import Iterator
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch

from lineage.evaluation.encoding import encode_items
from lineage.evaluation.finetuning import finetune, predict_finetuned
from lineage.evaluation.settings import FinetuneSettings
from lineage.models.batch import Batch
from lineage.models.ulmfit import ULMFiTModel
from tests import tiny

TUNED = FinetuneSettings(
    epochs=1,
    batch_size=5,
    learning_rate=0.01,
    layer_lr_decay=1.0,
    cut_frac=0.1,
    ratio=32.0,
    gradual_unfreezing=0.0,
    weight_decay=0.0,
    dropout=0.0,
    max_grad_norm=1.0,
)


def long_items(count: int) -> list[Any]:
    texts = [
        " ".join(document.split()[: 9 + 5 * i])
        for i, document in enumerate(tiny.documents()[:count])
    ]
    return encode_items(
        pd.DataFrame({"text": texts}), tiny.reader("ulmfit"), max_length=None, language="en"
    )


def numbered(length: int) -> Batch:
    """A text of words 5, 6, 7 ..."""
    ids = torch.arange(5, 5 + length)[None]
    return Batch(ids, torch.ones_like(ids, dtype=torch.bool))


def pooled_gradient(
    length: int, *, window: int, pooled: int | None, last: bool = False
) -> tuple[torch.Tensor, torch.Tensor]:
    """The pooled vector of such a text, and which of its positions got a gradient from it, or from the last state in it alone."""
    model = tiny.model("ulmfit").eval()
    found = model.pool_windows(numbered(length), window=window, pooled_positions=pooled)
    found[:, : model.hidden_sizes()[-1] if last else None].square().sum().backward()
    assert isinstance(model, ULMFiTModel) and model.body.embedding_weight.grad is not None
    return found.detach(), (model.body.embedding_weight.grad[5 : 5 + length] != 0).any(-1)


@pytest.mark.parametrize("length", [3, 14, 15])
def test_a_window_that_holds_the_text_is_the_plain_reading(length: int) -> None:
    reader, item = tiny.reader("ulmfit"), long_items(3)[1]
    batch = reader.collate(
        [
            dataclasses.replace(
                item.encoded,
                ids=item.encoded.ids[:length],
                offsets=item.encoded.offsets[:length],
                words=(),
            )
        ]
    )
    gradients = []
    for windows in (False, True):
        model = tiny.model("ulmfit").eval()
        found = (
            model.pool_windows(batch, window=15, pooled_positions=None)
            if windows
            else model.pool(model.encode(batch), batch)
        )
        found.square().sum().backward()
        gradients.append(
            [found.detach(), *(p.grad for p in model.parameters() if p.grad is not None)]
        )
    for one, other in zip(*gradients, strict=True):
        assert torch.equal(one, other)


def test_no_gradient_leaves_its_window() -> None:
    """The last state of 14 positions is learned from in the last window alone, though all are pooled; in one window it is learned from everywhere."""
    assert (
        pooled_gradient(14, window=4, pooled=None, last=True)[1].tolist()
        == [False] * 12 + [True] * 2
    )
    assert pooled_gradient(14, window=14, pooled=None, last=True)[1].tolist() == [True] * 14


def test_only_the_last_windows_are_learned_from() -> None:
    """Of 14 positions in windows of 4, those of the last 8 are the windows from 8 and from 12."""
    assert pooled_gradient(14, window=4, pooled=8)[1].tolist() == [False] * 8 + [True] * 6
    assert pooled_gradient(14, window=4, pooled=4)[1].tolist() == [False] * 12 + [True] * 2
    assert pooled_gradient(14, window=4, pooled=None)[1].tolist() == [True] * 14


def test_the_state_runs_over_the_whole_text_all_the_same() -> None:
    model = tiny.model("ulmfit").eval()
    whole = model.encode(numbered(14))[-1]
    found, _ = pooled_gradient(14, window=4, pooled=4)
    last = whole[:, 12:]
    torch.testing.assert_close(
        found, torch.cat([last[:, -1], last.amax(1), last.mean(1)], -1), atol=1e-6, rtol=1e-5
    )


def test_in_windows_too_padding_and_neighbours_change_nothing() -> None:
    model, reader, items = tiny.model("ulmfit").eval(), tiny.reader("ulmfit"), long_items(6)
    for pooled in (None, 4, 12):
        together = model.pool_windows(
            reader.collate([item.encoded for item in items]), window=4, pooled_positions=pooled
        )
        for row, item in enumerate(items):
            alone = model.pool_windows(
                reader.collate([item.encoded]), window=4, pooled_positions=pooled
            )
            torch.testing.assert_close(together[row], alone[0], atol=1e-6, rtol=1e-5)


@pytest.fixture
def doubles() -> Iterator[None]:
    """New modules have float64 numbers: of equal trainings the last bits of float32 ones part further with each step."""
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(torch.float32)


@pytest.mark.usefixtures("doubles")
def test_a_classifier_that_is_tuned_in_windows_reads_in_windows_too() -> None:
    reader, items, gold = tiny.reader("ulmfit"), long_items(12), np.arange(12) % 2
    found, smooth = (
        {},
        dataclasses.replace(TUNED, epsilon=1e-4),
    )  # Adam's first steps are signs, and the last bit of a gradient near zero is one too
    for name, settings in {
        "plain": smooth,
        "one window": dataclasses.replace(smooth, bptt_window=500),
        "windows": dataclasses.replace(smooth, bptt_window=4),
        "last windows": dataclasses.replace(smooth, bptt_window=4, pooled_positions=8),
    }.items():
        model = finetune(
            tiny.model("ulmfit").double(),
            reader,
            items,
            gold,
            tiny.labels(2),
            settings,
            seed=1,
            precision="fp32",
        )
        found[name] = predict_finetuned(model, reader, items, precision="fp32")
    np.testing.assert_allclose(found["plain"], found["one window"], atol=1e-12)
    assert not np.allclose(found["plain"], found["windows"], atol=1e-4) and not np.allclose(
        found["windows"], found["last windows"], atol=1e-4
    )
    model.bptt_window = None  # the last one, read otherwise than it was tuned
    assert not np.allclose(
        found["last windows"], predict_finetuned(model, reader, items, precision="fp32"), atol=1e-4
    )
    with pytest.raises(ValueError, match="pooled_positions is 3"):
        dataclasses.replace(TUNED, bptt_window=4, pooled_positions=3)
