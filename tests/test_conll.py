"""CoNLL files are read: a word with its tags on each line, and a blank line after a sentence.

Comments and other lines between words are not words.
"""

from pathlib import Path
from typing import Any

import pytest

from lineage.errors import InputError
from tests.helpers.tasks import TOKENS, build_file_task, format_lines, tagged_test_sentences

DATA_AND_TASKS = Path(__file__).parent.parent / "docs/how-to/data-and-tasks.md"

NAMES = [
    ("EU", "NNP", "B-ORG"),
    ('"', '"', "O"),
    ("#", "#", "O"),
    ("Peter", "NNP", "B-PER"),
    ("Lee", "NNP", "I-PER"),
]
SENTENCES = [NAMES, [("\u3000", "SYM", "O"), ("call", "NN", "O")]] * 9


def format_sentences(
    sentences: list[list[tuple[str, ...]]], separator: str, end: str = "\n", blank_line: str = ""
) -> str:
    return "".join(
        format_lines(sentence, separator, end) + blank_line + end for sentence in sentences
    )


@pytest.mark.parametrize(
    "name", ["eng.train", "train.txt", "train.char.bmes", "test.conll.gz", "train.tsv"]
)
@pytest.mark.parametrize("separator", [" ", "\t"])
@pytest.mark.parametrize(("end", "blank_line"), [("\n", ""), ("\r\n", ""), ("\n", "\t")])
def test_lines_of_words_up_to_a_blank_line_are_a_sentence(
    name: str, separator: str, end: str, blank_line: str, tmp_path: Path
) -> None:
    document_start = f"-DOCSTART- -X- O{end}{end}"
    text = (document_start + format_sentences(SENTENCES, separator, end, blank_line)) * 2
    # The last sentence ends with the file.
    task = build_file_task(tmp_path, name, "\ufeff" + text.rstrip("\r\n\t"), **TOKENS)
    expected = [
        [(token, tag) for token, _, tag in sentence if token != "\u3000"]
        for sentence in SENTENCES * 2
    ]
    assert tagged_test_sentences(task) == expected
    assert task.info.metric == ["span_f1"] and task.info.blank_words["test"] == 18


def test_sentences_of_two_files_are_separate_and_large_files_are_complete(tmp_path: Path) -> None:
    text = format_sentences(SENTENCES * 70, " ").rstrip("\n")
    (tmp_path / "a.conll").write_text(text)
    task = build_file_task(
        tmp_path, "b.conll", text, **TOKENS, files={"train": "*.conll", "test": "*.conll"}
    )
    assert task.info.counts["test"] == 2 * 18 * 70
    assert [len(tokens) for tokens in task.splits["test"]["tokens"]] == [5, 1] * (2 * 9 * 70)


def test_the_pattern_in_the_docs_removes_the_language_before_each_token(tmp_path: Path) -> None:
    sentence = [("Anna", "B-PER"), (":", "O"), ("de", "B-LOC"), ("x:y", "O")]
    text = "".join(
        format_lines([(f"en:{token}", tag) for token, tag in sentence], "\t") + "\n"
        for _ in range(9)
    )
    pattern = r"\w\w:(?P<tokens>.+)\t(?P<ner>\S+)"
    assert f"'{pattern}'" in DATA_AND_TASKS.read_text()
    assert (
        tagged_test_sentences(
            build_file_task(tmp_path, "wikiann.txt", text, **TOKENS | {"columns": pattern})
        )
        == [sentence] * 9
    )


PATTERN = r"(?P<tokens>[^\t]*)\t(?P<pos>[^\t]*)\t(?P<ner>[^\t]*)"


@pytest.mark.parametrize(
    ("name", "columns"),
    [("train.tsv", TOKENS["columns"]), ("train.txt", TOKENS["columns"]), ("train.conll", PATTERN)],
)
def test_document_unit_line_reads_a_sentence_from_each_line(
    name: str, columns: Any, tmp_path: Path
) -> None:
    # The last sentence begins with a quotation mark.
    sentences = [
        [cells for cells in sentence if cells[0] != "\u3000"]
        for sentence in [*SENTENCES, NAMES[1:]]
    ]
    text = format_lines(
        [tuple(map(" ".join, zip(*sentence, strict=True))) for sentence in sentences], "\t"
    )
    task = build_file_task(
        tmp_path, name, text, **TOKENS | {"columns": columns}, document_unit="line"
    )
    assert tagged_test_sentences(task) == [
        [(token, tag) for token, _, tag in sentence] for sentence in sentences
    ]


