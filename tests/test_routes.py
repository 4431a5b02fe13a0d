"""The whole graph on a user's own text and task, by configuration alone: by hand, by the walker, on workers; and what a change re-runs."""

from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from flows.workspace import write_params
from lineage.artifacts import read_json
from lineage.records import read_yaml
from tests.checkout import WALK, command, outcomes, own_project
from tests.toy_project import free_port, lock

EVALUATED = {"evaluate@gpt-0-mood", "evaluate_adapted@gpt-0-mood", "report", "publish"}
READ = {"task@mood", "control@mood", "adapt@gpt-0-mood"} | EVALUATED
STAGES = {"sources", "corpus@general", "tokenizer@gpt", "pretrain@gpt-0"} | READ


def results(root: Path) -> bytes:
    return (root / "reports/results.csv").read_bytes()


def change(project: Path, **values: Any) -> None:
    """Set values of params.yaml by dotted name, with __ for the dots."""
    tree = read_yaml(project / "params.yaml")
    for key, value in values.items():
        *above, last = key.split("__")
        place = tree
        for name in above:
            place = place[name]
        place[last] = value
    write_params(project / "params.yaml", tree)


def planned(project: Path) -> set[str]:
    """The stages that would run once sources has looked at the user's files, and it aside."""
    command(project, "python", "-m", "stages.sources")
    said = command(project, "python", "-m", "flows.plan")
    return {line.split()[1] for line in said.splitlines() if line.startswith("run ")} - {"sources"}


def test_dvc_repro_gives_the_same_lock_file_and_results_as_the_walker(walked: Path, tmp_path: Path) -> None:
    by_hand = own_project(tmp_path / "lineage")
    command(by_hand, "dvc", "repro", "-q")
    assert lock(by_hand) == lock(walked) and len(lock(walked)["stages"]) == len(STAGES)
    assert results(by_hand) == results(walked)


@pytest.mark.slow
def test_workers_in_clones_of_their_own_give_the_same_lock_file_and_results(walked: Path, tmp_path: Path) -> None:
    place = own_project(tmp_path / "lineage")
    try:
        command(place, "make", "-o", ".venv/ready", "up", LINEAGE_PREFECT_PORT=str(free_port()))
        said = command(place, "python", "-m", "flows.pipeline", "--profile", "own", "--pools")
    finally:
        command(place, "make", "-o", ".venv/ready", "down")
    assert outcomes(said) == dict.fromkeys(STAGES, "ran")
    run, workers = place.resolve() / ".runs/own", place.resolve() / ".lineage/workers"
    assert lock(run) == lock(walked) and results(run) == results(walked)
    sides = {path.stem: read_json(path) for path in (run / ".lineage/sides").glob("*.json")}
    local = {"sources", "corpus@general", "task@mood", "report", "publish"}
    gpu = {"pretrain@gpt-0", "adapt@gpt-0-mood"}
    for name, side in sides.items():
        pool = "gpu" if name in gpu else "cpu"
        assert side["cwd"] == str(run) if name in local else side["cwd"].startswith(str(workers / pool)), (name, side["cwd"])
    assert set(sides) == STAGES and len({side["pid"] for side in sides.values()}) == len(STAGES)


def test_a_number_runs_the_stages_that_read_its_block_and_what_follows(project: Path) -> None:
    change(project, models__gpt__evaluate__tuned__rate=0.0021)
    assert planned(project) == EVALUATED
    change(project, models__gpt__adapt__rate=0.0021)
    assert planned(project) == EVALUATED | {"adapt@gpt-0-mood"}
    change(project, models__gpt__pretrain__rate=0.0021)
    assert planned(project) == EVALUATED | {"adapt@gpt-0-mood", "pretrain@gpt-0"}


def test_a_new_task_runs_no_pretraining(project: Path) -> None:
    tree = read_yaml(project / "params.yaml")
    change(project, tasks__tone={**tree["tasks"]["mood"], "max_tokens": 12}, grid__tasks=["mood", "tone"])
    assert planned(project) == {"task@tone", "control@tone", "evaluate@gpt-0-tone", "report", "publish"}


def test_a_new_family_of_one_file_runs_its_own_stages_only(project: Path) -> None:
    source = (project / "lineage/families/gpt.py").read_text()
    (project / "lineage/families/mine.py").write_text(source)
    block = read_yaml(project / "params.yaml")["models"]["gpt"]
    change(project, models__mine=block, grid__families=["gpt", "mine"])
    assert "mine.py: its FAMILY is named 'gpt'" in command(project, "python", "-m", "stages.sources", code=2)
    (project / "lineage/families/mine.py").write_text(source.replace('name="gpt"', 'name="mine"'))
    assert planned(project) == {"tokenizer@mine", "pretrain@mine-0", "evaluate@mine-0-mood", "report", "publish"}


def test_an_edit_of_the_users_text_runs_everything_that_was_made_of_it(project: Path) -> None:
    with (project.parent / "mine/texts/07.txt").open("a", encoding="utf-8") as stream:
        stream.write("One more sentence , that was not there before .\n")
    assert planned(project) == STAGES - {"sources", "task@mood", "control@mood"}


def test_an_edit_of_the_users_labels_runs_what_reads_the_task(project: Path) -> None:
    path = project.parent / "mine/mood/test.csv"
    table = pd.read_csv(path)
    table.loc[0, "stars"] = 1 - table.loc[0, "stars"]
    table.to_csv(path, index=False)
    said = outcomes(command(project, *WALK))
    assert {name for name, what in said.items() if what == "ran"} == READ | {"sources"}
    assert {name for name, what in said.items() if what == "fresh"} == STAGES - READ - {"sources"}
