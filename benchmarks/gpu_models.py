"""The models of the papers at their sizes, random batches for them, and what their training costs: for benchmarks/gpu.py.

Shapes: B items, T positions, V vocabulary, U distinct words of the batch, C bytes a word; a leading 2 is the direction.
"""

import dataclasses
import itertools
import math
import os
import platform
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from lineage.models import bert, elmo, gpt, ulmfit
from lineage.models.base import Encoder, Family
from lineage.models.batch import IGNORE_INDEX, Batch
from lineage.models.layers.awd_lstm import AwdDropouts
from lineage.tokenizers.word_bytes import BEGIN_WORD, END_WORD, PAD_BYTE
from lineage.training.budget import count_train_flops
from lineage.training.optimizers import build_adamw, build_param_groups
from lineage.training.state import RngState, TrainState

ORIGINAL_FILTERS = ((1, 32), (2, 32), (3, 64), (4, 128), (5, 256), (6, 512), (7, 1024))
DISTINCT = 0.225  # of a batch's words in running text, at 384 x 20
MASKED = 0.15
READY = 4  # different batches, taken in turn


@dataclass(frozen=True)
class Work:
    """A model and its batch. The targets are tokens/s on one H200: must, goal, stretch."""

    name: str
    family: Family
    config: Any
    vocabulary: int
    batch: int  # items, or lanes
    length: int
    targets: tuple[int, int, int] = (0, 0, 0)


def _transformer(name: str, *, length: int, batch: int, targets: tuple[int, int, int]) -> Work:
    is_bert = name.startswith("BERT")
    family, vocabulary = (bert.FAMILY, 30522) if is_bert else (gpt.FAMILY, 40478)
    config = family.architecture_class(num_layers=12, num_heads=12, max_positions=512, dropout=0.1, activation="gelu" if is_bert else "gelu_tanh", norm_first=False,
                               layer_norm_eps=1e-12 if is_bert else 1e-5, init_std=0.02, hidden_size=768, ffn_size=3072)  # fmt: skip
    return Work(name, family, config, vocabulary, batch, length, targets)


def _elmo() -> Work:
    config = elmo.ElmoConfig(num_layers=2, cell_to_projection_ratio=8, filters=ORIGINAL_FILTERS, char_embedding_size=16, num_highway_layers=2, dropout=0.1, cell_clip=3.0,
                         projection_clip=3.0, softmax_samples=8192, projection_size=512, cell_size=4096)  # fmt: skip
    return Work("ELMo original", elmo.FAMILY, config, 793471, 384, 20, (200_000, 400_000, 550_000))


def _awd(batch: int, targets: tuple[int, int, int]) -> Work:
    config = ulmfit.ULMFiTConfig(num_layers=3, hidden_to_embedding_ratio=2.875, dropouts=AwdDropouts(0.05, 0.4, 0.5, 0.3, 0.4), activation_penalty=2.0, temporal_activation_penalty=1.0,
                           classifier_hidden_size=50, embedding_size=400, hidden_size=1150)  # fmt: skip
    return Work(f"AWD-LSTM batch {batch}", ulmfit.FAMILY, config, 30000, batch, 70, targets)


def papers() -> list[Work]:
    """What is measured, and the tokens/s that are asked of one H200. AWD-LSTM has its floor at batch 64, its goal and stretch at 256."""
    return [
        _transformer("BERT-base T 128", length=128, batch=256, targets=(350_000, 550_000, 720_000)),
        _transformer("BERT-base T 512", length=512, batch=64, targets=(320_000, 500_000, 670_000)),
        _transformer("GPT-1 T 512", length=512, batch=64, targets=(300_000, 450_000, 545_000)),
        _elmo(),
        _awd(64, (200_000, 0, 0)),
        _awd(256, (0, 600_000, 1_200_000)),
    ]


