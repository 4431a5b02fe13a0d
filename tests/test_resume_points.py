"""The resume state of a stage travels through the DVC remote, and is never needed."""

import os
import tarfile
from collections.abc import Callable
from pathlib import Path

import pytest

from flows import resume_points
from flows.plan import RemoteStore, init_dvc, set_default_remote
from flows.resume_points import REMOTE_FOLDER, ResumePoints
from tests.helpers.toy_project import wait_until

STAGE = "pretrain@gpt-0"
STATE = Path(".lineage") / "resume" / "pretrain-gpt-0" / "key"


def make_worker(folder: Path, remote: Path) -> ResumePoints:
    """Return the resume state of a stage in a scratch study of its own."""
    folder.mkdir()
    init_dvc(folder)
    set_default_remote(folder, RemoteStore("store", {"url": str(remote)}))
    return ResumePoints(folder, STAGE, study="tickets")


def save(worker: ResumePoints, text: str, *, seconds: float = 0.0) -> Path:
    """Write a resume point, as the stage does, at a time after the epoch."""
    path = worker.root / STATE / "step-7" / "model"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    (worker.root / STATE / ".step-8.draft").mkdir(exist_ok=True)
    (worker.root / STATE / ".step-8.draft" / "model").write_text("half")
    if seconds:
        os.utime(path, (seconds, seconds))
    return path


def read(worker: ResumePoints) -> list[tuple[str, str]]:
    """Return the names and texts of the files of the resume state."""
    files = sorted(path for path in worker.folder.rglob("*") if path.is_file())
    return [(path.relative_to(worker.folder).as_posix(), path.read_text()) for path in files]


def test_another_worker_goes_on_from_the_copy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LINEAGE_RESUME_SECONDS", "0.05")
    remote = tmp_path / "remote"
    first = make_worker(tmp_path / "first", remote)
    copy = remote / REMOTE_FOLDER / "tickets-pretrain-gpt-0.tar"
    with first.copy_in_background():
        save(first, "half of the training")
        wait_until(copy.is_file)
    second = make_worker(tmp_path / "second", remote)
    second.restore()
    assert read(second) == [("key/step-7/model", "half of the training")]
    other_study = ResumePoints(second.root, STAGE, study="emails")
    other_study.remove()
    assert copy.is_file(), "studies that share a remote do not share resume state"
    second.remove()
    assert not copy.exists()
    second.remove()


def test_what_is_left_at_the_end_is_copied_too(tmp_path: Path) -> None:
    """A stage that is killed has saved its last resume point just before."""
    remote = tmp_path / "remote"
    first = make_worker(tmp_path / "first", remote)
    with first.copy_in_background():
        save(first, "the last one")
    assert first.is_in_remote
    second = make_worker(tmp_path / "second", remote)
    second.restore()
    assert read(second) == [("key/step-7/model", "the last one")]
    with second.copy_in_background():
        for path in (second.folder / "key" / "step-7").iterdir():
            path.unlink()
    assert not list((remote / REMOTE_FOLDER).glob("*.draft"))


@pytest.mark.parametrize(("seconds", "kept"), [(2e9, "here"), (1e9, "there")])
def test_the_newer_state_is_kept(seconds: float, kept: str, tmp_path: Path) -> None:
    remote = tmp_path / "remote"
    first = make_worker(tmp_path / "first", remote)
    with first.copy_in_background():
        save(first, "there", seconds=1.5e9)
    second = make_worker(tmp_path / "second", remote)
    save(second, "here", seconds=seconds)
    second.restore()
    assert (second.root / STATE / "step-7" / "model").read_text() == kept


def cut_short(copy: Path) -> None:
    copy.write_bytes(copy.read_bytes()[: copy.stat().st_size // 3])


def leave_the_folder(copy: Path) -> None:
    outside = copy.parent / "outside"
    outside.write_text("it must not be written elsewhere")
    with tarfile.open(copy, "w") as archive:
        archive.add(outside, "../../../outside")


@pytest.mark.parametrize("damage", [cut_short, leave_the_folder])
def test_a_damaged_copy_is_not_used(
    damage: Callable[[Path], None], tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    remote = tmp_path / "remote"
    first = make_worker(tmp_path / "first", remote)
    with first.copy_in_background():
        save(first, "there" * 9999)
    damage(remote / REMOTE_FOLDER / first.name)
    second = make_worker(tmp_path / "second", remote)
    second.restore()
    assert read(second) == []
    assert "its resume state was not fetched" in capfd.readouterr().err
    assert [path.name for path in (second.root / ".lineage").iterdir()] == []
    assert not list(tmp_path.glob("second/**/outside"))


def test_a_remote_that_does_not_answer_costs_a_line(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    remote = tmp_path / "remote"
    remote.write_text("a file where a folder should be")
    worker = make_worker(tmp_path / "worker", remote)
    worker.restore()
    with worker.copy_in_background():
        save(worker, "nowhere")
    worker.remove()
    lines = capfd.readouterr().err.splitlines()
    assert lines and all(line.endswith("; the stage goes on") for line in lines)


def test_state_that_changes_while_it_is_packed_is_packed_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    worker = make_worker(tmp_path / "worker", tmp_path / "remote")
    path = save(worker, "old")
    real_listing = resume_points.list_files
    calls = []

    def list_and_change(folder: Path) -> resume_points.Listing:
        found = real_listing(folder)
        calls.append(folder)
        if len(calls) == 1:  # the stage writes a resume point just after the old one was listed
            path.rename(path.with_name("newer"))
            save(worker, "new one")
        return found

    monkeypatch.setattr(resume_points, "list_files", list_and_change)
    monkeypatch.setattr(resume_points, "PACK_WAIT_SECONDS", 0.0)
    packed = tmp_path / "packed.tar"
    resume_points._pack(worker.folder, packed)
    with tarfile.open(packed) as archive:
        assert sorted(archive.getnames()) == ["key/step-7/model", "key/step-7/newer"]
        stream = archive.extractfile("key/step-7/model")
        assert stream is not None and stream.read() == b"new one"
