"""`lineage check` rehearses the real stages, and runs the scheduler in thought."""

import dataclasses
import json
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from flows.forecast import format_bytes, format_seconds, print_forecast, simulate_run
from flows.package_data import package_file
from flows.plan import StageNode
from flows.rehearsal import forecast_study
from lineage.config.params import Params, parse_params
from lineage.config.resolve import merge_trees
from lineage.data.checks import check_corpus, check_task_data
from lineage.data.task_data import TaskData
from lineage.errors import InputError
from lineage.forecast.data import copy_corpus, copy_task, measure_corpus
from lineage.forecast.records import StageForecast, StudyForecast
from lineage.forecast.time_limit import Proposal, describe_proposal, propose
from lineage.runtime.settings import METADATA_DIR
from lineage.study.checks import check_study
from lineage.study.resolved import resolved_values
from tests.helpers import user_project
from tests.helpers.checkout import RUN_STUDY, create_own_study, run_command, set_params

PASSES = 4
TEXT_BYTES = 4_000_000


def small_params(**changes: Any) -> Params:
    """Return the parameters of a user's small project."""
    base = {
        "grid": {
            "pretrain_seeds": [0],
            "adapt_models": ["gpt"],
            "adapt_tasks": ["mood"],
            "finetune_seeds": [0, 1],
            "label_counts": [20, "all"],
        }
    }
    return parse_params(merge_trees(merge_trees(user_project.PARAMS, base), changes))


def build_node(name: str, upstream: tuple[str, ...] = (), depth: int = 1, pool: str = "cpu") -> Any:
    return StageNode(name, "", upstream, pool, 60.0, False, depth)


def build_forecast(**seconds: float) -> StudyForecast:
    """Return a forecast of stages by name; each holds 100 bytes and writes 10."""
    return StudyForecast({name: StageForecast(value, 100, 10) for name, value in seconds.items()})


def test_the_simulation_runs_deep_stages_first_and_as_many_as_there_are_jobs() -> None:
    nodes = [
        build_node("sources", depth=4),
        build_node("a", ("sources",), depth=2),
        build_node("b", ("sources",), depth=3),
        build_node("c", ("sources",), depth=1),
        build_node("d", ("b",), depth=2),
        build_node("e", ("a", "d"), depth=1),
    ]
    forecast = build_forecast(sources=1, a=10, b=2, c=4, d=3, e=5)
    two = simulate_run(nodes, forecast, jobs=2)
    # b and a begin at 1; d follows b at 3, c follows d at 6, and e follows a at 11.
    assert two.seconds == 16
    assert two.memory_bytes == 200 and two.disk_bytes == 2 * 60
    assert simulate_run(nodes, forecast, jobs=1).seconds == 25
    assert simulate_run(nodes, forecast, jobs=1, overhead_seconds=2).seconds == 25 + 6 * 2
    three = simulate_run(nodes, forecast, jobs=3)
    assert three.seconds == 16 and three.memory_bytes == 300


def test_the_simulation_takes_stages_that_are_not_run_for_done() -> None:
    nodes = [build_node("d", ("b",)), build_node("e", ("a", "d"))]
    assert simulate_run(nodes, build_forecast(d=3, e=5), jobs=2).seconds == 8


def test_the_simulation_runs_one_stage_on_a_gpu_at_a_time() -> None:
    nodes = [build_node("a", pool="gpu"), build_node("b", pool="gpu"), build_node("c")]
    forecast = build_forecast(a=3, b=5, c=4)
    assert simulate_run(nodes, forecast, jobs=2).seconds == 7
    assert simulate_run(nodes, forecast, jobs=2, exclusive_gpu=True).seconds == 8


