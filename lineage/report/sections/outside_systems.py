"""Outside systems: their scores and prices, and from how many labels on a trained one is better."""

import math

from lineage.analysis.outside import OutsideResult, OutsideTest, list_outside_results
from lineage.analysis.records import Analysis
from lineage.report.cells import verdict_cell
from lineage.report.formatting import (
    format_label_count,
    format_percent,
    format_system,
    format_these_labels,
    join_with_and,
    metric_heading,
    metric_unit,
)
from lineage.report.section import Cells, Column, Columns, Paragraph, ReportData, Section, Table

NOTE = (
    "Outside systems are not trained here: the study has only their predictions, so `lineage "
    "predict` cannot use them, and no row of the first table recommends one. Each model's best "
    "system by validation, and TF-IDF, are compared with them on the same items. Differences are "
    "those of the best of these from the outside system, in points; being of the best of several, "
    "they flatter the trained side a little. They count seeds and subsets of labels too, and the "
    "verdicts are corrected for all systems that were compared (Holm)."
)


def build(report: ReportData) -> Section | None:
    """Return a table for each task and outside system."""
    results = list_outside_results(report.analysis)
    if not results:
        return None
    return Section(
        "Outside systems",
        [_build_table(report.analysis, one) for one in results],
        aside=(
            *(Paragraph(text) for text in describe_outside_systems(report.analysis)),
            Paragraph(NOTE, "note", has_markup=True),
        ),
        anchor="outside",
        link="Outside",
    )


def describe_outside_systems(analysis: Analysis) -> list[str]:
    """Return a few sentences on each outside system: its score, its price, and what beats it."""
    return [_describe(one) for one in list_outside_results(analysis)]


def describe_prices(analysis: Analysis) -> str:
    """Return the prices of outside systems in a sentence; empty if none is known."""
    prices = [
        f"{one.model} {_format_price(one.price_per_1000_items)} per 1,000 items of {one.task}"
        for one in analysis.outside_prices
    ]
    if not prices:
        return ""
    return f"Outside systems are not built here; their prices: {join_with_and(prices)}."


def _format_price(price: float) -> str:
    """Return a price with two decimals, or below 1 with two significant digits: 2.40, 0.0040."""
    decimals = 2
    if 0 < price < 1:
        decimals = 1 - math.floor(math.log10(price))
    return f"{price:,.{decimals}f}"


def _describe(result: OutsideResult) -> str:
    score = result.score
    text = (
        f"{score.task}: {format_system(score.system)} scores {format_percent(score.mean)} "
        f"{metric_unit(score.metric)}"
    )
    if score.ci_low is not None:
        text += f" ({format_percent(score.ci_low)} to {format_percent(score.ci_high)})"
    if result.price_per_1000_items is not None:
        text += f", at {_format_price(result.price_per_1000_items)} per 1,000 items"
    return f"{text}. {_describe_crossover(result)}".strip()


def _describe_crossover(result: OutsideResult) -> str:
    """Tell from how many labels on a trained system is better, or that none is shown to be."""
    if not result.tests:
        return ""
    largest = result.tests[-1]
    with_most = f"with {_format_labels(largest)}"
    best = format_system(largest.comparison.first)
    crossover = result.crossover
    these = format_these_labels([largest.comparison])
    if crossover == largest.train_examples:
        lead = f"{with_most.capitalize()}, a system trained here is shown to be better"
        return f"{lead}{these}: {best}."
    if crossover is not None:
        return (
            f"From {crossover:,} labels on, a system trained here is shown to be better: "
            f"{with_most}, {best}{these}."
        )
    better_at = [_format_labels(test) for test in result.tests if test.is_better]
    if better_at:
        return (
            f"A system trained here is shown to be better with {join_with_and(better_at)}, but not "
            "with more."
        )
    text = (
        "No system trained here is shown to be better at any number of labels, up to "
        f"{largest.train_examples:,}"
    )
    if largest.all_worse:
        text += f"; {with_most}, the best of them, {best}, is shown to be worse{these}"
    return f"{text}."


def _format_labels(test: OutsideTest) -> str:
    return format_label_count(test.label_count, train_examples=test.train_examples)


def _build_table(analysis: Analysis, result: OutsideResult) -> Table:
    """Return a line for each number of labels."""
    score = result.score
    columns: Columns = [
        "labels",
        "best system trained here",
        Column(metric_heading(score.metric), "n"),
        f"difference from {score.system.model}",
    ]
    return Table(
        columns,
        [_test_row(analysis, test) for test in result.tests],
        title=f"{score.task}, {score.system.model}",
    )


def _test_row(analysis: Analysis, test: OutsideTest) -> Cells:
    comparison = test.comparison
    trained = analysis.find_score(comparison.first, comparison.setting)
    return [
        _format_labels(test),
        format_system(comparison.first),
        format_percent(trained.mean),
        verdict_cell(comparison),
    ]
