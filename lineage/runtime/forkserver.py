"""A process that has imported what stages and DVC need, and forks itself for each: Python, torch and DVC take four seconds to begin otherwise.

`python -m lineage.runtime.forkserver serve SOCKET PARENT` is kept by a run of the graph. `python -m stages.VERB ARGUMENTS` asks it first, and so does
`python -m lineage.runtime.forkserver run MODULE ARGUMENTS`: the server's child has their folder, environment, process group and standard streams, and
they end as it ends. Where none answers, as under a plain `dvc repro`, a module is run where it was asked for.

The server imports other people's packages only: of the project, each child runs the files that are there when it begins.
"""

import gc
import importlib
import json
import os
import runpy
import select
import signal
import socket
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

ADDRESS_VARIABLE = "LINEAGE_FORKSERVER"  # the variable that holds the socket's path
# before the first child of a kind, so that a run in which nothing is stale imports nothing
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


def run_in_forkserver() -> None:
    """In a package that `python -m PACKAGE.MODULE` is about to run: let the server run it, and end as that ends. Without a server, go on."""
    if sys.argv[:1] == ["-m"]:  # as long as Python looks for the module; a child's are set already
        _request_run(sys.orig_argv[sys.orig_argv.index("-m") + 1], sys.argv[1:])


def _request_run(module: str, arguments: list[str]) -> None:
    """Do not return where the server has run the module."""
    if ADDRESS_VARIABLE not in os.environ:
        return
    request = {
        "module": module,
        "arguments": arguments,
        "folder": str(Path.cwd()),
        "environment": dict(os.environ),
        "group": os.getpgrp(),
    }
    with socket.socket(socket.AF_UNIX) as connection, connection.makefile("rb") as answer:
        try:
            connection.connect(os.environ[ADDRESS_VARIABLE])
            socket.send_fds(connection, [b"\n"], [0, 1, 2])
            connection.sendall(json.dumps(request).encode() + b"\n")
        except OSError:
            return
        reply = answer.readline()
    if not reply:  # it is gone; its child, if there is one, ends with this process group
        sys.exit(f"{module}: the fork server of this run has ended")
    code = int(reply)
    if code < 0:  # a signal: die of the same
        with suppress(OSError):  # nobody may set what KILL does
            signal.signal(-code, signal.SIG_DFL)
        os.kill(os.getpid(), -code)
    sys.exit(code)


class _Server:
    """Forks, and tells who asked how the child ended. One thread: a fork takes no lock along that another holds."""

    def __init__(self, address: str, *, parent: int) -> None:
        self._parent = parent
        self._waiting_clients: dict[int, socket.socket] = {}  # by the child's process id
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(address)
        self._listener.listen(64)
        self._signal_receiver, self._signal_sender = (
            socket.socketpair()
        )  # a signal of a child's end wakes the server up
        self._signal_sender.setblocking(False)
        signal.set_wakeup_fd(self._signal_sender.fileno(), warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda *_: None)

    def serve(self) -> dict[str, Any] | None:
        """Return in a child, with what it was asked for; in the server when its run is gone, and its children have ended."""
        while os.getppid() == self._parent or self._waiting_clients:
            ready, _, _ = select.select([self._listener, self._signal_receiver], [], [], 1.0)
            if self._signal_receiver in ready:
                self._signal_receiver.recv(4096)
            self._report_finished()
            if self._listener in ready:
                request = self._accept_and_fork()
                if request is not None:
                    return request
        return None

    def _accept_and_fork(self) -> dict[str, Any] | None:
        """Take one question, and fork; what was asked, in the child."""
        connection, _ = self._listener.accept()
        try:
            with connection.makefile("rb") as question:
                _, streams, *_ = socket.recv_fds(connection, 1, 3)
                request = json.loads(question.readline())
        except (OSError, ValueError):  # whoever asked is gone
            connection.close()
            return None
        for name in PRELOADED_MODULES.get(request["module"].partition(".")[0], ()):
            importlib.import_module(name)
        gc.freeze()  # the child's collections leave these pages shared
        child = os.fork()
        if child:
            self._waiting_clients[child] = connection
            for stream in streams:
                os.close(stream)
            return None
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        for mine in (
            self._listener,
            self._signal_receiver,
            self._signal_sender,
            connection,
            *self._waiting_clients.values(),
        ):
            mine.close()
        _take_over(request, streams)
        return dict(request)

    def _report_finished(self) -> None:
        """Answer for the children that have ended."""
        while self._waiting_clients:
            child, status = os.waitpid(-1, os.WNOHANG)
            if not child:
                return
            with (
                self._waiting_clients.pop(child) as connection,
                suppress(OSError),
            ):  # nobody may be waiting any more
                connection.sendall(b"%d\n" % os.waitstatus_to_exitcode(status))


def _take_over(request: dict[str, Any], streams: list[int]) -> None:
    """Take the place of the process that asked."""
    for number, stream in enumerate(streams):
        os.dup2(stream, number)
        os.close(stream)
    os.chdir(request["folder"])
    os.environ.clear()
    os.environ.update(request["environment"])
    sys.path[0] = request["folder"]
    with suppress(OSError):  # the group has ended meanwhile
        os.setpgid(0, request["group"])


def main() -> None:
    """Serve, or run a module, as the command line says."""
    if sys.argv[1] == "serve":
        request = _Server(sys.argv[2], parent=int(sys.argv[3])).serve()
        if request is None:
            return
        module, arguments = request["module"], request["arguments"]
    else:
        module, arguments = sys.argv[2], sys.argv[3:]
        _request_run(module, arguments)
    sys.argv = [module, *arguments]
    runpy.run_module(module, run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()
