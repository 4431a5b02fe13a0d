"""Unusable cells in real files are reported by file, row and column, or handled and counted."""

from pathlib import Path
from typing import Any

import datasets
import numpy as np
import pandas as pd
import pytest

from lineage.answers.spans import convert_to_iob2, find_scheme_violations
from lineage.data.dataset_stats import compute_split_stats
from lineage.data.items import TaskItems
from lineage.data.splits import describe_blank_rows
from lineage.errors import InputError
from lineage.language import is_blank, normalize_text, split_words
from lineage.methods.encoding import encode_items
from lineage.methods.stored_features import extract_features
from lineage.tasks.columns import parse_integer
from tests.helpers import tiny
from tests.helpers.tasks import ROWS, build_changed_task, write_jsonl


def build_rows_task(root: Path, kind: str, rows: list[dict[str, Any]], **fields: Any) -> TaskItems:
    """Build a task of the kind, whose train and test are these rows."""
    write_jsonl(root / "t.jsonl", rows)
    files = {"train": "t.jsonl", "test": "t.jsonl"}
    return build_changed_task(root, kind, {}, files=files, **fields)


@pytest.mark.parametrize(("kind", "change", "message"), [
    ("text_classification", {"label": None}, "column 'label': the label is missing"),
    ("text_classification", {"label": "so long that it is no name " * 4}, "column 'label': the label has more than 80 characters, and reports show it"),
    ("text_classification", {"label": float("nan")}, "column 'label': the label is missing"),
    ("text_classification", {"label": float("inf")}, "column 'label': the label is missing"),
    ("text_classification", {"label": "nan"}, "column 'label': the label is missing"),
    ("text_classification", {"label": [1]}, "column 'label' holds a list, not text"),
    ("text_regression", {"label": "3,5"}, "column 'label': '3,5' is not a finite number (write a point for the decimal comma)"),
    ("text_regression", {"label": True}, "column 'label': 'True' is not a finite number"),
    ("text_regression", {"label": "1_000"}, "column 'label': '1_000' is not a finite number"),
    ("multiple_choice", {"choices": ["a", "b", "c"]}, "column 'choices': it has 3 choices, but the first row has 2"),
    ("multiple_choice", {"choices": ["a", "\u200b"]}, "column 'choices': a choice is blank"),
    ("multiple_choice", {"choices": [["a"], "b"]}, "column 'choices': an entry holds a list, not text"),
    ("multiple_choice", {"label": -1}, "column 'label': '-1' is not one of the 2 choices"),
    ("multiple_choice", {"label": "A"}, "column 'label': 'A' is not one of the 2 choices"),
    ("token_classification", {"tokens": 5}, "column 'tokens' does not hold a list"),
    ("token_classification", {"tokens": {"a": 1}}, "column 'tokens' does not hold a list"),
    ("token_classification", {"tokens": [["the"], "Bank", "of", "X"]}, "column 'tokens': an entry holds a list, not text"),
    ("word_sense", {"target": -1}, "column 'target': -1 is outside the 3 tokens"),
    ("word_sense", {"target": float("inf")}, "column 'target': inf is not the index"),
    ("word_sense", {"target": True}, "column 'target': True is not the index"),
    ("word_sense", {"target": None}, "column 'target': None is not the index"),
    ("word_sense", {"tokens": []}, "column 'tokens': "),
    ("word_sense", {"tokens": 5}, "column 'tokens' does not hold a list"),
    ("word_sense", {"tokens": ["a", None, "b"]}, "column 'tokens': an entry is blank"),
    ("word_sense", {"tokens": ["a", "\u200b", "b"]}, "column 'tokens': the word at 1, which 'target' names, is blank"),
    ("word_similarity", {"label": "high"}, "column 'label': 'high' is not a finite number"),
    ("word_similarity", {"two": "\u2060"}, "column 'two': the word is blank"),
    ("minimal_pairs", {"bad": "\ufe0f"}, "column 'bad': the text is blank"),
    ("translation", {"source": "\u3164"}, "column 'source': the source is blank"),
    ("summarization", {"source": "\u3164"}, "column 'source': the document is blank"),
    ("summarization", {"target": None}, "column 'target': the summary is blank"),
    ("summarization", {"target": ["a", "b"]}, "column 'target' holds a list, not text"),
])  # fmt: skip
def test_an_invalid_cell_is_reported_by_file_row_and_column(
    kind: str, change: dict[str, Any], message: str, tmp_path: Path
) -> None:
    split = "test" if kind in ("word_similarity", "minimal_pairs") else "train"
    with pytest.raises(InputError) as error:
        build_changed_task(tmp_path, kind, change, split=split)
    assert str(error.value).startswith(f"task.files.{split}: {split}.jsonl: row 4: {message}")
    assert str(error.value).endswith("or remove the row")


