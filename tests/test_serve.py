"""A run registers its recommended system, and every way of serving it answers as `predict` does."""

import json
import os
import signal
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import mlflow
import pandas as pd
import psutil
import pytest
from mlflow import MlflowClient

from tests.checkout import ROOT, run_command
from tests.toy_project import free_port, wait_until

pytestmark = pytest.mark.slow

NAME = "study-mood"  # the study's folder, and its task
LABEL_FILE = ("lineage", "predict", "--task", "mood", "new.csv", "-o", "labelled.jsonl")


@contextmanager
def run_server(folder: Path, *words: str, **environment: str) -> Iterator[subprocess.Popen[str]]:
    """Run a server in a session of its own, as in a terminal of its own, and end it at last."""
    variables = {name: text for name, text in os.environ.items() if not name.startswith("LINEAGE_")}
    bin_folder = Path(sys.prefix) / "bin"
    variables["PATH"] = f"{bin_folder}{os.pathsep}{variables['PATH']}"
    variables["PYTHONPATH"] = str(ROOT)
    with (folder / f"{words[0]}.log").open("w") as log:
        process = subprocess.Popen(
            list(words),
            cwd=folder,
            env=variables | {"OMP_NUM_THREADS": "1"} | environment,
            stdout=log,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )
    try:
        yield process
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGTERM)
            process.wait(30)


def is_up(port: int, path: str = "/health") -> bool:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=5) as answer:
            return bool(answer.status == 200)
    except OSError:
        return False


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
