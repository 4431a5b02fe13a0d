"""Controls: what can be had without any pretraining, on the same label subsets and seeds as every family, and what nobody can pass."""

import dataclasses
from collections.abc import Iterator, Sequence
from functools import partial
from itertools import product
from typing import Any, Literal

import numpy as np
import pandas as pd
from sklearn.feature_extraction.text import TfidfVectorizer

from lineage.config.params import Grid
from lineage.data.subsets import nested_stratified_subset, stratification_labels
from lineage.data.task_data import EXTRA_TEST_PREFIX, SplitItems, TaskData, fold_numbers
from lineage.errors import EvaluationError
from lineage.evaluation.metrics import (
    CONTRIBUTIONS,
    METRICS,
    bleu_contributions,
    get_bleu_signature,
)
from lineage.evaluation.predictions import (
    PredictionColumns,
    add_correct_column,
    describe_truncated_answers,
    split_by_group,
)
from lineage.evaluation.tfidf import PREDICTORS, tfidf_vectors
from lineage.evaluation.word_vectors import (
    WORD_VECTOR_KINDS,
    answer_items,
    compute_metric,
    cosine_matrix,
    list_distinct_words,
    missing_value_note,
)
from lineage.results import (
    DATA_FAMILY,
    DROPPED_METRIC_PREFIX,
    PREDICTION_COLUMNS,
    RESULT_KEY_COLUMNS,
    ResultRow,
)
from lineage.tasks.base import Kind

BASELINES = ("majority", "tfidf")
# Facts of task.json: a number a split.
COUNTED_FACTS = (
    "repeated_in_train",
    "repeated_in_folds",
    "group_in_train",
    "mended_tags",
    "blank_words",
    "unlearned_tags",
    "numbered_tags",
    "plain_tags",
)


def evaluate_baselines(
    kind: Kind,
    task: TaskData,
    *,
    split: Literal["validation", "test"],
    finetune_seeds: Sequence[int],
    label_counts: Sequence[int | Literal["all"]],
    tfidf_C: Sequence[float] = Grid.tfidf_C,
) -> Iterator[tuple[list[ResultRow], pd.DataFrame]]:
    """The rows and predictions of every control cell: (control, labels, seed, fold, test set); of several penalties those of each on validation, too.

    As for every arm, the first seed's trials decide for all seeds of a number of labels, and each fold decides for itself.
    """
    facts = task.info
    common = {"task": facts["name"], "kind": kind.name, "split": split, "test_set": facts["name"]}
    if kind.has_train_split and kind.answer_type is None:
        yield from _translation_baselines(
            task.splits["train"],
            task.splits[split],
            facts,
            common,
            finetune_seeds=finetune_seeds,
            label_counts=label_counts,
        )
        return
    if not kind.has_train_split:
        yield (
            _word_vector_baselines(kind, task.splits[split], common)
            if kind.name in WORD_VECTOR_KINDS
            else _minimal_pair_baselines(task.splits[split], facts, common)
        )
        return
    chosen_trials: dict[Any, int] = {}
    chance_results: dict[Any, tuple[list[ResultRow], pd.DataFrame]] = {}
    for count, seed, fold in product(label_counts, finetune_seeds, fold_numbers(facts)):
        train, *scored = task.split_items(seed=seed, fold=fold)
        train_items = task.select_items(train)
        train_items = train_items.iloc[
            nested_stratified_subset(stratification_labels(train_items), count, seed=seed)
        ]
        selection_key = count if fold is None else (count, seed, fold)
        for name in BASELINES:
            run_columns = {
                **common,
                "finetune_seed": seed,
                "fold": fold,
                "label_count": str(count),
                "train_examples": len(train_items),
                "model": name,
                "family": name,
            }
            predict = partial(_predict, name, kind, facts, train_items)
            if name == "tfidf" and len(tfidf_C) > 1:
                if selection_key not in chosen_trials:
                    validation_part = next(part for part in scored if part.split == "validation")
                    trial_predictions = [
                        predict(task.select_items(validation_part), C=C) for C in tfidf_C
                    ]
                    chosen_trials[selection_key] = int(
                        np.argmax(
                            [
                                np.nan_to_num(found["correct"].mean(), nan=-np.inf)
                                for found in trial_predictions
                            ]
                        )
                    )
                    for number, found in enumerate(trial_predictions):
                        about = {
                            "split": "validation",
                            "trial": str(number),
                            "reason": _describe_trial(tfidf_C, number),
                        }
                        yield _rows_and_predictions(
                            run_columns | about, task, validation_part, found
                        )
                run_columns |= {"reason": _describe_trial(tfidf_C, chosen_trials[selection_key])}
            for part in (part for part in scored if part.split == split):
                found = predict(
                    task.select_items(part), C=tfidf_C[chosen_trials.get(selection_key, 0)]
                )
                yield _rows_and_predictions(
                    run_columns | {"test_set": part.test_set}, task, part, found
                )
        if kind.answer_type in ("label", "choice"):
            yield from _chance_level(
                run_columns,
                facts,
                [
                    (part.test_set, task.select_items(part))
                    for part in scored
                    if part.split == split
                ],
                chance_results,
            )


