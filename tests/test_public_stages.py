"""Public checkpoints run through all stages, and the report marks them as public."""

from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import torch

pytest.importorskip("transformers")

from lineage import artifacts
from lineage.analysis.records import read_analysis
from lineage.config.resolve import fill_in_defaults
from lineage.synthetic.grammar import generate_documents
from tests.helpers.notes import format_reason
from tests.helpers.public_checkpoints import build_hf_model, replace_tensors, save_checkpoint
from tests.helpers.public_project import Tree, public_model_block, run_refused_sources
from tests.helpers.user_project import RunStage, RunStages, make_project, run_stages, write_params

PUBLIC = ("other_bert", "other_gpt")
ADAPTED = ("gpt", "other_bert", "other_gpt")
JSONL_FILES = {"files": {"train": "more/train.jsonl", "test": "more/test.jsonl"}, "max_words": 12}
TASKS: Tree = {
    "mood": {
        "kind": "text_classification",
        "files": {"train": "mood/train.csv", "test": "mood/test.csv"},
        "text": ["review"],
        "label": "stars",
        "max_words": 20,
    },
    "pairs": {
        "kind": "text_classification",
        "text": ["one", "two"],
        "label": "same",
        **JSONL_FILES,
    },
    "sense": {
        "kind": "word_sense",
        "tokens": "words",
        "target": "place",
        "label": "same",
        **JSONL_FILES,
    },
    "tags": {
        "kind": "token_classification",
        "tokens": "words",
        "label": "tags",
        "metric": ["token_accuracy"],
        **JSONL_FILES,
    },
    "minimal": {
        "kind": "minimal_pairs",
        "files": {"test": "more/test.jsonl"},
        "good": "one",
        "bad": "two",
        "max_words": 12,
    },
}


def build_items(count: int, first: int) -> pd.DataFrame:
    """Return items with two sentences, whether they are the same, and words with tags."""
    lines = [
        sentence.split()[:9]
        for text in generate_documents(60, seed=2)
        for sentence in text.split(" . ")
        if len(sentence.split()) > 4
    ]
    rows = []
    for number in range(first, first + count):
        words = lines[number % len(lines)]
        other = lines[(number + 1) % len(lines)]
        same = number % 2
        rows.append({"one": " ".join(words), "two": " ".join(words[::-1] if not same else other), "same": str(same), "words": words, "place": 1,
                     "tags": ["long" if len(word) > 4 else "short" for word in words]})  # fmt: skip
    return pd.DataFrame(rows)


def make_public_project(folder: Path) -> Tree:
    """Build a user's project with one trained model and two public checkpoints."""
    tree = make_project(folder)
    (folder / "more").mkdir()
    for split, count, first in (("train", 40, 0), ("test", 16, 100)):
        build_items(count, first).to_json(
            folder / f"more/{split}.jsonl", orient="records", lines=True
        )
    save_checkpoint("bert", folder / "checkpoints/bert")
    save_checkpoint("gpt2", folder / "checkpoints/gpt2")
    tree["models"] |= {
        "other_bert": public_model_block("checkpoints/bert"),
        "other_gpt": public_model_block(str(folder / "checkpoints/gpt2")),
    }
    tree["models"]["gpt"]["evaluate"]["finetune"]["epochs"] = 1
    tree["tasks"] = TASKS
    tree["budget"] = tree["budget"] | {"text_bytes": 10_000, "body_parameters": 100_000}
    tree["grid"] |= {"models": ["gpt", *PUBLIC], "tasks": [*TASKS], "adapt_models": [*ADAPTED], "adapt_tasks": ["mood"], "label_counts": ["all"],
                     "finetune_seeds": [0, 1], "pretrain_seeds": [0, 1]}  # fmt: skip
    write_params(folder, tree)
    return tree


