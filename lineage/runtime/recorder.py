"""Track a stage in MLflow. The stage writes a journal, and another process or thread sends it.

Importing MLflow and opening its store take three seconds, which a stage of four seconds would pay
each time. A run of the graph therefore keeps one process that has imported it: `python -m
lineage.runtime.recorder SOCKET PARENT`. It forks a child for each stage that connects. The child
takes over the stage's folder, LINEAGE_* variables and stderr, and sends the stage's journal until
the stage ends or dies. Without such a process, as under a plain `dvc repro`, a thread of the stage
does so. Either way the stage never waits for MLflow, except at its end, and then not for long.
"""

import contextlib
import json
import os
import socket
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from socketserver import ForkingMixIn, StreamRequestHandler, UnixStreamServer
from typing import Any, Protocol

from lineage.errors import describe_failure
from lineage.runtime.journal import (
    END,
    MAX_WAIT_SECONDS,
    JournalWriter,
    current_ms,
    describe_stage_run,
)
from lineage.runtime.provenance import Dataset, common_tags, get_pipeline_id

ADDRESS_VARIABLE = "LINEAGE_RECORDER"  # the environment variable that holds the socket's path
# How long a sender waits for an answer of a server that may be busy. MLflow reads this variable.
TIMEOUT_VARIABLE = "MLFLOW_HTTP_REQUEST_TIMEOUT"
SENDER_SECONDS = "15"
CONNECT_SECONDS = 1.0  # that a recorder may take to accept a stage
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
    tracker = StageTracker(journal, _connect(journal.path) or _LocalSender(journal.path))
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


class Sender(Protocol):
    """Whatever sends the journal of this stage."""

    def wait_for_run(self, seconds: float) -> str:
        """Return MLflow's id of the run; empty if it is not known after so many seconds."""
        ...

    def wait_for_end(self, seconds: float) -> bool:
        """Wait until the journal is sent or cannot be sent now; return whether that was in time."""
        ...


class StageTracker:
    """The tracker of one stage. What it logs is in the stage's journal, on the disk."""

    def __init__(self, journal: JournalWriter, sender: Sender) -> None:
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


class _LocalSender:
    """A thread of this process. It does not keep the process from ending."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._run_id = ""
        self._run_is_known = threading.Event()
        self._has_ended = threading.Event()
        threading.Thread(target=self._send, name="MLflow", daemon=True).start()

    def wait_for_run(self, seconds: float) -> str:
        self._run_is_known.wait(seconds)
        return self._run_id

    def wait_for_end(self, seconds: float) -> bool:
        return self._has_ended.wait(seconds)

    def _send(self) -> None:
        os.environ.setdefault(TIMEOUT_VARIABLE, SENDER_SECONDS)
        try:
            # Imported here: MLflow takes seconds, and with a recorder it is not needed.
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


class _RemoteSender:
    """A child of the recorder. It answers with a line of JSON: the run's id, and that it ends."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        self._received = b""
        self._answers: dict[str, Any] = {}
        self._is_open = True

    def wait_for_run(self, seconds: float) -> str:
        self._receive("run_id", seconds)
        return str(self._answers.get("run_id", ""))

    def wait_for_end(self, seconds: float) -> bool:
        self._receive("is_sent", seconds)
        has_ended = not self._is_open or "is_sent" in self._answers
        self._is_open = False
        self._connection.close()
        return has_ended

    def _receive(self, key: str, seconds: float) -> None:
        """Receive answers until one has this key, or none follows, or so many seconds are over."""
        deadline = time.monotonic() + seconds
        while self._is_open and not self._answers.keys() & {key, "is_sent"}:
            self._connection.settimeout(max(0.001, deadline - time.monotonic()))
            try:
                part = self._connection.recv(4096)
            except TimeoutError:
                return
            except OSError:
                part = b""
            if not part:
                self._is_open = False
                print(
                    "tracking: the recorder is gone; MLflow gets the values of this stage later",
                    file=sys.stderr,
                )
                return
            *lines, self._received = (self._received + part).split(b"\n")
            for line in lines:
                self._answers.update(json.loads(line))


def _connect(journal: Path) -> _RemoteSender | None:
    """Let the recorder send a journal; None if no recorder answers."""
    address = os.environ.get(ADDRESS_VARIABLE)
    if not address:
        return None
    request = {
        "journal": str(journal),
        "folder": str(Path.cwd()),
        "environment": {name: os.environ[name] for name in _lineage_variables()},
    }
    connection = socket.socket(socket.AF_UNIX)
    connection.settimeout(CONNECT_SECONDS)
    try:
        connection.connect(address)
        socket.send_fds(connection, [b"\n"], [2])  # its warnings belong in this stage's log
        connection.sendall(json.dumps(request).encode() + b"\n")
        return _RemoteSender(connection)
    except OSError:
        connection.close()
        return None


def _lineage_variables() -> list[str]:
    return [name for name in os.environ if name.startswith("LINEAGE_")]


class _TrackingHandler(StreamRequestHandler):
    """Send the journal of one stage, in a child of the recorder."""

    def handle(self) -> None:
        """Take over the stage's surroundings, and send its journal."""
        from lineage.runtime import sender

        _, (stderr,), *_ = socket.recv_fds(self.request, 1, 1)
        os.dup2(stderr, 2)
        request = json.loads(self.rfile.readline())
        for name in _lineage_variables():
            del os.environ[name]
        os.environ.update(request["environment"])
        os.chdir(request["folder"])
        is_sent = False
        try:
            is_sent = sender.send_journal(Path(request["journal"]), on_run=self._tell_run)
        finally:
            self._tell(is_sent=is_sent)

    def _tell_run(self, run_id: str) -> None:
        self._tell(run_id=run_id)

    def _tell(self, **answer: object) -> None:
        with contextlib.suppress(OSError):  # if the stage has ended, nobody waits
            self.wfile.write(json.dumps(answer).encode() + b"\n")


class _Server(ForkingMixIn, UnixStreamServer):
    """Accept stages until the process that started the server ends."""

    request_queue_size = 64  # stages that may connect while MLflow is still being imported
    max_children = 1024

    def __init__(self, address: str, *, parent: int) -> None:
        super().__init__(address, _TrackingHandler)
        self._parent = parent

    def service_actions(self) -> None:
        """Reap children, and end if the parent has ended. The server calls this twice a second."""
        super().service_actions()
        if os.getppid() != self._parent:
            sys.exit(0)


def main() -> None:
    """Listen on the socket named first on the command line, for the process id named second."""
    os.environ.setdefault(TIMEOUT_VARIABLE, SENDER_SECONDS)
    with _Server(sys.argv[1], parent=int(sys.argv[2])) as server:
        # Imported once the socket listens, so that stages can already connect.
        from lineage.runtime import tracking

        tracking.preload_mlflow()
        server.serve_forever()


if __name__ == "__main__":
    main()