def _predict(
    baseline: str,
    kind: Kind,
    facts: dict[str, Any],
    train: pd.DataFrame,
    scored: pd.DataFrame,
    *,
    C: float,
) -> PredictionColumns:
    assert kind.answer_type
    return add_correct_column(
        PREDICTORS[kind.answer_type](baseline, kind, facts, train, scored, C=C), facts["metric"][0]
    )


def _describe_trial(tfidf_C: Sequence[float], number: int) -> str:
    return f"trial {number} (of {len(tfidf_C)}, from 0): inverse penalty {tfidf_C[number]:g}"


def _rows_and_predictions(
    run_columns: dict[str, Any], task: TaskData, part: SplitItems, found: PredictionColumns
) -> tuple[list[ResultRow], pd.DataFrame]:
    table = task.select_items(part)
    predictions = pd.DataFrame({"id": table["id"], "group": table["group"], **found})
    rows = [*_metric_rows(run_columns, task.info, predictions)]
    rows = [
        dataclasses.replace(
            row, reason=row.reason or describe_truncated_answers(task.info, part.table)
        )
        for row in rows
    ]
    return rows, _with_run_columns(rows[0], predictions)


def _metric_rows(
    run_columns: dict[str, Any], facts: dict[str, Any], predictions: pd.DataFrame
) -> Iterator[ResultRow]:
    """A row a metric, over all items and for each group of them; where all have no value that is said once."""
    whole: dict[str, float] = {}
    for group, items in split_by_group(predictions, fold=run_columns.get("fold")):
        for metric in facts["metric"]:
            value = METRICS[metric](
                items["label"].to_numpy(object), items["prediction"].to_numpy(object)
            )
            if group == "all" or np.isfinite(whole[metric]):
                yield _metric_row(run_columns | {"group": group}, metric, value, len(items))
            whole.setdefault(metric, value)


def _metric_row(
    run_columns: dict[str, Any], metric: str, value: float, num_examples: int
) -> ResultRow:
    if np.isfinite(value):
        return ResultRow(**run_columns, metric=metric, value=value, num_examples=num_examples)
    why = f"no {metric}, since all gold numbers are the same, or all predicted ones"
    return ResultRow(
        **run_columns | {"reason": why},
        metric=metric,
        value=None,
        num_examples=0,
        status="not_applicable",
    )


def ceiling_rows(facts: dict[str, Any], num_examples: int) -> list[ResultRow]:
    """What the best reader of each window can reach on a generated task's test items, in all and by group."""
    groups = {"all": facts["ceilings"], **facts["ceiling_groups"]} if facts["ceilings"] else {}
    about = {
        "task": facts["name"],
        "kind": facts["kind"],
        "metric": facts["metric"][0],
        "num_examples": num_examples,
    }
    return [
        ResultRow(
            model="ceiling", family="ceiling", value=value, features=window, group=group, **about
        )
        for group, ceilings in groups.items()
        for window, value in ceilings.items()
    ]


