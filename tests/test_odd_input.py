"""What real files hold that no kind can use: named by file, row and column, or read by a rule that is counted."""

import contextlib
import json
from pathlib import Path
from typing import Any

import datasets
import numpy as np
import pandas as pd
import pytest

from lineage.config.data import Task
from lineage.config.records import parse_record
from lineage.data.dataset_stats import compute_split_stats
from lineage.data.items import TaskItems, build_items
from lineage.data.language import is_blank, normalize_text, split_words
from lineage.errors import InputError
from lineage.evaluation.encoding import encode_items
from lineage.evaluation.linear_probe import extract_features
from lineage.evaluation.spans import convert_to_iob2, find_scheme_violations
from lineage.tasks.base import load_kind
from lineage.tasks.columns import parse_integer
from tests import tiny

ROWS: dict[str, list[dict[str, Any]]] = {
    "text_classification": [{"text": f"text {n}", "label": n % 2} for n in range(20)],
    "text_regression": [{"text": f"text {n}", "label": n / 7} for n in range(20)],
    "multiple_choice": [
        {"text": f"text {n}", "choices": ["it is", "it was"], "label": n % 2} for n in range(20)
    ],
    "token_classification": [
        {"tokens": ["the", "Bank", "of", "X"], "label": ["O", "B-ORG", "I-ORG", "I-ORG"]}
        for _ in range(20)
    ],
    "word_sense": [
        {"tokens": ["the", "bank", "of"], "target": 1, "label": "ab"[n % 2]} for n in range(20)
    ],
    "word_similarity": [{"one": f"w{n}", "two": f"v{n}", "label": n / 7} for n in range(20)],
    "minimal_pairs": [{"good": f"the cat runs {n}", "bad": f"the cat run {n}"} for n in range(20)],
    "translation": [{"source": f"the cat {n}", "target": f"le chat {n}"} for n in range(20)],
}
KEYS: dict[str, dict[str, Any]] = {"text_classification": {"text": ["text"]}, "text_regression": {"text": ["text"]},
                                   "multiple_choice": {"text": ["text"], "choices": ["choices"]}, "word_similarity": {"words": ["one", "two"]}}  # fmt: skip


def made(
    root: Path,
    kind: str,
    change: dict[str, Any],
    *,
    split: str = "train",
    suffix: str = "jsonl",
    **more: Any,
) -> TaskItems:
    """A task of the kind whose fourth row in one split is changed."""
    columns = {name: name for name in ROWS[kind][0]} | KEYS.get(kind, {})
    known = {key: columns[key] for key in load_kind(kind).required_columns}
    files = {}
    for name in load_kind(kind).required_splits:
        rows = [
            row | (change if (name, number) == (split, 3) else {})
            for number, row in enumerate(ROWS[kind])
        ]
        files[name] = f"{name}.{suffix}"
        if suffix == "jsonl":
            (root / files[name]).write_text("".join(json.dumps(row) + "\n" for row in rows))
        else:
            pd.DataFrame(rows).to_csv(root / files[name], index=False)
    task = parse_record(
        Task, {"kind": kind, "files": files, "validation_share": 0.2, **known, **more}, "task"
    )
    return build_items("x", task, load_kind(kind), seed=1, root=root, where="task")


