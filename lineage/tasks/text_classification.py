"""One text or two, and a label: sentiment, topics, acceptability; entailment, paraphrases."""

from functools import partial

from lineage.answers.label import LabelAnswer
from lineage.tasks.base import Kind
from lineage.tasks.columns import extract_item_texts, make_text_items, read_label_column
from lineage.tasks.recognition import (
    ColumnChoice,
    Recognition,
    SampleTable,
    choose_text_and_label,
    has_number_label,
)


def choose_columns(table: SampleTable) -> ColumnChoice | None:
    """Return the columns of one text or two and of a label, unless the label is a number."""
    choice = choose_text_and_label(table)
    is_other = not table.is_requested and has_number_label(table, choice)
    return None if is_other else choice


KIND = Kind(
    name="text_classification",
    unit="text",
    required_columns=("text", "label"),
    make_items=partial(make_text_items, read_labels=read_label_column),
    extract_texts=extract_item_texts,
    answer=LabelAnswer,
    metrics=("accuracy", "macro_f1", "matthews"),
    identity_columns=("text", "second"),
    recognition=Recognition(
        "label", choose_columns, comment="or text_regression, if the label is an amount"
    ),
)
