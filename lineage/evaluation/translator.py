"""The translation model of Ramachandran, Liu and Le 2017 ("Unsupervised Pretraining for Sequence to Sequence Learning"), sections 2.1 to 2.3.

Two language models of one LSTM layer each, whose table, layer and softmax become the first layers of an encoder and a decoder; layers above them,
and attention over the encoder, which no pretraining has seen.
Shapes: B items, S positions of the source, T positions of the target, D width, V vocabulary, L layers.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import nn
from torch.nn import functional as F

from lineage.config.records import check_fraction, check_positive
from lineage.models.base import empty_embedding
from lineage.models.batch import Batch
from lineage.models.layers.awd_lstm import WeightDropLSTM
from lineage.models.layers.softmax import SoftmaxInputs
from lineage.training.objectives import cross_entropy_nats, select_targets
from lineage.training.optimizers import check_stlr_settings

LSTMState = tuple[torch.Tensor, torch.Tensor]  # of one layer: output and cell, both (1, B, D)


@dataclass(frozen=True)
class TranslationSettings:
    """The block `evaluate.translation`: the model round the two language models, its training and its reading. An ablation of the paper is one line."""

    num_layers: int = (
        2  # of the encoder, and of the decoder, with the pretrained one; 3 in the paper
    )
    pretrained: Literal["both", "encoder", "decoder", "no_softmax", "embeddings"] = (
        "both"  # what the language models give; the rest starts at random
    )
    aux_lm_losses: bool = (
        True  # go on with both language models' own losses, at the weight of the translation's
    )
    residual: bool = True  # from the decoder's first layer to the softmax
    attention: Literal["first_and_top", "top"] = (
        "first_and_top"  # the encoder's layers that the decoder reads
    )
    epochs: int = 10
    batch_size: int = 16  # pairs
    learning_rate: float = 0.003
    cut_frac: float = 0.1
    ratio: float = 32.0
    weight_decay: float = 0.0
    dropout: float = 0.1
    max_grad_norm: float = 1.0
    num_beams: int = 1  # 1 is greedy
    max_new_tokens: int = 100  # pieces of a translation with its end; a longer one is cut

    def __post_init__(self) -> None:
        check_positive(self, "num_layers", "epochs", "batch_size", "num_beams", "max_new_tokens")
        check_stlr_settings(self)
        check_fraction(self, "dropout")

    @property
    def recipe(self) -> str:
        """What of the paper is on, joined by +."""
        on = {
            self.pretrained: True,
            "lm_losses": self.aux_lm_losses,
            "residual": self.residual,
            self.attention: True,
        }
        return "+".join(name for name, is_on in on.items() if is_on)


class LanguageModel(nn.Module):
    """A table, one LSTM layer and a softmax of its own, left to right."""

    def __init__(self, *, vocab_size: int, hidden_size: int) -> None:
        super().__init__()
        self.embedding = empty_embedding(vocab_size, hidden_size)
        self.lstm = WeightDropLSTM(hidden_size, hidden_size)
        self.softmax = nn.Linear(hidden_size, vocab_size)

    def run_lstm(
        self, ids_BT: torch.Tensor, state: LSTMState | None, *, dropout: float
    ) -> tuple[torch.Tensor, torch.Tensor, LSTMState]:
        """The embedding and the layer's output, both (B, T, D), and the state after the last position."""
        x_BTD = F.dropout(self.embedding(ids_BT), dropout, self.training)
        h_BTD, state = self.lstm(x_BTD, state)
        return x_BTD, h_BTD, state

    def softmax_inputs(self, x_ND: torch.Tensor) -> SoftmaxInputs:
        """Top vectors, (V, D) and (V,)."""
        return x_ND, self.softmax.weight, self.softmax.bias

    def loss(
        self, batch: Batch, state: LSTMState | None, *, dropout: float
    ) -> tuple[torch.Tensor, int, LSTMState]:
        """Summed nats of the next pieces, how many they are, and the state, cut off from its history."""
        _, h_BTD, (h, c) = self.run_lstm(batch.ids_BT, state, dropout=dropout)
        top_ND, targets_N = select_targets(F.dropout(h_BTD, dropout, self.training), batch)
        return (
            cross_entropy_nats(self.softmax_inputs(top_ND), targets_N),
            len(targets_N),
            (h.detach(), c.detach()),
        )

    def init_weights(self, generator: torch.Generator) -> None:
        """Uniform in 0.1 for words, in one over the root of the width for the rest."""
        nn.init.uniform_(self.embedding.weight, -0.1, 0.1, generator=generator)
        init_uniform([self.lstm, self.softmax], self.lstm.hidden_size, generator)


@dataclass(frozen=True)
class EncoderMemory:
    """What the decoder attends to."""

    first_BSD: torch.Tensor
    top_BSD: torch.Tensor
    mask_BS: torch.Tensor

    def select_rows(self, indices_N: torch.Tensor) -> "EncoderMemory":
        """The memory of some items, in a new order."""
        return EncoderMemory(
            self.first_BSD[indices_N], self.top_BSD[indices_N], self.mask_BS[indices_N]
        )


