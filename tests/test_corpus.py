"""A corpus holds clean documents, each once and in one split.

Dropped documents are counted, and the same sources give the same bytes.
"""

import unicodedata
from pathlib import Path

import pandas as pd
import pytest
from tokenizers import Regex, pre_tokenizers

from lineage import artifacts
from lineage.config.data import Corpus
from lineage.config.records import parse_record
from lineage.data.corpus import CorpusDocuments, collect_documents, corpus_statistics, split_corpus
from lineage.errors import InputError
from lineage.language import (
    CJK_CHARACTER,
    byte_count,
    lacks_word_boundaries,
    normalize_text,
    sentence_spans,
    split_words,
    truncate_to_words,
    word_pattern,
)
from tests.helpers.golden import data_folder
from tests.helpers.user_project import make_project


@pytest.fixture(autouse=True)
def workspace(tmp_path, monkeypatch):
    """Run in an empty folder, which gets the cache of digests."""
    monkeypatch.chdir(tmp_path)


def build_corpus(**keys) -> Corpus:
    return parse_record(Corpus, {"language": "en", **keys}, "corpus")


def read_texts(root: Path, *texts: str, **keys) -> CorpusDocuments:
    pd.DataFrame({"text": list(texts)}).to_parquet(root / "a.parquet")
    return collect_documents(
        build_corpus(sources=[{"files": "a.parquet"}], **keys), seed=1, root=root, where="corpus"
    )


def test_dropped_documents_are_counted_by_reason(tmp_path):
    documents = read_texts(
        tmp_path,
        "a document of its own",
        "  \n ",
        "short",
        "a document of its own",
        "a\tdocument of its own\x00",
        "another document here",
    )
    assert list(documents.table["text"]) == ["a document of its own", "another document here"]
    assert list(documents.table["document"]) == ["0-1", "0-6"]
    assert documents.dropped == {"blank": 1, "too_short": 1, "duplicate": 2}
    assert documents.num_read == len(documents.table) + sum(documents.dropped.values())


def test_counts_add_up_and_no_document_is_in_two_splits(tmp_path):
    corpus = build_corpus(sources=[{"files": "a.parquet"}], validation_share=0.1, test_share=0.2)
    documents = read_texts(tmp_path, *[f"document number {n} has some words ." for n in range(97)])
    splits = split_corpus(documents, corpus, seed=3, where="corpus")
    assert {name: len(table) for name, table in splits.items()} == {
        "train": 68,
        "valid": 10,
        "test": 19,
    }
    assert sorted(t for table in splits.values() for t in table["text"]) == sorted(
        documents.table["text"]
    )
    statistics = corpus_statistics(splits, documents)
    assert statistics["bytes"]["train"] == sum(byte_count(t) for t in splits["train"]["text"])
    assert statistics["words"] == {"train": 68 * 7, "valid": 10 * 7, "test": 19 * 7}


def test_the_split_depends_on_the_seed_and_changes_little_with_a_new_document(tmp_path):
    corpus = build_corpus(sources=[{"files": "a.parquet"}], validation_share=0.1)
    texts = [f"document number {n} has some words ." for n in range(200)]

    def validation_texts(texts, *, seed):
        documents = read_texts(tmp_path, *texts)
        return set(split_corpus(documents, corpus, seed=seed, where="corpus")["valid"]["text"])

    before = validation_texts(texts, seed=3)
    after = validation_texts([*reversed(texts), "one more document that is new"], seed=3)
    assert len(before & after) >= 19
    assert len(before & validation_texts(texts, seed=4)) < 10


def test_documents_have_the_language_of_their_source(tmp_path):
    (tmp_path / "zh.txt").write_text("我们去公园散步。\n今天天气很好。\n", encoding="utf-8")
    (tmp_path / "en.txt").write_text("we walk in the park .\n", encoding="utf-8")
    sources = [
        {"files": "en.txt", "document_unit": "line"},
        {"files": "zh.txt", "document_unit": "line", "language": "zh"},
    ]
    documents = collect_documents(
        build_corpus(sources=sources, min_characters=3), seed=1, root=tmp_path, where="corpus"
    )
    assert list(documents.table["language"]) == ["en", "zh", "zh"]
    assert list(documents.table["source"]) == ["en.txt", "zh.txt", "zh.txt"]
    assert corpus_statistics({"train": documents.table}, documents)["words"]["train"] == 6 + 8 + 7


def test_too_few_documents_to_split_are_rejected(tmp_path):
    with pytest.raises(InputError, match="2 usable documents of 3 read \\(1 duplicate\\)"):
        split_corpus(read_texts(tmp_path, "the first document here", "the second document here", "the first document here"),
              build_corpus(sources=[{"files": "a.parquet"}]), seed=1, where="corpus")  # fmt: skip


def test_the_same_data_give_the_same_bytes_and_edits_between_stages_are_rejected(
    tmp_path, run_stage
):
    digests = []
    for name in ("one", "two"):
        make_project(tmp_path / name)
        for command in (
            ("sources",),
            ("corpus", "general"),
            ("task", "mood"),
            ("baselines", "mood"),
        ):
            assert run_stage(tmp_path / name, *command)[0] == 0
        home = tmp_path / name / "artifacts"
        digests.append(
            {
                str(p.relative_to(home)): artifacts.file_digest(p)
                for p in home.rglob("*")
                if p.is_file()
            }
        )
    assert digests[0] == digests[1]
    assert "corpora/general/counts.json" in digests[0]
    (tmp_path / "two/texts/00.txt").write_text("another text than before , and of another size .\n")
    code, message = run_stage(tmp_path / "two", "corpus", "general")
    assert code == 2
    assert "changed after the sources stage" in message


