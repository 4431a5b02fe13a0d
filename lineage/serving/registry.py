"""Champion and challenger: the recommended system of each task in MLflow's registry of models.

The systems of a task are versions of one registered model, STUDY-TASK. The alias `champion` names
the version in use, and `challenger` the last one that did not replace it. A version keeps one score
for each test item, so that later systems can be compared with it.
"""

import json
import os
import re
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import mlflow
import numpy as np
import pandas as pd
from mlflow import MlflowClient
from mlflow.entities.model_registry import ModelVersion, RegisteredModel
from mlflow.exceptions import MlflowException
from mlflow.protos.databricks_pb2 import RESOURCE_DOES_NOT_EXIST, ErrorCode
from mlflow.utils.mlflow_tags import MLFLOW_MODEL_VERSIONS

from lineage import __version__, artifacts
from lineage.analysis.cells import shorten_label
from lineage.analysis.champion import ChampionDecision, ChampionOutcome, Contender, decide_champion
from lineage.analysis.decision import Decision
from lineage.analysis.ranking import Scores
from lineage.analysis.statistics import EQUIVALENCE_MARGIN
from lineage.answers.metrics import max_difference
from lineage.config.params import Params, read_recorded_params
from lineage.errors import InputError
from lineage.randomness import generator
from lineage.report.champions import describe_champion, describe_version
from lineage.runtime.server_time import ServerTime, limit_client
from lineage.runtime.settings import STATE_DIR, resolve_tracking_uri
from lineage.runtime.tracking import (
    NOTE_TAG,
    STORE_ERRORS,
    describe_store_error,
    log_model_score,
    warn,
)
from lineage.serving.candidate import Candidate, export_recommended
from lineage.serving.card import describe_training, format_card
from lineage.serving.mlflow_model import SYSTEM_ARTIFACT, log_system
from lineage.serving.predict import list_input_columns, open_exported
from lineage.serving.systems import check_task
from lineage.tasks.base import load_kind

CHAMPION = "champion"
CHALLENGER = "challenger"
SCORES_FILE = "item_scores.parquet"  # among the artifacts of a version
MODEL_ADDRESS = "models:/"
NAME_SEPARATORS = re.compile(r"[^\w-]+")  # what names of MLflow, and addresses, cannot all hold
# The values of the tag `reason` of a version that became the champion.
TAKEN_OVER = ("first", "better", "equivalent and cheaper", "same system")
LOG_MODEL_REQUESTS = 10  # that MLflow sends to log a model, at least


def study_name() -> str:
    """Return the name of the study, as runs have it."""
    return os.environ.get("LINEAGE_STUDY") or Path.cwd().name


def registered_name(task: str) -> str:
    """Return the name of the registered model of a task of this study: STUDY-TASK."""
    return NAME_SEPARATORS.sub("-", f"{study_name()}-{task}")


def publish_champions(
    params: Params,
    decisions: Sequence[Decision],
    *,
    run_id: str,
    results_dir: Path,
    tasks_dir: Path,
    server_time: ServerTime | None = None,
) -> list[ChampionOutcome]:
    """Register the recommended system of each task, and decide which are the new champions.

    `run_id` is that of the parent run; without one nothing is done. Where the store does not
    answer, a warning is printed, and nothing more is tried.
    """
    server_time = server_time or ServerTime()
    outcomes: list[ChampionOutcome] = []
    if not run_id:
        return outcomes
    try:
        mlflow.set_tracking_uri(resolve_tracking_uri())
        client = limit_client(MlflowClient(), server_time)
        STATE_DIR.mkdir(exist_ok=True)
        for task in params.grid.tasks:
            if not load_kind(params.tasks[task].kind).labels_new_items:
                continue
            with tempfile.TemporaryDirectory(dir=STATE_DIR, prefix="champion-") as folder:
                try:
                    candidate = export_recommended(
                        params,
                        decisions,
                        task,
                        Path(folder) / SYSTEM_ARTIFACT,  # an artifact has its folder's name
                        results_dir=results_dir,
                        tasks_dir=tasks_dir,
                    )
                except InputError as error:
                    print(f"{task}: no system is registered: {error}", file=sys.stderr)
                    continue
                outcomes.append(enter_candidate(client, candidate, run_id, server_time))
    except STORE_ERRORS as error:
        warn("could not register the recommended systems", error)
    return outcomes


def find_champion(task: str) -> ModelVersion:
    """Return the champion of a task of the study. Raises InputError if there is none."""
    params = read_recorded_params()
    check_task(params, task)
    name = registered_name(task)
    try:
        client = MlflowClient(resolve_tracking_uri())
        champion = _find_alias(client, client.get_registered_model(name), CHAMPION)
    except STORE_ERRORS as error:
        if not _is_missing(error):
            raise InputError(
                f"MLflow cannot tell the champion ({describe_store_error(error)}); start its "
                "server, or name a system of the study with --system"
            ) from error
        champion = None
    if champion is None:
        raise InputError(
            f"MLflow has no champion of {name}; run `lineage run`, or name a system of the study "
            "with --system"
        )
    return champion


