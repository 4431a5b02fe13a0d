"""Keep on disk what a stage logs until MLflow has it.

A stage appends to a file of its own and never waits for MLflow. `lineage.runtime.sender` reads the
file, while the stage runs or later, and removes it when MLflow has everything. The stage holds a
lock on its file for as long as it lives.
"""

import contextlib
import fcntl
import hashlib
import json
import os
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from lineage.runtime.provenance import Dataset
from lineage.runtime.settings import STATE_DIR, read_runtime_settings

JOURNAL_DIR = STATE_DIR / "unsent"
SUFFIX = ".jsonl"
POLL_SECONDS = 0.1  # between two looks for new lines
END = "end"  # the last event
# How long a stage waits for MLflow, all in all. What is not sent by then is sent later.
MAX_WAIT_SECONDS = 5.0

Event = tuple[str, dict[str, Any]]  # the name of a method, and its arguments


def current_ms() -> int:
    """Return the time in ms since 1970, as MLflow takes it."""
    return time.time_ns() // 1_000_000


class JournalError(Exception):
    """A journal that cannot be read: damaged, or written by another version."""


@dataclass(frozen=True)
class StageRun:
    """The facts that MLflow has about a stage's run from its beginning."""

    stage: str
    pipeline: str
    parameters: dict[str, str]
    tags: dict[str, str]
    common_tags: dict[str, str]  # that the parent run has too
    datasets: list[dict[str, str]]
    store: str  # a digest of the store's address
    start_time: int = field(default_factory=current_ms)  # ms since 1970

    def list_datasets(self) -> list[Dataset]:
        """Return the data sets that the stage reads."""
        return [Dataset(**values) for values in self.datasets]


def describe_stage_run(
    stage: str,
    pipeline: str,
    *,
    parameters: Mapping[str, str],
    tags: Mapping[str, str],
    common_tags: Mapping[str, str],
    datasets: Sequence[Dataset],
) -> StageRun:
    """Return the facts about a run that begins now."""
    return StageRun(
        stage,
        pipeline,
        dict(parameters),
        dict(tags),
        dict(common_tags),
        [asdict(dataset) for dataset in datasets],
        store_digest(),
    )


def store_digest() -> str:
    """Return a digest of the address of the store, without a name and password.

    On a worker, journals of another study may lie in the same folder.
    """
    address = read_runtime_settings().tracking_uri or ""
    return hashlib.sha256(address.rpartition("@")[2].encode()).hexdigest()[:16]


class JournalWriter:
    """The journal of a stage that runs. A full disk ends it, and not the stage."""

    def __init__(self, run: StageRun) -> None:
        folder = JOURNAL_DIR.absolute()
        folder.mkdir(parents=True, exist_ok=True)
        self.path = folder / f"{time.time_ns()}-{os.getpid()}{SUFFIX}"
        draft = self.path.with_suffix(".draft")
        # Each line is handed to the system at once: a stage that is killed loses none.
        self._stream = draft.open("w", encoding="utf-8", buffering=1)
        fcntl.flock(self._stream, fcntl.LOCK_EX)
        self._stream.write(json.dumps(asdict(run)) + "\n")
        draft.rename(self.path)  # now senders see it, and that it is locked

    def write(self, method: str, **arguments: object) -> None:
        """Append an event. Raises OSError if the disk is full."""
        self._stream.write(json.dumps([method, arguments]) + "\n")

    def close(self) -> None:
        """Release the lock: nothing follows."""
        with contextlib.suppress(OSError):
            self._stream.close()


def read_stage_run(path: Path) -> StageRun:
    """Return the facts at the beginning of a journal. Raises JournalError if they are others."""
    with path.open(encoding="utf-8") as stream:
        line = stream.readline()
    try:
        return StageRun(**_parse(line))
    except TypeError as error:
        raise JournalError(f"another version of lineage has written it: {error}") from error


def _parse(line: str) -> Any:
    try:
        return json.loads(line)
    except ValueError as error:
        raise JournalError(f"the journal is damaged: {error}") from error


def follow(path: Path) -> Iterator[Event]:
    """Yield the events of a journal, also those that are still being written, to its end.

    The end is the event `end`, or the death of the stage. Raises JournalError for a damaged line.
    """
    with path.open(encoding="utf-8") as stream:
        stream.readline()  # the facts about the run
        line = ""
        while True:
            is_written = has_writer(path)  # first: what it has written is read afterwards
            for part in stream:
                line += part
                if not line.endswith("\n"):
                    break
                method, arguments = _parse(line)
                line = ""
                yield method, arguments
                if method == END:
                    return
            if not is_written:
                return
            time.sleep(POLL_SECONDS)


def has_writer(path: Path) -> bool:
    """Return whether the stage that writes a journal is alive."""
    with path.open("rb") as stream:
        try:
            fcntl.flock(stream, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
    return False


def wait_for_end(path: Path, seconds: float) -> bool:
    """Wait for so long, or until nobody writes a journal any more; return whether that is so."""
    deadline = time.monotonic() + seconds
    while has_writer(path):
        if time.monotonic() > deadline:
            return False
        time.sleep(POLL_SECONDS)
    return True


def list_waiting() -> list[Path]:
    """Return the journals for this store that nobody writes any more, the oldest first."""
    found = sorted(JOURNAL_DIR.absolute().glob(f"*{SUFFIX}"))
    digest = store_digest()
    return [path for path in found if _is_waiting(path, digest)]


def _is_waiting(path: Path, store: str) -> bool:
    try:
        return not has_writer(path) and read_stage_run(path).store == store
    except FileNotFoundError:  # sent meanwhile
        return False
    except JournalError:  # damaged, or of another version: refused when it is sent
        return True


@contextlib.contextmanager
def claim(path: Path) -> Iterator["Claim | None"]:
    """Yield the only claim to send a journal, or None if another process sends it or has sent it.

    The file of the claim keeps the id of the run from one attempt to the next.
    """
    claim_path = path.with_suffix(".claim")
    with claim_path.open("a+", encoding="utf-8") as stream:
        try:
            fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            yield None
            return
        if path.is_file():
            yield Claim(path, claim_path)
        else:
            yield None
        if not path.is_file():
            claim_path.unlink(missing_ok=True)


@dataclass(frozen=True)
class Claim:
    """The right to send a journal, and to remove it."""

    path: Path
    claim_path: Path

    def read_run_id(self) -> str:
        """Return the id of the run in MLflow that an earlier attempt has noted, if any."""
        return self.claim_path.read_text(encoding="utf-8").strip()

    def note_run_id(self, run_id: str) -> None:
        """Note the id of the run in MLflow."""
        self.claim_path.write_text(run_id, encoding="utf-8")

    def remove(self) -> None:
        """Remove the journal: MLflow has everything."""
        self.path.unlink()

    def reject(self) -> None:
        """Keep the journal under another name: MLflow refuses what it holds."""
        self.path.rename(self.path.with_suffix(".rejected"))
