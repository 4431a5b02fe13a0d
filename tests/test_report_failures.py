"""What failed is told as what it is, and flatters or burdens nothing else: a pretraining of several, a seed of some, a fold."""

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from lineage import artifacts, results
from lineage.analysis import contamination
from lineage.analysis.build import build_results
from lineage.analysis.cells import ResultCell, System
from lineage.config.params import ReportParams
from lineage.report import overview, page, publication, sentences
from tests.study_rows import GRID, Study

THREE = dataclasses.replace(
    GRID, models=("gpt", "bert"), adapt_models=("gpt", "bert"), pretrain_seeds=(0, 1, 2)
)
FAILED = {"status": "failed", "reason": "the loss is nan", "value": None, "num_examples": 0}


def lose(folder: Path, stage: str, *, but: tuple[int, ...] = ()) -> None:
    """Let a stage's cells fail, but for those of these seeds; the twin trained nothing that could fail."""
    table = artifacts.read_table(folder / "rows" / f"{stage}.parquet")
    lost = (table["init"] != "random") & ~table["finetune_seed"].isin(but)
    kept = artifacts.read_table(folder / "predictions" / f"{stage}.parquet")
    found = results.results_frame(
        [
            results.ResultRow(**(row | (FAILED if bad else {})))
            for row, bad in zip(records(table), lost, strict=True)
        ]
    )
    artifacts.write_table(folder / "rows" / f"{stage}.parquet", found)
    artifacts.write_table(
        folder / "predictions" / f"{stage}.parquet",
        kept[(kept["init"] == "random") | kept["finetune_seed"].isin(but)],
    )


def records(table: pd.DataFrame) -> list[dict[str, Any]]:
    return [
        {str(k): None if pd.isna(v) else v for k, v in row.items()}
        for row in table.astype(object).to_dict("records")
    ]


def test_one_pretraining_of_three_that_failed_is_named_and_shares_no_mean(tmp_path: Path) -> None:
    folder = Study(tmp_path, grid=THREE, items=60).write()
    for stage in (
        "evaluate-bert-1-sentiment",
        "evaluate-bert-1-sense",
        "evaluate-bert-1-agreement",
        "evaluate_adapted-bert-1-sentiment",
    ):
        lose(folder, stage)
    budget = folder / "budgets/pretrain-bert-1.json"
    artifacts.write_json(
        budget, artifacts.read_json(budget) | {"text_bytes": 5, "status": "failed"}
    )
    for seed, read in enumerate(([0, 90], [], [0, 100])):
        artifacts.write_table(
            folder / f"curves/adapt-bert-{seed}-sentiment.parquet",
            pd.DataFrame({"text_bytes": read}, dtype="float64"),
        )
    tree = build_results(folder, THREE, ReportParams())[1]
    assert {(line["model"], *line["pretrain_seeds"]) for line in tree["failed"]} == {("bert", 1)}
    assert {line["model"]: line["text_bytes"] for line in tree["budget"]} == {
        "gpt": 4_000_000,
        "bert": 4_000_000,
    }
    assert {line["text_bytes"] for line in tree["adaptation"] if line["model"] == "bert"} == {95.0}
    md = page.render_report(tree, budget=[], provenance={"stages": []})["md"].split(
        "What has no value"
    )[-1]
    assert "| 0, 1, 2 of pretraining 1 |" in md and "| all of pretraining 1 |" in md
    digests = {
        seed: artifacts.file_digest(folder / f"curves/pretrain-bert-{seed}.parquet")
        for seed in (0, 1, 2)
    }
    sides = {f"pretrain@bert-{seed}": {"seconds": took, "peak_memory_bytes": 1.0, "curve_sha256": digests[seed]}
             for seed, took in enumerate((60.0, 1.0, 80.0))}  # fmt: skip
    costs = {
        line["model"]: line["seconds"]
        for line in publication.add_pretraining_costs(
            tree["budget"], sides, curves_dir=folder / "curves"
        )
    }
    assert costs == {"gpt": None, "bert": 70.0}
    for seed in (0, 2):
        budget = folder / f"budgets/pretrain-bert-{seed}.json"
        artifacts.write_json(budget, artifacts.read_json(budget) | {"status": "failed"})
    assert {
        line["model"] for line in build_results(folder, THREE, ReportParams())[1]["budget"]
    } == {"gpt", "bert"}, "what all took is told at least"


def test_what_leads_by_the_seeds_that_did_not_fail_alone_leads_nowhere(tmp_path: Path) -> None:
    """Seeds 1 and 2 of gpt failed; on the one that both have bert is better."""
    grid = dataclasses.replace(
        GRID,
        models=("gpt", "bert"),
        adapt_models=(),
        adapt_tasks=(),
        tasks=("sense",),
        label_counts=("all",),
    )
    folder = Study(tmp_path, grid=grid).write()
    lose(folder, "evaluate-gpt-0-sense", but=(0,))
    for variant, seeds in (("gpt", {0: 0.9}), ("bert", {0: 0.95, 1: 0.8, 2: 0.8})):
        for kind in ("rows", "predictions"):
            path = folder / kind / f"evaluate-{variant}-0-sense.parquet"
            table = artifacts.read_table(path)
            for seed, share in seeds.items():
                own = (
                    (table["finetune_seed"] == seed)
                    & (table["init"] == "pretrained")
                    & (table["split"] == "test")
                )
                if kind == "rows":
                    table.loc[own, "value"] = share
                else:
                    for _, some in table[own].groupby(["transfer"]):
                        right = np.arange(len(some)) < round(share * len(some))
                        table.loc[some.index, "correct"] = right.astype(float)
                        table.loc[some.index, "prediction"] = np.where(
                            right, some["label"], "other"
                        )
            artifacts.write_table(path, table)
    tree = build_results(folder, grid, ReportParams())[1]
    (asked,) = sentences.summarize_settings(tree)
    assert (
        asked["way"]["model"] == "gpt"
        and asked["behind"]
        and {one["verdict"] for one in asked["rivals"]} >= {"worse"}
    )
    assert not any(
        cell["leads"] for cell in overview.build_overview(tree)["lines"][0]["cells"] if cell
    )
    assert sentences.count_wins([asked]) == {} and "gpt leads" not in sentences.summarize(tree)
    assert (
        "on 1 what has the highest mean is worse than another on the repetitions of both"
        in sentences.summarize(tree)
    )


@pytest.mark.parametrize("kept", [True, False])
def test_a_repetition_of_which_a_fold_failed_counts_in_neither_column(kept: bool) -> None:
    way = System("gpt", "gpt", "pretrained", "none", "frozen", "mix", "linear", "none")
    cell = ResultCell(
        way,
        "sense",
        "text_classification",
        "all",
        "accuracy",
        100,
        10,
        {(0, 0): 0.8} | ({(0, 1): 0.2} if kept else {}),
    )
    common = dataclasses.asdict(way) | {"kind": "text_classification", "task": "sense", "test_set": "sense", "label_count": "all", "metric": "accuracy",
                                        "pretrain_seed": 0, "item_filter": "clean", "num_examples": 5}  # fmt: skip
    clean = results.results_frame(
        [
            results.ResultRow(**common, finetune_seed=seed, fold=fold, value=value)
            for seed, value in ((0, 0.8), (1, 0.2))
            for fold in (0, 1)
        ][: 4 if kept else 3]
    )
    ((line,),) = [one["lines"] for one in contamination.build_clean_score_tables(clean, [[cell]])]
    assert line["all"] == pytest.approx(line["clean"]) == pytest.approx(0.5 if kept else 0.8)
