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

from lineage.config.records import check_fraction, check_num_layers, check_positive
from lineage.models.base import Encoder, Family, LossOutput, candidate_sizes, empty_embedding
from lineage.models.batch import IGNORE_INDEX, Batch, gather_last
from lineage.models.layers.awd_lstm import WeightDropLSTM
from lineage.models.layers.softmax import SoftmaxInputs
from lineage.tokenizers.tokenizer import SPECIAL_TOKENS, Tokenizer
from lineage.training.objectives import cross_entropy_nats
from lineage.training.samplers import SentenceBatches
from lineage.training.sentence_scores import LogProbsAndCounts, score_texts
from lineage.training.settings import PretrainSettings

SEPARATOR_ID = SPECIAL_TOKENS["word"].index(
    "<pad>"
)  # stands nowhere within a text: it ends the text, and tells the autoencoder to write


@dataclass(frozen=True)
class SALSTMConfig:
    """The block `model`. `width` (of a word) and `units` are solved from the budget where they are not given."""

    objective: Literal["autoencoder", "language_model"]
    num_layers: int
    hidden_to_embedding_ratio: float  # units over width; 2 in the paper (1024 over 512)
    dropout: float  # of words and of what the softmax reads
    embedding_size: int | None = None
    hidden_size: int | None = None

    def __post_init__(self) -> None:
        check_positive(
            self, "num_layers", "hidden_to_embedding_ratio", "embedding_size", "hidden_size"
        )
        check_num_layers(self, "num_layers")
        check_fraction(self, "dropout")

    def candidates(self) -> Iterator[list["SALSTMConfig"]]:
        """Configurations of growing width."""
        return candidate_sizes(
            self, "embedding_size", "hidden_size", ratio=self.hidden_to_embedding_ratio, step=1
        )


