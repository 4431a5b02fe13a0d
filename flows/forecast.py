"""`lineage check`: validate a study, and forecast its run on this machine."""

import contextlib
import heapq
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console
from rich.progress import Progress
from rich.table import Table

from flows.machine import default_jobs
from flows.plan import (
    FIRST_STAGE,
    StageNode,
    find_stale_stages,
    in_run_order,
    read_cache_folder,
    read_graph,
    read_stale_reasons,
)
from flows.rehearsal import forecast_study
from flows.scheduler import select_next
from flows.study import check_places, is_running, open_study
from lineage.config.params import read_params
from lineage.errors import InputError
from lineage.forecast.records import StageForecast, StudyForecast
from lineage.forecast.time_limit import describe_proposal, propose
from lineage.runtime.settings import find_existing_folder, read_runtime_settings, resolve_data_root
from lineage.study.checks import check_study
from lineage.study.source_records import collect_records, refresh_parameter_records

# DVC, MLflow and the start of a process add this to a stage (docs/decisions/0038).
OVERHEAD_SECONDS = 0.75
MAX_LONGEST = 3  # stages that are named
DISK_COPIES = 2  # of an output: in its place, and in DVC's cache


@dataclass(frozen=True)
class RunForecast:
    """The time, memory and disk of a whole run."""

    seconds: float  # from its start to its end
    memory_bytes: int  # the most that stages hold together
    disk_bytes: int  # of all outputs, with their copies in DVC's cache
    jobs: int

    def describe(self) -> str:
        """Say it in one line."""
        at_a_time = "1 stage" if self.jobs == 1 else f"{self.jobs} stages"
        return (
            f"about {format_seconds(self.seconds)} on {at_a_time} at a time, "
            f"{format_bytes(self.memory_bytes)} of memory, {format_bytes(self.disk_bytes)} of disk, "
            "if nothing else uses this machine"
        )


def simulate_run(
    nodes: Sequence[StageNode],
    forecast: StudyForecast,
    *,
    jobs: int,
    overhead_seconds: float = 0.0,
    exclusive_gpu: bool = False,
) -> RunForecast:
    """Run these stages in the scheduler's order, in thought.

    A stage takes its own seconds and `overhead_seconds`. `sources` runs alone, as what runs next
    depends on what it finds.
    """
    waiting = {node.name: node for node in nodes}
    running: list[tuple[float, str]] = []  # a heap of when each stage ends
    running_nodes: dict[str, StageNode] = {}
    now = 0.0
    most_memory = 0
    while waiting or running:
        for node in _choose_stages(waiting, running_nodes, jobs=jobs, exclusive_gpu=exclusive_gpu):
            del waiting[node.name]
            running_nodes[node.name] = node
            seconds = forecast.stages[node.name].seconds + overhead_seconds
            heapq.heappush(running, (now + seconds, node.name))
        memory = sum(forecast.stages[name].memory_bytes for name in running_nodes)
        most_memory = max(most_memory, memory)
        now, ended = heapq.heappop(running)
        del running_nodes[ended]
    disk_bytes = sum(forecast.stages[node.name].disk_bytes for node in nodes)
    return RunForecast(now, most_memory, DISK_COPIES * disk_bytes, jobs)


def _choose_stages(
    waiting: Mapping[str, StageNode],
    running: Mapping[str, StageNode],
    *,
    jobs: int,
    exclusive_gpu: bool,
) -> list[StageNode]:
    """Return the stages that begin now, as the scheduler chooses them."""
    if FIRST_STAGE in running:
        return []
    if FIRST_STAGE in waiting:
        return [waiting[FIRST_STAGE]]
    ready = [
        node
        for node in waiting.values()
        if not any(name in waiting or name in running for name in node.upstream)
    ]
    return select_next(
        in_run_order(ready), [*running.values()], jobs=jobs, exclusive_gpu=exclusive_gpu
    )


def print_forecast(
    nodes: Sequence[StageNode],
    forecast: StudyForecast,
    run: RunForecast,
    *,
    overhead_seconds: float = 0.0,
    by_stage: bool = False,
) -> None:
    """Print a table of the time, memory and disk of each verb, or of each stage, and of the run."""
    table = Table("stage", "number", "time, summed", "memory", "disk", box=None, pad_edge=False)
    for column in table.columns[1:]:
        column.justify = "right"
    for row in forecast_rows(nodes, forecast, overhead_seconds=overhead_seconds, by_stage=by_stage):
        table.add_row(*row)
    Console().print(table)
    longest = sorted(nodes, key=lambda node: -forecast.stages[node.name].seconds)[:MAX_LONGEST]
    shown = [
        f"{node.name} {format_seconds(forecast.stages[node.name].seconds)}" for node in longest
    ]
    print(f"longest: {', '.join(shown)}")
    print(run.describe())
    if forecast.lacks_gpu:
        print("there is no GPU here; the rehearsal ran on the CPU, and a GPU takes far less time")


