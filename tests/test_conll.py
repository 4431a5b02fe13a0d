"""A word a line with its tags, as CoNLL's files have it: sentences end at blank lines, and what stands between words is none."""

from pathlib import Path
from typing import Any

import pytest

from lineage.errors import InputError
from tests.test_lines import TOKENS, lines, made, sentences_of

DATA_AND_TASKS = Path(__file__).parent.parent / "docs/how-to/data-and-tasks.md"

NAMES = [
    ("EU", "NNP", "B-ORG"),
    ('"', '"', "O"),
    ("#", "#", "O"),
    ("Peter", "NNP", "B-PER"),
    ("Lee", "NNP", "I-PER"),
]
SENTENCES = [NAMES, [("\u3000", "SYM", "O"), ("call", "NN", "O")]] * 9


def blocks(
    sentences: list[list[tuple[str, ...]]], sign: str, end: str = "\n", between: str = ""
) -> str:
    return "".join(lines(sentence, sign, end) + between + end for sentence in sentences)


@pytest.mark.parametrize(
    "name", ["eng.train", "train.txt", "train.char.bmes", "test.conll.gz", "train.tsv"]
)
@pytest.mark.parametrize("sign", [" ", "\t"])
@pytest.mark.parametrize(("end", "between"), [("\n", ""), ("\r\n", ""), ("\n", "\t")])
def test_a_word_a_line_is_a_sentence_up_to_a_blank_line(
    name: str, sign: str, end: str, between: str, tmp_path: Path
) -> None:
    start = f"-DOCSTART- -X- O{end}{end}"
    text = (start + blocks(SENTENCES, sign, end, between)) * 2
    found = made(
        tmp_path, name, "\ufeff" + text.rstrip("\r\n\t"), **TOKENS
    )  # the last one ends with the file
    seen = [
        [(token, tag) for token, _, tag in sentence if token != "\u3000"]
        for sentence in SENTENCES * 2
    ]
    assert sentences_of(found) == seen
    assert found.info["metric"] == ["span_f1"] and found.info["blank_words"]["test"] == 18


def test_sentences_of_two_files_are_not_joined_and_more_than_a_batch_is_whole(
    tmp_path: Path,
) -> None:
    text = blocks(SENTENCES * 70, " ").rstrip("\n")
    (tmp_path / "a.conll").write_text(text)
    found = made(tmp_path, "b.conll", text, **TOKENS, files={"train": "*.conll", "test": "*.conll"})
    assert found.info["counts"]["test"] == 2 * 18 * 70
    assert [len(tokens) for tokens in found.splits["test"]["tokens"]] == [5, 1] * (2 * 9 * 70)


def test_digits_of_places_and_other_tails_of_tokens_are_left_out_by_a_pattern(
    tmp_path: Path,
) -> None:
    said = [("科", "O"), ("2", "O"), ("张", "B-PER.NAM"), ("三", "I-PER.NAM"), ("男", "B-PER.NOM")]
    text = "".join(
        lines([(f"{token}{n % 10}", tag) for n, (token, tag) in enumerate(said)], "\t") + "\n"
        for _ in range(9)
    )
    found = made(
        tmp_path,
        "weiboNER.train",
        text,
        **TOKENS | {"columns": r"(?P<tokens>.+?)\d\t(?P<ner>\S+)"},
        language="zh",
    )
    assert sentences_of(found) == [said] * 9


def test_a_language_before_each_token_is_left_out_by_the_pattern_of_the_docs(
    tmp_path: Path,
) -> None:
    said = [("Anna", "B-PER"), (":", "O"), ("de", "B-LOC"), ("x:y", "O")]
    text = "".join(
        lines([(f"en:{token}", tag) for token, tag in said], "\t") + "\n" for _ in range(9)
    )
    pattern = r"\w\w:(?P<tokens>.+)\t(?P<ner>\S+)"
    assert f"'{pattern}'" in DATA_AND_TASKS.read_text()
    assert (
        sentences_of(made(tmp_path, "wikiann.txt", text, **TOKENS | {"columns": pattern}))
        == [said] * 9
    )


PATTERN = r"(?P<tokens>[^\t]*)\t(?P<pos>[^\t]*)\t(?P<ner>[^\t]*)"


