"""Orchestration on a small project with toy stages: what runs and why, exit codes, how runs end."""

import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from flows import plan
from flows.execute import StageContext, run_stage, terminate_process_group
from flows.plan import (
    GraphError,
    StageNode,
    find_stale_stages,
    print_plan,
    read_graph,
    read_stale_reasons,
)
from tests.toy_project import (
    Project,
    assert_one_message,
    below,
    lock,
    make_project,
    sleeps,
    wait_until,
)

LOCAL = ("--local", "--jobs", "2")


@pytest.fixture(scope="module")
def ran(tmp_path_factory: pytest.TempPathFactory) -> Project:
    """A project that has been run once; tests copy it."""
    project = make_project(tmp_path_factory.mktemp("ran"))
    answer = project.run(*LOCAL)
    assert answer.returncode == 0, answer.stdout + answer.stderr
    return project


@pytest.fixture
def project(ran: Project, tmp_path: Path) -> Project:
    """A copy of the project that has been run once."""
    shutil.copytree(ran.root, tmp_path / "project", symlinks=True)
    return Project(tmp_path / "project")


@pytest.fixture
def new(tmp_path: Path) -> Project:
    """A project that has never run."""
    return make_project(tmp_path)


def why(project: Project) -> dict[str, tuple[str, ...]]:
    nodes = read_graph(project.root)
    return {
        name: reasons
        for name, reasons in find_stale_stages(nodes, read_stale_reasons(project.root)).items()
        if reasons and reasons != ("always runs",)
    }


# What would run, and why


def test_the_graph_is_read_from_dvc_yaml(new: Project) -> None:
    nodes = {node.name: node for node in read_graph(new.root)}
    first, *_, last = nodes
    assert (first, last) == ("sources", "publish")
    assert set(nodes) == {
        "sources",
        "make@a",
        "make@b",
        "train@a",
        "train@b",
        "report",
        "publish",
    }, "an empty list makes no stage"
    assert nodes["train@a"].upstream == ("make@a",) and nodes["report"].upstream == (
        "train@a",
        "train@b",
    )
    assert (
        nodes["train@a"].pool,
        nodes["train@a"].timeout_seconds,
        nodes["sources"].always_changed,
    ) == ("gpu", 60.0, True)
    assert nodes["make@a"].downstream_depth == 4
    new.set(grid__extra=["b"])
    assert "extra@b" in {node.name for node in read_graph(new.root)}


def test_a_stage_that_never_ran_says_so(new: Project) -> None:
    assert why(new)["train@a"] == ("never run",)


def test_a_finished_project_is_fresh(project: Project) -> None:
    assert why(project) == {}


def test_a_plan_is_printed_for_a_reader(capsys: pytest.CaptureFixture[str]) -> None:
    wide = StageNode(
        "report", "report.py", (), "cpu", 60.0, always_changed=False, downstream_depth=0
    )
    reasons = ("param families " + "x" * 500, *(f"after train@{number}" for number in range(90)))
    print_plan([wide], {"report": reasons})
    line, _ = capsys.readouterr().out.splitlines()
    assert len(line) < 300 and line.endswith("xxx ...; after train@0 and 89 others")
    print_plan([wide], {"report": reasons[1:4]})
    assert "after train@0; after train@1; after train@2\n" in capsys.readouterr().out, (
        "a few are all named"
    )


def test_a_changed_parameter_is_named_with_both_values(project: Project) -> None:
    project.set(models__a__train__value=5)
    assert why(project) == {
        "train@a": ("param models.a.train.value 1 -> 5",),
        "report": ("after train@a",),
        "publish": ("always runs", "after report"),
    }


def test_changed_code_inputs_outputs_and_commands_are_named(project: Project) -> None:
    step = project.root / "stages" / "step.py"
    step.write_text(step.read_text() + "\n")
    (project.root / "artifacts" / "results" / "b.json").unlink()
    text = (project.root / "dvc.yaml").read_text()
    (project.root / "dvc.yaml").write_text(text.replace("stages.report", "stages.report  --again"))
    found = why(project)
    assert found["make@a"] == ("input stages/step.py modified",)
    assert "output artifacts/results/b.json deleted" in found["train@b"]
    assert "command changed" in found["report"]
    assert "input artifacts/results modified" in found["report"]


