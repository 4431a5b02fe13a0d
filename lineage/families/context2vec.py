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

from lineage.batch import Batch, mean_over, reversal, turned
from lineage.family import Encoder, Family, LossOut, embedding, growing, linear_head
from lineage.layers.awd import WeightDropLSTM
from lineage.randomness import generator
from lineage.records import positive, share
from lineage.text.tokenization import MARKS, Reader
from lineage.text.tokens import Tokens
from lineage.training.sentences import Scored, text_scores
from lineage.training.streams import Spans
from lineage.training.train import Training

BEGIN = MARKS["word"].index("<S>")
NO_WORDS = [MARKS["word"].index(mark) for mark in ("<pad>", "<S>", "</S>")]


@dataclass(frozen=True)
class Config:
    """The block `model`. `width` (of a context word) and `units` (of an LSTM and of a target word) are solved from the budget where not given."""

    context: Literal["lstm", "average"]  # average: the mean of all other words, without order, as CBOW has it (the paper's baseline)
    unit_ratio: float  # units over width; 2 in the paper
    dropout: float
    width: int | None = None
    units: int | None = None

    def __post_init__(self) -> None:
        positive(self, "unit_ratio", "width", "units")
        share(self, "dropout")

    def candidates(self) -> Iterator[list["Config"]]:
        """Configurations of growing width."""
        return growing(self, "width", "units", ratio=self.unit_ratio, step=1)


@dataclass(frozen=True)
class Sampling(Training):
    """The block `pretrain`. `length` is where longer sentences are cut."""

    negatives: int
    power: float  # of a word's frequency, by which negatives are drawn

    def __post_init__(self) -> None:
        super().__post_init__()
        positive(self, "negatives")


class Sentences(Spans):
    """Sentences in batches of one length, and for each word its negatives, drawn by its frequency in the text to the `power`."""

    def __init__(self, tokens: Tokens, reader: Reader, settings: Any, *, seed: int) -> None:
        super().__init__(tokens, reader, settings, seed=seed, unit="sentences")
        ids = np.where(tokens.ids < self.vocabulary, tokens.ids, self.unknown)
        counts = np.bincount(ids, minlength=self.vocabulary).astype(float)
        counts[NO_WORDS] = 0
        weights = np.where(counts > 0, np.maximum(counts, 1.0) ** settings.power, 0.0)
        self.edges = np.cumsum(weights) / max(weights.sum(), 1.0)

    def batch(self, index: int) -> Batch:
        """(B, T) ids and (B, T, K) negatives."""
        batch = super().batch(index)
        shape = (*batch.ids_BT.shape, self.settings.negatives)
        drawn = np.searchsorted(self.edges, generator("negatives", self.seed, self.passed, index).random(shape), side="right")
        return dataclasses.replace(batch, negatives_BTK=torch.from_numpy(np.minimum(drawn, self.vocabulary - 1)))


