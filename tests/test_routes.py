"""The whole graph on a user's own text and task, by configuration alone: by hand, by the walker, by the flow, on workers; and after an edit."""

from pathlib import Path

import pandas as pd
import pytest
from mlflow import MlflowClient

from flows.profiles import merge_params, write_params
from lineage.artifacts import read_json
from lineage.config.records import read_yaml
from lineage.report.notes import format_reason
from lineage.results import UNKNOWN_TOKEN_METRIC
from lineage.runtime.settings import EXPERIMENT_NAME
from tests.checkout import MAKE, WALK, command, outcomes, own_project, planned
from tests.private_text import leaks, texts_of
from tests.toy_project import free_port, lock

EVALUATED = {"evaluate@gpt-0-mood", "evaluate_adapted@gpt-0-mood", "report", "publish"}
READ = {"task@mood", "contamination@mood", "baselines@mood", "adapt@gpt-0-mood"} | EVALUATED
STAGES = {"sources", "corpus@general", "tokenizer@gpt", "pretrain@gpt-0"} | READ

pytestmark = pytest.mark.slow


def results(root: Path) -> bytes:
    return (root / "reports/results.csv").read_bytes()


def test_dvc_repro_gives_the_same_lock_file_and_results_as_the_walker(
    walked: Path, tmp_path: Path
) -> None:
    by_hand = own_project(tmp_path / "lineage")
    command(by_hand, "dvc", "repro", "-q")
    assert lock(by_hand) == lock(walked) and len(lock(walked)["stages"]) == len(STAGES)
    assert results(by_hand) == results(walked)


def test_workers_in_clones_of_their_own_give_the_same_lock_file_and_results(
    walked: Path, tmp_path: Path
) -> None:
    place = own_project(tmp_path / "lineage")
    try:
        command(place, *MAKE, "up", LINEAGE_PREFECT_PORT=str(free_port()))
        said = command(place, "python", "-m", "flows.pipeline", "--profile", "own", "--pools")
    finally:
        command(place, *MAKE, "down")
    assert outcomes(said) == dict.fromkeys(STAGES, "ran")
    run, workers = place.resolve() / ".runs/own", place.resolve() / ".lineage/workers"
    assert lock(run) == lock(walked) and results(run) == results(walked)
    sides = {path.stem: read_json(path) for path in (run / ".lineage/metadata").glob("*.json")}
    local = {"sources", "corpus@general", "task@mood", "report", "publish"}
    gpu = {"pretrain@gpt-0", "adapt@gpt-0-mood"}
    for name, side in sides.items():
        pool = "gpu" if name in gpu else "cpu"
        assert (
            side["cwd"] == str(run)
            if name in local
            else side["cwd"].startswith(str(workers / pool))
        ), (name, side["cwd"])
    assert set(sides) == STAGES and len({side["pid"] for side in sides.values()}) == len(STAGES)
    assert not leaks(place, texts_of(place.parent / "mine")), (
        "neither Prefect nor a worker's log holds a text"
    )


def test_an_edit_of_the_users_text_runs_everything_that_was_made_of_it(project: Path) -> None:
    with (project.parent / "mine/texts/07.txt").open("a", encoding="utf-8") as stream:
        stream.write("One more sentence , that was not there before .\n")
    command(project, "python", "-m", "stages.sources")
    assert planned(project) == STAGES - {"task@mood", "baselines@mood"}


def test_an_edit_of_the_users_labels_runs_what_reads_the_task(project: Path) -> None:
    path = project.parent / "mine/mood/test.csv"
    table = pd.read_csv(path)
    table.loc[0, "stars"] = 1 - table.loc[0, "stars"]
    table.to_csv(path, index=False)
    said = outcomes(command(project, *WALK))
    assert {name for name, what in said.items() if what == "ran"} == READ | {"sources"}
    assert {name for name, what in said.items() if what == "fresh"} == STAGES - READ - {"sources"}


def test_the_flow_finds_a_finished_project_fresh(project: Path) -> None:
    said = outcomes(command(project, "python", "-m", "flows.pipeline"))
    assert {name for name, what in said.items() if what == "ran"} == {"sources", "publish"}


