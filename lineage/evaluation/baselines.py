"""Baselines that need no pretraining, on the same label subsets and seeds as every model.

They are the majority class, TF-IDF, the chance level and, for translation, a copy of the source.
Ceilings, the best possible scores on generated tasks, are written as rows too.
Shapes: V distinct words, F features, N items, K labels.
"""

import dataclasses
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import product
from typing import Any, Literal, NamedTuple, get_args

import numpy as np
import pandas as pd
from scipy.sparse import csr_matrix
from sklearn.feature_extraction.text import TfidfVectorizer

from lineage.answers.base import PredictionColumns, correct_column
from lineage.answers.groups import split_by_group
from lineage.answers.metrics import CONTRIBUTIONS, get_bleu_signature
from lineage.answers.pair import pair_columns
from lineage.answers.text import text_columns
from lineage.answers.words import WordsAnswer, list_distinct_words
from lineage.config.params import Grid
from lineage.data.splits import nested_stratified_subset, stratification_labels
from lineage.data.task_data import SplitItems, TaskData, fold_numbers, truncated_answers_notes
from lineage.errors import EvaluationError
from lineage.methods.encoder import LabelCount
from lineage.methods.tfidf import (
    MAX_ITER,
    Baseline,
    BaselineProblem,
    FittedBaseline,
    TfidfModel,
    fit_baseline,
    fit_text_vectorizer,
)
from lineage.methods.word_vectors import cosine_matrix
from lineage.results import (
    PREDICTION_COLUMNS,
    RESULT_KEY_COLUMNS,
    SEED_COLUMNS,
    Note,
    ResultRow,
)
from lineage.tasks.base import Kind, load_kind

BASELINES: tuple[Baseline, ...] = get_args(Baseline)
SIMILARITY_BATCH_SIZE = 256  # sources that are compared with all training sources at once


class BaselineResult(NamedTuple):
    """The rows and predictions of one baseline on one test set."""

    rows: list[ResultRow]
    predictions: pd.DataFrame


@dataclass(frozen=True)
class BaselineRun:
    """One baseline in one setting; its rows share these columns."""

    model: str
    task: str
    kind: str
    split: str
    test_set: str
    finetune_seed: int | None = None
    fold: int | None = None
    label_count: str = "none"
    train_examples: int = 0
    trial: str = "chosen"
    reason: Sequence[Note] = ()

    def row(self, metric: str, value: float | None, num_examples: int, **columns: Any) -> ResultRow:
        """Return a row with a value, and with further columns."""
        return ResultRow(
            **vars(self),
            family=self.model,
            metric=metric,
            value=value,
            num_examples=num_examples,
            **columns,
        )

    def empty_row(self, metric: str, note: Note, *, group: str = "all") -> ResultRow:
        """Return a row without a value, with the reason."""
        return self.replace(reason=[note]).row(
            metric, None, 0, group=group, status="not_applicable"
        )

    def replace(self, **changes: Any) -> "BaselineRun":
        """Return the run with other columns."""
        return dataclasses.replace(self, **changes)


@dataclass(frozen=True)
class ChosenTfidf:
    """TF-IDF with the C that validation chose, of the first seed and fold of a label count."""

    run: BaselineRun
    model: TfidfModel
    C: float
    validation_score: float  # of the task's first metric; NaN if it is undefined
    items_per_second: float


def evaluate_baselines(
    kind: Kind,
    task: TaskData,
    *,
    split: Literal["validation", "test"],
    finetune_seeds: Sequence[int],
    label_counts: Sequence[LabelCount],
    tfidf_C: Sequence[float] = Grid.tfidf_C,
    keep_tfidf: Callable[[ChosenTfidf], None] | None = None,
) -> Iterator[BaselineResult]:
    """Yield the results of every baseline, label count, seed, fold and test set.

    With several values of C, validation chooses, and the results of each value on validation are
    yielded too. As for every system, the first seed chooses for all seeds of a label count, and
    each fold chooses for itself. `keep_tfidf` gets the models that can be used afterwards.
    """
    name = task.info["name"]
    run = BaselineRun("", task=name, kind=kind.name, split=split, test_set=name)
    if kind.answer.answered_by == "translator":
        yield from _translation_baselines(task, run, finetune_seeds, label_counts)
    elif kind.answer.answered_by == "word_vectors":
        yield _word_vector_baselines(kind, task.splits[split], run)
    elif kind.answer.answered_by == "sentence_probability":
        yield _minimal_pair_baselines(task.splits[split], run)
    else:
        yield from _head_baselines(
            kind, task, run, finetune_seeds, label_counts, tfidf_C, keep_tfidf
        )


