"""Data files are read whole, or refused before they fill the memory.

A JSON file holds one object per line or a list of objects, and errors name their position.
"""

import gzip
import json
import re
import resource
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import zstandard

from lineage.data.files import (
    MAX_UNPACKED_BYTES,
    MAX_UNPACKED_RATIO,
    check_readable,
    find_data_files,
    iter_json_rows,
    read_column_names,
)
from lineage.data.items import TaskItems
from lineage.errors import InputError
from tests.helpers.tasks import TEXTS, build_task_items


def build_json_task(root: Path, name: str) -> TaskItems:
    """Build a task whose train and test file is this one."""
    return build_task_items(root, TEXTS | {"files": {"train": name, "test": name}})


ROW_TEXT = "".join(
    json.dumps({"text": f"text {number}", "label": number % 2}) + "\n" for number in range(20)
)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        pytest.param(
            ROW_TEXT * 35 + '{"text": \n' + ROW_TEXT, ", line 701: not JSON", id="a late line"
        ),
        ('[{"text": "a", "label": 1}, ["b", 2]]', ", entry 2: list"),
        ('[{"text": "a", "label": 1},\n', ": not JSON"),
        ("3\n", ", line 1: int"),
    ],
)
def test_what_is_not_json_is_refused_with_its_position(
    text: str, message: str, tmp_path: Path
) -> None:
    (tmp_path / "t.json").write_text(text)
    form = r"; a \.json or \.jsonl file has one object per line, or one list of objects"
    with pytest.raises(InputError, match=rf"t\.json{message}.*{form}"):
        build_json_task(tmp_path, "t.json")


def test_objects_per_line_and_a_list_of_objects_give_the_same_items(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    for name in ("lines.json", "t.jsonl", "folder/t.jsonl", "folder/dataset_info.json"):
        (tmp_path / name).write_text(ROW_TEXT)
    rows = ROW_TEXT.splitlines()
    (tmp_path / "list.json").write_text(f"[{', '.join(rows)}]\n")
    lines = ",\n".join(rows)
    (tmp_path / "marked.json").write_text(f"\ufeff\n[{lines}]\n")
    first, *others = (
        build_json_task(tmp_path, name)
        for name in ("lines.json", "t.jsonl", "folder", "list.json", "marked.json")
    )
    for other in others:
        assert other.info.counts == first.info.counts
        assert other.splits["test"].equals(first.splits["test"])
    assert read_column_names(tmp_path / "list.json", "t.json", "task") == ["text", "label"]


ZEROS = bytes(MAX_UNPACKED_BYTES // 64)


TOO_LARGE = "unpacks to more than 200 times its size and would fill the memory; remove it"


def write_bomb(path: Path) -> None:
    """Write a file that unpacks to more than the permitted size."""
    if path.suffix == ".zst":
        with zstandard.open(path, "wb") as stream:
            for _ in range(66):
                stream.write(ZEROS)
    elif path.suffix == ".gz":
        path.write_bytes(66 * gzip.compress(ZEROS))
    elif path.stem in ("once", "tokens"):  # one text of a megabyte, in each of 4,000 rows
        text = pa.array(["a" * (1 << 20)])
        texts = pa.DictionaryArray.from_arrays(pa.array([0] * 4000, pa.int32()), text)
        if path.stem == "tokens":
            texts = pa.ListArray.from_arrays(pa.array(range(4001), pa.int32()), texts)
        pq.write_table(pa.table({"text": texts}), path, compression="zstd")
    elif path.stem == "numbers":
        pq.write_table(pa.table({"number": np.zeros(40_000_000)}), path, compression="zstd")
    else:
        text = "a" * (MAX_UNPACKED_BYTES // 64)
        table = pa.table({"text": [text + str(number % 10) for number in range(66)]})
        pq.write_table(table, path, compression="zstd", use_dictionary=False)


@pytest.mark.parametrize(
    "name",
    [
        "all.txt.gz",
        "all.csv.zst",
        "all.parquet.zst",
        "all.parquet",
        "once.parquet",
        "tokens.parquet",
        "numbers.parquet",
    ],
)
def test_files_that_unpack_to_a_multiple_of_the_memory_are_refused(
    name: str, tmp_path: Path
) -> None:
    write_bomb(tmp_path / name)
    files = find_data_files(name, tmp_path, "corpora.general")
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises(InputError, match=f"corpora\\.general: {re.escape(name)} {TOO_LARGE}"):
        check_readable(files, "corpora.general")
    growth = 1024 * (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)
    assert growth < MAX_UNPACKED_BYTES / 4


def test_parquet_that_repeats_its_texts_is_read(tmp_path: Path) -> None:
    columns = {
        "text": ["the same line of text"] * 100_000,
        "tokens": [["a", "b"], [], None, ["c"]] * 25_000,
        "parts": [{"word": "a", "tags": ["x"]}, None] * 50_000,
        "pairs": pa.array([[("a", "b")], []] * 50_000, pa.map_(pa.string(), pa.string())),
        "nothing": pa.nulls(100_000, pa.string()),
        "bytes": pa.array([b"1234"] * 100_000, pa.binary(4)),
    }
    for name in ("all.parquet", "none.parquet"):
        pq.write_table(pa.table(columns).slice(0, 10**6 * (name == "all.parquet")), tmp_path / name)
    check_readable(find_data_files("all.parquet", tmp_path, "task"), "task")
    with pytest.raises(InputError, match="is empty"):
        check_readable(find_data_files("none.parquet", tmp_path, "task"), "task")


def test_a_well_compressed_text_is_read(tmp_path: Path) -> None:
    (tmp_path / "all.txt.gz").write_bytes(gzip.compress(b"the same line\n" * 1_000_000))
    assert (tmp_path / "all.txt.gz").stat().st_size * MAX_UNPACKED_RATIO < 14_000_000
    check_readable(find_data_files("all.txt.gz", tmp_path, "corpora.general"), "corpora.general")


@pytest.mark.parametrize("line", ["[" * 200_000, '{"text": ' + 6000 * "9" + "}"])
def test_json_that_no_parser_takes_is_refused_in_one_sentence(line: str, tmp_path: Path) -> None:
    path = tmp_path / "train.jsonl"
    path.write_text('{"text": "a"}\n' + line + "\n")
    with pytest.raises(InputError, match=r"line 2: (not JSON|JSON that is nested)") as caught:
        list(iter_json_rows(path, "train.jsonl"))
    assert len(str(caught.value)) < 400


def test_a_folder_with_only_skipped_files_is_refused_with_the_rule(tmp_path):
    (tmp_path / "a.json").write_text("{}")
    with pytest.raises(
        InputError,
        match=r"no file matches '\.' in .*; in a folder, \.json and unknown suffixes are skipped: name them",
    ):
        find_data_files(".", tmp_path, "task.files.train")
