"""Costs of training, and the texts and metrics of the MLflow run: they differ by run."""

import json
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlencode

from lineage import artifacts
from lineage.analysis.champion import ChampionOutcome
from lineage.analysis.decision import Decision
from lineage.analysis.records import AdaptationEffect, Analysis, PretrainingBudget, record_to_json
from lineage.config.params import Grid
from lineage.language import is_spaceless
from lineage.report.champions import describe_champion
from lineage.report.decisions import list_decisions, summarize_decisions
from lineage.report.provenance import StageMetadata

WORDS_PATTERN = re.compile(r"\bwords\b,?")
MAX_NOTE_CHARACTERS = 7900  # MLflow keeps 8,000
LOSS_BY_TEXT = "by_text_kb/loss"  # the metric of a stage that trains


def add_pretraining_costs(
    budget: Sequence[PretrainingBudget],
    stage_metadata: Mapping[str, StageMetadata],
    *,
    curves_dir: Path,
) -> tuple[PretrainingBudget, ...]:
    """Add the seconds and the peak memory of pretraining: means over seeds, None if unknown.

    Stage metadata stays when DVC restores an older result, so it counts only if it belongs to the
    curve that is in `curves_dir`.
    """
    found: dict[str, PretrainingBudget] = {}
    for one in budget:
        if one.members:
            found[one.model] = _sum_costs(one, [found[member] for member in one.members])
            continue
        own: list[StageMetadata] = []
        if one.text_bytes is not None:  # copying a public checkpoint does not cost its training
            stage_ids = [f"{one.model}-{seed}" for seed in one.pretrain_seeds]
            own = _find_training_metadata("pretrain", stage_ids, stage_metadata, curves_dir)
        found[one.model] = replace(
            one,
            seconds=_mean_of_known([meta.get("seconds") for meta in own]),
            peak_memory_bytes=_mean_of_known([meta.get("peak_memory_bytes") for meta in own]),
        )
    return tuple(found.values())


