"""Unlabelled text is read like the task's files, without labels and without scored texts.

A model must not be adapted to the texts that it is scored on.
"""

import json
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from lineage.config.data import Task
from lineage.config.records import parse_record
from lineage.data.items import TaskItems, check_task_files
from lineage.errors import InputError
from lineage.tasks.base import load_kind
from tests.helpers.tasks import TEXTS, build_task_items

LINES = "".join(f"{'AB'[n % 2]}{{sign}}question {n} ?\n" for n in range(40))
QUESTIONS = {
    "kind": "text_classification",
    "text": ["q"],
    "label": "label",
    "columns": ["label", "q"],
}
WORDS = {"kind": "token_classification", "tokens": "tokens", "label": "ner"}
ROWS = [(["Mr", "Lee", "'s", f"cat{n}"], ["O", "B-PER", "O", "O"]) for n in range(30)]


def build_task(root: Path, files: dict[str, str], **keys: Any) -> TaskItems:
    """Build a task from these files; the first is train and test, the last is unlabelled."""
    for name, text in files.items():
        (root / name).write_text(text)
    names = [*files]
    tree = {"files": {"train": names[0], "test": names[0], "unlabelled": names[-1]}, **keys}
    task = parse_record(Task, tree, "task")
    kind = load_kind(tree["kind"])
    check_task_files(task, kind, root=root, where="task", read_files=True)
    return build_task_items(root, task)


def conll_text(rows: list[tuple[list[str], list[str]]], delimiter: str) -> str:
    """Return the sentences with one word and its tag per line."""
    return "".join(
        "".join(f"{token}{delimiter}{tag}\n" for token, tag in zip(*row, strict=True)) + "\n"
        for row in rows
    )


def other_sentences(rows: list[tuple[list[str], list[str]]]) -> list[tuple[list[str], list[str]]]:
    """Return longer versions of the sentences, with only O tags."""
    return [([*tokens, "too"], ["O"] * (len(tags) + 1)) for tokens, tags in rows]


@pytest.mark.parametrize(
    ("name", "delimiter"),
    [("more.txt", " "), ("more.txt", "\t"), ("more.label", " "), ("more.tsv", "\t")],
)
@pytest.mark.parametrize("label", ["A", "?"])
def test_lines_with_a_label_and_a_text_give_only_the_text(
    name: str, delimiter: str, label: str, tmp_path: Path
) -> None:
    more = (
        "".join(f"{label}{delimiter}question {n} other ?\n" for n in range(9))
        + f"{label}{delimiter}question 3 ?\n"
    )
    task = build_task(
        tmp_path, {"train.txt": LINES.format(sign=delimiter), name: more}, **QUESTIONS
    )
    assert task.splits["unlabelled"]["text"].tolist() == [f"question {n} other ?" for n in range(9)]
    assert task.info.dropped["unlabelled"] == {"scored": 1}


def test_the_test_file_as_unlabelled_text_is_refused(tmp_path: Path) -> None:
    message = r"files\.unlabelled: train\.txt(, whose rows are sentences)?: every text is one of validation or test"
    for text, keys in (
        (LINES.format(sign="\t"), QUESTIONS),
        (conll_text(ROWS, "\t"), WORDS | {"columns": ["tokens", "ner"]}),
    ):
        with pytest.raises(InputError, match=message):
            build_task(tmp_path, {"train.txt": text}, **keys)


def test_both_sentences_of_a_minimal_pair_are_dropped_from_unlabelled_text(tmp_path: Path) -> None:
    pairs = "".join(
        json.dumps({"g": f"The cats {n} sleep .", "b": f"The cats {n} sleeps ."}) + "\n"
        for n in range(9)
    )
    unlabelled = "".join(
        json.dumps({"text": f"The cats {n} {verb} ."}) + "\n"
        for n in (3, 12)
        for verb in ("sleep", "sleeps")
    )
    task = build_task(
        tmp_path,
        {"test.jsonl": pairs, "more.jsonl": unlabelled},
        kind="minimal_pairs",
        good="g",
        bad="b",
    )
    assert task.splits["unlabelled"]["text"].tolist() == [
        "The cats 12 sleep .",
        "The cats 12 sleeps .",
    ]


def test_unlabelled_lines_without_labels_are_refused_or_read_whole(tmp_path: Path) -> None:
    texts = [f"{word} is it {n} ?" for n, word in enumerate(["What", "Who", "Why"] * 9)]
    files = {
        "train.txt": LINES.format(sign=" "),
        "more.txt": "".join(text + "\n" for text in texts),
    }
    message = r"files\.unlabelled: more\.txt: its lines are read by 'columns', and 27 of 27 have a value that train lacks as 'label'; .* the key 'q'"
    with pytest.raises(InputError, match=message):
        build_task(tmp_path, files, **QUESTIONS)
    files = {
        "train.txt": LINES.format(sign=" "),
        "more.jsonl": "".join(json.dumps({"q": text}) + "\n" for text in texts),
    }
    assert build_task(tmp_path, files, **QUESTIONS).splits["unlabelled"]["text"].tolist() == texts
    for folder in ("own/*.txt", "own"):
        (tmp_path / "own").mkdir(exist_ok=True)
        (tmp_path / "own/a.txt").write_text("".join(text + "\n" for text in texts))
        (tmp_path / "t.csv").write_text(
            "q,label\n" + "".join(f"question {n} ?,{'AB'[n % 2]}\n" for n in range(40))
        )
        folder_task = build_task_items(
            tmp_path,
            {key: QUESTIONS[key] for key in ("kind", "text", "label")}
            | {"files": {"train": "t.csv", "test": "t.csv", "unlabelled": folder}},
        )
        assert folder_task.splits["unlabelled"]["text"].tolist() == texts, (
            "without columns each line is a text"
        )


