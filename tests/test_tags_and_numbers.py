"""Tasks whose answer is no label: a tag for every word, of which none is lost, and numbers; what each is scored by, and what is refused."""

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from scipy import stats

from lineage.config.data import Task
from lineage.config.records import parse_record
from lineage.data.items import TaskItems, build_items
from lineage.data.task_data import TaskData
from lineage.errors import InputError
from lineage.evaluation import linear_probe
from lineage.evaluation.answers import NumberAnswer, TagsAnswer, make_answer
from lineage.evaluation.baselines import evaluate_baselines
from lineage.evaluation.encoding import answer_rows, collate_items, encode_items, encode_sentence
from lineage.evaluation.finetuning import finetune, predict_finetuned
from lineage.evaluation.linear_probe import extract_features, fit_linear_probe
from lineage.evaluation.metrics import (
    METRICS,
    pearson_contributions,
    span_f1_contributions,
    token_accuracy_contributions,
)
from lineage.evaluation.predictions import add_correct_column, format_number_predictions
from lineage.evaluation.settings import FinetuneSettings, LinearProbeSettings
from lineage.evaluation.spans import convert_to_iob2
from lineage.report.notes import format_notes
from lineage.tasks.base import load_kind
from lineage.tokenizers.tokenizer import Encoding
from tests import tiny

NAMES = [
    name for name in tiny.FAMILIES if tiny.variant(name).family.name == name
]  # variants of a family read alike
LEARNING = [
    name
    if name in ("word2vec", "elmo", "gpt", "bert")
    else pytest.param(name, marks=pytest.mark.slow)
    for name in NAMES
]
TUNED = FinetuneSettings(
    epochs=12,
    batch_size=8,
    learning_rate=0.01,
    layer_lr_decay=1.0,
    cut_frac=0.1,
    ratio=32.0,
    gradual_unfreezing=0.0,
    weight_decay=0.0,
    dropout=0.0,
    max_grad_norm=1.0,
)
FROZEN = LinearProbeSettings(l2=0.0003, max_iter=100)
WORDS = sorted(
    word for word in tiny.reader("ulmfit").backend_tokenizer.get_vocab() if word.isalpha()
)[:24]  # the smallest vocabulary
ENTITIES = WORDS[:6]  # of which a run is a span


def sentences(count: int, seed: int = 3) -> pd.DataFrame:
    """Words at random; one of ENTITIES is a span's, and begins it where the word before is none."""
    rng = np.random.default_rng(seed)
    tokens = [list(rng.choice(WORDS, rng.integers(2, 9))) for _ in range(count)]
    inside = [[word in ENTITIES for word in some] for some in tokens]
    tags = [
        ["O" if not here else "I-X" if i and some[i - 1] else "B-X" for i, here in enumerate(some)]
        for some in inside
    ]
    return pd.DataFrame({"tokens": tokens, "tags": tags})


def made(root: Path, tables: dict[str, pd.DataFrame], **keys: object) -> TaskItems:
    for split, table in tables.items():
        table.to_parquet(root / f"{split}.parquet")
    task = parse_record(
        Task,
        {"files": {split: f"{split}.parquet" for split in tables}, "validation_share": 0.2, **keys},
        "task",
    )
    return build_items("x", task, load_kind(task.kind), seed=1, root=root, where="task")


def tagged(root: Path, train: pd.DataFrame, test: pd.DataFrame, **keys: object) -> TaskItems:
    return made(
        root,
        {"train": train, "test": test},
        kind="token_classification",
        tokens="tokens",
        label="tags",
        **keys,
    )


