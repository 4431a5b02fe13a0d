"""What all tests share: one thread, since two on a busy machine wait for each other, and no telemetry."""

import os
import shutil
import signal
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

from tests.checkout import WALK, command, own_project  # noqa: E402  # numpy reads the number of threads when it is imported

# stages that stand alone for minutes, then waits for processes, which the demo's own fill, then what computes long; small files come last
FIRST = ("test_demo.py", "test_workers.py", "test_flows.py", "test_tracking.py", "test_forkserver.py", "test_profiles.py", "test_training.py",
         "test_readme.py", "test_hub_downloads.py", "test_sources.py", "test_benchmarks_gpu.py", "test_transfer.py", "test_families.py",
         "test_microworld.py", "test_report.py", "test_recipes.py", "test_pairs.py", "test_tags_and_numbers.py", "test_word_kinds.py",
         "test_windows.py", "test_bad_input.py")  # fmt: skip


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The files of `FIRST` go first."""
    items.sort(
        key=lambda item: FIRST.index(item.path.name) if item.path.name in FIRST else len(FIRST)
    )


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


@pytest.fixture
def never_trained(monkeypatch: pytest.MonkeyPatch) -> None:
    """Checkpoints without weights stand for trained ones."""
    from lineage.models.checkpoint import Checkpoint  # tests of processes do without torch

    build = Checkpoint.build
    monkeypatch.setattr(
        Checkpoint,
        "build",
        lambda self, device, load_weights=True, body_dropout=None: build(
            self, device, load_weights=False
        ),
    )
