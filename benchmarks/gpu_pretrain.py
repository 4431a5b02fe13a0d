"""Pretrain the neural families under one matched budget on a machine with a GPU and no network, for so many minutes.

Where lineage is installed:   python benchmarks/gpu_pretrain.py --prepare FOLDER --out shards [--pairs blimp.parquet]
On the machine with the GPU:  python benchmarks/gpu_pretrain.py --shards shards --minutes 9

The first run measures each family's speed and sets the budget of text, the same for all, so that everything ends in time; it is kept. A run that was
killed, or whose time was up, is gone on with by the same command: checkpoints, ids and finished families lie in --work.
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
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))
os.environ.setdefault(
    "CUBLAS_WORKSPACE_CONFIG", ":4096:8"
)  # read once, when CUDA begins: without it two runs may differ

import numpy as np  # noqa: E402
import torch  # noqa: E402

from benchmarks.gpu_models import describe  # noqa: E402
from benchmarks.gpu_shards import FAMILIES, Wanted, prepare, settings_of, unpack  # noqa: E402
from lineage.artifacts import create_artifact, read_json, read_table, text_digest, write_json  # noqa: E402
from lineage.config.records import parse_record  # noqa: E402
from lineage.config.study import load_family  # noqa: E402
from lineage.errors import EvaluationError, InputError  # noqa: E402
from lineage.models.checkpoint import Checkpoint  # noqa: E402
from lineage.runtime.settings import STATE_DIR  # noqa: E402
from lineage.tokenizers.token_ids import TokenizedCorpus  # noqa: E402
from lineage.tokenizers.tokenizer import Tokenizer  # noqa: E402
from lineage.training.budget import match_parameter_budget  # noqa: E402
from lineage.training.curve import write_curve  # noqa: E402
from lineage.training.devices import configure_torch, select_device  # noqa: E402
from lineage.training.pretrain import (  # noqa: E402
    TrainContext,
    TrainOutput,
    compute_held_out_metrics,
    pretrain,
    to_validation_settings,
)

USABLE = 0.85  # of the minutes goes to training; the rest to validation, scoring, checkpoints and what was estimated too high
WARM_STEPS = 5
COLUMNS = (  # title, key, side and width, number format
    ("family", "family", "<7", ""),
    ("body", "body_parameters", ">11", ",.0f"),
    ("total", "total_parameters", ">11", ",.0f"),
    ("text MB", "text_mb", ">8", ".2f"),
    ("epochs", "epochs", ">6", ".2f"),
    ("steps", "steps", ">7", ",.0f"),
    ("seconds", "seconds", ">8", ".1f"),
    ("tokens/s", "tokens_per_second", ">10", ",.0f"),
    ("TFLOP/s", "tflops", ">8", ".3g"),
    ("bits/byte", "bits_per_byte", ">9", ".3f"),
    ("forward", "bits_per_byte_forward", ">8", ".3f"),
    ("backward", "bits_per_byte_backward", ">8", ".3f"),
    ("masked nats", "masked_nats", ">11", ".3f"),
    ("pairs %", "pairs", ">7", ".1f"),
    ("", "reason", "", ""),
)


class TimeUp(Exception):  # noqa: N818  # no error: the training goes on in the next run
    """This process has had its minutes."""


class NoTracker:
    """A tracker that logs nothing, for a machine without MLflow."""

    def log_metrics(self, values: dict[str, float], **_: object) -> None:
        """Do nothing."""

    def flush(self) -> None:
        """Do nothing."""


@dataclass(frozen=True)
class Place:
    """What all families of a run share."""

    device: torch.device
    shards: Path
    settings: dict[str, Any]
    work: Path
    precision: str
    parameters: int
    checkpoint_seconds: float

    def checkpoint(self, name: str) -> Checkpoint:
        """A family's model at the width that the budget asks for."""
        family, block = load_family(name), self.settings["models"][name]
        reader = Tokenizer.load(self.shards / self.settings["tokens"][name])
        model, training = (
            parse_record(kind, block[key], f"shards.json: models.{name}.{key}")
            for kind, key in (
                (family.architecture_class, "architecture"),
                (family.pretrain_class, "pretrain"),
            )
        )
        return Checkpoint(
            name,
            family,
            match_parameter_budget(
                family, model, vocab_size=reader.vocab_size, body_parameters=self.parameters
            ),
            training,
            reader,
            seed=1,
        )

    def tokens(self, name: str) -> Path:
        """The folder of its ids."""
        return unpack(self.shards, self.settings["tokens"][name], self.work)

    def train(
        self,
        name: str,
        *,
        text_bytes: float,
        resume: Path,
        report: Callable[[float, str], None],
        checkpoint_seconds: float,
    ) -> TrainOutput:
        """lineage's own pretraining; of a study's parameters it asks for these two alone."""
        params: Any = SimpleNamespace(
            budget=SimpleNamespace(text_bytes=text_bytes), precision=self.precision
        )
        conditions = TrainContext(self.device, NoTracker(), resume, checkpoint_seconds, report)  # type: ignore[arg-type]
        return pretrain(self.checkpoint(name), self.tokens(name), params, conditions)


