"""Start and end the servers, all on loopback: `make up`, `make ui`, `make down`.

They are a Prefect server with its pools, deployments and workers, and MLflow.
"""

import contextlib
import json
import os
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path

import typer

from flows import processes
from flows.execute import EXIT_BAD_INPUT, TELEMETRY_OFF
from flows.run import default_jobs
from lineage.errors import InputError
from lineage.runtime.settings import (
    EXPERIMENT_NAME,
    STATE_DIR,
    check_writable,
    prepare_environment,
    resolve_tracking_uri,
)

HOST = "127.0.0.1"
PREFECT_PORT = 4200  # unless LINEAGE_PREFECT_PORT says otherwise
MLFLOW_PORT = 5050  # unless LINEAGE_MLFLOW_PORT says otherwise
START_SECONDS = 120.0
HEARTBEAT_SECONDS = 30
LOST_SECONDS = 90  # without a heartbeat, after which a run counts as crashed
POOLS = ("orchestrator", "cpu", "gpu")
LOST_RUNS_AUTOMATION = "lost runs are crashed"
app = typer.Typer(no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False)


@app.command()
def up() -> None:
    """Start a Prefect server, its pools, deployments and watch for lost runs, and the workers."""
    checkout = Path.cwd()
    was_running = running_port(checkout, "prefect") is not None
    address = start_prefect(checkout)
    _wait_for("the Prefect server", lambda: _is_up(f"{address}/api/health"))
    os.environ.update(_server_environment(checkout))
    _register_pools()
    _register_deployments(checkout)
    _watch_lost_runs(sweep=not was_running)
    start_times: dict[str, datetime] = {}
    for pool in POOLS:
        if running_port(checkout, _worker_name(pool)) is None:
            start_times[pool] = datetime.now(UTC)
            _start_worker(checkout, pool)
    _wait_for("the workers", lambda: _workers_online(start_times))
    print(f"Prefect: {address}\nworkers: {', '.join(POOLS)}; `make down` ends all of it")


@app.command()
def ui() -> None:
    """Start MLflow and Prefect, and print their addresses."""
    checkout = Path.cwd()
    mlflow = start_mlflow(checkout)
    prefect = start_prefect(checkout)
    _wait_for("MLflow", lambda: _is_up(f"{mlflow}/health"))
    _wait_for("the Prefect server", lambda: _is_up(f"{prefect}/api/health"))
    print(f"MLflow:  {_mlflow_runs_url(mlflow)}\nPrefect: {prefect}\n`make down` ends both")


@app.command()
def down() -> None:
    """End everything that was started here, with all child processes."""
    home = servers_folder(Path.cwd())
    processes.terminate_marked_processes(processes.known_markers(home))
    for path in home.glob("*.json"):
        path.unlink()
    print("all servers and workers have ended")


def servers_folder(checkout: Path) -> Path:
    """Return the folder of the servers' process ids, ports and logs."""
    return checkout / STATE_DIR / "servers"


def prefect_environment(checkout: Path) -> dict[str, str]:
    """Return Prefect's settings for this checkout: its own home, and its server if one is up."""
    home = checkout / STATE_DIR / "prefect"
    home.mkdir(parents=True, exist_ok=True)
    environment = {
        **TELEMETRY_OFF,
        "PREFECT_HOME": str(home),
        "PREFECT_SERVER_EPHEMERAL_STARTUP_TIMEOUT_SECONDS": "120",
        # flows/view.py prints what a user needs; Prefect's own log lines are on its pages.
        "PREFECT_LOGGING_HANDLERS_CONSOLE_LEVEL": "CRITICAL",
        "PREFECT_FLOWS_HEARTBEAT_FREQUENCY": str(HEARTBEAT_SECONDS),
    }
    port = running_port(checkout, "prefect")
    if port is not None:
        environment["PREFECT_API_URL"] = f"http://{HOST}:{port}/api"
    return environment


def running_port(checkout: Path, name: str) -> int | None:
    """Return the port of a server that was started here and is alive; 0 for a worker."""
    home = servers_folder(checkout)
    # A file may be cut short by a power failure: the server that it named has ended too.
    with contextlib.suppress(FileNotFoundError, ValueError):
        entry = json.loads((home / f"{name}.json").read_text())
        if processes.find_marked_processes([str(home)], pid=entry["pid"]):
            return int(entry["port"])
    return None


