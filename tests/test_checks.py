"""Contradictions within params.yaml are rejected before anything runs."""

import re
from pathlib import Path
from typing import Any

import pytest

from lineage.config.data import Task, extra_test_task
from lineage.config.params import Params, parse_params
from lineage.config.records import parse_record, read_yaml
from lineage.config.resolve import merge_trees
from lineage.data.checks import TextLengthLimit, check_corpus, check_task_data
from lineage.errors import InputError
from lineage.study.checks import check_study, text_length_limits
from lineage.study.models import load_model_config
from lineage.tasks.base import check_extra_texts, check_task, load_kind
from tests.helpers.tasks import write_jsonl

SHIPPED = read_yaml(Path(__file__).resolve().parent.parent / "params.yaml")
MINIMAL_PAIRS_TASK = {
    "kind": "minimal_pairs",
    "files": {"test": "pairs.jsonl"},
    "good": "good",
    "bad": "bad",
}
TRANSLATION_TASK = {
    "kind": "translation",
    "files": {"train": "t.jsonl", "test": "t.jsonl"},
    "source": "en",
    "target": "de",
}
TAGGING_TASK = {
    "kind": "token_classification",
    "language": "zh",
    "files": {"train": "t.jsonl", "test": "t.jsonl"},
    "tokens": "tokens",
    "label": "tags",
}


def build_params(overrides: dict[str, Any], models: list[str], tasks: list[str]) -> Params:
    """Return the shipped parameters with changes, for these models and tasks only."""
    grid = {"models": models, "tasks": tasks, "adapt_models": [], "adapt_tasks": []}
    tree = merge_trees(SHIPPED, overrides)
    tree = merge_trees(tree, {"grid": grid | overrides.get("grid", {})})
    return parse_params(tree, "params.yaml")


def find_length_limits(params: Params) -> dict[str, TextLengthLimit]:
    """Return the limits that the models set for the texts of the task `mine`."""
    models = {name: load_model_config(params, name) for name in params.models}
    return text_length_limits(params, models, "mine")


def add_task(task: dict[str, Any], **other_blocks: Any) -> dict[str, Any]:
    return {"tasks": {"mine": task}, **other_blocks}


@pytest.mark.parametrize(("overrides", "models", "tasks", "message"), [
    (add_task(TRANSLATION_TASK), ["gpt", "bert"], ["mine"], "grid.tasks: mine is of kind translation, which no model of grid.models supports"),
    (add_task(MINIMAL_PAIRS_TASK), ["word2vec"], ["mine"], "grid.tasks: mine is of kind minimal_pairs, which no model of grid.models supports"),
    ({"models": {"gpt": {"architecture": {"num_heads": 1100}}}}, ["gpt"], ["sentiment"], "num_heads is 1100, and no hidden_size up to 4,096 gives each head four units"),
])  # fmt: skip
def test_settings_that_contradict_each_other_are_rejected(
    overrides: dict[str, Any], models: list[str], tasks: list[str], message: str
) -> None:
    with pytest.raises(InputError, match=re.escape(message)):
        check_study(build_params(overrides, models, tasks))


def test_a_task_that_only_one_of_two_models_supports_is_accepted() -> None:
    check_study(
        build_params(
            add_task(MINIMAL_PAIRS_TASK | {"max_words": 50}),
            ["word2vec", "gpt"],
            ["mine", "sentiment"],
        )
    )


@pytest.mark.parametrize(("overrides", "models", "message"), [
    (add_task(TRANSLATION_TASK, models={"seq2seq": {"tokenizer": {"lowercase": True}}}), ["seq2seq"],
     "models.seq2seq.tokenizer.lowercase: the model writes no capitals, but the reference translations of 'mine' may have them"),
    (add_task(TRANSLATION_TASK), ["seq2seq"], None),
    (add_task(TAGGING_TASK | {"max_words": 50}), ["gpt", "elmo"], "tasks.mine.language: zh, but that of the corpus is en: elmo would take a clause for one word"),
    (add_task(TAGGING_TASK | {"max_words": 50}), ["gpt", "bert"], None),
    (add_task(TAGGING_TASK | {"max_words": 50}, corpora={"general": {"language": "zh"}}), ["elmo"], None),
])  # fmt: skip
def test_suspicious_settings_cause_a_warning(
    overrides: dict[str, Any],
    models: list[str],
    message: str | None,
    capsys: pytest.CaptureFixture[str],
) -> None:
    check_study(build_params(overrides, models, ["mine"]))
    printed = capsys.readouterr().err
    if message:
        assert message in printed
    else:
        assert printed == ""


