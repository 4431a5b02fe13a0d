"""Run one stage, for the local scheduler, the Prefect flow and every worker.

A stage is `dvc repro -s NAME` in a process group of its own. Killing DVC alone would leave the
training behind as an orphan, so the whole group is signalled: TERM, time for a last checkpoint,
then KILL. It is not a session, since the children of a fork server can join a group only within
their own session.
"""

import contextlib
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

from flows.guard import Guard
from flows.processes import terminate_process_group
from lineage.runtime.settings import STATE_DIR

TELEMETRY_OFF = {
    "PREFECT_SERVER_ANALYTICS_ENABLED": "false",
    "DO_NOT_TRACK": "true",
    "MLFLOW_DISABLE_TELEMETRY": "true",
    "DVC_NO_ANALYTICS": "1",
}
THREAD_VARIABLES = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")
LAST_STAGE = "publish"  # prints the table, and always runs
POLL_SECONDS = 0.2
DVC_TIMEOUT_SECONDS = 86_400.0  # of DVC commands such as push
EXIT_BAD_INPUT = 2
EXIT_RESULTS_FAILED = 3  # of a run that finished, but in which some results failed
EXIT_SHORTAGE = 4  # of a stage whose machine has run out of memory, disk or open files

Outcome = Literal["ran", "cached", "fresh", "failed", "blocked", "stopped"]


@dataclass(frozen=True)
class StageResult:
    """How one stage ended. `exit_status` is the stage's own exit code, not DVC's."""

    name: str
    outcome: Outcome
    seconds: float = 0.0
    exit_status: int = 0
    message: str = ""

    @property
    def succeeded(self) -> bool:
        return self.outcome in ("ran", "cached", "fresh")

    @property
    def was_killed(self) -> bool:
        """True if a signal ended it, for example as memory ran out. Another try resumes it."""
        return self.outcome == "failed" and _is_signal(self.exit_status)


class DvcError(RuntimeError):
    """A DVC command for a stage failed. The stage cannot go on; others can."""


class WorkersUnreachableError(RuntimeError):
    """The Prefect server is gone, so stages cannot be sent to workers."""


@dataclass(frozen=True)
class StageContext:
    """Where and how stages run. Setting `stop_event` ends them."""

    root: Path
    environment: Mapping[str, str] = field(default_factory=dict)
    threads: int = 1
    stop_event: threading.Event = field(default_factory=threading.Event)
    guard: Guard = field(default_factory=Guard)

    def child_environment(self, name: str) -> dict[str, str]:
        """Return the environment of a stage's process."""
        python_folder = Path(sys.executable).parent
        return {
            **os.environ,
            **TELEMETRY_OFF,
            **dict.fromkeys(THREAD_VARIABLES, str(self.threads)),
            "PATH": f"{python_folder}{os.pathsep}{os.environ.get('PATH', os.defpath)}",
            "SHELL": "/bin/sh",  # runs DVC's commands; start-up files of the user's may do anything
            "PYTHONUNBUFFERED": "1",
            "LINEAGE_STAGE": name,
            **self.environment,
        }


def log_path(root: Path, name: str) -> Path:
    """Return the file for everything that a stage prints."""
    return root / STATE_DIR / "logs" / f"{stage_file_name(name)}.log"


def stage_file_name(name: str) -> str:
    """Return a stage's name as a file name: evaluate@gpt-0-sense -> evaluate-gpt-0-sense."""
    return name.replace("@", "-")


def run_stage(
    name: str, *, context: StageContext, timeout_seconds: float, pull: bool = False
) -> StageResult:
    """Bring one stage up to date. The stages that it depends on must be up to date already.

    With `pull`, inputs and cached results come from the DVC remote. If the stage fails, the result
    says so, and nothing is raised. When interrupted, or when `context.stop_event` is set, the whole
    process group has ended on return.
    """
    start_time = time.monotonic()
    # The stage writes its own exit code here.
    exit_path = context.root / STATE_DIR / "exits" / f"{stage_file_name(name)}.json"
    exit_path.unlink(missing_ok=True)
    command = ["--wait-for-lock", "repro", "-s"]
    if pull:
        command.append("--pull")
    ended = _run_dvc_command(
        [*command, name], context=context, name=name, timeout_seconds=timeout_seconds
    )
    seconds = time.monotonic() - start_time
    log_file = log_path(context.root, name)
    log = log_file.read_text(errors="replace")
    if ended == "stopped":
        return StageResult(name, "stopped", seconds, 1, f"{name}: stopped")
    if ended == "timeout":
        message = (
            f"{name}: ran longer than {timeout_seconds:.0f} s and was ended; "
            "raise timeout_s in dvc.yaml"
        )
        return StageResult(name, "failed", seconds, 1, message)
    if ended == 0:
        _flush_lock_file(context.root)
        return StageResult(name, _success_outcome(log, name), seconds)
    exit_status = ended if ended < 0 else _stage_exit_status(exit_path, log)
    message = _failure_message(name, exit_status, log, log_file)
    return StageResult(name, "failed", seconds, exit_status, message)


