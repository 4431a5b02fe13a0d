"""`make up`, `make ui`, `make down`: a Prefect server, its pools, deployments and workers, and MLflow, all on loopback."""

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
PREFECT_PORT, MLFLOW_PORT = (
    4200,
    5050,
)  # unless LINEAGE_PREFECT_PORT and LINEAGE_MLFLOW_PORT say otherwise
START_SECONDS = 120.0
HEARTBEAT_SECONDS, LOST_SECONDS = 30, 90
POOLS = ("orchestrator", "cpu", "gpu")
app = typer.Typer(no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False)


def servers_folder(checkout: Path) -> Path:
    """Where the servers' process ids, ports and logs are."""
    return checkout / STATE_DIR / "servers"


def prefect_environment(checkout: Path) -> dict[str, str]:
    """Prefect's settings for this checkout: its own home, and its server where one is up."""
    port, home = running_port(checkout, "prefect"), checkout / STATE_DIR / "prefect"
    home.mkdir(parents=True, exist_ok=True)
    address = {"PREFECT_API_URL": f"http://{HOST}:{port}/api"} if port else {}
    # what a run has to say is said by flows/view.py; Prefect's own log lines go to its pages
    quiet = {
        "PREFECT_HOME": str(home),
        "PREFECT_SERVER_EPHEMERAL_STARTUP_TIMEOUT_SECONDS": "120",
        "PREFECT_LOGGING_HANDLERS_CONSOLE_LEVEL": "CRITICAL",
    }
    return {
        **TELEMETRY_OFF,
        **quiet,
        **address,
        "PREFECT_FLOWS_HEARTBEAT_FREQUENCY": str(HEARTBEAT_SECONDS),
    }


def running_port(checkout: Path, name: str) -> int | None:
    """The port of a server that was started here and lives."""
    path = servers_folder(checkout) / f"{name}.json"
    with contextlib.suppress(
        FileNotFoundError, ValueError
    ):  # one may be cut short, as when the power failed: what it named has ended with it
        found = json.loads(path.read_text())
        return (
            int(found["port"])
            if processes.find_marked_processes([str(servers_folder(checkout))], pid=found["pid"])
            else None
        )
    return None


@app.command()
def up() -> None:
    """Start a Prefect server, register pools, deployments and the watch for lost runs, and start a worker for each pool."""
    checkout = Path.cwd()
    known = running_port(checkout, "prefect") is not None
    address = start_prefect(checkout)
    _wait_for("the Prefect server", lambda: _is_up(f"{address}/api/health"))
    os.environ.update(_server_environment(checkout))
    _register_pools()
    _register_deployments(checkout)
    _watch_lost_runs(sweep=not known)
    started: dict[str, datetime] = {}
    # orchestrator: the scheduled pipeline waits for its stages here, in a pool that is not theirs. Without a limit: a full worker would let
    # the next night's run wait, where the deployment's own limit cancels it. gpu: one stage owns the device
    for pool, limit in (("orchestrator", None), ("cpu", default_jobs(threads=1)), ("gpu", 1)):
        home = {
            "LINEAGE_WORKER_HOME": str(checkout / STATE_DIR / "workers" / pool),
            "LINEAGE_TRACKING_URI": resolve_tracking_uri(),
            "PREFECT_WORKER_QUERY_SECONDS": "2",
        }
        command = [
            "prefect",
            "worker",
            "start",
            "--pool",
            pool,
            "--name",
            pool,
            "--type",
            "process",
        ]
        command += ["--limit", str(limit)] if limit else []
        if running_port(checkout, f"worker-{pool}") is None:
            started[pool] = datetime.now(UTC)
            _start_server(
                checkout,
                f"worker-{pool}",
                command,
                environment=home if pool != "orchestrator" else {},
            )
    _wait_for("the workers", lambda: _workers_online(started))
    print(f"Prefect: {address}\nworkers: orchestrator, cpu, gpu; `make down` ends all of it")


