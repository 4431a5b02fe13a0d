"""Evaluate one stage's systems on one task: every init, transfer, label count, seed and fold.

Finished runs are cached outside the stage's outputs, so that a killed evaluation repeats none. A
long training is saved in between, see `ResumePoint`.
Frozen features are computed once for each encoder and shared.
"""

import json
import math
import shutil
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from lineage.answers.base import Answer, HeadAnswer, PredictionColumns, correct_column
from lineage.answers.pair import pair_columns
from lineage.answers.words import WordsAnswer, list_distinct_words
from lineage.artifacts import check_intact, create_artifact, is_intact, text_digest
from lineage.data.splits import nested_stratified_subset, stratification_labels
from lineage.data.task_data import SplitItems, fold_numbers
from lineage.errors import EvaluationError
from lineage.evaluation.early_stopping import ResumePoint, curve_frame
from lineage.evaluation.heads import FittedHead, HeadProblem, StartedHead, start_head
from lineage.evaluation.result_rows import (
    EXTRA_COLUMNS,
    LENGTH_NORMALIZED_ACCURACY,
    SWAP_CONSISTENCY,
    build_curves,
    build_predictions,
    count_train_examples,
    empty_curves,
    empty_predictions,
    result_rows,
    rows_without_value,
    run_columns,
)
from lineage.evaluation.saved_systems import SystemRecord, save_system, system_name
from lineage.evaluation.settings import HyperparameterTrials, LabelCount
from lineage.evaluation.systems import EncoderUnderTest, EvalContext, EvalRun, Init, settings_of_run
from lineage.evaluation.translation import build_trained_translator, translate_split
from lineage.evaluation.translator import TranslationSettings
from lineage.evaluation.trials import (
    AllTrialsFailedError,
    FailedTrial,
    RunPredictions,
    fit_best_trial,
)
from lineage.evaluation.word_vectors import cosines_by_layer
from lineage.models.base import LanguageModelFamily
from lineage.results import INTERMEDIATE_TRIAL, Note, ResultRow
from lineage.tasks.base import load_kind

CACHED_RUN = "evaluated_run"  # the kind of artifact
SYSTEM_DIR = "system"  # in the folder of a cached run
TRAININGS_SUFFIX = ".trainings"  # of the folder of those that a run has not finished


class RunCost(NamedTuple):
    """The time of a run, and how fast its system answers."""

    seconds: float  # the first run of a model also computes its features
    items_per_second: float | None  # the encoder included; None if nothing was trained


class EvaluationOutput(NamedTuple):
    """The output of a stage: rows, predictions, and learning curves of the heads it trained."""

    rows: list[ResultRow]
    predictions: pd.DataFrame
    curves: pd.DataFrame
    costs: dict[EvalRun, RunCost]


def list_runs(
    info: dict[str, Any],
    inits: tuple[Init, ...],
    label_counts: tuple[LabelCount, ...],
    finetune_seeds: tuple[int, ...],
    *,
    finetuned: bool = True,
    setfit: bool = False,
) -> Iterator[EvalRun]:
    """Yield the stage's runs on a task (task.json) in order; without `finetuned`, only probes.

    `setfit` adds those on pairs of texts.
    """
    kind = load_kind(info["kind"])
    systems: list[tuple[Any, Any]] = []  # transfer and head
    if kind.trains_head:
        systems += [("frozen", head) for head in info["probes"]]
    if finetuned:
        systems.append(("finetuned", "linear"))
    if setfit:
        systems.append(("setfit", "linear"))
    for init in inits:
        if not kind.has_train_split:
            yield EvalRun(init, "zero_shot")
            continue
        for transfer, head in systems:
            for count in label_counts:
                for seed in finetune_seeds:
                    for fold in fold_numbers(info):
                        yield EvalRun(init, transfer, count, seed, head, fold)


