"""Probes and fine-tuned models learn to find answers in a context, and are scored correctly."""

import dataclasses
import itertools
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from torch.nn import functional as F

from lineage.answers.base import correct_column
from lineage.answers.metrics import METRICS, score_answers
from lineage.answers.span import MAX_ANSWER_WORDS, SpanAnswer, find_best_span
from lineage.data.task_data import TaskData
from lineage.language import word_spans
from lineage.methods.bilstm_probe import predict_bilstm_probe
from lineage.methods.encoding import answer_rows, collate_items, encode_question_context
from lineage.methods.linear_probe import LinearProbeMethod, fit_linear_probe
from lineage.methods.registry import EvaluateSettings
from lineage.report.notes import format_notes
from lineage.tasks.base import load_kind
from tests.helpers import tiny
from tests.helpers.fitting import (
    PLAIN_FINETUNE,
    cache_features,
    extract_features,
    finetune,
    fit_bilstm_probe,
    predict_finetuned,
)
from tests.helpers.questions import build_questions, build_task

NAMES = [name for name in tiny.FAMILIES if tiny.model_config(name).family.name == name]
LEARNING_NAMES = [
    name if name in ("word2vec", "bert") else pytest.param(name, marks=pytest.mark.slow)
    for name in NAMES
]
FINETUNE = PLAIN_FINETUNE
LINEAR_PROBE = LinearProbeMethod(trials=(), l2=0.0003, max_iter=100)


@pytest.mark.parametrize("name", LEARNING_NAMES)
def test_every_family_learns_spans_frozen_and_finetuned_and_beats_the_baselines(
    name: str, tmp_path: Path
) -> None:
    task = build_task(tmp_path, build_questions(90), build_questions(25, seed=4))
    tokenizer = tiny.tokenizer(name)
    train = task.splits["train"]
    test = task.splits["test"]
    items, test_items = (tiny.encode(name, table, max_length=20) for table in (train, test))
    answer = load_kind(task.info.kind).answer.fit(task.info.labels, train)
    assert answer == SpanAnswer()
    features, test_features = (
        extract_features(tiny.model(name), tokenizer, encoded) for encoded in (items, test_items)
    )
    assert len(test_features) == sum(len(starts) for starts in test["starts"])
    order = np.random.default_rng(1).permutation(len(test_items))
    permuted = extract_features(tiny.model(name), tokenizer, [test_items[i] for i in order])
    np.testing.assert_allclose(
        permuted,
        test_features[np.concatenate([answer_rows(test_items)[i] for i in order])],
        atol=1e-5,
    )
    learning_rates = dict.fromkeys(tiny.STATIC, 0.05) | {"ulmfit": 0.03}
    settings = dataclasses.replace(FINETUNE, learning_rate=learning_rates.get(name, 0.01))
    model = finetune(tiny.model(name), tokenizer, items, answer.labels(train), answer, settings)
    all_scores = [
        fit_linear_probe(features, answer.labels(train), answer, LINEAR_PROBE, seed=0)(
            test_features
        ),
        predict_finetuned(model, tokenizer, test_items),
    ]
    majority, _ = tiny.evaluate_baselines(
        load_kind("extractive_qa"),
        TaskData(task.info, {"train": train, "validation": test, "test": test}),
    )
    baseline_f1 = majority[1]["correct"].mean()
    if name == "context2vec":
        del all_scores[1]  # its top layer, which fine-tuning uses, has not read the word itself
    for scores in all_scores:
        columns = correct_column(answer.prediction_columns(test, scores), "f1")
        assert METRICS["f1"](columns["label"], columns["prediction"]) > 80 > 100 * baseline_f1 + 20
        assert 100 * columns["correct"].mean() == pytest.approx(
            METRICS["f1"](columns["label"], columns["prediction"])
        )
    batched = torch.softmax(model(collate_items(tokenizer, test_items)), -1)
    for rows, item in zip(answer_rows(test_items), test_items, strict=True):
        torch.testing.assert_close(
            torch.softmax(model(collate_items(tokenizer, [item])), -1),
            batched[rows],
            atol=1e-6,
            rtol=0,
        )


def test_a_probe_is_at_chance_if_there_is_nothing_to_learn(tmp_path: Path) -> None:
    task = build_task(
        tmp_path, build_questions(90, learnable=False), build_questions(60, seed=4, learnable=False)
    )
    tokenizer = tiny.tokenizer("word2vec")
    train = task.splits["train"]
    test = task.splits["test"]
    features = [extract_features(tiny.model("word2vec"), tokenizer, tiny.encode("word2vec", table))
                for table in (train, test)]  # fmt: skip
    scores = fit_linear_probe(
        features[0], SpanAnswer().labels(train), SpanAnswer(), LINEAR_PROBE, seed=0
    )(features[1])
    columns = SpanAnswer().prediction_columns(test, SpanAnswer().normalize(test, scores))
    chance = np.mean([1 / len(starts) for starts in test["starts"]])
    assert METRICS["exact_match"](columns["label"], columns["prediction"]) < 100 * 3 * chance


