"""One run of the whole graph: prepare the folder, sources first, read the staleness once, walk, and keep the result."""

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

import psutil

from flows.execute import EXIT_BAD_INPUT, StageContext, StageResult, log_path, run_stage
from flows.plan import (
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
    STATE_DIR,
    check_writable,
    find_main_checkout,
    read_runtime_settings,
)

LAST_STAGE = "publish"  # prints the table
CGROUP_ROOT = Path("/sys/fs/cgroup")
STAGE_MEMORY_BYTES = (
    3e9  # of memory: what a process takes at most on small corpora (README: what it needs)
)
MAX_REMOTE_STAGES = (
    64  # stages that may wait for workers; the workers' own limits decide how many run
)


@dataclass(frozen=True)
class RunOptions:
    """What a run is asked for."""

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
                        f"--{name.replace('_', '-')}: works on a profile's own branch; add --profile NAME"
                    )
        if self.jobs is not None and self.jobs < 1:
            raise InputError(
                f"--jobs: {self.jobs} is not a number of stages at a time; give 1 or more"
            )


RemoteRunner = Callable[
    [StageNode, Workspace, StageContext], StageResult
]  # runs a stage on a worker
RunnerWrapper = Callable[
    [StageRunner], StageRunner
]  # how a stage's run is shown to an orchestrator


def run_pipeline(
    options: RunOptions,
    *,
    checkout: Path,
    run_remotely: RemoteRunner | None = None,
    wrap_runner: RunnerWrapper = lambda run: run,
    flow_run_id: str = "",
) -> int:
    """Run everything that is stale; the exit code (0 done, 2 bad configuration or input, 3 cells failed, 1 anything else)."""
    assert options.pools == (run_remotely is not None)
    with hold_run_lock(checkout, options.profile):
        workspace = prepare_workspace(options, checkout=checkout)
        for folder in ("artifacts", "reports"):  # before DVC, whose own message is of no use
            check_writable(folder, workspace.root)
        context = _stage_context(workspace, flow_run_id=flow_run_id)
        nodes = _read_valid_graph(context)
        jobs = options.jobs or read_runtime_settings().jobs or default_jobs(context.threads)
        local_slots = threading.BoundedSemaphore(
            jobs
        )  # of this machine, also where most stages are away

        def run(node: StageNode) -> StageResult:
            if run_remotely is not None and node.pool != "local":
                result = run_remotely(node, workspace, context)
            else:
                with local_slots:
                    result = run_stage(
                        node.name, context=helper_context, timeout_seconds=node.timeout_seconds
                    )
            if result.outcome == "ran":
                _record_stage_metadata(node.name, workspace.root)
            return result

        try:
            with start_helpers(context) as helper_context:
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


def _record_stage_metadata(name: str, root: Path) -> None:
    """Note at once which entry of dvc.lock a stage's side file is of: publish may not come before the next one. Bookkeeping, which ends no run."""
    with contextlib.suppress(InputError, OSError, ValueError):
        archive_stage_metadata(root / STATE_DIR / "sides", name, read_lock_entry(root, name))


def preview_run(options: RunOptions, *, checkout: Path) -> None:
    """Print what a run would do, and do nothing but prepare its folder."""
    with hold_run_lock(checkout, options.profile):
        workspace = prepare_workspace(options, checkout=checkout)
        nodes = _read_valid_graph(_stage_context(workspace, flow_run_id=""))
        print_plan(nodes, find_stale_stages(nodes, read_stale_reasons(workspace.root)))


def prepare_workspace(options: RunOptions, *, checkout: Path) -> Workspace:
    """The folder of the run."""
    if options.profile is None:
        return use_checkout(checkout)
    return use_worktree(
        checkout, options.profile, allow_dirty=options.allow_dirty, final=options.final
    )


def default_jobs(threads: int) -> int:
    """How many stages of so many threads may run at a time: each with cores of this process, in a container of its quota, and with memory enough."""
    cores = float(
        len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    )
    memory = float(psutil.virtual_memory().total)
    with contextlib.suppress(OSError, ValueError):
        quota, period = (CGROUP_ROOT / "cpu.max").read_text().split()
        cores = min(cores, int(quota) / int(period))  # max: there is none
    with contextlib.suppress(OSError, ValueError):
        memory = min(memory, int((CGROUP_ROOT / "memory.max").read_text()))
    return max(1, int(min(cores / threads, memory / STAGE_MEMORY_BYTES)))


