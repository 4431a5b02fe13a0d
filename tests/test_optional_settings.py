"""Optional settings of probes, fine-tuning and BERT's pretraining work as configured."""

from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import MagicMock

import numpy as np
import pandas as pd
import pytest
import torch
from torch.nn import functional as F

from lineage.artifacts import create_artifact
from lineage.data.task_data import TaskData
from lineage.errors import EvaluationError, InputError
from lineage.methods import encoding
from lineage.methods.encoder import EncoderUnderTest, EvalRun
from lineage.methods.encoding import collate_items
from lineage.methods.finetuning import finetuning_objective
from lineage.methods.linear_probe import LinearProbeMethod, fit_linear_probe
from lineage.methods.stored_features import select_layers
from lineage.networks.base import with_dropout
from lineage.networks.batch import masked_mean
from lineage.tasks.info import TaskInfo
from lineage.training.objectives import auxiliary_lm_loss
from lineage.training.optimizers import BertAdam
from lineage.training.pretrain import TrainOutput, pretrain
from lineage.training.schedules import schedule_with_warmup
from lineage.training.train_run import TrainContext
from tests.helpers import tiny
from tests.helpers.fitting import (
    PLAIN_FINETUNE,
    extract_features,
    finetune,
    new_finetuned,
    predict_finetuned,
)
from tests.helpers.trainings import DEMO_PARAMS

FINETUNE = replace(PLAIN_FINETUNE, epochs=1, batch_size=5, learning_rate=0.005, ratio=1.0)
LINEAR_PROBE = LinearProbeMethod(trials=(), l2=0.001, max_iter=60)
TEXTS = [
    " ".join(document.split()[:length])
    for document, length in zip(tiny.documents()[:9], range(3, 12), strict=True)
]
TABLE = pd.DataFrame(
    {
        "id": [str(i) for i in range(9)],
        "text": TEXTS,
        "label": [i % 2 for i in range(9)],
        "group": "all",
    }
)


def compute_gradients(model: torch.nn.Module, loss: torch.Tensor) -> dict[str, torch.Tensor]:
    """Return the gradients by parameter name, with zeros where there is no gradient."""
    gradients = torch.autograd.grad(loss, [*model.parameters()], allow_unused=True)
    return {
        n: torch.zeros_like(p) if g is None else g
        for (n, p), g in zip(model.named_parameters(), gradients, strict=True)
    }


@pytest.mark.parametrize("name", ["gpt", "ulmfit"])
def test_the_auxiliary_loss_adds_its_weight_times_its_gradient(name: str) -> None:
    """The auxiliary loss is the mean over texts of the mean over the tokens of each text."""
    tokenizer = tiny.tokenizer(name)
    items = tiny.encode(name, TABLE)
    encoder = tiny.model(name, architecture=tiny.dropout_config(name, 0.0))
    model = new_finetuned(encoder, tiny.label_answer(2), FINETUNE, items[0])
    batch = collate_items(tokenizer, items, TABLE["label"].to_numpy())
    without_auxiliary, with_auxiliary = (
        compute_gradients(
            model,
            finetuning_objective(
                model, batch, aux_lm_weight=weight, auxiliary_loss=auxiliary_lm_loss
            ).loss,
        )
        for weight in (0.0, 0.5)
    )
    losses = []
    for item in items:
        single = collate_items(tokenizer, [item])
        logits = encoder.logits(encoder.encode(single)[-1][0, :-1])
        losses.append(F.cross_entropy(logits, single.ids_BT[0, 1:]))
    auxiliary = compute_gradients(model, torch.stack(losses).mean())
    assert sum(float(g.abs().sum()) for g in auxiliary.values()) > 1
    for key, gradient in with_auxiliary.items():
        torch.testing.assert_close(
            gradient, without_auxiliary[key] + 0.5 * auxiliary[key], atol=2e-6, rtol=1e-4, msg=key
        )


