"""Tables of tags that are not what they seem: words for sentences, and spans in a form that is not read. Nothing of it passes without a word."""

import json
from pathlib import Path
from typing import Any

import pytest

from lineage.config.data import Task
from lineage.config.params import read_params
from lineage.config.records import parse_record
from lineage.data.checks import check_task_data
from lineage.data.dataset_stats import compute_split_stats
from lineage.data.items import TaskItems, build_items, check_task_files
from lineage.errors import InputError
from lineage.evaluation.spans import suggest_label_map
from lineage.tasks.base import load_kind
from tests.user_project import make, write

SENTENCE = ["saw", "Anna", "Jones"]


def made(root: Path, rows: list[dict[str, Any]], **keys: Any) -> TaskItems:
    (root / "t.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    tree = {
        "kind": "token_classification",
        "tokens": "tokens",
        "label": "tags",
        "files": {"train": "t.jsonl", "test": "t.jsonl"},
    } | keys
    return build_items(
        "x",
        parse_record(Task, tree, "task"),
        load_kind("token_classification"),
        seed=1,
        root=root,
        where="task",
    )


def tagged(tags: list[str], count: int = 30) -> list[dict[str, Any]]:
    return [{"tokens": [*SENTENCE[:2], f"{SENTENCE[2]}{n}"], "tags": tags} for n in range(count)]


@pytest.mark.parametrize("suffix", ["csv", "tsv"])
def test_a_word_a_row_is_no_sentence(suffix: str, tmp_path: Path) -> None:
    mark = {"csv": ",", "tsv": "\t"}[suffix]
    lines = [
        f"{word}{mark}{tag}"
        for word, tag in zip(SENTENCE * 20, ["O", "B-PER", "I-PER"] * 20, strict=True)
    ]
    (tmp_path / f"t.{suffix}").write_text("\n".join([f"tokens{mark}tags", *lines]) + "\n")
    with pytest.raises(
        InputError,
        match=rf"files.train: t.{suffix}: 60 of 60 rows have one token: rows are words, .*; a txt or tsv .* is read with 'columns'",
    ):
        made(tmp_path, [], files={"train": f"t.{suffix}", "test": f"t.{suffix}"})


def test_words_of_a_cell_may_stand_between_signs_that_no_text_has(tmp_path: Path) -> None:
    """As PaddleNLP gives out MSRA's names: both columns of a tsv, and a blank token among them."""
    row = "\x02".join("当 希望") + "\t" + "\x02".join(["O", "O", "B-X", "I-X"]) + "\n"
    (tmp_path / "t.tsv").write_text("tokens\ttags\n" + (row + "当\tO\n") * 9)
    found = made(tmp_path, [], files={"train": "t.tsv", "test": "t.tsv"}, language="zh")
    assert (
        found.splits["test"]["tokens"].tolist() == [["当", "希", "望"], ["当"]] * 9
        and found.info["blank_words"]["test"] == 9
    )


@pytest.mark.parametrize(
    "text", ["\u6d77\u9493\u6bd4\u8d5b\u5728NBA", "\u6d77\u9493 \u6bd4\u8d5bNBA"]
)
@pytest.mark.parametrize(
    "tags", [["O", "O", "O", "O", "O", "B-X", "I-X", "I-X"], "O O O O O B-X I-X I-X"]
)
def test_a_chinese_text_with_a_tag_for_each_character_is_its_characters(
    text: str, tags: Any, tmp_path: Path
) -> None:
    found = made(tmp_path, [{"tokens": text, "tags": tags}] * 30, language="zh")
    assert found.splits["test"]["tokens"].iloc[0] == list(text.replace(" ", ""))
    assert (
        found.info["blank_words"]["test"] == 30 * text.count(" ") and "B-X" in found.info["labels"]
    )
    for language, words in (("en", text), ("zh", text + "!")):
        with pytest.raises(InputError, match=r"row 1: \d tokens in 'tokens' and 8 tags in 'tags'"):
            made(tmp_path, [{"tokens": words, "tags": tags}] * 30, language=language)


