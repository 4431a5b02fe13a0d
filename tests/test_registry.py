"""Versions of a task's systems in a real MLflow store: champion, challenger, and what they tell."""

import dataclasses
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import mlflow
import numpy as np
import pandas as pd
import pytest
from mlflow import MlflowClient
from mlflow.entities.model_registry import ModelVersion
from mlflow.exceptions import MlflowException

from lineage.analysis.champion import Contender
from lineage.config.params import read_params
from lineage.errors import InputError
from lineage.runtime import tracking
from lineage.runtime.provenance import Dataset
from lineage.runtime.settings import resolve_tracking_uri
from lineage.runtime.tracking import ModelScore
from lineage.serving import registry
from lineage.serving.candidate import Candidate, digest_folder
from lineage.serving.export import export_system
from lineage.serving.registry import (
    enter_candidate,
    find_champion,
    publish_champions,
    registered_name,
)
from tests.helpers import tiny
from tests.helpers.documents import described_names
from tests.helpers.kept_systems import evaluate_tfidf, prepare_case
from tests.helpers.result_cells import build_cells, decide_one
from tests.helpers.user_project import tracking_uri

ITEMS = 600


@pytest.fixture(scope="module")
def candidate(tmp_path_factory: pytest.TempPathFactory) -> Candidate:
    """Return TF-IDF as the recommended system of the task `sense`, right on 80 % of the items."""
    folder = tmp_path_factory.mktemp("candidate")
    task, data, _ = prepare_case("texts", folder)
    kept, _ = evaluate_tfidf(task, data, folder / "kept")
    export_system(kept, task, folder / "system")
    decision = decide_one(build_cells(tfidf=0.8, gpt=0.5))
    contender = Contender(
        system_digest=digest_folder(folder / "system"),
        test_items_digest="items",
        scores_N=(np.arange(ITEMS) < 0.8 * ITEMS).astype(float),
        num_grouped_items=0,
        cost_seconds=50.0,
    )
    score = ModelScore("test", "accuracy", 0.8, Dataset("artifacts/tasks/sense", "ab" * 32))
    return Candidate(folder / "system", kept, decision, contender, score)


def with_share(candidate: Candidate, share: float, **changes: Any) -> Candidate:
    """Return another system, which is right on this share of the items."""
    scores_N = (np.arange(ITEMS) < share * ITEMS).astype(float)
    values = {"system_digest": f"system {share}", "scores_N": scores_N, **changes}
    return dataclasses.replace(
        candidate, contender=dataclasses.replace(candidate.contender, **values)
    )


