"""Read dvc.yaml into typed stages, and find out which would run and why.

Only this file and quick_dvc.py use DVC's Python interface. DVC makes no promise about it:
tests/test_flows.py checks what is used of it here.
"""

import contextlib
import json
import sys
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any

import typer
from dvc.exceptions import DvcException
from dvc.repo import Repo
from dvc.stage import PipelineStage
from rich.console import Console
from rich.table import Table

from flows import quick_dvc
from lineage.config.records import read_yaml
from lineage.errors import InputError

DEVICE_POOL = "device"  # in meta: the gpu pool if params.yaml says cuda, and else the cpu pool
POOL_NAMES = ("local", "cpu", "gpu", DEVICE_POOL)
MAX_REASON_CHARACTERS = 160  # of one reason that are printed
MAX_UPSTREAM_LISTED = 3  # stages whose run is a reason are all named if there are no more
FIRST_STAGE = "sources"  # reads the user's files, which DVC cannot see: always first
NEVER_RUN = "never run"
ALWAYS_RUNS = "always runs"

Reasons = tuple[str, ...]  # why a stage would run; empty if it is fresh

quick_dvc.patch_dvc()


@dataclass(frozen=True)
class StageNode:
    """One stage of the graph."""

    name: str
    command: str
    upstream: tuple[str, ...]  # the stages whose outputs it reads
    pool: str  # where it runs with --pools
    timeout_seconds: float
    always_changed: bool  # runs every time, whatever has changed
    downstream_depth: (
        int  # stages on the longest path to an end of the graph; deep ones start first
    )


class GraphError(InputError):
    """dvc.yaml and params.yaml do not make a graph."""


def read_graph(root: Path) -> list[StageNode]:
    """Return the stages, each after the stages that it depends on. Raises GraphError."""
    with _open_repo(root) as repo:
        try:
            graph = repo.index.graph
        # DVC itself raises the latter two for odd values in params.yaml.
        except (DvcException, TypeError, AssertionError) as error:
            raise GraphError(
                f"dvc.yaml, with params.yaml and dvc.lock: {_full_message(error)}; "
                "correct the file that it names"
            ) from error
        stages = {stage.name: stage for stage in repo.index.stages if stage.cmd}
        if not stages:
            raise GraphError(
                f"{root}: DVC finds no stages here; run from a checkout of the project"
            )
        upstream = {}
        for name, stage in stages.items():
            upstream[name] = tuple(sorted(other.name for other in graph.successors(stage)))
        order = _topological_order(upstream)
        depths = _downstream_depths(order, upstream)
        device_pool = "gpu" if uses_cuda(root) else "cpu"
        return [
            _make_node(stages[name], upstream[name], depths[name], device_pool=device_pool)
            for name in order
        ]


def uses_cuda(root: Path) -> bool:
    """Return whether the stages of a folder compute on a GPU."""
    return bool(read_yaml(root / "params.yaml").get("device") == "cuda")


def read_stale_reasons(root: Path) -> dict[str, Reasons]:
    """Return why each stage would run by itself."""
    with _open_repo(root) as repo, repo.lock:
        return {
            stage.name: tuple(_stale_reasons(stage)) for stage in repo.index.stages if stage.cmd
        }


def find_stale_stages(nodes: list[StageNode], reasons: Mapping[str, Reasons]) -> dict[str, Reasons]:
    """Return why each stage would run, including that stages before it would.

    A stage that always runs makes nothing stale before it has run.
    """
    stale: dict[str, Reasons] = {}
    changed: set[str] = set()
    for node in nodes:
        own = reasons[node.name]
        above = tuple(f"after {name}" for name in node.upstream if name in changed)
        stale[node.name] = own if own[:1] == (NEVER_RUN,) else own + above
        if above or (own and own != (ALWAYS_RUNS,)):
            changed.add(node.name)
    return stale


@contextlib.contextmanager
def hold_dvc_lock(root: Path) -> Iterator[None]:
    """Hold DVC's lock of a checkout: none of its stages begins or ends meanwhile."""
    with _open_repo(root) as repo, repo.lock:
        yield


def cache_folder(root: Path) -> Path:
    """Return the absolute folder of a checkout's DVC cache."""
    with _open_repo(root) as repo:
        # DVC appends the name of its layout to the configured folder.
        return Path(repo.cache.local.path).parent.parent


def default_remote(root: Path) -> str | None:
    """Return the address of the DVC remote that is configured as the default."""
    with _open_repo(root) as repo:
        name = repo.config["core"].get("remote")
        return str(repo.config["remote"][name]["url"]) if name else None


def _open_repo(root: Path) -> Repo:
    try:
        return Repo(str(root), _wait_for_lock=True)
    except DvcException as error:
        raise GraphError(
            f"{root}: {_full_message(error)}; run from a checkout of the project"
        ) from error


def _make_node(
    stage: PipelineStage, upstream: tuple[str, ...], downstream_depth: int, *, device_pool: str
) -> StageNode:
    meta = stage.meta or {}
    pool = meta.get("pool")
    timeout = meta.get("timeout_s")
    if (
        set(meta) != {"pool", "timeout_s"}
        or pool not in POOL_NAMES
        or not isinstance(timeout, int | float)
    ):
        raise GraphError(
            f"dvc.yaml: {stage.name}: meta is {dict(meta)}; "
            f"give {{pool: {' | '.join(POOL_NAMES)}, timeout_s: a number}}"
        )
    return StageNode(
        name=stage.name,
        command=stage.cmd,
        upstream=upstream,
        pool=device_pool if pool == DEVICE_POOL else pool,
        timeout_seconds=float(timeout),
        always_changed=stage.always_changed,
        downstream_depth=downstream_depth,
    )


