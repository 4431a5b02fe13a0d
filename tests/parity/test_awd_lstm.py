"""AWD-LSTM and its classifier against fastai: states, dropout with the recorded masks, penalties, gradients, concat pooling."""

import json
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from lineage.evaluation.encoding import EncodedItem
from lineage.evaluation.finetuning import FinetunedModel
from lineage.models.batch import Batch
from lineage.models.layers import awd_lstm
from lineage.models.layers.awd_lstm import AwdDropouts
from lineage.models.ulmfit import ULMFiTConfig, ULMFiTModel
from lineage.tokenizers.tokenizer import Encoding
from lineage.training.objectives import regularized_lm_loss
from tests import tiny
from tests.golden import golden

NEAR = {"atol": 1e-5, "rtol": 0.0}
NONE = AwdDropouts(0.0, 0.0, 0.0, 0.0, 0.0)


def facts() -> dict[str, Any]:
    return json.loads((golden("awd_lstm") / "config.json").read_text())


def numbers() -> dict[str, torch.Tensor]:
    return load_file(golden("awd_lstm") / "cases.safetensors")


def parameters(model: ULMFiTModel, start: str) -> dict[str, torch.Tensor]:
    """The model's parameters by fastai's names."""
    found = {f"{start}encoder.weight": model.body.embedding_weight}
    for i, layer in enumerate(model.body.layers):
        inner = f"{start}rnns.{i}"
        found |= {f"{inner}.module.weight_ih_l0": layer.weight_ih, f"{inner}.weight_hh_l0_raw": layer.weight_hh,  # type: ignore[dict-item]
                  f"{inner}.module.bias_ih_l0": layer.bias_ih, f"{inner}.module.bias_hh_l0": layer.bias_hh}  # type: ignore[dict-item]  # fmt: skip
    return found


def reference(which: str, dropouts: AwdDropouts = NONE) -> ULMFiTModel:
    said = facts()
    config = ULMFiTConfig(num_layers=said["L"], hidden_to_embedding_ratio=2.0, dropouts=dropouts, activation_penalty=said["alpha"], temporal_activation_penalty=said["beta"],
                    classifier_hidden_size=said["lin"], embedding_size=said["E"], hidden_size=said["H"])  # fmt: skip
    model, weights = (
        ULMFiTModel(config, vocab_size=said["V"]),
        load_file(golden("awd_lstm") / "weights.safetensors"),
    )
    model.body.padding = said["pad_token"]
    start = {"lm": "lm.0.", "clas": "clas.0.module."}[which]
    with torch.no_grad():
        for name, parameter in parameters(model, start).items():
            parameter.copy_(weights[name])
        model.softmax_bias.copy_(weights["lm.1.decoder.bias"])
    return model


def window(number: int, found: dict[str, torch.Tensor]) -> Batch:
    ids, targets = found[f"in.window{number}"].long(), found[f"in.target{number}"].long()
    return Batch(ids, torch.ones_like(ids, dtype=torch.bool), targets_BT=targets)


def _outputs_match(
    model: ULMFiTModel, batch: Batch, state: Any, found: dict[str, torch.Tensor], where: str
) -> Any:
    outputs, dropped, after = model.run_layers(batch.ids_BT, state)
    for layer, (output, (h, c)) in enumerate(zip(outputs[1:], after, strict=True)):
        torch.testing.assert_close(output, found[f"{where}.layer{layer}_output"], **NEAR)
        torch.testing.assert_close(h, found[f"{where}.layer{layer}_h"], **NEAR)
        torch.testing.assert_close(c, found[f"{where}.layer{layer}_c"], **NEAR)
    torch.testing.assert_close(outputs[-1], found[f"{where}.encoder_output"], **NEAR)
    torch.testing.assert_close(dropped, found[f"{where}.decoder_input"], **NEAR)
    torch.testing.assert_close(model.logits(dropped), found[f"{where}.logits"], **NEAR)
    return after


