"""One NVIDIA GPU: is its arithmetic ours, what can it do, how fast does each neural family train on it? Run `python benchmarks/gpu.py` from the root.

Needs torch and what lineage's training imports; no network and no installation. Everything ends within --seconds, compiling included: each row has a
limit, what did not fit is listed with its reason, and results are written as they come, to the folder that OUT names or to benchmarks/results.
"""

import argparse
import contextlib
import gc
import json
import os
import signal
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))
os.environ.setdefault(
    "CUBLAS_WORKSPACE_CONFIG", ":4096:8"
)  # read once, when CUDA begins: without it two runs may differ

import torch  # noqa: E402

from benchmarks import gpu_rates  # noqa: E402
from benchmarks.gpu_check import against_cpu, same_bytes  # noqa: E402
from benchmarks.gpu_models import (  # noqa: E402
    Work,
    counted_flops,
    describe,
    formula_flops,
    papers,
    small,
    stream_of,
)
from lineage.training.devices import configure_torch, select_device  # noqa: E402

# In order of what is wanted first: the families it is for, and the seconds that a row may take, compiling included.
TRANSFORMERS, RECURRENT = ("bert", "gpt"), ("elmo", "ulmfit")
KINDS: tuple[tuple[str, Callable[..., gpu_rates.Step], tuple[str, ...], int], ...] = (
    ("lineage", gpu_rates.as_is, TRANSFORMERS + RECURRENT, 40),
    ("lineage, deterministic", gpu_rates.deterministic, TRANSFORMERS + RECURRENT, 40),
    (
        "lineage, CUDA graph",
        gpu_rates.graphed,
        ("elmo",),
        60,
    ),  # attention and cuDNN's LSTM are no loops of launches
    ("transformers", gpu_rates.transformers, TRANSFORMERS, 40),
    ("step-by-step cell", gpu_rates.plain, RECURRENT, 40),
    ("lineage, compiled", gpu_rates.compiled, (*TRANSFORMERS, "ulmfit"), 120),
    ("lineage, bf16 weights", gpu_rates.half_weights, ("ulmfit",), 40),
    ("transformers, compiled", gpu_rates.transformers_compiled, TRANSFORMERS, 120),
)
ASKED = ("floor", "goal", "stretch")
COLUMNS = (  # title, key, side and width, number format
    ("training in bf16", "model", "<22", ""),
    ("kind", "kind", "<23", ""),
    ("tokens/s", "tokens_per_second", ">9", ",.0f"),
    ("lowest", "lowest", ">9", ",.0f"),
    ("highest", "highest", ">9", ",.0f"),
    ("ms/step", "step_ms", ">8", ".2f"),
    ("MFLOP/token", "formula", ">11", ".3g"),
    ("counted", "counted", ">7", ".3g"),
    ("TFLOP/s", "tflops", ">7", ".3g"),
    ("of 768", "share_of_768", ">6", ".0%"),
    ("of 8192", "share_of_8192", ">7", ".0%"),
    ("GiB", "peak_gib", ">5", ".1f"),
    ("first s", "first_steps_seconds", ">7", ".1f"),
    *((name, name, "<12", "") for name in ASKED),
)


class TooLongError(gpu_rates.NotRunError):
    """A row's time is up."""


@dataclass
class Bench:
    """What is known so far, and how much time is left."""

    device: torch.device
    out: Path
    ends: float
    measure_seconds: float
    machine: dict[str, Any] = field(default_factory=dict)
    checks: list[dict[str, Any]] = field(default_factory=list)
    rates: list[dict[str, Any]] = field(default_factory=list)
    not_run: list[dict[str, str]] = field(default_factory=list)
    costs: dict[str, dict[str, float]] = field(default_factory=dict)

    def write(self) -> None:
        """All of it, written whole."""
        found = {name: getattr(self, name) for name in ("machine", "checks", "rates", "not_run")}
        self.out.mkdir(parents=True, exist_ok=True)
        draft = self.out / ".gpu.json.draft"
        draft.write_text(json.dumps(found, indent=1, sort_keys=True) + "\n", encoding="utf-8")
        draft.replace(self.out / "gpu.json")

    def row(self, name: str, seconds: float, work: Callable[[], None]) -> None:
        """Do some work within a time; whatever ends it early is noted, and the next row has a clean device."""

        def ring(*_: object) -> None:
            raise TooLongError(f"not done within {limit:.0f} s")

        limit = min(seconds, self.ends - time.monotonic())
        before = signal.signal(signal.SIGALRM, ring)
        began = time.monotonic()
        try:
            if limit < 1:
                raise TooLongError("no time left")
            signal.setitimer(signal.ITIMER_REAL, limit)
            work()
            signal.setitimer(signal.ITIMER_REAL, 0)
        except Exception as error:  # one row that fails must not take the others with it
            late = (
                time.monotonic() - began >= limit > 1
            )  # a compiler may wrap the alarm in an error of its own
            reason = (
                f"not done within {limit:.0f} s"
                if late
                else f"{'' if isinstance(error, gpu_rates.NotRunError) else type(error).__name__ + ': '}{error}"
            )
            self.not_run.append({"row": name, "reason": " ".join(reason.split())[:160]})
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
            signal.signal(signal.SIGALRM, before)
            if self.device.type == "cuda":
                gc.collect()
                torch.cuda.empty_cache()
            self.write()
            print(f"{time.monotonic() - began:6.1f} s  {name}", file=sys.stderr, flush=True)


