"""Choices of a multiple-choice task give nothing away by their place.

A passage is shortened, but its question is read whole.
"""

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from lineage.data.items import TaskItems
from lineage.errors import InputError
from lineage.methods.encoding import encode_items
from lineage.tokenizers.pairs import encode_pairs
from tests.helpers import tiny
from tests.helpers.tasks import build_task_items

TASK_KEYS = {
    "kind": "multiple_choice",
    "text": ["text", "asks"],
    "choices": ["one", "two"],
    "label": "label",
}
PASSAGE = "the cat sat . the dog ran off . it slept . the cat sat . it slept ."
QUESTION = "the dog sat ?"


def build_task(root: Path, labels: dict[str, list[int]], end: str = "", **keys: Any) -> TaskItems:
    """Build a task whose items have these correct choices in each split."""
    for split, split_labels in labels.items():
        rows = [
            {
                "text": f"{PASSAGE} {n}{end}",
                "asks": QUESTION,
                "one": f"one {split}",
                "two": f"two {split}",
                "label": label,
            }
            for n, label in enumerate(split_labels)
        ]
        pd.DataFrame(rows).to_csv(root / f"{split}.csv", index=False)
    tree = (
        TASK_KEYS | {"files": {split: f"{split}.csv" for split in labels if split != "hard"}} | keys
    )
    return build_task_items(root, tree)


@pytest.mark.parametrize(("labels", "file_stem", "keys"), [
    ({"train": [0] * 40, "test": [0] * 20}, "test", {}),
    ({"train": [1] * 40, "validation": [0, 1] * 10, "test": [1] * 30}, "test", {}),
    ({"train": [1] * 40}, "train", {"folds": 4}),
    ({"train": [1] * 40, "test": [0, 1] * 10}, "train", {}),
    ({"train": [0, 1] * 20, "test": [0, 1] * 10, "hard": [1] * 40}, "hard", {"extra_test_sets": {"far": {"files": {"test": "hard.csv"}}}}),
])  # fmt: skip
def test_correct_choices_that_are_always_in_one_place_are_rejected(
    labels: dict[str, list[int]], file_stem: str, keys: dict[str, Any], tmp_path: Path
) -> None:
    """A model that gives a constant answer could score 100 %."""
    message = rf"{file_stem}\.csv: column 'label': the right choice is number {labels[file_stem][0]} in all {len(labels[file_stem])} items, so .*shuffle the choices"
    with pytest.raises(InputError, match=message):
        build_task(tmp_path, labels, **keys)


def test_few_items_or_train_alone_may_have_one_correct_place(tmp_path: Path) -> None:
    """This does not hold for a train split from which validation is split off."""
    labels = {"train": [0] * 40, "validation": [0, 1] * 10, "test": [0] * 19}
    assert build_task(tmp_path, labels).info.counts["test"] == 19
    labels = {"train": [0] * 40, "validation": [0] * 19, "test": [0, 1] * 10}
    assert build_task(tmp_path, labels).info.labels == ["0", "1"]


@pytest.mark.parametrize("end", ["", " ."])
@pytest.mark.parametrize(
    "name", [name for name in tiny.FAMILIES if tiny.model_config(name).family.name == name]
)
def test_truncation_shortens_the_passage_and_keeps_the_question(
    name: str, end: str, tmp_path: Path
) -> None:
    """The mark that ends the passage's sentence is kept too, if it is a word of its own."""
    tokenizer = tiny.tokenizer(name)
    labels = {"train": [0, 1] * 10, "test": [0, 1]}
    table = build_task(tmp_path, labels, end).splits["test"]
    assert table["text"].tolist() == [f"{PASSAGE} {n}{end} {QUESTION}" for n in range(2)]
    assert table["asked"].tolist() == [len(QUESTION)] * 2
    full_items = encode_items(table, tokenizer, max_length=None, language="en")
    longest = max(len(full.ids) for item in full_items for full in item.encodings)
    question_ids = {*tokenizer.encode(QUESTION).ids.tolist()}
    question_start = len(PASSAGE) + len(end) + 3
    keeps_mark = end and tokenizer.tokenizer_type == "word" and tokenizer.direction != "backward"
    for limit in (longest - 1, longest - 9):
        short_items = encode_items(table, tokenizer, max_length=limit, language="en")
        for short_item, full_item in zip(short_items, full_items, strict=True):
            for short, full, choice in zip(
                short_item.encodings, full_item.encodings, table["choices"].iloc[0], strict=True
            ):
                assert len(short.ids) <= limit
                assert short.truncated or len(full.ids) <= limit
                assert question_ids - {*full.ids.tolist()} == question_ids - {
                    *short.ids.tolist()
                }, "a word of the question is lost"
                short_first = short.token_type_ids == 0
                full_first = full.token_type_ids == 0
                num_kept = (short.offsets[short_first][:, 1] > question_start).sum()
                assert num_kept == (full.offsets[full_first][:, 1] > question_start).sum() > 0, (
                    choice
                )
                if keeps_mark:
                    short_passage = short.ids[short_first][: -num_kept - 1]
                    full_passage = full.ids[full_first][: -num_kept - 1]
                    assert short_passage[-2:].tolist() == full_passage[-2:].tolist(), (
                        "the last words of the passage differ"
                    )


def test_a_question_that_does_not_fit_is_truncated_at_its_end() -> None:
    tokenizer = tiny.tokenizer("bert")
    full = tokenizer.encode(f"{PASSAGE} {QUESTION}")
    question_length = len(tokenizer.encode(QUESTION).ids) - 2
    (short,) = encode_pairs(
        tokenizer,
        [f"{PASSAGE} {QUESTION}"],
        ["ran ."],
        max_length=9,
        question_lengths=[len(QUESTION)],
    )
    kept = short.ids[short.token_type_ids == 0]
    assert 2 < len(kept) < question_length + 2
    assert np.array_equal(kept[1:-1], full.ids[-1 - question_length :][: len(kept) - 2])
