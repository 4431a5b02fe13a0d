"""Which run made what is here: side files, by the entry of dvc.lock that came of them."""

from pathlib import Path
from typing import Any

import pytest

from lineage import artifacts
from lineage.config.records import read_yaml
from lineage.runtime.provenance import (
    archive_stage_metadata,
    lock_entry_digest,
    read_lock_entry,
    read_stage_metadata,
)

STAGE = "pretrain@gpt-0"


def test_a_result_that_dvc_brings_back_has_the_side_file_of_then(tmp_path: Path) -> None:
    names, locks = (
        {"pretrain@gpt-0", "report"},
        [{"pretrain@gpt-0": {"params": rate}, "other": {}} for rate in (1, 2, 3)],
    )

    def ran(run: str) -> None:
        artifacts.write_json(
            tmp_path / "pretrain@gpt-0.json", {"stage": "pretrain@gpt-0", "mlflow_run_id": run}
        )

    def run_of(lock: dict[str, Any]) -> str | None:
        sides = read_stage_metadata(tmp_path, names, lock)
        assert {*sides} <= {"pretrain@gpt-0"}
        return sides["pretrain@gpt-0"]["mlflow_run_id"] if sides else None

    ran("a")
    assert run_of(locks[0]) == run_of(locks[0]) == "a"
    ran("b")
    assert run_of(locks[1]) == "b" and run_of(locks[0]) == "a", "with the first parameters again"
    assert run_of(locks[2]) is None, "made elsewhere"
    ran("c")
    assert run_of(locks[0]) == "c" and run_of(locks[1]) == "b", "a stage that ran again"


@pytest.mark.parametrize("noted", [True, False])
def test_a_change_that_was_given_up_before_it_was_published_is_not_what_made_the_older_result(
    noted: bool, tmp_path: Path
) -> None:
    """With other parameters the stage ran, and nothing after it; with the first ones again DVC brings their result back."""
    locks = [{STAGE: {"params": rate}} for rate in (1, 2)]
    artifacts.write_json(tmp_path / f"{STAGE}.json", {"mlflow_run_id": "a", "lock_before": ""})
    assert read_stage_metadata(tmp_path, [STAGE], locks[0])[STAGE]["mlflow_run_id"] == "a"
    artifacts.write_json(
        tmp_path / f"{STAGE}.json",
        {"mlflow_run_id": "b", "lock_before": lock_entry_digest(locks[0][STAGE])},
    )
    if noted:  # by the run of the whole graph
        archive_stage_metadata(tmp_path, STAGE, locks[1][STAGE])
    assert read_stage_metadata(tmp_path, [STAGE], locks[0])[STAGE]["mlflow_run_id"] == "a"
    assert read_stage_metadata(tmp_path, [STAGE], locks[1])[STAGE]["mlflow_run_id"] == "b"
    assert (
        archive_stage_metadata(tmp_path, "task@other", {"params": 1})
        == {}
        == archive_stage_metadata(tmp_path, STAGE, {})
    )
    archive_stage_metadata(tmp_path, STAGE, locks[0][STAGE])
    assert read_stage_metadata(tmp_path, [STAGE], locks[0])[STAGE]["mlflow_run_id"] == "b", (
        "it ran again, with the same result"
    )


def test_a_stage_that_ran_again_before_anything_was_published_has_its_side_file(
    tmp_path: Path,
) -> None:
    """As sources does in a plain `dvc repro` that was interrupted: the entry stood there, and nothing was kept with it."""
    lock = {STAGE: {"params": 1}}
    artifacts.write_json(
        tmp_path / f"{STAGE}.json",
        {"mlflow_run_id": "b", "lock_before": lock_entry_digest(lock[STAGE])},
    )
    assert read_stage_metadata(tmp_path, [STAGE], lock)[STAGE]["mlflow_run_id"] == "b"


def test_an_entry_is_read_by_its_lines_alone_and_is_that_of_the_whole_file(tmp_path: Path) -> None:
    path = tmp_path / "dvc.lock"
    path.write_text("""schema: '2.0'
stages:
  sources:
    cmd: python -m stages.sources
  task@a.b:
    cmd: python -m stages.task a.b
    params:
      params.yaml:
        tasks.a.b:
          label_map:
            x: "one

              two"
          label: sources
    outs:
    - path: artifacts/tasks/a.b
      size: 3
  task@axb:
    cmd: python -m stages.task axb
""")
    whole = read_yaml(path)["stages"]
    assert {name: read_lock_entry(tmp_path, name) for name in whole} == whole and "\n" in whole[
        "task@a.b"
    ]["params"]["params.yaml"]["tasks.a.b"]["label_map"]["x"]
    assert (
        read_lock_entry(tmp_path, "task@a") == {} == read_lock_entry(tmp_path / "none", "sources")
    )
    path.write_text(path.read_text().split("two")[0])  # DVC is writing it
    assert read_lock_entry(tmp_path, "task@a.b") == {}
