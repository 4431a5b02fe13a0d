"""A task's items as a family reads them."""

import dataclasses
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from lineage.artifacts import manifest, read_json, read_table
from lineage.errors import InputError
from lineage.pairing import encode_pairs
from lineage.randomness import generator
from lineage.text import join
from lineage.tokenization import Reader
from lineage.transfer import Item


@dataclass(frozen=True)
class TaskData:
    """One artifacts/tasks folder. The test file is opened only where the report asks for the test split."""

    facts: dict[str, Any]
    splits: dict[str, pd.DataFrame]

    @classmethod
    def load(cls, folder: Path, *, split: str) -> "TaskData":
        """Train, validation, and test where `split` is test."""
        manifest(folder, "task")
        names = ["train", "validation", *(["test"] if split == "test" else [])]
        return cls(read_json(folder / "task.json"), {n: read_table(folder / f"{n}.parquet") for n in names if (folder / f"{n}.parquet").is_file()})

    @property
    def labels(self) -> list[str]:
        """The names of the labels, in the order of their indices."""
        return list(self.facts["labels"])

    @property
    def scored(self) -> list[str]:
        """The splits that get predictions."""
        return [name for name in self.splits if name != "train"]


def read_items(table: pd.DataFrame, reader: Reader, *, limit: int | None, language: str, symmetric: bool = False) -> list[Item]:
    """Texts, pairs of them, choices beside a text, or words in their context, as ids of at most `limit` positions."""
    if "target" in table:
        return [
            word_item(list(tokens), int(target), reader, limit=limit, language=language)
            for tokens, target in zip(table["tokens"], table["target"], strict=True)
        ]
    texts = table["text"].tolist()
    if "choices" in table:
        beside = [encode_pairs(reader, texts, list(column), limit=limit) for column in zip(*table["choices"], strict=True)]
        return [Item(first, others=tuple(others), choices=True) for first, *others in zip(*beside, strict=True)]
    if "second" not in table:
        return [Item(encoded) for encoded in reader.encode_many(texts, limit=limit)]
    seconds = table["second"].tolist()
    orders = [encode_pairs(reader, *both, limit=limit) for both in ((texts, seconds), (seconds, texts))[: 1 + symmetric]]
    return [Item(first, others=tuple(others)) for first, *others in zip(*orders, strict=True)]


def word_item(tokens: list[str], target: int, reader: Reader, *, limit: int | None, language: str) -> Item:
    """A word in its context; where the context is too long, a window round the word, so that the word itself is never cut off."""
    reach = len(tokens)
    while True:
        first = max(0, target - reach)
        window = tokens[first : target + reach + 1]
        start = len(join([*window[: target - first], ""], language)) if target > first else 0
        encoded = reader.encode(join(window, language), limit=limit)
        positions = encoded.positions(start, start + len(tokens[target]))
        if len(positions) and (not encoded.cut or reach == 0 or positions[-1] < len(encoded.ids) - 2):
            return Item(dataclasses.replace(encoded, cut=encoded.cut or len(window) < len(tokens)), positions)
        if reach == 0:
            raise InputError(
                f"the word {tokens[target][:60]!r} alone does not fit {limit} positions; remove the item, or raise the model's positions"
            )
        reach //= 2


def new_words(texts: Sequence[str], reader: Reader, *, most: int, minimum_count: int) -> list[str]:
    """The most frequent words of a target's texts that the vocabulary lacks; equal counts in alphabetical order."""
    unknown, counts = reader.marks["<unk>"], Counter[str]()
    for text, encoding in zip(texts, reader.tokenizer.encode_batch(list(texts), add_special_tokens=False), strict=True):
        counts.update(reader.written(text, *span) for i, span in zip(encoding.ids, encoding.offsets, strict=True) if i == unknown)
    return sorted((word for word, count in counts.items() if count >= minimum_count), key=lambda word: (-counts[word], word))[:most]


def target_texts(folder: Path, *, held_share: float, seed: int) -> tuple[list[str], list[str]]:
    """The target's text for adaptation, and the share that is held out: its unlabelled texts, else the texts of its training items."""
    manifest(folder, "task")
    facts = read_json(folder / "task.json")
    path = folder / "unlabelled.parquet"
    if path.is_file():
        texts = read_table(path)["text"].tolist()
    else:
        table = read_table(folder / "train.parquet")
        columns: list[Any] = [table[name].tolist() for name in ("text", "second", "tokens", "good") if name in table]
        columns += list(zip(*table["choices"], strict=True)) if "choices" in table else []
        texts = [value if isinstance(value, str) else join(list(value), facts["language"]) for column in columns for value in column]
    texts = list(dict.fromkeys(texts))  # a text that is there twice must not stand on both sides
    assert len(texts) >= 2, "the sources stage refuses less"
    order = generator("held", seed, facts["name"]).permutation(len(texts))
    count = max(1, round(held_share * len(texts)))
    return [texts[i] for i in np.sort(order[count:])], [texts[i] for i in np.sort(order[:count])]