def test_all_values_that_are_not_numbers_are_reported_in_one_message(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text(
        "text,label\n" + "".join(f"text {row},{'n/a' if row % 4 else row}\n" for row in range(24))
    )
    with pytest.raises(InputError) as error:
        build_changed_task(
            tmp_path, "text_regression", {}, files={"train": "t.csv", "test": "t.csv"}
        )
    assert str(error.value) == (
        "task.files.train: t.csv: 18 rows (2, 3, 4, 6, 7, ...): column 'label': 'n/a' in the first "
        "is not a finite number; correct the data, or remove these rows"
    )


@pytest.mark.parametrize("other_groups", ["some", "all"])
def test_one_of_several_groups_must_not_be_called_all(other_groups: str, tmp_path: Path) -> None:
    """Its scores would replace those of all items."""
    rows = [
        row | {"g": "all" if index == 7 else other_groups}
        for index, row in enumerate(ROWS["text_classification"])
    ]
    if other_groups == "all":
        build_rows_task(tmp_path, "text_classification", rows, group="g")
        return
    message = r"t\.jsonl: row 8: column 'g': 'all' is the name of all groups together"
    with pytest.raises(InputError, match=message):
        build_rows_task(tmp_path, "text_classification", rows, group="g")


def test_empty_rows_are_dropped_and_counted_and_other_rows_keep_their_numbers(
    tmp_path: Path,
) -> None:
    lines = "".join(f"text {number},{number % 2}\n" for number in range(20))
    (tmp_path / "t.csv").write_text("text,label\n" + ",\n" * 2 + lines + ",\n" * 30)
    files = {"train": "t.csv", "test": "t.csv"}
    task_items = build_changed_task(tmp_path, "text_classification", {}, files=files)
    assert task_items.info.dropped["test"] == {"blank": 32}
    assert describe_blank_rows(task_items.info) == [
        f"{split} has 32 rows without text, left out here" for split in ("train", "test")
    ]
    expected_ids = [f"test-{number}" for number in range(3, 23)]
    assert list(task_items.splits["test"]["id"]) == expected_ids
    assert compute_split_stats(task_items.info, "test").dropped == {"blank": 32}
    (tmp_path / "t.csv").write_text((tmp_path / "t.csv").read_text() + "a text,\n")
    with pytest.raises(InputError, match=r"t\.csv: row 53: column 'label': the label is missing"):
        build_changed_task(tmp_path, "text_classification", {}, files=files)
    (tmp_path / "t.csv").write_text("text,label\n,\n,\n")
    with pytest.raises(InputError, match=r"t\.csv: every row is blank in text, label"):
        build_changed_task(tmp_path, "text_classification", {}, files=files)


def test_a_list_written_as_text_is_refused(tmp_path: Path) -> None:
    for kind in ("token_classification", "word_sense"):
        with pytest.raises(
            InputError, match=r"row 1: column 'tokens' holds a list written as text"
        ):
            build_changed_task(tmp_path, kind, {}, suffix="csv")
    task_items = build_changed_task(tmp_path, "word_sense", {"tokens": "[ laughs ]"})
    assert task_items.splits["test"].shape[0] == 20, "a text in brackets is not a list"


def test_whole_numbers_with_a_decimal_point_equal_those_without(tmp_path: Path) -> None:
    for label in (1.0, "1.0"):
        task_items = build_changed_task(
            tmp_path, "text_classification", {"label": label}, split="test"
        )
        assert task_items.info.labels == ["0", "1"]
    rows = [row | {"label": [0.0, 1, 2, "2.0"]} for row in ROWS["token_classification"]]
    task_items = build_rows_task(tmp_path, "token_classification", rows)
    assert task_items.info.labels == ["0", "1", "2"]
    with pytest.raises(
        InputError,
        match=r"span_f1 needs spans, and the tags \(0, 1, 2\) are neither .* but numbers: give their names in",
    ):
        build_rows_task(tmp_path, "token_classification", rows, metric=["span_f1"])


def test_numeric_tags_are_counted_unless_the_task_sets_a_metric(tmp_path: Path) -> None:
    rows = [row | {"label": [0, 1, 2, 2]} for row in ROWS["token_classification"]]
    task_items = build_rows_task(tmp_path, "token_classification", rows)
    assert task_items.info.numeric_tags == {"train": 3}
    for other_items in (
        build_rows_task(tmp_path, "token_classification", rows, metric=["token_accuracy"]),
        build_changed_task(tmp_path, "token_classification", {}),
        build_changed_task(tmp_path, "text_classification", {}),
    ):
        assert other_items.info.numeric_tags == {}


@pytest.mark.parametrize("language", ["en", "de", "zh"])
def test_variation_selectors_do_not_become_part_of_words(language: str) -> None:
    assert split_words(
        normalize_text("\u845b\U000e0100 I\u2764\ufe0flove \u260e\ufe0f123"), language
    ) == ["\u845b", "I", "\u2764", "love", "\u260e", "123"]


def test_invisible_text_is_blank_and_symbols_are_not() -> None:
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
    ([["B-X", "E-X", "S-X"], ["O", "B-Y", "I-Y"]], 1),  # BIOES, but the last span has no end tag
    ([["B-X", "L-X", "U-X"], ["O", "U-Y", "O"]], 0),  # BILOU
    ([["B-X", "M-X", "E-X"], ["O", "S-Y", "O"], ["B-Y", "M-Y", "O"]], 1),  # BMES, but the last span has no end tag
    ([["B-X", "I-X", "O"], ["B-X", "O", "B-X"], ["O", "O", "I-X"]], 1),  # IOB2, but for an I after O
    ([["B-X", "I-X", "O"], ["B-X", "O", "B-X"], ["B-X", "I-Y", "O"]], 1),  # an I of another type
    ([["B-X", "I-X", "O"], ["B-X", "O", "O"], ["S-X", "O", "O"]], 1),  # a prefix of another scheme
])  # fmt: skip
def test_sequences_that_violate_the_tagging_scheme_are_counted(
    tags: list[list[str]], count: int
) -> None:
    assert sum(find_scheme_violations(tags)) == count
    assert not any(find_scheme_violations([convert_to_iob2(sequence) for sequence in tags]))