def download_system(version: ModelVersion, folder: Path) -> Path:
    """Copy the exported system of a version into a folder, and return its path there.

    Raises InputError if the store does not have it.
    """
    mlflow.set_tracking_uri(resolve_tracking_uri())
    try:
        return _download(version, SYSTEM_ARTIFACT, folder)
    except STORE_ERRORS as error:
        raise InputError(
            f"version {version.version} of {version.name} cannot be read "
            f"({describe_store_error(error)}); name a system of the study with --system"
        ) from error


def _download(version: ModelVersion, artifact: str, folder: Path) -> Path:
    address = f"{MODEL_ADDRESS}{version.name}/{version.version}/artifacts/{artifact}"
    return Path(mlflow.artifacts.download_artifacts(address, dst_path=str(folder)))


def _is_missing(error: Exception) -> bool:
    return getattr(error, "error_code", None) == ErrorCode.Name(RESOURCE_DOES_NOT_EXIST)


def enter_candidate(
    client: MlflowClient, candidate: Candidate, run_id: str, server_time: ServerTime | None = None
) -> ChampionOutcome:
    """Register a candidate, unless it is there already, and set the aliases.

    `run_id` is that of the run which logs its model.
    """
    server_time = server_time or ServerTime()
    name = registered_name(candidate.decision.task)
    model = _get_or_create_model(client, name, candidate.decision.task)
    champion = _find_alias(client, model, CHAMPION)
    if champion is not None and _is_same(champion, candidate.contender):
        _log_score(client, candidate, champion, run_id)
        return _outcome(candidate, champion, champion, None)
    versions = client.search_model_versions(f"name='{name}'")
    earlier = _list_compared(versions, candidate.contender)
    best = _find_best_champion(earlier)
    is_best = champion is None or best is None or best.version == champion.version
    decision = decide_champion(
        candidate.contender,
        None if champion is None else _read_contender(champion, server_time),
        generator("champion", name),
        margin=EQUIVALENCE_MARGIN,
        max_difference=max_difference(candidate.decision.metric),
        best=None if is_best or best is None else _read_contender(best, server_time),
        num_earlier=max(len(earlier) - 1, 0),
    )
    tags = _version_tags(candidate, decision, champion, run_id)
    # The newest version that holds the same system with scores of the same items.
    version = next((one for one in versions if _is_same(one, candidate.contender)), None)
    if version is None:
        version = _create_version(client, candidate, name, tags, server_time)
    else:
        for key, value in tags.items():
            client.set_model_version_tag(name, version.version, key, value)
    outcome = _outcome(candidate, version, champion or version, decision)
    _write_description(client, candidate, version, outcome)
    _log_score(client, candidate, version, run_id)
    # Should this process be killed in between, the next run finds the version and goes on.
    if decision.takes_over:
        client.set_registered_model_alias(name, CHAMPION, version.version)
        if CHALLENGER in model.aliases:
            client.delete_registered_model_alias(name, CHALLENGER)
    else:
        client.set_registered_model_alias(name, CHALLENGER, version.version)
    return outcome


def _outcome(
    candidate: Candidate,
    version: ModelVersion,
    champion: ModelVersion,
    decision: ChampionDecision | None,
) -> ChampionOutcome:
    system = candidate.kept.record.name
    return ChampionOutcome(
        task=candidate.decision.task,
        system=system,
        version=int(version.version),
        champion=champion.tags.get("system", system),
        champion_version=int(champion.version),
        decision=decision,
    )


def _get_or_create_model(client: MlflowClient, name: str, task: str) -> RegisteredModel:
    try:
        return client.get_registered_model(name)
    except MlflowException as error:
        if not _is_missing(error):
            raise
    return client.create_registered_model(
        name,
        tags={"study": study_name(), "task": task},
        description=f"The systems that the study {study_name()} has recommended for {task}. The "
        f"alias `{CHAMPION}` marks the one in use.",
    )


def _find_alias(client: MlflowClient, model: RegisteredModel, alias: str) -> ModelVersion | None:
    if alias not in model.aliases:
        return None
    return client.get_model_version(model.name, model.aliases[alias])


def _is_same(version: ModelVersion, contender: Contender) -> bool:
    tags = version.tags
    return (
        tags.get("system_digest") == contender.system_digest
        and tags.get("test_items_digest") == contender.test_items_digest
    )


def _list_compared(versions: Sequence[ModelVersion], contender: Contender) -> list[ModelVersion]:
    """Return the other systems that were scored on the same test items."""
    return [
        one
        for one in versions
        if one.tags.get("test_items_digest") == contender.test_items_digest
        and one.tags.get("system_digest") != contender.system_digest
    ]


def _find_best_champion(versions: Sequence[ModelVersion]) -> ModelVersion | None:
    """Return the version with the highest score of those that were champions."""
    champions = [one for one in versions if one.tags.get("reason") in TAKEN_OVER]
    return max(champions, key=lambda one: float(one.tags["score"]), default=None)


