"""Profiles compose params.yaml and run in their own worktree and on their own branch."""

import re
import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from flows.profiles import compose_profile, merge_params
from flows.run import RunOptions
from flows.workspace import use_checkout, use_worktree
from lineage.config.__main__ import resolved_values
from lineage.config.checks import check_study
from lineage.config.params import parse_params
from lineage.config.records import parse_record, read_yaml
from lineage.config.resolve import resolve_tree
from lineage.config.study import load_model_config, parse_model_config
from lineage.errors import InputError
from lineage.runtime.provenance import get_pipeline_id
from tests import tiny
from tests.toy_project import REPOSITORY, Project, assert_one_message, make_project


@pytest.fixture
def project(tmp_path: Path) -> Project:
    """Build a project that has never run."""
    return make_project(tmp_path)


def test_maps_merge_and_lists_and_values_replace() -> None:
    assert merge_params({"a": {"b": 1, "c": [1, 2]}, "d": 1}, {"a": {"c": [3]}, "d": {"e": 2}}) == {
        "a": {"b": 1, "c": [3]},
        "d": {"e": 2},
    }


def test_params_yaml_is_the_composed_demo_profile() -> None:
    assert read_yaml(REPOSITORY / "params.yaml") == compose_profile(REPOSITORY / "profiles", "demo")


@pytest.mark.parametrize(
    "name",
    sorted(path.stem for path in (REPOSITORY / "profiles").glob("*.yaml") if path.stem != "base"),
)
def test_every_profile_composes_to_a_valid_study(name: str) -> None:
    params = parse_params(compose_profile(REPOSITORY / "profiles", name), "params.yaml")
    assert set(check_study(params)) == {*params.models}


def test_an_entry_with_like_inherits_and_overrides_the_keys_of_another_entry() -> None:
    tree = {
        "tasks": {
            "a": {"files": {"train": "a.csv"}, "folds": 2},
            "b": {"like": "a", "folds": 3},
        },
        "models": {
            "gpt": {"tokenizer": {"vocab_size": 9}, "pretrain": {"seq_len": 8}},
            "big": {"like": "gpt", "pretrain": {"seq_len": 16}},
            "bigger": {"like": "big", "tokenizer": {"vocab_size": 11}},
            "plain": {"like": "gpt", "family": "bert"},
            "of_family": {"like": "elmo"},
        },
    }
    resolved = resolve_tree(tree, "params.yaml")
    assert resolved["tasks"]["b"] == {"files": {"train": "a.csv"}, "folds": 3}
    bigger = resolved["models"]["bigger"]
    assert bigger["family"] == "gpt" and bigger["tokenizer"]["vocab_size"] == 11
    assert bigger["pretrain"]["seq_len"] == 16
    assert resolved["models"]["plain"]["family"] == "bert"
    assert resolved["models"]["of_family"]["family"] == "elmo"
    for entry in ({"like": "d"}, {"like": "e"}, {"like": "beta"}, {"like": ["bet"]}, {"like": 1}):
        invalid = {"models": {"d": {"like": "e"}, "e": entry, "bet": {}, "none": None}}
        with pytest.raises(InputError, match=r"params\.yaml: models\.[de]: like is '"):
            resolve_tree(invalid, "params.yaml")


def test_study_defaults_override_family_defaults_and_a_model_overrides_both() -> None:
    own = {"evaluate": {"finetune": {"epochs": 9}}}
    shared = {"evaluate": {"finetune": {"epochs": 7, "batch_size": 5}}}
    tree = {"defaults": shared, "models": {"gpt": own}, "grid": {"models": ["gpt", "bert"]}}
    models = resolve_tree(tree, "params.yaml")["models"]
    assert models["gpt"]["evaluate"]["finetune"] == {
        "learning_rate": 0.001,
        "epochs": 9,
        "batch_size": 5,
    }
    assert models["bert"]["evaluate"]["finetune"]["epochs"] == 7, (
        "a model in the grid needs no entry under models"
    )
    parsed = parse_model_config("gpt", own, "models.gpt")
    assert parsed.evaluate.finetune.epochs == 9 and parsed.pretrain.seq_len == 136


@pytest.mark.parametrize("profile", ["demo", "variants", "wiki-full"])
def test_resolved_values_contain_every_default(profile: str) -> None:
    params = parse_params(compose_profile(REPOSITORY / "profiles", profile))
    values = resolved_values(params)
    assert values["threads"] == 1 and values["adapt"]["heldout_share"] == 0.1
    for name, model in check_study(params).items():
        block = values["models"][name]
        assert block["family"] == model.family.name
        assert block["evaluate"]["linear_probe"]["max_iter"] == 100, "a default of the dataclass"
        for key in ("architecture", "pretrain", "evaluate"):
            record = getattr(model, key)
            assert parse_record(type(record), block[key], key) == record


