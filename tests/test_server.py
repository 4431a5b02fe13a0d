"""Every way of serving the champion answers as `predict` does, and the server holds its own."""

import asyncio
import http.client
import json
import os
import select
import signal
import socket
import statistics
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import mlflow
import numpy as np
import pandas as pd
import psutil
import pytest
from mlflow import MlflowClient

from lineage.errors import InputError
from lineage.serving.batcher import MAX_BATCH_CHARACTERS, MAX_BATCH_ROWS, Batcher
from lineage.serving.connections import MAX_CONNECTIONS, MAX_REQUESTS
from lineage.serving.export import export_system
from lineage.serving.mlflow_model import LoadedSystem
from lineage.serving.requests import MAX_MARKS, REQUEST_LIMITS
from lineage.tasks.columns import TableColumns
from tests.helpers.checkout import run_command
from tests.helpers.kept_systems import Evaluated, Packaged
from tests.helpers.servers import is_up, run_server
from tests.helpers.toy_project import free_port, wait_until

NAME = "study-mood"  # the study's folder, and its task
LABEL_FILE = ("lineage", "predict", "--task", "mood", "new.csv", "-o", "labelled.jsonl")


def ask(port: int, body: str) -> tuple[int, Any]:
    """Return the status and the answer to a request."""
    request = urllib.request.Request(
        f"http://127.0.0.1:{port}/invocations",
        data=body.encode(),
        headers={"Content-Type": "application/json"},
    )
    try:
        with urllib.request.urlopen(request, timeout=60) as answer:
            return answer.status, json.load(answer)
    except urllib.error.HTTPError as error:
        return error.code, json.load(error)


def write_new_texts(folder: Path) -> list[str]:
    texts = [f"the {word} film , which was seen by friends" for word in ("good", "bad", "odd")]
    texts.append("")
    pd.DataFrame({"review": texts}).to_csv(folder / "new.csv", index=False)
    return texts


def read_answers(folder: Path) -> list[dict[str, Any]]:
    """Return what `lineage predict` has written, without the columns of the file."""
    rows = [json.loads(line) for line in (folder / "labelled.jsonl").read_text().splitlines()]
    return [{key: value for key, value in row.items() if key != "review"} for row in rows]


@pytest.mark.slow
def test_every_way_of_serving_the_champion_answers_as_predict_does(project: Path) -> None:
    store = f"sqlite:///{project}/mlflow.db"
    texts = write_new_texts(project)
    run_command(project, *LABEL_FILE)
    expected = read_answers(project)
    assert [row["prediction"] for row in expected][3] is None
    rows = json.dumps({"dataframe_records": [{"review": text} for text in texts]})

    mlflow.set_tracking_uri(store)
    model = mlflow.pyfunc.load_model(f"models:/{NAME}@champion")
    assert model.predict(pd.DataFrame({"review": texts})).to_dict(orient="records") == expected

    version = MlflowClient(store).get_model_version_by_alias(NAME, "champion")
    scores = pd.read_parquet(
        mlflow.artifacts.download_artifacts(
            f"models:/{NAME}@champion/artifacts/item_scores.parquet"
        )
    )
    assert scores["score"].mean() == pytest.approx(float(version.tags["score"]), abs=1e-5)

    port = free_port()
    words = ("mlflow", "models", "serve", "-m", f"models:/{NAME}@champion")
    options = ("--env-manager", "local", "--host", "127.0.0.1", "--port", str(port))
    with run_server(project, *words, *options, MLFLOW_TRACKING_URI=store):
        wait_until(lambda: is_up(port), seconds=60)
        assert ask(port, rows) == (200, {"predictions": expected})

    port = free_port()  # a worker of the first server may still answer at its own
    serve = ("lineage", "serve", "--task", "mood", "--port", str(port))
    with run_server(project, *serve) as process:
        wait_until(lambda: is_up(port), seconds=60)
        assert ask(port, rows) == (200, {"predictions": expected})
        hostile = "[" * 100_000
        assert ask(port, hostile)[0] == 400
        assert ask(port, rows)[0] == 200
        assert psutil.Process(process.pid).children(recursive=True) == []
        os.killpg(process.pid, signal.SIGINT)  # what Ctrl-C does
        assert process.wait(30) == 0
    lines = (project / "lineage.log").read_text().splitlines()
    assert f"answers at http://127.0.0.1:{port}/invocations; Ctrl-C ends it" in lines[0]
    assert lines[1].startswith("curl ") and lines[2:] == ["the server has ended"]
    assert not is_up(port)


