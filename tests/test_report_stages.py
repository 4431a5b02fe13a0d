"""The stages report and publish write the files of a report from the output of all stages."""

import json
from pathlib import Path

import pytest

from lineage.analysis.records import read_analysis
from tests.user_project import make_project, run_stage, write_params

STAGES = (
    ("sources",),
    ("corpus", "general"),
    ("task", "mood"),
    ("contamination", "mood"),
    ("tokenizer", "gpt"),
    ("pretrain", "gpt", "0"),
    ("evaluate", "gpt", "0", "mood"),
    ("baselines", "mood"),
    ("ngram",),
    ("sources",),  # must keep the results of the grid
    ("report",),
    ("publish",),
)


def test_a_study_ends_in_a_report(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    tree = make_project(tmp_path)
    tree["budget"] |= {"text_bytes": 5_000, "body_parameters": 100_000}
    tree["grid"] |= {"adapt_models": [], "adapt_tasks": [], "finetune_seeds": [0, 1]}
    write_params(tmp_path, tree)
    for command in STAGES:
        code, output = run_stage(tmp_path, *command, monkeypatch=monkeypatch, capsys=capsys)
        assert code == 0, (command, output)
    analysis = read_analysis(tmp_path / "reports/results.json")
    models = {score.system.model for score in analysis.scores}
    assert models >= {"gpt", "majority", "tfidf"}
    (task,) = analysis.tasks
    assert {name: split.items for name, split in task.splits.items()} == {
        "train": 54,
        "validation": 6,
        "test": 20,
    }
    content = json.loads((tmp_path / "reports/comparison.json").read_text())
    assert {"scores", "comparisons", "budget", "provenance", "results"} <= content.keys()
    assert content["provenance"]["study"]
    assert content["budget"][0]["text_bytes"] >= 5_000
    assert not any(row["family"] == "data" for row in content["results"])
    for name in ("comparison.html", "comparison.md"):
        text = (tmp_path / "reports" / name).read_text()
        assert "GPT, fine-tuned" in text and "Provenance" in text
