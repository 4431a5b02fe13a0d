"""Damage a file as a failing disk does: one bit changes, and neither its size, time nor mode."""

import os
import stat
from pathlib import Path


def flip_bit(path: Path) -> None:
    """Change one bit in the middle of a file."""
    before = path.stat()
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.chmod(0o644)
    with path.open("r+b") as stream:
        stream.write(content)
    path.chmod(stat.S_IMODE(before.st_mode))
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))


def cache_copy(root: Path, digest: str) -> Path:
    """Return the file of this MD5 in the DVC cache of a study."""
    return root / ".dvc/cache/files/md5" / digest[:2] / digest[2:]
