"""Mirror runs in MLflow. Every stage works as well without it.

A pipeline is a parent run, found by a digest of code, parameters and data. Its stages are child
runs, made by whichever process sends their values (`lineage.runtime.sender`). A stage that was
killed goes on in the child run that it had, and no step of a curve is logged twice.
"""

import json
import logging
import os
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

# MLflow reads these. A server that does not answer may cost seconds, not MLflow's own minutes;
# senders, for which nobody waits, have set a longer time (`lineage.runtime.recorder`).
os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")
os.environ.setdefault("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")
os.environ.setdefault("MLFLOW_HTTP_REQUEST_TIMEOUT", "4")
# Bars of progress and addresses of pages would run through the output of a stage.
os.environ.setdefault("MLFLOW_ENABLE_ARTIFACTS_PROGRESS_BAR", "false")
os.environ.setdefault("MLFLOW_SUPPRESS_PRINTING_URL_TO_STDOUT", "true")

from alembic.util.exc import CommandError
from mlflow import MlflowClient, entities
from mlflow.entities import LoggedModelStatus
from mlflow.exceptions import MlflowException
from sqlalchemy.exc import SQLAlchemyError

from lineage.runtime.database import (
    check_unlocked,
    find_database,
    lock_store,
    remove_companions,
    set_aside_if_broken,
)
from lineage.runtime.journal import RunStatus, StageRun, current_ms
from lineage.runtime.provenance import Dataset, common_tags
from lineage.runtime.server_time import ServerTime, limit_client
from lineage.runtime.settings import (
    EXPERIMENT_NAME,
    SQLITE_PREFIX,
    get_user_name,
    resolve_tracking_uri,
)

NOTE_TAG = "mlflow.note.content"
# How to read the experiment.
EXPERIMENT_NOTE = """\
Each state of a study is a parent run, and its stages are the child runs. To review a run:

1. **The decision.** Open the newest run for which `tags.stage = 'pipeline'`. Its description says \
which system to use for each task, what it costs, and whether the champion has changed.
2. **The report.** It is among that run's artifacts: `comparison.html`.
3. **Training.** A link below the decision draws the losses of all models against the kB of text \
read.
4. **Candidates.** The page Models has the best system of each model, with its test score for each \
task.
5. **Champions.** In the model registry, the alias `champion` marks the system of a task that is in \
use.
6. **Failures.** Filter by `attributes.status = 'FAILED'`. The description of a stage's run has the \
error.
"""
CONNECTION_ERRORS = (MlflowException, SQLAlchemyError, CommandError, OSError)
# Opening a store can also fail because its driver is not installed or its address is malformed.
STORE_ERRORS = (*CONNECTION_ERRORS, ImportError, ValueError)
MAX_LOST_SECONDS = 3.0  # that failed requests may take together, before a tracker gives up
BYTES_PER_KB = 1024
MAX_TAG_LENGTH = 8000  # characters that MLflow takes
METRICS_PER_BATCH = 1000
PARAMS_PER_BATCH = 100
LOSS_PREFIXES = ("loss", "validation_")  # metrics that are also drawn over the text read
for _noisy in ("mlflow", "alembic"):
    logging.getLogger(_noisy).setLevel(logging.ERROR)


@dataclass(frozen=True)
class ModelScore:
    """The score of a system on the test items of a data set."""

    split: str
    metric: str
    value: float
    dataset: Dataset


@dataclass(frozen=True)
class RankedSystem:
    """A system that was compared with others, as MLflow shows it. Its files are kept by DVC."""

    name: str
    description: str
    params: Mapping[str, str]  # model, family, init, transfer, head, task and label_count
    score: ModelScore


