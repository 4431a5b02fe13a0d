"""No sentence of a user's data leaves the artifacts: not into reports, MLflow or logs.

The demo's sentences are looked for in test_demo.py, and a user's with Prefect and workers in test_routes.py.
"""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from flows.profiles import write_params
from lineage.config.data import Task
from lineage.config.params import ReportParams
from lineage.config.records import parse_record, read_yaml
from lineage.data.files import check_columns, read_column_names
from lineage.data.items import TaskItems, build_items, check_task_files
from lineage.data.task_data import TaskData
from lineage.errors import InputError, is_short_name, shorten_value
from lineage.evaluation.baselines import evaluate_baselines
from lineage.evaluation.word_vectors import missing_value_note
from lineage.report.notes import format_note
from lineage.tasks.base import load_kind
from tests.checkout import WALK, command, own_project
from tests.private_text import leaks, texts_of
from tests.toy_project import HERE


@pytest.mark.slow
def test_a_run_tells_nobody_what_the_texts_say(walked: Path) -> None:
    texts = texts_of(walked.parent / "mine")
    assert len(texts) > 100
    assert (
        (walked / "reports/comparison.html").is_file()
        and (walked / "mlflow.db").is_file()
        and [*(walked / ".lineage/logs").iterdir()]
    )
    assert not leaks(walked, texts)


@pytest.mark.slow
def test_no_kind_of_task_tells_what_its_texts_labels_and_groups_say(tmp_path: Path) -> None:
    """Sentences as labels and as groups too, and words that a model does not know."""
    folder, rng = own_project(tmp_path / "lineage"), np.random.default_rng(0)
    said = [f"patient {name} of ward {n} {verb} since {month}" for n in range(2) for name in ("Anna", "Ben", "Cleo", "Dora")
            for verb in ("coughs", "sleeps", "limps") for month in ("May", "June")]  # fmt: skip
    rows: list[dict[str, Any]] = []
    for n, text in enumerate(said * 2):
        words = f"{text} {n}".split()
        rows.append({"text": " ".join(words), "other": f"{text} no more", "good": f"she never {text} at all", "bad": f"at all {text} never she",
                     "score": float(n % 7), "right": n % 2, "place": int(rng.integers(3)), "who": said[n % 4], "tokens": words,
                     "tags": ["B-W", *["O"] * 8],
                     "question": f"where was it that {text} then", "answer": words[1], "one": words[1],
                     "two": f"unheard{n % 3}" if n % 4 == 1 else words[4],
                     "verdict": said[20 + n % 2]})  # fmt: skip
    (folder.parent / "mine/all.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    tree, both = read_yaml(folder / "params.yaml"), {"train": "all.jsonl", "test": "all.jsonl"}
    kinds: dict[str, dict[str, Any]] = {
        "verdicts": {
            "kind": "text_classification",
            "text": ["text"],
            "label": "verdict",
            "group": "who",
        },
        "scores": {
            "kind": "text_regression",
            "text": ["text", "other"],
            "label": "score",
            "group": "who",
        },
        "choices": {
            "kind": "multiple_choice",
            "text": ["text", "question"],
            "choices": ["other", "good"],
            "label": "right",
            "group": "who",
        },
        "label_map": {"kind": "token_classification", "tokens": "tokens", "label": "tags"},
        "places": {"kind": "word_sense", "tokens": "tokens", "target": "place", "label": "right"},
        "answers": {
            "kind": "extractive_qa",
            "question": "question",
            "context": "text",
            "answers": "answer",
        },
        "pairs": {
            "kind": "minimal_pairs",
            "good": "good",
            "bad": "bad",
            "group": "who",
            "files": {"test": "all.jsonl"},
        },
        "alike": {
            "kind": "word_similarity",
            "words": ["one", "two"],
            "label": "score",
            "group": "who",
            "files": {"test": "all.jsonl"},
        },
    }
    tree["tasks"] = {
        name: {"files": both, "max_tokens": 24, **keys} for name, keys in kinds.items()
    }
    tree["grid"] |= {"models": ["word2vec", "gpt"], "tasks": [*kinds], "adapt_models": ["gpt"], "adapt_tasks": ["verdicts"], "finetune_seeds": [0],
                     "label_counts": ["all"]}  # fmt: skip
    tree["models"]["word2vec"]["tokenizer"]["vocab_size"] = 60
    write_params(folder / "params.yaml", tree)
    command(folder, *WALK, code=3)  # word2vec knows none of the words
    texts = [str(part) for row in rows for part in row.values() if isinstance(part, str)] + [
        " ".join(row["tokens"]) for row in rows
    ]
    page = (folder / "reports/comparison.md").read_text()
    assert all(name in page for name in kinds) and not leaks(
        folder, [*texts, *texts_of(folder.parent / "mine")]
    )


def test_a_canary_is_found_in_a_page_and_a_database(tmp_path: Path) -> None:
    """Else the others could not fail. One word alone is no sentence."""
    kept = "mlruns/lineage/1f/artifacts/comparison.json"
    written = {
        "reports/x.html": "<p>sings at dawn, and nobody</p>",
        "mlflow.db": "\0\1nobody is to know of\0",
        "logs/y.log": "quokka",
        "logs/zh.log": "谁也不该知道它唱",
        kept: json.dumps({"said": "短尾矮袋鼠在黎明时歌唱"}),
        "artifacts/tasks/x/train.parquet": "sings at dawn, and nobody",
    }
    for place, words in written.items():
        (tmp_path / place).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / place).write_text(words)
    found = leaks(
        tmp_path,
        [
            "The quokka sings at dawn, and nobody is to know of it.",
            "短尾矮袋鼠在黎明时歌唱，谁也不该知道。",
        ],
    )
    assert [line.split(":")[0] for line in found] == [
        "logs/zh.log",
        "mlflow.db",
        kept,
        "reports/x.html",
    ]


