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

from lineage.runtime.settings import STATE_DIR

TELEMETRY_OFF = {
    "PREFECT_SERVER_ANALYTICS_ENABLED": "false",
    "DO_NOT_TRACK": "true",
    "MLFLOW_DISABLE_TELEMETRY": "true",
    "DVC_NO_ANALYTICS": "1",
}
GRACE_SECONDS = 20.0  # for a last checkpoint; less than the 30 s that Prefect gives a cancelled run
POLL_SECONDS = 0.2
EXIT_BAD_INPUT = 2


@dataclass(frozen=True)
class StageResult:
    """How one stage ended. `code` is the stage's own exit code, not DVC's."""

    name: str
    outcome: Literal["ran", "cached", "fresh", "failed", "blocked", "stopped"]
    seconds: float = 0.0
    exit_status: int = 0
    message: str = ""

    @property
    def succeeded(self) -> bool:
        return self.outcome in ("ran", "cached", "fresh")

    @property
    def was_killed(self) -> bool:
        """Whether a signal ended it, as when memory ran out: worth another try, which resumes."""
        return self.outcome == "failed" and (self.exit_status < 0 or self.exit_status > 128)


class DvcError(RuntimeError):
    """A DVC command on behalf of a stage failed: the stage cannot go on, others can."""


@dataclass(frozen=True)
class StageContext:
    """Where and how stages run: the folder, what they get by environment, and the event that ends them."""

    root: Path
    environment: Mapping[str, str] = field(default_factory=dict)
    threads: int = 1
    stop_event: threading.Event = field(default_factory=threading.Event)

    def child_environment(self, name: str) -> dict[str, str]:
        """The environment of a stage's process."""
        threads = dict.fromkeys(
            ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"), str(self.threads)
        )
        path = {
            "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', os.defpath)}"
        }
        # DVC runs commands by $SHELL: not the user's, whose start-up files may do anything
        shell = {"SHELL": "/bin/sh", "PYTHONUNBUFFERED": "1", "LINEAGE_STAGE": name}
        return {**os.environ, **TELEMETRY_OFF, **threads, **path, **shell, **self.environment}


def log_path(root: Path, name: str) -> Path:
    """Where all that a stage prints goes."""
    return root / STATE_DIR / "logs" / f"{stage_file_name(name)}.log"


def stage_file_name(name: str) -> str:
    """A stage's name as a file's: evaluate@gpt-0-sense -> evaluate-gpt-0-sense."""
    return name.replace("@", "-")


def run_stage(
    name: str, *, context: StageContext, timeout_seconds: float, pull: bool = False
) -> StageResult:
    """Bring one stage up to date; what it needs must be. With `pull`, inputs and cached results come from the DVC remote.

    Never raises for a stage that fails. When interrupted, or when `setting.stop` is set, the whole group has ended on return.
    """
    started = time.monotonic()
    exits = context.root / STATE_DIR / "exits" / f"{stage_file_name(name)}.json"
    exits.unlink(missing_ok=True)
    command = ["--wait-for-lock", "repro", "-s", *(["--pull"] if pull else []), name]
    reason = _run_dvc_command(command, context=context, name=name, timeout_seconds=timeout_seconds)
    seconds = time.monotonic() - started
    log = log_path(context.root, name).read_text(errors="replace")
    if reason == "stopped":
        return StageResult(name, "stopped", seconds, 1, f"{name}: stopped")
    if reason == "timeout":
        return StageResult(
            name,
            "failed",
            seconds,
            1,
            f"{name}: ran longer than {timeout_seconds:.0f} s and was ended; raise timeout_s in dvc.yaml",
        )
    if reason == 0:
        return StageResult(name, _outcome(log, name), seconds)
    code = _stage_exit_status(exits, log)
    return StageResult(
        name,
        "failed",
        seconds,
        code,
        _failure_message(name, code, log, log_path(context.root, name)),
    )


