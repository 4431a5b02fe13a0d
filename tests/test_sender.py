"""A stage does not wait for a server that hangs, and MLflow gets every value later, once."""

import contextlib
import dataclasses
import json
import os
import shutil
import signal
import socket
import sqlite3
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from mlflow import MlflowClient

from flows.processes import terminate_process_group
from lineage.runtime import journal, recorder, sender, tracking
from lineage.runtime.settings import EXPERIMENT_NAME, resolve_tracking_uri
from tests.helpers.checkout import ROOT
from tests.helpers.toy_project import free_port, serve_in_thread, wait_until

MAX_CALL_SECONDS = 0.010
MAX_STAGE_SECONDS = 5.0
STEPS = 300
TRAIN_WITHOUT_MLFLOW = f"""
import sys
import time
sys.modules["mlflow"] = None  # importing it fails
from lineage.runtime import recorder
start_time = time.monotonic()
with recorder.track_stage("pretrain@gpt-0", parameters={{"seed": 7}}, tags={{}}) as run:
    for step in range({STEPS}):
        run.log_metrics({{"loss": 1.0}}, step=step, text_bytes=2048 * step)
    run.log_summary({{"score": 0.5}})
print(time.monotonic() - start_time)
"""


@pytest.fixture(autouse=True)
def in_study(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Work in a new study."""
    (tmp_path / "study").mkdir()
    monkeypatch.chdir(tmp_path / "study")
    monkeypatch.setenv("LINEAGE_PIPELINE_ID", "a-pipeline")
    return tmp_path / "study"


@contextlib.contextmanager
def accept_connections(
    port: int, answer: Callable[[socket.socket, threading.Event], None]
) -> Iterator[None]:
    """Give each connection to a function, in its thread, with an event that is set at the end."""
    is_over = threading.Event()
    with socket.create_server(("127.0.0.1", port)) as listener:
        listener.settimeout(0.1)

        def accept() -> None:
            while not is_over.is_set():
                with contextlib.suppress(TimeoutError):
                    connection = listener.accept()[0]
                    threading.Thread(target=answer, args=(connection, is_over)).start()

        thread = threading.Thread(target=accept)
        thread.start()
        try:
            yield
        finally:
            is_over.set()
            thread.join()


def silent_server(port: int) -> contextlib.AbstractContextManager[None]:
    """Accept connections, and never answer."""

    def wait(connection: socket.socket, is_over: threading.Event) -> None:
        with connection:
            is_over.wait()

    return accept_connections(port, wait)


def dripping_server(port: int) -> contextlib.AbstractContextManager[None]:
    """Answer one byte a second, so that no two bytes are far from each other."""

    def drip(connection: socket.socket, is_over: threading.Event) -> None:
        with connection, contextlib.suppress(OSError):
            for byte in b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\n" + b" " * 900:
                connection.sendall(bytes([byte]))
                if is_over.wait(1):
                    return

    return accept_connections(port, drip)


class _FailingHandler(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        self.send_error(500, "the disk is full")

    do_POST = do_GET

    def log_message(self, *_: object) -> None:
        pass


def failing_server(port: int) -> contextlib.AbstractContextManager[None]:
    """Answer everything with 500."""
    return serve_in_thread(ThreadingHTTPServer(("127.0.0.1", port), _FailingHandler))


@contextlib.contextmanager
def mlflow_server(folder: Path, port: int) -> Iterator["subprocess.Popen[bytes]"]:
    """Run a real MLflow server with a database in this folder."""
    command = [sys.executable, "-m", "mlflow", "server", "--port", str(port), "--workers", "1"]
    command += ["--backend-store-uri", f"sqlite:///{folder}/server.db"]
    command += ["--artifacts-destination", str(folder / "artifacts")]
    server = subprocess.Popen(
        command, cwd=folder, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, process_group=0
    )
    client = MlflowClient(f"http://127.0.0.1:{port}")

    def answers() -> bool:
        with contextlib.suppress(tracking.CONNECTION_ERRORS):
            return bool(client.search_experiments())
        return False

    try:
        wait_until(answers, seconds=90)
        yield server
    finally:
        # Its children listen at the port too: another server can have it when all have ended.
        terminate_process_group(server.pid, grace_seconds=0.0)
        server.wait()


def train(stage: str, *, pause_seconds: float = 0.0) -> tuple[float, float]:
    """Log as training does; return a long call and the time that tracking took in all.

    Of a hundred calls one may be longer: other processes use this machine too.
    """
    call_seconds = []
    total = 0.0
    start_time = time.monotonic()
    with recorder.track_stage(stage, parameters={"seed": 7}, tags={"model": "gpt"}) as run:
        total += time.monotonic() - start_time
        for step in range(STEPS):
            start_time = time.monotonic()
            run.log_metrics({"loss": 5 - step / 400}, step=step, text_bytes=2048 * step)
            call_seconds.append(time.monotonic() - start_time)
            time.sleep(pause_seconds)
        run.log_summary({"score": 0.5})
        start_time = time.monotonic()
    total += time.monotonic() - start_time + sum(call_seconds)
    return sorted(call_seconds)[-STEPS // 100], total


def logged_values() -> dict[str, dict[str, list[int]]]:
    """Return the steps of each metric, by stage, of all finished runs of stages."""
    client = MlflowClient(resolve_tracking_uri())
    experiment = client.get_experiment_by_name(EXPERIMENT_NAME)
    found: dict[str, dict[str, list[int]]] = {}
    for run in client.search_runs([experiment.experiment_id]):
        stage = run.data.tags["stage"]
        if stage == "pipeline":
            continue
        assert stage not in found, "each stage has one run"
        assert run.info.status == "FINISHED" and run.data.params == {"seed": "7"}
        found[stage] = {
            key: [metric.step for metric in client.get_metric_history(run.info.run_id, key)]
            for key in ("loss", "by_text_kb/loss", "score")
        }
    return found


def send_everything() -> None:
    """Publish until nothing waits any more: a busy machine may need several runs."""

    def publish() -> bool:
        parent = tracking.open_parent_run("a-pipeline")
        with sender.send_waiting(parent):
            parent.end("FINISHED")
        return journal.list_waiting() == []

    wait_until(publish, seconds=120)


ALL_VALUES = {
    "loss": list(range(STEPS)),
    "by_text_kb/loss": list(range(0, 2 * STEPS, 2)),
    "score": [0],
}


def nobody(port: int) -> contextlib.AbstractContextManager[None]:
    """Do not listen at all."""
    return contextlib.nullcontext()


def publish_in_seconds() -> float:
    """Publish a score, and return how long that took."""
    start_time = time.monotonic()
    parent = tracking.open_parent_run("a-pipeline")
    with sender.send_waiting(parent):
        parent.log_summary({"score": 1.0})
        parent.end("FINISHED")
    return time.monotonic() - start_time


def assert_nothing_waits() -> None:
    """Check that neither a stage nor publish waits."""
    long_call, total = train("pretrain@gpt-0")
    assert long_call < MAX_CALL_SECONDS
    assert total < MAX_STAGE_SECONDS + 0.5
    assert publish_in_seconds() < MAX_STAGE_SECONDS


@pytest.mark.parametrize("serve", [silent_server, failing_server, nobody])
def test_a_stage_waits_neither_in_training_nor_long_at_its_end(
    serve: object, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    assert callable(serve)
    port = free_port()
    monkeypatch.setenv("LINEAGE_TRACKING_URI", f"http://127.0.0.1:{port}")
    with serve(port):
        assert_nothing_waits()
    lines = capfd.readouterr().err.splitlines()
    assert len(lines) == 3 and all(line.startswith("tracking: ") for line in lines)
    assert "pretrain@gpt-0 goes on without MLflow, which gets its values later" in lines[0]
    assert "the values of 1 stage wait in .lineage/unsent; the next run sends them" in lines[2]
    assert len(journal.list_waiting()) == 1


# Each prints how long MLflow has kept it.
END_STOPPED_RUN = """
import sys, time
from lineage.runtime import sender
sys.argv = ["sender", "KILLED"]
start_time = time.monotonic()
sender.main()
print(time.monotonic() - start_time)
"""
PUBLISH = """
import time
from lineage.runtime import sender, tracking
start_time = time.monotonic()
parent = tracking.open_parent_run("a-pipeline")
if parent.run_id:
    print("opened", flush=True)
    input()
    start_time = time.monotonic()
with sender.send_waiting(parent):
    for step in range(20):
        parent.log_summary({f"score_{step}": 1.0})
        parent.set_note("a note")
    parent.end("FINISHED")
print(time.monotonic() - start_time)
"""


def start_script(script: str) -> "subprocess.Popen[str]":
    return subprocess.Popen(
        [sys.executable, "-c", script],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def test_a_server_that_sends_a_byte_a_second_does_not_hold_the_end_of_a_run(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    port = free_port()
    monkeypatch.setenv("LINEAGE_TRACKING_URI", f"http://127.0.0.1:{port}")
    with dripping_server(port):
        _, total = train("pretrain@gpt-0")
        assert total < MAX_STAGE_SECONDS + 0.5
        running = [start_script(script) for script in (PUBLISH, END_STOPPED_RUN)]
        for process in running:
            printed, _ = process.communicate(timeout=60)
            assert float(printed) < MAX_STAGE_SECONDS


@pytest.mark.slow
def test_a_server_that_becomes_slow_while_a_run_is_published_costs_seconds(
    in_study: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    port = free_port()
    monkeypatch.setenv("LINEAGE_TRACKING_URI", f"http://127.0.0.1:{port}")
    with mlflow_server(in_study, port):
        publish = start_script(PUBLISH)
        assert publish.stdout.readline() == "opened\n"
    with dripping_server(port):
        printed, _ = publish.communicate("go\n", timeout=60)
    assert float(printed) < 2 * MAX_STAGE_SECONDS


@pytest.mark.slow
@pytest.mark.parametrize("lock", ["EXCLUSIVE", "IMMEDIATE"])
def test_a_stage_does_not_wait_long_for_a_database_that_another_process_has_locked(
    lock: str, in_study: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("LINEAGE_TRACKING_URI", raising=False)
    assert tracking.open_parent_run("a-pipeline").run_id
    with contextlib.closing(sqlite3.connect(in_study / "mlflow.db")) as other:
        other.execute(f"BEGIN {lock}")
        assert_nothing_waits()
    lines = capfd.readouterr().err.splitlines()
    assert len(lines) == 3 and all(line.startswith("tracking: ") for line in lines)
    assert "another process has locked it for 4 s" in lines[0]
    send_everything()
    assert logged_values() == {"pretrain@gpt-0": ALL_VALUES}


def test_a_stage_goes_on_where_mlflow_cannot_be_imported(
    in_study: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("LINEAGE_TRACKING_URI", raising=False)
    answer = subprocess.run(
        [sys.executable, "-c", TRAIN_WITHOUT_MLFLOW],
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=True,
    )
    assert float(answer.stdout) < 1.0
    (line,) = answer.stderr.splitlines()
    assert line.startswith("tracking: MLflow cannot be imported, and gets the values of this stage")
    send_everything()
    assert logged_values() == {"pretrain@gpt-0": ALL_VALUES}


@pytest.mark.slow
def test_every_value_is_there_once_when_the_server_answers_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is silent, then fails, then is there, vanishes while a stage logs, and returns."""
    monkeypatch.setattr(sender, "RETRY_SECONDS", 0.5)
    port = free_port()
    monkeypatch.setenv("LINEAGE_TRACKING_URI", f"http://127.0.0.1:{port}")
    with silent_server(port):
        train("pretrain@gpt-0")
    with failing_server(port):
        train("pretrain@gpt-1")
    with mlflow_server(tmp_path, port) as server:
        train("pretrain@gpt-2")
        send_everything()
        assert set(logged_values()) == {f"pretrain@gpt-{number}" for number in range(3)}
        vanish = threading.Timer(1.0, lambda: os.killpg(server.pid, signal.SIGKILL))
        vanish.start()
        long_call, total = train("pretrain@gpt-3", pause_seconds=0.01)
        vanish.join()
        assert long_call < MAX_CALL_SECONDS and total < MAX_STAGE_SECONDS + 0.5
    assert len(journal.list_waiting()) == 1
    with mlflow_server(tmp_path, port):
        send_everything()
        assert logged_values() == {f"pretrain@gpt-{number}": ALL_VALUES for number in range(4)}


def start_journal() -> journal.JournalWriter:
    """Begin the journal of a stage, and log one value."""
    writer = journal.JournalWriter(
        journal.StageRun("ngram", "p", {"seed": "7"}, {}, {"pipeline": "p"}, [])
    )
    values = {"loss": 1.0}
    writer.write("log_metrics", {"values": values, "step": 0, "text_bytes": None, "time_ms": 5})
    return writer


def test_a_journal_of_a_stage_that_died_is_read_to_its_last_whole_line(in_study: Path) -> None:
    """The last line may be cut short."""
    writer = start_journal()
    sender._send_waiting()
    assert journal.list_waiting() == [writer.path], "its stage is alive"
    writer.release()
    with writer.path.open("a") as stream:
        stream.write('["log_metrics", {"val')
    ((event,),) = journal.follow(writer.path)
    assert event[0] == "log_metrics" and event[1]["values"] == {"loss": 1.0}
    assert journal.list_waiting() == [writer.path]


@pytest.mark.parametrize("line", ['{"stage": "ngram", "unknown": 1}', '{"stage": "ngr', "5"])
def test_a_journal_that_cannot_be_read_is_kept_under_another_name(
    line: str, in_study: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """It is damaged, or another version has written it."""
    folder = in_study / journal.JOURNAL_DIR
    folder.mkdir(parents=True)
    (folder / "1-1.jsonl").write_text(f"{line}\n")
    sender._send_waiting()
    assert [path.name for path in folder.iterdir()] == ["1-1.rejected"]
    assert capfd.readouterr().err.count("1-1.jsonl is refused, and kept in") == 1


def test_a_journal_with_events_of_another_version_does_not_hold_up_later_ones(
    in_study: Path, empty_mlflow_database: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    shutil.copy(empty_mlflow_database, in_study)
    expected = set()
    for event in (["flush", {}], ["log_summary", {"values": {"score": 0.5}}], ["log_metrics", {}]):
        writer = start_journal()
        with writer.path.open("a") as stream:
            stream.write(json.dumps(event) + "\n")
        writer.release()
        expected.add(f"{writer.path.stem}.rejected")
    sender._send_waiting()
    assert {path.name for path in writer.path.parent.iterdir()} == expected and len(expected) == 3
    assert capfd.readouterr().err.count("another version of lineage has written it") == 3


def test_a_journal_that_two_processes_would_send_is_in_mlflow_once(
    in_study: Path,
    empty_mlflow_database: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    shutil.copy(empty_mlflow_database, in_study)
    monkeypatch.delenv("LINEAGE_TRACKING_URI", raising=False)
    assert tracking.open_parent_run("p").run_id
    writer = start_journal()
    writer.write("log_summary", {"score": 0.5})
    end = journal.StageEnd("FINISHED", time_ms=6)
    writer.write(journal.END, dataclasses.asdict(end))
    writer.release()
    with ThreadPoolExecutor(2) as pool:
        assert [*pool.map(sender._send_if_free, [writer.path] * 2)] == [None, None]
    values = {"loss": [0], "by_text_kb/loss": [], "score": [0]}
    assert logged_values() == {"ngram": values}
    assert [*writer.path.parent.iterdir()] == [] and capfd.readouterr().err == ""


@pytest.mark.usefixtures("without_time_limit")
def test_a_full_disk_ends_the_journal_and_not_the_stage(
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
    empty_mlflow_database: Path,
    tmp_path: Path,
) -> None:
    monkeypatch.setenv("LINEAGE_TRACKING_URI", f"sqlite:///{tmp_path}/mlflow.db")
    shutil.copy(empty_mlflow_database, tmp_path)
    with recorder.track_stage("ngram", parameters={}, tags={}) as run:
        run.log_metrics({"loss": 2.0}, step=0)
        with Path("/dev/full").open("w") as full:
            os.dup2(full.fileno(), run._journal._stream.fileno())
        for step in range(1, 5):
            run.log_metrics({"loss": 1.0}, step=step)
    found = MlflowClient(f"sqlite:///{tmp_path}/mlflow.db").get_run(run.run_id)
    assert (found.info.status, found.data.metrics["loss"]) == ("KILLED", 2.0)
    assert capfd.readouterr().err.count("No space left on device") == 1