def start_prefect(checkout: Path) -> str:
    """Return the address of the Prefect server's pages. Start it if none is up."""
    port = running_port(checkout, "prefect")
    if port is None:
        port = _choose_port("LINEAGE_PREFECT_PORT", PREFECT_PORT)
        # The pages use Prefect's default port, whatever the server's port is.
        pages = {
            "PREFECT_SERVER_UI_API_URL": f"http://{HOST}:{port}/api",
            "PREFECT_SERVER_UI_SHOW_PROMOTIONAL_CONTENT": "false",
        }
        command = ["prefect", "server", "start", "--host", HOST, "--port", str(port)]
        _start_server(checkout, "prefect", command, environment=pages, port=port)
    return f"http://{HOST}:{port}"


def start_mlflow(checkout: Path) -> str:
    """Return the address of MLflow's pages.

    Start them if none are up and the store is a database.
    """
    store = resolve_tracking_uri()
    if store.startswith("http"):
        return store
    port = running_port(checkout, "mlflow")
    if port is None:
        port = _choose_port("LINEAGE_MLFLOW_PORT", MLFLOW_PORT)
        command = ["mlflow", "server", "--backend-store-uri", store]
        command += ["--host", HOST, "--port", str(port), "--workers", "1"]
        _start_server(checkout, "mlflow", command, port=port)
    return f"http://{HOST}:{port}"


def _worker_name(pool: str) -> str:
    return f"worker-{pool}"


def _start_worker(checkout: Path, pool: str) -> None:
    command = ["prefect", "worker", "start", "--pool", pool, "--name", pool, "--type", "process"]
    environment: dict[str, str] = {}
    # The scheduled pipeline waits for its stages in the pool `orchestrator`, which is not theirs.
    # That worker has no limit: if it were full, the next night's run would wait, and the
    # deployment's own limit would cancel it.
    if pool != "orchestrator":
        num_stages = 1 if pool == "gpu" else default_jobs(threads=1)  # one stage owns the GPU
        command += ["--limit", str(num_stages)]
        environment = {
            "LINEAGE_WORKER_HOME": str(checkout / STATE_DIR / "workers" / pool),
            "LINEAGE_TRACKING_URI": resolve_tracking_uri(),
            "PREFECT_WORKER_QUERY_SECONDS": "2",
        }
    _start_server(checkout, _worker_name(pool), command, environment=environment)


def _server_environment(checkout: Path) -> dict[str, str]:
    return {
        **prefect_environment(checkout),
        processes.MARKER_VARIABLE: str(servers_folder(checkout)),
        "LINEAGE_CHECKOUT": str(checkout),
        "PREFECT_LOGGING_HANDLERS_CONSOLE_LEVEL": "INFO",
    }


