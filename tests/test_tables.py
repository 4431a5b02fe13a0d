"""Files without column names are read in the formats of public datasets.

Every row and tag is read, and lines of another format are refused.
"""

import csv
import gzip
import io
import os
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from lineage import artifacts
from lineage.config.data import Task
from lineage.config.records import parse_record
from lineage.data import tables
from lineage.data.items import TaskItems
from lineage.data.sources import open_task_tables
from lineage.errors import InputError
from tests.helpers.tasks import (
    TEXTS,
    build_file_task,
    build_task_items,
    format_lines,
    tagged_test_sentences,
)
from tests.helpers.user_project import RunStage, make_project, without_repeat_warnings, write_params

TREC = [
    ("DESC:manner", "How did serfdom develop : in Russia ?"),
    ("ENTY:cremat", 'What films featured "Popeye"  Doyle ?'),
    ("DESC:def", "What is\tBPH ?"),
] * 9
COARSE = r"(?P<label>\w+):\S+ (?P<text>.*)"
TITLES = [("体育", '湖人 "3:1" 获胜'), ("财经", "A股，收盘_大涨"), ("体育", '"国足"出线')] * 9
PAIRS = [(1, 'E. D. "Abbott", Ltd', "of\nFarnham"), (2, "Schwan\tStabilo", " makes pens")] * 9


def labelled_test_rows(items: TaskItems, *columns: str) -> list[tuple[str, ...]]:
    """Return the columns of the test rows, with label names first."""
    table = items.splits["test"]
    return list(
        zip(
            (items.info.labels[label_id] for label_id in table["label"]),
            *(table[column] for column in columns),
            strict=True,
        )
    )


@pytest.mark.parametrize("name", ["train_5500.label", "train.txt", "train.txt.gz", "train"])
def test_label_and_text_are_split_at_the_first_space_or_by_a_pattern(
    name: str, tmp_path: Path
) -> None:
    expected = [(label, text.replace("\t", " ")) for label, text in TREC]
    fine = build_file_task(tmp_path, name, format_lines(TREC, " "), columns=["label", "text"])
    assert labelled_test_rows(fine, "text") == expected
    coarse = build_file_task(tmp_path, name, format_lines(TREC, " "), columns=COARSE)
    assert labelled_test_rows(coarse, "text") == [
        (label.split(":")[0], text) for label, text in expected
    ]


@pytest.mark.parametrize(
    ("name", "byte_order_mark"), [("cnews.train.txt", ""), ("train.txt", "\ufeff")]
)
@pytest.mark.parametrize("end", ["\n", "\r\n"])
def test_tab_separated_labels_and_texts_are_read_in_either_order(
    name: str, byte_order_mark: str, end: str, tmp_path: Path
) -> None:
    task_items = build_file_task(
        tmp_path,
        name,
        byte_order_mark + format_lines(TITLES, "\t", end) + end,
        columns=["label", "text"],
        language="zh",
    )
    assert labelled_test_rows(task_items, "text") == TITLES
    assert task_items.info.dropped["test"] == {"blank": 1}
    reversed_rows = [(text, label) for label, text in TITLES]
    reversed_items = build_file_task(
        tmp_path,
        name,
        byte_order_mark + format_lines(reversed_rows, "\t", end),
        columns=["text", "label"],
        language="zh",
    )
    assert labelled_test_rows(reversed_items, "text") == TITLES


def test_a_pattern_that_takes_exponential_time_is_stopped_at_its_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tables, "MATCH_SECONDS", 0.2)
    pattern = "(?P<label>[01]) (?P<text>(a|aa)+)"
    lines = [(number % 2, "a" * 5) for number in range(20)]
    lines[12] = (0, "a" * 200 + "b")
    message = r"pairs\.txt, line 13: the pattern in 'columns' is not done with it in 0\.2 s; write"
    with pytest.raises(InputError, match=message):
        build_file_task(tmp_path, "pairs.txt", format_lines(lines, " "), columns=pattern)