def test_show_text_is_off_unless_it_is_asked_for() -> None:
    assert not ReportParams().show_text and "show_text" not in (HERE / "params.yaml").read_text()


@pytest.mark.parametrize(("row", "kept"), [
    ("the patient of room nine has hepatitis, and nobody is to know", "patient of room nine"),
    ("病人张伟得了乙肝，妻子尚不知情，请勿告知家属", "张伟得了乙肝"),
])  # fmt: skip
@pytest.mark.parametrize("suffix", ["tsv", "jsonl"])
def test_a_file_without_names_of_columns_does_not_show_its_first_row(
    row: str, kept: str, suffix: str, tmp_path: Path
) -> None:
    path = tmp_path / f"train.{suffix}"
    path.write_text(
        "".join(
            f"{row} {n}\t{n % 2}\n" if suffix == "tsv" else json.dumps({f"{row} {n}": n % 2}) + "\n"
            for n in range(30)
        )
    )
    with pytest.raises(InputError, match="has no column 'text'") as caught:
        check_columns(
            ["text"],
            read_column_names(path, path.name, "tasks.mine.files.train"),
            path.name,
            "tasks.mine.files.train",
        )
    assert kept not in str(caught.value) and len(str(caught.value)) < 1_500
    if suffix == "tsv":
        path.write_text(f"{row}\t{row}\n" * 30)
        with pytest.raises(InputError, match=r"names the column .* twice") as caught:
            read_column_names(path, path.name, "tasks.mine.files.train")
        assert kept not in str(caught.value)


def test_a_shown_value_is_no_sentence() -> None:
    assert (
        shorten_value("one two three four five") == "one two three four f..."
        and shorten_value("号" * 4) == "号" * 4
        and shorten_value("张伟得了乙肝") == "张伟得了..."
    )
    assert shorten_value("one\r\ntwo\nthree") == "one two three"


SECRET = "Patient Anna of room nine has hepatitis B and her husband must not know"


def classify(root: Path, frame: pd.DataFrame, **keys: Any) -> TaskItems:
    frame.to_csv(root / "t.csv", index=False)
    tree = {
        "kind": "text_classification",
        "text": ["text"],
        "label": "label",
        "files": {"train": "t.csv", "test": "t.csv"},
    } | keys
    return build_items(
        "x",
        parse_record(Task, tree, "tasks.x"),
        load_kind("text_classification"),
        seed=1,
        root=root,
        where="tasks.x",
    )


