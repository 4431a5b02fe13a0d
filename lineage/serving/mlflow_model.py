"""A kept system as an MLflow model: a table in, the columns of `lineage predict` out.

The model is made from code, so nothing is pickled: `model_script.py` builds a SystemModel, which
loads the folder of an exported system. `lineage serve`, `mlflow models serve` and
`mlflow.pyfunc.load_model` all answer through it.
"""

import contextlib
import sys
import threading
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from mlflow import pyfunc
from mlflow.exceptions import MlflowException
from mlflow.models import ModelSignature
from mlflow.protos.databricks_pb2 import INVALID_PARAMETER_VALUE
from mlflow.pyfunc import PythonModel, PythonModelContext
from mlflow.types import ColSpec, DataType, Schema
from mlflow.types.schema import Array

from lineage import __version__
from lineage.errors import InputError
from lineage.evaluation.saved_systems import AnswerItems
from lineage.results import PUBLIC_FAMILY
from lineage.serving.predict import OpenedSystem, Predictor, list_input_columns, open_exported
from lineage.tasks.columns import TableColumns, is_empty_cell, row_error

SCRIPT = Path(__file__).with_name("model_script.py")
SYSTEM_ARTIFACT = "system"  # the folder of the exported system in the model
DISTRIBUTION = "lineage-pretraining"
PLACE = "request"  # for messages
# MLflow copies the run's metrics of this step to the model, scores of other models among them.
UNUSED_STEP = -1


@dataclass(frozen=True)
class RequestLimits:
    """The most that one request may ask for. `lineage predict` labels files of any size."""

    rows: int
    characters: int  # in all columns that the task reads


REQUEST_LIMITS = RequestLimits(rows=1000, characters=1_000_000)


class SystemModel(PythonModel):
    """Answers the rows of a table as `lineage predict` does, one request at a time."""

    def load_context(self, context: PythonModelContext) -> None:
        """Load the exported system. Raises InputError."""
        self.opened: OpenedSystem = open_exported(Path(context.artifacts[SYSTEM_ARTIFACT]))
        self.answer: AnswerItems = self.opened.load()
        self.text_columns = _list_text_columns(self.opened)
        # A head is built when the first item shows what it reads; a server asks from many threads.
        self.lock = threading.Lock()

    def predict(
        self,
        context: PythonModelContext,
        model_input: pd.DataFrame,
        params: dict[str, Any] | None = None,
    ) -> pd.DataFrame:
        """Return the new columns, in the order of the rows; None in rows without text.

        Raises MlflowException, which servers answer with the status 400.
        """
        opened = self.opened
        predictor = Predictor(opened.kept.record, opened.kind, opened.task, self.answer, PLACE)
        names = list_input_columns(opened.task, opened.kind)
        columns = {name: model_input[name].tolist() for name in names}
        try:
            check_request(columns, text_columns=self.text_columns)
            with self.lock:
                answers = predictor.answer_chunk(columns)
        except InputError as error:
            raise MlflowException(str(error), error_code=INVALID_PARAMETER_VALUE) from error
        # As objects, None stays None, which JSON writes as null.
        return pd.DataFrame(answers, dtype=object)


def check_request(columns: TableColumns, *, text_columns: Collection[str]) -> None:
    """Raise InputError if a request holds no text, something else, or more than REQUEST_LIMITS."""
    num_rows = len(next(iter(columns.values())))
    if num_rows > REQUEST_LIMITS.rows:
        raise InputError(
            f"{PLACE}: it has {num_rows:,} rows, and at most {REQUEST_LIMITS.rows:,} are answered "
            "at once; send fewer, or label a file with `lineage predict`"
        )
    num_characters = 0
    for name, cells in columns.items():
        if name in text_columns:
            _check_texts(name, cells)
        num_characters += sum(map(_count_characters, cells))
    if num_characters > REQUEST_LIMITS.characters:
        raise InputError(
            f"{PLACE}: it has {num_characters:,} characters, and at most "
            f"{REQUEST_LIMITS.characters:,} are answered at once; send fewer rows, or shorter texts"
        )
    rows = zip(*columns.values(), strict=True)
    if all(any(map(is_empty_cell, cells)) for cells in rows):
        raise InputError(f"{PLACE}: no row has a value in {', '.join(columns)}; give one at least")


