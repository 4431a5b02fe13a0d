"""A test split whose labels are held back, of which every one says the same, is not scored as if they were its labels."""

import json
from pathlib import Path
from typing import Any

import pytest

from lineage.data import Task
from lineage.errors import InputError
from lineage.items import Items, build
from lineage.kind import load_kind
from lineage.records import load

SAID = r"files\.test: test\.jsonl: column 'label': all (\d+) are '{}', as if labels were held back; name a split that has them"


def made(root: Path, kind: str, label: Any, count: int, *, second: bool = False) -> Items:
    """A task half of whose training labels, or tags, are each of two; all of its test ones, or those of its second test set, are `label`."""
    both = [["O", "B-X"], ["B-X", "O"]] if kind == "tag" else [0, 1]
    for split, labels in {"train": both * 20, "good": both * 20, "test": [label] * count}.items():
        rows = [{"text": f"text {n}" if kind == "classify" else ["a", f"b{n}"], "label": own} for n, own in enumerate(labels)]
        (root / f"{split}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    tree: dict[str, Any] = {"kind": kind, "label": "label", "files": {"train": "train.jsonl", "test": "test.jsonl"}}
    if second:
        tree |= {"files": {"train": "train.jsonl", "test": "good.jsonl"}, "also_test": {"hard": {"files": {"test": "test.jsonl"}}}}
    task = load(Task, tree | ({"text": ["text"]} if kind == "classify" else {"tokens": "text"}), "task")
    return build("x", task, load_kind(kind), seed=1, root=root, where="task")


@pytest.mark.parametrize(("kind", "label", "shown", "said"), [("classify", -1, "-1", 40), ("classify", 0, "0", 40), ("tag", ["O", "O"], "O", 80)])
def test_labels_that_are_held_back_are_told_by_their_being_all_the_same(kind: str, label: Any, shown: str, said: int, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=SAID.format(shown)) as caught:
        made(tmp_path, kind, label, 40)
    assert f"all {said} are" in str(caught.value)


def test_a_few_of_one_label_or_a_second_test_set_of_one_are_scored(tmp_path: Path) -> None:
    assert made(tmp_path, "classify", 0, 19).facts["counts"]["test"] == 19
    assert made(tmp_path, "classify", 0, 40, second=True).facts["counts"]["test-hard"] == 40
