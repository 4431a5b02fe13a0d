"""What the page says of the senses of words follows from planted effects, and nothing without one."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from lineage import artifacts, results
from lineage.analysis.neighbours import OccurrenceText, read_occurrences
from lineage.analysis.records import Analysis
from lineage.report.section import ReportData, Section
from lineage.report.sections.neighbours import build, describe_models
from lineage.results import LAYER_TRIAL
from tests.helpers.study_rows import GRID, Study, analyze

SENSE_GRID = replace(
    GRID, models=("gpt", "bert"), tasks=("sentiment",), adapt_models=(), adapt_tasks=()
)
NUM_WORDS, PLACES = 16, 20


def add_neighbours(
    folder: Path,
    model: str,
    precision: list[float],
    *,
    init: str = "pretrained",
    static: bool = False,
) -> None:
    """Add predictions of neighbours of a model, with this precision in each layer."""
    stage = f"evaluate-{model}-0-sentiment"
    path = folder / f"predictions/{stage}.parquet"
    predictions = artifacts.read_table(path)
    rng = np.random.default_rng(11)
    word = np.repeat(np.arange(NUM_WORDS), PLACES)
    of_word = rng.normal(0, 0.08, NUM_WORDS)[word]  # words differ
    ids = [f"test-{number}" for number in range(len(word))]
    tables = []
    for layer, share in enumerate(precision):
        right = rng.binomial(5, np.clip(share + of_word, 0, 1)) / 5
        correct = np.full(len(word), share) if static else right
        nearest = json.dumps([] if static else [["test-1", "a"], ["test-2", "b"]])
        tables.append(pd.DataFrame({"id": ids, "group": [f"word {n}" for n in word], "label": np.where(np.arange(len(word)) % 2, "a", "b"),
                                    "prediction": "a", "score": correct, "correct": correct, "trial": f"{LAYER_TRIAL}{layer}",
                                    "neighbours_chance": 0.5, "neighbours_nearest": nearest,
                                    "neighbours_x": rng.normal(size=len(word)), "neighbours_y": 0.0}))  # fmt: skip
    own: dict[str, Any] = {"model": model, "family": model, "init": init, "adapt_text": "none", "transfer": "zero_shot", "features": "none",
                           "head": "neighbours", "recipe": "none", "pretrain_seed": 0, "finetune_seed": None, "fold": None,
                           "label_count": "none", "task": "sentiment", "test_set": "sentiment", "split": "test"}  # fmt: skip
    merged = pd.concat([predictions, pd.concat(tables).assign(**own)])
    artifacts.write_table(path, merged.astype(dict.fromkeys(results.SEED_COLUMNS, "Int64")))


def analyze_neighbours(tmp_path: Path, precision: list[float]) -> Analysis:
    folder = Study(tmp_path, grid=SENSE_GRID).write()
    add_neighbours(folder, "gpt", precision)
    add_neighbours(folder, "gpt", [0.5, 0.5, 0.5], init="random")
    add_neighbours(folder, "bert", [0.5], static=True)
    return analyze(folder, SENSE_GRID)


def test_a_planted_sense_is_found_and_the_control_shows_none(tmp_path: Path) -> None:
    analysis = analyze_neighbours(tmp_path, [0.5, 0.7, 0.9])
    pretrained, control, static = analysis.sense_neighbours
    assert (pretrained.init, control.init, static.num_neighbours) == ("pretrained", "random", 0)
    assert (pretrained.num_words, pretrained.num_occurrences) == (NUM_WORDS, NUM_WORDS * PLACES)
    assert [one.precision for one in pretrained.layers] == pytest.approx([0.5, 0.7, 0.9], abs=0.05)
    verdicts = [one.gain.verdict for one in pretrained.layers if one.gain]
    assert verdicts[1:] == ["better", "better"] and verdicts[0] != "better"
    assert all(one.gain is None for one in control.layers)
    told_apart, static_sentence = describe_models(analysis)
    assert told_apart == "sentiment: GPT tells the senses of a word apart."
    assert static_sentence == (
        "sentiment: BERT has one vector for each word, so all its places are equally near, and "
        "senses cannot be told apart."
    )


def test_without_an_effect_nothing_is_said_to_be_shown(tmp_path: Path) -> None:
    first, _ = describe_models(analyze_neighbours(tmp_path, [0.5, 0.5, 0.5]))
    assert first == "sentiment: that senses are told apart is not shown for GPT."


def test_words_are_the_units_of_the_intervals(tmp_path: Path) -> None:
    """Places of a word are alike, so the interval is wider than that of as many independent ones."""
    pretrained, *_ = analyze_neighbours(tmp_path, [0.5, 0.5, 0.7]).sense_neighbours
    top = pretrained.layers[2]
    assert top.ci_low is not None and top.ci_high is not None
    independent = 1.96 * np.sqrt(0.7 * 0.3 / 5 / (NUM_WORDS * PLACES))
    assert (top.ci_high - top.ci_low) / 2 > 1.2 * independent


def test_neighbours_are_in_no_ranking_and_no_comparison(tmp_path: Path) -> None:
    plain = analyze(Study(tmp_path / "plain", grid=SENSE_GRID).write(), SENSE_GRID)
    probed = analyze_neighbours(tmp_path / "probed", [0.5, 0.7, 0.99])
    assert probed.rankings == plain.rankings and probed.comparisons == plain.comparisons
    assert probed.scores == plain.scores and plain.sense_neighbours == ()


def test_the_section_shows_texts_only_where_they_are_given(tmp_path: Path) -> None:
    analysis = analyze_neighbours(tmp_path, [0.5, 0.7, 0.9])
    texts = [
        OccurrenceText("sentiment", f"test-{n}", "at the", "bank", f"number {n}") for n in range(3)
    ]
    with_texts = build(ReportData(analysis, [], occurrences=texts))
    without = build(ReportData(analysis, []))
    assert isinstance(with_texts, Section) and isinstance(without, Section)
    assert "'better'" in str(with_texts.blocks), "gains over random weights have verdicts"
    assert "at the [bank] number 2" in str(with_texts.blocks)
    assert "bank" not in str(without.blocks) and "one word" in str(without.blocks)
    assert build(ReportData(replace(analysis, sense_neighbours=()), [])) is None
    assert read_occurrences(analysis, tasks_dir=tmp_path, show_text=False) == ()