def _flush_lock_file(root: Path) -> None:
    """Wait until dvc.lock is on the disk. A power cut could leave it empty."""
    with contextlib.suppress(FileNotFoundError), (root / "dvc.lock").open("rb") as stream:
        os.fsync(stream.fileno())


def run_dvc(*arguments: str, context: StageContext, name: str) -> None:
    """Run another DVC command, such as push, for a stage. Raises DvcError with DVC's own words."""
    log_name = f"{name}.{arguments[0]}"
    ended = _run_dvc_command(
        ["--wait-for-lock", *arguments],
        context=context,
        name=log_name,
        timeout_seconds=DVC_TIMEOUT_SECONDS,
    )
    if ended != 0:
        log = log_path(context.root, log_name).read_text(errors="replace")
        raise DvcError(
            f"{name}: `dvc {' '.join(arguments)}` failed ({ended}): {' '.join(log.split())[-500:]}"
        )


def _run_dvc_command(
    arguments: list[str], *, context: StageContext, name: str, timeout_seconds: float
) -> int | Literal["stopped", "timeout"]:
    """Run a DVC command in a process group of its own, and log what it prints.

    Return its exit code, or why it was ended.
    """
    path = log_path(context.root, name)
    path.parent.mkdir(parents=True, exist_ok=True)
    if context.stop_event.is_set():
        path.write_text("")
        return "stopped"
    command = [sys.executable, "-m", "lineage.runtime.forkserver", "run", "flows.quick_dvc"]
    deadline = time.monotonic() + timeout_seconds
    with path.open("wb") as stream:
        child = subprocess.Popen(
            [*command, *arguments],
            cwd=context.root,
            env=context.child_environment(name),
            stdin=subprocess.DEVNULL,
            stdout=stream,
            stderr=subprocess.STDOUT,
            process_group=0,
        )
        with context.guard.watch(child.pid):
            try:
                while child.poll() is None:
                    if context.stop_event.is_set():
                        return "stopped"
                    if time.monotonic() > deadline:
                        return "timeout"
                    with contextlib.suppress(subprocess.TimeoutExpired):
                        child.wait(POLL_SECONDS)
                return child.returncode
            finally:
                terminate_process_group(child.pid)
                child.wait()


def _success_outcome(log: str, name: str) -> Outcome:
    """Tell from what DVC printed whether the stage ran."""
    if f"Stage '{name}' is cached - skipping run" in log:
        return "cached"
    if f"Stage '{name}' didn't change, skipping" in log:
        return "fresh"
    return "ran"


def _stage_exit_status(exit_path: Path, log: str) -> int:
    """Return the stage's own exit code, since DVC turns every failure into 255.

    It is 1 if the stage never began, or if DVC failed after it. If a process between DVC and the
    stage was killed, it is the code that DVC was told, since the stage is then ended, or ends well.
    """
    own_status = 0
    if exit_path.is_file():
        own_status = int(json.loads(exit_path.read_text())["code"])
    if own_status == EXIT_BAD_INPUT:
        return own_status
    found = re.findall(r"exited with (-?\d+)", log)
    reported = int(found[-1]) if found else 1
    return reported if _is_signal(reported) or not own_status else own_status


def _is_signal(exit_status: int) -> bool:
    return exit_status < 0 or exit_status > 128


def _failure_message(name: str, exit_status: int, log: str, log_file: Path) -> str:
    """Return one line: the stage's own message if it has one, or the error and where to look."""
    lines = [line.strip() for line in log.splitlines() if line.strip()]
    own_lines = [line for line in lines if line.startswith(f"{name}: ")]
    if exit_status in (EXIT_BAD_INPUT, EXIT_SHORTAGE) and own_lines:
        return own_lines[-1]
    if log_file.is_relative_to(Path.cwd()):
        log_file = log_file.relative_to(Path.cwd())
    if not _is_signal(exit_status):
        return f"{name}: failed with exit code {exit_status}: {_error_line(lines)}; see {log_file}"
    number = -exit_status if exit_status < 0 else exit_status - 128
    reason = ""
    if number == signal.SIGKILL:
        reason = " (out of memory?); free memory, or run one stage at a time with --jobs 1"
    return (
        f"{name}: killed by signal {number}{reason}; the same command goes on where it was; "
        f"see {log_file}"
    )


def _error_line(lines: list[str]) -> str:
    """Return the line of a log that says what went wrong: DVC's error, or else the last line."""
    candidates = [
        line for line in lines if line.startswith("ERROR: ") and "exited with" not in line
    ]
    if not candidates:
        candidates = [line for line in lines if not line.startswith("ERROR: failed to reproduce")]
    if not candidates:
        candidates = lines or ["no output"]
    error = candidates[-1]
    if error.endswith("is being blocked by:"):  # the process is named on the next lines
        start = lines.index(error)
        blocked_by = " ".join(lines[start : start + 4])
        return f"{blocked_by}: a run that was killed left it behind; wait for it, or end it"
    return error
