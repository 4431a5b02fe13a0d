"""context2vec: a vector for a word's position, from the sentence without the word.

Melamud et al. 2016. Two LSTMs with separate embeddings, one up to the word from the left and one up
to it from the right, and a perceptron that joins them. It is trained like word2vec: the position's
vector must tell the word there, by its target vector, from words sampled by frequency.
Shapes: B items, T positions, S sentences, L positions of a sentence, E units of a context word, H
units of an LSTM and of a target word, K negatives, N real or predicted positions.
"""

import dataclasses
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from typing import Literal, NamedTuple

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F

from lineage.config.records import check_fraction, check_positive
from lineage.networks.base import (
    Encoder,
    LossOutput,
    Trained,
    build_linear_head,
    candidate_sizes,
    empty_embedding,
    finetune_defaults,
)
from lineage.networks.batch import Batch, gather_positions, masked_mean, reversed_positions
from lineage.networks.layers.awd_lstm import WeightDropLSTM
from lineage.randomness import generator
from lineage.tokenizers.token_ids import TokenizedCorpus
from lineage.tokenizers.tokenizer import SPECIAL_TOKENS, Tokenizer
from lineage.training.objectives import mean_loss
from lineage.training.samplers import SentenceBatches
from lineage.training.sentence_scores import LogProbsAndCounts, score_in_batches
from lineage.training.settings import PretrainSettings

SENTENCE_START_ID = SPECIAL_TOKENS["word"].index("<S>")
NON_WORD_IDS = [SPECIAL_TOKENS["word"].index(token) for token in ("<pad>", "<S>", "</S>")]


@dataclass(frozen=True)
class Context2vecConfig:
    """The block `architecture`."""

    # average: the mean of all other words, without order, as in CBOW (the paper's baseline)
    context_encoder: Literal["lstm", "average"]
    hidden_to_embedding_ratio: float  # hidden_size / embedding_size; 2 in the paper
    dropout: float
    embedding_size: int | None = None
    hidden_size: int | None = None

    def __post_init__(self) -> None:
        check_positive(self, "hidden_to_embedding_ratio", "embedding_size", "hidden_size")
        check_fraction(self, "dropout")

    def candidates(self) -> Iterator[list["Context2vecConfig"]]:
        return candidate_sizes(
            self, "embedding_size", "hidden_size", ratio=self.hidden_to_embedding_ratio, step=1
        )


@dataclass(frozen=True)
class Context2vecPretrainSettings(PretrainSettings):
    """The block `pretrain`. Longer sentences are cut at `seq_len`."""

    num_negatives: int
    negative_exponent: float  # negatives are sampled by frequency to this power

    def __post_init__(self) -> None:
        super().__post_init__()
        check_positive(self, "num_negatives")


class NegativeSamplingBatches(SentenceBatches):
    """Batches of sentences of similar length, with negatives for each word.

    Negatives are sampled by frequency in the text to the power `negative_exponent`.
    """

    def __init__(
        self,
        tokens: TokenizedCorpus,
        tokenizer: Tokenizer,
        settings: Context2vecPretrainSettings,
        *,
        seed: int,
    ) -> None:
        super().__init__(tokens, tokenizer, settings, seed=seed, unit="sentences")
        self.num_negatives = settings.num_negatives
        counts = np.bincount(self.known_ids(tokens.ids), minlength=self.vocab_size).astype(float)
        counts[NON_WORD_IDS] = 0
        powers = np.maximum(counts, 1.0) ** settings.negative_exponent
        weights = np.where(counts > 0, powers, 0.0)
        self.cumulative_probs = np.cumsum(weights) / max(weights.sum(), 1.0)

    def get_batch(self, index: int) -> Batch:
        """Return (B, T) ids and (B, T, K) negatives."""
        batch = super().get_batch(index)
        rng = generator("negatives", self.seed, self.epoch, index)
        uniform_BTK = rng.random((*batch.ids_BT.shape, self.num_negatives))
        negatives_BTK = np.searchsorted(self.cumulative_probs, uniform_BTK, side="right")
        negatives_BTK = np.minimum(negatives_BTK, self.vocab_size - 1)
        return dataclasses.replace(batch, negatives_BTK=torch.from_numpy(negatives_BTK))


