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
from lineage.errors import CellError
from lineage.evaluation.celltable import OWN, PER_PIECE, SWAP, no_predictions, predictions_of, rows_of_cell, without_values
from lineage.evaluation.subject import Cell, Init, Learned, Setting, Subject, arm, learn
from lineage.evaluation.translation import answers, tuned_translator
from lineage.evaluation.trials import WHY, best_of, winner
from lineage.evaluation.wordspace import answered, distinct_words, spaces
from lineage.loading.subsets import nested_subset, strata
from lineage.loading.taskdata import Part, folds_of
from lineage.rows import Row
from lineage.scoring.predictions import judged
from lineage.transfer.answers import Span, answer_of
from lineage.transfer.tuning import keep_weights


def cells(
    facts: dict[str, Any], inits: tuple[Init, ...], labels: tuple[int | Literal["all"], ...], seeds: tuple[int, ...], *, tuned: bool = True
) -> Iterator[Cell]:
    """The stage's cells on a task (task.json), in the order in which they are computed; without `tuned` those of frozen features alone."""
    for init in inits:
        if facts["kind"] in ZERO_SHOT:
            yield Cell(init, "zero_shot")
            continue
        ways: list[tuple[Any, Any]] = [] if facts["kind"] == "translate" else [("frozen", head) for head in facts["heads"]]
        for transfer, head in [*ways, *([("tuned", "linear")] if tuned else [])]:
            for count in labels:
                yield from (Cell(init, transfer, count, seed, head, fold) for seed in seeds for fold in folds_of(facts))


def evaluate(setting: Setting, some: list[Cell], *, keep: Path, report: Callable[[float, str], None]) -> tuple[list[Row], pd.DataFrame]:
    """Rows and predictions of all cells. A cell that fails for good leaves a row with its reason, and the others go on.

    In `keep` stand the finished cells, and, as tuned.safetensors, the first seed's network tuned on the most labels.
    """
    unscored = "" if setting.task.scored else "the task has no validation split, and report.split is validation"
    if reason := unscored or setting.checkpoint.family.unable(setting.task.facts["kind"], setting.checkpoint.model):
        split = (setting.task.scored or ["test"])[-1]
        return [row for cell in some for row in without_values(setting, cell, "not_applicable", reason, split=split)], no_predictions()
    first = [cell for cell in some if cell.transfer == "tuned" and cell.init == some[0].init and not cell.fold and cell.seed == some[0].seed]
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
            if why := setting.failure(cell.init):
                raise CellError(why)
            if not path.is_file():
                own = keep / "tuned.safetensors" if cell == kept else None
                write_table(path, _computed(subject, cell, own, decided.get(cell.arm)))
            found = read_table(path)
            if (found["trial"] != "chosen").any():
                decided.setdefault(cell.arm, winner(found))
            predictions.append(found[[name for name in found if not str(name).startswith(OWN)]])
            rows += rows_of_cell(setting, cell, found, decided.get(cell.arm))
        except CellError as error:
            rows += without_values(setting, cell, "failed", str(error), split=setting.task.scored[-1])
    return rows, pd.concat(predictions, ignore_index=True) if predictions else no_predictions()


