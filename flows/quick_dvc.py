"""Run DVC with six of its functions replaced: `python -m flows.quick_dvc ARGUMENTS`.

Three are replaced for speed. For each stage, DVC parses the whole of dvc.lock. If the stage has
run, it parses the file again, with comments and line breaks, and writes it again. For each stage
that it compares, it reads params.yaml again and walks through it once for every key. In a graph of
387 stages that took 14 s a stage and a minute a plan. Here only the entries that are needed are
parsed, dvc.lock keeps the text of the stages that did not change, byte for byte as DVC would write
it, and params.yaml is read once. Anything that these functions do not expect is left to DVC's own.

Two are replaced so that studies can share a cache at the same time: DVC shows other processes files
that are not complete. One is replaced since DVC's own empties its settings if a path in them has
letters beyond ASCII. A plain `dvc repro` does without any of the six.
"""

import copy
import functools
import logging
import os
import re
import shutil
import sys
from collections import UserDict
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import dvc.config
import dvc.dependency.param
import dvc.dvcfile
import dvc.fs
import dvc.stage.cache
from configobj import ConfigObj
from dvc.fs import LocalFileSystem
from dvc.stage.cache import StageCache
from dvc.utils.serialize import dumps_yaml, load_yaml, parse_yaml

LOCK_HEADER = "schema: '2.0'\nstages:\n"
# A stage's name is indented by two spaces, and its lines by four or more.
STAGE_ENTRIES = re.compile(r"(?:  [\w@.-]+:\n(?:    .*\n)+)+")
STAGE_ENTRY = re.compile(r"  ([\w@.-]+):\n(?:    .*\n)+")
YAML_ANCHOR = re.compile(r"[:-] [&*]")  # names of nodes are valid in the whole file
dvc_load_lock_file = dvc.dvcfile.Lockfile.load
dvc_modify_yaml = dvc.dvcfile.modify_yaml
dvc_read_param_file = dvc.dependency.param.read_param_file
dvc_reflink = dvc.fs.system.reflink
DRAFT_SUFFIX = ".tmp"  # of files that DVC has not completed
_ABSENT = object()

# DVC's own functions have no types: what they take and return is a tree of plain values.
Yaml = Any


class LockEntries(UserDict[str, Yaml]):
    """The entries of dvc.lock by stage. An entry is text until someone asks for it."""

    def __getitem__(self, name: str) -> Yaml:
        entry = self.data[name]
        if isinstance(entry, str):
            return parse_yaml(f"stages:\n{entry}", "dvc.lock")["stages"][name]  # errors name it
        return entry

    def changed_entries(self) -> dict[str, Yaml]:
        """Return the entries that were set."""
        return {name: entry for name, entry in self.data.items() if not isinstance(entry, str)}

    def to_yaml(self) -> str:
        """Return all entries as DVC writes them."""
        texts = []
        for name, entry in self.data.items():
            texts.append(entry if isinstance(entry, str) else _dump_entry(name, entry))
        return "".join(texts)


def _dump_entry(name: str, entry: Yaml) -> str:
    return dumps_yaml({"stages": {name: entry}}).removeprefix("stages:\n")


@contextmanager
def modify_lock_file(path: str, fs: object = None) -> Iterator[Yaml]:
    """Yield the file's data, to be changed in the block, as `dvc.utils.serialize.modify_yaml` does.

    A process that is killed leaves the old file or the new one.
    """
    lock = Path(path)
    draft = lock.parent / ".dvc" / "tmp" / "dvc.lock"
    entries = _read_lock_entries(lock, fs) if draft.parent.is_dir() else None
    if entries is None:
        with dvc_modify_yaml(path, fs=fs) as data:
            yield data
        return
    data = {"schema": "2.0", "stages": entries}
    yield data
    text = LOCK_HEADER + data["stages"].to_yaml()
    if data.keys() != {"schema", "stages"} or YAML_ANCHOR.search(text):
        with dvc_modify_yaml(path, fs=fs) as whole:
            whole["stages"].update(data.pop("stages").changed_entries())
            whole.update(data)
        return
    with draft.open("w", encoding="utf-8") as stream:
        stream.write(text)
        stream.flush()
        os.fsync(stream.fileno())  # a power cut could leave an empty file
    draft.replace(lock)


