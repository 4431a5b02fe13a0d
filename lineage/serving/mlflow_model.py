"""A kept system as an MLflow model: a table in, the columns of `lineage predict` out.

The model is made from code, so nothing is pickled: `model_script.py` builds a SystemModel. It wraps
a LoadedSystem, which `lineage serve` uses by itself.
"""

import contextlib
import sys
import threading
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa
from mlflow import pyfunc
from mlflow.exceptions import MlflowException
from mlflow.models import ModelSignature
from mlflow.protos.databricks_pb2 import INVALID_PARAMETER_VALUE
from mlflow.pyfunc import PythonModel, PythonModelContext
from mlflow.types import ColSpec, DataType, Schema
from mlflow.types.schema import Array, Object, Property

from lineage import __version__
from lineage.errors import InputError
from lineage.results import PUBLIC_FAMILY
from lineage.serving.predict import (
    SPANS_TYPE,
    OpenedSystem,
    Predictor,
    list_input_columns,
    open_exported,
    prediction_fields,
)
from lineage.serving.requests import PLACE, check_request
from lineage.tasks.columns import TableColumns

SCRIPT = Path(__file__).with_name("model_script.py")
SYSTEM_ARTIFACT = "system"  # the folder of the exported system in the model
DISTRIBUTION = "lineage-pretraining"
# MLflow copies the run's metrics of this step to the model, scores of other models among them.
UNUSED_STEP = -1


class LoadedSystem:
    """An exported system with its weights, and the columns that it reads."""

    def __init__(self, folder: Path) -> None:
        """Load the system. Raises InputError."""
        self.opened: OpenedSystem = open_exported(folder)
        self.names = list_input_columns(self.opened.task, self.opened.kind)
        self.text_columns = [
            name for name in self.names if _column_type(self.opened, name) == DataType.string
        ]
        self._predictor = Predictor(
            self.opened.kept.record, self.opened.kind, self.opened.task, self.opened.load(), PLACE
        )

    def answer_rows(self, columns: TableColumns) -> TableColumns:
        """Return the new columns; None in rows without text. One thread at a time may call it.

        A head is built when the first item shows what it reads. Raises InputError.
        """
        return self._predictor.answer_chunk(columns)


class SystemModel(PythonModel):
    """Answers the rows of a table as `lineage predict` does, one request at a time."""

    def load_context(self, context: PythonModelContext) -> None:
        """Load the exported system. Raises InputError."""
        self.system = LoadedSystem(Path(context.artifacts[SYSTEM_ARTIFACT]))
        self.lock = threading.Lock()  # a server asks from many threads

    def predict(
        self,
        context: PythonModelContext,
        model_input: pd.DataFrame,
        params: dict[str, Any] | None = None,
    ) -> pd.DataFrame:
        """Return the new columns, in the order of the rows; None in rows without text.

        Raises MlflowException, which servers answer with the status 400.
        """
        columns = {name: model_input[name].tolist() for name in self.system.names}
        try:
            check_request(columns, text_columns=self.system.text_columns)
            with self.lock:
                answers = self.system.answer_rows(columns)
        except InputError as error:
            raise MlflowException(str(error), error_code=INVALID_PARAMETER_VALUE) from error
        # As objects, None stays None, which JSON writes as null.
        return pd.DataFrame(answers, dtype=object)


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
    outputs = [
        # A row without text has no answer.
        ColSpec(_answer_type(data_type), name, False)
        for name, data_type in prediction_fields(opened.kept.record, opened.kind).items()
    ]
    return ModelSignature(inputs=Schema(inputs), outputs=Schema(outputs))


def _answer_type(data_type: pa.DataType) -> DataType | Array:
    if data_type == SPANS_TYPE:
        places = [Property("start", DataType.long), Property("end", DataType.long)]
        return Array(Object([*places, Property("label", DataType.string)]))
    return DataType.double if data_type == pa.float64() else DataType.string


def build_example(opened: OpenedSystem) -> pd.DataFrame:
    """Return a row that a system can answer. It holds no text of the user."""
    if opened.kind.make_example is not None:
        return pd.DataFrame([opened.kind.make_example(opened.task)])
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
    """Return the type of an input column: texts, lists of texts, or whole numbers."""
    task = opened.task
    if name in task.list_columns(opened.kind.integer_columns):
        return DataType.long
    if any(getattr(task, key) == (name,) for key in opened.kind.text_list_columns):
        return Array(DataType.string)
    return DataType.string
