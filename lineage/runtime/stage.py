"""What every stage process shares: its name, its lock, its exit code, its progress, its resume folder and its side file.

A stage is `python -m stages.VERB ARGUMENTS`; DVC calls it `VERB@A-B-C`. Clocks, memory and hosts go into the side file
(`.lineage/sides/`), on which no stage depends, so that results stay a pure function of params and data.
"""

import contextlib
import fcntl
import json
import os
import platform
import resource
import shutil
import signal
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from lineage.artifacts import artifact_digest, file_digest, read_json, text_digest, write_json
from lineage.config.records import read_yaml
from lineage.errors import InputError
from lineage.runtime.provenance import (
    Dataset,
    get_code_commit,
    get_pipeline_id,
    lock_entry_digest,
    read_lock_entry,
)
from lineage.runtime.recorder import Tracker, track_stage
from lineage.runtime.settings import STATE_DIR, check_writable, prepare_environment

SOURCES_DIR, PARAMS_FILE, PROJECT_ROOT = (
    Path("artifacts/sources"),
    Path("params.yaml"),
    Path(__file__).resolve().parent.parent.parent,
)


class Stage:
    """One stage while it runs."""

    def __init__(self, verb: str, arguments: tuple[str, ...]) -> None:
        self.verb, self.arguments = verb, arguments
        self.watched_names = arguments  # the variants and tasks whose files this stage runs
        self.name = f"{verb}@{'-'.join(arguments)}" if arguments else verb
        self.metadata: dict[str, Any] = {}  # what the side file says beyond clock and memory
        self.start_time, self.earlier_seconds = (
            time.monotonic(),
            0.0,
        )  # the latter of processes before this one, as far as their work was kept
        self.parameters: dict[str, Any] | None = None  # as they stood at the start; none before it

    @property
    def file_name(self) -> str:
        """The stage's name as a file stem: evaluate-gpt-0-sense."""
        return self.name.replace("@", "-")

    def prepare_resume_folder(self, inputs: Mapping[str, Any]) -> Path:
        """The folder of this stage's resume state for exactly these inputs and this code; that of other inputs is thrown away."""
        code = sorted(
            path
            for folder in ("lineage", "stages")
            for path in (PROJECT_ROOT / folder).rglob("*.py")
        )
        key = text_digest(
            json.dumps([inputs, [file_digest(p) for p in code]], sort_keys=True, default=str)
        )[:24]
        home = STATE_DIR / "resume" / self.file_name
        for old in home.glob("*"):
            if old.name != key:
                shutil.rmtree(old)
        folder = home / key
        folder.mkdir(parents=True, exist_ok=True)
        return folder

    def check_unchanged(self) -> None:
        """Raise InputError where params.yaml, or the code that the sources stage has looked at, is another one by now.

        DVC notes what stands there when a stage ends, and would keep the result as one of parameters, or of code, that never made it.
        """
        code_record = (
            SOURCES_DIR / "code" / f"{self.verb.partition('_')[0]}.json"
        )  # evaluate_adapted is run by evaluate
        code = (
            read_json(code_record) if code_record.is_file() else {}
        ) | self._model_and_task_files()
        changed = [
            path
            for path, known in code.items()
            if not (PROJECT_ROOT / path).is_file() or file_digest(PROJECT_ROOT / path) != known
        ]
        parameters = read_yaml(PARAMS_FILE) if PARAMS_FILE.is_file() else {}
        if self.parameters is not None and parameters != self.parameters:
            changed.append(str(PARAMS_FILE))
        self.parameters = parameters
        if changed:
            raise InputError(
                f"{', '.join(changed[:3])}: changed while the run was under way; run again (a profile's run has a copy of its own)"
            )

    def _model_and_task_files(self) -> dict[str, str]:
        """The files of the families and of the kind that this stage names, as the sources stage has looked at them."""
        found = {}
        for name in self.watched_names:
            for records, folder, key in (
                ("models", "models", "family"),
                ("tasks", "tasks", "kind"),
            ):
                if (path := SOURCES_DIR / records / f"{name}.json").is_file():
                    record = read_json(path)
                    found[f"lineage/{folder}/{record[key]}.py"] = record[f"{key}_sha256"]
        return found

    def watch_model(self, model: str) -> None:
        """Have a variant's files looked at too, which no argument names, before they are imported. Raises InputError as `expect_unchanged`."""
        self.watched_names = (*self.watched_names, model)
        self.check_unchanged()

    @property
    def elapsed_seconds(self) -> float:
        """What this stage took until now, with the work of processes before this one that is not done again."""
        return time.monotonic() - self.start_time + self.earlier_seconds

    def load_elapsed_seconds(self, folder: Path) -> None:
        """Go on counting from what `keep_count` wrote last into this resume folder."""
        if (path := folder / "clock.json").is_file():
            self.earlier_seconds = read_json(path)["seconds"]

    def save_elapsed_seconds(self, folder: Path) -> None:
        """Write down what was taken until now, where a part of the work has just been kept."""
        write_json(folder / "clock.json", {"seconds": self.elapsed_seconds})

    def clear_resume_folder(self) -> None:
        """Forget the resume state, once the outs are written. Raises InputError where they are of what has changed meanwhile."""
        self.check_unchanged()
        shutil.rmtree(STATE_DIR / "resume" / self.file_name, ignore_errors=True)

    @contextlib.contextmanager
    def track(
        self, *, parameters: Mapping[str, object], inputs: Sequence[Path], **tags: object
    ) -> Iterator[Tracker]:
        """This stage's run in MLflow, with what it reads as data sets by digest. `tags`: family, task, seeds."""
        datasets = [Dataset(folder.as_posix(), artifact_digest(folder)) for folder in inputs]
        known = {
            "dvc_inputs": json.dumps({d.name: d.digest[:12] for d in datasets}, sort_keys=True)
        }
        with track_stage(
            self.name,
            parameters=parameters,
            tags=known | {k: str(v) for k, v in tags.items()},
            datasets=datasets,
        ) as tracker:
            self.metadata |= {
                "mlflow_run_id": tracker.run_id,
                "git_commit": get_code_commit(),
                "pipeline_id": get_pipeline_id(),
            }
            yield tracker

    @contextlib.contextmanager
    def show_progress(self, text: str, total: float) -> Iterator[Callable[[float, str], None]]:
        """A bar on a terminal; elsewhere a line every ten seconds. The yielded function takes (done so far, a note)."""
        console = Console(stderr=True)
        if console.is_terminal:
            with Progress(
                TextColumn("{task.description}"),
                BarColumn(),
                TextColumn("{task.fields[note]}"),
                TimeElapsedColumn(),
                TimeRemainingColumn(),
                console=console,
                transient=True,
            ) as bar:
                job = bar.add_task(f"{self.name} {text}", total=total, note="")
                yield lambda done, note: bar.update(job, completed=done, note=note)
            return
        started = last = time.monotonic()

        def line(done: float, note: str) -> None:
            nonlocal last
            now = time.monotonic()
            if now - last >= 10:
                last = now
                left = (now - started) * (total - done) / done if done else float("inf")
                print(
                    f"{self.name} {text} {100 * done / total:.0f} % {note} {left:.0f} s left",
                    file=sys.stderr,
                    flush=True,
                )

        yield line