def _head_baselines(
    kind: Kind,
    task: TaskData,
    run: BaselineRun,
    finetune_seeds: Sequence[int],
    label_counts: Sequence[LabelCount],
    tfidf_C: Sequence[float],
    keep_tfidf: Callable[[ChosenTfidf], None] | None,
) -> Iterator[BaselineResult]:
    """Yield the majority class, TF-IDF and, for classification, the chance level."""
    chosen_trials: dict[Any, int] = {}  # by selection key
    chance_levels: dict[Any, BaselineResult] = {}
    for count, seed, fold in product(label_counts, finetune_seeds, fold_numbers(task.info)):
        parts = task.split_items(seed=seed, fold=fold)
        scored_parts = [part for part in parts[1:] if part.split == run.split]
        train = _select_train_items(task.select_items(parts[0]), count, seed)
        run = run.replace(
            finetune_seed=seed, fold=fold, label_count=str(count), train_examples=len(train)
        )
        evaluator = BaselineEvaluator(kind, task, train)
        for part in scored_parts:
            yield evaluator.evaluate(run.replace(model="majority"), part)
        tfidf_run = run.replace(model="tfidf")
        trial = 0
        if len(tfidf_C) > 1:
            selection_key = count if fold is None else (count, seed, fold)
            if selection_key not in chosen_trials:
                validation = next(part for part in parts[1:] if part.split == "validation")
                trials = evaluator.evaluate_trials(tfidf_run, validation, tfidf_C)
                chosen_trials[selection_key] = _best_trial(trials)
                yield from trials
            trial = chosen_trials[selection_key]
            tfidf_run = tfidf_run.replace(reason=[_trial_note(tfidf_C, trial)])
        for part in scored_parts:
            yield evaluator.evaluate(tfidf_run, part, C=tfidf_C[trial])
        if keep_tfidf is not None and seed == finetune_seeds[0] and not fold:
            chosen = evaluator.describe_tfidf(tfidf_run, parts, C=tfidf_C[trial])
            if chosen is not None:
                keep_tfidf(chosen)
        if kind.answer.are_classes:
            for part in scored_parts:
                yield _chance_level(run, task, part, chance_levels)


def _select_train_items(items: pd.DataFrame, count: LabelCount, seed: int) -> pd.DataFrame:
    return items.iloc[nested_stratified_subset(stratification_labels(items), count, seed=seed)]


