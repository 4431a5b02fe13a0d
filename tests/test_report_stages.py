"""The stages report and publish write the files of a report from the output of all stages."""

import json
from pathlib import Path

from lineage.analysis.records import read_analysis


def test_a_study_ends_in_a_report(finished_project: Path) -> None:
    reports = finished_project / "reports"
    analysis = read_analysis(reports / "results.json")
    models = {score.system.model for score in analysis.scores}
    assert models >= {"gpt", "majority", "tfidf"}
    (task,) = analysis.tasks
    assert {name: split.items for name, split in task.splits.items()} == {
        "train": 54,
        "validation": 6,
        "test": 20,
    }
    content = json.loads((reports / "comparison.json").read_text())
    assert {"scores", "comparisons", "budget", "provenance", "results"} <= content.keys()
    assert content["provenance"]["study"]
    assert content["budget"][0]["text_bytes"] >= 5_000
    assert not any(row["family"] == "data" for row in content["results"])
    for name in ("comparison.html", "comparison.md"):
        text = (reports / name).read_text()
        assert "GPT, fine-tuned" in text and "Provenance" in text