@pytest.mark.parametrize("suffix", ["csv", "tsv"])
def test_the_first_line_of_a_table_is_a_row_unless_it_names_the_columns(
    suffix: str, tmp_path: Path
) -> None:
    table = io.StringIO()
    delimiter = {"csv": ",", "tsv": "\t"}[suffix]
    csv.writer(table, delimiter=delimiter, quoting=csv.QUOTE_ALL).writerows(PAIRS)
    fields = {"columns": ["label", "title", "text"], "text": ["title", "text"]}
    task_items = build_file_task(tmp_path, f"t.{suffix}", table.getvalue(), **fields)
    expected = [
        (str(label), title.replace("\t", " "), body.strip()) for label, title, body in PAIRS
    ]
    assert labelled_test_rows(task_items, "text", "second") == expected
    items_with_header = build_file_task(
        tmp_path,
        f"t.{suffix}",
        "\ufeff" + '"label","title","text"\n'.replace(",", delimiter) + table.getvalue(),
        **fields,
    )
    assert labelled_test_rows(items_with_header, "text", "second") == expected
    assert items_with_header.splits["test"]["id"].iloc[0] == "test-1", "the header is not a row"
    rows_with_open_quote = [
        *["Hello there\t1", 'so he said no"\t0'],
        *(f"text {number}\t{number % 2}" for number in range(20)),
    ]
    with pytest.raises(
        InputError, match=r"line 1: a cell begins with a quotation mark that nothing closes"
    ):
        build_file_task(
            tmp_path,
            f"t.{suffix}",
            '"' + "\n".join(rows_with_open_quote).replace("\t", delimiter),
            columns=["text", "label"],
        )


@pytest.mark.parametrize(("name", "text", "columns", "message"), [
    ("t.txt", "a\tx\nb\ty\tz\n", ["label", "text"], r"t\.txt, line 2: it has 3 cells, and columns names 2: label, text; lines are parted by tabs"),
    ("t.txt", "a x\nb\n", ["label", "text"], r"line 2: it has 1 cells, .* a pattern, as columns: '\(\?P<label>\.\*\?\)_\(\?P<text>\.\*\)'"),
    ("t.txt", "a x\nb y z\n", r"(?P<label>\w+) (?P<text>\w+)", r"line 2: it does not match the pattern in 'columns'"),
    ("t.txt", "a:b c\nd c\n", COARSE, r"line 2: it does not match the pattern in 'columns'"),
    ("t.csv", "a,x\n\nb,y,z\n", ["label", "text"], r"t\.csv, line 3: it has 3 cells, and columns names 2: label, text; correct it, or name all"),
    ("t.csv", "a,x\n", COARSE, r"columns is a pattern of lines, and t\.csv is a table; give the names of all its columns as a list"),
    ("t.csv", "label,review\na,x\n", ["label", "text"], r"line 1: it is a header, and 'columns' gives other names; use the names of the header"),
    ("t.jsonl", '{"label": "a"}\n', ["label", "text"], r"t\.jsonl names its columns itself; remove 'columns'"),
    ("t.csv", "Label,Review\na,x\n", ["label", "text"], r"line 1: it is a header, and 'columns' gives other names; use the names of the header"),
    ("t.txt", "a x\n", ["label", "question"], r"t\.txt has no column 'text'"),
    ("t.txt", "a x\n", ["text", "text"], r"columns must be a list with a name for each column, or a pattern"),
    ("t.txt", "a x\n", "(a", r"columns is '\(a', which is not a regular expression: .*; correct it"),
    ("t.tsv", "a\tx\nb\ty\n", None, r"has no column 'text'; known: a, x; if the file has no header, list all its columns under 'columns'"),
    ("t.txt", "a\tx\nb\ty\n", None, r"has no column 'label'; known: text; a txt has no header: list its columns, such as"),
    ("t.label", "a\tx\nb\ty\n", None, r"names format '\.label'; .*; a task reads other lines of text by its key 'columns'"),
])  # fmt: skip
def test_lines_of_another_format_are_refused_with_advice(
    name: str, text: str, columns: Any, message: str, tmp_path: Path
) -> None:
    with pytest.raises(InputError, match=message):
        build_file_task(tmp_path, name, text, columns=columns)


