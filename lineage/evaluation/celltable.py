"""What a cell's predictions and rows say: the cell's own columns, a value a metric, and why one has none."""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any, Literal

import numpy as np
import pandas as pd

from lineage.evaluation.subject import Cell, Init, Setting, arm
from lineage.evaluation.translation import note
from lineage.evaluation.trials import WHY
from lineage.evaluation.wordspace import KINDS, KNOWN, LAYER, none_note, unknown_note, value_of
from lineage.loading.taskdata import folds_of
from lineage.rows import HELD_TEXT, PREDICTIONS, PROBABILITY, UNKNOWN, Row
from lineage.scoring.metrics import METRICS
from lineage.scoring.predictions import Columns, groups_of, lost_answers

SWAP = "swap_consistency"  # the metric, and a column: whether the orders of two texts, read alone, give the same answer
PER_PIECE = "accuracy_per_piece"  # of minimal pairs, the metric and a column: by the mean over pieces, where the sum favours the sentence of fewer
WORDS = ("sense", "tag", "span")  # kinds that ask about words, which have a head of their own
OWN = (KNOWN, LAYER, SWAP, PER_PIECE)  # columns of a kept cell beside its predictions


def _without_value(setting: Setting, cell: Cell, status: Literal["not_applicable", "failed"], reason: str, **more: Any) -> Row:
    return _row(setting, cell, setting.task.facts["metric"][0], None, 0, status=status, reason=reason, **more)


def without_values(setting: Setting, cell: Cell, status: Literal["not_applicable", "failed"], reason: str, *, split: str) -> list[Row]:
    """A row for each test set that a cell has no value on."""
    parts = setting.task.parts(seed=cell.seed or 0, fold=cell.fold)
    test_sets = [part.test_set for part in parts if part.split == split] or [setting.task.facts["name"]]
    return [_without_value(setting, cell, status, reason, split=split, test_set=name) for name in test_sets]


def means(rows: list[Row]) -> dict[str, float]:
    """The mean over seeds of every chosen value over all items, by what tells the cells apart, of controls their names: what a tracker shows."""
    found: dict[str, list[float]] = {}
    for row in rows:
        if row.value is not None and row.group == "all" and row.trial == "chosen" and row.layer == "none" and row.test_set in ("", row.task):
            way = [row.variant] if row.init == "none" else [row.init, row.transfer, *([row.head] if row.head.startswith("bilstm") else [])]
            found.setdefault("/".join([*way, row.labels, row.split, row.metric]), []).append(row.value)
    return {key: sum(values) / len(values) for key, values in found.items()}


def _described(setting: Setting, cell: Cell) -> dict[str, Any]:
    """The cell's columns."""
    frozen, tuned, settings = cell.transfer == "frozen", cell.transfer == "tuned", setting.settings
    tuned_on = "mean" if settings.tuned.pool == "mean" and setting.task.facts["kind"] not in WORDS else "top"
    return {
        **setting.names,
        "init": cell.init,
        "adapt_text": "task" if cell.init == "adapted" else "none",
        "transfer": cell.transfer,
        "features": settings.network.features if cell.head == "bilstm" else settings.frozen.features if frozen else tuned_on if tuned else "none",
        "head": "decoder" if setting.translate else _head(setting, cell) if frozen or tuned else "none",
        "recipe": _recipe(setting, cell),
        "pretrain_seed": setting.pretrain_seed,
        "seed": cell.seed,
        "fold": cell.fold,
        "trial": "chosen",
        "labels": "none" if cell.labels is None else str(cell.labels),
        "task": setting.task.facts["name"],
    }


def _head(setting: Setting, cell: Cell) -> str:
    return "bilstm_crf" if cell.head == "bilstm" and setting.task.facts["answer"] == "tags" else cell.head


