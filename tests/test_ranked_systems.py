"""The systems that a report ranks, as MLflow shows them."""

from pathlib import Path

from lineage import artifacts
from lineage.analysis.decision import decide, largest_label_counts
from lineage.analysis.records import Analysis
from lineage.report import ranked_systems


def test_each_candidate_is_ranked_once_and_the_registered_one_by_its_own_model(
    analysis: Analysis, tmp_path: Path
) -> None:
    task = analysis.rankings[0].task
    with artifacts.create_artifact(tmp_path / task, "task"):
        pass
    datasets = ranked_systems.describe_tasks(analysis, tmp_path)
    assert list(datasets) == [task], "the items of other tasks are not here"
    decisions = decide(analysis, {})
    everything = ranked_systems.list_ranked_systems(
        analysis, decisions, datasets, registered_tasks=()
    )
    largest = largest_label_counts(analysis.rankings)[task]
    assert [one.score.value for one in everything] == [one.mean for one in largest.standings]
    assert {one.params["label_count"] for one in everything} == {largest.label_count}
    others = ranked_systems.list_ranked_systems(
        analysis, decisions, datasets, registered_tasks=[task]
    )
    assert len(others) == len(everything) - 1
    own = next(one for one in decisions if one.setting == largest.setting)
    assert own.use.standing.system.model not in [one.params["model"] for one in others]
