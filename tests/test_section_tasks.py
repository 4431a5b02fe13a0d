"""The parts of the page for each task."""

import dataclasses
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pandas as pd
import pytest

from lineage import artifacts, results
from lineage.analysis.records import Analysis
from lineage.report.section import Table
from lineage.report.sections.adaptation import build
from lineage.report.task_scores import format_usage, list_task_scores
from tests.helpers.sections import find_blocks, read_table, report_of
from tests.helpers.study_rows import GRID, Study, analyze, render_pages


def test_a_table_has_the_systems_with_the_most_labels_first(analysis: Analysis) -> None:
    """A score with 100 labels is not ranked among those with all. What reads no item is last."""
    kept = tuple(
        one
        for one in analysis.scores
        if (one.system.transfer, one.label_count) != ("finetuned", "all")
    )
    analysis = replace(analysis, scores=kept, comparisons=())
    table = next(one for one in list_task_scores(analysis, []) if one.task == "sentiment")
    lines = [line for line in table.lines if line.system.model != "majority"]
    assert [line.system.model for line in table.lines[len(lines) :]] == ["majority"]
    has_all = ["all" in line.scores for line in lines]
    assert True in has_all and False in has_all
    assert has_all == sorted(has_all, reverse=True)
    for group in (True, False):
        own = [line for line in lines if ("all" in line.scores) == group]
        means = [line.scores["all" if group else "100"].mean for line in own]
        assert means == sorted(means, reverse=True)  # type: ignore[type-var]


def change_rows(folder: Path, pattern: str, change: Callable[[pd.DataFrame], pd.DataFrame]) -> None:
    for path in folder.glob(f"rows/{pattern}"):
        artifacts.write_table(path, change(artifacts.read_table(path)))


def test_adapted_results_are_marked_on_extra_test_sets_too(tmp_path: Path) -> None:
    """A loss that fell for some pretraining seeds only is marked, and the seeds are counted."""
    grid = replace(GRID, pretrain_seeds=(0, 1))
    folder = Study(tmp_path, grid=grid, items=40).write()

    def raise_loss(table: pd.DataFrame) -> pd.DataFrame:
        is_risen = (
            (table["test_set"] == results.HELDOUT_TEST_SET)
            & (table["model"] == "gpt")
            & (table["init"] == "adapted")
            & (table["pretrain_seed"] == 1)
        )
        return table.assign(value=table["value"].where(~is_risen, 9.0))

    change_rows(folder, "evaluate_adapted-gpt-*.parquet", raise_loss)
    analysis = analyze(folder, grid)
    (table,) = find_blocks(build(report_of(analysis)), Table)
    (line,) = [one for one in read_table(table) if one["model"] == "GPT"]
    assert line["outcome"] == "† fell in 1 of 2 pretrainings"
    assert table.note.startswith("† This loss did not fall")
    score = next(
        one
        for one in analysis.scores
        if (one.system.model, one.system.init, one.system.transfer)
        == ("gpt", "adapted", "finetuned")
    )
    for task in ("sentiment", "sentiment on other"):
        usage = format_usage(analysis, dataclasses.replace(score, task=task))
        assert usage == "adapted †, fine-tuned"


@pytest.mark.parametrize(
    ("status", "text"), [("failed", "1 seed failed"), ("not_applicable", "1 seed not applicable")]
)
def test_a_lost_seed_is_shown_with_its_status_on_both_pages(
    status: str, text: str, tmp_path: Path
) -> None:
    folder = Study(tmp_path, items=40).write()

    why = results.notes_to_json([results.Note("error", "why")])

    def lose_seed(table: pd.DataFrame) -> pd.DataFrame:
        is_lost = (
            (table["init"] == "pretrained")
            & (table["transfer"] == "finetuned")
            & (table["label_count"] == "100")
            & (table["finetune_seed"] == 1)
            & (table["split"] == "test")
        )
        return table.assign(
            value=table["value"].mask(is_lost),
            status=table["status"].mask(is_lost, status),
            reason=table["reason"].mask(is_lost, why),
        )

    change_rows(folder, "evaluate-gpt-0-sentiment.parquet", lose_seed)
    analysis = analyze(folder)
    pages = render_pages(analysis)
    assert f"; {text} |" in pages["md"] and f'title="why">{text}<' in pages["html"]
