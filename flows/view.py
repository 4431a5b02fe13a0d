"""Show progress while stages run, and afterwards or from elsewhere how far a run is.

Every step is also kept in `.lineage/run.json`, which `lineage status` reads.
"""

import contextlib
import json
import re
import threading
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from datetime import datetime
from pathlib import Path

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from flows.execute import LAST_STAGE, StageResult, log_path
from flows.scheduler import ProgressCallback
from flows.study import is_running, run_lock_path
from lineage.config.records import parse_record
from lineage.errors import InputError
from lineage.runtime.settings import METADATA_DIR, STATE_DIR

RUN_RECORD = STATE_DIR / "run.json"
RUNNING = "running"  # the outcome of a stage that has begun
TAIL_BYTES = 2000  # of a log, in which its last line is looked for


@dataclass(frozen=True)
class RunRecord:
    """How far a run is: what `lineage status` reads."""

    begun: float  # in seconds since 1970
    num_stages: int
    outcomes: dict[str, str]  # by stage
    messages: dict[str, str]  # by stage


class ProgressDisplay(ProgressCallback):
    """Shows stages on the console."""

    def __init__(self, root: Path, *, num_stages: int) -> None:
        self._root = root
        self._num_ended = 0
        self._start_times: dict[str, float] = {}
        self._record_path = root / RUN_RECORD
        self._record = RunRecord(time.time(), num_stages, outcomes={}, messages={})
        self._record_lock = threading.Lock()  # stages begin in threads of their own
        self._console = Console()
        self._live = Live(
            console=self._console, get_renderable=self._table, refresh_per_second=2, transient=True
        )

    @contextlib.contextmanager
    def show(self) -> Iterator[None]:
        """Show the table on a terminal while the block lasts."""
        with self._live if self._console.is_terminal else contextlib.nullcontext():
            yield

    def on_stage_begin(self, name: str) -> None:
        self._start_times[name] = time.monotonic()
        self._save_outcome(name, RUNNING)

    def on_stage_end(self, result: StageResult) -> None:
        self._start_times.pop(result.name, None)
        self._num_ended += 1
        self._save_outcome(result.name, result.outcome, result.message)
        if result.outcome == "fresh" and self._console.is_terminal:
            return
        clock = f" {result.seconds:.1f} s" if result.seconds else ""
        _print_plain(self._console, f"{result.outcome:7} {result.name}{clock}")
        if result.message:
            _print_plain(Console(stderr=True), result.message)

    def on_damage(self, message: str) -> None:
        _print_plain(Console(stderr=True), message)

    def on_interrupt(self) -> None:
        _print_plain(Console(stderr=True), "stopping; the running stages save a checkpoint first")

    def _save_outcome(self, name: str, outcome: str, message: str = "") -> None:
        with self._record_lock:
            self._record.outcomes[name] = outcome
            if message:
                self._record.messages[name] = message
            draft = self._record_path.with_suffix(".tmp")
            draft.write_text(json.dumps(asdict(self._record)))
            draft.replace(self._record_path)

    def _table(self) -> RenderableType:
        table = Table.grid(padding=(0, 2))
        for name, start_time in sorted(self._start_times.items()):
            last_line = read_last_line(log_path(self._root, name)).removeprefix(name).strip()
            table.add_row(
                Text(name, style="bold"),
                f"{time.monotonic() - start_time:.0f} s",
                Text(last_line, overflow="ellipsis", no_wrap=True),
            )
        return Group(
            table, Text(f"{self._num_ended} of {self._record.num_stages} stages", style="dim")
        )


def _print_plain(console: Console, text: str) -> None:
    console.print(text, highlight=False, markup=False, soft_wrap=True)


def read_last_line(path: Path) -> str:
    """Return the last line that a stage has printed so far."""
    try:
        with path.open("rb") as stream:
            stream.seek(max(0, path.stat().st_size - TAIL_BYTES))
            text = stream.read().decode(errors="replace")
    except OSError:
        return ""
    return re.split(r"[\r\n]+", text.strip())[-1]


def _read_run_record(path: Path) -> RunRecord:
    """Read the record of a run. Raises InputError if it is damaged."""
    try:
        return parse_record(RunRecord, json.loads(path.read_bytes()), path.name)
    except ValueError as error:
        raise InputError(
            f"{path}: it is damaged ({error}); remove it, and the next `lineage run` writes it again"
        ) from None


def print_status(root: Path) -> None:
    """Print how far the last run of a study is, and where its report is. Raises InputError."""
    path = root / RUN_RECORD
    run_is_alive = is_running(root)
    # The run that holds the study's lock may not have written its record yet.
    begun_at = run_lock_path(root).stat().st_mtime if run_is_alive else 0.0
    if run_is_alive and not (path.is_file() and path.stat().st_mtime >= begun_at):
        print("a run has just begun")
        return
    if not path.is_file():
        raise InputError(f"{root}: nothing has run here yet; `lineage run` starts a run")
    record = _read_run_record(path)
    outcomes = record.outcomes
    begun = datetime.fromtimestamp(record.begun)
    state = "is under way" if run_is_alive else "has ended"
    if not run_is_alive and RUNNING in outcomes.values():
        state = "was stopped; `lineage run` goes on with it"
        outcomes = {
            name: "stopped" if outcome == RUNNING else outcome for name, outcome in outcomes.items()
        }
    print(f"the run that began at {begun:%Y-%m-%d %H:%M} {state}")
    metadata = root / METADATA_DIR / f"{LAST_STAGE}.json"  # written when it has ended well
    if not run_is_alive and metadata.is_file() and metadata.stat().st_mtime > path.stat().st_mtime:
        print("since then `dvc repro` has finished the study")
        _print_report(root)
        return
    counts = Counter(outcomes.values())
    num_left = record.num_stages - len(outcomes)
    parts = [f"{count} {outcome}" for outcome, count in sorted(counts.items())]
    print(f"stages: {', '.join([*parts, f'{num_left} left'])}")
    for name, outcome in outcomes.items():
        if outcome == RUNNING:
            line = read_last_line(log_path(root, name)).removeprefix(name)
            print(f"  running: {name} {line.strip()}".rstrip())
    for message in record.messages.values():
        print(f"  {message}")
    _print_report(root)


def _print_report(root: Path) -> None:
    page = root / "reports" / "comparison.html"
    if page.is_file():
        written = datetime.fromtimestamp(page.stat().st_mtime)
        print(f"report: {page.absolute()} of {written:%Y-%m-%d %H:%M}")
        if changed := describe_changed_params(root):
            print(changed)


def describe_changed_params(root: Path) -> str:
    """Say that params.yaml is not the one that the report rests on; empty if it is."""
    reported = root / "reports" / "evidence" / "params.yaml"
    own = root / "params.yaml"
    if not (reported.is_file() and own.is_file()) or reported.read_bytes() == own.read_bytes():
        return ""
    return "params.yaml has changed since this report; `lineage plan` says what would run"
