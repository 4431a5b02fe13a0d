"""The study's servers on this machine, MLflow and Prefect: addresses, pools, Prefect's secret."""

import base64
import contextlib
import os
import secrets
import urllib.error
import urllib.request
from pathlib import Path

from flows import processes
from lineage.errors import InputError
from lineage.runtime.settings import STATE_DIR, resolve_tracking_uri

HOST = "127.0.0.1"
PREFECT_PORT = 4200  # unless LINEAGE_PREFECT_PORT says otherwise
MLFLOW_PORT = 5050  # unless LINEAGE_MLFLOW_PORT says otherwise
ORCHESTRATOR_POOL = "orchestrator"  # in which scheduled runs wait for their stages
POOLS = (ORCHESTRATOR_POOL, "cpu", "gpu")
LOST_SECONDS = 90  # without a heartbeat, after which a run counts as crashed
# Each run sends a sign of life this often. The default of Prefect is longer than LOST_SECONDS.
HEARTBEAT_SETTINGS = {"PREFECT_FLOWS_HEARTBEAT_FREQUENCY": "30"}
SIGN_IN_PATH = "/sign-in"  # of the page that signs a browser in
SECRET_USER = "lineage"  # basic authentication has a user name, which nothing checks
SECRET_BYTES = 24  # as random as a key of 192 bits


def servers_folder(study: Path) -> Path:
    """Return the folder of the servers' process ids, ports and logs."""
    return study / STATE_DIR / "servers"


def running_port(study: Path, name: str) -> int | None:
    """Return the port of a server that was started here and is alive; 0 for a worker."""
    home = servers_folder(study)
    # A file may be cut short by a power failure: the server that it named has ended too.
    entry = processes.read_server_entry(home / f"{name}.json")
    if entry is None:
        return None
    pid, port = entry
    return port if processes.find_marked_processes([str(home)], pid=pid) else None


def prefect_home(study: Path) -> Path:
    """Return the folder of the study's Prefect server: its settings, its database, its secret."""
    return study / STATE_DIR / "prefect"


def read_prefect_secret(study: Path) -> str:
    """Return the secret of the Prefect servers of this study, made if there is none.

    Only the user can read its file. Raises InputError if the file is damaged.
    """
    path = prefect_home(study) / "secret"
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        draft = path.with_name(f"secret-{os.getpid()}.tmp")
        draft.touch(mode=0o600)
        draft.write_text(f"{SECRET_USER}:{secrets.token_urlsafe(SECRET_BYTES)}\n")
        # Another command may have made one meanwhile, and a server may use it already.
        with contextlib.suppress(FileExistsError):
            path.hardlink_to(draft)
        draft.unlink()
    secret = path.read_text(errors="replace").strip()
    if len(secret) < SECRET_BYTES or not secret.startswith(f"{SECRET_USER}:"):
        raise InputError(
            f"{path}: the secret of the Prefect server is damaged; run `lineage down`, and remove "
            "this file: the next command makes another"
        )
    return secret


def sign_in_url(study: Path, prefect: str) -> str:
    """Return the link that signs a browser in to the Prefect server at this address."""
    return f"{prefect}{SIGN_IN_PATH}#{read_prefect_secret(study)}"


def is_up(address: str, *, timeout_seconds: float = 2.0) -> bool:
    """Return whether a server answers at this address."""
    try:
        with urllib.request.urlopen(address, timeout=timeout_seconds) as answer:
            return bool(answer.status == 200)
    except OSError:
        return False


def prefect_is_up() -> bool:
    """Return whether the Prefect server of PREFECT_API_URL answers."""
    # A busy server may need seconds for an answer.
    return is_up(f"{os.environ['PREFECT_API_URL']}/health", timeout_seconds=5.0)


def check_prefect_access() -> None:
    """Raise InputError if the Prefect server of PREFECT_API_URL does not let this process in.

    Other errors, and a server that is away, are left to the caller.
    """
    address = os.environ["PREFECT_API_URL"]
    request = urllib.request.Request(f"{address}/version")
    secret = os.environ.get("PREFECT_API_AUTH_STRING", "")
    if secret:
        request.add_header("Authorization", f"Basic {base64.b64encode(secret.encode()).decode()}")
    elif "PREFECT_API_KEY" in os.environ:
        request.add_header("Authorization", f"Bearer {os.environ['PREFECT_API_KEY']}")
    try:
        urllib.request.urlopen(request, timeout=5.0).close()
    except urllib.error.HTTPError as error:
        if error.code in (401, 403):
            raise InputError(
                f"the Prefect server at {address} does not let this process in; set "
                "PREFECT_API_AUTH_STRING to its secret, or PREFECT_API_KEY"
            ) from None
    except OSError:
        pass


def mlflow_run_url(study: Path, experiment_id: str, run_id: str) -> str:
    """Return the page of a run in MLflow: where it is served now, or where it would be."""
    store = resolve_tracking_uri()
    if not store.startswith("http"):
        port = running_port(study, "mlflow") or read_port("LINEAGE_MLFLOW_PORT", MLFLOW_PORT)
        store = f"http://{HOST}:{port}"
    run = f"experiments/{experiment_id}/runs/{run_id}"
    # Without the last part MLflow shows its pages for chat applications.
    return f"{store.rstrip('/')}/#/{run}?workflowType=machine_learning"


def read_port(variable: str, default: int) -> int:
    """Return the port that the environment names, or the default. Raises InputError."""
    text = os.environ.get(variable, str(default))
    if not text.isdecimal() or not 0 < int(text) < 65536:
        raise InputError(f"{variable}: '{text}' is not a port; give a number from 1 to 65535")
    return int(text)
