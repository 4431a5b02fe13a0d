"""The file of MLflow's database: find out whether it can be used, and set a broken one aside.

MLflow creates its tables in place, step by step. A process that is killed meanwhile leaves a file
that MLflow can neither use nor complete. Nothing here imports MLflow, which takes seconds.
"""

import contextlib
import importlib.util
import shutil
import sqlite3
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from lineage.runtime.locks import hold_lock
from lineage.runtime.settings import SQLITE_PREFIX, STATE_DIR, resolve_tracking_uri

# Files that SQLite keeps next to a database. They would be applied to another one of its name.
COMPANIONS = ("-journal", "-wal", "-shm")
DAMAGE_CODES = (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB)
QUIET_SECONDS = 3.0  # without a change, after which a database is not being created any more
POLL_SECONDS = 0.2
LOCK_SECONDS = 4.0  # that SQLite waits for another process: less than a stage waits for MLflow


def find_database() -> Path | None:
    """Return the file of the sqlite store; None if the store is something else."""
    uri = resolve_tracking_uri()
    return Path(uri.removeprefix(SQLITE_PREFIX)) if uri.startswith(SQLITE_PREFIX) else None


def lock_store() -> contextlib.AbstractContextManager[None]:
    """Let only one of the processes that share a store write, workers included."""
    database = find_database()
    return hold_lock(Path(f"{database}.lock") if database else STATE_DIR / "tracking.lock")


def check_unlocked(database: Path) -> None:
    """Raise TimeoutError if another process keeps the database locked.

    MLflow itself would wait for that process several times.
    """
    if not database.is_file():
        return
    try:
        with contextlib.closing(_connect(database)) as connection:
            connection.execute("BEGIN IMMEDIATE")
    except sqlite3.Error as error:
        if getattr(error, "sqlite_errorcode", None) == sqlite3.SQLITE_BUSY:
            raise TimeoutError(f"another process has locked it for {LOCK_SECONDS:.0f} s") from None


def check_database() -> str:
    """Set the database aside if it is broken. Return one line that says so, or an empty text.

    A folder that cannot be written to is left to the stages, which go on without MLflow.
    """
    database = find_database()
    if database is None or not database.is_file():
        return ""
    with contextlib.suppress(OSError), lock_store():
        return set_aside_if_broken(database, try_upgrade=True)
    return ""


def set_aside_if_broken(database: Path, *, try_upgrade: bool = False) -> str:
    """Rename a database that cannot be used, and return one line that says so. Hold the lock."""
    damage = _find_damage(database, try_upgrade=try_upgrade)
    while damage and _is_being_written(database):
        time.sleep(POLL_SECONDS)
        damage = _find_damage(database, try_upgrade=try_upgrade)
    if not damage:
        return ""
    number = 1
    while (aside := database.with_name(f"{database.name}.broken-{number}")).exists():
        number += 1
    # First the companions: left behind, they would spoil the next database.
    for suffix in COMPANIONS:
        with contextlib.suppress(FileNotFoundError):
            Path(f"{database}{suffix}").rename(f"{aside}{suffix}")
    database.rename(aside)
    return (
        f"tracking: {database} cannot be used: {damage}; it is now {aside.name}, and a new one is "
        "begun"
    )


def _is_being_written(database: Path) -> bool:
    """Return whether a file has just changed: a server of MLflow may be creating the database."""
    changed = 0.0
    for suffix in ("", *COMPANIONS):
        with contextlib.suppress(FileNotFoundError):
            changed = max(changed, Path(f"{database}{suffix}").stat().st_mtime)
    return abs(time.time() - changed) < QUIET_SECONDS


def remove_companions(database: Path) -> None:
    """Remove the files that SQLite has kept of a database which is gone."""
    for suffix in COMPANIONS:
        Path(f"{database}{suffix}").unlink(missing_ok=True)


def _find_damage(database: Path, *, try_upgrade: bool) -> str:
    """Return why a database cannot be used, or an empty text.

    That another process has locked it, or that it was made by another version of MLflow, is no
    damage: MLflow itself says what to do.
    """
    if not database.is_file():
        return ""
    try:
        with contextlib.closing(_connect(database)) as connection:
            (answer,) = connection.execute("PRAGMA quick_check(1)").fetchone()
            if answer != "ok":
                return "it is damaged"
            revision = _read_revision(connection)
            has_runs = bool(revision) and bool(
                connection.execute("SELECT 1 FROM runs LIMIT 1").fetchone()
            )
    except sqlite3.Error as error:
        is_damage = getattr(error, "sqlite_errorcode", None) in DAMAGE_CODES
        return f"it is damaged ({error})" if is_damage else ""
    if not revision:
        return "its creation was not completed"
    if not _has_later_revision(revision):  # the latest one, or that of a later version of MLflow
        return ""
    if not has_runs:
        return "its creation was not completed"
    if try_upgrade and not _can_be_upgraded(database):
        return "a change of its tables was not completed"
    return ""


def _connect(database: Path) -> sqlite3.Connection:
    """Open a database for writing, so that SQLite takes back what a killed process has begun."""
    return sqlite3.connect(f"{database.absolute().as_uri()}?mode=rw", LOCK_SECONDS, uri=True)


def _read_revision(connection: sqlite3.Connection) -> str:
    """Return the version of the tables that MLflow has noted; empty if it has noted none."""
    query = "SELECT 1 FROM sqlite_master WHERE type = 'table' AND name = 'alembic_version'"
    if connection.execute(query).fetchone() is None:
        return ""
    row = connection.execute("SELECT version_num FROM alembic_version").fetchone()
    return str(row[0]) if row else ""


def _has_later_revision(revision: str) -> bool:
    """Return whether this version of MLflow changes tables of that revision.

    It is read from the text of its migrations: Alembic would import them, and MLflow with them.
    """
    spec = importlib.util.find_spec("mlflow")
    assert spec is not None and spec.submodule_search_locations, "a dependency of this package"
    folder = Path(spec.submodule_search_locations[0]) / "store" / "db_migrations" / "versions"
    line = f'\ndown_revision = "{revision}"\n'
    return any(line in path.read_text(encoding="utf-8") for path in folder.glob("*.py"))


def _can_be_upgraded(database: Path) -> bool:
    """Tell whether MLflow can bring a copy of the database up to date."""
    with tempfile.TemporaryDirectory(dir=database.parent, prefix=".mlflow-") as folder:
        copy = Path(folder) / database.name
        shutil.copyfile(database, copy)
        answer = subprocess.run(
            [sys.executable, "-m", "mlflow", "db", "upgrade", f"{SQLITE_PREFIX}{copy}"],
            capture_output=True,
            stdin=subprocess.DEVNULL,
            check=False,
        )
        return answer.returncode == 0
