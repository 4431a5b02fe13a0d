"""Stages run on a real Prefect server and real workers, each a process on a free local port."""

import contextlib
import json
import os
import re
import shutil
import signal
import stat
import subprocess
import sys
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import psutil
import pytest

from flows.addresses import read_prefect_secret
from tests.helpers.toy_project import (
    Project,
    free_port,
    make_project,
    prefect_access,
    project_processes,
    serve_in_thread,
    wait_until,
)
from tests.helpers.toy_servers import Site, set_models, start_servers


def wait_for_stage(project: Project, name: str) -> int:
    """Wait until a stage has started, and return its process id."""
    wait_until(lambda: project.trace.is_file() and name in project.trace.read_text(), seconds=60)
    record = next(record for record in project.read_trace() if record["stage"] == name)
    return int(record["pid"])  # type: ignore[call-overload]


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    """Share servers between the tests of this file, and check that stopping leaves nothing."""
    project = make_project(tmp_path_factory.mktemp("site"))
    try:
        yield start_servers(project)
    finally:
        completed = project.run("down")
    assert completed.returncode == 0, completed.stdout + completed.stderr
    assert project_processes(project) == [], "make down must leave no process"
    assert not list((project.root / ".lineage" / "servers").glob("*.json"))


@pytest.fixture(scope="module")
def completed(site: Site) -> "subprocess.CompletedProcess[str]":
    """A run on workers that has ended well."""
    set_models(site.project, value=1)
    completed = site.project.run("run", "--workers")
    assert completed.returncode == 0, completed.stdout + completed.stderr
    return completed


def test_stages_run_on_workers_and_return_outputs_through_the_remote(
    site: Site, completed: "subprocess.CompletedProcess[str]"
) -> None:
    project = site.project
    assert "THE TABLE" in completed.stdout
    trace_by_stage = {str(entry["stage"]): entry for entry in project.read_trace()}
    root = project.root.resolve()
    workers_dir = root / ".lineage" / "workers"
    assert {name: entry["cwd"] for name, entry in trace_by_stage.items()} == {
        "sources": str(root),
        "make@a": str(workers_dir / "cpu" / "0" / "study"),
        "train@a": str(workers_dir / "gpu" / "0" / "study"),
        "report": str(root),
        "publish": str(root),
    }, "each stage ran once, in the pool of its meta"
    for stage, pool in (("make@a", "cpu"), ("train@a", "gpu")):
        assert not trace_by_stage[stage]["user"], "a worker cannot see the user's data"
        assert (workers_dir / pool / "0" / "study" / ".dvc" / "cache").is_dir(), (
            "each worker has its own cache"
        )
        metadata = json.loads((root / ".lineage" / "metadata" / f"{stage}.json").read_text())
        assert (
            metadata["pid"] == trace_by_stage[stage]["pid"]
            and metadata["cwd"] == trace_by_stage[stage]["cwd"]
        ), "its metadata was sent back"
    assert len({entry["pid"] for entry in trace_by_stage.values()}) == 5
    assert len({entry["pipeline"] for entry in trace_by_stage.values()} - {None}) == 2, (
        "all stages after sources have the same id"
    )
    runs = {run["name"]: run for run in site.flow_runs() if not run["auto_scheduled"]}
    assert runs["make@a"]["work_pool_name"] == "cpu" and runs["train@a"]["work_pool_name"] == "gpu"
    assert {run["state_type"] for run in runs.values()} == {"COMPLETED"}
    (study_run,) = [run for name, run in runs.items() if name.startswith("project, 20")]
    tasks = site.ask("task_runs/filter", {"flow_runs": {"id": {"any_": [study_run["id"]]}}})
    assert {"sources", "make@a", "train@a", "report", "publish"} <= {run["name"] for run in tasks}


def test_the_secret_is_readable_by_its_user_only_and_lies_in_no_log(
    site: Site, completed: "subprocess.CompletedProcess[str]"
) -> None:
    root = site.project.root
    secret = read_prefect_secret(root)
    path = root / ".lineage" / "prefect" / "secret"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert path.read_text().strip() == secret
    token = secret.partition(":")[2]
    assert token not in completed.stdout + completed.stderr
    found = [
        str(file.relative_to(root))
        for file in root.rglob("*")
        if file.is_file() and token.encode() in file.read_bytes()
    ]
    assert found == [".lineage/prefect/secret"]


