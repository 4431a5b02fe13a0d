"""A study is drafted from the user's files, and its params.yaml is accepted by the checks."""

import gzip
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest

from flows.new_study import draft_study, parse_task_option
from lineage.config.records import parse_yaml, read_yaml
from lineage.data.inspection import infer_language, infer_max_words
from lineage.errors import InputError
from lineage.study.draft import to_yaml
from lineage.synthetic.grammar import generate_documents
from tests.helpers.golden import data_folder
from tests.helpers.new_study import (
    NUM_DOCUMENTS,
    NUM_ROWS,
    check_in_folder,
    list_files,
    make_home,
    make_texts,
    make_tickets,
)
from tests.helpers.tasks import write_jsonl
from tests.helpers.tiny import mark_slow

ROOT = Path(__file__).parent.parent
CHINESE = "今天天气很好我们去公园看花也看到了许多小鸟在树上唱歌大家都很高兴"


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    return make_home(tmp_path, monkeypatch)


@pytest.fixture
def tickets(home: Path) -> Path:
    """A folder with tickets in train.csv too, which is the current folder."""
    make_tickets().to_csv("train.csv", index=False)
    return home


def draft_and_check(home: Path, *tasks: str, corpus: str = "texts/*.txt") -> dict[str, Any]:
    """Draft a study, check that nothing is written, and that the stage `sources` accepts it."""
    files = list_files(home)
    draft = draft_study(home / "studies/new", [corpus], list(tasks))
    assert list_files(home) == files
    check_in_folder(home / "studies/new", draft)
    tree = parse_yaml(draft.params_text, Path("params.yaml"))
    tree["lines"] = draft.lines
    return tree


def refusal(*tasks: str, corpus: str = "texts/*.txt") -> str:
    """Return the message with which a draft is refused."""
    with pytest.raises(InputError) as error:
        draft_study(Path("new"), [corpus], list(tasks))
    assert not Path("new").exists()
    return str(error.value)


def test_a_csv_and_a_folder_of_texts(tickets: Path) -> None:
    tree = draft_and_check(tickets, "queue=train.csv")
    assert tree["corpora"]["general"] == {
        "language": "en",
        "sources": [{"files": "../../texts/*.txt", "document_unit": "file"}],
    }
    task = tree["tasks"]["queue"]
    assert task["kind"] == "text_classification"
    assert task["files"] == {"train": "../../train.csv"}
    assert task["text"] == ["body"] and task["label"] == "queue"
    assert task["folds"] == 3 and task["max_words"] == 16
    assert tree["grid"]["adapt_models"] == []
    corpus_line, task_line, folds_line, *_ = tree["lines"]
    assert (
        "in 3 folds; each fold trains on about 64 of 120 rows, since one part is tested and another "
        "is validation; better add test=FILE"
    ) in folds_line
    assert re.fullmatch(
        r"corpus: 60 files of plain text, \d+\.\d kB, one document per file \(guessed\), "
        r"language en \(guessed from the letters; --language sets another\)",
        corpus_line,
    )
    assert task_line == (
        "task queue: text_classification, 120 rows, text = body, label = queue (3 labels; guessed "
        "from the columns id, body, queue, date)"
    )


@pytest.mark.usefixtures("tickets")
def test_the_draft_is_short_and_every_guess_has_a_comment() -> None:
    text = draft_study(Path("new"), ["texts/*.txt"], ["queue=train.csv"]).params_text
    lines = text.splitlines()
    assert len(lines) <= 36
    for key in ("language", "kind", "text", "label", "max_words"):
        (line,) = [line for line in lines if line.strip().startswith(f"{key}:")]
        assert "# guessed" in line


def test_the_grid_has_every_list_that_dvc_reads_and_no_other_key_than_the_demo(
    tickets: Path,
) -> None:
    tree = draft_and_check(tickets, "queue=train.csv")
    assert set(tree["grid"]) <= set(read_yaml(ROOT / "params.yaml")["grid"])
    wanted = re.findall(r"\$\{grid\.(\w+)\}", (ROOT / "dvc.yaml").read_text())
    assert set(wanted) <= set(tree["grid"]) and len(wanted) > 5


