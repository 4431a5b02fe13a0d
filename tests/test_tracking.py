"""Stages in several processes write to a real MLflow store, and go on when there is none."""

import dataclasses
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from mlflow import MlflowClient
from mlflow.entities import Run
from mlflow.exceptions import MlflowException

from lineage import artifacts
from lineage.errors import InputError
from lineage.runtime import journal, recorder, sender, tracking
from lineage.runtime.datasets import describe_dataset
from lineage.runtime.settings import EXPERIMENT_NAME, resolve_tracking_uri
from lineage.runtime.tracking import MlflowTracker, ModelScore, RankedSystem
from tests.helpers.checkout import ROOT
from tests.helpers.toy_project import wait_until

pytestmark = pytest.mark.usefixtures("without_time_limit")
WRITER_SCRIPT = """
import sys
from lineage.runtime import recorder
from lineage.runtime.provenance import Dataset
recorder.MAX_WAIT_SECONDS = 120.0  # a busy machine may need long to create the database
stage = sys.argv[1]
data = Dataset("artifacts/corpora/general", "ab" * 32)
about = {"budget": {"text_bytes": 4000, "max_epochs": 4}, "finetune_seeds": [0, 1]}
with recorder.track_stage(stage, parameters=about, tags={"family": stage[-3:]}, datasets=[data]) as run:
    for step in range(1200):
        run.log_metrics({"loss": 5 - step / 400}, step=step, text_bytes=2048 * step)
"""


@pytest.fixture(scope="module")
def study_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a study with an empty store and a space in its path."""
    folder = tmp_path_factory.mktemp("a study")
    (folder / "params.yaml").write_text("seed: 7\ngrid: {seeds: [0]}\n")
    return folder


@pytest.fixture
def in_study(
    study_folder: Path, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Path]:
    """Work inside the study, in a pipeline of this test."""
    monkeypatch.chdir(study_folder)
    monkeypatch.setenv("LINEAGE_PIPELINE_ID", request.node.name[:60])
    monkeypatch.setenv("LINEAGE_FLOW_RUN", "flow-1")
    monkeypatch.delenv("LINEAGE_TRACKING_URI", raising=False)
    monkeypatch.setattr(sender, "SYSTEM_METRICS_SECONDS", 0.1)
    return study_folder


def pipeline_runs(where: str = "") -> list[Run]:
    """Return the runs of this test's pipeline: the parent, and then its stages, oldest first."""
    client = MlflowClient(resolve_tracking_uri())
    experiment = client.get_experiment_by_name(EXPERIMENT_NAME)
    query = f"tags.pipeline = '{os.environ['LINEAGE_PIPELINE_ID']}'{where}"
    runs = client.search_runs(
        [experiment.experiment_id], query, order_by=["attributes.start_time ASC"]
    )
    return sorted(runs, key=lambda run: run.data.tags["stage"] != "pipeline")


def statuses() -> list[str]:
    """Return how the runs of this test's pipeline have ended, the parent first."""
    return [run.info.status for run in pipeline_runs()]


def logged_steps(run: Run, key: str) -> list[int]:
    """Return the steps at which a metric was logged."""
    return [
        metric.step
        for metric in MlflowClient(resolve_tracking_uri()).get_metric_history(run.info.run_id, key)
    ]


def test_two_stages_that_start_at_once_share_one_parent_run_in_a_new_store(in_study: Path) -> None:
    """It must be the first test of this file: the store is empty, so both create the database.

    Each has its own environment variables.
    """
    flows = {"pretrain@gpt": "flow-1", "pretrain@bert-elm": "flow-2"}
    writers = [
        subprocess.Popen(
            [sys.executable, "-c", WRITER_SCRIPT, stage],
            env=os.environ | {"PYTHONPATH": str(ROOT), "LINEAGE_FLOW_RUN": flow},
            cwd=in_study,
            stderr=subprocess.PIPE,
            text=True,
        )
        for stage, flow in flows.items()
    ]
    errors = [writer.communicate(timeout=120)[1] for writer in writers]
    assert ([writer.returncode for writer in writers], errors) == ([0, 0], ["", ""])
    parent, *children = pipeline_runs()
    assert parent.data.tags["stage"] == "pipeline" and parent.info.status == "RUNNING"
    assert {child.data.tags["stage"] for child in children} == {*flows} and len(children) == 2
    for child in children:
        tags = child.data.tags
        assert child.info.status == "FINISHED" and child.info.run_name == tags["stage"]
        assert tags["mlflow.parentRunId"] == parent.info.run_id
        assert tags["family"] == tags["stage"][-3:]
        assert tags["prefect_flow_run"] == flows[tags["stage"]]
        assert tags["study"] == "a study0" and tags["study_commit"] == "none"
        assert child.data.params == {
            "budget.text_bytes": "4000",
            "budget.max_epochs": "4",
            "finetune_seeds": "[0, 1]",
        }
        assert logged_steps(child, "loss") == list(range(1200))
        assert logged_steps(child, "by_text_kb/loss") == list(range(0, 2400, 2))
        (dataset_input,) = child.inputs.dataset_inputs
        assert dataset_input.dataset.name == "artifacts/corpora/general"
        assert dataset_input.dataset.digest == "ab" * 8


