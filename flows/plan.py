"""dvc.yaml -> typed stages, and what would run and why. With quick_dvc.py the only module that reads DVC's Python interface.

DVC does not promise that interface: tests/test_flows.py holds what is used of it.
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
from rich.console import Console
from rich.table import Table

from flows import quick_dvc
from lineage.config.records import read_yaml
from lineage.errors import InputError

DEVICE_POOL = "device"  # in meta: the gpu pool where device is cuda, else the cpu pool
POOL_NAMES = ("local", "cpu", "gpu", DEVICE_POOL)
MAX_REASON_CHARACTERS = 160  # characters of it that are printed
MAX_UPSTREAM_LISTED = 3  # stages above are all named, if they are no more
FIRST_STAGE = "sources"  # reads the user's files, which DVC cannot see: always first

quick_dvc.patch_dvc()


@dataclass(frozen=True)
class StageNode:
    """One stage of the graph."""

    name: str
    command: str
    upstream: tuple[str, ...]  # the stages whose outputs it reads
    pool: str  # where it runs with --pools
    timeout_seconds: float
    always_changed: bool  # runs every time, whatever changed
    downstream_depth: int  # stages on the longest way to an end of the graph: what to start first


class GraphError(InputError):
    """dvc.yaml and params.yaml do not make a graph."""


def read_graph(root: Path) -> list[StageNode]:
    """The stages in an order in which each follows what it needs. Raises GraphError."""
    with _open_repo(root) as repo:
        try:
            graph = repo.index.graph
        except (
            DvcException,
            TypeError,
            AssertionError,
        ) as error:  # the latter two inside of DVC, of odd values in params.yaml
            raise GraphError(
                f"dvc.yaml, with params.yaml and dvc.lock: {_full_message(error)}; mend the one that it is about"
            ) from error
        stages = {stage.name: stage for stage in repo.index.stages if stage.cmd}
        if not stages:
            raise GraphError(
                f"{root}: DVC finds no stages here; run from a checkout of the project"
            )
        upstream = {
            name: tuple(sorted(need.name for need in graph.successors(stage)))
            for name, stage in stages.items()
        }
        order = _topological_order(upstream)
        downstream_depths: dict[str, int] = {}
        for name in reversed(order):
            downstream_depths[name] = 1 + max(
                (downstream_depths[user] for user in order if name in upstream[user]), default=0
            )
        device = "gpu" if uses_cuda(root) else "cpu"
        return [
            _make_node(
                stages[name],
                upstream=upstream[name],
                downstream_depth=downstream_depths[name],
                device=device,
            )
            for name in order
        ]


def uses_cuda(root: Path) -> bool:
    """Whether the stages of a folder compute on a GPU."""
    return bool(read_yaml(root / "params.yaml").get("device") == "cuda")


def read_stale_reasons(root: Path) -> dict[str, tuple[str, ...]]:
    """Why each stage would run by itself; nothing where it is up to date. Read once, in this process."""
    with _open_repo(root) as repo, repo.lock:
        known = repo.index.stages
        return {stage.name: tuple(_stale_reasons(stage)) for stage in known if stage.cmd}


def find_stale_stages(
    nodes: list[StageNode], reasons: Mapping[str, tuple[str, ...]]
) -> dict[str, tuple[str, ...]]:
    """Why each stage would run, those above it included. A stage that always runs passes nothing down before it has run."""
    found: dict[str, tuple[str, ...]] = {}
    changed: set[str] = set()
    for node in nodes:
        above = tuple(f"after {name}" for name in node.upstream if name in changed)
        own = reasons[node.name]
        found[node.name] = own if own and own[0] == "never run" else own + above
        if above or (own and own != ("always runs",)):
            changed.add(node.name)
    return found


@contextlib.contextmanager
def hold_dvc_lock(root: Path) -> Iterator[None]:
    """Hold DVC's lock of a checkout: no stage of it begins or ends meanwhile."""
    with _open_repo(root) as repo, repo.lock:
        yield


def cache_folder(root: Path) -> Path:
    """The DVC cache of a checkout, absolute."""
    with _open_repo(root) as repo:
        # DVC puts the layout's name below the configured folder
        return Path(repo.cache.local.path).parent.parent


