"""Token classification and regression: reading the data, learning, metrics and error messages."""

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from scipy import stats

from lineage.answers.base import PredictionColumns, correct_column
from lineage.answers.metrics import (
    METRICS,
    pearson_contributions,
    span_f1_contributions,
    token_accuracy_contributions,
)
from lineage.answers.number import NumberAnswer
from lineage.answers.spans import convert_to_iob2
from lineage.answers.tags import TagsAnswer
from lineage.data.items import TaskItems
from lineage.data.task_data import TaskData
from lineage.errors import InputError
from lineage.methods import stored_features
from lineage.methods.encoding import answer_rows, collate_items, encode_sentence
from lineage.methods.linear_probe import LinearProbeMethod, fit_linear_probe
from lineage.report.notes import format_notes
from lineage.tasks.base import load_kind
from lineage.tokenizers.tokenizer import Encoding
from tests.helpers import tiny
from tests.helpers.fitting import PLAIN_FINETUNE, extract_features, finetune, predict_finetuned
from tests.helpers.tables import build_table_items

# Models of one family share a tokenizer.
ONE_PER_FAMILY = [name for name in tiny.FAMILIES if tiny.model_config(name).family.name == name]
FAST_OR_SLOW_FAMILIES = [
    name
    if name in ("word2vec", "elmo", "gpt", "bert")
    else pytest.param(name, marks=pytest.mark.slow)
    for name in ONE_PER_FAMILY
]
FINETUNE = PLAIN_FINETUNE
PROBE = LinearProbeMethod(trials=(), l2=0.0003, max_iter=100)
# The family with the smallest vocabulary.
WORDS = tiny.words("ulmfit")[:24]
ENTITIES = WORDS[:6]  # a run of these words is a span


def make_tagged_sentences(count: int, seed: int = 3) -> pd.DataFrame:
    """Return random words with tags; each run of ENTITIES is one span."""
    rng = np.random.default_rng(seed)
    tokens = [list(rng.choice(WORDS, rng.integers(2, 9))) for _ in range(count)]
    return pd.DataFrame({"tokens": tokens, "tags": [tag_entities(words) for words in tokens]})


def tag_entities(words: list[str]) -> list[str]:
    """Return B-X for the first word of each run of ENTITIES, I-X for the others, else O."""
    tags = []
    is_inside = False
    for word in words:
        if word not in ENTITIES:
            tags.append("O")
        else:
            tags.append("I-X" if is_inside else "B-X")
        is_inside = word in ENTITIES
    return tags


def build_tagging_task(
    root: Path, train: pd.DataFrame, test: pd.DataFrame, **keys: object
) -> TaskItems:
    """Build a token classification task from two tables."""
    return build_table_items(
        root,
        {"train": train, "test": test},
        validation_share=0.2,
        kind="token_classification",
        tokens="tokens",
        label="tags",
        **keys,
    )


def test_every_tag_scheme_is_converted_to_iob2(tmp_path: Path) -> None:
    assert convert_to_iob2(["I-X", "I-X", "B-X", "O", "I-Y"]) == [
        "B-X",
        "I-X",
        "B-X",
        "O",
        "B-Y",
    ], "IOB1"
    assert convert_to_iob2(["B-X", "E-X", "S-X", "O", "B-Y", "I-Y", "E-Y"]) == [
        "B-X",
        "I-X",
        "B-X",
        "O",
        "B-Y",
        "I-Y",
        "I-Y",
    ], "BIOES"
    assert convert_to_iob2(["B-X", "L-X", "U-X", "O"]) == ["B-X", "I-X", "B-X", "O"], "BILOU"
    assert convert_to_iob2(["B-X", "M-X", "M-X", "E-X", "S-X", "O"]) == [
        "B-X",
        "I-X",
        "I-X",
        "I-X",
        "B-X",
        "O",
    ], "BMES, common for Chinese"
    table = make_tagged_sentences(20)
    task = build_tagging_task(tmp_path, table, table[:4])
    assert task.info.labels == ["B-X", "I-X", "O"]
    assert task.info.metric == ["span_f1"]
    last_row = task.splits["test"].iloc[3]
    assert [task.info.labels[i] for i in last_row["label"]] == list(table["tags"][3])
    assert list(last_row["tokens"]) == list(table["tokens"][3])
    as_text = table.assign(tokens=table["tokens"].map(" ".join), tags=table["tags"].map(" ".join))
    assert (
        build_tagging_task(tmp_path, as_text, as_text[:4])
        .splits["test"]
        .equals(task.splits["test"])
    ), "a text with spaces is split into words"
    untyped = table.assign(tags=table["tags"].map(lambda tags: [tag[0] for tag in tags]))
    assert build_tagging_task(tmp_path, untyped, untyped[:4]).info.metric == ["token_accuracy"], (
        "B, I and O without a type are plain tags"
    )


