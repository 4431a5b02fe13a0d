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
from tests.test_sources import HUB, LARGE, REVISION, hub_folder

ROOT = Path(__file__).parent.parent
ASK = """
import json, sys
from pathlib import Path
from lineage.data.corpus import collect_documents
from lineage.config.data import Corpus
from lineage.errors import InputError
from lineage.models.public_folders import parse_checkpoint_source
from lineage.config.records import parse_record
for question in json.loads(sys.argv[1]):
    try:
        if "model" in question:
            source = parse_checkpoint_source(question["model"], question["revision"], "m")
            found = [file["name"] for file in source.fingerprint(Path("nothing"))["files"]]
        else:
            corpus = parse_record(Corpus, {"language": "en", "sources": [question]}, "corpus")
            documents = collect_documents(corpus, seed=1, root=Path.cwd(), where="corpus")
            found = list(documents.table["text"])
        print(json.dumps(found))
    except InputError as error:
        print(error, file=sys.stderr)
"""
SET, MODEL = {"hub": "some/set", **HUB}, {"model": "some/model", "revision": REVISION}


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
            self._answer(
                404,
                b"{}",
                {"X-Error-Code": "RepoNotFound", "X-Error-Message": "Repository not found"},
            )
            return
        files = sorted(p for p in folder.rglob("*") if p.is_file())
        rows = [
            {
                "type": "file",
                "path": p.relative_to(folder).as_posix(),
                "size": p.stat().st_size,
                "oid": _digest(p),
            }
            for p in files
        ]
        self._answer(200, json.dumps(rows).encode(), {"Content-Type": "application/json"})

    def _file(self, path: str, *, body: bool) -> None:
        name, _, inner = path.partition(f"/resolve/{REVISION}/")
        file = self.server.repositories.get(name, Path("nowhere")) / inner
        if not file.is_file():
            self._answer(404, b"", {"X-Error-Code": "EntryNotFound", "X-Repo-Commit": REVISION})
            return
        facts = {"ETag": f'"{_digest(file)}"', "X-Repo-Commit": REVISION}
        self._answer(
            200, file.read_bytes(), facts, body=body, whole=inner not in self.server.broken
        )

    def _answer(
        self,
        status: int,
        content: bytes,
        headers: dict[str, str],
        *,
        body: bool = True,
        whole: bool = True,
    ) -> None:
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
    server = Hub(
        {
            "datasets/some/set": hub_folder(tmp_path / "there/set"),
            "some/model": save("gpt2", tmp_path / "there/model"),
        }
    )
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield server
    server.shutdown()
    server.server_close()
    thread.join()


def asked(hub: Hub, home: Path, *questions: dict[str, str]) -> tuple[list[list[str]], list[str]]:
    """The answers, and the lines on stderr, of a process of its own, since the Hub's library reads these settings when it is imported."""
    said = {
        "PYTHONPATH": str(ROOT),
        "HF_HOME": str(home),
        "HF_ENDPOINT": hub.address,
        "OMP_NUM_THREADS": "1",
    }
    kept = {name: value for name, value in os.environ.items() if not name.startswith("HF_")}
    command = [sys.executable, "-c", ASK, json.dumps(questions)]
    done = subprocess.run(
        command, cwd=home.parent, env=kept | said, capture_output=True, text=True, check=False
    )
    return [json.loads(line) for line in done.stdout.splitlines()], done.stderr.splitlines()


def test_a_download_is_whole_or_one_message_goes_on_where_it_broke_off_and_is_not_made_twice(
    hub: Hub, tmp_path: Path
) -> None:
    (hub.repositories["some/model"] / "pytorch_model.bin").write_bytes(b"a pickle")
    hub.broken = {"large/train-00000-of-00001.parquet", "model.safetensors"}
    answers, said = asked(
        hub,
        tmp_path / "home",
        SET,
        MODEL,
        {**SET, "hub": "some/other"},
        {**MODEL, "model": "some/other"},
    )
    assert not answers and len(said) == 4, said
    assert all(
        "is not in the Hub's cache and could not be fetched (peer closed connection" in line
        for line in said[:2]
    )
    assert all("some/other at 0123456789ab" in line and "404" in line for line in said[2:])

    hub.broken = set()
    answers, said = asked(hub, tmp_path / "home", SET, MODEL)
    assert (
        not said
        and answers[0] == LARGE
        and {"config.json", "model.safetensors", "tokenizer.json"} <= set(answers[1])
    )
    fetched = {
        path.partition(f"{REVISION}/")[2]
        for path in hub.asked
        if path.startswith("/datasets/some/set/resolve/")
    }
    assert fetched == {
        "README.md",
        "large/train-00000-of-00001.parquet",
        "large/validation-00000-of-00001.parquet",
    }, "of one configuration"
    assert not any(path.endswith(".bin") for path in hub.asked)

    hub.asked.clear()
    assert asked(hub, tmp_path / "home", SET, MODEL) == (answers, []) and not hub.asked
    (small,), said = asked(hub, tmp_path / "home", {**SET, "config": "small"})
    assert (
        not said and len(small) == len(LARGE) and any("small/train" in path for path in hub.asked)
    )
