"""Label a user's file with a kept system.

The file is read, answered and written in chunks of rows, so memory does not grow with it.
"""

import dataclasses
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa

from lineage.answers.annotations import iob2_to_spans, spans_to_iob2
from lineage.answers.spans import are_span_tags
from lineage.artifacts import read_json
from lineage.config.data import Task
from lineage.config.params import read_recorded_params, recorded_params_file
from lineage.config.records import parse_record
from lineage.data.items import name_generated_columns
from lineage.errors import EvaluationError, InputError, RowError
from lineage.methods.registry import load_system
from lineage.methods.saved import RECORD_FILE, AnswerItems, SystemRecord, read_record
from lineage.results import PROBABILITY_PREFIX
from lineage.runtime.settings import read_runtime_settings
from lineage.serving.card import describe_training
from lineage.serving.files import ROWS_PER_CHUNK, answer_file, check_output, format_rows, open_input
from lineage.serving.systems import (
    KeptSystem,
    check_files,
    choose_system,
    format_systems,
    list_systems,
)
from lineage.tasks.base import Kind, load_kind
from lineage.tasks.columns import TableColumns, is_empty_cell
from lineage.training.devices import configure_torch, select_device

TASK_FILE = "task.json"  # of an exported system: how its task reads columns
PROBABILITY_DIGITS = 7  # after the point
SPANS_COLUMN = "prediction_spans"  # of characters of the user's text
SPANS_TYPE = pa.list_(
    pa.struct([("start", pa.int64()), ("end", pa.int64()), ("label", pa.string())])
)


def print_systems(task: str) -> None:
    """Print the systems of a task of the study, the best on validation first. Raises InputError."""
    print(format_systems(list_systems(read_recorded_params(), task)))


def predict_file(
    file: Path,
    out: Path | None,
    *,
    task: str | None,
    system: str | None = None,
    label_count: str | None = None,
    text_columns: list[str] | None = None,
) -> str:
    """Write a file with the columns of `file`, the predictions and, for classes, probabilities.

    `system` is a name, or the folder of an exported system; by default the recommended one.
    `text_columns` replace the names of the task's columns of text. Return a sentence that says what
    was done. Raises InputError.
    """
    if system is not None and (Path(system) / RECORD_FILE).is_file():
        opened = open_exported(Path(system))
    else:
        opened = _open_in_study(task, system, label_count)
    kind = opened.kind
    new_task = describe_new_items(opened.task, kind, text_columns or [])
    columns = list_input_columns(new_task, kind)
    if ".txt" in file.suffixes and len(columns) > 1:
        raise InputError(
            f"{file}: a txt has one text in a line, and the task reads {', '.join(columns)}; write "
            "these columns as csv, tsv, jsonl or parquet"
        )
    source = open_input(
        file,
        text_column=columns[0],
        csv_quoting=new_task.csv_quoting,
        word_columns=list_word_columns(opened.task),
    )
    if out is None:  # said last, so that a wrong folder or task is named first
        raise InputError("lineage predict: name the file to write with -o, such as -o OUT.csv")
    check_output(out, source)
    source.check(columns)
    record = opened.kept.record
    predictor = Predictor(record, kind, new_task, opened.load(), source.path.name)
    num_rows, num_unanswered = answer_file(
        source,
        out,
        prediction_fields(record, kind),
        predictor.answer_chunk,
        rows_per_chunk=ROWS_PER_CHUNK,
    )
    labels = "all labels" if record.label_count == "all" else f"{record.label_count} labels"
    training = describe_training(record)
    text = f"{out}: {format_rows(num_rows)}, predicted by {record.name} ({labels}; {training})"
    if num_unanswered:
        text += f"; {format_rows(num_unanswered)} without text, and without prediction"
    return text


@dataclass(frozen=True)
class OpenedSystem:
    """A system, its task, and where it computes."""

    kept: KeptSystem
    task: Task
    threads: int = 1
    device: str = "cpu"
    device_index: int = 0

    @property
    def kind(self) -> Kind:
        """The kind of the task."""
        return load_kind(self.kept.record.kind)

    def load(self) -> AnswerItems:
        """Load the weights, and return the function that answers items. Raises InputError."""
        configure_torch(self.threads)
        return load_system(self.kept.folder, select_device(self.device, self.device_index))


def open_exported(folder: Path) -> OpenedSystem:
    """Open an exported system, which needs no study. Raises InputError."""
    path = folder / TASK_FILE
    task = parse_record(Task, read_json(path), str(path))
    return OpenedSystem(KeptSystem(folder, read_record(folder)), task)


def _open_in_study(task: str | None, system: str | None, label_count: str | None) -> OpenedSystem:
    if task is None and not recorded_params_file().is_file():
        raise InputError(
            "--task: name a task of the study, or with --system the folder of an exported system"
        )
    params = read_recorded_params()
    if task is None:
        if len(params.grid.tasks) > 1:
            raise InputError(
                f"--task: name one of the study's tasks: {', '.join(params.grid.tasks)}"
            )
        (task,) = params.grid.tasks
    kept = choose_system(list_systems(params, task), system, label_count)
    check_files(kept)
    return OpenedSystem(
        kept,
        params.tasks[task],
        threads=params.threads,
        device=params.device,
        device_index=read_runtime_settings().device_index,
    )


