"""Text to adapt to is read as the task's own files are: no label stands in it, and nothing that is scored."""

import json
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from lineage.config.data import Task
from lineage.config.records import parse_record
from lineage.data.items import TaskItems, build_items, check_task_files
from lineage.errors import InputError
from lineage.tasks.base import load_kind

LINES = "".join(f"{'AB'[n % 2]}{{sign}}question {n} ?\n" for n in range(40))
QUESTIONS = {
    "kind": "text_classification",
    "text": ["q"],
    "label": "label",
    "columns": ["label", "q"],
}
WORDS = {"kind": "token_classification", "tokens": "tokens", "label": "ner"}
ROWS = [(["Mr", "Lee", "'s", f"cat{n}"], ["O", "B-PER", "O", "O"]) for n in range(30)]


def made(root: Path, files: dict[str, str], **keys: Any) -> TaskItems:
    """A task whose splits are so written, each in the file that the key names, the first of them train and test."""
    for name, written in files.items():
        (root / name).write_text(written)
    own = [*files]
    tree = {"files": {"train": own[0], "test": own[0], "unlabelled": own[-1]}, **keys}
    task, kind = parse_record(Task, tree, "task"), load_kind(tree["kind"])
    check_task_files(task, kind, root=root, where="task", read_files=True)
    return build_items("x", task, kind, seed=1, root=root, where="task")


def sentences(rows: list[tuple[list[str], list[str]]], sign: str) -> str:
    return "".join(
        "".join(f"{token}{sign}{tag}\n" for token, tag in zip(*row, strict=True)) + "\n"
        for row in rows
    )


def others(rows: list[tuple[list[str], list[str]]]) -> list[tuple[list[str], list[str]]]:
    """Sentences of their own, every tag of which is held back."""
    return [([*tokens, "too"], ["O"] * (len(tags) + 1)) for tokens, tags in rows]


@pytest.mark.parametrize(
    ("name", "sign"),
    [("more.txt", " "), ("more.txt", "\t"), ("more.label", " "), ("more.tsv", "\t")],
)
@pytest.mark.parametrize("mark", ["A", "?"])
def test_lines_of_a_label_and_a_text_give_the_text_alone(
    name: str, sign: str, mark: str, tmp_path: Path
) -> None:
    more = (
        "".join(f"{mark}{sign}question {n} other ?\n" for n in range(9))
        + f"{mark}{sign}question 3 ?\n"
    )
    found = made(tmp_path, {"train.txt": LINES.format(sign=sign), name: more}, **QUESTIONS)
    assert found.splits["unlabelled"]["text"].tolist() == [
        f"question {n} other ?" for n in range(9)
    ]
    assert found.info["dropped"]["unlabelled"] == {"scored": 1}


def test_a_test_file_given_to_adapt_to_is_seen_for_what_it_is(tmp_path: Path) -> None:
    said = r"files\.unlabelled: train\.txt(, whose rows are sentences)?: every text is one of validation or test"
    for written, keys in (
        (LINES.format(sign="\t"), QUESTIONS),
        (sentences(ROWS, "\t"), WORDS | {"columns": ["tokens", "ner"]}),
    ):
        with pytest.raises(InputError, match=said):
            made(tmp_path, {"train.txt": written}, **keys)


def test_of_a_minimal_pair_both_sentences_are_scored(tmp_path: Path) -> None:
    pairs = "".join(
        json.dumps({"g": f"The cats {n} sleep .", "b": f"The cats {n} sleeps ."}) + "\n"
        for n in range(9)
    )
    more = "".join(
        json.dumps({"text": f"The cats {n} {verb} ."}) + "\n"
        for n in (3, 12)
        for verb in ("sleep", "sleeps")
    )
    found = made(
        tmp_path, {"test.jsonl": pairs, "more.jsonl": more}, kind="minimal_pairs", good="g", bad="b"
    )
    assert found.splits["unlabelled"]["text"].tolist() == [
        "The cats 12 sleep .",
        "The cats 12 sleeps .",
    ]


def test_texts_alone_beside_lines_with_labels_lose_no_word_in_silence(tmp_path: Path) -> None:
    texts = [f"{word} is it {n} ?" for n, word in enumerate(["What", "Who", "Why"] * 9)]
    files = {
        "train.txt": LINES.format(sign=" "),
        "more.txt": "".join(text + "\n" for text in texts),
    }
    said = r"files\.unlabelled: more\.txt: its lines are read by 'columns', and 27 of 27 have a value that train lacks as 'label'; .* the key 'q'"
    with pytest.raises(InputError, match=said):
        made(tmp_path, files, **QUESTIONS)
    files = {
        "train.txt": LINES.format(sign=" "),
        "more.jsonl": "".join(json.dumps({"q": text}) + "\n" for text in texts),
    }
    assert made(tmp_path, files, **QUESTIONS).splits["unlabelled"]["text"].tolist() == texts
    for folder in ("own/*.txt", "own"):
        (tmp_path / "own").mkdir(exist_ok=True)
        (tmp_path / "own/a.txt").write_text("".join(text + "\n" for text in texts))
        (tmp_path / "t.csv").write_text(
            "q,label\n" + "".join(f"question {n} ?,{'AB'[n % 2]}\n" for n in range(40))
        )
        task = parse_record(Task, {key: QUESTIONS[key] for key in ("kind", "text", "label")}
                    | {"files": {"train": "t.csv", "test": "t.csv", "unlabelled": folder}}, "task")  # fmt: skip
        found = build_items(
            "x", task, load_kind("text_classification"), seed=1, root=tmp_path, where="task"
        )
        assert found.splits["unlabelled"]["text"].tolist() == texts, (
            "a text a line where the task has no columns"
        )


