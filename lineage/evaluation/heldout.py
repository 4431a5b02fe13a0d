"""A pretrained language model and counting predict the same held-out text.

The text is cut into blocks of consecutive text. The sums of each block tell how much their
difference varies over text.

Shapes: K blocks, N tokens, B rows, T positions, M masked positions.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

import numpy as np
import torch

from lineage.evaluation.ngram_bits import HeldoutLosses, Predicted
from lineage.evaluation.token_counts import TokenCounts
from lineage.networks.base import Family, LanguageModelFamily, Public
from lineage.networks.batch import IGNORE_INDEX, Batch, BatchSampler
from lineage.networks.checkpoint import Checkpoint
from lineage.tokenizers.token_ids import TokenizedCorpus
from lineage.tokenizers.tokenizer import Tokenizer
from lineage.training.loop import validate
from lineage.training.pretrain import to_validation_settings
from lineage.training.samplers import BidirectionalBpttBatches, iterate_batches
from lineage.training.settings import MaskReplacement
from lineage.training.train_run import ALL_BATCHES

# The text that is predicted at most. In the demo, a fifth of it gives intervals of 0.003 bits per
# byte on each side: more text would take more time and decide little.
MAX_HELDOUT_BYTES = 1_000_000
# Enough blocks for an interval, and long ones: the last tokens that fill no window are not read.
MIN_BLOCKS = 10
MAX_BLOCKS = 100
WINDOWS_PER_BLOCK = 8
MIN_DOCUMENTS = 50  # of a text that is cut between documents: they differ more than sentences
# With a carried state, windows may have any length. Long ones take less time, and rows of two such
# windows at least are long enough for the state of zeros, with which a row begins, not to matter.
CARRIED_SEQ_LEN = 250


@dataclass(frozen=True)
class BlockCounts:
    """The scores of counting on a block of held-out text."""

    num_units: int  # bytes of text, or masked tokens
    ngram_nats: float
    frequency_nats: float  # of masked tokens, by the frequency of tokens; else 0


@dataclass(frozen=True)
class HeldoutText:
    """The held-out text of a model in the batches of each block, and what it predicts there."""

    predicted: Predicted
    samplers: Sequence[BatchSampler]
    tokenizer: Tokenizer

    @classmethod
    def of(cls, checkpoint: Checkpoint, corpus: TokenizedCorpus) -> "HeldoutText | None":
        """Return the text of a model; None if counting cannot predict what it predicts."""
        predicted = find_predicted(checkpoint.family, checkpoint.pretrain)
        if predicted is None:
            return None
        settings = to_comparison_settings(checkpoint.pretrain.phases[-1].settings)
        if _build_sampler(checkpoint, corpus, settings, seed=0).carries_state:
            settings = replace(settings, seq_len=max(settings.seq_len, CARRIED_SEQ_LEN))
        blocks = cut_into_blocks(corpus, seq_len=settings.seq_len)
        if len(blocks) < 2:
            return None
        samplers = [
            _build_sampler(checkpoint, block, settings, seed=number)
            for number, block in enumerate(blocks)
        ]
        return cls(predicted, samplers, checkpoint.tokenizer)

    def compare(
        self, name: str, checkpoints: Sequence[Checkpoint], counts: TokenCounts
    ) -> HeldoutLosses | None:
        """Return the losses of a model's pretrainings and of counting.

        None: the model does not read in the direction that is compared, or no loss is finite.
        """
        model_nats = [self.measure_model(checkpoint) for checkpoint in checkpoints]
        finite = [tuple(nats) for nats in model_nats if nats and np.isfinite(nats).all()]
        if not finite:
            return None
        counted = self.measure_counting(counts)
        is_masked = self.predicted == "masked tokens"
        return HeldoutLosses(
            name,
            self.predicted,
            counts.train_bytes,
            num_units=tuple(one.num_units for one in counted),
            model_nats=tuple(finite),
            ngram_nats=tuple(one.ngram_nats for one in counted),
            frequency_nats=tuple(one.frequency_nats for one in counted) if is_masked else (),
        )

    def measure_model(self, checkpoint: Checkpoint) -> list[float] | None:
        """Return (K,) nats of a pretrained model; None if it does not read in that direction."""
        family = checkpoint.family
        assert isinstance(family, LanguageModelFamily)
        model = checkpoint.build(torch.device("cpu"))
        nats: list[float] = []
        for sampler in self.samplers:
            sums = validate(
                model, family.objective, sampler, max_batches=ALL_BATCHES, precision="fp32"
            )
            found = [sums.nats[name] for name in self._loss_names(sampler) if name in sums.nats]
            if not found:
                return None
            nats.append(found[0])
        return nats

    def _loss_names(self, sampler: BatchSampler) -> tuple[str, ...]:
        """Return the names that an objective may give the loss that is compared."""
        if self.predicted == "masked tokens":
            return ("masked",)
        if isinstance(sampler, BidirectionalBpttBatches):
            return ("forward",)
        return ("causal", "next_token", "forward", "backward")

    def measure_counting(self, counts: TokenCounts) -> list[BlockCounts]:
        """Return what counting reaches on each of the K blocks."""
        if self.predicted == "next tokens":
            return [_count_next_tokens(sampler, counts) for sampler in self.samplers]
        mask_id = self.tokenizer.special_token_template.mask_token_id
        assert mask_id is not None, "a masked model has a mask"
        return [_count_masked_tokens(sampler, counts, mask_id) for sampler in self.samplers]


def heldout_part(model: str) -> str:
    """Name the work of a model's held-out text, which grows with that text."""
    return f"held-out text of {model}"


