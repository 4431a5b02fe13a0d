"""Bugs to plant in how users' tables are read."""

from tests.planted import Bug

UNCLOSED = "test_quoting.py::test_a_mark_that_nothing_closes_is_named_by_its_line"
BLANK = "test_odd_input.py::test_rows_with_nothing_in_any_column_are_left_out_and_counted_and_rows_keep_their_numbers"
BUGS = {
    "a mark within a text closes a cell": Bug("lineage/quoting.py", "ended = ended and (", "ended = True or (", UNCLOSED),
    "rows that a mark glued are taken for a cell": Bug(
        "lineage/quoting.py", "if glued and (", "if False and (", "test_quoting.py::test_of_a_table_without_quoting_no_row_is_lost_without_a_word"
    ),
    "a cell of lines with commas is taken for rows": Bug(
        "lineage/quoting.py", "if glued and (", "if glued or like_rows and (", "test_quoting.py::test_a_letter_in_a_cell_is_no_row"
    ),
    "rows after a blank one are misnumbered in errors": Bug(
        "lineage/items.py", "raise RowError(before, rows[row], after)", "raise RowError(before, row, after)", BLANK
    ),
    "and in ids": Bug("lineage/items.py", "pd.Index([rows[row] for row in table.index])", "table.index", BLANK),
    "an item is carved out and learned from": Bug(
        "lineage/items.py",
        "chosen[nested_subset(strata(train)[chosen], used, seed=seed)]",
        "nested_subset(strata(train), used, seed=seed)",
        "test_tasks.py::test_carving_leaves_every_label_in_train",
    ),
    "a part of an official split is scored": Bug(
        "lineage/data.py", '"limit.test": self.limit.test, ', "", "test_literature.py::test_an_official_split_is_scored_as_a_whole"
    ),
    "names in a list count from 1": Bug(
        "lineage/data.py",
        "enumerate(self.names or ())",
        "enumerate(self.names or (), 1)",
        "test_odd_input.py::test_numbers_get_their_names_by_place_or_by_themselves",
    ),
    "labels of a column of texts are shown": Bug(
        "lineage/golds.py", 'min(MANY, len(splits["train"]) - 1)', "MANY", "test_odd_input.py::test_of_labels_three_are_shown_and_of_texts_none"
    ),
}
