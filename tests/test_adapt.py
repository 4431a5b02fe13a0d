"""Adaptation continues pretraining on a task's own text.

The tests check what is learned, from which texts, and how often they are read.
"""

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from safetensors.torch import save_file

from lineage.artifacts import create_artifact, read_json, read_table, write_json, write_table
from lineage.config.params import AdaptationBudget, Params, parse_params
from lineage.config.resolve import merge_trees
from lineage.networks.checkpoint import Checkpoint
from lineage.study.models import load_model_config
from lineage.study.stage_records import stage_records
from lineage.tokenizers.token_ids import encode_corpus
from lineage.training import adapt as adapt_module
from lineage.training.adapt import (
    HeldOutMetrics,
    _group_with_lm_heads,
    adapt,
    find_new_words,
    split_target_texts,
)
from lineage.training.best_weights import BestWeights
from lineage.training.budget import TrainCounters
from lineage.training.curve import total_loss
from lineage.training.optimizers import AdaptSettings
from lineage.training.pretrain import (
    TrainOutput,
    build_checkpoint,
    compute_held_out_metrics,
    to_validation_settings,
)
from lineage.training.target_only import pretrain_on_target, train_target_tokenizer
from tests.helpers import tiny
from tests.helpers.trainings import (
    ADAPT_SETTINGS,
    DEMO_PARAMS,
    build_saved_checkpoint,
    build_train_context,
    record_run_training,
)
from tests.helpers.user_project import RunStages, make_project, write_params

TEXTS = [*tiny.documents()[:20]]
HELD_OUT = [*tiny.documents()[20:21]]


def build_params(text_bytes: int, **changes: Any) -> Params:
    budget = AdaptationBudget(text_bytes=text_bytes, **changes)
    return dataclasses.replace(DEMO_PARAMS, adapt=budget, seed=7)


def run_adapt(
    checkpoint: Checkpoint,
    folder: Path,
    params: Params,
    *,
    texts: list[str] = TEXTS,
    held_out: list[str] = HELD_OUT,
    settings: AdaptSettings = ADAPT_SETTINGS,
) -> tuple[TrainOutput, HeldOutMetrics]:
    return adapt(
        checkpoint, settings, texts, held_out, params, build_train_context(folder / "resume")
    )


@pytest.mark.parametrize(
    "name",
    [
        *("elmo", "ulmfit", "gpt", "bert"),
        *tiny.mark_slow(["context2vec", "sa_lstm", "taglm", "seq2seq", *tiny.CELLS]),
    ],
)
def test_adaptation_lowers_the_loss_on_held_out_target_text(name: str, tmp_path: Path) -> None:
    # Capitalized and reversed documents are in effect another language.
    texts = [d.upper() if i % 2 else d[::-1] for i, d in enumerate(tiny.documents()[:24])]
    params = build_params(8_000 if name in tiny.TRAINED else 60_000)
    checkpoint = build_saved_checkpoint(name, tmp_path)
    outcome, losses = run_adapt(
        checkpoint, tmp_path, params, texts=texts[:20], held_out=texts[20:21]
    )
    assert outcome.status == "ok" and losses.before.keys() == losses.after.keys()
    main_loss = next(k for k in losses.before if not k.startswith("next_"))
    assert losses.after[main_loss] < 0.97 * losses.before[main_loss]


def test_body_dropout_overrides_the_dropout_of_pretraining(tmp_path: Path) -> None:
    weights = []
    for number, body_dropout in enumerate((None, 0.0, 0.5)):
        settings = dataclasses.replace(ADAPT_SETTINGS, body_dropout=body_dropout)
        checkpoint = build_saved_checkpoint("gpt", tmp_path, architecture={"dropout": 0.0})
        outcome, _ = run_adapt(
            checkpoint, tmp_path / str(number), build_params(3_000), settings=settings
        )
        weights.append(torch.cat([p.detach().flatten() for p in outcome.model.parameters()]))
    assert torch.equal(weights[0], weights[1]) and not torch.equal(weights[0], weights[2])


TOO_MUCH_TEXT = build_params(30_000, max_epochs=100, patience=2)