def text_rate(place: Place, name: str, seconds: float) -> float:
    """Bytes of text a second, from the first steps of the training itself, which are thrown away."""
    far, seen = (
        1e15,
        list[tuple[float, float]](),
    )  # a budget so large that nothing but training happens

    def report(progress: float, note: str) -> None:
        number = len(seen)
        if number == WARM_STEPS or (
            number > WARM_STEPS and time.monotonic() - seen[WARM_STEPS][0] >= seconds
        ):
            if place.device.type == "cuda":
                torch.cuda.synchronize()
            seen.append((time.monotonic(), progress * far))
            if number > WARM_STEPS:
                raise TimeUp
        else:
            seen.append((time.monotonic(), progress * far))

    with tempfile.TemporaryDirectory() as folder, contextlib.suppress(TimeUp):
        place.train(
            name, text_bytes=far, resume=Path(folder), report=report, checkpoint_seconds=math.inf
        )
    (began, before), (ended, after) = seen[WARM_STEPS], seen[-1]
    return (after - before) / (ended - began)


def planned(
    place: Place, names: list[str], *, ends: float, text_bytes: int | None, seconds: float
) -> dict[str, Any]:
    """The budget of text: what was asked for, or what all families together can read in the time. Made once and kept."""
    path = place.work / "plan.json"
    if not path.is_file():
        rates = {} if text_bytes else {name: text_rate(place, name, seconds) for name in names}
        budget = text_bytes or int(
            max(0.0, USABLE * (ends - time.monotonic())) / sum(1 / rate for rate in rates.values())
        )
        if budget < 1:
            raise InputError(
                f"--minutes: no time is left to train in after the speed of {', '.join(names)} was measured; give more minutes"
            )
        write_json(path, {"text_bytes": budget, "text_bytes_per_second": rates})
    return read_json(path)


def scored(place: Place, checkpoint: Checkpoint, outcome: TrainOutput) -> dict[str, Any]:
    """Bits per byte or nats a target on all held text, and the share of minimal pairs whose better sentence is the more probable one."""
    family = checkpoint.family
    assert family.batch_sampler is not None and family.score_texts is not None
    held = family.batch_sampler(
        TokenizedCorpus.load(place.tokens(family.name), "valid"),
        checkpoint.tokenizer,
        to_validation_settings(checkpoint.pretrain),
        seed=0,
    )
    found: dict[str, Any] = compute_held_out_metrics(
        outcome.model, family.objective, held, precision=place.precision
    )  # type: ignore[arg-type]
    if (place.shards / "pairs.parquet").is_file():
        table = read_table(place.shards / "pairs.parquet")
        positions = getattr(checkpoint.architecture, "max_positions", None)
        limit = None if positions is None else min(positions, checkpoint.pretrain.seq_len)
        try:
            scores = family.score_texts(
                outcome.model.eval(),
                checkpoint.tokenizer,
                [*table["good"], *table["bad"]],
                limit=limit,
            )[:, 0]
            margins = scores[: len(table)] - scores[len(table) :]
            found["pairs"] = 100 * float(
                np.mean(np.where(margins > 0, 1.0, np.where(margins < 0, 0.0, 0.5)))
            )
        except EvaluationError as error:
            found["reason"] = str(error)
    return found