def select_intermediate_runs(runs: Sequence[EvalRun]) -> list[EvalRun]:
    """Return the runs that are repeated with the intermediate checkpoints of a pretrained model.

    These are frozen ones with the most labels, and those without labels.
    """
    runs = [
        run for run in runs if run.init == "pretrained" and run.transfer in ("frozen", "zero_shot")
    ]
    if not runs:
        return []
    most_labels = max((run.label_count for run in runs), key=_label_count_as_number)
    return [run for run in runs if run.label_count == most_labels]


def _label_count_as_number(label_count: LabelCount | None) -> float:
    if label_count is None:
        return 0.0
    return math.inf if label_count == "all" else float(label_count)


def intermediate_predictions(
    predictions: pd.DataFrame, *, split: str, text_share: float, text_bytes: int
) -> pd.DataFrame:
    """Return the predictions of an intermediate checkpoint for the scored split.

    Another trial sets them apart from those of the model.
    """
    is_scored = (predictions["trial"] == "chosen") & (predictions["split"] == split)
    return predictions[is_scored].assign(
        trial=INTERMEDIATE_TRIAL, text_share=text_share, text_bytes=text_bytes
    )


def evaluate_runs(
    context: EvalContext,
    runs: list[EvalRun],
    *,
    cache_dir: Path,
    report_progress: Callable[[float, str], None],
) -> EvaluationOutput:
    """Return the rows, predictions and learning curves of all runs.

    A run that fails gives a row with the reason, and the others go on. `cache_dir` holds finished
    runs, and the systems of those that can be used afterwards (`list_kept_systems`).
    """
    rows: list[ResultRow] = []
    unsupported = _unsupported_note(context)
    if unsupported is not None:
        split = (context.task.scored_splits or ["test"])[-1]
        for run in runs:
            rows += rows_without_value(context, run, "not_applicable", [unsupported], split=split)
        return EvaluationOutput(rows, empty_predictions(), empty_curves(), {})
    encoder = EncoderUnderTest(context, runs[0].init, scratch_dir=cache_dir)
    tables = [empty_predictions()]
    curves = [empty_curves()]
    chosen_trials: dict[EvalRun, int] = {}  # chosen on validation; by selection key
    costs: dict[EvalRun, RunCost] = {}
    for number, run in enumerate(runs):
        note = f"{run.init} {run.transfer} {run.label_count or ''}"
        report = partial(report_progress, number / len(runs), note)
        report()
        if run.init != encoder.init:  # frees the features of the previous encoder
            encoder = EncoderUnderTest(context, run.init, scratch_dir=cache_dir)
        missing = context.missing_note(run.init)
        if missing is not None:
            rows += _failed_rows(context, run, [missing])
            continue
        try:
            predictions = _load_or_evaluate(
                encoder,
                run,
                cache_dir,
                chosen_trials.get(run.selection_key),
                report,
                is_saved=_is_saved(run, runs, context),
            )
        except AllTrialsFailedError as error:
            settings = settings_of_run(context, run)
            notes = [trial.note(settings) for trial in error.failed_trials]
            rows += _failed_rows(context, run, notes)
            continue
        except EvaluationError as error:
            rows += _failed_rows(context, run, [Note("error", str(error))])
            continue
        if predictions.chosen_trial is not None:
            chosen_trials[run.selection_key] = predictions.chosen_trial
        costs[run] = RunCost(predictions.seconds, predictions.items_per_second)
        tables.append(_without_extra_columns(predictions.table))
        curves.append(build_curves(context, run, predictions.curves))
        rows += result_rows(context, run, predictions)
    return EvaluationOutput(rows, concatenate(tables), concatenate(curves), costs)


def concatenate(tables: Sequence[pd.DataFrame]) -> pd.DataFrame:
    """Concatenate tables of the same columns; empty ones, of which pandas warns, are left out."""
    return pd.concat([table for table in tables if len(table)] or tables, ignore_index=True)


def _unsupported_note(context: EvalContext) -> Note | None:
    """Return why no system of the family can be evaluated on the task; None if it can."""
    if not context.task.scored_splits:
        return Note("no_split", "validation")
    answered_by = context.kind.answer.answered_by
    if not context.checkpoint.family.can_answer(answered_by, context.checkpoint.architecture):
        return Note("unsupported", answered_by)
    return None