class Model(Encoder):
    """The target words, and the network of the context."""

    def __init__(self, config: Config, *, vocabulary: int) -> None:
        super().__init__()
        assert config.width is not None and config.units is not None, "widths are solved before a model is built"
        self.config = config
        E, H = config.width, config.units
        ways = 2 if config.context == "lstm" else 1
        self.targets = embedding(vocabulary, H)
        self.words = nn.ModuleList(embedding(vocabulary, E) for _ in range(ways))  # from the left, from the right; or those of the average
        self.lstms = nn.ModuleList(WeightDropLSTM(E, H) for _ in range(ways) if config.context == "lstm")
        self.hidden, self.join = nn.Linear(2 * H if config.context == "lstm" else E, 2 * H), nn.Linear(2 * H, H)

    def encode(self, batch: Batch) -> tuple[torch.Tensor, ...]:
        """The words' target vectors, and the vectors of the places where they stand, which the words there have no part in: both (B, T, H)."""
        rows_N, columns_N, (ids_SL, mask_SL) = by_sentence(batch)
        where = batch.mask_BT.flatten().nonzero()[:, 0]
        contexts_SLH = self.contexts(ids_SL, mask_SL)
        flat = contexts_SLH.new_zeros(batch.ids_BT.numel(), contexts_SLH.shape[-1])
        found = flat.index_copy(0, where, contexts_SLH[rows_N, columns_N])
        return self.targets(batch.ids_BT), found.view(*batch.ids_BT.shape, -1)

    def contexts(self, ids_SL: torch.Tensor, mask_SL: torch.Tensor) -> torch.Tensor:
        """(S, L, H): a vector for each place of each sentence, marks included, from what stands left and right of it."""
        sides = self._both_sides(ids_SL, mask_SL) if self.config.context == "lstm" else self._average(ids_SL, mask_SL)
        return self.join(self._drop(F.relu(self.hidden(self._drop(sides)))))

    def _both_sides(self, ids_SL: torch.Tensor, mask_SL: torch.Tensor) -> torch.Tensor:
        """(S, L, 2 H): what each LSTM has read one place before; zeros where there is nothing before."""
        turn_SL = reversal(mask_SL)
        left_SLH = self._read(0, ids_SL)
        right_SLH = turned(self._read(1, ids_SL.gather(1, turn_SL)), turn_SL)
        follows_SL = F.pad(mask_SL[:, 1:], (0, 1))  # beyond a sentence's end stands padding, whose states have read it all
        return torch.cat([F.pad(left_SLH[:, :-1], (0, 0, 1, 0)), F.pad(right_SLH[:, 1:], (0, 0, 0, 1)) * follows_SL[..., None]], -1)

    def _read(self, way: int, ids_SL: torch.Tensor) -> torch.Tensor:
        lstm = self.lstms[way]
        assert isinstance(lstm, WeightDropLSTM)
        return lstm(self._drop(self.words[way](ids_SL)))[0]

    def _average(self, ids_SL: torch.Tensor, mask_SL: torch.Tensor) -> torch.Tensor:
        """(S, L, E): the mean of the sentence's other words, without marks; zero where there are none."""
        no_words = torch.tensor(NO_WORDS, device=ids_SL.device)
        word_SL = mask_SL & ~torch.isin(ids_SL, no_words)
        x_SLE = self._drop(self.words[0](ids_SL))
        others_SLL = word_SL[:, None] & ~torch.eye(ids_SL.shape[1], dtype=torch.bool, device=ids_SL.device)
        shares_SLL = others_SLL / others_SLL.sum(-1, keepdim=True).clamp_min(1)
        return shares_SLL.to(x_SLE.dtype) @ x_SLE

    def _drop(self, x: torch.Tensor) -> torch.Tensor:
        return F.dropout(x, self.config.dropout, self.training)

    def pool(self, layers: tuple[torch.Tensor, ...], batch: Batch) -> torch.Tensor:
        """(B, 2 H): the means of the words and of their places."""
        where = batch.mask_BT if batch.text_BT is None else batch.text_BT
        return torch.cat([mean_over(layer, where) for layer in layers], -1)

    def head(self, classes: int, *, dropout: float, inner_dropout: float | None = None) -> nn.Module:
        """A linear layer over both means."""
        return linear_head(sum(self.widths()), classes, dropout=dropout)

    def parts(self) -> dict[str, nn.Module]:
        """Modules by role."""
        return {"embedding": nn.ModuleList([self.targets, *self.words]), "body": nn.ModuleList([*self.lstms, self.hidden, self.join])}

    def tied(self) -> list[nn.Parameter]:
        """The target vectors are what is predicted, too."""
        return [*self.targets.parameters()]

    def layer_groups(self) -> list[list[nn.Parameter]]:
        """The tables, the LSTMs, the perceptron."""
        layers: Sequence[Sequence[nn.Module]] = ([self.targets, *self.words], [*self.lstms], [self.hidden, self.join])
        return [[p for part in layer for p in part.parameters()] for layer in layers if layer]

    def initialise(self, generator: torch.Generator) -> None:
        """As in the released code: tables of deviation one over the root of the vocabulary, weights scaled by their inputs, forget gates open.

        Its target vectors start at zero; here as the other tables, so that an untrained twin knows one word from another.
        """
        for table in (self.targets, *self.words):
            assert isinstance(table, nn.Embedding)
            nn.init.normal_(table.weight, std=len(table.weight) ** -0.5, generator=generator)
        for lstm in self.lstms:
            assert isinstance(lstm, WeightDropLSTM)
            for weight in (lstm.input_weight, lstm.state_weight):
                nn.init.normal_(weight, std=weight.shape[1] ** -0.5, generator=generator)
            nn.init.zeros_(lstm.input_bias)
            nn.init.zeros_(lstm.state_bias)
            with torch.no_grad():
                lstm.input_bias[lstm.units : 2 * lstm.units] = 1.0
        for linear in (self.hidden, self.join):
            nn.init.normal_(linear.weight, std=linear.in_features**-0.5, generator=generator)
            nn.init.zeros_(linear.bias)

    def widths(self) -> tuple[int, ...]:
        """H for the words and for their places."""
        assert self.config.units is not None
        return (self.config.units,) * 2


