"""The Transformer as it is trained today, which `gpt_modern`, `bert_modern` and `gpt_bert` share.

The block is that of nanochat (Karpathy 2025): an RMS norm without weights before each part (Zhang
and Sennrich 2019), rotary positions (Su et al. 2021), normalized queries and keys (Henry et al.
2020), a squared ReLU (So et al. 2021), no biases, and output matrices that start at zero. The
embedding is tied to the softmax. Matrices are updated by Muon (Jordan et al. 2024). Sequences get
longer and masks rarer in the course of the training.
Shapes: B items, T positions, N predicted positions, H heads, K units of a head, D width, F inner
units.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import torch
from torch import nn
from torch.nn import functional as F

from lineage.config.records import check_fraction, check_num_layers, check_positive
from lineage.networks.base import Encoder, candidate_sizes, empty_embedding, finetune_defaults
from lineage.networks.batch import Batch
from lineage.networks.layers.softmax import SoftmaxInputs
from lineage.training.schedules import LrScheduleName
from lineage.training.settings import (
    MaskReplacement,
    PretrainSettings,
    SettingsPhase,
    check_min_seq_len,
)

EMBEDDING_STD = 0.02
ROTARY_BASE = 10_000.0
LENGTH_STEP = 8  # sequences are multiples of it


@dataclass(frozen=True)
class ModernConfig:
    """The block `architecture`; its widths follow from the parameter budget if not given."""

    num_layers: int
    num_heads: int
    max_positions: int  # the longest text; rotary positions themselves have no limit
    dropout: float = 0.0  # after the embedding and after each part
    hidden_size: int | None = None
    ffn_size: int | None = None

    def __post_init__(self) -> None:
        check_positive(self, "num_layers", "num_heads", "max_positions", "hidden_size", "ffn_size")
        check_num_layers(self, "num_layers")
        check_fraction(self, "dropout")
        if self.hidden_size is not None and self.hidden_size % (2 * self.num_heads):
            raise ValueError(
                f"hidden_size {self.hidden_size} is not a multiple of twice num_heads, "
                f"{2 * self.num_heads}; rotary positions turn pairs of a head's units"
            )

    def candidates(self) -> Iterator[list["ModernConfig"]]:
        """Yield lists of configs of growing width; the first has four times as many inner units."""
        yield from candidate_sizes(
            self, "hidden_size", "ffn_size", ratio=4, step=4 * self.num_heads
        )


@dataclass(frozen=True, kw_only=True)
class ModernPretrainSettings(PretrainSettings):
    """The block `pretrain` of a modern Transformer."""

    optimizer: Literal["adam", "muon"] = "muon"
    schedule: LrScheduleName = "trapezoid"
    # The training has this many parts that read equally much text. From part to part sequences grow
    # from `initial_seq_len` to `seq_len`, in batches of equally many tokens.
    num_parts: int = 3
    initial_seq_len: int | None = None  # null: always `seq_len`

    def __post_init__(self) -> None:
        super().__post_init__()
        check_positive(self, "num_parts", "initial_seq_len")
        check_min_seq_len("seq_len", self.seq_len)
        check_min_seq_len("initial_seq_len", self.initial_seq_len)
        if self.initial_seq_len is not None and self.initial_seq_len > self.seq_len:
            raise ValueError(
                f"initial_seq_len is {self.initial_seq_len}, and sequences grow to seq_len, "
                f"{self.seq_len}; it must not be greater"
            )

    @property
    def phases(self) -> list[SettingsPhase]:
        """The parts of the training. Parts in which nothing changes are one."""
        phases: list[SettingsPhase] = []
        for index in range(self.num_parts):
            settings = self.part(index)
            if phases and phases[-1].settings == settings:
                phases.pop()
            phases.append(SettingsPhase((index + 1) / self.num_parts, settings))
        return phases

    def share_of_way(self, index: int) -> float:
        """Return how far a part is from the first settings, 0, to the last ones, 1."""
        return index / (self.num_parts - 1) if self.num_parts > 1 else 1.0

    def part(self, index: int) -> "ModernPretrainSettings":
        """Return the settings of one part's batches."""
        seq_len = self.seq_len
        if self.initial_seq_len is not None:
            growth = (self.seq_len / self.initial_seq_len) ** self.share_of_way(index)
            steps = round(self.initial_seq_len * growth / LENGTH_STEP)
            seq_len = min(self.seq_len, max(LENGTH_STEP, steps * LENGTH_STEP))
        batch_size = max(1, round(self.batch_size * self.seq_len / seq_len))
        return replace(
            self, seq_len=seq_len, batch_size=batch_size, num_parts=1, initial_seq_len=None
        )


