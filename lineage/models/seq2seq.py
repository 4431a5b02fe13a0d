"""Pretraining for sequence-to-sequence learning: two left-to-right language models, one a language, that become the first layers of an encoder and
a decoder (Ramachandran, Liu and Le 2017, "Unsupervised Pretraining for Sequence to Sequence Learning").

They share nothing, and each step trains one of them, so that each is trained as if alone. The model around them is `lineage.evaluation.translator`; for
every other task the source's language model is the encoder.
Shapes: B items, T positions, D width, V vocabulary.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import nn

from lineage.config.records import check_fraction, check_positive
from lineage.evaluation.translator import LanguageModel, LSTMState, build_translator
from lineage.models.base import Encoder, Family, LossOutput
from lineage.models.batch import Batch, gather_last
from lineage.models.layers.softmax import SoftmaxInputs
from lineage.randomness import derive_seed
from lineage.tokenizers.token_ids import TokenizedCorpus
from lineage.tokenizers.tokenizer import Tokenizer
from lineage.training.samplers import BpttBatches
from lineage.training.sentence_scores import score_causal_lm
from lineage.training.settings import PretrainSettings


@dataclass(frozen=True)
class Seq2SeqConfig:
    """The block `model`. `width` is solved from the budget where it is not given: the layers of both language models together are the body."""

    dropout: float
    hidden_size: int | None = None

    def __post_init__(self) -> None:
        check_positive(self, "hidden_size")
        check_fraction(self, "dropout")

    def candidates(self) -> Iterator[list["Seq2SeqConfig"]]:
        """Configurations of growing width."""
        yield [
            replace(self, hidden_size=w)
            for w in ([self.hidden_size] if self.hidden_size else range(2, 4097))
        ]


@dataclass(frozen=True)
class TwoLanguagePretrainSettings(PretrainSettings):
    """The block `pretrain`."""

    source_language: (
        str | None
    )  # the language whose documents the source's model reads; none: all documents, as both do where there is one language
    target_language: str | None

    def __post_init__(self) -> None:
        super().__post_init__()
        if (self.source_language is None) != (self.target_language is None):
            raise ValueError(
                "name both source and target, or neither: then both language models read the whole corpus"
            )


class TwoLanguageBpttBatches:
    """Lanes through the documents of each language, a batch of one, then of the other, so mixed that both end with the pass.

    The state of both is carried. Text of which no language is known (a task's) is the source's, unless both read everything.
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
        parts = [
            tokens.select_language(language)
            for language in (settings.source_language, settings.target_language)
        ]
        self.samplers = [
            BpttBatches(part, tokenizer, settings, seed=derive_seed(side, seed))
            for side, part in zip(("source", "target"), parts, strict=True)
        ]
        self.source_only = (
            tokens.languages is None and settings.source_language != settings.target_language
        )
        self.order = np.zeros((0, 2), int)

    def set_epoch(self, epoch: int) -> int:
        """Lay out both sides. The batches of each are spread evenly over the pass."""
        counts = [side.set_epoch(epoch) for side in self.samplers]
        if self.source_only:
            counts[1] = 0
        places = [(np.arange(count) + 0.5) / max(count, 1) for count in counts]
        both = [(place, side, index) for side in (0, 1) for index, place in enumerate(places[side])]
        self.order = np.array([(side, index) for _, side, index in sorted(both)], int).reshape(
            -1, 2
        )
        return len(self.order)

    def get_batch(self, index: int) -> Batch:
        """(B, T) ids and targets of one language."""
        side, place = self.order[index]
        return replace(self.samplers[side].get_batch(int(place)), side=int(side))


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
        """The embedding and the layer of the source's language model, both (B, T, D)."""
        return self.source.run_lstm(batch.ids_BT, None, dropout=self.config.dropout)[:2]

    def softmax_inputs(self, x_ND: torch.Tensor) -> SoftmaxInputs:
        """Top vectors of the source's language model, and its softmax."""
        return self.source.softmax_inputs(x_ND)

    def pool(self, layers: tuple[torch.Tensor, ...], batch: Batch) -> torch.Tensor:
        """The state after the last piece, the only one that has read the whole text."""
        return gather_last(layers[-1], batch.mask_BT)

    def modules_by_role(self) -> dict[str, nn.Module]:
        """Modules by role, each of both languages."""
        both = (self.source, self.target)
        return {
            "embedding": nn.ModuleList(one.embedding for one in both),
            "body": nn.ModuleList(one.lstm for one in both),
            "head": nn.ModuleList(one.softmax for one in both),
        }

    def grad_clip_groups(self) -> list[list[nn.Parameter]]:
        """Each language model."""
        return [[*self.source.parameters()], [*self.target.parameters()]]

    def layer_groups(self) -> list[list[nn.Parameter]]:
        """The tables, then the layers. What reads one language leaves the other's without a gradient, and so unchanged."""
        parts = self.modules_by_role()
        return [[*parts["embedding"].parameters()], [*parts["body"].parameters()]]

    def init_weights(self, generator: torch.Generator) -> None:
        """One after the other."""
        self.source.init_weights(generator)
        self.target.init_weights(generator)

    def hidden_sizes(self) -> tuple[int, ...]:
        """D for the embedding and the layer."""
        assert self.config.hidden_size is not None
        return (self.config.hidden_size,) * 2


def one_language_lm_loss(
    model: Seq2SeqModel, batch: Batch, recurrent_state: tuple[LSTMState, LSTMState] | None = None
) -> LossOutput:
    """The next piece in the language of the batch, with that language's state carried; the other language model is left alone.

    `causal` counts both languages, so that bits per byte are those of the whole corpus, each text read by its own model.
    """
    name, language_model = (("source", model.source), ("target", model.target))[batch.lm_index]
    states: list[LSTMState | None] = [None, None] if recurrent_state is None else [*recurrent_state]
    before = states[batch.lm_index]
    if before is not None and before[0].shape[1] != len(
        batch.ids_BT
    ):  # the other side's zeros, from its number of lanes
        before = None
    nats, count, after = language_model.loss(batch, before, dropout=model.config.dropout)
    zeros = torch.zeros_like(after[0]), torch.zeros_like(after[1])
    kept = [
        after if side == batch.lm_index else state or zeros for side, state in enumerate(states)
    ]
    found = nats.detach()
    return LossOutput(
        nats / max(count, 1),
        {"causal": found, name: found},
        {"causal": count, name: count},
        (kept[0], kept[1]),
    )


FAMILY = Family(
    name="seq2seq",
    input_unit="byte-level BPE",
    contextualizer="LSTM, one a language",
    direction="left to right",
    objective_description="next token, in each of two languages",
    transfer_description="first layers and softmax of encoder and decoder",
    tokenizer_type="byte_bpe",
    architecture_class=Seq2SeqConfig,
    pretrain_class=TwoLanguagePretrainSettings,
    build=Seq2SeqModel,
    batch_sampler=TwoLanguageBpttBatches,
    objective=one_language_lm_loss,
    score_texts=score_causal_lm,
    build_translator=build_translator,
)
