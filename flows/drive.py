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

from flows.execute import BAD_INPUT, Result, Setting, log_path, run_stage
from flows.plan import FIRST, GraphError, StageNode, cuda, read_graph, read_reasons, show, staleness
from flows.view import View, stage_output
from flows.walk import Run, exit_code, failed_cells, walk
from flows.workspace import Workspace, alone, commit_run, in_place, in_worktree
from lineage.errors import InputError
from lineage.records import read_yaml
from lineage.running.provenance import keep_side, lock_entry
from lineage.running.runtime import STATE, check_folder, main_checkout, read_runtime

LAST = "publish"  # prints the table
CONTAINER = Path("/sys/fs/cgroup")
STAGE_BYTES = 3e9  # of memory: what a process takes at most on small corpora (README: what it needs)
AWAY_AT_ONCE = 64  # stages that may wait for workers; the workers' own limits decide how many run


@dataclass(frozen=True)
class Options:
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
                    raise InputError(f"--{name.replace('_', '-')}: works on a profile's own branch; add --profile NAME")
        if self.jobs is not None and self.jobs < 1:
            raise InputError(f"--jobs: {self.jobs} is not a number of stages at a time; give 1 or more")


Away = Callable[[StageNode, Workspace, Setting], Result]  # runs a stage on a worker
Wrap = Callable[[Run], Run]  # how a stage's run is shown to an orchestrator


def drive(options: Options, *, main: Path, away: Away | None = None, wrap: Wrap = lambda run: run, flow_run: str = "") -> int:
    """Run everything that is stale; the exit code (0 done, 2 bad configuration or input, 3 cells failed, 1 anything else)."""
    assert options.pools == (away is not None)
    with alone(main, options.profile):
        place = prepare(options, main=main)
        for folder in ("artifacts", "reports"):  # before DVC, whose own message is of no use
            check_folder(folder, place.root)
        setting = _setting(place, flow_run=flow_run)
        nodes = _graph(setting)
        jobs = options.jobs or read_runtime().jobs or fitting(setting.threads)
        slots = threading.BoundedSemaphore(jobs)  # of this machine, also where most stages are away

        def run(node: StageNode) -> Result:
            if away is not None and node.pool != "local":
                result = away(node, place, setting)
            else:
                with slots:
                    result = run_stage(node.name, setting=helped, timeout_seconds=node.timeout_seconds)
            if result.outcome == "ran":
                _keep_side(node.name, place.root)
            return result

        try:
            with helpers(setting) as helped:
                results = _walk(nodes, run=wrap(run), setting=setting, jobs=jobs if away is None else AWAY_AT_ONCE,
                                one_gpu=away is None and cuda(place.root))  # fmt: skip
        except BaseException:
            _end_in_mlflow(setting, None)
            raise
        _end_in_mlflow(setting, results)
        code = exit_code(results, place.root)
        if place.profile is not None and code in (0, 3):
            commit_run(place, f"{place.profile}: results of {place.pipeline_id}")
    _close(place, code=code, results=results)
    return code


def _keep_side(name: str, root: Path) -> None:
    """Note at once which entry of dvc.lock a stage's side file is of: publish may not come before the next one. Bookkeeping, which ends no run."""
    with contextlib.suppress(InputError, OSError, ValueError):
        keep_side(root / STATE / "sides", name, lock_entry(root, name))


def preview(options: Options, *, main: Path) -> None:
    """Print what a run would do, and do nothing but prepare its folder."""
    with alone(main, options.profile):
        place = prepare(options, main=main)
        nodes = _graph(_setting(place, flow_run=""))
        show(nodes, staleness(nodes, read_reasons(place.root)))


def prepare(options: Options, *, main: Path) -> Workspace:
    """The folder of the run."""
    if options.profile is None:
        return in_place(main)
    return in_worktree(main, options.profile, allow_dirty=options.allow_dirty, final=options.final)


def fitting(threads: int) -> int:
    """How many stages of so many threads may run at a time: each with cores of this process, in a container of its quota, and with memory enough."""
    cores = float(len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1)
    memory = float(psutil.virtual_memory().total)
    with contextlib.suppress(OSError, ValueError):
        quota, period = (CONTAINER / "cpu.max").read_text().split()
        cores = min(cores, int(quota) / int(period))  # max: there is none
    with contextlib.suppress(OSError, ValueError):
        memory = min(memory, int((CONTAINER / "memory.max").read_text()))
    return max(1, int(min(cores / threads, memory / STAGE_BYTES)))


