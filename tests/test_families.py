"""What every family must be: right shapes, no peeking, padding without effect, every parameter learning, and able to learn by heart."""

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from lineage.errors import InputError
from lineage.models.base import Encoder
from lineage.models.batch import Batch
from lineage.tokenizers.tokenizer import Encoding
from lineage.training import budget
from lineage.training.budget import (
    count_parameters_by_role,
    count_train_flops,
    match_parameter_budget,
)
from lineage.training.objectives import sample_without_replacement, sampled_softmax_nats
from lineage.training.optimizers import build_adamw, build_param_groups, densify_gradients
from tests import tiny

TEXTS = [
    " ".join(document.split()[:length])
    for document, length in zip(tiny.documents()[:13], range(3, 16), strict=True)
]


def read(name: str, texts: list[str]) -> Batch:
    return tiny.reader(name).collate(tiny.reader(name).encode_batch(texts))


@pytest.mark.parametrize("name", tiny.FAMILIES)
def test_layers_have_the_shapes_they_promise(name: str) -> None:
    model, batch = tiny.model(name), read(name, TEXTS)
    layers = model.encode(batch)
    assert [layer.shape for layer in layers] == [
        (*batch.ids_BT.shape, width) for width in model.hidden_sizes()
    ]
    assert model.build_head(3, dropout=0.1)(model.pool(layers, batch)).shape == (len(TEXTS), 3)
    assert all(torch.isfinite(layer[batch.mask_BT]).all() for layer in layers)


def changed(name: str, encoded: Encoding, place: int) -> Encoding:
    """The same text with another word at one place."""
    ids, words = encoded.ids.copy(), list(encoded.words)
    ids[place] = ids[place] + 1
    if words:
        words[place] = "zzz" if words[place] != "zzz" else "yyy"
    return Encoding(ids, encoded.offsets, tuple(words))


@pytest.mark.parametrize("place", [3, 6, 9])
def test_gpt_does_not_see_what_comes_later(place: int) -> None:
    model, reader = tiny.model("gpt").eval(), tiny.reader("gpt")
    text = reader.encode(TEXTS[-1])
    before, after = (model.encode(reader.collate([e])) for e in (text, changed("gpt", text, place)))
    for x, y in zip(before, after, strict=True):
        assert torch.equal(x[0, :place], y[0, :place])
        assert not torch.allclose(x[0, place:], y[0, place:])


@pytest.mark.parametrize("place", [3, 6, 9])
def test_neither_direction_of_elmo_sees_the_other_side(place: int) -> None:
    model, reader = tiny.model("elmo").eval(), tiny.reader("elmo")
    text = reader.encode(TEXTS[-1])
    before, after = (
        model.encode(reader.collate([e])) for e in (text, changed("elmo", text, place))
    )
    P = model.hidden_sizes()[0] // 2
    for x, y in zip(before[1:], after[1:], strict=True):
        assert torch.equal(x[0, :place, :P], y[0, :place, :P]), "forward"
        assert torch.equal(x[0, place + 1 :, P:], y[0, place + 1 :, P:]), "backward"
        assert not torch.allclose(x[0, place + 1 :, :P], y[0, place + 1 :, :P])
        assert not torch.allclose(x[0, :place, P:], y[0, :place, P:])


def test_the_target_of_a_position_is_not_in_its_context() -> None:
    """In training, position t of a window predicts t + 1, in reading order, in both directions."""
    batch = tiny.batch("elmo", 2)
    assert batch.targets_BT is not None
    assert torch.equal(batch.ids_BT[:, 1:], batch.targets_BT[:, :-1])


def test_bert_reads_both_sides() -> None:
    model, reader = tiny.model("bert").eval(), tiny.reader("bert")
    text = reader.encode(TEXTS[-1])
    before, after = (
        model.encode(reader.collate([e]))[-1][0] for e in (text, changed("bert", text, 6))
    )
    assert (before - after).abs().sum(-1).min() > 0


