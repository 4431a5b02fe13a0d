"""Read, validate and measure a task, and write the files of its artifact."""

import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from lineage.artifacts import write_table
from lineage.config.data import Task
from lineage.data.items import TaskItems, build_items, check_task_files
from lineage.data.prepared import Measures, PreparedData, locate_prepared
from lineage.data.splits import describe_repeats
from lineage.data.task_data import EXTRA_TEST_PREFIX
from lineage.language import byte_count, check_script
from lineage.runtime.code import code_digest
from lineage.tasks.base import Kind, load_kind

PACKAGE_FOLDER = Path(__file__).parent.parent
SCRIPT_SAMPLE_SIZE = 1000  # items that show the script of all
HAN_CHARACTER = re.compile("[\u3400-\u4dbf\u4e00-\u9fff]")


@dataclass(frozen=True)
class TaskMeasures:
    """The numbers of a task that parameters are checked against."""

    num_texts: int  # distinct texts to adapt to
    text_bytes: int  # of these
    num_classes: int  # 0 where items have no labels
    num_train: int
    longest_words: int  # words between spaces, of a text that must not be truncated
    longest_characters: int  # Chinese characters of such a text; each is a token
    numeric_tags: int  # tags that may be spans, see `lineage.answers.tags`
    tags_without_scheme: int
    label_warnings: list[str]
    repeat_warnings: list[str]


def kind_digest(kind: Kind) -> str:
    """Return the digest of the code of a kind of task."""
    return code_digest(PACKAGE_FOLDER / "tasks" / f"{kind.name}.py")


def locate_prepared_task(
    name: str,
    task: Task,
    fingerprint: dict[str, Any],
    *,
    seed: int,
    code_digests: Mapping[str, str] | None = None,
) -> PreparedData:
    """Return the place where the sources stage keeps a task."""
    return locate_prepared(
        "task",
        name,
        fingerprint=fingerprint,
        parameters=asdict(task),
        seed=seed,
        kind_digest=kind_digest(load_kind(task.kind)),
        code_digests=code_digests,
    )


def prepare_task(
    name: str, task: Task, folder: Path, *, seed: int, root: Path, where: str
) -> Measures:
    """Read a task, write the files of its artifact, and return the fields of TaskMeasures.

    Raises InputError for anything that is wrong with the data.
    """
    kind = load_kind(task.kind)
    check_task_files(task, kind, root=root, where=where, read_files=True)
    items = build_items(name, task, kind, seed=seed, root=root, where=where)
    _check_scripts(items, task, kind, where)
    for split, table in items.splits.items():
        write_table(folder / f"{split}.parquet", table)
    items.info.write(folder)
    texts = _texts_to_adapt_to(items, task, kind)
    whole_texts = _whole_texts(items, kind)
    measures = TaskMeasures(
        num_texts=len(texts),
        text_bytes=sum(map(byte_count, texts)),
        num_classes=len(items.info.labels) if kind.answer.has_one_label else 0,
        num_train=items.info.counts.get("train", 0),
        longest_words=max((len(text.split()) for text in whole_texts), default=0),
        longest_characters=max(map(_count_han, whole_texts), default=0),
        numeric_tags=items.info.numeric_tags.get("train", 0),
        tags_without_scheme=items.info.tags_without_scheme.get("train", 0),
        label_warnings=items.label_warnings,
        repeat_warnings=describe_repeats(items.info),
    )
    return asdict(measures)


def _check_scripts(items: TaskItems, task: Task, kind: Kind, where: str) -> None:
    """Raise InputError if the texts of a split do not fit the language."""
    for split, table in items.splits.items():
        sample = table.head(SCRIPT_SAMPLE_SIZE)
        if split == "unlabelled":
            columns = [list(sample["text"])]
        else:
            columns = kind.extract_texts(sample, task.language)
        texts = [text for column in columns for text in column]
        check_script(texts, task.language, f"{where}: {split.removeprefix(EXTRA_TEST_PREFIX)}")


def _texts_to_adapt_to(items: TaskItems, task: Task, kind: Kind) -> set[str]:
    """Return the distinct unlabelled texts, or those of train."""
    if "unlabelled" in items.splits:
        return set(items.splits["unlabelled"]["text"])
    if "train" in items.splits:
        return set[str]().union(*kind.extract_texts(items.splits["train"], task.language))
    return set()


def _whole_texts(items: TaskItems, kind: Kind) -> list[str]:
    """Return the texts that must not be truncated: of train, or else of the scored splits."""
    texts: list[str] = []
    for split, table in items.splits.items():
        is_measured = split == "train" if kind.has_train_split else split != "train"
        if not is_measured:
            continue
        for column in kind.whole_text_columns:
            if column in table:
                texts.extend(table[column])
    return texts


def _count_han(text: str) -> int:
    return len(HAN_CHARACTER.findall(text))
