"""ELMo: a deep bidirectional LSTM language model over characters.

Peters et al. 2018, "Deep contextualized word representations". A byte-level character CNN with
highways and a projection (Kim et al. 2016; Jozefowicz et al. 2016), then forward and backward
LSTMs with projection. The two directions share only the character encoder and the softmax.
Shapes: B items, T positions, U distinct words, C bytes, E units of a byte, P projection, H cell
units, N predicted positions, V vocabulary; a leading 2 is the direction.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Literal

import torch
from torch import nn
from torch.nn import functional as F

from lineage.config.records import check_non_negative, check_num_layers, check_positive
from lineage.networks.base import Encoder, Trained, embed, empty_embedding, finetune_defaults
from lineage.networks.batch import Batch, gather_positions, reversed_positions
from lineage.networks.layers.lstm import LSTMStates, ProjectedLSTMConfig
from lineage.networks.layers.softmax import SoftmaxInputs
from lineage.tokenizers.word_bytes import NUM_BYTE_IDS
from lineage.training.objectives import bidirectional_lm_loss
from lineage.training.samplers import BidirectionalBpttBatches
from lineage.training.sentence_scores import score_bidirectional_lm
from lineage.training.settings import BilmPretrainSettings

HIGHWAY_GATE_BIAS = -2.0  # initial bias of a highway's gate, so that it passes most of x on
MAX_FILTER_WIDTH = 8  # bytes


@dataclass(frozen=True, kw_only=True)
class ElmoConfig(ProjectedLSTMConfig):
    """The block `architecture`."""

    filters: tuple[tuple[int, int], ...]  # (width in bytes, number of filters)
    char_embedding_size: int
    num_highway_layers: int
    activation: Literal["relu", "tanh"] = "relu"  # of the convolutions
    residual: bool = True  # around every LSTM layer but the first
    # words: a table of the vocabulary replaces the character encoder
    input_unit: Literal["characters", "words"] = "characters"
    tie_word_embeddings: bool = False  # the softmax is the table of words
    # The state before each text: zeros, or the state at the end of training.
    initial_state: Literal["zeros", "trained"] = "zeros"

    def __post_init__(self) -> None:
        super().__post_init__()
        check_positive(self, "char_embedding_size")
        check_num_layers(self, "num_highway_layers")
        check_non_negative(self, "num_highway_layers")
        if not self.filters or not all(map(_is_valid_filter, self.filters)):
            raise ValueError(
                f"filters is a list of [width in bytes up to {MAX_FILTER_WIDTH}, number]"
            )
        if self.tie_word_embeddings and self.input_unit == "characters":
            raise ValueError(
                "tie_word_embeddings is true, but a character encoder has no table that could be "
                "the softmax; set input_unit: words"
            )


def _is_valid_filter(width_and_number: tuple[int, ...]) -> bool:
    if len(width_and_number) != 2:
        return False
    return min(width_and_number) >= 1 and width_and_number[0] <= MAX_FILTER_WIDTH


class Highway(nn.Module):
    """g * relu(W x + b) + (1 - g) * x with g = sigmoid(V x + c) (Srivastava et al. 2015).

    bilm-tf calls g the carry gate.
    """

    def __init__(self, size: int) -> None:
        super().__init__()
        self.transform = nn.Linear(size, size)
        self.carry = nn.Linear(size, size)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        gate = torch.sigmoid(self.carry(x))
        return gate * F.relu(self.transform(x)) + (1 - gate) * x


def _convolve(convolution: nn.Module, x_UEC: torch.Tensor) -> torch.Tensor:
    """Return (U, number, positions).

    cuDNN plans each new shape for milliseconds, and every batch has another number of words. On a
    GPU all windows are therefore multiplied in one product.
    """
    assert isinstance(convolution, nn.Conv1d)
    if x_UEC.device.type == "cpu":
        return convolution(x_UEC)
    windows = x_UEC.transpose(1, 2).unfold(1, convolution.kernel_size[0], 1).flatten(2)
    y = F.linear(windows, convolution.weight.flatten(1), convolution.bias)
    return y.transpose(1, 2)


class CharacterCNN(nn.Module):
    """Encode a word's bytes: convolutions, max over positions, activation, highways, projection."""

    def __init__(self, config: ElmoConfig) -> None:
        super().__init__()
        assert config.projection_size is not None
        self.activation: Callable[[torch.Tensor], torch.Tensor] = torch.tanh
        if config.activation == "relu":
            self.activation = torch.relu
        self.byte_embeddings = empty_embedding(
            NUM_BYTE_IDS, config.char_embedding_size, padding_idx=0
        )
        self.convolutions = nn.ModuleList(
            nn.Conv1d(config.char_embedding_size, number, width) for width, number in config.filters
        )
        num_filters = sum(number for _, number in config.filters)
        self.highways = nn.ModuleList(
            Highway(num_filters) for _ in range(config.num_highway_layers)
        )
        self.projection = nn.Linear(num_filters, config.projection_size)

    def forward(self, byte_ids_UC: torch.Tensor) -> torch.Tensor:
        """Map (U, C) byte ids to (U, P)."""
        x_UEC = self.byte_embeddings(byte_ids_UC).transpose(1, 2)
        # max(-1).values passes the gradient to one position per filter, as in the reference, which
        # applies the activation after the maximum.
        maxima = [_convolve(convolution, x_UEC).max(-1).values for convolution in self.convolutions]
        x = self.activation(torch.cat(maxima, -1))
        for highway in self.highways:
            x = highway(x)
        return self.projection(x)

    def init_weights(self, generator: torch.Generator) -> None:
        """Initialize as bilm-tf does."""
        nn.init.uniform_(self.byte_embeddings.weight, -1.0, 1.0, generator=generator)
        with torch.no_grad():
            self.byte_embeddings.weight[0].zero_()
        for convolution in self.convolutions:
            assert isinstance(convolution, nn.Conv1d) and convolution.bias is not None
            weight = convolution.weight
            if self.activation is torch.relu:
                nn.init.uniform_(weight, -0.05, 0.05, generator=generator)
            else:
                nn.init.normal_(weight, std=weight[0].numel() ** -0.5, generator=generator)
            nn.init.zeros_(convolution.bias)
        for highway in self.highways:
            assert isinstance(highway, Highway)
            _init_linear(highway.transform, generator)
            _init_linear(highway.carry, generator, bias=HIGHWAY_GATE_BIAS)
        _init_linear(self.projection, generator)


