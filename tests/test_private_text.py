"""Reports, MLflow and logs contain no text of a user's data.

test_demo.py checks this for the demo, and test_routes.py for a run with Prefect and workers.
"""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from lineage.answers.words import SimilarityAnswer
from lineage.config.params import ReportParams
from lineage.config.records import read_yaml
from lineage.data.files import check_columns, read_column_names
from lineage.data.items import TaskItems
from lineage.data.task_data import TaskData
from lineage.errors import InputError, is_short_name, shorten_value
from lineage.report.notes import format_note
from lineage.tasks.base import load_kind
from tests.helpers import tiny
from tests.helpers.checkout import RUN_STUDY, create_own_study, run_command
from tests.helpers.private_text import find_leaks, read_texts
from tests.helpers.tasks import TEXTS, build_task_items, write_jsonl
from tests.helpers.toy_project import REPOSITORY
from tests.helpers.user_project import write_params


@pytest.mark.slow
def test_no_kind_of_task_leaks_its_texts_labels_or_groups(tmp_path: Path) -> None:
    """Labels and groups are sentences too, and some words are unknown to a model."""
    folder = create_own_study(tmp_path / "lineage")
    rng = np.random.default_rng(0)
    sentences = [f"patient {name} of ward {n} {verb} since {month}" for n in range(2) for name in ("Anna", "Ben", "Cleo", "Dora")
            for verb in ("coughs", "sleeps", "limps") for month in ("May", "June")]  # fmt: skip
    rows: list[dict[str, Any]] = []
    for n, text in enumerate(sentences * 2):
        words = f"{text} {n}".split()
        rows.append({"text": " ".join(words), "other": f"{text} no more", "good": f"she never {text} at all", "bad": f"at all {text} never she",
                     "score": float(n % 7), "right": n % 2, "place": int(rng.integers(3)), "who": sentences[n % 4], "tokens": words,
                     "tags": ["B-W", *["O"] * 8],
                     "question": f"where was it that {text} then", "answer": words[1], "one": words[1],
                     "two": f"unheard{n % 3}" if n % 4 == 1 else words[4],
                     "verdict": sentences[20 + n % 2]})  # fmt: skip
    write_jsonl(folder.parent / "mine/all.jsonl", rows)
    tree = read_yaml(folder / "params.yaml")
    files = {"train": "all.jsonl", "test": "all.jsonl"}
    classification = {
        "kind": "text_classification",
        "text": ["text"],
        "label": "verdict",
        "group": "who",
    }
    regression = {
        "kind": "text_regression",
        "text": ["text", "other"],
        "label": "score",
        "group": "who",
    }
    choices = {
        "kind": "multiple_choice",
        "text": ["text", "question"],
        "choices": ["other", "good"],
        "label": "right",
        "group": "who",
    }
    questions = {
        "kind": "extractive_qa",
        "question": "question",
        "context": "text",
        "answers": "answer",
    }
    only_test = {"group": "who", "files": {"test": "all.jsonl"}}
    tasks: dict[str, dict[str, Any]] = {
        "verdicts": classification,
        "scores": regression,
        "choices": choices,
        "label_map": {"kind": "token_classification", "tokens": "tokens", "label": "tags"},
        "places": {"kind": "word_sense", "tokens": "tokens", "target": "place", "label": "right"},
        "answers": questions,
        "pairs": {"kind": "minimal_pairs", "good": "good", "bad": "bad", **only_test},
        "alike": {
            "kind": "word_similarity",
            "words": ["one", "two"],
            "label": "score",
            **only_test,
        },
    }
    tree["tasks"] = {
        name: {"files": files, "max_words": 24, **task} for name, task in tasks.items()
    }
    tree["grid"] |= {"models": ["word2vec", "gpt"], "tasks": [*tasks], "adapt_models": ["gpt"], "adapt_tasks": ["verdicts"], "finetune_seeds": [0],
                     "label_counts": ["all"]}  # fmt: skip
    tree["models"]["word2vec"] = {"tokenizer": {"vocab_size": 60}}
    write_params(folder, tree)
    run_command(folder, *RUN_STUDY, code=3)  # word2vec lacks some words
    cells = [cell for row in rows for cell in row.values()]
    texts = [cell for cell in cells if isinstance(cell, str)]
    texts += [" ".join(row["tokens"]) for row in rows]
    page = (folder / "reports/comparison.md").read_text()
    assert all(name in page for name in tasks)
    assert not find_leaks(folder, [*texts, *read_texts(folder.parent / "mine")])


