"""Show the decision of a run in Prefect, and tell it if another system is recommended than before.

Where the server is away or too old, a run prints a warning and ends as it would without them.
"""

import json
import re
import sys
from pathlib import Path
from typing import Any

from prefect.artifacts import create_markdown_artifact, create_table_artifact
from prefect.events import emit_event
from prefect.settings import (
    PREFECT_API_REQUEST_TIMEOUT,
    PREFECT_CLIENT_MAX_RETRIES,
    temporary_settings,
)

from flows.addresses import mlflow_run_url
from lineage.runtime.settings import SUMMARY_FILE

SCORE_COLUMNS = ("task", "labels", "system", "score", "interval")  # in this order
DECISION_CHANGED = "lineage.decision-changed"  # the event


def study_slug(study: Path) -> str:
    """Return the study's name in lower-case letters, digits and dashes, as Prefect wants keys."""
    return re.sub("[^a-z0-9]+", "-", study.name.lower()).strip("-") or "study"


def study_resource(study: Path) -> str:
    """Return the id of the study in Prefect's events."""
    return f"lineage.study.{study_slug(study)}"


def announce_run(study: Path) -> None:
    """Show what publish summarized: the artifacts `decision` and `scores`, and the event."""
    path = study / SUMMARY_FILE
    if not path.is_file():
        return
    summary = json.loads(path.read_text(encoding="utf-8"))
    # Prefect's client raises errors of many kinds, and none of them may end the run.
    try:
        # By default each of both takes a minute.
        with temporary_settings({PREFECT_CLIENT_MAX_RETRIES: 1, PREFECT_API_REQUEST_TIMEOUT: 10}):
            _create_artifacts(study, summary)
            _emit_changes(study, summary["decision_changes"])
    except Exception as error:
        print(
            f"the decision is not shown in Prefect: {type(error).__name__}; the results are "
            "complete, see `lineage report`",
            file=sys.stderr,
        )


def _create_artifacts(study: Path, summary: dict[str, Any]) -> None:
    slug = study_slug(study)
    create_markdown_artifact(
        key=f"{slug}-decision",
        markdown=f"{summary['decision']}\n\n{_describe_mlflow_run(study, summary)}",
        description=f"What to use in the study {study.name}, and what has changed",
    )
    create_table_artifact(
        key=f"{slug}-scores",
        table=[{name: line[name] for name in SCORE_COLUMNS} for line in summary["scores"]],
        description="The best system of each model, by task and number of labels",
    )


def _describe_mlflow_run(study: Path, summary: dict[str, Any]) -> str:
    if not summary["mlflow_run_id"]:
        return "MLflow: this run is not logged."
    address = mlflow_run_url(study, summary["mlflow_experiment_id"], summary["mlflow_run_id"])
    return f"MLflow: [this run]({address}), while `lineage ui` serves it."


def _emit_changes(study: Path, changes: list[str]) -> None:
    if not changes:
        return
    emit_event(
        event=DECISION_CHANGED,
        resource={
            "prefect.resource.id": study_resource(study),
            "prefect.resource.name": study.name,
        },
        payload={"changes": changes, "text": "; ".join(changes)},
    )
