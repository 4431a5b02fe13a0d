"""BiLSTM probes with several layers, and with each join of static vectors, match numpy."""

import dataclasses
import re
from typing import Any

import numpy as np
import pytest
import torch

from lineage.config.params import parse_params
from lineage.config.resolve import merge_trees
from lineage.errors import InputError
from lineage.evaluation.result_rows import mean_values, result_rows
from lineage.methods.base import build_predictions
from lineage.methods.bilstm_probe import BilstmProbe, BilstmProbeMethod, predict_bilstm_probe
from lineage.methods.cached_features import CachedFeatures, FeatureBatch
from lineage.methods.encoder import EvalRun
from lineage.methods.encoding import answer_rows
from lineage.methods.run_predictions import RunPredictions
from lineage.study.checks import check_study
from tests.helpers import tiny
from tests.helpers.answer_cases import CASES
from tests.helpers.by_hand import (
    arrays_with_prefix,
    assert_gradients_match_finite_differences,
    cross_entropy_nats,
    lstm_step,
    parameter_arrays,
)
from tests.helpers.fitting import cache_features, fit_bilstm_probe
from tests.helpers.joined_features import build_eval_context, cache_joined_features

JOINS = ("input", "first", "second")
# layers; size of language-model vectors, of static vectors, and of each LSTM direction
L, D, S, H = 2, 5, 3, 4


def probe_settings(join: str, *, layers: int = 2, **more: Any) -> BilstmProbeMethod:
    return dataclasses.replace(tiny.BILSTM_PROBE, num_layers=layers, join=join, **more)


def small_probe(case: str, join: str) -> tuple[BilstmProbe, FeatureBatch, CachedFeatures]:
    """Return a double-precision probe, a batch of three items, and their random features."""
    make_items, answer = CASES[case]
    tokenizer = tiny.tokenizer("bert")
    rng = np.random.default_rng(6)
    items = tiny.encode("bert", make_items(3))
    features = []
    for item in items:
        layers_TLD = rng.normal(size=(len(item.encoded.ids), L, D + S))
        layers_TLD[:, 1:, D:] = layers_TLD[:, :1, D:]
        features.append((layers_TLD,))
    cached = CachedFeatures(tokenizer, items, features, "mean", static_size=S)
    read = cached.pool_words() if case == "tags" else cached
    probe = BilstmProbe(answer, probe_settings(join, hidden_size=H), read, seed=1)
    generator = torch.Generator().manual_seed(2)
    with torch.no_grad():
        for parameter in probe.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=generator) * 0.5)
    batch = read.make_batch(np.arange(3), answer.labels(make_items(3)))
    assert batch.layers_LBTD is not None and len(set(batch.mask_BT.sum(1).tolist())) > 1, (
        "the batch must have padding"
    )
    return (
        probe.double(),
        dataclasses.replace(batch, layers_LBTD=batch.layers_LBTD.double()),
        cached,
    )


def by_hand(
    probe: BilstmProbe, p: dict[str, np.ndarray], cached: CachedFeatures, join: str
) -> np.ndarray:
    """Compute (M, K) scores item by item.

    A tagged word is the mean of its pieces; a text is the maximum of each unit over its pieces.
    """
    mean_LD = probe.mean_LD.numpy()
    deviation_LD = probe.std_LD.numpy()
    share_L = np.exp(p["scalar_mix.weights"]) / np.exp(p["scalar_mix.weights"]).sum()
    scores = []
    for item, (layers_TLD,) in zip(cached.items, cached.layers, strict=True):
        x_TLD = (layers_TLD.astype(float) - mean_LD) / deviation_LD
        lm = p["scalar_mix.gamma"] * sum(share_L[layer] * x_TLD[:, layer, :D] for layer in range(L))
        static = x_TLD[:, 0, D:]
        if item.word_pieces:
            positions, words = item.word_pieces[0].T
            lm, static = (
                np.stack(
                    [x[positions[words == number]].mean(0) for number in range(item.num_answers)]
                )
                for x in (lm, static)
            )
        y = bilstm_by_hand(p, 0, np.concatenate([lm, static], 1) if join == "input" else static)
        y = np.concatenate([y, lm], 1) if join == "first" else y
        y = bilstm_by_hand(p, 1, y)
        y = np.concatenate([y, lm], 1) if join == "second" else y
        if not item.word_pieces:
            y = y[item.encoded.offsets[:, 1] > item.encoded.offsets[:, 0]].max(0, keepdims=True)
        scores.append(y @ p["output_layer.weight"].T + p["output_layer.bias"])
    return np.concatenate(scores)


