"""Pairs of sentences in which words stand between those that must agree.

Test suites say so in the names of groups: a distractor or an attractor (BLiMP), a clause or a
phrase (the synthetic language), or what agreement goes across (Marvin and Linzen 2018).
"""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from lineage.analysis.cells import ResultCell, add_predictions, read_predictions, system_key
from lineage.analysis.records import Setting, System
from lineage.answers.pair import PairAnswer
from lineage.config.params import Grid
from lineage.tasks.base import load_kind

OVER_DISTANCE = "{} over distance"  # the name of a task's part
NAMES = "distractor|attractor|across|clause|phrase"  # in the name of a group


def read_distant_cells(
    cells: Sequence[ResultCell], results_dir: Path, grid: Grid, *, split: str
) -> dict[tuple[Setting, System], ResultCell]:
    """Return the cells of pairs with the scores of such items alone. Raises InputError."""
    of_pairs = [cell for cell in cells if issubclass(load_kind(cell.kind).answer, PairAnswer)]
    distant = {
        (*system_key(cell.system), cell.task, cell.label_count): replace(
            cell,
            task=OVER_DISTANCE.format(cell.task),
            item_scores={},
            item_ranges={},
            prediction_hashes={},
            group_sizes=None,
        )
        for cell in of_pairs
    }
    if distant:
        for predictions in read_predictions(results_dir, grid):
            is_distant = predictions["group"].str.contains(NAMES, regex=True)
            add_predictions(distant, predictions[is_distant], split=split)
    return {
        (cell.setting, cell.system): own
        for cell, own in zip(of_pairs, distant.values(), strict=True)
        if own.item_scores
    }