class Context2vecModel(Encoder):
    """The target words, and the network of the context."""

    def __init__(self, config: Context2vecConfig, *, vocab_size: int) -> None:
        super().__init__()
        assert config.embedding_size is not None and config.hidden_size is not None, (
            "widths are solved before a model is built"
        )
        self.config = config
        E = config.embedding_size
        H = config.hidden_size
        num_lstms = 2 if config.context_encoder == "lstm" else 0
        context_size = num_lstms * H or E
        self.target_embeddings = empty_embedding(vocab_size, H)
        # One table for each LSTM, from the left and from the right, or one for the average.
        self.context_embeddings = nn.ModuleList(
            empty_embedding(vocab_size, E) for _ in range(num_lstms or 1)
        )
        self.lstms = nn.ModuleList(WeightDropLSTM(E, H) for _ in range(num_lstms))
        self.hidden_layer = nn.Linear(context_size, 2 * H)
        self.output_layer = nn.Linear(2 * H, H)

    def encode(self, batch: Batch) -> tuple[torch.Tensor, ...]:
        """Return the words' target vectors and their positions' context vectors, both (B, T, H).

        A position's context vector does not depend on the word there.
        """
        sentences = split_into_sentences(batch)
        real_N = batch.mask_BT.flatten().nonzero()[:, 0]
        contexts_SLH = self.context_vectors(sentences.ids_SL, sentences.mask_SL)
        contexts_NH = contexts_SLH[sentences.rows_N, sentences.columns_N]
        flat = contexts_SLH.new_zeros(batch.ids_BT.numel(), contexts_SLH.shape[-1])
        contexts = flat.index_copy(0, real_N, contexts_NH)
        return self.target_embeddings(batch.ids_BT), contexts.view(*batch.ids_BT.shape, -1)

    def context_vectors(self, ids_SL: torch.Tensor, mask_SL: torch.Tensor) -> torch.Tensor:
        """Return (S, L, H) vectors of positions, from the words to the left and right of them."""
        if self.config.context_encoder == "lstm":
            contexts = self._lstm_contexts(ids_SL, mask_SL)
        else:
            contexts = self._average_contexts(ids_SL, mask_SL)
        hidden = F.relu(self.hidden_layer(self._dropout(contexts)))
        return self.output_layer(self._dropout(hidden))

    def _lstm_contexts(self, ids_SL: torch.Tensor, mask_SL: torch.Tensor) -> torch.Tensor:
        """Return (S, L, 2 H): each LSTM's output one position earlier, zeros at its start."""
        reversed_SL = reversed_positions(mask_SL)
        left_SLH = self._run_lstm(0, ids_SL)
        right_SLH = self._run_lstm(1, ids_SL.gather(1, reversed_SL))
        right_SLH = gather_positions(right_SLH, reversed_SL)
        # The position after a sentence's end is padding, whose output has read the sentence.
        has_next_SL = F.pad(mask_SL[:, 1:], (0, 1))
        before_SLH = F.pad(left_SLH[:, :-1], (0, 0, 1, 0))
        after_SLH = F.pad(right_SLH[:, 1:], (0, 0, 0, 1)) * has_next_SL[..., None]
        return torch.cat([before_SLH, after_SLH], -1)

    def _run_lstm(self, direction: int, ids_SL: torch.Tensor) -> torch.Tensor:
        output, _ = self.lstms[direction](self._dropout(self.context_embeddings[direction](ids_SL)))
        return output

    def _average_contexts(self, ids_SL: torch.Tensor, mask_SL: torch.Tensor) -> torch.Tensor:
        """Return (S, L, E): the mean of the sentence's other words; zero if there are none."""
        non_word_ids = torch.tensor(NON_WORD_IDS, device=ids_SL.device)
        is_word_SL = mask_SL & ~torch.isin(ids_SL, non_word_ids)
        x_SLE = self._dropout(self.context_embeddings[0](ids_SL))
        self_LL = torch.eye(ids_SL.shape[1], dtype=torch.bool, device=ids_SL.device)
        others_SLL = is_word_SL[:, None] & ~self_LL
        shares_SLL = others_SLL / others_SLL.sum(-1, keepdim=True).clamp_min(1)
        return shares_SLL.to(x_SLE.dtype) @ x_SLE

    def _dropout(self, x: torch.Tensor) -> torch.Tensor:
        return F.dropout(x, self.config.dropout, self.training)

    def pool(self, layers: tuple[torch.Tensor, ...], batch: Batch) -> torch.Tensor:
        """Return (B, 2 H): the means of the words and of their contexts."""
        mask_BT = batch.mask_BT if batch.text_mask_BT is None else batch.text_mask_BT
        return torch.cat([masked_mean(layer, mask_BT) for layer in layers], -1)

    def build_head(
        self, num_classes: int, *, dropout: float, hidden_dropout: float | None = None
    ) -> nn.Module:
        return build_linear_head(sum(self.hidden_sizes()), num_classes, dropout=dropout)

    def modules_by_role(self) -> dict[str, nn.Module]:
        return {
            "embedding": nn.ModuleList([self.target_embeddings, *self.context_embeddings]),
            "body": nn.ModuleList([*self.lstms, self.hidden_layer, self.output_layer]),
        }

    def tied_parameters(self) -> list[nn.Parameter]:
        return [*self.target_embeddings.parameters()]

    def layer_groups(self) -> list[list[nn.Parameter]]:
        tables = nn.ModuleList([self.target_embeddings, *self.context_embeddings])
        perceptron = nn.ModuleList([self.hidden_layer, self.output_layer])
        groups = [[*layer.parameters()] for layer in (tables, self.lstms, perceptron)]
        return [group for group in groups if group]

    def init_weights(self, generator: torch.Generator) -> None:
        """Initialize as the released code does: weights scaled by their inputs, open forget gates.

        The released target vectors start at zero; here they start like the other tables, so that a
        random-init baseline can tell words apart.
        """
        for table in (self.target_embeddings, *self.context_embeddings):
            assert isinstance(table, nn.Embedding)
            nn.init.normal_(table.weight, std=len(table.weight) ** -0.5, generator=generator)
        for lstm in self.lstms:
            assert isinstance(lstm, WeightDropLSTM)
            for weight in (lstm.weight_ih, lstm.weight_hh):
                nn.init.normal_(weight, std=weight.shape[1] ** -0.5, generator=generator)
            nn.init.zeros_(lstm.bias_ih)
            nn.init.zeros_(lstm.bias_hh)
            with torch.no_grad():
                lstm.bias_ih[lstm.hidden_size : 2 * lstm.hidden_size] = 1.0
        for linear in (self.hidden_layer, self.output_layer):
            nn.init.normal_(linear.weight, std=linear.in_features**-0.5, generator=generator)
            nn.init.zeros_(linear.bias)

    def hidden_sizes(self) -> tuple[int, ...]:
        assert self.config.hidden_size is not None
        return (self.config.hidden_size,) * 2


