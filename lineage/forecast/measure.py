"""Time a piece of work on a sample, and extrapolate to its full size."""

import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial


@dataclass(frozen=True)
class LinearCost:
    """Seconds as a fixed part, and a part that grows with the size."""

    fixed_seconds: float = 0.0
    seconds_per_unit: float = 0.0

    def seconds(self, size: float) -> float:
        """Return the seconds for a size."""
        return self.fixed_seconds + self.seconds_per_unit * size


def time_call(work: Callable[[], object]) -> float:
    """Return the seconds that one call takes."""
    start_time = time.perf_counter()
    work()
    return time.perf_counter() - start_time


def measure_growing(
    work: Callable[[int], object], *, first_size: int, full_size: int, max_seconds: float
) -> LinearCost:
    """Time `work` at doubling sizes until `max_seconds` are used or the full size is reached.

    The line through the last two sizes gives the cost. The first size runs twice, since a first
    call also imports modules and compiles kernels.
    """
    size = max(1, min(first_size, full_size))
    start_time = time.perf_counter()
    work(size)
    points = [(size, time_call(partial(work, size)))]
    while size < full_size:
        spent_seconds = time.perf_counter() - start_time
        if len(points) > 1 and spent_seconds + 2 * points[-1][1] > max_seconds:
            break
        size = min(2 * size, full_size)
        points.append((size, time_call(partial(work, size))))
    return fit_line(points)


def fit_line(points: list[tuple[int, float]]) -> LinearCost:
    """Return the cost through the last two points; neither part is negative."""
    size, seconds = points[-1]
    if len(points) == 1:
        return LinearCost(seconds_per_unit=seconds / size)
    other_size, other_seconds = points[-2]
    slope = (seconds - other_seconds) / (size - other_size)
    slope = min(max(slope, 0.0), seconds / size)
    return LinearCost(seconds - slope * size, slope)