@pytest.mark.slow
def test_a_worker_with_other_code_refuses_its_stage(site: Site) -> None:
    project = site.project
    set_models(project, value=2)
    study = Project(Path(shutil.copytree(project.root, project.root.parent / "other")))
    code = project.root / "lineage" / "errors.py"  # the workers run the code of this folder
    text = code.read_text()
    try:
        code.write_text(text + "\nCHANGED = True\n")
        access = prefect_access(project.root, site.port)
        completed = study.run("run", "--workers", **access)
    finally:
        code.write_text(text)
        shutil.rmtree(study.root)
    assert completed.returncode == 2, completed.stdout + completed.stderr
    assert "has other code than the one that runs the study" in completed.stderr


@pytest.mark.slow
def test_an_input_error_on_a_worker_is_not_retried_and_exits_with_2(site: Site) -> None:
    set_models(site.project, value=3, exit=2)
    completed = site.project.run("run", "--workers")
    assert completed.returncode == 2
    assert "make@a: params.yaml: models: something is wrong; mend it" in completed.stderr
    assert "Traceback" not in completed.stdout + completed.stderr
    assert site.project.stages_run() == ["make@a", "sources"]


def test_workers_without_a_server_are_refused(tmp_path: Path) -> None:
    completed = make_project(tmp_path).run("run", "--workers")
    assert completed.returncode == 2
    assert "lineage up" in completed.stderr


@pytest.mark.slow
def test_a_scratch_study_that_a_killed_worker_left_behind_is_cleaned(site: Site) -> None:
    scratch = site.project.root / ".lineage" / "workers" / "cpu" / "0" / "study"
    set_models(site.project, value=41)
    assert site.project.run("run", "--workers").returncode == 0
    (scratch / "artifacts" / "made" / "a").write_text("half of a result")
    (scratch / "dvc.lock").write_text("half of a")
    (scratch / ".dvc" / "config").unlink()
    set_models(site.project, value=42)
    completed = site.project.run("run", "--workers")
    assert completed.returncode == 0, completed.stdout + completed.stderr
    # Of train@a only the input has changed.
    assert {"make@a", "train@a"} <= set(site.project.stages_run())
    assert "make@a 42" in (site.project.root / "artifacts" / "made" / "a").read_text()


@pytest.mark.slow
def test_pending_and_running_runs_left_by_a_crash_are_marked_crashed(site: Site) -> None:
    deployment = next(one for one in site.ask("deployments/filter") if one["name"] == "cpu")
    runs = [
        site.ask(
            f"deployments/{deployment['id']}/create_flow_run",
            {"state": {"type": "SCHEDULED"}, "enforce_parameter_schema": False},
        )["id"]
        for _ in range(2)
    ]
    for run, state in zip(runs, ("PENDING", "RUNNING"), strict=True):
        site.ask(f"flow_runs/{run}/set_state", {"state": {"type": state}, "force": True})
    command = [
        sys.executable,
        "-c",
        "from flows.deployments import watch_lost_runs; watch_lost_runs(sweep=True)",
    ]
    environment = site.project.environment(**prefect_access(site.project.root, site.port))
    subprocess.run(command, cwd=site.project.root, env=environment, check=True, timeout=120)
    states = {run["id"]: run["state_type"] for run in site.flow_runs()}
    assert [states[run] for run in runs] == ["CRASHED", "CRASHED"]


@pytest.mark.slow
def test_a_killed_stage_is_retried_on_its_worker(site: Site) -> None:
    set_models(site.project, value=4, once=True)
    completed = site.project.run("run", "--workers")
    assert completed.returncode == 0, completed.stdout + completed.stderr
    assert site.project.stages_run().count("make@a") == 2
    assert completed.stderr == (
        "make@a: killed by signal 9 (out of memory?); a worker tries it again (2 of 3)\n"
    )


