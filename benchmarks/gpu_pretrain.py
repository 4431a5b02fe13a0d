"""Pretrain the neural families on one budget of text, on a machine with a GPU and no network.

Where lineage is installed:   python benchmarks/gpu_pretrain.py --prepare FOLDER --out shards
On the machine with the GPU:  python benchmarks/gpu_pretrain.py --shards shards --minutes 9

The first run measures the speed of each family. From it follows the budget of text, the same for
all families, that can be read within --minutes. The budget is saved. If a run is killed, or its
time is over, the same command continues it from the checkpoints, token ids and finished families
in --work.
"""

import argparse
import contextlib
import dataclasses
import math
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))
# Without it two runs may differ. CUDA reads it once, when it starts.
os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")

import numpy as np  # noqa: E402
import torch  # noqa: E402

from benchmarks.gpu_models import TableColumn, describe_machine  # noqa: E402
from benchmarks.gpu_shards import (  # noqa: E402
    FAMILIES,
    ShardRequest,
    load_settings,
    prepare_shards,
    unpack_token_ids,
)
from lineage.artifacts import (  # noqa: E402
    create_artifact,
    read_json,
    read_table,
    text_digest,
    write_json,
)
from lineage.config.records import parse_record  # noqa: E402
from lineage.errors import EvaluationError, InputError  # noqa: E402
from lineage.networks.base import Encoder  # noqa: E402
from lineage.networks.checkpoint import Checkpoint  # noqa: E402
from lineage.networks.registry import load_family  # noqa: E402
from lineage.runtime.settings import STATE_DIR  # noqa: E402
from lineage.tokenizers.token_ids import TokenizedCorpus  # noqa: E402
from lineage.tokenizers.tokenizer import Tokenizer  # noqa: E402
from lineage.training.budget import match_parameter_budget  # noqa: E402
from lineage.training.curve import write_curve  # noqa: E402
from lineage.training.devices import configure_torch, select_device  # noqa: E402
from lineage.training.pretrain import (  # noqa: E402
    TrainOutput,
    compute_held_out_metrics,
    pretrain,
    to_validation_settings,
)
from lineage.training.train_run import TrainContext  # noqa: E402

# The share of the time that is planned for training. The rest is for validation, scoring,
# checkpoints, and errors of the estimate.
TRAINING_SHARE = 0.85
NUM_WARMUP_STEPS = 5
UNLIMITED_TEXT_BYTES = 1e15
EXIT_OK = 0
EXIT_WRONG_INPUT = 2
EXIT_INCOMPLETE = 3
COLUMNS = (
    TableColumn("family", "family", "<7"),
    TableColumn("body", "body_parameters", ">11", ",.0f"),
    TableColumn("total", "total_parameters", ">11", ",.0f"),
    TableColumn("text MB", "text_mb", ">8", ".2f"),
    TableColumn("epochs", "epochs", ">6", ".2f"),
    TableColumn("steps", "steps", ">7", ",.0f"),
    TableColumn("seconds", "seconds", ">8", ".1f"),
    TableColumn("tokens/s", "tokens_per_second", ">10", ",.0f"),
    TableColumn("TFLOP/s", "tflops", ">8", ".3g"),
    TableColumn("bits/byte", "bits_per_byte", ">9", ".3f"),
    TableColumn("forward", "bits_per_byte_forward", ">8", ".3f"),
    TableColumn("backward", "bits_per_byte_backward", ">8", ".3f"),
    TableColumn("masked nats", "masked_nats", ">11", ".3f"),
    TableColumn("pairs %", "pairs", ">7", ".1f"),
    TableColumn("", "reason", ""),
)


class OutOfTime(Exception):  # noqa: N818  # not an error: the next run continues the training
    """The time of this process is over."""


class NoTracker:
    """A tracker that logs nothing, for a machine without MLflow."""

    def log_metrics(self, values: dict[str, float], **_: object) -> None:
        """Do nothing."""


