"""BERT: a Transformer that reads both sides, by masked LM and next-sentence prediction (Devlin et al. 2019).

Token, position and segment embeddings summed, post-norm, erf GELU, truncated normal 0.02, norm epsilon 1e-12.
"""

from dataclasses import dataclass

import torch
from torch import nn
from torch.nn import functional as F

from lineage.batch import Batch
from lineage.family import Encoder, Family, embedding
from lineage.objectives import masked_lm, pseudo_log_likelihoods
from lineage.pairs import SentencePairs
from lineage.records import positive, share
from lineage.train import Training
from lineage.transformer import Transformer, TransformerConfig, initialise_normal


@dataclass(frozen=True)
class MaskedTraining(Training):
    """The block `pretrain`."""

    mask_share: float  # of an item's positions
    short_share: float  # of the pairs get a random shorter length
    become: tuple[float, ...] = (0.8, 0.1)  # of the chosen: the shares that become the mask, and a random word; the rest stays
    whole_word: bool = False  # whether all pieces of a word are chosen or none
    duplicates: int | None = None  # versions of pairs and masks that come again and again; none: new ones in each pass
    next_sentence: bool = True

    def __post_init__(self) -> None:
        super().__post_init__()
        share(self, "mask_share", "short_share")
        positive(self, "duplicates")
        if len(self.become) != 2 or min(self.become) < 0 or sum(self.become) > 1:
            raise ValueError(f"become is a list of two shares, together at most 1, found {list(self.become)}")


class Model(Encoder):
    """Three embeddings summed, a Transformer, the pooler, and the two heads of pretraining."""

    def __init__(self, config: TransformerConfig, *, vocabulary: int) -> None:
        super().__init__()
        assert config.width is not None
        width = config.width
        self.config = config
        self.tokens = embedding(vocabulary, width)
        self.positions = embedding(config.positions, width)
        self.segments = embedding(2, width)
        self.embedding_norm = nn.LayerNorm(width, eps=config.norm_epsilon)
        self.body = Transformer(config, causal=False)
        self.pooler = nn.Linear(width, width)
        self.masked_dense = nn.Linear(width, width)
        self.masked_norm = nn.LayerNorm(width, eps=config.norm_epsilon)
        self.masked_bias = nn.Parameter(torch.empty(vocabulary))
        self.next_sentence = nn.Linear(width, 2)

    def encode(self, batch: Batch) -> tuple[torch.Tensor, ...]:
        """The embedding layer and the output of each block, all (B, T, D)."""
        segments = batch.segments_BT if batch.segments_BT is not None else torch.zeros_like(batch.ids_BT)
        x_BTD = self.tokens(batch.ids_BT) + self.positions.weight[: batch.ids_BT.shape[1]] + self.segments(segments)
        x_BTD = F.dropout(self.embedding_norm(x_BTD), self.config.dropout, self.training)
        return (x_BTD, *self.body(x_BTD, batch.mask_BT))

    def masked_logits(self, x_ND: torch.Tensor) -> torch.Tensor:
        """(N, V) from the top vectors of the masked positions only: dense, GELU, norm, tied decoder, free bias."""
        x_ND = self.masked_norm(F.gelu(self.masked_dense(x_ND), approximate="tanh" if self.config.activation == "gelu_tanh" else "none"))
        return F.linear(x_ND, self.tokens.weight, self.masked_bias)

    def next_logits(self, top_BTD: torch.Tensor) -> torch.Tensor:
        """(B, 2): 1 where the second segment comes from another document."""
        return self.next_sentence(torch.tanh(self.pooler(top_BTD[:, 0])))

    def pool(self, layers: tuple[torch.Tensor, ...], batch: Batch) -> torch.Tensor:
        """The pooled [CLS] vector, as in the paper's fine-tuning (section 3.2)."""
        return torch.tanh(self.pooler(layers[-1][:, 0]))

    def parts(self) -> dict[str, nn.Module]:
        """Modules by role."""
        inputs = nn.ModuleList([self.tokens, self.positions, self.segments, self.embedding_norm])
        return {"embedding": inputs, "body": self.body, "pooler": self.pooler, "head": nn.ModuleList([self.masked_dense, self.masked_norm])}

    def tied(self) -> list[nn.Parameter]:
        """The embedding is the softmax."""
        return [*self.tokens.parameters()]

    def layer_groups(self) -> list[list[nn.Parameter]]:
        """The embeddings, each block, and the pooler with the last of them."""
        groups = [[*self.parts()["embedding"].parameters()], *self.body.layer_groups()]
        groups[-1] += [*self.pooler.parameters()]
        return groups

    def initialise(self, generator: torch.Generator) -> None:
        """Truncated normal, as in the released code."""
        initialise_normal(self, generator, deviation=self.config.initial_deviation, truncated=True)
        nn.init.zeros_(self.masked_bias)

    def widths(self) -> tuple[int, ...]:
        """D for the embeddings and each block."""
        assert self.config.width is not None
        return (self.config.width,) * (self.config.layers + 1)


FAMILY = Family(
    name="bert",
    unit="WordPiece",
    extractor="Transformer",
    direction="both sides at once",
    objective_text="masked LM and next sentence",
    transfer_text="whole network, [CLS]",
    tokenizer="wordpiece",
    model=TransformerConfig,
    pretrain=MaskedTraining,
    build=Model,
    stream=SentencePairs,
    objective=masked_lm,
    score=pseudo_log_likelihoods,
)
