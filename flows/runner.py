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
from flows.integrity import describe_damage, remove_damaged_files
from flows.plan import StageNode, read_default_remote, uses_cuda
from flows.scheduler import StageRunner
from lineage.errors import InputError
from lineage.runtime.provenance import SOURCES_DIR, archive_stage_metadata, read_lock_entry
from lineage.runtime.settings import METADATA_DIR

# Run a stage on a worker.
RemoteRunner = Callable[[StageNode, StageContext], StageResult]


def make_runner(
    context: StageContext, jobs: int, cache: Path, run_remotely: RemoteRunner | None
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
        if run_remotely is None or workers_are_gone.is_set() or must_run_here(node, context.root):
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
            # At once, since the stage may run again before publish archives it. A failure here must
            # not end the run.
            with contextlib.suppress(InputError, OSError, ValueError):
                entry = read_lock_entry(context.root, node.name)
                archive_stage_metadata(context.root / METADATA_DIR, node.name, entry)
        return result

    return _check_cached_results(run, context, cache)


def must_run_here(node: StageNode, root: Path) -> bool:
    """Return whether a stage reads the user's files, which workers do not have."""
    if node.pool == "local":
        return True
    # The sources stage has written it by now.
    path = root / SOURCES_DIR / "home_stages.json"
    return path.is_file() and node.name in json.loads(path.read_text())


def _check_cached_results(run: StageRunner, context: StageContext, cache: Path) -> StageRunner:
    """Return a runner that runs a stage again if its result has come damaged from the cache."""

    def run_checked(node: StageNode) -> StageResult:
        damaged_before: list[str] = []
        # From the cache, from the remote, and by the stage itself, if it runs here.
        for attempt in range(3):
            result = run(node)
            damaged: list[str] = []
            if result.outcome == "cached":
                entry = read_lock_entry(context.root, result.name)
                damaged = remove_damaged_files(
                    context.root, cache, entry.get("outs", ()), check_cache=False
                )
            if not damaged:
                break
            damaged_before = damaged_before or damaged
            if attempt == 0:
                fetch_result(node.name, context)
        else:  # a worker has pulled the remote's damaged files once more
            message = (
                f"{node.name}: {', '.join(damaged)} came damaged from the DVC remote; "
                "remove the files there, and run again"
            )
            return StageResult(node.name, "failed", result.seconds, EXIT_BAD_INPUT, message)
        if not damaged_before:
            return result
        message = result.message or describe_damage(node.name, damaged_before)
        return dataclasses.replace(result, message=message)

    return run_checked


def fetch_result(name: str, context: StageContext) -> None:
    """Bring a result from the DVC remote into the cache, if there is one that has it."""
    with contextlib.suppress(InputError, DvcError):
        if read_default_remote(context.root) is not None:
            run_dvc("fetch", name, context=context, name=name)
