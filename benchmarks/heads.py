"""Measure the training steps of BiLSTM probes, and which share of them is matrix products.

    python -m benchmarks.heads [--quick] [--rounds ROUNDS]

The features are random, in the sizes of two probes: tags (conll2000) with BERT's layers, and texts
(SST-2) with ELMo's. `plain` is the same step in the plain way: features of pieces in float32,
standardized in every step, layers mixed one by one, torch's dropout, and a CRF whose gradient is
autograd's over the words. Losses and gradients of both are compared first. `LSTMs` is the
arithmetic that no implementation can save, and `LSTMs, 4 x rows` tells what training four heads
at a time could save at most. All sides take turns, and so does a product of two matrices.
Shapes: B sequences, T positions, L layers, D features, H units, K outputs, N items, W words.
"""

import argparse
import json
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F

from benchmarks.contest import describe_machine
from lineage.answers.label import LabelAnswer
from lineage.answers.tags import TagsAnswer
from lineage.methods.bilstm_probe import BilstmProbe, BilstmProbeMethod, bilstm_probe_objective
from lineage.methods.cached_features import CachedFeatures
from lineage.methods.encoding import EncodedItem, pool_words
from lineage.methods.feature_store import split_rows, store_features
from lineage.networks.batch import Batch, gather_positions, reversed_positions
from lineage.tokenizers.tokenizer import Encoding
from lineage.training.devices import configure_torch
from lineage.training.optimizers import build_adamw, build_param_groups

RESULTS = Path(__file__).parent / "results"
MATRIX_SIZE = 1024
NUM_HEADS = 4  # of `LSTMs, 4 x rows`
STEPS_PER_ROUND = 20
MAX_GRAD_NORM = 5.0


@dataclass(frozen=True)
class ProbeSize:
    """The sizes of a probe and of its items."""

    num_layers: int
    feature_size: int
    lengths: tuple[int, int]  # pieces of the shortest and the longest item of a batch
    num_outputs: int
    pieces_per_word: float | None = None  # None: texts, not tags
    batch_size: int = 16
    hidden_size: int = 64


SIZES = {
    "tags, BERT": ProbeSize(4, 240, (40, 48), 23, pieces_per_word=1.7),
    "texts, ELMo": ProbeSize(3, 236, (20, 23), 2),
}
QUICK_SIZES = {
    "tags, BERT": ProbeSize(2, 6, (7, 9), 3, pieces_per_word=1.7, batch_size=3, hidden_size=4),
    "texts, ELMo": ProbeSize(2, 6, (5, 7), 2, batch_size=3, hidden_size=4),
}


def make_features(size: ProbeSize, num_items: int) -> tuple[CachedFeatures, np.ndarray]:
    """Return random features of items, float32, and the labels of the items' answers."""
    rng = np.random.default_rng(1)
    items = []
    layers: list[tuple[np.ndarray, ...]] = []
    for _ in range(num_items):
        length = int(rng.integers(size.lengths[0], size.lengths[1] + 1))
        starts = np.arange(length)
        encoding = Encoding(np.zeros(length, np.int64), np.column_stack([starts, starts + 1]))
        item = EncodedItem(encoding)
        if size.pieces_per_word is not None:
            words = (starts / size.pieces_per_word).astype(np.int64)
            pieces_P2 = np.column_stack([starts, words])
            item = replace(item, word_pieces=(pieces_P2,), num_answers=int(words[-1]) + 1)
        items.append(item)
        shape = (length, size.num_layers, size.feature_size)
        layers.append((rng.standard_normal(shape, np.float32),))
    num_answers = sum(item.num_answers for item in items)
    tokenizer: Any = None  # features have no use for it
    labels_M = rng.integers(size.num_outputs, size=num_answers)
    return CachedFeatures(tokenizer, items, layers, "mean"), labels_M


def store(features: CachedFeatures) -> CachedFeatures:
    """Return the features as an evaluation stores them."""
    lengths = [features.sequence_lengths(item) for item in features.items]
    num_rows = sum(map(sum, lengths))
    stored, scaling = store_features([features.rows()], num_rows, scaling=None, folder=None)
    return replace(features, layers=split_rows(stored, lengths), scaling=scaling)


