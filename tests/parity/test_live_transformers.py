"""GPT-1, GPT-2 and BERT agree with `transformers` itself.

The tests compare random small models, and the first steps of a training.
"""

import tempfile
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch.nn import functional as F
from transformers.utils import logging

from lineage.formats import huggingface
from lineage.networks.base import Encoder, LossOutput
from lineage.networks.batch import IGNORE_INDEX, Batch
from lineage.training.loop import TrainPlan, train
from lineage.training.objectives import causal_lm_loss, masked_lm_loss
from lineage.training.optimizers import build_adamw, build_param_groups
from lineage.training.schedules import schedule_with_warmup
from lineage.training.state import RngState, TrainState
from tests.helpers.golden import golden_folder
from tests.helpers.tiny import OneBatchSampler

TOLERANCE = {"atol": 1e-8, "rtol": 1e-8}  # in double precision
logging.disable_progress_bar()
KINDS = ("gpt1", "gpt2", "bert")


def build_hf_model(
    kind: str,
    *,
    hidden_size: int,
    num_layers: int,
    num_heads: int,
    vocab_size: int,
    max_positions: int,
    ffn_size: int,
    tanh: bool,
    seed: int,
) -> Any:
    """Return a model of the library with random weights and without dropout.

    Its initial weights are ten times as large as usual, so that no error stays hidden.
    """
    torch.manual_seed(seed)
    gelu = "gelu_new" if tanh else "gelu"
    if kind == "bert":
        options = {
            "hidden_dropout_prob": 0.0,
            "attention_probs_dropout_prob": 0.0,
            "hidden_act": gelu,
        }
        config = transformers.BertConfig(vocab_size=vocab_size, hidden_size=hidden_size, num_hidden_layers=num_layers, num_attention_heads=num_heads,
                                         intermediate_size=ffn_size, max_position_embeddings=max_positions, initializer_range=0.2, **options)  # fmt: skip
        return transformers.BertForPreTraining(config).eval()
    sizes: dict[str, Any] = {"vocab_size": vocab_size, "n_embd": hidden_size, "n_layer": num_layers, "n_head": num_heads, "n_positions": max_positions,
                             "resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0, "initializer_range": 0.2}  # fmt: skip
    if kind == "gpt1":
        return transformers.OpenAIGPTLMHeadModel(transformers.OpenAIGPTConfig(**sizes)).eval()
    return transformers.GPT2LMHeadModel(
        transformers.GPT2Config(**sizes, n_inner=ffn_size, activation_function=gelu)
    ).eval()


def convert(model: Any) -> Encoder:
    """Return our model with the weights of the library's model."""
    with tempfile.TemporaryDirectory() as folder:
        model.save_pretrained(folder)
        return huggingface.read_hf_folder(Path(folder))


def random_batch(kind: str, *, vocab_size: int, rows: int, length: int, seed: int) -> Batch:
    """Return random ids with padding at the end, and targets at random positions.

    The first row has no padding.
    """
    generator = torch.Generator().manual_seed(seed)
    # 0 is padding, whose embedding gets no gradient in the library's BERT.
    ids = torch.randint(1, vocab_size, (rows, length), generator=generator)
    lengths = torch.randint(2, length + 1, (rows,), generator=generator)
    lengths[0] = length
    mask = torch.arange(length)[None] < lengths[:, None]
    if kind != "bert":
        targets = torch.cat([ids[:, 1:], torch.full((rows, 1), IGNORE_INDEX)], 1)
        real = torch.cat([mask[:, 1:], torch.zeros(rows, 1, dtype=torch.bool)], 1)
        return Batch(
            ids, mask, targets_BT=targets.where(real, IGNORE_INDEX), num_tokens=int(mask.sum())
        )
    chosen = (torch.rand(rows, length, generator=generator) < 0.3) & mask
    chosen[:, 0] = True
    segments = (torch.arange(length)[None] >= lengths[:, None] // 2).long() * mask
    labels = torch.randint(vocab_size, (rows, length), generator=generator).where(
        chosen, IGNORE_INDEX
    )
    return Batch(
        ids,
        mask,
        segment_ids_BT=segments,
        targets_BT=labels,
        next_sentence_labels_B=torch.randint(2, (rows,), generator=generator),
        num_tokens=int(mask.sum()),
    )


def run_hf_model(kind: str, model: Any, batch: Batch) -> Any:
    inputs = {
        "input_ids": batch.ids_BT,
        "attention_mask": batch.mask_BT.long(),
        "output_hidden_states": True,
    }
    if kind == "bert":
        return model(
            **inputs,
            token_type_ids=batch.segment_ids_BT,
            labels=batch.targets_BT,
            next_sentence_label=batch.next_sentence_labels_B,
        )
    # The library's labels stand at the predicted token itself, not one position before.
    first = torch.full_like(batch.ids_BT[:, :1], IGNORE_INDEX)
    return model(**inputs, labels=torch.cat([first, batch.targets_BT[:, :-1]], 1))


def run_our_model(kind: str, model: Encoder, batch: Batch) -> LossOutput:
    return masked_lm_loss(model, batch) if kind == "bert" else causal_lm_loss(model, batch)


def exact_loss(kind: str, out: Any, batch: Batch) -> torch.Tensor:
    """Return the loss from the library's logits, in double precision."""
    logits = out.prediction_logits if kind == "bert" else out.logits
    loss = F.cross_entropy(
        logits.flatten(0, 1), batch.targets_BT.flatten(), ignore_index=IGNORE_INDEX
    )
    if batch.next_sentence_labels_B is None:
        return loss
    return loss + F.cross_entropy(out.seq_relationship_logits, batch.next_sentence_labels_B)


@st.composite
def cases(draw: st.DrawFn) -> dict[str, Any]:
    num_heads = draw(st.integers(1, 4))
    hidden_size = num_heads * draw(st.integers(2, 7))
    length = draw(st.integers(2, 17))
    return {"num_heads": num_heads, "hidden_size": hidden_size, "num_layers": draw(st.integers(1, 3)), "vocab_size": draw(st.integers(5, 61)), "length": length,
            "max_positions": length + draw(st.integers(0, 5)), "ffn_size": draw(st.integers(1, 50)), "rows": draw(st.integers(1, 4)),
            "tanh": draw(st.booleans()), "seed": draw(st.integers(0, 2**20))}  # fmt: skip


SUPPRESSED_CHECKS = [HealthCheck.too_slow, HealthCheck.function_scoped_fixture]


@pytest.mark.parametrize("kind", KINDS)
@given(case=cases())
@settings(max_examples=6, deadline=None, derandomize=True, suppress_health_check=SUPPRESSED_CHECKS)
def test_random_small_models_agree_with_transformers(kind: str, case: dict[str, Any]) -> None:
    """Compare hidden states, loss and every gradient."""
    sizes = {name: value for name, value in case.items() if name not in ("rows", "length")}
    hf_model = build_hf_model(kind, **sizes)
    model, hf_model = convert(hf_model).double(), hf_model.double()
    batch = random_batch(
        kind,
        vocab_size=case["vocab_size"],
        rows=case["rows"],
        length=case["length"],
        seed=case["seed"],
    )
    expected = run_hf_model(kind, hf_model, batch)
    actual = run_our_model(kind, model, batch)
    for layer, hidden in zip(model.encode(batch), expected.hidden_states, strict=True):
        torch.testing.assert_close(layer[batch.mask_BT], hidden[batch.mask_BT], **TOLERANCE)
    # The library rounds its logits here, so the tolerance is larger.
    torch.testing.assert_close(actual.loss.float(), expected.loss.float(), atol=1e-5, rtol=1e-5)
    if batch.next_sentence_labels_B is not None:
        is_correct_B = expected.seq_relationship_logits.argmax(-1) == batch.next_sentence_labels_B
        assert actual.nats["next_sentence_correct"] == is_correct_B.sum()
        assert actual.target_counts["next_sentence_correct"] == len(is_correct_B)
    exact_loss(kind, expected, batch).backward()
    actual.loss.backward()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(parameter.grad)
        gradients = {name: parameter.grad for name, parameter in hf_model.named_parameters()}
        for name, view in (
            huggingface.LAYOUTS[hf_model.config.model_type].tensor_views(model).items()
        ):
            torch.testing.assert_close(
                view, gradients[name], **TOLERANCE, msg=lambda text, name=name: f"{name}: {text}"
            )


@pytest.mark.parametrize("kind", KINDS)
def test_losses_of_five_training_steps_match_transformers(kind: str) -> None:
    """Compare our loop with a plain one around the library's model.

    Both use AdamW, weight decay on matrices only, clipping, and a linear schedule with warmup.
    """
    steps, learning_rate, weight_decay, max_grad_norm = 5, 3e-3, 0.01, 1.0
    model = huggingface.read_hf_folder(golden_folder(kind) / "hf")
    hf_model = transformers.AutoModelForPreTraining.from_pretrained(
        golden_folder(kind) / "hf"
    ).eval()
    length = min(
        11, getattr(hf_model.config, "n_positions", hf_model.config.max_position_embeddings)
    )
    batch = random_batch(kind, vocab_size=hf_model.config.vocab_size, rows=3, length=length, seed=5)
    state = TrainState(
        model,
        build_adamw(build_param_groups([[*model.parameters()]], weight_decay=weight_decay)),
        RngState(0),
    )
    plan = TrainPlan(
        progress=lambda counters: counters.steps / steps,
        lr_schedule=schedule_with_warmup("linear", 0.4),
        learning_rate=learning_rate,
        max_grad_norm=max_grad_norm,
        precision="fp32",
    )
    objective = masked_lm_loss if kind == "bert" else causal_lm_loss
    losses = [step.loss for step in train(state, objective, OneBatchSampler(batch), plan)]

    matrices = [p for p in hf_model.parameters() if p.dim() > 1]
    rest = [p for p in hf_model.parameters() if p.dim() <= 1]
    optimizer = torch.optim.AdamW(
        [{"params": matrices, "weight_decay": weight_decay}, {"params": rest, "weight_decay": 0.0}],
        lr=learning_rate,
    )
    expected = []
    schedule = transformers.get_linear_schedule_with_warmup(
        optimizer, num_warmup_steps=2, num_training_steps=steps
    )
    for _ in range(steps):
        loss = run_hf_model(kind, hf_model, batch).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(hf_model.parameters(), max_grad_norm)
        optimizer.step()
        schedule.step()
        optimizer.zero_grad()
        expected.append(float(loss.detach()))
    assert expected[-1] < expected[0]
    assert losses == pytest.approx(expected, abs=1e-4)
