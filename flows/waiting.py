"""How long a stage waits until a worker of its pool begins it, and what a run says meanwhile."""

import signal
import sys
import threading
from collections.abc import Mapping
from dataclasses import dataclass, field
from time import monotonic

from prefect.client.orchestration import SyncPrefectClient
from prefect.client.schemas import FlowRun
from prefect.client.schemas.objects import WorkerStatus

from flows.execute import StageResult
from flows.plan import StageNode

REPORT_SECONDS = 60.0
# The limits by the type of the pool. A process starts at once, if its worker is there. Elsewhere a
# machine may have to be started, or an image to be pulled.
PROCESS_TYPE = "process"
PROCESS_SECONDS = 900.0
OTHER_SECONDS = 3600.0
# A worker that is killed before it has started the process leaves the run pending. It never had a
# heartbeat, so Prefect does not miss it.
CLAIMED_SECONDS = 120.0


@dataclass
class WaitReports:
    """Reports once a minute for each pool what the stages of a run wait for."""

    _times: dict[str, float] = field(default_factory=dict)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def report(self, pool: str, text: str) -> None:
        """Print the text, unless another stage has just reported on the pool."""
        now = monotonic()
        with self._lock:
            if now - self._times.get(pool, -REPORT_SECONDS) < REPORT_SECONDS / 2:
                return
            self._times[pool] = now
        print(text, file=sys.stderr, flush=True)


@dataclass
class WorkerWait:
    """The wait of one stage for a worker that begins it."""

    node: StageNode
    client: SyncPrefectClient
    reports: WaitReports
    limits: Mapping[str, float]  # the seconds of pools for which the user has given some
    _phase: str = ""
    _begin: float = 0.0
    _last_check: float = 0.0

    def check(self, run: FlowRun) -> StageResult | None:
        """Return the stage's result if it has waited too long.

        Raises httpx.HTTPError if the server does not answer.
        """
        now = monotonic()
        phase = _phase(run)
        if phase != self._phase:
            self._phase = phase
            self._begin = now
            self._last_check = now
        if phase == "running" or now - self._last_check < REPORT_SECONDS:
            return None
        if phase == "scheduled":
            workers = self.client.read_workers_for_work_pool(self.node.pool)
            if any(worker.status == WorkerStatus.ONLINE for worker in workers):
                self._begin = now  # it waits for other stages to end, which may take days
        self._last_check = now
        seconds = now - self._begin
        limit = self._limit_seconds(run)
        if seconds >= limit:
            return self._result(phase, seconds)
        if seconds:
            self._report(phase, seconds, limit)
        return None

    def _limit_seconds(self, run: FlowRun) -> float:
        pool_type = self.client.read_work_pool(self.node.pool).type
        is_started = bool(run.infrastructure_pid)
        if pool_type == PROCESS_TYPE and self._phase == "pending" and not is_started:
            return CLAIMED_SECONDS
        default = PROCESS_SECONDS if pool_type == PROCESS_TYPE else OTHER_SECONDS
        return self.limits.get(self.node.pool, default)

    def _report(self, phase: str, seconds: float, limit: float) -> None:
        pool = self.node.pool
        if phase == "scheduled":
            what = f"no worker of the pool {pool} is online"
        else:
            what = f"a worker of the pool {pool} has taken it, and not begun it yet"
        self.reports.report(
            pool,
            f"{self.node.name} waits: {what} ({seconds / 60:.0f} of at most {limit / 60:.0f} min)",
        )

    def _result(self, phase: str, seconds: float) -> StageResult:
        name = self.node.name
        remedy = "pool_wait_seconds in runtime.yaml allows more"
        if phase == "scheduled":
            message = (
                f"{name}: no worker of the pool {self.node.pool} has been heard of for "
                f"{seconds:.0f} s; `lineage up` starts one on this machine, and {remedy}"
            )
            return StageResult(name, "failed", 0.0, 1, message)
        message = f"{name}: its worker has not begun it for {seconds:.0f} s; {remedy}"
        return StageResult(name, "failed", 0.0, -signal.SIGKILL, message)


def _phase(run: FlowRun) -> str:
    if run.state is not None and run.state.is_pending():
        return "pending"
    if run.state is not None and run.state.is_scheduled():
        return "scheduled"
    return "running"
