"""Batch samplers mask and pair as the papers say, carry BPTT state and resume anywhere."""

import hashlib
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from lineage.errors import InputError
from lineage.networks.batch import IGNORE_INDEX
from lineage.tokenizers.token_ids import encode_corpus
from lineage.tokenizers.tokenizer import TokenizerSettings
from lineage.tokenizers.train import train_tokenizer
from lineage.training.masked_lm_batches import choose_mask_positions, mask_tokens
from lineage.training.samplers import CausalWindows, iterate_batches
from lineage.training.settings import MaskReplacement
from tests.helpers import tiny

ROOT = Path(__file__).parent.parent


def build_sampler(name: str, **overrides: dict[str, object]):  # type: ignore[no-untyped-def]
    """Return the family's sampler over the tiny documents."""
    config = tiny.model_config(name, **overrides)
    return config.family.batch_sampler(
        tiny.corpus(name), tiny.tokenizer(name), config.pretrain, seed=1
    )


@pytest.mark.parametrize("name", tiny.TRAINED)
def test_sampling_resumes_at_any_batch_and_epochs_differ(name: str) -> None:
    batches = [
        (epoch, index, batch)
        for epoch, index, batch in iterate_batches(build_sampler(name), max_epochs=2)
    ]
    middle = len(batches) // 3
    epoch, index, expected = batches[middle]
    _, _, resumed = next(
        iter(
            iterate_batches(build_sampler(name), start_epoch=epoch, start_index=index, max_epochs=2)
        )
    )
    assert torch.equal(resumed.ids_BT, expected.ids_BT)
    assert torch.equal(resumed.targets_BT, expected.targets_BT)
    second_epoch = next(later_batch for epoch, index, later_batch in batches if epoch == 1)
    assert not torch.equal(second_epoch.ids_BT, batches[0][2].ids_BT)


def test_masking_chooses_15_percent_and_replaces_80_10_10() -> None:
    rng = np.random.default_rng(3)
    ids = rng.integers(10, 90, (997, 41))
    is_text = np.ones((997, 41), bool)
    is_text[:, [0, -1]] = False
    lengths = np.full(997, 41)
    inputs, targets = mask_tokens(
        ids,
        choose_mask_positions(is_text, lengths, mlm_probability=0.15, rng=rng),
        mask_replacement=MaskReplacement(0.8, 0.1),
        mask_id=4,
        vocab_size=90,
        rng=rng,
    )
    is_chosen = targets != IGNORE_INDEX
    # round(0.15 x 41) = 6: special tokens count, but are never chosen.
    assert (is_chosen.sum(1) == 6).all()
    assert not is_chosen[:, [0, -1]].any()
    assert (targets[is_chosen] == ids[is_chosen]).all()
    assert (inputs[~is_chosen] == ids[~is_chosen]).all()
    num_chosen = is_chosen.sum()
    mask_share = (inputs[is_chosen] == 4).mean()
    kept_share = (inputs[is_chosen] == ids[is_chosen]).mean()
    assert abs(mask_share - (0.8 + 0.1 / 90)) < 3 * (0.16 / num_chosen) ** 0.5
    assert abs(kept_share - (0.1 + 0.1 / 90)) < 3 * (0.09 / num_chosen) ** 0.5


def test_a_short_item_has_one_masked_token() -> None:
    rng = np.random.default_rng(3)
    chosen = choose_mask_positions(
        np.array([[False, True, False]] * 13), np.full(13, 3), mlm_probability=0.15, rng=rng
    )
    assert (chosen.sum(1) == 1).all()


@pytest.mark.parametrize("whole_word", [False, True])
def test_max_predictions_limits_the_masked_positions(whole_word: bool) -> None:
    is_text = np.ones((5, 60), bool)
    lengths = np.full(5, 60)
    is_continuation = np.tile([False, True, False], 20)[None].repeat(5, 0) if whole_word else None
    for max_predictions, expected in ((None, 9), (4, 4)):
        chosen = choose_mask_positions(
            is_text,
            lengths,
            mlm_probability=0.15,
            rng=np.random.default_rng(1),
            max_predictions=max_predictions,
            is_continuation_BT=is_continuation,
        )
        assert (chosen.sum(1) == expected).all()


