"""Start and end the servers of a study, all on loopback: `lineage up`, `ui` and `down`.

They are a Prefect server with its pools, deployments and workers, and MLflow.
"""

import atexit
import contextlib
import json
import logging
import os
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from pathlib import Path

from flows import processes
from flows.addresses import (
    HEARTBEAT_SETTINGS,
    HOST,
    MLFLOW_PORT,
    ORCHESTRATOR_POOL,
    POOLS,
    PREFECT_PORT,
    check_prefect_access,
    is_up,
    prefect_home,
    read_port,
    read_prefect_secret,
    running_port,
    servers_folder,
    sign_in_url,
)
from flows.execute import TELEMETRY_OFF
from flows.machine import default_jobs
from flows.study import is_running
from lineage.errors import InputError
from lineage.runtime.database import check_database, find_database
from lineage.runtime.locks import hold_lock
from lineage.runtime.provenance import get_pipeline_id
from lineage.runtime.settings import EXPERIMENT_NAME, STATE_DIR, resolve_tracking_uri

START_SECONDS = 120.0
# A run goes on if its server is gone. By default each request is tried for a minute.
RUN_SETTINGS = {"PREFECT_CLIENT_MAX_RETRIES": "1", "PREFECT_LOGGING_INTERNAL_LEVEL": "CRITICAL"}
LATE_SECONDS = 120  # after its time, at which a run that has not begun counts as late
LATE_VARIABLE = "PREFECT_SERVER_SERVICES_LATE_RUNS_AFTER_SECONDS"


def start_all(study: Path, *, with_workers: bool = True) -> str:
    """Start the Prefect server, its pools, deployments and watch for lost runs, and the workers.

    Without `with_workers` those of the pools cpu and gpu are elsewhere. Return the text for the
    user.
    """
    pools = POOLS if with_workers else (ORCHESTRATOR_POOL,)
    with _hold_servers_lock(study):
        # A run that goes on without its server will tell the new one how it ended.
        has_live_runs = running_port(study, "prefect") is not None or is_running(study)
        address = start_prefect(study)
        _wait_for("the Prefect server", lambda: is_up(f"{address}/api/health"))
        os.environ.update(_server_environment(study))
        from flows import deployments  # Prefect reads its settings when it is imported

        deployments.register_pools()
        deployments.register_stage_deployments()
        deployments.watch_lost_runs(sweep=not has_live_runs)
        start_times: dict[str, datetime | None] = dict.fromkeys(pools)
        for pool in pools:
            if running_port(study, f"worker-{pool}") is None:
                start_times[pool] = datetime.now(UTC)
                _start_worker(study, pool)
        _wait_for("the workers", lambda: deployments.workers_online(start_times))
    return (
        f"Prefect: {sign_in_url(study, address)}\n"
        f"workers: {', '.join(pools)}; `lineage down` ends all of it"
    )


def start_pages(study: Path) -> str:
    """Start MLflow and Prefect, and return the text with their addresses."""
    with _hold_servers_lock(study):
        mlflow = start_mlflow(study)
        prefect = start_prefect(study)
        _wait_for("MLflow", lambda: is_up(f"{mlflow}/health"))
        _wait_for("the Prefect server", lambda: is_up(f"{prefect}/api/health"))
    return (
        f"MLflow:  {_mlflow_runs_url(mlflow)}\n"
        f"Prefect: {sign_in_url(study, prefect)}\n"
        "`lineage down` ends both"
    )


def stop_all(study: Path) -> None:
    """End everything that was started here, with all child processes."""
    home = servers_folder(study)
    with _hold_servers_lock(study):
        processes.terminate_marked_processes(processes.known_markers(home))
        for path in home.glob("*.json"):
            path.unlink()


def _hold_servers_lock(study: Path) -> contextlib.AbstractContextManager[None]:
    """Let one command at a time start or end servers of the study."""
    message = "waiting for another `lineage up`, `ui` or `down` of this study"
    return hold_lock(servers_folder(study) / "lock", message=message)


