"""Measure the cost of evaluating a model on a task: the evaluation's code runs on a few items."""

import dataclasses
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch

from lineage.answers.base import HeadAnswer
from lineage.config.params import Params
from lineage.data.task_data import TaskData
from lineage.evaluation.evaluate import evaluate_runs
from lineage.forecast.evaluation import EvaluationCosts, HeadCosts
from lineage.forecast.measure import LinearCost, Stopwatch, measure_growing, time_call
from lineage.methods.bilstm_probe import BilstmProbeMethod, fit_bilstm_probe, predict_bilstm_probe
from lineage.methods.cached_features import CachedFeatures
from lineage.methods.encoder import EncoderUnderTest, EvalContext, EvalRun
from lineage.methods.encoding import EncodedItem
from lineage.methods.finetuning import FinetuneMethod, finetune, predict_finetuned
from lineage.methods.frozen_features import FeatureExtractor
from lineage.methods.linear_probe import fit_linear_probe
from lineage.methods.registry import EvaluateSettings
from lineage.methods.setfit import SetfitMethod, TunedEncoder, encode_texts, tune_encoder
from lineage.methods.stored_features import StoredFeatures
from lineage.networks.base import Trained
from lineage.networks.checkpoint import Checkpoint
from lineage.networks.weights import WEIGHTS_FILE
from lineage.randomness import generator
from lineage.study.models import ModelConfig
from lineage.tokenizers.tokenizer import Tokenizer

SAMPLE_BATCHES = 8  # of items
MIN_SAMPLE_ITEMS = 64
FIRST_SCORED_ITEMS = 32  # of a task without training


@dataclasses.dataclass(frozen=True)
class _Sample:
    """A few training items, as the model reads them."""

    encoder: EncoderUnderTest
    table: pd.DataFrame
    items: list[EncodedItem]
    answer: HeadAnswer

    @property
    def tokenizer(self) -> Tokenizer:
        return self.encoder.context.checkpoint.tokenizer

    @property
    def precision(self) -> str:
        return self.encoder.context.precision

    def build_extractor(self) -> FeatureExtractor:
        """Return the encoder for the features of the sample."""
        return dataclasses.replace(self.encoder.build_extractor(), tables={"train": self.items})

    def labels(self, num_items: int) -> np.ndarray:
        """Return the labels of the first items' answers."""
        return self.answer.labels(self.table.iloc[:num_items])


def probe_evaluation(
    model: ModelConfig,
    params: Params,
    model_dir: Path,
    tokens_dir: Path,
    task_dir: Path,
    device: torch.device,
    *,
    max_seconds: float,
) -> EvaluationCosts:
    """Load the model and the task as the stage does, and measure each kind of work."""
    stopwatch = Stopwatch()
    context = EvalContext(
        checkpoint=Checkpoint.load(model_dir),
        task=TaskData.load(task_dir, split=params.report.split),
        settings=model.evaluate,
        pretrain_seed=0,
        text_bytes=None,
        precision=params.precision,
        device=device,
        tokens_dir=tokens_dir,
    )
    load_seconds = stopwatch.seconds
    costs = EvaluationCosts(load_seconds, encode_seconds=0.0)
    if not model.family.can_answer(
        context.kind.answer.answered_by, context.checkpoint.architecture
    ):
        return costs
    if context.kind.answer.answered_by == "translator":
        return _probe_translation(context, costs, max_seconds=max_seconds)
    if context.kind.answer.answered_by != "head":
        zero_shot = _probe_zero_shot(context, max_seconds=max_seconds)
        return dataclasses.replace(costs, zero_shot=zero_shot)
    suits_setfit = context.kind.suits_setfit(params.tasks[context.task.info["name"]])
    return _probe_heads(
        context,
        costs,
        setfit=model.name in params.grid.setfit_models and suits_setfit,
        max_seconds=max_seconds,
    )


def _settings(context: EvalContext) -> EvaluateSettings:
    assert isinstance(context.settings, EvaluateSettings)
    return context.settings


def _sample_context(context: EvalContext, num_items: int) -> EvalContext:
    """Return the context with at most so many random items in each table."""
    splits = {}
    for name, table in context.task.splits.items():
        rows = generator("forecast", name).permutation(len(table))[:num_items]
        splits[name] = table.iloc[np.sort(rows)].reset_index(drop=True)
    return dataclasses.replace(context, task=dataclasses.replace(context.task, splits=splits))


