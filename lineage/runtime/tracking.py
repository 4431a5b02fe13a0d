"""The only file that imports MLflow, which mirrors what happens and is never the truth: without it every stage works as well.

A pipeline is a parent run, found by a digest of code, parameters and data; its stages are child runs, made by whichever process runs them.
A stage that was killed goes on in the child that it had, and no step of a curve is logged twice.
"""

import contextlib
import fcntl
import importlib
import json
import logging
import os
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

# Read by MLflow when it is imported. A server that does not answer may cost seconds, not MLflow's own minutes.
os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")
os.environ.setdefault("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "1")
os.environ.setdefault("MLFLOW_HTTP_REQUEST_TIMEOUT", "10")

from alembic.util.exc import CommandError
from mlflow import MlflowClient, entities
from mlflow.exceptions import MlflowException
from mlflow.system_metrics.system_metrics_monitor import SystemMetricsMonitor
from sqlalchemy.exc import SQLAlchemyError

from lineage.runtime.provenance import Dataset, get_code_commit, get_pipeline_id
from lineage.runtime.settings import (
    EXPERIMENT_NAME,
    STATE_DIR,
    find_main_checkout,
    get_user_name,
    resolve_tracking_uri,
)

NOTE_TAG = "mlflow.note.content"
CONNECTION_ERRORS = (MlflowException, SQLAlchemyError, CommandError, OSError)
STORE_ERRORS = (
    *CONNECTION_ERRORS,
    ImportError,
    ValueError,
)  # where one is opened: its driver is not installed, or the address is none
MAX_FAILURES = 3  # in a row, after which a tracker gives up
SYSTEM_METRICS_SECONDS = (
    5.0  # between two samples of the machine: a stage of 20 s has some, one of hours not too many
)
BYTES_PER_KB = 1024
for _noisy in ("mlflow", "alembic"):
    logging.getLogger(_noisy).setLevel(logging.ERROR)


class MlflowTracker:
    """One MLflow run, or, where no store answers, nothing: then every method returns at once.

    Values wait in memory until `flush`, since single ones cost 20 times more than batches and stall under several writers.
    """

    def __init__(self, client: MlflowClient | None, *, run: entities.Run | None = None) -> None:
        self._client = client if run else None
        self._run = run
        self._pending_metrics: list[entities.Metric] = []
        self._last_step: dict[str, int] = {}
        self._failures = 0
        self.training_failed = (
            False  # set where a training ended for good without a model: its stage goes on
        )

    @property
    def run_id(self) -> str:
        """MLflow's id of this run; empty where there is none."""
        return self._run.info.run_id if self._run else ""

    @property
    def experiment_id(self) -> str:
        """MLflow's id of the experiment that holds this run; empty where there is none."""
        return self._run.info.experiment_id if self._run else ""

    def log_metrics(
        self, values: Mapping[str, float], *, step: int = 0, text_bytes: int | None = None
    ) -> None:
        """Note values of one step. With `text_bytes` losses are drawn a second time, under `by_text_kb/`, over the text read so far."""
        if self._client is None:
            return
        self._queue_metrics(values, step=step)
        if text_bytes is not None:
            losses = {
                key: value
                for key, value in values.items()
                if key.startswith(("loss", "validation_"))
            }
            self._queue_metrics(
                {f"by_text_kb/{key}": value for key, value in losses.items()},
                step=text_bytes // BYTES_PER_KB,
            )

    def log_summary(self, values: Mapping[str, float]) -> None:
        """Note values that stand for the whole run: a further point only where one has changed."""
        for key, value in values.items():
            if self._client and self._run and self._run.data.metrics.get(key) != value:
                self.log_metrics({key: value}, step=self._last_logged_step(key) + 1)

    def _queue_metrics(self, values: Mapping[str, float], *, step: int) -> None:
        now = int(time.time() * 1000)
        for key, value in values.items():
            if step > self._last_logged_step(key):
                self._last_step[key] = step
                self._pending_metrics.append(entities.Metric(key, float(value), now, step))

    def _last_logged_step(self, key: str) -> int:
        """The last step of a curve that this run holds: training that is resumed repeats some."""
        if key not in self._last_step:
            self._last_step[key] = -1
            if self._run and key in self._run.data.metrics:
                with self._tolerate_failures("read a curve"):
                    assert self._client is not None
                    self._last_step[key] = max(
                        m.step for m in self._client.get_metric_history(self.run_id, key)
                    )
        return self._last_step[key]

    def flush(self) -> None:
        """Send what waits. What could not be sent waits on, until three times in a row failed."""
        while self._client is not None and self._pending_metrics:
            some = self._pending_metrics[:1000]
            with self._tolerate_failures("log metrics"):
                self._client.log_batch(self.run_id, metrics=some)
                self._pending_metrics = self._pending_metrics[len(some) :]
            if self._failures:
                return

    def log_artifact(self, path: Path, folder: str = "") -> None:
        """Copy a file, or a folder's files, into the run's artifacts."""
        if self._client is None:
            return
        with self._tolerate_failures(f"log {path.name}"):
            log = self._client.log_artifacts if path.is_dir() else self._client.log_artifact
            log(self.run_id, str(path), folder or None)

    def set_tags(self, values: Mapping[str, str]) -> None:
        """Set tags of the run; longer values than MLflow takes are cut."""
        if self._client is None:
            return
        with self._tolerate_failures("set tags"):
            self._client.log_batch(
                self.run_id,
                tags=[entities.RunTag(key, str(value)[:8000]) for key, value in values.items()],
            )

    def set_note(self, text: str, *, title: str = "") -> None:
        """The description on the run's page, in Markdown, and the name that lists show."""
        self.set_tags({NOTE_TAG: text} | ({"mlflow.runName": title} if title else {}))

    def end(self, status: str) -> None:
        """Flush, and close the run as FINISHED, FAILED or KILLED."""
        self.flush()
        if self._client is not None:
            with self._tolerate_failures("end the run"):
                self._client.set_terminated(self.run_id, status)

    @contextlib.contextmanager
    def _tolerate_failures(self, action: str) -> Iterator[None]:
        """Tracking that fails warns once and stops nothing; one lost answer is forgiven."""
        try:
            yield
            self._failures = 0
        except CONNECTION_ERRORS as error:
            self._failures += 1
            if self._failures == 1:
                _warn(f"could not {action}", error)
            self._client = None if self._failures == MAX_FAILURES else self._client


def preload_mlflow() -> None:
    """Import what opening a store would: for a process that forks one child a stage."""
    importlib.import_module("mlflow.store.tracking.sqlalchemy_store")


@contextlib.contextmanager
def open_stage_run(
    stage: str,
    *,
    parameters: Mapping[str, str],
    tags: Mapping[str, str],
    datasets: Sequence[Dataset] = (),
) -> Iterator[MlflowTracker]:
    """`recorder.stage_run` in this process."""
    tracker, monitor = _start_stage_run(stage, parameters=parameters, tags=tags, datasets=datasets)
    status = "KILLED"
    try:
        yield tracker
        status = "FAILED" if tracker.training_failed else "FINISHED"
    except Exception:
        status = "FAILED"
        raise
    finally:
        if monitor is not None:
            monitor.finish()
        tracker.end(status)
        if (
            status != "FINISHED" and not tracker.training_failed and tracker.run_id
        ):  # publish may not come; whoever runs next opens it again
            open_parent_run(get_pipeline_id()).end(status)


def open_parent_run(pipeline: str) -> MlflowTracker:
    """The run of a whole pipeline, found or created; it stays open until its publish stage ends it."""
    try:
        client, experiment = _connect()
        return MlflowTracker(
            client, run=_get_or_create_parent(client, experiment, pipeline=pipeline)
        )
    except STORE_ERRORS as error:
        _warn("goes on without MLflow", error)
        return MlflowTracker(None)


def main() -> None:
    """`python -m lineage.runtime.tracking STATUS`: end the parent of the pipeline that the environment names, where there is one.

    A run in which a stage failed is never published, which ends its parent otherwise; and stages that went on have opened it again.
    """
    with contextlib.suppress(*STORE_ERRORS):
        client, experiment = _connect()
        for run in _find_parents(client, experiment, pipeline=get_pipeline_id()):
            if (
                sys.argv[1] != "KILLED" or run.info.status == "RUNNING"
            ):  # a run that was stopped may have had nothing to do
                MlflowTracker(client, run=run).end(sys.argv[1])


def _start_stage_run(
    stage: str,
    *,
    parameters: Mapping[str, str],
    tags: Mapping[str, str],
    datasets: Sequence[Dataset],
) -> tuple[MlflowTracker, SystemMetricsMonitor | None]:
    pipeline = get_pipeline_id()
    try:
        client, experiment = _connect()
        parent = _get_or_create_parent(client, experiment, pipeline=pipeline)
        run = _find_unfinished(
            client, experiment, pipeline=pipeline, stage=stage, parameters=parameters, tags=tags
        )
        if run is None:
            named = {
                "mlflow.runName": stage,
                "mlflow.parentRunId": parent.info.run_id,
                "stage": stage,
            }
            run = client.create_run(experiment, tags=_common_tags(pipeline) | named | dict(tags))
            for start in range(0, len(parameters), 100):
                few = list(parameters.items())[start : start + 100]
                client.log_batch(
                    run.info.run_id, params=[entities.Param(key, value) for key, value in few]
                )
            with _store_lock():  # MLflow looks whether it knows a data set and adds it then: of two stages that do so at once one fails
                client.log_inputs(
                    run.info.run_id, [_dataset_input(dataset) for dataset in datasets]
                )
        monitor = SystemMetricsMonitor(
            run.info.run_id,
            sampling_interval=SYSTEM_METRICS_SECONDS,
            resume_logging=True,
            tracking_uri=resolve_tracking_uri(),
        )
        monitor.start()
        return MlflowTracker(client, run=run), monitor
    except STORE_ERRORS as error:
        _warn(f"{stage} goes on without MLflow", error)
        return MlflowTracker(None), None


def _connect() -> tuple[MlflowClient, str]:
    """A client and its experiment. The first one creates the database, behind a lock: of two that create it together one dies."""
    uri = resolve_tracking_uri()
    with _store_lock():
        client = MlflowClient(uri)
        found = client.get_experiment_by_name(EXPERIMENT_NAME)
        # Beside the database: MLflow's own default hangs on the current folder, which may be a worktree that goes away.
        place = (
            (Path(uri.removeprefix("sqlite:///")).parent / "mlruns" / EXPERIMENT_NAME)
            .absolute()
            .as_uri()
            if uri.startswith("sqlite:")
            else None
        )
        if found:
            if place not in (None, found.artifact_location):
                print(
                    f"tracking: reports of runs go to {found.artifact_location}, where MLflow's database was when it was made",
                    file=sys.stderr,
                )
            return client, found.experiment_id
        return client, client.create_experiment(EXPERIMENT_NAME, artifact_location=place)


@contextlib.contextmanager
def _store_lock() -> Iterator[None]:
    """One writer at a time among all that share a store: workers' clones too, so the lock lies beside the database."""
    uri = resolve_tracking_uri()
    path = (
        Path(f"{uri.removeprefix('sqlite:///')}.lock")
        if uri.startswith("sqlite:///")
        else find_main_checkout() / STATE_DIR / "tracking.lock"
    )
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w") as stream:
        fcntl.flock(stream, fcntl.LOCK_EX)
        yield


def _get_or_create_parent(client: MlflowClient, experiment: str, *, pipeline: str) -> entities.Run:
    """The oldest parent of this pipeline, so that all agree on one, or a new one."""
    with _store_lock():
        found = _find_parents(client, experiment, pipeline=pipeline)
        if not found:
            named = {"mlflow.runName": f"pipeline {pipeline[:8]}", "stage": "pipeline"}
            return client.create_run(experiment, tags=_common_tags(pipeline) | named)
        if found[0].info.status != "RUNNING":
            client.update_run(found[0].info.run_id, status="RUNNING")
        return found[0]


def _find_parents(client: MlflowClient, experiment: str, *, pipeline: str) -> list[entities.Run]:
    where = f"tags.pipeline = '{pipeline}' AND tags.stage = 'pipeline'"
    return list(
        client.search_runs(
            [experiment], where, max_results=1, order_by=["attributes.start_time ASC"]
        )
    )


def _find_unfinished(
    client: MlflowClient,
    experiment: str,
    *,
    pipeline: str,
    stage: str,
    parameters: Mapping[str, str],
    tags: Mapping[str, str],
) -> entities.Run | None:
    """The child that this stage left when it was killed, if it was the same in every parameter and tag."""
    where = f"tags.pipeline = '{pipeline}' AND tags.stage = '{stage}' AND attributes.status != 'FINISHED'"
    for run in client.search_runs(
        [experiment], where, max_results=1, order_by=["attributes.start_time DESC"]
    ):
        if run.data.params == dict(parameters) and tags.items() <= run.data.set_tags.items():
            client.update_run(run.info.run_id, status="RUNNING")
            return run
        client.set_terminated(run.info.run_id, "KILLED")
    return None


def _common_tags(pipeline: str) -> dict[str, str]:
    """What every run says, parents and children: MLflow's filters see runs one by one."""
    own = {
        "pipeline": pipeline,
        "git_commit": get_code_commit(),
        "prefect_flow_run": os.environ.get("LINEAGE_FLOW_RUN", "none"),
    }
    optional_tags = {
        "profile": "LINEAGE_PROFILE",
        "changed_files": "LINEAGE_DIRTY",
    }  # the latter of code that is no commit's
    own |= {
        tag: os.environ[variable]
        for tag, variable in optional_tags.items()
        if os.environ.get(variable)
    }
    return own | {
        "mlflow.user": get_user_name(),
        "mlflow.source.git.commit": own["git_commit"],
        "mlflow.source.name": "lineage",
    }


def _dataset_input(dataset: Dataset) -> entities.DatasetInput:
    found = entities.Dataset(
        dataset.name, dataset.digest[:16], "local", json.dumps({"uri": dataset.name})
    )
    return entities.DatasetInput(found, [entities.InputTag("mlflow.data.context", "training")])


def _warn(message: str, error: Exception) -> None:
    """One line, without the name and password that an address may hold."""
    uri = resolve_tracking_uri()
    scheme, _, rest = uri.partition("://")
    text = f"{uri}: {' '.join(str(error).split())}"
    if scheme != "sqlite":  # a path, which may hold any sign
        place, _, query = rest.partition("?")
        login, _, host = place.rpartition(
            "@"
        )  # a password may hold a /, and a ? too: then nothing of the address is shown
        text = text.replace(rest, host if login or "@" not in query else "...")
        for secret in (f"{login}@" if login else "", query):
            text = text.replace(secret, "") if secret else text
    print(f"tracking: {message}: {text[:300]}", file=sys.stderr)


if __name__ == "__main__":
    main()
