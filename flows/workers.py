"""Run a stage on a worker: how the orchestrator hands it over, and what the worker does.

A worker needs the installed package and the DVC remote. The orchestrator pushes the stage's inputs;
the worker pulls them into a scratch study, runs the stage and pushes the result.
"""

import contextlib
import json
import os
import platform
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, TypeVar, cast
from uuid import UUID

import httpx
from prefect.artifacts import create_table_artifact
from prefect.client.orchestration import SyncPrefectClient, get_client
from prefect.client.schemas import FlowRun, State
from prefect.client.schemas.filters import ArtifactFilter, ArtifactFilterFlowRunId
from prefect.deployments import run_deployment
from prefect.states import Cancelling
from ruamel.yaml import YAML

from flows.execute import (
    EXIT_BAD_INPUT,
    DvcError,
    StageContext,
    StageResult,
    WorkersUnreachableError,
    log_path,
    run_dvc,
    run_module,
    run_stage,
    stage_file_name,
)
from flows.handover import (
    StageRequest,
    check_package,
    make_request,
    open_scratch_study,
    remove,
    study_name,
    worker_home,
)
from flows.plan import (
    RemoteStore,
    StageNode,
    init_dvc,
    read_default_remote,
    read_lock_entries,
    set_default_remote,
)
from flows.repository import RepositoryError, StoppedError
from flows.resume_points import ResumePoints
from flows.stage_process import start_server
from flows.waiting import WaitReports, WorkerWait
from lineage.errors import InputError
from lineage.runtime.settings import (
    METADATA_DIR,
    SQLITE_PREFIX,
    read_runtime_settings,
    resolve_tracking_uri,
)

MAX_ATTEMPTS = 3  # of a stage whose worker was lost or killed; it resumes
POLL_SECONDS = 1.0
# How long a stage waits for a server that does not answer: `lineage up` starts it again in 20 s.
NO_SERVER_SECONDS = 60.0
# Further imports of a worker's processes: DVC's commands, and Prefect's start of a flow run.
MODULES_OF_WORKERS = ("dvc.cli.parser", "dvc.repo", "prefect.logging.loggers")
ARTIFACT_PREFIX = "stage-"  # of the keys of Prefect artifacts in which workers report


Answer = TypeVar("Answer")


@dataclass(frozen=True, kw_only=True)
class RemoteStage(StageRequest):
    """Everything that a worker needs to run a stage, besides the package and the DVC remote."""

    upstream: list[str]  # the stages whose outputs it reads
    lock_entries: dict[str, Any]  # entries of dvc.lock: of the upstream stages
    remote: dict[str, Any]  # the name and the settings of the DVC remote


@dataclass(frozen=True)
class WorkerReport:
    """A worker's report: how the stage ended, and its metadata if it ran."""

    result: StageResult
    metadata: dict[str, Any] = field(default_factory=dict)


def run_on_worker(
    node: StageNode, context: StageContext, *, run_count: int, reports: WaitReports
) -> StageResult:
    """Have a worker of the stage's pool run it, and take its result from the DVC remote.

    `run_count` says how often Prefect has tried this run. Raises WorkersUnreachableError.
    """
    cached = _pull_result(node, context=context)
    if cached.succeeded:  # no worker is needed
        return cached
    try:
        run_dvc("push", *node.upstream, context=context, name=node.name)
    except DvcError as error:
        return StageResult(node.name, "failed", exit_status=1, message=str(error))
    remote_stage = _make_request(node, context)
    flow_run_id = context.environment.get("LINEAGE_FLOW_RUN", "")
    key = f"{flow_run_id}-{run_count}-{node.name}"
    try:
        return _try_workers(node, remote_stage, context, key=key, reports=reports)
    except WorkersUnreachableError:
        finished = _pull_result(node, context=context)  # by a worker that could not say so
        if finished.succeeded:
            return finished
        raise


