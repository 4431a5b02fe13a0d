"""Fork processes that have imported torch and DVC already, which saves four seconds each.

A run of the graph keeps `python -m lineage.runtime.forkserver serve SOCKET PARENT`. `python -m
stages.VERB ARGUMENTS` asks it first, and so does `python -m lineage.runtime.forkserver run MODULE
ARGUMENTS`. The server's child takes over the folder, environment, process group and standard
streams of the process that asked, and that process ends as the child ends. Without a server, as
under a plain `dvc repro`, a process runs the module itself.

The server imports packages of other projects only: a child runs the project's files as they are
when it starts.

The forkserver of multiprocessing cannot do this: it serves its own parent process only, while DVC
starts a stage through a shell, and its children do not take over folder, environment, process group
and streams.
"""

import atexit
import gc
import importlib
import json
import os
import runpy
import select
import signal
import socket
import sys
import threading
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import NoReturn

ADDRESS_VARIABLE = "LINEAGE_FORKSERVER"  # the environment variable that holds the socket's path
# By the package of the modules that are run.
PRELOADED_MODULES = {
    "flows": (
        "dvc.cli.parser",
        "dvc.data_cloud",
        "dvc.lock",
        "dvc.parsing",
        "dvc.repo.plots",
        "dvc.repo.stage",
        "dvc.rwlock",
        "dvc.scm",
        "dvc.stage.run",
        "dvc.utils.strictyaml",
    ),
    "stages": (
        "torch",
        "pandas",
        "pyarrow.parquet",
        "tokenizers",
        "safetensors.torch",
        "rich.progress",
        "ruamel.yaml",
    ),
}
# Imported while the first stages run, which do without. The last two are for publish.
MODULES_FOR_LATER = (
    "sklearn.linear_model",
    "scipy.stats",
    "mlflow",
    "mlflow.store.tracking.sqlalchemy_store",
)


@dataclass(frozen=True)
class RunRequest:
    """A module to run, and the surroundings of the process that requests it."""

    module: str
    arguments: list[str]
    folder: str
    environment: dict[str, str]
    process_group: int


def run_in_forkserver() -> None:
    """Let the server run the module of `python -m PACKAGE.MODULE`, and end as it ends.

    Call it in the package's `__init__`. Without a server it returns, and Python goes on.
    """
    # sys.argv is ["-m", ...] only while Python looks for the module; in a server's child it is set
    # already.
    if sys.argv[:1] == ["-m"]:
        module = sys.orig_argv[sys.orig_argv.index("-m") + 1]
        _run_remotely(module, sys.argv[1:])


def _run_remotely(module: str, arguments: list[str]) -> None:
    """Have the server run a module and exit as it exits. Return if there is no server."""
    if ADDRESS_VARIABLE not in os.environ:
        return
    request = RunRequest(module, arguments, str(Path.cwd()), dict(os.environ), os.getpgrp())
    with socket.socket(socket.AF_UNIX) as connection, connection.makefile("rb") as answer:
        try:
            connection.connect(os.environ[ADDRESS_VARIABLE])
            socket.send_fds(connection, [b"\n"], [0, 1, 2])
            connection.sendall(json.dumps(asdict(request)).encode() + b"\n")
        except OSError:
            return
        reply = answer.readline()
    if not reply:  # if the server's child still runs, it ends with this process group
        sys.exit(f"{module}: the fork server of this run has ended")
    exit_status = int(reply)
    if exit_status < 0:  # the child was killed by a signal: die of the same one
        with suppress(OSError):  # the handler of KILL cannot be set
            signal.signal(-exit_status, signal.SIG_DFL)
        os.kill(os.getpid(), -exit_status)
    sys.exit(exit_status)


