"""GPT: a left-to-right Transformer language model (Radford et al. 2018, "Improving Language Understanding by Generative Pre-Training").

Learned positions, post-norm, tanh GELU, N(0, 0.02), the softmax tied to the token embedding. With `norm: pre` it is the GPT-2 block. Reading
from the left tells positions apart even without `position_encoding` (Haviv et al. 2022). Shapes: V vocabulary, R rows of the softmax.
"""

from dataclasses import dataclass

import torch
from torch import nn
from torch.nn import functional as F

from lineage.batch import Batch, at_last
from lineage.family import Encoder, Family, embedding
from lineage.layers.softmax import ReadOut
from lineage.layers.transformer import Positions, Transformer, TransformerConfig, initialise_normal
from lineage.training.objectives import causal_lm, texts_lm
from lineage.training.sentences import causal_scores
from lineage.training.streams import Windows
from lineage.training.train import Training


@dataclass(frozen=True)
class Config(TransformerConfig):
    """The block `model`."""

    # Tokens and positions as one matrix, as in the code released with GPT-1 (train.py): dropout falls on the matrix, so that the tied softmax lacks
    # the same entries as the input, and the softmax ranges over the positions' rows as well.
    one_matrix: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.one_matrix and self.position_encoding != "learned":
            raise ValueError(f"one_matrix holds a learned row for each position, and position_encoding is {self.position_encoding}")


class Model(Encoder):
    """Token and position embeddings summed, and a causal Transformer."""

    read_word = "last"

    def __init__(self, config: Config, *, vocabulary: int) -> None:
        super().__init__()
        assert config.width is not None
        self.config = config
        self.tokens = embedding(vocabulary, config.width)
        self.positions = Positions(config)
        self.body = Transformer(config, causal=True)
        self.kept_RD: torch.Tensor | None = None  # what dropout left of `one_matrix` when a batch was last read

    def encode(self, batch: Batch) -> tuple[torch.Tensor, ...]:
        """The embedding layer and the output of each block, all (B, T, D)."""
        if self.config.one_matrix:
            self.kept_RD = F.dropout(torch.ones_like(self._matrix()), self.config.dropout) if self.training else None
            rows_RD, T, V = self.table(), batch.ids_BT.shape[1], self.tokens.num_embeddings
            x_BTD = F.embedding(batch.ids_BT, rows_RD) + rows_RD[V : V + T]
        else:
            x_BTD = F.dropout(self.positions(self.tokens(batch.ids_BT)), self.config.dropout, self.training)
        return (x_BTD, *self.body(x_BTD, batch.mask_BT))

    def table(self) -> torch.Tensor:
        """(V, D) of the softmax; with `one_matrix` (R, D), the positions' rows after the tokens', less what was dropped of the batch at hand."""
        if not self.config.one_matrix:
            return self.tokens.weight
        return self._matrix() if self.kept_RD is None else self._matrix() * self.kept_RD

    def _matrix(self) -> torch.Tensor:
        return torch.cat([self.tokens.weight, self.positions.weight])

    def read_out(self, x_ND: torch.Tensor) -> ReadOut:
        """The tied table, with `one_matrix` the positions' rows too, and no bias."""
        return x_ND, self.table(), None

    def pool(self, layers: tuple[torch.Tensor, ...], batch: Batch) -> torch.Tensor:
        """The top vector at the extract mark, the only position that has read the whole text (section 3.3)."""
        return at_last(layers[-1], batch.mask_BT)

    def parts(self) -> dict[str, nn.Module]:
        """Modules by role."""
        return {"embedding": nn.ModuleList([self.tokens, self.positions]), "body": self.body}

    def tied(self) -> list[nn.Parameter]:
        """The embedding is the softmax, with `one_matrix` the positions too."""
        return [*self.tokens.parameters(), *(self.positions.parameters() if self.config.one_matrix else ())]

    def layer_groups(self) -> list[list[nn.Parameter]]:
        """The embeddings, then each block."""
        return [[*self.tokens.parameters(), *self.positions.parameters()], *self.body.layer_groups()]

    def initialise(self, generator: torch.Generator) -> None:
        """Normal, section 4.1."""
        initialise_normal(self, generator, deviation=self.config.initial_deviation, truncated=False)

    def widths(self) -> tuple[int, ...]:
        """D for the embeddings and each block."""
        assert self.config.width is not None
        return (self.config.width,) * (self.config.layers + 1)


FAMILY = Family(
    name="gpt",
    unit="byte-level BPE",
    extractor="Transformer",
    direction="left to right",
    objective_text="next token",
    transfer_text="whole network, extract mark",
    tokenizer="byte_bpe",
    model=Config,
    pretrain=Training,
    build=Model,
    stream=Windows,
    objective=causal_lm,
    auxiliary=texts_lm,
    score=causal_scores,
)