@pytest.mark.parametrize(("corrupt", "message"), [
    (lambda t: t["tags"][2].append("O"), r"row 3: \d tokens in 'tokens' and \d tags in 'tags'; there must be a tag for each token"),
    (lambda t: t["tags"][2].__setitem__(1, "X-PER"), "row 3: column 'tags': tag 2 of .: 'X-PER' is neither O nor a letter of IOB"),
    (lambda t: [t["tags"][row].append("O") for row in (2, 7, 9)], r"3 rows \(3, 8, 10\): the first has \d tokens in 'tokens' and \d tags in 'tags'; there"),
    (lambda t: t["tags"].__setitem__(4, None), "row 5: column 'tags': an entry is blank, or there are none"),
    (lambda t: t["tags"].__setitem__(slice(4, 8), [None, None, [], None]), r"4 rows \(5, 6, 7, 8\): column 'tags': an entry is blank, or there are none"),
    (lambda t: [t["tags"][row].__setitem__(1, " ") for row in (2, 7)], r"2 rows \(3, 8\): column 'tags': an entry is blank, or there are none"),
    (lambda t: t["tags"][2].__setitem__(1, "B-work of art"), "row 3: column 'tags': the tag 'B-work of art' has a space in it"),
    (lambda t: t["tokens"].__setitem__(3, str(t["tokens"][3])), "row 4: column 'tokens' holds a list written as text; write the words with spaces"),
    (lambda t: t["tags"].__setitem__(slice(None), [["O"] * len(some) for some in t["tokens"]]), "every tag is 'O'; there is nothing to learn"),
])  # fmt: skip
def test_an_invalid_row_of_tags_is_refused_with_its_number(
    tmp_path: Path, corrupt: Any, message: str
) -> None:
    table = make_tagged_sentences(20)
    columns = {name: [list(row) for row in table[name]] for name in table}
    corrupt(columns)
    invalid = pd.DataFrame(columns)  # parquet cannot hold a list next to texts
    if "as text" in message:
        invalid = invalid.map(lambda cell: " ".join(cell) if isinstance(cell, list) else cell)
    with pytest.raises(InputError, match=message):
        build_tagging_task(
            tmp_path, invalid, make_tagged_sentences(4) if "every tag" not in message else invalid
        )


def test_blank_words_are_dropped_with_their_tags_and_counted(tmp_path: Path) -> None:
    """Chinese text split into characters has blank words. A label_map also names numeric tags."""
    table = make_tagged_sentences(20)
    tag_names = ["O", "B-X", "I-X"]
    expected = build_tagging_task(tmp_path, table, table[:4])
    blanks = {"tokens": "\u3000", "tags": "O"}
    spaced = table.assign(
        **{
            name: [[*values[:1], blank, *values[1:]] for values in table[name]]
            for name, blank in blanks.items()
        }
    )
    task = build_tagging_task(tmp_path, spaced, table[:4])
    assert all(
        task.splits[split].equals(expected.splits[split])
        for split in ("train", "validation", "test")
    )
    assert task.info.blank_words == {
        "train": len(task.splits["train"]),
        "validation": len(task.splits["validation"]),
        "test": 0,
    }
    numbered = table.assign(
        tags=[[tag_names.index(tag) for tag in values] for values in table["tags"]]
    )
    renamed = build_tagging_task(
        tmp_path,
        numbered,
        numbered[:4],
        label_map={str(number): name for number, name in enumerate(tag_names)},
    )
    assert renamed.splits["test"].equals(expected.splits["test"])
    assert renamed.info.metric == ["span_f1"]


def test_span_f1_is_refused_for_plain_tags(tmp_path: Path) -> None:
    table = make_tagged_sentences(20)
    table["tags"] = [
        ["NOUN" if word in ENTITIES else "VERB" for word in words] for words in table["tokens"]
    ]
    with pytest.raises(
        InputError, match=r"task.metric: span_f1 needs spans, and the tags \(NOUN, VERB"
    ):
        build_tagging_task(tmp_path, table, table[:4], metric=["span_f1"])


