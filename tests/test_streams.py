"""Batches: masks and pairs with the paper's statistics, lanes that carry on, and any place of a stream reached directly."""

import hashlib
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from lineage.errors import InputError
from lineage.models.batch import IGNORE_INDEX
from lineage.tokenizers.token_ids import encode_corpus
from lineage.tokenizers.tokenizer import TokenizerSettings
from lineage.tokenizers.train import train_tokenizer
from lineage.training.masked_lm_batches import choose_mask_positions, mask_tokens
from lineage.training.samplers import iterate_batches
from lineage.training.settings import MaskReplacement
from tests import tiny

ROOT = Path(__file__).parent.parent


def stream_of(name: str, **over: dict[str, object]):  # type: ignore[no-untyped-def]
    found = tiny.variant(name, **over)
    return found.family.batch_sampler(tiny.tokens(name), tiny.reader(name), found.pretrain, seed=1)


@pytest.mark.parametrize("name", tiny.TRAINED)
def test_any_place_is_reached_directly_and_passes_differ(name: str) -> None:
    whole = [(p, i, batch) for p, i, batch in iterate_batches(stream_of(name), max_epochs=2)]
    middle = len(whole) // 3
    p, i, expected = whole[middle]
    _, _, found = next(
        iter(iterate_batches(stream_of(name), start_epoch=p, start_index=i, max_epochs=2))
    )
    assert torch.equal(found.ids_BT, expected.ids_BT) and torch.equal(
        found.targets_BT, expected.targets_BT
    )
    first = next(b for p, i, b in whole if p == 1)
    assert not torch.equal(first.ids_BT, whole[0][2].ids_BT)


def test_masks_are_15_percent_exactly_and_80_10_10() -> None:
    rng = np.random.default_rng(3)
    ids, text = rng.integers(10, 90, (997, 41)), np.ones((997, 41), bool)
    text[:, [0, -1]] = False
    lengths = np.full(997, 41)
    inputs, targets = mask_tokens(
        ids,
        choose_mask_positions(text, lengths, mlm_probability=0.15, rng=rng),
        mask_replacement=MaskReplacement(0.8, 0.1),
        mask_id=4,
        vocab_size=90,
        rng=rng,
    )
    chosen = targets != IGNORE_INDEX
    assert (chosen.sum(1) == 6).all() and not chosen[
        :, [0, -1]
    ].any()  # round(0.15 x 41), marks counted and never chosen
    assert (targets[chosen] == ids[chosen]).all() and (inputs[~chosen] == ids[~chosen]).all()
    n, p = chosen.sum(), (inputs[chosen] == 4).mean()
    stayed = (inputs[chosen] == ids[chosen]).mean()
    assert abs(p - (0.8 + 0.1 / 90)) < 3 * (0.16 / n) ** 0.5
    assert abs(stayed - (0.1 + 0.1 / 90)) < 3 * (0.09 / n) ** 0.5


def test_a_short_item_has_one_mask() -> None:
    rng = np.random.default_rng(3)
    chosen = choose_mask_positions(
        np.array([[False, True, False]] * 13), np.full(13, 3), mlm_probability=0.15, rng=rng
    )
    assert (chosen.sum(1) == 1).all()


@pytest.mark.parametrize("whole_word", [False, True])
def test_no_more_positions_are_chosen_than_are_asked_for(whole_word: bool) -> None:
    text, lengths = np.ones((5, 60), bool), np.full(5, 60)
    goes_on = np.tile([False, True, False], 20)[None].repeat(5, 0) if whole_word else None
    for most, expected in ((None, 9), (4, 4)):
        chosen = choose_mask_positions(
            text,
            lengths,
            mlm_probability=0.15,
            rng=np.random.default_rng(1),
            max_predictions=most,
            is_continuation_BT=goes_on,
        )
        assert (chosen.sum(1) == expected).all()


def test_whole_words_are_chosen_or_none_of_their_pieces() -> None:
    rng = np.random.default_rng(5)
    goes_on, text = rng.random((400, 41)) < 0.4, np.ones((400, 41), bool)
    text[:, [0, -1]] = goes_on[:, [0, 1, -1]] = False
    chosen = choose_mask_positions(
        text, np.full(400, 41), mlm_probability=0.15, rng=rng, is_continuation_BT=goes_on
    )
    assert (
        (chosen.sum(1) <= 6).all() and chosen.sum(1).mean() > 5.5 and not chosen[:, [0, -1]].any()
    )
    word = np.cumsum(~goes_on, 1)  # the number of the word that each piece belongs to
    for row in range(400):
        hit = set(word[row][chosen[row]])
        assert chosen[row][text[row] & np.isin(word[row], list(hit))].all()
    assert (chosen & goes_on).any() and len({tuple(line) for line in chosen}) > 390