@pytest.mark.parametrize(
    ("raw", "clean"),
    [
        ("e\u0301", "é"),
        ("a\r\nb\rc\u2028d\x0be", "a\nb\nc\nd\ne"),
        ("a\tb", "a b"),
        ("\ufeffa\x00b\x7f\x9f ", "ab"),
        ("a\ud800b", "ab"),
        ("👩‍🚀", "👩‍🚀"),
    ],
)
def test_normalized_text(raw, clean):
    assert normalize_text(raw) == clean
    assert normalize_text(clean) == clean


@pytest.mark.parametrize(("language", "text", "expected"), [
    ("en", "Dr. J. Doe paid $3.50. Then he left! (Really?) Yes.", ["Dr. J. Doe paid $3.50.", "Then he left!", "(Really?)", "Yes."]),
    ("en", "No stop here\nnext line at approx. noon", ["No stop here", "next line at approx. noon"]),
    ("en", "He said no. and left.", ["He said no. and left."]),
    ("en", "i like it. it was good. we go.", ["i like it.", "it was good.", "we go."]),
    ("en", 'a b . c d ? " e f !', ["a b .", 'c d ? "', "e f !"]),
    ("de", "Er kam z. B. Montag. Dann ging er.", ["Er kam z. B. Montag.", "Dann ging er."]),
    ("zh", "今天好！我们走。“真的？”\n是", ["今天好！", "我们走。", "“真的？”", "是"]),
    ("zh", "他说 Dr. Smith 来了。He came in 3.5 hours. Then he left... 我也走了。Really?", ["他说 Dr. Smith 来了。", "He came in 3.5 hours.", "Then he left...", "我也走了。", "Really?"]),
    ("hi", "वह आया। वह गया।", ["वह आया।", "वह गया।"]),
    ("ka", "ეს არის NASA. ის დიდია. ის ib. კარგია.", ["ეს არის NASA.", "ის დიდია.", "ის ib.", "კარგია."]),
])  # fmt: skip
def test_sentences_are_split_by_language(language, text, expected):
    assert [text[start:end] for start, end in sentence_spans(text, language)] == expected


@pytest.mark.parametrize(("language", "text", "expected"), [
    ("en", "It's 3.5, don't!", ["It", "'s", "3.5", ",", "do", "n't", "!"]),
    ("fr", "l'été", ["l'été"]),
    ("zh", "我用GPT-2 写3.5字。", ["我", "用", "GPT", "-", "2", "写", "3.5", "字", "。"]),
    ("en", "5 km² of ＿x", ["5", "km", "²", "of", "＿", "x"]),
    ("ja", "カタ漢", ["カ", "タ", "漢"]),
    ("hi", "हिन्दी है", ["हिन्दी", "है"]),
    ("fa", "می\u200cخواهم بروم", ["می\u200cخواهم", "بروم"]),
    ("de", normalize_text("Zusam\u00admen\u00adarbeit\u2060en hier ,"), ["Zusammenarbeiten", "hier", ","]),
])  # fmt: skip
def test_words_are_split_by_language(language, text, expected):
    assert split_words(text, language) == expected
    assert (
        truncate_to_words(text, 2, language) == text[: text.index(expected[1]) + len(expected[1])]
        if len(expected) > 2
        else text
    )


def test_text_of_a_script_without_spaces_lacks_word_boundaries():
    thai_words = [
        "กรุงเทพ",
        "เป็น",
        "เมือง",
        "หลวง",
        "ของ",
        "ประเทศ",
        "ไทย",
        "และ",
        "มี",
        "คน",
        "อาศัย",
        "อยู่",
    ]
    assert lacks_word_boundaries(["".join(thai_words)])
    assert not lacks_word_boundaries([" ".join(thai_words)])
    assert not lacks_word_boundaries([f"a long English sentence with one {thai_words[0]} in it"])
    assert not lacks_word_boundaries(["अनुच्छेद लिखिए", "supercalifragilisticexpialidocious " * 3])
    assert not lacks_word_boundaries([])


@pytest.mark.parametrize("language", ["en", "hi", "zh"])
def test_tokenizers_find_the_same_words_as_python_for_all_characters(language):
    characters = [
        chr(code)
        for code in range(0x20, 0x1FFFF)
        if unicodedata.category(chr(code)) not in ("Cn", "Co", "Cs")
    ]
    text = "\n".join(
        f"a{c}b {c} {c}2 don{c}'t n{c}'t"
        for c in characters
        if not CJK_CHARACTER.match(c) or ord(c) % 100 == 0
    )
    pieces = pre_tokenizers.Split(
        Regex(word_pattern(language)), "removed", invert=True
    ).pre_tokenize_str(text)
    assert [word for word, _ in pieces] == split_words(text, language)


def test_real_text_is_loaded_by_configuration_only(tmp_path):
    root = data_folder()
    corpus = build_corpus(sources=[{"files": "corpus-small/train.parquet", "text": "text"}])
    documents = collect_documents(corpus, seed=1, root=root, where="corpus")
    assert documents.num_read == 800
    sizes = {
        name: len(table)
        for name, table in split_corpus(documents, corpus, seed=1, where="corpus").items()
    }
    assert sizes == {"train": 720, "valid": 40, "test": 40}
