"""A worker elsewhere gets everything through the DVC remote and the Prefect API.

It has a wheel in an environment of its own and a home of its own. The remote is an S3 stand-in.
"""

import json
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from lineage.artifacts import read_json
from tests.helpers.checkout import create_own_study, run_command, stage_outcomes
from tests.helpers.installation import build_wheel, install_wheel
from tests.helpers.private_text import find_leaks, read_texts
from tests.helpers.toy_project import (
    ask_prefect,
    free_port,
    is_up,
    prefect_access,
    read_dvc_lock,
    wait_until,
)
from tests.helpers.toy_servers import run_worker

pytestmark = pytest.mark.slow

BUCKET = "studies"
SECRET = "only-on-each-machine"
CREDENTIALS = {
    "AWS_ACCESS_KEY_ID": "somebody",
    "AWS_SECRET_ACCESS_KEY": SECRET,
    "AWS_EC2_METADATA_DISABLED": "true",
}


@pytest.fixture
def s3(tmp_path: Path) -> Iterator[str]:
    """Serve S3 on loopback, with one bucket, and return the address."""
    address = f"http://127.0.0.1:{free_port()}"
    command = [sys.executable, "-m", "moto.server", "-p", address.rpartition(":")[2]]
    with (tmp_path / "s3.log").open("w") as log:
        server = subprocess.Popen(command, stdout=log, stderr=log)
    try:
        wait_until(lambda: is_up(address))
        request = urllib.request.Request(f"{address}/{BUCKET}", method="PUT")
        urllib.request.urlopen(request, timeout=20).close()
        yield address
    finally:
        server.terminate()
        server.wait()


def test_a_worker_without_git_or_shared_folders_gives_the_same_results(
    s3: str, finished_project: Path, tmp_path: Path
) -> None:
    environment = install_wheel(build_wheel(tmp_path / "wheel"), tmp_path / "elsewhere" / "venv")
    home = tmp_path / "elsewhere" / "home"
    study = create_own_study(tmp_path / "here" / "tickets")
    remote = ("dvc", "remote")
    run_command(study, *remote, "add", "-d", "store", f"s3://{BUCKET}/tickets")
    run_command(study, *remote, "modify", "store", "endpointurl", s3)
    run_command(study, *remote, "modify", "store", "region", "us-east-1")
    port = free_port()
    api = f"http://127.0.0.1:{port}/api"
    try:
        run_command(study, "lineage", "up", "--no-workers", LINEAGE_PREFECT_PORT=str(port))
        python = environment / "bin" / "python"
        variables = {
            "PREFECT_HOME": str(home / "prefect"),
            **prefect_access(study, port),
            "PREFECT_WORKER_QUERY_SECONDS": "2",
            "OMP_NUM_THREADS": "1",
            **CREDENTIALS,
        }
        with run_worker(python, "cpu", home, variables), run_worker(python, "gpu", home, variables):
            printed = run_command(study, "lineage", "run", "--workers", **CREDENTIALS)
        runs = ask_prefect(study, api, "flow_runs/filter")
    finally:
        run_command(study, "lineage", "down")
    outcomes = stage_outcomes(printed)
    assert set(outcomes.values()) == {"ran"}
    assert read_dvc_lock(study) == read_dvc_lock(finished_project)
    results = Path("reports") / "results.csv"
    assert (study / results).read_bytes() == (finished_project / results).read_bytes()
    places = {}
    for path in (study / ".lineage" / "metadata").glob("*.json"):
        places[path.stem] = read_json(path)["cwd"]
    here = {"sources", "corpus@general", "task@mood", "ngram", "report", "publish"}
    for name, place in places.items():
        expected = str(study) if name in here else str(home / ".cache" / "lineage")
        assert place.startswith(expected), (name, place)
    assert set(places) == set(outcomes)
    requests = [run["parameters"]["request"] for run in runs if "request" in run["parameters"]]
    assert len(requests) == len(set(outcomes) - here)
    assert SECRET not in json.dumps(runs), "each machine has credentials of its own"
    assert requests[0]["remote"]["settings"]["endpointurl"] == s3
    assert not find_leaks(home / "prefect", read_texts(study.parent / "mine"))


def test_a_remote_that_refuses_access_ends_the_run_before_anything_runs(
    s3: str, tmp_path: Path
) -> None:
    study = create_own_study(tmp_path / "here" / "tickets")
    run_command(study, "dvc", "remote", "add", "-d", "store", "s3://nobodys/tickets")
    run_command(study, "dvc", "remote", "modify", "store", "endpointurl", s3)
    port = free_port()
    try:
        run_command(study, "lineage", "up", "--no-workers", LINEAGE_PREFECT_PORT=str(port))
        printed = run_command(study, "lineage", "run", "--workers", code=2, **CREDENTIALS)
    finally:
        run_command(study, "lineage", "down")
    assert "s3://nobodys/tickets: the DVC remote cannot be written to: " in printed
    assert "Traceback" not in printed
    assert not (study / "artifacts").exists()