def _recipe(setting: Setting, cell: Cell) -> str:
    settings, facts = setting.settings, setting.task.facts
    if cell.transfer == "tuned" and setting.translate:
        return setting.translate.recipe
    if cell.transfer == "tuned":
        once = facts["kind"] in ("classify", "regress") and not facts.get("symmetric")  # others learn from one position each, whatever is asked
        words = settings.tuned.word_norm and facts["kind"] in WORDS
        return replace(settings.tuned, linear_gain=settings.tuned.linear_gain and once, word_norm=words).recipe
    return settings.network.recipe(static=setting.static is not None) if cell.head == "bilstm" else "none"


def predictions_of(setting: Setting, cell: Cell, split: str, table: pd.DataFrame, columns: Columns, test_set: str = "") -> pd.DataFrame:
    frame = pd.DataFrame({"id": table["id"].astype(str), "group": table["group"].astype(str), **columns})
    for name, value in (_described(setting, cell) | {"split": split, "test_set": test_set or setting.task.facts["name"]}).items():
        frame[name] = value
    return _typed(frame)


def _typed(frame: pd.DataFrame) -> pd.DataFrame:
    columns = [*PREDICTIONS, *(name for name in frame if str(name).startswith((PROBABILITY, *OWN)))]
    return frame[columns].astype(dict.fromkeys(("pretrain_seed", "seed", "fold"), "Int64"))


def no_predictions() -> pd.DataFrame:
    return _typed(pd.DataFrame(columns=list(PREDICTIONS)))


def rows_of_cell(setting: Setting, cell: Cell, predictions: pd.DataFrame, decided: int | None) -> Iterator[Row]:
    """A row a metric for each trial, split and test set, over all items and for each group of them; and one for each trial that failed."""
    how = arm(setting, cell)
    for number, why in predictions.attrs.get(WHY, {}).items():
        yield _without_value(setting, cell, "failed", f"{how.trial_words(int(number))}: {why}", split="validation", trial=number)
    for (trial, split, test_set), all_items in predictions.groupby(["trial", "split", "test_set"], sort=True):
        for group, items in groups_of(all_items, fold=cell.fold):
            if setting.task.facts["kind"] in KINDS:
                yield from _of_words(setting, cell, items, split=str(split), group=group)
                continue
            more: dict[str, Any] = {"trial": trial, "test_set": test_set, "reason": note(items, setting.translate) if setting.translate else ""}
            if how.trials and decided is not None:
                more["reason"] = how.trial_words(decided if trial == "chosen" else int(str(trial)))
            for mean in (SWAP, PER_PIECE):
                if mean in items and trial == "chosen":
                    yield _row(setting, cell, mean, float(items[mean].mean()), len(items), split=str(split), group=group, **more)
            for metric in setting.task.facts["metric"]:
                both = items["gold"].to_numpy(), items["prediction"].to_numpy()
                ties = setting.task.facts["kind"] == "minimal_pairs"  # of which predictions know nothing
                value = float(items["correct"].mean()) if ties else METRICS[metric](*both)
                if np.isfinite(value):
                    yield _row(setting, cell, metric, value, len(items), split=str(split), group=group, **more)
                else:
                    none = {
                        "status": "not_applicable",
                        "reason": f"group {group}, {split!s}: no {metric}, since all gold numbers are the same, or all predicted ones",
                    }
                    yield _row(setting, cell, metric, None, 0, split=str(split), group=group, **more | none)


def _of_words(setting: Setting, cell: Cell, items: pd.DataFrame, **more: Any) -> Iterator[Row]:
    """A row for all layers together, and one for each of them."""
    (metric,), kind = setting.task.facts["metric"], setting.task.facts["kind"]
    more["reason"] = unknown_note(kind, items)
    for said in ("prediction", *(str(name) for name in items if str(name).startswith(LAYER))):
        layer, value = said.removeprefix(LAYER) if said != "prediction" else "none", value_of(kind, items, said=said)
        if np.isfinite(value):
            yield _row(setting, cell, metric, value, len(items), layer=layer, **more)
        else:
            none = {"status": "not_applicable", "reason": none_note(items, said)}
            yield _row(setting, cell, metric, None, 0, layer=layer, **more | none)


