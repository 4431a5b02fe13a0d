"""One stage's cells: a model and its untrained twin, or the adapted model, on one task, in every transfer, label count and seed.

A finished cell is kept outside the outs, so that a killed evaluation redoes none. Frozen features are computed once a model and shared.
"""

import json
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pandas as pd

from lineage.artifacts import read_table, text_digest, write_table
from lineage.data.subsets import nested_stratified_subset, stratification_labels
from lineage.data.task_data import SplitItems, fold_numbers
from lineage.errors import EvaluationError
from lineage.evaluation.answers import SpanAnswer, make_answer
from lineage.evaluation.finetuning import save_weights
from lineage.evaluation.predictions import add_correct_column
from lineage.evaluation.result_rows import (
    EXTRA_COLUMNS,
    LENGTH_NORMALIZED_ACCURACY,
    SWAP_CONSISTENCY,
    build_predictions,
    empty_predictions,
    result_rows,
    rows_without_value,
)
from lineage.evaluation.systems import (
    EncoderUnderTest,
    EvalContext,
    EvalRun,
    FittedHead,
    Init,
    fit_head,
    settings_of_run,
)
from lineage.evaluation.translation import build_trained_translator, translate_split
from lineage.evaluation.trials import FAILED_TRIALS, best_trial, fit_best_trial
from lineage.evaluation.word_vectors import answer_items, cosines_by_layer, list_distinct_words
from lineage.models.base import LanguageModelFamily
from lineage.results import ResultRow


def list_runs(
    facts: dict[str, Any],
    inits: tuple[Init, ...],
    label_counts: tuple[int | Literal["all"], ...],
    finetune_seeds: tuple[int, ...],
    *,
    finetuned: bool = True,
) -> Iterator[EvalRun]:
    """The stage's cells on a task (task.json), in the order in which they are computed; without `tuned` those of frozen features alone."""
    for init in inits:
        if facts["kind"] in ZERO_SHOT_EVALUATORS:
            yield EvalRun(init, "zero_shot")
            continue
        systems: list[tuple[Any, Any]] = (
            [] if facts["kind"] == "translation" else [("frozen", head) for head in facts["probes"]]
        )
        for transfer, head in [*systems, *([("finetuned", "linear")] if finetuned else [])]:
            for count in label_counts:
                yield from (
                    EvalRun(init, transfer, count, seed, head, fold)
                    for seed in finetune_seeds
                    for fold in fold_numbers(facts)
                )


def evaluate_runs(
    context: EvalContext,
    runs: list[EvalRun],
    *,
    cache_dir: Path,
    report_progress: Callable[[float, str], None],
) -> tuple[list[ResultRow], pd.DataFrame]:
    """Rows and predictions of all cells. A cell that fails for good leaves a row with its reason, and the others go on.

    In `keep` stand the finished cells, and, as finetuned.safetensors, the first seed's network tuned on the most labels.
    """
    unscored = (
        ""
        if context.task.scored_splits
        else "the task has no validation split, and report.split is validation"
    )
    if reason := unscored or context.checkpoint.family.unsupported_reason(
        context.task.info["kind"], context.checkpoint.architecture
    ):
        split = (context.task.scored_splits or ["test"])[-1]
        return [
            row
            for run in runs
            for row in rows_without_value(context, run, "not_applicable", reason, split=split)
        ], empty_predictions()
    first_seed_runs = [
        run
        for run in runs
        if run.transfer == "finetuned"
        and run.init == runs[0].init
        and not run.fold
        and run.finetune_seed == runs[0].finetune_seed
    ]
    run_to_save = max(
        first_seed_runs,
        key=lambda cell: float("inf") if cell.label_count == "all" else cell.label_count or 0,
        default=None,
    )
    encoder = EncoderUnderTest(context, runs[0].init)
    rows: list[ResultRow] = []
    predictions: list[pd.DataFrame] = []
    chosen_trials: dict[
        EvalRun, int
    ] = {}  # by what tells an arm: the trial that validation chose with the first seed
    for number, run in enumerate(runs):
        report_progress(number / len(runs), f"{run.init} {run.transfer} {run.label_count or ''}")
        if run.init != encoder.init:  # what was remembered of the one before is let go
            encoder = EncoderUnderTest(context, run.init)
        path = cache_dir / f"{text_digest(json.dumps(vars(run)))[:16]}.parquet"
        try:
            if why := context.missing_reason(run.init):
                raise EvaluationError(why)
            if not path.is_file():
                weights_path = cache_dir / "finetuned.safetensors" if run == run_to_save else None
                write_table(
                    path,
                    _evaluate_run(encoder, run, weights_path, chosen_trials.get(run.selection_key)),
                )
            run_predictions = read_table(path)
            if (run_predictions["trial"] != "chosen").any():
                chosen_trials.setdefault(run.selection_key, best_trial(run_predictions))
            predictions.append(
                run_predictions[
                    [name for name in run_predictions if not str(name).startswith(EXTRA_COLUMNS)]
                ]
            )
            rows += result_rows(context, run, run_predictions, chosen_trials.get(run.selection_key))
        except EvaluationError as error:
            rows += rows_without_value(
                context, run, "failed", str(error), split=context.task.scored_splits[-1]
            )
    return rows, pd.concat(predictions, ignore_index=True) if predictions else empty_predictions()


