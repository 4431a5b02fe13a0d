"""The rows of the comparison: one a measured value. The columns are a contract, frozen by a test.

A *cell* is what is trained or read once: (init, transfer, head, labels, seed, ...). Its row is a value; its predictions are one row an
example, and carry the cell's columns so that any two cells can be paired example by example.
"""

import dataclasses
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

import pandas as pd

HELDOUT_TEST_SET = "held_unlabelled"  # the test set of what a language model measures on text of the target that is held back


@dataclass(frozen=True)
class ResultRow:
    """One value of one metric. `variant` is the key in params.yaml's models, `family` its file."""

    model: str
    family: str
    task: str
    kind: str
    metric: str
    value: float | None  # None where status is not ok
    num_examples: int  # scored
    init: Literal["pretrained", "adapted", "random", "none"] = "none"
    adapt_text: Literal["none", "task", "general"] = "none"
    transfer: Literal["frozen", "finetuned", "zero_shot", "none"] = "none"
    features: str = (
        "none"  # mix | top | mean | second_to_last | concat4 | embeddings | the window of a ceiling
    )
    head: str = "none"  # linear | bilstm | bilstm_crf | decoder
    recipe: str = "none"  # which tuning techniques, joined by +; of a translation what of the paper is on; of a network its layers, and the join
    pretrain_seed: int | None = None
    finetune_seed: int | None = None
    fold: int | None = None
    trial: str = "chosen"  # chosen | 0, 1, ...
    label_count: str = "none"  # the grid's word: 100, all
    train_examples: int = 0
    test_set: str = ""  # the task's own by default
    split: str = "test"
    group: str = "all"
    item_filter: Literal["all", "clean"] = "all"
    layer: str = "none"  # 0, 1, ... from the bottom: of a row that says what a layer alone does
    text_bytes: int | None = 0  # of the checkpoint; none: unknown, of a public one
    status: Literal["ok", "not_applicable", "failed"] = "ok"
    reason: str = ""

    def __post_init__(self) -> None:
        assert (self.value is not None) == (self.status == "ok"), f"{self.status} and {self.value}"
        assert self.status == "ok" or self.reason, "a row without a value says why"


RESULT_COLUMNS = (
    "model",
    "family",
    "init",
    "adapt_text",
    "transfer",
    "features",
    "head",
    "recipe",
    "pretrain_seed",
    "finetune_seed",
    "fold",
    "trial",
    "label_count",
    "train_examples",
    "task",
    "kind",
    "test_set",
    "split",
    "group",
    "item_filter",
    "layer",
    "text_bytes",
    "metric",
    "value",
    "num_examples",
    "status",
    "reason",
)
INTEGER_COLUMNS = (
    "pretrain_seed",
    "finetune_seed",
    "fold",
    "train_examples",
    "text_bytes",
    "num_examples",
)
# What tells two cells apart; with an item's id, it names a prediction.
RESULT_KEY_COLUMNS = (
    "model",
    "family",
    "init",
    "adapt_text",
    "transfer",
    "features",
    "head",
    "recipe",
    "pretrain_seed",
    "finetune_seed",
    "fold",
    "trial",
    "label_count",
    "task",
    "test_set",
    "split",
)
PREDICTION_COLUMNS = (*RESULT_KEY_COLUMNS, "id", "group", "label", "prediction", "score", "correct")
ENSEMBLE_FAMILY = "ensemble"  # the family of rows of two variants together
JOINED_FAMILY = (
    "joined"  # the family of rows of a variant's features beside another's static vectors
)
PUBLIC_FAMILY = "public"  # the family of what others trained, on text and budgets of their own
DATA_FAMILY = "data"  # the family of rows that count what a task's data holds, and of no system
UNKNOWN_TOKEN_METRIC = "unknown_token_rate"  # the metric of rows that say which share of a task's tokens a model does not know; nothing is compared by it
DROPPED_METRIC_PREFIX = (
    "dropped_"  # and a reason: the metric of such rows that count what was not used
)
PROBABILITY_PREFIX = (
    "p "  # where a variant chooses among classes, a column more for each: "p LABEL"
)


def joined_system_name(model: str, static_model: str) -> str:
    """`VARIANT + STATIC`: the rows of a variant whose frozen features are joined with the static vectors of another one."""
    return f"{model} + {static_model}"


def results_frame(rows: Iterable[ResultRow]) -> pd.DataFrame:
    """Rows as a table with the contract's columns, sorted, so that its bytes do not depend on the order of computing."""
    frame = pd.DataFrame([dataclasses.asdict(row) for row in rows], columns=list(RESULT_COLUMNS))
    return sort_results(frame)


def sort_results(frame: pd.DataFrame) -> pd.DataFrame:
    """The contract's column order and types, sorted by every column but the value."""
    frame = frame[list(RESULT_COLUMNS)].astype(
        dict.fromkeys(INTEGER_COLUMNS, "Int64") | {"value": "float64"}
    )
    frame["test_set"] = frame["test_set"].where(frame["test_set"] != "", frame["task"])
    return frame.sort_values([c for c in RESULT_COLUMNS if c != "value"], ignore_index=True)
