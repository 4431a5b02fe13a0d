"""word2vec, fastText and GloVe read the budgeted text and match gensim and sequential updates."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from gensim.models import FastText, Word2Vec
from scipy import sparse

from lineage.config.params import read_params
from lineage.data.task_data import TaskData
from lineage.errors import InputError
from lineage.evaluation.evaluate import evaluate_runs
from lineage.families import fasttext
from lineage.families.glove import (
    AdagradState,
    GlovePretrainSettings,
    adagrad_step,
    conflict_free_batches,
)
from lineage.networks.base import Encoder, Static
from lineage.networks.static import (
    StaticTrainingText,
    StaticVectors,
    sample_training_text,
    vocab_words,
)
from lineage.report.notes import format_notes
from lineage.study.checks import check_study
from lineage.synthetic import grammar
from lineage.synthetic.words import build_lexicon
from lineage.tasks.info import TaskInfo
from lineage.tokenizers.token_ids import encode_corpus
from lineage.tokenizers.tokenizer import SPECIAL_TOKENS
from lineage.tokenizers.train import train_tokenizer
from lineage.tokenizers.word_bytes import word_byte_table
from lineage.training.pretrain import TrainOutput, pretrain
from lineage.training.train_run import TrainContext
from tests.helpers import tiny
from tests.helpers.first_word import build_context

ROOT = Path(__file__).parent.parent
NUM_SPECIAL_TOKENS = len(SPECIAL_TOKENS["word"])


def sample_text(name: str, share: float = 1.0, seed: int = 3) -> StaticTrainingText:
    tokens = tiny.corpus(name)
    return sample_training_text(
        tokens, tiny.tokenizer(name), seed=seed, text_bytes=round(share * tokens.text_bytes)
    )


def fit_model(name: str, seed: int = 11, **changes: Any) -> Encoder:
    config = tiny.model_config(name, **changes)
    model = tiny.model(name, **changes)
    assert isinstance(config.family, Static)
    config.family.fit_static(
        model,
        sample_text(name),
        tiny.tokenizer(name),
        config.pretrain,
        seed=seed,
        report=lambda *_: None,
    )
    return model


@pytest.mark.parametrize("share", [0.3, 1.0, 2.4])
def test_the_byte_budget_ends_at_a_whole_sentence(share: float) -> None:
    tokens = tiny.corpus("word2vec")
    sampled = sample_text("word2vec", share)
    longest = (
        max(
            len(sentence.encode())
            for document in tiny.documents()
            for sentence in document.split(" . ")
        )
        + 4
    )
    assert 0 <= sampled.text_bytes - round(share * tokens.text_bytes) <= longest
    assert sampled.epochs == pytest.approx(share, abs=0.02)
    words = np.concatenate([s for document in sampled.documents for s in document])
    assert words.min() >= NUM_SPECIAL_TOKENS and words.max() < tiny.tokenizer("word2vec").vocab_size


def test_an_epoch_reads_every_sentence_once_in_random_order() -> None:
    tokenizer = tiny.tokenizer("word2vec")
    words = [*SPECIAL_TOKENS["word"], *vocab_words(tokenizer)]
    actual: list[str] = []
    for document in sample_text("word2vec").documents:
        actual += [" ".join(words[i] for i in sentence) for sentence in document]
    known = set(words)
    expected: list[str] = []
    for text in tiny.documents():
        sentences = [f"{sentence} .".split() for sentence in text.removesuffix(" .").split(" . ")]
        expected += [" ".join(word for word in words if word in known) for words in sentences]
    assert sorted(actual) == sorted(expected)
    assert [len(d) for d in sample_text("word2vec").documents] != [
        len(d) for d in sample_text("word2vec", seed=4).documents
    ]


@pytest.mark.parametrize("name", tiny.STATIC)
def test_the_same_seed_gives_the_same_vectors_and_another_seed_different_ones(name: str) -> None:
    first = fit_model(name)
    same_seed = fit_model(name)
    other_seed = fit_model(name, seed=12)
    for a, b in zip(first.parameters(), same_seed.parameters(), strict=True):
        assert torch.equal(a, b)
    assert not torch.equal(next(first.parameters()), next(other_seed.parameters()))


@pytest.mark.slow
@pytest.mark.parametrize("name", tiny.STATIC)
def test_words_of_the_same_topic_are_more_similar_than_words_of_two_topics(name: str) -> None:
    documents = tuple(
        grammar.generate_documents(500, seed=3, grammar_seed=grammar.DEFAULT_GRAMMAR_SEED)
    )
    config = tiny.model_config(
        name,
        tokenizer={"vocab_size": 1200},
        architecture={"hidden_size": 30},
        pretrain={} if name == "glove" else {"learning_rate": 0.05},
    )
    tokenizer = train_tokenizer(documents, config.tokenizer, tokenizer_type="word", language="en")
    tokens = encode_corpus(documents, tokenizer)
    model = config.family.build(config.architecture, vocab_size=tokenizer.vocab_size)
    model.init_weights(torch.Generator().manual_seed(1))
    training_text = sample_training_text(
        tokens, tokenizer, seed=1, text_bytes=2 * tokens.text_bytes
    )
    assert isinstance(config.family, Static) and isinstance(model, StaticVectors)
    config.family.fit_static(
        model, training_text, tokenizer, config.pretrain, seed=1, report=lambda *_: None
    )
    token_ids = {word: NUM_SPECIAL_TOKENS + i for i, word in enumerate(vocab_words(tokenizer))}
    topics = [
        [token_ids[n] for n in topic.nouns if n in token_ids][:8]
        for topic in build_lexicon(grammar.DEFAULT_GRAMMAR_SEED).topics
    ]
    assert sum(map(len, topics)) > 60
    topic_of_word = np.repeat(np.arange(len(topics)), [len(t) for t in topics])
    vectors = model.words.weight.detach()[[i for topic in topics for i in topic]]
    vectors = torch.nn.functional.normalize(vectors - vectors.mean(0), dim=-1).numpy()
    cosines = vectors @ vectors.T
    is_same_topic = topic_of_word[:, None] == topic_of_word[None]
    assert (
        cosines[is_same_topic & ~np.eye(len(topic_of_word), dtype=bool)].mean()
        > cosines[~is_same_topic].mean() + 0.1
    )


def test_the_unknown_word_has_the_mean_vector_of_the_rarest_words() -> None:
    model = fit_model("word2vec")
    assert isinstance(model, StaticVectors)
    unknown = model.words.weight[SPECIAL_TOKENS["word"].index("<unk>")]
    torch.testing.assert_close(unknown, model.words.weight[-100:].mean(0))


@pytest.mark.parametrize("algorithm", ["skip_gram", "cbow"])
def test_word2vec_equals_gensim_called_directly(algorithm: str) -> None:
    """From the same initial vectors, gensim gives exactly the same numbers."""
    model = fit_model("word2vec", pretrain={"algorithm": algorithm})
    training_text = sample_text("word2vec")
    start = tiny.model("word2vec")
    words = vocab_words(tiny.tokenizer("word2vec"))
    settings = tiny.model_config("word2vec").pretrain
    sentences: list[list[str]] = []
    for document in training_text.documents:
        sentences += [[words[i - NUM_SPECIAL_TOKENS] for i in sentence] for sentence in document]
    gensim_model = Word2Vec(
        vector_size=start.config.hidden_size, window=settings.window, negative=settings.num_negatives, sg=int(algorithm == "skip_gram"), workers=1,  # type: ignore[union-attr]
        seed=11, min_count=1, sample=settings.subsample, alpha=settings.learning_rate, min_alpha=settings.min_learning_rate, sorted_vocab=0,
    )  # fmt: skip
    gensim_model.build_vocab_from_freq(
        {w: max(1, sum(s.count(w) for s in sentences)) for w in words}
    )
    gensim_model.wv.vectors[:] = start.words.weight[NUM_SPECIAL_TOKENS:].detach().numpy()  # type: ignore[union-attr, operator, index]
    gensim_model.train(sentences, total_examples=len(sentences), epochs=1)
    np.testing.assert_array_equal(
        gensim_model.wv.vectors, model.words.weight[NUM_SPECIAL_TOKENS:].detach().numpy()
    )  # type: ignore[union-attr, operator, index]


def test_fasttext_vectors_equal_those_of_gensim_also_for_unknown_words() -> None:
    model = fit_model("fasttext")
    tokenizer = tiny.tokenizer("fasttext")
    config = tiny.checkpoint("fasttext").architecture
    words = vocab_words(tokenizer)
    gensim_model = FastText(
        vector_size=config.hidden_size,
        bucket=config.num_buckets,
        min_n=config.min_n,
        max_n=config.max_n,
        min_count=1,
        sorted_vocab=0,
    )
    gensim_model.build_vocab_from_freq(dict.fromkeys(words, 1))
    gensim_model.wv.vectors_vocab[:] = model.words.weight[NUM_SPECIAL_TOKENS:].detach().numpy()  # type: ignore[union-attr, operator, index]
    gensim_model.wv.vectors_ngrams[:] = model.ngram_embeddings.weight.detach().numpy()  # type: ignore[union-attr, operator]
    gensim_model.wv.adjust_vectors()
    query_words = [
        words[8],
        words[-1],
        "zwölfzylinder",
        "x",
        words[5],
    ]  # no full stop, because it would end a sentence
    batch = tokenizer.collate([tokenizer.encode(" ".join(query_words)), tokenizer.encode(words[3])])
    with torch.inference_mode():
        (layer,) = model.encode(batch)
    for position, word in enumerate(query_words, 1):
        np.testing.assert_allclose(
            layer[0, position].numpy(), gensim_model.wv[word], atol=1e-6, err_msg=word
        )


def test_fasttext_trains_on_the_beginning_of_a_word_above_max_word_bytes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    tokenizer = train_tokenizer(
        ["საქართველოსრესპუბლიკისმთავრობა ist sehr lang"] * 3,
        tiny.model_config("fasttext").tokenizer,
        tokenizer_type="word",
        language="ka",
    )
    model = tiny.model("fasttext")
    settings = tiny.model_config("fasttext").pretrain
    trained_buckets = list[tuple[int, ...]]()
    config = tiny.checkpoint("fasttext").architecture
    words = vocab_words(tokenizer)
    model = fasttext.FastTextModel(config, vocab_size=tokenizer.vocab_size)
    monkeypatch.setattr(
        fasttext,
        "train_gensim",
        lambda gensim_model, *_: trained_buckets.extend(
            tuple(map(int, buckets)) for buckets in gensim_model.wv.buckets_word
        ),
    )
    training_text = sample_training_text(
        encode_corpus([" ".join(words)], tokenizer), tokenizer, seed=1, text_bytes=60
    )
    fasttext.fit_static(model, training_text, tokenizer, settings, seed=1, report=lambda *_: None)
    rows = word_byte_table(words, tokenizer.max_word_bytes).astype(np.int64)
    assert max(len(word.encode()) for word in words) > tokenizer.max_word_bytes
    assert trained_buckets == [fasttext._ngram_buckets(row.tobytes(), config) for row in rows]


def test_batches_without_a_common_word_equal_single_updates() -> None:
    rng = np.random.default_rng(1)
    counts = sparse.random_array(
        (30, 30), density=0.3, rng=rng, data_sampler=lambda size: rng.random(size) * 50 + 0.1
    ).tocoo()
    settings = GlovePretrainSettings(window=2, x_max=10.0, alpha=0.75, epochs=1, learning_rate=0.05)
    batched, one_by_one = (
        AdagradState.initial(np.random.default_rng(2).random((2, 30, 4)) - 0.5, np.zeros((2, 30)))
        for _ in range(2)
    )
    records: list[int] = []
    for batch in conflict_free_batches(counts, rng):
        assert len(set(counts.row[batch])) == len(batch) == len(set(counts.col[batch]))
        adagrad_step(batched, counts.row[batch], counts.col[batch], counts.data[batch], settings)
        for record in batch:
            adagrad_step(
                one_by_one,
                counts.row[[record]],
                counts.col[[record]],
                counts.data[[record]],
                settings,
            )
        records += batch.tolist()
    assert sorted(records) == list(range(counts.nnz))
    np.testing.assert_allclose(batched.vectors_2VD, one_by_one.vectors_2VD, atol=1e-13)
    np.testing.assert_allclose(batched.biases_2V, one_by_one.biases_2V, atol=1e-13)


def pretrain_static(name: str, folder: Path, *, share: float, progress: list[float]) -> TrainOutput:
    """Pretrain with a budget of `share` epochs."""
    tokens = tiny.corpus(name)
    params = read_params(ROOT / "params.yaml")
    tokens.save(folder, "train")
    budget = replace(params.budget, text_bytes=round(share * tokens.text_bytes))
    params = replace(params, budget=budget)
    context = TrainContext(
        tiny.CPU, None, Path("unused"), 99, lambda done, _: progress.append(done)
    )  # type: ignore[arg-type]
    return pretrain(tiny.checkpoint(name), folder, params, context)


@pytest.mark.parametrize("name", tiny.STATIC)
def test_static_pretraining_has_no_curve_but_reports_its_budget(name: str, tmp_path: Path) -> None:
    progress: list[float] = []
    outcome = pretrain_static(name, tmp_path, share=0.5, progress=progress)
    assert outcome.status == "ok" and len(outcome.curve.to_frame()) == 0 and progress
    assert outcome.budget_used.text_bytes == pytest.approx(
        tiny.corpus(name).text_bytes // 2, rel=0.02
    )
    assert outcome.budget_used.body_parameters == 0
    assert outcome.budget_used.train_flops is None
    assert outcome.budget_used.steps is None


def test_glove_counts_the_text_once_whatever_the_number_of_epochs(tmp_path: Path) -> None:
    """GloVe's program does the same: `x_max` is a count, and a second pass adds no information."""
    outcomes = {
        (name, share): pretrain_static(name, tmp_path, share=share, progress=[])
        for name in ("glove", "word2vec")
        for share in (1.0, 2.4)
    }
    one_epoch = outcomes["glove", 1.0]
    several_epochs = outcomes["glove", 2.4]
    assert all(
        torch.equal(a, b)
        for a, b in zip(
            one_epoch.model.parameters(), several_epochs.model.parameters(), strict=True
        )
    )
    assert one_epoch.budget_used == several_epochs.budget_used
    assert several_epochs.budget_used.epochs == pytest.approx(1.0)
    assert outcomes["word2vec", 2.4].budget_used.epochs == pytest.approx(2.4, abs=0.02)