def test_whole_word_masking_masks_all_pieces_of_a_word_or_none() -> None:
    rng = np.random.default_rng(5)
    is_continuation = rng.random((400, 41)) < 0.4
    is_text = np.ones((400, 41), bool)
    is_text[:, [0, -1]] = is_continuation[:, [0, 1, -1]] = False
    chosen = choose_mask_positions(
        is_text, np.full(400, 41), mlm_probability=0.15, rng=rng, is_continuation_BT=is_continuation
    )
    assert (chosen.sum(1) <= 6).all()
    assert chosen.sum(1).mean() > 5.5
    assert not chosen[:, [0, -1]].any()
    word_ids = np.cumsum(~is_continuation, 1)  # the word that each piece belongs to
    for row in range(400):
        masked_words = set(word_ids[row][chosen[row]])
        assert chosen[row][is_text[row] & np.isin(word_ids[row], list(masked_words))].all()
    assert (chosen & is_continuation).any()
    assert len({tuple(positions) for positions in chosen}) > 390


def test_special_tokens_end_words_and_a_segment_may_begin_inside_a_word() -> None:
    """Two pieces of one word, then a whole word; after a special token, the rest of one."""
    is_text = np.array([[False, True, True, True, False, True, True, False]] * 900)
    is_continuation = np.array([[False, True, True, False, False, True, False, False]] * 900)
    chosen = choose_mask_positions(
        is_text,
        np.full(900, 8),
        mlm_probability=0.25,
        rng=np.random.default_rng(5),
        is_continuation_BT=is_continuation,
    )
    assert {tuple(np.flatnonzero(row)) for row in chosen} == {(1, 2), (3, 5), (3, 6), (5, 6)}


@pytest.mark.parametrize(
    ("shares", "expected"),
    [((1.0, 0.0), (1.0, 0.0)), ((0.0, 1.0), (0.0, 1.0)), ((0.0, 0.0), (0.0, 0.0))],
)
def test_chosen_tokens_are_replaced_in_the_requested_shares(
    shares: tuple[float, float], expected: tuple[float, float]
) -> None:
    ids = np.full((50, 40), 7)
    chosen = np.ones((50, 40), bool)
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


def test_dupe_factor_two_repeats_the_masks_every_second_epoch() -> None:
    sampler = build_sampler("bert", pretrain={"dupe_factor": 2})
    epochs = [[sampler.get_batch(i) for i in range(sampler.set_epoch(epoch))] for epoch in range(4)]
    for first, second in ((0, 2), (1, 3)):
        assert all(
            torch.equal(batch.ids_BT, repeated_batch.ids_BT)
            and torch.equal(batch.targets_BT, repeated_batch.targets_BT)
            for batch, repeated_batch in zip(epochs[first], epochs[second], strict=True)
        )
    assert not torch.equal(epochs[0][0].ids_BT, epochs[1][0].ids_BT)


def test_without_next_sentence_prediction_segments_follow_each_other_unlabelled() -> None:
    sampler = build_sampler("bert", pretrain={"next_sentence_prediction": False})
    for index in range(sampler.set_epoch(0)):
        assert sampler.get_batch(index).next_sentence_labels_B is None
    assert all(random == 0 and a1 <= b0 for _, a1, b0, _, random in sampler.pairs)
    starts = np.array([a0 for a0, *_ in sampler.pairs])
    assert len(set(starts)) == len(starts), "no text is repeated"
    document_of_pair = np.searchsorted(tiny.corpus("bert").document_starts, starts, side="right")
    ends = np.array([b1 for *_, b1, _ in sampler.pairs])
    assert (ends <= tiny.corpus("bert").document_starts[document_of_pair]).all(), (
        "both segments come from one document"
    )


def test_about_half_of_the_second_segments_come_from_another_document() -> None:
    sampler = build_sampler("bert")
    labels, is_same_document = [], []
    starts = tiny.corpus("bert").document_starts
    for epoch in range(4):
        sampler.set_epoch(epoch)
        for a0, a1, b0, b1, random in sampler.pairs:
            assert a1 - a0 > 0 and b1 - b0 > 0 and a1 - a0 + b1 - b0 <= 23 - 3
            labels.append(random)
            is_same_document.append(
                np.searchsorted(starts, a0, "right") == np.searchsorted(starts, b0, "right")
            )
    assert np.array_equal(np.array(is_same_document), np.array(labels) == 0)
    # A single sentence is always paired at random, so the share lies above one half.
    assert 0.5 < np.mean(labels) < 0.75


