"""The records of a study on its Prefect server: pools, deployments, the schedule, and lost runs.

Prefect reads its settings when it is imported: call `flows.servers.use_prefect` before.
"""

import contextlib
from collections.abc import Mapping
from datetime import datetime, timedelta
from pathlib import Path
from urllib.parse import urlsplit
from uuid import UUID

from prefect.automations import Automation
from prefect.client.orchestration import get_client
from prefect.client.schemas import State
from prefect.client.schemas.actions import WorkPoolCreate
from prefect.client.schemas.filters import FlowRunFilter, FlowRunFilterState, FlowRunFilterStateType
from prefect.client.schemas.objects import (
    ConcurrencyLimitConfig,
    ConcurrencyLimitStrategy,
    StateType,
)
from prefect.deployments.runner import RunnerDeployment
from prefect.events import ChangeFlowRunState, EventTrigger, Posture, ResourceSpecification
from prefect.exceptions import ObjectAlreadyExists, ObjectNotFound
from prefect.schedules import Cron
from prefect.states import Crashed
from prefect.types.entrypoint import EntrypointType
from prefect.workers.process import ProcessWorker

from flows.addresses import HEARTBEAT_SETTINGS, LOST_SECONDS, ORCHESTRATOR_POOL, POOLS
from flows.flow import run_stage_flow, run_study_flow
from flows.notifications import check_webhook, remove_notifications, set_notifications
from lineage.errors import InputError

LOST_RUNS_AUTOMATION = "lost runs are crashed"
SCHEDULE = "scheduled"  # the name of the deployment that runs the study by the clock


def set_schedule(
    study: Path, cron: str, timezone: str, *, workers: bool, commit: bool, webhook: str | None
) -> str:
    """Run the study by the clock, and return the text for the user. Raises InputError.

    `webhook` is the address to notify; without one, an earlier one is forgotten.
    """
    if webhook is not None:
        check_webhook(webhook)
    try:
        schedule = Cron(cron, timezone=timezone)
        deployment_id = RunnerDeployment.from_flow(
            run_study_flow,
            SCHEDULE,
            description=f"Runs what is stale in {study}",
            schedule=schedule,
            parameters={"workers": workers, "commit": commit},
            # A parent that waits in the pool of its children would take one of their places.
            work_pool_name=ORCHESTRATOR_POOL,
            job_variables={"working_dir": str(study), "env": HEARTBEAT_SETTINGS},
            entrypoint_type=EntrypointType.MODULE_PATH,
            concurrency_limit=ConcurrencyLimitConfig(
                limit=1, collision_strategy=ConcurrencyLimitStrategy.CANCEL_NEW
            ),
        ).apply()
    except ValueError as error:
        raise InputError(
            f"--cron '{cron}', --timezone {timezone}: {' '.join(str(error).split())[:200]}; "
            "give five fields, such as '0 2 * * *' for two o'clock each night"
        ) from None
    text = f"scheduled: {cron} ({timezone}), as long as `lineage up` runs"
    if webhook is None:
        remove_notifications(study)
        return text
    assert isinstance(deployment_id, UUID), "apply is synchronous outside of a coroutine"
    set_notifications(study, deployment_id, webhook)
    return f"{text}; {urlsplit(webhook).hostname} is notified"


def remove_schedule(study: Path) -> str:
    """Remove the schedule of `set_schedule`, and return the text for the user."""
    remove_notifications(study)
    with get_client(sync_client=True) as client:
        try:
            deployment = client.read_deployment_by_name(f"run-study/{SCHEDULE}")
        except ObjectNotFound:
            return "there was no schedule"
        client.delete_deployment(deployment.id)
    return "the schedule is removed"


def register_pools() -> None:
    """Create the pools in which runs and stages wait, unless they are there."""
    template = ProcessWorker.get_default_base_job_template()
    with get_client(sync_client=True) as client:
        for pool in POOLS:
            create = WorkPoolCreate(name=pool, type="process", base_job_template=template)
            with contextlib.suppress(ObjectAlreadyExists):
                client.create_work_pool(create)


def register_stage_deployments() -> None:
    """Register the flow that runs one stage, for the pool of CPU workers and that of GPU workers."""
    for pool in ("cpu", "gpu"):
        RunnerDeployment.from_flow(
            run_stage_flow,
            pool,
            description=f"One stage of a study, on a worker of the pool {pool}",
            work_pool_name=pool,
            # A worker on another machine has the package, at another place.
            entrypoint_type=EntrypointType.MODULE_PATH,
            # In the deployment, since a worker elsewhere was not started by us.
            job_variables={"env": HEARTBEAT_SETTINGS},
        ).apply()


def watch_lost_runs(*, sweep: bool) -> None:
    """Set runs without a heartbeat to Crashed: they would stay Running after their process died.

    With `sweep`, all runs of now are set to Crashed at once.
    """
    if sweep:
        unfinished = [StateType.PENDING, StateType.RUNNING, StateType.CANCELLING]
        lost = FlowRunFilter(state=FlowRunFilterState(type=FlowRunFilterStateType(any_=unfinished)))
        crashed: State = Crashed(message="its server ended before it")
        with get_client(sync_client=True) as client:
            for run in client.read_flow_runs(flow_run_filter=lost):
                client.set_flow_run_state(run.id, crashed, force=True)
    try:
        # Synchronous outside of a coroutine.
        Automation.read(name=LOST_RUNS_AUTOMATION)  # type: ignore[unused-coroutine]
        return
    except ValueError:
        pass  # there is none yet
    heartbeat = "prefect.flow-run.heartbeat"
    endings = {f"prefect.flow-run.{end}" for end in ("Completed", "Failed", "Cancelled", "Crashed")}
    trigger = EventTrigger(
        after={heartbeat},
        expect={heartbeat, *endings},
        match=ResourceSpecification({"prefect.resource.id": ["prefect.flow-run.*"]}),
        for_each={"prefect.resource.id"},
        posture=Posture.Proactive,
        threshold=1,
        within=timedelta(seconds=LOST_SECONDS),
    )
    crash = ChangeFlowRunState(
        state=StateType.CRASHED,
        name="Crashed",
        message=f"no sign of life for {LOST_SECONDS} s",
        force=False,
    )
    Automation(name=LOST_RUNS_AUTOMATION, trigger=trigger, actions=[crash]).create()


def workers_online(start_times: Mapping[str, datetime | None]) -> bool:
    """Return whether each pool has a worker with a heartbeat, since its start time if given."""
    with get_client(sync_client=True) as client:
        for pool, start_time in start_times.items():
            heartbeats = [
                worker.last_heartbeat_time
                for worker in client.read_workers_for_work_pool(pool)
                if worker.last_heartbeat_time is not None
            ]
            if not heartbeats:
                return False
            if start_time is not None and max(heartbeats) < start_time:
                return False
    return True
