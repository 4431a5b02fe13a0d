"""Run the stale stages, several at a time, each after the stages that it depends on."""

import contextvars
import csv
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from pathlib import Path

from flows.execute import EXIT_BAD_INPUT, EXIT_RESULTS_FAILED, StageResult
from flows.plan import Reasons, StageNode, in_run_order

StageRunner = Callable[[StageNode], StageResult]


class ProgressCallback:
    """Receives the end of every stage, the beginning of those that run, and an interruption."""

    def on_stage_begin(self, name: str) -> None:
        pass

    def on_stage_end(self, result: StageResult) -> None:
        pass

    def on_interrupt(self) -> None:
        pass


def run_stages(
    nodes: list[StageNode],
    *,
    reasons: Mapping[str, Reasons],
    run: StageRunner,
    jobs: int,
    stop_event: threading.Event,
    callback: ProgressCallback,
    exclusive_gpu: bool = False,
    completed: Mapping[str, StageResult] | None = None,
) -> dict[str, StageResult]:
    """Return every stage's result by name, including those that are `completed` already.

    A failed stage blocks the stages that depend on it. `run` is not called for a fresh stage: one
    that has no reason to run and depends on fresh stages only. With `exclusive_gpu`, stages that
    may use a GPU run one at a time. On an interruption `stop_event` is set, and it is raised again.
    """
    results: dict[str, StageResult] = dict(completed or {})
    waiting = {node.name: node for node in nodes}
    running: dict[Future[StageResult], StageNode] = {}

    def run_with_callback(node: StageNode) -> StageResult:
        callback.on_stage_begin(node.name)
        return run(node)

    with ThreadPoolExecutor(jobs, thread_name_prefix="stage") as pool:
        try:
            while waiting or running:
                for result in _take_without_running(waiting, results, reasons=reasons):
                    results[result.name] = result
                    callback.on_stage_end(result)
                ready = [
                    node
                    for node in waiting.values()
                    if all(name in results for name in node.upstream)
                ]
                for node in select_next(
                    in_run_order(ready), [*running.values()], jobs=jobs, exclusive_gpu=exclusive_gpu
                ):
                    del waiting[node.name]
                    # The caller's context comes along, so that Prefect's tasks know their flow.
                    context = contextvars.copy_context()
                    running[pool.submit(context.run, run_with_callback, node)] = node
                for future in wait(running, return_when=FIRST_COMPLETED).done:
                    del running[future]
                    result = future.result()
                    results[result.name] = result
                    callback.on_stage_end(result)
        except BaseException:
            stop_event.set()
            if running:
                callback.on_interrupt()
            raise
    return results


def _take_without_running(
    waiting: dict[str, StageNode],
    results: Mapping[str, StageResult],
    *,
    reasons: Mapping[str, Reasons],
) -> Iterator[StageResult]:
    """Remove the stages that need not run, or cannot, from `waiting`.

    The caller adds each result to `results`, which may decide further stages.
    """
    for node in [*waiting.values()]:  # each comes after the stages that it depends on
        if all(name in results for name in node.upstream):
            result = _result_without_running(node, results=results, reasons=reasons[node.name])
            if result is not None:
                del waiting[node.name]
                yield result


def _result_without_running(
    node: StageNode, *, results: Mapping[str, StageResult], reasons: Reasons
) -> StageResult | None:
    """Return the result of a stage that need not run, or cannot; None if it has to run."""
    for name in node.upstream:
        if not results[name].succeeded:
            return StageResult(
                node.name,
                "blocked",
                exit_status=results[name].exit_status,
                message=f"{node.name}: not run, since {name} did not end well",
            )
    if not reasons and all(results[name].outcome == "fresh" for name in node.upstream):
        return StageResult(node.name, "fresh")
    return None


def select_next(
    ready: Sequence[StageNode], running: Sequence[StageNode], *, jobs: int, exclusive_gpu: bool
) -> list[StageNode]:
    """Return the ready stages that are to begin while others run."""
    gpu_is_free = not any(node.pool == "gpu" for node in running)
    chosen: list[StageNode] = []
    for node in ready:
        if len(running) + len(chosen) >= jobs:
            break
        if exclusive_gpu and node.pool == "gpu":
            if not gpu_is_free:
                continue
            gpu_is_free = False
        chosen.append(node)
    return chosen


def count_failed_results(root: Path) -> int:
    """Count the rows of reports/results.csv whose status is failed."""
    path = root / "reports" / "results.csv"
    if not path.is_file():
        return 0
    with path.open(newline="", encoding="utf-8") as stream:
        rows = csv.DictReader(stream)
        return sum(row.get("status") == "failed" and row.get("trial") == "chosen" for row in rows)


def pipeline_exit_status(results: Mapping[str, StageResult], root: Path) -> int:
    """Return 0 done, 2 bad configuration or input, 3 finished but results failed, 1 otherwise."""
    failed = [result for result in results.values() if not result.succeeded]
    for result in failed:
        if result.outcome == "failed" and result.exit_status == EXIT_BAD_INPUT:
            return EXIT_BAD_INPUT
    if failed:
        return 1
    return EXIT_RESULTS_FAILED if count_failed_results(root) else 0
