"""How deep the tree of a sentence is, from the heads of its words (Conneau et al. 2018, `TreeDepth`).

The depth is that of dependencies, as in Universal Dependencies: the most steps from a word to the
root.
"""

from collections.abc import Sequence

from lineage.tasks.columns import Cell, parse_integer
from lineage.tasks.probing import make_probing_kind

SHALLOWEST, DEEPEST = 2, 7  # classes; the first and the last one hold what is beyond them


def label_sentence(
    words: list[str], cell: Cell, others: Sequence[Cell]
) -> tuple[list[str], str] | None:
    """Return the words and the depth of their tree. Raises InputError if it is none."""
    (heads_cell,) = others
    depth = measure_depth(heads_cell, len(words))
    if depth <= SHALLOWEST:
        return words, f"up to {SHALLOWEST}"
    return words, str(depth) if depth < DEEPEST else f"{DEEPEST} or more"


def measure_depth(cell: Cell, num_words: int) -> int:
    """Return the steps from the root to the word that is farthest from it.

    The cell has the place of each word's head, from 1; the root has 0. Raises InputError.
    """
    try:
        heads = [parse_integer(value) for value in cell.value]
    except (TypeError, ValueError, OverflowError):
        raise cell.error("expected a list of whole numbers, the head of each word") from None
    if len(heads) != num_words or not all(0 <= head <= num_words for head in heads):
        raise cell.error(
            f"expected {num_words} heads from 0, the root, to {num_words}: one for each word"
        )
    deepest = 0
    for head in heads:
        steps = 0
        while head > 0 and steps <= num_words:
            head = heads[head - 1]
            steps += 1
        if steps > num_words:
            raise cell.error("the heads go round in a circle, so they are no tree")
        deepest = max(deepest, steps)
    return deepest


KIND = make_probing_kind("tree_depth", label_sentence, other_columns=("heads",))
