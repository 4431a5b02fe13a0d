"""Keep on disk what a stage logs until MLflow has it.

A stage appends to a file of its own and never waits for MLflow. `lineage.runtime.sender` reads the
file, while the stage runs or later, and removes it when MLflow has everything. Whoever sends a
journal holds a lock on it; the stage does so from its beginning.
"""

import contextlib
import hashlib
import json
import os
import threading
import time
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

from lineage.runtime.locks import try_lock
from lineage.runtime.provenance import Dataset
from lineage.runtime.settings import STATE_DIR, read_runtime_settings

JOURNAL_DIR = STATE_DIR / "unsent"
SUFFIX = ".jsonl"
POLL_SECONDS = 5.0  # between two looks for new lines
# How long a stage waits for MLflow, all in all. What is not sent by then is sent later.
MAX_WAIT_SECONDS = 5.0
END = "end"  # the last event
# Set where no stage may ask MLflow: the journals go home with the results, and are sent there.
KEEP_VARIABLE = "LINEAGE_KEEP_JOURNALS"

RunStatus = Literal["FINISHED", "FAILED", "KILLED"]
Event = tuple[str, dict[str, Any]]  # the name of a method, and its arguments


def current_ms() -> int:
    """Return the time in ms since 1970, as MLflow takes it."""
    return time.time_ns() // 1_000_000


def store_digest() -> str:
    """Return a digest of the address of the store, without a name and password.

    On a worker, journals of another study may lie in the same folder.
    """
    address = read_runtime_settings().tracking_uri or ""
    return hashlib.sha256(address.rpartition("@")[2].encode()).hexdigest()[:16]


OTHER_VERSION = "another version of lineage has written it"


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
    datasets: list[Dataset]  # that the stage reads
    store: str = field(default_factory=store_digest)
    start_time: int = field(default_factory=current_ms)  # ms since 1970


@dataclass(frozen=True)
class StageEnd:
    """How a stage has ended; the last event of its journal, unless it was killed."""

    status: RunStatus
    failure: str = ""  # the message of an error
    training_failed: bool = False
    time_ms: int | None = None

    @property
    def run_status(self) -> RunStatus:
        """The status of its run: that of a stage that goes on without a trained model is FAILED."""
        return "FAILED" if self.training_failed and self.status == "FINISHED" else self.status


class JournalWriter:
    """The journal of a stage that runs."""

    def __init__(self, run: StageRun) -> None:
        folder = JOURNAL_DIR.absolute()
        folder.mkdir(parents=True, exist_ok=True)
        self.path = folder / f"{time.time_ns()}-{os.getpid()}{SUFFIX}"
        self.is_closed = threading.Event()
        draft = self.path.with_suffix(".draft")
        # Each line is handed to the system at once: a stage that is killed loses none.
        self._stream = draft.open("w", encoding="utf-8", buffering=1)
        assert try_lock(self._stream), "it is new"
        self._stream.write(json.dumps(asdict(run)) + "\n")
        draft.rename(self.path)  # now senders see it, and that it is locked

    def write(self, method: str, arguments: Mapping[str, object]) -> None:
        """Append an event. Raises OSError if the disk is full."""
        self._stream.write(json.dumps([method, arguments]) + "\n")

    def close(self) -> None:
        """Tell the sender that nothing follows."""
        self.is_closed.set()

    def release(self) -> None:
        """Let other processes send the journal, if it is still there."""
        with contextlib.suppress(OSError):
            self._stream.close()


def read_stage_run(path: Path) -> StageRun:
    """Return the facts at the beginning of a journal. Raises JournalError if they are others."""
    with path.open(encoding="utf-8") as stream:
        values = _parse(stream.readline())
    try:
        datasets = [Dataset(**dataset) for dataset in values.pop("datasets")]
        return StageRun(**values, datasets=datasets)
    except (AttributeError, KeyError, TypeError) as error:
        raise JournalError(f"{OTHER_VERSION}: {error}") from error


def _parse(line: str) -> Any:
    try:
        return json.loads(line)
    except ValueError as error:
        raise JournalError(f"the journal is damaged: {error}") from error


def follow(path: Path, is_closed: threading.Event | None = None) -> Iterator[list[Event]]:
    """Yield the events of a journal to its end, each time those that are new.

    With `is_closed`, the stage may still write. A last line that is cut short is left out. Raises
    JournalError for a damaged line.
    """
    with path.open(encoding="utf-8") as stream:
        stream.readline()  # the facts about the run
        rest = ""
        is_complete = False
        while not is_complete:
            is_complete = is_closed is None or is_closed.wait(POLL_SECONDS)
            lines = (rest + stream.read()).split("\n")
            rest = lines.pop()
            yield [_parse(line) for line in lines]


def take_over(path: Path) -> None:
    """Let the journal of another machine wait among those of this study, for its store.

    Raises JournalError if it is damaged.
    """
    run = replace(read_stage_run(path), store=store_digest())
    _, _, events = path.read_text(encoding="utf-8").partition("\n")
    folder = JOURNAL_DIR.absolute()
    folder.mkdir(parents=True, exist_ok=True)
    draft = folder / f"{path.stem}.draft"
    draft.write_text(json.dumps(asdict(run)) + "\n" + events, encoding="utf-8")
    draft.rename(folder / path.name)


def list_waiting() -> list[Path]:
    """Return the journals for this store, the oldest first: MLflow does not have them yet."""
    digest = store_digest()
    found = sorted(JOURNAL_DIR.absolute().glob(f"*{SUFFIX}"))
    return [path for path in found if _is_for_store(path, digest)]


def _is_for_store(path: Path, store: str) -> bool:
    try:
        return read_stage_run(path).store == store
    except FileNotFoundError:  # sent meanwhile
        return False
    except JournalError:  # damaged, or of another version: refused when it is sent
        return True