class Sentences(NamedTuple):
    """A batch's sentences as rows, and where each of its N real positions went."""

    ids_SL: torch.Tensor
    mask_SL: torch.Tensor
    rows_N: torch.Tensor
    columns_N: torch.Tensor


def split_into_sentences(batch: Batch) -> Sentences:
    """Split items into sentences.

    A sentence begins at its start token, and at the beginning of an item.
    """
    is_start_BT = batch.ids_BT == SENTENCE_START_ID
    is_start_BT[:, 0] = True
    is_start_N = is_start_BT[batch.mask_BT]
    ids_N = batch.ids_BT[batch.mask_BT]
    rows_N = is_start_N.cumsum(0) - 1
    sentence_starts_N = is_start_N.nonzero()[:, 0][rows_N]
    columns_N = torch.arange(len(ids_N), device=ids_N.device) - sentence_starts_N
    shape = (int(rows_N[-1]) + 1, int(columns_N.max()) + 1)
    ids_SL = ids_N.new_zeros(shape)
    ids_SL[rows_N, columns_N] = ids_N
    mask_SL = torch.zeros(shape, dtype=torch.bool, device=ids_N.device)
    mask_SL[rows_N, columns_N] = True
    return Sentences(ids_SL, mask_SL, rows_N, columns_N)


