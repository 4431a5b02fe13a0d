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

from lineage.batch import Batch
from lineage.family import embedding
from lineage.layers.awd import WeightDropLSTM
from lineage.layers.softmax import ReadOut
from lineage.records import positive, share
from lineage.training.objectives import at_targets, summed_nats
from lineage.training.optim import check_triangle

State = tuple[torch.Tensor, torch.Tensor]  # of one layer: output and cell, both (1, B, D)


@dataclass(frozen=True)
class TranslateSettings:
    """The block `evaluate.translate`: the model round the two language models, its training and its reading. An ablation of the paper is one line."""

    layers: int  # of the encoder, and of the decoder, with the pretrained one; 3 in the paper
    pretrained: Literal["both", "encoder", "decoder", "no_softmax", "embeddings"]  # what the language models give; the rest starts at random
    language_model_losses: bool  # go on with both language models' own losses, at the weight of the translation's
    residual: bool  # from the decoder's first layer to the softmax
    attention: Literal["first_and_top", "top"]  # the encoder's layers that the decoder reads
    epochs: int
    batch: int  # pairs
    rate: float
    cut_share: float
    ratio: float
    weight_decay: float
    dropout: float
    clip_norm: float
    beam: int  # 1 is greedy
    longest: int  # pieces of a translation with its end; a longer one is cut

    def __post_init__(self) -> None:
        positive(self, "layers", "epochs", "batch", "beam", "longest")
        check_triangle(self)
        share(self, "dropout")

    @property
    def recipe(self) -> str:
        """What of the paper is on, joined by +."""
        on = {self.pretrained: True, "lm_losses": self.language_model_losses, "residual": self.residual, self.attention: True}
        return "+".join(name for name, is_on in on.items() if is_on)


class LanguageModel(nn.Module):
    """A table, one LSTM layer and a softmax of its own, left to right."""

    def __init__(self, *, vocabulary: int, width: int) -> None:
        super().__init__()
        self.table = embedding(vocabulary, width)
        self.layer = WeightDropLSTM(width, width)
        self.softmax = nn.Linear(width, vocabulary)

    def read(self, ids_BT: torch.Tensor, state: State | None, *, dropout: float) -> tuple[torch.Tensor, torch.Tensor, State]:
        """The embedding and the layer's output, both (B, T, D), and the state after the last position."""
        x_BTD = F.dropout(self.table(ids_BT), dropout, self.training)
        h_BTD, state = self.layer(x_BTD, state)
        return x_BTD, h_BTD, state

    def read_out(self, x_ND: torch.Tensor) -> ReadOut:
        """Top vectors, (V, D) and (V,)."""
        return x_ND, self.softmax.weight, self.softmax.bias

    def loss(self, batch: Batch, state: State | None, *, dropout: float) -> tuple[torch.Tensor, int, State]:
        """Summed nats of the next pieces, how many they are, and the state, cut off from its history."""
        _, h_BTD, (h, c) = self.read(batch.ids_BT, state, dropout=dropout)
        top_ND, targets_N = at_targets(F.dropout(h_BTD, dropout, self.training), batch)
        return summed_nats(self.read_out(top_ND), targets_N), len(targets_N), (h.detach(), c.detach())

    def initialise(self, generator: torch.Generator) -> None:
        """Uniform in 0.1 for words, in one over the root of the width for the rest."""
        nn.init.uniform_(self.table.weight, -0.1, 0.1, generator=generator)
        initialise_uniform([self.layer, self.softmax], self.layer.units, generator)


@dataclass(frozen=True)
class Memory:
    """What the decoder attends to."""

    first_BSD: torch.Tensor
    top_BSD: torch.Tensor
    mask_BS: torch.Tensor

    def rows(self, which_N: torch.Tensor) -> "Memory":
        """The memory of some items, in a new order."""
        return Memory(self.first_BSD[which_N], self.top_BSD[which_N], self.mask_BS[which_N])