def find_predicted(family: Family, pretrain: Any) -> Predicted | None:
    """Return what a model predicts at the end of its training that counting can predict too."""
    if not isinstance(family, LanguageModelFamily) or isinstance(family, Public):
        return None
    settings = pretrain.phases[-1].settings
    if family.predicts_next_token or getattr(settings, "causal_share", 0.0) > 0:
        return "next tokens"
    return "masked tokens" if hasattr(settings, "mlm_probability") else None


def to_comparison_settings(settings: Any) -> Any:
    """Return a block `pretrain` for the batches that a model and counting predict.

    They are those of validation, with the last masking rate of the training. Every chosen token
    becomes the mask. Of a model that learns from causal and masked batches, all are causal.
    """
    found = to_validation_settings(settings)
    if hasattr(settings, "mlm_probability"):
        found = replace(
            found,
            mlm_probability=settings.mlm_probability,
            mask_replacement=MaskReplacement(mask=1.0, random=0.0),
        )
    if getattr(settings, "causal_share", 0.0) > 0:
        found = replace(found, causal_share=1.0)
    return found


def cut_into_blocks(corpus: TokenizedCorpus, *, seq_len: int) -> list[TokenizedCorpus]:
    """Cut a text into at most MAX_BLOCKS blocks of about equal length.

    If there are more than MAX_HELDOUT_BYTES, blocks at equal distances are kept.
    """
    text_bytes = corpus.text_bytes
    kept_share = min(1.0, MAX_HELDOUT_BYTES / text_bytes)
    num_windows = kept_share * len(corpus.ids) / seq_len
    num_blocks = float(np.clip(num_windows / WINDOWS_PER_BLOCK, MIN_BLOCKS, MAX_BLOCKS))
    has_many = kept_share * (len(corpus.document_starts) - 1) >= MIN_DOCUMENTS
    bounds = corpus.document_starts if has_many else corpus.sentence_starts
    bytes_before = np.concatenate([[0], np.cumsum(corpus.byte_counts, dtype=np.int64)])
    targets = np.linspace(0, text_bytes, round(num_blocks / kept_share) + 1)
    cuts = np.unique(bounds[np.searchsorted(bytes_before[bounds], targets)])
    spans = [*pairwise(cuts.tolist())]
    chosen = np.linspace(0, len(spans) - 1, round(kept_share * len(spans)))
    return [_slice_corpus(corpus, *spans[index]) for index in chosen.round().astype(int)]


