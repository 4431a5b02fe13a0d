"""From how many labels on a system is better than TF-IDF."""

from collections.abc import Iterator, Mapping, Sequence

from lineage.analysis.crossover import find_crossover
from lineage.analysis.records import Analysis, Comparison, group_by
from lineage.report.cells import difference_cell
from lineage.report.formatting import (
    css_class,
    format_label_count,
    format_system,
    format_verdict,
    join_with_and,
)
from lineage.report.section import Cell, Cells, Paragraph, Section, Table

NOTE = (
    "Systems that are shown to be better than TF-IDF on the same labels, with their differences in "
    "points. The crossover point is the number of labels from which on a system is better at every "
    "number that was tried. Each use of a model counts here; the first table knows the one that "
    "validation chose."
)


def fold_crossovers(analysis: Analysis) -> Iterator[Section]:
    """Yield the tests as a folded part of the page, if there are any."""
    tables = build_tables(analysis)
    if tables:
        title = "Tests against TF-IDF at each number of labels"
        note = Paragraph(NOTE, "note")
        yield Section(title, [note, *tables], is_folded=True)


def build_tables(analysis: Analysis) -> list[Table]:
    """Return the tests that TF-IDF loses, of each task with at least two numbers of labels."""
    tables = []
    tests = [one for one in analysis.comparisons if one.comparison_type == "tfidf"]
    for task, own in group_by(tests, lambda one: one.task).items():
        counts = {
            one.label_count: one.train_examples
            for one in analysis.scores_of_task(task)
            if one.system.family == "tfidf"
        }
        if len(set(counts.values())) < 2:
            continue
        ascending = dict(sorted(counts.items(), key=lambda pair: pair[1]))
        headings = [
            format_label_count(label_count, train_examples=count)
            for label_count, count in ascending.items()
        ]
        by_system = group_by(own, lambda one: one.first.line_key)
        rows = [
            _system_row(comparisons, ascending)
            for comparisons in by_system.values()
            if any(one.verdict == "better" for one in comparisons)
        ]
        columns = ["system", "crossover point", *headings]
        table = Table(columns, rows, title=task)
        if not rows:
            lead = f"{task}: no system is shown to be better at any number of labels."
            table = Table([], [], lead=lead)
        tables.append(table)
    return tables


def _system_row(comparisons: Sequence[Comparison], train_examples: Mapping[str, int]) -> Cells:
    """Return the tests of a system; `train_examples` has those of each label count, ascending."""
    by_count = {one.label_count: one for one in comparisons}
    cells = [_difference_cell(by_count[one]) if one in by_count else "" for one in train_examples]
    is_better = [
        (count, by_count[label_count].verdict == "better")
        for label_count, count in train_examples.items()
        if label_count in by_count
    ]
    point = _format_crossover(is_better, largest=max(train_examples.values()))
    return [format_system(comparisons[0].first), point, *cells]


def _difference_cell(comparison: Comparison) -> Cell:
    verdict = format_verdict(comparison)
    return difference_cell(comparison, note=verdict, css=css_class(verdict))


def _format_crossover(is_better: Sequence[tuple[int, bool]], *, largest: int) -> str:
    """Name the crossover point: `from 100 labels`; `only at 30 labels`.

    `largest` is the largest number of labels of the task.
    """
    crossover = find_crossover(is_better)
    if crossover is None:
        better_at = [str(count) for count, better in is_better if better]
        return f"only at {join_with_and(better_at)} labels"
    largest_compared, _ = is_better[-1]
    compared_everywhere = largest_compared == largest
    if crossover == largest_compared:
        word = "number" if compared_everywhere else "tried"
        return f"at {crossover} labels, the largest {word}"
    if compared_everywhere:
        return f"from {crossover} labels"
    return f"from {crossover} to {largest_compared} labels, the largest tried"
