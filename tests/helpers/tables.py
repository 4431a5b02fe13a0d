"""Tasks whose data are tables in a test's folder."""

from pathlib import Path

import pandas as pd

from lineage.config.data import Task
from lineage.config.records import parse_record
from lineage.data.items import TaskItems, build_items
from lineage.tasks.base import load_kind


def build_table_items(root: Path, tables: dict[str, pd.DataFrame], **keys: object) -> TaskItems:
    """Write the tables of the splits, and build the items of the task `x`."""
    for split, table in tables.items():
        table.to_parquet(root / f"{split}.parquet")
    files = {split: f"{split}.parquet" for split in tables}
    task = parse_record(Task, {"files": files, **keys}, "task")
    return build_items("x", task, load_kind(task.kind), seed=1, root=root, where="task")