def test_static_families_join_the_others_and_say_what_they_do_not_have(project: Path) -> None:
    """Three more families and a task without labels, by configuration alone; what stands is not run again."""
    names = ("word2vec", "fasttext", "glove")
    small = {"tokenizer": {"vocab_size": 400}, "architecture": {"hidden_size": 20}}
    pairs = {
        "kind": "minimal_pairs",
        "generated": "synthetic",
        "max_tokens": 24,
        "limit": {"test": 20},
    }
    grid = {"models": ["gpt", *names], "tasks": ["mood", "agreement"]}
    over = {"tasks": {"agreement": pairs}, "models": dict.fromkeys(names, small), "grid": grid}
    write_params(project / "params.yaml", merge_params(read_yaml(project / "params.yaml"), over))
    said = outcomes(command(project, *WALK))
    assert {
        said[name]
        for name in ("pretrain@gpt-0", "evaluate@gpt-0-mood", "adapt@gpt-0-mood", "task@mood")
    } == {"fresh"}
    rows = pd.read_csv(project / "reports/results.csv")
    rows = rows[rows["model"].isin(names) & (rows["metric"] != UNKNOWN_TOKEN_METRIC)]
    tried = rows[rows["task"] == "mood"]
    assert set(tried["status"]) == {"ok"} and tried["value"].notna().all()
    assert set(zip(tried["model"], tried["init"], tried["transfer"], strict=True)) == {
        (name, init, transfer)
        for name in names
        for init in ("pretrained", "random")
        for transfer in ("frozen", "finetuned")
    }
    absent = rows[rows["task"] == "agreement"]
    assert (
        set(absent["status"]) == {"not_applicable"}
        and set(absent["model"]) == set(names)
        and absent["reason"].map(format_reason).str.contains("no probability").all()
    )
    budget = {row["model"]: row for row in read_json(project / "reports/comparison.json")["budget"]}
    assert (
        all(
            budget[name]["train_flops"] is None and budget[name]["body_parameters"] == 0
            for name in names
        )
        and budget["gpt"]["train_flops"] > 0
    )
    passes = {
        name: budget[name]["text_bytes"] / budget["gpt"]["text_bytes"] * budget["gpt"]["epochs"]
        for name in names
    }
    read = {
        "word2vec": budget["gpt"]["epochs"],
        "fasttext": budget["gpt"]["epochs"],
        "glove": 1.0,
    }  # which counts its text once
    assert (
        all(abs(passes[name] / read[name] - 1) < 0.03 for name in names)
        and budget["gpt"]["epochs"] > 1.2
    )
    assert "n/a" in (project / "reports/comparison.md").read_text()


def test_mlflow_holds_the_pipeline_its_stages_and_the_report(walked: Path) -> None:
    client = MlflowClient(f"sqlite:///{walked / 'mlflow.db'}")
    experiment = client.get_experiment_by_name(EXPERIMENT_NAME)
    assert experiment is not None
    runs = {run.data.tags["stage"]: run for run in client.search_runs([experiment.experiment_id])}
    parent = runs.pop("pipeline")
    assert set(runs) >= {
        name
        for name in STAGES
        if name.split("@")[0] in ("baselines", "pretrain", "adapt", "evaluate", "evaluate_adapted")
    }
    rows = pd.read_csv(walked / "reports/results.csv")
    for control in ("tfidf", "majority"):
        own = rows[
            (rows["model"] == control)
            & (rows["task"] == "mood")
            & (rows["label_count"] == "all")
            & (rows["metric"] == "accuracy")
        ]
        assert runs["baselines@mood"].data.metrics[f"{control}/all/test/accuracy"] == pytest.approx(
            own["value"].mean()
        )
    assert {run.info.status for run in [parent, *runs.values()]} == {"FINISHED"}
    assert {run.data.tags["mlflow.parentRunId"] for run in runs.values()} == {parent.info.run_id}
    assert {file.path for file in client.list_artifacts(parent.info.run_id)} >= {
        "comparison.html",
        "comparison.json",
        "figures",
    }
    verdict, _, _ = parent.data.tags["mlflow.note.content"].partition("\n")
    assert (
        verdict.startswith("Of 2 settings")
        and verdict in (walked / "reports/comparison.md").read_text()
    )
    trained = runs["pretrain@gpt-0"]
    assert (
        trained.data.params["budget.text_bytes"] == "100000"
        and trained.inputs.dataset_inputs[0].dataset.name == "artifacts/tokens/gpt"
    )
    assert len(client.get_metric_history(trained.info.run_id, "by_text_kb/loss")) > 10
    changed = command(walked, "git", "status", "--porcelain").splitlines()
    assert changed == ["?? dvc.lock"]