def _probe_zero_shot(context: EvalContext, *, max_seconds: float) -> LinearCost:
    """Measure tasks without training: by the number of scored items, over all splits."""
    num_splits = max(1, len(context.task.scored_splits))
    largest = max(len(context.task.splits[split]) for split in context.task.scored_splits)

    def evaluate(num_items: int) -> None:
        with tempfile.TemporaryDirectory() as folder:
            evaluate_runs(
                _sample_context(context, num_items),
                [EvalRun("random", "zero_shot")],
                cache_dir=Path(folder),
                report_progress=lambda done, note: None,
            )

    cost = measure_growing(
        evaluate, first_size=FIRST_SCORED_ITEMS, full_size=largest, max_seconds=max_seconds
    ).cost
    return dataclasses.replace(cost, seconds_per_unit=cost.seconds_per_unit / num_splits)


def _probe_heads(
    context: EvalContext, costs: EvaluationCosts, *, setfit: bool, max_seconds: float
) -> EvaluationCosts:
    finetune_settings = _settings(context).finetune
    num_items = max(MIN_SAMPLE_ITEMS, SAMPLE_BATCHES * finetune_settings.batch_size)
    sample_context = _sample_context(context, num_items)
    table = sample_context.task.splits["train"]
    table = table[context.kind.answer.can_be_learned(table)].reset_index(drop=True)
    sample_task = dataclasses.replace(sample_context.task, splits={"train": table})
    sample_context = dataclasses.replace(sample_context, task=sample_task)
    encode_seconds = time_call(lambda: sample_context.items) / len(table)
    items = sample_context.items["train"]
    encoder = EncoderUnderTest(sample_context, "pretrained")
    answer = context.kind.answer.fit(context.task.info["labels"], table)
    assert isinstance(answer, HeadAnswer)
    sample = _Sample(encoder, table, items, answer)
    num_measures = 1 + setfit + len(context.task.info["probes"])
    share_seconds = max_seconds / num_measures
    first_build_seconds = time_call(
        lambda: encoder.build_encoder(body_dropout=finetune_settings.body_dropout)
    )
    build_seconds = time_call(
        lambda: encoder.build_encoder(body_dropout=finetune_settings.body_dropout)
    )
    costs = dataclasses.replace(
        costs,
        load_seconds=costs.load_seconds + max(0.0, first_build_seconds - build_seconds),
        encode_seconds=encode_seconds,
        build_seconds=build_seconds,
        answers_per_item=sum(item.num_answers for item in items) / len(items),
        finetune=_probe_finetuning(sample, finetune_settings, max_seconds=share_seconds),
        finetuned_bytes=_weights_bytes(context.checkpoint),
    )
    if setfit:
        settings = context.settings.methods["setfit"]
        assert isinstance(settings, SetfitMethod)
        setfit_costs = _probe_setfit(sample, settings, max_seconds=share_seconds)
        costs = dataclasses.replace(costs, setfit=setfit_costs)
    if "linear" in context.task.info["probes"]:
        costs = _probe_linear(sample, costs, context, max_seconds=share_seconds)
    if "bilstm" in context.task.info["probes"]:
        costs = _probe_bilstm(sample, costs, max_seconds=share_seconds)
    return costs


def _weights_bytes(checkpoint: Checkpoint) -> int:
    assert checkpoint.weights_path is not None
    return checkpoint.weights_path.with_name(WEIGHTS_FILE).stat().st_size


