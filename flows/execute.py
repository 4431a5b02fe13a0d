"""Run one stage, for the local scheduler, the Prefect flow and every worker.

A stage's command runs in a process group of its own, all of which is signalled when it has to end.
"""

import os
import shlex
import signal
import sys
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from flows.stage_process import Command, CommandEnd, run_command
from lineage.runtime.locks import hold_lock
from lineage.runtime.settings import STATE_DIR

if TYPE_CHECKING:
    from flows.repository import StudyRepository

TELEMETRY_OFF = {
    "PREFECT_SERVER_ANALYTICS_ENABLED": "false",
    "DO_NOT_TRACK": "true",
    "MLFLOW_DISABLE_TELEMETRY": "true",
    "DVC_NO_ANALYTICS": "1",
}
THREAD_VARIABLES = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")
LAST_STAGE = "publish"  # prints the table, and always runs
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

    @cached_property
    def repository(self) -> "StudyRepository":
        """The study's DVC repository, opened once."""
        # Imported here: DVC takes half a second, which other commands do without.
        from flows.repository import StudyRepository

        return StudyRepository(self.root, self.stop_event)

    def child_environment(self, name: str) -> dict[str, str]:
        """Return the environment of a stage's process."""
        python_folder = Path(sys.executable).parent
        return {
            **os.environ,
            **TELEMETRY_OFF,
            **dict.fromkeys(THREAD_VARIABLES, str(self.threads)),
            "PATH": f"{python_folder}{os.pathsep}{os.environ.get('PATH', os.defpath)}",
            "PYTHONUNBUFFERED": "1",
            "LINEAGE_STAGE": name,
            **self.environment,
        }


def stages_lock_path(root: Path) -> Path:
    """Return the file that each stage of a study keeps locked for as long as it lives."""
    return root / STATE_DIR / "locks" / "stages.lock"


def wait_for_stages(root: Path) -> None:
    """Wait until the stages of a process that was killed have ended."""
    message = "waiting for the stages of a run that was killed"
    with hold_lock(stages_lock_path(root), message=message):
        pass


def log_path(root: Path, name: str) -> Path:
    """Return the file for everything that a stage prints."""
    return root / STATE_DIR / "logs" / f"{stage_file_name(name)}.log"


def stage_file_name(name: str) -> str:
    """Return a stage's name as a file name: evaluate@gpt-0-sense -> evaluate-gpt-0-sense."""
    return name.replace("@", "-")


def run_stage(name: str, *, context: StageContext, timeout_seconds: float) -> StageResult:
    """Bring one stage up to date. The stages that it depends on must be up to date already.

    Nothing is raised if the stage fails. On return its whole process group has ended.
    """
    from flows.repository import RepositoryError, StoppedError  # imported here, as above

    start_time = time.monotonic()
    log_file = log_path(context.root, name)
    log_file.parent.mkdir(parents=True, exist_ok=True)
    log_file.write_text("")
    ended: CommandEnd
    try:
        known = context.repository.take_known_result(name)
        if known:
            return StageResult(name, known, time.monotonic() - start_time)
        with context.repository.reserve(name):
            ended = _run(
                context.repository.command_of(name),
                name,
                context=context,
                log_name=name,
                timeout_seconds=timeout_seconds,
            )
        if ended == 0:
            context.repository.keep_result(name)
    except StoppedError:
        ended = "stopped"
    except RepositoryError as error:
        with log_file.open("a") as stream:
            stream.write(f"ERROR: {error}\n")
        ended = 1
    seconds = time.monotonic() - start_time
    return _make_result(name, ended, seconds, timeout_seconds=timeout_seconds, log_file=log_file)


def run_without_dvc(
    name: str, command: str, *, context: StageContext, timeout_seconds: float
) -> StageResult:
    """Run the command of a stage whose inputs are in place, and keep nothing: without DVC."""
    start_time = time.monotonic()
    log_file = log_path(context.root, name)
    ended = _run(command, name, context=context, log_name=name, timeout_seconds=timeout_seconds)
    seconds = time.monotonic() - start_time
    return _make_result(name, ended, seconds, timeout_seconds=timeout_seconds, log_file=log_file)


def _make_result(
    name: str, ended: CommandEnd, seconds: float, *, timeout_seconds: float, log_file: Path
) -> StageResult:
    if ended == 0:
        return StageResult(name, "ran", seconds)
    if ended == "stopped":
        return StageResult(name, "stopped", seconds, 1, f"{name}: stopped")
    if ended == "timeout":
        message = (
            f"{name}: ran longer than {timeout_seconds:.0f} s and was ended; "
            "raise timeout_s in dvc.yaml"
        )
        return StageResult(name, "failed", seconds, 1, message)
    message = _failure_message(name, ended, log_file.read_text(errors="replace"), log_file)
    return StageResult(name, "failed", seconds, ended, message)


def run_dvc(*arguments: str, context: StageContext, name: str) -> None:
    """Run a DVC command, such as push, for a stage. Raises DvcError with DVC's own words."""
    run_module("dvc", "--wait-for-lock", *arguments, context=context, name=name)


def run_module(module: str, *arguments: str, context: StageContext, name: str) -> None:
    """Run a module that works with the DVC remote for a stage. Raises DvcError."""
    words = shlex.join(arguments).removeprefix("--wait-for-lock ")
    log_name = f"{name}.{words.split()[0]}"
    ended = _run(
        f"python -m {module} {shlex.join(arguments)}",
        name,
        context=context,
        log_name=log_name,
        timeout_seconds=DVC_TIMEOUT_SECONDS,
    )
    if ended != 0:
        log = log_path(context.root, log_name).read_text(errors="replace")
        raise DvcError(
            f"{name}: `{module} {words}` failed ({ended}): {' '.join(log.split())[-500:]}"
        )


def _run(
    command: str, name: str, *, context: StageContext, log_name: str, timeout_seconds: float
) -> CommandEnd:
    return run_command(
        Command(
            command,
            context.root.absolute(),
            context.child_environment(name),
            log=log_path(context.root, log_name).absolute(),
            lock=stages_lock_path(context.root).absolute(),
        ),
        stop_event=context.stop_event,
        timeout_seconds=timeout_seconds,
    )


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
    """Return the last line of a log, in which an error of DVC is one line."""
    error = lines[-1] if lines else "no output"
    if "is being blocked by:" in error:
        return f"{error}: a run that was killed left it behind; wait for it, or end it"
    return error
