"""Rows of words and their senses, and the documented code that makes them from tagged text."""

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from flows.new_study import draft_study
from lineage.answers.sense import SenseAnswer
from lineage.config.records import parse_yaml
from lineage.errors import InputError
from lineage.methods.tfidf import fit_tfidf
from lineage.tasks.word_sense import KIND
from tests.helpers.documents import run_documented_code
from tests.helpers.golden import data_folder
from tests.helpers.new_study import make_home
from tests.helpers.tasks import build_task_items, write_jsonl

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


def make_row(number: int) -> dict[str, Any]:
    """Return a sentence of seven tokens, whose word is at its own place."""
    tokens = [f"w{number}", "the", "old", "man", "saw", "it", "."]
    tokens[number % 7] = "bank"
    sense = ("river", "money", "row")[number % 3]
    return {"doc": f"d{number % 9}", "tokens": tokens, "target": number % 7, "word": "bank", "label": sense}  # fmt: skip


def propose(home: Path, rows: pd.DataFrame, options: str = "", suffix: str = "jsonl") -> Any:
    """Return the block of the task that `lineage init` writes for a table."""
    if suffix == "csv":
        rows.assign(**{rows.columns[1]: rows.iloc[:, 1].map(" ".join)}).to_csv(home / "t.csv")
    else:
        write_jsonl(home / "t.jsonl", rows.to_dict("records"))
    draft = draft_study(home / "new", ["texts/*.txt"], [f"mine=t.{suffix}{options}"])
    return parse_yaml(draft.params_text, Path("params.yaml"))["tasks"]["mine"]


OWN_NAMES = {"tokens": "context", "target": "word_index", "label": "meaning"}


@pytest.mark.parametrize(
    ("names", "suffix"),
    [
        ({}, "jsonl"),
        ({}, "csv"),
        (OWN_NAMES, "jsonl"),
        (OWN_NAMES, "csv"),
        ({"tokens": "context", "target": "where"}, "jsonl"),
    ],
)
def test_init_proposes_senses_for_tokens_with_a_place_and_a_label(
    names: dict[str, str], suffix: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home = make_home(tmp_path, monkeypatch)
    rows = pd.DataFrame(map(make_row, range(120))).rename(columns=names)
    block = propose(home, rows, suffix=suffix)
    assert block["kind"] == "word_sense" and block["group"] == "doc"
    for key in ("tokens", "target", "label"):
        assert block[key] == names.get(key, key)


def test_init_knows_senses_from_other_tables(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home = make_home(tmp_path, monkeypatch)
    rows = pd.DataFrame(map(make_row, range(120)))
    many = rows.assign(meaning=[f"s{number // 2}" for number in range(120)]).drop(columns="label")
    assert propose(home, many)["label"] == "meaning"
    with pytest.raises(InputError, match=r"row 8: column 'target': 99 is outside the 7 tokens"):
        propose(home, rows.assign(target=[*range(7), 99, *[0] * 112]))
    # A label beside a text is no place, though it is a small number.
    texts = rows.assign(text=rows["tokens"].map(" ".join), target=rows["target"] % 2)
    texts["mood"] = texts.pop("label")
    assert propose(home, texts)["kind"] == "text_classification"
    assert propose(home, texts, ",kind=word_sense,label=mood")["target"] == "target"
    tagged = rows.assign(pos=[["N", *"DANVPS"]] * 120)
    assert propose(home, tagged)["kind"] == "token_classification"
    tags = ["V", "ARG0", *"OOOOO"]
    labels = [[tags[place - target] for place in range(7)] for target in rows["target"]]
    assert propose(home, rows.assign(roles=labels))["kind"] == "semantic_roles"
    with pytest.raises(InputError, match="kind=word_sense needs a column of tokens, one with the"):
        propose(home, rows.drop(columns="target"), ",kind=word_sense")


def make_places(*places: tuple[str, int]) -> pd.DataFrame:
    """Return sentences with a word in the middle, and the place of its sense among SENSE_NAMES."""
    tokens = [["The", word, "here"] for word, _ in places]
    labels = [label for _, label in places]
    return pd.DataFrame({"tokens": tokens, "target": 1, "label": labels})


SENSE_NAMES = ("river", "money", "stage", "game")
TRAIN = make_places(("bank", 0), ("Bank", 1), ("bank", 1), ("play", 2), ("play", 3), ("play", 3))
ITEMS = make_places(("Play", 2), ("bank", 0), ("fish", 1))


def test_the_majority_is_the_commonest_sense_of_the_word() -> None:
    outputs = SenseAnswer(SENSE_NAMES).majority_outputs(TRAIN, ITEMS)
    third, sixth = 1 / 3, 1 / 6
    expected = [[0, 0, third, 2 * third], [third, 2 * third, 0, 0], [sixth, third, sixth, third]]
    np.testing.assert_allclose(outputs, expected)


def test_tfidf_knows_whose_sense_is_asked_for() -> None:
    """Sentences have both words, and only the place tells them apart."""
    places = list(zip(TRAIN["tokens"].str[1], TRAIN["label"], strict=True)) * 9
    train, items = make_places(*places), ITEMS.copy()
    for table in (train, items):
        table["tokens"] = [[*tokens, "bank", "play", "fish"] for tokens in table["tokens"]]
    answer = SenseAnswer(SENSE_NAMES)
    model = fit_tfidf(KIND, answer, train, language="en", symmetric=False, C=100.0)
    assert model.outputs(items).argmax(1).tolist()[:2] == [3, 1]
