"""All formats, compressions and locations give the same documents; records hold digests."""

import gzip
import json
from pathlib import Path

import pandas as pd
import pyarrow as pa
import pytest

from lineage.artifacts import read_json
from lineage.config.data import Corpus, CorpusSource, Task
from lineage.config.records import parse_record
from lineage.data.corpus import collect_documents, source_fingerprint
from lineage.data.files import find_data_files
from lineage.data.items import task_fingerprint
from lineage.data.sources import DataTable
from lineage.errors import InputError
from tests.helpers.hub import HUB_SOURCE, LARGE_TRAIN_TEXTS, REVISION, hub_folder, read_in_process
from tests.helpers.tasks import TEXTS, build_task_items
from tests.helpers.user_project import make_project, write_params

# Text that table parsers are known to change: NA and None, quotation marks, commas, numbers, dates,
# a leading zero, other scripts, an unclosed quotation mark.
UNUSUAL_TEXTS = [
    "NA",
    'a, b and "c"',
    "None",
    "2003-01-01",
    "007",
    "Grüße 中文 हिन्दी 🙂",
    "1.0",
    'an open " quote',
    "it's [a] #comment",
    "true",
]


@pytest.fixture(autouse=True)
def workspace(tmp_path, monkeypatch):
    """Run in an empty folder, which gets the cache of digests."""
    home = tmp_path / "workspace"
    home.mkdir()
    monkeypatch.chdir(home)


def compress(path: Path, suffix: str) -> Path:
    target = path.with_name(path.name + suffix)
    if suffix == ".gz":
        target.write_bytes(gzip.compress(path.read_bytes()))
    elif suffix == ".zst":
        with pa.output_stream(str(target), compression="zstd") as stream:
            stream.write(path.read_bytes())
    if suffix:
        path.unlink()
    return target


def write_table(table: pd.DataFrame, path: Path) -> None:
    if path.suffix == ".parquet":
        table.to_parquet(path)
    elif path.suffix == ".jsonl":
        path.write_text(
            "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in table.to_dict("records")),
            encoding="utf-8",
        )
    elif path.suffix == ".txt":
        path.write_text("\n".join(table["text"]) + "\n", encoding="utf-8")
    else:
        table.to_csv(path, index=False, sep="\t" if path.suffix == ".tsv" else ",")


def parse_source(**source) -> CorpusSource:
    return parse_record(Corpus, {"language": "en", "sources": [source]}, "corpus").sources[0]


def read_texts(root: Path, **source) -> list[str]:
    corpus = parse_record(
        Corpus, {"language": "en", "sources": [source], "min_characters": 0}, "corpus"
    )
    return list(collect_documents(corpus, seed=1, root=root, where="corpus").table["text"])


@pytest.mark.parametrize("compression", ["", ".gz", ".zst"])
@pytest.mark.parametrize("suffix", [".parquet", ".jsonl", ".csv", ".tsv", ".txt"])
def test_every_format_gives_the_same_documents_and_items(suffix, compression, tmp_path):
    path = tmp_path / f"a{suffix}"
    labels = [n % 2 for n in range(len(UNUSUAL_TEXTS))]
    write_table(pd.DataFrame({"text": UNUSUAL_TEXTS, "label": labels}), path)
    name = compress(path, compression).name
    unit = {"document_unit": "line"} if suffix == ".txt" else {"text": "text"}
    assert read_texts(tmp_path, files=name, **unit) == UNUSUAL_TEXTS
    if suffix != ".txt":
        items = build_task_items(tmp_path, TEXTS | {"files": {"train": name, "test": name}})
        assert list(items.splits["test"]["text"]) == UNUSUAL_TEXTS
        assert items.info.labels == ["0", "1"]


@pytest.mark.parametrize("compression", ["", ".gz"])
def test_a_csv_may_have_semicolons(compression: str, tmp_path: Path) -> None:
    """Excel writes them where a comma is the decimal sign."""
    texts = ["first", *UNUSUAL_TEXTS, "one; two", '"']
    table = pd.DataFrame({"text": texts, "n": [f"{number % 2},5" for number in range(len(texts))]})
    table.to_csv(tmp_path / "a.csv", index=False, sep=";", encoding="utf-8-sig")
    name = compress(tmp_path / "a.csv", compression).name
    block = TEXTS | {"label": "n", "files": {"train": name, "test": name}}
    items = build_task_items(tmp_path, block)
    assert list(items.splits["test"]["text"]) == texts
    assert items.info.labels == ["0,5", "1,5"]