@dataclass(frozen=True)
class BaselineEvaluator:
    """Fits baselines on some training items, and scores them on parts of a task."""

    kind: Kind
    task: TaskData
    train: pd.DataFrame
    _fitted: dict[tuple[Baseline, float], FittedBaseline] = field(default_factory=dict)

    def evaluate(self, run: BaselineRun, part: SplitItems, *, C: float = 1.0) -> BaselineResult:
        """Return the rows and predictions of a baseline on one part; C is for TF-IDF alone."""
        info = self.task.info
        items = self.task.select_items(part)
        model = self._fit("tfidf" if run.model == "tfidf" else "majority", C)
        columns = correct_column(model.prediction_columns(items), info["metric"][0])
        predictions = _predictions_table(items, columns)
        run = run.replace(test_set=part.test_set)
        run = run.replace(reason=[*run.reason, *truncated_answers_notes(info, part.table)])
        if isinstance(model, TfidfModel) and not model.has_converged:
            run = run.replace(reason=[*run.reason, Note("not_converged", MAX_ITER)])
        rows = list(_metric_rows(run, self.kind, info["metric"], predictions))
        return BaselineResult(rows, _with_run_columns(rows[0], predictions))

    def _fit(self, baseline: Baseline, C: float) -> FittedBaseline:
        """Fit a baseline once for all parts."""
        if (baseline, C) not in self._fitted:
            problem = BaselineProblem(self.kind, self.task.info, self.train)
            self._fitted[baseline, C] = fit_baseline(baseline, problem, C=C)
        return self._fitted[baseline, C]

    def describe_tfidf(
        self, run: BaselineRun, parts: Sequence[SplitItems], *, C: float
    ) -> ChosenTfidf | None:
        """Return TF-IDF with its score on validation; None if there was nothing to learn."""
        model = self._fit("tfidf", C)
        if not isinstance(model, TfidfModel):
            return None
        items = self.task.select_items(next(part for part in parts if part.split == "validation"))
        start = time.monotonic()
        columns = model.prediction_columns(items)
        seconds = time.monotonic() - start
        predictions = _predictions_table(items, columns)
        score = self.kind.answer.score(self.task.info["metric"][0], predictions)
        return ChosenTfidf(run, model, C, score, items_per_second=len(items) / seconds)

    def evaluate_trials(
        self, run: BaselineRun, validation: SplitItems, tfidf_C: Sequence[float]
    ) -> list[BaselineResult]:
        """Return the results of each value of C on validation."""
        results = []
        for number, C in enumerate(tfidf_C):
            notes = [_trial_note(tfidf_C, number)]
            trial_run = run.replace(split="validation", trial=str(number), reason=notes)
            results.append(self.evaluate(trial_run, validation, C=C))
        return results


def _best_trial(trials: Sequence[BaselineResult]) -> int:
    """Return the trial with the highest first metric; ties go to the first."""
    values = [trial.rows[0].value for trial in trials]
    return int(np.argmax([-np.inf if value is None else value for value in values]))


def _trial_note(tfidf_C: Sequence[float], number: int) -> Note:
    settings = {"C": tfidf_C[number]}
    return Note("trial", {"number": number, "of": len(tfidf_C), "settings": settings})


def _predictions_table(items: pd.DataFrame, columns: PredictionColumns) -> pd.DataFrame:
    return pd.DataFrame({"id": items["id"], "group": items["group"], **columns})


def _metric_rows(
    run: BaselineRun, kind: Kind, metrics: Sequence[str], predictions: pd.DataFrame
) -> Iterator[ResultRow]:
    """Yield a row for each metric and group; a metric undefined over all items only once."""
    undefined: set[str] = set()
    groups = [("all", predictions)]
    if run.trial == "chosen":
        groups = split_by_group(predictions, fold=run.fold)
    for group, items in groups:
        for metric in metrics:
            if metric in undefined:
                continue
            value = kind.answer.score(metric, items)
            if np.isfinite(value):
                yield run.row(metric, value, len(items), group=group)
                continue
            if group == "all":
                undefined.add(metric)
            yield run.empty_row(metric, kind.answer.describe_undefined(metric, items), group=group)


def _with_run_columns(row: ResultRow, predictions: pd.DataFrame) -> pd.DataFrame:
    """Return predictions with the columns of a row of their run."""
    run_columns = {name: getattr(row, name) for name in RESULT_KEY_COLUMNS}
    return predictions.assign(**run_columns)[list(PREDICTION_COLUMNS)]


def _chance_level(
    run: BaselineRun, task: TaskData, part: SplitItems, cache: dict[Any, BaselineResult]
) -> BaselineResult:
    """Return the chance level, computed once for all label counts and, without folds, all seeds."""
    run = run.replace(model="chance", test_set=part.test_set)
    key = (part.test_set, None if run.fold is None else (run.finetune_seed, run.fold))
    if key not in cache:
        cache[key] = _compute_chance_level(run, task.info, task.select_items(part))
    rows = [
        dataclasses.replace(
            row,
            finetune_seed=run.finetune_seed,
            fold=run.fold,
            label_count=run.label_count,
            train_examples=run.train_examples,
        )
        for row in cache[key].rows
    ]
    return BaselineResult(rows, _with_run_columns(rows[0], cache[key].predictions))