@pytest.mark.parametrize(
    ("labels", "message"),
    [([f"L{n}" for n in range(40)], "a value that train lacks"), (range(40), "no number")],
)
def test_unlabelled_lines_without_labels_are_refused_for_many_or_numeric_labels(
    labels: Any, message: str, tmp_path: Path
) -> None:
    keys = QUESTIONS | {
        "kind": "text_regression" if message == "no number" else "text_classification"
    }
    labelled = "".join(f"{labels[n % 40]}\tquestion {n} ?\n" for n in range(80))
    texts = "".join(f"{['What', 'Who', 'Why'][n % 3]} is it {n} ?\n" for n in range(27))
    with pytest.raises(
        InputError, match=f"27 of 27 have {message} as 'label'; write texts without labels as jsonl"
    ):
        build_task(tmp_path, {"train.txt": labelled, "more.txt": texts}, **keys)
    prefixed = "".join(f"{'?-'[n % 2]} {text}\n" for n, text in enumerate(texts.splitlines()))
    task = build_task(tmp_path, {"train.txt": labelled, "more.txt": prefixed}, **keys)
    assert task.splits["unlabelled"]["text"].tolist() == texts.splitlines(), (
        "a prefix before each text counts as its label"
    )


@pytest.mark.parametrize("delimiter", [" ", "\t"])
@pytest.mark.parametrize("name", ["more.txt", "more.char.bmes", "more.tsv"])
def test_unlabelled_sentences_with_one_word_per_line_become_texts(
    name: str, delimiter: str, tmp_path: Path
) -> None:
    files = {
        "train.txt": conll_text(ROWS, delimiter),
        name: conll_text([*other_sentences(ROWS), ROWS[4]], delimiter),
    }
    task = build_task(tmp_path, files, **WORDS, columns=["tokens", "ner"])
    assert task.splits["unlabelled"]["text"].tolist() == [
        f"Mr Lee 's cat{n} too" for n in range(30)
    ]
    assert task.info.dropped["unlabelled"] == {"scored": 1}
    chinese = [([*"高勇\u3000", str(n)], ["B-N", "E-N", "O", "O"]) for n in range(30)]
    files = {
        "zh.txt": conll_text(chinese, delimiter),
        f"zh.{name}": conll_text(other_sentences(chinese), delimiter),
    }
    task = build_task(tmp_path, files, **WORDS, columns=["tokens", "ner"], language="zh")
    assert task.splits["unlabelled"]["text"].tolist()[:2] == ["高勇0 too", "高勇1 too"]


@pytest.mark.parametrize("suffix", ["parquet", "jsonl", "csv"])
def test_unlabelled_tables_of_words_need_no_tags(suffix: str, tmp_path: Path) -> None:
    unlabelled_words = [row[0] for row in [*other_sentences(ROWS), ROWS[4]]]
    for name, columns in (
        ("train", {"tokens": [row[0] for row in ROWS], "ner": [row[1] for row in ROWS]}),
        ("more", {"tokens": [*unlabelled_words, []]}),
    ):
        table = pd.DataFrame(columns)
        if suffix == "parquet":
            table.to_parquet(tmp_path / f"{name}.parquet")
        elif suffix == "jsonl":
            table.to_json(tmp_path / f"{name}.jsonl", orient="records", lines=True)
        else:
            table.assign(n=1).map(
                lambda cell: " ".join(cell) if isinstance(cell, list) else cell
            ).to_csv(tmp_path / f"{name}.csv", index=False)
    files = {"train": f"train.{suffix}", "test": f"train.{suffix}", "unlabelled": f"more.{suffix}"}
    task = build_task_items(tmp_path, WORDS | {"files": files})
    assert task.splits["unlabelled"]["text"].tolist() == [
        f"Mr Lee 's cat{n} too" for n in range(30)
    ]
    assert task.info.dropped["unlabelled"] == {"blank": 1, "scored": 1}


