"""No row of a csv or tsv is lost without a word to a quotation mark that nothing closes, and cells with line ends are read as they are."""

import csv
import gzip
import io
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from lineage.config.data import Task
from lineage.config.records import parse_record
from lineage.data.files import find_data_files
from lineage.data.items import build_items, check_task_files
from lineage.data.quoting import check_quotes
from lineage.data.sources import DataTable
from lineage.data.tables import TextTableFormat
from lineage.errors import InputError
from lineage.tasks.base import load_kind

DELIMITERS = pytest.mark.parametrize("suffix", ["csv", "tsv"])
SIGN = {"csv": ",", "tsv": "\t"}
SOMETIMES = settings(
    max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
LETTERS = st.sampled_from('ab 7é,\t"')
MARK = st.sampled_from(["", "", '"'])
TEXTS = st.lists(st.one_of(LETTERS, st.sampled_from(["\n", "\r\n"])), max_size=12).map("".join)


def checked(folder: Path, text: str, suffix: str, *, columns: int = 2) -> None:
    path = folder / f"t.{suffix}"
    path.write_bytes(text.encode())
    check_quotes(path, path.name, "task.files.train", num_columns=columns, delimiter=SIGN[suffix])


def rows_of(
    folder: Path,
    suffix: str,
    *columns: str,
    csv_quoting: bool = True,
    form: TextTableFormat | None = None,
) -> list[list[str]]:
    """The rows as every stage reads them, checked as the sources stage does."""
    table = DataTable(
        replace(
            find_data_files(f"t.{suffix}", folder, "task.files.train"), csv_quoting=csv_quoting
        ),
        "task.files.train",
        text_format=form,
    )
    table.check(columns)
    return [list(row) for row in zip(*table.read_columns(columns).values(), strict=True)]


def written(rows: list[list[str]], suffix: str, **how: object) -> str:
    stream = io.StringIO()
    csv.writer(stream, delimiter=SIGN[suffix], **how).writerows(rows)  # type: ignore[arg-type]
    return stream.getvalue()


def like_rows(text: str, sign: str) -> bool:
    """Whether every line but the last holds what stands between cells, as rows would."""
    first, *others = text.split("\n")
    return bool(others) and all(sign in line for line in [first, *filter(str.strip, others[:-1])])


@DELIMITERS
@pytest.mark.parametrize("how", [{}, {"quoting": csv.QUOTE_ALL}, {"lineterminator": "\n"}])
@given(texts=st.lists(TEXTS, min_size=1, max_size=30), seed=st.integers(0, 3))
@SOMETIMES
def test_what_a_writer_of_csv_wrote_is_taken_with_line_ends_in_it(
    texts, seed, how, suffix, tmp_path
):
    rows = [[text, str((place + seed) % 2)] for place, text in enumerate(texts)]
    text = written([["text", "label"], *rows], suffix, **how)
    if not any(like_rows(text, SIGN[suffix]) for text in texts):
        checked(tmp_path, text, suffix)
    checked(
        tmp_path, written([["text"], *[[text] for text in texts]], suffix, **how), suffix, columns=1
    )


@DELIMITERS
@given(
    texts=st.lists(
        st.tuples(MARK, st.text(LETTERS, min_size=1, max_size=8), MARK).map("".join),
        min_size=1,
        max_size=30,
    )
)
@SOMETIMES
def test_of_a_table_without_quoting_no_row_is_lost_without_a_word(texts, suffix, tmp_path):
    sign, texts = (
        SIGN[suffix],
        ["x", "y", *(text.replace(SIGN[suffix], "") or "z" for text in texts)],
    )
    labels = [str(place % 2) for place in range(len(texts))]
    (tmp_path / f"t.{suffix}").write_text(
        "".join(
            sign.join(row) + "\n" for row in zip(["text", *texts], ["label", *labels], strict=True)
        )
    )
    try:
        found = [row[1] for row in rows_of(tmp_path, suffix, "text", "label")]
    except InputError as error:
        found = [str(error)]
    assert found == labels or "a cell begins with a quotation mark that nothing closes" in found[0]


ROWS = "".join(f"a text of its own {n}\t{n % 2}\n" for n in range(20))


@DELIMITERS
@pytest.mark.parametrize(("glued", "line", "said"), [
    ('"Hello there\t1\nso he said "no"\t0\n', 22, "the next one is inside a text, in line 23"),
    ('"Hello there\t1\nso he said no"\t0\n', 22, "2 rows would be read as one"),
    ('"Hello there\t1\n\nand\t0\nso he said no"\t0\n', 22, "3 rows would be read as one"),
    ('good\t0\n"Hello there\t1\nso he said no\t0\n', 23, "there is no other one up to the end of the file"),
])  # fmt: skip
def test_a_mark_that_nothing_closes_is_named_by_its_line(glued, line, said, suffix, tmp_path):
    with pytest.raises(
        InputError,
        match=rf"^task\.files\.train: t\.{suffix}, line {line}: a cell begins .*{said}; if .* set csv_quoting: false; otherwise .* jsonl",
    ):
        checked(
            tmp_path,
            f"text\tlabel\n{ROWS}{glued}{ROWS if 'good' not in glued else ''}".replace(
                "\t", SIGN[suffix]
            ),
            suffix,
        )


@pytest.mark.parametrize(
    "cell",
    [
        "Dear Sir,\nthank you",
        "Dear Sir,\n\n1\nthank you",
        "one\r\ntwo",
        'so, "he"\n"said", they say',
        "a,b\nc,d",
    ],
)
def test_a_letter_in_a_cell_is_no_row(cell, tmp_path):
    """With commas at the ends of its lines it has as many as a row has: the labels tell."""
    rows = [
        ["a text, of its own", "1"],
        *[[f"text {n}", str(n % 3)] for n in range(9)],
        [cell, "2"],
    ]
    (tmp_path / "t.csv").write_text(written([["text", "label"], *rows], "csv"), newline="")
    found = rows_of(tmp_path, "csv", "text", "label")
    assert [row[1] for row in found] == [row[1] for row in rows] and found[-1][
        0
    ].split() == cell.split()


def test_of_two_columns_of_texts_only_a_tab_or_every_such_cell_tells(tmp_path):
    pairs = [[f"text, {n}", f"another {n}"] for n in range(9)]
    two = [["first", "second"], *pairs, ["Yes, Sir\nno", "never"], ["Yes\nno", "never, ever"]]
    checked(tmp_path, written(two, "csv"), "csv")
    glued = (
        "first,second\n"
        + "".join(f"text {n},another {n}\n" for n in range(9))
        + '"Yes,Sir\nno",never\n'
    )
    for text, suffix in ((glued, "csv"), (glued.replace(",", "\t"), "tsv")):
        with pytest.raises(InputError, match=r"line 11: .* 2 rows would be read as one"):
            checked(tmp_path, text, suffix)


@DELIMITERS
def test_a_table_in_the_order_of_its_labels_is_learned_whole(suffix, tmp_path):
    rows = [f"a text of its own {n}\t{n // 1500}" for n in range(3000)]
    rows[1600:1602] = ['"Hello there\t1', 'so he said no"\t1']
    with pytest.raises(InputError, match=r"line 1602: .* 2 rows would be read as one"):
        checked(tmp_path, "\n".join(["text\tlabel", *rows, ""]).replace("\t", SIGN[suffix]), suffix)


def test_a_long_cell_and_a_compressed_table_are_looked_at_too(tmp_path):
    checked(
        tmp_path,
        written(
            [["text", "label"], ['a "long" \n text ' * 20_000, "1"], ['"' + "x" * 200_000, "0"]],
            "csv",
        ),
        "csv",
    )
    path = tmp_path / "t.csv.gz"
    path.write_bytes(gzip.compress(b'text,label\n"a,1\nb,0\n'))
    with pytest.raises(InputError, match=r"t\.csv\.gz, line 2: a cell begins"):
        rows_of(tmp_path, "csv.gz", "text", "label")


@DELIMITERS
@given(
    texts=st.lists(
        st.text('a"“7 é', min_size=1, max_size=8).filter(str.strip), min_size=1, max_size=20
    ),
    named=st.booleans(),
)
@SOMETIMES
def test_where_marks_mean_nothing_they_are_a_part_of_the_texts(texts, named, suffix, tmp_path):
    lines = [f"{n}{SIGN[suffix]}{text}" for n, text in enumerate(texts)]
    (tmp_path / f"t.{suffix}").write_text(
        "\n".join([f'n{SIGN[suffix]}"text"', *lines] if named else lines) + "\n"
    )
    columns, form = ("n", '"text"'), None if named else TextTableFormat(("n", '"text"'))
    assert rows_of(tmp_path, suffix, *columns, csv_quoting=False, form=form) == [
        [str(n), text] for n, text in enumerate(texts)
    ]


def test_a_task_says_that_marks_mean_nothing_where_the_message_sends_it(tmp_path):
    rows = "".join(f'{n % 2}\t"房间{n}很小\n' for n in range(30))
    (tmp_path / "t.tsv").write_text("label\ttext_a\n" + rows)
    tree = {
        "kind": "text_classification",
        "language": "zh",
        "files": {"train": "t.tsv", "test": "t.tsv"},
        "text": ["text_a"],
        "label": "label",
    }
    with pytest.raises(
        InputError,
        match=r"line 2: a cell begins with a quotation mark that nothing closes.*; if quotation marks .* set csv_quoting: false;",
    ):
        check_task_files(
            parse_record(Task, tree, "task"),
            load_kind("text_classification"),
            root=tmp_path,
            where="task",
            read_files=True,
        )
    task = parse_record(Task, tree | {"csv_quoting": False}, "task")
    check_task_files(
        task, load_kind("text_classification"), root=tmp_path, where="task", read_files=True
    )
    assert (
        build_items(
            "x", task, load_kind("text_classification"), seed=1, root=tmp_path, where="task"
        )
        .splits["test"]["text"]
        .iloc[0]
        == '"房间0很小'
    )


@pytest.mark.parametrize("csv_quoting", [True, False])
@pytest.mark.parametrize(
    "text",
    ['text,label\n"a, b",x\nc,y\n', "text,label\na, b,x\nc,y\n", "label,text\n\nx,a, b\ny,c\n"],
)
def test_a_first_row_of_more_cells_than_names_is_no_index(text, csv_quoting, tmp_path):
    """As pandas takes it: its other cells would stand under other names."""
    (tmp_path / "t.csv").write_text(text)
    if csv_quoting and '"' in text:
        assert rows_of(tmp_path, "csv", "text", "label") == [["a, b", "x"], ["c", "y"]]
        return
    with pytest.raises(
        InputError,
        match=r"t\.csv: its first row has 3 cells, but its header has 2 names; put quotation marks around cells that contain the delimiter",
    ):
        rows_of(tmp_path, "csv", "text", "label", csv_quoting=csv_quoting)


@pytest.mark.parametrize("named", [True, False])
def test_a_first_row_may_be_a_whole_book(named, tmp_path):
    """Of more letters than a cell of Python's csv has as shipped."""
    heading, form = ("text,label\n", None) if named else ("", TextTableFormat(("text", "label")))
    (tmp_path / "t.csv").write_text(f'{heading}{"word " * 40_000},x\n"c\nd",y\n')
    assert [len(text) for text, _ in rows_of(tmp_path, "csv", "text", "label", form=form)] == [
        200_000,
        3,
    ]


def test_files_of_one_table_have_the_same_columns_in_any_order(tmp_path):
    for name, heading in (("a", "id,text,label"), ("b", "label,id,text")):
        (tmp_path / f"{name}.csv").write_text(
            f"{heading}\n" + ",".join(f"{column}-{name}" for column in heading.split(",")) + "\n"
        )
    table = DataTable(find_data_files("*.csv", tmp_path, "task.files.train"), "task.files.train")
    table.check(["text"])
    assert table.read_columns(["text", "label"]) == {
        "text": ["text-a", "text-b"],
        "label": ["label-a", "label-b"],
    }
    (tmp_path / "c.csv").write_text("text,label\nc,c\n")
    with pytest.raises(InputError, match=r"task\.files\.train: c\.csv has no column 'id'"):
        DataTable(find_data_files("*.csv", tmp_path, "task.files.train"), "task.files.train").check(
            ["text"]
        )


def test_what_a_folder_is_read_without_is_said_where_it_has_nothing_else(tmp_path):
    (tmp_path / "a.json").write_text("{}")
    with pytest.raises(
        InputError,
        match=r"no file matches '\.' in .*; in a folder, \.json and unknown suffixes are skipped: name them",
    ):
        find_data_files(".", tmp_path, "task.files.train")