def _compute_chance_level(
    run: BaselineRun, info: dict[str, Any], scored: pd.DataFrame
) -> BaselineResult:
    """Score random guessing, on a table that has each item once with every label as prediction."""
    names = np.asarray(info["labels"], object)
    labels = names[scored["label"]].repeat(len(names))
    answers = np.tile(names, len(scored))
    groups = scored["group"].repeat(len(names))
    all_answers = pd.DataFrame({"group": groups, "label": labels, "prediction": answers})
    rows = [
        dataclasses.replace(row, num_examples=row.num_examples // len(names))
        for row in _metric_rows(run, load_kind(run.kind), info["metric"], all_answers)
    ]
    contributions = CONTRIBUTIONS[info["metric"][0]](labels, answers)
    predictions = pd.DataFrame(
        {
            "id": scored["id"],
            "group": scored["group"],
            "label": names[scored["label"]],
            "prediction": "tie",
            "score": 1 / len(names),
            "correct": contributions.reshape(-1, len(names)).mean(1),
        }
    )
    return BaselineResult(rows, _with_run_columns(rows[0], predictions))


def _minimal_pair_baselines(scored: pd.DataFrame, run: BaselineRun) -> BaselineResult:
    """Score a tie on every pair; without training labels TF-IDF has nothing to fit."""
    ties = score_minimal_pairs(run.replace(model="majority"), scored, np.zeros(len(scored)))
    no_labels = Note("no_training_labels")
    tfidf_row = run.replace(model="tfidf").empty_row("accuracy", no_labels)
    return BaselineResult([*ties.rows, tfidf_row], ties.predictions)


def score_minimal_pairs(
    run: BaselineRun, items: pd.DataFrame, margins_N: np.ndarray
) -> BaselineResult:
    """Return the results of `pair_columns`."""
    predictions = _predictions_table(items, pair_columns(margins_N))
    rows = list(_metric_rows(run, load_kind(run.kind), ["accuracy"], predictions))
    return BaselineResult(rows, _with_run_columns(rows[0], predictions))


def _word_vector_baselines(kind: Kind, scored: pd.DataFrame, run: BaselineRun) -> BaselineResult:
    """Answer by TF-IDF over the character n-grams of words; there is no majority answer."""
    answer = kind.answer
    assert issubclass(answer, WordsAnswer)
    metric = kind.metrics[0]
    no_majority = Note("no_majority", kind.answer.answered_by)
    majority_row = run.replace(model="majority").empty_row(metric, no_majority)
    tfidf_run = run.replace(model="tfidf")
    words = list_distinct_words(scored)
    cosines_VV = _character_cosines(words)
    try:
        columns = answer.columns(scored, [("none", cosines_VV)], np.ones(len(words), bool))
    except EvaluationError as error:
        rows = [tfidf_run.empty_row(metric, Note("error", str(error)))]
        no_predictions = pd.DataFrame(columns=list(PREDICTION_COLUMNS))
        return BaselineResult([majority_row, *rows], _with_run_columns(rows[0], no_predictions))
    predictions = _predictions_table(scored, columns)
    rows = list(_metric_rows(tfidf_run, kind, [metric], predictions))
    return BaselineResult([majority_row, *rows], _with_run_columns(rows[0], predictions))


def _character_cosines(words: Sequence[str]) -> np.ndarray:
    """Return the (V, V) cosines of centered TF-IDF vectors of the character n-grams of words."""
    vectorizer = TfidfVectorizer(analyzer="char_wb", ngram_range=(2, 4), sublinear_tf=True)
    tfidf_VF = vectorizer.fit_transform(words)
    products_VV = (tfidf_VF @ tfidf_VF.T).toarray()
    # Center the products, since centered vectors would no longer be sparse.
    mean_V = products_VV.mean(0)
    return cosine_matrix(products_VV - (mean_V[:, None] + mean_V) + mean_V.mean())


def _translation_baselines(
    task: TaskData,
    run: BaselineRun,
    finetune_seeds: Sequence[int],
    label_counts: Sequence[LabelCount],
) -> Iterator[BaselineResult]:
    """Yield a copy of the source, and the translation of the most similar training source."""
    scored = task.splits[run.split]
    metrics = task.info["metric"]
    for count in label_counts:
        for seed in finetune_seeds:
            pairs = _select_train_items(task.splits["train"], count, seed)
            run = run.replace(finetune_seed=seed, label_count=str(count), train_examples=len(pairs))
            no_majority = Note("no_majority", "translator")
            majority_row = run.replace(model="majority").empty_row(metrics[0], no_majority)
            copies = _score_translations(run.replace(model="copy"), task, scored["source"])
            yield BaselineResult([*copies.rows, majority_row], copies.predictions)
            nearest = find_nearest_translations(pairs, scored, language=task.info["language"])
            yield _score_translations(run.replace(model="tfidf"), task, nearest)


def find_nearest_translations(
    train: pd.DataFrame, scored: pd.DataFrame, *, language: str
) -> list[str]:
    """Return the translations of the most similar training sources, as a translation memory does.

    Similarity is the cosine of TF-IDF vectors; ties go to the first.
    """
    vectorizer = fit_text_vectorizer([train["source"].tolist()], language)
    train_vectors = vectorizer.transform(train["source"].tolist())
    scored_vectors = vectorizer.transform(scored["source"].tolist())
    nearest: list[int] = []
    for first in range(0, scored_vectors.shape[0], SIMILARITY_BATCH_SIZE):
        batch: csr_matrix = scored_vectors[first : first + SIMILARITY_BATCH_SIZE]
        nearest += np.asarray((batch @ train_vectors.T).argmax(1)).ravel().tolist()
    return [train["target"].iloc[index] for index in nearest]


def _score_translations(
    run: BaselineRun, task: TaskData, translations: Iterable[str]
) -> BaselineResult:
    scored = task.splits[run.split]
    columns = text_columns(scored, translations)
    predictions = _predictions_table(scored, columns)
    signature = Note("bleu_signature", get_bleu_signature(columns["label"], columns["prediction"]))
    run = run.replace(reason=[signature])
    rows = list(_metric_rows(run, load_kind(run.kind), task.info["metric"], predictions))
    return BaselineResult(rows, _with_run_columns(rows[0], predictions))


def ceiling_rows(info: dict[str, Any], num_examples: int) -> list[ResultRow]:
    """Return the best possible scores on a generated task, over all items and by group.

    There is one for each window that a model may read: the word alone (static), its left context,
    or both sides. The column `features` names the window.
    """
    if not info["ceilings"]:
        return []
    groups = {"all": info["ceilings"], **info["ceiling_groups"]}
    return [
        ResultRow(
            model="ceiling",
            family="ceiling",
            task=info["name"],
            kind=info["kind"],
            metric=info["metric"][0],
            value=value,
            num_examples=num_examples,
            features=window,
            group=group,
        )
        for group, ceilings in groups.items()
        for window, value in ceilings.items()
    ]


def unscored_rows(info: dict[str, Any], split: Literal["validation", "test"]) -> list[ResultRow]:
    """Return the rows of the baselines for a task that has no such split."""
    name = info["name"]
    run = BaselineRun("", task=name, kind=info["kind"], split=split, test_set="")
    return [
        run.replace(model=model).empty_row(info["metric"][0], Note("no_split", split))
        for model in BASELINES
    ]


def build_predictions_table(tables: Sequence[pd.DataFrame]) -> pd.DataFrame:
    """Return the predictions of all results, in a fixed order and with fixed types."""
    if not tables:
        tables = [pd.DataFrame(columns=list(PREDICTION_COLUMNS))]
    types = dict.fromkeys(PREDICTION_COLUMNS, "str")
    types |= dict.fromkeys(SEED_COLUMNS, "Int64")
    types |= dict.fromkeys(("score", "correct"), "float64")
    predictions = pd.concat(tables).astype(types)
    return predictions.sort_values([*RESULT_KEY_COLUMNS, "id"], ignore_index=True)
