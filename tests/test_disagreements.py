"""The report lists items on which the two best systems disagree, with texts only on request."""

from dataclasses import replace
from pathlib import Path

import pandas as pd
import pytest

from lineage import artifacts
from lineage.analysis.cells import shorten_label
from lineage.analysis.disagreements import MAX_ITEMS_PER_SIDE, find_disagreements
from lineage.analysis.records import Analysis
from lineage.report import page
from lineage.report.section import ReportData
from tests.helpers.study_rows import GRID, Study

SECRET = "the quokka sings at dawn"


def write_task_folders(folder: Path, num_items: int) -> None:
    """Write the task folders of a synthetic study, with one sentence per item."""
    for task in GRID.tasks:
        ids = [f"test-{i}" for i in range(num_items)]
        table = pd.DataFrame(
            {"id": ids, "text": [f"{SECRET} {i}" for i in ids], "good": ids, "bad": ids}
        )
        artifacts.write_table(folder / task / "test.parquet", table)
        artifacts.write_json(
            folder / task / "task.json",
            {"name": task, "kind": "text_classification", "has": ["test"]},
        )


@pytest.mark.parametrize("show_text", [False, True])
def test_the_report_shows_items_with_their_texts_only_on_request(
    analysis: Analysis, study_folder: Path, tmp_path: Path, show_text: bool
) -> None:
    write_task_folders(tmp_path, Study.items)
    disagreements = find_disagreements(
        analysis, results_dir=study_folder, tasks_dir=tmp_path, show_text=show_text
    )
    assert bool(disagreements) is show_text
    items = [item for disagreement in disagreements for item in disagreement.items]
    for disagreement in disagreements:
        assert (
            0 < len(disagreement.items) <= 2 * MAX_ITEMS_PER_SIDE and len(disagreement.systems) == 2
        )
    pages = page.render_report(ReportData(analysis, disagreements=disagreements))
    for text in pages.values():
        assert (SECRET in text) is show_text
        assert all(item.id in text for item in items)
    for item in items:
        assert SECRET in item.text
        first, second = item.predictions
        assert first.accuracy != second.accuracy


def test_the_best_two_systems_may_be_public_models(
    analysis: Analysis, study_folder: Path, tmp_path: Path
) -> None:
    overall = [
        replace(one, scope="overall", standings=one.standings[::-1]) for one in analysis.rankings
    ]
    analysis = replace(analysis, rankings=(*analysis.rankings, *overall))
    write_task_folders(tmp_path, Study.items)
    (found, *_) = find_disagreements(
        analysis, results_dir=study_folder, tasks_dir=tmp_path, show_text=True
    )
    best = [
        [standing.system for standing in one.standings[:2]]
        for one in overall
        if one.task == found.task
    ]
    assert list(found.systems) in best


def test_a_label_as_long_as_a_sentence_is_shortened() -> None:
    assert [shorten_label(label) for label in ("财经新闻频道", "card payment fee", 3)] == [
        "财经新闻频道",
        "card payment fee",
        "3",
    ]
    assert shorten_label(f"{SECRET} and dusk") == "the quokka sings at ..."
