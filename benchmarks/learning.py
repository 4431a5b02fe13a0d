"""Measure what language models learn in the same core-minutes, and beside what counting reaches.

    python -m benchmarks.learning --minutes 5 15

The sides read 10 MB of text with one tokenizer, and their bodies have a million parameters: our
families that predict the next token, nanoGPT's recipe, and transformers' Trainer with its default
settings. A side trains anew for each number of minutes, with a schedule that ends then; minutes are
those of the processor, of one thread, without validation. All predict the same held-out text, in
windows of 128 tokens. Results are written to benchmarks/results after each training (learning.json,
learning.md), and a result that is there is not measured again.

Shapes: B items, T positions, V vocabulary.
"""

import argparse
import dataclasses
import importlib.util
import json
import math
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers
from torch.nn import functional as F

from benchmarks.contest import describe_machine
from benchmarks.networks import build_trainer
from benchmarks.text import load_documents
from lineage.config.params import Budget, read_params
from lineage.config.resolve import fill_in_defaults
from lineage.evaluation.kneser_ney import fit_kneser_ney
from lineage.evaluation.ngram import boundary_token_id
from lineage.networks.batch import Batch
from lineage.networks.checkpoint import Checkpoint
from lineage.study.models import parse_model_config
from lineage.tokenizers.token_ids import TokenizedCorpus, encode_corpus
from lineage.tokenizers.tokenizer import Tokenizer, TokenizerSettings
from lineage.tokenizers.train import train_tokenizer
from lineage.training.budget import match_parameter_budget
from lineage.training.devices import configure_torch
from lineage.training.loop import train
from lineage.training.pretrain import build_training
from lineage.training.samplers import CausalWindows, iterate_batches
from lineage.training.settings import PretrainSettings

RESULTS = Path(__file__).parent / "results"
WINDOW = 128  # tokens
SECONDS_PER_MINUTE = 60.0
SEED = 7
TIMED_STEPS = (10, 40)  # of the Trainer, whose schedule needs the number of steps in advance


@dataclass(frozen=True)
class Sizes:
    """The sizes of the comparison."""

    train_bytes: int = 10_000_000
    valid_bytes: int = 500_000
    vocab_size: int = 8000
    body_parameters: int = 1_000_000
    hf_width: int = 144  # of four layers: 12 x 4 x 144 x 144 parameters


TOY = Sizes(
    train_bytes=60_000, valid_bytes=10_000, vocab_size=600, body_parameters=100_000, hf_width=44
)


@dataclass(frozen=True)
class Text:
    """What all sides read and predict."""

    tokenizer: Tokenizer
    train: TokenizedCorpus
    valid: TokenizedCorpus
    description: str

    def windows(self, tokens: TokenizedCorpus, batch_size: int) -> CausalWindows:
        settings = PretrainSettings(batch_size=batch_size, seq_len=WINDOW, learning_rate=1.0)
        return CausalWindows(tokens, self.tokenizer, settings, seed=SEED)


@dataclass(frozen=True)
class Learned:
    """A trained network, which maps a batch to the logits (B, T, V), and the text it has read."""

    logits: Callable[[Batch], torch.Tensor]
    steps: int
    text_bytes: int


def prepare_text(sizes: Sizes) -> Text:
    """Train the tokenizer and encode both texts."""
    documents, description = load_documents(sizes.train_bytes + sizes.valid_bytes)
    valid: list[str] = []
    rest = [*documents]
    while sum(len(one.encode()) for one in valid) < sizes.valid_bytes:
        valid.append(rest.pop())
    settings = TokenizerSettings(vocab_size=sizes.vocab_size)
    tokenizer = train_tokenizer(rest, settings, tokenizer_type="byte_bpe", language="en")
    return Text(
        tokenizer, encode_corpus(rest, tokenizer), encode_corpus(valid, tokenizer), description
    )


def learn_ours(name: str, text: Text, sizes: Sizes, minutes: float) -> Learned:
    """Train one of our families with its defaults."""
    block = {
        "tokenizer": {"vocab_size": sizes.vocab_size},
        "architecture": {"max_positions": WINDOW},
        "pretrain": {"seq_len": WINDOW},
    }
    model = parse_model_config(name, fill_in_defaults(name, block), "benchmark")
    architecture = match_parameter_budget(
        model.family,
        model.architecture,
        vocab_size=text.tokenizer.vocab_size,
        body_parameters=sizes.body_parameters,
    )
    checkpoint = Checkpoint(name, model.family, architecture, model.pretrain, text.tokenizer, SEED)
    params = read_params(Path(__file__).parents[1] / "params.yaml")
    budget = Budget("general", sizes.train_bytes, 1, sizes.body_parameters)
    params = dataclasses.replace(params, budget=budget)
    training = build_training(checkpoint, text.train, text.valid, params, torch.device("cpu"))
    start_time = time.process_time()
    seconds = minutes * SECONDS_PER_MINUTE
    plan = dataclasses.replace(
        training.plan, progress=lambda _: (time.process_time() - start_time) / seconds
    )
    for phase in training.phases:
        phase_plan = dataclasses.replace(plan, end_progress=phase.end_progress)
        for _ in train(training.state, model.family.objective, phase.train_sampler, phase_plan):
            pass
    network: Any = training.state.model.eval()

    def logits(batch: Batch) -> torch.Tensor:
        x_BTD, weight_VD, bias_V = network.softmax_inputs(network.encode(batch)[-1])
        return F.linear(x_BTD, weight_VD, bias_V)

    counters = training.state.counters
    return Learned(logits, counters.steps, counters.text_bytes)


