"""How many words a sentence has, in six classes (Conneau et al. 2018, `SentLen`)."""

from collections.abc import Sequence

from lineage.tasks.columns import Cell
from lineage.tasks.probing import make_probing_kind

LONGEST = (8, 12, 16, 20, 25)  # words of a class; the last class has more


def label_sentence(
    words: list[str], cell: Cell, others: Sequence[Cell]
) -> tuple[list[str], str] | None:
    """Return the words and the class of their number, such as `9-12`."""
    first = 1
    for last in LONGEST:
        if len(words) <= last:
            return words, f"{first}-{last}"
        first = last + 1
    return words, f"over {LONGEST[-1]}"


KIND = make_probing_kind("sentence_length", label_sentence)
