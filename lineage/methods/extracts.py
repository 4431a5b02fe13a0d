"""Sentences of a document as its summary: the first three, or the longest."""

import re
from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import pandas as pd

from lineage.answers.base import AnsweredBy, PredictionColumns
from lineage.answers.text import text_columns
from lineage.language import sentence_spans, split_words
from lineage.methods.baseline import BaselineMethod
from lineage.methods.encoder import EvalRun, Subject
from lineage.tasks.base import Kind
from lineage.tasks.info import TaskInfo

LEAD_SENTENCES = 3
# A line of a dialogue: a name of up to three words, a colon, and what is said.
TURN = re.compile(r"[^\s:]+(?: [^\s:]+){0,2}:\s")


def split_sentences(text: str, language: str) -> list[str]:
    """Return the sentences of a text, or the turns of a dialogue: its lines."""
    lines = text.splitlines()
    num_turns = sum(TURN.match(line) is not None for line in lines)
    if len(lines) > 1 and 2 * num_turns > len(lines):
        return [line for line in lines if line.strip()]
    return [text[start:end] for start, end in sentence_spans(text, language)]


@dataclass(frozen=True, kw_only=True)
class ExtractMethod(BaselineMethod):
    """Some sentences of the document."""

    answered_by: ClassVar[AnsweredBy] = "translator"

    def suits(self, kind: Kind, info: TaskInfo) -> bool:
        return kind.answer.answered_by == self.answered_by and kind.answer.shortens_source

    @abstractmethod
    def extract(self, sentences: Sequence[str], language: str) -> str:
        """Return the summary of a document."""

    def answer(self, subject: Subject, run: EvalRun, items: pd.DataFrame) -> PredictionColumns:
        context = subject.task_context
        texts = [
            self.extract(split_sentences(text, context.language), context.language)
            for text in items["source"]
        ]
        return text_columns(items, texts, context.task.info.ranking_metric)


@dataclass(frozen=True, kw_only=True)
class LeadMethod(ExtractMethod):
    """The first three sentences, or turns of a dialogue."""

    name: ClassVar[str] = "lead_3"

    def extract(self, sentences: Sequence[str], language: str) -> str:
        return "\n".join(sentences[:LEAD_SENTENCES])


@dataclass(frozen=True, kw_only=True)
class LongestSentenceMethod(ExtractMethod):
    """The sentence, or the turn of a dialogue, with the most words."""

    name: ClassVar[str] = "longest_sentence"

    def extract(self, sentences: Sequence[str], language: str) -> str:
        return max(sentences, key=lambda sentence: len(split_words(sentence, language)))


EXTRACTS = (LeadMethod.name, LongestSentenceMethod.name)
