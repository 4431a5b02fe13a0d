"""A run is summarized for those who did not watch it: the decisions, and what has changed."""

from dataclasses import replace
from pathlib import Path

import pytest

from lineage import artifacts
from lineage.analysis.decision import Decision, decide
from lineage.analysis.records import Analysis, Setting
from lineage.report.publication import decision_records
from lineage.report.run_summary import (
    NOTHING,
    KnownUse,
    RunSummary,
    build_run_summary,
    find_changes,
    keep_pipeline_changes,
    read_known_uses,
    write_run_summary,
)

REPORT = Path("/home/me/tickets/reports/comparison.html")


@pytest.fixture(scope="module")
def decisions(analysis: Analysis) -> list[Decision]:
    return decide(analysis, {})


@pytest.fixture
def before(tmp_path: Path, decisions: list[Decision]) -> dict[Setting, KnownUse]:
    artifacts.write_json(tmp_path / "decisions.json", decision_records(decisions))
    return read_known_uses(tmp_path / "decisions.json")


def summarize(
    analysis: Analysis, decisions: list[Decision], before: dict[Setting, KnownUse]
) -> RunSummary:
    return build_run_summary(
        analysis,
        decisions,
        changes=find_changes(before, decisions),
        pipeline="p1",
        pipeline_changes=["elmo: new"],
        report=REPORT,
        mlflow_experiment_id="1",
        mlflow_run_id="a1",
    )


def test_the_same_results_again_are_no_change(
    analysis: Analysis, decisions: list[Decision], before: dict[Setting, KnownUse]
) -> None:
    assert set(before) == {one.setting for one in decisions}
    changes = find_changes(before, decisions)
    assert changes.decisions == changes.scores == ()
    text = summarize(analysis, decisions, before).decision
    assert "Nothing has changed." in text and str(REPORT) in text
    assert text.count(": Use ") + text.count(": The highest on grammar ") == len(decisions)
    assert "This is the first run." in summarize(analysis, decisions, {}).decision


def test_another_system_and_another_score_are_told_apart(
    analysis: Analysis, decisions: list[Decision], before: dict[Setting, KnownUse]
) -> None:
    first, second, third, *_ = decisions
    old = before | {
        first.setting: KnownUse("TF-IDF", 0.5),
        second.setting: replace(before[second.setting], mean=0.25),
        Setting("gone", "100"): KnownUse("TF-IDF", 0.5),
    }
    del old[third.setting]
    changes = find_changes(old, decisions)
    (change,) = changes.decisions
    assert change.startswith(f"{first.task}, ") and change.endswith("instead of TF-IDF (50.0 %)")
    assert changes.scores[0].endswith(" %, before 25.0 %")
    assert [one.rpartition(": ")[2] for one in changes.scores[1:]] == ["new", "gone"]
    text = summarize(analysis, decisions, old).decision
    for one in changes.sentences:
        assert f"- {one}\n" in text


def test_a_system_that_is_no_longer_above_chance_is_another_decision(
    decisions: list[Decision], before: dict[Setting, KnownUse]
) -> None:
    first = decisions[0]
    standing = replace(first.use.standing, above_chance=False)
    now = [replace(first, use=replace(first.use, standing=standing))]
    (change,) = find_changes(before, now).decisions
    assert f": {NOTHING} (" in change and before[first.setting].name in change


@pytest.mark.parametrize("text", ["[{}]", "[1]", "{", '[{"task": "a", "label_count": "all"}]'])
def test_decisions_of_another_version_are_as_good_as_none(text: str, tmp_path: Path) -> None:
    path = tmp_path / "decisions.json"
    assert read_known_uses(path) == {}
    path.write_text(text)
    assert read_known_uses(path) == {}


def test_the_same_pipeline_again_keeps_what_it_changed(
    analysis: Analysis, decisions: list[Decision], tmp_path: Path
) -> None:
    path = tmp_path / "summary.json"
    changes = find_changes({}, decisions)
    first = ["This is the first run."]
    assert keep_pipeline_changes(path, "p1", changes) == first
    path.write_text("[]")
    assert keep_pipeline_changes(path, "p1", changes) == first
    summary = summarize(analysis, decisions, {})
    write_run_summary(path, summary)
    assert keep_pipeline_changes(path, "p1", changes) == ["elmo: new"]
    assert keep_pipeline_changes(path, "p2", changes) == first


def test_scores_have_a_line_for_each_candidate(
    analysis: Analysis, decisions: list[Decision]
) -> None:
    summary = summarize(analysis, decisions, {})
    shown = [(one.task, one.system, one.score) for one in summary.scores]
    for decision in decisions:
        score = f"{100 * decision.use.standing.mean:.1f} %"
        assert decision.task in {task for task, _, value in shown if value == score}
    assert ("TF-IDF" in {system for _, system, _ in shown}) and len(shown) > len(decisions)
    assert all(" to " in one.interval for one in summary.scores)
