"""Shared code of kinds that probe for a property of sentences (Conneau et al. 2018).

Labels are made from the sentences, so any sentences that are split into words will do.
"""

from collections.abc import Callable, Sequence

import pandas as pd

from lineage.answers.label import LabelAnswer
from lineage.config.data import Task
from lineage.language import join_words
from lineage.tasks.base import Kind
from lineage.tasks.columns import Cell, TableColumns, extract_item_texts, list_cells, parse_list

# (the words of a sentence, their cell, the cells of the other columns) -> the words to show, and
# the label; None: the sentence cannot be labelled.
Labeller = Callable[[list[str], Cell, Sequence[Cell]], tuple[list[str], str] | None]


def make_probing_kind(
    name: str, label_sentence: Labeller, *, other_columns: tuple[str, ...] = ()
) -> Kind:
    """Return a kind whose items are sentences, with the labels that the function gives."""

    def make_items(columns: TableColumns, task: Task, where: str) -> pd.DataFrame:
        """Return columns text and label; sentences of more than max_words words are left out."""
        assert task.tokens is not None
        others = [list_cells(columns, getattr(task, key), where) for key in other_columns]
        rows = {}
        for cell in list_cells(columns, task.tokens, where):
            words = parse_list(cell)
            if len(words) > task.max_words:
                continue
            found = label_sentence(words, cell, [own[cell.row] for own in others])
            if found is not None:
                shown, label = found
                rows[cell.row] = (join_words(shown, task.language), label)
        return pd.DataFrame.from_dict(rows, orient="index", columns=["text", "label"])

    return Kind(
        name=name,
        unit="text",
        required_columns=("tokens", *other_columns),
        make_items=make_items,
        extract_texts=extract_item_texts,
        answer=LabelAnswer,
        metrics=("accuracy", "macro_f1"),
        label_columns=(),
        may_truncate=False,
        identity_columns=("text",),
        is_about_form=True,
        knowledge="sentence form",
    )
