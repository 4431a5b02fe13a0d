"""Questions whose answer is a part of a context: what is taken and refused, where an answer stands, who learns to find it, and how that is scored."""

import dataclasses
import itertools
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from torch.nn import functional as F

from lineage.answers import Span, answer_of
from lineage.controls import control_rows
from lineage.errors import InputError
from lineage.evaluation import cells, evaluate
from lineage.frozen import fit_frozen, frozen_features
from lineage.items import Items, build
from lineage.kind import load_kind
from lineage.metrics import METRICS, answer_scores
from lineage.networks import fit_network, read_network, remember
from lineage.params import Task
from lineage.predictions import LONGEST, best_span
from lineage.reading import TaskData, collate, read_items, rows_of, span_item
from lineage.records import load
from lineage.subject import Setting
from lineage.text import word_spans
from lineage.tokenization import Reader, TokenizerSettings, Unit
from lineage.transfer import EvaluateSettings, FrozenSettings, TunedSettings
from lineage.tuning import fine_tune, predict
from lineage.vocabulary import train_tokenizer
from tests import tiny

NAMES = [name for name in tiny.FAMILIES if tiny.variant(name).family.name == name]
LEARNING = [name if name in ("word2vec", "bert") else pytest.param(name, marks=pytest.mark.slow) for name in NAMES]
TUNED = TunedSettings(
    epochs=12, batch=8, rate=0.01, layer_decay=1.0, cut_share=0.1, ratio=32.0, unfreeze_share=0.0, weight_decay=0.0, dropout=0.0, clip_norm=1.0
)
FROZEN = FrozenSettings(l2=0.0003, iterations=100)
WORDS = sorted(word for word in tiny.reader("ulmfit").tokenizer.get_vocab() if word.isalpha())[:24]  # the smallest vocabulary
BEGINS, ENDS = WORDS[:3], WORDS[3:6]  # of answers that can be learned by heart
KEYS: dict[str, Any] = {"kind": "span", "question": "ask", "context": "read", "answers": "say"}
TEXT = "Na\u00efve  Ann saw 3.5 owls; Ann didn't see (any) cats \u2014 or dogs\u2026"


def questions(count: int, seed: int = 3, *, learned: bool = True) -> pd.DataFrame:
    """The answer is two words, of which each tells its place, among others; or any two words, where there is nothing to learn."""
    rng, rows = np.random.default_rng(seed), []
    for _ in range(count):
        words = [str(word) for word in rng.choice(WORDS[6:], rng.integers(5, 9))]
        place = int(rng.integers(len(words)))
        answer = [str(rng.choice(BEGINS)), str(rng.choice(ENDS))] if learned else [str(word) for word in rng.choice(WORDS[6:], 2)]
        rows.append((" ".join(rng.choice(WORDS[6:], 3)), " ".join([*words[:place], *answer, *words[place:]]), " ".join(answer), words[:place]))
    table = pd.DataFrame(rows, columns=["ask", "read", "say", "before"])
    return table.assign(at=[len(" ".join([*before, ""])) for before in table.pop("before")])


def made(root: Path, train: pd.DataFrame, test: pd.DataFrame, **keys: object) -> Items:
    for split, table in (("train", train), ("test", test)):
        table.to_parquet(root / f"{split}.parquet")
    files = {"train": "train.parquet", "test": "test.parquet"}
    task = load(Task, {**KEYS, "files": files, "validation_share": 0.2, **keys}, "task")
    return build("x", task, load_kind("span"), seed=1, root=root, where="task")


def one(context: str, answers: object, starts: object = None, **keys: Any) -> pd.Series:
    columns = {"ask": ["who ?"], "read": [context], "say": [answers], "at": [starts]}
    task = load(Task, {**KEYS, "files": {"train": "x"}, **({} if starts is None else {"starts": "at"}), **keys}, "task")
    return load_kind("span").items(columns, task, "here").iloc[0]


def held(item: pd.Series) -> str:
    """The characters that the label says."""
    return str(item["context"][item["starts"][item["label"][0]] : item["ends"][item["label"][1]]])


def test_answers_come_as_a_text_a_list_or_squads_lists(tmp_path: Path) -> None:
    table = questions(20)
    whole = made(tmp_path, table, table[:4])
    assert whole.facts["metric"] == ["answer_f1"] and whole.facts["answer"] == "span" and whole.facts["labels"] == []
    test = whole.splits["test"]
    assert [held(item) for _, item in test.iterrows()] == list(table["say"][:4]) == [item["answers"][0] for _, item in test.iterrows()]
    lists = table.assign(say=[[text, "nothing"] for text in table["say"]], read=table["read"] + " nothing")
    assert made(tmp_path, lists, lists[:4]).splits["test"]["label"].tolist() == test["label"].tolist()
    squad = table.assign(say=[{"text": [text], "answer_start": [at]} for text, at in zip(table["say"], table["at"], strict=True)])
    assert made(tmp_path, squad, squad[:4]).splits["test"].equals(test)
    assert made(tmp_path, table, table[:4], starts="at").splits["test"].equals(test)