def describe_new_items(task: Task, kind: Kind, text_columns: list[str]) -> Task:
    """Return how new items of a task are read: without labels and groups, from these columns.

    Raises InputError if there are not as many `text_columns` as the task reads columns.
    """
    if task.generated:
        task = name_generated_columns(task, kind)
    unused: dict[str, Any] = dict.fromkeys(
        (*kind.label_columns, "group", "columns", "document_unit")
    )
    task = dataclasses.replace(task, **unused)
    if not text_columns:
        return task
    given = list_input_columns(task, kind)
    if len(text_columns) != len(given):
        raise InputError(
            f"--text-column: the task reads {len(given)} columns, {', '.join(given)}; name as many, "
            "in this order, each with --text-column"
        )
    new_names = dict(zip(given, text_columns, strict=True))
    renamed: dict[str, Any] = {}
    for key in kind.input_columns:
        names = getattr(task, key)
        if isinstance(names, tuple):
            renamed[key] = tuple(new_names[name] for name in names)
        else:
            renamed[key] = new_names[names]
    return dataclasses.replace(task, **renamed)


def list_input_columns(task: Task, kind: Kind) -> list[str]:
    """Return the names of the columns that an item is read from."""
    return task.list_columns(kind.input_columns)


def list_word_columns(task: Task) -> tuple[str, ...]:
    """Return the columns of a task's files with one word and its tag per line; none otherwise."""
    has_tags = load_kind(task.kind).answer.are_words
    if has_tags and task.document_unit != "line" and isinstance(task.columns, tuple):
        return task.columns
    return ()


def prediction_fields(record: SystemRecord, kind: Kind) -> dict[str, pa.DataType]:
    """Return the columns that are added to the user's, with their types."""
    types = kind.answer.answer_types(record.labels)
    fields = {name: pa.float64() if one is float else pa.string() for name, one in types.items()}
    return fields | ({SPANS_COLUMN: SPANS_TYPE} if answers_with_spans(record) else {})


def answers_with_spans(record: SystemRecord) -> bool:
    """Return whether a system answers with spans of characters.

    A `label_map` may have turned the spans of its task into plain tags.
    """
    return record.character_spans and are_span_tags(record.labels)


@dataclass(frozen=True)
class Predictor:
    """Answers rows with a loaded system."""

    record: SystemRecord
    kind: Kind
    task: Task  # how new items are read
    answer: AnswerItems
    place: str  # for messages

    def answer_chunk(self, columns: TableColumns, first_row: int = 0) -> TableColumns:
        """Return the new columns of a chunk; None in rows without text.

        Raises InputError that names a row, where the first one of the chunk is `first_row`.
        """
        names = list_input_columns(self.task, self.kind)
        num_rows = len(columns[names[0]])
        cells = zip(*(columns[name] for name in names), strict=True)
        filled = [row for row, values in enumerate(cells) if not any(map(is_empty_cell, values))]
        new_columns: TableColumns = {
            name: [None] * num_rows for name in prediction_fields(self.record, self.kind)
        }
        if filled:
            try:
                items = self._make_items(columns, names, filled)
            except RowError as error:
                raise error.renumber(lambda row: first_row + filled[row]) from None
            answers = self._answer(items) if len(items) else {}  # none: all words are blank
            for name, values in answers.items():
                for row, value in zip(items.index, values, strict=True):
                    new_columns[name][row] = value
            if answers_with_spans(self.record):
                new_columns[SPANS_COLUMN] = self._find_spans(
                    columns[names[0]], new_columns["prediction"]
                )
        return new_columns

    def _find_spans(self, texts: list[Any], predictions: list[Any]) -> list[Any]:
        """Return the spans of each text; None without tags, and for lists of words."""
        return [
            iob2_to_spans(text, tags.split(), self.task.language)
            if isinstance(text, str) and tags is not None
            else None
            for text, tags in zip(texts, predictions, strict=True)
        ]

    def _make_items(
        self, columns: TableColumns, names: list[str], filled: list[int]
    ) -> pd.DataFrame:
        """Return the items of the filled rows; the index is their row in the chunk."""
        selected = {name: [columns[name][row] for row in filled] for name in names}
        if self.record.character_spans:  # texts are split into words as those of training were
            selected[names[0]] = [
                spans_to_iob2(cell, [], self.task.language)[0] if isinstance(cell, str) else cell
                for cell in selected[names[0]]
            ]
        items = self.kind.read_items(selected, self.task, self.place)
        items.index = pd.Index([filled[row] for row in items.index])
        self.kind.answer.check_new_items(items, self.record.labels, self.place)
        return items

    def _answer(self, items: pd.DataFrame) -> TableColumns:
        """Return the new columns of some items as Python values."""
        try:
            answers = self.answer(items.reset_index(drop=True))
        except EvaluationError as error:
            raise InputError(f"{self.place}: {error}") from error
        columns: TableColumns = {}
        for name, values in answers.items():
            if name.startswith(PROBABILITY_PREFIX):
                values = np.round(values.astype(np.float64), PROBABILITY_DIGITS)
            columns[name] = values.tolist()
        return columns
