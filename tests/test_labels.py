"""Labels are renamed by `label_map`; labels that cannot be right are refused or cause a warning.

They are held back, missing in train, rare, or written in two ways.
"""

from pathlib import Path
from typing import Any

import datasets
import pandas as pd
import pytest

from lineage.answers.label_names import sort_labels
from lineage.config.records import parse_yaml
from lineage.data.items import TaskItems
from lineage.errors import InputError
from tests.helpers.tasks import build_task_items, write_jsonl
from tests.helpers.user_project import (
    RunStage,
    make_project,
    mood_reviews,
    without_repeat_warnings,
    write_params,
)

COLUMNS: dict[str, dict[str, Any]] = {
    "text_classification": {"text": ["text"]},
    "text_regression": {"text": ["text", "other"]},
    "multiple_choice": {"text": ["text"], "choices": ["other", "more"]},
    "token_classification": {"tokens": "words"},
}
HARD = {"hard": {"files": {"test": "hard.jsonl"}}}


def build_labelled_task(
    root: Path, kind: str, labels: dict[str, list[Any]], **fields: Any
) -> TaskItems:
    """Build a task whose splits have these labels; `hard` is for an extra test set."""
    for split, split_labels in labels.items():
        rows = [
            {
                "text": f"text {number}",
                "other": f"other {number}",
                "more": f"more {number}",
                "words": ["a", f"b{number}"],
                "label": label,
            }
            for number, label in enumerate(split_labels)
        ]
        write_jsonl(root / f"{split}.jsonl", rows)
    files = {split: f"{split}.jsonl" for split in labels if split != "hard"}
    block = {"kind": kind, "label": "label", "files": files} | COLUMNS[kind] | fields
    return build_task_items(root, block)


@pytest.mark.parametrize(("kind", "train", "label", "message"), [
    ("text_classification", [0, 1], -1, "all 40 are '-1', as if labels were held back; name a split that has them"),
    ("text_classification", [0, 1], 0, "all 40 are '0', as if labels were held back"),
    ("token_classification", [["O", "B-X"], ["B-X", "O"]], ["O", "O"], "all 80 are 'O', as if labels were held back"),
    ("multiple_choice", [0, 1], 0, "all 40 are '0', as if labels were held back"),
    ("text_regression", [0.5, 2.0], -1.0, "every number is -1.0; nothing can be compared"),  # GLUE
])  # fmt: skip
def test_a_test_split_whose_labels_are_all_the_same_is_refused(
    kind: str, train: list[Any], label: Any, message: str, tmp_path: Path
) -> None:
    place = r"files\.test: test\.jsonl: column 'label': "
    with pytest.raises(InputError, match=place + message):
        build_labelled_task(tmp_path, kind, {"train": train * 20, "test": [label] * 40})


@pytest.mark.parametrize(("kind", "labels"), [
    ("text_classification", {"train": [0, 1] * 20, "test": [0] * 19, "hard": [0] * 40}),
    ("text_regression", {"train": [1, 2] * 20, "validation": [3, 3], "test": [1, 2] * 4, "hard": [3] * 40}),
])  # fmt: skip
def test_a_small_split_or_an_extra_test_set_may_have_one_label(
    kind: str, labels: dict[str, list[Any]], tmp_path: Path
) -> None:
    counts = build_labelled_task(tmp_path, kind, labels, extra_test_sets=HARD).info.counts
    assert (counts["test"], counts["test-hard"]) == (len(labels["test"]), 40)


def test_items_whose_label_is_mapped_to_null_are_dropped_and_counted(tmp_path: Path) -> None:
    """SNLI and OCNLI have such items, on which annotators disagreed."""
    labels = ["-" if number % 5 == 0 else f"l{number % 2}" for number in range(50)]
    splits = {"train": labels, "test": labels}
    task = build_labelled_task(tmp_path, "text_classification", splits, label_map={"-": None})
    assert task.info.labels == ["l0", "l1"]
    for split in ("train", "test"):
        assert task.info.dropped[split] == {"unused_label": 10}
    test_ids = {*task.splits["test"]["id"]}
    assert not {"test-1", "test-6"} & test_ids
    assert {"test-2", "test-50"} <= test_ids
    numbers = dict.fromkeys(splits, [0, 1, 2] * 10)
    label_list = ["no", None, "yes"]
    task = build_labelled_task(tmp_path, "text_classification", numbers, label_map=label_list)
    assert task.info.dropped["test"] == {"unused_label": 10}