def test_one_column_of_texts_with_semicolons_stays_one(tmp_path: Path) -> None:
    texts = ["one; two", "three", "four; five; six"]
    pd.DataFrame({"text": texts}).to_csv(tmp_path / "a.csv", index=False)
    assert read_texts(tmp_path, files="a.csv", text="text") == texts


def test_files_of_one_table_may_have_different_delimiters(tmp_path: Path) -> None:
    table = pd.DataFrame({"text": UNUSUAL_TEXTS, "n": 1})
    table.to_csv(tmp_path / "a.csv", index=False)
    table.to_csv(tmp_path / "b.csv", index=False, sep=";")
    files = DataTable(find_data_files("*.csv", tmp_path, "task"), "task")
    files.check(["text"])
    assert files.read_columns(["text"]) == {"text": UNUSUAL_TEXTS * 2}


@pytest.mark.parametrize(
    ("document_unit", "expected"),
    [
        ("file", ["one two\nstill one\n\nsecond\n\n\nthird"]),
        ("blank_line", ["one two\nstill one", "second", "third"]),
        ("line", ["one two", "still one", "second", "third"]),
    ],
)
@pytest.mark.parametrize("end", ["\n", "\r\n"])
def test_a_txt_file_is_split_into_documents_by_the_document_unit(
    document_unit, expected, end, tmp_path
):
    (tmp_path / "a.txt").write_bytes(
        "one two\nstill one\n\nsecond\n\n\nthird\n".replace("\n", end).encode()
    )
    assert read_texts(tmp_path, files="a.txt", document_unit=document_unit) == expected


@pytest.mark.parametrize("compression", ["", ".gz"])
def test_a_line_of_spaces_is_a_blank_line(compression, tmp_path):
    """WikiText has such lines, and editors and pdftotext leave them."""
    for name, text in (("a", "one\ntwo\n \nthree\n\t\n\n \nfour"), ("b", "\ufefffive\n  \n")):
        save_text = (tmp_path / f"{name}.txt").write_text(text)
        assert save_text
        compress(tmp_path / f"{name}.txt", compression)
    assert read_texts(tmp_path, files=f"*.txt{compression}", document_unit="blank_line") == [
        "one\ntwo",
        "three",
        "four",
        "five",
    ]


def test_globs_folders_and_unusual_names_are_read_in_the_order_of_names(tmp_path):
    (tmp_path / "data/deep").mkdir(parents=True)
    (tmp_path / "data/.hidden.txt").write_text("hidden")
    for number in range(12):
        (tmp_path / f"data/{'deep/' if number % 2 else ''}{number:02d} [a]*?.txt").write_text(
            f"text {number}"
        )
    everything = [f"text {n}" for n in [*range(0, 12, 2), *range(1, 12, 2)]]
    assert read_texts(tmp_path, files="data") == everything
    assert read_texts(tmp_path, files="data/**/*.txt") == everything
    assert read_texts(tmp_path, files=str(tmp_path / "data/*.txt")) == everything[:6]
    assert read_texts(tmp_path, files="data/02 [a]*?.txt") == ["text 2"]


def test_fingerprints_have_relative_names_and_change_with_an_edit(tmp_path):
    (tmp_path / "a.txt").write_text("some text")
    source = parse_source(files="a.txt")
    before = source_fingerprint(source, tmp_path, "corpus")
    assert before["files"][0]["name"] == "a.txt"
    assert before == source_fingerprint(source, tmp_path, "corpus")
    (tmp_path / "a.txt").write_text("some tent")
    assert before != source_fingerprint(source, tmp_path, "corpus")
    elsewhere = parse_source(files=str(tmp_path / "*.txt"))
    record = source_fingerprint(elsewhere, tmp_path / "workspace", "corpus")
    assert record["files"][0]["name"] == "a.txt"


