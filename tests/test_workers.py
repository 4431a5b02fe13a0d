"""Stages run on a real Prefect server and real workers, each a process on a free local port."""

import json
import signal
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import pytest

from lineage.config.records import read_yaml
from tests.toy_project import (
    Project,
    free_port,
    make_project,
    project_processes,
    read_dvc_lock,
    wait_until,
)


@dataclass(frozen=True)
class Site:
    """A project whose servers are running."""

    project: Project
    port: int

    def ask(self, path: str, body: dict[str, Any] | None = None) -> Any:
        """Return the answer of Prefect's API."""
        request = urllib.request.Request(
            f"http://127.0.0.1:{self.port}/api/{path}",
            data=json.dumps(body or {}).encode(),
            headers={"Content-Type": "application/json"},
        )
        with urllib.request.urlopen(request, timeout=20) as answer:
            return json.load(answer)

    def flow_runs(self) -> list[dict[str, Any]]:
        return self.ask("flow_runs/filter")

    def worker(self, pool: str) -> int:
        """Return the process id of a pool's worker."""
        return int(
            json.loads(
                (self.project.root / ".lineage" / "servers" / f"worker-{pool}.json").read_text()
            )["pid"]
        )


def start_servers(project: Project) -> Site:
    """Start the servers and workers of a project."""
    port = free_port()
    completed = project.run("up", module="flows.servers", LINEAGE_PREFECT_PORT=str(port))
    assert completed.returncode == 0, completed.stdout + completed.stderr
    return Site(project, port)


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
        completed = project.run("down", module="flows.servers")
    assert completed.returncode == 0, completed.stdout + completed.stderr
    assert project_processes(project) == [], "make down must leave no process"
    assert not list((project.root / ".lineage" / "servers").glob("*.json"))


def test_stages_run_in_clones_on_workers_and_return_outputs_through_the_remote(
    site: Site, tmp_path: Path
) -> None:
    project = site.project
    completed = project.run("--profile", "small", "--pools")
    assert completed.returncode == 0, completed.stdout + completed.stderr
    assert "THE TABLE" in completed.stdout
    trace_by_stage = {str(entry["stage"]): entry for entry in project.read_trace()}
    root = project.root.resolve()
    workers_dir = root / ".lineage" / "workers"
    assert {name: entry["cwd"] for name, entry in trace_by_stage.items()} == {
        "sources": str(root / ".runs" / "small"),
        "make@a": str(workers_dir / "cpu" / "0" / "clone"),
        "train@a": str(workers_dir / "gpu" / "0" / "clone"),
        "report": str(root / ".runs" / "small"),
        "publish": str(root / ".runs" / "small"),
    }, "each stage ran once, in the pool of its meta"
    for stage, pool in (("make@a", "cpu"), ("train@a", "gpu")):
        assert not trace_by_stage[stage]["user"], "a worker cannot see the user's data"
        assert (workers_dir / pool / "0" / "clone" / ".dvc" / "cache").is_dir(), (
            "each worker has its own cache"
        )
        metadata = json.loads(
            (
                project.root / ".runs" / "small" / ".lineage" / "metadata" / f"{stage}.json"
            ).read_text()
        )
        assert (
            metadata["pid"] == trace_by_stage[stage]["pid"]
            and metadata["cwd"] == trace_by_stage[stage]["cwd"]
        ), "its metadata was sent back"
    assert len({entry["pid"] for entry in trace_by_stage.values()}) == 5
    runs = {run["name"]: run for run in site.flow_runs() if not run["auto_scheduled"]}
    assert runs["make@a"]["work_pool_name"] == "cpu" and runs["train@a"]["work_pool_name"] == "gpu"
    assert {run["state_type"] for run in runs.values()} == {"COMPLETED"}
    tasks = {
        run["name"]
        for run in site.ask(
            "task_runs/filter", {"flow_runs": {"id": {"any_": [runs["pipeline small"]["id"]]}}}
        )
    }
    assert {"sources", "make@a", "train@a", "report", "publish"} <= tasks, "one task per stage"
    # A local run from an empty cache gives the same result.
    local_project = make_project(tmp_path)
    assert local_project.run("--local", "--profile", "small").returncode == 0
    assert read_dvc_lock(local_project.root / ".runs" / "small") == read_dvc_lock(
        project.root / ".runs" / "small"
    )
    assert read_yaml(local_project.root / ".runs" / "small" / "params.yaml") == read_yaml(
        project.root / ".runs" / "small" / "params.yaml"
    )
    results = Path(".runs") / "small" / "reports" / "results.csv"
    assert (local_project.root / results).read_bytes() == (project.root / results).read_bytes()


