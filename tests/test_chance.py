"""Guessing: what knows nothing of the items, that a lead must stand above. It is the commonest answer, or a random one, whichever gets more."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from lineage.analysis.build import build_results
from lineage.analysis.disagreements import find_disagreements
from lineage.analysis.records import Analysis
from lineage.analysis.settings import summarize_settings
from lineage.artifacts import write_table
from lineage.config.data import Task
from lineage.config.params import Grid, ReportParams
from lineage.data.dataset_stats import compute_dataset_stats, write_dataset_stats
from lineage.data.task_data import TaskData
from lineage.evaluation import baselines
from lineage.evaluation.baselines import build_predictions_table, evaluate_baselines
from lineage.report import page, sentences
from lineage.results import ResultRow, results_frame
from lineage.tasks.base import load_kind
from tests.study_rows import overlap
from tests.test_folds import made

KEYS: dict[str, Any] = {"kind": "multiple_choice", "choices": ["one", "two"], "label": "label"}
GRID = Grid(("gpt",), ("small",), (0,), (), (), (0, 1), ("all",))


def choices(count: int, *, share: float, seed: int) -> pd.DataFrame:
    """Two endings of which nothing tells the right one; the first is right in this share."""
    label = (np.arange(count) >= share * count).astype(int)
    return pd.DataFrame(
        {
            "text": [f"text {seed} {n}" for n in range(count)],
            "one": "it was",
            "two": "it is",
            "label": label,
        }
    )


def study(
    tmp_path: Path,
    data: TaskData,
    *,
    right: float,
    kind: str = "multiple_choice",
    tasks: dict[str, Task] | None = None,
) -> tuple[Path, Analysis]:
    """The report's tree of the controls beside a family that is right in this share of items, whatever the seed."""
    cells = [
        *evaluate_baselines(
            load_kind(kind),
            data,
            split="test",
            finetune_seeds=GRID.finetune_seeds,
            label_counts=GRID.label_counts,
        )
    ]
    rows, predictions = (
        [row for own, _ in cells for row in own],
        build_predictions_table([own for _, own in cells]),
    )
    family = predictions[predictions["model"] == "majority"].copy()
    family[["model", "family", "init", "transfer", "pretrain_seed"]] = [
        "gpt",
        "gpt",
        "pretrained",
        "frozen",
        0,
    ]
    number = family["id"].str.extract(r"(\d+)$", expand=False).astype(int)
    family["correct"] = (number * 7919 % 1000 < 1000 * right).astype(float)
    names = sorted(
        {*family["group"]} - {"all"}
    )  # whose rows are the family's own, whatever the controls have
    said = [
        replace(row, group=name)
        for row in rows
        if row.model == "majority" and row.group == "all"
        for name in ("all", *names)
    ]
    told = {
        "model": "gpt",
        "family": "gpt",
        "init": "pretrained",
        "transfer": "frozen",
        "pretrain_seed": 0,
        "value": family["correct"].mean(),
    }
    of_family = results_frame(said).assign(**told)
    for stage, own_rows, own in (
        ("evaluate-gpt-0-small", of_family, family),
        ("baselines-small", results_frame(rows), predictions),
    ):
        write_table(tmp_path / f"rows/{stage}.parquet", own_rows)
        write_table(tmp_path / f"predictions/{stage}.parquet", own)
    overlap(tmp_path, "small", predictions["id"].unique())
    stats = compute_dataset_stats(data, GRID.finetune_seeds)
    write_dataset_stats(tmp_path / "statistics/baselines-small.json", stats)
    return tmp_path, build_results(tmp_path, GRID, ReportParams(), tasks)[1]


@pytest.mark.parametrize(("first_in_train", "hardest"), [(0.55, "chance"), (0.3, "majority")])
def test_a_lead_among_choices_stands_above_the_commonest_place_and_above_chance(
    tmp_path: Path, first_in_train: float, hardest: str
) -> None:
    """Of the test items 35 % have the first place right: who learned to say it is below chance, who learned the second far above."""
    choices(1000, share=0.35, seed=2).to_csv(tmp_path / "test.csv", index=False)
    data = made(
        tmp_path,
        choices(100, share=first_in_train, seed=1),
        **KEYS,
        files={"train": "train.csv", "test": "test.csv"},
    )
    results, analysis = study(tmp_path / "results", data, right=0.515)
    means = {score.system.model: score.mean for score in analysis.scores}
    assert means["chance"] == 0.5 and means["majority"] == pytest.approx(
        0.35 if hardest == "chance" else 0.65
    )
    (setting,) = summarize_settings(analysis)
    hardest_to_beat = setting.vs_chance.second.model if setting.vs_chance else ""
    assert hardest in (hardest_to_beat, setting.leader.model)
    assert setting.leader_at_chance
    assert "no lead is significantly above chance" in sentences.summarize(analysis)
    found = find_disagreements(analysis, results_dir=results, tasks_dir=tmp_path, show_text=False)
    predictions = [one for table in found for item in table.items for one in item.predictions]
    has_ties = any((one.prediction, one.accuracy) == ("tie", 0.5) for one in predictions)
    assert bool(predictions) == (hardest == "chance") == has_ties
    html = page.render_report(analysis)["html"]
    assert "C chance, a random answer" in html, "the line of the figures is named"


def test_what_is_better_than_both_leads(tmp_path: Path) -> None:
    choices(1000, share=0.35, seed=2).to_csv(tmp_path / "test.csv", index=False)
    data = made(
        tmp_path,
        choices(100, share=0.55, seed=1),
        **KEYS,
        files={"train": "train.csv", "test": "test.csv"},
    )
    (setting,) = summarize_settings(study(tmp_path / "results", data, right=0.9)[1])
    assert setting.leader.model == "gpt" and not setting.leader_at_chance


