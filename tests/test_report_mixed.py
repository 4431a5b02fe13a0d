"""What the report says where several things come together: trials and ensembles, readers and single changes, pretrainings and lost seeds."""

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from flows.scheduler import count_failed_results
from lineage import artifacts, results
from lineage.analysis import build
from lineage.analysis.build import build_results, write_results_csv
from lineage.analysis.comparisons import (
    best_systems,
    plan_comparisons,
    plan_leader_comparisons,
    run_comparisons,
)
from lineage.config.params import ReportParams
from lineage.report import page, publication, sentences, view
from tests.study_rows import GRID, Study
from tests.test_comparisons import ITEMS, REPETITIONS, cell

SEEDS = {"ablation_of": {}, "pretrain_seeds": [0], "finetune_seeds": [0, 1, 2]}


def scores(rng: np.random.Generator, share: float) -> np.ndarray:
    return (rng.random((REPETITIONS, ITEMS)) < share).astype(float)


def test_a_single_change_is_compared_under_the_same_reader_alone() -> None:
    rng = np.random.default_rng(11)
    every = [cell(name, scores(rng, 0.6)) for name in ("gpt", "bare")]
    every += [
        dataclasses.replace(one, system=dataclasses.replace(one.system, head="bilstm"))
        for one in every
    ]
    asked = plan_comparisons(every, dataclasses.replace(GRID, ablation_of={"bare": "gpt"}))
    assert [(pair.comparison_type, pair.first.system.head, pair.second.system.head) for pair in asked] == [
        ("ablation", "linear", "linear"), ("ablation", "bilstm", "bilstm")]  # fmt: skip
    assert [one["comparisons_together"] for one in run_comparisons(asked)[0]] == [1, 1], (
        "two readers are two questions"
    )


def test_the_best_control_stands_beside_a_variant_of_any_name() -> None:
    rng = np.random.default_rng(12)
    every = [
        cell("control", scores(rng, 0.7)),
        cell("gpt", scores(rng, 0.8)),
        cell("tfidf", scores(rng, 0.6), init="none"),
    ]
    assert [one.system.model for one in best_systems(every)] == ["gpt", "control", "tfidf"]


def trial_rows(**over: Any) -> list[results.ResultRow]:
    common: dict[str, Any] = {"task": "mr", "kind": "text_classification", "metric": "accuracy", "value": 0.7, "num_examples": 10, "label_count": "100", "split": "test",
                              "train_examples": 100, "model": "gpt", "family": "gpt", "init": "pretrained", "transfer": "finetuned"}  # fmt: skip
    return [
        results.ResultRow(
            **common | over | ({"split": "validation"} if trial != "chosen" else {}), trial=trial
        )
        for trial in over.pop("trials")
    ]


def test_what_nothing_is_chosen_for_is_no_arm_that_was_tuned_less() -> None:
    alike = [*trial_rows(trials=["0", "1", "chosen"]),
             *trial_rows(trials=["0", "1", "chosen"], variant="tfidf", family="tfidf", init="none", transfer="none")]  # fmt: skip
    apart = [
        *trial_rows(trials=["chosen"], variant="duet", family=results.ENSEMBLE_FAMILY),
        *trial_rows(trials=["chosen"], kind="translation", task="de"),
    ]
    assert build._trial_counts(results.results_frame([*alike, *apart])) == {"least": 2, "most": 2}
    fewer = trial_rows(trials=["chosen"], variant="bert", family="bert")
    assert build._trial_counts(results.results_frame([*alike, *fewer])) == {"least": 1, "most": 2}


def test_a_trial_that_failed_beside_one_that_did_not_is_no_failed_cell(tmp_path: Path) -> None:
    failed = {"status": "failed", "reason": "the loss is nan", "value": None}
    lost = [dataclasses.replace(row, **failed) for row in trial_rows(trials=["0"])]
    for more, count in (
        ([], 0),
        (
            [
                dataclasses.replace(row, **failed)
                for row in trial_rows(trials=["chosen"], variant="bert")
            ],
            1,
        ),
    ):
        write_results_csv(
            tmp_path / "reports" / "results.csv",
            results.results_frame([*trial_rows(trials=["chosen"]), *lost, *more]),
        )
        assert count_failed_results(tmp_path) == count


