"""The walk over the graph: what is stale is run, in an order in which each stage follows what it needs, several at a time."""

import contextvars
import csv
import threading
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from pathlib import Path
from typing import Protocol

from flows.execute import BAD_INPUT, Result
from flows.plan import StageNode

Run = Callable[[StageNode], Result]


class Watcher(Protocol):
    """Who is told of every stage's end; those that run are also told of at their start."""

    def started(self, name: str) -> None: ...

    def ended(self, result: Result) -> None: ...


def walk(
    nodes: list[StageNode],
    *,
    reasons: Mapping[str, tuple[str, ...]],
    run: Run,
    jobs: int,
    stop: threading.Event,
    watcher: Watcher,
    one_gpu: bool = False,
    done: Mapping[str, Result] | None = None,
) -> dict[str, Result]:
    """Every stage's result, by name, those that are `done` before included. A stage that failed blocks what needs it; the others go on.

    A stage whose own status is clean and whose needs all stayed as they were is fresh: `run` is not called for it. With `one_gpu` those that may
    use a GPU run one at a time.
    On an interruption `stop` is set, the running stages end, and the interruption is raised again.
    """
    results: dict[str, Result] = dict(done or {})
    waiting = {node.name: node for node in nodes}
    running: dict[Future[Result], StageNode] = {}
    with ThreadPoolExecutor(jobs, thread_name_prefix="stage") as pool:
        try:
            while waiting or running:
                for result in _settled(waiting, results, reasons=reasons):
                    results[result.name] = result
                    watcher.ended(result)
                for node in _next(waiting, results, [*running.values()], jobs=jobs, one_gpu=one_gpu):
                    # the caller's context comes along, so that Prefect's tasks know their flow
                    future = pool.submit(contextvars.copy_context().run, _watched, waiting.pop(node.name), run=run, watcher=watcher)
                    running[future] = node
                for future in wait(running, return_when=FIRST_COMPLETED).done:
                    del running[future]
                    results[future.result().name] = future.result()
                    watcher.ended(future.result())
        except BaseException:
            stop.set()
            raise
    return results


def _settled(waiting: dict[str, StageNode], results: Mapping[str, Result], *, reasons: Mapping[str, tuple[str, ...]]) -> Iterator[Result]:
    """Take the stages that need not run, or cannot, out of `waiting`, one after the other: each may settle others."""
    while True:
        early = (_without_running(node, results=results, reasons=reasons[node.name]) for node in _ready(waiting, results))
        result = next((result for result in early if result is not None), None)
        if result is None:
            return
        del waiting[result.name]
        yield result


def _watched(node: StageNode, *, run: Run, watcher: Watcher) -> Result:
    watcher.started(node.name)
    return run(node)


def _next(waiting: Mapping[str, StageNode], results: Mapping[str, Result], running: list[StageNode], *, jobs: int, one_gpu: bool) -> list[StageNode]:
    """Those that are to begin beside the ones that run."""
    busy, chosen = one_gpu and any(node.pool == "gpu" for node in running), list[StageNode]()
    for node in _ready(waiting, results):
        if not (busy and node.pool == "gpu") and len(running) + len(chosen) < jobs:
            chosen.append(node)
            busy = busy or (one_gpu and node.pool == "gpu")
    return chosen


def _ready(waiting: Mapping[str, StageNode], results: Mapping[str, Result]) -> list[StageNode]:
    """Those whose needs have ended; the longest way ahead first."""
    return sorted((node for node in waiting.values() if all(need in results for need in node.needs)), key=lambda node: -node.height)


def _without_running(node: StageNode, *, results: Mapping[str, Result], reasons: tuple[str, ...]) -> Result | None:
    """The result of a stage that need not run, or cannot; None where it has to be run."""
    for need in node.needs:
        if not results[need].ok:
            return Result(node.name, "blocked", code=results[need].code, message=f"{node.name}: not run, since {need} did not end well")
    if not reasons and all(results[need].outcome == "fresh" for need in node.needs):
        return Result(node.name, "fresh")
    return None


def failed_cells(root: Path) -> int:
    """How many rows of reports/results.csv say that their cell failed; a trial that did is none, where another one has a value."""
    path = root / "reports" / "results.csv"
    if not path.is_file():
        return 0
    with path.open(newline="", encoding="utf-8") as stream:
        return sum(row.get("status") == "failed" and row.get("trial") == "chosen" for row in csv.DictReader(stream))


def exit_code(results: Mapping[str, Result], root: Path) -> int:
    """0 done; 2 bad configuration or bad input; 3 finished, but cells failed; 1 anything else."""
    failed = [result for result in results.values() if not result.ok]
    if any(result.outcome == "failed" and result.code == BAD_INPUT for result in failed):
        return BAD_INPUT
    if failed:
        return 1
    return 3 if failed_cells(root) else 0
