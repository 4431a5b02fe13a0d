"""Who learns to find answers in a context, and how what is said is scored."""

import dataclasses
import itertools
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from torch.nn import functional as F

from lineage.data.language import word_spans
from lineage.data.task_data import TaskData
from lineage.evaluation.answers import SpanAnswer, make_answer
from lineage.evaluation.baselines import evaluate_baselines
from lineage.evaluation.bilstm_probe import cache_features, fit_bilstm_probe, predict_bilstm_probe
from lineage.evaluation.encoding import (
    answer_rows,
    collate_items,
    encode_items,
    encode_question_context,
)
from lineage.evaluation.evaluate import evaluate_runs, list_runs
from lineage.evaluation.finetuning import finetune, predict_finetuned
from lineage.evaluation.linear_probe import extract_features, fit_linear_probe
from lineage.evaluation.metrics import METRICS, score_answers
from lineage.evaluation.predictions import MAX_ANSWER_WORDS, add_correct_column, find_best_span
from lineage.evaluation.settings import EvaluateSettings, FinetuneSettings, LinearProbeSettings
from lineage.evaluation.systems import EvalContext
from lineage.report.notes import format_notes
from lineage.tasks.base import load_kind
from tests import tiny
from tests.questions import made, questions

NAMES = [name for name in tiny.FAMILIES if tiny.variant(name).family.name == name]
LEARNING = [
    name if name in ("word2vec", "bert") else pytest.param(name, marks=pytest.mark.slow)
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


@pytest.mark.parametrize("name", LEARNING)
def test_every_family_learns_spans_frozen_and_tuned_in_any_batch_and_beats_the_controls(
    name: str, tmp_path: Path
) -> None:
    task, reader = made(tmp_path, questions(90), questions(25, seed=4)), tiny.reader(name)
    train, test = task.splits["train"], task.splits["test"]
    items, asked = (
        encode_items(table, reader, max_length=20, language="en") for table in (train, test)
    )
    answer = make_answer(task.info, train)
    assert answer == SpanAnswer()
    features, read = (
        extract_features(tiny.model(name), reader, some, precision="fp32")
        for some in (items, asked)
    )
    assert len(read) == sum(len(starts) for starts in test["starts"])
    order = np.random.default_rng(1).permutation(len(asked))
    turned = extract_features(tiny.model(name), reader, [asked[i] for i in order], precision="fp32")
    np.testing.assert_allclose(
        turned, read[np.concatenate([answer_rows(asked)[i] for i in order])], atol=1e-5
    )
    settings = dataclasses.replace(
        TUNED, learning_rate=0.05 if name in tiny.STATIC else 0.03 if name == "ulmfit" else 0.01
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
    told = [
        fit_linear_probe(features, answer.labels(train), answer, FROZEN, seed=0)(read),
        predict_finetuned(model, reader, asked, precision="fp32"),
    ]
    majority, _ = evaluate_baselines(
        load_kind("extractive_qa"),
        TaskData(task.info, {"train": train, "test": test}),
        split="test",
        finetune_seeds=[0],
        label_counts=["all"],
    )
    floor = majority[1]["correct"].mean()
    for said in told[
        : 1 if name == "context2vec" else 2
    ]:  # whose top layer has not read the word itself
        columns = add_correct_column(answer.prediction_columns(test, said), "f1")
        assert METRICS["f1"](columns["label"], columns["prediction"]) > 80 > 100 * floor + 20
        assert 100 * columns["correct"].mean() == pytest.approx(
            METRICS["f1"](columns["label"], columns["prediction"])
        )
    together = torch.softmax(model(collate_items(reader, asked)), -1)
    for rows, item in zip(answer_rows(asked), asked, strict=True):
        torch.testing.assert_close(
            torch.softmax(model(collate_items(reader, [item])), -1),
            together[rows],
            atol=1e-6,
            rtol=0,
        )


def test_where_there_is_nothing_to_learn_a_reader_is_at_chance(tmp_path: Path) -> None:
    task, reader = (
        made(tmp_path, questions(90, learned=False), questions(60, seed=4, learned=False)),
        tiny.reader("word2vec"),
    )
    train, test = task.splits["train"], task.splits["test"]
    features = [extract_features(tiny.model("word2vec"), reader, encode_items(table, reader, max_length=None, language="en"), precision="fp32")
                for table in (train, test)]  # fmt: skip
    said = fit_linear_probe(features[0], SpanAnswer().labels(train), SpanAnswer(), FROZEN, seed=0)(
        features[1]
    )
    columns = SpanAnswer().prediction_columns(test, said)
    chance = np.mean([1 / len(starts) for starts in test["starts"]])
    assert METRICS["exact_match"](columns["label"], columns["prediction"]) < 100 * 3 * chance


def test_a_linear_reader_and_a_bilstm_answer_what_was_asked(tmp_path: Path) -> None:
    """Of the two words that may be the answer it is the one that the question names: with a question that is another one, the answer is."""
    table = questions(400)
    named = [
        (text.split()[number % 2], text.split()[1 - number % 2])
        for number, text in enumerate(table["say"])
    ]
    table = table.assign(say=[right for right, _ in named], ask=[right for right, _ in named])
    task, reader = made(tmp_path, table[:330], table[330:]), tiny.reader("word2vec")
    train, test = task.splits["train"], task.splits["test"]
    other = test.assign(question=[wrong for _, wrong in named[330:]])
    items = [
        encode_items(some, reader, max_length=None, language="en") for some in (train, test, other)
    ]
    model, gold = tiny.model("word2vec"), SpanAnswer().labels(train)
    features = [extract_features(model, reader, some, precision="fp32") for some in items]
    read = fit_linear_probe(features[0], gold, SpanAnswer(), FROZEN, seed=0)
    kept = [cache_features(model, reader, some, precision="fp32") for some in items]
    network = fit_bilstm_probe(kept[0], gold, SpanAnswer(), tiny.NETWORK, seed=1, device=tiny.CPU)
    assert len(network.output_layer.weight.T) == 2 * tiny.NETWORK.hidden_size, (
        "a word is read alone, not as two texts"
    )
    for said in (
        [read(some) for some in features[1:]],
        [predict_bilstm_probe(network, some)[0] for some in kept[1:]],
    ):
        right, wrong = (
            add_correct_column(SpanAnswer().prediction_columns(test, scores), "f1")[
                "correct"
            ].mean()
            for scores in said
        )
        assert right > 0.8 > 0.3 > wrong
    alone, _ = predict_bilstm_probe(network, kept[1].select(np.array([7])))
    np.testing.assert_allclose(
        alone, predict_bilstm_probe(network, kept[1])[0][answer_rows(items[1])[7]], atol=2e-5
    )


def test_the_loss_is_that_of_two_softmaxes_over_each_context_and_counts_items() -> None:
    lengths, draw = [4, 1, 6], torch.Generator().manual_seed(2)
    table = pd.DataFrame(
        {"starts": [list(range(n)) for n in lengths], "label": [[1, 3], [0, 0], []]}
    )
    scores = (30 * torch.randn(11, 2, generator=draw)).requires_grad_()
    gold = torch.from_numpy(SpanAnswer().labels(table))
    by_hand = sum(F.cross_entropy(scores[first : first + n, side][None], torch.tensor([label[side]]), reduction="sum")
                  for first, n, label in ((0, 4, (1, 3)), (4, 1, (0, 0))) for side in (0, 1))  # fmt: skip
    loss = SpanAnswer().loss(scores, gold)
    torch.testing.assert_close(loss, by_hand)
    for ours, theirs in zip(
        torch.autograd.grad(loss, scores), torch.autograd.grad(by_hand, scores), strict=True
    ):
        torch.testing.assert_close(ours, theirs)
    reader = tiny.reader("bert")
    items = [
        encode_question_context(
            "a", "b c", np.array([0, 2]), np.array([1, 3]), reader, max_length=None, language="en"
        )
    ] * 3
    batch = collate_items(reader, items)
    assert (batch.loss_denominator(per_item=True), batch.loss_denominator(per_item=False)) == (3, 6)


def test_the_penalty_of_a_linear_reader_stands_beside_a_mean_over_questions_however_many_words_they_have() -> (
    None
):
    """At the optimum the gradient of the mean nats of an item and that of the penalty are equal and opposite."""
    rng, l2 = np.random.default_rng(3), 0.05
    features = rng.normal(size=(30, 7, 1)).astype(np.float32)
    best = (features[..., 0] + rng.normal(size=(30, 7))).argmax(1)
    table = pd.DataFrame(
        {"starts": [list(range(7))] * 30, "label": [[place, place] for place in best]}
    )
    flat = features.reshape(-1, 1, 1)
    scores = fit_linear_probe(
        flat,
        SpanAnswer().labels(table),
        SpanAnswer(),
        LinearProbeSettings(l2=l2, max_iter=200),
        seed=0,
    )(flat)[:, 0].reshape(30, 7)
    x = (features[..., 0] - features.mean()) / features.std()
    weight = np.polyfit(x.ravel(), scores.ravel(), 1)[0]
    expected = (np.exp(scores) / np.exp(scores).sum(1, keepdims=True) * x).sum(1)
    assert weight > 0.1 and np.mean(
        expected - x[np.arange(30), best]
    ) + 2 * l2 * weight == pytest.approx(0, abs=1e-4)


def test_the_best_span_is_the_best_of_all_that_are_short_enough() -> None:
    rng = np.random.default_rng(1)
    for words in (1, 2, 7, MAX_ANSWER_WORDS + 9):
        scores = rng.normal(size=(words, 2))
        every = [
            (a, b)
            for a, b in itertools.product(range(words), repeat=2)
            if a <= b < a + MAX_ANSWER_WORDS
        ]
        assert find_best_span(scores) == max(
            every, key=lambda span: scores[span[0], 0] + scores[span[1], 1]
        )
    far = np.zeros((MAX_ANSWER_WORDS + 1, 2))
    far[0, 0] = far[MAX_ANSWER_WORDS, 1] = 9.0
    assert find_best_span(far) == (0, 0), "one word too many"


def test_a_prediction_has_the_characters_of_the_context_and_is_scored_by_the_best_gold() -> None:
    context, golds = "we see (any) cats", ["(any) cats", "see (any)", "Ann"]
    spans = word_spans(context, "en")
    item = {
        "context": context,
        "starts": [a for a, _ in spans],
        "ends": [b for _, b in spans],
        "answers": golds,
        "label": [2, 5],
    }
    scores = np.zeros((len(item["starts"]), 2))
    scores[1, 0] = scores[4, 1] = 4.0
    columns = add_correct_column(
        SpanAnswer().prediction_columns(pd.DataFrame([item]), scores), "f1"
    )
    assert columns["prediction"].tolist() == ["see (any)"] and columns["label"].tolist() == [
        "\t".join(golds)
    ]
    assert (
        columns["correct"].tolist() == [1.0]
        and METRICS["exact_match"](columns["label"], columns["prediction"]) == 100
    )
    assert score_answers(columns["label"], columns["prediction"])[0].tolist() == [1, 1]
    W = len(item["starts"])
    assert columns["score"][0] == pytest.approx(1 / (np.exp(4) + W - 1) ** 2), (
        "of the first gold one, (any) cats"
    )


def test_a_stage_has_its_cells_and_says_how_contexts_were_read(tmp_path: Path) -> None:
    task = made(
        tmp_path,
        questions(40),
        questions(12, seed=4),
        probes=["linear", "bilstm"],
        metric=["exact_match"],
        max_tokens=10,
    )
    checkpoint = tiny.checkpoint("gpt")
    settings = EvaluateSettings(
        linear_probe=FROZEN,
        bilstm_probe=dataclasses.replace(tiny.NETWORK, epochs=2),
        finetune=dataclasses.replace(TUNED, epochs=1),
    )
    found = EvalContext(
        checkpoint, TaskData(task.info, task.splits), settings, 0, 1000, "fp32", tiny.CPU
    )
    rows, predictions = evaluate_runs(
        found,
        [*list_runs(task.info, ("random",), ("all",), (0,))],
        cache_dir=tmp_path / "keep",
        report_progress=lambda *_: None,
    )
    assert {(row.transfer, row.head, row.features) for row in rows} == {
        ("frozen", "linear", "scalar_mix"), ("frozen", "bilstm", "scalar_mix"), ("finetuned", "linear", "last")}  # fmt: skip
    assert {row.status for row in rows} == {"ok"} and {row.metric for row in rows} == {
        "f1",
        "exact_match",
    }
    lost = task.info["lost"]["test"]
    assert lost and all(format_notes(row.reason).endswith(f"{lost} of 12 questions have no answer within max_tokens, and are scored all the same")
                        and "tokens, and read in parts; " in format_notes(row.reason) for row in rows if row.split == "test")  # fmt: skip
    own = (
        predictions[predictions["split"] == "test"].groupby(["transfer", "head"])["correct"].mean()
    )
    for row in rows:
        if row.split == "test" and row.metric == "exact_match":  # which the task names
            assert row.value == pytest.approx(100 * own[row.transfer, row.head])
