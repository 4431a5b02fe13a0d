"""Batches: masks and pairs with the paper's statistics, lanes that carry on, and any place of a stream reached directly."""

import hashlib
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from lineage.batch import NO_TARGET
from lineage.streams import batches, masked
from lineage.tokenization import TokenizerSettings, train_tokenizer
from lineage.tokens import encode_corpus
from tests import tiny

ROOT = Path(__file__).parent.parent


def stream_of(name: str, **over: dict[str, object]):  # type: ignore[no-untyped-def]
    found = tiny.variant(name, **over)
    return found.family.stream(tiny.tokens(name), tiny.reader(name), found.pretrain, seed=1)


@pytest.mark.parametrize("name", tiny.FAMILIES)
def test_any_place_is_reached_directly_and_passes_differ(name: str) -> None:
    whole = [(p, i, batch) for p, i, batch in batches(stream_of(name), passes=2)]
    middle = len(whole) // 3
    p, i, expected = whole[middle]
    _, _, found = next(iter(batches(stream_of(name), passed=p, index=i, passes=2)))
    assert torch.equal(found.ids_BT, expected.ids_BT) and torch.equal(found.targets_BT, expected.targets_BT)
    first = next(b for p, i, b in whole if p == 1)
    assert not torch.equal(first.ids_BT, whole[0][2].ids_BT)


def test_masks_are_15_percent_exactly_and_80_10_10() -> None:
    rng = np.random.default_rng(3)
    ids, text = rng.integers(10, 90, (997, 41)), np.ones((997, 41), bool)
    text[:, [0, -1]] = False
    lengths = np.full(997, 41)
    inputs, targets = masked(ids, text, lengths, share=0.15, mark=4, vocabulary=90, rng=rng)
    chosen = targets != NO_TARGET
    assert (chosen.sum(1) == 6).all() and not chosen[:, [0, -1]].any()  # round(0.15 x 41), marks counted and never chosen
    assert (targets[chosen] == ids[chosen]).all() and (inputs[~chosen] == ids[~chosen]).all()
    n, p = chosen.sum(), (inputs[chosen] == 4).mean()
    stayed = (inputs[chosen] == ids[chosen]).mean()
    assert abs(p - (0.8 + 0.1 / 90)) < 3 * (0.16 / n) ** 0.5
    assert abs(stayed - (0.1 + 0.1 / 90)) < 3 * (0.09 / n) ** 0.5


def test_a_short_item_has_one_mask() -> None:
    rng = np.random.default_rng(3)
    _, targets = masked(np.full((13, 3), 9), np.array([[False, True, False]] * 13), np.full(13, 3), share=0.15, mark=4, vocabulary=90, rng=rng)
    assert ((targets != NO_TARGET).sum(1) == 1).all()


def test_second_segments_are_random_in_about_half_the_pairs_and_never_from_the_same_document() -> None:
    stream = stream_of("bert")
    labels, own = [], []
    starts = tiny.tokens("bert").documents
    for passed in range(4):
        stream.start(passed)
        for a0, a1, b0, b1, random in stream.pairs:
            assert a1 - a0 > 0 and b1 - b0 > 0 and a1 - a0 + b1 - b0 <= 23 - 3
            labels.append(random)
            own.append(np.searchsorted(starts, a0, "right") == np.searchsorted(starts, b0, "right"))
    assert np.array_equal(np.array(own), np.array(labels) == 0)
    # A lone sentence is always paired at random, so the share lies above one half.
    assert 0.5 < np.mean(labels) < 0.75


def test_pairs_are_laid_out_with_their_marks_and_segments() -> None:
    stream, marks = stream_of("bert"), tiny.reader("bert").marks
    stream.start(0)
    batch = stream.batch(0)
    assert batch.targets_BT is not None and batch.segments_BT is not None and batch.text_BT is not None
    original = torch.where(batch.targets_BT != NO_TARGET, batch.targets_BT, batch.ids_BT)
    for row, mask, segments in zip(original, batch.mask_BT, batch.segments_BT, strict=True):
        line = row[mask].tolist()
        assert line[0] == marks["[CLS]"] and line[-1] == marks["[SEP]"] and line.count(marks["[SEP]"]) == 2
        assert segments[mask].tolist() == [0] * (line.index(marks["[SEP]"]) + 1) + [1] * (len(line) - line.index(marks["[SEP]"]) - 1)


def pairs_of(texts: list[str], **pretrain: object):  # type: ignore[no-untyped-def]
    """BERT's stream over these documents."""
    found = tiny.variant("bert", pretrain=pretrain)
    reader = tiny.reader("bert")
    return found.family.stream(encode_corpus(texts, reader), reader, found.pretrain, seed=1)