def default_remote(root: Path) -> str | None:
    """The address of the DVC remote that is configured as the default one, if any."""
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
    stage: Any, *, upstream: tuple[str, ...], downstream_depth: int, device: str
) -> StageNode:
    meta = stage.meta or {}
    pool, timeout = meta.get("pool"), meta.get("timeout_s")
    if (
        pool not in POOL_NAMES
        or not isinstance(timeout, int | float)
        or set(meta) != {"pool", "timeout_s"}
    ):
        raise GraphError(
            f"dvc.yaml: {stage.name}: meta is {dict(meta)}; give {{pool: {' | '.join(POOL_NAMES)}, timeout_s: a number}}"
        )
    return StageNode(
        stage.name,
        stage.cmd,
        upstream,
        device if pool == DEVICE_POOL else pool,
        float(timeout),
        stage.always_changed,
        downstream_depth,
    )


def _topological_order(upstream: Mapping[str, tuple[str, ...]]) -> list[str]:
    order: list[str] = []
    left = sorted(upstream, key=lambda name: name != FIRST_STAGE)  # dvc.yaml's order otherwise
    while left:
        ready = [name for name in left if set(upstream[name]) <= set(order)]
        assert ready, "DVC refuses cycles"
        order += ready
        left = [name for name in left if name not in ready]
    return order


def _stale_reasons(stage: Any) -> Iterator[str]:
    if stage.always_changed:
        yield "always runs"
        return
    if not any(out.hash_info for out in stage.outs):
        yield "never run"
        return
    # DVC names the stage and its files from the folder this process is in, which need not be the repository's
    names = {str(item): item.def_path for item in (*stage.deps, *stage.outs)}
    for entry in (entry for entries in stage.status().values() for entry in entries):
        if entry == "changed command":
            yield "command changed"
            continue
        assert isinstance(entry, dict), entry
        for path, state in entry.get("changed deps", {}).items():
            if isinstance(state, dict):
                yield from (f"param {key} {what}" for key, what in _changed_parameters(stage))
            else:
                yield f"input {names[path]} {state}"
        for path, state in entry.get("changed outs", {}).items():
            yield f"output {names[path]} {state}"


def _changed_parameters(stage: Any) -> Iterator[tuple[str, str]]:
    for dependency in stage.params:
        before, now = dependency.hash_info.value or {}, dependency.read_params()
        for key in dependency.params:
            yield from _differences(key, before.get(key), now.get(key))


def _differences(key: str, before: Any, now: Any) -> Iterator[tuple[str, str]]:
    if isinstance(before, Mapping) and isinstance(now, Mapping):
        for name in sorted(
            {*before, *now}, key=lambda key: (str(key), type(key).__name__)
        ):  # 0 and "0" may both be there
            yield from _differences(f"{key}.{name}", before.get(name), now.get(name))
    elif _tuple_to_list(before) != _tuple_to_list(now):
        yield key, f"{before} -> {now}"


def _tuple_to_list(value: Any) -> Any:
    return list(value) if isinstance(value, tuple) else value


def _full_message(error: BaseException) -> str:
    """DVC's message on one line, with what it was raised from."""
    cause = f": {error.__cause__}" if error.__cause__ else ""
    return " ".join(f"{error}{cause}".split())


def _format_reasons(reasons: tuple[str, ...]) -> str:
    """The reasons for a reader: long values by their beginning, and of many stages above, the first and how many. `--json` has all."""
    own = [
        reason if len(reason) <= MAX_REASON_CHARACTERS else f"{reason[:MAX_REASON_CHARACTERS]} ..."
        for reason in reasons
        if not reason.startswith("after ")
    ]
    above = [reason for reason in reasons if reason.startswith("after ")]
    shown = (
        above if len(above) <= MAX_UPSTREAM_LISTED else [f"{above[0]} and {len(above) - 1} others"]
    )
    return "; ".join(own + shown)


def print_plan(nodes: list[StageNode], stale: Mapping[str, tuple[str, ...]]) -> None:
    """Print what would run and why: a table on a terminal, one line a stage elsewhere."""
    console = Console()
    if not console.is_terminal:
        for node in nodes:
            print(
                f"{'run' if stale[node.name] else 'fresh':5} {node.name} [{node.pool}] {_format_reasons(stale[node.name])}".rstrip()
            )
    else:
        table = Table("stage", "pool", "", "why", box=None, pad_edge=False)
        for node in nodes:
            table.add_row(
                node.name,
                node.pool,
                "run" if stale[node.name] else "fresh",
                _format_reasons(stale[node.name]),
            )
        console.print(table)
    print(
        f"{sum(map(bool, stale.values()))} of {len(nodes)} stages would run; {FIRST_STAGE} runs first and may find changed code or data"
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
    if as_json:
        print(
            json.dumps(
                [
                    {**asdict(node), "runs": bool(stale[node.name]), "reasons": stale[node.name]}
                    for node in nodes
                ],
                indent=1,
            )
        )
    else:
        print_plan(nodes, stale)


if __name__ == "__main__":
    app()