def test_a_rival_that_lost_a_seed_is_told_so_whoever_leads() -> None:
    """TF-IDF has no pretraining, and the rival two, of which each has three seeds."""
    rng = np.random.default_rng(13)
    own = [cell(name, scores(rng, share)) for name, share in (("tfidf", 0.9), ("gpt", 0.4))]
    for name in ("scores", "values", "answers"):
        kept = getattr(own[1], name)
        setattr(
            own[0],
            name,
            {(None, seed): value for (_, seed), value in getattr(own[0], name).items()},
        )
        kept |= {(1, seed): value for (_, seed), value in kept.items()}
        kept.pop((1, 2))
    found, without = run_comparisons(plan_leader_comparisons(best_systems(own), own))
    grid = SEEDS | {"pretrain_seeds": [0, 1]}
    (asked,) = sentences.summarize_settings(
        {
            "cells": [one.to_record() for one in own],
            "comparisons": found,
            "not_compared": without,
            "grid": grid,
        }
    )
    assert ", on 5 of 6 repetitions)" in " ".join(sentences.describe_setting(asked, margin=0.02))


@pytest.mark.parametrize(
    ("value", "said"),
    [
        (999_400, "999 kB"),
        (999_700, "1 MB"),
        (999_960_000, "1 GB"),
        (999.6, "1 kB"),
        (12_340, "12.3 kB"),
    ],
)
def test_three_digits_are_rounded_before_their_prefix_is_chosen(value: float, said: str) -> None:
    assert sentences.format_si(value, "B") == said


def test_intervals_are_over_what_was_repeated(tmp_path: Path) -> None:
    grid = dataclasses.replace(
        GRID, tasks=("agreement",), pretrain_seeds=(0, 1), adapt_models=(), adapt_tasks=()
    )
    said = sentences.describe_intervals(
        build_results(Study(tmp_path, grid=grid).write(), grid, ReportParams())[1]
    )
    assert said.startswith("over examples and pretrainings at once") and "fine-tuning" not in said


def test_a_title_calls_equal_only_what_is(monkeypatch: pytest.MonkeyPatch) -> None:
    way = {"model": "gpt"}
    asked = [
        {"guessed": True, "alone": False, "behind": False, "level": [way], "way": way},
        {"guessed": False, "alone": True, "behind": False, "level": [way], "way": way},
    ]
    monkeypatch.setattr(sentences, "summarize_settings", lambda tree: asked)
    assert publication.format_run_name({}, pipeline="12345678") == "nobody led (12345678)"
    asked.append(
        {"guessed": False, "alone": False, "behind": False, "level": [way, way], "way": way}
    )
    assert publication.format_run_name({}, pipeline="12345678") == "equal at the top (12345678)"


def change(folder: Path, pattern: str, change_of: Any) -> None:
    for path in folder.glob(f"rows/{pattern}"):
        artifacts.write_table(path, change_of(artifacts.read_table(path)))


def test_adapted_cells_are_marked_on_a_second_test_set_and_partly_fallen_losses_are_said_to_be(
    tmp_path: Path,
) -> None:
    grid = dataclasses.replace(GRID, pretrain_seeds=(0, 1))
    folder = Study(tmp_path, grid=grid).write()

    def risen(table: pd.DataFrame) -> pd.DataFrame:
        held = (
            (table["test_set"] == results.HELDOUT_TEST_SET)
            & (table["model"] == "gpt")
            & (table["init"] == "adapted")
            & (table["pretrain_seed"] == 1)
        )
        return table.assign(value=table["value"].where(~held, 9.0))

    change(folder, "evaluate_adapted-gpt-*.parquet", risen)
    tree = build_results(folder, grid, ReportParams())[1]
    (line,) = [line for line in view.build_adaptation_table(tree) if line["model"] == "gpt"]
    assert (line["outcome"], line["marked"]) == ("† fell in 1 of 2 pretrainings", True)
    (cell_of_gpt,) = [
        c
        for c in tree["cells"]
        if (c["model"], c["init"], c["transfer"], c["label_count"])
        == ("gpt", "adapted", "finetuned", "100")
    ]
    for task in ("sentiment", "sentiment on other"):
        assert view._table_line(tree, cell_of_gpt | {"task": task})["head"] == "adapted †, tuned"


@pytest.mark.parametrize(
    ("status", "said"), [("failed", "1 seed failed"), ("not_applicable", "1 seed not applicable")]
)
def test_a_lost_seed_is_told_by_its_status_on_both_pages(
    status: str, said: str, tmp_path: Path
) -> None:
    folder = Study(tmp_path, items=40).write()

    def lost(table: pd.DataFrame) -> pd.DataFrame:
        one = (
            (table["init"] == "pretrained")
            & (table["transfer"] == "finetuned")
            & (table["label_count"] == "100")
            & (table["finetune_seed"] == 1)
        )
        one &= table["split"] == "test"
        return table.assign(
            value=table["value"].mask(one),
            status=table["status"].mask(one, status),
            reason=table["reason"].mask(one, "why"),
        )

    change(folder, "evaluate-gpt-0-sentiment.parquet", lost)
    tree = build_results(folder, GRID, ReportParams())[1]
    pages = page.render_report(tree, budget=[], provenance={"stages": []})
    assert f"; {said} |" in pages["md"] and f'title="why">{said}<' in pages["html"]