def test_a_word_ends_where_a_mark_stands_and_a_text_may_begin_within_one() -> None:
    """Two pieces of one word, then a whole word; behind a mark the rest of another word, then a whole word."""
    text = np.array([[False, True, True, True, False, True, True, False]] * 900)
    goes_on = np.array([[False, True, True, False, False, True, False, False]] * 900)
    chosen = choose_mask_positions(
        text,
        np.full(900, 8),
        mlm_probability=0.25,
        rng=np.random.default_rng(5),
        is_continuation_BT=goes_on,
    )
    assert {tuple(np.flatnonzero(row)) for row in chosen} == {(1, 2), (3, 5), (3, 6), (5, 6)}


@pytest.mark.parametrize(
    ("shares", "expected"),
    [((1.0, 0.0), (1.0, 0.0)), ((0.0, 1.0), (0.0, 1.0)), ((0.0, 0.0), (0.0, 0.0))],
)
def test_chosen_tokens_are_replaced_in_the_requested_shares(
    shares: tuple[float, float], expected: tuple[float, float]
) -> None:
    ids, chosen = np.full((50, 40), 7), np.ones((50, 40), bool)
    inputs, targets = mask_tokens(
        ids,
        chosen,
        mask_replacement=MaskReplacement(*shares),
        mask_id=4,
        vocab_size=1000,
        rng=np.random.default_rng(1),
    )
    assert (targets == 7).all() and (inputs == 4).mean() == pytest.approx(expected[0], abs=0.003)
    assert (~np.isin(inputs, (4, 7))).mean() == pytest.approx(expected[1], abs=0.01)


def test_with_two_versions_of_the_masks_the_third_pass_is_the_first_again() -> None:
    stream = stream_of("bert", pretrain={"dupe_factor": 2})
    passes = [[stream.get_batch(i) for i in range(stream.set_epoch(passed))] for passed in range(4)]
    for one, other in ((0, 2), (1, 3)):
        assert all(
            torch.equal(a.ids_BT, b.ids_BT) and torch.equal(a.targets_BT, b.targets_BT)
            for a, b in zip(passes[one], passes[other], strict=True)
        )
    assert not torch.equal(passes[0][0].ids_BT, passes[1][0].ids_BT)


def test_without_next_sentence_every_second_segment_follows_and_nothing_is_labelled() -> None:
    stream = stream_of("bert", pretrain={"next_sentence_prediction": False})
    for index in range(stream.set_epoch(0)):
        assert stream.get_batch(index).next_sentence_labels_B is None
    assert all(random == 0 and a1 <= b0 for _, a1, b0, _, random in stream.pairs)
    starts = np.array([a0 for a0, *_ in stream.pairs])
    assert len(set(starts)) == len(starts), "nothing comes again"
    owner = np.searchsorted(tiny.tokens("bert").document_starts, starts, side="right")
    ends = np.array([b1 for *_, b1, _ in stream.pairs])
    assert (ends <= tiny.tokens("bert").document_starts[owner]).all(), (
        "both segments are of one document"
    )


def test_second_segments_are_random_in_about_half_the_pairs_and_never_from_the_same_document() -> (
    None
):
    stream = stream_of("bert")
    labels, own = [], []
    starts = tiny.tokens("bert").document_starts
    for passed in range(4):
        stream.set_epoch(passed)
        for a0, a1, b0, b1, random in stream.pairs:
            assert a1 - a0 > 0 and b1 - b0 > 0 and a1 - a0 + b1 - b0 <= 23 - 3
            labels.append(random)
            own.append(np.searchsorted(starts, a0, "right") == np.searchsorted(starts, b0, "right"))
    assert np.array_equal(np.array(own), np.array(labels) == 0)
    # A lone sentence is always paired at random, so the share lies above one half.
    assert 0.5 < np.mean(labels) < 0.75


def test_pairs_are_laid_out_with_their_marks_and_segments() -> None:
    stream, marks = stream_of("bert"), tiny.reader("bert").special_token_ids
    stream.set_epoch(0)
    batch = stream.get_batch(0)
    assert (
        batch.targets_BT is not None
        and batch.segment_ids_BT is not None
        and batch.text_mask_BT is not None
    )
    original = torch.where(batch.targets_BT != IGNORE_INDEX, batch.targets_BT, batch.ids_BT)
    for row, mask, segments in zip(original, batch.mask_BT, batch.segment_ids_BT, strict=True):
        line = row[mask].tolist()
        assert (
            line[0] == marks["[CLS]"]
            and line[-1] == marks["[SEP]"]
            and line.count(marks["[SEP]"]) == 2
        )
        assert segments[mask].tolist() == [0] * (line.index(marks["[SEP]"]) + 1) + [1] * (
            len(line) - line.index(marks["[SEP]"]) - 1
        )


