"""Linear models on TF-IDF vectors of words and letters: logistic or ridge regression.

Where no head is trained, `Answer.lexical_columns` answers.

Shapes: N items, M rows, K outputs, F features.
"""

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, Self, TypeAlias

import numpy as np
import pandas as pd
import torch
from scipy.sparse import csr_matrix
from sklearn.exceptions import ConvergenceWarning
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.linear_model import LogisticRegression, Ridge

from lineage.answers.base import HeadAnswer, LexicalAnswer, LinearInputs, PredictionColumns
from lineage.answers.text_features import (
    add_features,
    build_text_vectorizer,
    build_word_vectorizer,
    compute_features,
    fit_text_vectorizer,
    fit_word_vectorizers,
)
from lineage.artifacts import read_json, write_json
from lineage.config.records import check_positive
from lineage.data.task_data import SplitItems
from lineage.methods.base import select_train_rows
from lineage.methods.baseline import BaselineMethod
from lineage.methods.encoder import EvalRun, Subject, TaskContext
from lineage.methods.heads import FittedHead, HeadOutput, HeadProblem, StartedHead
from lineage.methods.majority import fit_majority
from lineage.methods.saved import AnswerItems, SavedSystem
from lineage.methods.trials import Trial
from lineage.results import Note
from lineage.tasks.base import Kind, load_kind

MAX_ITER = 1000  # of L-BFGS
VOCABULARY_FILE = "vocabulary.json"  # the terms of each vectorizer, by their place
LinearModel: TypeAlias = LogisticRegression | Ridge


@dataclass(frozen=True)
class TfidfTrial(Trial):
    """A value of C to try."""

    C: float | None = None


@dataclass(frozen=True, kw_only=True)
class TfidfMethod(BaselineMethod):
    """TF-IDF and a linear model, with the inverse strength C of its L2."""

    name: ClassVar[str] = "tfidf"
    meanings: ClassVar[Mapping[str, str]] = {
        "linear": "a linear model on weighted counts of words and pairs of words, or of the letters "
        "of a tagged word; nothing is pretrained"
    }
    noun: ClassVar[str] = "TF-IDF"
    scores_validation: ClassVar[bool] = True

    C: float = 1.0

    def __post_init__(self) -> None:
        super().__post_init__()
        check_positive(self, "C")

    @classmethod
    def with_values(cls, C_values: Sequence[float]) -> Self:
        """Return the method with these values of C; validation chooses if there are several."""
        if len(C_values) == 1:
            return cls(C=C_values[0])
        return cls(trials=tuple(TfidfTrial(C=C) for C in C_values))

    def unsupported_note(self, context: TaskContext) -> Note | None:
        if issubclass(context.kind.answer, HeadAnswer | LexicalAnswer):
            return None
        return Note("no_training_labels")

    def start(self, subject: Subject, problem: HeadProblem, *, seed: int) -> StartedHead:
        """Fit the model; without anything to learn, it is the majority."""
        context = subject.task_context
        train = context.task.splits["train"].iloc[problem.train_rows]
        if not problem.answer.can_learn(train):
            return StartedHead(fit_majority(context, problem))
        model = fit_tfidf(
            context.kind,
            problem.answer,
            train,
            language=context.language,
            symmetric=context.is_symmetric,
            C=self.C,
        )

        def predict(part: SplitItems) -> HeadOutput:
            return model.outputs(context.task.select_items(part)), None

        notes = [] if model.has_converged else [Note("not_converged", MAX_ITER)]
        head = FittedHead(
            predict, model.to_tensors, (), notes, model.write_vocabularies, is_normalized=True
        )
        return StartedHead(head)

    def answer(self, subject: Subject, run: EvalRun, items: pd.DataFrame) -> PredictionColumns:
        """Answer by words and letters alone."""
        context = subject.task_context
        answer = context.kind.answer
        assert issubclass(answer, LexicalAnswer)
        train = None
        if run.label_count is not None:
            train = context.task.splits["train"].iloc[select_train_rows(context, run)]
        metric = context.task.info.ranking_metric
        return answer.lexical_columns(train, items, context.language, metric)

    def load(self, saved: SavedSystem) -> AnswerItems:
        model = TfidfModel.load(saved)

        def answer_items(items: pd.DataFrame) -> PredictionColumns:
            return model.answer.answer_columns(items, model.outputs(items))

        return answer_items


