"""AWD-LSTM and its classifier give the numbers of fastai.

The tests compare states, dropout with recorded masks, penalties, gradients and concat pooling.
"""

import functools
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from lineage.families.ulmfit import ULMFiTConfig, ULMFiTModel
from lineage.methods.encoding import EncodedItem
from lineage.methods.finetuning import FinetunedModel
from lineage.networks.batch import Batch
from lineage.networks.layers import awd_lstm
from lineage.networks.layers.awd_lstm import AwdDropouts
from lineage.tokenizers.tokenizer import Encoding
from lineage.training.objectives import regularized_lm_loss
from tests.helpers import tiny
from tests.helpers.golden import golden_settings, golden_tensors

assert_close = functools.partial(torch.testing.assert_close, atol=1e-5, rtol=0.0)
NO_DROPOUT = AwdDropouts(0.0, 0.0, 0.0, 0.0, 0.0)


def named_parameters(model: ULMFiTModel, prefix: str) -> dict[str, torch.Tensor]:
    """Return the model's parameters by fastai's names."""
    parameters = {f"{prefix}encoder.weight": model.body.embedding_weight}
    for i, layer in enumerate(model.body.layers):
        layer_prefix = f"{prefix}rnns.{i}"
        parameters |= {f"{layer_prefix}.module.weight_ih_l0": layer.weight_ih, f"{layer_prefix}.weight_hh_l0_raw": layer.weight_hh,  # type: ignore[dict-item]
                  f"{layer_prefix}.module.bias_ih_l0": layer.bias_ih, f"{layer_prefix}.module.bias_hh_l0": layer.bias_hh}  # type: ignore[dict-item]  # fmt: skip
    return parameters


def build_reference_model(which: str, dropouts: AwdDropouts = NO_DROPOUT) -> ULMFiTModel:
    settings = golden_settings("awd_lstm")
    config = ULMFiTConfig(num_layers=settings["L"], hidden_to_embedding_ratio=2.0, dropouts=dropouts, activation_penalty=settings["alpha"], temporal_activation_penalty=settings["beta"],
                    classifier_hidden_size=settings["lin"], embedding_size=settings["E"], hidden_size=settings["H"])  # fmt: skip
    model = ULMFiTModel(config, vocab_size=settings["V"])
    weights = golden_tensors("awd_lstm", "weights.safetensors")
    model.body.padding = settings["pad_token"]
    prefix = {"lm": "lm.0.", "clas": "clas.0.module."}[which]
    with torch.no_grad():
        for name, parameter in named_parameters(model, prefix).items():
            parameter.copy_(weights[name])
        model.softmax_bias.copy_(weights["lm.1.decoder.bias"])
    return model


def build_window(number: int, cases: dict[str, torch.Tensor]) -> Batch:
    ids = cases[f"in.window{number}"].long()
    targets = cases[f"in.target{number}"].long()
    return Batch(ids, torch.ones_like(ids, dtype=torch.bool), targets_BT=targets)


def _check_outputs(
    model: ULMFiTModel, batch: Batch, state: Any, expected: dict[str, torch.Tensor], prefix: str
) -> Any:
    outputs, decoder_input, new_state = model.run_layers(batch.ids_BT, state)
    for layer, (output, (h, c)) in enumerate(zip(outputs[1:], new_state, strict=True)):
        assert_close(output, expected[f"{prefix}.layer{layer}_output"])
        assert_close(h, expected[f"{prefix}.layer{layer}_h"])
        assert_close(c, expected[f"{prefix}.layer{layer}_c"])
    assert_close(outputs[-1], expected[f"{prefix}.encoder_output"])
    assert_close(decoder_input, expected[f"{prefix}.decoder_input"])
    assert_close(model.logits(decoder_input), expected[f"{prefix}.logits"])
    return new_state


def _check_gradients(model: ULMFiTModel, expected: dict[str, torch.Tensor], prefix: str) -> None:
    parameters = {
        f"{prefix}.grad.{name}": p for name, p in named_parameters(model, "0.").items()
    } | {f"{prefix}.grad.1.decoder.bias": model.softmax_bias}
    for name, parameter in parameters.items():
        torch.testing.assert_close(parameter.grad, expected[name], atol=1e-6, rtol=0.0, msg=name)


