"""A summary: a short text that a model writes, scored by ROUGE."""

from typing import ClassVar

import numpy as np
import pandas as pd

from lineage.answers.base import AnsweredBy, Splits
from lineage.answers.metrics import get_rouge_signature
from lineage.answers.text import TextAnswer
from lineage.config.data import Task
from lineage.errors import InputError
from lineage.language import split_words
from lineage.results import Note, NoteKind


class SummaryAnswer(TextAnswer):
    """A summary, compared with one reference or several, whose scores are averaged."""

    also_answered_by: ClassVar[tuple[AnsweredBy, ...]] = ("continuation",)
    shortens_source: ClassVar[bool] = True
    text_nouns: ClassVar[str] = "summaries"
    unfinished_note: ClassVar[NoteKind] = "unfinished_summaries"

    @classmethod
    def reason_key(cls, answered_by: AnsweredBy) -> str:
        return "summarizer" if answered_by == cls.answered_by else answered_by

    @classmethod
    def check_task(cls, task: Task, kind_name: str, where: str) -> None:
        super().check_task(task, kind_name, where)
        if task.references and task.folds:
            raise InputError(
                f"{where}.references: with folds each item of train is tested once, by the summary "
                "that target names; remove references"
            )

    @classmethod
    def warn_of_labels(cls, splits: Splits, task: Task) -> list[str]:
        """Warn of documents that are cut, and of summaries that are longer than what they sum up."""
        train = splits["train"]
        warnings = []
        num_words = train["num_words"]
        share_cut = float(train["truncated"].mean())
        if share_cut:
            num_read = num_words.clip(upper=task.max_words).sum()
            lost = 1 - num_read / num_words.sum()
            warnings.append(
                f"{share_cut:.0%} of the training documents are longer than max_words, "
                f"{task.max_words}, and are cut there, which takes {lost:.0%} of all their words "
                "away from the models; raise max_words, or summarize shorter parts"
            )
        summary_words = [len(split_words(text, task.language)) for text in train["target"]]
        num_long = int((np.array(summary_words) >= num_words).sum())
        if num_long:
            warnings.append(
                f"{num_long:,} of {len(train):,} training summaries are as long as their documents "
                "or longer; check that source and target are not swapped"
            )
        return warnings

    @classmethod
    def describe_answers(cls, predictions: pd.DataFrame) -> list[Note]:
        return [Note("rouge_signature", get_rouge_signature(predictions["label"].to_numpy()))]
