"""A folder of a user, from which a study is drafted."""

import os
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from lineage.config.params import read_params
from lineage.study.checks import check_data, check_study
from lineage.study.draft import StudyDraft
from lineage.synthetic.grammar import generate_documents

NUM_ROWS = 120
NUM_DOCUMENTS = 60
LABELS = ("billing", "shipping", "returns")


def make_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Write a corpus of text files, and make its folder the current one."""
    (tmp_path / "texts").mkdir()
    for number, text in enumerate(generate_documents(NUM_DOCUMENTS, seed=1)):
        (tmp_path / f"texts/{number:03d}.txt").write_text(text + "\n", encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    # Otherwise what this machine's cache of the Hub holds would be proposed.
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "no-hub"))
    return tmp_path


def make_texts(num_texts: int, num_words: int = 9, seed: int = 1) -> list[str]:
    """Return different texts of random words."""
    rng = np.random.default_rng(seed)
    words = np.array(["late", "order", "parcel", "money", "card", "box", "wrong", "size", "again"])
    return [
        f"{' '.join(rng.choice(words, num_words - 1))} number{place}" for place in range(num_texts)
    ]


def make_tickets(num_rows: int = NUM_ROWS, seed: int = 1) -> pd.DataFrame:
    return pd.DataFrame(
        {
            "id": range(num_rows),
            "body": make_texts(num_rows, seed=seed),
            "queue": [LABELS[row % 3] for row in range(num_rows)],
            "date": [f"2024-01-{1 + row % 9:02d}" for row in range(num_rows)],
        }
    )


def list_files(folder: Path) -> list[str]:
    return sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*"))


def check_in_folder(folder: Path, draft: StudyDraft) -> None:
    """Write params.yaml into the study's folder, and check it there."""
    folder.mkdir(parents=True)
    (folder / "params.yaml").write_text(draft.params_text, encoding="utf-8")
    before = Path.cwd()
    os.chdir(folder)
    try:
        params = read_params()
        records = check_data(params, check_study(params), Path.cwd())
    finally:
        os.chdir(before)
    assert records["corpora/general"]["documents"] > 0