@pytest.mark.parametrize(("context", "answer", "start", "label", "text"), [
    (TEXT, "Ann", None, [1, 1], "Ann"),  # the first of two
    (TEXT, "Ann", 25, [6, 6], "Ann"),
    (TEXT, "3.5 owls", 15, [3, 4], "3.5 owls"),
    (TEXT, "see (any)", 36, [9, 12], "see (any)"),
    (TEXT, "dogs\u2026", 56, [16, 17], "dogs\u2026"),
    (TEXT, "an", None, [11, 11], "any"),  # the word that holds it
    ("  cafe\u0301\r\na\tb a b", "a\tb", 9, [1, 2], "a b"),  # six characters become five, and the first two and one of two go
    ("  cafe\u0301\r\na\tb a b", "a b", 13, [3, 4], "a b"),
    ("\ufeffb a a", "a", 5, [2, 2], "a"),
])  # fmt: skip
def test_an_answer_is_found_where_its_start_says_whatever_cleaning_does(
    context: str, answer: str, start: int | None, label: list[int], text: str
) -> None:
    item = one(context, answer, start)
    assert item["label"] == label and held(item) == text


@pytest.mark.parametrize(("context", "answers", "starts", "said"), [
    ("a b", "c", None, "here: row 1: column 'say': the answer 'c' does not stand in the context, letter by letter; correct the data"),
    ("a b", "A", None, "the answer 'A' does not stand in the context"),
    (" ", "a", None, "row 1: column 'read': the context is blank"),
    ("a b", [], None, "column 'say': an answer is blank, or there are none"),
    ("a b", None, None, "column 'say': an answer is blank, or there are none"),
    ("a b", ["a", " "], None, "column 'say': an answer is blank, or there are none"),
    ("a b", [["a"]], None, "column 'say' holds a list, not text"),
    ("a b", {"text": [], "answer_start": []}, None, "column 'say': an answer is blank, or there are none"),
    ("a b", {"answer_start": [0]}, None, "column 'say' holds a mapping, which needs 'text'"),
    ("a b", "b", 0, "the answer 'b' should begin at character 0 of the context, where 'a' stands"),
    ("a b", "b", 7, "the answer 'b' should begin at character 7 of the context, where '' stands"),
    ("a b", {"text": ["a", "b"], "answer_start": [0]}, None, "2 answers in 'say' and 1 in 'answer_start'; there must be a start for each answer"),
    ("a b", "b", "second", "column 'at': 'second' is no number of characters"),
    ("a b", ["b"], [-1], "column 'at': '-1' is no number of characters"),
    ("a b", ["b"], [], "1 answers in 'say' and 0 in 'at'"),
])  # fmt: skip
def test_what_is_no_answer_is_refused_with_its_row(context: str, answers: object, starts: object, said: str) -> None:
    with pytest.raises(InputError) as error:
        one(context, answers, starts)
    assert said in str(error.value)


def test_an_answer_that_max_tokens_cuts_off_is_counted_and_only_train_loses_the_question(tmp_path: Path) -> None:
    table = questions(40)
    item = one("a b c d e f", ["e", "b c"], max_tokens=6)
    assert item["context"] == "a b c d" and item["label"] == [1, 2] and item["answers"] == ["e", "b c"] and item["cut"], "the second one is there"
    assert one("a b c d e f", ["d e"], max_tokens=6)["label"] == [], "half of it is none"
    found = made(tmp_path, table, table[:10], max_tokens=8)
    cut = {split: int(sum(len(label) == 0 for label in some["label"])) for split, some in found.splits.items()}
    beyond = int(((table["at"] + table["say"].str.len()) > table["read"].map(lambda text: word_spans(text, "en")[4][1])).sum())
    assert 0 < cut["test"] == found.facts["lost"]["test"] < 10 == found.facts["counts"]["test"]
    assert cut["train"] == 0 and found.facts["dropped"]["train"]["answer_cut_off"] + cut["validation"] == beyond
    answer, splits = Span(), found.splits
    told = answer.columns(splits["test"], np.zeros((sum(map(len, splits["test"]["starts"])), 2)))
    assert (told["score"] > 0).sum() == 10 - cut["test"]
    rows = [row for some, _ in control_rows(load_kind("span"), found.facts, splits["train"], splits["test"], split="test", seeds=[0], labels=["all"])
            for row in some]  # fmt: skip
    assert {row.reason for row in rows} == {f"{cut['test']} of 10 questions have no answer within max_tokens, and are scored all the same"}
    with pytest.raises(InputError, match="no answer stands within the first max_tokens words of its context; raise max_tokens"):
        made(tmp_path, table.assign(read=" ".join(WORDS[6:14]) + " " + table["read"]), table, max_tokens=6)


def _reader(unit: Unit, **over: Any) -> Reader:
    return train_tokenizer([*tiny.documents(), TEXT], TokenizerSettings(vocabulary=499, **over), unit=unit, language="en")