def test_a_killed_stage_continues_in_its_run(in_study: Path) -> None:
    for first, last, is_killed in ((0, 10, True), (6, 15, False)):
        try:
            with recorder.track_stage(
                "pretrain@gpt-0", parameters={"seed": 7}, tags={"family": "gpt"}
            ) as run:
                for step in range(first, last):
                    run.log_metrics({"loss": float(step)}, step=step)
                if is_killed:
                    assert run.run_id
                    assert statuses() == ["RUNNING", "RUNNING"]
                    raise KeyboardInterrupt
        except KeyboardInterrupt:
            assert statuses() == ["KILLED", "KILLED"], "nothing else may end the parent run"
    _, child = pipeline_runs()
    assert child.info.status == "FINISHED" and logged_steps(child, "loss") == list(range(15))


def test_a_second_execution_of_a_finished_stage_has_a_run_of_its_own(in_study: Path) -> None:
    """As after `dvc repro --force`, or from another checkout of the study."""
    for losses in ([3.0, 2.0, 1.0], [9.0, 8.0]):
        with recorder.track_stage("pretrain@gpt-0", parameters={"seed": 7}, tags={}) as run:
            for step, loss in enumerate(losses):
                run.log_metrics({"loss": loss}, step=step)
    _, *children = pipeline_runs()
    assert [logged_steps(child, "loss") for child in children] == [[0, 1, 2], [0, 1]]


def test_another_parameter_value_starts_another_run(in_study: Path) -> None:
    for seed, error in ((7, ValueError), (8, None)):
        try:
            with recorder.track_stage("adapt@gpt-0-sense", parameters={"seed": seed}, tags={}):
                if error:
                    raise error("bad data")
        except ValueError:
            assert pipeline_runs()[1].info.status == "FAILED"
    _, failed, finished = pipeline_runs()
    assert (failed.info.status, finished.info.status) == ("FAILED", "FINISHED")
    assert (failed.data.params, finished.data.params) == ({"seed": "7"}, {"seed": "8"})


def test_a_failed_stage_describes_its_error_until_it_has_finished(in_study: Path) -> None:
    def read_note() -> str:
        return str(pipeline_runs()[1].data.tags.get(tracking.NOTE_TAG, ""))

    with pytest.raises(InputError), recorder.track_stage("ngram", parameters={}, tags={}):
        raise InputError("params.yaml: seed: it is missing; add it")
    assert read_note() == "params.yaml: seed: it is missing; add it"
    with pytest.raises(KeyError), recorder.track_stage("ngram", parameters={}, tags={}):
        raise KeyError("a sentence that nobody else should read")
    assert "KeyError: 'a sentence that nob...\n" in read_note()
    assert "test_tracking.py" in read_note()
    with recorder.track_stage("ngram", parameters={}, tags={}):
        pass
    assert pipeline_runs()[1].info.status == "FINISHED" and read_note() == ""