@pytest.mark.parametrize("how", ["a shard of numbers", "a card that says int64"])
def test_a_library_s_message_that_quotes_a_cell_is_not_passed_on(how: str, tmp_path: Path) -> None:
    text = [f"text {n}" for n in range(4)]
    if how == "a shard of numbers":
        pd.DataFrame({"text": text, "label": [0, 1, 0, 1]}).to_parquet(tmp_path / "a.parquet")
        pd.DataFrame({"text": text, "label": ["0", "1", SECRET, "1"]}).to_parquet(
            tmp_path / "b.parquet"
        )
        given: dict[str, Any] = {"files": {"train": "*.parquet", "test": "a.parquet"}}
    else:
        (tmp_path / "hub").mkdir()
        pd.DataFrame({"text": text, "label": ["0", "1", SECRET, "1"]}).to_json(
            tmp_path / "hub/train.jsonl", orient="records", lines=True
        )
        features = "features: [{name: text, dtype: string}, {name: label, dtype: int64}]"
        (tmp_path / "hub/README.md").write_text(f"---\ndataset_info: {{{features}}}\n---\n")
        given = {"hub": "hub", "revision": "0" * 40, "splits": {"train": "train", "test": "train"}}
    tree = {"kind": "text_classification", "text": ["text"], "label": "label"} | given
    with pytest.raises(InputError) as caught:
        build_items(
            "x",
            parse_record(Task, tree, "tasks.x"),
            load_kind("text_classification"),
            seed=1,
            root=tmp_path,
            where="tasks.x",
        )
    assert "cannot be read: " in str(caught.value) and "room nine" not in str(caught.value)