def test_a_model_with_the_key_from_is_public() -> None:
    block = {"from": "a/y", "architecture": {"pooling": "mean"}}
    model = resolve_tree({"models": {"x": block}}, "params.yaml")["models"]["x"]
    assert model["tokenizer"] == "pretrained" and model["architecture"] == {"pooling": "mean"}
    assert resolve_tree({"models": None}, "params.yaml")["models"] is None, (
        "the parser refuses it later"
    )


def test_an_unknown_profile_name_suggests_the_nearest(project: Project) -> None:
    with pytest.raises(InputError, match="did you mean 'small'"):
        compose_profile(project.root / "profiles", "smal")


def test_a_profile_runs_in_its_worktree_and_commits_to_its_branch_only(project: Project) -> None:
    before = project.git("rev-parse", "main"), project.git("status", "--short")
    process = project.run(
        "--local",
        "--profile",
        "small",
        "--final",
        GIT_CONFIG_GLOBAL="/dev/null",
        HOME="/nonexistent",
    )
    assert process.returncode == 0, process.stdout + process.stderr
    assert (project.git("rev-parse", "main"), project.git("status", "--short")) == before
    assert {str(entry["cwd"]) for entry in project.read_trace()} == {
        str(project.root / ".runs" / "small")
    }
    assert project.git("diff", "--name-only", "main", "runs/small").split() == [
        "dvc.lock",
        "params.yaml",
    ]
    assert "models.a.train" in project.git("show", "runs/small:dvc.lock")
    params = read_yaml(project.root / ".runs" / "small" / "params.yaml")
    assert params["report"]["split"] == "test", "--final"
    assert params["models"]["a"] == {"make": {"value": 1}, "train": {"value": 7}}
    assert not (project.root / ".runs" / "small" / ".dvc" / "cache").exists(), (
        "the cache is the main checkout's"
    )


@pytest.mark.slow
def test_a_profile_follows_head_and_keeps_its_history(project: Project) -> None:
    assert project.run("--local", "--profile", "small").returncode == 0
    first = project.git("rev-parse", "runs/small")
    state = project.root / ".runs" / "small" / ".lineage" / "kept"
    state.write_text("resume state")
    (project.root / "stages" / "added.py").write_text("")
    project.set_params(file="profiles/small.yaml", seed=9)
    project.commit()
    project.read_trace()
    assert project.run("--local", "--profile", "small").returncode == 0
    assert project.stages_run() == ["make@a", "publish", "sources"], (
        "seed is a parameter of make, whose output did not change"
    )
    assert project.git("rev-list", "--parents", "-1", "runs/small").split()[1:] == [
        first,
        project.git("rev-parse", "main"),
    ]
    assert project.git("diff", "--name-only", "main", "runs/small").split() == [
        "dvc.lock",
        "params.yaml",
    ]
    assert state.is_file()


def test_changed_code_is_refused_for_a_profile(project: Project) -> None:
    (project.root / "stages" / "added.py").write_text("")
    process = project.run("--local", "--profile", "small")
    assert process.returncode == 2
    assert_one_message(process, "stages/added.py", "--allow-dirty")


def test_an_uncommitted_edit_stops_only_the_profile_that_it_changes(
    project: Project,
) -> None:
    (project.root / "profiles" / "draft.yaml").write_text("seed: [not done yet")
    assert use_worktree(project.root, "small", allow_dirty=False, final=False).dirty_files == ()
    with (project.root / "profiles" / "small.yaml").open("a") as stream:
        stream.write("# a word\n")
    with pytest.raises(InputError, match=r"^profiles/small\.yaml: changed since HEAD"):
        use_worktree(project.root, "small", allow_dirty=False, final=False)