@pytest.mark.parametrize("as_words", [False, True])
def test_scored_texts_are_found_although_their_words_are_joined_differently(
    as_words: bool, tmp_path: Path
) -> None:
    """Scored items may be texts with spans or lists of words; unlabelled texts are as written."""
    spans = [{"text": f"Mr Lee's cat{n}.", "ner": [[3, 6, "PER"]]} for n in range(30)]
    words = [
        {"text": ["Mr", "Lee", "'s", f"cat{n}", "."], "ner": ["O", "B-PER", "O", "O", "O"]}
        for n in range(30)
    ]
    unlabelled = [{"text": f"Mr Lee's cat{n}."} for n in range(29, 40)]
    splits = (("t.jsonl", words if as_words else spans), ("u.jsonl", unlabelled))
    files = {name: "".join(json.dumps(row) + "\n" for row in rows) for name, rows in splits}
    task = build_task(tmp_path, files, **WORDS | {"tokens": "text"})
    assert task.splits["unlabelled"]["text"].tolist() == [
        f"Mr Lee's cat{n}." for n in range(30, 40)
    ]


def test_spaces_around_labels_are_ignored(tmp_path: Path) -> None:
    """Such labels are written after a comma and a space."""
    train, unlabelled = (
        "".join(f"{prefix} {n}, {'abc'[n % 3]}\n" for n in range(30))
        for prefix in ("text", "other")
    )
    keys = {
        "kind": "text_classification",
        "text": ["q"],
        "label": "label",
        "columns": ["q", "label"],
    }
    assert (
        len(
            build_task(tmp_path, {"train.csv": train, "more.csv": unlabelled}, **keys).splits[
                "unlabelled"
            ]
        )
        == 30
    )


def long_texts(count: int, first: int = 0) -> list[str]:
    """Return different texts, which are longer than the part that an item keeps."""
    return [
        f"{'so' if n % 2 else 'no'} {' '.join(f'w{n}x{m}' for m in range(200))} end"
        for n in range(first, first + count)
    ]


def build_rows_of_any_kind(texts: list[str]) -> pd.DataFrame:
    """Return one row per text, with columns for items of any kind."""
    numbers = range(len(texts))
    return pd.DataFrame({"text": texts, "other": [f"is it {n} ?" for n in numbers], "label": [str(n % 2) for n in numbers],
                         "ways": [["one", f"two {n}"] for n in numbers], "tokens": [text.split() for text in texts], "place": [150 for _ in numbers],
                         "answer": [text[:2] for text in texts]})  # fmt: skip


@pytest.mark.parametrize("keys", [
    TEXTS | {"text": ["text"]},
    TEXTS | {"text": ["text", "other"]},
    TEXTS | {"text": ["other", "text"]},
    {"kind": "multiple_choice", "text": ["text", "other"], "choices": ["ways"], "label": "label"},
    {"kind": "word_sense", "tokens": "tokens", "target": "place", "label": "label"},
    {"kind": "extractive_qa", "context": "text", "question": "other", "answers": "answer"},
])  # fmt: skip
@pytest.mark.parametrize("folds", [False, True])
def test_scored_texts_are_not_adapted_to_even_if_items_truncate_them(
    keys: dict[str, Any], folds: bool, tmp_path: Path
) -> None:
    scored = long_texts(20, 0)
    more = long_texts(4, 100)
    build_rows_of_any_kind(scored).to_parquet(tmp_path / "scored.parquet")
    build_rows_of_any_kind(long_texts(20, 40)).to_parquet(tmp_path / "train.parquet")
    (tmp_path / "more.txt").write_text("\n".join([*scored, *more]))
    files = (
        {"train": "scored.parquet"}
        if folds
        else {"train": "train.parquet", "test": "scored.parquet"}
    )
    tree = keys | {"files": files | {"unlabelled": "more.txt"}} | ({"folds": 2} if folds else {})
    task_items = build_task_items(tmp_path, tree)
    assert task_items.splits["unlabelled"]["text"].tolist() == more
    assert task_items.info.dropped["unlabelled"] == {"scored": 20}
    assert task_items.info.truncated["train" if folds else "test"] == 20, (
        "every text is longer than the part that an item keeps"
    )


def test_extra_test_sets_and_a_split_off_validation_are_not_adapted_to(tmp_path: Path) -> None:
    for name, first in (("train", 0), ("test", 40), ("second", 80)):
        build_rows_of_any_kind(long_texts(20, first)).rename(
            columns={"text": f"text_{name}"}
        ).assign(text=long_texts(20, first)).to_parquet(tmp_path / f"{name}.parquet")
    (tmp_path / "more.txt").write_text("\n".join(long_texts(120)))
    second = {"files": {"test": "second.parquet"}, "text": ["text_second", "other"]}
    tree = TEXTS | {"text": ["text", "other"], "extra_test_sets": {"second": second}, "validation_share": 0.2,
                       "files": {"train": "train.parquet", "test": "test.parquet", "unlabelled": "more.txt"}}  # fmt: skip
    task_items = build_task_items(tmp_path, tree)
    validation = {
        int(name.removeprefix("train-")) - 1 for name in task_items.splits["validation"]["id"]
    }
    assert len(validation) == 4 and task_items.info.dropped["unlabelled"] == {"scored": 44}
    expected = [n for n in range(120) if n not in validation | {*range(40, 60), *range(80, 100)}]
    assert task_items.splits["unlabelled"]["text"].tolist() == [
        long_texts(1, n)[0] for n in expected
    ]
