"""The translator matches numpy, uses pretrained weights, and decodes the likeliest text."""

import dataclasses
import itertools
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from lineage.families.seq2seq import Seq2SeqConfig, Seq2SeqModel
from lineage.families.translator import (
    EncoderMemory,
    TranslationSettings,
    Translator,
    build_translator,
)
from lineage.methods.translation import PairBatch, beam_search, collate_pairs, translation_loss
from lineage.networks.batch import Batch
from lineage.tokenizers.tokenizer import Encoding
from tests.helpers import tiny
from tests.helpers.by_hand import (
    arrays_with_prefix,
    assert_gradients_match_finite_differences,
    cross_entropy_nats,
    lstm_step,
    parameter_arrays,
)

D, V = 3, 11
SETTINGS = TranslationSettings(
    num_layers=2, pretrained="both", aux_lm_losses=True, residual=True, attention="first_and_top", epochs=1, batch_size=2, learning_rate=0.01, cut_frac=0.1,
    ratio=32.0, weight_decay=0.0, dropout=0.0, max_grad_norm=1.0, num_beams=1, max_new_tokens=9)  # fmt: skip
Weights = dict[str, np.ndarray]


def build_language_models(seed: int) -> Seq2SeqModel:
    """Return two language models with three units."""
    model = Seq2SeqModel(Seq2SeqConfig(dropout=0.0, hidden_size=D), vocab_size=V)
    model.init_weights(torch.Generator().manual_seed(seed))
    return model


def build_small_translator(**overrides: Any) -> Translator:
    """Return a translator in double precision."""
    return build_translator(
        build_language_models(1),
        build_language_models(2),
        dataclasses.replace(SETTINGS, **overrides),
        generator=torch.Generator().manual_seed(3),
    ).double()


def ids(*rows: list[int]) -> torch.Tensor:
    return torch.tensor(rows)


def make_pair_batch() -> PairBatch:
    """Return two pairs of unequal lengths, and a window of text for each language model."""
    sources = Batch(ids([1, 4, 5, 6], [1, 7, 2, 0]), ids([1, 1, 1, 1], [1, 1, 1, 0]).bool())
    windows = tuple(
        Batch(ids([3, 4, 5]), ids([1, 1, 1]).bool(), targets_BT=ids([4, 5, 6 + side]))
        for side in (0, 1)
    )
    targets = ids([8, 9, 10, 1], [3, 1, -100, -100])
    mask = targets != -100
    return PairBatch(
        ids([1, 8, 9, 10], [1, 3, 0, 0]),
        mask,
        targets_BT=targets,
        num_tokens=int(mask.sum()),
        sources=sources,
        windows=windows,
    )


def decode_pairs(model: Translator, batch: PairBatch) -> torch.Tensor:
    """Return the (B, T, V) logits of the pairs."""
    memory = model.encode(batch.sources.ids_BT, batch.sources.mask_BT)
    return model.decode(batch.ids_BT, model.initial_states(), memory)[0]


def lstm_by_hand(x_TD: np.ndarray, weights: Weights, name: str) -> np.ndarray:
    """Return one layer's states (T, D) of one item."""
    h, c = np.zeros(D), np.zeros(D)
    states = []
    for x in x_TD:
        h, c = lstm_step(x, h, c, arrays_with_prefix(weights, name))
        states.append(h)
    return np.array(states)


def softmax(x: np.ndarray) -> np.ndarray:
    e = np.exp(x - x.max())
    return e / e.sum()


def logits_by_hand(
    weights: Weights, source: list[int], target_inputs: list[int], settings: TranslationSettings
) -> np.ndarray:
    """Return the (T, V) logits of one pair."""
    first = lstm_by_hand(weights["source_lm.embedding.weight"][source], weights, "source_lm.lstm")
    top = lstm_by_hand(first, weights, "encoder.0")
    state = lstm_by_hand(
        weights["target_lm.embedding.weight"][target_inputs], weights, "target_lm.lstm"
    )
    above = lstm_by_hand(state, weights, "decoder.0")
    logits = []
    for lm_state, query in zip(state, above, strict=True):
        alpha = softmax(np.array([(weights["query.weight"] @ query) @ h for h in top]))
        context = (
            [alpha @ first, alpha @ top] if settings.attention == "first_and_top" else [alpha @ top]
        )
        x = np.tanh(
            weights["combine.weight"] @ np.concatenate([query, *context]) + weights["combine.bias"]
        )
        x = x + lm_state if settings.residual else x
        logits.append(weights["target_lm.softmax.weight"] @ x + weights["target_lm.softmax.bias"])
    return np.array(logits)


def nats_by_hand(logits_TV: np.ndarray, targets: list[int]) -> float:
    return sum(
        cross_entropy_nats(row, target) for row, target in zip(logits_TV, targets, strict=True)
    )


