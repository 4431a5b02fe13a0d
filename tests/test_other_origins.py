"""A page of another origin can neither read nor change anything on the three servers of a study.

They are Prefect, MLflow and `lineage serve`, as a user starts them, and the page is in a real browser.
"""

import http.client
import json
import shutil
import urllib.error
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from mlflow import MlflowClient

from flows.addresses import read_prefect_secret
from tests.helpers.browser import find_browser, serve_folder, show
from tests.helpers.checkout import run_command
from tests.helpers.servers import is_up, run_server
from tests.helpers.toy_project import ask_prefect, basic_authentication, free_port, wait_until

pytestmark = pytest.mark.slow

FOREIGN = "evil.example"  # a name that a page has given to this machine
NAME = "attack"  # of what the page tries to make
PAGE = """<!doctype html><body><script>
const requests = REQUESTS;
(async () => {
  for (const [name, address, type, body] of requests) {
    let text = "refused";
    try {
      const answer = await fetch(address, {method: "POST", headers: {"Content-Type": type}, body});
      text = `answered ${answer.status} ${await answer.text()}`;
    } catch (error) {}
    document.body.append(`${name}: ${text}; `);
  }
  document.body.append("the page has ended");
})();
</script></body>
"""


@dataclass(frozen=True)
class Target:
    """A server, a request that would do something there, and what authorizes it."""

    port: int
    path: str
    body: dict[str, object]
    authorization: str = ""

    def ask(self, *, host: str, content_type: str, path: str | None = None) -> int:
        """Return the status of a request under a name of the machine, as curl would send it."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=30)
        headers = {"Host": host, "Content-Type": content_type}
        if self.authorization:
            headers["Authorization"] = self.authorization
        connection.request("POST", path or self.path, json.dumps(self.body), headers)
        status = connection.getresponse().status
        connection.close()
        return status


@pytest.fixture(scope="module")
def study(finished_project: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A copy of a finished study whose servers are up."""
    copy = tmp_path_factory.mktemp("foreign") / "copy"
    shutil.copytree(finished_project.parent, copy, symlinks=True)
    folder = copy / finished_project.name
    ports = {"LINEAGE_PREFECT_PORT": str(free_port()), "LINEAGE_MLFLOW_PORT": str(free_port())}
    try:
        run_command(folder, "lineage", "ui", **ports)
        yield folder
    finally:
        run_command(folder, "lineage", "down")


@pytest.fixture(scope="module")
def targets(study: Path) -> Iterator[dict[str, Target]]:
    """The three servers of the study."""
    servers = study / ".lineage" / "servers"
    prefect, mlflow = (
        json.loads((servers / f"{name}.json").read_text())["port"] for name in ("prefect", "mlflow")
    )
    port = free_port()
    command = ("lineage", "serve", "--task", "mood", "--system", "tfidf", "--port", str(port))
    with run_server(study, *command):
        wait_until(lambda: is_up(port), seconds=90)
        secret = basic_authentication(read_prefect_secret(study))
        yield {
            "prefect": Target(prefect, "/api/flows/", {"name": NAME}, secret),
            "mlflow": Target(mlflow, "/api/2.0/mlflow/experiments/create", {"name": NAME}),
            "serve": Target(port, "/invocations", {"inputs": ["a secret text"]}),
        }


def test_pages_of_other_origins_are_refused(
    study: Path, targets: dict[str, Target], tmp_path: Path
) -> None:
    browser = find_browser()
    requests = [
        (f"{name} {host} {content_type}", f"http://{host}:{target.port}{target.path}",
         content_type, json.dumps(target.body))
        for name, target in targets.items()
        for host in ("127.0.0.1", FOREIGN)
        for content_type in ("application/json", "text/plain")
    ]  # fmt: skip
    (tmp_path / "pages").mkdir()
    page = PAGE.replace("REQUESTS", json.dumps(requests))
    (tmp_path / "pages" / "attack.html").write_text(page)
    with serve_folder(tmp_path / "pages") as port:
        html = show(
            browser,
            f"http://{FOREIGN}:{port}/attack.html",
            tmp_path / "profile",
            f"--host-resolver-rules=MAP {FOREIGN} 127.0.0.1",
        )
    assert "the page has ended" in html, html
    for name, *_ in requests:
        assert f"{name}: refused; " in html, html
    assert_nothing_was_made(study, targets)


def assert_nothing_was_made(study: Path, targets: dict[str, Target]) -> None:
    api = f"http://127.0.0.1:{targets['prefect'].port}/api"
    assert NAME not in [flow["name"] for flow in ask_prefect(study, api, "flows/filter")]
    client = MlflowClient(f"http://127.0.0.1:{targets['mlflow'].port}")
    assert client.get_experiment_by_name(NAME) is None


@pytest.mark.parametrize("name", ["prefect", "mlflow", "serve"])
def test_another_name_of_the_machine_is_refused(name: str, targets: dict[str, Target]) -> None:
    target = targets[name]
    assert target.ask(host=FOREIGN, content_type="application/json") in (400, 403)
    assert target.ask(host=f"{FOREIGN}:{target.port}", content_type="text/plain") in (400, 403)


def test_a_form_as_any_page_can_post_it_is_refused(study: Path, targets: dict[str, Target]) -> None:
    """A browser sends it without asking first, with the page's origin and without the secret."""
    for target in targets.values():
        address = f"http://127.0.0.1:{target.port}{target.path}"
        form = urllib.request.Request(
            address,
            data=json.dumps(target.body).encode(),
            headers={"Content-Type": "text/plain", "Origin": f"http://{FOREIGN}"},
        )
        with pytest.raises(urllib.error.HTTPError) as refused:
            urllib.request.urlopen(form, timeout=30)
        assert refused.value.code in (401, 403, 415)
    assert_nothing_was_made(study, targets)


def test_the_same_requests_of_the_user_are_answered(targets: dict[str, Target]) -> None:
    """So what is refused above is refused for its origin, its form or its name."""
    for target in targets.values():
        asked = target.ask(host=f"127.0.0.1:{target.port}", content_type="application/json")
        assert asked in (200, 201)
