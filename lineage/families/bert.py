"""BERT: a bidirectional Transformer with masked LM and next-sentence prediction.

Devlin et al. 2019, "BERT: Pre-training of Deep Bidirectional Transformers". Token, position and
segment embeddings are summed; post-norm, erf GELU, weights from a truncated normal. The defaults
are for narrow models and little text (docs/decisions/0014). `direction` reads from left to right
(the paper's "LTR", section 5.1) or once in each direction, and `contextualizer` replaces the
Transformer with LSTMs (masked: Senay and Salin 2020, "Masked ELMo").

Shapes: B items, T positions, N predicted positions, V vocabulary, D width.
"""

from collections.abc import Sequence

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F

from lineage.networks.base import Encoder, LossOutput, Trained, empty_embedding, finetune_defaults
from lineage.networks.batch import Batch, gather_last
from lineage.networks.layers.contextualizers import (
    ContextualizerConfig,
    build_contextualizer,
    init_lstm_weights,
)
from lineage.networks.layers.softmax import SoftmaxInputs
from lineage.networks.layers.transformer import (
    GELU_APPROXIMATIONS,
    PositionEmbedding,
    init_normal_weights,
)
from lineage.tokenizers.tokenizer import Tokenizer
from lineage.training.masked_lm_batches import MaskedSegmentPairs
from lineage.training.objectives import directional_lm_loss, masked_lm_loss
from lineage.training.sentence_scores import score_directional_lm, score_pseudo_log_likelihood
from lineage.training.settings import MaskedLmPretrainSettings


class BertModel(Encoder):
    """Summed embeddings, the body, the pooler, and the two pretraining heads."""

    def __init__(self, config: ContextualizerConfig, *, vocab_size: int) -> None:
        super().__init__()
        assert config.hidden_size is not None
        width = config.hidden_size
        pooled_width = config.num_directions * width
        self.config = config
        self.word_pooling = "last" if config.direction == "left_to_right" else "mean"
        self.token_embeddings = empty_embedding(vocab_size, width)
        self.position_embeddings = PositionEmbedding(config)
        self.segment_embeddings = empty_embedding(2, width)
        self.embedding_norm = nn.LayerNorm(width, eps=config.layer_norm_eps)
        self.body = build_contextualizer(config)
        self.pooler = nn.Linear(pooled_width, pooled_width)
        self.mlm_dense = nn.Linear(width, width)
        self.mlm_norm = nn.LayerNorm(width, eps=config.layer_norm_eps)
        self.mlm_bias = nn.Parameter(torch.empty(vocab_size))
        self.nsp_head = nn.Linear(pooled_width, 2)

    def encode(self, batch: Batch) -> tuple[torch.Tensor, ...]:
        """Return the embedding layer and each block's output, (B, T, D).

        With two concatenated directions the layers are (B, T, 2 D); the embedding is repeated.
        """
        segment_ids_BT = batch.segment_ids_BT
        if segment_ids_BT is None:
            segment_ids_BT = torch.zeros_like(batch.ids_BT)
        x_BTD = self.position_embeddings(self.token_embeddings(batch.ids_BT))
        x_BTD = x_BTD + self.segment_embeddings(segment_ids_BT)
        x_BTD = F.dropout(self.embedding_norm(x_BTD), self.config.dropout, self.training)
        outputs = self.body(x_BTD, batch.mask_BT, padded=not batch.has_no_padding())
        return (torch.cat([x_BTD] * self.config.num_directions, -1), *outputs)

    def softmax_inputs(self, x_ND: torch.Tensor) -> SoftmaxInputs:
        """Return the transformed top vectors of one direction, the tied (V, D) table, the bias."""
        approximation = GELU_APPROXIMATIONS[self.config.activation]
        x_ND = F.gelu(self.mlm_dense(x_ND), approximate=approximation)
        return self.mlm_norm(x_ND), self.token_embeddings.weight, self.mlm_bias

    def next_sentence_logits(self, top_BTD: torch.Tensor, batch: Batch) -> torch.Tensor:
        """Return (B, 2) logits; class 1: the second segment comes from another document."""
        return self.nsp_head(self.pool((top_BTD,), batch))

    def pool(self, layers: tuple[torch.Tensor, ...], batch: Batch) -> torch.Tensor:
        """Return the pooled [CLS] vector, as in the paper's fine-tuning (section 3.2).

        A left-to-right body has read the whole text only at the last position, which is used
        instead.
        """
        top_BTD = layers[-1]
        cls_BD = top_BTD[:, 0]
        if self.config.direction == "bidirectional":
            pooled_BD = cls_BD
        elif self.config.direction == "left_to_right":
            pooled_BD = gather_last(top_BTD, batch.mask_BT)
        else:  # each half where its direction has read the whole text
            D = top_BTD.shape[-1] // 2
            last_BD = gather_last(top_BTD, batch.mask_BT)
            pooled_BD = torch.cat([last_BD[:, :D], cls_BD[:, D:]], -1)
        return torch.tanh(self.pooler(pooled_BD))

    def modules_by_role(self) -> dict[str, nn.Module]:
        embedding = nn.ModuleList(
            [
                self.token_embeddings,
                self.position_embeddings,
                self.segment_embeddings,
                self.embedding_norm,
            ]
        )
        return {
            "embedding": embedding,
            "body": self.body,
            "pooler": self.pooler,
            "head": nn.ModuleList([self.mlm_dense, self.mlm_norm]),
        }

    def tied_parameters(self) -> list[nn.Parameter]:
        return [*self.token_embeddings.parameters()]

    def layer_groups(self) -> list[list[nn.Parameter]]:
        groups = [[*self.modules_by_role()["embedding"].parameters()], *self.body.layer_groups()]
        groups[-1] += [*self.pooler.parameters()]
        return groups

    def init_weights(self, generator: torch.Generator) -> None:
        init_normal_weights(self, generator, std=self.config.init_std, truncated=True)
        init_lstm_weights(self.body, generator)
        nn.init.zeros_(self.mlm_bias)

    def hidden_sizes(self) -> tuple[int, ...]:
        assert self.config.hidden_size is not None
        width = self.config.num_directions * self.config.hidden_size
        return (width,) * (self.config.num_layers + 1)


