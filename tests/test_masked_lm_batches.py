"""BERT's segment pairs follow create_pretraining_data, and validation text is masked the same."""

import itertools
from collections.abc import Sequence

import numpy as np
import pytest
import torch

from lineage.networks.batch import IGNORE_INDEX
from lineage.tokenizers.token_ids import TokenizedCorpus, encode_corpus
from lineage.training import masked_lm_batches
from lineage.training.masked_lm_batches import (
    MaskedSegmentPairs,
    SegmentPair,
    choose_mask_positions,
    mask_tokens,
)
from lineage.training.pretrain import to_validation_settings
from lineage.training.samplers import iterate_batches
from lineage.training.settings import MaskReplacement
from tests.helpers import tiny


def build_segment_pairs(
    texts: Sequence[str] = tiny.documents(), **pretrain: object
) -> MaskedSegmentPairs:
    """Return BERT's sampler over these documents."""
    tokenizer = tiny.tokenizer("bert")
    settings = tiny.model_config("bert", pretrain=pretrain).pretrain
    return MaskedSegmentPairs(encode_corpus(texts, tokenizer), tokenizer, settings, seed=1)


def test_text_replaced_by_a_random_second_segment_is_read_next(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(masked_lm_batches, "_truncate_pair", lambda pair, max_tokens, rng: pair)
    sampler = build_segment_pairs()
    rng = np.random.default_rng(2)
    displaced = 0
    for document in range(len(sampler.document_starts) - 1):
        pairs = [*sampler._pairs_of_document(document, rng)]
        for (_, a1, _, b1, is_random), next_pair in itertools.pairwise(pairs):
            assert next_pair[0] == (a1 if is_random else b1)
            displaced += is_random
    assert displaced > 10


def test_random_replacements_come_from_the_whole_vocabulary() -> None:
    ids = np.full((90, 90), 50)
    inputs, _ = mask_tokens(
        ids,
        np.ones_like(ids, bool),
        mask_replacement=MaskReplacement(0.0, 1.0),
        mask_id=4,
        vocab_size=90,
        rng=np.random.default_rng(1),
    )
    assert {*inputs.flat} == {*range(90)}


def test_the_longer_segment_loses_tokens_equally_at_both_ends() -> None:
    rng = np.random.default_rng(3)
    fronts = 0
    backs = 0
    for _ in range(200):
        pair = SegmentPair(0, 30, 100, 105)
        a0, a1, b0, b1, _ = masked_lm_batches._truncate_pair(pair, 25, rng)
        assert (b0, b1) == (100, 105) and a1 - a0 == 20
        fronts = fronts + a0
        backs = backs + 30 - a1
    # The difference of 2,000 coin flips has a standard deviation of the root of 2,000.
    assert abs(fronts - backs) < 4 * 2000**0.5


def test_short_seq_prob_shortens_the_pairs() -> None:
    means = {}
    for share in (0.0, 1.0):
        sampler = build_segment_pairs(short_seq_prob=share, seq_len=100)
        sampler.set_epoch(0)
        means[share] = np.mean([a1 - a0 + b1 - b0 for a0, a1, b0, b1, _ in sampler.pairs])
    assert means[1.0] < 0.85 * means[0.0]


def build_corpus(sentences: list[int]) -> TokenizedCorpus:
    """Return documents with these numbers of sentences, each of nine words."""
    corpus = tiny.corpus("bert")
    ids = np.resize(corpus.ids, 9 * sum(sentences))
    return TokenizedCorpus(
        ids,
        np.ones_like(ids, corpus.byte_counts.dtype),
        9 * np.cumsum([0, *sentences]),
        9 * np.arange(sum(sentences) + 1),
    )


@pytest.mark.parametrize(
    ("sentences", "has_labels"),
    [([1] * 60, False), ([1] * 59 + [2], False), ([1] * 20 + [3] * 40, True), ([60], False)],
)
def test_random_second_segments_need_documents_with_several_sentences(
    sentences: list[int], has_labels: bool
) -> None:
    """Otherwise every second segment would be random.

    They would take half of the budget, and the next-sentence label would be constant.
    """
    sampler = MaskedSegmentPairs(
        build_corpus(sentences),
        tiny.tokenizer("bert"),
        tiny.model_config("bert", pretrain={"next_sentence_prediction": True}).pretrain,
        seed=1,
    )
    batches = [batch for _, _, batch in iterate_batches(sampler, max_epochs=1)]
    assert {batch.next_sentence_labels_B is not None for batch in batches} == {has_labels}
    assert any(pair[4] for pair in sampler.pairs) == has_labels
    if max(sentences) < 3:
        assert sum(batch.text_bytes for batch in batches) == 9 * sum(sentences), (
            "an epoch reads the text once"
        )


def test_validation_text_of_one_document_is_read_in_full_sequences() -> None:
    settings = to_validation_settings(
        tiny.model_config("bert", pretrain={"short_seq_prob": 1.0, "seq_len": 120}).pretrain
    )
    for seed in range(5):
        sampler = MaskedSegmentPairs(
            build_corpus([400]), tiny.tokenizer("bert"), settings, seed=seed
        )
        sampler.set_epoch(0)
        assert np.mean([a1 - a0 + b1 - b0 for a0, a1, b0, b1, _ in sampler.pairs]) > 0.8 * (
            settings.seq_len - 3
        )


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"short_seq_prob": 0.5},
        {"mlm_probability": 0.4, "mask_replacement": {"mask": 1.0, "random": 0.0}},
        {"whole_word_masking": True, "max_predictions_per_seq": 2},
    ],
)
def test_validation_text_is_masked_as_in_the_paper_whatever_the_training_uses(
    changes: dict[str, object],
) -> None:
    settings = to_validation_settings(tiny.model_config("bert", pretrain=changes).pretrain)
    assert settings == to_validation_settings(tiny.model_config("bert").pretrain), (
        "all models are validated in the same way"
    )
    sampler = MaskedSegmentPairs(tiny.corpus("bert"), tiny.tokenizer("bert"), settings, seed=0)
    masked = predicted = num_tokens = 0
    for _, _, batch in iterate_batches(sampler, max_epochs=1):
        is_predicted = batch.targets_BT != IGNORE_INDEX
        predicted = predicted + int(is_predicted.sum())
        num_tokens = num_tokens + int(batch.mask_BT.sum())
        masked += int(
            (batch.ids_BT[is_predicted] == tiny.tokenizer("bert").special_token_ids["[MASK]"]).sum()
        )
    assert 0.13 < predicted / num_tokens < 0.17 and 0.75 < masked / predicted < 0.85
    gpt = tiny.model_config("gpt").pretrain
    assert to_validation_settings(gpt) == gpt


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


