"""Pretraining for sequence-to-sequence learning: two left-to-right language models, one a language, that become the first layers of an encoder and
a decoder (Ramachandran, Liu and Le 2017, "Unsupervised Pretraining for Sequence to Sequence Learning").

They share nothing, and each step trains one of them, so that each is trained as if alone. The model around them is `lineage.transfer.translator`; for
every other task the source's language model is the encoder.
Shapes: B items, T positions, D width, V vocabulary.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import nn

from lineage.batch import Batch, at_last
from lineage.family import Encoder, Family, LossOut
from lineage.layers.softmax import ReadOut
from lineage.randomness import seed_of
from lineage.records import positive, share
from lineage.text.tokenization import Reader
from lineage.text.tokens import Tokens
from lineage.training.sentences import causal_scores
from lineage.training.streams import Lanes
from lineage.training.train import Training
from lineage.transfer.translator import LanguageModel, State, build


@dataclass(frozen=True)
class Config:
    """The block `model`. `width` is solved from the budget where it is not given: the layers of both language models together are the body."""

    dropout: float
    width: int | None = None

    def __post_init__(self) -> None:
        positive(self, "width")
        share(self, "dropout")

    def candidates(self) -> Iterator[list["Config"]]:
        """Configurations of growing width."""
        yield [replace(self, width=w) for w in ([self.width] if self.width else range(2, 4097))]


@dataclass(frozen=True)
class TwoLanguageTraining(Training):
    """The block `pretrain`."""

    source: str | None  # the language whose documents the source's model reads; none: all documents, as both do where there is one language
    target: str | None

    def __post_init__(self) -> None:
        super().__post_init__()
        if (self.source is None) != (self.target is None):
            raise ValueError("name both source and target, or neither: then both language models read the whole corpus")


class TwoLanguageLanes:
    """Lanes through the documents of each language, a batch of one, then of the other, so mixed that both end with the pass.

    The state of both is carried. Text of which no language is known (a task's) is the source's, unless both read everything.
    """

    carries = True

    def __init__(self, tokens: Tokens, reader: Reader, settings: TwoLanguageTraining, *, seed: int) -> None:
        parts = [tokens.part(language) for language in (settings.source, settings.target)]
        self.sides = [Lanes(part, reader, settings, seed=seed_of(side, seed)) for side, part in zip(("source", "target"), parts, strict=True)]
        self.only_source = tokens.languages is None and settings.source != settings.target
        self.order = np.zeros((0, 2), int)

    def start(self, passed: int) -> int:
        """Lay out both sides. The batches of each are spread evenly over the pass."""
        counts = [side.start(passed) for side in self.sides]
        if self.only_source:
            counts[1] = 0
        places = [(np.arange(count) + 0.5) / max(count, 1) for count in counts]
        both = [(place, side, index) for side in (0, 1) for index, place in enumerate(places[side])]
        self.order = np.array([(side, index) for _, side, index in sorted(both)], int).reshape(-1, 2)
        return len(self.order)

    def batch(self, index: int) -> Batch:
        """(B, T) ids and targets of one language."""
        side, place = self.order[index]
        return replace(self.sides[side].batch(int(place)), side=int(side))


class Model(Encoder):
    """The source's and the target's language model."""

    read_word = "last"

    def __init__(self, config: Config, *, vocabulary: int) -> None:
        super().__init__()
        assert config.width is not None
        self.config = config
        self.source = LanguageModel(vocabulary=vocabulary, width=config.width)
        self.target = LanguageModel(vocabulary=vocabulary, width=config.width)

    def encode(self, batch: Batch) -> tuple[torch.Tensor, ...]:
        """The embedding and the layer of the source's language model, both (B, T, D)."""
        return self.source.read(batch.ids_BT, None, dropout=self.config.dropout)[:2]

    def read_out(self, x_ND: torch.Tensor) -> ReadOut:
        """Top vectors of the source's language model, and its softmax."""
        return self.source.read_out(x_ND)

    def pool(self, layers: tuple[torch.Tensor, ...], batch: Batch) -> torch.Tensor:
        """The state after the last piece, the only one that has read the whole text."""
        return at_last(layers[-1], batch.mask_BT)

    def parts(self) -> dict[str, nn.Module]:
        """Modules by role, each of both languages."""
        both = (self.source, self.target)
        return {
            "embedding": nn.ModuleList(one.table for one in both),
            "body": nn.ModuleList(one.layer for one in both),
            "head": nn.ModuleList(one.softmax for one in both),
        }

    def independent(self) -> list[list[nn.Parameter]]:
        """Each language model."""
        return [[*self.source.parameters()], [*self.target.parameters()]]

    def layer_groups(self) -> list[list[nn.Parameter]]:
        """The tables, then the layers. What reads one language leaves the other's without a gradient, and so unchanged."""
        parts = self.parts()
        return [[*parts["embedding"].parameters()], [*parts["body"].parameters()]]

    def initialise(self, generator: torch.Generator) -> None:
        """One after the other."""
        self.source.initialise(generator)
        self.target.initialise(generator)

    def widths(self) -> tuple[int, ...]:
        """D for the embedding and the layer."""
        assert self.config.width is not None
        return (self.config.width,) * 2


def either_lm(model: Model, batch: Batch, carry: tuple[State, State] | None = None) -> LossOut:
    """The next piece in the language of the batch, with that language's state carried; the other language model is left alone.

    `causal` counts both languages, so that bits per byte are those of the whole corpus, each text read by its own model.
    """
    name, own = (("source", model.source), ("target", model.target))[batch.side]
    states: list[State | None] = [None, None] if carry is None else [*carry]
    before = states[batch.side]
    if before is not None and before[0].shape[1] != len(batch.ids_BT):  # the other side's zeros, from its number of lanes
        before = None
    nats, count, after = own.loss(batch, before, dropout=model.config.dropout)
    zeros = torch.zeros_like(after[0]), torch.zeros_like(after[1])
    kept = [after if side == batch.side else state or zeros for side, state in enumerate(states)]
    found = nats.detach()
    return LossOut(nats / max(count, 1), {"causal": found, name: found}, {"causal": count, name: count}, (kept[0], kept[1]))


FAMILY = Family(
    name="seq2seq",
    unit="byte-level BPE",
    extractor="LSTM, one a language",
    direction="left to right",
    objective_text="next token, in each of two languages",
    transfer_text="first layers and softmax of encoder and decoder",
    tokenizer="byte_bpe",
    model=Config,
    pretrain=TwoLanguageTraining,
    build=Model,
    stream=TwoLanguageLanes,
    objective=either_lm,
    score=causal_scores,
    translator=build,
)
