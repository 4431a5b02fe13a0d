"""A JSON file holds one object per line or a list of objects, and errors name their position."""

import json
from pathlib import Path

import pytest

from lineage.data.files import read_column_names
from lineage.errors import InputError
from tests.helpers.tasks import build_changed_task


def test_a_late_line_that_is_not_json_is_reported(tmp_path: Path) -> None:
    lines = "".join(
        json.dumps({"text": f"text {number}", "label": number % 2}) + "\n" for number in range(700)
    )
    (tmp_path / "t.jsonl").write_text(lines + '{"text": \n' + lines)
    with pytest.raises(InputError, match=r"t\.jsonl, line 701: not JSON"):
        build_changed_task(
            tmp_path, "text_classification", {}, files={"train": "t.jsonl", "test": "t.jsonl"}
        )


def test_objects_per_line_and_a_list_of_objects_give_the_same_items(
    tmp_path: Path,
) -> None:
    text = "".join(
        json.dumps({"text": f"text {number}", "label": number % 2}) + "\n" for number in range(20)
    )
    for name in ("t.json", "t.jsonl", "folder/t.jsonl", "folder/dataset_info.json"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    first, *others = (
        build_changed_task(tmp_path, "text_classification", {}, files={"train": name, "test": name})
        for name in ("t.json", "t.jsonl", "folder")
    )
    assert all(
        other.info.counts == first.info.counts and other.splits["test"].equals(first.splits["test"])
        for other in others
    )
    assert read_column_names(tmp_path / "t.json", "t.json", "task.files.train") == ["text", "label"]
    for separator, prefix in ((", ", ""), (",\n", "\ufeff\n")):
        (tmp_path / "t.json").write_text(f"{prefix}[{separator.join(text.splitlines())}]\n")
        assert (
            build_changed_task(
                tmp_path, "text_classification", {}, files={"train": "t.json", "test": "t.json"}
            )
            .splits["test"]
            .equals(first.splits["test"])
        )
    for text, message in (
        ('[{"text": "a", "label": 1}, ["b", 2]]', "entry 2: list"),
        ('[{"text": "a", "label": 1},\n', "not JSON"),
        ("3\n", "line 1: int"),
    ):
        (tmp_path / "t.json").write_text(text)
        with pytest.raises(
            InputError,
            match=rf"t\.json[:,] {message}.*; a \.json or \.jsonl file has one object per line, or one list of objects",
        ):
            build_changed_task(
                tmp_path, "text_classification", {}, files={"train": "t.json", "test": "t.json"}
            )