def test_carried_state_losses_and_gradients_match_fastai() -> None:
    model = build_reference_model("lm").train()
    expected = golden_tensors("awd_lstm")
    state = None
    for number in (1, 2):
        model.zero_grad()
        batch = build_window(number, expected)
        new_state = _check_outputs(model, batch, state, expected, f"lm0.window{number}")
        out = regularized_lm_loss(model, batch, state)
        nats = out.nats["forward"] / out.target_counts["forward"]
        assert_close(nats.reshape(1), expected[f"lm0.window{number}.loss"])
        model.eval()  # The penalties are left out in evaluation mode.
        regularized_lm_loss(model, batch, state).loss.backward()
        _check_gradients(model, expected, f"lm0.window{number}")
        model.train()
        state = new_state
    ids = expected["in.window3_smaller_batch"].long()
    model.eval()
    _check_outputs(
        model, Batch(ids, torch.ones_like(ids, dtype=torch.bool)), state, expected, "lm0.window3"
    )


def recorded_masks(
    cases: dict[str, torch.Tensor], prefix: str, num_layers: int
) -> Iterator[torch.Tensor]:
    """Yield the masks of a window in the order in which the forward pass draws them."""
    names = ["embedding", "input"]
    for layer in range(num_layers):
        if layer > 0:
            names.append(f"hidden{layer - 1}")
        names.append(f"weight_hh_l0.{layer}")
    names.append("output")
    for name in names:
        if f"{prefix}.mask.{name}" in cases:
            yield cases[f"{prefix}.mask.{name}"].float()


