"""Time a piece of work on a sample, and extrapolate to its full size."""

import resource
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import torch

from lineage.runtime.stage import BYTES_PER_MAXRSS


class Stopwatch:
    """The seconds since its start, without those in which other programs used the cores.

    They are the smaller of the time that passed and the processor's time: of several threads the
    former, on a busy machine the latter. Once a GPU is in use only the former counts, since a
    process that waits for it may sleep.
    """

    def __init__(self) -> None:
        self._start_time = time.perf_counter()
        self._start_cpu_time = time.process_time()

    @property
    def seconds(self) -> float:
        """The seconds until now."""
        seconds = self.elapsed_seconds
        if torch.cuda.is_initialized():
            return seconds
        return min(seconds, time.process_time() - self._start_cpu_time)

    @property
    def elapsed_seconds(self) -> float:
        """All seconds that have passed, for limits of the probe itself."""
        return time.perf_counter() - self._start_time


def peak_memory_bytes() -> int:
    """Return the most memory that this process has held until now."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * BYTES_PER_MAXRSS


@dataclass(frozen=True)
class LinearCost:
    """Seconds as a fixed part, and a part that grows with the size."""

    fixed_seconds: float = 0.0
    seconds_per_unit: float = 0.0

    def seconds(self, size: float) -> float:
        """Return the seconds for a size."""
        return self.fixed_seconds + self.seconds_per_unit * size

    def times(self, factor: float) -> "LinearCost":
        """Return the cost of doing it so many times."""
        return LinearCost(factor * self.fixed_seconds, factor * self.seconds_per_unit)


def time_call(work: Callable[[], object]) -> float:
    """Return the seconds that one call takes."""
    stopwatch = Stopwatch()
    work()
    return stopwatch.seconds


@dataclass(frozen=True)
class GrowingMeasure:
    """A cost, the extra time of the first call, and the largest size that was timed."""

    cost: LinearCost
    first_call_seconds: float  # of imports and of compiling kernels
    largest_size: int


def measure_growing(
    work: Callable[[int], object], *, first_size: int, full_size: int, max_seconds: float
) -> GrowingMeasure:
    """Time `work` at doubling sizes until `max_seconds` are used or the full size is reached.

    The line through the last two sizes gives the cost. The first size runs twice, to tell what a
    first call takes.
    """
    stopwatch = Stopwatch()
    size = max(1, min(first_size, full_size))
    first_seconds = time_call(partial(work, size))
    points = [(size, time_call(partial(work, size)))]
    while size < full_size:
        next_seconds = stopwatch.elapsed_seconds + 2 * points[-1][1]
        if len(points) > 1 and next_seconds > max_seconds:
            break
        size = min(2 * size, full_size)
        points.append((size, time_call(partial(work, size))))
    first_call_seconds = max(0.0, first_seconds - points[0][1])
    return GrowingMeasure(fit_line(points), first_call_seconds, size)


def fit_line(points: list[tuple[int, float]]) -> LinearCost:
    """Return the cost through the last two points; neither part is negative."""
    size, seconds = points[-1]
    if len(points) == 1:
        return LinearCost(seconds_per_unit=seconds / size)
    other_size, other_seconds = points[-2]
    slope = (seconds - other_seconds) / (size - other_size)
    slope = min(max(slope, 0.0), seconds / size)
    return LinearCost(seconds - slope * size, slope)