def build_study() -> tuple[Params, list[StageNode], StudyForecast]:
    """Return a study of three models with one task: gpt takes longest, and then elmo."""
    models = ["gpt", "elmo", "word2vec"]
    grid = {"models": models, "tasks": ["mood"], "adapt_models": [], "adapt_tasks": []}
    budget = {"text_bytes": TEXT_BYTES, "max_epochs": PASSES}
    params = small_params(grid=grid, budget=budget)
    nodes = [build_node("baselines@mood")]
    seconds: dict[str, Any] = {"baselines@mood": 10, "report": 5}
    for model, pretraining in zip(models, (400, 200, 20), strict=True):
        nodes.append(build_node(f"pretrain@{model}-0"))
        nodes.append(build_node(f"evaluate@{model}-0-mood", (f"pretrain@{model}-0",)))
        seconds |= {f"pretrain@{model}-0": pretraining, f"evaluate@{model}-0-mood": 30}
    nodes.append(build_node("report", tuple(node.name for node in nodes)))
    return params, nodes, build_forecast(**seconds)


def propose_for(seconds: float) -> tuple[Params, Proposal]:
    params, nodes, forecast = build_study()
    by_name = {node.name: node for node in nodes}

    def simulate(names: Sequence[str], changed: StudyForecast) -> float:
        return simulate_run([by_name[one] for one in names], changed, jobs=1).seconds

    proposal = propose([*by_name], forecast, params, limit_seconds=seconds, simulate=simulate)
    return params, proposal


def test_the_most_models_that_fit_and_the_most_text_for_all_are_proposed() -> None:
    params, proposal = propose_for(310)
    assert proposal.models == {"word2vec": 65, "elmo": 295}
    # 105 s of other stages leave 205 of 620 for reading: 0.32 of the text, in steps of 0.02.
    assert proposal.text_bytes == 0.32 * TEXT_BYTES and proposal.text_seconds <= 310
    assert describe_proposal(proposal, params) == [
        "grid.models: [elmo, word2vec] takes about 5 min",
        "budget.text_bytes: 1,280,000 with all models takes about 5 min",
    ]


def test_less_than_one_pass_and_what_takes_longer_are_not_proposed() -> None:
    params, proposal = propose_for(200)
    assert proposal.models == {"word2vec": 65} and proposal.text_bytes == 0
    params, proposal = propose_for(60)
    assert proposal == Proposal({})
    (line,) = describe_proposal(proposal, params)
    assert line.startswith("nothing does: even the cheapest model takes longer")


def test_the_forecast_is_printed_by_verb_and_by_stage(capsys: pytest.CaptureFixture[str]) -> None:
    nodes = [build_node("sources"), build_node("task@a"), build_node("task@b")]
    forecast = StudyForecast(
        {
            "sources": StageForecast(3.0, 300_000_000, 0),
            "task@a": StageForecast(100.0, 400_000_000, 2_000_000),
            "task@b": StageForecast(740.0, 2_700_000_000, 108_000_000),
        }
    )
    run = simulate_run(nodes, forecast, jobs=2)
    print_forecast(nodes, forecast, run)
    *table, longest, total = capsys.readouterr().out.splitlines()
    assert longest == "longest: task@b 12 min, task@a 2 min, sources 3 s"
    assert [line.split() for line in table[1:]] == [
        ["sources", "1", "3", "s", "300", "MB", "0", "kB"],
        ["task", "2", "14", "min", "2.7", "GB", "110", "MB"],
    ]
    assert total == (
        "about 12 min on 2 stages at a time, 3.1 GB of memory, 220 MB of disk, "
        "if nothing else uses this machine"
    )
    print_forecast(nodes, forecast, run, by_stage=True)
    lines = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert ["task@b", "1", "12", "min", "2.7", "GB", "108", "MB"] in lines
    assert [format_seconds(seconds) for seconds in (0.4, 99, 100, 5900, 6000)] == [
        "0 s",
        "99 s",
        "2 min",
        "98 min",
        "1.7 h",
    ]
    assert format_bytes(999_999) == "1000 kB"


def test_the_forecast_says_for_which_machine_it_is(capsys: pytest.CaptureFixture[str]) -> None:
    nodes = [build_node("sources")]
    forecast = build_forecast(sources=3)
    run = simulate_run(nodes, forecast, jobs=1)
    print_forecast(nodes, forecast, run)
    assert "GPU" not in capsys.readouterr().out
    print_forecast(nodes, dataclasses.replace(forecast, lacks_gpu=True), run)
    assert "no GPU" in capsys.readouterr().out


