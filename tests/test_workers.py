"""A real Prefect server and real workers, each in its own process on a free loopback port, with toy stages."""

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
from tests.toy_project import Project, below, free_port, lock, make_project, wait_until


@dataclass(frozen=True)
class Site:
    """A project whose servers are up."""

    project: Project
    port: int

    def ask(self, path: str, body: dict[str, Any] | None = None) -> Any:
        """The answer of Prefect's API."""
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
        """The process id of a pool's worker."""
        return int(
            json.loads(
                (self.project.root / ".lineage" / "servers" / f"worker-{pool}.json").read_text()
            )["pid"]
        )


def up(project: Project) -> Site:
    port = free_port()
    answer = project.run("up", module="flows.servers", LINEAGE_PREFECT_PORT=str(port))
    assert answer.returncode == 0, answer.stdout + answer.stderr
    return Site(project, port)


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    """Servers that all tests of this file share. At the end nothing may be left."""
    project = make_project(tmp_path_factory.mktemp("site"))
    try:
        yield up(project)
    finally:
        answer = project.run("down", module="flows.servers")
    assert answer.returncode == 0, answer.stdout + answer.stderr
    assert below(project) == [], "make down leaves no process"
    assert not list((project.root / ".lineage" / "servers").glob("*.json"))


def test_stages_run_on_workers_in_other_processes_and_clones_and_come_back_through_the_remote(
    site: Site, tmp_path: Path
) -> None:
    project = site.project
    answer = project.run("--profile", "small", "--pools")
    assert answer.returncode == 0, answer.stdout + answer.stderr
    assert "THE TABLE" in answer.stdout
    where = {str(entry["stage"]): entry for entry in project.traced()}
    root = project.root.resolve()
    home = root / ".lineage" / "workers"
    assert {name: entry["cwd"] for name, entry in where.items()} == {
        "sources": str(root / ".runs" / "small"),
        "make@a": str(home / "cpu" / "0" / "clone"),
        "train@a": str(home / "gpu" / "0" / "clone"),
        "report": str(root / ".runs" / "small"),
        "publish": str(root / ".runs" / "small"),
    }, "each stage ran once, where its meta says"
    for stage, pool in (("make@a", "cpu"), ("train@a", "gpu")):
        assert not where[stage]["user"], "a worker sees none of the user's data"
        assert (home / pool / "0" / "clone" / ".dvc" / "cache").is_dir(), "a cache of its own"
        side = json.loads(
            (
                project.root / ".runs" / "small" / ".lineage" / "metadata" / f"{stage}.json"
            ).read_text()
        )
        assert side["pid"] == where[stage]["pid"] and side["cwd"] == where[stage]["cwd"], (
            "its side file came back"
        )
    assert len({entry["pid"] for entry in where.values()}) == 5
    runs = {run["name"]: run for run in site.flow_runs() if not run["auto_scheduled"]}
    assert runs["make@a"]["work_pool_name"] == "cpu" and runs["train@a"]["work_pool_name"] == "gpu"
    assert {run["state_type"] for run in runs.values()} == {"COMPLETED"}
    tasks = {
        run["name"]
        for run in site.ask(
            "task_runs/filter", {"flow_runs": {"id": {"any_": [runs["pipeline small"]["id"]]}}}
        )
    }
    assert {"sources", "make@a", "train@a", "report", "publish"} <= tasks, "one task a stage"
    # the same from an empty cache without Prefect
    alone = make_project(tmp_path)
    assert alone.run("--local", "--profile", "small").returncode == 0
    assert lock(alone.root / ".runs" / "small") == lock(project.root / ".runs" / "small")
    assert read_yaml(alone.root / ".runs" / "small" / "params.yaml") == read_yaml(
        project.root / ".runs" / "small" / "params.yaml"
    )
    results = Path(".runs") / "small" / "reports" / "results.csv"
    assert (alone.root / results).read_bytes() == (project.root / results).read_bytes()


@pytest.mark.slow
def test_bad_input_on_a_worker_is_not_tried_again_and_ends_the_run_with_2(site: Site) -> None:
    site.project.set(
        file="profiles/bad.yaml",
        grid={"models": ["a"]},
        models={"a": {"make": {"value": 3, "exit": 2}}},
    )
    site.project.commit()
    site.project.traced()
    answer = site.project.run("--profile", "bad", "--pools")
    assert answer.returncode == 2
    assert "make@a: params.yaml: models: something is wrong; mend it" in answer.stderr
    assert "Traceback" not in answer.stdout + answer.stderr
    assert site.project.ran() == ["make@a", "sources"]


def test_pools_without_a_server_are_refused(tmp_path: Path) -> None:
    answer = make_project(tmp_path).run("--profile", "small", "--pools")
    assert answer.returncode == 2
    assert "make up" in answer.stderr


@pytest.mark.slow
def test_what_a_killed_git_left_is_taken_away_and_what_breaks_on_a_worker_is_told(
    site: Site,
) -> None:
    site.project.set(
        file="profiles/left.yaml", grid={"models": ["a"]}, models={"a": {"make": {"value": 41}}}
    )
    site.project.commit()
    clone = site.project.root / ".lineage" / "workers" / "cpu" / "0" / "clone"
    if not clone.is_dir():
        assert site.project.run("--profile", "small", "--pools").returncode == 0
    (clone / ".git" / "index.lock").touch()
    answer = site.project.run("--profile", "left", "--pools")
    assert answer.returncode == 0, answer.stdout + answer.stderr
    site.project.set(
        file="profiles/left.yaml", grid={"models": ["a"]}, models={"a": {"make": {"value": 42}}}
    )
    site.project.commit()
    head = (clone / ".git" / "HEAD").read_text()
    (clone / ".git" / "HEAD").write_text("no head")
    answer = site.project.run("--profile", "left", "--pools")
    (clone / ".git" / "HEAD").write_text(head)
    assert (
        answer.returncode == 1
        and "make@a: on its worker: " in answer.stdout + answer.stderr
        and "`git " in answer.stdout + answer.stderr
    )


