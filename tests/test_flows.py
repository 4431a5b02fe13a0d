"""The orchestration runs what is stale, gives reasons and exit codes, and ends runs cleanly.

The tests use a small project with toy stages.
"""

import fcntl
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import psutil
import pytest
from dvc.rwlock import rwlock

from flows import plan, view
from flows.execute import StageContext, run_stage
from flows.plan import (
    GraphError,
    StageNode,
    find_stale_stages,
    print_plan,
    read_graph,
    read_stale_reasons,
)
from flows.processes import terminate_process_group
from lineage.errors import InputError
from tests.helpers.toy_project import (
    Project,
    assert_one_message,
    copy_project,
    has_sleeping_child,
    make_project,
    project_processes,
    wait_until,
)

LOCAL = ("run", "--no-prefect", "--jobs", "2")


@pytest.fixture
def project(finished_toy_project: Project, tmp_path: Path) -> Project:
    """Return a copy of the project that has been run once."""
    return copy_project(finished_toy_project, tmp_path)


@pytest.fixture
def new_project(tmp_path: Path) -> Project:
    """Return a project that has never run."""
    return make_project(tmp_path)


def stale_reasons(project: Project) -> dict[str, tuple[str, ...]]:
    """Return why each stale stage would run, without those that always run."""
    nodes = read_graph(project.root)
    return {
        name: reasons
        for name, reasons in find_stale_stages(nodes, read_stale_reasons(project.root)).items()
        if reasons and reasons != ("always runs",)
    }


# What would run and why


def test_a_plan_is_refused_while_a_stage_writes_its_files(project: Project) -> None:
    assert not stale_reasons(project)
    with plan.open_repo(project.root) as repo:
        (out, *_) = next(stage.outs for stage in repo.index.stages if stage.name == "make@a")
        assert repo.tmp_dir is not None
        with (
            rwlock(repo.tmp_dir, repo.fs, "lineage run: make@a", [], [out.fs_path], False),
            pytest.raises(InputError, match="a run or a dvc command is at work in this study"),
        ):
            read_stale_reasons(project.root)
    assert not stale_reasons(project)


def test_the_graph_is_read_from_dvc_yaml(new_project: Project) -> None:
    nodes = {node.name: node for node in read_graph(new_project.root)}
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
    }, "an empty list gives no stage"
    assert nodes["train@a"].upstream == ("make@a",)
    assert nodes["report"].upstream == ("train@a", "train@b")
    assert (nodes["train@a"].pool, nodes["train@a"].timeout_seconds) == ("gpu", 60.0)
    assert nodes["sources"].always_changed is True
    assert nodes["make@a"].downstream_depth == 4
    assert (nodes["sources"].upstream_depth, nodes["train@a"].upstream_depth) == (1, 3)
    new_project.set_params(grid__extra=["b"])
    assert "extra@b" in {node.name for node in read_graph(new_project.root)}


def test_a_stage_that_never_ran_is_stale_for_that_reason(new_project: Project) -> None:
    assert stale_reasons(new_project)["train@a"] == ("never run",)


def test_a_finished_project_has_no_stale_stage(project: Project) -> None:
    assert stale_reasons(project) == {}


def test_the_printed_plan_shortens_long_reasons(capsys: pytest.CaptureFixture[str]) -> None:
    node = StageNode(
        "report", "report.py", (), "cpu", 60.0, always_changed=False, downstream_depth=0
    )
    reasons = ("param families " + "x" * 500, *(f"after train@{number}" for number in range(90)))
    print_plan([node], {"report": reasons})
    line, _ = capsys.readouterr().out.splitlines()
    assert len(line) < 300 and line.endswith("xxx ...; after train@0 and 89 others")
    print_plan([node], {"report": reasons[1:4]})
    assert "after train@0; after train@1; after train@2\n" in capsys.readouterr().out, (
        "up to three reasons are all named"
    )


