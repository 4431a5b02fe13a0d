"""Every family meets the same requirements.

Shapes are right, no position sees its target, padding has no effect, every parameter gets a
gradient, and one batch can be memorized.
"""

from typing import Any

import numpy as np
import pytest
import torch

from lineage.errors import InputError
from lineage.networks.base import Encoder
from lineage.networks.batch import Batch
from lineage.networks.registry import load_family
from lineage.tokenizers.tokenizer import Encoding
from lineage.training import budget
from lineage.training.budget import (
    count_parameters_by_role,
    count_train_flops,
    match_parameter_budget,
)
from lineage.training.objectives import sample_without_replacement, sampled_softmax_nats
from lineage.training.optimizers import build_adamw, build_param_groups, densify_gradients
from tests.helpers import tiny

TEXTS = [
    " ".join(document.split()[:length])
    for document, length in zip(tiny.documents()[:13], range(3, 16), strict=True)
]


def encode_texts(name: str, texts: list[str]) -> Batch:
    return tiny.tokenizer(name).collate(tiny.tokenizer(name).encode_batch(texts))


@pytest.mark.parametrize("name", tiny.FAMILIES)
def test_layers_have_the_declared_shapes(name: str) -> None:
    model, batch = tiny.model(name), encode_texts(name, TEXTS)
    layers = model.encode(batch)
    assert [layer.shape for layer in layers] == [
        (*batch.ids_BT.shape, width) for width in model.hidden_sizes()
    ]
    assert model.build_head(3, dropout=0.1)(model.pool(layers, batch)).shape == (len(TEXTS), 3)
    assert all(torch.isfinite(layer[batch.mask_BT]).all() for layer in layers)


def replace_word(encoded: Encoding, position: int) -> Encoding:
    """Return the text with another word at one position."""
    ids, words = encoded.ids.copy(), list(encoded.words)
    ids[position] = ids[position] + 1
    if words:
        words[position] = "zzz" if words[position] != "zzz" else "yyy"
    return Encoding(ids, encoded.offsets, tuple(words))


LEFT = ("ulmfit", "gpt", "gpt_modern", "sa_lstm", "left_transformer", "left_lstm")
JOINED = ("elmo", "taglm", "joined_transformer", "joined_lstm")  # one half of the units each
BOTH = ("bert", "bert_modern", "gpt_bert", "masked_transformer", "masked_lstm")


@pytest.mark.parametrize("position", [3, 6, 9])
@pytest.mark.parametrize("name", [*LEFT, *JOINED, *BOTH])
def test_a_word_changes_the_states_that_may_see_it_and_no_others(name: str, position: int) -> None:
    model, tokenizer = tiny.model(name).eval(), tiny.tokenizer(name)
    encoded = tokenizer.encode(TEXTS[-1])
    before, after = (
        model.encode(tokenizer.collate([encoding]))
        for encoding in (encoded, replace_word(encoded, position))
    )
    width = model.hidden_sizes()[-1] // (2 if name in JOINED else 1)
    for x_BTD, y_BTD in zip(before, after, strict=True):
        is_same_TD = (x_BTD == y_BTD)[0]
        forward, backward = is_same_TD[:, :width], is_same_TD[:, width:]
        if name not in BOTH:
            assert forward[:position].all()
        if name in JOINED:
            assert backward[position + 1 :].all()
    first_seen = 0 if name in BOTH else position
    assert not forward[first_seen:].all(1).any(), "the top layer sees the word"
    if name in JOINED:
        assert not backward[: position + 1].all(1).any()


@pytest.mark.parametrize("name", tiny.TRAINED)
def test_a_new_network_reads_context_if_its_family_says_so(name: str) -> None:
    model, tokenizer = (
        tiny.checkpoint(name).build(tiny.CPU, load_weights=False).eval(),
        tiny.tokenizer(name),
    )
    encoded = tokenizer.encode(TEXTS[-1])
    before, after = (
        model.encode(tokenizer.collate([encoding]))[-1][0]
        for encoding in (encoded, replace_word(encoded, 6))
    )
    elsewhere = torch.arange(len(before)) != 6
    reads_context = not torch.equal(before[elsewhere], after[elsewhere])
    assert reads_context == load_family(name).new_network_reads_context


