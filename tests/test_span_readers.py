"""Who learns to find answers in a context, and how what is said is scored."""

import dataclasses
import itertools
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from torch.nn import functional as F

from lineage.evaluation.controls import control_rows
from lineage.evaluation.evaluate import cells, evaluate
from lineage.evaluation.subject import Setting
from lineage.kind import load_kind
from lineage.loading.taskdata import TaskData
from lineage.scoring.metrics import METRICS, answer_scores
from lineage.scoring.predictions import LONGEST, best_span, judged
from lineage.text.language import word_spans
from lineage.transfer.answers import Span, answer_of
from lineage.transfer.frozen import fit_frozen, frozen_features
from lineage.transfer.networks import fit_network, read_network, remember
from lineage.transfer.reading import collate, read_items, rows_of, span_item
from lineage.transfer.settings import EvaluateSettings, FrozenSettings, TunedSettings
from lineage.transfer.tuning import fine_tune, predict
from tests import tiny
from tests.questions import made, questions

NAMES = [name for name in tiny.FAMILIES if tiny.variant(name).family.name == name]
LEARNING = [name if name in ("word2vec", "bert") else pytest.param(name, marks=pytest.mark.slow) for name in NAMES]
TUNED = TunedSettings(
    epochs=12, batch=8, rate=0.01, layer_decay=1.0, cut_share=0.1, ratio=32.0, unfreeze_share=0.0, weight_decay=0.0, dropout=0.0, clip_norm=1.0
)
FROZEN = FrozenSettings(l2=0.0003, iterations=100)


@pytest.mark.parametrize("name", LEARNING)
def test_every_family_learns_spans_frozen_and_tuned_in_any_batch_and_beats_the_controls(name: str, tmp_path: Path) -> None:
    task, reader = made(tmp_path, questions(90), questions(25, seed=4)), tiny.reader(name)
    train, test = task.splits["train"], task.splits["test"]
    items, asked = (read_items(table, reader, limit=20, language="en") for table in (train, test))
    answer = answer_of(task.facts, train)
    assert answer == Span()
    features, read = (frozen_features(tiny.model(name), reader, some, precision="fp32") for some in (items, asked))
    assert len(read) == sum(len(starts) for starts in test["starts"])
    order = np.random.default_rng(1).permutation(len(asked))
    turned = frozen_features(tiny.model(name), reader, [asked[i] for i in order], precision="fp32")
    np.testing.assert_allclose(turned, read[np.concatenate([rows_of(asked)[i] for i in order])], atol=1e-5)
    settings = dataclasses.replace(TUNED, rate=0.05 if name in tiny.STATIC else 0.03 if name == "ulmfit" else 0.01)
    model = fine_tune(tiny.model(name), reader, items, answer.gold(train), answer, settings, seed=1, precision="fp32")
    told = [fit_frozen(features, answer.gold(train), answer, FROZEN, seed=0)(read), predict(model, reader, asked, precision="fp32")]
    majority, _ = control_rows(load_kind("span"), TaskData(task.facts, {"train": train, "test": test}), split="test", seeds=[0], labels=["all"])
    floor = majority[1]["correct"].mean()
    for said in told[: 1 if name == "context2vec" else 2]:  # whose top layer has not read the word itself
        columns = judged(answer.columns(test, said), "f1")
        assert METRICS["f1"](columns["gold"], columns["prediction"]) > 80 > 100 * floor + 20
        assert 100 * columns["correct"].mean() == pytest.approx(METRICS["f1"](columns["gold"], columns["prediction"]))
    together = torch.softmax(model(collate(reader, asked)), -1)
    for rows, item in zip(rows_of(asked), asked, strict=True):
        torch.testing.assert_close(torch.softmax(model(collate(reader, [item])), -1), together[rows], atol=1e-6, rtol=0)