@pytest.mark.parametrize(("kind", "label_map", "message"), [
    ("text_classification", {"a": None, "b": None}, r"train\.jsonl: 'label_map' leaves out every item; name a label that stays"),
    ("token_classification", {"a": None}, r"task\.label_map: null leaves out the items with that label, but a tag belongs to one word; give it a name, such as O"),
])  # fmt: skip
def test_null_is_refused_for_all_labels_and_for_tags(
    kind: str, label_map: dict[str, None], message: str, tmp_path: Path
) -> None:
    with pytest.raises(InputError, match=message):
        build_labelled_task(
            tmp_path, kind, {"train": ["a", "b"] * 9, "test": ["a", "b"]}, label_map=label_map
        )


LABEL_MAPS = [
    ["O", "B-ORG", "I-ORG"],
    {0: "O", 1: "B-ORG", 2: "I-ORG"},
    {"0": "O", "1": "B-ORG", "2": "I-ORG"},
    # This one names all known classes, some of which do not occur in the data.
    {0: "O", 1: "B-ORG", 2: "I-ORG", 3: "B-PER", -100: "O"},
]


@pytest.mark.parametrize("label_map", LABEL_MAPS)
def test_number_labels_are_named_by_a_list_or_a_mapping(label_map: Any, tmp_path: Path) -> None:
    for kind, labels in (
        ("token_classification", [[0, 1], [1, 2]] * 10),
        ("text_classification", [0, 1, 2] * 7),
    ):
        splits = {"train": labels, "test": labels}
        info = build_labelled_task(tmp_path, kind, splits, label_map=label_map).info
        assert info.labels == ["B-ORG", "I-ORG", "O"]
        assert (info.ranking_metric == "span_f1") == (kind == "token_classification")
        assert not info.numeric_tags


@pytest.mark.parametrize(("label_map", "message"), [
    (["O", "B-ORG"], r"row 4: column 'label': '2' is none of 0 to 1 of 'label_map'; give the names of all labels"),
    ({0: "O", 1: "B-ORG", -100: "I-ORG"}, r"^task\.label_map: no label of any split is '-100'; there are 0, 1, 2; correct it, or remove it$"),
    ({"O": "o", "B": "B-ORG"}, r"^task\.label_map: no label of any split is 'O'; there are 0, 1, 2; correct them, or remove 'label_map'$"),
    ([], "'label_map' is empty"), ({}, "'label_map' is empty"),
    ({0: "O", "1": "B-ORG"}, r"task\.label_map: .*expected"), ([0, 1], r"task\.label_map.*expected a text, found 0"),
])  # fmt: skip
def test_incomplete_or_unused_label_maps_are_refused(
    label_map: Any, message: str, tmp_path: Path
) -> None:
    tags = [[0, 1]] * 3 + [[1, 2]] + [[0, 1]] * 16
    with pytest.raises(InputError, match=message):
        build_labelled_task(
            tmp_path, "token_classification", {"train": tags, "test": tags}, label_map=label_map
        )


@pytest.mark.parametrize(("label_map", "message"), [
    (["O", "B-PER", "I-PER"], r"row 1: column 'label': 'O' is a name already, and 'label_map' is a list, of numbers; remove 'label_map'"),
    ({0: "O", 1: "B-X", 2: "I-X"}, "no label of any split is '0'; there are B-PER, I-PER, O; correct them, or remove 'label_map'"),
])  # fmt: skip
def test_label_map_is_refused_for_a_file_that_names_its_tags(
    label_map: Any, message: str, tmp_path: Path
) -> None:
    tags = datasets.Sequence(datasets.ClassLabel(names=["O", "B-PER", "I-PER"]))
    features = datasets.Features(
        {"tokens": datasets.Sequence(datasets.Value("string")), "label": tags}
    )
    columns = {"tokens": [["a", "Bob", "Lee"]] * 20, "label": [[0, 1, 2]] * 20}
    datasets.Dataset.from_dict(columns, features=features).to_parquet(str(tmp_path / "t.parquet"))
    block = {
        "kind": "token_classification",
        "tokens": "tokens",
        "label": "label",
        "files": {"train": "t.parquet", "test": "t.parquet"},
        "label_map": label_map,
    }
    with pytest.raises(InputError, match=message):
        build_task_items(tmp_path, block)


