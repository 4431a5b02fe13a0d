"""The replacements of DVC functions give the same dvc.lock bytes and params.yaml values.

Studies that share a cache see each other's files when they are complete.
"""

import contextlib
import copy
import dataclasses
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import dvc.dependency.param
import dvc.dvcfile
import pytest
from dvc.exceptions import DvcException
from dvc.fs import LocalFileSystem
from dvc.repo import Repo
from dvc.stage.cache import _get_stage_hash
from dvc.utils.serialize import dumps_yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from flows import plan, quick_dvc

FS = LocalFileSystem()
# Numbers as parameters have them. For others, such as 2.787774648836121e+16, DVC itself changes
# the last digit each time that another stage runs.
NUMBERS = st.integers(-(10**6), 10**6).map(lambda n: n / 1000) | st.sampled_from(
    [1e-08, 3e20, 1e-12]
)
SCALARS = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    NUMBERS,
    st.sampled_from(["", "a: b", "# c", "1e-08", "null", " x ", "q" * 200, "w " * 90]),
)
VALUES = st.recursive(
    SCALARS,
    lambda below: (
        st.lists(below, max_size=3) | st.dictionaries(st.sampled_from("abcd"), below, max_size=3)
    ),
    max_leaves=8,
)
ENTRIES = st.dictionaries(
    st.sampled_from(["sources", "evaluate@elmo-0-sense", "pretrain@b_1-0", "task@x.y"]),
    st.fixed_dictionaries({"cmd": st.sampled_from(["python -m stages.x a", "two\nlines", "long " * 40]), "params": VALUES}),
    min_size=1,
)  # fmt: skip


@dataclasses.dataclass
class LockFolder:
    """A folder with a dvc.lock and the internal files of DVC."""

    root: Path

    @property
    def lock(self) -> Path:
        return self.root / "dvc.lock"

    def write(self, text: str, changes: dict[str, Any], *, quick: bool) -> str:
        """Write `text`, change stage entries as DVC does, and return the new text of dvc.lock."""
        self.lock.write_text(text, encoding="utf-8")
        modify = quick_dvc.modify_lock_file if quick else quick_dvc.dvc_modify_yaml
        with modify(str(self.lock), fs=FS) as data:
            if not data:
                data.update({"schema": "2.0"})
            data["stages"] = data.get("stages", {})
            for name, entry in changes.items():
                assert data["stages"].get(name, {}) == data["stages"].get(name, {})
                data["stages"].update({name: copy.deepcopy(entry)})
        return self.lock.read_text(encoding="utf-8")


@pytest.fixture
def lock_folder(tmp_path: Path) -> LockFolder:
    (tmp_path / ".dvc/tmp").mkdir(parents=True)
    return LockFolder(tmp_path)


@given(before=ENTRIES, changes=ENTRIES)
@settings(max_examples=30, deadline=None)
def test_dvc_lock_has_the_bytes_that_dvc_writes(
    tmp_path_factory: pytest.TempPathFactory, before: dict[str, Any], changes: dict[str, Any]
) -> None:
    folder = LockFolder(tmp_path_factory.mktemp("lock"))
    (folder.root / ".dvc/tmp").mkdir(parents=True)
    text = dumps_yaml({"schema": "2.0", "stages": before})
    assert folder.write(text, changes, quick=True) == folder.write(text, changes, quick=False)


