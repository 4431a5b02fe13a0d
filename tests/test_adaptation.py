"""Going on with the objective of pretraining on a target's own text: what is learned, from what, and how often."""

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

PLAIN = AdaptSettings(
    learning_rate=0.01,
    layer_lr_decay=1.3,
    cut_frac=0.1,
    ratio=32.0,
    weight_decay=0.0,
    max_grad_norm=1.0,
)
ALL = AdaptationBudget(text_bytes=10**6, max_epochs=4)


def params(text_bytes: int) -> Params:
    return dataclasses.replace(
        read_params(Path(__file__).parent.parent / "params.yaml"),
        adapt=AdaptationBudget(text_bytes=text_bytes, max_epochs=4),
    )


def conditions(folder: Path) -> TrainContext:
    return TrainContext(
        tiny.CPU,
        MlflowTracker(None),
        folder,
        checkpoint_seconds=99,
        report_progress=lambda *_: None,
    )


def saved(name: str, folder: Path, **over: Any) -> Checkpoint:
    """An untrained model with weights in a file."""
    save_file(tiny.model(name).state_dict(), folder / "model.safetensors")
    return dataclasses.replace(
        tiny.checkpoint(name, **over), weights_path=folder / "model.safetensors"
    )


@pytest.mark.parametrize("name", [*tiny.TRAINED, *tiny.slow(tiny.CELLS)])
def test_adaptation_lowers_the_loss_on_held_target_text(name: str, tmp_path: Path) -> None:
    texts = [
        d.upper() if i % 2 else d[::-1] for i, d in enumerate(tiny.documents()[:24])
    ]  # another language, in effect
    most = params(15_000 if name in tiny.TRAINED else 60_000)
    outcome, held = adapt(
        saved(name, tmp_path), PLAIN, texts[:20], texts[20:], most, conditions(tmp_path / "resume")
    )
    assert outcome.status == "ok" and held.before.keys() == held.after.keys()
    main = next(k for k in held.before if not k.startswith("next_"))
    assert held.after[main] < 0.97 * held.before[main]


def test_adaptation_takes_the_dropout_of_its_own(tmp_path: Path) -> None:
    found = []
    for number, share in enumerate((None, 0.0, 0.5)):
        settings, checkpoint = (
            dataclasses.replace(PLAIN, body_dropout=share),
            saved("gpt", tmp_path, architecture={"dropout": 0.0}),
        )
        outcome, _ = adapt(
            checkpoint,
            settings,
            tiny.documents()[:20],
            tiny.documents()[20:24],
            params(3_000),
            conditions(tmp_path / str(number)),
        )
        found.append(torch.cat([p.detach().flatten() for p in outcome.model.parameters()]))
    assert torch.equal(found[0], found[1]) and not torch.equal(found[0], found[2])


@pytest.mark.parametrize("name", ["ulmfit", "gpt", "bert"])
def test_a_tied_table_learns_with_the_top_layer_and_each_layer_below_more_slowly(name: str) -> None:
    model = tiny.model(name)
    groups = PLAIN.build_optimizer(_group_with_lm_heads(model)).param_groups
    scales = {id(parameter): group["lr_scale"] for group in groups for parameter in group["params"]}
    assert scales.keys() == {id(parameter) for parameter in model.parameters()}, (
        "all of them, each once"
    )
    assert [scales[id(parameter)] for parameter in model.tied_parameters()] == [1.0]
    assert [scales[id(layer[-1])] for layer in model.layer_groups()[1:]] == pytest.approx(
        [1 / PLAIN.layer_lr_decay, 1.0]
    )


def test_a_step_has_as_many_batches_as_one_of_pretraining(tmp_path: Path) -> None:
    steps = []
    for number in (1, 4):
        checkpoint, some = (
            saved("gpt", tmp_path, pretrain={"grad_accum_steps": number}),
            tiny.documents(),
        )
        outcome, _ = adapt(
            checkpoint,
            PLAIN,
            some[:20],
            some[20:24],
            params(6_000),
            conditions(tmp_path / str(number)),
        )
        steps.append(outcome.budget_used.steps)
    assert None not in steps and 3 * steps[1] < steps[0] < 5 * steps[1]


