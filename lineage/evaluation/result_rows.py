"""What a cell's predictions and rows say: the cell's own columns, a value a metric, and why one has none."""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any, Literal

import numpy as np
import pandas as pd

from lineage.data.task_data import fold_numbers
from lineage.evaluation.metrics import METRICS
from lineage.evaluation.predictions import (
    PredictionColumns,
    describe_truncated_answers,
    split_by_group,
)
from lineage.evaluation.systems import EvalContext, EvalRun, Init, settings_of_run
from lineage.evaluation.translation import translation_note
from lineage.evaluation.trials import FAILED_TRIALS
from lineage.evaluation.word_vectors import (
    KNOWN_COLUMN,
    LAYER_PREFIX,
    WORD_VECTOR_KINDS,
    compute_metric,
    missing_value_note,
    unknown_words_note,
)
from lineage.results import (
    HELDOUT_TEST_SET,
    PREDICTION_COLUMNS,
    PROBABILITY_PREFIX,
    UNKNOWN_TOKEN_METRIC,
    ResultRow,
)

SWAP_CONSISTENCY = "swap_consistency"  # the metric, and a column: whether the orders of two texts, read alone, give the same answer
LENGTH_NORMALIZED_ACCURACY = "accuracy_per_piece"  # of minimal pairs, the metric and a column: by the mean over pieces, where the sum favours the sentence of fewer
WORD_LEVEL_KINDS = (
    "word_sense",
    "token_classification",
    "extractive_qa",
)  # kinds that ask about words, which have a head of their own
EXTRA_COLUMNS = (
    KNOWN_COLUMN,
    LAYER_PREFIX,
    SWAP_CONSISTENCY,
    LENGTH_NORMALIZED_ACCURACY,
)  # columns of a kept cell beside its predictions


def _row_without_value(
    context: EvalContext,
    run: EvalRun,
    status: Literal["not_applicable", "failed"],
    reason: str,
    **more: Any,
) -> ResultRow:
    return _row(
        context, run, context.task.info["metric"][0], None, 0, status=status, reason=reason, **more
    )


def rows_without_value(
    context: EvalContext,
    run: EvalRun,
    status: Literal["not_applicable", "failed"],
    reason: str,
    *,
    split: str,
) -> list[ResultRow]:
    """A row for each test set that a cell has no value on."""
    parts = context.task.split_items(seed=run.finetune_seed or 0, fold=run.fold)
    test_sets = [part.test_set for part in parts if part.split == split] or [
        context.task.info["name"]
    ]
    return [
        _row_without_value(context, run, status, reason, split=split, test_set=name)
        for name in test_sets
    ]


def mean_values(rows: list[ResultRow]) -> dict[str, float]:
    """The mean over seeds of every chosen value over all items, by what tells the cells apart, of controls their names: what a tracker shows."""
    found: dict[str, list[float]] = {}
    for row in rows:
        if (
            row.value is not None
            and row.group == "all"
            and row.trial == "chosen"
            and row.layer == "none"
            and row.test_set in ("", row.task)
        ):
            system = (
                [row.model]
                if row.init == "none"
                else [
                    row.init,
                    row.transfer,
                    *([row.head] if row.head.startswith("bilstm") else []),
                ]
            )
            found.setdefault(
                "/".join([*system, row.label_count, row.split, row.metric]), []
            ).append(row.value)
    return {key: sum(values) / len(values) for key, values in found.items()}


def _run_columns(context: EvalContext, run: EvalRun) -> dict[str, Any]:
    """The cell's columns."""
    frozen, finetuned, settings = (
        run.transfer == "frozen",
        run.transfer == "finetuned",
        context.settings,
    )
    finetuned_features = (
        "mean"
        if settings.finetune.pooling == "mean" and context.task.info["kind"] not in WORD_LEVEL_KINDS
        else "last"
    )
    return {
        **context.model_columns,
        "init": run.init,
        "adapt_text": "task" if run.init == "adapted" else "none",
        "transfer": run.transfer,
        "features": settings.bilstm_probe.features
        if run.head == "bilstm"
        else settings.linear_probe.features
        if frozen
        else finetuned_features
        if finetuned
        else "none",
        "head": "decoder"
        if context.translate_settings
        else _head_name(context, run)
        if frozen or finetuned
        else "none",
        "recipe": _recipe_name(context, run),
        "pretrain_seed": context.pretrain_seed,
        "finetune_seed": run.finetune_seed,
        "fold": run.fold,
        "trial": "chosen",
        "label_count": "none" if run.label_count is None else str(run.label_count),
        "task": context.task.info["name"],
    }


def _head_name(context: EvalContext, run: EvalRun) -> str:
    return (
        "bilstm_crf" if run.head == "bilstm" and context.task.info["answer"] == "tags" else run.head
    )