@pytest.mark.parametrize("name", ONE_PER_FAMILY)
@pytest.mark.parametrize("limit", [None, 14])
def test_long_sentences_are_split_into_windows_without_losing_a_word(
    name: str, limit: int | None
) -> None:
    """The pieces of each word equal those of the word alone."""
    tokenizer = tiny.tokenizer(name)
    words = tiny.documents()[0].split()[:50]
    item = encode_sentence(words, tokenizer, max_length=limit, language="en")
    assert item.num_answers == 50
    assert (len(item.encodings) > 1) == item.truncated == (limit is not None)
    assert all(limit is None or len(encoding.ids) <= limit for encoding in item.encodings)
    for number, word in enumerate(words):
        pieces_by_window = [
            encoding.ids[word_pieces[:, 0][word_pieces[:, 1] == number]]
            for encoding, word_pieces in zip(item.encodings, item.word_pieces, strict=True)
        ]
        ids = [int(id_) for pieces in pieces_by_window for id_ in pieces]
        alone = tokenizer.encode(word)
        if tokenizer.tokenizer_type == "byte_bpe":  # its pieces include the space before a word
            assert tokenizer.backend_tokenizer.decode(ids).strip() == word
        else:
            assert ids == alone.ids[alone.offsets[:, 1] > 0].tolist()


def test_a_piece_that_spans_two_words_belongs_to_both() -> None:
    """Without spaces a tokenizer may join words: pieces 今天天 and 气很好 of 今天, 天气 and 很好."""

    class JoiningTokenizer:
        def encode(self, text: str, **_: object) -> Encoding:
            assert text == "今天天气很好"
            return Encoding(np.arange(4), np.array([[0, 0], [0, 3], [3, 6], [0, 0]]))

    item = encode_sentence(
        ["今天", "天气", "很好"], JoiningTokenizer(), max_length=None, language="zh"
    )  # type: ignore[arg-type]
    assert item.word_pieces[0].tolist() == [[1, 0], [1, 1], [2, 1], [2, 2]]
    assert item.num_answers == 3


@pytest.mark.parametrize("name", FAST_OR_SLOW_FAMILIES)
def test_every_family_learns_tags_frozen_and_finetuned_in_any_batch(
    name: str, tmp_path: Path
) -> None:
    task = build_tagging_task(
        tmp_path, make_tagged_sentences(90), make_tagged_sentences(25, seed=4)
    )
    tokenizer = tiny.tokenizer(name)
    train = task.splits["train"]
    test = task.splits["test"]
    items, test_items = (tiny.encode(name, table, max_length=20) for table in (train, test))
    answer = load_kind(task.info.kind).answer.fit(task.info.labels, train)
    assert isinstance(answer, TagsAnswer) and task.info.metric == ["span_f1"]
    features, test_features = (
        extract_features(tiny.model(name), tokenizer, items_) for items_ in (items, test_items)
    )
    assert len(test_features) == sum(len(tags) for tags in test["label"])
    order = np.random.default_rng(1).permutation(len(test_items))
    shuffled_features = extract_features(
        tiny.model(name), tokenizer, [test_items[i] for i in order]
    )
    np.testing.assert_allclose(
        shuffled_features,
        test_features[np.concatenate([answer_rows(test_items)[i] for i in order])],
        atol=1e-5,
    )
    learning_rates = {"elmo": 0.03, "ulmfit": 0.02} | dict.fromkeys(tiny.STATIC, 0.05)
    settings = dataclasses.replace(FINETUNE, learning_rate=learning_rates.get(name, 0.01))
    model = finetune(tiny.model(name), tokenizer, items, answer.labels(train), answer, settings)
    predictions = [
        fit_linear_probe(features, answer.labels(train), answer, PROBE, seed=0)(test_features),
        predict_finetuned(model, tokenizer, test_items),
    ]
    # The top layer of context2vec, which fine-tuning uses, has not read the word itself.
    for prediction in predictions[: 1 if name == "context2vec" else 2]:
        columns = correct_column(answer.prediction_columns(test, prediction), "span_f1")
        assert METRICS["token_accuracy"](columns["label"], columns["prediction"]) > 0.8
        assert columns["correct"].mean() == pytest.approx(
            METRICS["span_f1"](columns["label"], columns["prediction"])
        )
    together = torch.softmax(model(collate_items(tokenizer, test_items)), -1)
    for rows, item in zip(answer_rows(test_items), test_items, strict=True):
        torch.testing.assert_close(
            torch.softmax(model(collate_items(tokenizer, [item])), -1),
            together[rows],
            atol=1e-6,
            rtol=0,
        )


