"""A public checkpoint continues on the corpus under the budget of text, and is marked as such."""

import dataclasses
import shutil
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import MagicMock

import pandas as pd
import pytest
import torch

pytest.importorskip("transformers")

from lineage import artifacts
from lineage.analysis.cells import normalize_seeds
from lineage.analysis.records import System
from lineage.config.params import Budget, parse_params, read_params
from lineage.families import public as family
from lineage.networks.checkpoint import Checkpoint
from lineage.networks.public_tokenizer import load_public_tokenizer
from lineage.report import page
from lineage.report.section import ReportData
from lineage.tokenizers.token_ids import TokenizedCorpus, encode_corpus
from lineage.training.pretrain import TrainOutput, pretrain
from lineage.training.train_run import TrainContext
from tests.helpers import tiny
from tests.helpers.public_checkpoints import (
    build_hf_model,
    load_public,
    save_checkpoint,
    save_sentence_encoder,
)
from tests.helpers.public_project import public_model_block, run_refused_sources
from tests.helpers.study_rows import analyze
from tests.helpers.trainings import DEMO_PARAMS
from tests.helpers.user_project import RunStage, RunStages, make_project, write_params

BUDGET_BYTES = 12_000
CONTINUED = family.ContinuedPretrainSettings(batch_size=4, seq_len=24, continue_on_corpus=True)


class StopError(Exception):
    """Stands for a kill."""


def continue_on_corpus(
    folder: Path,
    resume_dir: Path,
    tokens_dir: Path,
    *,
    stop_at: float = 2.0,
    causal_share: float = 0.0,
    learning_rate: float = 0.002,
) -> TrainOutput:
    """Continue on the tiny corpus, and save a resume point after each step."""
    tokenizer = load_public_tokenizer(folder, language="en")
    config, model = family.load_pretrained(
        folder, family.PublicConfig(dropout=0.1), head_generator=torch.Generator().manual_seed(0)
    )
    settings = dataclasses.replace(
        CONTINUED, learning_rate=learning_rate, causal_share=causal_share
    )
    checkpoint = Checkpoint("other", family.FAMILY, config, settings, tokenizer, seed=3)
    if not tokens_dir.exists():
        with artifacts.create_artifact(tokens_dir, "tokens") as draft:
            for split in ("train", "valid"):
                encode_corpus(tiny.documents(), tokenizer).save(draft, split)
    budget = Budget(
        corpus="general", text_bytes=BUDGET_BYTES, max_epochs=50, body_parameters=100_000
    )
    params = dataclasses.replace(DEMO_PARAMS, budget=budget)

    def report(done: float, note: str) -> None:
        if done >= stop_at:
            raise StopError

    context = TrainContext(tiny.CPU, MagicMock(), resume_dir, 0.0, report)
    return pretrain(checkpoint, tokens_dir, params, context, public_model=model)


@pytest.mark.parametrize("kind", ["gpt2", "distilbert", *tiny.mark_slow(["albert", "modernbert"])])
def test_it_reads_the_budget_and_a_stopped_training_ends_in_the_same_weights(
    kind: str, tmp_path: Path
) -> None:
    folder = save_checkpoint(kind, tmp_path / "one")
    whole = continue_on_corpus(folder, tmp_path / "whole", tmp_path / "tokens")
    resume_dir = tmp_path / "resumed"
    for stop_at in (0.3, 0.7):
        with pytest.raises(StopError):
            continue_on_corpus(folder, resume_dir, tmp_path / "tokens", stop_at=stop_at)
        assert 1 <= len([*resume_dir.glob("step-*")]) <= 2
    resumed = continue_on_corpus(folder, resume_dir, tmp_path / "tokens")
    assert whole.status == "ok"
    assert whole.budget_used == resumed.budget_used
    read_bytes = whole.budget_used.text_bytes
    assert read_bytes is not None and BUDGET_BYTES <= read_bytes < 1.2 * BUDGET_BYTES
    weights = whole.model.state_dict()
    for name, value in resumed.model.state_dict().items():
        assert torch.equal(value, weights[name]), name
    assert [point.loss for point in whole.curve.points] == [
        point.loss for point in resumed.curve.points
    ]
    validations = [point.validation_loss for point in whole.curve.points if point.validation]
    assert validations[-1] < validations[0]


