"""A worker that is started as docs/how-to/workers.md says loses no work.

It has the documented variables and no others. Stages and servers are real processes.
"""

import contextlib
import hashlib
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from prefect.workers.process import ProcessWorker

from lineage.artifacts import read_table
from tests.helpers.checkout import ROOT, create_own_study, run_command, set_params, stage_outcomes
from tests.helpers.toy_project import (
    Project,
    ask_prefect,
    free_port,
    make_project,
    prefect_access,
    read_dvc_lock,
    wait_until,
)
from tests.helpers.toy_servers import run_worker

pytestmark = pytest.mark.slow

SLOW_START = "sh -c 'sleep 300; exec prefect flow-run execute'"


@contextlib.contextmanager
def run_server(project: Project) -> Iterator[int]:
    """Run the Prefect server of a project without workers while the block lasts."""
    port = free_port()
    try:
        completed = project.run("up", "--no-workers", LINEAGE_PREFECT_PORT=str(port))
        assert completed.returncode == 0, completed.stdout + completed.stderr
        yield port
    finally:
        project.run("down")


def run_documented_worker(
    study: Path, port: int, pool: str, home: Path, **more: str
) -> contextlib.AbstractContextManager["subprocess.Popen[bytes]"]:
    """Run a worker with the documented variables while the block lasts."""
    variables = {
        **prefect_access(study, port),
        "DO_NOT_TRACK": "true",
        "LINEAGE_WORKER_HOME": str(home / "scratch"),
        **more,
    }
    return run_worker(Path(sys.executable), pool, home, variables)


@contextlib.contextmanager
def run_toy_workers(project: Project, port: int, home: Path) -> Iterator[None]:
    """Run a worker for each pool of a toy project, whose code is not installed."""
    toy = {"PYTHONPATH": str(project.root), "TOY_TRACE": str(project.trace)}
    with (
        run_documented_worker(project.root, port, "cpu", home, **toy),
        run_documented_worker(project.root, port, "gpu", home, **toy),
    ):
        yield


def make_long_project(folder: Path, **make: object) -> Project:
    """Create a project with one model, whose stages may take ten minutes."""
    project = make_project(folder)
    graph = project.root / "dvc.yaml"
    graph.write_text(graph.read_text().replace("timeout_s: 60", "timeout_s: 600"))
    project.set_params(grid__models=["a"], models__a__make=make)
    return project


def finish(project: Project, *arguments: str) -> tuple[int, str]:
    """Run a command that takes minutes, and return its exit code and what it printed."""
    process = project.start(*arguments)
    printed, _ = process.communicate(timeout=900)
    return process.returncode, printed


def test_a_stage_of_200_seconds_runs_once_and_succeeds(tmp_path: Path) -> None:
    project = make_long_project(tmp_path, seconds=200)
    with run_server(project) as port, run_toy_workers(project, port, tmp_path / "elsewhere"):
        exit_status, printed = finish(project, "run", "--workers")
    assert exit_status == 0, printed
    assert project.stages_run().count("make@a") == 1
    assert "no sign of life" not in printed


def test_a_process_that_starts_after_five_minutes_runs_its_stage(tmp_path: Path) -> None:
    project = make_long_project(tmp_path, value=3)
    template = ProcessWorker.get_default_base_job_template()
    template["variables"]["properties"]["command"]["default"] = SLOW_START
    with run_server(project) as port, run_toy_workers(project, port, tmp_path / "elsewhere"):
        api = f"http://127.0.0.1:{port}/api"
        ask_prefect(
            project.root, api, "work_pools/cpu", {"base_job_template": template}, method="PATCH"
        )
        exit_status, printed = finish(project, "run", "--workers")
    assert exit_status == 0, printed
    assert project.stages_run().count("make@a") == 1
    reports = [line for line in printed.splitlines() if " waits: " in line]
    taken = "make@a waits: a worker of the pool cpu has taken it, and not begun it yet"
    assert (
        reports
        == [f"{taken} ({minute} of at most 15 min)" for minute in (1, 2, 3, 4, 5)][: len(reports)]
    )
    assert len(reports) >= 4


