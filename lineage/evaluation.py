"""One stage's cells: a model and its untrained twin, or the adapted model, on one task, in every transfer, label count and seed.

A finished cell is kept outside the outs, so that a killed evaluation redoes none. Frozen features are computed once a model and shared.
"""

import dataclasses
import json
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pandas as pd

from lineage.answers import answer_of
from lineage.artifacts import read_table, text_digest, write_table
from lineage.errors import CellError
from lineage.metrics import METRICS
from lineage.rows import PREDICTIONS, PROBABILITY, Row
from lineage.subject import Cell, Init, Learned, Setting, Subject, arm, learn
from lineage.subsets import nested_subset, strata
from lineage.translation import answers, note, tuned_translator
from lineage.trials import WHY, best_of, winner
from lineage.tuning import keep_weights
from lineage.wordspace import KINDS, KNOWN, LAYER, answered, distinct_words, none_note, spaces, unknown_note, value_of

SWAP = "swap_consistency"  # the metric, and a column: whether the orders of two texts, read alone, give the same answer
OWN = (KNOWN, LAYER, SWAP)  # columns of a kept cell beside its predictions


def cells(facts: dict[str, Any], inits: tuple[Init, ...], labels: tuple[int | Literal["all"], ...], seeds: tuple[int, ...]) -> Iterator[Cell]:
    """The stage's cells on a task (task.json), in the order in which they are computed."""
    for init in inits:
        if facts["kind"] in ZERO_SHOT:
            yield Cell(init, "zero_shot")
            continue
        ways: list[tuple[Any, Any]] = [] if facts["kind"] == "translate" else [("frozen", head) for head in facts["heads"]]
        for transfer, head in [*ways, ("tuned", "linear")]:
            for count in labels:
                yield from (Cell(init, transfer, count, seed, head) for seed in seeds)


def evaluate(setting: Setting, some: list[Cell], *, keep: Path, report: Callable[[float, str], None]) -> tuple[list[Row], pd.DataFrame]:
    """Rows and predictions of all cells. A cell that fails for good leaves a row with its reason, and the others go on.

    In `keep` stand the finished cells, and, as tuned.safetensors, the first seed's network tuned on the most labels.
    """
    unscored = "" if setting.task.scored else "the task has no validation split, and report.split is validation"
    if reason := unscored or setting.checkpoint.family.unable(setting.task.facts["kind"], setting.checkpoint.model):
        split = (setting.task.scored or ["test"])[-1]
        return [_without(setting, cell, "not_applicable", reason, split=split) for cell in some], _none()
    first = [cell for cell in some if cell.transfer == "tuned" and cell.init == some[0].init and cell.seed == some[0].seed]
    kept = max(first, key=lambda cell: float("inf") if cell.labels == "all" else cell.labels or 0, default=None)
    subject = Subject(setting, some[0].init)
    rows: list[Row] = []
    predictions: list[pd.DataFrame] = []
    decided: dict[Cell, int] = {}  # by what tells an arm: the trial that validation chose with the first seed
    for number, cell in enumerate(some):
        report(number / len(some), f"{cell.init} {cell.transfer} {cell.labels or ''}")
        if cell.init != subject.init:  # what was remembered of the one before is let go
            subject = Subject(setting, cell.init)
        path = keep / f"{text_digest(json.dumps(vars(cell)))[:16]}.parquet"
        try:
            if setting.failed and cell.init != "untrained":
                raise CellError(setting.failed)
            if not path.is_file():
                own = keep / "tuned.safetensors" if cell == kept else None
                write_table(path, _computed(subject, cell, own, decided.get(dataclasses.replace(cell, seed=None))))
            found = read_table(path)
            if (found["trial"] != "chosen").any():
                decided.setdefault(dataclasses.replace(cell, seed=None), winner(found))
            predictions.append(found[[name for name in found if not str(name).startswith(OWN)]])
            rows += _rows(setting, cell, found, decided.get(dataclasses.replace(cell, seed=None)))
        except CellError as error:
            rows.append(_without(setting, cell, "failed", str(error), split=setting.task.scored[-1]))
    return rows, pd.concat(predictions, ignore_index=True) if predictions else _none()


def _without(setting: Setting, cell: Cell, status: Literal["not_applicable", "failed"], reason: str, **more: Any) -> Row:
    return _row(setting, cell, setting.task.facts["metric"][0], None, 0, status=status, reason=reason, **more)


def means(rows: list[Row]) -> dict[str, float]:
    """The mean over seeds of every chosen value over all items, by what tells the cells apart: what a tracker shows."""
    found: dict[str, list[float]] = {}
    for row in rows:
        if row.value is not None and row.group == "all" and row.trial == "chosen" and row.layer == "none":
            head = [row.head] if row.head.startswith("bilstm") else []
            found.setdefault("/".join([row.init, row.transfer, *head, row.labels, row.split, row.metric]), []).append(row.value)
    return {key: sum(values) / len(values) for key, values in found.items()}