def test_repaired_tags_are_counted_in_the_task_info(tmp_path: Path) -> None:
    task_items = build_changed_task(
        tmp_path,
        "token_classification",
        {"label": ["O", "O", "I-ORG", "I-ORG"]},
        metric=["span_f1"],
    )
    assert task_items.info.invalid_tags in (
        {"train": 1, "validation": 0, "test": 0},
        {"train": 0, "validation": 1, "test": 0},
    )
    rows = pd.concat([task_items.splits["train"], task_items.splits["validation"]]).set_index("id")
    tags = [task_items.info.labels[label_id] for label_id in rows.loc["train-4", "label"]]
    assert tags == ["O", "O", "B-ORG", "I-ORG"]
    with pytest.raises(
        InputError,
        match="row 4: column 'label': tag 2 of 4: 'X-ORG' is neither O nor a letter of IOB, BIOES, BMES or BILOU",
    ):
        build_changed_task(tmp_path, "token_classification", {"label": ["O", "X-ORG", "O", "O"]})
    rows_without_o = [
        row | {"label": ["B-A", "I-A", "B-B", "I-B"]} for row in ROWS["token_classification"]
    ]
    items_without_o = build_rows_task(tmp_path, "token_classification", rows_without_o)
    assert items_without_o.info.metric == ["span_f1"], "spans need no O between them"


