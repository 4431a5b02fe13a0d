"""The nearest candidate before a pronoun."""

from dataclasses import dataclass
from typing import ClassVar

from lineage.answers.pronoun import PronounAnswer
from lineage.data.task_data import SplitItems
from lineage.methods.baseline import BaselineMethod
from lineage.methods.encoder import Subject
from lineage.methods.heads import FittedHead, HeadOutput, HeadProblem, StartedHead
from lineage.tasks.base import Kind
from lineage.tasks.info import TaskInfo


@dataclass(frozen=True, kw_only=True)
class NearestCandidateMethod(BaselineMethod):
    """The candidate that begins last before the pronoun, else the first one after it."""

    name: ClassVar[str] = "nearest_candidate"

    def suits(self, kind: Kind, info: TaskInfo) -> bool:
        return issubclass(kind.answer, PronounAnswer)

    def start(self, subject: Subject, problem: HeadProblem, *, seed: int) -> StartedHead:
        """Return the rule; nothing is learned."""
        answer = problem.answer
        assert isinstance(answer, PronounAnswer)

        def predict(part: SplitItems) -> HeadOutput:
            return answer.choose_nearest(subject.task_context.task.select_items(part)), None

        return StartedHead(FittedHead(predict, None, is_normalized=True))
