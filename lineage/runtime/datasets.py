"""Describe an artifact as a data set of MLflow: digest, columns and counts, but no data."""

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from lineage.artifacts import artifact_digest
from lineage.runtime.provenance import Dataset


def describe_dataset(folder: Path) -> Dataset:
    """Describe an artifact: the columns of its tables, and how many rows each table has.

    Only the footers of its parquet files are read. An artifact without tables, such as a model, has
    a digest only.
    """
    columns: dict[str, pa.DataType] = {}
    row_counts: dict[str, int] = {}
    for path in sorted(folder.glob("*.parquet")):
        try:
            with pq.ParquetFile(path) as table:
                row_counts[path.stem] = table.metadata.num_rows
                for field in table.schema_arrow:
                    columns.setdefault(field.name, field.type)
        except pa.ArrowInvalid:
            continue  # a stage that reads the table says what is wrong with it
    schema = ""
    profile = ""
    if columns:
        specs = [
            {"name": name, "required": False, **_mlflow_type(data_type)}
            for name, data_type in columns.items()
        ]
        schema = json.dumps({"mlflow_colspec": specs})
        profile = json.dumps({"num_rows": sum(row_counts.values()), **row_counts})
    return Dataset(folder.as_posix(), artifact_digest(folder), schema, profile)


def _mlflow_type(data_type: pa.DataType) -> dict[str, Any]:
    """Return a type as MLflow's schemas write it."""
    if pa.types.is_list(data_type) or pa.types.is_large_list(data_type):
        return {"type": "array", "items": _mlflow_type(data_type.value_type)}
    if pa.types.is_string(data_type) or pa.types.is_large_string(data_type):
        return {"type": "string"}
    if pa.types.is_boolean(data_type):
        return {"type": "boolean"}
    if pa.types.is_integer(data_type):
        return {"type": "long"}
    if pa.types.is_floating(data_type):
        return {"type": "double"}
    return {"type": "any"}