def pairs_of(texts: list[str], **pretrain: object):  # type: ignore[no-untyped-def]
    """BERT's stream over these documents."""
    found = tiny.variant("bert", pretrain=pretrain)
    reader = tiny.reader("bert")
    return found.family.batch_sampler(encode_corpus(texts, reader), reader, found.pretrain, seed=1)


def test_text_without_stops_is_read_whole_all_the_same() -> None:
    words = " ".join(tiny.documents()).replace(".", "").split()
    texts = [" ".join(words[i * 300 : (i + 1) * 300]) for i in range(6)]
    stream = pairs_of(texts, seq_len=35)
    seen = np.zeros(len(stream.tokens.ids), bool)
    for passed in range(3):
        stream.set_epoch(passed)
        for a0, a1, b0, b1, _ in stream.pairs:
            seen[a0:a1] = seen[b0:b1] = True
    assert seen.mean() > 0.95
    assert 0.3 < np.mean([random for *_, random in stream.pairs]) < 0.8


def test_sentences_can_stay_whole_and_lose_their_ends_to_the_pair_as_in_the_released_code() -> None:
    """One of 40 words fits no pair of 20: read in parts nearly all of it is read in a pass; whole, 20 pieces of it."""
    texts = [
        " ".join(tiny.documents()[i].replace(".", "").split()[:40]) + " . It slept ."
        for i in range(8)
    ]
    tokens, reader = encode_corpus(texts, tiny.reader("bert")), tiny.reader("bert")
    read, begun = {}, {}
    for cut in (True, False):
        settings = tiny.variant(
            "bert", pretrain={"split_long_sentences": cut, "next_sentence_prediction": False}
        ).pretrain
        stream = tiny.variant("bert").family.batch_sampler(tokens, reader, settings, seed=1)  # type: ignore[misc]
        stream.set_epoch(0)
        read[cut] = sum(a1 - a0 + b1 - b0 for a0, a1, b0, b1, _ in stream.pairs) / len(tokens.ids)
        begun[cut] = len(stream.pairs)
        assert all(a1 - a0 + b1 - b0 <= settings.seq_len - 3 for a0, a1, b0, b1, _ in stream.pairs)
    assert read[True] > 0.95 and read[False] < 0.7 and begun[False] < begun[True]


@pytest.mark.parametrize(
    "texts",
    [[tiny.documents()[0]], ["one line alone", "another line", "a third"]],
    ids=["one document", "lone sentences"],
)
def test_pairs_that_could_have_one_label_only_have_none(texts: list[str]) -> None:
    stream = pairs_of(texts)
    stream.set_epoch(0)
    assert stream.get_batch(0).next_sentence_labels_B is None
    assert pairs_of(list(tiny.documents())).has_next_sentence_labels


def test_strange_characters_do_not_fill_a_wordpiece_vocabulary() -> None:
    strange = [
        " ".join(chr(first + i) for i in range(150)) for first in (0x1200, 0x3400, 0xA000, 0x10A0)
    ]
    settings = TokenizerSettings(vocab_size=499)
    reader = train_tokenizer(
        [*tiny.documents(), *strange], settings, tokenizer_type="wordpiece", language="en"
    )
    known = reader.backend_tokenizer.get_vocab()
    assert len(known) <= 499 and sum(len(piece.removeprefix("##")) > 1 for piece in known) > 250
    chinese = train_tokenizer(
        ["今天天气很好我们去公园" * 3], settings, tokenizer_type="wordpiece", language="zh"
    ).backend_tokenizer.get_vocab()
    assert "天" in chinese and "##天" not in chinese


def test_lanes_carry_on_where_they_stopped_in_both_directions() -> None:
    stream = stream_of("elmo")
    count = stream.set_epoch(0)
    inputs = torch.cat([stream.get_batch(i).ids_BT for i in range(count)], 1)
    targets = torch.cat([stream.get_batch(i).targets_BT for i in range(count)], 1)
    assert torch.equal(inputs[:, 1:], targets[:, :-1])
    B, marks = inputs.shape[0] // 2, tiny.reader("elmo").special_token_ids
    begin = (inputs[:B] == marks["<S>"]).nonzero()[3]
    # Forward, a begin mark follows an end mark; backward, an end mark follows a begin mark.
    assert inputs[begin[0], begin[1] - 1] == marks["</S>"]
    end = (inputs[B:] == marks["</S>"]).nonzero()[3]
    assert inputs[B + end[0], end[1] - 1] == marks["<S>"]


