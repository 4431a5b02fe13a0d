"""context2vec computes the loss that is written out by hand.

A word has no part in the vector of its own position, negatives are drawn by frequency, and batches
hold whole sentences of one length.
"""

import itertools

import numpy as np
import pytest
import torch

from lineage.families.context2vec import (
    FAMILY,
    Context2vecConfig,
    Context2vecModel,
    negative_sampling_loss,
)
from lineage.networks.batch import Batch
from lineage.tokenizers.tokenizer import SPECIAL_TOKENS
from tests.helpers import tiny
from tests.helpers.by_hand import (
    arrays_with_prefix,
    assert_gradients_match_finite_differences,
    lstm_step,
    parameter_arrays,
    sigmoid,
)

NUM_SPECIAL_TOKENS = len(SPECIAL_TOKENS["word"])
IDS = torch.tensor([[2, 5, 7, 4, 3], [2, 6, 5, 5, 3]])  # <S> three words </S>
# Negatives of the three words. Some are the word itself: 4 for the third word of row 0, and 5 for
# two words of row 1.
NEGATIVES = torch.tensor([[[4, 6], [7, 4], [4, 4]], [[5, 7], [6, 5], [5, 4]]])


def build_small_model(context: str) -> Context2vecModel:
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


def build_context_vector(
    p: dict[str, np.ndarray], row: list[int], position: int, context: str
) -> np.ndarray:
    """Return the context left and right of a position, without the position itself."""
    if context == "average":
        table = p["context_embeddings.0.weight"]
        others = [*row[:position], *row[position + 1 :]]
        return np.mean([table[word] for word in others if word >= NUM_SPECIAL_TOKENS], 0)
    outputs = []
    for direction, words in enumerate((row[:position], row[:position:-1])):
        out, cell = np.zeros(4), np.zeros(4)
        for word in words:
            out, cell = lstm_step(
                p[f"context_embeddings.{direction}.weight"][word],
                out,
                cell,
                arrays_with_prefix(p, f"lstms.{direction}"),
            )
        outputs.append(out)
    return np.concatenate(outputs)


def compute_expected_loss(p: dict[str, np.ndarray], context: str) -> float:
    total = 0.0
    for row, ids in enumerate(IDS.tolist()):
        for position in (1, 2, 3):
            hidden = np.maximum(
                0,
                p["hidden_layer.weight"] @ build_context_vector(p, ids, position, context)
                + p["hidden_layer.bias"],
            )
            c = p["output_layer.weight"] @ hidden + p["output_layer.bias"]
            total -= np.log(sigmoid(p["target_embeddings.weight"][ids[position]] @ c))
            for word in NEGATIVES[row, position - 1].tolist():
                if word != ids[position]:
                    total -= np.log(sigmoid(-p["target_embeddings.weight"][word] @ c))
    return total / 6


@pytest.mark.parametrize("context", ["lstm", "average"])
def test_loss_and_gradients_match_those_written_by_hand(context: str) -> None:
    model = build_small_model(context)
    negatives = torch.full((2, 5, 2), 6)  # Negatives of special tokens are ignored.
    negatives[:, 1:4] = NEGATIVES
    mask = torch.ones_like(IDS, dtype=torch.bool)
    out = negative_sampling_loss(
        model, Batch(IDS, mask, IDS >= NUM_SPECIAL_TOKENS, negatives_BTK=negatives)
    )
    assert float(out.loss.detach()) == pytest.approx(
        compute_expected_loss(parameter_arrays(model), context), abs=1e-12
    )
    assert out.target_counts == {"sampled": 6}
    out.loss.backward()
    assert_gradients_match_finite_differences(model, lambda p: compute_expected_loss(p, context))


@pytest.mark.parametrize("context", ["lstm", "average"])
@pytest.mark.parametrize("position", [1, 4, 8, 11, 13])
def test_a_word_affects_the_context_vectors_of_all_other_positions_only(
    context: str, position: int
) -> None:
    model = tiny.model("context2vec", architecture={"context_encoder": context}).eval()
    ids = torch.tensor([[2, *range(10, 23), 3]])
    changed_ids = ids.clone()
    changed_ids[0, position] = 99
    mask = torch.ones_like(ids, dtype=torch.bool)
    (words, before), (changed, after) = (
        model.encode(Batch(ids, mask)),
        model.encode(Batch(changed_ids, mask)),
    )
    assert torch.equal(before[0, position], after[0, position]), (
        "the word is part of its own context"
    )
    assert not torch.allclose(words[0, position], changed[0, position]), (
        "the word embedding must change"
    )
    is_changed = (before[0] - after[0]).abs().amax(-1) > 0
    assert is_changed.sum() == len(is_changed) - 1, (
        "the contexts of all other positions must change"
    )


