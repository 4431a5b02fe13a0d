"""A real MLflow store, written by several processes and read back; and what happens where there is none."""

import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from mlflow import MlflowClient
from mlflow.entities import Run
from mlflow.exceptions import MlflowException

from lineage.runtime import recorder, tracking
from lineage.runtime.provenance import Dataset
from lineage.runtime.settings import EXPERIMENT_NAME, resolve_tracking_uri
from lineage.runtime.tracking import MlflowTracker

REPOSITORY = Path(__file__).resolve().parent.parent
WRITER = """
import sys
from lineage.runtime.provenance import Dataset
from lineage.runtime.recorder import track_stage
stage = sys.argv[1]
data = Dataset("artifacts/corpora/general", "ab" * 32)
about = {"budget": {"text_bytes": 4000, "max_epochs": 4}, "finetune_seeds": [0, 1]}
with track_stage(stage, parameters=about, tags={"family": stage[-3:]}, datasets=[data]) as run:
    for step in range(1200):
        run.log_metrics({"loss": 5 - step / 400}, step=step, text_bytes=2048 * step)
        if step % 500 == 0:
            run.flush()
"""


@pytest.fixture(scope="module")
def main(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A main checkout with an empty store and a space in its path."""
    folder = tmp_path_factory.mktemp("main checkout")
    (folder / "params.yaml").write_text("seed: 7\ngrid: {seeds: [0]}\n")
    return folder


@pytest.fixture
def place(
    main: Path, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Path]:
    """The process stands in that checkout, in a pipeline of its own."""
    monkeypatch.chdir(main)
    monkeypatch.setenv("LINEAGE_MAIN", str(main))
    monkeypatch.setenv("LINEAGE_PIPELINE_ID", request.node.name[:60])
    monkeypatch.setenv("LINEAGE_FLOW_RUN", "flow-1")
    monkeypatch.delenv("LINEAGE_TRACKING_URI", raising=False)
    monkeypatch.setattr(tracking, "SYSTEM_METRICS_SECONDS", 0.1)
    return main


def runs(where: str = "") -> list[Run]:
    """The runs of this test's pipeline, oldest first."""
    client = MlflowClient(resolve_tracking_uri())
    experiment = client.get_experiment_by_name(EXPERIMENT_NAME)
    own = f"tags.pipeline = '{os.environ['LINEAGE_PIPELINE_ID']}'{where}"
    return list(
        client.search_runs([experiment.experiment_id], own, order_by=["attributes.start_time ASC"])
    )


def steps(run: Run, key: str) -> list[int]:
    return [
        m.step
        for m in MlflowClient(resolve_tracking_uri()).get_metric_history(run.info.run_id, key)
    ]


@pytest.mark.slow
def test_two_processes_that_begin_together_share_one_parent(place: Path) -> None:
    """First in this file: the store is empty, so both find no database either."""
    stages = ["pretrain@gpt", "pretrain@bert-elm"]
    environment = os.environ | {"PYTHONPATH": str(REPOSITORY)}
    writers = [
        subprocess.Popen(
            [sys.executable, "-c", WRITER, stage],
            env=environment,
            cwd=place,
            stderr=subprocess.PIPE,
        )
        for stage in stages
    ]
    assert [(w.wait(60), w.stderr.read().decode() if w.stderr else "") for w in writers] == [
        (0, ""),
        (0, ""),
    ]
    parent, *children = runs()
    assert parent.data.tags["stage"] == "pipeline" and parent.info.status == "RUNNING"
    assert sorted(c.data.tags["stage"] for c in children) == sorted(stages)
    for child in children:
        assert child.info.status == "FINISHED" and child.info.run_name == child.data.tags["stage"]
        assert child.data.tags["mlflow.parentRunId"] == parent.info.run_id
        assert (
            child.data.tags["family"] == child.data.tags["stage"][-3:]
            and child.data.tags["prefect_flow_run"] == "flow-1"
        )
        assert len(child.data.tags["git_commit"]) in (4, 40)
        assert child.data.params == {
            "budget.text_bytes": "4000",
            "budget.max_epochs": "4",
            "finetune_seeds": "[0, 1]",
        }
        assert steps(child, "loss") == list(range(1200)) and steps(
            child, "by_text_kb/loss"
        ) == list(range(0, 2400, 2))
        (data,) = child.inputs.dataset_inputs
        assert (data.dataset.name, data.dataset.digest) == ("artifacts/corpora/general", "ab" * 8)


def test_a_stage_that_was_killed_goes_on_in_its_run(place: Path) -> None:
    for first, last, killed in ((0, 10, True), (6, 15, False)):
        try:
            with recorder.track_stage(
                "pretrain@gpt-0", parameters={"seed": 7}, tags={"family": "gpt"}
            ) as run:
                for step in range(first, last):
                    run.log_metrics({"loss": float(step)}, step=step)
                run.flush()
                if killed:
                    assert [r.info.status for r in runs()] == ["RUNNING", "RUNNING"]
                    raise KeyboardInterrupt
        except KeyboardInterrupt:
            assert [r.info.status for r in runs()] == ["KILLED", "KILLED"], (
                "nobody may come to end the parent"
            )
    _, child = runs()
    assert child.info.status == "FINISHED" and steps(child, "loss") == list(range(15))


def test_another_parameter_is_another_run(place: Path) -> None:
    for seed, error in ((7, ValueError), (8, None)):
        try:
            with recorder.track_stage("adapt@gpt-0-sense", parameters={"seed": seed}, tags={}):
                if error:
                    raise error("bad data")
        except ValueError:
            assert runs()[1].info.status == "FAILED"
    _, failed, done = runs()
    assert (failed.info.status, done.info.status) == ("KILLED", "FINISHED")
    assert (failed.data.params, done.data.params) == ({"seed": "7"}, {"seed": "8"})


def test_the_machine_is_watched(place: Path) -> None:
    with recorder.track_stage("pretrain@gpt-0", parameters={}, tags={}):
        time.sleep(0.6)
    assert {"system/cpu_utilization_percentage", "system/system_memory_usage_megabytes"} <= runs()[
        1
    ].data.metrics.keys()


def test_publish_closes_the_parent_and_a_later_run_opens_it_again(
    place: Path, tmp_path: Path
) -> None:
    (tmp_path / "comparison.html").write_text("<p>verdict</p>")
    for value in (0.7, 0.7, 0.9):
        parent = tracking.open_parent_run(os.environ["LINEAGE_PIPELINE_ID"])
        assert runs()[0].info.status == "RUNNING"
        parent.log_artifact(tmp_path / "comparison.html")
        parent.log_artifact(tmp_path, "figures")
        parent.set_note("**gpt** leads", title="gpt best on 1 of 1")
        parent.log_summary({"best/sense/all": value})
        parent.end("FINISHED")
    (run,) = runs()
    assert (
        run.info.status == "FINISHED"
        and run.info.run_name == "gpt best on 1 of 1"
        and run.data.tags["mlflow.note.content"] == "**gpt** leads"
    )
    assert steps(run, "best/sense/all") == [0, 1] and run.data.metrics["best/sense/all"] == 0.9
    client = MlflowClient(resolve_tracking_uri())
    assert [f.path for f in client.list_artifacts(run.info.run_id)] == [
        "comparison.html",
        "figures",
    ]
    assert (place / "mlruns").is_dir(), "artifacts lie beside the database, wherever a stage runs"


def test_a_worktree_writes_to_the_main_checkout(
    place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with recorder.track_stage("baselines@sense", parameters={}, tags={}) as run:
        assert run.run_id
    assert len(runs()) == 2 and list(tmp_path.iterdir()) == []


def test_without_a_server_a_stage_works(
    place: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("LINEAGE_TRACKING_URI", "http://me:secret@127.0.0.1:9")
    with recorder.track_stage(
        "pretrain@gpt-0", parameters={"seed": 7}, tags={}, datasets=[Dataset("a", "b")]
    ) as run:
        run.log_metrics({"loss": 1.0}, step=0, text_bytes=5)
        run.flush()
        run.set_note("nothing")
        run.log_artifact(place / "params.yaml")
        assert run.run_id == ""
    shown = capsys.readouterr().err
    assert (
        shown.count("\n") == 1
        and "pretrain@gpt-0 goes on without MLflow" in shown
        and "127.0.0.1:9" in shown
    )
    assert "secret" not in shown


def test_a_lost_store_costs_one_line(
    place: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    calls = []

    def lost(*_: object, **__: object) -> None:
        calls.append(1)
        raise MlflowException("the database is gone")

    with recorder.track_stage("pretrain@gpt-0", parameters={}, tags={}) as run:
        monkeypatch.setattr(MlflowClient, "log_batch", lost)
        for step in range(10):
            run.log_metrics({"loss": 1.0}, step=step)
            run.flush()
    shown = capsys.readouterr().err
    assert shown.count("\n") == 1 and "the database is gone" in shown
    assert len(calls) == tracking.MAX_FAILURES


def test_one_lost_answer_loses_no_value(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with recorder.track_stage("pretrain@gpt-0", parameters={}, tags={}) as run:
        run.log_metrics({"loss": 1.0}, step=0)
        with monkeypatch.context() as patch:
            patch.setattr(
                MlflowClient,
                "log_batch",
                lambda *_, **__: (_ for _ in ()).throw(MlflowException("busy")),
            )
            run.flush()
        run.log_metrics({"loss": 0.5}, step=1)
    assert steps(runs()[1], "loss") == [0, 1]


def test_a_tracker_without_a_store_does_nothing() -> None:
    silent = MlflowTracker(None)
    silent.log_summary({"a": 1.0})
    silent.end("FINISHED")
    assert silent.run_id == silent.experiment_id == ""


@pytest.fixture
def recording(
    place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[subprocess.Popen[bytes]]:
    """A recorder in a process of its own, and its address for those who ask."""
    address = tmp_path / "recorder"
    child = subprocess.Popen(
        [sys.executable, "-m", "lineage.runtime.recorder", str(address), str(os.getpid())],
        cwd=REPOSITORY,
    )
    while not address.exists():
        assert child.poll() is None
        time.sleep(0.05)
    monkeypatch.setenv("LINEAGE_RECORDER", str(address))
    yield child
    child.terminate()
    child.wait()


def test_stages_that_a_recorder_writes_down(
    place: Path, recording: subprocess.Popen[bytes]
) -> None:
    """As by themselves, and without importing MLflow; two at once, each with its own variables."""
    script = WRITER + "assert 'mlflow' not in sys.modules\n"
    stages = {"pretrain@gpt": "flow-1", "pretrain@bert-elm": "flow-2"}
    by_flow = {
        stage: os.environ | {"PYTHONPATH": str(REPOSITORY), "LINEAGE_FLOW_RUN": flow}
        for stage, flow in stages.items()
    }
    writers = [
        subprocess.Popen(
            [sys.executable, "-c", script, s], cwd=place, stderr=subprocess.PIPE, env=env
        )
        for s, env in by_flow.items()
    ]
    assert [(w.wait(120), w.stderr.read().decode() if w.stderr else "") for w in writers] == [
        (0, ""),
        (0, ""),
    ]
    children = runs(" AND tags.stage != 'pipeline'")
    assert {
        child.data.tags["stage"]: child.data.tags["prefect_flow_run"] for child in children
    } == stages
    for child in children:
        assert (
            child.info.status == "FINISHED"
            and child.data.tags["family"] == child.data.tags["stage"][-3:]
        )
        assert child.data.params == {
            "budget.text_bytes": "4000",
            "budget.max_epochs": "4",
            "finetune_seeds": "[0, 1]",
        }
        assert steps(child, "loss") == list(range(1200)) and steps(
            child, "by_text_kb/loss"
        ) == list(range(0, 2400, 2))
        assert child.inputs.dataset_inputs[0].dataset.digest == "ab" * 8


def test_a_recorder_tells_how_a_stage_ended(
    place: Path, recording: subprocess.Popen[bytes]
) -> None:
    for number, error in enumerate((ValueError, KeyboardInterrupt)):
        with (
            pytest.raises(error),
            recorder.track_stage(f"adapt@gpt-{number}", parameters={}, tags={}) as run,
        ):
            raise error
        assert isinstance(run, recorder.RemoteTracker) and run.run_id
    with recorder.track_stage("adapt@gpt-2", parameters={}, tags={}) as run:
        run.training_failed = True
    ends = {r.data.tags["stage"]: r.info.status for r in runs()}
    assert ends == {
        "pipeline": "RUNNING",
        "adapt@gpt-0": "FAILED",
        "adapt@gpt-1": "KILLED",
        "adapt@gpt-2": "FAILED",
    }


def test_a_stage_that_dies_is_killed_in_mlflow(
    place: Path, recording: subprocess.Popen[bytes]
) -> None:
    script = (
        "import os, signal\n"
        + WRITER.split("    for step")[0]
        + "    run.log_metrics({'loss': 2.0}, step=3)\n    os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script, "pretrain@gpt-0"],
        cwd=place,
        env=os.environ | {"PYTHONPATH": str(REPOSITORY)},
        check=False,
    )
    assert done.returncode == -9
    deadline = time.monotonic() + 30
    while (found := runs()[1]).info.status == "RUNNING" and time.monotonic() < deadline:
        time.sleep(0.1)
    assert found.info.status == "KILLED" and steps(found, "loss") == [3], "what had arrived is kept"
    with recorder.track_stage(
        "pretrain@gpt-0",
        parameters=found.data.params,
        tags={"family": found.data.tags["family"]},
    ) as run:
        assert run.run_id == found.info.run_id, "and gone on with"


def test_a_recorder_that_dies_costs_one_line(
    place: Path, recording: subprocess.Popen[bytes], capfd: pytest.CaptureFixture[str]
) -> None:
    with recorder.track_stage("pretrain@gpt-0", parameters={}, tags={}) as run:
        (tracker,) = [
            p
            for p in psutil.Process(recording.pid).children()
            if p.cmdline()[1:3] == ["-m", "lineage.runtime.recorder"]
        ]
        tracker.kill()
        tracker.wait(10)
        for step in range(10):
            run.log_metrics({"loss": 1.0}, step=step)
            time.sleep(0.01)
    shown = capfd.readouterr().err
    assert shown.count("\n") == 1 and "the recorder is gone" in shown
    recording.kill()
    recording.wait()
    with recorder.track_stage("pretrain@gpt-1", parameters={}, tags={}) as run:
        assert isinstance(run, MlflowTracker) and run.run_id, (
            "where none answers, a stage tracks by itself"
        )


RUN = """
import pathlib, sys, time
from flows import execute, run
with run.start_helpers(execute.StageContext(pathlib.Path(sys.argv[1]))) as context:
    print(context.environment["LINEAGE_RECORDER"], flush=True)
    time.sleep(600)
"""


def test_a_recorder_ends_with_the_run_that_started_it() -> None:
    run = subprocess.Popen(
        [sys.executable, "-c", RUN, str(REPOSITORY)], cwd=REPOSITORY, stdout=subprocess.PIPE
    )
    address = Path(run.stdout.readline().decode().strip())  # type: ignore[union-attr]
    (child,) = [
        process
        for process in psutil.Process(run.pid).children()
        if "lineage.runtime.recorder" in process.cmdline()
    ]
    run.kill()
    run.wait()
    stays = psutil.wait_procs([child], timeout=60)[1]
    shutil.rmtree(address.parent)
    assert not [process.kill() for process in stays]