def _recipe_name(context: EvalContext, run: EvalRun) -> str:
    settings, facts = context.settings, context.task.info
    if run.transfer == "finetuned" and context.translate_settings:
        return context.translate_settings.recipe
    if run.transfer == "finetuned":
        single_text = facts["kind"] in ("text_classification", "text_regression") and not facts.get(
            "symmetric"
        )  # others learn from one position each, whatever is asked
        word_norm = settings.finetune.word_layer_norm and facts["kind"] in WORD_LEVEL_KINDS
        return replace(
            settings.finetune,
            linear_label_gain=settings.finetune.linear_label_gain and single_text,
            word_layer_norm=word_norm,
        ).recipe
    return (
        settings.bilstm_probe.describe_recipe(has_static=context.static_context is not None)
        if run.head == "bilstm"
        else "none"
    )


def build_predictions(
    context: EvalContext,
    run: EvalRun,
    split: str,
    table: pd.DataFrame,
    columns: PredictionColumns,
    test_set: str = "",
) -> pd.DataFrame:
    frame = pd.DataFrame(
        {"id": table["id"].astype(str), "group": table["group"].astype(str), **columns}
    )
    for name, value in (
        _run_columns(context, run)
        | {"split": split, "test_set": test_set or context.task.info["name"]}
    ).items():
        frame[name] = value
    return _with_column_types(frame)


def _with_column_types(frame: pd.DataFrame) -> pd.DataFrame:
    columns = [
        *PREDICTION_COLUMNS,
        *(name for name in frame if str(name).startswith((PROBABILITY_PREFIX, *EXTRA_COLUMNS))),
    ]
    return frame[columns].astype(dict.fromkeys(("pretrain_seed", "finetune_seed", "fold"), "Int64"))


def empty_predictions() -> pd.DataFrame:
    return _with_column_types(pd.DataFrame(columns=list(PREDICTION_COLUMNS)))


def result_rows(
    context: EvalContext, run: EvalRun, predictions: pd.DataFrame, chosen_trial: int | None
) -> Iterator[ResultRow]:
    """A row a metric for each trial, split and test set, over all items and for each group of them; and one for each trial that failed."""
    settings = settings_of_run(context, run)
    for number, why in predictions.attrs.get(FAILED_TRIALS, {}).items():
        yield _row_without_value(
            context,
            run,
            "failed",
            f"{settings.describe_trial(int(number))}: {why}",
            split="validation",
            trial=number,
        )
    for (trial, split, test_set), all_items in predictions.groupby(
        ["trial", "split", "test_set"], sort=True
    ):
        for group, items in split_by_group(all_items, fold=run.fold):
            if context.task.info["kind"] in WORD_VECTOR_KINDS:
                yield from _word_vector_rows(context, run, items, split=str(split), group=group)
                continue
            more: dict[str, Any] = {
                "trial": trial,
                "test_set": test_set,
                "reason": translation_note(items, context.translate_settings)
                if context.translate_settings
                else "",
            }
            if settings.trials and chosen_trial is not None:
                more["reason"] = settings.describe_trial(
                    chosen_trial if trial == "chosen" else int(str(trial))
                )
            for mean in (SWAP_CONSISTENCY, LENGTH_NORMALIZED_ACCURACY):
                if mean in items and trial == "chosen":
                    yield _row(
                        context,
                        run,
                        mean,
                        float(items[mean].mean()),
                        len(items),
                        split=str(split),
                        group=group,
                        **more,
                    )
            for metric in context.task.info["metric"]:
                labels_and_predictions = items["label"].to_numpy(), items["prediction"].to_numpy()
                ties = (
                    context.task.info["kind"] == "minimal_pairs"
                )  # of which predictions know nothing
                value = (
                    float(items["correct"].mean())
                    if ties
                    else METRICS[metric](*labels_and_predictions)
                )
                if np.isfinite(value):
                    yield _row(
                        context,
                        run,
                        metric,
                        value,
                        len(items),
                        split=str(split),
                        group=group,
                        **more,
                    )
                else:
                    none = {
                        "status": "not_applicable",
                        "reason": f"group {group}, {split!s}: no {metric}, since all gold numbers are the same, or all predicted ones",
                    }
                    yield _row(
                        context, run, metric, None, 0, split=str(split), group=group, **more | none
                    )


def _word_vector_rows(
    context: EvalContext, run: EvalRun, items: pd.DataFrame, **more: Any
) -> Iterator[ResultRow]:
    """A row for all layers together, and one for each of them."""
    (metric,), kind = context.task.info["metric"], context.task.info["kind"]
    more["reason"] = unknown_words_note(kind, items)
    for column in (
        "prediction",
        *(str(name) for name in items if str(name).startswith(LAYER_PREFIX)),
    ):
        layer, value = (
            column.removeprefix(LAYER_PREFIX) if column != "prediction" else "none",
            compute_metric(kind, items, column=column),
        )
        if np.isfinite(value):
            yield _row(context, run, metric, value, len(items), layer=layer, **more)
        else:
            none = {"status": "not_applicable", "reason": missing_value_note(items, column)}
            yield _row(context, run, metric, None, 0, layer=layer, **more | none)


