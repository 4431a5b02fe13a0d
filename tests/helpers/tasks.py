"""Tasks that are built from the files of a test, with few rows."""

import gzip
import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import pandas as pd

from lineage.config.data import Task
from lineage.config.records import parse_record
from lineage.data.items import TaskItems, build_items, check_task_files
from lineage.data.task_data import TaskData
from lineage.tasks.base import load_kind

# Blocks of tasks, without their files.
TEXTS: dict[str, Any] = {"kind": "text_classification", "text": ["text"], "label": "label"}


def write_jsonl(path: Path, rows: Iterable[Any] | pd.DataFrame) -> Path:
    """Write one JSON value per line."""
    if isinstance(rows, pd.DataFrame):
        rows = rows.to_dict("records")
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def build_task_items(
    root: Path,
    task: Task | Mapping[str, Any],
    *,
    name: str = "x",
    seed: int = 1,
    where: str = "task",
    check_files: bool = False,
) -> TaskItems:
    """Build the items of a task, which is a record or its block of params.yaml.

    With `check_files`, its files are checked before, as the sources stage does.
    """
    if not isinstance(task, Task):
        task = parse_record(Task, dict(task), where)
    if check_files:
        check_task_files(task, load_kind(task.kind), root=root, where=where, read_files=True)
    return build_items(name, task, load_kind(task.kind), seed=seed, root=root, where=where)


def build_table_task(
    root: Path, table: pd.DataFrame, *, where: str = "tasks.small", **fields: Any
) -> TaskData:
    """Write the table to train.csv, and build a task from its columns `text` and `label`."""
    table.to_csv(root / "train.csv", index=False)
    block = TEXTS | {"files": {"train": "train.csv"}} | fields
    items = build_task_items(root, block, name="small", seed=3, where=where)
    return TaskData(items.info, items.splits)


# Twenty rows for a task of each kind.
ROWS: dict[str, list[dict[str, Any]]] = {
    "text_classification": [{"text": f"text {n}", "label": n % 2} for n in range(20)],
    "text_regression": [{"text": f"text {n}", "label": n / 7} for n in range(20)],
    "multiple_choice": [
        {"text": f"text {n}", "choices": ["it is", "it was"], "label": n % 2} for n in range(20)
    ],
    "token_classification": [
        {"tokens": ["the", "Bank", "of", "X"], "label": ["O", "B-ORG", "I-ORG", "I-ORG"]}
        for _ in range(20)
    ],
    "word_sense": [
        {"tokens": ["the", "bank", "of"], "target": 1, "label": "ab"[n % 2]} for n in range(20)
    ],
    "word_similarity": [{"one": f"w{n}", "two": f"v{n}", "label": n / 7} for n in range(20)],
    "minimal_pairs": [{"good": f"the cat runs {n}", "bad": f"the cat run {n}"} for n in range(20)],
    "summarization": [
        {"source": f"the cat {n} ran. it rained.", "target": f"cat {n} ran"} for n in range(20)
    ],
    "translation": [{"source": f"the cat {n}", "target": f"le chat {n}"} for n in range(20)],
}
KEYS: dict[str, dict[str, Any]] = {"text_classification": {"text": ["text"]}, "text_regression": {"text": ["text"]},
                                   "multiple_choice": {"text": ["text"], "choices": ["choices"]}, "word_similarity": {"words": ["one", "two"]}}  # fmt: skip


def build_changed_task(
    root: Path,
    kind: str,
    change: dict[str, Any],
    *,
    split: str = "train",
    suffix: str = "jsonl",
    **fields: Any,
) -> TaskItems:
    """Build a task of the kind, with the fourth row of one split changed."""
    columns = {name: name for name in ROWS[kind][0]} | KEYS.get(kind, {})
    column_fields = {key: columns[key] for key in load_kind(kind).required_columns}
    files = {}
    for name in load_kind(kind).required_splits:
        rows = [*ROWS[kind]]
        if name == split:
            rows[3] = rows[3] | change
        files[name] = f"{name}.{suffix}"
        if suffix == "jsonl":
            write_jsonl(root / files[name], rows)
        else:
            pd.DataFrame(rows).to_csv(root / files[name], index=False)
    block = {"kind": kind, "files": files, "validation_share": 0.2, **column_fields, **fields}
    return build_task_items(root, block)


TOKENS = {
    "kind": "token_classification",
    "columns": ["tokens", "pos", "ner"],
    "tokens": "tokens",
    "label": "ner",
}


def build_file_task(root: Path, name: str, content: str, **fields: Any) -> TaskItems:
    """Write one file, and build a task whose train and test it is, unless the fields say else."""
    data = content.encode()
    (root / name).write_bytes(gzip.compress(data) if name.endswith(".gz") else data)
    defaults = {} if "tokens" in fields else TEXTS
    block = {"files": {"train": name, "test": name}} | defaults | fields
    return build_task_items(root, block, check_files=True)


def tagged_test_sentences(items: TaskItems) -> list[list[tuple[str, str]]]:
    """Return the words of each test sentence with their tags."""
    table = items.splits["test"]
    return [
        [(word, items.info.labels[label_id]) for word, label_id in zip(*sentence, strict=True)]
        for sentence in zip(table["tokens"], table["label"], strict=True)
    ]


def format_lines(rows: list[tuple[Any, ...]], separator: str, end: str = "\n") -> str:
    """Return one line per row."""
    return "".join(separator.join(map(str, row)) + end for row in rows)