def pretraining_loss(model: BertModel, batch: Batch, recurrent_state: object = None) -> LossOutput:
    """Predict masked tokens, or the next token in each direction, and the next sentence."""
    if model.config.direction == "bidirectional":
        return masked_lm_loss(model, batch, recurrent_state)
    return directional_lm_loss(model, batch, recurrent_state)


def bert_scores(
    model: BertModel, tokenizer: Tokenizer, texts: Sequence[str], *, limit: int | None
) -> np.ndarray:
    """Return (N, 2): each text's log-probability and its number of tokens.

    A bidirectional model gives a pseudo-log-likelihood instead (Salazar et al. 2020).
    """
    if model.config.direction == "bidirectional":
        return score_pseudo_log_likelihood(model, tokenizer, texts, limit=limit)
    return score_directional_lm(model, tokenizer, texts, limit=limit)


FAMILY = Trained(
    name="bert",
    tokenizer_type="wordpiece",
    architecture_class=ContextualizerConfig,
    pretrain_class=MaskedLmPretrainSettings,
    build=BertModel,
    batch_sampler=MaskedSegmentPairs,
    objective=pretraining_loss,
    score_texts=bert_scores,
    defaults={
        "tokenizer": {"vocab_size": 8000, "min_frequency": 2},
        "architecture": {
            "num_layers": 3,
            "num_heads": 4,
            "max_positions": 256,
            "dropout": 0.0,
            "activation": "gelu",
            "norm_first": False,
            "layer_norm_eps": 1e-12,
            "init_std": 0.06,
        },
        "pretrain": {
            "batch_size": 4,
            "seq_len": 136,
            "learning_rate": 0.001,
            "weight_decay": 0.01,
            "betas": [0.9, 0.98],
            "epsilon": 1e-06,
        },
        "adapt": {"learning_rate": 0.0005},
        "evaluate": {"finetune": finetune_defaults(0.0001, 0.0003, 0.001, 0.003)},
    },
)