def test_every_change_of_the_code_gives_another_pipeline_id(
    project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise MLflow would show these runs as runs of the commit."""
    monkeypatch.delenv("LINEAGE_PIPELINE_ID", raising=False)
    monkeypatch.chdir(project.root)
    pipeline_ids = [use_worktree(project.root, "small", allow_dirty=True, final=False).pipeline_id]
    for text in ("a = 1", "a = 2"):
        (project.root / "stages" / "added.py").write_text(text)
        pipeline_ids.append(
            use_worktree(project.root, "small", allow_dirty=True, final=False).pipeline_id
        )
        assert use_checkout(project.root).pipeline_id == get_pipeline_id(), (
            "a stage that runs without the flow gets the same id"
        )
    (project.root / "stages" / "added.py").unlink()
    assert len({*pipeline_ids}) == 3
    assert (
        use_worktree(project.root, "small", allow_dirty=True, final=False).pipeline_id
        == pipeline_ids[0]
    )


@pytest.mark.slow
def test_allow_dirty_runs_a_profile_with_changed_code_and_records_the_files(
    project: Project,
) -> None:
    (project.root / "stages" / "added.py").write_text("")
    publish = project.root / "stages" / "publish.py"
    publish.write_text(publish.read_text().replace("THE TABLE", "ANOTHER TABLE"))
    process = project.run("--local", "--profile", "small")
    assert process.returncode == 2
    assert_one_message(process, "stages/added.py, stages/publish.py", "--allow-dirty")
    process = project.run("--local", "--profile", "small", "--allow-dirty")
    assert process.returncode == 0 and "ANOTHER TABLE" in process.stdout
    assert {entry["dirty"] for entry in project.read_trace()} == {
        "stages/added.py,stages/publish.py"
    }
    project.git("checkout", "--quiet", "--", "stages")
    (project.root / "stages" / "added.py").unlink()
    assert "THE TABLE" in project.run("--local", "--profile", "small").stdout
    assert not (project.root / ".runs" / "small" / "stages" / "added.py").exists()


def test_incompatible_or_invalid_flags_are_refused(project: Project) -> None:
    process = project.run("--local", "--pools", "--profile", "small")
    assert process.returncode == 2
    assert_one_message(process, "--pools: needs Prefect")
    for flags, message in (
        ({"pools": True}, "--pools"),
        ({"final": True}, "--final"),
        ({"allow_dirty": True}, "--allow-dirty"),
        ({"jobs": 0}, "--jobs: 0"),
    ):
        with pytest.raises(InputError, match=f"^{message}"):
            RunOptions(**flags)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("family", "block", "changed"),
    [
        (
            "elmo",
            {"input_unit": "words"},
            {"unit": "words", "contextualizer": "a table of words and LSTM"},
        ),
        (
            "taglm",
            {"directions": "backward"},
            {"contextualizer": "LSTM", "direction": "right to left", "objective": "previous word"},
        ),
        (
            "context2vec",
            {"context_encoder": "average"},
            {
                "direction": "all other words, without order",
                "contextualizer": "a table and a perceptron",
            },
        ),
        ("sa_lstm", {"objective": "language_model"}, {"objective": "next word"}),
    ],
)
def test_the_mechanism_of_a_model_follows_its_architecture_settings(
    family: str, block: dict[str, str], changed: dict[str, str]
) -> None:
    default = tiny.model_config(family)
    switched = tiny.model_config(family, architecture=block)
    before = default.mechanism
    after = switched.mechanism
    expected = dict(changed)
    if family == "taglm":
        expected["transfer"] = "frozen, the top"
    assert {key: value for key, value in after.items() if value != before[key]} == expected


def test_elmos_mechanism_says_whether_windows_start_from_a_zero_state() -> None:
    assert (
        tiny.model_config("elmo", pretrain={"carry_state": False}).mechanism["objective"]
        == "next word, previous word, each window from a zero state"
    )
    assert tiny.model_config("elmo").mechanism["objective"] == "next word, previous word"


SIZE_KEYS = {
    "num_layers", "num_heads", "hidden_size", "embedding_size", "ffn_size", "max_positions", "init_std", "cell_size",
    "projection_size", "filters", "num_highway_layers", "softmax_samples", "batch_size", "grad_accum_steps", "seq_len",
    "initial_seq_len", "max_predictions_per_seq", "learning_rate", "warmup_ratio",
}  # fmt: skip


@pytest.mark.parametrize("family", ["elmo", "ulmfit", "gpt", "bert"])
def test_a_historical_variant_differs_from_the_papers_settings_only_in_sizes(family: str) -> None:
    small = load_model_config(
        parse_params(compose_profile(REPOSITORY / "profiles", "variants")), f"{family}_historical"
    )
    paper = load_model_config(
        parse_params(compose_profile(REPOSITORY / "profiles", "paper")), family
    )
    for small_block, paper_block in (
        (small.architecture, paper.architecture),
        (small.pretrain, paper.pretrain),
    ):
        assert type(small_block) is type(paper_block)
        assert {
            key for key in vars(small_block) if vars(small_block)[key] != vars(paper_block)[key]
        } <= SIZE_KEYS


def test_the_paper_profile_averages_a_forward_and_a_backward_ulmfit() -> None:
    params = parse_params(compose_profile(REPOSITORY / "profiles", "paper"), "params.yaml")
    assert params.grid.ensembles == {"ulmfit_both": ("ulmfit", "ulmfit_backward")}
    assert params.models["ulmfit_backward"]["tokenizer"]["direction"] == "backward"


def test_the_model_shown_in_the_docs_is_valid(tmp_path: Path) -> None:
    (shown,) = re.findall(
        r"`(models: \{cbow: .*?\}\}\})`",
        (REPOSITORY / "docs/how-to/add-a-family.md").read_text(encoding="utf-8"),
    )
    shutil.copytree(REPOSITORY / "profiles", tmp_path / "profiles")
    (tmp_path / "profiles" / "mine.yaml").write_text(shown)
    mine = compose_profile(tmp_path / "profiles", "mine")["models"]
    tree = merge_params(compose_profile(REPOSITORY / "profiles", "demo"), {"models": mine})
    tree["grid"]["models"] = [*tree["grid"]["models"], "cbow"]
    models = check_study(parse_params(tree, "params.yaml"))
    assert models["cbow"].pretrain == replace(models["word2vec"].pretrain, algorithm="cbow")


def test_the_demo_as_shipped_has_at_most_65_stages() -> None:
    from flows.plan import read_graph  # DVC takes a second

    assert 25 <= len(read_graph(REPOSITORY)) <= 65
