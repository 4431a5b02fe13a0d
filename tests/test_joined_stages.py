"""The stages and the report support contextual features joined with static vectors.

Invalid combinations are refused before anything runs.
"""

import dataclasses
import re
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from lineage import artifacts
from lineage.analysis.build import build_results
from lineage.analysis.records import Analysis, Setting, read_analysis
from lineage.config.params import ReportParams, parse_params, read_params
from lineage.config.records import read_yaml
from lineage.config.resolve import merge_trees
from lineage.data.checks import check_task_data
from lineage.errors import InputError
from lineage.study.checks import check_study
from tests.helpers import tiny
from tests.helpers.study_rows import GRID, Study
from tests.helpers.user_project import REPOSITORY, RunStage, make_project, write_params

Tree = dict[str, Any]
NAME = "gpt + word2vec"
# A synthetic study has no static vectors; gpt stands in for them.
JOINED = dataclasses.replace(
    GRID,
    tasks=("sentiment", "sense"),
    join_models=("elmo",),
    join_tasks=("sense",),
    join_static_model="gpt",
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a study in which joined ELMo is better than all others on word senses."""
    study = Study(tmp_path_factory.mktemp("study"), grid=JOINED, items=120)
    results_dir = study.write()
    cells = [
        (cell, skill)
        for init in ("pretrained", "random")
        for cell, skill in study.cells("elmo", 0, "sense", init)
    ]
    joined_cells = [
        (cell | {"model": "elmo + gpt", "family": "joined"}, skill + 2.0)
        for cell, skill in cells
        if cell["transfer"] == "frozen"
    ]
    study.evaluate("evaluate_joined-elmo-0-sense", joined_cells)
    return results_dir


@pytest.fixture(scope="module")
def results(folder: Path) -> tuple[pd.DataFrame, Analysis]:
    return build_results(folder, JOINED, ReportParams())


def test_a_joined_system_is_compared_with_its_baseline_and_parts_and_never_leads(
    results: tuple[pd.DataFrame, Analysis],
) -> None:
    _, analysis = results
    joined_models = {
        record.system.model for record in analysis.scores if record.system.family == "joined"
    }
    assert joined_models == {"elmo + gpt"}
    joined_comparisons = {
        (record.comparison_type, record.first.model, record.second.model, record.second.init)
        for record in analysis.comparisons
        if "elmo + gpt" in (record.first.model, record.second.model)
    }
    assert joined_comparisons == {
        ("pretraining", "elmo + gpt", "elmo + gpt", "random"),
        ("concatenated", "elmo + gpt", "elmo", "pretrained"),
        ("concatenated", "elmo + gpt", "gpt", "pretrained"),
    }
    scores = analysis.scores_of(Setting("sense", "all"))
    best = max(scores, key=lambda record: record.mean or 0.0)
    assert best.system.model == "elmo + gpt", "it has the best score but does not lead"
    text_bytes = {record.model: record.text_bytes for record in analysis.budget}
    assert text_bytes["elmo + gpt"] == text_bytes["elmo"] + text_bytes["gpt"]


def test_all_other_results_are_the_same_without_joined_systems(
    folder: Path, results: tuple[pd.DataFrame, Analysis]
) -> None:
    table, analysis = results
    plain_table, plain = build_results(
        folder, dataclasses.replace(JOINED, join_models=(), join_tasks=()), ReportParams()
    )
    pd.testing.assert_frame_equal(
        plain_table, table[table["family"] != "joined"].reset_index(drop=True)
    )
    other_scores = [record for record in analysis.scores if record.system.family != "joined"]
    assert plain.scores == tuple(other_scores)
    assert plain.budget == analysis.budget[:-1]
    comparisons = [record for record in analysis.comparisons if record.first.family != "joined"]
    assert plain.comparisons == tuple(comparisons)


def write_small_project(folder: Path) -> Tree:
    """Write a project with a contextual and a static model, and a task with both probes."""
    tree = make_project(folder)
    tree["models"]["word2vec"] = tiny.demo_params()["models"]["word2vec"]
    for name in ("gpt", "word2vec"):
        model = tree["models"][name]
        model["tokenizer"]["vocab_size"] = 300
        model["evaluate"]["bilstm_probe"] = {"epochs": 1, "min_steps": None, "hidden_size": 5}
        model["evaluate"]["finetune"] = {"epochs": 1, "min_steps": None, "trials": []}
    tree["models"]["word2vec"]["architecture"]["hidden_size"] = 7
    tree["tasks"]["mood"] |= {"max_words": 20, "probes": ["linear", "bilstm"]}
    tree["budget"] |= {"text_bytes": 10_000, "body_parameters": 100_000}
    tree["grid"] |= {"models": ["word2vec", "gpt"], "adapt_models": [], "adapt_tasks": [], "label_counts": ["all"], "finetune_seeds": [0, 1],
                     "join_models": ["gpt"], "join_tasks": ["mood"]}  # fmt: skip
    write_params(folder, tree)
    return tree


def raise_disk_full(*_: object, **__: object) -> None:
    raise InputError("the disk is full")


@pytest.mark.slow
def test_the_stages_join_static_vectors_with_a_contextual_model(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, run_stage: RunStage
) -> None:
    def run(*command: str) -> None:
        assert run_stage(tmp_path, *command)[0] == 0, command

    tree = write_small_project(tmp_path)
    for command in (
        ("sources",),
        ("corpus", "general"),
        ("task", "mood"),
        ("contamination", "mood"),
        ("baselines", "mood"),
    ):
        run(*command)
    for name in ("word2vec", "gpt"):
        run("tokenizer", name)
        run("pretrain", name, "0")
        run("evaluate", name, "0", "mood")
    run("evaluate", "gpt", "0", "mood", "--joined")
    run("ngram")
    run("report")
    assert not (tmp_path / "artifacts/systems/evaluate_joined-gpt-0-mood").exists()
    rows = artifacts.read_table(
        tmp_path / "artifacts/results/rows/evaluate_joined-gpt-0-mood.parquet"
    )
    assert set(rows["status"]) == {"ok"}
    assert set(rows["model"]) == {NAME}
    assert set(rows["transfer"]) == {"frozen"}
    text_bytes = [
        artifacts.read_json(tmp_path / f"artifacts/pretrained/{name}/0/spent.json")["text_bytes"]
        for name in ("gpt", "word2vec")
    ]
    assert rows.groupby("init")["text_bytes"].first().to_dict() == {
        "pretrained": sum(text_bytes),
        "random": text_bytes[1],
    }
    scores = read_analysis(tmp_path / "reports/results.json").scores
    joined_scores = [score for score in scores if score.system.model == NAME]
    assert {
        (score.system.init, score.system.head, len(score.seeds)) for score in joined_scores
    } == {(init, head, 2) for init in ("pretrained", "random") for head in ("bilstm", "linear")}
    assert len(joined_scores) == 4
    files = sorted((tmp_path / "artifacts/results").glob("*/evaluate_joined-*"))
    contents = [path.read_bytes() for path in files]
    # The stage fails after its last result is cached, and the next process continues from there.
    with monkeypatch.context() as patch:
        patch.setattr("lineage.artifacts.write_table", raise_disk_full)
        assert run_stage(tmp_path, "evaluate", "gpt", "0", "mood", "--joined")[0] == 2
    (clock_file,) = tmp_path.glob(".lineage/resume/evaluate_joined-gpt-0-mood/*/clock.json")
    clock = artifacts.read_json(clock_file)
    assert 0.01 < clock["own_seconds"] <= clock["seconds"] < 100
    artifacts.write_json(clock_file, {"seconds": 2000.0, "own_seconds": 1000.0})
    run("evaluate", "gpt", "0", "mood", "--joined")
    metadata = artifacts.read_json(tmp_path / ".lineage/metadata/evaluate_joined@gpt-0-mood.json")
    assert metadata["seconds"] > 2000 > metadata["own_seconds"] > 1000
    assert [path.read_bytes() for path in files] == contents, "the same inputs give the same bytes"
    tree["grid"] |= {"join_models": [], "join_tasks": []}
    write_params(tmp_path, tree)
    run("sources")
    assert not any(path.exists() for path in files), (
        "results that the grid no longer has are removed"
    )


def test_the_graph_has_the_joined_stage_only_if_the_grid_names_it() -> None:
    stages = read_yaml(REPOSITORY / "dvc.yaml")["stages"]
    keys = {**stages["evaluate_joined"]["matrix"]}
    assert keys == {
        "model": "${grid.join_models}",
        "seed": "${grid.pretrain_seeds}",
        "task": "${grid.join_tasks}",
    }
    params = read_params(REPOSITORY / "params.yaml")
    assert params.grid.stage_instances["evaluate_joined"] == []
    assert params.grid.two_budget_systems == {}
    result_files = {
        path
        for part in ("rows", "predictions", "curves")
        for path in stages["evaluate_joined"]["outs"]
        if f"/{part}/evaluate_joined-" in path
    }
    assert result_files == {*stages["evaluate_joined"]["outs"]}


def check_grid(grid: Tree) -> None:
    """Check a grid over the demo parameters, as the sources stage does."""
    overrides = {"join_models": ["elmo"], "join_tasks": ["sense"]} | grid
    params = parse_params(merge_trees(tiny.demo_params(), {"grid": overrides}), "params.yaml")
    check_study(params)
    check_task_data(params.grid.join_tasks[0], params, REPOSITORY)


@pytest.mark.parametrize(("grid", "message"), [
    ({"join_models": ["elmo", "bret"]}, "grid.join_models: 'bret' has no entry in grid.models; did you mean 'bert'?"),
    ({"join_tasks": ["sens"]}, "grid.join_tasks: 'sens' has no entry in grid.tasks; did you mean 'sense'?"),
    ({"join_static_model": "word2vek"}, "grid.join_static_model: 'word2vek' has no entry in grid.models; did you mean 'word2vec'?"),
    ({"join_static_model": "fasttext"}, "grid.join_static_model: 'fasttext' has no entry in grid.models"),
    ({"join_static_model": "gpt"}, "grid.join_static_model: gpt has no static vectors"),
    ({"join_models": ["elmo", "word2vec"]}, "grid.join_models: word2vec has static vectors itself; remove it"),
    ({"join_tasks": []}, "'join_models' is given and 'join_tasks' is empty; give both, or"),
    ({"join_models": []}, "'join_tasks' is given and 'join_models' is empty; give both, or"),
    ({"join_tasks": ["agreement"]}, "grid.join_tasks: agreement: a task of kind minimal_pairs has no probe of frozen features"),
])  # fmt: skip
def test_an_invalid_join_is_refused_before_anything_runs(grid: Tree, message: str) -> None:
    with pytest.raises(InputError, match=re.escape(message)):
        check_grid(grid)


def test_any_static_family_can_be_joined() -> None:
    overrides = {
        "grid": {
            "models": ["fasttext", "glove", "elmo"],
            "join_models": ["elmo"],
            "join_tasks": ["sense"],
            "adapt_models": ["elmo"],
        }
    }
    for name in ("fasttext", "glove"):
        params = parse_params(
            merge_trees(
                tiny.demo_params(), merge_trees(overrides, {"grid": {"join_static_model": name}})
            ),
            "params.yaml",
        )
        check_study(params)
        assert params.grid.two_budget_systems == {f"elmo + {name}": ("elmo", name)}
        assert params.grid.stage_instances["evaluate_joined"] == ["elmo-0-sense"]
