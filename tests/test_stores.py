"""Where runs are kept: one place for all runs of a checkout, and an address that is of no use stops none of them."""

import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from mlflow import MlflowClient

from flows import servers
from flows.execute import StageContext, StageResult
from flows.run import _end_mlflow_run
from lineage.artifacts import write_json
from lineage.runtime import tracking
from lineage.runtime.provenance import Dataset, get_pipeline_id
from lineage.runtime.settings import EXPERIMENT_NAME, resolve_tracking_uri


@pytest.mark.parametrize("address", ["sqlite:///here.db", None])
def test_a_relative_store_is_one_of_the_main_checkout(
    address: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("LINEAGE_TRACKING_URI", raising=False)
    monkeypatch.setenv("LINEAGE_MAIN", str(tmp_path))
    text = (
        f"tracking_uri: {address}\n" if address else "# tracking_uri: sqlite:///here.db\n"
    )  # of comments alone it says nothing
    (tmp_path / "runtime.yaml").write_text(text)
    assert resolve_tracking_uri() == f"sqlite:///{tmp_path}/{'here.db' if address else 'mlflow.db'}"


@pytest.mark.parametrize("address", [
    "postgresql://user:secret@localhost/db", "http://[::1", "mssql://user:secret@localhost/db", "postgresql://user:a/secret@localhost/db",
    "postgresql://localhost/db?user=me&password=secret", "postgresql://user:se@secret@localhost/db?sslpassword=secret",
    "postgresql://localhost/db?user=a@b&password=secret", "postgresql://user:a?secret@localhost/db",
])  # fmt: skip
def test_no_address_stops_a_stage(
    address: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """As of a database whose driver is not installed, or of a misspelt one."""
    monkeypatch.setenv("LINEAGE_TRACKING_URI", address)
    monkeypatch.setenv("LINEAGE_MAIN", str(tmp_path))
    with tracking.open_stage_run("baselines@sense", parameters={}, tags={}, datasets=[]) as tracker:
        assert tracker.run_id == ""
    said = capsys.readouterr().err
    assert (
        said.count("\n") == 1
        and said.startswith("tracking: baselines@sense goes on without MLflow: ")
        and "secret" not in said
    )


def statuses(folder: Path) -> list[str]:
    """Of the pipeline's runs, the parent first."""
    client = MlflowClient(f"sqlite:///{folder}/mlflow.db")
    experiment = client.get_experiment_by_name(EXPERIMENT_NAME)
    return [
        run.info.status
        for run in client.search_runs(
            [experiment.experiment_id], order_by=["attributes.start_time ASC"]
        )
    ]


@pytest.mark.parametrize("publish", ["blocked", "failed", "ran"])
def test_a_run_in_which_a_stage_failed_is_no_run_under_way(
    publish: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A stage that ends well after the one that failed opens the parent again, and nobody publishes."""
    environment = {
        "LINEAGE_MAIN": str(tmp_path),
        "LINEAGE_PIPELINE_ID": "0123456789abcdef",
        "LINEAGE_TRACKING_URI": f"sqlite:///{tmp_path}/mlflow.db",
    }
    for key, value in environment.items():
        monkeypatch.setenv(key, value)
    with (
        pytest.raises(ValueError, match="the moon"),
        tracking.open_stage_run("pretrain@gpt-0", parameters={}, tags={}),
    ):
        raise ValueError("the moon was full")
    with tracking.open_stage_run("pretrain@bert-0", parameters={}, tags={}):
        pass
    assert statuses(tmp_path) == ["RUNNING", "FAILED", "FINISHED"]
    setting = StageContext(Path(__file__).parent.parent, environment, 1)
    results = {
        "sources": StageResult("sources", "ran"),
        "pretrain@gpt-0": StageResult("pretrain@gpt-0", "failed"),
        "publish": StageResult("publish", publish),
    }
    _end_mlflow_run(setting, results)
    assert statuses(tmp_path)[0] == ("RUNNING" if publish == "ran" else "FAILED"), (
        "publish itself ends what it published"
    )


def test_a_run_that_was_stopped_is_no_run_under_way_and_one_that_had_ended_stays_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    environment = {
        "LINEAGE_TRACKING_URI": f"sqlite:///{tmp_path}/mlflow.db",
        "LINEAGE_MAIN": str(tmp_path),
        "LINEAGE_PIPELINE_ID": "p",
    }
    for key, value in environment.items():
        monkeypatch.setenv(key, value)
    with tracking.open_stage_run("tokenizer@gpt", parameters={}, tags={}):
        pass
    setting = StageContext(Path(__file__).parent.parent, environment, 1)
    _end_mlflow_run(setting, None)
    assert statuses(tmp_path) == ["KILLED", "FINISHED"]
    tracking.open_parent_run("p").end("FINISHED")
    _end_mlflow_run(setting, None)
    assert statuses(tmp_path) == ["FINISHED", "FINISHED"]


def test_a_run_of_which_nothing_began_is_not_looked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "executable", "/nowhere/python")  # which would raise
    _end_mlflow_run(
        StageContext(tmp_path, {}, 1),
        {"sources": StageResult("sources", "failed"), "publish": StageResult("publish", "blocked")},
    )


def test_a_pipeline_is_named_by_code_parameters_and_data(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("LINEAGE_PIPELINE_ID", raising=False)
    found = []
    for text in (
        "a: 1\nb: {c: 2}\n",
        "# a comment\nb:\n  c: 2\na: 1\n",
        "a: 1\nb: {c: 3, 2026-01-01: 4}\n",
    ):
        Path("params.yaml").write_text(text)
        found.append(get_pipeline_id())
    assert found[0] == found[1] != found[2] and len(found[0]) == 16
    for digest in ("one", "other", "one"):
        write_json(Path("artifacts/sources/tasks/mood.json"), {"data": {"sha256": digest}})
        found.append(get_pipeline_id())
    assert len({*found[2:]}) == 3 and found[3] == found[5], (
        "or a run with edited labels would stand for the one before"
    )
    monkeypatch.setenv("LINEAGE_PIPELINE_ID", "given")
    assert get_pipeline_id() == "given"


def test_of_a_store_that_was_moved_it_is_told_where_reports_go(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for place in ("before", "after"):
        if place == "after":
            (tmp_path / "before").rename(tmp_path / "after")
        (tmp_path / place).mkdir(exist_ok=True)
        monkeypatch.setenv("LINEAGE_TRACKING_URI", f"sqlite:///{tmp_path}/{place}/mlflow.db")
        for _ in range(2):
            assert tracking.open_parent_run("p").run_id
        assert (
            f"reports of runs go to file://{tmp_path}/before/mlruns" in capsys.readouterr().err
        ) == (place == "after")


@pytest.mark.parametrize("text", ["", '{"pid": 1', '{"pid": 999999999, "port": 4200}'])
def test_a_server_s_file_that_was_cut_short_names_no_server(text: str, tmp_path: Path) -> None:
    (servers.servers_folder(tmp_path)).mkdir(parents=True)
    (servers.servers_folder(tmp_path) / "prefect.json").write_text(text)
    assert servers.running_port(tmp_path, "prefect") is None


def test_two_stages_do_not_add_one_data_set_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """MLflow looks for a data set and then adds it: whoever looked at the same time fails, and a stage would be missing."""
    known, inside, most, add = (
        Dataset("corpus", "cd" * 32),
        list[int](),
        list[int](),
        MlflowClient.log_inputs,
    )

    def slow(self: MlflowClient, *arguments: Any) -> None:
        inside.append(1)
        most.append(len(inside))
        time.sleep(0.3)
        add(self, *arguments)
        inside.pop()

    def stage(name: str) -> None:
        with tracking.open_stage_run(name, parameters={}, tags={}, datasets=[known]):
            pass

    monkeypatch.delenv("LINEAGE_TRACKING_URI", raising=False)
    monkeypatch.setenv("LINEAGE_MAIN", str(tmp_path))
    monkeypatch.setattr(MlflowClient, "log_inputs", slow)
    with ThreadPoolExecutor(2) as pool:
        assert [*pool.map(stage, ("pretrain@gpt-0", "pretrain@gpt-1"))] == [None, None]
    assert most == [1, 1] and capsys.readouterr().err == ""
    assert statuses(tmp_path) == ["RUNNING", "FINISHED", "FINISHED"]