def _failed_rows(context: EvalContext, run: EvalRun, notes: Sequence[Note]) -> list[ResultRow]:
    split = context.task.scored_splits[-1]
    return rows_without_value(context, run, "failed", notes, split=split)


def _is_saved(run: EvalRun, runs: Sequence[EvalRun], context: EvalContext) -> bool:
    """Tell whether a run's system can be used afterwards.

    These are the systems that the report may recommend, with the first seed and fold. Random-init
    baselines are not recommended, and neither are models joined with another's static vectors,
    which use two budgets.
    """
    is_first = run.finetune_seed == runs[0].finetune_seed and not run.fold
    return (
        is_first
        and run.transfer != "zero_shot"
        and run.init == runs[0].init
        and context.static_context is None
    )


def list_kept_systems(
    context: EvalContext, runs: Sequence[EvalRun], rows: Sequence[ResultRow], cache_dir: Path
) -> list[Path]:
    """Return the folders in `cache_dir` of the systems that a stage keeps, after `evaluate_runs`.

    Fine-tuned networks, also those of SetFit, that another system of as many labels beats on
    validation are left out: heads are small, but a network is as large as its encoder. The mean
    over the seeds decides.
    """
    saved = {run: _system_dir(cache_dir, run) for run in runs if _is_saved(run, runs, context)}
    saved = {run: folder for run, folder in saved.items() if folder.is_dir()}
    metric = context.task.info["metric"][0]
    values: dict[tuple[str, str], list[float]] = {}  # by label count and system
    for row in rows:
        is_counted = row.split == "validation" and row.trial == "chosen" and row.group == "all"
        if is_counted and row.metric == metric and row.value is not None:
            name = system_name(row.model, row.init, row.transfer, row.head)
            values.setdefault((row.label_count, name), []).append(row.value)
    keys = {run: (str(run.label_count), _name_of_run(context, run)) for run in saved}
    means = {run: np.mean(values.get(key, [-math.inf])) for run, key in keys.items()}
    kept = []
    for run, folder in saved.items():
        rivals = [means[other] for other in saved if other.label_count == run.label_count]
        if run.transfer == "frozen" or means[run] >= max(rivals):
            kept.append(folder)
    return kept


def _name_of_run(context: EvalContext, run: EvalRun) -> str:
    columns = run_columns(context, run)
    return system_name(columns["model"], columns["init"], columns["transfer"], columns["head"])


def _run_digest(run: EvalRun) -> str:
    return text_digest(json.dumps(vars(run)))[:16]


def _system_dir(cache_dir: Path, run: EvalRun) -> Path:
    return cache_dir / _run_digest(run) / SYSTEM_DIR


def _load_or_evaluate(
    encoder: EncoderUnderTest,
    run: EvalRun,
    cache_dir: Path,
    chosen_trial: int | None,
    on_save: Callable[[], None],
    *,
    is_saved: bool,
) -> RunPredictions:
    """Evaluate a run unless its predictions are cached. Raises EvaluationError if it fails.

    `on_save` is called when a training has been saved.
    """
    folder = cache_dir / _run_digest(run)
    resume_point = ResumePoint(
        folder.with_suffix(TRAININGS_SUFFIX), encoder.context.checkpoint_seconds, on_save
    )
    if folder.exists() and not is_intact(folder, CACHED_RUN):
        print(f"{folder}: this finished run is damaged, so it is repeated", file=sys.stderr)
        shutil.rmtree(folder)
    if not folder.exists():
        start = time.monotonic()
        with create_artifact(folder, CACHED_RUN) as draft:
            system_dir = draft / SYSTEM_DIR if is_saved else None
            predictions = _evaluate_run(encoder, run, system_dir, chosen_trial, resume_point)
            seconds = predictions.seconds + time.monotonic() - start
            replace(predictions, seconds=seconds).save(draft)
    shutil.rmtree(resume_point.folder, ignore_errors=True)
    return RunPredictions.load(folder)