def adapt_too_long(
    folder: Path, budget: Params = TOO_MUCH_TEXT, **changes: Any
) -> tuple[TrainOutput, HeldOutMetrics]:
    """Adapt to one text, again and again, until the loss on other texts rises.

    `changes` are fields of the context.
    """
    context = build_train_context(folder, **changes)
    checkpoint = build_saved_checkpoint("gpt", folder.parent)
    return adapt(
        checkpoint, ADAPT_SETTINGS, tiny.documents()[:1], tiny.documents()[20:23], budget, context
    )


@pytest.fixture(scope="module")
def stopped_early(tmp_path_factory: pytest.TempPathFactory) -> tuple[TrainOutput, HeldOutMetrics]:
    """Adapt until the loss on other texts has risen twice."""
    return adapt_too_long(tmp_path_factory.mktemp("stopped") / "resume")


def test_adaptation_ends_when_held_out_loss_rises_and_keeps_the_best_weights(
    stopped_early: tuple[TrainOutput, HeldOutMetrics], tmp_path: Path
) -> None:
    whole_budget = build_params(30_000, max_epochs=100, patience=None)
    whole, _ = adapt_too_long(tmp_path / "whole", whole_budget)
    assert whole.budget_used.text_bytes is not None and whole.budget_used.text_bytes >= 30_000
    losses = whole.curve.validation_losses()
    lowest = losses.index(min(losses))
    assert len(losses) == 10 and lowest < 6, "the test needs a loss that rises"
    output, metrics = stopped_early
    assert output.curve.validation_losses() == losses[: lowest + 3]
    assert total_loss(metrics.after) == pytest.approx(min(losses), abs=1e-6)
    for name, tensor in whole.model.state_dict().items():
        assert torch.equal(tensor, output.model.state_dict()[name]), "patience changed the best"


def test_adaptation_that_only_harms_leaves_the_weights_as_they_were(tmp_path: Path) -> None:
    """An untrained model expects all tokens alike, which suits random letters best."""
    checkpoint = build_saved_checkpoint("gpt", tmp_path)
    letters = np.random.default_rng(0).choice([*"qxzjkvw#@ "], (20, 200))
    held_out = ["".join(row) for row in letters]
    output, metrics = run_adapt(checkpoint, tmp_path, build_params(20_000), held_out=held_out)
    assert output.status == "ok" and metrics.after == metrics.before
    before = checkpoint.build(tiny.CPU).state_dict()
    for name, tensor in output.model.state_dict().items():
        assert torch.equal(tensor, before[name])


def test_a_killed_adaptation_goes_on_with_the_best_weights_so_far(
    stopped_early: tuple[TrainOutput, HeldOutMetrics], tmp_path: Path
) -> None:
    """It is killed after its best validation and before its patience is used up."""
    expected, metrics = stopped_early
    losses = expected.curve.validation_losses()
    kill_after = losses.index(min(losses)) + 2.5  # tenths: after one validation without progress

    def kill(progress: float, note: str) -> None:
        if progress * 10 > kill_after:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        adapt_too_long(tmp_path / "killed", checkpoint_seconds=0.5, report_progress=kill)
    resumed, resumed_metrics = adapt_too_long(tmp_path / "killed")
    assert resumed_metrics == metrics
    assert resumed.curve.validation_losses() == losses
    assert resumed.budget_used == expected.budget_used
    for name, tensor in expected.model.state_dict().items():
        assert torch.equal(tensor, resumed.model.state_dict()[name])


@pytest.mark.parametrize("name", ["context2vec", "sa_lstm", "taglm", "ulmfit"])
def test_new_words_join_closed_vocabularies_by_default(name: str, tmp_path: Path) -> None:
    settings = tiny.model_config(name).adapt
    assert settings is not None and settings.new_words is not None
    texts = [f"zebras {text} quokkas" for text in tiny.documents()[:20]]
    checkpoint = build_saved_checkpoint(name, tmp_path)
    new_words = find_new_words(texts, checkpoint.tokenizer, **vars(settings.new_words))
    assert {"zebras", "quokkas"} <= {*new_words}
    extended = checkpoint.with_added_words(new_words)
    output, _ = run_adapt(extended, tmp_path, build_params(6_000), texts=texts)
    assert output.status == "ok"
    adapted = output.model.state_dict()
    old_size = checkpoint.tokenizer.vocab_size
    tables = [tensor for tensor in adapted.values() if len(tensor) == old_size + len(new_words)]
    assert tables, "no table has rows for the new words"
    for tensor in checkpoint.build(tiny.CPU).state_dict().values():
        assert old_size not in tensor.shape or len(tensor) == old_size
    for tensor in adapted.values():
        assert old_size not in tensor.shape, "a table was not extended"


