"""A fork server's children stand in for the processes that asked for them: folder, environment, streams, process group and end."""

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

from flows.execute import terminate_process_group
from tests.toy_project import wait_until

HERE = Path(__file__).resolve().parent.parent
THING = """
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
def place(tmp_path: Path) -> Path:
    (tmp_path / "thing.py").write_text(THING)
    return tmp_path


@pytest.fixture
def server(tmp_path: Path) -> Iterator[subprocess.Popen[bytes]]:
    address = tmp_path / "forkserver"
    child = subprocess.Popen(
        [*SERVE, str(address), str(os.getpid())], cwd=HERE, env=os.environ | {"OF_THE_SERVER": "1"}
    )
    wait_until(address.exists)
    yield child
    child.kill()
    child.wait()


def environment(place: Path) -> dict[str, str]:
    return os.environ | {
        "LINEAGE_FORKSERVER": str(place / "forkserver"),
        "PYTHONPATH": str(HERE),
        "THING": "mine",
    }


def ask(place: Path, *words: str, said: str = "") -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "lineage.runtime.forkserver", "run", "thing", *words]
    return subprocess.run(
        command,
        cwd=place,
        env=environment(place),
        input=said,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def waiting(place: Path) -> tuple[subprocess.Popen[bytes], psutil.Process]:
    """Someone who asked, in a process group of their own, and the child that works for them."""
    command = [sys.executable, "-m", "lineage.runtime.forkserver", "run", "thing", "wait"]
    asking = subprocess.Popen(
        command, cwd=place, env=environment(place), process_group=0, stderr=subprocess.PIPE
    )
    wait_until(lambda: (place / "waits").exists() and bool((place / "waits").read_text()))
    return asking, psutil.Process(int((place / "waits").read_text()))


def lives(process: psutil.Process) -> bool:
    return process.is_running() and process.status() != psutil.STATUS_ZOMBIE


def test_a_child_has_all_that_the_one_who_asked_has(
    place: Path, server: subprocess.Popen[bytes]
) -> None:
    answer = ask(place, "tell", "a b", said="question")
    found = json.loads(answer.stdout)
    assert found.pop("parent") == server.pid, "it was forked"
    assert found == {
        "arguments": ["tell", "a b"], "name": "__main__", "folder": str(place), "group": os.getpgrp(), "own": "mine", "inherited": None,
        "read": "question", "child": True,
    }  # fmt: skip
    assert (answer.stderr, answer.returncode) == ("aside\n", 0)


def test_a_package_s_modules_are_handed_over_when_they_are_run(
    place: Path, server: subprocess.Popen[bytes]
) -> None:
    """As `python -m stages.VERB` is; where one is imported, nothing is asked."""
    (place / "package").mkdir()
    (place / "package" / "__init__.py").write_text((HERE / "stages" / "__init__.py").read_text())
    (place / "package" / "thing.py").write_text(THING)
    for command in (
        ["-m", "package.thing", "tell", "-m"],
        ["-c", "import package.thing", "tell", "-m"],
    ):
        done = subprocess.run(
            [sys.executable, *command],
            cwd=place,
            env=environment(place),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            check=True,
        )
        found = json.loads(done.stdout)
        assert found["arguments"] == ["tell", "-m"]
        assert (found["parent"] == server.pid) == (command[0] == "-m")


@pytest.mark.parametrize("serving", [True, False])
def test_one_ends_as_a_child_ended(
    place: Path, serving: bool, request: pytest.FixtureRequest
) -> None:
    """And no otherwise than where there is no server."""
    if serving:
        request.getfixturevalue("server")
    assert ask(place, "0").returncode == 0
    assert ask(place, "3").returncode == 3
    assert ask(place, "die", str(int(signal.SIGKILL))).returncode == -signal.SIGKILL
    assert ask(place, "die", str(int(signal.SIGTERM))).returncode == -signal.SIGTERM
    raised = ask(place, "raise")
    assert raised.returncode == 1 and raised.stderr.strip().endswith("RuntimeError: no thing")


def test_several_work_at_once(place: Path, server: subprocess.Popen[bytes]) -> None:
    asking, child = waiting(place)
    assert ask(place, "3").returncode == 3
    assert asking.poll() is None and child.ppid() == server.pid
    terminate_process_group(asking.pid)
    asking.wait()


def test_ending_a_group_ends_the_child_in_order(
    place: Path, server: subprocess.Popen[bytes]
) -> None:
    asking, child = waiting(place)
    terminate_process_group(asking.pid)
    asking.wait()
    assert not lives(child)
    assert (place / "ended").read_text() == "in order"
    assert server.poll() is None and ask(place, "3").returncode == 3


def test_a_server_that_dies_is_said_and_leaves_its_child_to_the_group(
    place: Path, server: subprocess.Popen[bytes]
) -> None:
    asking, child = waiting(place)
    server.kill()
    assert asking.wait(30) == 1
    assert (
        asking.stderr is not None
        and asking.stderr.readline() == b"thing: the fork server of this run has ended\n"
    )
    terminate_process_group(asking.pid)
    assert (place / "ended").read_text() == "in order" and not lives(child)


def test_a_server_ends_after_its_run_and_its_children(place: Path) -> None:
    code = "import subprocess, sys, time; subprocess.Popen([*sys.argv[1:], str(__import__('os').getpid())]); time.sleep(60)"
    run = subprocess.Popen(
        [sys.executable, "-c", code, *SERVE, str(place / "forkserver")], cwd=HERE
    )
    wait_until((place / "forkserver").exists)
    (server,) = psutil.Process(run.pid).children()
    asking, child = waiting(place)
    run.kill()
    run.wait()
    time.sleep(2.5)  # more than it takes to look twice
    assert server.is_running() and asking.poll() is None, (
        "a stage whose run was killed goes on to its end"
    )
    child.terminate()
    assert asking.wait(30) == 5
    assert not psutil.wait_procs([server], timeout=30)[1]
