"""The columns of a row are a contract with everybody who reads results.csv: they are frozen here."""

import pandas as pd
import pytest

from lineage import results
from lineage.results import ResultRow

CONTRACT = ["variant", "family", "init", "adapt_text", "transfer", "features", "head", "recipe", "pretrain_seed", "seed", "fold", "trial", "labels",
            "train_examples", "task", "kind", "test_set", "split", "group", "items", "layer", "text_bytes", "metric", "value", "examples", "status",
            "reason"]  # fmt: skip
PREDICTION = ["variant", "family", "init", "adapt_text", "transfer", "features", "head", "recipe", "pretrain_seed", "seed", "fold", "trial", "labels",
              "task", "test_set", "split", "id", "group", "gold", "prediction", "score", "correct"]  # fmt: skip


def row(**more: object) -> ResultRow:
    given: dict = {
        "variant": "gpt",
        "family": "gpt",
        "task": "sense",
        "kind": "sense",
        "metric": "accuracy",
        "value": 0.5,
        "examples": 10,
    }
    return ResultRow(**(given | more))


def test_the_columns_of_a_row_are_frozen() -> None:
    assert list(results.results_frame([row()]).columns) == CONTRACT
    assert list(results.PREDICTION_COLUMNS) == PREDICTION


def test_types_do_not_depend_on_what_is_missing() -> None:
    without, with_seed = results.results_frame([row()]), results.results_frame([row(seed=3)])
    assert list(without.dtypes) == list(with_seed.dtypes)
    assert str(with_seed["seed"].dtype) == "Int64" and without["seed"].isna().all()


def test_the_order_of_computing_leaves_no_trace() -> None:
    some = [
        row(seed=2),
        row(seed=0),
        row(variant="bert", family="bert", labels="all"),
        row(labels="100"),
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
        {"status": "failed", "reason": "the loss is not finite"},
    ],
)
def test_a_row_without_a_value_says_why(given: dict) -> None:
    with pytest.raises(AssertionError):
        row(**given)