@pytest.mark.parametrize("name", ["ulmfit", "gpt", "bert"])
def test_tied_embeddings_use_the_rate_of_the_top_layer_and_lower_layers_less(name: str) -> None:
    model = tiny.model(name)
    groups = ADAPT_SETTINGS.build_optimizer(_group_with_lm_heads(model)).param_groups
    scales = {id(parameter): group["lr_scale"] for group in groups for parameter in group["params"]}
    assert scales.keys() == {id(parameter) for parameter in model.parameters()}, (
        "each parameter must be in one group"
    )
    assert [scales[id(parameter)] for parameter in model.tied_parameters()] == [1.0]
    assert [scales[id(layer[-1])] for layer in model.layer_groups()[1:]] == pytest.approx(
        [ADAPT_SETTINGS.layer_lr_decay, 1.0]
    )


def test_adaptation_accumulates_as_many_batches_per_step_as_pretraining(tmp_path: Path) -> None:
    steps = []
    for count in (1, 4):
        pretrain = {"grad_accum_steps": count}
        checkpoint = build_saved_checkpoint("gpt", tmp_path, pretrain=pretrain)
        outcome, _ = run_adapt(checkpoint, tmp_path / str(count), build_params(6_000))
        steps.append(outcome.budget_used.steps)
    assert None not in steps and 3 * steps[1] < steps[0] < 5 * steps[1]


@pytest.mark.parametrize("short_split", ["texts", "held_out"])
def test_text_too_short_for_a_batch_gives_a_failed_outcome_with_a_reason(
    short_split: str, tmp_path: Path
) -> None:
    """A public tokenizer may lack all characters of a text."""
    checkpoint = build_saved_checkpoint("bert", tmp_path)
    outcome, losses = run_adapt(checkpoint, tmp_path, build_params(3_000), **{short_split: [""]})
    assert outcome.status == "failed" and "too short for a single batch" in outcome.reason
    assert not losses.after


@pytest.mark.parametrize("name", ["gpt", "ulmfit", "seq2seq"])
@pytest.mark.parametrize("short_split", ["texts", "held_out"])
def test_text_of_one_token_is_adapted_to_or_fails_with_a_reason(
    short_split: str, name: str, tmp_path: Path
) -> None:
    """A GPT predicts the one token from its begin token only, which is not text.

    Its epochs read no text, so without a check the training would never end.
    """
    checkpoint = build_saved_checkpoint(name, tmp_path)
    outcome, _ = run_adapt(checkpoint, tmp_path, build_params(1_000), **{short_split: ["a"]})
    assert (
        outcome.status == "ok"
        or "reads no text" in outcome.reason
        or "too short for a single batch" in outcome.reason
    )
    assert outcome.status == "failed" or short_split == "held_out" or name == "ulmfit"


def write_task(folder: Path, info: dict[str, Any], **tables: pd.DataFrame) -> Path:
    with create_artifact(folder, "task") as draft:
        for name, table in tables.items():
            write_table(draft / f"{name}.parquet", table)
        write_json(draft / "task.json", {"name": "t", "kind": "text_classification", **info})
    return folder


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
        DEMO_PARAMS,
        max_bytes=10**6,
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
    texts, held_out = split_target_texts(folder, DEMO_PARAMS, max_bytes=20_000)
    assert (len(texts), len(held_out)) == (200, 20)
    assert texts == sorted(texts)
    assert not set(texts) & set(held_out)
    mean_position = sum(int(text[:4]) for text in texts) / len(texts)
    assert 350 < mean_position < 650
    assert (
        texts
        != split_target_texts(folder, dataclasses.replace(DEMO_PARAMS, seed=8), max_bytes=20_000)[0]
    )
    assert [len(part) for part in split_target_texts(folder, DEMO_PARAMS, max_bytes=50)] == [1, 1]


def test_patience_counts_from_the_first_validation_and_not_from_the_start() -> None:
    """A high learning rate raises the loss at first."""
    best = BestWeights(torch.nn.Linear(1, 1), 1.0, patience=2)
    for loss in (5.0, 4.0, 3.0, 3.5):
        best.update(loss)
        assert not best.is_over
    best.update(3.0)
    assert best.is_over and best.loss == 1.0