def _probe_finetuning(
    sample: _Sample, settings: FinetuneMethod, *, max_seconds: float
) -> HeadCosts:
    context = sample.encoder.context
    family = context.checkpoint.family
    auxiliary_loss = family.auxiliary_loss if isinstance(family, Trained) else None
    fitted: list[Any] = []

    def fit(num_items: int, epochs: int) -> float:
        trial = dataclasses.replace(settings, epochs=epochs, min_steps=None, trials=())
        encoder = sample.encoder.build_encoder(body_dropout=trial.body_dropout)
        stopwatch = Stopwatch()
        model = finetune(
            encoder,
            sample.tokenizer,
            sample.items[:num_items],
            sample.labels(num_items),
            sample.answer,
            trial,
            seed=0,
            precision=sample.precision,
            auxiliary_loss=auxiliary_loss,
        )
        fitted.append(model)
        return stopwatch.seconds

    costs = _measure_epochs(fit, len(sample.items), settings.batch_size, max_seconds=max_seconds)
    predict_seconds = time_call(
        lambda: predict_finetuned(
            fitted[-1], sample.tokenizer, sample.items, precision=sample.precision
        )
    )
    return dataclasses.replace(costs, predict_seconds=predict_seconds / len(sample.items))


def _probe_setfit(sample: _Sample, settings: SetfitMethod, *, max_seconds: float) -> HeadCosts:
    """Fine-tune on a few batches of pairs, of two labels in turn: the labels cost nothing."""
    num_items = len(sample.items)
    tuned: list[TunedEncoder] = []

    def tune(num_steps: int) -> float:
        encoder = sample.encoder.build_encoder()
        stopwatch = Stopwatch()
        one = tune_encoder(
            encoder,
            sample.tokenizer,
            sample.items,
            np.arange(num_items) % 2,
            dataclasses.replace(settings, max_steps=num_steps),
            seed=0,
            precision=sample.precision,
        )
        tuned[:] = [one]  # the memory of one model is measured
        return stopwatch.seconds

    first_seconds = tune(1)
    single_seconds = tune(1)
    affordable = int(max_seconds / (2 * max(single_seconds, 1e-6)))
    num_steps = min(max(2, affordable), settings.count_steps(num_items))
    step_seconds = max(0.0, tune(num_steps) - single_seconds) / max(1, num_steps - 1)
    predict_seconds = time_call(
        lambda: encode_texts(
            tuned[-1].model, sample.tokenizer, sample.items, precision=sample.precision
        )
    )
    return HeadCosts(
        first_seconds=max(0.0, first_seconds - single_seconds),
        fit_seconds=max(0.0, single_seconds - step_seconds),
        step_seconds=step_seconds / settings.count_distinct_texts(num_items),
        predict_seconds=predict_seconds / num_items,
    )


