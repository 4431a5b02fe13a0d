"""The scores of a task by system and label count, for its tables on the page and on screen."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from lineage.analysis.cells import INIT_ORDER, split_test_set
from lineage.analysis.decision import Decision
from lineage.analysis.gains import Gain, list_gains
from lineage.analysis.records import Analysis, Setting, System, SystemScore
from lineage.report.formatting import format_label_count, format_model, format_use
from lineage.report.styles import loss_did_not_fall
from lineage.tasks.base import load_kind


@dataclass(frozen=True)
class TaskScores:
    """All scores of a task, and what its tables need to know."""

    analysis: Analysis
    task: str
    recommended: Mapping[Setting, System]
    # The comparison with random init, or with the model before adaptation.
    baselines: Mapping[tuple[System, Setting], Gain]

    @cached_property
    def scores(self) -> list[SystemScore]:
        return self.analysis.scores_of_task(self.task)

    @property
    def metric(self) -> str:
        return self.scores[0].metric

    @cached_property
    def train_examples(self) -> dict[str, int]:
        """Return the label counts in the order of their numbers of training items."""
        found: dict[str, int] = {}
        for one in self.scores:
            found[one.label_count] = max(found.get(one.label_count, 0), one.train_examples)
        return dict(sorted(found.items(), key=lambda pair: pair[1]))

    @property
    def largest(self) -> str:
        """Return the label count with the most training items."""
        return [*self.train_examples][-1]

    def list_scores(self, label_count: str) -> list[SystemScore]:
        """Return the scores at one label count, the highest first; systems without one come last."""
        own = [one for one in self.scores if one.label_count == label_count]
        return sorted(own, key=self._score_order)

    def _score_order(self, score: SystemScore) -> tuple[bool, float, int, int]:
        place = self.analysis.place_of_model(score.system.model)
        return score.mean is None, -(score.mean or 0.0), place, INIT_ORDER.index(score.system.init)

    def format_labels(self, label_count: str) -> str:
        """Name a label count: `all 600 labels`."""
        return format_label_count(label_count, train_examples=self.train_examples[label_count])

    def is_recommended(self, score: SystemScore) -> bool:
        """Return whether a system is the one to use in its setting."""
        return self.recommended.get(score.setting) == score.system


def list_task_scores(analysis: Analysis, decisions: Sequence[Decision]) -> list[TaskScores]:
    """Return the scores of each task that has any."""
    recommended = {
        one.setting: one.use.standing.system for one in decisions if one.use.standing.above_chance
    }
    baselines: dict[tuple[System, Setting], Gain] = {}
    for gain in list_gains(analysis):
        comparison = gain.comparison
        if comparison.comparison_type in ("pretraining", "adaptation"):
            baselines.setdefault((comparison.first, comparison.setting), gain)
    tasks = dict.fromkeys(one.task for one in analysis.scores if one.mean is not None)
    return [TaskScores(analysis, task, recommended, baselines) for task in tasks]


def name_model(score: SystemScore) -> str:
    """Name a model, or the simplest answer to tasks that have no classes."""
    answer = load_kind(score.kind).answer
    if score.system.model == "majority" and answer.majority_name:
        return answer.majority_name
    return format_model(score.system.model)


def format_usage(analysis: Analysis, score: SystemScore) -> str:
    """Tell how a system uses its model; a dagger: adaptation did not lower its loss."""
    system = score.system
    task, _ = split_test_set(score.task)
    failed = system.init == "adapted" and any(
        loss_did_not_fall(one)
        for one in analysis.adaptation
        if (one.model, one.task) == (system.model, task)
    )
    return format_use(system, mark=" †" if failed else "")


def format_problem_status(score: SystemScore) -> str:
    """Name the reason of a missing score in a word: `failed`; `n/a`."""
    return "failed" if score.problems[0].status == "failed" else "n/a"