@pytest.mark.parametrize("name", tiny.FAMILIES)
def test_padding_and_neighbours_change_nothing(name: str) -> None:
    model, draw = tiny.model(name).eval(), torch.Generator().manual_seed(4)
    with torch.no_grad():
        for parameter in model.parameters():
            if (
                parameter.dim() == 1
            ):  # biases start as zeros, with which an LSTM passes over padding as if it were not there
                parameter.add_(torch.randn(parameter.shape, generator=draw), alpha=0.3)
    batch = read(name, TEXTS)
    together = model.encode(batch)
    pooled = model.pool(together, batch)
    for row, text in enumerate(TEXTS):
        own = read(name, [text])
        alone = model.encode(own)
        for x, y in zip(alone, together, strict=True):
            torch.testing.assert_close(y[row, : x.shape[1]], x[0], atol=1e-6, rtol=0.0)
        torch.testing.assert_close(pooled[row], model.pool(alone, own)[0], atol=1e-6, rtol=0.0)


@pytest.mark.parametrize("name", [*tiny.TRAINED, *tiny.CELLS])
def test_every_parameter_gets_a_gradient_and_a_start(name: str) -> None:
    found, model = tiny.variant(name), tiny.model(name)
    stream = found.family.batch_sampler(
        tiny.tokens(name), tiny.reader(name), found.pretrain, seed=1
    )
    unlabelled = (
        ("pooler.", "nsp_head.")
        if getattr(found.pretrain, "next_sentence_prediction", None) is False
        else ()
    )
    assert all(torch.isfinite(parameter).all() for parameter in model.parameters()), (
        "each has a start"
    )
    for index in range(min(40, stream.set_epoch(0))):
        found.family.objective(model, stream.get_batch(index), None).loss.backward()
        left = [
            key
            for key, p in model.named_parameters()
            if not key.startswith(unlabelled) and (p.grad is None or not p.grad.abs().sum() > 0)
        ]
        if not left:
            break
    assert not left, "these have no gradient"


@pytest.mark.parametrize("name", [*tiny.TRAINED, *tiny.CELLS])
def test_operations_are_counted_inside_fused_layers_too(name: str) -> None:
    """Forward and backward are at least six operations a token and weight of the body's matrices, but for a first state that needs no gradient."""
    found, model = tiny.variant(name), tiny.model(name)
    batch = tiny.batch(name, 0)
    matrices = sum(p.numel() for p in model.modules_by_role()["body"].parameters() if p.dim() > 1)
    share = count_train_flops(model, found.family, batch) / batch.num_tokens / (6 * matrices)
    assert 1.0 < share < 3.0


