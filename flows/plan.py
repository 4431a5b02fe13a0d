"""Read dvc.yaml into typed stages, and find out which would run and why.

Only this file, repository.py and lock_file.py use DVC's Python interface. DVC makes no promise
about it: tests/test_flows.py checks what is used of it here.
"""

import contextlib
import json
import logging
import re
import shutil
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from configobj import ConfigObj
from dvc.config import Config
from dvc.data_cloud import Remote
from dvc.exceptions import DvcException
from dvc.lock import LockError
from dvc.repo import Repo
from dvc.stage import PipelineStage
from rich.console import Console
from rich.table import Table

from lineage.config.records import read_yaml
from lineage.errors import InputError

DEVICE_POOL = "device"  # in meta: the gpu pool if params.yaml says cuda, and else the cpu pool
POOL_NAMES = ("local", "cpu", "gpu", DEVICE_POOL)
MAX_REASON_CHARACTERS = 160  # of one reason that are printed
MAX_UPSTREAM_LISTED = 3  # stages whose run is a reason are all named if there are no more
FIRST_STAGE = "sources"  # reads the user's files, which DVC cannot see: always first
# Settings of remotes that do not travel to workers: secrets, and paths of this machine. Each
# machine has credentials of its own.
OWN_SETTING = re.compile(
    "password|passphrase|secret|token|ticket|connection_string|auth_header|"
    "(access|account|customer|oss)_key|credentialpath|configpath|keyfile"
)
PASSWORD_IN_URL = re.compile(r"(?<=://)([^/@:]*):[^/@]*@")
LOCK_FILE_HINT = (
    "it is damaged: get it back from git, or remove it; without it, `lineage run` takes finished "
    "stages from DVC's cache"
)
NEVER_RUN = "never run"
ALWAYS_RUNS = "always runs"

Reasons = tuple[str, ...]  # why a stage would run; empty if it is fresh

# Its progress bars and messages would stand between our lines.
logging.getLogger("dvc").setLevel(logging.CRITICAL)


# DVC reads the lists of the grid in params.yaml, where a default does not help.
MISSING_LIST_PATTERN = re.compile(r"Could not find 'grid\.(\w+)'")


@dataclass(frozen=True)
class StageNode:
    """One stage of the graph."""

    name: str
    command: str
    upstream: tuple[str, ...]  # the stages whose outputs it reads
    pool: str  # where it runs with --workers
    timeout_seconds: float
    always_changed: bool  # runs every time, whatever has changed
    downstream_depth: int  # stages on the longest path from here to an end of the graph
    upstream_depth: int = 1  # stages on the longest path from a beginning of the graph to here
    outputs: tuple[str, ...] = ()  # paths in the study


class GraphError(InputError):
    """dvc.yaml and params.yaml do not make a graph."""


def read_graph(root: Path) -> list[StageNode]:
    """Return the stages, each after the stages that it depends on. Raises InputError."""
    device_pool = "gpu" if uses_cuda(root) else "cpu"  # read before DVC, which aliases can hold
    with open_repo(root) as repo:
        try:
            graph = repo.index.graph
        except UnicodeDecodeError as error:  # the other files are read before
            raise GraphError(f"{root / 'dvc.lock'}: {error}; {LOCK_FILE_HINT}") from error
        # DVC itself raises the latter two for odd values in params.yaml.
        except (DvcException, TypeError, AssertionError) as error:
            message = full_message(error)
            if "dvc.lock'" in message:
                raise GraphError(f"{message}; {LOCK_FILE_HINT}") from error
            missing = MISSING_LIST_PATTERN.search(message)
            if missing:
                raise GraphError(
                    f"params.yaml: grid.{missing[1]} is missing; add it, such as {missing[1]}: []"
                ) from error
            raise GraphError(
                f"dvc.yaml, with params.yaml and dvc.lock: {message}; "
                "correct the file that it names"
            ) from error
        stages = {stage.name: stage for stage in repo.index.stages if stage.cmd}
        if not stages:
            raise GraphError(f"{root}: DVC finds no stages here; change into the folder of a study")
        upstream = {}
        for name, stage in stages.items():
            upstream[name] = tuple(sorted(other.name for other in graph.successors(stage)))
        upstream_depths = _upstream_depths(upstream)
        downstream_depths = _downstream_depths([*upstream_depths], upstream)
        return [
            _make_node(
                stages[name],
                upstream[name],
                downstream_depth=downstream_depths[name],
                upstream_depth=upstream_depth,
                device_pool=device_pool,
            )
            for name, upstream_depth in upstream_depths.items()
        ]