def _read_lock_entries(lock: Path, fs: object) -> LockEntries | None:
    """Return the entries of dvc.lock as text, or None if it does not look as DVC writes it."""
    if lock.name != "dvc.lock" or not isinstance(fs, LocalFileSystem):
        return None
    if not lock.is_file() or lock.is_symlink():
        return None
    text = lock.read_text(encoding="utf-8")
    body = text.removeprefix(LOCK_HEADER)
    if body == text or not STAGE_ENTRIES.fullmatch(body) or YAML_ANCHOR.search(text):
        return None
    return LockEntries({entry[1]: entry[0] for entry in STAGE_ENTRY.finditer(body)})


def load_lock_file(lock_file: Yaml, **options: object) -> Yaml:
    """Return the data of dvc.lock, as `Lockfile.load` does. Entries are parsed when asked for."""
    entries = None
    if not options:
        lock_file._check_gitignored()
        entries = _read_lock_entries(Path(lock_file.path), lock_file.repo.fs)
    if entries is None:
        return dvc_load_lock_file(lock_file, **options)
    return {"schema": "2.0", "stages": entries}


def read_param_keys(
    fs: object,
    path: str,
    key_paths: list[str] | None = None,
    flatten: bool = False,
    **options: object,
) -> Yaml:
    """Return the values of a file's dotted keys, as `read_param_file` of DVC does."""
    is_local_yaml = isinstance(fs, LocalFileSystem) and path.endswith(".yaml")
    if not (key_paths and flatten and is_local_yaml) or options:
        return dvc_read_param_file(fs, path, key_paths, flatten, **options)
    state = Path(path).stat()
    tree = _load_yaml_cached(path, state.st_ino, state.st_mtime_ns, state.st_size)
    values = {}
    for key in key_paths:
        value = _look_up(tree, key.split("."))
        if value is not _ABSENT:
            values[key] = value
    return copy.deepcopy(values)


@functools.lru_cache(maxsize=4)
def _load_yaml_cached(path: str, *state: int) -> Yaml:
    return load_yaml(path)


def _look_up(tree: Yaml, names: list[str]) -> Yaml:
    for name in names:
        if not isinstance(tree, dict) or name not in tree:
            return _ABSENT
        tree = tree[name]
    return tree


def clone_file(source: str, target: str) -> None:
    """Clone a file, as `reflink` of DVC does, and let the clone appear when it is complete.

    DVC's own empties the target, and removes it where the file system has no clones. Another study
    would lose a file that it has just stored in the same cache.
    """
    draft = dvc.fs.utils.tmp_fname(target)
    dvc_reflink(source, draft)
    os.replace(draft, target)


def load_cached_run(cache: StageCache, stage: Yaml) -> Yaml:
    """Return the newest run of a stage with these inputs, or None, as `StageCache._load` does.

    DVC's own also reads drafts that another study is writing, and removes them as corrupted.
    """
    key = dvc.stage.cache._get_stage_hash(stage)
    folder = Path(cache._get_cache_dir(key))
    runs = [path for path in folder.glob("*") if path.suffix != DRAFT_SUFFIX]
    if not runs:
        return None
    newest = max(runs, key=lambda path: path.stat().st_mtime)
    return cache._load_cache(key, newest.name)


def save_config(config: dvc.config.Config, level: str, settings: Yaml) -> None:
    """Write a file of DVC's settings, as `Config._save_config` does, but in UTF-8 and at once.

    DVC's own writes ASCII only, into a file that it has emptied: passwords in it were lost.
    """
    path = Path(config.files[level]).resolve()
    draft = path.parent / "tmp" / path.name  # git ignores this folder
    draft.parent.mkdir(exist_ok=True)
    with draft.open("wb") as stream:
        if path.exists():
            shutil.copymode(path, draft)  # before a password is in it
        ConfigObj(dvc.config._pack_named(settings), encoding="utf-8").write(stream)
    draft.replace(path)


def patch_dvc() -> None:
    """Replace DVC's own functions in this process."""
    # setattr, since mypy refuses the assignment to a module's function.
    dvc.dvcfile.Lockfile.load = load_lock_file
    dvc.dvcfile.modify_yaml = modify_lock_file
    dvc.dependency.param.read_param_file = read_param_keys
    dvc.fs.system.reflink = clone_file
    StageCache._load = load_cached_run
    dvc.config.Config._save_config = save_config
    # Its progress bars would stand between our lines, and locks that a stopped run has left are
    # handled.
    logging.getLogger("dvc.progress").setLevel(logging.CRITICAL)
    logging.getLogger("dvc.rwlock").setLevel(logging.ERROR)


def main() -> int:
    """Run DVC and return its exit code."""
    # Imported here: flows.plan needs the functions above and not DVC's command line.
    from dvc.cli import main as run_command

    patch_dvc()
    return int(run_command(sys.argv[1:]))


if __name__ == "__main__":
    sys.exit(main())
