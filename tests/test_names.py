"""Names of labels: by number, by name, and of labels that train lacks. A name that does nothing is refused, and an error can be copied from."""

import json
from pathlib import Path
from typing import Any

import datasets
import pytest

from lineage.config.data import Task
from lineage.config.records import parse_record
from lineage.data.items import build_items
from lineage.errors import InputError
from lineage.tasks.base import load_kind
from tests.test_odd_input import ROWS, made

NAMED = [
    ["O", "B-ORG", "I-ORG"],
    {0: "O", 1: "B-ORG", 2: "I-ORG"},
    {"0": "O", "1": "B-ORG", "2": "I-ORG"},
    {0: "O", 1: "B-ORG", 2: "I-ORG", 3: "B-PER", -100: "O"},
]  # all classes that there are, of which the data lack some


@pytest.mark.parametrize("names", NAMED)
def test_numbers_get_their_names_by_place_or_by_themselves(names: Any, tmp_path: Path) -> None:
    numbers = [
        row | {"label": [0, 1, 2, 2], "tag": n % 3, "text": "a text"}
        for n, row in enumerate(ROWS["token_classification"])
    ]
    (tmp_path / "t.jsonl").write_text("".join(json.dumps(row) + "\n" for row in numbers))
    files = {"train": "t.jsonl", "test": "t.jsonl"}
    found = made(tmp_path, "token_classification", {}, files=files, label_map=names)
    assert (
        found.info["labels"] == ["B-ORG", "I-ORG", "O"]
        and found.info["metric"][0] == "span_f1"
        and not found.info["numbered_tags"]
    )
    assert made(
        tmp_path, "text_classification", {}, files=files, label_map=names, label="tag"
    ).info["labels"] == [
        "B-ORG",
        "I-ORG",
        "O",
    ]


@pytest.mark.parametrize(("names", "said"), [
    (["O", "B-ORG"], r"row 4: column 'label': '2' is none of 0 to 1 of 'label_map'; give the names of all labels"),
    ({0: "O", 1: "B-ORG", -100: "I-ORG"}, r"^task\.label_map: no label of any split is '-100'; there are 0, 1, 2; correct it, or remove it$"),
    ({"O": "o", "B": "B-ORG"}, r"^task\.label_map: no label of any split is 'O'; there are 0, 1, 2; correct them, or remove 'label_map'$"),
    ([], "'label_map' is empty"), ({}, "'label_map' is empty"),
    ({0: "O", "1": "B-ORG"}, r"task\.label_map: .*expected"), ([0, 1], r"task\.label_map.*expected a text, found 0"),
])  # fmt: skip
def test_names_that_do_not_reach_are_refused(names: Any, said: str, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=said):
        made(
            tmp_path,
            "token_classification",
            {"label": [0, 1, 2, 0]},
            label_map=names,
            files=_numbered(tmp_path),
        )


