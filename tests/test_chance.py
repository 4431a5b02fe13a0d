"""A lead must be above the chance level.

The chance level is that of the majority class or of a random answer, whichever scores higher.
"""

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from lineage.analysis.decision import decide
from lineage.config.data import Task
from lineage.report.decisions import summarize_decisions
from lineage.results import ResultRow
from lineage.tasks.base import load_kind
from tests.helpers import tiny
from tests.helpers.chance_study import TASK_KEYS, analyze_study, build_choices
from tests.helpers.study_rows import render_pages
from tests.helpers.tasks import build_table_task


@pytest.mark.parametrize(("first_in_train", "hardest"), [(0.55, "chance"), (0.3, "majority")])
def test_a_lead_among_choices_must_be_above_the_majority_and_above_chance(
    tmp_path: Path, first_in_train: float, hardest: str
) -> None:
    """The first choice is correct in 35 % of the test items.

    If it is also the most frequent one in train, the majority is below chance, else far above.
    """
    build_choices(1000, share=0.35, seed=2).to_csv(tmp_path / "test.csv", index=False)
    data = build_table_task(
        tmp_path,
        build_choices(100, share=first_in_train, seed=1),
        **TASK_KEYS,
        files={"train": "train.csv", "test": "test.csv"},
    )
    _, analysis = analyze_study(tmp_path / "results", data, accuracy=0.515)
    means = {score.system.model: score.mean for score in analysis.scores}
    assert means["chance"] == 0.5
    assert means["majority"] == pytest.approx(0.35 if hardest == "chance" else 0.65)
    (ranking,) = analysis.rankings
    assert not any(standing.above_chance for standing in ranking.standings)
    (decision,) = decide(analysis, {})
    assert decision.advice == "nothing above chance"
    answer = summarize_decisions(analysis, [decision])
    assert answer == "For the task small, nothing is shown to be above chance."
    html = render_pages(analysis)["html"]
    assert "dotted: chance" in html, "the page must name the chance line"


def test_chance_is_computed_in_every_fold(tmp_path: Path) -> None:
    data = build_table_task(tmp_path, build_choices(60, share=0.5, seed=1), **TASK_KEYS, folds=3)
    chance_cells = [
        (rows[0], predictions)
        for rows, predictions in tiny.evaluate_baselines(
            load_kind("multiple_choice"), data, finetune_seeds=(0, 1), tfidf_C=(1.0, 10.0)
        )
        if rows[0].model == "chance"
    ]
    assert [(row.finetune_seed, row.fold, row.value, row.reason) for row, _ in chance_cells] == [
        (s, f, 0.5, []) for s in (0, 1) for f in range(3)
    ]
    assert len({*pd.concat([predictions for _, predictions in chance_cells])["id"]}) == 60
    assert {*chance_cells[0][1]["label"]} == {"0", "1"}


def test_chance_predicts_each_label_equally_often(tmp_path: Path) -> None:
    """With three labels a third of the items is correct.

    A third of the items of every label gets each label, from which macro F1 follows.
    """
    frame = pd.DataFrame(
        {"text": [f"text {n}" for n in range(60)], "label": [0] * 30 + [1] * 20 + [2] * 10}
    )
    data = build_table_task(tmp_path, frame, folds=3, metric=["macro_f1", "accuracy"])
    chance_cells = [
        (rows, predictions)
        for rows, predictions in tiny.evaluate_baselines(load_kind("text_classification"), data)
        if rows[0].model == "chance"
    ]
    assert [[row.metric for row in rows] for rows, _ in chance_cells] == [
        ["macro_f1", "accuracy"]
    ] * 3
    assert sum(rows[0].num_examples for rows, _ in chance_cells) == 60
    for (f1, accuracy), predictions in chance_cells:
        shares = predictions["label"].value_counts(normalize=True)
        assert accuracy.value == pytest.approx(1 / 3)
        assert f1.value == pytest.approx(np.mean(2 * shares / (3 * shares + 1)))
        assert predictions["correct"].mean() == pytest.approx(f1.value)
        assert set(predictions["score"]) == {1 / 3}


