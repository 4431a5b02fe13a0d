"""Profiles: a run in a worktree of its own, and the branch that keeps its history."""

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
from tests.toy_project import HERE, Project, assert_one_message, make_project


@pytest.fixture
def project(tmp_path: Path) -> Project:
    """A project that has never run."""
    return make_project(tmp_path)


def test_maps_merge_and_lists_and_values_replace() -> None:
    assert merge_params({"a": {"b": 1, "c": [1, 2]}, "d": 1}, {"a": {"c": [3]}, "d": {"e": 2}}) == {
        "a": {"b": 1, "c": [3]},
        "d": {"e": 2},
    }


def test_params_yaml_is_base_and_demo() -> None:
    assert read_yaml(HERE / "params.yaml") == compose_profile(HERE / "profiles", "demo")


@pytest.mark.parametrize(
    "name", sorted(path.stem for path in (HERE / "profiles").glob("*.yaml") if path.stem != "base")
)
def test_every_profile_composes_to_a_study_that_is_sound(name: str) -> None:
    params = parse_params(compose_profile(HERE / "profiles", name), "params.yaml")
    assert set(check_study(params)) == {*params.models}


def test_an_entry_is_what_it_is_like_with_what_it_says_itself_over_it() -> None:
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
    found = resolve_tree(tree, "params.yaml")
    assert found["tasks"]["b"] == {"files": {"train": "a.csv"}, "folds": 3}
    bigger = found["models"]["bigger"]
    assert bigger["family"] == "gpt" and bigger["tokenizer"]["vocab_size"] == 11
    assert bigger["pretrain"]["seq_len"] == 16
    assert found["models"]["plain"]["family"] == "bert"
    assert found["models"]["of_family"]["family"] == "elmo"
    for entry in ({"like": "d"}, {"like": "e"}, {"like": "beta"}, {"like": ["bet"]}, {"like": 1}):
        wrong = {"models": {"d": {"like": "e"}, "e": entry, "bet": {}, "none": None}}
        with pytest.raises(InputError, match=r"params\.yaml: models\.[de]: like is '"):
            resolve_tree(wrong, "params.yaml")


def test_defaults_of_the_family_then_of_the_study_then_of_the_model() -> None:
    own = {"evaluate": {"finetune": {"epochs": 9}}}
    shared = {"evaluate": {"finetune": {"epochs": 7, "batch_size": 5}}}
    tree = {"defaults": shared, "models": {"gpt": own}, "grid": {"models": ["gpt", "bert"]}}
    found = resolve_tree(tree, "params.yaml")["models"]
    assert found["gpt"]["evaluate"]["finetune"] == {
        "learning_rate": 0.001,
        "epochs": 9,
        "batch_size": 5,
    }
    assert found["bert"]["evaluate"]["finetune"]["epochs"] == 7, "it needs no entry of its own"
    parsed = parse_model_config("gpt", own, "models.gpt")
    assert parsed.evaluate.finetune.epochs == 9 and parsed.pretrain.seq_len == 136


@pytest.mark.parametrize("profile", ["demo", "variants", "wiki-full"])
def test_the_resolved_values_write_out_every_default(profile: str) -> None:
    params = parse_params(compose_profile(HERE / "profiles", profile))
    values = resolved_values(params)
    assert values["threads"] == 1 and values["adapt"]["heldout_share"] == 0.1
    for name, model in check_study(params).items():
        block = values["models"][name]
        assert block["family"] == model.family.name
        assert block["evaluate"]["linear_probe"]["max_iter"] == 100, "a default of the record"
        for key in ("architecture", "pretrain", "evaluate"):
            record = getattr(model, key)
            assert parse_record(type(record), block[key], key) == record