def test_a_folder_in_the_hubs_layout_is_read_by_config_and_split(tmp_path):
    hub_folder(tmp_path / "copies/data-set")
    assert read_texts(tmp_path, hub="copies/data-set", **HUB_SOURCE) == LARGE_TRAIN_TEXTS
    assert len(read_texts(tmp_path, hub="copies/data-set", **{**HUB_SOURCE, "config": "*"})) == 16
    splits = {"train": "train", "test": "validation"}
    task = {
        "kind": "text_classification",
        "hub": "copies/data-set",
        "config": "small",
        "splits": splits,
        "revision": REVISION,
        "text": ["body"],
        "label": "label",
    }
    items = build_task_items(tmp_path, task)
    assert items.info.counts == {"train": 7, "test": 4, "validation": 1}
    fingerprint = task_fingerprint(parse_record(Task, task, "task"), tmp_path, "task")
    assert [f["name"] for f in fingerprint["splits"]["test"]["files"]] == [
        "README.md",
        *(
            f"{c}/{s}-00000-of-00001.parquet"
            for c in ("large", "small")
            for s in ("train", "validation")
        ),
    ]


@pytest.mark.parametrize(
    ("key", "value"), [("split", "trian"), ("config", "huge"), ("text", "boddy")]
)
def test_an_unknown_split_config_or_column_of_the_hub_is_refused_by_name(key, value, tmp_path):
    hub_folder(tmp_path / "data-set")
    with pytest.raises(InputError, match=value):
        read_texts(tmp_path, hub="data-set", **{**HUB_SOURCE, key: value})


def write_hub_cache(home: Path, repository: str) -> None:
    """Write what a download leaves in HF_HOME."""
    folder = home / "hub" / f"datasets--{repository.replace('/', '--')}"
    hub_folder(folder / "snapshots" / REVISION)
    (folder / "refs").mkdir()
    (folder / "refs/main").write_text(REVISION)


def test_the_cache_of_the_hub_works_offline_and_a_missing_entry_is_an_error(tmp_path):
    write_hub_cache(tmp_path / "full", "some-body/data-set")
    results, messages = read_in_process(
        tmp_path / "full",
        {"hub": "some-body/data-set", **HUB_SOURCE},
        {"hub": "some-body/other", **HUB_SOURCE},
        HF_HUB_OFFLINE="1",
    )
    assert [texts for texts, _ in results] == [LARGE_TRAIN_TEXTS]
    assert results[0][1] == {
        "read": "hub",
        "hub": "some-body/data-set",
        "config": "large",
        "split": "train",
        "revision": REVISION,
    }
    assert not (tmp_path / "full/datasets").exists()
    assert len(messages) == 1
    assert "some-body/other at 0123456789ab is not in the Hub's cache" in messages[0]


def test_an_interrupted_download_is_not_read_as_complete(tmp_path):
    """With a card, a shard is missing; without one, an incomplete file shows the interruption."""
    folders = {
        card: tmp_path / f"full/hub/datasets--some-body--{card}" for card in ("card", "none")
    }
    for card, folder in folders.items():
        snapshot = folder / "snapshots" / REVISION
        (snapshot / "data").mkdir(parents=True)
        for number in range(2):
            pd.DataFrame({"text": [f"shard {number} " + "of a text " * 30]}).to_parquet(
                snapshot / f"data/train-{number:05d}-of-00002.parquet"
            )
        if card == "card":
            files = "---\nconfigs:\n- config_name: default\n  data_files:\n  - split: train\n    path: data/train-*\n---\n"
            (snapshot / "README.md").write_text(files)
        (folder / "refs").mkdir()
        (folder / "refs/main").write_text(REVISION)
        (folder / "blobs").mkdir()
    sources = [
        {"hub": f"some-body/{card}", "split": "train", "revision": REVISION, "text": "text"}
        for card in folders
    ]
    results, messages = read_in_process(tmp_path / "full", *sources, HF_HUB_OFFLINE="1")
    assert [[text[:7] for text in texts] for texts, _ in results] == 2 * [["shard 0", "shard 1"]], (
        messages
    )
    (folders["card"] / "snapshots" / REVISION / "data/train-00001-of-00002.parquet").unlink()
    (folders["none"] / "blobs/0123.incomplete").touch()
    results, messages = read_in_process(tmp_path / "full", *sources, HF_HUB_OFFLINE="1")
    assert not results
    assert len(messages) == 2
    assert all("is not in the Hub's cache" in line for line in messages)


