"""Real sentences for the word-sense task, written by hand for this project, in examples.csv.

A row has the language, the ambiguous word, its sense there, the split, and the text with that word
in [ ]. In every split the senses of a word have equally many sentences.
"""

import csv
from pathlib import Path

import pandas as pd

from lineage.errors import InputError
from lineage.language import split_words
from lineage.synthetic.tasks import SyntheticTask

EXAMPLES_PATH = Path(__file__).parent / "examples.csv"


def load_word_sense_task(language: str) -> SyntheticTask:
    """Load the sentences of a language as a word-sense task; a group is a word."""
    with EXAMPLES_PATH.open(encoding="utf-8", newline="") as stream:
        all_rows = list(csv.DictReader(stream))
    rows = [row for row in all_rows if row["language"] == language]
    if not rows:
        languages = ", ".join(sorted({row["language"] for row in all_rows}))
        raise InputError(
            f"generated: examples: no sentences in {language!r}; set language to one of {languages}"
        )
    senses_by_word: dict[str, set[str]] = {}
    for row in rows:
        senses_by_word.setdefault(row["word"], set()).add(row["sense"])
    ceilings = {word: 1 / len(senses) for word, senses in senses_by_word.items()}
    labels = tuple(dict.fromkeys(f"{row['word']}, {row['sense']}" for row in rows))
    items: dict[str, list[dict[str, object]]] = {}
    for row in rows:
        before, after = row["text"].split(f"[{row['word']}]")
        words_before = split_words(before, language)
        item = {
            "tokens": [*words_before, row["word"], *split_words(after, language)],
            "target": len(words_before),
            "label": labels.index(f"{row['word']}, {row['sense']}"),
            "group": row["word"],
        }
        items.setdefault(row["split"], []).append(item)
    splits = {split: pd.DataFrame(items[split]) for split in sorted(items)}
    mean_ceiling = float(splits["test"]["group"].map(ceilings).mean())
    return SyntheticTask(
        "word_sense",
        labels,
        splits,
        {"static": mean_ceiling},
        {word: {"static": ceiling} for word, ceiling in ceilings.items()},
    )