@dataclass(frozen=True)
class PretrainSetup:
    """Inputs shared by all families of a run."""

    device: torch.device
    shards: Path
    settings: dict[str, Any]  # those of shards.json
    work: Path
    precision: str
    body_parameters: int
    checkpoint_seconds: float

    def build_checkpoint(self, name: str) -> Checkpoint:
        """Return a family's untrained checkpoint, with the width of the parameter budget."""
        family = load_family(name)
        block = self.settings["models"][name]
        where = f"shards.json: models.{name}"
        architecture = parse_record(
            family.architecture_class, block["architecture"], f"{where}.architecture"
        )
        pretrain_settings = parse_record(
            family.pretrain_class, block["pretrain"], f"{where}.pretrain"
        )
        tokenizer = Tokenizer.load(self.shards / self.settings["tokens"][name])
        architecture = match_parameter_budget(
            family,
            architecture,
            vocab_size=tokenizer.vocab_size,
            body_parameters=self.body_parameters,
        )
        return Checkpoint(name, family, architecture, pretrain_settings, tokenizer, seed=1)

    def token_folder(self, name: str) -> Path:
        """Return the folder of a family's token ids."""
        return unpack_token_ids(self.shards, self.settings["tokens"][name], self.work)

    def train(
        self,
        name: str,
        *,
        text_bytes: float,
        checkpoint_dir: Path,
        report_progress: Callable[[float, str], None],
        checkpoint_seconds: float,
    ) -> TrainOutput:
        """Run lineage's own pretraining."""
        # `pretrain` reads only these parameters of a study.
        params: Any = SimpleNamespace(
            budget=SimpleNamespace(text_bytes=text_bytes),
            grid=SimpleNamespace(text_shares=()),
            precision=self.precision,
        )
        context = TrainContext(
            self.device,
            NoTracker(),  # type: ignore[arg-type]
            checkpoint_dir,
            checkpoint_seconds,
            report_progress,
        )
        return pretrain(self.build_checkpoint(name), self.token_folder(name), params, context)


@dataclass
class SpeedProbe:
    """Measures how fast a training reads text, and stops it after `seconds`."""

    device: torch.device
    seconds: float
    num_steps: int = 0
    start: tuple[float, float] = field(default=(0.0, 0.0))  # seconds, bytes of text
    end: tuple[float, float] = field(default=(0.0, 0.0))

    def report_progress(self, progress: float, note: str) -> None:
        """Count a step. Raises OutOfTime after `seconds`, not counting the warm-up."""
        self.num_steps += 1
        text_bytes = progress * UNLIMITED_TEXT_BYTES
        if self.num_steps == NUM_WARMUP_STEPS + 1:
            self._synchronize()
            self.start = (time.monotonic(), text_bytes)
        elif self.num_steps > NUM_WARMUP_STEPS + 1:
            start_seconds, _ = self.start
            is_done = time.monotonic() - start_seconds >= self.seconds
            if is_done:
                self._synchronize()
            self.end = (time.monotonic(), text_bytes)
            if is_done:
                raise OutOfTime

    def bytes_per_second(self) -> float:
        """Return the bytes of text per second."""
        start_seconds, start_bytes = self.start
        end_seconds, end_bytes = self.end
        return (end_bytes - start_bytes) / (end_seconds - start_seconds)

    def _synchronize(self) -> None:
        if self.device.type == "cuda":
            torch.cuda.synchronize()


def measure_text_rate(setup: PretrainSetup, name: str, seconds: float) -> float:
    """Return the bytes of text per second of a training that is thrown away."""
    probe = SpeedProbe(setup.device, seconds)
    with tempfile.TemporaryDirectory() as folder, contextlib.suppress(OutOfTime):
        # With this budget, the training reaches no validation and no checkpoint.
        setup.train(
            name,
            text_bytes=UNLIMITED_TEXT_BYTES,
            checkpoint_dir=Path(folder),
            report_progress=probe.report_progress,
            checkpoint_seconds=math.inf,
        )
    return probe.bytes_per_second()


