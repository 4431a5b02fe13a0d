"""Public checkpoints through the stages, and what the report says of them."""

import copy
import dataclasses
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import torch

pytest.importorskip("transformers")

from lineage import artifacts
from lineage.analysis.build import build_results
from lineage.analysis.records import Failure, read_analysis
from lineage.config.params import ReportParams, read_params
from lineage.config.resolve import fill_in_defaults
from lineage.report import page, publication
from lineage.report.notes import format_reason
from lineage.results import Note
from lineage.synthetic.grammar import generate_documents
from tests.public_checkpoints import changed, save, theirs
from tests.user_project import make, stage, write

Tree = dict[str, Any]
PUBLIC = ("other_bert", "other_gpt")
ADAPTED = ("gpt", "other_bert", "other_gpt")
BOTH = {"files": {"train": "more/train.jsonl", "test": "more/test.jsonl"}, "max_tokens": 12}
TASKS: Tree = {
    "mood": {
        "kind": "text_classification",
        "files": {"train": "mood/train.csv", "test": "mood/test.csv"},
        "text": ["review"],
        "label": "stars",
        "max_tokens": 20,
    },
    "pairs": {"kind": "text_classification", "text": ["one", "two"], "label": "same", **BOTH},
    "sense": {"kind": "word_sense", "tokens": "words", "target": "place", "label": "same", **BOTH},
    "tags": {
        "kind": "token_classification",
        "tokens": "words",
        "label": "tags",
        "metric": ["token_accuracy"],
        **BOTH,
    },
    "minimal": {
        "kind": "minimal_pairs",
        "files": {"test": "more/test.jsonl"},
        "good": "one",
        "bad": "two",
        "max_tokens": 12,
    },
}


def items(count: int, first: int) -> pd.DataFrame:
    """Two sentences and whether they are the same, and words with tags."""
    lines = [
        sentence.split()[:9]
        for text in generate_documents(60, seed=2)
        for sentence in text.split(" . ")
        if len(sentence.split()) > 4
    ]
    rows = []
    for number in range(first, first + count):
        words, other = lines[number % len(lines)], lines[(number + 1) % len(lines)]
        same = number % 2
        rows.append({"one": " ".join(words), "two": " ".join(words[::-1] if not same else other), "same": str(same), "words": words, "place": 1,
                     "tags": ["long" if len(word) > 4 else "short" for word in words]})  # fmt: skip
    return pd.DataFrame(rows)


def block(folder: str, **more: Any) -> Tree:
    """The block that profiles are `like`, with a folder, and settings that suit a tiny model."""
    found = copy.deepcopy(fill_in_defaults("public", {"family": "public"}))
    del found["family"]
    found["evaluate"].setdefault("bilstm_probe", {})
    found["pretrain"] |= {"batch_size": 4, "seq_len": 24}
    found["evaluate"]["finetune"] |= {"epochs": 1, "learning_rate": 0.001}
    found["evaluate"]["bilstm_probe"] |= {"epochs": 1, "hidden_size": 5}
    return found | {"from": folder, **more}


def project(folder: Path) -> Tree:
    """A user's project with one family of its own and two public checkpoints."""
    tree = make(folder)
    (folder / "more").mkdir()
    for split, count, first in (("train", 40, 0), ("test", 16, 100)):
        items(count, first).to_json(folder / f"more/{split}.jsonl", orient="records", lines=True)
    save("bert", folder / "checkpoints/bert")
    save("gpt2", folder / "checkpoints/gpt2")
    tree["models"] |= {
        "other_bert": block("checkpoints/bert"),
        "other_gpt": block(str(folder / "checkpoints/gpt2")),
    }
    tree["models"]["gpt"]["evaluate"]["finetune"]["epochs"] = 1
    tree["tasks"], tree["budget"] = (
        TASKS,
        tree["budget"] | {"text_bytes": 10_000, "body_parameters": 100_000},
    )
    tree["grid"] |= {"models": ["gpt", *PUBLIC], "tasks": [*TASKS], "adapt_models": [*ADAPTED], "adapt_tasks": ["mood"], "label_counts": ["all"],
                     "finetune_seeds": [0, 1], "pretrain_seeds": [0, 1]}  # fmt: skip
    write(folder, tree)
    return tree


