"""Which layers are read and how they are mixed, by a linear reader and by a network alike, and what the report says of it."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from flows.profiles import merge_params
from lineage.artifacts import write_json
from lineage.config.checks import check_study
from lineage.config.params import Params, parse_params
from lineage.config.study import load_model_config
from lineage.data.task_data import TaskData
from lineage.errors import InputError
from lineage.evaluation import linear_probe
from lineage.evaluation.answers import LabelAnswer
from lineage.evaluation.bilstm_probe import (
    BilstmProbe,
    CachedFeatures,
    bilstm_probe_objective,
    fit_bilstm_probe,
)
from lineage.evaluation.encoding import encode_items
from lineage.evaluation.evaluate import evaluate_runs, list_runs
from lineage.evaluation.linear_probe import fit_linear_probe, select_layers
from lineage.evaluation.settings import (
    FEATURE_DESCRIPTIONS,
    WHOLE_NETWORK,
    BilstmProbeSettings,
    LinearProbeSettings,
)
from lineage.evaluation.systems import EncoderUnderTest, EvalContext
from lineage.models.layers.scalar_mix import ScalarMix
from lineage.report.notes import format_notes
from stages import publish
from tests import tiny
from tests.test_joined import SETTINGS, TABLES, setting
from tests.test_networks import texts

HERE = Path(__file__).resolve().parent.parent
FROZEN = LinearProbeSettings(l2=0.001, max_iter=60)
ANSWER = LabelAnswer(("a", "b"))
D, S = 5, 3  # units of a model's layers, and of a static vector


def drawn(*, static: int = 0) -> tuple[CachedFeatures, np.ndarray]:
    """Two layers of features over thirty texts, of which the first says nothing and the second the label, and the labels."""
    reader, table, rng = tiny.reader("bert"), texts(30), np.random.default_rng(6)
    items, gold = encode_items(table, reader, max_length=None, language="en"), ANSWER.labels(table)
    found = []
    for item, label in zip(items, gold, strict=True):
        layers_TLD = rng.normal(size=(len(item.encoded.ids), 2, D + static))
        layers_TLD[:, 1, 0] += 3 * (2 * label - 1)
        layers_TLD[:, 0, D - 2 : D] = 0  # the first is a narrower layer
        layers_TLD[:, 1, D:] = layers_TLD[:, 0, D:]
        found.append((layers_TLD.astype(np.float32),))
    return CachedFeatures(reader, items, found, "mean", static_size=static), gold


def network(**more: Any) -> BilstmProbe:
    items, gold = drawn()
    return fit_bilstm_probe(
        items, gold, ANSWER, replace(tiny.NETWORK, epochs=4, **more), seed=1, device=tiny.CPU
    )


def test_the_l2_of_a_network_pulls_the_mix_to_the_mean_of_the_layers() -> None:
    free, little, pulled = (
        float(torch.softmax(network(scalar_mix_l2=l2).scalar_mix.weights.detach(), 0).max())
        for l2 in (0.0, 0.001, 10.0)
    )
    assert free > little > pulled and free > 0.55 and pulled < 0.51
    assert torch.equal(
        network().output_layer.weight, network(scalar_mix_l2=0.0).output_layer.weight
    ), "and none, where none is asked for"


def test_the_l2_of_a_network_is_added_to_the_mean_loss_and_is_of_the_raw_weights() -> None:
    items, gold = drawn()
    batch, found = items.make_batch(np.arange(4), gold[:4]), []
    for l2 in (0.0, 0.3):
        model = BilstmProbe(ANSWER, replace(tiny.NETWORK, scalar_mix_l2=l2), items, seed=1)
        with torch.no_grad():
            model.scalar_mix.weights.copy_(torch.tensor([0.7, -1.1]))
        out = bilstm_probe_objective(model, batch)
        (gradient,) = torch.autograd.grad(out.loss, model.scalar_mix.weights)
        found.append((out.loss.detach(), gradient, out.nats["task"]))
    (loss, gradient, nats), (more, steeper, same) = found
    assert float(more - loss) == pytest.approx(0.3 * (0.7**2 + 1.1**2), abs=1e-6) and torch.equal(
        nats, same
    )
    torch.testing.assert_close(steeper - gradient, 0.6 * torch.tensor([0.7, -1.1]))


def test_the_l2_of_a_linear_reader_pulls_the_mix_to_the_mean_of_the_layers(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    made: list[ScalarMix] = []

    class Kept(ScalarMix):
        def __init__(self, *layers: int, **how: Any) -> None:
            super().__init__(*layers, **how)
            made.append(self)

    monkeypatch.setattr(linear_probe, "ScalarMix", Kept)
    items, gold = drawn()
    features = np.stack([layers.mean(0, dtype=np.float32) for (layers,) in items.layers])

    def highest(**more: Any) -> tuple[float, np.ndarray]:
        said = fit_linear_probe(features, gold, ANSWER, replace(FROZEN, l2=0.01, **more), seed=0)(
            features
        )
        return float(torch.softmax(made[-1].weights.detach(), 0).max()), said

    (free, _), (own, as_own), (also, as_also), (pulled, _) = (
        highest(scalar_mix_l2=0.0),
        highest(),
        highest(scalar_mix_l2=0.01),
        highest(scalar_mix_l2=10.0),
    )
    assert free > 0.95 and free - own > 0.02 and pulled < 0.51
    assert own == also and np.array_equal(as_own, as_also), "none is the reader's own"


@pytest.mark.parametrize("settings", [FROZEN, tiny.NETWORK])
def test_an_l2_below_zero_is_refused(settings: LinearProbeSettings | BilstmProbeSettings) -> None:
    assert replace(settings, scalar_mix_l2=0.0).scalar_mix_l2 == 0
    with pytest.raises(ValueError, match="mix_l2 is -1"):
        replace(settings, scalar_mix_l2=-1.0)


def test_a_network_has_a_scale_of_the_mix_where_one_is_asked_for() -> None:
    names = [
        {name for name, _ in network(**how).named_parameters() if name.startswith("scalar_mix")}
        for how in ({}, {"learn_gamma": False})
    ]
    assert names == [{"scalar_mix.weights", "scalar_mix.gamma"}, {"scalar_mix.weights"}]


@pytest.mark.parametrize("static", [0, S])
def test_layer_norm_of_a_network_is_one_number_a_layer_of_the_training_items(static: int) -> None:
    """And one of the static vectors; what fills up a narrow layer does not count."""
    items, _ = drawn(static=static)
    model = BilstmProbe(ANSWER, replace(tiny.NETWORK, layer_norm=True), items, seed=1)
    every = np.concatenate([layers for (layers,) in items.layers]).astype(np.float64)
    for layer, width in ((0, D - 2), (1, D)):
        for place in (slice(width), slice(D, D + static)):
            some = every[:, layer, place]
            if some.size:
                np.testing.assert_allclose(
                    model.mean_LD[layer, place].numpy(), some.mean(), atol=1e-5
                )
                np.testing.assert_allclose(
                    model.std_LD[layer, place].numpy(), some.std(), atol=1e-5
                )
    assert not (
        (torch.from_numpy(every[:, 0, D - 2 : D]) - model.mean_LD[0, D - 2 : D])
        / model.std_LD[0, D - 2 : D]
    ).any(), "zeros stay zeros"


@pytest.mark.usefixtures("never_trained")
@pytest.mark.parametrize("features", FEATURE_DESCRIPTIONS)
def test_a_network_reads_the_layers_that_are_named_and_the_same_static_vector_behind_them(
    features: Any,
) -> None:
    plain = setting("text_classification")
    settings = replace(
        plain.settings, bilstm_probe=replace(plain.settings.bilstm_probe, features=features)
    )
    every, found = (
        EncoderUnderTest(replace(plain, settings=some), "random").cached_features["train"]
        for some in (SETTINGS, settings)
    )
    assert found.static_size == every.static_size > 0
    for (whole,), (read,) in zip(every.layers, found.layers, strict=True):
        assert np.array_equal(
            read[..., : -found.static_size],
            select_layers(whole[..., : -found.static_size], settings.bilstm_probe),
        )
        assert np.array_equal(read[:, 0, -found.static_size :], whole[:, 0, -found.static_size :])
    gold = ANSWER.labels(TABLES["text_classification"])
    width = read.shape[-1]
    assert fit_bilstm_probe(
        found, gold, ANSWER, settings.bilstm_probe, seed=1, device=tiny.CPU
    ).mean_LD.shape == (1 if features != "scalar_mix" else 3, width)


@pytest.mark.parametrize(
    ("name", "features", "reason"),
    [
        ("bert", "concat_last_4", ""),
        ("glove", "second_to_last", "set evaluate.bilstm_probe.features"),
    ],
)
def test_rows_of_networks_say_what_was_read(
    name: str, features: Any, reason: str, tmp_path: Path
) -> None:
    facts = {"name": "x", "kind": "text_classification", "answer": "label", "labels": ["a", "b"], "metric": ["accuracy"], "language": "en",
             "probes": ["linear", "bilstm"]}  # fmt: skip
    table = TABLES["text_classification"].assign(id=[f"train-{i}" for i in range(12)], group="all")
    how = replace(SETTINGS, bilstm_probe=replace(SETTINGS.bilstm_probe, features=features))
    found = EvalContext(
        tiny.checkpoint(name),
        TaskData(facts, {"train": table, "test": table}),
        how,
        0,
        1000,
        "fp32",
        tiny.CPU,
    )
    some = [
        cell for cell in list_runs(facts, ("random",), ("all",), (0,)) if cell.transfer == "frozen"
    ]
    rows, _ = evaluate_runs(found, some, cache_dir=tmp_path, report_progress=lambda *_: None)
    assert {(row.head, row.features, row.status) for row in rows} == {
        ("linear", "scalar_mix", "ok"),
        ("bilstm", features, "failed" if reason else "ok"),
    }
    assert all(reason in format_notes(row.reason) for row in rows if row.status == "failed")


def study(**over: Any) -> Params:
    return parse_params(merge_params(tiny.shipped(), over), "params.yaml")


def test_members_of_an_ensemble_are_read_alike_under_networks_too() -> None:
    grid = {
        "models": ["gpt", "elmo"],
        "adapt_models": [],
        "adapt_tasks": [],
        "ensembles": {"duet": ["gpt", "elmo"]},
        "ablation_of": {},
    }
    check_study(study(grid=grid))
    with pytest.raises(
        InputError, match=r"grid\.ensembles\.duet: its members have different features or pooling"
    ):
        check_study(
            study(grid=grid, models={"gpt": {"evaluate": {"bilstm_probe": {"features": "last"}}}})
        )


def test_what_is_read_in_parts_is_never_too_long_for_a_model() -> None:
    over: dict[str, Any] = {"models": {"gpt": {"pretrain": {"seq_len": 40}}}}
    over["tasks"] = {name: {"max_tokens": 64} for name in ("entities", "sense", "sentiment")}
    grid = {
        "models": ["gpt"],
        "adapt_models": [],
        "adapt_tasks": [],
        "ensembles": {},
        "ablation_of": {},
    }
    check_study(study(grid=grid | {"tasks": ["entities", "sense"]}, **over))
    with pytest.raises(
        InputError,
        match=r"models\.gpt\.pretrain\.seq_len: 40 is less than tasks\.sentiment\.max_tokens",
    ):
        check_study(study(grid=grid | {"tasks": ["entities", "sentiment"]}, **over))


FAMILIES = ("word2vec", "elmo", "ulmfit", "gpt", "bert", "taglm", "context2vec", "sa_lstm")


@pytest.mark.parametrize(
    ("family", "evaluate", "networks", "said"),
    [
        ("elmo", {}, True, "weighted sum of all layers, each text from a zero state"),
        ("elmo", {"linear_probe": {"features": "last"}}, False, "the top layer, each text from a zero state"),
        ("elmo", {"linear_probe": {"features": "last"}}, True, "the top layer, each text from a zero state; under a network, weighted sum of all layers"),
        ("elmo", {"finetune": {"pooling": "mean"}}, False, "weighted sum of all layers, each text from a zero state; whole network, mean of the pieces"),
        ("bert", {"finetune": {"pooling": "mean"}}, False, "whole network, mean of the pieces"),
        ("bert", {"linear_probe": {"features": "concat_last_4"}}, False, "whole network, [CLS]; frozen, the last four layers, joined"),
        ("bert", {"bilstm_probe": {"features": "concat_last_4"}}, True, "whole network, [CLS]; under a network, the last four layers, joined"),
        ("bert", {"bilstm_probe": {"features": "concat_last_4"}}, False, "whole network, [CLS]"),
        ("bert", {"linear_probe": {"features": "embeddings"}, "bilstm_probe": {"features": "embeddings"}, "finetune": {"pooling": "mean"}}, True,
         "whole network, mean of the pieces; frozen, the embeddings"),
    ],
)  # fmt: skip
def test_the_table_of_mechanisms_follows_how_a_variant_is_read(
    family: str,
    evaluate: dict[str, Any],
    networks: bool,
    said: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The records, of which trainings depend, stay what they are."""
    tasks = {"sense": {"probes": ["linear", "bilstm"] if networks else ["linear"]}}
    grid = {"models": [*FAMILIES], "tasks": ["sense"], "adapt_models": [], "adapt_tasks": []}
    plain, params = (
        study(grid=grid, tasks=tasks, models=models)
        for models in ({}, {family: {"evaluate": evaluate}})
    )
    monkeypatch.chdir(tmp_path)
    publish.MODEL_RECORDS_DIR.mkdir(parents=True)
    for name in FAMILIES:
        assert load_model_config(params, name).mechanism == load_model_config(plain, name).mechanism
        write_json(
            publish.MODEL_RECORDS_DIR / f"{name}.json",
            {"mechanism": load_model_config(params, name).mechanism},
        )
    before, after = (
        {line["model"]: line for line in publish.describe_models(some)} for some in (plain, params)
    )
    assert after[family]["transfer"] == said
    assert after == before | {family: before[family] | {"transfer": said}}
    assert before == {
        name: {"model": name} | load_model_config(plain, name).mechanism for name in FAMILIES
    }, "nothing is told where nothing is switched"


def test_no_family_words_its_transfer_in_another_way_than_readings_are_told_in() -> None:
    for name in tiny.FAMILIES:
        text = tiny.variant(name).mechanism["transfer"]
        assert ("all layers" in text) == text.startswith(FEATURE_DESCRIPTIONS["scalar_mix"]) and (
            "network" in text
        ) == text.startswith(WHOLE_NETWORK), name


def test_the_papers_block_reads_elmo_and_bert_as_their_tables_did() -> None:
    models = tiny.composed("paper")["models"]
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
