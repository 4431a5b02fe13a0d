"""GPT: a left-to-right Transformer language model (Radford et al. 2018, "Improving Language Understanding by Generative Pre-Training").

Learned positions, post-norm, tanh GELU, N(0, 0.02), the softmax tied to the token embedding. With `norm: pre` it is the GPT-2 block. Reading
from the left tells positions apart even without `position_encoding` (Haviv et al. 2022). Shapes: V vocabulary, R rows of the softmax.
"""

from dataclasses import dataclass

import torch
from torch import nn
from torch.nn import functional as F

from lineage.models.base import Encoder, Family, empty_embedding
from lineage.models.batch import Batch, gather_last
from lineage.models.layers.softmax import SoftmaxInputs
from lineage.models.layers.transformer import (
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
    """The block `model`."""

    # Tokens and positions as one matrix, as in the code released with GPT-1 (train.py): dropout falls on the matrix, so that the tied softmax lacks
    # the same entries as the input, and the softmax ranges over the positions' rows as well.
    tie_positions: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.tie_positions and self.position_encoding != "learned":
            raise ValueError(
                f"one_matrix holds a learned row for each position, and position_encoding is {self.position_encoding}"
            )


class GPTModel(Encoder):
    """Token and position embeddings summed, and a causal Transformer."""

    word_pooling = "last"

    def __init__(self, config: GPTConfig, *, vocab_size: int) -> None:
        super().__init__()
        assert config.hidden_size is not None
        self.config = config
        self.token_embeddings = empty_embedding(vocab_size, config.hidden_size)
        self.position_embeddings = PositionEmbedding(config)
        self.body = Transformer(config, causal=True)
        self.dropout_mask_RD: torch.Tensor | None = (
            None  # what dropout left of `one_matrix` when a batch was last read
        )

    def encode(self, batch: Batch) -> tuple[torch.Tensor, ...]:
        """The embedding layer and the output of each block, all (B, T, D)."""
        if self.config.tie_positions:
            self.dropout_mask_RD = (
                F.dropout(torch.ones_like(self._token_and_position_weight()), self.config.dropout)
                if self.training
                else None
            )
            rows_RD, T, V = (
                self.softmax_weight(),
                batch.ids_BT.shape[1],
                self.token_embeddings.num_embeddings,
            )
            x_BTD = F.embedding(batch.ids_BT, rows_RD) + rows_RD[V : V + T]
        else:
            x_BTD = F.dropout(
                self.position_embeddings(self.token_embeddings(batch.ids_BT)),
                self.config.dropout,
                self.training,
            )
        return (x_BTD, *self.body(x_BTD, batch.mask_BT))

    def softmax_weight(self) -> torch.Tensor:
        """(V, D) of the softmax; with `one_matrix` (R, D), the positions' rows after the tokens', less what was dropped of the batch at hand."""
        if not self.config.tie_positions:
            return self.token_embeddings.weight
        return (
            self._token_and_position_weight()
            if self.dropout_mask_RD is None
            else self._token_and_position_weight() * self.dropout_mask_RD
        )

    def _token_and_position_weight(self) -> torch.Tensor:
        return torch.cat([self.token_embeddings.weight, self.position_embeddings.weight])

    def softmax_inputs(self, x_ND: torch.Tensor) -> SoftmaxInputs:
        """The tied table, with `one_matrix` the positions' rows too, and no bias."""
        return x_ND, self.softmax_weight(), None

    def pool(self, layers: tuple[torch.Tensor, ...], batch: Batch) -> torch.Tensor:
        """The top vector at the extract mark, the only position that has read the whole text (section 3.3)."""
        return gather_last(layers[-1], batch.mask_BT)

    def modules_by_role(self) -> dict[str, nn.Module]:
        """Modules by role."""
        return {
            "embedding": nn.ModuleList([self.token_embeddings, self.position_embeddings]),
            "body": self.body,
        }

    def tied_parameters(self) -> list[nn.Parameter]:
        """The embedding is the softmax, with `one_matrix` the positions too."""
        return [
            *self.token_embeddings.parameters(),
            *(self.position_embeddings.parameters() if self.config.tie_positions else ()),
        ]

    def layer_groups(self) -> list[list[nn.Parameter]]:
        """The embeddings, then each block."""
        return [
            [*self.token_embeddings.parameters(), *self.position_embeddings.parameters()],
            *self.body.layer_groups(),
        ]

    def init_weights(self, generator: torch.Generator) -> None:
        """Normal, section 4.1."""
        init_normal_weights(self, generator, std=self.config.init_std, truncated=False)

    def hidden_sizes(self) -> tuple[int, ...]:
        """D for the embeddings and each block."""
        assert self.config.hidden_size is not None
        return (self.config.hidden_size,) * (self.config.num_layers + 1)


FAMILY = Family(
    name="gpt",
    input_unit="byte-level BPE",
    contextualizer="Transformer",
    direction="left to right",
    objective_description="next token",
    transfer_description="whole network, extract mark",
    tokenizer_type="byte_bpe",
    architecture_class=GPTConfig,
    pretrain_class=PretrainSettings,
    build=GPTModel,
    batch_sampler=CausalWindows,
    objective=causal_lm_loss,
    auxiliary_loss=auxiliary_lm_loss,
    score_texts=score_causal_lm,
)
