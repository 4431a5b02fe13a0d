"""Adaptation continues pretraining on a task's own text.

The tests check what is learned, from which texts, and how often they are read.
"""

import dataclasses
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import torch
from safetensors.torch import save_file

from lineage.artifacts import create_artifact, write_json, write_table
from lineage.config.params import AdaptationBudget, Params, read_params
from lineage.evaluation.settings import AdaptSettings
from lineage.models.checkpoint import Checkpoint
from lineage.runtime.tracking import MlflowTracker
from lineage.training.adapt import _group_with_lm_heads, adapt, split_target_texts
from lineage.training.pretrain import TrainContext
from tests import tiny

SETTINGS = AdaptSettings(
    learning_rate=0.01,
    layer_lr_decay=1 / 1.3,
    cut_frac=0.1,
    ratio=32.0,
    weight_decay=0.0,
    max_grad_norm=1.0,
)
UNLIMITED_BUDGET = AdaptationBudget(text_bytes=10**6, max_epochs=4)


def build_params(text_bytes: int) -> Params:
    return dataclasses.replace(
        read_params(Path(__file__).parent.parent / "params.yaml"),
        adapt=AdaptationBudget(text_bytes=text_bytes, max_epochs=4),
    )


def build_context(folder: Path) -> TrainContext:
    return TrainContext(
        tiny.CPU,
        MlflowTracker(None),
        folder,
        checkpoint_seconds=99,
        report_progress=lambda *_: None,
    )


def build_saved_checkpoint(name: str, folder: Path, **overrides: Any) -> Checkpoint:
    """Return an untrained model with its weights in a file."""
    save_file(tiny.model(name).state_dict(), folder / "model.safetensors")
    return dataclasses.replace(
        tiny.checkpoint(name, **overrides), weights_path=folder / "model.safetensors"
    )


@pytest.mark.parametrize("name", [*tiny.TRAINED, *tiny.mark_slow(tiny.CELLS)])
def test_adaptation_lowers_the_loss_on_held_out_target_text(name: str, tmp_path: Path) -> None:
    # Capitalized and reversed documents are in effect another language.
    texts = [d.upper() if i % 2 else d[::-1] for i, d in enumerate(tiny.documents()[:24])]
    outcome, losses = adapt(
        build_saved_checkpoint(name, tmp_path),
        SETTINGS,
        texts[:20],
        texts[20:],
        build_params(15_000 if name in tiny.TRAINED else 60_000),
        build_context(tmp_path / "resume"),
    )
    assert outcome.status == "ok" and losses.before.keys() == losses.after.keys()
    main_loss = next(k for k in losses.before if not k.startswith("next_"))
    assert losses.after[main_loss] < 0.97 * losses.before[main_loss]


def test_body_dropout_overrides_the_dropout_of_pretraining(tmp_path: Path) -> None:
    weights = []
    for number, body_dropout in enumerate((None, 0.0, 0.5)):
        settings = dataclasses.replace(SETTINGS, body_dropout=body_dropout)
        checkpoint = build_saved_checkpoint("gpt", tmp_path, architecture={"dropout": 0.0})
        outcome, _ = adapt(
            checkpoint,
            settings,
            tiny.documents()[:20],
            tiny.documents()[20:24],
            build_params(3_000),
            build_context(tmp_path / str(number)),
        )
        weights.append(torch.cat([p.detach().flatten() for p in outcome.model.parameters()]))
    assert torch.equal(weights[0], weights[1]) and not torch.equal(weights[0], weights[2])


@pytest.mark.parametrize("name", ["ulmfit", "gpt", "bert"])
def test_tied_embeddings_use_the_rate_of_the_top_layer_and_lower_layers_less(name: str) -> None:
    model = tiny.model(name)
    groups = SETTINGS.build_optimizer(_group_with_lm_heads(model)).param_groups
    scales = {id(parameter): group["lr_scale"] for group in groups for parameter in group["params"]}
    assert scales.keys() == {id(parameter) for parameter in model.parameters()}, (
        "each parameter must be in one group"
    )
    assert [scales[id(parameter)] for parameter in model.tied_parameters()] == [1.0]
    assert [scales[id(layer[-1])] for layer in model.layer_groups()[1:]] == pytest.approx(
        [SETTINGS.layer_lr_decay, 1.0]
    )


def test_adaptation_accumulates_as_many_batches_per_step_as_pretraining(tmp_path: Path) -> None:
    steps = []
    for grad_accum_steps in (1, 4):
        checkpoint = build_saved_checkpoint(
            "gpt", tmp_path, pretrain={"grad_accum_steps": grad_accum_steps}
        )
        documents = tiny.documents()
        outcome, _ = adapt(
            checkpoint,
            SETTINGS,
            documents[:20],
            documents[20:24],
            build_params(6_000),
            build_context(tmp_path / str(grad_accum_steps)),
        )
        steps.append(outcome.budget_used.steps)
    assert None not in steps and 3 * steps[1] < steps[0] < 5 * steps[1]


