"""Read, validate and measure a task, and write the files of its artifact."""

import re
from dataclasses import asdict, dataclass
from pathlib import Path

from lineage.artifacts import write_table
from lineage.config.data import Task
from lineage.data.items import TaskItems, build_items, check_task_files, task_fingerprint
from lineage.data.prepared import Measures, PreparedData, locate_prepared
from lineage.data.splits import describe_blank_rows, describe_repeats
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
    label_warnings: list[str]
    file_warnings: list[str]


def kind_digest(kind: Kind) -> str:
    """Return the digest of the code of a kind of task."""
    return code_digest(PACKAGE_FOLDER / "tasks" / f"{kind.name}.py")


def locate_task(name: str, task: Task, *, seed: int, root: Path, where: str) -> PreparedData:
    """Return a task in the state of its data. Raises InputError, also if a key does not fit."""
    kind = load_kind(task.kind, f"{where}.kind")
    check_task_files(task, kind, root=root, where=where, read_files=False)

    def build(folder: Path) -> Measures:
        return prepare_task(name, task, folder, seed=seed, root=root, where=where)

    return locate_prepared(
        "task",
        name,
        build,
        fingerprint=task_fingerprint(task, root, where),
        parameters=task.data_keys,
        seed=seed,
        kind_digest=kind_digest(kind),
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
    texts: set[str] = set()  # distinct ones, unlabelled or of train
    if "unlabelled" in items.splits:
        texts.update(items.splits["unlabelled"]["text"])
    elif "train" in items.splits:
        texts.update(*kind.extract_texts(items.splits["train"], task.language))
    # Texts that must not be truncated: of train, or else of the scored splits.
    whole_texts: list[str] = []
    for split, table in items.splits.items():
        if (split == "train") == kind.has_train_split:
            for column in kind.whole_text_columns:
                whole_texts.extend(table.get(column, ()))
    measures = TaskMeasures(
        num_texts=len(texts),
        text_bytes=sum(map(byte_count, texts)),
        num_classes=len(items.info.labels) if kind.answer.has_one_label else 0,
        num_train=items.info.counts.get("train", 0),
        longest_words=max((len(text.split()) for text in whole_texts), default=0),
        longest_characters=max(
            (len(HAN_CHARACTER.findall(text)) for text in whole_texts), default=0
        ),
        label_warnings=items.label_warnings,
        file_warnings=[*describe_blank_rows(items.info), *describe_repeats(items.info)],
    )
    return asdict(measures)


def _check_scripts(items: TaskItems, task: Task, kind: Kind, where: str) -> None:
    for split, table in items.splits.items():
        sample = table.head(SCRIPT_SAMPLE_SIZE)
        if split == "unlabelled":
            columns = [list(sample["text"])]
        else:
            columns = kind.extract_texts(sample, task.language)
        texts = [text for column in columns for text in column]
        check_script(texts, task.language, f"{where}: {split.removeprefix(EXTRA_TEST_PREFIX)}")