def loss_by_hand(weights: Weights, settings: TranslationSettings) -> float:
    """Return the nats per target piece plus the nats per piece of each language model."""
    task = nats_by_hand(
        logits_by_hand(weights, [1, 4, 5, 6], [1, 8, 9, 10], settings), [8, 9, 10, 1]
    )
    task += nats_by_hand(logits_by_hand(weights, [1, 7, 2], [1, 3], settings), [3, 1])
    total = task / 6
    for name, last_target in (("source", 6), ("target", 7)) if settings.aux_lm_losses else ():
        states = lstm_by_hand(
            weights[f"{name}_lm.embedding.weight"][[3, 4, 5]], weights, f"{name}_lm.lstm"
        )
        total += (
            nats_by_hand(
                states @ weights[f"{name}_lm.softmax.weight"].T
                + weights[f"{name}_lm.softmax.bias"],
                [4, 5, last_target],
            )
            / 3
        )
    return total


SETTING_OVERRIDES = [{}, {"residual": False}, {"attention": "top"}, {"aux_lm_losses": False}]


@pytest.mark.parametrize("overrides", SETTING_OVERRIDES)
def test_logits_loss_and_gradients_match_numpy(overrides: dict[str, Any]) -> None:
    model = build_small_translator(**overrides)
    batch = make_pair_batch()
    weights = parameter_arrays(model)
    logits = decode_pairs(model, batch)
    np.testing.assert_allclose(
        logits[0].detach().numpy(),
        logits_by_hand(weights, [1, 4, 5, 6], [1, 8, 9, 10], model.settings),
        atol=1e-12,
    )
    np.testing.assert_allclose(
        logits[1, :2].detach().numpy(),
        logits_by_hand(weights, [1, 7, 2], [1, 3], model.settings),
        atol=1e-12,
    )
    output = translation_loss(model, batch)
    assert float(output.loss.detach()) == pytest.approx(
        loss_by_hand(weights, model.settings), abs=1e-12
    )
    output.loss.backward()
    for parameter in model.parameters():  # some have no part in this loss
        parameter.grad = torch.zeros_like(parameter) if parameter.grad is None else parameter.grad
    assert_gradients_match_finite_differences(model, lambda p: loss_by_hand(p, model.settings))


PRETRAINED_MODULES = {
    "both": {
        "source_lm.embedding",
        "source_lm.lstm",
        "source_lm.softmax",
        "target_lm.embedding",
        "target_lm.lstm",
        "target_lm.softmax",
    },
    "encoder": {"source_lm.embedding", "source_lm.lstm", "source_lm.softmax"},
    "decoder": {"target_lm.embedding", "target_lm.lstm", "target_lm.softmax"},
    "no_softmax": {
        "source_lm.embedding",
        "source_lm.lstm",
        "target_lm.embedding",
        "target_lm.lstm",
    },
    "embeddings": {"source_lm.embedding", "target_lm.embedding"},
}


@pytest.mark.parametrize("pretrained", PRETRAINED_MODULES)
def test_only_the_first_layers_are_pretrained_each_by_its_own_language_model(
    pretrained: Any,
) -> None:
    settings = dataclasses.replace(SETTINGS, pretrained=pretrained, num_layers=3)
    pretrained_weights, random_weights = (
        build_language_models(seed).state_dict() for seed in (1, 2)
    )
    translator, other_translator = (
        build_translator(
            build_language_models(1),
            build_language_models(2),
            settings,
            generator=torch.Generator().manual_seed(seed),
        )
        for seed in (3, 4)
    )
    for name, value in translator.state_dict().items():
        if name.startswith(("source_lm.", "target_lm.")):
            module = name.rsplit(".", 1)[0]
            expected = (
                pretrained_weights if module in PRETRAINED_MODULES[pretrained] else random_weights
            )
            assert torch.equal(value, expected[name.replace("_lm.", ".", 1)]), name
        else:
            assert not torch.equal(value, other_translator.state_dict()[name]), (
                f"{name} must be random, from the generator"
            )
    assert {name.split(".")[0] for name in translator.state_dict()} == {
        "source_lm",
        "target_lm",
        "encoder",
        "decoder",
        "query",
        "combine",
    }


def test_with_a_zero_combine_layer_the_decoder_is_the_target_language_model() -> None:
    """Thanks to the residual, the pretrained softmax sees the states it was trained on."""
    model = build_small_translator()
    batch = make_pair_batch()
    torch.nn.init.zeros_(model.combine.weight)
    torch.nn.init.zeros_(model.combine.bias)
    logits = decode_pairs(model, batch)
    language_model = build_language_models(1).double().target
    torch.testing.assert_close(
        logits, language_model.softmax(language_model.run_lstm(batch.ids_BT, None, dropout=0.0)[1])
    )