@pytest.mark.parametrize("short_split", ["texts", "held"])
def test_text_too_short_for_a_batch_gives_a_failed_outcome_with_a_reason(
    short_split: str, tmp_path: Path
) -> None:
    splits = {"texts": tiny.documents()[:20], "held": tiny.documents()[20:24]}
    splits[short_split] = [""]  # A public tokenizer may lack all characters of a text.
    outcome, losses = adapt(
        build_saved_checkpoint("bert", tmp_path),
        SETTINGS,
        splits["texts"],
        splits["held"],
        build_params(3_000),
        build_context(tmp_path / "resume"),
    )
    assert outcome.status == "failed" and "too short for a single batch" in outcome.reason
    assert not losses.after


@pytest.mark.parametrize("name", ["gpt", "ulmfit", "seq2seq"])
@pytest.mark.parametrize("short_split", ["texts", "held"])
def test_text_of_one_token_is_adapted_to_or_fails_with_a_reason(
    short_split: str, name: str, tmp_path: Path
) -> None:
    """A GPT predicts the one token from its begin token only, which is not text.

    Its epochs read no text, so without a check the training would never end.
    """
    splits = {"texts": tiny.documents()[:20], "held": tiny.documents()[20:24]}
    splits[short_split] = ["a"]
    outcome, _ = adapt(
        build_saved_checkpoint(name, tmp_path),
        SETTINGS,
        splits["texts"],
        splits["held"],
        build_params(1_000),
        build_context(tmp_path / "resume"),
    )
    assert (
        outcome.status == "ok"
        or "reads no text" in outcome.reason
        or "too short for a single batch" in outcome.reason
    )
    assert outcome.status == "failed" or short_split == "held" or name == "ulmfit"


def write_task(folder: Path, info: dict[str, Any], **tables: pd.DataFrame) -> Path:
    with create_artifact(folder, "task") as draft:
        for name, table in tables.items():
            write_table(draft / f"{name}.parquet", table)
        write_json(draft / "task.json", {"name": "t", "language": "en", **info})
    return folder


def test_held_out_target_text_is_not_adapted_to(tmp_path: Path) -> None:
    unlabelled = pd.DataFrame({"text": [f"text {i}" for i in range(50)]})
    texts, held_out = split_target_texts(
        write_task(tmp_path / "t", {}, unlabelled=unlabelled), UNLIMITED_BUDGET, seed=7
    )
    assert len(held_out) == 5 and len(texts) == 45 and not set(texts) & set(held_out)


@pytest.mark.parametrize(("kind", "columns", "expected"), [
    ("text_classification", {"text": ["a b", "c"], "second": ["d", "a b"]}, {"a b", "c", "d"}),
    ("multiple_choice", {"text": ["a", "b"], "choices": [["c", "d"], ["e", "f"]]}, set("abcdef")),
    ("token_classification", {"tokens": [["a", "b"], ["c"]]}, {"a b", "c"}),
    ("extractive_qa", {"question": ["a?", "b?"], "context": ["c", "c"]}, {"a?", "b?", "c"}),
])  # fmt: skip
def test_without_unlabelled_text_all_texts_of_training_items_are_used(
    kind: str, columns: dict, expected: set, tmp_path: Path
) -> None:
    texts, held_out = split_target_texts(
        write_task(tmp_path / "t", {"kind": kind}, train=pd.DataFrame(columns)),
        UNLIMITED_BUDGET,
        seed=7,
    )
    assert len(held_out) == 1
    assert {*texts, *held_out} == expected
    assert len(texts) + 1 == len(expected)


def test_text_is_sampled_evenly_up_to_the_budget(tmp_path: Path) -> None:
    """Each text has 100 bytes, and at least one text is taken."""
    folder = write_task(
        tmp_path / "t",
        {},
        unlabelled=pd.DataFrame({"text": [f"{i:04d} {'x' * 95}" for i in range(1000)]}),
    )
    budget = AdaptationBudget(text_bytes=20_000, max_epochs=4)
    texts, held_out = split_target_texts(folder, budget, seed=7)
    assert (len(texts), len(held_out)) == (200, 20)
    assert texts == sorted(texts)
    assert not set(texts) & set(held_out)
    mean_position = sum(int(text[:4]) for text in texts) / len(texts)
    assert 350 < mean_position < 650
    assert texts != split_target_texts(folder, budget, seed=8)[0]
    small_budget = AdaptationBudget(text_bytes=50, max_epochs=4)
    assert [len(part) for part in split_target_texts(folder, small_budget, seed=7)] == [1, 1]