@pytest.mark.parametrize(
    ("start", "end"),
    [
        ("category\tsentence\n", ""),
        ("\ncategory\tsentence\n", ""),
        ("\n", ""),
        ("a\tx 1\n", "a\tx 2\n"),
        ("a\tx 1\n", ""),
    ],
)
def test_a_shared_first_line_with_a_label_of_its_own_is_refused_as_a_header(
    start: str, end: str, tmp_path: Path
) -> None:
    """The line is a header if train and test share it and no other row has its label."""
    for name in ("train", "test"):
        (tmp_path / f"{name}.tsv").write_text(
            start + "".join(f"{'bc'[number % 2]}\t{name} {number}\n" for number in range(20)) + end
        )
    fields = {"files": {"train": "train.tsv", "test": "test.tsv"}, "columns": ["label", "text"]}
    if end or not start.strip():
        expected = ["a", "b", "c"] if end else ["b", "c"]
        assert build_file_task(tmp_path, "other.tsv", "", **fields).info.labels == expected
        return
    with pytest.raises(
        InputError,
        match=r"train\.tsv: all splits begin with this line, and its 'label' occurs nowhere else: if the line is a header",
    ):
        build_file_task(tmp_path, "other.tsv", "", **fields)
    label = start.split("\t")[0].strip()
    task_items = build_file_task(tmp_path, "other.tsv", "", **fields, label_map={label: "d"})
    assert task_items.info.labels == ["b", "c", "d"]
    (tmp_path / "test.tsv").write_text(
        "".join(f"{'bc'[number % 2]}\tother {number}\n" for number in range(20))
    )
    assert label in build_file_task(tmp_path, "other.tsv", "", **fields).info.labels, (
        "a line that only train begins with may be an item"
    )


@pytest.mark.parametrize(("content", "columns"), [
    ("Label,Text\n" + "a,x\nb,y\n" * 9, ["label", "text"]),
    ("# id 00-ab\tdomain=en\nEU _ _ B-ORG\nsays _ _ O\n\n# id 01\tdomain=en\nAnn _ _ B-PER\n\n", ["tokens", "one", "two", "ner"]),  # MultiCoNER
    ("#begin document (a); part 000\na 0 EU B-ORG\na 0 says O\n\na 0 Ann B-PER\n#end document\n", ["file", "part", "tokens", "ner"]),
])  # fmt: skip
def test_headers_comments_and_document_lines_are_not_read_as_data(
    content: str, columns: list[str], tmp_path: Path
) -> None:
    if "text" in columns:
        table_items = build_file_task(tmp_path, "t.csv", content, columns=columns)
        assert labelled_test_rows(table_items, "text") == [("a", "x"), ("b", "y")] * 9
        return
    task_items = build_file_task(
        tmp_path,
        "t.conll",
        content * 9,
        columns=columns,
        kind="token_classification",
        tokens="tokens",
        label="ner",
    )
    assert (
        tagged_test_sentences(task_items)
        == [[("EU", "B-ORG"), ("says", "O")], [("Ann", "B-PER")]] * 9
    )


MOOD_TEXTS = {"pos": ["Well done .\nTruly .", "  Fine\ttoo "] * 6, "neg": ["Not so .", "Bad"] * 6}
FILE_ITEMS = {"document_unit": "file", "text": ["text"], "label": "folder"}


def write_folders(root: Path, name: str = "{n:02}.txt", byte_order_mark: str = "") -> None:
    for split in ("train", "test"):
        for folder, texts in MOOD_TEXTS.items():
            (root / split / folder).mkdir(parents=True)
            for number, text in enumerate(texts):
                path = root / split / folder / name.format(n=number)
                data = (byte_order_mark + text).encode()
                path.write_bytes(gzip.compress(data) if path.suffix == ".gz" else data)


def build_folder_task(root: Path, files: dict[str, str], **fields: Any) -> TaskItems:
    """Build a task in which each file is an item."""
    return build_task_items(root, TEXTS | FILE_ITEMS | {"files": files} | fields, check_files=True)


@pytest.mark.parametrize(("name", "byte_order_mark", "pattern"), [
    ("{n:02}.txt", "", "{split}/[np]*/*.txt"), ("{n:02}.txt", "\ufeff", "{split}"), ("51{n:03}", "", "{split}/*/*"), ("{n:02}.txt.gz", "", "{split}"),
])  # fmt: skip
def test_each_file_is_an_item_whose_folder_is_its_label(
    name: str, byte_order_mark: str, pattern: str, tmp_path: Path
) -> None:
    write_folders(tmp_path, name, byte_order_mark)
    files = {split: pattern.format(split=split) for split in ("train", "test")}
    task_items = build_folder_task(tmp_path, files)
    assert labelled_test_rows(task_items, "text") == [
        (folder, text.strip().replace("\t", " "))
        for folder in sorted(MOOD_TEXTS)
        for text in MOOD_TEXTS[folder]
    ]
    assert task_items.info.labels == ["neg", "pos"]