def bilstm_by_hand(p: dict[str, np.ndarray], layer: int, x_TD: np.ndarray) -> np.ndarray:
    """Return (T, 2 H): the left-to-right states, then the right-to-left ones."""
    outputs = []
    for name, positions in (
        ("forward_lstms", range(len(x_TD))),
        ("backward_lstms", range(len(x_TD))[::-1]),
    ):
        layer_weights = arrays_with_prefix(p, f"bilstm.{name}.{layer}")
        weights = {
            key: layer_weights[f"{key}_l0"]
            for key in ("weight_ih", "weight_hh", "bias_ih", "bias_hh")
        }
        state = (np.zeros(H), np.zeros(H))
        states = np.zeros((len(x_TD), H))
        for t in positions:
            state = lstm_step(x_TD[t], *state, weights)
            states[t] = state[0]
        outputs.append(states)
    return np.concatenate(outputs, 1)


@pytest.mark.parametrize("join", JOINS)
@pytest.mark.parametrize("case", ["tags", "text_classification"])
def test_two_layer_probes_with_each_join_match_numpy(case: str, join: str) -> None:
    """Items differ in length; for texts the loss and all gradients are checked too."""
    probe, batch, cached = small_probe(case, join)
    expected = by_hand(probe, parameter_arrays(probe), cached, join)
    np.testing.assert_allclose(probe(batch).detach().numpy(), expected, atol=1e-12)
    if case == "text_classification":
        assert batch.labels_M is not None
        labels = batch.labels_M.tolist()

        def loss(p: dict[str, np.ndarray]) -> float:
            return sum(
                cross_entropy_nats(scores, label)
                for scores, label in zip(by_hand(probe, p, cached, join), labels, strict=True)
            )

        actual = probe.loss(probe(batch), batch)
        assert float(actual.detach()) == pytest.approx(loss(parameter_arrays(probe)), abs=1e-12)
        actual.backward()
        assert_gradients_match_finite_differences(probe, loss)


@pytest.mark.parametrize("join", JOINS)
@pytest.mark.parametrize("case", CASES)
def test_predictions_of_each_join_do_not_depend_on_the_batch(case: str, join: str) -> None:
    make_items, answer = CASES[case]
    table = make_items(12)
    features = cache_joined_features(tiny.encode("bert", table, symmetric=case == "pairs"), "bert")
    if case == "tags":
        features = features.pool_words()
    probe = fit_bilstm_probe(
        features, answer.labels(table), answer, probe_settings(join, epochs=2, dropout=0.2)
    )
    together = predict_bilstm_probe(probe, features).outputs_MK
    for number in (0, 5, 11):
        alone = predict_bilstm_probe(probe, features.select(np.array([number]))).outputs_MK
        np.testing.assert_allclose(
            alone, together[answer_rows(features.items)[number]], atol=1e-6, rtol=0
        )


def test_dropout_is_applied_once_to_the_input_of_each_layer() -> None:
    """The joined features are dropped together with the output they are joined to, not before."""
    for join in JOINS:
        probe, batch, _ = small_probe("text_classification", join)
        probe.dropout = probe.bilstm.dropout = 0.4
        dropped: list[torch.Tensor] = []
        for layer in probe.bilstm.forward_lstms:
            layer.register_forward_pre_hook(
                lambda _, inputs, dropped=dropped: dropped.append(inputs[0].detach())
            )
        probe.output_layer.register_forward_pre_hook(
            lambda _, inputs, dropped=dropped: dropped.append(inputs[0].detach())
        )
        torch.manual_seed(3)
        probe.train()
        for _ in range(60):
            probe(batch)
        inputs = [
            torch.cat([x.flatten(0, -2) for x in dropped[layer_index::3]])
            for layer_index in range(3)
        ]
        widths = [x.shape[-1] for x in inputs]
        assert (
            widths
            == {
                "input": [D + S, 2 * H, 2 * H],
                "first": [S, 2 * H + D, 2 * H],
                "second": [S, 2 * H, 2 * H + D],
            }[join]
        )
        for x in inputs:
            zeros = (x == 0).float().mean(0)
            assert (zeros - 0.4).abs().max() < 0.12, (join, zeros)


