"""SA-LSTM and LM-LSTM: a classifier's LSTM, pretrained as an autoencoder or a language model.

Dai and Le 2015. The autoencoder reads a text and then writes it from its state alone. A classifier
continues from the state after the last word. With `evaluate.finetune: {linear_label_gain: true}`
the label is predicted after every word, with a weight that grows from 0 to 1 (section 3);
predictions still come from the last state.

Shapes: B items, T positions, E units of a word, H units of the LSTM, N targets, V vocabulary.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from typing import Literal, NamedTuple

import torch
from torch import nn
from torch.nn import functional as F

from lineage.config.records import check_fraction, check_num_layers, check_positive
from lineage.networks.base import (
    Encoder,
    LossOutput,
    Trained,
    candidate_sizes,
    empty_embedding,
    finetune_defaults,
)
from lineage.networks.batch import IGNORE_INDEX, Batch
from lineage.networks.layers.awd_lstm import WeightDropLSTM
from lineage.networks.layers.softmax import SoftmaxInputs
from lineage.tokenizers.tokenizer import SPECIAL_TOKENS
from lineage.training.objectives import cross_entropy_nats, mean_loss
from lineage.training.samplers import SentenceBatches
from lineage.training.sentence_scores import LogProbsAndCounts, score_in_batches
from lineage.training.settings import PretrainSettings

# Padding never occurs within a text, so it can end the text and tell the autoencoder to write.
SEPARATOR_ID = SPECIAL_TOKENS["word"].index("<pad>")


@dataclass(frozen=True)
class SALSTMConfig:
    """The block `architecture`."""

    objective: Literal["autoencoder", "language_model"]
    num_layers: int
    hidden_to_embedding_ratio: float  # hidden_size / embedding_size; 2 in the paper (1024 / 512)
    dropout: float  # on words and on the softmax's input
    embedding_size: int | None = None
    hidden_size: int | None = None

    def __post_init__(self) -> None:
        check_positive(self, "num_layers", "hidden_to_embedding_ratio")
        check_positive(self, "embedding_size", "hidden_size")
        check_num_layers(self, "num_layers")
        check_fraction(self, "dropout")

    def candidates(self) -> Iterator[list["SALSTMConfig"]]:
        return candidate_sizes(
            self, "embedding_size", "hidden_size", ratio=self.hidden_to_embedding_ratio, step=1
        )


class SALSTMModel(Encoder):
    """A table of words, LSTM layers, and a softmax."""

    word_pooling = "last"

    def __init__(self, config: SALSTMConfig, *, vocab_size: int) -> None:
        super().__init__()
        assert config.embedding_size is not None and config.hidden_size is not None, (
            "widths are solved before a model is built"
        )
        self.config = config
        self.word_embeddings = empty_embedding(vocab_size, config.embedding_size)
        input_sizes = [config.embedding_size] + [config.hidden_size] * (config.num_layers - 1)
        self.body = nn.ModuleList(WeightDropLSTM(size, config.hidden_size) for size in input_sizes)
        self.softmax = nn.Linear(config.hidden_size, vocab_size)

    def run_layers(self, ids_BT: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """Return the words and each layer's states, from zero states: (B, T, E), (B, T, H) ..."""
        layers = [F.dropout(self.word_embeddings(ids_BT), self.config.dropout, self.training)]
        for lstm in self.body:
            output, _ = lstm(layers[-1])
            layers.append(output)
        return tuple(layers)

    def encode(self, batch: Batch) -> tuple[torch.Tensor, ...]:
        return self.run_layers(batch.ids_BT)

    def softmax_inputs(self, x_ND: torch.Tensor) -> SoftmaxInputs:
        return x_ND, self.softmax.weight, self.softmax.bias

    def modules_by_role(self) -> dict[str, nn.Module]:
        return {"embedding": self.word_embeddings, "body": self.body, "head": self.softmax}

    def init_weights(self, generator: torch.Generator) -> None:
        """Initialize words within 0.1 and weights within 1 / sqrt(H), uniformly."""
        nn.init.uniform_(self.word_embeddings.weight, -0.1, 0.1, generator=generator)
        for lstm in self.body:
            assert isinstance(lstm, WeightDropLSTM)
            lstm.init_weights(generator)
        bound = self.softmax.in_features**-0.5
        nn.init.uniform_(self.softmax.weight, -bound, bound, generator=generator)
        nn.init.zeros_(self.softmax.bias)

    def hidden_sizes(self) -> tuple[int, ...]:
        assert self.config.embedding_size is not None and self.config.hidden_size is not None
        return (self.config.embedding_size, *[self.config.hidden_size] * self.config.num_layers)


