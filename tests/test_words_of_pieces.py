"""Words that are several pieces: which of them stands for the word is the one at which the model has read all of it."""

import dataclasses
from typing import Any

import pytest
import torch

from lineage.evaluation.encoding import (
    collate_items,
    encode_sentence,
    encode_word_in_context,
    pool_words,
)
from lineage.models.batch import Batch
from tests import tiny

SENTENCE = ["here", "is", "ab-cd.ef", "again"]  # the third is five pieces at least, of words too
ASKED = 2
BACKWARD = {"tokenizer": {"direction": "backward"}}
ONE_WAY: list[tuple[str, dict[str, Any]]] = [
    ("gpt", {}), ("seq2seq", {}), ("left_transformer", {}), ("left_lstm", {}), ("sa_lstm", {}), ("sa_lstm", {"architecture": {"objective": "language_model"}}),
    ("ulmfit", {}), ("ulmfit", BACKWARD), ("taglm", {"architecture": {"directions": "forward"}}), ("taglm", {"architecture": {"directions": "backward"}}),
]  # fmt: skip


@pytest.mark.parametrize(("name", "over"), ONE_WAY)
def test_where_one_way_is_read_the_piece_that_has_read_the_whole_word_stands_for_it(
    name: str, over: dict[str, Any]
) -> None:
    model, reader = tiny.model(name, **over).eval(), tiny.reader(name)
    if over is BACKWARD:
        reader = type(reader)(
            reader.backend_tokenizer, dataclasses.replace(reader.config, direction="backward")
        )
    batch = collate_items(
        reader, [encode_sentence(SENTENCE, reader, max_length=None, language="en")]
    )
    assert batch.answer_pieces_P2 is not None
    pieces = [int(place) for place, word in batch.answer_pieces_P2 if word == ASKED]
    assert len(pieces) >= 5
    top_BTD = model.encode(batch)[-1]
    word_D = pool_words(model, top_BTD, batch)[ASKED]
    assert any(torch.equal(word_D, top_BTD[0, place]) for place in pieces), "one of its pieces"
    for place in pieces:
        other = batch.ids_BT.clone()
        other[0, place] = 8 if other[0, place] != 8 else 9
        after = dataclasses.replace(batch, ids_BT=other)
        assert not torch.equal(pool_words(model, model.encode(after)[-1], after)[ASKED], word_D), (
            f"it has not read the piece at {place}"
        )


def test_the_last_piece_of_a_word_is_read_in_a_causal_model_and_their_mean_where_both_sides_are() -> (
    None
):
    x = torch.arange(5.0).view(1, 5, 1)
    pieces = torch.tensor(
        [[1, 0], [2, 0], [2, 1]]
    )  # the first word has two, of which the second shares one; the third has none
    batch = Batch(
        torch.zeros(1, 5, dtype=torch.long),
        torch.ones(1, 5, dtype=torch.bool),
        answer_pieces_P2=pieces,
        answers_per_item=(3,),
    )
    assert pool_words(tiny.model("gpt"), x, batch).flatten().tolist() == [2.0, 2.0, 0.0]
    assert pool_words(tiny.model("bert"), x, batch).flatten().tolist() == [1.5, 2.0, 0.0]


@pytest.mark.parametrize("direction", ["forward", "backward"])
def test_a_word_at_the_edge_of_a_cut_text_is_read_in_a_window_that_holds_all_of_it(
    direction: str,
) -> None:
    reader = tiny.reader("ulmfit")
    reader = type(reader)(
        reader.backend_tokenizer, dataclasses.replace(reader.config, direction=direction)
    )  # type: ignore[arg-type]
    tokens = ["here", "is", "again", "ab-cd.ef", "here", "is"]
    alone = len(
        encode_word_in_context(tokens, 3, reader, max_length=None, language="en").word_pieces[0]
    )
    assert alone >= 5
    for limit in range(alone + 4, 14):
        item = encode_word_in_context(tokens, 3, reader, max_length=limit, language="en")
        assert len(item.word_pieces[0]) == alone and len(item.encoded.ids) <= limit, limit