@pytest.mark.parametrize(
    ("name", "columns"),
    [("train.tsv", TOKENS["columns"]), ("train.txt", TOKENS["columns"]), ("train.conll", PATTERN)],
)
def test_a_sentence_a_line_where_the_task_says_so(name: str, columns: Any, tmp_path: Path) -> None:
    some = [
        [cells for cells in sentence if cells[0] != "\u3000"]
        for sentence in [*SENTENCES, NAMES[1:]]
    ]  # the last begins with a quotation mark
    text = lines([tuple(map(" ".join, zip(*sentence, strict=True))) for sentence in some], "\t")
    found = made(tmp_path, name, text, **TOKENS | {"columns": columns}, document_unit="line")
    assert sentences_of(found) == [
        [(token, tag) for token, _, tag in sentence] for sentence in some
    ]


def test_words_and_tags_of_a_line_are_parted_by_a_tab_alone(tmp_path: Path) -> None:
    """Of spaces nobody could say which one it is, and sentences without tags would lose all but their first word."""
    tagged, plain = "Ann went\tB-PER O\n" * 20, "Bob has gone .\n" * 9
    own = TOKENS | {"columns": ["tokens", "ner"], "document_unit": "line"}
    said = r"txt, line 1: it has 1 cells, and columns names 2: tokens, ner; document_unit is line, whose words and tags a tab parts"
    with pytest.raises(InputError, match=said):
        made(tmp_path, "a.txt", tagged.replace("\t", " "), **own)
    (tmp_path / "more.txt").write_text(plain)
    with pytest.raises(InputError, match=said):
        made(
            tmp_path,
            "a.txt",
            tagged,
            **own,
            files={"train": "a.txt", "test": "a.txt", "unlabelled": "more.txt"},
        )


@pytest.mark.parametrize(
    "columns", [["id", "tokens", "ner"], r"(?P<id>\d+)\t(?P<tokens>.*)\t(?P<ner>.*)"]
)
def test_comments_between_sentences_are_no_tokens(columns: Any, tmp_path: Path) -> None:
    for comment in (
        "# sent_id = 1\n# text = a b",
        "# newdoc",
        "# newdoc id",
        "# # a",
    ):  # of two to six cells at spaces
        found = made(
            tmp_path,
            "en.conllu",
            f"{comment}\n1\t#\tO\n2\tb\tB-X\n\n" * 9,
            **TOKENS | {"columns": columns},
        )
        both = [[("#", "O"), ("b", "B-X")]] * 9
        assert sentences_of(found) == both, comment
    tweets = made(
        tmp_path, "tweets.conll", "# O\nb B-X\n\n" * 9, **TOKENS | {"columns": ["tokens", "ner"]}
    )
    assert sentences_of(tweets) == both, "a hashtag's mark with its tag is a token"
    spaced = made(
        tmp_path,
        "spaced.conll",
        "# a = b\n1 # O _\n2 b B-X _\n\n" * 9,
        **TOKENS | {"columns": ["id", "tokens", "ner", "misc"]},
    )
    assert sentences_of(spaced) == both, (
        "a comment with as many cells as a token is one by its form"
    )


@pytest.mark.parametrize(
    "columns", [["id", "tokens", "ner", "inner"], r"(?P<id>\d+)\t(?P<tokens>.*)\t(?P<ner>.*)\t.*"]
)
@pytest.mark.parametrize("name", ["NER-de-train.tsv", "train.txt"])
def test_heads_of_sentences_after_a_tab_are_no_tokens_and_a_tsv_may_have_a_pattern(
    name: str, columns: Any, tmp_path: Path
) -> None:
    """As GermEval 2014 is given out."""
    heads = (
        "#\thttp://de.wikipedia.org/wiki/A\t[2009-10-17]",
        "#\tn-tv.de vom 26.02.2005 [2005-02-26] ",
    )
    text = "".join(f"{head}\n1\t#\tO\tO\n2\tLee\tB-PER\tB-PERpart\n\n" for head in heads * 9)
    assert (
        sentences_of(made(tmp_path, name, text, **TOKENS | {"columns": columns}))
        == [[("#", "O"), ("Lee", "B-PER")]] * 18
    )