def connect_to_server(study: Path) -> None:
    """Set Prefect's settings for the server of this study. Raises InputError if none is up."""
    use_prefect(study)
    if "PREFECT_API_URL" not in os.environ:
        raise InputError("no Prefect server of this study is up; run `lineage up` first")
    check_prefect_access()


def use_prefect(study: Path, settings: Mapping[str, str] | None = None) -> None:
    """Set Prefect's settings in this process, for the server that the user names or for ours.

    A server that the user names never gets our secret. Prefect reads settings when it is imported.
    """
    port = running_port(study, "prefect")
    if port is not None and "PREFECT_API_URL" not in os.environ:
        os.environ.update(_client_settings(study, port))
    for name, value in {**_prefect_settings(study), **(settings or {})}.items():
        os.environ.setdefault(name, value)


def _prefect_settings(study: Path) -> dict[str, str]:
    """Return Prefect's settings for all processes of this study, which has its own home."""
    home = prefect_home(study)
    home.mkdir(parents=True, exist_ok=True)
    return {
        **TELEMETRY_OFF,
        "PREFECT_HOME": str(home),
        "PREFECT_SERVER_EPHEMERAL_STARTUP_TIMEOUT_SECONDS": "120",
        # flows/view.py prints what a user needs; Prefect's own log lines are on its pages.
        "PREFECT_LOGGING_HANDLERS_CONSOLE_LEVEL": "CRITICAL",
        **HEARTBEAT_SETTINGS,
    }


def _client_settings(study: Path, port: int) -> dict[str, str]:
    return {
        "PREFECT_API_URL": f"http://{HOST}:{port}/api",
        "PREFECT_API_AUTH_STRING": read_prefect_secret(study),
    }


def _server_settings(study: Path, port: int) -> dict[str, str]:
    """Return the settings of a server that lets in only those who know the secret."""
    origins = (f"http://{HOST}:{port}", f"http://localhost:{port}")
    return {
        "PREFECT_SERVER_API_AUTH_STRING": read_prefect_secret(study),
        "PREFECT_SERVER_CORS_ALLOWED_ORIGINS": ",".join(origins),
    }


