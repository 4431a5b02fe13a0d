"""word2vec, fastText and GloVe: the text they read, their vectors, and what they do not have."""

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from gensim.models import FastText, Word2Vec
from scipy import sparse

from lineage.config.checks import check_study
from lineage.config.params import read_params
from lineage.data.task_data import TaskData
from lineage.errors import InputError
from lineage.evaluation.evaluate import evaluate_runs, list_runs
from lineage.models import fasttext
from lineage.models.base import Encoder, Static
from lineage.models.glove import (
    AdagradState,
    GlovePretrainSettings,
    adagrad_step,
    conflict_free_batches,
)
from lineage.models.static import (
    StaticTrainingText,
    StaticVectors,
    sample_training_text,
    vocab_words,
)
from lineage.report.notes import format_notes
from lineage.synthetic import grammar
from lineage.synthetic.words import build_lexicon
from lineage.tokenizers.token_ids import encode_corpus
from lineage.tokenizers.tokenizer import SPECIAL_TOKENS
from lineage.tokenizers.train import train_tokenizer
from lineage.tokenizers.word_bytes import word_byte_table
from lineage.training.pretrain import TrainContext, TrainOutput, pretrain
from tests import tiny
from tests.test_transfer import setting

STATIC = ("word2vec", "fasttext", "glove")
ROOT = Path(__file__).parent.parent
M = len(SPECIAL_TOKENS["word"])


def text(name: str, share: float = 1.0, seed: int = 3) -> StaticTrainingText:
    tokens = tiny.tokens(name)
    return sample_training_text(
        tokens, tiny.reader(name), seed=seed, text_bytes=round(share * tokens.text_bytes)
    )


def fitted(name: str, seed: int = 11, **over: Any) -> Encoder:
    found, model = tiny.variant(name, **over), tiny.model(name, **over)
    assert isinstance(found.family, Static)
    found.family.fit_static(
        model, text(name), tiny.reader(name), found.pretrain, seed=seed, report=lambda *_: None
    )
    return model


@pytest.mark.parametrize("share", [0.3, 1.0, 2.4])
def test_the_budget_of_bytes_is_read_to_the_sentence(share: float) -> None:
    tokens, found = tiny.tokens("word2vec"), text("word2vec", share)
    longest = (
        max(
            len(sentence.encode())
            for document in tiny.documents()
            for sentence in document.split(" . ")
        )
        + 4
    )
    assert 0 <= found.text_bytes - round(share * tokens.text_bytes) <= longest
    assert found.epochs == pytest.approx(share, abs=0.02)
    words = np.concatenate([s for document in found.documents for s in document])
    assert words.min() >= M and words.max() < tiny.reader("word2vec").vocab_size


def test_a_whole_pass_reads_every_sentence_once_in_another_order() -> None:
    reader = tiny.reader("word2vec")
    words = [*SPECIAL_TOKENS["word"], *vocab_words(reader)]
    read = sorted(
        " ".join(words[i] for i in s) for document in text("word2vec").documents for s in document
    )
    known = set(words)
    written = sorted(
        " ".join(w for w in f"{s} .".split() if w in known)
        for d in tiny.documents()
        for s in d.removesuffix(" .").split(" . ")
    )
    assert read == written
    assert [len(d) for d in text("word2vec").documents] != [
        len(d) for d in text("word2vec", seed=4).documents
    ]


@pytest.mark.parametrize("name", STATIC)
def test_the_same_seed_gives_the_same_vectors_and_another_one_others(name: str) -> None:
    one, same, other = fitted(name), fitted(name), fitted(name, seed=12)
    for a, b in zip(one.parameters(), same.parameters(), strict=True):
        assert torch.equal(a, b)
    assert not torch.equal(next(one.parameters()), next(other.parameters()))


