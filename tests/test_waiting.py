"""A stage waits for a worker as long as its pool allows, and says once a minute what for."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any
from uuid import uuid4

import pytest
from prefect.client.schemas.objects import WorkerStatus
from prefect.states import Late, Pending, Running

from flows import waiting, workers
from flows.execute import StageContext, StageResult
from flows.plan import StageNode
from flows.waiting import WaitReports, WorkerWait
from lineage.errors import InputError
from lineage.runtime.settings import read_runtime_settings

NODE = StageNode("train@a", "", (), "gpu", 60.0, False, 1)
MINUTE = 60.0


class FakePrefect:
    """A server whose pool has a type, and whose workers are online or not."""

    def __init__(self, pool_type: str, *, online: bool = False) -> None:
        self.pool_type = pool_type
        self.online = online
        self.state: Any = Late()
        self.started = ""  # the process of the run
        self.cancelled: list[Any] = []

    def read_flow_run(self, run_id: Any) -> Any:
        return SimpleNamespace(id=run_id, state=self.state, infrastructure_pid=self.started)

    def read_work_pool(self, name: str) -> Any:
        return SimpleNamespace(type=self.pool_type)

    def read_workers_for_work_pool(self, name: str) -> list[Any]:
        status = WorkerStatus.ONLINE if self.online else WorkerStatus.OFFLINE
        return [SimpleNamespace(status=status)]

    def set_flow_run_state(self, run_id: Any, state: Any, force: bool) -> None:
        self.cancelled.append(run_id)


@pytest.fixture
def minutes(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """A clock: its one number is the minutes since the beginning."""
    clock = [0.0]
    monkeypatch.setattr(waiting, "monotonic", lambda: clock[0] * MINUTE)
    return clock


def wait_minutes(
    prefect: FakePrefect, minutes: list[float], limits: dict[str, float] | None = None
) -> StageResult | None:
    """Ask every minute, for two hours at most, and return the stage's result if it has one."""
    client: Any = prefect
    wait = WorkerWait(NODE, client, WaitReports(), limits or {})
    for minute in range(121):
        minutes[0] = minute
        result = wait.check(client.read_flow_run(uuid4()))
        if result is not None:
            return result
    return None


@pytest.mark.parametrize(("pool_type", "expected"), [("process", 15), ("kubernetes", 60)])
def test_a_stage_waits_for_a_worker_as_long_as_its_type_of_pool_needs(
    pool_type: str, expected: int, minutes: list[float], capsys: pytest.CaptureFixture[str]
) -> None:
    result = wait_minutes(FakePrefect(pool_type), minutes)
    assert result is not None and not result.was_killed
    assert minutes == [expected]
    assert result.message == (
        f"train@a: no worker of the pool gpu has been heard of for {expected * 60} s; "
        "`lineage up` starts one on this machine, and pool_wait_seconds in runtime.yaml allows more"
    )
    lines = capsys.readouterr().err.splitlines()
    assert lines == [
        f"train@a waits: no worker of the pool gpu is online ({minute} of at most {expected} min)"
        for minute in range(1, expected)
    ]


@pytest.mark.parametrize(
    ("pool_type", "started", "expected"),
    [("process", "", 2), ("process", "host:7", 15), ("docker", "", 60), ("docker", "id", 60)],
)
def test_a_worker_that_has_taken_a_stage_gets_the_time_that_its_type_of_pool_needs(
    pool_type: str, started: str, expected: int, minutes: list[float]
) -> None:
    """A worker that is killed at this moment leaves the run pending, so the stage is tried again."""
    prefect = FakePrefect(pool_type, online=True)
    prefect.state, prefect.started = Pending(), started
    result = wait_minutes(prefect, minutes)
    assert result is not None and result.was_killed
    assert minutes == [expected]
    assert f"train@a: its worker has not begun it for {expected * 60} s" in result.message


def test_the_user_sets_the_limit_of_a_pool(minutes: list[float]) -> None:
    result = wait_minutes(FakePrefect("process"), minutes, {"gpu": 1800.0, "cpu": 60.0})
    assert result is not None
    assert minutes == [30]


@pytest.mark.parametrize("state", [Late(), Running()])
def test_a_stage_that_runs_or_waits_for_other_stages_has_no_limit(
    state: Any, minutes: list[float], capsys: pytest.CaptureFixture[str]
) -> None:
    prefect = FakePrefect("process", online=True)
    prefect.state = state
    assert wait_minutes(prefect, minutes) is None
    assert not capsys.readouterr().err


def test_of_the_stages_that_wait_for_a_pool_one_reports(
    minutes: list[float], capsys: pytest.CaptureFixture[str]
) -> None:
    client: Any = FakePrefect("process")
    reports = WaitReports()
    waits = [WorkerWait(NODE, client, reports, {}) for _ in range(5)]
    for minute in range(4):
        minutes[0] = minute
        for wait in waits:
            assert wait.check(client.read_flow_run(uuid4())) is None
    assert len(capsys.readouterr().err.splitlines()) == 3


def test_a_stage_that_has_waited_too_long_is_cancelled(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    client: Any = FakePrefect("process")
    run_id = uuid4()
    monkeypatch.setattr(workers, "POLL_SECONDS", 0.01)
    monkeypatch.setattr(waiting, "REPORT_SECONDS", 0.02)
    wait = WorkerWait(NODE, client, WaitReports(), {"gpu": 0.05})
    result = workers._await_final_state(client, run_id, wait, StageContext(tmp_path))
    assert isinstance(result, StageResult)
    assert client.cancelled == [run_id]


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("pool_wait_seconds: {gpus: 60}", "pool_wait_seconds names 'gpus'; give cpu or gpu"),
        ("pool_wait_seconds: {gpu: 0}", "pool_wait_seconds.gpu is 0.0; it must be above zero"),
        ("pool_wait_seconds: 60", "pool_wait_seconds"),
    ],
)
def test_a_wrong_limit_is_refused(
    line: str, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "runtime.yaml").write_text(f"{line}\n")
    with pytest.raises(InputError, match=message):
        read_runtime_settings()


def test_limits_are_read_from_runtime_yaml(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "runtime.yaml").write_text("pool_wait_seconds: {gpu: 7200}\n")
    assert read_runtime_settings().pool_wait_seconds == {"gpu": 7200.0}
