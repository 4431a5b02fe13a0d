"""Switches of how a model is used: the auxiliary loss, what a text's vector is, which layers are read, and in what lengths BERT is trained."""

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
from lineage.config.params import Budget, Params, read_params
from lineage.data.task_data import TaskData
from lineage.errors import EvaluationError, InputError
from lineage.evaluation import encoding
from lineage.evaluation.encoding import collate_items, encode_items
from lineage.evaluation.evaluate import evaluate_runs
from lineage.evaluation.finetuning import (
    FinetunedModel,
    finetune,
    finetuning_objective,
    predict_finetuned,
)
from lineage.evaluation.linear_probe import extract_features, fit_linear_probe, select_layers
from lineage.evaluation.settings import EvaluateSettings, FinetuneSettings, LinearProbeSettings
from lineage.evaluation.systems import EncoderUnderTest, EvalContext, EvalRun
from lineage.models.batch import masked_mean
from lineage.report.notes import format_notes
from lineage.training.objectives import auxiliary_lm_loss
from lineage.training.optimizers import BertAdam
from lineage.training.pretrain import TrainContext, TrainOutput, pretrain
from lineage.training.schedules import bert_schedule_with_warmup
from tests import tiny

TUNED = FinetuneSettings(
    epochs=1,
    batch_size=5,
    learning_rate=0.005,
    layer_lr_decay=1.0,
    cut_frac=0.1,
    ratio=1.0,
    gradual_unfreezing=0.0,
    weight_decay=0.0,
    dropout=0.0,
    max_grad_norm=1.0,
)
FROZEN = LinearProbeSettings(l2=0.001, max_iter=60)
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


def gradients(model: torch.nn.Module, loss: torch.Tensor) -> dict[str, torch.Tensor]:
    """By name, and zeros where there is none."""
    found = torch.autograd.grad(loss, [*model.parameters()], allow_unused=True)
    return {
        n: torch.zeros_like(p) if g is None else g
        for (n, p), g in zip(model.named_parameters(), found, strict=True)
    }


@pytest.mark.parametrize("name", ["gpt", "ulmfit"])
def test_the_auxiliary_loss_adds_its_weight_times_its_gradient(name: str) -> None:
    """The mean over texts of each one's mean, whatever their lengths."""
    reader = tiny.reader(name)
    items = encode_items(TABLE, reader, max_length=None, language="en")
    encoder = tiny.model(name, architecture=tiny.dropping(name, 0.0))
    model = FinetunedModel(encoder, tiny.labels(2), TUNED, seed=1, example_item=items[0])
    batch = collate_items(reader, items, TABLE["label"].to_numpy())
    plain, both = (
        gradients(
            model,
            finetuning_objective(
                model, batch, aux_lm_weight=weight, auxiliary_loss=auxiliary_lm_loss
            ).loss,
        )
        for weight in (0.0, 0.5)
    )
    losses = []
    for item in items:
        alone = collate_items(reader, [item])
        logits = encoder.logits(encoder.encode(alone)[-1][0, :-1])
        losses.append(F.cross_entropy(logits, alone.ids_BT[0, 1:]))
    own = gradients(model, torch.stack(losses).mean())
    assert sum(float(g.abs().sum()) for g in own.values()) > 1
    for key, gradient in both.items():
        torch.testing.assert_close(
            gradient, plain[key] + 0.5 * own[key], atol=2e-6, rtol=1e-4, msg=key
        )


