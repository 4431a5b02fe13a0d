"""Made-up questions for the tests of spans: contexts of a few words, in which the answer can be learned by heart, or cannot be learned."""

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from lineage.config.data import Task
from lineage.config.records import parse_record
from lineage.data.items import TaskItems, build_items
from lineage.tasks.base import load_kind
from tests import tiny

WORDS = sorted(
    word for word in tiny.reader("ulmfit").backend_tokenizer.get_vocab() if word.isalpha()
)[:24]  # the smallest vocabulary
BEGINS, ENDS = WORDS[:3], WORDS[3:6]  # of answers that can be learned by heart
KEYS: dict[str, Any] = {
    "kind": "extractive_qa",
    "question": "ask",
    "context": "read",
    "answers": "say",
}


def questions(count: int, seed: int = 3, *, learned: bool = True) -> pd.DataFrame:
    """The answer is two words, of which each tells its place, among others; or any two words, where there is nothing to learn."""
    rng, rows = np.random.default_rng(seed), []
    for _ in range(count):
        words = [str(word) for word in rng.choice(WORDS[6:], rng.integers(5, 9))]
        place = int(rng.integers(len(words)))
        answer = (
            [str(rng.choice(BEGINS)), str(rng.choice(ENDS))]
            if learned
            else [str(word) for word in rng.choice(WORDS[6:], 2)]
        )
        rows.append(
            (
                " ".join(rng.choice(WORDS[6:], 3)),
                " ".join([*words[:place], *answer, *words[place:]]),
                " ".join(answer),
                words[:place],
            )
        )
    table = pd.DataFrame(rows, columns=["ask", "read", "say", "before"])
    return table.assign(at=[len(" ".join([*before, ""])) for before in table.pop("before")])


def made(root: Path, train: pd.DataFrame, test: pd.DataFrame, **keys: object) -> TaskItems:
    for split, table in (("train", train), ("test", test)):
        table.to_parquet(root / f"{split}.parquet")
    files = {"train": "train.parquet", "test": "test.parquet"}
    task = parse_record(Task, {**KEYS, "files": files, "validation_share": 0.2, **keys}, "task")
    return build_items("x", task, load_kind("extractive_qa"), seed=1, root=root, where="task")
