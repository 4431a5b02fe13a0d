"""How much work a stage has done, and in which time: `lineage check` scales it to a whole study."""

import contextlib
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from typing import Any

import torch

# A gradient step reads an item forward and backward, which takes about three times as long.
TRAINING_PASSES = 3


@dataclass(frozen=True)
class Work:
    """A part of a stage's work."""

    part: str  # equal for work that takes equally long for each count
    count: float
    seconds: float = 0.0  # 0 before it is done
    memory_bytes: int = 0  # that stay in use for it


class Stopwatch:
    """The seconds since its start, without those in which other programs used the cores.

    They are the smaller of the time that passed and the processor's time. Once a GPU is in use only
    the former counts.
    """

    def __init__(self) -> None:
        self._start_time = time.perf_counter()
        self._start_cpu_time = time.process_time()

    @property
    def seconds(self) -> float:
        """The seconds until now."""
        if torch.cuda.is_initialized():
            torch.cuda.synchronize()
            return self.elapsed_seconds
        return min(self.elapsed_seconds, time.process_time() - self._start_cpu_time)

    @property
    def elapsed_seconds(self) -> float:
        return time.perf_counter() - self._start_time


@dataclass
class WorkLog:
    """The work that a stage has done."""

    done: list[Work] = field(default_factory=list)

    def add(self, part: str, count: float, seconds: float) -> None:
        self.done.append(Work(part, count, seconds))

    @contextlib.contextmanager
    def measure(self, part: str, count: float) -> Iterator[None]:
        """Add the work of the block."""
        stopwatch = Stopwatch()
        yield
        self.add(part, count, stopwatch.seconds)

    def as_tree(self) -> list[dict[str, Any]]:
        """Return the work for the metadata of a stage."""
        return [asdict(work) for work in self.done]