def test_pairs_have_cls_and_sep_tokens_and_segment_ids() -> None:
    sampler = build_sampler("bert")
    special_ids = tiny.tokenizer("bert").special_token_ids
    sampler.set_epoch(0)
    batch = sampler.get_batch(0)
    assert batch.targets_BT is not None
    assert batch.segment_ids_BT is not None
    assert batch.text_mask_BT is not None
    original = torch.where(batch.targets_BT != IGNORE_INDEX, batch.targets_BT, batch.ids_BT)
    for row, mask, segments in zip(original, batch.mask_BT, batch.segment_ids_BT, strict=True):
        ids = row[mask].tolist()
        assert ids[0] == special_ids["[CLS]"]
        assert ids[-1] == special_ids["[SEP]"]
        assert ids.count(special_ids["[SEP]"]) == 2
        assert segments[mask].tolist() == [0] * (ids.index(special_ids["[SEP]"]) + 1) + [1] * (
            len(ids) - ids.index(special_ids["[SEP]"]) - 1
        )


def build_pair_sampler(texts: list[str], **pretrain: object):  # type: ignore[no-untyped-def]
    """Build BERT's sampler over these documents."""
    config = tiny.model_config("bert", pretrain=pretrain)
    tokenizer = tiny.tokenizer("bert")
    return config.family.batch_sampler(
        encode_corpus(texts, tokenizer), tokenizer, config.pretrain, seed=1
    )


def test_text_without_full_stops_is_read_almost_completely() -> None:
    words = " ".join(tiny.documents()).replace(".", "").split()
    texts = [" ".join(words[i * 300 : (i + 1) * 300]) for i in range(6)]
    sampler = build_pair_sampler(texts, seq_len=35)
    seen = np.zeros(len(sampler.tokens.ids), bool)
    for epoch in range(3):
        sampler.set_epoch(epoch)
        for a0, a1, b0, b1, _ in sampler.pairs:
            seen[a0:a1] = seen[b0:b1] = True
    assert seen.mean() > 0.95
    assert 0.3 < np.mean([random for *_, random in sampler.pairs]) < 0.8


def test_long_sentences_are_split_or_truncated_as_in_the_released_code() -> None:
    """A sentence of 40 words does not fit a pair of 20 pieces.

    Split, nearly all of it is read in one epoch; whole, only its first 20 pieces are.
    """
    texts = [
        " ".join(tiny.documents()[i].replace(".", "").split()[:40]) + " . It slept ."
        for i in range(8)
    ]
    tokens = encode_corpus(texts, tiny.tokenizer("bert"))
    tokenizer = tiny.tokenizer("bert")
    read_share, num_pairs = {}, {}
    for split in (True, False):
        settings = tiny.model_config(
            "bert", pretrain={"split_long_sentences": split, "next_sentence_prediction": False}
        ).pretrain
        sampler = tiny.model_config("bert").family.batch_sampler(
            tokens, tokenizer, settings, seed=1
        )  # type: ignore[misc]
        sampler.set_epoch(0)
        read_share[split] = sum(a1 - a0 + b1 - b0 for a0, a1, b0, b1, _ in sampler.pairs) / len(
            tokens.ids
        )
        num_pairs[split] = len(sampler.pairs)
        assert all(a1 - a0 + b1 - b0 <= settings.seq_len - 3 for a0, a1, b0, b1, _ in sampler.pairs)
    assert read_share[True] > 0.95
    assert read_share[False] < 0.7
    assert num_pairs[False] < num_pairs[True]


@pytest.mark.parametrize(
    "texts",
    [[tiny.documents()[0]], ["one line alone", "another line", "a third"]],
    ids=["one document", "single sentences"],
)
def test_next_sentence_labels_are_dropped_when_only_one_label_is_possible(texts: list[str]) -> None:
    sampler = build_pair_sampler(texts)
    sampler.set_epoch(0)
    assert sampler.get_batch(0).next_sentence_labels_B is None
    assert build_pair_sampler(list(tiny.documents())).has_next_sentence_labels


