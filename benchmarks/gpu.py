"""Benchmark one NVIDIA GPU: correctness, peak speed, and training speed of each neural family.

Run `python benchmarks/gpu.py` from the root of the repository. It needs torch and the imports of
lineage's training, but no network and no installation. Everything ends within --seconds, compiling
included: each row has a time limit, and rows that are not finished are listed with the reason.
Results are written as they are measured, to the folder $OUT or to benchmarks/results.
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
# Without it two runs may differ. CUDA reads it once, when it starts.
os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")

import torch  # noqa: E402

from benchmarks import gpu_rates  # noqa: E402
from benchmarks.gpu_check import check_reproducibility, compare_with_cpu  # noqa: E402
from benchmarks.gpu_models import (  # noqa: E402
    TableColumn,
    Workload,
    build_model,
    count_flops_per_token,
    describe_machine,
    estimate_flops_per_token,
    paper_workloads,
    random_batches,
    toy_size,
)
from lineage.training.devices import configure_torch, select_device  # noqa: E402


@dataclass(frozen=True)
class StepKind:
    """A way to run a training step."""

    name: str
    build_step: gpu_rates.StepBuilder
    family_names: tuple[str, ...]
    max_seconds: int  # per row, compiling included
    is_compiled: bool = False


TRANSFORMERS = ("bert", "gpt")
RECURRENT = ("elmo", "ulmfit")
NEURAL = TRANSFORMERS + RECURRENT
# The most important kinds come first, in case the time is not enough for all of them.
STEP_KINDS = (
    StepKind("lineage", gpu_rates.lineage_default, NEURAL, 40),
    StepKind("lineage, deterministic", gpu_rates.lineage_deterministic, NEURAL, 40),
    # Only ELMo's LSTM is a loop of many kernel launches, which a CUDA graph makes cheaper.
    StepKind("lineage, CUDA graph", gpu_rates.lineage_cuda_graph, ("elmo",), 60),
    StepKind("transformers", gpu_rates.transformers_default, TRANSFORMERS, 40),
    StepKind("step-by-step cell", gpu_rates.step_by_step_lstm, RECURRENT, 40),
    StepKind(
        "lineage, compiled",
        gpu_rates.lineage_compiled,
        (*TRANSFORMERS, "ulmfit"),
        120,
        is_compiled=True,
    ),
    StepKind("lineage, bf16 weights", gpu_rates.lineage_bf16_weights, ("ulmfit",), 40),
    StepKind(
        "transformers, compiled",
        gpu_rates.transformers_compiled,
        TRANSFORMERS,
        120,
        is_compiled=True,
    ),
)
CEILINGS_MAX_SECONDS = 30
CHECK_MAX_SECONDS = 40
FLOPS_MAX_SECONDS = 40
MAX_REASON_CHARACTERS = 160
TARGET_NAMES = ("floor", "goal", "stretch")  # in the order of `Workload.targets`
COLUMNS = (
    TableColumn("training in bf16", "model", "<22"),
    TableColumn("kind", "kind", "<23"),
    TableColumn("tokens/s", "tokens_per_second", ">9", ",.0f"),
    TableColumn("lowest", "lowest", ">9", ",.0f"),
    TableColumn("highest", "highest", ">9", ",.0f"),
    TableColumn("ms/step", "step_ms", ">8", ".2f"),
    TableColumn("MFLOP/token", "formula", ">11", ".3g"),
    TableColumn("counted", "counted", ">7", ".3g"),
    TableColumn("TFLOP/s", "tflops", ">7", ".3g"),
    TableColumn("of 768", "share_of_768", ">6", ".0%"),
    TableColumn("of 8192", "share_of_8192", ">7", ".0%"),
    TableColumn("GiB", "peak_gib", ">5", ".1f"),
    TableColumn("first s", "first_steps_seconds", ">7", ".1f"),
    *(TableColumn(name, name, "<12") for name in TARGET_NAMES),
)


class TimeLimitError(gpu_rates.NotRunError):
    """The time of a row is over."""


@dataclass
class GpuBenchmark:
    """The results so far, and the time that is left."""

    device: torch.device
    out: Path
    deadline: float  # on the clock of time.monotonic
    measure_seconds: float
    machine: dict[str, Any] = field(default_factory=dict)
    checks: list[dict[str, Any]] = field(default_factory=list)
    rates: list[dict[str, Any]] = field(default_factory=list)
    not_run: list[dict[str, str]] = field(default_factory=list)
    # MFLOP per token by workload: "formula" and, if it could be counted, "counted".
    mflop_per_token: dict[str, dict[str, float]] = field(default_factory=dict)

    def write(self) -> None:
        """Write all results to gpu.json, atomically."""
        results = {
            "machine": self.machine,
            "checks": self.checks,
            "rates": self.rates,
            "not_run": self.not_run,
        }
        self.out.mkdir(parents=True, exist_ok=True)
        draft = self.out / ".gpu.json.draft"
        draft.write_text(json.dumps(results, indent=1, sort_keys=True) + "\n", encoding="utf-8")
        draft.replace(self.out / "gpu.json")

    def run_row(self, name: str, max_seconds: float, measure: Callable[[], None]) -> None:
        """Call `measure` with a time limit.

        If it fails or takes too long, the reason is recorded, and the next row can run.
        """
        start = time.monotonic()
        limit = min(max_seconds, self.deadline - start)
        timeout_reason = f"not done within {limit:.0f} s"

        def raise_time_limit(*_: object) -> None:
            raise TimeLimitError(timeout_reason)

        previous_handler = signal.signal(signal.SIGALRM, raise_time_limit)
        try:
            if limit < 1:
                raise TimeLimitError("no time left")
            signal.setitimer(signal.ITIMER_REAL, limit)
            measure()
            signal.setitimer(signal.ITIMER_REAL, 0)
        except Exception as error:  # a row that fails must not stop the others
            # A compiler may have wrapped the TimeLimitError in an error of its own.
            is_late = time.monotonic() - start >= limit > 1
            reason = timeout_reason if is_late else _format_error(error)
            reason = " ".join(reason.split())[:MAX_REASON_CHARACTERS]
            self.not_run.append({"row": name, "reason": reason})
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
            signal.signal(signal.SIGALRM, previous_handler)
            if self.device.type == "cuda":
                gc.collect()
                torch.cuda.empty_cache()
            self.write()
            print(f"{time.monotonic() - start:6.1f} s  {name}", file=sys.stderr, flush=True)


def _format_error(error: Exception) -> str:
    if isinstance(error, gpu_rates.NotRunError):
        return str(error)
    return f"{type(error).__name__}: {error}"


def measure_ceilings(device: torch.device, *, toy: bool) -> dict[str, float]:
    """Measure the TFLOP/s of two bf16 matrix products, and the TB/s of a copy.

    The matrices are random. The copy counts the bytes that are read and those that are written.
    """
    if toy:
        shapes = {"tflops_8192": (256, 256, 256), "tflops_768": (512, 96, 384)}
        copy_bytes = 2**20
    else:
        shapes = {"tflops_8192": (8192, 8192, 8192), "tflops_768": (32768, 768, 3072)}
        copy_bytes = 2**32
    ceilings = {}
    for name, (m, k, n) in shapes.items():
        a = torch.randn(m, k, device=device, dtype=torch.bfloat16)
        b = torch.randn(k, n, device=device, dtype=torch.bfloat16)
        product = torch.empty(m, n, device=device, dtype=torch.bfloat16)
        seconds = _median_seconds(partial(torch.mm, a, b, out=product), device)
        ceilings[name] = 2 * m * k * n / seconds / 1e12
    source = torch.randint(0, 255, (copy_bytes,), device=device, dtype=torch.uint8)
    target = torch.empty_like(source)
    seconds = _median_seconds(partial(target.copy_, source), device)
    ceilings["copy_tb_s"] = 2 * copy_bytes / seconds / 1e12
    return ceilings


def _median_seconds(call: Callable[[], object], device: torch.device) -> float:
    """Return the seconds per call: the median of seven rounds of ten calls, after a warm-up."""
    num_rounds = 7
    calls_per_round = 10
    seconds = []
    for _ in range(1 + num_rounds):
        start = time.perf_counter()
        for _ in range(calls_per_round):
            call()
        gpu_rates.synchronize(device)
        seconds.append((time.perf_counter() - start) / calls_per_round)
    return statistics.median(seconds[1:])


def measure_rate(benchmark: GpuBenchmark, workload: Workload, kind: StepKind) -> None:
    """Measure one kind of training step of one workload, and add the row to the results."""
    device = benchmark.device
    is_cuda = device.type == "cuda"
    if is_cuda:
        torch.cuda.reset_peak_memory_stats(device)
    with contextlib.ExitStack() as cleanup:
        throughput = gpu_rates.measure_throughput(
            kind.build_step(workload, device, cleanup),
            tokens_per_step=workload.batch_size * workload.seq_len,
            device=device,
            seconds=benchmark.measure_seconds,
        )
    mflop_per_token = benchmark.mflop_per_token[workload.name]
    tflops = throughput.median * mflop_per_token["formula"] / 1e6
    row: dict[str, Any] = {
        "model": workload.name,
        "kind": kind.name,
        "tokens_per_second": throughput.median,
        "lowest": throughput.lowest,
        "highest": throughput.highest,
        "step_ms": 1000 * throughput.step_seconds,
        "first_steps_seconds": throughput.first_steps_seconds,
        "peak_gib": torch.cuda.max_memory_allocated(device) / 2**30 if is_cuda else 0.0,
        "tflops": tflops,
        "mflop_per_token": mflop_per_token,
    }
    for size in ("768", "8192"):
        if f"tflops_{size}" in benchmark.machine:
            row[f"share_of_{size}"] = tflops / benchmark.machine[f"tflops_{size}"]
    for name, target in zip(TARGET_NAMES, workload.targets, strict=True):
        if target:
            row[name] = {"asked": target, "met": throughput.median >= target}
    benchmark.rates.append(row)


def compute_flops(benchmark: GpuBenchmark, workload: Workload) -> None:
    """Compute the MFLOP per token of a training step by formula, and count them if possible."""
    batch = random_batches(workload).get_batch(0)
    costs = {"formula": estimate_flops_per_token(workload, batch) / 1e6}
    benchmark.mflop_per_token[workload.name] = costs

    def count() -> None:
        model = build_model(workload, benchmark.device)
        costs["counted"] = count_flops_per_token(model, workload, batch) / 1e6

    benchmark.run_row(f"{workload.name}: counting", FLOPS_MAX_SECONDS, count)


def format_tables(benchmark: GpuBenchmark) -> Iterator[str]:
    """Yield the lines that are printed at the end."""
    facts = (
        f"{key}={round(value, 3) if isinstance(value, float) else value}"
        for key, value in benchmark.machine.items()
    )
    yield " ".join(facts)
    yield from _format_checks(benchmark.checks)
    for row in benchmark.not_run:
        yield f"not run: {row['row']}: {row['reason']}"
    yield " ".join(column.format_title() for column in COLUMNS).rstrip()
    for row in sorted(benchmark.rates, key=lambda row: row["model"]):
        targets = {name: _format_target(row.get(name)) for name in TARGET_NAMES}
        values = row | row["mflop_per_token"] | targets
        yield " ".join(column.format_value(values) for column in COLUMNS).rstrip()


def _format_checks(checks: list[dict[str, Any]]) -> Iterator[str]:
    yield f"{'check':<10} {'precision':<10} {'what':<20} {'distance':>10} {'limit':>8}  ok"
    is_reproducible: dict[str, bool] = {}
    for row in checks:
        ok = row["ok"]
        numbers = " " * 19
        if "distance" in row:
            numbers = f"{row['distance']:>10.1e} {row['limit']:>8.0e}"
        if "told_apart" in row:
            ok = ok and row["told_apart"]
            is_reproducible[row["family"]] = ok and is_reproducible.get(row["family"], True)
        yield (
            f"{row['family']:<10} {row['precision']:<10} {row['what']:<20} {numbers}  "
            f"{'yes' if ok else 'NO'}"
        )
    families = ", ".join(family for family, ok in is_reproducible.items() if ok)
    yield f"two runs of one seed end in the same bytes: {families or 'for no family'}"


def _format_target(target: dict[str, Any] | None) -> str:
    if target is None:
        return ""
    return f"{target['asked'] // 1000}k {'met' if target['met'] else 'missed'}"


@dataclass(frozen=True)
class RateRow:
    """A row of the table that is to be measured."""

    workload: Workload
    kind: StepKind

    @property
    def name(self) -> str:
        """Return `MODEL, KIND`."""
        return f"{self.workload.name}, {self.kind.name}"


def run(
    benchmark: GpuBenchmark,
    workloads: list[Workload],
    *,
    toy: bool,
    with_compiled: bool,
    only: str,
) -> None:
    """Run all checks and measurements, the most important ones first."""
    device = benchmark.device
    benchmark.machine = describe_machine(device)
    rows = [
        RateRow(workload, kind)
        for kind in STEP_KINDS
        for workload in workloads
        if workload.family.name in kind.family_names
    ]
    rows = [row for row in rows if only in row.name]
    measured_names = {row.workload.name for row in rows}
    workloads = [workload for workload in workloads if workload.name in measured_names]

    benchmark.run_row(
        "machine",
        CEILINGS_MAX_SECONDS,
        lambda: benchmark.machine.update(measure_ceilings(device, toy=toy)),
    )
    run_checks(benchmark, workloads)
    sizes = {workload.name: toy_size(workload) if toy else workload for workload in workloads}
    for workload in sizes.values():
        compute_flops(benchmark, workload)
    for row in rows:
        if row.kind.is_compiled and not with_compiled:
            measure = skip_compiled
        else:
            measure = partial(measure_rate, benchmark, sizes[row.workload.name], row.kind)
        benchmark.run_row(row.name, row.kind.max_seconds, measure)


def run_checks(benchmark: GpuBenchmark, workloads: list[Workload]) -> None:
    """Check one workload per family against the CPU, and for equal bytes of two runs."""
    device = benchmark.device
    if device.type == "cuda":
        torch.use_deterministic_algorithms(True)
    by_family = {workload.family.name: workload for workload in workloads}

    def run_check(
        check: Callable[[Workload, torch.device], list[dict[str, object]]], workload: Workload
    ) -> None:
        benchmark.checks.extend(check(workload, device))

    for name, workload in by_family.items():
        benchmark.run_row(
            f"{name}: against the CPU",
            CHECK_MAX_SECONDS,
            partial(run_check, compare_with_cpu, workload),
        )
        benchmark.run_row(
            f"{name}: same bytes",
            CHECK_MAX_SECONDS,
            partial(run_check, check_reproducibility, workload),
        )
    torch.use_deterministic_algorithms(False)


def skip_compiled() -> None:
    """Take the place of a compiled row that the command line excludes."""
    raise gpu_rates.NotRunError("--no-compile")


def parse_arguments() -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument(
        "--cpu",
        action="store_true",
        help="run toy sizes on the CPU, to test the script",
    )
    parser.add_argument(
        "--no-compile",
        action="store_true",
        help="skip the compiled rows: the first compilation can take minutes",
    )
    parser.add_argument("--seconds", type=float, default=530, help="time limit for everything")
    parser.add_argument(
        "--measure-seconds",
        type=float,
        default=3.0,
        help="measured time per row, after the warm-up",
    )
    parser.add_argument(
        "--only", default="", help="only rows whose name `MODEL, KIND` contains this text"
    )
    parser.add_argument(
        "--out", type=Path, default=Path(os.environ.get("OUT") or ROOT / "benchmarks" / "results")
    )
    return parser.parse_args()


def main() -> int:
    """Measure, and print the tables at the end. Returns 2 if there is no GPU."""
    arguments = parse_arguments()
    start = time.monotonic()
    if not arguments.cpu and not torch.cuda.is_available():
        print(
            "benchmarks/gpu.py: no GPU is here; run it on a machine with one, "
            "or try it at toy sizes with --cpu",
            file=sys.stderr,
        )
        return 2
    configure_torch(1 if arguments.cpu else min(8, os.cpu_count() or 1))
    device = select_device("cpu" if arguments.cpu else "cuda")
    torch.use_deterministic_algorithms(False)
    benchmark = GpuBenchmark(
        device, arguments.out, start + arguments.seconds, arguments.measure_seconds
    )
    run(
        benchmark,
        paper_workloads(),
        toy=arguments.cpu,
        with_compiled=not arguments.no_compile,
        only=arguments.only,
    )
    print("\n".join(format_tables(benchmark)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