def test_without_static_vectors_the_join_changes_nothing() -> None:
    table = CASES["tags"][0](9)
    answer = CASES["tags"][1]
    features = cache_features(
        tiny.model("bert"), tiny.tokenizer("bert"), tiny.encode("bert", table)
    ).pool_words()
    probes = [
        fit_bilstm_probe(features, answer.labels(table), answer, probe_settings(join, epochs=2))
        for join in JOINS
    ]
    for probe in probes[1:]:
        assert all(
            torch.equal(a, b)
            for a, b in zip(probes[0].parameters(), probe.parameters(), strict=True)
        )


@pytest.mark.parametrize(("has_static", "overrides", "recipe"), [
    (True, {}, "none"), (True, {"num_layers": 2}, "2 layers"), (True, {"num_layers": 2, "join": "first"}, "2 layers+joined at first"),
    (True, {"num_layers": 2, "join": "second"}, "2 layers+joined at second"), (True, {"join": "first"}, "joined at first"),
    (False, {"num_layers": 2, "join": "first"}, "2 layers"),
])  # fmt: skip
def test_the_recipe_names_the_number_of_layers_and_the_join(
    has_static: bool, overrides: dict[str, Any], recipe: str
) -> None:
    context = build_eval_context("text_classification")
    bilstm_settings = dataclasses.replace(context.settings.bilstm_probe, **overrides)
    static = context.static_context if has_static else None
    context = dataclasses.replace(
        context,
        settings=dataclasses.replace(context.settings, bilstm_probe=bilstm_settings),
        static_context=static,
    )
    info = dataclasses.replace(context.task.info, labels=["a", "b"], metric=["accuracy"])
    context = dataclasses.replace(context, task=dataclasses.replace(context.task, info=info))
    table = context.task.splits["train"].assign(id=[str(i) for i in range(12)], group="all")
    columns: dict[str, Any] = {
        "label": ["a"] * 12,
        "prediction": ["a"] * 12,
        "score": 1.0,
        "correct": 1.0,
    }
    runs = [EvalRun("pretrained", f"{name}_probe", "all", 0) for name in ("linear", "bilstm")]
    frames = [build_predictions(context, run, "train", table, columns) for run in runs]
    assert [set(frame["recipe"]) for frame in frames] == [{"none"}, {recipe}]
    rows = [
        row
        for run, frame in zip(runs, frames, strict=True)
        for row in result_rows(context, run, RunPredictions(frame.assign(trial="chosen")))
    ]
    assert [row.recipe for row in rows] == ["none", recipe] and len(mean_values(rows)) == 2


@pytest.mark.parametrize(("network", "grid", "message"), [
    ({"join": "second"}, {}, "models.elmo.evaluate.bilstm_probe: join is second, and num_layers is 1; set num_layers: 2 or more, or join: input"),
    ({"num_layers": 0}, {}, "models.elmo.evaluate.bilstm_probe: num_layers is 0; it must be above zero"),
    ({"join": "third"}, {}, "models.elmo.evaluate.bilstm_probe.join: 'third' (str) is not one of input, first, second"),
    ({"num_layers": 2, "join": "first"}, {"join_models": [], "join_tasks": []},
     "models.elmo.evaluate.bilstm_probe.join: 'first' needs static vectors, but elmo is not in grid.join_models; name it there"),
])  # fmt: skip
def test_an_impossible_join_is_refused_by_the_study_check(
    network: dict[str, Any], grid: dict[str, Any], message: str
) -> None:
    def check(network: dict[str, Any], grid: dict[str, Any]) -> None:
        overrides = {
            "grid": {"join_models": ["elmo"], "join_tasks": ["sense"]} | grid,
            "models": {"elmo": {"evaluate": {"bilstm_probe": network}}},
        }
        check_study(parse_params(merge_trees(tiny.demo_params(), overrides), "params.yaml"))

    with pytest.raises(InputError, match=re.escape(message)):
        check(network, grid)
    check({"num_layers": 2, "join": "first"}, {})
