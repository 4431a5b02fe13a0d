"""A control of fine-tuning: logistic regression on the words that a bag of words reads.

A fine-tuned bag of word embeddings is logistic regression on unigrams in another form. If it scores
lower than logistic regression on TF-IDF, fine-tuning has not converged.
"""

from collections.abc import Iterator, Sequence

import numpy as np
import pandas as pd
from scipy.sparse import csr_matrix, hstack
from sklearn.feature_extraction.text import TfidfVectorizer

from lineage.answers.base import share_of_labels
from lineage.answers.label import LabelAnswer
from lineage.data.task_data import SplitItems
from lineage.evaluation.result_rows import unigram_row
from lineage.methods.base import find_method, select_train_rows
from lineage.methods.encoder import EvalContext, EvalRun
from lineage.methods.tfidf import fit_linear, predict_linear
from lineage.networks.base import Static
from lineage.results import ResultRow


def has_unigram_control(context: EvalContext) -> bool:
    """Return whether the model is a bag of words, and the task asks for the label of a text."""
    is_bag = isinstance(context.checkpoint.family, Static) and bool(context.task.scored_splits)
    return is_bag and context.kind.answer.has_one_label and context.kind.unit == "text"


def unigram_control_rows(
    context: EvalContext, runs: Sequence[EvalRun], C_values: Sequence[float]
) -> Iterator[ResultRow]:
    """Yield the control's score for each fine-tuned random-init run, on the reported split."""
    for run in runs:
        if run.init == "random" and find_method(context, run).transfer == "finetuned":
            yield _control_row(context, run, C_values)


def _control_row(context: EvalContext, run: EvalRun, C_values: Sequence[float]) -> ResultRow:
    split = context.task.scored_splits[-1]
    parts = context.task.split_items(seed=run.finetune_seed or 0, fold=run.fold)
    validation = next(part for part in parts if part.split == "validation")
    name = context.task.info.name
    scored = next(part for part in parts if part.split == split and part.test_set == name)
    train_items = context.task.splits["train"].iloc[select_train_rows(context, run)]
    labels_N = train_items["label"].to_numpy()
    num_labels = len(context.task.info.labels)
    matrices = _build_features(
        context, [train_items, *(context.task.select_items(part) for part in (validation, scored))]
    )
    scores = []
    for C in C_values:
        if matrices is None or len(set(labels_N.tolist())) < 2:
            shares_K = share_of_labels(labels_N, num_labels)
            fitted = [np.tile(shares_K, (len(part.rows_N), 1)) for part in (validation, scored)]
        else:
            train, *others = matrices
            model = fit_linear(train, labels_N, C)
            fitted = [predict_linear(model, other, num_labels=num_labels) for other in others]
        scores.append(
            tuple(
                _score(context, part, probabilities)
                for part, probabilities in zip((validation, scored), fitted, strict=True)
            )
        )
    _, value = max(scores, key=lambda pair: pair[0])  # ties go to the first C
    return unigram_row(context, run, value, num_examples=len(scored.rows_N))


def _score(context: EvalContext, part: SplitItems, probabilities_NK: np.ndarray) -> float:
    info = context.task.info
    answer = LabelAnswer(tuple(info.labels))
    columns = answer.prediction_columns(context.task.select_items(part), probabilities_NK)
    answers = pd.DataFrame({name: columns[name] for name in ("label", "prediction")})
    return context.kind.answer.score(info.ranking_metric, answers)


def _build_features(
    context: EvalContext, tables: Sequence[pd.DataFrame]
) -> list[csr_matrix] | None:
    """Return TF-IDF of the tokens of each table, fitted on the first; None if it has no token."""
    tokenizer = context.checkpoint.tokenizer
    texts = [
        [
            [[str(number) for number in text.ids] for text in tokenizer.tokenize(column)]
            for column in context.kind.extract_texts(table, context.language)
        ]
        for table in tables
    ]
    train_texts = [tokens for column in texts[0] for tokens in column]
    if not any(train_texts):
        return None
    vectorizer = TfidfVectorizer(
        tokenizer=list, token_pattern=None, lowercase=False, sublinear_tf=True
    ).fit(train_texts)
    matrices = []
    for columns in texts:
        features = [vectorizer.transform(column) for column in columns]
        if context.is_symmetric:
            matrices.append(sum(features[1:], start=features[0]))
        else:
            matrices.append(hstack(features).tocsr())
    return matrices
