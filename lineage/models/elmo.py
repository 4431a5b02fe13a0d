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

from lineage.config.records import (
    check_fraction,
    check_non_negative,
    check_num_layers,
    check_positive,
)
from lineage.models.base import Encoder, Family, candidate_sizes, embed, empty_embedding
from lineage.models.batch import Batch, gather_positions, masked_mean, reversed_positions
from lineage.models.layers.lstm import LSTMStates, ProjectedLSTM
from lineage.models.layers.softmax import SoftmaxInputs
from lineage.tokenizers.tokenizer import NUM_BYTE_IDS
from lineage.training.objectives import bidirectional_lm_loss
from lineage.training.samplers import BidirectionalBpttBatches
from lineage.training.sentence_scores import score_bidirectional_lm
from lineage.training.settings import BilmPretrainSettings

HIGHWAY_GATE_BIAS = -2.0  # of a highway's gate at first, so that it passes most of x on


@dataclass(frozen=True)
class ElmoConfig:
    """The block `model`. `projection` and `cells` are solved from the budget where they are not given."""

    num_layers: int
    cell_to_projection_ratio: int  # cell units over projection; 8 in the original
    filters: tuple[tuple[int, int], ...]  # (width in bytes, number)
    char_embedding_size: int
    num_highway_layers: int
    dropout: float
    cell_clip: float | None
    projection_clip: float | None
    softmax_samples: (
        int | None
    )  # candidates of the sampled softmax in training; none: the full softmax
    activation: Literal["relu", "tanh"] = "relu"  # of the convolutions
    residual: bool = True  # round every LSTM layer but the first
    input_unit: Literal["characters", "words"] = (
        "characters"  # words: a table of the vocabulary in place of the character encoder
    )
    tie_word_embeddings: bool = False  # the softmax is the table of words
    initial_state: Literal["zeros", "trained"] = (
        "zeros"  # what a text is read from: zeros, or the state that reading the training text ended in
    )
    projection_size: int | None = None
    cell_size: int | None = None

    def __post_init__(self) -> None:
        check_positive(
            self,
            "num_layers",
            "cell_to_projection_ratio",
            "char_embedding_size",
            "cell_clip",
            "projection_clip",
            "softmax_samples",
            "projection_size",
            "cell_size",
        )
        check_num_layers(self, "num_layers", "num_highway_layers")
        check_non_negative(self, "num_highway_layers")
        check_fraction(self, "dropout")
        if not self.filters or any(len(f) != 2 or min(f) < 1 or f[0] > 8 for f in self.filters):
            raise ValueError("filters is a list of [width in bytes up to 8, number]")
        if self.tie_word_embeddings and self.input_unit == "characters":
            raise ValueError(
                "tied is true, but a character encoder has no table that could be the softmax; set input: words"
            )

    def candidates(self) -> Iterator[list["ElmoConfig"]]:
        """Configurations of growing projection."""
        return candidate_sizes(
            self, "projection_size", "cell_size", ratio=self.cell_to_projection_ratio
        )