def test_dupe_factor_two_repeats_the_masks_every_second_epoch() -> None:
    sampler = build_segment_pairs(dupe_factor=2)
    epochs = [[sampler.get_batch(i) for i in range(sampler.set_epoch(epoch))] for epoch in range(4)]
    for first, second in ((0, 2), (1, 3)):
        assert all(
            torch.equal(batch.ids_BT, repeated_batch.ids_BT)
            and torch.equal(batch.targets_BT, repeated_batch.targets_BT)
            for batch, repeated_batch in zip(epochs[first], epochs[second], strict=True)
        )
    assert not torch.equal(epochs[0][0].ids_BT, epochs[1][0].ids_BT)


def test_without_next_sentence_prediction_segments_follow_each_other_unlabelled() -> None:
    sampler = build_segment_pairs(next_sentence_prediction=False)
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
    sampler = build_segment_pairs()
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
    sampler = build_segment_pairs()
    special_ids = tiny.tokenizer("bert").special_token_ids
    sampler.set_epoch(0)
    batch = sampler.get_batch(0)
    original = torch.where(batch.targets_BT != IGNORE_INDEX, batch.targets_BT, batch.ids_BT)
    for row, mask, segments in zip(original, batch.mask_BT, batch.segment_ids_BT, strict=True):
        ids = row[mask].tolist()
        assert ids[0] == special_ids["[CLS]"]
        assert ids[-1] == special_ids["[SEP]"]
        assert ids.count(special_ids["[SEP]"]) == 2
        assert segments[mask].tolist() == [0] * (ids.index(special_ids["[SEP]"]) + 1) + [1] * (
            len(ids) - ids.index(special_ids["[SEP]"]) - 1
        )


def test_text_without_full_stops_is_read_almost_completely() -> None:
    words = " ".join(tiny.documents()).replace(".", "").split()
    texts = [" ".join(words[i * 300 : (i + 1) * 300]) for i in range(6)]
    sampler = build_segment_pairs(texts, seq_len=35)
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
    read_share, num_pairs = {}, {}
    for split in (True, False):
        sampler = build_segment_pairs(
            texts, split_long_sentences=split, next_sentence_prediction=False
        )
        sampler.set_epoch(0)
        lengths = [a1 - a0 + b1 - b0 for a0, a1, b0, b1, _ in sampler.pairs]
        assert max(lengths) <= sampler.settings.seq_len - 3
        read_share[split] = sum(lengths) / len(sampler.tokens.ids)
        num_pairs[split] = len(lengths)
    assert read_share[True] > 0.95
    assert read_share[False] < 0.7
    assert num_pairs[False] < num_pairs[True]
