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

from flows.execute import DvcError, Result, Setting, file_name, log_path, run_dvc, run_stage
from flows.plan import StageNode
from flows.workspace import Workspace, commit_run, ensure_remote, git, set_remote
from lineage.errors import InputError
from lineage.running.runtime import STATE, data_root

ATTEMPTS = 3  # of a stage whose worker was lost or killed; it resumes
POLL_SECONDS = 1.0
NOBODY_SECONDS = 300.0  # that a stage waits in a pool of which no worker is online; then its run ends, or it would hang, and hold up the next nights
OURS = "stage-"  # keys of artifacts that workers report in begin so


@dataclass(frozen=True)
class Errand:
    """All that a worker is told."""

    stage: str
    needs: tuple[str, ...]  # the stages whose outputs it reads
    revision: str
    repository: str  # what git clones
    remote: str  # the DVC remote's address
    threads: int
    timeout_seconds: float
    environment: dict[str, str]


def hand_over(node: StageNode, place: Workspace, setting: Setting, *, run_count: int = 1) -> Result:
    """Have a worker of the stage's pool run it, and take its result from the DVC remote. A pipeline run that Prefect retries asks anew."""
    with place.committing:
        remote = ensure_remote(place)
    known = _take(node, setting=setting)
    if known.ok:  # the cache or the remote holds it already: no worker is needed
        return known
    revision = commit_run(place, f"{place.profile}: before {node.name}")
    try:
        run_dvc("push", *node.needs, setting=setting, name=node.name)
    except DvcError as error:
        return Result(node.name, "failed", code=1, message=str(error))
    environment = {key: value for key, value in setting.environment.items() if key != "LINEAGE_MAIN"}
    environment["LINEAGE_PIPELINE_ID"] = place.pipeline_id  # a worker's clone has not all that it is made of
    environment["LINEAGE_DATA_ROOT"] = str(data_root())  # public checkpoints lie there; a worker's clone has runtime.yaml as it was committed
    errand = Errand(node.name, node.needs, revision, str(place.main), remote, setting.threads, node.timeout_seconds, environment)
    for attempt in range(ATTEMPTS):
        result = _await(node, errand, setting=setting, key=f"{environment.get('LINEAGE_FLOW_RUN', '')}-{run_count}-{node.name}-{revision}-{attempt}")
        if not result.killed:
            break
    if not result.ok:
        return result
    taken = _take(node, setting=setting)
    if not taken.ok:
        return replace(taken, message=f"{node.name}: the worker's result did not arrive through the DVC remote: {taken.message}")
    return result


def _await(node: StageNode, errand: Errand, *, setting: Setting, key: str) -> Result:
    """The result that a worker reports. A run that ends without a report was lost: killed."""
    started = heard = time.monotonic()
    run = cast(FlowRun, run_deployment(f"run-stage/{node.pool}", parameters=asdict(errand), timeout=0, idempotency_key=key, flow_run_name=node.name))
    with get_client(sync_client=True) as client, _cancelled_on_exit(client, run.id) as settled:
        while True:
            state = client.read_flow_run(run.id).state
            if state is not None and state.is_final():
                settled.append(state)
                break
            if setting.stop.wait(POLL_SECONDS):
                return Result(node.name, "stopped", time.monotonic() - started, 1, f"{node.name}: stopped")
            _note(setting, node, f"{state.name if state else 'unknown'} in pool {node.pool}")
            if state is not None and state.is_scheduled() and time.monotonic() - heard > NOBODY_SECONDS:
                if not _online(client, node.pool):
                    said = f"{node.name}: no worker of the pool {node.pool} has been heard of for {NOBODY_SECONDS:.0f} s; `make up` starts one"
                    return Result(node.name, "failed", time.monotonic() - started, 1, said)
                heard = time.monotonic()
        facts = _facts(client, run.id)
    seconds = time.monotonic() - started
    if "result" not in facts:
        lost = state.is_crashed() or not state.message
        return Result(node.name, "failed", seconds, -9 if lost else 1, f"{node.name}: its worker's run ended as {state.name}: {state.message}")
    side = facts.pop("side", None)
    if side:
        path = setting.root / STATE / "sides" / f"{node.name}.json"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(side, indent=1, sort_keys=True) + "\n")
    return Result(**facts["result"])


