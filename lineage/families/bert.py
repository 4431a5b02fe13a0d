"""BERT: a Transformer that reads both sides, by masked LM and next-sentence prediction (Devlin et al. 2019).

Token, position and segment embeddings summed, post-norm, erf GELU, truncated normal 0.02, norm epsilon 1e-12.
Two switches leave all else as it is, batches included: `direction` reads from the left (the paper's "LTR", section 5.1) or once each way instead of
both sides at once, and `extractor` puts LSTMs in the Transformer's place (masked: Senay and Salin 2020, "Masked ELMo").
"""

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F

from lineage.batch import Batch, at_last
from lineage.family import Encoder, Family, LossOut, embedding
from lineage.layers.extractors import ExtractorConfig, extractor, initialise_lstms
from lineage.layers.softmax import ReadOut
from lineage.layers.transformer import Positions, initialise_normal
from lineage.records import positive, share, two_shares
from lineage.text.tokenization import Reader
from lineage.training.objectives import directed_lm, masked_lm
from lineage.training.pairs import SentencePairs, enough
from lineage.training.sentences import directed_scores, pseudo_log_likelihoods
from lineage.training.train import Training


@dataclass(frozen=True)
class MaskedTraining(Training):
    """The block `pretrain`."""

    mask_share: float  # of an item's positions
    short_share: float  # of the documents, chosen anew in each pass, are read in sequences of a random shorter length, as in the released code
    become: tuple[float, ...] = (0.8, 0.1)  # of the chosen: the shares that become the mask, and a random word; the rest stays
    whole_word: bool = False  # whether all pieces of a word are chosen or none
    duplicates: int | None = None  # versions of pairs and masks that come again and again; none: new ones in each pass
    most_masked: int | None = None  # positions of an item that are chosen at most (max_predictions_per_seq of the released code); none: no limit
    next_sentence: bool = True
    cut_sentences: bool = True  # one that alone would overfill a pair is read in parts; else it loses its ends to it, as in the released code
    first_length: int | None = None  # tokens of a sequence until the last part of the training, which reads `length`; none: always `length`
    last_share: float = 0.31  # of the budget's text that this part reads: appendix A.2's tenth of the steps at 512 after 128 is 0.31 of the text

    def __post_init__(self) -> None:
        super().__post_init__()
        share(self, "mask_share", "short_share", "last_share")
        positive(self, "duplicates", "most_masked", "first_length", "last_share")
        if self.first_length is not None and (self.first_length >= self.length or self.last_share == 1):
            raise ValueError(f"first_length is {self.first_length}; it is less than length, {self.length}, and last_share is less than 1")
        for name, tokens in (("length", self.length), ("first_length", self.first_length)):
            enough(name, tokens)
        two_shares(self, "become")

    @property
    def parts(self) -> list[tuple[float, "Training"]]:
        """Short sequences first, where that is asked for, since attention to long ones is dear."""
        whole: list[tuple[float, Training]] = [(1.0, self)]
        return whole if self.first_length is None else [(1.0 - self.last_share, replace(self, length=self.first_length, first_length=None)), *whole]

    def share_of_steps(self, progress: float) -> float:
        """A batch of long sequences takes more of the text than one of short ones: of the paper's steps nine tenths are done at 0.69 of the text."""
        if self.first_length is None:
            return progress
        turn = 1.0 - self.last_share
        whole = turn / self.first_length + self.last_share / self.length
        return (min(progress, turn) / self.first_length + max(0.0, progress - turn) / self.length) / whole