def _computed(subject: Subject, cell: Cell, weights: Path | None, decided: int | None) -> pd.DataFrame:
    """A cell's predictions; where its arm has trials, with those of each on validation, unless it is decided which one is taken."""
    if cell.transfer == "zero_shot":
        return ZERO_SHOT[subject.setting.task.facts["kind"]](subject, cell)
    setting, task = subject.setting, subject.setting.task
    assert cell.labels is not None and cell.seed is not None
    train = task.splits["train"]
    chosen = nested_subset(strata(train), cell.labels, seed=cell.seed)
    own = train.iloc[chosen]
    if setting.translate:
        return _translated(subject, cell, own, weights)
    answer, how = answer_of(task.facts, own), arm(setting, cell)

    def learned(settings: Any) -> Learned:
        return learn(subject, cell, settings, chosen, answer.gold(own), answer)

    def told(reader: Learned, split: str, trial: str = "chosen") -> pd.DataFrame:
        read_MK, best_M = reader.read(split)
        if not np.isfinite(read_MK).all():
            raise CellError(f"what is predicted for {split} is not finite")
        table, columns = task.splits[split], answer.columns(task.splits[split], read_MK, best_M)
        if trial == "chosen" and (orders := setting.orders(split)):
            columns[SWAP] = answer.agree(*(reader.read(order)[0] for order in orders)).astype(float)
        return _predictions(setting, cell, split, table, **columns).assign(trial=trial)

    if how.trials and decided is None:
        reader, parts, failed = best_of(how, learned, told)
    else:
        reader, parts, failed = learned(how if decided is None else how.tried(decided)), list[pd.DataFrame](), dict[str, str]()
    if reader.model is not None:
        keep_weights(reader.model, weights)
    found = pd.concat([*parts, *(told(reader, split) for split in task.scored)], ignore_index=True)
    found.attrs[WHY] = failed
    return found


def _translated(subject: Subject, cell: Cell, pairs: pd.DataFrame, weights: Path | None) -> pd.DataFrame:
    """What a translator tuned on pairs writes for every split."""
    setting, tables = subject.setting, {split: subject.setting.task.splits[split] for split in subject.setting.task.scored}
    assert setting.text is not None and setting.translate is not None and cell.seed is not None
    start = partial(tuned_translator, setting.checkpoint, seed=cell.seed, precision=setting.precision)
    keep_weights(model := start((subject.encoder(), Subject(setting, "untrained").encoder()), setting.text, pairs, setting.translate), weights)
    found = {split: answers(model, setting.checkpoint.reader, table, precision=setting.precision) for split, table in tables.items()}
    return pd.concat([_predictions(setting, cell, split, tables[split], **columns) for split, columns in found.items()], ignore_index=True)


def _pairs(subject: Subject, cell: Cell) -> pd.DataFrame:
    """Is the acceptable sentence the more probable one? A tie is half right, so that a model which cannot tell gets 50."""
    setting = subject.setting
    model, score, parts = subject.encoder().eval(), setting.checkpoint.family.score, []
    assert score is not None
    for split in setting.task.scored:
        table = setting.task.splits[split]
        texts = [*table["good"], *table["bad"]]
        scores = score(model, setting.checkpoint.reader, texts, limit=setting.limit)
        if not np.isfinite(scores).all():
            raise CellError(f"scores of {split} are not finite")
        margin = scores[: len(table)] - scores[len(table) :]
        correct = np.where(margin > 0, 1.0, np.where(margin < 0, 0.0, 0.5))
        prediction = np.where(margin > 0, "good", np.where(margin < 0, "bad", "tie"))
        gold = np.full(len(table), "good", object)
        parts.append(_predictions(setting, cell, split, table, gold=gold, prediction=prediction, score=margin, correct=correct))
    return pd.concat(parts, ignore_index=True)


def _words(subject: Subject, cell: Cell) -> pd.DataFrame:
    """What the vectors of single words say of pairs, or of analogies; a column for what each layer alone says."""
    setting, parts = subject.setting, []
    for split in setting.task.scored:
        table = setting.task.splits[split]
        vectors_VLD, known_V = subject.words(distinct_words(table))
        columns = answered(setting.task.facts["kind"], table, spaces(vectors_VLD, known_V), known_V)
        parts.append(_predictions(setting, cell, split, table, **columns))
    return pd.concat(parts, ignore_index=True)


ZERO_SHOT = {"minimal_pairs": _pairs, "similarity": _words, "analogy": _words}  # kinds without training