class _Server:
    """Fork a child for each request, and report to the client how the child ended.

    It has one thread, so that a fork copies no lock that another thread holds.
    """

    def __init__(self, address: str, *, parent: int) -> None:
        self._parent = parent
        self._waiting_clients: dict[int, socket.socket] = {}  # by the child's process id
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(address)
        self._listener.listen(64)
        # The end of a child wakes the server up through this pair.
        self._signal_receiver, self._signal_sender = socket.socketpair()
        self._signal_sender.setblocking(False)
        signal.set_wakeup_fd(self._signal_sender.fileno(), warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda *_: None)

    def serve(self) -> RunRequest | None:
        """Return the request in a child, and None in the server after parent and children ended."""
        for names in PRELOADED_MODULES.values():
            for name in names:
                importlib.import_module(name)
        modules_for_later = list(MODULES_FOR_LATER)
        while os.getppid() == self._parent or self._waiting_clients:
            wait_seconds = 0.0 if modules_for_later else 1.0
            inputs = [self._listener, self._signal_receiver]
            ready, _, _ = select.select(inputs, [], [], wait_seconds)
            if not ready and modules_for_later:
                with suppress(ImportError):  # the stage that needs it says so
                    importlib.import_module(modules_for_later.pop(0))
            if self._signal_receiver in ready:
                self._signal_receiver.recv(4096)
            self._report_finished()
            if self._listener in ready:
                request = self._accept_and_fork()
                if request is not None:
                    return request
        return None

    def _accept_and_fork(self) -> RunRequest | None:
        """Read one request and fork. Return the request in the child, and None in the server."""
        connection, _ = self._listener.accept()
        try:
            with connection.makefile("rb") as question:
                _, streams, *_ = socket.recv_fds(connection, 1, 3)
                request = RunRequest(**json.loads(question.readline()))
        except (OSError, ValueError):  # the client is gone
            connection.close()
            return None
        gc.freeze()  # so that garbage collection in the child does not copy these pages
        child = os.fork()
        if child:
            self._waiting_clients[child] = connection
            for stream in streams:
                os.close(stream)
            return None
        connection.close()
        self._close_in_child()
        _take_over(request, streams)
        return request

    def _close_in_child(self) -> None:
        """Drop the server's signal handling and sockets."""
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        self._listener.close()
        self._signal_receiver.close()
        self._signal_sender.close()
        for client in self._waiting_clients.values():
            client.close()

    def _report_finished(self) -> None:
        """Answer the clients whose children have ended."""
        while self._waiting_clients:
            child, status = os.waitpid(-1, os.WNOHANG)
            if not child:
                return
            connection = self._waiting_clients.pop(child)
            with connection, suppress(OSError):  # the client may be gone
                connection.sendall(b"%d\n" % os.waitstatus_to_exitcode(status))


def _take_over(request: RunRequest, streams: list[int]) -> None:
    """Take the place of the requesting process."""
    for number, stream in enumerate(streams):
        os.dup2(stream, number)
        os.close(stream)
    os.chdir(request.folder)
    os.environ.clear()
    os.environ.update(request.environment)
    sys.path[0] = request.folder
    with suppress(OSError):  # the group may have ended meanwhile
        os.setpgid(0, request.process_group)


def main() -> None:
    """Serve, or run a module, as the command line says."""
    command, first, *rest = sys.argv[1:]
    if command == "serve":
        request = _Server(first, parent=int(rest[0])).serve()
        if request is not None:
            _run_in_child(request)
        return
    _run_remotely(first, rest)
    sys.argv = [first, *rest]
    runpy.run_module(first, run_name="__main__", alter_sys=True)


def _run_in_child(request: RunRequest) -> NoReturn:
    """Run the module of a request, and end this process as Python would.

    Only the memory is not tidied up, since that takes 0.3 s with so many modules.
    """
    exit_status = 0
    sys.argv = [request.module, *request.arguments]
    try:
        runpy.run_module(request.module, run_name="__main__", alter_sys=True)
    except SystemExit as end:
        exit_status = _to_exit_status(end.code)
    except BaseException:
        sys.excepthook(*sys.exc_info())
        exit_status = 1
    threading._shutdown()  # type: ignore[attr-defined]  # waits for threads, as multiprocessing does
    atexit._run_exitfuncs()
    with suppress(OSError):  # nobody reads any more
        sys.stdout.flush()
        sys.stderr.flush()
    os._exit(exit_status)


def _to_exit_status(code: object) -> int:
    """Return the exit status that `sys.exit(code)` means. A text is printed."""
    if code is None:
        return 0
    if isinstance(code, int):
        return code
    print(code, file=sys.stderr)
    return 1


if __name__ == "__main__":
    main()