def _try_workers(
    node: StageNode,
    remote_stage: RemoteStage,
    context: StageContext,
    *,
    key: str,
    reports: WaitReports,
) -> StageResult:
    """Have workers run the stage, again if it is killed or its worker is lost. Take its result."""
    attempt = 1
    while True:
        result = _await_worker(
            node, remote_stage, context=context, idempotency_key=f"{key}-{attempt}", reports=reports
        )
        if result.outcome == "stopped":
            return result
        pulled = _pull_result(node, context=context)
        if result.succeeded and not pulled.succeeded:
            message = (
                f"{node.name}: the worker's result did not arrive through the DVC remote: "
                f"{pulled.message}"
            )
            return replace(pulled, message=message)
        if result.succeeded:
            return result
        if pulled.succeeded:  # the worker had finished it before it was lost
            ResumePoints(context.root, node.name, study=study_name(context)).remove()
            return pulled
        if not result.was_killed:
            return result
        if attempt == MAX_ATTEMPTS:
            return replace(result, message=f"{result.message}; it was tried {attempt} times")
        attempt += 1
        reason = result.message.split(";")[0].split(". ")[0]
        print(
            f"{reason}; a worker tries it again ({attempt} of {MAX_ATTEMPTS})",
            file=sys.stderr,
            flush=True,
        )


def _make_request(node: StageNode, context: StageContext) -> RemoteStage:
    """Collect what the worker needs from the study."""
    root = context.root
    remote = read_default_remote(root)
    assert remote is not None, "the run has prepared it"
    request = make_request(node.name, node.timeout_seconds, context)
    tracking_uri = resolve_tracking_uri()
    if "@" not in tracking_uri:  # before it there is a password, which must not travel
        request.environment["LINEAGE_TRACKING_URI"] = tracking_uri
    return RemoteStage(
        **vars(request),
        upstream=list(node.upstream),
        # With the stage's own entry, DVC would not see that an input differs from it: the worker
        # has no copy of the inputs yet.
        lock_entries=read_lock_entries(root, node.upstream),
        remote=asdict(remote),
    )


def _pull_result(node: StageNode, *, context: StageContext) -> StageResult:
    """Bring a stage's outputs and lock entry here from the cache or the remote."""
    start_time = time.monotonic()
    message = f"{node.name}: the DVC remote has no result of it"
    try:
        run_module("flows.repository", node.name, context=context, name=node.name)
        if context.repository.take_known_result(node.name):
            # Not "fresh", even if it came before: what depends on it has not been looked at since.
            return StageResult(node.name, "cached", time.monotonic() - start_time)
    except (DvcError, RepositoryError, StoppedError) as error:
        message = str(error)
    return StageResult(node.name, "failed", time.monotonic() - start_time, 1, message)


def _await_worker(
    node: StageNode,
    remote_stage: RemoteStage,
    *,
    context: StageContext,
    idempotency_key: str,
    reports: WaitReports,
) -> StageResult:
    """Start the stage's flow run and return the result that its worker reports.

    A run without a report was lost, and counts as killed. Raises WorkersUnreachableError.
    """
    start_time = time.monotonic()
    _write_status_line(context, node, f"waits for a worker of the pool {node.pool}")

    def start_run() -> FlowRun:
        run = run_deployment(
            f"run-stage/{node.pool}",
            parameters={"request": asdict(remote_stage)},
            timeout=0,
            idempotency_key=idempotency_key,
            flow_run_name=node.name,
        )
        return cast(FlowRun, run)

    run = _ask_server(start_run, node, context)
    with contextlib.ExitStack() as exit_stack:
        client = _ask_server(
            lambda: exit_stack.enter_context(get_client(sync_client=True)), node, context
        )
        limits = read_runtime_settings().pool_wait_seconds
        wait = WorkerWait(node, client, reports, limits)
        ended = _await_final_state(client, run.id, wait, context)
        seconds = time.monotonic() - start_time
        if isinstance(ended, StageResult):
            return replace(ended, seconds=seconds)
        report = _ask_server(lambda: _read_worker_report(client, run.id), node, context)
    if report is None:
        message = f"{node.name}: its worker's run ended as {ended.name}: {ended.message}"
        was_lost = ended.is_crashed() or not ended.message
        return StageResult(node.name, "failed", seconds, -9 if was_lost else 1, message)
    if report.metadata:
        path = context.root / METADATA_DIR / f"{node.name}.json"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(report.metadata, indent=1, sort_keys=True) + "\n")
    return report.result


def _ask_server(question: Callable[[], Answer], node: StageNode, context: StageContext) -> Answer:
    """Return the server's answer. Ask again for a minute while the server is away, or starts.

    Raises WorkersUnreachableError.
    """
    deadline = time.monotonic() + NO_SERVER_SECONDS
    while True:
        try:
            return question()
        except httpx.HTTPError as error:
            if isinstance(error, httpx.HTTPStatusError) and not error.response.is_server_error:
                raise
            if time.monotonic() > deadline:
                raise WorkersUnreachableError(
                    f"the Prefect server at {os.environ['PREFECT_API_URL']} has not answered for "
                    f"{NO_SERVER_SECONDS:.0f} s"
                ) from error
        _write_status_line(context, node, "waiting for the Prefect server")
        if context.stop_event.wait(POLL_SECONDS):
            raise WorkersUnreachableError("stopped")