def test_a_mirror_is_read_if_its_files_exist_and_the_record_says_so(tmp_path):
    hub_folder(tmp_path / "data-set")
    source = {
        "hub": "data-set",
        **HUB_SOURCE,
        "mirror": {"files": "copy.txt", "document_unit": "line"},
    }
    record = parse_source(**source)
    assert read_texts(tmp_path, **source) == LARGE_TRAIN_TEXTS
    assert source_fingerprint(record, tmp_path, "corpus")["read"] == "hub"
    (tmp_path / "copy.txt").write_text("from the copy\n")
    assert read_texts(
        tmp_path,
        **source | {"mirror": {"files": "copy.txt", "document_unit": "line", "text": "text"}},
    ) == ["from the copy"]
    assert source_fingerprint(record, tmp_path, "corpus")["read"] == "mirror"


def test_no_stage_leaves_a_cache_of_datasets_behind(tmp_path, monkeypatch, run_stage):
    monkeypatch.setenv("HF_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("TMPDIR", str(tmp_path / "scratch"))
    (tmp_path / "scratch").mkdir()
    make_project(tmp_path / "project")
    for command in (("sources",), ("corpus", "general"), ("task", "mood")):
        assert run_stage(tmp_path / "project", *command)[0] == 0
    assert not (tmp_path / "home").exists()
    assert not list((tmp_path / "scratch").iterdir())


@pytest.mark.parametrize("suffix", [".csv", ".parquet", ".jsonl"])
def test_unused_columns_may_contain_anything(tmp_path: Path, suffix: str) -> None:
    """Read past three kinds of unused columns.

    They are the index that pandas writes to a csv, a column that is empty in one file and text in
    the next, and a key that only some lines have.
    """
    first = pd.DataFrame({"text": ["One text.", "Another."], "note": [None, None]})
    second = pd.DataFrame({"text": ["A third.", "A fourth."], "note": ["a", "b"]})
    for number, table in enumerate((first, second)):
        path = tmp_path / f"{number}{suffix}"
        table.to_csv(path) if suffix == ".csv" else write_table(table, path)
    if suffix == ".jsonl":
        with (tmp_path / "1.jsonl").open("a") as stream:
            stream.write('{"text": "A fifth.", "note": {"a": [1]}}\n')
    assert len(read_texts(tmp_path, files=f"*{suffix}", text="text")) == (
        5 if suffix == ".jsonl" else 4
    )


def test_a_column_without_text_is_refused(tmp_path: Path) -> None:
    pd.DataFrame({"text": [["a", "list"], ["of", "words"]]}).to_parquet(tmp_path / "a.parquet")
    with pytest.raises(InputError, match=r"row 1: column 'text' holds a list, not text"):
        read_texts(tmp_path, files="a.parquet", text="text")


def test_paths_may_go_up_and_through_hidden_folders(tmp_path: Path) -> None:
    (tmp_path / ".data/sub").mkdir(parents=True)
    (tmp_path / ".data/a.txt").write_text("Some text.")
    (tmp_path / ".data/.hidden.txt").write_text("Not this.")
    assert read_texts(tmp_path, files=f"{tmp_path}/.data/*.txt") == ["Some text."]
    assert read_texts(tmp_path / ".data/sub", files="../*.txt") == ["Some text."]
    with pytest.raises(InputError, match="no file matches"):
        read_texts(tmp_path, files="a**b/*.txt")


def test_an_edit_of_params_yaml_during_a_run_changes_the_next_run_only(tmp_path, run_stage):
    """DVC depends on what sources has recorded, so stages must compute with the same values."""
    tree = make_project(tmp_path)

    def train_size() -> int:
        code, message = run_stage(tmp_path, "task", "mood")
        assert code == 0, message
        return read_json(tmp_path / "artifacts/tasks/mood/task.json")["counts"]["train"]

    assert run_stage(tmp_path, "sources")[0] == 0
    before = train_size()
    tree["tasks"]["mood"]["limit"] = {"train": 30}
    write_params(tmp_path, tree)
    assert train_size() == before > 30
    assert run_stage(tmp_path, "sources")[0] == 0
    assert train_size() == 30
