"""fastText: word2vec in which a word is the mean of its own vector and its character n-grams' (Bojanowski et al. 2017), through gensim."""

import functools
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from torch.nn import functional as F

from lineage.batch import Batch
from lineage.family import Encoder, Family, embedding
from lineage.records import positive
from lineage.text.tokenization import BEGIN_WORD, END_WORD, MARKS, Reader, type_table
from lineage.training.neighbours import Neighbours, options, train
from lineage.training.static import StaticConfig, StaticVectors, Text, frequencies, vocabulary_words


@dataclass(frozen=True)
class Config(StaticConfig):
    """The block `model`."""

    buckets: int  # into which n-grams are hashed
    shortest: int  # of the n-grams, in characters, with the marks < and > round the word
    longest: int

    def __post_init__(self) -> None:
        super().__post_init__()
        positive(self, "buckets", "shortest", "longest")
        if self.longest < self.shortest:
            raise ValueError(f"longest is {self.longest}, below shortest, {self.shortest}")


class Model(StaticVectors):
    """A table of words and one of n-grams: a word is the mean of its own vector and its n-grams', an unknown word of its n-grams' alone.

    The n-grams are those of the bytes that the reader keeps of a word (`word_bytes`): a longer word is known by its beginning.
    """

    spells = True

    def __init__(self, config: Config, *, vocabulary: int) -> None:
        super().__init__(config, vocabulary=vocabulary)
        self.ngrams = embedding(config.buckets, config.width)

    def encode(self, batch: Batch) -> tuple[torch.Tensor, ...]:
        """The one layer, (B, T, D), from the n-grams of each distinct word."""
        assert batch.characters_UC is not None and batch.words_BT is not None and isinstance(self.config, Config)
        hashes = [_hashes(row.tobytes(), self.config) for row in batch.characters_UC.cpu().numpy().astype(np.int64)]
        sizes_U = torch.tensor([len(some) for some in hashes], device=batch.ids_BT.device)
        flat = torch.tensor([h for some in hashes for h in some], dtype=torch.long, device=batch.ids_BT.device)
        sums_UD = F.embedding_bag(flat, self.ngrams.weight, sizes_U.cumsum(0) - sizes_U, mode="sum")
        known_BT = (batch.ids_BT != MARKS["word"].index("<unk>")).to(sums_UD.dtype)
        count_BT = (known_BT + sizes_U[batch.words_BT]).clamp_min(1)
        return ((self.words(batch.ids_BT) * known_BT[..., None] + sums_UD[batch.words_BT]) / count_BT[..., None],)

    def parts(self) -> dict[str, torch.nn.Module]:
        """The tables, and no body."""
        return {"embedding": torch.nn.ModuleList([self.words, self.ngrams]), "body": torch.nn.ModuleList()}


@functools.lru_cache(maxsize=200_000)
def _hashes(row: bytes, config: Config) -> tuple[int, ...]:
    """The buckets of a word that is given as byte ids; a mark of a sentence has none."""
    from gensim.models.fasttext import ft_ngram_hashes

    ids = np.frombuffer(row, np.int64)
    ends = np.flatnonzero(ids == END_WORD)
    if ids[0] != BEGIN_WORD or not len(ends) or (ids[1 : ends[0]] > 256).any():
        return ()
    word = bytes((ids[1 : ends[0]] - 1).astype(np.uint8)).decode(errors="ignore")
    return tuple(ft_ngram_hashes(word, config.shortest, config.longest, config.buckets))


def fit(model: Encoder, text: Text, reader: Reader, settings: Neighbours, *, seed: int, report: Callable[[float, str], None]) -> None:
    """Train the model's tables, from their starting values."""
    from gensim.models import FastText  # takes 1.5 s, which only training and n-grams pay

    assert isinstance(model, Model) and isinstance(model.config, Config)
    config, words, marks = model.config, vocabulary_words(reader), len(MARKS["word"])
    found = FastText(**options(settings, width=config.width, seed=seed), bucket=config.buckets, min_n=config.shortest, max_n=config.longest)
    found.build_vocab_from_freq(frequencies(text, words))
    for place, word in enumerate(words):
        if len(word.encode()) > reader.word_bytes - 2:  # the reader cuts it: by its beginning it is known, in training too
            (row,) = type_table([word], reader.word_bytes).astype(np.int64)
            found.wv.buckets_word[place] = np.array(_hashes(row.tobytes(), config), np.uint32)
    found.wv.vectors_vocab[:] = model.words.weight[marks:].detach().numpy()
    found.wv.vectors_ngrams[:] = model.ngrams.weight.detach().numpy()
    train(found, text, reader, settings, report)
    model.place(found.wv.vectors_vocab)
    with torch.no_grad():
        model.ngrams.weight.copy_(torch.from_numpy(found.wv.vectors_ngrams))


FAMILY = Family(
    name="fasttext",
    unit="words and their character n-grams",
    extractor="two tables, averaged",
    direction="a window within the sentence, without order",
    objective_text="which words stand near, against sampled ones",
    transfer_text="one vector a word",
    tokenizer="word",
    model=Config,
    pretrain=Neighbours,
    build=Model,
    fit=fit,
)