def make_scored_pairs(count: int, seed: int = 5, *, second: bool = True) -> pd.DataFrame:
    """Return pairs of texts; the score counts the first word in text one, plus noise."""
    rng = np.random.default_rng(seed)
    counts = rng.integers(0, 5, count)
    first_texts = [
        " ".join(rng.permutation([WORDS[0]] * repeats + [*rng.choice(WORDS[1:], 5 - repeats)]))
        for repeats in counts
    ]
    table = pd.DataFrame(
        {
            "one": first_texts,
            "two": [" ".join(rng.choice(WORDS[1:], 4)) for _ in counts],
            "score": 10 + 3 * counts + rng.normal(0, 0.1, count),
        }
    )
    return table if second else table.drop(columns="two")


def build_regression_task(
    root: Path, train: pd.DataFrame, test: pd.DataFrame, **keys: object
) -> TaskItems:
    """Build a text regression task from two tables."""
    return build_table_items(
        root,
        {"train": train, "test": test},
        validation_share=0.2,
        **{"kind": "text_regression", "text": ["one", "two"], "label": "score", **keys},
    )


@pytest.mark.parametrize("name", FAST_OR_SLOW_FAMILIES)
def test_every_family_learns_numbers_frozen_and_finetuned(name: str, tmp_path: Path) -> None:
    task = build_regression_task(tmp_path, make_scored_pairs(120), make_scored_pairs(40, seed=6))
    tokenizer = tiny.tokenizer(name)
    train = task.splits["train"]
    test = task.splits["test"]
    items, test_items = (tiny.encode(name, table) for table in (train, test))
    answer = load_kind(task.info.kind).answer.fit(task.info.labels, train)
    assert isinstance(answer, NumberAnswer) and answer.mean == pytest.approx(train["label"].mean())
    features, test_features = (
        extract_features(tiny.model(name), tokenizer, items_) for items_ in (items, test_items)
    )
    settings = dataclasses.replace(
        FINETUNE, learning_rate=0.05 if name in tiny.STATIC else 0.01, pooling="mean"
    )
    model = finetune(tiny.model(name), tokenizer, items, answer.labels(train), answer, settings)
    for prediction in (
        fit_linear_probe(features, answer.labels(train), answer, PROBE, seed=0)(test_features),
        predict_finetuned(model, tokenizer, test_items),
    ):
        columns = correct_column(answer.prediction_columns(test, prediction), "pearson")
        value = METRICS["pearson"](columns["label"], columns["prediction"])
        assert value > 0.7 and columns["correct"].mean() == pytest.approx(value)
        assert abs(prediction.mean() - test["label"].mean()) < 3, (
            "predictions are on the scale of the labels"
        )


def test_fitting_a_probe_in_chunks_gives_the_same_probe(monkeypatch: pytest.MonkeyPatch) -> None:
    """Features become float64 one chunk at a time."""
    rng = np.random.default_rng(2)
    features = rng.normal(size=(90, 3, 7)).astype(np.float32)
    labels = rng.integers(3, size=90)
    expected = fit_linear_probe(features, labels, tiny.label_answer(3), PROBE, seed=0)(features)
    sizes = [0]
    double = torch.Tensor.double

    def recording_double(x: torch.Tensor) -> torch.Tensor:
        if x.ndim == 3:
            sizes.append(x.numel())
        return double(x)

    monkeypatch.setattr(torch.Tensor, "double", recording_double)
    monkeypatch.setattr(stored_features, "CHUNK_SIZE", 210)
    actual = fit_linear_probe(features, labels, tiny.label_answer(3), PROBE, seed=0)(features)
    np.testing.assert_allclose(actual, expected, atol=1e-9)
    assert max(sizes) == 210, "a chunk has ten items"


def test_an_invalid_number_is_refused_with_its_row(tmp_path: Path) -> None:
    table = make_scored_pairs(30)
    for value, message in (
        ("high", "row 4: column 'score': 'high' is not a finite number"),
        (float("inf"), "row 4: column 'score': 'inf' is not a finite number"),
    ):
        invalid = table.astype({"score": object})
        invalid.loc[3, "score"] = value
        invalid.to_csv(tmp_path / "bad.csv", index=False)
        with pytest.raises(InputError, match=message):
            build_table_items(
                tmp_path,
                {"test": table},
                kind="text_regression",
                text=["one"],
                label="score",
                files={"train": "bad.csv", "test": "test.parquet"},
            )
    with pytest.raises(InputError, match=r"every number is 2\.0; there is nothing to learn"):
        build_regression_task(tmp_path, table.assign(score=2), table)