def autoencoder_inputs_and_targets(
    ids_BT: torch.Tensor, mask_BT: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return inputs and targets, both (B, 2 T + 1).

    The inputs are each text, the separator, and the text again. The targets, from the separator on,
    are the text and the separator.
    """
    T = ids_BT.shape[1]
    lengths_B1 = mask_BT.sum(1, keepdim=True)
    positions = torch.arange(2 * T + 1, device=ids_BT.device).expand(len(ids_BT), -1)
    ended_BT = F.pad(ids_BT.masked_fill(~mask_BT, SEPARATOR_ID), (0, 1), value=SEPARATOR_ID)
    second_reading = positions - lengths_B1 - 1
    source = torch.where(positions <= lengths_B1, positions, second_reading).clamp_max(T)
    inputs = ended_BT.gather(1, source)
    targets = ended_BT.gather(1, (positions - lengths_B1).clamp(0, T))
    has_no_target = (positions < lengths_B1) | (positions > 2 * lengths_B1)
    return inputs, targets.masked_fill(has_no_target, IGNORE_INDEX)


class Predictions(NamedTuple):
    """The positions of a batch where the model predicts something."""

    mask: torch.Tensor  # (B, positions): True at the N positions below
    top_NH: torch.Tensor
    targets_N: torch.Tensor


def _predict(model: SALSTMModel, batch: Batch) -> Predictions:
    if model.config.objective == "autoencoder":
        inputs, targets = autoencoder_inputs_and_targets(batch.ids_BT, batch.mask_BT)
    else:
        inputs = batch.ids_BT[:, :-1]
        targets = batch.ids_BT[:, 1:].masked_fill(~batch.mask_BT[:, 1:], IGNORE_INDEX)
    mask = targets != IGNORE_INDEX
    top_NH = model.run_layers(inputs)[-1][mask]
    top_NH = F.dropout(top_NH, model.config.dropout, model.training)
    return Predictions(mask, top_NH, targets[mask])


def autoencoder_or_lm_loss(
    model: SALSTMModel, batch: Batch, recurrent_state: object = None
) -> LossOutput:
    """Predict the text from the state after it (section 2), or each next word (section 3).

    Each text starts from a zero state. The language model does not predict the first word, so its
    nats per word are no bits per byte of the text.
    """
    _, top_NH, targets_N = _predict(model, batch)
    nats = cross_entropy_nats(model.softmax_inputs(top_NH), targets_N)
    name = "rebuilt" if model.config.objective == "autoencoder" else "word"
    return mean_loss(name, nats, len(targets_N), recurrent_state)


def joint_lm_loss(model: SALSTMModel, top_BTD: torch.Tensor, batch: Batch) -> torch.Tensor:
    """Return the pretraining loss on the task's texts, a mean over words (joint training).

    Section 2. The softmax is not updated.
    """
    return autoencoder_or_lm_loss(model, batch).loss


def score_batch(model: SALSTMModel, batch: Batch) -> LogProbsAndCounts:
    """Score texts, special tokens included.

    An autoencoder scores a text given the text's own state, which is not a probability of the text.
    """
    mask, top_NH, targets_N = _predict(model, batch)
    nats_N = F.cross_entropy(model.logits(top_NH), targets_N, reduction="none")
    zeros = torch.zeros(mask.shape, device=mask.device, dtype=nats_N.dtype)
    nats = zeros.masked_scatter(mask, nats_N)
    return -nats.sum(1), mask.sum(1)


FAMILY = Trained(
    name="sa_lstm",
    tokenizer_type="word",
    architecture_class=SALSTMConfig,
    pretrain_class=PretrainSettings,
    build=SALSTMModel,
    batch_sampler=partial(SentenceBatches, unit="documents"),
    objective=autoencoder_or_lm_loss,
    auxiliary_loss=joint_lm_loss,
    score_texts=partial(score_in_batches, score_batch),
    vocab_parameters=("word_embeddings.weight", "softmax.weight", "softmax.bias"),
    pools_last_state=True,
    defaults={
        "architecture": {
            "objective": "autoencoder",
            "num_layers": 1,
            "hidden_to_embedding_ratio": 2.0,
            "dropout": 0.0,
        },
        "pretrain": {"batch_size": 16, "seq_len": 32, "learning_rate": 0.003, "warmup_ratio": 0.02},
        "adapt": {
            "learning_rate": 0.001,
            "weight_decay": 0.0,
            "new_words": {"max_words": 10_000, "min_frequency": 2},
        },
        "evaluate": {"finetune": finetune_defaults(0.0003, 0.001, 0.004, 0.016)},
    },
)
