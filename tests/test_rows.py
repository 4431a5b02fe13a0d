"""The columns of a row are a contract with everybody who reads results.csv: they are frozen here."""

from typing import get_args

import pandas as pd
import pytest

from lineage import results
from lineage.report import notes
from lineage.results import Note, NoteKind, ResultRow, notes_from_json, notes_to_json

CONTRACT = ["model", "family", "init", "adapt_text", "transfer", "features", "head", "recipe", "pretrain_seed", "finetune_seed", "fold", "trial", "label_count",
            "train_examples", "task", "kind", "test_set", "split", "group", "item_filter", "layer", "text_bytes", "metric", "value", "num_examples", "status",
            "reason"]  # fmt: skip
PREDICTION = ["model", "family", "init", "adapt_text", "transfer", "features", "head", "recipe", "pretrain_seed", "finetune_seed", "fold", "trial", "label_count",
              "task", "test_set", "split", "id", "group", "label", "prediction", "score", "correct"]  # fmt: skip


def row(**more: object) -> ResultRow:
    given: dict = {
        "model": "gpt",
        "family": "gpt",
        "task": "sense",
        "kind": "word_sense",
        "metric": "accuracy",
        "value": 0.5,
        "num_examples": 10,
    }
    return ResultRow(**(given | more))


def test_the_columns_of_a_row_are_frozen() -> None:
    assert list(results.results_frame([row()]).columns) == CONTRACT
    assert list(results.PREDICTION_COLUMNS) == PREDICTION


def test_types_do_not_depend_on_what_is_missing() -> None:
    without, with_seed = (
        results.results_frame([row()]),
        results.results_frame([row(finetune_seed=3)]),
    )
    assert list(without.dtypes) == list(with_seed.dtypes)
    assert (
        str(with_seed["finetune_seed"].dtype) == "Int64" and without["finetune_seed"].isna().all()
    )


def test_the_order_of_computing_leaves_no_trace() -> None:
    some = [
        row(finetune_seed=2),
        row(finetune_seed=0),
        row(model="bert", family="bert", label_count="all"),
        row(label_count="100"),
    ]
    pd.testing.assert_frame_equal(results.results_frame(some), results.results_frame(some[::-1]))


def test_the_test_set_is_the_task_s_own_by_default() -> None:
    assert list(results.results_frame([row(), row(test_set="held_unlabelled")])["test_set"]) == [
        "held_unlabelled",
        "sense",
    ]


@pytest.mark.parametrize(
    "given",
    [
        {"value": None},
        {"status": "failed", "value": None},
        {"status": "failed", "reason": [Note("error", "the loss is not finite")]},
    ],
)
def test_a_row_without_a_value_says_why(given: dict) -> None:
    with pytest.raises(AssertionError):
        row(**given)


def test_notes_are_json_in_the_table_and_the_same_when_read_again() -> None:
    given = [
        Note("truncated", {"share": 0.25, "max_positions": 61, "effect": "cut"}),
        Note("no_clean_items"),
    ]
    (text,) = results.results_frame([row(reason=given)])["reason"]
    assert notes_from_json(text) == given and notes_to_json(notes_from_json(text)) == text
    assert notes_to_json([]) == "" and notes_from_json("") == []
    assert notes.format_reason(text) == (
        "25% of the texts were longer than 61 tokens, and cut; all of its items are contaminated"
    )


def test_the_report_has_words_for_every_kind_of_note() -> None:
    assert {*notes._FORMATTERS} == {*get_args(NoteKind)}
