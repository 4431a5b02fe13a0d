"""Pretraining for sequence-to-sequence learning: one left-to-right language model per language.

Ramachandran, Liu and Le 2017, "Unsupervised Pretraining for Sequence to Sequence Learning". The two
share nothing, and each step trains one of them. The model around them is
`lineage.families.translator`; for every other task the source's language model is the encoder.

Shapes: B items, T positions, D width, V vocabulary.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import nn

from lineage.config.records import check_fraction, check_positive
from lineage.families.translator import LanguageModel, build_translator
from lineage.networks.base import Encoder, LossOutput, Trained, finetune_defaults
from lineage.networks.batch import Batch
from lineage.networks.layers.lstm import LSTMState
from lineage.networks.layers.softmax import SoftmaxInputs
from lineage.randomness import derive_seed
from lineage.tokenizers.token_ids import TokenizedCorpus
from lineage.tokenizers.tokenizer import Tokenizer
from lineage.training.samplers import BpttBatches
from lineage.training.sentence_scores import score_causal_lm
from lineage.training.settings import PretrainSettings

SOURCE = 0
TARGET = 1
SIDES = ("source", "target")


@dataclass(frozen=True)
class Seq2SeqConfig:
    """The block `architecture`."""

    dropout: float
    hidden_size: int | None = None

    def __post_init__(self) -> None:
        check_positive(self, "hidden_size")
        check_fraction(self, "dropout")

    def candidates(self) -> Iterator[list["Seq2SeqConfig"]]:
        widths: Iterable[int] = [self.hidden_size] if self.hidden_size else range(2, 4097)
        yield [replace(self, hidden_size=width) for width in widths]


@dataclass(frozen=True)
class TwoLanguagePretrainSettings(PretrainSettings):
    """The block `pretrain`."""

    # Each language model reads the documents of its language. None for both: both read the whole
    # corpus, which has one language.
    source_language: str | None
    target_language: str | None

    def __post_init__(self) -> None:
        super().__post_init__()
        if (self.source_language is None) != (self.target_language is None):
            raise ValueError(
                "name both source_language and target_language, or neither: then both language "
                "models read the whole corpus"
            )


class TwoLanguageBpttBatches:
    """BPTT batches of both languages, mixed so that both end with the epoch.

    The states of both are carried. Text without known languages (a task's) belongs to the source,
    unless both language models read everything.
    """

    carries_state = True

    def __init__(
        self,
        tokens: TokenizedCorpus,
        tokenizer: Tokenizer,
        settings: TwoLanguagePretrainSettings,
        *,
        seed: int,
    ) -> None:
        self.samplers = []
        languages = (settings.source_language, settings.target_language)
        for side, language in zip(SIDES, languages, strict=True):
            side_tokens = tokens.select_language(language)
            side_seed = derive_seed(side, seed)
            self.samplers.append(BpttBatches(side_tokens, tokenizer, settings, seed=side_seed))
        self.source_only = tokens.languages is None and languages[SOURCE] != languages[TARGET]
        self.order: list[tuple[int, int]] = []  # (side, index of its batch)

    def set_epoch(self, epoch: int) -> int:
        """Spread the batches of both sides evenly over the epoch and return their number."""
        counts = [sampler.set_epoch(epoch) for sampler in self.samplers]
        if self.source_only:
            counts[TARGET] = 0
        placed = []
        for side, count in enumerate(counts):
            places = (np.arange(count) + 0.5) / max(count, 1)
            placed += [(place, side, index) for index, place in enumerate(places)]
        self.order = [(side, index) for _, side, index in sorted(placed)]
        return len(self.order)

    def get_batch(self, index: int) -> Batch:
        side, side_index = self.order[index]
        return replace(self.samplers[side].get_batch(side_index), lm_index=side)


class Seq2SeqModel(Encoder):
    """The source's and the target's language model."""

    word_pooling = "last"

    def __init__(self, config: Seq2SeqConfig, *, vocab_size: int) -> None:
        super().__init__()
        assert config.hidden_size is not None
        self.config = config
        self.source = LanguageModel(vocab_size=vocab_size, hidden_size=config.hidden_size)
        self.target = LanguageModel(vocab_size=vocab_size, hidden_size=config.hidden_size)

    def encode(self, batch: Batch) -> tuple[torch.Tensor, ...]:
        """Return the embedding and the layer of the source's language model, both (B, T, D)."""
        x_BTD, h_BTD, _ = self.source.run_lstm(batch.ids_BT, None, dropout=self.config.dropout)
        return x_BTD, h_BTD

    def softmax_inputs(self, x_ND: torch.Tensor) -> SoftmaxInputs:
        return self.source.softmax_inputs(x_ND)

    def modules_by_role(self) -> dict[str, nn.Module]:
        both = (self.source, self.target)
        return {
            "embedding": nn.ModuleList(model.embedding for model in both),
            "body": nn.ModuleList(model.lstm for model in both),
            "head": nn.ModuleList(model.softmax for model in both),
        }

    def grad_clip_groups(self) -> list[list[nn.Parameter]]:
        return [[*self.source.parameters()], [*self.target.parameters()]]

    def layer_groups(self) -> list[list[nn.Parameter]]:
        """Return the tables, then the layers."""
        modules = self.modules_by_role()
        return [[*modules["embedding"].parameters()], [*modules["body"].parameters()]]

    def init_weights(self, generator: torch.Generator) -> None:
        self.source.init_weights(generator)
        self.target.init_weights(generator)

    def hidden_sizes(self) -> tuple[int, ...]:
        assert self.config.hidden_size is not None
        return (self.config.hidden_size,) * 2


def one_language_lm_loss(
    model: Seq2SeqModel, batch: Batch, recurrent_state: tuple[LSTMState, LSTMState] | None = None
) -> LossOutput:
    """Predict the next piece in the batch's language; the other language model is unchanged.

    `causal` counts both languages, for bits per byte of the whole corpus. The recurrent state holds
    the states of both models.
    """
    side = batch.lm_index
    language_model = (model.source, model.target)[side]
    states: list[LSTMState | None] = [None, None] if recurrent_state is None else [*recurrent_state]
    state = states[side]
    # The placeholder below has the other language's number of rows; then start from zeros.
    if state is not None and state[0].shape[1] != len(batch.ids_BT):
        state = None
    nats, count, new_state = language_model.loss(batch, state, dropout=model.config.dropout)
    states[side] = new_state
    # A language that has not been read yet gets zeros, since a state holds tensors only.
    zeros = (torch.zeros_like(new_state[0]), torch.zeros_like(new_state[1]))
    detached = nats.detach()
    return LossOutput(
        loss=nats / max(count, 1),
        nats={"causal": detached, SIDES[side]: detached},
        target_counts={"causal": count, SIDES[side]: count},
        recurrent_state=(states[SOURCE] or zeros, states[TARGET] or zeros),
    )


FAMILY = Trained(
    name="seq2seq",
    tokenizer_type="byte_bpe",
    architecture_class=Seq2SeqConfig,
    pretrain_class=TwoLanguagePretrainSettings,
    build=Seq2SeqModel,
    batch_sampler=TwoLanguageBpttBatches,
    objective=one_language_lm_loss,
    score_texts=score_causal_lm,
    build_translator=build_translator,
    defaults={
        "tokenizer": {"vocab_size": 8000, "min_frequency": 2},
        "architecture": {"dropout": 0.0},
        "pretrain": {
            "batch_size": 32,
            "seq_len": 16,
            "learning_rate": 0.004,
            "source_language": None,
            "target_language": None,
        },
        "adapt": {"learning_rate": 0.001, "weight_decay": 0.0},
        "evaluate": {"translation": {}, "finetune": finetune_defaults(0.0003, 0.001, 0.004, 0.016)},
    },
)