class PlainProbe(nn.Module):
    """A BiLSTM probe with the weights of another, in the plain way."""

    def __init__(self, probe: BilstmProbe, mean_LD: np.ndarray, std_LD: np.ndarray) -> None:
        super().__init__()
        self.probe = probe
        self.mean_LD = torch.from_numpy(mean_LD).float()
        self.std_LD = torch.from_numpy(std_LD).float()

    def forward(self, batch: Batch, layers_BTLD: torch.Tensor) -> torch.Tensor:
        """Return the mean loss of the answers."""
        probe = self.probe
        assert batch.labels_M is not None
        x_BTLD = (layers_BTLD - self.mean_LD) / self.std_LD
        shares = torch.softmax(probe.scalar_mix.weights, 0)
        layers = zip(shares, x_BTLD.unbind(2), strict=True)
        x_BTD: torch.Tensor = probe.scalar_mix.gamma * sum(share * x for share, x in layers)
        x_BTD = F.dropout(x_BTD, probe.dropout, self.training)
        if probe.crf is None:
            y_BTH = self.run_lstms(x_BTD, batch.mask_BT)
            masked_BTH = y_BTH.masked_fill(~batch.mask_BT[..., None], float("-inf"))
            scores_MK = self.score(masked_BTH.amax(1))
            return F.cross_entropy(scores_MK, batch.labels_M)
        lengths_N = torch.tensor(batch.answers_per_item)
        mask_NW = torch.arange(int(lengths_N.max())) < lengths_N[:, None]
        x_NWD = self.pad(pool_words(probe, x_BTD, batch), mask_NW)
        scores_NWK = self.pad(self.score(self.run_lstms(x_NWD, mask_NW)[mask_NW]), mask_NW)
        labels_NW = self.pad(batch.labels_M[:, None], mask_NW)[..., 0]
        log_partition_N = self.log_partition(scores_NWK, mask_NW)
        path_N = probe.crf._path_score(scores_NWK, mask_NW, labels_NW)
        return (log_partition_N - path_N).sum() / batch.num_answers

    def run_lstms(self, x_BTD: torch.Tensor, mask_BT: torch.Tensor) -> torch.Tensor:
        """Return (B, T, H)."""
        (forward_lstm,), (backward_lstm,) = (
            self.probe.bilstm.forward_lstms,
            self.probe.bilstm.backward_lstms,
        )
        reversed_BT = reversed_positions(mask_BT)
        ahead_BTH, _ = forward_lstm(x_BTD)
        behind_BTH, _ = backward_lstm(gather_positions(x_BTD, reversed_BT))
        return torch.cat([ahead_BTH, gather_positions(behind_BTH, reversed_BT)], -1)

    def score(self, y_MH: torch.Tensor) -> torch.Tensor:
        """Return (M, K)."""
        scores_MK: torch.Tensor = self.probe.output_layer(
            F.dropout(y_MH, self.probe.dropout, self.training)
        )
        return scores_MK

    def pad(self, x_MD: torch.Tensor, mask_NW: torch.Tensor) -> torch.Tensor:
        """Return (N, W, D)."""
        padded_NWD = x_MD.new_zeros(*mask_NW.shape, x_MD.shape[-1])
        return padded_NWD.masked_scatter(mask_NW[..., None], x_MD)

    def log_partition(self, scores_NWK: torch.Tensor, mask_NW: torch.Tensor) -> torch.Tensor:
        """Return (N,) by one logsumexp a word."""
        crf = self.probe.crf
        assert crf is not None
        log_alpha_NK = crf.start_transitions_K + scores_NWK[:, 0]
        for word in range(1, scores_NWK.shape[1]):
            pairs_NKK = log_alpha_NK[:, :, None] + crf.transitions_KK
            next_NK = torch.logsumexp(pairs_NKK, 1) + scores_NWK[:, word]
            log_alpha_NK = torch.where(mask_NW[:, word, None], next_NK, log_alpha_NK)
        return torch.logsumexp(log_alpha_NK + crf.end_transitions_K, 1)


