"""What a rehearsal took is scaled by counts."""

import pytest

from lineage.forecast.scaling import PartCost, RehearsedStage, fit_cost, grow_features
from lineage.methods.feature_store import MAX_MEMORY_BYTES
from lineage.work import Work, WorkLog


def test_work_grows_along_a_line_through_different_counts() -> None:
    """The first time has first calls in it, which are paid once."""
    points = [Work("a", 10, 7.0), Work("a", 10, 3.0), Work("a", 20, 5.0), Work("a", 20, 5.0)]
    cost = fit_cost(points)
    assert cost == PartCost(pytest.approx(4.0), pytest.approx(1.0), pytest.approx(0.2))
    assert cost.seconds([100, 50]) == pytest.approx(4 + 2 * 1 + 150 * 0.2)
    assert cost.seconds([]) == 0


def test_work_of_equal_counts_grows_in_proportion() -> None:
    points = [Work("a", 10, 2.0), Work("a", 10, 2.0), Work("a", 11, 2.2)]
    assert fit_cost(points) == PartCost(pytest.approx(0), pytest.approx(0), pytest.approx(0.2))
    (only,) = [Work("a", 10, 2.0)]
    assert fit_cost([only]).seconds([30]) == pytest.approx(6.0)


def test_no_part_of_a_cost_is_negative() -> None:
    faster = [Work("a", 1, 1.0), Work("a", 10, 3.0), Work("a", 20, 2.0)]
    assert fit_cost(faster) == PartCost(0.0, 2.5, 0.0)
    steep = [Work("a", 1, 0.1), Work("a", 10, 1.0), Work("a", 20, 5.0)]
    cost = fit_cost(steep)
    assert cost.fixed_seconds == pytest.approx(0) and cost.seconds_per_count == pytest.approx(0.2)


def test_a_stage_has_seconds_besides_its_work() -> None:
    log = WorkLog()
    log.add("a", 1, 2.0)
    with log.measure("b", 5):
        pass
    metadata = {"work": log.as_tree(), "work_seconds": 3.0, "peak_memory_bytes": 7}
    stage = RehearsedStage.read(metadata, {".parquet": 9})
    assert stage.done == log.done and stage.done[1].count == 5
    assert 0.9 < stage.other_seconds <= 1.0


def test_memory_grows_with_the_features_of_further_items_up_to_their_limit() -> None:
    """A table of features above the limit is kept in a file."""
    done = [Work("a features", 10, 1.0, memory_bytes=1000), Work("a", 10, 1.0)]
    assert grow_features(done, [Work("a features", 50)], num_tables=2) == 4000
    assert grow_features(done, [Work("a features", 5)], num_tables=2) == 0
    limit = 2 * MAX_MEMORY_BYTES
    assert grow_features(done, [Work("a features", 10**9)], num_tables=2) == limit - 1000
