"""Scores in each group of a task's items."""

from collections.abc import Iterator, Sequence

from lineage.analysis.records import Analysis, GroupScore, GroupScores
from lineage.report.formatting import format_label_count, format_percent, format_system
from lineage.report.section import Cell, Columns, Piece, Rows, Section, Table, numbers

MAX_OPEN_GROUPS = 6  # a longer table is folded
MAX_GROUPS_OF_ALL = 20  # more are shown for two systems only
NOTE = (
    "{systems}, in each group of items, {labels}: means over seeds, the best in bold.{items} Groups "
    "are small and have no intervals, so read the lines together."
)
ALL_SYSTEMS = "The best system of each model, TF-IDF, and a baseline that does better"
TWO_SYSTEMS = (
    "The highest score and the best that only counts (other systems are in comparison.json)"
)


def fold_group_scores(analysis: Analysis, task: str) -> Iterator[Section]:
    """Yield the scores of a task as folded parts of the page."""
    for one in analysis.group_scores:
        if one.task == task:
            yield Section(
                "Scores by group",
                [build_group_table(one)],
                is_folded=True,
                is_open=len(one.groups) <= MAX_OPEN_GROUPS,
            )


def build_group_table(scores: GroupScores) -> Table:
    """Return a line for each group, with its number of items unless all have as many."""
    places = _choose_systems(scores)
    has_all = len(places) == len(scores.systems)
    sizes = {one.num_examples for one in scores.groups}
    is_even = len(sizes) == 1
    names = [format_system(scores.systems[place]) for place in places]
    rows: Rows = [
        [one.group, *([] if is_even else [str(one.num_examples)]), *_list_cells(one, places)]
        for one in scores.groups
    ]
    columns: Columns = ["group", *numbers(*([] if is_even else ["items"]), *names)]
    note = NOTE.format(
        systems=ALL_SYSTEMS if has_all else TWO_SYSTEMS,
        labels=format_label_count(scores.label_count, train_examples=scores.train_examples),
        items=f" Each has {sizes.pop()} items." if is_even else "",
    )
    return Table(columns, rows, note=note)


def _choose_systems(scores: GroupScores) -> list[int]:
    """Return the places of the systems to show: of many groups, the best and what only counts."""
    places = [*range(len(scores.systems))]
    counting = [place for place in places if scores.systems[place].init == "none"]
    if len(scores.groups) <= MAX_GROUPS_OF_ALL or not counting:
        return places
    return sorted({0, counting[0]})


def _list_cells(group: GroupScore, places: Sequence[int]) -> list[Cell]:
    """Format the scores of a group, and mark the best one if it is alone as shown."""
    values = [group.values[place] for place in places]
    texts = [format_percent(value) for value in values]
    known = [value for value in values if value is not None]
    best = None
    if len(known) > 1 and texts.count(format_percent(max(known))) == 1:
        best = values.index(max(known))
    return [Cell(more=[Piece(text, is_strong=place == best)]) for place, text in enumerate(texts)]