@pytest.mark.slow
def test_a_run_that_was_about_to_begin_when_the_power_failed_is_swept_with_the_others(
    site: Site,
) -> None:
    deployment = next(one for one in site.ask("deployments/filter") if one["name"] == "nightly")
    runs = [
        site.ask(f"deployments/{deployment['id']}/create_flow_run", {"state": {"type": kind}})["id"]
        for kind in ("SCHEDULED", "SCHEDULED")
    ]
    for run, kind in zip(runs, ("PENDING", "RUNNING"), strict=True):
        site.ask(f"flow_runs/{run}/set_state", {"state": {"type": kind}, "force": True})
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
def test_a_killed_stage_runs_again_on_its_worker(site: Site) -> None:
    site.project.set(
        file="profiles/once.yaml",
        grid={"models": ["a"]},
        models={"a": {"make": {"value": 4, "once": True}}},
    )
    site.project.commit()
    site.project.traced()
    answer = site.project.run("--profile", "once", "--pools")
    assert answer.returncode == 0, answer.stdout + answer.stderr
    assert site.project.ran().count("make@a") == 2


@pytest.mark.slow
def test_a_stage_whose_worker_is_lost_is_found_crashed_and_runs_again(site: Site) -> None:
    project = site.project
    project.set(
        file="profiles/lost.yaml",
        grid={"models": ["a"]},
        models={"a": {"make": {"value": 5, "seconds": 30}}},
    )
    project.commit()
    project.traced()
    child = project.start("--profile", "lost", "--pools")
    wait_until(
        lambda: project.trace.is_file() and "make@a" in project.trace.read_text(), seconds=60
    )
    stage = psutil.Process(
        int(next(entry["pid"] for entry in project.traced() if entry["stage"] == "make@a"))
    )  # type: ignore[call-overload]
    engine = [
        process
        for process in psutil.Process(site.worker("cpu")).children(recursive=True)
        if process.pid != stage.pid
    ]
    for process in [*engine, stage]:
        process.send_signal(signal.SIGKILL)
    said, _ = child.communicate(timeout=300)
    assert child.returncode == 0, said
    assert "CRASHED" in {run["state_type"] for run in site.flow_runs() if run["name"] == "make@a"}
    assert project.ran().count("make@a") == 1, "and once more, before"


@pytest.mark.slow
def test_stopping_the_pipeline_stops_its_stages_on_workers(site: Site) -> None:
    project = site.project
    project.set(
        file="profiles/long.yaml",
        grid={"models": ["a"]},
        models={"a": {"make": {"value": 6, "seconds": 120}}},
    )
    project.commit()
    project.traced()
    child = project.start("--profile", "long", "--pools")
    wait_until(
        lambda: project.trace.is_file() and "make@a" in project.trace.read_text(), seconds=60
    )
    pid = int(next(entry["pid"] for entry in project.traced() if entry["stage"] == "make@a"))  # type: ignore[call-overload]
    child.terminate()
    said, _ = child.communicate(timeout=60)
    assert child.returncode == 1, said
    wait_until(lambda: not psutil.pid_exists(pid), seconds=60)


@pytest.mark.slow
def test_nightly_fires_by_its_schedule_and_a_second_one_is_cancelled_while_it_runs(
    tmp_path: Path,
) -> None:
    project = make_project(tmp_path)
    text = (project.root / "prefect.yaml").read_text()
    assert 'cron: "0 2 * * *"' in text
    (project.root / "prefect.yaml").write_text(
        text.replace('cron: "0 2 * * *"', 'cron: "* * * * *"')
    )
    project.set(file="profiles/demo.yaml", grid={"models": ["a"]}, models__a__make__seconds=55)
    project.commit()
    before = project.git("rev-parse", "main")
    site = up(project)
    try:
        wait_until(
            lambda: any(run["state_type"] == "CANCELLED" for run in site.flow_runs()), seconds=240
        )
        assert "RUNNING" in {
            run["state_type"] for run in site.flow_runs() if run["name"] == "pipeline demo"
        }, "the first goes on"
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
        assert project.git("rev-parse", "main") == before, "a scheduled run never commits to main"
        assert "results of" in project.git("log", "-1", "--format=%s", "runs/demo")
    finally:
        project.run("down", module="flows.servers")
    assert below(project) == []


@pytest.mark.slow
def test_a_flow_runs_without_any_server(tmp_path: Path) -> None:
    project = make_project(tmp_path)
    answer = project.run("--jobs", "2")
    assert answer.returncode == 0, answer.stdout + answer.stderr
    assert (project.root / ".lineage" / "prefect" / "prefect.db").is_file(), (
        "its history is kept here"
    )
    assert below(project) == [], "its server has ended with it"


CANNOT = """
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
def test_a_stage_that_could_not_even_be_begun_fails_alone_and_says_why(tmp_path: Path) -> None:
    project = make_project(tmp_path)
    command = [sys.executable, "-c", CANNOT]
    done = subprocess.run(
        command,
        cwd=project.root,
        env=project.environment(),
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    said = [line for line in done.stdout.splitlines() if line.count("|") == 3]
    assert said == [
        "a|ran|0|",
        "b|failed|2|b: no deployment 'gpu'; make up",
        "c|failed|1|c: the index is locked",
    ], done.stderr