def by_sentence(batch: Batch) -> tuple[torch.Tensor, torch.Tensor, tuple[torch.Tensor, torch.Tensor]]:
    """Where each of the N real positions stands: its sentence and its place there, both (N,); and the sentences as rows, (S, L) ids and mask.

    A sentence begins with its mark, and where an item begins.
    """
    begins_BT = batch.ids_BT == BEGIN
    begins_BT[:, 0] = True
    starts_N, ids_N = begins_BT[batch.mask_BT], batch.ids_BT[batch.mask_BT]
    rows_N = starts_N.cumsum(0) - 1
    columns_N = torch.arange(len(ids_N), device=ids_N.device) - starts_N.nonzero()[:, 0][rows_N]
    shape = (int(rows_N[-1]) + 1, int(columns_N.max()) + 1)
    ids_SL, mask_SL = ids_N.new_zeros(shape), torch.zeros(shape, dtype=torch.bool, device=ids_N.device)
    ids_SL[rows_N, columns_N], mask_SL[rows_N, columns_N] = ids_N, True
    return rows_N, columns_N, (ids_SL, mask_SL)


def negative_sampling(model: Model, batch: Batch, carry: Any = None) -> LossOut:
    """log s(t c) + sum over K drawn words of log s(-t' c), for each word's place c (section 2.2; Mikolov et al. 2013b, equation 4).

    A drawn word that is the target itself is passed over, as in word2vec. Each row is one sentence, or a piece of one.
    """
    assert batch.negatives_BTK is not None and batch.text_BT is not None
    contexts_NH = model.contexts(batch.ids_BT, batch.mask_BT)[batch.text_BT]
    targets_N, negatives_NK = batch.ids_BT[batch.text_BT], batch.negatives_BTK[batch.text_BT]
    true_N = (model.targets(targets_N) * contexts_NH).sum(-1)
    drawn_NK = torch.bmm(model.targets(negatives_NK), contexts_NH[..., None])[..., 0]
    exact = model.targets.weight.dtype  # also where products are in bf16
    told_NK = F.logsigmoid(-drawn_NK.to(exact)).masked_fill(negatives_NK == targets_N[:, None], 0.0)
    nats = -F.logsigmoid(true_N.to(exact)).sum() - told_NK.sum()
    return LossOut(nats / max(len(targets_N), 1), {"sampled": nats.detach()}, {"sampled": len(targets_N)}, carry)


@torch.inference_mode()
def fits(model: Any, reader: Reader, texts: Sequence[str], *, limit: int | None) -> np.ndarray:
    """(N, 2) `text_scores` of log s(t c): how surely each word is the one that stood there and not a drawn one. No probability of a text."""

    def score(batch: Batch) -> Scored:
        assert batch.text_BT is not None
        words_BTH, contexts_BTH = model.encode(batch)
        return (F.logsigmoid((words_BTH * contexts_BTH).sum(-1)) * batch.text_BT).sum(1), batch.text_BT.sum(1)

    return text_scores(model, reader, texts, limit, score)


def switched(model: Config, pretrain: Sampling) -> dict[str, str]:
    """What the average of the other words makes of the family's mechanism."""
    return {} if model.context == "lstm" else {"extractor": "a table and a perceptron", "direction": "all other words, without order"}


FAMILY = Family(
    name="context2vec",
    unit="words",
    extractor="two LSTMs and a perceptron",
    direction="both sides of a word, without the word",
    objective_text="which word stands here, against sampled ones",
    transfer_text="target word and context vector",
    tokenizer="word",
    model=Config,
    pretrain=Sampling,
    build=Model,
    stream=Sentences,
    objective=negative_sampling,
    score=fits,
    switched=switched,
)
