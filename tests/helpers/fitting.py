"""Trainings of heads to their end, without validation."""

import math
from dataclasses import replace
from typing import Any

from lineage.methods.bilstm_probe import BilstmProbe, start_bilstm_probe
from lineage.methods.early_stopping import Validation
from lineage.methods.finetuning import FinetunedModel, start_finetuning


def no_validation(model: Any) -> Validation:
    return Validation(math.nan, math.nan)


def finetune(*inputs: Any, **options: Any) -> FinetunedModel:
    """Fine-tune an encoder, in place, with a new head for all epochs; the settings come last."""
    *data, settings = inputs
    settings = replace(settings, patience=None)
    training = start_finetuning(*data, settings, validate=no_validation, **options)
    training.train_to_end()
    return training.model.eval()


def fit_bilstm_probe(*inputs: Any, **options: Any) -> BilstmProbe:
    """Train a probe for all its epochs; the settings come last."""
    *data, settings = inputs
    settings = replace(settings, patience=None)
    training = start_bilstm_probe(*data, settings, validate=no_validation, **options)
    training.train_to_end()
    return training.model
