"""A kept system answers new items as it answered the test items of its evaluation."""

import codecs
import dataclasses
import json
import shutil
from itertools import chain
from pathlib import Path
from typing import Any

import datasets
import numpy as np
import pandas as pd
import pytest
from typer.testing import CliRunner

from flows.cli import app
from lineage.answers.tags import TagsAnswer
from lineage.config.data import Task
from lineage.config.records import read_yaml
from lineage.data.task_data import TaskData
from lineage.errors import InputError
from lineage.evaluation.evaluate import list_kept_systems
from lineage.methods.saved import SystemRecord, read_record
from lineage.serving import predict
from lineage.serving.card import format_card
from lineage.serving.export import export_system
from lineage.serving.predict import SPANS_TYPE, Predictor, predict_file, prediction_fields
from lineage.serving.systems import KeptSystem, choose_system, format_systems, write_systems
from lineage.tasks.base import load_kind
from tests.helpers import tiny
from tests.helpers.kept_systems import (
    CASES,
    NUM_ITEMS,
    Evaluated,
    evaluate_case,
    evaluate_tfidf,
    package_case,
    prepare_case,
)
from tests.helpers.tasks import build_task_items, write_jsonl
from tests.helpers.user_project import write_params


@pytest.mark.parametrize("name", CASES)
def test_predicting_the_test_file_gives_the_stored_predictions(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Chunks, other columns and their order make no difference, and labels are not needed."""
    monkeypatch.setattr(predict, "ROWS_PER_CHUNK", 5)
    evaluated = evaluate_case(name, tmp_path)
    label_keys = {
        getattr(evaluated.task, key) for key in load_kind(evaluated.task.kind).label_columns
    }
    new = evaluated.test.drop(columns=list(label_keys - {None}))
    new = new[new.columns[::-1]].assign(note="?")
    new_file = write_jsonl(tmp_path / "new.jsonl", new)
    has_tags = load_kind(evaluated.task.kind).answer.are_words
    head = "bilstm_crf" if has_tags else "bilstm"
    expected = {"gpt-frozen-linear", "gpt-finetuned", "tfidf"}
    if "bilstm" in evaluated.task.probes:
        expected.add(f"gpt-frozen-{head}")
    if load_kind(evaluated.task.kind).suits_setfit(evaluated.task):
        expected.add("gpt-setfit")
    assert set(evaluated.systems) == expected
    for system, kept in evaluated.systems.items():
        exported = tmp_path / "exported" / system
        export_system(kept, evaluated.task, exported)
        out = tmp_path / f"{system}.jsonl"
        predict_file(new_file, out, task=None, system=str(exported))
        found = pd.read_json(out, lines=True, dtype=False)
        assert list(found)[: len(new.columns)] == list(new)
        stored = evaluated.predictions[system]
        stored = stored[stored["split"] == "test"].set_index("id")
        rows = [int(item_id.removeprefix("test-")) - 1 for item_id in stored.index]
        assert len(rows) == NUM_ITEMS["test"]
        answers = found["prediction"].iloc[rows]
        if evaluated.task.kind == "text_regression":
            np.testing.assert_allclose(answers, stored["prediction"].astype(float), atol=1e-5)
            continue
        assert answers.astype(str).tolist() == stored["prediction"].tolist(), system
        for column in [column for column in stored if column.startswith("p ")]:
            np.testing.assert_allclose(found[column].iloc[rows], stored[column], atol=1e-5)
        if kept.record.labels and system == "tfidf" and not has_tags:
            labels = [f"p {label}" for label in stored["label"]]
            own = [found[column].iloc[row] for row, column in zip(rows, labels, strict=True)]
            np.testing.assert_allclose(own, stored["score"], atol=1e-5)


def predict_lines(
    evaluated: Evaluated, folder: Path, file: Path, *, out: str = "out.csv", **options: Any
) -> pd.DataFrame:
    """Predict a file with TF-IDF and return what was written."""
    if not (folder / "tfidf").is_dir():
        export_system(evaluated.systems["tfidf"], evaluated.task, folder / "tfidf")
    predict_file(file, folder / out, task=None, system=str(folder / "tfidf"), **options)
    if out.endswith(".parquet"):
        return pd.read_parquet(folder / out)
    if out.endswith(".jsonl"):
        return pd.read_json(folder / out, lines=True, dtype=False)
    return pd.read_csv(folder / out, dtype=str, sep="\t" if out.endswith(".tsv") else ",")


def test_every_format_of_input_and_output_gives_the_same_answers(
    evaluated_texts: Evaluated, tmp_path: Path
) -> None:
    texts = ["one , text", 'two "quoted" texts', "drei\u00e4 \u4e00"]
    table = pd.DataFrame({"number": [3, 1, 2], "review": texts})
    table.to_csv(tmp_path / "new.csv", index=False)
    table.to_csv(tmp_path / "new.tsv", index=False, sep="\t")
    table.to_csv(tmp_path / "new.csv.gz", index=False)
    table.to_parquet(tmp_path / "new.parquet")
    write_jsonl(tmp_path / "new.jsonl", table)
    (tmp_path / "new.txt").write_text("\n".join(texts) + "\n")
    answers = []
    for name in ("new.csv", "new.tsv", "new.csv.gz", "new.parquet", "new.jsonl", "new.txt"):
        for out in ("a.csv", "a.tsv", "a.jsonl", "a.parquet"):
            found = predict_lines(evaluated_texts, tmp_path, tmp_path / name, out=out)
            assert found["review"].tolist() == texts, (name, out)
            if name != "new.txt":
                assert found["number"].astype(int).tolist() == [3, 1, 2]
            answers.append(found[["prediction", "p good"]].astype({"p good": float}))
    for other in answers[1:]:
        pd.testing.assert_frame_equal(answers[0], other)


def test_a_spreadsheet_computes_no_cell_of_the_output(
    evaluated_texts: Evaluated, tmp_path: Path
) -> None:
    link = '=HYPERLINK("http://example.org")'
    table = pd.DataFrame({"review": [link, "good"], "=1+1": ["-1,5", "@SUM(1)"]})
    table.to_csv(tmp_path / "new.csv", index=False)
    for out in ("out.csv", "out.tsv"):
        found = predict_lines(evaluated_texts, tmp_path, tmp_path / "new.csv", out=out)
        assert [*found.review] == [f"'{link}", "good"]
        assert [*found["'=1+1"]] == ["-1,5", "'@SUM(1)"]
    found = predict_lines(evaluated_texts, tmp_path, tmp_path / "new.csv", out="out.jsonl")
    assert [*found.review] == [link, "good"]


def test_a_csv_with_semicolons_is_answered_with_semicolons(
    evaluated_texts: Evaluated, tmp_path: Path
) -> None:
    texts = ["one , text", "two; texts"]
    table = pd.DataFrame({"review": texts, "price": ["1,5", "2,0"]})
    table.to_csv(tmp_path / "new.csv", index=False, sep=";")
    predict_lines(evaluated_texts, tmp_path, tmp_path / "new.csv")
    written = pd.read_csv(tmp_path / "out.csv", sep=";", dtype=str)
    assert written["review"].tolist() == texts and written["price"].tolist() == ["1,5", "2,0"]
    found = predict_lines(evaluated_texts, tmp_path, tmp_path / "new.csv", out="out.jsonl")
    assert written["prediction"].tolist() == found["prediction"].tolist()
    found = predict_lines(evaluated_texts, tmp_path, tmp_path / "new.csv", out="out.tsv")
    assert found["review"].tolist() == texts


def test_a_csv_of_excel_keeps_its_byte_order_mark(
    evaluated_texts: Evaluated, tmp_path: Path
) -> None:
    table = pd.DataFrame({"review": ["déjà vu"]})
    for encoding in ("utf-8-sig", "utf-8"):
        table.to_csv(tmp_path / "new.csv", index=False, encoding=encoding)
        for out, has_mark in (("out.csv", encoding == "utf-8-sig"), ("out.jsonl", False)):
            predict_lines(evaluated_texts, tmp_path, tmp_path / "new.csv", out=out)
            written = (tmp_path / out).read_bytes()
            assert written.startswith(codecs.BOM_UTF8) == has_mark


@pytest.fixture
def tagger(tmp_path: Path) -> Evaluated:
    """TF-IDF for sentences in files with one word per line, and the file of the test items."""
    task, _, test = prepare_case("tags", tmp_path)
    files = {}
    for split in NUM_ITEMS:
        rows = pd.read_json(tmp_path / f"{split}.jsonl", lines=True)
        sentences = [
            "".join(f"{word} X {tag}\n" for word, tag in zip(row.words, row.tags, strict=True))
            for row in rows.itertuples()
        ]
        files[split] = f"{split}.conll"
        (tmp_path / files[split]).write_text("-DOCSTART- X O\n\n" + "\n".join(sentences))
    task = dataclasses.replace(task, files=files, columns=("words", "pos", "tags"))
    items = build_task_items(tmp_path, task)
    kept, predictions = evaluate_tfidf(task, TaskData(items.info, items.splits), tmp_path / "kept")
    return Evaluated(task, tmp_path, test, {"tfidf": kept}, {"tfidf": predictions}, [], None)


def test_a_file_with_one_word_per_line_is_read_as_those_of_the_task(
    tagger: Evaluated, tmp_path: Path
) -> None:
    stored = tagger.predictions["tfidf"]
    expected = stored[stored["split"] == "test"]["prediction"].tolist()
    found = predict_lines(tagger, tmp_path, tmp_path / "test.conll", out="a.jsonl")
    assert found["words"].tolist() == tagger.test["words"].tolist()
    assert found["prediction"].tolist() == expected
    (tmp_path / "test.txt").write_text((tmp_path / "test.conll").read_text())
    words = [line.split(" ")[0] for line in (tmp_path / "test.conll").read_text().split("\n")]
    (tmp_path / "words.iob").write_text("\n".join(words))
    for name in ("test.txt", "words.iob"):
        found = predict_lines(tagger, tmp_path, tmp_path / name, out="b.jsonl")
        assert found["prediction"].tolist() == expected, name
    predict_file(
        tmp_path / "test.conll", tmp_path / "c.conll", task=None, system=str(tmp_path / "tfidf")
    )
    lines = (tmp_path / "c.conll").read_text().split("\n")
    assert [line.split("\t")[:3] for line in lines if line] == [
        line.split(" ")
        for line in (tmp_path / "test.conll").read_text().split("\n")
        if line and not line.startswith("-DOCSTART-")
    ]
    sentences = "\n".join(lines).strip().split("\n\n")
    tags = [" ".join(line.split("\t")[3] for line in one.split("\n")) for one in sentences]
    assert tags == expected


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("new.conll", b"a X O\nb X\n", "new.conll, line 2: it has 2 cells"),
        ("new.conll", b"", "new.conll is empty"),
        ("new.conll", b"a X O\n\xff X O\n", "new.conll is not UTF-8"),
    ],
)
def test_a_wrong_file_with_one_word_per_line_is_refused(
    name: str, content: bytes, message: str, tagger: Evaluated, tmp_path: Path
) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(InputError, match=message):
        predict_lines(tagger, tmp_path, tmp_path / name)


def test_a_blank_word_gets_no_tag_and_is_refused_in_a_file_of_words(
    tagger: Evaluated, tmp_path: Path
) -> None:
    (tmp_path / "new.conll").write_text("\tX\tO\n\n")
    with pytest.raises(InputError, match="a sentence has a blank word"):
        predict_lines(tagger, tmp_path, tmp_path / "new.conll", out="a.conll")
    assert not (tmp_path / "a.conll").exists()


def test_texts_in_lines_are_not_taken_for_one_word_per_line(
    tagger: Evaluated, tmp_path: Path
) -> None:
    (tmp_path / "new.txt").write_text("three words here\nand two\n" * 5)
    found = predict_lines(tagger, tmp_path, tmp_path / "new.txt")
    assert len(found) == 10
    with pytest.raises(InputError, match=r"must end in \.csv"):
        predict_lines(tagger, tmp_path, tmp_path / "new.txt", out="a.conll")


def test_types_of_a_parquet_file_are_kept(evaluated_texts: Evaluated, tmp_path: Path) -> None:
    table = pd.DataFrame(
        {
            "review": ["a b", "c d"],
            "when": pd.to_datetime(["2020-01-01", "2021-02-03"]),
            "value": [0.5, np.nan],
            "list": [[1, 2], []],
        }
    )
    table.to_parquet(tmp_path / "new.parquet")
    found = predict_lines(evaluated_texts, tmp_path, tmp_path / "new.parquet", out="o.parquet")
    assert found["when"].tolist() == table["when"].tolist()
    assert [list(values) for values in found["list"]] == [[1, 2], []]
    predict_lines(evaluated_texts, tmp_path, tmp_path / "new.parquet", out="o.jsonl")
    last = json.loads((tmp_path / "o.jsonl").read_text().splitlines()[-1])
    assert (last["value"], last["list"]) == (None, [])


def test_class_labels_that_are_carried_through_stay_as_they_are(
    evaluated_texts: Evaluated, tmp_path: Path
) -> None:
    """`datasets` writes them as numbers, and their names beside the table."""
    tags = datasets.Sequence(datasets.ClassLabel(names=["O", "B-PER"]))
    features = datasets.Features({"review": datasets.Value("string"), "ner_tags": tags})
    rows = {"review": ["a fine day", "rain"], "ner_tags": [[0, 1, 0], [0]]}
    datasets.Dataset.from_dict(rows, features).to_parquet(tmp_path / "new.parquet")
    found = predict_lines(evaluated_texts, tmp_path, tmp_path / "new.parquet", out="o.parquet")
    assert [[*cell] for cell in found["ner_tags"]] == [[0, 1, 0], [0]]


def test_a_line_of_spaces_is_refused_where_a_row_has_several_cells(
    evaluated_texts: Evaluated, tmp_path: Path
) -> None:
    """A row that is left out of the answers would shift those after it."""
    (tmp_path / "new.csv").write_text("id,review\n1,a b\n   \n2,c\n")
    with pytest.raises(InputError, match="line 3: it has 1 cells"):
        predict_lines(evaluated_texts, tmp_path, tmp_path / "new.csv")


def test_rows_without_text_have_an_empty_prediction_and_are_counted(
    evaluated_texts: Evaluated, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(predict, "ROWS_PER_CHUNK", 2)
    (tmp_path / "new.csv").write_text('id,review\n1,"a b"\n2,\n3,"  "\n4,c\n')
    found = predict_lines(evaluated_texts, tmp_path, tmp_path / "new.csv")
    assert found["prediction"].isna().tolist() == [False, True, True, False]
    assert found["p good"].isna().tolist() == [False, True, True, False]
    summary = predict_file(
        tmp_path / "new.csv", tmp_path / "o.csv", task=None, system=str(tmp_path / "tfidf")
    )
    assert "4 rows" in summary and "2 rows without text" in summary


def test_a_column_of_another_name_is_given_by_name(
    evaluated_texts: Evaluated, tmp_path: Path
) -> None:
    (tmp_path / "new.csv").write_text("body\nsome text\n")
    found = predict_lines(evaluated_texts, tmp_path, tmp_path / "new.csv", text_columns=["body"])
    assert found["prediction"].notna().all()


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("new.csv", b"body\nx\n", "has no column 'review'.*--text-column"),
        ("new.csv", "review\ncaf\u00e9\n".encode("latin-1"), "new.csv is not UTF-8 at byte"),
        ("new.csv", b"", "new.csv is empty"),
        ("new.csv", b"review,id\nx,1,2\n", "cells"),
        ("new.csv", b"review,id\na,1\nx\n", "line 3: it has 1 cells"),
        ("new.csv", b"review,prediction\nx,1\n", "has a column 'prediction' already"),
        ("new.csv", b"review,,\nx,1,2\n", "several columns have no name"),
        ("new.xlsx", b"PK", "its format is not known"),
        ("new.jsonl", b'{"review": "x"\n', "line 1: not JSON"),
        ("new.jsonl", b'{"review": {"a": 1}}\n', "new.jsonl: row 1: column 'review'"),
        ("new.parquet", b"not parquet", "new.parquet cannot be read"),
    ],
)
def test_a_file_that_cannot_be_read_is_refused_in_one_line(
    name: str, content: bytes, message: str, evaluated_texts: Evaluated, tmp_path: Path
) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(InputError, match=message) as caught:
        predict_lines(evaluated_texts, tmp_path, tmp_path / name)
    assert "\n" not in str(caught.value)
    assert not list(tmp_path.glob("*out.csv*")), "no half-written file is left"


def test_wrong_names_of_files_are_refused(evaluated_texts: Evaluated, tmp_path: Path) -> None:
    file = tmp_path / "new.csv"
    with pytest.raises(InputError, match="there is no such file"):
        predict_lines(evaluated_texts, tmp_path, file)
    file.write_text("review\nx\n")
    with pytest.raises(InputError, match=r"must end in \.csv, \.tsv, \.jsonl or \.parquet"):
        predict_lines(evaluated_texts, tmp_path, file, out="out.xlsx")
    with pytest.raises(InputError, match="this is the input file"):
        predict_lines(evaluated_texts, tmp_path, file, out="new.csv")
    with pytest.raises(InputError, match="the task reads 1 columns, review"):
        predict_lines(evaluated_texts, tmp_path, file, text_columns=["a", "b"])


def test_a_system_is_chosen_by_name_labels_or_the_reports_decision(
    evaluated_texts: Evaluated,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    systems = [
        KeptSystem(kept.folder, dataclasses.replace(kept.record, label_count=count))
        for count in ("all", "20")
        for kept in evaluated_texts.systems.values()
    ]
    chosen = choose_system(systems, "gpt-finetuned", None)
    assert (chosen.record.name, chosen.record.label_count) == ("gpt-finetuned", "all")
    assert choose_system(systems, "tfidf", "20").record.label_count == "20"
    with pytest.raises(InputError, match=r"recommends none .*gpt-frozen-linear"):
        choose_system(systems, None, None)
    with pytest.raises(InputError, match=r"there is no system 'bert'.*gpt-finetuned"):
        choose_system(systems, "bert", None)
    with pytest.raises(InputError, match="50 labels; known: 20, all"):
        choose_system(systems, "tfidf", "50")
    decisions = [
        {
            "task": "x",
            "label_count": count,
            "system": dataclasses.asdict(systems[number].record),
            "use": {"standing": {"above_chance": count == "all"}},
        }
        for number, count in enumerate(("20", "all"))
    ]
    (tmp_path / "reports").mkdir()
    (tmp_path / "reports/decisions.json").write_text(json.dumps(decisions))
    assert choose_system(systems, None, None).record == systems[1].record
    assert not capsys.readouterr().err
    assert choose_system(systems, None, "20").record.name == systems[0].record.name
    assert "no system of 'x' is shown to be above chance" in capsys.readouterr().err
    others = [one for one in systems if one.record.name != systems[1].record.name]
    with pytest.raises(InputError, match=r"recommends '.*', which is not kept"):
        choose_system(others, None, None)
    listed = format_systems(systems)
    assert "gpt-frozen-bilstm" in listed
    (line,) = [line for line in listed.splitlines() if line.endswith("(recommended)")]
    assert line.split()[0] == "all" and f"  {systems[1].record.name}  " in line
    (line,) = [line for line in listed.splitlines() if "not shown to be above chance" in line]
    assert line.split()[0] == "20" and f"  {systems[0].record.name}  " in line


def test_a_network_that_another_system_beats_on_validation_is_not_kept(
    evaluated_texts: Evaluated,
) -> None:
    facts = evaluated_texts.context.task.info
    runs = list(tiny.list_runs(facts, ("pretrained",), ("all",), (0,), setfit=True))

    def kept_names(**scores: float) -> set[str]:
        rows = [
            dataclasses.replace(row, value=scores.get(row.transfer, 0.5))
            for row in evaluated_texts.rows
        ]
        cache = evaluated_texts.folder / "cache"
        folders = list_kept_systems(evaluated_texts.context, runs, rows, cache)
        return {read_record(folder).name for folder in folders}

    heads = {"gpt-frozen-linear", "gpt-frozen-bilstm"}
    assert kept_names(finetuned=0.4, setfit=0.4) == heads
    assert kept_names(finetuned=0.5, setfit=0.4) == heads | {"gpt-finetuned"}
    assert kept_names(finetuned=0.6, setfit=0.5) == heads | {"gpt-finetuned"}
    assert kept_names(finetuned=0.6, setfit=0.7) == heads | {"gpt-setfit"}
    assert kept_names(finetuned=0.5, setfit=0.5) == heads | {"gpt-finetuned", "gpt-setfit"}


def test_texts_whose_labels_were_spans_of_characters_are_split_as_in_training() -> None:
    record = dataclasses.replace(
        SystemRecord(**dict.fromkeys(field.name for field in dataclasses.fields(SystemRecord))),
        character_spans=True,
        labels=("O", "B-X"),
    )
    seen: list[pd.DataFrame] = []

    def answer(items: pd.DataFrame) -> dict[str, np.ndarray]:
        seen.append(items)
        num_words = sum(map(len, items["tokens"]))
        return TagsAnswer(record.labels).answer_columns(items, np.eye(2)[np.zeros(num_words, int)])

    task = Task(kind="token_classification", files={"test": "-"}, tokens="text")
    predictor = Predictor(record, load_kind(task.kind), task, answer, "new.csv")
    columns = predictor.answer_chunk({"text": ["Anna met Bob.", ""]})
    assert seen[0]["tokens"].tolist() == [["Anna", "met", "Bob", "."]]
    assert columns["prediction_words"] == ["Anna met Bob .", None]
    assert columns["prediction"] == ["O O O O", None]
    assert columns["prediction_spans"] == [[], None]
    assert prediction_fields(record, predictor.kind)["prediction_spans"] == SPANS_TYPE
    of_words = dataclasses.replace(record, character_spans=False)
    assert "prediction_spans" not in prediction_fields(of_words, predictor.kind)
    assert predictor.answer_chunk({"text": [["Anna", "met"]]})["prediction_spans"] == [None]


@pytest.mark.parametrize(("name", "label_map"), [("X", {"B-X": "X"}), ("", None)])
def test_character_spans_whose_tags_are_plain_are_answered_with_tags_alone(
    name: str, label_map: dict[str, str] | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make, keys = CASES["spans"]

    def make_plain(rng: np.random.Generator, count: int) -> dict[str, Any]:
        table = make(rng, count)
        for span in chain.from_iterable(table["spans"]):
            span["label"] = name
        return table

    monkeypatch.setitem(CASES, "plain", (make_plain, keys | {"label_map": label_map}))
    packaged = package_case("plain", tmp_path)
    file = write_jsonl(tmp_path / "new.jsonl", packaged.test)
    predict_file(file, tmp_path / "out.jsonl", task=None, system=str(packaged.exported))
    found = pd.read_json(tmp_path / "out.jsonl", lines=True, dtype=False)
    assert list(found) == ["words", "prediction_words", "prediction"]
    tags = set(" ".join(found["prediction"]).split())
    assert tags == {"O", "X" if label_map else "B-"}


def test_the_command_lists_the_systems_of_a_study_and_predicts_with_one(
    evaluated_texts: Evaluated, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    shutil.copy(tiny.ROOT / "params.yaml", tmp_path)
    write_systems("baselines-sentiment", [evaluated_texts.systems["tfidf"].folder])
    write_systems("evaluate-gpt-0-sentiment", [evaluated_texts.systems["gpt-finetuned"].folder])
    write_systems("evaluate-ulmfit-0-sentiment", [evaluated_texts.systems["tfidf"].folder])
    (card,) = Path("artifacts/systems/evaluate-gpt-0-sentiment").rglob("README.md")
    assert "# gpt-finetuned for x" in card.read_text()
    setfit_card = format_card(evaluated_texts.systems["gpt-setfit"].record)
    assert "A linear probe on vectors of gpt" in setfit_card
    assert "fine-tuned on pairs of texts (SetFit)" in setfit_card

    def run(*arguments: str) -> Any:
        return CliRunner().invoke(app, ["predict", *arguments])

    listed = run("--task", "sentiment", "--list").stdout
    assert listed.count("tfidf") == 1, "ulmfit is not in the grid any more"
    assert "gpt-finetuned" in listed
    Path("new.txt").write_text("a text\n\nanother\n")
    assert run("--task", "sentiment", "--system", "tfidf", "new.txt", "-o", "o.csv").exit_code == 0
    found = pd.read_csv("o.csv")
    assert list(found) == ["text", "prediction", "p bad", "p good", "p odd"]
    assert found["prediction"].isna().tolist() == [False, True, False]
    for arguments in (["--list"], ["new.txt"], ["new.txt", "-o", "o.csv"], ["-o", "o.csv"]):
        refused = run(*arguments)
        assert refused.exit_code == 2 and len(refused.stderr.splitlines()) == 1
    assert (
        "--task: name one of the study's tasks: sentiment, " in run("new.txt", "-o", "o.csv").stderr
    )
    tree = read_yaml(Path("params.yaml"))
    one_task = {
        "tasks": ["sentiment"],
        "adapt_models": [],
        "adapt_tasks": [],
        "join_tasks": [],
        "join_models": [],
    }
    tree["grid"] |= one_task
    write_params(tmp_path, tree)
    assert run("--system", "tfidf", "new.txt", "-o", "one.csv").exit_code == 0
    pd.testing.assert_frame_equal(pd.read_csv("one.csv"), found)