def _without_extra_columns(predictions: pd.DataFrame) -> pd.DataFrame:
    names = [name for name in predictions if not str(name).startswith(EXTRA_COLUMNS)]
    return predictions[names]


def _evaluate_run(
    encoder: EncoderUnderTest,
    run: EvalRun,
    system_dir: Path | None,
    chosen_trial: int | None,
    resume_point: ResumePoint,
) -> RunPredictions:
    """Answer every scored split with the system of a run.

    The `seconds` that are returned are those of earlier processes only.
    """
    answered_by = encoder.context.kind.answer.answered_by
    if answered_by == "sentence_probability":
        return RunPredictions(_evaluate_sentence_probabilities(encoder, run))
    if answered_by == "word_vectors":
        return RunPredictions(_evaluate_word_vectors(encoder, run))
    if answered_by == "translator":
        return RunPredictions(_evaluate_translation(encoder, run, system_dir))
    return _evaluate_head(encoder, run, system_dir, chosen_trial, resume_point)


def select_train_rows(context: EvalContext, run: EvalRun) -> np.ndarray:
    """Return the rows of the table train that the run learns from, nested by label count."""
    assert run.label_count is not None and run.finetune_seed is not None
    train = context.task.split_items(seed=run.finetune_seed, fold=run.fold)[0]
    labels = stratification_labels(context.task.select_items(train))
    subset = nested_stratified_subset(labels, run.label_count, seed=run.finetune_seed)
    return train.rows_N[subset]


def _evaluate_head(
    encoder: EncoderUnderTest,
    run: EvalRun,
    system_dir: Path | None,
    chosen_trial: int | None,
    resume_point: ResumePoint,
) -> RunPredictions:
    """Fit a head and predict with it.

    If its settings have trials and none is chosen yet, also return the predictions of each trial
    on validation.
    """
    context = encoder.context
    settings = settings_of_run(context, run)
    problem = _build_problem(context, run)
    answer = problem.answer
    assert run.finetune_seed is not None
    scored = context.task.split_items(seed=run.finetune_seed, fold=run.fold)[1:]

    start = _HeadStarter(encoder, run, problem, resume_point)

    def predict_validation(head: FittedHead, trial: str) -> pd.DataFrame:
        return _predict_part(context, run, head, answer, problem.validation, trial=trial)

    def score(predictions: pd.DataFrame) -> float:
        return context.kind.answer.score(context.task.info["metric"][0], predictions)

    tables: list[pd.DataFrame] = []
    curves: list[pd.DataFrame] = []
    failed_trials: list[FailedTrial] = []
    if settings.trials and chosen_trial is None:
        outcome = fit_best_trial(settings, start, predict_validation, score)
        head = outcome.best.head
        chosen_trial = outcome.best.number
        tables += outcome.predictions
        curves += outcome.curves
        failed_trials = outcome.failed
    else:
        head = start(_chosen_settings(settings, chosen_trial)).finish()
    start_time = time.monotonic()
    tables += [_predict_part(context, run, head, answer, part, trial="chosen") for part in scored]
    seconds_per_item = (time.monotonic() - start_time) / sum(len(part.rows_N) for part in scored)
    if run.transfer == "frozen":
        seconds_per_item += encoder.feature_seconds_per_item
    curves.append(curve_frame(head.learning_curve).assign(trial="chosen"))
    table = pd.concat(tables, ignore_index=True)
    if system_dir is not None:
        chosen_settings = _chosen_settings(settings, chosen_trial)
        record = _describe_system(context, run, run.settings_block, chosen_settings, table, answer)
        save_system(system_dir, record, head.get_tensors())
    return RunPredictions(
        table,
        failed_trials,
        pd.concat(curves, ignore_index=True),
        head.notes,
        chosen_trial,
        seconds=sum(start.earlier_seconds),
        items_per_second=1 / seconds_per_item,
    )


