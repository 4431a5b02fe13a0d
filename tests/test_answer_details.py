"""The answers of a task by label: classes, confusions and calibration, with planted answers."""

import dataclasses
import re
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from lineage import artifacts
from lineage.analysis.answers import calibrate, count_confusions, score_classes
from lineage.analysis.decision import decide
from lineage.analysis.records import Analysis, AnswerDetails, ClassScore
from lineage.report.answers import (
    choose_systems,
    describe_calibration,
    describe_classes,
    describe_confusions,
    list_answer_figures,
)
from lineage.report.charts import draw_confusion
from lineage.report.decisions import find_largest_decisions

LABELS = np.array(["a"] * 6 + ["b"] * 3 + ["c"], dtype=object)
ANSWERS = np.array(["a"] * 4 + ["b"] * 2 + ["b"] * 3 + ["a"], dtype=object)


def test_classes_have_the_f1_of_scikit_learn() -> None:
    metrics = pytest.importorskip("sklearn.metrics")
    expected = metrics.f1_score(LABELS, ANSWERS, labels=["a", "b", "c"], average=None)
    scores = score_classes(LABELS, ANSWERS)
    assert [scores[name][0] for name in "abc"] == [6, 3, 1]
    np.testing.assert_allclose([scores[name][1] for name in "abc"], expected)


def test_confusions_are_shares_of_each_label() -> None:
    shares = count_confusions(LABELS, ANSWERS, ["a", "b", "c"])
    np.testing.assert_allclose(shares, [[4 / 6, 2 / 6, 0], [0, 1, 0], [1, 0, 0]])
    assert describe_confusions(["a", "b", "c"], shares) == (
        "100 % of the items of c are called a, the largest such share."
    )
    right = count_confusions(LABELS, LABELS, ["a", "b", "c"])
    assert describe_confusions(["a", "b", "c"], right) == "No label is read as another."
    rare = describe_confusions(["a", "b", "c"], shares, {"c"})
    assert rare.endswith("of the items of a are called b, the largest such share.")


def test_long_labels_are_whole_above_their_columns() -> None:
    labels = ["billing question", "confirmation_of_receipt"]
    drawn = draw_confusion(labels, [[1.0, 0.0], [0.0, 1.0]], title="Answers", subtitle="%")
    names = re.findall(r"rotate\(-60\)..<text [^>]*>([^<]+)<", drawn)
    assert names == labels


@pytest.mark.parametrize(
    ("confidence", "sentence"),
    [
        (0.8, "The confidence of m can be read as a probability: it is off by 0.0 points."),
        (0.95, "The confidence of m is too high: it is off by 15.0 points on average."),
        (0.6, "The confidence of m is too low: it is off by 20.0 points on average."),
    ],
)
def test_calibration_tells_on_which_side_the_confidence_is(
    confidence: float, sentence: str
) -> None:
    is_right = np.tile([1.0, 1.0, 1.0, 1.0, 0.0], 8)
    calibration = calibrate(np.full(40, confidence), is_right)
    assert sum(one.share for one in calibration.bins) == pytest.approx(1)
    assert describe_calibration(calibration, name="m") == sentence


def test_the_weakest_label_is_named() -> None:
    classes = [ClassScore("x", 40.0, (0.9, 0.2)), ClassScore("y", 7.0, (0.6, 0.9))]
    assert describe_classes(classes, place=0, name="m") == (
        "m is weakest on label y: F1 60.0, with 7 in the test set."
    )
    assert "weakest on label x: F1 20.0" in describe_classes(classes, place=1, name="m")
    rare = ClassScore("z", 1.0, (0.0, 0.0))
    assert "weakest on label y" in describe_classes([*classes, rare], place=0, name="m")


def test_the_answers_of_a_study_are_those_of_its_predictions(
    analysis: Analysis, study_folder: Path
) -> None:
    details = {one.task: one for one in analysis.answer_details}
    assert "sense" in details
    own = details["sense"]
    ranking = next(
        one for one in analysis.rankings if (one.task, one.label_count) == ("sense", "all")
    )
    assert own.systems == tuple(one.system for one in ranking.standings)
    tables = [
        artifacts.read_table(path)
        for path in (study_folder / "predictions").glob("*-sense.parquet")
    ]
    table = pd.concat(tables)
    best = own.systems[0]
    rows = table[
        (table["model"] == best.model)
        & (table["init"] == best.init)
        & (table["transfer"] == best.transfer)
        & (table["head"] == best.head)
        & (table["label_count"] == "all")
        & (table["split"] == "test")
    ]
    scores = score_classes(rows["label"].to_numpy(object), rows["prediction"].to_numpy(object))
    found = {one.label: one.f1[0] for one in own.classes}
    assert found and found == {label: score for label, (_, score) in scores.items()}
    decision = find_largest_decisions(decide(analysis, {}))["sense"]
    drawn = list_answer_figures(analysis, decision)
    assert drawn and all("<svg" in one.svg and one.caption for one in drawn)


def test_the_figures_show_the_system_to_use_first(analysis: Analysis) -> None:
    details: AnswerDetails = next(one for one in analysis.answer_details if one.task == "sense")
    decision = next(
        one for one in decide(analysis, {}) if (one.task, one.label_count) == ("sense", "all")
    )
    places = choose_systems(details, decision)
    assert details.systems[places[0]] == decision.use.standing.system
    assert len({*places}) == len(places) <= 3
    other = dataclasses.replace(details, systems=details.systems[::-1])
    assert other.systems[choose_systems(other, decision)[0]] == decision.use.standing.system