def test_the_auxiliary_loss_is_in_the_recipe_and_keeps_the_language_model() -> None:
    assert replace(FINETUNE, aux_lm_weight=0.5).recipe == "lm" and FINETUNE.recipe == "plain"
    tokenizer = tiny.tokenizer("gpt")
    labels = TABLE["label"].to_numpy()
    items = tiny.encode("gpt", TABLE)
    batch = collate_items(tokenizer, items, labels)
    auxiliary_losses = []
    for weight in (0.0, 2.0):
        settings = replace(FINETUNE, aux_lm_weight=weight, epochs=15, learning_rate=0.01)
        model = finetune(
            tiny.model("gpt"),
            tokenizer,
            items,
            labels,
            tiny.label_answer(2),
            settings,
            auxiliary_loss=auxiliary_lm_loss,
        ).eval()
        losses = [
            float(
                finetuning_objective(
                    model, batch, aux_lm_weight=w, auxiliary_loss=auxiliary_lm_loss
                ).loss.detach()
            )
            for w in (0.0, 1.0)
        ]
        auxiliary_losses.append(losses[1] - losses[0])
    assert auxiliary_losses[1] < 0.5 * auxiliary_losses[0]


@pytest.mark.parametrize("name", [*tiny.TRAINED, *tiny.STATIC, *tiny.mark_slow(tiny.CELLS)])
def test_a_text_vector_can_be_the_mean_of_its_tokens(name: str) -> None:
    tokenizer = tiny.tokenizer(name)
    items = tiny.encode(name, TABLE)
    batch = collate_items(tokenizer, items)
    model = new_finetuned(
        tiny.model(name), tiny.label_answer(2), replace(FINETUNE, pooling="mean"), items[0]
    ).eval()
    assert batch.text_mask_BT is not None
    expected = model.head(masked_mean(model.encoder.encode(batch)[-1], batch.text_mask_BT))
    assert torch.equal(model(batch), expected)
    if name in ("gpt", "bert", "ulmfit"):
        default = new_finetuned(tiny.model(name), tiny.label_answer(2), FINETUNE, items[0]).eval()
        assert not torch.allclose(default(batch), expected)


def test_fine_tuning_uses_the_configured_schedule_and_optimizer() -> None:
    layers = [[torch.nn.Parameter(torch.zeros(2, 2))] for _ in range(2)]
    slanted = replace(FINETUNE, layer_lr_decay=0.5, cut_frac=0.2, ratio=32.0)
    assert slanted.lr_schedule()(0.2) == 1.0
    assert slanted.lr_schedule()(0.0) == pytest.approx(1 / 32)
    assert slanted.recipe == "discriminative+slanted_triangular"
    gradual = replace(slanted, gradual_unfreezing=0.5)
    assert gradual.recipe == "discriminative+slanted_triangular+gradual"
    bert = replace(slanted, schedule="bert", betas=(0.8, 0.9), epsilon=1e-6, bias_correction=False)
    optimizer = bert.build_optimizer(layers)
    assert isinstance(optimizer, BertAdam)
    assert optimizer.defaults["betas"] == (0.8, 0.9)
    assert optimizer.defaults["eps"] == 1e-6
    assert [group["lr_scale"] for group in optimizer.param_groups] == [0.5, 1.0]
    assert bert.lr_schedule()(0.5) == schedule_with_warmup("bert", 0.2)(0.5)
    assert bert.recipe == "discriminative+bert rates+uncorrected"
    gpt = replace(slanted, schedule="gpt", cut_frac=0.002)
    assert gpt.lr_schedule()(0.002) == pytest.approx(0.998)
    assert gpt.lr_schedule()(0.5) == 0.5
    assert gpt.lr_schedule()(1.0) == 0.0
    assert isinstance(gpt.build_optimizer(layers), torch.optim.AdamW)
    with pytest.raises(ValueError, match="betas"):
        replace(slanted, betas=(0.9, 1.0))