def test_unlabelled_texts_can_be_files_and_an_extra_test_set_can_be_a_table(tmp_path: Path) -> None:
    write_folders(tmp_path)
    (tmp_path / "more").mkdir()
    for number in range(600):  # more than one batch of files
        (tmp_path / f"more/{number:03}.txt").write_text(f"the {number}th text\nof its own")
    (tmp_path / "other.csv").write_text("text,label\nwell,pos\nno,neg\n")
    files = {"train": "train", "test": "test", "unlabelled": "more"}
    table = {"files": {"test": "other.csv"}, "label": "label"}
    task_items = build_folder_task(tmp_path, files, extra_test_sets={"table": table})
    assert len(task_items.splits["test-table"]) == 2
    assert task_items.splits["unlabelled"]["text"].tolist()[599] == "the 599th text\nof its own"
    (tmp_path / "lines.txt").write_text("first\nsecond\n")
    task_items = build_folder_task(tmp_path, files | {"unlabelled": "lines.txt"})
    assert task_items.splits["unlabelled"]["text"].tolist() == ["first", "second"], (
        "a single file has one text per line"
    )


def test_one_split_can_be_a_table_while_another_has_one_file_per_item(tmp_path: Path) -> None:
    write_folders(tmp_path)
    (tmp_path / "t.csv").write_text("folder,text\npos,fine\nneg,bad\n")
    task_items = build_folder_task(tmp_path, {"train": "train", "test": "t.csv"})
    assert labelled_test_rows(task_items, "text") == [("pos", "fine"), ("neg", "bad")]


def test_skipped_folders_and_files_are_reported(tmp_path: Path) -> None:
    """Hidden folders, linked folders and files without a suffix must not be skipped silently."""
    write_folders(tmp_path)
    (tmp_path / "train/.ignore").write_text("no item")
    files = {"train": "train", "test": "test"}
    task_items = build_folder_task(tmp_path, files)
    assert task_items.info.labels == ["neg", "pos"]
    elsewhere = tmp_path / "elsewhere/neu"
    elsewhere.mkdir(parents=True)
    for number in range(12):
        (elsewhere / f"{number}.txt").write_text("neither nor")
    link = tmp_path / "train/neu"
    link.symlink_to(elsewhere)
    with pytest.raises(
        InputError,
        match=r"'train' skips 12 files, such as train/neu/0\.txt; rename hidden folders; if folders are links",
    ):
        build_folder_task(tmp_path, files)
    task_items = build_folder_task(tmp_path, files | {"train": "train/*/*.txt"})
    assert task_items.info.counts["train"] > 30
    link.unlink()
    elsewhere.rename(tmp_path / "train/.net")
    for pattern in ("train", "train/*/*.txt"):
        with pytest.raises(
            InputError, match=r"skips 12 files, such as train/\.net/0\.txt; rename hidden folders"
        ):
            build_folder_task(tmp_path, files | {"train": pattern})
    (tmp_path / "train/.net").rename(tmp_path / "train/net")
    (tmp_path / "train/net/0.txt").rename(tmp_path / "train/net/0")
    with pytest.raises(
        InputError, match=r"skips 1 files, such as train/net/0; .* or names do not end in \.txt"
    ):
        build_folder_task(tmp_path, files)


def test_folder_names_are_recorded_and_must_be_utf_8(tmp_path: Path) -> None:
    """Renaming a folder outside the data root changes the recorded names."""
    write_folders(tmp_path / "far/p1")
    fields = {
        "kind": "text_classification",
        "files": {"train": str(tmp_path / "far/*/train/*/*.txt")},
        "folds": 3,
    }
    task = parse_record(Task, fields | FILE_ITEMS, "task")
    recorded_names = []
    for name in ("neg", "negative"):
        tables = open_task_tables(task, tmp_path / "root", "task")
        recorded_names.append([file["name"] for file in tables["train"].fingerprint()["files"]])
        (tmp_path / f"far/p1/train/{name}").rename(tmp_path / "far/p1/train/negative")
    assert recorded_names[0][0] == "p1/train/neg/00.txt"
    assert recorded_names[1][0] == "p1/train/negative/00.txt"
    (tmp_path / "far/p1/train/negative").rename(
        tmp_path / "far/p1/train" / os.fsdecode("体育".encode("gbk"))
    )
    with pytest.raises(
        InputError,
        match=r"task\.files\.train: the name of a file or folder is not UTF-8: .*; rename it, for example with convmv",
    ):
        open_task_tables(task, tmp_path / "root", "task")


