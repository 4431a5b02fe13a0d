"""Controls: what can be had without any pretraining, on the same label subsets and seeds as every family, and what nobody can pass."""

import dataclasses
from collections.abc import Iterator, Sequence
from functools import partial
from itertools import product
from typing import Any, Literal

import numpy as np
import pandas as pd
from sklearn.feature_extraction.text import TfidfVectorizer

from lineage.errors import CellError
from lineage.evaluation.bags import SAID, vectors
from lineage.evaluation.wordspace import KINDS, answered, cosines, distinct_words, none_note, value_of
from lineage.kind import Kind
from lineage.loading.subsets import nested_subset, strata
from lineage.loading.taskdata import SECOND, Part, TaskData, folds_of
from lineage.params import Grid
from lineage.rows import CELL, DATA, DROPPED, PREDICTIONS, Row
from lineage.scoring.metrics import METRICS, SHARES, bleu_shares, bleu_signature
from lineage.scoring.predictions import Columns, groups_of, judged, lost_answers

CONTROLS = ("majority", "tfidf")
# Facts of task.json: a number a split.
COUNTED = ("repeated_in_train", "repeated_in_folds", "group_in_train", "mended_tags", "blank_words", "unlearned_tags", "numbered_tags", "plain_tags")


def control_rows(kind: Kind, task: TaskData, *, split: Literal["validation", "test"], seeds: Sequence[int], labels: Sequence[int | Literal["all"]],
                 penalties: Sequence[float] = Grid.tfidf) -> Iterator[tuple[list[Row], pd.DataFrame]]:  # fmt: skip
    """The rows and predictions of every control cell: (control, labels, seed, fold, test set); of several penalties those of each on validation, too.

    As for every arm, the first seed's trials decide for all seeds of a number of labels, and each fold decides for itself.
    """
    facts = task.facts
    common = {"task": facts["name"], "kind": kind.name, "split": split, "test_set": facts["name"]}
    if kind.trained and kind.answer is None:
        yield from _translations(task.splits["train"], task.splits[split], facts, common, seeds=seeds, labels=labels)
        return
    if not kind.trained:
        yield _words(kind, task.splits[split], common) if kind.name in KINDS else _ties(task.splits[split], facts, common)
        return
    taken: dict[Any, int] = {}
    guessed: dict[Any, tuple[list[Row], pd.DataFrame]] = {}
    for count, seed, fold in product(labels, seeds, folds_of(facts)):
        train, *scored = task.parts(seed=seed, fold=fold)
        own = task.items(train)
        own = own.iloc[nested_subset(strata(own), count, seed=seed)]
        arm = count if fold is None else (count, seed, fold)
        for name in CONTROLS:
            cell = {**common, "seed": seed, "fold": fold, "labels": str(count), "train_examples": len(own), "variant": name, "family": name}
            said = partial(_said, name, kind, facts, own)
            if name == "tfidf" and len(penalties) > 1:
                if arm not in taken:
                    held = next(part for part in scored if part.split == "validation")
                    tried = [said(task.items(held), penalty=penalty) for penalty in penalties]
                    taken[arm] = int(np.argmax([np.nan_to_num(found["correct"].mean(), nan=-np.inf) for found in tried]))
                    for number, found in enumerate(tried):
                        about = {"split": "validation", "trial": str(number), "reason": _trial_words(penalties, number)}
                        yield _told(cell | about, task, held, found)
                cell |= {"reason": _trial_words(penalties, taken[arm])}
            for part in (part for part in scored if part.split == split):
                found = said(task.items(part), penalty=penalties[taken.get(arm, 0)])
                yield _told(cell | {"test_set": part.test_set}, task, part, found)
        if kind.answer in ("label", "choice"):
            yield from _chance(cell, facts, [(part.test_set, task.items(part)) for part in scored if part.split == split], guessed)


def _said(control: str, kind: Kind, facts: dict[str, Any], own: pd.DataFrame, scored: pd.DataFrame, *, penalty: float) -> Columns:
    assert kind.answer
    return judged(SAID[kind.answer](control, kind, facts, own, scored, penalty=penalty), facts["metric"][0])