def replay_masks(
    cases: dict[str, torch.Tensor], prefix: str, num_layers: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Let the next forward pass draw the recorded masks of a window."""
    masks = recorded_masks(cases, prefix, num_layers)

    def next_mask(shape: Any, share: float, like: torch.Tensor) -> torch.Tensor:
        mask = next(masks)
        assert tuple(shape) == tuple(mask.shape)
        return mask

    monkeypatch.setattr(awd_lstm, "sample_keep_mask", next_mask)


@pytest.mark.parametrize("case", ["wdrop", "alldrop"])
def test_outputs_penalties_and_gradients_match_with_recorded_dropout_masks(
    case: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = golden_settings("awd_lstm")
    expected = golden_tensors("awd_lstm")
    state = None
    shares = settings[f"{case}_dropouts"]
    fastai_names = {
        "embedding": "embed_p",
        "input": "input_p",
        "weight": "weight_p",
        "hidden": "hidden_p",
        "output": "output_p",
    }
    dropouts = {name: shares.get(fastai_name, 0.0) for name, fastai_name in fastai_names.items()}
    model = build_reference_model("lm", AwdDropouts(**dropouts)).train()
    for number in (1, 2):
        prefix = f"{case}.window{number}"
        model.zero_grad()
        replay_masks(expected, prefix, settings["L"], monkeypatch)
        batch = build_window(number, expected)
        new_state = _check_outputs(model, batch, state, expected, prefix)
        replay_masks(expected, prefix, settings["L"], monkeypatch)
        out = regularized_lm_loss(model, batch, state)
        nats = (out.nats["forward"] / out.target_counts["forward"]).reshape(1)
        assert_close(nats, expected[f"{prefix}.loss"])
        for name, alpha, beta in (
            ("ar_plus_tar", 1.0, 1.0),
            ("ar", 1.0, 0.0),
            ("tar", 0.0, 1.0),
            ("none", 0.0, 0.0),
        ):
            model.config.__dict__.update(
                activation_penalty=alpha * settings["alpha"],
                temporal_activation_penalty=beta * settings["beta"],
            )
            replay_masks(expected, prefix, settings["L"], monkeypatch)
            out = regularized_lm_loss(model, batch, state)
            if f"{prefix}.{name}" in expected:
                assert_close((out.loss - nats).detach().reshape(1), expected[f"{prefix}.{name}"])
        out.loss.backward()
        _check_gradients(model, expected, prefix)
        model.config.__dict__.update(
            activation_penalty=settings["alpha"], temporal_activation_penalty=settings["beta"]
        )
        state = new_state


def move_padding_right(ids: torch.Tensor, padding: int) -> Batch:
    """Return a batch of the items with their padding moved to the right."""
    rows = [row[row != padding] for row in ids]
    length = max(map(len, rows))
    moved = torch.full((len(rows), length), padding)
    mask = torch.zeros(len(rows), length, dtype=torch.bool)
    for i, row in enumerate(rows):
        moved[i, : len(row)] = row
        mask[i, : len(row)] = True
    return Batch(moved, mask)


@pytest.mark.parametrize("case", ["single", "chunkclean", "chunk"])
def test_concat_pooling_treats_each_item_as_if_it_were_alone(case: str) -> None:
    """fastai's batches are wrong for some rows of `chunk`, so its rows are compared one by one."""
    settings = golden_settings("awd_lstm")
    expected = golden_tensors("awd_lstm")
    model = build_reference_model("clas").eval()
    example_item = EncodedItem(Encoding(np.zeros(1, int), np.zeros((1, 2), int)))
    finetuned = FinetunedModel(
        model,
        tiny.label_answer(settings["ncls"]),
        replace(tiny.model_config("ulmfit").evaluate.finetune, dropout=0.0),
        seed=0,
        example_item=example_item,
    )
    weights = golden_tensors("awd_lstm", "weights.safetensors")
    head = finetuned.head
    with torch.no_grad():
        for name, part in (
            ("0.0", "input_norm"),
            ("0.1", "hidden_layer"),
            ("1.0", "hidden_norm"),
            ("1.1", "output_layer"),
        ):
            for key, value in getattr(head, part).state_dict().items():
                value.copy_(weights[f"clas.1.layers.{name}.{key}"])
    ids = expected[f"in.pool_{case}_ids"].long()
    batch = move_padding_right(ids, settings["pad_token"])
    real = ~expected[f"pool_{case}.pad_mask"].bool()
    assert torch.equal(real, ids != settings["pad_token"])
    correct_rows = ~expected[f"pool_{case}.rows_where_batched_fastai_differs"].bool()
    assert correct_rows.any() and (correct_rows.all() or case == "chunk")
    finetuned.eval()
    with torch.inference_mode():
        layers = model.encode(batch)
        top = layers[-1][batch.mask_BT]
        pooled = model.pool(layers, batch)
        logits = finetuned(batch)
        assert_close(top, expected[f"pool_{case}.per_row_unpadded.encoder_output"][real])
        assert_close(pooled, expected[f"pool_{case}.per_row_unpadded.last_max_mean"])
        assert_close(logits, expected[f"pool_{case}.per_row_unpadded.logits_eval"])
        correct_positions = batch.mask_BT & correct_rows[:, None]
        assert_close(
            layers[-1][correct_positions],
            expected[f"pool_{case}.encoder_output"][real & correct_rows[:, None]],
        )
        assert_close(pooled[correct_rows], expected[f"pool_{case}.last_max_mean"][correct_rows])
        assert_close(logits[correct_rows], expected[f"pool_{case}.logits_eval"][correct_rows])
        if case != "chunk":
            finetuned.train()
            torch.testing.assert_close(
                finetuned(batch),
                expected[f"pool_{case}.logits_train_dropout0"],
                atol=5e-5,
                rtol=0.0,
            )


@pytest.mark.parametrize("window", [None, 5, 2])
@pytest.mark.parametrize("case", ["single", "chunkclean", "chunk"])
def test_pooling_in_windows_matches_reading_each_item_alone(case: str, window: int | None) -> None:
    """The state is carried, so windows of fastai's bptt and of other lengths change nothing.

    fastai's batches are compared only for the case that they get right.
    """
    settings = golden_settings("awd_lstm")
    expected = golden_tensors("awd_lstm")
    model = build_reference_model("clas").eval()
    batch = move_padding_right(expected[f"in.pool_{case}_ids"].long(), settings["pad_token"])
    with torch.inference_mode():
        pooled = model.pool_windows(batch, window=window or settings["bptt"], pooled_positions=None)
    assert_close(pooled, expected[f"pool_{case}.per_row_unpadded.last_max_mean"])
    if case == "chunkclean" and window is None:
        assert_close(pooled, expected[f"pool_{case}.last_max_mean"])