def test_leaks_finds_planted_text_in_pages_logs_and_databases(tmp_path: Path) -> None:
    """Otherwise the tests above could not fail. A single word does not count as text."""
    artifact_path = "mlruns/lineage/1f/artifacts/comparison.json"
    files = {
        "reports/x.html": "<p>sings at dawn, and nobody</p>",
        "mlflow.db": "\0\1nobody is to know of\0",
        "logs/y.log": "quokka",
        "logs/zh.log": "谁也不该知道它唱",
        artifact_path: json.dumps({"said": "短尾矮袋鼠在黎明时歌唱"}),
        "artifacts/tasks/x/train.parquet": "sings at dawn, and nobody",
    }
    for path, text in files.items():
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_text(text)
    leaking_files = find_leaks(
        tmp_path,
        [
            "The quokka sings at dawn, and nobody is to know of it.",
            "短尾矮袋鼠在黎明时歌唱，谁也不该知道。",
        ],
    )
    assert [line.split(":")[0] for line in leaking_files] == [
        "logs/zh.log",
        "mlflow.db",
        artifact_path,
        "reports/x.html",
    ]


def missing_column_message(path: Path, expected: str) -> str:
    """Return the message about a column that a file does not have."""
    with pytest.raises(InputError, match=expected) as error:
        check_columns(
            ["wanted"], read_column_names(path, path.name, "tasks.x"), path.name, "tasks.x"
        )
    return str(error.value)


def test_show_text_is_off_by_default() -> None:
    assert (
        not ReportParams().show_text and "show_text" not in (REPOSITORY / "params.yaml").read_text()
    )


@pytest.mark.parametrize(("row", "private_words"), [
    ("the patient of room nine has hepatitis, and nobody is to know", "patient of room nine"),
    ("病人张伟得了乙肝，妻子尚不知情，请勿告知家属", "张伟得了乙肝"),
])  # fmt: skip
@pytest.mark.parametrize("suffix", ["tsv", "jsonl"])
def test_a_file_without_column_names_does_not_show_its_first_row(
    row: str, private_words: str, suffix: str, tmp_path: Path
) -> None:
    path = tmp_path / f"train.{suffix}"
    path.write_text(
        "".join(
            f"{row} {n}\t{n % 2}\n" if suffix == "tsv" else json.dumps({f"{row} {n}": n % 2}) + "\n"
            for n in range(30)
        )
    )
    message = missing_column_message(path, "has no column 'wanted'")
    assert private_words not in message and len(message) < 1_500
    if suffix == "tsv":
        path.write_text(f"{row}\t{row}\n" * 30)
        assert private_words not in missing_column_message(path, "names the column .* twice")


def test_shown_values_are_shortened() -> None:
    assert shorten_value("one two three four five") == "one two three four f..."
    assert shorten_value("号" * 4) == "号" * 4
    assert shorten_value("张伟得了乙肝") == "张伟得了..."
    assert shorten_value("one\r\ntwo\nthree") == "one two three"


FRAME = pd.DataFrame({"text": [f"text {n}" for n in range(40)], "label": [0, 1] * 20})
SECRET = "Patient Anna of room nine has hepatitis B and her husband must not know"


def build_classification_items(root: Path, frame: pd.DataFrame, **changes: Any) -> TaskItems:
    frame.to_csv(root / "t.csv", index=False)
    tree = TEXTS | {"files": {"train": "t.csv", "test": "t.csv"}} | changes
    return build_task_items(root, tree, where="tasks.x")


def test_a_library_message_that_quotes_a_cell_is_not_passed_on(tmp_path: Path) -> None:
    """The card of a data set declares another type."""
    text = [f"text {n}" for n in range(4)]
    (tmp_path / "hub").mkdir()
    pd.DataFrame({"text": text, "label": ["0", "1", SECRET, "1"]}).to_json(
        tmp_path / "hub/train.jsonl", orient="records", lines=True
    )
    features = "features: [{name: text, dtype: string}, {name: label, dtype: int64}]"
    (tmp_path / "hub/README.md").write_text(f"---\ndataset_info: {{{features}}}\n---\n")
    changes = {"hub": "hub", "revision": "0" * 40, "splits": {"train": "train", "test": "train"}}
    tree = {"kind": "text_classification", "text": ["text"], "label": "label"} | changes
    with pytest.raises(InputError) as error:
        build_task_items(tmp_path, tree, where="tasks.x")
    assert "cannot be read: " in str(error.value) and "room nine" not in str(error.value)


