"""Validation decides how long a head is trained, and which of its weights are kept."""

import dataclasses
import gc
import math
import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from torch import nn

from lineage.data.task_data import TaskData
from lineage.evaluation.evaluate import EvaluationOutput
from lineage.evaluation.result_rows import curve_points
from lineage.methods import finetuning
from lineage.methods.bilstm_probe import predict_bilstm_probe, start_bilstm_probe
from lineage.methods.early_stopping import (
    CurvePoint,
    EarlyStopping,
    ResumePoint,
    ValidatedTraining,
    Validation,
    count_max_steps,
    curve_frame,
    steps_between_validations,
)
from lineage.methods.finetuning import (
    FinetunedModel,
    score_finetuned,
    start_finetuning,
    update_batch_norm,
)
from lineage.methods.linear_probe import LinearProbe, LinearProbeMethod, fit_linear_probe
from lineage.methods.registry import EvaluateSettings
from lineage.methods.trials import Trial
from lineage.randomness import generator
from lineage.report.notes import format_notes
from lineage.results import CURVE_COLUMNS
from tests.helpers import tiny
from tests.helpers.first_word import FINETUNE, PROBE
from tests.helpers.fitting import cache_features
from tests.helpers.walkers import TWENTY_STEPS, WalkerTraining, start_walker

NAN = math.nan


def train_walker(
    validations: Sequence[Validation] | None, settings: EarlyStopping = TWENTY_STEPS, **options: Any
) -> WalkerTraining:
    """Train a Walker to the end."""
    walker = start_walker(validations, settings, **options)
    walker.training.train_to_end()
    walker.training.keep_best()
    return walker


def peak_at(best: int) -> list[Validation]:
    """Return validations whose score rises up to one of them, and falls afterwards."""
    return [
        Validation(1.0 - 0.01 * abs(index - best), 1.0 + abs(index - best)) for index in range(20)
    ]


@pytest.mark.parametrize("best", [0, 6, 13, 19])
def test_the_weights_with_the_best_validation_score_are_kept(best: int) -> None:
    training = train_walker(peak_at(best))
    assert training.kept == best
    assert torch.equal(training.model.weight.detach(), training.weights[best])
    assert int(training.model.num_batches) == training.num_batches[best] == best + 1, (
        "buffers belong to the weights"
    )
    num_validations = min(best + 1 + 5, 20)
    assert len(training.curve) == len(training.losses) == num_validations
    if best < 19:
        assert not torch.equal(training.weights[best], training.weights[-1])


def test_a_training_does_not_advance_beyond_its_end() -> None:
    walker = start_walker(peak_at(3))
    for _ in range(5):
        walker.training.advance(4)
    assert walker.training.is_over
    assert len(walker.losses) == 3 + 1 + 5


@pytest.mark.parametrize("patience", [1, 2, 5])
@pytest.mark.parametrize(
    ("scores", "losses", "last_improvement"),
    [
        ([0.5] * 20, [1.0] * 20, 0),
        ([0.5] * 20, [1.0 - 0.01 * index for index in range(20)], 19),
        ([0.01 * index for index in range(20)], [1.0 + index for index in range(20)], 19),
        # Losses that fall again, but not below the lowest, are no improvement.
        ([0.5] + [0.6] * 19, [1.0] + [3.0 - 0.05 * index for index in range(19)], 1),
        # The loss improves after the score has stopped to, and the other way round.
        ([0.1, 0.2] + [0.2] * 18, [1.0, 0.9, 0.8] + [0.8] * 17, 2),
        ([0.1, 0.2, 0.3] + [0.3] * 17, [1.0, 0.9] + [0.9] * 18, 2),
    ],
)
def test_training_ends_when_neither_score_nor_loss_has_improved_for_patience_validations(
    scores: list[float], losses: list[float], last_improvement: int, patience: int
) -> None:
    validations = [Validation(*pair) for pair in zip(scores, losses, strict=True)]
    training = train_walker(validations, dataclasses.replace(TWENTY_STEPS, patience=patience))
    assert len(training.curve) == min(last_improvement + 1 + patience, 20)


