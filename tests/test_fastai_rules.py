"""ULMFiT's text by fastai's rules: case and repetitions as words, and that words, bytes and sentences are still those of the text as it was given."""

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
from lineage.evaluation.encoding import encode_word_in_context
from lineage.evaluation.systems import EncoderUnderTest, EvalContext
from lineage.tokenizers.normalization import normalize_fastai
from lineage.tokenizers.token_ids import encode_corpus
from lineage.tokenizers.tokenizer import Tokenizer, TokenizerSettings
from lineage.tokenizers.train import train_tokenizer
from lineage.training.adapt import find_new_words
from tests import tiny

RAW = "The Cat saw NASA!!! It was sooooo GOOD. Is it so so so so far?\n\nYes: I said 5000 &lt; x/y"
TOLD = ("xxmaj the xxmaj cat saw xxup nasa xxrep 3 ! xxmaj it was s xxrep 5 o xxup good. xxmaj is it xxwrep 4 so far?\n\n"
        "xxmaj yes: i said 5 xxrep 3 0 < x / y")  # fmt: skip


@pytest.mark.parametrize(("raw", "told"), [
    ("", ""),
    (" \n ", ""),
    ("Ann", "xxmaj ann"),
    ("I saw A B OK", "i saw a b xxup ok"),
    ("iPhone \"The McDonald U.S. A-1 3D", 'iphone "the mcdonald xxup u.s. xxup a-1 3d'),
    ("aa aaa", "aa xxrep 3 a"),
    ("no no No no", "no no xxmaj no no"),
    ("no no no.", "xxwrep 3 no ."),
    ("a #1  c\\d", "a # 1 c \\ d"),
    ("it&#39;s 3 @.@ 5 <br />&eacute; \\n wait...", "it&'s 3.5 \n\u00e9 \n wait \u2026"),  # its rule leaves the & there
    ("\u0130 \u03a3 \u039f\u03a3", "i\u0307 \u03c3 \u03bf\u03c2"),
    ("\u5317\u4eac\u662f\u4e2d\u56fd\u7684\u9996\u90fd\u3002", "\u5317\u4eac\u662f\u4e2d\u56fd\u7684\u9996\u90fd\u3002"),
    ("\u4ed6\u8bf4\u54c8\u54c8\u54c8\uff01", "\u4ed6\u8bf4 xxrep 3 \u54c8 \uff01"),
    ("xxmaj <unk>", "xxmaj <unk>"),
    (RAW, TOLD),
])  # fmt: skip
def test_case_and_repetitions_are_told_in_words(raw: str, told: str) -> None:
    found = normalize_fastai(raw)
    assert found.text == told
    assert len(found.starts) == len(found.ends) == len(told) and (np.diff(found.starts) >= 0).all()


