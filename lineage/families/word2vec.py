"""word2vec: a word's vector from its neighbours, by skip-gram or CBOW with negative sampling (Mikolov et al. 2013), through gensim."""

from collections.abc import Callable

from lineage.family import Encoder, Family
from lineage.text.tokenization import MARKS, Reader
from lineage.training.neighbours import Neighbours, options, train
from lineage.training.static import StaticConfig, StaticVectors, Text, frequencies, vocabulary_words


def fit(model: Encoder, text: Text, reader: Reader, settings: Neighbours, *, seed: int, report: Callable[[float, str], None]) -> None:
    """Train the model's table, from its starting values."""
    from gensim.models import Word2Vec  # takes 1.5 s, which only training pays

    assert isinstance(model, StaticVectors)
    words = vocabulary_words(reader)
    found = Word2Vec(**options(settings, width=model.config.width, seed=seed))
    found.build_vocab_from_freq(frequencies(text, words))
    assert found.wv.index_to_key == words
    found.wv.vectors[:] = model.words.weight[len(MARKS["word"]) :].detach().numpy()
    train(found, text, reader, settings, report)
    model.place(found.wv.vectors)


FAMILY = Family(
    name="word2vec",
    unit="words",
    extractor="a table",
    direction="a window within the sentence, without order",
    objective_text="which words stand near, against sampled ones",
    transfer_text="one vector a word",
    tokenizer="word",
    model=StaticConfig,
    pretrain=Neighbours,
    build=StaticVectors,
    fit=fit,
)
