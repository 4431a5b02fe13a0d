"""Measure a study's models and tasks in separate processes, as many at a time as stages run.

`python -m lineage.forecast.probe` reads a line of JSON for each measurement and answers with one.
Several at a time, because a core is slower while its neighbors compute. On Linux each measurement
is a fork, as a stage is (`flows.stage_process`), so its peak of memory is its own.
"""

import contextlib
import dataclasses
import json
import os
import subprocess
import sys
import threading
import traceback
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import torch

from lineage.config.params import Params
from lineage.config.records import parse_record
from lineage.errors import InputError
from lineage.forecast.evaluation import EvaluationCosts
from lineage.forecast.evaluation_probe import probe_evaluation
from lineage.forecast.measure import peak_memory_bytes
from lineage.forecast.ngram_probe import NgramCosts, probe_ngram
from lineage.forecast.task_probe import TaskCosts, probe_task
from lineage.forecast.training import (
    TokenizerCosts,
    TrainingCosts,
    probe_tokenizer,
    probe_training,
)
from lineage.runtime.code import PROJECT_ROOT
from lineage.study.models import load_model_config
from lineage.training.devices import configure_torch, select_device

Key = tuple[str, str, str]  # verb, model and task of a measurement, or empty
Costs = TokenizerCosts | TrainingCosts | EvaluationCosts | TaskCosts | NgramCosts
COST_TYPES: dict[str, type[Any]] = {
    "task": TaskCosts,
    "tokenizer": TokenizerCosts,
    "tokenizer_part": TokenizerCosts,
    "pretrain": TrainingCosts,
    "evaluate": EvaluationCosts,
    "ngram": NgramCosts,
}
# The share of the sample on which a tokenizer is trained.
TOKENIZER_SHARES = {"tokenizer_part": 0.25, "tokenizer": 1.0}


@dataclass(frozen=True)
class Measurement:
    """One thing to measure: a stage of a model, or of a task, or the stage ngram.

    `tokenizer_part` is `tokenizer` on a part of the sample: the difference between their peaks of
    memory is that of the text.
    """

    verb: str  # task, tokenizer_part, tokenizer, pretrain, evaluate or ngram
    model: str = ""
    task: str = ""
    max_seconds: float = 1.0

    @property
    def key(self) -> Key:
        """The name under which its result is kept."""
        return self.verb, self.model, self.task

    @property
    def name(self) -> str:
        """The name of the measurement, for progress and messages."""
        return " ".join(part for part in self.key if part)


@dataclass(frozen=True)
class ProbeSetup:
    """The inputs that all measurements of a study share."""

    params: Params
    scratch: Path
    data_root: Path
    device_index: int


@dataclass(frozen=True)
class Measured:
    """The costs of one measurement, and the most memory that its process held."""

    costs: Any
    memory_bytes: int


def measure(measurement: Measurement, setup: ProbeSetup) -> Costs:
    """Run one measurement in this process."""
    params = setup.params
    scratch = setup.scratch
    max_seconds = measurement.max_seconds
    if measurement.verb == "task":
        return probe_task(measurement.task, params, scratch, max_seconds=max_seconds)
    if measurement.verb == "ngram":
        return probe_ngram(params, scratch)
    model = load_model_config(params, measurement.model)
    if measurement.verb in TOKENIZER_SHARES:
        return probe_tokenizer(
            model,
            params,
            scratch,
            setup.data_root,
            share=TOKENIZER_SHARES[measurement.verb],
            max_seconds=max_seconds,
        )
    device_name = params.device if torch.cuda.is_available() else "cpu"
    device = select_device(device_name, setup.device_index)
    if measurement.verb == "pretrain":
        return probe_training(
            model, params, scratch, setup.data_root, device, max_seconds=max_seconds
        )
    return probe_evaluation(
        model,
        params,
        scratch / "pretrained" / model.name,
        scratch / "tokens" / model.name,
        scratch / "tasks" / measurement.task,
        device,
        max_seconds=max_seconds,
    )


