"""A process that has imported what stages and DVC need, and forks itself for each: Python, torch and DVC take four seconds to begin otherwise.

`python -m lineage.running.forkserver serve SOCKET PARENT` is kept by a run of the graph. `python -m stages.VERB ARGUMENTS` asks it first, and so does
`python -m lineage.running.forkserver run MODULE ARGUMENTS`: the server's child has their folder, environment, process group and standard streams, and
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

ADDRESS = "LINEAGE_FORKSERVER"  # the variable that holds the socket's path
# before the first child of a kind, so that a run in which nothing is stale imports nothing
NEEDS = {
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
    "stages": ("torch", "pandas", "pyarrow.parquet", "tokenizers", "safetensors.torch", "rich.progress", "ruamel.yaml"),
}


def hand_over() -> None:
    """In a package that `python -m PACKAGE.MODULE` is about to run: let the server run it, and end as that ends. Without a server, go on."""
    if sys.argv[:1] == ["-m"]:  # as long as Python looks for the module; a child's are set already
        _ask(sys.orig_argv[sys.orig_argv.index("-m") + 1], sys.argv[1:])


def _ask(module: str, arguments: list[str]) -> None:
    """Do not return where the server has run the module."""
    if ADDRESS not in os.environ:
        return
    about = {"module": module, "arguments": arguments, "folder": str(Path.cwd()), "environment": dict(os.environ), "group": os.getpgrp()}
    with socket.socket(socket.AF_UNIX) as connection, connection.makefile("rb") as answer:
        try:
            connection.connect(os.environ[ADDRESS])
            socket.send_fds(connection, [b"\n"], [0, 1, 2])
            connection.sendall(json.dumps(about).encode() + b"\n")
        except OSError:
            return
        said = answer.readline()
    if not said:  # it is gone; its child, if there is one, ends with this process group
        sys.exit(f"{module}: the fork server of this run has ended")
    code = int(said)
    if code < 0:  # a signal: die of the same
        with suppress(OSError):  # nobody may set what KILL does
            signal.signal(-code, signal.SIG_DFL)
        os.kill(os.getpid(), -code)
    sys.exit(code)


class _Server:
    """Forks, and tells who asked how the child ended. One thread: a fork takes no lock along that another holds."""

    def __init__(self, address: str, *, parent: int) -> None:
        self._parent = parent
        self._asking: dict[int, socket.socket] = {}  # by the child's process id
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(address)
        self._listener.listen(64)
        self._ended, self._wake = socket.socketpair()  # a signal of a child's end wakes the server up
        self._wake.setblocking(False)
        signal.set_wakeup_fd(self._wake.fileno(), warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda *_: None)

    def serve(self) -> dict[str, Any] | None:
        """Return in a child, with what it was asked for; in the server when its run is gone, and its children have ended."""
        while os.getppid() == self._parent or self._asking:
            ready, _, _ = select.select([self._listener, self._ended], [], [], 1.0)
            if self._ended in ready:
                self._ended.recv(4096)
            self._reap()
            if self._listener in ready:
                about = self._begin()
                if about is not None:
                    return about
        return None

    def _begin(self) -> dict[str, Any] | None:
        """Take one question, and fork; what was asked, in the child."""
        connection, _ = self._listener.accept()
        try:
            with connection.makefile("rb") as question:
                _, streams, *_ = socket.recv_fds(connection, 1, 3)
                about = json.loads(question.readline())
        except (OSError, ValueError):  # whoever asked is gone
            connection.close()
            return None
        for name in NEEDS.get(about["module"].partition(".")[0], ()):
            importlib.import_module(name)
        gc.freeze()  # the child's collections leave these pages shared
        child = os.fork()
        if child:
            self._asking[child] = connection
            for stream in streams:
                os.close(stream)
            return None
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        for mine in (self._listener, self._ended, self._wake, connection, *self._asking.values()):
            mine.close()
        _become(about, streams)
        return dict(about)

    def _reap(self) -> None:
        """Answer for the children that have ended."""
        while self._asking:
            child, status = os.waitpid(-1, os.WNOHANG)
            if not child:
                return
            with self._asking.pop(child) as connection, suppress(OSError):  # nobody may be waiting any more
                connection.sendall(b"%d\n" % os.waitstatus_to_exitcode(status))


def _become(about: dict[str, Any], streams: list[int]) -> None:
    """Take the place of the process that asked."""
    for number, stream in enumerate(streams):
        os.dup2(stream, number)
        os.close(stream)
    os.chdir(about["folder"])
    os.environ.clear()
    os.environ.update(about["environment"])
    sys.path[0] = about["folder"]
    with suppress(OSError):  # the group has ended meanwhile
        os.setpgid(0, about["group"])


def main() -> None:
    """Serve, or run a module, as the command line says."""
    if sys.argv[1] == "serve":
        found = _Server(sys.argv[2], parent=int(sys.argv[3])).serve()
        if found is None:
            return
        module, arguments = found["module"], found["arguments"]
    else:
        module, arguments = sys.argv[2], sys.argv[3:]
        _ask(module, arguments)
    sys.argv = [module, *arguments]
    runpy.run_module(module, run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()
