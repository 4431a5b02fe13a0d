"""Stages run on a real Prefect server and real workers, each a process on a free local port.

The server answers those who know the study's secret, and no page of another origin.
"""

import contextlib
import http.client
import json
import os
import re
import shutil
import signal
import stat
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from flows.addresses import read_prefect_secret, sign_in_url
from lineage.errors import InputError
from tests.helpers.browser import find_browser, show
from tests.helpers.checkout import ROOT
from tests.helpers.toy_project import (
    Project,
    basic_authentication,
    free_port,
    make_project,
    prefect_access,
    project_processes,
    wait_for_stage,
    wait_until,
)
from tests.helpers.toy_servers import Site, set_models, start_servers

FOREIGN = "evil.example"  # a name that a page has given to this machine


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    """Share servers between the tests of this file, and check that stopping leaves nothing."""
    project = make_project(tmp_path_factory.mktemp("site"))
    try:
        yield start_servers(project)
    finally:
        completed = project.run("down")
    assert completed.returncode == 0, completed.stdout + completed.stderr
    assert project_processes(project) == [], "make down must leave no process"
    assert not list((project.root / ".lineage" / "servers").glob("*.json"))


@pytest.fixture(scope="module")
def completed(site: Site) -> "subprocess.CompletedProcess[str]":
    """A run on workers that has ended well."""
    set_models(site.project, value=1)
    completed = site.project.run("run", "--workers")
    assert completed.returncode == 0, completed.stdout + completed.stderr
    return completed


def test_stages_run_on_workers_and_return_outputs_through_the_remote(
    site: Site, completed: "subprocess.CompletedProcess[str]"
) -> None:
    project = site.project
    assert "THE TABLE" in completed.stdout
    trace_by_stage = {str(entry["stage"]): entry for entry in project.read_trace()}
    root = project.root.resolve()
    workers_dir = root / ".lineage" / "workers"
    assert {name: entry["cwd"] for name, entry in trace_by_stage.items()} == {
        "sources": str(root),
        "make@a": str(workers_dir / "cpu" / "0" / "study"),
        "train@a": str(workers_dir / "gpu" / "0" / "study"),
        "report": str(root),
        "publish": str(root),
    }, "each stage ran once, in the pool of its meta"
    for stage, pool in (("make@a", "cpu"), ("train@a", "gpu")):
        assert not trace_by_stage[stage]["user"], "a worker cannot see the user's data"
        assert (workers_dir / pool / "0" / "study" / ".dvc" / "cache").is_dir(), (
            "each worker has its own cache"
        )
        metadata = json.loads((root / ".lineage" / "metadata" / f"{stage}.json").read_text())
        assert (
            metadata["pid"] == trace_by_stage[stage]["pid"]
            and metadata["cwd"] == trace_by_stage[stage]["cwd"]
        ), "its metadata was sent back"
    assert len({entry["pid"] for entry in trace_by_stage.values()}) == 5
    assert len({entry["pipeline"] for entry in trace_by_stage.values()} - {None}) == 2, (
        "all stages after sources have the same id"
    )
    runs = {run["name"]: run for run in site.flow_runs() if not run["auto_scheduled"]}
    assert runs["make@a"]["work_pool_name"] == "cpu" and runs["train@a"]["work_pool_name"] == "gpu"
    assert {run["state_type"] for run in runs.values()} == {"COMPLETED"}
    (study_run,) = [run for name, run in runs.items() if name.startswith("project, 20")]
    tasks = site.ask("task_runs/filter", {"flow_runs": {"id": {"any_": [study_run["id"]]}}})
    assert {"sources", "make@a", "train@a", "report", "publish"} <= {run["name"] for run in tasks}


def test_the_secret_is_readable_by_its_user_only_and_lies_in_no_log(
    site: Site, completed: "subprocess.CompletedProcess[str]"
) -> None:
    root = site.project.root
    secret = read_prefect_secret(root)
    path = root / ".lineage" / "prefect" / "secret"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert path.read_text().strip() == secret
    token = secret.partition(":")[2]
    assert token not in completed.stdout + completed.stderr
    found = [
        str(file.relative_to(root))
        for file in root.rglob("*")
        if file.is_file() and token.encode() in file.read_bytes()
    ]
    assert found == [".lineage/prefect/secret"]