@pytest.mark.parametrize(("kind", "change", "said"), [
    ("text_classification", {"label": None}, "column 'label': the label is missing"),
    ("text_classification", {"label": "so long that it is no name " * 4}, "column 'label': the label has more than 80 letters, and reports show it"),
    ("text_classification", {"label": float("nan")}, "column 'label': the label is missing"),
    ("text_classification", {"label": float("inf")}, "column 'label': the label is missing"),
    ("text_classification", {"label": "nan"}, "column 'label': the label is missing"),
    ("text_classification", {"label": [1]}, "column 'label' holds a list, not text"),
    ("text_regression", {"label": "3,5"}, "column 'label': '3,5' is not a finite number"),
    ("text_regression", {"label": True}, "column 'label': 'True' is not a finite number"),
    ("text_regression", {"label": "1_000"}, "column 'label': '1_000' is not a finite number"),
    ("multiple_choice", {"choices": ["a", "b", "c"]}, "column 'choices': it has 3 choices, but the first row has 2"),
    ("multiple_choice", {"choices": ["a", "\u200b"]}, "column 'choices': a choice is blank"),
    ("multiple_choice", {"choices": [["a"], "b"]}, "column 'choices': a choice holds a list, not text"),
    ("multiple_choice", {"label": -1}, "column 'label': '-1' is not one of the 2 choices"),
    ("multiple_choice", {"label": "A"}, "column 'label': 'A' is not one of the 2 choices"),
    ("token_classification", {"tokens": 5}, "column 'tokens' does not hold a list"),
    ("token_classification", {"tokens": {"a": 1}}, "column 'tokens' does not hold a list"),
    ("token_classification", {"tokens": [["the"], "Bank", "of", "X"]}, "column 'tokens': an entry holds a list, not text"),
    ("word_sense", {"target": -1}, "column 'target': -1 is outside the 3 tokens"),
    ("word_sense", {"target": float("inf")}, "column 'target': inf is not the index"),
    ("word_sense", {"target": True}, "column 'target': True is not the index"),
    ("word_sense", {"tokens": 5}, "column 'tokens' does not hold a list"),
    ("word_sense", {"tokens": ["a", None, "b"]}, "column 'tokens': an entry is blank"),
    ("word_sense", {"tokens": ["a", "\u200b", "b"]}, "column 'tokens': the word at 1, which 'target' names, is blank"),
    ("word_similarity", {"label": "high"}, "column 'label': 'high' is not a finite number"),
    ("word_similarity", {"two": "\u2060"}, "column 'two': the word is blank"),
    ("minimal_pairs", {"bad": "\ufe0f"}, "column 'bad': the text is blank"),
    ("translation", {"source": "\u3164"}, "column 'source': the source is blank"),
])  # fmt: skip
def test_a_cell_that_is_none_is_named_by_file_row_and_column(
    kind: str, change: dict[str, Any], said: str, tmp_path: Path
) -> None:
    with pytest.raises(InputError) as caught:
        made(
            tmp_path,
            kind,
            change,
            split="test" if kind in ("word_similarity", "minimal_pairs") else "train",
        )
    place = "test" if kind in ("word_similarity", "minimal_pairs") else "train"
    assert str(caught.value).startswith(
        f"task.files.{place}: {place}.jsonl: row 4: {said}"
    ) and str(caught.value).endswith("or remove the row")


def test_a_text_is_no_group_and_no_message_shows_it(tmp_path: Path) -> None:
    """Reports name groups, and errors labels: a column of texts that is named by mistake stays private."""
    texts = [
        f"Doctor, I have had a cough since I was in the cellar, {n} weeks ago, and my left knee is sore as well"
        for n in range(20)
    ]
    rows = [
        row | {"text": text, "half": text[:60]}
        for row, text in zip(ROWS["text_classification"], texts, strict=True)
    ]
    for split in ("train", "test"):
        (tmp_path / f"{split}.jsonl").write_text(
            "".join(json.dumps(row) + "\n" for row in rows[: 20 if split == "train" else 4])
        )
    for keys, said in (
        ({"group": "text"}, "the group has more than 80 letters"),
        ({"label": "half"}, "does not occur in train|no label with an item"),
    ):
        tree = {
            "kind": "text_classification",
            "text": ["text"],
            "label": "label",
            "files": {"train": "train.jsonl", "test": "test.jsonl"},
        } | keys
        (tmp_path / "test.jsonl").write_text(
            json.dumps(rows[3] | {"half": "another cough, of another patient"}) + "\n"
        )
        with pytest.raises(InputError, match=said) as caught:
            build_items(
                "x",
                parse_record(Task, tree, "task"),
                load_kind("text_classification"),
                seed=1,
                root=tmp_path,
                where="task",
            )
        assert "cough since" not in str(caught.value) and "another patient" not in str(caught.value)


