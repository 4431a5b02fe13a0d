"""What a stage tells of itself while it runs, and who writes it down.

Importing MLflow and opening its store take three seconds, which a stage of four would pay each time. A run of the graph therefore keeps one
process that has done both: `python -m lineage.runtime.recorder SOCKET PARENT` forks a child for each stage that connects, under the stage's own
folder, LINEAGE_* variables and stderr, and the child is the stage's tracker until the stage ends or dies. Where none answers, as under a plain
`dvc repro`, a stage imports MLflow itself.
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
from typing import Any, Protocol

from lineage.runtime.provenance import Dataset

ADDRESS_VARIABLE = "LINEAGE_RECORDER"  # the variable that holds the socket's path
TIMEOUT_SECONDS = 60.0  # MLflow gives up on a server that does not answer well before
MAX_PARAM_LENGTH = 6000  # letters of a parameter's value that MLflow takes


class Tracker(Protocol):
    """One stage's run, or, where nothing is written down, nothing."""

    training_failed: (
        bool  # to be set where a training ended for good without a model: its stage goes on
    )

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
    """The run of one stage, closed with the stage: FINISHED, FAILED, or KILLED where it was interrupted."""
    flattened = flatten_params(parameters)
    request = {
        "stage": stage,
        "parameters": flattened,
        "tags": dict(tags),
        "datasets": [asdict(dataset) for dataset in datasets],
    }
    remote = _connect(request)
    if remote is None:
        from lineage.runtime import tracking

        with tracking.open_stage_run(
            stage, parameters=flattened, tags=tags, datasets=datasets
        ) as tracker:
            yield tracker
        return
    status = "KILLED"
    try:
        yield remote
        status = "FINISHED"
    except Exception:
        status = "FAILED"
        raise
    finally:
        remote.end(status)


def flatten_params(tree: Mapping[str, object], prefix: str = "") -> dict[str, str]:
    """Nested parameters as MLflow takes them: budget.text_bytes -> "4000"."""
    found: dict[str, str] = {}
    for key, value in tree.items():
        found |= (
            flatten_params(value, f"{prefix}{key}.")
            if isinstance(value, Mapping)
            else {f"{prefix}{key}": str(value)[:MAX_PARAM_LENGTH]}
        )
    return found


class RemoteTracker:
    """A tracker in another process: words go there, one line of JSON each, and only the beginning and the end wait for an answer."""

    def __init__(self, connection: socket.socket, answers: Any, run_id: str) -> None:
        self._connection: socket.socket | None = connection
        self._answers, self._run_id = answers, run_id
        self.training_failed = False

    @property
    def run_id(self) -> str:
        """MLflow's id of this run; empty where there is none."""
        return self._run_id

    def log_metrics(
        self, values: Mapping[str, float], *, step: int = 0, text_bytes: int | None = None
    ) -> None:
        """As `Tracker.metrics`."""
        self._send(
            "metrics",
            values={key: float(value) for key, value in values.items()},
            step=int(step),
            text_bytes=text_bytes,
        )

    def log_summary(self, values: Mapping[str, float]) -> None:
        """As `Tracker.summary`."""
        self._send("summary", values={key: float(value) for key, value in values.items()})

    def flush(self) -> None:
        """As `Tracker.flush`, but does not wait for it."""
        self._send("flush")

    def end(self, status: str) -> None:
        """Close the run, and wait until it is closed, so that publish finds it so."""
        self._send("end", status=status, failed=self.training_failed)
        with contextlib.suppress(OSError):
            self._answers.readline()
        if self._connection is not None:
            self._connection.close()

    def _send(self, method: str, **values: object) -> None:
        if self._connection is None:
            return
        try:
            self._connection.sendall(json.dumps([method, values]).encode() + b"\n")
        except OSError as error:
            self._connection = None
            print(
                f"tracking: the recorder is gone, and this stage goes on without MLflow: {error}",
                file=sys.stderr,
            )


def _connect(request: Mapping[str, object]) -> RemoteTracker | None:
    """The recorder's tracker for this stage; none where there is no recorder, or it ends before it has begun."""
    address = os.environ.get(ADDRESS_VARIABLE)
    if not address:
        return None
    connection = socket.socket(socket.AF_UNIX)
    connection.settimeout(TIMEOUT_SECONDS)
    begin = {
        **request,
        "folder": str(Path.cwd()),
        "environment": {
            key: value for key, value in os.environ.items() if key.startswith("LINEAGE_")
        },
    }
    try:
        connection.connect(address)
        socket.send_fds(connection, [b"\n"], [2])  # its warnings belong into this stage's log
        connection.sendall(json.dumps(begin).encode() + b"\n")
        answers = connection.makefile("rb")
        return RemoteTracker(connection, answers, json.loads(answers.readline())["run_id"])
    except (OSError, ValueError):
        connection.close()
        return None


class _StageError(Exception):
    """The stage ended with an error of its own."""


class _StageKilled(BaseException):
    """The stage was interrupted, or is gone."""


class _TrackingHandler(StreamRequestHandler):
    """In a child of the recorder: one stage's tracker, for as long as the stage is connected."""

    def handle(self) -> None:
        """Take the stage's place, open its run, and write down what it says."""
        from lineage.runtime import tracking

        _, (stderr,), *_ = socket.recv_fds(self.request, 1, 1)
        os.dup2(stderr, 2)
        request = json.loads(self.rfile.readline())
        for key in [key for key in os.environ if key.startswith("LINEAGE_")]:
            del os.environ[key]
        os.environ.update(request["environment"])
        os.chdir(request["folder"])
        datasets = [Dataset(**dataset) for dataset in request["datasets"]]
        run = tracking.open_stage_run(
            request["stage"],
            parameters=request["parameters"],
            tags=request["tags"],
            datasets=datasets,
        )
        with contextlib.suppress(_StageError, _StageKilled), run as tracker:
            try:
                self.wfile.write(json.dumps({"run_id": tracker.run_id}).encode() + b"\n")
                self._replay(tracker)
            except OSError:
                raise _StageKilled from None
        with contextlib.suppress(OSError):  # where the stage is gone, nobody waits
            self.wfile.write(b"\n")

    def _replay(self, tracker: Tracker) -> None:
        """Do what the stage says until it says how it ended."""
        for line in self.rfile:
            method, values = json.loads(line)
            if method != "end":
                getattr(tracker, method)(
                    *([values.pop("values")] if "values" in values else []), **values
                )
                continue
            tracker.training_failed = values["failed"]
            if values["status"] == "FINISHED":
                return
            raise _StageError if values["status"] == "FAILED" else _StageKilled
        raise _StageKilled


class _Server(ForkingMixIn, UnixStreamServer):
    """Ends with the process that started it."""

    request_queue_size = 64  # stages that may call while MLflow is still being imported
    max_children = 1024

    def __init__(self, address: str, *, parent: int) -> None:
        super().__init__(address, _TrackingHandler)
        self._parent = parent

    def service_actions(self) -> None:
        """Twice a second: look after children, and whether there is a run to record."""
        super().service_actions()
        if os.getppid() != self._parent:
            sys.exit(0)


def main() -> None:
    """Listen on the socket that is named on the command line, for the process that is named after it."""
    with _Server(sys.argv[1], parent=int(sys.argv[2])) as server:
        from lineage.runtime import tracking

        tracking.preload_mlflow()
        server.serve_forever()


if __name__ == "__main__":
    main()
