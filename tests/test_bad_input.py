"""Bad input ends in exit code 2 and one message that says what is wrong, where, and what to do, before anything is written."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pandas as pd
import pytest
import torch

from lineage.config.records import read_yaml
from lineage.training.devices import measure_bf16_speedup
from stages.sources import WATCHED_VERBS
from tests import spoiled, spoiled_files
from tests.spoiled import CASES
from tests.spoiled_files import change
from tests.user_project import HERE, make, stage, write


def spoil(folder: Path, case) -> None:
    tree = make(folder)
    case(folder, tree)
    write(folder, tree)


def written(folder: Path) -> set[str]:
    """What a run left besides its own bookkeeping."""
    return {
        str(p.relative_to(folder))
        for p in folder.rglob("*")
        if not str(p.relative_to(folder)).startswith(".lineage")
    }


def check_message(said: str, parts: tuple[str, ...]) -> None:
    lines = said.strip().splitlines()
    assert len(lines) == 1, said
    assert all(part in lines[0] for part in parts), f"{lines[0]!r} lacks one of {parts}"
    assert "Traceback" not in said


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.__name__)
def test_bad_input_is_one_message_and_exit_code_2(case, tmp_path, monkeypatch, capsys):
    spoil(tmp_path, case)
    before = written(tmp_path)
    code, said = stage(tmp_path, "sources", monkeypatch=monkeypatch, capsys=capsys)
    assert code == 2, said
    check_message(said, CASES[case])
    assert written(tmp_path) == before


def test_good_input_passes_and_a_second_time_reads_no_data(tmp_path, monkeypatch, capsys):
    make(tmp_path)
    assert stage(tmp_path, "sources", monkeypatch=monkeypatch, capsys=capsys) == (0, "")
    records = {p: p.read_bytes() for p in (tmp_path / "artifacts/sources").rglob("*.json")}
    assert len(list((tmp_path / "artifacts/sources/code").iterdir())) == len(WATCHED_VERBS)
    assert {"corpora", "tasks", "models", "config", "code"} == {
        p.name for p in (tmp_path / "artifacts/sources").iterdir() if p.is_dir()
    }

    def refuse(*_, **__):
        raise AssertionError("read again")

    monkeypatch.setattr("lineage.data.sources.DataTable.iter_batches", refuse)
    assert stage(tmp_path, "sources", monkeypatch=monkeypatch, capsys=capsys) == (0, "")
    assert records == {p: p.read_bytes() for p in (tmp_path / "artifacts/sources").rglob("*.json")}


@pytest.mark.parametrize("gain", [2.0, 0.5])
def test_bf16_on_a_cpu_that_is_slower_so_is_said_before_anything_runs(
    gain, tmp_path, monkeypatch, capsys
):
    tree = make(tmp_path)
    write(tmp_path, tree | {"precision": "bf16"})
    monkeypatch.setattr("stages.sources.measure_bf16_speedup", lambda: gain)
    code, said = stage(tmp_path, "sources", monkeypatch=monkeypatch, capsys=capsys)
    assert code == 0 and (
        "in bf16 products run at 0.50 times their speed in fp32 on this CPU; set fp32" in said
    ) == (gain < 1)


def test_tags_that_are_numbers_without_names_are_said_each_time(tmp_path, monkeypatch, capsys):
    tree = make(tmp_path)
    for split in ("train", "test"):
        pd.DataFrame({"tokens": ["the film was seen"] * 30, "tags": ["0 1 0 0"] * 30}).to_csv(
            tmp_path / f"mood/{split}.csv", index=False
        )
    tree["tasks"]["mood"] = {
        "kind": "token_classification",
        "files": tree["tasks"]["mood"]["files"],
        "tokens": "tokens",
        "label": "tags",
    }
    change(tree, "grid.adapt_tasks", [])
    change(tree, "grid.adapt_models", [])
    for more, count in (
        ({}, 1),
        ({}, 1),
        ({"label_map": ["O", "B-X"]}, 0),
        ({"metric": ["token_accuracy"]}, 0),
    ):
        write(tmp_path, tree | {"tasks": {"mood": tree["tasks"]["mood"] | more}})
        code, said = stage(tmp_path, "sources", monkeypatch=monkeypatch, capsys=capsys)
        assert code == 0 and said.count(
            "tasks.mood.label: its 2 tags are numbers without names"
        ) == count == len(said.splitlines()), said


def test_what_bf16_gains_is_the_time_of_a_product_in_fp32_over_that_in_bf16(monkeypatch):
    spent = {torch.float32: 2.0, torch.bfloat16: 5.0}
    clock, product = [0.0], torch.Tensor.__matmul__

    def timed(one, other):
        clock[0] += spent[one.dtype]
        return product(one, other)

    monkeypatch.setattr(torch.Tensor, "__matmul__", timed)
    monkeypatch.setattr("lineage.training.devices.time.process_time", lambda: clock[0])
    assert measure_bf16_speedup() == 0.4


def test_a_check_is_repeated_when_the_data_change(tmp_path, monkeypatch, capsys):
    make(tmp_path)
    assert stage(tmp_path, "sources", monkeypatch=monkeypatch, capsys=capsys)[0] == 0
    spoiled_files.strange_label(tmp_path, {})
    code, said = stage(tmp_path, "sources", monkeypatch=monkeypatch, capsys=capsys)
    assert code == 2
    check_message(said, CASES[spoiled_files.strange_label])


def test_the_command_itself_exits_with_2(tmp_path):
    spoil(tmp_path, spoiled.missing_column)
    environment = {
        **os.environ,
        "PYTHONPATH": str(HERE),
        "LINEAGE_MAIN": str(tmp_path),
        "OMP_NUM_THREADS": "1",
    }
    done = subprocess.run(
        [sys.executable, "-m", "stages.sources"],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 2
    check_message(done.stderr, CASES[spoiled.missing_column])
    assert not (tmp_path / "artifacts").exists()


def test_results_of_cells_that_the_grid_lost_are_removed(tmp_path, monkeypatch, capsys):
    make(tmp_path)
    kept = [
        "rows/evaluate-gpt-0-mood.parquet",
        "predictions/baselines-mood.parquet",
        "budgets/pretrain-gpt-0.json",
        "curves/adapt-gpt-0-mood.parquet",
    ]
    lost = [
        "rows/evaluate-gpt-1-mood.parquet",
        "rows/evaluate-elmo-0-mood.parquet",
        "predictions/baselines-moods.parquet",
        "budgets/pretrain-gpt-1.json",
    ]
    for name in kept + lost:
        path = tmp_path / "artifacts/results" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"")
    assert stage(tmp_path, "sources", monkeypatch=monkeypatch, capsys=capsys)[0] == 0
    assert sorted(
        str(p.relative_to(tmp_path / "artifacts/results"))
        for p in (tmp_path / "artifacts/results").rglob("*.*")
    ) == sorted(kept)


# What `python -m flows.pipeline` is tried on: one case of each sort, since each takes a process or two.
BY_PIPELINE = [
    "missing_file",
    "empty_file",
    "not_utf8",
    "missing_column",
    "blank_text",
    "small_corpus",
    "strange_label",
    "misspelt_key",
    "mistyped_key",
    "missing_grid_key",
    "family_without_block",
    "zero_budget",
    "negative_budget",
    "no_folder_to_write_to",
    "no_folder_for_bookkeeping",
]


@pytest.fixture(scope="module")
def checkout(tmp_path_factory) -> Path:
    """A committed copy of this project with a user's data in it."""
    root = tmp_path_factory.mktemp("checkout")
    for name in ("flows", "stages", "lineage", "profiles", ".dvc"):
        shutil.copytree(
            HERE / name,
            root / name,
            ignore=shutil.ignore_patterns("__pycache__", "cache", "tmp", "config.local"),
        )
    for name in ("dvc.yaml", ".gitignore", ".dvcignore"):
        shutil.copy(HERE / name, root)
    make(root)
    git = ("git", "-C", str(root), "-c", "user.name=user", "-c", "user.email=user@localhost")
    subprocess.run([*git[:3], "init", "--quiet"], check=True)
    subprocess.run([*git, "add", "--all"], check=True)
    subprocess.run([*git, "commit", "--quiet", "--message", "a project"], check=True)
    return root


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "options"),
    [
        *((name, ["--local"]) for name in BY_PIPELINE),
        ("missing_column", []),
        ("misspelt_key", []),
        ("no_folder_for_bookkeeping", []),
    ],
    ids=lambda value: value if isinstance(value, str) else "walker" if value else "prefect",
)
def test_the_pipeline_ends_with_the_same_message_and_exit_code(name, options, checkout, tmp_path):
    case, root = {case.__name__: case for case in CASES}[name], tmp_path / "project"
    shutil.copytree(checkout, root)
    tree = read_yaml(root / "params.yaml")
    case(root, tree)
    write(root, tree)
    environment = {
        k: v for k, v in os.environ.items() if not k.startswith(("LINEAGE_", "PREFECT_", "GIT_"))
    } | {"OMP_NUM_THREADS": "1"}
    before = written(root)
    done = subprocess.run(
        [sys.executable, "-m", "flows.pipeline", *options],
        cwd=root,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 2, done.stdout + done.stderr
    check_message(done.stderr, CASES[case])
    left = {
        path
        for path in written(root) - before
        if "__pycache__" not in path and not path.startswith((".dvc", ".prefect"))
    }
    assert left <= {"artifacts"}, left
