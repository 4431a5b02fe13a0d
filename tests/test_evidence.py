"""A report keeps what it rests on, and its pages can be made again from that alone."""

import dataclasses
import shutil
from pathlib import Path

import pytest

from lineage import artifacts
from lineage.analysis.build import build_results, write_results_csv
from lineage.config.data import Task
from lineage.config.params import ReportParams
from lineage.errors import InputError
from lineage.report.evidence import ReportFacts, rebuild_report, write_evidence, write_report
from tests.helpers.evidence import PARAMS, TASKS, facts_of
from tests.helpers.full_report import PROVENANCE
from tests.helpers.study_rows import GRID, Study

FILES = (
    "comparison.html",
    "comparison.md",
    "comparison.json",
    "decisions.json",
    "metrics.json",
    "plots/pretraining/gpt-bits_per_byte.json",
    "plots/scores/tfidf.json",
)


@pytest.fixture
def report(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a report with its evidence; the study that made it is gone."""
    study = Study(tmp_path / "study", items=60).write()
    params_file = tmp_path / "params.yaml"
    params_file.write_text("the parameters of the study\n")
    table, analysis = build_results(study, GRID, ReportParams(), TASKS)
    folder = tmp_path / "moved" / "reports"
    folder.mkdir(parents=True)
    write_results_csv(folder / "results.csv", table)
    facts = facts_of(analysis)
    write_report(folder, analysis, facts, PARAMS)
    stages = [path.stem for path in study.rglob("*") if path.is_file()]
    write_evidence(folder, facts, PARAMS, params_file=params_file, results_dir=study, stages=stages)
    shutil.rmtree(study)

    monkeypatch.setattr("lineage.report.evidence.read_params", lambda path: PARAMS)
    return folder


def test_the_same_pages_are_made_again(report: Path) -> None:
    before = {name: (report / name).read_bytes() for name in FILES}
    for name in FILES:
        (report / name).unlink()
    (report / "results.csv").unlink()
    assert rebuild_report(report) == report / "comparison.html"
    for name in FILES:
        assert (report / name).read_bytes() == before[name], name
    assert b"60 s" in before["comparison.html"], "costs are kept"
    assert rebuild_report(report.parent) == report / "comparison.html", "a study has a report"


def test_evidence_of_earlier_versions_is_read(report: Path) -> None:
    """It has a table of models, which no page shows now."""
    before = (report / "comparison.md").read_text()
    file = report / "evidence/facts.json"
    former = {"model_descriptions": [{"model": "gpt"}], "description_columns": ["model"]}
    artifacts.write_json(file, artifacts.read_json(file) | former)
    rebuild_report(report)
    assert (report / "comparison.md").read_text() == before


def test_a_changed_prediction_changes_the_page(report: Path) -> None:
    before = (report / "comparison.md").read_text()
    path = report / "evidence/results/predictions/evaluate-bert-0-sense.parquet"
    table = artifacts.read_table(path)
    artifacts.write_table(path, table.assign(correct=0.0))
    rebuild_report(report)
    assert (report / "comparison.md").read_text() != before


def test_a_folder_without_evidence_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no folder 'evidence' of a report here"):
        rebuild_report(tmp_path)


@pytest.mark.parametrize("show_text", [False, True])
def test_answers_that_are_texts_are_kept_only_if_the_study_shows_texts(
    tmp_path: Path, show_text: bool
) -> None:
    task = Task(kind="extractive_qa", files={"test": "test.csv"})
    params = dataclasses.replace(
        PARAMS,
        grid=dataclasses.replace(GRID, tasks=(*GRID.tasks, "answers")),
        report=ReportParams(show_text=show_text),
        tasks=TASKS | {"answers": task},
    )
    params_file = tmp_path / "params.yaml"
    params_file.write_text("the parameters of the study\n")
    facts = ReportFacts((), (), (), PROVENANCE, ())
    evidence = tmp_path / "evidence"
    evidence.mkdir()
    (evidence / "old.json").write_text("of an earlier run")
    write_evidence(
        tmp_path, facts, params, params_file=params_file, results_dir=tmp_path / "none", stages=()
    )
    assert evidence.is_dir() == show_text and not (evidence / "old.json").exists()