@pytest.mark.slow
def test_a_stage_whose_worker_dies_is_marked_crashed_and_retried(site: Site) -> None:
    project = site.project
    set_models(project, value=5, seconds=30)
    pipeline = project.start("run", "--workers")
    stage = psutil.Process(wait_for_stage(project, "make@a"))
    engine_processes = [
        process
        for process in psutil.Process(site.worker("cpu")).children(recursive=True)
        if process.pid != stage.pid
    ]
    for process in [*engine_processes, stage]:
        process.send_signal(signal.SIGKILL)
    output, _ = pipeline.communicate(timeout=300)
    assert pipeline.returncode == 0, output
    assert "CRASHED" in {run["state_type"] for run in site.flow_runs() if run["name"] == "make@a"}
    assert project.stages_run().count("make@a") == 1, (
        "the first attempt was read from the trace before"
    )


@pytest.mark.slow
def test_a_stage_saves_a_checkpoint_before_it_is_retried_if_its_flow_run_is_killed(
    site: Site,
) -> None:
    """A guard keeps the scratch study locked until the stage has ended."""
    project = site.project
    set_models(project, value=7, seconds=25, checkpoint=True, save_seconds=5)
    pipeline = project.start("run", "--workers")
    stage = psutil.Process(wait_for_stage(project, "make@a"))
    (flow_run,) = psutil.Process(site.worker("cpu")).children()
    flow_run.kill()
    output, _ = pipeline.communicate(timeout=240)
    assert pipeline.returncode == 0, output
    assert not stage.is_running()
    scratch = project.root / ".lineage" / "workers" / "cpu"
    assert [path.name for path in scratch.iterdir()] == ["0"], "it resumes in the same folder"
    assert (scratch / "0" / "study" / ".lineage" / "checkpoint").is_file()


@pytest.mark.slow
def test_a_stage_whose_worker_is_killed_is_run_by_the_next_worker(site: Site) -> None:
    project = site.project
    set_models(project, value=8, seconds=25, checkpoint=True)
    pipeline = project.start("run", "--workers")
    stage = psutil.Process(wait_for_stage(project, "make@a"))
    site.kill("worker-cpu")
    wait_until(lambda: not stage.is_running(), seconds=30)
    site.start_again()
    output, _ = pipeline.communicate(timeout=400)
    assert pipeline.returncode == 0, output
    assert "a worker tries it again (2 of 3)" in output


@pytest.mark.slow
def test_a_stage_whose_worker_is_killed_while_it_starts_it_is_requested_again(site: Site) -> None:
    """Prefect keeps its run pending for good: it never had a sign of life to miss."""
    project = site.project
    set_models(project, value=11)
    # The worker may have told Prefect of the process before it is killed: then a run waits 15 min.
    settings = project.root / "runtime.yaml"
    settings.write_text("pool_wait_seconds: {cpu: 120}\n")
    worker = psutil.Process(site.worker("cpu"))
    pipeline = project.start("run", "--workers")
    wait_until(lambda: bool(worker.children()), seconds=60)
    site.kill("worker-cpu")
    site.start_again()
    output, _ = pipeline.communicate(timeout=300)
    settings.unlink()
    assert pipeline.returncode == 0, output
    waited = r"make@a: its worker has not begun it for 1[2-4]\d s; a worker tries it again"
    assert re.search(waited, output), output


@pytest.mark.slow
@pytest.mark.parametrize("returns", [True, False])
def test_a_run_on_workers_goes_on_if_its_server_dies(site: Site, returns: bool) -> None:
    project = site.project
    set_models(project, value=9 + returns, seconds=20)
    pipeline = project.start("run", "--workers")
    wait_for_stage(project, "make@a")
    site.kill("prefect")
    if returns:
        site.start_again()
    output, _ = pipeline.communicate(timeout=240)
    assert pipeline.returncode == 0, output
    assert "THE TABLE" in output and "Traceback" not in output
    assert "make@a" not in project.stages_run(), "the worker finished it, and nobody ran it again"
    assert ("the stages that are left run here" in output) is not returns
    assert ("Prefect could not be informed" in output) is not returns
    if not returns:
        site.start_again()
    (run,) = [run for run in site.flow_runs() if run["id"] == latest_study_run(site)]
    assert (run["state_type"] == "COMPLETED") is returns


def latest_study_run(site: Site) -> str:
    runs = [run for run in site.flow_runs() if run["name"].startswith("project, 20")]
    return str(max(runs, key=lambda run: run["created"])["id"])


