"""Items on which the best two systems disagree: by id, unless their texts are asked for."""

from pathlib import Path

import pandas as pd
import pytest

from lineage import artifacts
from lineage.analysis.build import build_results
from lineage.analysis.disagreements import MAX_ITEMS_PER_SIDE, _shorten_label, find_disagreements
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
    _, analysis = build_results(results, study.grid, ReportParams())
    found = find_disagreements(
        analysis, results_dir=results, tasks_dir=tmp_path / "tasks", show_text=show_text
    )
    assert found
    items = [item for one in found for item in one.items]
    for one in found:
        assert 0 < len(one.items) <= 2 * MAX_ITEMS_PER_SIDE and len(one.systems) == 2
    pages = page.render_report(analysis, disagreements=found)
    for text in pages.values():
        assert (SECRET in text) is show_text
        assert all(item.id in text for item in items)
        assert ("shows their texts" in text) is not show_text
    lines = pages["md"].split("\n")
    place = next(n for n, line in enumerate(lines) if line.startswith("| item | label |"))
    assert lines[place + 1].startswith("|---|---|")
    assert lines[place + 2].startswith(f"| {found[0].items[0].id} |")
    for item in items:
        assert (SECRET in item.text) is show_text
        first, second = item.predictions
        assert first.accuracy != second.accuracy


def test_a_label_that_is_a_sentence_is_not_shown_whole() -> None:
    assert [_shorten_label(one) for one in ("财经新闻频道", "card payment fee", 3)] == [
        "财经新闻频道",
        "card payment fee",
        "3",
    ]
    assert _shorten_label(f"{SECRET} and dusk") == "the quokka sings at ..."