def test_it_starts_from_the_weights_of_the_checkpoint(tmp_path: Path) -> None:
    folder = save_checkpoint("distilbert", tmp_path / "one")
    output = continue_on_corpus(
        folder, tmp_path / "resumed", tmp_path / "tokens", learning_rate=1e-7
    )
    own = family.load_pretrained(folder, family.PublicConfig())[1].state_dict()
    for name, value in output.model.state_dict().items():
        torch.testing.assert_close(value, own[name], atol=1e-4, rtol=0)


@pytest.mark.parametrize("kind", ["bert", "roberta", "albert", "distilbert", "mpnet", "modernbert"])
def test_a_checkpoint_without_a_head_gets_a_new_one(kind: str, tmp_path: Path) -> None:
    model = build_hf_model(kind)
    folder = save_checkpoint(
        kind, tmp_path / "one", model=model.get_submodule(model.base_model_prefix)
    )

    def load(seed: int | None) -> family.PublicModel:
        generator = None if seed is None else torch.Generator().manual_seed(seed)
        config = family.PublicConfig()
        return family.load_pretrained(folder, config, head_generator=generator)[1]

    without_head = load(None)
    assert without_head.mlm_head is None
    first, again, other = (load(seed) for seed in (1, 1, 2))
    own_weights = without_head.state_dict()
    assert first.mlm_head is not None and again.mlm_head is not None and other.mlm_head is not None
    for name, value in first.state_dict().items():
        assert torch.equal(value, again.state_dict()[name]), name
        if name in own_weights:
            assert torch.equal(value, own_weights[name]), name
    assert not torch.equal(first.mlm_head.dense.weight, other.mlm_head.dense.weight)
    assert torch.equal(first.mlm_head.norm.weight, torch.ones_like(first.mlm_head.norm.weight))


def test_a_sentence_encoder_learns_the_corpus_with_a_new_head(tmp_path: Path) -> None:
    folder = save_checkpoint("bert", tmp_path / "one", model=build_hf_model("bert").bert)
    output = continue_on_corpus(folder, tmp_path / "resumed", tmp_path / "tokens")
    validations = [point.validation_loss for point in output.curve.points if point.validation]
    assert validations[-1] < validations[0] - 0.1


def test_pretraining_seeds_count_where_they_change_something() -> None:
    def seeds(init: str, adapt_text: str) -> tuple[int | None, int | None]:
        system = System("m", "public", init, adapt_text, "finetuned", "last", "linear", "")
        return normalize_seeds(system, 1, 2)

    assert seeds("pretrained", "none") == (None, 2), "the checkpoint is the same for every seed"
    assert seeds("pretrained", "general") == seeds("adapted", "task") == (1, 2)
    assert seeds("random", "none") == (1, 2)


def make_continued_project(folder: Path) -> dict[str, Any]:
    """Build a project with a trained model, and a public one as it is and continued."""
    tree = make_project(folder)
    save_checkpoint("distilbert", folder / "one")
    block = public_model_block("one")
    block["pretrain"] |= {"learning_rate": 0.002}
    tree["models"] |= {
        "as_it_is": block,
        "continued": block | {"pretrain": block["pretrain"] | {"continue_on_corpus": True}},
    }
    tree["budget"] |= {"text_bytes": BUDGET_BYTES, "body_parameters": 100_000}
    tree["models"]["gpt"]["evaluate"]["finetune"] |= {"epochs": 1, "min_steps": None}
    tree["tasks"]["mood"] |= {"max_words": 20}
    names = ["gpt", "as_it_is", "continued"]
    tree["grid"] |= {"models": names, "adapt_models": ["continued"], "label_counts": ["all"]}
    tree["grid"] |= {"pretrain_seeds": [0, 1], "finetune_seeds": [0]}
    write_params(folder, tree)
    return tree


