"""BERT: a Transformer that reads both sides, by masked LM and next-sentence prediction (Devlin et al. 2019).

Token, position and segment embeddings summed, post-norm, erf GELU, truncated normal 0.02, norm epsilon 1e-12.
Two switches leave all else as it is, batches included: `direction` reads from the left (the paper's "LTR", section 5.1) or once each way instead of
both sides at once, and `extractor` puts LSTMs in the Transformer's place (masked: Senay and Salin 2020, "Masked ELMo").
"""

from typing import Any

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F

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
from lineage.training.masked_lm_batches import MaskedSegmentPairs
from lineage.training.objectives import directional_lm_loss, masked_lm_loss
from lineage.training.sentence_scores import score_directional_lm, score_pseudo_log_likelihood
from lineage.training.settings import MaskedLmPretrainSettings


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
        if self.config.direction != "bidirectional":
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
    return (masked_lm_loss if model.config.direction == "bidirectional" else directional_lm_loss)(
        model, batch, recurrent_state
    )


def bert_scores(
    model: BertModel, tokenizer: Tokenizer, texts: list[str], *, limit: int | None
) -> np.ndarray:
    """(N, 2) `text_scores`: pseudo-log-likelihoods from both sides, log-probabilities from one."""
    return (
        score_pseudo_log_likelihood
        if model.config.direction == "bidirectional"
        else score_directional_lm
    )(model, tokenizer, texts, limit=limit)


def describe_mechanism(
    architecture: ContextualizerConfig, pretrain: MaskedLmPretrainSettings
) -> dict[str, str]:
    """What the switches make of the family's mechanism."""
    direction, predicted, read = {
        "bidirectional": ("both sides at once", "masked LM", "[CLS]"),
        "left_to_right": ("left to right", "next token", "last mark"),
        "concatenated": (
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