class MlflowTracker:
    """One MLflow run. Without a store its methods do nothing.

    Values wait in memory until `flush`, since single ones cost 20 times more than batches and stall
    under several writers.
    """

    def __init__(
        self,
        client: MlflowClient | None,
        *,
        run: entities.Run | None = None,
        tolerates_failures: bool = True,
    ) -> None:
        self._client = client if run else None
        self._run = run
        self._tolerates_failures = tolerates_failures
        self._pending_metrics: list[entities.Metric] = []
        self._last_step: dict[str, int] = {}
        self._lost_seconds = 0.0

    @property
    def run_id(self) -> str:
        """MLflow's id of this run; empty if there is none."""
        return self._run.info.run_id if self._run else ""

    @property
    def experiment_id(self) -> str:
        """MLflow's id of the experiment that holds this run; empty if there is none."""
        return self._run.info.experiment_id if self._run else ""

    def log_metrics(
        self, values: Mapping[str, float], *, step: int, text_bytes: int | None, time_ms: int
    ) -> None:
        """Log values of one step, of a time in ms.

        With `text_bytes`, losses are logged a second time as `by_text_kb/`, with the text read so
        far as their step.
        """
        self._queue_metrics(values, step=step, time_ms=time_ms)
        if text_bytes is not None:
            losses = {
                f"by_text_kb/{key}": value
                for key, value in values.items()
                if key.startswith(LOSS_PREFIXES)
            }
            self._queue_metrics(losses, step=text_bytes // BYTES_PER_KB, time_ms=time_ms)

    def log_summary(self, values: Mapping[str, float], *, time_ms: int | None = None) -> None:
        """Log values of the whole run; a value that has not changed adds no point."""
        known = self._run.data.metrics if self._run else {}
        for key, value in values.items():
            if known.get(key) != value:
                step = self._last_logged_step(key) + 1
                self._queue_metrics({key: value}, step=step, time_ms=time_ms or current_ms())

    def _queue_metrics(self, values: Mapping[str, float], *, step: int, time_ms: int) -> None:
        for key, value in values.items():
            if step > self._last_logged_step(key):
                self._last_step[key] = step
                self._pending_metrics.append(entities.Metric(key, float(value), time_ms, step))

    def _last_logged_step(self, key: str) -> int:
        """Return the last step of a curve in this run, or -1. Resumed training repeats steps."""
        if key not in self._last_step:
            self._last_step[key] = -1
            if self._run and key in self._run.data.metrics:
                self._request("read a curve", lambda client: self._read_last_step(client, key))
        return self._last_step[key]

    def _read_last_step(self, client: MlflowClient, key: str) -> None:
        history = client.get_metric_history(self.run_id, key)
        self._last_step[key] = max(metric.step for metric in history)

    def flush(self) -> None:
        """Send the waiting values. Those that cannot be sent wait on."""

        def send(client: MlflowClient) -> None:
            while self._pending_metrics:
                batch = self._pending_metrics[:METRICS_PER_BATCH]
                client.log_batch(self.run_id, metrics=batch)
                del self._pending_metrics[:METRICS_PER_BATCH]

        if self._pending_metrics:
            self._request("log metrics", send)

    def log_artifact(self, path: Path, folder: str = "") -> None:
        """Copy a file, or the files of a folder, into the run's artifacts."""

        def copy(client: MlflowClient) -> None:
            log = client.log_artifacts if path.is_dir() else client.log_artifact
            log(self.run_id, str(path), folder or None)

        self._request(f"log {path.name}", copy)

    def log_datasets(self, datasets: Sequence[Dataset]) -> None:
        """Log the data sets on which systems were evaluated."""
        self._request(
            "log data sets",
            lambda client: _log_datasets(client, self.run_id, datasets, context="evaluation"),
        )

    def log_ranked_systems(self, systems: Sequence[RankedSystem]) -> None:
        """Log systems as models without files, each with its score, unless they are there."""

        def log(client: MlflowClient) -> None:
            found = client.search_logged_models(
                [self.experiment_id], filter_string=f"source_run_id = '{self.run_id}'"
            )
            logged = {(model.name, model.params.get("task")) for model in found}
            for system in systems:
                if (system.name, system.params["task"]) not in logged:
                    self._log_ranked_system(client, system)

        self._request("log the ranked systems", log)

    def _log_ranked_system(self, client: MlflowClient, system: RankedSystem) -> None:
        model = client.create_logged_model(
            self.experiment_id,
            system.name,
            source_run_id=self.run_id,
            tags={
                NOTE_TAG: system.description,
                "mlflow.source.name": "lineage",
                "mlflow.user": get_user_name(),
            },
            params=dict(system.params),
        )
        client.finalize_logged_model(model.model_id, LoggedModelStatus.READY)
        client.log_outputs(self.run_id, [entities.LoggedModelOutput(model.model_id, step=0)])
        log_model_score(client, self.run_id, model.model_id, system.score)

    def set_note(self, text: str, *, title: str = "") -> None:
        """Set the description on the run's page, in Markdown, and the name that lists show."""
        tags = [entities.RunTag(NOTE_TAG, text[:MAX_TAG_LENGTH])]
        if title:
            tags.append(entities.RunTag("mlflow.runName", title[:MAX_TAG_LENGTH]))
        self._request("set tags", lambda client: client.log_batch(self.run_id, tags=tags))

    def end(self, status: RunStatus, *, end_time: int | None = None) -> None:
        """Flush and close the run, which has ended now or at another time in ms."""
        self.flush()
        if self._run is not None and end_time is not None and end_time < self._run.info.start_time:
            end_time = None  # the work was done before: in another store, or by another run
        self._request(
            "end the run", lambda client: client.set_terminated(self.run_id, status, end_time)
        )

    def _request(self, action: str, send: Callable[[MlflowClient], object]) -> None:
        """Ask something of MLflow. Warn about the first failure, unless failures are raised.

        If failures take long, nothing more is tried.
        """
        if self._client is None:
            return
        start_time = time.monotonic()
        try:
            send(self._client)
        except CONNECTION_ERRORS as error:
            if not self._tolerates_failures:
                raise
            if not self._lost_seconds:
                warn(f"could not {action}", error)
            self._lost_seconds += time.monotonic() - start_time
            if self._lost_seconds > MAX_LOST_SECONDS:
                self._client = None


@dataclass(frozen=True)
class Store:
    """An open MLflow store, with the experiment of this project and the pipeline that is run."""

    client: MlflowClient
    experiment_id: str
    pipeline: str

    def find_run(self, condition: str, *, newest_first: bool) -> entities.Run | None:
        """Return the oldest, or newest, run of this pipeline for which the condition holds."""
        order = "DESC" if newest_first else "ASC"
        found = self.client.search_runs(
            [self.experiment_id],
            f"tags.pipeline = '{self.pipeline}' AND {condition}",
            max_results=1,
            order_by=[f"attributes.start_time {order}"],
        )
        return found[0] if found else None


def log_model_score(client: MlflowClient, run_id: str, model_id: str, score: ModelScore) -> None:
    """Log a score of a model, with the data set on which it was measured."""
    client.log_metric(
        run_id,
        f"{score.split}/{score.metric}",
        score.value,
        dataset_name=score.dataset.name,
        dataset_digest=score.dataset.short_digest,
        model_id=model_id,
    )


def open_parent_run(pipeline: str, server_time: ServerTime | None = None) -> MlflowTracker:
    """Find or create the run of a whole pipeline. It stays open until its publish stage ends it."""
    server_time = server_time or ServerTime()
    try:
        with server_time.limit():
            store = connect(pipeline)
            run = get_or_create_parent(store, common_tags(pipeline))
        return MlflowTracker(limit_client(store.client, server_time), run=run)
    except STORE_ERRORS as error:
        warn("goes on without MLflow", error)
        return MlflowTracker(None)


def _log_datasets(
    client: MlflowClient, run_id: str, datasets: Sequence[Dataset], *, context: str
) -> None:
    # MLflow looks a data set up and adds it if it is new: of two stages that do so at once, one
    # fails.
    with lock_store():
        client.log_inputs(run_id, [_dataset_input(dataset, context) for dataset in datasets])


def connect(pipeline: str) -> Store:
    """Open the store and its experiment. Set a broken database aside, create a missing one."""
    database = find_database()
    # Before the lock is taken: a store that is silent must not hold up other stages.
    if database is None:
        MlflowClient(resolve_tracking_uri()).get_experiment_by_name(EXPERIMENT_NAME)
    else:
        check_unlocked(database)
    with lock_store():
        if database is not None:
            message = set_aside_if_broken(database)
            if message:
                print(message, file=sys.stderr)
            if not database.is_file():
                _create_database(database)
        client = MlflowClient(resolve_tracking_uri())
        location = _artifact_location()
        found = client.get_experiment_by_name(EXPERIMENT_NAME)
        if found is None:
            return Store(client, _create_experiment(client), pipeline)
        if NOTE_TAG not in found.tags:  # made by an older version; a text of the user's stays
            client.set_experiment_tag(found.experiment_id, NOTE_TAG, EXPERIMENT_NOTE)
    if location not in (None, found.artifact_location):
        print(
            f"tracking: reports of runs go to {found.artifact_location}, where MLflow's database "
            "was made; to keep them here, move mlflow.db away, and a new one is made",
            file=sys.stderr,
        )
    return Store(client, found.experiment_id, pipeline)


def _create_database(database: Path) -> None:
    """Create the database under another name, and move it to its place when it is complete."""
    draft = database.with_name(f".{database.name}.draft")
    draft.unlink(missing_ok=True)  # of a process that was killed
    remove_companions(draft)
    try:
        _create_experiment(MlflowClient(f"{SQLITE_PREFIX}{draft}"))
        remove_companions(database)
        draft.replace(database)
    finally:
        draft.unlink(missing_ok=True)


def _create_experiment(client: MlflowClient) -> str:
    return client.create_experiment(
        EXPERIMENT_NAME, artifact_location=_artifact_location(), tags={NOTE_TAG: EXPERIMENT_NOTE}
    )


def _artifact_location() -> str | None:
    """Return the address of a new experiment's artifacts, or None for the server's own.

    MLflow's own default depends on the current folder, which may be that of a worker.
    """
    database = find_database()
    if database is None:
        return None
    return (database.parent / "mlruns" / EXPERIMENT_NAME).absolute().as_uri()


def get_or_create_parent(
    store: Store, tags: Mapping[str, str], *, start_time: int | None = None, has_ended: bool = False
) -> entities.Run:
    """Return the oldest parent of this pipeline, on which all processes agree, or a new one.

    A new one begins now, or with the stage that began at `start_time`, in ms. One that has ended is
    opened again, unless the stage has ended too (`has_ended`).
    """
    with lock_store():
        parent = find_parent(store)
        if parent is None:
            parent = store.client.create_run(
                store.experiment_id,
                start_time=start_time,
                tags={
                    **tags,
                    "mlflow.runName": f"pipeline {store.pipeline[:8]}",
                    "stage": "pipeline",
                },
            )
            if has_ended:
                store.client.set_terminated(parent.info.run_id)
        elif parent.info.status != "RUNNING" and not has_ended:
            store.client.update_run(parent.info.run_id, status="RUNNING")
        return parent


def find_parent(store: Store) -> entities.Run | None:
    return store.find_run("tags.stage = 'pipeline'", newest_first=False)


def get_or_create_stage_run(
    store: Store, stage_run: StageRun, parent: entities.Run
) -> entities.Run:
    """Return the run that a stage has begun with these parameters and tags, or a new one.

    A run without parameters is one that was just created when sending failed. One that has finished
    belongs to another execution unless its last attempt is this one.
    """
    client = store.client
    attempt = str(stage_run.start_time)
    with lock_store():
        run = store.find_run(f"tags.stage = '{stage_run.stage}'", newest_first=True)
        if (
            run is not None
            and (run.info.status != "FINISHED" or run.data.tags.get("attempt") == attempt)
            and run.data.params.items() <= stage_run.parameters.items()
            and stage_run.tags.items() <= run.data.tags.items()
        ):
            client.update_run(run.info.run_id, status="RUNNING")
            client.set_tag(run.info.run_id, "attempt", attempt)
            if NOTE_TAG in run.data.tags:  # the error of the last time
                client.delete_tag(run.info.run_id, NOTE_TAG)
        else:
            run = client.create_run(
                store.experiment_id,
                start_time=stage_run.start_time,
                tags={
                    **stage_run.common_tags,
                    "mlflow.runName": stage_run.stage,
                    "stage": stage_run.stage,
                    **stage_run.tags,
                    "attempt": attempt,
                    "mlflow.parentRunId": parent.info.run_id,
                },
            )
    params = [entities.Param(key, value) for key, value in stage_run.parameters.items()]
    for start in range(0, len(params), PARAMS_PER_BATCH):
        client.log_batch(run.info.run_id, params=params[start : start + PARAMS_PER_BATCH])
    _log_datasets(client, run.info.run_id, stage_run.datasets, context="training")
    return run


def _dataset_input(dataset: Dataset, context: str) -> entities.DatasetInput:
    entity = entities.Dataset(
        dataset.name,
        dataset.short_digest,
        "local",
        json.dumps({"uri": dataset.name}),
        schema=dataset.schema or None,
        profile=dataset.profile or None,
    )
    return entities.DatasetInput(entity, [entities.InputTag("mlflow.data.context", context)])


def warn(message: str, error: Exception) -> None:
    """Print one line about a failure of the store."""
    print(f"tracking: {message}: {describe_store_error(error)}", file=sys.stderr)


def describe_store_error(error: Exception) -> str:
    """Return one line about a failure, without the name and password that an address may hold."""
    uri = resolve_tracking_uri()
    text = _hide_secrets(f"{uri}: {' '.join(str(error).split())}", uri)
    return text[:300]


def _hide_secrets(text: str, uri: str) -> str:
    scheme, _, rest = uri.partition("://")
    if scheme == "sqlite":  # the rest is a path, which may hold any character
        return text
    place, _, query = rest.partition("?")
    login, _, host = place.rpartition("@")
    # A password may hold a slash, and even a ?: then nothing of the address is shown.
    login_is_known = bool(login) or "@" not in query
    text = text.replace(rest, host if login_is_known else "...")
    for secret in (f"{login}@" if login else "", query):
        if secret:
            text = text.replace(secret, "")
    return text
