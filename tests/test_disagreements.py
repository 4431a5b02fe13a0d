"""Items on which the best two ways differ: the right ones, by ids alone unless their texts are asked for."""

from pathlib import Path

import pandas as pd
import pytest

from lineage import artifacts
from lineage.analysis.build import build_results
from lineage.analysis.disagreements import MAX_ITEMS_PER_SIDE, _format_label, find_disagreements
from lineage.config.params import ReportParams
from lineage.report import page
from tests.study_rows import Study

SECRET = "the quokka sings at dawn"


def written(folder: Path, study: Study) -> None:
    """The task folders of a made-up study: one sentence an item."""
    for task in study.grid.tasks:
        ids = [f"test-{i}" for i in range(study.items)]
        table = pd.DataFrame(
            {"id": ids, "text": [f"{SECRET} {i}" for i in ids], "good": ids, "bad": ids}
        )
        artifacts.write_table(folder / task / "test.parquet", table)
        artifacts.write_json(
            folder / task / "task.json",
            {"kind": "text_classification", "language": "en", "has": ["test"]},
        )


@pytest.mark.parametrize("show_text", [False, True])
def test_texts_are_shown_where_they_are_asked_for_and_else_ids_alone(
    tmp_path: Path, show_text: bool
) -> None:
    study = Study(tmp_path / "results")
    results = study.write()
    written(tmp_path / "tasks", study)
    _, tree = build_results(results, study.grid, ReportParams())
    found = find_disagreements(
        tree, study.grid, results_dir=results, tasks_dir=tmp_path / "tasks", show_text=show_text
    )
    assert found and all(
        0 < len(one["items"]) <= 2 * MAX_ITEMS_PER_SIDE and len(one["ways"]) == 2 for one in found
    )
    for text in page.render_report(
        tree, budget=[], provenance={"stages": []}, disagreements=found
    ).values():
        assert (SECRET in text) is show_text and all(
            item["id"] in text for one in found for item in one["items"]
        )
        assert ("shows their texts" in text) is not show_text
    lines = page.render_report(tree, budget=[], provenance={"stages": []}, disagreements=found)[
        "md"
    ].split("\n")
    place = next(
        number for number, line in enumerate(lines) if line.startswith("| item | right answer |")
    )
    assert lines[place + 1].startswith("|---|---|") and lines[place + 2].startswith(
        f"| {found[0]['items'][0]['id']} |"
    )
    assert all((SECRET in item["text"]) is show_text for one in found for item in one["items"])
    for one in found:
        for item in one["items"]:
            first, second = (float(said.rsplit("(", 1)[1].split(" ")[0]) for said in item["said"])
            assert first != second


def test_a_label_that_is_a_sentence_is_not_told_whole() -> None:
    assert [_format_label(one) for one in ("财经新闻频道", "card payment fee", 3)] == [
        "财经新闻频道",
        "card payment fee",
        "3",
    ]
    assert _format_label(f"{SECRET} and dusk") == "the quokka sings at ..."
