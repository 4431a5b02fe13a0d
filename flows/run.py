"""Run the whole graph of a study once: run `sources`, and then what is stale."""

import contextlib
import dataclasses
import json
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import get_args

from flows.execute import (
    EXIT_RESULTS_FAILED,
    LAST_STAGE,
    Outcome,
    StageContext,
    StageResult,
    log_path,
    wait_for_stages,
)
from flows.integrity import describe_damage, remove_damaged_outputs
from flows.machine import default_jobs, read_threads, start_stage_server
from flows.parameters import check_parameters, params_have_changed, refresh_records
from flows.plan import (
    ALWAYS_RUNS,
    FIRST_STAGE,
    GraphError,
    Reasons,
    StageNode,
    find_stale_stages,
    read_cache_folder,
    read_graph,
    read_stale_reasons,
    uses_cuda,
)
from flows.runner import RemoteRunner, fetch_result, make_runner
from flows.scheduler import StageRunner, count_failed_results, pipeline_exit_status, run_stages
from flows.study import (
    check_can_commit,
    check_places,
    commit_results,
    hold_run_lock,
    is_running,
    open_study,
    prepare_remote,
)
from flows.view import ProgressDisplay
from lineage.errors import InputError
from lineage.runtime.database import check_database
from lineage.runtime.provenance import compute_pipeline_id, find_study_version
from lineage.runtime.settings import read_runtime_settings

MAX_REMOTE_STAGES = 64  # sent to workers at a time; the workers' own limits decide how many run

# Show a stage's run to an orchestrator.
RunnerWrapper = Callable[[StageRunner], StageRunner]


@dataclass(frozen=True)
class RunOptions:
    """The options of a run, as on the command line. Raises InputError for an impossible value."""

    jobs: int | None = None
    workers: bool = False
    commit: bool = False

    def __post_init__(self) -> None:
        if self.jobs is not None and self.jobs < 1:
            raise InputError(
                f"--jobs: {self.jobs} is not a number of stages at a time; give 1 or more"
            )


def run_study(
    options: RunOptions,
    *,
    root: Path,
    run_remotely: RemoteRunner | None = None,
    wrap_runner: RunnerWrapper = lambda run: run,
    flow_run_id: str = "",
) -> int:
    """Run every stale stage of the study in this folder and return the exit code.

    It is 0 if all is done, 3 if all is done but some results failed, 2 if the configuration or the
    input is wrong, and 1 for anything else. Raises InputError if the run cannot begin.
    """
    assert options.workers == (run_remotely is not None)
    open_study(root)
    if options.commit:
        check_can_commit(root)
    with hold_study(root, flow_run_id=flow_run_id) as context:
        warning = check_database()
        if warning:
            print(warning, file=sys.stderr)
        if options.workers:
            prepare_remote(root)
        nodes = read_valid_graph(root)
        cache = read_cache_folder(root)
        jobs = options.jobs or read_runtime_settings().jobs or default_jobs(context.threads)
        try:
            results = _run_graph(
                nodes,
                run=wrap_runner(make_runner(context, jobs, cache, run_remotely)),
                context=context,
                jobs=MAX_REMOTE_STAGES if options.workers else jobs,
                exclusive_gpu=not options.workers and uses_cuda(root),
                cache=cache,
                exports_cache=options.workers,
            )
        except BaseException:
            _end_mlflow_run(context, None)
            raise
        _end_mlflow_run(context, results)
        exit_status = pipeline_exit_status(results, root)
        if options.commit and exit_status in (0, EXIT_RESULTS_FAILED):
            commit_results(root, f"Results of lineage run {compute_pipeline_id(root)}")
    _print_summary(root, exit_status=exit_status, results=results)
    return exit_status


@contextlib.contextmanager
def hold_study(root: Path, *, flow_run_id: str = "") -> Iterator[StageContext]:
    """Keep other runs away from a study, and yield the context of its stages.

    Raises InputError if another run has not ended, or if a stage could not write.
    """
    with hold_run_lock(root):
        start_stage_server(root)
        wait_for_stages(root)
        _remove_broken_locks(root)
        check_places(root)
        yield _stage_context(root, flow_run_id=flow_run_id)


def _remove_broken_locks(root: Path) -> None:
    """Remove DVC's rwlock file if a kill has cut it short: DVC would refuse every later command."""
    path = root / ".dvc" / "tmp" / "rwlock"
    try:
        json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return
    except ValueError:
        path.unlink()