def in_run_order(ready: Iterable[StageNode]) -> list[StageNode]:
    """Return stages that could begin now in the order in which they are to begin.

    The longest remaining path comes first. Of equal paths, a branch that has begun is finished
    before another is begun.
    """
    return sorted(ready, key=lambda node: (-node.downstream_depth, -node.upstream_depth))


def uses_cuda(root: Path) -> bool:
    """Return whether the stages of a folder compute on a GPU."""
    return bool(read_yaml(root / "params.yaml").get("device") == "cuda")


def read_stale_reasons(root: Path) -> dict[str, Reasons]:
    """Return why each stage would run by itself. Raises InputError if others are at work."""
    try:
        with open_repo(root) as repo, repo.lock:
            return {
                stage.name: tuple(list_stale_reasons(stage))
                for stage in repo.index.stages
                if stage.cmd
            }
    except LockError:
        raise InputError(
            f"{root}: a run or a dvc command is at work in this study; wait for it (`lineage "
            "status` shows how far a run is)"
        ) from None


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


def read_lock_entries(root: Path, stages: Collection[str]) -> dict[str, Any]:
    """Return these stages' entries of dvc.lock."""
    path = root / "dvc.lock"
    entries = read_yaml(path)["stages"] if path.is_file() else {}
    return {name: entries[name] for name in stages if name in entries}


def init_dvc(root: Path) -> None:
    """Make a folder a DVC project without git."""
    Repo.init(str(root), no_scm=True).close()
    with _edit_settings(root, "config") as settings:
        settings["core"] |= {"analytics": False, "check_update": False}


def let_dvc_use_git(root: Path, *, has_git: bool) -> None:
    """Let DVC compare versions if a study is in a git repository; without one DVC must not try."""
    try:
        config = Config(str(root / Repo.DVC_DIR))
    except DvcException as error:
        raise GraphError(f"{root}: {full_message(error)}; correct the file") from error
    if config["core"].get("no_scm", False) == has_git:
        with _edit_settings(root, "config") as settings:
            settings["core"]["no_scm"] = not has_git


def set_cache_folder(root: Path, folder: Path) -> None:
    """Make a folder the DVC cache of a study, which others may share."""
    with _edit_settings(root, "config.local") as settings:
        settings["cache"]["dir"] = str(folder)


@contextlib.contextmanager
def _edit_settings(root: Path, name: str) -> Iterator[dict[str, dict[str, Any]]]:
    """Yield the sections of a file of DVC's settings, and write it when the block has ended.

    DVC itself writes ASCII only, into a file that it has emptied.
    """
    path = (root / Repo.DVC_DIR / name).resolve()
    settings = ConfigObj(str(path), encoding="utf-8")
    sections = defaultdict(dict, settings.dict())
    yield sections
    draft = path.parent / "tmp" / name  # git ignores this folder
    draft.parent.mkdir(exist_ok=True)
    with draft.open("wb") as stream:
        if path.exists():
            shutil.copymode(path, draft)  # before a password is in it
        written = {section: values for section, values in sections.items() if values}
        ConfigObj(written, encoding="utf-8").write(stream)
    draft.replace(path)


@dataclass(frozen=True)
class RemoteStore:
    """A DVC remote: its name, and its settings without secrets."""

    name: str
    settings: dict[str, Any]


def read_default_remote(root: Path) -> RemoteStore | None:
    """Return the DVC remote that is configured as the default, or None. Raises InputError."""
    with open_repo(root) as repo:
        name = repo.config["core"].get("remote")
        if not name:
            return None
        if name not in repo.config["remote"]:
            raise InputError(
                f"{root / '.dvc' / 'config'}: the default remote '{name}' is not configured; "
                "run `dvc remote add`"
            )
        own = repo.config["remote"][name]
        settings = {key: value for key, value in own.items() if not OWN_SETTING.search(key)}
        settings["url"] = PASSWORD_IN_URL.sub(r"\1@", settings["url"])
        return RemoteStore(name, settings)


def set_default_remote(root: Path, remote: RemoteStore) -> None:
    """Make this the default remote in the local settings of a study, which git does not see."""
    with _edit_settings(root, "config.local") as settings:
        settings["core"]["remote"] = remote.name
        settings[f'remote "{remote.name}"'] = remote.settings


def drop_default_remote(root: Path, name: str) -> None:
    """Undo `set_default_remote` for this name, so that the user's default counts again."""
    with _edit_settings(root, "config.local") as settings:
        settings.pop(f'remote "{name}"', None)
        if settings["core"].get("remote") == name:
            del settings["core"]["remote"]


@contextlib.contextmanager
def open_remote(root: Path) -> Iterator[Remote]:
    """Yield the default remote: `fs` reads and writes its files, and `path` is its folder."""
    with open_repo(root) as repo:
        yield repo.cloud.get_remote()