@pytest.mark.slow
def test_an_input_error_on_a_worker_is_not_retried_and_exits_with_2(site: Site) -> None:
    site.project.set_params(
        file="profiles/bad.yaml",
        grid={"models": ["a"]},
        models={"a": {"make": {"value": 3, "exit": 2}}},
    )
    site.project.commit()
    site.project.read_trace()
    completed = site.project.run("--profile", "bad", "--pools")
    assert completed.returncode == 2
    assert "make@a: params.yaml: models: something is wrong; mend it" in completed.stderr
    assert "Traceback" not in completed.stdout + completed.stderr
    assert site.project.stages_run() == ["make@a", "sources"]


def test_pools_without_a_server_are_refused(tmp_path: Path) -> None:
    completed = make_project(tmp_path).run("--profile", "small", "--pools")
    assert completed.returncode == 2
    assert "make up" in completed.stderr


@pytest.mark.slow
def test_a_stale_git_lock_is_removed_and_a_broken_clone_is_reported(
    site: Site,
) -> None:
    site.project.set_params(
        file="profiles/left.yaml", grid={"models": ["a"]}, models={"a": {"make": {"value": 41}}}
    )
    site.project.commit()
    clone = site.project.root / ".lineage" / "workers" / "cpu" / "0" / "clone"
    if not clone.is_dir():
        assert site.project.run("--profile", "small", "--pools").returncode == 0
    (clone / ".git" / "index.lock").touch()
    completed = site.project.run("--profile", "left", "--pools")
    assert completed.returncode == 0, completed.stdout + completed.stderr
    site.project.set_params(
        file="profiles/left.yaml", grid={"models": ["a"]}, models={"a": {"make": {"value": 42}}}
    )
    site.project.commit()
    head = (clone / ".git" / "HEAD").read_text()
    (clone / ".git" / "HEAD").write_text("no head")
    completed = site.project.run("--profile", "left", "--pools")
    (clone / ".git" / "HEAD").write_text(head)
    assert completed.returncode == 1
    assert "make@a: on its worker: " in completed.stdout + completed.stderr
    assert "`git " in completed.stdout + completed.stderr


@pytest.mark.slow
def test_pending_and_running_runs_left_by_a_crash_are_marked_crashed(
    site: Site,
) -> None:
    deployment = next(one for one in site.ask("deployments/filter") if one["name"] == "nightly")
    runs = [
        site.ask(f"deployments/{deployment['id']}/create_flow_run", {"state": {"type": state}})[
            "id"
        ]
        for state in ("SCHEDULED", "SCHEDULED")
    ]
    for run, state in zip(runs, ("PENDING", "RUNNING"), strict=True):
        site.ask(f"flow_runs/{run}/set_state", {"state": {"type": state}, "force": True})
    command = [
        sys.executable,
        "-c",
        "from flows.servers import _watch_lost_runs; _watch_lost_runs(sweep=True)",
    ]
    environment = site.project.environment() | {
        "PREFECT_API_URL": f"http://127.0.0.1:{site.port}/api"
    }
    subprocess.run(command, cwd=site.project.root, env=environment, check=True, timeout=120)
    states = {run["id"]: run["state_type"] for run in site.flow_runs()}
    assert [states[run] for run in runs] == ["CRASHED", "CRASHED"]


