"""The texts and metrics of the MLflow run, which differ by run."""

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any
from urllib.parse import quote, urlencode

from lineage.analysis.champion import ChampionOutcome
from lineage.analysis.decision import Decision
from lineage.analysis.records import Analysis, record_to_json
from lineage.report.champions import describe_champion
from lineage.report.decisions import list_decisions, summarize_decisions
from lineage.report.provenance import StageMetadata

MAX_NOTE_CHARACTERS = 7900  # MLflow keeps 8,000
LOSS_BY_TEXT = "by_text_kb/loss"  # the metric of a stage that trains


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
    """Return the description of the parent run in Markdown, without a heading.

    MLflow shows its first three lines.
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
    """Return the address of MLflow's page of the losses of several runs over the kB of text."""
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
    """Return the name of the parent run in 20 characters or so: `use bert in 3 of 5 (1a2b3c4d)`."""
    for_use = [one for one in decisions if not one.knowledge]
    recommended = [
        one.use.standing.system.model
        for one in for_use or decisions
        if one.use.standing.above_chance
    ]
    summary = "nothing above chance" if decisions else ""
    if recommended:
        model, count = Counter(recommended).most_common(1)[0]
        verb = "use" if for_use else "highest"
        summary = f"{verb} {model} in {count} of {len(for_use or decisions)}"
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