@pytest.mark.slow
@pytest.mark.parametrize("name", STATIC)
def test_words_of_one_topic_lie_closer_than_words_of_two(name: str) -> None:
    documents = tuple(
        grammar.generate_documents(500, seed=3, grammar_seed=grammar.DEFAULT_GRAMMAR_SEED)
    )
    found = tiny.variant(
        name,
        tokenizer={"vocab_size": 1200},
        architecture={"hidden_size": 30},
        pretrain={} if name == "glove" else {"learning_rate": 0.05},
    )
    reader = train_tokenizer(documents, found.tokenizer, tokenizer_type="word", language="en")
    tokens = encode_corpus(documents, reader)
    model = found.family.build(found.architecture, vocab_size=reader.vocab_size)
    model.init_weights(torch.Generator().manual_seed(1))
    read = sample_training_text(tokens, reader, seed=1, text_bytes=2 * tokens.text_bytes)
    assert isinstance(found.family, Static) and isinstance(model, StaticVectors)
    found.family.fit_static(model, read, reader, found.pretrain, seed=1, report=lambda *_: None)
    place = {word: M + i for i, word in enumerate(vocab_words(reader))}
    topics = [
        [place[n] for n in topic.nouns if n in place][:8]
        for topic in build_lexicon(grammar.DEFAULT_GRAMMAR_SEED).topics
    ]
    assert sum(map(len, topics)) > 60
    owner = np.repeat(np.arange(len(topics)), [len(t) for t in topics])
    vectors = model.words.weight.detach()[[i for topic in topics for i in topic]]
    vectors = torch.nn.functional.normalize(vectors - vectors.mean(0), dim=-1).numpy()
    cosines, same = vectors @ vectors.T, owner[:, None] == owner[None]
    assert cosines[same & ~np.eye(len(owner), dtype=bool)].mean() > cosines[~same].mean() + 0.1


def test_an_unknown_word_is_the_mean_of_the_rarest() -> None:
    model = fitted("word2vec")
    assert isinstance(model, StaticVectors)
    unknown = model.words.weight[SPECIAL_TOKENS["word"].index("<unk>")]
    torch.testing.assert_close(unknown, model.words.weight[-100:].mean(0))


@pytest.mark.parametrize("algorithm", ["skip_gram", "cbow"])
def test_word2vec_is_gensim_s_own(algorithm: str) -> None:
    """From the same start, gensim called by hand gives the same numbers."""
    model, read, start = (
        fitted("word2vec", pretrain={"algorithm": algorithm}),
        text("word2vec"),
        tiny.model("word2vec"),
    )
    words, settings = vocab_words(tiny.reader("word2vec")), tiny.variant("word2vec").pretrain
    sentences = [[words[i - M] for i in s] for document in read.documents for s in document]
    found = Word2Vec(
        vector_size=start.config.hidden_size, window=settings.window, negative=settings.num_negatives, sg=int(algorithm == "skip_gram"), workers=1,  # type: ignore[union-attr]
        seed=11, min_count=1, sample=settings.subsample, alpha=settings.learning_rate, min_alpha=settings.min_learning_rate, sorted_vocab=0,
    )  # fmt: skip
    found.build_vocab_from_freq({w: max(1, sum(s.count(w) for s in sentences)) for w in words})
    found.wv.vectors[:] = start.words.weight[M:].detach().numpy()  # type: ignore[union-attr, operator, index]
    found.train(sentences, total_examples=len(sentences), epochs=1)
    np.testing.assert_array_equal(found.wv.vectors, model.words.weight[M:].detach().numpy())  # type: ignore[union-attr, operator, index]


