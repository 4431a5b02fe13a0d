"""A user's own study gives the same results with DVC, the scheduler, the flow and workers."""

from pathlib import Path

import pandas as pd
import pytest
from mlflow import MlflowClient

from lineage.artifacts import read_json
from lineage.config.records import read_yaml
from lineage.config.resolve import merge_trees
from lineage.results import UNKNOWN_TOKEN_METRIC
from lineage.runtime.settings import EXPERIMENT_NAME
from tests.helpers.checkout import (
    RUN_STUDY,
    create_own_study,
    planned_stages,
    run_command,
    stage_outcomes,
)
from tests.helpers.notes import format_reason
from tests.helpers.private_text import find_leaks, read_texts
from tests.helpers.toy_project import free_port, read_dvc_lock
from tests.helpers.user_project import write_params

EVALUATION_STAGES = {"evaluate@gpt-0-mood", "evaluate_adapted@gpt-0-mood", "report", "publish"}
TASK_STAGES = {
    "task@mood",
    "contamination@mood",
    "baselines@mood",
    "ngram",
    "adapt@gpt-0-mood",
} | EVALUATION_STAGES
STAGES = {"sources", "corpus@general", "tokenizer@gpt", "pretrain@gpt-0"} | TASK_STAGES

pytestmark = pytest.mark.slow


def read_results(root: Path) -> bytes:
    return (root / "reports/results.csv").read_bytes()


def test_dvc_repro_gives_the_same_lock_file_and_results_as_a_run(
    finished_project: Path, tmp_path: Path
) -> None:
    by_hand = create_own_study(tmp_path / "study")
    run_command(by_hand, "dvc", "repro", "-q")
    assert read_dvc_lock(by_hand) == read_dvc_lock(finished_project)
    assert len(read_dvc_lock(finished_project)["stages"]) == len(STAGES)
    assert read_results(by_hand) == read_results(finished_project)


def test_workers_on_this_machine_give_the_same_lock_file_and_results(
    finished_project: Path, tmp_path: Path
) -> None:
    study = create_own_study(tmp_path / "study")
    try:
        run_command(study, "lineage", "up", LINEAGE_PREFECT_PORT=str(free_port()))
        output = run_command(study, "lineage", "run", "--workers")
    finally:
        run_command(study, "lineage", "down")
    assert stage_outcomes(output) == dict.fromkeys(STAGES, "ran")
    workers = study.resolve() / ".lineage/workers"
    assert read_dvc_lock(study) == read_dvc_lock(finished_project)
    assert read_results(study) == read_results(finished_project)
    metadata = {path.stem: read_json(path) for path in (study / ".lineage/metadata").glob("*.json")}
    local = {"sources", "corpus@general", "task@mood", "ngram", "report", "publish"}
    gpu = {"pretrain@gpt-0", "adapt@gpt-0-mood"}
    for name, entry in metadata.items():
        pool = "gpu" if name in gpu else "cpu"
        if name in local:
            assert entry["cwd"] == str(study), name
        else:
            assert entry["cwd"].startswith(str(workers / pool)), name
    assert set(metadata) == STAGES
    assert len({entry["pid"] for entry in metadata.values()}) == len(STAGES)
    assert not find_leaks(study, read_texts(study.parent / "mine")), (
        "neither Prefect nor the logs of the workers contain a text"
    )


def test_an_edit_of_the_users_text_reruns_the_stages_that_depend_on_it(project: Path) -> None:
    with (project.parent / "mine/texts/07.txt").open("a", encoding="utf-8") as stream:
        stream.write("One more sentence , that was not there before .\n")
    run_command(project, "python", "-m", "stages.sources")
    assert planned_stages(project) == STAGES - {"task@mood", "baselines@mood"}


def test_a_refused_study_keeps_its_records_and_dvc_repro_can_finish_it(project: Path) -> None:
    params = project / "params.yaml"
    text = params.read_text(encoding="utf-8")
    params.write_text(text.replace("label: stars", "label: no_such_column"), encoding="utf-8")
    run_command(project, *RUN_STUDY, code=2)
    assert "no_such_column" in run_command(project, "lineage", "status")
    params.write_text(text, encoding="utf-8")
    assert planned_stages(project) == {"sources", "publish"}
    run_command(project, "dvc", "repro", "-q")
    printed = run_command(project, "lineage", "status")
    assert "since then `dvc repro` has finished the study" in printed
    assert "no_such_column" not in printed and "report: " in printed


def test_an_edit_of_the_users_labels_reruns_the_stages_that_read_the_task(project: Path) -> None:
    path = project.parent / "mine/mood/test.csv"
    table = pd.read_csv(path)
    table.loc[0, "stars"] = 1 - table.loc[0, "stars"]
    table.to_csv(path, index=False)
    outcomes = stage_outcomes(run_command(project, *RUN_STUDY))
    assert {name for name, outcome in outcomes.items() if outcome == "ran"} == TASK_STAGES | {
        "sources"
    }
    assert {
        name for name, outcome in outcomes.items() if outcome == "fresh"
    } == STAGES - TASK_STAGES - {"sources"}


