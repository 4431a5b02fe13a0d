"""ELMo: a deep bidirectional LSTM language model over characters (Peters et al. 2018, "Deep contextualized word representations").

A byte-level character CNN with highways and a projection (Kim et al. 2016; Jozefowicz et al. 2016), then forward and backward LSTMs with
projection. The two directions share the character encoder and the softmax, and nothing else.
Shapes: B items, T positions, U distinct words, C bytes a word, P projection, H cell units; a leading 2 is the direction.
"""

import itertools
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Literal

import torch
from torch import nn
from torch.nn import functional as F

from lineage.batch import Batch, mean_over, reversal, turned
from lineage.family import Encoder, Family, embedding, growing, looked_up
from lineage.layers.lstm import State, TwoWayLSTM
from lineage.layers.softmax import ReadOut
from lineage.records import few, not_negative, positive, share
from lineage.text.tokenization import BYTE_IDS
from lineage.training.objectives import bidirectional_lm
from lineage.training.sentences import bidirectional_scores
from lineage.training.streams import TwoWayLanes
from lineage.training.train import LanesTraining

CARRY_BIAS = -2.0  # of a highway's gate at first, so that it passes most of x on


@dataclass(frozen=True)
class Config:
    """The block `model`. `projection` and `cells` are solved from the budget where they are not given."""

    layers: int
    cell_ratio: int  # cell units over projection; 8 in the original
    filters: tuple[tuple[int, int], ...]  # (width in bytes, number)
    character_width: int
    highways: int
    dropout: float
    cell_clip: float | None
    projection_clip: float | None
    samples: int | None  # candidates of the sampled softmax in training; none: the full softmax
    activation: Literal["relu", "tanh"] = "relu"  # of the convolutions
    residual: bool = True  # round every LSTM layer but the first
    input: Literal["characters", "words"] = "characters"  # words: a table of the vocabulary in place of the character encoder
    tied: bool = False  # the softmax is the table of words
    start: Literal["cold", "warm"] = "cold"  # what a text is read from: zeros, or the state that reading the training text ended in
    projection: int | None = None
    cells: int | None = None

    def __post_init__(self) -> None:
        positive(self, "layers", "cell_ratio", "character_width", "cell_clip", "projection_clip", "samples", "projection", "cells")
        few(self, "layers", "highways")
        not_negative(self, "highways")
        share(self, "dropout")
        if not self.filters or any(len(f) != 2 or min(f) < 1 or f[0] > 8 for f in self.filters):
            raise ValueError("filters is a list of [width in bytes up to 8, number]")
        if self.tied and self.input == "characters":
            raise ValueError("tied is true, but a character encoder has no table that could be the softmax; set input: words")

    def candidates(self) -> Iterator[list["Config"]]:
        """Configurations of growing projection."""
        return growing(self, "projection", "cells", ratio=self.cell_ratio)