def _numbered(root: Path) -> dict[str, str]:
    rows = [
        row | {"label": [0, 1, 1 + (n == 3), 0]}
        for n, row in enumerate(ROWS["token_classification"])
    ]
    (root / "t.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return {"train": "t.jsonl", "test": "t.jsonl"}


@pytest.mark.parametrize(("count", "said"), [
    (4, r"column 'half': label 'strange' does not occur in train, which has name 0, name 1, name 2, \.\.\.; .*null\}, or merge them: .*of train"),
    (20, r"column 'half': its label does not occur in train, which has 20 of them in 20 rows: are they labels\?; correct it, .* in 'label_map'$"),
])  # fmt: skip
def test_of_labels_three_are_shown_and_of_texts_none(count: int, said: str, tmp_path: Path) -> None:
    rows = [
        row | {"half": f"name {n % count}"} for n, row in enumerate(ROWS["text_classification"])
    ]
    (tmp_path / "train.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (tmp_path / "test.jsonl").write_text(json.dumps(rows[3] | {"half": "strange"}) + "\n")
    tree = {
        "kind": "text_classification",
        "text": ["text"],
        "label": "half",
        "files": {"train": "train.jsonl", "test": "test.jsonl"},
    }
    with pytest.raises(InputError, match=rf"^task\.files\.test: test\.jsonl: row 1: {said}"):
        build_items(
            "x",
            parse_record(Task, tree, "task"),
            load_kind("text_classification"),
            seed=1,
            root=tmp_path,
            where="task",
        )


def test_labels_that_train_lacks_are_told_at_once_and_whole_to_be_copied(tmp_path: Path) -> None:
    """Where train has half of the test's labels: else they may be a column of texts."""
    names = [
        "EducationalInstitution",
        "\u8d22\u7ecf\u65b0\u95fb\u9891\u9053",
        *(f"L{n:02}" for n in range(9)),
    ]
    rows = ROWS["text_classification"]
    (tmp_path / "train.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    tree: dict[str, Any] = {
        "kind": "text_classification",
        "text": ["text"],
        "label": "label",
        "files": {"train": "train.jsonl", "test": "test.jsonl"},
    }

    def said(strange: list[str], **keys: Any) -> str:
        more = [
            {"text": f"more {n}", "label": label} for n, label in enumerate([*strange, *strange])
        ]
        (tmp_path / "test.jsonl").write_text(
            "".join(json.dumps(row) + "\n" for row in [*rows, *rows, *more])
        )
        with pytest.raises(InputError) as caught:
            build_items(
                "x",
                parse_record(Task, tree | keys, "task"),
                load_kind("text_classification"),
                seed=1,
                root=tmp_path,
                where="task",
            )
        return str(caught.value)

    for label in names[:2]:
        one = f"row 41 (and 1 more): column 'label': label '{label}' does not occur in train, which has 0, 1; correct it, add such items to train"
        assert (
            f'{one}, or leave such items out, label_map: {{"{label}": null}}, or merge them: {{"{label}": "'
            in said([label])
        )
    two = said(names[:2])
    assert (
        "row 41 (and 3 more): column 'label': 2 labels (EducationalInstitution, 财经新闻频道) do not occur in train"
        in two
    )
    named: dict[str, str | None] = dict.fromkeys(names[:2])
    assert ", ".join(f'"{name}": null' for name in named) in two
    pasted = parse_record(Task, tree | {"label_map": named}, "task")
    assert (
        build_items(
            "x", pasted, load_kind("text_classification"), seed=1, root=tmp_path, where="task"
        ).info["counts"]["test"]
        == 40
    )
    many = said([*names[2:], "M0", "M1"])
    assert (
        "11 labels (L00, " in many
        and "L08, M0, and 1 more) do not" in many
        and '"M0": null, and 1 more}' in many
    )
    texts = said([f"the patient of room {n} has a cough" for n in range(25)])
    assert (
        "25 labels (the patient of room ..." in texts
        and "say in 'label_map' what it is, written out: null" in texts
    )
    assert "cough" not in texts and texts.count("patient") == 3 and ", and 22 more) do" in texts


@pytest.mark.parametrize(("names", "said"), [
    (["O", "B-PER", "I-PER"], r"row 1: column 'label': 'O' is a name already, and 'label_map' is a list, of numbers; remove 'label_map'"),
    ({0: "O", 1: "B-X", 2: "I-X"}, "no label of any split is '0'; there are B-PER, I-PER, O; correct them, or remove 'label_map'"),
])  # fmt: skip
def test_a_file_that_names_its_tags_itself_says_that_names_are_not_needed(
    names: Any, said: str, tmp_path: Path
) -> None:
    tags = datasets.Sequence(datasets.ClassLabel(names=["O", "B-PER", "I-PER"]))
    features = datasets.Features(
        {"tokens": datasets.Sequence(datasets.Value("string")), "label": tags}
    )
    columns = {"tokens": [["a", "Bob", "Lee"]] * 20, "label": [[0, 1, 2]] * 20}
    datasets.Dataset.from_dict(columns, features=features).to_parquet(str(tmp_path / "t.parquet"))
    with pytest.raises(InputError, match=said):
        made(
            tmp_path,
            "token_classification",
            {},
            files={"train": "t.parquet", "test": "t.parquet"},
            label_map=names,
        )
