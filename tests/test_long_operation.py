"""Many runs leave nothing behind that grows, and two studies can share a cache at the same time."""

import json
import shutil
import tempfile
from pathlib import Path

import psutil
import pytest

from flows.plan import set_cache_folder
from tests.helpers.toy_project import Project, make_project, project_processes, read_dvc_lock
from tests.helpers.toy_servers import set_models, start_servers

NUM_RUNS = 10
SETTLED_RUNS = 2  # runs after which each process has opened what it needs
MAX_GROWTH_BYTES = 400_000  # of disk for each run: a record of it, a log, and entries of a database


def server_processes(project: Project) -> dict[str, psutil.Process]:
    """Return the processes that `lineage up` started, by name."""
    found = {}
    for path in (project.root / ".lineage" / "servers").glob("*.json"):
        record = json.loads(path.read_text())
        if "pid" in record:
            found[path.stem] = psutil.Process(int(record["pid"]))
    return found


def disk_bytes(folder: Path) -> int:
    """Return the bytes of all files of a folder."""
    return sum(path.lstat().st_size for path in folder.rglob("*") if path.is_file())


@pytest.mark.slow
def test_ten_runs_leave_no_open_files_and_little_on_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    project = make_project(tmp_path)
    temporary = Path(tempfile.mkdtemp())  # not below tmp_path: addresses of sockets are short
    monkeypatch.setenv("TMPDIR", str(temporary))
    descriptors = []
    disk = []
    try:
        start_servers(project)
        for number in range(NUM_RUNS):
            set_models(project, value=number)
            completed = project.run("run", "--workers")
            assert completed.returncode == 0, completed.stdout + completed.stderr
            processes = server_processes(project)
            descriptors.append({name: one.num_fds() for name, one in processes.items()})
            disk.append(disk_bytes(project.root))
            print(number, descriptors[-1], disk[-1])
    finally:
        project.run("down")
    assert len(descriptors[0]) >= 4, "a server, and workers of three pools"
    for name, count in descriptors[-1].items():
        assert count <= descriptors[SETTLED_RUNS][name] + 3, f"{name} keeps files open"
    growth = (disk[-1] - disk[SETTLED_RUNS]) / (NUM_RUNS - 1 - SETTLED_RUNS)
    assert growth < MAX_GROWTH_BYTES
    assert [path.name for path in temporary.rglob("*") if path.is_file()] == []
    shutil.rmtree(temporary)
    assert project_processes(project) == []


@pytest.mark.slow
def test_two_studies_share_a_cache_at_the_same_time(tmp_path: Path) -> None:
    projects = []
    for name in ("first", "second"):
        (tmp_path / name).mkdir()
        project = make_project(tmp_path / name)
        project.set_params(models__a__make={"value": 1, "seconds": 1})
        set_cache_folder(project.root, tmp_path / "cache")
        projects.append(project)
    runs = [project.start("run", "--no-prefect") for project in projects]
    outputs = [run.communicate(timeout=240)[0] for run in runs]
    assert [run.returncode for run in runs] == [0, 0], "\n".join(outputs)
    first, second = (project.root for project in projects)
    assert read_dvc_lock(first) == read_dvc_lock(second)
    assert (first / "reports/results.csv").read_bytes() == (
        second / "reports/results.csv"
    ).read_bytes()
    # All outputs are in the cache: a third study computes only what always runs.
    (tmp_path / "third").mkdir()
    third = make_project(tmp_path / "third")
    third.set_params(models__a__make={"value": 1, "seconds": 1})
    set_cache_folder(third.root, tmp_path / "cache")
    completed = third.run("run", "--no-prefect")
    assert completed.returncode == 0, completed.stdout + completed.stderr
    assert third.stages_run() == ["publish", "sources"]