def test_the_auxiliary_loss_is_named_and_keeps_the_language_model() -> None:
    assert replace(TUNED, aux_lm_weight=0.5).recipe == "lm" and TUNED.recipe == "plain"
    reader, gold = tiny.reader("gpt"), TABLE["label"].to_numpy()
    items = encode_items(TABLE, reader, max_length=None, language="en")
    batch, nats = collate_items(reader, items, gold), []
    for weight in (0.0, 2.0):
        settings = replace(TUNED, aux_lm_weight=weight, epochs=15, learning_rate=0.01)
        model = finetune(
            tiny.model("gpt"),
            reader,
            items,
            gold,
            tiny.labels(2),
            settings,
            seed=1,
            precision="fp32",
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
        nats.append(losses[1] - losses[0])
    assert nats[1] < 0.5 * nats[0]


@pytest.mark.parametrize(
    "name",
    [
        name
        for name in tiny.FAMILIES
        if getattr(tiny.variant(name).family, "auxiliary_loss", None) is None
    ],
)
def test_the_auxiliary_loss_is_refused_where_a_family_has_none(name: str) -> None:
    tuned = vars(tiny.variant(name).evaluate.finetune)
    with pytest.raises(
        InputError,
        match=f"aux_lm_weight: {tiny.variant(name).family.name} has no loss of its own on a task's texts",
    ):
        tiny.variant(name, evaluate={"finetune": {**tuned, "aux_lm_weight": 0.5}})


@pytest.mark.parametrize("name", [*tiny.TRAINED, *tiny.STATIC, *tiny.slow(tiny.CELLS)])
def test_a_text_s_vector_may_be_the_mean_of_its_pieces(name: str) -> None:
    reader = tiny.reader(name)
    items = encode_items(TABLE, reader, max_length=None, language="en")
    batch = collate_items(reader, items)
    model = FinetunedModel(
        tiny.model(name),
        tiny.labels(2),
        replace(TUNED, pooling="mean"),
        seed=1,
        example_item=items[0],
    ).eval()
    assert batch.text_mask_BT is not None
    expected = model.head(masked_mean(model.encoder.encode(batch)[-1], batch.text_mask_BT))
    assert torch.equal(model(batch), expected)
    if name in ("gpt", "bert", "ulmfit"):
        own = FinetunedModel(
            tiny.model(name), tiny.labels(2), TUNED, seed=1, example_item=items[0]
        ).eval()
        assert not torch.allclose(own(batch), expected)


def test_fine_tuning_takes_the_schedule_and_the_adam_that_are_named() -> None:
    layers = [[torch.nn.Parameter(torch.zeros(2, 2))] for _ in range(2)]
    plain = replace(TUNED, layer_lr_decay=2.0, cut_frac=0.2, ratio=32.0)
    assert (
        plain.lr_schedule()(0.2) == 1.0
        and plain.lr_schedule()(0.0) == pytest.approx(1 / 32)
        and plain.recipe == "discriminative+slanted_triangular"
    )
    released = replace(
        plain, schedule="bert", betas=(0.8, 0.9), epsilon=1e-6, bias_correction=False
    )
    optimizer = released.build_optimizer(layers)
    assert (
        isinstance(optimizer, BertAdam)
        and optimizer.defaults["betas"] == (0.8, 0.9)
        and optimizer.defaults["eps"] == 1e-6
    )
    assert [group["lr_scale"] for group in optimizer.param_groups] == [0.5, 1.0]
    assert (
        released.lr_schedule()(0.5) == bert_schedule_with_warmup(0.2)(0.5)
        and released.recipe == "discriminative+bert rates+uncorrected"
    )
    first = replace(plain, schedule="gpt", cut_frac=0.002)
    assert (
        first.lr_schedule()(0.002) == pytest.approx(0.998)
        and first.lr_schedule()(0.5) == 0.5
        and first.lr_schedule()(1.0) == 0.0
    )
    assert isinstance(first.build_optimizer(layers), torch.optim.AdamW)
    with pytest.raises(ValueError, match="betas"):
        replace(plain, betas=(0.9, 1.0))


def test_a_tuning_without_bias_correction_ends_elsewhere() -> None:
    reader, ends = tiny.reader("bert"), []
    for settings in (TUNED, replace(TUNED, bias_correction=False)):
        items = encode_items(TABLE, reader, max_length=None, language="en")
        tuned = finetune(
            tiny.model("bert"),
            reader,
            items,
            TABLE["label"].to_numpy(),
            tiny.labels(2),
            settings,
            seed=1,
            precision="fp32",
        )
        ends.append(torch.cat([p.detach().flatten() for p in tuned.head.parameters()]))
    assert (ends[0] - ends[1]).abs().max() > 1e-4


@pytest.mark.parametrize(
    ("name", "shares"), [("gpt", 0.5), ("elmo", 0.5), ("ulmfit", {"hidden": 0.5})]
)
def test_a_body_has_the_dropouts_of_its_stage(name: str, shares: Any) -> None:
    """Those of tuning in tuning, and in what is read frozen those that it was pretrained with."""
    batch = tiny.reader(name).collate(tiny.reader(name).encode_batch(TEXTS))
    made = tiny.checkpoint(name, architecture=tiny.dropping(name, 0.0))
    for over, alike in ((None, True), (shares, False)):
        model = made.build(tiny.CPU, load_weights=False, body_dropout=over).train()
        with torch.no_grad():
            one, other = (model.encode(batch)[-1] for _ in range(2))
        assert torch.equal(one, other) == alike
    subject = EncoderUnderTest(
        EvalContext(
            made,
            None,
            EvaluateSettings(
                linear_probe=FROZEN,
                bilstm_probe=tiny.NETWORK,
                finetune=replace(TUNED, body_dropout=shares),
            ),
            0,
            1000,
            "fp32",
            tiny.CPU,
        ),
        "random",
    )  # type: ignore[arg-type]
    own, tuned = (
        encoder.config
        for encoder in (
            subject.build_encoder(),
            subject.build_encoder(subject.context.settings.finetune),
        )
    )
    assert own == made.architecture and tuned != own
    for key, block in (
        ("adapt", {"adapt": {"body_dropout": shares}}),
        ("evaluate.finetune", {"evaluate": {"finetune": {"body_dropout": shares}}}),
    ):
        assert tiny.variant(name, **block).architecture == tiny.variant(name).architecture
        wrong = 0.5 if isinstance(shares, dict) else {"hidden": 0.5}
        with pytest.raises(InputError, match=rf"{key}.body_dropout: "):
            tiny.variant(
                name,
                **{
                    key.split(".")[0]: {"body_dropout": wrong}
                    if key == "adapt"
                    else {"finetune": {"body_dropout": wrong}}
                },
            )
    with pytest.raises(InputError, match="no dropout 'hiden'; the model has embedding, hidden"):
        tiny.variant("ulmfit", adapt={"body_dropout": {"hiden": 0.5}})


@pytest.mark.parametrize("name", [*tiny.TRAINED, *tiny.STATIC, *tiny.slow(tiny.CELLS)])
def test_what_is_read_of_an_item_does_not_depend_on_batches_or_their_order(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    reader, encoder = tiny.reader(name), tiny.model(name)
    items = encode_items(TABLE, reader, max_length=None, language="en")
    model = FinetunedModel(encoder, tiny.labels(2), TUNED, seed=1, example_item=items[0])
    order = np.random.default_rng(3).permutation(len(items))
    found = []
    for some, positions in (
        (items, 8192),
        ([items[i] for i in order], 8192),
        (items, 1),
        ([items[i] for i in order], 40),
    ):
        monkeypatch.setattr(encoding, "MAX_BATCH_POSITIONS", positions)
        back = np.argsort(order) if some is not items else np.arange(len(items))
        features, probabilities = (
            extract_features(encoder, reader, some, precision="fp32"),
            predict_finetuned(model, reader, some, precision="fp32"),
        )
        found.append((features[back], probabilities[back]))
    for features, probabilities in found[1:]:
        np.testing.assert_allclose(features, found[0][0], atol=1e-6, rtol=0.0)
        np.testing.assert_allclose(probabilities, found[0][1], atol=1e-6, rtol=0.0)


def test_layers_are_read_as_they_are_named() -> None:
    x = np.arange(2 * 6 * 3.0).reshape(2, 6, 3)
    assert np.array_equal(select_layers(x, FROZEN), x)
    for which, number in (("last", 5), ("second_to_last", 4), ("embeddings", 0)):
        assert np.array_equal(select_layers(x, replace(FROZEN, features=which)), x[:, [number]])
    joined = replace(FROZEN, features="concat_last_4")
    assert np.array_equal(
        select_layers(x, joined), np.concatenate([x[:, i] for i in (2, 3, 4, 5)], -1)[:, None]
    )
    assert select_layers(x[:, :2], joined).shape == (2, 1, 6)  # what there is
    assert select_layers(np.stack([x, x], 1), joined).shape == (2, 2, 1, 12)  # choices
    for block, settings in (("linear_probe", FROZEN), ("bilstm_probe", tiny.NETWORK)):
        with pytest.raises(
            EvaluationError, match=rf"none is second to last; set evaluate\.{block}\.features"
        ):
            select_layers(x[:, :1], replace(settings, features="second_to_last"))


def rows(
    name: str, folder: Path, frozen: LinearProbeSettings, tuned: FinetuneSettings
) -> list[Any]:
    """The rows of an untrained model's two ways."""
    facts = {
        "name": "x",
        "kind": "text_classification",
        "answer": "label",
        "labels": ["a", "b"],
        "metric": ["accuracy"],
        "max_tokens": 20,
        "language": "en",
    }
    task = TaskData(facts, {"train": TABLE, "test": TABLE})
    found = EvalContext(
        tiny.checkpoint(name),
        task,
        EvaluateSettings(linear_probe=frozen, bilstm_probe=tiny.NETWORK, finetune=tuned),
        0,
        1000,
        "fp32",
        tiny.CPU,
    )
    folder.mkdir()
    some = [EvalRun("random", "frozen", "all", 0), EvalRun("random", "finetuned", "all", 0)]
    return evaluate_runs(found, some, cache_dir=folder, report_progress=lambda *_: None)[0]


def test_rows_say_what_was_read(tmp_path: Path) -> None:
    found = rows("bert", tmp_path / "one", FROZEN, TUNED)
    assert [row.features for row in found] == ["scalar_mix", "last"]
    found = rows(
        "bert",
        tmp_path / "two",
        replace(FROZEN, features="concat_last_4"),
        replace(TUNED, pooling="mean"),
    )
    assert [row.features for row in found] == ["concat_last_4", "mean"]
    failed, tuned = rows(
        "glove", tmp_path / "three", replace(FROZEN, features="second_to_last"), TUNED
    )
    assert (failed.status, tuned.status) == ("failed", "ok") and "second to last" in format_notes(
        failed.reason
    )


def test_the_mix_can_learn_a_scale_and_layers_can_be_scaled_as_wholes() -> None:
    reader = tiny.reader(
        "ulmfit"
    )  # layers of three widths: what fills up the narrow ones counts for nothing
    items, gold = (
        encode_items(TABLE, reader, max_length=None, language="en"),
        TABLE["label"].to_numpy(),
    )
    features = extract_features(tiny.model("ulmfit"), reader, items, precision="fp32")
    said = [
        fit_linear_probe(features, gold, tiny.labels(2), replace(FROZEN, **over), seed=0)(features)
        for over in ({}, {"learn_gamma": True}, {"layer_norm": True})
    ]
    assert not np.allclose(said[0], said[1], atol=1e-4) and not np.allclose(
        said[0], said[2], atol=1e-4
    )
    # one number a layer: other units of a whole layer change nothing, other units of a feature do
    layer, feature = features.copy(), features.copy()
    layer[:, 1] *= 7
    feature[:, :, 1] *= 7
    scaled = [
        fit_linear_probe(x, gold, tiny.labels(2), replace(FROZEN, layer_norm=True), seed=0)(x)
        for x in (features, layer, feature)
    ]
    np.testing.assert_allclose(scaled[0], scaled[1], atol=1e-4)
    assert not np.allclose(scaled[0], scaled[2], atol=1e-4)


def test_layer_norm_takes_nothing_from_the_scored_items() -> None:
    reader = tiny.reader("bert")
    features = extract_features(
        tiny.model("bert"),
        reader,
        encode_items(TABLE, reader, max_length=None, language="en"),
        precision="fp32",
    )
    head = fit_linear_probe(
        features,
        TABLE["label"].to_numpy(),
        tiny.labels(2),
        replace(FROZEN, layer_norm=True),
        seed=0,
    )
    np.testing.assert_allclose(head(features)[:1], head(features[:1]), atol=1e-9)


class KilledError(Exception):
    """In place of a signal."""


def trained(
    folder: Path, *, kill_at: int | None = None, resume: str = "resume", **over: object
) -> tuple[TrainOutput, list[float]]:
    """BERT's pretraining within 12,000 bytes, killed before the step after `kill_at`, and the progress that it told of."""
    if not (folder / "tokens").exists():
        with create_artifact(folder / "tokens", "tokens") as draft:
            for split in ("train", "valid"):
                tiny.tokens("bert").save(draft, split)
    shipped = read_params(Path(__file__).parent.parent / "params.yaml")
    params = Params(
        **{
            **vars(shipped),
            "budget": Budget(
                corpus="general", text_bytes=12_000, max_epochs=50, body_parameters=tiny.PARAMETERS
            ),
        }
    )
    told: list[float] = []

    def report(done: float, note: str) -> None:
        told.append(done)
        if len(told) == kill_at:
            raise KilledError

    keys = {
        "initial_seq_len": 17,
        "seq_len": 29,
        "long_seq_share": 0.4,
        "weight_decay": 0.0,
        **over,
    }
    checkpoint = tiny.checkpoint("bert", pretrain=keys, architecture={"dropout": 0.1})
    return pretrain(
        checkpoint,
        folder / "tokens",
        params,
        TrainContext(tiny.CPU, MagicMock(), folder / resume, 0.0, report),
    ), told


def test_long_sequences_come_last_and_train_the_positions_that_short_ones_never_reach(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lengths: list[tuple[float, int]] = []
    untouched: list[bool] = []
    read_ids: list[torch.Tensor] = []
    start = tiny.model("bert").position_embeddings.weight.detach().clone()  # type: ignore[union-attr]
    found = tiny.variant("bert").family

    def watched(model: Any, batch: Any, carry: Any) -> Any:
        if model.training:
            lengths.append((batch.text_bytes, batch.ids_BT.shape[1]))
            read_ids.append(batch.ids_BT)
            untouched.append(torch.equal(model.position_embeddings.weight[17:], start[17:]))
        return found.objective(model, batch, carry)  # type: ignore[misc]

    real = tiny.variant
    monkeypatch.setattr(
        tiny,
        "variant",
        lambda name, **over: replace(real(name, **over), family=replace(found, objective=watched)),
    )
    outcome, _ = trained(tmp_path)
    counted, lengths, untouched, read_ids = (
        read_ids[:2],
        lengths[2:],
        untouched[2:],
        read_ids[2:],
    )  # first batches, read to count operations
    first = 1 + int(np.searchsorted(np.cumsum([size for size, _ in lengths]), 0.6 * 12_000))
    assert (
        all(longest <= 17 for _, longest in lengths[:first])
        and max(longest for _, longest in lengths) == 29
    )
    assert torch.equal(read_ids[0], counted[0]) and torch.equal(read_ids[first], counted[1]), (
        "each part begins at the beginning of its first pass"
    )
    assert all(untouched[:first]) and not untouched[-1]
    turn, how = (
        min(outcome.curve.points, key=lambda point: abs(point.progress - 0.6)),
        real("bert").pretrain,
    )
    assert turn.learning_rate == pytest.approx(
        how.learning_rate * (1 - 0.7) / (1 - how.warmup_ratio), rel=0.03
    ), "a step that began after 0.7 of all steps"
    assert (
        outcome.budget_used.text_bytes is not None
        and 12_000 <= outcome.budget_used.text_bytes <= 12_500
    )


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> tuple[TrainOutput, list[float]]:
    """A training that nothing interrupted."""
    return trained(tmp_path_factory.mktemp("whole"))


@pytest.mark.parametrize(
    "when", ["in the first part", "at the first step of the second", "in the second, and once more"]
)
def test_a_training_in_two_lengths_that_is_killed_ends_in_the_same_weights(
    when: str, whole: tuple[TrainOutput, list[float]], tmp_path: Path
) -> None:
    outcome, told = whole
    second = 2 + next(i for i, done in enumerate(told) if done >= 0.6)
    for kill in {
        "in the first part": [5],
        "at the first step of the second": [second],
        "in the second, and once more": [second + 3, 3],
    }[when]:
        with pytest.raises(KilledError):
            trained(tmp_path, kill_at=kill)
    again, rest = trained(tmp_path)
    assert 0 < len(rest) < len(told)
    for one, other in zip(
        outcome.model.state_dict().values(), again.model.state_dict().values(), strict=True
    ):
        assert torch.equal(one, other)
    assert outcome.curve.points == again.curve.points and outcome.budget_used == again.budget_used


def test_lengths_that_do_not_grow_are_refused() -> None:
    for over in ({"initial_seq_len": 23}, {"initial_seq_len": 11, "long_seq_share": 1.0}):
        with pytest.raises(InputError, match="initial_seq_len is"):
            tiny.variant("bert", pretrain=over)
    assert [(end, how.seq_len) for end, how in tiny.variant("bert").pretrain.phases] == [(1.0, 23)]
    both = tiny.variant("bert", pretrain={"initial_seq_len": 11, "long_seq_share": 0.25}).pretrain
    assert [(end, how.seq_len) for end, how in both.phases] == [(0.75, 11), (1.0, 23)]