def test_unchanged_stages_are_neither_parsed_nor_written(
    lock_folder: LockFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = dumps_yaml(
        {
            "schema": "2.0",
            "stages": {
                name: {"cmd": "x", "params": {"learning_rate": 1e-08, "none": None}}
                for name in ("one", "two", "three")
            },
        }
    )
    expected = lock_folder.write(text, {"two": {"cmd": "y"}}, quick=False)
    written: list[Any] = []
    monkeypatch.setattr(
        quick_dvc, "dumps_yaml", lambda tree: written.append(tree) or dumps_yaml(tree)
    )
    monkeypatch.setattr(quick_dvc, "dvc_modify_yaml", None)
    assert lock_folder.write(text, {"two": {"cmd": "y"}}, quick=True) == expected
    assert written == [{"stages": {"two": {"cmd": "y"}}}]
    assert not any((lock_folder.root / ".dvc/tmp").iterdir())


@given(entries=ENTRIES)
@settings(max_examples=30, deadline=None)
def test_dvc_lock_has_the_entries_that_dvc_reads(
    tmp_path_factory: pytest.TempPathFactory, entries: dict[str, Any]
) -> None:
    repo = Repo.init(str(tmp_path_factory.mktemp("lock")), no_scm=True)
    path = Path(repo.root_dir) / "dvc.lock"
    for entry in entries.values():
        entry["params"] = {"params.yaml": {"key": entry["params"]}}  # DVC refuses other forms
    path.write_text(dumps_yaml({"schema": "2.0", "stages": entries}), encoding="utf-8")
    lock_file = dvc.dvcfile.Lockfile(repo, str(path))
    read = quick_dvc.load_lock_file(lock_file)
    assert isinstance(read["stages"], quick_dvc.LockEntries)
    assert {**read, "stages": dict(read["stages"])} == quick_dvc.dvc_load_lock_file(lock_file)


@pytest.mark.parametrize(
    "text",
    ["", "schema: '2.0'\nstages:\n  one: {cmd: x}\n", "schema: '2.0'\nstages:\n<<<<<<< HEAD\n"],
)
def test_a_dvc_lock_in_another_form_is_read_by_dvc(tmp_path: Path, text: str) -> None:
    repo = Repo.init(str(tmp_path), no_scm=True)
    lock_file = dvc.dvcfile.Lockfile(repo, str(tmp_path / "dvc.lock"))
    assert quick_dvc.load_lock_file(lock_file) == {}, "there is none"
    (tmp_path / "dvc.lock").write_text(text)

    def read(load: Callable[[Any], Any]) -> Any:
        try:
            return load(lock_file)
        except DvcException as error:
            return repr(error)

    assert read(quick_dvc.load_lock_file) == read(quick_dvc.dvc_load_lock_file)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "schema: '2.0'\nstages: {}\n",
        "schema: '2.0'\nstages:\n  one: {cmd: x}\n",
        "schema: '2.0'\n# by hand\nstages:\n  one:\n    cmd: x\n",
        "schema: '2.0'\nstages:\n  one:\n    cmd: x\ndatasets:\n- name: d\n",
        "schema: '2.0'\nstages:\n  one:\n    cmd: &a x\n  two:\n    cmd: *a\n",
        "schema: '2.0'\nstages:\n  'one':\n    cmd: x\n",
    ],
)
def test_a_dvc_lock_in_another_form_is_written_by_dvc(lock_folder: LockFolder, text: str) -> None:
    changes = {
        "new": {"cmd": "y", "params": {"a": [1, 2.5, None]}},
        "one": {"cmd": "z"},
        "two": {"cmd": "z"},
    }
    assert lock_folder.write(text, changes, quick=True) == lock_folder.write(
        text, changes, quick=False
    )


def test_shared_yaml_nodes_and_entries_outside_stages_are_written_by_dvc(
    lock_folder: LockFolder,
) -> None:
    """Written separately, two entries could give two nodes the same anchor name.

    The entry of a data set stands next to the stages, not among them.
    """
    text = dumps_yaml({"schema": "2.0", "stages": {"old": {"cmd": "x"}}})
    shared = {"learning_rate": 1.5}
    both = {name: {"cmd": "y", "params": {"a": shared, "b": shared}} for name in ("one", "two")}
    assert lock_folder.write(text, both, quick=True) == lock_folder.write(text, both, quick=False)
    written = []
    for modify in (quick_dvc.modify_lock_file, quick_dvc.dvc_modify_yaml):
        lock_folder.lock.write_text(text, encoding="utf-8")
        with modify(str(lock_folder.lock), fs=FS) as data:
            data.setdefault("datasets", []).append({"name": "d"})
            data["stages"]["new"] = {"cmd": "z"}
        written.append(lock_folder.lock.read_text())
    assert written[0] == written[1]
    assert "datasets:\n- name: d\n" in written[0]
    assert "  new:\n" in written[0]


