"""Pretraining saves epochs of learning where that is planted, and none where it is not."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from lineage import artifacts
from lineage.analysis.records import Analysis, ClaimFinding
from lineage.analysis.saved_epochs import measure_saved_epochs
from lineage.config.params import Grid
from lineage.report.sections.claims import describe_evidence
from lineage.results import CURVE_COLUMNS
from tests.helpers.study_rows import SENSE_GRID, Study, analyze

CLAIM = "Pretraining saves epochs of learning from labels."
MODELS_GRID = replace(SENSE_GRID, label_counts=("all",))
EPOCHS = 20


def write_curve(
    folder: Path, model: str, *, rate: float, noise: float = 0.02, grid: Grid = MODELS_GRID
) -> None:
    """Write the learning curves of a model: pretrained weights learn this much faster."""
    rng = np.random.default_rng(len(model))
    tables = []
    for init, speed in (("random", 1.0), ("pretrained", rate)):
        for seed in grid.finetune_seeds:
            epochs = np.arange(1, EPOCHS + 1)
            scores = 0.7 - 0.4 * np.exp(-speed * epochs / 5) + noise * rng.random(EPOCHS)
            tables.append(
                pd.DataFrame(
                    {
                        "model": model, "family": model, "init": init, "adapt_text": "none", "transfer": "finetuned", "features": "last", "head": "linear",
                        "recipe": "discriminative+slanted+gradual", "pretrain_seed": 0, "finetune_seed": seed, "fold": None, "trial": "chosen",
                        "label_count": "all", "task": "sense", "step": epochs * 10, "epoch": epochs.astype(float), "train_loss": 1.0, "validation_loss": 1.0,
                        "metric": "accuracy", "validation_score": scores, "is_kept": scores == scores.max(),
                    }
                )
            )  # fmt: skip
    table = pd.concat(tables)[[*CURVE_COLUMNS]].astype({"fold": "Int64"})
    artifacts.write_table(folder / f"curves/evaluate-{model}-0-sense.parquet", table)


def analyze_curves(folder: Path, *, rate: float, grid: Grid = MODELS_GRID) -> Analysis:
    Study(folder, grid=grid).write()
    for model in grid.models:
        write_curve(folder, model, rate=rate, grid=grid)
    return analyze(folder, grid)


def find_claim(analysis: Analysis) -> ClaimFinding:
    (finding,) = (one for one in analysis.claims if one.text == CLAIM)
    return finding


def test_a_planted_speed_up_is_found(tmp_path: Path) -> None:
    finding = find_claim(analyze_curves(tmp_path, rate=6.0))
    assert finding.verdict == "supported" and len(finding.comparisons) == len(MODELS_GRID.models)
    assert all(0.5 < one.difference < 1 for one in finding.comparisons)
    assert "% of the epochs" in describe_evidence(finding)


def test_nothing_is_found_where_both_learn_at_the_same_rate(tmp_path: Path) -> None:
    assert find_claim(analyze_curves(tmp_path, rate=1.0)).verdict == "not shown"


def test_slower_learning_contradicts_the_claim(tmp_path: Path) -> None:
    finding = find_claim(analyze_curves(tmp_path, rate=0.05))
    assert finding.verdict == "contradicted"
    assert all(-1 < one.difference < -0.5 for one in finding.comparisons)


@pytest.mark.parametrize(("rate", "saved"), [(6.0, (20 - 4) / 20), (1 / 4, (5 - 20) / 20)])
def test_epochs_are_counted_until_both_are_as_good(
    tmp_path: Path, rate: float, saved: float
) -> None:
    """Without noise, all are best after the last epoch; random weights have 0.7 - 0.4 exp(-4) there.

    The faster ones have that after 20 / 6 epochs, so 4. The slower ones have 0.7 - 0.4 exp(-1)
    there, which random weights have after 5.
    """
    Study(tmp_path, grid=MODELS_GRID).write()
    write_curve(tmp_path, "gpt", rate=rate, noise=0.0)
    (found,) = measure_saved_epochs(tmp_path, MODELS_GRID)
    assert found.shares_R.tolist() == pytest.approx([saved] * 3)
    assert found.interval == pytest.approx(1 / EPOCHS)


def test_a_curve_without_a_score_says_nothing(tmp_path: Path) -> None:
    """A correlation of constant predictions is none."""
    Study(tmp_path, grid=MODELS_GRID).write()
    write_curve(tmp_path, "gpt", rate=6.0)
    path = tmp_path / "curves/evaluate-gpt-0-sense.parquet"
    table = artifacts.read_table(path)
    table.loc[table["init"] == "random", "validation_score"] = np.nan
    artifacts.write_table(path, table)
    assert measure_saved_epochs(tmp_path, MODELS_GRID) == []


def test_two_seeds_say_nothing(tmp_path: Path) -> None:
    grid = replace(MODELS_GRID, finetune_seeds=(0, 1))
    analysis = analyze_curves(tmp_path, rate=6.0, grid=grid)
    assert CLAIM not in {one.text for one in analysis.claims}
