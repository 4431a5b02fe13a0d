"""The hyperparameters that validation chose, by method."""

from collections import Counter

import pandas as pd

from lineage import results
from lineage.analysis.records import ChosenTrial
from lineage.methods.registry import find_method_type
from lineage.methods.tfidf import TfidfMethod

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


def count_chosen_trials(table: pd.DataFrame) -> tuple[ChosenTrial, ...]:
    """Count how often each trial of a method was chosen, over all trainings of the study.

    Methods without trials are left out. Trials are in their order.
    """
    chosen = table[(table["trial"] == "chosen") & (table["reason"] != "")]
    runs = chosen.drop_duplicates(RUN_COLUMNS)
    counts: Counter[tuple[str, int, int, str]] = Counter()
    columns = runs[["model", "transfer", "head", "reason"]]
    for model, transfer, head, reason in columns.itertuples(index=False):
        method = find_method_type(transfer, head)
        is_tfidf = model == TfidfMethod.name
        name = TfidfMethod.name if is_tfidf else method.name if method is not None else ""
        for note in results.notes_from_json(reason):
            if note.kind == "trial" and name:
                settings = ", ".join(
                    f"{key} {value:g}" for key, value in note.value["settings"].items()
                )
                counts[name, note.value["number"], note.value["of"], settings] += 1
    return tuple(ChosenTrial(*key, count) for key, count in sorted(counts.items()))
