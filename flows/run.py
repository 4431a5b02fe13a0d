"""Run the whole graph once: prepare the folder, run `sources`, and run what is stale then."""

import contextlib
import dataclasses
import os
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import get_args

import psutil

from flows.execute import (
    EXIT_BAD_INPUT,
    Outcome,
    StageContext,
    StageResult,
    log_path,
    run_stage,
)
from flows.plan import (
    ALWAYS_RUNS,
    FIRST_STAGE,
    GraphError,
    StageNode,
    find_stale_stages,
    print_plan,
    read_graph,
    read_stale_reasons,
    uses_cuda,
)
from flows.scheduler import StageRunner, count_failed_results, pipeline_exit_status, run_stages
from flows.view import ProgressDisplay, read_stage_output
from flows.workspace import Workspace, commit_run, hold_run_lock, use_checkout, use_worktree
from lineage.config.records import read_yaml
from lineage.errors import InputError
from lineage.runtime.provenance import archive_stage_metadata, read_lock_entry
from lineage.runtime.settings import (
    METADATA_DIR,
    check_writable,
    find_main_checkout,
    read_runtime_settings,
)

LAST_STAGE = "publish"  # prints the table
CGROUP_ROOT = Path("/sys/fs/cgroup")
STAGE_MEMORY_BYTES = 3e9  # the most that a stage's process takes on small corpora (see README)
MAX_REMOTE_STAGES = 64  # that may wait for workers, whose own limits decide how many run

# Run a stage on a worker.
RemoteRunner = Callable[[StageNode, Workspace, StageContext], StageResult]
# Show a stage's run to an orchestrator.
RunnerWrapper = Callable[[StageRunner], StageRunner]


@dataclass(frozen=True)
class RunOptions:
    """The options of a run, as on the command line.

    Raises InputError for options that do not go together.
    """

    profile: str | None = None
    pools: bool = False
    jobs: int | None = None
    allow_dirty: bool = False
    final: bool = False

    def __post_init__(self) -> None:
        if self.profile is None:
            for name in ("pools", "allow_dirty", "final"):
                if getattr(self, name):
                    raise InputError(
                        f"--{name.replace('_', '-')}: works on a profile's own branch; "
                        "add --profile NAME"
                    )
        if self.jobs is not None and self.jobs < 1:
            raise InputError(
                f"--jobs: {self.jobs} is not a number of stages at a time; give 1 or more"
            )


def run_pipeline(
    options: RunOptions,
    *,
    checkout: Path,
    run_remotely: RemoteRunner | None = None,
    wrap_runner: RunnerWrapper = lambda run: run,
    flow_run_id: str = "",
) -> int:
    """Run every stale stage and return the exit code.

    It is 0 done, 2 bad configuration or input, 3 finished but results failed, 1 anything else.
    """
    assert options.pools == (run_remotely is not None)
    with hold_run_lock(checkout, options.profile):
        workspace = prepare_workspace(options, checkout=checkout)
        for folder in ("artifacts", "reports"):  # before DVC, whose own message does not help
            check_writable(folder, workspace.root)
        context = _stage_context(workspace, flow_run_id=flow_run_id)
        nodes = _read_valid_graph(context)
        jobs = options.jobs or read_runtime_settings().jobs or default_jobs(context.threads)
        try:
            with start_helpers(context) as local_context:
                run = _make_runner(workspace, context, local_context, jobs, run_remotely)
                results = _run_graph(
                    nodes,
                    run=wrap_runner(run),
                    context=context,
                    jobs=jobs if run_remotely is None else MAX_REMOTE_STAGES,
                    exclusive_gpu=run_remotely is None and uses_cuda(workspace.root),
                )
        except BaseException:
            _end_mlflow_run(context, None)
            raise
        _end_mlflow_run(context, results)
        exit_status = pipeline_exit_status(results, workspace.root)
        if workspace.profile is not None and exit_status in (0, 3):
            commit_run(workspace, f"{workspace.profile}: results of {workspace.pipeline_id}")
    _print_summary(workspace, exit_status=exit_status, results=results)
    return exit_status


