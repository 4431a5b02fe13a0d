"""Track a stage in MLflow. The stage writes a journal, and a thread of the stage sends it.

The stage never waits for MLflow, except at its end, and then not for long. What is not sent by then
is sent by a later stage, or by the end of the run.
"""

import contextlib
import os
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict

from lineage.errors import describe_failure
from lineage.runtime.database import find_database
from lineage.runtime.journal import (
    END,
    KEEP_VARIABLE,
    MAX_WAIT_SECONDS,
    JournalWriter,
    RunStatus,
    StageEnd,
    StageRun,
    current_ms,
)
from lineage.runtime.provenance import Dataset, common_tags, get_pipeline_id

# How long a sender waits for an answer of a server that may be busy. MLflow reads this variable.
TIMEOUT_VARIABLE = "MLFLOW_HTTP_REQUEST_TIMEOUT"
SENDER_SECONDS = "15"
CREATION_SECONDS = 60.0  # that a stage waits for a new database, which could not be resumed
MAX_PARAM_LENGTH = 6000  # characters of a parameter's value that MLflow takes


class Tracker:
    """The MLflow run of one stage. This one logs nothing, as in a rehearsal."""

    training_failed = False  # set it when training ended without a model and the stage goes on

    @property
    def run_id(self) -> str:
        """MLflow's id of this run; empty if MLflow has not answered."""
        return ""

    def log_metrics(
        self, values: Mapping[str, float], *, step: int = 0, text_bytes: int | None = None
    ) -> None:
        """Log values of one step. See `MlflowTracker.log_metrics`."""

    def log_summary(self, values: Mapping[str, float]) -> None:
        """Log values of the whole run; the last one of each key counts."""


@contextlib.contextmanager
def track_stage(
    stage: str,
    *,
    parameters: Mapping[str, object],
    tags: Mapping[str, str],
    datasets: Sequence[Dataset] = (),
) -> Iterator["StageTracker"]:
    """Open the MLflow run of a stage. Close it as FINISHED, FAILED, or KILLED if interrupted."""
    pipeline = get_pipeline_id()
    tracker = StageTracker(
        StageRun(
            stage,
            pipeline,
            flatten_params(parameters),
            dict(tags),
            common_tags(pipeline),
            [*datasets],
        )
    )
    status: RunStatus = "KILLED"
    failure = ""
    try:
        yield tracker
        status = "FINISHED"
    except Exception as error:
        status = "FAILED"
        failure = describe_failure(error)
        raise
    finally:
        tracker.end(status, failure)


def flatten_params(tree: Mapping[str, object], prefix: str = "") -> dict[str, str]:
    """Flatten nested parameters as MLflow takes them: budget.text_bytes -> "4000"."""
    flattened: dict[str, str] = {}
    for key, value in tree.items():
        if isinstance(value, Mapping):
            flattened.update(flatten_params(value, f"{prefix}{key}."))
        else:
            flattened[f"{prefix}{key}"] = str(value)[:MAX_PARAM_LENGTH]
    return flattened


class StageTracker(Tracker):
    """The tracker of one stage. What it logs is in the stage's journal, on the disk."""

    def __init__(self, run: StageRun) -> None:
        self._journal = JournalWriter(run)
        database = find_database()
        is_new = database is not None and not database.is_file()
        self._seconds_left = CREATION_SECONDS if is_new else MAX_WAIT_SECONDS
        self._run_id = ""
        self._run_is_known = threading.Event()
        self._has_sent = threading.Event()  # or cannot send now
        if os.environ.get(KEEP_VARIABLE):
            self._leave_journal()
            return
        try:
            threading.Thread(target=self._send, name="MLflow", daemon=True).start()
        except RuntimeError as error:  # the machine allows no further thread
            print(f"tracking: MLflow gets the values of this stage later: {error}", file=sys.stderr)
            self._leave_journal()

    @property
    def run_id(self) -> str:
        self._wait(self._run_is_known)
        return self._run_id

    def log_metrics(
        self, values: Mapping[str, float], *, step: int = 0, text_bytes: int | None = None
    ) -> None:
        event = {
            "values": {key: float(value) for key, value in values.items()},
            "step": int(step),
            "text_bytes": text_bytes,
            "time_ms": current_ms(),
        }
        self._write("log_metrics", event)

    def log_summary(self, values: Mapping[str, float]) -> None:
        self._write("log_summary", {key: float(value) for key, value in values.items()})

    def end(self, status: RunStatus, failure: str) -> None:
        """Close the run, and wait a little for MLflow, so that publish finds it closed."""
        self._write(END, asdict(StageEnd(status, failure, self.training_failed, current_ms())))
        self._journal.close()
        if self._wait(self._has_sent):
            self._journal.release()
        else:
            print(
                "tracking: MLflow does not keep up; it gets the values of this stage later",
                file=sys.stderr,
            )

    def _leave_journal(self) -> None:
        """Send nothing: the journal waits."""
        self._run_is_known.set()
        self._has_sent.set()

    def _write(self, method: str, arguments: Mapping[str, object]) -> None:
        if self._journal.is_closed.is_set():
            return
        try:
            self._journal.write(method, arguments)
        except OSError as error:
            self._journal.close()
            print(
                "tracking: the journal cannot be written to, and this stage goes on without "
                f"MLflow: {error.strerror}",
                file=sys.stderr,
            )

    def _wait(self, event: threading.Event) -> bool:
        """Wait for the thread as long as this stage still may; return whether that was enough."""
        start_time = time.monotonic()
        is_set = event.wait(self._seconds_left)
        self._seconds_left = max(0.0, self._seconds_left - (time.monotonic() - start_time))
        return is_set

    def _send(self) -> None:
        os.environ.setdefault(TIMEOUT_VARIABLE, SENDER_SECONDS)
        try:
            # Imported here: MLflow takes seconds where it is not preloaded.
            from lineage.runtime import sender

            sender.send_live_journal(self._journal.path, self._journal.is_closed, self._set_run)
        except ImportError as error:
            print(
                "tracking: MLflow cannot be imported, and gets the values of this stage later: "
                f"{error}",
                file=sys.stderr,
            )
        finally:
            self._run_is_known.set()
            self._has_sent.set()
            self._journal.is_closed.wait()  # the stage may still write
            self._journal.release()

    def _set_run(self, run_id: str) -> None:
        self._run_id = self._run_id or run_id
        self._run_is_known.set()