@pytest.mark.slow
def test_a_worker_with_other_code_refuses_its_stage(site: Site) -> None:
    project = site.project
    set_models(project, value=2)
    study = Project(Path(shutil.copytree(project.root, project.root.parent / "other")))
    code = project.root / "lineage" / "errors.py"  # the workers run the code of this folder
    text = code.read_text()
    try:
        code.write_text(text + "\nCHANGED = True\n")
        access = prefect_access(project.root, site.port)
        completed = study.run("run", "--workers", **access)
    finally:
        code.write_text(text)
        shutil.rmtree(study.root)
    assert completed.returncode == 2, completed.stdout + completed.stderr
    assert "has other code than the one that runs the study" in completed.stderr


@pytest.mark.slow
def test_an_input_error_on_a_worker_is_not_retried_and_exits_with_2(site: Site) -> None:
    set_models(site.project, value=3, exit=2)
    completed = site.project.run("run", "--workers")
    assert completed.returncode == 2
    assert "make@a: params.yaml: models: something is wrong; mend it" in completed.stderr
    assert "Traceback" not in completed.stdout + completed.stderr
    assert site.project.stages_run() == ["make@a", "sources"]


def test_workers_without_a_server_are_refused(tmp_path: Path) -> None:
    completed = make_project(tmp_path).run("run", "--workers")
    assert completed.returncode == 2
    assert "lineage up" in completed.stderr


@pytest.mark.slow
def test_a_scratch_study_that_a_killed_worker_left_behind_is_cleaned(site: Site) -> None:
    scratch = site.project.root / ".lineage" / "workers" / "cpu" / "0" / "study"
    set_models(site.project, value=41)
    assert site.project.run("run", "--workers").returncode == 0
    (scratch / "artifacts" / "made" / "a").write_text("half of a result")
    (scratch / "dvc.lock").write_text("half of a")
    (scratch / ".dvc" / "config").unlink()
    set_models(site.project, value=42)
    completed = site.project.run("run", "--workers")
    assert completed.returncode == 0, completed.stdout + completed.stderr
    # Of train@a only the input has changed.
    assert {"make@a", "train@a"} <= set(site.project.stages_run())
    assert "make@a 42" in (site.project.root / "artifacts" / "made" / "a").read_text()


@pytest.mark.slow
def test_pending_and_running_runs_left_by_a_crash_are_marked_crashed(site: Site) -> None:
    deployment = next(one for one in site.ask("deployments/filter") if one["name"] == "cpu")
    runs = [
        site.ask(
            f"deployments/{deployment['id']}/create_flow_run",
            {"state": {"type": "SCHEDULED"}, "enforce_parameter_schema": False},
        )["id"]
        for _ in range(2)
    ]
    for run, state in zip(runs, ("PENDING", "RUNNING"), strict=True):
        site.ask(f"flow_runs/{run}/set_state", {"state": {"type": state}, "force": True})
    command = [
        sys.executable,
        "-c",
        "from flows.deployments import watch_lost_runs; watch_lost_runs(sweep=True)",
    ]
    environment = site.project.environment(**prefect_access(site.project.root, site.port))
    subprocess.run(command, cwd=site.project.root, env=environment, check=True, timeout=120)
    states = {run["id"]: run["state_type"] for run in site.flow_runs()}
    assert [states[run] for run in runs] == ["CRASHED", "CRASHED"]


@pytest.mark.slow
def test_a_killed_stage_is_retried_on_its_worker(site: Site) -> None:
    set_models(site.project, value=4, once=True)
    completed = site.project.run("run", "--workers")
    assert completed.returncode == 0, completed.stdout + completed.stderr
    assert site.project.stages_run().count("make@a") == 2
    assert completed.stderr == (
        "make@a: killed by signal 9 (out of memory?); a worker tries it again (2 of 3)\n"
    )


