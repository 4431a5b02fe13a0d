"""Run one stage as a process: its name, lock, exit code, progress, resume folder and metadata.

A stage is `python -m stages.VERB ARGUMENTS`; DVC calls it `VERB@A-B-C`. Times, memory and hosts are
stage metadata (`.lineage/metadata/`), on which no stage depends, so that results are a pure
function of parameters, data and code.
"""

import contextlib
import json
import os
import platform
import resource
import shutil
import signal
import sys
import time
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from lineage.artifacts import read_json, text_digest, write_json
from lineage.errors import InputError, describe_shortage
from lineage.runtime.code import PROJECT_ROOT, code_digest
from lineage.runtime.datasets import describe_dataset
from lineage.runtime.locks import hold_lock
from lineage.runtime.provenance import (
    SOURCES_DIR,
    get_pipeline_id,
    get_study_version,
    lock_entry_digest,
    read_lock_entry,
    read_package_version,
)
from lineage.runtime.recorder import Tracker, track_stage
from lineage.runtime.rehearsal import rehearsal_limit
from lineage.runtime.settings import METADATA_DIR, STATE_DIR, check_writable, prepare_environment
from lineage.work import Stopwatch, WorkLog

PROGRESS_SECONDS = 10.0  # between two lines of progress, where there is no terminal
EXIT_SHORTAGE = 4
EXIT_TERMINATED = 128 + signal.SIGTERM
BYTES_PER_MAXRSS = 1 if sys.platform == "darwin" else 1024

ProgressCallback = Callable[[float, str], None]  # takes what is done so far, and a note


class Stage:
    """One stage while it runs."""

    def __init__(self, verb: str, arguments: tuple[str, ...]) -> None:
        self.verb = verb
        self.arguments = arguments
        self.name = f"{verb}@{'-'.join(arguments)}" if arguments else verb
        self.metadata: dict[str, Any] = {}  # written with the clock and the memory
        self.work = WorkLog()  # written there too
        self.stopwatch = Stopwatch()
        self.earlier_seconds = 0.0  # of processes before this one whose work was kept
        self.earlier_own_seconds = 0.0
        self._watched_names = arguments  # the models and tasks whose files this stage runs

    @property
    def file_name(self) -> str:
        """The stage's name as a file stem: evaluate-gpt-0-sense."""
        return self.name.replace("@", "-")

    def prepare_resume_folder(self, inputs: Mapping[str, object]) -> Path:
        """Return the folder of this stage's resume state for exactly these inputs and this code.

        Resume state of other inputs or other code is deleted.
        """
        identity = json.dumps([inputs, self._recorded_code()], sort_keys=True, default=str)
        key = text_digest(identity)[:24]
        home = STATE_DIR / "resume" / self.file_name
        for old in home.glob("*"):
            if old.name != key:
                shutil.rmtree(old)
        folder = home / key
        folder.mkdir(parents=True, exist_ok=True)
        return folder

    def clear_resume_folder(self) -> None:
        """Delete the resume state, once the outputs are written.

        Raises InputError if code or parameters have changed meanwhile.
        """
        self.check_unchanged()
        shutil.rmtree(STATE_DIR / "resume" / self.file_name, ignore_errors=True)

    def check_unchanged(self) -> None:
        """Raise InputError if the code has changed since the sources stage recorded it.

        DVC would keep the result under code that did not make it.
        """
        changed = []
        for name, recorded in self._recorded_code().items():
            path = PROJECT_ROOT / name
            if not path.is_file() or code_digest(path) != recorded:
                changed.append(name)
        if changed:
            raise InputError(
                f"{', '.join(changed[:3])}: changed while the run was under way; run again"
            )

    def watch_model(self, model: str) -> None:
        """Check the files of a further model too, before they are imported. Raises InputError."""
        self._watched_names = (*self._watched_names, model)
        self.check_unchanged()

    def _recorded_code(self) -> dict[str, str]:
        """Return the digests of this stage's code as the sources stage has recorded them."""
        digests: dict[str, str] = {}
        # The module evaluate runs evaluate_adapted and others too.
        module = "evaluate" if self.verb.startswith("evaluate") else self.verb
        code_record = SOURCES_DIR / "code" / f"{module}.json"
        if code_record.is_file():
            digests.update(read_json(code_record))
        for name in self._watched_names:
            model_record = SOURCES_DIR / "models" / f"{name}.json"
            if model_record.is_file():
                record = read_json(model_record)
                digests[f"lineage/families/{record['family']}.py"] = record["family_sha256"]
            task_record = SOURCES_DIR / "tasks" / f"{name}.json"
            if task_record.is_file():
                record = read_json(task_record)
                digests[f"lineage/tasks/{record['kind']}.py"] = record["kind_sha256"]
        return digests

    @property
    def elapsed_seconds(self) -> float:
        """Seconds that this stage has taken, with the kept work of earlier processes."""
        return self.stopwatch.elapsed_seconds + self.earlier_seconds

    @property
    def own_seconds(self) -> float:
        """The same without the seconds in which other programs used the cores."""
        return self.stopwatch.seconds + self.earlier_own_seconds

    def load_elapsed_seconds(self, folder: Path) -> None:
        """Go on counting from the last `save_elapsed_seconds` in this resume folder."""
        path = folder / "clock.json"
        if path.is_file():
            saved = read_json(path)
            self.earlier_seconds = saved["seconds"]
            self.earlier_own_seconds = saved["own_seconds"]

    def save_elapsed_seconds(self, folder: Path) -> None:
        """Save the seconds taken until now. Call it when a part of the work has just been kept."""
        seconds = {"seconds": self.elapsed_seconds, "own_seconds": self.own_seconds}
        write_json(folder / "clock.json", seconds)

    @contextlib.contextmanager
    def track(
        self, *, parameters: Mapping[str, object], inputs: Sequence[Path], **tags: object
    ) -> Iterator[Tracker]:
        """Open this stage's run in MLflow, with the artifacts in `inputs` as data sets by digest.

        `tags` are for example family, task and seeds. A rehearsal is not tracked.
        """
        if rehearsal_limit() is not None:
            yield Tracker()
            return
        datasets = [describe_dataset(folder) for folder in inputs]
        short_digests = {dataset.name: dataset.digest[:12] for dataset in datasets}
        all_tags = {"dvc_inputs": json.dumps(short_digests, sort_keys=True)}
        all_tags.update((key, str(value)) for key, value in tags.items())
        with track_stage(
            self.name, parameters=parameters, tags=all_tags, datasets=datasets
        ) as tracker:
            self.metadata["study_commit"] = get_study_version().commit
            self.metadata["code_digest"] = read_package_version().code_digest
            self.metadata["pipeline_id"] = get_pipeline_id()
            yield tracker
        self.metadata["mlflow_run_id"] = tracker.run_id

    @contextlib.contextmanager
    def show_progress(self, text: str, total: float) -> Iterator[ProgressCallback]:
        """Show a bar on a terminal, and a line every ten seconds elsewhere."""
        console = Console(stderr=True)
        title = f"{self.name} {text}"
        if console.is_terminal:
            with _progress_bar(console) as bar:
                job = bar.add_task(title, total=total, note="")
                yield lambda done, note: bar.update(job, completed=done, note=note)
        else:
            printer = _ProgressPrinter(title, total)
            try:
                yield printer.update
            except SystemExit:  # ended by TERM: the last line says how far it is
                printer.print_line()
                raise


