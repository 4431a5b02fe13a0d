"""DVC itself (`python -m flows.quick_dvc ARGUMENTS`), but for two functions that take it most of its time where stages are many.

For each stage that has run, DVC reads all of dvc.lock with comments and line breaks, and writes all of it again; and for each stage that it compares
it reads params.yaml anew and walks the whole of it for every key. In a graph of 387 stages that was 14 s a stage and a minute a plan. Here dvc.lock
keeps the text of the stages that did not change, byte by byte what DVC would write, and params.yaml is read once. What is not as these functions
expect it goes to DVC's own; a plain `dvc repro` knows nothing of them.
"""

import copy
import functools
import re
import sys
from collections import UserDict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import dvc.dependency.param
import dvc.dvcfile
from dvc.fs import LocalFileSystem
from dvc.utils.serialize import dumps_yaml, load_yaml, loads_yaml

LOCK_HEADER = "schema: '2.0'\nstages:\n"
STAGE_ENTRIES = re.compile(
    r"(?:  [\w@.-]+:\n(?:    .*\n)+)+"
)  # stages, two spaces in, and what is theirs, four or more
STAGE_ENTRY = re.compile(r"  ([\w@.-]+):\n(?:    .*\n)+")
YAML_ANCHOR = re.compile(r"[:-] [&*]")  # names of nodes hold for the whole file
dvc_modify_yaml, dvc_read_param_file = dvc.dvcfile.modify_yaml, dvc.dependency.param.read_param_file


class LockEntries(UserDict[str, Any]):
    """Stage name -> its entry, which is text until someone asks for it."""

    def __getitem__(self, name: str) -> Any:
        found = self.data[name]
        return loads_yaml(f"stages:\n{found}")["stages"][name] if isinstance(found, str) else found

    def changed_entries(self) -> dict[str, Any]:
        """Those that were set."""
        return {name: entry for name, entry in self.data.items() if not isinstance(entry, str)}

    def to_yaml(self) -> str:
        """All of them, as DVC writes them."""
        return "".join(
            entry if isinstance(entry, str) else _dump_entry(name, entry)
            for name, entry in self.data.items()
        )


@contextmanager
def modify_lock_file(path: str, fs: Any = None) -> Iterator[Any]:
    """`dvc.utils.serialize.modify_yaml`: the file's data, to be changed in the block; whoever is killed leaves the old file or the new one."""
    place, draft = Path(path), Path(path).parent / ".dvc" / "tmp" / "dvc.lock"
    ours = (
        place.name == "dvc.lock"
        and isinstance(fs, LocalFileSystem)
        and place.is_file()
        and not place.is_symlink()
        and draft.parent.is_dir()
    )
    text = place.read_text(encoding="utf-8") if ours else ""
    below = text.removeprefix(LOCK_HEADER)
    if below == text or not STAGE_ENTRIES.fullmatch(below) or YAML_ANCHOR.search(text):
        with dvc_modify_yaml(path, fs=fs) as data:
            yield data
        return
    data = {
        "schema": "2.0",
        "stages": LockEntries({entry[1]: entry[0] for entry in STAGE_ENTRY.finditer(below)}),
    }
    yield data
    text = LOCK_HEADER + data["stages"].to_yaml()
    if data.keys() != {"schema", "stages"} or YAML_ANCHOR.search(text):
        with dvc_modify_yaml(path, fs=fs) as whole:
            whole["stages"].update(data.pop("stages").changed_entries())
            whole.update(data)
        return
    draft.write_text(text, encoding="utf-8")
    draft.replace(place)


def _dump_entry(name: str, entry: Any) -> str:
    return dumps_yaml({"stages": {name: entry}}).removeprefix("stages:\n")


def read_param_keys(
    fs: Any, path: str, key_paths: list[str] | None = None, flatten: bool = False, **options: Any
) -> Any:
    """`dvc.dependency.param.read_param_file`: the values of dotted keys that the file has."""
    if (
        not (key_paths and flatten and isinstance(fs, LocalFileSystem) and path.endswith(".yaml"))
        or options
    ):
        return dvc_read_param_file(fs, path, key_paths, flatten, **options)
    state = Path(path).stat()
    values = _load_yaml_cached(path, state.st_ino, state.st_mtime_ns, state.st_size)
    found = {key: _look_up(values, key.split(".")) for key in key_paths}
    return copy.deepcopy({key: value for key, value in found.items() if value is not _ABSENT})


@functools.lru_cache(maxsize=4)
def _load_yaml_cached(path: str, *state: int) -> Any:
    return load_yaml(path)


_ABSENT = object()


def _look_up(tree: Any, names: list[str]) -> Any:
    for name in names:
        if not isinstance(tree, dict) or name not in tree:
            return _ABSENT
        tree = tree[name]
    return tree


def patch_dvc() -> None:
    """Put them in the place of DVC's own, in this process."""
    places: tuple[tuple[Any, str, Callable[..., Any]], ...] = (
        (dvc.dvcfile, "modify_yaml", modify_lock_file),
        (dvc.dependency.param, "read_param_file", read_param_keys),
    )
    for module, name, function in places:
        setattr(module, name, function)


def main() -> int:
    """DVC's exit code."""
    from dvc.cli import main as command

    patch_dvc()
    return int(command(sys.argv[1:]))


if __name__ == "__main__":
    sys.exit(main())
