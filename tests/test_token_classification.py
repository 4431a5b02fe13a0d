"""Tag tables in an unexpected form are refused with advice, or counted and reported."""

from pathlib import Path
from typing import Any

import pytest

from lineage.answers.spans import suggest_label_map
from lineage.config.params import read_params
from lineage.data.checks import check_task_data
from lineage.data.dataset_stats import compute_split_stats
from lineage.data.items import TaskItems
from lineage.errors import InputError
from tests.helpers.tasks import TEXTS, build_task_items, write_jsonl
from tests.helpers.user_project import make_project, without_repeat_warnings, write_params

TAGS = {"kind": "token_classification", "tokens": "tokens", "label": "tags"}
FILES = {"files": {"train": "t.jsonl", "test": "t.jsonl"}}
SENTENCE = ["saw", "Anna", "Jones"]


def build_task(root: Path, rows: list[dict[str, Any]], **keys: Any) -> TaskItems:
    """Build the items of a task whose splits hold these rows."""
    write_jsonl(root / "t.jsonl", rows)
    return build_task_items(root, TAGS | FILES | keys)


def tagged_rows(tags: list[str], count: int = 30) -> list[dict[str, Any]]:
    """Return rows of three words with these tags."""
    return [{"tokens": [*SENTENCE[:2], f"{SENTENCE[2]}{n}"], "tags": tags} for n in range(count)]


@pytest.mark.parametrize("suffix", ["csv", "tsv"])
def test_a_table_with_one_word_per_row_is_refused(suffix: str, tmp_path: Path) -> None:
    delimiter = {"csv": ",", "tsv": "\t"}[suffix]
    lines = [
        f"{word}{delimiter}{tag}"
        for word, tag in zip(SENTENCE * 20, ["O", "B-PER", "I-PER"] * 20, strict=True)
    ]
    (tmp_path / f"t.{suffix}").write_text("\n".join([f"tokens{delimiter}tags", *lines]) + "\n")
    with pytest.raises(
        InputError,
        match=rf"files.train: t.{suffix}: 60 of 60 rows have one token: rows are words, .*; a txt or tsv .* is read with 'columns'",
    ):
        build_task(tmp_path, [], files={"train": f"t.{suffix}", "test": f"t.{suffix}"})


def test_words_in_a_cell_may_be_separated_by_control_characters(tmp_path: Path) -> None:
    """PaddleNLP distributes MSRA in this form; a blank token is dropped and counted."""
    row = "\x02".join("当 希望") + "\t" + "\x02".join(["O", "O", "B-X", "I-X"]) + "\n"
    (tmp_path / "t.tsv").write_text("tokens\ttags\n" + (row + "当\tO\n") * 9)
    task = build_task(tmp_path, [], files={"train": "t.tsv", "test": "t.tsv"}, language="zh")
    assert task.splits["test"]["tokens"].tolist() == [["当", "希", "望"], ["当"]] * 9
    assert task.info.blank_words["test"] == 9


@pytest.mark.parametrize(
    "text", ["\u6d77\u9493\u6bd4\u8d5b\u5728NBA", "\u6d77\u9493 \u6bd4\u8d5bNBA"]
)
@pytest.mark.parametrize(
    "tags", [["O", "O", "O", "O", "O", "B-X", "I-X", "I-X"], "O O O O O B-X I-X I-X"]
)
def test_chinese_text_with_one_tag_per_character_is_split_into_characters(
    text: str, tags: Any, tmp_path: Path
) -> None:
    task = build_task(tmp_path, [{"tokens": text, "tags": tags}] * 30, language="zh")
    assert task.splits["test"]["tokens"].iloc[0] == list(text.replace(" ", ""))
    assert task.info.blank_words["test"] == 30 * text.count(" ") and "B-X" in task.info.labels
    for language, words in (("en", text), ("zh", text + "!")):
        first = r"30 rows \(1, 2.*the first has \d tokens in 'tokens' and 8 tags in 'tags'"
        with pytest.raises(InputError, match=first):
            build_task(tmp_path, [{"tokens": words, "tags": tags}] * 30, language=language)


@pytest.mark.parametrize(
    ("num_words", "num_sentences", "is_refused"),
    [(23, 0, False), (24, 0, True), (90, 10, False), (91, 9, True), (3, 30, False)],
)
def test_one_word_sentences_are_accepted_unless_they_are_too_many(
    num_words: int, num_sentences: int, is_refused: bool, tmp_path: Path
) -> None:
    rows = [
        {"tokens": [f"w{n}"], "tags": ["B-X" if n % 2 else "O"]} for n in range(num_words)
    ] + tagged_rows(["O", "B-X", "I-X"], num_sentences)
    if is_refused:
        with pytest.raises(
            InputError, match=f"{num_words} of {num_words + num_sentences} rows have one token"
        ):
            build_task(tmp_path, rows)
    else:
        assert build_task(tmp_path, rows).info.counts["test"] == num_words + num_sentences


