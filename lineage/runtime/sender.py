"""Send the journals of stages to MLflow: while a stage runs, and what has waited since earlier.

An attempt begins at the start of the journal. The time and step of each value are those that the
stage has noted, and steps that MLflow has already are left out, so that nothing is there twice.
"""

import contextlib
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

from mlflow import entities
from mlflow.exceptions import MlflowException
from mlflow.protos.databricks_pb2 import INVALID_PARAMETER_VALUE, RESOURCE_DOES_NOT_EXIST, ErrorCode
from mlflow.system_metrics.system_metrics_monitor import SystemMetricsMonitor

from lineage.runtime import journal
from lineage.runtime.journal import OTHER_VERSION, JournalError, RunStatus, StageEnd
from lineage.runtime.locks import try_lock
from lineage.runtime.provenance import common_tags, get_pipeline_id
from lineage.runtime.server_time import ServerTime, limit_client
from lineage.runtime.settings import resolve_tracking_uri
from lineage.runtime.tracking import (
    STORE_ERRORS,
    MlflowTracker,
    connect,
    find_parent,
    get_or_create_parent,
    get_or_create_stage_run,
    warn,
)

RETRY_SECONDS = 10.0  # between attempts while the stage runs
SYSTEM_METRICS_SECONDS = 5.0  # between samples: some for a stage of 20 s, not too many for hours
# MLflow refuses the content, and would do so again.
REFUSALS = {ErrorCode.Name(code) for code in (INVALID_PARAMETER_VALUE, RESOURCE_DOES_NOT_EXIST)}

RunCallback = Callable[[str], None]  # takes the id of the run; empty if MLflow does not answer


def send_live_journal(path: Path, is_closed: threading.Event, on_run: RunCallback) -> None:
    """Send the journal of a stage until it is closed, and before it those that wait.

    If MLflow does not answer, one line is printed, and requests are repeated while the stage runs.
    """
    has_warned = False
    while True:
        try:
            for older in journal.list_waiting():
                if older.name < path.name:
                    _send_if_free(older)
            _send(path, is_closed, on_run)
            return
        except STORE_ERRORS as error:
            on_run("")
            if not has_warned:
                stage = journal.read_stage_run(path).stage
                warn(f"{stage} goes on without MLflow, which gets its values later", error)
                has_warned = True
        if is_closed.wait(RETRY_SECONDS):
            return


@contextlib.contextmanager
def send_waiting(parent: MlflowTracker) -> Iterator[None]:
    """Send the journals of earlier stages in a thread, while the block works on the parent run.

    Nothing is sent without a parent run: MLflow does not answer. A line says if some still wait.
    """
    thread = threading.Thread(target=_send_waiting, daemon=True)
    if parent.run_id:
        thread.start()
    yield
    if parent.run_id:
        thread.join(journal.MAX_WAIT_SECONDS)
    num_waiting = len(journal.list_waiting())
    if num_waiting:
        stages = "1 stage wait" if num_waiting == 1 else f"{num_waiting} stages wait"
        print(
            f"tracking: the values of {stages} in {journal.JOURNAL_DIR}; the next run sends them",
            file=sys.stderr,
        )


def _send_waiting() -> None:
    try:
        for path in journal.list_waiting():
            _send_if_free(path)
    except STORE_ERRORS as error:
        warn("could not send the values of earlier stages", error)


def _send_if_free(path: Path) -> None:
    """Send a journal, unless its stage or another process does so, or has done so."""
    try:
        stream = path.open("r+")
    except FileNotFoundError:
        return
    with stream:
        if try_lock(stream) and path.is_file():
            _send(path)


def _send(
    path: Path, is_closed: threading.Event | None = None, on_run: RunCallback = lambda run_id: None
) -> None:
    """Send a journal to its end and remove it. Keep one that is refused under another name.

    `is_closed` is that of a stage that runs now.
    """
    try:
        _replay(path, is_closed, on_run)
    except (JournalError, MlflowException) as error:
        if isinstance(error, MlflowException) and error.error_code not in REFUSALS:
            raise
        path.rename(path.with_suffix(".rejected"))
        warn(f"{path.name} is refused, and kept in {path.parent}", error)
    else:
        path.unlink()


def _replay(path: Path, is_closed: threading.Event | None, on_run: RunCallback) -> None:
    """Repeat the calls of a stage on its run in MLflow, to the end of the journal."""
    stage_run = journal.read_stage_run(path)
    is_live = is_closed is not None
    store = connect(stage_run.pipeline)
    parent = get_or_create_parent(
        store, stage_run.common_tags, start_time=stage_run.start_time, has_ended=not is_live
    )
    run = get_or_create_stage_run(store, stage_run, parent)
    on_run(run.info.run_id)
    tracker = MlflowTracker(store.client, run=run, tolerates_failures=False)
    monitor = _sample_machine(run) if is_live else contextlib.nullcontext()
    summary: dict[str, float] = {}
    end = StageEnd("KILLED")
    with monitor:
        for events in journal.follow(path, is_closed):
            for method, arguments in events:
                try:
                    if method == "log_metrics":
                        tracker.log_metrics(**arguments)
                    elif method == "log_summary":
                        summary |= {key: float(value) for key, value in arguments.items()}
                    else:
                        end = StageEnd(**arguments)
                except TypeError as error:
                    raise JournalError(f"{OTHER_VERSION}: {method}: {error}") from error
            tracker.flush()
    tracker.log_summary(summary, time_ms=end.time_ms)
    if end.failure:
        tracker.set_note(end.failure)
    tracker.end(end.run_status, end_time=end.time_ms)
    if end.status != "FINISHED" and is_live:
        # publish, which ends the parent, may not run; a stage that runs later opens it again.
        MlflowTracker(store.client, run=parent, tolerates_failures=False).end(end.status)


@contextlib.contextmanager
def _sample_machine(run: entities.Run) -> Iterator[None]:
    """Log metrics of the machine while the block lasts."""
    monitor = SystemMetricsMonitor(
        run.info.run_id,
        sampling_interval=SYSTEM_METRICS_SECONDS,
        resume_logging=True,
        tracking_uri=resolve_tracking_uri(),
    )
    monitor.start()
    try:
        yield
    finally:
        monitor.finish()


def main() -> None:
    """Send what waits, and end the pipeline's run: `python -m lineage.runtime.sender STATUS`.

    A run in which a stage failed is never published, which would end its parent.
    """
    server_time = ServerTime()
    status: RunStatus = "KILLED" if sys.argv[1] == "KILLED" else "FAILED"
    with contextlib.suppress(*STORE_ERRORS):
        with server_time.limit():
            store = connect(get_pipeline_id())
            parent = find_parent(store)
            if parent is None and journal.list_waiting():
                parent = get_or_create_parent(store, common_tags(store.pipeline))
        if parent is None:
            return
        tracker = MlflowTracker(limit_client(store.client, server_time), run=parent)
        with send_waiting(tracker):
            # A run that was stopped may have had nothing to do: its parent has ended well before.
            if status == "FAILED" or parent.info.status == "RUNNING":
                tracker.end(status)


if __name__ == "__main__":
    main()
