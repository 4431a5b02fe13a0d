"""GPT-1, GPT-2 and BERT against the `transformers` library itself: random small models, and the first steps of a training."""

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
from lineage.models.base import Encoder, LossOutput
from lineage.models.batch import IGNORE_INDEX, Batch
from lineage.training.loop import TrainPlan, train
from lineage.training.objectives import causal_lm_loss, masked_lm_loss
from lineage.training.optimizers import build_adamw, build_param_groups
from lineage.training.schedules import linear_schedule_with_warmup
from lineage.training.state import RngState, TrainState
from tests.golden import golden
from tests.tiny import OneBatch

NEAR = {"atol": 1e-8, "rtol": 1e-8}  # in double precision
logging.disable_progress_bar()
KINDS = ("gpt1", "gpt2", "bert")


def theirs(
    kind: str,
    *,
    width: int,
    layers: int,
    heads: int,
    vocabulary: int,
    positions: int,
    inner: int,
    tanh: bool,
    seed: int,
) -> Any:
    """A model of the library with random weights and without dropout. Its starting weights are made ten times as large, so that no error hides."""
    torch.manual_seed(seed)
    gelu = "gelu_new" if tanh else "gelu"
    if kind == "bert":
        more = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0, "hidden_act": gelu}
        config = transformers.BertConfig(vocab_size=vocabulary, hidden_size=width, num_hidden_layers=layers, num_attention_heads=heads,
                                         intermediate_size=inner, max_position_embeddings=positions, initializer_range=0.2, **more)  # fmt: skip
        return transformers.BertForPreTraining(config).eval()
    sizes: dict[str, Any] = {"vocab_size": vocabulary, "n_embd": width, "n_layer": layers, "n_head": heads, "n_positions": positions,
                             "resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0, "initializer_range": 0.2}  # fmt: skip
    if kind == "gpt1":
        return transformers.OpenAIGPTLMHeadModel(transformers.OpenAIGPTConfig(**sizes)).eval()
    return transformers.GPT2LMHeadModel(
        transformers.GPT2Config(**sizes, n_inner=inner, activation_function=gelu)
    ).eval()


def read(model: Any) -> Encoder:
    with tempfile.TemporaryDirectory() as folder:
        model.save_pretrained(folder)
        return huggingface.read_hf_folder(Path(folder))


def drawn_batch(kind: str, *, vocab_size: int, rows: int, length: int, seed: int) -> Batch:
    """Random ids with padding at the end of every row but the first, and targets at random places."""
    draw = torch.Generator().manual_seed(seed)
    ids = torch.randint(
        1, vocab_size, (rows, length), generator=draw
    )  # 0 is padding, and the library's BERT learns nothing where it is read
    lengths = torch.randint(2, length + 1, (rows,), generator=draw)
    lengths[0] = length
    mask = torch.arange(length)[None] < lengths[:, None]
    if kind != "bert":
        targets = torch.cat([ids[:, 1:], torch.full((rows, 1), IGNORE_INDEX)], 1)
        real = torch.cat([mask[:, 1:], torch.zeros(rows, 1, dtype=torch.bool)], 1)
        return Batch(
            ids, mask, targets_BT=targets.where(real, IGNORE_INDEX), num_tokens=int(mask.sum())
        )
    chosen = (torch.rand(rows, length, generator=draw) < 0.3) & mask
    chosen[:, 0] = True
    segments = (torch.arange(length)[None] >= lengths[:, None] // 2).long() * mask
    labels = torch.randint(vocab_size, (rows, length), generator=draw).where(chosen, IGNORE_INDEX)
    return Batch(
        ids,
        mask,
        segment_ids_BT=segments,
        targets_BT=labels,
        next_sentence_labels_B=torch.randint(2, (rows,), generator=draw),
        num_tokens=int(mask.sum()),
    )


def their_output(kind: str, model: Any, batch: Batch) -> Any:
    assert batch.targets_BT is not None
    given = {
        "input_ids": batch.ids_BT,
        "attention_mask": batch.mask_BT.long(),
        "output_hidden_states": True,
    }
    if kind == "bert":
        return model(
            **given,
            token_type_ids=batch.segment_ids_BT,
            labels=batch.targets_BT,
            next_sentence_label=batch.next_sentence_labels_B,
        )
    first = torch.full_like(
        batch.ids_BT[:, :1], IGNORE_INDEX
    )  # their labels stand at the token itself
    return model(**given, labels=torch.cat([first, batch.targets_BT[:, :-1]], 1))


def our_output(kind: str, model: Encoder, batch: Batch) -> LossOutput:
    return masked_lm_loss(model, batch) if kind == "bert" else causal_lm_loss(model, batch)


def exact_loss(kind: str, out: Any, batch: Batch) -> torch.Tensor:
    """The library's loss from its logits, in double precision."""
    assert batch.targets_BT is not None
    logits = out.prediction_logits if kind == "bert" else out.logits
    loss = F.cross_entropy(
        logits.flatten(0, 1), batch.targets_BT.flatten(), ignore_index=IGNORE_INDEX
    )
    return (
        loss + F.cross_entropy(out.seq_relationship_logits, batch.next_sentence_labels_B)
        if batch.next_sentence_labels_B is not None
        else loss
    )


@st.composite
def cases(draw: st.DrawFn) -> dict[str, Any]:
    heads = draw(st.integers(1, 4))
    width, length = heads * draw(st.integers(2, 7)), draw(st.integers(2, 17))
    return {"heads": heads, "width": width, "layers": draw(st.integers(1, 3)), "vocabulary": draw(st.integers(5, 61)), "length": length,
            "positions": length + draw(st.integers(0, 5)), "inner": draw(st.integers(1, 50)), "rows": draw(st.integers(1, 4)),
            "tanh": draw(st.booleans()), "seed": draw(st.integers(0, 2**20))}  # fmt: skip


def compare(kind: str, case: dict[str, Any]) -> None:
    """Hidden states, loss and every gradient."""
    other = theirs(
        kind, **{name: value for name, value in case.items() if name not in ("rows", "length")}
    )
    ours, other = read(other).double(), other.double()
    batch = drawn_batch(
        kind,
        vocab_size=case["vocabulary"],
        rows=case["rows"],
        length=case["length"],
        seed=case["seed"],
    )
    expected, found = their_output(kind, other, batch), our_output(kind, ours, batch)
    for layer, hidden in zip(ours.encode(batch), expected.hidden_states, strict=True):
        torch.testing.assert_close(layer[batch.mask_BT], hidden[batch.mask_BT], **NEAR)
    torch.testing.assert_close(
        found.loss.float(), expected.loss.float(), atol=1e-5, rtol=1e-5
    )  # the library rounds its logits here
    exact_loss(kind, expected, batch).backward()
    found.loss.backward()
    with torch.no_grad():
        for parameter in ours.parameters():
            assert parameter.grad is not None
            parameter.copy_(parameter.grad)
        gradients = {name: parameter.grad for name, parameter in other.named_parameters()}
        for name, view in huggingface.LAYOUTS[other.config.model_type].tensor_views(ours).items():
            torch.testing.assert_close(
                view, gradients[name], **NEAR, msg=lambda text, name=name: f"{name}: {text}"
            )


QUIET = [HealthCheck.too_slow, HealthCheck.function_scoped_fixture]


@pytest.mark.parametrize("kind", KINDS)
@given(case=cases())
@settings(max_examples=6, deadline=None, derandomize=True, suppress_health_check=QUIET)
def test_random_small_models_have_the_library_s_layers_losses_and_gradients(
    kind: str, case: dict[str, Any]
) -> None:
    compare(kind, case)


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
@given(case=cases())
@settings(max_examples=150, deadline=None, suppress_health_check=QUIET)
def test_many_random_small_models_have_the_library_s_layers_losses_and_gradients(
    kind: str, case: dict[str, Any]
) -> None:
    compare(kind, case)


@pytest.mark.parametrize("kind", KINDS)
def test_five_steps_from_golden_weights_lose_as_in_transformers(kind: str) -> None:
    """Our loop against a plain one round the library's model: AdamW, decay on matrices only, clipping, a linear schedule with warm-up."""
    steps, highest, decay, clip = 5, 3e-3, 0.01, 1.0
    ours = huggingface.read_hf_folder(golden(kind) / "hf")
    other = transformers.AutoModelForPreTraining.from_pretrained(golden(kind) / "hf").eval()
    longest = min(11, getattr(other.config, "n_positions", other.config.max_position_embeddings))
    batch = drawn_batch(kind, vocab_size=other.config.vocab_size, rows=3, length=longest, seed=5)
    run = TrainState(
        ours,
        build_adamw(build_param_groups([[*ours.parameters()]], weight_decay=decay)),
        RngState(0),
    )
    course = TrainPlan(
        progress=lambda spent: spent.steps / steps,
        lr_schedule=linear_schedule_with_warmup(0.4),
        learning_rate=highest,
        max_grad_norm=clip,
        precision="fp32",
    )
    found = [
        step.loss
        for step in train(
            run, masked_lm_loss if kind == "bert" else causal_lm_loss, OneBatch(batch), course
        )
    ]

    matrices, rest = (
        [p for p in other.parameters() if (p.dim() > 1) == many] for many in (True, False)
    )
    optimizer = torch.optim.AdamW(
        [{"params": matrices, "weight_decay": decay}, {"params": rest, "weight_decay": 0.0}],
        lr=highest,
    )
    expected = []
    schedule = transformers.get_linear_schedule_with_warmup(
        optimizer, num_warmup_steps=2, num_training_steps=steps
    )
    for _ in range(steps):
        loss = their_output(kind, other, batch).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(other.parameters(), clip)
        optimizer.step()
        schedule.step()
        optimizer.zero_grad()
        expected.append(float(loss.detach()))
    assert expected[-1] < expected[0]
    assert found == pytest.approx(expected, abs=1e-4)
