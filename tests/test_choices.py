"""Choices beside a text: where the right ones stand gives nothing away, and what is asked of a passage is read whole."""

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from lineage.config.data import Task
from lineage.config.records import parse_record
from lineage.data.items import TaskItems, build_items
from lineage.errors import InputError
from lineage.evaluation.encoding import encode_items
from lineage.tasks.base import load_kind
from lineage.tokenizers.pairs import encode_pairs
from tests import tiny

CHOOSE = {
    "kind": "multiple_choice",
    "text": ["text", "asks"],
    "choices": ["one", "two"],
    "label": "label",
}
PASSAGE, ASKED = (
    "the cat sat . the dog ran off . it slept . the cat sat . it slept .",
    "the dog sat ?",
)


def made(root: Path, labels: dict[str, list[int]], end: str = "", **keys: Any) -> TaskItems:
    """Items with these right choices, a split each."""
    for split, own in labels.items():
        rows = [
            {
                "text": f"{PASSAGE} {n}{end}",
                "asks": ASKED,
                "one": f"one {split}",
                "two": f"two {split}",
                "label": label,
            }
            for n, label in enumerate(own)
        ]
        pd.DataFrame(rows).to_csv(root / f"{split}.csv", index=False)
    tree = CHOOSE | {"files": {split: f"{split}.csv" for split in labels if split != "hard"}} | keys
    return build_items(
        "x",
        parse_record(Task, tree, "task"),
        load_kind("multiple_choice"),
        seed=1,
        root=root,
        where="task",
    )


@pytest.mark.parametrize(("labels", "where", "keys"), [
    ({"train": [0] * 40, "test": [0] * 20}, "test", {}),
    ({"train": [1] * 40, "validation": [0, 1] * 10, "test": [1] * 30}, "test", {}),
    ({"train": [1] * 40}, "train", {"folds": 4}),
    ({"train": [1] * 40, "test": [0, 1] * 10}, "train", {}),
    ({"train": [0, 1] * 20, "test": [0, 1] * 10, "hard": [1] * 40}, "hard", {"extra_test_sets": {"far": {"files": {"test": "hard.csv"}}}}),
])  # fmt: skip
def test_right_choices_that_all_stand_in_one_place_are_refused(
    labels: dict[str, list[int]], where: str, keys: dict[str, Any], tmp_path: Path
) -> None:
    """A model that says nothing, and guessing, may have them all right."""
    said = rf"{where}\.csv: column 'label': the right choice is number {labels[where][0]} in all {len(labels[where])} items, so .*shuffle the choices"
    with pytest.raises(InputError, match=said):
        made(tmp_path, labels, **keys)


def test_a_few_alike_and_those_of_train_alone_are_none(tmp_path: Path) -> None:
    """But not where validation is carved of train."""
    assert (
        made(tmp_path, {"train": [0] * 40, "validation": [0, 1] * 10, "test": [0] * 19}).info[
            "counts"
        ]["test"]
        == 19
    )
    assert made(tmp_path, {"train": [0] * 40, "validation": [0] * 19, "test": [0, 1] * 10}).info[
        "labels"
    ] == ["0", "1"]


@pytest.mark.parametrize("end", ["", " ."])
@pytest.mark.parametrize(
    "name", [name for name in tiny.FAMILIES if tiny.variant(name).family.name == name]
)
def test_where_a_model_cuts_the_question_stays_and_the_passage_goes(
    name: str, end: str, tmp_path: Path
) -> None:
    """Also with the mark of its sentence, where it is one of its own."""
    reader, table = (
        tiny.reader(name),
        made(tmp_path, {"train": [0, 1] * 10, "test": [0, 1]}, end).splits["test"],
    )
    assert (
        table["text"].tolist() == [f"{PASSAGE} {n}{end} {ASKED}" for n in range(2)]
        and table["asked"].tolist() == [len(ASKED)] * 2
    )
    whole = encode_items(table, reader, max_length=None, language="en")
    longest = max(len(reading.ids) for item in whole for reading in item.encodings)
    asked = {*reader.encode(ASKED).ids.tolist()}
    for limit in (longest - 1, longest - 9):
        for item, full in zip(
            encode_items(table, reader, max_length=limit, language="en"), whole, strict=True
        ):
            for short, reading, choice in zip(
                item.encodings, full.encodings, table["choices"].iloc[0], strict=True
            ):
                assert len(short.ids) <= limit and (short.truncated or len(reading.ids) <= limit)
                assert asked - {*reading.ids.tolist()} == asked - {*short.ids.tolist()}, (
                    "nothing of the question is lost"
                )
                first = short.token_type_ids == 0
                begin = len(PASSAGE) + len(end) + 3
                kept = (short.offsets[first][:, 1] > begin).sum()
                assert (
                    kept == (reading.offsets[reading.token_type_ids == 0][:, 1] > begin).sum() > 0
                ), choice
                both = [
                    one.ids[one.token_type_ids == 0][: -kept - 1 if kept else None]
                    for one in (short, reading)
                ]
                assert (
                    reader.tokenizer_type != "word"
                    or not end
                    or reader.direction == "backward"
                    or both[0][-2:].tolist() == both[1][-2:].tolist()
                ), "marks"


def test_a_question_that_does_not_fit_is_cut_at_its_end() -> None:
    reader = tiny.reader("bert")
    whole, asked = reader.encode(f"{PASSAGE} {ASKED}"), len(reader.encode(ASKED).ids) - 2
    (short,) = encode_pairs(
        reader, [f"{PASSAGE} {ASKED}"], ["ran ."], max_length=9, question_lengths=[len(ASKED)]
    )
    kept = short.ids[short.token_type_ids == 0]
    assert 2 < len(kept) < asked + 2 and np.array_equal(
        kept[1:-1], whole.ids[-1 - asked :][: len(kept) - 2]
    )
