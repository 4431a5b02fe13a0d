"""Read the predictions of outside systems, and match them with the scored items of a task.

A file is read as the task's own files are, and has a column of predictions too. An item is
found by all that is read of it, so rows may be in any order, and further rows do no harm.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pandas as pd

from lineage.answers.annotations import is_span_annotation
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
from lineage.errors import InputError, RowError, list_numbers, shorten_value
from lineage.language import is_spaceless
from lineage.runtime.code import code_digest
from lineage.tasks.base import Kind, load_kind
from lineage.tasks.columns import TableColumns, is_empty_cell

Predictions = dict[str, str]  # by the id of an item, as the results hold them
COLUMN_HINT = (
    "; the file needs the columns that the task reads, and the predictions, whose column the key "
    "'column' names"
)


def match_outside_predictions(name: str, params: Params, root: Path) -> dict[str, Predictions]:
    """Return the predictions of a task's outside systems for its scored items, by their names.

    They are kept with the measures of the task. Raises InputError for a kind of task whose
    predictions fit no column, and where an item has no prediction, or several that differ.
    """
    task = params.tasks[name]
    if not task.outside_systems:
        return {}
    where = f"params.yaml: tasks.{name}"
    kind = load_kind(task.kind)
    if not kind.answer.column_advice:
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
    """Raise InputError if a prediction may be a label of the data, or another label's new name."""
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
        texts = item_texts(scored, self.task, self.kind)
        columns = self._read_columns()
        if not self._predictions_split_texts(columns):
            columns = self._keep_scored_rows(columns, scored, texts)
        predicted = self._read_predictions(columns, items.info.labels)
        predicted = predicted[predicted["text"].isin(texts)]
        self._check_missing(scored, texts, predicted["text"])
        self._check_repeated(predicted)
        prediction_by_text = dict(zip(predicted["text"], predicted["prediction"], strict=True))
        return {
            item_id: prediction_by_text[text]
            for item_id, text in zip(scored["id"], texts, strict=True)
        }

    def _read_columns(self) -> TableColumns:
        """Return the columns that are read; rows without a prediction are blank."""
        wanted = columns_to_read(self.task, "test", self.table)
        self.table.check(wanted)
        columns = self.table.read_columns(wanted)
        return _blank_rows(columns, [not is_empty_cell(cell) for cell in columns[self.column]])

    def _predictions_split_texts(self, columns: TableColumns) -> bool:
        """Return whether tags or spans decide which words a text has, so no item has it before."""
        return self.kind.answer.are_words and (
            is_spaceless(self.task.language) or any(map(is_span_annotation, columns[self.column]))
        )

    def _keep_scored_rows(
        self, columns: TableColumns, scored: pd.DataFrame, texts: "pd.Series[Any]"
    ) -> TableColumns:
        """Return the columns with all rows blank but those of scored items."""
        task = replace(self.task, label=None)
        rows = make_items(UserTable(columns, self.table.location, task), "row", self.kind, {})
        row_texts = item_texts(rows, task, self.kind)
        self._check_missing(scored, texts, row_texts)
        kept = {row_number(item_id) for item_id in rows["id"][row_texts.isin(texts)]}
        num_rows = len(columns[self.column])
        return _blank_rows(columns, [row in kept for row in range(1, num_rows + 1)])

    def _read_predictions(self, columns: TableColumns, names: Sequence[str]) -> pd.DataFrame:
        """Return columns id, text and prediction, of the rows that are not blank."""
        place = self.table.location
        try:
            rows = make_items(UserTable(columns, place, self.task), "row", self.kind, {})
            rows["label"] = rows["label"].map(self._rename)
            predictions = self.kind.answer.read_predictions(rows, names, place, self.column)
        except RowError as error:  # without the row, the item would lack a prediction
            advice = f"give each scored item {self.kind.answer.column_advice}"
            raise InputError(
                f"{error.describe()}; {advice}, also where the system gave none"
            ) from None
        texts = item_texts(rows, self.task, self.kind)
        return pd.DataFrame({"id": rows["id"], "text": texts, "prediction": predictions})

    def _rename(self, label: Any) -> Any:
        """Return a label, or a list of tags, by the task's `label_map`; new names stay."""
        names = self.task.label_names_by_value
        if isinstance(label, list):
            return [names.get(tag) or tag for tag in label]
        return names.get(label) or label

    def _check_missing(
        self, scored: pd.DataFrame, texts: "pd.Series[Any]", found: "pd.Series[Any]"
    ) -> None:
        """Raise InputError if the text of a scored item is not found."""
        missing = scored["id"][~texts.isin(found)]
        if missing.empty:
            return
        split, _ = missing.iloc[0].rsplit("-", 1)
        raise InputError(
            f"{self.table.location}: {len(missing):,} of the {len(scored):,} {split} items have "
            f"no prediction; the first is row {row_number(missing.iloc[0])} of {split}; give "
            "one for each, beside the same texts"
        )

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


def _blank_rows(columns: TableColumns, is_kept: Sequence[bool]) -> TableColumns:
    """Return columns with the other rows blank, so that they are left out and keep their numbers."""
    return {
        name: [cell if keep else None for cell, keep in zip(cells, is_kept, strict=True)]
        for name, cells in columns.items()
    }
