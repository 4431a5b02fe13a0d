"""An open repository keeps results as DVC does: the same dvc.lock, cache and records of runs.

Studies that share a cache see each other's files when they are complete.
"""

import contextlib
import copy
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import pytest
from dvc.fs import LocalFileSystem
from dvc.utils.serialize import dumps_yaml, modify_yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from flows import repository
from flows.lock_file import write_lock_entry
from flows.plan import init_dvc, set_cache_folder
from flows.repository import RepositoryError, StoppedError, StudyRepository

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


def write_as_dvc(root: Path, text: str, name: str, entry: Any) -> str:
    """Let DVC change an entry of this dvc.lock, and return the new text."""
    path = root / "dvc.lock"
    path.write_text(text, encoding="utf-8")
    with modify_yaml(str(path), fs=FS) as data:
        data["stages"].update({name: copy.deepcopy(entry)})
    return path.read_text(encoding="utf-8")


def write_as_we_do(root: Path, text: str, name: str, entry: Any) -> str:
    path = root / "dvc.lock"
    path.write_text(text, encoding="utf-8")
    assert write_lock_entry(root, name, entry)
    return path.read_text(encoding="utf-8")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / ".dvc/tmp").mkdir(parents=True)
    return tmp_path


@given(before=ENTRIES, changes=ENTRIES)
@settings(max_examples=30, deadline=None)
def test_dvc_lock_has_the_bytes_that_dvc_writes(
    tmp_path_factory: pytest.TempPathFactory, before: dict[str, Any], changes: dict[str, Any]
) -> None:
    root = tmp_path_factory.mktemp("lock")
    (root / ".dvc/tmp").mkdir(parents=True)
    text = dumps_yaml({"schema": "2.0", "stages": before})
    for name, entry in changes.items():
        expected = write_as_dvc(root, text, name, entry)
        assert write_as_we_do(root, text, name, entry) == expected
        text = expected


def test_the_first_entry_begins_the_file(folder: Path) -> None:
    assert write_lock_entry(folder, "one", {"cmd": "x"})
    expected = dumps_yaml({"schema": "2.0", "stages": {"one": {"cmd": "x"}}})
    assert (folder / "dvc.lock").read_text() == expected


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
def test_a_dvc_lock_in_another_form_is_left_to_dvc(folder: Path, text: str) -> None:
    (folder / "dvc.lock").write_text(text)
    assert not write_lock_entry(folder, "new", {"cmd": "y"})
    assert (folder / "dvc.lock").read_text() == text


def test_nodes_that_an_entry_shares_are_left_to_dvc(folder: Path) -> None:
    """Written separately, two entries could give two nodes the same anchor name."""
    shared = {"learning_rate": 1.5}
    assert not write_lock_entry(folder, "one", {"cmd": "y", "params": {"a": shared, "b": shared}})
    assert not (folder / "dvc.lock").exists()


