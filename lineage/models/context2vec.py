"""context2vec: a vector of the place where a word stands, from the sentence without the word (Melamud et al. 2016).

Two LSTMs with words of their own, one up to the word from the left and one up to it from the right, and a perceptron that joins them. It is
trained as word2vec is: the place's vector is to tell the word that stands there, by its target vector, from words drawn by frequency.
Shapes: B items, T positions, S sentences, L positions of a sentence, E units of a context word, H units of an LSTM and of a target, K negatives.
"""

import dataclasses
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F

from lineage.config.records import check_fraction, check_positive
from lineage.models.base import (
    Encoder,
    Family,
    LossOutput,
    build_linear_head,
    candidate_sizes,
    empty_embedding,
)
from lineage.models.batch import Batch, gather_positions, masked_mean, reversed_positions
from lineage.models.layers.awd_lstm import WeightDropLSTM
from lineage.randomness import generator
from lineage.tokenizers.token_ids import TokenizedCorpus
from lineage.tokenizers.tokenizer import SPECIAL_TOKENS, Tokenizer
from lineage.training.samplers import SentenceBatches
from lineage.training.sentence_scores import LogProbsAndCounts, score_texts
from lineage.training.settings import PretrainSettings

SENTENCE_START_ID = SPECIAL_TOKENS["word"].index("<S>")
NON_WORD_IDS = [SPECIAL_TOKENS["word"].index(mark) for mark in ("<pad>", "<S>", "</S>")]


@dataclass(frozen=True)
class Context2vecConfig:
    """The block `model`. `width` (of a context word) and `units` (of an LSTM and of a target word) are solved from the budget where not given."""

    context_encoder: Literal[
        "lstm", "average"
    ]  # average: the mean of all other words, without order, as CBOW has it (the paper's baseline)
    hidden_to_embedding_ratio: float  # units over width; 2 in the paper
    dropout: float
    embedding_size: int | None = None
    hidden_size: int | None = None

    def __post_init__(self) -> None:
        check_positive(self, "hidden_to_embedding_ratio", "embedding_size", "hidden_size")
        check_fraction(self, "dropout")

    def candidates(self) -> Iterator[list["Context2vecConfig"]]:
        """Configurations of growing width."""
        return candidate_sizes(
            self, "embedding_size", "hidden_size", ratio=self.hidden_to_embedding_ratio, step=1
        )


@dataclass(frozen=True)
class Context2vecPretrainSettings(PretrainSettings):
    """The block `pretrain`. `length` is where longer sentences are cut."""

    num_negatives: int
    negative_exponent: float  # of a word's frequency, by which negatives are drawn

    def __post_init__(self) -> None:
        super().__post_init__()
        check_positive(self, "num_negatives")


class NegativeSamplingBatches(SentenceBatches):
    """Sentences in batches of one length, and for each word its negatives, drawn by its frequency in the text to the `power`."""

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
        ids = np.where(tokens.ids < self.vocab_size, tokens.ids, self.unk_id)
        counts = np.bincount(ids, minlength=self.vocab_size).astype(float)
        counts[NON_WORD_IDS] = 0
        weights = np.where(counts > 0, np.maximum(counts, 1.0) ** settings.negative_exponent, 0.0)
        self.cumulative_probs = np.cumsum(weights) / max(weights.sum(), 1.0)

    def get_batch(self, index: int) -> Batch:
        """(B, T) ids and (B, T, K) negatives."""
        batch = super().get_batch(index)
        shape = (*batch.ids_BT.shape, self.num_negatives)
        drawn = np.searchsorted(
            self.cumulative_probs,
            generator("negatives", self.seed, self.epoch, index).random(shape),
            side="right",
        )
        return dataclasses.replace(
            batch, negatives_BTK=torch.from_numpy(np.minimum(drawn, self.vocab_size - 1))
        )