def test_words_outside_the_softmax_keep_their_characters() -> None:
    tokens, reader = tiny.tokens("elmo"), tiny.reader("elmo")
    assert tokens.word_byte_ids_UC is not None and len(tokens.word_byte_ids_UC) > reader.vocab_size
    stream = stream_of("elmo")
    stream.set_epoch(0)
    batch = stream.get_batch(0)
    assert batch.byte_ids_UC is not None and batch.word_rows_BT is not None
    unknown = reader.special_token_ids["<unk>"]
    rows = batch.word_rows_BT[batch.ids_BT == unknown]
    assert len(rows) and len({tuple(batch.byte_ids_UC[r].tolist()) for r in rows}) > 1


TRAINED = "import sys, hashlib; from tests import tiny; print(hashlib.sha256(tiny.reader(sys.argv[1]).backend_tokenizer.to_str().encode()).hexdigest())"


@pytest.mark.parametrize(
    "name", [*(pytest.param(name, marks=pytest.mark.slow) for name in ("elmo", "gpt")), "bert"]
)  # each unit; WordPiece once failed
def test_a_tokenizer_has_the_same_ids_in_every_process(name: str) -> None:
    command = [sys.executable, "-c", TRAINED, name]
    found = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    assert (
        found
        == hashlib.sha256(tiny.reader(name).backend_tokenizer.to_str().encode()).hexdigest() + "\n"
    )


@pytest.mark.parametrize("name", [*tiny.TRAINED, *tiny.STATIC])
def test_a_mark_that_is_written_in_a_text_is_text(name: str) -> None:
    reader = tiny.reader(name)
    encoded = reader.encode(" ".join(reader.special_token_ids))
    inside = encoded.ids[encoded.offsets[:, 1] > encoded.offsets[:, 0]]
    assert not set(inside) & (
        set(reader.special_token_ids.values())
        - {reader.special_token_ids.get("<unk>"), reader.special_token_ids.get("[UNK]")}
    )


@pytest.mark.parametrize("name", [*tiny.TRAINED, *tiny.STATIC])
def test_the_corpus_and_a_task_are_read_the_same_way(name: str) -> None:
    """The first document's ids in the flat arrays are what `encode` gives, marks apart."""
    reader, tokens, text = tiny.reader(name), tiny.tokens(name), tiny.documents()[0]
    flat = tokens.ids[: tokens.document_starts[1]]
    encoded = reader.encode(text)
    real = encoded.ids[encoded.offsets[:, 1] > encoded.offsets[:, 0]]
    marks = set(reader.special_token_ids.values()) - {reader.special_token_ids.get("<unk>")}
    flat = np.array([i for i in flat if i not in marks])
    if reader.tokenizer_type == "word":
        flat = np.where(flat < reader.vocab_size, flat, reader.special_token_ids["<unk>"])
    assert np.array_equal(flat, real)


@pytest.mark.parametrize("name", ["elmo", "word2vec"])
def test_words_must_be_as_frequent_as_is_asked(name: str) -> None:
    found = tiny.variant(name, tokenizer={"min_frequency": 10**6})
    with pytest.raises(
        InputError,
        match=r"tokenizer\.min_frequency: no word of the corpus occurs 1,000,000 times; lower it",
    ):
        train_tokenizer(
            tiny.documents(), found.tokenizer, tokenizer_type=found.tokenizer_type, language="en"
        )


def test_a_word_in_capitals_is_the_same_word_in_pretraining_and_after() -> None:
    """A capital sigma at a word's end: Python's lower case looks at its neighbours, that of `tokenizers` does not."""
    reader = train_tokenizer(
        ["λογοσ και ΛΟΓΟΣ ."] * 4,
        TokenizerSettings(vocab_size=99, lowercase=True),
        tokenizer_type="word",
        language="el",
    )
    assert reader.surface_form("ΛΟΓΟΣ", 0, 5) == "λογοσ"
    tokens = encode_corpus(["λογοσ και ΛΟΓΟΣ ."], reader)
    assert (
        {*np.asarray(tokens.ids).tolist()}
        >= {*reader.encode("λογοσ").ids.tolist()}
        == {*reader.encode("ΛΟΓΟΣ").ids.tolist()}
    )


def test_the_lanes_of_the_two_directions_run_through_documents_in_orders_of_their_own() -> None:
    found, tokens = tiny.variant("elmo"), tiny.tokens("elmo")
    assert found.family.batch_sampler is not None
    stream = found.family.batch_sampler(tokens, tiny.reader("elmo"), found.pretrain, seed=1)
    stream.set_epoch(0)
    ahead, back = (rows.ids_BL for rows in stream.rows_by_direction)
    rest = len(tokens.ids) - ahead.size
    assert not np.array_equal(ahead.ravel()[rest:], back.ravel()[::-1][: ahead.size - rest])