def test_linear_and_bilstm_probes_use_the_question(tmp_path: Path) -> None:
    """The question names which of two words is the answer, and another question changes it."""
    table = build_questions(400)
    pairs = [
        (text.split()[number % 2], text.split()[1 - number % 2])
        for number, text in enumerate(table["say"])
    ]
    table = table.assign(say=[right for right, _ in pairs], ask=[right for right, _ in pairs])
    task = build_task(tmp_path, table[:330], table[330:])
    tokenizer = tiny.tokenizer("word2vec")
    train = task.splits["train"]
    test = task.splits["test"]
    swapped = test.assign(question=[wrong for _, wrong in pairs[330:]])
    items = [tiny.encode("word2vec", inputs) for inputs in (train, test, swapped)]
    model = tiny.model("word2vec")
    labels = SpanAnswer().labels(train)
    features = [extract_features(model, tokenizer, inputs) for inputs in items]
    predict_linear = fit_linear_probe(features[0], labels, SpanAnswer(), LINEAR_PROBE, seed=0)
    cached = [cache_features(model, tokenizer, inputs) for inputs in items]
    bilstm = fit_bilstm_probe(cached[0], labels, SpanAnswer(), tiny.BILSTM_PROBE)
    assert len(bilstm.output_layer.weight.T) == 2 * tiny.BILSTM_PROBE.hidden_size, (
        "the head gets single words, not a combination of two texts"
    )
    for scores_by_test_set in (
        [predict_linear(inputs) for inputs in features[1:]],
        [predict_bilstm_probe(bilstm, inputs)[0] for inputs in cached[1:]],
    ):
        right, wrong = (
            correct_column(
                SpanAnswer().prediction_columns(test, SpanAnswer().normalize(test, scores)), "f1"
            )["correct"].mean()
            for scores in scores_by_test_set
        )
        assert right > 0.8 > 0.3 > wrong
    single_item, *_ = predict_bilstm_probe(bilstm, cached[1].select(np.array([7])))
    np.testing.assert_allclose(
        single_item, predict_bilstm_probe(bilstm, cached[1])[0][answer_rows(items[1])[7]], atol=2e-5
    )


def test_the_loss_is_the_sum_of_two_softmaxes_over_each_context() -> None:
    lengths = [4, 1, 6]
    generator = torch.Generator().manual_seed(2)
    table = pd.DataFrame(
        {"starts": [list(range(n)) for n in lengths], "label": [[1, 3], [0, 0], []]}
    )
    scores = (30 * torch.randn(11, 2, generator=generator)).requires_grad_()
    labels = torch.from_numpy(SpanAnswer().labels(table))
    expected = sum(F.cross_entropy(scores[first : first + n, side][None], torch.tensor([label[side]]), reduction="sum")
                  for first, n, label in ((0, 4, (1, 3)), (4, 1, (0, 0))) for side in (0, 1))  # fmt: skip
    loss = SpanAnswer().loss(scores, labels)
    torch.testing.assert_close(loss, expected)
    for actual_grad, expected_grad in zip(
        torch.autograd.grad(loss, scores), torch.autograd.grad(expected, scores), strict=True
    ):
        torch.testing.assert_close(actual_grad, expected_grad)
    tokenizer = tiny.tokenizer("bert")
    items = [
        encode_question_context(
            "a",
            "b c",
            np.array([0, 2]),
            np.array([1, 3]),
            tokenizer,
            max_length=None,
            language="en",
        )
    ] * 3
    batch = collate_items(tokenizer, items)
    assert (batch.loss_denominator(per_item=True), batch.loss_denominator(per_item=False)) == (3, 6)