def start_temporary_prefect(study: Path) -> bool:
    """Serve Prefect's API for this process, if no server of this study is up. Return whether.

    Call it before Prefect is imported. One that Prefect starts itself would be ended by Ctrl-C
    before the run can say how it ended.
    """
    if "PREFECT_API_URL" in os.environ:
        return False
    with socket.socket() as probe:
        probe.bind((HOST, 0))
        port = probe.getsockname()[1]
    log_path = servers_folder(study) / "temporary.log"
    log_path.parent.mkdir(parents=True, exist_ok=True)
    with log_path.open("wb") as log:
        server = subprocess.Popen(
            [sys.executable, "-m", "flows.prefect_server", HOST, str(port), str(os.getpid())],
            env={
                **os.environ,
                **_server_settings(study, port),
                "PREFECT_UI_ENABLED": "0",
                "PREFECT__SERVER_EPHEMERAL": "1",
            },
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    os.environ.update(_client_settings(study, port))

    def stop() -> None:
        logging.shutdown()  # sends Prefect's last logs, which would be tried for a minute otherwise
        server.terminate()
        server.wait()

    atexit.register(stop)
    return True


def wait_for_prefect(study: Path) -> None:
    """Wait until the Prefect API of PREFECT_API_URL answers. Raises InputError."""
    address = os.environ["PREFECT_API_URL"]
    _wait_for(f"the Prefect server at {address}", lambda: is_up(f"{address}/health"))
    check_prefect_access()


def start_prefect(study: Path) -> str:
    """Return the address of the Prefect server's pages. Start it if none is up."""
    port = running_port(study, "prefect")
    if port is None:
        port = _choose_port("LINEAGE_PREFECT_PORT", PREFECT_PORT)
        # The pages use Prefect's default port, whatever the server's port is.
        settings = {
            **_server_settings(study, port),
            "PREFECT_SERVER_UI_API_URL": f"http://{HOST}:{port}/api",
            "PREFECT_SERVER_UI_SHOW_PROMOTIONAL_CONTENT": "false",
            LATE_VARIABLE: os.environ.get(LATE_VARIABLE, str(LATE_SECONDS)),
            "PREFECT_UI_URL": f"http://{HOST}:{port}",
        }
        command = ["flows.prefect_server", HOST, str(port)]
        _start_server(study, "prefect", command, environment=settings, port=port)
    return f"http://{HOST}:{port}"


def start_mlflow(study: Path) -> str:
    """Return the address of MLflow's pages."""
    store = resolve_tracking_uri()
    if store.startswith("http"):
        return store
    port = running_port(study, "mlflow")
    if port is None:
        message = check_database()
        if message:
            print(message)
        _create_missing_database()
        port = _choose_port("LINEAGE_MLFLOW_PORT", MLFLOW_PORT)
        command = ["mlflow", "server", "--backend-store-uri", store]
        command += ["--host", HOST, "--port", str(port), "--workers", "1"]
        # Its jobs evaluate chat applications. Waiting for them takes eight processes and 1.9 GB.
        no_jobs = {"MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false"}
        _start_server(study, "mlflow", command, environment=no_jobs, port=port)
    return f"http://{HOST}:{port}"


def _create_missing_database() -> None:
    """Create MLflow's database: its server would do so in place, and a kill would leave a half.

    Raises InputError.
    """
    database = find_database()
    if database is None or database.is_file():
        return
    # Imported here: MLflow takes seconds.
    from lineage.runtime import tracking

    try:
        tracking.connect(get_pipeline_id())
    except tracking.STORE_ERRORS as error:
        raise InputError(f"tracking_uri: {tracking.describe_store_error(error)}") from error


def _start_worker(study: Path, pool: str) -> None:
    command = ["prefect", "worker", "start", "--pool", pool, "--name", pool, "--type", "process"]
    environment: dict[str, str] = {}
    # The scheduled pipeline waits for its stages in the pool `orchestrator`, which is not theirs.
    # That worker has no limit: if it were full, the next night's run would wait, and the
    # deployment's own limit would cancel it.
    if pool != ORCHESTRATOR_POOL:
        num_stages = 1 if pool == "gpu" else default_jobs(threads=1)  # one stage owns the GPU
        command += ["--limit", str(num_stages)]
        environment = {
            "LINEAGE_WORKER_HOME": str(study / STATE_DIR / "workers" / pool),
            "LINEAGE_TRACKING_URI": resolve_tracking_uri(),
            "PREFECT_WORKER_QUERY_SECONDS": "2",
        }
    _start_server(study, f"worker-{pool}", command, environment=environment)


def _server_environment(study: Path) -> dict[str, str]:
    port = running_port(study, "prefect")
    return {
        **_prefect_settings(study),
        **({} if port is None else _client_settings(study, port)),
        processes.MARKER_VARIABLE: str(servers_folder(study)),
        "PREFECT_LOGGING_HANDLERS_CONSOLE_LEVEL": "INFO",
    }


def _start_server(
    study: Path,
    name: str,
    command: list[str],
    *,
    environment: Mapping[str, str] | None = None,
    port: int = 0,
) -> None:
    """Start a Python module as a server, and note its process id and port."""
    home = servers_folder(study)
    home.mkdir(parents=True, exist_ok=True)
    with (home / f"{name}.log").open("ab") as log:
        child = subprocess.Popen(
            [sys.executable, "-m", *command],
            cwd=study,
            env={**os.environ, **_server_environment(study), **(environment or {})},
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    draft = home / f"{name}.tmp"
    draft.write_text(json.dumps({"pid": child.pid, "port": port}))
    draft.replace(home / f"{name}.json")


def _choose_port(variable: str, default: int) -> int:
    """Return the port of `read_port`. Raises InputError if it is taken."""
    port = read_port(variable, default)
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


def _mlflow_runs_url(mlflow: str) -> str:
    """Return the page of the runs, if there are any."""
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