def _check_texts(name: str, cells: Sequence[Any]) -> None:
    """Raise InputError if a cell is neither a text nor missing."""
    for row, cell in enumerate(cells):
        if not isinstance(cell, str) and not is_empty_cell(cell):
            problem = f"column '{name}': a text is expected, not {type(cell).__name__}"
            raise row_error(row, PLACE, problem)


def _count_characters(cell: Any) -> int:
    """Return the number of characters of a text, or of all texts of a list."""
    if isinstance(cell, str):
        return len(cell)
    if isinstance(cell, list | tuple | np.ndarray):
        return sum(len(str(entry)) for entry in cell)
    return 0


def log_system(folder: Path, name: str, further_artifacts: Mapping[str, Path]) -> str:
    """Log an exported system as a model of the active run, and return the id of the model.

    `further_artifacts` are files that the model has besides the system.
    """
    record = open_exported(folder).kept.record
    params = {
        "model": record.model,
        "family": record.family,
        "init": record.init,
        "transfer": record.transfer,
        "head": record.head,
        "task": record.task,
        "label_count": record.label_count,
    }
    described = _describe_model(folder, further_artifacts)
    with _without_compiled_files():
        info = pyfunc.log_model(name=name, params=params, step=UNUSED_STEP, **described)
    return str(info.model_id)


def save_system(folder: Path, out: Path) -> None:
    """Write an exported system as a model into a new folder."""
    with _without_compiled_files():
        pyfunc.save_model(path=out, **_describe_model(folder, {}))


@contextlib.contextmanager
def _without_compiled_files() -> Iterator[None]:
    """Keep Python from writing .pyc files: MLflow runs the script inside the model's folder."""
    before = sys.dont_write_bytecode
    sys.dont_write_bytecode = True
    try:
        yield
    finally:
        sys.dont_write_bytecode = before


def _describe_model(folder: Path, further_artifacts: Mapping[str, Path]) -> dict[str, Any]:
    """Return the arguments of MLflow that describe a model."""
    opened = open_exported(folder)
    paths = {SYSTEM_ARTIFACT: folder, **further_artifacts}
    extra = "[formats]" if opened.kept.record.family == PUBLIC_FAMILY else ""
    return {
        "python_model": str(SCRIPT),
        "artifacts": {key: str(path) for key, path in paths.items()},
        "signature": build_signature(opened),
        "input_example": build_example(opened),
        # MLflow would find them by loading the model in a new process.
        "pip_requirements": [f"{DISTRIBUTION}{extra}=={__version__}"],
    }


def build_signature(opened: OpenedSystem) -> ModelSignature:
    """Return the columns that a system reads and those that it answers with."""
    inputs = [
        ColSpec(_column_type(opened, name), name)
        for name in list_input_columns(opened.task, opened.kind)
    ]
    answers = Predictor(opened.kept.record, opened.kind, opened.task, _answer_nothing, PLACE)
    outputs = [
        # A row without text has no answer.
        ColSpec(DataType.double if str(data_type) == "double" else DataType.string, name, False)
        for name, data_type in answers.new_fields.items()
    ]
    return ModelSignature(inputs=Schema(inputs), outputs=Schema(outputs))


def build_example(opened: OpenedSystem) -> pd.DataFrame:
    """Return a row that a system can answer. It holds no text of the user."""
    values: dict[str, Any] = {}
    for name in list_input_columns(opened.task, opened.kind):
        text = f"an example of {name}"
        column_type = _column_type(opened, name)
        if column_type == DataType.long:
            values[name] = 0
        elif column_type == DataType.string:
            values[name] = text
        else:
            values[name] = [f"{text} {number}" for number in range(len(opened.kept.record.labels))]
    return pd.DataFrame([values])


def _column_type(opened: OpenedSystem, name: str) -> DataType | Array:
    """Return the type of an input column: texts, but for lists of choices and places of words."""
    task = opened.task
    if name in [getattr(task, key) for key in opened.kind.integer_columns]:
        return DataType.long
    if task.choices == (name,):
        return Array(DataType.string)
    return DataType.string


def _list_text_columns(opened: OpenedSystem) -> list[str]:
    """Return the input columns that hold texts."""
    names = list_input_columns(opened.task, opened.kind)
    return [name for name in names if _column_type(opened, name) == DataType.string]


def _answer_nothing(items: pd.DataFrame) -> dict[str, Any]:
    """Stand in for a system whose weights are not needed."""
    raise NotImplementedError("_answer_nothing")
