"""BERT: a Transformer that reads both sides, by masked LM and next-sentence prediction (Devlin et al. 2019).

Token, position and segment embeddings summed, post-norm, erf GELU, truncated normal 0.02, norm epsilon 1e-12.
Two switches leave all else as it is, batches included: `direction` reads from the left (the paper's "LTR", section 5.1) or once each way instead of
both sides at once, and `extractor` puts LSTMs in the Transformer's place (masked: Senay and Salin 2020, "Masked ELMo").
"""

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F

from lineage.config.records import check_fraction, check_positive, check_two_fractions
from lineage.models.base import Encoder, Family, LossOutput, empty_embedding
from lineage.models.batch import Batch, gather_last
from lineage.models.layers.contextualizers import (
    ContextualizerConfig,
    build_contextualizer,
    init_lstm_weights,
)
from lineage.models.layers.softmax import SoftmaxInputs
from lineage.models.layers.transformer import PositionEmbedding, init_normal_weights
from lineage.tokenizers.tokenizer import Tokenizer
from lineage.training.loop import PretrainSettings
from lineage.training.masked_lm_batches import MaskedSegmentPairs, check_min_seq_len
from lineage.training.objectives import directional_lm_loss, masked_lm_loss
from lineage.training.sentence_scores import score_directional_lm, score_pseudo_log_likelihood


@dataclass(frozen=True)
class MaskedLmPretrainSettings(PretrainSettings):
    """The block `pretrain`."""

    mlm_probability: float  # of an item's positions
    short_seq_prob: float  # of the documents, chosen anew in each pass, are read in sequences of a random shorter length, as in the released code
    mask_replacement: tuple[float, ...] = (
        0.8,
        0.1,
    )  # of the chosen: the shares that become the mask, and a random word; the rest stays
    whole_word_masking: bool = False  # whether all pieces of a word are chosen or none
    dupe_factor: int | None = (
        None  # versions of pairs and masks that come again and again; none: new ones in each pass
    )
    max_predictions_per_seq: int | None = (
        None  # positions of an item that are chosen at most (max_predictions_per_seq of the released code); none: no limit
    )
    next_sentence_prediction: bool = True
    split_long_sentences: bool = True  # one that alone would overfill a pair is read in parts; else it loses its ends to it, as in the released code
    initial_seq_len: int | None = (
        None  # tokens of a sequence until the last part of the training, which reads `length`; none: always `length`
    )
    long_seq_share: float = 0.31  # of the budget's text that this part reads: appendix A.2's tenth of the steps at 512 after 128 is 0.31 of the text

    def __post_init__(self) -> None:
        super().__post_init__()
        check_fraction(self, "mlm_probability", "short_seq_prob", "long_seq_share")
        check_positive(
            self, "dupe_factor", "max_predictions_per_seq", "initial_seq_len", "long_seq_share"
        )
        if self.initial_seq_len is not None and (
            self.initial_seq_len >= self.seq_len or self.long_seq_share == 1
        ):
            raise ValueError(
                f"first_length is {self.initial_seq_len}; it is less than length, {self.seq_len}, and last_share is less than 1"
            )
        for name, tokens in (("length", self.seq_len), ("first_length", self.initial_seq_len)):
            check_min_seq_len(name, tokens)
        check_two_fractions(self, "mask_replacement")

    @property
    def phases(self) -> list[tuple[float, "PretrainSettings"]]:
        """Short sequences first, where that is asked for, since attention to long ones is dear."""
        full_length_phase: list[tuple[float, PretrainSettings]] = [(1.0, self)]
        return (
            full_length_phase
            if self.initial_seq_len is None
            else [
                (
                    1.0 - self.long_seq_share,
                    replace(self, seq_len=self.initial_seq_len, initial_seq_len=None),
                ),
                *full_length_phase,
            ]
        )

    def schedule_progress(self, progress: float) -> float:
        """A batch of long sequences takes more of the text than one of short ones: of the paper's steps nine tenths are done at 0.69 of the text."""
        if self.initial_seq_len is None:
            return progress
        switch_progress = 1.0 - self.long_seq_share
        total_steps = switch_progress / self.initial_seq_len + self.long_seq_share / self.seq_len
        return (
            min(progress, switch_progress) / self.initial_seq_len
            + max(0.0, progress - switch_progress) / self.seq_len
        ) / total_steps


