"""A stage is handed over to a worker, and its run ends with a message if no worker takes it.

The tests need no server.
"""

import json
import os
import subprocess
from dataclasses import replace
from pathlib import Path
from typing import Any
from uuid import uuid4

import httpx
import pytest

from flows import processes, runner, workers
from flows.execute import StageContext, StageResult, WorkersUnreachableError
from flows.plan import StageNode, init_dvc
from flows.waiting import WaitReports

RUN = uuid4()
NODE = StageNode("make@a", "", (), "cpu", 60.0, False, 1)


FAILED = StageResult(NODE.name, "failed", exit_status=1)  # the DVC remote has no result


def fake_workers(
    monkeypatch: pytest.MonkeyPatch, result: StageResult, *, pulled: StageResult = FAILED
) -> list[str]:
    """Let workers and the DVC remote give these results, and return the keys of the requests."""
    keys = []

    def await_worker(*_: Any, idempotency_key: str, **__: Any) -> StageResult:
        keys.append(idempotency_key)
        return result

    monkeypatch.setattr(workers, "_await_worker", await_worker)
    monkeypatch.setattr(workers, "_pull_result", lambda *_, **__: pulled)
    return keys


def test_a_retried_pipeline_run_requests_its_stages_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """For a key that was used before, Prefect returns the earlier run."""
    keys = fake_workers(monkeypatch, FAILED)
    monkeypatch.setattr(workers, "_make_request", lambda node, context: "a request")
    monkeypatch.setattr(workers, "run_dvc", lambda *_, **__: None)
    for run_count in (1, 2):
        workers.run_on_worker(
            NODE,
            StageContext(tmp_path, {"LINEAGE_FLOW_RUN": "a flow run"}),
            run_count=run_count,
            reports=WaitReports(),
        )
    assert len(set(keys)) == 2


def test_a_stage_that_is_killed_is_tried_three_times_and_each_try_is_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    message = "make@a: killed by signal 9 (out of memory?); free memory"
    keys = fake_workers(monkeypatch, replace(FAILED, exit_status=-9, message=message))
    result = try_workers(tmp_path)
    assert len(set(keys)) == 3
    assert result.message.endswith("free memory; it was tried 3 times")
    assert capsys.readouterr().err.splitlines() == [
        f"make@a: killed by signal 9 (out of memory?); a worker tries it again ({attempt} of 3)"
        for attempt in (2, 3)
    ]


def try_workers(root: Path) -> StageResult:
    remote_stage = workers.RemoteStage(
        stage="make@a",
        code_digest="",
        files={},
        threads=1,
        timeout_seconds=60.0,
        environment={},
        upstream=[],
        lock_entries={},
        remote={},
    )
    return workers._try_workers(
        NODE, remote_stage, StageContext(root), key="key", reports=WaitReports()
    )


@pytest.mark.parametrize("was_killed", [True, False])
def test_a_result_that_a_lost_worker_has_pushed_is_taken(
    was_killed: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before each retry and before each failure the DVC remote is asked."""
    cached = StageResult(NODE.name, "cached")
    lost = replace(FAILED, exit_status=-9 if was_killed else 1, message="it was lost")
    keys = fake_workers(monkeypatch, lost, pulled=cached)
    init_dvc(tmp_path)
    assert try_workers(tmp_path) == cached
    assert len(keys) == 1


def test_a_question_to_the_server_is_repeated_until_it_has_been_away_too_long(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PREFECT_API_URL", "http://127.0.0.1:1/api")
    monkeypatch.setattr(workers, "POLL_SECONDS", 0.01)
    request = httpx.Request("POST", "http://127.0.0.1:1/api/task_runs/")
    starting = httpx.HTTPStatusError("503", request=request, response=httpx.Response(503))
    errors = iter([httpx.ConnectError("refused"), httpx.ReadTimeout("slow"), starting])

    def ask() -> str:
        for error in errors:
            raise error
        return "an answer"

    assert workers._ask_server(ask, NODE, StageContext(tmp_path)) == "an answer"
    log = tmp_path / ".lineage" / "logs" / "make-a.log"
    assert log.read_text() == "waiting for the Prefect server\n"

    def ask_wrongly() -> str:
        raise httpx.HTTPStatusError("422", request=request, response=httpx.Response(422))

    with pytest.raises(httpx.HTTPStatusError, match="422"):
        workers._ask_server(ask_wrongly, NODE, StageContext(tmp_path))

    def ask_in_vain() -> str:
        raise httpx.ConnectError("refused")

    monkeypatch.setattr(workers, "NO_SERVER_SECONDS", 0.05)
    with pytest.raises(WorkersUnreachableError, match=":1/api has not answered"):
        workers._ask_server(ask_in_vain, NODE, StageContext(tmp_path))


def test_stages_run_here_from_the_first_one_on_that_finds_no_server(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    sent: list[str] = []

    def run_remotely(node: StageNode, context: StageContext) -> StageResult:
        sent.append(node.name)
        raise WorkersUnreachableError("the Prefect server has not answered for 60 s")

    def run_stage(name: str, *, context: StageContext, timeout_seconds: float) -> StageResult:
        return StageResult(name, "cached")

    monkeypatch.setattr(runner, "run_stage", run_stage)
    (tmp_path / "params.yaml").write_text("threads: 1\n")
    run = runner.make_runner(StageContext(tmp_path), 1, tmp_path / "cache", run_remotely)
    for name in ("make@a", "make@b"):
        assert run(replace(NODE, name=name)).outcome == "cached"
    assert sent == ["make@a"]
    assert capsys.readouterr().err == (
        "the Prefect server has not answered for 60 s; the stages that are left run here\n"
    )


@pytest.mark.parametrize("moved", [True, False])
def test_down_ends_processes_of_this_study_even_if_moved_and_no_others(
    moved: bool, tmp_path: Path
) -> None:
    home, other_home = tmp_path / "new/servers", tmp_path / "other/servers"
    home.mkdir(parents=True)
    other_home.mkdir(parents=True)
    own_marker = str(tmp_path / "old/servers" if moved else home)
    children = [
        subprocess.Popen(["sleep", "60"], env=os.environ | {processes.MARKER_VARIABLE: marker})
        for marker in (own_marker, own_marker, str(other_home))
    ]
    try:
        for child in children[1:]:  # the first was left by a killed worker
            (home / f"{child.pid}.json").write_text(json.dumps({"pid": child.pid, "port": 0}))
        (home / "cut.json").write_text("{")
        processes.terminate_marked_processes(processes.known_markers(home))
        assert [child.poll() is None for child in children] == [False, False, True]
    finally:
        for child in children:
            child.kill()
            child.wait()
