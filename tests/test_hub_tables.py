"""A csv or tsv of a folder in the Hub's layout is read as the user's own is: no cell is taken for a number or for nothing, and no row is glued."""

from pathlib import Path
from typing import Any

import pytest

from lineage.config.data import CorpusSource, Task
from lineage.config.records import parse_record
from lineage.data.items import TaskItems, build_items, check_task_files
from lineage.data.sources import open_source_table
from lineage.errors import InputError
from lineage.tasks.base import load_kind

REVISION = "ab" * 20
WORDS = ["well", "so", "not", "at all"]
TASK = {
    "kind": "text_classification",
    "hub": "set",
    "revision": REVISION,
    "splits": {"train": "train", "test": "test"},
    "text": ["text"],
    "label": "label",
}


def folder(root: Path, rows: list[tuple[str, str]], *, suffix: str = "csv", card: str = "") -> None:
    sign = "\t" if suffix == "tsv" else ","
    (root / "set").mkdir()
    for split in ("train", "test"):
        (root / f"set/{split}.{suffix}").write_text(
            "".join(sign.join(row) + "\n" for row in [("label", "text"), *rows])
        )
    if card:
        (root / "set/README.md").write_text(f"---\n{card}---\n")


def made(root: Path, **keys: Any) -> TaskItems:
    task = parse_record(Task, TASK | keys, "task")
    check_task_files(
        task, load_kind("text_classification"), root=root, where="task", read_files=True
    )
    return build_items("x", task, load_kind("text_classification"), seed=1, root=root, where="task")


@pytest.mark.parametrize("suffix", ["csv", "tsv"])
def test_labels_are_what_stands_there(suffix: str, tmp_path: Path) -> None:
    folder(
        tmp_path,
        [
            (label, f"it went {word} {n}")
            for n in range(10)
            for label, word in zip(("01", "1", "NA", "2"), WORDS, strict=True)
        ],
        suffix=suffix,
    )
    found = made(tmp_path)
    assert found.info["labels"] == ["01", "1", "2", "NA"] and found.info["counts"]["test"] == 40


@pytest.mark.parametrize("suffix", ["csv", "tsv"])
def test_an_open_quotation_mark_ends_the_run_and_may_be_said_to_mean_nothing(
    suffix: str, tmp_path: Path
) -> None:
    texts = [
        f'"it went {WORDS[n % 4]} {n}' if n % 15 == 3 else f"it went {WORDS[n % 4]} {n}"
        for n in range(40)
    ]
    folder(tmp_path, [(str(n % 2), text) for n, text in enumerate(texts)], suffix=suffix)
    said = rf"task\.splits\.train: train\.{suffix}, line 5: a cell begins with a quotation mark that nothing closes"
    with pytest.raises(InputError, match=said):
        made(tmp_path)
    assert list(made(tmp_path, csv_quoting=False).splits["test"]["text"]) == texts
    source: Any = {"hub": "set", "revision": REVISION, "split": "train", "text": "text"}
    with pytest.raises(InputError, match=rf"train\.{suffix}, line 5"):
        open_source_table(
            parse_record(CorpusSource, source, "source"), tmp_path, "source"
        ).read_columns(["text"])
    assert open_source_table(
        parse_record(CorpusSource, source | {"csv_quoting": False}, "source"), tmp_path, "source"
    ).read_columns(["text"]) == {"text": texts}


def test_what_the_card_says_of_how_a_table_is_written_holds(tmp_path: Path) -> None:
    card = "configs:\n- config_name: default\n  sep: ';'\n  data_files:\n  - split: train\n    path: train.csv\n  - split: test\n    path: test.csv\n"
    folder(tmp_path, [(f"{n % 2};it went, {WORDS[n % 4]}", str(n)) for n in range(20)], card=card)
    for split in ("train", "test"):
        path = tmp_path / f"set/{split}.csv"
        path.write_text(path.read_text().replace("label,text", "label;text"))
    assert list(made(tmp_path).splits["test"]["text"])[:2] == ["it went, well,0", "it went, so,1"]


def test_a_split_that_is_not_there_is_named_with_those_that_are(tmp_path: Path) -> None:
    folder(tmp_path, [(str(n % 2), f"it went {WORDS[n % 4]} {n}") for n in range(40)])
    with pytest.raises(InputError, match=r"Bad split: dev\. Available splits: \['train', 'test'\]"):
        made(tmp_path, splits={"train": "train", "test": "dev"})


@pytest.mark.parametrize(
    "card",
    [
        "notes: - our patient Anna: has: hepatitis\n  -x\n",
        "configs:\n- Anna\n",
        "configs:\n  config_name: Anna\n",
    ],
)
@pytest.mark.parametrize("keys", [{}, {"config": "default"}, {"config": "*"}])
def test_a_card_whose_head_is_no_yaml_is_said_to_be_and_not_quoted(
    keys: dict[str, str], card: str, tmp_path: Path
) -> None:
    folder(tmp_path, [(str(n % 2), f"it went well {n}") for n in range(40)], card=card)
    with pytest.raises(
        InputError,
        match=r"set/README\.md: its head, between the lines of ---, is not YAML, or its .configs. are not a list of mappings",
    ) as caught:
        made(tmp_path, **keys)
    assert "Anna" not in str(caught.value)