def test_a_published_run_has_its_data_sets_and_each_candidate_once(in_study: Path) -> None:
    folder = in_study / "artifacts/tasks/mood"
    with artifacts.create_artifact(folder, "task") as draft:
        for split, count in (("test", 2), ("train", 3)):
            table = pd.DataFrame({"text": ["a secret text"] * count, "tags": [["A"]] * count})
            artifacts.write_table(draft / f"{split}.parquet", table)
    dataset = describe_dataset(folder.relative_to(in_study))
    assert "secret" not in dataset.schema + dataset.profile
    system = RankedSystem(
        "gpt-finetuned",
        "It is a candidate.",
        {"model": "gpt", "task": "mood"},
        ModelScore("test", "accuracy", 0.5, dataset),
    )
    other_task = dataclasses.replace(system, params={"model": "gpt", "task": "other"})
    for _ in range(2):
        parent = tracking.open_parent_run(os.environ["LINEAGE_PIPELINE_ID"])
        parent.log_datasets([dataset])
        parent.log_ranked_systems([system, other_task])
        parent.end("FINISHED")
    (run,) = pipeline_runs()
    (logged,) = run.inputs.dataset_inputs
    assert (logged.dataset.name, logged.dataset.digest) == (
        "artifacts/tasks/mood",
        dataset.short_digest,
    )
    columns = {
        one["name"]: one["type"] for one in json.loads(logged.dataset.schema)["mlflow_colspec"]
    }
    assert columns == {"text": "string", "tags": "array"}
    assert json.loads(logged.dataset.profile) == {"num_rows": 5, "test": 2, "train": 3}
    models = MlflowClient(resolve_tracking_uri()).search_logged_models(
        [run.info.experiment_id], filter_string=f"source_run_id = '{run.info.run_id}'"
    )
    assert sorted(model.params["task"] for model in models) == ["mood", "other"]
    for model in models:
        (metric,) = model.metrics
        assert (metric.key, metric.value) == ("test/accuracy", 0.5)
        assert (metric.dataset_name, metric.dataset_digest) == (dataset.name, dataset.short_digest)


def test_system_metrics_are_logged(in_study: Path, without_time_limit: None) -> None:
    expected = {"system/cpu_utilization_percentage", "system/system_memory_usage_megabytes"}
    with recorder.track_stage("pretrain@gpt-0", parameters={}, tags={}) as run:
        assert run.run_id, "MLflow has answered"
        wait_until(lambda: expected <= pipeline_runs()[1].data.metrics.keys())


def test_publish_closes_the_parent_run_and_a_later_run_reopens_it(
    in_study: Path, tmp_path: Path
) -> None:
    (tmp_path / "comparison.html").write_text("<p>verdict</p>")
    for value in (0.7, 0.7, 0.9):
        parent = tracking.open_parent_run(os.environ["LINEAGE_PIPELINE_ID"])
        assert pipeline_runs()[0].info.status == "RUNNING"
        parent.log_artifact(tmp_path / "comparison.html")
        parent.log_artifact(tmp_path, "figures")
        parent.set_note("**gpt** leads", title="gpt best on 1 of 1")
        parent.log_summary({"best/sense/all": value})
        parent.end("FINISHED")
    (run,) = pipeline_runs()
    assert run.info.status == "FINISHED"
    assert run.info.run_name == "gpt best on 1 of 1"
    assert run.data.tags["mlflow.note.content"] == "**gpt** leads"
    assert logged_steps(run, "best/sense/all") == [0, 1]
    assert run.data.metrics["best/sense/all"] == 0.9
    client = MlflowClient(resolve_tracking_uri())
    assert [artifact.path for artifact in client.list_artifacts(run.info.run_id)] == [
        "comparison.html",
        "figures",
    ]
    assert (in_study / "mlruns").is_dir(), (
        "artifacts are next to the database, wherever a stage runs"
    )