def prepare_study(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Params:
    """Write a user's project, and prepare its data as the stage sources does."""
    monkeypatch.setattr("lineage.forecast.rehearsal.TRAINING_SECONDS", 1.0)
    user_project.make_project(folder)
    monkeypatch.chdir(folder)
    evaluate = {"finetune": user_project.SHORT_FINETUNING, "linear_probe": {"l2": 0.01}}
    small = {
        "architecture": {"num_layers": 2, "num_heads": 2},
        "pretrain": {"seq_len": 64},
        "tokenizer": {"vocab_size": 400},
        "evaluate": evaluate,
    }
    static = {"tokenizer": {"vocab_size": 200}, "evaluate": evaluate}
    params = small_params(
        budget={"body_parameters": 40_000, "text_bytes": 20_000},
        tasks={"mood": {"max_words": 24}},
        models={"gpt": small, "word2vec": static},
        grid={
            "models": ["gpt", "word2vec"],
            "join_models": ["gpt"],
            "join_tasks": ["mood"],
            "join_static_model": "word2vec",
        },
    )
    user_project.write_params(folder, resolved_values(params))
    shutil.copy(package_file("dvc.yaml"), folder)
    check_corpus("general", params, {}, {}, folder)
    check_task_data("mood", params, folder)
    return params


def rehearse(
    study: Path,
    params: Params,
    names: Sequence[str],
    on_progress: Callable[[float, str], None] = lambda *_: None,
) -> StudyForecast:
    """Return the forecast of these stages."""
    nodes = [build_node(name) for name in names]
    models = check_study(params)
    return forecast_study(study, nodes, params, models, study, jobs=2, on_progress=on_progress)


def test_a_study_has_a_forecast_of_every_stage(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The real stages are rehearsed, with their counts, and nothing of that stays in the study."""
    study = tmp_path / "study"
    params = prepare_study(study, monkeypatch)
    before = {path for path in study.rglob("*") if path.is_file()}
    names = ["sources", "corpus@general", "ngram", "report", "publish"]
    for verb, instances in params.grid.stage_instances.items():
        names += [f"{verb}@{instance}" for instance in instances]
    reports: list[tuple[float, str]] = []
    forecast = rehearse(study, params, names, lambda done, note: reports.append((done, note)))
    assert [*forecast.stages] == names
    for name, stage in forecast.stages.items():
        assert 0 < stage.seconds < 300, name
        assert 50_000_000 < stage.memory_bytes < 3_000_000_000, name
    assert forecast.stages["pretrain@gpt-0"].disk_bytes > 4 * 40_000
    evaluate = forecast.stages["evaluate@gpt-0-mood"]
    assert evaluate.seconds > forecast.stages["evaluate_adapted@gpt-0-mood"].seconds
    assert reports[-1][0] == 1.0 and "tokenizer@gpt" in {note for _, note in reports}
    assert {path for path in study.rglob("*") if path.is_file()} == before


def test_only_stages_that_would_run_and_what_they_need_are_rehearsed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    study = tmp_path / "study"
    params = prepare_study(study, monkeypatch)
    metadata = study / METADATA_DIR
    metadata.mkdir()
    (metadata / "report.json").write_text('{"seconds": 7.5, "peak_memory_bytes": 9}')
    rehearsed: set[str] = set()

    def forecast(*names: str) -> StudyForecast:
        rehearsed.clear()
        return rehearse(study, params, names, lambda done, name: rehearsed.add(name))

    training = forecast("sources", "pretrain@gpt-0", "report").stages
    assert [*training] == ["report", "sources", "pretrain@gpt-0"]
    assert training["report"] == StageForecast(7.5, 9, 0)
    assert rehearsed == {"tokenizer@gpt", "recipe@gpt", "pretrain@gpt-0"}
    assert [*forecast("report").stages] == ["report"]
    assert not rehearsed


def test_a_stage_that_cannot_be_rehearsed_is_one_plain_message(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    study = tmp_path / "study"
    params = prepare_study(study, monkeypatch)
    (study / "texts/00.txt").unlink()
    (study / "mood/train.csv").unlink()
    with pytest.raises(InputError, match=r"^forecast of sources: params.yaml: tasks.mood.*") as one:
        rehearse(study, params, ["ngram"])
    assert "\n" not in str(one.value)


def test_data_that_a_stage_has_taken_are_found_among_the_artifacts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    params = prepare_study(tmp_path / "study", monkeypatch)
    first = copy_data(params, tmp_path / "first")
    folders = {"corpus/general": "corpora/general", "task/mood": "tasks/mood"}
    for prepared, artifact in folders.items():
        (source,) = (Path(".lineage/prepared") / prepared).iterdir()
        target = Path("artifacts") / artifact
        target.parent.mkdir(parents=True)
        source.rename(target)
        (target / "manifest.json").write_text("{}")
    assert copy_data(params, tmp_path / "second") == first
    for artifact in folders.values():
        (Path("artifacts") / artifact).rename(tmp_path / artifact.replace("/", "-"))
    assert copy_data(params, tmp_path / "third") == first, "it was read again"


def copy_data(params: Params, scratch: Path) -> tuple[dict[str, int], int]:
    """Return the bytes of the copied corpus, and the number of training items."""
    corpus = copy_corpus(params, Path.cwd(), scratch)
    folder = copy_task("mood", params, Path.cwd(), scratch)
    return measure_corpus(corpus), len(TaskData.load(folder, split="test").splits["train"])


FORECAST_SCRIPT = """
import json
from pathlib import Path
from flows.plan import read_graph
from flows.rehearsal import forecast_study
from lineage.study.checks import check_study
from lineage.config.params import read_params
from lineage.study.source_records import collect_records
from lineage.runtime.settings import resolve_data_root


def main():
    params = read_params()
    root = resolve_data_root()
    collect_records(params, root)
    nodes = read_graph(Path.cwd())
    forecast = forecast_study(Path.cwd(), nodes, params, check_study(params), root, jobs=2)
    seconds = {name: stage.seconds for name, stage in forecast.stages.items()}
    memory = {name: stage.memory_bytes for name, stage in forecast.stages.items()}
    print(json.dumps({"seconds": seconds, "memory": memory}))


if __name__ == "__main__":  # stages are forked from a server that imports this file
    main()
"""


@pytest.mark.slow
def test_a_study_takes_what_was_forecast_within_a_factor_of_one_and_a_half(tmp_path: Path) -> None:
    """Seconds without those of other programs are compared, as the stages measure them."""
    folder = create_own_study(tmp_path / "lineage")
    set_params(
        folder,
        corpora__general__sources=[{"generated": "synthetic", "num_documents": 500}],
        budget__text_bytes=1_500_000,
        budget__body_parameters=200_000,
        models__gpt__tokenizer__vocab_size=1000,
        models__bert={"tokenizer": {"vocab_size": 1000}, "pretrain": {"seq_len": 64}},
        models__word2vec={"tokenizer": {"vocab_size": 1000}},
        grid__models=["gpt", "bert", "word2vec"],
    )
    (folder / "forecast.py").write_text(FORECAST_SCRIPT)
    forecast = json.loads(run_command(folder, "python", "forecast.py").splitlines()[-1])
    run_command(folder, *RUN_STUDY)
    metadata = {
        name: json.loads((folder / f".lineage/metadata/{name}.json").read_text())
        for name in forecast["seconds"]
    }
    seconds = sum(one["work_seconds"] for one in metadata.values())
    forecast_seconds = sum(forecast["seconds"].values())
    assert 1 / 1.5 < forecast_seconds / seconds < 1.5, (forecast, seconds)
    for name, memory_bytes in forecast["memory"].items():
        assert 1 / 1.5 < memory_bytes / metadata[name]["peak_memory_bytes"] < 1.5, name