@pytest.mark.parametrize(("text", "message"), [
    ("text|label\na|1\n", "t.csv: its first line has one column, with '|' in its name; separate the columns of a csv with commas or semicolons"),
    ("text\tlabel\na\t1\n", r"t.csv: its first line has one column, with '\t' in its name"),
    ("text,label,text\na,1,b\n", "t.csv: its first line names the column 'text' twice"),
    ("sep=,\ntext,label\na,1\n", "t.csv: its first line, sep=, is for Excel alone; remove it"),
    ("sep=;\ntext;label\na;1\n", "t.csv: its first line, sep=, is for Excel alone; remove it"),
    ("txt,label\na,1\n", "t.csv has no column 'text'; did you mean 'txt'?"),
])  # fmt: skip
def test_a_csv_in_another_format_is_reported_with_advice(
    text: str, message: str, tmp_path: Path
) -> None:
    (tmp_path / "t.csv").write_text(text)
    with pytest.raises(InputError) as error:
        build_changed_task(
            tmp_path, "text_classification", {}, files={"train": "t.csv", "test": "t.csv"}
        )
    assert message in str(error.value)


def test_class_labels_of_the_hub_are_read_by_name_only_for_tags(tmp_path: Path) -> None:
    names = datasets.ClassLabel(names=["O", "B-PER", "I-PER"])
    features = datasets.Features({"tokens": datasets.Sequence(datasets.Value("string")), "tags": datasets.Sequence(names),
                                  "text": datasets.Value("string"), "label": datasets.ClassLabel(names=["bad", "good"])})  # fmt: skip
    columns = {
        "tokens": [["a", "Bob", "Lee"]] * 20,
        "tags": [[0, 1, 2]] * 20,
        "text": [f"text {number}" for number in range(20)],
        "label": [0, 1] * 10,
    }
    datasets.Dataset.from_dict(columns, features=features).to_parquet(str(tmp_path / "t.parquet"))
    files = {"train": "t.parquet", "test": "t.parquet"}
    tagging = build_changed_task(
        tmp_path, "token_classification", {}, files=files, label="tags", metric=["span_f1"]
    )
    assert tagging.info.labels == ["B-PER", "I-PER", "O"]
    assert tagging.splits["test"]["label"].iloc[0] == [2, 0, 1]
    classification = build_changed_task(tmp_path, "text_classification", {}, files=files)
    assert classification.info.labels == ["0", "1"], (
        "a single label stays a number, because it may be the index of a choice"
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
def test_every_family_handles_symbols_and_words_without_tokens(name: str) -> None:
    """BERT's tokenizer drops invisible words; the item stays without that word and is counted."""
    tokenizer = tiny.tokenizer(name)
    model = tiny.model(name)
    odd_words = ["...!?", "🙂🙂", "\u0301", "\u200b"]
    for table in (
        pd.DataFrame({"text": odd_words}),
        pd.DataFrame({"text": odd_words, "second": odd_words[::-1]}),
        pd.DataFrame({"tokens": [odd_words, odd_words[3:]]}),
    ):
        items = encode_items(table, tokenizer, max_length=14, language="en")
        assert np.isfinite(extract_features(model, tokenizer, items, precision="fp32")).all()
    target_table = pd.DataFrame(
        {"tokens": [["the", "\u200b", "cat"], ["\u200b"], ["the", "cat"]], "target": [1, 0, 1]}
    )
    items = encode_items(target_table, tokenizer, max_length=14, language="en")
    features = extract_features(model, tokenizer, items, precision="fp32")
    num_uncovered = [item.num_uncovered_words for item in items]
    assert num_uncovered == ([1, 1, 0] if name == "bert" else [0, 0, 0])
    assert np.isfinite(features).all()
    is_zero = [bool((item_features == 0).all()) for item_features in features]
    assert is_zero == [count > 0 for count in num_uncovered]
    single_features = extract_features(model, tokenizer, items[1:2], precision="fp32")
    np.testing.assert_allclose(single_features[0], features[1], atol=1e-5)


@pytest.mark.parametrize(("value", "number"), [("5.0", 5), (5.0, 5), ("3", 3), (-1, -1), ("1_0", None), (True, None), (2.5, None), ("nan", None),
                                                (None, None), ("inf", None)])  # fmt: skip
def test_a_whole_number_in_a_cell_may_have_a_decimal_point(
    value: object, number: int | None
) -> None:
    if number is None:
        with pytest.raises((TypeError, ValueError, OverflowError)):
            parse_integer(value)
    else:
        assert parse_integer(value) == number