def load_or_make_plan(
    setup: PretrainSetup,
    names: list[str],
    *,
    deadline: float,
    text_bytes: int | None,
    measure_seconds: float,
) -> dict[str, Any]:
    """Return the budget of text: the requested one, or what all families can read in the time.

    It is made by the first run and saved.
    """
    path = setup.work / "plan.json"
    if not path.is_file():
        rates: dict[str, float] = {}
        if text_bytes:
            budget = text_bytes
        else:
            rates = {name: measure_text_rate(setup, name, measure_seconds) for name in names}
            training_seconds = TRAINING_SHARE * (deadline - time.monotonic())
            seconds_per_byte = sum(1 / rate for rate in rates.values())
            budget = int(max(0.0, training_seconds) / seconds_per_byte)
        if budget < 1:
            raise InputError(
                "--minutes: no time is left to train in after the speed of "
                f"{', '.join(names)} was measured; give more minutes"
            )
        write_json(path, {"text_bytes": budget, "text_bytes_per_second": rates})
    return read_json(path)


def score(setup: PretrainSetup, checkpoint: Checkpoint, model: Encoder) -> dict[str, Any]:
    """Score a trained model on all held-out text and on the minimal pairs.

    The metrics are bits per byte or nats per target, and the percentage of pairs whose good
    sentence is the more probable one.
    """
    family = checkpoint.family
    assert family.batch_sampler is not None
    assert family.objective is not None
    valid_sampler = family.batch_sampler(
        TokenizedCorpus.load(setup.token_folder(family.name), "valid"),
        checkpoint.tokenizer,
        to_validation_settings(checkpoint.pretrain),
        seed=0,
    )
    metrics: dict[str, Any] = compute_held_out_metrics(
        model, family.objective, valid_sampler, precision=setup.precision
    )
    pairs_path = setup.shards / "pairs.parquet"
    if pairs_path.is_file():
        pairs = read_table(pairs_path)
        try:
            metrics["pairs"] = score_pairs(checkpoint, model, [*pairs["good"]], [*pairs["bad"]])
        except EvaluationError as error:
            metrics["reason"] = str(error)
    return metrics


def score_pairs(checkpoint: Checkpoint, model: Encoder, good: list[str], bad: list[str]) -> float:
    """Return the percentage of pairs whose good sentence is more probable; ties count half."""
    score_texts = checkpoint.family.score_texts
    assert score_texts is not None
    max_positions = getattr(checkpoint.architecture, "max_positions", None)
    limit = None
    if max_positions is not None:
        limit = min(max_positions, checkpoint.pretrain.seq_len)
    scores = score_texts(model.eval(), checkpoint.tokenizer, [*good, *bad], limit=limit)
    log_probabilities = scores[:, 0]
    margins = log_probabilities[: len(good)] - log_probabilities[len(good) :]
    points = np.where(margins > 0, 1.0, 0.5)
    points[margins < 0] = 0.0
    return 100 * float(np.mean(points))


@dataclass
class ProgressReporter:
    """Prints the progress of a family once a second, and stops its training at the deadline."""

    name: str
    deadline: float
    last_print: float = 0.0

    def report_progress(self, progress: float, note: str) -> None:
        """Print the progress. Raises OutOfTime after the deadline."""
        now = time.monotonic()
        if now > self.deadline:
            raise OutOfTime
        if now - self.last_print >= 1:
            self.last_print = now
            print(f"{self.name} {progress:6.1%} {note}", file=sys.stderr, flush=True)