class Workload:
    """The sides of one probe: each is a call that takes one step."""

    def __init__(self, size: ProbeSize) -> None:
        pieces, self.labels_M = make_features(size, size.batch_size)
        is_tags = size.pieces_per_word is not None
        names = tuple(map(str, range(size.num_outputs)))
        answer = TagsAnswer(names) if is_tags else LabelAnswer(names)
        settings = BilstmProbeMethod(hidden_size=size.hidden_size)
        self.indices = np.arange(size.batch_size)
        self.pieces = pieces
        self.stored = store(pieces.pool_words() if is_tags else pieces)
        self.probe = BilstmProbe(answer, settings, self.stored, seed=1)
        plain = BilstmProbe(answer, settings, self.stored, seed=1)
        assert self.stored.scaling is not None
        statistics_LD = self.probe.mean_LD.numpy(), self.probe.std_LD.numpy()
        self.plain = PlainProbe(plain, *self.stored.scaling.unscale_statistics(*statistics_LD))
        self.size = size
        batch = self.stored.make_batch(self.indices)
        self.num_positions = batch.mask_BT.shape[1]

    def our_loss(self) -> torch.Tensor:
        """Build the batch, and return the loss."""
        batch = self.stored.make_batch(self.indices, self.labels_M)
        return bilstm_probe_objective(self.probe, batch).loss

    def plain_loss(self) -> torch.Tensor:
        """Build the batch of pieces, and return the loss."""
        batch = self.pieces.make_batch(self.indices, self.labels_M)
        assert batch.layers_LBTD is not None
        return self.plain(batch, batch.layers_LBTD.permute(1, 2, 0, 3).contiguous())

    def check_equal(self) -> dict[str, list[float]]:
        """Check that loss and gradient norm of both ways agree but for the rounding of features."""
        values: dict[str, list[float]] = {"loss": [], "gradient norm": []}
        for model, compute_loss in ((self.probe, self.our_loss), (self.plain, self.plain_loss)):
            model.eval()
            loss = compute_loss()
            loss.backward()
            gradients = [p.grad for p in model.parameters() if p.grad is not None]
            values["loss"].append(float(loss.detach()))
            values["gradient norm"].append(float(nn.utils.get_total_norm(gradients)))
            model.zero_grad()
            model.train()
        for ours, plain in values.values():
            assert abs(ours - plain) <= 1e-3 * abs(plain), values
        return values

    def sides(self) -> dict[str, Callable[[], None]]:
        """Return a call for each side."""
        return {
            "ours": make_step(self.probe, self.our_loss),
            "plain": make_step(self.plain, self.plain_loss),
            "LSTMs": self.make_lstm_step(self.size.batch_size),
            f"LSTMs, {NUM_HEADS} x rows": self.make_lstm_step(NUM_HEADS * self.size.batch_size),
        }

    def make_lstm_step(self, batch_size: int) -> Callable[[], None]:
        """Return a call that runs both LSTMs alone, forward and backward."""
        lstms = (self.probe.bilstm.forward_lstms[0], self.probe.bilstm.backward_lstms[0])
        shape = (batch_size, self.num_positions, self.size.feature_size)
        x_BTD = torch.randn(shape, generator=torch.Generator().manual_seed(3), requires_grad=True)
        gradient_BTH = torch.ones(*shape[:2], self.size.hidden_size)

        def step() -> None:
            for lstm in lstms:
                lstm(x_BTD)[0].backward(gradient_BTH)
            self.probe.zero_grad()
            x_BTD.grad = None

        return step

    def lstm_operations(self) -> int:
        """Return the multiplications and additions of both LSTMs in a step, of matrix products."""
        H = self.size.hidden_size
        positions = self.size.batch_size * self.num_positions
        forward = 2 * positions * 4 * H * (self.size.feature_size + H)
        return 2 * 3 * forward  # two directions; backward has two products for each one


def make_step(model: nn.Module, compute_loss: Callable[[], torch.Tensor]) -> Callable[[], None]:
    """Return a training step: loss, gradients, gradient clipping, AdamW."""
    optimizer = build_adamw(build_param_groups([[*model.parameters()]], weight_decay=0.0))

    def step() -> None:
        compute_loss().backward()
        nn.utils.clip_grad_norm_(model.parameters(), MAX_GRAD_NORM)
        optimizer.step()
        optimizer.zero_grad()

    return step