def _evaluate_run(
    encoder: EncoderUnderTest, run: EvalRun, weights_path: Path | None, chosen_trial: int | None
) -> pd.DataFrame:
    """A cell's predictions; where its arm has trials, with those of each on validation, unless it is decided which one is taken."""
    if run.transfer == "zero_shot":
        return ZERO_SHOT_EVALUATORS[encoder.context.task.info["kind"]](encoder, run)
    context, task = encoder.context, encoder.context.task
    assert run.label_count is not None and run.finetune_seed is not None
    train, *scored = task.split_items(seed=run.finetune_seed, fold=run.fold)
    train_rows = train.rows_N[
        nested_stratified_subset(
            stratification_labels(task.select_items(train)), run.label_count, seed=run.finetune_seed
        )
    ]
    train_items = task.splits[train.table].iloc[train_rows]
    if context.translate_settings:
        return _evaluate_translation(encoder, run, train_items, weights_path)
    answer, head_settings = make_answer(task.info, train_items), settings_of_run(context, run)

    def fit(settings: Any) -> FittedHead:
        return fit_head(encoder, run, settings, train_rows, answer.labels(train_items), answer)

    def predict_part(reader: FittedHead, part: SplitItems, trial: str = "chosen") -> pd.DataFrame:
        read_MK, best_M = reader.predict(part)
        if not np.isfinite(read_MK).all():
            raise EvaluationError(
                f"what is predicted for {part.split} is not finite; lower the rate"
            )
        table = task.select_items(part)
        columns = add_correct_column(
            answer.prediction_columns(table, read_MK, best_M), task.info["metric"][0]
        )
        if trial == "chosen" and (orders := context.order_names(part.table)):
            assert not isinstance(answer, SpanAnswer), "check_task refuses symmetric ones"
            columns[SWAP_CONSISTENCY] = answer.agrees(
                *(reader.predict(replace(part, table=order))[0] for order in orders)
            ).astype(float)
        return build_predictions(context, run, part.split, table, columns, part.test_set).assign(
            trial=trial
        )

    if head_settings.trials and chosen_trial is None:
        head, parts, failed = fit_best_trial(
            head_settings,
            fit,
            partial(predict_part, part=next(part for part in scored if part.split == "validation")),
        )
    else:
        head, parts, failed = (
            fit(head_settings if chosen_trial is None else head_settings.with_trial(chosen_trial)),
            list[pd.DataFrame](),
            dict[str, str](),
        )
    if head.model is not None:
        save_weights(head.model, weights_path)
    predictions = pd.concat(
        [*parts, *(predict_part(head, part) for part in scored)], ignore_index=True
    )
    predictions.attrs[FAILED_TRIALS] = failed
    return predictions


