"""Files that do not name their columns, in the forms of public data sets: every row and tag is read, and what is of another form is refused."""

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
from lineage.data.items import TaskItems, build_items, check_task_files
from lineage.data.sources import open_task_tables
from lineage.errors import InputError
from lineage.tasks.base import load_kind
from tests.user_project import make, stage, write

TREC = [
    ("DESC:manner", "How did serfdom develop : in Russia ?"),
    ("ENTY:cremat", 'What films featured "Popeye"  Doyle ?'),
    ("DESC:def", "What is\tBPH ?"),
] * 9
COARSE = r"(?P<label>\w+):\S+ (?P<text>.*)"
TITLES = [("体育", '湖人 "3:1" 获胜'), ("财经", "A股，收盘_大涨"), ("体育", '"国足"出线')] * 9
PAIRS = [(1, 'E. D. "Abbott", Ltd', "of\nFarnham"), (2, "Schwan\tStabilo", " makes pens")] * 9
TEXTS = {"kind": "text_classification", "text": ["text"], "label": "label"}
TOKENS = {
    "kind": "token_classification",
    "columns": ["tokens", "pos", "ner"],
    "tokens": "tokens",
    "label": "ner",
}


def made(root: Path, name: str, written: str, **keys: Any) -> TaskItems:
    (root / name).write_bytes(
        gzip.compress(written.encode()) if name.endswith(".gz") else written.encode()
    )
    tree = {"files": {"train": name, "test": name}} | ({} if "tokens" in keys else TEXTS) | keys
    task, kind = parse_record(Task, tree, "task"), load_kind(tree["kind"])
    check_task_files(task, kind, root=root, where="task", read_files=True)
    return build_items("x", task, kind, seed=1, root=root, where="task")


def rows_of(items: TaskItems, *columns: str) -> list[tuple[str, ...]]:
    """The test rows, with their labels by name."""
    table = items.splits["test"]
    return list(
        zip(
            (items.info["labels"][i] for i in table["label"]),
            *(table[column] for column in columns),
            strict=True,
        )
    )


def sentences_of(items: TaskItems) -> list[list[tuple[str, str]]]:
    """The words of each test sentence, with their tags."""
    table = items.splits["test"]
    return [
        [(word, items.info["labels"][i]) for word, i in zip(*both, strict=True)]
        for both in zip(table["tokens"], table["label"], strict=True)
    ]


def lines(rows: list[tuple[Any, ...]], sign: str, end: str = "\n") -> str:
    return "".join(sign.join(map(str, row)) + end for row in rows)


@pytest.mark.parametrize("name", ["train_5500.label", "train.txt", "train.txt.gz", "train"])
def test_a_label_and_a_text_a_line_are_parted_at_the_first_space_or_as_a_pattern_says(
    name: str, tmp_path: Path
) -> None:
    said = [(label, text.replace("\t", " ")) for label, text in TREC]
    fine = made(tmp_path, name, lines(TREC, " "), columns=["label", "text"])
    assert rows_of(fine, "text") == said
    coarse = made(tmp_path, name, lines(TREC, " "), columns=COARSE)
    assert rows_of(coarse, "text") == [(label.split(":")[0], text) for label, text in said]


@pytest.mark.parametrize(("name", "mark"), [("cnews.train.txt", ""), ("train.txt", "\ufeff")])
@pytest.mark.parametrize("end", ["\n", "\r\n"])
def test_labels_and_texts_between_tabs_are_read_in_either_order_marks_spaces_and_all(
    name: str, mark: str, end: str, tmp_path: Path
) -> None:
    found = made(
        tmp_path,
        name,
        mark + lines(TITLES, "\t", end) + end,
        columns=["label", "text"],
        language="zh",
    )
    assert rows_of(found, "text") == TITLES and found.info["dropped"]["test"] == {"blank": 1}
    turned = [(text, label) for label, text in TITLES]
    assert (
        rows_of(
            made(
                tmp_path,
                name,
                mark + lines(turned, "\t", end),
                columns=["text", "label"],
                language="zh",
            ),
            "text",
        )
        == TITLES
    )


