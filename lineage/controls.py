"""Controls: what can be had without any pretraining, on the same label subsets and seeds as every family, and what nobody can pass."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

import numpy as np
import pandas as pd
from scipy.sparse import csr_matrix, hstack
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.linear_model import LogisticRegression, Ridge

from lineage.errors import CellError
from lineage.kind import Kind
from lineage.metrics import METRICS, bleu_shares, bleu_signature
from lineage.params import Grid
from lineage.predictions import Columns, of_labels, of_numbers, of_tags
from lineage.rows import CELL, DATA, PREDICTIONS, Row
from lineage.subsets import nested_subset, strata
from lineage.text import words
from lineage.wordspace import KINDS, answered, cosines, distinct_words, none_note, value_of

INVERSE_PENALTY = Grid.tfidf[0]  # the inverse of the L2 penalty, on tf-idf vectors of length 1: one for all tasks, unless the grid names several
TINY = 20  # words with their tags; from so many on, characters that stand in one word are left out
CONTROLS = ("majority", "tfidf")


@dataclass(frozen=True)
class Fitted:
    """What a control says of the scored items: N items, K labels that it knows."""

    classes_K: np.ndarray
    probabilities_NK: np.ndarray

    def score_of(self, gold_N: np.ndarray) -> np.ndarray:
        """The probability of the gold label, 0 where the control does not know it."""
        return (self.probabilities_NK * (self.classes_K == gold_N[:, None])).sum(1)


def majority(labels_N: np.ndarray, items: int) -> Fitted:
    """Each label with its share among the training labels, whatever the item."""
    classes_K, count_K = np.unique(labels_N, return_counts=True)
    return Fitted(classes_K, np.tile(count_K / count_K.sum(), (items, 1)))


def tfidf(
    train: Sequence[Sequence[str]], labels_N: np.ndarray, scored: Sequence[Sequence[str]], *, language: str, penalty: float = INVERSE_PENALTY
) -> Fitted:
    """Logistic regression on tf-idf of single words and pairs (in Chinese: characters); of two texts, which come as two lists, side by side."""
    if len(set(labels_N.tolist())) < 2:
        return majority(labels_N, len(scored[0]))
    return _regression(*vectors(train, scored, language=language), labels_N, penalty)


def vectors(train: Sequence[Sequence[str]], scored: Sequence[Sequence[str]], *, language: str) -> tuple[csr_matrix, csr_matrix]:
    """Tf-idf of words and pairs of them: of the texts to fit on, and of those to read."""
    cut = partial(words, language=language)
    return _vectors(train, scored, partial(TfidfVectorizer, tokenizer=cut, token_pattern=None, ngram_range=(1, 2), sublinear_tf=True))


def _vectors(train: Sequence[Sequence[str]], scored: Sequence[Sequence[str]], make: Callable[[], TfidfVectorizer]) -> tuple[csr_matrix, csr_matrix]:
    found = []
    for own, other in zip(train, scored, strict=True):
        counted = make()
        found.append((counted.fit_transform(own), counted.transform(other)))
    fitted, read = (hstack(matrices).tocsr() for matrices in zip(*found, strict=True))
    return fitted, read


def _regression(fitted: csr_matrix, read: csr_matrix, labels_N: np.ndarray, penalty: float) -> Fitted:
    model = LogisticRegression(C=penalty, max_iter=1000).fit(fitted, labels_N)
    return Fitted(model.classes_, model.predict_proba(read))


def tfidf_choices(
    train: Sequence[Sequence[str]], labels_N: np.ndarray, scored: Sequence[Sequence[str]], *, language: str, penalty: float = INVERSE_PENALTY
) -> Fitted:
    """The same of a text and each of its choices: is this the right one? The choice of which that is likeliest is taken."""

    def beside(texts: Sequence[Sequence[str]]) -> list[list[str]]:
        return [list(texts[0]) * (len(texts) - 1), [choice for column in texts[1:] for choice in column]]

    right = np.concatenate([labels_N == place for place in range(len(train) - 1)])
    fitted = tfidf(beside(train), right, beside(scored), language=language, penalty=penalty)
    share_CN = fitted.score_of(np.ones(len(scored[0]) * (len(scored) - 1), bool)).reshape(len(scored) - 1, -1)
    return Fitted(np.arange(len(share_CN)), (share_CN / share_CN.sum(0)).T)


def control_rows(kind: Kind, facts: dict[str, Any], train: pd.DataFrame | None, scored: pd.DataFrame, *, split: Literal["validation", "test"],
                 seeds: Sequence[int], labels: Sequence[int | Literal["all"]], penalties: Sequence[float] = Grid.tfidf,
                 validation: pd.DataFrame | None = None) -> Iterator[tuple[list[Row], pd.DataFrame]]:  # fmt: skip
    """The rows and predictions of every control cell: (control, labels, seed); of several penalties those of each on validation, too.

    As for every arm, the first seed's trials decide for all seeds of a number of labels.
    """
    common = {"task": facts["name"], "kind": kind.name, "split": split}
    if train is not None and kind.answer is None:
        yield from _translations(train, scored, facts, common, seeds=seeds, labels=labels)
        return
    if train is None:
        yield _words(kind, scored, common) if kind.name in KINDS else _ties(scored, facts, common)
        return
    for count in labels:
        taken = 0
        for seed in seeds:
            own = train.iloc[nested_subset(strata(train), count, seed=seed)]
            for name in CONTROLS:
                cell = {**common, "variant": name, "family": name, "seed": seed, "labels": str(count), "train_examples": len(own)}
                said = partial(SAID[kind.answer or "label"], name, kind, facts, own)
                if name == "tfidf" and len(penalties) > 1:
                    assert validation is not None
                    if seed == seeds[0]:
                        tried = [said(validation, penalty=penalty) for penalty in penalties]
                        taken = int(np.argmax([np.nan_to_num(found["correct"].mean(), nan=-np.inf) for found in tried]))
                        for number, found in enumerate(tried):
                            about = {"split": "validation", "trial": str(number), "reason": _trial_words(penalties, number)}
                            yield _told(cell | about, facts, validation, found)
                    cell |= {"reason": _trial_words(penalties, taken)}
                yield _told(cell, facts, scored, said(scored, penalty=penalties[taken]))


def _trial_words(penalties: Sequence[float], number: int) -> str:
    return f"trial {number} (of {len(penalties)}, from 0): inverse penalty {penalties[number]:g}"


def _told(cell: dict[str, Any], facts: dict[str, Any], table: pd.DataFrame, found: Columns) -> tuple[list[Row], pd.DataFrame]:
    rows = [_row(cell, metric, METRICS[metric](found["gold"], found["prediction"]), len(table)) for metric in facts["metric"]]
    return rows, _with_cell(rows[0], pd.DataFrame({"id": table["id"], "group": table["group"], **found}))


def _row(cell: dict[str, Any], metric: str, value: float, examples: int) -> Row:
    if np.isfinite(value):
        return Row(**cell, metric=metric, value=value, examples=examples)
    why = f"no {metric}, since all gold numbers are the same, or all predicted ones"
    return Row(**cell | {"reason": why}, metric=metric, value=None, examples=0, status="not_applicable")


def _said_labels(control: str, kind: Kind, facts: dict[str, Any], train: pd.DataFrame, scored: pd.DataFrame, *, penalty: float) -> Columns:
    """A label, or the place of a choice."""
    own_N, gold_N = train["label"].to_numpy(), scored["label"].to_numpy()
    if control == "majority":
        fitted = majority(own_N, len(scored))
    else:
        texts, read = (kind.texts(table, facts["language"]) for table in (train, scored))
        fitted = (tfidf_choices if kind.answer == "choice" else tfidf)(texts, own_N, read, language=facts["language"], penalty=penalty)
    return of_labels(facts["labels"], gold_N, _of_all(fitted, len(facts["labels"])))


def _said_numbers(control: str, kind: Kind, facts: dict[str, Any], train: pd.DataFrame, scored: pd.DataFrame, *, penalty: float) -> Columns:
    """The mean, or ridge regression on tf-idf."""
    own_N, gold_N = train["label"].to_numpy(float), scored["label"].to_numpy(float)
    if control == "majority":
        return of_numbers(gold_N, np.full(len(scored), own_N.mean()))
    fitted, read = vectors(*(kind.texts(table, facts["language"]) for table in (train, scored)), language=facts["language"])
    return of_numbers(gold_N, Ridge(alpha=1 / penalty).fit(fitted, own_N).predict(read))


def _said_tags(control: str, kind: Kind, facts: dict[str, Any], train: pd.DataFrame, scored: pd.DataFrame, *, penalty: float) -> Columns:
    """The commonest tag, or logistic regression on tf-idf of the characters of a word and of its two neighbours, side by side."""
    (words_M, own_M), (read_M, gold_M) = (
        ([_neighbours(list(tokens)) for tokens in table["tokens"]], np.concatenate([np.asarray(tags, int) for tags in table["label"]]))
        for table in (train, scored)
    )
    asked = [row for sentence in read_M for row in sentence]
    if control == "majority" or len(set(own_M.tolist())) < 2:
        fitted = majority(own_M, len(asked))
    else:
        often = 1 if len(own_M) < TINY else 2  # of a few words nothing may be left out: nearly all that is known of them stands there once
        characters = partial(TfidfVectorizer, analyzer="char_wb", ngram_range=(1, 4), lowercase=False, sublinear_tf=True, min_df=often)
        beside = [list(column) for column in zip(*(row for sentence in words_M for row in sentence), strict=True)]
        fitted = _regression(*_vectors(beside, [list(column) for column in zip(*asked, strict=True)], characters), own_M, penalty)
    lengths, read_MK = [len(tags) for tags in scored["label"]], _of_all(fitted, len(facts["labels"]))
    return of_tags(facts["labels"], lengths, gold_M, read_MK, read_MK.argmax(1), spans=facts["metric"][0] == "span_f1")


SAID: dict[str, Callable[..., Columns]] = {"label": _said_labels, "choice": _said_labels, "number": _said_numbers, "tags": _said_tags}


def _neighbours(tokens: list[str]) -> list[tuple[str, str, str]]:
    """Each word between the one before it and the one after it; a mark that no word holds where there is none."""
    return list(zip(["<begin>", *tokens[:-1]], tokens, [*tokens[1:], "<end>"], strict=True))


def _of_all(fitted: Fitted, labels: int) -> np.ndarray:
    """(N, K) probabilities of all labels, 0 of those that the control does not know."""
    found = np.zeros((len(fitted.probabilities_NK), labels))
    found[:, fitted.classes_K.astype(int)] = fitted.probabilities_NK
    return found


def ceiling_rows(facts: dict[str, Any], examples: int) -> list[Row]:
    """What the best reader of each window can reach on a generated task's test items, in all and by group."""
    groups = {"all": facts["ceilings"], **facts["ceiling_groups"]} if facts["ceilings"] else {}
    about = {"task": facts["name"], "kind": facts["kind"], "metric": facts["metric"][0], "examples": examples}
    return [Row(variant="ceiling", family="ceiling", value=value, features=window, group=group, **about)
            for group, ceilings in groups.items() for window, value in ceilings.items()]  # fmt: skip