def data_count_rows(facts: dict[str, Any]) -> Iterator[ResultRow]:
    """What task.json counted in the task's data, where there is any.

    Its items, by split; those that were cut, carved out of train, or stand in train too, themselves or by their group; what was dropped, a metric a
    reason; sentences whose tags had to be guessed at, words that are none, and tags that may be spans.
    """
    about = {
        "model": DATA_FAMILY,
        "family": DATA_FAMILY,
        "task": facts["name"],
        "kind": facts["kind"],
    }
    counted = {
        "items": facts["counts"],
        "cut": facts["cut"],
        "carved": {"validation": facts["carved"]},
    }
    for split, reasons in facts["dropped"].items():
        for reason, count in reasons.items():
            counted.setdefault(
                "left_out" if reason == "of_no_use" else DROPPED_METRIC_PREFIX + reason, {}
            )[split] = count
    for metric, counts in (counted | {name: facts[name] for name in COUNTED_FACTS}).items():
        for name, count in counts.items():
            if count:
                where = (
                    {"split": "test", "test_set": name.removeprefix(EXTRA_TEST_PREFIX)}
                    if name.startswith(EXTRA_TEST_PREFIX)
                    else {"split": name}
                )
                yield ResultRow(
                    **about, **where, metric=metric, value=count, num_examples=facts["counts"][name]
                )


def fold_rows(task: TaskData, finetune_seeds: Sequence[int]) -> Iterator[ResultRow]:
    """Of a task that is scored by cross-validation: its folds, the groups that they keep whole, and folds without a label.

    These count, over all seeds, where a label is missing from what is learned: all its items, or groups, are elsewhere.
    """
    facts = task.info
    about = {
        "model": DATA_FAMILY,
        "family": DATA_FAMILY,
        "task": facts["name"],
        "kind": facts["kind"],
        "split": "train",
    }
    train_parts = [
        task.split_items(seed=seed, fold=fold)[0]
        for seed in finetune_seeds
        for fold in fold_numbers(facts)
        if fold is not None
    ]
    folds_missing_label = (
        sum(
            task.select_items(part)["label"].nunique() < len(facts["labels"])
            for part in train_parts
        )
        if facts["answer"] == "label"
        else 0
    )
    if facts["folds"]:
        yield ResultRow(
            **about, metric="folds", value=facts["folds"], num_examples=facts["counts"]["train"]
        )
        if facts["grouped"]:
            yield ResultRow(
                **about,
                metric="groups",
                value=task.splits["train"]["group"].nunique(),
                num_examples=facts["counts"]["train"],
            )
    if folds_missing_label:
        yield ResultRow(
            **about,
            metric="folds_without_a_label",
            value=folds_missing_label,
            num_examples=len(train_parts),
        )


def unscored_rows(facts: dict[str, Any], split: Literal["validation", "test"]) -> list[ResultRow]:
    """The controls' rows for a task that has no such split."""
    return [
        ResultRow(
            model=name,
            family=name,
            task=facts["name"],
            kind=facts["kind"],
            split=split,
            metric=facts["metric"][0],
            value=None,
            num_examples=0,
            status="not_applicable",
            reason=f"the task has no {split} split",
        )
        for name in BASELINES
    ]


def build_predictions_table(tables: Sequence[pd.DataFrame]) -> pd.DataFrame:
    """The predictions of all cells, in a fixed order and with fixed types."""
    whole = pd.concat(tables) if tables else pd.DataFrame(columns=list(PREDICTION_COLUMNS))
    texts = {
        name: "str"
        for name in PREDICTION_COLUMNS
        if name not in ("pretrain_seed", "finetune_seed", "fold", "score", "correct")
    }
    types = {
        **texts,
        "pretrain_seed": "Int64",
        "finetune_seed": "Int64",
        "fold": "Int64",
        "score": "float64",
        "correct": "float64",
    }
    return whole.astype(types).sort_values([*RESULT_KEY_COLUMNS, "id"], ignore_index=True)


