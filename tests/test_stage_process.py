"""A command's process has its own folder, environment, log and process group, and ends in time."""

import json
import os
import signal
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import psutil
import pytest

from flows.stage_process import Command, run_command
from lineage.runtime.locks import hold_lock
from tests.helpers.toy_project import wait_until

ROOT = Path(__file__).resolve().parent.parent
SCRIPT = """
import json, os, signal, sys, time
from pathlib import Path
word = sys.argv[1]
if word == "tell":
    about = {"arguments": sys.argv[1:], "name": __name__, "folder": os.getcwd(), "own": os.environ.get("THING"),
             "inherited": os.environ.get("OF_THE_RUN"), "read": sys.stdin.read(), "group": os.getpgrp() == os.getpid(),
             "child": signal.getsignal(signal.SIGCHLD) is signal.SIG_DFL,
             "project": [name for name in sys.modules if name.split(".")[0] in ("lineage", "stages")]}
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
    sys.exit(int(word) if word.isdecimal() else word)
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "thing.py").write_text(SCRIPT)
    return tmp_path


def make_command(folder: Path, text: str) -> Command:
    environment = {"PATH": os.environ["PATH"], "PYTHONPATH": str(ROOT), "THING": "mine"}
    return Command(text, folder, environment, folder / "log", folder / "locks" / "stages")


def run(folder: Path, *words: str, **options: Any) -> tuple[Any, str]:
    """Run the script; return how it ended and what it printed."""
    command = make_command(folder, " ".join(("python -m thing", *words)))
    options = {"stop_event": threading.Event(), "timeout_seconds": 60.0, **options}
    return run_command(command, **options), command.log.read_text()


def is_waiting(folder: Path) -> bool:
    return (folder / "waits").exists() and bool((folder / "waits").read_text())


def waiting_process(folder: Path) -> psutil.Process:
    wait_until(lambda: is_waiting(folder))
    return psutil.Process(int((folder / "waits").read_text()))


def test_a_process_has_its_arguments_folder_environment_and_log(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OF_THE_RUN", "1")
    ended, log = run(folder, "tell", "'a b'")
    lines = log.splitlines()
    assert json.loads(lines[0]) == {
        "arguments": ["tell", "a b"], "name": "__main__", "folder": str(folder), "own": "mine", "inherited": None, "read": "",
        "group": True, "child": True, "project": [],
    }  # fmt: skip
    assert lines[1:] == ["aside"] and ended == 0


def test_the_exit_code_is_that_of_the_process(folder: Path) -> None:
    assert run(folder, "0") == (0, "")
    assert run(folder, "3") == (3, "")
    assert run(folder, "words") == (1, "words\n")
    assert run(folder, "die", str(int(signal.SIGKILL))) == (-signal.SIGKILL, "")
    assert run(folder, "die", str(int(signal.SIGTERM))) == (-signal.SIGTERM, "")
    ended, log = run(folder, "raise")
    assert ended == 1 and log.strip().endswith("RuntimeError: no thing")


def test_any_other_command_runs_in_a_shell(folder: Path) -> None:
    command = make_command(folder, "echo $THING && exit 4")
    ended = run_command(command, stop_event=threading.Event(), timeout_seconds=60)
    assert (ended, command.log.read_text()) == (4, "mine\n")


@pytest.mark.parametrize("reason", ["stopped", "timeout"])
def test_a_process_that_has_to_end_may_end_in_order(folder: Path, reason: str) -> None:
    stop_event = threading.Event()
    timeout_seconds = 60.0 if reason == "stopped" else 5.0
    with ThreadPoolExecutor() as pool:
        ended = pool.submit(
            run, folder, "wait", stop_event=stop_event, timeout_seconds=timeout_seconds
        )
        process = waiting_process(folder)
        if reason == "stopped":
            stop_event.set()
        assert ended.result(30)[0] == reason
    assert not process.is_running()
    assert (folder / "ended").read_text() == "in order"


def test_several_processes_can_run_at_once(folder: Path) -> None:
    """Each thread starts and ends processes of its own, and gets their exit codes."""
    numbers = [*range(16)]
    folders = [folder / str(number) for number in numbers]
    for one in folders:
        one.mkdir()
        (one / "thing.py").write_text(SCRIPT)

    def exit_with(number: int) -> int:
        return int(run(folders[number], str(number))[0])

    with ThreadPoolExecutor(4) as pool:
        assert [*pool.map(exit_with, numbers)] == numbers


STARTER = """
import os, sys, threading
from pathlib import Path
from flows.stage_process import Command, run_command
if __name__ == "__main__":
    folder = Path(sys.argv[1])
    environment = dict(os.environ)
    command = Command("python -m thing wait", folder, environment, folder / "log", folder / "locks" / "stages")
    run_command(command, stop_event=threading.Event(), timeout_seconds=60)
"""


def test_a_process_ends_in_order_when_the_one_that_started_it_is_killed(folder: Path) -> None:
    """Whoever comes next waits until it has ended."""
    (folder / "starter.py").write_text(STARTER)
    starter = subprocess.Popen(
        [sys.executable, folder / "starter.py", folder],
        env=os.environ | {"PYTHONPATH": str(ROOT)},
    )
    process = waiting_process(folder)
    starter.kill()
    starter.wait()
    with hold_lock(folder / "locks" / "stages"):
        pass
    assert (folder / "ended").read_text() == "in order"
    wait_until(lambda: not process.is_running())


def test_a_killed_server_is_started_again_for_the_next_process(folder: Path) -> None:
    with ThreadPoolExecutor() as pool:
        ended = pool.submit(run, folder, "wait")
        process = waiting_process(folder)
        psutil.Process(process.ppid()).kill()
        assert ended.result(30)[0] == -signal.SIGKILL
    assert not process.is_running() or process.status() == psutil.STATUS_ZOMBIE
    assert run(folder, "3") == (3, "")