@app.command()
def ui() -> None:
    """Start MLflow and Prefect, and print their addresses."""
    checkout = Path.cwd()
    mlflow, prefect = start_mlflow(checkout), start_prefect(checkout)
    _wait_for("MLflow", lambda: _is_up(f"{mlflow}/health"))
    _wait_for("the Prefect server", lambda: _is_up(f"{prefect}/api/health"))
    print(f"MLflow:  {_mlflow_runs_url(mlflow)}\nPrefect: {prefect}\n`make down` ends both")


@app.command()
def down() -> None:
    """End all that was started here, with everything below it."""
    home = servers_folder(Path.cwd())
    processes.terminate_marked_processes(processes.known_markers(home))
    for path in home.glob("*.json"):
        path.unlink()
    print("all servers and workers have ended")


def start_prefect(checkout: Path) -> str:
    """The address of the Prefect server's pages; started where none is up."""
    port = running_port(checkout, "prefect") or _choose_port("LINEAGE_PREFECT_PORT", PREFECT_PORT)
    if not running_port(checkout, "prefect"):
        # its pages ask the port of Prefect's own default, whatever the server's is
        pages = {
            "PREFECT_SERVER_UI_API_URL": f"http://{HOST}:{port}/api",
            "PREFECT_SERVER_UI_SHOW_PROMOTIONAL_CONTENT": "false",
        }
        _start_server(
            checkout,
            "prefect",
            ["prefect", "server", "start", "--host", HOST, "--port", str(port)],
            environment=pages,
            port=port,
        )
    return f"http://{HOST}:{port}"


def start_mlflow(checkout: Path) -> str:
    """The address of MLflow's pages; started where none is up and runs are kept in a file."""
    store = resolve_tracking_uri()
    if store.startswith("http"):
        return store
    port = running_port(checkout, "mlflow") or _choose_port("LINEAGE_MLFLOW_PORT", MLFLOW_PORT)
    if not running_port(checkout, "mlflow"):
        command = [
            "mlflow",
            "server",
            "--backend-store-uri",
            store,
            "--host",
            HOST,
            "--port",
            str(port),
            "--workers",
            "1",
        ]
        _start_server(checkout, "mlflow", command, port=port)
    return f"http://{HOST}:{port}"


def _server_environment(checkout: Path) -> dict[str, str]:
    home = {
        processes.MARKER_VARIABLE: str(servers_folder(checkout)),
        "LINEAGE_CHECKOUT": str(checkout),
        "PREFECT_LOGGING_HANDLERS_CONSOLE_LEVEL": "INFO",
    }
    return {**prefect_environment(checkout), **home}


def _start_server(
    checkout: Path,
    name: str,
    command: list[str],
    *,
    environment: dict[str, str] | None = None,
    port: int = 0,
) -> None:
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
    # imported here and below: Prefect reads its settings from the environment when it is imported
    from prefect.client.orchestration import get_client
    from prefect.client.schemas.actions import WorkPoolCreate
    from prefect.exceptions import ObjectAlreadyExists
    from prefect.workers.process import ProcessWorker

    template = ProcessWorker.get_default_base_job_template()
    with get_client(sync_client=True) as client:
        for pool in POOLS:
            try:
                client.create_work_pool(
                    WorkPoolCreate(name=pool, type="process", base_job_template=template)
                )
            except ObjectAlreadyExists:
                continue


def _register_deployments(checkout: Path) -> None:
    command = [sys.executable, "-m", "prefect", "--no-prompt", "deploy", "--all"]
    answer = subprocess.run(
        command,
        cwd=checkout,
        env={**os.environ, **_server_environment(checkout)},
        capture_output=True,
        text=True,
        check=False,
    )
    if answer.returncode != 0:
        raise InputError(
            f"prefect.yaml: the deployments were refused: {' '.join((answer.stdout + answer.stderr).split())[-600:]}; mend the file"
        )