def test_a_model_that_says_where_it_comes_from_is_public() -> None:
    block = {"from": "a/y", "architecture": {"pooling": "mean"}}
    found = resolve_tree({"models": {"x": block}}, "params.yaml")["models"]["x"]
    assert found["tokenizer"] == "pretrained" and found["architecture"] == {"pooling": "mean"}
    assert resolve_tree({"models": None}, "params.yaml")["models"] is None, "refused when parsed"


def test_an_unknown_profile_names_the_nearest(project: Project) -> None:
    with pytest.raises(InputError, match="did you mean 'small'"):
        compose_profile(project.root / "profiles", "smal")


def test_a_profile_runs_in_its_worktree_and_commits_to_its_branch_only(project: Project) -> None:
    before = project.git("rev-parse", "main"), project.git("status", "--short")
    answer = project.run(
        "--local",
        "--profile",
        "small",
        "--final",
        GIT_CONFIG_GLOBAL="/dev/null",
        HOME="/nonexistent",
    )
    assert answer.returncode == 0, answer.stdout + answer.stderr
    assert (project.git("rev-parse", "main"), project.git("status", "--short")) == before
    assert {str(entry["cwd"]) for entry in project.traced()} == {
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
    project.set(file="profiles/small.yaml", seed=9)
    project.commit()
    project.traced()
    assert project.run("--local", "--profile", "small").returncode == 0
    assert project.ran() == ["make@a", "publish", "sources"], (
        "seed is make's; what make wrote is as before"
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
    answer = project.run("--local", "--profile", "small")
    assert answer.returncode == 2
    assert_one_message(answer, "stages/added.py", "--allow-dirty")


def test_a_draft_of_another_profile_stops_none_and_an_edit_of_its_own_does(
    project: Project,
) -> None:
    (project.root / "profiles" / "draft.yaml").write_text("seed: [not done yet")
    assert use_worktree(project.root, "small", allow_dirty=False, final=False).dirty_files == ()
    with (project.root / "profiles" / "small.yaml").open("a") as stream:
        stream.write("# a word\n")
    with pytest.raises(InputError, match=r"^profiles/small\.yaml: changed since HEAD"):
        use_worktree(project.root, "small", allow_dirty=False, final=False)


def test_changed_code_is_another_pipeline_and_changed_again_another(
    project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Or its runs would stand for those of the commit in MLflow."""
    monkeypatch.delenv("LINEAGE_PIPELINE_ID", raising=False)
    monkeypatch.chdir(project.root)
    places = [use_worktree(project.root, "small", allow_dirty=True, final=False).pipeline_id]
    for text in ("a = 1", "a = 2"):
        (project.root / "stages" / "added.py").write_text(text)
        places.append(
            use_worktree(project.root, "small", allow_dirty=True, final=False).pipeline_id
        )
        assert use_checkout(project.root).pipeline_id == get_pipeline_id(), (
            "as of a stage that runs without the flow"
        )
    (project.root / "stages" / "added.py").unlink()
    assert (
        len({*places}) == 3
        and use_worktree(project.root, "small", allow_dirty=True, final=False).pipeline_id
        == places[0]
    )


@pytest.mark.slow
def test_changed_code_is_refused_for_a_profile_unless_allowed_and_is_then_named(
    project: Project,
) -> None:
    (project.root / "stages" / "added.py").write_text("")
    publish = project.root / "stages" / "publish.py"
    publish.write_text(publish.read_text().replace("THE TABLE", "ANOTHER TABLE"))
    answer = project.run("--local", "--profile", "small")
    assert answer.returncode == 2
    assert_one_message(answer, "stages/added.py, stages/publish.py", "--allow-dirty")
    answer = project.run("--local", "--profile", "small", "--allow-dirty")
    assert answer.returncode == 0 and "ANOTHER TABLE" in answer.stdout
    assert {entry["dirty"] for entry in project.traced()} == {"stages/added.py,stages/publish.py"}
    project.git("checkout", "--quiet", "--", "stages")
    (project.root / "stages" / "added.py").unlink()
    assert "THE TABLE" in project.run("--local", "--profile", "small").stdout
    assert not (project.root / ".runs" / "small" / "stages" / "added.py").exists()


def test_flags_that_do_not_go_together_are_refused(project: Project) -> None:
    answer = project.run("--local", "--pools", "--profile", "small")
    assert answer.returncode == 2
    assert_one_message(answer, "--pools: needs Prefect")
    for flags, said in (
        ({"pools": True}, "--pools"),
        ({"final": True}, "--final"),
        ({"allow_dirty": True}, "--allow-dirty"),
        ({"jobs": 0}, "--jobs: 0"),
    ):
        with pytest.raises(InputError, match=f"^{said}"):
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
def test_the_table_of_mechanisms_follows_the_switches(
    family: str, block: dict[str, str], changed: dict[str, str]
) -> None:
    plain, other = tiny.variant(family), tiny.variant(family, architecture=block)
    before, after = plain.mechanism, other.mechanism
    assert {key: value for key, value in after.items() if value != before[key]} == changed | (
        {"transfer": "frozen, the top"} if family == "taglm" else {}
    )


def test_the_table_of_mechanisms_says_that_elmos_windows_start_cold() -> None:
    assert (
        tiny.variant("elmo", pretrain={"carry_state": False}).mechanism["objective"]
        == "next word, previous word, each window from a zero state"
    )
    assert tiny.variant("elmo").mechanism["objective"] == "next word, previous word"


SIZES = {
    "num_layers", "num_heads", "hidden_size", "embedding_size", "ffn_size", "max_positions", "init_std", "cell_size",
    "projection_size", "filters", "num_highway_layers", "softmax_samples", "batch_size", "grad_accum_steps", "seq_len",
    "initial_seq_len", "max_predictions_per_seq", "learning_rate", "warmup_ratio",
}  # fmt: skip


@pytest.mark.parametrize("family", ["elmo", "ulmfit", "gpt", "bert"])
def test_a_historical_variant_is_pretrained_as_the_papers_block_but_for_sizes(family: str) -> None:
    small = load_model_config(
        parse_params(compose_profile(HERE / "profiles", "variants")), f"{family}_historical"
    )
    paper = load_model_config(parse_params(compose_profile(HERE / "profiles", "paper")), family)
    for one, other in (
        (small.architecture, paper.architecture),
        (small.pretrain, paper.pretrain),
    ):
        assert type(one) is type(other)
        assert {key for key in vars(one) if vars(one)[key] != vars(other)[key]} <= SIZES


def test_papers_ulmfit_reads_both_ways_and_the_two_are_averaged() -> None:
    params = parse_params(compose_profile(HERE / "profiles", "paper"), "params.yaml")
    assert params.grid.ensembles == {"ulmfit_both": ("ulmfit", "ulmfit_backward")}
    assert params.models["ulmfit_backward"]["tokenizer"]["direction"] == "backward"


def test_the_model_that_the_docs_show_is_one(tmp_path: Path) -> None:
    (said,) = re.findall(
        r"`(models: \{cbow: .*?\}\}\})`",
        (HERE / "docs/how-to/add-a-family.md").read_text(encoding="utf-8"),
    )
    shutil.copytree(HERE / "profiles", tmp_path / "profiles")
    (tmp_path / "profiles" / "mine.yaml").write_text(said)
    mine = compose_profile(tmp_path / "profiles", "mine")["models"]
    tree = merge_params(compose_profile(HERE / "profiles", "demo"), {"models": mine})
    tree["grid"]["models"] = [*tree["grid"]["models"], "cbow"]
    models = check_study(parse_params(tree, "params.yaml"))
    assert models["cbow"].pretrain == replace(models["word2vec"].pretrain, algorithm="cbow")


def test_the_demo_as_shipped_has_at_most_65_stages() -> None:
    from flows.plan import read_graph  # DVC takes a second

    assert 25 <= len(read_graph(HERE)) <= 65