def _minimal_pair_baselines(
    scored: pd.DataFrame, facts: dict[str, Any], common: dict[str, Any]
) -> tuple[list[ResultRow], pd.DataFrame]:
    """Pairs without training labels: knowing nothing is a tie on every pair, and there is nothing to fit a classifier to."""
    row_columns = {
        **common,
        "model": "majority",
        "family": "majority",
        "metric": "accuracy",
        "value": 0.5,
    }
    rows = [
        ResultRow(**row_columns, group=group, num_examples=len(items))
        for group, items in split_by_group(scored, fold=None)
    ]
    predictions = {
        "id": scored["id"],
        "group": scored["group"],
        "label": "good",
        "prediction": "tie",
        "score": 0.0,
        "correct": 0.5,
    }
    tfidf_row = ResultRow(
        **common,
        model="tfidf",
        family="tfidf",
        metric="accuracy",
        value=None,
        num_examples=0,
        status="not_applicable",
        reason="there are no training labels to fit a classifier to",
    )
    return [*rows, tfidf_row], _with_run_columns(rows[0], pd.DataFrame(predictions))


def _chance_level(
    run_columns: dict[str, Any],
    facts: dict[str, Any],
    test_sets: Sequence[tuple[str, pd.DataFrame]],
    cache: dict[Any, tuple[list[ResultRow], pd.DataFrame]],
) -> Iterator[tuple[list[ResultRow], pd.DataFrame]]:
    """A cell's chance level on each of its test sets, which is the same for any number of labels, and without folds for any seed."""
    here = {
        name: run_columns[name]
        for name in ("finetune_seed", "fold", "label_count", "train_examples")
    }
    for test_set, items in test_sets:
        key = (
            test_set,
            None
            if run_columns["fold"] is None
            else (run_columns["finetune_seed"], run_columns["fold"]),
        )
        if key not in cache:
            cache[key] = _compute_chance_level(
                run_columns
                | {"model": "chance", "family": "chance", "test_set": test_set, "reason": ""},
                facts,
                items,
            )
        rows = [dataclasses.replace(row, **here) for row in cache[key][0]]
        yield rows, _with_run_columns(rows[0], cache[key][1])


