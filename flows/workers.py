"""Run a stage on a worker: how the orchestrator hands it over, and what the worker does.

A worker needs the commit and the DVC remote, never the user's raw data. Before each hand-over the
orchestrator pushes the inputs and commits dvc.lock. The worker runs the stage in its own clone with
its own cache, and pushes its run-cache. The orchestrator then finds the result there.
"""

import contextlib
import fcntl
import json
import os
import time
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, cast
from uuid import UUID

from prefect.artifacts import create_table_artifact
from prefect.client.orchestration import SyncPrefectClient, get_client
from prefect.client.schemas import FlowRun, State
from prefect.client.schemas.filters import ArtifactFilter, ArtifactFilterFlowRunId
from prefect.client.schemas.objects import WorkerStatus
from prefect.deployments import run_deployment
from prefect.states import Cancelling

from flows.execute import (
    DvcError,
    StageContext,
    StageResult,
    log_path,
    run_dvc,
    run_stage,
    stage_file_name,
)
from flows.plan import StageNode
from flows.workspace import Workspace, commit_run, ensure_remote, git_output, set_default_remote
from lineage.errors import InputError
from lineage.runtime.settings import METADATA_DIR, resolve_data_root

MAX_ATTEMPTS = 3  # of a stage whose worker was lost or killed; it resumes
POLL_SECONDS = 1.0
# How long a stage waits in a pool without an online worker. Without a limit its run would hang and
# hold up the next nights.
NO_WORKER_SECONDS = 300.0
ARTIFACT_PREFIX = "stage-"  # of the keys of Prefect artifacts in which workers report


@dataclass(frozen=True)
class RemoteStage:
    """Everything that a worker needs to run a stage."""

    stage: str
    upstream: tuple[str, ...]  # the stages whose outputs it reads
    revision: str
    repository: str  # what git clones
    remote: str  # the DVC remote's address
    threads: int
    timeout_seconds: float
    environment: dict[str, str]


@dataclass(frozen=True)
class WorkerReport:
    """A worker's report: how the stage ended, and its metadata if it ran."""

    result: StageResult
    metadata: dict[str, Any] = field(default_factory=dict)


def run_on_worker(
    node: StageNode, workspace: Workspace, context: StageContext, *, run_count: int = 1
) -> StageResult:
    """Have a worker of the stage's pool run it, and take its result from the DVC remote.

    `run_count` says how often Prefect has tried this pipeline run: each try requests its stages
    anew.
    """
    with workspace.commit_lock:
        remote = ensure_remote(workspace)
    cached = _pull_result(node, context=context)
    if cached.succeeded:  # no worker is needed
        return cached
    revision = commit_run(workspace, f"{workspace.profile}: before {node.name}")
    try:
        run_dvc("push", *node.upstream, context=context, name=node.name)
    except DvcError as error:
        return StageResult(node.name, "failed", exit_status=1, message=str(error))
    remote_stage = RemoteStage(
        stage=node.name,
        upstream=node.upstream,
        revision=revision,
        repository=str(workspace.main_checkout),
        remote=remote,
        threads=context.threads,
        timeout_seconds=node.timeout_seconds,
        environment=_worker_environment(workspace, context),
    )
    flow_run_id = context.environment.get("LINEAGE_FLOW_RUN", "")
    for attempt in range(MAX_ATTEMPTS):
        key = f"{flow_run_id}-{run_count}-{node.name}-{revision}-{attempt}"
        result = _await_worker(node, remote_stage, context=context, idempotency_key=key)
        if not result.was_killed:
            break
    if not result.succeeded:
        return result
    pulled = _pull_result(node, context=context)
    if not pulled.succeeded:
        message = (
            f"{node.name}: the worker's result did not arrive through the DVC remote: "
            f"{pulled.message}"
        )
        return replace(pulled, message=message)
    return result


