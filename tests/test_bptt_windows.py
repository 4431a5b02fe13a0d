"""Long texts are classified in windows (BPT3C).

The state is carried over all windows, and gradients stay within each window.
"""

import dataclasses
from collections.abc import Iterator
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch

from lineage.methods.encoding import encode_items
from lineage.methods.finetuning import predict_finetuned
from lineage.networks.batch import Batch
from tests.helpers import tiny
from tests.helpers.first_word import FINETUNE
from tests.helpers.fitting import finetune

SETTINGS = dataclasses.replace(
    FINETUNE,
    epochs=1,
    learning_rate=0.01,
    layer_lr_decay=1.0,
    gradual_unfreezing=0.0,
    weight_decay=0.0,
    dropout=0.0,
)


def build_long_items(count: int) -> list[Any]:
    texts = [
        " ".join(document.split()[: 9 + 5 * i])
        for i, document in enumerate(tiny.documents()[:count])
    ]
    return encode_items(
        pd.DataFrame({"text": texts}), tiny.tokenizer("ulmfit"), max_length=None, language="en"
    )


def build_numbered_text(length: int) -> Batch:
    """Return a text of the words 5, 6, 7 and so on."""
    ids = torch.arange(5, 5 + length)[None]
    return Batch(ids, torch.ones_like(ids, dtype=torch.bool))


def pooled_gradient(
    length: int, *, window: int, pooled_positions: int | None, last_state_only: bool = False
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the pooled vector of a numbered text, and which positions got a gradient from it.

    If `last_state_only`, the gradient comes from the last state in the vector only.
    """
    model = tiny.model("ulmfit").eval()
    vector = model.pool_windows(
        build_numbered_text(length), window=window, pooled_positions=pooled_positions
    )
    vector[:, : model.hidden_sizes()[-1] if last_state_only else None].square().sum().backward()
    return vector.detach(), (model.body.embedding_weight.grad[5 : 5 + length] != 0).any(-1)


@pytest.mark.parametrize("length", [3, 14, 15])
def test_one_window_for_the_whole_text_equals_reading_without_windows(length: int) -> None:
    tokenizer = tiny.tokenizer("ulmfit")
    item = build_long_items(3)[1]
    batch = tokenizer.collate(
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
        pooled = (
            model.pool_windows(batch, window=15, pooled_positions=None)
            if windows
            else model.pool(model.encode(batch), batch)
        )
        pooled.square().sum().backward()
        gradients.append(
            [pooled.detach(), *(p.grad for p in model.parameters() if p.grad is not None)]
        )
    for expected, actual in zip(*gradients, strict=True):
        assert torch.equal(expected, actual)


def test_gradients_do_not_cross_window_boundaries() -> None:
    """The last state of 14 positions gets gradients in the last window only, though all are pooled.

    In one window of 14 it gets them everywhere.
    """
    assert (
        pooled_gradient(14, window=4, pooled_positions=None, last_state_only=True)[1].tolist()
        == [False] * 12 + [True] * 2
    )
    assert (
        pooled_gradient(14, window=14, pooled_positions=None, last_state_only=True)[1].tolist()
        == [True] * 14
    )


def test_only_the_last_windows_get_gradients() -> None:
    """With 14 positions in windows of 4, the last 8 positions are in the windows from 8 and 12."""
    assert pooled_gradient(14, window=4, pooled_positions=8)[1].tolist() == [False] * 8 + [True] * 6
    assert (
        pooled_gradient(14, window=4, pooled_positions=4)[1].tolist() == [False] * 12 + [True] * 2
    )
    assert pooled_gradient(14, window=4, pooled_positions=None)[1].tolist() == [True] * 14


def test_the_state_is_carried_over_the_whole_text() -> None:
    model = tiny.model("ulmfit").eval()
    top_layer = model.encode(build_numbered_text(14))[-1]
    pooled, _ = pooled_gradient(14, window=4, pooled_positions=4)
    last_state_only = top_layer[:, 12:]
    torch.testing.assert_close(
        pooled,
        torch.cat([last_state_only[:, -1], last_state_only.amax(1), last_state_only.mean(1)], -1),
        atol=1e-6,
        rtol=1e-5,
    )


def test_padding_and_other_items_do_not_change_pooling_in_windows() -> None:
    model = tiny.model("ulmfit").eval()
    tokenizer = tiny.tokenizer("ulmfit")
    items = build_long_items(6)
    for pooled_positions in (None, 4, 12):
        together = model.pool_windows(
            tokenizer.collate([item.encoded for item in items]),
            window=4,
            pooled_positions=pooled_positions,
        )
        for row, item in enumerate(items):
            alone = model.pool_windows(
                tokenizer.collate([item.encoded]), window=4, pooled_positions=pooled_positions
            )
            torch.testing.assert_close(together[row], alone[0], atol=1e-6, rtol=1e-5)


@pytest.fixture
def float64_default() -> Iterator[None]:
    """Create new modules in float64.

    In float32 the last bits of equal trainings differ more with each step.
    """
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(torch.float32)


@pytest.mark.slow
@pytest.mark.usefixtures("float64_default")
def test_a_classifier_fine_tuned_in_windows_predicts_in_windows_too() -> None:
    tokenizer = tiny.tokenizer("ulmfit")
    items = build_long_items(12)
    labels = np.arange(12) % 2
    predictions = {}
    # Adam's first steps depend on signs, and a gradient near zero may get another sign by rounding.
    # A larger epsilon prevents that.
    base_settings = dataclasses.replace(SETTINGS, epsilon=1e-4)
    for name, settings in {
        "plain": base_settings,
        "one window": dataclasses.replace(base_settings, bptt_window=500),
        "windows": dataclasses.replace(base_settings, bptt_window=4),
        "last windows": dataclasses.replace(base_settings, bptt_window=4, pooled_positions=8),
    }.items():
        model = finetune(
            tiny.model("ulmfit").double(),
            tokenizer,
            items,
            labels,
            tiny.label_answer(2),
            settings,
            seed=1,
            precision="fp32",
        )
        predictions[name] = predict_finetuned(model, tokenizer, items, precision="fp32")
    np.testing.assert_allclose(predictions["plain"], predictions["one window"], atol=1e-12)
    assert not np.allclose(predictions["plain"], predictions["windows"], atol=1e-4)
    assert not np.allclose(predictions["windows"], predictions["last windows"], atol=1e-4)
    # The last model predicts differently if it reads without the windows of its fine-tuning.
    model.bptt_window = None
    assert not np.allclose(
        predictions["last windows"],
        predict_finetuned(model, tokenizer, items, precision="fp32"),
        atol=1e-4,
    )
    with pytest.raises(ValueError, match="pooled_positions is 3"):
        dataclasses.replace(SETTINGS, bptt_window=4, pooled_positions=3)
