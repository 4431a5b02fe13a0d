"""Servers that tests start and end."""

import os
import signal
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.helpers.checkout import ROOT


@contextmanager
def run_server(folder: Path, *words: str, **environment: str) -> Iterator[subprocess.Popen[str]]:
    """Run a server in a session of its own, as in a terminal of its own, and end it at last."""
    variables = {name: text for name, text in os.environ.items() if not name.startswith("LINEAGE_")}
    bin_folder = Path(sys.prefix) / "bin"
    variables["PATH"] = f"{bin_folder}{os.pathsep}{variables['PATH']}"
    variables["PYTHONPATH"] = str(ROOT)
    with (folder / f"{words[0]}.log").open("w") as log:
        process = subprocess.Popen(
            list(words),
            cwd=folder,
            env=variables | {"OMP_NUM_THREADS": "1"} | environment,
            stdout=log,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )
    try:
        yield process
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGTERM)
            process.wait(30)


def is_up(port: int, path: str = "/health") -> bool:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=5) as answer:
            return bool(answer.status == 200)
    except OSError:
        return False