def ceilings(device: torch.device, *, toy: bool) -> dict[str, float]:
    """TFLOP/s of two bf16 products, of random numbers, and TB/s of a copy, bytes read and bytes written both counted."""
    edge, rows, copied = (256, 512, 2**20) if toy else (8192, 32768, 2**32)
    found = {}
    for name, (m, k, n) in {
        "tflops_8192": (edge, edge, edge),
        "tflops_768": (rows, 96 if toy else 768, 384 if toy else 3072),
    }.items():
        a, b = (
            torch.randn(*shape, device=device, dtype=torch.bfloat16) for shape in ((m, k), (k, n))
        )
        c = torch.empty(m, n, device=device, dtype=torch.bfloat16)
        found[name] = (
            2 * m * k * n / _seconds(lambda a=a, b=b, c=c: torch.mm(a, b, out=c), device) / 1e12
        )
    source = torch.randint(0, 255, (copied,), device=device, dtype=torch.uint8)
    target = torch.empty_like(source)
    found["copy_tb_s"] = 2 * copied / _seconds(lambda: target.copy_(source), device) / 1e12
    return found


def _seconds(work: Callable[[], object], device: torch.device) -> float:
    """The median of seven times ten calls, after ten to warm up."""
    times = []
    for number in range(8):
        began = time.perf_counter()
        for _ in range(10):
            work()
        gpu_rates.settle(device)
        if number:
            times.append((time.perf_counter() - began) / 10)
    return statistics.median(times)


def rate(bench: Bench, work: Work, kind: str, start: Callable[..., gpu_rates.Step]) -> None:
    """Measure one kind of step of one model."""
    with contextlib.ExitStack() as leave:
        if bench.device.type == "cuda":
            torch.cuda.reset_peak_memory_stats(bench.device)
        tokens = work.batch * work.length
        found = gpu_rates.measured(
            start(work, bench.device, leave),
            tokens=tokens,
            device=bench.device,
            seconds=bench.measure_seconds,
        )
    peak = (
        torch.cuda.max_memory_allocated(bench.device) / 2**30
        if bench.device.type == "cuda"
        else 0.0
    )
    tflops = found.middle * bench.costs[work.name]["formula"] / 1e6
    row = {"model": work.name, "kind": kind, "tokens_per_second": found.middle, "lowest": found.low, "highest": found.high,
           "step_ms": 1000 * found.step_seconds, "first_steps_seconds": found.first_seconds, "peak_gib": peak, "tflops": tflops,
           "mflop_per_token": bench.costs[work.name]}  # fmt: skip
    row |= {
        f"share_of_{name}": tflops / bench.machine[f"tflops_{name}"]
        for name in ("768", "8192")
        if f"tflops_{name}" in bench.machine
    }
    row |= {
        name: {"asked": asked, "met": found.middle >= asked}
        for name, asked in zip(ASKED, work.targets, strict=True)
        if asked
    }
    bench.rates.append(row)


def cost(bench: Bench, work: Work) -> None:
    """MFLOP a token of a model's training: by the formula, and, where it can be run, as lineage counts them."""
    batch = stream_of(work).get_batch(0)
    bench.costs[work.name] = {"formula": formula_flops(work, batch) / 1e6}

    def count() -> None:
        bench.costs[work.name]["counted"] = (
            counted_flops(gpu_rates.build(work, bench.device), work, batch) / 1e6
        )

    bench.row(f"{work.name}: counting", 40, count)


