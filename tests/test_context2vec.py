"""context2vec: written out by hand; the word never in the vector of its place; negatives by frequency; whole sentences of one length."""

import itertools
from typing import Any

import numpy as np
import pytest
import torch

from lineage.models.batch import Batch
from lineage.models.context2vec import (
    Context2vecConfig,
    Context2vecModel,
    context2vec_scores,
    negative_sampling_loss,
)
from lineage.tokenizers.tokenizer import SPECIAL_TOKENS
from tests import tiny
from tests.by_hand import (
    assert_gradients_are_central_differences,
    numbers,
    part,
    plain_step,
    sigmoid,
)

M = len(SPECIAL_TOKENS["word"])
IDS = torch.tensor([[2, 5, 7, 4, 3], [2, 6, 5, 5, 3]])  # <S> three words </S>
# Of the words; 4 for the third word of row 0, and a 5 for two words of row 1, are the words themselves.
NEGATIVES = torch.tensor([[[4, 6], [7, 4], [4, 4]], [[5, 7], [6, 5], [5, 4]]])


def small(context: str) -> Context2vecModel:
    model = Context2vecModel(
        Context2vecConfig(
            context_encoder=context,
            hidden_to_embedding_ratio=2.0,
            dropout=0.0,
            embedding_size=3,
            hidden_size=4,
        ),
        vocab_size=8,
    )  # type: ignore[arg-type]
    model.init_weights(torch.Generator().manual_seed(3))
    return model.double()


def sides(p: dict[str, np.ndarray], row: list[int], place: int, context: str) -> np.ndarray:
    """What stands left and right of a place, the place left out."""
    if context == "average":
        return np.mean(
            [
                p["context_embeddings.0.weight"][word]
                for i, word in enumerate(row)
                if i != place and word >= M
            ],
            0,
        )
    found = []
    for way, seen in enumerate((row[:place], row[:place:-1])):
        out, cell = np.zeros(4), np.zeros(4)
        for word in seen:
            out, cell = plain_step(
                p[f"context_embeddings.{way}.weight"][word], out, cell, part(p, f"lstms.{way}")
            )
        found.append(out)
    return np.concatenate(found)


def by_hand(p: dict[str, np.ndarray], context: str) -> float:
    total = 0.0
    for row, line in enumerate(IDS.tolist()):
        for place in (1, 2, 3):
            hidden = np.maximum(
                0,
                p["hidden_layer.weight"] @ sides(p, line, place, context) + p["hidden_layer.bias"],
            )
            c = p["output_layer.weight"] @ hidden + p["output_layer.bias"]
            total -= np.log(sigmoid(p["target_embeddings.weight"][line[place]] @ c))
            for word in NEGATIVES[row, place - 1].tolist():
                total -= (
                    np.log(sigmoid(-p["target_embeddings.weight"][word] @ c))
                    if word != line[place]
                    else 0.0
                )
    return total / 6


@pytest.mark.parametrize("context", ["lstm", "average"])
def test_the_loss_and_its_gradients_are_those_written_by_hand(context: str) -> None:
    model = small(context)
    negatives = torch.full((2, 5, 2), 6)  # what is drawn for the marks counts for nothing
    negatives[:, 1:4] = NEGATIVES
    mask = torch.ones_like(IDS, dtype=torch.bool)
    out = negative_sampling_loss(model, Batch(IDS, mask, IDS >= M, negatives_BTK=negatives))
    assert float(out.loss.detach()) == pytest.approx(
        by_hand(numbers(model), context), abs=1e-12
    ) and out.target_counts == {"sampled": 6}
    out.loss.backward()
    assert_gradients_are_central_differences(model, lambda p: by_hand(p, context))


@pytest.mark.parametrize("context", ["lstm", "average"])
@pytest.mark.parametrize("place", [1, 4, 8, 11, 13])
def test_a_word_has_no_part_in_the_vector_of_its_own_place_and_one_in_its_neighbours(
    context: str, place: int
) -> None:
    model = tiny.model("context2vec", architecture={"context_encoder": context}).eval()
    ids = torch.tensor([[2, *range(10, 23), 3]])
    other = ids.clone()
    other[0, place] = 99
    mask = torch.ones_like(ids, dtype=torch.bool)
    (words, before), (changed, after) = (
        model.encode(Batch(ids, mask)),
        model.encode(Batch(other, mask)),
    )
    assert torch.equal(before[0, place], after[0, place]), "the word itself"
    assert not torch.allclose(words[0, place], changed[0, place]), "which the layer of words knows"
    moved = (before[0] - after[0]).abs().amax(-1) > 0
    assert moved.sum() == len(moved) - 1, "every other place has another context"