def test_dvc_lock_is_flushed_before_it_gets_its_name(
    lock_folder: LockFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A power cut leaves the old file or the new one."""
    flushed = []
    monkeypatch.setattr(os, "fsync", lambda number: flushed.append(os.fstat(number)))
    text = dumps_yaml({"schema": "2.0", "stages": {"one": {"cmd": "x"}}})
    lock_folder.write(text, {"one": {"cmd": "y"}}, quick=True)
    state = lock_folder.lock.stat()
    assert [(one.st_ino, one.st_size) for one in flushed] == [(state.st_ino, state.st_size)]


def test_a_symlink_to_a_dvc_lock_stays_a_symlink(lock_folder: LockFolder) -> None:
    lock_folder.lock.symlink_to(lock_folder.root / "kept.lock")
    lock_folder.write(
        dumps_yaml({"schema": "2.0", "stages": {"one": {"cmd": "x"}}}),
        {"one": {"cmd": "y"}},
        quick=True,
    )
    assert lock_folder.lock.is_symlink()
    assert "cmd: y" in (lock_folder.root / "kept.lock").read_text()


def test_an_interrupted_write_leaves_the_old_file(
    lock_folder: LockFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = dumps_yaml({"schema": "2.0", "stages": {"one": {"cmd": "x"}}})

    def interrupt(self: Path, target: Path) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(Path, "replace", interrupt)
    with pytest.raises(KeyboardInterrupt):
        lock_folder.write(text, {"one": {"cmd": "y"}}, quick=True)
    assert lock_folder.lock.read_text() == text


def test_a_value_shared_by_two_keys_stays_shared_as_in_dvc(tmp_path: Path) -> None:
    path = tmp_path / "params.yaml"
    path.write_text("base: &b {rate: 1}\na: *b\n")
    quick, original = (
        read(FS, str(path), ["base", "a"], flatten=True)
        for read in (quick_dvc.read_param_keys, quick_dvc.dvc_read_param_file)
    )
    assert dumps_yaml(quick) == dumps_yaml(original) and "&id001" in dumps_yaml(quick)


KEYS = [
    "seed",
    "models.a.train",
    "models.a.train.betas",
    "models.b",
    "none",
    "models.a.train.learning_rate.x",
    "grid.label_counts.0",
]


def test_parameters_equal_those_that_dvc_reads_also_after_the_file_changed(
    tmp_path: Path,
) -> None:
    path = tmp_path / "params.yaml"
    path.write_text(
        "seed: 7\nnone:\nmodels: {a: {train: {learning_rate: 1.0e-8, betas: [0.9, 0.98]}}}\ngrid: {label_counts: [100, all]}\n"
    )
    expected = quick_dvc.dvc_read_param_file(FS, str(path), KEYS[:-1], flatten=True)
    actual = quick_dvc.read_param_keys(FS, str(path), KEYS[:-1], flatten=True)
    assert actual == expected
    assert set(expected) == {
        "seed",
        "models.a.train",
        "models.a.train.betas",
        "none",
    }
    actual["models.a.train"]["learning_rate"] = 3
    assert quick_dvc.read_param_keys(FS, str(path), KEYS[:-1], flatten=True) == expected, (
        "callers get a copy"
    )
    os.replace(path, tmp_path / "old.yaml")
    path.write_text("seed: 8\n")
    assert quick_dvc.read_param_keys(FS, str(path), KEYS, flatten=True) == {"seed": 8}
    assert quick_dvc.read_param_keys(FS, str(path), ["seed"]) == {"seed": 8}
    assert quick_dvc.read_param_keys(FS, str(path)) == {"seed": 8}


def test_importing_the_plan_replaces_the_functions_of_dvc() -> None:
    assert plan.quick_dvc is quick_dvc
    assert dvc.dvcfile.modify_yaml is quick_dvc.modify_lock_file
    assert dvc.dependency.param.read_param_file is quick_dvc.read_param_keys


def test_a_file_in_the_cache_stays_when_another_study_stores_it_too(tmp_path: Path) -> None:
    """DVC tries to clone it first, which most file systems cannot."""
    output = tmp_path / "output"
    cached = tmp_path / "cached"
    for path in (output, cached):
        path.write_text("the same bytes")
    with contextlib.suppress(OSError):
        FS.fs.reflink(str(output), str(cached))
    assert cached.read_text() == "the same bytes"
    assert {path.name for path in tmp_path.iterdir()} == {"output", "cached"}


def test_a_run_that_another_study_is_just_storing_is_left_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("dvc.yaml").write_text("stages: {copy: {cmd: cp in out, deps: [in], outs: [out]}}")
    for name in ("in", "out"):
        Path(name).write_text(name)
    with Repo.init(no_scm=True) as repo, repo.lock:
        (stage,) = repo.stage.collect("copy")
        stage.save_deps()
        folder = Path(repo.stage_cache._get_cache_dir(_get_stage_hash(stage)))
        folder.mkdir(parents=True)
        assert repo.stage_cache._load(stage) is None
        draft = folder / ".a-draft.tmp"
        draft.write_text("")
        assert repo.stage_cache._load(stage) is None
        stage.save_outs()
        stage.commit()
        repo.stage_cache.save(stage)
        draft.write_text("cmd: cp")
        assert repo.stage_cache._load(stage)["cmd"] == "cp in out"
        assert draft.is_file()
