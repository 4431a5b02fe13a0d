"""What all tests share: one thread, since two on a busy machine wait for each other, and no telemetry."""

import os
import shutil
import signal
import subprocess
from pathlib import Path

import pytest

for name, value in {
    "OMP_NUM_THREADS": "1",
    "MKL_NUM_THREADS": "1",
    "TOKENIZERS_PARALLELISM": "false",
    "DVC_NO_ANALYTICS": "1",
    "DO_NOT_TRACK": "true",
    "MLFLOW_DISABLE_TELEMETRY": "true",
    "PREFECT_SERVER_ANALYTICS_ENABLED": "false",
}.items():
    os.environ[name] = value
# a shell that starts the tests in the background makes them, and the runs that they interrupt, ignore Ctrl-C
signal.signal(signal.SIGINT, signal.default_int_handler)

from tests.checkout import MAKE, WALK, Demo, clone, command, own_project  # noqa: E402  # numpy reads the number of threads when it is imported


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Of several test processes one runs the demo and all that reads it; else a file stays together, with what its tests share."""
    for item in items:
        group = "demo" if "demo" in getattr(item, "fixturenames", ()) else item.path.name
        item.add_marker(pytest.mark.xdist_group(group))


@pytest.fixture(scope="session")
def demo(tmp_path_factory: pytest.TempPathFactory) -> Demo:
    """The shipped demo, run once as its user runs it: a clone, `make demo`, and again."""
    folder = clone(tmp_path_factory.mktemp("demo") / "lineage")
    first = command(folder, *MAKE, "demo")
    status = subprocess.run(["git", "status", "--porcelain"], cwd=folder, capture_output=True, text=True, check=True).stdout
    return Demo(folder, first, command(folder, *MAKE, "demo"), status)


@pytest.fixture(scope="session")
def walked(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A user's own project after a run by the walker; whoever changes it copies it first."""
    folder = own_project(tmp_path_factory.mktemp("walked") / "lineage")
    command(folder, *WALK)
    return folder


@pytest.fixture
def project(walked: Path, tmp_path: Path) -> Path:
    """A copy of it with its cache, and with the user's data beside it."""
    shutil.copytree(walked.parent, tmp_path / "copy", symlinks=True)
    return tmp_path / "copy" / walked.name
