"""Learning-rate schedules: functions of progress, which runs from 0 to 1 (the end of the budget).

They return shares of the highest learning rate and never count steps.
"""

import math
from collections.abc import Callable
from typing import Literal

LrSchedule = Callable[[float], float]
LrScheduleName = Literal["linear", "bert", "gpt", "constant", "cosine", "trapezoid"]

TRAPEZOID_DECLINE = 0.4  # share of the training in which the rate falls


def schedule_with_warmup(name: LrScheduleName, warmup_ratio: float) -> LrSchedule:
    """Rise linearly to 1 over the warmup, then follow the schedule of this name."""
    after_warmup = SCHEDULES_AFTER_WARMUP[name]

    def share(progress: float) -> float:
        if progress >= warmup_ratio:
            return after_warmup(progress, warmup_ratio)
        rise = progress / warmup_ratio
        # GPT-1's released code multiplies the rise by the fall.
        return rise * (1.0 - progress) if name == "gpt" else rise

    return share


def _linear(progress: float, warmup_ratio: float) -> float:
    """Fall to 0 at the end (Devlin et al. 2019, appendix A.2)."""
    if warmup_ratio >= 1:
        return 0.0
    return max(0.0, (1.0 - progress) / (1.0 - warmup_ratio))


def _unscaled(progress: float, warmup_ratio: float) -> float:
    """Follow 1 - progress, as the released code of BERT does: the rate drops after the warmup."""
    return max(0.0, 1.0 - progress)


def _constant(progress: float, warmup_ratio: float) -> float:
    """Stay, as bilm-tf and context2vec (warmup 0) do."""
    return 1.0


def _cosine(progress: float, warmup_ratio: float) -> float:
    """Fall to 0 along half a cosine. GPT-1 was pretrained so (Radford et al. 2018, section 4.1)."""
    if warmup_ratio >= 1:
        return 0.0
    fall = min(1.0, (progress - warmup_ratio) / (1.0 - warmup_ratio))
    return 0.5 + 0.5 * math.cos(math.pi * fall)


def _trapezoid(progress: float, warmup_ratio: float) -> float:
    """Stay, then fall linearly to 0 (Zhai et al. 2022).

    On equal text it is as good as a cosine, and its best rate is easier to find (Hägele et al.
    2024).
    """
    return min(1.0, max(0.0, 1.0 - progress) / TRAPEZOID_DECLINE)


# (progress, warmup_ratio) -> the share of the highest rate
SCHEDULES_AFTER_WARMUP: dict[LrScheduleName, Callable[[float, float], float]] = {
    "linear": _linear,
    "bert": _unscaled,
    "gpt": _unscaled,
    "constant": _constant,
    "cosine": _cosine,
    "trapezoid": _trapezoid,
}


def slanted_triangular_schedule(
    cut_frac: float, ratio: float, *, steps: int | None = None
) -> LrSchedule:
    """Rise from 1/ratio to 1 at `cut_frac`, then fall back to 1/ratio.

    (Howard and Ruder 2018, section 3.2.) If the number of steps is known, the cut is a whole step,
    rounded down as in the paper. The paper's denominator cut x (1 / cut_frac - 1) turns negative at
    the end if steps x cut_frac is not whole; steps - cut does not.
    """
    cut = cut_frac
    if steps is not None:
        cut = math.floor(steps * cut_frac + 1e-9) / steps

    def share(progress: float) -> float:
        if progress < cut:
            height = progress / cut
        elif cut < 1:
            height = max(0.0, 1.0 - (progress - cut) / (1.0 - cut))
        else:
            height = 1.0
        return (1.0 + height * (ratio - 1.0)) / ratio

    return share
