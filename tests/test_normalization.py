"""Text is normalized as for ULMFiT, with fastai's rules, and as for GPT-1.

Words, bytes and sentences remain those of the original text.
"""

import dataclasses
import hashlib
import random
import subprocess
import sys
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
from lineage.tokenizers.normalization import normalize_fastai, normalize_gpt1
from lineage.tokenizers.token_ids import encode_corpus
from lineage.tokenizers.tokenizer import Tokenizer, TokenizerSettings
from lineage.tokenizers.train import train_tokenizer
from lineage.training.adapt import find_new_words
from tests.helpers import tiny
from tests.helpers.tokenizers import GPT1_RAW, train_gpt_tokenizer

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
    ("elmo", {"normalizer": "ftfy"}, "tokenizer.normalizer: elmo supports none"),
    ("bert", {"end_of_word_suffix": True}, "end_of_word_suffix: bert"),
    ("ulmfit", {"normalizer": "fastai", "lowercase": True}, "already lowers case"),
])  # fmt: skip
def test_tokenizer_options_that_a_family_does_not_support_are_refused(
    name: str, tokenizer: dict[str, Any], message: str
) -> None:
    with pytest.raises(InputError, match=message):
        tiny.model_config(name, tokenizer=tokenizer)


ROOT = Path(__file__).parent.parent
GPT1_NORMALIZED = '" Well " - the " bank " , said \n Zoë & co... ( was it ? ! ) don\'t stop'
# the raw text of normalized words
GPT1_RAW_WORDS = {
    "Well": "Well",
    "-": "—",
    "bank": "bank",
    "said": "said",
    "&": "&amp;",
    "co...": "co…",
    "?": "?",
    "don't": "donâ€™t",
    "stop": "stop",
}


@pytest.mark.parametrize(
    ("raw", "normalized"),
    [
        (GPT1_RAW, GPT1_NORMALIZED),
        ("", ""),
        (" \n ", ""),
        ("--!!", "-- !!"),
        ("ＬＯＵＤ　ＮＯＩＳＥ", "LOUD NOISE"),
        ("a/b\\c_d|e~f", "a / b \\ c _ d | e ~ f"),
        ("3.5 a.m. it's a:b", "3.5 a.m. it's a:b"),
    ],
)
def test_text_is_repaired_and_punctuation_is_separated(raw: str, normalized: str) -> None:
    assert normalize_gpt1(raw).text == normalized
    assert normalize_gpt1(normalized).text == normalized


def test_offsets_of_every_word_point_into_the_raw_text() -> None:
    normalized = normalize_gpt1(GPT1_RAW)
    for word, raw in GPT1_RAW_WORDS.items():
        position = GPT1_NORMALIZED.index(word)
        ((start, end),) = normalized.to_raw_offsets(
            np.array([[position, position + len(word)]])
        ).tolist()
        assert GPT1_RAW[start:end] == raw
    assert (np.diff(normalized.starts) >= 0).all()
    assert len(normalized.starts) == len(normalized.ends) == len(GPT1_NORMALIZED)


