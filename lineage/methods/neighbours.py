"""Are the occurrences of a word that a model finds most alike those of the same sense?

As in Peters et al. 2018, table 4, over all words of a task that stand in several senses. Nothing is
fitted: the k nearest other occurrences of the same word are looked up, in each layer. A model with
one vector for each word cannot tell them apart, so it finds each sense as often as it occurs.
Shapes: N occurrences of one word, L layers, D width, k neighbours.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import pandas as pd

from lineage.config.records import check_positive
from lineage.data.task_data import EXTRA_TEST_PREFIX
from lineage.errors import EvaluationError
from lineage.methods.base import FittedSystem, Method, RunItems, build_predictions
from lineage.methods.early_stopping import ResumePoint
from lineage.methods.encoder import EvalRun, Subject, TaskContext, Transfer, under_test
from lineage.methods.encoding import encode_items
from lineage.methods.run_predictions import RunPredictions
from lineage.methods.stored_features import extract_features
from lineage.randomness import generator
from lineage.results import LAYER_TRIAL, NEIGHBOUR_PREFIX
from lineage.tasks.base import Kind
from lineage.tasks.info import TaskInfo

MAX_OCCURRENCES = 2000  # of one word; of more, a random sample
# A layer whose centered vectors are all shorter than this share of their mean reads no context.
SAME_VECTOR = 1e-4
PRECISION = "precision_at_k"
CHANCE_PRECISION = "chance_precision_at_k"  # of neighbours that are drawn at random
# Columns of the predictions.
CHANCE = f"{NEIGHBOUR_PREFIX}chance"  # the share of the sense among the other occurrences
# The ids of the k nearest with their senses, as JSON; none without context.
NEAREST = f"{NEIGHBOUR_PREFIX}nearest"
MAP = (f"{NEIGHBOUR_PREFIX}x", f"{NEIGHBOUR_PREFIX}y")  # two principal components


@dataclass(frozen=True, kw_only=True)
class NeighboursMethod(Method):
    """The block `neighbours`: precision at k of the nearest occurrences of a word, by layer.

    It is for models that have the block, and for tasks about one word of each text. Its results are
    no systems to use: each has the number of its layer, from 0, the embeddings.
    """

    name: ClassVar[str] = "neighbours"
    transfer: ClassVar[Transfer] = "zero_shot"
    head: ClassVar[str] = "neighbours"
    titles: ClassVar[Mapping[str, str]] = {"neighbours": "nearest occurrences"}
    is_fitted: ClassVar[bool] = False

    k: int = 5  # neighbours of an occurrence

    def __post_init__(self) -> None:
        super().__post_init__()
        check_positive(self, "k")

    def suits(self, kind: Kind, info: TaskInfo) -> bool:
        return "target" in kind.required_columns and kind.answer.has_one_label

    def count_work(self, items: RunItems) -> float:
        return items.train + items.scored

    def list_metrics(self, context: TaskContext) -> tuple[str, ...]:
        return (PRECISION, CHANCE_PRECISION)

    def score(
        self, context: TaskContext, metric: str, predictions: pd.DataFrame, answer_column: str
    ) -> float:
        column = "correct" if metric == PRECISION else CHANCE
        return float(predictions[column].mean())

    def fit(self, subject: Subject, run: EvalRun, resume_point: ResumePoint) -> FittedSystem:
        """Look up the neighbours of the scored occurrences, in each layer.

        All items of the task are searched. Raises EvaluationError if no word has two senses.
        """
        context = subject.task_context
        occurrences = find_occurrences(context, self.k)
        if occurrences.empty:
            raise EvaluationError(
                f"no word of the task stands in two senses, each at least twice, and in more than "
                f"{self.k} texts; neighbours need words that do"
            )
        vectors_NLD = _embed(subject, occurrences)
        tables = [
            pd.concat(
                [
                    self._look_up(context, run, words, vectors_NLD[words.index, layer], layer)
                    for _, words in occurrences.groupby("word")
                ],
                ignore_index=True,
            )
            for layer in range(vectors_NLD.shape[1])
        ]
        return FittedSystem(RunPredictions(pd.concat(tables, ignore_index=True)), self)

    def _look_up(
        self,
        context: TaskContext,
        run: EvalRun,
        occurrences: pd.DataFrame,
        vectors_ND: np.ndarray,
        layer: int,
    ) -> pd.DataFrame:
        """Return the predictions of one layer for the scored occurrences of one word.

        `correct` is the share of the k nearest that have the sense of the occurrence, and the group
        is the word, by its number.
        """
        senses_N = occurrences["sense"].to_numpy()
        same_NN = senses_N[:, None] == senses_N
        chance_N = (same_NN.sum(1) - 1) / (len(senses_N) - 1)
        centered_ND = center(vectors_ND)
        if centered_ND is None:
            nearest_Nk = np.zeros((len(senses_N), 0), int)
            precision_N = chance_N
            map_N2 = np.zeros((len(senses_N), 2))
        else:
            nearest_Nk = find_nearest(centered_ND, self.k)
            precision_N = np.take_along_axis(same_NN, nearest_Nk, 1).mean(1)
            map_N2 = principal_components(centered_ND)
        ids_N = occurrences["id"].to_numpy(object)
        columns = {
            "label": senses_N,
            "prediction": [_most_frequent(senses_N[nearest]) for nearest in nearest_Nk],
            "score": precision_N,
            "correct": precision_N,
            CHANCE: chance_N,
            NEAREST: [
                json.dumps([*zip(ids_N[nearest], senses_N[nearest], strict=True)])
                for nearest in nearest_Nk
            ],
            MAP[0]: map_N2[:, 0],
            MAP[1]: map_N2[:, 1],
        }
        items = pd.DataFrame({"id": ids_N, "group": occurrences["number"].map("word {}".format)})
        table = build_predictions(context, run, context.task.scored_splits[-1], items, columns)
        scored_N = occurrences["is_scored"].to_numpy()
        return table[scored_N].assign(trial=f"{LAYER_TRIAL}{layer}")


def find_occurrences(context: TaskContext, k: int) -> pd.DataFrame:
    """Return the items that are about a word of two senses, each at least twice, of all splits.

    Columns: those of the items, `word`, which is another one in capitals, its `number`, the name of its `sense`, and
    `is_scored`. A text that occurs again counts once, and a word needs more than k texts.
    """
    tables = {
        name: table
        for name, table in context.task.splits.items()
        if not name.startswith(EXTRA_TEST_PREFIX)
    }
    scored = [*tables][-1]  # test, or validation; with folds, train is all
    items = pd.concat(
        [table.assign(is_scored=name == scored) for name, table in tables.items()],
        ignore_index=True,
    )
    targets = [
        str(tokens[target]) for tokens, target in zip(items["tokens"], items["target"], strict=True)
    ]
    texts = [" ".join(map(str, tokens)) for tokens in items["tokens"]]
    senses = np.asarray(context.task.info.labels, object)[items["label"].to_numpy(int)]
    items = items.assign(word=targets, text=texts, sense=senses)
    # The scored ones come first, so that a text which occurs again is scored.
    items = items.sort_values("is_scored", ascending=False, kind="stable")
    items = items.drop_duplicates(["text", "target"])
    kept = []
    for word, occurrences in items.groupby("word"):
        if len(occurrences) > MAX_OCCURRENCES:
            rng = generator("neighbours", str(word))
            rows = np.sort(rng.permutation(len(occurrences))[:MAX_OCCURRENCES])
            occurrences = occurrences.iloc[rows]
        num_senses = (occurrences["sense"].value_counts() >= 2).sum()
        if num_senses >= 2 and len(occurrences) > k and occurrences["is_scored"].any():
            kept.append(occurrences)
    if not kept:
        return items.iloc[:0]
    found = pd.concat(kept, ignore_index=True)
    return found.assign(number=found.groupby("word").ngroup())


def _embed(subject: Subject, occurrences: pd.DataFrame) -> np.ndarray:
    """Return (N, L, D): the vectors of the words, in each layer."""
    encoder = under_test(subject)
    checkpoint = encoder.context.checkpoint
    items = encode_items(
        occurrences,
        checkpoint.tokenizer,
        max_length=encoder.context.max_input_positions,
        language=encoder.context.language,
    )
    return extract_features(
        encoder.build_encoder(), checkpoint.tokenizer, items, precision=encoder.context.precision
    )


def center(vectors_ND: np.ndarray) -> np.ndarray | None:
    """Subtract the mean of the vectors; None if they are all the same, so that none is nearer.

    Those of a contextual model nearly all point in one direction (Ethayarajh 2019).
    """
    vectors_ND = vectors_ND.astype(np.float64)
    mean_D = vectors_ND.mean(0)
    centered_ND = vectors_ND - mean_D
    longest = np.linalg.norm(centered_ND, axis=1).max()
    return None if longest <= SAME_VECTOR * np.linalg.norm(mean_D) else centered_ND


def cosines(query_D: np.ndarray, vectors_ND: np.ndarray) -> np.ndarray:
    """Return (N,) the cosines of a vector with others; 0 for a vector of zeros."""
    lengths_N = np.linalg.norm(vectors_ND, axis=1) * np.linalg.norm(query_D)
    return (vectors_ND @ query_D) / np.maximum(lengths_N, np.finfo(np.float64).tiny)


def find_nearest(centered_ND: np.ndarray, k: int) -> np.ndarray:
    """Return (N, k) the rows with the largest cosines, without the row itself."""
    nearest = []
    for row, vector_D in enumerate(centered_ND):
        cosines_N = cosines(vector_D, centered_ND)
        cosines_N[row] = -np.inf
        nearest.append(np.argsort(-cosines_N, kind="stable")[:k])
    return np.array(nearest)


def principal_components(centered_ND: np.ndarray) -> np.ndarray:
    """Return (N, 2) the places on the first two principal components, each with a fixed sign."""
    left_NR, sizes_R, directions_RD = np.linalg.svd(centered_ND, full_matrices=False)
    places = np.zeros((len(centered_ND), 2))
    for number in range(min(2, len(sizes_R))):
        direction_D = directions_RD[number]
        sign = np.sign(direction_D[np.abs(direction_D).argmax()])
        places[:, number] = sign * left_NR[:, number] * sizes_R[number]
    return places


def _most_frequent(senses: np.ndarray) -> str:
    """Return the sense that most neighbours have, the nearest one's among equals."""
    counts = pd.Series(senses).value_counts(sort=False)  # in the order of the neighbours
    return "" if counts.empty else str(counts.idxmax())
