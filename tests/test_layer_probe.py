"""A probe of each layer finds what was planted there, and nothing where nothing is."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from lineage.data.task_data import TaskData
from lineage.evaluation.evaluate import list_kept_systems
from lineage.methods.encoder import EncoderUnderTest, EvalContext, EvalRun
from lineage.methods.layer_probe import LayerProbeMethod
from lineage.methods.stored_features import StoredFeatures
from lineage.methods.trials import Trial
from lineage.results import LAYER_TRIAL, ResultRow, results_frame
from tests.helpers import tiny
from tests.helpers.tasks import build_task_items, write_jsonl

NUM_WORDS = 60
TAGS = ("NOUN", "VERB", "ADJ")
PROBE = LayerProbeMethod(trials=(Trial(l2=0.0001), Trial(l2=0.01)))


@pytest.fixture(scope="module")
def tags(tmp_path_factory: pytest.TempPathFactory) -> TaskData:
    """Return a task whose tags have nothing to do with the words."""
    folder = tmp_path_factory.mktemp("tags")
    rng = np.random.default_rng(0)
    for split, count in (("train", 120), ("validation", 40), ("test", 60)):
        rows = [
            {
                "tokens": [f"word{number}" for number in rng.integers(NUM_WORDS, size=6)],
                "label": [TAGS[number] for number in rng.integers(3, size=6)],
            }
            for _ in range(count)
        ]
        write_jsonl(folder / f"{split}.jsonl", rows)
    files = {split: f"{split}.jsonl" for split in ("train", "validation", "test")}
    block = {"kind": "token_classification", "files": files, "tokens": "tokens", "label": "label"}
    items = build_task_items(folder, block | {"metric": ["token_accuracy"]}, name="tags")
    return TaskData(items.info, items.splits)


def build_context(task: TaskData) -> EvalContext:
    settings = replace(tiny.model_config("gpt").evaluate, layer_probe=PROBE)
    return tiny.eval_context("gpt", task, settings)


def plant_layers(table: pd.DataFrame) -> StoredFeatures:
    """Return the word in layer 0, its tag in layer 1, and nothing in layer 2."""
    words = np.concatenate([[int(word[4:]) for word in one] for one in table["tokens"]])
    tags = np.concatenate([np.asarray(one) for one in table["label"]])
    rng = np.random.default_rng(len(words))
    features = 0.1 * rng.standard_normal((len(words), 3, NUM_WORDS))
    features[np.arange(len(words)), 0, words] += 1
    features[np.arange(len(words)), 1, tags] += 1
    return StoredFeatures.wrap(features)


def run_probe(task: TaskData, folder: Path) -> tuple[list[ResultRow], pd.DataFrame]:
    output = tiny.evaluate_runs(
        build_context(task), [EvalRun("pretrained", "layer_probe", "all", 0)], folder
    )
    return output.rows, output.predictions


def test_each_layer_has_what_was_planted_in_it(
    tags: TaskData, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    planted = {name: plant_layers(table) for name, table in tags.splits.items()}
    monkeypatch.setattr(EncoderUnderTest, "share", lambda *_: planted)
    rows, predictions = run_probe(tags, tmp_path / "cache")
    table = results_frame(rows).query("split == 'test'")
    values = table.pivot_table(index="layer", columns="metric", values="value")
    accuracy = values["token_accuracy"]
    assert accuracy["1"] > 0.95 and accuracy["mix"] > 0.95
    assert accuracy["0"] < 0.5 and accuracy["2"] < 0.5, "the tags do not follow from the words"
    assert values["mix_weight"].dropna().sum() == pytest.approx(1.0)
    assert values["mix_weight"].idxmax() == "1"
    # The words are in layer 0, so the random tag of each word is learned from it, and from no other.
    assert values["selectivity"]["0"] < -0.4 and values["selectivity"]["1"] > 0.5
    assert abs(values["selectivity"]["2"]) < 0.15
    assert {*predictions["trial"]} == {f"{LAYER_TRIAL}{layer}" for layer in ("0", "1", "2", "mix")}


def test_probes_of_layers_are_no_systems(tags: TaskData, tmp_path: Path) -> None:
    """The rows of a real model name their layers, and nothing of it is kept."""
    context = build_context(tags)
    runs = [EvalRun("random", name, "all", 0) for name in ("linear_probe", "layer_probe")]
    output = tiny.evaluate_runs(context, runs, tmp_path / "cache")
    by_head: dict[str, set[str]] = {}
    for row in output.rows:
        if row.trial == "chosen":
            by_head.setdefault(row.head, set()).add(row.layer)
    num_layers = len(tiny.model("gpt").hidden_sizes())
    assert by_head == {"linear": {"none"}, "layers": {*map(str, range(num_layers)), "mix"}}
    (kept,) = list_kept_systems(context, runs, output.rows, tmp_path / "cache")
    assert kept.is_dir(), "the linear probe"


def test_a_model_without_the_block_has_no_such_runs(tags: TaskData) -> None:
    settings: Any = tiny.model_config("gpt").evaluate
    assert "layer_probe" not in settings.methods
    assert "layer_probe" in replace(settings, layer_probe=PROBE).methods