@pytest.mark.parametrize(
    ("words", "sentences", "refused"),
    [(23, 0, False), (24, 0, True), (90, 10, False), (91, 9, True), (3, 30, False)],
)
def test_sentences_of_one_word_are_real_where_there_are_others(
    words: int, sentences: int, refused: bool, tmp_path: Path
) -> None:
    rows = [
        {"tokens": [f"w{n}"], "tags": ["B-X" if n % 2 else "O"]} for n in range(words)
    ] + tagged(["O", "B-X", "I-X"], sentences)
    if refused:
        with pytest.raises(InputError, match=f"{words} of {words + sentences} rows have one token"):
            made(tmp_path, rows)
    else:
        assert made(tmp_path, rows).info["counts"]["test"] == words + sentences


FORMS = [
    (["O", "B_PER", "I_PER"], '{"B_PER": "B-PER"}'),
    (["o", "b-per", "i-per"], '{"o": "O", "b-per": "B-per"}'), (["O", "PER-B", "PER-I"], '{"PER-B": "B-PER"}'),
    (["O", "b-PER", "i-PER"], '{"b-PER": "B-PER"}'), (["o", "B-PER", "I-PER"], '{"o": "O"}'),
    (["O", "B:PER", "E:PER"], '{"B:PER": "B-PER"}'), (["O", "per_b", "per_i"], '{"per_b": "B-per"}'),
    (["_", "B-PER", "I-PER"], '{"_": "O"}'), (["0", "B_PER", "I_PER"], '{"0": "O", "B_PER": "B-PER"}'),
]  # fmt: skip


@pytest.mark.parametrize(("tags", "names"), FORMS)
def test_spans_in_a_form_that_is_not_read_are_refused_with_what_is(
    tags: list[str], names: str, tmp_path: Path
) -> None:
    with pytest.raises(InputError) as caught:
        made(tmp_path, tagged(tags))
    assert str(caught.value).startswith(
        "task.label: the tags ("
    ) and f"write O, B-PER and I-PER, or rename them: label_map: {names}" in str(caught.value)
    found = made(tmp_path, tagged(tags), metric=["token_accuracy"]).info
    assert found["metric"] == ["token_accuracy"] and found["plain_tags"] == {}, (
        "who says so means it"
    )
    named = dict(zip(tags, ["O", "B-PER", "I-PER"], strict=True))
    assert made(tmp_path, tagged(tags), label_map=named).info["metric"][0] == "span_f1"


