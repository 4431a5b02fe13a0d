"""A control of fine-tuning: logistic regression on the words that a bag of words reads.

A bag of word embeddings that is fine-tuned from random init is logistic regression on unigrams in
another form. If it scores lower than logistic regression on TF-IDF of the same tokens, then
fine-tuning has not converged. The report says so (`lineage.analysis.convergence`).
"""

from collections.abc import Iterator, Sequence

import numpy as np
import pandas as pd
from scipy.sparse import csr_matrix, hstack
from sklearn.feature_extraction.text import TfidfVectorizer

from lineage.data.task_data import SplitItems
from lineage.evaluation.evaluate import select_train_rows
from lineage.evaluation.predictions import format_label_predictions
from lineage.evaluation.result_rows import unigram_row
from lineage.evaluation.systems import EvalContext, EvalRun
from lineage.evaluation.tfidf import fit_logistic_regression, predict_majority
from lineage.models.base import Static
from lineage.results import ResultRow

TokenTexts = list[list[list[str]]]  # for each text column, the tokens of each item


def has_unigram_control(context: EvalContext) -> bool:
    """Return whether the model is a bag of words, and the task asks for the label of a text."""
    is_bag = isinstance(context.checkpoint.family, Static)
    return is_bag and context.kind.answer_type == "label" and context.kind.unit == "text"


def unigram_control_rows(
    context: EvalContext, runs: Sequence[EvalRun], C_values: Sequence[float]
) -> Iterator[ResultRow]:
    """Yield the control's score beside each fine-tuned random-init run, for the reported split.

    Validation chooses C, for each run by itself.
    """
    metric = context.task.info["metric"][0]
    for run in runs:
        if run.init != "random" or run.transfer != "finetuned":
            continue
        parts = context.task.split_items(seed=run.finetune_seed or 0, fold=run.fold)
        validation = next(part for part in parts if part.split == "validation")
        scored = [
            part
            for part in parts
            if part.split == context.task.scored_splits[-1]
            and part.test_set == context.task.info["name"]
        ]
        train_rows = select_train_rows(context, run)
        control = _UnigramControl(context, train_rows)
        best_C = max(C_values, key=lambda C: control.score(validation, metric, C))
        for part in scored:
            value = control.score(part, metric, best_C)
            yield unigram_row(context, run, value, num_examples=len(part.rows_N))


class _UnigramControl:
    """Fits logistic regression on the tokens of some training items."""

    def __init__(self, context: EvalContext, train_rows: np.ndarray) -> None:
        self.context = context
        self.train_items = context.task.splits["train"].iloc[train_rows]

    def score(self, part: SplitItems, metric: str, C: float) -> float:
        """Return the metric on some items."""
        items = self.context.task.select_items(part)
        labels_N = self.train_items["label"].to_numpy()
        if len(set(labels_N.tolist())) < 2:
            fitted = predict_majority(labels_N, len(items))
        else:
            vectorizer = TfidfVectorizer(
                tokenizer=list, token_pattern=None, lowercase=False, sublinear_tf=True
            )
            train_texts = self._token_texts(self.train_items)
            vectorizer.fit([tokens for column in train_texts for tokens in column])
            fitted = fit_logistic_regression(
                self._features(vectorizer, train_texts),
                self._features(vectorizer, self._token_texts(items)),
                labels_N,
                C,
            )
        names = self.context.task.info["labels"]
        columns = format_label_predictions(
            names, items["label"].to_numpy(), fitted.for_all_labels(len(names))
        )
        answers = pd.DataFrame({name: columns[name] for name in ("label", "prediction")})
        return self.context.kind.score(metric, answers)

    def _features(self, vectorizer: TfidfVectorizer, texts: TokenTexts) -> csr_matrix:
        """Return TF-IDF of each text; products of two texts would be more than unigrams."""
        features = [vectorizer.transform(column) for column in texts]
        if self.context.is_symmetric:
            return sum(features[1:], start=features[0])
        return hstack(features).tocsr()

    def _token_texts(self, items: pd.DataFrame) -> TokenTexts:
        """Return the tokens that the model reads of each text."""
        tokenizer = self.context.checkpoint.tokenizer
        columns = self.context.kind.extract_texts(items, self.context.language)
        return [
            [[str(number) for number in text.ids] for text in tokenizer.tokenize(texts)]
            for texts in columns
        ]