def end_on_signals() -> None:
    """Let TERM and HUP end a run as Ctrl-C does: the stages' process groups with it."""

    def interrupt(number: int, frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    signal.signal(signal.SIGTERM, interrupt)
    if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:  # as nohup leaves it
        signal.signal(signal.SIGHUP, interrupt)


@contextlib.contextmanager
def helpers(setting: Setting) -> Iterator[Setting]:
    """For stages of this machine: the setting, with two processes that make their beginnings short while the block lasts.

    One holds MLflow ready for them, the other forks them (`lineage.running.recorder`, `lineage.running.forkserver`).
    """
    with tempfile.TemporaryDirectory(prefix="lineage-") as folder, contextlib.ExitStack() as ends:  # a socket's path may have 100 letters
        environment = {"LINEAGE_RECORDER": f"{folder}/recorder"}
        _help(setting, ends, "lineage.running.recorder", environment["LINEAGE_RECORDER"])
        if sys.platform == "linux":  # elsewhere a process that has imported much may not be forked
            environment["LINEAGE_FORKSERVER"] = f"{folder}/forkserver"
            _help(setting, ends, "lineage.running.forkserver", "serve", environment["LINEAGE_FORKSERVER"])
        yield dataclasses.replace(setting, environment={**setting.environment, **environment})


def _help(setting: Setting, ends: contextlib.ExitStack, *module: str) -> None:
    """Start a process that ends with the block, or with this process."""
    child = subprocess.Popen(
        [sys.executable, "-m", *module, str(os.getpid())], cwd=setting.root, env=setting.child_environment("helper"), stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, process_group=0,
    )  # fmt: skip
    ends.callback(child.wait)
    ends.callback(child.terminate)


def _setting(place: Workspace, *, flow_run: str) -> Setting:
    # in a profile's worktree git would name the branch's last run, and the files of this one as changes
    environment = {"LINEAGE_COMMIT": place.code_commit, "LINEAGE_DIRTY": ",".join(place.dirty)}
    if place.root != place.main:
        environment["LINEAGE_MAIN"] = str(main_checkout())  # whose runtime.yaml and store all runs share, also those of a linked worktree
    if place.profile is not None:
        environment["LINEAGE_PROFILE"] = place.profile
    if flow_run:
        environment["LINEAGE_FLOW_RUN"] = flow_run
    threads = read_yaml(place.root / "params.yaml").get("threads")
    return Setting(place.root, environment, threads if type(threads) is int and threads > 0 else 1)


def _graph(setting: Setting) -> list[StageNode]:
    """The graph. Where params.yaml does not make one, the sources stage, which checks it, says what is wrong."""
    try:
        return read_graph(setting.root)
    except GraphError:
        command = [sys.executable, "-m", f"stages.{FIRST}"]
        answer = subprocess.run(
            command, cwd=setting.root, env=setting.child_environment(FIRST), capture_output=True, text=True, check=False, stdin=subprocess.DEVNULL
        )
        if answer.returncode == BAD_INPUT:
            raise InputError(answer.stderr.strip().splitlines()[-1]) from None
        raise


def _walk(nodes: list[StageNode], *, run: Run, setting: Setting, jobs: int, one_gpu: bool) -> dict[str, Result]:
    first = [node for node in nodes if node.name == FIRST]
    with View(setting.root, stages=len(nodes)) as view:
        began = walk(first, reasons={FIRST: ("always runs",)}, run=run, jobs=1, stop=setting.stop, watcher=view)
        if not all(result.ok for result in began.values()):
            return began
        # What sources found is in the status that is read now: by itself, that it ran makes nothing stale.
        settled = {name: dataclasses.replace(result, outcome="fresh") for name, result in began.items()}
        rest = [node for node in nodes if node.name != FIRST]
        reasons = read_reasons(setting.root)
        return walk(rest, reasons=reasons, run=run, jobs=jobs, one_gpu=one_gpu, stop=setting.stop, watcher=view, done=settled) | began


def _end_in_mlflow(setting: Setting, results: dict[str, Result] | None) -> None:
    """End the parent of a run that publish does not end, since something failed, or, without results, since it was stopped."""
    began = results is None or any(result.outcome in ("ran", "failed") for name, result in results.items() if name != FIRST)
    if not began or (results and LAST in results and results[LAST].ok):
        return
    command = [sys.executable, "-m", "lineage.running.tracking", "KILLED" if results is None else "FAILED"]
    environment = setting.child_environment("helper")
    subprocess.run(command, cwd=setting.root, env=environment, capture_output=True, stdin=subprocess.DEVNULL, process_group=0, check=False)


def _close(place: Workspace, *, code: int, results: dict[str, Result]) -> None:
    """The table, and what the exit code means."""
    counts = {word: sum(result.outcome == word for result in results.values()) for word in ("ran", "cached", "fresh", "failed", "blocked", "stopped")}
    if LAST in results and results[LAST].ok:
        print(stage_output(log_path(place.root, LAST)))
    print(", ".join(f"{count} {word}" for word, count in counts.items() if count))
    if place.profile is not None and code in (0, 3):
        print(f"params.yaml and dvc.lock are committed to the branch runs/{place.profile}; its files are in {place.root}")
    if code == 3:
        print(f"finished, but {failed_cells(place.root)} rows of reports/results.csv have status failed, each with its reason", file=sys.stderr)