@pytest.mark.parametrize(
    "bodies",
    [
        [7],
        [3, 8],
        [n * n + 5 * n for n in range(1, 60)],
        [100 * n for n in range(1, 40)],
        [1, 2, 3, 4, 5000, 9000],
    ],
)
def test_the_width_that_is_chosen_is_the_nearest_of_all(
    bodies: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(budget, "count_parameters_by_role", lambda model: {"body": model})
    family: Any = SimpleNamespace(name="numbers", build=lambda candidate, *, vocab_size: candidate)
    for wanted in range(1, bodies[-1] + 50, 1 + bodies[-1] // 300):
        found, off = budget._closest_candidate(family, bodies, vocab_size=9, body_parameters=wanted)
        assert off == abs(found - wanted) == min(abs(body - wanted) for body in bodies)


@pytest.mark.parametrize("name", [*tiny.TRAINED, *tiny.slow(tiny.CELLS)])
def test_one_batch_is_learned_by_heart(name: str) -> None:
    found = tiny.variant(name)
    plain = {
        "architecture": {
            key: 0.0
            for key in ("activation_penalty", "temporal_activation_penalty")
            if hasattr(found.architecture, key)
        }
    }  # which would keep the loss up
    batch = tiny.batch(name, 0)
    losses = []
    for rate, steps in (
        (0.01, 150),
        (0.02, 1500),
    ):  # few units between -1 and 1 under a tied softmax take longer
        losses.append(
            learned_by_heart(
                tiny.model(name, **plain), found.family.objective, batch, rate=rate, steps=steps
            )
        )
        if losses[-1] < 0.1:
            return
    pytest.fail(f"the loss is still {min(losses):.2f}")


def learned_by_heart(
    model: Encoder, objective: Any, batch: Batch, *, rate: float, steps: int
) -> float:
    """The loss after so many steps on one batch, or once it has been below 0.1 five times in a row."""
    optimizer = build_adamw(build_param_groups([[*model.parameters()]], weight_decay=0.0))
    for group in optimizer.param_groups:
        group["lr"] = rate
    known = 0
    for _ in range(steps):
        optimizer.zero_grad()
        loss = objective(model, batch, None).loss
        loss.backward()
        densify_gradients(optimizer)
        optimizer.step()
        known = known + 1 if float(loss.detach()) < 0.1 else 0
        if known == 5:  # and not by a chance of one step
            break
    return float(loss.detach())


@pytest.mark.parametrize("name", tiny.FAMILIES)
def test_groups_hold_every_parameter_but_the_heads_of_pretraining_once(name: str) -> None:
    model = tiny.model(name)
    inside = [id(p) for group in model.layer_groups() for p in group]
    parts = model.modules_by_role()
    heads = {id(p) for p in parts.get("head", torch.nn.Module()).parameters()}
    assert len(inside) == len(set(inside)) and not heads & set(inside)
    outside = {
        key for key, p in model.named_parameters() if id(p) not in inside and id(p) not in heads
    }
    assert outside <= {"mlm_bias", "nsp_head.weight", "nsp_head.bias"}


@pytest.mark.parametrize("parameters", [12_000, 100_000, 600_000, 2_000_000])
@pytest.mark.parametrize("name", [*tiny.TRAINED, *tiny.CELLS])
def test_bodies_are_within_five_percent_of_the_budget(name: str, parameters: int) -> None:
    found = tiny.variant(name)
    config = match_parameter_budget(
        found.family, found.architecture, vocab_size=97, body_parameters=parameters
    )
    body = count_parameters_by_role(found.family.build(config, vocab_size=97))["body"]
    assert abs(body / parameters - 1) <= 0.05


def test_a_budget_that_no_width_meets_is_refused() -> None:
    found = tiny.variant("gpt")
    with pytest.raises(InputError, match="no width of gpt"):
        match_parameter_budget(found.family, found.architecture, vocab_size=97, body_parameters=100)


def test_an_untrained_model_of_a_seed_is_always_the_same() -> None:
    one, two = tiny.model("bert"), tiny.model("bert")
    assert all(
        torch.equal(a, b)
        for a, b in zip(one.state_dict().values(), two.state_dict().values(), strict=True)
    )


def test_sampled_softmax_is_near_the_full_one_when_it_samples_much() -> None:
    """All words but one are candidates, and the mean over many draws is near what all of them give."""
    generator = torch.Generator().manual_seed(5)
    x, weight, bias = (
        torch.randn(*shape, generator=generator) for shape in ((13, 7), (99, 7), (99,))
    )
    targets = torch.randint(99, (13,), generator=generator)
    full = torch.nn.functional.cross_entropy(x @ weight.T + bias, targets, reduction="sum")
    torch.manual_seed(1)
    nats = torch.stack(
        [sampled_softmax_nats((x, weight, bias), targets, num_samples=98) for _ in range(200)]
    )
    assert float(nats.mean()) == pytest.approx(float(full), rel=0.01)


def test_sampled_softmax_takes_off_the_log_of_how_often_a_candidate_is_expected() -> None:
    """Written out: p(id) = log((id + 2) / (id + 1)) / log(V + 1), and 1 - exp(-p t) for the time t at which the last candidate came."""
    draw, V, S = torch.Generator().manual_seed(5), 99, 40
    x, weight, bias = (torch.randn(*shape, generator=draw) for shape in ((13, 7), (V, 7), (V,)))
    targets = torch.randint(V, (13,), generator=draw)
    p = [np.log((i + 2) / (i + 1)) / np.log(V + 1) for i in range(V)]
    torch.manual_seed(3)
    rings = [-np.log(float(u)) / p[i] for i, u in enumerate(torch.rand(V))]
    candidates = set(sorted(range(V), key=rings.__getitem__)[:S])
    expected = [1 - np.exp(-p[i] * sorted(rings)[S - 1]) for i in range(V)]
    logits = (x @ weight.T + bias).double().numpy() - np.log(expected)
    nats = 0.0
    for row, target in zip(logits, targets.tolist(), strict=True):
        nats += np.log(np.exp([row[i] for i in candidates | {target}]).sum()) - row[target]
    torch.manual_seed(3)
    assert float(sampled_softmax_nats((x, weight, bias), targets, num_samples=S)) == pytest.approx(
        nats, rel=1e-5
    )


def test_candidates_are_drawn_as_one_by_one_until_so_many_differ() -> None:
    """How often each word is among them, and how long it takes, beside draws one by one of which repeated ones are dropped."""
    shares, S, times = np.array([0.4, 0.25, 0.15, 0.1, 0.06, 0.04]), 3, 4000
    draw, ours, theirs = np.random.default_rng(7), np.zeros(6), np.zeros(6)
    tries, until = [], []
    torch.manual_seed(7)
    for _ in range(times):
        words: list[int] = []
        count = 0
        while len(words) < S:
            word, count = int(draw.choice(6, p=shares)), count + 1
            words += [word] * (word not in words)
        theirs[words] += 1
        tries.append(count)
        found, last = sample_without_replacement(torch.tensor(shares, dtype=torch.float32), S)
        assert len(set(found.tolist())) == S
        ours[found.numpy()] += 1
        until.append(float(last))
    error = np.sqrt(2 * 0.25 / times)
    assert np.abs(ours - theirs).max() / times < 4 * error
    assert np.mean(until) == pytest.approx(
        np.mean(tries), abs=4 * np.sqrt((np.var(until) + np.var(tries)) / times)
    )


def test_sampled_softmax_is_for_training_only() -> None:
    model = tiny.model("elmo", architecture={"softmax_samples": 20})
    found = tiny.variant("elmo")
    batch = tiny.batch("elmo", 0)
    full = tiny.model("elmo", architecture={"softmax_samples": None})
    assert float(found.family.objective(model.eval(), batch, None).loss.detach()) == float(
        found.family.objective(full.eval(), batch, None).loss.detach()
    )
    assert float(found.family.objective(model.train(), batch, None).loss.detach()) < float(
        found.family.objective(full.train(), batch, None).loss.detach()
    )


@pytest.mark.parametrize("name", [*tiny.TRAINED, *tiny.CELLS])
def test_scores_of_a_pair_do_not_depend_on_the_order_of_texts(name: str) -> None:
    family, model = tiny.variant(name).family, tiny.model(name).eval()
    scores = family.score_texts(model, tiny.reader(name), TEXTS, limit=None)
    back = family.score_texts(model, tiny.reader(name), TEXTS[::-1], limit=None)[::-1]
    # nats of a text go into the hundreds, where numbers of fp32 lie further apart than 1e-6: a few of their distances
    np.testing.assert_allclose(scores, back, atol=0.0, rtol=4 * np.finfo(np.float32).eps)
    assert (scores[:, 0] < 0).all()


@pytest.mark.parametrize("name", [*tiny.TRAINED, *tiny.CELLS])
def test_a_model_that_knows_nothing_finds_every_text_as_probable_a_piece(name: str) -> None:
    """The divisor counts what is summed: marks that are not scored, or each direction's, would make longer texts the more probable ones."""
    family, model = tiny.variant(name).family, tiny.model(name).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.zero_()
    nats, pieces = family.score_texts(model, tiny.reader(name), ["the", *TEXTS], limit=None).T
    assert len(set(pieces)) > 1 and pieces.min() >= 1
    np.testing.assert_allclose(nats / pieces, nats[0] / pieces[0], rtol=1e-5)


def test_gpt_scores_are_the_log_probability_of_the_text() -> None:
    model, reader = tiny.model("gpt").eval(), tiny.reader("gpt")
    found = tiny.variant("gpt").family.score_texts(model, reader, TEXTS[:3], limit=None)[:, 0]
    for text, score in zip(TEXTS[:3], found, strict=True):
        encoded = reader.encode(text)
        batch = reader.collate([encoded])
        log_p = torch.log_softmax(model.logits(model.encode(batch)[-1][0]), -1)
        by_hand = sum(
            float(log_p[t - 1, encoded.ids[t]].detach()) for t in range(1, len(encoded.ids) - 1)
        )
        assert score == pytest.approx(by_hand, rel=1e-5)
