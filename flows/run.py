"""Run the whole graph of a study once: run `sources`, and then what is stale."""

import contextlib
import dataclasses
import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from multiprocessing import get_context
from multiprocessing.connection import Connection
from pathlib import Path
from types import FrameType
from typing import get_args

import psutil

from flows.execute import (
    EXIT_BAD_INPUT,
    EXIT_RESULTS_FAILED,
    LAST_STAGE,
    DvcError,
    Outcome,
    StageContext,
    StageResult,
    WorkersUnreachableError,
    log_path,
    run_dvc,
    run_stage,
)
from flows.guard import Guard, guard_stages
from flows.integrity import describe_damage, remove_damaged_outputs, remove_damaged_result
from flows.plan import (
    ALWAYS_RUNS,
    FIRST_STAGE,
    GraphError,
    Reasons,
    StageNode,
    find_stale_stages,
    read_cache_folder,
    read_default_remote,
    read_graph,
    read_stale_reasons,
    uses_cuda,
)
from flows.scheduler import StageRunner, count_failed_results, pipeline_exit_status, run_stages
from flows.study import (
    Study,
    check_can_commit,
    check_places,
    commit_results,
    guard_lock_path,
    hold_run_lock,
    is_running,
    open_study,
    prepare_remote,
)
from flows.view import ProgressDisplay, read_stage_output
from lineage.config.records import read_yaml
from lineage.errors import InputError
from lineage.runtime.database import check_database
from lineage.runtime.provenance import (
    SOURCES_DIR,
    archive_stage_metadata,
    compute_pipeline_id,
    read_lock_entry,
)
from lineage.runtime.scratch import remove_abandoned_folders, scratch_folder
from lineage.runtime.settings import METADATA_DIR, read_runtime_settings

RECORDER_VARIABLE = "LINEAGE_RECORDER"
FORKSERVER_VARIABLE = "LINEAGE_FORKSERVER"
CGROUP_ROOT = Path("/sys/fs/cgroup")
STAGE_MEMORY_BYTES = 3e9  # the most that a stage's process takes on small corpora (see README)
MAX_REMOTE_STAGES = 64  # sent to workers at a time; the workers' own limits decide how many run