def test_a_changed_parameter_is_reported_with_both_values(project: Project) -> None:
    project.set_params(models__a__train__value=5)
    assert stale_reasons(project) == {
        "train@a": ("param models.a.train.value 1 -> 5",),
        "report": ("after train@a",),
        "publish": ("always runs", "after report"),
    }


def test_changed_code_inputs_outputs_and_commands_are_reported(project: Project) -> None:
    (project.root / "artifacts" / "sources" / "code" / "step.json").write_text('"other code"')
    (project.root / "artifacts" / "results" / "b.json").unlink()
    text = (project.root / "dvc.yaml").read_text()
    (project.root / "dvc.yaml").write_text(text.replace("stages.report", "stages.report  --again"))
    reasons = stale_reasons(project)
    assert reasons["make@a"] == ("input artifacts/sources/code/step.json modified",)
    assert "output artifacts/results/b.json deleted" in reasons["train@b"]
    assert "command changed" in reasons["report"]
    assert "input artifacts/results modified" in reasons["report"]


def test_plan_prints_the_same_as_text_and_as_json(project: Project) -> None:
    import json

    project.set_params(models__a__train__value=5)
    text = project.run("plan").stdout
    assert "run   train@a param models.a.train.value 1 -> 5" in text
    assert "fresh train@b\n" in text
    entries = {entry["name"]: entry for entry in json.loads(project.run("plan", "--json").stdout)}
    assert entries["train@a"]["runs"] and not entries["train@b"]["runs"]
    assert project.stages_run() == []


def test_meta_with_an_unknown_pool_is_refused(new_project: Project) -> None:
    text = (new_project.root / "dvc.yaml").read_text()
    (new_project.root / "dvc.yaml").write_text(text.replace("pool: gpu", "pool: tpu"))
    with pytest.raises(GraphError, match="train@a: meta is"):
        read_graph(new_project.root)


# What runs


def test_a_second_run_starts_sources_and_publish_only(project: Project) -> None:
    result = project.run(*LOCAL)
    assert project.stages_run() == ["publish", "sources"]
    assert result.returncode == 0 and "THE TABLE" in result.stdout
    logs_dir = project.root / ".lineage" / "logs"
    train_time = (logs_dir / "train-a.log").stat().st_mtime
    assert train_time <= (logs_dir / "sources.log").stat().st_mtime
    assert project.git("status", "--short") == "?? dvc.lock"


def test_edited_files_and_parameters_run_only_what_depends_on_them(project: Project) -> None:
    """Stages get the number of threads, the run's identity and no telemetry.

    One fork server starts all of them except the first, which may begin before the server is
    there. Failed results end the run with exit code 3.
    """
    (project.root / "user" / "text.txt").write_text("another text")
    project.set_params(models__a__train__status="failed", threads=3)
    result = project.run(*LOCAL)
    assert result.returncode == 3
    assert "1 rows of reports/results.csv have status failed" in result.stderr
    entries = project.read_trace()
    stages_run = sorted(str(entry["stage"]) for entry in entries)
    assert stages_run == ["make@a", "make@b", "publish", "report", "sources", "train@a"], (
        "the output of make@b did not change"
    )
    assert {entry["threads"] for entry in entries} == {"3"}
    assert {entry["index"] for entry in entries} == {"true"}
    ids = {entry["pipeline"] for entry in entries if entry["stage"] != "sources"}
    assert len(ids) == 1, "sources makes what the id is a digest of"
    if sys.platform == "linux":  # only Linux forks
        assert len({entry["parent"] for entry in entries[1:]}) == 1
        assert len({entry["pid"] for entry in entries[1:]}) == 5


def test_two_stages_can_run_at_once_and_both_results_are_kept(project: Project) -> None:
    project.set_params(models__a__make={"meet": "b"}, models__b__make={"meet": "a"})
    result = project.run(*LOCAL)
    assert result.returncode == 0, result.stdout + result.stderr
    assert stale_reasons(project) == {}


# How runs end


