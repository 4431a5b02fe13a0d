"""What only the whole of params.yaml can tell is refused before anything runs, and not found after hours."""

import json
import re
from pathlib import Path
from typing import Any

import pytest

from flows.profiles import merge_params
from lineage.config.checks import check_study, text_length_limits
from lineage.config.data import Task, extra_test_task
from lineage.config.params import Params, parse_params
from lineage.config.records import parse_record, read_yaml
from lineage.config.study import load_model_config
from lineage.data.checks import TextLengthLimit, check_task_data
from lineage.errors import InputError

SHIPPED = read_yaml(Path(__file__).resolve().parent.parent / "params.yaml")
PAIRS = {"kind": "minimal_pairs", "files": {"test": "pairs.jsonl"}, "good": "good", "bad": "bad"}
TRANSLATE = {
    "kind": "translation",
    "files": {"train": "t.jsonl", "test": "t.jsonl"},
    "source": "en",
    "target": "de",
}
TAGS = {
    "kind": "token_classification",
    "language": "zh",
    "files": {"train": "t.jsonl", "test": "t.jsonl"},
    "tokens": "tokens",
    "label": "tags",
}


def study(over: dict[str, Any], families: list[str], tasks: list[str]) -> Params:
    """The shipped parameters with others, these families and these tasks alone."""
    grid = {"models": families, "tasks": tasks, "adapt_models": [], "adapt_tasks": []}
    return parse_params(
        merge_params(merge_params(SHIPPED, over), {"grid": grid | over.get("grid", {})}),
        "params.yaml",
    )