def data_rows(facts: dict[str, Any]) -> Iterator[Row]:
    """What task.json counted in the task's data, where there is any: items that stand in train too, sentences whose tags had to be guessed at."""
    about = {"variant": DATA, "family": DATA, "task": facts["name"], "kind": facts["kind"]}
    for metric in ("repeated_in_train", "mended_tags"):
        for split, count in facts[metric].items():
            if count:
                yield Row(**about, metric=metric, value=count, examples=facts["counts"][split], split=split)


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
    rows = [Row(**common, variant="majority", family="majority", metric="accuracy", value=0.5, examples=len(scored)),
            Row(**common, variant="tfidf", family="tfidf", metric="accuracy", value=None, examples=0, status="not_applicable",
                reason="there are no training labels to fit a classifier to")]  # fmt: skip
    table = pd.DataFrame({"id": scored["id"], "group": scored["group"], "gold": "good", "prediction": "tie", "score": 0.0, "correct": 0.5})
    return rows, _with_cell(rows[0], table)


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
        value = value_of(kind.name, found)
        rows.append(Row(**own, value=value, examples=len(scored)) if np.isfinite(value) else
                    Row(**own, value=None, examples=0, status="not_applicable", reason=none_note(found)))  # fmt: skip
    except CellError as error:
        found = pd.DataFrame(columns=["id", "group", "gold", "prediction", "score", "correct"])
        rows.append(Row(**own, value=None, examples=0, status="not_applicable", reason=str(error)))
    return rows, _with_cell(rows[-1], found)


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
                own = {**cell, "variant": name, "family": name, "examples": len(scored), "reason": bleu_signature(*both)}
                rows = [Row(**own, metric=metric, value=METRICS[metric](*both)) for metric in facts["metric"]]
                columns = {"gold": gold, "prediction": both[1], "score": np.nan, "correct": bleu_shares(*both)}
                predictions = pd.DataFrame({"id": scored["id"], "group": scored["group"], **columns})
                yield [*rows, *([none] if name == "copy" else [])], _with_cell(rows[0], predictions)


def _with_cell(row: Row, table: pd.DataFrame) -> pd.DataFrame:
    return table.assign(**{name: getattr(row, name) for name in CELL})[list(PREDICTIONS)]