def measure(workload: Workload, *, rounds: int, steps: int, matrix_size: int) -> dict[str, Any]:
    """Return CPU-milliseconds a step of each side, one number a round, and the products' rate."""
    sides = workload.sides()
    matrix = torch.randn(matrix_size, matrix_size, generator=torch.Generator().manual_seed(2))
    milliseconds: dict[str, list[float]] = {name: [] for name in sides}
    gigaflops: list[float] = []
    for _ in range(rounds + 1):  # the first round warms up
        product_seconds = min(_cpu_seconds(lambda: matrix @ matrix, 1) for _ in range(3))
        gigaflops.append(2 * matrix_size**3 / max(product_seconds, 1e-9) / 1e9)
        for name, step in sides.items():
            milliseconds[name].append(1000 * _cpu_seconds(step, steps) / steps)
    return {
        "milliseconds": {name: values[1:] for name, values in milliseconds.items()},
        "matrix_gigaflops": gigaflops[1:],
        "lstm_gigaflop": workload.lstm_operations() / 1e9,
    }


def _cpu_seconds(call: Callable[[], object], count: int) -> float:
    start = time.process_time()
    for _ in range(count):
        call()
    return time.process_time() - start


def format_markdown(results: dict[str, Any]) -> str:
    """Return a table with a row for each probe, and the machine."""
    titles = (
        "probe",
        "plain, ms",
        "ours, ms",
        "ratio",
        "range",
        "LSTMs, ms",
        "LSTMs, GFLOP/s",
        f"{MATRIX_SIZE}^3 product, GFLOP/s",
        f"{NUM_HEADS} x rows, times as long",
    )
    lines = [f"| {' | '.join(titles)} |", "|" + "---|" * len(titles)]
    for name, result in results["probes"].items():
        medians = {
            side: statistics.median(values) for side, values in result["milliseconds"].items()
        }
        ratios = [
            plain / ours
            for plain, ours in zip(
                result["milliseconds"]["plain"], result["milliseconds"]["ours"], strict=True
            )
        ]
        cells = (
            name,
            f"{medians['plain']:.1f}",
            f"{medians['ours']:.1f}",
            f"{statistics.median(ratios):.2f}",
            f"{min(ratios):.2f}-{max(ratios):.2f}",
            f"{medians['LSTMs']:.1f}",
            f"{1000 * result['lstm_gigaflop'] / max(medians['LSTMs'], 1e-9):.0f}",
            f"{statistics.median(result['matrix_gigaflops']):.0f}",
            f"{medians[f'LSTMs, {NUM_HEADS} x rows'] / max(medians['LSTMs'], 1e-9):.2f}",
        )
        lines.append(f"| {' | '.join(cells)} |")
    machine = ", ".join(f"{key} {value}" for key, value in sorted(results["machine"].items()))
    lines += ["", f"CPU time, median of {results['rounds']} rounds. Machine: {machine}.", ""]
    for name, result in results["probes"].items():
        equal = "; ".join(
            f"{what} {ours:.6g} and {plain:.6g}"
            for what, (ours, plain) in sorted(result["equal"].items())
        )
        lines.append(f"- **{name}**: ours and plain have {equal}.")
    return "\n".join(lines) + "\n"


def main(arguments: list[str]) -> None:
    """Measure both probes, print the table, and write it to the results."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--quick", action="store_true", help="only test that it runs: toy sizes, nothing is saved"
    )
    parser.add_argument("--rounds", type=int, default=9)
    options = parser.parse_args(arguments)
    configure_torch(1)
    torch.manual_seed(1)  # of dropout
    rounds = 2 if options.quick else options.rounds
    results: dict[str, Any] = {"machine": describe_machine(), "rounds": rounds, "probes": {}}
    for name, size in (QUICK_SIZES if options.quick else SIZES).items():
        workload = Workload(size)
        equal = workload.check_equal()
        measured = measure(
            workload,
            rounds=rounds,
            steps=2 if options.quick else STEPS_PER_ROUND,
            matrix_size=32 if options.quick else MATRIX_SIZE,
        )
        results["probes"][name] = measured | {"equal": equal}
    table = format_markdown(results)
    print(table)
    if not options.quick:
        content = json.dumps(results, indent=1, sort_keys=True) + "\n"
        (RESULTS / "heads.json").write_text(content, encoding="utf-8")
        (RESULTS / "heads.md").write_text(table, encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1:])