def test_similar_and_rare_labels_cause_a_warning_each(
    home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    table = make_tickets()
    table.loc[[3, 4], "queue"] = ["Billing", "legal"]
    table.to_csv("train.csv", index=False)
    draft_study(Path("new"), ["texts/*.txt"], ["queue=train.csv"])
    similar, rare = capsys.readouterr().err.splitlines()
    assert "tasks.queue.label: some labels" in similar and "'billing' (39)" in similar
    assert "tasks.queue.label: train has 1 label" in rare and "'legal' (1)" in rare
    assert "with folds" in rare


def test_words_without_a_tag_are_counted_in_one_message(home: Path) -> None:
    sentence = "Ann B-PER\nmet O\nBen B-PER\nin O\nRome B-LOC\n\n"
    Path("ner.conll").write_text(sentence * 40 + "late\n\n" + sentence + "again\n")
    assert (
        "ner.conll: 2 lines (241, 249): the first has 1 cells, and columns names 2: "
        "tokens, ner" in refusal("ner=ner.conll")
    )


def test_validation_test_and_unlabelled_files(home: Path) -> None:
    for seed, split in enumerate(("train", "validation", "test")):
        make_tickets(200, seed=seed).to_json(f"{split}.jsonl", orient="records", lines=True)
    Path("more.txt").write_text("\n".join(make_texts(3000, 20, seed=9)))
    options = "validation=validation.jsonl,test=test.jsonl,unlabelled=more.txt"
    tree = draft_and_check(home, f"queue=train.jsonl,{options}")
    assert list(tree["tasks"]["queue"]["files"]) == ["train", "validation", "test", "unlabelled"]
    assert "folds" not in tree["tasks"]["queue"]
    assert tree["grid"]["adapt_tasks"] == ["queue"]
    assert tree["grid"]["label_counts"] == [100, "all"]
    assert "test: 200" in tree["lines"][1]


@pytest.mark.parametrize(
    ("values", "is_group"),
    [
        ([f"doc {number % 12}" for number in range(60)], True),
        ([f"doc {number % 4}" for number in range(60)], False),
        (["the long one"] * 20 + [f"doc {number}" for number in range(40)], False),
        ([""] + [f"doc {number % 12}" for number in range(59)], False),
    ],
    ids=["twelve documents", "too few", "one is large", "one is missing"],
)
def test_rows_of_a_document_stay_together(tickets: Path, values: list[str], is_group: bool) -> None:
    table = make_tickets()[:60].assign(document=values)
    table.to_csv("grouped.csv", index=False)
    params = draft_and_check(tickets, "mood=grouped.csv")
    assert params["tasks"]["mood"].get("group") == ("document" if is_group else None)
    table.rename(columns={"document": "source_book"}).to_csv("books.csv", index=False)
    draft = draft_study(Path("books"), ["texts/*.txt"], ["mood=books.csv"])
    assert ("group: source_book" in draft.params_text) == is_group
    test = table.drop(columns="document")
    test.to_csv("without.csv", index=False)
    draft = draft_study(Path("other"), ["texts/*.txt"], ["mood=grouped.csv,test=without.csv"])
    assert "group:" not in draft.params_text, "the test file has no such column"


@pytest.mark.usefixtures("home")
@pytest.mark.parametrize("suffix", ["csv", "tsv", "jsonl", "parquet", "csv.gz", "csv.zst"])
def test_formats_of_tables(suffix: str) -> None:
    table = make_tickets()
    path = Path(f"train.{suffix}")
    if suffix == "jsonl":
        table.to_json(path, orient="records", lines=True)
    elif suffix == "parquet":
        table.to_parquet(path)
    elif suffix == "csv.gz":
        path.write_bytes(gzip.compress(table.to_csv(index=False).encode()))
    elif suffix == "csv.zst":
        with pa.output_stream(str(path), compression="zstd") as stream:
            stream.write(table.to_csv(index=False).encode())
    else:
        table.to_csv(path, index=False, sep="\t" if suffix == "tsv" else ";")
    draft = draft_study(Path("new"), ["texts/*.txt"], [f"queue={path}"])
    task = parse_yaml(draft.params_text, Path("params.yaml"))["tasks"]["queue"]
    assert (task["text"], task["label"]) == (["body"], "queue")


@pytest.mark.parametrize(("suffix", "separator"), [("conll", " "), ("txt", "\t"), ("tsv", " ")])
def test_words_with_tags_in_columns(home: Path, suffix: str, separator: str) -> None:
    sentence = [("Anna", "NNP", "B-PER"), ("lives", "VBZ", "O"), ("in", "IN", "O")]
    blocks = []
    for number in range(40):
        rows = [*sentence, (f"Town{number}", "NNP", "B-LOC"), (".", ".", "O")]
        blocks.append("\n".join(separator.join(row) for row in rows))
    Path(f"train.{suffix}").write_text("-DOCSTART- -X- O\n\n" + "\n\n".join(blocks) + "\n")
    tree = draft_and_check(home, f"names=train.{suffix}")
    task = tree["tasks"]["names"]
    assert task["kind"] == "token_classification"
    assert task["columns"] == ["tokens", "pos", "chunk"]
    assert task["tokens"] == "tokens" and task["label"] == "chunk"
    assert "max_words" not in task


def test_conllu_has_its_own_columns(home: Path) -> None:
    rows = [f"{place}\tw{place}\tw\t{tag}\t_\t_\t0\troot\t_\t_" for place, tag in enumerate("ABAC")]
    Path("train.conllu").write_text(("# text = w\n" + "\n".join(rows) + "\n\n") * 30)
    tree = draft_and_check(home, "parts=train.conllu")
    assert tree["tasks"]["parts"]["label"] == "upos"


def test_a_folder_for_each_label(home: Path) -> None:
    for number, text in enumerate(make_texts(60)):
        folder = Path("reviews") / ("good" if number % 2 else "bad")
        folder.mkdir(parents=True, exist_ok=True)
        (folder / f"{number}.txt").write_text(text)
    tree = draft_and_check(home, "mood=reviews")
    task = tree["tasks"]["mood"]
    assert task["files"] == {"train": "../../reviews"} and task["document_unit"] == "file"
    assert task["text"] == ["text"] and task["label"] == "folder"
    assert "2 labels" in tree["lines"][1]


def test_chinese_corpus_and_task(home: Path) -> None:
    rng = np.random.default_rng(1)
    letters = np.array(list(CHINESE))
    texts = ["".join(rng.choice(letters, 40)) for _ in range(900)]
    pd.DataFrame({"title": texts[:300], "text": [t + t for t in texts[300:600]]}).to_parquet(
        "zh.parquet"
    )
    pd.DataFrame({"text": texts[600:800], "label": ["好", "坏"] * 100}).to_csv(
        "train.csv", index=False
    )
    tree = draft_and_check(home, "mood=train.csv", corpus="zh.parquet")
    general = tree["corpora"]["general"]
    assert general["language"] == "zh" and general["sources"][0]["text"] == "text"
    assert "language" not in tree["tasks"]["mood"]
    assert tree["tasks"]["mood"]["max_words"] == 48


@pytest.mark.parametrize(
    ("text", "language"),
    [
        ("Good morning, New York", "en"),
        (CHINESE, "zh"),
        ("これは日本語の文章です。漢字もある", "ja"),
        ("오늘은 날씨가 좋습니다", "ko"),
        ("วันนี้อากาศดีมาก", "th"),
        ("Сегодня хорошая погода", "ru"),
        ("", "en"),
    ],
)
def test_language_is_guessed_by_the_script(text: str, language: str) -> None:
    assert infer_language([text]) == language


def test_max_words_covers_nearly_all_texts() -> None:
    texts = ["a " * 20] * 96 + ["a " * 500] * 4
    assert infer_max_words([texts], "en") == (24, 0.96)
    assert infer_max_words([["a " * 500]], "en") == (256, 0.0)


def test_documents_of_one_text_file(tickets: Path) -> None:
    documents = list(generate_documents(NUM_DOCUMENTS, seed=1))
    Path("blocks.txt").write_text("\n \n".join(documents))
    Path("lines.txt").write_text("\n".join(text.replace("\n", " ") for text in documents))
    for name, unit in (("blocks", "blank_line"), ("lines", "line")):
        draft = draft_study(Path("new"), [f"{name}.txt"], ["queue=train.csv"])
        tree = parse_yaml(draft.params_text, Path("params.yaml"))
        assert tree["corpora"]["general"]["sources"][0]["document_unit"] == unit


def test_the_vocabulary_fits_a_small_corpus(tickets: Path) -> None:
    for path in sorted(Path("texts").iterdir())[20:]:
        path.unlink()
    tree = draft_and_check(tickets, "queue=train.csv")
    train_bytes = sum(path.stat().st_size for path in Path("texts").iterdir()) * 0.9
    assert 500 <= tree["defaults"]["tokenizer"]["vocab_size"] <= train_bytes / 20
    assert tree["budget"]["body_parameters"] == 400_000


def test_long_texts_get_more_positions(home: Path) -> None:
    table = make_tickets().assign(body=make_texts(NUM_ROWS, 180))
    table.to_csv("train.csv", index=False)
    tree = draft_and_check(home, "queue=train.csv")
    assert tree["tasks"]["queue"]["max_words"] == 192
    for name in ("gpt_modern", "bert_modern"):
        assert tree["models"][name]["architecture"]["max_positions"] == 256
        assert tree["models"][name]["pretrain"]["seq_len"] == 256


def test_all_comments_stand_after_what_is_read(home: Path) -> None:
    """A name with a # or a quotation mark neither ends a value nor begins a comment."""
    table = make_tickets().rename(columns={"body": 'the # "body"', "queue": "label: #1"})
    table.to_csv("train #1.csv", index=False)
    task = draft_and_check(home, "queue=train #1.csv")["tasks"]["queue"]
    assert task["text"] == ['the # "body"'] and task["label"] == "label: #1"


def test_large_tables_are_limited(home: Path) -> None:
    make_tickets(2500).to_csv("train.csv", index=False)
    tree = draft_and_check(home, "queue=train.csv")
    assert tree["tasks"]["queue"]["limit"] == {"train": 2000}
    assert any("2,000 rows of train are used" in line for line in tree["lines"])


def test_a_label_is_found_in_a_sorted_table(home: Path) -> None:
    make_tickets(6000).sort_values("queue").to_parquet("train.parquet")
    tree = draft_and_check(home, "tickets=train.parquet")
    assert tree["tasks"]["tickets"]["label"] == "queue"


def test_quotation_marks_that_are_part_of_texts(home: Path) -> None:
    table = make_tickets()
    lines = [f'{row.queue}\t"{row.body}' for row in table.itertuples()]
    Path("train.tsv").write_text("queue\tbody\n" + "\n".join(lines) + "\n")
    assert draft_and_check(home, "queue=train.tsv")["tasks"]["queue"]["csv_quoting"] is False


def test_options_name_kind_and_columns(home: Path) -> None:
    table = make_tickets().assign(team=[f"t{row % 4}" for row in range(NUM_ROWS)])
    table["stars"] = [row % 5 for row in range(NUM_ROWS)]
    table["subject of it"] = make_texts(NUM_ROWS, seed=5)
    table.to_csv("train.csv", index=False)
    tree = draft_and_check(
        home,
        "a=train.csv,text=body,label=team",
        "b=train.csv,text=subject of it,text=body,label=stars,kind=text_regression",
    )
    assert tree["tasks"]["a"]["label"] == "team"
    assert tree["tasks"]["b"]["text"] == ["subject of it", "body"]
    assert tree["tasks"]["b"]["kind"] == "text_regression"
    assert "guessed" not in tree["lines"][1]


def test_metadata_in_objects_is_neither_text_nor_label(home: Path) -> None:
    table = make_tickets()[["body", "queue"]]
    metadata = [{"part": ["a", "b"][row % 2], "note": f"row {row}"} for row in range(len(table))]
    table["about"] = metadata
    table["kind"] = [{"part": value["part"]} for value in metadata]
    table.to_json("train.jsonl", orient="records", lines=True)
    task = draft_and_check(home, "tickets=train.jsonl")
    assert task["tasks"]["tickets"]["text"] == ["body"]
    assert task["tasks"]["tickets"]["label"] == "queue"
    assert "or about" not in (home / "studies/new/params.yaml").read_text()


def test_a_given_language_is_no_guess(tickets: Path) -> None:
    draft = draft_study(Path("new"), ["texts/*.txt"], ["queue=train.csv"], "de")
    assert "    language: de\n" in draft.params_text
    assert "language de," in draft.lines[0] + ","


def test_a_test_file_beside_the_training_file_is_mentioned(tickets: Path) -> None:
    make_tickets(seed=2).to_csv("test.csv", index=False)
    lines = draft_study(Path("new"), ["texts/*.txt"], ["queue=train.csv"]).lines
    assert lines[-1] == (
        "task queue: test.csv lies beside train.csv; to test on it, add test=test.csv"
    )


def test_several_sources_of_text(tickets: Path) -> None:
    pd.DataFrame({"id": range(50), "page": make_texts(50, 30, seed=7)}).to_csv("more.csv")
    draft = draft_study(
        tickets / "other", ["texts/*.txt", "more.csv,text=page"], ["queue=train.csv"]
    )
    check_in_folder(tickets / "other", draft)
    tree = parse_yaml(draft.params_text, Path("params.yaml"))
    assert tree["corpora"]["general"]["sources"] == [
        {"files": "../texts/*.txt", "document_unit": "file"},
        {"files": "../more.csv", "text": "page"},
    ]
    assert "no column 'pages'; its columns are id, page" in refusal(
        "queue=train.csv", corpus="more.csv,text=pages"
    )


def test_missing_options_are_refused(home: Path) -> None:
    with pytest.raises(InputError, match=r"--corpus is missing"):
        draft_study(Path("new"), [], ["queue=train.csv"])
    with pytest.raises(InputError, match=r"--task is missing"):
        draft_study(Path("new"), ["texts/*.txt"], [])


@pytest.mark.parametrize(
    ("option", "message"),
    [
        ("train.csv", "does not begin with NAME=FILE"),
        ("My-Task=train.csv", "does not begin with NAME=FILE"),
        ("queue=", "no file is named"),
        ("queue=train.csv,labl=queue", "unknown key 'labl'; did you mean 'label'?"),
        ("queue=train.csv,queue", "'queue' is not KEY=VALUE"),
    ],
)
def test_a_misshapen_option_is_refused(option: str, message: str) -> None:
    with pytest.raises(InputError) as error:
        parse_task_option(option)
    assert message in str(error.value)


def test_files_that_are_missing_or_cannot_be_read(tickets: Path) -> None:
    Path("notes").mkdir()
    Path("notes/a.md").write_text("text")
    assert f"no file matches 'trian.csv' in {tickets}; did you mean 'train.csv'?" in refusal(
        "queue=trian.csv"
    )
    assert "there is no 'data': the folder" in refusal("queue=data/train.csv")
    Path("notes/b.txt").write_text("text")
    assert "matches files of 2 formats (.md, .txt)" in refusal("queue=train.csv", corpus="notes/*")
    Path("notes/b.txt").unlink()
    assert "the folder notes holds 1 .md" in refusal("queue=train.csv", corpus="notes/*.txt")
    assert "format '.md', which is not read" in refusal("queue=train.csv", corpus="notes/*.md")
    Path("empty.csv").touch()
    assert "empty.csv is empty" in refusal("queue=empty.csv")
    Path("header.csv").write_text("text,label\n")
    assert "holds no rows" in refusal("queue=header.csv")
    Path("picture.txt").write_bytes(b"\x89PNG\r\n\x00\x00\x00\rIHDR")
    assert "is not a text file" in refusal("queue=train.csv", corpus="picture.txt")
    Path("table.xlsx").write_bytes(b"PK\x03\x04\x00\x00")
    assert "format '.xlsx', which is not read" in refusal("queue=table.xlsx")
    Path("latin.csv").write_bytes("text,label\ncafé,a\n".encode("latin-1"))
    message = refusal("queue=latin.csv")
    assert "not UTF-8" in message and "iconv" in message
    Path("broken.parquet").write_bytes(b"PAR1 and no more")
    assert "cannot be read" in refusal("queue=broken.parquet")


def test_tables_without_a_recognisable_label(home: Path) -> None:
    table = make_tickets()
    table[["id", "body"]].to_csv("train.csv", index=False)
    message = refusal("queue=train.csv")
    assert "no column looks like a label" in message and "label=COLUMN" in message
    table[["id", "queue"]].to_csv("train.csv", index=False)
    assert "no column looks like a text" in refusal("queue=train.csv")
    table[["body", "queue"]].to_csv("train.csv", index=False, header=False)
    assert "looks like a row, not like the names" in refusal("queue=train.csv")
    assert "there is no column 'labels'" in refusal("queue=train.csv,label=labels")
    table[["body"]].assign(label="open").to_csv("train.csv", index=False)
    message = refusal("queue=train.csv")
    assert "column 'label' is named like a label, but has the same value in all rows" in message
    Path("lines.txt").write_text("\n".join(table["body"]))
    assert "has no columns of words and tags" in refusal("queue=lines.txt")


def test_a_kind_that_does_not_fit_the_columns(tickets: Path) -> None:
    for kind, message in (
        ("clasification", "did you mean 'text_classification'?"),
        ("translation", "the columns of this kind are not guessed"),
        ("text_regression", "no column looks like a score"),
        ("token_classification", "needs a column of words and one with a tag for each"),
        ("multiple_choice", "needs a column for each choice"),
        ("minimal_pairs", "needs the columns good, bad"),
    ):
        assert message in refusal(f"queue=train.csv,kind={kind}")


def test_columns_that_look_alike(home: Path) -> None:
    table = make_tickets().assign(team=[f"t{row % 4}" for row in range(NUM_ROWS)])
    table.to_csv("train.csv", index=False)
    message = refusal("mood=train.csv")
    assert "2 columns look like labels: 'queue', 'team'" in message
    assert "such as --task mood=FILE,label=team" in message
    table["reply"] = make_texts(NUM_ROWS, seed=3)
    table.rename(columns={"body": "first"}).to_csv("train.csv", index=False)
    message = refusal("queue=train.csv")
    assert "2 columns look like texts: first, reply" in message
    assert "text=first,text=reply" in message


def test_folders_that_are_no_labels(home: Path) -> None:
    assert "lie in one folder" in refusal("queue=texts")
    for split in ("train", "test"):
        for label in ("a", "b"):
            Path(f"{split}/{label}").mkdir(parents=True)
            Path(f"{split}/{label}/1.txt").write_text("a text")
    Path("all").mkdir()
    for split in ("train", "test"):
        Path(split).rename(f"all/{split}")
    message = refusal("queue=all")
    assert "(test, train)" in message and "test=reviews/test" in message


def test_messages_never_show_texts(home: Path) -> None:
    secret = "my private letter to a friend, which nobody may read"
    Path("train.csv").write_text(f"{secret},other\n" + "a text of words,b text\n" * 30)
    assert secret[:30] not in refusal("queue=train.csv")


def test_a_corpus_that_is_too_small(tickets: Path) -> None:
    Path("small.txt").write_text("\n".join(make_texts(60)))
    assert "too few to train a model" in refusal("queue=train.csv", corpus="small.txt")


def test_two_tasks_of_one_name(home: Path) -> None:
    message = refusal("queue=train.csv", "queue=test.csv")
    assert "2 tasks have this name" in message


@pytest.mark.parametrize(
    "value",
    [
        "yes",
        "null",
        "1",
        "a b",
        "#x",
        "a: b",
        "ünï",
        'say "x"',
        "-",
        "a\\b",
        "好",
        "a\u2028b",
        "x_1",
    ],
)
def test_yaml_reads_back_what_is_written(value: str) -> None:
    tree = {"key": [value, {value: True}], "n": 20_000}
    assert parse_yaml(f"top: {to_yaml(tree)}", Path("x")) == {"top": tree}


REAL_TASKS = {
    "cola": ("text_classification", {"text": ["sentence"], "label": "label"}),
    "copa-balanced": (
        "multiple_choice",
        {"text": ["premise"], "choices": ["choice1", "choice2"], "label": "label"},
    ),
    "qnli-dev": ("text_classification", {"text": ["question", "sentence"], "label": "label"}),
    "snli-small": ("text_classification", {"text": ["premise", "hypothesis"], "label": "label"}),
    "stsb": ("text_regression", {"text": ["sentence1", "sentence2"], "label": "score"}),
    "wnut17": ("token_classification", {"tokens": "tokens", "label": "ner"}),
    "zh-afqmc": ("text_classification", {"text": ["text1", "text2"], "label": "label"}),
}


@pytest.mark.parametrize(
    "name",
    [
        *("cola", "wnut17", "zh-afqmc"),
        *mark_slow(["copa-balanced", "qnli-dev", "snli-small", "stsb"]),
    ],
)
def test_real_tasks_are_recognised(name: str, tmp_path: Path) -> None:
    data = data_folder()
    corpus = "zh-corpus/validation" if name.startswith("zh") else "corpus-small/validation"
    draft = draft_study(
        tmp_path / "new",
        [f"{data}/{corpus}.parquet"],
        [f"task={data}/{name}/train.parquet,test={data}/{name}/test.parquet"],
    )
    task = parse_yaml(draft.params_text, Path("params.yaml"))["tasks"]["task"]
    kind, columns = REAL_TASKS[name]
    assert task["kind"] == kind
    assert {key: task[key] for key in columns} == columns


@pytest.mark.parametrize(
    ("name", "labels"), [("sick", "'entailment', 'relatedness'"), ("conll2000", "'pos', 'chunk'")]
)
def test_real_tables_with_two_labels_are_refused(name: str, labels: str) -> None:
    data = data_folder()
    message = refusal(
        f"task={data}/{name}/train.parquet", corpus=f"{data}/corpus-small/validation.parquet"
    )
    assert f"2 columns look like labels: {labels}" in message


FIRST, SECOND, THIRD = (make_texts(NUM_ROWS, seed=seed) for seed in (1, 2, 3))
# Files of each kind, a row by its number, and the block of the task that is guessed from them.
KINDS: dict[str, tuple[str, Callable[[int], dict[str, Any]], dict[str, Any]]] = {
    "lists of words and tags": (
        "jsonl",
        lambda row: {"doc": "a", "words": ["Anna", "is", f"w{row}"], "ner": ["B-PER", "O", "O"]},
        {"kind": "token_classification", "tokens": "words", "label": "ner"},
    ),
    "spans of characters": (
        "jsonl",
        lambda row: {"text": f"Anna lives in {row}", "label": [[0, 4, "PER"]] if row % 2 else []},
        {"kind": "token_classification", "tokens": "text", "label": "label"},
    ),
    "pairs of texts": (
        "csv",
        lambda row: {"sentence1": FIRST[row], "sentence2": SECOND[row], "same": row % 2},
        {"kind": "text_classification", "text": ["sentence1", "sentence2"], "max_words": 24},
    ),
    "scores": (
        "csv",
        lambda row: {"text": FIRST[row], "score": [0.5, 1.25, 3.0, 4.5][row % 4]},
        {"kind": "text_regression"},
    ),
    "whole numbers as scores": (
        "csv",
        lambda row: {"text": FIRST[row], "score": 1 + row % 4},
        {"kind": "text_regression"},
    ),
    "choices": (
        "csv",
        lambda row: {
            "premise": FIRST[row],
            "choice1": SECOND[row],
            "choice2": THIRD[row],
            "label": row % 2,
        },
        {"kind": "multiple_choice"},
    ),
    "minimal pairs": (
        "csv",
        lambda row: {"good": FIRST[row], "bad": SECOND[row]},
        {"kind": "minimal_pairs", "files": {"test": "../../train.csv"}, "folds": None},
    ),
    "questions": (
        "csv",
        lambda row: {
            "question": FIRST[row],
            "context": FIRST[row],
            "answers": FIRST[row].split()[0],
        },
        {"kind": "extractive_qa"},
    ),
    "documents and summaries": (
        "csv",
        lambda row: {
            "id": row,
            "article": f"{FIRST[row]} {SECOND[row]}",
            "summary": FIRST[row][:20],
        },
        {
            "kind": "summarization",
            "source": "article",
            "target": "summary",
            "metric": ["rougeL", "rouge1", "rouge2"],
            "folds": 3,
        },
    ),
    "headlines with a topic": (
        "csv",
        lambda row: {"text": FIRST[row], "headline": FIRST[row][:20], "topic": "abc"[row % 3]},
        {"kind": "text_classification", "text": ["text"], "label": "topic"},
    ),
    "pairs of words": (
        "csv",
        lambda row: {"word1": f"word{row}", "word2": f"word{NUM_ROWS - row}", "score": row / 24},
        {"kind": "word_similarity", "words": ["word1", "word2"]},
    ),
}


@pytest.mark.parametrize("name", KINDS)
def test_the_kind_of_task_is_guessed_from_the_columns(name: str, home: Path) -> None:
    suffix, make_row, expected = KINDS[name]
    rows = [make_row(row) for row in range(NUM_ROWS)]
    if suffix == "csv":
        pd.DataFrame(rows).to_csv("train.csv", index=False)
    else:
        write_jsonl(Path("train.jsonl"), rows)
    task = draft_and_check(home, f"mine=train.{suffix}")["tasks"]["mine"]
    assert {key: task.get(key) for key in expected} == expected


@pytest.mark.parametrize("change", [{"pos": "DET NOUN VERB VERB"}, {"pos": None}])
@pytest.mark.parametrize("num_rows", [5, NUM_ROWS])
def test_a_row_with_a_tag_too_many_is_named(change: Any, num_rows: int, home: Path) -> None:
    rows = [{"words": f"The dog {row}", "pos": "DET NOUN VERB"} for row in range(num_rows)]
    rows[3] |= change
    pd.DataFrame(rows).to_csv("train.csv", index=False)
    problem = "3 tokens in 'words' and 4 tags in 'pos'" if change["pos"] else "an entry is blank"
    assert problem in (message := refusal("tags=train.csv")) and "row 4: " in message


def test_summaries_get_models_that_write_and_the_references_of_test(home: Path) -> None:
    rows = [{"dialogue": 3 * f"{FIRST[row]} ", "summary": FIRST[row]} for row in range(NUM_ROWS)]
    pd.DataFrame(rows).to_csv("train.csv", index=False)
    test = pd.DataFrame(rows[:30]).rename(columns={"summary": "summary1"})
    test.assign(summary2="a summary", other=1).to_csv("test.csv", index=False)
    tree = draft_and_check(home, "talks=train.csv,test=test.csv")
    task = tree["tasks"]["talks"]
    assert task["source"] == "dialogue" and task["target"] == "summary"
    assert task["references"] == ["summary1", "summary2"]
    assert tree["grid"]["models"] == ["gpt_modern", "seq2seq"]
    assert tree["grid"]["adapt_tasks"] == []
    named = "talks=train.csv,test=test.csv,kind=summarization,text=dialogue,label=summary"
    assert draft_study(home / "studies/other", ["texts/*.txt"], [named]).params_text.count(
        "references: [summary1, summary2]"
    )
    message = refusal("talks=train.csv,kind=summarization,text=dialogue,text=summary")
    assert "kind=summarization needs a column of documents and one of their summaries" in message


def test_a_long_summary_gets_room_to_be_written(home: Path) -> None:
    rows = [
        {"article": 5 * f"{FIRST[row]} ", "abstract": 2 * f"{FIRST[row]} "}
        for row in range(NUM_ROWS)
    ]
    rows[7]["abstract"] = " ".join(f"w{number}" for number in range(41))
    pd.DataFrame(rows).to_csv("train.csv", index=False)
    make_tickets().to_csv("tickets.csv", index=False)
    tree = draft_and_check(home, "news=train.csv", "queue=tickets.csv")
    assert tree["models"]["seq2seq"] == {"evaluate": {"translation": {"max_new_tokens": 150}}}
    assert tree["grid"]["models"][-1] == "seq2seq" and "elmo" in tree["grid"]["models"]
