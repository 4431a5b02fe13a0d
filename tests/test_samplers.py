"""Batch samplers carry BPTT state, read only ids of the vocabulary, and resume anywhere."""

import numpy as np
import pytest
import torch

from lineage.training.samplers import CausalWindows, iterate_batches
from tests.helpers import tiny


@pytest.mark.parametrize("name", tiny.TRAINED)
def test_sampling_resumes_at_any_batch_and_epochs_differ(name: str) -> None:
    batches = [
        (epoch, index, batch)
        for epoch, index, batch in iterate_batches(tiny.sampler(name), max_epochs=2)
    ]
    middle = len(batches) // 3
    epoch, index, expected = batches[middle]
    _, _, resumed = next(
        iter(
            iterate_batches(tiny.sampler(name), start_epoch=epoch, start_index=index, max_epochs=2)
        )
    )
    assert torch.equal(resumed.ids_BT, expected.ids_BT)
    assert torch.equal(resumed.targets_BT, expected.targets_BT)
    second_epoch = next(later_batch for epoch, index, later_batch in batches if epoch == 1)
    assert not torch.equal(second_epoch.ids_BT, batches[0][2].ids_BT)


def test_bptt_batches_continue_where_they_stopped_in_both_directions() -> None:
    sampler = tiny.sampler("elmo")
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
    assert len(tokens.word_byte_ids_UC) > tokenizer.vocab_size
    sampler = tiny.sampler("elmo")
    batch = sampler.get_batch(0)
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
    assert torch.equal(batch.targets_BT, expected[:, 1:])


def test_each_direction_reads_the_documents_in_its_own_order() -> None:
    sampler = tiny.sampler("elmo")
    forward_ids, backward_ids = (rows.ids_BL for rows in sampler.rows_by_direction)
    num_left_over = len(tiny.corpus("elmo").ids) - forward_ids.size
    assert not np.array_equal(
        forward_ids.ravel()[num_left_over:],
        backward_ids.ravel()[::-1][: forward_ids.size - num_left_over],
    )