def test_chance_is_computed_in_every_fold(tmp_path: Path) -> None:
    data = made(tmp_path, choices(60, share=0.5, seed=1), **KEYS, folds=3)
    asked = {
        "split": "test",
        "finetune_seeds": (0, 1),
        "label_counts": ("all",),
        "tfidf_C": (1.0, 10.0),
    }
    own = [
        (rows[0], said)
        for rows, said in evaluate_baselines(load_kind("multiple_choice"), data, **asked)
        if rows[0].model == "chance"
    ]
    assert [(row.finetune_seed, row.fold, row.value, row.reason) for row, _ in own] == [
        (s, f, 0.5, ()) for s in (0, 1) for f in range(3)
    ]
    assert len({*pd.concat([said for _, said in own])["id"]}) == 60 and {*own[0][1]["label"]} == {
        "0",
        "1",
    }


def test_chance_among_labels_answers_once_with_each(tmp_path: Path) -> None:
    """Of three labels a third is right; one in three of every label is said, from which macro F1 follows."""
    frame = pd.DataFrame(
        {"text": [f"text {n}" for n in range(60)], "label": [0] * 30 + [1] * 20 + [2] * 10}
    )
    data = made(tmp_path, frame, folds=3, metric=["macro_f1", "accuracy"])
    asked = {"split": "test", "finetune_seeds": (0,), "label_counts": ("all",)}
    own = [
        (rows, said)
        for rows, said in evaluate_baselines(load_kind("text_classification"), data, **asked)
        if rows[0].model == "chance"
    ]
    assert [[row.metric for row in rows] for rows, _ in own] == [
        ["macro_f1", "accuracy"]
    ] * 3 and sum(rows[0].num_examples for rows, _ in own) == 60
    for (f1, right), said in own:
        shares = said["label"].value_counts(normalize=True)
        assert right.value == pytest.approx(1 / 3) and f1.value == pytest.approx(
            np.mean(2 * shares / (3 * shares + 1))
        )
        assert said["correct"].mean() == pytest.approx(f1.value) and set(said["score"]) == {1 / 3}


@pytest.mark.parametrize(
    ("keys", "times"),
    [({"folds": 3}, 6), ({"files": {"train": "train.csv", "test": "test.csv"}}, 1)],
)
def test_chance_is_computed_once_for_all_numbers_of_labels(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, keys: dict[str, Any], times: int
) -> None:
    """And without folds for all seeds; each cell has the rows and predictions that it has alone."""
    frame = pd.DataFrame({"text": [f"text {n}" for n in range(60)], "label": np.arange(60) % 3})
    frame.assign(text="other " + frame["text"]).to_csv(tmp_path / "test.csv", index=False)
    data, guessed = made(tmp_path, frame, **keys), baselines._compute_chance_level
    calls: list[Any] = []
    monkeypatch.setattr(
        baselines, "_compute_chance_level", lambda *given: calls.append(given) or guessed(*given)
    )

    def chances(**asked: Any) -> list[tuple[list[ResultRow], pd.DataFrame]]:
        found = evaluate_baselines(load_kind("text_classification"), data, split="test", **asked)
        return [(rows, said) for rows, said in found if rows[0].model == "chance"]

    together = chances(finetune_seeds=(0, 1), label_counts=(12, "all"))
    assert len(calls) == times
    alone = [
        one
        for labels in (12, "all")
        for seed in (0, 1)
        for one in chances(finetune_seeds=(seed,), label_counts=(labels,))
    ]
    assert [rows for rows, _ in together] == [rows for rows, _ in alone]
    pd.testing.assert_frame_equal(
        pd.concat([said for _, said in together]), pd.concat([said for _, said in alone])
    )


def test_only_labels_and_choices_have_a_chance_level(tmp_path: Path) -> None:
    data = made(
        tmp_path,
        pd.DataFrame({"text": [f"text {n}" for n in range(60)], "label": np.arange(60) / 7}),
        kind="text_regression",
        folds=3,
    )
    cells = evaluate_baselines(
        load_kind("text_regression"), data, split="test", finetune_seeds=(0,), label_counts=("all",)
    )
    assert {rows[0].model for rows, _ in cells} == {"majority", "tfidf"}


@pytest.mark.parametrize(("metric", "learned", "shown"), [("accuracy", 1.0, True), ("accuracy", 0.0, False), ("accuracy", 0.5, False),
                                                          ("macro_f1", 0.5, True)])  # fmt: skip
def test_a_lead_over_the_commonest_label_alone_is_none(
    tmp_path: Path, metric: str, learned: float, shown: bool
) -> None:
    """Where train's commonest label is the rarer one of what is scored, chance gets more. Elsewhere, and of balanced labels, it is not shown."""
    tested = 0.35 if learned != 0.5 else 0.5
    choices(400, share=tested, seed=2).to_csv(tmp_path / "test.csv", index=False)
    train = choices(100, share=0.5 + 0.1 * (learned - 0.5), seed=1)
    data = made(tmp_path, train, files={"train": "train.csv", "test": "test.csv"}, metric=[metric])
    task = Task(
        kind="text_classification",
        text=("text",),
        label="label",
        metric=(metric,),
        files={"train": "train.csv"},
    )
    analysis = study(
        tmp_path / "results", data, right=0.45, kind="text_classification", tasks={"small": task}
    )[1]
    means = {score.system.model: score.mean for score in analysis.scores}
    assert ("chance" in means) == shown
    if shown:
        assert (
            means["chance"] == pytest.approx(0.5 if tested == 0.5 or metric == "accuracy" else 0.49)
            and means["majority"] < 0.45
        )
        (setting,) = summarize_settings(analysis)
        assert setting.leader_at_chance, "gpt is above the majority class, and below chance"