def _trial_words(penalties: Sequence[float], number: int) -> str:
    return f"trial {number} (of {len(penalties)}, from 0): inverse penalty {penalties[number]:g}"


def _told(cell: dict[str, Any], task: TaskData, part: Part, found: Columns) -> tuple[list[Row], pd.DataFrame]:
    table = task.items(part)
    said = pd.DataFrame({"id": table["id"], "group": table["group"], **found})
    rows = [*_rows(cell, task.facts, said)]
    rows = [dataclasses.replace(row, reason=row.reason or lost_answers(task.facts, part.table)) for row in rows]
    return rows, _with_cell(rows[0], said)


def _rows(cell: dict[str, Any], facts: dict[str, Any], said: pd.DataFrame) -> Iterator[Row]:
    """A row a metric, over all items and for each group of them; where all have no value that is said once."""
    whole: dict[str, float] = {}
    for group, items in groups_of(said, fold=cell.get("fold")):
        for metric in facts["metric"]:
            value = METRICS[metric](items["gold"].to_numpy(object), items["prediction"].to_numpy(object))
            if group == "all" or np.isfinite(whole[metric]):
                yield _row(cell | {"group": group}, metric, value, len(items))
            whole.setdefault(metric, value)


def _row(cell: dict[str, Any], metric: str, value: float, examples: int) -> Row:
    if np.isfinite(value):
        return Row(**cell, metric=metric, value=value, examples=examples)
    why = f"no {metric}, since all gold numbers are the same, or all predicted ones"
    return Row(**cell | {"reason": why}, metric=metric, value=None, examples=0, status="not_applicable")


def ceiling_rows(facts: dict[str, Any], examples: int) -> list[Row]:
    """What the best reader of each window can reach on a generated task's test items, in all and by group."""
    groups = {"all": facts["ceilings"], **facts["ceiling_groups"]} if facts["ceilings"] else {}
    about = {"task": facts["name"], "kind": facts["kind"], "metric": facts["metric"][0], "examples": examples}
    return [Row(variant="ceiling", family="ceiling", value=value, features=window, group=group, **about)
            for group, ceilings in groups.items() for window, value in ceilings.items()]  # fmt: skip


def data_rows(facts: dict[str, Any]) -> Iterator[Row]:
    """What task.json counted in the task's data, where there is any.

    Its items, by split; those that were cut, carved out of train, or stand in train too, themselves or by their group; what was dropped, a metric a
    reason; sentences whose tags had to be guessed at, words that are none, and tags that may be spans.
    """
    about = {"variant": DATA, "family": DATA, "task": facts["name"], "kind": facts["kind"]}
    counted = {"items": facts["counts"], "cut": facts["cut"], "carved": {"validation": facts["carved"]}}
    for split, reasons in facts["dropped"].items():
        for reason, count in reasons.items():
            counted.setdefault("left_out" if reason == "of_no_use" else DROPPED + reason, {})[split] = count
    for metric, counts in (counted | {name: facts[name] for name in COUNTED}).items():
        for name, count in counts.items():
            if count:
                where = {"split": "test", "test_set": name.removeprefix(SECOND)} if name.startswith(SECOND) else {"split": name}
                yield Row(**about, **where, metric=metric, value=count, examples=facts["counts"][name])


def fold_rows(task: TaskData, seeds: Sequence[int]) -> Iterator[Row]:
    """Of a task that is scored by cross-validation: its folds, the groups that they keep whole, and folds without a label.

    These count, over all seeds, where a label is missing from what is learned: all its items, or groups, are elsewhere.
    """
    facts = task.facts
    about = {"variant": DATA, "family": DATA, "task": facts["name"], "kind": facts["kind"], "split": "train"}
    learned = [task.parts(seed=seed, fold=fold)[0] for seed in seeds for fold in folds_of(facts) if fold is not None]
    without = sum(task.items(part)["label"].nunique() < len(facts["labels"]) for part in learned) if facts["answer"] == "label" else 0
    if facts["folds"]:
        yield Row(**about, metric="folds", value=facts["folds"], examples=facts["counts"]["train"])
        if facts["grouped"]:
            yield Row(**about, metric="groups", value=task.splits["train"]["group"].nunique(), examples=facts["counts"]["train"])
    if without:
        yield Row(**about, metric="folds_without_a_label", value=without, examples=len(learned))