def _online(client: SyncPrefectClient, pool: str) -> bool:
    return any(worker.status == WorkerStatus.ONLINE for worker in client.read_workers_for_work_pool(pool))


def _take(node: StageNode, *, setting: Setting) -> Result:
    """Bring a stage's outputs and lock entry here from the run-cache. The guard keeps this machine from computing them instead."""
    guarded = replace(setting, environment={**setting.environment, "LINEAGE_STAGE": "a worker's"})
    taken = run_stage(node.name, setting=guarded, timeout_seconds=node.timeout_seconds, pull=True)
    return replace(taken, outcome="failed", code=1, message="its stage has no guard and ran here") if taken.outcome == "ran" else taken


@contextlib.contextmanager
def _cancelled_on_exit(client: SyncPrefectClient, run: UUID) -> Iterator[list[State]]:
    """Cancel the worker's run when the block is left before it has ended (an entry in the yielded list says that it has)."""
    settled: list[State] = []
    try:
        yield settled
    finally:
        if not settled:
            client.set_flow_run_state(run, Cancelling(), force=True)


def _facts(client: SyncPrefectClient, run: UUID) -> dict[str, Any]:
    found = client.read_artifacts(artifact_filter=ArtifactFilter(flow_run_id=ArtifactFilterFlowRunId(any_=[run])))
    rows: list[dict[str, Any]] = []
    for artifact in found:
        if (artifact.key or "").startswith(OURS):  # Prefect has some of its own, such as of a flow that raised
            rows += json.loads(artifact.data) if isinstance(artifact.data, str) else cast(list, artifact.data)
    return {row["fact"]: row["value"] for row in rows}


def _note(setting: Setting, node: StageNode, text: str) -> None:
    """A line for the live view."""
    path = log_path(setting.root, node.name)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"{text}\n")


def run_errand(errand: Errand) -> Result:
    """On the worker: run one stage at a commit in a clone of its own; push what came out; report."""
    side: dict[str, Any] = {}
    try:
        with _clone(errand) as root:
            setting = Setting(root, errand.environment, errand.threads)
            # Whole, and first: of a folder `repro --pull` fetches the part that a stage reads, and takes the rest for present ever after.
            run_dvc("fetch", *errand.needs, setting=setting, name=errand.stage)
            result = run_stage(errand.stage, setting=setting, timeout_seconds=errand.timeout_seconds, pull=True)
            if result.ok:
                run_dvc("push", "--run-cache", errand.stage, setting=setting, name=errand.stage)
            path = root / STATE / "sides" / f"{errand.stage}.json"
            if result.outcome == "ran" and path.is_file():  # of what came from a cache it is that of another run
                side = json.loads(path.read_text())
    except (DvcError, InputError, OSError) as error:
        result = Result(errand.stage, "failed", 0.0, 1, f"{errand.stage}: on its worker: {error}")
    rows = [{"fact": "result", "value": asdict(result)}, {"fact": "side", "value": side}]
    create_table_artifact(rows, key=f"{OURS}{file_name(errand.stage).replace('_', '-')}", description=f"How {errand.stage} ended")
    return result


@contextlib.contextmanager
def _clone(errand: Errand) -> Iterator[Path]:
    """A free clone of this worker at the errand's commit: nothing of earlier stages but the cache and resume state."""
    home = Path(os.environ["LINEAGE_WORKER_HOME"])
    with _slot(home) as folder:
        root = folder / "clone"
        if not (root / ".git").is_dir():
            git(home, "clone", "--quiet", "--no-checkout", "--origin", "origin", errand.repository, str(root))
        (root / ".git" / "index.lock").unlink(missing_ok=True)  # of a git that was killed: nobody else is in this slot
        git(root, "remote", "set-url", "origin", errand.repository)
        git(root, "fetch", "--quiet", "--prune", "origin", "+refs/heads/*:refs/remotes/origin/*")
        git(root, "checkout", "--quiet", "--force", "--detach", errand.revision)
        git(root, "clean", "-ffdxq", "--exclude=/.lineage", "--exclude=/.dvc")
        set_remote(root, errand.remote)
        yield root


@contextlib.contextmanager
def _slot(home: Path) -> Iterator[Path]:
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
