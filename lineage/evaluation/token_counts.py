"""The counts of a model's tokens: their frequencies, and 5-grams in both directions.

Shapes: N tokens of the training text, V vocabulary, B rows, T positions, M masked positions.
"""

from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from lineage.artifacts import file_digest
from lineage.evaluation.kneser_ney import KneserNey, fit_kneser_ney
from lineage.evaluation.ngram import boundary_token_id
from lineage.tokenizers.token_ids import TokenizedCorpus
from lineage.tokenizers.tokenizer import Tokenizer


@dataclass(frozen=True)
class TokenCounts:
    """Models that count a model's own tokens, its unknown token included."""

    forward: KneserNey  # predicts a token from those before it
    backward: KneserNey | None  # predicts a token from those after it; None: not needed yet
    frequencies_V: np.ndarray  # the share of each token, with one added to each count
    train_bytes: int

    def masked_distributions(
        self, ids_BT: np.ndarray, is_masked_BT: np.ndarray, is_text_BT: np.ndarray
    ) -> np.ndarray:
        """Return (M, V): the probability of each token at the masked positions, from both sides.

        p(w) is proportional to p(w | left) p(w | right) / p(w): Bayes' rule, if the two sides are
        independent given the token. A context ends at the nearest masked or special token and at
        the end of the row. A side without context has the frequencies.
        """
        assert self.backward is not None, "it was counted for a masked model"
        is_context_BT = is_text_BT & ~is_masked_BT
        left_MV = self._predict_from_left(self.forward, ids_BT, is_masked_BT, is_context_BT)
        mirrored_MV = self._predict_from_left(
            self.backward, ids_BT[:, ::-1], is_masked_BT[:, ::-1], is_context_BT[:, ::-1]
        )
        # In mirrored rows the masked positions of each row come in the opposite order.
        row_M = np.nonzero(is_masked_BT)[0]
        right_MV = mirrored_MV[np.lexsort((-np.arange(len(row_M)), row_M))]
        joint_MV = left_MV * right_MV / self.frequencies_V
        return np.asarray(joint_MV / joint_MV.sum(1, keepdims=True))

    def _predict_from_left(
        self,
        ngrams: KneserNey,
        ids_BT: np.ndarray,
        is_masked_BT: np.ndarray,
        is_context_BT: np.ndarray,
    ) -> np.ndarray:
        """Return (M, V): the probability of each token, given those before it in its row."""
        is_start_BT = np.ones(ids_BT.shape, bool)  # nothing is known before such a position
        is_start_BT[:, 1:] = ~is_context_BT[:, :-1]
        positions_M = np.flatnonzero(is_masked_BT)
        found_MV = ngrams.distributions(ids_BT.ravel(), is_start_BT.ravel(), positions_M)
        found_MV[is_start_BT[is_masked_BT]] = self.frequencies_V
        return found_MV


class CountedTokens:
    """The counts of the tokens of one model after another, made once for equal tokens."""

    def __init__(self, documents: np.ndarray) -> None:
        self._documents = documents
        self._key: tuple[str, int] | None = None
        self._counts: TokenCounts | None = None

    def load(self, tokens_dir: Path, *, both_sides: bool) -> TokenCounts:
        """Return the counts of the chosen documents in a model's tokens."""
        tokenizer = Tokenizer.load(tokens_dir)
        key = (file_digest(tokens_dir / "train.ids.npy"), tokenizer.vocab_size)
        if self._key != key:
            self._counts = None  # free it first: the counts of two texts may not fit into memory
            self._key = key
        if self._counts is None:
            ids_N, train_bytes = self._read(tokenizer, tokens_dir)
            counts_V = np.bincount(ids_N, minlength=tokenizer.vocab_size) + 1
            forward = _fit(ids_N, tokenizer)
            self._counts = TokenCounts(forward, None, counts_V / counts_V.sum(), train_bytes)
        if both_sides and self._counts.backward is None:
            ids_N, _ = self._read(tokenizer, tokens_dir)
            self._counts = replace(self._counts, backward=_fit(ids_N[::-1], tokenizer))
        return self._counts

    def _read(self, tokenizer: Tokenizer, tokens_dir: Path) -> tuple[np.ndarray, int]:
        """Return the ids of the chosen documents, and their bytes."""
        corpus = TokenizedCorpus.load(tokens_dir, "train")
        spans = [slice(*corpus.document_starts[[d, d + 1]]) for d in self._documents]
        ids_N = np.concatenate([corpus.ids[span] for span in spans])
        ids_N = np.where(ids_N < tokenizer.vocab_size, ids_N, tokenizer.unk_token_id or 0)
        train_bytes = sum(int(corpus.byte_counts[span].sum(dtype=np.int64)) for span in spans)
        return ids_N, train_bytes


def _fit(ids_N: np.ndarray, tokenizer: Tokenizer) -> KneserNey:
    return fit_kneser_ney(
        ids_N, vocab_size=tokenizer.vocab_size, boundary_id=boundary_token_id(tokenizer)
    )