FORMS = [
    (["O", "B_PER", "I_PER"], '{"B_PER": "B-PER"}'),
    (["o", "b-per", "i-per"], '{"o": "O", "b-per": "B-per"}'), (["O", "PER-B", "PER-I"], '{"PER-B": "B-PER"}'),
    (["O", "b-PER", "i-PER"], '{"b-PER": "B-PER"}'), (["o", "B-PER", "I-PER"], '{"o": "O"}'),
    (["O", "B:PER", "E:PER"], '{"B:PER": "B-PER"}'), (["O", "per_b", "per_i"], '{"per_b": "B-per"}'),
    (["_", "B-PER", "I-PER"], '{"_": "O"}'), (["0", "B_PER", "I_PER"], '{"0": "O", "B_PER": "B-PER"}'),
]  # fmt: skip


@pytest.mark.parametrize(("tags", "label_map"), FORMS)
def test_unsupported_span_tags_are_refused_with_a_suggested_label_map(
    tags: list[str], label_map: str, tmp_path: Path
) -> None:
    with pytest.raises(InputError) as caught:
        build_task(tmp_path, tagged_rows(tags))
    assert str(caught.value).startswith("task.label: the tags (")
    assert f"write O, B-PER and I-PER, or rename them: label_map: {label_map}" in str(caught.value)
    info = build_task(tmp_path, tagged_rows(tags), metric=["token_accuracy"]).info
    assert info.metric == ["token_accuracy"] and info.tags_without_scheme == {}, (
        "an explicit metric is accepted"
    )
    renamed = dict(zip(tags, ["O", "B-PER", "I-PER"], strict=True))
    assert (
        build_task(tmp_path, tagged_rows(tags), label_map=renamed).info.ranking_metric == "span_f1"
    )


def test_conll_2012_brackets_are_refused_unless_token_accuracy_is_chosen(tmp_path: Path) -> None:
    tags = ["(PERSON*", "*)", "(ORG(GPE*"]
    with pytest.raises(
        InputError,
        match=r"task\.label: the tags .* are the brackets of CoNLL-2012, which are not read; write O, B-PER and I-PER",
    ):
        build_task(tmp_path, tagged_rows(tags) + tagged_rows(["*", "(GPE)", "*"]))
    assert build_task(tmp_path, tagged_rows(tags), metric=["token_accuracy"]).info.metric == [
        "token_accuracy"
    ]


@pytest.mark.parametrize(
    "tags",
    [
        ["O", "PER"],
        ["B_PER", "I_PER"],
        ["NN", "VB", "O"],
        ["O", "B_PER", "NN"],
        ["O"],
        ["o", "O"],
        ["O", "B", "I"],
        ["a", "b-c"],
        ["_", "B-PER"],
        ["x", "y", "b-c", "b-d"],
        [],
    ],
)
def test_no_label_map_is_suggested_for_tags_without_a_span_scheme(tags: list[str]) -> None:
    assert suggest_label_map(tags) == ""


@pytest.mark.parametrize(
    ("tags", "count"),
    [
        (["O", "PER", "PER"], 2),
        (["o", "per", "loc"], 3),
        (["O", "B", "I"], 3),
        (["PER", "LOC", "Other"], 3),
        (["DET", "NOUN", "NOUN"], 0),
        (["O", "B-X", "I-X"], 0),
    ],
)
def test_plain_tags_with_an_o_are_counted_unless_the_metric_is_explicit(
    tags: list[str], count: int, tmp_path: Path
) -> None:
    info = build_task(tmp_path, tagged_rows(tags)).info
    assert (
        info.tags_without_scheme == ({"train": count} if count else {}) and info.numeric_tags == {}
    )
    assert compute_split_stats(info, "train").tags_without_scheme == count
    if info.metric == ["token_accuracy"]:
        assert (
            build_task(
                tmp_path, tagged_rows(tags), metric=["token_accuracy"]
            ).info.tags_without_scheme
            == {}
        )


