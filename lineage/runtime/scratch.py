"""Folders that the next command removes if their process is killed."""

import contextlib
import fcntl
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

from lineage.runtime.locks import try_lock

PREFIX = ".lineage-"
LOCK_FILE = "lock"  # locked as long as the folder is in use


@contextlib.contextmanager
def scratch_folder(parent: Path | None = None) -> Iterator[Path]:
    """Yield a new folder, empty apart from its lock file. It is removed after the block.

    It lies in `parent`, by default the system's temporary folder. Those that killed processes left
    there are removed.
    """
    _remove_abandoned_folders(parent or Path(tempfile.gettempdir()))
    with tempfile.TemporaryDirectory(prefix=PREFIX, dir=parent) as name:
        folder = Path(name)
        draft = folder / "draft"
        with draft.open("w") as stream:
            fcntl.flock(stream, fcntl.LOCK_EX)
            draft.rename(folder / LOCK_FILE)  # whoever sees this file sees it locked
            yield folder


def _remove_abandoned_folders(parent: Path) -> None:
    for lock in parent.glob(f"{PREFIX}*/{LOCK_FILE}"):
        # Folders of other users and those that another run removes just now raise errors.
        with contextlib.suppress(OSError), lock.open("r+") as stream:
            if try_lock(stream):
                shutil.rmtree(lock.parent, ignore_errors=True)
