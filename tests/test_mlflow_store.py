"""The MLflow store has one place per study, and a tracking failure never stops a stage."""

import shutil
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from mlflow import MlflowClient

from flows.execute import StageContext, StageResult
from flows.run import _end_mlflow_run
from lineage.artifacts import write_json
from lineage.runtime import recorder, tracking
from lineage.runtime.provenance import Dataset, get_pipeline_id
from lineage.runtime.settings import EXPERIMENT_NAME, resolve_tracking_uri
from tests.helpers.checkout import ROOT

pytestmark = pytest.mark.usefixtures("without_time_limit")


@pytest.mark.parametrize("address", ["sqlite:///here.db", None])
def test_a_relative_tracking_uri_is_resolved_against_the_study(
    address: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("LINEAGE_TRACKING_URI", raising=False)
    monkeypatch.chdir(tmp_path)
    # A file with only comments sets nothing.
    text = f"tracking_uri: {address}\n" if address else "# tracking_uri: sqlite:///here.db\n"
    (tmp_path / "runtime.yaml").write_text(text)
    assert resolve_tracking_uri() == f"sqlite:///{tmp_path}/{'here.db' if address else 'mlflow.db'}"


@pytest.mark.parametrize("address", [
    "postgresql://user:secret@localhost/db", "http://[::1", "http://me:secret@127.0.0.1:9", "mssql://user:secret@localhost/db", "postgresql://user:a/secret@localhost/db",
    "postgresql://localhost/db?user=me&password=secret", "postgresql://user:se@secret@localhost/db?sslpassword=secret",
    "postgresql://localhost/db?user=a@b&password=secret", "postgresql://user:a?secret@localhost/db",
])  # fmt: skip
def test_a_bad_tracking_uri_stops_no_stage_and_its_password_is_not_printed(
    address: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Try a database without an installed driver, malformed addresses, and one of no server."""
    monkeypatch.setenv("LINEAGE_TRACKING_URI", address)
    monkeypatch.chdir(tmp_path)
    with recorder.track_stage("baselines@sense", parameters={}, tags={}) as tracker:
        tracker.log_metrics({"loss": 1.0}, step=0, text_bytes=5)
        assert tracker.run_id == ""
    message = capsys.readouterr().err
    assert message.count("\n") == 1
    assert message.startswith(
        "tracking: baselines@sense goes on without MLflow, which gets its values later: "
    )
    assert "secret" not in message


def run_statuses(folder: Path) -> list[str]:
    """Return the statuses of the pipeline's runs, the parent first."""
    client = MlflowClient(f"sqlite:///{folder}/mlflow.db")
    experiment = client.get_experiment_by_name(EXPERIMENT_NAME)
    runs = client.search_runs([experiment.experiment_id], order_by=["attributes.start_time ASC"])
    runs = sorted(runs, key=lambda run: run.data.tags["stage"] != "pipeline")
    return [run.info.status for run in runs]


@pytest.fixture
def context(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, empty_mlflow_database: Path
) -> StageContext:
    """Use a store in this folder for the pipeline p, and return the context of its stages."""
    shutil.copy(empty_mlflow_database, tmp_path / "mlflow.db")
    environment = {
        "LINEAGE_PIPELINE_ID": "p",
        "LINEAGE_TRACKING_URI": f"sqlite:///{tmp_path}/mlflow.db",
    }
    for key, value in environment.items():
        monkeypatch.setenv(key, value)
    return StageContext(ROOT, environment, 1)


@pytest.mark.parametrize("publish", ["blocked", "failed", "ran"])
def test_the_parent_run_is_closed_when_a_stage_failed_and_nothing_is_published(
    publish: str, context: StageContext, tmp_path: Path
) -> None:
    """A stage that succeeds after the failed one reopens the parent; publish does not close it."""
    with (
        pytest.raises(ValueError, match="the moon"),
        recorder.track_stage("pretrain@gpt-0", parameters={}, tags={}),
    ):
        raise ValueError("the moon was full")
    with recorder.track_stage("pretrain@bert-0", parameters={}, tags={}):
        pass
    assert run_statuses(tmp_path) == ["RUNNING", "FAILED", "FINISHED"]
    results = {
        "sources": StageResult("sources", "ran"),
        "pretrain@gpt-0": StageResult("pretrain@gpt-0", "failed"),
        "publish": StageResult("publish", publish),
    }
    _end_mlflow_run(context, results)
    assert run_statuses(tmp_path)[0] == ("RUNNING" if publish == "ran" else "FAILED"), (
        "publish ends the parent run itself"
    )


def test_a_stopped_pipeline_is_killed_in_mlflow_and_a_finished_one_stays_finished(
    context: StageContext, tmp_path: Path
) -> None:
    with recorder.track_stage("tokenizer@gpt", parameters={}, tags={}):
        pass
    _end_mlflow_run(context, None)
    assert run_statuses(tmp_path) == ["KILLED", "FINISHED"]
    tracking.open_parent_run("p").end("FINISHED")
    _end_mlflow_run(context, None)
    assert run_statuses(tmp_path) == ["FINISHED", "FINISHED"]


def test_ending_a_pipeline_in_which_no_stage_ran_does_not_call_mlflow(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "executable", "/nowhere/python")  # running it would raise
    _end_mlflow_run(
        StageContext(tmp_path, {}, 1),
        {"sources": StageResult("sources", "failed"), "publish": StageResult("publish", "blocked")},
    )


def test_the_pipeline_id_depends_on_what_the_sources_stage_has_recorded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("LINEAGE_PIPELINE_ID", raising=False)
    ids = []
    for record, value in (
        ("config/report", 1),
        ("config/report", 2),
        ("tasks/mood", 1),
        ("tasks/mood", 2),
        ("package", 1),
        ("tasks/mood", 1),
    ):
        write_json(Path(f"artifacts/sources/{record}.json"), {"value": value})
        ids.append(get_pipeline_id())
    assert len({*ids}) == 6 and all(len(one) == 16 for one in ids), (
        "a run with edited labels, parameters or code needs a new id"
    )
    write_json(Path("artifacts/sources/tasks/mood.json"), {"value": 2})
    assert get_pipeline_id() == ids[4]
    monkeypatch.setenv("LINEAGE_PIPELINE_ID", "given")
    assert get_pipeline_id() == "given"


def test_a_moved_store_prints_where_artifacts_are_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for folder in ("before", "after"):
        if folder == "after":
            (tmp_path / "before").rename(tmp_path / "after")
        (tmp_path / folder).mkdir(exist_ok=True)
        monkeypatch.setenv("LINEAGE_TRACKING_URI", f"sqlite:///{tmp_path}/{folder}/mlflow.db")
        for _ in range(2):
            assert tracking.open_parent_run("p").run_id
        assert (
            f"reports of runs go to file://{tmp_path}/before/mlruns" in capsys.readouterr().err
        ) == (folder == "after")


def test_two_stages_log_the_same_dataset_one_after_the_other(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    empty_mlflow_database: Path,
) -> None:
    """MLflow looks for a dataset and then adds it; two stages doing so at once would fail."""
    dataset = Dataset("corpus", "cd" * 32)
    active: list[int] = []
    num_active: list[int] = []
    log_inputs = MlflowClient.log_inputs

    def slow_log_inputs(self: MlflowClient, *arguments: Any) -> None:
        active.append(1)
        num_active.append(len(active))
        time.sleep(0.3)
        log_inputs(self, *arguments)
        active.pop()

    def stage(name: str) -> None:
        with recorder.track_stage(name, parameters={}, tags={}, datasets=[dataset]):
            pass

    monkeypatch.delenv("LINEAGE_TRACKING_URI", raising=False)
    monkeypatch.chdir(tmp_path)
    shutil.copy(empty_mlflow_database, tmp_path)
    monkeypatch.setattr(MlflowClient, "log_inputs", slow_log_inputs)
    with ThreadPoolExecutor(2) as pool:
        assert [*pool.map(stage, ("pretrain@gpt-0", "pretrain@gpt-1"))] == [None, None]
    assert num_active == [1, 1] and capsys.readouterr().err == ""
    assert run_statuses(tmp_path) == ["RUNNING", "FINISHED", "FINISHED"]
