"""A stage on a worker: how the orchestrator hands it over, and what the worker does with it.

A worker needs the commit and the DVC remote, never the user's raw data: inputs are pushed and dvc.lock is committed before each
hand-over; the worker computes in its own clone with its own cache and pushes its run-cache; the orchestrator then finds the result there.
"""

import contextlib
import fcntl
import json
import os
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
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
from lineage.runtime.settings import STATE_DIR, resolve_data_root

MAX_ATTEMPTS = 3  # of a stage whose worker was lost or killed; it resumes
POLL_SECONDS = 1.0
NO_WORKER_SECONDS = 300.0  # that a stage waits in a pool of which no worker is online; then its run ends, or it would hang, and hold up the next nights
ARTIFACT_PREFIX = "stage-"  # keys of artifacts that workers report in begin so


@dataclass(frozen=True)
class RemoteStage:
    """All that a worker is told."""

    stage: str
    upstream: tuple[str, ...]  # the stages whose outputs it reads
    revision: str
    repository: str  # what git clones
    remote: str  # the DVC remote's address
    threads: int
    timeout_seconds: float
    environment: dict[str, str]


def run_on_worker(
    node: StageNode, workspace: Workspace, context: StageContext, *, run_count: int = 1
) -> StageResult:
    """Have a worker of the stage's pool run it, and take its result from the DVC remote. A pipeline run that Prefect retries asks anew."""
    with workspace.commit_lock:
        remote = ensure_remote(workspace)
    cached = _pull_result(node, context=context)
    if cached.succeeded:  # the cache or the remote holds it already: no worker is needed
        return cached
    revision = commit_run(workspace, f"{workspace.profile}: before {node.name}")
    try:
        run_dvc("push", *node.upstream, context=context, name=node.name)
    except DvcError as error:
        return StageResult(node.name, "failed", exit_status=1, message=str(error))
    environment = {
        key: value for key, value in context.environment.items() if key != "LINEAGE_MAIN"
    }
    environment["LINEAGE_PIPELINE_ID"] = (
        workspace.pipeline_id
    )  # a worker's clone has not all that it is made of
    environment["LINEAGE_DATA_ROOT"] = str(
        resolve_data_root()
    )  # public checkpoints lie there; a worker's clone has runtime.yaml as it was committed
    remote_stage = RemoteStage(
        node.name,
        node.upstream,
        revision,
        str(workspace.main_checkout),
        remote,
        context.threads,
        node.timeout_seconds,
        environment,
    )
    for attempt in range(MAX_ATTEMPTS):
        result = _await_worker(
            node,
            remote_stage,
            context=context,
            idempotency_key=f"{environment.get('LINEAGE_FLOW_RUN', '')}-{run_count}-{node.name}-{revision}-{attempt}",
        )
        if not result.was_killed:
            break
    if not result.succeeded:
        return result
    pulled = _pull_result(node, context=context)
    if not pulled.succeeded:
        return replace(
            pulled,
            message=f"{node.name}: the worker's result did not arrive through the DVC remote: {pulled.message}",
        )
    return result


def _await_worker(
    node: StageNode, remote_stage: RemoteStage, *, context: StageContext, idempotency_key: str
) -> StageResult:
    """The result that a worker reports. A run that ends without a report was lost: killed."""
    started = last_seen = time.monotonic()
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
    with get_client(sync_client=True) as client, _cancelled_on_exit(client, run.id) as final_states:
        while True:
            state = client.read_flow_run(run.id).state
            if state is not None and state.is_final():
                final_states.append(state)
                break
            if context.stop_event.wait(POLL_SECONDS):
                return StageResult(
                    node.name, "stopped", time.monotonic() - started, 1, f"{node.name}: stopped"
                )
            _write_status_line(
                context, node, f"{state.name if state else 'unknown'} in pool {node.pool}"
            )
            if (
                state is not None
                and state.is_scheduled()
                and time.monotonic() - last_seen > NO_WORKER_SECONDS
            ):
                if not _is_worker_online(client, node.pool):
                    said = f"{node.name}: no worker of the pool {node.pool} has been heard of for {NO_WORKER_SECONDS:.0f} s; `make up` starts one"
                    return StageResult(node.name, "failed", time.monotonic() - started, 1, said)
                last_seen = time.monotonic()
        report = _read_worker_report(client, run.id)
    seconds = time.monotonic() - started
    if "result" not in report:
        lost = state.is_crashed() or not state.message
        return StageResult(
            node.name,
            "failed",
            seconds,
            -9 if lost else 1,
            f"{node.name}: its worker's run ended as {state.name}: {state.message}",
        )
    side = report.pop("side", None)
    if side:
        path = context.root / STATE_DIR / "sides" / f"{node.name}.json"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(side, indent=1, sort_keys=True) + "\n")
    return StageResult(**report["result"])


