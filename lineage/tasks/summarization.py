"""A document and its summary; the text that a model writes is scored."""

import re
from collections.abc import Sequence
from dataclasses import replace

import pandas as pd

from lineage.answers.metrics import ANSWER_SEPARATOR
from lineage.answers.summary import SummaryAnswer
from lineage.config.data import Task
from lineage.language import split_words, truncate_to_words
from lineage.tasks.base import Kind
from lineage.tasks.columns import TableColumns, extract_sources, read_text_column
from lineage.tasks.recognition import (
    METADATA_NAMES,
    ColumnChoice,
    Recognition,
    SampleTable,
    note_others,
)

# With a number: one of several summaries.
SUMMARY_NAME = re.compile(r"(summary|summaries|abstract|headline|highlights|tl;?dr)_?\d*", re.I)
MIN_SHORTENING = 2.0  # a document has so many times the words of its summary, on average


def make_items(columns: TableColumns, task: Task, where: str) -> pd.DataFrame:
    """Return columns source (at most max_words words), num_words, truncated and target.

    `num_words` is the length of the whole document. Several summaries of a test item are joined
    with ANSWER_SEPARATOR.
    """
    assert task.source is not None
    documents = read_text_column(columns, task.source, where, noun="document")
    lengths = [len(split_words(text, task.language)) for text in documents]
    sources = [truncate_to_words(text, task.max_words, task.language) for text in documents]
    items = pd.DataFrame({"source": sources, "num_words": lengths})
    items["truncated"] = items["num_words"] > task.max_words
    names = [name for name in (task.target, *(task.references or ())) if name in columns]
    if names:
        summaries = [
            read_text_column(columns, name, where, noun="summary") for name in dict.fromkeys(names)
        ]
        items["target"] = list(map(ANSWER_SEPARATOR.join, zip(*summaries, strict=True)))
    return items


def choose_columns(table: SampleTable) -> ColumnChoice | None:
    """Return the columns of documents and summaries, in a table without labels.

    A summary has its name; the document is the longest other text. Raises InputError.
    """
    label = table.requested.label
    summaries = [name for name in table.columns if SUMMARY_NAME.fullmatch(name)]
    others = table.without([*summaries, *filter(None, [label])])
    if label:
        summaries = [label]
    if not table.is_requested and not _are_summaries(table, summaries, others):
        return None
    texts = table.requested.text or others.choose_texts()[0]
    if not summaries or len(texts) > 1:
        raise table.refusal(
            f"kind={KIND.name} needs a column of documents and one of their summaries; name them, "
            "as text=COLUMN,label=COLUMN"
        )
    keys = {"source": texts[0], "target": summaries[0]}
    notes = {"target": note_others(summaries[1:], "summary")}
    return ColumnChoice(keys, texts, is_cut=True, notes=notes)


def _are_summaries(table: SampleTable, names: Sequence[str], others: SampleTable) -> bool:
    """Return whether columns hold shorter texts than another one, in a table without labels."""
    if not names or not all(SUMMARY_NAME.fullmatch(name) for name in names):
        return False
    summaries = [table.columns[name] for name in names]
    if not all(column.is_text for column in summaries):
        return False
    columns = others.columns.values()
    if any(one.is_categorical and one.name not in METADATA_NAMES for one in columns):
        return False
    longest = max((one.mean_words for one in columns if one.is_text), default=0.0)
    return longest >= MIN_SHORTENING * summaries[0].mean_words


def read_test_columns(choice: ColumnChoice, test_columns: Sequence[str]) -> ColumnChoice:
    """Return the choice with the numbered columns that test has in place of one summary."""
    target = choice.keys["target"]
    numbered = re.compile(rf"{re.escape(target)}_?\d+", re.I)
    names = [name for name in test_columns if numbered.fullmatch(name)]
    if not names or target in test_columns:
        return choice
    return replace(choice, keys=choice.keys | {"references": names})


KIND = Kind(
    name="summarization",
    unit="sentence",
    required_columns=("source", "target"),
    make_items=make_items,
    extract_texts=extract_sources,
    answer=SummaryAnswer,
    metrics=("rougeL", "rouge1", "rouge2"),
    optional_columns=("references", "group"),
    label_columns=("target", "references"),
    test_label_columns=("references",),
    whole_text_columns=("target",),
    identity_columns=("source",),
    recognition=Recognition(
        "texts", choose_columns, lists_metrics=True, read_test_columns=read_test_columns
    ),
)