def build_gpt2(text: Text, sizes: Sizes, dropout: float) -> Any:
    """Build GPT-2 with four layers of transformers."""
    torch.manual_seed(SEED)
    config = transformers.GPT2Config(
        vocab_size=text.tokenizer.vocab_size,
        n_positions=WINDOW,
        n_embd=sizes.hf_width,
        n_layer=4,
        n_head=4,
        resid_pdrop=dropout,
        embd_pdrop=dropout,
        attn_pdrop=dropout,
    )
    return transformers.GPT2LMHeadModel(config)


def learn_nanogpt(text: Text, sizes: Sizes, minutes: float) -> Learned:
    """Train GPT-2 with the recipe that nanoGPT's README gives for a CPU (Karpathy 2022).

    12 windows a step, AdamW 0.001 with betas 0.9 and 0.99 and a weight decay of 0.1, 100 steps of
    warm-up, a cosine to a tenth, gradients clipped to 1, no dropout. Its windows have 64 tokens
    there, and 128 here, as for the other sides.
    """
    model = build_gpt2(text, sizes, dropout=0.0)
    matrices = [p for p in model.parameters() if p.dim() > 1]
    others = [p for p in model.parameters() if p.dim() <= 1]
    groups = [
        {"params": matrices, "weight_decay": 0.1},
        {"params": others, "weight_decay": 0.0},
    ]
    optimizer = torch.optim.AdamW(groups, lr=1e-3, betas=(0.9, 0.99), fused=True)
    start_time = time.process_time()
    seconds = minutes * SECONDS_PER_MINUTE
    steps = text_bytes = 0
    sampler = text.windows(text.train, 12)
    for _, _, batch in iterate_batches(sampler, max_epochs=None):
        done = (time.process_time() - start_time) / seconds
        if done >= 1:
            break
        cosine = 0.1 + 0.9 * 0.5 * (1 + math.cos(math.pi * done))
        for group in optimizer.param_groups:
            group["lr"] = 1e-3 * cosine * min(1.0, (steps + 1) / 100)
        _next_token_loss(model(batch.ids_BT).logits, batch).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        steps += 1
        text_bytes += batch.text_bytes
    model.eval()
    return Learned(lambda batch: model(batch.ids_BT).logits, steps, text_bytes)


def learn_trainer(text: Text, sizes: Sizes, minutes: float) -> Learned:
    """Train GPT-2 with transformers' Trainer and its default settings."""
    # The first steps take longer, so they are subtracted.
    first, second = (_run_trainer(text, sizes, count)[1] for count in TIMED_STEPS)
    seconds_per_step = (second - first) / (TIMED_STEPS[1] - TIMED_STEPS[0])
    steps = max(1, round(minutes * SECONDS_PER_MINUTE / seconds_per_step))
    model, _ = _run_trainer(text, sizes, steps)
    bytes_per_token = text.train.text_bytes / len(text.train.ids)
    text_bytes = round(steps * 8 * WINDOW * bytes_per_token)
    return Learned(lambda batch: model(batch.ids_BT).logits, steps, text_bytes)


def has_accelerate() -> bool:
    """Return whether the package is there without which the Trainer does not run."""
    return importlib.util.find_spec("accelerate") is not None