def _compute_chance_level(
    run_columns: dict[str, Any], facts: dict[str, Any], scored: pd.DataFrame
) -> tuple[list[ResultRow], pd.DataFrame]:
    """What guessing at random among the labels gets: the metrics of a table where each item is answered once with every one of them."""
    names = np.asarray(facts["labels"], object)
    labels, predictions = names[scored["label"]].repeat(len(names)), np.tile(names, len(scored))
    each = pd.DataFrame(
        {"group": scored["group"].repeat(len(names)), "label": labels, "prediction": predictions}
    )
    rows = [
        dataclasses.replace(row, num_examples=row.num_examples // len(names))
        for row in _metric_rows(run_columns, facts, each)
    ]
    about = {
        "label": names[scored["label"]],
        "prediction": "tie",
        "score": 1 / len(names),
        "correct": CONTRIBUTIONS[facts["metric"][0]](labels, predictions)
        .reshape(-1, len(names))
        .mean(1),
    }
    return rows, _with_run_columns(
        rows[0], pd.DataFrame({"id": scored["id"], "group": scored["group"], **about})
    )


def _word_vector_baselines(
    kind: Kind, scored: pd.DataFrame, common: dict[str, Any]
) -> tuple[list[ResultRow], pd.DataFrame]:
    """Single words: by tf-idf of their characters in place of a model's vectors; no answer is commoner than the others."""
    distinct, metric = list_distinct_words(scored), kind.metrics[0]
    rows = [
        ResultRow(
            **common,
            model="majority",
            family="majority",
            metric=metric,
            value=None,
            num_examples=0,
            status="not_applicable",
            reason="there are no labels of which one could be the commonest",
        )
    ]
    row_columns: dict[str, Any] = {
        **common,
        "model": "tfidf",
        "family": "tfidf",
        "metric": metric,
    }
    tfidf_VF = TfidfVectorizer(
        analyzer="char_wb", ngram_range=(2, 4), sublinear_tf=True
    ).fit_transform(distinct)
    products_VV = (tfidf_VF @ tfidf_VF.T).toarray()
    mean_V = products_VV.mean(0)  # taken away so, since centred vectors would no longer be sparse
    centred_VV = products_VV - (mean_V[:, None] + mean_V) + mean_V.mean()
    try:
        found = pd.DataFrame(
            {
                "id": scored["id"],
                "group": scored["group"],
                **answer_items(
                    kind.name,
                    scored,
                    [("none", cosine_matrix(centred_VV))],
                    np.ones(len(distinct), bool),
                ),
            }
        )
        whole = compute_metric(kind.name, found)
        for group, items in split_by_group(found, fold=None):
            value = compute_metric(kind.name, items)
            if np.isfinite(value):
                rows.append(
                    ResultRow(**row_columns, group=group, value=value, num_examples=len(items))
                )
            elif group == "all" or np.isfinite(whole):
                rows.append(
                    ResultRow(
                        **row_columns,
                        group=group,
                        value=None,
                        num_examples=0,
                        status="not_applicable",
                        reason=missing_value_note(items),
                    )
                )
    except EvaluationError as error:
        found = pd.DataFrame(columns=["id", "group", "label", "prediction", "score", "correct"])
        rows.append(
            ResultRow(
                **row_columns,
                value=None,
                num_examples=0,
                status="not_applicable",
                reason=str(error),
            )
        )
    return rows, _with_run_columns(rows[1], found)  # of tfidf


def find_nearest_translations(
    train: pd.DataFrame, scored: pd.DataFrame, *, language: str
) -> list[str]:
    """The translation of the training source that is most like each source by tf-idf (as a translation memory would offer); of equals the first."""
    train_vectors, scored_vectors = tfidf_vectors(
        [train["source"].tolist()], [scored["source"].tolist()], language=language
    )
    best = np.concatenate(
        [
            np.asarray((scored_vectors[i : i + 256] @ train_vectors.T).argmax(1)).ravel()
            for i in range(0, scored_vectors.shape[0], 256)
        ]
    )
    return [train["target"].iloc[i] for i in best]


def _translation_baselines(
    train: pd.DataFrame,
    scored: pd.DataFrame,
    facts: dict[str, Any],
    common: dict[str, Any],
    *,
    finetune_seeds: Sequence[int],
    label_counts: Sequence[int | Literal["all"]],
) -> Iterator[tuple[list[ResultRow], pd.DataFrame]]:
    """The source as it is, and the translation of the nearest training source; there are no labels of which one could be the commonest."""
    references = scored["target"].to_numpy(object)
    for count in label_counts:
        for seed in finetune_seeds:
            pairs = train.iloc[
                nested_stratified_subset(stratification_labels(train), count, seed=seed)
            ]
            run_columns = {
                **common,
                "finetune_seed": seed,
                "label_count": str(count),
                "train_examples": len(pairs),
            }
            majority_row = ResultRow(
                **run_columns,
                model="majority",
                family="majority",
                metric=facts["metric"][0],
                value=None,
                num_examples=0,
                status="not_applicable",
                reason="a translation is no label: none is the commonest",
            )
            translations = {
                "copy": list(scored["source"]),
                "tfidf": find_nearest_translations(pairs, scored, language=facts["language"]),
            }
            for name, texts in translations.items():
                references_and_translations = references, np.array(texts, object)
                own = {
                    **run_columns,
                    "model": name,
                    "family": name,
                    "reason": get_bleu_signature(*references_and_translations),
                }
                columns = {
                    "label": references,
                    "prediction": references_and_translations[1],
                    "score": np.nan,
                    "correct": bleu_contributions(*references_and_translations),
                }
                predictions = pd.DataFrame(
                    {"id": scored["id"], "group": scored["group"], **columns}
                )
                rows = [*_metric_rows(own, facts, predictions)]
                yield (
                    [*rows, *([majority_row] if name == "copy" else [])],
                    _with_run_columns(rows[0], predictions),
                )


def _with_run_columns(row: ResultRow, table: pd.DataFrame) -> pd.DataFrame:
    return table.assign(**{name: getattr(row, name) for name in RESULT_KEY_COLUMNS})[
        list(PREDICTION_COLUMNS)
    ]