def negative_sampling_loss(
    model: Context2vecModel, batch: Batch, recurrent_state: object = None
) -> LossOutput:
    """Maximize log s(t c) + sum over K sampled words of log s(-t' c) for each word's context c.

    Section 2.2; Mikolov et al. 2013b, equation 4. A sampled word equal to the target is skipped, as
    in word2vec. Each row is one sentence, or a part of one.
    """
    assert batch.negatives_BTK is not None and batch.text_mask_BT is not None
    text_BT = batch.text_mask_BT
    contexts_NH = model.context_vectors(batch.ids_BT, batch.mask_BT)[text_BT]
    targets_N = batch.ids_BT[text_BT]
    negatives_NK = batch.negatives_BTK[text_BT]
    true_N = (model.target_embeddings(targets_N) * contexts_NH).sum(-1)
    sampled_NK = torch.bmm(model.target_embeddings(negatives_NK), contexts_NH[..., None])[..., 0]
    dtype = model.target_embeddings.weight.dtype  # full precision even if products are in bf16
    rejected_NK = F.logsigmoid(-sampled_NK.to(dtype))
    rejected_NK = rejected_NK.masked_fill(negatives_NK == targets_N[:, None], 0.0)
    nats = -F.logsigmoid(true_N.to(dtype)).sum() - rejected_NK.sum()
    return mean_loss("sampled", nats, len(targets_N), recurrent_state)


def score_batch(model: Context2vecModel, batch: Batch) -> LogProbsAndCounts:
    """Score texts by log s(t c): how surely each word stood there and was not sampled.

    It is not a probability of the text.
    """
    assert batch.text_mask_BT is not None
    words_BTH, contexts_BTH = model.encode(batch)
    log_probs_BT = F.logsigmoid((words_BTH * contexts_BTH).sum(-1)) * batch.text_mask_BT
    return log_probs_BT.sum(1), batch.text_mask_BT.sum(1)


FAMILY = Trained(
    name="context2vec",
    tokenizer_type="word",
    architecture_class=Context2vecConfig,
    pretrain_class=Context2vecPretrainSettings,
    build=Context2vecModel,
    batch_sampler=NegativeSamplingBatches,
    objective=negative_sampling_loss,
    score_texts=partial(score_in_batches, score_batch),
    vocab_parameters=("target_embeddings.weight", "context_embeddings.*.weight"),
    defaults={
        "tokenizer": {"lowercase": True},
        "architecture": {
            "context_encoder": "lstm",
            "hidden_to_embedding_ratio": 2.0,
            "dropout": 0.0,
        },
        "pretrain": {
            "batch_size": 32,
            "seq_len": 64,
            "learning_rate": 0.003,
            "warmup_ratio": 0.02,
            "max_grad_norm": 5.0,
            "num_negatives": 10,
            "negative_exponent": 0.75,
        },
        "adapt": {
            "learning_rate": 0.001,
            "weight_decay": 0.0,
            "max_grad_norm": 5.0,
            "new_words": {"max_words": 10_000, "min_frequency": 2},
        },
        "evaluate": {"finetune": finetune_defaults(0.0003, 0.001, 0.004, 0.016, batch_size=32)},
    },
)