def build_target_only(
    name: str, texts: list[str], text_bytes: int, **overrides: Any
) -> tuple[Checkpoint, Params]:
    """Return an untrained model with a tokenizer of these texts, and a budget of bytes."""
    budget = dataclasses.replace(
        DEMO_PARAMS.budget, text_bytes=text_bytes, body_parameters=tiny.BODY_PARAMETERS
    )
    params = dataclasses.replace(DEMO_PARAMS, budget=budget)
    model = tiny.model_config(name, **overrides)
    tokenizer = train_target_tokenizer(model, texts, "en")
    return build_checkpoint(model, params, tokenizer, seed=0)[0], params


def test_pretraining_on_the_target_alone_has_its_own_vocabulary_and_ends_early(
    tmp_path: Path,
) -> None:
    """The few texts are read twenty times, though the budget would allow a hundred."""
    texts, held_out_texts = [*tiny.documents()[:6]], [*tiny.documents()[20:23]]
    num_bytes = sum(len(text.encode()) for text in texts)
    checkpoint, params = build_target_only(
        "gpt", texts, 100 * num_bytes, tokenizer={"vocab_size": 30_000}
    )
    tokenizer = checkpoint.tokenizer
    assert len(tokenizer.encode(" ".join(texts)).ids) > 10 and tokenizer.vocab_size <= 1000
    context = build_train_context(tmp_path / "resume")
    output = pretrain_on_target(checkpoint, texts, held_out_texts, params, context)
    assert output.status == "ok"
    losses = output.curve.validation_losses()
    assert min(losses) < losses[-1], "the test needs a loss that rises"
    assert output.budget_used.text_bytes is not None
    assert num_bytes < output.budget_used.text_bytes <= 20.5 * num_bytes
    family = checkpoint.family
    settings = to_validation_settings(checkpoint.pretrain)
    held_out = encode_corpus(held_out_texts, tokenizer)
    sampler = family.batch_sampler(held_out, tokenizer, settings, seed=0)
    kept = compute_held_out_metrics(output.model, family.objective, sampler, precision="fp32")
    assert total_loss(kept) == pytest.approx(min(losses)), "the best weights are kept"


def test_the_stages_pretrain_on_the_target_alone_and_evaluate_it(
    tmp_path: Path, run_stages: RunStages
) -> None:
    """Nothing of the pretrained model is read."""
    tree = make_project(tmp_path)
    tree["grid"] |= {"target_only_models": ["gpt"], "label_counts": ["all"], "finetune_seeds": [0]}
    tree["budget"] |= {"text_bytes": 6_000, "body_parameters": 100_000}
    tree["tasks"]["mood"]["max_words"] = 20
    tree["models"]["gpt"]["pretrain"] |= {"batch_size": 2, "seq_len": 60}
    write_params(tmp_path, tree)
    commands = ("target_only gpt 0 mood", "evaluate gpt 0 mood --target-only")
    run_stages(tmp_path, "sources", "task mood", *commands)
    folder = tmp_path / "artifacts/target_only/gpt/0/mood"
    text_bytes = read_json(folder / "spent.json")["text_bytes"]
    assert 0 < text_bytes <= 6_500
    results = tmp_path / "artifacts/results"
    rows = read_table(results / "rows/evaluate_target_only-gpt-0-mood.parquet")
    assert {*rows["status"]} == {"ok"} and {*rows["init"]} == {"target_only"}
    assert {*rows["text_bytes"]} == {text_bytes}
    assert {*rows["transfer"].dropna()} >= {"frozen", "finetuned"}
    curve = read_table(results / "curves/target_only-gpt-0-mood.parquet")
    assert curve["progress"].iloc[-1] <= 1
    before = (folder / "model.safetensors").read_bytes()
    run_stages(tmp_path, "target_only gpt 0 mood")
    assert (folder / "model.safetensors").read_bytes() == before