def interrupt_on_signals() -> None:
    """Let TERM and HUP end a run as Ctrl-C does: the stages' process groups with it."""

    def interrupt(number: int, frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    signal.signal(signal.SIGTERM, interrupt)
    if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:  # as nohup leaves it
        signal.signal(signal.SIGHUP, interrupt)


@contextlib.contextmanager
def start_helpers(context: StageContext) -> Iterator[StageContext]:
    """For stages of this machine: the setting, with two processes that make their beginnings short while the block lasts.

    One holds MLflow ready for them, the other forks them (`lineage.runtime.recorder`, `lineage.runtime.forkserver`).
    """
    with (
        tempfile.TemporaryDirectory(prefix="lineage-") as folder,
        contextlib.ExitStack() as exit_stack,
    ):  # a socket's path may have 100 letters
        environment = {"LINEAGE_RECORDER": f"{folder}/recorder"}
        _start_helper(
            context, exit_stack, "lineage.runtime.recorder", environment["LINEAGE_RECORDER"]
        )
        if sys.platform == "linux":  # elsewhere a process that has imported much may not be forked
            environment["LINEAGE_FORKSERVER"] = f"{folder}/forkserver"
            _start_helper(
                context,
                exit_stack,
                "lineage.runtime.forkserver",
                "serve",
                environment["LINEAGE_FORKSERVER"],
            )
        yield dataclasses.replace(context, environment={**context.environment, **environment})


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
    # in a profile's worktree git would name the branch's last run, and the files of this one as changes
    environment = {
        "LINEAGE_COMMIT": workspace.code_commit,
        "LINEAGE_DIRTY": ",".join(workspace.dirty_files),
    }
    if workspace.root != workspace.main_checkout:
        environment["LINEAGE_MAIN"] = str(
            find_main_checkout()
        )  # whose runtime.yaml and store all runs share, also those of a linked worktree
    if workspace.profile is not None:
        environment["LINEAGE_PROFILE"] = workspace.profile
    if flow_run_id:
        environment["LINEAGE_FLOW_RUN"] = flow_run_id
    threads = read_yaml(workspace.root / "params.yaml").get("threads")
    return StageContext(
        workspace.root, environment, threads if type(threads) is int and threads > 0 else 1
    )


def _read_valid_graph(context: StageContext) -> list[StageNode]:
    """The graph. Where params.yaml does not make one, the sources stage, which checks it, says what is wrong."""
    try:
        return read_graph(context.root)
    except GraphError:
        command = [sys.executable, "-m", f"stages.{FIRST_STAGE}"]
        answer = subprocess.run(
            command,
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
    first = [node for node in nodes if node.name == FIRST_STAGE]
    with ProgressDisplay(context.root, num_stages=len(nodes)) as view:
        sources_results = run_stages(
            first,
            reasons={FIRST_STAGE: ("always runs",)},
            run=run,
            jobs=1,
            stop_event=context.stop_event,
            callback=view,
        )
        if not all(result.succeeded for result in sources_results.values()):
            return sources_results
        # What sources found is in the status that is read now: by itself, that it ran makes nothing stale.
        finished = {
            name: dataclasses.replace(result, outcome="fresh")
            for name, result in sources_results.items()
        }
        rest = [node for node in nodes if node.name != FIRST_STAGE]
        reasons = read_stale_reasons(context.root)
        return (
            run_stages(
                rest,
                reasons=reasons,
                run=run,
                jobs=jobs,
                exclusive_gpu=exclusive_gpu,
                stop_event=context.stop_event,
                callback=view,
                completed=finished,
            )
            | sources_results
        )


def _end_mlflow_run(context: StageContext, results: dict[str, StageResult] | None) -> None:
    """End the parent of a run that publish does not end, since something failed, or, without results, since it was stopped."""
    began = results is None or any(
        result.outcome in ("ran", "failed")
        for name, result in results.items()
        if name != FIRST_STAGE
    )
    if not began or (results and LAST_STAGE in results and results[LAST_STAGE].succeeded):
        return
    command = [
        sys.executable,
        "-m",
        "lineage.runtime.tracking",
        "KILLED" if results is None else "FAILED",
    ]
    environment = context.child_environment("helper")
    subprocess.run(
        command,
        cwd=context.root,
        env=environment,
        capture_output=True,
        stdin=subprocess.DEVNULL,
        process_group=0,
        check=False,
    )


def _print_summary(
    workspace: Workspace, *, exit_status: int, results: dict[str, StageResult]
) -> None:
    """The table, and what the exit code means."""
    counts = {
        word: sum(result.outcome == word for result in results.values())
        for word in ("ran", "cached", "fresh", "failed", "blocked", "stopped")
    }
    if LAST_STAGE in results and results[LAST_STAGE].succeeded:
        print(read_stage_output(log_path(workspace.root, LAST_STAGE)))
    print(", ".join(f"{count} {word}" for word, count in counts.items() if count))
    if workspace.profile is not None and exit_status in (0, 3):
        print(
            f"params.yaml and dvc.lock are committed to the branch runs/{workspace.profile}; its files are in {workspace.root}"
        )
    if exit_status == 3:
        print(
            f"finished, but {count_failed_results(workspace.root)} rows of reports/results.csv have status failed, each with its reason",
            file=sys.stderr,
        )
