"""Task networks of several layers, and where a language model's features join what is made of static vectors: written out by hand."""

import dataclasses
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from flows.profiles import merge_params
from lineage.config.checks import check_study
from lineage.config.params import parse_params
from lineage.errors import InputError
from lineage.evaluation.bilstm_probe import (
    BilstmProbe,
    CachedFeatures,
    FeatureBatch,
    cache_features,
    fit_bilstm_probe,
    predict_bilstm_probe,
)
from lineage.evaluation.encoding import answer_rows, encode_items
from lineage.evaluation.result_rows import build_predictions, mean_values, result_rows
from lineage.evaluation.settings import BilstmProbeSettings
from lineage.evaluation.systems import EvalRun
from lineage.evaluation.trials import RunPredictions
from tests import tiny
from tests.by_hand import assert_gradients_are_central_differences, nats, numbers, part, plain_step
from tests.test_joined import joined, setting
from tests.test_networks import CASES

HERE = Path(__file__).resolve().parent.parent
JOINS = ("input", "first", "second")
L, D, S, H = (
    2,
    5,
    3,
    4,
)  # layers, units of a language model's, of a static vector, and of a direction


def settings(join: str, *, layers: int = 2, **more: Any) -> BilstmProbeSettings:
    return dataclasses.replace(tiny.NETWORK, num_layers=layers, join=join, **more)


def small(case: str, join: str) -> tuple[BilstmProbe, FeatureBatch, CachedFeatures]:
    """A network in double precision over three items with features that are drawn, and the three as a batch."""
    make, answer = CASES[case]
    reader, rng = tiny.reader("bert"), np.random.default_rng(6)
    items = encode_items(make(3), reader, max_length=None, language="en")
    drawn = []
    for item in items:
        layers_TLD = rng.normal(size=(len(item.encoded.ids), L, D + S)).astype(np.float32)
        layers_TLD[:, 1:, D:] = layers_TLD[:, :1, D:]
        drawn.append((layers_TLD,))
    like = CachedFeatures(reader, items, drawn, "mean", static_size=S)
    network = BilstmProbe(answer, settings(join, hidden_size=H), like, seed=1)
    draw = torch.Generator().manual_seed(2)
    with torch.no_grad():
        for parameter in network.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=draw) * 0.5)
    batch = like.make_batch(np.arange(3), answer.labels(make(3)))
    assert batch.layers_BTLD is not None and len(set(batch.mask_BT.sum(1).tolist())) > 1, (
        "else padding is not tried"
    )
    return (
        network.double(),
        dataclasses.replace(batch, layers_BTLD=batch.layers_BTLD.double()),
        like,
    )


def by_hand(
    network: BilstmProbe, p: dict[str, np.ndarray], like: CachedFeatures, join: str
) -> np.ndarray:
    """(M, K): each item alone; of tags a word is the mean of its pieces, of a text each unit's highest value over its pieces is read."""
    mean_LD, deviation_LD = network.mean_LD.numpy(), network.std_LD.numpy()
    share_L = np.exp(p["scalar_mix.weights"]) / np.exp(p["scalar_mix.weights"]).sum()
    found = []
    for item, (layers_TLD,) in zip(like.items, like.layers, strict=True):
        x_TLD = (layers_TLD.astype(float) - mean_LD) / deviation_LD
        lm = p["scalar_mix.gamma"] * sum(share_L[layer] * x_TLD[:, layer, :D] for layer in range(L))
        static = x_TLD[:, 0, D:]
        if item.word_pieces:
            place, word = item.word_pieces[0].T
            lm, static = (
                np.stack([x[place[word == one]].mean(0) for one in range(item.num_answers)])
                for x in (lm, static)
            )
        y = read(p, 0, np.concatenate([lm, static], 1) if join == "input" else static)
        y = np.concatenate([y, lm], 1) if join == "first" else y
        y = read(p, 1, y)
        y = np.concatenate([y, lm], 1) if join == "second" else y
        if not item.word_pieces:
            y = y[item.encoded.offsets[:, 1] > item.encoded.offsets[:, 0]].max(0, keepdims=True)
        found.append(y @ p["output_layer.weight"].T + p["output_layer.bias"])
    return np.concatenate(found)