def family_row(place: Place, name: str, text_bytes: int, ends: float) -> dict[str, Any]:
    """Train and score one family, from its last checkpoint, or read what an earlier run found. Raises TimeUp."""
    path, began, told = place.work / "rows" / f"{name}.json", time.monotonic(), [0.0]
    if path.is_file():
        return read_json(path)

    def report(progress: float, note: str) -> None:
        now = time.monotonic()
        if now > ends:
            raise TimeUp
        if now - told[0] >= 1:
            told[0] = now
            print(f"{name} {progress:6.1%} {note}", file=sys.stderr, flush=True)

    if place.device.type == "cuda":
        torch.cuda.reset_peak_memory_stats()
    resume = place.work / "resume" / name
    resume.mkdir(parents=True, exist_ok=True)
    outcome = place.train(
        name,
        text_bytes=text_bytes,
        resume=resume,
        report=report,
        checkpoint_seconds=place.checkpoint_seconds,
    )
    seconds = outcome.curve.previous_seconds + time.monotonic() - began
    checkpoint, spent = place.checkpoint(name), outcome.budget_used
    peak = torch.cuda.max_memory_allocated() / 2**30 if place.device.type == "cuda" else None
    row: dict[str, Any] = {
        "family": name,
        **dataclasses.asdict(spent),
        "seconds": seconds,
        "peak_gib": peak,
        "status": outcome.status,
        "reason": outcome.reason,
    }
    row |= {
        "text_mb": (spent.text_bytes or 0) / 1e6,
        "tokens_per_second": (spent.tokens or 0) / seconds,
    }
    row |= {"tflops": (spent.train_flops or 0) / seconds / 1e12}
    if outcome.status == "ok":
        row |= scored(place, checkpoint, outcome)
        with create_artifact(place.work / "models" / name, "model", status=outcome.status) as draft:
            checkpoint.save(draft, outcome.model)
    write_curve(place.work / "curves" / f"{name}.parquet", outcome.curve)
    write_json(path, row)
    shutil.rmtree(resume)
    return row


def table(rows: list[dict[str, Any]]) -> str:
    """The rows as text; what a family has no such thing of is a dash."""
    shown = [" ".join(format(title, side) for title, _, side, _ in COLUMNS).rstrip()]
    for row in rows:
        cells = (
            format(format(row[key], shape) if row.get(key) is not None else "-", side)
            for _, key, side, shape in COLUMNS
        )
        shown.append(" ".join(cells).rstrip())
    return "\n".join(shown)


def run(arguments: argparse.Namespace) -> int:
    """Train every family; 0 when all are done, 3 where a family failed or the time was up first."""
    ends = time.monotonic() + 60 * arguments.minutes
    if not arguments.cpu and not torch.cuda.is_available():
        raise InputError("no GPU is here; run it on a machine with one, or with --cpu")
    settings = settings_of(arguments.shards)
    names = arguments.families or list(settings["models"])
    if lost := [name for name in names if name not in settings["models"]]:
        raise InputError(
            f"{arguments.shards}: {lost[0]} is not among its families; they are {', '.join(settings['models'])}"
        )
    configure_torch(1 if arguments.cpu else min(8, os.cpu_count() or 1))
    device = select_device("cpu" if arguments.cpu else "cuda")
    about = [
        settings,
        names,
        arguments.parameters,
        arguments.precision,
        arguments.text_bytes,
        device.type,
    ]
    work = arguments.work / text_digest(repr(about))[:12]
    place = Place(
        device,
        arguments.shards,
        settings,
        work,
        arguments.precision,
        arguments.parameters,
        arguments.checkpoint_seconds,
    )
    plan = planned(
        place, names, ends=ends, text_bytes=arguments.text_bytes, seconds=arguments.measure_seconds
    )
    rows: list[dict[str, Any]] = []
    found = {
        "machine": describe(device),
        "plan": plan,
        "parameters": arguments.parameters,
        "precision": arguments.precision,
        "families": rows,
    }
    for name in names:
        try:
            rows.append(family_row(place, name, plan["text_bytes"], ends))
        except TimeUp:
            rows.append(
                {
                    "family": name,
                    "status": "not done",
                    "reason": "time is up; run the same command again to go on",
                }
            )
        write_json(
            arguments.results / "gpu_pretrain.json",
            found | {"shards": settings["text_bytes"], "models": settings["models"]},
        )
    print(" ".join(f"{key}={value}" for key, value in found["machine"].items()))
    print(
        f"budget: {plan['text_bytes']:,} bytes of text, bodies of {arguments.parameters:,} parameters within 5 %, {arguments.precision}"
    )
    print(table(rows))
    return 0 if all(row["status"] == "ok" for row in rows) else 3