def _is_worker_online(client: SyncPrefectClient, pool: str) -> bool:
    return any(
        worker.status == WorkerStatus.ONLINE for worker in client.read_workers_for_work_pool(pool)
    )


def _pull_result(node: StageNode, *, context: StageContext) -> StageResult:
    """Bring a stage's outputs and lock entry here from the run-cache. The guard keeps this machine from computing them instead."""
    guarded = replace(context, environment={**context.environment, "LINEAGE_STAGE": "a worker's"})
    taken = run_stage(node.name, context=guarded, timeout_seconds=node.timeout_seconds, pull=True)
    return (
        replace(
            taken, outcome="failed", exit_status=1, message="its stage has no guard and ran here"
        )
        if taken.outcome == "ran"
        else taken
    )


@contextlib.contextmanager
def _cancelled_on_exit(client: SyncPrefectClient, run: UUID) -> Iterator[list[State]]:
    """Cancel the worker's run when the block is left before it has ended (an entry in the yielded list says that it has)."""
    final_states: list[State] = []
    try:
        yield final_states
    finally:
        if not final_states:
            client.set_flow_run_state(run, Cancelling(), force=True)


def _read_worker_report(client: SyncPrefectClient, run: UUID) -> dict[str, Any]:
    found = client.read_artifacts(
        artifact_filter=ArtifactFilter(flow_run_id=ArtifactFilterFlowRunId(any_=[run]))
    )
    rows: list[dict[str, Any]] = []
    for artifact in found:
        if (artifact.key or "").startswith(
            ARTIFACT_PREFIX
        ):  # Prefect has some of its own, such as of a flow that raised
            rows += (
                json.loads(artifact.data)
                if isinstance(artifact.data, str)
                else cast(list, artifact.data)
            )
    return {row["fact"]: row["value"] for row in rows}


def _write_status_line(context: StageContext, node: StageNode, text: str) -> None:
    """A line for the live view."""
    path = log_path(context.root, node.name)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"{text}\n")


def run_remote_stage(remote_stage: RemoteStage) -> StageResult:
    """On the worker: run one stage at a commit in a clone of its own; push what came out; report."""
    side: dict[str, Any] = {}
    try:
        with _prepare_clone(remote_stage) as root:
            context = StageContext(root, remote_stage.environment, remote_stage.threads)
            # Whole, and first: of a folder `repro --pull` fetches the part that a stage reads, and takes the rest for present ever after.
            run_dvc("fetch", *remote_stage.upstream, context=context, name=remote_stage.stage)
            result = run_stage(
                remote_stage.stage,
                context=context,
                timeout_seconds=remote_stage.timeout_seconds,
                pull=True,
            )
            if result.succeeded:
                run_dvc(
                    "push",
                    "--run-cache",
                    remote_stage.stage,
                    context=context,
                    name=remote_stage.stage,
                )
            path = root / STATE_DIR / "sides" / f"{remote_stage.stage}.json"
            if (
                result.outcome == "ran" and path.is_file()
            ):  # of what came from a cache it is that of another run
                side = json.loads(path.read_text())
    except (DvcError, InputError, OSError) as error:
        result = StageResult(
            remote_stage.stage, "failed", 0.0, 1, f"{remote_stage.stage}: on its worker: {error}"
        )
    rows = [{"fact": "result", "value": asdict(result)}, {"fact": "side", "value": side}]
    create_table_artifact(
        rows,
        key=f"{ARTIFACT_PREFIX}{stage_file_name(remote_stage.stage).replace('_', '-')}",
        description=f"How {remote_stage.stage} ended",
    )
    return result


@contextlib.contextmanager
def _prepare_clone(remote_stage: RemoteStage) -> Iterator[Path]:
    """A free clone of this worker at the errand's commit: nothing of earlier stages but the cache and resume state."""
    home = Path(os.environ["LINEAGE_WORKER_HOME"])
    with _claim_slot(home) as folder:
        root = folder / "clone"
        if not (root / ".git").is_dir():
            git_output(
                home,
                "clone",
                "--quiet",
                "--no-checkout",
                "--origin",
                "origin",
                remote_stage.repository,
                str(root),
            )
        (root / ".git" / "index.lock").unlink(
            missing_ok=True
        )  # of a git that was killed: nobody else is in this slot
        git_output(root, "remote", "set-url", "origin", remote_stage.repository)
        git_output(
            root, "fetch", "--quiet", "--prune", "origin", "+refs/heads/*:refs/remotes/origin/*"
        )
        git_output(root, "checkout", "--quiet", "--force", "--detach", remote_stage.revision)
        git_output(root, "clean", "-ffdxq", "--exclude=/.lineage", "--exclude=/.dvc")
        set_default_remote(root, remote_stage.remote)
        yield root


@contextlib.contextmanager
def _claim_slot(home: Path) -> Iterator[Path]:
    """The first folder that no other run of this worker is using: a worker with a limit above one needs several clones."""
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
