"""TagLM: a forward and a backward language model, each of its own (Peters et al. 2017, "Semi-supervised sequence tagging with bidirectional
language models").

The two share nothing, neither words nor LSTM nor softmax, and are trained as if each were alone: two losses over parameters of their own,
gradients clipped apart. Downstream they stay frozen, and only the top layer of each is read, by the readers that all families share. The paper's
tagger joins the two vectors to the output of its first recurrent layer, which reads static ones: so does a network of joined features
(`grid.join_families`) with `evaluate.network: {layers: 2, join: first}`. There static vectors are tuned with the tagger, and it reads characters
too; here they stay frozen, and it does not.
Shapes: B items, T positions, P projection, V vocabulary.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

import torch
from torch import nn
from torch.nn import functional as F

from lineage.batch import Batch, mean_over, reversal, turned
from lineage.family import Encoder, Family, LossOut, embedding, growing, looked_up
from lineage.layers.lstm import State, TwoWayLSTM
from lineage.layers.softmax import ReadOut
from lineage.records import few, positive, share
from lineage.training.objectives import at_targets, halves, word_nats
from lineage.training.sentences import bidirectional_scores
from lineage.training.streams import TwoWayLanes
from lineage.training.train import LanesTraining

WAYS = ("forward", "backward")


@dataclass(frozen=True)
class Config:
    """The block `model`. `projection` and `cells` are solved from the budget where they are not given."""

    directions: Literal["both", "forward", "backward"]
    layers: int
    cell_ratio: int  # cell units over projection; 4 in the paper (2048 over 512)
    dropout: float
    cell_clip: float | None
    projection_clip: float | None
    samples: int | None  # candidates of the sampled softmax in training; none: the full softmax
    projection: int | None = None
    cells: int | None = None

    def __post_init__(self) -> None:
        positive(self, "layers", "cell_ratio", "cell_clip", "projection_clip", "samples", "projection", "cells")
        few(self, "layers")
        share(self, "dropout")

    def candidates(self) -> Iterator[list["Config"]]:
        """Configurations of growing projection."""
        return growing(self, "projection", "cells", ratio=self.cell_ratio)


class LanguageModel(nn.Module):
    """One direction: a table of words, LSTMs with projection, a softmax."""

    def __init__(self, config: Config, *, vocabulary: int) -> None:
        super().__init__()
        assert config.projection is not None and config.cells is not None, "widths are solved before a model is built"
        self.config, self.vocabulary = config, vocabulary
        self.words = embedding(vocabulary, config.projection)
        self.body = TwoWayLSTM(
            layers=config.layers,
            projection=config.projection,
            cells=config.cells,
            cell_clip=config.cell_clip or math.inf,
            projection_clip=config.projection_clip or math.inf,
            dropout=config.dropout,
            residual=False,
            ways=1,
        )
        self.softmax = nn.Linear(config.projection, vocabulary)

    def top(self, ids_BT: torch.Tensor, state: State | None) -> tuple[torch.Tensor, State]:
        """(B, T, P) of the last layer for ids in reading order, and the state after them."""
        outputs, state = self.body(looked_up(self.words.weight, ids_BT)[None], state)
        return outputs[-1][0], state

    def read_out(self, x_ND: torch.Tensor) -> ReadOut:
        """(N, P) of top vectors, (V, P) and (V,)."""
        return x_ND, self.softmax.weight, self.softmax.bias


class Model(Encoder):
    """One language model, or both."""

    def __init__(self, config: Config, *, vocabulary: int) -> None:
        super().__init__()
        self.config = config
        self.read_word = {"forward": "last", "backward": "first", "both": "mean"}[config.directions]  # positions are in the text's order
        self.ways = [way for way in WAYS if config.directions in ("both", way)]
        self.models = nn.ModuleList(LanguageModel(config, vocabulary=vocabulary) for _ in self.ways)

    def encode(self, batch: Batch) -> tuple[torch.Tensor, ...]:
        """One layer: the top of each model, from a cold state, joined: (B, T, P) or (B, T, 2 P)."""
        turn_BT, found = reversal(batch.mask_BT), []
        for way, model in zip(self.ways, self.models, strict=True):
            assert isinstance(model, LanguageModel)
            ids_BT = batch.ids_BT if way == "forward" else batch.ids_BT.gather(1, turn_BT)
            top_BTP, _ = model.top(ids_BT, None)
            found.append(top_BTP if way == "forward" else turned(top_BTP, turn_BT))
        return (torch.cat(found, -1),)

    def directions(self, top_BTD: torch.Tensor) -> Iterator[tuple[str, ReadOut]]:
        """For each direction its name, and what its softmax reads of its part of `encode`."""
        for way, model, part_BTP in zip(self.ways, self.models, top_BTD.chunk(len(self.ways), -1), strict=True):
            assert isinstance(model, LanguageModel)
            yield way, model.read_out(part_BTP)

    def pool(self, layers: tuple[torch.Tensor, ...], batch: Batch) -> torch.Tensor:
        """The mean over the real positions."""
        return mean_over(layers[-1], batch.mask_BT)

    def parts(self) -> dict[str, nn.Module]:
        """Modules by role."""
        roles = {"embedding": "words", "body": "body", "head": "softmax"}
        return {role: nn.ModuleList([getattr(model, name) for model in self.models]) for role, name in roles.items()}

    def layer_groups(self) -> list[list[nn.Parameter]]:
        """The tables, then the LSTM layers of one height."""
        layers: list[list[nn.Parameter]] = [[] for _ in range(self.config.layers)]
        for model in self.models:
            assert isinstance(model, LanguageModel)
            for layer, found in zip(model.body.layers, layers, strict=True):
                found += layer.parameters()
        return [[*self.parts()["embedding"].parameters()], *layers]

    def independent(self) -> list[list[nn.Parameter]]:
        """Each language model."""
        return [[*model.parameters()] for model in self.models]

    def initialise(self, generator: torch.Generator) -> None:
        """Weights scaled by their inputs; the forget gates open."""
        for model in self.models:
            assert isinstance(model, LanguageModel)
            for weight in (model.words.weight, model.softmax.weight):
                nn.init.normal_(weight, std=weight.shape[1] ** -0.5, generator=generator)
            nn.init.zeros_(model.softmax.bias)
            model.body.initialise(generator)

    def widths(self) -> tuple[int, ...]:
        """P a direction, of the one layer."""
        assert self.config.projection is not None
        return (len(self.models) * self.config.projection,)


def independent_lms(model: Model, batch: Batch, carry: State | None = None) -> LossOut:
    """The next word from the left, and the previous word from the right: the sum of two losses that have no parameter in common.

    The first half of the batch's rows are forward windows, the second half backward ones; `carry` is the state of both models, in a row.
    """
    layers, after = model.config.layers, list[tuple[torch.Tensor, torch.Tensor]]()
    losses: list[torch.Tensor] = []
    sums: dict[str, torch.Tensor] = {}
    counts: dict[str, int] = {}
    sides = dict(zip(WAYS, halves(batch), strict=True))
    for number, (way, one) in enumerate(zip(model.ways, model.models, strict=True)):
        assert isinstance(one, LanguageModel)
        half = sides[way]
        top_BTP, state = one.top(half.ids_BT, None if carry is None else carry[number * layers : (number + 1) * layers])
        top_NP, targets_N = at_targets(F.dropout(top_BTP, model.config.dropout, model.training), half)
        nats = word_nats(one, top_NP, targets_N)
        sums[way], counts[way] = nats.detach(), len(targets_N)
        losses.append(nats / max(counts[way], 1))
        after += state
    return LossOut(torch.stack(losses).sum(), sums, counts, tuple(after))


def switched(model: Config, pretrain: LanesTraining) -> dict[str, str]:
    """What one direction alone makes of the family's mechanism."""
    if model.directions == "both":
        return {}
    direction, predicted = ("left to right", "next word") if model.directions == "forward" else ("right to left", "previous word")
    return {"extractor": "LSTM", "direction": direction, "objective": predicted, "transfer": "frozen, the top"}


FAMILY = Family(
    name="taglm",
    unit="words",
    extractor="two LSTMs of their own",
    direction="left to right and right to left, apart",
    objective_text="next word; previous word",
    transfer_text="frozen, the top of each joined",
    tokenizer="word",
    model=Config,
    pretrain=LanesTraining,
    build=Model,
    stream=TwoWayLanes,
    objective=independent_lms,
    score=bidirectional_scores,
    switched=switched,
)