def test_plan_prints_the_same_as_text_and_as_json(project: Project) -> None:
    import json

    project.set(models__a__train__value=5)
    text = project.run(module="flows.plan").stdout
    assert "run   train@a [gpu] param models.a.train.value 1 -> 5" in text
    assert "fresh train@b [gpu]" in text
    listed = {
        entry["name"]: entry
        for entry in json.loads(project.run("--json", module="flows.plan").stdout)
    }
    assert listed["train@a"]["runs"] and not listed["train@b"]["runs"]
    assert project.ran() == []


def test_meta_that_names_no_pool_is_refused(new: Project) -> None:
    text = (new.root / "dvc.yaml").read_text()
    (new.root / "dvc.yaml").write_text(text.replace("pool: gpu", "pool: tpu"))
    with pytest.raises(GraphError, match="train@a: meta is"):
        read_graph(new.root)


# What runs


def test_a_second_run_starts_sources_and_publish_only(project: Project) -> None:
    answer = project.run(*LOCAL)
    assert project.ran() == ["publish", "sources"]
    assert answer.returncode == 0 and "THE TABLE" in answer.stdout
    assert (
        not (project.root / ".lineage" / "logs" / "train-a.log").stat().st_mtime
        > (project.root / ".lineage" / "logs" / "sources.log").stat().st_mtime
    )
    assert project.git("status", "--short") == "?? dvc.lock"


def test_an_edited_file_and_a_changed_number_run_what_depends_on_them(project: Project) -> None:
    """With threads, identity and no telemetry; forked by one, but for the first, which may begin before it is there; failed cells end it with 3."""
    (project.root / "user" / "text.txt").write_text("another text")
    project.set(models__a__train__status="failed", threads=3)
    answer = project.run(*LOCAL)
    assert (
        answer.returncode == 3
        and "1 rows of reports/results.csv have status failed" in answer.stderr
    )
    entries = project.traced()
    ran = sorted(str(entry["stage"]) for entry in entries)
    assert ran == ["make@a", "make@b", "publish", "report", "sources", "train@a"], (
        "what make@b wrote did not change"
    )
    assert {entry["threads"] for entry in entries} == {"3"}
    assert {entry["index"] for entry in entries} == {"true"}
    assert len({entry["pipeline"] for entry in entries}) == 1
    if sys.platform == "linux":  # forks are made there alone
        assert (
            len({entry["parent"] for entry in entries[1:]}) == 1
            and len({entry["pid"] for entry in entries[1:]}) == 5
        )


def test_two_stages_run_at_once_and_neither_loses_its_result(project: Project) -> None:
    project.set(models__a__make={"meet": "b"}, models__b__make={"meet": "a"})
    answer = project.run(*LOCAL)
    assert answer.returncode == 0, answer.stdout + answer.stderr
    assert why(project) == {}


def test_dry_run_runs_nothing(project: Project) -> None:
    assert "would run" in project.run("--local", "--dry-run").stdout
    assert project.ran() == []


# How runs end


def test_bad_input_ends_with_2_and_one_message_before_anything_runs(project: Project) -> None:
    (project.root / "user" / "text.txt").unlink()
    answer = project.run(*LOCAL)
    assert answer.returncode == 2
    assert_one_message(answer, "sources:", "no such file; create it")
    assert project.ran() == ["sources"]


def test_params_that_make_no_graph_are_explained_by_sources(project: Project) -> None:
    (project.root / "params.yaml").write_text("seed: 1\n")
    answer = project.run(*LOCAL)
    assert answer.returncode == 2
    assert_one_message(answer, "the key 'grid' is missing")


def test_exit_2_of_any_stage_is_that_of_the_run_and_others_go_on(project: Project) -> None:
    project.set(models__a__make__exit=2, models__b__make__value=4)
    answer = project.run(*LOCAL)
    assert answer.returncode == 2
    assert "make@a: params.yaml: models: something is wrong; mend it" in answer.stderr
    assert "train@a: not run, since make@a did not end well" in answer.stderr
    assert "ran     make@b" in answer.stdout