def test_dvc_lock_is_flushed_before_it_gets_its_name(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A power cut leaves the old file or the new one."""
    flushed = []
    monkeypatch.setattr(os, "fsync", lambda number: flushed.append(os.fstat(number)))
    assert write_lock_entry(folder, "one", {"cmd": "y"})
    state = (folder / "dvc.lock").stat()
    assert [(one.st_ino, one.st_size) for one in flushed] == [(state.st_ino, state.st_size)]


def test_a_symlink_to_a_dvc_lock_is_left_to_dvc(folder: Path) -> None:
    (folder / "dvc.lock").symlink_to(folder / "kept.lock")
    assert not write_lock_entry(folder, "one", {"cmd": "y"})


def test_an_interrupted_write_leaves_the_old_file(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert write_lock_entry(folder, "one", {"cmd": "x"})
    text = (folder / "dvc.lock").read_text()

    def interrupt(self: Path, target: Path) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(Path, "replace", interrupt)
    with pytest.raises(KeyboardInterrupt):
        write_lock_entry(folder, "one", {"cmd": "y"})
    assert (folder / "dvc.lock").read_text() == text


STAGES = """
stages:
  copy: {cmd: mkdir out && cp in out/file, deps: [in], params: [a.b], outs: [out]}
  count: {cmd: mkdir -p lines && touch lines/one && wc -c out/file > size, deps: [out], outs: [size, lines/one]}
  show: {cmd: cat size, deps: [size], always_changed: true}
"""


def make_study(root: Path, cache: Path | None = None) -> Path:
    """Create a study of three stages whose commands the tests run themselves."""
    root.mkdir(parents=True)
    init_dvc(root)
    if cache is not None:
        set_cache_folder(root, cache)
    (root / "dvc.yaml").write_text(STAGES)
    (root / "params.yaml").write_text("a: {b: 1.0e-8, c: 2}\n")
    (root / "in").write_text("some bytes")
    return root


def open_study(root: Path) -> StudyRepository:
    return StudyRepository(root, threading.Event())


def run_all(root: Path) -> list[str]:
    """Bring all stages up to date, and return how each did."""
    opened = open_study(root)
    outcomes = []
    for name in ("copy", "count", "show"):
        outcome = opened.take_known_result(name) or "ran"
        if outcome == "ran":
            command = opened.command_of(name)
            subprocess.run(command, shell=True, cwd=root, check=True, capture_output=True)
            opened.keep_result(name)
        outcomes.append(outcome)
    return outcomes


def list_files(root: Path) -> dict[str, str]:
    """Return the contents of dvc.lock, the outputs, and what the cache keeps."""
    paths = [root / "dvc.lock", root / "size", *root.glob("out/*"), *root.glob(".dvc/cache/**/*")]
    return {
        path.relative_to(root).as_posix(): f"{path.stat().st_mode:o} {path.read_text()}"
        for path in paths
        if path.is_file() and path.name != repository.CACHE_LOCK
    }


def test_a_study_is_kept_as_dvc_repro_keeps_it(tmp_path: Path) -> None:
    """The same dvc.lock, outputs, files of the cache and records of runs."""
    ours, dvcs = make_study(tmp_path / "ours"), make_study(tmp_path / "dvcs")
    assert run_all(ours) == ["ran", "ran", "ran"]
    subprocess.run([sys.executable, "-m", "dvc", "repro", "-q"], cwd=dvcs, check=True)
    assert list_files(ours) == list_files(dvcs)
    answer = subprocess.run(
        [sys.executable, "-m", "dvc", "status"], cwd=ours, capture_output=True, text=True
    )
    assert "copy" not in answer.stdout and "count" not in answer.stdout
    assert run_all(ours) == ["fresh", "fresh", "ran"]


def test_what_was_computed_once_comes_from_the_cache(tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    first = make_study(tmp_path / "first", cache)
    assert run_all(first) == ["ran", "ran", "ran"]
    assert run_all(make_study(tmp_path / "second", cache)) == ["cached", "cached", "ran"]
    (first / "in").write_text("others")
    assert run_all(first) == ["ran", "ran", "ran"]
    (first / "in").write_text("some bytes")
    assert run_all(first) == ["cached", "cached", "ran"]
    assert (first / "out" / "file").read_text() == "some bytes"


def test_a_stage_that_was_begun_and_not_kept_is_begun_again(tmp_path: Path) -> None:
    """Its object holds the new inputs by then, and still the old outputs."""
    study = make_study(tmp_path / "study")
    run_all(study)
    (study / "in").write_text("others")
    opened = open_study(study)
    for _ in range(3):
        assert opened.take_known_result("copy") == ""
        assert not (study / "out").exists()
    assert run_all(study) == ["ran", "ran", "ran"]


def test_a_folder_of_records_that_a_kill_left_empty_is_no_obstacle(tmp_path: Path) -> None:
    study = make_study(tmp_path / "study")
    run_all(study)
    for record in (study / ".dvc/cache/runs").glob("*/*/*"):
        record.unlink()
    (study / "dvc.lock").unlink()
    assert run_all(study) == ["ran", "ran", "ran"]


def test_two_studies_can_store_the_same_results_in_one_cache_at_once(tmp_path: Path) -> None:
    """DVC's clones and drafts in the cache are seen by nobody else."""
    cache = tmp_path / "cache"
    studies = [make_study(tmp_path / str(number), cache) for number in range(4)]
    with ProcessPoolExecutor(len(studies), mp_context=get_context("spawn")) as pool:
        outcomes = [*pool.map(run_all, studies)]
    assert all(one[2] == "ran" for one in outcomes)
    assert run_all(make_study(tmp_path / "last", cache)) == ["cached", "cached", "ran"]


@contextlib.contextmanager
def held_lock(study: Path, name: str) -> Iterator[None]:
    """Let another process hold DVC's lock of a study, or ours of its cache."""
    code = (
        "import sys, zc.lockfile, fcntl, time\n"
        "stream = open(sys.argv[1], 'a')\n"
        "fcntl.flock(stream, fcntl.LOCK_EX)\n"
        "print('held', flush=True)\n"
        "sys.stdin.read()\n"
    )
    path = {"dvc": study / ".dvc/tmp/lock", "cache": study / ".dvc/cache" / repository.CACHE_LOCK}
    path[name].parent.mkdir(parents=True, exist_ok=True)
    child = subprocess.Popen(
        [sys.executable, "-c", code, path[name]], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    child.stdout.readline()
    yield
    child.stdin.close()
    child.wait()
    child.stdout.close()


@pytest.mark.parametrize("name", ["dvc", "cache"])
def test_a_lock_that_another_process_holds_is_waited_for_until_the_run_is_stopped(
    name: str, tmp_path: Path
) -> None:
    study = make_study(tmp_path / "study")
    stop_event = threading.Event()
    opened = StudyRepository(study, stop_event)
    with ThreadPoolExecutor() as pool:
        with held_lock(study, name):
            waiting = pool.submit(opened.take_known_result, "copy")
            with pytest.raises(TimeoutError):
                waiting.result(1.5)
        assert waiting.result(10) == ""
        with held_lock(study, name):
            waiting = pool.submit(opened.take_known_result, "copy")
            stop_event.set()
            with pytest.raises(StoppedError):
                waiting.result(10)


def test_dvc_refuses_to_touch_the_files_of_a_stage_that_runs(tmp_path: Path) -> None:
    study = make_study(tmp_path / "study")
    opened = open_study(study)
    assert opened.take_known_result("copy") == ""
    with opened.reserve("copy"):
        answer = subprocess.run(
            [sys.executable, "-m", "dvc", "repro", "-s", "copy"],
            cwd=study,
            capture_output=True,
            text=True,
        )
    assert answer.returncode == 255 and "lineage run: copy" in answer.stderr
    assert not (study / "out").exists()


def test_what_dvc_cannot_do_is_one_sentence(tmp_path: Path) -> None:
    study = make_study(tmp_path / "study")
    opened = open_study(study)
    with pytest.raises(RepositoryError, match="output 'out' does not exist"):
        opened.keep_result("copy")
    (study / "in").unlink()
    with pytest.raises(RepositoryError, match="study/in'"):
        opened.take_known_result("copy")


def test_a_dvc_lock_that_dvc_did_not_write_is_kept_by_dvc(tmp_path: Path) -> None:
    study = make_study(tmp_path / "study")
    run_all(study)
    lock = study / "dvc.lock"
    lock.write_text(f"# by hand\n{lock.read_text()}")
    (study / "in").write_text("other")
    assert run_all(study) == ["ran", "ran", "ran"]
    assert lock.read_text().startswith("# by hand\n")
    assert run_all(study) == ["fresh", "fresh", "ran"]
