"""What the page says of layers follows from planted effects, and nothing follows without one."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from lineage import artifacts, results
from lineage.analysis.records import Analysis
from lineage.report.section import ReportData
from lineage.report.sections.layers import build, describe_models
from lineage.results import LAYER_TRIAL, ResultRow
from tests.helpers.study_rows import GRID, Study, analyze

LAYER_GRID = replace(
    GRID, models=("gpt", "bert"), tasks=("sentiment",), adapt_models=(), adapt_tasks=()
)
NUM_ITEMS = 400


def add_layers(
    folder: Path,
    metric: str,
    right: dict[str, float],
    *,
    init: str = "pretrained",
    num_seeds: int = 3,
) -> None:
    """Add the results of a probe of each layer to those of gpt; `right` is its share of items."""
    stage = "evaluate-gpt-0-sentiment"
    rows = artifacts.read_table(folder / f"rows/{stage}.parquet")
    predictions = artifacts.read_table(folder / f"predictions/{stage}.parquet")
    added: list[ResultRow] = []
    answers = []
    rng = np.random.default_rng(7)
    for seed in range(num_seeds):
        level = rng.random(NUM_ITEMS)
        for layer, share in right.items():
            own: dict[str, Any] = {"model": "gpt", "family": "gpt", "init": init, "transfer": "frozen", "features": "layers", "head": "layers",
                                   "pretrain_seed": 0, "finetune_seed": seed, "label_count": "all", "task": "sentiment"}  # fmt: skip
            correct = (level < share + 0.02 * rng.standard_normal()).astype(float)
            common = own | {
                "kind": "text_classification",
                "layer": layer,
                "num_examples": NUM_ITEMS,
                "test_set": "sentiment",
                "train_examples": 600,
            }
            added.append(ResultRow(**common, metric=metric, value=float(correct.mean())))
            if layer != "mix":
                weight = 1 / (len(right) - 1)
                added.append(ResultRow(**common, metric="mix_weight", value=weight))
            table = pd.DataFrame({"id": [f"test-{n}" for n in range(NUM_ITEMS)], "group": "all", "label": "yes", "prediction": np.where(correct, "yes", "no"),
                                  "score": 0.5, "correct": correct})  # fmt: skip
            answers.append(table.assign(**own, adapt_text="none", recipe="none", fold=None, trial=f"{LAYER_TRIAL}{layer}",
                                        test_set="sentiment", split="test"))  # fmt: skip
    frame = results.sort_results(pd.concat([rows, results.results_frame(added)]))
    artifacts.write_table(folder / f"rows/{stage}.parquet", frame)
    integers = dict.fromkeys(results.SEED_COLUMNS, "Int64")
    merged = pd.concat([predictions, *[one[[*predictions]] for one in answers]])
    artifacts.write_table(folder / f"predictions/{stage}.parquet", merged.astype(integers))


def analyze_layers(tmp_path: Path, right: dict[str, float]) -> Analysis:
    folder = Study(tmp_path, grid=LAYER_GRID, items=NUM_ITEMS).write()
    add_layers(folder, "accuracy", right)
    add_layers(folder, "accuracy", dict.fromkeys(right, 0.55), init="random")
    return analyze(folder, LAYER_GRID)


def test_a_planted_effect_is_found_and_the_control_shows_none(tmp_path: Path) -> None:
    analysis = analyze_layers(tmp_path, {"0": 0.5, "1": 0.6, "2": 0.8, "mix": 0.8})
    pretrained, control = analysis.layer_curves
    assert (pretrained.init, control.init) == ("pretrained", "random")
    assert [layer.mean for layer in pretrained.layers] == pytest.approx([0.5, 0.6, 0.8], abs=0.03)
    assert pretrained.mix is not None and pretrained.center == pytest.approx(1.0)
    assert pretrained.top_gain is not None and pretrained.top_gain.verdict == "better"
    assert pretrained.top_gain.gain == pytest.approx(0.2, abs=0.03)
    assert control.top_gain is not None and control.top_gain.verdict != "better"
    (sentence,) = describe_models(analysis)
    assert sentence.startswith("In GPT more is read from the top than from layer 1: sentiment +")


def test_with_two_seeds_there_is_no_verdict(tmp_path: Path) -> None:
    folder = Study(tmp_path, grid=LAYER_GRID, items=NUM_ITEMS).write()
    add_layers(folder, "accuracy", {"0": 0.5, "1": 0.6, "2": 0.8}, num_seeds=2)
    analysis = analyze(folder, LAYER_GRID)
    (curve,) = analysis.layer_curves
    assert curve.top_gain is not None and curve.top_gain.verdict == "too few seeds"
    assert curve.top_gain.ci_low > 0, "for these models the effect is there"
    (sentence,) = describe_models(analysis)
    assert sentence.endswith("is not shown for GPT.")


def test_without_an_effect_nothing_is_said_to_be_shown(tmp_path: Path) -> None:
    analysis = analyze_layers(tmp_path, {"0": 0.6, "1": 0.6, "2": 0.6, "mix": 0.6})
    assert [*describe_models(analysis)] == [
        "That lower layers carry form and upper ones meaning is not shown for GPT."
    ]


def test_form_below_and_meaning_above_are_one_statement(tmp_path: Path) -> None:
    analysis = analyze_layers(tmp_path, {"0": 0.5, "1": 0.6, "2": 0.8})
    meaning, control = analysis.layer_curves
    assert meaning.top_gain is not None
    worse = replace(meaning.top_gain, gain=-0.1, ci_low=-0.15, ci_high=-0.05, verdict="worse")
    form = replace(meaning, task="tags", metric="token_accuracy", top_gain=worse)
    (sentence,) = describe_models(replace(analysis, layer_curves=(meaning, form, control)))
    assert sentence.startswith("In GPT lower layers carry form and upper ones meaning. Points")
    assert ": tags −10.0 (−15.0 to −5.0) and sentiment +" in sentence
    spans = replace(meaning, metric="span_f1")  # which may be of form
    (sentence,) = describe_models(replace(analysis, layer_curves=(spans, form, control)))
    assert sentence.startswith("In GPT form is read better from layer 1 than from the top: tags ")


def test_layers_are_in_no_ranking_and_no_comparison(tmp_path: Path) -> None:
    plain = analyze(Study(tmp_path / "plain", grid=LAYER_GRID, items=NUM_ITEMS).write(), LAYER_GRID)
    probed = analyze_layers(tmp_path / "probed", {"0": 0.5, "1": 0.99, "2": 0.99})
    assert probed.rankings == plain.rankings and probed.comparisons == plain.comparisons
    assert probed.scores == plain.scores and plain.layer_curves == ()


def test_the_section_shows_each_layer_of_a_task(tmp_path: Path) -> None:
    analysis = analyze_layers(tmp_path, {"0": 0.5, "1": 0.6, "2": 0.8, "mix": 0.8})
    section = build(ReportData(analysis, []))
    assert section is not None and section.title == "What does each layer know?"
    assert build(ReportData(replace(analysis, layer_curves=()), [])) is None
