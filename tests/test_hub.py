"""A csv or tsv file of a Hub dataset is read like one of the user.

No cell becomes a number or a missing value, and no rows are merged.
"""

import shutil
import tarfile
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from lineage.config.data import CorpusSource, Task
from lineage.config.records import parse_record
from lineage.data.items import TaskItems, check_task_files
from lineage.data.sources import HubSplit, open_source_table
from lineage.errors import InputError
from lineage.tasks.base import load_kind
from tests.helpers.tasks import TEXTS, build_task_items

REVISION = "ab" * 20
WORDS = ["well", "so", "not", "at all"]
ROWS = [(str(number % 2), f"it went {WORDS[number % 4]} {number}") for number in range(40)]
TASK = TEXTS | {"hub": "set", "revision": REVISION, "splits": {"train": "train", "test": "test"}}


def write_dataset(
    root: Path, rows: list[tuple[str, str]], *, suffix: str = "csv", card: str = ""
) -> None:
    delimiter = "\t" if suffix == "tsv" else ","
    (root / "set").mkdir()
    for split in ("train", "test"):
        (root / f"set/{split}.{suffix}").write_text(
            "".join(delimiter.join(row) + "\n" for row in [("label", "text"), *rows])
        )
    if card:
        (root / "set/README.md").write_text(f"---\n{card}---\n")


def build_task(root: Path, **fields: Any) -> TaskItems:
    task = parse_record(Task, TASK | fields, "task")
    check_task_files(
        task, load_kind("text_classification"), root=root, where="task", read_files=True
    )
    return build_task_items(root, task)


@pytest.mark.parametrize("suffix", ["csv", "tsv"])
def test_labels_are_read_as_they_are_written(suffix: str, tmp_path: Path) -> None:
    write_dataset(
        tmp_path,
        [
            (label, f"it went {word} {number}")
            for number in range(10)
            for label, word in zip(("01", "1", "NA", "2"), WORDS, strict=True)
        ],
        suffix=suffix,
    )
    task_items = build_task(tmp_path)
    assert task_items.info.labels == ["01", "1", "2", "NA"]
    assert task_items.info.counts["test"] == 40


@pytest.mark.parametrize("suffix", ["csv", "tsv"])
def test_an_unclosed_quotation_mark_is_an_error_unless_csv_quoting_is_off(
    suffix: str, tmp_path: Path
) -> None:
    texts = [text for _, text in ROWS]
    for number in range(3, 40, 15):
        texts[number] = f'"{texts[number]}'
    write_dataset(
        tmp_path, [(str(number % 2), text) for number, text in enumerate(texts)], suffix=suffix
    )
    message = rf"task\.splits\.train: train\.{suffix}, line 5: a cell begins with a quotation mark that nothing closes"
    with pytest.raises(InputError, match=message):
        build_task(tmp_path)
    assert list(build_task(tmp_path, csv_quoting=False).splits["test"]["text"]) == texts
    source: Any = {"hub": "set", "revision": REVISION, "split": "train", "text": "text"}
    with pytest.raises(InputError, match=rf"train\.{suffix}, line 5"):
        open_source_table(
            parse_record(CorpusSource, source, "source"), tmp_path, "source"
        ).read_columns(["text"])
    assert open_source_table(
        parse_record(CorpusSource, source | {"csv_quoting": False}, "source"), tmp_path, "source"
    ).read_columns(["text"]) == {"text": texts}


def test_the_table_format_in_the_dataset_card_is_used(tmp_path: Path) -> None:
    card = "configs:\n- config_name: default\n  sep: ';'\n  data_files:\n  - split: train\n    path: train.csv\n  - split: test\n    path: test.csv\n"
    write_dataset(
        tmp_path,
        [(f"{number % 2};it went, {WORDS[number % 4]}", str(number)) for number in range(20)],
        card=card,
    )
    for split in ("train", "test"):
        path = tmp_path / f"set/{split}.csv"
        path.write_text(path.read_text().replace("label,text", "label;text"))
    assert list(build_task(tmp_path).splits["test"]["text"])[:2] == [
        "it went, well,0",
        "it went, so,1",
    ]


OUTSIDE = r"set/README\.md: '.*' names files outside the folder of the data set; copy them into it"


@pytest.mark.parametrize(
    "pattern",
    ["../other.csv", "*/../../other.csv", "ROOT/other.csv", "http://127.0.0.1:9/other.csv"],
)
@pytest.mark.parametrize(
    "card", ["data_files: [{split: train, path: PATTERN}]", "data_dir: PATTERN"]
)
def test_a_card_that_names_files_outside_its_folder_is_refused(
    card: str, pattern: str, tmp_path: Path
) -> None:
    pattern = pattern.replace("ROOT", str(tmp_path))
    card = "configs:\n- config_name: default\n  " + card.replace("PATTERN", f"'{pattern}'") + "\n"
    write_dataset(tmp_path, ROWS, card=card)
    shutil.copy(tmp_path / "set/train.csv", tmp_path / "other.csv")
    with pytest.raises(InputError, match=OUTSIDE):
        build_task(tmp_path)


