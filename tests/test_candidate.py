"""The recommended system of a task is exported with its scores and a digest of the test items."""

import dataclasses
import json
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import mlflow
import numpy as np
import pandas as pd
import pytest
from mlflow import MlflowClient

from lineage import artifacts
from lineage.analysis.cells import read_cell, read_result_cells, read_rows
from lineage.analysis.decision import Decision, decide
from lineage.analysis.ranking import rank_setting
from lineage.config.params import Params, ReportParams, read_params
from lineage.data.prepare_task import prepare_task
from lineage.evaluation.evaluate import sort_predictions
from lineage.report import publication
from lineage.results import results_frame
from lineage.runtime import tracking
from lineage.serving.candidate import (
    Candidate,
    digest_folder,
    digest_test_items,
    export_recommended,
)
from lineage.serving.registry import publish_champions, registered_name
from lineage.serving.systems import write_systems
from lineage.tasks.base import load_kind
from tests.helpers import tiny
from tests.helpers.kept_systems import evaluate_tfidf, prepare_case
from tests.helpers.study_rows import GRID, Study, build_analysis, write_no_ngrams
from tests.helpers.user_project import tracking_uri

RESULTS_DIR = Path("artifacts/results")
TASKS_DIR = Path("artifacts/tasks")
FOLDERS = {"results_dir": RESULTS_DIR, "tasks_dir": TASKS_DIR}


@dataclass(frozen=True)
class SmallStudy:
    """A study in the current folder in which TF-IDF was evaluated on the task `x`."""

    params: Params
    decisions: list[Decision]


def make_study(name: str, *, show_text: bool = False) -> SmallStudy:
    """Write the artifacts and the decisions of a study with one case as its task."""
    task, data, _ = prepare_case(name, Path())
    with artifacts.create_artifact(TASKS_DIR / "x", "task") as folder:
        prepare_task("x", task, folder, seed=1, root=Path(), where="tasks.x")
    kept, _ = evaluate_tfidf(task, data, Path("kept"))
    write_systems("baselines-x", [kept.folder])
    rows = []
    tables = []
    for own_rows, predictions in tiny.evaluate_baselines(load_kind(task.kind), data, tfidf_C=(10.0,)):  # fmt: skip
        rows += own_rows
        tables.append(predictions)
    for stage, stage_rows, predictions in (
        ("baselines-x", rows, pd.concat(tables)),
        ("evaluate-gpt-0-x", [], sort_predictions([])),
    ):
        artifacts.write_table(RESULTS_DIR / f"rows/{stage}.parquet", results_frame(stage_rows))
        artifacts.write_table(RESULTS_DIR / f"predictions/{stage}.parquet", predictions)
    write_no_ngrams(RESULTS_DIR)
    params = read_small_params(task, show_text=show_text)
    cells = read_result_cells(
        RESULTS_DIR,
        params.grid,
        table=read_rows(RESULTS_DIR, params.grid),
        split="test",
        tasks=params.tasks,
    )
    analysis = build_analysis(cells, grid=params.grid, rankings=tuple(rank_setting(cells, [])))
    decisions = decide(analysis, {})
    Path("reports").mkdir()
    records = publication.decision_records(decisions)
    Path("reports/decisions.json").write_text(json.dumps(records))
    return SmallStudy(params, decisions)


def read_small_params(task: Any, *, show_text: bool) -> Params:
    params = read_params(tiny.ROOT / "params.yaml")
    grid = dataclasses.replace(
        params.grid, models=("gpt",), tasks=("x",), adapt_models=(), adapt_tasks=()
    )
    return dataclasses.replace(
        params, tasks={"x": task}, grid=grid, report=ReportParams(show_text=show_text)
    )


