"""Prefect shows the decision of a run, and calls a webhook when someone should look."""

import http.server
import json
import os
import re
import signal
import sqlite3
import subprocess
import sys
import threading
import urllib.error
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from lineage.errors import InputError
from tests.helpers.toy_project import (
    Project,
    free_port,
    make_project,
    prefect_access,
    project_processes,
    wait_until,
)
from tests.helpers.toy_servers import Site, set_models

SECRET = "T0KEN-of-the-webhook"
CHANGE = "queue, all 240 labels: elmo (fine-tuned) (78.8 %) instead of TF-IDF (73.3 %)"
SUMMARY = {
    "decision": "- **queue, all 240 labels**: Use elmo, fine-tuned.",
    "decision_changes": [CHANGE],
    "scores": [
        {
            "interval": "76.6 to 81.1",
            "labels": "all 240 labels",
            "score": "78.8 %",
            "system": "elmo (fine-tuned)",
            "task": "queue",
        }
    ],
    "mlflow_experiment_id": "1",
    "mlflow_run_id": "a1b2c3",
}


@pytest.fixture
def announce(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Return the module, with a home of Prefect in this test's folder."""
    monkeypatch.setenv("PREFECT_HOME", str(tmp_path / "prefect"))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from flows import announce as module
    return module


@pytest.mark.parametrize(
    ("folder", "slug"),
    [("tickets", "tickets"), ("My Study_2", "my-study-2"), ("Ünï", "n"), ("***", "study")],
)
def test_a_study_has_a_name_that_prefect_takes_in_keys(
    folder: str, slug: str, announce: Any
) -> None:
    assert announce.study_slug(Path("/home/me") / folder) == slug


def test_an_error_of_prefect_is_one_warning(
    announce: Any,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    announce.announce_run(tmp_path)  # nothing was summarized
    (tmp_path / ".lineage").mkdir()
    (tmp_path / ".lineage/summary.json").write_text(json.dumps(SUMMARY))

    def refuse(**options: object) -> None:
        raise ConnectionError("the server is away")

    monkeypatch.setattr(announce, "create_markdown_artifact", refuse)
    announce.announce_run(tmp_path)
    printed = capsys.readouterr()
    assert printed.out == ""
    warning = "the decision is not shown in Prefect: ConnectionError; the results are complete"
    (line,) = printed.err.splitlines()
    assert line.startswith(warning)


@pytest.mark.parametrize(
    "address", ["hooks.example.org/a", "ftp://host/a", "https:///a", "http://[a"]
)
def test_an_address_that_is_no_webhook_is_refused_without_repeating_it(
    address: str, announce: Any
) -> None:
    from flows.notifications import check_webhook

    with pytest.raises(InputError, match="--notify: not the address of a webhook") as refusal:
        check_webhook(address + SECRET)
    assert SECRET not in str(refusal.value)
    check_webhook("https://hooks.example.org/" + SECRET)


class Listener(http.server.ThreadingHTTPServer):
    """A webhook on loopback that keeps what it receives."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.texts: list[str] = []

    @property
    def address(self) -> str:
        return f"http://127.0.0.1:{self.server_port}/{SECRET}"

    def has_text(self, *words: str) -> bool:
        return any(all(word in text for word in words) for text in self.texts)


class _Handler(http.server.BaseHTTPRequestHandler):
    server: Listener

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        assert self.path == f"/{SECRET}" and self.headers["Content-Type"] == "application/json"
        self.server.texts.append(json.loads(body)["text"])
        self.send_response(200)
        self.end_headers()

    def log_message(self, *arguments: object) -> None:
        """Print nothing."""


@pytest.fixture
def listener() -> Iterator[Listener]:
    with Listener() as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield server
        server.shutdown()
        thread.join()


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    project = make_project(tmp_path)
    port = free_port()
    try:
        completed = project.run(
            "up",
            LINEAGE_PREFECT_PORT=str(port),
            PREFECT_SERVER_SERVICES_LATE_RUNS_AFTER_SECONDS="20",
        )
        assert completed.returncode == 0, completed.stdout + completed.stderr
        yield Site(project, port)
    finally:
        project.run("down")
    assert project_processes(project) == []


def start_scheduled_run(site: Site) -> str:
    (deployment,) = [one for one in site.ask("deployments/filter") if one["name"] == "scheduled"]
    body = {"state": {"type": "SCHEDULED"}}
    return str(site.ask(f"deployments/{deployment['id']}/create_flow_run", body)["id"])


def find_state(site: Site, run_id: str) -> str:
    try:
        states = {run["id"]: run["state_name"] for run in site.flow_runs()}
    except urllib.error.HTTPError:  # a busy server refuses a request now and then
        return "unknown"
    return str(states[run_id])


def write_summary(project: Project, changes: list[str]) -> None:
    path = project.root / ".lineage" / "summary.json"
    path.write_text(json.dumps(SUMMARY | {"decision_changes": changes}))


@pytest.mark.slow
def test_scheduled_runs_show_their_decision_and_notify(site: Site, listener: Listener) -> None:
    project = site.project
    schedule = ("schedule", "--cron", "0 2 1 1 *")
    for _ in range(2):  # a second command replaces what the first one made
        completed = project.run(*schedule, "--notify", listener.address)
        assert completed.returncode == 0, completed.stderr
    assert "127.0.0.1 is notified" in completed.stdout and SECRET not in completed.stdout
    names = [one["name"] for one in site.ask("automations/filter")]
    own = [f"project: {name}" for name in ("decision changed", "failed", "late")]
    assert sorted(name for name in names if name.startswith("project")) == own

    write_summary(project, [CHANGE])
    good_run = start_scheduled_run(site)
    wait_until(lambda: find_state(site, good_run) == "Completed", seconds=120)
    wait_until(lambda: listener.has_text("project: the decision has changed. ", CHANGE))
    found = {one["key"]: one for one in site.ask("artifacts/latest/filter")}
    decision, scores = found["project-decision"], found["project-scores"]
    assert SUMMARY["decision"] in decision["data"]
    assert "/#/experiments/1/runs/a1b2c3" in decision["data"]
    assert json.loads(scores["data"]) == SUMMARY["scores"]
    assert [*json.loads(scores["data"])[0]] == ["task", "labels", "system", "score", "interval"]
    assert decision["flow_run_id"] == scores["flow_run_id"] == good_run

    write_summary(project, [])
    set_models(project, value=7, exit=7)
    bad_run = start_scheduled_run(site)
    wait_until(lambda: find_state(site, bad_run) == "Failed", seconds=120)
    wait_until(lambda: listener.has_text("project, 20", "the run is Failed"))

    os.kill(site.worker("orchestrator"), signal.SIGKILL)
    late_run = start_scheduled_run(site)
    wait_until(lambda: find_state(site, late_run) == "Late", seconds=60)
    wait_until(lambda: listener.has_text("the run is late"))
    # On a busy machine the other runs may have been late too.
    others = [text for text in listener.texts if "is late" not in text]
    assert len(others) == 2, "one for each event"

    assert project.run(*schedule).returncode == 0, "without --notify"
    assert not [one for one in site.ask("automations/filter") if one["name"] in own]
    find_secrets(project.root)


def find_secrets(root: Path) -> None:
    """Check that the webhook's address is in no log and, in clear text, in no database."""
    for log in (root / ".lineage" / "servers").glob("*.log"):
        assert SECRET not in log.read_text(errors="replace"), log
    with sqlite3.connect(root / ".lineage" / "prefect" / "prefect.db") as connection:
        assert not [line for line in connection.iterdump() if SECRET in line]


AWAY_SCRIPT = """
import os
import signal
import time
from pathlib import Path
from prefect import flow
from flows.announce import announce_run

@flow(persist_result=False)
def run_study():
    os.kill({pid}, signal.SIGKILL)
    begun = time.monotonic()
    announce_run(Path.cwd())
    print(f"the run goes on after {{time.monotonic() - begun:.0f}} s", flush=True)
    os._exit(0)  # Prefect itself would try to reach its server for minutes

run_study()
"""


@pytest.mark.slow
def test_a_server_that_dies_during_a_run_does_not_keep_the_run_from_its_end(site: Site) -> None:
    project = site.project
    write_summary(project, [CHANGE])
    server = json.loads((project.root / ".lineage/servers/prefect.json").read_text())["pid"]
    environment = project.environment(
        PREFECT_HOME=str(project.root / ".lineage/prefect"),
        **prefect_access(project.root, site.port),
    )
    completed = subprocess.run(
        [sys.executable, "-c", AWAY_SCRIPT.format(pid=server)],
        cwd=project.root,
        env=environment,
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    goes_on = re.search("the run goes on after ([0-9]+) s", completed.stdout)
    assert goes_on is not None, completed.stderr
    assert int(goes_on[1]) < 30
    assert "the decision is not shown in Prefect: " in completed.stderr
