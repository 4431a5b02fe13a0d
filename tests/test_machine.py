"""A run adapts to its machine: cores, memory, one GPU, and a proxy that excludes localhost."""

import threading
from dataclasses import replace
from pathlib import Path

import psutil
import pytest

from flows import machine, plan
from flows.execute import StageResult
from flows.plan import StageNode, in_run_order, read_graph
from flows.scheduler import run_stages
from lineage.runtime.settings import prepare_environment
from tests.helpers.toy_project import make_project


class RecordingCallback:
    """A callback that records the order in which stages begin."""

    def __init__(self) -> None:
        self.begun: list[str] = []

    def on_stage_begin(self, name: str) -> None:
        self.begun.append(name)

    def on_interrupt(self) -> None: ...

    def on_stage_end(self, result: StageResult) -> None:
        pass


def build_node(name: str, pool: str, height: int = 1) -> StageNode:
    return StageNode(name, "", (), pool, 60.0, False, height)


def test_a_branch_under_way_is_finished_before_another_is_begun() -> None:
    first = build_node("evaluate", "cpu", height=2)
    later = replace(build_node("evaluate_adapted", "cpu", height=2), upstream_depth=6)
    longest = build_node("adapt", "gpu", height=3)
    assert in_run_order([first, later, longest]) == [longest, later, first]


def run_scheduler(nodes: list[StageNode], *, jobs: int, one_gpu: bool) -> tuple[list[str], int]:
    """Return the order in which stages began, and the most GPU stages that ran at once."""
    callback = RecordingCallback()
    lock = threading.Lock()
    max_running, running = 0, 0

    def run(stage: StageNode) -> StageResult:
        nonlocal max_running, running
        with lock:
            running += stage.pool == "gpu"
            max_running = max(max_running, running)
        threading.Event().wait(0.05)
        with lock:
            running -= stage.pool == "gpu"
        return StageResult(stage.name, "ran")

    reasons = {stage.name: ("changed",) for stage in nodes}
    results = run_stages(
        nodes,
        reasons=reasons,
        run=run,
        jobs=jobs,
        exclusive_gpu=one_gpu,
        stop_event=threading.Event(),
        callback=callback,
    )
    assert {*results} == {stage.name for stage in nodes}
    return callback.begun, max_running


def test_on_one_gpu_its_stages_run_one_at_a_time_and_others_do_not_wait() -> None:
    nodes = [build_node(f"pretrain@{number}", "gpu", height=9 - number) for number in range(3)] + [
        build_node(f"baselines@{number}", "cpu") for number in range(3)
    ]
    assert run_scheduler(nodes, jobs=3, one_gpu=False)[1] == 3
    begun, max_running = run_scheduler(nodes, jobs=3, one_gpu=True)
    assert max_running == 1
    assert {*begun[:3]} == {"pretrain@0", "baselines@0", "baselines@1"}
    assert [name for name in begun if name.startswith("pretrain")] == [
        f"pretrain@{number}" for number in range(3)
    ], "stages with more stages after them run first"


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_stages_of_the_pool_device_use_a_gpu_if_the_device_is_cuda(
    device: str, tmp_path: Path
) -> None:
    project = make_project(tmp_path)
    text = (project.root / "dvc.yaml").read_text()
    assert "pool: cpu" in text
    (project.root / "dvc.yaml").write_text(text.replace("pool: cpu", "pool: device"))
    project.set_params(device=device)
    pools = {stage.name: stage.pool for stage in read_graph(project.root)}
    assert pools["make@a"] == ("gpu" if device == "cuda" else "cpu")
    assert pools["train@a"] == "gpu"
    assert pools["sources"] == "local"
    assert plan.uses_cuda(project.root) == (device == "cuda")


@pytest.mark.parametrize(("cores", "gigabytes", "quota", "limit", "threads", "jobs"), [
    (16, 64, None, None, 1, 16), (16, 64, None, None, 4, 4), (16, 16, None, None, 4, 4), (16, 16, None, None, 1, 5), (2, 1, None, None, 4, 1),
    (16, 64, "250000 100000", None, 1, 2), (16, 64, "max 100000", "max", 1, 16), (16, 64, None, "7000000000", 2, 2),
])  # fmt: skip
def test_default_jobs_follow_from_cores_and_memory(
    cores: int,
    gigabytes: int,
    quota: str | None,
    limit: str | None,
    threads: int,
    jobs: int,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A stage needs the same memory whatever its number of threads."""
    monkeypatch.setattr(machine.os, "sched_getaffinity", lambda _: range(cores), raising=False)
    monkeypatch.setattr(
        psutil, "virtual_memory", lambda: type("Memory", (), {"total": gigabytes * 10**9})()
    )
    monkeypatch.setattr(machine, "CGROUP_ROOT", tmp_path)
    for name, text in (("cpu.max", quota), ("memory.max", limit)):
        if text:
            (tmp_path / name).write_text(text)
    assert machine.default_jobs(threads) == jobs


@pytest.mark.parametrize(("variables", "expected"), [
    ({}, None),
    ({"NO_PROXY": ".intern"}, ".intern"),
    ({"HTTP_PROXY": "http://proxy:1"}, "127.0.0.1,localhost"),
    ({"HTTP_PROXY": "http://proxy:1", "NO_PROXY": ".intern"}, ".intern,127.0.0.1,localhost"),
    ({"https_proxy": "http://proxy:1", "no_proxy": "a, localhost", "NO_PROXY": "b"}, "a,localhost,b,127.0.0.1"),
    ({"ALL_PROXY": "http://proxy:1", "NO_PROXY": "*"}, "*"),
])  # fmt: skip
def test_localhost_bypasses_the_proxy_and_the_user_s_exceptions_are_kept(
    variables: dict[str, str], expected: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("http_proxy", "https_proxy", "all_proxy", "no_proxy"):
        for key in (name, name.upper()):
            monkeypatch.delenv(key, raising=False)
    for key, value in variables.items():
        monkeypatch.setenv(key, value)
    for key in ("no_proxy", "NO_PROXY"):  # monkeypatch then restores what the code sets
        monkeypatch.setenv(key, variables.get(key, ""))
        if key not in variables:
            monkeypatch.delenv(key)
    prepare_environment()
    proxied = any(key.lower() != "no_proxy" for key in variables)
    assert [machine.os.environ.get(key) for key in ("no_proxy", "NO_PROXY")] == (
        [expected, expected] if proxied else [variables.get("no_proxy"), expected]
    )