def test_groups_that_are_texts_are_left_out_of_the_rows(tmp_path: Path) -> None:
    """Several pairs may share a premise as their group; authors and phenomena are shown by name."""
    for groups, is_shown in (([f"{SECRET} {n % 4}" for n in range(40)], False), ([f"author {n % 4}" for n in range(40)], True),
                         ([f"病人张伟得了乙肝{n % 4}" for n in range(40)], False), ([f"one {n}" for n in range(40)] * 3, True),
                         ([f"one {n}" for n in range(120)], False)):  # fmt: skip
        items = build_classification_items(
            tmp_path,
            pd.concat([FRAME] * (len(groups) // 40), ignore_index=True).assign(g=groups),
            group="g",
        )
        groups_in_rows: set[str] = set()
        for rows, _ in tiny.evaluate_baselines(
            load_kind("text_classification"),
            TaskData(items.info, items.splits),
            split="test",
            finetune_seeds=[0],
            label_counts=["all"],
        ):
            assert not any(SECRET in row.group for row in rows)
            groups_in_rows |= {row.group for row in rows if row.split == "test"}
        assert (groups_in_rows != {"all"}) == is_shown


def test_an_unknown_label_message_does_not_quote_a_label_that_is_a_text(tmp_path: Path) -> None:
    texts = [f"Case {n}: {SECRET}"[:80] for n in range(9)]
    frame = FRAME.assign(label=[texts[n % 9] for n in range(40)])
    FRAME.assign(label=[texts[0], "bad", texts[1], "bad"] * 10).to_csv(
        tmp_path / "test.csv", index=False
    )
    with pytest.raises(InputError, match="label 'bad' does not occur in train") as error:
        build_classification_items(tmp_path, frame, files={"train": "t.csv", "test": "test.csv"})
    assert "room nine" not in str(error.value)


@pytest.mark.parametrize(
    "row",
    [
        "I came home late,and he was not there,so I went to bed,my wife was away,with hepatitis B,pos",
        "他的家属,妻子不知,得了乙肝,病人张伟,请勿告知",
        "Anna,Smith,1987-03-12,hepatitis_B,ward_9",
        ",".join(f"word{letter}" for letter in "abcdefghijklm"),
    ],
)
def test_a_missing_column_message_shows_only_three_cells_of_a_first_row(
    row: str, tmp_path: Path
) -> None:
    path = tmp_path / "t.csv"
    path.write_text(f"{row}\n" * 9)
    with pytest.raises(
        InputError, match=r"has no column 'wanted'; known: .* and \d+ more"
    ) as error:
        check_columns(
            ["wanted"], read_column_names(path, path.name, "tasks.x"), path.name, "tasks.x"
        )
    assert sum(cell[:5] in str(error.value) for cell in row.split(",")) == 3


@pytest.mark.parametrize(
    ("groups", "is_shown"),
    [(["near", "far"], True), ([f"{SECRET[:60]} {n}" for n in range(2)], False)],
)
def test_the_note_about_a_missing_correlation_shows_no_group_that_is_a_text(
    groups: list[str], is_shown: bool
) -> None:
    items = pd.DataFrame(
        {"group": np.repeat(groups, 3), "prediction": ["0.1", "0.2", "0.3", "0.5", "0.5", "0.5"]}
    )
    reason = format_note(SimilarityAnswer.describe_undefined("spearman", items))
    assert (repr(groups[1]) in reason) == is_shown
    assert "room nine" not in reason
    assert is_shown != ("every pair of 1 of its 2 groups has" in reason)


@pytest.mark.parametrize(("name", "is_shown"), [
    ("wh_questions_object_gap_with_long_distance", True), ("Massachusetts General Hospital Boston", True), ("I am HIV positive ok", True),
    ("Anna has hepatitis B, husband unaware", False), ("ผู้ป่วยเป็นโรคตับอักเสบบี", False),
    ("ผู้ป่วยเป็นโรคตับ อักเสบบี ภรรยาไม่ทราบ", False), ("病人张伟", True), ("病人张伟得了", False), ("", True),
])  # fmt: skip
def test_half_a_sentence_is_not_a_short_name(name: str, is_shown: bool) -> None:
    assert is_short_name(name) == is_shown
    assert is_short_name(name, is_label=True) == is_shown or name == "病人张伟得了"


def test_a_label_in_wide_letters_may_be_longer_than_a_group() -> None:
    assert is_short_name("财经新闻频道", is_label=True)
    assert not is_short_name("病人张伟得了乙肝，请勿告知", is_label=True)
    assert not is_short_name("Anna has hepatitis B and", is_label=True)


def test_a_column_name_from_the_data_is_shortened_in_messages() -> None:
    """Column names of a file may be questions or notes; those in params.yaml are shown in full."""
    for name in (SECRET, "您对本次服务的满意程度如何"):
        with pytest.raises(
            InputError, match=r"has no column 'a_long_name_that_is_in_the_params'.*\.\.\."
        ) as error:
            check_columns(["a_long_name_that_is_in_the_params"], ["a", name], "t.csv", "tasks.x")
        assert name[5:30] not in str(error.value)


@pytest.mark.parametrize(
    ("group", "hint"),
    [
        ("病人张伟得了乙肝，妻子尚不知情，请勿告知家属", r".*\(wide characters count as five"),
        (f"{SECRET}, who lives next door", ""),
    ],
)
def test_texts_are_refused_as_groups_and_not_shown(group: str, hint: str, tmp_path: Path) -> None:
    """Such a column may be named by mistake. Wide letters count more towards its length."""
    with pytest.raises(
        InputError,
        match=rf"column 'g': the group has more than 80 characters, and reports show it{hint}",
    ) as error:
        build_classification_items(tmp_path, FRAME.assign(g=group), group="g")
    assert group[:20] not in str(error.value)
