"""A run without `lineage up` has a Prefect server of its own, which ends with it."""

import contextlib
import os
import signal
import subprocess
import sys
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import psutil
import pytest

from tests.helpers.toy_project import (
    Project,
    make_project,
    project_processes,
    serve_in_thread,
    wait_for_stage,
    wait_until,
)
from tests.helpers.toy_servers import set_models


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
    assert "stopped; a run goes on" in output and "Traceback" not in output
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
        assert run.returncode == 1 and "stopped; a run goes on" in output
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
