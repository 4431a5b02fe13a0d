"""BERT's pairs of segments beside create_pretraining_data, clause by clause, and how held text is masked."""

import itertools

import numpy as np
import pytest

from lineage.models.batch import IGNORE_INDEX
from lineage.tokenizers.token_ids import TokenizedCorpus
from lineage.training import masked_lm_batches
from lineage.training.pretrain import to_validation_settings
from lineage.training.samplers import iterate_batches
from lineage.training.settings import MaskReplacement
from tests import tiny


def stream_of(**over: object) -> masked_lm_batches.MaskedSegmentPairs:
    found = tiny.variant("bert", pretrain=over)
    return masked_lm_batches.MaskedSegmentPairs(
        tiny.tokens("bert"), tiny.reader("bert"), found.pretrain, seed=1
    )


def test_what_a_random_second_segment_displaces_comes_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(masked_lm_batches, "_truncate_pair", lambda pair, max_tokens, rng: pair)
    stream, rng, displaced = stream_of(), np.random.default_rng(2), 0
    for document in range(len(stream.document_starts) - 1):
        found = [*stream._pairs_of_document(document, rng)]
        for (_, a1, _, b1, random), after in itertools.pairwise(found):
            assert after[0] == (a1 if random else b1)
            displaced += random
    assert displaced > 10


def test_a_random_word_is_any_of_the_vocabulary() -> None:
    ids = np.full((90, 90), 50)
    inputs, _ = masked_lm_batches.mask_tokens(
        ids,
        np.ones_like(ids, bool),
        mask_replacement=MaskReplacement(0.0, 1.0),
        mask_id=4,
        vocab_size=90,
        rng=np.random.default_rng(1),
    )
    assert {*inputs.flat} == {*range(90)}


def test_the_longer_segment_loses_pieces_at_both_ends_alike() -> None:
    rng, fronts, backs = np.random.default_rng(3), 0, 0
    for _ in range(200):
        pair = masked_lm_batches.SegmentPair(0, 30, 100, 105)
        a0, a1, b0, b1, _ = masked_lm_batches._truncate_pair(pair, 25, rng)
        assert (b0, b1) == (100, 105) and a1 - a0 == 20
        fronts, backs = fronts + a0, backs + 30 - a1
    assert (
        abs(fronts - backs) < 4 * 2000**0.5
    )  # of 2,000 coins the difference has a deviation of the root


def test_short_targets_come_as_often_as_is_asked() -> None:
    means = {}
    for share in (0.0, 1.0):
        stream = stream_of(short_seq_prob=share, seq_len=100)
        stream.set_epoch(0)
        means[share] = np.mean([a1 - a0 + b1 - b0 for a0, a1, b0, b1, _ in stream.pairs])
    assert means[1.0] < 0.85 * means[0.0]


def tokens_of(sentences: list[int]) -> TokenizedCorpus:
    """Documents of so many sentences, each of nine words."""
    one = tiny.tokens("bert")
    ids = np.resize(one.ids, 9 * sum(sentences))
    return TokenizedCorpus(
        ids,
        np.ones_like(ids, one.byte_counts.dtype),
        9 * np.cumsum([0, *sentences]),
        9 * np.arange(sum(sentences) + 1),
    )


@pytest.mark.parametrize(
    ("sentences", "labelled"),
    [([1] * 60, False), ([1] * 59 + [2], False), ([1] * 20 + [3] * 40, True), ([60], False)],
)
def test_where_documents_are_of_one_sentence_nothing_is_read_beside_a_random_one(
    sentences: list[int], labelled: bool
) -> None:
    """Else all second segments would be random ones, half of the budget, and the label of next sentence would be one."""
    stream = masked_lm_batches.MaskedSegmentPairs(
        tokens_of(sentences),
        tiny.reader("bert"),
        tiny.variant("bert", pretrain={"next_sentence_prediction": True}).pretrain,
        seed=1,
    )
    seen = [batch for _, _, batch in iterate_batches(stream, max_epochs=1)]
    assert {batch.next_sentence_labels_B is not None for batch in seen} == {labelled} and any(
        pair[4] for pair in stream.pairs
    ) == labelled
    if max(sentences) < 3:
        assert sum(batch.text_bytes for batch in seen) == 9 * sum(sentences), (
            "a pass reads the text once"
        )


def test_held_text_of_one_document_is_read_in_whole_sequences() -> None:
    settings = to_validation_settings(
        tiny.variant("bert", pretrain={"short_seq_prob": 1.0, "seq_len": 120}).pretrain
    )
    for seed in range(5):
        stream = masked_lm_batches.MaskedSegmentPairs(
            tokens_of([400]), tiny.reader("bert"), settings, seed=seed
        )
        stream.set_epoch(0)
        assert np.mean([a1 - a0 + b1 - b0 for a0, a1, b0, b1, _ in stream.pairs]) > 0.8 * (
            settings.seq_len - 3
        )


@pytest.mark.parametrize(
    "over",
    [
        {},
        {"short_seq_prob": 0.5},
        {"mlm_probability": 0.4, "mask_replacement": {"mask": 1.0, "random": 0.0}},
        {"whole_word_masking": True, "max_predictions_per_seq": 2},
    ],
)
def test_held_text_is_masked_as_in_the_paper_whatever_is_learned_from(
    over: dict[str, object],
) -> None:
    settings = to_validation_settings(tiny.variant("bert", pretrain=over).pretrain)
    assert settings == to_validation_settings(tiny.variant("bert").pretrain), (
        "all variants are asked the same"
    )
    stream = masked_lm_batches.MaskedSegmentPairs(
        tiny.tokens("bert"), tiny.reader("bert"), settings, seed=0
    )
    masked = chosen = read = 0
    for _, _, batch in iterate_batches(stream, max_epochs=1):
        assert batch.targets_BT is not None
        where = batch.targets_BT != IGNORE_INDEX
        chosen, read = chosen + int(where.sum()), read + int(batch.mask_BT.sum())
        masked += int(
            (batch.ids_BT[where] == tiny.reader("bert").special_token_ids["[MASK]"]).sum()
        )
    assert 0.13 < chosen / read < 0.17 and 0.75 < masked / chosen < 0.85
    gpt = tiny.variant("gpt").pretrain
    assert to_validation_settings(gpt) == gpt