def test_sentences_are_read_apart_whatever_stands_beside_them() -> None:
    model, reader = tiny.model("context2vec").eval(), tiny.reader("context2vec")
    sentences = [f"{s} ." for s in tiny.documents()[0].split(" . ")[:3]]
    batch = reader.collate([reader.encode(" ".join(sentences)), reader.encode(sentences[1])])
    assert (batch.ids_BT[0] == reader.special_token_ids["<S>"]).sum() == 3
    together = model.encode(batch)[1]
    alone = [model.encode(reader.collate([reader.encode(s)]))[1][0] for s in sentences]
    torch.testing.assert_close(
        together[0, batch.mask_BT[0]], torch.cat(alone), atol=1e-6, rtol=1e-5
    )
    torch.testing.assert_close(together[1, : len(alone[1])], alone[1], atol=1e-6, rtol=1e-5)


def stream(**pretrain: Any) -> Any:
    found = tiny.variant("context2vec", pretrain=pretrain)
    assert found.family.batch_sampler is not None
    return found.family.batch_sampler(
        tiny.tokens("context2vec"), tiny.reader("context2vec"), found.pretrain, seed=1
    )


@pytest.mark.parametrize("length", [64, 5])
def test_a_pass_reads_every_sentence_once_in_batches_of_one_length(length: int) -> None:
    some, tokens, reader = (
        stream(seq_len=length),
        tiny.tokens("context2vec"),
        tiny.reader("context2vec"),
    )
    read, size = [], 0
    for index in range(some.set_epoch(0)):
        batch = some.get_batch(index)
        assert batch.mask_BT.all() and torch.equal(
            batch.text_mask_BT,
            (batch.ids_BT >= M) | (batch.ids_BT == reader.special_token_ids["<unk>"]),
        )
        read += batch.ids_BT.tolist()
        size += batch.text_bytes
    known = np.where(
        tokens.ids < reader.vocab_size, tokens.ids, reader.special_token_ids["<unk>"]
    ).tolist()
    bounds = tokens.sentence_starts.tolist()
    pieces = [
        known[i : min(i + length, b)]
        for a, b in itertools.pairwise(bounds)
        for i in range(a, b, length)
    ]
    assert sorted(read) == sorted(piece for piece in pieces if len(piece) > 1)
    assert size >= 0.97 * tokens.text_bytes and (length == 5 or size == tokens.text_bytes)


@pytest.mark.parametrize("power", [0.75, 1.0, -0.5])
def test_negatives_are_drawn_by_frequency_to_the_power_and_are_no_marks(power: float) -> None:
    some, tokens, reader = (
        stream(negative_exponent=power, num_negatives=7),
        tiny.tokens("context2vec"),
        tiny.reader("context2vec"),
    )
    drawn = np.concatenate(
        [some.get_batch(i).negatives_BTK.flatten().numpy() for i in range(some.set_epoch(0))]
    )
    counts = np.bincount(
        np.where(tokens.ids < reader.vocab_size, tokens.ids, reader.special_token_ids["<unk>"]),
        minlength=reader.vocab_size,
    ).astype(float)
    counts[[reader.special_token_ids[mark] for mark in ("<pad>", "<S>", "</S>")]] = 0
    weights = np.array([count**power if count else 0.0 for count in counts])
    expected = weights / weights.sum()
    found = np.bincount(drawn, minlength=reader.vocab_size) / len(drawn)
    assert found[counts == 0].sum() == 0
    error = np.abs(found - expected) / np.sqrt(
        np.maximum(expected * (1 - expected), 1e-12) / len(drawn)
    )
    assert error[counts > 0].max() < 5 and len(drawn) > 20_000


def test_another_pass_has_other_negatives_and_the_same_one_the_same() -> None:
    some = stream()
    some.set_epoch(0)
    first = some.get_batch(1)
    assert torch.equal(first.negatives_BTK, some.get_batch(1).negatives_BTK)
    some.set_epoch(1)
    again = [
        some.get_batch(i) for i in range(40) if some.get_batch(i).ids_BT.shape == first.ids_BT.shape
    ]
    assert (
        all(not torch.equal(first.negatives_BTK, other.negatives_BTK) for other in again) and again
    )


def test_a_text_fits_as_well_as_each_of_its_words_does() -> None:
    model, reader = tiny.model("context2vec").eval(), tiny.reader("context2vec")
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(4.0)
    texts = [" ".join(d.split()[:7]) for d in tiny.documents()[:3]]
    for text, found in zip(
        texts, context2vec_scores(model, reader, texts, limit=None)[:, 0], strict=True
    ):
        words, contexts = (
            layer[0].detach().numpy()
            for layer in model.encode(reader.collate([reader.encode(text)]))
        )
        assert found == pytest.approx(
            sum(np.log(sigmoid(words[i] @ contexts[i])) for i in range(1, len(words) - 1)), rel=1e-4
        )