@pytest.mark.slow
def test_stopping_the_pipeline_stops_its_stages_on_workers(site: Site) -> None:
    project = site.project
    set_models(project, value=6, seconds=120)
    pipeline = project.start("run", "--workers")
    pid = wait_for_stage(project, "make@a")
    pipeline.terminate()
    output, _ = pipeline.communicate(timeout=60)
    assert pipeline.returncode == 1, output
    wait_until(lambda: not psutil.pid_exists(pid), seconds=60)


@pytest.mark.slow
def test_a_schedule_fires_and_an_overlapping_run_is_cancelled(tmp_path: Path) -> None:
    """The first run takes longer than a minute, and the run after it has nothing to do."""
    project = make_project(tmp_path)
    set_models(project, seconds=70)
    graph = project.root / "dvc.yaml"
    graph.write_text(graph.read_text().replace("timeout_s: 60", "timeout_s: 120"))
    refused = project.run("schedule", "--cron", "* * * * *")
    assert refused.returncode == 2
    assert "run `lineage up` first" in refused.stderr
    site = start_servers(project)

    def states() -> list[str]:
        return [run["state_type"] for run in site.flow_runs() if run["auto_scheduled"]]

    try:
        bad = project.run("schedule", "--cron", "each night")
        assert bad.returncode == 2 and "five fields" in bad.stderr
        assert project.run("schedule", "--cron", "* * * * *").returncode == 0
        wait_until(lambda: "CANCELLED" in states(), seconds=240)
        assert "RUNNING" in states(), "the first run continues"
        wait_until(lambda: states().count("COMPLETED") >= 2, seconds=240)
        names = project.stages_run()
        assert names.count("make@a") == 1 and names.count("publish") >= 2, (
            "the second run finds nothing to do"
        )
        assert project.run("schedule", "--off").returncode == 0
        wait_until(lambda: "SCHEDULED" not in states(), seconds=30)
    finally:
        project.run("down")
    assert project_processes(project) == []


@pytest.mark.slow
def test_two_starts_at_once_leave_one_server_and_one_worker_for_each_pool(tmp_path: Path) -> None:
    project = make_project(tmp_path)
    port = str(free_port())
    try:
        starts = [project.start("up", LINEAGE_PREFECT_PORT=port) for _ in range(2)]
        outputs = [start.communicate(timeout=200)[0] for start in starts]
        assert [start.returncode for start in starts] == [0, 0], outputs
        commands = [" ".join(process.cmdline()) for process in project_processes(project)]
        assert sum("flows.prefect_server" in command for command in commands) == 1
        assert sum("prefect worker start" in command for command in commands) == 3
        for name in ("prefect", "worker-cpu", "worker-gpu", "worker-orchestrator"):
            assert psutil.pid_exists(Site(project, int(port)).server(name))
    finally:
        project.run("down")
    assert project_processes(project) == []


@pytest.mark.slow
@pytest.mark.parametrize("fault", ["kill", "suspend"])
@pytest.mark.parametrize("exit_status", [0, 1])
def test_a_run_whose_server_dies_or_hangs_ends_soon_with_its_own_exit_code(
    exit_status: int, fault: str, tmp_path: Path
) -> None:
    project = make_project(tmp_path)
    set_models(project, seconds=5, exit=exit_status)
    run = project.start("run")
    wait_for_stage(project, "make@a")
    (server,) = temporary_servers(project)
    getattr(server, fault)()
    lines = []
    last_stage_ended = 0.0
    for line in run.stdout:
        lines.append(line)
        if line.startswith("stages: "):
            last_stage_ended = time.monotonic()
    assert run.wait() == exit_status, lines
    assert time.monotonic() - last_stage_ended < 12, "10 s, and the end of its processes"
    assert sum("Prefect could not be informed how this run ended" in line for line in lines) == 1
    assert not [line for line in lines if "Traceback" in line or "Error logging" in line]
    assert lines[0].startswith("Prefect: http://127.0.0.1:")
    assert lines[0].endswith(", for this run only\n")
    if fault == "suspend":
        server.kill()
    wait_until(lambda: project_processes(project) == [], seconds=10)


