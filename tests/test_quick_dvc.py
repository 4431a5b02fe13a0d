"""DVC's own functions beside the quick ones: the same bytes of dvc.lock, the same values of params.yaml."""

import copy
import dataclasses
import os
from pathlib import Path
from typing import Any

import dvc.dependency.param
import dvc.dvcfile
import pytest
from dvc.fs import LocalFileSystem
from dvc.utils.serialize import dumps_yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from flows import plan, quick_dvc

FS = LocalFileSystem()
# as parameters are; of others, such as 2.787774648836121e+16, DVC writes another last digit each time that another stage has run
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
class Place:
    """A folder with a dvc.lock, and where DVC keeps what is no file of the user's."""

    root: Path

    @property
    def lock(self) -> Path:
        return self.root / "dvc.lock"

    def write(self, text: str, changes: dict[str, Any], *, quick: bool) -> str:
        """The text of dvc.lock after the stages' entries were changed, as DVC does it, from `text`."""
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
def place(tmp_path: Path) -> Place:
    (tmp_path / ".dvc/tmp").mkdir(parents=True)
    return Place(tmp_path)


@given(before=ENTRIES, changes=ENTRIES)
@settings(max_examples=30, deadline=None)
def test_dvc_lock_has_the_bytes_that_dvc_writes(
    tmp_path_factory: pytest.TempPathFactory, before: dict[str, Any], changes: dict[str, Any]
) -> None:
    place = Place(tmp_path_factory.mktemp("lock"))
    (place.root / ".dvc/tmp").mkdir(parents=True)
    text = dumps_yaml({"schema": "2.0", "stages": before})
    assert place.write(text, changes, quick=True) == place.write(text, changes, quick=False)


def test_the_stages_that_did_not_change_are_neither_read_nor_written(
    place: Place, monkeypatch: pytest.MonkeyPatch
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
    whole = place.write(text, {"two": {"cmd": "y"}}, quick=False)
    written: list[Any] = []
    monkeypatch.setattr(
        quick_dvc, "dumps_yaml", lambda tree: written.append(tree) or dumps_yaml(tree)
    )
    monkeypatch.setattr(quick_dvc, "dvc_modify_yaml", None)
    assert place.write(text, {"two": {"cmd": "y"}}, quick=True) == whole
    assert written == [{"stages": {"two": {"cmd": "y"}}}]
    assert not any((place.root / ".dvc/tmp").iterdir())


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
def test_a_dvc_lock_of_another_form_is_dvcs_own_affair(place: Place, text: str) -> None:
    changes = {
        "new": {"cmd": "y", "params": {"a": [1, 2.5, None]}},
        "one": {"cmd": "z"},
        "two": {"cmd": "z"},
    }
    assert place.write(text, changes, quick=True) == place.write(text, changes, quick=False)


def test_what_shares_a_node_or_is_no_stage_is_written_by_dvc(place: Place) -> None:
    """Two entries that each name a node would name two so; and a data set's entry stands beside the stages."""
    text, shared = (
        dumps_yaml({"schema": "2.0", "stages": {"old": {"cmd": "x"}}}),
        {"learning_rate": 1.5},
    )
    both = {name: {"cmd": "y", "params": {"a": shared, "b": shared}} for name in ("one", "two")}
    assert place.write(text, both, quick=True) == place.write(text, both, quick=False)
    written = []
    for modify in (quick_dvc.modify_lock_file, quick_dvc.dvc_modify_yaml):
        place.lock.write_text(text, encoding="utf-8")
        with modify(str(place.lock), fs=FS) as data:
            data.setdefault("datasets", []).append({"name": "d"})
            data["stages"]["new"] = {"cmd": "z"}
        written.append(place.lock.read_text())
    assert (
        written[0] == written[1]
        and "datasets:\n- name: d\n" in written[0]
        and "  new:\n" in written[0]
    )


def test_a_link_to_a_dvc_lock_stays_one(place: Place) -> None:
    place.lock.symlink_to(place.root / "kept.lock")
    place.write(
        dumps_yaml({"schema": "2.0", "stages": {"one": {"cmd": "x"}}}),
        {"one": {"cmd": "y"}},
        quick=True,
    )
    assert place.lock.is_symlink() and "cmd: y" in (place.root / "kept.lock").read_text()


def test_whoever_is_killed_while_writing_leaves_the_old_file(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = dumps_yaml({"schema": "2.0", "stages": {"one": {"cmd": "x"}}})

    def killed(self: Path, target: Path) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(Path, "replace", killed)
    with pytest.raises(KeyboardInterrupt):
        place.write(text, {"one": {"cmd": "y"}}, quick=True)
    assert place.lock.read_text() == text


def test_what_two_keys_share_is_shared_as_by_dvc(tmp_path: Path) -> None:
    path = tmp_path / "params.yaml"
    path.write_text("base: &b {rate: 1}\na: *b\n")
    first, second = (
        read(FS, str(path), ["base", "a"], flatten=True)
        for read in (quick_dvc.read_param_keys, quick_dvc.dvc_read_param_file)
    )
    assert dumps_yaml(first) == dumps_yaml(second) and "&id001" in dumps_yaml(first)


KEYS = [
    "seed",
    "models.a.train",
    "models.a.train.betas",
    "models.b",
    "none",
    "models.a.train.learning_rate.x",
    "grid.label_counts.0",
]


def test_parameters_are_those_that_dvc_reads_and_a_changed_file_is_read_again(
    tmp_path: Path,
) -> None:
    path = tmp_path / "params.yaml"
    path.write_text(
        "seed: 7\nnone:\nmodels: {a: {train: {learning_rate: 1.0e-8, betas: [0.9, 0.98]}}}\ngrid: {label_counts: [100, all]}\n"
    )
    expected = quick_dvc.dvc_read_param_file(FS, str(path), KEYS[:-1], flatten=True)
    found = quick_dvc.read_param_keys(FS, str(path), KEYS[:-1], flatten=True)
    assert found == expected and set(expected) == {
        "seed",
        "models.a.train",
        "models.a.train.betas",
        "none",
    }
    found["models.a.train"]["learning_rate"] = 3
    assert quick_dvc.read_param_keys(FS, str(path), KEYS[:-1], flatten=True) == expected, (
        "what was given out is a copy"
    )
    os.replace(path, tmp_path / "old.yaml")
    path.write_text("seed: 8\n")
    assert quick_dvc.read_param_keys(FS, str(path), KEYS, flatten=True) == {"seed": 8}
    assert quick_dvc.read_param_keys(FS, str(path), ["seed"]) == {
        "seed": 8
    } and quick_dvc.read_param_keys(FS, str(path)) == {"seed": 8}


def test_they_stand_in_the_place_of_dvcs_own_here_and_in_its_own_process() -> None:
    assert plan.quick_dvc is quick_dvc
    assert (
        dvc.dvcfile.modify_yaml is quick_dvc.modify_lock_file
        and dvc.dependency.param.read_param_file is quick_dvc.read_param_keys
    )
