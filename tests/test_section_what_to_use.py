"""The table of decisions, the main figure, and how to read them."""

import dataclasses
from dataclasses import replace
from pathlib import Path
from typing import Any

from lineage.analysis.build import build_results
from lineage.analysis.records import Analysis, Setting
from lineage.config.params import ReportParams
from lineage.report.sections.what_to_use import describe_intervals, draw_main_panels
from tests.helpers.study_rows import GRID, Study


def small_analysis(folder: Path, **changes: Any) -> Analysis:
    """Return the analysis of a study with 40 items."""
    grid = dataclasses.replace(GRID, **changes)
    return build_results(Study(folder, items=40).write(), grid, ReportParams())[1]


def test_the_main_figure_shows_the_other_systems_of_a_model(tmp_path: Path) -> None:
    analysis = small_analysis(tmp_path)
    panel = draw_main_panels(analysis, "all")[0]
    ranking = [
        one for one in analysis.rankings if (one.task, one.label_count) == ("sentiment", "all")
    ][-1]
    models = [one.system.model for one in ranking.standings]
    others = [
        one
        for one in analysis.scores_of(Setting("sentiment", "all"))
        if one.system.model in models and one.system.init != "random"
    ]
    assert panel.count('r="2.2"') == len(others) - len(models) > 0


def test_the_text_on_intervals_names_only_what_was_repeated(tmp_path: Path) -> None:
    grid = replace(
        GRID, tasks=("agreement",), pretrain_seeds=(0, 1), adapt_models=(), adapt_tasks=()
    )
    analysis = build_results(Study(tmp_path, grid=grid).write(), grid, ReportParams())[1]
    text = describe_intervals(analysis)
    assert text.startswith("over items and pretraining seeds") and "fine-tuning" not in text