def test_bad_input_exits_with_2_and_one_message_before_anything_runs(project: Project) -> None:
    (project.root / "user" / "text.txt").unlink()
    result = project.run(*LOCAL)
    assert result.returncode == 2
    assert_one_message(result, "sources:", "no such file; create it")
    assert project.stages_run() == ["sources"]


def test_params_without_a_graph_are_explained(project: Project) -> None:
    (project.root / "params.yaml").write_text("seed: 1\n")
    result = project.run(*LOCAL)
    assert result.returncode == 2
    assert_one_message(result, "the key 'grid' is missing")


def test_exit_code_2_of_a_stage_becomes_that_of_the_run_and_others_continue(
    project: Project,
) -> None:
    project.set_params(models__a__make__exit=2, models__b__make__value=4)
    result = project.run(*LOCAL)
    assert result.returncode == 2
    assert "make@a: params.yaml: models: something is wrong; mend it" in result.stderr
    assert "train@a: not run, since make@a did not end well" in result.stderr
    assert "ran     make@b" in result.stdout


def test_a_failure_exits_with_1_and_names_the_log(project: Project) -> None:
    project.set_params(models__a__make__exit=7)
    result = project.run(*LOCAL)
    assert result.returncode == 1
    assert "make@a: failed with exit code 7" in result.stderr
    assert ".lineage/logs/make-a.log" in result.stderr


def test_number_keys_and_string_keys_are_reported_separately() -> None:
    """An example is `names: {0: neg}` that becomes `names: {"0": neg}`."""
    assert [*plan._differences("names", {0: "neg", 1: "pos"}, {"0": "neg", 1: "pos"})] == [
        "param names.0 neg -> None",
        "param names.0 None -> neg",
    ]


def test_a_stage_killed_by_a_signal_is_reported_and_can_run_again(project: Project) -> None:
    project.set_params(models__a__make__once=True)
    result = run_stage("make@a", context=StageContext(project.root), timeout_seconds=30)
    assert result.was_killed and "killed by signal 9 (out of memory?)" in result.message
    assert "--jobs 1" in result.message and "python -m" not in result.message
    for expected in ("ran", "fresh"):
        result = run_stage("make@a", context=StageContext(project.root), timeout_seconds=30)
        assert result.outcome == expected


def test_a_killed_server_of_processes_is_reported_as_such_and_leaves_no_stage(
    project: Project,
) -> None:
    project.set_params(models__a__make={"seconds": 60, "child": 60})
    with ThreadPoolExecutor() as pool:
        context = StageContext(project.root)
        ended = pool.submit(run_stage, "make@a", context=context, timeout_seconds=50)
        wait_until(lambda: has_sleeping_child(project))
        (server,) = [
            process
            for process in psutil.Process().children()
            if "multiprocessing.forkserver" in " ".join(process.cmdline())
        ]
        server.kill()
        result = ended.result(timeout=30)
    assert result.was_killed
    assert "make@a: killed by signal 9 (out of memory?)" in result.message
    assert project_processes(project) == []


@pytest.mark.parametrize("signal_number", [signal.SIGINT, signal.SIGTERM])
def test_a_stopped_run_leaves_no_process_and_its_stages_save_a_checkpoint(
    project: Project, signal_number: int
) -> None:
    """While it runs, no other run can begin in its folder."""
    project.set_params(models__a__make={"seconds": 60, "checkpoint": True, "child": 60})
    run = project.start(*LOCAL)
    wait_until(lambda: has_sleeping_child(project))
    if signal_number == signal.SIGTERM:
        other = project.run(*LOCAL)
        assert other.returncode == 2
        assert_one_message(other, "another run of this study is under way")
    time.sleep(0.5)
    run.send_signal(signal_number)
    output, _ = run.communicate(timeout=30)
    assert run.returncode == 1, output
    assert "Traceback" not in output and "stopped" in output
    assert project_processes(project) == []
    assert (project.root / ".lineage" / "checkpoint").read_text() == "saved"