def _gradients_match(model: ULMFiTModel, found: dict[str, torch.Tensor], where: str) -> None:
    named = {f"{where}.grad.{name}": p for name, p in parameters(model, "0.").items()} | {
        f"{where}.grad.1.decoder.bias": model.softmax_bias
    }
    for name, parameter in named.items():
        assert parameter.grad is not None
        torch.testing.assert_close(parameter.grad, found[name], atol=1e-6, rtol=0.0, msg=name)


def test_state_is_carried_and_losses_and_gradients_are_fastai_s() -> None:
    model, found, state = reference("lm").train(), numbers(), None
    for number in (1, 2):
        model.zero_grad()
        batch = window(number, found)
        after = _outputs_match(model, batch, state, found, f"lm0.window{number}")
        out = regularized_lm_loss(model, batch, state)
        nats = out.nats["forward"] / out.target_counts["forward"]
        torch.testing.assert_close(nats.reshape(1), found[f"lm0.window{number}.loss"], **NEAR)
        model.eval()  # without the penalties
        regularized_lm_loss(model, batch, state).loss.backward()
        _gradients_match(model, found, f"lm0.window{number}")
        model.train()
        state = after
    ids = found["in.window3_smaller_batch"].long()
    model.eval()
    _outputs_match(
        model, Batch(ids, torch.ones_like(ids, dtype=torch.bool)), state, found, "lm0.window3"
    )


def recorded(found: dict[str, torch.Tensor], where: str, layers: int) -> Iterator[torch.Tensor]:
    """The masks of a window in the order in which the forward draws them."""
    names = [
        "embedding",
        "input",
        *(
            n
            for i in range(layers)
            for n in ([f"hidden{i - 1}"] if i else []) + [f"weight_hh_l0.{i}"]
        ),
        "output",
    ]
    yield from (
        found[f"{where}.mask.{name}"].float() for name in names if f"{where}.mask.{name}" in found
    )


@pytest.mark.parametrize("case", ["wdrop", "alldrop"])
def test_dropout_with_the_recorded_masks(case: str, monkeypatch: pytest.MonkeyPatch) -> None:
    said, found, state = facts(), numbers(), None
    shares = said[f"{case}_dropouts"]
    named = {
        "embedding": "embed_p",
        "input": "input_p",
        "weight": "weight_p",
        "hidden": "hidden_p",
        "output": "output_p",
    }
    model = reference(
        "lm", AwdDropouts(**{ours: shares.get(theirs, 0.0) for ours, theirs in named.items()})
    ).train()
    for number in (1, 2):
        where = f"{case}.window{number}"

        def given(
            shape: Any,
            share: float,
            like: torch.Tensor,
            masks: Iterator[torch.Tensor] = recorded(found, where, said["L"]),
        ) -> torch.Tensor:
            mask = next(masks)
            assert tuple(shape) == tuple(mask.shape)
            return mask

        model.zero_grad()
        monkeypatch.setattr(awd_lstm, "sample_keep_mask", given)
        batch = window(number, found)
        after = _outputs_match(model, batch, state, found, where)
        masks = recorded(found, where, said["L"])
        monkeypatch.setattr(awd_lstm, "sample_keep_mask", lambda *_, masks=masks: next(masks))
        out = regularized_lm_loss(model, batch, state)
        nats = (out.nats["forward"] / out.target_counts["forward"]).reshape(1)
        torch.testing.assert_close(nats, found[f"{where}.loss"], **NEAR)
        for name, alpha, beta in (
            ("ar_plus_tar", 1.0, 1.0),
            ("ar", 1.0, 0.0),
            ("tar", 0.0, 1.0),
            ("none", 0.0, 0.0),
        ):
            model.config.__dict__.update(
                activation_penalty=alpha * said["alpha"],
                temporal_activation_penalty=beta * said["beta"],
            )
            masks = recorded(found, where, said["L"])
            monkeypatch.setattr(awd_lstm, "sample_keep_mask", lambda *_, masks=masks: next(masks))
            out = regularized_lm_loss(model, batch, state)
            if f"{where}.{name}" in found:
                torch.testing.assert_close(
                    (out.loss - nats).detach().reshape(1), found[f"{where}.{name}"], **NEAR
                )
        out.loss.backward()
        _gradients_match(model, found, where)
        model.config.__dict__.update(
            activation_penalty=said["alpha"], temporal_activation_penalty=said["beta"]
        )
        state = after