def _measure_epochs(
    fit: Callable[[int, int], float], num_items: int, batch_size: int, *, max_seconds: float
) -> HeadCosts:
    """Measure a fit and its steps, from fits of one epoch and of two."""
    first_items = min(batch_size, num_items)
    first_seconds = fit(first_items, 1)
    single_seconds = fit(first_items, 1)
    affordable = int(max_seconds / (3 * max(single_seconds, 1e-6)))
    num_batches = min(max(2, affordable), -(-num_items // batch_size))
    used_items = min(num_batches * batch_size, num_items)
    one_epoch = fit(used_items, 1)
    two_epochs = fit(used_items, 2)
    step_seconds = max(0.0, two_epochs - one_epoch) / num_batches
    return HeadCosts(
        first_seconds=max(0.0, first_seconds - single_seconds),
        fit_seconds=max(0.0, one_epoch - num_batches * step_seconds),
        step_seconds=step_seconds,
    )


def _probe_linear(
    sample: _Sample, costs: EvaluationCosts, context: EvalContext, *, max_seconds: float
) -> EvaluationCosts:
    """Measure frozen features, and fits on as many answers as there is time for.

    Answers beyond the sample are its own with noise, so that they are not easier to classify.
    """
    extractor = sample.build_extractor()
    settings = _settings(context).linear_probe

    def extract() -> StoredFeatures:
        return extractor.store(settings.features, folder=None)["train"]

    first_seconds = time_call(extract)
    stopwatch = Stopwatch()
    features = extract()
    feature_seconds = stopwatch.seconds / len(sample.items)
    labels = sample.labels(len(sample.items))
    num_train = len(context.task.splits["train"])
    most_answers = max(len(labels), round(num_train * costs.answers_per_item))
    if sample.answer.mean_over_items:  # the words of an item belong together
        most_answers = len(labels)
    rng = generator("forecast", "noise")
    trial = settings.with_trial(0) if settings.trials else settings

    def fit(num_answers: int) -> None:
        rows = np.arange(num_answers) % len(labels)
        noisy = features.stored[rows]
        noisy += rng.standard_normal(noisy.shape, np.float32)  # stored features have a scale of 1
        fit_linear_probe(
            dataclasses.replace(features, stored=noisy), labels[rows], sample.answer, trial, seed=0
        )

    linear_fit = measure_growing(
        fit, first_size=len(labels), full_size=most_answers, max_seconds=max_seconds
    ).cost
    return dataclasses.replace(
        costs,
        load_seconds=costs.load_seconds
        + max(0.0, first_seconds - len(sample.items) * feature_seconds),
        feature_seconds=feature_seconds,
        linear_fit=linear_fit,
        feature_bytes=features.stored.nbytes / len(sample.items),
    )


def _probe_bilstm(
    sample: _Sample, costs: EvaluationCosts, *, max_seconds: float
) -> EvaluationCosts:
    extractor = sample.build_extractor()
    settings = _settings(sample.encoder.context).bilstm_probe
    device = sample.encoder.context.device
    is_per_word = sample.encoder.context.kind.answer.are_words

    def cache() -> CachedFeatures:
        return extractor.store_cached(settings.features, is_per_word=is_per_word, folder=None)[
            "train"
        ]

    features = cache()
    cache_seconds = time_call(cache) / len(sample.items)
    fitted: list[Any] = []

    def fit(num_items: int, epochs: int) -> float:
        trial: BilstmProbeMethod = dataclasses.replace(
            settings, epochs=epochs, min_steps=None, trials=()
        )
        stopwatch = Stopwatch()
        probe = fit_bilstm_probe(
            features.select(np.arange(num_items)),
            sample.labels(num_items),
            sample.answer,
            trial,
            seed=0,
            device=device,
        )
        fitted.append(probe)
        return stopwatch.seconds

    head_costs = _measure_epochs(
        fit, len(sample.items), settings.batch_size, max_seconds=max_seconds
    )
    predict_seconds = time_call(lambda: predict_bilstm_probe(fitted[-1], features))
    num_bytes = sum(array.nbytes for arrays in features.layers for array in arrays)
    return dataclasses.replace(
        costs,
        cache_seconds=cache_seconds,
        cache_bytes=num_bytes / len(sample.items),
        bilstm=dataclasses.replace(head_costs, predict_seconds=predict_seconds / len(sample.items)),
    )


def _probe_translation(
    context: EvalContext, costs: EvaluationCosts, *, max_seconds: float
) -> EvaluationCosts:
    """Train a translator for an epoch and for two, and translate a few sentences.

    An untrained translator does not end its sentences, so they may be as long as the references.
    """
    translation = _settings(context).translation
    assert translation is not None, "only such a model can translate"
    num_items = SAMPLE_BATCHES * translation.batch_size
    sample_context = _sample_context(context, num_items)
    scored = sample_context.task.scored_splits
    targets = [text for split in scored for text in sample_context.task.splits[split]["target"]]
    lengths = [len(tokens.ids) for tokens in context.checkpoint.tokenizer.tokenize(targets)]
    max_new_tokens = min(translation.max_new_tokens, round(1.2 * max(lengths)) + 1)

    def fit(used_items: int, epochs: int) -> float:
        settings = dataclasses.replace(
            _settings(context),
            translation=dataclasses.replace(
                translation, epochs=epochs, max_new_tokens=max_new_tokens
            ),
        )
        run = EvalRun("random", "finetuned", used_items, 0)
        stopwatch = Stopwatch()
        with tempfile.TemporaryDirectory() as folder:
            evaluate_runs(
                dataclasses.replace(sample_context, settings=settings),
                [run],
                cache_dir=Path(folder),
                report_progress=lambda done, note: None,
            )
        return stopwatch.seconds

    num_train = len(sample_context.task.splits["train"])
    measured = _measure_epochs(fit, num_train, translation.batch_size, max_seconds=max_seconds)
    # Besides its steps, a run translates every scored sentence.
    predict_seconds = measured.fit_seconds / max(1, len(targets))
    return dataclasses.replace(
        costs,
        finetune=dataclasses.replace(measured, fit_seconds=0.0, predict_seconds=predict_seconds),
        finetuned_bytes=_weights_bytes(context.checkpoint),
    )