def test_rare_characters_do_not_fill_a_wordpiece_vocabulary() -> None:
    rare_texts = [
        " ".join(chr(first + i) for i in range(150)) for first in (0x1200, 0x3400, 0xA000, 0x10A0)
    ]
    settings = TokenizerSettings(vocab_size=499)
    tokenizer = train_tokenizer(
        [*tiny.documents(), *rare_texts], settings, tokenizer_type="wordpiece", language="en"
    )
    vocab = tokenizer.backend_tokenizer.get_vocab()
    assert len(vocab) <= 499 and sum(len(piece.removeprefix("##")) > 1 for piece in vocab) > 250
    chinese = train_tokenizer(
        ["今天天气很好我们去公园" * 3], settings, tokenizer_type="wordpiece", language="zh"
    ).backend_tokenizer.get_vocab()
    assert "天" in chinese and "##天" not in chinese


def test_bptt_batches_continue_where_they_stopped_in_both_directions() -> None:
    sampler = build_sampler("elmo")
    num_batches = sampler.set_epoch(0)
    inputs = torch.cat([sampler.get_batch(i).ids_BT for i in range(num_batches)], 1)
    targets = torch.cat([sampler.get_batch(i).targets_BT for i in range(num_batches)], 1)
    assert torch.equal(inputs[:, 1:], targets[:, :-1])
    B = inputs.shape[0] // 2
    special_ids = tiny.tokenizer("elmo").special_token_ids
    begin = (inputs[:B] == special_ids["<S>"]).nonzero()[3]
    # Forward, <S> follows </S>; backward, </S> follows <S>.
    assert inputs[begin[0], begin[1] - 1] == special_ids["</S>"]
    end = (inputs[B:] == special_ids["</S>"]).nonzero()[3]
    assert inputs[B + end[0], end[1] - 1] == special_ids["<S>"]


def test_words_outside_the_vocabulary_keep_their_characters() -> None:
    tokens = tiny.corpus("elmo")
    tokenizer = tiny.tokenizer("elmo")
    assert tokens.word_byte_ids_UC is not None
    assert len(tokens.word_byte_ids_UC) > tokenizer.vocab_size
    sampler = build_sampler("elmo")
    sampler.set_epoch(0)
    batch = sampler.get_batch(0)
    assert batch.byte_ids_UC is not None and batch.word_rows_BT is not None
    unknown = tokenizer.special_token_ids["<unk>"]
    rows = batch.word_rows_BT[batch.ids_BT == unknown]
    assert len(rows) and len({tuple(batch.byte_ids_UC[row].tolist()) for row in rows}) > 1


def test_causal_windows_of_words_hold_only_ids_of_the_vocabulary() -> None:
    """A word outside the vocabulary has an id of its own in the corpus, but no row in a table."""
    tokens = tiny.corpus("sa_lstm")
    tokenizer = tiny.tokenizer("sa_lstm")
    sampler = CausalWindows(tokens, tokenizer, tiny.model_config("sa_lstm").pretrain, seed=1)
    sampler.set_epoch(0)
    batch = sampler.get_batch(0)
    starts = sampler.order[: sampler.settings.batch_size] * sampler.settings.seq_len
    positions = starts[:, None] + np.arange(sampler.settings.seq_len + 1)
    corpus_ids = torch.from_numpy(tokens.ids[positions].astype(np.int64))
    is_unknown = corpus_ids >= tokenizer.vocab_size
    expected = corpus_ids.masked_fill(is_unknown, tokenizer.special_token_ids["<unk>"])
    assert is_unknown[:, :-1].any() and is_unknown[:, 1:].any()
    assert torch.equal(batch.ids_BT, expected[:, :-1])
    assert batch.targets_BT is not None
    assert torch.equal(batch.targets_BT, expected[:, 1:])


HASH_SCRIPT = "import sys, hashlib; from tests.helpers import tiny; print(hashlib.sha256(tiny.tokenizer(sys.argv[1]).backend_tokenizer.to_str().encode()).hexdigest())"