@dataclass(frozen=True, kw_only=True)
class MaskedModernSettings(ModernPretrainSettings):
    """The block `pretrain` of a modern Transformer that predicts masked tokens."""

    mlm_probability: float = 0.15  # share of the tokens that are masked in the last part
    # In the first part, from which it falls: many masks teach fast, few teach to use the context
    # (Ankner et al. 2024).
    initial_mlm_probability: float = 0.4
    # Shares of the predicted positions that get the mask or a random word.
    mask_replacement: MaskReplacement = field(default_factory=MaskReplacement)

    def __post_init__(self) -> None:
        super().__post_init__()
        check_fraction(self, "mlm_probability", "initial_mlm_probability")

    def part(self, index: int) -> "MaskedModernSettings":
        """Return the settings of one part's batches."""
        fall = self.initial_mlm_probability - self.mlm_probability
        mlm_probability = self.initial_mlm_probability - fall * self.share_of_way(index)
        settings = super().part(index)
        assert isinstance(settings, MaskedModernSettings)
        return replace(settings, mlm_probability=mlm_probability)


class ModernTransformer(Encoder):
    """A token embedding and a stack of blocks, causal or bidirectional."""

    def __init__(self, config: ModernConfig, *, vocab_size: int, causal: bool) -> None:
        super().__init__()
        assert config.hidden_size is not None, "widths are solved before a model is built"
        self.config = config
        self.causal = causal
        self.word_pooling = "last" if causal else "mean"
        self.token_embeddings = empty_embedding(vocab_size, config.hidden_size)
        self.blocks = nn.ModuleList(ModernBlock(config) for _ in range(config.num_layers))

    def encode(self, batch: Batch) -> tuple[torch.Tensor, ...]:
        """Return the embedding and each block's output, normalized, all (B, T, D)."""
        return self.run_blocks(batch, causal=self.causal)

    def run_blocks(self, batch: Batch, *, causal: bool) -> tuple[torch.Tensor, ...]:
        """Encode a batch as one of the two directions reads it."""
        mask_B11T = None
        if not causal and not batch.has_no_padding():
            mask_B11T = batch.mask_BT[:, None, None, :]
        x_BTD = rms_norm(self.token_embeddings(batch.ids_BT))
        x_BTD = F.dropout(x_BTD, self.config.dropout, self.training)
        K = x_BTD.shape[2] // self.config.num_heads
        rotation = rotary_positions(x_BTD.shape[1], K, device=x_BTD.device)
        outputs = [x_BTD]
        for block in self.blocks:
            x_BTD = block(x_BTD, rotation, mask_B11T, causal=causal)
            outputs.append(rms_norm(x_BTD))
        return tuple(outputs)

    def softmax_inputs(self, x_ND: torch.Tensor) -> SoftmaxInputs:
        return x_ND, self.token_embeddings.weight, None

    def modules_by_role(self) -> dict[str, nn.Module]:
        return {"embedding": self.token_embeddings, "body": self.blocks}

    def tied_parameters(self) -> list[nn.Parameter]:
        return [*self.token_embeddings.parameters()]

    def init_weights(self, generator: torch.Generator) -> None:
        """Initialize; a matrix keeps the size of its inputs, and a block begins as the identity."""
        nn.init.normal_(self.token_embeddings.weight, std=EMBEDDING_STD, generator=generator)
        for block in self.blocks:
            assert isinstance(block, ModernBlock)
            block.init_weights(generator)

    def hidden_sizes(self) -> tuple[int, ...]:
        assert self.config.hidden_size is not None
        return (self.config.hidden_size,) * (self.config.num_layers + 1)