@pytest.mark.slow
def test_a_system_of_the_study_is_served_without_a_registry(project: Path) -> None:
    (project / "mlflow.db").unlink()
    texts = write_new_texts(project)
    run_command(project, *LABEL_FILE, "--system", "tfidf")
    port = free_port()
    serve = ("lineage", "serve", "--task", "mood", "--system", "tfidf", "--port", str(port))
    with run_server(project, *serve):
        wait_until(lambda: is_up(port), seconds=60)
        rows = json.dumps({"dataframe_records": [{"review": text} for text in texts]})
        assert ask(port, rows) == (200, {"predictions": read_answers(project)})
    assert not (project / "mlflow.db").exists()


@pytest.mark.slow
def test_a_run_publishes_to_a_server_of_mlflow_and_goes_on_without_it(
    project: Path, tmp_path: Path
) -> None:
    port = free_port()
    address = f"http://127.0.0.1:{port}"
    publish = ("python", "-m", "stages.publish")
    server = (
        "mlflow", "server", "--backend-store-uri", f"sqlite:///{tmp_path}/server.db",
        "--artifacts-destination", str(tmp_path / "kept"), "--host", "127.0.0.1",
        "--port", str(port), "--workers", "1",
    )  # fmt: skip
    texts = write_new_texts(project)
    run_command(project, *LABEL_FILE)
    rows = json.dumps({"dataframe_records": [{"review": text} for text in texts]})
    with run_server(tmp_path, *server, MLFLOW_DISABLE_TELEMETRY="true"):
        wait_until(lambda: is_up(port), seconds=60)
        for _ in range(2):  # the second time nothing is registered
            printed = run_command(project, *publish, LINEAGE_TRACKING_URI=address)
            assert "tracking:" not in printed and "champion" not in printed.lower()
        client = MlflowClient(address)
        (version,) = client.search_model_versions(f"name='{NAME}'")
        assert client.get_registered_model(NAME).aliases == {"champion": version.version}
        parent = client.get_run(version.tags["run_id"])
        assert parent.info.status == "FINISHED"
        note = parent.data.tags["mlflow.note.content"]
        assert "- **mood**: The champion is still " in note
        serve_port = free_port()
        serve = ("lineage", "serve", "--task", "mood", "--port", str(serve_port))
        with run_server(project, *serve, LINEAGE_TRACKING_URI=address):
            wait_until(lambda: is_up(serve_port), seconds=60)
            assert ask(serve_port, rows) == (200, {"predictions": read_answers(project)})
    printed = run_command(project, *publish, LINEAGE_TRACKING_URI=address)
    assert printed.count("tracking:") == 1 and "report: " in printed


REQUEST_SECONDS = 4.0  # that clients of this server have
SERVER_SCRIPT = """
import sys
from pathlib import Path

import uvicorn

from lineage.serving import connections
from lineage.serving.mlflow_model import LoadedSystem
from lineage.serving.server import configure_server, listen

connections.REQUEST_SECONDS = float(sys.argv[3])
with listen(int(sys.argv[2])) as listener:
    uvicorn.Server(configure_server(LoadedSystem(Path(sys.argv[1])))).run(sockets=[listener])
"""


@dataclass(frozen=True)
class Served:
    """A server of a small TF-IDF model, in a process of its own, with impatient connections."""

    port: int
    log: Path

    def connect(self) -> socket.socket:
        return socket.create_connection(("127.0.0.1", self.port), timeout=30)

    def exchange(self, *lines: str, body: str = "") -> str:
        """Send a request as it is written here, and return the answer as it comes."""
        head = "\r\n".join((*lines, "Connection: close"))
        with self.connect() as client:
            client.sendall(f"{head}\r\n\r\n{body}".encode())
            answer = b"".join(iter(lambda: client.recv(65536), b""))
        return answer.decode().lower()


