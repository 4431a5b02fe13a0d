"""fastText: word2vec whose words are means of their own vector and their character n-grams'.

Bojanowski et al. 2017, through gensim.
Shapes: B items, T positions, D units, U distinct words.
"""

import functools
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from torch.nn import functional as F

from lineage.config.records import check_positive
from lineage.families.gensim_training import (
    PRETRAIN_DEFAULTS,
    NegativeSamplingSettings,
    gensim_options,
    train_gensim,
)
from lineage.networks.base import Encoder, Static, empty_embedding, finetune_defaults
from lineage.networks.batch import Batch
from lineage.networks.static import (
    NUM_SPECIAL_TOKENS,
    UNK_ID,
    StaticConfig,
    StaticTrainingText,
    StaticVectors,
    count_word_frequencies,
    vocab_words,
)
from lineage.tokenizers.tokenizer import Tokenizer
from lineage.tokenizers.word_bytes import BEGIN_WORD, END_WORD, word_byte_table


@dataclass(frozen=True)
class FastTextConfig(StaticConfig):
    """The block `architecture`."""

    num_buckets: int  # n-grams are hashed into these
    min_n: int  # length of n-grams in characters, including < and > around the word
    max_n: int

    def __post_init__(self) -> None:
        super().__post_init__()
        check_positive(self, "num_buckets", "min_n", "max_n")
        if self.max_n < self.min_n:
            raise ValueError(f"max_n is {self.max_n}, below min_n, {self.min_n}")


class FastTextModel(StaticVectors):
    """A table of words and a table of n-grams.

    A word is the mean of its own vector and its n-grams'. N-grams come from the bytes that the
    tokenizer keeps of a word (`max_word_bytes`).
    """

    handles_oov = True

    def __init__(self, config: FastTextConfig, *, vocab_size: int) -> None:
        super().__init__(config, vocab_size=vocab_size)
        self.ngram_embeddings = empty_embedding(config.num_buckets, config.hidden_size)

    def encode(self, batch: Batch) -> tuple[torch.Tensor, ...]:
        """Return the only layer, (B, T, D), from the n-grams of each distinct word."""
        assert batch.byte_ids_UC is not None and batch.word_rows_BT is not None
        assert isinstance(self.config, FastTextConfig)
        device = batch.ids_BT.device
        byte_ids_UC = batch.byte_ids_UC.cpu().numpy().astype(np.int64)
        buckets = [_ngram_buckets(row.tobytes(), self.config) for row in byte_ids_UC]
        flat_buckets = [bucket for word_buckets in buckets for bucket in word_buckets]
        counts_U = torch.tensor([len(word_buckets) for word_buckets in buckets], device=device)
        sums_UD = F.embedding_bag(
            torch.tensor(flat_buckets, dtype=torch.long, device=device),
            self.ngram_embeddings.weight,
            counts_U.cumsum(0) - counts_U,
            mode="sum",
        )
        known_BT = (batch.ids_BT != UNK_ID).to(sums_UD.dtype)
        count_BT = (known_BT + counts_U[batch.word_rows_BT]).clamp_min(1)
        total_BTD = self.words(batch.ids_BT) * known_BT[..., None] + sums_UD[batch.word_rows_BT]
        return (total_BTD / count_BT[..., None],)

    def modules_by_role(self) -> dict[str, torch.nn.Module]:
        tables = torch.nn.ModuleList([self.words, self.ngram_embeddings])
        return {"embedding": tables, "body": torch.nn.ModuleList()}


@functools.lru_cache(maxsize=200_000)
def _ngram_buckets(row: bytes, config: FastTextConfig) -> tuple[int, ...]:
    """Return the n-gram buckets of a word given as int64 byte ids; special tokens have none."""
    from gensim.models.fasttext import ft_ngram_hashes

    ids = np.frombuffer(row, np.int64)
    ends = np.flatnonzero(ids == END_WORD)
    if ids[0] != BEGIN_WORD or not len(ends):
        return ()
    byte_ids = ids[1 : ends[0]]
    if (byte_ids > 256).any():
        return ()
    word = bytes((byte_ids - 1).astype(np.uint8)).decode(errors="ignore")
    return tuple(ft_ngram_hashes(word, config.min_n, config.max_n, config.num_buckets))


def fit_static(
    model: Encoder,
    text: StaticTrainingText,
    tokenizer: Tokenizer,
    settings: NegativeSamplingSettings,
    *,
    seed: int,
    report: Callable[[float, str], None],
) -> None:
    from gensim.models import FastText  # takes 1.5 s to import, and only training needs it

    assert isinstance(model, FastTextModel) and isinstance(model.config, FastTextConfig)
    config = model.config
    words = vocab_words(tokenizer)
    gensim_model = FastText(
        **gensim_options(settings, hidden_size=config.hidden_size, seed=seed),
        bucket=config.num_buckets,
        min_n=config.min_n,
        max_n=config.max_n,
    )
    gensim_model.build_vocab_from_freq(count_word_frequencies(text, words))
    for row, word in enumerate(words):
        # A word that the tokenizer cuts has only the n-grams of its beginning, in training too.
        if len(word.encode()) > tokenizer.max_word_bytes - 2:
            (byte_ids,) = word_byte_table([word], tokenizer.max_word_bytes).astype(np.int64)
            buckets = _ngram_buckets(byte_ids.tobytes(), config)
            gensim_model.wv.buckets_word[row] = np.array(buckets, np.uint32)
    gensim_model.wv.vectors_vocab[:] = model.words.weight[NUM_SPECIAL_TOKENS:].detach().numpy()
    gensim_model.wv.vectors_ngrams[:] = model.ngram_embeddings.weight.detach().numpy()
    train_gensim(gensim_model, text, words, report)
    model.load_vectors(gensim_model.wv.vectors_vocab)
    with torch.no_grad():
        model.ngram_embeddings.weight.copy_(torch.from_numpy(gensim_model.wv.vectors_ngrams))


FAMILY = Static(
    name="fasttext",
    tokenizer_type="word",
    architecture_class=FastTextConfig,
    pretrain_class=NegativeSamplingSettings,
    build=FastTextModel,
    fit_static=fit_static,
    defaults={
        "architecture": {"hidden_size": 128, "num_buckets": 20000, "min_n": 3, "max_n": 6},
        "pretrain": PRETRAIN_DEFAULTS,
        "evaluate": {"finetune": finetune_defaults(0.0003, 0.001, 0.004, 0.016)},
    },
)