def unscored_rows(facts: dict[str, Any], split: Literal["validation", "test"]) -> list[Row]:
    """The controls' rows for a task that has no such split."""
    return [Row(variant=name, family=name, task=facts["name"], kind=facts["kind"], split=split, metric=facts["metric"][0], value=None, examples=0,
                status="not_applicable", reason=f"the task has no {split} split") for name in CONTROLS]  # fmt: skip


def predictions_table(cells: Sequence[pd.DataFrame]) -> pd.DataFrame:
    """The predictions of all cells, in a fixed order and with fixed types."""
    whole = pd.concat(cells) if cells else pd.DataFrame(columns=list(PREDICTIONS))
    texts = {name: "str" for name in PREDICTIONS if name not in ("pretrain_seed", "seed", "fold", "score", "correct")}
    types = {**texts, "pretrain_seed": "Int64", "seed": "Int64", "fold": "Int64", "score": "float64", "correct": "float64"}
    return whole.astype(types).sort_values([*CELL, "id"], ignore_index=True)


def _ties(scored: pd.DataFrame, facts: dict[str, Any], common: dict[str, Any]) -> tuple[list[Row], pd.DataFrame]:
    """Pairs without training labels: knowing nothing is a tie on every pair, and there is nothing to fit a classifier to."""
    own = {**common, "variant": "majority", "family": "majority", "metric": "accuracy", "value": 0.5}
    rows = [Row(**own, group=group, examples=len(items)) for group, items in groups_of(scored, fold=None)]
    said = {"id": scored["id"], "group": scored["group"], "gold": "good", "prediction": "tie", "score": 0.0, "correct": 0.5}
    none = Row(**common, variant="tfidf", family="tfidf", metric="accuracy", value=None, examples=0, status="not_applicable",
               reason="there are no training labels to fit a classifier to")  # fmt: skip
    return [*rows, none], _with_cell(rows[0], pd.DataFrame(said))


def _chance(cell: dict[str, Any], facts: dict[str, Any], asked: Sequence[tuple[str, pd.DataFrame]],
            known: dict[Any, tuple[list[Row], pd.DataFrame]]) -> Iterator[tuple[list[Row], pd.DataFrame]]:  # fmt: skip
    """A cell's chance level on each of its test sets, which is the same for any number of labels, and without folds for any seed."""
    here = {name: cell[name] for name in ("seed", "fold", "labels", "train_examples")}
    for test_set, items in asked:
        key = (test_set, None if cell["fold"] is None else (cell["seed"], cell["fold"]))
        if key not in known:
            known[key] = _guessed(cell | {"variant": "chance", "family": "chance", "test_set": test_set, "reason": ""}, facts, items)
        rows = [dataclasses.replace(row, **here) for row in known[key][0]]
        yield rows, _with_cell(rows[0], known[key][1])