def _slice_corpus(corpus: TokenizedCorpus, start: int, end: int) -> TokenizedCorpus:
    """Return some consecutive tokens as a text of their own."""
    return replace(
        corpus,
        ids=corpus.ids[start:end],
        byte_counts=corpus.byte_counts[start:end],
        document_starts=np.unique(corpus.document_starts.clip(start, end)) - start,
        sentence_starts=np.unique(corpus.sentence_starts.clip(start, end)) - start,
        languages=None,
    )


def _build_sampler(
    checkpoint: Checkpoint, tokens: TokenizedCorpus, settings: Any, *, seed: int
) -> BatchSampler:
    family = checkpoint.family
    assert isinstance(family, LanguageModelFamily)
    return family.batch_sampler(tokens, checkpoint.tokenizer, settings, seed=seed)


def _count_next_tokens(sampler: BatchSampler, counts: TokenCounts) -> BlockCounts:
    """Predict the next tokens of a block from the four before them in their row, or fewer."""
    rows: list[np.ndarray] = []
    text_bytes = 0
    reads_first = True  # the first token of a row is read, and not predicted
    for batch in _batches(sampler):
        ids_BT, targets_BT = _forward_rows(sampler, batch)
        text_bytes += batch.text_bytes
        assert batch.text_mask_BT is not None
        reads_first = bool(batch.text_mask_BT[0, 0])
        if sampler.carries_state and rows:
            rows = [np.append(row, targets) for row, targets in zip(rows, targets_BT, strict=True)]
        else:
            read_BT = np.concatenate([ids_BT[:, : int(reads_first)], targets_BT], axis=1)
            rows += [row[row != IGNORE_INDEX] for row in read_BT]
    ids_N = np.concatenate(rows)
    is_start_N = np.zeros(len(ids_N), bool)
    is_start_N[np.cumsum([0, *(len(row) for row in rows[:-1])])] = True
    log_probs_N = counts.forward.log_probs(ids_N, is_start_N, predicts_starts=not reads_first)
    return BlockCounts(text_bytes, float(-log_probs_N.sum()), 0.0)


def _forward_rows(sampler: BatchSampler, batch: Batch) -> tuple[np.ndarray, np.ndarray]:
    """Return the (B, T) ids and targets of the rows that are read forward."""
    assert batch.targets_BT is not None
    num_rows = len(batch.ids_BT)
    if isinstance(sampler, BidirectionalBpttBatches):
        num_rows //= 2
    return batch.ids_BT[:num_rows].numpy(), batch.targets_BT[:num_rows].numpy()


def _count_masked_tokens(sampler: BatchSampler, counts: TokenCounts, mask_id: int) -> BlockCounts:
    """Predict the masked tokens of a block from both sides, and by their frequency."""
    num_targets = 0
    ngram_nats = frequency_nats = 0.0
    for batch in _batches(sampler):
        assert batch.targets_BT is not None and batch.text_mask_BT is not None
        ids_BT = batch.ids_BT.numpy()
        is_masked_BT = ids_BT == mask_id
        # Some models predict a masked token at the position before it; the order is the same.
        targets_M = batch.targets_BT.numpy()[batch.targets_BT.numpy() != IGNORE_INDEX]
        assert len(targets_M) == is_masked_BT.sum(), "every target is masked, and nothing else"
        found_MV = counts.masked_distributions(ids_BT, is_masked_BT, batch.text_mask_BT.numpy())
        num_targets += len(targets_M)
        ngram_nats -= float(np.log(found_MV[np.arange(len(targets_M)), targets_M]).sum())
        frequency_nats -= float(np.log(counts.frequencies_V[targets_M]).sum())
    return BlockCounts(num_targets, ngram_nats, frequency_nats)


def _batches(sampler: BatchSampler) -> Iterator[Batch]:
    for _, _, batch in iterate_batches(sampler):
        yield batch