def _mean_of_known(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if known else None


def _sum_costs(
    budget: PretrainingBudget, members: Sequence[PretrainingBudget]
) -> PretrainingBudget:
    """Add the cost of two trainings, one after the other."""
    seconds = [one.seconds for one in members if one.seconds is not None]
    memory = [one.peak_memory_bytes for one in members if one.peak_memory_bytes is not None]
    return replace(
        budget,
        seconds=sum(seconds) if len(seconds) == len(members) else None,
        peak_memory_bytes=max(memory) if len(memory) == len(members) else None,
    )


def add_adaptation_seconds(
    effects: Iterable[AdaptationEffect],
    stage_metadata: Mapping[str, StageMetadata],
    grid: Grid,
    *,
    curves_dir: Path,
) -> tuple[AdaptationEffect, ...]:
    """Add the seconds of adaptation, as `add_pretraining_costs` does."""
    found = []
    for one in effects:
        stage_ids = [f"{one.model}-{seed}-{one.task}" for seed in grid.pretrain_seeds]
        own = _find_training_metadata("adapt", stage_ids, stage_metadata, curves_dir)
        found.append(replace(one, seconds=_mean_of_known([meta["seconds"] for meta in own])))
    return tuple(found)


def _find_training_metadata(
    verb: str,
    stage_ids: Iterable[str],
    stage_metadata: Mapping[str, StageMetadata],
    curves_dir: Path,
) -> list[StageMetadata]:
    found = []
    for stage_id in stage_ids:
        own = stage_metadata.get(f"{verb}@{stage_id}")
        curve = curves_dir / f"{verb}-{stage_id}.parquet"
        if own and curve.is_file() and own.get("curve_sha256") == artifacts.file_digest(curve):
            found.append(own)
    return found


def adjust_unit_for_language(description: dict[str, str], language: str) -> dict[str, str]:
    """Adjust a model's description to the language of the corpus.

    In a language without spaces, each character is a word.
    """
    if not is_spaceless(language):
        return description
    unit = WORDS_PATTERN.sub("characters, each a word,", description["unit"])
    return {**description, "unit": unit.removesuffix(",")}


def format_run_note(
    analysis: Analysis,
    decisions: Sequence[Decision],
    outcomes: Sequence[ChampionOutcome],
    changes: Sequence[str],
    cached_runs: Mapping[str, str],
    training_runs: Sequence[str],
    *,
    experiment_id: str,
) -> str:
    """Return the description of the parent run in Markdown.

    It has the decisions, what became of the champions, what has changed since the run before, and
    links to a chart of all losses and to the runs whose results came from the cache. It has no
    heading, because MLflow shows three lines and hides the rest.
    """
    lines = [summarize_decisions(analysis, decisions), ""]
    # Before the settings, which may be so many that the end is cut off.
    lines += [f"- **{one.task}**: {describe_champion(one)}" for one in outcomes]
    lines += list_decisions(decisions)
    lines += ["", f"Since the last run: {'; '.join(changes)}"]
    lines += ["", "The full report is among the artifacts: `comparison.html`."]
    if training_runs:
        address = _chart_address(training_runs, experiment_id)
        lines += ["", f"[The losses of all models against the kB of text read]({address})"]
    if cached_runs:
        # Without the last part of the address MLflow shows its pages for chat applications.
        base = f"#/experiments/{experiment_id}/runs"
        links = [
            f"[{stage}]({base}/{run}?workflowType=machine_learning)"
            for stage, run in sorted(cached_runs.items())
        ]
        lines += ["", f"From the cache, made by earlier runs: {', '.join(links)}"]
    text = "\n".join(lines)
    if len(text) <= MAX_NOTE_CHARACTERS:
        return text
    return text[:MAX_NOTE_CHARACTERS].rpartition(", ")[0] + " ..."


def _chart_address(runs: Sequence[str], experiment_id: str) -> str:
    """Return the address of MLflow's page that draws the loss of several runs over the text read.

    The step of this metric is the number of kB.
    """
    query = {
        "runs": json.dumps(list(runs)),
        "experiments": json.dumps([experiment_id]),
        "metric": json.dumps(LOSS_BY_TEXT),
        "plot_metric_keys": json.dumps([LOSS_BY_TEXT]),
        "x_axis": "step",
        "y_axis_scale": "linear",
    }
    return f"#/metric?{urlencode(query, quote_via=quote)}"


def find_training_runs(stage_metadata: Mapping[str, StageMetadata]) -> list[str]:
    """Return the MLflow runs in which models were pretrained, also those of earlier pipelines."""
    return [
        own["mlflow_run_id"]
        for name, own in sorted(stage_metadata.items())
        if name.startswith("pretrain@") and own.get("mlflow_run_id")
    ]


def find_cached_runs(
    stage_metadata: Mapping[str, StageMetadata], *, pipeline: str
) -> dict[str, str]:
    """Return the MLflow runs of the stages that an earlier pipeline ran, by stage."""
    return {
        name: own["mlflow_run_id"]
        for name, own in stage_metadata.items()
        if own.get("pipeline_id") not in (None, pipeline) and own.get("mlflow_run_id")
    }


def format_run_name(decisions: Sequence[Decision], *, pipeline: str) -> str:
    """Return the name of the parent run: `use bert in 3 of 5 (1a2b3c4d)`.

    A list of runs shows about twenty characters of it.
    """
    recommended = [
        one.use.standing.system.model for one in decisions if one.use.standing.above_chance
    ]
    summary = "nothing above chance" if decisions else ""
    if recommended:
        model, count = Counter(recommended).most_common(1)[0]
        summary = f"use {model} in {count} of {len(decisions)}"
    return f"{summary} ({pipeline[:8]})".strip()


def decision_records(decisions: Sequence[Decision]) -> list[dict[str, Any]]:
    """Return the decisions as JSON values; `system` is the one to use, for `lineage predict`."""
    return [
        {"system": record_to_json(one.use.standing.system), **record_to_json(one)}
        for one in decisions
    ]


def summary_metrics(decisions: Sequence[Decision]) -> dict[str, float]:
    """Return the metrics of the parent run: the score to expect in each setting."""
    return {f"score/{one.task}/{one.label_count}": one.expected_score for one in decisions}