@pytest.mark.parametrize("short", ["texts", "held"])
def test_text_that_gives_no_batch_is_an_outcome_with_its_reason(short: str, tmp_path: Path) -> None:
    some = {"texts": tiny.documents()[:20], "held": tiny.documents()[20:24]} | {
        short: [""]
    }  # as of characters that a public tokenizer lacks
    outcome, held = adapt(
        saved("bert", tmp_path),
        PLAIN,
        some["texts"],
        some["held"],
        params(3_000),
        conditions(tmp_path / "resume"),
    )
    assert outcome.status == "failed" and "too short for a single batch" in outcome.reason
    assert not held.after


@pytest.mark.parametrize("name", ["gpt", "ulmfit", "seq2seq"])
@pytest.mark.parametrize("short", ["texts", "held"])
def test_text_of_one_piece_ends_with_its_reason_or_is_read(
    short: str, name: str, tmp_path: Path
) -> None:
    """A GPT reads its mark of begin, which is no text, to predict the piece: its passes read nothing, and would never end."""
    some = {"texts": tiny.documents()[:20], "held": tiny.documents()[20:24]} | {short: ["a"]}
    outcome, _ = adapt(
        saved(name, tmp_path),
        PLAIN,
        some["texts"],
        some["held"],
        params(1_000),
        conditions(tmp_path / "resume"),
    )
    assert (
        outcome.status == "ok"
        or "reads no text" in outcome.reason
        or "too short for a single batch" in outcome.reason
    )
    assert outcome.status == "failed" or short == "held" or name == "ulmfit"


def written(folder: Path, facts: dict[str, Any], **tables: pd.DataFrame) -> Path:
    with create_artifact(folder, "task") as draft:
        for name, table in tables.items():
            write_table(draft / f"{name}.parquet", table)
        write_json(draft / "task.json", {"name": "t", "language": "en", **facts})
    return folder


def test_held_target_text_is_not_adapted_on(tmp_path: Path) -> None:
    unlabelled = pd.DataFrame({"text": [f"text {i}" for i in range(50)]})
    texts, held = split_target_texts(
        written(tmp_path / "t", {}, unlabelled=unlabelled), ALL, seed=7
    )
    assert len(held) == 5 and len(texts) == 45 and not set(texts) & set(held)


@pytest.mark.parametrize(("kind", "columns", "expected"), [
    ("text_classification", {"text": ["a b", "c"], "second": ["d", "a b"]}, {"a b", "c", "d"}),
    ("multiple_choice", {"text": ["a", "b"], "choices": [["c", "d"], ["e", "f"]]}, set("abcdef")),
    ("token_classification", {"tokens": [["a", "b"], ["c"]]}, {"a b", "c"}),
    ("extractive_qa", {"question": ["a?", "b?"], "context": ["c", "c"]}, {"a?", "b?", "c"}),
])  # fmt: skip
def test_without_unlabelled_text_it_is_all_texts_of_training_items(
    kind: str, columns: dict, expected: set, tmp_path: Path
) -> None:
    texts, held = split_target_texts(
        written(tmp_path / "t", {"kind": kind}, train=pd.DataFrame(columns)), ALL, seed=7
    )
    assert len(held) == 1 and {*texts, *held} == expected and len(texts) + 1 == len(expected)


def test_no_more_is_taken_than_the_budget_reads_and_from_everywhere(tmp_path: Path) -> None:
    """Of texts of 100 bytes, and never less than one."""
    folder = written(
        tmp_path / "t",
        {},
        unlabelled=pd.DataFrame({"text": [f"{i:04d} {'x' * 95}" for i in range(1000)]}),
    )
    texts, held = split_target_texts(
        folder, AdaptationBudget(text_bytes=20_000, max_epochs=4), seed=7
    )
    assert (
        (len(texts), len(held)) == (200, 20)
        and texts == sorted(texts)
        and not set(texts) & set(held)
    )
    assert 350 < sum(int(text[:4]) for text in texts) / len(texts) < 650
    assert (
        texts
        != split_target_texts(folder, AdaptationBudget(text_bytes=20_000, max_epochs=4), seed=8)[0]
    )
    assert [
        *map(len, split_target_texts(folder, AdaptationBudget(text_bytes=50, max_epochs=4), seed=7))
    ] == [1, 1]