@pytest.fixture(scope="module")
def study(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Run all stages of the project except publish."""
    folder = tmp_path_factory.mktemp("study")
    tree = make_public_project(folder)
    commands = ["sources", "corpus general"]
    for task in TASKS:
        commands += [f"task {task}", f"contamination {task}", f"baselines {task}"]
    for name in tree["grid"]["models"]:
        commands.append(f"tokenizer {name}")
        for seed in (0, 1):
            commands.append(f"pretrain {name} {seed}")
            commands += [f"evaluate {name} {seed} {task}" for task in TASKS]
            commands += [f"adapt {name} {seed} mood", f"evaluate {name} {seed} mood --adapted"]
    with pytest.MonkeyPatch.context() as monkeypatch:
        run_stages(folder, *commands, "ngram", "report", monkeypatch=monkeypatch)
    return folder


@pytest.mark.slow
def test_public_checkpoints_go_through_every_stage(study: Path) -> None:
    rows = pd.concat(
        [
            artifacts.read_table(path)
            for path in sorted((study / "artifacts/results/rows").iterdir())
        ]
    )
    public_rows = rows[rows["model"].isin(PUBLIC)]
    assert set(public_rows["status"]) == {"ok"}, public_rows["reason"].tolist()
    assert set(zip(public_rows["model"], public_rows["task"], strict=True)) == {
        (name, task) for name in PUBLIC for task in TASKS
    }
    assert set(public_rows["family"]) == {"public"}
    assert set(public_rows["init"]) == {"pretrained", "random", "adapted"}
    assert public_rows[public_rows["init"] != "random"]["text_bytes"].isna().all(), (
        "the amount of their pretraining text is unknown"
    )
    truncated = public_rows[public_rows["reason"].str.contains("truncated")]
    assert set(
        truncated["reason"].map(format_reason).str.extract(r"longer than (\d+) tokens")[0]
    ) <= {"61"}, "the limit is all positions of the model, not the sequence length"
    assert not list((study / "artifacts/tokens/other_bert").glob("*.npy")), (
        "public models need no tokenized corpus"
    )


@pytest.mark.slow
def test_adaptation_uses_the_checkpoints_own_objective_and_lowers_its_loss(study: Path) -> None:
    for name, measure in zip(PUBLIC, ("masked_nats", "bits_per_byte"), strict=True):
        heldout = artifacts.read_json(study / f"artifacts/adapted/{name}/0/mood/held.json")
        assert set(heldout["before"]) == set(heldout["after"]) == {measure}
        assert heldout["after"][measure] < heldout["before"][measure]
        assert (
            artifacts.read_json(study / f"artifacts/adapted/{name}/0/mood/spent.json")["text_bytes"]
            >= 4_000
        )


@pytest.mark.slow
def test_public_models_are_unmatched_and_compared_but_never_lead(study: Path) -> None:
    analysis = read_analysis(study / "reports/results.json")
    assert analysis.public_models == PUBLIC
    budgets = {entry.model: entry for entry in analysis.budget}
    for name in PUBLIC:
        assert not budgets[name].budget_matched and budgets[name].text_bytes is None
        assert (budgets[name].body_parameters or 0) > 0
    assert budgets["gpt"].budget_matched
    public_comparisons = [
        entry
        for entry in analysis.comparisons
        if {entry.first.model, entry.second.model} & {*PUBLIC}
    ]
    types = {entry.comparison_type for entry in public_comparisons}
    assert types == {"pretraining", "adaptation", "tfidf", "kneser_ney"}
    for ranking in analysis.rankings:
        public = {one.system.model for one in ranking.standings if one.is_public}
        assert public == ({*PUBLIC} if ranking.scope == "overall" else set())
    assert {ranking.scope for ranking in analysis.rankings} == {"budget", "overall"}
    finetuned = [
        entry
        for entry in analysis.scores
        if (entry.system.model, entry.system.transfer) == ("other_bert", "finetuned")
    ]
    for entry in finetuned:
        if entry.system.init == "pretrained":  # both pretraining seeds read the same checkpoint
            assert len(entry.seeds) == 2
            assert {seed.pretrain_seed for seed in entry.seeds} == {None}
        if entry.system.init == "random":
            assert len(entry.seeds) == 4


def test_invalid_public_models_are_refused_by_the_sources_stage(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, run_stage: RunStage
) -> None:
    tree = make_project(tmp_path)
    save_checkpoint("bert", tmp_path / "one", model=build_hf_model("bert").bert)

    def refusal(changes: Tree | None = None, **grid: Any) -> str:
        models = tree["models"] | {"other": public_model_block("one") | (changes or {})}
        own_grid = tree["grid"] | {"models": ["gpt", "other"]} | grid
        return run_refused_sources(tmp_path, tree | {"models": models, "grid": own_grid}, run_stage)

    assert "grid.adapt_models: other: " in (message := refusal(adapt_models=["gpt", "other"]))
    assert "no head of a language model" in message
    assert "models.other.from: " in (message := refusal({"from": "two"}))
    assert "is not a folder" in message
    assert "models.other: the key 'from' is missing" in refusal({"from": None})
    assert (
        "models.other.tokenizer: a public checkpoint has its own; write tokenizer: pretrained"
        in refusal({"tokenizer": {"vocab_size": 500}})
    )
    assert "models.other.from: gpt is trained from scratch" in refusal({"family": "gpt"})
    assert "models.other.architecture: unknown key 'poling'; did you mean 'pooling'" in refusal(
        {"architecture": {"poling": "mean"}}
    )
    assert (
        "grid.ensembles.two: other is a public checkpoint, which is not budget-matched"
        in refusal(ensembles={"two": ["gpt", "other"]}, adapt_models=[], adapt_tasks=[])
    )
    assert "grid.ablation_of.gpt: other is a public checkpoint" in refusal(
        ablation_of={"gpt": "other"}
    )
    monkeypatch.setattr("lineage.networks.public_folders.is_transformers_available", lambda: False)
    monkeypatch.setattr("lineage.study.source_records.is_transformers_available", lambda: False)
    assert "lineage-pretraining[formats]" in refusal()
    (tmp_path / "one/model.safetensors").rename(tmp_path / "one/pytorch_model.bin")
    assert "pytorch_model.bin, a pickle" in refusal()


def test_the_default_sequence_length_fits_the_positions_of_the_model(
    tmp_path: Path, run_stage: RunStage, run_stages: RunStages
) -> None:
    tree = make_project(tmp_path)
    default_pretrain = fill_in_defaults("public", {"family": "public"})["pretrain"]
    save_checkpoint("bert", tmp_path / "one")
    tree["grid"] |= {"models": ["gpt", "other"], "adapt_models": ["gpt", "other"]}
    tree["models"]["other"] = public_model_block(
        "one", family="public", pretrain=default_pretrain | {"seq_len": 128}
    )
    message = run_refused_sources(tmp_path, tree, run_stage)
    assert "models.other.pretrain.seq_len: 128 is more than the 61 positions" in message
    tree["models"]["other"]["pretrain"] = default_pretrain
    write_params(tmp_path, tree)
    commands = ("sources", "tokenizer other", "pretrain other 0")
    run_stages(tmp_path, *commands)
    config = artifacts.read_json(tmp_path / "artifacts/pretrained/other/0/config.json")
    assert config["pretrain"]["seq_len"] == 61


def test_adaptation_accumulates_gradients_over_several_batches(
    tmp_path: Path, run_stages: RunStages
) -> None:
    tree = make_project(tmp_path)
    save_checkpoint("gpt2", tmp_path / "one")
    block = public_model_block("one", family="public")
    tree["models"] |= {
        name: block | {"pretrain": block["pretrain"] | {"grad_accum_steps": number}}
        for name, number in (("one", 1), ("three", 3))
    }
    tree["grid"] |= {"models": ["gpt", "one", "three"], "adapt_models": ["gpt", "one", "three"]}
    write_params(tmp_path, tree)
    commands = ["sources", "task mood"]
    for name in ("one", "three"):
        commands += [f"tokenizer {name}", f"pretrain {name} 0", f"adapt {name} 0 mood"]
    run_stages(tmp_path, *commands)
    steps = {}
    for name in ("one", "three"):
        folder = tmp_path / f"artifacts/adapted/{name}/0/mood"
        heldout = artifacts.read_json(folder / "held.json")
        steps[name] = artifacts.read_json(folder / "spent.json")["steps"]
        assert heldout["after"]["bits_per_byte"] < heldout["before"]["bits_per_byte"]
    assert steps["one"] // 3 <= steps["three"] <= steps["one"] // 3 + 1


def test_a_changed_folder_changes_the_record_of_the_sources_stage(
    tmp_path: Path, run_stages: RunStages
) -> None:
    tree = make_project(tmp_path)
    folder = save_checkpoint("bert", tmp_path / "one")
    tree["models"]["other"] = public_model_block("one", family="public")
    tree["grid"] |= {"models": ["gpt", "other"]}
    write_params(tmp_path, tree)
    records = []
    for _ in range(3):
        run_stages(tmp_path, "sources")
        records.append((tmp_path / "artifacts/sources/models/other.json").read_bytes())
        if len(records) == 2:
            replace_tensors(folder, {"bert.pooler.dense.bias": torch.ones(16)})
    assert records[0] == records[1] != records[2]
