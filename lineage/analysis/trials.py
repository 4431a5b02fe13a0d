"""The hyperparameters that validation tried and chose, by method."""

from collections import Counter

import pandas as pd

from lineage import results
from lineage.analysis.records import ChosenTrial, TrialCounts
from lineage.methods.registry import find_method_type, list_method_types
from lineage.methods.tfidf import TfidfMethod
from lineage.results import ENSEMBLE_FAMILY
from lineage.tasks.base import load_kind

# The columns that tell one training from another.
RUN_COLUMNS = [
    "task",
    "model",
    "init",
    "adapt_text",
    "transfer",
    "head",
    "label_count",
    "pretrain_seed",
    "finetune_seed",
    "fold",
]
# The columns that tell the method.
METHOD_COLUMNS = ["model", "transfer", "head", "train_examples"]


def count_trials(table: pd.DataFrame) -> tuple[TrialCounts, ...]:
    """Return, by method, how many configurations systems were tried with on validation.

    It is 1 for a system with only its default. Failed trials count, and so does TF-IDF. A system
    without any score, such as one whose trials all failed, does not count: it is listed as a
    failure.
    """
    # Nothing is chosen on validation for ensembles and translators.
    is_translated = [load_kind(kind).answer.answered_by == "translator" for kind in table["kind"]]
    has_no_trials = pd.Series(is_translated, table.index, dtype=bool)
    has_no_trials |= table["family"] == ENSEMBLE_FAMILY
    methods = [_name_method(*columns) for columns in table[METHOD_COLUMNS].itertuples(index=False)]
    method_of_row = pd.Series(methods, table.index, dtype="str")
    names = [*(method.name for method in list_method_types()), TfidfMethod.name]
    columns = ["model", "init", "transfer", "head", "task", "label_count"]
    counts = []
    for method in names:
        tried = table[(method_of_row == method) & ~has_no_trials]
        has_score = (tried["status"] == "ok").groupby([tried[name] for name in columns])
        tried = tried[has_score.transform("any")]
        numbers = [
            max(1, len({*trials} - {"chosen"})) for _, trials in tried.groupby(columns)["trial"]
        ]
        if numbers:
            counts.append(TrialCounts(method, min(numbers), max(numbers)))
    return tuple(counts)


def count_chosen_trials(table: pd.DataFrame) -> tuple[ChosenTrial, ...]:
    """Count how often each trial of a method was chosen, over all trainings of the study.

    Methods without trials are left out. Trials are in their order.
    """
    chosen = table[(table["trial"] == "chosen") & (table["reason"] != "")]
    runs = chosen.drop_duplicates(RUN_COLUMNS)
    counts: Counter[tuple[str, int, str, bool]] = Counter()
    for *columns, reason in runs[[*METHOD_COLUMNS, "reason"]].itertuples(index=False):
        method = _name_method(*columns)
        for note in results.notes_from_json(reason):
            if note.kind != "trial" or not method:
                continue
            settings = ", ".join(
                f"{key} {value:g}" for key, value in note.value["settings"].items()
            )
            number, num_trials = note.value["number"], note.value["of"]
            # Results of earlier versions lack it; all values were of one key then.
            is_at_end = note.value.get(
                "is_at_end", num_trials > 2 and number in (0, num_trials - 1)
            )
            counts[method, number, settings, is_at_end] += 1
    return tuple(ChosenTrial(*key, count) for key, count in sorted(counts.items()))


def _name_method(model: str, transfer: str, head: str, train_examples: int) -> str:
    """Return the name of the method that learned from labels; empty if none did."""
    if not train_examples:
        return ""
    method = find_method_type(transfer, head)
    if method is None:
        return TfidfMethod.name if model == TfidfMethod.name else ""
    return method.name
