"""fastText: word2vec in which a word is the mean of its own vector and its character n-grams' (Bojanowski et al. 2017), through gensim."""

import functools
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from torch.nn import functional as F

from lineage.config.records import check_positive
from lineage.models.base import Encoder, Family, empty_embedding
from lineage.models.batch import Batch
from lineage.models.gensim_training import NegativeSamplingSettings, gensim_options, train_gensim
from lineage.models.static import (
    StaticConfig,
    StaticTrainingText,
    StaticVectors,
    count_word_frequencies,
    vocab_words,
)
from lineage.tokenizers.tokenizer import (
    BEGIN_WORD,
    END_WORD,
    SPECIAL_TOKENS,
    Tokenizer,
    word_byte_table,
)


@dataclass(frozen=True)
class FastTextConfig(StaticConfig):
    """The block `model`."""

    num_buckets: int  # into which n-grams are hashed
    min_n: int  # of the n-grams, in characters, with the marks < and > round the word
    max_n: int

    def __post_init__(self) -> None:
        super().__post_init__()
        check_positive(self, "num_buckets", "min_n", "max_n")
        if self.max_n < self.min_n:
            raise ValueError(f"longest is {self.max_n}, below shortest, {self.min_n}")


class FastTextModel(StaticVectors):
    """A table of words and one of n-grams: a word is the mean of its own vector and its n-grams', an unknown word of its n-grams' alone.

    The n-grams are those of the bytes that the reader keeps of a word (`word_bytes`): a longer word is known by its beginning.
    """

    handles_oov = True

    def __init__(self, config: FastTextConfig, *, vocab_size: int) -> None:
        super().__init__(config, vocab_size=vocab_size)
        self.ngram_embeddings = empty_embedding(config.num_buckets, config.hidden_size)

    def encode(self, batch: Batch) -> tuple[torch.Tensor, ...]:
        """The one layer, (B, T, D), from the n-grams of each distinct word."""
        assert (
            batch.byte_ids_UC is not None
            and batch.word_rows_BT is not None
            and isinstance(self.config, FastTextConfig)
        )
        hashes = [
            _ngram_buckets(row.tobytes(), self.config)
            for row in batch.byte_ids_UC.cpu().numpy().astype(np.int64)
        ]
        sizes_U = torch.tensor([len(some) for some in hashes], device=batch.ids_BT.device)
        flat = torch.tensor(
            [h for some in hashes for h in some], dtype=torch.long, device=batch.ids_BT.device
        )
        sums_UD = F.embedding_bag(
            flat, self.ngram_embeddings.weight, sizes_U.cumsum(0) - sizes_U, mode="sum"
        )
        known_BT = (batch.ids_BT != SPECIAL_TOKENS["word"].index("<unk>")).to(sums_UD.dtype)
        count_BT = (known_BT + sizes_U[batch.word_rows_BT]).clamp_min(1)
        return (
            (self.words(batch.ids_BT) * known_BT[..., None] + sums_UD[batch.word_rows_BT])
            / count_BT[..., None],
        )

    def modules_by_role(self) -> dict[str, torch.nn.Module]:
        """The tables, and no body."""
        return {
            "embedding": torch.nn.ModuleList([self.words, self.ngram_embeddings]),
            "body": torch.nn.ModuleList(),
        }


@functools.lru_cache(maxsize=200_000)
def _ngram_buckets(row: bytes, config: FastTextConfig) -> tuple[int, ...]:
    """The buckets of a word that is given as byte ids; a mark of a sentence has none."""
    from gensim.models.fasttext import ft_ngram_hashes

    ids = np.frombuffer(row, np.int64)
    ends = np.flatnonzero(ids == END_WORD)
    if ids[0] != BEGIN_WORD or not len(ends) or (ids[1 : ends[0]] > 256).any():
        return ()
    word = bytes((ids[1 : ends[0]] - 1).astype(np.uint8)).decode(errors="ignore")
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
    """Train the model's tables, from their starting values."""
    from gensim.models import FastText  # takes 1.5 s, which only training and n-grams pay

    assert isinstance(model, FastTextModel) and isinstance(model.config, FastTextConfig)
    config, words, marks = model.config, vocab_words(tokenizer), len(SPECIAL_TOKENS["word"])
    gensim_model = FastText(
        **gensim_options(settings, hidden_size=config.hidden_size, seed=seed),
        bucket=config.num_buckets,
        min_n=config.min_n,
        max_n=config.max_n,
    )
    gensim_model.build_vocab_from_freq(count_word_frequencies(text, words))
    for place, word in enumerate(words):
        if (
            len(word.encode()) > tokenizer.max_word_bytes - 2
        ):  # the reader cuts it: by its beginning it is known, in training too
            (row,) = word_byte_table([word], tokenizer.max_word_bytes).astype(np.int64)
            gensim_model.wv.buckets_word[place] = np.array(
                _ngram_buckets(row.tobytes(), config), np.uint32
            )
    gensim_model.wv.vectors_vocab[:] = model.words.weight[marks:].detach().numpy()
    gensim_model.wv.vectors_ngrams[:] = model.ngram_embeddings.weight.detach().numpy()
    train_gensim(gensim_model, text, tokenizer, settings, report)
    model.load_vectors(gensim_model.wv.vectors_vocab)
    with torch.no_grad():
        model.ngram_embeddings.weight.copy_(torch.from_numpy(gensim_model.wv.vectors_ngrams))


FAMILY = Family(
    name="fasttext",
    input_unit="words and their character n-grams",
    contextualizer="two tables, averaged",
    direction="a window within the sentence, without order",
    objective_description="which words stand near, against sampled ones",
    transfer_description="one vector a word",
    tokenizer_type="word",
    architecture_class=FastTextConfig,
    pretrain_class=NegativeSamplingSettings,
    build=FastTextModel,
    fit_static=fit_static,
)
