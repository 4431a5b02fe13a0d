"""Effects are pooled over tasks as by Hartung and Knapp."""

import dataclasses
from pathlib import Path

import numpy as np
import pytest

from lineage.analysis.effects import build_effects, pool_effects
from lineage.analysis.gains import summarize_gains
from lineage.analysis.records import Analysis
from lineage.methods.registry import name_use
from lineage.report.formatting import format_model
from lineage.report.sections.gains import build
from tests.helpers.sections import find_figures, report_of
from tests.helpers.study_rows import FAMILIES, SENSE_GRID, Study, analyze


def test_the_pooled_mean_equals_that_of_statsmodels() -> None:
    """combine_effects(..., method_re="iterated", use_t=True) of statsmodels 0.15."""
    pooled = pool_effects([0.1, 0.2, 0.15], [0.02, 0.04, 0.02])
    assert pooled.mean == pytest.approx(0.142742, abs=1e-6)
    assert (pooled.low, pooled.high) == pytest.approx((0.025183, 0.260301), abs=1e-6)


def test_effects_that_agree_have_the_interval_of_their_own_errors() -> None:
    pooled = pool_effects([0.10, 0.11, 0.105, 0.095], [0.05] * 4)
    assert pooled.low is not None and pooled.high is not None
    assert pooled.mean == pytest.approx(0.1025)
    # The quantile of Student's t with three degrees of freedom, and an error of 0.05 / sqrt(4).
    assert pooled.high - pooled.mean == pytest.approx(3.182446 * 0.025)
    identical = pool_effects([0.0, 0.0, 0.0], [0.0, 0.0, 0.0])
    assert identical.mean == 0.0


def test_the_interval_covers_the_mean_of_tasks_in_95_of_100_studies() -> None:
    rng = np.random.default_rng(0)
    num_covered = 0
    for _ in range(1000):
        true_K = 0.05 + 0.04 * rng.standard_normal(5)
        errors_K = rng.uniform(0.01, 0.05, 5)
        pooled = pool_effects(true_K + errors_K * rng.standard_normal(5), errors_K)
        assert pooled.low is not None and pooled.high is not None
        num_covered += pooled.low <= 0.05 <= pooled.high
    assert 925 <= num_covered <= 975


def test_one_task_has_the_interval_of_its_comparison(analysis: Analysis) -> None:
    pretraining = summarize_gains(analysis)[0]
    effects = build_effects(pretraining)
    assert {(one.model, one.kind) for one in effects} == {
        (model, kind)
        for model in FAMILIES
        for kind in ("text_classification", "word_sense", "minimal_pairs")
    }
    for effect in effects:
        (gain,) = effect.gains
        own = next(
            one
            for one in analysis.comparisons
            if one.comparison_type == "pretraining"
            and (one.first.model, one.task) == (effect.model, gain.comparison.task)
            and name_use(one.first.transfer, one.first.head) == effect.method
            and one.label_count in ("all", "none")
        )
        assert (effect.pooled.mean, effect.pooled.low, effect.pooled.high) == (
            own.difference,
            own.ci_low,
            own.ci_high,
        )


def test_two_tasks_have_a_mean_without_an_interval(analysis: Analysis) -> None:
    scores = tuple(
        dataclasses.replace(one, kind="word_sense") if one.task == "sentiment" else one
        for one in analysis.scores
    )
    changed = dataclasses.replace(analysis, scores=scores)
    effects = [
        one for one in build_effects(summarize_gains(changed)[0]) if one.kind == "word_sense"
    ]
    assert effects
    for effect in effects:
        assert [gain.comparison.task for gain in effect.gains] == ["sentiment", "sense"]
        mean = np.mean([gain.comparison.difference for gain in effect.gains])
        assert effect.pooled.mean == pytest.approx(mean)
        assert effect.pooled.low is None and effect.pooled.high is None


def pretraining_figures(analysis: Analysis) -> list[str]:
    """Return the forest plots of what pretraining adds."""
    section = build(report_of(analysis))
    assert section is not None
    return [figure.svg for figure in find_figures(section.blocks[0])]


def test_the_forest_plot_has_a_row_for_each_model_and_method(analysis: Analysis) -> None:
    figures = pretraining_figures(analysis)
    assert len(figures) == 3
    figure = figures[0]
    assert "<title>text classification: " in figure
    for model in FAMILIES:
        for method in ("frozen", "fine-tuned"):
            assert f"{format_model(model)} {method} +" in figure


def test_a_baseline_near_chance_is_marked_in_the_row(tmp_path: Path) -> None:
    analysis = analyze(Study(tmp_path, SENSE_GRID, pretraining=6.0).write(), SENSE_GRID)
    scores = tuple(
        dataclasses.replace(one, above_chance=False) if one.system.init == "random" else one
        for one in analysis.scores
    )
    figures = pretraining_figures(dataclasses.replace(analysis, scores=scores))
    assert figures and all(" °" in figure for figure in figures)