class Translator(nn.Module):
    """Encoder and decoder of `layers` LSTMs. The decoder starts cold, as its language model did: what it knows of the source comes by attention."""

    def __init__(self, source: LanguageModel, target: LanguageModel, settings: TranslateSettings) -> None:
        super().__init__()
        self.source, self.target, self.settings = source, target, settings
        D, attended = source.layer.units, 2 if settings.attention == "first_and_top" else 1
        self.encoder = nn.ModuleList(WeightDropLSTM(D, D) for _ in range(settings.layers - 1))
        self.decoder = nn.ModuleList(WeightDropLSTM(D, D) for _ in range(settings.layers - 1))
        self.query = nn.Linear(D, D, bias=False)
        self.join = nn.Linear((1 + attended) * D, D)

    def remember(self, ids_BS: torch.Tensor, mask_BS: torch.Tensor) -> Memory:
        """The encoder's first and top layer; padding on the right reaches no real position."""
        _, first_BSD, _ = self.source.read(ids_BS, None, dropout=self.settings.dropout)
        top_BSD, _ = self._above(self.encoder, first_BSD, [None] * len(self.encoder))
        return Memory(first_BSD, top_BSD, mask_BS)

    def decode(self, ids_BT: torch.Tensor, states: Sequence[State | None], memory: Memory) -> tuple[torch.Tensor, list[State]]:
        """(B, T, V) logits of what comes after each position, and each layer's state after the last: any T, so that one step is T = 1.

        Attention as in section 2.3: weights from the top layer alone, and with them a sum of each layer that is attended to. The join with the
        decoder's top state is Luong et al.'s (2015, equation 5), and the residual is added to it just before the softmax.
        """
        _, first_BTD, state = self.target.read(ids_BT, states[0], dropout=self.settings.dropout)
        top_BTD, above = self._above(self.decoder, first_BTD, states[1:])
        scores_BTS = self.query(top_BTD) @ memory.top_BSD.transpose(1, 2)
        weights_BTS = torch.softmax(scores_BTS.masked_fill(~memory.mask_BS[:, None], float("-inf")), -1)
        layers = [memory.first_BSD, memory.top_BSD] if self.settings.attention == "first_and_top" else [memory.top_BSD]
        x_BTD = torch.tanh(self.join(torch.cat([top_BTD, *(weights_BTS @ layer for layer in layers)], -1)))
        x_BTD = F.dropout(x_BTD, self.settings.dropout, self.training)
        return self.target.softmax(x_BTD + first_BTD if self.settings.residual else x_BTD), [state, *above]

    def cold(self) -> list[State | None]:
        """Each decoder layer's state before the first step."""
        return [None] * (1 + len(self.decoder))

    def initialise(self, generator: torch.Generator) -> None:
        """Give what no language model holds its start."""
        initialise_uniform([self.encoder, self.decoder, self.query, self.join], self.source.layer.units, generator)

    def _above(self, layers: nn.ModuleList, x_BTD: torch.Tensor, states: Sequence[State | None]) -> tuple[torch.Tensor, list[State]]:
        after = []
        for layer, state in zip(layers, states, strict=True):
            assert isinstance(layer, WeightDropLSTM)
            x_BTD, state = layer(F.dropout(x_BTD, self.settings.dropout, self.training), state)
            after.append(state)
        return x_BTD, after


def build(trained: nn.Module, twin: nn.Module, settings: TranslateSettings, *, generator: torch.Generator) -> Translator:
    """A translator on the language models `source` and `target` of the twin, in which what the settings name is taken from the trained ones.

    Both are given up: the twin's parameters become the translator's.
    """
    sides = {"encoder": ("source",), "decoder": ("target",)}.get(settings.pretrained, ("source", "target"))
    parts = {"embeddings": ("table",), "no_softmax": ("table", "layer")}.get(settings.pretrained, ("table", "layer", "softmax"))
    some = {
        name: value for name, value in trained.state_dict().items() if name.startswith(tuple(f"{side}.{part}." for side in sides for part in parts))
    }
    twin.load_state_dict(some, strict=False)
    assert isinstance(twin.source, LanguageModel) and isinstance(twin.target, LanguageModel)
    model = Translator(twin.source, twin.target, settings)
    model.initialise(generator)
    return model.to(twin.source.table.weight.device)


def initialise_uniform(modules: Sequence[nn.Module], width: int, generator: torch.Generator) -> None:
    """Every parameter uniform in one over the root of the width, as torch starts an LSTM."""
    for module in modules:
        for parameter in module.parameters():
            nn.init.uniform_(parameter, -(width**-0.5), width**-0.5, generator=generator)
