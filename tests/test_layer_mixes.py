"""Linear and BiLSTM probes select and mix layers as configured."""

from dataclasses import replace
from pathlib import Path
from typing import Any, get_args

import numpy as np
import pytest
import torch

from lineage.answers.label import LabelAnswer
from lineage.config.params import Params, parse_params
from lineage.config.resolve import merge_trees
from lineage.data.task_data import TaskData
from lineage.errors import InputError
from lineage.methods import linear_probe
from lineage.methods.bilstm_probe import BilstmProbe, BilstmProbeMethod, bilstm_probe_objective
from lineage.methods.cached_features import CachedFeatures
from lineage.methods.encoder import EncoderUnderTest
from lineage.methods.linear_probe import LinearProbeMethod, fit_linear_probe
from lineage.methods.stored_features import Features, select_layers
from lineage.networks.layers.scalar_mix import ScalarMix
from lineage.report.notes import format_notes
from lineage.study.checks import check_study
from lineage.tasks.info import TaskInfo
from tests.helpers import tiny
from tests.helpers.answer_cases import labelled_texts
from tests.helpers.fitting import fit_bilstm_probe
from tests.helpers.joined_features import SETTINGS, TABLES, build_eval_context

FROZEN = LinearProbeMethod(trials=(), l2=0.001, max_iter=60)
ANSWER = LabelAnswer(("a", "b"))
D, S = 5, 3  # widths of a model's layers and of a static vector


def build_features(*, static_size: int = 0) -> tuple[CachedFeatures, np.ndarray]:
    """Return features of thirty texts and their labels; only the second of two layers is useful."""
    tokenizer = tiny.tokenizer("bert")
    table = labelled_texts(30)
    rng = np.random.default_rng(6)
    items = tiny.encode("bert", table)
    labels = ANSWER.labels(table)
    features = []
    for item, label in zip(items, labels, strict=True):
        layers_TLD = rng.normal(size=(len(item.encoded.ids), 2, D + static_size))
        layers_TLD[:, 1, 0] += 3 * (2 * label - 1)
        layers_TLD[:, 0, D - 2 : D] = 0  # the first layer is narrower
        layers_TLD[:, 1, D:] = layers_TLD[:, 0, D:]
        features.append((layers_TLD.astype(np.float32),))
    return CachedFeatures(tokenizer, items, features, "mean", static_size=static_size), labels


def fit_probe(**settings: Any) -> BilstmProbe:
    features, labels = build_features()
    return fit_bilstm_probe(
        features, labels, ANSWER, replace(tiny.BILSTM_PROBE, epochs=4, **settings)
    )


def test_scalar_mix_l2_of_a_bilstm_probe_pulls_the_mix_to_the_mean_of_the_layers() -> None:
    without_l2, small_l2, large_l2 = (
        float(torch.softmax(fit_probe(scalar_mix_l2=l2).scalar_mix.weights.detach(), 0).max())
        for l2 in (0.0, 0.001, 10.0)
    )
    assert without_l2 > small_l2 > large_l2
    assert without_l2 > 0.55 and large_l2 < 0.51
    assert torch.equal(
        fit_probe().output_layer.weight, fit_probe(scalar_mix_l2=0.0).output_layer.weight
    ), "the default has no L2"


def test_scalar_mix_l2_of_a_bilstm_probe_penalizes_the_raw_weights() -> None:
    features, labels = build_features()
    batch = features.make_batch(np.arange(4), labels[:4])
    results = []
    for l2 in (0.0, 0.3):
        model = BilstmProbe(ANSWER, replace(tiny.BILSTM_PROBE, scalar_mix_l2=l2), features, seed=1)
        with torch.no_grad():
            model.scalar_mix.weights.copy_(torch.tensor([0.7, -1.1]))
        output = bilstm_probe_objective(model, batch)
        (gradient,) = torch.autograd.grad(output.loss, model.scalar_mix.weights)
        results.append((output.loss.detach(), gradient, output.nats["task"]))
    (loss, gradient, nats), (loss_with_l2, gradient_with_l2, nats_with_l2) = results
    assert float(loss_with_l2 - loss) == pytest.approx(0.3 * (0.7**2 + 1.1**2), abs=1e-6)
    assert torch.equal(nats, nats_with_l2)
    torch.testing.assert_close(gradient_with_l2 - gradient, 0.6 * torch.tensor([0.7, -1.1]))