def run_stage(verb: str, work: Callable[[Stage], None]) -> NoReturn:
    """Run one stage and exit: 0 done, 2 bad configuration or input (one message, no traceback), 1 anything else."""
    prepare_environment()
    stage = Stage(verb, tuple(sys.argv[1:]))
    wanted = os.environ.get("LINEAGE_STAGE")
    if wanted and wanted != stage.name:
        print(
            f"{stage.name}: only {wanted} was asked for here; its inputs are not up to date",
            file=sys.stderr,
        )
        sys.exit(1)
    signal.signal(
        signal.SIGTERM, lambda *_: sys.exit(1)
    )  # an orderly end: `finally` blocks and file locks are honoured
    code = 1
    try:
        with _lock_stage(stage), _write_metadata(stage):
            stage.check_unchanged()
            work(stage)
            stage.check_unchanged()
        code = 0
    except InputError as error:
        print(f"{stage.name}: {error}", file=sys.stderr)
        code = 2
    finally:
        with contextlib.suppress(OSError):  # then the process's own exit code has to do
            write_json(
                STATE_DIR / "exits" / f"{stage.file_name}.json", {"stage": stage.name, "code": code}
            )
    sys.exit(code)


@contextlib.contextmanager
def _lock_stage(stage: Stage) -> Iterator[None]:
    """One process a stage: killing DVC can leave an orphan that still writes, and the next DVC would start a second one."""
    path = STATE_DIR / "locks" / f"{stage.file_name}.lock"
    check_writable(str(STATE_DIR))
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w") as stream:
        try:
            fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            print(
                f"{stage.name}: waiting for another process that runs this stage",
                file=sys.stderr,
                flush=True,
            )
            fcntl.flock(stream, fcntl.LOCK_EX)
        yield


@contextlib.contextmanager
def _write_metadata(stage: Stage) -> Iterator[None]:
    """Write the side file when the stage has ended well."""
    started, stage.start_time, before = (
        time.time(),
        time.monotonic(),
        lock_entry_digest(read_lock_entry(Path(), stage.name)),
    )
    path = STATE_DIR / "sides" / f"{stage.name}.json"
    yield
    write_json(
        path,
        {
            "stage": stage.name,
            "started": started,
            "lock_before": before,
            "seconds": stage.elapsed_seconds,
            "host": platform.node(),
            "pid": os.getpid(),
            "cwd": str(Path.cwd()),
            "peak_memory_bytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
            * (1 if sys.platform == "darwin" else 1024),
            **stage.metadata,
        },
    )
