"""The heads of an encoder under test: fitted, or started, so that their training can pause.

Shapes: M answers of the items, L layers, D width, K outputs.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch

from lineage.answers.base import HeadAnswer
from lineage.data.task_data import SplitItems
from lineage.evaluation.bilstm_probe import (
    BilstmProbe,
    CachedFeatures,
    predict_bilstm_probe,
    start_bilstm_probe,
)
from lineage.evaluation.early_stopping import CurvePoint, ValidatedTraining, Validation
from lineage.evaluation.encoding import EncodedItem
from lineage.evaluation.feature_store import FeatureScaling, scaling_to_tensors
from lineage.evaluation.finetuning import (
    FinetunedModel,
    predict_finetuned,
    score_finetuned,
    start_finetuning,
)
from lineage.evaluation.linear_probe import fit_linear_probe
from lineage.evaluation.setfit import encode_texts
from lineage.evaluation.settings import (
    BilstmProbeSettings,
    FinetuneSettings,
    HyperparameterTrials,
    LinearProbeSettings,
    SetfitSettings,
)
from lineage.evaluation.systems import EncoderUnderTest, EvalRun
from lineage.models.base import Trained
from lineage.results import Note

# (M, K) outputs, such as probabilities, and (M,) the decoded tags of a CRF.
HeadOutput = tuple[np.ndarray, np.ndarray | None]


@dataclass(frozen=True)
class FittedHead:
    """A head that can predict, and what is kept of its training."""

    predict: Callable[[SplitItems], HeadOutput]
    # The tensors that `lineage.evaluation.saved_systems` saves. A probe has its weights and the
    # scaling of the features that it reads, a fine-tuned network all its weights, and SetFit the
    # weights of the head and of the encoder.
    get_tensors: Callable[[], dict[str, torch.Tensor]]
    # Empty for a linear probe, which L-BFGS fits; for SetFit the loss of its pairs.
    learning_curve: Sequence[CurvePoint] = ()
    notes: Sequence[Note] = ()


@dataclass(frozen=True)
class StartedHead:
    """A head whose training can pause. A linear probe, also that of SetFit, is fitted at once."""

    head: FittedHead  # predicts with the present weights; has no curve yet
    training: ValidatedTraining[Any] | None = None  # None: a linear probe

    def finish(self) -> FittedHead:
        """Train the head to the end. Raises EvaluationError if training fails."""
        if self.training is not None:
            self.training.train_to_end()
        return self.stop()

    def stop(self) -> FittedHead:
        """Return the head with its best weights so far. It cannot be trained any more."""
        if self.training is None:
            return self.head
        self.training.keep_best()
        return replace(self.head, learning_curve=self.training.curve)


@dataclass(frozen=True)
class HeadProblem:
    """The data of a head: some rows of the table train, and the items that validate it."""

    train_rows: np.ndarray
    labels_M: np.ndarray
    answer: HeadAnswer
    validation: SplitItems
    validation_labels_M: np.ndarray
    # (outputs of the validation items, decoded tags) -> the task's first metric
    score_validation: Callable[[np.ndarray, np.ndarray | None], float]


def start_head(
    encoder: EncoderUnderTest, run: EvalRun, settings: HyperparameterTrials, problem: HeadProblem
) -> StartedHead:
    """Build the head of a run, ready to be trained; fit a linear probe, also that of SetFit.

    Raises EvaluationError if fitting fails.
    """
    seed = run.finetune_seed or 0
    if isinstance(settings, LinearProbeSettings):
        return StartedHead(_fit_linear_probe(encoder, settings, problem, seed=seed))
    if isinstance(settings, BilstmProbeSettings):
        return _start_bilstm_probe(encoder, settings, problem, seed=seed)
    if isinstance(settings, SetfitSettings):
        return StartedHead(_fit_setfit(encoder, settings, problem, seed=seed))
    assert isinstance(settings, FinetuneSettings)
    return _start_finetuning(encoder, settings, problem, seed=seed)


def _fit_linear_probe(
    encoder: EncoderUnderTest, settings: LinearProbeSettings, problem: HeadProblem, *, seed: int
) -> FittedHead:
    probe = fit_linear_probe(
        encoder.answer_features("train", problem.train_rows),
        problem.labels_M,
        problem.answer,
        settings,
        seed=seed,
    )

    def predict(part: SplitItems) -> HeadOutput:
        return probe(encoder.answer_features(part.table, part.rows_N)), None

    def get_tensors() -> dict[str, torch.Tensor]:
        scaling = encoder.features["train"].scaling
        weight, bias_K = probe.fold(scaling)  # (K, L D)
        return {"weight": weight, "bias": bias_K} | scaling_to_tensors(scaling)

    notes = [] if probe.has_converged else [Note("not_converged", settings.max_iter)]
    return FittedHead(predict, get_tensors, notes=notes)


def _fit_setfit(
    encoder: EncoderUnderTest, settings: SetfitSettings, problem: HeadProblem, *, seed: int
) -> FittedHead:
    context = encoder.context
    tuned = encoder.tune_on_pairs(settings, problem.train_rows, problem.labels_M, seed=seed)

    def embed(table: str, rows: np.ndarray) -> np.ndarray:
        """Return the tuned encoder's vectors of some items, which it keeps."""
        key = (table, rows.tobytes())
        if key not in tuned.vectors:
            items = [context.items[table][i] for i in rows]
            tokenizer = context.checkpoint.tokenizer
            tuned.vectors[key] = encode_texts(
                tuned.model, tokenizer, items, precision=context.precision
            )
        return tuned.vectors[key]

    probe = fit_linear_probe(
        embed("train", problem.train_rows),
        problem.labels_M,
        problem.answer,
        settings.probe,
        seed=seed,
    )

    def predict(part: SplitItems) -> HeadOutput:
        return probe(embed(part.table, part.rows_N)), None

    def get_tensors() -> dict[str, torch.Tensor]:
        scaling = FeatureScaling.none((1, len(probe.weight_DK)))
        weight_KD, bias_K = probe.fold(scaling)
        return {"weight": weight_KD, "bias": bias_K} | tuned.model.state_dict()

    notes = [] if probe.has_converged else [Note("not_converged", settings.probe.max_iter)]
    return FittedHead(predict, get_tensors, tuned.learning_curve, notes)


