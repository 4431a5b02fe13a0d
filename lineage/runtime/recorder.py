"""Track a stage in MLflow, through another process if a run of the graph keeps one.

Importing MLflow and opening its store take three seconds, which a stage of four seconds would pay
each time. A run of the graph therefore keeps one process that has imported it: `python -m
lineage.runtime.recorder SOCKET PARENT`. It forks a child for each stage that connects. The child
takes over the stage's folder, LINEAGE_* variables and stderr, and is the stage's tracker until the
stage ends or dies. Without such a process, as under a plain `dvc repro`, a stage imports MLflow
itself.
"""

import contextlib
import json
import os
import socket
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from socketserver import ForkingMixIn, StreamRequestHandler, UnixStreamServer
from typing import BinaryIO, Protocol

from lineage.errors import StageError, describe_failure
from lineage.runtime.provenance import Dataset

ADDRESS_VARIABLE = "LINEAGE_RECORDER"  # the environment variable that holds the socket's path
TIMEOUT_SECONDS = 60.0  # longer than MLflow waits for a server that does not answer
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
) -> Iterator[Tracker]:
    """Open the MLflow run of a stage. Close it as FINISHED, FAILED, or KILLED if interrupted."""
    flattened = flatten_params(parameters)
    request = {
        "stage": stage,
        "parameters": flattened,
        "tags": dict(tags),
        "datasets": [asdict(dataset) for dataset in datasets],
    }
    remote = _connect(request)
    if remote is None:
        # Imported here: MLflow takes seconds, and with a recorder it is not needed.
        from lineage.runtime import tracking

        with tracking.open_stage_run(
            stage, parameters=flattened, tags=tags, datasets=datasets
        ) as tracker:
            yield tracker
        return
    status = "KILLED"
    failure = ""
    try:
        yield remote
        status = "FINISHED"
    except Exception as error:
        status = "FAILED"
        failure = describe_failure(error)
        raise
    finally:
        remote.end(status, failure)


def flatten_params(tree: Mapping[str, object], prefix: str = "") -> dict[str, str]:
    """Flatten nested parameters as MLflow takes them: budget.text_bytes -> "4000"."""
    flattened: dict[str, str] = {}
    for key, value in tree.items():
        if isinstance(value, Mapping):
            flattened.update(flatten_params(value, f"{prefix}{key}."))
        else:
            flattened[f"{prefix}{key}"] = str(value)[:MAX_PARAM_LENGTH]
    return flattened


class RemoteTracker:
    """A tracker in another process.

    Each call is sent as one line of JSON; only the beginning and the end wait for an answer.
    """

    def __init__(self, connection: socket.socket, answers: BinaryIO, run_id: str) -> None:
        self._connection: socket.socket | None = connection
        self._answers = answers
        self._run_id = run_id
        self.training_failed = False

    @property
    def run_id(self) -> str:
        """MLflow's id of this run; empty if there is none."""
        return self._run_id

    def log_metrics(
        self, values: Mapping[str, float], *, step: int = 0, text_bytes: int | None = None
    ) -> None:
        """See `MlflowTracker.log_metrics`."""
        numbers = {key: float(value) for key, value in values.items()}
        self._send("log_metrics", values=numbers, step=int(step), text_bytes=text_bytes)

    def log_summary(self, values: Mapping[str, float]) -> None:
        """See `MlflowTracker.log_summary`."""
        self._send("log_summary", values={key: float(value) for key, value in values.items()})

    def flush(self) -> None:
        """See `MlflowTracker.flush`, but do not wait for it."""
        self._send("flush")

    def end(self, status: str, failure: str) -> None:
        """Close the run and wait until it is closed, so that publish finds it closed."""
        self._send("end", status=status, failure=failure, training_failed=self.training_failed)
        with contextlib.suppress(OSError):
            self._answers.readline()
        if self._connection is not None:
            self._connection.close()

    def _send(self, method: str, **arguments: object) -> None:
        if self._connection is None:
            return
        try:
            self._connection.sendall(json.dumps([method, arguments]).encode() + b"\n")
        except OSError as error:
            self._connection = None
            print(
                f"tracking: the recorder is gone, and this stage goes on without MLflow: {error}",
                file=sys.stderr,
            )


def _connect(request: Mapping[str, object]) -> RemoteTracker | None:
    """Return the recorder's tracker for this stage, or None if no recorder answers."""
    address = os.environ.get(ADDRESS_VARIABLE)
    if not address:
        return None
    full_request = {
        **request,
        "folder": str(Path.cwd()),
        "environment": {name: os.environ[name] for name in _lineage_variables()},
    }
    connection = socket.socket(socket.AF_UNIX)
    connection.settimeout(TIMEOUT_SECONDS)
    try:
        connection.connect(address)
        socket.send_fds(connection, [b"\n"], [2])  # its warnings belong in this stage's log
        connection.sendall(json.dumps(full_request).encode() + b"\n")
        answers = connection.makefile("rb")
        return RemoteTracker(connection, answers, json.loads(answers.readline())["run_id"])
    except (OSError, ValueError):
        connection.close()
        return None


def _lineage_variables() -> list[str]:
    return [name for name in os.environ if name.startswith("LINEAGE_")]


class _StageKilled(BaseException):
    """The stage was interrupted or has died."""


class _TrackingHandler(StreamRequestHandler):
    """Track one stage in a child of the recorder, for as long as the stage is connected."""

    def handle(self) -> None:
        """Take over the stage's surroundings, open its run, and log what it sends."""
        from lineage.runtime import tracking

        _, (stderr,), *_ = socket.recv_fds(self.request, 1, 1)
        os.dup2(stderr, 2)
        request = json.loads(self.rfile.readline())
        for name in _lineage_variables():
            del os.environ[name]
        os.environ.update(request["environment"])
        os.chdir(request["folder"])
        run = tracking.open_stage_run(
            request["stage"],
            parameters=request["parameters"],
            tags=request["tags"],
            datasets=[Dataset(**dataset) for dataset in request["datasets"]],
        )
        with contextlib.suppress(StageError, _StageKilled), run as tracker:
            try:
                self.wfile.write(json.dumps({"run_id": tracker.run_id}).encode() + b"\n")
                self._replay(tracker)
            except OSError:
                raise _StageKilled from None
        with contextlib.suppress(OSError):  # if the stage has died, nobody waits
            self.wfile.write(b"\n")

    def _replay(self, tracker: Tracker) -> None:
        """Repeat the stage's calls until it says how it ended.

        Raises StageError and _StageKilled.
        """
        for line in self.rfile:
            method, arguments = json.loads(line)
            if method == "log_metrics":
                tracker.log_metrics(**arguments)
            elif method == "log_summary":
                tracker.log_summary(**arguments)
            elif method == "flush":
                tracker.flush()
            else:
                tracker.training_failed = arguments["training_failed"]
                if arguments["status"] == "FINISHED":
                    return
                if arguments["status"] == "FAILED":
                    raise StageError(arguments["failure"])
                raise _StageKilled
        raise _StageKilled


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
    with _Server(sys.argv[1], parent=int(sys.argv[2])) as server:
        # Imported once the socket listens, so that stages can already connect.
        from lineage.runtime import tracking

        tracking.preload_mlflow()
        server.serve_forever()


if __name__ == "__main__":
    main()