@pytest.mark.parametrize(("num_labels", "message"), [
    (4, r"column 'label': label 'strange' does not occur in train, which has name 0, name 1, name 2, \.\.\.; .*null\}, or merge them: .*of train"),
    (20, r"column 'label': its label does not occur in train, which has 20 of them in 20 rows: are they labels\?; correct it, .* in 'label_map'$"),
])  # fmt: skip
def test_an_error_shows_three_labels_but_no_texts(
    num_labels: int, message: str, tmp_path: Path
) -> None:
    train = [f"name {number % num_labels}" for number in range(20)]
    with pytest.raises(InputError, match=rf"^task\.files\.test: test\.jsonl: row 1: {message}"):
        build_labelled_task(tmp_path, "text_classification", {"train": train, "test": ["strange"]})


def test_labels_that_train_lacks_are_all_reported_in_a_form_to_copy(tmp_path: Path) -> None:
    """This applies if train has half of the test labels; otherwise they may be texts."""
    names = [
        "EducationalInstitution",
        "\u8d22\u7ecf\u65b0\u95fb\u9891\u9053",
        *(f"L{number:02}" for number in range(9)),
    ]

    def build(unknown_labels: list[str], **fields: Any) -> TaskItems:
        labels = {"train": [0, 1] * 10, "test": [0, 1] * 20 + unknown_labels * 2}
        return build_labelled_task(tmp_path, "text_classification", labels, **fields)

    def error_with_labels(unknown_labels: list[str]) -> str:
        with pytest.raises(InputError) as error:
            build(unknown_labels)
        return str(error.value)

    for label in names[:2]:
        first_part = f"row 41 (and 1 more): column 'label': label '{label}' does not occur in train, which has 0, 1; correct it, add such items to train"
        advice = f'or leave such items out, label_map: {{"{label}": null}}, or merge them: {{"{label}": "'
        assert f"{first_part}, {advice}" in error_with_labels([label])
    message = error_with_labels(names[:2])
    assert (
        "row 41 (and 3 more): column 'label': 2 labels (EducationalInstitution, 财经新闻频道) do not occur in train"
        in message
    )
    label_map: dict[str, str | None] = dict.fromkeys(names[:2])
    assert ", ".join(f'"{name}": null' for name in label_map) in message
    assert build(names[:2], label_map=label_map).info.counts["test"] == 40
    many_message = error_with_labels([*names[2:], "M0", "M1"])
    assert "11 labels (L00, " in many_message
    assert "L08, M0, and 1 more) do not" in many_message
    assert '"M0": null, and 1 more}' in many_message
    texts_message = error_with_labels(
        [f"the patient of room {number} has a cough" for number in range(25)]
    )
    assert "25 labels (the patient of room ..." in texts_message
    assert "say in 'label_map' what it is, written out: null" in texts_message
    assert "cough" not in texts_message
    assert texts_message.count("patient") == 3 and ", and 22 more) do" in texts_message


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
    return build_task_items(folder, tree, name="mood").label_warnings


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
    tables = {"spans": tags, "plain": [[tag.replace("-", "") for tag in row] for row in tags]}
    warnings = {}
    for name, rows in tables.items():
        words = [["Ann", "saw", "New", f"York{row}"] for row in range(30)]
        table = pd.DataFrame({"tokens": words, "ner": rows})
        keys = {"kind": "token_classification", "tokens": "tokens", "label": "ner", "folds": 3}
        warnings[name] = find_warnings(tmp_path, table, **keys)
    similar, rare = warnings["spans"]
    assert "'B-PER' (29) and 'B-per' (1)" in similar and '{"B-per": "B-PER"}' in similar
    assert "1 type of span that occurs in one or two sentences" in rare and "'ORG' (1)" in rare
    similar, unread = warnings["plain"]  # and no rare ones: plain tags are often rare
    assert "differ only in capitals" in similar and "in no IOB scheme" in unread


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


def test_labels_are_sorted_as_numbers_if_all_are_integers() -> None:
    assert sort_labels(["10", "2", "010", "02", "2"]) == ["02", "2", "010", "10"]
    assert sort_labels(["--5", "1"]) == ["--5", "1"] and sort_labels(["3", "-1"]) == ["-1", "3"]