@pytest.mark.slow
def test_a_stage_whose_worker_dies_is_marked_crashed_and_retried(site: Site) -> None:
    project = site.project
    set_models(project, value=5, seconds=30)
    pipeline = project.start("run", "--workers")
    stage = psutil.Process(wait_for_stage(project, "make@a"))
    engine_processes = [
        process
        for process in psutil.Process(site.worker("cpu")).children(recursive=True)
        if process.pid != stage.pid
    ]
    for process in [*engine_processes, stage]:
        process.send_signal(signal.SIGKILL)
    output, _ = pipeline.communicate(timeout=300)
    assert pipeline.returncode == 0, output
    assert "CRASHED" in {run["state_type"] for run in site.flow_runs() if run["name"] == "make@a"}
    assert project.stages_run().count("make@a") == 1, (
        "the first attempt was read from the trace before"
    )


@pytest.mark.slow
def test_a_stage_saves_a_checkpoint_before_it_is_retried_if_its_flow_run_is_killed(
    site: Site,
) -> None:
    """A guard keeps the scratch study locked until the stage has ended."""
    project = site.project
    set_models(project, value=7, seconds=25, checkpoint=True, save_seconds=5)
    pipeline = project.start("run", "--workers")
    stage = psutil.Process(wait_for_stage(project, "make@a"))
    (flow_run,) = psutil.Process(site.worker("cpu")).children()
    flow_run.kill()
    output, _ = pipeline.communicate(timeout=240)
    assert pipeline.returncode == 0, output
    assert not stage.is_running()
    scratch = project.root / ".lineage" / "workers" / "cpu"
    assert [path.name for path in scratch.iterdir()] == ["0"], "it resumes in the same folder"
    assert (scratch / "0" / "study" / ".lineage" / "checkpoint").is_file()


@pytest.mark.slow
def test_a_stage_whose_worker_is_killed_is_run_by_the_next_worker(site: Site) -> None:
    project = site.project
    set_models(project, value=8, seconds=25, checkpoint=True)
    pipeline = project.start("run", "--workers")
    stage = psutil.Process(wait_for_stage(project, "make@a"))
    site.kill("worker-cpu")
    wait_until(lambda: not stage.is_running(), seconds=30)
    site.start_again()
    output, _ = pipeline.communicate(timeout=400)
    assert pipeline.returncode == 0, output
    assert "a worker tries it again (2 of 3)" in output


@pytest.mark.slow
def test_a_stage_whose_worker_is_killed_while_it_starts_it_is_requested_again(site: Site) -> None:
    """Prefect keeps its run pending for good: it never had a sign of life to miss."""
    project = site.project
    set_models(project, value=11)
    # The worker may have told Prefect of the process before it is killed: then a run waits 15 min.
    settings = project.root / "runtime.yaml"
    settings.write_text("pool_wait_seconds: {cpu: 120}\n")
    worker = psutil.Process(site.worker("cpu"))
    pipeline = project.start("run", "--workers")
    wait_until(lambda: bool(worker.children()), seconds=60)
    site.kill("worker-cpu")
    site.start_again()
    output, _ = pipeline.communicate(timeout=300)
    settings.unlink()
    assert pipeline.returncode == 0, output
    waited = r"make@a: its worker has not begun it for 1[2-4]\d s; a worker tries it again"
    assert re.search(waited, output), output


@pytest.mark.slow
@pytest.mark.parametrize("returns", [True, False])
def test_a_run_on_workers_goes_on_if_its_server_dies(site: Site, returns: bool) -> None:
    project = site.project
    set_models(project, value=9 + returns, seconds=20)
    pipeline = project.start("run", "--workers")
    wait_for_stage(project, "make@a")
    site.kill("prefect")
    if returns:
        site.start_again()
    output, _ = pipeline.communicate(timeout=240)
    assert pipeline.returncode == 0, output
    assert "THE TABLE" in output and "Traceback" not in output
    assert "make@a" not in project.stages_run(), "the worker finished it, and nobody ran it again"
    assert ("the stages that are left run here" in output) is not returns
    assert ("Prefect could not be informed" in output) is not returns
    if not returns:
        site.start_again()
    (run,) = [run for run in site.flow_runs() if run["id"] == latest_study_run(site)]
    assert (run["state_type"] == "COMPLETED") is returns


def latest_study_run(site: Site) -> str:
    runs = [run for run in site.flow_runs() if run["name"].startswith("project, 20")]
    return str(max(runs, key=lambda run: run["created"])["id"])