def test_the_same_checkpoint_as_it_is_is_found_for_a_continued_one(tmp_path: Path) -> None:
    tree = make_continued_project(tmp_path)
    assert parse_params(tree).continued_models == {"continued": "as_it_is"}
    tree["grid"] |= {"models": ["gpt", "continued"]}
    assert parse_params(tree).continued_models == {}, "its baseline is not in the grid"
    tree["grid"] |= {"models": ["gpt", "as_it_is", "continued"]}
    tree["models"]["as_it_is"] = tree["models"]["as_it_is"] | {"from": "another"}
    assert parse_params(tree).continued_models == {}, "it is another checkpoint"


@pytest.mark.slow
def test_a_continued_checkpoint_goes_through_the_stages_and_is_marked(
    tmp_path: Path, run_stages: RunStages
) -> None:
    tree = make_continued_project(tmp_path)
    tree["grid"]["text_shares"] = [0.5]
    write_params(tmp_path, tree)
    commands = ["sources", "corpus general", "task mood", "contamination mood", "baselines mood"]
    for name in tree["grid"]["models"]:
        commands.append(f"tokenizer {name}")
        for seed in (0, 1):
            commands += [f"pretrain {name} {seed}", f"evaluate {name} {seed} mood"]
    commands += ["ngram", "adapt continued 0 mood", "evaluate continued 0 mood --adapted"]
    run_stages(tmp_path, *commands)
    outputs = tmp_path / "artifacts"
    assert TokenizedCorpus.load(outputs / "tokens/continued", "train").text_bytes > 0
    assert not [*(outputs / "tokens/as_it_is").glob("*.npy")]
    weights = {}
    for name in ("as_it_is", "continued"):
        for seed in ("0", "1"):
            folder = outputs / f"pretrained/{name}/{seed}"
            weights[name, seed] = (folder / "model.safetensors").read_bytes()
            budget = artifacts.read_json(outputs / f"results/budgets/pretrain-{name}-{seed}.json")
            assert budget["matched"] is False
            if name == "as_it_is":
                assert budget["text_bytes"] is budget["steps"] is None
            else:
                assert BUDGET_BYTES <= budget["text_bytes"] < 1.2 * BUDGET_BYTES
    assert weights["as_it_is", "0"] == weights["as_it_is", "1"]
    assert len({*weights.values()}) == 3, "the seed decides on batches, masks and dropout"

    rows = pd.concat(
        [artifacts.read_table(path) for path in sorted((outputs / "results/rows").iterdir())]
    )
    rows = rows[rows["model"].isin(["as_it_is", "continued"])]
    assert rows[rows["init"] != "random"]["text_bytes"].isna().all(), (
        "nobody knows how much text the first training has read"
    )
    texts = {(row.model, row.init): row.adapt_text for row in rows.itertuples()}
    assert texts == {
        ("as_it_is", "pretrained"): "none",
        ("as_it_is", "random"): "none",
        ("continued", "pretrained"): "general",
        ("continued", "random"): "none",
        ("continued", "adapted"): "task",
    }
    record = artifacts.read_json(outputs / "sources/models/continued.json")
    assert record["reads_corpus"]

    grid = dataclasses.replace(read_params().grid, adapt_models=(), adapt_tasks=())
    analysis = analyze(outputs / "results", grid)
    assert analysis.public_models == ("as_it_is", "continued")
    scores = [
        score
        for score in analysis.scores
        if (score.system.init, score.system.transfer) == ("pretrained", "finetuned")
    ]
    seeds = {score.system.model: [seed.pretrain_seed for seed in score.seeds] for score in scores}
    assert (seeds["as_it_is"], seeds["continued"]) == ([None], [0, 1])
    curves = {curve.system.model: curve for curve in analysis.text_curves}
    assert {*curves} == {*grid.models} - {"as_it_is"}, "only models that are trained here"
    curve = curves["continued"]
    assert curve.shares == (0.5, 1.0)
    assert 0.5 * BUDGET_BYTES <= curve.text_bytes[0] < curve.text_bytes[1]
    rendered = page.render_report(ReportData(analysis))
    for kind, text in rendered.items():
        assert "public, continued" in text, kind