@pytest.mark.parametrize(("tags", "message"), [
    (["O", "PER", "PER"], "tasks.names.label: its 2 tags are in no IOB scheme although one looks like O, so token accuracy is scored"),
    (["0", "1", "2"], "its 3 tags are integers without names"),
    (["NN", "VB", "VB"], ""),
])  # fmt: skip
def test_the_data_check_reports_tags_that_are_not_read_as_spans(
    tags: list[str], message: str, tmp_path: Path, monkeypatch: Any, capsys: Any
) -> None:
    tree = make_project(tmp_path)
    write_jsonl(tmp_path / "t.jsonl", tagged_rows(tags))
    tree["tasks"]["names"] = TAGS | FILES
    tree["grid"]["tasks"] = [*tree["grid"]["tasks"], "names"]
    write_params(tmp_path, tree)
    monkeypatch.chdir(tmp_path)
    check_task_data("names", read_params(), tmp_path)
    output = without_repeat_warnings(capsys.readouterr().err)
    if message:
        assert message in output
        assert "or set metric: [token_accuracy]" in output
    else:
        assert output == ""


@pytest.mark.parametrize(("name", "message"), [
    ("eng.train.txt", "has no column 'tags'; known: text; a txt has no header: list its columns, .* also for one word per line with its tags"),
    ("eng.conll", r"names format '.conll'; give files of one format: .* one sentence per row with its .*; a task reads other lines of text by its key 'columns'"),
])  # fmt: skip
def test_a_conll_file_without_columns_is_refused_with_advice(
    name: str, message: str, tmp_path: Path
) -> None:
    (tmp_path / name).write_text("Anna NN I-PER\nwent VB O\n\n" * 9)
    with pytest.raises(InputError, match=message):
        build_task_items(
            tmp_path, TAGS | {"files": {"train": name, "test": name}}, check_files=True
        )


@pytest.mark.parametrize(
    ("label_counts", "message"),
    [
        ([5, "all"], "with 5 labels at least 1 of the 6 classes of 'six'"),
        ([6, "all"], ""),
        ([6, 500], "'six' has 54 training examples, so 500 means all of them"),
        (["all"], ""),
    ],
)
def test_the_data_check_reports_label_counts_that_a_task_does_not_have(
    label_counts: list[Any], message: str, tmp_path: Path, monkeypatch: Any, capsys: Any
) -> None:
    tree = make_project(tmp_path)
    (tmp_path / "six.csv").write_text(
        "text,label\n" + "".join(f"the {n}th text,{'abcdef'[n % 6]}\n" for n in range(60))
    )
    tree["tasks"]["six"] = TEXTS | {"files": {"train": "six.csv", "test": "six.csv"}}
    tree["grid"] |= {"tasks": [*tree["grid"]["tasks"], "six"], "label_counts": label_counts}
    write_params(tmp_path, tree)
    monkeypatch.chdir(tmp_path)
    check_task_data("six", read_params(), tmp_path)
    output = capsys.readouterr().err
    assert message in output and bool(message) == ("grid.label_counts" in output)


def test_tags_missing_from_train_are_counted_and_refused_if_all_are_missing(tmp_path: Path) -> None:
    """Compare span types: train need not hold an I- tag of a type whose B- tag it has."""
    train = [{"tokens": [f"Ann{n}", "went"], "ner": ["B-PER", "O"]} for n in range(30)]
    person_rows = [
        {"tokens": [f"Lee{n}", "Ray", "went"], "ner": ["B-PER", "I-PER", "O"]} for n in range(27)
    ]
    test = [*person_rows, *({"tokens": [f"Rome{n}"], "ner": ["B-LOC"]} for n in range(3))]
    info = build_train_test_task(tmp_path, train, test).info
    assert info.tags_not_in_train == {"train": 0, "validation": 0, "test": 3}
    assert compute_split_stats(info, "test").tags_not_in_train == 3
    assert compute_split_stats(info, "train").tags_not_in_train == 0
    renamed_rows = [
        row | {"ner": [tag.replace("PER", "person") for tag in row["ner"]]} for row in person_rows
    ]
    with pytest.raises(
        InputError,
        match=r"test\.jsonl: column 'ner': none of its tags \(B-person, I-person\) occurs in train, which has B-PER; say in",
    ):
        build_train_test_task(tmp_path, train, renamed_rows)
    label_map = {"B-person": "B-PER", "I-person": "I-PER"}
    assert (
        build_train_test_task(
            tmp_path, train, renamed_rows, label_map=label_map
        ).info.tags_not_in_train["test"]
        == 0
    )


def build_train_test_task(
    root: Path, train: list[dict[str, Any]], test: list[dict[str, Any]], **keys: Any
) -> TaskItems:
    """Build the items of a tagging task with these train and test rows."""
    for name, rows in (("train", train), ("test", test)):
        write_jsonl(root / f"{name}.jsonl", rows)
    files = {"train": "train.jsonl", "test": "test.jsonl"}
    return build_task_items(root, TAGS | {"label": "ner", "files": files} | keys)