def train_family(
    setup: PretrainSetup, name: str, text_bytes: int, deadline: float
) -> dict[str, Any]:
    """Train and score a family, from its last checkpoint if there is one, and return its row.

    If an earlier run finished the family, its row is read. Raises OutOfTime.
    """
    row_path = setup.work / "rows" / f"{name}.json"
    if row_path.is_file():
        return read_json(row_path)

    start = time.monotonic()
    is_cuda = setup.device.type == "cuda"
    if is_cuda:
        torch.cuda.reset_peak_memory_stats()
    checkpoint_dir = setup.work / "resume" / name
    checkpoint_dir.mkdir(parents=True, exist_ok=True)
    output = setup.train(
        name,
        text_bytes=text_bytes,
        checkpoint_dir=checkpoint_dir,
        report_progress=ProgressReporter(name, deadline).report_progress,
        checkpoint_seconds=setup.checkpoint_seconds,
    )
    seconds = output.curve.previous_seconds + time.monotonic() - start
    budget_used = output.budget_used
    row: dict[str, Any] = {
        "family": name,
        **dataclasses.asdict(budget_used),
        "seconds": seconds,
        "peak_gib": torch.cuda.max_memory_allocated() / 2**30 if is_cuda else None,
        "status": output.status,
        "reason": output.reason,
        "text_mb": (budget_used.text_bytes or 0) / 1e6,
        "tokens_per_second": (budget_used.tokens or 0) / seconds,
        "tflops": (budget_used.train_flops or 0) / seconds / 1e12,
    }
    if output.status == "ok":
        checkpoint = setup.build_checkpoint(name)
        row |= score(setup, checkpoint, output.model)
        model_dir = setup.work / "models" / name
        with create_artifact(model_dir, "model", status=output.status) as draft:
            checkpoint.save(draft, output.model)
    write_curve(setup.work / "curves" / f"{name}.parquet", output.curve)
    write_json(row_path, row)
    shutil.rmtree(checkpoint_dir)
    return row


def format_table(rows: list[dict[str, Any]]) -> str:
    """Format the rows as text."""
    header = " ".join(column.format_title() for column in COLUMNS)
    lines = [" ".join(column.format_value(row) for column in COLUMNS) for row in rows]
    return "\n".join(line.rstrip() for line in (header, *lines))


def run(arguments: argparse.Namespace) -> int:
    """Train all families. Returns 3 if one failed or is not finished, and 0 if not.

    Raises InputError.
    """
    deadline = time.monotonic() + 60 * arguments.minutes
    if not arguments.cpu and not torch.cuda.is_available():
        raise InputError("no GPU is here; run it on a machine with one, or with --cpu")
    settings = load_settings(arguments.shards)
    names = arguments.families or list(settings["models"])
    missing = [name for name in names if name not in settings["models"]]
    if missing:
        raise InputError(
            f"{arguments.shards}: {missing[0]} is not among its families; "
            f"they are {', '.join(settings['models'])}"
        )
    configure_torch(1 if arguments.cpu else min(8, os.cpu_count() or 1))
    setup = build_setup(arguments, settings, names)
    plan = load_or_make_plan(
        setup,
        names,
        deadline=deadline,
        text_bytes=arguments.text_bytes,
        measure_seconds=arguments.measure_seconds,
    )
    machine = describe_machine(setup.device)
    rows: list[dict[str, Any]] = []
    for name in names:
        try:
            row = train_family(setup, name, plan["text_bytes"], deadline)
        except OutOfTime:
            reason = "time is up; run the same command again to go on"
            row = {"family": name, "status": "not done", "reason": reason}
        rows.append(row)
        results = {
            "machine": machine,
            "plan": plan,
            "parameters": arguments.parameters,
            "precision": arguments.precision,
            "families": rows,
            "shards": settings["text_bytes"],
            "models": settings["models"],
        }
        write_json(arguments.results / "gpu_pretrain.json", results)
    print(" ".join(f"{key}={value}" for key, value in machine.items()))
    print(
        f"budget: {plan['text_bytes']:,} bytes of text, bodies of {arguments.parameters:,} "
        f"parameters within 5 %, {arguments.precision}"
    )
    print(format_table(rows))
    return EXIT_OK if all(row["status"] == "ok" for row in rows) else EXIT_INCOMPLETE


