"""The learning curve of a training goes on after a kill, with the time that was spent before."""

import time
from pathlib import Path

import pytest

from lineage.runtime.stage import Stage
from lineage.training.curve import LearningCurve
from lineage.training.outputs import write_training
from lineage.training.pretrain import BudgetUsed, TrainOutput
from lineage.work import Stopwatch
from tests.helpers import tiny


def test_the_time_of_earlier_processes_counts_for_a_resumed_training(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It decides what a model costs, and so which one is to be used."""
    now = 1000.0
    monkeypatch.setattr(time, "perf_counter", lambda: now)
    monkeypatch.setattr(time, "process_time", lambda: now / 4)  # the core is shared
    monkeypatch.chdir(tmp_path)
    for seconds in (60.0, 40.0):  # two processes that are killed
        curve = LearningCurve()
        if (tmp_path / "curve.json").exists():
            curve.load(tmp_path)
        stopwatch = Stopwatch()
        now += seconds
        curve.save(tmp_path, stopwatch)
    curve.load(tmp_path)
    stage = Stage("pretrain", ("gpt", "0"))
    now += 20.0
    checkpoint = tiny.checkpoint("gpt")
    output = TrainOutput(tiny.model("gpt"), curve, BudgetUsed())
    write_training(stage, tmp_path / "model", checkpoint, output)
    assert (stage.elapsed_seconds, stage.own_seconds) == (120.0, 30.0)
