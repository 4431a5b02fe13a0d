"""The translation model against a case written out in numpy, and what it promises: what is pretrained, no peeking, padding, greedy reading."""

import dataclasses
import itertools
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from lineage.evaluation.translation import PairBatch, beam_search, collate_pairs, translation_loss
from lineage.evaluation.translator import (
    EncoderMemory,
    TranslationSettings,
    Translator,
    build_translator,
)
from lineage.models.batch import Batch
from lineage.models.seq2seq import Seq2SeqConfig, Seq2SeqModel
from lineage.tokenizers.tokenizer import Encoding
from tests import tiny

D, V = 3, 11
SETTINGS = TranslationSettings(
    num_layers=2, pretrained="both", aux_lm_losses=True, residual=True, attention="first_and_top", epochs=1, batch_size=2, learning_rate=0.01, cut_frac=0.1,
    ratio=32.0, weight_decay=0.0, dropout=0.0, max_grad_norm=1.0, num_beams=1, max_new_tokens=9)  # fmt: skip
Weights = dict[str, np.ndarray]


def language_models(seed: int) -> Seq2SeqModel:
    """Two language models of three units."""
    model = Seq2SeqModel(Seq2SeqConfig(dropout=0.0, hidden_size=D), vocab_size=V)
    model.init_weights(torch.Generator().manual_seed(seed))
    return model


def translator(**over: Any) -> Translator:
    """In double precision."""
    return build_translator(
        language_models(1),
        language_models(2),
        dataclasses.replace(SETTINGS, **over),
        generator=torch.Generator().manual_seed(3),
    ).double()


def ids(*rows: list[int]) -> torch.Tensor:
    return torch.tensor(rows)


def pairs() -> PairBatch:
    """Two pairs of unequal lengths, and a window of text for each language model."""
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


def lstm(x_TD: np.ndarray, weights: Weights, name: str) -> np.ndarray:
    """One item through one layer, gate by gate (torch's order: in, forget, update, out)."""
    W, U, bias = (
        weights[f"{name}.weight_ih"],
        weights[f"{name}.weight_hh"],
        weights[f"{name}.bias_ih"] + weights[f"{name}.bias_hh"],
    )
    h, c, found = np.zeros(D), np.zeros(D), []
    for x in x_TD:
        gates = W @ x + U @ h + bias
        i, f, o = (1 / (1 + np.exp(-gates[k * D : (k + 1) * D])) for k in (0, 1, 3))
        c = f * c + i * np.tanh(gates[2 * D : 3 * D])
        h = o * np.tanh(c)
        found.append(h)
    return np.array(found)


def softmax(x: np.ndarray) -> np.ndarray:
    e = np.exp(x - x.max())
    return e / e.sum()


def logits_by_hand(
    w: Weights, source: list[int], read: list[int], settings: TranslationSettings
) -> np.ndarray:
    """(T, V) of one pair."""
    first = lstm(w["source_lm.embedding.weight"][source], w, "source_lm.lstm")
    top = lstm(first, w, "encoder.0")
    state = lstm(w["target_lm.embedding.weight"][read], w, "target_lm.lstm")
    above = lstm(state, w, "decoder.0")
    found = []
    for lm_state, query in zip(state, above, strict=True):
        alpha = softmax(np.array([(w["query.weight"] @ query) @ h for h in top]))
        context = (
            [alpha @ first, alpha @ top] if settings.attention == "first_and_top" else [alpha @ top]
        )
        x = np.tanh(w["combine.weight"] @ np.concatenate([query, *context]) + w["combine.bias"])
        x = x + lm_state if settings.residual else x
        found.append(w["target_lm.softmax.weight"] @ x + w["target_lm.softmax.bias"])
    return np.array(found)


def nats(logits_TV: np.ndarray, targets: list[int]) -> float:
    return -sum(
        float(np.log(softmax(row)[target])) for row, target in zip(logits_TV, targets, strict=True)
    )


def loss_by_hand(w: Weights, settings: TranslationSettings) -> float:
    """Nats a target piece, plus nats a piece of each language model: one to one to one."""
    task = nats(logits_by_hand(w, [1, 4, 5, 6], [1, 8, 9, 10], settings), [8, 9, 10, 1])
    task += nats(logits_by_hand(w, [1, 7, 2], [1, 3], settings), [3, 1])
    total = task / 6
    for name, last in (("source", 6), ("target", 7)) if settings.aux_lm_losses else ():
        states = lstm(w[f"{name}_lm.embedding.weight"][[3, 4, 5]], w, f"{name}_lm.lstm")
        total += (
            nats(
                states @ w[f"{name}_lm.softmax.weight"].T + w[f"{name}_lm.softmax.bias"],
                [4, 5, last],
            )
            / 3
        )
    return total


