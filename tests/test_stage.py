"""A stage process's side file: what a stage took, also where several processes made it, one after the other."""

import sys
import time
from pathlib import Path

import pytest

from lineage import stage
from lineage.artifacts import read_json
from lineage.stage import Stage


def test_what_was_kept_of_processes_that_were_stopped_counts_and_what_was_lost_does_not(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Three processes make one stage: each begins where the one before kept its work last."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["stages/evaluate.py", "gpt", "0", "sense"])
    monkeypatch.setattr(time, "monotonic", lambda: now)
    now, kept = 1000.0, 0

    def work(own: Stage) -> None:
        nonlocal now, kept
        folder = own.resume_folder({"labels": 100})
        own.count_earlier(folder)
        while kept < 3:
            now += 60.0
            own.keep_count(folder)
            kept += 1
            now += 7.0  # of what is not kept when the process ends here
            raise KeyboardInterrupt
        now += 5.0
        own.drop_resume()

    for _ in range(3):
        with pytest.raises(KeyboardInterrupt):
            stage.run("evaluate", work)
        now += 5000.0  # nobody works
    with pytest.raises(SystemExit) as ended:
        stage.run("evaluate", work)
    assert ended.value.code == 0
    assert read_json(Path(".lineage/sides/evaluate@gpt-0-sense.json"))["seconds"] == 3 * 60 + 5
