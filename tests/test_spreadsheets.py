"""Texts in csv files that people open are not computed, and are read back as they were."""

import csv
from pathlib import Path

import pandas as pd
import pytest

from lineage.analysis.build import read_results_csv, write_results_csv
from lineage.analysis.spreadsheets import escape_cells, unescape_cells
from lineage.results import RESULT_COLUMNS, sort_results

FORMULAS = ("=1+1", "+cmd|' /C calc'!A0", "-2+3", "@SUM(1)", "\tx", "\r=1", "＝1", "'=1", "''@x")
TEXTS = ("a=1", "'quoted'", "", "'", "n-1", "a@b")
NUMBERS = ("-1", "+2.5", "-0.25", "7", "-1,5", "-2.5e-07")


@pytest.mark.parametrize("text", [*FORMULAS, *TEXTS, *NUMBERS])
def test_only_what_looks_like_a_formula_is_escaped_and_all_is_read_back(text: str) -> None:
    table = pd.DataFrame({"label": [text], "value": [-0.5]})
    escaped = escape_cells(table)
    assert escaped.label[0] == (f"'{text}" if text in FORMULAS else text)
    assert escaped.value[0] == -0.5
    pd.testing.assert_frame_equal(unescape_cells(escaped), table)


def test_names_of_the_user_in_results_are_texts_in_a_spreadsheet(tmp_path: Path) -> None:
    """A group has the value of a column of the user's."""
    columns = dict.fromkeys(RESULT_COLUMNS, "none") | dict.fromkeys(
        ("pretrain_seed", "finetune_seed", "fold", "train_examples", "text_bytes"), 0
    )
    rows = [
        columns | {"group": text, "value": -0.5, "num_examples": 9, "label_count": "all"}
        for text in (*FORMULAS, *TEXTS[:2])
        if "\r" not in text  # no cell has a line break
    ]
    table = sort_results(pd.DataFrame(rows))
    path = tmp_path / "results.csv"
    write_results_csv(path, table)
    with path.open(newline="", encoding="utf-8") as stream:
        cells = [*csv.DictReader(stream)]
    assert not any(row["group"].startswith(("=", "+", "-", "@", "\t", "\r")) for row in cells)
    assert {row["value"] for row in cells} == {"-0.5"}
    read = read_results_csv(path)
    assert [row["group"] for row in read] == [*table["group"]]
