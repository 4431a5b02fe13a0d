"""How a stage is handed over to a worker, without a server: what is asked for, and what happens where nobody takes it."""

import contextlib
import json
import os
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from uuid import uuid4

import pytest

from flows import processes, workers
from flows.execute import StageContext, StageResult
from flows.plan import StageNode
from flows.workspace import Workspace, head_commit
from tests.checkout import clone

RUN = uuid4()
NODE = StageNode("make@a", "", (), "cpu", 60.0, False, 1)


@pytest.mark.parametrize("online", [True, False])
def test_a_stage_that_no_worker_takes_ends_its_run_where_none_is_online(
    online: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    waits, cancelled = iter([*["Late"] * 5, "Completed"]), []

    def read(run: str) -> Any:
        name = next(waits)
        final = name == "Completed"
        state = SimpleNamespace(
            name=name,
            is_final=lambda: final,
            is_scheduled=lambda: not final,
            is_crashed=lambda: False,
            message="it is done",
        )
        return SimpleNamespace(state=state)

    client = SimpleNamespace(
        read_flow_run=read, read_artifacts=lambda **_: [], set_flow_run_state=lambda run, state, force: cancelled.append(run),
        read_workers_for_work_pool=lambda pool: [SimpleNamespace(status=workers.WorkerStatus.ONLINE if online else workers.WorkerStatus.OFFLINE)],
    )  # fmt: skip

    @contextlib.contextmanager
    def connected(**_: Any) -> Iterator[Any]:
        yield client

    monkeypatch.setattr(workers, "get_client", connected)
    monkeypatch.setattr(workers, "run_deployment", lambda *_, **__: SimpleNamespace(id=RUN))
    monkeypatch.setattr(workers, "POLL_SECONDS", 0.01)
    monkeypatch.setattr(workers, "NO_WORKER_SECONDS", 0.02)
    errand = workers.RemoteStage("make@a", (), "", "", "", 1, 60.0, {})
    found = workers._await_worker(
        NODE, errand, context=StageContext(tmp_path), idempotency_key="a key"
    )
    said = "no worker of the pool cpu has been heard of for 0 s; `make up` starts one"
    assert (said in found.message) is not online and (cancelled == [RUN]) is not online
    assert (
        found.outcome == "failed"
        and not found.was_killed
        and (not online or "ended as Completed: it is done" in found.message)
    )


def test_a_pipeline_run_that_is_retried_asks_for_its_stages_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Prefect gives back the run that a key was used for first."""
    keys = []

    def waited(
        node: StageNode, errand: Any, *, context: StageContext, idempotency_key: str
    ) -> StageResult:
        keys.append(idempotency_key)
        return StageResult(node.name, "failed", exit_status=1)

    monkeypatch.setattr(workers, "_await_worker", waited)
    monkeypatch.setattr(
        workers,
        "_pull_result",
        lambda node, *, context: StageResult(node.name, "failed", exit_status=1),
    )
    monkeypatch.setattr(workers, "ensure_remote", lambda place: "a remote")
    monkeypatch.setattr(workers, "commit_run", lambda place, message: "a commit")
    monkeypatch.setattr(workers, "run_dvc", lambda *_, **__: None)
    (tmp_path / "params.yaml").write_text("seed: 1\n")
    place = Workspace(tmp_path, tmp_path, "small", "a commit", (), threading.Lock())
    for count in (1, 2):
        workers.run_on_worker(
            NODE, place, StageContext(tmp_path, {"LINEAGE_FLOW_RUN": "a flow run"}), run_count=count
        )
    assert len(set(keys)) == 2


def test_a_worker_s_clone_has_an_origin_whatever_git_calls_that_by_default(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for key, value in {
        "COUNT": "1",
        "KEY_0": "clone.defaultRemoteName",
        "VALUE_0": "upstream",
    }.items():
        monkeypatch.setenv(f"GIT_CONFIG_{key}", value)
    monkeypatch.setenv("LINEAGE_WORKER_HOME", str(tmp_path / "home"))
    main = clone(tmp_path / "lineage")
    errand = workers.RemoteStage(
        "make@a", (), head_commit(main), str(main), str(tmp_path / "remote"), 1, 60.0, {}
    )
    for _ in range(2):
        with workers._prepare_clone(errand) as root:
            assert head_commit(root) == head_commit(main)


@pytest.mark.parametrize("moved", [True, False])
def test_make_down_ends_what_was_started_before_the_checkout_was_moved_and_nothing_of_another_one(
    moved: bool, tmp_path: Path
) -> None:
    home, other = tmp_path / "new/servers", tmp_path / "other/servers"
    home.mkdir(parents=True)
    other.mkdir(parents=True)
    marked = str(tmp_path / "old/servers" if moved else home)
    started = [
        subprocess.Popen(["sleep", "60"], env=os.environ | {processes.MARKER_VARIABLE: mark})
        for mark in (marked, marked, str(other))
    ]
    try:
        for child in started[1:]:  # the first is what a killed worker left
            (home / f"{child.pid}.json").write_text(json.dumps({"pid": child.pid, "port": 0}))
        (home / "cut.json").write_text("{")
        processes.terminate_marked_processes(processes.known_markers(home))
        assert [child.poll() is None for child in started] == [False, False, True]
    finally:
        for child in started:
            child.kill()
            child.wait()