def number_columns(labels: np.ndarray, predictions: np.ndarray) -> PredictionColumns:
    answer = NumberAnswer(mean=0.0, std=1.0)
    return answer.prediction_columns(pd.DataFrame({"label": labels}), predictions[:, None])


def test_constant_predictions_have_no_correlation_but_varying_ones_do() -> None:
    for metric in ("pearson", "spearman"):
        assert np.isnan(
            correct_column(number_columns(np.arange(5.0), np.ones(5)), metric)["correct"]
        ).all()
    for labels in (
        np.array([0.0] * 30 + [5.0]),
        np.array([1.3] * 37 + [3.7]),
        np.array([0.0, 1.0]),
    ):
        predictions = np.random.default_rng(2).normal(size=len(labels))
        for metric in ("pearson", "spearman"):
            assert correct_column(number_columns(labels, predictions), metric)[
                "correct"
            ].mean() == pytest.approx(METRICS[metric](labels, predictions))


def test_contributions_average_to_the_score_and_match_the_jackknife() -> None:
    """For Pearson's correlation they equal the jackknife's.

    For F1 and accuracy they are first-order, so that their spread is near the jackknife's.
    """
    rng = np.random.default_rng(2)
    x = rng.normal(size=60)
    y = x + rng.normal(size=60)
    leave_one_out_pearson = np.array(
        [stats.pearsonr(np.delete(x, i), np.delete(y, i)).statistic for i in range(60)]
    )
    expected = 60 * stats.pearsonr(x, y).statistic - 59 * leave_one_out_pearson
    contributions = pearson_contributions(x, y)
    np.testing.assert_allclose(
        contributions - contributions.mean(), expected - expected.mean(), atol=1e-9
    )
    assert contributions.mean() == pytest.approx(stats.pearsonr(x, y).statistic)
    labels = np.array([" ".join(tags) for tags in make_tagged_sentences(200)["tags"]], object)
    predictions = np.array(
        [" ".join("O" if rng.random() < 0.3 else tag for tag in tags.split()) for tags in labels],
        object,
    )
    for metric, contributions_of in (
        ("span_f1", span_f1_contributions),
        ("token_accuracy", token_accuracy_contributions),
    ):
        item_contributions = contributions_of(labels, predictions)
        assert item_contributions.mean() == pytest.approx(METRICS[metric](labels, predictions))
        leave_one_out = np.array(
            [METRICS[metric](np.delete(labels, i), np.delete(predictions, i)) for i in range(200)]
        )
        assert item_contributions.std() == pytest.approx(199 * leave_one_out.std(), rel=0.05)


def test_tfidf_learns_tags_and_numbers_and_a_constant_has_no_pearson(tmp_path: Path) -> None:
    task = build_tagging_task(
        tmp_path, make_tagged_sentences(90), make_tagged_sentences(25, seed=4)
    )
    results = list(
        tiny.evaluate_baselines(
            load_kind("token_classification"), TaskData(task.info, task.splits), tfidf_C=(10.0,)
        )
    )
    values = {
        row.model: row.value
        for result_rows, _ in results
        for row in result_rows
        if row.metric == "span_f1" and row.split == "test"
    }
    assert values["majority"] == 0 and values["tfidf"] is not None and values["tfidf"] > 0.9
    predictions = next(table for result_rows, table in results if result_rows[0].model == "tfidf")
    predictions = predictions[predictions["split"] == "test"]
    assert predictions["correct"].mean() == pytest.approx(values["tfidf"])
    assert len(predictions) == 25
    two_words = pd.DataFrame({"tokens": [WORDS[:2]], "tags": [["B-X", "O"]]})
    two_word_task = build_table_items(
        tmp_path,
        {"train": two_words, "validation": two_words, "test": two_words},
        kind="token_classification",
        tokens="tokens",
        label="tags",
    )
    (_, _), (two_word_rows, _) = tiny.evaluate_baselines(
        load_kind("token_classification"), TaskData(two_word_task.info, two_word_task.splits)
    )
    assert two_word_rows[0].model == "tfidf" and two_word_rows[0].value == 1, (
        "the two words share no character"
    )
    task = build_regression_task(tmp_path, make_scored_pairs(120), make_scored_pairs(40, seed=6))
    rows = {
        row.model: row
        for result_rows, _ in tiny.evaluate_baselines(
            load_kind("text_regression"), TaskData(task.info, task.splits), tfidf_C=(10.0,)
        )
        for row in result_rows
    }
    assert rows["majority"].status == "not_applicable"
    assert "pearson is not defined where all" in format_notes(rows["majority"].reason)
    assert rows["tfidf"].value is not None and rows["tfidf"].value > 0.7
