"""Find a user's text in the files that a run wrote, apart from the artifacts."""

import json
import re
from collections.abc import Iterator, Sequence
from pathlib import Path

import pandas as pd

# In words, or Chinese characters: too long to occur by chance, and about half a sentence.
NGRAM_LENGTH = 5
WORD = re.compile("[\u3040-\u30ff\u3400-\u9fff]|[^\\W\u3040-\u30ff\u3400-\u9fff]+")
# Folders that may hold the data or what is derived from it, and code, which has its own sentences.
ALLOWED_FOLDERS = ("artifacts", ".dvc", "remote", ".git", ".venv", "tests")


def may_hold_data(path: Path) -> bool:
    """Return whether the data may stand in this file.

    Files that MLflow keeps of a run may not hold them, though its folder is called artifacts too.
    Registered systems may: their vocabularies have words in the order of a text, and their labels
    may be sentences.
    """
    if "mlruns" in path.parts:
        return "models" in path.parts
    return any(part in ALLOWED_FOLDERS for part in path.parts)


def ngrams(text: str) -> Iterator[tuple[str, ...]]:
    """Yield every n-gram of words of a text."""
    words = WORD.findall(text)
    return (tuple(words[i : i + NGRAM_LENGTH]) for i in range(len(words) - NGRAM_LENGTH + 1))


def read_texts(data: Path) -> list[str]:
    """Return all texts of a user's folder: .txt files, and the text columns of .csv tables."""
    texts = [path.read_text() for path in sorted(data.rglob("*.txt"))]
    for path in sorted(data.rglob("*.csv")):
        table = pd.read_csv(path).select_dtypes(exclude="number")
        texts += [str(cell) for cell in table.to_numpy().ravel()]
    return texts


def find_leaks(folder: Path, texts: Sequence[str]) -> list[str]:
    """Return the files under `folder` that hold n-grams of the texts, and which.

    Databases and logs are searched too.
    """
    private: set[tuple[str, ...]] = set()
    for text in texts:
        private.update(ngrams(text))
        private.update(ngrams(json.dumps(text)))
    assert len(texts) > 0 and private, "there is no text to look for"
    leaks = []
    for path in sorted(folder.rglob("*")):
        relative = path.relative_to(folder)
        if path.is_file() and not path.is_symlink() and not may_hold_data(relative):
            content = path.read_bytes().decode(errors="ignore")
            leaked = next((ngram for ngram in ngrams(content) if ngram in private), None)
            if leaked:
                leaks.append(f"{relative}: {' '.join(leaked)}")
    return leaks