class BertModel(Encoder):
    """Three embeddings summed, the body that reads them, the pooler, and the two heads of pretraining."""

    def __init__(self, config: ContextualizerConfig, *, vocab_size: int) -> None:
        super().__init__()
        assert config.hidden_size is not None
        width = config.hidden_size
        self.config = config
        self.word_pooling = "last" if config.direction == "left_to_right" else "mean"
        self.token_embeddings = empty_embedding(vocab_size, width)
        self.position_embeddings = PositionEmbedding(config)
        self.segment_embeddings = empty_embedding(2, width)
        self.embedding_norm = nn.LayerNorm(width, eps=config.layer_norm_eps)
        self.body = build_contextualizer(config)
        self.pooler = nn.Linear(config.num_directions * width, config.num_directions * width)
        self.mlm_dense = nn.Linear(width, width)
        self.mlm_norm = nn.LayerNorm(width, eps=config.layer_norm_eps)
        self.mlm_bias = nn.Parameter(torch.empty(vocab_size))
        self.nsp_head = nn.Linear(config.num_directions * width, 2)

    def encode(self, batch: Batch) -> tuple[torch.Tensor, ...]:
        """The embedding layer and the output of each block, all (B, T, D), or (B, T, 2 D) where two directions are joined."""
        segments = (
            batch.segment_ids_BT
            if batch.segment_ids_BT is not None
            else torch.zeros_like(batch.ids_BT)
        )
        x_BTD = self.position_embeddings(
            self.token_embeddings(batch.ids_BT)
        ) + self.segment_embeddings(segments)
        x_BTD = F.dropout(self.embedding_norm(x_BTD), self.config.dropout, self.training)
        return (
            torch.cat([x_BTD] * self.config.num_directions, -1),
            *self.body(x_BTD, batch.mask_BT, padded=not batch.has_no_padding()),
        )

    def softmax_inputs(self, x_ND: torch.Tensor) -> SoftmaxInputs:
        """Top vectors, of either direction, through dense, GELU and norm; the tied (V, D); the free bias."""
        x_ND = self.mlm_norm(
            F.gelu(
                self.mlm_dense(x_ND),
                approximate="tanh" if self.config.activation == "gelu_tanh" else "none",
            )
        )
        return x_ND, self.token_embeddings.weight, self.mlm_bias

    def next_sentence_logits(self, top_BTD: torch.Tensor, batch: Batch) -> torch.Tensor:
        """(B, 2): 1 where the second segment comes from another document."""
        return self.nsp_head(self.pool((top_BTD,), batch))

    def pool(self, layers: tuple[torch.Tensor, ...], batch: Batch) -> torch.Tensor:
        """The pooled [CLS] vector, as in the paper's fine-tuning (section 3.2); of a left-to-right body the last one, which has read the text."""
        top_BTD, D = layers[-1], layers[-1].shape[-1] // self.config.num_directions
        whole_BD = top_BTD[:, 0]
        if self.config.direction != "both_sides":
            whole_BD = torch.cat([gather_last(top_BTD, batch.mask_BT)[:, :D], whole_BD[:, D:]], -1)
        return torch.tanh(self.pooler(whole_BD))

    def modules_by_role(self) -> dict[str, nn.Module]:
        """Modules by role."""
        inputs = nn.ModuleList(
            [
                self.token_embeddings,
                self.position_embeddings,
                self.segment_embeddings,
                self.embedding_norm,
            ]
        )
        return {
            "embedding": inputs,
            "body": self.body,
            "pooler": self.pooler,
            "head": nn.ModuleList([self.mlm_dense, self.mlm_norm]),
        }

    def tied_parameters(self) -> list[nn.Parameter]:
        """The embedding is the softmax."""
        return [*self.token_embeddings.parameters()]

    def layer_groups(self) -> list[list[nn.Parameter]]:
        """The embeddings, each block, and the pooler with the last of them."""
        groups = [[*self.modules_by_role()["embedding"].parameters()], *self.body.layer_groups()]
        groups[-1] += [*self.pooler.parameters()]
        return groups

    def init_weights(self, generator: torch.Generator) -> None:
        """Truncated normal, as in the released code."""
        init_normal_weights(self, generator, std=self.config.init_std, truncated=True)
        init_lstm_weights(self.body, generator)
        nn.init.zeros_(self.mlm_bias)

    def hidden_sizes(self) -> tuple[int, ...]:
        """D for the embeddings and each block, twice that where two directions are joined."""
        assert self.config.hidden_size is not None
        return (self.config.num_directions * self.config.hidden_size,) * (
            self.config.num_layers + 1
        )


def pretraining_loss(model: BertModel, batch: Batch, recurrent_state: Any = None) -> LossOutput:
    """Masked words from both sides, or every word from one."""
    return (masked_lm_loss if model.config.direction == "both_sides" else directional_lm_loss)(
        model, batch, recurrent_state
    )


def bert_scores(
    model: BertModel, tokenizer: Tokenizer, texts: list[str], *, limit: int | None
) -> np.ndarray:
    """(N, 2) `text_scores`: pseudo-log-likelihoods from both sides, log-probabilities from one."""
    return (
        score_pseudo_log_likelihood
        if model.config.direction == "both_sides"
        else score_directional_lm
    )(model, tokenizer, texts, limit=limit)


def describe_mechanism(
    architecture: ContextualizerConfig, pretrain: MaskedLmPretrainSettings
) -> dict[str, str]:
    """What the switches make of the family's mechanism."""
    direction, predicted, read = {
        "both_sides": ("both sides at once", "masked LM", "[CLS]"),
        "left_to_right": ("left to right", "next token", "last mark"),
        "joined": (
            "left to right and right to left, joined",
            "next token, previous token",
            "last mark and [CLS]",
        ),
    }[architecture.direction]
    label = " and next sentence" if pretrain.next_sentence_prediction else ""
    return {
        "extractor": "LSTM" if architecture.contextualizer == "lstm" else "Transformer",
        "direction": direction,
        "objective": predicted + label,
        "transfer": f"whole network, {read}",
    }


FAMILY = Family(
    name="bert",
    input_unit="WordPiece",
    contextualizer="Transformer",
    direction="both sides at once",
    objective_description="masked LM and next sentence",
    transfer_description="whole network, [CLS]",
    tokenizer_type="wordpiece",
    architecture_class=ContextualizerConfig,
    pretrain_class=MaskedLmPretrainSettings,
    build=BertModel,
    batch_sampler=MaskedSegmentPairs,
    objective=pretraining_loss,
    score_texts=bert_scores,
    describe=describe_mechanism,
)
