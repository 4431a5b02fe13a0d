"""Costs, and the texts of the MLflow run."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pandas as pd

from lineage import artifacts
from lineage.analysis.champion import ChampionOutcome
from lineage.analysis.decision import decide
from lineage.analysis.records import Analysis
from lineage.artifacts import file_digest
from lineage.report import publication
from lineage.report.costs import add_adaptation_seconds, add_pretraining_costs
from lineage.report.decisions import summarize_decisions
from tests.helpers.study_rows import GRID, Study, analyze, render_pages


def stage_metadata(folder: Path, model: str, **costs: float) -> dict[str, Any]:
    """Return what a pretraining stage recorded, for the curve in this folder."""
    curve = file_digest(folder / f"curves/pretrain-{model}-0.parquet")
    return {"stage": f"pretrain@{model}-0", "curve_sha256": curve, **costs}


def test_pretraining_costs_are_those_of_the_training_that_wrote_the_curve(
    analysis: Analysis, study_folder: Path
) -> None:
    gpt = stage_metadata(study_folder, "gpt", seconds=15.0, peak_memory_bytes=5)
    stages = {
        "pretrain@gpt-0": gpt,
        "pretrain@gpt-1": gpt | {"seconds": 600.0},  # a result of an earlier grid
        "pretrain@elmo-0": stage_metadata(study_folder, "elmo", seconds=9.0)
        | {"curve_sha256": "of another budget"},
    }
    budget = add_pretraining_costs(analysis.budget, stages, curves_dir=study_folder / "curves")
    by_model = {one.model: one for one in budget}
    assert by_model["gpt"].seconds == 15 and by_model["gpt"].peak_memory_bytes == 5
    assert by_model["bert"].seconds is None and by_model["elmo"].seconds is None
    copied = [replace(one, text_bytes=None) for one in analysis.budget]
    (cost, *_) = add_pretraining_costs(
        [one for one in copied if one.model == "gpt"], stages, curves_dir=study_folder / "curves"
    )
    assert cost.seconds is None, "reading a public checkpoint is not training"


def test_the_note_links_the_runs_that_made_the_cached_results(analysis: Analysis) -> None:
    stages = {
        "pretrain@gpt-0": {"mlflow_run_id": "abc", "pipeline_id": "old"},
        "report": {"mlflow_run_id": "def", "pipeline_id": "new"},
    }
    cached = publication.find_cached_runs(stages, pipeline="new")
    assert cached == {"pretrain@gpt-0": "abc"}
    own = decide(analysis, {})
    outcome = ChampionOutcome("sense", "gpt-finetuned", 3, "gpt-finetuned", 3, None)
    trained = publication.find_training_runs(stages)
    assert trained == ["abc"], "only the stages that pretrain"
    changes = ["sense: Word2vec instead of TF-IDF", "sentiment: new"]
    note = publication.format_run_note(
        analysis, own, [outcome], changes, cached, trained, experiment_id="1"
    )
    assert "Since the last run: sense: Word2vec instead of TF-IDF; sentiment: new\n" in note
    assert "- **sense**: The champion is still gpt-finetuned (version 3)" in note
    link = "[pretrain@gpt-0](#/experiments/1/runs/abc?workflowType=machine_learning)"
    assert link in note and summarize_decisions(analysis, own) in note
    assert "(#/metric?runs=%5B%22abc%22%5D&experiments=%5B%221%22%5D&metric=%22by_text_kb" in note
    many = {f"evaluate@gpt-{i}-sentiment": "f" * 32 for i in range(200)}
    note = publication.format_run_note(analysis, own, [], [], many, trained, experiment_id="1")
    assert len(note) <= 8000


def test_the_cost_of_an_adaptation_is_next_to_its_effect(tmp_path: Path) -> None:
    folder = Study(tmp_path, items=40).write()
    curve = folder / "curves/adapt-gpt-0-sentiment.parquet"
    artifacts.write_table(curve, pd.DataFrame({"text_bytes": [400, 1_001_350], "loss": [3.0, 2.0]}))
    analysis = analyze(folder)
    text_bytes = {one.model: one.text_bytes for one in analysis.adaptation}
    assert text_bytes == {"elmo": None, "gpt": 1_001_350.0, "bert": None}
    own = {"seconds": 75.0, "curve_sha256": artifacts.file_digest(curve)}
    for seconds, metadata in ((75.0, own), (None, own | {"curve_sha256": "of another one"})):
        effects = add_adaptation_seconds(
            analysis.adaptation,
            {"adapt@gpt-0-sentiment": metadata},
            GRID,
            curves_dir=folder / "curves",
        )
        assert {one.seconds for one in effects if one.model == "gpt"} == {seconds}
        md = render_pages(replace(analysis, adaptation=effects))["md"]
        assert ("| GPT | sentiment | 1 MB | 75 s |" in md) == (seconds is not None)
        assert "| BERT | sentiment | n/a | – |" in md
