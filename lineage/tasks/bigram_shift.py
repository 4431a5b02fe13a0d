"""Swapped neighbours in a sentence (Conneau et al. 2018, `BShift`)."""

from collections.abc import Sequence

from lineage.randomness import generator
from lineage.tasks.columns import Cell
from lineage.tasks.probing import make_probing_kind

MIN_WORDS = 4
LABELS = ("as written", "swapped")


def label_sentence(
    words: list[str], cell: Cell, others: Sequence[Cell]
) -> tuple[list[str], str] | None:
    """Return the words, half of the time with two of them swapped; None if there are too few.

    The first word, whose capital would tell, and the last, a full stop, stay in their places.
    """
    if len(words) < MIN_WORDS:
        return None
    rng = generator("bigram shift", cell.row, *words)
    if rng.integers(2) == 0:
        return words, LABELS[0]
    place = int(rng.integers(1, len(words) - 2))
    first, second = words[place : place + 2]
    if first == second:
        return None
    return [*words[:place], second, first, *words[place + 2 :]], LABELS[1]


KIND = make_probing_kind("bigram_shift", label_sentence)
