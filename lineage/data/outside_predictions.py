"""Read the predictions of outside systems, and match them with the scored items of a task.

A file has the columns that the task reads, and a prediction, written as the task's labels are. It
is read as the task's own files are. An item is found by all that is read of it, so rows may be in
any order, and further rows do no harm.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pandas as pd

from lineage.answers.base import row_number
from lineage.artifacts import read_json, text_digest, write_json
from lineage.config.data import OutsideSystem, Task
from lineage.config.params import Params
from lineage.data.files import find_data_files
from lineage.data.items import (
    TaskItems,
    build_items,
    columns_to_read,
    make_items,
    name_generated_columns,
)
from lineage.data.prepare_task import locate_task
from lineage.data.prepared import MEASURES_FOLDER
from lineage.data.sources import DataTable, resolve_origin
from lineage.data.splits import item_texts
from lineage.data.unlabelled import UserTable
from lineage.errors import InputError, list_numbers, shorten_value
from lineage.runtime.code import code_digest
from lineage.tasks.base import Kind, load_kind
from lineage.tasks.columns import is_empty_cell

Predictions = dict[str, str]  # by the id of an item, as the results hold them
COLUMN_HINT = (
    "; the file needs the columns that the task reads, and the predictions, whose column the key "
    "'column' names"
)


def match_outside_predictions(name: str, params: Params, root: Path) -> dict[str, Predictions]:
    """Return the predictions of a task's outside systems for its scored items, by their names.

    They are kept with the measures of the task, so that its data are not read in every run. Raises
    InputError for a kind of task whose predictions fit no column, and where an item has no
    prediction, or several that differ.
    """
    task = params.tasks[name]
    if not task.outside_systems:
        return {}
    where = f"params.yaml: tasks.{name}"
    kind = load_kind(task.kind)
    if not kind.answer.fits_column:
        raise InputError(
            f"{where}.outside_systems: the predictions of a task of kind {kind.name} do not fit "
            "one column; remove the key"
        )
    read_by, _ = resolve_origin(task, root, where)
    _check_label_map(read_by, where)
    files = {
        system: _PredictionFile.open(
            entry, read_by, kind, root, f"{where}.outside_systems.{system}"
        )
        for system, entry in task.outside_systems.items()
    }
    prepared = locate_task(name, task, seed=params.seed, root=root, where=where)
    content = [
        prepared.key,
        {system: [one.column, one.table.fingerprint()] for system, one in files.items()},
        params.report.split,
        code_digest(Path(__file__)),
    ]
    path = MEASURES_FOLDER / f"{text_digest(json.dumps(content, sort_keys=True))[:24]}.json"
    if not path.is_file():
        items = build_items(name, task, kind, seed=params.seed, root=root, where=where)
        split = "train" if task.folds else params.report.split
        matched = {system: one.match(items, split) for system, one in files.items()}
        write_json(path, matched)
    return dict(read_json(path))


def _check_label_map(task: Task, where: str) -> None:
    """Raise InputError if a prediction may be a label of the data, or another label's new name.

    Files have either: an outside system answers with labels of the data, `lineage predict` with
    new names.
    """
    names = task.label_names_by_value
    for label, name in names.items():
        if name is not None and names.get(name, name) != name:
            raise InputError(
                f"{where}.label_map: '{shorten_value(name)}' is the new name of "
                f"'{shorten_value(label)}' and also a label of the data, which is renamed or left "
                "out, so predictions of outside systems would have two meanings; choose other "
                "names, or remove 'outside_systems'"
            )


@dataclass(frozen=True)
class _PredictionFile:
    """A file of predictions, and how its rows are read: as items whose label is the prediction."""

    table: DataTable
    task: Task
    kind: Kind

    @classmethod
    def open(
        cls, system: OutsideSystem, task: Task, kind: Kind, root: Path, where: str
    ) -> "_PredictionFile":
        if task.generated:
            task = name_generated_columns(task, kind)
        rows: dict[str, Any] = {"group": None, "columns": None, "document_unit": None}
        task = replace(task, label=system.column, **rows)
        files = find_data_files(system.predictions, root, f"{where}.predictions")
        files = replace(files, csv_quoting=task.csv_quoting)
        table = DataTable(files, f"{where}.predictions", missing_column_hint=COLUMN_HINT)
        return cls(table, task, kind)

    @property
    def column(self) -> str:
        assert self.task.label is not None
        return self.task.label

    def match(self, items: TaskItems, split: str) -> Predictions:
        """Return the prediction for each item of a split. Raises InputError."""
        scored = items.splits[split]
        predicted = self._read(items.info.labels)
        texts = item_texts(scored, self.task, self.kind)
        predicted = predicted[predicted["text"].isin(texts)]
        self._check_repeated(predicted)
        prediction_by_text = dict(zip(predicted["text"], predicted["prediction"], strict=True))
        missing = scored["id"][~texts.isin(predicted["text"])]
        if len(missing):
            origin = missing.iloc[0].rsplit("-", 1)[0]
            raise InputError(
                f"{self.table.location}: {len(missing):,} of the {len(scored):,} {split} items have "
                f"no prediction; the first is row {row_number(missing.iloc[0])} of {origin}; give "
                "one for each, beside the same texts"
            )
        return {
            item_id: prediction_by_text[text]
            for item_id, text in zip(scored["id"], texts, strict=True)
        }

    def _read(self, names: Sequence[str]) -> pd.DataFrame:
        """Return columns id, text and prediction, of the rows that have a prediction."""
        wanted = columns_to_read(self.task, "test", self.table)
        self.table.check(wanted)
        columns = self.table.read_columns(wanted)
        is_empty = [is_empty_cell(cell) for cell in columns[self.column]]
        for name, cells in columns.items():  # rows that are blank are left out
            columns[name] = [
                None if empty else cell for cell, empty in zip(cells, is_empty, strict=True)
            ]
        user_table = UserTable(columns, self.table.location, self.task)
        rows = make_items(user_table, "row", self.kind, {})
        rows["label"] = rows["label"].map(self._rename)
        predictions = self.kind.answer.read_predictions(
            rows, names, self.table.location, self.column
        )
        texts = item_texts(rows, self.task, self.kind)
        return pd.DataFrame({"id": rows["id"], "text": texts, "prediction": predictions})

    def _rename(self, label: Any) -> Any:
        """Return a label, or a list of tags, by the task's `label_map`; new names stay."""
        names = self.task.label_names_by_value
        if isinstance(label, list):
            return [names.get(tag) or tag for tag in label]
        return names.get(label) or label

    def _check_repeated(self, predicted: pd.DataFrame) -> None:
        """Raise InputError if the same item has predictions that differ."""
        differs = predicted.groupby("text")["prediction"].transform("nunique") > 1
        if differs.any():
            contradictory = predicted[differs]
            is_first = contradictory["text"] == contradictory["text"].iloc[0]
            rows = [row_number(item_id) for item_id in contradictory["id"][is_first]]
            raise InputError(
                f"{self.table.location}: {contradictory['text'].nunique():,} items have predictions "
                f"that differ; the first is in rows {list_numbers(rows)}; keep one of them"
            )
