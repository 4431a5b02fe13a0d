"""Rows of words and their senses, and the documented code that makes them from tagged text."""

import shutil
from pathlib import Path

import pandas as pd
import pytest

from tests.helpers.documents import run_documented_code
from tests.helpers.golden import data_folder
from tests.helpers.tasks import build_task_items

KEYS = {
    "kind": "word_sense",
    "files": {"train": "senses_train.jsonl", "test": "senses_test.jsonl"},
    "tokens": "tokens",
    "target": "target",
    "label": "label",
}
# The senses of a word by turns: one has a second sense, one has too few places of it, one has none.
SENSES = {"bank": ("river", "money"), "play": ("stage", *("game",) * 9), "fish": ("animal",)}


def write_sentences(folder: Path) -> None:
    sentences = [
        {
            "doc": f"d{number % 10}",
            "tokens": ["The", word.title(), str(number)],
            "sense": ["", senses[number % len(senses)], ""],
        }
        for word, senses in SENSES.items()
        for number in range(60)
    ]
    for split in ("train", "validation", "test"):
        pd.DataFrame(sentences).to_parquet(folder / f"{split}.parquet")


def test_the_code_of_the_docs_takes_words_that_stand_in_several_senses(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_sentences(tmp_path)
    run_documented_code(tmp_path, monkeypatch, "senses_{split}.jsonl")
    train = pd.read_json("senses_train.jsonl", lines=True)
    test = pd.read_json("senses_test.jsonl", lines=True)
    rows = pd.concat([train, test])
    assert set(rows["word"]) == {"bank"} and set(rows["label"]) == {"river", "money"}
    assert len(rows) == 150  # MAX_PLACES of 180
    assert not set(train["doc"]) & set(test["doc"])
    assert all(tokens[1] == "Bank" for tokens in rows["tokens"]) and set(rows["target"]) == {1}


def test_semcor_becomes_a_task_of_words_in_several_senses(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for path in (data_folder() / "semcor").glob("*.parquet"):
        shutil.copy(path, tmp_path)
    run_documented_code(tmp_path, monkeypatch, "senses_{split}.jsonl")
    task = build_task_items(tmp_path, KEYS)
    assert task.info.counts["test"] > 1000
    words = [row.tokens[row.target].lower() for row in task.splits["test"].itertuples()]
    assert len(set(words)) == 20
    senses = pd.Series(task.splits["test"]["label"].to_numpy()).groupby(words).nunique()
    assert senses.min() >= 2