def weights_of(model: Translator) -> Weights:
    return {name: value.detach().numpy().copy() for name, value in model.state_dict().items()}


CASES = [{}, {"residual": False}, {"attention": "top"}, {"aux_lm_losses": False}]


@pytest.mark.parametrize("over", CASES)
def test_logits_loss_and_gradient_are_those_written_out_by_hand(over: dict[str, Any]) -> None:
    model = translator(**over)
    batch, w = pairs(), weights_of(model)
    assert batch.sources is not None
    logits, _ = model.decode(
        batch.ids_BT,
        model.initial_states(),
        model.encode(batch.sources.ids_BT, batch.sources.mask_BT),
    )
    np.testing.assert_allclose(
        logits[0].detach().numpy(),
        logits_by_hand(w, [1, 4, 5, 6], [1, 8, 9, 10], model.settings),
        atol=1e-12,
    )
    np.testing.assert_allclose(
        logits[1, :2].detach().numpy(),
        logits_by_hand(w, [1, 7, 2], [1, 3], model.settings),
        atol=1e-12,
    )
    out = translation_loss(model, batch)
    assert float(out.loss.detach()) == pytest.approx(loss_by_hand(w, model.settings), abs=1e-12)
    out.loss.backward()
    rng, step = np.random.default_rng(0), 1e-5
    for name, parameter in model.named_parameters():
        for place in {tuple(rng.integers(0, size) for size in parameter.shape) for _ in range(3)}:
            kept, sides = w[name][place], []
            for way in (step, -step):
                w[name][place] = kept + way
                sides.append(loss_by_hand(w, model.settings))
            w[name][place] = kept
            found = 0.0 if parameter.grad is None else float(parameter.grad[place])
            assert found == pytest.approx((sides[0] - sides[1]) / (2 * step), abs=1e-8), (
                f"{name}{place}"
            )


def test_the_three_losses_weigh_the_same() -> None:
    out = translation_loss(translator(), pairs())
    each = {name: float(out.nats[name]) / out.target_counts[name] for name in out.nats}
    assert set(each) == {"task", "source", "target"} and min(each.values()) > 0
    assert float(out.loss.detach()) == pytest.approx(sum(each.values()), abs=1e-12)