def _run_trainer(text: Text, sizes: Sizes, steps: int) -> tuple[Any, float]:
    """Return the model after so many steps, and the seconds that they took."""
    ids = text.train.ids.astype(np.int64)
    rows = ids[: len(ids) // WINDOW * WINDOW].reshape(-1, WINDOW)
    items = [{"input_ids": row, "labels": row} for row in torch.from_numpy(rows)]
    model = build_gpt2(text, sizes, dropout=0.1)
    trainer = build_trainer(model, items, max_steps=steps, seed=SEED)
    start_time = time.process_time()
    trainer.train()
    return model.eval(), time.process_time() - start_time


def _next_token_loss(logits_BTV: torch.Tensor, batch: Batch) -> torch.Tensor:
    assert batch.targets_BT is not None
    return F.cross_entropy(logits_BTV.flatten(0, 1), batch.targets_BT.flatten())


@torch.no_grad()
def measure_bits(text: Text, logits: Callable[[Batch], torch.Tensor]) -> float:
    """Return the bits per byte of the held-out text."""
    nats, num_bytes = 0.0, 0
    for _, _, batch in iterate_batches(text.windows(text.valid, 16)):
        nats += float(_next_token_loss(logits(batch), batch)) * batch.ids_BT.numel()
        num_bytes += batch.text_bytes
    return nats / math.log(2) / num_bytes


def measure_ngrams(text: Text) -> float:
    """Return the bits per byte of a 5-gram model of all text, over the same tokens."""
    vocab_size = text.tokenizer.vocab_size
    boundary = boundary_token_id(text.tokenizer)
    ngrams = fit_kneser_ney(text.train.ids, vocab_size=vocab_size, boundary_id=boundary)
    nats, num_bytes = 0.0, 0
    for _, _, batch in iterate_batches(text.windows(text.valid, 16)):
        assert batch.targets_BT is not None
        rows = torch.cat([batch.ids_BT, batch.targets_BT[:, -1:]], 1).numpy()
        is_start = np.zeros(rows.shape, bool)
        is_start[:, 0] = True
        log_probs = ngrams.log_probs(rows.ravel(), is_start.ravel()).reshape(rows.shape)
        nats -= log_probs[:, 1:].sum()
        num_bytes += batch.text_bytes
    return float(nats / math.log(2) / num_bytes)


TRAINER = "transformers' Trainer"
Learner = Callable[[Text, Sizes, float], Learned]
SIDES: dict[str, Learner] = {
    "gpt_modern": lambda *arguments: learn_ours("gpt_modern", *arguments),
    "gpt": lambda *arguments: learn_ours("gpt", *arguments),
    "nanoGPT's recipe": learn_nanogpt,
    TRAINER: learn_trainer,
}


def measure(side: str, text: Text, sizes: Sizes, minutes: float) -> dict[str, Any]:
    """Return what a side has learned in so many minutes."""
    learned = SIDES[side](text, sizes, minutes)
    return {
        "side": side,
        "minutes": minutes,
        "bits_per_byte": measure_bits(text, learned.logits),
        "steps": learned.steps,
        "text_bytes": learned.text_bytes,
    }


def format_markdown(rows: list[dict[str, Any]], description: str) -> str:
    """Return a table with a line for each side and a column for each number of minutes."""
    minutes = sorted({row["minutes"] for row in rows if row["minutes"]})
    bits = {(row["side"], row["minutes"]): row["bits_per_byte"] for row in rows}
    lines = [
        f"Bits per byte of held-out text after core-minutes of training; {description}.",
        f"5-grams of all text: {bits['5-grams', 0]:.3f}.",
        "",
        "| | " + " | ".join(f"{one:g} min" for one in minutes) + " |",
        "|---|" + "---:|" * len(minutes),
    ]
    for side in SIDES:
        cells = [f"{bits[side, one]:.3f}" if (side, one) in bits else "" for one in minutes]
        lines.append(f"| {side} | " + " | ".join(cells) + " |")
    return "\n".join([*lines, ""])


def main(arguments: list[str]) -> None:
    """Measure what is not in the results yet, and print the table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--minutes", type=float, nargs="+", default=[5.0, 15.0, 60.0])
    parser.add_argument("--sides", nargs="+", choices=SIDES, default=[*SIDES])
    parser.add_argument("--into", type=Path, default=RESULTS)
    parser.add_argument("--quick", action="store_true", help="toy sizes; nothing is saved")
    options = parser.parse_args(arguments)
    configure_torch(1)
    sizes = TOY if options.quick else Sizes()
    text = prepare_text(sizes)
    path = options.into / "learning.json"
    content: dict[str, Any] = {"rows": []}
    if path.is_file() and not options.quick:
        content = json.loads(path.read_text(encoding="utf-8"))
    rows: list[dict[str, Any]] = content["rows"]
    if not rows:
        rows.append({"side": "5-grams", "minutes": 0, "bits_per_byte": measure_ngrams(text)})
    measured = {(row["side"], row["minutes"]) for row in rows}
    if not has_accelerate():
        print("transformers' Trainer is left out: install accelerate", file=sys.stderr)
        options.sides = [side for side in options.sides if side != TRAINER]
    for minutes in options.minutes:
        for side in options.sides:
            if (side, minutes) not in measured:
                print(f"{side}, {minutes:g} minutes ...", file=sys.stderr, flush=True)
                rows.append(measure(side, text, sizes, minutes))
                if not options.quick:
                    _save(options.into, rows, text)
    print(format_markdown(rows, text.description))


def _save(folder: Path, rows: list[dict[str, Any]], text: Text) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    content = {"machine": describe_machine(), "text": text.description, "rows": rows}
    saved = json.dumps(content, indent=1, sort_keys=True) + "\n"
    (folder / "learning.json").write_text(saved, encoding="utf-8")
    machine = ", ".join(f"{name} {value}" for name, value in describe_machine().items())
    table = format_markdown(rows, f"{text.description}; {machine}")
    (folder / "learning.md").write_text(table, encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1:])
