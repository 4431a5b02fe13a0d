"""Run one stage, on a worker or on this machine, and mend what comes damaged from the cache."""

import contextlib
import dataclasses
import json
import sys
import threading
from collections.abc import Callable
from pathlib import Path

from flows.execute import (
    EXIT_BAD_INPUT,
    DvcError,
    StageContext,
    StageResult,
    WorkersUnreachableError,
    run_dvc,
    run_stage,
)
from flows.integrity import describe_damage, remove_damaged_result
from flows.plan import StageNode, read_default_remote, uses_cuda
from flows.scheduler import StageRunner
from lineage.errors import InputError
from lineage.runtime.provenance import SOURCES_DIR, archive_stage_metadata, read_lock_entry
from lineage.runtime.settings import METADATA_DIR

# Run a stage on a worker.
RemoteRunner = Callable[[StageNode, StageContext], StageResult]


def make_runner(
    context: StageContext,
    jobs: int,
    cache: Path,
    run_remotely: RemoteRunner | None,
) -> StageRunner:
    """Return the function that runs a stage, on a worker or on this machine.

    All stages run here without `run_remotely`, and from the moment that no worker can be reached.
    """
    # Limits this machine, also if most stages run elsewhere.
    local_slots = threading.BoundedSemaphore(jobs)
    # With workers the scheduler starts several GPU stages at a time. Those that have to run here
    # after all take turns.
    gpu = threading.Lock() if uses_cuda(context.root) else contextlib.nullcontext()
    workers_are_gone = threading.Event()
    message_lock = threading.Lock()

    def try_worker(node: StageNode) -> StageResult | None:
        """Return the result of a worker, or None if the stage has to run here."""
        if run_remotely is None or workers_are_gone.is_set() or _must_run_here(node, context.root):
            return None
        try:
            return run_remotely(node, context)
        except WorkersUnreachableError as error:
            with message_lock:
                if not workers_are_gone.is_set() and not context.stop_event.is_set():
                    print(f"{error}; the stages that are left run here", file=sys.stderr)
                workers_are_gone.set()
            return None

    def run_here(node: StageNode) -> StageResult:
        turn = gpu if node.pool == "gpu" else contextlib.nullcontext()
        with local_slots, turn:
            return run_stage(node.name, context=context, timeout_seconds=node.timeout_seconds)

    def run(node: StageNode) -> StageResult:
        result = try_worker(node)
        if result is None:
            result = run_here(node)
        if result.outcome == "ran":
            _archive_metadata(node.name, context.root)
        return result

    return _check_cached_results(run, context, cache)


def _must_run_here(node: StageNode, root: Path) -> bool:
    """Return whether a stage reads the user's files, which workers do not have."""
    if node.pool == "local":
        return True
    # The sources stage has written it by now.
    path = root / SOURCES_DIR / "home_stages.json"
    return path.is_file() and node.name in json.loads(path.read_text())


def _archive_metadata(name: str, root: Path) -> None:
    """Note which entry of dvc.lock a stage's metadata belongs to.

    Done at once, since the stage may run again before publish does.
    """
    # A failure here must not end the run.
    with contextlib.suppress(InputError, OSError, ValueError):
        archive_stage_metadata(root / METADATA_DIR, name, read_lock_entry(root, name))


def _check_cached_results(run: StageRunner, context: StageContext, cache: Path) -> StageRunner:
    """Return a runner that runs a stage again if its result has come damaged from the cache."""

    def remove_damaged(result: StageResult) -> list[str]:
        """Remove the damaged files of a cached result, and return their outputs."""
        if result.outcome != "cached":
            return []
        entry = read_lock_entry(context.root, result.name)
        return remove_damaged_result(context.root, cache, entry)

    def run_checked(node: StageNode) -> StageResult:
        result = run(node)
        damaged = remove_damaged(result)
        if not damaged:
            return result
        fetch_result(node.name, context)
        result = run(node)
        if remove_damaged(result):
            # The remote's files are damaged too. Now the stage itself runs, if it runs here.
            result = run(node)
        still_damaged = remove_damaged(result)  # a worker has pulled them once more
        if still_damaged:
            message = (
                f"{node.name}: {', '.join(still_damaged)} came damaged from the DVC remote; "
                "remove the files there, and run again"
            )
            return StageResult(node.name, "failed", result.seconds, EXIT_BAD_INPUT, message)
        message = result.message or describe_damage(node.name, damaged)
        return dataclasses.replace(result, message=message)

    return run_checked


def fetch_result(name: str, context: StageContext) -> None:
    """Bring a result from the DVC remote into the cache, if there is one that has it.

    Otherwise the stage runs again.
    """
    with contextlib.suppress(InputError, DvcError):
        if read_default_remote(context.root) is not None:
            run_dvc("fetch", name, context=context, name=name)