@pytest.mark.parametrize(
    "keys", [{"folds": 3}, {"files": {"train": "train.csv", "test": "test.csv"}}]
)
def test_each_run_of_chance_has_the_rows_and_predictions_that_it_has_alone(
    tmp_path: Path, keys: dict[str, Any]
) -> None:
    frame = pd.DataFrame({"text": [f"text {n}" for n in range(60)], "label": np.arange(60) % 3})
    frame.assign(text="other " + frame["text"]).to_csv(tmp_path / "test.csv", index=False)
    data = build_table_task(tmp_path, frame, **keys)

    def evaluate_chance(**options: Any) -> list[tuple[list[ResultRow], pd.DataFrame]]:
        cells = tiny.evaluate_baselines(load_kind("text_classification"), data, **options)
        return [(rows, predictions) for rows, predictions in cells if rows[0].model == "chance"]

    together = evaluate_chance(finetune_seeds=(0, 1), label_counts=(12, "all"))
    alone = [
        cell
        for label_count in (12, "all")
        for seed in (0, 1)
        for cell in evaluate_chance(finetune_seeds=(seed,), label_counts=(label_count,))
    ]
    assert [rows for rows, _ in together] == [rows for rows, _ in alone]
    pd.testing.assert_frame_equal(
        pd.concat([predictions for _, predictions in together], ignore_index=True),
        pd.concat([predictions for _, predictions in alone], ignore_index=True),
    )


def test_only_labels_and_choices_have_a_chance_level(tmp_path: Path) -> None:
    data = build_table_task(
        tmp_path,
        pd.DataFrame({"text": [f"text {n}" for n in range(60)], "label": np.arange(60) / 7}),
        kind="text_regression",
        folds=3,
    )
    cells = tiny.evaluate_baselines(load_kind("text_regression"), data)
    assert {rows[0].model for rows, _ in cells} == {"majority", "tfidf"}


@pytest.mark.parametrize(("metric", "first_label_weight", "chance_is_shown"), [("accuracy", 1.0, True), ("accuracy", 0.0, False), ("accuracy", 0.5, False),
                                                          ("macro_f1", 0.5, True)])  # fmt: skip
def test_a_lead_over_the_majority_but_below_chance_is_not_significant(
    tmp_path: Path, metric: str, first_label_weight: float, chance_is_shown: bool
) -> None:
    """Chance is higher if train's most frequent label is rarer in the scored items.

    Otherwise, and with balanced labels, chance is not shown. In train 55 %, 45 % or 50 % of the items
    have the first label.
    """
    test_share = 0.35 if first_label_weight != 0.5 else 0.5
    build_choices(400, share=test_share, seed=2).to_csv(tmp_path / "test.csv", index=False)
    train = build_choices(100, share=0.5 + 0.1 * (first_label_weight - 0.5), seed=1)
    data = build_table_task(
        tmp_path, train, files={"train": "train.csv", "test": "test.csv"}, metric=[metric]
    )
    task = Task(
        kind="text_classification",
        text=("text",),
        label="label",
        metric=(metric,),
        files={"train": "train.csv"},
    )
    analysis = analyze_study(
        tmp_path / "results", data, accuracy=0.45, kind="text_classification", tasks={"small": task}
    )[1]
    means = {score.system.model: score.mean for score in analysis.scores}
    assert ("chance" in means) == chance_is_shown
    if chance_is_shown:
        assert means["chance"] == pytest.approx(
            0.5 if test_share == 0.5 or metric == "accuracy" else 0.49
        )
        assert means["majority"] < 0.45
        (ranking,) = analysis.rankings
        above_chance = {one.system.model: one.above_chance for one in ranking.standings}
        assert not above_chance["gpt"], "gpt is above the majority class, and below chance"