def _row(setting: Setting, cell: Cell, metric: str, value: float | None, examples: int, **more: Any) -> Row:
    parts = {(part.split, part.test_set): part for part in setting.task.parts(seed=cell.seed or 0, fold=cell.fold)}
    more = {"test_set": setting.task.facts["name"]} | more
    train, scored = parts.get(("train", setting.task.facts["name"])), parts.get((more["split"], more["test_set"]))
    there = 0 if cell.labels is None or train is None else len(train.rows_N)
    if scored and value is not None and cell.transfer != "zero_shot" and (cut := setting.cut(scored.table)):
        done = "read in parts" if setting.task.facts["answer"] in ("tags", "span") else "cut"
        long = f"{'under 1%' if cut < 0.005 else f'{cut:.0%}'} of the texts were longer than {setting.limit} pieces, and {done}"
        more["reason"] = "; ".join(part for part in (more.get("reason"), long) if part)
    if scored and value is not None and (lost := lost_answers(setting.task.facts, scored.table)):
        more["reason"] = "; ".join(part for part in (more.get("reason"), lost) if part)
    if scored and value is not None and cell.transfer != "zero_shot" and (unread := setting.unread(scored.table)):
        more["reason"] = "; ".join(part for part in (more.get("reason"), f"{unread} words have no piece that is read: zeros stand for them") if part)
    return Row(
        **_described(setting, cell) | {"trial": more.pop("trial", "chosen")},
        kind=setting.task.facts["kind"],
        metric=metric,
        value=value,
        examples=examples,
        train_examples=there if cell.labels == "all" else min(int(cell.labels or 0), there),
        text_bytes=setting.bytes_read(cell.init),
        **more,
    )


def unknown_rows(setting: Setting, init: Init) -> Iterator[Row]:
    """The share of tokens that the model does not know, a row a test set, whatever is learned; of a public one, whose marks nobody knows, none."""
    facts, family, split = setting.task.facts, setting.checkpoint.family, setting.task.scored[-1:]
    names: dict[str, Any] = {**setting.names, "task": facts["name"], "kind": facts["kind"], "pretrain_seed": setting.pretrain_seed}
    if family.unable(facts["kind"], setting.checkpoint.model) or setting.checkpoint.reader.unit == "own":
        return
    for part in setting.task.parts(seed=0, fold=folds_of(facts)[0]):
        if [part.split] == split:
            yield Row(
                **names, metric=UNKNOWN, value=setting.unknown(part.table), examples=len(setting.task.splits[part.table]), init=init,
                adapt_text="task" if init == "adapted" else "none", test_set=part.test_set, split=part.split,
                text_bytes=setting.bytes_read(init))  # fmt: skip


def held_rows(setting: Setting, held: dict[str, dict[str, float]], *, adapted_bytes: int) -> Iterator[Row]:
    """The language model's own measures on held target text, before and after adaptation."""
    moments: tuple[tuple[str, Init], ...] = (("before", "pretrained"), ("after", "adapted"))
    for when, init in moments:
        for metric, value in held[when].items():
            fell = metric not in held["after"] or held["after"][metric] < held["before"].get(metric, float("inf"))
            reasons = [] if fell or init == "pretrained" or metric.endswith("_accuracy") else ["no fall on held target text"]
            if not setting.checkpoint.reader.lossless and metric.startswith("bits_per_byte"):
                reasons.append("not lossless: the tokenizer cannot write every text back")
            read = None if setting.text_bytes is None else setting.text_bytes - (adapted_bytes if init == "pretrained" else 0)
            yield Row(
                variant=setting.checkpoint.variant, family=setting.checkpoint.family.name, task=setting.task.facts["name"],
                kind=setting.task.facts["kind"], metric=metric, value=value, examples=1, init=init, test_set=HELD_TEXT,
                adapt_text="task" if init == "adapted" else "none", pretrain_seed=setting.pretrain_seed, split="validation", text_bytes=read,
                reason="; ".join(reasons))  # fmt: skip