def build_setup(
    arguments: argparse.Namespace, settings: dict[str, Any], names: list[str]
) -> PretrainSetup:
    """Return the shared inputs. Different inputs get different folders below --work."""
    device = select_device("cpu" if arguments.cpu else "cuda")
    inputs = [
        settings,
        names,
        arguments.parameters,
        arguments.precision,
        arguments.text_bytes,
        device.type,
    ]
    return PretrainSetup(
        device,
        arguments.shards,
        settings,
        arguments.work / text_digest(repr(inputs))[:12],
        arguments.precision,
        arguments.parameters,
        arguments.checkpoint_seconds,
    )


def parse_arguments() -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    shards = parser.add_argument_group("to prepare the shards")
    shards.add_argument(
        "--prepare",
        type=Path,
        metavar="SOURCE",
        help="the folder of a corpus, or a parquet file, with a column 'text'",
    )
    shards.add_argument(
        "--out",
        type=Path,
        default=Path("shards"),
        help="the folder to write, at most 60 MiB",
    )
    shards.add_argument("--text-mb", type=float, default=35.0, help="megabytes of training text")
    shards.add_argument("--language", default="en")
    shards.add_argument("--vocabulary", type=int, help="vocabulary size of all tokenizers")
    shards.add_argument("--pairs", type=Path, help="a parquet file of minimal pairs, such as BLiMP")
    shards.add_argument("--pairs-per-group", type=int, default=20)
    parser.add_argument(
        "--families", nargs="+", choices=FAMILIES, help="default: all, or all of the shards"
    )
    parser.add_argument("--shards", type=Path, default=Path("shards"))
    parser.add_argument(
        "--minutes",
        type=float,
        default=9.0,
        help="time limit of this run; in the first run it also sets the budget",
    )
    parser.add_argument(
        "--text-bytes",
        type=int,
        help="the budget of each family, instead of what fits into --minutes",
    )
    parser.add_argument(
        "--parameters", type=int, default=20_000_000, help="parameters of each body"
    )
    parser.add_argument("--precision", choices=("bf16", "fp32"), default="bf16")
    parser.add_argument("--cpu", action="store_true", help="train on the CPU")
    parser.add_argument(
        "--work",
        type=Path,
        default=ROOT / STATE_DIR / "gpu_pretrain",
        help="folder of checkpoints, models and finished families; keep it to continue a run",
    )
    parser.add_argument(
        "--results",
        type=Path,
        default=Path(os.environ.get("OUT") or ROOT / "benchmarks" / "results"),
        help="folder of gpu_pretrain.json",
    )
    parser.add_argument("--checkpoint-seconds", type=float, default=20.0)
    parser.add_argument(
        "--measure-seconds",
        type=float,
        default=3.0,
        help="time to measure the speed of each family",
    )
    return parser.parse_args()


def main() -> int:
    """Prepare the shards, or train. Returns 2 after an error in the inputs."""
    arguments = parse_arguments()
    try:
        if arguments.prepare is None:
            return run(arguments)
        request = ShardRequest(
            source=arguments.prepare,
            families=tuple(arguments.families or FAMILIES),
            text_bytes=int(arguments.text_mb * 1e6),
            language=arguments.language,
            vocab_size=arguments.vocabulary,
            pairs=arguments.pairs,
            pairs_per_group=arguments.pairs_per_group,
        )
        size_bytes = prepare_shards(request, arguments.out)
        print(f"{arguments.out}: {size_bytes / 2**20:.1f} MiB for {', '.join(request.families)}")
        return EXIT_OK
    except InputError as error:
        print(f"benchmarks/gpu_pretrain.py: {error}", file=sys.stderr)
        return EXIT_WRONG_INPUT


if __name__ == "__main__":
    sys.exit(main())