def test_losses_of_short_and_long_sequences_are_not_compared(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those of the first phase are lower, and would end the training with its weights."""
    num_calls = 0

    def validate(*_: object, **__: object) -> dict[str, float]:
        nonlocal num_calls
        num_calls += 1
        return {"masked_nats": 5.0 if num_calls <= 6 else 8.0 - 0.1 * num_calls}

    monkeypatch.setattr("lineage.training.train_run.TrainRun._validate", validate)
    texts = [*tiny.documents()[:30]]
    phases = {"initial_seq_len": 11, "long_seq_share": 0.35}
    checkpoint, params = build_target_only("bert", texts, 40_000, pretrain=phases)
    context = build_train_context(tmp_path / "resume")
    output = pretrain_on_target(checkpoint, texts, texts[:4], params, context)
    assert output.status == "ok" and num_calls == 10
    assert output.curve.points[-1].progress == 1.0, "no phase ended early"


@pytest.mark.parametrize(
    ("block", "changes", "changed"),
    [
        ("adapt", {"max_epochs": 1}, {"adapt-gpt"}),
        ("adapt", {"patience": 2}, {"adapt-gpt", "target_only-gpt"}),
        ("adapt", {"heldout_share": 0.2}, {"adapt-gpt", "target_only-gpt"}),
        ("adapt", {"text_bytes": 777}, {"adapt-gpt"}),
        ("budget", {"text_bytes": 777}, {"adapt-gpt", "target_only-gpt", "pretrain-gpt"}),
    ],
)
def test_a_changed_budget_changes_the_records_of_the_stages_that_read_it(
    block: str, changes: dict[str, Any], changed: set[str]
) -> None:
    unlimited = dataclasses.replace(DEMO_PARAMS, adapt=AdaptationBudget())
    other = dataclasses.replace(
        unlimited, **{block: dataclasses.replace(getattr(unlimited, block), **changes)}
    )
    models = {name: load_model_config(DEMO_PARAMS, name) for name in DEMO_PARAMS.grid.models}
    before, after = (stage_records(one, models) for one in (unlimited, other))
    of_gpt = {name for name in before if name.endswith("-gpt")}
    assert {name for name in of_gpt if before[name] != after[name]} == changed


@pytest.mark.parametrize(
    ("changes", "changed"),
    [
        ({"models": {"gpt": {"adapt": {"learning_rate": 0.0021}}}}, {"adapt-gpt"}),
        (
            {"grid": {"tfidf_C": [3.0]}},  # word2vec is checked against TF-IDF on the same words
            {"baselines", "report", "evaluate-word2vec", "evaluate_joined-word2vec"},
        ),
    ],
)
def test_a_changed_value_changes_the_records_of_the_stages_that_use_it_alone(
    changes: dict[str, Any], changed: set[str]
) -> None:
    records = []
    for tree in ({}, changes):
        params = parse_params(merge_trees(tiny.demo_params(), tree))
        models = {name: load_model_config(params, name) for name in params.grid.models}
        records.append(stage_records(params, models))
    before, after = records
    assert {name for name in before if before[name] != after[name]} == changed


def test_the_tokenizer_of_the_target_alone_is_part_of_its_record() -> None:
    models = {name: load_model_config(DEMO_PARAMS, name) for name in DEMO_PARAMS.grid.models}
    record = stage_records(DEMO_PARAMS, models)["target_only-gpt"]
    assert record["tokenizer"]["vocab_size"] == models["gpt"].tokenizer.vocab_size


def test_adaptation_starts_from_trained_weights_and_reads_max_epochs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Gradients are clipped in the same groups as in pretraining; each seed has its own order."""
    recorded = record_run_training(monkeypatch, adapt_module)
    seeds = []
    params = dataclasses.replace(
        DEMO_PARAMS, adapt=AdaptationBudget(text_bytes=10**6, max_epochs=2)
    )
    texts = list(tiny.documents()[:20])
    validation_texts = list(tiny.documents()[20:24])
    for seed in (1, 2):
        weights = {key: value + 0.125 for key, value in tiny.model("taglm").state_dict().items()}
        save_file(weights, tmp_path / "model.safetensors")
        checkpoint = dataclasses.replace(
            tiny.checkpoint("taglm"), weights_path=tmp_path / "model.safetensors", seed=seed
        )
        adapt(
            checkpoint,
            ADAPT_SETTINGS,
            texts,
            validation_texts,
            params,
            build_train_context(tmp_path / "resume"),
        )
        assert all(
            torch.equal(value, weights[key])
            for key, value in recorded["state"].model.state_dict().items()
        )
        seeds.append(recorded["phases"][0].train_sampler.seed)
    text_bytes = sum(len(text.encode()) for text in texts)
    assert recorded["plan"].progress(TrainCounters(text_bytes=2 * text_bytes)) == pytest.approx(1.0)
    assert len(recorded["plan"].clip_groups) == 2 and seeds[0] != seeds[1]