def run_dvc(*arguments: str, context: StageContext, name: str) -> None:
    """Another DVC command, such as push, on behalf of a stage. Raises DvcError with what DVC said."""
    code = _run_dvc_command(
        ["--wait-for-lock", *arguments],
        context=context,
        name=f"{name}.{arguments[0]}",
        timeout_seconds=86_400,
    )
    if code != 0:
        log = log_path(context.root, f"{name}.{arguments[0]}").read_text(errors="replace")
        raise DvcError(
            f"{name}: `dvc {' '.join(arguments)}` failed ({code}): {' '.join(log.split())[-500:]}"
        )


def _run_dvc_command(
    arguments: list[str], *, context: StageContext, name: str, timeout_seconds: float
) -> int | Literal["stopped", "timeout"]:
    """DVC's exit code, or why it was ended. The group is gone on return, whatever happens."""
    log = log_path(context.root, name)
    log.parent.mkdir(parents=True, exist_ok=True)
    if context.stop_event.is_set():
        log.write_text("")
        return "stopped"
    deadline = time.monotonic() + timeout_seconds
    with log.open("wb") as stream:
        child = subprocess.Popen(
            [
                sys.executable,
                "-m",
                "lineage.runtime.forkserver",
                "run",
                "flows.quick_dvc",
                *arguments,
            ],
            cwd=context.root,
            env=context.child_environment(name),
            stdin=subprocess.DEVNULL,
            stdout=stream,
            stderr=subprocess.STDOUT,
            process_group=0,
        )
        try:
            while child.poll() is None:
                if context.stop_event.is_set():
                    return "stopped"
                if time.monotonic() > deadline:
                    return "timeout"
                try:
                    child.wait(POLL_SECONDS)
                except subprocess.TimeoutExpired:
                    continue
            return child.returncode
        finally:
            terminate_process_group(child.pid)
            child.wait()


def terminate_process_group(group: int, *, grace_seconds: float = GRACE_SECONDS) -> None:
    """End all processes of a group: TERM, wait, KILL."""
    for sign, seconds in ((signal.SIGTERM, grace_seconds), (signal.SIGKILL, 5.0)):
        deadline = time.monotonic() + seconds
        if not _living_members(group):
            return
        try:
            os.killpg(group, sign)
        except ProcessLookupError:
            return
        while _living_members(group) and time.monotonic() < deadline:
            time.sleep(0.05)


def _living_members(group: int) -> list[int]:
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


def _stage_exit_status(exits: Path, log: str) -> int:
    """The stage's own exit code: DVC turns every failure into 255. 1 where the stage never began, or DVC failed after it."""
    if exits.is_file():
        return int(json.loads(exits.read_text())["code"]) or 1
    said = re.findall(r"exited with (-?\d+)", log)
    return int(said[-1]) if said else 1


def _failure_message(name: str, exit_status: int, log: str, path: Path) -> str:
    """One line: for bad input the stage's own, else where to look."""
    lines = [line.strip() for line in log.splitlines() if line.strip()]
    own = [line for line in lines if line.startswith(f"{name}: ")]
    if exit_status == EXIT_BAD_INPUT and own:
        return own[-1]
    last = [line for line in lines if not line.startswith("ERROR: failed to reproduce")] or lines
    ended = (
        f"killed by signal {-exit_status if exit_status < 0 else exit_status - 128}"
        if exit_status < 0 or exit_status > 128
        else f"failed with exit code {exit_status}"
    )
    dvc = [line for line in lines if line.startswith("ERROR: ") and "exited with" not in line]
    said = (dvc or last or ["no output"])[-1]
    if said.endswith("is being blocked by:"):  # the process follows on lines of its own
        said = f"{' '.join(lines[lines.index(said) :][:4])}: a run that was killed left it behind; wait for it, or end it"
    return f"{name}: {ended}: {said}; see {path.relative_to(here) if path.is_relative_to(here := Path.cwd()) else path}"