def test_fields_between_other_signs_are_the_groups_of_a_pattern(tmp_path: Path) -> None:
    rows = [(f"655{n}", "101", label, text, "") for n, (label, text) in enumerate(TITLES)]
    form = ".*?_!_.*?_!_(?P<label>.*?)_!_(?P<text>.*)_!_(?P<keywords>.*)"
    assert (
        rows_of(
            made(tmp_path, "cat_data.txt", lines(rows, "_!_"), columns=form, language="zh"), "text"
        )
        == TITLES
    )


@pytest.mark.parametrize("suffix", ["csv", "tsv"])
def test_the_first_line_of_a_table_without_names_is_a_row(suffix: str, tmp_path: Path) -> None:
    text = io.StringIO()
    csv.writer(text, delimiter={"csv": ",", "tsv": "\t"}[suffix], quoting=csv.QUOTE_ALL).writerows(
        PAIRS
    )
    keys = {"columns": ["label", "title", "text"], "text": ["title", "text"]}
    found = made(tmp_path, f"t.{suffix}", text.getvalue(), **keys)
    clean = [(str(label), title.replace("\t", " "), body.strip()) for label, title, body in PAIRS]
    assert rows_of(found, "text", "second") == clean
    named = made(
        tmp_path,
        f"t.{suffix}",
        "\ufeff"
        + ('"label","title","text"\n'.replace(",", "\t" if suffix == "tsv" else ","))
        + text.getvalue(),
        **keys,
    )
    assert (
        rows_of(named, "text", "second") == clean and named.splits["test"]["id"].iloc[0] == "test-1"
    ), "a line of just these names is no row"
    glued = [*["Hello there\t1", 'so he said no"\t0'], *(f"text {n}\t{n % 2}" for n in range(20))]
    with pytest.raises(
        InputError, match=r"line 1: a cell begins with a quotation mark that nothing closes"
    ):
        made(
            tmp_path,
            f"t.{suffix}",
            '"' + "\n".join(glued).replace("\t", "\t" if suffix == "tsv" else ","),
            columns=["text", "label"],
        )


@pytest.mark.parametrize(("name", "text", "columns", "said"), [
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
    ("t.tsv", "a\tx\nb\ty\n", None, r"has no column 'text'; known: a, x; where its first line is a row already, give 'columns', the names of all"),
    ("t.txt", "a\tx\nb\ty\n", None, r"has no column 'label'; known: text; a txt does not name its columns: give 'columns', such as"),
    ("t.label", "a\tx\nb\ty\n", None, r"names format '\.label'; .*; a task reads other lines of text by its key 'columns'"),
])  # fmt: skip
def test_lines_of_another_form_are_refused_with_what_to_write(
    name: str, text: str, columns: Any, said: str, tmp_path: Path
) -> None:
    with pytest.raises(InputError, match=said):
        made(tmp_path, name, text, columns=columns)


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
def test_a_first_line_of_other_names_is_no_item_of_a_class_of_its_own(
    start: str, end: str, tmp_path: Path
) -> None:
    """It is one where train and test share it, and no other row has its label."""
    for name in ("train", "test"):
        (tmp_path / f"{name}.tsv").write_text(
            start + "".join(f"{'bc'[n % 2]}\t{name} {n}\n" for n in range(20)) + end
        )
    keys = {"files": {"train": "train.tsv", "test": "test.tsv"}, "columns": ["label", "text"]}
    if end or not start.strip():
        assert made(tmp_path, "other.tsv", "", **keys).info["labels"] == (
            ["a", "b", "c"] if end else ["b", "c"]
        )
        return
    with pytest.raises(
        InputError,
        match=r"train\.tsv: all splits begin with this line, and its 'label' occurs nowhere else: if the line is a header",
    ):
        made(tmp_path, "other.tsv", "", **keys)
    label = start.split("\t")[0].strip()
    assert made(tmp_path, "other.tsv", "", **keys, label_map={label: "d"}).info["labels"] == [
        "b",
        "c",
        "d",
    ]
    (tmp_path / "test.tsv").write_text("".join(f"{'bc'[n % 2]}\tother {n}\n" for n in range(20)))
    assert label in made(tmp_path, "other.tsv", "", **keys).info["labels"], (
        "of train alone it may be an item"
    )


