"""ULMFiT can normalize text with fastai's rules, which write case and repetitions as tokens.

Words, bytes and sentences remain those of the original text.
"""

import dataclasses
import random
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch

from lineage.data.task_data import TaskData
from lineage.errors import InputError
from lineage.methods.encoder import EncoderUnderTest, EvalContext
from lineage.methods.encoding import encode_word_in_context
from lineage.methods.word_vectors import embed_words
from lineage.tasks.info import TaskInfo
from lineage.tokenizers.normalization import normalize_fastai
from lineage.tokenizers.token_ids import encode_corpus
from lineage.tokenizers.tokenizer import Tokenizer, TokenizerSettings
from lineage.tokenizers.train import train_tokenizer
from lineage.training.adapt import find_new_words
from tests.helpers import tiny

RAW = "The Cat saw NASA!!! It was sooooo GOOD. Is it so so so so far?\n\nYes: I said 5000 &lt; x/y"
NORMALIZED = ("xxmaj the xxmaj cat saw xxup nasa xxrep 3 ! xxmaj it was s xxrep 5 o xxup good. xxmaj is it xxwrep 4 so far?\n\n"
        "xxmaj yes: i said 5 xxrep 3 0 < x / y")  # fmt: skip


@pytest.mark.parametrize(("raw", "expected"), [
    ("", ""),
    (" \n ", ""),
    ("Ann", "xxmaj ann"),
    ("I saw A B OK", "i saw a b xxup ok"),
    ("iPhone \"The McDonald U.S. A-1 3D", 'iphone "the mcdonald xxup u.s. xxup a-1 3d'),
    ("aa aaa", "aa xxrep 3 a"),
    ("no no No no", "no no xxmaj no no"),
    ("no no no.", "xxwrep 3 no ."),
    ("a #1  c\\d", "a # 1 c \\ d"),
    ("it&#39;s 3 @.@ 5 <br />&eacute; \\n wait...", "it&'s 3.5 \n\u00e9 \n wait \u2026"),  # fastai's rule leaves the &
    ("\u0130 \u03a3 \u039f\u03a3", "i\u0307 \u03c3 \u03bf\u03c2"),
    ("\u5317\u4eac\u662f\u4e2d\u56fd\u7684\u9996\u90fd\u3002", "\u5317\u4eac\u662f\u4e2d\u56fd\u7684\u9996\u90fd\u3002"),
    ("\u4ed6\u8bf4\u54c8\u54c8\u54c8\uff01", "\u4ed6\u8bf4 xxrep 3 \u54c8 \uff01"),
    ("xxmaj <unk>", "xxmaj <unk>"),
    (RAW, NORMALIZED),
])  # fmt: skip
def test_case_and_repetitions_become_tokens(raw: str, expected: str) -> None:
    normalized = normalize_fastai(raw)
    assert normalized.text == expected
    assert len(normalized.starts) == len(normalized.ends) == len(expected)
    assert (np.diff(normalized.starts) >= 0).all()


FRAGMENTS = [" ", " ", "  ", "\n", "a", "b", "ab", "the", "The", "NASA", "U.S.", "I", "\u00c9", "\u0130", "\u0391\u03a3", "x\u03a3", "aaaa", "!!!",
         "...", "....", "/", "#", "\\", "&amp;", "&lt;", "&#233;", "#39;", "quot;", "<br />", "\\n", '\\"', " @-@ ", "nbsp;", "\u4e2d\u6587",
         "\u54c8\u54c8\u54c8", "2000", '"', "iPhone", "-", "a a a", "\t", "\u00a0"]  # fmt: skip
RULES = (
    "fix_html",
    "replace_rep",
    "replace_wrep",
    "spec_add_spaces",
    "rm_useless_spaces",
    "replace_all_caps",
    "replace_maj",
)


@pytest.mark.slow
def test_random_text_is_normalized_exactly_as_by_fastai() -> None:
    core = pytest.importorskip(
        "fastai.text.core", reason="fastai is not installed: benchmarks/requirements.txt has it"
    )
    rules = [getattr(core, name) for name in RULES]
    rng = random.Random(1)
    num_changed = 0
    for _ in range(5000):
        raw = "".join(rng.choice(FRAGMENTS) for _ in range(rng.randint(0, 18)))
        expected = raw
        for rule in rules:
            expected = rule(expected)
        expected = core.lowercase(expected, add_bos=False)
        assert normalize_fastai(raw).text == expected, repr(raw)
        num_changed += "xx" in expected
    assert num_changed > 2000, "otherwise the test shows little"
    assert [*core.defaults.text_proc_rules] == [*rules, core.lowercase], (
        "fastai has exactly these rules"
    )