TAKEN = {
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


@pytest.mark.parametrize("pretrained", TAKEN)
def test_first_layers_come_from_the_language_model_of_their_side_and_upper_ones_from_none(
    pretrained: Any,
) -> None:
    settings = dataclasses.replace(SETTINGS, pretrained=pretrained, num_layers=3)
    trained, twin = (language_models(seed).state_dict() for seed in (1, 2))
    one, other = (
        build_translator(
            language_models(1),
            language_models(2),
            settings,
            generator=torch.Generator().manual_seed(seed),
        )
        for seed in (3, 4)
    )
    for name, value in one.state_dict().items():
        if name.startswith(("source_lm.", "target_lm.")):
            module = name.rsplit(".", 1)[0]
            expected = trained if module in TAKEN[pretrained] else twin
            assert torch.equal(value, expected[name.replace("_lm.", ".", 1)]), name
        else:
            assert not torch.equal(value, other.state_dict()[name]), (
                f"{name} is random: by the generator, of no language model"
            )
    assert {name.split(".")[0] for name in one.state_dict()} == {
        "source_lm",
        "target_lm",
        "encoder",
        "decoder",
        "query",
        "combine",
    }


def test_without_its_random_parts_the_decoder_is_the_targets_language_model() -> None:
    """What the residual is for: the pretrained softmax sees the state that it was trained on."""
    model, batch = translator(), pairs()
    torch.nn.init.zeros_(model.combine.weight)
    torch.nn.init.zeros_(model.combine.bias)
    assert batch.sources is not None
    logits, _ = model.decode(
        batch.ids_BT,
        model.initial_states(),
        model.encode(batch.sources.ids_BT, batch.sources.mask_BT),
    )
    lm = language_models(1).double().target
    torch.testing.assert_close(logits, lm.softmax(lm.run_lstm(batch.ids_BT, None, dropout=0.0)[1]))


def tiny_translator(**over: Any) -> Translator:
    """With the tiny tokenizer's vocabulary, untrained but for larger weights, so that it writes something."""
    settings = dataclasses.replace(SETTINGS, **{"max_new_tokens": 12, **over})
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


def encoded(count: int, *, shortest: int = 2) -> list[Encoding]:
    texts = [
        " ".join(document.split()[: shortest + row])
        for row, document in enumerate(tiny.documents()[:count])
    ]
    return tiny.reader("seq2seq").encode_batch(texts)


def remembered(model: Translator, items: list[Encoding]) -> EncoderMemory:
    batch = tiny.reader("seq2seq").collate(items)
    return model.encode(batch.ids_BT, batch.mask_BT)


def test_padding_and_neighbours_change_nothing() -> None:
    model, reader, items = tiny_translator(), tiny.reader("seq2seq"), encoded(7)
    together = collate_pairs(reader, items, items[::-1])
    logits, _ = model.decode(together.ids_BT, model.initial_states(), remembered(model, items))
    written, scores = beam_search(model, remembered(model, items), end_id=0)
    for row, (source, target) in enumerate(zip(items, items[::-1], strict=True)):
        alone = collate_pairs(reader, [source], [target])
        own, _ = model.decode(alone.ids_BT, model.initial_states(), remembered(model, [source]))
        torch.testing.assert_close(
            logits[row, : own.shape[1]].softmax(-1), own[0].softmax(-1), atol=1e-6, rtol=0
        )
        (pieces,), score = beam_search(model, remembered(model, [source]), end_id=0)
        assert list(pieces) == list(written[row])
        np.testing.assert_allclose(score[0], scores[row], rtol=2e-6)


def test_the_decoder_never_sees_what_comes_later() -> None:
    model, items = tiny_translator(), encoded(1)
    read = torch.tensor([[0, 5, 9, 13, 17, 21]])
    before, _ = model.decode(read, model.initial_states(), remembered(model, items))
    for place in range(1, 6):
        changed = read.clone()
        changed[0, place] += 1
        after, _ = model.decode(changed, model.initial_states(), remembered(model, items))
        assert torch.equal(before[0, :place], after[0, :place]) and not torch.allclose(
            before[0, place:], after[0, place:]
        )


def test_greedy_reading_is_the_likeliest_next_piece_under_teacher_forcing() -> None:
    model, items = tiny_translator(), encoded(6)
    written, scores = beam_search(model, remembered(model, items), end_id=0)
    assert len({tuple(pieces) for pieces in written}) > 1, "else this shows nothing"
    for item, pieces, score in zip(items, written, scores, strict=True):
        logits, _ = model.decode(
            torch.tensor([[0, *pieces]]), model.initial_states(), remembered(model, [item])
        )
        wanted = [*pieces, 0] if np.isfinite(score) else [*pieces]
        assert logits[0, : len(wanted)].argmax(-1).tolist() == wanted
        assert len(pieces) == 12 or np.isfinite(score)


def all_of(
    step: Callable[[list[int]], np.ndarray], longest: int, *, pieces: int
) -> dict[tuple[int, ...], float]:
    """The log-probability a piece of every text that ends in time."""
    found: dict[tuple[int, ...], float] = {}
    for length in range(longest):
        for text in itertools.product(range(1, pieces), repeat=length):
            log_p = step([0, *text])
            wanted = [*text, 0]
            found[text] = sum(log_p[t, piece] for t, piece in enumerate(wanted)) / len(wanted)
    return found


def test_a_beam_as_wide_as_all_texts_finds_the_likeliest_of_them() -> None:
    model = translator(num_beams=V**3, max_new_tokens=3).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(3.0)
    memory = model.encode(ids([1, 4, 5]), ids([1, 1, 1]).bool())

    def step(read: list[int]) -> np.ndarray:
        with torch.no_grad():
            return torch.log_softmax(
                model.decode(ids(read), model.initial_states(), memory)[0][0], -1
            ).numpy()

    every = all_of(step, 3, pieces=V)
    best = max(every, key=lambda text: every[text])
    (pieces,), score = beam_search(model, memory, end_id=0)
    assert tuple(pieces) == best and score[0] == pytest.approx(every[best], rel=1e-5)
