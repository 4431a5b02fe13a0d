"""For gpu.py: the models of the papers at full size, random batches, and the cost of training.

Shapes: B items, T positions, V vocabulary, U distinct words of the batch, C bytes per word; a
leading 2 is the direction.
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

from lineage.families import bert, elmo, gpt, ulmfit
from lineage.networks.base import Encoder, Family
from lineage.networks.batch import IGNORE_INDEX, Batch
from lineage.networks.layers.awd_lstm import AwdDropouts
from lineage.tokenizers.word_bytes import BEGIN_WORD, END_WORD, PAD_BYTE
from lineage.training.budget import count_train_flops
from lineage.training.optimizers import build_adamw, build_param_groups
from lineage.training.state import RngState, TrainState

BERT_VOCAB_SIZE = 30_522
GPT_VOCAB_SIZE = 40_478
ELMO_VOCAB_SIZE = 793_471
AWD_LSTM_VOCAB_SIZE = 30_000
ELMO_FILTERS = ((1, 32), (2, 32), (3, 64), (4, 128), (5, 256), (6, 512), (7, 1024))
DISTINCT_WORD_SHARE = 0.225  # of the words of a batch of running text, at 384 x 20
MASK_SHARE = 0.15
NUM_BATCHES = 4  # different batches, used in turn
WORD_TABLE_BYTES = 28  # bytes per word of a random batch, padding included
MAX_WORD_BYTES = 18
BYTES_PER_TOKEN = 5
NO_TARGETS = (0, 0, 0)


@dataclass(frozen=True)
class Workload:
    """A model and the size of its batches."""

    name: str
    family: Family
    config: Any
    vocab_size: int
    batch_size: int
    seq_len: int
    # Tokens per second that are expected of one H200: floor, goal, stretch. 0: no target.
    targets: tuple[int, int, int] = NO_TARGETS


def _bert_workload(
    name: str, *, seq_len: int, batch_size: int, targets: tuple[int, int, int]
) -> Workload:
    config = bert.FAMILY.architecture_class(
        num_layers=12,
        num_heads=12,
        max_positions=512,
        dropout=0.1,
        activation="gelu",
        norm_first=False,
        layer_norm_eps=1e-12,
        init_std=0.02,
        hidden_size=768,
        ffn_size=3072,
    )
    return Workload(name, bert.FAMILY, config, BERT_VOCAB_SIZE, batch_size, seq_len, targets)


def _gpt_workload() -> Workload:
    config = gpt.FAMILY.architecture_class(
        num_layers=12,
        num_heads=12,
        max_positions=512,
        dropout=0.1,
        activation="gelu_tanh",
        norm_first=False,
        layer_norm_eps=1e-5,
        init_std=0.02,
        hidden_size=768,
        ffn_size=3072,
    )
    return Workload(
        "GPT-1 T 512",
        gpt.FAMILY,
        config,
        GPT_VOCAB_SIZE,
        batch_size=64,
        seq_len=512,
        targets=(300_000, 450_000, 545_000),
    )


def _elmo_workload() -> Workload:
    config = elmo.ElmoConfig(
        num_layers=2,
        cell_to_projection_ratio=8,
        filters=ELMO_FILTERS,
        char_embedding_size=16,
        num_highway_layers=2,
        dropout=0.1,
        cell_clip=3.0,
        projection_clip=3.0,
        softmax_samples=8192,
        projection_size=512,
        cell_size=4096,
    )
    return Workload(
        "ELMo original",
        elmo.FAMILY,
        config,
        ELMO_VOCAB_SIZE,
        batch_size=384,
        seq_len=20,
        targets=(200_000, 400_000, 550_000),
    )


def _awd_lstm_workload(*, batch_size: int, targets: tuple[int, int, int]) -> Workload:
    config = ulmfit.ULMFiTConfig(
        num_layers=3,
        hidden_to_embedding_ratio=2.875,
        dropouts=AwdDropouts(0.05, 0.4, 0.5, 0.3, 0.4),
        activation_penalty=2.0,
        temporal_activation_penalty=1.0,
        classifier_hidden_size=50,
        embedding_size=400,
        hidden_size=1150,
    )
    name = f"AWD-LSTM batch {batch_size}"
    return Workload(
        name, ulmfit.FAMILY, config, AWD_LSTM_VOCAB_SIZE, batch_size, seq_len=70, targets=targets
    )


def paper_workloads() -> list[Workload]:
    """Return the workloads that are measured.

    The AWD-LSTM has its floor at batch size 64, and its goal and stretch at 256.
    """
    return [
        _bert_workload(
            "BERT-base T 128", seq_len=128, batch_size=256, targets=(350_000, 550_000, 720_000)
        ),
        _bert_workload(
            "BERT-base T 512", seq_len=512, batch_size=64, targets=(320_000, 500_000, 670_000)
        ),
        _gpt_workload(),
        _elmo_workload(),
        _awd_lstm_workload(batch_size=64, targets=(200_000, 0, 0)),
        _awd_lstm_workload(batch_size=256, targets=(0, 600_000, 1_200_000)),
    ]


def middle_size(workload: Workload) -> Workload:
    """Return a smaller workload that still occupies many multiprocessors of a GPU.

    At this size a GPU may sum in varying order unless deterministic algorithms are requested.
    """
    changes: dict[str, Any]
    if workload.family.name == "elmo":
        changes = {"projection_size": 128, "cell_size": 512, "softmax_samples": 500}
    elif workload.family.name == "ulmfit":
        changes = {"embedding_size": 128, "hidden_size": 512}
    else:
        changes = {"num_layers": 2, "num_heads": 4, "hidden_size": 256, "ffn_size": 1024}
    return dataclasses.replace(
        workload,
        config=dataclasses.replace(workload.config, **changes),
        vocab_size=5003,
        batch_size=16,
        seq_len=min(256, workload.seq_len),
        targets=NO_TARGETS,
    )


def toy_size(workload: Workload) -> Workload:
    """Return a tiny workload without dropout, for comparisons with a CPU and for tests."""
    changes: dict[str, Any]
    if workload.family.name == "elmo":
        changes = {
            "filters": ((1, 5), (2, 7), (3, 9)),
            "char_embedding_size": 5,
            "dropout": 0.0,
            "softmax_samples": None,
            "projection_size": 24,
            "cell_size": 40,
        }
    elif workload.family.name == "ulmfit":
        changes = {
            "dropouts": AwdDropouts(0.0, 0.0, 0.0, 0.0, 0.0),
            "embedding_size": 24,
            "hidden_size": 40,
        }
    else:
        changes = {
            "num_layers": 2,
            "num_heads": 2,
            "max_positions": 32,
            "dropout": 0.0,
            "hidden_size": 32,
            "ffn_size": 96,
        }
    return dataclasses.replace(
        workload,
        name=f"{workload.name} toy",
        config=dataclasses.replace(workload.config, **changes),
        vocab_size=211,
        batch_size=6,
        seq_len=13,
        targets=NO_TARGETS,
    )


def with_dropout(workload: Workload) -> Workload:
    """Return the workload with all dropout probabilities set to 0.1."""
    if workload.family.name == "ulmfit":
        config = dataclasses.replace(workload.config, dropouts=AwdDropouts(0.1, 0.1, 0.1, 0.1, 0.1))
    else:
        config = dataclasses.replace(workload.config, dropout=0.1)
    return dataclasses.replace(workload, config=config)


def build_model(workload: Workload, device: torch.device) -> Encoder:
    """Build the model and initialize its parameters on the device."""
    with torch.device("meta"):
        model = workload.family.build(workload.config, vocab_size=workload.vocab_size)
    model.to_empty(device=device)
    model.init_weights(torch.Generator(device).manual_seed(3))
    return model


def build_train_state(model: Encoder, *, seed: int = 1) -> TrainState:
    """Return the state of a new training run with fused AdamW."""
    param_groups = build_param_groups([[*model.parameters()]], weight_decay=0.01)
    return TrainState(model, build_adamw(param_groups), RngState(seed))


def zipf_ids(rng: np.random.Generator, shape: tuple[int, ...], vocab_size: int) -> np.ndarray:
    """Draw ids whose frequencies fall with their rank, as in text: log-uniform over the ranks.

    Timings with constant ids would be too good, since a GPU is faster on zeros.
    """
    ranks = np.exp(rng.random(shape) * math.log(vocab_size + 1)).astype(np.int64)
    return np.minimum(ranks, vocab_size - 1)


def random_batch(workload: Workload, rng: np.random.Generator) -> Batch:
    """Draw a batch without padding."""
    B = workload.batch_size
    T = workload.seq_len
    family_name = workload.family.name
    num_rows = 2 * B if family_name == "elmo" else B
    ids = zipf_ids(rng, (num_rows, T), workload.vocab_size)
    targets = zipf_ids(rng, (num_rows, T), workload.vocab_size)
    mask = torch.ones(num_rows, T, dtype=torch.bool)
    extra: dict[str, torch.Tensor] = {}
    if family_name == "bert":
        random_order = rng.random((B, T)).argsort(1)
        num_masked = max(1, round(MASK_SHARE * T))
        targets = np.where(random_order < num_masked, ids, IGNORE_INDEX)
        segment_ids_T = (np.arange(T) >= T // 2).astype(np.int64)
        extra = {
            "segment_ids_BT": torch.from_numpy(np.tile(segment_ids_T, (B, 1))),
            "next_sentence_labels_B": torch.from_numpy(rng.integers(0, 2, B)),
        }
    elif family_name == "elmo":
        num_distinct = max(2, round(DISTINCT_WORD_SHARE * num_rows * T))
        extra = {
            "byte_ids_UC": _random_word_bytes(rng, num_distinct),
            "word_rows_BT": torch.from_numpy(rng.integers(0, num_distinct, (num_rows, T))),
        }
    num_tokens = B * T
    return Batch(
        torch.from_numpy(ids),
        mask,
        mask,
        targets_BT=torch.from_numpy(targets),
        text_bytes=BYTES_PER_TOKEN * num_tokens,
        num_tokens=num_tokens,
        **extra,
    )


def _random_word_bytes(rng: np.random.Generator, count: int) -> torch.Tensor:
    """Draw the byte ids of words of 1 to 18 bytes, 7 on average, padded as in text, (U, C)."""
    word_bytes_U = np.clip(rng.poisson(6, count) + 1, 1, MAX_WORD_BYTES)
    letters_UC = rng.integers(98, 123, (count, WORD_TABLE_BYTES))
    index_UC = np.arange(WORD_TABLE_BYTES)[None] - 1  # index 0 is the first byte of the word
    is_inside_UC = index_UC < word_bytes_U[:, None]
    is_end_UC = index_UC == word_bytes_U[:, None]
    table_UC = np.where(is_inside_UC, letters_UC, np.where(is_end_UC, END_WORD, PAD_BYTE))
    table_UC[:, 0] = BEGIN_WORD
    return torch.from_numpy(table_UC)


@dataclass
class RandomBatches:
    """A batch sampler that repeats a few batches in one endless epoch.

    The batches are made in advance, so that drawing them is not measured.
    """

    batches: list[Batch]
    carries_state: bool = True  # families without a recurrent state ignore it

    def set_epoch(self, epoch: int) -> int:
        """Return the number of batches: as good as infinite."""
        return 1 << 40

    def get_batch(self, index: int) -> Batch:
        """Return the batches in turn."""
        return self.batches[index % len(self.batches)]


def random_batches(workload: Workload) -> RandomBatches:
    """Draw the batches of a workload: always the same ones."""
    rng = np.random.default_rng(5)
    return RandomBatches([random_batch(workload, rng) for _ in range(NUM_BATCHES)])


def count_flops_per_token(model: Encoder, workload: Workload, batch: Batch) -> float:
    """Run a training step and count its floating-point operations per token, as lineage does.

    Attention is counted over all pairs of positions.
    """
    device = next(model.parameters()).device
    # Two rows are enough, except for ELMo: its cost depends on the distinct words of the batch.
    if workload.family.name != "elmo":
        num_rows = len(batch.ids_BT)
        two_rows = {
            name: value[:2]
            for name, value in vars(batch).items()
            if isinstance(value, torch.Tensor)
        }
        batch = dataclasses.replace(batch, **two_rows, num_tokens=batch.num_tokens * 2 // num_rows)
    with RngState(0).activate(device):
        return count_train_flops(model, workload.family, batch.to(device)) / batch.num_tokens


def estimate_flops_per_token(workload: Workload, batch: Batch) -> float:
    """Compute the floating-point operations per token of a training step by formula.

    They are 6 per weight that a token passes, plus attention. A causal model needs only half of
    the attention.
    """
    if workload.family.name == "ulmfit":
        return _awd_lstm_flops(workload)
    if workload.family.name == "elmo":
        return _elmo_flops(workload, batch)
    return _transformer_flops(workload)


def _awd_lstm_flops(workload: Workload) -> float:
    config = workload.config
    hidden_sizes = [config.hidden_size] * (config.num_layers - 1)
    sizes = [config.embedding_size, *hidden_sizes, config.embedding_size]
    recurrent = sum(
        4 * num_units * (num_inputs + num_units)
        for num_inputs, num_units in itertools.pairwise(sizes)
    )
    softmax = config.embedding_size * workload.vocab_size
    return 6 * (recurrent + softmax)


def _elmo_flops(workload: Workload, batch: Batch) -> float:
    config = workload.config
    V = workload.vocab_size
    assert batch.byte_ids_UC is not None
    U, C = batch.byte_ids_UC.shape
    total_filters = sum(num_filters for _, num_filters in config.filters)
    convolutions = sum(
        width * num_filters * config.char_embedding_size * (C - width + 1)
        for width, num_filters in config.filters
    )
    highways = 2 * config.num_highway_layers * total_filters**2
    projection = total_filters * config.projection_size
    per_distinct_word = convolutions + highways + projection
    gates_and_projection = 9 * config.cell_size * config.projection_size
    recurrent = 2 * config.num_layers * gates_and_projection
    num_candidates = min(config.softmax_samples or V, V) + 1
    softmax = 2 * config.projection_size * num_candidates
    return 6 * (recurrent + softmax + per_distinct_word * U / batch.num_tokens)


def _transformer_flops(workload: Workload) -> float:
    config = workload.config
    D = config.hidden_size
    V = workload.vocab_size
    is_causal = workload.family.name == "gpt"
    block_weights = 4 * D * D + 2 * D * config.ffn_size
    attention = 12 * workload.seq_len * D * (0.5 if is_causal else 1.0)
    body = config.num_layers * (6 * block_weights + attention)
    # GPT predicts every token. BERT predicts masked tokens, after one more dense layer.
    head = 6 * D * V if is_causal else 6 * MASK_SHARE * (D * V + D * D)
    return body + head


def describe_machine(device: torch.device) -> dict[str, Any]:
    """Return the versions, the number of cores, and the properties of the GPU."""
    facts: dict[str, Any] = {
        "torch": torch.__version__,
        "python": platform.python_version(),
        "cores": os.cpu_count(),
        "device": str(device),
    }
    if device.type == "cuda":
        gpu = torch.cuda.get_device_properties(device)
        facts |= {
            "name": gpu.name,
            "memory_gib": round(gpu.total_memory / 2**30, 1),
            "multiprocessors": gpu.multi_processor_count,
            "cuda": torch.version.cuda,
            "cudnn": torch.backends.cudnn.version(),
            "capability": f"{gpu.major}.{gpu.minor}",
        }
    return facts


@dataclass(frozen=True)
class TableColumn:
    """A column of a printed table."""

    title: str
    key: str  # of the value in a row
    alignment: str  # a format such as ">9", for the title and the value
    number_format: str = ""

    def format_title(self) -> str:
        """Return the aligned title."""
        return format(self.title, self.alignment)

    def format_value(self, row: dict[str, Any]) -> str:
        """Return the aligned value, or "-" if there is none."""
        value = row.get(self.key)
        text = "-" if value is None else format(value, self.number_format)
        return format(text, self.alignment)