def _row(
    context: EvalContext,
    run: EvalRun,
    metric: str,
    value: float | None,
    num_examples: int,
    **more: Any,
) -> ResultRow:
    parts = {
        (part.split, part.test_set): part
        for part in context.task.split_items(seed=run.finetune_seed or 0, fold=run.fold)
    }
    more = {"test_set": context.task.info["name"]} | more
    train, scored = (
        parts.get(("train", context.task.info["name"])),
        parts.get((more["split"], more["test_set"])),
    )
    available_examples = 0 if run.label_count is None or train is None else len(train.rows_N)
    if (
        scored
        and value is not None
        and run.transfer != "zero_shot"
        and (truncated_share := context.truncated_share(scored.table))
    ):
        done = "read in parts" if context.task.info["answer"] in ("tags", "span") else "cut"
        long = f"{'under 1%' if truncated_share < 0.005 else f'{truncated_share:.0%}'} of the texts were longer than {context.max_input_positions} pieces, and {done}"
        more["reason"] = "; ".join(part for part in (more.get("reason"), long) if part)
    if (
        scored
        and value is not None
        and (lost_note := describe_truncated_answers(context.task.info, scored.table))
    ):
        more["reason"] = "; ".join(part for part in (more.get("reason"), lost_note) if part)
    if (
        scored
        and value is not None
        and run.transfer != "zero_shot"
        and (unreadable_words := context.count_unreadable_words(scored.table))
    ):
        more["reason"] = "; ".join(
            part
            for part in (
                more.get("reason"),
                f"{unreadable_words} words have no piece that is read: zeros stand for them",
            )
            if part
        )
    return ResultRow(
        **_run_columns(context, run) | {"trial": more.pop("trial", "chosen")},
        kind=context.task.info["kind"],
        metric=metric,
        value=value,
        num_examples=num_examples,
        train_examples=available_examples
        if run.label_count == "all"
        else min(int(run.label_count or 0), available_examples),
        text_bytes=context.text_bytes_read(run.init),
        **more,
    )


def unknown_token_rows(context: EvalContext, init: Init) -> Iterator[ResultRow]:
    """The share of tokens that the model does not know, a row a test set, whatever is learned; of a public one, whose marks nobody knows, none."""
    facts, family, split = (
        context.task.info,
        context.checkpoint.family,
        context.task.scored_splits[-1:],
    )
    names: dict[str, Any] = {
        **context.model_columns,
        "task": facts["name"],
        "kind": facts["kind"],
        "pretrain_seed": context.pretrain_seed,
    }
    if (
        family.unsupported_reason(facts["kind"], context.checkpoint.architecture)
        or context.checkpoint.tokenizer.tokenizer_type == "pretrained"
    ):
        return
    for part in context.task.split_items(seed=0, fold=fold_numbers(facts)[0]):
        if [part.split] == split:
            yield ResultRow(
                **names,
                metric=UNKNOWN_TOKEN_METRIC,
                value=context.unknown_token_share(part.table),
                num_examples=len(context.task.splits[part.table]),
                init=init,
                adapt_text="task" if init == "adapted" else "none",
                test_set=part.test_set,
                split=part.split,
                text_bytes=context.text_bytes_read(init),
            )


def heldout_rows(
    context: EvalContext, heldout: dict[str, dict[str, float]], *, adapted_bytes: int
) -> Iterator[ResultRow]:
    """The language model's own measures on held target text, before and after adaptation."""
    moments: tuple[tuple[str, Init], ...] = (("before", "pretrained"), ("after", "adapted"))
    for when, init in moments:
        for metric, value in heldout[when].items():
            improved = metric not in heldout["after"] or heldout["after"][metric] < heldout[
                "before"
            ].get(metric, float("inf"))
            reasons = (
                []
                if improved or init == "pretrained" or metric.endswith("_accuracy")
                else ["no fall on held target text"]
            )
            if not context.checkpoint.tokenizer.lossless and metric.startswith("bits_per_byte"):
                reasons.append("not lossless: the tokenizer cannot write every text back")
            text_bytes = (
                None
                if context.text_bytes is None
                else context.text_bytes - (adapted_bytes if init == "pretrained" else 0)
            )
            yield ResultRow(
                model=context.checkpoint.model_name,
                family=context.checkpoint.family.name,
                task=context.task.info["name"],
                kind=context.task.info["kind"],
                metric=metric,
                value=value,
                num_examples=1,
                init=init,
                test_set=HELDOUT_TEST_SET,
                adapt_text="task" if init == "adapted" else "none",
                pretrain_seed=context.pretrain_seed,
                split="validation",
                text_bytes=text_bytes,
                reason="; ".join(reasons),
            )
