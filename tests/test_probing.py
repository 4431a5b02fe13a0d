"""Tasks that probe for properties of sentences are made from any sentences in words."""

from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from typer.testing import CliRunner

from flows.cli import app
from lineage.config.records import read_yaml
from lineage.data.task_data import TaskData
from lineage.errors import InputError
from lineage.tasks.base import load_kind
from tests.helpers import tiny
from tests.helpers.tasks import build_task_items, write_jsonl
from tests.helpers.user_project import write_params

SENTENCE = ["The", "old", "bank", "by", "the", "river", "was", "flooded", "again", "."]
# flooded is the root; bank hangs on it, river on bank, and `by` and `the` on river.
HEADS = [3, 3, 8, 6, 6, 3, 8, 0, 8, 8]


def build(
    folder: Path, kind: str, rows: list[dict[str, Any]], **keys: Any
) -> dict[str, pd.DataFrame]:
    """Return the items of all splits, which have the same rows, with the names of their labels."""
    for split in ("train", "validation", "test"):
        write_jsonl(folder / f"{split}.jsonl", rows)
    files = {split: f"{split}.jsonl" for split in ("train", "validation", "test")}
    items = build_task_items(
        folder, {"kind": kind, "files": files, "tokens": "words"} | keys, name="probe"
    )
    names = items.info.labels
    return {
        split: table.assign(label=[names[label] for label in table["label"]])
        for split, table in items.splits.items()
    }


def test_sentences_are_classed_by_their_length(tmp_path: Path) -> None:
    lengths = [1, 8, 9, 12, 13, 25, 26, 40]
    rows = [{"words": [f"w{number}"] * length} for number, length in enumerate(lengths)]
    test = build(tmp_path, "sentence_length", rows, max_words=30)["test"]
    assert list(test["label"]) == ["1-8", "1-8", "9-12", "9-12", "13-16", "21-25", "over 25"]


def test_half_of_the_sentences_have_two_neighbours_swapped(tmp_path: Path) -> None:
    rows = [{"words": [f"w{number}", *SENTENCE]} for number in range(400)]
    rows += [{"words": ["too", "few", "words"]}]
    test = build(tmp_path, "bigram_shift", rows)["test"]
    assert len(test) == 400
    assert 0.4 < (test["label"] == "swapped").mean() < 0.6
    for text, label, number in zip(test["text"], test["label"], range(400), strict=True):
        words = text.split()
        original = [f"w{number}", *SENTENCE]
        changed = [place for place, word in enumerate(words) if word != original[place]]
        assert sorted(words) == sorted(original)
        assert len(changed) == (2 if label == "swapped" else 0)
        if changed:
            assert changed[1] == changed[0] + 1
            assert changed[0] > 0 and changed[1] < len(words) - 1, "the ends stay"
    again = build(tmp_path, "bigram_shift", rows)["test"]
    pd.testing.assert_frame_equal(test, again)


def test_the_depth_of_a_tree_is_its_longest_way_to_the_root(tmp_path: Path) -> None:
    chain = {"words": list("abcdefghij"), "heads": [0, *range(1, 10)]}
    flat = {"words": list("abc"), "heads": [2, 0, 2]}
    rows = [{"words": SENTENCE, "heads": HEADS}, chain, flat]
    test = build(tmp_path, "tree_depth", rows, heads="heads")["test"]
    assert list(test["label"]) == ["3", "7 or more", "up to 2"]


@pytest.mark.parametrize(
    ("heads", "message"),
    [
        ([2, 1, 0], "the heads go round in a circle"),
        ([0, 1], "expected 3 heads from 0, the root, to 3"),
        ([0, 1, 9], "expected 3 heads from 0, the root, to 3"),
        (["root", "a", "b"], "expected a list of whole numbers"),
    ],
)
def test_what_is_no_tree_is_refused_by_its_row(
    tmp_path: Path, heads: list[Any], message: str
) -> None:
    rows = [{"words": list("abc"), "heads": [0, 1, 1]}, {"words": list("abd"), "heads": heads}]
    with pytest.raises(InputError, match=f"row 2: column 'heads': {message}"):
        build(tmp_path, "tree_depth", rows, heads="heads")


def test_no_system_is_kept_since_new_sentences_need_no_labels(tmp_path: Path) -> None:
    rows = [{"words": [f"w{number}", *SENTENCE]} for number in range(60)]
    files = {"train": write_jsonl(tmp_path / "t.jsonl", rows).name, "test": "t.jsonl"}
    block = {"files": files, "tokens": "words"}
    kept = {}
    for name, keys in {
        "probing": {"kind": "bigram_shift"},
        "labelled": {"kind": "token_classification", "label": "words"},
    }.items():
        items = build_task_items(tmp_path, block | keys)
        cache = tmp_path / name
        cache.mkdir()
        tiny.evaluate_baselines(
            load_kind(keys["kind"]), TaskData(items.info, items.splits), cache_dir=cache
        )
        kept[name] = len([*cache.glob("*/system")])
    assert kept == {"probing": 0, "labelled": 1}


@pytest.mark.parametrize(
    "command",
    [
        ["predict", "--task", "depth", "new.jsonl", "-o", "out.jsonl"],
        ["predict", "--task", "depth", "--list"],
        ["serve", "--task", "depth", "--system", "tfidf"],
        ["serve", "--task", "depth"],
        ["export", "depth/tfidf", "folder"],
    ],
)
def test_using_a_system_is_refused_in_one_sentence(
    command: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    tree = read_yaml(tiny.ROOT / "params.yaml")
    files = {"train": "t.jsonl", "test": "t.jsonl"}
    tree["tasks"] = {"depth": {"kind": "tree_depth", "files": files, "tokens": "words", "heads": "heads"}}  # fmt: skip
    tree["grid"] |= {"tasks": ["depth"], "adapt_models": [], "adapt_tasks": []}
    write_params(tmp_path, tree)
    result = CliRunner().invoke(app, command)
    assert result.exit_code == 2
    assert result.stderr == (
        "--task: no system is kept for depth, since a task of kind tree_depth only asks what models "
        "know; name another task\n"
    )