def test_joined_words_and_empty_ones_of_conll_u_are_no_tokens(tmp_path: Path) -> None:
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
    found = made(tmp_path, "en.conllu", text * 9, **TOKENS | {"columns": columns})
    assert sentences_of(found) == [[("do", "AUX"), ("n't", "PART"), ("2-1", "NUM")]] * 9
    spaced = (
        "".join(
            " ".join([token, "_", "_", tag, *"_" * 6]) + "\n"
            for token, tag in (("3-1", "B-X"), ("won", "O"))
        )
        + "\n"
    )
    other = made(
        tmp_path, "ten.conll", spaced * 9, **TOKENS | {"columns": ["tokens", "id", *columns[2:]]}
    )
    assert sentences_of(other) == [[("3-1", "B-X"), ("won", "O")]] * 9, (
        "ten columns that are not CoNLL-U's"
    )


def test_a_file_without_a_blank_line_is_no_sentence_but_a_short_one_is(tmp_path: Path) -> None:
    for name, count in (("none.conll", 1001), ("ends.conll", 1001), ("docstart.conll", 1001)):
        text = (
            "-DOCSTART- -X- O\n\n" * (name == "docstart.conll")
            + "a DT O\n" * count
            + "\n" * (name == "ends.conll")
        )
        said = rf"{name}: its 1,001 lines are one sentence, since no blank line separates them; put one after each sentence, or"
        with pytest.raises(InputError, match=said):
            made(tmp_path, name, text, **TOKENS)
    (tmp_path / "train.conll").write_text(blocks(SENTENCES, " "))
    files = {"train": "train.conll", "test": "t.conll"}
    for text in (lines(NAMES, " ") * 200, lines(NAMES, " ") * 300 + "\n" + lines(NAMES, " ")):
        assert (
            made(tmp_path, "t.conll", text, files=files, **TOKENS).info["counts"]["test"]
            == text.count("\n\n") + 1
        )


def test_a_row_of_such_a_file_is_called_a_sentence_and_a_row_of_sentences_is_told_how_to_be_read(
    tmp_path: Path,
) -> None:
    tagged = [*SENTENCES[:6], [("Lee", "NNP", "X-PER")], *SENTENCES]
    said = r"train\.tsv, whose rows are sentences: row 7: column 'ner': tag 1 of 1: 'X-PER' is neither O nor a letter"
    with pytest.raises(InputError, match=said):
        made(tmp_path, "train.tsv", blocks(tagged, "\t"), **TOKENS)
    rows = "".join(f"\u6d77 \u9493 {n}\tO O B-X\n" for n in range(30))
    said = "the tag 'O O B-X' has a space in it; write tags without spaces; 'columns' reads one word of a line: where it is a sentence, set document_unit: "
    with pytest.raises(InputError, match=said + "line"):
        made(tmp_path, "row.tsv", rows, **TOKENS | {"columns": ["tokens", "ner"]}, language="zh")
    unnamed = {"kind": "token_classification", "tokens": "tokens", "label": "ner", "language": "zh"}
    for text, how in (
        ("tokens\tner\n" + rows, {}),
        (rows, {"columns": ["tokens", "ner"], "document_unit": "line"}),
    ):
        assert (
            len(made(tmp_path, "row.tsv", text, **unnamed, **how).splits["test"]["tokens"].iloc[0])
            == 3
        )


def test_sentences_of_blank_words_alone_are_left_out_and_counted_if_they_are_few(
    tmp_path: Path,
) -> None:
    nothing = [("\u3000", "SYM", "O")]
    found = made(tmp_path, "t.conll", blocks([*SENTENCES, nothing, NAMES], "\t"), **TOKENS)
    assert found.info["counts"]["test"] == 19 and found.info["dropped"]["test"] == {"of_no_use": 1}
    assert found.splits["test"]["id"].iloc[-1] == "test-20"
    with pytest.raises(
        InputError, match=r"row 19 \(and 4 more\): column 'tokens': every entry is blank"
    ):
        made(tmp_path, "t.conll", blocks([*SENTENCES, *[nothing] * 5], "\t"), **TOKENS)


def test_a_line_of_words_with_fewer_cells_is_named(tmp_path: Path) -> None:
    with pytest.raises(
        InputError,
        match=r"e\.conll, line 10: it has 2 cells, and columns names 3: tokens, pos, ner",
    ):
        made(tmp_path, "e.conll", blocks(SENTENCES[:2], " ") + "York O\n", **TOKENS)
