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
from pathlib import Path
from typing import Protocol

from lineage.errors import describe_failure
from lineage.runtime.journal import (
    END,
    MAX_WAIT_SECONDS,
    JournalWriter,
    current_ms,
    describe_stage_run,
)
from lineage.runtime.provenance import Dataset, common_tags, get_pipeline_id

# How long a sender waits for an answer of a server that may be busy. MLflow reads this variable.
TIMEOUT_VARIABLE = "MLFLOW_HTTP_REQUEST_TIMEOUT"
SENDER_SECONDS = "15"
MAX_PARAM_LENGTH = 6000  # characters of a parameter's value that MLflow takes


class Tracker(Protocol):
    """The MLflow run of one stage. Where there is no store, its methods do nothing."""

    training_failed: bool  # set it when training ended without a model and the stage goes on

    @property
    def run_id(self) -> str: ...

    def log_metrics(
        self, values: Mapping[str, float], *, step: int = 0, text_bytes: int | None = None
    ) -> None: ...

    def log_summary(self, values: Mapping[str, float]) -> None: ...

    def flush(self) -> None: ...


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
    stage_run = describe_stage_run(
        stage,
        pipeline,
        parameters=flatten_params(parameters),
        tags=tags,
        common_tags=common_tags(pipeline),
        datasets=datasets,
    )
    journal = JournalWriter(stage_run)
    tracker = StageTracker(journal, _Sender(journal.path))
    status = "KILLED"
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


class StageTracker:
    """The tracker of one stage. What it logs is in the stage's journal, on the disk."""

    def __init__(self, journal: JournalWriter, sender: "_Sender") -> None:
        self._journal: JournalWriter | None = journal
        self._sender = sender
        self._seconds_left = MAX_WAIT_SECONDS
        self.training_failed = False

    @property
    def run_id(self) -> str:
        """MLflow's id of this run; empty if MLflow has not answered."""
        with self._count_seconds():
            return self._sender.wait_for_run(self._seconds_left)

    def log_metrics(
        self, values: Mapping[str, float], *, step: int = 0, text_bytes: int | None = None
    ) -> None:
        """See `MlflowTracker.log_metrics`."""
        numbers = {key: float(value) for key, value in values.items()}
        self._write(
            "log_metrics",
            values=numbers,
            step=int(step),
            text_bytes=text_bytes,
            time_ms=current_ms(),
        )

    def log_summary(self, values: Mapping[str, float]) -> None:
        """See `MlflowTracker.log_summary`; the last value of each key counts."""
        self._write("log_summary", values={key: float(value) for key, value in values.items()})

    def flush(self) -> None:
        """Let MLflow have what was logged until now, but do not wait for it."""
        self._write("flush")

    def end(self, status: str, failure: str) -> None:
        """Close the run, and wait a little for MLflow, so that publish finds it closed."""
        self._write(
            END,
            status=status,
            failure=failure,
            training_failed=self.training_failed,
            time_ms=current_ms(),
        )
        if self._journal is not None:
            self._journal.close()
            self._journal = None
        with self._count_seconds():
            if not self._sender.wait_for_end(self._seconds_left):
                print(
                    "tracking: MLflow does not keep up; it gets the values of this stage later",
                    file=sys.stderr,
                )

    def _write(self, method: str, **arguments: object) -> None:
        if self._journal is None:
            return
        try:
            self._journal.write(method, **arguments)
        except OSError as error:
            self._journal.close()
            self._journal = None
            print(
                "tracking: the journal cannot be written to, and this stage goes on without "
                f"MLflow: {error.strerror}",
                file=sys.stderr,
            )

    @contextlib.contextmanager
    def _count_seconds(self) -> Iterator[None]:
        """Subtract the time that the block takes from that which this stage may wait."""
        start_time = time.monotonic()
        yield
        self._seconds_left = max(0.0, self._seconds_left - (time.monotonic() - start_time))


class _Sender:
    """Sends the journal in a thread, which does not keep the process from ending."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._run_id = ""
        self._run_is_known = threading.Event()
        self._has_ended = threading.Event()
        try:
            threading.Thread(target=self._send, name="MLflow", daemon=True).start()
        except RuntimeError as error:  # the machine allows no further thread
            print(f"tracking: MLflow gets the values of this stage later: {error}", file=sys.stderr)
            self._run_is_known.set()
            self._has_ended.set()

    def wait_for_run(self, seconds: float) -> str:
        """Return MLflow's id of the run; empty if it is not known after so many seconds."""
        self._run_is_known.wait(seconds)
        return self._run_id

    def wait_for_end(self, seconds: float) -> bool:
        """Wait until the journal is sent or cannot be sent now; return whether that was in time."""
        return self._has_ended.wait(seconds)

    def _send(self) -> None:
        os.environ.setdefault(TIMEOUT_VARIABLE, SENDER_SECONDS)
        try:
            # Imported here: MLflow takes seconds where it is not preloaded.
            from lineage.runtime import sender

            sender.send_journal(self._path, on_run=self._set_run)
        except ImportError as error:
            print(
                "tracking: MLflow cannot be imported, and gets the values of this stage later: "
                f"{error}",
                file=sys.stderr,
            )
        finally:
            self._run_is_known.set()
            self._has_ended.set()

    def _set_run(self, run_id: str) -> None:
        self._run_id = run_id
        self._run_is_known.set()