def test_text_without_stops_is_read_whole_all_the_same() -> None:
    words = " ".join(tiny.documents()).replace(".", "").split()
    texts = [" ".join(words[i * 300 : (i + 1) * 300]) for i in range(6)]
    stream = pairs_of(texts, length=35)
    seen = np.zeros(len(stream.tokens.ids), bool)
    for passed in range(3):
        stream.start(passed)
        for a0, a1, b0, b1, _ in stream.pairs:
            seen[a0:a1] = seen[b0:b1] = True
    assert seen.mean() > 0.95
    assert 0.3 < np.mean([random for *_, random in stream.pairs]) < 0.8


@pytest.mark.parametrize("texts", [[tiny.documents()[0]], ["one line alone", "another line", "a third"]], ids=["one document", "lone sentences"])
def test_pairs_that_could_have_one_label_only_have_none(texts: list[str]) -> None:
    stream = pairs_of(texts)
    stream.start(0)
    assert stream.batch(0).next_B is None
    assert pairs_of(list(tiny.documents())).labelled


def test_strange_characters_do_not_fill_a_wordpiece_vocabulary() -> None:
    strange = [" ".join(chr(first + i) for i in range(150)) for first in (0x1200, 0x3400, 0xA000, 0x10A0)]
    settings = TokenizerSettings(vocabulary=499)
    reader = train_tokenizer([*tiny.documents(), *strange], settings, unit="wordpiece", language="en")
    known = reader.tokenizer.get_vocab()
    assert len(known) <= 499 and sum(len(piece.removeprefix("##")) > 1 for piece in known) > 250
    chinese = train_tokenizer(["今天天气很好我们去公园" * 3], settings, unit="wordpiece", language="zh").tokenizer.get_vocab()
    assert "天" in chinese and "##天" not in chinese


def test_lanes_carry_on_where_they_stopped_in_both_directions() -> None:
    stream = stream_of("elmo")
    count = stream.start(0)
    inputs = torch.cat([stream.batch(i).ids_BT for i in range(count)], 1)
    targets = torch.cat([stream.batch(i).targets_BT for i in range(count)], 1)
    assert torch.equal(inputs[:, 1:], targets[:, :-1])
    B, marks = inputs.shape[0] // 2, tiny.reader("elmo").marks
    begin = (inputs[:B] == marks["<S>"]).nonzero()[3]
    # Forward, a begin mark follows an end mark; backward, an end mark follows a begin mark.
    assert inputs[begin[0], begin[1] - 1] == marks["</S>"]
    end = (inputs[B:] == marks["</S>"]).nonzero()[3]
    assert inputs[B + end[0], end[1] - 1] == marks["<S>"]


def test_words_outside_the_softmax_keep_their_characters() -> None:
    tokens, reader = tiny.tokens("elmo"), tiny.reader("elmo")
    assert tokens.types_UC is not None and len(tokens.types_UC) > reader.vocabulary
    stream = stream_of("elmo")
    stream.start(0)
    batch = stream.batch(0)
    assert batch.characters_UC is not None and batch.words_BT is not None
    unknown = reader.marks["<unk>"]
    rows = batch.words_BT[batch.ids_BT == unknown]
    assert len(rows) and len({tuple(batch.characters_UC[r].tolist()) for r in rows}) > 1


TRAINED = "import sys, hashlib; from tests import tiny; print(hashlib.sha256(tiny.reader(sys.argv[1]).tokenizer.to_str().encode()).hexdigest())"


@pytest.mark.parametrize("name", tiny.FAMILIES)
def test_a_tokenizer_has_the_same_ids_in_every_process(name: str) -> None:
    command = [sys.executable, "-c", TRAINED, name]
    found = {subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout for _ in range(2)}
    assert found == {hashlib.sha256(tiny.reader(name).tokenizer.to_str().encode()).hexdigest() + "\n"}


@pytest.mark.parametrize("name", tiny.FAMILIES)
def test_a_mark_that_is_written_in_a_text_is_text(name: str) -> None:
    reader = tiny.reader(name)
    encoded = reader.encode(" ".join(reader.marks))
    inside = encoded.ids[encoded.spans[:, 1] > encoded.spans[:, 0]]
    assert not set(inside) & (set(reader.marks.values()) - {reader.marks.get("<unk>"), reader.marks.get("[UNK]")})


@pytest.mark.parametrize("name", tiny.FAMILIES)
def test_the_corpus_and_a_task_are_read_the_same_way(name: str) -> None:
    """The first document's ids in the flat arrays are what `encode` gives, marks apart."""
    reader, tokens, text = tiny.reader(name), tiny.tokens(name), tiny.documents()[0]
    flat = tokens.ids[: tokens.documents[1]]
    encoded = reader.encode(text)
    real = encoded.ids[encoded.spans[:, 1] > encoded.spans[:, 0]]
    marks = set(reader.marks.values()) - {reader.marks.get("<unk>")}
    flat = np.array([i for i in flat if i not in marks])
    if reader.unit == "word":
        flat = np.where(flat < reader.vocabulary, flat, reader.marks["<unk>"])
    assert np.array_equal(flat, real)
