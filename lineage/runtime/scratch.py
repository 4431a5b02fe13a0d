"""Folders in the system's temporary folder that a later run removes if their process is killed."""

import contextlib
import fcntl
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

PREFIX = "lineage-"
LOCK_FILE = "lock"  # locked as long as the folder is in use


@contextlib.contextmanager
def scratch_folder() -> Iterator[Path]:
    """Yield a new empty folder, apart from its lock file. It is removed after the block."""
    with tempfile.TemporaryDirectory(prefix=PREFIX) as name:
        folder = Path(name)
        draft = folder / "draft"
        with draft.open("w") as stream:
            fcntl.flock(stream, fcntl.LOCK_EX)
            draft.rename(folder / LOCK_FILE)  # whoever sees this file sees it locked
            yield folder


def remove_abandoned_folders() -> None:
    """Remove the folders of `scratch_folder` whose processes were killed."""
    for lock in Path(tempfile.gettempdir()).glob(f"{PREFIX}*/{LOCK_FILE}"):
        # Folders of other users and those that another run removes just now raise errors.
        with contextlib.suppress(OSError), lock.open("r+") as stream:
            fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
            shutil.rmtree(lock.parent, ignore_errors=True)
