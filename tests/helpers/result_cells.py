"""Results of systems with planted scores, and what the analysis decides from them."""

import dataclasses
from typing import Any

import numpy as np
import pandas as pd

from lineage.analysis.cells import ResultCell
from lineage.analysis.decision import Costs, Decision, decide
from lineage.analysis.ranking import rank_setting
from lineage.analysis.records import Analysis, Comparison, System
from tests.helpers.study_rows import GRID, build_analysis

NUM_ITEMS = 600


def build_cell(
    model: str,
    scores: np.ndarray,
    *,
    family: str = "",
    metric: str = "accuracy",
    init: str = "pretrained",
) -> ResultCell:
    """Return the result of a system with these (R, N) scores."""
    system = System(
        model,
        family or model,
        "none" if model in ("majority", "chance", "tfidf") else init,
        "none",
        "finetuned",
        "last",
        "linear",
        "none",
    )
    item_scores = {
        (0, seed): pd.Series(row, index=[f"test-{i:03d}" for i in range(len(row))])
        for seed, row in enumerate(scores)
    }
    values = {seeds: float(scores_of_seed.mean()) for seeds, scores_of_seed in item_scores.items()}
    hashes = {seeds: hash(tuple(scores_of_seed)) for seeds, scores_of_seed in item_scores.items()}
    return ResultCell(
        system,
        "sense",
        "text_classification",
        "100",
        metric,
        100,
        scores.shape[1],
        values,
        [0.5] * len(scores),
        item_scores,
        hashes,
    )


def build_cells(
    seed: int = 0, *, runs: int = 3, num_items: int = NUM_ITEMS, **shares: float
) -> list[ResultCell]:
    """Return a cell per model that is correct in this share of items; items differ in difficulty."""
    rng = np.random.default_rng(seed)
    difficulty_N = rng.random(num_items)
    cells = []
    for name, share in shares.items():
        noise_RN = 0.3 * rng.standard_normal((runs, num_items))
        rank_RN = np.argsort(np.argsort(difficulty_N + noise_RN, axis=1), axis=1)
        cell = build_cell(name, (rank_RN < share * num_items).astype(float))
        if name == "tfidf":
            cell.system = dataclasses.replace(cell.system, transfer="none", head="none")
        cells.append(cell)
    return cells


def compare_on(task: str, model: str, verdict: str, *, init: str = "pretrained") -> Comparison:
    """Return a comparison of a zero-shot system with the 5-gram model."""
    first = System(model, model, init, "none", "zero_shot", "none", "none", "none")
    second = System("kneser_ney", "kneser_ney", *["none"] * 6)
    return Comparison(
        "kneser_ney",
        task,
        "none",
        "accuracy",
        first,
        second,
        0.1,
        0.0,
        0.2,
        0.05,
        0.05,
        1,
        400,
        verdict,
    )  # type: ignore[arg-type]


def analyze_cells(cells: list[ResultCell], **fields: Any) -> Analysis:
    rankings = tuple(rank_setting(cells, []))
    grid = dataclasses.replace(GRID, models=("elmo", "gpt", "bert", "minilm"))
    return build_analysis(cells, grid=grid, rankings=rankings, **fields)


def decide_one(cells: list[ResultCell], costs: Costs | None = None, **fields: Any) -> Decision:
    (decision,) = decide(analyze_cells(cells, **fields), costs or {})
    return decision
