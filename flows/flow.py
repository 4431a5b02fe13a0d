"""The Prefect flows: `run-study`, with a task for each stage, and `run-stage` on a worker."""

import logging
import os
import sys
import threading
import time
from datetime import datetime
from functools import partial
from pathlib import Path

from prefect import flow, task
from prefect.cache_policies import NO_CACHE
from prefect.client.schemas import State
from prefect.runtime import flow_run
from prefect.states import Completed, Failed

from flows.addresses import prefect_is_up
from flows.announce import announce_run
from flows.execute import EXIT_BAD_INPUT, EXIT_RESULTS_FAILED, StageResult
from flows.plan import StageNode
from flows.run import RunOptions, run_study
from flows.scheduler import StageRunner
from flows.waiting import WaitReports
from flows.workers import RemoteStage, run_on_worker, run_remote_stage
from lineage.errors import InputError

EXIT_MEANINGS = {
    0: "done",
    1: "stages failed",
    EXIT_BAD_INPUT: "bad configuration or input",
    EXIT_RESULTS_FAILED: "finished, but results failed",
}
SERVER_WAIT_SECONDS = 5.0  # at the end of a run, for a server that is being started again
# How long a run whose stages have ended may take to say so to a server, which may hang.
FAREWELL_SECONDS = 10.0


def _name_flow_run() -> str:
    """Return the study's name and the time, by which people find a run again."""
    return f"{Path.cwd().name}, {datetime.now():%Y-%m-%d %H:%M}"


@flow(name="run-study", flow_run_name=_name_flow_run, persist_result=False)
def run_study_flow(jobs: int | None = None, workers: bool = False, commit: bool = False) -> State:
    """Run every stale stage of the study in the current folder.

    The state is Completed for the exit codes 0 and 3, else Failed; its result is the exit code.
    """
    state = _run_stages(jobs, workers, commit)
    _announce(state)
    return state


def _run_stages(jobs: int | None, workers: bool, commit: bool) -> State:
    """Run the study in this flow run, and return the state in which it ends."""
    run_remotely = None
    try:
        if workers:
            run_count = int(flow_run.run_count or 1)
            run_remotely = partial(run_on_worker, run_count=run_count, reports=WaitReports())
        exit_status = run_study(
            RunOptions(jobs, workers, commit),
            root=Path.cwd(),
            run_remotely=run_remotely,
            wrap_runner=as_prefect_tasks,
            flow_run_id=str(flow_run.id),
        )
    except InputError as error:
        return Failed(message=str(error), data=EXIT_BAD_INPUT)
    state = Completed if exit_status in (0, EXIT_RESULTS_FAILED) else Failed
    return state(message=EXIT_MEANINGS[exit_status], data=exit_status)


def _announce(state: State) -> None:
    """Show in Prefect what a run that has ended well found, if its server is there."""
    if state.is_completed() and _server_answers():
        announce_run(Path.cwd())


def run_with_prefect(options: RunOptions) -> int:
    """Run the flow in this process and return its exit code, also if Prefect's server is gone.

    Raises InputError, also if the server fails before the run begins.
    """
    logging.raiseExceptions = False  # logs that Prefect cannot send are not worth a message each
    outcomes: list[State | BaseException] = []

    @flow(name=run_study_flow.name, flow_run_name=_name_flow_run, persist_result=False)
    def run_and_keep(jobs: int | None, workers: bool, commit: bool) -> State:
        try:
            state = _run_stages(jobs, workers, commit)
        except BaseException as error:
            outcomes.append(error)
            raise
        outcomes.append(state)
        farewell.start()
        _announce(state)
        return state

    farewell = threading.Timer(FAREWELL_SECONDS, lambda: _exit_without_prefect(outcomes[0]))
    farewell.daemon = True

    try:
        state = run_and_keep(options.jobs, options.workers, options.commit, return_state=True)
    except Exception as error:  # Prefect's client raises errors of many kinds
        if not outcomes:
            raise InputError(
                f"the Prefect server at {os.environ['PREFECT_API_URL']} does not work "
                f"({type(error).__name__}: {error}), so nothing was run; try again, or run without "
                "it: `lineage run --no-prefect`"
            ) from error
        if error is outcomes[0]:
            raise
        _say_prefect_is_gone(type(error).__name__)
        if isinstance(outcomes[0], BaseException):
            raise outcomes[0] from None
        state = outcomes[0]
    finally:
        farewell.cancel()
    exit_status = state.result(raise_on_failure=False)
    if isinstance(exit_status, BaseException):
        raise exit_status
    assert isinstance(exit_status, int)
    if exit_status == EXIT_BAD_INPUT and state.message != EXIT_MEANINGS[EXIT_BAD_INPUT]:
        raise InputError(state.message)
    return exit_status


def _say_prefect_is_gone(reason: str) -> None:
    print(
        f"Prefect could not be informed how this run ended ({reason} at "
        f"{os.environ['PREFECT_API_URL']}); the results do not need it",
        file=sys.stderr,
    )


def _exit_without_prefect(state: State | BaseException) -> None:
    """End this process with the exit code of its run: Prefect's client would wait for minutes."""
    exit_status = state.result(raise_on_failure=False) if isinstance(state, State) else 1
    _say_prefect_is_gone("no answer")
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(exit_status if isinstance(exit_status, int) else 1)


def _server_answers() -> bool:
    """Return whether Prefect's server is up. One that has just ended gets time to return."""
    deadline = time.monotonic() + SERVER_WAIT_SECONDS
    while not prefect_is_up():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.5)
    return True


def as_prefect_tasks(run: StageRunner) -> StageRunner:
    """Return a runner that runs each stage as a Prefect task.

    Tasks cache nothing: DVC alone decides what is fresh.
    """
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
        def run_stage_task() -> State:
            # Prefect would keep an exception and return a state only.
            try:
                result = run(node)
            except Exception as error:  # it could not even be started; the other stages go on
                exit_status = EXIT_BAD_INPUT if isinstance(error, InputError) else 1
                message = f"{node.name}: {error}"
                result = StageResult(node.name, "failed", exit_status=exit_status, message=message)
            results.append(result)
            return _to_state(result)

        upstream_states = [states[name] for name in node.upstream if name in states]
        states[node.name] = run_stage_task(wait_for=upstream_states, return_state=True)
        return results[0]

    return run_as_task


def _to_state(result: StageResult) -> State:
    if result.succeeded:
        return Completed(name=result.outcome.capitalize())
    return Failed(message=result.message)


@flow(name="run-stage", persist_result=False)
def run_stage_flow(request: RemoteStage) -> State:
    """Run one stage on this worker, in a scratch study with its own cache.

    Results return through the DVC remote.
    """
    return _to_state(run_remote_stage(request))
