"""The columns of results.csv and of the predictions are frozen, because other code reads them."""

from typing import get_args

import pandas as pd
import pytest

from lineage import results
from lineage.report import notes
from lineage.results import Note, NoteKind, notes_from_json, notes_to_json
from tests.helpers.study_rows import build_row

ROW_COLUMNS = ["model", "family", "init", "adapt_text", "transfer", "features", "head", "recipe", "pretrain_seed", "finetune_seed", "fold", "trial", "label_count",
            "train_examples", "task", "kind", "test_set", "split", "group", "item_filter", "layer", "text_bytes", "metric", "value", "num_examples", "status",
            "reason"]  # fmt: skip
PREDICTION_COLUMNS = ["model", "family", "init", "adapt_text", "transfer", "features", "head", "recipe", "pretrain_seed", "finetune_seed", "fold", "trial", "label_count",
              "task", "test_set", "split", "id", "group", "label", "prediction", "score", "correct"]  # fmt: skip


def test_the_columns_of_a_row_are_frozen() -> None:
    assert list(results.results_frame([build_row()]).columns) == ROW_COLUMNS
    assert list(results.PREDICTION_COLUMNS) == PREDICTION_COLUMNS


def test_column_types_do_not_depend_on_missing_values() -> None:
    without = results.results_frame([build_row()])
    with_seed = results.results_frame([build_row(finetune_seed=3)])
    assert list(without.dtypes) == list(with_seed.dtypes)
    assert str(with_seed["finetune_seed"].dtype) == "Int64"
    assert without["finetune_seed"].isna().all()


def test_the_order_of_the_input_rows_does_not_matter() -> None:
    rows = [
        build_row(finetune_seed=2),
        build_row(finetune_seed=0),
        build_row(model="bert", family="bert", label_count="all"),
        build_row(label_count="100"),
    ]
    pd.testing.assert_frame_equal(results.results_frame(rows), results.results_frame(rows[::-1]))


def test_the_test_set_is_that_of_the_task_by_default() -> None:
    assert list(
        results.results_frame([build_row(), build_row(test_set="held_unlabelled")])["test_set"]
    ) == ["held_unlabelled", "sense"]


@pytest.mark.parametrize(
    "invalid",
    [
        {"value": None},
        {"status": "failed", "value": None},
        {"status": "failed", "reason": [Note("error", "the loss is not finite")]},
    ],
)
def test_a_row_needs_a_value_or_a_reason(invalid: dict) -> None:
    with pytest.raises(AssertionError):
        build_row(**invalid)


def test_notes_are_json_in_the_table_and_the_same_when_read_again() -> None:
    note_list = [
        Note("truncated", {"share": 0.25, "max_positions": 61, "effect": "cut"}),
        Note("no_clean_items"),
    ]
    (text,) = results.results_frame([build_row(reason=note_list)])["reason"]
    assert notes_from_json(text) == note_list and notes_to_json(notes_from_json(text)) == text
    assert notes_to_json([]) == "" and notes_from_json("") == []
    assert notes.format_notes(note_list) == (
        "25% of the texts were longer than 61 tokens, and cut; all of its items are contaminated"
    )


def test_the_report_can_format_every_kind_of_note() -> None:
    assert {*notes._FORMATTERS} == {*get_args(NoteKind)}
