"""Contextual features beside static vectors in the stages, on the report's pages, and what is refused before anything runs."""

import dataclasses
import re
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from study_rows import GRID, Study

from flows.profiles import merge_params
from lineage import artifacts
from lineage.analysis.build import build_results
from lineage.analysis.records import Setting, read_analysis
from lineage.config.checks import check_study
from lineage.config.params import ReportParams, parse_params, read_params
from lineage.config.records import read_yaml
from lineage.data.checks import check_task_data
from lineage.errors import InputError
from lineage.report import page
from tests import tiny
from tests.user_project import HERE, make, stage, write

Tree = dict[str, Any]
NAME = "gpt + word2vec"
# A made-up study has no static vectors: gpt's stand for them.
JOINED = dataclasses.replace(
    GRID,
    tasks=("sentiment", "sense"),
    join_models=("elmo",),
    join_tasks=("sense",),
    join_static_model="gpt",
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A study in which ELMo's features beside others' vectors read senses better than its untrained twin."""
    study = Study(tmp_path_factory.mktemp("study"), grid=JOINED, items=120)
    found = study.write()
    some = [
        (cell, skill)
        for init in ("pretrained", "random")
        for cell, skill in study.cells("elmo", 0, "sense", init)
    ]
    own = [
        (cell | {"model": "elmo + gpt", "family": "joined"}, skill + 2.0)
        for cell, skill in some
        if cell["transfer"] == "frozen"
    ]
    study.evaluate("evaluate_joined-elmo-0-sense", own)
    return found


def test_it_is_compared_with_its_twin_and_its_two_variants_and_never_serves_best(
    folder: Path,
) -> None:
    analysis = build_results(folder, JOINED, ReportParams())[1]
    joined = {one.system.model for one in analysis.scores if one.system.family == "joined"}
    assert joined == {"elmo + gpt"}
    own = {
        (one.comparison_type, one.first.model, one.second.model, one.second.init)
        for one in analysis.comparisons
        if "elmo + gpt" in (one.first.model, one.second.model)
    }
    assert own == {
        ("pretraining", "elmo + gpt", "elmo + gpt", "random"),
        ("concatenated", "elmo + gpt", "elmo", "pretrained"),
        ("concatenated", "elmo + gpt", "gpt", "pretrained"),
    }
    scores = analysis.scores_of(Setting("sense", "all"))
    best = max(scores, key=lambda one: one.mean or 0.0)
    assert best.system.model == "elmo + gpt", "it would have led if it could"
    text_bytes = {one.model: one.text_bytes for one in analysis.budget}
    assert text_bytes["elmo + gpt"] == text_bytes["elmo"] + text_bytes["gpt"]


def test_without_it_the_results_are_what_they_were(folder: Path) -> None:
    table, analysis = build_results(folder, JOINED, ReportParams())
    plain_table, plain = build_results(
        folder, dataclasses.replace(JOINED, join_models=(), join_tasks=()), ReportParams()
    )
    pd.testing.assert_frame_equal(
        plain_table, table[table["family"] != "joined"].reset_index(drop=True)
    )
    rest = [one for one in analysis.scores if one.system.family != "joined"]
    assert plain.scores == tuple(rest)
    assert plain.budget == analysis.budget[:-1]
    comparisons = [one for one in analysis.comparisons if one.first.family != "joined"]
    assert plain.comparisons == tuple(comparisons)


def test_the_pages_say_two_budgets_wherever_it_stands(folder: Path) -> None:
    pages = page.render_report(build_results(folder, JOINED, ReportParams())[1])
    for kind, text in pages.items():
        lines = [line for line in text.splitlines() if "elmo + gpt" in line]
        assert len(lines) > 4 and all("two budgets" in line for line in lines), kind
        assert (
            "With gpt vectors added" in text
            and "With gpt vectors added"
            not in text.split('<h3 class="task">sense ' if kind == "html" else "## sense")[0]
        ), kind


def small(folder: Path) -> Tree:
    """A user's project with a contextual and a static family, and a task that both heads read."""
    tree = make(folder)
    tree["models"]["word2vec"] = tiny.shipped()["models"]["word2vec"]
    for name in ("gpt", "word2vec"):
        model = tree["models"][name]
        model["tokenizer"]["vocab_size"] = 300
        model["evaluate"]["bilstm_probe"] = {"epochs": 1, "hidden_size": 5}
        model["evaluate"]["finetune"] = {"epochs": 1, "min_steps": None}
    tree["models"]["word2vec"]["architecture"]["hidden_size"] = 7
    tree["tasks"]["mood"] |= {"max_tokens": 20, "probes": ["linear", "bilstm"]}
    tree["budget"] |= {"text_bytes": 10_000, "body_parameters": 100_000}
    tree["grid"] |= {"models": ["word2vec", "gpt"], "adapt_models": [], "adapt_tasks": [], "label_counts": ["all"], "finetune_seeds": [0, 1],
                     "join_models": ["gpt"], "join_tasks": ["mood"]}  # fmt: skip
    write(folder, tree)
    return tree


def spoiled(*_: object, **__: object) -> None:
    raise InputError("the disk is full")


def test_the_stages_put_static_vectors_beside_a_contextual_model(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def run(*command: str) -> None:
        assert stage(tmp_path, *command, monkeypatch=monkeypatch, capsys=capsys)[0] == 0, command

    tree = small(tmp_path)
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
    run("report")
    assert not (tmp_path / "artifacts/finetuned/evaluate_joined-gpt-0-mood").exists(), (
        "nothing is tuned"
    )
    own = artifacts.read_table(
        tmp_path / "artifacts/results/rows/evaluate_joined-gpt-0-mood.parquet"
    )
    assert (
        set(own["status"]) == {"ok"}
        and set(own["model"]) == {NAME}
        and set(own["transfer"]) == {"frozen"}
    )
    spent = [
        artifacts.read_json(tmp_path / f"artifacts/pretrained/{name}/0/spent.json")["text_bytes"]
        for name in ("gpt", "word2vec")
    ]
    assert own.groupby("init")["text_bytes"].first().to_dict() == {
        "pretrained": sum(spent),
        "random": spent[1],
    }
    scores = read_analysis(tmp_path / "reports/results.json").scores
    own_scores = [one for one in scores if one.system.model == NAME]
    assert {(one.system.init, one.system.head, len(one.seeds)) for one in own_scores} == {
        (init, head, 2) for init in ("pretrained", "random") for head in ("bilstm", "linear")
    }
    assert len(own_scores) == 4
    files = sorted((tmp_path / "artifacts/results").glob("*/evaluate_joined-*"))
    before = [path.read_bytes() for path in files]
    with (
        monkeypatch.context() as broken
    ):  # it ends when the last cell is kept, and another process goes on
        broken.setattr("stages.evaluate.write_outputs", spoiled)
        assert (
            stage(
                tmp_path,
                "evaluate",
                "gpt",
                "0",
                "mood",
                "--joined",
                monkeypatch=monkeypatch,
                capsys=capsys,
            )[0]
            == 2
        )
    (clock,) = tmp_path.glob(".lineage/resume/evaluate_joined-gpt-0-mood/*/clock.json")
    assert 0.01 < artifacts.read_json(clock)["seconds"] < 100
    artifacts.write_json(clock, {"seconds": 1000.0})
    run("evaluate", "gpt", "0", "mood", "--joined")
    assert (
        artifacts.read_json(tmp_path / ".lineage/metadata/evaluate_joined@gpt-0-mood.json")[
            "seconds"
        ]
        > 1000
    )
    assert [path.read_bytes() for path in files] == before, "the same inputs, the same bytes"
    tree["grid"] |= {"join_models": [], "join_tasks": []}
    write(tmp_path, tree)
    run("sources")
    assert not any(path.exists() for path in files), (
        "no results of cells that the grid no longer has"
    )


def test_the_graph_has_its_stage_only_where_the_grid_asks_for_it() -> None:
    stages = read_yaml(HERE / "dvc.yaml")["stages"]
    keys = {**stages["evaluate_joined"]["matrix"]}
    assert keys == {
        "model": "${grid.join_models}",
        "seed": "${grid.pretrain_seeds}",
        "task": "${grid.join_tasks}",
    }
    params = read_params(HERE / "params.yaml")
    assert (
        params.grid.stage_instances["evaluate_joined"] == []
        and params.grid.two_budget_systems == {}
    )
    named = {
        path
        for part in ("rows", "predictions")
        for path in stages["evaluate_joined"]["outs"]
        if f"/{part}/evaluate_joined-" in path
    }
    assert named == {*stages["evaluate_joined"]["outs"]}


def checked(grid: Tree) -> None:
    """What the sources stage checks of a grid, over the shipped parameters."""
    over = {"join_models": ["elmo"], "join_tasks": ["sense"]} | grid
    params = parse_params(merge_params(tiny.shipped(), {"grid": over}), "params.yaml")
    check_study(params)
    check_task_data(params.grid.join_tasks[0], params, HERE)


@pytest.mark.parametrize(
    ("grid", "message"),
    [
        (
            {"join_models": ["elmo", "bret"]},
            "grid.join_models: 'bret' has no entry in grid.models; did you mean 'bert'?",
        ),
        (
            {"join_tasks": ["sens"]},
            "grid.join_tasks: 'sens' has no entry in grid.tasks; did you mean 'sense'?",
        ),
        (
            {"join_static_model": "word2vek"},
            "grid.join_static_model: 'word2vek' has no entry in grid.models; did you mean 'word2vec'?",
        ),
        (
            {"join_static_model": "fasttext"},
            "grid.join_static_model: 'fasttext' has no entry in grid.models",
        ),
        ({"join_static_model": "gpt"}, "grid.join_static_model: gpt has no static vectors"),
        (
            {"join_models": ["elmo", "word2vec"]},
            "grid.join_models: word2vec has static vectors itself; remove it",
        ),
        (
            {"join_tasks": []},
            "'join_models' is given and 'join_tasks' is empty; give both, or neither",
        ),
        (
            {"join_models": []},
            "'join_tasks' is given and 'join_models' is empty; give both, or neither",
        ),
        (
            {"join_tasks": ["agreement"]},
            "grid.join_tasks: agreement: a task of kind minimal_pairs has no probe of frozen features",
        ),
    ],
)
def test_what_cannot_be_joined_is_refused_before_anything_runs(grid: Tree, message: str) -> None:
    with pytest.raises(InputError, match=re.escape(message)):
        checked(grid)


def test_any_static_family_may_be_joined_with() -> None:
    over = {
        "grid": {
            "models": ["fasttext", "glove", "elmo"],
            "join_models": ["elmo"],
            "join_tasks": ["sense"],
            "adapt_models": ["elmo"],
        }
    }
    for name in ("fasttext", "glove"):
        params = parse_params(
            merge_params(
                tiny.shipped(),
                merge_params(over, {"grid": {"join_static_model": name}}),
            ),
            "params.yaml",
        )
        check_study(params)
        assert params.grid.two_budget_systems == {f"elmo + {name}": ("elmo", name)}
        assert params.grid.stage_instances["evaluate_joined"] == ["elmo-0-sense"]