def middling(work: Work) -> Work:
    """The same as wide and as long as it takes for a GPU to share its work out, and to sum in another order where nothing forbids it."""
    name, config = work.family.name, work.config
    if name == "elmo":
        config = dataclasses.replace(
            config, projection_size=128, cell_size=512, softmax_samples=500
        )
    elif name == "ulmfit":
        config = dataclasses.replace(config, embedding_size=128, hidden_size=512)
    else:
        config = dataclasses.replace(
            config, num_layers=2, num_heads=4, hidden_size=256, ffn_size=1024
        )
    return dataclasses.replace(
        work,
        config=config,
        vocabulary=5003,
        batch=16,
        length=min(256, work.length),
        targets=(0, 0, 0),
    )


def small(work: Work) -> Work:
    """The same with everything small and no dropout: for the check against a CPU, and for a machine without a GPU."""
    name, config = work.family.name, work.config
    if name == "elmo":
        config = dataclasses.replace(
            config,
            filters=((1, 5), (2, 7), (3, 9)),
            char_embedding_size=5,
            dropout=0.0,
            softmax_samples=None,
            projection_size=24,
            cell_size=40,
        )
    elif name == "ulmfit":
        config = dataclasses.replace(
            config, dropouts=AwdDropouts(0.0, 0.0, 0.0, 0.0, 0.0), embedding_size=24, hidden_size=40
        )
    else:
        config = dataclasses.replace(
            config,
            num_layers=2,
            num_heads=2,
            max_positions=32,
            dropout=0.0,
            hidden_size=32,
            ffn_size=96,
        )
    return dataclasses.replace(
        work,
        name=f"{work.name} toy",
        config=config,
        vocabulary=211,
        batch=6,
        length=13,
        targets=(0, 0, 0),
    )


def dropping(work: Work) -> Work:
    """The same with dropout, where it is off."""
    if work.family.name == "ulmfit":
        return dataclasses.replace(
            work,
            config=dataclasses.replace(work.config, dropouts=AwdDropouts(0.1, 0.1, 0.1, 0.1, 0.1)),
        )
    return dataclasses.replace(work, config=dataclasses.replace(work.config, dropout=0.1))


def build(work: Work, device: torch.device) -> Encoder:
    """The model on its device, parameters drawn there."""
    with torch.device("meta"):
        model = work.family.build(work.config, vocab_size=work.vocabulary)
    model.to_empty(device=device)
    model.init_weights(torch.Generator(device).manual_seed(3))
    return model


def run_of(model: Encoder, *, seed: int = 1) -> TrainState:
    """A training of it by fused AdamW."""
    return TrainState(
        model,
        build_adamw(build_param_groups([[*model.parameters()]], weight_decay=0.01)),
        RngState(seed),
    )


def like_text(rng: np.random.Generator, shape: tuple[int, ...], vocabulary: int) -> np.ndarray:
    """Ids whose frequencies fall as in text (log-uniform over the ranks), and never zeros alone: a GPU is faster on zeros."""
    return np.minimum(
        np.exp(rng.random(shape) * math.log(vocabulary + 1)).astype(np.int64), vocabulary - 1
    )


