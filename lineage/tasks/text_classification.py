"""One text or two, and a label: sentiment, topics, acceptability; entailment, paraphrases."""

from functools import partial

from lineage.answers.label import LabelAnswer
from lineage.tasks.base import Kind
from lineage.tasks.columns import extract_item_texts, make_text_items, read_label_column
from lineage.tasks.recognition import recognize_labelled_texts

KIND = Kind(
    name="text_classification",
    unit="text",
    required_columns=("text", "label"),
    make_items=partial(make_text_items, read_labels=read_label_column),
    extract_texts=extract_item_texts,
    answer=LabelAnswer,
    metrics=("accuracy", "macro_f1", "matthews"),
    identity_columns=("text", "second"),
    recognition=recognize_labelled_texts(
        "text", are_numbers=False, comment="or text_regression, if the label is an amount"
    ),
)
