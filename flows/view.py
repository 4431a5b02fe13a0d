"""What the user sees while stages run: on a terminal a live table with each stage's last line, elsewhere one line a stage."""

import re
import time
from pathlib import Path
from types import TracebackType

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from flows.execute import StageResult, log_path

TAIL_BYTES = 2000
DVC_MESSAGES = (
    "Updating lock file",
    "Generating lock file",
    "To track the changes",
    "Use `dvc push`",
)


class ProgressDisplay:
    """Told by the walk when stages start and end. Used as a context."""

    def __init__(self, root: Path, *, num_stages: int) -> None:
        self._root, self._num_stages = root, num_stages
        self._console = Console()
        self._start_times: dict[str, float] = {}
        self._num_ended = 0
        self._live = Live(
            console=self._console, get_renderable=self._table, refresh_per_second=2, transient=True
        )

    def __enter__(self) -> "ProgressDisplay":
        if self._console.is_terminal:
            self._live.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._console.is_terminal:
            self._live.stop()

    def on_stage_begin(self, name: str) -> None:
        self._start_times[name] = time.monotonic()

    def on_stage_end(self, result: StageResult) -> None:
        self._start_times.pop(result.name, None)
        self._num_ended += 1
        if result.outcome == "fresh" and self._console.is_terminal:
            return
        clock = f" {result.seconds:.1f} s" if result.seconds else ""
        self._console.print(
            f"{result.outcome:7} {result.name}{clock}",
            highlight=False,
            markup=False,
            soft_wrap=True,
        )
        if result.message:
            Console(stderr=True).print(
                result.message, highlight=False, markup=False, soft_wrap=True
            )

    def _table(self) -> RenderableType:
        table = Table.grid(padding=(0, 2))
        for name, since in sorted(self._start_times.items()):
            table.add_row(
                Text(name, style="bold"),
                f"{time.monotonic() - since:.0f} s",
                Text(read_last_line(log_path(self._root, name)), overflow="ellipsis", no_wrap=True),
            )
        return Group(table, Text(f"{self._num_ended} of {self._num_stages} stages", style="dim"))


def read_last_line(path: Path) -> str:
    """The last line that a stage has printed, as far as it is written."""
    try:
        with path.open("rb") as stream:
            stream.seek(max(0, path.stat().st_size - TAIL_BYTES))
            lines = re.split(r"[\r\n]+", stream.read().decode(errors="replace").strip())
    except OSError:
        return ""
    return lines[-1]


def read_stage_output(path: Path) -> str:
    """What a stage itself printed: its log without what DVC says before and after."""
    if not path.is_file():
        return ""
    lines = path.read_text(errors="replace").splitlines()
    start = next((i + 1 for i, line in enumerate(lines) if line.startswith("> ")), len(lines))
    end = next(
        (i for i, line in enumerate(lines) if i >= start and line.startswith(DVC_MESSAGES)),
        len(lines),
    )
    return "\n".join(lines[start:end]).strip()