def test_a_folder_and_files_that_are_links_are_read(tmp_path: Path) -> None:
    (tmp_path / "stored").mkdir()
    write_dataset(tmp_path / "stored", ROWS)
    (tmp_path / "stored/set/train.csv").rename(tmp_path / "blob")
    (tmp_path / "stored/set/train.csv").symlink_to(tmp_path / "blob")
    (tmp_path / "root").mkdir()
    (tmp_path / "set").symlink_to(tmp_path / "stored/set")
    counts = build_task(tmp_path / "root", hub="../set").info.counts
    assert counts["train"] + counts["validation"] == counts["test"] == len(ROWS)


def write_archives(folder: Path) -> None:
    for split in ("train", "test"):
        with zipfile.ZipFile(folder / f"{split}.zip", "w") as archive:
            archive.write(folder / f"{split}.csv", f"{split}.csv")
        (folder / f"{split}.csv").unlink()


def write_tar_of_tensors(folder: Path) -> None:
    """`datasets` loads the members of a tar by their suffixes; those of a .pth with torch.load."""
    for split in ("train", "test"):
        (folder / f"{split}.csv").unlink()
        (folder / "sample.pth").write_bytes(b"a tensor")
        with tarfile.open(folder / f"{split}.tar", "w") as archive:
            archive.add(folder / "sample.pth", "sample.pth")
        (folder / "sample.pth").unlink()


def write_pickles(folder: Path) -> None:
    for split in ("train", "test"):
        pd.read_csv(folder / f"{split}.csv").to_pickle(folder / f"{split}.pkl")
        (folder / f"{split}.csv").unlink()


def write_script(folder: Path) -> None:
    (folder / "set.py").write_text("raise SystemExit('the script ran')\n")


def write_second_card(folder: Path) -> None:
    (folder / ".huggingface.yaml").write_text(
        "configs:\n- config_name: default\n  data_files: ../other.csv\n"
    )


@pytest.mark.parametrize(("spoil", "message"), [
    (write_archives, r"train\.zip is an archive, which is not read; unpack it"),
    (write_tar_of_tensors, r"holds files of the format webdataset; convert them to one of csv"),
    (write_pickles, r"`datasets` finds no data files there, and scripts are not run"),
    (write_script, r"set\.py is a script, which is not run; make files of the formats csv"),
    (write_second_card, r"\.huggingface\.yaml is not read; move its lines to the head of README"),
])  # fmt: skip
def test_files_that_may_run_code_or_lead_outside_are_refused(
    spoil: Callable[[Path], None], message: str, tmp_path: Path
) -> None:
    write_dataset(tmp_path, ROWS)
    spoil(tmp_path / "set")
    with pytest.raises(InputError, match=message):
        build_task(tmp_path)


def test_the_card_and_all_files_of_a_folder_are_recorded(tmp_path: Path) -> None:
    write_dataset(tmp_path, ROWS, card="pretty_name: a set\n")
    (tmp_path / "set/more.json").write_text("{}")
    files = HubSplit("set", None, "train", REVISION, tmp_path / "set").fingerprint()["files"]
    assert [file["name"] for file in files] == ["README.md", "more.json", "test.csv", "train.csv"]


def test_a_missing_split_is_reported_with_the_available_splits(tmp_path: Path) -> None:
    write_dataset(tmp_path, ROWS)
    with pytest.raises(InputError, match=r"Bad split: dev\. Available splits: \['train', 'test'\]"):
        build_task(tmp_path, splits={"train": "train", "test": "dev"})


@pytest.mark.parametrize(
    "card",
    [
        "notes: - our patient Anna: has: hepatitis\n  -x\n",
        "configs:\n- Anna\n",
        "configs:\n  config_name: Anna\n",
    ],
)
@pytest.mark.parametrize("fields", [{}, {"config": "default"}, {"config": "*"}])
def test_a_card_with_an_invalid_head_is_reported_without_quoting_it(
    fields: dict[str, str], card: str, tmp_path: Path
) -> None:
    write_dataset(tmp_path, ROWS, card=card)
    with pytest.raises(
        InputError,
        match=r"set/README\.md: its head, between the lines of ---, is not YAML, or its .configs. are not a list of mappings",
    ) as error:
        build_task(tmp_path, **fields)
    assert "Anna" not in str(error.value)
