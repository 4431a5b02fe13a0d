"""One text or two, and a number: how similar two sentences are, how good a review is."""

from functools import partial

from lineage.answers.number import NumberAnswer
from lineage.tasks.base import Kind
from lineage.tasks.columns import extract_item_texts, make_text_items, read_number_column
from lineage.tasks.recognition import recognize_labelled_texts

KIND = Kind(
    name="text_regression",
    unit="text",
    required_columns=("text", "label"),
    make_items=partial(make_text_items, read_labels=read_number_column),
    extract_texts=extract_item_texts,
    answer=NumberAnswer,
    metrics=("pearson", "spearman"),
    identity_columns=("text", "second"),
    recognition=recognize_labelled_texts(
        "text", are_numbers=True, comment="or text_classification, if the numbers are names"
    ),
)