def _described(setting: Setting, cell: Cell) -> dict[str, Any]:
    """The cell's columns."""
    frozen, tuned, settings = cell.transfer == "frozen", cell.transfer == "tuned", setting.settings
    tuned_on = "mean" if settings.tuned.pool == "mean" and setting.task.facts["kind"] not in ("sense", "tag") else "top"
    return {
        "variant": setting.checkpoint.variant,
        "family": setting.checkpoint.family.name,
        "init": cell.init,
        "adapt_text": "task" if cell.init == "adapted" else "none",
        "transfer": cell.transfer,
        "features": "mix" if cell.head == "bilstm" else settings.frozen.features if frozen else tuned_on if tuned else "none",
        "head": "decoder" if setting.translate else _head(setting, cell) if frozen or tuned else "none",
        "recipe": (setting.translate or settings.tuned).recipe if tuned else "none",
        "pretrain_seed": setting.pretrain_seed,
        "seed": cell.seed,
        "fold": None,
        "trial": "chosen",
        "labels": "none" if cell.labels is None else str(cell.labels),
        "task": setting.task.facts["name"],
    }


def _head(setting: Setting, cell: Cell) -> str:
    return "bilstm_crf" if cell.head == "bilstm" and setting.task.facts["answer"] == "tags" else cell.head


def _predictions(setting: Setting, cell: Cell, split: str, table: pd.DataFrame, **columns: np.ndarray) -> pd.DataFrame:
    frame = pd.DataFrame({"id": table["id"].astype(str), "group": table["group"].astype(str), **columns})
    for name, value in (_described(setting, cell) | {"split": split}).items():
        frame[name] = value
    return _typed(frame)


def _typed(frame: pd.DataFrame) -> pd.DataFrame:
    columns = [*PREDICTIONS, *(name for name in frame if str(name).startswith((PROBABILITY, *OWN)))]
    return frame[columns].astype(dict.fromkeys(("pretrain_seed", "seed", "fold"), "Int64"))


def _none() -> pd.DataFrame:
    return _typed(pd.DataFrame(columns=list(PREDICTIONS)))


def _rows(setting: Setting, cell: Cell, predictions: pd.DataFrame, decided: int | None) -> Iterator[Row]:
    """A row a metric for each trial and split, over all items and for each group of them; and one for each trial that failed."""
    how = arm(setting, cell)
    for number, why in predictions.attrs.get(WHY, {}).items():
        yield _without(setting, cell, "failed", f"{how.trial_words(int(number))}: {why}", split="validation", trial=number)
    for (trial, split), all_items in predictions.groupby(["trial", "split"], sort=True):
        groups = [("all", all_items)] + (list(all_items.groupby("group", sort=True)) if all_items["group"].nunique() > 1 else [])
        for group, items in groups:
            if setting.task.facts["kind"] in KINDS:
                yield from _of_words(setting, cell, items, split=str(split), group=str(group))
                continue
            more: dict[str, Any] = {"trial": trial, "reason": note(items, setting.translate) if setting.translate else ""}
            if how.trials and decided is not None:
                more["reason"] = how.trial_words(decided if trial == "chosen" else int(str(trial)))
            if SWAP in items and trial == "chosen":
                yield _row(setting, cell, SWAP, float(items[SWAP].mean()), len(items), split=str(split), group=str(group), **more)
            for metric in setting.task.facts["metric"]:
                both = items["gold"].to_numpy(), items["prediction"].to_numpy()
                value = float(items["correct"].mean()) if metric == "accuracy" else METRICS[metric](*both)  # only the first knows of ties
                if np.isfinite(value):
                    yield _row(setting, cell, metric, value, len(items), split=str(split), group=str(group), **more)
                else:
                    none = {
                        "status": "not_applicable",
                        "reason": f"group {group!s}, {split!s}: no {metric}, since all gold numbers are the same, or all predicted ones",
                    }
                    yield _row(setting, cell, metric, None, 0, split=str(split), group=str(group), **more | none)


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
    train = setting.task.splits.get("train")
    used = 0 if cell.labels is None or train is None else len(train) if cell.labels == "all" else min(int(cell.labels), len(train))
    if value is not None and cell.transfer != "zero_shot" and (cut := setting.cut(more["split"])):
        done = "read in parts" if setting.task.facts["answer"] == "tags" else "cut"
        long = f"{cut:.0%} of the texts were longer than {setting.limit} pieces, and {done}"
        more["reason"] = "; ".join(part for part in (more.get("reason"), long) if part)
    if value is not None and cell.transfer != "zero_shot" and (unread := setting.unread(more["split"])):
        more["reason"] = "; ".join(part for part in (more.get("reason"), f"{unread} words have no piece that is read: zeros stand for them") if part)
    return Row(
        **_described(setting, cell) | {"trial": more.pop("trial", "chosen")},
        kind=setting.task.facts["kind"],
        metric=metric,
        value=value,
        examples=examples,
        train_examples=used,
        test_set=setting.task.facts["name"],
        text_bytes=0 if cell.init == "untrained" else setting.text_bytes,
        **more,
    )


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
                kind=setting.task.facts["kind"], metric=metric, value=value, examples=1, init=init, test_set="held_unlabelled",
                adapt_text="task" if init == "adapted" else "none", pretrain_seed=setting.pretrain_seed, split="validation", text_bytes=read,
                reason="; ".join(reasons))  # fmt: skip
