"""What Prefect runs: the pipeline, one task a stage, and on workers the flow run-stage, one stage."""

from functools import partial
from pathlib import Path
from typing import Any

from prefect import flow, task
from prefect.cache_policies import NO_CACHE
from prefect.client.schemas import State
from prefect.runtime import flow_run
from prefect.states import Completed, Failed

from flows.execute import EXIT_BAD_INPUT, StageResult
from flows.plan import StageNode
from flows.run import RunOptions, run_pipeline
from flows.scheduler import StageRunner
from flows.workers import RemoteStage, run_on_worker, run_remote_stage
from lineage.errors import InputError

EXIT_MEANINGS = {
    0: "done",
    1: "stages failed",
    2: "bad configuration or input",
    3: "finished, but cells failed",
}


@flow(name="pipeline", flow_run_name="pipeline {profile}", persist_result=False)
def pipeline(
    profile: str | None = None,
    pools: bool = False,
    jobs: int | None = None,
    allow_dirty: bool = False,
    final: bool = False,
) -> State:
    """The whole graph, in the folder where this runs. Completed with 0 or 3, else Failed, with the exit code as result."""
    try:
        options = RunOptions(profile, pools, jobs, allow_dirty, final)
        run_remotely = (
            partial(run_on_worker, run_count=int(flow_run.run_count or 1)) if pools else None
        )
        exit_status = run_pipeline(
            options,
            checkout=Path.cwd(),
            run_remotely=run_remotely,
            wrap_runner=as_prefect_tasks,
            flow_run_id=str(flow_run.id),
        )
    except InputError as error:
        return Failed(message=str(error), data=2)
    return (Completed if exit_status in (0, 3) else Failed)(
        message=EXIT_MEANINGS[exit_status], data=exit_status
    )


def run_flow(options: RunOptions) -> int:
    """Run the pipeline flow in this process; its exit code."""
    state = pipeline(
        options.profile,
        options.pools,
        options.jobs,
        options.allow_dirty,
        options.final,
        return_state=True,
    )
    exit_status: Any = state.result(raise_on_failure=False)
    if isinstance(exit_status, BaseException):
        raise exit_status
    if exit_status == 2 and state.message != EXIT_MEANINGS[2]:
        raise InputError(state.message)
    return exit_status


def as_prefect_tasks(run: StageRunner) -> StageRunner:
    """The same run of a stage as a Prefect task. No caching: DVC alone decides what is fresh."""
    states: dict[str, State] = {}

    def run_as_task(node: StageNode) -> StageResult:
        results: list[StageResult] = []

        @task(
            name=node.name.split("@")[0],
            task_run_name=node.name,
            cache_policy=NO_CACHE,
            persist_result=False,
            retries=0,
        )
        def stage() -> State:
            try:
                results.append(run(node))
            except Exception as error:  # Prefect would keep it, and give back a state alone: the others go on, and this one says why it could not
                results.append(
                    StageResult(
                        node.name,
                        "failed",
                        exit_status=EXIT_BAD_INPUT if isinstance(error, InputError) else 1,
                        message=f"{node.name}: {error}",
                    )
                )
            if results[0].succeeded:
                return Completed(name=results[0].outcome.capitalize())
            return Failed(message=results[0].message)

        states[node.name] = stage(
            wait_for=[states[need] for need in node.upstream if need in states], return_state=True
        )
        return results[0]

    return run_as_task


@flow(name="run-stage", flow_run_name="{stage}", persist_result=False)
def run_stage_flow(
    stage: str,
    upstream: list[str],
    revision: str,
    repository: str,
    remote: str,
    threads: int,
    timeout_seconds: float,
    environment: dict[str, str],
) -> State:
    """One stage on this worker, in its own clone with its own cache; results go back through the DVC remote."""
    result = run_remote_stage(
        RemoteStage(
            stage,
            tuple(upstream),
            revision,
            repository,
            remote,
            threads,
            timeout_seconds,
            environment,
        )
    )
    return (
        Completed(name=result.outcome.capitalize())
        if result.succeeded
        else Failed(message=result.message)
    )
