"""A child of the fork server behaves like the process that requested it.

It has the same folder, environment, streams, process group and exit status.
"""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from flows.processes import terminate_process_group
from tests.toy_project import wait_until

ROOT = Path(__file__).resolve().parent.parent
SCRIPT = """
import json, os, signal, sys, time
from pathlib import Path
word = sys.argv[1]
if word == "tell":
    about = {"arguments": sys.argv[1:], "name": __name__, "folder": os.getcwd(), "parent": os.getppid(), "group": os.getpgrp(),
             "own": os.environ.get("THING"), "inherited": os.environ.get("OF_THE_SERVER"), "read": sys.stdin.read(),
             "child": signal.getsignal(signal.SIGCHLD) is signal.SIG_DFL}
    print(json.dumps(about))
    print("aside", file=sys.stderr)
elif word == "wait":
    def end(*_):
        Path("ended").write_text("in order")
        sys.exit(5)
    signal.signal(signal.SIGTERM, end)
    Path("waits").write_text(str(os.getpid()))
    time.sleep(60)
elif word == "die":
    os.kill(os.getpid(), int(sys.argv[2]))
elif word == "raise":
    raise RuntimeError("no thing")
else:
    sys.exit(int(word))
"""
SERVE = [sys.executable, "-m", "lineage.runtime.forkserver", "serve"]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "thing.py").write_text(SCRIPT)
    return tmp_path


