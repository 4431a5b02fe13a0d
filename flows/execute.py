"""run_stage: the one way a stage is run, by the local walker, by the Prefect flow and by every worker.

A stage is `dvc repro -s NAME` in a process group of its own. Killing DVC alone would leave the training behind as an orphan, so the whole
group is signalled: TERM, a while for a last checkpoint, then KILL. Not a session: a fork server's children may join a group of theirs alone.
"""

import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

import psutil

from lineage.running.runtime import STATE

QUIET = {"PREFECT_SERVER_ANALYTICS_ENABLED": "false", "DO_NOT_TRACK": "true", "MLFLOW_DISABLE_TELEMETRY": "true", "DVC_NO_ANALYTICS": "1"}
GRACE_SECONDS = 20.0  # for a last checkpoint; less than the 30 s that Prefect gives a cancelled run
POLL_SECONDS = 0.2
BAD_INPUT = 2


@dataclass(frozen=True)
class Result:
    """How one stage ended. `code` is the stage's own exit code, not DVC's."""

    name: str
    outcome: Literal["ran", "cached", "fresh", "failed", "blocked", "stopped"]
    seconds: float = 0.0
    code: int = 0
    message: str = ""

    @property
    def ok(self) -> bool:
        return self.outcome in ("ran", "cached", "fresh")

    @property
    def killed(self) -> bool:
        """Whether a signal ended it, as when memory ran out: worth another try, which resumes."""
        return self.outcome == "failed" and (self.code < 0 or self.code > 128)


class DvcError(RuntimeError):
    """A DVC command on behalf of a stage failed: the stage cannot go on, others can."""


@dataclass(frozen=True)
class Setting:
    """Where and how stages run: the folder, what they get by environment, and the event that ends them."""

    root: Path
    environment: Mapping[str, str] = field(default_factory=dict)
    threads: int = 1
    stop: threading.Event = field(default_factory=threading.Event)

    def child_environment(self, name: str) -> dict[str, str]:
        """The environment of a stage's process."""
        threads = dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"), str(self.threads))
        path = {"PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', os.defpath)}"}
        # DVC runs commands by $SHELL: not the user's, whose start-up files may do anything
        shell = {"SHELL": "/bin/sh", "PYTHONUNBUFFERED": "1", "LINEAGE_STAGE": name}
        return {**os.environ, **QUIET, **threads, **path, **shell, **self.environment}


def log_path(root: Path, name: str) -> Path:
    """Where all that a stage prints goes."""
    return root / STATE / "logs" / f"{file_name(name)}.log"


def file_name(name: str) -> str:
    """A stage's name as a file's: evaluate@gpt-0-sense -> evaluate-gpt-0-sense."""
    return name.replace("@", "-")


def run_stage(name: str, *, setting: Setting, timeout_seconds: float, pull: bool = False) -> Result:
    """Bring one stage up to date; what it needs must be. With `pull`, inputs and cached results come from the DVC remote.

    Never raises for a stage that fails. When interrupted, or when `setting.stop` is set, the whole group has ended on return.
    """
    started = time.monotonic()
    exits = setting.root / STATE / "exits" / f"{file_name(name)}.json"
    exits.unlink(missing_ok=True)
    command = ["--wait-for-lock", "repro", "-s", *(["--pull"] if pull else []), name]
    reason = _dvc(command, setting=setting, name=name, timeout_seconds=timeout_seconds)
    seconds = time.monotonic() - started
    log = log_path(setting.root, name).read_text(errors="replace")
    if reason == "stopped":
        return Result(name, "stopped", seconds, 1, f"{name}: stopped")
    if reason == "timeout":
        return Result(name, "failed", seconds, 1, f"{name}: ran longer than {timeout_seconds:.0f} s and was ended; raise timeout_s in dvc.yaml")
    if reason == 0:
        return Result(name, _outcome(log, name), seconds)
    code = _exit_code(exits, log)
    return Result(name, "failed", seconds, code, _message(name, code, log, log_path(setting.root, name)))