def test_words_and_tags_on_a_line_must_be_separated_by_a_tab(tmp_path: Path) -> None:
    """With spaces, the separator would be ambiguous.

    Sentences without tags would lose all but their first word.
    """
    tagged, plain = "Ann went\tB-PER O\n" * 20, "Bob has gone .\n" * 9
    keys = TOKENS | {"columns": ["tokens", "ner"], "document_unit": "line"}
    message = r"txt: (20|9) lines \(1, 2, 3, 4, 5, ...\): the first has 1 cells, and columns names 2: tokens, ner; document_unit is line, whose words and tags a tab parts"
    with pytest.raises(InputError, match=message):
        build_file_task(tmp_path, "a.txt", tagged.replace("\t", " "), **keys)
    (tmp_path / "more.txt").write_text(plain)
    with pytest.raises(InputError, match=message):
        build_file_task(
            tmp_path,
            "a.txt",
            tagged,
            **keys,
            files={"train": "a.txt", "test": "a.txt", "unlabelled": "more.txt"},
        )


@pytest.mark.parametrize(
    "columns", [["id", "tokens", "ner"], r"(?P<id>\d+)\t(?P<tokens>.*)\t(?P<ner>.*)"]
)
def test_comments_between_sentences_are_not_tokens(columns: Any, tmp_path: Path) -> None:
    # Split at spaces, these comments have two to six cells.
    comments = ("# sent_id = 1\n# text = a b", "# newdoc", "# newdoc id", "# # a")
    for comment in comments:
        task = build_file_task(
            tmp_path,
            "en.conllu",
            f"{comment}\n1\t#\tO\n2\tb\tB-X\n\n" * 9,
            **TOKENS | {"columns": columns},
        )
        expected = [[("#", "O"), ("b", "B-X")]] * 9
        assert tagged_test_sentences(task) == expected, comment
    tweets = build_file_task(
        tmp_path, "tweets.conll", "# O\nb B-X\n\n" * 9, **TOKENS | {"columns": ["tokens", "ner"]}
    )
    assert tagged_test_sentences(tweets) == expected, (
        "the sign of a hashtag with its tag is a token"
    )
    spaced = build_file_task(
        tmp_path,
        "spaced.conll",
        "# a = b\n1 # O _\n2 b B-X _\n\n" * 9,
        **TOKENS | {"columns": ["id", "tokens", "ner", "misc"]},
    )
    assert tagged_test_sentences(spaced) == expected, (
        "a comment with as many cells as a token is recognized by its form"
    )


@pytest.mark.parametrize(
    "columns", [["id", "tokens", "ner", "inner"], r"(?P<id>\d+)\t(?P<tokens>.*)\t(?P<ner>.*)\t.*"]
)
@pytest.mark.parametrize("name", ["NER-de-train.tsv", "train.txt"])
def test_sentence_headers_are_not_tokens_and_a_tsv_file_can_have_a_pattern(
    name: str, columns: Any, tmp_path: Path
) -> None:
    """GermEval 2014 is distributed in this format."""
    headers = (
        "#\thttp://de.wikipedia.org/wiki/A\t[2009-10-17]",
        "#\tn-tv.de vom 26.02.2005 [2005-02-26] ",
    )
    text = "".join(f"{header}\n1\t#\tO\tO\n2\tLee\tB-PER\tB-PERpart\n\n" for header in headers * 9)
    assert (
        tagged_test_sentences(
            build_file_task(tmp_path, name, text, **TOKENS | {"columns": columns})
        )
        == [[("#", "O"), ("Lee", "B-PER")]] * 18
    )


def test_multiword_tokens_and_empty_nodes_of_conll_u_are_not_tokens(tmp_path: Path) -> None:
    columns = ["id", "tokens", "lemma", "ner", "xpos", "feats", "head", "deprel", "deps", "misc"]
    rows = [
        ("1-2", "don't", "_"),
        ("1", "do", "AUX"),
        ("2", "n't", "PART"),
        ("2.1", "go", "_"),
        ("3", "2-1", "NUM"),
    ]
    text = (
        "# text = 1 2 3 4 5 6 7 8\n"
        + "".join(f"{i}\t{token}\t_\t{tag}" + "\t_" * 6 + "\n" for i, token, tag in rows)
        + "\n"
    )
    task = build_file_task(tmp_path, "en.conllu", text * 9, **TOKENS | {"columns": columns})
    assert tagged_test_sentences(task) == [[("do", "AUX"), ("n't", "PART"), ("2-1", "NUM")]] * 9
    spaced = (
        "".join(
            " ".join([token, "_", "_", tag, *"_" * 6]) + "\n"
            for token, tag in (("3-1", "B-X"), ("won", "O"))
        )
        + "\n"
    )
    other = build_file_task(
        tmp_path, "ten.conll", spaced * 9, **TOKENS | {"columns": ["tokens", "id", *columns[2:]]}
    )
    assert tagged_test_sentences(other) == [[("3-1", "B-X"), ("won", "O")]] * 9, (
        "a file with ten other columns is not CoNLL-U"
    )