def train_fastai_tokenizer(**overrides: Any) -> Tokenizer:
    settings = TokenizerSettings(**{"vocab_size": 2000, "normalizer": "fastai", **overrides})
    return train_tokenizer(
        [*tiny.documents(), RAW, RAW], settings, tokenizer_type="word", language="en"
    )


def tokens_of(tokenizer: Tokenizer, ids: Any) -> list[str]:
    return [tokenizer.backend_tokenizer.id_to_token(int(i)) for i in ids]


def test_a_marker_token_precedes_its_word_has_its_offsets_and_no_bytes() -> None:
    tokenizer = train_fastai_tokenizer()
    encoded = tokenizer.encode(RAW)
    corpus = encode_corpus([RAW], tokenizer)
    assert list(encoded.words[:12]) == [
        "<S>",
        "xxmaj",
        "the",
        "xxmaj",
        "cat",
        "saw",
        "xxup",
        "nasa",
        "xxrep",
        "3",
        "!",
        "</S>",
    ]
    assert tokens_of(tokenizer, encoded.ids) == list(encoded.words), "no token is unknown"
    assert list(corpus.ids) == list(encoded.ids)
    for word, raw in (("nasa", "NASA"), ("!", "!!!"), ("o", "ooooo"), ("good", "GOOD"), ("so", "so so so so"), ("0", "000"), ("<", "&lt;"),
                      ("xxup", "N"), ("xxrep", "!!!"), ("3", "!!!"), ("xxwrep", "so so so so")):  # fmt: skip
        start, end = encoded.offsets[encoded.words.index(word)]
        assert RAW[start:end].strip() == raw, word
    marker_positions = [
        position
        for position, word in enumerate(encoded.words)
        if word.startswith("xx") or encoded.words[position - 1] in ("xxrep", "xxwrep")
    ]
    assert len(marker_positions) == 15 and not corpus.byte_counts[marker_positions].any()
    assert corpus.text_bytes == len(RAW.encode()) and not tokenizer.lossless, (
        "bits per byte refer to the raw text, which cannot be restored"
    )


def test_sentences_begin_with_the_marker_of_their_first_word() -> None:
    tokenizer = train_fastai_tokenizer()
    plain_tokenizer = train_fastai_tokenizer(normalizer=None)
    encoded = tokenizer.encode(RAW)
    first_words = [
        encoded.words[position + 1] for position, word in enumerate(encoded.words) if word == "<S>"
    ]
    assert first_words == ["xxmaj"] * 4 and plain_tokenizer.encode(RAW).words.count("<S>") == 4


def test_the_vector_of_a_word_covers_its_own_tokens() -> None:
    tokenizer = train_fastai_tokenizer()
    words = ["Ann", "saw", "NASA", "sooooo", "so", "so", "so", "."]
    expected = (
        ["xxmaj", "ann"],
        ["saw"],
        ["xxup", "nasa"],
        ["s", "xxrep", "5", "o"],
        *[["xxwrep", "3", "so"]] * 3,
        ["."],
    )
    for target, tokens in enumerate(expected):
        item = encode_word_in_context(words, target, tokenizer, max_length=None, language="en")
        assert [item.encoded.words[position] for position in item.word_pieces[0][:, 0]] == tokens


def test_a_case_marker_alone_does_not_make_a_word_known() -> None:
    data = TaskData(
        TaskInfo(name="x", kind="word_similarity", language="en", folds=None),
        {"test": pd.DataFrame({"words": [("a", "b")]})},
    )
    checkpoint = dataclasses.replace(tiny.checkpoint("ulmfit"), tokenizer=train_fastai_tokenizer())
    encoder = EncoderUnderTest(
        EvalContext(
            checkpoint, data, tiny.model_config("ulmfit").evaluate, 0, 1000, "fp32", tiny.CPU
        ),
        "random",
    )
    _, is_known = embed_words(encoder, ["Cat", "NASA", "saw", "zyzzyva", "Zyzzyva", "ZYZZYVA"])
    assert is_known.tolist() == [True] * 3 + [False] * 3