class Model(Encoder):
    """Three embeddings summed, the body that reads them, the pooler, and the two heads of pretraining."""

    def __init__(self, config: ExtractorConfig, *, vocabulary: int) -> None:
        super().__init__()
        assert config.width is not None
        width = config.width
        self.config = config
        self.read_word = "last" if config.direction == "left_to_right" else "mean"
        self.tokens = embedding(vocabulary, width)
        self.positions = Positions(config)
        self.segments = embedding(2, width)
        self.embedding_norm = nn.LayerNorm(width, eps=config.norm_epsilon)
        self.body = extractor(config)
        self.pooler = nn.Linear(config.ways * width, config.ways * width)
        self.masked_dense = nn.Linear(width, width)
        self.masked_norm = nn.LayerNorm(width, eps=config.norm_epsilon)
        self.masked_bias = nn.Parameter(torch.empty(vocabulary))
        self.next_sentence = nn.Linear(config.ways * width, 2)

    def encode(self, batch: Batch) -> tuple[torch.Tensor, ...]:
        """The embedding layer and the output of each block, all (B, T, D), or (B, T, 2 D) where two directions are joined."""
        segments = batch.segments_BT if batch.segments_BT is not None else torch.zeros_like(batch.ids_BT)
        x_BTD = self.positions(self.tokens(batch.ids_BT)) + self.segments(segments)
        x_BTD = F.dropout(self.embedding_norm(x_BTD), self.config.dropout, self.training)
        return (torch.cat([x_BTD] * self.config.ways, -1), *self.body(x_BTD, batch.mask_BT, padded=not batch.unpadded()))

    def read_out(self, x_ND: torch.Tensor) -> ReadOut:
        """Top vectors, of either direction, through dense, GELU and norm; the tied (V, D); the free bias."""
        x_ND = self.masked_norm(F.gelu(self.masked_dense(x_ND), approximate="tanh" if self.config.activation == "gelu_tanh" else "none"))
        return x_ND, self.tokens.weight, self.masked_bias

    def next_logits(self, top_BTD: torch.Tensor, batch: Batch) -> torch.Tensor:
        """(B, 2): 1 where the second segment comes from another document."""
        return self.next_sentence(self.pool((top_BTD,), batch))

    def pool(self, layers: tuple[torch.Tensor, ...], batch: Batch) -> torch.Tensor:
        """The pooled [CLS] vector, as in the paper's fine-tuning (section 3.2); of a left-to-right body the last one, which has read the text."""
        top_BTD, D = layers[-1], layers[-1].shape[-1] // self.config.ways
        whole_BD = top_BTD[:, 0]
        if self.config.direction != "both_sides":
            whole_BD = torch.cat([at_last(top_BTD, batch.mask_BT)[:, :D], whole_BD[:, D:]], -1)
        return torch.tanh(self.pooler(whole_BD))

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
        initialise_lstms(self.body, generator)
        nn.init.zeros_(self.masked_bias)

    def widths(self) -> tuple[int, ...]:
        """D for the embeddings and each block, twice that where two directions are joined."""
        assert self.config.width is not None
        return (self.config.ways * self.config.width,) * (self.config.layers + 1)


def objective(model: Model, batch: Batch, carry: Any = None) -> LossOut:
    """Masked words from both sides, or every word from one."""
    return (masked_lm if model.config.direction == "both_sides" else directed_lm)(model, batch, carry)


def score(model: Model, reader: Reader, texts: list[str], *, limit: int | None) -> np.ndarray:
    """(N, 2) `text_scores`: pseudo-log-likelihoods from both sides, log-probabilities from one."""
    return (pseudo_log_likelihoods if model.config.direction == "both_sides" else directed_scores)(model, reader, texts, limit=limit)


def switched(model: ExtractorConfig, pretrain: MaskedTraining) -> dict[str, str]:
    """What the switches make of the family's mechanism."""
    direction, predicted, read = {
        "both_sides": ("both sides at once", "masked LM", "[CLS]"),
        "left_to_right": ("left to right", "next token", "last mark"),
        "joined": ("left to right and right to left, joined", "next token, previous token", "last mark and [CLS]"),
    }[model.direction]
    label = " and next sentence" if pretrain.next_sentence else ""
    return {"extractor": "LSTM" if model.extractor == "lstm" else "Transformer", "direction": direction, "objective": predicted + label,
            "transfer": f"whole network, {read}"}  # fmt: skip


FAMILY = Family(
    name="bert",
    unit="WordPiece",
    extractor="Transformer",
    direction="both sides at once",
    objective_text="masked LM and next sentence",
    transfer_text="whole network, [CLS]",
    tokenizer="wordpiece",
    model=ExtractorConfig,
    pretrain=MaskedTraining,
    build=Model,
    stream=SentencePairs,
    objective=objective,
    score=score,
    switched=switched,
)