def _read_contender(version: ModelVersion, server_time: ServerTime) -> Contender:
    """Read what a comparison with a version needs: its tags, and the scores of its items."""
    tags = version.tags
    scores_N: Scores | None = None
    if tags.get("has_item_scores") == "true":
        with tempfile.TemporaryDirectory() as folder, server_time.limit():
            table = artifacts.read_table(_download(version, SCORES_FILE, Path(folder)))
            scores_N = table["score"].to_numpy(dtype=np.float64)
    seconds = tags.get("cost_seconds")
    return Contender(
        system_digest=tags.get("system_digest", ""),
        test_items_digest=tags.get("test_items_digest", ""),
        scores_N=scores_N,
        num_grouped_items=int(tags.get("grouped_items", 0)),
        cost_seconds=None if seconds is None else float(seconds),
    )


def _create_version(
    client: MlflowClient,
    candidate: Candidate,
    name: str,
    tags: dict[str, str],
    server_time: ServerTime,
) -> ModelVersion:
    """Log a candidate as a model of the parent run, and register it."""
    run_id = tags["run_id"]
    scores_N = candidate.contender.scores_N
    with tempfile.TemporaryDirectory(dir=STATE_DIR, prefix="scores-") as folder:
        further_artifacts = {}
        if scores_N is not None:
            path = Path(folder) / SCORES_FILE
            artifacts.write_table(path, pd.DataFrame({"score": scores_N}))
            further_artifacts[SCORES_FILE] = path
        limit = server_time.limit(upload=candidate.folder, num_requests=LOG_MODEL_REQUESTS)
        with limit, mlflow.start_run(run_id=run_id):
            model_id = log_system(candidate.folder, name, further_artifacts)
    source = f"{MODEL_ADDRESS}{model_id}"
    return client.create_model_version(name, source, run_id=run_id, model_id=model_id, tags=tags)


def _log_score(
    client: MlflowClient, candidate: Candidate, version: ModelVersion, run_id: str
) -> None:
    """Log the score of a version to a run: MLflow ranks it with the run's other systems."""
    model_id = version.source.removeprefix(MODEL_ADDRESS)
    known = client.get_logged_model(model_id).metrics or []
    if run_id not in [metric.run_id for metric in known]:
        log_model_score(client, run_id, model_id, candidate.score)


def _write_description(
    client: MlflowClient, candidate: Candidate, version: ModelVersion, outcome: ChampionOutcome
) -> None:
    text = describe_version(study_name(), candidate.decision, describe_champion(outcome))
    if candidate.kept.record.refit is not None:
        text += f" The registered system is {describe_training(candidate.kept.record)}."
    client.update_model_version(version.name, version.version, description=text)
    tags = {
        NOTE_TAG: f"{text}\n\n{_describe_use(candidate, version)}",
        "mlflow.source.name": "lineage",
        # With these its page links to the registry.
        MLFLOW_MODEL_VERSIONS: json.dumps([{"name": version.name, "version": version.version}]),
    }
    client.set_logged_model_tags(version.source.removeprefix(MODEL_ADDRESS), tags)


def _describe_use(candidate: Candidate, version: ModelVersion) -> str:
    """Return a snippet that uses a version, and the card of its system."""
    opened = open_exported(candidate.folder)
    columns = ", ".join(f'"{name}": [...]' for name in list_input_columns(opened.task, opened.kind))
    labels = tuple(shorten_label(label) for label in candidate.kept.record.labels)
    lines = [
        "```python",
        f'model = mlflow.pyfunc.load_model("{MODEL_ADDRESS}{version.name}/{version.version}")',
        f"model.predict(pandas.DataFrame({{{columns}}}))",
        "```",
        "",
        format_card(replace(candidate.kept.record, labels=labels)),
    ]
    return "\n".join(lines)


def _version_tags(
    candidate: Candidate, decision: ChampionDecision, champion: ModelVersion | None, run_id: str
) -> dict[str, str]:
    """Return the tags of docs/reference/tags.md, without those that are unknown."""
    standing = candidate.decision.use.standing
    contender = candidate.contender
    values: dict[str, str | int | float | None] = {
        "study": study_name(),
        "task": candidate.decision.task,
        "system": candidate.kept.record.name,
        "label_count": candidate.decision.label_count,
        "metric": candidate.decision.metric,
        "score": standing.mean,
        "score_low": standing.ci_low,
        "score_high": standing.ci_high,
        "cost_seconds": contender.cost_seconds,
        "reason": decision.reason,
        "difference": decision.difference,
        "difference_low": decision.low,
        "difference_high": decision.high,
        "compared_with": None if champion is None else champion.version,
        "test_items_digest": contender.test_items_digest,
        "grouped_items": contender.num_grouped_items,
        "has_item_scores": "false" if contender.scores_N is None else "true",
        "system_digest": contender.system_digest,
        "run_id": run_id,
        "lineage_version": __version__,
    }
    return {
        key: f"{value:.6g}" if isinstance(value, float) else str(value)
        for key, value in values.items()
        if value is not None
    }