@pytest.mark.slow
def test_a_killed_stage_is_retried_on_its_worker(site: Site) -> None:
    site.project.set_params(
        file="profiles/once.yaml",
        grid={"models": ["a"]},
        models={"a": {"make": {"value": 4, "once": True}}},
    )
    site.project.commit()
    site.project.read_trace()
    completed = site.project.run("--profile", "once", "--pools")
    assert completed.returncode == 0, completed.stdout + completed.stderr
    assert site.project.stages_run().count("make@a") == 2


@pytest.mark.slow
def test_a_stage_whose_worker_dies_is_marked_crashed_and_retried(site: Site) -> None:
    project = site.project
    project.set_params(
        file="profiles/lost.yaml",
        grid={"models": ["a"]},
        models={"a": {"make": {"value": 5, "seconds": 30}}},
    )
    project.commit()
    project.read_trace()
    pipeline = project.start("--profile", "lost", "--pools")
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
def test_stopping_the_pipeline_stops_its_stages_on_workers(site: Site) -> None:
    project = site.project
    project.set_params(
        file="profiles/long.yaml",
        grid={"models": ["a"]},
        models={"a": {"make": {"value": 6, "seconds": 120}}},
    )
    project.commit()
    project.read_trace()
    pipeline = project.start("--profile", "long", "--pools")
    pid = wait_for_stage(project, "make@a")
    pipeline.terminate()
    output, _ = pipeline.communicate(timeout=60)
    assert pipeline.returncode == 1, output
    wait_until(lambda: not psutil.pid_exists(pid), seconds=60)


@pytest.mark.slow
def test_the_nightly_schedule_fires_and_an_overlapping_run_is_cancelled(
    tmp_path: Path,
) -> None:
    project = make_project(tmp_path)
    text = (project.root / "prefect.yaml").read_text()
    assert 'cron: "0 2 * * *"' in text
    (project.root / "prefect.yaml").write_text(
        text.replace('cron: "0 2 * * *"', 'cron: "* * * * *"')
    )
    project.set_params(
        file="profiles/demo.yaml", grid={"models": ["a"]}, models__a__make__seconds=55
    )
    project.commit()
    before = project.git("rev-parse", "main")
    site = start_servers(project)
    try:
        wait_until(
            lambda: any(run["state_type"] == "CANCELLED" for run in site.flow_runs()), seconds=240
        )
        assert "RUNNING" in {
            run["state_type"] for run in site.flow_runs() if run["name"] == "pipeline demo"
        }, "the first run continues"
        wait_until(
            lambda: any(
                run["state_type"] == "COMPLETED" and run["name"] == "pipeline demo"
                for run in site.flow_runs()
            ),
            seconds=240,
        )
        assert all(
            "auto-scheduled" in run["tags"]
            for run in site.flow_runs()
            if run["name"].startswith("pipeline") or run["auto_scheduled"]
        )
        assert project.git("rev-parse", "main") == before, "a scheduled run must not commit to main"
        assert "results of" in project.git("log", "-1", "--format=%s", "runs/demo")
    finally:
        project.run("down", module="flows.servers")
    assert project_processes(project) == []


@pytest.mark.slow
def test_a_flow_runs_without_a_server(tmp_path: Path) -> None:
    project = make_project(tmp_path)
    completed = project.run("--jobs", "2")
    assert completed.returncode == 0, completed.stdout + completed.stderr
    assert (project.root / ".lineage" / "prefect" / "prefect.db").is_file(), (
        "its history is in the project"
    )
    assert project_processes(project) == [], "its temporary server must have ended"


FAILING_SUBMIT_SCRIPT = """
from prefect import flow
from flows.execute import StageResult
from flows.flow import as_prefect_tasks
from flows.plan import StageNode
from lineage.errors import InputError

def run(node):
    if node.name == "b":
        raise InputError("no deployment 'gpu'; make up")
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
        "b|failed|2|b: no deployment 'gpu'; make up",
        "c|failed|1|c: the index is locked",
    ], completed.stderr