@pytest.fixture(scope="module")
def running_server(
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[tuple[Path, subprocess.Popen[bytes]]]:
    """Share a server between tests; importing what it preloads takes seconds."""
    address = tmp_path_factory.mktemp("server") / "forkserver"
    child = subprocess.Popen(
        [*SERVE, str(address), str(os.getpid())], cwd=ROOT, env=os.environ | {"OF_THE_SERVER": "1"}
    )
    wait_until(address.exists)
    yield address, child
    child.kill()
    child.wait()


@pytest.fixture
def server(
    folder: Path, running_server: tuple[Path, subprocess.Popen[bytes]]
) -> subprocess.Popen[bytes]:
    """Return the shared server, which the processes of this folder find."""
    address, child = running_server
    (folder / "forkserver").symlink_to(address)
    return child


def environment(folder: Path) -> dict[str, str]:
    return os.environ | {
        "LINEAGE_FORKSERVER": str(folder / "forkserver"),
        "PYTHONPATH": str(ROOT),
        "THING": "mine",
    }


def run_on_server(folder: Path, *words: str, stdin: str = "") -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "lineage.runtime.forkserver", "run", "thing", *words]
    return subprocess.run(
        command,
        cwd=folder,
        env=environment(folder),
        input=stdin,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def start_waiting_child(folder: Path) -> tuple[subprocess.Popen[bytes], psutil.Process]:
    """Return a requester in its own process group, and the child that works for it."""
    command = [sys.executable, "-m", "lineage.runtime.forkserver", "run", "thing", "wait"]
    requester = subprocess.Popen(
        command, cwd=folder, env=environment(folder), process_group=0, stderr=subprocess.PIPE
    )
    wait_until(lambda: (folder / "waits").exists() and bool((folder / "waits").read_text()))
    return requester, psutil.Process(int((folder / "waits").read_text()))


def is_alive(process: psutil.Process) -> bool:
    return process.is_running() and process.status() != psutil.STATUS_ZOMBIE


def test_a_child_has_the_arguments_folder_environment_and_streams_of_its_requester(
    folder: Path, server: subprocess.Popen[bytes]
) -> None:
    result = run_on_server(folder, "tell", "a b", stdin="question")
    report = json.loads(result.stdout)
    assert report.pop("parent") == server.pid, "the server forked it"
    assert report == {
        "arguments": ["tell", "a b"], "name": "__main__", "folder": str(folder), "group": os.getpgrp(), "own": "mine", "inherited": None,
        "read": "question", "child": True,
    }  # fmt: skip
    assert (result.stderr, result.returncode) == ("aside\n", 0)


def test_modules_of_a_package_run_on_the_server_with_dash_m_but_not_when_imported(
    folder: Path, server: subprocess.Popen[bytes]
) -> None:
    """`python -m stages.VERB` uses the server, and an import does not."""
    (folder / "package").mkdir()
    (folder / "package" / "__init__.py").write_text((ROOT / "stages" / "__init__.py").read_text())
    (folder / "package" / "thing.py").write_text(SCRIPT)
    for command in (
        ["-m", "package.thing", "tell", "-m"],
        ["-c", "import package.thing", "tell", "-m"],
    ):
        result = subprocess.run(
            [sys.executable, *command],
            cwd=folder,
            env=environment(folder),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            check=True,
        )
        report = json.loads(result.stdout)
        assert report["arguments"] == ["tell", "-m"]
        assert (report["parent"] == server.pid) == (command[0] == "-m")


@pytest.mark.parametrize("serving", [True, False])
def test_the_requester_exits_as_its_child_did(
    folder: Path, serving: bool, request: pytest.FixtureRequest
) -> None:
    """It exits in the same way without a server."""
    if serving:
        request.getfixturevalue("server")
    assert run_on_server(folder, "0").returncode == 0
    assert run_on_server(folder, "3").returncode == 3
    assert run_on_server(folder, "die", str(int(signal.SIGKILL))).returncode == -signal.SIGKILL
    assert run_on_server(folder, "die", str(int(signal.SIGTERM))).returncode == -signal.SIGTERM
    raised = run_on_server(folder, "raise")
    assert raised.returncode == 1 and raised.stderr.strip().endswith("RuntimeError: no thing")


def test_several_children_can_run_at_once(folder: Path, server: subprocess.Popen[bytes]) -> None:
    requester, child = start_waiting_child(folder)
    assert run_on_server(folder, "3").returncode == 3
    assert requester.poll() is None and child.ppid() == server.pid
    terminate_process_group(requester.pid)
    requester.wait()


def test_ending_the_process_group_ends_the_child_in_order(
    folder: Path, server: subprocess.Popen[bytes]
) -> None:
    requester, child = start_waiting_child(folder)
    terminate_process_group(requester.pid)
    requester.wait()
    assert not is_alive(child)
    assert (folder / "ended").read_text() == "in order"
    assert server.poll() is None and run_on_server(folder, "3").returncode == 3


def test_a_server_ends_after_its_run_and_its_children(folder: Path) -> None:
    code = "import subprocess, sys, time; subprocess.Popen([*sys.argv[1:], str(__import__('os').getpid())]); time.sleep(60)"
    run = subprocess.Popen(
        [sys.executable, "-c", code, *SERVE, str(folder / "forkserver")], cwd=ROOT
    )
    wait_until((folder / "forkserver").exists)
    (server,) = psutil.Process(run.pid).children()
    requester, child = start_waiting_child(folder)
    run.kill()
    run.wait()
    time.sleep(2.5)  # the server looks twice in this time
    assert server.is_running() and requester.poll() is None, (
        "a stage whose run was killed continues to its end"
    )
    child.terminate()
    assert requester.wait(30) == 5
    assert not psutil.wait_procs([server], timeout=30)[1]


def test_a_dead_server_is_reported_and_its_child_ends_with_the_process_group(
    folder: Path, server: subprocess.Popen[bytes]
) -> None:
    """It is the last test, since it kills the shared server."""
    requester, child = start_waiting_child(folder)
    server.kill()
    assert requester.wait(30) == 1
    assert (
        requester.stderr is not None
        and requester.stderr.readline() == b"thing: the fork server of this run has ended\n"
    )
    terminate_process_group(requester.pid)
    assert (folder / "ended").read_text() == "in order" and not is_alive(child)