@pytest.mark.parametrize("name", tiny.STATIC)
def test_minimal_pairs_are_not_applicable_to_static_families(name: str, tmp_path: Path) -> None:
    info = TaskInfo(
        name="pairs", kind="minimal_pairs", labels=[], metric=["accuracy"], language="en"
    )
    pairs = pd.DataFrame({"id": ["0"], "good": ["a b"], "bad": ["b a"], "group": ["x"]})
    context = build_context(name, TaskData(info, {"test": pairs}))
    rows, predictions, *_ = evaluate_runs(
        context,
        [*tiny.list_runs(tiny.task_info("minimal_pairs"), ("pretrained",), ("all",), (0,))],
        cache_dir=tmp_path,
        report_progress=lambda *_: None,
    )
    assert [(r.status, r.value) for r in rows] == [("not_applicable", None)]
    assert "no probability" in format_notes(rows[0].reason)
    assert len(predictions) == 0


def test_a_static_family_cannot_be_adapted() -> None:
    params = read_params(ROOT / "params.yaml")
    grid = replace(params.grid, models=("word2vec",), adapt_models=("word2vec",))
    with pytest.raises(InputError, match=r"grid\.adapt_models: word2vec has no language model"):
        check_study(replace(params, grid=grid))


@pytest.mark.parametrize("subsample", [-0.001, 1.0, 5.0])
def test_an_invalid_subsample_is_refused(subsample: float) -> None:
    with pytest.raises(InputError, match="subsample is"):
        tiny.model_config("word2vec", pretrain={"subsample": subsample})


def test_a_long_text_without_full_stops_is_split_and_read_completely() -> None:
    tokenizer = tiny.tokenizer("word2vec")
    word = vocab_words(tokenizer)[5]
    tokens = encode_corpus([" ".join([word] * 25_000)], tokenizer)
    sampled = sample_training_text(tokens, tokenizer, seed=1, text_bytes=tokens.text_bytes)
    assert [len(s) for s in sampled.documents[0]] == [10_000, 10_000, 5_000], (
        "gensim ignores what a sentence has beyond 10,000 words"
    )