@pytest.mark.parametrize("name", tiny.FAMILIES)
def test_padding_and_other_texts_of_the_batch_change_nothing(name: str) -> None:
    model, generator = tiny.model(name).eval(), torch.Generator().manual_seed(4)
    with torch.no_grad():
        for parameter in model.parameters():
            # Biases start at zero, and an LSTM with zero biases would ignore padding anyway.
            if parameter.dim() == 1:
                parameter.add_(torch.randn(parameter.shape, generator=generator), alpha=0.3)
    batch = encode_texts(name, TEXTS)
    layers = model.encode(batch)
    pooled = model.pool(layers, batch)
    for row, text in enumerate(TEXTS):
        single_batch = encode_texts(name, [text])
        single_layers = model.encode(single_batch)
        for expected, actual in zip(single_layers, layers, strict=True):
            torch.testing.assert_close(
                actual[row, : expected.shape[1]], expected[0], atol=1e-6, rtol=0.0
            )
        torch.testing.assert_close(
            pooled[row], model.pool(single_layers, single_batch)[0], atol=1e-6, rtol=0.0
        )


def has_gradient(parameter: torch.nn.Parameter) -> bool:
    return parameter.grad is not None and bool(parameter.grad.abs().sum() > 0)


@pytest.mark.parametrize("name", [*tiny.TRAINED, *tiny.CELLS])
def test_every_parameter_is_initialized_and_gets_a_gradient(name: str) -> None:
    config, model = tiny.model_config(name), tiny.model(name)
    sampler = tiny.sampler(name)
    unused_prefixes: tuple[str, ...] = ()
    if getattr(config.pretrain, "next_sentence_prediction", None) is False:
        unused_prefixes = ("pooler.", "nsp_head.")
    assert all(torch.isfinite(parameter).all() for parameter in model.parameters()), (
        "every parameter is initialized"
    )
    for index in range(min(40, sampler.set_epoch(0))):
        config.family.objective(model, sampler.get_batch(index), None).loss.backward()
        without_gradient = [
            parameter_name
            for parameter_name, parameter in model.named_parameters()
            if not parameter_name.startswith(unused_prefixes) and not has_gradient(parameter)
        ]
        if not without_gradient:
            break
    assert not without_gradient, "these parameters have no gradient"


@pytest.mark.parametrize("name", [*tiny.TRAINED, *tiny.CELLS])
def test_flops_inside_fused_layers_are_counted(name: str) -> None:
    """Forward and backward take at least six operations per token and weight of the body.

    Only an initial state without gradient takes less.
    """
    config, model = tiny.model_config(name), tiny.model(name)
    batch = tiny.batch(name, 0)
    matrix_weights = sum(
        p.numel() for p in model.modules_by_role()["body"].parameters() if p.dim() > 1
    )
    ratio = count_train_flops(model, config.family, batch) / batch.num_tokens / (6 * matrix_weights)
    assert 1.0 < ratio < 3.0