def _await_final_state(
    client: SyncPrefectClient, run_id: UUID, wait: WorkerWait, context: StageContext
) -> State | StageResult:
    """Return the run's final state, or the stage's result if it was stopped or no worker takes it.

    The run is cancelled if it has not ended by then.
    """
    has_ended = False
    node = wait.node
    try:
        while True:
            run = _ask_server(lambda: client.read_flow_run(run_id), node, context)
            state = run.state
            if state is not None and state.is_final():
                has_ended = True
                return state
            if context.stop_event.wait(POLL_SECONDS):
                return StageResult(node.name, "stopped", 0.0, 1, f"{node.name}: stopped")
            state_name = state.name if state else "unknown"
            _write_status_line(context, node, f"{state_name} in pool {node.pool}")
            too_long = _ask_server(partial(wait.check, run), node, context)
            if too_long is not None:
                return too_long
    finally:
        if not has_ended:
            with contextlib.suppress(httpx.HTTPError):
                client.set_flow_run_state(run_id, Cancelling(), force=True)


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
    """Run one stage on the worker, in a scratch study; push its outputs and report."""
    name = remote_stage.stage
    try:
        check_package(
            remote_stage,
            whose="its",
            remedy="install the same version there, and start the worker again",
        )
        with _prepare_scratch_study(remote_stage) as root:
            report = _run_in_scratch_study(remote_stage, root)
    except InputError as error:
        report = _failed_report(name, error, EXIT_BAD_INPUT)
    except (DvcError, OSError) as error:
        report = _failed_report(name, error, 1)
    _send_worker_report(report)
    return report.result


def _failed_report(name: str, error: Exception, exit_status: int) -> WorkerReport:
    message = f"{name}: on the worker {platform.node()}: {error}"
    return WorkerReport(StageResult(name, "failed", 0.0, exit_status, message))


def _run_in_scratch_study(remote_stage: RemoteStage, root: Path) -> WorkerReport:
    name = remote_stage.stage
    environment = dict(remote_stage.environment)
    if "LINEAGE_TRACKING_URI" in os.environ:  # the worker's own address, perhaps with a password
        environment["LINEAGE_TRACKING_URI"] = os.environ["LINEAGE_TRACKING_URI"]
    database = environment.get("LINEAGE_TRACKING_URI", "").removeprefix(SQLITE_PREFIX)
    if database.startswith("/") and not Path(database).is_file():  # a file of another machine
        del environment["LINEAGE_TRACKING_URI"]
    context = StageContext(root, environment, remote_stage.threads)
    start_server(context.child_environment("server"), MODULES_OF_WORKERS)
    run_dvc("pull", *remote_stage.upstream, context=context, name=name)
    resume_points = ResumePoints(root, name, study=environment["LINEAGE_STUDY"])
    resume_points.restore()
    with resume_points.copy_in_background():
        result = run_stage(name, context=context, timeout_seconds=remote_stage.timeout_seconds)
    if result.succeeded:
        run_dvc("push", "--run-cache", name, context=context, name=name)
        if resume_points.is_in_remote:
            resume_points.remove()
    path = root / METADATA_DIR / f"{name}.json"
    # If the result came from a cache, the file describes another run.
    if result.outcome == "ran" and path.is_file():
        return WorkerReport(result, json.loads(path.read_text()))
    return WorkerReport(result)


@contextlib.contextmanager
def _prepare_scratch_study(remote_stage: RemoteStage) -> Iterator[Path]:
    """Yield a scratch study of this worker that can pull the inputs of the stage."""
    with open_scratch_study(worker_home(), remote_stage.files) as root:
        if not (root / ".dvc" / "config").is_file():
            remove(root / ".dvc")
            init_dvc(root)
        set_default_remote(root, RemoteStore(**remote_stage.remote))
        lock = {"schema": "2.0", "stages": remote_stage.lock_entries}
        with (root / "dvc.lock").open("w", encoding="utf-8") as stream:
            YAML().dump(lock, stream)
        with contextlib.chdir(root):  # DVC looks there
            yield root