def test_tags_come_in_any_scheme_and_leave_in_iob2(tmp_path: Path) -> None:
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
    ], "BMES, as much of Chinese is tagged"
    table = sentences(20)
    whole = tagged(tmp_path, table, table[:4])
    assert (
        whole.info["labels"] == ["B-X", "I-X", "O"]
        and whole.info["metric"] == ["span_f1"]
        and whole.info["answer"] == "tags"
    )
    last = whole.splits["test"].iloc[3]
    assert [whole.info["labels"][i] for i in last["label"]] == list(table["tags"][3]) and list(
        last["tokens"]
    ) == list(table["tokens"][3])
    written = table.assign(tokens=table["tokens"].map(" ".join), tags=table["tags"].map(" ".join))
    assert tagged(tmp_path, written, written[:4]).splits["test"].equals(whole.splits["test"]), (
        "a text with spaces is a list"
    )
    plain = table.assign(tags=table["tags"].map(lambda tags: [tag[0] for tag in tags]))
    assert tagged(tmp_path, plain, plain[:4]).info["metric"] == ["token_accuracy"], (
        "B, I and O alone are no types"
    )


@pytest.mark.parametrize(("spoil", "said"), [
    (lambda t: t["tags"][2].append("O"), r"row 3: \d tokens in 'tokens' and \d tags in 'tags'; there must be a tag for each token"),
    (lambda t: t["tags"][2].__setitem__(1, "X-PER"), "row 3: column 'tags': tag 2 of .: 'X-PER' is neither O nor a letter of IOB"),
    (lambda t: t["tags"].__setitem__(4, None), "row 5: column 'tags': an entry is blank, or there are none"),
    (lambda t: t["tags"][2].__setitem__(1, "B-work of art"), "row 3: column 'tags': the tag 'B-work of art' has a space in it"),
    (lambda t: t["tokens"].__setitem__(3, str(t["tokens"][3])), "row 4: column 'tokens' holds a list written as text; write the words with spaces"),
    (lambda t: t["tags"].__setitem__(slice(None), [["O"] * len(some) for some in t["tokens"]]), "every tag is 'O'; there is nothing to learn"),
])  # fmt: skip
def test_what_is_no_row_of_tags_is_refused_with_its_row(
    tmp_path: Path, spoil: Any, said: str
) -> None:
    table = sentences(20)
    columns = {name: [list(row) for row in table[name]] for name in table}
    spoil(columns)
    bad = pd.DataFrame(columns)  # a list beside texts is no table of parquet
    bad = (
        bad.map(lambda cell: cell if isinstance(cell, str) or cell is None else " ".join(cell))
        if "as text" in said
        else bad
    )
    with pytest.raises(InputError, match=said):
        tagged(tmp_path, bad, sentences(4) if "every tag" not in said else bad)


def test_blank_words_are_left_out_with_their_tags_and_counted(tmp_path: Path) -> None:
    """As in Chinese text that was cut into characters, spaces too. Tags may be numbers, which `names` gives the names of."""
    table, names = sentences(20), ["O", "B-X", "I-X"]
    plain = tagged(tmp_path, table, table[:4])
    more = {"tokens": "\u3000", "tags": "O"}
    spaced = table.assign(
        **{
            name: [[*own[:1], blank, *own[1:]] for own in table[name]]
            for name, blank in more.items()
        }
    )
    made = tagged(tmp_path, spaced, table[:4])
    assert all(
        made.splits[split].equals(plain.splits[split]) for split in ("train", "validation", "test")
    )
    assert made.info["blank_words"] == {
        "train": len(made.splits["train"]),
        "validation": len(made.splits["validation"]),
        "test": 0,
    }
    numbered = table.assign(tags=[[names.index(tag) for tag in own] for own in table["tags"]])
    named = tagged(
        tmp_path,
        numbered,
        numbered[:4],
        label_map={str(place): name for place, name in enumerate(names)},
    )
    assert named.splits["test"].equals(plain.splits["test"]) and named.info["metric"] == ["span_f1"]


