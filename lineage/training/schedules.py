"""Learning-rate schedules: functions of progress, which runs from 0 to 1 (the end of the budget).

They return shares of the highest learning rate and never count steps.
"""

import math
from collections.abc import Callable
from typing import Literal

LrSchedule = Callable[[float], float]
LrScheduleName = Literal["linear", "bert", "gpt", "constant", "cosine", "trapezoid"]

TRAPEZOID_DECLINE = 0.4  # share of the training in which the rate falls


def linear_schedule_with_warmup(warmup_ratio: float) -> LrSchedule:
    """Rise to 1 over the warmup, then fall linearly to 0 (Devlin et al. 2019, appendix A.2)."""

    def share(progress: float) -> float:
        if progress < warmup_ratio:
            return progress / warmup_ratio
        if warmup_ratio >= 1:
            return 0.0
        return max(0.0, (1.0 - progress) / (1.0 - warmup_ratio))

    return share


def bert_schedule_with_warmup(warmup_ratio: float) -> LrSchedule:
    """Rise to 1 over the warmup, then follow 1 - progress.

    BERT's released code does not rescale the fall, so the rate drops right after the warmup.
    """

    def share(progress: float) -> float:
        if progress < warmup_ratio:
            return progress / warmup_ratio
        return max(0.0, 1.0 - progress)

    return share


def gpt_schedule_with_warmup(warmup_ratio: float) -> LrSchedule:
    """Multiply the rise of the warmup by 1 - progress, as GPT-1's released code does."""

    def share(progress: float) -> float:
        rise = 1.0
        if warmup_ratio and progress <= warmup_ratio:
            rise = progress / warmup_ratio
        return rise * max(0.0, 1.0 - progress)

    return share


def constant_schedule_with_warmup(warmup_ratio: float) -> LrSchedule:
    """Rise to 1 over the warmup and stay there, as bilm-tf and context2vec (warmup 0) do."""

    def share(progress: float) -> float:
        if progress < warmup_ratio:
            return progress / warmup_ratio
        return 1.0

    return share


def cosine_schedule_with_warmup(warmup_ratio: float) -> LrSchedule:
    """Rise to 1 over the warmup, then fall to 0 along half a cosine.

    GPT-1 was pretrained so (Radford et al. 2018, section 4.1).
    """

    def share(progress: float) -> float:
        if progress < warmup_ratio:
            return progress / warmup_ratio
        if warmup_ratio >= 1:
            return 0.0
        fall = min(1.0, (progress - warmup_ratio) / (1.0 - warmup_ratio))
        return 0.5 + 0.5 * math.cos(math.pi * fall)

    return share


def trapezoid_schedule_with_warmup(warmup_ratio: float) -> LrSchedule:
    """Rise to 1 over the warmup, stay there, and fall linearly to 0 at the end (Zhai et al. 2022).

    On equal text it is as good as a cosine, and its best rate is easier to find (Hägele et al.
    2024).
    """

    def share(progress: float) -> float:
        rise = min(1.0, progress / warmup_ratio) if warmup_ratio else 1.0
        return min(rise, max(0.0, 1.0 - progress) / TRAPEZOID_DECLINE, 1.0)

    return share


LR_SCHEDULES: dict[LrScheduleName, Callable[[float], LrSchedule]] = {
    "linear": linear_schedule_with_warmup,
    "bert": bert_schedule_with_warmup,
    "gpt": gpt_schedule_with_warmup,
    "constant": constant_schedule_with_warmup,
    "cosine": cosine_schedule_with_warmup,
    "trapezoid": trapezoid_schedule_with_warmup,
}


def slanted_triangular_schedule(
    cut_frac: float, ratio: float, *, steps: int | None = None
) -> LrSchedule:
    """Rise from 1/ratio to 1 at `cut_frac`, then fall back to 1/ratio.

    (Howard and Ruder 2018, section 3.2.) If the number of steps is known, the cut is a whole step,
    rounded down as in the paper, so that one step has the highest rate. The paper's denominator
    cut x (1 / cut_frac - 1) turns negative at the end if steps x cut_frac is not whole;
    steps - cut does not.
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