@pytest.mark.parametrize("tokenizer_type", ["byte_bpe", "bpe", "wordpiece"])
def test_byte_counts_and_target_words_refer_to_the_raw_text(
    tokenizer_type: str, tmp_path: Path
) -> None:
    texts = [GPT1_RAW, *tiny.documents()[:5]]
    trained = train_gpt_tokenizer(tokenizer_type)
    trained.save(tmp_path)
    tokenizer = Tokenizer.load(tmp_path)
    corpus = encode_corpus(texts, tokenizer)
    assert corpus.text_bytes == sum(len(text.encode()) for text in texts)
    raw_corpus = encode_corpus([GPT1_RAW], tokenizer)
    assert raw_corpus.text_bytes == len(GPT1_RAW.encode()) and not tokenizer.lossless
    unnormalized_corpus = encode_corpus(
        [GPT1_RAW], train_gpt_tokenizer(tokenizer_type, normalizer=None)
    )
    assert raw_corpus.ids.tolist() != unnormalized_corpus.ids.tolist(), (
        "otherwise nothing was normalized"
    )
    words = ["“the", "bank”,", "donâ€™t", "—", "stop"]
    for target, expected_text in enumerate(('" the', 'bank " ,', "don't", "-", "stop")):
        item = encode_word_in_context(words, target, tokenizer, max_length=40, language="en")
        actual = [
            tokenizer.backend_tokenizer.id_to_token(int(token_id))
            for token_id in item.encoded.ids[item.word_pieces[0][:, 0]]
        ]
        expected = tokenizer.backend_tokenizer.encode(
            expected_text, add_special_tokens=False
        ).tokens
        assert "".join(actual).strip("Ġ") == "".join(expected).strip("Ġ")


def test_raw_and_normalized_text_have_the_same_ids() -> None:
    tokenizer = train_gpt_tokenizer("byte_bpe")
    assert tokenizer.encode(GPT1_RAW).ids.tolist() == tokenizer.encode(GPT1_NORMALIZED).ids.tolist()


def test_normalized_text_is_split_as_for_gpt_1_and_keeps_its_accents() -> None:
    """OpenAIGPTTokenizer without ftfy gives `cafe don ' t wait . . . u . s . 3 . 5`."""
    backend_tokenizer = train_gpt_tokenizer("bpe").backend_tokenizer
    text = backend_tokenizer.normalizer.normalize_str(
        normalize_gpt1("Café don't wait... he'll see the U.S. at 3.5 (mid-day).").text
    )
    words = [word for word, _ in backend_tokenizer.pre_tokenizer.pre_tokenize_str(text)]
    assert " ".join(words) == "café do n't wait ... he 'll see the u.s. at 3.5 ( mid - day ) ."


def test_with_an_end_of_word_suffix_the_units_are_bpe_of_characters() -> None:
    gpt = tiny.model_config("gpt", tokenizer={"end_of_word_suffix": True})
    assert gpt.tokenizer_type == "bpe"


TRAIN_SCRIPT = """
import hashlib
from tests.helpers.tokenizers import train_gpt_tokenizer
print(hashlib.sha256(train_gpt_tokenizer("bpe").backend_tokenizer.to_str().encode()).hexdigest())
"""


def test_character_bpe_gives_the_same_ids_in_every_process() -> None:
    digest = subprocess.run(
        [sys.executable, "-c", TRAIN_SCRIPT], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout
    serialized = train_gpt_tokenizer("bpe").backend_tokenizer.to_str()
    assert digest == hashlib.sha256(serialized.encode()).hexdigest() + "\n"


def test_rare_characters_do_not_fill_the_vocabulary() -> None:
    rare_texts = [
        " ".join(chr(first + offset) for offset in range(150))
        for first in (0x1200, 0x3400, 0xA000, 0x10A0)
    ]
    settings = TokenizerSettings(vocab_size=499, end_of_word_suffix=True)
    vocabulary = train_tokenizer(
        [*tiny.documents(), *rare_texts], settings, tokenizer_type="bpe", language="en"
    ).backend_tokenizer.get_vocab()
    assert (
        len(vocabulary) <= 499
        and sum(len(token.removesuffix("</w>")) > 1 for token in vocabulary) > 200
    )
    chinese_texts = [" ".join(chr(0x4E00 + offset) for offset in range(300)) * 3, *tiny.documents()]
    vocabulary = train_tokenizer(
        chinese_texts, settings, tokenizer_type="bpe", language="zh"
    ).backend_tokenizer.get_vocab()  # each of these also takes two entries
    assert len(vocabulary) <= 499
    assert any(len(token.removesuffix("</w>")) > 1 for token in vocabulary)
    assert "\u4e00</w>" in vocabulary