@pytest.mark.slow
def test_stopping_the_pipeline_stops_its_stages_on_workers(site: Site) -> None:
    project = site.project
    set_models(project, value=6, seconds=120)
    pipeline = project.start("run", "--workers")
    pid = wait_for_stage(project, "make@a")
    pipeline.terminate()
    output, _ = pipeline.communicate(timeout=60)
    assert pipeline.returncode == 1, output
    wait_until(lambda: not psutil.pid_exists(pid), seconds=60)


@pytest.mark.slow
def test_a_schedule_fires_and_an_overlapping_run_is_cancelled(tmp_path: Path) -> None:
    """The first run takes longer than a minute, and the run after it has nothing to do."""
    project = make_project(tmp_path)
    set_models(project, seconds=70)
    graph = project.root / "dvc.yaml"
    graph.write_text(graph.read_text().replace("timeout_s: 60", "timeout_s: 120"))
    refused = project.run("schedule", "--cron", "* * * * *")
    assert refused.returncode == 2
    assert "run `lineage up` first" in refused.stderr
    site = start_servers(project)

    def states() -> list[str]:
        return [run["state_type"] for run in site.flow_runs() if run["auto_scheduled"]]

    try:
        bad = project.run("schedule", "--cron", "each night")
        assert bad.returncode == 2 and "five fields" in bad.stderr
        assert project.run("schedule", "--cron", "* * * * *").returncode == 0
        wait_until(lambda: "CANCELLED" in states(), seconds=240)
        assert "RUNNING" in states(), "the first run continues"
        wait_until(lambda: states().count("COMPLETED") >= 2, seconds=240)
        names = project.stages_run()
        assert names.count("make@a") == 1 and names.count("publish") >= 2, (
            "the second run finds nothing to do"
        )
        assert project.run("schedule", "--off").returncode == 0
        wait_until(lambda: "SCHEDULED" not in states(), seconds=30)
    finally:
        project.run("down")
    assert project_processes(project) == []


@pytest.mark.slow
def test_two_starts_at_once_leave_one_server_and_one_worker_for_each_pool(tmp_path: Path) -> None:
    project = make_project(tmp_path)
    port = str(free_port())
    try:
        starts = [project.start("up", LINEAGE_PREFECT_PORT=port) for _ in range(2)]
        outputs = [start.communicate(timeout=200)[0] for start in starts]
        assert [start.returncode for start in starts] == [0, 0], outputs
        commands = [" ".join(process.cmdline()) for process in project_processes(project)]
        assert sum("flows.prefect_server" in command for command in commands) == 1
        assert sum("prefect worker start" in command for command in commands) == 3
        for name in ("prefect", "worker-cpu", "worker-gpu", "worker-orchestrator"):
            assert psutil.pid_exists(Site(project, int(port)).server(name))
    finally:
        project.run("down")
    assert project_processes(project) == []