@dataclass(frozen=True)
class TfidfModel:
    """Linear models on TF-IDF vectors, see `HeadAnswer.linear_inputs`."""

    answer: HeadAnswer
    kind: Kind
    language: str
    is_symmetric: bool
    # One of texts, or one for each part of `WordInContext`.
    vectorizers: tuple[TfidfVectorizer, ...]
    # One; for spans, one for the first word of the answer and one for the last.
    linear_models: tuple[LinearModel, ...]
    has_converged: bool = True

    def outputs(self, items: pd.DataFrame) -> np.ndarray:
        """Return (M, K) outputs of which the answers are made."""
        inputs = _read_inputs(self.kind, self.answer, items, self.language)
        features = compute_features(self.vectorizers, inputs, symmetric=self.is_symmetric)
        num_labels = self.answer.num_linear_labels
        predictions = [
            predict_linear(model, features, num_labels=num_labels) for model in self.linear_models
        ]
        return self.answer.linear_outputs(predictions, items)

    def write_vocabularies(self, folder: Path) -> None:
        terms = [vectorizer.get_feature_names_out().tolist() for vectorizer in self.vectorizers]
        write_json(folder / VOCABULARY_FILE, terms)

    def to_tensors(self) -> dict[str, torch.Tensor]:
        tensors = {}
        for number, vectorizer in enumerate(self.vectorizers):
            tensors[f"vectorizers.{number}.idf"] = torch.from_numpy(vectorizer.idf_)
        for number, linear in enumerate(self.linear_models):
            prefix = f"linear_models.{number}"
            tensors[f"{prefix}.coef"] = torch.from_numpy(np.asarray(linear.coef_))
            tensors[f"{prefix}.intercept"] = torch.from_numpy(np.atleast_1d(linear.intercept_))
            if isinstance(linear, LogisticRegression):
                classes_K = linear.classes_.astype(np.int64)
                tensors[f"{prefix}.classes"] = torch.from_numpy(classes_K)
        return tensors

    @classmethod
    def load(cls, saved: SavedSystem) -> Self:
        record = saved.record
        tensors = saved.tensors
        vectorizers = []
        vocabularies = read_json(saved.folder / VOCABULARY_FILE)
        for number, vocabulary in enumerate(vocabularies):
            if len(vocabularies) > 1:  # of a word and its neighbors
                vectorizer = build_word_vectorizer(vocabulary=vocabulary)
            else:
                vectorizer = build_text_vectorizer(record.language, vocabulary=vocabulary)
            vectorizer.idf_ = tensors[f"vectorizers.{number}.idf"].numpy()
            vectorizers.append(vectorizer)
        num_models = sum(name.endswith(".coef") for name in tensors)
        return cls(
            record.answer,
            load_kind(record.kind),
            record.language,
            record.symmetric,
            tuple(vectorizers),
            tuple(
                _load_linear_model(tensors, f"linear_models.{number}")
                for number in range(num_models)
            ),
        )


def _read_inputs(
    kind: Kind, answer: HeadAnswer, items: pd.DataFrame, language: str
) -> LinearInputs:
    """Return the inputs of a linear model for some items."""
    return answer.linear_inputs(items, kind.extract_texts(items, language), language)


def fit_tfidf(
    kind: Kind, answer: HeadAnswer, train: pd.DataFrame, *, language: str, symmetric: bool, C: float
) -> TfidfModel:
    inputs = _read_inputs(kind, answer, train, language)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", ConvergenceWarning)
        if inputs.words is None:
            vectorizers: tuple[TfidfVectorizer, ...]
            vectorizers = (fit_text_vectorizer(inputs.texts, language),)
            features = compute_features(vectorizers, inputs, symmetric=symmetric)
        else:
            vectorizers, features = fit_word_vectorizers(inputs.words)
            features = add_features(features, inputs.extra_MF)
        models = [
            fit_linear(features, labels_M, C, are_numbers=answer.are_numbers)
            for labels_M in answer.linear_labels(train)
        ]
    has_converged = not any(issubclass(one.category, ConvergenceWarning) for one in caught)
    return TfidfModel(answer, kind, language, symmetric, vectorizers, tuple(models), has_converged)


def fit_linear(
    features: csr_matrix, labels_M: np.ndarray, C: float, *, are_numbers: bool = False
) -> LinearModel:
    """Fit logistic regression, or ridge regression to numbers."""
    if are_numbers:
        return Ridge(alpha=1 / C).fit(features, labels_M)
    return LogisticRegression(C=C, max_iter=MAX_ITER).fit(features, labels_M)


def predict_linear(model: LinearModel, features: csr_matrix, *, num_labels: int) -> np.ndarray:
    """Return (M, num_labels) probabilities, 0 for unseen labels; ridge gives (M,) numbers."""
    if isinstance(model, Ridge):
        numbers_M: np.ndarray = model.predict(features)
        return numbers_M
    probabilities = np.zeros((features.shape[0], num_labels))
    probabilities[:, model.classes_.astype(int)] = model.predict_proba(features)
    return probabilities


def _load_linear_model(tensors: dict[str, torch.Tensor], prefix: str) -> LinearModel:
    """Return scikit-learn's model with the attributes that its fit has set."""
    coef = tensors[f"{prefix}.coef"].numpy()
    intercept = tensors[f"{prefix}.intercept"].numpy()
    if f"{prefix}.classes" not in tensors:
        ridge = Ridge()
        ridge.coef_ = coef
        ridge.intercept_ = float(intercept[0])
        return ridge
    model = LogisticRegression()
    model.coef_ = coef
    model.intercept_ = intercept
    model.classes_ = tensors[f"{prefix}.classes"].numpy()
    return model