class Translator(nn.Module):
    """Encoder and decoder of `layers` LSTMs. The decoder starts cold, as its language model did: what it knows of the source comes by attention."""

    def __init__(
        self, source_lm: LanguageModel, target_lm: LanguageModel, settings: TranslationSettings
    ) -> None:
        super().__init__()
        self.source_lm, self.target_lm, self.settings = source_lm, target_lm, settings
        D, attended = source_lm.lstm.hidden_size, 2 if settings.attention == "first_and_top" else 1
        self.encoder = nn.ModuleList(WeightDropLSTM(D, D) for _ in range(settings.num_layers - 1))
        self.decoder = nn.ModuleList(WeightDropLSTM(D, D) for _ in range(settings.num_layers - 1))
        self.query = nn.Linear(D, D, bias=False)
        self.combine = nn.Linear((1 + attended) * D, D)

    def encode(self, ids_BS: torch.Tensor, mask_BS: torch.Tensor) -> EncoderMemory:
        """The encoder's first and top layer; padding on the right reaches no real position."""
        _, first_BSD, _ = self.source_lm.run_lstm(ids_BS, None, dropout=self.settings.dropout)
        top_BSD, _ = self._run_upper_layers(self.encoder, first_BSD, [None] * len(self.encoder))
        return EncoderMemory(first_BSD, top_BSD, mask_BS)

    def decode(
        self, ids_BT: torch.Tensor, states: Sequence[LSTMState | None], memory: EncoderMemory
    ) -> tuple[torch.Tensor, list[LSTMState]]:
        """(B, T, V) logits of what comes after each position, and each layer's state after the last: any T, so that one step is T = 1.

        Attention as in section 2.3: weights from the top layer alone, and with them a sum of each layer that is attended to. The join with the
        decoder's top state is Luong et al.'s (2015, equation 5), and the residual is added to it just before the softmax.
        """
        _, first_BTD, state = self.target_lm.run_lstm(
            ids_BT, states[0], dropout=self.settings.dropout
        )
        top_BTD, above = self._run_upper_layers(self.decoder, first_BTD, states[1:])
        scores_BTS = self.query(top_BTD) @ memory.top_BSD.transpose(1, 2)
        weights_BTS = torch.softmax(
            scores_BTS.masked_fill(~memory.mask_BS[:, None], float("-inf")), -1
        )
        layers = (
            [memory.first_BSD, memory.top_BSD]
            if self.settings.attention == "first_and_top"
            else [memory.top_BSD]
        )
        x_BTD = torch.tanh(
            self.combine(torch.cat([top_BTD, *(weights_BTS @ layer for layer in layers)], -1))
        )
        x_BTD = F.dropout(x_BTD, self.settings.dropout, self.training)
        return self.target_lm.softmax(x_BTD + first_BTD if self.settings.residual else x_BTD), [
            state,
            *above,
        ]

    def initial_states(self) -> list[LSTMState | None]:
        """Each decoder layer's state before the first step."""
        return [None] * (1 + len(self.decoder))

    def init_weights(self, generator: torch.Generator) -> None:
        """Give what no language model holds its start."""
        init_uniform(
            [self.encoder, self.decoder, self.query, self.combine],
            self.source_lm.lstm.hidden_size,
            generator,
        )

    def _run_upper_layers(
        self, layers: nn.ModuleList, x_BTD: torch.Tensor, states: Sequence[LSTMState | None]
    ) -> tuple[torch.Tensor, list[LSTMState]]:
        after = []
        for layer, state in zip(layers, states, strict=True):
            assert isinstance(layer, WeightDropLSTM)
            x_BTD, state = layer(F.dropout(x_BTD, self.settings.dropout, self.training), state)
            after.append(state)
        return x_BTD, after


def build_translator(
    pretrained: nn.Module,
    random_init: nn.Module,
    settings: TranslationSettings,
    *,
    generator: torch.Generator,
) -> Translator:
    """A translator on the language models `source` and `target` of the twin, in which what the settings name is taken from the trained ones.

    Both are given up: the twin's parameters become the translator's.
    """
    sides = {"encoder": ("source",), "decoder": ("target",)}.get(
        settings.pretrained, ("source", "target")
    )
    parts = {"embeddings": ("embedding",), "no_softmax": ("embedding", "lstm")}.get(
        settings.pretrained, ("embedding", "lstm", "softmax")
    )
    some = {
        name: value
        for name, value in pretrained.state_dict().items()
        if name.startswith(tuple(f"{side}.{part}." for side in sides for part in parts))
    }
    random_init.load_state_dict(some, strict=False)
    assert isinstance(random_init.source, LanguageModel) and isinstance(
        random_init.target, LanguageModel
    )
    model = Translator(random_init.source, random_init.target, settings)
    model.init_weights(generator)
    return model.to(random_init.source.embedding.weight.device)


def init_uniform(
    modules: Sequence[nn.Module], hidden_size: int, generator: torch.Generator
) -> None:
    """Every parameter uniform in one over the root of the width, as torch starts an LSTM."""
    for module in modules:
        for parameter in module.parameters():
            nn.init.uniform_(
                parameter, -(hidden_size**-0.5), hidden_size**-0.5, generator=generator
            )
