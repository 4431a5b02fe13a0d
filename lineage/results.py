"""The result rows of the comparison, one per measured value. A test freezes the columns.

Predictions have one row per item and the key columns of the result, so that any two results can be
paired item by item.
"""

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields
from typing import Any, Literal

import pandas as pd

# The test set of language-model metrics on held-out text of the target domain.
HELDOUT_TEST_SET = "held_unlabelled"
# The trial of predictions of an intermediate checkpoint. No result row has it.
INTERMEDIATE_TRIAL = "intermediate"
# In the trial of predictions, before the number of the layer that gave them, or MIX_LAYER.
LAYER_TRIAL = "layer "
MIX_LAYER = "mix"  # of all layers, as the task has learned it
NGRAM_STAGE = "ngram"  # the stage of the models that only count, and the stem of its files


# The kinds of notes, with the value of each. `lineage.report.notes` puts them in words.
NoteKind = Literal[
    # Why there is no value
    "error",  # the message of an EvaluationError, or why training failed
    "failed_trial",  # {number, of, settings, error}
    "failed_model",  # {model, error}: one of two models that are used together
    "member",  # {model, notes}: why a member of an ensemble has no value
    "no_split",  # the split that the task lacks
    "unsupported",  # `Answer.answered_by`, which the family cannot do
    "no_training_labels",  # None
    "no_majority",  # `Answer.answered_by` of a kind without a commonest answer
    "undefined_metric",  # the metric: labels or answers are constant
    "constant_cosines",  # the names of the groups; {count, of} where they are private
    "no_clean_items",  # None: every item is contaminated
    "undefined_on_clean_items",  # the metric
    # How a value came about
    "trial",  # {number, of, settings}: the hyperparameters that validation chose
    "not_converged",  # the iterations after which the fit of a linear probe was ended
    "truncated",  # {share, max_positions, effect}: texts that were longer than the model reads
    "answers_cut_off",  # {count, of}: questions whose answer is beyond max_words
    "unreadable_words",  # how many words have no token that is read
    "unknown_words",  # {count, of, items, effect}
    "bleu_signature",  # sacrebleu's
    "rouge_signature",  # how ROUGE is computed
    "unfinished_translations",  # {share, max_new_tokens}
    "unfinished_summaries",  # the same
    "no_improvement",  # None: adaptation did not lower the loss on held-out target text
    "not_lossless",  # None: the tokenizer cannot restore every text
]


@dataclass(frozen=True)
class Note:
    """A fact about a result: why it has no value, or how its value came about."""

    kind: NoteKind
    value: Any = None  # JSON; see NoteKind


def notes_to_json(notes: Iterable[Note]) -> str:
    """Return notes as the text of the column `reason`; empty for no notes."""
    records = [{"kind": note.kind, "value": note.value} for note in notes]
    if not records:
        return ""
    return json.dumps(records, ensure_ascii=False, allow_nan=False)


def notes_from_json(text: str) -> list[Note]:
    """Read what `notes_to_json` wrote."""
    return [Note(**record) for record in json.loads(text)] if text else []


@dataclass(frozen=True, kw_only=True)
class ResultRow:
    """One value of one metric. docs/reference/results.md says what each field holds."""

    model: str
    family: str
    init: Literal["pretrained", "adapted", "target_only", "random", "none"] = "none"
    adapt_text: Literal["none", "task", "general"] = "none"
    transfer: Literal["frozen", "finetuned", "setfit", "zero_shot", "none"] = "none"
    features: str = "none"
    head: str = "none"
    recipe: str = "none"
    pretrain_seed: int | None = None
    finetune_seed: int | None = None
    fold: int | None = None
    trial: str = "chosen"
    label_count: str = "none"
    train_examples: int = 0
    task: str
    kind: str
    test_set: str = ""  # in the table, the task's own name
    split: str = "test"
    group: str = "all"
    item_filter: Literal["all", "clean"] = "all"
    layer: str = "none"
    text_bytes: int | None = 0
    metric: str
    value: float | None
    num_examples: int
    status: Literal["ok", "not_applicable", "failed"] = "ok"
    reason: Sequence[Note] = ()  # in the table, JSON

    def __post_init__(self) -> None:
        assert (self.value is not None) == (self.status == "ok"), f"{self.status} and {self.value}"
        assert self.status == "ok" or self.reason, "a row without a value needs a reason"


# The key of a result. With an item's id, it is the key of a prediction.
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
RESULT_COLUMNS = tuple(field.name for field in fields(ResultRow))
PREDICTION_COLUMNS = (*RESULT_KEY_COLUMNS, "id", "group", "label", "prediction", "score", "correct")
# Further columns of predictions where a study has intermediate checkpoints (grid.text_shares).
INTERMEDIATE_COLUMNS = ("text_share", "text_bytes")
# One row for each validation during a training. The key is that of the result, without what is
# scored.
CURVE_COLUMNS = (
    *(name for name in RESULT_KEY_COLUMNS if name not in ("test_set", "split")),
    "step",
    "epoch",
    "train_loss",
    "validation_loss",
    "metric",
    "validation_score",
    "is_kept",
)
SEED_COLUMNS = ("pretrain_seed", "finetune_seed", "fold")
INTEGER_COLUMNS = (*SEED_COLUMNS, "train_examples", "text_bytes", "num_examples")
NEIGHBOUR_PREFIX = "neighbours_"  # columns of `lineage.methods.neighbours`
PROBABILITY_PREFIX = "p "  # with a label: the column of its probability, where a kind has classes

# Families of rows that do not come from one trained model.
ENSEMBLE_FAMILY = "ensemble"  # two models together
JOINED_FAMILY = "joined"  # the features of a model with the static vectors of another
PUBLIC_FAMILY = "public"  # trained by others, on text and budgets of their own
OUTSIDE_FAMILY = "outside"  # known by its predictions alone
# Metrics that are reported but rank nothing.
UNIGRAM_PREFIX = "unigrams_"  # and a metric: that of logistic regression on the same tokens
UNKNOWN_TOKEN_METRIC = "unknown_token_rate"  # share of a task's tokens that a model does not know


def joined_system_name(model: str, static_model: str) -> str:
    """Name the rows of a model whose frozen features are joined with another's static vectors."""
    return f"{model} + {static_model}"


def results_frame(rows: Iterable[ResultRow]) -> pd.DataFrame:
    """Return rows as a table, sorted so that its bytes do not depend on the order of computing."""
    records = [vars(row) | {"reason": notes_to_json(row.reason)} for row in rows]
    return sort_results(pd.DataFrame(records, columns=list(RESULT_COLUMNS)))


def sort_results(frame: pd.DataFrame) -> pd.DataFrame:
    """Return the contract's columns with their types, sorted by every column but the value."""
    types = dict.fromkeys(INTEGER_COLUMNS, "Int64") | {"value": "float64"}
    frame = frame[list(RESULT_COLUMNS)].astype(types)
    frame["test_set"] = frame["test_set"].where(frame["test_set"] != "", frame["task"])
    sort_columns = [name for name in RESULT_COLUMNS if name != "value"]
    return frame.sort_values(sort_columns, ignore_index=True)
