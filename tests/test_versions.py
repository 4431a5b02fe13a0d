"""DVC shows what differs between two versions of a study: scores, curves, parameters, artifacts."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from dvc.repo import Repo
from dvc.repo.artifacts import check_name_format

from flows.package_data import package_file
from flows.study import create_study, open_study
from lineage.analysis.decision import decide
from lineage.analysis.records import Analysis, LossCurve
from lineage.config.records import read_yaml
from lineage.report.versions import write_metrics, write_plots
from tests.helpers.checkout import IDENTITY, ROOT, run_command
from tests.helpers.study_rows import GRID
from tests.helpers.user_project import write_params


@pytest.fixture(name="analysis")
def with_curves(analysis: Analysis) -> Analysis:
    """Return the analysis with two loss curves."""
    curves = (
        LossCurve("gpt", 0, "bits_per_byte", (500_000, 1_000_000), (2.0, 1.5)),
        LossCurve("gpt", 1, "bits_per_byte", (500_000, 1_000_000), (1.0, 0.5)),
    )
    return replace(analysis, curves=curves)


def write_files(reports: Path, analysis: Analysis) -> None:
    write_metrics(reports / "metrics.json", analysis, decide(analysis, {}))
    write_plots(reports / "plots", analysis)


def test_metrics_are_a_score_for_each_decision_and_the_end_of_each_pretraining(
    tmp_path: Path, analysis: Analysis
) -> None:
    write_files(tmp_path, analysis)
    metrics = json.loads((tmp_path / "metrics.json").read_text())
    assert metrics["pretraining"] == {"gpt": {"bits_per_byte": 1.0}}, "the mean over seeds"
    decisions = decide(analysis, {})
    assert len(decisions) == sum(len(counts) for counts in metrics["score"].values()) == 5
    for one in decisions:
        assert metrics["score"][one.task][one.label_count] == one.use.standing.mean


def test_curves_have_one_point_a_line(tmp_path: Path, analysis: Analysis) -> None:
    (tmp_path / "plots").mkdir()
    (tmp_path / "plots" / "gone-bits_per_byte.json").write_text("of a model that was removed")
    write_files(tmp_path, analysis)
    plots = {path.relative_to(tmp_path).as_posix() for path in tmp_path.rglob("plots/**/*.json")}
    assert plots == {
        "plots/pretraining/gpt-bits_per_byte.json",
        *(f"plots/scores/{model}.json" for model in ("bert", "elmo", "gpt", "tfidf")),
    }
    assert (tmp_path / "plots/pretraining/gpt-bits_per_byte.json").read_text() == (
        '[\n{"text_mb": 0.5, "value": 1.5},\n{"text_mb": 1.0, "value": 1.0}\n]\n'
    )
    points = json.loads((tmp_path / "plots/scores/bert.json").read_text())
    assert [set(one) for one in points] == [{*GRID.tasks, "training labels"}] * len(points), (
        "DVC leaves out points whose keys differ"
    )
    assert [one["training labels"] for one in points] == sorted(
        {one.train_examples for one in analysis.rankings if one.label_count != "none"}
    )
    assert {one["agreement"] for one in points} == {None}, "it has no labels"
    assert all(one["sentiment"] > 0.5 for one in points)


def dvc_json(study: Path, *command: str) -> dict[str, Any]:
    """Return what a command of DVC prints as JSON.

    Warnings follow, since the stages' own parameter files are missing: nothing has run here.
    """
    found: dict[str, Any] = json.loads(
        run_command(study, "dvc", *command, "--json").splitlines()[0]
    )
    return found


def test_dvc_compares_two_commits_of_a_study(tmp_path: Path, analysis: Analysis) -> None:
    study = tmp_path / "tickets"
    create_study(study, (ROOT / "params.yaml").read_text(encoding="utf-8"))
    run_command(study, "git", "init", "--quiet")
    open_study(study)
    tree = read_yaml(study / "params.yaml")
    tree["grid"]["tasks"] = list(GRID.tasks)
    write_params(study, tree)
    write_files(study / "reports", analysis)
    run_command(study, "git", "add", "--all")
    run_command(study, "git", *IDENTITY, "commit", "--quiet", "--message", "a study")

    tree["models"]["gpt"]["pretrain"]["learning_rate"] = 0.002
    write_params(study, tree)
    better = [replace(one, value=tuple(x / 2 for x in one.value)) for one in analysis.curves]
    write_files(study / "reports", replace(analysis, curves=tuple(better)))

    metrics = dvc_json(study, "metrics", "diff")
    assert metrics == {
        "reports/metrics.json": {
            "pretraining.gpt.bits_per_byte": {"old": 1.0, "new": 0.5, "diff": -0.5}
        }
    }
    params = dvc_json(study, "params", "diff")
    assert params == {
        "params.yaml": {"models.gpt.pretrain.learning_rate": {"old": None, "new": 0.002}}
    }
    plots = dvc_json(study, "plots", "diff")
    assert "errors" not in plots
    charts = {name: spec for name, (spec,) in plots["data"].items()}
    assert {Path(name).parent.name for name in charts} == {"pretraining", "scores"}
    own = charts["reports/plots/pretraining/gpt-bits_per_byte.json"]
    assert sorted(own["revisions"]) == ["HEAD", "workspace"]
    assert '"text read, MB"' in json.dumps(own["content"])
    scores = json.dumps(charts["reports/plots/scores/gpt.json"]["content"])
    assert all(f'"field": "{task}"' in scores for task in GRID.tasks), "a line for each task"
    assert "learning_rate" in run_command(study, "dvc", "exp", "show", "--csv")


def test_artifacts_have_names_that_dvc_takes_and_paths_that_stages_write(tmp_path: Path) -> None:
    create_study(tmp_path / "tickets", (ROOT / "params.yaml").read_text(encoding="utf-8"))
    stages = read_yaml(package_file("dvc.yaml"))["stages"]
    # An output with options is a mapping of its path to them.
    outputs = [
        out if isinstance(out, str) else next(iter(out))
        for definition in stages.values()
        for out in definition.get("outs", ())
    ]
    with Repo(str(tmp_path / "tickets")) as repo:
        found = repo.artifacts.read()["dvc.yaml"]
    assert found.keys() == {"models", "tokenizers", "systems", "refitted"}
    for name, artifact in found.items():
        check_name_format(name)
        assert artifact.type and artifact.desc
        assert any(out.startswith(f"{artifact.path}/") for out in outputs), artifact.path
