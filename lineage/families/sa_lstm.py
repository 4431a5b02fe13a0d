"""SA-LSTM and LM-LSTM: a classifier's LSTM that begins as an autoencoder of sequences, or as a language model (Dai and Le 2015).

The autoencoder reads a text, and then writes it from its state alone: one LSTM, one table and one softmax for both halves. A classifier goes on
from the state after the last word. With `evaluate.tuned: {linear_gain: true}` the label is learned after every word, with a weight that grows from
0 to 1 (linear label gain, section 3); what is read is the last state all the same. Two texts in both orders, choices and asked words learn from one
position each, as without it.
Shapes: B items, T positions, E units of a word, H units of the LSTM, V vocabulary.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F

from lineage.batch import NO_TARGET, Batch, at_last
from lineage.family import Encoder, Family, LossOut, embedding, growing
from lineage.layers.awd import WeightDropLSTM
from lineage.layers.softmax import ReadOut
from lineage.records import few, positive, share
from lineage.text.tokenization import MARKS, Reader
from lineage.training.objectives import summed_nats
from lineage.training.sentences import Scored, text_scores
from lineage.training.streams import Spans
from lineage.training.train import Training

TURN = MARKS["word"].index("<pad>")  # stands nowhere within a text: it ends the text, and tells the autoencoder to write


@dataclass(frozen=True)
class Config:
    """The block `model`. `width` (of a word) and `units` are solved from the budget where they are not given."""

    objective: Literal["autoencoder", "lm"]
    layers: int
    unit_ratio: float  # units over width; 2 in the paper (1024 over 512)
    dropout: float  # of words and of what the softmax reads
    width: int | None = None
    units: int | None = None

    def __post_init__(self) -> None:
        positive(self, "layers", "unit_ratio", "width", "units")
        few(self, "layers")
        share(self, "dropout")

    def candidates(self) -> Iterator[list["Config"]]:
        """Configurations of growing width."""
        return growing(self, "width", "units", ratio=self.unit_ratio, step=1)


class Model(Encoder):
    """A table of words, LSTM layers, a softmax of its own."""

    read_word = "last"

    def __init__(self, config: Config, *, vocabulary: int) -> None:
        super().__init__()
        assert config.width is not None and config.units is not None, "widths are solved before a model is built"
        self.config = config
        self.words = embedding(vocabulary, config.width)
        self.body = nn.ModuleList(WeightDropLSTM(config.units if i else config.width, config.units) for i in range(config.layers))
        self.softmax = nn.Linear(config.units, vocabulary)

    def read(self, ids_BT: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """The words and each layer's states, from cold ones: (B, T, E), (B, T, H) ..."""
        layers = [F.dropout(self.words(ids_BT), self.config.dropout, self.training)]
        for lstm in self.body:
            assert isinstance(lstm, WeightDropLSTM)
            layers.append(lstm(layers[-1])[0])
        return tuple(layers)

    def encode(self, batch: Batch) -> tuple[torch.Tensor, ...]:
        """The words and each layer's states."""
        return self.read(batch.ids_BT)

    def read_out(self, x_ND: torch.Tensor) -> ReadOut:
        """Top states, (V, H) and (V,)."""
        return x_ND, self.softmax.weight, self.softmax.bias

    def pool(self, layers: tuple[torch.Tensor, ...], batch: Batch) -> torch.Tensor:
        """The state after the last word."""
        return at_last(layers[-1], batch.mask_BT)

    def parts(self) -> dict[str, nn.Module]:
        """Modules by role."""
        return {"embedding": self.words, "body": self.body, "head": self.softmax}

    def layer_groups(self) -> list[list[nn.Parameter]]:
        """The table, then each LSTM layer."""
        return [[*self.words.parameters()], *([*lstm.parameters()] for lstm in self.body)]

    def initialise(self, generator: torch.Generator) -> None:
        """Words uniform in 0.1, weights uniform in one over the root of the units."""
        nn.init.uniform_(self.words.weight, -0.1, 0.1, generator=generator)
        assert self.config.units is not None
        for lstm in self.body:
            assert isinstance(lstm, WeightDropLSTM)
            lstm.initialise(generator)
        nn.init.uniform_(self.softmax.weight, -(self.config.units**-0.5), self.config.units**-0.5, generator=generator)
        nn.init.zeros_(self.softmax.bias)

    def widths(self) -> tuple[int, ...]:
        """E for the words, H for each layer."""
        assert self.config.width is not None and self.config.units is not None
        return (self.config.width, *(self.config.units for _ in self.body))