def request(port: int, path: str, method: str = "POST", **headers: str) -> tuple[int, dict, str]:
    """Return the status, the headers and the text of an answer."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=20)
    names = {name.replace("_", "-"): value for name, value in headers.items()}
    connection.request(method, path, body=b"{}", headers=names)
    with contextlib.closing(connection):
        answer = connection.getresponse()
        return answer.status, dict(answer.getheaders()), answer.read().decode()


def test_requests_without_the_secret_are_refused(site: Site) -> None:
    project, port = site.project, site.port
    json_type = "application/json"
    own = basic_authentication(read_prefect_secret(project.root))
    path = "/api/deployments/filter"
    assert request(port, path, Content_Type=json_type, Authorization=own)[0] == 200
    assert request(port, path, Content_Type=json_type)[0] == 401
    wrong = basic_authentication("lineage:another")
    assert request(port, path, Content_Type=json_type, Authorization=wrong)[0] == 401
    assert request(port, path, Content_Type="text/plain")[0] == 401
    assert request(port, "/api/health", "GET")[0] == 200, "anyone may ask whether it is up"


def test_another_name_of_the_machine_is_refused(site: Site) -> None:
    project, port = site.project, site.port
    own = basic_authentication(read_prefect_secret(project.root))
    for path in ("/api/deployments/filter", "/api/health", "/sign-in", "/"):
        status, _, text = request(
            port, path, Content_Type="application/json", Authorization=own, Host=FOREIGN
        )
        assert (status, text) == (400, "Invalid host header"), path


def test_a_page_of_another_origin_is_not_allowed_to_ask(site: Site) -> None:
    port = site.port
    allowed = {}
    for origin in (f"http://127.0.0.1:{port + 1}", f"http://{FOREIGN}", f"http://localhost:{port}"):
        _, headers, _ = request(
            port,
            "/api/deployments/filter",
            "OPTIONS",
            Origin=origin,
            Access_Control_Request_Method="POST",
            Access_Control_Request_Headers="authorization,content-type",
        )
        names = {name.lower(): value for name, value in headers.items()}
        allowed[origin] = names.get("access-control-allow-origin")
    assert list(allowed.values()) == [None, None, f"http://localhost:{port}"]


def test_a_server_that_the_user_names_does_not_get_the_secret(site: Site) -> None:
    project = site.project
    script = (
        "import os; from pathlib import Path; from flows.servers import use_prefect;"
        "use_prefect(Path.cwd()); print(os.environ.get('PREFECT_API_AUTH_STRING'))"
    )
    command = [sys.executable, "-c", script]
    for given, expected in (
        ({"PREFECT_API_URL": "http://prefect.example.org/api"}, "None"),
        (
            {
                "PREFECT_API_URL": "http://prefect.example.org/api",
                "PREFECT_API_AUTH_STRING": "me:mine",
            },
            "me:mine",
        ),
        ({"PREFECT_API_AUTH_STRING": "me:mine"}, read_prefect_secret(project.root)),
    ):
        printed = subprocess.run(
            command,
            cwd=project.root,
            env=project.environment(**given),
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        assert printed.strip() == expected


@pytest.mark.parametrize("command", [("run",), ("schedule", "--cron", "0 2 * * *")])
def test_a_server_that_does_not_let_the_user_in_is_named_in_one_sentence(
    command: tuple[str, ...], site: Site
) -> None:
    project, port = site.project, site.port
    completed = project.run(
        *command, PREFECT_API_URL=f"http://127.0.0.1:{port}/api", PREFECT_API_AUTH_STRING="me:mine"
    )
    assert completed.returncode == 2
    assert completed.stderr == (
        f"the Prefect server at http://127.0.0.1:{port}/api does not let this process in; set "
        "PREFECT_API_AUTH_STRING to its secret, or PREFECT_API_KEY\n"
    )


@pytest.mark.slow
def test_the_link_of_the_terminal_signs_a_browser_in(site: Site, tmp_path: Path) -> None:
    browser = find_browser()
    project, port = site.project, site.port
    address = f"http://127.0.0.1:{port}"
    without = show(browser, f"{address}/deployments", tmp_path / "stranger")
    assert "run-stage" not in without
    assert "Authentication failed" in without
    signed_in = show(browser, sign_in_url(project.root, address), tmp_path / "user")
    assert "Authentication failed" not in signed_in
    page = show(browser, f"{address}/deployments", tmp_path / "user")
    assert "run-stage" in page


OWN_REQUEST = """
import asyncio
from flows.prefect_server import build_app
from prefect.server.api.clients import OrchestrationClient

async def ask_itself() -> int:
    async with OrchestrationClient() as client:
        return (await client._http_client.get("/health")).status_code

build_app("127.0.0.1")
print(asyncio.run(ask_itself()))
"""


def test_the_server_may_send_itself_requests(tmp_path: Path) -> None:
    """That is how an automation sets lost runs to Crashed."""
    printed = subprocess.run(
        [sys.executable, "-c", OWN_REQUEST],
        cwd=ROOT,
        env=os.environ | {"PREFECT_HOME": str(tmp_path), "PREFECT_UI_ENABLED": "0"},
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    assert printed.split()[-1] == "200"


def test_a_damaged_secret_is_refused_in_one_sentence(tmp_path: Path) -> None:
    path = tmp_path / ".lineage" / "prefect" / "secret"
    path.parent.mkdir(parents=True)
    for content in (b"", b"lineage:", bytes(range(256))):
        path.write_bytes(content)
        with pytest.raises(InputError, match="is damaged; run `lineage down`, and remove"):
            read_prefect_secret(tmp_path)
    path.unlink()
    assert read_prefect_secret(tmp_path) == read_prefect_secret(tmp_path)