@pytest.mark.parametrize("others", ["some", "all"])
def test_one_of_several_groups_is_not_called_as_all_of_them(others: str, tmp_path: Path) -> None:
    """Its scores would stand in place of all items'."""
    rows = [
        row | {"g": "all" if place == 7 else others}
        for place, row in enumerate(ROWS["text_classification"])
    ]
    for split in ("train", "test"):
        (tmp_path / f"{split}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    files = {"train": "train.jsonl", "test": "test.jsonl"}
    task = parse_record(
        Task,
        {
            "kind": "text_classification",
            "text": ["text"],
            "label": "label",
            "group": "g",
            "files": files,
        },
        "task",
    )
    said = r"train\.jsonl: row 8: column 'g': 'all' is the name of all groups together"
    with pytest.raises(InputError, match=said) if others == "some" else contextlib.nullcontext():
        build_items(
            "x", task, load_kind("text_classification"), seed=1, root=tmp_path, where="task"
        )


def test_rows_with_nothing_in_any_column_are_left_out_and_counted_and_rows_keep_their_numbers(
    tmp_path: Path,
) -> None:
    nothing = [",\n"] * 30
    (tmp_path / "t.csv").write_text(
        "".join(
            ["text,label\n", *nothing[:2], *(f"text {n},{n % 2}\n" for n in range(20)), *nothing]
        )
    )
    files = {"train": "t.csv", "test": "t.csv"}
    found = made(tmp_path, "text_classification", {}, files=files)
    assert found.info["dropped"]["test"] == {"blank": 32} and list(found.splits["test"]["id"]) == [
        f"test-{n}" for n in range(3, 23)
    ]
    assert compute_split_stats(found.info, "test").dropped == {"blank": 32}
    (tmp_path / "t.csv").write_text((tmp_path / "t.csv").read_text() + "a text,\n")
    with pytest.raises(InputError, match=r"t\.csv: row 53: column 'label': the label is missing"):
        made(tmp_path, "text_classification", {}, files=files)
    (tmp_path / "t.csv").write_text("text,label\n,\n,\n")
    with pytest.raises(InputError, match=r"t\.csv: every row is blank in text, label"):
        made(tmp_path, "text_classification", {}, files=files)


def test_a_list_written_as_text_is_refused_by_every_kind_that_reads_lists(tmp_path: Path) -> None:
    for kind in ("token_classification", "word_sense"):
        with pytest.raises(
            InputError, match=r"row 1: column 'tokens' holds a list written as text"
        ):
            made(tmp_path, kind, {}, suffix="csv")
    assert made(tmp_path, "word_sense", {"tokens": "[ laughs ]"}).splits["test"].shape[0] == 20, (
        "brackets of a text are no list"
    )


def test_whole_numbers_with_a_point_are_the_labels_without_one(tmp_path: Path) -> None:
    assert made(tmp_path, "text_classification", {"label": 1.0}, split="test").info["labels"] == [
        "0",
        "1",
    ]
    assert made(tmp_path, "text_classification", {"label": "1.0"}, split="test").info["labels"] == [
        "0",
        "1",
    ]
    numbers = [row | {"label": [0.0, 1, 2, "2.0"]} for row in ROWS["token_classification"]]
    (tmp_path / "t.jsonl").write_text("".join(json.dumps(row) + "\n" for row in numbers))
    assert made(
        tmp_path, "token_classification", {}, files={"train": "t.jsonl", "test": "t.jsonl"}
    ).info["labels"] == ["0", "1", "2"]
    with pytest.raises(
        InputError,
        match=r"span_f1 needs spans, and the tags \(0, 1, 2\) are neither .* but numbers: give their names in",
    ):
        made(
            tmp_path,
            "token_classification",
            {},
            files={"train": "t.jsonl", "test": "t.jsonl"},
            metric=["span_f1"],
        )


def test_tags_that_are_numbers_are_counted_unless_the_task_says_their_metric(
    tmp_path: Path,
) -> None:
    (tmp_path / "t.jsonl").write_text(
        "".join(
            json.dumps(row | {"label": [0, 1, 2, 2]}) + "\n" for row in ROWS["token_classification"]
        )
    )
    files = {"train": "t.jsonl", "test": "t.jsonl"}
    assert made(tmp_path, "token_classification", {}, files=files).info["numbered_tags"] == {
        "train": 3
    }
    assert (
        made(tmp_path, "token_classification", {}, files=files, metric=["token_accuracy"]).info[
            "numbered_tags"
        ]
        == {}
    )
    assert (
        made(tmp_path, "token_classification", {}).info["numbered_tags"]
        == made(tmp_path, "text_classification", {}).info["numbered_tags"]
        == {}
    )


@pytest.mark.parametrize("language", ["en", "de", "zh"])
def test_how_a_sign_is_drawn_is_no_letter_of_the_next_word(language: str) -> None:
    assert split_words(
        normalize_text("\u845b\U000e0100 I\u2764\ufe0flove \u260e\ufe0f123"), language
    ) == ["\u845b", "I", "\u2764", "love", "\u260e", "123"]


def test_what_is_only_drawn_as_nothing_is_blank_and_signs_are_not() -> None:
    assert all(
        is_blank(text)
        for text in (
            "",
            " \t\u00a0",
            "\u200b\u200d",
            "\u00ad",
            "\u200f",
            "\ufe0f",
            "\u3164",
            "\u2800",
        )
    )
    assert not any(
        is_blank(text) for text in ("...!?", "🙂", "👩\u200d👧", "\u0301", "中", "0", "\U0001fae9")
    )


@pytest.mark.parametrize(("tags", "count"), [
    ([["B-X", "I-X", "O"], ["O", "B-Y", "B-Y"]], 0),  # IOB2
    ([["I-X", "I-X", "B-X"], ["O", "I-Y", "O"]], 0),  # IOB1
    ([["B-X", "E-X", "S-X"], ["O", "B-Y", "I-Y"]], 1),  # BIOES, but the last span has no end
    ([["B-X", "L-X", "U-X"], ["O", "U-Y", "O"]], 0),  # BILOU
    ([["B-X", "M-X", "E-X"], ["O", "S-Y", "O"], ["B-Y", "M-Y", "O"]], 1),  # BMES, but the last span has no end
    ([["B-X", "I-X", "O"], ["B-X", "O", "B-X"], ["O", "O", "I-X"]], 1),  # IOB2, but for an I after O
    ([["B-X", "I-X", "O"], ["B-X", "O", "B-X"], ["B-X", "I-Y", "O"]], 1),  # another type goes on
    ([["B-X", "I-X", "O"], ["B-X", "O", "O"], ["S-X", "O", "O"]], 1),  # a letter of another scheme
])  # fmt: skip
def test_sequences_that_break_the_scheme_of_the_others_are_counted(
    tags: list[list[str]], count: int
) -> None:
    assert sum(find_scheme_violations(tags)) == count
    assert not any(find_scheme_violations([convert_to_iob2(some) for some in tags]))


def test_tags_that_were_guessed_at_are_in_the_facts(tmp_path: Path) -> None:
    found = made(
        tmp_path,
        "token_classification",
        {"label": ["O", "O", "I-ORG", "I-ORG"]},
        metric=["span_f1"],
    )
    assert found.info["mended_tags"] in (
        {"train": 1, "validation": 0, "test": 0},
        {"train": 0, "validation": 1, "test": 0},
    )
    rows = pd.concat([found.splits["train"], found.splits["validation"]]).set_index("id")
    assert [found.info["labels"][i] for i in rows.loc["train-4", "label"]] == [
        "O",
        "O",
        "B-ORG",
        "I-ORG",
    ]
    with pytest.raises(
        InputError,
        match="row 4: column 'label': tag 2 of 4: 'X-ORG' is neither O nor a letter of IOB, BIOES, BMES or BILOU",
    ):
        made(tmp_path, "token_classification", {"label": ["O", "X-ORG", "O", "O"]})
    everywhere = [
        row | {"label": ["B-A", "I-A", "B-B", "I-B"]} for row in ROWS["token_classification"]
    ]
    (tmp_path / "t.jsonl").write_text("".join(json.dumps(row) + "\n" for row in everywhere))
    whole = made(
        tmp_path, "token_classification", {}, files={"train": "t.jsonl", "test": "t.jsonl"}
    )
    assert whole.info["metric"] == ["span_f1"], "spans without an O between"


@pytest.mark.parametrize(("text", "said"), [
    ("text;label\na;1\n", "t.csv: its first line has one column, with ';' in its name; separate the columns of a csv with commas"),
    ("text\tlabel\na\t1\n", r"t.csv: its first line has one column, with '\t' in its name"),
    ("text,label,text\na,1,b\n", "t.csv: its first line names the column 'text' twice"),
    ("sep=,\ntext,label\na,1\n", "t.csv: its first line, sep=, is for Excel alone; remove it"),
    ("sep=;\ntext;label\na;1\n", "t.csv: its first line, sep=, is for Excel alone; remove it"),
    ("txt,label\na,1\n", "t.csv has no column 'text'; did you mean 'txt'?"),
])  # fmt: skip
def test_a_csv_of_another_shape_says_what_is_wrong_with_it(
    text: str, said: str, tmp_path: Path
) -> None:
    (tmp_path / "t.csv").write_text(text)
    with pytest.raises(InputError) as caught:
        made(tmp_path, "text_classification", {}, files={"train": "t.csv", "test": "t.csv"})
    assert said in str(caught.value)


def test_class_labels_of_the_hub_are_read_by_their_names_where_they_are_tags(
    tmp_path: Path,
) -> None:
    names = datasets.ClassLabel(names=["O", "B-PER", "I-PER"])
    features = datasets.Features({"tokens": datasets.Sequence(datasets.Value("string")), "tags": datasets.Sequence(names),
                                  "text": datasets.Value("string"), "label": datasets.ClassLabel(names=["bad", "good"])})  # fmt: skip
    columns = {
        "tokens": [["a", "Bob", "Lee"]] * 20,
        "tags": [[0, 1, 2]] * 20,
        "text": [f"text {n}" for n in range(20)],
        "label": [0, 1] * 10,
    }
    datasets.Dataset.from_dict(columns, features=features).to_parquet(str(tmp_path / "t.parquet"))
    files = {"train": "t.parquet", "test": "t.parquet"}
    found = made(
        tmp_path, "token_classification", {}, files=files, label="tags", metric=["span_f1"]
    )
    assert found.info["labels"] == ["B-PER", "I-PER", "O"] and found.splits["test"]["label"].iloc[
        0
    ] == [2, 0, 1]
    assert made(tmp_path, "text_classification", {}, files=files).info["labels"] == ["0", "1"], (
        "a single one stays a number, which may be a place"
    )


@pytest.mark.parametrize(
    "name",
    [
        "word2vec",
        "elmo",
        "gpt",
        pytest.param("bert"),
        pytest.param("ulmfit", marks=pytest.mark.slow),
    ],
)
def test_signs_alone_and_words_without_a_piece_are_read_by_every_family(name: str) -> None:
    """BERT's tokenizer leaves out what is drawn as nothing: the item stays, without that word, and is counted."""
    reader, model, odd = tiny.reader(name), tiny.model(name), ["...!?", "🙂🙂", "\u0301", "\u200b"]
    for table in (
        pd.DataFrame({"text": odd}),
        pd.DataFrame({"text": odd, "second": odd[::-1]}),
        pd.DataFrame({"tokens": [odd, odd[3:]]}),
    ):
        assert np.isfinite(
            extract_features(
                model,
                reader,
                encode_items(table, reader, max_length=14, language="en"),
                precision="fp32",
            )
        ).all()
    asked = pd.DataFrame(
        {"tokens": [["the", "\u200b", "cat"], ["\u200b"], ["the", "cat"]], "target": [1, 0, 1]}
    )
    items = encode_items(asked, reader, max_length=14, language="en")
    read = extract_features(model, reader, items, precision="fp32")
    assert [item.num_uncovered_words for item in items] == (
        [1, 1, 0] if name == "bert" else [0, 0, 0]
    )
    assert np.isfinite(read).all() and [bool((one == 0).all()) for one in read] == [
        item.num_uncovered_words > 0 for item in items
    ]
    alone = extract_features(model, reader, items[1:2], precision="fp32")
    np.testing.assert_allclose(alone[0], read[1], atol=1e-5)


@pytest.mark.parametrize(("value", "number"), [("5.0", 5), (5.0, 5), ("3", 3), (-1, -1), ("1_0", None), (True, None), (2.5, None), ("nan", None),
                                                (None, None), ("inf", None)])  # fmt: skip
def test_a_whole_number_of_a_cell_may_be_written_with_a_point(
    value: object, number: int | None
) -> None:
    if number is None:
        with pytest.raises((TypeError, ValueError, OverflowError)):
            parse_integer(value)
    else:
        assert parse_integer(value) == number
