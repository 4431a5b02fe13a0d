"""Every format, compression and place of data gives the same documents, and what was read is recorded by content."""

import gzip
import json
import os
import subprocess
import sys
from pathlib import Path

import pandas as pd
import pyarrow as pa
import pytest

from lineage.config.data import Corpus, Task
from lineage.config.records import parse_record
from lineage.data.corpus import collect_documents, source_fingerprint
from lineage.data.items import build_items, task_fingerprint
from lineage.errors import InputError
from lineage.tasks.base import load_kind
from tests.user_project import HERE, make, stage

REVISION = "0123456789abcdef0123456789abcdef01234567"
# What readers are known to change: NA and None, quotes, commas, numbers, dates, a leading zero, other scripts, a quote that stays open.
TEXTS = [
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
    """A folder of its own for the cache of digests."""
    home = tmp_path / "workspace"
    home.mkdir()
    monkeypatch.chdir(home)


def compressed(path: Path, how: str) -> Path:
    target = path.with_name(path.name + how)
    if how == ".gz":
        target.write_bytes(gzip.compress(path.read_bytes()))
    elif how == ".zst":
        with pa.output_stream(str(target), compression="zstd") as stream:
            stream.write(path.read_bytes())
    if how:
        path.unlink()
    return target


def save(table: pd.DataFrame, path: Path) -> None:
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


def texts_of(root: Path, **source) -> list[str]:
    corpus = parse_record(
        Corpus, {"language": "en", "sources": [source], "min_characters": 0}, "corpus"
    )
    return list(collect_documents(corpus, seed=1, root=root, where="corpus").table["text"])


@pytest.mark.parametrize("how", ["", ".gz", ".zst"])
@pytest.mark.parametrize("suffix", [".parquet", ".jsonl", ".csv", ".tsv", ".txt"])
def test_every_format_gives_the_same_documents(suffix, how, tmp_path):
    path = tmp_path / f"a{suffix}"
    save(pd.DataFrame({"text": TEXTS, "n": range(len(TEXTS))}), path)
    name = compressed(path, how).name
    assert (
        texts_of(
            tmp_path,
            files=name,
            **({"document_unit": "line"} if suffix == ".txt" else {"text": "text"}),
        )
        == TEXTS
    )


@pytest.mark.parametrize("how", ["", ".gz", ".zst"])
@pytest.mark.parametrize("suffix", [".parquet", ".jsonl", ".csv"])
def test_every_format_gives_the_same_items(suffix, how, tmp_path):
    for split in ("train", "test"):
        save(
            pd.DataFrame({"t": TEXTS, "l": [n % 2 for n in range(len(TEXTS))]}),
            tmp_path / f"{split}{suffix}",
        )
        compressed(tmp_path / f"{split}{suffix}", how)
    task = parse_record(
        Task,
        {
            "kind": "text_classification",
            "files": {s: f"{s}{suffix}{how}" for s in ("train", "test")},
            "text": ["t"],
            "label": "l",
        },
        "task",
    )
    items = build_items(
        "x", task, load_kind("text_classification"), seed=1, root=tmp_path, where="task"
    )
    assert list(items.splits["test"]["text"]) == TEXTS
    assert items.info["labels"] == ["0", "1"]


@pytest.mark.parametrize(
    ("document_unit", "expected"),
    [
        ("file", ["one two\nstill one\n\nsecond\n\n\nthird"]),
        ("blank_line", ["one two\nstill one", "second", "third"]),
        ("line", ["one two", "still one", "second", "third"]),
    ],
)
@pytest.mark.parametrize("end", ["\n", "\r\n"])
def test_what_a_document_of_a_txt_file_is(document_unit, expected, end, tmp_path):
    (tmp_path / "a.txt").write_bytes(
        "one two\nstill one\n\nsecond\n\n\nthird\n".replace("\n", end).encode()
    )
    assert texts_of(tmp_path, files="a.txt", document_unit=document_unit) == expected


@pytest.mark.parametrize("how", ["", ".gz"])
def test_a_blank_line_may_hold_spaces(how, tmp_path):
    """As WikiText's do, and what editors and pdftotext leave."""
    for name, text in (("a", "one\ntwo\n \nthree\n\t\n\n \nfour"), ("b", "\ufefffive\n  \n")):
        save_text = (tmp_path / f"{name}.txt").write_text(text)
        assert save_text
        compressed(tmp_path / f"{name}.txt", how)
    assert texts_of(tmp_path, files=f"*.txt{how}", document_unit="blank_line") == [
        "one\ntwo",
        "three",
        "four",
        "five",
    ]


def test_globs_folders_and_odd_names_are_read_in_the_order_of_names(tmp_path):
    (tmp_path / "data/deep").mkdir(parents=True)
    (tmp_path / "data/.hidden.txt").write_text("hidden")
    for number in range(12):
        (tmp_path / f"data/{'deep/' if number % 2 else ''}{number:02d} [a]*?.txt").write_text(
            f"text {number}"
        )
    everything = [f"text {n}" for n in [*range(0, 12, 2), *range(1, 12, 2)]]
    assert texts_of(tmp_path, files="data") == everything
    assert texts_of(tmp_path, files="data/**/*.txt") == everything
    assert texts_of(tmp_path, files=str(tmp_path / "data/*.txt")) == everything[:6]
    assert texts_of(tmp_path, files="data/02 [a]*?.txt") == ["text 2"]


def test_records_hold_relative_names_and_digests_and_see_an_edit(tmp_path):
    (tmp_path / "a.txt").write_text("some text")
    source = parse_record(
        Corpus, {"language": "en", "sources": [{"files": "a.txt"}]}, "corpus"
    ).sources[0]
    before = source_fingerprint(source, tmp_path, "corpus")
    assert before["files"][0]["name"] == "a.txt"
    assert before == source_fingerprint(source, tmp_path, "corpus")
    (tmp_path / "a.txt").write_text("some tent")
    assert before != source_fingerprint(source, tmp_path, "corpus")
    elsewhere = parse_record(
        Corpus, {"language": "en", "sources": [{"files": str(tmp_path / "*.txt")}]}, "corpus"
    ).sources[0]
    assert (
        source_fingerprint(elsewhere, tmp_path / "workspace", "corpus")["files"][0]["name"]
        == "a.txt"
    )


def hub_folder(folder: Path) -> Path:
    """A repository in the Hub's layout with two configurations and a card that names them."""
    for config, first in (("small", 0), ("large", 100)):
        (folder / config).mkdir(parents=True)
        for split, count in (("train", 8), ("validation", 4)):
            rows = [(f"{config} {split} document {first + n}", n % 2) for n in range(count)]
            pd.DataFrame(rows, columns=["body", "label"]).to_parquet(
                folder / f"{config}/{split}-00000-of-00001.parquet"
            )
    card = "".join(
        f"- config_name: {c}\n  data_files:\n  - split: train\n    path: {c}/train-*\n  - split: validation\n    path: {c}/validation-*\n"
        for c in ("small", "large")
    )
    (folder / "README.md").write_text(f"---\nconfigs:\n{card}---\n# A data set\n")
    return folder


HUB = {"config": "large", "split": "train", "revision": REVISION, "text": "body"}
LARGE = [f"large train document {100 + n}" for n in range(8)]


def test_a_folder_in_the_hubs_layout_is_read_by_config_and_split(tmp_path):
    hub_folder(tmp_path / "copies/data-set")
    assert texts_of(tmp_path, hub="copies/data-set", **HUB) == LARGE
    assert len(texts_of(tmp_path, hub="copies/data-set", **{**HUB, "config": "*"})) == 16
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
    items = build_items(
        "x",
        parse_record(Task, task, "task"),
        load_kind("text_classification"),
        seed=1,
        root=tmp_path,
        where="task",
    )
    assert items.info["counts"] == {"train": 7, "test": 4, "validation": 1}
    facts = task_fingerprint(parse_record(Task, task, "task"), tmp_path, "task")
    assert [f["name"] for f in facts["splits"]["test"]["files"]] == [
        f"{c}/{s}-00000-of-00001.parquet"
        for c in ("large", "small")
        for s in ("train", "validation")
    ]


@pytest.mark.parametrize(
    ("key", "value"), [("split", "trian"), ("config", "huge"), ("text", "boddy")]
)
def test_a_wrong_split_config_or_column_of_the_hub_is_named(key, value, tmp_path):
    hub_folder(tmp_path / "data-set")
    with pytest.raises(InputError, match=value):
        texts_of(tmp_path, hub="data-set", **{**HUB, key: value})


def hub_cache(home: Path, repository: str) -> None:
    """What a download leaves in HF_HOME."""
    folder = home / "hub" / f"datasets--{repository.replace('/', '--')}"
    hub_folder(folder / "snapshots" / REVISION)
    (folder / "refs").mkdir()
    (folder / "refs/main").write_text(REVISION)


READ = """
import json, sys
from pathlib import Path
from lineage.data.corpus import collect_documents, source_fingerprint
from lineage.errors import InputError
from lineage.config.data import Corpus
from lineage.config.records import parse_record
for source in json.loads(sys.argv[1]):
    corpus = parse_record(Corpus, {"language": "en", "sources": [source]}, "corpus")
    try:
        documents = collect_documents(corpus, seed=1, root=Path.cwd(), where="corpus")
        texts = list(documents.table["text"])
        print(json.dumps([texts, source_fingerprint(corpus.sources[0], Path.cwd(), "corpus")]))
    except InputError as error:
        print(error, file=sys.stderr)
"""


def offline(home: Path, *sources: dict[str, str]) -> tuple[list, list[str]]:
    """What a process reads, and what it says: one of its own, since the Hub's library reads these settings when it is imported."""
    environment = {
        **os.environ,
        "PYTHONPATH": str(HERE),
        "HF_HOME": str(home),
        "HF_HUB_OFFLINE": "1",
        "OMP_NUM_THREADS": "1",
    }
    command = [sys.executable, "-c", READ, json.dumps(sources)]
    done = subprocess.run(
        command, cwd=home.parent, env=environment, capture_output=True, text=True, check=False
    )
    return [json.loads(line) for line in done.stdout.splitlines()], done.stderr.splitlines()


def test_the_hubs_cache_works_offline_and_an_empty_one_is_a_clear_error(tmp_path):
    hub_cache(tmp_path / "full", "some-body/data-set")
    answers, said = offline(
        tmp_path / "full", {"hub": "some-body/data-set", **HUB}, {"hub": "some-body/other", **HUB}
    )
    assert [texts for texts, _ in answers] == [LARGE]
    assert answers[0][1] == {
        "read": "hub",
        "hub": "some-body/data-set",
        "config": "large",
        "split": "train",
        "revision": REVISION,
    }
    assert not (tmp_path / "full/datasets").exists()
    assert len(said) == 1 and "some-body/other at 0123456789ab is not in the Hub's cache" in said[0]


def test_a_download_that_was_broken_off_is_not_taken_for_a_whole_one(tmp_path):
    """With a card a shard is missing; without one something was begun."""
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
    answers, said = offline(tmp_path / "full", *sources)
    assert [[text[:7] for text in texts] for texts, _ in answers] == 2 * [["shard 0", "shard 1"]], (
        said
    )
    (folders["card"] / "snapshots" / REVISION / "data/train-00001-of-00002.parquet").unlink()
    (folders["none"] / "blobs/0123.incomplete").touch()
    answers, said = offline(tmp_path / "full", *sources)
    assert (
        not answers and len(said) == 2 and all("is not in the Hub's cache" in line for line in said)
    )


def test_a_mirror_is_read_where_its_files_exist_and_that_is_recorded(tmp_path):
    hub_folder(tmp_path / "data-set")
    source = {"hub": "data-set", **HUB, "mirror": {"files": "copy.txt", "document_unit": "line"}}
    record = parse_record(Corpus, {"language": "en", "sources": [source]}, "corpus").sources[0]
    assert texts_of(tmp_path, **source) == LARGE
    assert source_fingerprint(record, tmp_path, "corpus")["read"] == "hub"
    (tmp_path / "copy.txt").write_text("from the copy\n")
    assert texts_of(
        tmp_path,
        **source | {"mirror": {"files": "copy.txt", "document_unit": "line", "text": "text"}},
    ) == ["from the copy"]
    assert source_fingerprint(record, tmp_path, "corpus")["read"] == "mirror"


def test_no_stage_leaves_a_cache_of_datasets_behind(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("HF_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("TMPDIR", str(tmp_path / "scratch"))
    (tmp_path / "scratch").mkdir()
    make(tmp_path / "project")
    for name in (("sources",), ("corpus", "general"), ("task", "mood")):
        assert stage(tmp_path / "project", *name, monkeypatch=monkeypatch, capsys=capsys)[0] == 0
    assert not (tmp_path / "home").exists()
    assert not list((tmp_path / "scratch").iterdir())


@pytest.mark.parametrize("suffix", [".csv", ".parquet", ".jsonl"])
def test_columns_that_nobody_asked_for_may_hold_anything(tmp_path: Path, suffix: str) -> None:
    """The index that pandas writes to a csv; a column that is empty in one file and text in the next; a key that only some lines have."""
    first = pd.DataFrame({"text": ["One text.", "Another."], "note": [None, None]})
    second = pd.DataFrame({"text": ["A third.", "A fourth."], "note": ["a", "b"]})
    for number, table in enumerate((first, second)):
        path = tmp_path / f"{number}{suffix}"
        table.to_csv(path) if suffix == ".csv" else save(table, path)
    if suffix == ".jsonl":
        with (tmp_path / "1.jsonl").open("a") as stream:
            stream.write('{"text": "A fifth.", "note": {"a": [1]}}\n')
    assert len(texts_of(tmp_path, files=f"*{suffix}", text="text")) == (
        5 if suffix == ".jsonl" else 4
    )


def test_a_column_without_text_is_refused(tmp_path: Path) -> None:
    pd.DataFrame({"text": [["a", "list"], ["of", "words"]]}).to_parquet(tmp_path / "a.parquet")
    with pytest.raises(InputError, match=r"row 1: column 'text' holds a list, not text"):
        texts_of(tmp_path, files="a.parquet", text="text")


def test_paths_may_lead_upwards_and_through_hidden_folders(tmp_path: Path) -> None:
    (tmp_path / ".data/sub").mkdir(parents=True)
    (tmp_path / ".data/a.txt").write_text("Some text.")
    (tmp_path / ".data/.hidden.txt").write_text("Not this.")
    assert texts_of(tmp_path, files=f"{tmp_path}/.data/*.txt") == ["Some text."]
    assert texts_of(tmp_path / ".data/sub", files="../*.txt") == ["Some text."]
    with pytest.raises(InputError, match="no file matches"):
        texts_of(tmp_path, files="a**b/*.txt")