def _topological_order(upstream: Mapping[str, tuple[str, ...]]) -> list[str]:
    """Order the stages as in dvc.yaml, but `sources` first and each after its upstream stages."""
    order: list[str] = []
    left = sorted(upstream, key=lambda name: name != FIRST_STAGE)
    while left:
        ready = [name for name in left if set(upstream[name]) <= set(order)]
        assert ready, "DVC refuses cycles"
        order += ready
        left = [name for name in left if name not in ready]
    return order


def _downstream_depths(order: list[str], upstream: Mapping[str, tuple[str, ...]]) -> dict[str, int]:
    depths = dict.fromkeys(order, 1)
    for name in reversed(order):
        for above in upstream[name]:
            depths[above] = max(depths[above], depths[name] + 1)
    return depths


def _stale_reasons(stage: PipelineStage) -> Iterator[str]:
    if stage.always_changed:
        yield ALWAYS_RUNS
        return
    if not any(out.hash_info for out in stage.outs):
        yield NEVER_RUN
        return
    # DVC names files relative to the current folder, which need not be the repository's.
    names = {str(item): item.def_path for item in (*stage.deps, *stage.outs)}
    for entries in stage.status().values():
        for entry in entries:
            if entry == "changed command":
                yield "command changed"
                continue
            assert isinstance(entry, dict), entry
            for path, state in entry.get("changed deps", {}).items():
                if isinstance(state, dict):
                    yield from _changed_parameters(stage)
                else:
                    yield f"input {names[path]} {state}"
            for path, state in entry.get("changed outs", {}).items():
                yield f"output {names[path]} {state}"


def _changed_parameters(stage: PipelineStage) -> Iterator[str]:
    for dependency in stage.params:
        before = dependency.hash_info.value or {}
        now = dependency.read_params()
        # dvc.yaml names no keys where it tracks a whole file of resolved values.
        for key in dependency.params or sorted({*before, *now}):
            yield from _differences(key, before.get(key), now.get(key))


def _differences(key: str, before: object, now: object) -> Iterator[str]:
    """Yield a reason for each single value below a key that has changed."""
    if isinstance(before, Mapping) and isinstance(now, Mapping):
        # 0 and "0" may both be keys.
        for name in sorted({*before, *now}, key=lambda name: (str(name), type(name).__name__)):
            yield from _differences(f"{key}.{name}", before.get(name), now.get(name))
    elif _tuple_to_list(before) != _tuple_to_list(now):
        yield f"param {key} {before} -> {now}"


def _tuple_to_list(value: object) -> object:
    return list(value) if isinstance(value, tuple) else value


def _full_message(error: BaseException) -> str:
    """Return DVC's message on one line, with the error that caused it."""
    cause = f": {error.__cause__}" if error.__cause__ else ""
    return " ".join(f"{error}{cause}".split())


def _format_reasons(reasons: Reasons) -> str:
    """Shorten the reasons for a reader: long values, and many stages that run before.

    `--json` has everything.
    """
    shown = []
    above = []
    for reason in reasons:
        if reason.startswith("after "):
            above.append(reason)
        elif len(reason) > MAX_REASON_CHARACTERS:
            shown.append(f"{reason[:MAX_REASON_CHARACTERS]} ...")
        else:
            shown.append(reason)
    if len(above) > MAX_UPSTREAM_LISTED:
        above = [f"{above[0]} and {len(above) - 1} others"]
    return "; ".join(shown + above)


def print_plan(nodes: list[StageNode], stale: Mapping[str, Reasons]) -> None:
    """Print what would run and why: a table on a terminal, and a line per stage elsewhere."""
    console = Console()
    table = Table("stage", "pool", "", "why", box=None, pad_edge=False)
    for node in nodes:
        state = "run" if stale[node.name] else "fresh"
        why = _format_reasons(stale[node.name])
        if console.is_terminal:
            table.add_row(node.name, node.pool, state, why)
        else:
            print(f"{state:5} {node.name} [{node.pool}] {why}".rstrip())
    if console.is_terminal:
        console.print(table)
    num_stale = sum(bool(reasons) for reasons in stale.values())
    print(
        f"{num_stale} of {len(nodes)} stages would run; "
        f"{FIRST_STAGE} runs first and may find changed code or data"
    )


app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)


@app.command()
def main(
    as_json: Annotated[bool, typer.Option("--json", help="one JSON list of the stages")] = False,
) -> None:
    """Print what would run and why. Nothing is run."""
    root = Path.cwd()
    try:
        nodes = read_graph(root)
        stale = find_stale_stages(nodes, read_stale_reasons(root))
    except InputError as error:
        print(error, file=sys.stderr)
        raise typer.Exit(2) from None
    if not as_json:
        print_plan(nodes, stale)
        return
    entries: list[dict[str, Any]] = []
    for node in nodes:
        reasons = stale[node.name]
        entries.append({**asdict(node), "runs": bool(reasons), "reasons": reasons})
    print(json.dumps(entries, indent=1))


if __name__ == "__main__":
    app()