def test_spans_are_not_asked_of_plain_tags(tmp_path: Path) -> None:
    table = sentences(20)
    table["tags"] = [
        ["NOUN" if word in ENTITIES else "VERB" for word in some] for some in table["tokens"]
    ]
    with pytest.raises(
        InputError, match=r"task.metric: span_f1 needs spans, and the tags \(NOUN, VERB"
    ):
        tagged(tmp_path, table, table[:4], metric=["span_f1"])


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("limit", [None, 14])
def test_no_word_is_lost_however_long_the_sentence(name: str, limit: int | None) -> None:
    """Each word's pieces are those of the word alone; a sentence that is too long is read in parts."""
    reader, words = tiny.reader(name), tiny.documents()[0].split()[:50]
    item = encode_sentence(words, reader, max_length=limit, language="en")
    assert item.num_answers == 50 and (len(item.encodings) > 1) == item.truncated == (
        limit is not None
    )
    assert all(limit is None or len(reading.ids) <= limit for reading in item.encodings)
    for number, word in enumerate(words):
        own = [
            reading.ids[places[:, 0][places[:, 1] == number]]
            for reading, places in zip(item.encodings, item.word_pieces, strict=True)
        ]
        ids, alone = [int(id_) for some in own for id_ in some], reader.encode(word)
        if reader.tokenizer_type == "byte_bpe":  # whose pieces hold the space before a word
            assert reader.backend_tokenizer.decode(ids).strip() == word
        else:
            assert ids == alone.ids[alone.offsets[:, 1] > 0].tolist()


def test_a_piece_of_two_words_stands_with_both() -> None:
    """Where words have no spaces between them a tokenizer may join them: pieces 今天天 and 气很好 of 今天, 天气 and 很好."""

    class Joining:
        def encode(self, text: str, **_: object) -> Encoding:
            assert text == "今天天气很好"
            return Encoding(np.arange(4), np.array([[0, 0], [0, 3], [3, 6], [0, 0]]))

    item = encode_sentence(["今天", "天气", "很好"], Joining(), max_length=None, language="zh")  # type: ignore[arg-type]
    assert (
        item.word_pieces[0].tolist() == [[1, 0], [1, 1], [2, 1], [2, 2]] and item.num_answers == 3
    )


@pytest.mark.parametrize("name", LEARNING)
def test_every_family_learns_tags_frozen_and_tuned_in_any_batch(name: str, tmp_path: Path) -> None:
    task, reader = tagged(tmp_path, sentences(90), sentences(25, seed=4)), tiny.reader(name)
    train, test = task.splits["train"], task.splits["test"]
    items, asked = (
        encode_items(table, reader, max_length=20, language="en") for table in (train, test)
    )
    answer = make_answer(task.info, train)
    assert isinstance(answer, TagsAnswer) and task.info["metric"] == ["span_f1"]
    features, read = (
        extract_features(tiny.model(name), reader, some, precision="fp32")
        for some in (items, asked)
    )
    assert len(read) == sum(len(tags) for tags in test["label"])
    order = np.random.default_rng(1).permutation(len(asked))
    turned = extract_features(tiny.model(name), reader, [asked[i] for i in order], precision="fp32")
    np.testing.assert_allclose(
        turned, read[np.concatenate([answer_rows(asked)[i] for i in order])], atol=1e-5
    )
    rates = {"elmo": 0.03, "ulmfit": 0.02} | dict.fromkeys(tiny.STATIC, 0.05)
    settings = dataclasses.replace(TUNED, learning_rate=rates.get(name, 0.01))
    model = finetune(
        tiny.model(name),
        reader,
        items,
        answer.labels(train),
        answer,
        settings,
        seed=1,
        precision="fp32",
    )
    told = [
        fit_linear_probe(features, answer.labels(train), answer, FROZEN, seed=0)(read),
        predict_finetuned(model, reader, asked, precision="fp32"),
    ]
    for said in told[
        : 1 if name == "context2vec" else 2
    ]:  # whose top layer has not read the word itself
        columns = add_correct_column(answer.prediction_columns(test, said), "span_f1")
        assert METRICS["token_accuracy"](columns["label"], columns["prediction"]) > 0.8
        assert columns["correct"].mean() == pytest.approx(
            METRICS["span_f1"](columns["label"], columns["prediction"])
        )
    together = torch.softmax(model(collate_items(reader, asked)), -1)
    for rows, item in zip(answer_rows(asked), asked, strict=True):
        torch.testing.assert_close(
            torch.softmax(model(collate_items(reader, [item])), -1),
            together[rows],
            atol=1e-6,
            rtol=0,
        )