@pytest.mark.parametrize(("patience", "num_validations"), [(4, 20), (3, 4)])
def test_each_improvement_starts_the_patience_anew(patience: int, num_validations: int) -> None:
    """The score rises at every fourth validation."""
    validations = [Validation(index // 4 / 10, 1.0) for index in range(20)]
    training = train_walker(validations, dataclasses.replace(TWENTY_STEPS, patience=patience))
    assert len(training.curve) == num_validations
    assert training.kept == num_validations - 4


@pytest.mark.parametrize(
    ("learning_rate", "num_validations"), [(0.3, 1 + 5), (0.01, 9 + 5), (1e-5, 20)]
)
def test_the_patience_begins_when_the_training_loss_has_fallen_by_a_twentieth(
    learning_rate: float, num_validations: int
) -> None:
    """Nothing improves; with the lower rates, the loss falls that far in nine steps, or never."""
    training = train_walker([Validation(0.5, 1.0)] * 20, learning_rate=learning_rate)
    first, *others = training.losses
    has_fallen = [loss < 0.95 * first for loss in others]
    assert sum(has_fallen) == (0 if num_validations == 20 else 5)
    assert len(training.curve) == num_validations
    assert training.kept == 0


def test_a_score_that_is_not_a_number_is_worse_than_any_other() -> None:
    scores = [NAN, NAN, -0.9, NAN, -0.8, NAN, *[NAN] * 14]
    training = train_walker([Validation(score, 1.0 + index) for index, score in enumerate(scores)])
    assert training.kept == 4
    assert len(training.curve) == 4 + 1 + 5
    assert math.isnan(training.curve[0].validation_score)


@pytest.mark.parametrize(
    ("validations", "kept"),
    [
        ([(0.5, 3.0), (0.5, 1.0), (0.5, 2.0)], 1),
        ([(0.5, 2.0), (0.5, 2.0), (0.5, 2.0)], 0),  # the first of equal ones
        ([(0.5, 1.0), (0.6, 3.0), (0.6, 2.0)], 2),  # the score counts first
        ([(0.6, 2.0), (0.5, 1.0), (0.6, 1.5)], 2),
        ([(NAN, 2.0), (NAN, 1.0), (NAN, 3.0)], 1),  # without any score
    ],
)
def test_equal_scores_are_decided_by_the_lower_loss(
    validations: list[tuple[float, float]], kept: int
) -> None:
    settings = dataclasses.replace(TWENTY_STEPS, epochs=1)
    training = train_walker(
        [Validation(*pair) for pair in validations], settings, steps_per_epoch=3
    )
    assert len(training.curve) == 3
    assert training.kept == kept
    assert torch.equal(training.model.weight.detach(), training.weights[kept])


def test_without_patience_all_steps_are_taken_and_the_last_weights_are_kept() -> None:
    """They are validated for the curve, which changes nothing."""
    validated = train_walker(peak_at(3), dataclasses.replace(TWENTY_STEPS, patience=None))
    unvalidated = train_walker(None)
    for training in (validated, unvalidated):
        assert len(training.losses) == len(training.curve) == 20
        assert training.kept == 19
    assert torch.equal(validated.model.weight, unvalidated.model.weight)
    assert torch.equal(validated.model.weight.detach(), validated.weights[-1])
    assert [point.validation_score for point in validated.curve] == [
        validation.score for validation in peak_at(3)
    ]
    for point in unvalidated.curve:
        assert math.isnan(point.validation_score) and math.isnan(point.validation_loss)


def test_the_curve_has_the_mean_training_loss_since_the_point_before() -> None:
    """Of 47 steps every third is validated, and the last one."""
    settings = dataclasses.replace(TWENTY_STEPS, epochs=1)
    training = train_walker(
        [Validation(0.1 + 0.01 * index, 2.0 - 0.1 * index) for index in range(16)],
        settings,
        steps_per_epoch=47,
    )
    steps = [*range(3, 46, 3), 47]
    assert [point.step for point in training.curve] == steps
    assert [point.epoch for point in training.curve] == pytest.approx([n / 47 for n in steps])
    starts = [0, *steps[:-1]]
    assert [point.train_loss for point in training.curve] == pytest.approx(
        [np.mean(training.losses[a:b]) for a, b in zip(starts, steps, strict=True)], rel=1e-5
    )
    assert training.losses[0] > 1.2 * training.losses[-1], "otherwise the test shows nothing"
    table = curve_frame(training.curve)
    assert [*table.columns] == [column.name for column in dataclasses.fields(CurvePoint)]
    assert table["validation_loss"].tolist() == pytest.approx(np.linspace(2.0, 0.5, 16))
    assert table["is_kept"].tolist() == [False] * 15 + [True]
    assert [*curve_frame([]).columns] == [*table.columns]


@pytest.mark.parametrize(
    ("epochs", "min_steps", "steps_per_epoch", "expected"),
    [
        (3, None, 7, 21),
        (3, 21, 7, 21),
        (3, 22, 7, 28),  # whole epochs
        (2, 300, 7, 301),
        (20, 300, 1, 300),
        (20, 300, 4, 300),
        (20, 300, 100, 2000),
    ],
)
def test_the_highest_number_of_steps_is_that_of_whole_epochs(
    epochs: int, min_steps: int | None, steps_per_epoch: int, expected: int
) -> None:
    settings = EarlyStopping(epochs=epochs, min_steps=min_steps)
    assert count_max_steps(settings, steps_per_epoch) == expected
    if expected <= 28:
        training = train_walker(None, settings, steps_per_epoch=steps_per_epoch)
        assert training.curve[-1].step == len(training.losses) == expected


def test_a_training_is_validated_up_to_twenty_times_and_at_most_1000_steps_apart() -> None:
    assert [steps_between_validations(steps) for steps in (1, 20, 21, 40, 300, 301)] == [
        1,
        1,
        2,
        2,
        15,
        16,
    ]
    assert [steps_between_validations(steps) for steps in (20_000, 20_001, 10**7)] == [1000] * 3
    for num_steps in range(1, 20_000, 17):
        interval = steps_between_validations(num_steps)
        num_validations = -(-num_steps // interval)  # rounded up: the last step is validated too
        assert min(num_steps, 11) <= num_validations <= 20


@pytest.mark.parametrize("key", ["epochs", "min_steps", "patience", "batch_size"])
@pytest.mark.parametrize("value", [0, -3])
def test_counts_below_one_are_refused(key: str, value: int) -> None:
    keywords: dict[str, Any] = {key: value}
    with pytest.raises(ValueError, match=f"{key} is {value}"):
        EarlyStopping(**keywords)


METHODS = ("finetune", "bilstm_probe")
# ULMFiT has batch norm, and dropout on weights, embeddings and states.
METHODS_AND_FAMILIES = [("finetune", "gpt"), ("finetune", "ulmfit"), ("bilstm_probe", "gpt")]
Validate = Callable[[np.ndarray, float], Validation]


def loss_as_score(outputs_MK: np.ndarray, loss: float) -> Validation:
    return Validation(-loss, loss)


def start_training(
    method: str, task: TaskData, family: str, *, validate: Validate = loss_as_score, **changes: Any
) -> ValidatedTraining[Any]:
    """Return a training of a head with dropout.

    `validate` gets the outputs and the loss of each validation.
    """
    labels = {split: table["label"].to_numpy() for split, table in task.splits.items()}
    items = {
        split: tiny.encode(family, table, max_length=20) for split, table in task.splits.items()
    }
    tokenizer = tiny.tokenizer(family)
    answer = tiny.label_answer(2)
    changes = {"epochs": 3, "min_steps": None, "patience": 6, "dropout": 0.2} | changes
    if method == "bilstm_probe":
        features = {
            split: cache_features(tiny.model(family), tokenizer, part)
            for split, part in items.items()
        }

        def predict(model: Any) -> tuple[np.ndarray, float]:
            output = predict_bilstm_probe(model, features["validation"], labels["validation"])
            return output.outputs_MK, output.loss

        return start_bilstm_probe(
            features["train"],
            labels["train"],
            answer,
            dataclasses.replace(tiny.BILSTM_PROBE, **changes),
            seed=1,
            device=tiny.CPU,
            validate=lambda model: validate(*predict(model)),
        )

    def score(model: FinetunedModel) -> tuple[np.ndarray, float]:
        return score_finetuned(
            model, tokenizer, items["validation"], labels["validation"], precision="fp32"
        )

    names = ("embedding", "input", "weight", "hidden", "output")
    dropout: Any = dict.fromkeys(names, 0.2) if family == "ulmfit" else 0.2
    return start_finetuning(
        tiny.checkpoint(family).build(tiny.CPU, load_weights=False, body_dropout=dropout),
        tokenizer,
        items["train"],
        labels["train"],
        answer,
        dataclasses.replace(FINETUNE, **changes),
        seed=1,
        precision="fp32",
        validate=lambda model: validate(*score(model)),
    )


@dataclass
class RecordedFit:
    """A head that was fitted with validation, and its outputs at each validation."""

    model: Any
    outputs: list[np.ndarray]
    validations: list[Validation]
    curve: list[CurvePoint]


def fit_with_validation(
    method: str,
    task: TaskData,
    scores: Sequence[float] | None,
    *,
    patience: int | None,
    family: str = "gpt",
) -> RecordedFit:
    """Fit a head on a tiny model with these validation scores; without scores, never validate."""
    outputs: list[np.ndarray] = []
    validations: list[Validation] = []

    def record(outputs_MK: np.ndarray, loss: float) -> Validation:
        if scores is None:
            return Validation(math.nan, math.nan)
        outputs.append(outputs_MK)
        validations.append(Validation(scores[len(validations)], loss))
        return validations[-1]

    training = start_training(method, task, family, validate=record, patience=patience)
    training.train_to_end()
    training.keep_best()
    return RecordedFit(training.model, outputs, validations, training.curve)


def test_a_training_that_goes_on_in_another_process_gives_what_it_gives_at_once(
    task: TaskData, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Layers that were unfrozen step by step are so again; trial races stop at other points."""
    monkeypatch.setattr("lineage.methods.early_stopping.MAX_SAVE_SHARE", math.inf)
    assert FINETUNE.gradual_unfreezing > 0
    whole = start_training("finetune", task, "ulmfit", learning_rate=0.02)
    whole.train_to_end()
    point = ResumePoint(tmp_path / "training", 0.0, lambda: None)
    stopped = start_training("finetune", task, "ulmfit", learning_rate=0.02)
    stopped.resume(point)
    stopped.advance(4)
    resumed = start_training("finetune", task, "ulmfit", learning_rate=0.02)
    assert resumed.resume(point) > 0.0
    resumed.train_to_end()
    for training in (whole, resumed):
        training.keep_best()
    assert resumed.curve == whole.curve
    expected = whole.model.state_dict()
    for name, tensor in resumed.model.state_dict().items():
        assert torch.equal(tensor, expected[name]), name


@pytest.mark.parametrize(("method", "family"), METHODS_AND_FAMILIES)
def test_a_dropped_training_frees_its_model_at_once(
    method: str, family: str, task: TaskData
) -> None:
    """Otherwise the memory of a GPU would hold all models until Python collects its garbage."""
    training = start_training(method, task, family, learning_rate=0.01)
    training.advance(2)
    model = weakref.ref(training.model)
    gc.disable()
    del training
    gc.enable()
    assert model() is None


@pytest.mark.parametrize("patience", [30, None])
def test_batch_norm_has_the_statistics_of_the_kept_weights(
    patience: int | None, task: TaskData
) -> None:
    """Running statistics would lag behind the weights, in validation too.

    A random-init encoder, whose features hardly vary, would then be classified by noise.
    """
    fitted = fit_with_validation("finetune", task, [0.5] * 20, patience=patience, family="ulmfit")
    norms = [part for part in fitted.model.head.modules() if isinstance(part, nn.BatchNorm1d)]
    kept = [norm.running_mean.clone() for norm in norms]
    update_batch_norm(
        fitted.model,
        tiny.tokenizer("ulmfit"),
        tiny.encode("ulmfit", task.splits["train"], max_length=20),
        precision="fp32",
    )
    assert norms
    for norm, mean in zip(norms, kept, strict=True):
        torch.testing.assert_close(norm.running_mean, mean)


@pytest.mark.parametrize("method", METHODS)
def test_the_validation_loss_is_the_mean_over_all_items(method: str, task: TaskData) -> None:
    fitted = fit_with_validation(method, task, [0.5] * 20, patience=None)
    labels = task.splits["validation"]["label"].to_numpy()
    for outputs_MK, validation, point in zip(
        fitted.outputs, fitted.validations, fitted.curve, strict=True
    ):
        expected = -np.log(outputs_MK[np.arange(len(labels)), labels]).mean()
        assert validation.loss == point.validation_loss == pytest.approx(expected, rel=1e-4)


@pytest.mark.parametrize("method", METHODS)
def test_validation_does_not_change_the_steps_of_a_head(method: str, task: TaskData) -> None:
    """Both heads have dropout, which draws random numbers."""
    validated = fit_with_validation(method, task, [0.5] * 20, patience=None)
    unvalidated = fit_with_validation(method, task, None, patience=None)
    expected = unvalidated.model.state_dict()
    for name, tensor in validated.model.state_dict().items():
        assert torch.equal(tensor, expected[name]), name
    assert [point.train_loss for point in validated.curve] == [
        point.train_loss for point in unvalidated.curve
    ]


SETTINGS = EvaluateSettings(
    linear_probe=PROBE,
    bilstm_probe=dataclasses.replace(tiny.BILSTM_PROBE, epochs=2, patience=2),
    finetune=dataclasses.replace(
        FINETUNE,
        min_steps=None,
        patience=5,
        gradual_unfreezing=0.0,
        trials=(Trial(learning_rate=1e-7), Trial(learning_rate=0.02, epochs=10)),
    ),
)
SEEDS = (3, 5)


def evaluate_tiny_gpt(task: TaskData, cache_dir: Path) -> EvaluationOutput:
    """Evaluate an untrained tiny GPT with both probes and fine-tuning, on all labels."""
    data = TaskData(dataclasses.replace(task.info, probes=["linear", "bilstm"]), task.splits)
    context = tiny.eval_context("gpt", data, SETTINGS)
    return tiny.evaluate_runs(
        context, tiny.list_runs(data.info, ("random",), ("all",), SEEDS), cache_dir
    )


@pytest.fixture(scope="module")
def cache_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("cache")


@pytest.fixture(scope="module")
def evaluated(task: TaskData, cache_dir: Path) -> EvaluationOutput:
    return evaluate_tiny_gpt(task, cache_dir)


def test_an_evaluation_has_the_curves_of_all_trials_and_of_the_chosen_heads(
    evaluated: EvaluationOutput,
) -> None:
    """L-BFGS, which fits the linear probes, has none; only the first seed has trials."""
    curves = evaluated.curves
    assert [*curves.columns] == [*CURVE_COLUMNS]
    systems_with_curves = curves.groupby(["transfer", "head", "finetune_seed"])["trial"].unique()
    assert {key: sorted(trials) for key, trials in systems_with_curves.items()} == {
        ("finetuned", "linear", 3): ["0", "1", "chosen"],
        ("finetuned", "linear", 5): ["chosen"],
        ("frozen", "bilstm", 3): ["chosen"],
        ("frozen", "bilstm", 5): ["chosen"],
    }
    assert set(curves["model"]) == {"gpt"} and set(curves["label_count"]) == {"all"}
    assert set(curves["metric"]) == {"accuracy"}
    key = ["transfer", "head", "finetune_seed", "trial"]
    assert set(curves.groupby(key)["is_kept"].sum()) == {1}
    assert np.isfinite(curves[["train_loss", "validation_loss", "validation_score"]]).all(axis=None)
    assert (curves.groupby(key)["step"].diff().dropna() > 0).all()


def test_the_chosen_curve_is_that_of_the_best_trial_and_its_kept_score_is_reported(
    evaluated: EvaluationOutput,
) -> None:
    curves = evaluated.curves
    first = curves[(curves["transfer"] == "finetuned") & (curves["finetune_seed"] == 3)]
    by_trial = {
        trial: curve.drop(columns="trial").reset_index(drop=True)
        for trial, curve in first.groupby("trial")
    }
    best_scores = {
        trial: curve.loc[curve["is_kept"], "validation_score"].item()
        for trial, curve in by_trial.items()
    }
    assert best_scores["1"] > best_scores["0"], "trial 0 hardly learns"
    pd.testing.assert_frame_equal(by_trial["chosen"], by_trial["1"])
    kept = curves[curves["is_kept"]]
    reported: dict[Any, float | None] = {
        (row.transfer, row.head, row.finetune_seed, row.trial): row.value
        for row in evaluated.rows
        if row.split == "validation" and row.metric == "accuracy"
    }
    for point in kept.itertuples():
        key = (point.transfer, point.head, point.finetune_seed, point.trial)
        assert point.validation_score == pytest.approx(reported[key]), key


def test_curves_survive_the_cache(
    task: TaskData, evaluated: EvaluationOutput, cache_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*arguments: Any) -> Any:
        raise AssertionError("a cached head is not fitted again")

    tiny.record_starts(monkeypatch, refuse)
    cached = evaluate_tiny_gpt(task, cache_dir)
    pd.testing.assert_frame_equal(cached.curves, evaluated.curves)
    pd.testing.assert_frame_equal(cached.predictions, evaluated.predictions)
    assert cached.rows == evaluated.rows


def test_mlflow_shows_the_chosen_curves_by_system_and_seed(evaluated: EvaluationOutput) -> None:
    points = [*curve_points(evaluated.curves)]
    assert [point.step for point in points] == sorted({point.step for point in points})
    names = {name for point in points for name in point.values}
    assert names == {
        f"curves/random/{system}/all/seed {seed}/{value}"
        for system in ("finetuned", "frozen/bilstm")
        for seed in SEEDS
        for value in ("train_loss", "validation_loss", "validation_accuracy")
    }
    chosen = evaluated.curves[evaluated.curves["trial"] == "chosen"]
    assert sum(len(point.values) for point in points) == 3 * len(chosen)
    (row,) = chosen[(chosen["head"] == "bilstm") & (chosen["finetune_seed"] == 5)][-1:].itertuples()
    (point,) = [point for point in points if point.step == row.step]
    name = "curves/random/frozen/bilstm/all/seed 5/validation_loss"
    assert point.values[name] == row.validation_loss
    unvalidated = evaluated.curves.assign(validation_loss=NAN, validation_score=NAN)
    for point in curve_points(unvalidated):
        assert {name.rsplit("/", 1)[1] for name in point.values} == {"train_loss"}


def test_a_validation_that_is_not_finite_fails_the_trial(
    task: TaskData, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def score_nan(*arguments: Any, **options: Any) -> Any:
        outputs_MK, loss = score_finetuned(*arguments, **options)
        return outputs_MK * NAN, loss

    monkeypatch.setattr(finetuning, "score_finetuned", score_nan)
    output = evaluate_tiny_gpt(task, tmp_path)
    failed = [row for row in output.rows if row.status == "failed"]
    assert {row.transfer for row in failed} == {"finetuned"}
    for row in failed:
        assert "the predictions for validation are not finite" in format_notes(row.reason)
    assert set(output.curves["transfer"]) == {"frozen"}


@pytest.mark.parametrize("max_iter", [1, 1000])
def test_a_linear_probe_that_has_not_converged_is_reported_beside_the_chosen_head(
    max_iter: int, task: TaskData, tmp_path: Path
) -> None:
    probe = LinearProbeMethod(max_iter=max_iter, trials=(Trial(l2=0.01), Trial(l2=0.1)))
    settings = dataclasses.replace(SETTINGS, linear_probe=probe)
    data = TaskData(dataclasses.replace(task.info, probes=["linear"]), task.splits)
    context = tiny.eval_context("gpt", data, settings)
    runs = [*tiny.list_runs(data.info, ("random",), (20,), SEEDS, method="_probe")]
    for _ in range(2):  # the second time from the cache
        rows = tiny.evaluate_runs(context, runs, tmp_path).rows
        reasons: dict[str, list[str]] = {}
        for row in rows:
            reasons.setdefault(row.trial, []).append(format_notes(row.reason))
        message = "the fit had not converged within 1 iterations"
        for trial, texts in reasons.items():
            is_expected = max_iter == 1 and trial == "chosen"
            assert all((message in text) == is_expected for text in texts), trial
        assert len(reasons["chosen"]) == 2 * 2 * 2  # seeds, splits, metrics


def test_a_linear_probe_is_fitted_up_to_its_tolerance() -> None:
    rng = generator("features", 1)
    features = rng.standard_normal((40, 1, 5)).astype(np.float32)
    labels = (features[:, 0, 0] + rng.standard_normal(40) > 0).astype(np.int64)

    def fit(**settings: Any) -> LinearProbe:
        probe_settings = LinearProbeMethod(l2=0.01, **settings)
        return fit_linear_probe(features, labels, tiny.label_answer(2), probe_settings, seed=0)

    exact = fit(tolerance=1e-9)
    distances = []
    for tolerance in (1e-2, 1e-4):
        probe = fit(tolerance=tolerance)
        assert probe.has_converged
        distances.append(np.abs(probe(features) - exact(features)).max())
    assert exact.has_converged and 0.1 > distances[0] > 5 * distances[1] > 0
    assert not fit(tolerance=1e-9, max_iter=2).has_converged
