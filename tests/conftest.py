"""Settings and fixtures that all tests share: one thread, no telemetry, a finished project.

Tests use one thread because several on a busy machine wait for each other.
"""

import functools
import os
import shutil
import signal
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from filelock import FileLock

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
# Flushing a file to a disk takes milliseconds, and the tests flush thousands: temporary files are
# in memory, where it has room for all of them.
MEMORY = Path("/dev/shm")
MIN_FREE_BYTES = 4 * 2**30
if "TMPDIR" not in os.environ and MEMORY.is_dir():
    memory = os.statvfs(MEMORY)
    if memory.f_bavail * memory.f_frsize > MIN_FREE_BYTES and not memory.f_flag & os.ST_NOEXEC:
        os.environ["TMPDIR"] = str(MEMORY)
        tempfile.tempdir = None  # pytest has asked for it before
# A shell that starts the tests in the background makes them ignore Ctrl-C, and the runs that
# they interrupt too.
signal.signal(signal.SIGINT, signal.default_int_handler)

# This import follows the settings, because numpy reads the number of threads when it is imported.
from tests.helpers.checkout import RUN_STUDY, create_own_study, run_command  # noqa: E402

# The files that take longest, so that no process is left with one of them at the end: those that
# wait for processes while the demo's own compute, then those that run single stages or train.
FIRST = (
    *("test_demo.py", "test_workers.py", "test_sender.py"),
    *("test_study.py", "test_flows.py", "test_forecast.py", "test_training.py"),
    *("test_add_a_method.py", "test_text_curves.py", "test_sweep.py", "test_versions.py"),
    *("test_continued_pretraining.py", "test_tracking.py", "test_mlflow_store.py"),
    *("test_server.py", "test_bundle.py", "test_repository.py", "test_trials.py"),
    *("test_trial_races.py", "test_target_leaks.py", "test_modern_transformer.py"),
    *("test_pairs_and_choices.py", "test_committed_reports.py", "test_statistics.py"),
    *("test_tasks.py", "test_bad_input.py"),
)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Run the files of `FIRST` first."""
    items.sort(
        key=lambda item: FIRST.index(item.path.name) if item.path.name in FIRST else len(FIRST)
    )


def make_once(factory: pytest.TempPathFactory, name: str, make: Callable[[Path], Any]) -> Path:
    """Return a folder that the first of several test processes makes, and no test changes."""
    base = factory.getbasetemp()
    shared = base.parent if "PYTEST_XDIST_WORKER" in os.environ else base
    made = shared / name
    with FileLock(f"{made}.lock"):
        if not made.exists():
            make(made)
    return made


@pytest.fixture(scope="session")
def finished_project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A user's own study after a run; a test that changes it copies it first.

    Each test process has its own copy.
    """

    def make(folder: Path) -> None:
        run_command(create_own_study(folder / "study"), *RUN_STUDY)

    made = make_once(tmp_path_factory, "finished", make)
    copy = tmp_path_factory.mktemp("finished") / "copy"
    shutil.copytree(made, copy, symlinks=True)
    return copy / "study"


@pytest.fixture(scope="session")
def finished_toy_project(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """A project of toy stages after a run; a test that changes it copies it first."""
    # Most tests do not need toy stages, so their helper is imported here.
    from tests.helpers.toy_project import Project, make_project

    def make(folder: Path) -> None:
        result = make_project(folder).run("run", "--no-prefect", "--jobs", "2")
        assert result.returncode == 0, result.stdout + result.stderr

    return Project(make_once(tmp_path_factory, "ran", make) / "project")


@pytest.fixture
def project(finished_project: Path, tmp_path: Path) -> Path:
    """A copy of the finished study with its cache and with the user's data next to it."""
    shutil.copytree(finished_project.parent, tmp_path / "copy", symlinks=True)
    return tmp_path / "copy" / finished_project.name


@pytest.fixture
def run_stage(monkeypatch: pytest.MonkeyPatch) -> Callable[..., tuple[int, str]]:
    """Return a function that runs a stage in a folder and returns its exit code and stderr."""
    # Tests of processes do not need the library, so it is imported here, and below.
    from tests.helpers.user_project import run_stage

    return functools.partial(run_stage, monkeypatch=monkeypatch)


@pytest.fixture
def run_stages(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Return a function that runs stages in a folder, each of which must succeed."""
    from tests.helpers.user_project import run_stages

    return functools.partial(run_stages, monkeypatch=monkeypatch)


@pytest.fixture
def without_time_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let stages of this process wait until MLflow has everything, on a busy machine too."""
    monkeypatch.setattr("lineage.runtime.recorder.MAX_WAIT_SECONDS", 120.0)


@pytest.fixture(scope="session")
def empty_mlflow_database(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a database of MLflow without runs, to copy: creating one takes seconds."""
    from mlflow import MlflowClient

    def make(folder: Path) -> None:
        folder.mkdir()
        MlflowClient(f"sqlite:///{folder}/mlflow.db").search_experiments()

    return make_once(tmp_path_factory, "mlflow", make) / "mlflow.db"


@pytest.fixture
def without_weights(monkeypatch: pytest.MonkeyPatch) -> None:
    """Build every checkpoint with initial weights, as if they were trained ones."""
    # Tests of processes do not need torch, so it is imported here.
    from lineage.networks.checkpoint import Checkpoint

    build = Checkpoint.build
    monkeypatch.setattr(
        Checkpoint,
        "build",
        lambda self, device, load_weights=True, body_dropout=None: build(
            self, device, load_weights=False
        ),
    )


@pytest.fixture(scope="session")
def evaluated_texts(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Return an evaluated task of texts with three labels, which no test changes."""
    # This import takes seconds, and few tests need it.
    from tests.helpers.kept_systems import evaluate_case

    return evaluate_case("texts", tmp_path_factory.mktemp("evaluated"))


@pytest.fixture(scope="session")
def packaged_texts(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Return TF-IDF for this task as an exported folder and as an MLflow model."""
    from tests.helpers.kept_systems import package_case

    return package_case("texts", tmp_path_factory.mktemp("packaged"))


@pytest.fixture(scope="session")
def study_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the results of a synthetic study, which no test changes."""
    # Tests of processes do not need the library, so it is imported here, and below.
    from tests.helpers.study_rows import Study

    return Study(tmp_path_factory.mktemp("study")).write()


@pytest.fixture(scope="session")
def study_results(study_folder: Path) -> Any:
    """Return the table and the analysis of this study."""
    from lineage.analysis.build import build_results
    from lineage.config.params import ReportParams
    from tests.helpers.study_rows import GRID

    return build_results(study_folder, GRID, ReportParams())


@pytest.fixture(scope="session")
def analysis(study_results: Any) -> Any:
    """Return the analysis of this study."""
    return study_results[1]


@pytest.fixture(scope="session")
def task() -> Any:
    """Return a small task whose label is the first word, which no test changes."""
    from tests.helpers.first_word import first_word_task

    return first_word_task()