def _computed(subject: Subject, cell: Cell, weights: Path | None, decided: int | None) -> pd.DataFrame:
    """A cell's predictions; where its arm has trials, with those of each on validation, unless it is decided which one is taken."""
    if cell.transfer == "zero_shot":
        return ZERO_SHOT[subject.setting.task.facts["kind"]](subject, cell)
    setting, task = subject.setting, subject.setting.task
    assert cell.labels is not None and cell.seed is not None
    train, *scored = task.parts(seed=cell.seed, fold=cell.fold)
    chosen = train.rows_N[nested_subset(strata(task.items(train)), cell.labels, seed=cell.seed)]
    own = task.splits[train.table].iloc[chosen]
    if setting.translate:
        return _translated(subject, cell, own, weights)
    answer, how = answer_of(task.facts, own), arm(setting, cell)

    def learned(settings: Any) -> Learned:
        return learn(subject, cell, settings, chosen, answer.gold(own), answer)

    def told(reader: Learned, part: Part, trial: str = "chosen") -> pd.DataFrame:
        read_MK, best_M = reader.read(part)
        if not np.isfinite(read_MK).all():
            raise CellError(f"what is predicted for {part.split} is not finite; lower the rate")
        table = task.items(part)
        columns = judged(answer.columns(table, read_MK, best_M), task.facts["metric"][0])
        if trial == "chosen" and (orders := setting.orders(part.table)):
            assert not isinstance(answer, Span), "check_task refuses symmetric ones"
            columns[SWAP] = answer.agree(*(reader.read(replace(part, table=order))[0] for order in orders)).astype(float)
        return predictions_of(setting, cell, part.split, table, columns, part.test_set).assign(trial=trial)

    if how.trials and decided is None:
        reader, parts, failed = best_of(how, learned, partial(told, part=next(part for part in scored if part.split == "validation")))
    else:
        reader, parts, failed = learned(how if decided is None else how.tried(decided)), list[pd.DataFrame](), dict[str, str]()
    if reader.model is not None:
        keep_weights(reader.model, weights)
    found = pd.concat([*parts, *(told(reader, part) for part in scored)], ignore_index=True)
    found.attrs[WHY] = failed
    return found


def _translated(subject: Subject, cell: Cell, pairs: pd.DataFrame, weights: Path | None) -> pd.DataFrame:
    """What a translator tuned on pairs writes for every split."""
    setting, tables = subject.setting, {split: subject.setting.task.splits[split] for split in subject.setting.task.scored}
    assert setting.text is not None and setting.translate is not None and cell.seed is not None
    both = subject.encoder(), Subject(setting, "untrained").encoder()
    model = tuned_translator(setting.checkpoint, both, setting.text, pairs, setting.translate, seed=cell.seed, precision=setting.precision)
    keep_weights(model, weights)
    found = {split: answers(model, setting.checkpoint.reader, table, precision=setting.precision) for split, table in tables.items()}
    return pd.concat([predictions_of(setting, cell, split, tables[split], columns) for split, columns in found.items()], ignore_index=True)


def _pairs(subject: Subject, cell: Cell) -> pd.DataFrame:
    """Is the acceptable sentence the more probable one? A tie is half right, so that a model which cannot tell gets 50."""
    setting = subject.setting
    model, score, reader, parts = subject.encoder().eval(), setting.checkpoint.family.score, setting.checkpoint.reader, []
    assert score is not None
    for split in setting.task.scored:
        table = setting.task.splits[split]
        texts = [*table["good"], *table["bad"]]
        scores, pieces = score(model, reader, texts, limit=setting.limit).T
        if not np.isfinite(scores).all():
            raise CellError(f"scores of {split} are not finite; lower the rate of pretraining")
        margin, per_piece = (some[: len(table)] - some[len(table) :] for some in (scores, scores / np.maximum(pieces, 1)))
        correct = (np.sign(margin) + 1) / 2
        prediction = np.where(margin > 0, "good", np.where(margin < 0, "bad", "tie"))
        columns: dict[str, Any] = {"gold": np.full(len(table), "good", object), "prediction": prediction, "score": margin, "correct": correct}
        parts.append(predictions_of(setting, cell, split, table, columns | {PER_PIECE: (np.sign(per_piece) + 1) / 2}))
    return pd.concat(parts, ignore_index=True)


def _words(subject: Subject, cell: Cell) -> pd.DataFrame:
    """What the vectors of single words say of pairs, or of analogies; a column for what each layer alone says."""
    setting, parts = subject.setting, []
    for split in setting.task.scored:
        table = setting.task.splits[split]
        vectors_VLD, known_V = subject.words(distinct_words(table))
        columns = answered(setting.task.facts["kind"], table, spaces(vectors_VLD, known_V), known_V)
        parts.append(predictions_of(setting, cell, split, table, columns))
    return pd.concat(parts, ignore_index=True)


ZERO_SHOT = {"minimal_pairs": _pairs, "similarity": _words, "analogy": _words}  # kinds without training