def numbers(count: int, seed: int = 5, *, second: bool = True) -> pd.DataFrame:
    """Two texts; the number is how often the first of all words stands in the first one, and noise."""
    rng = np.random.default_rng(seed)
    times = rng.integers(0, 5, count)
    firsts = [
        " ".join(rng.permutation([WORDS[0]] * n + [*rng.choice(WORDS[1:], 5 - n)])) for n in times
    ]
    table = pd.DataFrame(
        {
            "one": firsts,
            "two": [" ".join(rng.choice(WORDS[1:], 4)) for _ in times],
            "score": 10 + 3 * times + rng.normal(0, 0.1, count),
        }
    )
    return table if second else table.drop(columns="two")


def regress(root: Path, train: pd.DataFrame, test: pd.DataFrame, **keys: object) -> TaskItems:
    return made(
        root,
        {"train": train, "test": test},
        **{"kind": "text_regression", "text": ["one", "two"], "label": "score", **keys},
    )


@pytest.mark.parametrize("name", LEARNING)
def test_every_family_learns_numbers_frozen_and_tuned(name: str, tmp_path: Path) -> None:
    task, reader = regress(tmp_path, numbers(120), numbers(40, seed=6)), tiny.reader(name)
    train, test = task.splits["train"], task.splits["test"]
    items, asked = (
        encode_items(table, reader, max_length=None, language="en") for table in (train, test)
    )
    answer = make_answer(task.info, train)
    assert isinstance(answer, NumberAnswer) and answer.mean == pytest.approx(train["label"].mean())
    features, read = (
        extract_features(tiny.model(name), reader, some, precision="fp32")
        for some in (items, asked)
    )
    settings = dataclasses.replace(
        TUNED, learning_rate=0.05 if name in tiny.STATIC else 0.01, pooling="mean"
    )
    model = finetune(
        tiny.model(name),
        reader,
        items,
        answer.labels(train),
        answer,
        settings,
        seed=1,
        precision="fp32",
    )
    for said in (
        fit_linear_probe(features, answer.labels(train), answer, FROZEN, seed=0)(read),
        predict_finetuned(model, reader, asked, precision="fp32"),
    ):
        columns = add_correct_column(answer.prediction_columns(test, said), "pearson")
        value = METRICS["pearson"](columns["label"], columns["prediction"])
        assert value > 0.7 and columns["correct"].mean() == pytest.approx(value)
        assert abs(said.mean() - test["label"].mean()) < 3, "on the scale of the items"