def check_remote_access(root: Path) -> None:
    """Raise InputError unless files can be written to the default remote, and removed."""
    remote = read_default_remote(root)
    address = remote.settings["url"] if remote else "none"
    try:
        with open_remote(root) as opened:
            probe = opened.fs.join(opened.path, "lineage-access-check")
            opened.fs.makedirs(opened.path)
            with opened.fs.open(probe, "wb") as stream:
                stream.write(b"lineage")
            opened.fs.remove(probe)
    # Each kind of storage has errors of its own.
    except Exception as error:
        raise InputError(
            f"{address}: the DVC remote cannot be written to: {full_message(error)}; check "
            "its settings (`dvc remote list`) and your access rights"
        ) from error


def read_cache_folder(root: Path) -> Path:
    """Return the folder of DVC's cache, in which files lie by their digest."""
    with open_repo(root) as repo:
        return Path(repo.cache.local.path)


def open_repo(root: Path, *, waits_for_lock: bool = True) -> Repo:
    """Open the DVC repository of a study. Raises GraphError."""
    try:
        return Repo(str(root), _wait_for_lock=waits_for_lock)
    except DvcException as error:
        raise GraphError(
            f"{root}: {full_message(error)}; change into the folder of a study"
        ) from error


def _make_node(
    stage: PipelineStage,
    upstream: tuple[str, ...],
    *,
    downstream_depth: int,
    upstream_depth: int,
    device_pool: str,
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
        upstream_depth=upstream_depth,
        outputs=tuple(output.def_path for output in stage.outs),
    )


def _upstream_depths(upstream: Mapping[str, tuple[str, ...]]) -> dict[str, int]:
    """Return the stages on the longest path to each stage.

    The stages are ordered as in dvc.yaml, but `sources` first and each after its upstream stages.
    """
    depths: dict[str, int] = {}
    left = sorted(upstream, key=lambda name: name != FIRST_STAGE)
    depth = 1
    while left:
        ready = [name for name in left if set(upstream[name]) <= set(depths)]
        assert ready, "DVC refuses cycles"
        depths |= dict.fromkeys(ready, depth)
        left = [name for name in left if name not in ready]
        depth += 1
    return depths


def _downstream_depths(
    order: Sequence[str], upstream: Mapping[str, tuple[str, ...]]
) -> dict[str, int]:
    depths = dict.fromkeys(order, 1)
    for name in reversed(order):
        for above in upstream[name]:
            depths[above] = max(depths[above], depths[name] + 1)
    return depths


def list_stale_reasons(stage: PipelineStage) -> Iterator[str]:
    """Yield why a stage would run by itself. DVC's lock must be held."""
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


def list_changes(before: Mapping[str, Any], now: Mapping[str, Any]) -> Iterator[str]:
    """Yield how a stage's command, inputs and parameters differ between two entries of dvc.lock."""
    if before.get("cmd") != now.get("cmd"):
        yield "command changed"
    inputs = [{item.get("path"): item for item in entry.get("deps", ())} for entry in (before, now)]
    for path in sorted({*inputs[0], *inputs[1]}):
        if inputs[0].get(path) != inputs[1].get(path):
            yield f"input {path} modified"
    values = [_values_by_key(entry.get("params", {})) for entry in (before, now)]
    for key in sorted({*values[0], *values[1]}):
        yield from _differences(key, values[0].get(key), values[1].get(key))


def _values_by_key(params: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """Return the parameters of an entry without the names of their files."""
    return {key: value for values in params.values() for key, value in values.items()}


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


def full_message(error: BaseException) -> str:
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
    table = Table("stage", "", "why", box=None, pad_edge=False)
    for node in nodes:
        state = "run" if stale[node.name] else "fresh"
        why = _format_reasons(stale[node.name])
        if console.is_terminal:
            table.add_row(node.name, state, why)
        else:
            print(f"{state:5} {node.name} {why}".rstrip())
    if console.is_terminal:
        console.print(table)
    num_stale = sum(bool(reasons) for reasons in stale.values())
    print(
        f"{num_stale} of {len(nodes)} stages would run; "
        f"{FIRST_STAGE} runs first and may find changed code or data"
    )


def plan_as_json(nodes: list[StageNode], stale: Mapping[str, Reasons]) -> str:
    """Return the stages as a JSON list, each with `runs` and the reasons."""
    entries: list[dict[str, Any]] = []
    for node in nodes:
        reasons = stale[node.name]
        entries.append({**asdict(node), "runs": bool(reasons), "reasons": reasons})
    return json.dumps(entries, indent=1)
