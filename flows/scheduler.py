"""The walk over the graph: what is stale is run, in an order in which each stage follows what it needs, several at a time."""

import contextvars
import csv
import threading
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from pathlib import Path
from typing import Protocol

from flows.execute import EXIT_BAD_INPUT, StageResult
from flows.plan import StageNode

StageRunner = Callable[[StageNode], StageResult]


class ProgressCallback(Protocol):
    """Who is told of every stage's end; those that run are also told of at their start."""

    def on_stage_begin(self, name: str) -> None: ...

    def on_stage_end(self, result: StageResult) -> None: ...


def run_stages(
    nodes: list[StageNode],
    *,
    reasons: Mapping[str, tuple[str, ...]],
    run: StageRunner,
    jobs: int,
    stop_event: threading.Event,
    callback: ProgressCallback,
    exclusive_gpu: bool = False,
    completed: Mapping[str, StageResult] | None = None,
) -> dict[str, StageResult]:
    """Every stage's result, by name, those that are `done` before included. A stage that failed blocks what needs it; the others go on.

    A stage whose own status is clean and whose needs all stayed as they were is fresh: `run` is not called for it. With `one_gpu` those that may
    use a GPU run one at a time.
    On an interruption `stop` is set, the running stages end, and the interruption is raised again.
    """
    results: dict[str, StageResult] = dict(completed or {})
    waiting = {node.name: node for node in nodes}
    running: dict[Future[StageResult], StageNode] = {}
    with ThreadPoolExecutor(jobs, thread_name_prefix="stage") as pool:
        try:
            while waiting or running:
                for result in _take_without_running(waiting, results, reasons=reasons):
                    results[result.name] = result
                    callback.on_stage_end(result)
                for node in _select_next(
                    waiting, results, [*running.values()], jobs=jobs, exclusive_gpu=exclusive_gpu
                ):
                    # the caller's context comes along, so that Prefect's tasks know their flow
                    future = pool.submit(
                        contextvars.copy_context().run,
                        _run_with_callback,
                        waiting.pop(node.name),
                        run=run,
                        callback=callback,
                    )
                    running[future] = node
                for future in wait(running, return_when=FIRST_COMPLETED).done:
                    del running[future]
                    results[future.result().name] = future.result()
                    callback.on_stage_end(future.result())
        except BaseException:
            stop_event.set()
            raise
    return results


def _take_without_running(
    waiting: dict[str, StageNode],
    results: Mapping[str, StageResult],
    *,
    reasons: Mapping[str, tuple[str, ...]],
) -> Iterator[StageResult]:
    """Take the stages that need not run, or cannot, out of `waiting`, one after the other: each may settle others."""
    while True:
        early = (
            _result_without_running(node, results=results, reasons=reasons[node.name])
            for node in _ready_stages(waiting, results)
        )
        result = next((result for result in early if result is not None), None)
        if result is None:
            return
        del waiting[result.name]
        yield result


def _run_with_callback(
    node: StageNode, *, run: StageRunner, callback: ProgressCallback
) -> StageResult:
    callback.on_stage_begin(node.name)
    return run(node)


def _select_next(
    waiting: Mapping[str, StageNode],
    results: Mapping[str, StageResult],
    running: list[StageNode],
    *,
    jobs: int,
    exclusive_gpu: bool,
) -> list[StageNode]:
    """Those that are to begin beside the ones that run."""
    busy, chosen = exclusive_gpu and any(node.pool == "gpu" for node in running), list[StageNode]()
    for node in _ready_stages(waiting, results):
        if not (busy and node.pool == "gpu") and len(running) + len(chosen) < jobs:
            chosen.append(node)
            busy = busy or (exclusive_gpu and node.pool == "gpu")
    return chosen


def _ready_stages(
    waiting: Mapping[str, StageNode], results: Mapping[str, StageResult]
) -> list[StageNode]:
    """Those whose needs have ended; the longest way ahead first."""
    return sorted(
        (node for node in waiting.values() if all(need in results for need in node.upstream)),
        key=lambda node: -node.downstream_depth,
    )


def _result_without_running(
    node: StageNode, *, results: Mapping[str, StageResult], reasons: tuple[str, ...]
) -> StageResult | None:
    """The result of a stage that need not run, or cannot; None where it has to be run."""
    for need in node.upstream:
        if not results[need].succeeded:
            return StageResult(
                node.name,
                "blocked",
                exit_status=results[need].exit_status,
                message=f"{node.name}: not run, since {need} did not end well",
            )
    if not reasons and all(results[need].outcome == "fresh" for need in node.upstream):
        return StageResult(node.name, "fresh")
    return None


def count_failed_results(root: Path) -> int:
    """How many rows of reports/results.csv say that their cell failed; a trial that did is none, where another one has a value."""
    path = root / "reports" / "results.csv"
    if not path.is_file():
        return 0
    with path.open(newline="", encoding="utf-8") as stream:
        return sum(
            row.get("status") == "failed" and row.get("trial") == "chosen"
            for row in csv.DictReader(stream)
        )


def pipeline_exit_status(results: Mapping[str, StageResult], root: Path) -> int:
    """0 done; 2 bad configuration or bad input; 3 finished, but cells failed; 1 anything else."""
    failed = [result for result in results.values() if not result.succeeded]
    if any(
        result.outcome == "failed" and result.exit_status == EXIT_BAD_INPUT for result in failed
    ):
        return EXIT_BAD_INPUT
    if failed:
        return 1
    return 3 if count_failed_results(root) else 0