@pytest.fixture(scope="module")
def study(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The project after all its stages, but for publish."""
    folder, patch = tmp_path_factory.mktemp("study"), pytest.MonkeyPatch()
    tree = project(folder)

    class Quiet:
        def readouterr(self) -> Any:
            return type("Said", (), {"err": ""})

    def run(*command: str) -> None:
        code, _ = stage(folder, *command, monkeypatch=patch, capsys=Quiet())
        assert code == 0, command

    run("sources")
    run("corpus", "general")
    for task in TASKS:
        run("task", task)
        run("overlap", task)
        run("control", task)
    for name in tree["grid"]["models"]:
        run("tokenizer", name)
        for seed in ("0", "1"):
            run("pretrain", name, seed)
            for task in TASKS:
                run("evaluate", name, seed, task)
            run("adapt", name, seed, "mood")
            run("evaluate", name, seed, "mood", "--adapted")
    run("report")
    patch.undo()
    return folder


@pytest.mark.slow
def test_public_checkpoints_go_through_every_stage(study: Path) -> None:
    rows = pd.concat(
        [
            artifacts.read_table(path)
            for path in sorted((study / "artifacts/results/rows").iterdir())
        ]
    )
    own = rows[rows["model"].isin(PUBLIC)]
    assert set(own["status"]) == {"ok"}, own["reason"].tolist()
    assert set(zip(own["model"], own["task"], strict=True)) == {
        (name, task) for name in PUBLIC for task in TASKS
    }
    assert set(own["family"]) == {"public"} and set(own["init"]) == {
        "pretrained",
        "random",
        "adapted",
    }
    assert own[own["init"] != "random"]["text_bytes"].isna().all(), (
        "nobody knows what they have read"
    )
    cut = own[own["reason"].str.contains("truncated")]
    assert set(cut["reason"].map(format_reason).str.extract(r"longer than (\d+) tokens")[0]) <= {
        "61"
    }, "all its positions, not those of a window"
    assert not list((study / "artifacts/tokens/other_bert").glob("*.npy")), (
        "the corpus as its ids is of no use"
    )


@pytest.mark.slow
def test_it_goes_on_with_its_own_objective_on_the_targets_text(study: Path) -> None:
    for name, measure in zip(PUBLIC, ("masked_nats", "bits_per_byte"), strict=True):
        held = artifacts.read_json(study / f"artifacts/adapted/{name}/0/mood/held.json")
        assert (
            set(held["before"]) == set(held["after"]) == {measure}
            and held["after"][measure] < held["before"][measure]
        )
        assert (
            artifacts.read_json(study / f"artifacts/adapted/{name}/0/mood/spent.json")["text_bytes"]
            >= 4_000
        )


@pytest.mark.slow
def test_it_is_not_matched_and_shown_beside_and_cannot_serve_best(study: Path) -> None:
    analysis = read_analysis(study / "reports/results.json")
    assert analysis.public_models == PUBLIC
    budgets = {one.model: one for one in analysis.budget}
    for name in PUBLIC:
        assert not budgets[name].budget_matched and budgets[name].text_bytes is None
        assert (budgets[name].body_parameters or 0) > 0
    assert budgets["gpt"].budget_matched
    own = [one for one in analysis.comparisons if {one.first.model, one.second.model} & {*PUBLIC}]
    types = {one.comparison_type for one in own}
    assert types == {"pretraining", "adaptation", "public", "tfidf"}
    public = [one for one in own if one.comparison_type == "public"]
    assert all(one.second.family != "public" for one in public)
    assert {one.first.model for one in public} == {*PUBLIC}
    leader = [one for one in analysis.comparisons if one.comparison_type == "leader"]
    assert leader
    assert not any("public" in (one.first.family, one.second.family) for one in leader)
    finetuned = [
        one
        for one in analysis.scores
        if (one.system.model, one.system.transfer) == ("other_bert", "finetuned")
    ]
    for one in finetuned:
        if one.system.init == "pretrained":  # read with two pretraining seeds, it is one model
            assert len(one.seeds) == 2
            assert {seed.pretrain_seed for seed in one.seeds} == {None}
        if one.system.init == "random":
            assert len(one.seeds) == 4


@pytest.mark.slow
def test_without_it_the_results_of_the_others_are_the_same(
    study: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(study)
    grid = read_params().grid
    small = dataclasses.replace(grid, models=("gpt",), adapt_models=("gpt",))
    whole, alone = (
        build_results(Path("artifacts/results"), some, ReportParams())[1] for some in (grid, small)
    )
    assert alone.public_models == ()
    rest = [
        one for one in whole.comparisons if "public" not in (one.first.family, one.second.family)
    ]
    assert alone.comparisons == tuple(rest)
    scores = [one for one in whole.scores if one.system.family != "public"]
    assert alone.scores == tuple(scores)


@pytest.mark.slow
def test_the_pages_mark_it_as_not_budget_matched_everywhere(
    study: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    monkeypatch.chdir(study)
    from rich.console import Console

    analysis = read_analysis(Path("reports/results.json"))
    failure = Failure(
        model="other_bert",
        family="public",
        init="pretrained",
        transfer="finetuned",
        head="linear",
        task="mood",
        label_count="all",
        group="all",
        metric="accuracy",
        status="failed",
        reason=(Note("error", "the loss is nan"),),
        finetune_seeds=(0,),
        pretrain_seeds=(),
    )
    models = read_params().grid.models
    records = Path("artifacts/sources/models")
    descriptions = [
        {"model": name} | artifacts.read_json(records / f"{name}.json")["mechanism"]
        for name in models
    ]
    assert descriptions[1]["direction"] == "both sides at once"
    assert descriptions[2]["objective"] == "next token, on text of its own"
    curves_dir = Path("artifacts/results/curves")
    stages = {}
    for name in models:
        for seed in (0, 1):
            digest = artifacts.file_digest(curves_dir / f"pretrain-{name}-{seed}.parquet")
            costs = {"seconds": 4.0, "peak_memory_bytes": 1e9}
            stages[f"pretrain@{name}-{seed}"] = {"curve_sha256": digest, **costs}
    budget = publication.add_pretraining_costs(analysis.budget, stages, curves_dir=curves_dir)
    assert [one.seconds for one in budget] == [4.0, None, None], "copying is not training"
    analysis = dataclasses.replace(analysis, failures=(failure,), budget=budget)
    for kind, text in page.render_report(analysis, model_descriptions=descriptions).items():
        lines = [line for line in text.splitlines() if "other_" in line]
        assert len(lines) > 20 and all("not budget-matched" in line for line in lines), kind
        assert "For reference, other_bert (not budget-matched)" in text
        header = '<p class="muted">gpt with one budget of'
        assert header in text.replace("\n", " ") or kind != "html"
    page.print_table(analysis, Console(width=160))
    printed = [line for line in capsys.readouterr().out.splitlines() if line.startswith("|other_")]
    assert all("not budget-matched" in line for line in printed)
    note = publication.format_run_note(analysis, {}, experiment_id="0")
    note += publication.format_run_name(analysis, pipeline="0123")
    assert "other_bert best" not in note and "other_bert (not budget-matched)" in note


def refused(
    folder: Path, tree: Tree, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> str:
    """The one message of the sources stage."""
    write(folder, tree)
    code, said = stage(folder, "sources", monkeypatch=monkeypatch, capsys=capsys)
    assert code == 2 and "Traceback" not in said, said
    return said


def test_what_cannot_be_is_refused_before_anything_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    tree = make(tmp_path)
    save("bert", tmp_path / "one", model=theirs("bert").bert)

    def asked(over: Tree | None = None, **grid: Any) -> str:
        models = tree["models"] | {"other": block("one") | (over or {})}
        return refused(
            tmp_path,
            tree | {"models": models, "grid": tree["grid"] | {"models": ["gpt", "other"]} | grid},
            monkeypatch,
            capsys,
        )

    assert (
        "grid.adapt_models: other: " in (said := asked(adapt_models=["gpt", "other"]))
        and "no head of a language model" in said
    )
    assert "models.other.from: " in (said := asked({"from": "two"})) and "is not a folder" in said
    assert "models.other: the key 'from' is missing" in asked({"from": None})
    assert (
        "models.other.tokenizer: a public checkpoint has its own; write tokenizer: pretrained"
        in asked({"tokenizer": {"vocab_size": 500}})
    )
    assert "models.other.from: gpt is trained from scratch" in asked({"family": "gpt"})
    assert "models.other.architecture: unknown key 'poling'; did you mean 'pooling'" in asked(
        {"architecture": {"poling": "mean"}}
    )
    assert "grid.ensembles.two: other is a public checkpoint, which is not budget-matched" in asked(
        ensembles={"two": ["gpt", "other"]}, adapt_models=[], adapt_tasks=[]
    )
    assert "grid.ablation_of.gpt: other is a public checkpoint" in asked(
        ablation_of={"gpt": "other"}
    )
    monkeypatch.setattr("lineage.models.public_folders.is_transformers_available", lambda: False)
    monkeypatch.setattr("stages.sources.is_transformers_available", lambda: False)
    assert "pip install --requirement constraints.txt" in asked()
    (tmp_path / "one/model.safetensors").rename(tmp_path / "one/pytorch_model.bin")
    assert "pytorch_model.bin, a pickle" in asked()


def test_the_window_that_nobody_named_is_one_that_the_model_reads(
    tmp_path: Path, monkeypatch: Any, capsys: Any
) -> None:
    tree, shipped = (
        make(tmp_path),
        fill_in_defaults("public", {"family": "public"})["pretrain"],
    )
    save("bert", tmp_path / "one")
    tree["grid"] |= {"models": ["gpt", "other"], "adapt_models": ["gpt", "other"]}
    tree["models"]["other"] = block("one", family="public", pretrain=shipped | {"seq_len": 128})
    said = refused(tmp_path, tree, monkeypatch, capsys)
    assert "models.other.pretrain.seq_len: 128 is more than the 61 positions" in said
    tree["models"]["other"]["pretrain"] = shipped
    write(tmp_path, tree)
    for command in (["sources"], ["tokenizer", "other"], ["pretrain", "other", "0"]):
        code, said = stage(tmp_path, *command, monkeypatch=monkeypatch, capsys=capsys)
        assert code == 0, said
    assert (
        artifacts.read_json(tmp_path / "artifacts/pretrained/other/0/config.json")["pretrain"][
            "seq_len"
        ]
        == 61
    )


def test_it_goes_on_with_several_batches_a_step(
    tmp_path: Path, monkeypatch: Any, capsys: Any
) -> None:
    tree = make(tmp_path)
    save("gpt2", tmp_path / "one")
    found = block("one", family="public")
    tree["models"] |= {
        name: found | {"pretrain": found["pretrain"] | {"grad_accum_steps": number}}
        for name, number in (("one", 1), ("three", 3))
    }
    tree["grid"] |= {"models": ["gpt", "one", "three"], "adapt_models": ["gpt", "one", "three"]}
    write(tmp_path, tree)
    commands = [["sources"], ["task", "mood"]]
    commands += [
        command
        for name in ("one", "three")
        for command in (["tokenizer", name], ["pretrain", name, "0"], ["adapt", name, "0", "mood"])
    ]
    for command in commands:
        code, said = stage(tmp_path, *command, monkeypatch=monkeypatch, capsys=capsys)
        assert code == 0, said
    steps = {}
    for name in ("one", "three"):
        folder = tmp_path / f"artifacts/adapted/{name}/0/mood"
        held, steps[name] = (
            artifacts.read_json(folder / "held.json"),
            artifacts.read_json(folder / "spent.json")["steps"],
        )
        assert held["after"]["bits_per_byte"] < held["before"]["bits_per_byte"]
    assert steps["one"] // 3 <= steps["three"] <= steps["one"] // 3 + 1


def test_a_changed_folder_is_seen(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    tree = make(tmp_path)
    folder = save("bert", tmp_path / "one")
    tree["models"]["other"] = block("one", family="public")
    tree["grid"] |= {"models": ["gpt", "other"]}
    write(tmp_path, tree)
    records = []
    for _ in range(3):
        code, said = stage(tmp_path, "sources", monkeypatch=monkeypatch, capsys=capsys)
        assert code == 0, said
        records.append((tmp_path / "artifacts/sources/models/other.json").read_bytes())
        if len(records) == 2:
            changed(folder, {"bert.pooler.dense.bias": torch.ones(16)})
    assert records[0] == records[1] != records[2]
    assert (
        len(artifacts.read_json(tmp_path / "artifacts/sources/models/gpt.json")["mechanism"]) == 5
    )