def _worker_environment(workspace: Workspace, context: StageContext) -> dict[str, str]:
    environment = dict(context.environment)
    environment.pop("LINEAGE_MAIN", None)
    # A worker's clone lacks some of what the id is computed from.
    environment["LINEAGE_PIPELINE_ID"] = workspace.pipeline_id
    # Public checkpoints lie there. A worker's clone has runtime.yaml as it was committed.
    environment["LINEAGE_DATA_ROOT"] = str(resolve_data_root())
    return environment


def _pull_result(node: StageNode, *, context: StageContext) -> StageResult:
    """Bring a stage's outputs and lock entry here from the cache or the remote.

    The name of another stage in LINEAGE_STAGE keeps this machine from computing them instead.
    """
    guarded = replace(context, environment={**context.environment, "LINEAGE_STAGE": "a worker's"})
    pulled = run_stage(node.name, context=guarded, timeout_seconds=node.timeout_seconds, pull=True)
    if pulled.outcome == "ran":
        message = "its stage has no guard and ran here"
        return replace(pulled, outcome="failed", exit_status=1, message=message)
    return pulled


def _await_worker(
    node: StageNode, remote_stage: RemoteStage, *, context: StageContext, idempotency_key: str
) -> StageResult:
    """Start the stage's flow run and return the result that its worker reports.

    A run that ends without a report was lost; its result counts as killed.
    """
    start_time = time.monotonic()
    run = cast(
        FlowRun,
        run_deployment(
            f"run-stage/{node.pool}",
            parameters=asdict(remote_stage),
            timeout=0,
            idempotency_key=idempotency_key,
            flow_run_name=node.name,
        ),
    )
    with get_client(sync_client=True) as client:
        ended = _await_final_state(client, run.id, node, context)
        seconds = time.monotonic() - start_time
        if isinstance(ended, StageResult):
            return replace(ended, seconds=seconds)
        report = _read_worker_report(client, run.id)
    if report is None:
        message = f"{node.name}: its worker's run ended as {ended.name}: {ended.message}"
        was_lost = ended.is_crashed() or not ended.message
        return StageResult(node.name, "failed", seconds, -9 if was_lost else 1, message)
    if report.metadata:
        path = context.root / METADATA_DIR / f"{node.name}.json"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(report.metadata, indent=1, sort_keys=True) + "\n")
    return report.result


def _await_final_state(
    client: SyncPrefectClient, run_id: UUID, node: StageNode, context: StageContext
) -> State | StageResult:
    """Return the run's final state, or the stage's result if it was stopped or no worker takes it.

    The run is cancelled if it has not ended by then.
    """
    has_ended = False
    last_seen = time.monotonic()
    try:
        while True:
            state = client.read_flow_run(run_id).state
            if state is not None and state.is_final():
                has_ended = True
                return state
            if context.stop_event.wait(POLL_SECONDS):
                return StageResult(node.name, "stopped", 0.0, 1, f"{node.name}: stopped")
            state_name = state.name if state else "unknown"
            _write_status_line(context, node, f"{state_name} in pool {node.pool}")
            is_waiting = state is not None and state.is_scheduled()
            if is_waiting and time.monotonic() - last_seen > NO_WORKER_SECONDS:
                if not _is_worker_online(client, node.pool):
                    message = (
                        f"{node.name}: no worker of the pool {node.pool} has been heard of "
                        f"for {NO_WORKER_SECONDS:.0f} s; `make up` starts one"
                    )
                    return StageResult(node.name, "failed", 0.0, 1, message)
                last_seen = time.monotonic()
    finally:
        if not has_ended:
            client.set_flow_run_state(run_id, Cancelling(), force=True)


def _is_worker_online(client: SyncPrefectClient, pool: str) -> bool:
    workers = client.read_workers_for_work_pool(pool)
    return any(worker.status == WorkerStatus.ONLINE for worker in workers)


def _write_status_line(context: StageContext, node: StageNode, text: str) -> None:
    """Write a line for the live view."""
    path = log_path(context.root, node.name)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"{text}\n")


