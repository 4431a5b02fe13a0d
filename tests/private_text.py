"""Whether a run has let a user's text out: every file that it wrote, but for the artifacts, against every run of words of the data."""

import json
import re
from collections.abc import Iterator, Sequence
from pathlib import Path

import pandas as pd

RUN = 5  # words, or Chinese characters: long enough that no page has them by chance, short enough for half a sentence
WORD = re.compile("[\u3040-\u30ff\u3400-\u9fff]|[^\\W\u3040-\u30ff\u3400-\u9fff]+")
# Where the data and what is made of it lie; and code, which has sentences of its own.
HELD = ("artifacts", ".dvc", "remote", ".git", ".venv", "tests")


def held(path: Path) -> bool:
    """Whether the data may stand there. What MLflow keeps of a run is a page, though it calls its folder artifacts too."""
    return "mlruns" not in path.parts and any(part in HELD for part in path.parts)


def runs_of(text: str) -> Iterator[tuple[str, ...]]:
    """Every run of words of a text."""
    words = WORD.findall(text)
    return (tuple(words[i : i + RUN]) for i in range(len(words) - RUN + 1))


def texts_of(data: Path) -> list[str]:
    """All texts of a user's folder: .txt files, and the texts of .csv tables."""
    tables = [
        pd.read_csv(path).select_dtypes(exclude="number") for path in sorted(data.rglob("*.csv"))
    ]
    return [path.read_text() for path in sorted(data.rglob("*.txt"))] + [
        str(cell) for table in tables for cell in table.to_numpy().ravel()
    ]


def leaks(folder: Path, texts: Sequence[str]) -> list[str]:
    """The files under `folder` that hold words of the texts, databases and logs too, and which words."""
    private, found = (
        {run for text in texts for written in (text, json.dumps(text)) for run in runs_of(written)},
        [],
    )
    assert len(texts) > 0 and private, "there is no text to look for"
    for path in sorted(folder.rglob("*")):
        inside = path.relative_to(folder)
        if path.is_file() and not path.is_symlink() and not held(inside):
            seen = next(
                (
                    run
                    for run in runs_of(path.read_bytes().decode(errors="ignore"))
                    if run in private
                ),
                None,
            )
            found += [f"{inside}: {' '.join(seen)}"] if seen else []
    return found