def test_scalar_mix_l2_of_a_linear_probe_pulls_the_mix_to_the_mean_of_the_layers(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    created_mixes: list[ScalarMix] = []

    class RecordedMix(ScalarMix):
        def __init__(self, *layers: int, **options: Any) -> None:
            super().__init__(*layers, **options)
            created_mixes.append(self)

    monkeypatch.setattr(linear_probe, "ScalarMix", RecordedMix)
    cached, labels = build_features()
    features = np.stack([layers.mean(0, dtype=np.float32) for (layers,) in cached.layers])

    def fit_with(**settings: Any) -> tuple[float, np.ndarray]:
        """Fit a probe, and return its largest layer weight and its scores."""
        probe_settings = replace(FROZEN, l2=0.01, **settings)
        scores = fit_linear_probe(features, labels, ANSWER, probe_settings, seed=0)(features)
        return float(torch.softmax(created_mixes[-1].weights.detach(), 0).max()), scores

    without_l2, _ = fit_with(scalar_mix_l2=0.0)
    default, default_scores = fit_with()
    explicit, explicit_scores = fit_with(scalar_mix_l2=0.01)
    large_l2, _ = fit_with(scalar_mix_l2=10.0)
    assert without_l2 > 0.95 and without_l2 - default > 0.02 and large_l2 < 0.51
    assert default == explicit, "the default is the L2 of the probe"
    assert np.array_equal(default_scores, explicit_scores)


@pytest.mark.parametrize("settings", [FROZEN, tiny.BILSTM_PROBE])
def test_a_negative_l2_is_refused(settings: LinearProbeMethod | BilstmProbeMethod) -> None:
    assert replace(settings, scalar_mix_l2=0.0).scalar_mix_l2 == 0
    with pytest.raises(ValueError, match="mix_l2 is -1"):
        replace(settings, scalar_mix_l2=-1.0)


def test_a_bilstm_probe_has_gamma_only_if_learn_gamma_is_set() -> None:
    names = [
        {
            name
            for name, _ in fit_probe(**settings).named_parameters()
            if name.startswith("scalar_mix")
        }
        for settings in ({}, {"learn_gamma": False})
    ]
    assert names == [{"scalar_mix.weights", "scalar_mix.gamma"}, {"scalar_mix.weights"}]


@pytest.mark.parametrize("static_size", [0, S])
def test_layer_norm_of_a_bilstm_probe_has_one_mean_and_deviation_per_layer(
    static_size: int,
) -> None:
    """Static vectors have their own, and the padding of a narrow layer is ignored."""
    features, _ = build_features(static_size=static_size)
    model = BilstmProbe(ANSWER, replace(tiny.BILSTM_PROBE, layer_norm=True), features, seed=1)
    all_layers = np.concatenate([layers for (layers,) in features.layers]).astype(np.float64)
    for layer, width in ((0, D - 2), (1, D)):
        for units in (slice(width), slice(D, D + static_size)):
            values = all_layers[:, layer, units]
            if values.size:
                np.testing.assert_allclose(
                    model.mean_LD[layer, units].numpy(), values.mean(), atol=1e-5
                )
                np.testing.assert_allclose(
                    model.std_LD[layer, units].numpy(), values.std(), atol=1e-5
                )
    padding = torch.from_numpy(all_layers[:, 0, D - 2 : D])
    normalized = (padding - model.mean_LD[0, D - 2 : D]) / model.std_LD[0, D - 2 : D]
    assert not normalized.any(), "zeros stay zeros"


@pytest.mark.usefixtures("without_weights")
@pytest.mark.parametrize("features", get_args(Features))
def test_a_bilstm_probe_uses_the_selected_layers_followed_by_the_static_vector(
    features: Any,
) -> None:
    context = build_eval_context("text_classification")
    settings = replace(
        context.settings, bilstm_probe=replace(context.settings.bilstm_probe, features=features)
    )
    all_layers, selected = (
        tiny.cached_features(EncoderUnderTest(replace(context, settings=eval_settings), "random"))[
            "train"
        ]
        for eval_settings in (SETTINGS, settings)
    )
    assert selected.static_size == all_layers.static_size > 0
    for (all_layers_TLD,), (selected_TLD,) in zip(all_layers.layers, selected.layers, strict=True):
        assert np.array_equal(
            selected_TLD[..., : -selected.static_size],
            select_layers(
                all_layers_TLD[..., : -selected.static_size], features, block="bilstm_probe"
            ),
        )
        assert np.array_equal(
            selected_TLD[:, 0, -selected.static_size :],
            all_layers_TLD[:, 0, -selected.static_size :],
        )
    labels = ANSWER.labels(TABLES["text_classification"])
    width = selected_TLD.shape[-1]
    assert fit_bilstm_probe(selected, labels, ANSWER, settings.bilstm_probe).mean_LD.shape == (
        1 if features != "scalar_mix" else 3,
        width,
    )


@pytest.mark.parametrize(
    ("name", "features", "reason"),
    [
        ("bert", "concat_last_4", ""),
        ("glove", "second_to_last", "set evaluate.bilstm_probe.features"),
    ],
)
def test_rows_of_bilstm_probes_name_the_features(
    name: str, features: Any, reason: str, tmp_path: Path
) -> None:
    task_info = TaskInfo(name="x", kind="text_classification", labels=["a", "b"], metric=["accuracy"], language="en", probes=["linear", "bilstm"])  # fmt: skip
    table = TABLES["text_classification"].assign(id=[f"train-{i}" for i in range(12)], group="all")
    settings = replace(SETTINGS, bilstm_probe=replace(SETTINGS.bilstm_probe, features=features))
    context = tiny.eval_context(
        name, TaskData(task_info, {"train": table, "validation": table, "test": table}), settings
    )
    runs = [*tiny.list_runs(task_info, ("random",), ("all",), (0,), method="_probe")]
    rows, *_ = tiny.evaluate_runs(context, runs, tmp_path)
    assert {(row.head, row.features, row.status) for row in rows} == {
        ("linear", "scalar_mix", "ok"),
        ("bilstm", features, "failed" if reason else "ok"),
    }
    assert all(reason in format_notes(row.reason) for row in rows if row.status == "failed")


def parse_study(**overrides: Any) -> Params:
    return parse_params(merge_trees(tiny.demo_params(), overrides), "params.yaml")


def test_members_of_an_ensemble_need_the_same_bilstm_features() -> None:
    grid = {
        "models": ["gpt", "elmo"],
        "adapt_models": [],
        "adapt_tasks": [],
        "ensembles": {"duet": ["gpt", "elmo"]},
        "ablation_of": {},
    }
    check_study(parse_study(grid=grid))
    with pytest.raises(
        InputError, match=r"grid\.ensembles\.duet: its members have different features or pooling"
    ):
        check_study(
            parse_study(
                grid=grid, models={"gpt": {"evaluate": {"bilstm_probe": {"features": "last"}}}}
            )
        )


def test_only_tasks_that_are_not_read_in_parts_can_be_too_long_for_a_model() -> None:
    overrides: dict[str, Any] = {"models": {"gpt": {"pretrain": {"seq_len": 40}}}}
    overrides["tasks"] = {name: {"max_words": 64} for name in ("entities", "sense", "sentiment")}
    grid = {
        "models": ["gpt"],
        "adapt_models": [],
        "adapt_tasks": [],
        "ensembles": {},
        "ablation_of": {},
    }
    check_study(parse_study(grid=grid | {"tasks": ["entities", "sense"]}, **overrides))
    with pytest.raises(
        InputError,
        match=r"models\.gpt\.pretrain\.seq_len: 40 is less than tasks\.sentiment\.max_words",
    ):
        check_study(parse_study(grid=grid | {"tasks": ["entities", "sentiment"]}, **overrides))


def test_the_study_paper_uses_the_features_of_the_elmo_and_bert_papers() -> None:
    models = tiny.study_params("paper")["models"]
    elmo, bert = (models[name]["evaluate"] for name in ("elmo", "bert"))
    for block in ("linear_probe", "bilstm_probe"):
        keys = ("learn_gamma", "layer_norm", "scalar_mix_l2")
        assert {key: elmo[block][key] for key in keys} == {
            "learn_gamma": True,
            "layer_norm": False,
            "scalar_mix_l2": 0.001,
        }
    assert (bert["bilstm_probe"]["features"], bert["bilstm_probe"]["num_layers"]) == (
        "concat_last_4",
        2,
    )
