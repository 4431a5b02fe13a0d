"""Prefect's server answers those who know the study's secret, and no page of another origin."""

import contextlib
import http.client
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from flows.addresses import read_prefect_secret, sign_in_url
from lineage.errors import InputError
from tests.helpers.browser import find_browser, show
from tests.helpers.checkout import ROOT
from tests.helpers.toy_project import Project, basic_authentication, free_port, make_project

FOREIGN = "evil.example"  # a name that a page has given to this machine


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Project, int]]:
    """A project with a Prefect server, and the server's port."""
    project = make_project(tmp_path_factory.mktemp("site"))
    port = free_port()
    try:
        completed = project.run("up", "--no-workers", LINEAGE_PREFECT_PORT=str(port))
        assert completed.returncode == 0, completed.stdout + completed.stderr
        assert sign_in_url(project.root, f"http://127.0.0.1:{port}") in completed.stdout
        yield project, port
    finally:
        project.run("down")


def request(port: int, path: str, method: str = "POST", **headers: str) -> tuple[int, dict, str]:
    """Return the status, the headers and the text of an answer."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=20)
    names = {name.replace("_", "-"): value for name, value in headers.items()}
    connection.request(method, path, body=b"{}", headers=names)
    with contextlib.closing(connection):
        answer = connection.getresponse()
        return answer.status, dict(answer.getheaders()), answer.read().decode()


def test_requests_without_the_secret_are_refused(server: tuple[Project, int]) -> None:
    project, port = server
    json_type = "application/json"
    own = basic_authentication(read_prefect_secret(project.root))
    path = "/api/deployments/filter"
    assert request(port, path, Content_Type=json_type, Authorization=own)[0] == 200
    assert request(port, path, Content_Type=json_type)[0] == 401
    wrong = basic_authentication("lineage:another")
    assert request(port, path, Content_Type=json_type, Authorization=wrong)[0] == 401
    assert request(port, path, Content_Type="text/plain")[0] == 401
    assert request(port, "/api/health", "GET")[0] == 200, "anyone may ask whether it is up"


def test_another_name_of_the_machine_is_refused(server: tuple[Project, int]) -> None:
    project, port = server
    own = basic_authentication(read_prefect_secret(project.root))
    for path in ("/api/deployments/filter", "/api/health", "/sign-in", "/"):
        status, _, text = request(
            port, path, Content_Type="application/json", Authorization=own, Host=FOREIGN
        )
        assert (status, text) == (400, "Invalid host header"), path


def test_a_page_of_another_origin_is_not_allowed_to_ask(server: tuple[Project, int]) -> None:
    _, port = server
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


def test_a_server_that_the_user_names_does_not_get_the_secret(server: tuple[Project, int]) -> None:
    project, _ = server
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
    command: tuple[str, ...], server: tuple[Project, int]
) -> None:
    project, port = server
    completed = project.run(
        *command, PREFECT_API_URL=f"http://127.0.0.1:{port}/api", PREFECT_API_AUTH_STRING="me:mine"
    )
    assert completed.returncode == 2
    assert completed.stderr == (
        f"the Prefect server at http://127.0.0.1:{port}/api does not let this process in; set "
        "PREFECT_API_AUTH_STRING to its secret, or PREFECT_API_KEY\n"
    )


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


@pytest.mark.slow
def test_the_link_of_the_terminal_signs_a_browser_in(
    server: tuple[Project, int], tmp_path: Path
) -> None:
    browser = find_browser()
    project, port = server
    address = f"http://127.0.0.1:{port}"
    without = show(browser, f"{address}/deployments", tmp_path / "stranger")
    assert "run-stage" not in without
    assert "Authentication failed" in without
    signed_in = show(browser, sign_in_url(project.root, address), tmp_path / "user")
    assert "Authentication failed" not in signed_in
    page = show(browser, f"{address}/deployments", tmp_path / "user")
    assert "run-stage" in page
