"""The section that sets models of today's recipe beside those of the papers."""

from dataclasses import replace
from pathlib import Path

import pytest

from lineage.analysis.records import Analysis
from lineage.networks.registry import family_names, load_family
from lineage.report.sections.todays_recipe import compare, find_pairs
from tests.helpers import study_rows
from tests.helpers.study_rows import (
    GRID,
    SENSE_GRID,
    Study,
    analyze,
    build_comparison,
    render_pages,
)

TITLE = "## What today's recipe is worth"


@pytest.fixture
def analysis(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Analysis:
    """Return a study of GPT and of modern GPT, which is planted to be far better."""
    monkeypatch.setitem(study_rows.SKILL, "gpt_modern", 1.8)
    monkeypatch.setitem(study_rows.MEASURES, "gpt_modern", ("bits_per_byte",))
    grid = replace(GRID, models=("gpt", "gpt_modern", "elmo"), adapt_models=(), adapt_tasks=())
    Study(tmp_path, grid=grid, items=300).write()
    return analyze(tmp_path, grid)


def test_each_modern_family_has_its_predecessor() -> None:
    pairs = {name: load_family(name).successor_of for name in family_names()}
    newer = {name: older for name, older in pairs.items() if older}
    assert newer == {"gpt_modern": "gpt", "bert_modern": "bert", "gpt_bert": "bert"}


def test_a_planted_gain_is_shown_from_the_newer_model(analysis: Analysis) -> None:
    assert find_pairs(analysis) == [("gpt_modern", "gpt")]
    comparisons = compare(analysis, "gpt_modern", "gpt")
    assert {one.first.model for one in comparisons} == {"gpt_modern"}
    assert {one.label_count for one in comparisons} == {"all", "none"}
    assert {one.verdict for one in comparisons} == {"better"}
    assert all(one.difference > 0 for one in comparisons)
    markdown = render_pages(analysis)["md"]
    assert TITLE in markdown
    words = "modern GPT is shown to be better than GPT on sentiment, sense and agreement"
    assert words in markdown
    assert "| modern GPT beside GPT | bits per byte, left to right |" in markdown


def test_a_study_without_such_a_pair_has_no_such_section(tmp_path: Path) -> None:
    Study(tmp_path, SENSE_GRID, items=40).write()
    assert TITLE not in render_pages(analyze(tmp_path, SENSE_GRID))["md"]


def test_a_reversed_comparison_says_the_same() -> None:
    one = build_comparison(difference=0.3, ci_low=0.1, ci_high=0.6, verdict="better")
    other = one.reversed()
    assert (other.first, other.second) == (one.second, one.first)
    assert (other.difference, other.ci_low, other.ci_high) == (-0.3, -0.6, -0.1)
    assert other.verdict == "worse" and other.reversed() == one
    equivalent = build_comparison(verdict="equivalent")
    assert equivalent.reversed().verdict == "equivalent"