@pytest.mark.parametrize(("written", "columns"), [
    ("Label,Text\n" + "a,x\nb,y\n" * 9, ["label", "text"]),
    ("# id 00-ab\tdomain=en\nEU _ _ B-ORG\nsays _ _ O\n\n# id 01\tdomain=en\nAnn _ _ B-PER\n\n", ["tokens", "one", "two", "ner"]),  # MultiCoNER
    ("#begin document (a); part 000\na 0 EU B-ORG\na 0 says O\n\na 0 Ann B-PER\n#end document\n", ["file", "part", "tokens", "ner"]),
])  # fmt: skip
def test_headings_of_other_letters_comments_with_a_tab_and_lines_round_documents_are_none_of_the_data(
    written: str, columns: list[str], tmp_path: Path
) -> None:
    if "text" in columns:
        assert (
            rows_of(made(tmp_path, "t.csv", written, columns=columns), "text")
            == [("a", "x"), ("b", "y")] * 9
        )
        return
    found = made(
        tmp_path,
        "t.conll",
        written * 9,
        columns=columns,
        kind="token_classification",
        tokens="tokens",
        label="ner",
    )
    assert sentences_of(found) == [[("EU", "B-ORG"), ("says", "O")], [("Ann", "B-PER")]] * 9


MOODS = {"pos": ["Well done .\nTruly .", "  Fine\ttoo "] * 6, "neg": ["Not so .", "Bad"] * 6}
WHOLE = {"document_unit": "file", "text": ["text"], "label": "folder"}


def folders(root: Path, name: str = "{n:02}.txt", mark: str = "") -> None:
    for split in ("train", "test"):
        for folder, texts in MOODS.items():
            (root / split / folder).mkdir(parents=True)
            for n, text in enumerate(texts):
                path = root / split / folder / name.format(n=n)
                path.write_bytes(
                    gzip.compress((mark + text).encode())
                    if path.suffix == ".gz"
                    else (mark + text).encode()
                )


@pytest.mark.parametrize(("name", "mark", "pattern"), [
    ("{n:02}.txt", "", "{split}/[np]*/*.txt"), ("{n:02}.txt", "\ufeff", "{split}"), ("51{n:03}", "", "{split}/*/*"), ("{n:02}.txt.gz", "", "{split}"),
])  # fmt: skip
def test_a_file_is_an_item_and_its_folder_says_which(
    name: str, mark: str, pattern: str, tmp_path: Path
) -> None:
    folders(tmp_path, name, mark)
    files = {split: pattern.format(split=split) for split in ("train", "test")}
    found = made(tmp_path, "none.txt", "not read", files=files, **WHOLE)
    assert rows_of(found, "text") == [
        (folder, text.strip().replace("\t", " "))
        for folder in sorted(MOODS)
        for text in MOODS[folder]
    ]
    assert found.info["labels"] == ["neg", "pos"]


def test_texts_without_labels_are_files_too_and_a_second_test_set_may_be_a_table(
    tmp_path: Path,
) -> None:
    folders(tmp_path)
    (tmp_path / "more").mkdir()
    for n in range(600):  # more than are read at a time
        (tmp_path / f"more/{n:03}.txt").write_text(f"the {n}th text\nof its own")
    (tmp_path / "other.csv").write_text("text,label\nwell,pos\nno,neg\n")
    files = {"train": "train", "test": "test", "unlabelled": "more"}
    found = made(
        tmp_path,
        "none.txt",
        "first\nsecond\n",
        files=files,
        extra_test_sets={"table": {"files": {"test": "other.csv"}, "label": "label"}},
        **WHOLE,
    )
    assert (
        len(found.splits["test-table"]) == 2
        and found.splits["unlabelled"]["text"].tolist()[599] == "the 599th text\nof its own"
    )
    found = made(
        tmp_path, "none.txt", "first\nsecond\n", files=files | {"unlabelled": "none.txt"}, **WHOLE
    )
    assert found.splits["unlabelled"]["text"].tolist() == ["first", "second"], (
        "one file of them has one a line"
    )