def random_batch(work: Work, rng: np.random.Generator) -> Batch:
    """One batch in which every position is real."""
    B, T, name = work.batch, work.length, work.family.name
    rows = 2 * B if name == "elmo" else B
    ids, targets = (
        like_text(rng, (rows, T), work.vocabulary),
        like_text(rng, (rows, T), work.vocabulary),
    )
    mask = torch.ones(rows, T, dtype=torch.bool)
    more: dict[str, torch.Tensor] = {}
    if name == "bert":
        order = rng.random((B, T)).argsort(1)
        targets = np.where(order < max(1, round(MASKED * T)), ids, IGNORE_INDEX)
        segments = np.broadcast_to((np.arange(T) >= T // 2).astype(np.int64), (B, T))
        more = {
            "segment_ids_BT": torch.from_numpy(segments.copy()),
            "next_sentence_labels_B": torch.from_numpy(rng.integers(0, 2, B)),
        }
    elif name == "elmo":
        distinct = max(2, round(DISTINCT * rows * T))
        more = {
            "byte_ids_UC": _words(rng, distinct),
            "word_rows_BT": torch.from_numpy(rng.integers(0, distinct, (rows, T))),
        }
    tokens = B * T
    return Batch(
        torch.from_numpy(ids),
        mask,
        mask,
        targets_BT=torch.from_numpy(targets),
        text_bytes=5 * tokens,
        num_tokens=tokens,
        **more,
    )


def _words(rng: np.random.Generator, count: int) -> torch.Tensor:
    """(U, C) byte ids of words of 1 to 18 bytes, about 7 on average, with the padding that a batch of text has."""
    lengths = np.clip(rng.poisson(6, count) + 1, 1, 18)
    table = rng.integers(98, 123, (count, 28))
    places = np.arange(28)[None]
    table = np.where(
        places - 1 < lengths[:, None],
        table,
        np.where(places - 1 == lengths[:, None], END_WORD, PAD_BYTE),
    )
    table[:, 0] = BEGIN_WORD
    return torch.from_numpy(table)


@dataclass
class RandomStream:
    """A few batches, made before the clock starts, that come again and again in one endless pass."""

    ready: list[Batch]
    carries_state: bool = True  # state goes on, where a family has one

    def set_epoch(self, epoch: int) -> int:
        """One pass without end."""
        return 1 << 40

    def get_batch(self, index: int) -> Batch:
        """The next one."""
        return self.ready[index % len(self.ready)]


def stream_of(work: Work) -> RandomStream:
    """The work's batches."""
    rng = np.random.default_rng(5)
    return RandomStream([random_batch(work, rng) for _ in range(READY)])


def counted_flops(model: Encoder, work: Work, batch: Batch) -> float:
    """Operations a token of one training step as lineage counts them while it runs (attention over all pairs of positions)."""
    device = next(model.parameters()).device
    if (
        work.family.name != "elmo"
    ):  # whose cost a token depends on the batch, through its distinct words
        rows = {n: v[:2] for n, v in vars(batch).items() if isinstance(v, torch.Tensor)}
        batch = dataclasses.replace(
            batch, **rows, num_tokens=batch.num_tokens * 2 // len(batch.ids_BT)
        )
    with RngState(0).activate(device):
        return count_train_flops(model, work.family, batch.to(device)) / batch.num_tokens


def formula_flops(work: Work, batch: Batch) -> float:
    """The same by a formula: six a weight that a token passes, and attention, of which a causal model needs half."""
    c, V = work.config, work.vocabulary
    if work.family.name == "ulmfit":
        sizes = (c.embedding_size, *[c.hidden_size] * (c.num_layers - 1), c.embedding_size)
        return 6 * (
            sum(4 * h * (i + h) for i, h in itertools.pairwise(sizes)) + c.embedding_size * V
        )
    if work.family.name == "elmo":
        assert batch.byte_ids_UC is not None
        words, C = batch.byte_ids_UC.shape
        total = sum(number for _, number in c.filters)
        word = (
            sum(w * n * c.char_embedding_size * (C - w + 1) for w, n in c.filters)
            + 2 * c.num_highway_layers * total**2
            + total * c.projection_size
        )
        recurrent = (
            2
            * c.num_layers
            * (8 * c.cell_size * c.projection_size + c.cell_size * c.projection_size)
        )
        softmax = 2 * c.projection_size * (min(c.softmax_samples or V, V) + 1)
        return 6 * (recurrent + softmax + word * words / batch.num_tokens)
    D, T = c.hidden_size, work.length
    body = c.num_layers * (
        6 * (4 * D * D + 2 * D * c.ffn_size)
        + 12 * T * D * (0.5 if work.family.name == "gpt" else 1.0)
    )
    return body + (6 * D * V if work.family.name == "gpt" else 6 * MASKED * (D * V + D * D))


def describe(device: torch.device) -> dict[str, Any]:
    """The machine in words and numbers."""
    found: dict[str, Any] = {
        "torch": torch.__version__,
        "python": platform.python_version(),
        "cores": os.cpu_count(),
        "device": str(device),
    }
    if device.type == "cuda":
        p = torch.cuda.get_device_properties(device)
        found |= {
            "name": p.name,
            "memory_gib": round(p.total_memory / 2**30, 1),
            "multiprocessors": p.multi_processor_count,
        }
        found |= {
            "cuda": torch.version.cuda,
            "cudnn": torch.backends.cudnn.version(),
            "capability": f"{p.major}.{p.minor}",
        }
    return found
