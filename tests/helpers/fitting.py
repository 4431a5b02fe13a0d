"""Heads on tiny models, in float32: trainings to their end, without validation, and features."""

import functools
import math
from dataclasses import replace
from typing import Any

import torch

from lineage.answers.base import HeadAnswer
from lineage.methods import cached_features, finetuning, stored_features
from lineage.methods.bilstm_probe import BilstmProbe, start_bilstm_probe
from lineage.methods.early_stopping import Validation
from lineage.methods.encoding import EncodedItem
from lineage.methods.finetuning import FinetunedModel, FinetuneMethod, start_finetuning
from lineage.networks.base import Encoder

# Fine-tuning with one learning rate for all layers, which falls, and without dropout.
PLAIN_FINETUNE = FinetuneMethod(
    epochs=12,
    batch_size=8,
    learning_rate=0.01,
    layer_lr_decay=1.0,
    cut_frac=0.1,
    ratio=32.0,
    gradual_unfreezing=0.0,
    weight_decay=0.0,
    dropout=0.0,
    max_grad_norm=1.0,
    min_steps=60,
    patience=None,
)

# The functions of the library in float32.
extract_features = functools.partial(stored_features.extract_features, precision="fp32")
cache_features = functools.partial(cached_features.cache_features, precision="fp32")
predict_finetuned = functools.partial(finetuning.predict_finetuned, precision="fp32")


def new_finetuned(
    encoder: Encoder, answer: HeadAnswer, settings: FinetuneMethod, item: EncodedItem
) -> FinetunedModel:
    """Return an encoder with a new head for items like this one."""
    return FinetunedModel(encoder, answer, settings, seed=1, example_item=item)


def no_validation(model: Any) -> Validation:
    return Validation(math.nan, math.nan)


def finetune(*inputs: Any, **options: Any) -> FinetunedModel:
    """Fine-tune an encoder, in place, with a new head for all epochs; the settings come last."""
    *data, settings = inputs
    settings = replace(settings, patience=None)
    options = {"seed": 1, "precision": "fp32"} | options
    training = start_finetuning(*data, settings, validate=no_validation, **options)
    training.train_to_end()
    return training.model.eval()


def fit_bilstm_probe(*inputs: Any, **options: Any) -> BilstmProbe:
    """Train a probe for all its epochs; the settings come last."""
    *data, settings = inputs
    settings = replace(settings, patience=None)
    options = {"seed": 1, "device": torch.device("cpu")} | options
    training = start_bilstm_probe(*data, settings, validate=no_validation, **options)
    training.train_to_end()
    return training.model
