"""Profiles run in their own worktree and on their own branch."""

from pathlib import Path

import pytest

from flows.profiles import compose_profile
from flows.run import RunOptions
from flows.workspace import use_checkout, use_worktree
from lineage.config.records import read_yaml
from lineage.errors import InputError
from lineage.runtime.provenance import get_pipeline_id
from tests.toy_project import Project, assert_one_message, make_project


@pytest.fixture
def project(tmp_path: Path) -> Project:
    """Build a project that has never run."""
    return make_project(tmp_path)


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