class ModernBlock(nn.Module):
    """Self-attention and a feed-forward part, each after a norm and with a residual."""

    def __init__(self, config: ModernConfig) -> None:
        super().__init__()
        D, F_inner = config.hidden_size, config.ffn_size
        assert D is not None and F_inner is not None, "widths are solved before a model is built"
        self.num_heads = config.num_heads
        self.dropout = config.dropout
        # Three matrices in one parameter: Muon makes each of them orthogonal by itself.
        self.qkv_3DD = nn.Parameter(torch.empty(3, D, D))
        self.out_DD = nn.Parameter(torch.empty(D, D))
        self.ffn_in_FD = nn.Parameter(torch.empty(F_inner, D))
        self.ffn_out_DF = nn.Parameter(torch.empty(D, F_inner))

    def init_weights(self, generator: torch.Generator) -> None:
        """Draw inputs with deviation 1 / sqrt(D), and set outputs to zero."""
        std = self.out_DD.shape[0] ** -0.5
        nn.init.normal_(self.qkv_3DD, std=std, generator=generator)
        nn.init.normal_(self.ffn_in_FD, std=std, generator=generator)
        nn.init.zeros_(self.out_DD)
        nn.init.zeros_(self.ffn_out_DF)

    def forward(
        self,
        x_BTD: torch.Tensor,
        rotation: tuple[torch.Tensor, torch.Tensor],
        mask_B11T: torch.Tensor | None,
        *,
        causal: bool,
    ) -> torch.Tensor:
        """Map (B, T, D) to (B, T, D). The mask is True at positions that may be attended to."""
        attended_BTD = self.self_attention(rms_norm(x_BTD), rotation, mask_B11T, causal=causal)
        x_BTD = x_BTD + F.dropout(attended_BTD, self.dropout, self.training)
        inner_BTF = F.relu(F.linear(rms_norm(x_BTD), self.ffn_in_FD)).square()
        output_BTD = F.linear(inner_BTF, self.ffn_out_DF)
        return x_BTD + F.dropout(output_BTD, self.dropout, self.training)

    def self_attention(
        self,
        x_BTD: torch.Tensor,
        rotation: tuple[torch.Tensor, torch.Tensor],
        mask_B11T: torch.Tensor | None,
        *,
        causal: bool,
    ) -> torch.Tensor:
        """Attend with normalized queries and keys: (B, T, D) -> (B, T, D)."""
        B, T, D = x_BTD.shape
        qkv = F.linear(x_BTD, self.qkv_3DD.flatten(0, 1))
        q, k, v = qkv.view(B, T, 3, self.num_heads, -1).permute(2, 0, 3, 1, 4).unbind(0)
        attended_BHTK = F.scaled_dot_product_attention(
            rms_norm(rotate(q, *rotation)),
            rms_norm(rotate(k, *rotation)),
            v,
            attn_mask=mask_B11T,
            is_causal=causal,
        )
        return F.linear(attended_BHTK.transpose(1, 2).reshape(B, T, D), self.out_DD)


def rms_norm(x: torch.Tensor) -> torch.Tensor:
    """Divide vectors by their root mean square."""
    return F.rms_norm(x, x.shape[-1:], eps=1e-6)


def rotary_positions(T: int, K: int, *, device: torch.device) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the (T, K / 2) cosines and sines of the angles of each position (Su et al. 2021)."""
    frequencies = ROTARY_BASE ** (-torch.arange(0, K, 2, device=device) / K)
    angles = torch.arange(T, device=device)[:, None] * frequencies
    return angles.cos(), angles.sin()


def rotate(x_BHTK: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    """Turn each pair of a unit of the first half and one of the second by its position's angle."""
    first, second = x_BHTK.chunk(2, -1)
    cos, sin = cos.to(x_BHTK.dtype), sin.to(x_BHTK.dtype)
    return torch.cat([first * cos + second * sin, second * cos - first * sin], -1)


def modern_defaults(pretrain: dict[str, Any], *, vocab_size: int) -> dict[str, Any]:
    """Return the defaults that the three families share, with one's own block `pretrain`."""
    return {
        "tokenizer": {"vocab_size": vocab_size, "min_frequency": 2},
        "architecture": {"num_layers": 4, "num_heads": 4, "max_positions": 256},
        "pretrain": {
            "batch_size": 8,
            "seq_len": 128,
            "learning_rate": 0.003,
            "weight_decay": 0.1,
            "betas": [0.9, 0.95],
        }
        | pretrain,
        "adapt": {"learning_rate": 0.0005},
        "evaluate": {"finetune": finetune_defaults(0.0001, 0.0003, 0.001, 0.003)},
    }
