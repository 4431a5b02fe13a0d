"""The summary of a run for whoever did not watch it: the decisions, and what has changed."""

import contextlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lineage import artifacts
from lineage.analysis.decision import Decision, widest_rankings
from lineage.analysis.records import Analysis, Setting, System, record_to_json
from lineage.config.records import parse_record
from lineage.errors import InputError
from lineage.report.decisions import (
    format_interval,
    list_decisions,
    name_system,
    summarize_decisions,
)
from lineage.report.formatting import (
    format_label_count,
    format_percent,
    format_setting,
    metric_unit,
)

NOTHING = "nothing above chance"


@dataclass(frozen=True)
class KnownUse:
    """The recommendation of a run in a setting: the system's name, and its score."""

    name: str
    mean: float


@dataclass(frozen=True)
class ScoreLine:
    """The score of a system in a setting, as text."""

    task: str
    labels: str
    system: str
    score: str
    interval: str


@dataclass(frozen=True)
class RunSummary:
    """The facts that Prefect shows of a run. The MLflow run has no id if nothing was logged."""

    decision: str  # Markdown
    decision_changes: tuple[str, ...]  # settings in which another system is recommended now
    scores: tuple[ScoreLine, ...]
    pipeline: str
    # The changes that this pipeline has made. They stay when the same pipeline is run again.
    pipeline_changes: tuple[str, ...]
    mlflow_experiment_id: str
    mlflow_run_id: str


def read_known_uses(path: Path) -> dict[Setting, KnownUse]:
    """Read what the run before recommended; nothing from a file of another version."""
    found = {}
    with contextlib.suppress(InputError, KeyError, TypeError):
        for one in artifacts.read_json(path):
            setting = Setting(one["task"], one["label_count"])
            system = parse_record(System, one["system"], str(path))
            standing = one["use"]["standing"]
            name = name_system(system) if standing["above_chance"] else NOTHING
            found[setting] = KnownUse(name, float(standing["mean"]))
    return found


@dataclass(frozen=True)
class Changes:
    """The differences from the run before, as sentences."""

    is_first_run: bool
    decisions: tuple[str, ...]  # settings in which another system is recommended now
    scores: tuple[str, ...]  # settings with another score of the same system, new and gone ones

    @property
    def sentences(self) -> list[str]:
        """All changes, or one sentence that there are none."""
        if self.is_first_run:
            return ["This is the first run."]
        return [*self.decisions, *self.scores] or ["Nothing has changed."]


def find_changes(before: Mapping[Setting, KnownUse], decisions: Sequence[Decision]) -> Changes:
    """Compare the decisions with the result of `read_known_uses` before the run."""
    changed = []
    scores = []
    for one in decisions:
        known = before.get(one.setting)
        use = one.use.standing
        now = KnownUse(name_system(use.system) if use.above_chance else NOTHING, use.mean)
        if known is None:
            scores.append(f"{_name_setting(one)}: new")
            continue
        score, score_before = _format_score(one, now), _format_score(one, known)
        if known.name != now.name:
            changed.append(
                f"{_name_setting(one)}: {now.name} ({score}) instead of {known.name} "
                f"({score_before})"
            )
        elif score != score_before:
            scores.append(f"{_name_setting(one)}: {score}, before {score_before}")
    settings = {one.setting for one in decisions}
    scores += [f"{format_setting(setting)}: gone" for setting in before if setting not in settings]
    return Changes(not before, tuple(changed), tuple(scores))


def _name_setting(decision: Decision) -> str:
    return format_setting(decision.setting, train_examples=decision.train_examples)


def _format_score(decision: Decision, use: KnownUse) -> str:
    return f"{format_percent(use.mean)} {metric_unit(decision.metric)}"


def build_run_summary(
    analysis: Analysis,
    decisions: Sequence[Decision],
    *,
    changes: Changes,
    pipeline: str,
    pipeline_changes: Sequence[str],
    report: Path,
    mlflow_experiment_id: str,
    mlflow_run_id: str,
) -> RunSummary:
    """Return the summary of a run."""
    lines = [f"**{summarize_decisions(analysis, decisions)}**", ""]
    lines += list_decisions(decisions)
    lines += ["", "### Since the last run", ""]
    lines += [f"- {sentence}" for sentence in changes.sentences]
    lines += ["", f"Report: `{report}`"]
    return RunSummary(
        decision="\n".join(lines),
        decision_changes=changes.decisions,
        scores=tuple(_score_lines(analysis)),
        pipeline=pipeline,
        pipeline_changes=tuple(pipeline_changes),
        mlflow_experiment_id=mlflow_experiment_id,
        mlflow_run_id=mlflow_run_id,
    )


def _score_lines(analysis: Analysis) -> list[ScoreLine]:
    """Return a line for each candidate of each setting, highest score first."""
    found = []
    for ranking in widest_rankings(analysis.rankings).values():
        labels = format_label_count(ranking.label_count, train_examples=ranking.train_examples)
        unit = metric_unit(ranking.metric)
        found += [
            ScoreLine(
                task=ranking.task,
                labels=labels,
                system=name_system(standing.system),
                score=f"{format_percent(standing.mean)} {unit}",
                interval=format_interval(standing),
            )
            for standing in ranking.standings
        ]
    return found


def keep_pipeline_changes(path: Path, pipeline: str, changes: Changes) -> list[str]:
    """Return what this pipeline has changed: as the last summary says, if it wrote that."""
    with contextlib.suppress(InputError, AttributeError):
        summary = artifacts.read_json(path)
        if summary.get("pipeline") == pipeline:
            return list(summary["pipeline_changes"])
    return changes.sentences


def write_run_summary(path: Path, summary: RunSummary) -> None:
    """Write a summary as JSON."""
    content: dict[str, Any] = record_to_json(summary)
    artifacts.write_json(path, content)
