"""Scores in each group of a task's items."""

from collections.abc import Iterator
from dataclasses import replace

from lineage.analysis.records import Analysis, GroupScore, GroupScores
from lineage.report.formatting import (
    format_label_count,
    format_percent,
    format_system,
    metric_heading,
)
from lineage.report.section import Cell, Paragraph, Piece, ReportData, Rows, Section, Table, numbers

MAX_OPEN_GROUPS = 6  # a longer table is folded
NOTE = (
    "The best system of each model, TF-IDF, and a baseline that does better, in each group of "
    "items: means over seeds, the best in bold. Groups are small and have no intervals, so read "
    "the lines together."
)


def build(report: ReportData) -> Section | None:
    """Return the tables as a section of their own, which the page folds below each task."""
    tables = []
    for one in report.analysis.group_scores:
        subtitle = f"{_format_labels(one)}, {metric_heading(one.metric)}"
        tables.append(replace(build_group_table(one), title=one.task, subtitle=subtitle))
    if not tables:
        return None
    return Section("Scores by group", [Paragraph(NOTE, "note"), *tables], only="markdown")


def fold_group_scores(analysis: Analysis, task: str) -> Iterator[Section]:
    """Yield the scores of a task as folded parts of the page."""
    for one in analysis.group_scores:
        if one.task == task:
            yield Section(
                f"Scores by group, {_format_labels(one)}",
                [Paragraph(NOTE, "note"), build_group_table(one)],
                is_folded=True,
                is_open=len(one.groups) <= MAX_OPEN_GROUPS,
                only="html",
            )


def _format_labels(scores: GroupScores) -> str:
    return format_label_count(scores.label_count, train_examples=scores.train_examples)


def build_group_table(scores: GroupScores) -> Table:
    """Return a line for each group."""
    systems = [format_system(system) for system in scores.systems]
    rows: Rows = [[one.group, str(one.num_examples), *_list_cells(one)] for one in scores.groups]
    return Table(["group", *numbers("items", *systems)], rows)


def _list_cells(group: GroupScore) -> list[Cell]:
    """Format the scores of a group, and mark the best one if it is alone as shown."""
    texts = [format_percent(value) for value in group.values]
    known = [value for value in group.values if value is not None]
    best = None
    if len(known) > 1 and texts.count(format_percent(max(known))) == 1:
        best = group.values.index(max(known))
    return [Cell(more=[Piece(text, is_strong=place == best)]) for place, text in enumerate(texts)]