def test_what_cannot_continue_is_refused_before_anything_runs(
    tmp_path: Path, run_stage: RunStage
) -> None:
    tree = make_project(tmp_path)
    save_checkpoint("electra", tmp_path / "electra")
    save_checkpoint("deberta", tmp_path / "deberta")
    save_checkpoint("bert", tmp_path / "whole")

    def refusal(folder: str, **pretrain_keys: Any) -> str:
        block = public_model_block(folder)
        block["pretrain"] |= {"continue_on_corpus": True, **pretrain_keys}
        models = tree["models"] | {"other": block}
        grid = tree["grid"] | {"models": ["gpt", "other"]}
        return run_refused_sources(tmp_path, tree | {"models": models, "grid": grid}, run_stage)

    where = "params.yaml: models.other.pretrain.continue_on_corpus: "
    for name, model_type in (("electra", "electra"), ("deberta", "deberta-v2")):
        message = refusal(name)
        assert where in message and "set it to false" in message
        assert f"since a {model_type} was not pretrained as a language model" in message
    assert "models.other.pretrain.seq_len: 99 is more than the 61 positions" in refusal(
        "whole", seq_len=99
    )


def damage(folder: Path, how: str) -> None:
    """Truncate a file of a resume point, flip one bit of it, or remove it."""
    path = folder / "run/state.safetensors"
    if how == "manifest":
        path = folder / "manifest.json"
    content = bytearray(path.read_bytes())
    if how == "flipped":
        content[-20] ^= 4
    elif how == "missing":
        path.unlink()
        return
    else:
        del content[len(content) // 2 :]
    path.write_bytes(content)


@pytest.fixture(scope="module")
def stopped(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, torch.Tensor]]:
    """Return the folder of a training that was stopped, and the weights it should end with."""
    folder = tmp_path_factory.mktemp("stopped")
    source = save_checkpoint("distilbert", folder / "one")
    whole = continue_on_corpus(source, folder / "whole", folder / "tokens")
    with pytest.raises(StopError):
        continue_on_corpus(source, folder / "resumed", folder / "tokens", stop_at=0.6)
    return folder, whole.model.state_dict()