def _start_bilstm_probe(
    encoder: EncoderUnderTest, settings: BilstmProbeSettings, problem: HeadProblem, *, seed: int
) -> StartedHead:
    validation = problem.validation

    def select(table: str, rows: np.ndarray) -> CachedFeatures:
        return encoder.cached_features[table].select(rows)

    def validate(probe: BilstmProbe) -> Validation:
        features = select(validation.table, validation.rows_N)
        output = predict_bilstm_probe(probe, features, problem.validation_labels_M)
        score = problem.score_validation(output.outputs_MK, output.decoded_M)
        return Validation(score, output.loss)

    training = start_bilstm_probe(
        select("train", problem.train_rows),
        problem.labels_M,
        problem.answer,
        settings,
        seed=seed,
        device=encoder.context.device,
        validate=validate,
    )
    model = training.model

    def predict(part: SplitItems) -> HeadOutput:
        output = predict_bilstm_probe(model, select(part.table, part.rows_N))
        return output.outputs_MK, output.decoded_M

    def get_tensors() -> dict[str, torch.Tensor]:
        assert model.scaling is not None
        return model.state_dict() | scaling_to_tensors(model.scaling)

    return StartedHead(FittedHead(predict, get_tensors), training)


def _start_finetuning(
    encoder: EncoderUnderTest, settings: FinetuneSettings, problem: HeadProblem, *, seed: int
) -> StartedHead:
    context = encoder.context
    tokenizer = context.checkpoint.tokenizer
    family = context.checkpoint.family
    validation = problem.validation

    def select(table: str, rows: np.ndarray) -> list[EncodedItem]:
        items = context.items[table]
        return [items[i] for i in rows]

    def validate(model: FinetunedModel) -> Validation:
        outputs_MK, loss = score_finetuned(
            model,
            tokenizer,
            select(validation.table, validation.rows_N),
            problem.validation_labels_M,
            precision=context.precision,
        )
        return Validation(problem.score_validation(outputs_MK, None), loss)

    training = start_finetuning(
        encoder.build_encoder(settings),
        tokenizer,
        select("train", problem.train_rows),
        problem.labels_M,
        problem.answer,
        settings,
        seed=seed,
        precision=context.precision,
        auxiliary_loss=family.auxiliary_loss if isinstance(family, Trained) else None,
        validate=validate,
    )
    model = training.model

    def predict(part: SplitItems) -> HeadOutput:
        items = select(part.table, part.rows_N)
        return predict_finetuned(model, tokenizer, items, precision=context.precision), None

    return StartedHead(FittedHead(predict, model.state_dict), training)