@pytest.mark.parametrize(
    "body_sizes",
    [
        [7],
        [3, 8],
        [n * n + 5 * n for n in range(1, 60)],
        [100 * n for n in range(1, 40)],
        [1, 2, 3, 4, 5000, 9000],
    ],
)
def test_the_chosen_width_is_closest_to_the_budget(
    body_sizes: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(budget, "_count_body_parameters", lambda family, config, vocab_size: config)
    family: Any = None
    for target in range(1, body_sizes[-1] + 50, 1 + body_sizes[-1] // 300):
        closest, difference = budget._closest_candidate(
            family, body_sizes, vocab_size=9, body_parameters=target
        )
        assert difference == abs(closest - target) == min(abs(body - target) for body in body_sizes)


@pytest.mark.parametrize("name", [*tiny.TRAINED, *tiny.mark_slow(tiny.CELLS)])
def test_one_batch_is_memorized(name: str) -> None:
    config = tiny.model_config(name)
    # The penalties would keep the loss up.
    overrides = {
        "architecture": {
            key: 0.0
            for key in ("activation_penalty", "temporal_activation_penalty")
            if hasattr(config.architecture, key)
        }
    }
    batch = tiny.batch(name, 0)
    losses = []
    # A tied softmax over few units between -1 and 1 takes longer.
    for learning_rate, steps in ((0.01, 150), (0.02, 1500)):
        loss = loss_after_training(
            tiny.model(name, **overrides),
            config.family.objective,
            batch,
            learning_rate=learning_rate,
            steps=steps,
        )
        losses.append(loss)
        if losses[-1] < 0.1:
            return
    pytest.fail(f"the loss is still {min(losses):.2f}")


def loss_after_training(
    model: Encoder, objective: Any, batch: Batch, *, learning_rate: float, steps: int
) -> float:
    """Train on one batch, until the loss is below 0.1 five times in a row, and return the loss."""
    optimizer = build_adamw(build_param_groups([[*model.parameters()]], weight_decay=0.0))
    for group in optimizer.param_groups:
        group["lr"] = learning_rate
    num_low_losses = 0
    for _ in range(steps):
        optimizer.zero_grad()
        loss = objective(model, batch, None).loss
        loss.backward()
        densify_gradients(optimizer)
        optimizer.step()
        num_low_losses = num_low_losses + 1 if float(loss.detach()) < 0.1 else 0
        if num_low_losses == 5:  # once could be chance
            break
    return float(loss.detach())


@pytest.mark.parametrize("name", tiny.FAMILIES)
def test_layer_groups_hold_every_parameter_once_except_pretraining_heads(name: str) -> None:
    model = tiny.model(name)
    grouped_ids = [id(parameter) for group in model.layer_groups() for parameter in group]
    modules = model.modules_by_role()
    head_ids = {id(parameter) for parameter in modules.get("head", torch.nn.Module()).parameters()}
    assert len(grouped_ids) == len(set(grouped_ids)) and not head_ids & set(grouped_ids)
    ungrouped_names = {
        parameter_name
        for parameter_name, parameter in model.named_parameters()
        if id(parameter) not in grouped_ids and id(parameter) not in head_ids
    }
    assert ungrouped_names <= {"mlm_bias", "nsp_head.weight", "nsp_head.bias"}


@pytest.mark.parametrize("parameters", [12_000, 100_000, 600_000, 2_000_000])
@pytest.mark.parametrize("name", [*tiny.TRAINED, *tiny.CELLS])
def test_bodies_are_within_five_percent_of_the_budget(name: str, parameters: int) -> None:
    model_config = tiny.model_config(name)
    config = match_parameter_budget(
        model_config.family, model_config.architecture, vocab_size=97, body_parameters=parameters
    )
    body = count_parameters_by_role(model_config.family.build(config, vocab_size=97))["body"]
    assert abs(body / parameters - 1) <= 0.05


def test_a_budget_that_no_width_can_meet_is_refused() -> None:
    model_config = tiny.model_config("gpt")
    with pytest.raises(InputError, match="no width of gpt"):
        match_parameter_budget(
            model_config.family, model_config.architecture, vocab_size=97, body_parameters=100
        )


def test_the_random_init_of_a_seed_is_always_the_same() -> None:
    first, second = tiny.model("bert"), tiny.model("bert")
    assert all(
        torch.equal(a, b)
        for a, b in zip(first.state_dict().values(), second.state_dict().values(), strict=True)
    )


def test_sampled_softmax_subtracts_the_log_of_the_expected_candidate_count() -> None:
    """The probability of an id is p = log((id + 2) / (id + 1)) / log(V + 1).

    Its expected count is 1 - exp(-p t), where t is the arrival time of the last candidate.
    """
    generator = torch.Generator().manual_seed(5)
    V, S = 99, 40
    x, weight, bias = (
        torch.randn(*shape, generator=generator) for shape in ((13, 7), (V, 7), (V,))
    )
    targets = torch.randint(V, (13,), generator=generator)
    probabilities = [np.log((word_id + 2) / (word_id + 1)) / np.log(V + 1) for word_id in range(V)]
    torch.manual_seed(3)
    arrival_times = [
        -np.log(float(uniform)) / probabilities[word_id]
        for word_id, uniform in enumerate(torch.rand(V))
    ]
    candidates = set(sorted(range(V), key=arrival_times.__getitem__)[:S])
    expected_counts = [
        1 - np.exp(-probabilities[word_id] * sorted(arrival_times)[S - 1]) for word_id in range(V)
    ]
    logits = (x @ weight.T + bias).double().numpy() - np.log(expected_counts)
    nats = 0.0
    for logits_V, target in zip(logits, targets.tolist(), strict=True):
        candidate_logits = [logits_V[word_id] for word_id in candidates | {target}]
        nats += np.log(np.exp(candidate_logits).sum()) - logits_V[target]
    torch.manual_seed(3)
    actual = float(sampled_softmax_nats((x, weight, bias), targets, num_samples=S))
    assert actual == pytest.approx(nats, rel=1e-5)


def test_candidates_are_distributed_like_sequential_draws_without_repeats() -> None:
    """The frequency of each word and the number of draws are those of drawing one by one."""
    probabilities = np.array([0.4, 0.25, 0.15, 0.1, 0.06, 0.04])
    S, num_trials = 3, 4000
    rng = np.random.default_rng(7)
    counts, expected_counts = np.zeros(6), np.zeros(6)
    expected_draws, draws = [], []
    torch.manual_seed(7)
    for _ in range(num_trials):
        words: list[int] = []
        num_draws = 0
        while len(words) < S:
            word = int(rng.choice(6, p=probabilities))
            num_draws += 1
            if word not in words:
                words.append(word)
        expected_counts[words] += 1
        expected_draws.append(num_draws)
        candidates, draws_needed = sample_without_replacement(
            torch.tensor(probabilities, dtype=torch.float32), S
        )
        assert len(set(candidates.tolist())) == S
        counts[candidates.numpy()] += 1
        draws.append(float(draws_needed))
    standard_error = np.sqrt(2 * 0.25 / num_trials)
    assert np.abs(counts - expected_counts).max() / num_trials < 4 * standard_error
    assert np.mean(draws) == pytest.approx(
        np.mean(expected_draws),
        abs=4 * np.sqrt((np.var(draws) + np.var(expected_draws)) / num_trials),
    )


def test_sampled_softmax_is_used_only_in_training() -> None:
    sampled_model = tiny.model("elmo", architecture={"softmax_samples": 20})
    config = tiny.model_config("elmo")
    batch = tiny.batch("elmo", 0)
    full_model = tiny.model("elmo", architecture={"softmax_samples": None})

    def loss(model: Encoder) -> float:
        return float(config.family.objective(model, batch, None).loss.detach())

    assert loss(sampled_model.eval()) == loss(full_model.eval())
    assert loss(sampled_model.train()) < loss(full_model.train())


@pytest.mark.parametrize("name", [*tiny.TRAINED, *tiny.CELLS])
def test_scores_do_not_depend_on_the_order_of_texts(name: str) -> None:
    family, model = tiny.model_config(name).family, tiny.model(name).eval()
    scores = family.score_texts(model, tiny.tokenizer(name), TEXTS, limit=None)
    scores_of_reversed = family.score_texts(model, tiny.tokenizer(name), TEXTS[::-1], limit=None)[
        ::-1
    ]
    # A text has hundreds of nats, where neighbouring fp32 numbers differ by more than 1e-6. The
    # tolerance is therefore a few such steps.
    np.testing.assert_allclose(
        scores, scores_of_reversed, atol=0.0, rtol=4 * np.finfo(np.float32).eps
    )
    assert (scores[:, 0] < 0).all()


@pytest.mark.parametrize("name", [*tiny.TRAINED, *tiny.CELLS])
def test_a_uniform_model_gives_all_texts_the_same_nats_per_token(name: str) -> None:
    """The divisor counts exactly the tokens whose nats are summed.

    Otherwise longer texts would look more probable.
    """
    family, model = tiny.model_config(name).family, tiny.model(name).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.zero_()
    nats, token_counts = family.score_texts(
        model, tiny.tokenizer(name), ["the", *TEXTS], limit=None
    ).T
    assert len(set(token_counts)) > 1 and token_counts.min() >= 1
    np.testing.assert_allclose(nats / token_counts, nats[0] / token_counts[0], rtol=1e-5)


def test_gpt_scores_are_the_log_probability_of_the_text() -> None:
    model, tokenizer = tiny.model("gpt").eval(), tiny.tokenizer("gpt")
    scores = tiny.model_config("gpt").family.score_texts(model, tokenizer, TEXTS[:3], limit=None)[
        :, 0
    ]
    for text, score in zip(TEXTS[:3], scores, strict=True):
        encoded = tokenizer.encode(text)
        batch = tokenizer.collate([encoded])
        log_p = torch.log_softmax(model.logits(model.encode(batch)[-1][0]), -1)
        expected = sum(
            float(log_p[t - 1, encoded.ids[t]].detach()) for t in range(1, len(encoded.ids) - 1)
        )
        assert score == pytest.approx(expected, rel=1e-5)