@pytest.fixture
def study(
    tmp_path: Path, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> Iterator[str]:
    """Work in a study of this test's own name, and return the id of its parent run."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / ".lineage").mkdir()
    monkeypatch.setenv("LINEAGE_TRACKING_URI", tracking_uri())
    monkeypatch.setenv("LINEAGE_STUDY", request.node.name)
    monkeypatch.setenv("LINEAGE_PIPELINE_ID", request.node.name)
    parent = tracking.open_parent_run(request.node.name)
    mlflow.set_tracking_uri(resolve_tracking_uri())
    yield parent.run_id
    parent.end("FINISHED")


def aliases() -> dict[str, int]:
    """Return the versions with an alias."""
    model = MlflowClient().get_registered_model(registered_name("sense"))
    return {alias: int(version) for alias, version in model.aliases.items()}


def read_version(number: int) -> ModelVersion:
    return MlflowClient().get_model_version(registered_name("sense"), str(number))


def count_versions() -> int:
    return len(MlflowClient().search_model_versions(f"name='{registered_name('sense')}'"))


def test_the_first_system_becomes_the_champion_with_its_numbers(
    candidate: Candidate, study: str
) -> None:
    outcome = enter_candidate(MlflowClient(), candidate, study)
    assert (outcome.version, outcome.has_changed) == (1, False)
    assert aliases() == {"champion": 1}
    version = read_version(1)
    tags = version.tags
    missing = {"difference", "difference_low", "difference_high", "compared_with"}
    assert set(tags) == set(described_names("tags.md", "Tags of registered models")) - missing
    assert tags["score"] == "0.8" and float(tags["score_low"]) < 0.8 < float(tags["score_high"])
    assert (tags["reason"], tags["system"], tags["label_count"]) == ("first", "tfidf", "100")
    assert (tags["run_id"], tags["cost_seconds"]) == (study, "50")
    assert version.description.startswith(
        f"The study {registry.study_name()} recommends it for sense"
    )
    assert "On test items it scores 80.0 % (77.7 to 82.3, 95 % confidence)" in version.description
    assert version.run_id == study
    outputs = MlflowClient().get_run(study).outputs.model_outputs
    assert [f"models:/{one.model_id}" for one in outputs] == [version.source]
    model = mlflow.pyfunc.load_model(f"models:/{registered_name('sense')}@champion")
    assert len(model.predict(pd.DataFrame({"review": ["a text", "another"]}))) == 2


def test_a_models_page_has_its_card_its_version_and_its_score_in_each_run(
    candidate: Candidate, study: str
) -> None:
    client = MlflowClient()
    sentence = "a label that is a whole sentence of the user"
    record = dataclasses.replace(candidate.kept.record, labels=("good", sentence))
    kept = dataclasses.replace(candidate.kept, record=record)
    candidate = dataclasses.replace(candidate, kept=kept)
    client.log_metric(study, "test/accuracy", 0.1)  # the score of another task's model
    for _ in range(2):
        enter_candidate(client, candidate, study)
    model_id = read_version(1).source.removeprefix("models:/")
    model = client.get_logged_model(model_id)
    note = model.tags[tracking.NOTE_TAG]
    assert note.startswith(read_version(1).description) and f"# tfidf for {record.task}" in note
    assert f'load_model("models:/{registered_name("sense")}/1")' in note
    assert "Answers: good, a label that is a wh..." in note and sentence not in note
    assert registered_name("sense") in model.tags["mlflow.modelVersions"]
    assert model.params["transfer"] == "none" and model.params["family"] == "tfidf"
    later = tracking.open_parent_run("a later pipeline")
    enter_candidate(client, candidate, later.run_id)
    later.end("FINISHED")
    scores = client.get_logged_model(model_id).metrics
    assert {(one.run_id, one.key, one.value) for one in scores} == {
        (run_id, "test/accuracy", 0.8) for run_id in (study, later.run_id)
    }
    assert len(scores) == 2


def test_the_same_system_is_not_registered_again(candidate: Candidate, study: str) -> None:
    client = MlflowClient()
    enter_candidate(client, candidate, study)
    outcome = enter_candidate(client, candidate, study)
    assert outcome.decision is None and outcome.version == 1
    assert count_versions() == 1
    worse = with_share(candidate, 0.7)
    for _ in range(2):  # nor is a challenger
        outcome = enter_candidate(client, worse, study)
        assert (outcome.version, outcome.champion_version) == (2, 1)
    assert count_versions() == 2


def test_a_worse_challenger_does_not_become_the_champion(candidate: Candidate, study: str) -> None:
    client = MlflowClient()
    enter_candidate(client, candidate, study)
    outcome = enter_candidate(client, with_share(candidate, 0.7, cost_seconds=0.1), study)
    assert not outcome.has_changed and aliases() == {"champion": 1, "challenger": 2}
    tags = read_version(2).tags
    assert (tags["reason"], tags["compared_with"]) == ("not better", "1")
    assert float(tags["difference"]) == pytest.approx(-0.1)
    assert float(tags["difference_high"]) < 0
    assert "The champion is still tfidf (version 1)" in read_version(2).description


def test_a_better_or_equal_and_cheaper_challenger_becomes_the_champion(
    candidate: Candidate, study: str
) -> None:
    client = MlflowClient()
    for share, changed in ((0.8, False), (0.9, True), (0.85, False)):
        outcome = enter_candidate(client, with_share(candidate, share), study)
        assert outcome.has_changed == changed, share
    assert aliases() == {"champion": 2, "challenger": 3}
    assert read_version(2).tags["reason"] == "better"
    assert read_version(3).tags["compared_with"] == "2"
    for name, seconds in (("dearer", 100.0), ("cheaper", 1.0)):
        equal = with_share(candidate, 0.9, system_digest=name, cost_seconds=seconds)
        assert enter_candidate(client, equal, study).has_changed == (name == "cheaper")
    assert aliases() == {"champion": 5}
    assert read_version(5).tags["reason"] == "equivalent and cheaper"


def test_a_challenger_on_other_items_waits_with_the_reason(
    candidate: Candidate, study: str
) -> None:
    client = MlflowClient()
    enter_candidate(client, candidate, study)
    other = with_share(candidate, 0.95, test_items_digest="other items")
    assert not enter_candidate(client, other, study).has_changed
    assert aliases() == {"champion": 1, "challenger": 2}
    tags = read_version(2).tags
    assert tags["reason"] == "other test items" and "difference" not in tags
    # The champion is scored on the new items too, and the two can be compared after all.
    same = dataclasses.replace(
        candidate,
        contender=dataclasses.replace(candidate.contender, test_items_digest="other items"),
    )
    assert enter_candidate(client, same, study).version == 3
    assert aliases() == {"champion": 3}
    assert enter_candidate(client, other, study).has_changed
    assert (aliases(), count_versions()) == ({"champion": 2}, 3)


def test_scores_that_may_not_be_kept_are_not_kept(candidate: Candidate, study: str) -> None:
    outcome = enter_candidate(MlflowClient(), with_share(candidate, 0.8, scores_N=None), study)
    version = read_version(outcome.version)
    assert version.tags["has_item_scores"] == "false"
    folder = mlflow.artifacts.download_artifacts(f"models:/{version.name}/1")
    assert not [*Path(folder).rglob("*item_scores*")]


def test_kept_scores_are_numbers_without_ids(candidate: Candidate, study: str) -> None:
    enter_candidate(MlflowClient(), candidate, study)
    name = registered_name("sense")
    folder = mlflow.artifacts.download_artifacts(f"models:/{name}/1")
    (path,) = Path(folder).rglob("item_scores.parquet")
    scores = pd.read_parquet(path)
    assert list(scores) == ["score"] and scores["score"].mean() == pytest.approx(0.8)
    assert path.stat().st_size < 3000


def test_an_interrupted_registration_is_completed_by_the_next_run(
    candidate: Candidate, study: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(MlflowClient, "set_registered_model_alias", interrupt)
        with pytest.raises(KeyboardInterrupt):
            enter_candidate(MlflowClient(), candidate, study)
    assert (aliases(), count_versions()) == ({}, 1)
    assert enter_candidate(MlflowClient(), candidate, study).version == 1
    assert (aliases(), count_versions()) == ({"champion": 1}, 1)


def interrupt(*_: Any, **__: Any) -> None:
    raise KeyboardInterrupt


def test_the_names_of_studies_and_tasks_are_made_fit_for_addresses(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("LINEAGE_STUDY", "my study: 2/3@home")
    assert registered_name("mood") == "my-study-2-3-home-mood"
    monkeypatch.setenv("LINEAGE_STUDY", "工单_1.5")
    assert registered_name("mood") == "工单_1-5-mood"


def test_a_name_in_another_script_can_be_served(
    candidate: Candidate, study: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LINEAGE_STUDY", "工单 und Ähnliches 1.5")
    enter_candidate(MlflowClient(), candidate, study)
    model = mlflow.pyfunc.load_model(f"models:/{registered_name('sense')}@champion")
    assert len(model.predict(pd.DataFrame({"review": ["a text"]}))) == 1


def test_publishing_goes_on_if_the_store_fails(
    study: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    params = read_params(tiny.ROOT / "params.yaml")

    def fail(*_: Any, **__: Any) -> None:
        raise MlflowException("the database is gone")

    monkeypatch.setattr(registry, "export_recommended", fail)
    folders = {"results_dir": Path("results"), "tasks_dir": Path("tasks")}
    assert publish_champions(params, [], run_id=study, **folders) == []
    message = capsys.readouterr().err
    assert message.count("\n") == 1 and "the database is gone" in message
    assert publish_champions(params, [], run_id="", **folders) == []
    assert capsys.readouterr().err == "", "without a run, a warning was printed before"


def test_a_task_without_a_champion_or_a_store_that_is_down_is_told_in_one_sentence(
    study: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    params = read_params(tiny.ROOT / "params.yaml")
    monkeypatch.setattr(registry, "read_recorded_params", lambda: params)
    with pytest.raises(InputError, match="the study has no task 'sens'"):
        find_champion("sens")
    with pytest.raises(
        InputError,
        match="no system is kept for agreement, since a task of kind minimal_pairs only asks",
    ):
        find_champion("agreement")
    with pytest.raises(InputError, match=r"MLflow has no champion of .*-sense; run `lineage run`"):
        find_champion("sense")
    monkeypatch.setenv("LINEAGE_TRACKING_URI", "http://me:secret@127.0.0.1:9")
    with pytest.raises(InputError, match="MLflow cannot tell the champion") as caught:
        find_champion("sense")
    assert "secret" not in str(caught.value) and "--system" in str(caught.value)