def _stage_context(root: Path, *, flow_run_id: str) -> StageContext:
    """Return the context of the study's stages, which record the version of the study."""
    version = find_study_version(root)
    environment = {
        "LINEAGE_STUDY_COMMIT": version.commit,
        "LINEAGE_STUDY_CHANGES": ",".join(version.changed_files),
    }
    if flow_run_id:
        environment["LINEAGE_FLOW_RUN"] = flow_run_id
    return StageContext(root, environment, read_threads(root))


def read_valid_graph(root: Path) -> list[StageNode]:
    """Read the graph of stages. Raises InputError, with what is wrong in params.yaml if it is."""
    try:
        return read_graph(root)
    except GraphError:
        check_parameters(root)
        raise


def _run_graph(
    nodes: list[StageNode],
    *,
    run: StageRunner,
    context: StageContext,
    jobs: int,
    exclusive_gpu: bool,
    cache: Path,
    exports_cache: bool,
) -> dict[str, StageResult]:
    """Run `sources`, and then whatever is stale according to what it found, or damaged.

    With `exports_cache`, files of DVC's cache will go to other machines.
    """
    first = [node for node in nodes if node.name == FIRST_STAGE]
    rest = [node for node in nodes if node.name != FIRST_STAGE]
    display = ProgressDisplay(context.root, num_stages=len(nodes))
    with display.show():
        sources_results = run_stages(
            first,
            reasons={FIRST_STAGE: (ALWAYS_RUNS,)},
            run=run,
            jobs=1,
            stop_event=context.stop_event,
            callback=display,
        )
        if not all(result.succeeded for result in sources_results.values()):
            return sources_results
        # The status that is read now contains what sources found. That it ran makes nothing stale.
        completed = {
            name: dataclasses.replace(result, outcome="fresh")
            for name, result in sources_results.items()
        }
        results = run_stages(
            rest,
            reasons=_check_outputs(context, cache, display, check_cache=exports_cache),
            run=run,
            jobs=jobs,
            exclusive_gpu=exclusive_gpu,
            stop_event=context.stop_event,
            callback=display,
            completed=completed,
        )
    return {**results, **sources_results}


def _check_outputs(
    context: StageContext, cache: Path, display: ProgressDisplay, *, check_cache: bool
) -> dict[str, Reasons]:
    """Remove damaged outputs, and return why each stage would run by itself."""
    reasons = context.repository.read_stale_reasons()
    damaged = remove_damaged_outputs(context.root, cache, reasons, check_cache=check_cache)
    for name, outputs in damaged.items():
        display.on_damage(describe_damage(name, outputs))
        fetch_result(name, context)
    return context.repository.read_stale_reasons() if damaged else reasons


def _end_mlflow_run(context: StageContext, results: dict[str, StageResult] | None) -> None:
    """End the parent run in MLflow if publish does not: a stage failed, or the run was stopped."""
    if results is not None:
        publish = results.get(LAST_STAGE)
        if publish is not None and publish.succeeded:
            return
        began = [name for name, result in results.items() if result.outcome in ("ran", "failed")]
        if not set(began) - {FIRST_STAGE}:
            return
    status = "KILLED" if results is None else "FAILED"
    subprocess.run(
        [sys.executable, "-m", "lineage.runtime.sender", status],
        cwd=context.root,
        env=context.child_environment("helper"),
        capture_output=True,
        stdin=subprocess.DEVNULL,
        process_group=0,
        check=False,
    )


def _print_summary(root: Path, *, exit_status: int, results: dict[str, StageResult]) -> None:
    """Print the table of results, how many stages ended how, and how many results failed."""
    publish = results.get(LAST_STAGE)
    if publish is not None and publish.succeeded:
        print(log_path(root, LAST_STAGE).read_text(errors="replace").strip())
    counts = []
    for outcome in get_args(Outcome):
        count = sum(result.outcome == outcome for result in results.values())
        if count:
            counts.append(f"{count} {outcome}")
    print(f"stages: {', '.join(counts)}")
    if exit_status == EXIT_RESULTS_FAILED:
        print(
            f"finished, but {count_failed_results(root)} rows of reports/results.csv have status "
            "failed, each with its reason",
            file=sys.stderr,
        )


def plan_study(root: Path) -> tuple[list[StageNode], dict[str, Reasons]]:
    """Return the stages of a study, and why each would run. Raises InputError."""
    open_study(root)
    nodes = read_valid_graph(root)
    if not is_running(root) and params_have_changed(root):
        refresh_records()
    return nodes, find_stale_stages(nodes, read_stale_reasons(root))


def interrupt_on_signals() -> None:
    """Let TERM and HUP end a run as Ctrl-C does, together with the process groups of its stages."""

    def interrupt(number: int, frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    signal.signal(signal.SIGTERM, interrupt)
    if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:  # nohup ignores it
        signal.signal(signal.SIGHUP, interrupt)