@pytest.mark.parametrize(
    ("name", "dropout"), [("gpt", 0.5), ("elmo", 0.5), ("ulmfit", {"hidden": 0.5})]
)
def test_a_body_has_the_dropout_of_its_stage(name: str, dropout: Any) -> None:
    """Fine-tuning uses its own dropout; a frozen body keeps the dropout of pretraining."""
    batch = tiny.tokenizer(name).collate(tiny.tokenizer(name).encode_batch(TEXTS))
    checkpoint = tiny.checkpoint(name, architecture=tiny.dropout_config(name, 0.0))
    for body_dropout, is_deterministic in ((None, True), (dropout, False)):
        model = checkpoint.build(tiny.CPU, load_weights=False, body_dropout=body_dropout).train()
        with torch.no_grad():
            first, second = (model.encode(batch)[-1] for _ in range(2))
        assert torch.equal(first, second) == is_deterministic
    encoder_under_test = EncoderUnderTest(
        tiny.eval_context(
            checkpoint,
            None,
            tiny.eval_settings(LINEAR_PROBE, replace(FINETUNE, body_dropout=dropout)),
        ),
        "random",
    )  # type: ignore[arg-type]
    finetune_settings = encoder_under_test.context.settings.finetune
    frozen_config = encoder_under_test.build_encoder().config
    finetuned_config = encoder_under_test.build_encoder(
        body_dropout=finetune_settings.body_dropout
    ).config
    assert frozen_config == checkpoint.architecture and finetuned_config != frozen_config
    for key, block in (
        ("adapt", {"adapt": {"body_dropout": dropout}}),
        ("evaluate.finetune", {"evaluate": {"finetune": {"body_dropout": dropout}}}),
    ):
        assert tiny.model_config(name, **block).architecture == tiny.model_config(name).architecture
        invalid = {"hiden": 0.5} if isinstance(dropout, dict) else {"hidden": 0.5}
        with pytest.raises(InputError, match=rf"{key}.body_dropout: "):
            tiny.model_config(
                name,
                **{
                    key.split(".")[0]: {"body_dropout": invalid}
                    if key == "adapt"
                    else {"finetune": {"body_dropout": invalid}}
                },
            )
    with pytest.raises(InputError, match="no dropout 'hiden'; the model has embedding, hidden"):
        tiny.model_config("ulmfit", adapt={"body_dropout": {"hiden": 0.5}})
    trials = [{"learning_rate": 0.1}, {"learning_rate": 0.1, "body_dropout": 0.5}]
    with pytest.raises(InputError, match=r"trials\[1\].body_dropout: one, and the model has none"):
        tiny.model_config("word2vec", evaluate={"finetune": {"trials": trials}})


def test_a_number_is_the_greatest_of_several_dropouts() -> None:
    own = tiny.model_config("ulmfit", architecture=tiny.dropout_config("ulmfit", 0.4)).architecture
    own = replace(own, dropouts=replace(own.dropouts, hidden=0.1))
    halved = with_dropout(own, 0.2).dropouts
    assert vars(halved) == {
        "embedding": 0.2,
        "input": 0.2,
        "weight": 0.2,
        "hidden": 0.05,
        "output": 0.2,
    }
    none = with_dropout(own, 0.0)
    assert not any(vars(none.dropouts).values())
    # Those of the paper, halved.
    assert vars(with_dropout(none, 0.25).dropouts) == {
        "embedding": 0.025,
        "input": 0.2,
        "weight": 0.25,
        "hidden": 0.15,
        "output": 0.2,
    }