def parsed() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--prepare",
        type=Path,
        metavar="SOURCE",
        help="a folder of a corpus, or a parquet file, with a column 'text'",
    )
    parser.add_argument(
        "--out",
        type=Path,
        default=Path("shards"),
        help="with --prepare: the folder to write, of at most 60 MiB",
    )
    parser.add_argument(
        "--text-mb", type=float, default=35.0, help="with --prepare: megabytes of text"
    )
    parser.add_argument("--language", default="en", help="with --prepare")
    parser.add_argument("--vocabulary", type=int, help="with --prepare: of all tokenizers")
    parser.add_argument(
        "--pairs", type=Path, help="with --prepare: parquet of minimal pairs, such as BLiMP"
    )
    parser.add_argument("--pairs-per-group", type=int, default=20, help="with --prepare")
    parser.add_argument(
        "--families", nargs="+", choices=FAMILIES, help="all, or all that the shards have"
    )
    parser.add_argument("--shards", type=Path, default=Path("shards"))
    parser.add_argument(
        "--minutes",
        type=float,
        default=9.0,
        help="that this run may take; in the first run the budget follows from it",
    )
    parser.add_argument(
        "--text-bytes",
        type=int,
        help="the budget of each family, in place of what --minutes allows",
    )
    parser.add_argument("--parameters", type=int, default=20_000_000, help="of each body")
    parser.add_argument("--precision", choices=("bf16", "fp32"), default="bf16")
    parser.add_argument("--cpu", action="store_true", help="train on this machine's processor")
    parser.add_argument(
        "--work",
        type=Path,
        default=ROOT / STATE_DIR / "gpu_pretrain",
        help="checkpoints, models and what is done: keep it",
    )
    parser.add_argument(
        "--results",
        type=Path,
        default=Path(os.environ.get("OUT") or ROOT / "benchmarks" / "results"),
        help="gpu_pretrain.json",
    )
    parser.add_argument("--checkpoint-seconds", type=float, default=20.0)
    parser.add_argument(
        "--measure-seconds",
        type=float,
        default=3.0,
        help="of each family, to see how fast it reads",
    )
    return parser.parse_args()


def main() -> int:
    """Prepare or train; 2 where something is wrong with what was given, in one line."""
    arguments = parsed()
    try:
        if arguments.prepare is None:
            return run(arguments)
        families, text_bytes = tuple(arguments.families or FAMILIES), int(arguments.text_mb * 1e6)
        wanted = Wanted(
            arguments.prepare,
            families,
            text_bytes,
            arguments.language,
            arguments.vocabulary,
            arguments.pairs,
            arguments.pairs_per_group,
        )
        size = prepare(wanted, arguments.out)
        print(f"{arguments.out}: {size / 2**20:.1f} MiB for {', '.join(wanted.families)}")
        return 0
    except InputError as error:
        print(f"benchmarks/gpu_pretrain.py: {error}", file=sys.stderr)
        return 2


if __name__ == "__main__":
    sys.exit(main())