def test_a_failure_exits_with_1_and_says_where_to_look(project: Project) -> None:
    project.set(models__a__make__exit=7)
    answer = project.run(*LOCAL)
    assert answer.returncode == 1
    assert (
        "make@a: failed with exit code 7" in answer.stderr
        and ".lineage/logs/make-a.log" in answer.stderr
    )


def test_keys_of_numbers_and_of_texts_are_told_side_by_side() -> None:
    """As `names: {0: neg}` that becomes `names: {"0": neg}`."""
    assert [*plan._differences("names", {0: "neg", 1: "pos"}, {"0": "neg", 1: "pos"})] == [
        "param names.0 neg -> None",
        "param names.0 None -> neg",
    ]


def test_a_stage_killed_by_a_signal_is_told_apart(project: Project) -> None:
    project.set(models__a__make__once=True)
    result = run_stage("make@a", context=StageContext(project.root), timeout_seconds=30)
    assert result.was_killed and "killed by signal 9" in result.message
    assert (
        run_stage("make@a", context=StageContext(project.root), timeout_seconds=30).outcome == "ran"
    )
    assert (
        run_stage("make@a", context=StageContext(project.root), timeout_seconds=30).outcome
        == "fresh"
    )


def test_what_the_cache_holds_is_not_computed_again(project: Project) -> None:
    shutil.rmtree(project.root / "artifacts" / "made")
    assert (
        run_stage("make@a", context=StageContext(project.root), timeout_seconds=30).outcome
        == "cached"
    )


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_stopped_run_leaves_no_process_and_its_stages_save_a_checkpoint(
    project: Project, number: int
) -> None:
    """And while it goes on, no other one begins in its folder."""
    project.set(models__a__make={"seconds": 60, "checkpoint": True, "child": 60})
    child = project.start(*LOCAL)
    wait_until(lambda: sleeps(project))
    if number == signal.SIGTERM:
        other = project.run(*LOCAL)
        assert other.returncode == 2
        assert_one_message(other, "another run is under way")
    time.sleep(0.5)
    child.send_signal(number)
    said, _ = child.communicate(timeout=30)
    assert child.returncode == 1, said
    assert "Traceback" not in said and "stopped" in said
    assert below(project) == []
    assert (project.root / ".lineage" / "checkpoint").read_text() == "saved"


def test_a_stage_past_its_time_is_ended_with_its_children(project: Project) -> None:
    project.set(models__a__make={"seconds": 60, "child": 60})
    result = run_stage("make@a", context=StageContext(project.root), timeout_seconds=3)
    assert (result.outcome, result.exit_status) == ("failed", 1)
    assert "ran longer than 3 s" in result.message
    assert below(project) == []


def test_a_stage_that_ignores_term_is_killed() -> None:
    code = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('up', flush=True); time.sleep(60)"
    child = subprocess.Popen(
        [sys.executable, "-c", code], start_new_session=True, stdout=subprocess.PIPE
    )
    assert child.stdout is not None
    child.stdout.readline()
    terminate_process_group(child.pid, grace_seconds=0.3)
    assert child.wait(5) == -signal.SIGKILL
    child.stdout.close()


def test_a_stop_from_another_thread_ends_the_stage(project: Project) -> None:
    project.set(models__a__make={"seconds": 60})
    setting = StageContext(project.root, stop_event=threading.Event())
    threading.Timer(2, setting.stop_event.set).start()
    assert run_stage("make@a", context=setting, timeout_seconds=60).outcome == "stopped"
    assert below(project) == []


def test_dvc_repro_and_the_local_walker_give_equal_lock_files(ran: Project, new: Project) -> None:
    environment = new.environment(
        PATH=f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}", OMP_NUM_THREADS="1"
    )
    subprocess.run(
        [sys.executable, "-m", "dvc", "repro", "-q"],
        cwd=new.root,
        env=environment,
        check=True,
        timeout=120,
    )
    assert lock(new.root) == lock(ran.root)
    assert (new.root / "reports" / "results.csv").read_bytes() == (
        ran.root / "reports" / "results.csv"
    ).read_bytes()