def test_the_l2_penalty_of_a_linear_probe_is_relative_to_the_mean_over_questions() -> None:
    """The number of words of a question does not matter.

    At the optimum, the gradients of the mean nats per item and of the penalty add up to zero.
    """
    rng = np.random.default_rng(3)
    l2 = 0.05
    features = rng.normal(size=(30, 7, 1)).astype(np.float32)
    best = (features[..., 0] + rng.normal(size=(30, 7))).argmax(1)
    table = pd.DataFrame(
        {"starts": [list(range(7))] * 30, "label": [[position, position] for position in best]}
    )
    flat = features.reshape(-1, 1, 1)
    scores = fit_linear_probe(
        flat,
        SpanAnswer().labels(table),
        SpanAnswer(),
        LinearProbeMethod(trials=(), l2=l2, max_iter=200),
        seed=0,
    )(flat)[:, 0].reshape(30, 7)
    x = (features[..., 0] - features.mean()) / features.std()
    weight = np.polyfit(x.ravel(), scores.ravel(), 1)[0]
    expected = (np.exp(scores) / np.exp(scores).sum(1, keepdims=True) * x).sum(1)
    assert weight > 0.1
    assert np.mean(expected - x[np.arange(30), best]) + 2 * l2 * weight == pytest.approx(
        0, abs=1e-4
    )


def test_the_best_span_has_the_highest_score_of_all_short_spans() -> None:
    rng = np.random.default_rng(1)
    for num_words in (1, 2, 7, MAX_ANSWER_WORDS + 9):
        scores = rng.normal(size=(num_words, 2))
        spans = [
            (a, b)
            for a, b in itertools.product(range(num_words), repeat=2)
            if a <= b < a + MAX_ANSWER_WORDS
        ]
        assert find_best_span(scores) == max(
            spans, key=lambda span: scores[span[0], 0] + scores[span[1], 1]
        )
    too_far = np.zeros((MAX_ANSWER_WORDS + 1, 2))
    too_far[0, 0] = too_far[MAX_ANSWER_WORDS, 1] = 9.0
    assert find_best_span(too_far) == (0, 0), "the span is one word too long"


def test_a_prediction_is_text_of_the_context_and_scored_by_the_best_label() -> None:
    context = "we see (any) cats"
    answers = ["(any) cats", "see (any)", "Ann"]
    spans = word_spans(context, "en")
    item = {
        "context": context,
        "starts": [a for a, _ in spans],
        "ends": [b for _, b in spans],
        "answers": answers,
        "label": [2, 5],
    }
    scores = np.zeros((len(item["starts"]), 2))
    scores[1, 0] = scores[4, 1] = 4.0
    columns = correct_column(
        SpanAnswer().prediction_columns(
            pd.DataFrame([item]), SpanAnswer().normalize(pd.DataFrame([item]), scores)
        ),
        "f1",
    )
    assert columns["prediction"].tolist() == ["see (any)"]
    assert columns["label"].tolist() == ["\t".join(answers)]
    assert columns["correct"].tolist() == [1.0]
    assert METRICS["exact_match"](columns["label"], columns["prediction"]) == 100
    assert score_answers(columns["label"], columns["prediction"])[0].tolist() == [1, 1]
    num_words = len(item["starts"])
    assert columns["score"][0] == pytest.approx(1 / (np.exp(4) + num_words - 1) ** 2), (
        "the score is that of the first answer, (any) cats"
    )


def test_an_evaluation_has_all_runs_and_reports_truncated_contexts(tmp_path: Path) -> None:
    task = build_task(
        tmp_path,
        build_questions(40),
        build_questions(12, seed=4),
        probes=["linear", "bilstm"],
        metric=["exact_match"],
        max_words=10,
    )
    checkpoint = tiny.checkpoint("gpt")
    settings = EvaluateSettings(
        linear_probe=LINEAR_PROBE,
        bilstm_probe=dataclasses.replace(tiny.BILSTM_PROBE, epochs=2),
        finetune=dataclasses.replace(FINETUNE, epochs=1),
    )
    context = tiny.eval_context(checkpoint, TaskData(task.info, task.splits), settings)
    rows, predictions, *_ = tiny.evaluate_runs(
        context, tiny.list_runs(task.info, ("random",), ("all",), (0,)), tmp_path / "keep"
    )
    assert {(row.transfer, row.head, row.features) for row in rows} == {
        ("frozen", "linear", "scalar_mix"), ("frozen", "bilstm", "scalar_mix"), ("finetuned", "linear", "last")}  # fmt: skip
    assert {row.status for row in rows} == {"ok"}
    assert {row.metric for row in rows} == {"f1", "exact_match"}
    lost = task.info.truncated_answers["test"]
    assert lost and all(format_notes(row.reason).endswith(f"{lost} of 12 questions have no answer within max_words, and are scored all the same")
                        and "tokens, and read in parts; " in format_notes(row.reason) for row in rows if row.split == "test")  # fmt: skip
    means = (
        predictions[predictions["split"] == "test"].groupby(["transfer", "head"])["correct"].mean()
    )
    for row in rows:
        if row.split == "test" and row.metric == "exact_match":  # the metric of the task
            assert row.value == pytest.approx(100 * means[row.transfer, row.head])