class SALSTMModel(Encoder):
    """A table of words, LSTM layers, a softmax of its own."""

    word_pooling = "last"

    def __init__(self, config: SALSTMConfig, *, vocab_size: int) -> None:
        super().__init__()
        assert config.embedding_size is not None and config.hidden_size is not None, (
            "widths are solved before a model is built"
        )
        self.config = config
        self.word_embeddings = empty_embedding(vocab_size, config.embedding_size)
        self.body = nn.ModuleList(
            WeightDropLSTM(config.hidden_size if i else config.embedding_size, config.hidden_size)
            for i in range(config.num_layers)
        )
        self.softmax = nn.Linear(config.hidden_size, vocab_size)

    def run_layers(self, ids_BT: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """The words and each layer's states, from cold ones: (B, T, E), (B, T, H) ..."""
        layers = [F.dropout(self.word_embeddings(ids_BT), self.config.dropout, self.training)]
        for lstm in self.body:
            assert isinstance(lstm, WeightDropLSTM)
            layers.append(lstm(layers[-1])[0])
        return tuple(layers)

    def encode(self, batch: Batch) -> tuple[torch.Tensor, ...]:
        """The words and each layer's states."""
        return self.run_layers(batch.ids_BT)

    def softmax_inputs(self, x_ND: torch.Tensor) -> SoftmaxInputs:
        """Top states, (V, H) and (V,)."""
        return x_ND, self.softmax.weight, self.softmax.bias

    def pool(self, layers: tuple[torch.Tensor, ...], batch: Batch) -> torch.Tensor:
        """The state after the last word."""
        return gather_last(layers[-1], batch.mask_BT)

    def modules_by_role(self) -> dict[str, nn.Module]:
        """Modules by role."""
        return {"embedding": self.word_embeddings, "body": self.body, "head": self.softmax}

    def layer_groups(self) -> list[list[nn.Parameter]]:
        """The table, then each LSTM layer."""
        return [[*self.word_embeddings.parameters()], *([*lstm.parameters()] for lstm in self.body)]

    def init_weights(self, generator: torch.Generator) -> None:
        """Words uniform in 0.1, weights uniform in one over the root of the units."""
        nn.init.uniform_(self.word_embeddings.weight, -0.1, 0.1, generator=generator)
        assert self.config.hidden_size is not None
        for lstm in self.body:
            assert isinstance(lstm, WeightDropLSTM)
            lstm.init_weights(generator)
        nn.init.uniform_(
            self.softmax.weight,
            -(self.config.hidden_size**-0.5),
            self.config.hidden_size**-0.5,
            generator=generator,
        )
        nn.init.zeros_(self.softmax.bias)

    def hidden_sizes(self) -> tuple[int, ...]:
        """E for the words, H for each layer."""
        assert self.config.embedding_size is not None and self.config.hidden_size is not None
        return (self.config.embedding_size, *(self.config.hidden_size for _ in self.body))


def autoencoder_inputs_and_targets(
    ids_BT: torch.Tensor, mask_BT: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """(B, 2 T + 1) twice: each text, the turn, and the text again; and what is to be said from the turn on, which is the text and the turn."""
    lengths_B1 = mask_BT.sum(1, keepdim=True)
    positions = torch.arange(2 * ids_BT.shape[1] + 1, device=ids_BT.device).expand(len(ids_BT), -1)
    ended_BT = F.pad(ids_BT.masked_fill(~mask_BT, SEPARATOR_ID), (0, 1), value=SEPARATOR_ID)
    inputs = ended_BT.gather(
        1,
        torch.where(positions <= lengths_B1, positions, positions - lengths_B1 - 1).clamp_max(
            ids_BT.shape[1]
        ),
    )
    targets = ended_BT.gather(1, (positions - lengths_B1).clamp(0, ids_BT.shape[1]))
    return inputs, targets.masked_fill(
        (positions < lengths_B1) | (positions > 2 * lengths_B1), IGNORE_INDEX
    )


def _vectors_and_targets(
    model: SALSTMModel, batch: Batch
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """(B, *) where the model has something to say of each text; the (N, H) top states there, and what is to be said, (N,)."""
    if model.config.objective == "autoencoder":
        inputs, targets = autoencoder_inputs_and_targets(batch.ids_BT, batch.mask_BT)
    else:
        inputs, targets = (
            batch.ids_BT[:, :-1],
            batch.ids_BT[:, 1:].masked_fill(~batch.mask_BT[:, 1:], IGNORE_INDEX),
        )
    where = targets != IGNORE_INDEX
    top_ND = F.dropout(model.run_layers(inputs)[-1][where], model.config.dropout, model.training)
    return where, top_ND, targets[where]


def autoencoder_or_lm_loss(
    model: SALSTMModel, batch: Batch, recurrent_state: Any = None
) -> LossOutput:
    """The text again from the state after it (section 2), or the next word (section 3); each text from a cold state.

    As a language model it does not predict the first word of a text, or of a part of a long one. These are nats a word, and no bits per byte of the
    text.
    """
    _, top_ND, targets_N = _vectors_and_targets(model, batch)
    nats, count = cross_entropy_nats(model.softmax_inputs(top_ND), targets_N), len(targets_N)
    name = "rebuilt" if model.config.objective == "autoencoder" else "word"
    return LossOutput(nats / max(count, 1), {name: nats.detach()}, {name: count}, recurrent_state)


def joint_lm_loss(model: SALSTMModel, top_BTD: torch.Tensor, batch: Batch) -> torch.Tensor:
    """Joint training (section 2): the loss of pretraining on the task's texts, a mean over words; its softmax stays as it is."""
    return autoencoder_or_lm_loss(model, batch).loss


@torch.inference_mode()
def sa_lstm_scores(
    model: Any, tokenizer: Tokenizer, texts: Sequence[str], *, limit: int | None
) -> np.ndarray:
    """(N, 2) `text_scores` of texts, marks included; an autoencoder's are of the text given its own state: no probability of a text."""

    def score(batch: Batch) -> LogProbsAndCounts:
        where, top_ND, targets_N = _vectors_and_targets(model, batch)
        nats_N = F.cross_entropy(model.logits(top_ND), targets_N, reduction="none")
        nats_BT = torch.zeros(where.shape, device=where.device, dtype=nats_N.dtype)
        nats_BT = nats_BT.masked_scatter(where, nats_N)
        return LogProbsAndCounts(-nats_BT.sum(1), where.sum(1))

    return score_texts(model, tokenizer, texts, limit, score)


def describe_mechanism(architecture: SALSTMConfig, pretrain: PretrainSettings) -> dict[str, str]:
    """Which of the two objectives it is."""
    return {"objective": "next word"} if architecture.objective == "language_model" else {}


FAMILY = Family(
    name="sa_lstm",
    input_unit="words",
    contextualizer="LSTM",
    direction="left to right",
    objective_description="the text again from its state",
    transfer_description="whole network, last state",
    tokenizer_type="word",
    architecture_class=SALSTMConfig,
    pretrain_class=PretrainSettings,
    build=SALSTMModel,
    batch_sampler=partial(SentenceBatches, unit="documents"),
    objective=autoencoder_or_lm_loss,
    auxiliary_loss=joint_lm_loss,
    score_texts=sa_lstm_scores,
    describe=describe_mechanism,
    pools_last_state=True,
)
