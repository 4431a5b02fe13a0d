"""word2vec: skip-gram or CBOW with negative sampling (Mikolov et al. 2013), through gensim."""

from collections.abc import Callable

from lineage.families.gensim_training import (
    PRETRAIN_DEFAULTS,
    NegativeSamplingSettings,
    gensim_options,
    train_gensim,
)
from lineage.networks.base import Encoder, Static, finetune_defaults
from lineage.networks.static import (
    NUM_SPECIAL_TOKENS,
    StaticConfig,
    StaticTrainingText,
    StaticVectors,
    count_word_frequencies,
    vocab_words,
)
from lineage.tokenizers.tokenizer import Tokenizer


def fit_static(
    model: Encoder,
    text: StaticTrainingText,
    tokenizer: Tokenizer,
    settings: NegativeSamplingSettings,
    *,
    seed: int,
    report: Callable[[float, str], None],
) -> None:
    from gensim.models import Word2Vec  # takes 1.5 s to import, and only training needs it

    assert isinstance(model, StaticVectors)
    words = vocab_words(tokenizer)
    options = gensim_options(settings, hidden_size=model.config.hidden_size, seed=seed)
    gensim_model = Word2Vec(**options)
    gensim_model.build_vocab_from_freq(count_word_frequencies(text, words))
    assert gensim_model.wv.index_to_key == words
    gensim_model.wv.vectors[:] = model.words.weight[NUM_SPECIAL_TOKENS:].detach().numpy()
    train_gensim(gensim_model, text, words, report)
    model.load_vectors(gensim_model.wv.vectors)


FAMILY = Static(
    name="word2vec",
    tokenizer_type="word",
    architecture_class=StaticConfig,
    pretrain_class=NegativeSamplingSettings,
    build=StaticVectors,
    fit_static=fit_static,
    defaults={
        "architecture": {"hidden_size": 128},
        "pretrain": PRETRAIN_DEFAULTS,
        "evaluate": {"finetune": finetune_defaults(0.0003, 0.001, 0.004, 0.016)},
    },
)