def _progress_bar(console: Console) -> Progress:
    return Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        TextColumn("{task.fields[note]}"),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
        console=console,
        transient=True,
    )


class _ProgressPrinter:
    """Prints a line on stderr when the last one is ten seconds old."""

    def __init__(self, title: str, total: float) -> None:
        self._title = title
        self._total = total
        self._start_time = time.monotonic()
        self._last_time = self._start_time
        self._start: float | None = None  # what an earlier process had done
        self._done = 0.0
        self._note = ""

    def update(self, done: float, note: str) -> None:
        """Note what is done. It is printed if it is time to."""
        if self._start is None:
            self._start = done
        self._done = done
        self._note = note
        now = time.monotonic()
        if now - self._last_time >= PROGRESS_SECONDS:
            self._last_time = now
            self.print_line()

    def print_line(self) -> None:
        """Print what is done, and the seconds left at the speed of this process."""
        if self._start is None:
            return
        seconds = time.monotonic() - self._start_time
        done_here = self._done - self._start
        line = f"{self._title} {100 * self._done / self._total:.0f} % {self._note}"
        if done_here:  # else the speed is unknown
            seconds_left = seconds * (self._total - self._done) / done_here
            line += f" {seconds_left:.0f} s left"
        print(line, file=sys.stderr, flush=True)


def run_stage(verb: str, work: Callable[[Stage], None]) -> NoReturn:
    """Run one stage and exit.

    Exit codes: 0 done, 2 bad configuration or input (one message, no traceback), 4 the machine has
    run out of something, 143 ended by TERM (as shells count signals), 1 anything else.
    """
    prepare_environment()
    stage = Stage(verb, tuple(sys.argv[1:]))
    requested = os.environ.get("LINEAGE_STAGE")
    if requested and requested != stage.name:
        print(
            f"{stage.name}: only {requested} was requested here; its inputs are not up to date",
            file=sys.stderr,
        )
        sys.exit(1)
    # An orderly end: `finally` blocks run and file locks are released.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(EXIT_TERMINATED))
    try:
        with _lock_stage(stage), _write_metadata(stage):
            stage.check_unchanged()
            work(stage)
            stage.check_unchanged()
    except InputError as error:
        print(f"{stage.name}: {error}", file=sys.stderr)
        sys.exit(2)
    except Exception as error:
        shortage = describe_shortage(error)
        if shortage is None:
            raise
        traceback.print_exc()
        print(f"{stage.name}: {shortage}", file=sys.stderr)
        sys.exit(EXIT_SHORTAGE)
    sys.exit(0)


@contextlib.contextmanager
def _lock_stage(stage: Stage) -> Iterator[None]:
    """Let only one process run a stage: killing DVC can leave an orphan that still writes."""
    check_writable(str(STATE_DIR))
    path = STATE_DIR / "locks" / f"{stage.file_name}.lock"
    message = f"{stage.name}: waiting for another process that runs this stage"
    with hold_lock(path, message=message):
        yield


@contextlib.contextmanager
def _write_metadata(stage: Stage) -> Iterator[None]:
    """Write the stage's metadata when it has ended well."""
    stage.stopwatch = Stopwatch()
    lock_before = lock_entry_digest(read_lock_entry(Path(), stage.name))
    path = METADATA_DIR / f"{stage.name}.json"
    yield
    metadata = {
        "stage": stage.name,
        "ended": time.time(),
        "lock_before": lock_before,
        "seconds": stage.elapsed_seconds,
        "own_seconds": stage.own_seconds,
        "host": platform.node(),
        "pid": os.getpid(),
        "cwd": str(Path.cwd()),
        "peak_memory_bytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * BYTES_PER_MAXRSS,
        "work": stage.work.as_tree(),
        "work_seconds": stage.stopwatch.seconds,
        **stage.metadata,
    }
    write_json(path, metadata)