def build_tiny_translator(**overrides: Any) -> Translator:
    """Return an untrained translator with larger weights, so that it writes something."""
    settings = dataclasses.replace(SETTINGS, **{"max_new_tokens": 12, **overrides})
    model = build_translator(
        tiny.model("seq2seq"),
        tiny.model("seq2seq"),
        settings,
        generator=torch.Generator().manual_seed(5),
    ).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(3.0)
    return model


def encode_texts(count: int, *, shortest: int = 2) -> list[Encoding]:
    """Return encodings of texts, each one word longer than the one before."""
    texts = [
        " ".join(document.split()[: shortest + extra_words])
        for extra_words, document in enumerate(tiny.documents()[:count])
    ]
    return tiny.tokenizer("seq2seq").encode_batch(texts)


def encode_memory(model: Translator, items: list[Encoding]) -> EncoderMemory:
    batch = tiny.tokenizer("seq2seq").collate(items)
    return model.encode(batch.ids_BT, batch.mask_BT)


def test_padding_and_other_items_of_a_batch_change_nothing() -> None:
    model = build_tiny_translator()
    tokenizer = tiny.tokenizer("seq2seq")
    items = encode_texts(7)
    batch = collate_pairs(tokenizer, items, items[::-1])
    logits, _ = model.decode(batch.ids_BT, model.initial_states(), encode_memory(model, items))
    written, scores = beam_search(model, encode_memory(model, items), end_id=0)
    for row, (source, target) in enumerate(zip(items, items[::-1], strict=True)):
        single = collate_pairs(tokenizer, [source], [target])
        own_logits, _ = model.decode(
            single.ids_BT, model.initial_states(), encode_memory(model, [source])
        )
        torch.testing.assert_close(
            logits[row, : own_logits.shape[1]].softmax(-1),
            own_logits[0].softmax(-1),
            atol=1e-6,
            rtol=0,
        )
        (pieces,), score = beam_search(model, encode_memory(model, [source]), end_id=0)
        assert list(pieces) == list(written[row])
        np.testing.assert_allclose(score[0], scores[row], rtol=2e-6)


def test_the_decoder_does_not_see_later_pieces() -> None:
    model = build_tiny_translator()
    items = encode_texts(1)
    target_ids = torch.tensor([[0, 5, 9, 13, 17, 21]])
    before, _ = model.decode(target_ids, model.initial_states(), encode_memory(model, items))
    for position in range(1, 6):
        changed = target_ids.clone()
        changed[0, position] += 1
        after, _ = model.decode(changed, model.initial_states(), encode_memory(model, items))
        assert torch.equal(before[0, :position], after[0, :position])
        assert not torch.allclose(before[0, position:], after[0, position:])


def test_greedy_search_takes_the_likeliest_next_piece() -> None:
    model = build_tiny_translator()
    items = encode_texts(6)
    written, scores = beam_search(model, encode_memory(model, items), end_id=0)
    assert len({tuple(pieces) for pieces in written}) > 1, "the items must have different outputs"
    for item, pieces, score in zip(items, written, scores, strict=True):
        logits, _ = model.decode(
            torch.tensor([[0, *pieces]]), model.initial_states(), encode_memory(model, [item])
        )
        expected = [*pieces, 0] if np.isfinite(score) else [*pieces]
        assert logits[0, : len(expected)].argmax(-1).tolist() == expected
        assert len(pieces) == 12 or np.isfinite(score)


def score_all_texts(
    step: Callable[[list[int]], np.ndarray], max_length: int, *, pieces: int
) -> dict[tuple[int, ...], float]:
    """Return the log-probability per piece of every text that ends within the limit."""
    scores: dict[tuple[int, ...], float] = {}
    for length in range(max_length):
        for text in itertools.product(range(1, pieces), repeat=length):
            log_probs = step([0, *text])
            targets = [*text, 0]
            scores[text] = sum(
                log_probs[position, piece] for position, piece in enumerate(targets)
            ) / len(targets)
    return scores


def test_a_beam_as_wide_as_all_texts_finds_the_likeliest_text() -> None:
    model = build_small_translator(num_beams=V**3, max_new_tokens=3).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(3.0)
    memory = model.encode(ids([1, 4, 5]), ids([1, 1, 1]).bool())

    def step(target_ids: list[int]) -> np.ndarray:
        with torch.no_grad():
            return torch.log_softmax(
                model.decode(ids(target_ids), model.initial_states(), memory)[0][0], -1
            ).numpy()

    scores = score_all_texts(step, 3, pieces=V)
    best = max(scores, key=lambda text: scores[text])
    (pieces,), score = beam_search(model, memory, end_id=0)
    assert tuple(pieces) == best and score[0] == pytest.approx(scores[best], rel=1e-5)
