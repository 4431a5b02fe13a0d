"""Stage metadata is found by the entry of dvc.lock that the run wrote."""

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


def write_metadata(folder: Path, run_id: str, lock_before: dict[str, Any] | None = None) -> None:
    """Write what a run of the stage leaves, which began with this entry in dvc.lock."""
    digest = lock_entry_digest(lock_before[STAGE]) if lock_before else ""
    record = {"stage": STAGE, "mlflow_run_id": run_id, "lock_before": digest}
    artifacts.write_json(folder / f"{STAGE}.json", record)


def run_id_of(folder: Path, lock: dict[str, Any]) -> str | None:
    """Return the run that made the result of the stage in this dvc.lock."""
    metadata = read_stage_metadata(folder, {STAGE, "report"}, lock)
    assert {*metadata} <= {STAGE}
    return metadata[STAGE]["mlflow_run_id"] if metadata else None


def test_a_result_restored_by_dvc_has_the_metadata_of_the_run_that_made_it(tmp_path: Path) -> None:
    locks = [{STAGE: {"params": rate}, "other": {}} for rate in (1, 2, 3)]
    write_metadata(tmp_path, "a")
    assert run_id_of(tmp_path, locks[0]) == run_id_of(tmp_path, locks[0]) == "a"
    write_metadata(tmp_path, "b")
    assert run_id_of(tmp_path, locks[1]) == "b"
    assert run_id_of(tmp_path, locks[0]) == "a", "DVC restored the result of the first parameters"
    assert run_id_of(tmp_path, locks[2]) is None, "no run on this machine made it"
    write_metadata(tmp_path, "c")
    assert run_id_of(tmp_path, locks[0]) == "c", "the stage ran again with the first parameters"
    assert run_id_of(tmp_path, locks[1]) == "b"


@pytest.mark.parametrize("is_archived", [True, False])
def test_an_abandoned_run_does_not_replace_the_metadata_of_an_older_result(
    is_archived: bool, tmp_path: Path
) -> None:
    """The stage ran with other parameters, and no later stage did.

    With the first parameters again, DVC restores the first result.
    """
    locks = [{STAGE: {"params": rate}} for rate in (1, 2)]
    write_metadata(tmp_path, "a")
    assert run_id_of(tmp_path, locks[0]) == "a"
    write_metadata(tmp_path, "b", lock_before=locks[0])
    if is_archived:  # as a run of the whole graph does
        archive_stage_metadata(tmp_path, STAGE, locks[1][STAGE])
    assert run_id_of(tmp_path, locks[0]) == "a"
    assert run_id_of(tmp_path, locks[1]) == "b"
    assert archive_stage_metadata(tmp_path, "task@other", {"params": 1}) == {}
    assert archive_stage_metadata(tmp_path, STAGE, {}) == {}
    archive_stage_metadata(tmp_path, STAGE, locks[0][STAGE])
    assert run_id_of(tmp_path, locks[0]) == "b", "the stage ran again and gave the same result"


def test_a_stage_that_ran_again_before_anything_was_published_has_its_metadata(
    tmp_path: Path,
) -> None:
    """This happens to sources in a plain `dvc repro` that was interrupted.

    dvc.lock has the entry, but no metadata was archived with it.
    """
    lock = {STAGE: {"params": 1}}
    write_metadata(tmp_path, "b", lock_before=lock)
    assert run_id_of(tmp_path, lock) == "b"


def test_reading_one_lock_entry_gives_the_same_as_parsing_the_whole_file(tmp_path: Path) -> None:
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
    entries = read_yaml(path)["stages"]
    assert {name: read_lock_entry(tmp_path, name) for name in entries} == entries
    assert "\n" in entries["task@a.b"]["params"]["params.yaml"]["tasks.a.b"]["label_map"]["x"]
    assert (
        read_lock_entry(tmp_path, "task@a") == {} == read_lock_entry(tmp_path / "none", "sources")
    )
    path.write_text(path.read_text().split("two")[0])  # DVC is writing it
    assert read_lock_entry(tmp_path, "task@a.b") == {}