def test_each_sentence_is_encoded_independently_of_its_neighbours() -> None:
    model = tiny.model("context2vec").eval()
    tokenizer = tiny.tokenizer("context2vec")
    sentences = [f"{s} ." for s in tiny.documents()[0].split(" . ")[:3]]
    batch = tokenizer.collate(
        [tokenizer.encode(" ".join(sentences)), tokenizer.encode(sentences[1])]
    )
    assert (batch.ids_BT[0] == tokenizer.special_token_ids["<S>"]).sum() == 3
    together = model.encode(batch)[1]
    alone = [model.encode(tokenizer.collate([tokenizer.encode(s)]))[1][0] for s in sentences]
    torch.testing.assert_close(
        together[0, batch.mask_BT[0]], torch.cat(alone), atol=1e-6, rtol=1e-5
    )
    torch.testing.assert_close(together[1, : len(alone[1])], alone[1], atol=1e-6, rtol=1e-5)


def known_ids() -> np.ndarray:
    """Return the corpus as ids of the vocabulary."""
    tokenizer = tiny.tokenizer("context2vec")
    ids = tiny.corpus("context2vec").ids
    return np.where(ids < tokenizer.vocab_size, ids, tokenizer.special_token_ids["<unk>"])


@pytest.mark.parametrize("length", [64, 5])
def test_an_epoch_reads_every_sentence_once_in_batches_of_one_length(length: int) -> None:
    sampler = tiny.sampler("context2vec", pretrain={"seq_len": length})
    tokens = tiny.corpus("context2vec")
    tokenizer = tiny.tokenizer("context2vec")
    sentences, text_bytes = [], 0
    for index in range(sampler.set_epoch(0)):
        batch = sampler.get_batch(index)
        assert batch.mask_BT.all()
        assert torch.equal(
            batch.text_mask_BT,
            (batch.ids_BT >= NUM_SPECIAL_TOKENS)
            | (batch.ids_BT == tokenizer.special_token_ids["<unk>"]),
        )
        sentences += batch.ids_BT.tolist()
        text_bytes += batch.text_bytes
    known = known_ids().tolist()
    bounds = tokens.sentence_starts.tolist()
    pieces = [
        known[i : min(i + length, b)]
        for a, b in itertools.pairwise(bounds)
        for i in range(a, b, length)
    ]
    assert sorted(sentences) == sorted(piece for piece in pieces if len(piece) > 1)
    assert text_bytes >= 0.97 * tokens.text_bytes
    assert length == 5 or text_bytes == tokens.text_bytes


@pytest.mark.parametrize("exponent", [0.75, 1.0, -0.5])
def test_negatives_are_drawn_by_frequency_to_a_power_without_special_tokens(
    exponent: float,
) -> None:
    sampler = tiny.sampler(
        "context2vec", pretrain={"negative_exponent": exponent, "num_negatives": 7}
    )
    tokenizer = tiny.tokenizer("context2vec")
    drawn = np.concatenate(
        [sampler.get_batch(i).negatives_BTK.flatten().numpy() for i in range(sampler.set_epoch(0))]
    )
    counts = np.bincount(known_ids(), minlength=tokenizer.vocab_size).astype(float)
    counts[[tokenizer.special_token_ids[token] for token in ("<pad>", "<S>", "</S>")]] = 0
    weights = np.array([count**exponent if count else 0.0 for count in counts])
    expected = weights / weights.sum()
    frequencies = np.bincount(drawn, minlength=tokenizer.vocab_size) / len(drawn)
    assert frequencies[counts == 0].sum() == 0
    error = np.abs(frequencies - expected) / np.sqrt(
        np.maximum(expected * (1 - expected), 1e-12) / len(drawn)
    )
    assert error[counts > 0].max() < 5 and len(drawn) > 20_000


def test_negatives_differ_between_epochs_and_are_the_same_within_one() -> None:
    sampler = tiny.sampler("context2vec")
    first = sampler.get_batch(1)
    assert torch.equal(first.negatives_BTK, sampler.get_batch(1).negatives_BTK)
    sampler.set_epoch(1)
    again = [
        sampler.get_batch(i)
        for i in range(40)
        if sampler.get_batch(i).ids_BT.shape == first.ids_BT.shape
    ]
    assert all(not torch.equal(first.negatives_BTK, other.negatives_BTK) for other in again)
    assert again


def test_the_score_of_a_text_is_the_sum_over_its_words() -> None:
    model = tiny.model("context2vec").eval()
    tokenizer = tiny.tokenizer("context2vec")
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(4.0)
    texts = [" ".join(d.split()[:7]) for d in tiny.documents()[:3]]
    for text, score in zip(
        texts, FAMILY.score_texts(model, tokenizer, texts, limit=None)[:, 0], strict=True
    ):
        words, contexts = (
            layer[0].detach().numpy()
            for layer in model.encode(tokenizer.collate([tokenizer.encode(text)]))
        )
        assert score == pytest.approx(
            sum(np.log(sigmoid(words[i] @ contexts[i])) for i in range(1, len(words) - 1)), rel=1e-4
        )
