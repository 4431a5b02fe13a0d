"""Synthetic questions for the tests of spans, with answers that can or cannot be learned.

The contexts have a few words.
"""

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from lineage.data.items import TaskItems
from tests.helpers import tiny
from tests.helpers.tasks import build_task_items

# ulmfit has the smallest vocabulary.
WORDS = tiny.words("ulmfit")[:24]
# The first and the last words of answers that can be learned by heart.
BEGINS, ENDS = WORDS[:3], WORDS[3:6]
TASK_KEYS: dict[str, Any] = {
    "kind": "extractive_qa",
    "question": "ask",
    "context": "read",
    "answers": "say",
}


def build_questions(count: int, seed: int = 3, *, learnable: bool = True) -> pd.DataFrame:
    """Return questions whose answer is two words of the context.

    If `learnable`, the first word occurs only at the beginning of answers and the second only at
    the end. Otherwise they are any two words, and there is nothing to learn.
    """
    rng = np.random.default_rng(seed)
    rows = []
    for _ in range(count):
        words = [str(word) for word in rng.choice(WORDS[6:], rng.integers(5, 9))]
        position = int(rng.integers(len(words)))
        if learnable:
            answer = [str(rng.choice(BEGINS)), str(rng.choice(ENDS))]
        else:
            answer = [str(word) for word in rng.choice(WORDS[6:], 2)]
        rows.append(
            (
                " ".join(rng.choice(WORDS[6:], 3)),
                " ".join([*words[:position], *answer, *words[position:]]),
                " ".join(answer),
                words[:position],
            )
        )
    table = pd.DataFrame(rows, columns=["ask", "read", "say", "before"])
    return table.assign(at=[len(" ".join([*before, ""])) for before in table.pop("before")])


def build_task(root: Path, train: pd.DataFrame, test: pd.DataFrame, **keys: object) -> TaskItems:
    for split, table in (("train", train), ("test", test)):
        table.to_parquet(root / f"{split}.parquet")
    files = {"train": "train.parquet", "test": "test.parquet"}
    return build_task_items(root, {**TASK_KEYS, "files": files, "validation_share": 0.2, **keys})
