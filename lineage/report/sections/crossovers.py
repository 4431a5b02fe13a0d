"""From how many labels on a system is better than TF-IDF."""

from collections.abc import Iterator

from lineage.analysis.crossover import CrossoverLine, CrossoverTable, build_crossover_tables
from lineage.analysis.records import Analysis
from lineage.report.cells import verdict_cell
from lineage.report.formatting import format_label_count, format_system, join_with_and
from lineage.report.section import Paragraph, ReportData, Section, Table

NOTE = (
    "Differences in points from TF-IDF with logistic regression on the same labels. They count "
    "seeds and subsets of labels too: a system that the first table names alone may not be better "
    "if it is trained again. The crossover point is the smallest number of labels from which on a "
    "system is better at every number that was tried."
)


def build(report: ReportData) -> Section | None:
    """Return the tests as a section of their own, which the page folds below the label curves."""
    tables = build_tables(report.analysis)
    if not tables:
        return None
    return Section("Crossover points with TF-IDF", [Paragraph(NOTE), *tables], only="markdown")


def fold_crossovers(analysis: Analysis) -> Iterator[Section]:
    """Yield the tests as a folded part of the page, if there are any."""
    tables = build_tables(analysis)
    if tables:
        title = "Tests against TF-IDF at each number of labels"
        yield Section(title, [Paragraph(NOTE, "note"), *tables], is_folded=True, only="html")


def build_tables(analysis: Analysis) -> list[Table]:
    """Return the tests of each task."""
    return [_crossover_table(table) for table in build_crossover_tables(analysis)]


def _crossover_table(table: CrossoverTable) -> Table:
    counts = [
        format_label_count(label_count, train_examples=count)
        for label_count, count in table.train_examples.items()
    ]
    largest = max(table.train_examples.values())
    rows = []
    for line in table.lines:
        cells = [verdict_cell(one) if one else "" for one in line.comparisons]
        rows.append([format_system(line.system), *cells, _format_crossover(line, largest=largest)])
    return Table(["system", *counts, "crossover point"], rows, title=table.task)


def _format_crossover(line: CrossoverLine, *, largest: int) -> str:
    """Name the crossover point: `from 100 labels`; `at 30 labels, but not at more`; `none`.

    `largest` is the largest number of labels of the task.
    """
    if line.crossover is None:
        if not line.better_at:
            return "none"
        counts = join_with_and([str(count) for count in line.better_at])
        return f"at {counts} labels, but not at more"
    compared_everywhere = line.largest_compared == largest
    if line.crossover == line.largest_compared:
        word = "number" if compared_everywhere else "number compared"
        return f"at {line.crossover} labels, the largest {word}"
    if compared_everywhere:
        return f"from {line.crossover} labels"
    return f"from {line.crossover} to {line.largest_compared} labels, the largest number compared"
