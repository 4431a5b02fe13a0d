"""Run the stages of a bundle on a machine that no server reaches: `lineage run-bundle`.

The machine needs of the package's requirements only what the stages import: no DVC, Prefect, MLflow
or git. When the time is up, a stage saves a resume point, which the next bundle holds.
"""

import contextlib
import hashlib
import json
import signal
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import TypedDict

from flows.bundle import (
    INPUTS_DIR,
    RESUME_DIR,
    Bundle,
    BundledStage,
    Digests,
    check_out,
    check_stage,
    digest_files,
    lies_in,
    metadata_path,
    read_bundle,
    unpack,
    write_bundle,
)
from flows.execute import (
    EXIT_BAD_INPUT,
    StageContext,
    StageResult,
    log_path,
    run_without_dvc,
    stage_file_name,
)
from flows.handover import check_package, prepare_scratch_study, remove, worker_home
from flows.processes import repeat_in_background
from flows.stage_process import start_server
from lineage.errors import InputError
from lineage.runtime.journal import JOURNAL_DIR, KEEP_VARIABLE, SUFFIX, JournalError, read_stage_run
from lineage.runtime.locks import try_lock
from lineage.runtime.settings import STATE_DIR

SCRATCH_DIR = "bundles"  # near the scratch studies of workers, which keep DVC's cache
KEPT_FILE = STATE_DIR / "finished.json"
KEPT_HERE = (str(STATE_DIR), str(INPUTS_DIR))  # after a process that was killed
SIGNAL_SECONDS = 1.0  # between the signals to two processes of a job
EXIT_UNFINISHED = 3  # the time is up
LOG_SECONDS = 0.5  # between two looks for lines that a stage has printed


class Kept(TypedDict):
    """The content of KEPT_FILE: the finished stages, and the digests of their results."""

    finished: list[str]
    results: Digests


def run_bundle(path: Path, out: Path, *, minutes: float | None) -> int:
    """Run the stages that are left, for so many minutes, write a new bundle, and say how far it is.

    Return the exit code: 0 all have finished, 3 the time is up, else that of the stage that failed.
    Raises InputError before anything runs.
    """
    stop_event = threading.Event()
    with _stop_when(stop_event, minutes):
        bundle = read_bundle(path)
        _check_can_run(path, bundle)
        check_out(out, num_bytes=path.stat().st_size)
        with _open_scratch_study(bundle) as root:
            bundle = _take_finished(bundle, root)
            _unpack_study(path, bundle, root)
            bundle, result = _run_stages(bundle, root, out, stop_event)
            if result.outcome != "failed":  # after a failure its log is of use
                remove(root)
    return _print_outcome(out, bundle, result)


def _check_can_run(path: Path, bundle: Bundle) -> None:
    """Raise InputError unless stages are left, and this package is the one that is to run them."""
    if not bundle.unfinished():
        raise InputError(
            f"{path}: all its stages have run; at home, take their results with "
            f"`lineage accept {path.name}`"
        )
    for stage in bundle.stages:  # the scratch study has the files of a finished one
        check_stage(path, stage)
        check_package(
            stage,
            whose="this machine's",
            remedy=f"install here the lineage of the study, {bundle.version}",
        )


@contextlib.contextmanager
def _stop_when(stop_event: threading.Event, minutes: float | None) -> Iterator[None]:
    """Set the event when the time is up, and on the signals of a user or a scheduler of jobs."""
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: stop_event.set())
    if minutes is None:
        yield
        return
    timer = threading.Timer(60 * minutes, stop_event.set)
    timer.daemon = True
    timer.start()
    yield
    timer.cancel()


@contextlib.contextmanager
def _open_scratch_study(bundle: Bundle) -> Iterator[Path]:
    """Yield this bundle's own folder for a study: no other bundle takes its state for its own.

    The state of a killed process there is used. Raises InputError if another one uses the folder.
    """
    stages = json.dumps([asdict(stage) for stage in bundle.stages], sort_keys=True)
    digest = hashlib.sha256(stages.encode()).hexdigest()[:24]
    folder = worker_home() / SCRATCH_DIR / digest
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "lock").open("w") as stream:
        if not try_lock(stream):
            raise InputError(
                f"{folder}: another `lineage run-bundle` runs these stages; wait for it, or stop it"
            )
        root = folder / "study"
        prepare_scratch_study(root, bundle.stages[0].files, kept=KEPT_HERE)
        yield root


def _take_finished(bundle: Bundle, root: Path) -> Bundle:
    """Count stages as finished whose results are here, though no file could be written of them.

    All other outputs are removed.
    """
    kept: Kept = {"finished": [], "results": {}}
    with contextlib.suppress(FileNotFoundError, ValueError):
        kept = json.loads((root / KEPT_FILE).read_text(encoding="utf-8"))
    done = [stage for stage in bundle.stages if stage.stage in kept["finished"]]
    there = {name for name in bundle.results if not lies_in(name, [JOURNAL_DIR.as_posix()])}
    if _digest_results(done, root) != kept["results"] or any(
        bundle.results[name] != kept["results"].get(name) for name in there
    ):
        done = []
    for stage in bundle.stages:
        if stage not in done:
            for output in stage.outputs:
                remove(root / output)
        elif stage.stage not in bundle.finished:
            print(f"{stage.stage}: has finished here before", flush=True)
            bundle = replace(bundle, finished=(*bundle.finished, stage.stage))
    return bundle


def _keep_finished(bundle: Bundle, root: Path) -> None:
    """Note what has finished, so that the same command finds it if no file can be written."""
    done = [stage for stage in bundle.stages if stage.stage in bundle.finished]
    kept: Kept = {"finished": list(bundle.finished), "results": _digest_results(done, root)}
    (root / KEPT_FILE).write_text(json.dumps(kept), encoding="utf-8")


