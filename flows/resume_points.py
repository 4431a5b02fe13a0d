"""Carry the resume state of a stage from worker to worker, through the DVC remote.

While the stage runs, its folder is copied to the remote every few minutes, as one file. This only
saves work: whatever fails here, the stage goes on without it.
"""

import contextlib
import os
import shutil
import sys
import tarfile
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from flows.execute import stage_file_name
from flows.plan import open_remote
from flows.processes import repeat_in_background
from lineage.runtime.settings import STATE_DIR

SAVE_VARIABLE = "LINEAGE_RESUME_SECONDS"
SAVE_SECONDS = 180.0  # between two copies, unless the variable says otherwise
REMOTE_FOLDER = "lineage-resume"  # in the remote, next to DVC's own files
PACK_ATTEMPTS = 5  # a stage may write a resume point, and delete an old one, while they are packed
PACK_WAIT_SECONDS = 1.0

Listing = dict[str, tuple[int, int]]  # the time in nanoseconds and the bytes of each file


class ResumePoints:
    """The resume state of one stage: here, in a study or scratch study, and in its remote."""

    def __init__(self, root: Path, stage: str, *, study: str) -> None:
        """`study` is the name of the study at home: others may use the same remote."""
        self.root = root
        self.folder = root / STATE_DIR / "resume" / stage_file_name(stage)
        self.name = f"{study}-{stage_file_name(stage)}.tar"
        self.is_in_remote = False  # as far as this worker has seen

    def restore(self) -> None:
        """Take the state from the remote, if there is any and it is newer than what is here."""
        with (
            _continue_after_errors("its resume state was not fetched"),
            self._scratch_folder() as scratch,
            open_remote(self.root) as remote,
        ):
            address = remote.fs.join(remote.path, REMOTE_FOLDER, self.name)
            if not remote.fs.exists(address):
                return
            self.is_in_remote = True
            remote.fs.get_file(address, str(scratch / "packed.tar"))
            unpacked = scratch / "unpacked"
            with tarfile.open(scratch / "packed.tar") as archive:
                archive.extractall(unpacked, filter="data")
            if _newest_time(list_files(unpacked)) > _newest_time(list_files(self.folder)):
                shutil.rmtree(self.folder, ignore_errors=True)
                self.folder.parent.mkdir(parents=True, exist_ok=True)
                unpacked.rename(self.folder)

    @contextlib.contextmanager
    def copy_in_background(self) -> Iterator[None]:
        """Copy new state to the remote every few minutes, and when the block ends."""
        seconds = float(os.environ.get(SAVE_VARIABLE, SAVE_SECONDS))
        copied = list_files(self.folder)

        def copy_if_new() -> None:
            nonlocal copied
            found = list_files(self.folder)  # empty once the stage has ended well
            if found and found != copied:
                with _continue_after_errors("its resume state was not copied"):
                    self._copy()
                    copied = found

        with repeat_in_background(copy_if_new, seconds):
            yield

    def remove(self) -> None:
        """Remove the state from the remote, once the stage has ended well."""
        with (
            _continue_after_errors("its resume state was not removed from the DVC remote"),
            open_remote(self.root) as remote,
        ):
            address = remote.fs.join(remote.path, REMOTE_FOLDER, self.name)
            if remote.fs.exists(address):
                remote.fs.remove(address)

    def _copy(self) -> None:
        with self._scratch_folder() as scratch, open_remote(self.root) as remote:
            packed = scratch / "packed.tar"
            _pack(self.folder, packed)
            remote.fs.makedirs(remote.fs.join(remote.path, REMOTE_FOLDER))
            address = remote.fs.join(remote.path, REMOTE_FOLDER, self.name)
            remote.fs.put_file(str(packed), address)
            self.is_in_remote = True

    @contextlib.contextmanager
    def _scratch_folder(self) -> Iterator[Path]:
        """Yield a folder on the same disk as the state. It can be moved into place from there."""
        home = self.root / STATE_DIR
        home.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix="resume-", dir=home) as name:
            yield Path(name)


def list_files(folder: Path) -> Listing:
    """Return the files below a folder that are written completely."""
    found: Listing = {}
    for path in sorted(folder.rglob("*")):
        name = path.relative_to(folder)
        is_draft = any(part.startswith(".") for part in name.parts)
        with contextlib.suppress(FileNotFoundError):  # deleted meanwhile
            if path.is_file() and not is_draft:
                status = path.stat()
                found[name.as_posix()] = (status.st_mtime_ns, status.st_size)
    return found


def _newest_time(files: Listing) -> int:
    return max((nanoseconds for nanoseconds, _ in files.values()), default=0)


def _pack(folder: Path, packed: Path) -> None:
    """Write the files of a folder as one. Raises OSError if they do not stay the same meanwhile."""
    for _ in range(PACK_ATTEMPTS):
        before = list_files(folder)
        with contextlib.suppress(FileNotFoundError):
            with tarfile.open(packed, "w") as archive:
                for name in before:
                    archive.add(folder / name, name)
            if list_files(folder) == before:
                return
        time.sleep(PACK_WAIT_SECONDS)
    raise OSError(f"{folder}: changed each time that it was read")


@contextlib.contextmanager
def _continue_after_errors(what: str) -> Iterator[None]:
    try:
        yield
    # Each kind of storage has errors of its own, and none of them may end the stage.
    except Exception as error:
        print(f"{what} ({type(error).__name__}: {error}); the stage goes on", file=sys.stderr)