def _guessed(cell: dict[str, Any], facts: dict[str, Any], scored: pd.DataFrame) -> tuple[list[Row], pd.DataFrame]:
    """What guessing at random among the labels gets: the metrics of a table where each item is answered once with every one of them."""
    names = np.asarray(facts["labels"], object)
    gold, said = names[scored["label"]].repeat(len(names)), np.tile(names, len(scored))
    each = pd.DataFrame({"group": scored["group"].repeat(len(names)), "gold": gold, "prediction": said})
    rows = [dataclasses.replace(row, examples=row.examples // len(names)) for row in _rows(cell, facts, each)]
    about = {"gold": names[scored["label"]], "prediction": "tie", "score": 1 / len(names),
             "correct": SHARES[facts["metric"][0]](gold, said).reshape(-1, len(names)).mean(1)}  # fmt: skip
    return rows, _with_cell(rows[0], pd.DataFrame({"id": scored["id"], "group": scored["group"], **about}))


def _words(kind: Kind, scored: pd.DataFrame, common: dict[str, Any]) -> tuple[list[Row], pd.DataFrame]:
    """Single words: by tf-idf of their characters in place of a model's vectors; no answer is commoner than the others."""
    distinct, metric = distinct_words(scored), kind.metrics[0]
    rows = [Row(**common, variant="majority", family="majority", metric=metric, value=None, examples=0, status="not_applicable",
                reason="there are no labels of which one could be the commonest")]  # fmt: skip
    own: dict[str, Any] = {**common, "variant": "tfidf", "family": "tfidf", "metric": metric}
    read = TfidfVectorizer(analyzer="char_wb", ngram_range=(2, 4), sublinear_tf=True).fit_transform(distinct)
    products_VV = (read @ read.T).toarray()
    mean_V = products_VV.mean(0)  # taken away so, since centred vectors would no longer be sparse
    centred_VV = products_VV - (mean_V[:, None] + mean_V) + mean_V.mean()
    try:
        found = pd.DataFrame({"id": scored["id"], "group": scored["group"],
                              **answered(kind.name, scored, [("none", cosines(centred_VV))], np.ones(len(distinct), bool))})  # fmt: skip
        whole = value_of(kind.name, found)
        for group, items in groups_of(found, fold=None):
            value = value_of(kind.name, items)
            if np.isfinite(value):
                rows.append(Row(**own, group=group, value=value, examples=len(items)))
            elif group == "all" or np.isfinite(whole):
                rows.append(Row(**own, group=group, value=None, examples=0, status="not_applicable", reason=none_note(items)))
    except CellError as error:
        found = pd.DataFrame(columns=["id", "group", "gold", "prediction", "score", "correct"])
        rows.append(Row(**own, value=None, examples=0, status="not_applicable", reason=str(error)))
    return rows, _with_cell(rows[1], found)  # of tfidf


def nearest_translations(train: pd.DataFrame, scored: pd.DataFrame, *, language: str) -> list[str]:
    """The translation of the training source that is most like each source by tf-idf (as a translation memory would offer); of equals the first."""
    memory, asked = vectors([train["source"].tolist()], [scored["source"].tolist()], language=language)
    best = np.concatenate([np.asarray((asked[i : i + 256] @ memory.T).argmax(1)).ravel() for i in range(0, asked.shape[0], 256)])
    return [train["target"].iloc[i] for i in best]


def _translations(train: pd.DataFrame, scored: pd.DataFrame, facts: dict[str, Any], common: dict[str, Any], *, seeds: Sequence[int],
                  labels: Sequence[int | Literal["all"]]) -> Iterator[tuple[list[Row], pd.DataFrame]]:  # fmt: skip
    """The source as it is, and the translation of the nearest training source; there are no labels of which one could be the commonest."""
    gold = scored["target"].to_numpy(object)
    for count in labels:
        for seed in seeds:
            pairs = train.iloc[nested_subset(strata(train), count, seed=seed)]
            cell = {**common, "seed": seed, "labels": str(count), "train_examples": len(pairs)}
            none = Row(**cell, variant="majority", family="majority", metric=facts["metric"][0], value=None, examples=0, status="not_applicable",
                       reason="a translation is no label: none is the commonest")  # fmt: skip
            said = {"copy": list(scored["source"]), "tfidf": nearest_translations(pairs, scored, language=facts["language"])}
            for name, texts in said.items():
                both = gold, np.array(texts, object)
                own = {**cell, "variant": name, "family": name, "reason": bleu_signature(*both)}
                columns = {"gold": gold, "prediction": both[1], "score": np.nan, "correct": bleu_shares(*both)}
                predictions = pd.DataFrame({"id": scored["id"], "group": scored["group"], **columns})
                rows = [*_rows(own, facts, predictions)]
                yield [*rows, *([none] if name == "copy" else [])], _with_cell(rows[0], predictions)


def _with_cell(row: Row, table: pd.DataFrame) -> pd.DataFrame:
    return table.assign(**{name: getattr(row, name) for name in CELL})[list(PREDICTIONS)]
