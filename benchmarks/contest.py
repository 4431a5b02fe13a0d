"""Sides that do the same work by turns in one process, and what the ratio of their CPU-seconds says of a bar.

Ratios of interleaved turns hold on a machine that is busy with other things; seconds do not.
"""

import platform
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import torch

Turn = Callable[[], object]


@dataclass(frozen=True)
class Bar:
    """How many times as fast as the peer our side must be, and what would be good; none: for information."""

    ours: str
    peer: str
    must: float | None = None
    good: float | None = None
    bf16: bool = False  # a bar that was set for CPUs with AMX


@dataclass
class Contest:
    """The same work by several sides. A turn is `steps` of it, one where not said."""

    name: str
    work: str  # sizes, in words
    units: float  # of work in a step
    unit: str
    turns: dict[str, Turn]
    bars: list[Bar]
    steps: dict[str, int] = field(default_factory=dict)
    rounds: int | None = None  # at most, where a turn is long and steady
    equal: dict[str, list[float]] = field(
        default_factory=dict
    )  # what was found equal: ours, theirs

    def alike(self, what: str, ours: float, theirs: float, *, tolerance: float = 1e-4) -> None:
        """Hold that two numbers are equal, and note them."""
        assert abs(ours - theirs) <= tolerance * max(abs(ours), abs(theirs)), (
            f"{self.name}: {what} is {ours} here and {theirs} there"
        )
        self.equal[what] = [ours, theirs]


def measured(contest: Contest, *, rounds: int) -> dict[str, list[float]]:
    """CPU-seconds a step by side, a number a round, after one turn that does not count."""
    for turn in contest.turns.values():
        turn()
    seconds: dict[str, list[float]] = {side: [] for side in contest.turns}
    for _ in range(min(rounds, contest.rounds or rounds)):
        for side, turn in contest.turns.items():
            since = time.process_time()
            turn()
            seconds[side].append((time.process_time() - since) / contest.steps.get(side, 1))
    return seconds


def outcome(contest: Contest, seconds: dict[str, list[float]]) -> dict:
    """What is written of a contest."""
    compared = []
    for bar in contest.bars:
        if bar.ours in seconds and bar.peer in seconds:
            ratios = [
                theirs / ours
                for ours, theirs in zip(seconds[bar.ours], seconds[bar.peer], strict=True)
            ]
            compared.append({"ours": bar.ours, "peer": bar.peer, "ratio": statistics.median(ratios), "lowest": min(ratios), "highest": max(ratios),
                             "must": bar.must, "good": bar.good, "verdict": verdict(statistics.median(ratios), bar)})  # fmt: skip
    speeds = {side: contest.units / statistics.median(some) for side, some in seconds.items()}
    return {"name": contest.name, "work": contest.work, "unit": contest.unit, "rounds": len(next(iter(seconds.values()))), "machine": machine(),
            "units_per_cpu_second": speeds, "cpu_seconds": seconds, "equal": contest.equal, "compared": compared}  # fmt: skip


def verdict(ratio: float, bar: Bar) -> str:
    """good, must or missed; a bar for AMX is read but does not count elsewhere."""
    if bar.must is None or bar.good is None:
        return ""
    word = "good" if ratio >= bar.good else "must" if ratio >= bar.must else "missed"
    return (
        word
        if not bar.bf16 or machine()["bf16"].startswith("amx")
        else f"{word} (no AMX: does not count)"
    )


def machine() -> dict[str, str]:
    """What the numbers belong to."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        lines = []
    facts = dict(
        reversed(
            [tuple(part.strip() for part in line.split(":", 1)) for line in lines if ":" in line]
        )
    )
    flags = facts.get("flags", "").split()
    model = " ".join(
        filter(
            None,
            (
                facts.get("model name", platform.processor()),
                "family",
                facts.get("cpu family"),
                "model",
                facts.get("model"),
            ),
        )
    )
    return {"cpu": model, "bf16": " ".join(sorted(f for f in flags if f in ("amx_bf16", "avx512_bf16"))) or "neither amx_bf16 nor avx512_bf16",
            "torch": torch.__version__, "threads": str(torch.get_num_threads()), "system": platform.platform()}  # fmt: skip


HEAD = ("work", "ours", "against", "ratio", "range", "must", "good", "verdict")


def rows(found: dict) -> list[tuple[str, ...]]:
    """A contest's lines of the table."""
    shown = []
    for one in found["compared"]:
        bars = [f"{one[bar]:.2f}" if one[bar] else "" for bar in ("must", "good")]
        ratios = (f"{one['ratio']:.2f}", f"{one['lowest']:.2f}-{one['highest']:.2f}")
        shown.append((found["name"], one["ours"], one["peer"], *ratios, *bars, one["verdict"]))
    return shown


def markdown(results: list[dict]) -> str:
    """All results, a table a machine, and below what was compared and found equal."""
    lines = []
    for described in dict.fromkeys(tuple(sorted(found["machine"].items())) for found in results):
        own = [
            row
            for found in results
            if tuple(sorted(found["machine"].items())) == described
            for row in rows(found)
        ]
        lines += [
            f"| {' | '.join(HEAD)} |",
            "|" + "---|" * len(HEAD),
            *(f"| {' | '.join(row)} |" for row in own),
        ]
        lines += [
            "",
            "Machine: " + ", ".join(f"{key} {value}" for key, value in described) + ".",
            "",
        ]
    for found in results:
        equal = (
            "; ".join(
                f"{what} {ours:.6g} and {theirs:.6g}"
                for what, (ours, theirs) in found["equal"].items()
            )
            or "nothing was compared"
        )
        speeds = ", ".join(
            f"{side} {speed:,.0f}" for side, speed in found["units_per_cpu_second"].items()
        )
        lines.append(
            f"- **{found['name']}**: {found['work']}; {found['rounds']} rounds. Equal: {equal}. {found['unit']} a CPU-second: {speeds}."
        )
    return "\n".join(lines) + "\n"