def read_and_written(ids_BT: torch.Tensor, mask_BT: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """(B, 2 T + 1) twice: each text, the turn, and the text again; and what is to be said from the turn on, which is the text and the turn."""
    lengths_B1 = mask_BT.sum(1, keepdim=True)
    place = torch.arange(2 * ids_BT.shape[1] + 1, device=ids_BT.device).expand(len(ids_BT), -1)
    ended_BT = F.pad(ids_BT.masked_fill(~mask_BT, TURN), (0, 1), value=TURN)
    inputs = ended_BT.gather(1, torch.where(place <= lengths_B1, place, place - lengths_B1 - 1).clamp_max(ids_BT.shape[1]))
    said = ended_BT.gather(1, (place - lengths_B1).clamp(0, ids_BT.shape[1]))
    return inputs, said.masked_fill((place < lengths_B1) | (place > 2 * lengths_B1), NO_TARGET)


def _told(model: Model, batch: Batch) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """(B, *) where the model has something to say of each text; the (N, H) top states there, and what is to be said, (N,)."""
    if model.config.objective == "autoencoder":
        inputs, targets = read_and_written(batch.ids_BT, batch.mask_BT)
    else:
        inputs, targets = batch.ids_BT[:, :-1], batch.ids_BT[:, 1:].masked_fill(~batch.mask_BT[:, 1:], NO_TARGET)
    where = targets != NO_TARGET
    top_ND = F.dropout(model.read(inputs)[-1][where], model.config.dropout, model.training)
    return where, top_ND, targets[where]


def whole_sequences(model: Model, batch: Batch, carry: Any = None) -> LossOut:
    """The text again from the state after it (section 2), or the next word (section 3); each text from a cold state.

    As a language model it does not predict the first word of a text, or of a part of a long one. These are nats a word, and no bits per byte of the
    text.
    """
    _, top_ND, targets_N = _told(model, batch)
    nats, count = summed_nats(model.read_out(top_ND), targets_N), len(targets_N)
    name = "rebuilt" if model.config.objective == "autoencoder" else "word"
    return LossOut(nats / max(count, 1), {name: nats.detach()}, {name: count}, carry)


def beside(model: Model, top_BTD: torch.Tensor, batch: Batch) -> torch.Tensor:
    """Joint training (section 2): the loss of pretraining on the task's texts, a mean over words; its softmax stays as it is."""
    return whole_sequences(model, batch).loss


@torch.inference_mode()
def whole_scores(model: Any, reader: Reader, texts: Sequence[str], *, limit: int | None) -> np.ndarray:
    """(N, 2) `text_scores` of texts, marks included; an autoencoder's are of the text given its own state: no probability of a text."""

    def score(batch: Batch) -> Scored:
        where, top_ND, targets_N = _told(model, batch)
        nats_N = F.cross_entropy(model.logits(top_ND), targets_N, reduction="none")
        return -torch.zeros(where.shape, device=where.device, dtype=nats_N.dtype).masked_scatter(where, nats_N).sum(1), where.sum(1)

    return text_scores(model, reader, texts, limit, score)


def switched(model: Config, pretrain: Training) -> dict[str, str]:
    """Which of the two objectives it is."""
    return {"objective": "next word"} if model.objective == "lm" else {}


FAMILY = Family(
    name="sa_lstm",
    unit="words",
    extractor="LSTM",
    direction="left to right",
    objective_text="the text again from its state",
    transfer_text="whole network, last state",
    tokenizer="word",
    model=Config,
    pretrain=Training,
    build=Model,
    stream=partial(Spans, unit="documents"),
    objective=whole_sequences,
    auxiliary=beside,
    score=whole_scores,
    switched=switched,
    last_state=True,
)