READERS = {name: lambda name=name: tiny.reader(name) for name in NAMES} | {
    "backward": lambda: _reader("word", direction="backward"), "mended": lambda: _reader("byte_bpe", normalise="ftfy"),
    "with ends of words": lambda: _reader("bpe", end_of_word=True, normalise="ftfy", lowercase=True)}  # fmt: skip


@pytest.mark.parametrize("name", READERS)
@pytest.mark.parametrize("limit", [None, 19])
def test_every_word_of_a_context_is_read_once_beside_the_question_from_its_own_characters(name: str, limit: int | None) -> None:
    reader, context, asked = READERS[name](), " ".join((TEXT, tiny.documents()[0][:60], TEXT)), "Ann saw"
    starts, ends = (np.array(column) for column in zip(*word_spans(context, "en"), strict=True))
    item = span_item(asked, context, starts, ends, reader, limit=limit, language="en")
    assert item.asked == len(starts) and (len(item.readings) > 1) == item.cut == (limit is not None)
    first, seen = 0, np.zeros(len(starts), bool)
    for reading, pieces in zip(item.readings, item.pieces, strict=True):
        assert reading.segments is not None and (limit is None or len(reading.ids) <= limit)
        assert reading.segments[0] == 0, "the question is read first, whichever way"
        question = reading.spans[reading.segments == 0]
        assert {asked[a:b].strip() for a, b in question} >= {"Ann", "saw"} or question.max() == len(asked), "all of it, beside every part"
        assert (reading.segments[pieces[:, 0]] == 1).all()
        words = np.unique(pieces[:, 1])
        assert words[0] >= first and not seen[words].any(), "no word twice, and in order"
        seen[words] = True
        for place, word in pieces:
            a, b = reading.spans[place] + starts[words[0]]
            assert a < ends[word] and b > starts[word], "a piece that holds some of its characters"
        for word in words:
            own = reading.spans[pieces[pieces[:, 1] == word, 0]] + starts[words[0]]
            assert own[:, 0].min() <= starts[word] and own[:, 1].max() >= ends[word], "and all of them are held"
        first = words[-1] + 1
    unread = [context[a:b] for a, b in zip(starts[~seen], ends[~seen], strict=True)]
    assert not {*unread} - {"\u2014", "\u2026", "\u00ef"}, "what a tokenizer has never seen may be no piece at all"


def test_of_a_long_question_half_of_the_positions_are_read_and_no_word_of_the_context_is_lost() -> None:
    reader, context, question = tiny.reader("bert"), " ".join(WORDS[:12]), " ".join(WORDS)
    starts, ends = (np.array(column) for column in zip(*word_spans(context, "en"), strict=True))
    item = span_item(question, context, starts, ends, reader, limit=21, language="en")
    assert item.cut and all(0 < (reading.segments == 0).sum() <= 2 + 18 // 2 for reading in item.readings if reading.segments is not None)
    assert {int(word) for pieces in item.pieces for word in pieces[:, 1]} == set(range(12))


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
    majority, _ = control_rows(load_kind("span"), task.facts, train, test, split="test", seeds=[0], labels=["all"])
    floor = majority[1]["correct"].mean()
    for said in told[: 1 if name == "context2vec" else 2]:  # whose top layer has not read the word itself
        columns = answer.columns(test, said)
        assert METRICS["answer_f1"](columns["gold"], columns["prediction"]) > 80 > 100 * floor + 20
        assert 100 * columns["correct"].mean() == pytest.approx(METRICS["answer_f1"](columns["gold"], columns["prediction"]))
    together = model(collate(reader, asked))
    for rows, item in zip(rows_of(asked), asked, strict=True):
        torch.testing.assert_close(model(collate(reader, [item])), together[rows], atol=1e-4, rtol=1e-4)


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
        right, wrong = (Span().columns(test, scores)["correct"].mean() for scores in said)
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
    item = one(TEXT, ["(any) cats", "see (any)", "Ann"])
    scores = np.zeros((len(item["starts"]), 2))
    scores[9, 0] = scores[12, 1] = 4.0
    columns = Span().columns(pd.DataFrame([item]), scores)
    assert columns["prediction"].tolist() == ["see (any)"] and columns["gold"].tolist() == ["(any) cats\tsee (any)\tAnn"]
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
    assert {row.status for row in rows} == {"ok"} and {row.metric for row in rows} == {"answer_f1", "exact_match"}
    lost = task.facts["lost"]["test"]
    assert lost and all(row.reason.endswith(f"{lost} of 12 questions have no answer within max_tokens, and are scored all the same")
                        and "pieces, and read in parts; " in row.reason for row in rows if row.split == "test")  # fmt: skip
    own = predictions[predictions["split"] == "test"].groupby(["transfer", "head"])["correct"].mean()
    for row in rows:
        if row.split == "test" and row.metric == "answer_f1":
            assert row.value == pytest.approx(100 * own[row.transfer, row.head])