class Context2vecModel(Encoder):
    """The target words, and the network of the context."""

    def __init__(self, config: Context2vecConfig, *, vocab_size: int) -> None:
        super().__init__()
        assert config.embedding_size is not None and config.hidden_size is not None, (
            "widths are solved before a model is built"
        )
        self.config = config
        E, H = config.embedding_size, config.hidden_size
        ways = 2 if config.context_encoder == "lstm" else 1
        self.target_embeddings = empty_embedding(vocab_size, H)
        self.context_embeddings = nn.ModuleList(
            empty_embedding(vocab_size, E) for _ in range(ways)
        )  # from the left, from the right; or those of the average
        self.lstms = nn.ModuleList(
            WeightDropLSTM(E, H) for _ in range(ways) if config.context_encoder == "lstm"
        )
        self.hidden_layer, self.output_layer = (
            nn.Linear(2 * H if config.context_encoder == "lstm" else E, 2 * H),
            nn.Linear(2 * H, H),
        )

    def encode(self, batch: Batch) -> tuple[torch.Tensor, ...]:
        """The words' target vectors, and the vectors of the places where they stand, which the words there have no part in: both (B, T, H)."""
        rows_N, columns_N, (ids_SL, mask_SL) = split_into_sentences(batch)
        where = batch.mask_BT.flatten().nonzero()[:, 0]
        contexts_SLH = self.context_vectors(ids_SL, mask_SL)
        flat = contexts_SLH.new_zeros(batch.ids_BT.numel(), contexts_SLH.shape[-1])
        found = flat.index_copy(0, where, contexts_SLH[rows_N, columns_N])
        return self.target_embeddings(batch.ids_BT), found.view(*batch.ids_BT.shape, -1)

    def context_vectors(self, ids_SL: torch.Tensor, mask_SL: torch.Tensor) -> torch.Tensor:
        """(S, L, H): a vector for each place of each sentence, marks included, from what stands left and right of it."""
        sides = (
            self._lstm_contexts(ids_SL, mask_SL)
            if self.config.context_encoder == "lstm"
            else self._average_contexts(ids_SL, mask_SL)
        )
        return self.output_layer(self._dropout(F.relu(self.hidden_layer(self._dropout(sides)))))

    def _lstm_contexts(self, ids_SL: torch.Tensor, mask_SL: torch.Tensor) -> torch.Tensor:
        """(S, L, 2 H): what each LSTM has read one place before; zeros where there is nothing before."""
        turn_SL = reversed_positions(mask_SL)
        left_SLH = self._run_lstm(0, ids_SL)
        right_SLH = gather_positions(self._run_lstm(1, ids_SL.gather(1, turn_SL)), turn_SL)
        follows_SL = F.pad(
            mask_SL[:, 1:], (0, 1)
        )  # beyond a sentence's end stands padding, whose states have read it all
        return torch.cat(
            [
                F.pad(left_SLH[:, :-1], (0, 0, 1, 0)),
                F.pad(right_SLH[:, 1:], (0, 0, 0, 1)) * follows_SL[..., None],
            ],
            -1,
        )

    def _run_lstm(self, direction: int, ids_SL: torch.Tensor) -> torch.Tensor:
        lstm = self.lstms[direction]
        assert isinstance(lstm, WeightDropLSTM)
        return lstm(self._dropout(self.context_embeddings[direction](ids_SL)))[0]

    def _average_contexts(self, ids_SL: torch.Tensor, mask_SL: torch.Tensor) -> torch.Tensor:
        """(S, L, E): the mean of the sentence's other words, without marks; zero where there are none."""
        no_words = torch.tensor(NON_WORD_IDS, device=ids_SL.device)
        word_SL = mask_SL & ~torch.isin(ids_SL, no_words)
        x_SLE = self._dropout(self.context_embeddings[0](ids_SL))
        others_SLL = word_SL[:, None] & ~torch.eye(
            ids_SL.shape[1], dtype=torch.bool, device=ids_SL.device
        )
        shares_SLL = others_SLL / others_SLL.sum(-1, keepdim=True).clamp_min(1)
        return shares_SLL.to(x_SLE.dtype) @ x_SLE

    def _dropout(self, x: torch.Tensor) -> torch.Tensor:
        return F.dropout(x, self.config.dropout, self.training)

    def pool(self, layers: tuple[torch.Tensor, ...], batch: Batch) -> torch.Tensor:
        """(B, 2 H): the means of the words and of their places."""
        where = batch.mask_BT if batch.text_mask_BT is None else batch.text_mask_BT
        return torch.cat([masked_mean(layer, where) for layer in layers], -1)

    def build_head(
        self, num_classes: int, *, dropout: float, hidden_dropout: float | None = None
    ) -> nn.Module:
        """A linear layer over both means."""
        return build_linear_head(sum(self.hidden_sizes()), num_classes, dropout=dropout)

    def modules_by_role(self) -> dict[str, nn.Module]:
        """Modules by role."""
        return {
            "embedding": nn.ModuleList([self.target_embeddings, *self.context_embeddings]),
            "body": nn.ModuleList([*self.lstms, self.hidden_layer, self.output_layer]),
        }

    def tied_parameters(self) -> list[nn.Parameter]:
        """The target vectors are what is predicted, too."""
        return [*self.target_embeddings.parameters()]

    def layer_groups(self) -> list[list[nn.Parameter]]:
        """The tables, the LSTMs, the perceptron."""
        layers: Sequence[Sequence[nn.Module]] = (
            [self.target_embeddings, *self.context_embeddings],
            [*self.lstms],
            [self.hidden_layer, self.output_layer],
        )
        return [[p for part in layer for p in part.parameters()] for layer in layers if layer]

    def init_weights(self, generator: torch.Generator) -> None:
        """As in the released code: tables of deviation one over the root of the vocabulary, weights scaled by their inputs, forget gates open.

        Its target vectors start at zero; here as the other tables, so that an untrained twin knows one word from another.
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
        """H for the words and for their places."""
        assert self.config.hidden_size is not None
        return (self.config.hidden_size,) * 2


def split_into_sentences(
    batch: Batch,
) -> tuple[torch.Tensor, torch.Tensor, tuple[torch.Tensor, torch.Tensor]]:
    """Where each of the N real positions stands: its sentence and its place there, both (N,); and the sentences as rows, (S, L) ids and mask.

    A sentence begins with its mark, and where an item begins.
    """
    begins_BT = batch.ids_BT == SENTENCE_START_ID
    begins_BT[:, 0] = True
    starts_N, ids_N = begins_BT[batch.mask_BT], batch.ids_BT[batch.mask_BT]
    rows_N = starts_N.cumsum(0) - 1
    columns_N = torch.arange(len(ids_N), device=ids_N.device) - starts_N.nonzero()[:, 0][rows_N]
    shape = (int(rows_N[-1]) + 1, int(columns_N.max()) + 1)
    ids_SL, mask_SL = (
        ids_N.new_zeros(shape),
        torch.zeros(shape, dtype=torch.bool, device=ids_N.device),
    )
    ids_SL[rows_N, columns_N], mask_SL[rows_N, columns_N] = ids_N, True
    return rows_N, columns_N, (ids_SL, mask_SL)


def negative_sampling_loss(
    model: Context2vecModel, batch: Batch, recurrent_state: Any = None
) -> LossOutput:
    """log s(t c) + sum over K drawn words of log s(-t' c), for each word's place c (section 2.2; Mikolov et al. 2013b, equation 4).

    A drawn word that is the target itself is passed over, as in word2vec. Each row is one sentence, or a piece of one.
    """
    assert batch.negatives_BTK is not None and batch.text_mask_BT is not None
    contexts_NH = model.context_vectors(batch.ids_BT, batch.mask_BT)[batch.text_mask_BT]
    targets_N, negatives_NK = (
        batch.ids_BT[batch.text_mask_BT],
        batch.negatives_BTK[batch.text_mask_BT],
    )
    true_N = (model.target_embeddings(targets_N) * contexts_NH).sum(-1)
    drawn_NK = torch.bmm(model.target_embeddings(negatives_NK), contexts_NH[..., None])[..., 0]
    exact = model.target_embeddings.weight.dtype  # also where products are in bf16
    log_rejected_NK = F.logsigmoid(-drawn_NK.to(exact)).masked_fill(
        negatives_NK == targets_N[:, None], 0.0
    )
    nats = -F.logsigmoid(true_N.to(exact)).sum() - log_rejected_NK.sum()
    return LossOutput(
        nats / max(len(targets_N), 1),
        {"sampled": nats.detach()},
        {"sampled": len(targets_N)},
        recurrent_state,
    )


@torch.inference_mode()
def context2vec_scores(
    model: Any, tokenizer: Tokenizer, texts: Sequence[str], *, limit: int | None
) -> np.ndarray:
    """(N, 2) `text_scores` of log s(t c): how surely each word is the one that stood there and not a drawn one. No probability of a text."""

    def score(batch: Batch) -> LogProbsAndCounts:
        assert batch.text_mask_BT is not None
        words_BTH, contexts_BTH = model.encode(batch)
        log_probs_BT = F.logsigmoid((words_BTH * contexts_BTH).sum(-1)) * batch.text_mask_BT
        return LogProbsAndCounts(log_probs_BT.sum(1), batch.text_mask_BT.sum(1))

    return score_texts(model, tokenizer, texts, limit, score)


def describe_mechanism(
    architecture: Context2vecConfig, pretrain: Context2vecPretrainSettings
) -> dict[str, str]:
    """What the average of the other words makes of the family's mechanism."""
    return (
        {}
        if architecture.context_encoder == "lstm"
        else {
            "extractor": "a table and a perceptron",
            "direction": "all other words, without order",
        }
    )


FAMILY = Family(
    name="context2vec",
    input_unit="words",
    contextualizer="two LSTMs and a perceptron",
    direction="both sides of a word, without the word",
    objective_description="which word stands here, against sampled ones",
    transfer_description="target word and context vector",
    tokenizer_type="word",
    architecture_class=Context2vecConfig,
    pretrain_class=Context2vecPretrainSettings,
    build=Context2vecModel,
    batch_sampler=NegativeSamplingBatches,
    objective=negative_sampling_loss,
    score_texts=context2vec_scores,
    describe=describe_mechanism,
)