def test_a_sentence_too_long_to_be_scored_is_rejected_before_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    params = build_params(add_task(MINIMAL_PAIRS_TASK), ["word2vec", "gpt"], ["mine"])
    limits = find_length_limits(params)
    max_words = SHIPPED["models"]["gpt"]["pretrain"]["seq_len"] - 2
    assert limits == {"models.gpt.pretrain.seq_len": TextLengthLimit(max_words)}
    for words in (max_words, max_words + 1):
        rows = [{"good": "a b .", "bad": "b a ."}, {"good": "w " * (words - 1) + "x", "bad": "w y"}]
        write_jsonl(tmp_path / "pairs.jsonl", rows)
        if words == max_words:
            check_task_data("mine", params, tmp_path, limits)
    message = f"params.yaml: models.gpt.pretrain.seq_len: a text of 'mine' has {max_words + 1} words, and at most {max_words}, special tokens included, are read"
    with pytest.raises(InputError, match=re.escape(message)):
        check_task_data("mine", params, tmp_path, limits)


def test_a_train_translation_too_long_to_be_generated_is_rejected(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Longer translations are allowed in test, where they are scored as usual."""
    monkeypatch.chdir(tmp_path)
    params = build_params(
        add_task(TRANSLATION_TASK | {"files": {"train": "t.jsonl", "test": "s.jsonl"}}),
        ["seq2seq"],
        ["mine"],
    )
    limits = find_length_limits(params)
    assert limits == {
        "models.seq2seq.evaluate.translation.max_new_tokens": TextLengthLimit(
            99, label_counts=("all",)
        )
    }
    for name, words in (("t", 99), ("s", 500), ("t", 100)):
        rows = [{"en": f"a {n} .", "de": "w " * (words - 1) + f"x{n}"} for n in range(30)]
        write_jsonl(tmp_path / f"{name}.jsonl", rows)
        if name == "s":
            check_task_data("mine", params, tmp_path, limits)
    with pytest.raises(
        InputError,
        match="max_new_tokens: a text of 'mine' has 100 words, and at most 99, special tokens included",
    ):
        check_task_data("mine", params, tmp_path, limits)


@pytest.mark.parametrize(("family", "language", "by_characters"), [
    ("bert", "zh", True), ("gpt_one", "zh", True), ("gpt", "zh", False), ("bert", "ja", False), ("bert", "en", False),
])  # fmt: skip
def test_chinese_is_counted_by_characters_if_each_is_a_piece(
    family: str, language: str, by_characters: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """GPT-1's tokenizer splits Chinese characters too; no tokenizer splits a run of kana."""
    monkeypatch.chdir(tmp_path)
    gpt_tokenizer = {"models": {"gpt": {"tokenizer": {"end_of_word_suffix": family == "gpt_one"}}}}
    params = build_params(
        add_task(MINIMAL_PAIRS_TASK | {"language": language}, **gpt_tokenizer),
        [family.removesuffix("_one")],
        ["mine"],
    )
    ((key, limit),) = find_length_limits(params).items()
    assert limit.in_characters is by_characters
    letter = {"zh": "我", "ja": "の", "en": "a"}[language]
    rows = [
        {"good": "我 们 .", "bad": "们 我 ."},
        {"good": letter * (limit.max_length + 1), "bad": "们"},
    ]
    write_jsonl(tmp_path / "pairs.jsonl", rows)
    if not by_characters:
        check_task_data("mine", params, tmp_path, {key: limit})
        return
    message = f"{key}: a text of 'mine' has {limit.max_length + 1} characters, and at most {limit.max_length}, special tokens included, are read"
    with pytest.raises(InputError, match=re.escape(message)):
        check_task_data("mine", params, tmp_path, {key: limit})


@pytest.mark.parametrize(
    ("label_counts", "finetune_label_counts", "is_rejected"),
    [(["all"], [], True), ([10], [], False), ([10, 30], [], True), ([10, "all"], [10], False)],
)
def test_long_translations_are_rejected_only_if_they_may_be_used(
    label_counts: list[Any],
    finetune_label_counts: list[int],
    is_rejected: bool,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """With fewer pairs than all, a long translation can be left out."""
    monkeypatch.chdir(tmp_path)
    rows = [{"en": f"a {n} .", "de": "w " * 120 + f"x{n}"} for n in range(30)]
    write_jsonl(tmp_path / "t.jsonl", rows)
    overrides = add_task(
        TRANSLATION_TASK,
        grid={"label_counts": label_counts},
        models={"seq2seq": {"evaluate": {"finetune": {"label_counts": finetune_label_counts}}}},
    )
    params = build_params(overrides, ["seq2seq"], ["mine"])
    limits = find_length_limits(params)
    if not is_rejected:
        check_task_data("mine", params, tmp_path, limits)
        return
    with pytest.raises(
        InputError,
        match="a text of 'mine' has 121 words, and at most 99, special tokens included, are read at once; raise it, or",
    ):
        check_task_data("mine", params, tmp_path, limits)


@pytest.mark.parametrize(("kind", "columns", "extra_columns", "is_rejected"), [
    ("text_classification", ["a"], ["a", "b"], True), ("text_classification", ["a", "b"], ["c"], True),
    ("text_classification", ["a", "b"], ["c", "d"], False), ("multiple_choice", ["a"], ["a", "b"], False),
])  # fmt: skip
def test_an_extra_test_set_must_have_as_many_texts_as_the_task_unless_they_are_joined(
    kind: str, columns: list[str], extra_columns: list[str], is_rejected: bool
) -> None:
    extra = {"far": {"files": {"test": "f.csv"}, "text": extra_columns}}
    block = {"text": columns, "files": {"train": "t.csv"}, "extra_test_sets": extra}
    if kind == "multiple_choice":
        block["choices"] = ["x", "y"]
    task = parse_record(Task, {"kind": kind, "label": "l", **block}, "task")
    extra_task = extra_test_task(task, "far", "task")
    assert extra_task.text == tuple(extra_columns)
    if not is_rejected:
        check_extra_texts(task, extra_task, load_kind(kind), "task.extra_test_sets.far")
        return
    message = rf"task\.extra_test_sets\.far\.text: {len(extra_columns)} columns, but the task's own items have {len(columns)}"
    with pytest.raises(InputError, match=message):
        check_extra_texts(task, extra_task, load_kind(kind), "task.extra_test_sets.far")


@pytest.mark.parametrize("key", ["text", "choices"])
def test_an_empty_list_of_columns_is_rejected(key: str) -> None:
    keys = {"text": ["a"], "choices": ["x", "y"], "label": "l", "files": {"test": "t.csv"}}
    task = parse_record(Task, {"kind": "multiple_choice", **keys, key: []}, "task")
    with pytest.raises(InputError, match=f"'{key}' is empty; name at least one column"):
        check_task(task, load_kind("multiple_choice"), "task")


@pytest.mark.parametrize(
    ("text_bytes", "warning"),
    [
        (600_000, "600,000 are 1.0 passes over the "),
        (1_700_000, ""),  # 2.9 passes
    ],
)
def test_fewer_than_three_passes_over_little_text_are_warned_of(
    text_bytes: int, warning: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    lines = "".join(f"line {number} of this text\n" for number in range(30_000))
    (tmp_path / "a.txt").write_text(lines)
    source = {"files": "a.txt", "document_unit": "line"}
    corpora = {"general": {"language": "en", "sources": [source], "min_characters": 1}}
    budget = {"text_bytes": text_bytes}
    params = build_params({"corpora": corpora, "budget": budget}, ["gpt"], ["sense"])
    check_corpus("general", params, {}, {}, tmp_path)
    error = capsys.readouterr().err
    assert warning in error and bool(error) == bool(warning), error


@pytest.mark.parametrize(("num_rows", "is_warned"), [(19, True), (20, False)])
def test_few_labelled_rows_are_warned_of(
    num_rows: int, is_warned: bool, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name, count in (("train", num_rows), ("validation", 40), ("test", 40)):
        rows = [{"text": f"{name} text {n}", "label": str(n % 2)} for n in range(count)]
        write_jsonl(tmp_path / f"{name}.jsonl", rows)
    task = {
        "kind": "text_classification",
        "language": "en",
        "files": {name: f"{name}.jsonl" for name in ("train", "validation", "test")},
        "text": ["text"],
        "label": "label",
        "max_words": 8,
    }
    params = build_params(add_task(task), ["gpt"], ["mine"])
    check_task_data("mine", params, tmp_path)
    assert ("19 training rows are too few" in capsys.readouterr().err) is is_warned
