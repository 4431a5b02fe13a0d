"""`label_map` renames labels by number or by name, and useless entries are refused.

Errors about labels that train lacks show entries to copy.
"""

import json
from pathlib import Path
from typing import Any

import datasets
import pytest

from lineage.config.data import Task
from lineage.config.records import parse_record
from lineage.errors import InputError
from tests.helpers.tasks import ROWS, build_changed_task, build_task_items, write_jsonl

LABEL_MAPS = [
    ["O", "B-ORG", "I-ORG"],
    {0: "O", 1: "B-ORG", 2: "I-ORG"},
    {"0": "O", "1": "B-ORG", "2": "I-ORG"},
    # This one names all known classes, some of which do not occur in the data.
    {0: "O", 1: "B-ORG", 2: "I-ORG", 3: "B-PER", -100: "O"},
]


@pytest.mark.parametrize("label_map", LABEL_MAPS)
def test_number_labels_are_named_by_a_list_or_a_mapping(label_map: Any, tmp_path: Path) -> None:
    rows = [
        row | {"label": [0, 1, 2, 2], "tag": number % 3, "text": "a text"}
        for number, row in enumerate(ROWS["token_classification"])
    ]
    write_jsonl(tmp_path / "t.jsonl", rows)
    files = {"train": "t.jsonl", "test": "t.jsonl"}
    tagging = build_changed_task(
        tmp_path, "token_classification", {}, files=files, label_map=label_map
    )
    assert tagging.info.labels == ["B-ORG", "I-ORG", "O"]
    assert tagging.info.ranking_metric == "span_f1"
    assert not tagging.info.numeric_tags
    classification = build_changed_task(
        tmp_path, "text_classification", {}, files=files, label_map=label_map, label="tag"
    )
    assert classification.info.labels == ["B-ORG", "I-ORG", "O"]


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
    with pytest.raises(InputError, match=message):
        build_changed_task(
            tmp_path,
            "token_classification",
            {"label": [0, 1, 2, 0]},
            label_map=label_map,
            files=write_numbered_tags(tmp_path),
        )


def write_numbered_tags(root: Path) -> dict[str, str]:
    rows = [
        row | {"label": [0, 1, 1 + (number == 3), 0]}
        for number, row in enumerate(ROWS["token_classification"])
    ]
    write_jsonl(root / "t.jsonl", rows)
    return {"train": "t.jsonl", "test": "t.jsonl"}


@pytest.mark.parametrize(("num_labels", "message"), [
    (4, r"column 'half': label 'strange' does not occur in train, which has name 0, name 1, name 2, \.\.\.; .*null\}, or merge them: .*of train"),
    (20, r"column 'half': its label does not occur in train, which has 20 of them in 20 rows: are they labels\?; correct it, .* in 'label_map'$"),
])  # fmt: skip
def test_an_error_shows_three_labels_but_no_texts(
    num_labels: int, message: str, tmp_path: Path
) -> None:
    rows = [
        row | {"half": f"name {number % num_labels}"}
        for number, row in enumerate(ROWS["text_classification"])
    ]
    write_jsonl(tmp_path / "train.jsonl", rows)
    (tmp_path / "test.jsonl").write_text(json.dumps(rows[3] | {"half": "strange"}) + "\n")
    fields = {
        "kind": "text_classification",
        "text": ["text"],
        "label": "half",
        "files": {"train": "train.jsonl", "test": "test.jsonl"},
    }
    with pytest.raises(InputError, match=rf"^task\.files\.test: test\.jsonl: row 1: {message}"):
        build_task_items(tmp_path, fields)


def test_labels_that_train_lacks_are_all_reported_in_a_form_to_copy(tmp_path: Path) -> None:
    """This applies if train has half of the test labels; otherwise they may be texts."""
    names = [
        "EducationalInstitution",
        "\u8d22\u7ecf\u65b0\u95fb\u9891\u9053",
        *(f"L{number:02}" for number in range(9)),
    ]
    rows = ROWS["text_classification"]
    write_jsonl(tmp_path / "train.jsonl", rows)
    fields: dict[str, Any] = {
        "kind": "text_classification",
        "text": ["text"],
        "label": "label",
        "files": {"train": "train.jsonl", "test": "test.jsonl"},
    }

    def error_with_labels(unknown_labels: list[str], **overrides: Any) -> str:
        extra_rows = [
            {"text": f"more {number}", "label": label}
            for number, label in enumerate([*unknown_labels, *unknown_labels])
        ]
        write_jsonl(tmp_path / "test.jsonl", [*rows, *rows, *extra_rows])
        with pytest.raises(InputError) as error:
            build_task_items(tmp_path, fields | overrides)
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
    corrected_task = parse_record(Task, fields | {"label_map": label_map}, "task")
    corrected_items = build_task_items(tmp_path, corrected_task)
    assert corrected_items.info.counts["test"] == 40
    many_message = error_with_labels([*names[2:], "M0", "M1"])
    assert "11 labels (L00, " in many_message
    assert "L08, M0, and 1 more) do not" in many_message
    assert '"M0": null, and 1 more}' in many_message
    texts_message = error_with_labels(
        [f"the patient of room {number} has a cough" for number in range(25)]
    )
    assert (
        "25 labels (the patient of room ..." in texts_message
        and "say in 'label_map' what it is, written out: null" in texts_message
    )
    assert (
        "cough" not in texts_message
        and texts_message.count("patient") == 3
        and ", and 22 more) do" in texts_message
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
    with pytest.raises(InputError, match=message):
        build_changed_task(
            tmp_path,
            "token_classification",
            {},
            files={"train": "t.parquet", "test": "t.parquet"},
            label_map=label_map,
        )