def test_where_there_is_nothing_to_learn_a_reader_is_at_chance(tmp_path: Path) -> None:
    task, reader = made(tmp_path, questions(90, learned=False), questions(60, seed=4, learned=False)), tiny.reader("word2vec")
    train, test = task.splits["train"], task.splits["test"]
    features = [frozen_features(tiny.model("word2vec"), reader, read_items(table, reader, limit=None, language="en"), precision="fp32")
                for table in (train, test)]  # fmt: skip
    said = fit_frozen(features[0], Span().gold(train), Span(), FROZEN, seed=0)(features[1])
    columns = Span().columns(test, said)
    chance = np.mean([1 / len(starts) for starts in test["starts"]])
    assert METRICS["exact_match"](columns["gold"], columns["prediction"]) < 100 * 3 * chance


def test_a_linear_reader_and_a_bilstm_answer_what_was_asked(tmp_path: Path) -> None:
    """Of the two words that may be the answer it is the one that the question names: with a question that is another one, the answer is."""
    table = questions(400)
    named = [(text.split()[number % 2], text.split()[1 - number % 2]) for number, text in enumerate(table["say"])]
    table = table.assign(say=[right for right, _ in named], ask=[right for right, _ in named])
    task, reader = made(tmp_path, table[:330], table[330:]), tiny.reader("word2vec")
    train, test = task.splits["train"], task.splits["test"]
    other = test.assign(question=[wrong for _, wrong in named[330:]])
    items = [read_items(some, reader, limit=None, language="en") for some in (train, test, other)]
    model, gold = tiny.model("word2vec"), Span().gold(train)
    features = [frozen_features(model, reader, some, precision="fp32") for some in items]
    read = fit_frozen(features[0], gold, Span(), FROZEN, seed=0)
    kept = [remember(model, reader, some, precision="fp32") for some in items]
    network = fit_network(kept[0], gold, Span(), tiny.NETWORK, seed=1, device=tiny.CPU)
    assert len(network.out.weight.T) == 2 * tiny.NETWORK.cells, "a word is read alone, not as two texts"
    for said in ([read(some) for some in features[1:]], [read_network(network, some)[0] for some in kept[1:]]):
        right, wrong = (judged(Span().columns(test, scores), "f1")["correct"].mean() for scores in said)
        assert right > 0.8 > 0.3 > wrong
    alone, _ = read_network(network, kept[1].some(np.array([7])))
    np.testing.assert_allclose(alone, read_network(network, kept[1])[0][rows_of(items[1])[7]], atol=2e-5)


def test_the_loss_is_that_of_two_softmaxes_over_each_context_and_counts_items() -> None:
    lengths, draw = [4, 1, 6], torch.Generator().manual_seed(2)
    table = pd.DataFrame({"starts": [list(range(n)) for n in lengths], "label": [[1, 3], [0, 0], []]})
    scores = (30 * torch.randn(11, 2, generator=draw)).requires_grad_()
    gold = torch.from_numpy(Span().gold(table))
    by_hand = sum(F.cross_entropy(scores[first : first + n, side][None], torch.tensor([label[side]]), reduction="sum")
                  for first, n, label in ((0, 4, (1, 3)), (4, 1, (0, 0))) for side in (0, 1))  # fmt: skip
    loss = Span().loss(scores, gold)
    torch.testing.assert_close(loss, by_hand)
    for ours, theirs in zip(torch.autograd.grad(loss, scores), torch.autograd.grad(by_hand, scores), strict=True):
        torch.testing.assert_close(ours, theirs)
    reader = tiny.reader("bert")
    items = [span_item("a", "b c", np.array([0, 2]), np.array([1, 3]), reader, limit=None, language="en")] * 3
    batch = collate(reader, items)
    assert (batch.answers(by_item=True), batch.answers(by_item=False)) == (3, 6)


