"""Labels that differ only in capitals, and labels that are rare, cause one warning each."""

from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from lineage.config.data import Task
from lineage.config.records import parse_record, parse_yaml
from tests.helpers.tasks import build_task_items
from tests.helpers.user_project import (
    RunStage,
    make_project,
    mood_reviews,
    without_repeat_warnings,
    write_params,
)

SLIPS = {2: "billing", 5: " billing ", 8: "Legal", 11: "Press", 14: "Press"}
SIMILAR = (
    "some labels of train differ only in capitals or spaces: 'Billing' (15) and 'billing' (2); if "
    'they mean the same, write them alike, or merge them: label_map: {"billing": "Billing"}'
)
RARE = "train has 2 labels that occur once or twice, too rarely to be learned: 'Legal' (1), 'Press' (2)"
RARE_FIX = (
    "; add more of them, merge them with other labels, or leave them out: label_map: "
    '{"Legal": null, "Press": null}'
)
IN_FOLDS = "; with folds, what occurs once cannot be both learned and tested"
IN_VALIDATION = "; validation is taken from train, and what occurs once cannot be in both"


def label_reviews(slips: dict[int, str]) -> pd.DataFrame:
    """Return 60 reviews with the labels Billing, Shipping and Returns, and some others."""
    table = mood_reviews(60)
    labels = [["Shipping", "Returns", "Billing"][row % 3] for row in range(60)]
    table["stars"] = [slips.get(row, label) for row, label in enumerate(labels)]
    return table


def find_warnings(folder: Path, table: pd.DataFrame, **keys: Any) -> list[str]:
    """Return the warnings about a task with this training table."""
    table.to_json(folder / "train.jsonl", orient="records", lines=True)
    tree = {"kind": "text_classification", "files": {"train": "train.jsonl"}} | keys
    if tree["kind"] == "text_classification":
        tree |= {"text": ["review"], "label": "stars"}
    task = parse_record(Task, tree, "task")
    items = build_task_items(folder, task, name="mood")
    return items.label_warnings


@pytest.mark.parametrize(
    ("keys", "note"),
    [
        ({"folds": 3}, IN_FOLDS),
        ({"files": {"train": "train.jsonl", "test": "some.jsonl"}}, IN_VALIDATION),
        ({"files": dict.fromkeys(("train", "validation", "test"), "train.jsonl")}, ""),
    ],
)
def test_similar_and_rare_labels_are_named_with_their_counts_and_what_to_do(
    keys: dict[str, Any], note: str, tmp_path: Path
) -> None:
    label_reviews({}).to_json(tmp_path / "some.jsonl", orient="records", lines=True)
    warnings = find_warnings(tmp_path, label_reviews(SLIPS), **keys)
    assert warnings == [SIMILAR, RARE + note + RARE_FIX]


def test_the_suggested_label_map_ends_the_warnings(tmp_path: Path) -> None:
    warnings = find_warnings(tmp_path, label_reviews(SLIPS), folds=3)
    label_map: dict[str, Any] = {}
    for warning in warnings:
        text = "label_map: " + warning.rpartition("label_map: ")[2]
        label_map |= parse_yaml(text, Path("params.yaml"))["label_map"]
    assert len(label_map) == 3
    assert find_warnings(tmp_path, label_reviews(SLIPS), folds=3, label_map=label_map) == []


def test_a_label_that_occurs_twice_is_rare_but_not_lost(tmp_path: Path) -> None:
    (warning,) = find_warnings(tmp_path, label_reviews({8: "Legal", 11: "Legal"}), folds=3)
    assert warning.startswith("train has 1 label that occurs once or twice") and "(2)" in warning
    assert IN_FOLDS not in warning


def test_many_rare_labels_are_counted_and_long_ones_are_shortened(tmp_path: Path) -> None:
    slips = {row: f"a rather long name of label {row}" for row in range(7)}
    (warning,) = find_warnings(tmp_path, label_reviews(slips), folds=3)
    assert "7 labels" in warning and "'a rather long name o...' (1), and 2 more" in warning
    assert warning.endswith("leave them out in 'label_map'")
    texts = mood_reviews(240).assign(stars=[f"private{row // 2}" for row in range(240)])
    (warning,) = find_warnings(tmp_path, texts, folds=3)
    assert "120 labels" in warning and "private" not in warning


def test_tags_are_compared_as_written_and_types_of_spans_are_counted_by_sentence(
    tmp_path: Path,
) -> None:
    tags = [["B-PER", "O", "B-LOC", "I-LOC"] for _ in range(30)]
    tags[4] = ["B-per", "B-ORG", "I-ORG", "B-ORG"]
    tables = {
        "spans": tags,
        "plain": [[tag.replace("-", "") for tag in row] for row in tags],
    }
    warnings = {}
    for name, rows in tables.items():
        words = [["Ann", "saw", "New", f"York{row}"] for row in range(30)]
        table = pd.DataFrame({"tokens": words, "ner": rows})
        keys = {"kind": "token_classification", "tokens": "tokens", "label": "ner", "folds": 3}
        warnings[name] = find_warnings(tmp_path, table, **keys)
    similar, rare = warnings["spans"]
    assert "'B-PER' (29) and 'B-per' (1)" in similar and '{"B-per": "B-PER"}' in similar
    assert "1 type of span that occurs in one or two sentences" in rare and "'ORG' (1)" in rare
    assert len(warnings["plain"]) == 1, "plain tags are often rare"


def test_check_prints_the_warnings_on_every_run(tmp_path: Path, run_stage: RunStage) -> None:
    tree = make_project(tmp_path)
    for split in ("train", "test"):
        label_reviews(SLIPS).to_csv(tmp_path / f"mood/{split}.csv", index=False)
    write_params(tmp_path, tree)
    for _ in range(2):
        code, message = run_stage(tmp_path, "sources")
        prefix = "params.yaml: tasks.mood.label: "
        assert code == 0
        assert without_repeat_warnings(message).splitlines() == [
            prefix + SIMILAR,
            prefix + RARE + IN_VALIDATION + RARE_FIX,
        ]
