"""Unclosed quotation marks in csv and tsv tables are refused, so that no row is lost."""

import csv
import gzip
import io
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from lineage.data.files import find_data_files
from lineage.data.quoting import check_quotes
from lineage.data.sources import DataTable
from lineage.data.tables import TextTableFormat
from lineage.errors import InputError

EACH_SUFFIX = pytest.mark.parametrize("suffix", ["csv", "tsv"])
DELIMITER = {"csv": ",", "tsv": "\t"}
FEW_EXAMPLES = settings(
    max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
CHARACTERS = st.sampled_from('ab 7é,\t"')
MAYBE_QUOTE = st.sampled_from(["", "", '"'])
TEXTS = st.lists(st.one_of(CHARACTERS, st.sampled_from(["\n", "\r\n"])), max_size=12).map("".join)


def check_table_quotes(folder: Path, text: str, suffix: str, *, columns: int = 2) -> None:
    path = folder / f"t.{suffix}"
    path.write_bytes(text.encode())
    check_quotes(
        path, path.name, "task.files.train", num_columns=columns, delimiter=DELIMITER[suffix]
    )


def read_rows(
    folder: Path,
    suffix: str,
    *columns: str,
    csv_quoting: bool = True,
    text_format: TextTableFormat | None = None,
) -> list[list[str]]:
    """Check a table as the sources stage does, and read its rows as every stage does."""
    table = DataTable(
        replace(
            find_data_files(f"t.{suffix}", folder, "task.files.train"), csv_quoting=csv_quoting
        ),
        "task.files.train",
        text_format=text_format,
    )
    table.check(columns)
    return [list(row) for row in zip(*table.read_columns(columns).values(), strict=True)]


def format_rows(rows: list[list[str]], suffix: str, **options: object) -> str:
    stream = io.StringIO()
    csv.writer(stream, delimiter=DELIMITER[suffix], **options).writerows(rows)  # type: ignore[arg-type]
    return stream.getvalue()


def looks_like_rows(text: str, delimiter: str) -> bool:
    """Return whether every line except the last contains the delimiter, as rows do."""
    first, *others = text.split("\n")
    return bool(others) and all(
        delimiter in line for line in [first, *filter(str.strip, others[:-1])]
    )


@EACH_SUFFIX
@pytest.mark.parametrize("options", [{}, {"quoting": csv.QUOTE_ALL}, {"lineterminator": "\n"}])
@given(texts=st.lists(TEXTS, min_size=1, max_size=30), seed=st.integers(0, 3))
@FEW_EXAMPLES
def test_tables_of_the_csv_writer_with_line_ends_in_cells_are_accepted(
    texts, seed, options, suffix, tmp_path
):
    rows = [[text, str((index + seed) % 2)] for index, text in enumerate(texts)]
    text = format_rows([["text", "label"], *rows], suffix, **options)
    if not any(looks_like_rows(text, DELIMITER[suffix]) for text in texts):
        check_table_quotes(tmp_path, text, suffix)
    check_table_quotes(
        tmp_path,
        format_rows([["text"], *[[text] for text in texts]], suffix, **options),
        suffix,
        columns=1,
    )


@EACH_SUFFIX
@given(
    texts=st.lists(
        st.tuples(MAYBE_QUOTE, st.text(CHARACTERS, min_size=1, max_size=8), MAYBE_QUOTE).map(
            "".join
        ),
        min_size=1,
        max_size=30,
    )
)
@FEW_EXAMPLES
def test_a_table_without_quoting_is_read_whole_or_refused(texts, suffix, tmp_path):
    delimiter = DELIMITER[suffix]
    texts = ["x", "y", *(text.replace(delimiter, "") or "z" for text in texts)]
    labels = [str(index % 2) for index in range(len(texts))]
    (tmp_path / f"t.{suffix}").write_text(
        "".join(
            delimiter.join(row) + "\n"
            for row in zip(["text", *texts], ["label", *labels], strict=True)
        )
    )
    try:
        result = [row[1] for row in read_rows(tmp_path, suffix, "text", "label")]
    except InputError as error:
        result = [str(error)]
    message = "a cell begins with a quotation mark that nothing closes"
    assert result == labels or message in result[0]


PLAIN_ROWS = "".join(f"a text of its own {n}\t{n % 2}\n" for n in range(20))


@EACH_SUFFIX
@pytest.mark.parametrize(("bad_rows", "line", "message"), [
    ('"Hello there\t1\nso he said "no"\t0\n', 22, "the next one is inside a text, in line 23"),
    ('"Hello there\t1\nso he said no"\t0\n', 22, "2 rows would be read as one"),
    ('"Hello there\t1\n\nand\t0\nso he said no"\t0\n', 22, "3 rows would be read as one"),
    ('good\t0\n"Hello there\t1\nso he said no\t0\n', 23, "there is no other one up to the end of the file"),
])  # fmt: skip
def test_an_unclosed_quotation_mark_is_refused_with_its_line(
    bad_rows, line, message, suffix, tmp_path
):
    with pytest.raises(
        InputError,
        match=rf"^task\.files\.train: t\.{suffix}, line {line}: a cell begins .*{message}; if .* set csv_quoting: false; otherwise .* jsonl",
    ):
        check_table_quotes(
            tmp_path,
            f"text\tlabel\n{PLAIN_ROWS}{bad_rows}{PLAIN_ROWS if 'good' not in bad_rows else ''}".replace(
                "\t", DELIMITER[suffix]
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
def test_a_cell_with_line_ends_is_not_split_into_rows(cell, tmp_path):
    """A line of the cell may have as many commas as a row; then the labels show that it is text."""
    rows = [
        ["a text, of its own", "1"],
        *[[f"text {n}", str(n % 3)] for n in range(9)],
        [cell, "2"],
    ]
    (tmp_path / "t.csv").write_text(format_rows([["text", "label"], *rows], "csv"), newline="")
    rows_read = read_rows(tmp_path, "csv", "text", "label")
    assert [row[1] for row in rows_read] == [row[1] for row in rows]
    assert rows_read[-1][0].split() == cell.split()


def test_in_two_text_columns_only_cells_that_all_look_like_rows_are_refused(tmp_path):
    pairs = [[f"text, {n}", f"another {n}"] for n in range(9)]
    rows = [["first", "second"], *pairs, ["Yes, Sir\nno", "never"], ["Yes\nno", "never, ever"]]
    check_table_quotes(tmp_path, format_rows(rows, "csv"), "csv")
    glued = (
        "first,second\n"
        + "".join(f"text {n},another {n}\n" for n in range(9))
        + '"Yes,Sir\nno",never\n'
    )
    for text, suffix in ((glued, "csv"), (glued.replace(",", "\t"), "tsv")):
        with pytest.raises(InputError, match=r"line 11: .* 2 rows would be read as one"):
            check_table_quotes(tmp_path, text, suffix)


@EACH_SUFFIX
def test_an_unclosed_quotation_mark_is_found_in_a_table_sorted_by_label(suffix, tmp_path):
    rows = [f"a text of its own {n}\t{n // 1500}" for n in range(3000)]
    rows[1600:1602] = ['"Hello there\t1', 'so he said no"\t1']
    with pytest.raises(InputError, match=r"line 1602: .* 2 rows would be read as one"):
        check_table_quotes(
            tmp_path, "\n".join(["text\tlabel", *rows, ""]).replace("\t", DELIMITER[suffix]), suffix
        )


def test_long_cells_and_compressed_tables_are_checked(tmp_path):
    check_table_quotes(
        tmp_path,
        format_rows(
            [["text", "label"], ['a "long" \n text ' * 20_000, "1"], ['"' + "x" * 200_000, "0"]],
            "csv",
        ),
        "csv",
    )
    path = tmp_path / "t.csv.gz"
    path.write_bytes(gzip.compress(b'text,label\n"a,1\nb,0\n'))
    with pytest.raises(InputError, match=r"t\.csv\.gz, line 2: a cell begins"):
        read_rows(tmp_path, "csv.gz", "text", "label")


@EACH_SUFFIX
@given(
    texts=st.lists(
        st.text('a"“7 é', min_size=1, max_size=8).filter(str.strip), min_size=1, max_size=20
    ),
    has_header=st.booleans(),
)
@FEW_EXAMPLES
def test_without_csv_quoting_quotation_marks_are_part_of_the_text(
    texts, has_header, suffix, tmp_path
):
    lines = [f"{n}{DELIMITER[suffix]}{text}" for n, text in enumerate(texts)]
    (tmp_path / f"t.{suffix}").write_text(
        "\n".join([f'n{DELIMITER[suffix]}"text"', *lines] if has_header else lines) + "\n"
    )
    columns = ("n", '"text"')
    text_format = None if has_header else TextTableFormat(("n", '"text"'))
    assert read_rows(tmp_path, suffix, *columns, csv_quoting=False, text_format=text_format) == [
        [str(n), text] for n, text in enumerate(texts)
    ]


@pytest.mark.parametrize("csv_quoting", [True, False])
@pytest.mark.parametrize(
    "text",
    ['text,label\n"a, b",x\nc,y\n', "text,label\na, b,x\nc,y\n", "label,text\n\nx,a, b\ny,c\n"],
)
def test_a_first_row_with_more_cells_than_the_header_is_refused(text, csv_quoting, tmp_path):
    """pandas would take the first cell as an index and move the others to the wrong columns."""
    (tmp_path / "t.csv").write_text(text)
    if csv_quoting and '"' in text:
        assert read_rows(tmp_path, "csv", "text", "label") == [["a, b", "x"], ["c", "y"]]
        return
    with pytest.raises(
        InputError,
        match=r"t\.csv: its first row has 3 cells, but its header has 2 names; put quotation marks around cells that contain the delimiter",
    ):
        read_rows(tmp_path, "csv", "text", "label", csv_quoting=csv_quoting)


@pytest.mark.parametrize("has_header", [True, False])
def test_a_first_row_may_be_very_long(has_header, tmp_path):
    """The cell is longer than the default limit of Python's csv module."""
    heading, text_format = (
        ("text,label\n", None) if has_header else ("", TextTableFormat(("text", "label")))
    )
    (tmp_path / "t.csv").write_text(f'{heading}{"word " * 40_000},x\n"c\nd",y\n')
    assert [
        len(text)
        for text, _ in read_rows(tmp_path, "csv", "text", "label", text_format=text_format)
    ] == [200_000, 3]


def test_files_of_one_table_may_have_other_columns_and_in_any_order(tmp_path):
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
    table = DataTable(find_data_files("*.csv", tmp_path, "task.files.train"), "task.files.train")
    table.check(["text"])
    assert table.read_columns(["label"]) == {"label": ["label-a", "label-b", "c"]}
    with pytest.raises(InputError, match=r"task\.files\.train: c\.csv has no column 'id'"):
        table.check(["id"])