def preview_run(options: RunOptions, *, checkout: Path) -> None:
    """Print what a run would do. Only its folder is prepared."""
    with hold_run_lock(checkout, options.profile):
        workspace = prepare_workspace(options, checkout=checkout)
        nodes = _read_valid_graph(_stage_context(workspace, flow_run_id=""))
        print_plan(nodes, find_stale_stages(nodes, read_stale_reasons(workspace.root)))


def prepare_workspace(options: RunOptions, *, checkout: Path) -> Workspace:
    """Prepare the folder of the run."""
    if options.profile is None:
        return use_checkout(checkout)
    return use_worktree(
        checkout, options.profile, allow_dirty=options.allow_dirty, final=options.final
    )


def default_jobs(threads: int) -> int:
    """Return how many stages of `threads` threads may run at a time.

    Each needs cores of this process, within a container's quota, and memory.
    """
    cores: float = os.cpu_count() or 1
    if hasattr(os, "sched_getaffinity"):
        cores = len(os.sched_getaffinity(0))
    with contextlib.suppress(OSError, ValueError):  # "max": there is no quota
        quota, period = (CGROUP_ROOT / "cpu.max").read_text().split()
        cores = min(cores, int(quota) / int(period))
    memory_bytes = psutil.virtual_memory().total
    with contextlib.suppress(OSError, ValueError):
        memory_bytes = min(memory_bytes, int((CGROUP_ROOT / "memory.max").read_text()))
    return max(1, int(min(cores / threads, memory_bytes / STAGE_MEMORY_BYTES)))


def interrupt_on_signals() -> None:
    """Let TERM and HUP end a run as Ctrl-C does, together with the process groups of its stages."""

    def interrupt(number: int, frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    signal.signal(signal.SIGTERM, interrupt)
    if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:  # nohup ignores it
        signal.signal(signal.SIGHUP, interrupt)


def _make_runner(
    workspace: Workspace,
    context: StageContext,
    local_context: StageContext,
    jobs: int,
    run_remotely: RemoteRunner | None,
) -> StageRunner:
    """Return the function that runs a stage, on a worker or on this machine."""
    # Limits this machine, also if most stages run elsewhere.
    local_slots = threading.BoundedSemaphore(jobs)

    def run(node: StageNode) -> StageResult:
        if run_remotely is not None and node.pool != "local":
            result = run_remotely(node, workspace, context)
        else:
            with local_slots:
                result = run_stage(
                    node.name, context=local_context, timeout_seconds=node.timeout_seconds
                )
        if result.outcome == "ran":
            _archive_metadata(node.name, workspace.root)
        return result

    return run


def _archive_metadata(name: str, root: Path) -> None:
    """Note which entry of dvc.lock a stage's metadata belongs to.

    Done at once, since the stage may run again before publish does.
    """
    # A failure here must not end the run.
    with contextlib.suppress(InputError, OSError, ValueError):
        archive_stage_metadata(root / METADATA_DIR, name, read_lock_entry(root, name))


@contextlib.contextmanager
def start_helpers(context: StageContext) -> Iterator[StageContext]:
    """Start the two processes that let stages of this machine begin faster, while the block lasts.

    One has MLflow imported (`lineage.runtime.recorder`), the other forks stages
    (`lineage.runtime.forkserver`). The yielded context tells stages where they are.
    """
    with contextlib.ExitStack() as exit_stack:
        # A folder with a short path: a socket's path may have 100 characters.
        folder = exit_stack.enter_context(tempfile.TemporaryDirectory(prefix="lineage-"))
        recorder = f"{folder}/recorder"
        _start_helper(context, exit_stack, "lineage.runtime.recorder", recorder)
        environment = {**context.environment, "LINEAGE_RECORDER": recorder}
        if sys.platform == "linux":  # elsewhere a process with many imports cannot fork safely
            forkserver = f"{folder}/forkserver"
            _start_helper(context, exit_stack, "lineage.runtime.forkserver", "serve", forkserver)
            environment["LINEAGE_FORKSERVER"] = forkserver
        yield dataclasses.replace(context, environment=environment)


def _start_helper(context: StageContext, exit_stack: contextlib.ExitStack, *module: str) -> None:
    """Start a process that ends with the block, or with this process."""
    child = subprocess.Popen(
        [sys.executable, "-m", *module, str(os.getpid())],
        cwd=context.root,
        env=context.child_environment("helper"),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        process_group=0,
    )
    exit_stack.callback(child.wait)
    exit_stack.callback(child.terminate)


def _stage_context(workspace: Workspace, *, flow_run_id: str) -> StageContext:
    # In a profile's worktree, git would name the last run's commit, and list this run's files as
    # changes.
    environment = {
        "LINEAGE_COMMIT": workspace.code_commit,
        "LINEAGE_DIRTY": ",".join(workspace.dirty_files),
    }
    if workspace.root != workspace.main_checkout:
        # All runs share its runtime.yaml and store, also those that start in a linked worktree.
        environment["LINEAGE_MAIN"] = str(find_main_checkout())
    if workspace.profile is not None:
        environment["LINEAGE_PROFILE"] = workspace.profile
    if flow_run_id:
        environment["LINEAGE_FLOW_RUN"] = flow_run_id
    threads = read_yaml(workspace.root / "params.yaml").get("threads")
    if type(threads) is not int or threads < 1:  # sources reports it
        threads = 1
    return StageContext(workspace.root, environment, threads)


def _read_valid_graph(context: StageContext) -> list[StageNode]:
    """Read the graph.

    If params.yaml does not make one, `sources`, which checks it, says what is wrong.
    """
    try:
        return read_graph(context.root)
    except GraphError:
        answer = subprocess.run(
            [sys.executable, "-m", f"stages.{FIRST_STAGE}"],
            cwd=context.root,
            env=context.child_environment(FIRST_STAGE),
            capture_output=True,
            text=True,
            check=False,
            stdin=subprocess.DEVNULL,
        )
        if answer.returncode == EXIT_BAD_INPUT:
            raise InputError(answer.stderr.strip().splitlines()[-1]) from None
        raise


def _run_graph(
    nodes: list[StageNode],
    *,
    run: StageRunner,
    context: StageContext,
    jobs: int,
    exclusive_gpu: bool,
) -> dict[str, StageResult]:
    """Run `sources`, and then whatever is stale according to what it found."""
    first = [node for node in nodes if node.name == FIRST_STAGE]
    rest = [node for node in nodes if node.name != FIRST_STAGE]
    with ProgressDisplay(context.root, num_stages=len(nodes)) as display:
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
            reasons=read_stale_reasons(context.root),
            run=run,
            jobs=jobs,
            exclusive_gpu=exclusive_gpu,
            stop_event=context.stop_event,
            callback=display,
            completed=completed,
        )
    return {**results, **sources_results}