def rows(ids: torch.Tensor, padding: int) -> Batch:
    """Items with their padding moved to the right, where ours stands."""
    kept = [row[row != padding] for row in ids]
    length = max(map(len, kept))
    found = torch.full((len(kept), length), padding)
    mask = torch.zeros(len(kept), length, dtype=torch.bool)
    for i, row in enumerate(kept):
        found[i, : len(row)], mask[i, : len(row)] = row, True
    return Batch(found, mask)


@pytest.mark.parametrize("case", ["single", "chunkclean", "chunk"])
def test_concat_pooling_reads_each_item_as_if_it_stood_alone(case: str) -> None:
    """`chunk` too, where fastai's own batches are wrong: its rows, read one by one, are the measure."""
    said, found, model = facts(), numbers(), reference("clas").eval()
    like = EncodedItem(Encoding(np.zeros(1, int), np.zeros((1, 2), int)))
    tuned = FinetunedModel(
        model,
        tiny.labels(said["ncls"]),
        replace(tiny.variant("ulmfit").evaluate.finetune, dropout=0.0),
        seed=0,
        example_item=like,
    )
    weights, head = load_file(golden("awd_lstm") / "weights.safetensors"), tuned.head
    with torch.no_grad():
        for name, part in (
            ("0.0", "input_norm"),
            ("0.1", "hidden_layer"),
            ("1.0", "hidden_norm"),
            ("1.1", "output_layer"),
        ):
            for key, value in getattr(head, part).state_dict().items():
                value.copy_(weights[f"clas.1.layers.{name}.{key}"])
    ids = found[f"in.pool_{case}_ids"].long()
    batch, real = rows(ids, said["pad_token"]), ~found[f"pool_{case}.pad_mask"].bool()
    assert torch.equal(real, ids != said["pad_token"])
    right = ~found[f"pool_{case}.rows_where_batched_fastai_differs"].bool()
    assert right.any() and (right.all() or case == "chunk")
    tuned.eval()
    with torch.inference_mode():
        layers = model.encode(batch)
        read, pooled, logits = layers[-1][batch.mask_BT], model.pool(layers, batch), tuned(batch)
        torch.testing.assert_close(
            read, found[f"pool_{case}.per_row_unpadded.encoder_output"][real], **NEAR
        )
        torch.testing.assert_close(
            pooled, found[f"pool_{case}.per_row_unpadded.last_max_mean"], **NEAR
        )
        torch.testing.assert_close(
            logits, found[f"pool_{case}.per_row_unpadded.logits_eval"], **NEAR
        )
        kept = batch.mask_BT & right[:, None]
        torch.testing.assert_close(
            layers[-1][kept], found[f"pool_{case}.encoder_output"][real & right[:, None]], **NEAR
        )
        torch.testing.assert_close(
            pooled[right], found[f"pool_{case}.last_max_mean"][right], **NEAR
        )
        torch.testing.assert_close(logits[right], found[f"pool_{case}.logits_eval"][right], **NEAR)
        if case != "chunk":
            tuned.train()
            torch.testing.assert_close(
                tuned(batch), found[f"pool_{case}.logits_train_dropout0"], atol=5e-5, rtol=0.0
            )


@pytest.mark.parametrize("window", [None, 5, 2])
@pytest.mark.parametrize("case", ["single", "chunkclean", "chunk"])
def test_a_text_in_windows_is_pooled_as_each_item_alone(case: str, window: int | None) -> None:
    """fastai's own bptt, and others: the state is carried, so that windows leave no trace. Rows that its batches get wrong are no measure."""
    said, found, model = facts(), numbers(), reference("clas").eval()
    batch = rows(found[f"in.pool_{case}_ids"].long(), said["pad_token"])
    with torch.inference_mode():
        pooled = model.pool_windows(batch, window=window or said["bptt"], pooled_positions=None)
    torch.testing.assert_close(pooled, found[f"pool_{case}.per_row_unpadded.last_max_mean"], **NEAR)
    if case == "chunkclean" and window is None:
        torch.testing.assert_close(pooled, found[f"pool_{case}.last_max_mean"], **NEAR)