def test_fasttext_gives_a_word_the_vector_that_gensim_gives_it_unknown_words_too() -> None:
    model, reader, config = (
        fitted("fasttext"),
        tiny.reader("fasttext"),
        tiny.checkpoint("fasttext").architecture,
    )
    words = vocab_words(reader)
    theirs = FastText(
        vector_size=config.hidden_size,
        bucket=config.num_buckets,
        min_n=config.min_n,
        max_n=config.max_n,
        min_count=1,
        sorted_vocab=0,
    )
    theirs.build_vocab_from_freq(dict.fromkeys(words, 1))
    theirs.wv.vectors_vocab[:] = model.words.weight[M:].detach().numpy()  # type: ignore[union-attr, operator, index]
    theirs.wv.vectors_ngrams[:] = model.ngram_embeddings.weight.detach().numpy()  # type: ignore[union-attr, operator]
    theirs.wv.adjust_vectors()
    asked = [
        words[8],
        words[-1],
        "zwölfzylinder",
        "x",
        words[5],
    ]  # none of them a stop, which would end a sentence
    batch = reader.collate([reader.encode(" ".join(asked)), reader.encode(words[3])])
    with torch.inference_mode():
        (layer,) = model.encode(batch)
    for place, word in enumerate(asked, 1):
        np.testing.assert_allclose(
            layer[0, place].numpy(), theirs.wv[word], atol=1e-6, err_msg=word
        )


