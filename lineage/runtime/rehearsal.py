"""A rehearsal: the stages of a scratch study, run by `lineage check` to see how long they take.

A file in the scratch folder, and nothing else, makes a study a rehearsal.
"""

from collections.abc import Callable
from pathlib import Path

from lineage.artifacts import read_json, write_json
from lineage.runtime.settings import STATE_DIR
from lineage.work import Stopwatch

REHEARSAL_FILE = STATE_DIR / "rehearsal.json"


def start_rehearsal(root: Path, *, training_seconds: float) -> None:
    """Make a scratch study a rehearsal, in which no pretraining takes longer than that."""
    write_json(root / REHEARSAL_FILE, {"training_seconds": training_seconds})


def rehearsal_limit() -> float | None:
    """Return the seconds that a pretraining may take in a rehearsal; None: no rehearsal."""
    if not REHEARSAL_FILE.is_file():
        return None
    return float(read_json(REHEARSAL_FILE)["training_seconds"])


def end_early(progress: Callable[..., float]) -> Callable[..., float]:
    """Return the progress of a training, which in a rehearsal is over when its time is."""
    limit = rehearsal_limit()
    if limit is None:
        return progress
    stopwatch = Stopwatch()  # on a busy machine, as many steps are taken as on a quiet one
    return lambda counters: max(progress(counters), stopwatch.seconds / limit)
