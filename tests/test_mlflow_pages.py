"""What a reviewer of a finished run reads on MLflow's own pages, in a real browser."""

import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from urllib.request import urlopen

import pytest
from mlflow import MlflowClient
from mlflow.entities import Run

from lineage.errors import InputError
from lineage.runtime import recorder, tracking
from lineage.runtime.settings import EXPERIMENT_NAME, resolve_tracking_uri
from tests.helpers.browser import find_browser, show
from tests.helpers.toy_project import free_port, is_up, wait_until

ATTEMPTS = 3  # on a busy machine a page may not have been drawn
ERROR = "mood.csv: row 7: the label is missing; give it one"


@dataclass(frozen=True)
class Pages:
    """MLflow's server on a finished study, and a browser."""

    address: str
    browser: str
    profile: Path
    experiment: str
    parent: Run

    def read(self, path: str, *expected: str) -> str:
        """Return what a page shows, as HTML. Fail if it does not show these texts."""
        missing = list(expected)
        html = ""
        for _ in range(ATTEMPTS):
            html = show(self.browser, f"{self.address}/#/{path}", self.profile)
            missing = [text for text in expected if text not in html]
            if not missing:
                break
        assert not missing, (path, missing)
        return html

    def read_in_experiment(self, path: str, *expected: str) -> str:
        """Return what a page of the experiment shows. Fail if it does not show these texts."""
        return self.read(
            f"experiments/{self.experiment}/{path}?workflowType=machine_learning", *expected
        )


@pytest.fixture
def pages(
    project: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, without_time_limit: None
) -> Iterator[Pages]:
    """Serve a finished study in which a stage has failed since."""
    browser = find_browser()
    monkeypatch.chdir(project)
    monkeypatch.delenv("LINEAGE_TRACKING_URI", raising=False)
    client = MlflowClient(resolve_tracking_uri())
    experiment = client.get_experiment_by_name(EXPERIMENT_NAME)
    (parent,) = client.search_runs([experiment.experiment_id], "tags.stage = 'pipeline'")
    monkeypatch.setenv("LINEAGE_PIPELINE_ID", parent.data.tags["pipeline"])
    with pytest.raises(InputError), recorder.track_stage("task@mood", parameters={}, tags={}):
        raise InputError(ERROR)
    port = free_port()
    command = [sys.executable, "-m", "mlflow", "server", "--workers", "1"]
    command += ["--backend-store-uri", resolve_tracking_uri()]
    command += ["--host", "127.0.0.1", "--port", str(port)]
    with (tmp_path / "server.log").open("wb") as log:
        server = subprocess.Popen(command, stdout=log, stderr=log, start_new_session=True)
    address = f"http://127.0.0.1:{port}"
    try:
        wait_until(lambda: is_up(f"{address}/health"), seconds=90)
        yield Pages(address, browser, tmp_path / "profile", experiment.experiment_id, parent)
    finally:
        os.killpg(server.pid, 15)
        server.wait(30)


@pytest.mark.slow
def test_a_reviewer_finds_the_way_from_the_decision_to_the_champion(pages: Pages) -> None:
    run_id = pages.parent.info.run_id
    client = MlflowClient(resolve_tracking_uri())
    note = pages.parent.data.tags[tracking.NOTE_TAG]
    decision = note.splitlines()[0]
    name = pages.parent.info.run_name
    assert "mood" in decision and name is not None
    dataset = "artifacts/tasks/mood"

    how_to_read = tracking.EXPERIMENT_NOTE.splitlines()[0]
    pages.read_in_experiment("runs", how_to_read, name, dataset)
    pages.read_in_experiment(f"runs/{run_id}", decision, "The champion is", dataset)
    pages.read_in_experiment(f"runs/{run_id}/artifacts", "comparison.html", "figures")
    with urlopen(f"{pages.address}/get-artifact?path=comparison.html&run_uuid={run_id}") as report:
        assert decision in report.read().decode()

    chart = note.partition("against the kB of text read](#/")[2].partition(")")[0]
    pages.read(chart, "by_text_kb/loss", "pretrain@gpt-0")

    (version,) = client.search_model_versions("name='study-mood'")
    champion = client.get_logged_model(version.source.removeprefix("models:/"))
    models = client.search_logged_models(
        [pages.experiment], filter_string=f"source_run_id = '{run_id}'"
    )
    systems = {model.name: model for model in models}
    assert len(systems) == 2 and champion.name in systems  # one of GPT and TF-IDF is registered
    pages.read_in_experiment("models", *systems, dataset, "accuracy")
    for model in models:
        (metric,) = model.metrics
        assert (metric.key, metric.dataset_name) == ("test/accuracy", dataset)
        assert model.params["task"] == "mood"
    card = f"{version.tags['system']} for mood"
    page = pages.read_in_experiment(f"models/{champion.model_id}", card, "study-mood", dataset)
    assert "load_model" in page and "Not registered" not in page

    pages.read("models", "study-mood")
    pages.read("models/study-mood", "champion", "Version 1")
    pages.read("models/study-mood/versions/1", "champion", "recommends it for mood")

    (failed,) = client.search_runs([pages.experiment], "tags.stage = 'task@mood'")
    pages.read_in_experiment(f"runs/{failed.info.run_id}", "task@mood", ERROR)