def read(p: dict[str, np.ndarray], layer: int, x_TD: np.ndarray) -> np.ndarray:
    """(T, 2 H): from the left, and from the right."""
    sides = []
    for name, order in (
        ("forward_lstms", range(len(x_TD))),
        ("backward_lstms", range(len(x_TD))[::-1]),
    ):
        own = part(p, f"bilstm.{name}.{layer}")
        weights = {
            key: own[f"{key}_l0"] for key in ("weight_ih", "weight_hh", "bias_ih", "bias_hh")
        }
        state, outs = (np.zeros(H), np.zeros(H)), np.zeros((len(x_TD), H))
        for t in order:
            state = plain_step(x_TD[t], *state, weights)
            outs[t] = state[0]
        sides.append(outs)
    return np.concatenate(sides, 1)


@pytest.mark.parametrize("join", JOINS)
@pytest.mark.parametrize("case", ["tags", "text_classification"])
def test_two_layers_and_the_join_are_those_written_by_hand(case: str, join: str) -> None:
    """In both directions, of items of unlike length; of texts also the loss and the gradients of all weights."""
    network, batch, like = small(case, join)
    want = by_hand(network, numbers(network), like, join)
    np.testing.assert_allclose(network(batch).detach().numpy(), want, atol=1e-12)
    if case == "text_classification":
        assert batch.labels_M is not None
        gold = batch.labels_M.tolist()

        def loss(p: dict[str, np.ndarray]) -> float:
            return sum(
                nats(scores, label)
                for scores, label in zip(by_hand(network, p, like, join), gold, strict=True)
            )

        found = network.loss(batch)
        assert float(found.detach()) == pytest.approx(loss(numbers(network)), abs=1e-12)
        found.backward()
        assert_gradients_are_central_differences(network, loss)


@pytest.mark.parametrize("join", JOINS)
@pytest.mark.parametrize("case", CASES)
def test_each_join_reads_every_kind_of_item_alike_in_any_company(case: str, join: str) -> None:
    make, answer = CASES[case]
    table = make(12)
    whole = joined(
        encode_items(
            table, tiny.reader("bert"), max_length=None, language="en", symmetric=case == "pairs"
        ),
        "bert",
    )
    network = fit_bilstm_probe(
        whole,
        answer.labels(table),
        answer,
        settings(join, epochs=2, dropout=0.2),
        seed=1,
        device=tiny.CPU,
    )
    together, _ = predict_bilstm_probe(network, whole)
    for number in (0, 5, 11):
        alone, _ = predict_bilstm_probe(network, whole.select(np.array([number])))
        np.testing.assert_allclose(
            alone, together[answer_rows(whole.items)[number]], atol=1e-6, rtol=0
        )


def test_dropout_falls_once_on_what_each_layer_reads() -> None:
    """Of what a layer reads, a share is zero, the joined part's too: it is dropped with the output that it is joined to, and not before."""
    for join in JOINS:
        network, batch, _ = small("text_classification", join)
        network.dropout = network.bilstm.dropout = 0.4
        dropped: list[torch.Tensor] = []
        for layer in network.bilstm.forward_lstms:
            layer.register_forward_pre_hook(
                lambda _, inputs, dropped=dropped: dropped.append(inputs[0].detach())
            )
        network.output_layer.register_forward_pre_hook(
            lambda _, inputs, dropped=dropped: dropped.append(inputs[0].detach())
        )
        torch.manual_seed(3)
        network.train()
        for _ in range(60):
            network(batch)
        inputs = [torch.cat([x.flatten(0, -2) for x in dropped[place::3]]) for place in range(3)]
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


