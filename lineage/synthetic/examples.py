"""What no generated language can show: words of a real one with several senses, in sentences that were written by hand for this project.

examples.csv has a row a sentence: its language, the ambiguous word, the sense that it has there, the split, and the text with that word in [ ]. Each
sense of a word has as many sentences as the others in every split, so that the word alone says nothing. Half a dozen test sentences a sense are a
probe with wide intervals, not a benchmark.
"""

import csv
from pathlib import Path

import pandas as pd

from lineage.data.language import split_words
from lineage.errors import InputError
from lineage.synthetic.tasks import SyntheticTask

EXAMPLES_PATH = Path(__file__).parent / "examples.csv"


def load_word_sense_task(name: str, *, language: str) -> SyntheticTask:
    """The sentences of a language as a task of kind sense; a group is a word. Raises InputError for a language that has none.

    Its one ceiling is that of a reader of the word alone; of readers of the sentence none is known.
    """
    with EXAMPLES_PATH.open(encoding="utf-8", newline="") as stream:
        rows = list(csv.DictReader(stream))
    own = [row for row in rows if row["language"] == language]
    if not own:
        raise InputError(
            f"generated: examples: no sentences in {language!r}; set language to one of {', '.join(sorted({r['language'] for r in rows}))}"
        )
    labels = tuple(dict.fromkeys(f"{row['word']}, {row['sense']}" for row in own))
    items = pd.DataFrame([_make_item(row, labels) for row in own])
    splits = {
        split: part.drop(columns="split").reset_index(drop=True)
        for split, part in items.groupby("split")
    }
    alone = {
        row["word"]: 1 / len({label for label in labels if label.startswith(f"{row['word']}, ")})
        for row in own
    }
    groups = {word: {"static": share} for word, share in alone.items()}
    mean = {"static": float(splits["test"]["group"].map(alone).mean())}
    return SyntheticTask(
        name,
        "word_sense",
        labels,
        {str(split): part for split, part in splits.items()},
        mean,
        groups,
    )


def _make_item(row: dict[str, str], labels: tuple[str, ...]) -> dict[str, object]:
    before, after = row["text"].split(f"[{row['word']}]")
    first, label = split_words(before, row["language"]), f"{row['word']}, {row['sense']}"
    tokens = [*first, row["word"], *split_words(after, row["language"])]
    return {
        "split": row["split"],
        "tokens": tokens,
        "target": len(first),
        "label": labels.index(label),
        "group": row["word"],
    }
