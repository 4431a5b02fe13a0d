"""The nearest occurrences of a word share its sense in a model that reads it, and only there."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from lineage.data.task_data import TaskData
from lineage.evaluation.evaluate import list_runs
from lineage.methods.encoder import EvalContext, EvalRun
from lineage.methods.neighbours import (
    CHANCE_PRECISION,
    NEAREST,
    PRECISION,
    NeighboursMethod,
    find_nearest,
    find_occurrences,
    principal_components,
)
from lineage.results import LAYER_TRIAL, results_frame
from tests.helpers import tiny
from tests.helpers.tasks import build_task_items, write_jsonl

SENSES = ("money", "river")
METHOD = NeighboursMethod(k=3)


def build_task(folder: Path, rows: dict[str, list[tuple[str, int, str]]]) -> TaskData:
    """Return a task of texts, each with the place of its word and the sense."""
    for split, items in rows.items():
        keys = ("tokens", "target", "label")
        lines = [dict(zip(keys, (text.split(), *others), strict=True)) for text, *others in items]
        write_jsonl(folder / f"{split}.jsonl", lines)
    files = {split: f"{split}.jsonl" for split in rows}
    block = {"kind": "word_sense", "files": files, "tokens": "tokens", "target": "target"}
    items = build_task_items(folder, block | {"label": "label"}, name="sense")
    return TaskData(items.info, items.splits)


def sentences(word: str, split: str, count: int = 6) -> list[tuple[str, int, str]]:
    """Return texts of a word in both senses, which the word before it tells."""
    return [(f"{SENSES[n % 2]} {word} {split} {word}{n}", 1, SENSES[n % 2]) for n in range(count)]


@pytest.fixture(scope="module")
def task(tmp_path_factory: pytest.TempPathFactory) -> TaskData:
    once = [("money vault here", 1, "money"), ("river delta here", 1, "river")]
    rows = {
        split: [*sentences("bank", split, 8), *sentences("play", split)]
        for split in ("train", "validation", "test")
    }
    rows["test"] += once
    return build_task(tmp_path_factory.mktemp("sense"), rows)


def build_context(model: str, task: TaskData) -> EvalContext:
    return tiny.eval_context(
        model, task, replace(tiny.model_config(model).evaluate, neighbours=METHOD)
    )


def plant(monkeypatch: pytest.MonkeyPatch, layers: int = 3) -> None:
    """Give a model the word in layer 0, its sense in layer 1, and noise in layer 2."""

    def embed(subject: object, occurrences: pd.DataFrame) -> np.ndarray:
        rng = np.random.default_rng(0)
        vectors = 0.05 * rng.standard_normal((len(occurrences), layers, 8))
        vectors[:, 0] = 1.0
        vectors[:, 1, 0] += np.where(occurrences["sense"] == SENSES[0], 1.0, -1.0)
        return vectors

    monkeypatch.setattr("lineage.methods.neighbours._embed", embed)


def test_the_sense_is_found_in_the_layer_where_it_was_planted(
    task: TaskData, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plant(monkeypatch)
    output = tiny.evaluate_runs(
        build_context("elmo", task), [EvalRun("pretrained", METHOD.name)], tmp_path / "cache"
    )
    table = results_frame(output.rows)
    values = table.pivot_table(index="layer", columns="metric", values="value")
    assert values[PRECISION]["1"] == 1.0
    assert values[PRECISION]["0"] == values[CHANCE_PRECISION]["0"], "without context, by chance"
    assert abs(values[PRECISION]["2"] - values[CHANCE_PRECISION]["2"]) < 0.2
    # Half of a word's occurrences have each sense: 11 of 23 others, and 8 of 17.
    assert values[CHANCE_PRECISION]["1"] == pytest.approx(
        np.average([11 / 23, 8 / 17], weights=[8, 6])
    )
    predictions = output.predictions
    assert {*predictions["trial"]} == {f"{LAYER_TRIAL}{layer}" for layer in range(3)}
    assert {*predictions["group"]} == {"word 0", "word 1"}
    upper = predictions[predictions["trial"] == f"{LAYER_TRIAL}1"]
    assert (upper["prediction"] == upper["label"]).all()
    assert all(len(json.loads(ids)) == METHOD.k for ids in upper[NEAREST])
    for own, sense, nearest in zip(upper["id"], upper["label"], upper[NEAREST], strict=True):
        assert own not in dict(json.loads(nearest)) and {*dict(json.loads(nearest)).values()} == {
            sense
        }


def test_a_static_model_cannot_tell_senses_apart(task: TaskData, tmp_path: Path) -> None:
    output = tiny.evaluate_runs(
        build_context("word2vec", task), [EvalRun("random", METHOD.name)], tmp_path / "cache"
    )
    values = results_frame(output.rows).set_index("metric")["value"]
    assert values[PRECISION] == values[CHANCE_PRECISION]


def test_only_words_of_two_senses_are_searched_for(task: TaskData) -> None:
    found = find_occurrences(build_context("elmo", task), k=3)
    assert {*found["word"]} == {"bank", "play"}, "'vault' and 'delta' stand once"
    assert found["is_scored"].sum() == 14 and len(found) == 42
    assert find_occurrences(build_context("elmo", task), k=24).empty


def test_a_text_that_occurs_again_counts_once(tmp_path: Path) -> None:
    rows = {split: sentences("bank", "same", 8) for split in ("train", "validation", "test")}
    rows["test"] += sentences("bank", "other", 2)
    found = find_occurrences(build_context("elmo", build_task(tmp_path, rows)), k=3)
    assert len(found) == 10 and found["is_scored"].all()


def test_without_a_word_of_two_senses_the_row_says_so(tmp_path: Path) -> None:
    rows = {
        split: [(f"money vault {split} {n}", 1, "money") for n in range(4)]
        + [(f"river delta {split} {n}", 1, "river") for n in range(4)]
        for split in ("train", "validation", "test")
    }
    task = build_task(tmp_path, rows)
    output = tiny.evaluate_runs(
        build_context("elmo", task), [EvalRun("pretrained", METHOD.name)], tmp_path / "cache"
    )
    (row,) = output.rows
    assert row.status == "failed"
    assert "no word of the task stands in two senses" in row.reason[0].value


def test_one_run_answers_for_all_labels_and_seeds(task: TaskData) -> None:
    runs = list_runs(task.info, [METHOD], ("pretrained", "random"), (4, "all"), (0, 1))
    assert [*runs] == [EvalRun("pretrained", METHOD.name), EvalRun("random", METHOD.name)]


def test_nearest_are_those_with_the_largest_cosines_and_maps_keep_distances() -> None:
    rng = np.random.default_rng(3)
    vectors_ND = rng.standard_normal((20, 6))
    unit_ND = vectors_ND / np.linalg.norm(vectors_ND, axis=1, keepdims=True)
    cosines_NN = unit_ND @ unit_ND.T - 2 * np.eye(20)
    assert (find_nearest(vectors_ND, 4) == np.argsort(-cosines_NN, axis=1)[:, :4]).all()
    flat_ND = rng.standard_normal((20, 2)) @ rng.standard_normal((2, 6))
    flat_ND -= flat_ND.mean(0)
    places_N2 = principal_components(flat_ND)
    between_NN = np.linalg.norm(flat_ND[:, None] - flat_ND, axis=-1)
    assert np.linalg.norm(places_N2[:, None] - places_N2, axis=-1) == pytest.approx(between_NN)


@pytest.mark.parametrize("k", [0, -1])
def test_k_is_above_zero(k: int) -> None:
    with pytest.raises(ValueError, match="k is"):
        NeighboursMethod(k=k)