def _start_server(
    checkout: Path,
    name: str,
    command: list[str],
    *,
    environment: Mapping[str, str] | None = None,
    port: int = 0,
) -> None:
    """Start a Python module as a server, and note its process id and port."""
    home = servers_folder(checkout)
    home.mkdir(parents=True, exist_ok=True)
    with (home / f"{name}.log").open("ab") as log:
        child = subprocess.Popen(
            [sys.executable, "-m", *command],
            cwd=checkout,
            env={**os.environ, **_server_environment(checkout), **(environment or {})},
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    draft = home / f"{name}.tmp"
    draft.write_text(json.dumps({"pid": child.pid, "port": port}))
    draft.replace(home / f"{name}.json")


def _register_pools() -> None:
    # Imported here and below: Prefect reads its settings from the environment when it is imported.
    from prefect.client.orchestration import get_client
    from prefect.client.schemas.actions import WorkPoolCreate
    from prefect.exceptions import ObjectAlreadyExists
    from prefect.workers.process import ProcessWorker

    template = ProcessWorker.get_default_base_job_template()
    with get_client(sync_client=True) as client:
        for pool in POOLS:
            create = WorkPoolCreate(name=pool, type="process", base_job_template=template)
            with contextlib.suppress(ObjectAlreadyExists):
                client.create_work_pool(create)


def _register_deployments(checkout: Path) -> None:
    answer = subprocess.run(
        [sys.executable, "-m", "prefect", "--no-prompt", "deploy", "--all"],
        cwd=checkout,
        env={**os.environ, **_server_environment(checkout)},
        capture_output=True,
        text=True,
        check=False,
    )
    if answer.returncode != 0:
        said = " ".join((answer.stdout + answer.stderr).split())[-600:]
        raise InputError(f"prefect.yaml: the deployments were refused: {said}; correct the file")


def _watch_lost_runs(*, sweep: bool) -> None:
    """Set runs without a heartbeat to Crashed: they would stay Running after their process died.

    With `sweep`, all runs of now are set to Crashed at once.
    """
    from prefect.automations import Automation

    if sweep:
        _crash_all_runs()
    try:
        # Synchronous outside of a coroutine.
        Automation.read(name=LOST_RUNS_AUTOMATION)  # type: ignore[unused-coroutine]
    except ValueError:
        _create_lost_runs_automation()


def _crash_all_runs() -> None:
    from prefect.client.orchestration import get_client
    from prefect.client.schemas.filters import (
        FlowRunFilter,
        FlowRunFilterState,
        FlowRunFilterStateType,
    )
    from prefect.client.schemas.objects import StateType
    from prefect.states import Crashed

    unfinished = [StateType.PENDING, StateType.RUNNING, StateType.CANCELLING]
    lost = FlowRunFilter(state=FlowRunFilterState(type=FlowRunFilterStateType(any_=unfinished)))
    with get_client(sync_client=True) as client:
        for run in client.read_flow_runs(flow_run_filter=lost):
            client.set_flow_run_state(
                run.id, Crashed(message="its server ended before it"), force=True
            )


def _create_lost_runs_automation() -> None:
    from prefect.automations import Automation
    from prefect.client.schemas.objects import StateType
    from prefect.events import ChangeFlowRunState, EventTrigger, Posture, ResourceSpecification

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


def _workers_online(start_times: Mapping[str, datetime]) -> bool:
    """Return whether each pool has a worker with a heartbeat, since its start time if one is given.

    Earlier workers leave a record, and appear online for some seconds.
    """
    from prefect.client.orchestration import get_client

    with get_client(sync_client=True) as client:
        for pool in POOLS:
            heartbeats = [
                worker.last_heartbeat_time
                for worker in client.read_workers_for_work_pool(pool)
                if worker.last_heartbeat_time is not None
            ]
            if not heartbeats:
                return False
            if pool in start_times and max(heartbeats) < start_times[pool]:
                return False
    return True


def _choose_port(variable: str, default: int) -> int:
    """Return the port that the environment names, or the default.

    Raises InputError if it is no port, or is taken.
    """
    text = os.environ.get(variable, str(default))
    if not text.isdecimal() or not 0 < int(text) < 65536:
        raise InputError(f"{variable}: '{text}' is not a port; give a number from 1 to 65535")
    port = int(text)
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((HOST, port))
        except OSError:
            raise InputError(
                f"port {port}: something else listens there; "
                f"end it, or name another one by {variable}"
            ) from None
    return port


def _is_up(address: str) -> bool:
    try:
        with urllib.request.urlopen(address, timeout=2) as answer:
            return bool(answer.status == 200)
    except OSError:
        return False


def _mlflow_runs_url(mlflow: str) -> str:
    """Return the page of the runs, if there are any.

    MLflow's own first page shows traces, which we do not make.
    """
    query = f"api/2.0/mlflow/experiments/get-by-name?experiment_name={EXPERIMENT_NAME}"
    try:
        with urllib.request.urlopen(f"{mlflow}/{query}", timeout=10) as answer:
            experiment_id = json.load(answer)["experiment"]["experiment_id"]
    except (OSError, KeyError, ValueError):
        return mlflow
    return f"{mlflow}/#/experiments/{experiment_id}/runs?workflowType=machine_learning"


def _wait_for(name: str, is_ready: Callable[[], bool]) -> None:
    deadline = time.monotonic() + START_SECONDS
    while not is_ready():
        if time.monotonic() > deadline:
            raise InputError(
                f"{name}: no answer within {START_SECONDS:.0f} s; "
                f"see the logs in {servers_folder(Path.cwd())}"
            )
        time.sleep(0.3)


def main() -> None:
    """Run the command line."""
    try:
        prepare_environment()
        check_writable(str(STATE_DIR))
        app()
    except InputError as error:
        print(error, file=sys.stderr)
        sys.exit(EXIT_BAD_INPUT)


if __name__ == "__main__":
    main()