def test_the_penalty_of_a_linear_reader_stands_beside_a_mean_over_questions_however_many_words_they_have() -> None:
    """At the optimum the gradient of the mean nats of an item and that of the penalty are equal and opposite."""
    rng, l2 = np.random.default_rng(3), 0.05
    features = rng.normal(size=(30, 7, 1)).astype(np.float32)
    best = (features[..., 0] + rng.normal(size=(30, 7))).argmax(1)
    table = pd.DataFrame({"starts": [list(range(7))] * 30, "label": [[place, place] for place in best]})
    flat = features.reshape(-1, 1, 1)
    scores = fit_frozen(flat, Span().gold(table), Span(), FrozenSettings(l2=l2, iterations=200), seed=0)(flat)[:, 0].reshape(30, 7)
    x = (features[..., 0] - features.mean()) / features.std()
    weight = np.polyfit(x.ravel(), scores.ravel(), 1)[0]
    expected = (np.exp(scores) / np.exp(scores).sum(1, keepdims=True) * x).sum(1)
    assert weight > 0.1 and np.mean(expected - x[np.arange(30), best]) + 2 * l2 * weight == pytest.approx(0, abs=1e-4)


def test_the_best_span_is_the_best_of_all_that_are_short_enough() -> None:
    rng = np.random.default_rng(1)
    for words in (1, 2, 7, LONGEST + 9):
        scores = rng.normal(size=(words, 2))
        every = [(a, b) for a, b in itertools.product(range(words), repeat=2) if a <= b < a + LONGEST]
        assert best_span(scores) == max(every, key=lambda span: scores[span[0], 0] + scores[span[1], 1])
    far = np.zeros((LONGEST + 1, 2))
    far[0, 0] = far[LONGEST, 1] = 9.0
    assert best_span(far) == (0, 0), "one word too many"


def test_a_prediction_has_the_characters_of_the_context_and_is_scored_by_the_best_gold() -> None:
    context, golds = "we see (any) cats", ["(any) cats", "see (any)", "Ann"]
    spans = word_spans(context, "en")
    item = {"context": context, "starts": [a for a, _ in spans], "ends": [b for _, b in spans], "answers": golds, "label": [2, 5]}
    scores = np.zeros((len(item["starts"]), 2))
    scores[1, 0] = scores[4, 1] = 4.0
    columns = judged(Span().columns(pd.DataFrame([item]), scores), "f1")
    assert columns["prediction"].tolist() == ["see (any)"] and columns["gold"].tolist() == ["\t".join(golds)]
    assert columns["correct"].tolist() == [1.0] and METRICS["exact_match"](columns["gold"], columns["prediction"]) == 100
    assert answer_scores(columns["gold"], columns["prediction"])[0].tolist() == [1, 1]
    W = len(item["starts"])
    assert columns["score"][0] == pytest.approx(1 / (np.exp(4) + W - 1) ** 2), "of the first gold one, (any) cats"


def test_a_stage_has_its_cells_and_says_how_contexts_were_read(tmp_path: Path) -> None:
    task = made(tmp_path, questions(40), questions(12, seed=4), heads=["linear", "bilstm"], metric=["exact_match"], max_tokens=10)
    checkpoint = tiny.checkpoint("gpt")
    settings = EvaluateSettings(FROZEN, dataclasses.replace(tiny.NETWORK, epochs=2), dataclasses.replace(TUNED, epochs=1))
    found = Setting(checkpoint, TaskData(task.facts, task.splits), settings, 0, 1000, "fp32", tiny.CPU)
    rows, predictions = evaluate(found, [*cells(task.facts, ("untrained",), ("all",), (0,))], keep=tmp_path / "keep", report=lambda *_: None)
    assert {(row.transfer, row.head, row.features) for row in rows} == {
        ("frozen", "linear", "mix"), ("frozen", "bilstm", "mix"), ("tuned", "linear", "top")}  # fmt: skip
    assert {row.status for row in rows} == {"ok"} and {row.metric for row in rows} == {"f1", "exact_match"}
    lost = task.facts["lost"]["test"]
    assert lost and all(row.reason.endswith(f"{lost} of 12 questions have no answer within max_tokens, and are scored all the same")
                        and "pieces, and read in parts; " in row.reason for row in rows if row.split == "test")  # fmt: skip
    own = predictions[predictions["split"] == "test"].groupby(["transfer", "head"])["correct"].mean()
    for row in rows:
        if row.split == "test" and row.metric == "exact_match":  # which the task names
            assert row.value == pytest.approx(100 * own[row.transfer, row.head])