def _init_linear(linear: nn.Linear, generator: torch.Generator, *, bias: float = 0.0) -> None:
    nn.init.normal_(linear.weight, std=linear.in_features**-0.5, generator=generator)
    nn.init.constant_(linear.bias, bias)


class ElmoModel(Encoder):
    """The character encoder, the bidirectional LSTM and the shared softmax."""

    def __init__(self, config: ElmoConfig, *, vocab_size: int) -> None:
        super().__init__()
        assert config.projection_size is not None and config.cell_size is not None
        self.config = config
        self.vocab_size = vocab_size
        self.handles_oov = config.input_unit == "characters"
        self.char_cnn: CharacterCNN | None = None
        self.word_embeddings: nn.Embedding | None = None
        if config.input_unit == "characters":
            self.char_cnn = CharacterCNN(config)
        else:
            self.word_embeddings = empty_embedding(vocab_size, config.projection_size)
        self.body = config.build_lstm(residual=config.residual, num_directions=2)
        softmax = {}
        if not config.tie_word_embeddings:
            softmax["weight"] = torch.empty(vocab_size, config.projection_size)
        softmax["bias"] = torch.empty(vocab_size)
        self.softmax = nn.ParameterDict(softmax)
        if config.initial_state == "trained":
            # For each layer the output and the cell, both (2, units).
            sizes = (config.projection_size, config.cell_size) * config.num_layers
            for number, size in enumerate(sizes):
                self.register_buffer(f"start_{number}", torch.empty(2, size))

    def token_vectors(self, batch: Batch) -> torch.Tensor:
        """Return (B, T, P); each distinct word goes through the character encoder once."""
        if self.word_embeddings is not None:
            return embed(self.word_embeddings.weight, batch.ids_BT)
        assert batch.byte_ids_UC is not None and batch.word_rows_BT is not None
        words_UP = self.require_char_cnn()(batch.byte_ids_UC)
        return F.embedding(batch.word_rows_BT, words_UP)

    def require_char_cnn(self) -> CharacterCNN:
        assert self.char_cnn is not None
        return self.char_cnn

    def run_layers(
        self, tokens_2BTP: torch.Tensor, state: LSTMStates | None
    ) -> tuple[list[torch.Tensor], LSTMStates]:
        """Run both directions over windows that are already in reading order.

        Return each layer's (2, B, T, P) and the state from which to continue. In training, the
        state of the first row is kept for `initial_state: trained`. The released ELMo continues
        from whatever it read last, so that a text's vectors depend on what was read before.
        """
        outputs, state = self.body(tokens_2BTP, state)
        if self.training:
            last_states = [part for layer_state in state for part in layer_state]
            for kept_2W, last_2BW in zip(self.buffers(), last_states, strict=False):
                kept_2W.copy_(last_2BW[:, 0])
        return outputs, state

    def softmax_inputs(self, x_ND: torch.Tensor) -> SoftmaxInputs:
        if self.config.tie_word_embeddings:
            assert self.word_embeddings is not None
            return x_ND, self.word_embeddings.weight, self.softmax["bias"]
        return x_ND, self.softmax["weight"], self.softmax["bias"]

    def softmax_inputs_by_direction(
        self, top_BTD: torch.Tensor
    ) -> Iterator[tuple[str, SoftmaxInputs]]:
        """Yield each direction's name and the softmax inputs for its half of the top layer."""
        forward_BTP, backward_BTP = top_BTD.chunk(2, -1)
        yield "forward", self.softmax_inputs(forward_BTP)
        yield "backward", self.softmax_inputs(backward_BTP)

    def encode(self, batch: Batch) -> tuple[torch.Tensor, ...]:
        """Return the token layer twice concatenated, then each layer's directions concatenated.

        All layers are (B, T, 2 P).
        """
        layers, _ = self.encode_from_state(batch, self._initial_states(len(batch.ids_BT)))
        return layers

    def _initial_states(self, batch_size: int) -> LSTMStates | None:
        """Return the trained state for every item; None if texts start from zeros."""
        kept = [kept_2W[:, None].expand(-1, batch_size, -1) for kept_2W in self.buffers()]
        return tuple(zip(kept[::2], kept[1::2], strict=True)) or None

    def encode_from_state(
        self, batch: Batch, state: LSTMStates | None
    ) -> tuple[tuple[torch.Tensor, ...], LSTMStates]:
        """Encode from a given state; also return the state after each item."""
        tokens_BTP = self.token_vectors(batch)
        reversed_BT = reversed_positions(batch.mask_BT)
        tokens_2BTP = torch.stack([tokens_BTP, gather_positions(tokens_BTP, reversed_BT)])
        outputs, state = self.body(tokens_2BTP, state, batch.mask_BT.sum(1))
        layers = [torch.cat([tokens_BTP, tokens_BTP], -1)]
        for forward_BTP, backward_BTP in outputs:
            backward_BTP = gather_positions(backward_BTP, reversed_BT)
            layers.append(torch.cat([forward_BTP, backward_BTP], -1))
        return tuple(layers), state

    def modules_by_role(self) -> dict[str, nn.Module]:
        """Return the modules by role; the character encoder is `characters`, not `embedding`."""
        return {**self._token_modules(), "body": self.body, "head": self.softmax}

    def _token_modules(self) -> dict[str, nn.Module]:
        if self.word_embeddings is not None:
            return {"embedding": self.word_embeddings}
        return {"characters": self.require_char_cnn()}

    def tied_parameters(self) -> list[nn.Parameter]:
        if not self.config.tie_word_embeddings:
            return []
        assert self.word_embeddings is not None
        return [*self.word_embeddings.parameters()]

    def layer_groups(self) -> list[list[nn.Parameter]]:
        groups = [[*module.parameters()] for module in self._token_modules().values()]
        groups += [[*layer.parameters()] for layer in self.body.layers]
        return groups

    def init_weights(self, generator: torch.Generator) -> None:
        """Initialize as bilm-tf does; its table is Glorot-uniform, TensorFlow's default."""
        if self.char_cnn is not None:
            self.char_cnn.init_weights(generator)
        if self.word_embeddings is not None:
            nn.init.xavier_uniform_(self.word_embeddings.weight, generator=generator)
        if not self.config.tie_word_embeddings:
            weight = self.softmax["weight"]
            nn.init.normal_(weight, std=weight.shape[1] ** -0.5, generator=generator)
        nn.init.zeros_(self.softmax["bias"])
        self.body.init_weights(generator)
        for kept_2W in self.buffers():
            nn.init.zeros_(kept_2W)

    def hidden_sizes(self) -> tuple[int, ...]:
        assert self.config.projection_size is not None
        return (2 * self.config.projection_size,) * (self.config.num_layers + 1)


FAMILY = Trained(
    name="elmo",
    tokenizer_type="word",
    architecture_class=ElmoConfig,
    pretrain_class=BilmPretrainSettings,
    build=ElmoModel,
    batch_sampler=BidirectionalBpttBatches,
    objective=bidirectional_lm_loss,
    predicts_next_token=True,
    score_texts=score_bidirectional_lm,
    defaults={
        "architecture": {
            "num_layers": 2,
            "cell_to_projection_ratio": 4,
            "filters": [[1, 16], [2, 16], [3, 32], [4, 64]],
            "char_embedding_size": 16,
            "num_highway_layers": 1,
            "dropout": 0.0,
            "cell_clip": 3.0,
            "projection_clip": 3.0,
            "softmax_samples": 1000,
        },
        "pretrain": {"batch_size": 32, "seq_len": 16, "learning_rate": 0.003, "warmup_ratio": 0.02},
        "adapt": {"learning_rate": 0.001, "weight_decay": 0.0},
        "evaluate": {"finetune": finetune_defaults(0.0003, 0.001, 0.004, 0.016, batch_size=32)},
    },
)
