"""Rows of JSON: an object a line, or one list of objects, and what is neither is named by its place."""

import json
from pathlib import Path

import pytest

from lineage.data.files import read_column_names
from lineage.errors import InputError
from tests.test_odd_input import made


def test_a_line_that_is_no_json_is_named_however_late_it_comes(tmp_path: Path) -> None:
    good = "".join(json.dumps({"text": f"text {n}", "label": n % 2}) + "\n" for n in range(700))
    (tmp_path / "t.jsonl").write_text(good + '{"text": \n' + good)
    with pytest.raises(InputError, match=r"t\.jsonl, line 701: not JSON"):
        made(tmp_path, "text_classification", {}, files={"train": "t.jsonl", "test": "t.jsonl"})


def test_a_json_file_holds_an_object_a_line_or_a_list_and_is_read_where_it_is_named(
    tmp_path: Path,
) -> None:
    text = "".join(json.dumps({"text": f"text {n}", "label": n % 2}) + "\n" for n in range(20))
    for name in ("t.json", "t.jsonl", "folder/t.jsonl", "folder/dataset_info.json"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    first, *others = (
        made(tmp_path, "text_classification", {}, files={"train": name, "test": name})
        for name in ("t.json", "t.jsonl", "folder")
    )
    assert all(
        other.info["counts"] == first.info["counts"]
        and other.splits["test"].equals(first.splits["test"])
        for other in others
    )
    assert read_column_names(tmp_path / "t.json", "t.json", "task.files.train") == ["text", "label"]
    for sign, mark in ((", ", ""), (",\n", "\ufeff\n")):
        (tmp_path / "t.json").write_text(f"{mark}[{sign.join(text.splitlines())}]\n")
        assert (
            made(tmp_path, "text_classification", {}, files={"train": "t.json", "test": "t.json"})
            .splits["test"]
            .equals(first.splits["test"])
        )
    for text, said in (
        ('[{"text": "a", "label": 1}, ["b", 2]]', "entry 2: list"),
        ('[{"text": "a", "label": 1},\n', "not JSON"),
        ("3\n", "line 1: int"),
    ):
        (tmp_path / "t.json").write_text(text)
        with pytest.raises(
            InputError,
            match=rf"t\.json[:,] {said}.*; a \.json or \.jsonl file holds an object a line, or one list of objects",
        ):
            made(tmp_path, "text_classification", {}, files={"train": "t.json", "test": "t.json"})
