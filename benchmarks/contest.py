"""Time the same work done by several implementations, and compare the CPU-seconds they need.

The sides take turns in one process. So the ratio of their CPU-seconds is stable on a machine that
is busy with other things, although the seconds themselves are not.
"""

import platform
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import torch

TimedCall = Callable[[], object]


@dataclass(frozen=True)
class SpeedTarget:
    """How many times as fast as the baseline a side has to be; None: reported, without a target."""

    side: str
    baseline: str
    required: float | None = None
    desired: float | None = None
    needs_amx: bool = False  # the target was set for CPUs with AMX


@dataclass
class Contest:
    """The same work, done by several sides. One call of a side is one step if not stated."""

    name: str
    work: str  # the sizes, in words
    units_per_step: float
    unit: str
    sides: dict[str, TimedCall]
    targets: list[SpeedTarget]
    steps_per_call: dict[str, int] = field(default_factory=dict)
    max_rounds: int | None = None  # for long calls with a steady time
    # The values that were compared and found equal: those of our side and of the other.
    equal_values: dict[str, list[float]] = field(default_factory=dict)

    def check_equal(
        self, what: str, ours: float, theirs: float, *, tolerance: float = 1e-4
    ) -> None:
        """Check that two numbers are equal, within a relative tolerance, and record them."""
        largest = max(abs(ours), abs(theirs))
        assert abs(ours - theirs) <= tolerance * largest, (
            f"{self.name}: {what} is {ours} here and {theirs} there"
        )
        self.equal_values[what] = [ours, theirs]


def measure_cpu_seconds(contest: Contest, *, rounds: int) -> dict[str, list[float]]:
    """Return the CPU-seconds per step of each side, one number per round.

    Each side is called once before, to warm up.
    """
    for call in contest.sides.values():
        call()
    seconds: dict[str, list[float]] = {side: [] for side in contest.sides}
    for _ in range(min(rounds, contest.max_rounds or rounds)):
        for side, call in contest.sides.items():
            start = time.process_time()
            call()
            elapsed = time.process_time() - start
            seconds[side].append(elapsed / contest.steps_per_call.get(side, 1))
    return seconds


def summarize(contest: Contest, cpu_seconds: dict[str, list[float]]) -> dict:
    """Return the result of a contest, as it is written to a JSON file."""
    comparisons = [
        _compare(target, cpu_seconds)
        for target in contest.targets
        if target.side in cpu_seconds and target.baseline in cpu_seconds
    ]
    units_per_cpu_second = {
        side: contest.units_per_step / statistics.median(seconds)
        for side, seconds in cpu_seconds.items()
    }
    any_side = next(iter(cpu_seconds.values()))
    return {
        "name": contest.name,
        "work": contest.work,
        "unit": contest.unit,
        "rounds": len(any_side),
        "machine": describe_machine(),
        "units_per_cpu_second": units_per_cpu_second,
        "cpu_seconds": cpu_seconds,
        "equal": contest.equal_values,
        "compared": comparisons,
    }


def _compare(target: SpeedTarget, cpu_seconds: dict[str, list[float]]) -> dict:
    pairs = zip(cpu_seconds[target.side], cpu_seconds[target.baseline], strict=True)
    ratios = [baseline / side for side, baseline in pairs]
    median = statistics.median(ratios)
    return {
        "ours": target.side,
        "peer": target.baseline,
        "ratio": median,
        "lowest": min(ratios),
        "highest": max(ratios),
        "must": target.required,
        "good": target.desired,
        "verdict": get_verdict(median, target),
    }


def get_verdict(ratio: float, target: SpeedTarget) -> str:
    """Return "good", "must" or "missed", or "" without a target.

    On a CPU without AMX, a target for CPUs with AMX does not count.
    """
    if target.required is None or target.desired is None:
        return ""
    if ratio >= target.desired:
        verdict = "good"
    elif ratio >= target.required:
        verdict = "must"
    else:
        verdict = "missed"
    if target.needs_amx and not describe_machine()["bf16"].startswith("amx"):
        return f"{verdict} (no AMX: does not count)"
    return verdict


def describe_machine() -> dict[str, str]:
    """Return the CPU, its bf16 instructions, the version and threads of torch, and the system."""
    facts = _read_cpu_facts()
    model_parts = (
        facts.get("model name", platform.processor()),
        "family",
        facts.get("cpu family"),
        "model",
        facts.get("model"),
    )
    flags = facts.get("flags", "").split()
    bf16_flags = sorted(flag for flag in flags if flag in ("amx_bf16", "avx512_bf16"))
    return {
        "cpu": " ".join(part for part in model_parts if part),
        "bf16": " ".join(bf16_flags) or "neither amx_bf16 nor avx512_bf16",
        "torch": torch.__version__,
        "threads": str(torch.get_num_threads()),
        "system": platform.platform(),
    }


def _read_cpu_facts() -> dict[str, str]:
    """Read what Linux reports about the first CPU; empty on other systems."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return {}
    facts: dict[str, str] = {}
    for line in lines:
        if ":" in line:
            key, value = line.split(":", 1)
            facts.setdefault(key.strip(), value.strip())
    return facts


COLUMN_TITLES = ("work", "ours", "against", "ratio", "range", "must", "good", "verdict")


def table_rows(result: dict) -> list[tuple[str, ...]]:
    """Return the table rows of a contest, one per comparison."""
    rows = []
    for comparison in result["compared"]:
        targets = [f"{comparison[key]:.2f}" if comparison[key] else "" for key in ("must", "good")]
        row = (
            result["name"],
            comparison["ours"],
            comparison["peer"],
            f"{comparison['ratio']:.2f}",
            f"{comparison['lowest']:.2f}-{comparison['highest']:.2f}",
            *targets,
            comparison["verdict"],
        )
        rows.append(row)
    return rows


def format_markdown(results: list[dict]) -> str:
    """Format results as one table per machine, then a list of the values that were compared."""
    results_by_machine: dict[tuple[tuple[str, str], ...], list[dict]] = {}
    for result in results:
        machine = tuple(sorted(result["machine"].items()))
        results_by_machine.setdefault(machine, []).append(result)

    lines = []
    for machine, machine_results in results_by_machine.items():
        lines.append(f"| {' | '.join(COLUMN_TITLES)} |")
        lines.append("|" + "---|" * len(COLUMN_TITLES))
        for result in machine_results:
            lines += [f"| {' | '.join(row)} |" for row in table_rows(result)]
        described = ", ".join(f"{key} {value}" for key, value in machine)
        lines += ["", f"Machine: {described}.", ""]
    lines += [_format_details(result) for result in results]
    return "\n".join(lines) + "\n"


def _format_details(result: dict) -> str:
    equal_values = "; ".join(
        f"{what} {ours:.6g} and {theirs:.6g}" for what, (ours, theirs) in result["equal"].items()
    )
    speeds = ", ".join(
        f"{side} {speed:,.0f}" for side, speed in result["units_per_cpu_second"].items()
    )
    return (
        f"- **{result['name']}**: {result['work']}; {result['rounds']} rounds. "
        f"Equal: {equal_values or 'nothing was compared'}. "
        f"{result['unit']} a CPU-second: {speeds}."
    )