# One model of each tokenizer type; WordPiece once failed.
@pytest.mark.parametrize("name", [*tiny.mark_slow(("elmo", "gpt")), "bert"])
def test_tokenizer_training_is_deterministic_across_processes(name: str) -> None:
    command = [sys.executable, "-c", HASH_SCRIPT, name]
    output = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    assert (
        output
        == hashlib.sha256(tiny.tokenizer(name).backend_tokenizer.to_str().encode()).hexdigest()
        + "\n"
    )


@pytest.mark.parametrize("name", [*tiny.TRAINED, *tiny.STATIC])
def test_a_special_token_written_in_a_text_is_read_as_text(name: str) -> None:
    tokenizer = tiny.tokenizer(name)
    encoded = tokenizer.encode(" ".join(tokenizer.special_token_ids))
    text_ids = encoded.ids[encoded.offsets[:, 1] > encoded.offsets[:, 0]]
    assert not set(text_ids) & (
        set(tokenizer.special_token_ids.values())
        - {tokenizer.special_token_ids.get("<unk>"), tokenizer.special_token_ids.get("[UNK]")}
    )


@pytest.mark.parametrize("name", [*tiny.TRAINED, *tiny.STATIC])
def test_the_corpus_and_task_texts_get_the_same_ids(name: str) -> None:
    """Compare the first document in the flat arrays with `encode`, without special tokens."""
    tokenizer = tiny.tokenizer(name)
    tokens = tiny.corpus(name)
    text = tiny.documents()[0]
    corpus_ids = tokens.ids[: tokens.document_starts[1]]
    encoded = tokenizer.encode(text)
    text_ids = encoded.ids[encoded.offsets[:, 1] > encoded.offsets[:, 0]]
    special_ids = set(tokenizer.special_token_ids.values()) - {
        tokenizer.special_token_ids.get("<unk>")
    }
    corpus_ids = np.array([id_ for id_ in corpus_ids if id_ not in special_ids])
    if tokenizer.tokenizer_type == "word":
        corpus_ids = np.where(
            corpus_ids < tokenizer.vocab_size, corpus_ids, tokenizer.special_token_ids["<unk>"]
        )
    assert np.array_equal(corpus_ids, text_ids)


@pytest.mark.parametrize("name", ["elmo", "word2vec"])
def test_a_min_frequency_that_no_word_reaches_is_refused(name: str) -> None:
    config = tiny.model_config(name, tokenizer={"min_frequency": 10**6})
    with pytest.raises(
        InputError,
        match=r"tokenizer\.min_frequency: no word of the corpus occurs 1,000,000 times; lower it",
    ):
        train_tokenizer(
            tiny.documents(), config.tokenizer, tokenizer_type=config.tokenizer_type, language="en"
        )


def test_lowercasing_is_the_same_in_pretraining_and_afterwards() -> None:
    """Python's lower() looks at the neighbours of a final capital sigma; `tokenizers` does not."""
    tokenizer = train_tokenizer(
        ["λογοσ και ΛΟΓΟΣ ."] * 4,
        TokenizerSettings(vocab_size=99, lowercase=True),
        tokenizer_type="word",
        language="el",
    )
    assert tokenizer.surface_form("ΛΟΓΟΣ", 0, 5) == "λογοσ"
    tokens = encode_corpus(["λογοσ και ΛΟΓΟΣ ."], tokenizer)
    assert (
        {*np.asarray(tokens.ids).tolist()}
        >= {*tokenizer.encode("λογοσ").ids.tolist()}
        == {*tokenizer.encode("ΛΟΓΟΣ").ids.tolist()}
    )


def test_each_direction_reads_the_documents_in_its_own_order() -> None:
    config = tiny.model_config("elmo")
    tokens = tiny.corpus("elmo")
    assert config.family.batch_sampler is not None
    sampler = config.family.batch_sampler(tokens, tiny.tokenizer("elmo"), config.pretrain, seed=1)
    sampler.set_epoch(0)
    forward_ids, backward_ids = (rows.ids_BL for rows in sampler.rows_by_direction)
    num_left_over = len(tokens.ids) - forward_ids.size
    assert not np.array_equal(
        forward_ids.ravel()[num_left_over:],
        backward_ids.ravel()[::-1][: forward_ids.size - num_left_over],
    )