class Probe:
    """Processes that measure while the block lasts."""

    def __init__(self, setup: ProbeSetup, *, jobs: int) -> None:
        self._setup = setup
        self._jobs = jobs
        self._exit_stack = contextlib.ExitStack()
        self._processes: list[_ProbeProcess] = []

    def __enter__(self) -> Self:
        for _ in range(self._jobs):
            process = _ProbeProcess(self._setup)
            self._processes.append(process)
            self._exit_stack.callback(process.close)
        return self

    def __exit__(self, *error: object) -> None:
        self._exit_stack.close()

    def measure(
        self,
        chains: Sequence[Sequence[Measurement]],
        on_progress: Callable[[float, str], None],
    ) -> dict[Key, Measured]:
        """Run chains of measurements, one in each process; those of a chain follow each other.

        Raises InputError if a measurement cannot be done.
        """
        waiting = iter(chains)
        lock = threading.Lock()
        results: dict[Key, Measured] = {}
        total = sum(map(len, chains))

        def work(process: _ProbeProcess) -> None:
            while True:
                with lock:
                    chain = next(waiting, ())
                if not chain:
                    return
                for measurement in chain:
                    measured = process.run(measurement)
                    with lock:
                        results[measurement.key] = measured
                        on_progress(len(results) / total, measurement.name)

        with ThreadPoolExecutor(self._jobs) as pool:
            for future in [pool.submit(work, process) for process in self._processes]:
                future.result()
        return results


class _ProbeProcess:
    """A process that makes measurements on request."""

    def __init__(self, setup: ProbeSetup) -> None:
        environment = dict(os.environ)
        for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
            environment[name] = str(setup.params.threads)
        environment["PYTHONPATH"] = os.pathsep.join(
            part for part in (str(PROJECT_ROOT), environment.get("PYTHONPATH")) if part
        )
        # The study's folder, which is the current one, may hold files named like modules.
        environment["PYTHONSAFEPATH"] = "1"
        self._child = subprocess.Popen(
            [sys.executable, "-m", "lineage.forecast.probe"],
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        request = dataclasses.asdict(setup) | {
            "scratch": str(setup.scratch),
            "data_root": str(setup.data_root),
        }
        self._send(request)

    def close(self) -> None:
        """End the process."""
        assert self._child.stdin is not None and self._child.stdout is not None
        with contextlib.suppress(BrokenPipeError):
            self._child.stdin.close()
        self._child.stdout.close()
        self._child.terminate()
        self._child.wait()

    def run(self, measurement: Measurement) -> Measured:
        """Return what the process measures. Raises InputError."""
        self._send(dataclasses.asdict(measurement))
        assert self._child.stdout is not None
        line = self._child.stdout.readline()
        name = measurement.name
        if not line:
            raise InputError(f"forecast of {name}: the probe ended early; is memory short?")
        answer = json.loads(line)
        if "error" in answer:
            raise InputError(f"forecast of {name}: {answer['error']}")
        costs = parse_record(COST_TYPES[measurement.verb], answer["costs"], name)
        return Measured(costs, answer["memory_bytes"])

    def _send(self, value: Any) -> None:
        assert self._child.stdin is not None
        try:
            self._child.stdin.write(json.dumps(value) + "\n")
            self._child.stdin.flush()
        except BrokenPipeError:  # `run` finds no answer and says so
            return


def _answer(measurement: Measurement, setup: ProbeSetup) -> dict[str, Any]:
    """Return the costs of a measurement, or why there are none."""
    try:
        costs = measure(measurement, setup)
    except InputError as error:
        return {"error": str(error)}
    except Exception as error:
        traceback.print_exc()
        return {"error": f"{type(error).__name__}: {error}"}
    return {"costs": dataclasses.asdict(costs), "memory_bytes": peak_memory_bytes()}


def _answer_in_fork(measurement: Measurement, setup: ProbeSetup) -> str:
    """Run a measurement in a fork, and return its answer as a line; empty if it was killed."""
    receiver, sender = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(receiver)
        with os.fdopen(sender, "w") as stream:
            stream.write(json.dumps(_answer(measurement, setup)))
        os._exit(0)
    os.close(sender)
    with os.fdopen(receiver) as stream:
        line = stream.read()
    os.waitpid(child, 0)
    return line


def main() -> None:
    """Answer measurements until the input ends."""
    request = json.loads(sys.stdin.readline())
    params = parse_record(Params, request["params"], "params.yaml")
    setup = ProbeSetup(
        params,
        Path(request["scratch"]),
        Path(request["data_root"]),
        device_index=request["device_index"],
    )
    configure_torch(params.threads)
    for line in sys.stdin:
        measurement = Measurement(**json.loads(line))
        if sys.platform == "linux":  # elsewhere a process with many imports cannot fork safely
            answer = _answer_in_fork(measurement, setup)
        else:
            answer = json.dumps(_answer(measurement, setup))
        if not answer:
            return
        print(answer, flush=True)


if __name__ == "__main__":
    main()