@pytest.fixture(scope="module")
def served(packaged_texts: Packaged, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    folder = tmp_path_factory.mktemp("served")
    port = free_port()
    arguments = (str(packaged_texts.exported), str(port), str(REQUEST_SECONDS))
    with run_server(folder, "python", "-c", SERVER_SCRIPT, *arguments):
        wait_until(lambda: is_up(port), seconds=60)
        yield Served(port, folder / "python.log")
    assert "Traceback" not in (folder / "python.log").read_text()


def records(*texts: str) -> str:
    return json.dumps({"dataframe_records": [{"review": text} for text in texts]})


def post(client: http.client.HTTPConnection, text: str) -> None:
    """Send a request on a connection that stays open, and read its answer."""
    client.request("POST", "/invocations", records(text), {"Content-Type": "application/json"})
    answer = client.getresponse()
    assert answer.status == 200 and "predictions" in json.load(answer)


NESTED = "[" * 900 + "]" * 900
NAMES = [f"c{number}" for number in range(300_000)]


def nest_other_columns() -> str:
    rows = ",".join([f'{{"review": "a", "other": {NESTED}}}'] * 1000)
    return f'{{"dataframe_records": [{rows}]}}'


def name_other_columns_in_each_row() -> str:
    rows = [
        {"review": "a"} | {f"c{row}-{number}": 1 for number in range(150)} for row in range(1000)
    ]
    return json.dumps({"dataframe_records": rows})


# Within the limits of rows, characters and bytes.
HOSTILE_REQUESTS: dict[str, Callable[[], str]] = {
    "columns of records": lambda: json.dumps(
        {"dataframe_records": [{"review": "a"} | dict.fromkeys(NAMES, 1)]}
    ),
    "columns of a split": lambda: json.dumps(
        {"dataframe_split": {"columns": ["review", *NAMES], "data": [["a", *NAMES]]}}
    ),
    "columns of inputs": lambda: json.dumps(
        {"inputs": {"review": ["a"]} | {name: [1] for name in NAMES}}
    ),
    "other columns in each row": name_other_columns_in_each_row,
    "nested lists in other columns": nest_other_columns,
    "nested lists beside the rows": lambda: f'{{"inputs": ["a"], "params": {NESTED}}}',
    "empty rows": lambda: f'{{"dataframe_records": [{",".join(["[]"] * 2_600_000)}]}}',
    "a long name": lambda: f'{{"inputs": {{"review": ["a"], "{"n" * 7_000_000}": [1]}}}}',
    "endless accents": lambda: records("a" + "\u0301" * 15_000 + "\u0316" * 15_000),
}


@pytest.mark.parametrize("name", HOSTILE_REQUESTS)
def test_a_hostile_request_is_refused_at_once(name: str, served: Served) -> None:
    body = HOSTILE_REQUESTS[name]()
    start = time.monotonic()
    status, answer = ask(served.port, body)
    seconds = time.monotonic() - start
    assert (status, answer["error_code"]) == (400, "BAD_REQUEST"), answer
    assert len(answer["message"]) < 300
    assert seconds < 4, "many took from 4 to 10 s, or all memory; now each takes at most 0.2 s"
    assert ask(served.port, records("a"))[0] == 200


def test_requests_at_the_limits_are_answered(served: Served) -> None:
    assert ask(served.port, records(*[", [{" * 200] * REQUEST_LIMITS.rows))[0] == 200
    assert ask(served.port, records("a" + "\u0301" * MAX_MARKS))[0] == 200


def test_all_forms_of_mlflow_get_the_same_answer(served: Served) -> None:
    texts = ["one film", "another film"]
    rows = [{"review": text} for text in texts]
    split = {"columns": ["review"], "data": [[text] for text in texts], "index": [5, 6]}
    expected = ask(served.port, json.dumps({"dataframe_records": rows}))
    assert expected[0] == 200 and len(expected[1]["predictions"]) == 2
    for request in (
        {"dataframe_split": split},
        {"instances": rows},
        {"instances": texts},
        {"inputs": rows},
        {"inputs": texts},
        {"inputs": {"review": texts}},
        {"dataframe_records": rows, "params": {"a": 1}},
    ):
        assert ask(served.port, json.dumps(request)) == expected, request
    one = ask(served.port, json.dumps({"inputs": {"review": texts[0]}}))
    assert one[1]["predictions"] == expected[1]["predictions"][:1]


def is_closed(client: socket.socket) -> bool:
    """Return whether the server has closed a connection on which it has nothing to say."""
    if not select.select([client], [], [], 0)[0]:
        return False
    try:
        return client.recv(1000) == b""
    except ConnectionResetError:
        return True


def test_a_client_that_sends_a_byte_now_and_then_is_cut_off(served: Served) -> None:
    begun = "POST /invocations HTTP/1.1\r\nHost: localhost\r\n"
    whole_head = f"{begun}Content-Type: application/json\r\nContent-Length: 1000\r\n\r\n"
    with ExitStack() as stack:
        clients = {}
        for name, beginning in {"idle": "", "head": begun, "body": whole_head}.items():
            clients[name] = stack.enter_context(served.connect())
            clients[name].sendall(beginning.encode())
        answered = stack.enter_context(served.connect())
        answered.sendall(b"GET /ping HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1000\r\n\r\n")
        assert answered.recv(1000).startswith(b"HTTP/1.1 200")
        clients["body of an answered request"] = answered
        start = time.monotonic()
        open_clients = dict(clients)
        while open_clients and time.monotonic() - start < 3 * REQUEST_SECONDS:
            time.sleep(0.2)
            for name, client in list(open_clients.items()):
                if is_closed(client):
                    del open_clients[name]
                elif name != "idle":
                    client.send(b"x")
    assert not open_clients, "they can keep the server from others for ever"
    assert time.monotonic() - start > REQUEST_SECONDS / 2
    assert ask(served.port, records("a"))[0] == 200


def test_a_connection_may_be_used_for_longer_than_one_request_may_take(served: Served) -> None:
    client = http.client.HTTPConnection("127.0.0.1", served.port, timeout=30)
    client.connect()
    kept = client.sock
    end = time.monotonic() + 1.5 * REQUEST_SECONDS
    while time.monotonic() < end:
        post(client, "a")
        time.sleep(0.3)
    assert client.sock is kept
    client.close()


def test_the_number_of_connections_is_bounded(served: Served) -> None:
    with ExitStack() as stack:
        for _ in range(MAX_REQUESTS):
            stack.enter_context(served.connect())
        assert " 503 " in served.exchange("GET /ping HTTP/1.1", "Host: localhost")
        for _ in range(MAX_CONNECTIONS - MAX_REQUESTS):
            stack.enter_context(served.connect())
        late = [stack.enter_context(served.connect()) for _ in range(20)]
        time.sleep(0.5)
        assert all(map(is_closed, late))
    wait_until(lambda: is_up(served.port), seconds=10)


def test_a_client_that_leaves_is_no_error_of_the_server(served: Served) -> None:
    body = records("a " * 1000)
    head = (
        "POST /invocations HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
        f"Content-Length: {len(body)}\r\n\r\n"
    )
    form = head.replace("application/json", "text/plain")
    for sent in (head, head + body[:100], form + body[:100], head + body):
        client = served.connect()
        client.sendall(sent.encode())
        time.sleep(0.1)  # the server has begun to read
        client.close()
    time.sleep(0.5)
    assert ask(served.port, records("a"))[0] == 200
    assert "Traceback" not in served.log.read_text()


@pytest.mark.parametrize(
    ("path", "status"),
    [
        ("/docs", 404),
        ("/redoc", 404),
        ("/openapi.json", 404),
        ("/nothing", 404),
        ("/invocations", 405),
    ],
)
def test_no_page_describes_the_server(path: str, status: int, served: Served) -> None:
    answer = served.exchange(f"GET {path} HTTP/1.1", "Host: localhost")
    assert answer.startswith(f"http/1.1 {status}")


@pytest.mark.parametrize("path", ["/ping", "/health", "/version"])
def test_other_addresses_of_mlflow_are_answered(path: str, served: Served) -> None:
    answer = served.exchange(f"GET {path} HTTP/1.1", "Host: localhost")
    assert answer.startswith("http/1.1 200")
    if path == "/version":
        assert answer.endswith(mlflow.version.VERSION)


def test_a_page_of_another_site_gets_no_answer(served: Served) -> None:
    body = records("a")
    post = "POST /invocations HTTP/1.1"
    length = f"Content-Length: {len(body)}"
    json_type = "Content-Type: application/json"
    for host in ("example.org", "127.0.0.1.example.org", f"example.org:{served.port}"):
        answer = served.exchange(post, f"Host: {host}", json_type, length, body=body)
        assert answer.startswith("http/1.1 400") and "predictions" not in answer
    # A browser sends a form without asking first; before JSON it asks with OPTIONS.
    origin = "Origin: http://example.org"
    forms = ("text/plain", "application/x-www-form-urlencoded", "multipart/form-data")
    for form_type in (*forms, "text/csv", "application/vnd.apache.parquet", ""):
        content_type = f"Content-Type: {form_type}"
        answer = served.exchange(post, "Host: localhost", origin, content_type, length, body=body)
        assert answer.startswith("http/1.1 415") and "predictions" not in answer
    preflight = ("OPTIONS /invocations HTTP/1.1", "Host: localhost", origin)
    answer = served.exchange(*preflight, "Access-Control-Request-Method: POST")
    assert answer.startswith("http/1.1 405") and "access-control" not in answer


@pytest.mark.parametrize(
    "content_type", ["APPLICATION/JSON", "Application/Json; charset=UTF-8", "application/json"]
)
def test_media_types_are_read_in_any_case(content_type: str, served: Served) -> None:
    body = records("a")
    lines = ("POST /invocations HTTP/1.1", "Host: localhost", f"Content-Type: {content_type}")
    answer = served.exchange(*lines, f"Content-Length: {len(body)}", body=body)
    assert answer.startswith("http/1.1 200")


def test_a_body_in_chunks_is_refused_also_with_a_length_beside_it(served: Served) -> None:
    body = records("a")
    answer = served.exchange(
        "POST /invocations HTTP/1.1",
        "Host: localhost",
        "Content-Type: application/json",
        "Content-Length: 5",
        "Transfer-Encoding: chunked",
        body=f"{len(body):x}\r\n{body}\r\n0\r\n\r\n",
    )
    assert answer.startswith("http/1.1 411")


def test_answers_on_one_connection_do_not_wait_for_acknowledgements(served: Served) -> None:
    client = http.client.HTTPConnection("127.0.0.1", served.port, timeout=30)
    seconds = []
    for _ in range(40):
        start = time.monotonic()
        post(client, "a")
        seconds.append(time.monotonic() - start)
    client.close()
    assert statistics.quantiles(seconds[10:])[0] < 0.035, "a delayed acknowledgement takes 0.04 s"


def test_concurrent_requests_get_the_answers_that_they_get_alone(served: Served) -> None:
    texts = [f"film number {number} is {'good ' * (number % 7)}" for number in range(48)]
    bodies = [records(*texts[number : number + 3]) for number in range(45)]
    bodies[7] = '{"dataframe_records": [{"review": 7}]}'
    bodies[11] = records("")
    alone = [ask(served.port, body) for body in bodies]
    with ThreadPoolExecutor(16) as pool:
        together = list(pool.map(lambda body: ask(served.port, body), bodies))
    assert together == alone
    assert [status for status, _ in alone].count(400) == 2


class CountingModel:
    """Repeats the texts; refuses `bad`; waits at the first call until all requests are there."""

    def __init__(self) -> None:
        self.calls: list[list[str]] = []
        self.may_answer = threading.Event()

    def answer_rows(self, columns: TableColumns) -> TableColumns:
        self.may_answer.wait(30)
        self.calls.append(columns["text"])
        if "bad" in columns["text"]:
            raise InputError("a bad row")
        return {"prediction": [text.upper() for text in columns["text"]]}


def answer_together(model: CountingModel, tables: list[list[str]]) -> list[Any]:
    """Ask for all tables at once, and return their answers or errors."""

    async def ask_all() -> list[Any]:
        batcher = Batcher(model.answer_rows)
        answers = [asyncio.create_task(batcher.answer({"text": table})) for table in tables]
        await asyncio.sleep(0.1)
        model.may_answer.set()
        return await asyncio.gather(*answers, return_exceptions=True)

    return asyncio.run(ask_all())


def test_requests_that_arrive_together_share_a_call() -> None:
    model = CountingModel()
    answers = answer_together(model, [["a"], ["b", "c"], ["d"]])
    assert [answer["prediction"] for answer in answers] == [["A"], ["B", "C"], ["D"]]
    assert model.calls == [["a", "b", "c", "d"]]


def test_an_error_in_one_request_does_not_fail_those_beside_it() -> None:
    answers = answer_together(CountingModel(), [["a"], ["bad"], ["c"]])
    assert answers[0] == {"prediction": ["A"]} and answers[2] == {"prediction": ["C"]}
    assert isinstance(answers[1], InputError)


def test_a_call_is_bounded_in_rows_and_characters() -> None:
    model = CountingModel()
    many = ["x"] * MAX_BATCH_ROWS
    long = ["y" * (MAX_BATCH_CHARACTERS + 1)]
    tables = [many, ["a"], ["b"], long, ["c"]]
    answers = answer_together(model, tables)
    assert [len(answer["prediction"]) for answer in answers] == list(map(len, tables))
    assert model.calls == [many, ["a", "b"], long, ["c"]]


def test_networks_give_the_same_answers_whatever_is_answered_beside_them(
    evaluated_texts: Evaluated, tmp_path: Path
) -> None:
    """Padding changes the last digits of float32, as it does in a file for `lineage predict`."""
    texts = evaluated_texts.test["review"].tolist()
    for name, kept in evaluated_texts.systems.items():
        export_system(kept, evaluated_texts.task, tmp_path / "exported" / name)
        system = LoadedSystem(tmp_path / "exported" / name)
        alone = [system.answer_rows({"review": [text]}) for text in texts]
        together = system.answer_rows({"review": texts})
        for column, values in together.items():
            values_alone = [answer[column][0] for answer in alone]
            if column == "prediction":
                assert values == values_alone, name
            else:
                np.testing.assert_allclose(values, values_alone, atol=1e-5, rtol=0)