class Highway(nn.Module):
    """g * relu(W x + b) + (1 - g) * x with g = sigmoid(V x + c) (Srivastava et al. 2015); bilm-tf calls g the carry gate."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.transform, self.carry = nn.Linear(size, size), nn.Linear(size, size)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """The same shape."""
        gate = torch.sigmoid(self.carry(x))
        return gate * F.relu(self.transform(x)) + (1 - gate) * x


class CharacterCNN(nn.Module):
    """Bytes of a word -> its vector: convolutions, the maximum over positions, the activation, highways, a projection."""

    def __init__(self, config: ElmoConfig) -> None:
        super().__init__()
        assert config.projection_size is not None
        self.activation: Callable[[torch.Tensor], torch.Tensor] = (
            torch.relu if config.activation == "relu" else torch.tanh
        )
        self.byte_embeddings = empty_embedding(
            NUM_BYTE_IDS, config.char_embedding_size, padding_idx=0
        )
        self.convolutions = nn.ModuleList(
            nn.Conv1d(config.char_embedding_size, number, width) for width, number in config.filters
        )
        total = sum(number for _, number in config.filters)
        self.highways = nn.ModuleList(Highway(total) for _ in range(config.num_highway_layers))
        self.projection = nn.Linear(total, config.projection_size)

    def forward(self, characters_UC: torch.Tensor) -> torch.Tensor:
        """(U, C) -> (U, P)."""
        x_UEC = self.byte_embeddings(characters_UC).transpose(1, 2)
        highest = [
            convolution(x_UEC).max(-1).values for convolution in self.convolutions
        ]  # learned through one place each, as in the reference
        x = self.activation(torch.cat(highest, -1))  # the maximum comes first
        for highway in self.highways:
            x = highway(x)
        return self.projection(x)

    def init_weights(self, generator: torch.Generator) -> None:
        """As in bilm-tf."""
        nn.init.uniform_(self.byte_embeddings.weight, -1.0, 1.0, generator=generator)
        with torch.no_grad():
            self.byte_embeddings.weight[0].zero_()
        for convolution in self.convolutions:
            assert isinstance(convolution, nn.Conv1d) and convolution.bias is not None
            if self.activation is torch.relu:
                nn.init.uniform_(convolution.weight, -0.05, 0.05, generator=generator)
            else:
                nn.init.normal_(
                    convolution.weight,
                    std=convolution.weight[0].numel() ** -0.5,
                    generator=generator,
                )
            nn.init.zeros_(convolution.bias)
        for highway in self.highways:
            assert isinstance(highway, Highway)
            width = highway.transform.in_features
            for linear, bias in ((highway.transform, 0.0), (highway.carry, HIGHWAY_GATE_BIAS)):
                nn.init.normal_(linear.weight, std=width**-0.5, generator=generator)
                nn.init.constant_(linear.bias, bias)
        nn.init.normal_(
            self.projection.weight, std=self.projection.in_features**-0.5, generator=generator
        )
        nn.init.zeros_(self.projection.bias)


class ElmoModel(Encoder):
    """The character encoder, the two-way LSTM and the shared softmax."""

    def __init__(self, config: ElmoConfig, *, vocab_size: int) -> None:
        super().__init__()
        assert config.projection_size is not None and config.cell_size is not None, (
            "widths are solved before a model is built"
        )
        self.config, self.vocab_size = config, vocab_size
        self.handles_oov = config.input_unit == "characters"
        self.char_cnn = CharacterCNN(config) if config.input_unit == "characters" else None
        self.word_embeddings = (
            empty_embedding(vocab_size, config.projection_size)
            if config.input_unit == "words"
            else None
        )
        self.body = ProjectedLSTM(
            num_layers=config.num_layers,
            projection_size=config.projection_size,
            cell_size=config.cell_size,
            cell_clip=config.cell_clip or math.inf,
            projection_clip=config.projection_clip or math.inf,
            dropout=config.dropout,
            residual=config.residual,
        )
        own = (
            {}
            if config.tie_word_embeddings
            else {"weight": torch.empty(vocab_size, config.projection_size)}
        )
        self.softmax = nn.ParameterDict(own | {"bias": torch.empty(vocab_size)})
        widths = (
            (config.projection_size, config.cell_size) * config.num_layers
            if config.initial_state == "trained"
            else ()
        )
        for number, width in enumerate(widths):
            self.register_buffer(f"start_{number}", torch.empty(2, width))

    def token_vectors(self, batch: Batch) -> torch.Tensor:
        """(B, T, P): each distinct word of the batch goes through the character encoder once."""
        if self.word_embeddings is not None:
            return embed(self.word_embeddings.weight, batch.ids_BT)
        assert batch.byte_ids_UC is not None and batch.word_rows_BT is not None
        return F.embedding(batch.word_rows_BT, self.require_char_cnn()(batch.byte_ids_UC))

    def require_char_cnn(self) -> CharacterCNN:
        """What reads words, where they are not looked up."""
        assert self.char_cnn is not None
        return self.char_cnn

    def run_layers(
        self, tokens_2BTP: torch.Tensor, state: LSTMStates | None
    ) -> tuple[list[torch.Tensor], LSTMStates]:
        """Both directions over windows that are already in reading order. Gives each layer's (2, B, T, P) and the state to go on from.

        In training that of the first lanes is kept for a warm start. ELMo as it was released goes on from whatever it read last (its authors: a cold
        state is worse), so that a text's vectors depend on what was read before it; from one and the same warm state they do not.
        """
        outputs, state = self.body(tokens_2BTP, state)
        if self.training:
            for kept_2W, now_2BW in zip(self.buffers(), itertools.chain(*state), strict=False):
                kept_2W.copy_(now_2BW[:, 0])
        return outputs, state

    def softmax_inputs(self, x_ND: torch.Tensor) -> SoftmaxInputs:
        """Top vectors of either direction, which share the softmax: (N, P), (V, P), (V,)."""
        weight_VP = (
            self.word_embeddings.weight
            if self.word_embeddings is not None and self.config.tie_word_embeddings
            else self.softmax["weight"]
        )
        return x_ND, weight_VP, self.softmax["bias"]

    def softmax_inputs_by_direction(
        self, top_BTD: torch.Tensor
    ) -> Iterator[tuple[str, SoftmaxInputs]]:
        """For each direction its name, and what the softmax reads of its half of the top layer."""
        for name, half_BTP in zip(("forward", "backward"), top_BTD.chunk(2, -1), strict=True):
            yield name, self.softmax_inputs(half_BTP)

    def encode(self, batch: Batch) -> tuple[torch.Tensor, ...]:
        """The token layer joined with itself, then each layer's two directions joined: all (B, T, 2 P)."""
        start = [kept_2W[:, None].expand(-1, len(batch.ids_BT), -1) for kept_2W in self.buffers()]
        return self.encode_from_state(
            batch, tuple(zip(start[::2], start[1::2], strict=True)) or None
        )[0]

    def encode_from_state(
        self, batch: Batch, state: LSTMStates | None
    ) -> tuple[tuple[torch.Tensor, ...], LSTMStates]:
        """`encode` from a given state, and the state after each item: ELMo as it was released keeps it from batch to batch."""
        tokens_BTP = self.token_vectors(batch)
        turn_BT = reversed_positions(batch.mask_BT)
        outputs, state = self.body(
            torch.stack([tokens_BTP, gather_positions(tokens_BTP, turn_BT)]),
            state,
            batch.mask_BT.sum(1),
        )
        joined = [torch.cat([both[0], gather_positions(both[1], turn_BT)], -1) for both in outputs]
        return (torch.cat([tokens_BTP, tokens_BTP], -1), *joined), state

    def pool(self, layers: tuple[torch.Tensor, ...], batch: Batch) -> torch.Tensor:
        """The mean of the top layer over the real positions."""
        return masked_mean(layers[-1], batch.mask_BT)

    def modules_by_role(self) -> dict[str, nn.Module]:
        """Modules by role; the character encoder stands in for an embedding table and is told apart. A tied softmax counts with the table."""
        return {**self._token_modules(), "body": self.body, "head": self.softmax}

    def _token_modules(self) -> dict[str, nn.Module]:
        return (
            {"characters": self.require_char_cnn()}
            if self.word_embeddings is None
            else {"embedding": self.word_embeddings}
        )

    def tied_parameters(self) -> list[nn.Parameter]:
        """The table, where it is the softmax."""
        return (
            [*self.word_embeddings.parameters()]
            if self.word_embeddings is not None and self.config.tie_word_embeddings
            else []
        )

    def layer_groups(self) -> list[list[nn.Parameter]]:
        """The character encoder or the table, then each LSTM layer with both its directions."""
        return [
            [p for part in self._token_modules().values() for p in part.parameters()],
            *([*layer.parameters()] for layer in self.body.layers),
        ]

    def init_weights(self, generator: torch.Generator) -> None:
        """As in bilm-tf: convolutions uniform in 0.05 (scaled by their inputs for tanh), highways that pass most on at first, Glorot's LSTM."""
        if self.char_cnn is not None:
            self.char_cnn.init_weights(generator)
        if self.word_embeddings is not None:  # uniform, TensorFlow's own choice where none is named
            nn.init.xavier_uniform_(self.word_embeddings.weight, generator=generator)
        if not self.config.tie_word_embeddings:
            nn.init.normal_(
                self.softmax["weight"],
                std=self.softmax["weight"].shape[1] ** -0.5,
                generator=generator,
            )
        nn.init.zeros_(self.softmax["bias"])
        self.body.init_weights(generator)
        for kept_2W in self.buffers():
            nn.init.zeros_(kept_2W)

    def hidden_sizes(self) -> tuple[int, ...]:
        """2 P for the token layer and each LSTM layer."""
        assert self.config.projection_size is not None
        return (2 * self.config.projection_size,) * (self.config.num_layers + 1)


def describe_mechanism(architecture: ElmoConfig, pretrain: BilmPretrainSettings) -> dict[str, str]:
    """What `input`, `start` and `stateful` make of the family's mechanism."""
    words = (
        {"unit": "words", "extractor": "a table of words and LSTM"}
        if architecture.input_unit == "words"
        else {}
    )
    words |= (
        {}
        if pretrain.carry_state
        else {"objective": "next word, previous word, each window from a cold state"}
    )
    return words | (
        {"transfer": "weighted sum of all layers, each text from the state that training ended in"}
        if architecture.initial_state == "trained"
        else {}
    )


FAMILY = Family(
    name="elmo",
    input_unit="words, read as bytes",
    contextualizer="character CNN and LSTM",
    direction="left to right and right to left, joined",
    objective_description="next word, previous word",
    transfer_description="weighted sum of all layers, each text from a cold state",
    tokenizer_type="word",
    architecture_class=ElmoConfig,
    pretrain_class=BilmPretrainSettings,
    build=ElmoModel,
    batch_sampler=BidirectionalBpttBatches,
    objective=bidirectional_lm_loss,
    score_texts=score_bidirectional_lm,
    describe=describe_mechanism,
)