def _read_worker_report(client: SyncPrefectClient, run_id: UUID) -> WorkerReport | None:
    """Return what the worker has reported in a Prefect artifact, if anything."""
    found = client.read_artifacts(
        artifact_filter=ArtifactFilter(flow_run_id=ArtifactFilterFlowRunId(any_=[run_id]))
    )
    values: dict[str, Any] = {}
    for artifact in found:
        # Prefect makes artifacts of its own, for example for a flow that raised.
        if not (artifact.key or "").startswith(ARTIFACT_PREFIX):
            continue
        rows = json.loads(artifact.data) if isinstance(artifact.data, str) else artifact.data
        values.update((row["fact"], row["value"]) for row in cast(list[Mapping[str, Any]], rows))
    if "result" not in values:
        return None
    return WorkerReport(StageResult(**values["result"]), values["metadata"])


def _send_worker_report(report: WorkerReport) -> None:
    name = report.result.name
    rows = [{"fact": key, "value": value} for key, value in asdict(report).items()]
    create_table_artifact(
        rows,
        key=f"{ARTIFACT_PREFIX}{stage_file_name(name).replace('_', '-')}",
        description=f"How {name} ended",
    )


def run_remote_stage(remote_stage: RemoteStage) -> StageResult:
    """Run one stage on the worker, in a clone of its own; push its outputs and report."""
    name = remote_stage.stage
    try:
        with _prepare_clone(remote_stage) as root:
            report = _run_in_clone(remote_stage, root)
    except (DvcError, InputError, OSError) as error:
        message = f"{name}: on its worker: {error}"
        report = WorkerReport(StageResult(name, "failed", 0.0, 1, message))
    _send_worker_report(report)
    return report.result


def _run_in_clone(remote_stage: RemoteStage, root: Path) -> WorkerReport:
    name = remote_stage.stage
    context = StageContext(root, remote_stage.environment, remote_stage.threads)
    # Fetched whole, and first: `repro --pull` fetches the part of a folder that a stage reads, and
    # then takes the rest for present.
    run_dvc("fetch", *remote_stage.upstream, context=context, name=name)
    result = run_stage(
        name, context=context, timeout_seconds=remote_stage.timeout_seconds, pull=True
    )
    if result.succeeded:
        run_dvc("push", "--run-cache", name, context=context, name=name)
    path = root / METADATA_DIR / f"{name}.json"
    # If the result came from a cache, the file describes another run.
    if result.outcome == "ran" and path.is_file():
        return WorkerReport(result, json.loads(path.read_text()))
    return WorkerReport(result)


@contextlib.contextmanager
def _prepare_clone(remote_stage: RemoteStage) -> Iterator[Path]:
    """Yield a free clone of this worker at the stage's commit.

    Of earlier stages it holds only the cache and resume state.
    """
    home = Path(os.environ["LINEAGE_WORKER_HOME"])
    with _claim_slot(home) as folder:
        root = folder / "clone"
        repository = remote_stage.repository
        if not (root / ".git").is_dir():
            clone = ("clone", "--quiet", "--no-checkout", "--origin", "origin")
            git_output(home, *clone, repository, str(root))
        # A git that was killed may have left it. Nobody else uses this slot.
        (root / ".git" / "index.lock").unlink(missing_ok=True)
        git_output(root, "remote", "set-url", "origin", repository)
        branches = "+refs/heads/*:refs/remotes/origin/*"
        git_output(root, "fetch", "--quiet", "--prune", "origin", branches)
        git_output(root, "checkout", "--quiet", "--force", "--detach", remote_stage.revision)
        git_output(root, "clean", "-ffdxq", "--exclude=/.lineage", "--exclude=/.dvc")
        set_default_remote(root, remote_stage.remote)
        yield root


@contextlib.contextmanager
def _claim_slot(home: Path) -> Iterator[Path]:
    """Yield the first folder that no other run of this worker uses.

    A worker that runs several stages at a time needs several clones.
    """
    number = 0
    while True:
        folder = home / str(number)
        folder.mkdir(parents=True, exist_ok=True)
        with (folder / "lock").open("w") as stream:
            try:
                fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                number += 1
                continue
            yield folder
            return