# Run a stage on a worker.
RemoteRunner = Callable[[StageNode, StageContext], StageResult]
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
    study = open_study(root)
    if options.commit:
        check_can_commit(root)
    with hold_run_lock(root), guard_stages(root, guard_lock_path(root)) as guard:
        _remove_broken_locks(root)
        check_places(root)
        warning = check_database()
        if warning:
            print(warning, file=sys.stderr)
        if options.workers:
            prepare_remote(root)
        context = _stage_context(study, flow_run_id=flow_run_id, guard=guard)
        nodes = _read_valid_graph(context)
        cache = read_cache_folder(root)
        jobs = options.jobs or read_runtime_settings().jobs or default_jobs(context.threads)
        try:
            with start_helpers(root):
                run = _make_runner(context, jobs, cache, run_remotely)
                results = _run_graph(
                    nodes,
                    run=wrap_runner(run),
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


def _remove_broken_locks(root: Path) -> None:
    """Remove DVC's rwlock file if a kill has cut it short: DVC would refuse every later command."""
    path = root / ".dvc" / "tmp" / "rwlock"
    try:
        json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return
    except ValueError:
        path.unlink()


def _stage_context(
    study: Study, *, flow_run_id: str = "", guard: Guard | None = None
) -> StageContext:
    """Return the context of the study's stages, which record the version of the study."""
    environment = {
        "LINEAGE_STUDY_COMMIT": study.version.commit,
        "LINEAGE_STUDY_CHANGES": ",".join(study.version.changed_files),
    }
    if flow_run_id:
        environment["LINEAGE_FLOW_RUN"] = flow_run_id
    return StageContext(study.root, environment, _read_threads(study.root), guard=guard or Guard())


def _read_threads(root: Path) -> int:
    """Return `threads` of params.yaml, or 1 if it is not a valid number; `sources` reports that."""
    threads = read_yaml(root / "params.yaml").get("threads")
    if type(threads) is not int or threads < 1:
        return 1
    return threads


def _read_valid_graph(context: StageContext) -> list[StageNode]:
    """Read the graph of stages.

    If params.yaml gives no valid one, run `sources`, which checks it, and raise its message as
    InputError.
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


def default_jobs(threads: int) -> int:
    """Return how many stages of `threads` threads may run at a time.

    The cores and the memory that this process may use, also in a container, must be enough.
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


@contextlib.contextmanager
def start_helpers(root: Path) -> Iterator[None]:
    """Start the two processes that let stages of this machine begin faster, while the block lasts.

    One has MLflow imported (`lineage.runtime.recorder`), the other forks stages
    (`lineage.runtime.forkserver`). Variables of the environment tell stages where they are. A
    block within such a block uses the same processes.
    """
    if RECORDER_VARIABLE in os.environ:
        yield
        return
    context = StageContext(root, threads=_read_threads(root))
    with contextlib.ExitStack() as exit_stack:
        remove_abandoned_folders()
        # A folder with a short path: a socket's path may have 100 characters.
        folder = exit_stack.enter_context(scratch_folder())
        # By the variable that tells stages where a helper's socket is: its module and arguments,
        # the last of which is the socket.
        helpers = {RECORDER_VARIABLE: ["lineage.runtime.recorder", f"{folder}/recorder"]}
        if sys.platform == "linux":  # elsewhere a process with many imports cannot fork safely
            command = ["lineage.runtime.forkserver", "serve", f"{folder}/forkserver"]
            helpers[FORKSERVER_VARIABLE] = command
        for command in helpers.values():
            _start_helper(context, exit_stack, *command)
        for variable, command in helpers.items():
            os.environ[variable] = command[-1]
            exit_stack.callback(os.environ.pop, variable, None)
        yield


def _start_helper(context: StageContext, exit_stack: contextlib.ExitStack, *module: str) -> None:
    """Start a process that ends with the block of `exit_stack`, or with this process."""
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


def _make_runner(
    context: StageContext,
    jobs: int,
    cache: Path,
    run_remotely: RemoteRunner | None,
) -> StageRunner:
    """Return the function that runs a stage, on a worker or on this machine.

    All stages run here without `run_remotely`, and from the moment that no worker can be reached.
    """
    # Limits this machine, also if most stages run elsewhere.
    local_slots = threading.BoundedSemaphore(jobs)
    # With workers the scheduler starts several GPU stages at a time. Those that have to run here
    # after all take turns.
    gpu = threading.Lock() if uses_cuda(context.root) else contextlib.nullcontext()
    workers_are_gone = threading.Event()
    message_lock = threading.Lock()

    def try_worker(node: StageNode) -> StageResult | None:
        """Return the result of a worker, or None if the stage has to run here."""
        if run_remotely is None or workers_are_gone.is_set() or _must_run_here(node, context.root):
            return None
        try:
            return run_remotely(node, context)
        except WorkersUnreachableError as error:
            with message_lock:
                if not workers_are_gone.is_set() and not context.stop_event.is_set():
                    print(f"{error}; the stages that are left run here", file=sys.stderr)
                workers_are_gone.set()
            return None

    def run_here(node: StageNode) -> StageResult:
        turn = gpu if node.pool == "gpu" else contextlib.nullcontext()
        with local_slots, turn:
            return run_stage(node.name, context=context, timeout_seconds=node.timeout_seconds)

    def run(node: StageNode) -> StageResult:
        result = try_worker(node)
        if result is None:
            result = run_here(node)
        if result.outcome == "ran":
            _archive_metadata(node.name, context.root)
        return result

    return _check_cached_results(run, context, cache)


def _must_run_here(node: StageNode, root: Path) -> bool:
    """Return whether a stage reads the user's files, which workers do not have."""
    if node.pool == "local":
        return True
    # The sources stage has written it by now.
    path = root / SOURCES_DIR / "home_stages.json"
    return path.is_file() and node.name in json.loads(path.read_text())


def _archive_metadata(name: str, root: Path) -> None:
    """Note which entry of dvc.lock a stage's metadata belongs to.

    Done at once, since the stage may run again before publish does.
    """
    # A failure here must not end the run.
    with contextlib.suppress(InputError, OSError, ValueError):
        archive_stage_metadata(root / METADATA_DIR, name, read_lock_entry(root, name))


def _check_cached_results(run: StageRunner, context: StageContext, cache: Path) -> StageRunner:
    """Return a runner that runs a stage again if its result has come damaged from the cache."""

    def remove_damaged(result: StageResult) -> list[str]:
        """Remove the damaged files of a cached result, and return their outputs."""
        if result.outcome != "cached":
            return []
        entry = read_lock_entry(context.root, result.name)
        return remove_damaged_result(context.root, cache, entry)

    def run_checked(node: StageNode) -> StageResult:
        result = run(node)
        damaged = remove_damaged(result)
        if not damaged:
            return result
        _fetch_result(node.name, context)
        result = run(node)
        if remove_damaged(result):
            # The remote's files are damaged too. Now the stage itself runs, if it runs here.
            result = run(node)
        still_damaged = remove_damaged(result)  # a worker has pulled them once more
        if still_damaged:
            message = (
                f"{node.name}: {', '.join(still_damaged)} came damaged from the DVC remote; "
                "remove the files there, and run again"
            )
            return StageResult(node.name, "failed", result.seconds, EXIT_BAD_INPUT, message)
        message = result.message or describe_damage(node.name, damaged)
        return dataclasses.replace(result, message=message)

    return run_checked


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
    reasons = read_stale_reasons(context.root)
    damaged = remove_damaged_outputs(context.root, cache, reasons, check_cache=check_cache)
    for name, outputs in damaged.items():
        display.on_damage(describe_damage(name, outputs))
        _fetch_result(name, context)
    return read_stale_reasons(context.root) if damaged else reasons


def _fetch_result(name: str, context: StageContext) -> None:
    """Bring a result from the DVC remote into the cache, if there is one that has it.

    Otherwise the stage runs again.
    """
    with contextlib.suppress(InputError, DvcError):
        if read_default_remote(context.root) is not None:
            run_dvc("fetch", name, context=context, name=name)


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


def _print_summary(root: Path, *, exit_status: int, results: dict[str, StageResult]) -> None:
    """Print the table of results, how many stages ended how, and how many results failed."""
    publish = results.get(LAST_STAGE)
    if publish is not None and publish.succeeded:
        print(read_stage_output(log_path(root, LAST_STAGE)))
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
    study = open_study(root)
    nodes = _read_valid_graph(_stage_context(study))
    if not is_running(root) and _params_have_changed(root):
        _refresh_records()
    return nodes, find_stale_stages(nodes, read_stale_reasons(root))


def check_parameters(root: Path) -> None:
    """Raise InputError if params.yaml is wrong, unless `sources` has checked the same file already.

    Another process reads it, since that imports torch. It ends by itself if this one is killed,
    which a pool's process would not.
    """
    if not _params_have_changed(root):
        return
    context = get_context("spawn")
    receiver, sender = context.Pipe(duplex=False)
    process = context.Process(target=_send_problem, args=(sender,))
    process.start()
    sender.close()
    try:
        problem = receiver.recv()
    except EOFError:
        process.join()
        raise RuntimeError(f"the check of params.yaml ended with {process.exitcode}") from None
    process.join()
    if problem:
        raise InputError(problem)


def _send_problem(sender: Connection) -> None:
    """Refresh the records, and send what is wrong with params.yaml; nothing if it is right."""
    problem = ""
    try:
        _refresh_records()
    except InputError as error:
        problem = str(error)
    with contextlib.suppress(BrokenPipeError):  # the run has been killed
        sender.send(problem)


def _refresh_records() -> None:
    """Check params.yaml, and write its records again. Raises InputError."""
    # Imported here: it imports torch, and is seldom needed.
    from lineage.config.params import read_params
    from lineage.config.source_records import refresh_parameter_records

    refresh_parameter_records(read_params())


def _params_have_changed(root: Path) -> bool:
    """Return whether params.yaml differs from the copy of the sources stage, if there is one."""
    recorded = root / SOURCES_DIR / "params.yaml"
    if not recorded.is_file():
        return True
    return recorded.read_bytes() != (root / "params.yaml").read_bytes()


def interrupt_on_signals() -> None:
    """Let TERM and HUP end a run as Ctrl-C does, together with the process groups of its stages."""

    def interrupt(number: int, frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    signal.signal(signal.SIGTERM, interrupt)
    if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:  # nohup ignores it
        signal.signal(signal.SIGHUP, interrupt)