def test_a_mirror_and_a_split_may_be_tables_beside_texts_a_file(tmp_path: Path) -> None:
    folders(tmp_path)
    (tmp_path / "t.csv").write_text("folder,text\npos,fine\nneg,bad\n")
    found = made(
        tmp_path, "none.txt", "not read", files={"train": "train", "test": "t.csv"}, **WHOLE
    )
    assert rows_of(found, "text") == [("pos", "fine"), ("neg", "bad")]


def test_no_folder_of_items_is_passed_over_in_silence(tmp_path: Path) -> None:
    """A hidden one, one behind a link, and files without a suffix would be labels and items that nobody misses."""
    folders(tmp_path)
    (tmp_path / "train/.ignore").write_text("no item")
    files = {"train": "train", "test": "test"}
    assert made(tmp_path, "none.txt", "not read", files=files, **WHOLE).info["labels"] == [
        "neg",
        "pos",
    ]
    elsewhere = tmp_path / "elsewhere/neu"
    elsewhere.mkdir(parents=True)
    for n in range(12):
        (elsewhere / f"{n}.txt").write_text("neither nor")
    link = tmp_path / "train/neu"
    link.symlink_to(elsewhere)
    with pytest.raises(
        InputError,
        match=r"'train' skips 12 files, such as train/neu/0\.txt; rename hidden folders; if folders are links",
    ):
        made(tmp_path, "none.txt", "not read", files=files, **WHOLE)
    assert (
        made(
            tmp_path, "none.txt", "not read", files=files | {"train": "train/*/*.txt"}, **WHOLE
        ).info["counts"]["train"]
        > 30
    )
    link.unlink()
    elsewhere.rename(tmp_path / "train/.net")
    for pattern in ("train", "train/*/*.txt"):
        with pytest.raises(
            InputError,
            match=r"skips 12 files, such as train/\.net/0\.txt; rename hidden folders",
        ):
            made(tmp_path, "none.txt", "not read", files=files | {"train": pattern}, **WHOLE)
    (tmp_path / "train/.net").rename(tmp_path / "train/net")
    (tmp_path / "train/net/0.txt").rename(tmp_path / "train/net/0")
    with pytest.raises(
        InputError,
        match=r"skips 1 files, such as train/net/0; .* or names do not end in \.txt",
    ):
        made(tmp_path, "none.txt", "not read", files=files, **WHOLE)


def test_names_of_folders_are_recorded_and_are_utf_8(tmp_path: Path) -> None:
    """A folder outside the data root that is renamed is another label."""
    folders(tmp_path / "far/p1")
    task, seen = (
        parse_record(
            Task,
            {
                "kind": "text_classification",
                "files": {"train": str(tmp_path / "far/*/train/*/*.txt")},
                "folds": 3,
            }
            | WHOLE,
            "task",
        ),
        [],
    )
    for name in ("neg", "negative"):
        tables = open_task_tables(task, tmp_path / "root", "task")
        seen.append([one["name"] for one in tables["train"].fingerprint()["files"]])
        (tmp_path / f"far/p1/train/{name}").rename(tmp_path / "far/p1/train/negative")
    assert seen[0][0] == "p1/train/neg/00.txt" and seen[1][0] == "p1/train/negative/00.txt"
    (tmp_path / "far/p1/train/negative").rename(
        tmp_path / "far/p1/train" / os.fsdecode("体育".encode("gbk"))
    )
    with pytest.raises(
        InputError,
        match=r"task\.files\.train: the name of a file or folder is not UTF-8: .*; rename it, for example with convmv",
    ):
        open_task_tables(task, tmp_path / "root", "task")