class Highway(nn.Module):
    """g * relu(W x + b) + (1 - g) * x with g = sigmoid(V x + c) (Srivastava et al. 2015); bilm-tf calls g the carry gate."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.transform, self.carry = nn.Linear(width, width), nn.Linear(width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """The same shape."""
        gate = torch.sigmoid(self.carry(x))
        return gate * F.relu(self.transform(x)) + (1 - gate) * x


class CharacterEncoder(nn.Module):
    """Bytes of a word -> its vector: convolutions, the maximum over positions, the activation, highways, a projection."""

    def __init__(self, config: Config) -> None:
        super().__init__()
        assert config.projection is not None
        self.activation: Callable[[torch.Tensor], torch.Tensor] = torch.relu if config.activation == "relu" else torch.tanh
        self.bytes = embedding(BYTE_IDS, config.character_width, padding=0)
        self.convolutions = nn.ModuleList(nn.Conv1d(config.character_width, number, width) for width, number in config.filters)
        total = sum(number for _, number in config.filters)
        self.highways = nn.ModuleList(Highway(total) for _ in range(config.highways))
        self.projection = nn.Linear(total, config.projection)

    def forward(self, characters_UC: torch.Tensor) -> torch.Tensor:
        """(U, C) -> (U, P)."""
        x_UEC = self.bytes(characters_UC).transpose(1, 2)
        highest = [convolution(x_UEC).max(-1).values for convolution in self.convolutions]  # learned through one place each, as in the reference
        x = self.activation(torch.cat(highest, -1))  # the maximum comes first
        for highway in self.highways:
            x = highway(x)
        return self.projection(x)

    def initialise(self, generator: torch.Generator) -> None:
        """As in bilm-tf."""
        nn.init.uniform_(self.bytes.weight, -1.0, 1.0, generator=generator)
        with torch.no_grad():
            self.bytes.weight[0].zero_()
        for convolution in self.convolutions:
            assert isinstance(convolution, nn.Conv1d) and convolution.bias is not None
            if self.activation is torch.relu:
                nn.init.uniform_(convolution.weight, -0.05, 0.05, generator=generator)
            else:
                nn.init.normal_(convolution.weight, std=convolution.weight[0].numel() ** -0.5, generator=generator)
            nn.init.zeros_(convolution.bias)
        for highway in self.highways:
            assert isinstance(highway, Highway)
            width = highway.transform.in_features
            for linear, bias in ((highway.transform, 0.0), (highway.carry, CARRY_BIAS)):
                nn.init.normal_(linear.weight, std=width**-0.5, generator=generator)
                nn.init.constant_(linear.bias, bias)
        nn.init.normal_(self.projection.weight, std=self.projection.in_features**-0.5, generator=generator)
        nn.init.zeros_(self.projection.bias)


class Model(Encoder):
    """The character encoder, the two-way LSTM and the shared softmax."""

    def __init__(self, config: Config, *, vocabulary: int) -> None:
        super().__init__()
        assert config.projection is not None and config.cells is not None, "widths are solved before a model is built"
        self.config, self.vocabulary = config, vocabulary
        self.spells = config.input == "characters"
        self.characters = CharacterEncoder(config) if config.input == "characters" else None
        self.words = embedding(vocabulary, config.projection) if config.input == "words" else None
        self.body = TwoWayLSTM(
            layers=config.layers,
            projection=config.projection,
            cells=config.cells,
            cell_clip=config.cell_clip or math.inf,
            projection_clip=config.projection_clip or math.inf,
            dropout=config.dropout,
            residual=config.residual,
        )
        own = {} if config.tied else {"weight": torch.empty(vocabulary, config.projection)}
        self.softmax = nn.ParameterDict(own | {"bias": torch.empty(vocabulary)})
        widths = (config.projection, config.cells) * config.layers if config.start == "warm" else ()
        for number, width in enumerate(widths):
            self.register_buffer(f"start_{number}", torch.empty(2, width))

    def tokens(self, batch: Batch) -> torch.Tensor:
        """(B, T, P): each distinct word of the batch goes through the character encoder once."""
        if self.words is not None:
            return looked_up(self.words.weight, batch.ids_BT)
        assert batch.characters_UC is not None and batch.words_BT is not None
        return F.embedding(batch.words_BT, self.character_encoder()(batch.characters_UC))

    def character_encoder(self) -> CharacterEncoder:
        """What reads words, where they are not looked up."""
        assert self.characters is not None
        return self.characters

    def run(self, tokens_2BTP: torch.Tensor, state: State | None) -> tuple[list[torch.Tensor], State]:
        """Both directions over windows that are already in reading order. Gives each layer's (2, B, T, P) and the state to go on from.

        In training that of the first lanes is kept for a warm start. ELMo as it was released goes on from whatever it read last (its authors: a cold
        state is worse), so that a text's vectors depend on what was read before it; from one and the same warm state they do not.
        """
        outputs, state = self.body(tokens_2BTP, state)
        if self.training:
            for kept_2W, now_2BW in zip(self.buffers(), itertools.chain(*state), strict=False):
                kept_2W.copy_(now_2BW[:, 0])
        return outputs, state

    def read_out(self, x_ND: torch.Tensor) -> ReadOut:
        """Top vectors of either direction, which share the softmax: (N, P), (V, P), (V,)."""
        weight_VP = self.words.weight if self.words is not None and self.config.tied else self.softmax["weight"]
        return x_ND, weight_VP, self.softmax["bias"]

    def directions(self, top_BTD: torch.Tensor) -> Iterator[tuple[str, ReadOut]]:
        """For each direction its name, and what the softmax reads of its half of the top layer."""
        for name, half_BTP in zip(("forward", "backward"), top_BTD.chunk(2, -1), strict=True):
            yield name, self.read_out(half_BTP)

    def encode(self, batch: Batch) -> tuple[torch.Tensor, ...]:
        """The token layer joined with itself, then each layer's two directions joined: all (B, T, 2 P)."""
        start = [kept_2W[:, None].expand(-1, len(batch.ids_BT), -1) for kept_2W in self.buffers()]
        return self.read(batch, tuple(zip(start[::2], start[1::2], strict=True)) or None)[0]

    def read(self, batch: Batch, state: State | None) -> tuple[tuple[torch.Tensor, ...], State]:
        """`encode` from a given state, and the state after each item: ELMo as it was released keeps it from batch to batch."""
        tokens_BTP = self.tokens(batch)
        turn_BT = reversal(batch.mask_BT)
        outputs, state = self.body(torch.stack([tokens_BTP, turned(tokens_BTP, turn_BT)]), state, batch.mask_BT.sum(1))
        joined = [torch.cat([both[0], turned(both[1], turn_BT)], -1) for both in outputs]
        return (torch.cat([tokens_BTP, tokens_BTP], -1), *joined), state

    def pool(self, layers: tuple[torch.Tensor, ...], batch: Batch) -> torch.Tensor:
        """The mean of the top layer over the real positions."""
        return mean_over(layers[-1], batch.mask_BT)

    def parts(self) -> dict[str, nn.Module]:
        """Modules by role; the character encoder stands in for an embedding table and is told apart. A tied softmax counts with the table."""
        return {**self._token_part(), "body": self.body, "head": self.softmax}

    def _token_part(self) -> dict[str, nn.Module]:
        return {"characters": self.character_encoder()} if self.words is None else {"embedding": self.words}

    def tied(self) -> list[nn.Parameter]:
        """The table, where it is the softmax."""
        return [*self.words.parameters()] if self.words is not None and self.config.tied else []

    def layer_groups(self) -> list[list[nn.Parameter]]:
        """The character encoder or the table, then each LSTM layer with both its directions."""
        return [[p for part in self._token_part().values() for p in part.parameters()], *([*layer.parameters()] for layer in self.body.layers)]

    def initialise(self, generator: torch.Generator) -> None:
        """As in bilm-tf: convolutions uniform in 0.05 (scaled by their inputs for tanh), highways that pass most on at first, Glorot's LSTM."""
        if self.characters is not None:
            self.characters.initialise(generator)
        if self.words is not None:  # uniform, TensorFlow's own choice where none is named
            nn.init.xavier_uniform_(self.words.weight, generator=generator)
        if not self.config.tied:
            nn.init.normal_(self.softmax["weight"], std=self.softmax["weight"].shape[1] ** -0.5, generator=generator)
        nn.init.zeros_(self.softmax["bias"])
        self.body.initialise(generator)
        for kept_2W in self.buffers():
            nn.init.zeros_(kept_2W)

    def widths(self) -> tuple[int, ...]:
        """2 P for the token layer and each LSTM layer."""
        assert self.config.projection is not None
        return (2 * self.config.projection,) * (self.config.layers + 1)


def switched(model: Config, pretrain: LanesTraining) -> dict[str, str]:
    """What `input`, `start` and `stateful` make of the family's mechanism."""
    words = {"unit": "words", "extractor": "a table of words and LSTM"} if model.input == "words" else {}
    words |= {} if pretrain.stateful else {"objective": "next word, previous word, each window from a cold state"}
    return words | ({"transfer": "weighted sum of all layers, each text from the state that training ended in"} if model.start == "warm" else {})


FAMILY = Family(
    name="elmo",
    unit="words, read as bytes",
    extractor="character CNN and LSTM",
    direction="left to right and right to left, joined",
    objective_text="next word, previous word",
    transfer_text="weighted sum of all layers, each text from a cold state",
    tokenizer="word",
    model=Config,
    pretrain=LanesTraining,
    build=Model,
    stream=TwoWayLanes,
    objective=bidirectional_lm,
    score=bidirectional_scores,
    switched=switched,
)