def test_features_are_float64_a_part_at_a_time_and_give_the_same_reader(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    rng = np.random.default_rng(2)
    features, gold = rng.normal(size=(90, 3, 7)).astype(np.float32), rng.integers(3, size=90)
    whole = fit_linear_probe(features, gold, tiny.labels(3), FROZEN, seed=0)(features)
    largest, real = [0], torch.Tensor.double
    monkeypatch.setattr(
        torch.Tensor,
        "double",
        lambda x: largest.append(x.numel()) or real(x) if x.ndim == 3 else real(x),
    )
    monkeypatch.setattr(linear_probe, "CHUNK_SIZE", 210)
    parts = fit_linear_probe(features, gold, tiny.labels(3), FROZEN, seed=0)(features)
    np.testing.assert_allclose(parts, whole, atol=1e-9)
    assert max(largest) == 210, "ten items at a time"


def test_numbers_that_are_none_are_refused_with_their_row(tmp_path: Path) -> None:
    table = numbers(30)
    for value, said in (
        ("high", "row 4: column 'score': 'high' is not a finite number"),
        (float("inf"), "row 4: column 'score': 'inf' is not a finite number"),
    ):
        bad = table.astype({"score": object})
        bad.loc[3, "score"] = value
        bad.to_csv(tmp_path / "bad.csv", index=False)
        with pytest.raises(InputError, match=said):
            made(
                tmp_path,
                {"test": table},
                kind="text_regression",
                text=["one"],
                label="score",
                files={"train": "bad.csv", "test": "test.parquet"},
            )
    with pytest.raises(InputError, match=r"every number is 2\.0; there is nothing to learn"):
        regress(tmp_path, table.assign(score=2), table)


def test_a_prediction_that_never_changes_has_no_correlation_and_one_that_differs_once_has() -> None:
    for metric in ("pearson", "spearman"):
        assert np.isnan(
            add_correct_column(format_number_predictions(np.arange(5.0), np.ones(5)), metric)[
                "correct"
            ]
        ).all()
    for gold in (np.array([0.0] * 30 + [5.0]), np.array([1.3] * 37 + [3.7]), np.array([0.0, 1.0])):
        said = np.random.default_rng(2).normal(size=len(gold))
        for metric in ("pearson", "spearman"):
            assert add_correct_column(format_number_predictions(gold, said), metric)[
                "correct"
            ].mean() == pytest.approx(METRICS[metric](gold, said))


def test_shares_have_the_score_as_their_mean_and_the_spread_of_leaving_one_out() -> None:
    """Of Pearson's correlation the jackknife's, by hand; of F1 and accuracy to first order, so that their variance is near the jackknife's."""
    rng = np.random.default_rng(2)
    x = rng.normal(size=60)
    y = x + rng.normal(size=60)
    without = np.array(
        [stats.pearsonr(np.delete(x, i), np.delete(y, i)).statistic for i in range(60)]
    )
    expected = 60 * stats.pearsonr(x, y).statistic - 59 * without
    shares = pearson_contributions(x, y)
    np.testing.assert_allclose(shares - shares.mean(), expected - expected.mean(), atol=1e-9)
    assert shares.mean() == pytest.approx(stats.pearsonr(x, y).statistic)
    gold = np.array([" ".join(tags) for tags in sentences(200)["tags"]], object)
    said = np.array(
        [" ".join("O" if rng.random() < 0.3 else tag for tag in tags.split()) for tags in gold],
        object,
    )
    for metric, of in (
        ("span_f1", span_f1_contributions),
        ("token_accuracy", token_accuracy_contributions),
    ):
        found = of(gold, said)
        assert found.mean() == pytest.approx(METRICS[metric](gold, said))
        left = np.array(
            [METRICS[metric](np.delete(gold, i), np.delete(said, i)) for i in range(200)]
        )
        assert found.std() == pytest.approx(199 * left.std(), rel=0.05)


def test_controls_tag_by_the_words_around_and_a_constant_says_so(tmp_path: Path) -> None:
    task = tagged(tmp_path, sentences(90), sentences(25, seed=4))
    how: dict[str, Any] = {"split": "test", "finetune_seeds": [0], "label_counts": ["all"]}
    cells = list(
        evaluate_baselines(
            load_kind("token_classification"), TaskData(task.info, task.splits), **how
        )
    )
    values = {row.model: row.value for some, _ in cells for row in some if row.metric == "span_f1"}
    assert values["majority"] == 0 and values["tfidf"] is not None and values["tfidf"] > 0.9
    told = next(table for some, table in cells if some[0].model == "tfidf")
    assert told["correct"].mean() == pytest.approx(values["tfidf"]) and len(told) == 25
    two = pd.DataFrame({"tokens": [WORDS[:2]], "tags": [["B-X", "O"]]})
    few = made(
        tmp_path,
        {"train": two, "validation": two, "test": two},
        kind="token_classification",
        tokens="tokens",
        label="tags",
    )
    (_, _), (rows_, _) = evaluate_baselines(
        load_kind("token_classification"), TaskData(few.info, few.splits), **how
    )
    assert rows_[0].model == "tfidf" and rows_[0].value == 1, (
        "two words, of which no character stands in both"
    )
    task = regress(tmp_path, numbers(120), numbers(40, seed=6))
    rows = {
        row.model: row
        for some, _ in evaluate_baselines(
            load_kind("text_regression"), TaskData(task.info, task.splits), **how
        )
        for row in some
    }
    assert rows["majority"].status == "not_applicable" and "no pearson, since all" in format_notes(
        rows["majority"].reason
    )
    assert rows["tfidf"].value is not None and rows["tfidf"].value > 0.7
