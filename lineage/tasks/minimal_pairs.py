"""Two sentences that differ in one thing; a language model should find the good one more likely."""

import pandas as pd

from lineage.answers.pair import PairAnswer
from lineage.config.data import Task
from lineage.tasks.base import Kind
from lineage.tasks.columns import TableColumns, read_text_column
from lineage.tasks.recognition import recognize_by_names


def make_items(columns: TableColumns, task: Task, where: str) -> pd.DataFrame:
    """Return columns good and bad; the groups are the paradigms."""
    assert task.good is not None and task.bad is not None
    items = pd.DataFrame(
        {
            "good": read_text_column(columns, task.good, where),
            "bad": read_text_column(columns, task.bad, where),
        }
    )
    return items[items["good"] != items["bad"]]


def extract_texts(items: pd.DataFrame, language: str) -> list[list[str]]:
    return [list(items["good"])]


KIND = Kind(
    name="minimal_pairs",
    unit="sentence",
    required_columns=("good", "bad"),
    make_items=make_items,
    extract_texts=extract_texts,
    answer=PairAnswer,
    metrics=("accuracy",),
    knowledge="grammar",
    may_truncate=False,  # sentences that are cut may no longer differ
    whole_text_columns=("good", "bad"),
    identity_columns=("good", "bad"),
    recognition=recognize_by_names("good", "bad"),
)