@pytest.mark.parametrize("name", tiny.mark_similar_slow(tiny.FAMILIES))
def test_features_and_predictions_do_not_depend_on_batches_or_their_order(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    tokenizer = tiny.tokenizer(name)
    encoder = tiny.model(name)
    items = tiny.encode(name, TABLE)
    model = new_finetuned(encoder, tiny.label_answer(2), FINETUNE, items[0])
    order = np.random.default_rng(3).permutation(len(items))
    outputs = []
    for ordered, positions in (
        (items, 8192),
        ([items[i] for i in order], 8192),
        (items, 1),
        ([items[i] for i in order], 40),
    ):
        monkeypatch.setattr(encoding, "MAX_BATCH_POSITIONS", positions)
        inverse = np.argsort(order) if ordered is not items else np.arange(len(items))
        features = extract_features(encoder, tokenizer, ordered)
        probabilities = predict_finetuned(model, tokenizer, ordered)
        outputs.append((features[inverse], probabilities[inverse]))
    for features, probabilities in outputs[1:]:
        np.testing.assert_allclose(features, outputs[0][0], atol=1e-6, rtol=0.0)
        np.testing.assert_allclose(probabilities, outputs[0][1], atol=1e-6, rtol=0.0)


def test_layers_are_selected_by_name() -> None:
    x = np.arange(2 * 6 * 3.0).reshape(2, 6, 3)
    assert np.array_equal(select_layers(x, "scalar_mix", block=""), x)
    for which, number in (("last", 5), ("second_to_last", 4), ("embeddings", 0)):
        assert np.array_equal(select_layers(x, which, block=""), x[:, [number]])
    assert np.array_equal(
        select_layers(x, "concat_last_4", block=""),
        np.concatenate([x[:, i] for i in (2, 3, 4, 5)], -1)[:, None],
    )
    assert select_layers(x[:, :2], "concat_last_4", block="").shape == (
        2,
        1,
        6,
    )  # only two layers exist
    assert select_layers(np.stack([x, x], 1), "concat_last_4", block="").shape == (
        2,
        2,
        1,
        12,
    )  # multiple choice
    for block in ("linear_probe", "bilstm_probe"):
        with pytest.raises(
            EvaluationError, match=rf"none is second to last; set evaluate\.{block}\.features"
        ):
            select_layers(x[:, :1], "second_to_last", block=block)


@pytest.mark.parametrize(
    ("features", "pooling", "expected"),
    [
        ("scalar_mix", "model_default", ["scalar_mix", "last"]),
        ("concat_last_4", "mean", ["concat_last_4", "mean"]),
    ],
)
def test_rows_report_the_features_used(
    features: Any, pooling: Any, expected: list[str], tmp_path: Path
) -> None:
    info = TaskInfo("x", "text_classification", labels=["a", "b"], metric=["accuracy"])
    task = TaskData(info, {"train": TABLE, "validation": TABLE, "test": TABLE})
    settings = tiny.eval_settings(
        replace(LINEAR_PROBE, features=features), replace(FINETUNE, pooling=pooling)
    )
    runs = [EvalRun("random", method, "all", 0) for method in ("linear_probe", "finetune")]
    rows = tiny.evaluate_runs(tiny.eval_context("bert", task, settings), runs, tmp_path).rows
    assert [row.features for row in rows if row.split == "test"] == expected


def test_the_scalar_mix_can_learn_gamma_and_normalize_whole_layers() -> None:
    # ulmfit has layers of three widths; the padding of the narrow ones must not count.
    tokenizer = tiny.tokenizer("ulmfit")
    items = tiny.encode("ulmfit", TABLE)
    labels = TABLE["label"].to_numpy()
    features = extract_features(tiny.model("ulmfit"), tokenizer, items)
    predictions = [
        fit_linear_probe(
            features, labels, tiny.label_answer(2), replace(LINEAR_PROBE, **changes), seed=0
        )(features)
        for changes in ({}, {"learn_gamma": True}, {"layer_norm": True})
    ]
    assert not np.allclose(predictions[0], predictions[1], atol=1e-4)
    assert not np.allclose(predictions[0], predictions[2], atol=1e-4)
    # Layers are normalized as a whole: scaling a layer changes nothing, scaling a feature does.
    scaled_layer = features.copy()
    scaled_feature = features.copy()
    scaled_layer[:, 1] *= 7
    scaled_feature[:, :, 1] *= 7
    normalized = [
        fit_linear_probe(
            x, labels, tiny.label_answer(2), replace(LINEAR_PROBE, layer_norm=True), seed=0
        )(x)
        for x in (features, scaled_layer, scaled_feature)
    ]
    np.testing.assert_allclose(normalized[0], normalized[1], atol=1e-4)
    assert not np.allclose(normalized[0], normalized[2], atol=1e-4)


def test_layer_norm_does_not_depend_on_the_scored_items() -> None:
    tokenizer = tiny.tokenizer("bert")
    features = extract_features(tiny.model("bert"), tokenizer, tiny.encode("bert", TABLE))
    head = fit_linear_probe(
        features,
        TABLE["label"].to_numpy(),
        tiny.label_answer(2),
        replace(LINEAR_PROBE, layer_norm=True),
        seed=0,
    )
    np.testing.assert_allclose(head(features)[:1], head(features[:1]), atol=1e-9)


class KilledError(Exception):
    """Stands for a signal that kills the process."""


def pretrain_bert(folder: Path, *, kill_at: int | None = None) -> tuple[TrainOutput, list[float]]:
    """Pretrain BERT on 12,000 bytes, and return the output and the reported progress.

    `kill_at` is the number of the step after which it is killed.
    """
    if not (folder / "tokens").exists():
        with create_artifact(folder / "tokens", "tokens") as draft:
            for split in ("train", "valid"):
                tiny.corpus("bert").save(draft, split)
    budget = replace(
        DEMO_PARAMS.budget, text_bytes=12_000, max_epochs=50, body_parameters=tiny.BODY_PARAMETERS
    )
    params = replace(DEMO_PARAMS, budget=budget)
    progress: list[float] = []

    def report(done: float, note: str) -> None:
        progress.append(done)
        if len(progress) == kill_at:
            raise KilledError

    lengths = {"initial_seq_len": 17, "seq_len": 29, "long_seq_share": 0.4, "weight_decay": 0.0}
    checkpoint = tiny.checkpoint("bert", pretrain=lengths, architecture={"dropout": 0.1})
    context = TrainContext(tiny.CPU, MagicMock(), folder / "resume", 0.0, report)
    return pretrain(checkpoint, folder / "tokens", params, context), progress


def test_long_sequences_come_last_and_train_the_higher_positions(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lengths: list[tuple[float, int]] = []
    high_positions_unchanged: list[bool] = []
    read_ids: list[torch.Tensor] = []
    initial = tiny.model("bert").position_embeddings.weight.detach().clone()  # type: ignore[union-attr]
    family = tiny.model_config("bert").family

    def recording_objective(model: Any, batch: Any, carry: Any) -> Any:
        if model.training:
            lengths.append((batch.text_bytes, batch.ids_BT.shape[1]))
            read_ids.append(batch.ids_BT)
            high_positions_unchanged.append(
                torch.equal(model.position_embeddings.weight[17:], initial[17:])
            )
        return family.objective(model, batch, carry)  # type: ignore[misc]

    build_model_config = tiny.model_config
    monkeypatch.setattr(
        tiny,
        "model_config",
        lambda name, **changes: replace(
            build_model_config(name, **changes),
            family=replace(family, objective=recording_objective),
        ),
    )
    outcome, _ = pretrain_bert(tmp_path)
    # The first two batches only count FLOPs.
    flop_batches = read_ids[:2]
    lengths = lengths[2:]
    high_positions_unchanged = high_positions_unchanged[2:]
    read_ids = read_ids[2:]
    first_long_batch = 1 + int(
        np.searchsorted(np.cumsum([size for size, _ in lengths]), 0.6 * 12_000)
    )
    assert all(longest <= 17 for _, longest in lengths[:first_long_batch])
    assert max(longest for _, longest in lengths) == 29
    for index, flop_batch in zip((0, first_long_batch), flop_batches, strict=True):
        assert torch.equal(read_ids[index], flop_batch), (
            "each phase starts with the first batch of its first epoch"
        )
    assert all(high_positions_unchanged[:first_long_batch]) and not high_positions_unchanged[-1]
    switch_point = min(outcome.curve.points, key=lambda point: abs(point.progress - 0.6))
    settings = build_model_config("bert").pretrain
    assert switch_point.learning_rate == pytest.approx(
        settings.learning_rate * (1 - 0.7) / (1 - settings.warmup_ratio), rel=0.03
    ), "this step began after 0.7 of all steps"
    assert outcome.budget_used.text_bytes is not None
    assert 12_000 <= outcome.budget_used.text_bytes <= 12_500


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory: pytest.TempPathFactory) -> tuple[TrainOutput, list[float]]:
    """Pretrain without an interruption."""
    return pretrain_bert(tmp_path_factory.mktemp("whole"))


@pytest.mark.parametrize(
    "when",
    [
        "in the second, and once more",
        *tiny.mark_slow(["in the first part", "at the first step of the second"]),
    ],
)
def test_a_killed_training_with_two_sequence_lengths_ends_in_the_same_weights(
    when: str, uninterrupted: tuple[TrainOutput, list[float]], tmp_path: Path
) -> None:
    outcome, progress = uninterrupted
    first_long_step = 2 + next(i for i, share in enumerate(progress) if share >= 0.6)
    for kill in {
        "in the first part": [5],
        "at the first step of the second": [first_long_step],
        "in the second, and once more": [first_long_step + 3, 3],
    }[when]:
        with pytest.raises(KilledError):
            pretrain_bert(tmp_path, kill_at=kill)
    resumed, resumed_progress = pretrain_bert(tmp_path)
    assert 0 < len(resumed_progress) < len(progress)
    for expected, actual in zip(
        outcome.model.state_dict().values(), resumed.model.state_dict().values(), strict=True
    ):
        assert torch.equal(expected, actual)
    assert outcome.curve.points == resumed.curve.points
    assert outcome.budget_used == resumed.budget_used


def test_sequence_lengths_that_do_not_grow_are_refused() -> None:
    for changes in ({"initial_seq_len": 23}, {"initial_seq_len": 11, "long_seq_share": 1.0}):
        with pytest.raises(InputError, match="initial_seq_len is"):
            tiny.model_config("bert", pretrain=changes)
    assert [
        (end, settings.seq_len) for end, settings in tiny.model_config("bert").pretrain.phases
    ] == [(1.0, 23)]
    growing = tiny.model_config(
        "bert", pretrain={"initial_seq_len": 11, "long_seq_share": 0.25}
    ).pretrain
    assert [(end, settings.seq_len) for end, settings in growing.phases] == [(0.75, 11), (1.0, 23)]