def with_task(task: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {"tasks": {"mine": task}, **more}


@pytest.mark.parametrize(("over", "families", "tasks", "message"), [
    (with_task(TRANSLATE), ["gpt", "bert"], ["mine"], "grid.tasks: mine is of kind translation, which no model of grid.models supports"),
    (with_task(PAIRS), ["word2vec"], ["mine"], "grid.tasks: mine is of kind minimal_pairs, which no model of grid.models supports"),
    ({"models": {"gpt": {"architecture": {"num_heads": 1100}}}}, ["gpt"], ["sentiment"], "num_heads is 1100, and no hidden_size up to 4,096 gives each head four units"),
])  # fmt: skip
def test_parts_that_do_not_fit_each_other(
    over: dict[str, Any], families: list[str], tasks: list[str], message: str
) -> None:
    with pytest.raises(InputError, match=re.escape(message)):
        check_study(study(over, families, tasks))


def test_a_task_that_one_of_two_families_can_answer_is_none_that_nobody_can() -> None:
    check_study(
        study(with_task(PAIRS | {"max_tokens": 50}), ["word2vec", "gpt"], ["mine", "sentiment"])
    )


@pytest.mark.parametrize(("over", "families", "said"), [
    (with_task(TRANSLATE, models={"seq2seq": {"tokenizer": {"lowercase": True}}}), ["seq2seq"],
     "models.seq2seq.tokenizer.lowercase: the model writes no capitals, but the reference translations of 'mine' may have them"),
    (with_task(TRANSLATE), ["seq2seq"], None),
    (with_task(TAGS | {"max_tokens": 50}), ["gpt", "elmo"], "tasks.mine.language: zh, but that of the corpus is en: elmo would take a clause for one word"),
    (with_task(TAGS | {"max_tokens": 50}), ["gpt", "bert"], None),
    (with_task(TAGS | {"max_tokens": 50}, corpora={"general": {"language": "zh"}}), ["elmo"], None),
])  # fmt: skip
def test_what_may_be_meant_is_told(
    over: dict[str, Any], families: list[str], said: str | None, capsys: pytest.CaptureFixture[str]
) -> None:
    check_study(study(over, families, ["mine"]))
    shown = capsys.readouterr().err
    assert said in shown if said else shown == ""


def test_a_sentence_that_cannot_be_scored_in_parts_is_found_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    params = study(with_task(PAIRS), ["word2vec", "gpt"], ["mine"])
    longest = text_length_limits(
        params, {name: load_model_config(params, name) for name in params.models}, "mine"
    )
    most = SHIPPED["models"]["gpt"]["pretrain"]["seq_len"] - 2
    assert longest == {"models.gpt.pretrain.seq_len": TextLengthLimit(most)}
    for words in (most, most + 1):
        rows = [{"good": "a b .", "bad": "b a ."}, {"good": "w " * (words - 1) + "x", "bad": "w y"}]
        (tmp_path / "pairs.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
        if words == most:
            check_task_data("mine", params, tmp_path, longest)
    said = f"params.yaml: models.gpt.pretrain.seq_len: a text of 'mine' has {most + 1} words, and at most {most}, special tokens included, are read"
    with pytest.raises(InputError, match=re.escape(said)):
        check_task_data("mine", params, tmp_path, longest)


def test_a_translation_that_cannot_be_written_is_found_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of train alone: a longer one of test is scored as it is."""
    monkeypatch.chdir(tmp_path)
    params = study(
        with_task(TRANSLATE | {"files": {"train": "t.jsonl", "test": "s.jsonl"}}),
        ["seq2seq"],
        ["mine"],
    )
    longest = text_length_limits(
        params, {name: load_model_config(params, name) for name in params.models}, "mine"
    )
    assert longest == {
        "models.seq2seq.evaluate.translation.max_new_tokens": TextLengthLimit(
            99, label_counts=(100, "all")
        )
    }
    for name, words in (("t", 99), ("s", 500), ("t", 100)):
        rows = [{"en": f"a {n} .", "de": "w " * (words - 1) + f"x{n}"} for n in range(30)]
        (tmp_path / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
        if name == "s":
            check_task_data("mine", params, tmp_path, longest)
    with pytest.raises(
        InputError,
        match=re.escape(
            "evaluate.translation.max_new_tokens: a text of 'mine' has 100 words, and at most 99, special tokens included"
        ),
    ):
        check_task_data("mine", params, tmp_path, longest)


@pytest.mark.parametrize(("family", "language", "counted"), [
    ("bert", "zh", True), ("gpt_one", "zh", True), ("gpt", "zh", False), ("bert", "ja", False), ("bert", "en", False),
])  # fmt: skip
def test_a_sentence_without_spaces_is_counted_by_characters_where_each_is_a_piece(
    family: str, language: str, counted: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """GPT-1's pieces part Chinese characters too, and nobody's a run of kana."""
    monkeypatch.chdir(tmp_path)
    one = {"models": {"gpt": {"tokenizer": {"end_of_word_suffix": family == "gpt_one"}}}}
    params = study(
        with_task(PAIRS | {"language": language}, **one), [family.removesuffix("_one")], ["mine"]
    )
    ((key, limit),) = text_length_limits(
        params, {name: load_model_config(params, name) for name in params.models}, "mine"
    ).items()
    assert limit.in_characters is counted
    letter = {"zh": "我", "ja": "の", "en": "a"}[language]
    rows = [
        {"good": "我 们 .", "bad": "们 我 ."},
        {"good": letter * (limit.max_length + 1), "bad": "们"},
    ]
    (tmp_path / "pairs.jsonl").write_text(
        "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)
    )
    if not counted:
        check_task_data("mine", params, tmp_path, {key: limit})
        return
    said = f"{key}: a text of 'mine' has {limit.max_length + 1} characters, and at most {limit.max_length}, special tokens included, are read"
    with pytest.raises(InputError, match=re.escape(said)):
        check_task_data("mine", params, tmp_path, {key: limit})


@pytest.mark.parametrize(
    ("labels", "own", "refused"),
    [(["all"], [], True), ([10], [], False), ([10, 30], [], True), ([10, "all"], [10], False)],
)
def test_of_fewer_pairs_than_all_a_long_translation_may_be_left_out(
    labels: list[Any],
    own: list[int],
    refused: bool,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    rows = [{"en": f"a {n} .", "de": "w " * 120 + f"x{n}"} for n in range(30)]
    (tmp_path / "t.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    over = with_task(
        TRANSLATE,
        grid={"label_counts": labels},
        models={"seq2seq": {"evaluate": {"finetune": {"label_counts": own}}}},
    )
    params = study(over, ["seq2seq"], ["mine"])
    longest = text_length_limits(params, {"seq2seq": load_model_config(params, "seq2seq")}, "mine")
    if not refused:
        check_task_data("mine", params, tmp_path, longest)
        return
    with pytest.raises(
        InputError,
        match="a text of 'mine' has 121 words, and at most 99, special tokens included, are read at once; raise it, or",
    ):
        check_task_data("mine", params, tmp_path, longest)


@pytest.mark.parametrize(
    ("own", "second", "refused"),
    [(["a"], ["a", "b"], True), (["a", "b"], ["c"], True), (["a", "b"], ["c", "d"], False)],
)
@pytest.mark.parametrize("kind", ["text_classification", "multiple_choice"])
def test_a_second_test_set_has_as_many_texts(
    own: list[str], second: list[str], refused: bool, kind: str
) -> None:
    more = {"choices": ["x", "y"]} if kind == "multiple_choice" else {}
    tree = {
        "kind": kind,
        "text": own,
        "label": "l",
        "files": {"train": "t.csv"},
        "extra_test_sets": {"far": {"files": {"test": "f.csv"}, "text": second}},
    }
    task = parse_record(Task, tree | more, "task")
    if refused and kind == "text_classification":
        with pytest.raises(
            InputError,
            match=rf"task\.extra_test_sets\.far\.text: {len(second)} columns, but the task's own items have {len(own)}",
        ):
            extra_test_task(task, "far", "task")
    else:
        assert extra_test_task(task, "far", "task").text == tuple(second)


@pytest.mark.parametrize("key", ["text", "choices"])
def test_an_empty_list_of_columns_is_refused(key: str) -> None:
    with pytest.raises(InputError, match=f"'{key}' is empty; name at least one column"):
        parse_record(
            Task,
            {
                "kind": "multiple_choice",
                "text": ["a"],
                "choices": ["x", "y"],
                "label": "l",
                "files": {"test": "t.csv"},
                key: [],
            },
            "task",
        )