class _HeadStarter:
    """Starts the heads of a run, each where an earlier process has saved it, if one has."""

    def __init__(
        self, encoder: EncoderUnderTest, run: EvalRun, problem: HeadProblem, point: ResumePoint
    ) -> None:
        self._encoder = encoder
        self._run = run
        self._problem = problem
        self._point = point
        self.earlier_seconds: list[float] = []  # that earlier processes have spent, by training

    def __call__(self, settings: HyperparameterTrials) -> StartedHead:
        """Start a head with these settings."""
        head = start_head(self._encoder, self._run, settings, self._problem)
        if head.training is not None:
            # A process that repeats the run starts the same trainings in the same order.
            folder = self._point.folder / str(len(self.earlier_seconds))
            self.earlier_seconds.append(head.training.resume(replace(self._point, folder=folder)))
        return head


def _chosen_settings(
    settings: HyperparameterTrials, chosen_trial: int | None
) -> HyperparameterTrials:
    return settings if chosen_trial is None else settings.with_trial(chosen_trial)


def _describe_system(
    context: EvalContext,
    run: EvalRun,
    settings_block: str,
    settings: HyperparameterTrials | TranslationSettings,
    predictions: pd.DataFrame,
    answer: Answer | None = None,
) -> SystemRecord:
    """Return the record of a run's system; its score is that of its predictions for validation."""
    info = context.task.info
    columns = run_columns(context, run)
    is_scored = (predictions["split"] == "validation") & (predictions["trial"] == "chosen")
    score = context.kind.answer.score(info["metric"][0], predictions[is_scored])
    weights_path = context.checkpoint.weights_path
    scale: tuple[float | None, float | None] = (None, None)
    if answer is not None and answer.are_numbers:
        scale = (answer.mean, answer.std)
    return SystemRecord(
        **{key: value for key, value in columns.items() if key != "trial"},
        kind=context.kind.name,
        train_examples=count_train_examples(context, run),
        metric=info["metric"][0],
        validation_score=score if math.isfinite(score) else None,
        language=context.language,
        symmetric=context.is_symmetric,
        character_spans=info.get("character_spans", False),
        labels=tuple(info.get("labels", ())),
        label_mean=scale[0],
        label_std=scale[1],
        settings_block=settings_block,
        settings=asdict(settings),
        precision=context.precision,
        max_input_positions=context.max_input_positions,
        model_folder=None if weights_path is None else weights_path.parent.as_posix(),
    )


def _build_problem(context: EvalContext, run: EvalRun) -> HeadProblem:
    """Return what the head of a run learns from, and how its validation is scored."""
    train_rows = select_train_rows(context, run)
    train_items = context.task.splits["train"].iloc[train_rows]
    answer = context.kind.answer.fit(context.task.info["labels"], train_items)
    assert isinstance(answer, HeadAnswer)
    parts = context.task.split_items(seed=run.finetune_seed or 0, fold=run.fold)
    validation = next(part for part in parts if part.split == "validation")
    validation_items = context.task.select_items(validation)
    metric = context.task.info["metric"][0]

    def score_validation(outputs_MK: np.ndarray, decoded_M: np.ndarray | None) -> float:
        _check_finite(outputs_MK, "validation")
        outputs_MK = answer.normalize(validation_items, outputs_MK)
        columns = answer.prediction_columns(validation_items, outputs_MK, decoded_M)
        answers = pd.DataFrame({name: columns[name] for name in ("label", "prediction")})
        return context.kind.answer.score(metric, answers)

    return HeadProblem(
        train_rows,
        answer.labels(train_items),
        answer,
        validation,
        answer.labels(validation_items),
        score_validation,
    )


def _check_finite(outputs_MK: np.ndarray, split: str) -> None:
    if not np.isfinite(outputs_MK).all():
        raise EvaluationError(
            f"the predictions for {split} are not finite; lower the learning_rate"
        )