def test_a_result_that_was_pushed_before_the_worker_was_lost_is_taken(tmp_path: Path) -> None:
    project = make_long_project(tmp_path, value=8)
    code = project.root / "flows" / "workers.py"
    report = "    _send_worker_report(report)\n"
    text = code.read_text()
    assert report in text
    # The process of the run is killed between the push and its report.
    code.write_text(text.replace(report, f"    os.kill(os.getpid(), 9)\n{report}"))
    with run_server(project) as port, run_toy_workers(project, port, tmp_path / "elsewhere"):
        exit_status, printed = finish(project, "run", "--workers")
        runs = ask_prefect(project.root, f"http://127.0.0.1:{port}/api", "flow_runs/filter")
    assert exit_status == 0, printed
    states = {run["name"]: run["state_type"] for run in runs}
    assert (states["make@a"], states["train@a"]) == ("CRASHED", "CRASHED")
    assert len(runs) == 3, "no stage was requested twice"
    assert project.stages_run().count("make@a") == 1
    assert "a worker tries it again" not in printed


def test_another_worker_goes_on_where_a_lost_one_was(tmp_path: Path) -> None:
    """Its folder is gone too, so only the DVC remote knows how far it was."""
    alone = make_long_study(tmp_path / "alone" / "study")
    run_command(alone, "lineage", "run", "--no-prefect")
    total = max(read_table(alone / "artifacts/results/curves/pretrain-gpt-0.parquet")["step"])
    study = make_long_study(tmp_path / "here" / "study")
    project = Project(study)
    lost = tmp_path / "lost"
    other = tmp_path / "other"
    code = {"PYTHONPATH": str(ROOT)}
    often = code | {"LINEAGE_RESUME_SECONDS": "2", "LINEAGE_CHECKPOINT_SECONDS": "1"}
    with run_server(project) as port:
        process = project.start("run", "--workers", **code)
        with run_documented_worker(study, port, "cpu", other / "cpu", **code):
            with run_documented_worker(study, port, "gpu", lost, **often) as worker:
                wait_until(lambda: newest_step(lost) > total / 2, seconds=300)
                kill_all(worker.pid)
                step_done = newest_step(lost)
                shutil.rmtree(lost)
            with run_documented_worker(study, port, "gpu", other / "gpu", **often):
                wait_until(lambda: newest_step(other / "gpu") > 0, seconds=300)
                step_resumed = newest_step(other / "gpu")
                printed, _ = process.communicate(timeout=900)
    assert process.returncode == 0, printed
    assert "a worker tries it again (2 of 3)" in printed
    assert total / 4 < step_resumed <= step_done < total
    assert (step_done - step_resumed) / total < 0.2, (step_resumed, step_done, total)
    assert read_dvc_lock(study) == read_dvc_lock(alone)
    assert not list((study / ".lineage" / "remote").rglob("*.tar")), "it is removed at the end"


def test_a_worker_that_evaluates_fetches_no_token_ids(project: Path, tmp_path: Path) -> None:
    set_params(project, grid__finetune_seeds=[0])
    code = {"PYTHONPATH": str(ROOT)}
    home = tmp_path / "elsewhere"
    with (
        run_server(Project(project)) as port,
        run_documented_worker(project, port, "cpu", home, **code),
    ):
        exit_status, printed = finish(Project(project), "run", "--workers")
    assert exit_status == 0, printed
    assert stage_outcomes(printed)["evaluate@gpt-0-mood"] == "ran"
    fetched = {path.parent.name + path.name for path in home.rglob(".dvc/cache/files/md5/*/*")}
    assert md5_digests(project / "artifacts/pretrained/gpt/0") <= fetched
    assert not md5_digests(project / "artifacts/tokens/gpt") & fetched


def md5_digests(folder: Path) -> set[str]:
    """Return DVC's digests of an artifact's large files."""
    paths = [*folder.glob("*.npy"), *folder.glob("*.safetensors")]
    assert paths
    return {hashlib.md5(path.read_bytes()).hexdigest() for path in paths}


def make_long_study(folder: Path) -> Path:
    """Create a user's study whose pretraining takes about a minute."""
    folder.parent.mkdir()
    study = create_own_study(folder)
    set_params(study, budget__max_epochs=50, budget__text_bytes=3_000_000)
    return study


def newest_step(home: Path) -> int:
    """Return the step of the newest resume point of a worker's pretraining; 0 without one."""
    folder = home / "scratch" / "0" / "study" / ".lineage" / "resume" / "pretrain-gpt-0"
    steps = [int(path.name.removeprefix("step-")) for path in folder.glob("*/step-*")]
    return max(steps, default=0)


def kill_all(pid: int) -> None:
    """Kill a worker and all its children, as if its machine were lost."""
    parent = psutil.Process(pid)
    for process in [parent, *parent.children(recursive=True)]:
        with contextlib.suppress(psutil.NoSuchProcess):
            process.send_signal(signal.SIGKILL)