@pytest.mark.parametrize(
    ("labels", "said"),
    [([f"L{n}" for n in range(40)], "a value that train lacks"), (range(40), "no number")],
)
def test_nor_where_there_are_more_labels_than_first_words_nor_where_they_are_numbers(
    labels: Any, said: str, tmp_path: Path
) -> None:
    keys = QUESTIONS | {"kind": "text_regression" if said == "no number" else "text_classification"}
    known = "".join(f"{labels[n % 40]}\tquestion {n} ?\n" for n in range(80))
    texts = "".join(f"{['What', 'Who', 'Why'][n % 3]} is it {n} ?\n" for n in range(27))
    with pytest.raises(
        InputError, match=f"27 of 27 have {said} as 'label'; write texts without labels as jsonl"
    ):
        made(tmp_path, {"train.txt": known, "more.txt": texts}, **keys)
    signs = "".join(f"{'?-'[n % 2]} {text}\n" for n, text in enumerate(texts.splitlines()))
    found = made(tmp_path, {"train.txt": known, "more.txt": signs}, **keys)
    assert found.splits["unlabelled"]["text"].tolist() == texts.splitlines(), (
        "a sign before each is one"
    )


@pytest.mark.parametrize("sign", [" ", "\t"])
@pytest.mark.parametrize("name", ["more.txt", "more.char.bmes", "more.tsv"])
def test_sentences_of_a_word_a_line_are_running_text(name: str, sign: str, tmp_path: Path) -> None:
    files = {"train.txt": sentences(ROWS, sign), name: sentences([*others(ROWS), ROWS[4]], sign)}
    found = made(tmp_path, files, **WORDS, columns=["tokens", "ner"])
    assert found.splits["unlabelled"]["text"].tolist() == [
        f"Mr Lee 's cat{n} too" for n in range(30)
    ]
    assert found.info["dropped"]["unlabelled"] == {"scored": 1}
    chinese = [([*"高勇\u3000", str(n)], ["B-N", "E-N", "O", "O"]) for n in range(30)]
    files = {"zh.txt": sentences(chinese, sign), f"zh.{name}": sentences(others(chinese), sign)}
    found = made(tmp_path, files, **WORDS, columns=["tokens", "ner"], language="zh")
    assert found.splits["unlabelled"]["text"].tolist()[:2] == ["高勇0 too", "高勇1 too"]


@pytest.mark.parametrize("suffix", ["parquet", "jsonl", "csv"])
def test_tables_of_words_need_no_tags(suffix: str, tmp_path: Path) -> None:
    held = [row[0] for row in [*others(ROWS), ROWS[4]]]
    for name, columns in (
        ("train", {"tokens": [row[0] for row in ROWS], "ner": [row[1] for row in ROWS]}),
        ("more", {"tokens": [*held, []]}),
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
    found = build_items(
        "x",
        parse_record(Task, WORDS | {"files": files}, "task"),
        load_kind("token_classification"),
        seed=1,
        root=tmp_path,
        where="task",
    )
    assert found.splits["unlabelled"]["text"].tolist() == [
        f"Mr Lee 's cat{n} too" for n in range(30)
    ]
    assert found.info["dropped"]["unlabelled"] == {"blank": 1, "scored": 1}


@pytest.mark.parametrize("lists", [False, True])
def test_a_text_is_found_again_where_its_words_are_joined_otherwise(
    lists: bool, tmp_path: Path
) -> None:
    """What is scored may be a text with its spans or a list of words, and what may be adapted to is as it was written."""
    spans = [{"text": f"Mr Lee's cat{n}.", "ner": [[3, 6, "PER"]]} for n in range(30)]
    words = [
        {"text": ["Mr", "Lee", "'s", f"cat{n}", "."], "ner": ["O", "B-PER", "O", "O", "O"]}
        for n in range(30)
    ]
    more = [{"text": f"Mr Lee's cat{n}."} for n in range(29, 40)]
    written = (("t.jsonl", words if lists else spans), ("u.jsonl", more))
    files = {name: "".join(json.dumps(row) + "\n" for row in rows) for name, rows in written}
    found = made(tmp_path, files, **WORDS | {"tokens": "text"})
    assert found.splits["unlabelled"]["text"].tolist() == [
        f"Mr Lee's cat{n}." for n in range(30, 40)
    ]


def test_labels_with_blanks_round_them_are_those_of_train(tmp_path: Path) -> None:
    """As they are written behind a comma and a space."""
    train, more = (
        "".join(f"{what} {n}, {'abc'[n % 3]}\n" for n in range(30)) for what in ("text", "other")
    )
    keys = {
        "kind": "text_classification",
        "text": ["q"],
        "label": "label",
        "columns": ["q", "label"],
    }
    assert (
        len(made(tmp_path, {"train.csv": train, "more.csv": more}, **keys).splits["unlabelled"])
        == 30
    )
