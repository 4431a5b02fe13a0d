"""The parts of the page for each task."""

import dataclasses
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pandas as pd
import pytest

from lineage import artifacts, results
from lineage.analysis.convergence import FinetuneCurve
from lineage.analysis.records import Analysis
from lineage.report.section import Paragraph, Table
from lineage.report.sections.adaptation import build
from lineage.report.sections.tasks import build_score_tables, build_task_section
from lineage.report.task_scores import format_usage, list_task_scores
from tests.helpers.sections import find_blocks, read_table, report_of
from tests.helpers.study_rows import GRID, Study, analyze, render_pages


def test_each_number_of_labels_has_a_table_with_all_of_its_intervals(analysis: Analysis) -> None:
    """The switch of the page shows one of them. Random init and chance are no lines."""
    scores = next(one for one in list_task_scores(analysis, []) if one.task == "sentiment")
    tables = [*build_score_tables(report_of(analysis), scores)]
    assert [one.labels for one in tables] == ["100", "all"] == [*scores.train_examples]
    for count, table in zip(scores.train_examples, tables, strict=True):
        found = scores.list_scores(count)
        means = [one.mean for one in found]
        assert means == sorted(means, reverse=True)  # type: ignore[type-var]
        lines = read_table(table)
        shown = [one.system for one in found if one.system.family != "majority"]
        assert len(lines) == sum(one.init != "random" for one in shown) > 5
        assert all(re.fullmatch(r"\d+\.\d to \d+\.\d", one["95 % interval"]) for one in lines)
        differences = [one["vs baseline"] for one in lines if one["vs baseline"]]
        assert differences
        assert all(re.match(r"\S+ \(\S+ to \S+\)", one) for one in differences)


def test_the_table_with_the_most_labels_stands_in_for_numbers_that_a_task_lacks(
    analysis: Analysis,
) -> None:
    grid = replace(analysis.grid, label_counts=(100, 1000, "all"))
    scores = next(one for one in list_task_scores(analysis, []) if one.task == "sentiment")
    report = report_of(replace(analysis, grid=grid))
    assert [one.labels for one in build_score_tables(report, scores)] == ["100", "all 1000"]
    (zero_shot,) = (one for one in list_task_scores(analysis, []) if one.task == "agreement")
    assert [one.labels for one in build_score_tables(report, zero_shot)] == ["none"]


def test_learning_curves_name_the_most_labels_of_fine_tuning(analysis: Analysis) -> None:
    curve = FinetuneCurve(
        "sentiment", "elmo", "pretrained", "finetuned", "linear", "accuracy", 1.0, *[(1.0,)] * 4
    )
    scores = [
        one
        for one in analysis.scores
        if (one.system.transfer, one.label_count) != ("finetuned", "all")
    ]
    fewer = replace(analysis, scores=tuple(scores), finetune_curves=(curve,), comparisons=())
    for own, labels in ((replace(analysis, finetune_curves=(curve,)), "600"), (fewer, "100")):
        notes = [
            paragraph.text
            for one in list_task_scores(own, [])
            if one.task == "sentiment"
            for paragraph in find_blocks(
                build_task_section(report_of(own), one, is_first=True), Paragraph
            )
        ]
        assert f"First seed, {labels} labels; dashed: random init." in notes


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