def test_features_without_static_vectors_are_the_input_wherever_others_join() -> None:
    table, answer = CASES["tags"][0](9), CASES["tags"][1]
    whole = cache_features(
        tiny.model("bert"),
        tiny.reader("bert"),
        encode_items(table, tiny.reader("bert"), max_length=None, language="en"),
        precision="fp32",
    )
    ends = [
        fit_bilstm_probe(
            whole, answer.labels(table), answer, settings(join, epochs=2), seed=1, device=tiny.CPU
        )
        for join in JOINS
    ]
    for network in ends[1:]:
        assert all(
            torch.equal(a, b)
            for a, b in zip(ends[0].parameters(), network.parameters(), strict=True)
        )


@pytest.mark.parametrize(("beside", "way", "recipe"), [
    (True, {}, "none"), (True, {"num_layers": 2}, "2 layers"), (True, {"num_layers": 2, "join": "first"}, "2 layers+joined at first"),
    (True, {"num_layers": 2, "join": "second"}, "2 layers+joined at second"), (True, {"join": "first"}, "joined at first"),
    (False, {"num_layers": 2, "join": "first"}, "2 layers"),
])  # fmt: skip
def test_rows_say_how_many_layers_there_are_and_where_features_join(
    beside: bool, way: dict[str, Any], recipe: str
) -> None:
    found = setting("text_classification")
    network = dataclasses.replace(found.settings.bilstm_probe, **way)
    static = found.static_context if beside else None
    found = dataclasses.replace(
        found,
        settings=dataclasses.replace(found.settings, bilstm_probe=network),
        static_context=static,
    )
    found.task.info.update({"answer": "label", "labels": ["a", "b"], "metric": ["accuracy"]})
    table = found.task.splits["train"].assign(id=[str(i) for i in range(12)], group="all")
    said: dict[str, Any] = {
        "label": ["a"] * 12,
        "prediction": ["a"] * 12,
        "score": 1.0,
        "correct": 1.0,
    }
    cells = [EvalRun("pretrained", "frozen", "all", 0, head) for head in ("linear", "bilstm")]
    told = [build_predictions(found, cell, "train", table, said) for cell in cells]
    assert [set(frame["recipe"]) for frame in told] == [{"none"}, {recipe}]
    rows = [
        row
        for cell, frame in zip(cells, told, strict=True)
        for row in result_rows(found, cell, RunPredictions(frame.assign(trial="chosen")), None)
    ]
    assert [row.recipe for row in rows] == ["none", recipe] and len(mean_values(rows)) == 2


@pytest.mark.parametrize(("network", "grid", "message"), [
    ({"join": "second"}, {}, "models.elmo.evaluate.bilstm_probe: join is second, and num_layers is 1; set num_layers: 2 or more, or join: input"),
    ({"num_layers": 0}, {}, "models.elmo.evaluate.bilstm_probe: num_layers is 0; it must be above zero"),
    ({"join": "third"}, {}, "models.elmo.evaluate.bilstm_probe.join: 'third' (str) is not one of input, first, second"),
    ({"num_layers": 2, "join": "first"}, {"join_models": [], "join_tasks": []},
     "models.elmo.evaluate.bilstm_probe.join: 'first' needs static vectors, but elmo is not in grid.join_models; name it there"),
])  # fmt: skip
def test_a_join_that_cannot_be_is_refused_before_anything_runs(
    network: dict[str, Any], grid: dict[str, Any], message: str
) -> None:
    def checked(network: dict[str, Any], grid: dict[str, Any]) -> None:
        over = {
            "grid": {"join_models": ["elmo"], "join_tasks": ["sense"]} | grid,
            "models": {"elmo": {"evaluate": {"bilstm_probe": network}}},
        }
        check_study(parse_params(merge_params(tiny.shipped(), over), "params.yaml"))

    with pytest.raises(InputError, match=re.escape(message)):
        checked(network, grid)
    checked({"num_layers": 2, "join": "first"}, {})
