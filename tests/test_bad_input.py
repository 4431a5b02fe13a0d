"""Bad input ends with exit code 2 and one message, before anything is written.

The message says what is wrong, where, and what to do.
"""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from lineage.config.records import read_yaml
from lineage.study.source_records import WATCHED_VERBS
from lineage.training.devices import measure_bf16_speedup
from tests.helpers import spoiled_files
from tests.helpers.spoiled import CASES
from tests.helpers.user_project import REPOSITORY, make_project, write_params


def make_spoiled_project(folder: Path, name: str) -> None:
    tree = make_project(folder)
    CASES[name].spoil(folder, tree)
    write_params(folder, tree)


def list_outputs(folder: Path) -> set[str]:
    """Return the files that a run left, apart from its own bookkeeping."""
    return {
        str(p.relative_to(folder))
        for p in folder.rglob("*")
        if not str(p.relative_to(folder)).startswith(".lineage")
    }


def check_message(output: str, name: str) -> None:
    """Check that the output is one line with the message of this case."""
    (line,) = output.strip().splitlines()
    pattern = ".*".join(map(re.escape, CASES[name].message.split(" ... ")))
    assert re.search(pattern, line), f"{line!r} lacks some of {CASES[name].message!r}"


def run_module(folder: Path, *words: str) -> "subprocess.CompletedProcess[str]":
    """Run a module of the project as a command."""
    environment = {
        k: v for k, v in os.environ.items() if not k.startswith(("LINEAGE_", "PREFECT_", "GIT_"))
    } | {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(REPOSITORY)}
    command = [sys.executable, "-m", *words]
    return subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, check=False
    )


@pytest.mark.parametrize("name", CASES)
def test_bad_input_gives_one_message_and_exit_code_2(name, tmp_path, run_stage):
    make_spoiled_project(tmp_path, name)
    before = list_outputs(tmp_path)
    code, message = run_stage(tmp_path, "sources")
    assert code == 2, message
    check_message(message, name)
    assert list_outputs(tmp_path) == before


def test_valid_input_passes_and_is_not_read_again_the_second_time(tmp_path, monkeypatch, run_stage):
    make_project(tmp_path)
    assert run_stage(tmp_path, "sources") == (0, "")
    records = {p: p.read_bytes() for p in (tmp_path / "artifacts/sources").rglob("*.json")}
    assert len(list((tmp_path / "artifacts/sources/code").iterdir())) == len(WATCHED_VERBS)
    assert {"corpora", "tasks", "outside_systems", "models", "config", "code"} == {
        p.name for p in (tmp_path / "artifacts/sources").iterdir() if p.is_dir()
    }

    def refuse(*_, **__):
        raise AssertionError("read again")

    monkeypatch.setattr("lineage.data.sources.DataTable.iter_batches", refuse)
    assert run_stage(tmp_path, "sources") == (0, "")
    assert records == {p: p.read_bytes() for p in (tmp_path / "artifacts/sources").rglob("*.json")}


@pytest.mark.parametrize("speedup", [2.0, 0.5])
def test_sources_warns_if_bf16_is_slower_than_fp32_on_this_cpu(
    speedup, tmp_path, monkeypatch, run_stage
):
    tree = make_project(tmp_path)
    write_params(tmp_path, tree | {"precision": "bf16"})
    monkeypatch.setattr("lineage.study.source_records.measure_bf16_speedup", lambda: speedup)
    code, message = run_stage(tmp_path, "sources")
    assert code == 0
    assert (
        "in bf16 products run at 0.50 times their speed in fp32 on this CPU; set fp32" in message
    ) == (speedup < 1)


def test_bf16_speedup_is_fp32_time_divided_by_bf16_time(monkeypatch):
    seconds = {torch.float32: 2.0, torch.bfloat16: 5.0}
    clock, product = [0.0], torch.Tensor.__matmul__

    def timed(one, other):
        clock[0] += seconds[one.dtype]
        return product(one, other)

    monkeypatch.setattr(torch.Tensor, "__matmul__", timed)
    monkeypatch.setattr("lineage.training.devices.time.process_time", lambda: clock[0])
    assert measure_bf16_speedup() == 0.4


def test_data_are_checked_again_when_they_change(tmp_path, run_stage):
    make_project(tmp_path)
    assert run_stage(tmp_path, "sources")[0] == 0
    spoiled_files.unknown_label(tmp_path, {})
    code, message = run_stage(tmp_path, "sources")
    assert code == 2
    check_message(message, "unknown_label")


def test_results_that_are_no_longer_in_the_grid_are_removed(tmp_path, run_stage):
    make_project(tmp_path)
    kept = [
        "rows/evaluate-gpt-0-mood.parquet",
        "predictions/baselines-mood.parquet",
        "budgets/pretrain-gpt-0.json",
        "curves/adapt-gpt-0-mood.parquet",
    ]
    removed = [
        "rows/evaluate-gpt-1-mood.parquet",
        "rows/evaluate-elmo-0-mood.parquet",
        "predictions/baselines-moods.parquet",
        "budgets/pretrain-gpt-1.json",
    ]
    for name in kept + removed:
        path = tmp_path / "artifacts/results" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"")
    assert run_stage(tmp_path, "sources")[0] == 0
    assert sorted(
        str(p.relative_to(tmp_path / "artifacts/results"))
        for p in (tmp_path / "artifacts/results").rglob("*.*")
    ) == sorted(kept)


# Each takes a process or two: data that a stage refuses, and folders that cannot be made.
PIPELINE_CASES = ("missing_column", "artifacts_is_a_file", "lineage_folder_is_a_file")


@pytest.fixture(scope="module")
def study(tmp_path_factory) -> Path:
    """A user's study, with the data in it."""
    # Importing DVC takes a second, which the other tests would have to wait for.
    from flows.study import create_study

    root = tmp_path_factory.mktemp("study") / "study"
    create_study(root, "")
    make_project(root)
    return root


@pytest.mark.parametrize(
    ("name", "options"),
    [
        *(pytest.param(name, ["--no-prefect"], marks=pytest.mark.slow) for name in PIPELINE_CASES),
        pytest.param("missing_column", [], marks=pytest.mark.slow),
        pytest.param("lineage_folder_is_a_file", [], marks=pytest.mark.slow),
        pytest.param("misspelt_key", [], marks=pytest.mark.slow),
        ("misspelt_key", ["--no-prefect"]),
    ],
    ids=lambda value: value if isinstance(value, str) else "walker" if value else "prefect",
)
def test_a_run_ends_with_the_same_message_and_exit_code(name, options, study, tmp_path):
    root = tmp_path / "project"
    shutil.copytree(study, root)
    tree = read_yaml(root / "params.yaml")
    CASES[name].spoil(root, tree)
    write_params(root, tree)
    before = list_outputs(root)
    completed = run_module(root, "flows.cli", "run", *options)
    assert completed.returncode == 2, completed.stdout + completed.stderr
    check_message(completed.stderr, name)
    if name == "misspelt_key" and not options:
        assert completed.stdout == "", (
            "a wrong key must be refused before the run waits for a server"
        )
    new_files = {
        path
        for path in list_outputs(root) - before
        if "__pycache__" not in path and not path.startswith((".dvc", ".prefect"))
    }
    assert new_files <= {"artifacts"}, new_files