def forecast_rows(
    nodes: Sequence[StageNode],
    forecast: StudyForecast,
    *,
    overhead_seconds: float = 0.0,
    by_stage: bool = False,
) -> Iterable[tuple[str, str, str, str, str]]:
    """Yield name, number of stages, seconds of all, memory of the largest, and disk of all."""
    groups: dict[str, list[StageForecast]] = {}
    for node in nodes:
        name = node.name if by_stage else node.name.partition("@")[0]
        groups.setdefault(name, []).append(forecast.stages[node.name])
    for name, stages in groups.items():
        yield (
            name,
            str(len(stages)),
            format_seconds(sum(stage.seconds + overhead_seconds for stage in stages)),
            format_bytes(max(stage.memory_bytes for stage in stages)),
            format_bytes(sum(stage.disk_bytes for stage in stages)),
        )


def format_seconds(seconds: float) -> str:
    """Return 40 s, 14 min or 3.2 h."""
    if seconds < 99.5:
        return f"{seconds:.0f} s"
    if seconds < 99.5 * 60:
        return f"{seconds / 60:.0f} min"
    return f"{seconds / 3600:.1f} h"


def format_bytes(num_bytes: int) -> str:
    """Return 20 kB, 220 MB or 3.1 GB."""
    if num_bytes < 1_000_000:
        return f"{num_bytes / 1e3:.0f} kB"
    if num_bytes < 1_000_000_000:
        return f"{num_bytes / 1e6:.0f} MB"
    return f"{num_bytes / 1e9:.1f} GB"


def check_and_forecast(
    root: Path, *, jobs: int | None = None, by_stage: bool = False, minutes: float | None = None
) -> bool:
    """Check all parameters and data of a study, and print the forecast of its next run.

    Return whether the run fits into `minutes`. Raises InputError for what a run would refuse.
    """
    open_study(root)
    check_places(root)
    params = read_params()
    data_root = resolve_data_root()
    collect_records(params, data_root)
    print("params.yaml and all data are valid", flush=True)
    if not is_running(root):
        refresh_parameter_records(params)
    nodes = read_graph(root)
    stale = find_stale_stages(nodes, read_stale_reasons(root))
    nodes_to_run = [node for node in nodes if stale[node.name]]
    jobs = jobs or read_runtime_settings().jobs or default_jobs(params.threads)
    with _show_progress() as on_progress:
        forecast = forecast_study(
            root,
            nodes_to_run,
            params,
            check_study(params),
            data_root,
            jobs=jobs,
            on_progress=on_progress,
        )

    def simulate(chosen: Sequence[StageNode], changed: StudyForecast) -> RunForecast:
        return simulate_run(
            chosen,
            changed,
            jobs=jobs,
            overhead_seconds=OVERHEAD_SECONDS,
            exclusive_gpu=params.device == "cuda",
        )

    run = simulate(nodes_to_run, forecast)
    print_forecast(
        nodes_to_run, forecast, run, overhead_seconds=OVERHEAD_SECONDS, by_stage=by_stage
    )
    check_free_space(root, read_cache_folder(root), run.disk_bytes)
    if minutes is None or run.seconds <= 60 * minutes:
        return True
    by_name = {node.name: node for node in nodes_to_run}
    proposal = propose(
        [*by_name],
        forecast,
        params,
        limit_seconds=60 * minutes,
        simulate=lambda names, changed: simulate([by_name[one] for one in names], changed).seconds,
    )
    print(f"that is more than {minutes:g} min; this fits:")
    for line in describe_proposal(proposal, params):
        print(f"  {line}")
    return False


def check_free_space(root: Path, cache: Path, disk_bytes: int) -> None:
    """Raise InputError if the outputs of a run do not fit on the study's and the cache's disks."""
    needed: dict[int, tuple[Path, int]] = {}
    for place in (root, cache):
        folder = find_existing_folder(place.absolute())
        disk = folder.stat().st_dev
        first_folder, num_bytes = needed.get(disk, (folder, 0))
        needed[disk] = (first_folder, num_bytes + disk_bytes // DISK_COPIES)
    for folder, num_bytes in needed.values():
        free_bytes = shutil.disk_usage(folder).free
        if free_bytes < num_bytes:
            raise InputError(
                f"{folder}: the run needs about {format_bytes(num_bytes)} of this disk, and "
                f"{format_bytes(free_bytes)} are free; free some, or move the study"
            )


@contextlib.contextmanager
def _show_progress() -> Iterator[Callable[[float, str], None]]:
    """Show a bar on a terminal, and nothing elsewhere: the rehearsal takes minutes."""
    console = Console(stderr=True)
    with Progress(console=console, transient=True, disable=not console.is_terminal) as bar:
        job = bar.add_task("rehearsing on this machine", total=1.0)
        yield lambda done, note: bar.update(job, completed=done)
