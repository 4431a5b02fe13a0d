"""What a run makes of its machine: cores and memory, one GPU, and a proxy before everything but itself."""

import threading
from pathlib import Path

import psutil
import pytest

from flows import plan, run
from flows.execute import StageResult
from flows.plan import StageNode, read_graph
from flows.scheduler import run_stages
from lineage.runtime.settings import prepare_environment
from tests.toy_project import make_project


class Nobody:
    """A watcher that keeps the order in which stages begin."""

    def __init__(self) -> None:
        self.begun: list[str] = []

    def on_stage_begin(self, name: str) -> None:
        self.begun.append(name)

    def on_stage_end(self, result: StageResult) -> None:
        pass


def node(name: str, pool: str, height: int = 1) -> StageNode:
    return StageNode(name, "", (), pool, 60.0, False, height)


def walked(nodes: list[StageNode], *, jobs: int, one_gpu: bool) -> tuple[list[str], int]:
    """The order in which the stages began, and how many of those that may use a GPU ran at a time at most."""
    watcher, lock, most, now = Nobody(), threading.Lock(), 0, 0

    def run(one: StageNode) -> StageResult:
        nonlocal most, now
        with lock:
            now += one.pool == "gpu"
            most = max(most, now)
        threading.Event().wait(0.05)
        with lock:
            now -= one.pool == "gpu"
        return StageResult(one.name, "ran")

    reasons = {one.name: ("changed",) for one in nodes}
    found = run_stages(
        nodes,
        reasons=reasons,
        run=run,
        jobs=jobs,
        exclusive_gpu=one_gpu,
        stop_event=threading.Event(),
        callback=watcher,
    )
    assert {*found} == {one.name for one in nodes}
    return watcher.begun, most


def test_on_one_gpu_stages_take_turns_and_others_do_not_wait() -> None:
    nodes = [node(f"pretrain@{n}", "gpu", height=9 - n) for n in range(3)] + [
        node(f"baselines@{n}", "cpu") for n in range(3)
    ]
    assert walked(nodes, jobs=3, one_gpu=False)[1] == 3
    begun, most = walked(nodes, jobs=3, one_gpu=True)
    assert most == 1 and {*begun[:3]} == {"pretrain@0", "baselines@0", "baselines@1"}
    assert [name for name in begun if name.startswith("pretrain")] == [
        f"pretrain@{n}" for n in range(3)
    ], "the longest way ahead first"


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_evaluations_may_use_a_gpu_where_there_is_one(device: str, tmp_path: Path) -> None:
    new = make_project(tmp_path)
    text = (new.root / "dvc.yaml").read_text()
    assert "pool: cpu" in text
    (new.root / "dvc.yaml").write_text(text.replace("pool: cpu", "pool: device"))
    new.set(device=device)
    pools = {node.name: node.pool for node in read_graph(new.root)}
    assert (
        pools["make@a"] == ("gpu" if device == "cuda" else "cpu")
        and pools["train@a"] == "gpu"
        and pools["sources"] == "local"
    )
    assert plan.uses_cuda(new.root) == (device == "cuda")


@pytest.mark.parametrize(("cores", "gigabytes", "quota", "limit", "threads", "jobs"), [
    (16, 64, None, None, 1, 16), (16, 64, None, None, 4, 4), (16, 16, None, None, 4, 4), (16, 16, None, None, 1, 5), (2, 1, None, None, 4, 1),
    (16, 64, "250000 100000", None, 1, 2), (16, 64, "max 100000", "max", 1, 16), (16, 64, None, "7000000000", 2, 2),
])  # fmt: skip
def test_as_many_stages_run_as_have_cores_and_memory(
    cores: int,
    gigabytes: int,
    quota: str | None,
    limit: str | None,
    threads: int,
    jobs: int,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Memory is a stage's, however many threads it has."""
    monkeypatch.setattr(run.os, "sched_getaffinity", lambda _: range(cores), raising=False)
    monkeypatch.setattr(
        psutil, "virtual_memory", lambda: type("Memory", (), {"total": gigabytes * 10**9})()
    )
    monkeypatch.setattr(run, "CGROUP_ROOT", tmp_path)
    for name, text in (("cpu.max", quota), ("memory.max", limit)):
        if text:
            (tmp_path / name).write_text(text)
    assert run.default_jobs(threads) == jobs


@pytest.mark.parametrize(("given", "found"), [
    ({}, None),
    ({"NO_PROXY": ".intern"}, ".intern"),
    ({"HTTP_PROXY": "http://proxy:1"}, "127.0.0.1,localhost"),
    ({"HTTP_PROXY": "http://proxy:1", "NO_PROXY": ".intern"}, ".intern,127.0.0.1,localhost"),
    ({"https_proxy": "http://proxy:1", "no_proxy": "a, localhost", "NO_PROXY": "b"}, "a,localhost,b,127.0.0.1"),
    ({"ALL_PROXY": "http://proxy:1", "NO_PROXY": "*"}, "*"),
])  # fmt: skip
def test_no_proxy_stands_before_this_machine_and_the_user_s_exceptions_stay(
    given: dict[str, str], found: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("http_proxy", "https_proxy", "all_proxy", "no_proxy"):
        for key in (name, name.upper()):
            monkeypatch.delenv(key, raising=False)
    for key, value in given.items():
        monkeypatch.setenv(key, value)
    for key in ("no_proxy", "NO_PROXY"):  # so that what is set is taken back
        monkeypatch.setenv(key, given.get(key, ""))
        if key not in given:
            monkeypatch.delenv(key)
    prepare_environment()
    proxied = any(key.lower() != "no_proxy" for key in given)
    assert [run.os.environ.get(key) for key in ("no_proxy", "NO_PROXY")] == (
        [found, found] if proxied else [given.get("no_proxy"), found]
    )