def _predict_part(
    context: EvalContext,
    run: EvalRun,
    head: FittedHead,
    answer: HeadAnswer,
    part: SplitItems,
    *,
    trial: str,
) -> pd.DataFrame:
    """Return a head's predictions. Raises EvaluationError if one is not finite."""
    outputs_MK, decoded_M = head.predict(part)
    _check_finite(outputs_MK, part.split)
    items = context.task.select_items(part)
    outputs_MK = answer.normalize(items, outputs_MK)
    columns = answer.prediction_columns(items, outputs_MK, decoded_M)
    columns = correct_column(columns, context.task.info["metric"][0])
    order_names = context.order_names(part.table)
    if trial == "chosen" and order_names:
        by_order = [head.predict(replace(part, table=name))[0] for name in order_names]
        columns[SWAP_CONSISTENCY] = answer.agrees(*by_order).astype(float)
    table = build_predictions(context, run, part.split, items, columns, part.test_set)
    return table.assign(trial=trial)


def _evaluate_translation(
    encoder: EncoderUnderTest, run: EvalRun, system_dir: Path | None
) -> pd.DataFrame:
    """Train a translator on pairs and translate every scored split."""
    context = encoder.context
    settings = context.translate_settings
    assert context.tokens_dir is not None and settings is not None
    check_intact(context.tokens_dir)
    assert run.finetune_seed is not None
    train_rows = select_train_rows(context, run)
    language_models = (
        encoder.build_encoder(),
        EncoderUnderTest(context, "random").build_encoder(),
    )
    model = build_trained_translator(
        context.checkpoint,
        language_models,
        context.tokens_dir,
        context.task.splits["train"].iloc[train_rows],
        settings,
        seed=run.finetune_seed,
        precision=context.precision,
    )

    def answer(items: pd.DataFrame) -> PredictionColumns:
        tokenizer = context.checkpoint.tokenizer
        return translate_split(model, tokenizer, items, precision=context.precision)

    table = _answer_scored_splits(context, run, answer)
    if system_dir is not None:
        record = _describe_system(context, run, "translation", settings, table)
        save_system(system_dir, record, model.state_dict())
    return table


def _evaluate_sentence_probabilities(encoder: EncoderUnderTest, run: EvalRun) -> pd.DataFrame:
    """Predict that the more probable sentence is the good one."""
    context = encoder.context
    model = encoder.build_encoder().eval()
    family = context.checkpoint.family
    assert isinstance(family, LanguageModelFamily)
    score = family.score_texts

    def answer(items: pd.DataFrame) -> PredictionColumns:
        texts = [*items["good"], *items["bad"]]
        log_probs, num_tokens = score(
            model, context.checkpoint.tokenizer, texts, limit=context.max_input_positions
        ).T
        if not np.isfinite(log_probs).all():
            raise EvaluationError(
                "scores of sentences are not finite; lower the learning_rate of pretraining"
            )
        margin = _margins(log_probs)
        margin_per_token = _margins(log_probs / np.maximum(num_tokens, 1))
        return {
            **pair_columns(margin),
            LENGTH_NORMALIZED_ACCURACY: (np.sign(margin_per_token) + 1) / 2,
        }

    return _answer_scored_splits(context, run, answer)


def _margins(scores: np.ndarray) -> np.ndarray:
    """Subtract the scores of the bad sentences, the second half, from those of the good ones."""
    middle = len(scores) // 2
    return scores[:middle] - scores[middle:]


def _evaluate_word_vectors(encoder: EncoderUnderTest, run: EvalRun) -> pd.DataFrame:
    """Answer with the vectors of single words; extra columns hold the answers of each layer."""
    context = encoder.context
    answer_type = context.kind.answer
    assert issubclass(answer_type, WordsAnswer)

    def answer(items: pd.DataFrame) -> PredictionColumns:
        vectors_VLD, known_V = encoder.embed_words(list_distinct_words(items))
        return answer_type.columns(items, cosines_by_layer(vectors_VLD, known_V), known_V)

    return _answer_scored_splits(context, run, answer)


def _answer_scored_splits(
    context: EvalContext, run: EvalRun, answer: Callable[[pd.DataFrame], PredictionColumns]
) -> pd.DataFrame:
    """Return the predictions for every scored split, from a function of its items."""
    tables = []
    for split in context.task.scored_splits:
        items = context.task.splits[split]
        tables.append(build_predictions(context, run, split, items, answer(items)))
    return pd.concat(tables, ignore_index=True)
