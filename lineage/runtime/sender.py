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
from mlflow.protos.databricks_pb2 import (
    INVALID_PARAMETER_VALUE,
    RESOURCE_DOES_NOT_EXIST,
    ErrorCode,
)
from mlflow.system_metrics.system_metrics_monitor import SystemMetricsMonitor

from lineage.runtime import journal
from lineage.runtime.journal import Claim, JournalError, StageRun
from lineage.runtime.provenance import common_tags, get_pipeline_id
from lineage.runtime.server_time import ServerTime, limit_client
from lineage.runtime.settings import resolve_tracking_uri
from lineage.runtime.tracking import (
    STORE_ERRORS,
    MlflowTracker,
    RunStatus,
    Store,
    connect,
    find_parent,
    get_or_create_parent,
    log_inputs,
    name_tags,
    reopen_unfinished,
    warn,
)

RETRY_SECONDS = 10.0  # between attempts while the stage runs
SYSTEM_METRICS_SECONDS = 5.0  # between samples: some for a stage of 20 s, not too many for hours
# MLflow refuses the content, and would do so again.
REFUSALS = {ErrorCode.Name(code) for code in (INVALID_PARAMETER_VALUE, RESOURCE_DOES_NOT_EXIST)}

RunCallback = Callable[[str], None]  # takes the id of the run in MLflow; empty if it is not known


def _ignore_run(run_id: str) -> None:
    pass


def send_journal(path: Path, *, on_run: RunCallback = _ignore_run) -> bool:
    """Send a journal until its stage has ended; return whether MLflow has everything.

    Older journals come first. If MLflow does not answer, one line is printed, and it is asked again
    for as long as the stage runs.
    """
    has_warned = False
    run_id = ""

    def note_run(found: str) -> None:
        nonlocal run_id
        run_id = found
        on_run(found)

    while True:
        try:
            _send_older(path)
            return _send_once(path, is_live=True, on_run=note_run)
        except STORE_ERRORS as error:
            on_run(run_id)
            if not has_warned:
                stage = journal.read_stage_run(path).stage
                warn(f"{stage} goes on without MLflow, which gets its values later", error)
                has_warned = True
        if journal.wait_for_end(path, RETRY_SECONDS):
            return False


@contextlib.contextmanager
def send_waiting(parent: MlflowTracker) -> Iterator[None]:
    """Send the journals of earlier stages in a thread, while the block works on the parent run.

    Without a parent run MLflow does not answer, and nothing is sent. A line says if some still
    wait.
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
            _send_once(path, is_live=False)
    except STORE_ERRORS as error:
        warn("could not send the values of earlier stages", error)


def _send_older(path: Path) -> None:
    """Send journals that wait since before this one: a stage may go on in the run of another."""
    for older in journal.list_waiting():
        if older.name < path.name:
            _send_once(older, is_live=False)


def _send_once(path: Path, *, is_live: bool, on_run: RunCallback = _ignore_run) -> bool:
    """Send a journal to its end and remove it, unless another process does so.

    `is_live` says that its stage belongs to the pipeline that runs now. Return whether MLflow has
    everything.
    """
    with journal.claim(path) as claim:
        if claim is None:
            return False
        try:
            stage_run = journal.read_stage_run(path)
            _replay(claim, stage_run, is_live=is_live, on_run=on_run)
        except JournalError as error:
            _reject(claim, error)
            return False
        except MlflowException as error:
            if error.error_code not in REFUSALS:
                raise
            _reject(claim, error)
            return False
        claim.remove()
        return True


def _reject(claim: Claim, error: Exception) -> None:
    claim.reject()
    warn(f"{claim.path.name} is refused, and kept in {claim.path.parent}", error)


def _replay(claim: Claim, stage_run: StageRun, *, is_live: bool, on_run: RunCallback) -> None:
    """Repeat the calls of a stage on its run in MLflow, to the end of the journal."""
    store = connect(stage_run.pipeline)
    parent = get_or_create_parent(
        store,
        stage_run.common_tags,
        start_time=stage_run.start_time,
        has_ended=not is_live,
    )
    run = _find_or_create_run(store, claim, stage_run, parent.info.run_id)
    claim.note_run_id(run.info.run_id)
    on_run(run.info.run_id)
    tracker = MlflowTracker(store.client, run=run, tolerates_failures=False)
    monitor = _start_monitor(run) if is_live else None
    status: RunStatus = "KILLED"
    failure = ""
    training_failed = False
    end_time = None
    summary: dict[str, float] = {}
    try:
        for method, arguments in journal.follow(claim.path):
            if method == "log_metrics":
                tracker.log_metrics(**arguments)
            elif method == "log_summary":
                summary.update(arguments["values"])
            elif method == "flush":
                tracker.flush()
            else:
                status = arguments["status"]
                failure = arguments["failure"]
                training_failed = arguments["training_failed"]
                end_time = arguments["time_ms"]
    finally:
        if monitor is not None:
            monitor.finish()
    tracker.log_summary(summary)
    if failure:
        tracker.set_note(failure)
    stage_failed = status != "FINISHED"
    if training_failed and status == "FINISHED":
        status = "FAILED"
    tracker.end(status, end_time=end_time)
    if stage_failed and is_live:
        # publish, which ends the parent, may not run; a stage that runs later opens it again.
        MlflowTracker(store.client, run=parent, tolerates_failures=False).end(status)


def _start_monitor(run: entities.Run) -> SystemMetricsMonitor:
    """Begin to sample the machine."""
    monitor = SystemMetricsMonitor(
        run.info.run_id,
        sampling_interval=SYSTEM_METRICS_SECONDS,
        resume_logging=True,
        tracking_uri=resolve_tracking_uri(),
    )
    monitor.start()
    return monitor


def _find_or_create_run(
    store: Store, claim: Claim, stage_run: StageRun, parent_id: str
) -> entities.Run:
    """Return the run of an earlier attempt, or that which the stage left when killed, or a new one.

    An attempt may have failed after MLflow had created the run; the start time tells.
    """
    run_id = claim.read_run_id()
    if run_id:
        return store.client.get_run(run_id)
    begun = f"tags.stage = '{stage_run.stage}' AND attributes.start_time = {stage_run.start_time}"
    run = store.find_run(begun, newest_first=True)
    if run is None:
        run = reopen_unfinished(
            store, stage_run.stage, parameters=stage_run.parameters, tags=stage_run.tags
        )
        if run is not None:
            return run
        run = store.client.create_run(
            store.experiment_id,
            start_time=stage_run.start_time,
            tags={
                **stage_run.common_tags,
                **name_tags(stage_run.stage, stage_run.stage),
                **stage_run.tags,
                "mlflow.parentRunId": parent_id,
            },
        )
    log_inputs(
        store.client,
        run.info.run_id,
        parameters=stage_run.parameters,
        datasets=stage_run.list_datasets(),
    )
    return run


def main() -> None:
    """Send what waits, and end the pipeline's run: `python -m lineage.runtime.sender STATUS`.

    A run in which a stage failed is never published, which would end its parent; stages that went
    on have opened it again.
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