def test_static_families_can_be_added_and_report_what_does_not_apply(project: Path) -> None:
    """Three families and a task without labels are added; finished stages do not run again."""
    names = ("word2vec", "fasttext", "glove")
    small = {"tokenizer": {"vocab_size": 400}, "architecture": {"hidden_size": 20}}
    pairs = {
        "kind": "minimal_pairs",
        "generated": "synthetic",
        "max_words": 24,
        "limit": {"test": 20},
    }
    grid = {"models": ["gpt", *names], "tasks": ["mood", "agreement"]}
    changes = {"tasks": {"agreement": pairs}, "models": dict.fromkeys(names, small), "grid": grid}
    write_params(project, merge_trees(read_yaml(project / "params.yaml"), changes))
    outcomes = stage_outcomes(run_command(project, *RUN_STUDY))
    assert {
        outcomes[name]
        for name in ("pretrain@gpt-0", "evaluate@gpt-0-mood", "adapt@gpt-0-mood", "task@mood")
    } == {"fresh"}
    rows = pd.read_csv(project / "reports/results.csv")
    rows = rows[rows["model"].isin(names) & (rows["metric"] != UNKNOWN_TOKEN_METRIC)]
    mood_rows = rows[rows["task"] == "mood"]
    assert set(mood_rows["status"]) == {"ok"} and mood_rows["value"].notna().all()
    assert set(zip(mood_rows["model"], mood_rows["init"], mood_rows["transfer"], strict=True)) == {
        (name, init, transfer)
        for name in names
        for init in ("pretrained", "random")
        for transfer in ("frozen", "finetuned")
    }
    agreement_rows = rows[rows["task"] == "agreement"]
    assert set(agreement_rows["status"]) == {"not_applicable"}
    assert set(agreement_rows["model"]) == set(names)
    assert agreement_rows["reason"].map(format_reason).str.contains("no probability").all()
    budget = {row["model"]: row for row in read_json(project / "reports/comparison.json")["budget"]}
    assert all(
        budget[name]["train_flops"] is None and budget[name]["body_parameters"] == 0
        for name in names
    )
    assert budget["gpt"]["train_flops"] > 0
    epochs = {
        name: budget[name]["text_bytes"] / budget["gpt"]["text_bytes"] * budget["gpt"]["epochs"]
        for name in names
    }
    expected_epochs = {
        "word2vec": budget["gpt"]["epochs"],
        "fasttext": budget["gpt"]["epochs"],
        "glove": 1.0,
    }  # glove counts its text once
    assert all(abs(epochs[name] / expected_epochs[name] - 1) < 0.03 for name in names)
    assert budget["gpt"]["epochs"] > 1.2
    assert "n/a" in (project / "reports/comparison.md").read_text()


def test_mlflow_holds_the_pipeline_its_stages_and_the_report(finished_project: Path) -> None:
    client = MlflowClient(f"sqlite:///{finished_project / 'mlflow.db'}")
    experiment = client.get_experiment_by_name(EXPERIMENT_NAME)
    assert experiment is not None
    runs = {run.data.tags["stage"]: run for run in client.search_runs([experiment.experiment_id])}
    parent = runs.pop("pipeline")
    assert set(runs) >= {
        name
        for name in STAGES
        if name.split("@")[0] in ("baselines", "pretrain", "adapt", "evaluate", "evaluate_adapted")
    }
    rows = pd.read_csv(finished_project / "reports/results.csv")
    for baseline in ("tfidf", "majority"):
        own = rows[
            (rows["model"] == baseline)
            & (rows["task"] == "mood")
            & (rows["label_count"] == "all")
            & (rows["metric"] == "accuracy")
        ]
        assert runs["baselines@mood"].data.metrics[
            f"{baseline}/all/test/accuracy"
        ] == pytest.approx(own["value"].mean())
    assert {run.info.status for run in [parent, *runs.values()]} == {"FINISHED"}
    assert {run.data.tags["mlflow.parentRunId"] for run in runs.values()} == {parent.info.run_id}
    assert {file.path for file in client.list_artifacts(parent.info.run_id)} >= {
        "comparison.html",
        "comparison.json",
        "figures",
    }
    verdict, _, _ = parent.data.tags["mlflow.note.content"].partition("\n")
    assert "the task mood" in verdict
    assert verdict in (finished_project / "reports/comparison.md").read_text()
    assert "- **mood**: The champion is " in parent.data.tags["mlflow.note.content"]
    pretraining = runs["pretrain@gpt-0"]
    assert pretraining.data.params["budget.text_bytes"] == "100000"
    assert pretraining.inputs.dataset_inputs[0].dataset.name == "artifacts/tokens/gpt"
    assert len(client.get_metric_history(pretraining.info.run_id, "by_text_kb/loss")) > 10
