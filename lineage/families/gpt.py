"""GPT: a left-to-right Transformer language model.

Radford et al. 2018, "Improving Language Understanding by Generative Pre-Training". Learned
positions, post-norm, tanh GELU, N(0, 0.02), and a softmax tied to the token embedding. With
`norm_first: true` it is the GPT-2 block. A causal model can tell positions apart even with
`position_encoding: none` (Haviv et al. 2022).
Shapes: B items, T positions, N predicted positions, V vocabulary, D width, R rows of the softmax.
"""

from dataclasses import dataclass

import torch
from torch import nn
from torch.nn import functional as F

from lineage.networks.base import Encoder, Trained, empty_embedding, finetune_defaults
from lineage.networks.batch import Batch
from lineage.networks.layers.softmax import SoftmaxInputs
from lineage.networks.layers.transformer import (
    PositionEmbedding,
    Transformer,
    TransformerConfig,
    init_normal_weights,
)
from lineage.training.objectives import auxiliary_lm_loss, causal_lm_loss
from lineage.training.samplers import CausalWindows
from lineage.training.sentence_scores import score_causal_lm
from lineage.training.settings import PretrainSettings


@dataclass(frozen=True)
class GPTConfig(TransformerConfig):
    """The block `architecture`."""

    # True: tokens and positions are one matrix, as in the code released with GPT-1 (train.py).
    # Dropout acts on the matrix, so that the tied softmax lacks the same entries as the input, and
    # the softmax also ranges over the positions' rows.
    tie_positions: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.tie_positions and self.position_encoding != "learned":
            raise ValueError(
                "tie_positions needs a learned row for each position, but position_encoding is "
                f"{self.position_encoding}"
            )


class GPTModel(Encoder):
    """Summed token and position embeddings, and a causal Transformer."""

    word_pooling = "last"

    def __init__(self, config: GPTConfig, *, vocab_size: int) -> None:
        super().__init__()
        assert config.hidden_size is not None
        self.config = config
        self.token_embeddings = empty_embedding(vocab_size, config.hidden_size)
        self.position_embeddings = PositionEmbedding(config)
        self.body = Transformer(config, causal=True)
        # With tie_positions: the dropout mask of the batch that was encoded last.
        self.dropout_mask_RD: torch.Tensor | None = None

    def encode(self, batch: Batch) -> tuple[torch.Tensor, ...]:
        """Return the embedding layer and each block's output, all (B, T, D)."""
        if self.config.tie_positions:
            x_BTD = self._embed_with_tied_positions(batch.ids_BT)
        else:
            x_BTD = self.position_embeddings(self.token_embeddings(batch.ids_BT))
            x_BTD = F.dropout(x_BTD, self.config.dropout, self.training)
        return (x_BTD, *self.body(x_BTD, batch.mask_BT))

    def _embed_with_tied_positions(self, ids_BT: torch.Tensor) -> torch.Tensor:
        """Sum token and position rows of the one matrix, after dropout on the matrix."""
        self.dropout_mask_RD = None
        if self.training:
            ones_RD = torch.ones_like(self._token_and_position_weight())
            self.dropout_mask_RD = F.dropout(ones_RD, self.config.dropout)
        weight_RD = self.softmax_weight()
        T = ids_BT.shape[1]
        V = self.token_embeddings.num_embeddings
        return F.embedding(ids_BT, weight_RD) + weight_RD[V : V + T]

    def softmax_weight(self) -> torch.Tensor:
        """Return the softmax's (V, D) weight; with `tie_positions`, (R, D) with the positions."""
        if not self.config.tie_positions:
            return self.token_embeddings.weight
        weight_RD = self._token_and_position_weight()
        if self.dropout_mask_RD is None:
            return weight_RD
        return weight_RD * self.dropout_mask_RD

    def _token_and_position_weight(self) -> torch.Tensor:
        return torch.cat([self.token_embeddings.weight, self.position_embeddings.weight])

    def softmax_inputs(self, x_ND: torch.Tensor) -> SoftmaxInputs:
        return x_ND, self.softmax_weight(), None

    def modules_by_role(self) -> dict[str, nn.Module]:
        embedding = nn.ModuleList([self.token_embeddings, self.position_embeddings])
        return {"embedding": embedding, "body": self.body}

    def tied_parameters(self) -> list[nn.Parameter]:
        tied = [*self.token_embeddings.parameters()]
        if self.config.tie_positions:
            tied += self.position_embeddings.parameters()
        return tied

    def layer_groups(self) -> list[list[nn.Parameter]]:
        embedding = [*self.token_embeddings.parameters(), *self.position_embeddings.parameters()]
        return [embedding, *self.body.layer_groups()]

    def init_weights(self, generator: torch.Generator) -> None:
        """Initialize with a normal distribution (section 4.1)."""
        init_normal_weights(self, generator, std=self.config.init_std, truncated=False)

    def hidden_sizes(self) -> tuple[int, ...]:
        assert self.config.hidden_size is not None
        return (self.config.hidden_size,) * (self.config.num_layers + 1)


FAMILY = Trained(
    name="gpt",
    tokenizer_type="byte_bpe",
    architecture_class=GPTConfig,
    pretrain_class=PretrainSettings,
    build=GPTModel,
    batch_sampler=CausalWindows,
    objective=causal_lm_loss,
    predicts_next_token=True,
    writes_on=True,
    auxiliary_loss=auxiliary_lm_loss,
    score_texts=score_causal_lm,
    defaults={
        "tokenizer": {"vocab_size": 8000, "min_frequency": 2},
        "architecture": {
            "num_layers": 3,
            "num_heads": 4,
            "max_positions": 256,
            "dropout": 0.0,
            "activation": "gelu_tanh",
            "norm_first": False,
            "layer_norm_eps": 1e-05,
            "init_std": 0.05,
        },
        "pretrain": {
            "batch_size": 4,
            "seq_len": 136,
            "learning_rate": 0.001,
            "weight_decay": 0.01,
            "betas": [0.9, 0.98],
        },
        "adapt": {"learning_rate": 0.0005},
        "evaluate": {"finetune": finetune_defaults(0.0001, 0.0003, 0.001, 0.003)},
    },
)