@pytest.mark.parametrize(("fields", "message"), [
    ({"columns": ["label", "text"]}, "document_unit: file makes each of 'files' an item with the columns folder and text; remove 'columns'"),
    ({"label": "class"}, r"train/neg/00\.txt has no column 'class'; known: folder, text"),
    ({"files": {"train": "train", "test": "t.csv"}}, r"files\.test: t\.csv has no column 'folder'; known: label, text"),
    ({"document_unit": "line"}, r"train/neg/00\.txt has no column 'folder'; known: text; .*; if each file is one item, set document_unit: file, text"),
    ({"files": {"train": "train/neg", "test": "test"}}, "neg"),
])  # fmt: skip
def test_files_that_do_not_fit_the_task_are_refused_with_advice(
    fields: dict[str, Any], message: str, tmp_path: Path
) -> None:
    write_folders(tmp_path)
    with pytest.raises(InputError, match=message):
        build_file_task(
            tmp_path,
            "t.csv",
            "text,label\na,b\n",
            **{"files": {"train": "train", "test": "test"}} | FILE_ITEMS | fields,
        )


def test_empty_files_and_files_in_another_encoding_are_reported(tmp_path: Path) -> None:
    write_folders(tmp_path)
    (tmp_path / "train/pos/01.txt").write_bytes("caf\u00e9".encode("latin-1"))
    (tmp_path / "train/pos/03.txt").write_bytes("caf\u00e9s".encode("latin-1"))
    message = r"train/pos/01\.txt is not UTF-8 at byte 3; it ends within a character, so it was cut short, or is LATIN1; 1 more files cannot be read"
    with pytest.raises(InputError, match=message):
        build_folder_task(tmp_path, {"train": "train", "test": "test"})
    (tmp_path / "train/pos/01.txt").write_bytes(b"")
    with pytest.raises(InputError, match=r"train/pos/01\.txt is empty"):
        build_folder_task(tmp_path, {"train": "train", "test": "test"})


def test_the_stages_read_such_files_and_an_extra_test_set_in_another_format(
    tmp_path: Path, run_stage: RunStage
) -> None:
    params = make_project(tmp_path)
    for split in ("train", "test"):
        (tmp_path / f"mood/{split}.label").write_text(format_lines(TREC * 3, " "))
    pd.DataFrame(TREC, columns=["label", "text"]).to_csv(tmp_path / "mood/other.csv", index=False)
    files = {
        "train": "mood/train.label",
        "test": "mood/test.label",
        "unlabelled": "mood/more.jsonl",
    }
    (tmp_path / "mood/more.jsonl").write_text(
        "".join(
            f'{{"text": "a text of its own, the {number}th of them"}}\n' for number in range(300)
        )
    )
    params["tasks"]["mood"] = TEXTS | {"files": files, "columns": COARSE, "extra_test_sets": {"fine": {"files": {"test": "mood/other.csv"}, "label_map": dict.fromkeys(["DESC:manner", "DESC:def"], "DESC")
                                                    | {"ENTY:cremat": "ENTY"}}}}  # fmt: skip
    write_params(tmp_path, params)
    for command in (("sources",), ("task", "mood")):
        code, message = run_stage(tmp_path, *command)
        assert (code, without_repeat_warnings(message)) == (0, "")
    counts = artifacts.read_json(tmp_path / "artifacts/tasks/mood/task.json")["counts"]
    assert (counts["test"], counts["test-fine"], counts["unlabelled"]) == (81, 27, 300)


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("columns", ["a"], "'columns' is only for files without column names; remove it"),
        ("document_unit", "file", "remove 'document_unit'"),
    ],
)
def test_keys_of_files_are_refused_without_files(key: str, value: Any, message: str) -> None:
    block = {"kind": "text_classification", "generated": "synthetic", key: value}
    with pytest.raises(InputError, match=message):
        parse_record(Task, block, "task")