@pytest.fixture
def in_study(
    tmp_path: Path, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> str:
    """Work in an empty folder, with a store, and return the id of a parent run."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("LINEAGE_TRACKING_URI", tracking_uri())
    monkeypatch.setenv("LINEAGE_STUDY", request.node.name)
    return tracking.open_parent_run(request.node.name).run_id


def export(study: SmallStudy, folder: str) -> Candidate:
    return export_recommended(study.params, study.decisions, "x", Path(folder), **FOLDERS)


def test_one_cell_is_read_as_all_cells_are(tmp_path: Path) -> None:
    grid = dataclasses.replace(
        GRID, models=("elmo", "gpt"), tasks=("sense",), adapt_models=(), adapt_tasks=()
    )
    folder = Study(tmp_path, grid=grid, items=60).write()
    every = read_result_cells(folder, grid, table=read_rows(folder, grid), split="test", tasks={})
    for cell in every[::3]:
        alone = read_cell(folder, grid, cell.system, cell.setting, split="test", tasks={})
        assert alone.seed_values == cell.seed_values and alone.item_scores.keys()
        for seeds, scores in cell.item_scores.items():
            pd.testing.assert_series_equal(alone.item_scores[seeds], scores)


def test_a_candidate_has_the_score_of_the_report_and_no_text(in_study: str) -> None:
    study = make_study("texts")
    candidate = export(study, "system")
    scores_N = candidate.contender.scores_N
    assert scores_N is not None and len(scores_N) == 23
    assert scores_N.mean() == pytest.approx(candidate.decision.use.standing.mean)
    assert candidate.kept.record.name == "tfidf"
    assert (candidate.folder / "task.json").is_file()
    assert export(study, "again").contender.system_digest == candidate.contender.system_digest


def test_publishing_registers_the_recommended_system_once(
    in_study: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "dont_write_bytecode", False)
    study = make_study("texts")
    for _ in range(2):
        (outcome,) = publish_champions(study.params, study.decisions, run_id=in_study, **FOLDERS)
        assert (outcome.task, outcome.system, outcome.version) == ("x", "tfidf", 1)
    files = {
        file.path for file in mlflow.artifacts.list_artifacts(f"models:/{registered_name('x')}/1")
    }
    assert "model_script.py" in files and "__pycache__" not in files
    client = MlflowClient()
    assert client.get_registered_model(registered_name("x")).aliases == {"champion": 1}
    model = mlflow.pyfunc.load_model(f"models:/{registered_name('x')}@champion")
    assert len(model.predict(pd.DataFrame({"review": ["a text"]}))) == 1


@pytest.mark.parametrize("show_text", [False, True])
def test_scores_are_kept_where_answers_are_texts_only_if_texts_may_be_shown(
    show_text: bool, in_study: str
) -> None:
    candidate = export(make_study("questions", show_text=show_text), "system")
    assert (candidate.contender.scores_N is not None) == show_text


def test_a_system_that_is_not_kept_is_told_in_one_line(
    in_study: str, capsys: pytest.CaptureFixture[str]
) -> None:
    study = make_study("texts")
    (record,) = Path("artifacts/systems").rglob("system.json")
    record.unlink()
    capsys.readouterr()
    assert publish_champions(study.params, study.decisions, run_id=in_study, **FOLDERS) == []
    message = capsys.readouterr().err
    assert message.startswith("x: no system is registered: ") and message.count("\n") == 1


def write_items(folder: Path, labels: list[str], *, train: str = "a text") -> Path:
    items = {"id": ["test-1", "test-2"], "text": ["one", "two"], "label": labels}
    artifacts.write_json(folder / "task.json", {"has": ["train", "test", "unlabelled"]})
    artifacts.write_table(folder / "test.parquet", pd.DataFrame(items))
    other = pd.DataFrame({"id": ["train-1"], "text": [train], "label": ["0"]})
    artifacts.write_table(folder / "train.parquet", other)
    return folder


def test_the_digest_of_test_items_covers_texts_labels_and_metric_only(tmp_path: Path) -> None:
    ids = {"test-1", "test-2"}
    first = write_items(tmp_path / "first", ["0", "1"])
    digest = digest_test_items(first, ids, "accuracy")
    same = write_items(tmp_path / "same", ["0", "1"], train="another text")
    assert digest_test_items(same, ids, "accuracy") == digest
    relabelled = write_items(tmp_path / "relabelled", ["0", "0"])
    others = {
        digest_test_items(relabelled, ids, "accuracy"),
        digest_test_items(first, ids, "macro_f1"),
        digest_test_items(first, {"test-1"}, "accuracy"),
    }
    assert len(others - {digest}) == 3


def test_the_digest_of_a_system_covers_its_files_but_for_the_card(tmp_path: Path) -> None:
    np.save(tmp_path / "weights.npy", np.zeros(3))
    digest = digest_folder(tmp_path)
    (tmp_path / "README.md").write_text("a card")
    assert digest_folder(tmp_path) == digest
    np.save(tmp_path / "weights.npy", np.ones(3))
    assert digest_folder(tmp_path) != digest
