"""What a change of the shipped demo would run again, and what it would not."""

import shutil
from pathlib import Path
from typing import Any

import pytest

from flows.workspace import write_params
from lineage.records import read_yaml
from tests.checkout import Demo, command, planned

ENDS = {"report", "publish"}
TASKS = ("sentiment", "sense", "agreement")


@pytest.fixture
def finished(demo: Demo, tmp_path: Path) -> Path:
    """The finished demo without its cache, to be changed: a plan reads what lies in the folder."""
    left = shutil.ignore_patterns("cache", ".lineage", "mlflow.db", "__pycache__")
    return Path(shutil.copytree(demo.folder, tmp_path / "lineage", symlinks=True, ignore=left))


def change(folder: Path, **values: Any) -> None:
    """Set values of params.yaml by dotted name, with __ for the dots."""
    tree = read_yaml(folder / "params.yaml")
    for key, value in values.items():
        *above, last = key.split("__")
        place = tree
        for name in above:
            place = place[name]
        place[last] = value
    write_params(folder / "params.yaml", tree)


def after_sources(folder: Path) -> set[str]:
    """What would run once sources has looked at everything."""
    command(folder, "python", "-m", "stages.sources")
    return planned(folder) - {"sources"}


def test_a_finished_demo_is_fresh(finished: Path) -> None:
    assert planned(finished) == {"sources", "publish"}, "always"


def test_a_number_runs_the_stages_that_read_its_block_and_what_follows(finished: Path) -> None:
    evaluations = {*(f"evaluate@gpt-0-{task}" for task in TASKS), "evaluate_adapted@gpt-0-sentiment"}
    change(finished, models__gpt__evaluate__tuned__rate=0.0021)
    assert planned(finished) - {"sources"} == evaluations | ENDS
    change(finished, models__gpt__adapt__rate=0.0021)
    assert planned(finished) - {"sources"} == evaluations | ENDS | {"adapt@gpt-0-sentiment"}
    change(finished, models__gpt__pretrain__rate=0.0021)
    assert planned(finished) - {"sources"} == evaluations | ENDS | {"adapt@gpt-0-sentiment", "pretrain@gpt-0"}


def test_a_new_task_runs_no_pretraining(finished: Path) -> None:
    task = read_yaml(finished / "params.yaml")["tasks"]["sentiment"]
    change(finished, tasks__tone={**task, "max_tokens": 12}, grid__tasks=[*TASKS, "tone"])
    assert after_sources(finished) == {"task@tone", "control@tone", *(f"evaluate@{v}-0-tone" for v in ("elmo", "gpt", "bert"))} | ENDS


def test_a_new_family_of_one_file_runs_its_own_stages_only(finished: Path) -> None:
    source, mine = (finished / "lineage/families/gpt.py").read_text(), finished / "lineage/families/mine.py"
    mine.write_text(source)
    change(finished, models__mine=read_yaml(finished / "params.yaml")["models"]["gpt"], grid__families=["elmo", "gpt", "bert", "mine"])
    assert "mine.py: its FAMILY is named 'gpt'" in command(finished, "python", "-m", "stages.sources", code=2)
    mine.write_text(source.replace('name="gpt"', 'name="mine"'))
    assert after_sources(finished) == {"tokenizer@mine", "pretrain@mine-0", *(f"evaluate@mine-0-{task}" for task in TASKS)} | ENDS


def test_a_changed_family_file_runs_its_own_stages_only(finished: Path) -> None:
    path = finished / "lineage/families/bert.py"
    path.write_text(path.read_text() + "\n")
    assert {name for name in after_sources(finished) if "gpt" in name or "elmo" in name} == set()
    assert {"tokenizer@bert", "pretrain@bert-0"} <= planned(finished)
