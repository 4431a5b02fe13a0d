"""MLflow's database is complete or not there, and a broken one is set aside and kept."""

import random
import shutil
import sqlite3
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from mlflow import MlflowClient

from flows import servers
from lineage.runtime import tracking
from lineage.runtime.database import check_database, set_aside_if_broken
from lineage.runtime.settings import EXPERIMENT_NAME
from tests.helpers.toy_project import free_port

OPEN_RUN = """
import mlflow.store.tracking.sqlalchemy_store
from lineage.runtime import tracking
print("ready", flush=True)
print(tracking.open_parent_run("p").run_id, flush=True)
"""
KILLS = 6
CREATION_SECONDS = 4.0


@pytest.fixture(scope="module")
def finished_store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A database with a run."""
    database = tmp_path_factory.mktemp("store") / "mlflow.db"
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("LINEAGE_TRACKING_URI", f"sqlite:///{database}")
        assert tracking.open_parent_run("p").run_id
    return database


@pytest.fixture
def database(finished_store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of the database, in a study that is the current folder."""
    monkeypatch.delenv("LINEAGE_TRACKING_URI", raising=False)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("lineage.runtime.database.QUIET_SECONDS", 0.0)
    shutil.copyfile(finished_store, tmp_path / "mlflow.db")
    return tmp_path / "mlflow.db"


def open_run(folder: Path) -> None:
    """Open the parent run as a stage does, in a process of its own."""
    answer = subprocess.run(
        [sys.executable, "-c", OPEN_RUN], cwd=folder, capture_output=True, text=True, check=True
    )
    assert (len(answer.stdout.split()), answer.stderr) == (2, "")


def spoil_empty(database: Path) -> None:
    database.write_bytes(b"")


def spoil_truncated(database: Path) -> None:
    database.write_bytes(database.read_bytes()[:300_000])


def spoil_header(database: Path) -> None:
    database.write_bytes(b"not a database" + database.read_bytes()[14:])


def spoil_creation(database: Path) -> None:
    """Leave what a kill leaves: some tables, the version of an earlier step, and no run."""
    with sqlite3.connect(database) as connection:
        connection.execute("DELETE FROM latest_metrics")
        connection.execute("DELETE FROM tags")
        connection.execute("DELETE FROM runs")
        connection.execute("DROP TABLE trace_info")
        connection.execute("UPDATE alembic_version SET version_num = 'acf3f17fdcc7'")


def spoil_migration(database: Path) -> None:
    """Leave a database with a run whose tables are newer than the version that it notes."""
    with sqlite3.connect(database) as connection:
        connection.execute("UPDATE alembic_version SET version_num = 'acf3f17fdcc7'")


@pytest.mark.parametrize("spoil", [spoil_empty, spoil_truncated, spoil_header, spoil_creation])
def test_a_broken_database_is_set_aside_with_one_line(
    spoil: Callable[[Path], None], database: Path
) -> None:
    spoil(database)
    Path(f"{database}-journal").write_text("of the broken one")
    content = database.read_bytes()
    message = set_aside_if_broken(database)
    assert "\n" not in message and "it is now mlflow.db.broken-1" in message
    if spoil is not spoil_creation:  # SQLite has taken the journal into account
        assert Path(f"{database}.broken-1").read_bytes() == content
    assert not Path(f"{database}-journal").exists()


def test_after_a_broken_database_a_new_one_is_begun(
    database: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    spoil_creation(database)
    assert tracking.open_parent_run("p").run_id
    assert capsys.readouterr().err.count("it is now mlflow.db.broken-1") == 1
    assert tracking.open_parent_run("p").run_id
    assert capsys.readouterr().err == "", "the new one stays"


def test_a_change_of_the_tables_that_was_cut_short_is_found_before_a_run(database: Path) -> None:
    spoil_migration(database)
    message = check_database()
    assert "a change of its tables was not completed; it is now mlflow.db.broken-1" in message
    assert check_database() == "", "there is no database any more"


def test_a_database_that_can_be_used_stays(database: Path) -> None:
    assert check_database() == ""
    with sqlite3.connect(database) as connection:  # a later version of MLflow made it
        connection.execute("UPDATE alembic_version SET version_num = 'ffffffffffff'")
    assert check_database() == "" and database.is_file()


def test_a_database_that_another_process_has_locked_stays(
    database: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("lineage.runtime.database.LOCK_SECONDS", 0.1)
    with sqlite3.connect(database) as connection:
        connection.execute("BEGIN EXCLUSIVE")
        assert check_database() == ""
    assert database.is_file()


def test_damage_within_the_database_is_found(database: Path) -> None:
    pages = bytearray(database.read_bytes())
    pages[8192:12288] = b"\xff" * 4096
    database.write_bytes(pages)
    assert "it is damaged" in check_database()


def test_the_note_of_the_experiment_is_there_from_the_beginning(database: Path) -> None:
    client = MlflowClient(f"sqlite:///{database}")
    experiment = client.get_experiment_by_name(EXPERIMENT_NAME)
    assert experiment.tags[tracking.NOTE_TAG] == tracking.EXPERIMENT_NOTE


def test_a_database_that_is_just_being_created_is_waited_for(
    database: Path, finished_store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A server of MLflow creates it in place."""
    monkeypatch.setattr("lineage.runtime.database.QUIET_SECONDS", 3.0)
    spoil_creation(database)
    complete = threading.Timer(1.0, shutil.copyfile, (finished_store, database))
    complete.start()
    assert check_database() == ""
    complete.join()


def test_a_server_begins_with_a_complete_database(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It would create one in place, and a kill in that second would leave a half."""
    experiments = []

    def note_experiment(*_: object, **__: object) -> None:
        client = MlflowClient(f"sqlite:///{tmp_path}/mlflow.db")
        experiments.append(client.get_experiment_by_name(EXPERIMENT_NAME))

    monkeypatch.delenv("LINEAGE_TRACKING_URI", raising=False)
    monkeypatch.setenv("LINEAGE_MLFLOW_PORT", str(free_port()))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(servers, "_start_server", note_experiment)
    servers.start_mlflow(tmp_path)
    (experiment,) = experiments
    assert experiment.tags[tracking.NOTE_TAG] == tracking.EXPERIMENT_NOTE


@pytest.mark.slow
def test_a_process_that_is_killed_while_it_creates_the_database_leaves_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Kill at random moments, and open the store afterwards."""
    monkeypatch.delenv("LINEAGE_TRACKING_URI", raising=False)
    moments = random.Random(7)
    for number in range(KILLS):
        folder = tmp_path / str(number)
        folder.mkdir()
        with subprocess.Popen(
            [sys.executable, "-c", OPEN_RUN], cwd=folder, stdout=subprocess.PIPE
        ) as child:
            assert child.stdout is not None and child.stdout.readline()
            time.sleep(moments.random() * CREATION_SECONDS)
            child.kill()
        open_run(folder)
        client = MlflowClient(f"sqlite:///{folder}/mlflow.db")
        assert client.get_experiment_by_name(EXPERIMENT_NAME) is not None
        names = {path.name for path in folder.iterdir()}
        assert names <= {"mlflow.db", "mlflow.db.lock", "mlruns"}, names