class _BrokenPrefect(BaseHTTPRequestHandler):
    """A server that is up, and closes the connection at every other question."""

    def do_GET(self) -> None:
        if self.path == "/api/health":
            self.send_response(200)
            self.end_headers()
            self.wfile.write(b"true")

    def do_POST(self) -> None:
        pass

    def log_message(self, *_: object) -> None:
        pass


def test_a_server_that_fails_before_a_run_begins_is_named_in_one_sentence(tmp_path: Path) -> None:
    project = make_project(tmp_path)
    server = ThreadingHTTPServer(("127.0.0.1", 0), _BrokenPrefect)
    address = f"http://127.0.0.1:{server.server_port}/api"
    with serve_in_thread(server):
        completed = project.run("run", PREFECT_API_URL=address, PREFECT_CLIENT_MAX_RETRIES="0")
    assert completed.returncode == 2, completed.stdout + completed.stderr
    assert (
        "does not work (RuntimeError: Failed to reach API" in completed.stderr
        and "--no-prefect" in completed.stderr
    )
    assert "Traceback" not in completed.stderr and project.read_trace() == []


@pytest.mark.slow
def test_a_run_whose_server_has_died_can_be_stopped(tmp_path: Path) -> None:
    project = make_project(tmp_path)
    set_models(project, seconds=60)
    run = project.start("run")
    wait_for_stage(project, "make@a")
    for server in temporary_servers(project):
        server.kill()
    run.send_signal(signal.SIGINT)
    output, _ = run.communicate(timeout=60)
    assert run.returncode == 1
    assert "stopped; the next run goes on" in output and "Traceback" not in output
    assert project_processes(project) == []


@pytest.mark.slow
@pytest.mark.parametrize("signal_number", [signal.SIGINT, signal.SIGKILL])
def test_the_server_of_a_run_ends_with_it(signal_number: int, tmp_path: Path) -> None:
    """Ctrl-C in a terminal reaches all processes of the run's group; a kill reaches the run alone."""
    project = make_project(tmp_path)
    set_models(project, seconds=60, checkpoint=True)
    run = project.start("run", own_session=True)
    wait_for_stage(project, "make@a")
    begun = time.monotonic()
    if signal_number == signal.SIGINT:
        os.killpg(run.pid, signal_number)
        output, _ = run.communicate(timeout=30)
        assert run.returncode == 1 and "stopped; the next run goes on" in output
        assert "Traceback" not in output
    else:
        run.kill()
        run.wait()
    wait_until(lambda: not temporary_servers(project), seconds=10)
    assert time.monotonic() - begun < 30
    wait_until(lambda: not project_processes(project), seconds=10)


def temporary_servers(project: Project) -> list[psutil.Process]:
    found = []
    for process in project_processes(project):
        with contextlib.suppress(psutil.Error):  # it has just ended
            if "flows.prefect_server" in process.cmdline():
                found.append(process)
    return found


FAILING_SUBMIT_SCRIPT = """
from prefect import flow
from flows.execute import StageResult
from flows.flow import as_prefect_tasks
from flows.plan import StageNode
from lineage.errors import InputError

def run(node):
    if node.name == "b":
        raise InputError("no deployment 'gpu'; run it")
    if node.name == "c":
        raise OSError("the index is locked")
    return StageResult(node.name, "ran")

@flow
def three():
    through = as_prefect_tasks(run)
    for name in "abc":
        result = through(StageNode(name, "", (), "local", 60.0, False, 1))
        print("|".join([result.name, result.outcome, str(result.exit_status), result.message]), flush=True)

three()
"""


@pytest.mark.slow
def test_a_stage_that_cannot_be_submitted_fails_alone_with_a_reason(tmp_path: Path) -> None:
    project = make_project(tmp_path)
    command = [sys.executable, "-c", FAILING_SUBMIT_SCRIPT]
    # A database of its own, since another test's server may hold a lock on the shared one.
    environment = project.environment(
        PREFECT_HOME=str(tmp_path / "prefect"), PREFECT_SERVER_ANALYTICS_ENABLED="false"
    )
    completed = subprocess.run(
        command,
        cwd=project.root,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    result_lines = [line for line in completed.stdout.splitlines() if line.count("|") == 3]
    assert result_lines == [
        "a|ran|0|",
        "b|failed|2|b: no deployment 'gpu'; run it",
        "c|failed|1|c: the index is locked",
    ], completed.stderr