def test_the_run_after_a_killed_one_waits_for_its_stages(project: Project) -> None:
    """The stages of a killed run end themselves, with time to save a checkpoint."""
    stage = {"seconds": 60, "checkpoint": True, "save_after": ".lineage/waits", "child": 60}
    project.set_params(models__a__make=stage)
    killed = project.start(*LOCAL)
    wait_until(lambda: has_sleeping_child(project))
    killed.kill()
    killed.wait()
    project.set_params(models__a__make={"value": 2})
    run = project.start(*LOCAL)
    assert "waiting for the stages of a run that was killed\n" in run.stdout
    assert not (project.root / ".lineage" / "checkpoint").exists()
    (project.root / ".lineage" / "waits").touch()
    output, _ = run.communicate(timeout=60)
    assert run.returncode == 0, output
    assert "waiting for the stages" not in output
    assert (project.root / ".lineage" / "checkpoint").read_text() == "saved"
    assert project_processes(project) == []
    killed.communicate()


def checks_parameters(process: psutil.Process) -> bool:
    """Return whether a process is the one in which a run checks params.yaml."""
    try:
        return "flows.parameters" in process.cmdline()
    except psutil.Error:  # it has just ended
        return False


def test_a_run_that_is_killed_while_parameters_are_checked_leaves_no_process(
    new_project: Project,
) -> None:
    run = new_project.start("run")
    wait_until(lambda: any(map(checks_parameters, psutil.Process(run.pid).children())), seconds=60)
    run.kill()
    run.communicate()
    wait_until(lambda: project_processes(new_project) == [], seconds=60)


def test_commands_that_start_or_end_servers_wait_for_each_other(new_project: Project) -> None:
    lock = new_project.root / ".lineage" / "servers" / "lock"
    lock.parent.mkdir(parents=True)
    with lock.open("w") as stream:
        fcntl.flock(stream, fcntl.LOCK_EX)
        down = new_project.start("down")
        assert down.stdout.readline() == (
            "waiting for another `lineage up`, `ui` or `down` of this study\n"
        )
        assert down.poll() is None
    output, _ = down.communicate(timeout=30)
    assert down.returncode == 0 and "have ended" in output


def test_a_stage_past_its_timeout_is_ended_with_its_children(project: Project) -> None:
    project.set_params(models__a__make={"seconds": 60, "child": 60})
    result = run_stage("make@a", context=StageContext(project.root), timeout_seconds=3)
    assert (result.outcome, result.exit_status) == ("failed", 1)
    assert "ran longer than 3 s" in result.message
    assert project_processes(project) == []


def test_a_stage_that_ignores_sigterm_is_killed() -> None:
    code = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('up', flush=True); time.sleep(60)"
    child = subprocess.Popen(
        [sys.executable, "-c", code], start_new_session=True, stdout=subprocess.PIPE
    )
    child.stdout.readline()
    terminate_process_group(child.pid, grace_seconds=0.3)
    assert child.wait(5) == -signal.SIGKILL
    child.stdout.close()


def test_status_tells_a_stopped_run_from_one_that_has_ended(project: Project) -> None:
    assert "has ended" in project.run("status").stdout
    project.set_params(models__a__make={"seconds": 60})
    run = project.start(*LOCAL)
    wait_until(lambda: "running: make@a" in project.run("status").stdout)
    run.send_signal(signal.SIGINT)
    output, _ = run.communicate(timeout=60)
    assert "stopping; the running stages save a checkpoint first" in output
    printed = project.run("status").stdout
    assert "was stopped; `lineage run` goes on with it" in printed
    assert "1 stopped" in printed and "running" not in printed


def test_the_last_line_of_a_stage_may_be_one_that_a_bar_has_written_over(tmp_path: Path) -> None:
    path = tmp_path / "stage.log"
    assert view.read_last_line(path) == ""
    path.write_text("")
    assert view.read_last_line(path) == ""
    path.write_text("begins\n10 % done\r20 % done\n")
    assert view.read_last_line(path) == "20 % done"