def test_a_long_file_without_blank_lines_is_rejected_but_not_a_short_one(tmp_path: Path) -> None:
    for name, count in (("none.conll", 1001), ("ends.conll", 1001), ("docstart.conll", 1001)):
        text = (
            "-DOCSTART- -X- O\n\n" * (name == "docstart.conll")
            + "a DT O\n" * count
            + "\n" * (name == "ends.conll")
        )
        message = rf"{name}: its 1,001 lines are one sentence, since no blank line separates them; put one after each sentence, or"
        with pytest.raises(InputError, match=message):
            build_file_task(tmp_path, name, text, **TOKENS)
    (tmp_path / "train.conll").write_text(format_sentences(SENTENCES, " "))
    files = {"train": "train.conll", "test": "t.conll"}
    for text in (
        format_lines(NAMES, " ") * 200,
        format_lines(NAMES, " ") * 300 + "\n" + format_lines(NAMES, " "),
    ):
        assert (
            build_file_task(tmp_path, "t.conll", text, files=files, **TOKENS).info.counts["test"]
            == text.count("\n\n") + 1
        )


def test_messages_call_rows_sentences_and_explain_document_unit_line(tmp_path: Path) -> None:
    tagged = [*SENTENCES[:6], [("Lee", "NNP", "X-PER")], *SENTENCES]
    message = r"train\.tsv, whose rows are sentences: row 7: column 'ner': tag 1 of 1: 'X-PER' is neither O nor a letter"
    with pytest.raises(InputError, match=message):
        build_file_task(tmp_path, "train.tsv", format_sentences(tagged, "\t"), **TOKENS)
    rows = "".join(f"\u6d77 \u9493 {n}\tO O B-X\n" for n in range(30))
    message = "the tag 'O O B-X' has a space in it; write tags without spaces; 'columns' reads one word of a line: where it is a sentence, set document_unit: "
    with pytest.raises(InputError, match=message + "line"):
        build_file_task(
            tmp_path, "row.tsv", rows, **TOKENS | {"columns": ["tokens", "ner"]}, language="zh"
        )
    unnamed = {"kind": "token_classification", "tokens": "tokens", "label": "ner", "language": "zh"}
    for text, keys in (
        ("tokens\tner\n" + rows, {}),
        (rows, {"columns": ["tokens", "ner"], "document_unit": "line"}),
    ):
        assert (
            len(
                build_file_task(tmp_path, "row.tsv", text, **unnamed, **keys)
                .splits["test"]["tokens"]
                .iloc[0]
            )
            == 3
        )


def test_a_few_sentences_of_blank_words_are_left_out_and_counted(tmp_path: Path) -> None:
    blank_sentence = [("\u3000", "SYM", "O")]
    task = build_file_task(
        tmp_path, "t.conll", format_sentences([*SENTENCES, blank_sentence, NAMES], "\t"), **TOKENS
    )
    assert task.info.counts["test"] == 19 and task.info.dropped["test"] == {"unusable": 1}
    assert task.splits["test"]["id"].iloc[-1] == "test-20"
    with pytest.raises(
        InputError,
        match=r"5 rows \(19, 20, 21, 22, 23\): column 'tokens': every entry is blank; correct",
    ):
        build_file_task(
            tmp_path,
            "t.conll",
            format_sentences([*SENTENCES, *[blank_sentence] * 5], "\t"),
            **TOKENS,
        )


def test_all_lines_with_too_few_cells_are_counted_in_one_message(tmp_path: Path) -> None:
    text = format_sentences(SENTENCES[:2], " ") + "York O\n\nin O\nParis NNP B-LOC\nin O\n"
    with pytest.raises(
        InputError, match=r"e\.conll: 3 lines \(10, 12, 14\): the first has 2 cells, and"
    ):
        build_file_task(tmp_path, "e.conll", text, **TOKENS)
