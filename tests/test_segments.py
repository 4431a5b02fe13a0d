"""BERT's segment pairs follow create_pretraining_data, and validation text is masked the same."""

import itertools

import numpy as np
import pytest

from lineage.networks.batch import IGNORE_INDEX
from lineage.tokenizers.token_ids import TokenizedCorpus
from lineage.training import masked_lm_batches
from lineage.training.pretrain import to_validation_settings
from lineage.training.samplers import iterate_batches
from lineage.training.settings import MaskReplacement
from tests.helpers import tiny


def build_sampler(**changes: object) -> masked_lm_batches.MaskedSegmentPairs:
    model = tiny.model_config("bert", pretrain=changes)
    return masked_lm_batches.MaskedSegmentPairs(
        tiny.corpus("bert"), tiny.tokenizer("bert"), model.pretrain, seed=1
    )


def test_text_replaced_by_a_random_second_segment_is_read_next(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(masked_lm_batches, "_truncate_pair", lambda pair, max_tokens, rng: pair)
    sampler = build_sampler()
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
    inputs, _ = masked_lm_batches.mask_tokens(
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
        pair = masked_lm_batches.SegmentPair(0, 30, 100, 105)
        a0, a1, b0, b1, _ = masked_lm_batches._truncate_pair(pair, 25, rng)
        assert (b0, b1) == (100, 105) and a1 - a0 == 20
        fronts = fronts + a0
        backs = backs + 30 - a1
    # The difference of 2,000 coin flips has a standard deviation of the root of 2,000.
    assert abs(fronts - backs) < 4 * 2000**0.5


def test_short_seq_prob_shortens_the_pairs() -> None:
    means = {}
    for share in (0.0, 1.0):
        sampler = build_sampler(short_seq_prob=share, seq_len=100)
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
    sampler = masked_lm_batches.MaskedSegmentPairs(
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
        sampler = masked_lm_batches.MaskedSegmentPairs(
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
    sampler = masked_lm_batches.MaskedSegmentPairs(
        tiny.corpus("bert"), tiny.tokenizer("bert"), settings, seed=0
    )
    masked = predicted = num_tokens = 0
    for _, _, batch in iterate_batches(sampler, max_epochs=1):
        assert batch.targets_BT is not None
        is_predicted = batch.targets_BT != IGNORE_INDEX
        predicted = predicted + int(is_predicted.sum())
        num_tokens = num_tokens + int(batch.mask_BT.sum())
        masked += int(
            (batch.ids_BT[is_predicted] == tiny.tokenizer("bert").special_token_ids["[MASK]"]).sum()
        )
    assert 0.13 < predicted / num_tokens < 0.17 and 0.75 < masked / predicted < 0.85
    gpt = tiny.model_config("gpt").pretrain
    assert to_validation_settings(gpt) == gpt
