"""Downloads from a Hub: a server on this machine that speaks its protocol, whole, slow to answer, and broken off."""

import hashlib
import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from tests.test_public_folders import save
from tests.test_sources import HUB, LARGE, READ, REVISION, hub_folder

ROOT = Path(__file__).parent.parent
MODEL = f"""
from pathlib import Path
from lineage.errors import InputError
from lineage.public import origin_of
try:
    print(sorted(file["name"] for file in origin_of("some/model", "{REVISION}", "m").facts(Path(".") / "nothing")["files"]))
except InputError as error:
    raise SystemExit(str(error))
"""


class Hub(ThreadingHTTPServer):
    """Repositories by what an address calls them, such as `datasets/some/set`; `broken` names files that end half way."""

    def __init__(self, repositories: dict[str, Path]) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.repositories, self.broken, self.asked = repositories, set[str](), list[str]()

    @property
    def address(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"


class Handler(BaseHTTPRequestHandler):
    """The two questions of a download: what files there are at a revision, and each file's facts and bytes."""

    server: Hub

    def do_GET(self) -> None:
        path = urlsplit(self.path).path
        self.server.asked.append(path)
        if path.startswith("/api/"):
            self._tree(path.removeprefix("/api/").removeprefix("models/"))
        else:
            self._file(path[1:], body=True)

    def do_HEAD(self) -> None:
        self._file(urlsplit(self.path).path[1:], body=False)

    def _tree(self, path: str) -> None:
        name, _, _ = path.partition(f"/tree/{REVISION}")
        folder = self.server.repositories.get(name)
        if folder is None:
            self._answer(404, b"{}", {"X-Error-Code": "RepoNotFound", "X-Error-Message": "Repository not found"})
            return
        files = sorted(p for p in folder.rglob("*") if p.is_file())
        rows = [{"type": "file", "path": p.relative_to(folder).as_posix(), "size": p.stat().st_size, "oid": _digest(p)} for p in files]
        self._answer(200, json.dumps(rows).encode(), {"Content-Type": "application/json"})

    def _file(self, path: str, *, body: bool) -> None:
        name, _, inner = path.partition(f"/resolve/{REVISION}/")
        file = self.server.repositories.get(name, Path("nowhere")) / inner
        if not file.is_file():
            self._answer(404, b"", {"X-Error-Code": "EntryNotFound", "X-Repo-Commit": REVISION})
            return
        facts = {"ETag": f'"{_digest(file)}"', "X-Repo-Commit": REVISION}
        self._answer(200, file.read_bytes(), facts, body=body, whole=inner not in self.server.broken)

    def _answer(self, status: int, content: bytes, headers: dict[str, str], *, body: bool = True, whole: bool = True) -> None:
        self.send_response(status)
        for name, value in (headers | {"Content-Length": str(len(content))}).items():
            self.send_header(name, value)
        self.end_headers()
        if body:
            self.wfile.write(content if whole else content[: len(content) // 2])
        self.close_connection = True

    def log_message(self, *args: object) -> None:  # type: ignore[override]
        """Nothing."""


def _digest(path: Path) -> str:
    return hashlib.sha1(path.read_bytes(), usedforsecurity=False).hexdigest()


@pytest.fixture
def hub(tmp_path: Path) -> Iterator[Hub]:
    server = Hub({"datasets/some/set": hub_folder(tmp_path / "there/set"), "some/model": save("gpt2", tmp_path / "there/model")})
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield server
    server.shutdown()
    server.server_close()
    thread.join()


def asked(code: str, hub: Hub, home: Path, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """In a process of its own, since the Hub's library reads these settings when it is imported."""
    said = {"PYTHONPATH": str(ROOT), "HF_HOME": str(home), "HF_ENDPOINT": hub.address, "OMP_NUM_THREADS": "1", **environment}
    kept = {name: value for name, value in os.environ.items() if not name.startswith("HF_")}
    return subprocess.run([sys.executable, "-c", code, *arguments], cwd=home.parent, env=kept | said, capture_output=True, text=True, check=False)


def corpus(**keys: str) -> str:
    return json.dumps({"language": "en", "sources": [{"hub": "some/set", **HUB, **keys}]})


def test_one_configuration_is_fetched_once_and_then_the_network_is_not_asked(hub: Hub, tmp_path: Path) -> None:
    done = asked(READ, hub, tmp_path / "home", corpus())
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)[0] == LARGE
    fetched = {path.partition(f"{REVISION}/")[2] for path in hub.asked if "/resolve/" in path}
    assert fetched == {"README.md", "large/train-00000-of-00001.parquet", "large/validation-00000-of-00001.parquet"}
    hub.asked.clear()
    again = asked(READ, hub, tmp_path / "home", corpus())
    assert again.stdout == done.stdout and not hub.asked
    small = asked(READ, hub, tmp_path / "home", corpus(config="small"))
    assert small.returncode == 0 and any("small/train" in path for path in hub.asked), small.stderr


def test_a_public_checkpoint_is_fetched_without_what_nobody_reads(hub: Hub, tmp_path: Path) -> None:
    (hub.repositories["some/model"] / "pytorch_model.bin").write_bytes(b"a pickle")
    done = asked(MODEL, hub, tmp_path / "home")
    assert done.returncode == 0, done.stderr
    assert {"config.json", "model.safetensors", "tokenizer.json"} <= set(json.loads(done.stdout.replace("'", '"')))
    assert not any(path.endswith(".bin") for path in hub.asked)
    hub.asked.clear()
    assert asked(MODEL, hub, tmp_path / "home").stdout == done.stdout and not hub.asked


@pytest.mark.parametrize(("code", "file"), [(READ, "large/train-00000-of-00001.parquet"), (MODEL, "model.safetensors")])
def test_a_download_that_breaks_off_is_one_message_and_the_next_run_goes_on(code: str, file: str, hub: Hub, tmp_path: Path) -> None:
    hub.broken = {file}
    done = asked(code, hub, tmp_path / "home", corpus())
    assert done.returncode == 1 and len(done.stderr.strip().splitlines()) == 1, done.stderr
    assert "is not in the Hub's cache and could not be fetched" in done.stderr
    hub.broken = set()
    assert asked(code, hub, tmp_path / "home", corpus()).returncode == 0


@pytest.mark.parametrize(("code", "arguments"), [(READ, corpus(hub="some/other")), (MODEL.replace("some/model", "some/other"), "")])
def test_a_repository_that_is_not_there_is_said_in_the_hubs_words(code: str, arguments: str, hub: Hub, tmp_path: Path) -> None:
    done = asked(code, hub, tmp_path / "home", arguments)
    assert done.returncode == 1 and len(done.stderr.strip().splitlines()) == 1, done.stderr
    assert "some/other at 0123456789ab" in done.stderr and "404" in done.stderr
