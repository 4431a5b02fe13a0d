"""One text or two, and a number: how similar two sentences are, how good a review is."""

from functools import partial

from lineage.answers.number import NumberAnswer
from lineage.tasks.base import Kind
from lineage.tasks.columns import extract_item_texts, make_text_items, read_number_column
from lineage.tasks.recognition import (
    ColumnChoice,
    Recognition,
    SampleTable,
    are_word_pairs,
    choose_text_and_label,
    has_number_label,
)


def choose_columns(table: SampleTable) -> ColumnChoice | None:
    """Return the columns of one text or two and of a number."""
    choice = choose_text_and_label(table, are_numbers=True)
    is_other = not has_number_label(table, choice) or are_word_pairs(table, choice)
    return None if is_other and not table.is_requested else choice


KIND = Kind(
    name="text_regression",
    unit="text",
    required_columns=("text", "label"),
    make_items=partial(make_text_items, read_labels=read_number_column),
    extract_texts=extract_item_texts,
    answer=NumberAnswer,
    metrics=("pearson", "spearman"),
    identity_columns=("text", "second"),
    recognition=Recognition(
        "label", choose_columns, comment="or text_classification, if the numbers are names"
    ),
)