def test_a_word_that_is_longer_than_the_reader_s_is_known_by_its_beginning_in_training_too(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    reader = train_tokenizer(
        ["საქართველოსრესპუბლიკისმთავრობა ist sehr lang"] * 3,
        tiny.variant("fasttext").tokenizer,
        tokenizer_type="word",
        language="ka",
    )
    model, settings, seen = (
        tiny.model("fasttext"),
        tiny.variant("fasttext").pretrain,
        list[tuple[int, ...]](),
    )
    config, words = tiny.checkpoint("fasttext").architecture, vocab_words(reader)
    model = fasttext.FastTextModel(config, vocab_size=reader.vocab_size)
    monkeypatch.setattr(
        fasttext,
        "train_gensim",
        lambda found, *_: seen.extend(tuple(map(int, own)) for own in found.wv.buckets_word),
    )
    text_of = sample_training_text(
        encode_corpus([" ".join(words)], reader), reader, seed=1, text_bytes=60
    )
    fasttext.fit_static(model, text_of, reader, settings, seed=1, report=lambda *_: None)
    rows = word_byte_table(words, reader.max_word_bytes).astype(np.int64)
    assert max(len(word.encode()) for word in words) > reader.max_word_bytes
    assert seen == [fasttext._ngram_buckets(row.tobytes(), config) for row in rows]


def test_batches_without_a_common_word_are_the_same_as_one_record_after_another() -> None:
    rng = np.random.default_rng(1)
    counts = sparse.random_array(
        (30, 30), density=0.3, rng=rng, data_sampler=lambda size: rng.random(size) * 50 + 0.1
    ).tocoo()
    settings = GlovePretrainSettings(window=2, x_max=10.0, alpha=0.75, epochs=1, learning_rate=0.05)
    together, alone = (
        AdagradState.initial(np.random.default_rng(2).random((2, 30, 4)) - 0.5, np.zeros((2, 30)))
        for _ in range(2)
    )
    seen: list[int] = []
    for some in conflict_free_batches(counts, rng):
        assert len(set(counts.row[some])) == len(some) == len(set(counts.col[some]))
        adagrad_step(together, counts.row[some], counts.col[some], counts.data[some], settings)
        for r in some:
            adagrad_step(alone, counts.row[[r]], counts.col[[r]], counts.data[[r]], settings)
        seen += some.tolist()
    assert sorted(seen) == list(range(counts.nnz))
    np.testing.assert_allclose(together.vectors_2VD, alone.vectors_2VD, atol=1e-13)
    np.testing.assert_allclose(together.biases_2V, alone.biases_2V, atol=1e-13)


def pretrained(name: str, folder: Path, *, share: float, said: list[float]) -> TrainOutput:
    """With a budget of so many passes."""
    tokens, params = tiny.tokens(name), read_params(ROOT / "params.yaml")
    tokens.save(folder, "train")
    budget = type(params.budget)(
        **{**vars(params.budget), "text_bytes": round(share * tokens.text_bytes)}
    )
    params = type(params)(**{**vars(params), "budget": budget})
    conditions = TrainContext(tiny.CPU, None, Path("unused"), 99, lambda done, _: said.append(done))  # type: ignore[arg-type]
    return pretrain(tiny.checkpoint(name), folder, params, conditions)


@pytest.mark.parametrize("name", STATIC)
def test_the_pretraining_has_no_curve_and_says_what_it_spent(name: str, tmp_path: Path) -> None:
    said: list[float] = []
    outcome = pretrained(name, tmp_path, share=0.5, said=said)
    assert outcome.status == "ok" and len(outcome.curve.to_frame()) == 0 and said
    assert outcome.budget_used.text_bytes == pytest.approx(
        tiny.tokens(name).text_bytes // 2, rel=0.02
    )
    assert (
        outcome.budget_used.body_parameters == 0
        and outcome.budget_used.train_flops is None
        and outcome.budget_used.steps is None
    )


def test_what_counts_reads_a_text_once_however_many_passes_the_budget_has(tmp_path: Path) -> None:
    """As GloVe's program does: `x_max` is a number of counts, and two passes over a corpus say nothing of it that one did not."""
    found = {
        (name, share): pretrained(name, tmp_path, share=share, said=[])
        for name in ("glove", "word2vec")
        for share in (1.0, 2.4)
    }
    once, again = found["glove", 1.0], found["glove", 2.4]
    assert all(
        torch.equal(a, b)
        for a, b in zip(once.model.parameters(), again.model.parameters(), strict=True)
    )
    assert once.budget_used == again.budget_used and again.budget_used.epochs == pytest.approx(1.0)
    assert found["word2vec", 2.4].budget_used.epochs == pytest.approx(2.4, abs=0.02)


@pytest.mark.parametrize("name", STATIC)
def test_pairs_of_sentences_are_not_applicable(name: str, tmp_path: Path) -> None:
    facts = {
        "name": "pairs",
        "kind": "minimal_pairs",
        "answer": None,
        "labels": [],
        "metric": ["accuracy"],
        "max_tokens": 20,
        "language": "en",
    }
    pairs = pd.DataFrame({"id": ["0"], "good": ["a b"], "bad": ["b a"], "group": ["x"]})
    found = setting(name, TaskData(facts, {"test": pairs}))
    rows, predictions = evaluate_runs(
        found,
        [*list_runs(tiny.asked("minimal_pairs"), ("pretrained",), ("all",), (0,))],
        cache_dir=tmp_path,
        report_progress=lambda *_: None,
    )
    assert [(r.status, r.value) for r in rows] == [
        ("not_applicable", None)
    ] and "no probability" in format_notes(rows[0].reason)
    assert len(predictions) == 0


def test_a_static_family_cannot_be_adapted() -> None:
    params = read_params(ROOT / "params.yaml")
    grid = type(params.grid)(
        **{**vars(params.grid), "models": ("word2vec",), "adapt_models": ("word2vec",)}
    )
    with pytest.raises(InputError, match=r"grid\.adapt_models: word2vec has no language model"):
        check_study(type(params)(**{**vars(params), "grid": grid}))


@pytest.mark.parametrize("subsample", [-0.001, 1.0, 5.0])
def test_a_share_of_words_that_is_none_is_refused(subsample: float) -> None:
    with pytest.raises(InputError, match="subsample is"):
        tiny.variant("word2vec", pretrain={"subsample": subsample})


def test_a_text_without_stops_is_read_whole() -> None:
    reader = tiny.reader("word2vec")
    word = vocab_words(reader)[5]
    tokens = encode_corpus([" ".join([word] * 25_000)], reader)
    found = sample_training_text(tokens, reader, seed=1, text_bytes=tokens.text_bytes)
    assert [len(s) for s in found.documents[0]] == [10_000, 10_000, 5_000], (
        "gensim would leave out what is beyond"
    )