def lines(bench: Bench) -> Iterator[str]:
    """The tables, to be printed last."""
    m = bench.machine
    yield " ".join(
        f"{key}={value if not isinstance(value, float) else round(value, 3)}"
        for key, value in m.items()
    )
    yield f"{'check':<10} {'precision':<10} {'what':<20} {'distance':>10} {'limit':>8}  ok"
    for row in bench.checks:
        numbers = (
            f"{row['distance']:>10.1e} {row['limit']:>8.0e}" if "distance" in row else " " * 19
        )
        ok = "yes" if row["ok"] and row.get("told_apart", True) else "NO"
        yield f"{row['family']:<10} {row['precision']:<10} {row['what']:<20} {numbers}  {ok}"
    held = {
        f: all(
            r["ok"] and r["told_apart"]
            for r in bench.checks
            if r["family"] == f and "told_apart" in r
        )
        for f in _tried(bench)
    }
    yield f"two runs of one seed end in the same bytes: {', '.join(f for f, ok in held.items() if ok) or 'for no family'}"
    for row in bench.not_run:
        yield f"not run: {row['row']}: {row['reason']}"
    yield " ".join(format(title, side) for title, _, side, _ in COLUMNS).rstrip()
    for row in sorted(bench.rates, key=lambda row: row["model"]):
        values = row | row["mflop_per_token"] | {name: _asked(row.get(name)) for name in ASKED}
        cells = (
            format(format(values[key], shape) if key in values else "-", side)
            for _, key, side, shape in COLUMNS
        )
        yield " ".join(cells).rstrip()


def _tried(bench: Bench) -> list[str]:
    return [*dict.fromkeys(row["family"] for row in bench.checks if "told_apart" in row)]


def _asked(target: dict[str, Any] | None) -> str:
    return (
        ""
        if target is None
        else f"{target['asked'] // 1000}k {'met' if target['met'] else 'missed'}"
    )


def run(bench: Bench, works: list[Work], *, toy: bool, compile_too: bool, only: str) -> None:
    """Everything, in order of what is wanted first."""
    bench.machine = describe(bench.device)
    rows = [
        (work.name, kind, start, seconds)
        for kind, start, families, seconds in KINDS
        for work in works
        if work.family.name in families
    ]
    rows = [row for row in rows if only in f"{row[0]}, {row[1]}"]
    works = [work for work in works if work.name in {row[0] for row in rows}]
    bench.row("machine", 30, lambda: bench.machine.update(ceilings(bench.device, toy=toy)))
    if bench.device.type == "cuda":
        torch.use_deterministic_algorithms(True)
    for work in {work.family.name: work for work in works}.values():
        bench.row(
            f"{work.family.name}: against the CPU",
            40,
            lambda work=work: bench.checks.extend(against_cpu(work, bench.device)),
        )
        bench.row(
            f"{work.family.name}: same bytes",
            40,
            lambda work=work: bench.checks.extend(same_bytes(work, bench.device)),
        )
    torch.use_deterministic_algorithms(False)
    sizes = {work.name: small(work) if toy else work for work in works}
    for work in sizes.values():
        cost(bench, work)
    for name, kind, start, seconds in rows:
        done = (
            unwanted
            if "compiled" in kind and not compile_too
            else partial(rate, bench, sizes[name], kind, start)
        )
        bench.row(f"{name}, {kind}", seconds, done)


def unwanted() -> None:
    """A row that the command line leaves out."""
    raise gpu_rates.NotRunError("--no-compile")


def main() -> int:
    """Measure, and print the tables last."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument(
        "--cpu",
        action="store_true",
        help="toy sizes on this machine's processor: to see that it runs",
    )
    parser.add_argument(
        "--no-compile",
        action="store_true",
        help="leave the compiled rows out: a first compile can take minutes",
    )
    parser.add_argument("--seconds", type=float, default=530, help="for everything")
    parser.add_argument(
        "--measure-seconds",
        type=float,
        default=3.0,
        help="of the clock for a row, after it is warm",
    )
    parser.add_argument(
        "--only", default="", help="models and kinds whose `MODEL, KIND` holds this text"
    )
    parser.add_argument(
        "--out", type=Path, default=Path(os.environ.get("OUT") or ROOT / "benchmarks" / "results")
    )
    arguments = parser.parse_args()
    began = time.monotonic()
    if not arguments.cpu and not torch.cuda.is_available():
        print(
            "benchmarks/gpu.py: no GPU is here; run it on a machine with one, or try it at toy sizes with --cpu",
            file=sys.stderr,
        )
        return 2
    configure_torch(1 if arguments.cpu else min(8, os.cpu_count() or 1))
    device = select_device("cpu" if arguments.cpu else "cuda")
    torch.use_deterministic_algorithms(False)
    bench = Bench(device, arguments.out, began + arguments.seconds, arguments.measure_seconds)
    run(
        bench,
        papers(),
        toy=arguments.cpu,
        compile_too=not arguments.no_compile,
        only=arguments.only,
    )
    print("\n".join(lines(bench)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
