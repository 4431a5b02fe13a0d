"""TF-IDF models in folders."""

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from sklearn.linear_model import LogisticRegression, Ridge

from lineage.artifacts import read_json, write_json
from lineage.evaluation.baselines import ChosenTfidf
from lineage.methods.saved import SystemRecord, save_system
from lineage.methods.tfidf import (
    LinearModel,
    TfidfModel,
    build_text_vectorizer,
    build_word_vectorizer,
)
from lineage.models.weights import WEIGHTS_FILE, read_tensors
from lineage.tasks.base import Kind, load_kind

VOCABULARY_FILE = "vocabulary.json"  # the terms of each vectorizer, by their place


def save_tfidf(folder: Path, chosen: ChosenTfidf, info: Mapping[str, Any]) -> None:
    """Write a TF-IDF model: its vocabularies as JSON, and its numbers as arrays.

    `info` is the task's task.json.
    """
    model = chosen.model
    vocabularies = []
    tensors = {}
    for number, vectorizer in enumerate(model.vectorizers):
        vocabularies.append(vectorizer.get_feature_names_out().tolist())
        tensors[f"vectorizers.{number}.idf"] = torch.from_numpy(vectorizer.idf_)
    for number, linear in enumerate(model.linear_models):
        prefix = f"linear_models.{number}"
        tensors[f"{prefix}.coef"] = torch.from_numpy(np.asarray(linear.coef_))
        tensors[f"{prefix}.intercept"] = torch.from_numpy(np.atleast_1d(linear.intercept_))
        if isinstance(linear, LogisticRegression):
            classes_K = linear.classes_.astype(np.int64)
            tensors[f"{prefix}.classes"] = torch.from_numpy(classes_K)
    folder.mkdir(parents=True, exist_ok=True)
    write_json(folder / VOCABULARY_FILE, vocabularies)
    save_system(folder, _describe_tfidf(chosen, info), tensors)


def _describe_tfidf(chosen: ChosenTfidf, info: Mapping[str, Any]) -> SystemRecord:
    run = chosen.run
    score = chosen.validation_score
    assert run.finetune_seed is not None
    return SystemRecord(
        model=run.model,
        family=run.model,
        init="none",
        adapt_text="none",
        transfer="none",
        features="none",
        head="none",
        recipe="none",
        task=run.task,
        kind=run.kind,
        label_count=run.label_count,
        train_examples=run.train_examples,
        pretrain_seed=None,
        finetune_seed=run.finetune_seed,
        fold=run.fold,
        metric=info["metric"][0],
        validation_score=score if math.isfinite(score) else None,
        language=info["language"],
        symmetric=chosen.model.is_symmetric,
        character_spans=info.get("character_spans", False),
        labels=chosen.model.answer.label_names,
        label_mean=None,
        label_std=None,
        settings_block="tfidf",
        settings={"C": chosen.C},
        precision="fp32",
        max_input_positions=None,
        model_folder=None,
    )


def load_tfidf(folder: Path, record: SystemRecord) -> TfidfModel:
    tensors = read_tensors(folder / WEIGHTS_FILE)
    kind = load_kind(record.kind)
    vectorizers = []
    vocabularies = read_json(folder / VOCABULARY_FILE)
    for number, vocabulary in enumerate(vocabularies):
        if len(vocabularies) > 1:  # of a word and its neighbors
            vectorizer = build_word_vectorizer(vocabulary=vocabulary)
        else:
            vectorizer = build_text_vectorizer(record.language, vocabulary=vocabulary)
        vectorizer.idf_ = tensors[f"vectorizers.{number}.idf"].numpy()
        vectorizers.append(vectorizer)
    num_models = sum(name.endswith(".coef") for name in tensors)
    linear_models = [
        _load_linear_model(kind, tensors, f"linear_models.{number}") for number in range(num_models)
    ]
    return TfidfModel(
        record.answer,
        kind,
        record.language,
        record.symmetric,
        tuple(vectorizers),
        tuple(linear_models),
    )


def _load_linear_model(kind: Kind, tensors: dict[str, torch.Tensor], prefix: str) -> LinearModel:
    """Return scikit-learn's model with the attributes that its fit has set."""
    coef = tensors[f"{prefix}.coef"].numpy()
    intercept = tensors[f"{prefix}.intercept"].numpy()
    if kind.answer.are_numbers:
        ridge = Ridge()
        ridge.coef_ = coef
        ridge.intercept_ = float(intercept[0])
        return ridge
    model = LogisticRegression()
    model.coef_ = coef
    model.intercept_ = intercept
    model.classes_ = tensors[f"{prefix}.classes"].numpy()
    return model