def _digest_results(stages: Sequence[BundledStage], root: Path) -> Digests:
    names = [name for stage in stages for name in (*stage.outputs, metadata_path(stage.stage))]
    return digest_files(root, names)


def _unpack_study(path: Path, bundle: Bundle, root: Path) -> None:
    """Make a scratch study of the bundle's files. Newer resume state that is here stays."""
    wanted = {**bundle.inputs, **bundle.results}
    for stage in bundle.unfinished():
        name = _resume_folder(stage)
        here = [file.stat().st_mtime for file in (root / name).rglob("*") if file.is_file()]
        if max(here, default=0.0) < bundle.written:
            remove(root / name)
            wanted |= {
                file: digest for file, digest in bundle.resume.items() if lies_in(file, [name])
            }
    unpack(path, bundle, root, wanted)


def _resume_folder(stage: BundledStage) -> str:
    return (RESUME_DIR / stage_file_name(stage.stage)).as_posix()


def _run_stages(
    bundle: Bundle, root: Path, out: Path, stop_event: threading.Event
) -> tuple[Bundle, StageResult]:
    """Run what is left until a stage does not finish, and write the new bundle after each stage.

    Return it with the result of the last stage.
    """
    variables = {KEEP_VARIABLE: "1"}
    start_server(StageContext(root, variables).child_environment("server"))
    left = bundle.unfinished()
    if not left:  # a killed process had finished them
        bundle = _collect_files(bundle, root)
        write_bundle(out, bundle, root)
        return bundle, StageResult(bundle.stages[-1].stage, "ran")
    for stage in left:
        print(f"running {stage.stage}", flush=True)
        with _show_log(log_path(root, stage.stage)):
            result = run_without_dvc(
                stage.stage,
                stage.command,
                context=StageContext(
                    root, {**stage.environment, **variables}, stage.threads, stop_event
                ),
                timeout_seconds=stage.timeout_seconds,
            )
        if result.was_killed and _is_stop_requested(stop_event):
            result = replace(result, outcome="stopped")
        if result.succeeded:
            bundle = replace(bundle, finished=(*bundle.finished, stage.stage))
            _keep_finished(bundle, root)
            print(f"{stage.stage}: finished in {result.seconds:.0f} s", flush=True)
        bundle = _collect_files(bundle, root)
        write_bundle(out, bundle, root)
        if not result.succeeded:
            break
    return bundle, result


def _is_stop_requested(stop_event: threading.Event) -> bool:
    """Return whether the stop is requested, or is so in a moment."""
    deadline = time.monotonic() + SIGNAL_SECONDS
    # Not stop_event.wait: the signal would set the event while this thread holds its lock.
    while not stop_event.is_set() and time.monotonic() < deadline:
        time.sleep(0.05)
    return stop_event.is_set()


def _collect_files(bundle: Bundle, root: Path) -> Bundle:
    """Return the bundle with the files that are in the scratch study now."""
    left = bundle.unfinished()
    done = [stage for stage in bundle.stages if stage not in left]
    states = digest_files(root, [_resume_folder(stage) for stage in left])
    return replace(
        bundle,
        written=time.time(),
        inputs=bundle.inputs if left else {},
        results={**digest_files(root, _find_journals(bundle, root)), **_digest_results(done, root)},
        # Without drafts of a stage that was killed.
        resume={name: digest for name, digest in states.items() if "/." not in name},
    )


def _find_journals(bundle: Bundle, root: Path) -> list[str]:
    """Return the paths of what these stages have logged for MLflow, also in earlier runs."""
    pipelines = {stage.stage: stage.environment["LINEAGE_PIPELINE_ID"] for stage in bundle.stages}
    found = []
    for path in sorted((root / JOURNAL_DIR).glob(f"*{SUFFIX}")):
        with contextlib.suppress(JournalError):
            run = read_stage_run(path)
            if pipelines.get(run.stage) == run.pipeline:
                found.append(path.relative_to(root).as_posix())
    return found


@contextlib.contextmanager
def _show_log(path: Path) -> Iterator[None]:
    """Print what a stage writes to its log, as it comes."""

    position = 0

    def show_new_lines() -> None:
        nonlocal position
        with contextlib.suppress(FileNotFoundError), path.open(errors="replace") as stream:
            stream.seek(position)
            sys.stderr.write(stream.read())
            sys.stderr.flush()
            position = stream.tell()

    path.unlink(missing_ok=True)
    with repeat_in_background(show_new_lines, LOG_SECONDS):
        yield


def _print_outcome(out: Path, bundle: Bundle, result: StageResult) -> int:
    """Say how far the stages are, and what comes next. Return the exit code."""
    counts = f"{len(bundle.finished)} of {len(bundle.stages)} stages finished"
    go_on = f"go on with `lineage run-bundle {out} -o NEXT`"
    if result.succeeded:
        print(f"{counts}; at home, take the results with `lineage accept {out.name}`")
        return 0
    if result.outcome == "failed":
        print(result.message, file=sys.stderr)
        print(f"{counts}; what they have done is in {out}")
        return EXIT_BAD_INPUT if result.exit_status == EXIT_BAD_INPUT else 1
    if bundle.resume:
        print(f"{counts}; {result.name} was stopped at a resume point; {go_on}")
    else:
        print(
            f"{counts}; {result.name} was stopped before its first resume point, so it begins "
            f"again; give it more minutes, and {go_on}"
        )
    return EXIT_UNFINISHED