def _evaluate_translation(
    encoder: EncoderUnderTest, run: EvalRun, pairs: pd.DataFrame, weights_path: Path | None
) -> pd.DataFrame:
    """What a translator tuned on pairs writes for every split."""
    context, tables = (
        encoder.context,
        {split: encoder.context.task.splits[split] for split in encoder.context.task.scored_splits},
    )
    assert (
        context.tokens_dir is not None
        and context.translate_settings is not None
        and run.finetune_seed is not None
    )
    language_models = (
        encoder.build_encoder(),
        EncoderUnderTest(context, "random").build_encoder(),
    )
    model = build_trained_translator(
        context.checkpoint,
        language_models,
        context.tokens_dir,
        pairs,
        context.translate_settings,
        seed=run.finetune_seed,
        precision=context.precision,
    )
    save_weights(model, weights_path)
    columns_by_split = {
        split: translate_split(
            model, context.checkpoint.tokenizer, table, precision=context.precision
        )
        for split, table in tables.items()
    }
    return pd.concat(
        [
            build_predictions(context, run, split, tables[split], columns)
            for split, columns in columns_by_split.items()
        ],
        ignore_index=True,
    )


def _evaluate_minimal_pairs(encoder: EncoderUnderTest, run: EvalRun) -> pd.DataFrame:
    """Is the acceptable sentence the more probable one? A tie is half right, so that a model which cannot tell gets 50."""
    context = encoder.context
    family = context.checkpoint.family
    assert isinstance(family, LanguageModelFamily)
    model, score, tokenizer, parts = (
        encoder.build_encoder().eval(),
        family.score_texts,
        context.checkpoint.tokenizer,
        [],
    )
    for split in context.task.scored_splits:
        table = context.task.splits[split]
        texts = [*table["good"], *table["bad"]]
        scores, num_tokens = score(model, tokenizer, texts, limit=context.max_input_positions).T
        if not np.isfinite(scores).all():
            raise EvaluationError(
                f"scores of {split} are not finite; lower the rate of pretraining"
            )
        margin, margin_per_token = (
            some[: len(table)] - some[len(table) :]
            for some in (scores, scores / np.maximum(num_tokens, 1))
        )
        correct = (np.sign(margin) + 1) / 2
        prediction = np.where(margin > 0, "good", np.where(margin < 0, "bad", "tie"))
        columns: dict[str, Any] = {
            "label": np.full(len(table), "good", object),
            "prediction": prediction,
            "score": margin,
            "correct": correct,
        }
        parts.append(
            build_predictions(
                context,
                run,
                split,
                table,
                columns | {LENGTH_NORMALIZED_ACCURACY: (np.sign(margin_per_token) + 1) / 2},
            )
        )
    return pd.concat(parts, ignore_index=True)


def _evaluate_word_vectors(encoder: EncoderUnderTest, run: EvalRun) -> pd.DataFrame:
    """What the vectors of single words say of pairs, or of analogies; a column for what each layer alone says."""
    context, parts = encoder.context, []
    for split in context.task.scored_splits:
        table = context.task.splits[split]
        vectors_VLD, known_V = encoder.embed_words(list_distinct_words(table))
        columns = answer_items(
            context.task.info["kind"], table, cosines_by_layer(vectors_VLD, known_V), known_V
        )
        parts.append(build_predictions(context, run, split, table, columns))
    return pd.concat(parts, ignore_index=True)


ZERO_SHOT_EVALUATORS = {
    "minimal_pairs": _evaluate_minimal_pairs,
    "word_similarity": _evaluate_word_vectors,
    "word_analogy": _evaluate_word_vectors,
}  # kinds without training