def run_dvc(*arguments: str, setting: Setting, name: str) -> None:
    """Another DVC command, such as push, on behalf of a stage. Raises DvcError with what DVC said."""
    code = _dvc(["--wait-for-lock", *arguments], setting=setting, name=f"{name}.{arguments[0]}", timeout_seconds=86_400)
    if code != 0:
        log = log_path(setting.root, f"{name}.{arguments[0]}").read_text(errors="replace")
        raise DvcError(f"{name}: `dvc {' '.join(arguments)}` failed ({code}): {' '.join(log.split())[-500:]}")


def _dvc(arguments: list[str], *, setting: Setting, name: str, timeout_seconds: float) -> int | Literal["stopped", "timeout"]:
    """DVC's exit code, or why it was ended. The group is gone on return, whatever happens."""
    log = log_path(setting.root, name)
    log.parent.mkdir(parents=True, exist_ok=True)
    if setting.stop.is_set():
        log.write_text("")
        return "stopped"
    deadline = time.monotonic() + timeout_seconds
    with log.open("wb") as stream:
        child = subprocess.Popen(
            [sys.executable, "-m", "lineage.running.forkserver", "run", "flows.quick_dvc", *arguments], cwd=setting.root,
            env=setting.child_environment(name), stdin=subprocess.DEVNULL, stdout=stream, stderr=subprocess.STDOUT, process_group=0,
        )  # fmt: skip
        try:
            while child.poll() is None:
                if setting.stop.is_set():
                    return "stopped"
                if time.monotonic() > deadline:
                    return "timeout"
                try:
                    child.wait(POLL_SECONDS)
                except subprocess.TimeoutExpired:
                    continue
            return child.returncode
        finally:
            end_group(child.pid)
            child.wait()


def end_group(group: int, *, grace_seconds: float = GRACE_SECONDS) -> None:
    """End all processes of a group: TERM, wait, KILL."""
    for sign, seconds in ((signal.SIGTERM, grace_seconds), (signal.SIGKILL, 5.0)):
        deadline = time.monotonic() + seconds
        if not _members(group):
            return
        try:
            os.killpg(group, sign)
        except ProcessLookupError:
            return
        while _members(group) and time.monotonic() < deadline:
            time.sleep(0.05)


def _members(group: int) -> list[int]:
    """The group's living processes; a dead one that nobody has waited for yet does not count."""
    found = []
    for process in psutil.process_iter(["status"]):
        try:
            if os.getpgid(process.pid) == group and process.info["status"] != psutil.STATUS_ZOMBIE:
                found.append(process.pid)
        except (ProcessLookupError, PermissionError, psutil.Error):
            continue
    return found


def _outcome(log: str, name: str) -> Literal["ran", "cached", "fresh"]:
    if f"Stage '{name}' is cached - skipping run" in log:
        return "cached"
    return "fresh" if f"Stage '{name}' didn't change, skipping" in log else "ran"


def _exit_code(exits: Path, log: str) -> int:
    """The stage's own exit code: DVC turns every failure into 255. 1 where the stage never began, or DVC failed after it."""
    if exits.is_file():
        return int(json.loads(exits.read_text())["code"]) or 1
    said = re.findall(r"exited with (-?\d+)", log)
    return int(said[-1]) if said else 1


def _message(name: str, code: int, log: str, path: Path) -> str:
    """One line: for bad input the stage's own, else where to look."""
    lines = [line.strip() for line in log.splitlines() if line.strip()]
    own = [line for line in lines if line.startswith(f"{name}: ")]
    if code == BAD_INPUT and own:
        return own[-1]
    last = [line for line in lines if not line.startswith("ERROR: failed to reproduce")] or lines
    ended = f"killed by signal {-code if code < 0 else code - 128}" if code < 0 or code > 128 else f"failed with exit code {code}"
    dvc = [line for line in lines if line.startswith("ERROR: ") and "exited with" not in line]
    said = (dvc or last or ["no output"])[-1]
    if said.endswith("is being blocked by:"):  # the process follows on lines of its own
        said = f"{' '.join(lines[lines.index(said) :][:4])}: a run that was killed left it behind; wait for it, or end it"
    return f"{name}: {ended}: {said}; see {path.relative_to(here) if path.is_relative_to(here := Path.cwd()) else path}"