def test_the_brackets_of_conll_2012_are_no_plain_tags(tmp_path: Path) -> None:
    tags = ["(PERSON*", "*)", "(ORG(GPE*"]
    with pytest.raises(
        InputError,
        match=r"task\.label: the tags .* are the brackets of CoNLL-2012, which are not read; write O, B-PER and I-PER",
    ):
        made(tmp_path, tagged(tags) + tagged(["*", "(GPE)", "*"]))
    assert made(tmp_path, tagged(tags), metric=["token_accuracy"]).info["metric"] == [
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
def test_tags_without_an_o_or_with_one_that_says_no_place_are_of_no_other_form(
    tags: list[str],
) -> None:
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
def test_plain_tags_with_an_o_are_counted_unless_the_task_says_their_metric(
    tags: list[str], count: int, tmp_path: Path
) -> None:
    facts = made(tmp_path, tagged(tags)).info
    assert (
        facts["plain_tags"] == ({"train": count} if count else {}) and facts["numbered_tags"] == {}
    )
    assert compute_split_stats(facts, "train").tags_without_scheme == count
    if facts["metric"] == ["token_accuracy"]:
        assert made(tmp_path, tagged(tags), metric=["token_accuracy"]).info["plain_tags"] == {}


@pytest.mark.parametrize(("tags", "said"), [
    (["O", "PER", "PER"], "tasks.names.label: its 2 tags are plain ones, one of them such as O: no spans are read"),
    (["0", "1", "2"], "its 3 tags are numbers"),
    (["NN", "VB", "VB"], ""),
])  # fmt: skip
def test_the_check_says_what_is_not_read_as_spans(
    tags: list[str], said: str, tmp_path: Path, monkeypatch: Any, capsys: Any
) -> None:
    tree = make(tmp_path)
    (tmp_path / "t.jsonl").write_text("".join(json.dumps(row) + "\n" for row in tagged(tags)))
    tree["tasks"]["names"] = {
        "kind": "token_classification",
        "tokens": "tokens",
        "label": "tags",
        "files": {"train": "t.jsonl", "test": "t.jsonl"},
    }
    tree["grid"]["tasks"] = [*tree["grid"]["tasks"], "names"]
    write(tmp_path, tree)
    monkeypatch.chdir(tmp_path)
    check_task_data("names", read_params(), tmp_path)
    told = capsys.readouterr().err
    assert (said in told and "or say metric: [token_accuracy]" in told) if said else not told


@pytest.mark.parametrize(("name", "said"), [
    ("eng.train.txt", "has no column 'tags'; known: text; a txt does not name its columns: give 'columns', .*; a word a line with its tags"),
    ("eng.conll", r"names format '.conll'; give files of one format: .* a sentence a row with its .*; a task reads other lines of text by its key 'columns'"),
])  # fmt: skip
def test_a_file_of_conll_is_told_what_to_become(name: str, said: str, tmp_path: Path) -> None:
    (tmp_path / name).write_text("Anna NN I-PER\nwent VB O\n\n" * 9)
    task = parse_record(
        Task,
        {
            "kind": "token_classification",
            "tokens": "tokens",
            "label": "tags",
            "files": {"train": name, "test": name},
        },
        "task",
    )
    with pytest.raises(InputError, match=said):
        check_task_files(
            task, load_kind("token_classification"), root=tmp_path, where="task", read_files=True
        )


@pytest.mark.parametrize(
    ("labels", "said"),
    [
        ([5, "all"], "with 5 of them at least 1 of the 6 classes of 'six'"),
        ([6, "all"], ""),
        (["all"], ""),
    ],
)
def test_the_check_says_where_classes_have_no_label(
    labels: list[Any], said: str, tmp_path: Path, monkeypatch: Any, capsys: Any
) -> None:
    tree = make(tmp_path)
    (tmp_path / "six.csv").write_text(
        "text,label\n" + "".join(f"the {n}th text,{'abcdef'[n % 6]}\n" for n in range(60))
    )
    tree["tasks"]["six"] = {
        "kind": "text_classification",
        "text": ["text"],
        "label": "label",
        "files": {"train": "six.csv", "test": "six.csv"},
    }
    tree["grid"] |= {"tasks": [*tree["grid"]["tasks"], "six"], "label_counts": labels}
    write(tmp_path, tree)
    monkeypatch.chdir(tmp_path)
    check_task_data("six", read_params(), tmp_path)
    found = capsys.readouterr().err
    assert said in found and bool(said) == ("grid.label_counts" in found)


def test_tags_that_train_lacks_are_counted_and_refused_where_none_of_them_is_there(
    tmp_path: Path,
) -> None:
    """By the type of a span: that train has no second word of a person yet is no lack."""
    train = [{"tokens": [f"Ann{n}", "went"], "ner": ["B-PER", "O"]} for n in range(30)]
    other = [
        {"tokens": [f"Lee{n}", "Ray", "went"], "ner": ["B-PER", "I-PER", "O"]} for n in range(27)
    ]
    test = [*other, *({"tokens": [f"Rome{n}"], "ner": ["B-LOC"]} for n in range(3))]
    found = split_in_two(tmp_path, train, test).info
    assert found["unlearned_tags"] == {"train": 0, "validation": 0, "test": 3}
    assert compute_split_stats(found, "test").tags_not_in_train == 3
    assert compute_split_stats(found, "train").tags_not_in_train == 0
    named = [row | {"ner": [tag.replace("PER", "person") for tag in row["ner"]]} for row in other]
    with pytest.raises(
        InputError,
        match=r"test\.jsonl: column 'ner': none of its tags \(B-person, I-person\) occurs in train, which has B-PER; say in",
    ):
        split_in_two(tmp_path, train, named)
    names = {"B-person": "B-PER", "I-person": "I-PER"}
    assert split_in_two(tmp_path, train, named, label_map=names).info["unlearned_tags"]["test"] == 0


def split_in_two(
    root: Path, train: list[dict[str, Any]], test: list[dict[str, Any]], **keys: Any
) -> TaskItems:
    for name, rows in (("train", train), ("test", test)):
        (root / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    tree = {
        "kind": "token_classification",
        "tokens": "tokens",
        "label": "ner",
        "files": {"train": "train.jsonl", "test": "test.jsonl"},
        **keys,
    }
    return build_items(
        "x",
        parse_record(Task, tree, "task"),
        load_kind("token_classification"),
        seed=1,
        root=root,
        where="task",
    )