def _end_mlflow_run(context: StageContext, results: dict[str, StageResult] | None) -> None:
    """End the parent run in MLflow if publish does not.

    That is if a stage has failed or, without results, if the run was stopped.
    """
    if results is not None:
        publish = results.get(LAST_STAGE)
        if publish is not None and publish.succeeded:
            return
        began = [name for name, result in results.items() if result.outcome in ("ran", "failed")]
        if not set(began) - {FIRST_STAGE}:
            return
    status = "KILLED" if results is None else "FAILED"
    subprocess.run(
        [sys.executable, "-m", "lineage.runtime.tracking", status],
        cwd=context.root,
        env=context.child_environment("helper"),
        capture_output=True,
        stdin=subprocess.DEVNULL,
        process_group=0,
        check=False,
    )


def _print_summary(
    workspace: Workspace, *, exit_status: int, results: dict[str, StageResult]
) -> None:
    """Print the table of results, how many stages ended how, and where the results are."""
    publish = results.get(LAST_STAGE)
    if publish is not None and publish.succeeded:
        print(read_stage_output(log_path(workspace.root, LAST_STAGE)))
    counts = []
    for outcome in get_args(Outcome):
        count = sum(result.outcome == outcome for result in results.values())
        if count:
            counts.append(f"{count} {outcome}")
    print(", ".join(counts))
    if workspace.profile is not None and exit_status in (0, 3):
        print(
            f"params.yaml and dvc.lock are committed to the branch runs/{workspace.profile}; "
            f"its files are in {workspace.root}"
        )
    if exit_status == 3:
        print(
            f"finished, but {count_failed_results(workspace.root)} rows of reports/results.csv "
            "have status failed, each with its reason",
            file=sys.stderr,
        )