def test_groups_that_are_texts_are_in_no_row(tmp_path: Path) -> None:
    """As the premise that several pairs share; names of authors or of phenomena are told."""
    frame = pd.DataFrame(
        {"text": [f"text {n}" for n in range(40)], "label": [n % 2 for n in range(40)]}
    )
    for groups, told in (([f"{SECRET} {n % 4}" for n in range(40)], False), ([f"author {n % 4}" for n in range(40)], True),
                         ([f"病人张伟得了乙肝{n % 4}" for n in range(40)], False), ([f"one {n}" for n in range(40)] * 3, True),
                         ([f"one {n}" for n in range(120)], False)):  # fmt: skip
        items = classify(
            tmp_path,
            pd.concat([frame] * (len(groups) // 40), ignore_index=True).assign(g=groups),
            group="g",
        )
        found = [row for rows, _ in evaluate_baselines(load_kind("text_classification"), TaskData(items.info, items.splits), split="test", finetune_seeds=[0], label_counts=["all"])
                 for row in rows]  # fmt: skip
        assert ({row.group for row in found} != {"all"}) == told


def test_a_group_in_wide_letters_is_a_text_sooner(tmp_path: Path) -> None:
    frame = pd.DataFrame(
        {
            "text": [f"text {n}" for n in range(40)],
            "label": [n % 2 for n in range(40)],
            "g": "病人张伟得了乙肝，妻子尚不知情，请勿告知家属",
        }
    )
    with pytest.raises(
        InputError,
        match=r"column 'g': the group has more than 80 letters, and reports show it.*\(wide letters count as five",
    ):
        classify(tmp_path, frame, group="g")


def test_the_nearest_label_of_train_is_no_text_either(tmp_path: Path) -> None:
    texts = [f"Case {n}: {SECRET}"[:80] for n in range(9)]
    frame = pd.DataFrame(
        {"text": [f"text {n}" for n in range(40)], "label": [texts[n % 9] for n in range(40)]}
    )
    frame.assign(label=[texts[0], "bad", texts[1], "bad"] * 10).to_csv(
        tmp_path / "test.csv", index=False
    )
    with pytest.raises(InputError, match="label 'bad' does not occur in train") as caught:
        classify(tmp_path, frame, files={"train": "t.csv", "test": "test.csv"})
    assert "room nine" not in str(caught.value)


@pytest.mark.parametrize(
    "row",
    [
        "I came home late,and he was not there,so I went to bed,my wife was away,with hepatitis B,pos",
        "他的家属,妻子不知,得了乙肝,病人张伟,请勿告知",
    ],
)
def test_a_first_row_in_short_cells_is_not_told_as_names_of_columns(
    row: str, tmp_path: Path
) -> None:
    path = tmp_path / "t.csv"
    path.write_text(f"{row}\n" * 9)
    with pytest.raises(
        InputError, match=r"has no column 'wanted'; known: .* and \d more"
    ) as caught:
        check_columns(
            ["wanted"], read_column_names(path, path.name, "tasks.x"), path.name, "tasks.x"
        )
    assert sum(cell[:4] in str(caught.value) for cell in row.split(",")) == 3


@pytest.mark.parametrize(
    ("groups", "told"), [(["near", "far"], True), ([f"{SECRET[:60]} {n}" for n in range(2)], False)]
)
def test_why_a_group_of_words_has_no_correlation_tells_no_text(
    groups: list[str], told: bool
) -> None:
    items = pd.DataFrame(
        {"group": np.repeat(groups, 3), "prediction": ["0.1", "0.2", "0.3", "0.5", "0.5", "0.5"]}
    )
    reason = format_note(missing_value_note(items))
    assert (
        (repr(groups[1]) in reason) == told
        and "room nine" not in reason
        and told != ("every pair of 1 of its 2 groups has" in reason)
    )


@pytest.mark.parametrize(("name", "told"), [
    ("wh_questions_object_gap_with_long_distance", True), ("Massachusetts General Hospital Boston", True), ("I am HIV positive ok", True),
    ("Anna has hepatitis B, husband unaware", False), ("ผู้ป่วยเป็นโรคตับอักเสบบี", False),
    ("ผู้ป่วยเป็นโรคตับ อักเสบบี ภรรยาไม่ทราบ", False), ("病人张伟", True), ("病人张伟得了", False), ("", True),
])  # fmt: skip
def test_half_a_sentence_is_no_name(name: str, told: bool) -> None:
    assert is_short_name(name) == told and (
        is_short_name(name, is_label=True) == told or name == "病人张伟得了"
    )


def test_a_label_in_wide_letters_may_have_eight() -> None:
    assert is_short_name("财经新闻频道", is_label=True) and not is_short_name(
        "病人张伟得了乙肝，请勿告知", is_label=True
    )
    assert not is_short_name("Anna has hepatitis B and", is_label=True)


def test_labels_that_are_texts_are_told_whole_by_no_message(tmp_path: Path) -> None:
    """Though half of test's labels are train's: two columns were mixed up there."""
    frame = pd.DataFrame(
        {"text": [f"text {n}" for n in range(40)], "label": [n % 2 for n in range(40)]}
    )
    frame.assign(label=[SECRET[:70], "1", "0", "1"] * 10).to_csv(tmp_path / "test.csv", index=False)
    with pytest.raises(
        InputError,
        match=r"label '.{20}\.\.\.' does not occur in train.*say in 'label_map' what it is",
    ) as caught:
        classify(tmp_path, frame, files={"train": "t.csv", "test": "test.csv"})
    assert "room nine" not in str(caught.value)


@pytest.mark.parametrize(
    "row",
    [
        "Anna,Smith,1987-03-12,hepatitis_B,ward_9",
        ",".join(f"word{'abcdefghijklm'[n]}" for n in range(13)),
    ],
)
def test_a_first_row_of_single_words_is_not_told_whole(row: str, tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    path.write_text(f"{row}\n" * 9)
    with pytest.raises(InputError, match=r"known: \S+, \S+, \S+ and \d+ more") as caught:
        check_columns(
            ["wanted"], read_column_names(path, path.name, "tasks.x"), path.name, "tasks.x"
        )
    assert sum(cell in str(caught.value) for cell in row.split(",")) == 3


def test_a_column_that_another_file_lacks_is_no_sentence(tmp_path: Path) -> None:
    """The names of the first file's columns are the user's, and may be questions, or notes; those in params.yaml are told whole."""
    for number, name in enumerate((SECRET, "您对本次服务的满意程度如何")):
        for file, column in (("a", name), ("b", "more")):
            (tmp_path / f"{number}{file}.csv").write_text(
                f"text,label,{column}\n" + "".join(f"{file} {n},{n % 2},x\n" for n in range(20))
            )
        files = {"train": f"{number}*.csv", "test": f"{number}a.csv"}
        task = parse_record(
            Task,
            {"kind": "text_classification", "text": ["text"], "label": "label", "files": files},
            "tasks.x",
        )
        with pytest.raises(InputError, match=r"b\.csv has no column '[^']{4,20}\.\.\.'") as caught:
            check_task_files(
                task,
                load_kind("text_classification"),
                root=tmp_path,
                where="tasks.x",
                read_files=True,
            )
        assert name[5:30] not in str(caught.value)
    with pytest.raises(InputError, match="has no column 'a_long_name_that_is_in_the_params'"):
        check_columns(["a_long_name_that_is_in_the_params"], ["a", "b"], "t.csv", "tasks.x")
