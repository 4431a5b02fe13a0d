"""A word of several pieces is represented by the piece at which the model has read all of it."""

import dataclasses
from typing import Any

import pytest
import torch

from lineage.methods.encoding import (
    collate_items,
    encode_sentence,
    encode_word_in_context,
    pool_words,
)
from lineage.networks.batch import Batch
from tests.helpers import tiny

SENTENCE = ["here", "is", "ab-cd.ef", "again"]  # the third word has at least five pieces
TARGET_WORD = 2
BACKWARD = {"tokenizer": {"direction": "backward"}}
ONE_DIRECTION_MODELS: list[tuple[str, dict[str, Any]]] = [
    ("gpt", {}), ("seq2seq", {}), ("left_transformer", {}), ("left_lstm", {}), ("sa_lstm", {}), ("sa_lstm", {"architecture": {"objective": "language_model"}}),
    ("ulmfit", {}), ("ulmfit", BACKWARD), ("taglm", {"architecture": {"directions": "forward"}}), ("taglm", {"architecture": {"directions": "backward"}}),
]  # fmt: skip


@pytest.mark.parametrize(("name", "overrides"), ONE_DIRECTION_MODELS)
def test_one_direction_models_represent_a_word_by_its_last_read_piece(
    name: str, overrides: dict[str, Any]
) -> None:
    model = tiny.model(name, **overrides).eval()
    tokenizer = tiny.tokenizer(name)
    if overrides is BACKWARD:
        tokenizer = type(tokenizer)(
            tokenizer.backend_tokenizer, dataclasses.replace(tokenizer.config, direction="backward")
        )
    batch = collate_items(
        tokenizer, [encode_sentence(SENTENCE, tokenizer, max_length=None, language="en")]
    )
    assert batch.answer_pieces_P2 is not None
    pieces = [int(position) for position, word in batch.answer_pieces_P2 if word == TARGET_WORD]
    assert len(pieces) >= 5
    top_BTD = model.encode(batch)[-1]
    word_D = pool_words(model, top_BTD, batch)[TARGET_WORD]
    assert any(torch.equal(word_D, top_BTD[0, position]) for position in pieces), (
        "the word must equal one of its pieces"
    )
    for position in pieces:
        changed_ids = batch.ids_BT.clone()
        changed_ids[0, position] = 8 if changed_ids[0, position] != 8 else 9
        changed_batch = dataclasses.replace(batch, ids_BT=changed_ids)
        assert not torch.equal(
            pool_words(model, model.encode(changed_batch)[-1], changed_batch)[TARGET_WORD], word_D
        ), f"the word vector ignores the piece at {position}"


def test_causal_models_use_the_last_piece_and_bidirectional_ones_the_mean() -> None:
    x = torch.arange(5.0).view(1, 5, 1)
    # The first word has two pieces and shares one with the second; the third word has none.
    pieces = torch.tensor([[1, 0], [2, 0], [2, 1]])
    batch = Batch(
        torch.zeros(1, 5, dtype=torch.long),
        torch.ones(1, 5, dtype=torch.bool),
        answer_pieces_P2=pieces,
        answers_per_item=(3,),
    )
    assert pool_words(tiny.model("gpt"), x, batch).flatten().tolist() == [2.0, 2.0, 0.0]
    assert pool_words(tiny.model("bert"), x, batch).flatten().tolist() == [1.5, 2.0, 0.0]


@pytest.mark.parametrize("direction", ["forward", "backward"])
def test_the_window_of_a_target_word_holds_all_of_its_pieces(direction: str) -> None:
    tokenizer = tiny.tokenizer("ulmfit")
    tokenizer = type(tokenizer)(
        tokenizer.backend_tokenizer, dataclasses.replace(tokenizer.config, direction=direction)
    )  # type: ignore[arg-type]
    tokens = ["here", "is", "again", "ab-cd.ef", "here", "is"]
    num_pieces = len(
        encode_word_in_context(tokens, 3, tokenizer, max_length=None, language="en").word_pieces[0]
    )
    assert num_pieces >= 5
    for limit in range(num_pieces + 4, 14):
        item = encode_word_in_context(tokens, 3, tokenizer, max_length=limit, language="en")
        assert len(item.word_pieces[0]) == num_pieces and len(item.encoded.ids) <= limit, limit