@pytest.mark.parametrize(
    ("how", "keep_older"),
    [("flipped", True), ("truncated", False), ("missing", True), ("manifest", False)],
)
def test_a_damaged_resume_point_is_dropped_and_the_weights_are_the_same(
    how: str,
    keep_older: bool,
    stopped: tuple[Path, dict[str, torch.Tensor]],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    folder, weights = stopped
    resume_dir = Path(shutil.copytree(folder / "resumed", tmp_path / "resumed"))
    points = sorted(resume_dir.glob("step-*"), key=lambda path: int(path.name[5:]))
    assert len(points) == 2, "one older point is kept"
    for point in points[1:] if keep_older else points:
        damage(point, how)
    resumed = continue_on_corpus(folder / "one", resume_dir, folder / "tokens")
    printed = capsys.readouterr().err
    assert printed.count("this resume point is damaged") == (1 if keep_older else 2)
    for name, value in resumed.model.state_dict().items():
        assert torch.equal(value, weights[name]), name


@pytest.mark.parametrize("is_encoder", [True, False])
def test_going_on_with_a_sentence_encoder_is_warned_of(
    is_encoder: bool, tmp_path: Path, run_stage: RunStage
) -> None:
    tree = make_project(tmp_path)
    save = save_sentence_encoder if is_encoder else partial(save_checkpoint, "bert")
    save(tmp_path / "one")
    as_it_is = public_model_block("one")
    continued = public_model_block("one", pretrain={"continue_on_corpus": True, "seq_len": 24})
    tree["models"] |= {"as_it_is": as_it_is, "continued": continued}
    tree["grid"] |= {"models": ["as_it_is", "continued"], "adapt_models": [], "adapt_tasks": []}
    write_params(tmp_path, tree)
    code, printed = run_stage(tmp_path, "sources")
    assert code == 0, printed
    assert (
        "models.continued.pretrain.continue_on_corpus: one is a sentence" in printed
    ) == is_encoder
    assert printed.count("sentence encoder") == int(is_encoder)


def test_a_causal_detour_hides_what_follows_and_then_returns_to_masks(tmp_path: Path) -> None:
    settings = dataclasses.replace(CONTINUED, causal_share=0.25)
    detour, masked = settings.phases
    assert detour.end_progress == 0.25 and masked.settings == CONTINUED
    save_checkpoint("bert", tmp_path / "one")
    model, checkpoint = load_public(tmp_path / "one")
    tokens = encode_corpus(list(tiny.documents()), checkpoint.tokenizer)
    batches = [
        family.build_batch_sampler(tokens, checkpoint.tokenizer, one, seed=3)
        for one in (detour.settings, masked.settings, settings)
    ]
    for sampler in batches:
        sampler.set_epoch(0)
    causal_batch = batches[0].get_batch(0)
    assert (causal_batch.targets_BT[:, :-2] == causal_batch.ids_BT[:, 1:-1]).all()
    # Adaptation, which has one part, is masked.
    assert torch.equal(batches[1].get_batch(0).targets_BT, batches[2].get_batch(0).targets_BT)
    changed = causal_batch.ids_BT.clone()
    changed[:, 9:] = causal_batch.ids_BT[:, 9:].flip(1)
    other = dataclasses.replace(causal_batch, ids_BT=changed)
    before, after = (model.encode_left_to_right(one)[-1] for one in (causal_batch, other))
    torch.testing.assert_close(before[:, :9], after[:, :9])
    assert not torch.allclose(model.encode(causal_batch)[-1][:, :9], before[:, :9])
    output = family.pretraining_loss(model, causal_batch)
    assert [*output.nats] == ["next_token"]
    assert [*family.pretraining_loss(model, batches[1].get_batch(0)).nats] == ["masked"]


def test_a_training_with_a_detour_learns_both(tmp_path: Path) -> None:
    folder = save_checkpoint("bert", tmp_path / "one")
    whole = continue_on_corpus(folder, tmp_path / "resumed", tmp_path / "tokens", causal_share=0.5)
    validations = [point.validation for point in whole.curve.points if point.validation]
    assert [*validations[0]] == ["next_token_nats"] and [*validations[-1]] == ["masked_nats"]


@torch.inference_mode()
def test_a_detour_of_modernbert_keeps_its_local_attention(tmp_path: Path) -> None:
    local = build_hf_model("modernbert", layer_types=["sliding_attention"] * 2)
    folder = save_checkpoint("modernbert", tmp_path / "one", model=local)
    model, checkpoint = load_public(folder)
    reach = 2 * model.hf_config.sliding_window  # of two layers
    tokens = encode_corpus(list(tiny.documents()), checkpoint.tokenizer)
    settings = dataclasses.replace(CONTINUED, causal_share=1.0)
    sampler = family.build_batch_sampler(tokens, checkpoint.tokenizer, settings, seed=3)
    sampler.set_epoch(0)
    batch = sampler.get_batch(0)
    changed_BT = batch.ids_BT.clone()
    changed_BT[:, 5] = (batch.ids_BT[:, 5] + 1) % checkpoint.tokenizer.vocab_size
    other = dataclasses.replace(batch, ids_BT=changed_BT)
    before, after = (model.encode_left_to_right(one)[-1] for one in (batch, other))
    torch.testing.assert_close(before[:, :5], after[:, :5])
    torch.testing.assert_close(before[:, 6 + reach :], after[:, 6 + reach :])
    assert not torch.allclose(before[:, 5 : 6 + reach], after[:, 5 : 6 + reach])


@pytest.mark.parametrize(
    ("kind", "share", "message"),
    [
        ("mpnet", 0.5, "a mpnet cannot change from masked pieces to the next piece"),
        ("gpt2", 0.5, "a gpt2 cannot change from masked pieces"),
        ("bert", 1.0, "never returns to masks; lower it"),
    ],
)
def test_a_detour_that_cannot_be_taken_is_refused(
    kind: str, share: float, message: str, tmp_path: Path, run_stage: RunStage
) -> None:
    tree = make_project(tmp_path)
    save_checkpoint(kind, tmp_path / "one")
    keys = {"continue_on_corpus": True, "causal_share": share, "seq_len": 24}
    tree["models"] |= {"other": public_model_block("one", pretrain=keys)}
    tree["grid"] |= {"models": ["gpt", "other"]}
    assert message in run_refused_sources(tmp_path, tree, run_stage)