@pytest.mark.parametrize(("keys", "said"), [
    ({"columns": ["label", "text"]}, "document_unit: file makes each of 'files' an item with the columns folder and text; remove 'columns'"),
    ({"label": "class"}, r"train/neg/00\.txt has no column 'class'; known: folder, text"),
    ({"files": {"train": "train", "test": "t.csv"}}, r"files\.test: t\.csv has no column 'folder'; known: label, text"),
    ({"document_unit": "line"}, r"train/neg/00\.txt has no column 'folder'; known: text; .*; where each file is an item, document_unit: file with text"),
    ({"files": {"train": "train/neg", "test": "test"}}, "neg"),
])  # fmt: skip
def test_files_that_are_no_items_are_refused_with_what_to_write(
    keys: dict[str, Any], said: str, tmp_path: Path
) -> None:
    folders(tmp_path)
    with pytest.raises(InputError, match=said):
        made(
            tmp_path,
            "t.csv",
            "text,label\na,b\n",
            **{"files": {"train": "train", "test": "test"}} | WHOLE | keys,
        )
    with pytest.raises(InputError, match="remove 'document_unit'"):
        parse_record(
            Task,
            {"kind": "text_classification", "generated": "synthetic", "document_unit": "file"},
            "task",
        )


def test_an_empty_file_and_one_of_another_code_are_named(tmp_path: Path) -> None:
    folders(tmp_path)
    (tmp_path / "train/pos/01.txt").write_bytes("caf\u00e9".encode("latin-1"))
    (tmp_path / "train/pos/03.txt").write_bytes("caf\u00e9s".encode("latin-1"))
    said = r"train/pos/01\.txt is not UTF-8 at byte 3; it ends within a character, so it was cut short, or is LATIN1; 1 more files cannot be read"
    with pytest.raises(InputError, match=said):
        made(tmp_path, "none.txt", "not read", files={"train": "train", "test": "test"}, **WHOLE)
    (tmp_path / "train/pos/01.txt").write_bytes(b"")
    with pytest.raises(InputError, match=r"train/pos/01\.txt is empty"):
        made(tmp_path, "none.txt", "not read", files={"train": "train", "test": "test"}, **WHOLE)


def test_columns_are_of_files_alone() -> None:
    with pytest.raises(
        InputError, match="'columns' is only for files without column names; remove it"
    ):
        parse_record(
            Task,
            {"kind": "text_classification", "generated": "synthetic", "columns": ["a"]},
            "task",
        )


def test_the_stages_read_them_and_a_second_test_set_names_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    tree = make(tmp_path)
    for split in ("train", "test"):
        (tmp_path / f"mood/{split}.label").write_text(lines(TREC * 3, " "))
    pd.DataFrame(TREC, columns=["label", "text"]).to_csv(tmp_path / "mood/other.csv", index=False)
    files = {
        "train": "mood/train.label",
        "test": "mood/test.label",
        "unlabelled": "mood/more.jsonl",
    }
    (tmp_path / "mood/more.jsonl").write_text(
        "".join(f'{{"text": "a text of its own, the {n}th of them"}}\n' for n in range(300))
    )
    tree["tasks"]["mood"] = {"kind": "text_classification", "files": files, "columns": COARSE, "text": ["text"], "label": "label",
                             "extra_test_sets": {"fine": {"files": {"test": "mood/other.csv"}, "label_map": dict.fromkeys(["DESC:manner", "DESC:def"], "DESC")
                                                    | {"ENTY:cremat": "ENTY"}}}}  # fmt: skip
    write(tmp_path, tree)
    for command in (("sources",), ("task", "mood")):
        assert stage(tmp_path, *command, monkeypatch=monkeypatch, capsys=capsys) == (0, "")
    counts = artifacts.read_json(tmp_path / "artifacts/tasks/mood/task.json")["counts"]
    assert (counts["test"], counts["test-fine"], counts["unlabelled"]) == (81, 27, 300)