def test_a_worker_on_this_machine_logs_to_the_store_of_the_study(
    in_study: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The orchestrator passes the address and the study's name on."""
    monkeypatch.setenv("LINEAGE_TRACKING_URI", resolve_tracking_uri())
    monkeypatch.setenv("LINEAGE_STUDY", in_study.name)
    monkeypatch.chdir(tmp_path)
    with recorder.track_stage("baselines@sense", parameters={}, tags={}) as run:
        assert run.run_id
    runs = pipeline_runs()
    assert len(runs) == 2
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == []
    assert {one.data.tags["study"] for one in runs} == {in_study.name}


def test_a_store_that_fails_during_a_stage_prints_one_line(
    in_study: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise MlflowException("the database is gone")

    with (
        monkeypatch.context() as patch,
        recorder.track_stage("pretrain@gpt-0", parameters={}, tags={}) as run,
    ):
        assert run.run_id
        patch.setattr(MlflowClient, "log_batch", fail)
        for step in range(10):
            run.log_metrics({"loss": 1.0}, step=step)
    message = capsys.readouterr().err
    assert message.count("\n") == 1 and "the database is gone" in message
    assert len(journal.list_waiting()) == 1
    with recorder.track_stage("pretrain@gpt-1", parameters={}, tags={}):
        pass
    _, child, _ = pipeline_runs()
    assert (child.info.run_id, child.info.status) == (run.run_id, "FINISHED")
    assert logged_steps(child, "loss") == list(range(10))
    assert journal.list_waiting() == []


def test_what_mlflow_refuses_is_kept_and_not_tried_again(
    in_study: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with recorder.track_stage("pretrain@gpt-0", parameters={"a bad name!": 1}, tags={}):
        pass
    message = capsys.readouterr().err
    assert message.count("\n") == 1 and "is refused, and kept in" in message
    assert journal.list_waiting() == []
    (rejected,) = (in_study / journal.JOURNAL_DIR).glob("*.rejected")
    rejected.unlink()


def test_one_failed_request_loses_no_value(in_study: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    failures: list[str] = []
    log_batch = MlflowClient.log_batch

    def fail_once(self: MlflowClient, *arguments: Any, **options: Any) -> None:
        if not failures:
            failures.append("once")
            raise MlflowException("busy")
        log_batch(self, *arguments, **options)

    monkeypatch.setattr(MlflowClient, "log_batch", fail_once)
    monkeypatch.setattr(journal, "POLL_SECONDS", 0.1)
    monkeypatch.setattr(sender, "RETRY_SECONDS", 0.1)
    with recorder.track_stage("pretrain@gpt-0", parameters={}, tags={}) as run:
        run.log_metrics({"loss": 1.0}, step=0)
        wait_until(lambda: bool(failures))
        run.log_metrics({"loss": 0.5}, step=1)
        wait_until(lambda: logged_steps(pipeline_runs()[1], "loss") == [0, 1])
    assert logged_steps(pipeline_runs()[1], "loss") == [0, 1]


def test_a_tracker_without_a_store_does_nothing() -> None:
    tracker = MlflowTracker(None)
    tracker.log_summary({"a": 1.0})
    tracker.end("FINISHED")
    assert tracker.run_id == tracker.experiment_id == ""


def test_a_run_tells_how_its_stage_ended(in_study: Path, without_time_limit: None) -> None:
    for number, error in enumerate((ValueError, KeyboardInterrupt)):
        with (
            pytest.raises(error),
            recorder.track_stage(f"adapt@gpt-{number}", parameters={}, tags={}) as run,
        ):
            raise error
        assert run.run_id
    with recorder.track_stage("adapt@gpt-2", parameters={}, tags={}) as run:
        run.training_failed = True
    tags = [run.data.tags for run in pipeline_runs()]
    assert dict(zip((tag["stage"] for tag in tags), statuses(), strict=True)) == {
        "pipeline": "RUNNING",
        "adapt@gpt-0": "FAILED",
        "adapt@gpt-1": "KILLED",
        "adapt@gpt-2": "FAILED",
    }
    notes = {tag["stage"]: tag.get(tracking.NOTE_TAG) for tag in tags}
    assert "ValueError" in str(notes["adapt@gpt-0"]) and notes["adapt@gpt-1"] is None


def test_a_stage_that_dies_is_marked_killed_and_can_be_continued(
    in_study: Path, without_time_limit: None
) -> None:
    """The end of the run sends what it has logged."""
    script = (
        "import os, signal\n"
        + WRITER_SCRIPT.split("    for step")[0]
        + "    run.log_metrics({'loss': 2.0}, step=3)\n    os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    process = subprocess.run(
        [sys.executable, "-c", script, "pretrain@gpt-0"],
        cwd=in_study,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        check=False,
    )
    assert process.returncode == -9
    subprocess.run(
        [sys.executable, "-m", "lineage.runtime.sender", "FAILED"],
        cwd=in_study,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        check=True,
    )
    assert statuses() == ["FAILED", "KILLED"]
    mlflow_run = pipeline_runs()[1]
    assert logged_steps(mlflow_run, "loss") == [3], "logged values are kept"
    with recorder.track_stage(
        "pretrain@gpt-0",
        parameters=mlflow_run.data.params,
        tags={"family": mlflow_run.data.tags["family"]},
    ) as run:
        assert run.run_id == mlflow_run.info.run_id, "the next attempt continues this run"