def _watch_lost_runs(*, sweep: bool) -> None:
    """Runs whose process died stay Running for good: those that give no sign for a while are set to Crashed; with `sweep` all of now at once."""
    from prefect.automations import Automation
    from prefect.client.orchestration import get_client
    from prefect.client.schemas.filters import (
        FlowRunFilter,
        FlowRunFilterState,
        FlowRunFilterStateType,
    )
    from prefect.client.schemas.objects import StateType
    from prefect.events import ChangeFlowRunState, EventTrigger, Posture, ResourceSpecification
    from prefect.states import Crashed

    ends = {
        f"prefect.flow-run.{word}"
        for word in ("heartbeat", "Completed", "Failed", "Cancelled", "Crashed")
    }
    trigger = EventTrigger(
        after={"prefect.flow-run.heartbeat"},
        expect=ends,
        match=ResourceSpecification({"prefect.resource.id": ["prefect.flow-run.*"]}),
        for_each={"prefect.resource.id"},
        posture=Posture.Proactive,
        threshold=1,
        within=timedelta(seconds=LOST_SECONDS),
    )
    name = "lost runs are crashed"
    message = f"no sign of life for {LOST_SECONDS} s"
    with get_client(sync_client=True) as client:
        lost = FlowRunFilter(
            state=FlowRunFilterState(
                type=FlowRunFilterStateType(
                    any_=[StateType.PENDING, StateType.RUNNING, StateType.CANCELLING]
                )
            )
        )
        for run in client.read_flow_runs(flow_run_filter=lost) if sweep else ():
            client.set_flow_run_state(
                run.id, Crashed(message="its server ended before it"), force=True
            )
    try:
        Automation.read(name=name)  # type: ignore[unused-coroutine]  # synchronous outside of a coroutine
    except ValueError:
        crash = ChangeFlowRunState(
            state=StateType.CRASHED, name="Crashed", message=message, force=False
        )
        Automation(name=name, trigger=trigger, actions=[crash]).create()


def _workers_online(started: Mapping[str, datetime]) -> bool:
    """Whether each pool has a worker that was heard of, since it was started: those of before leave a record, and some seconds of being online."""
    from prefect.client.orchestration import get_client

    with get_client(sync_client=True) as client:
        heard = {
            pool: [worker.last_heartbeat_time for worker in client.read_workers_for_work_pool(pool)]
            for pool in POOLS
        }
    return all(
        any(when is not None and when >= started.get(pool, when) for when in times)
        for pool, times in heard.items()
    )


def _choose_port(variable: str, default: int) -> int:
    """The port that the environment names, or else the default one. Raises InputError where it is no port, or is taken."""
    said = os.environ.get(variable, str(default))
    if not said.isdecimal() or not 0 < int(said) < 65536:
        raise InputError(f"{variable}: '{said}' is no port; give a number from 1 to 65535")
    port = int(said)
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((HOST, port))
        except OSError:
            raise InputError(
                f"port {port}: something else listens there; end it, or name another one by {variable}"
            ) from None
    return port


def _is_up(address: str) -> bool:
    try:
        with urllib.request.urlopen(address, timeout=2) as answer:
            return bool(answer.status == 200)
    except OSError:
        return False


def _mlflow_runs_url(mlflow: str) -> str:
    """The page of the runs, where there are any: MLflow's own first page shows traces, of which there are none."""
    try:
        with urllib.request.urlopen(
            f"{mlflow}/api/2.0/mlflow/experiments/get-by-name?experiment_name={EXPERIMENT_NAME}",
            timeout=10,
        ) as answer:
            number = json.load(answer)["experiment"]["experiment_id"]
    except (OSError, KeyError, ValueError):
        return mlflow
    return f"{mlflow}/#/experiments/{number}/runs?workflowType=machine_learning"


def _wait_for(what: str, ready: Callable[[], bool]) -> None:
    deadline = time.monotonic() + START_SECONDS
    while not ready():
        if time.monotonic() > deadline:
            raise InputError(
                f"{what}: no answer within {START_SECONDS:.0f} s; see the logs in {servers_folder(Path.cwd())}"
            )
        time.sleep(0.3)


def main() -> None:
    """The command line."""
    try:
        prepare_environment()
        check_writable(str(STATE_DIR))
        app()
    except InputError as error:
        print(error, file=sys.stderr)
        sys.exit(EXIT_BAD_INPUT)


if __name__ == "__main__":
    main()