def test_new_words_are_collected_after_normalization() -> None:
    tokenizer = train_fastai_tokenizer()
    new_words = find_new_words(
        ["Zebras saw Zebras", "ZEBRAS! quokkas"], tokenizer, max_words=9, min_frequency=1
    )
    assert new_words == ["zebras", "quokkas"]
    extended = tokenizer.with_added_words(new_words)
    assert extended.normalizer == "fastai" and extended.encode("Zebras").words == (
        "<S>",
        "xxmaj",
        "zebras",
        "</S>",
    )
    assert extended.encode("Zebras").ids[2] == tokenizer.vocab_size


def test_a_saved_tokenizer_keeps_its_rules_and_a_backward_one_reverses_the_text(
    tmp_path: Path,
) -> None:
    tokenizer = train_fastai_tokenizer()
    tokenizer.save(tmp_path)
    assert list(Tokenizer.load(tmp_path).encode(RAW).ids) == list(tokenizer.encode(RAW).ids)
    backward = train_fastai_tokenizer(direction="backward")
    assert backward.encode(RAW).words == tokenizer.encode(RAW).words[::-1]
    forward_corpus = encode_corpus([RAW], tokenizer)
    backward_corpus = encode_corpus([RAW], backward)
    assert list(forward_corpus.ids) == list(backward_corpus.ids[::-1])
    assert list(forward_corpus.byte_counts) == list(backward_corpus.byte_counts[::-1])


def test_the_score_of_a_text_includes_its_marker_tokens() -> None:
    tokenizer = train_fastai_tokenizer()
    model = tiny.model("ulmfit").eval()
    score_texts = tiny.model_config("ulmfit").family.score_texts
    assert score_texts is not None
    with torch.no_grad():
        model.body.embedding_weight = torch.nn.Parameter(
            torch.randn(
                tokenizer.vocab_size,
                model.hidden_sizes()[-1],
                generator=torch.Generator().manual_seed(1),
            )
        )  # type: ignore[union-attr]
        model.softmax_bias = torch.nn.Parameter(torch.zeros(tokenizer.vocab_size))
    nats, counts = score_texts(model, tokenizer, ["the cat", "The cat"], limit=None).T
    assert counts.tolist() == [3, 4] and nats[0] != nats[1]
    ids = torch.from_numpy(tokenizer.encode("The cat").ids)
    log_p = torch.log_softmax(
        model.logits(model.encode(tokenizer.collate([tokenizer.encode("The cat")]))[-1][0]), -1
    )
    assert nats[1] == pytest.approx(float(log_p[torch.arange(4), ids[1:]].sum().detach()), rel=1e-5)


def test_the_rules_do_not_change_chinese_words() -> None:
    text = "\u5317\u4eac\u662f\u4e2d\u56fd\u7684\u9996\u90fd\u3002\u5979\u572824\u5c81\u65f6\u53bb\u4e86\u90a3\u91cc\u3002"
    tokenizers = [
        train_tokenizer(
            [text, text],
            TokenizerSettings(vocab_size=99, normalizer=normalizer),
            tokenizer_type="word",
            language="zh",
        )
        for normalizer in (None, "fastai")
    ]  # type: ignore[arg-type]
    expected, actual = (tokenizer.encode(text) for tokenizer in tokenizers)
    assert expected.words == actual.words
    assert expected.offsets.tolist() == actual.offsets.tolist()
    assert expected.ids.tolist() == actual.ids.tolist()


@pytest.mark.parametrize(("name", "tokenizer", "message"), [
    ("ulmfit", {"normalizer": "ftfy"}, "tokenizer.normalizer: ulmfit supports only fastai"),
    ("gpt", {"normalizer": "fastai"}, "tokenizer.normalizer: gpt supports only ftfy"),
    ("elmo", {"normalizer": "fastai"}, "tokenizer.normalizer: elmo supports none"),
    ("ulmfit", {"normalizer": "fastai", "lowercase": True}, "already lowers case"),
])  # fmt: skip
def test_a_normalizer_that_a_family_does_not_support_is_refused(
    name: str, tokenizer: dict[str, Any], message: str
) -> None:
    with pytest.raises(InputError, match=message):
        tiny.model_config(name, tokenizer=tokenizer)


def test_the_mechanism_names_fastai_s_rules() -> None:
    assert (
        tiny.model_config("ulmfit", tokenizer={"normalizer": "fastai"}).mechanism["unit"]
        == "words, by fastai's rules"
    )
