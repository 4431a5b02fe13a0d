"""Downloads from the Hub resume after an interruption and are not repeated.

A local server speaks the protocol of the Hub.
"""

import hashlib
import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import urlsplit

import pytest

pytest.importorskip("transformers")

from tests.helpers.hub import HUB_SOURCE, LARGE_TRAIN_TEXTS, REVISION, hub_folder, read_in_process
from tests.helpers.public_checkpoints import save_checkpoint

ROOT = Path(__file__).parent.parent
DATASET, MODEL = {"hub": "some/set", **HUB_SOURCE}, {"model": "some/model", "revision": REVISION}


class Hub(ThreadingHTTPServer):
    """A server of repositories by their path in an address, such as `datasets/some/set`.

    Files in `broken` end half-way.
    """

    def __init__(self, repositories: dict[str, Path]) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.repositories = repositories
        self.broken: set[str] = set()
        self.requested: list[str] = []

    @property
    def address(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"


class Handler(BaseHTTPRequestHandler):
    """Answer the two requests of a download: the files of a revision, and one file."""

    server: Hub

    def do_GET(self) -> None:
        path = urlsplit(self.path).path
        self.server.requested.append(path)
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
            self._answer(
                404,
                b"{}",
                {"X-Error-Code": "RepoNotFound", "X-Error-Message": "Repository not found"},
            )
            return
        files = sorted(file for file in folder.rglob("*") if file.is_file())
        rows = [
            {
                "type": "file",
                "path": file.relative_to(folder).as_posix(),
                "size": file.stat().st_size,
                "oid": _digest(file),
            }
            for file in files
        ]
        self._answer(200, json.dumps(rows).encode(), {"Content-Type": "application/json"})

    def _file(self, path: str, *, body: bool) -> None:
        name, _, file_name = path.partition(f"/resolve/{REVISION}/")
        file = self.server.repositories.get(name, Path("nowhere")) / file_name
        if not file.is_file():
            self._answer(404, b"", {"X-Error-Code": "EntryNotFound", "X-Repo-Commit": REVISION})
            return
        headers = {"ETag": f'"{_digest(file)}"', "X-Repo-Commit": REVISION}
        self._answer(
            200, file.read_bytes(), headers, body=body, complete=file_name not in self.server.broken
        )

    def _answer(
        self,
        status: int,
        content: bytes,
        headers: dict[str, str],
        *,
        body: bool = True,
        complete: bool = True,
    ) -> None:
        self.send_response(status)
        for name, value in (headers | {"Content-Length": str(len(content))}).items():
            self.send_header(name, value)
        self.end_headers()
        if body:
            self.wfile.write(content if complete else content[: len(content) // 2])
        self.close_connection = True

    def log_message(self, *args: object) -> None:  # type: ignore[override]
        """Log nothing."""


def _digest(path: Path) -> str:
    return hashlib.sha1(path.read_bytes(), usedforsecurity=False).hexdigest()


@pytest.fixture
def hub(tmp_path: Path) -> Iterator[Hub]:
    server = Hub(
        {
            "datasets/some/set": hub_folder(tmp_path / "there/set"),
            "some/model": save_checkpoint("gpt2", tmp_path / "there/model"),
        }
    )
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield server
    server.shutdown()
    server.server_close()
    thread.join()


@pytest.mark.slow
def test_a_download_is_complete_or_gives_one_message_and_resumes_without_repeating(
    hub: Hub, tmp_path: Path
) -> None:

    def request_from_hub(*requests: dict[str, str]) -> tuple[list[list[str]], list[str]]:
        answers, messages = read_in_process(tmp_path / "home", *requests, HF_ENDPOINT=hub.address)
        return [names for names, _ in answers], messages

    (hub.repositories["some/model"] / "pytorch_model.bin").write_bytes(b"a pickle")
    hub.broken = {"large/train-00000-of-00001.parquet", "model.safetensors"}
    others = {**DATASET, "hub": "some/other"}, {**MODEL, "model": "some/other"}
    answers, messages = request_from_hub(DATASET, MODEL, *others)
    assert not answers and len(messages) == 4, messages
    assert all(
        "is not in the Hub's cache and could not be fetched (peer closed connection" in line
        for line in messages[:2]
    )
    assert all("some/other at 0123456789ab" in line and "404" in line for line in messages[2:])

    hub.broken = set()
    answers, messages = request_from_hub(DATASET, MODEL)
    assert not messages
    assert answers[0] == LARGE_TRAIN_TEXTS
    assert {"config.json", "model.safetensors", "tokenizer.json"} <= set(answers[1])
    fetched = {
        path.partition(f"{REVISION}/")[2]
        for path in hub.requested
        if path.startswith("/datasets/some/set/resolve/")
    }
    assert fetched == {
        "README.md",
        "large/train-00000-of-00001.parquet",
        "large/validation-00000-of-00001.parquet",
    }, "only files of one configuration"
    assert not any(path.endswith(".bin") for path in hub.requested)

    hub.requested.clear()
    small = {**DATASET, "config": "small"}
    (*again, small_texts), messages = request_from_hub(DATASET, MODEL, small)
    assert again == answers and not messages
    assert len(small_texts) == len(LARGE_TRAIN_TEXTS)
    assert any("small/train" in path for path in hub.requested)
    assert not any("large/" in path or "some/model" in path for path in hub.requested)