PARTS = [" ", " ", "  ", "\n", "a", "b", "ab", "the", "The", "NASA", "U.S.", "I", "\u00c9", "\u0130", "\u0391\u03a3", "x\u03a3", "aaaa", "!!!",
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
def test_random_text_is_what_fastai_s_own_rules_make_of_it() -> None:
    core = pytest.importorskip(
        "fastai.text.core", reason="fastai is not installed: benchmarks/requirements.txt has it"
    )
    rules = [
        core.fix_html,
        core.replace_rep,
        core.replace_wrep,
        core.spec_add_spaces,
        core.rm_useless_spaces,
        core.replace_all_caps,
        core.replace_maj,
    ]
    draws, changed = random.Random(1), 0
    for _ in range(5000):
        raw = "".join(draws.choice(PARTS) for _ in range(draws.randint(0, 18)))
        theirs = raw
        for rule in rules:
            theirs = rule(theirs)
        theirs = core.lowercase(theirs, add_bos=False)
        assert normalize_fastai(raw).text == theirs, repr(raw)
        changed += "xx" in theirs
    assert changed > 2000, "else this shows little"
    assert [*core.defaults.text_proc_rules] == [*rules, core.lowercase], "all of its rules"


def reader(**over: Any) -> Tokenizer:
    settings = TokenizerSettings(**{"vocab_size": 2000, "normalizer": "fastai", **over})
    return train_tokenizer(
        [*tiny.documents(), RAW, RAW], settings, tokenizer_type="word", language="en"
    )


def said(own: Tokenizer, ids: Any) -> list[str]:
    return [own.backend_tokenizer.id_to_token(int(i)) for i in ids]


def test_what_tells_of_a_word_stands_before_it_is_of_its_characters_and_has_no_bytes() -> None:
    own = reader()
    encoded, tokens = own.encode(RAW), encode_corpus([RAW], own)
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
    assert said(own, encoded.ids) == list(encoded.words) and list(tokens.ids) == list(
        encoded.ids
    ), "none is unknown"
    for word, raw in (("nasa", "NASA"), ("!", "!!!"), ("o", "ooooo"), ("good", "GOOD"), ("so", "so so so so"), ("0", "000"), ("<", "&lt;"),
                      ("xxup", "N"), ("xxrep", "!!!"), ("3", "!!!"), ("xxwrep", "so so so so")):  # fmt: skip
        start, end = encoded.offsets[encoded.words.index(word)]
        assert RAW[start:end].strip() == raw, word
    telling = [
        place
        for place, word in enumerate(encoded.words)
        if word[:2] == "xx" or encoded.words[place - 1] in ("xxrep", "xxwrep")
    ]
    assert len(telling) == 15 and not tokens.byte_counts[telling].any()
    assert tokens.text_bytes == len(RAW.encode()) and not own.lossless, (
        "bits per byte are of the raw text, and say that it cannot be written back"
    )


def test_sentences_begin_with_what_tells_of_their_first_word() -> None:
    own, plain = reader(), reader(normalizer=None)
    encoded = own.encode(RAW)
    firsts = [encoded.words[place + 1] for place, word in enumerate(encoded.words) if word == "<S>"]
    assert firsts == ["xxmaj"] * 4 and plain.encode(RAW).words.count("<S>") == 4


def test_a_word_s_vector_is_of_its_own_pieces() -> None:
    own, words = reader(), ["Ann", "saw", "NASA", "sooooo", "so", "so", "so", "."]
    wanted = (
        ["xxmaj", "ann"],
        ["saw"],
        ["xxup", "nasa"],
        ["s", "xxrep", "5", "o"],
        *[["xxwrep", "3", "so"]] * 3,
        ["."],
    )
    for target, pieces in enumerate(wanted):
        item = encode_word_in_context(words, target, own, max_length=None, language="en")
        assert [item.encoded.words[place] for place in item.word_pieces[0][:, 0]] == pieces


def test_a_word_is_not_known_by_what_tells_of_its_case() -> None:
    data = TaskData(
        {"name": "x", "kind": "word_similarity", "language": "en", "folds": None},
        {"test": pd.DataFrame({"words": [("a", "b")]})},
    )
    checkpoint = dataclasses.replace(tiny.checkpoint("ulmfit"), tokenizer=reader())
    subject = EncoderUnderTest(
        EvalContext(checkpoint, data, tiny.variant("ulmfit").evaluate, 0, 1000, "fp32", tiny.CPU),
        "random",
    )
    assert (
        subject.embed_words(["Cat", "NASA", "saw", "zyzzyva", "Zyzzyva", "ZYZZYVA"])[1].tolist()
        == [True] * 3 + [False] * 3
    )


def test_new_words_are_those_that_the_rules_leave() -> None:
    own = reader()
    found = find_new_words(
        ["Zebras saw Zebras", "ZEBRAS! quokkas"], own, max_words=9, min_frequency=1
    )
    assert found == ["zebras", "quokkas"]
    grown = own.with_added_words(found)
    assert grown.normalizer == "fastai" and grown.encode("Zebras").words == (
        "<S>",
        "xxmaj",
        "zebras",
        "</S>",
    )
    assert grown.encode("Zebras").ids[2] == own.vocab_size


def test_a_reader_keeps_its_rules_and_turns_its_text_round(tmp_path: Path) -> None:
    own = reader()
    own.save(tmp_path)
    assert list(Tokenizer.load(tmp_path).encode(RAW).ids) == list(own.encode(RAW).ids)
    back = reader(direction="backward")
    assert back.encode(RAW).words == own.encode(RAW).words[::-1]
    one, other = encode_corpus([RAW], own), encode_corpus([RAW], back)
    assert list(one.ids) == list(other.ids[::-1]) and list(one.byte_counts) == list(
        other.byte_counts[::-1]
    )


def test_a_text_s_probability_is_that_of_all_its_words_told_ones_too() -> None:
    own, model = reader(), tiny.model("ulmfit").eval()
    score = tiny.variant("ulmfit").family.score_texts
    assert score is not None
    with torch.no_grad():
        model.body.embedding_weight = torch.nn.Parameter(
            torch.randn(
                own.vocab_size, model.hidden_sizes()[-1], generator=torch.Generator().manual_seed(1)
            )
        )  # type: ignore[union-attr]
        model.softmax_bias = torch.nn.Parameter(torch.zeros(own.vocab_size))
    nats, counts = score(model, own, ["the cat", "The cat"], limit=None).T
    assert counts.tolist() == [3, 4] and nats[0] != nats[1]
    ids = torch.from_numpy(own.encode("The cat").ids)
    log_p = torch.log_softmax(
        model.logits(model.encode(own.collate([own.encode("The cat")]))[-1][0]), -1
    )
    assert nats[1] == pytest.approx(float(log_p[torch.arange(4), ids[1:]].sum().detach()), rel=1e-5)


def test_chinese_text_has_the_words_that_it_had() -> None:
    text = "\u5317\u4eac\u662f\u4e2d\u56fd\u7684\u9996\u90fd\u3002\u5979\u572824\u5c81\u65f6\u53bb\u4e86\u90a3\u91cc\u3002"
    made = [
        train_tokenizer(
            [text, text],
            TokenizerSettings(vocab_size=99, normalizer=how),
            tokenizer_type="word",
            language="zh",
        )
        for how in (None, "fastai")
    ]  # type: ignore[arg-type]
    plain, told = (one.encode(text) for one in made)
    assert (
        plain.words == told.words
        and plain.offsets.tolist() == told.offsets.tolist()
        and plain.ids.tolist() == told.ids.tolist()
    )


@pytest.mark.parametrize(("name", "over", "message"), [
    ("ulmfit", {"normalizer": "ftfy"}, "tokenizer.normalizer: ulmfit supports only fastai"),
    ("gpt", {"normalizer": "fastai"}, "tokenizer.normalizer: gpt supports only ftfy"),
    ("elmo", {"normalizer": "fastai"}, "tokenizer.normalizer: elmo supports none"),
    ("ulmfit", {"normalizer": "fastai", "lowercase": True}, "already lowers case"),
])  # fmt: skip
def test_rules_that_a_family_has_no_use_for_are_refused(
    name: str, over: dict[str, Any], message: str
) -> None:
    with pytest.raises(InputError, match=message):
        tiny.variant(name, tokenizer=over)


def test_the_report_says_that_words_are_told() -> None:
    assert (
        tiny.variant("ulmfit", tokenizer={"normalizer": "fastai"}).mechanism["unit"]
        == "words, by fastai's rules"
    )
