"""The forecast counts what the code does, and runs the scheduler in thought."""

import dataclasses
import json
import resource
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest.mock import MagicMock

import pytest

from flows.forecast import (
    format_bytes,
    format_seconds,
    print_forecast,
    simulate_run,
)
from flows.plan import StageNode
from lineage.artifacts import create_artifact
from lineage.config.params import Params, parse_params
from lineage.config.resolve import merge_trees
from lineage.data.checks import check_corpus, check_task_data
from lineage.data.task_data import TaskData
from lineage.evaluation.evaluate import evaluate_runs
from lineage.forecast.data import copy_corpus, copy_task
from lineage.forecast.evaluation import (
    EvaluationCosts,
    HeadCosts,
    count_evaluation,
    count_race_steps,
    count_steps,
    count_validations,
    evaluation_seconds,
)
from lineage.forecast.measure import LinearCost, fit_line, measure_growing
from lineage.forecast.records import StageForecast, StudyForecast
from lineage.forecast.study import forecast_study
from lineage.forecast.training import TrainingCosts, probe_training
from lineage.methods import bilstm_probe, finetuning
from lineage.methods.early_stopping import ValidatedTraining
from lineage.methods.encoder import EvalContext
from lineage.methods.registry import EvaluateSettings
from lineage.methods.trials import Trial
from lineage.study.checks import check_study
from lineage.training.pretrain import pretrain
from lineage.training.state import TrainState
from lineage.training.train_run import TrainContext
from tests import tiny, user_project
from tests.checkout import RUN_STUDY, create_own_study, run_command, set_params
from tests.test_transfer import FINETUNE, PROBE, task  # noqa: F401


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
    stages = {name: StageForecast(value, 100, 10) for name, value in seconds.items()}
    return StudyForecast(stages, probe_seconds=0.0)


def count_gradient_steps(monkeypatch: pytest.MonkeyPatch, module: Any) -> Callable[[], int]:
    """Count the gradient steps that a module's training takes."""
    states: list[TrainState] = []

    def recording_training(state: TrainState, *arguments: Any, **options: Any) -> Any:
        states.append(state)
        return ValidatedTraining(state, *arguments, **options)

    monkeypatch.setattr(module, "ValidatedTraining", recording_training)
    return lambda: sum(state.counters.steps for state in states)


TRIALS = (Trial(learning_rate=0.01), Trial(learning_rate=0.02, epochs=3))


@pytest.mark.parametrize("trials", [(), TRIALS])
@pytest.mark.parametrize("min_steps", [None, 17])
def test_the_counted_steps_are_those_of_an_evaluation(
    task: TaskData,  # noqa: F811
    trials: tuple[Trial, ...],
    min_steps: int | None,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Trials may differ in their epochs, so a later seed may fit another one than was counted."""
    finetune = dataclasses.replace(FINETUNE, epochs=2, min_steps=min_steps, trials=trials)
    bilstm = dataclasses.replace(tiny.BILSTM_PROBE, epochs=2)
    settings = EvaluateSettings(linear_probe=PROBE, bilstm_probe=bilstm, finetune=finetune)
    data = TaskData(task.info | {"probes": ["linear", "bilstm"]}, task.splits)
    seeds = (0,) if trials else (0, 1)
    params = small_params(grid={"finetune_seeds": list(seeds), "label_counts": [20, "all"]})
    counts = count_evaluation(data, settings, params, inits=("random",))
    finetune_steps = count_gradient_steps(monkeypatch, finetuning)
    bilstm_steps = count_gradient_steps(monkeypatch, bilstm_probe)
    context = EvalContext(tiny.checkpoint("gpt"), data, settings, 0, 1000, "fp32", tiny.CPU)
    runs = [*tiny.list_runs(data.info, ("random",), (20, "all"), seeds)]
    evaluate_runs(context, runs, cache_dir=tmp_path, report_progress=lambda *_: None)
    assert [run_counts.run for run_counts in counts.runs] == runs
    assert counts.num_steps("finetuned") == finetune_steps()
    assert counts.num_steps("frozen", "bilstm") == bilstm_steps()


def test_a_training_is_expected_to_stop_after_a_part_of_its_epochs() -> None:
    """A hundred items in batches of five are 20 steps in each of 20 epochs."""
    settings = dataclasses.replace(FINETUNE, epochs=20, batch_size=5, min_steps=None)
    assert (count_steps(settings, 100), count_validations(settings, 100)) == (400, 20)
    stopping = dataclasses.replace(settings, patience=5)
    assert (count_steps(stopping, 100), count_validations(stopping, 100)) == (280, 14)
    assert (count_steps(stopping, 0), count_validations(stopping, 0)) == (0, 0)
    assert (count_steps(PROBE, 100), count_validations(PROBE, 100)) == (0, 0)
    # A trial that loses a race is validated five times, or as often as it is trained.
    assert [count_race_steps(stopping, items) for items in (100, 10, 0)] == [100, 10, 0]
    # More than 20,000 steps are validated every 1,000 steps.
    assert count_race_steps(stopping, 10_000) == 5000
    short = dataclasses.replace(stopping, epochs=1)
    assert count_race_steps(short, 20) == count_steps(short, 20) == 3


def test_the_counted_steps_of_a_race_are_those_of_an_evaluation(
    task: TaskData,  # noqa: F811
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The winner of each race takes all its steps, since the patience is never used up."""
    monkeypatch.setattr("lineage.forecast.evaluation.EARLY_STOPPING_SHARE", 1.0)
    rates = (Trial(learning_rate=1e-7), Trial(learning_rate=0.02), Trial(learning_rate=1e-6))
    changes: Any = {"epochs": 20, "min_steps": None, "patience": 99, "trials": rates}
    finetune = dataclasses.replace(FINETUNE, gradual_unfreezing=0.0, **changes)
    bilstm = dataclasses.replace(tiny.BILSTM_PROBE, **changes)
    settings = EvaluateSettings(linear_probe=PROBE, bilstm_probe=bilstm, finetune=finetune)
    data = TaskData(task.info | {"probes": ["bilstm"]}, task.splits)
    params = small_params(grid={"finetune_seeds": [0, 1], "label_counts": ["all"]})
    counts = count_evaluation(data, settings, params, inits=("random",))
    finetune_steps = count_gradient_steps(monkeypatch, finetuning)
    bilstm_steps = count_gradient_steps(monkeypatch, bilstm_probe)
    context = EvalContext(tiny.checkpoint("gpt"), data, settings, 0, 1000, "fp32", tiny.CPU)
    runs = [*tiny.list_runs(data.info, ("random",), ("all",), (0, 1))]
    evaluate_runs(context, runs, cache_dir=tmp_path, report_progress=lambda *_: None)
    # 60 items in batches of five or eight; the second seed has one training alone.
    assert counts.num_steps("finetuned") == finetune_steps() == 2 * 240 + 2 * 5 * 12
    assert counts.num_steps("frozen", "bilstm") == bilstm_steps() == 2 * 160 + 2 * 5 * 8
    assert [run.num_validations for run in counts.runs] == [20 + 2 * 5, 20] * 2


def test_label_counts_of_a_method_are_counted(task: TaskData) -> None:  # noqa: F811
    finetune = dataclasses.replace(FINETUNE, label_counts=(20,))
    settings = EvaluateSettings(linear_probe=PROBE, finetune=finetune)
    data = TaskData(task.info | {"probes": ["linear"]}, task.splits)
    counts = count_evaluation(data, settings, small_params(), inits=("pretrained", "random"))
    finetuned = [counted for counted in counts.runs if counted.run.transfer == "finetuned"]
    frozen = [counted for counted in counts.runs if counted.run.transfer == "frozen"]
    assert {counted.train_items for counted in finetuned} == {20}
    assert {counted.train_items for counted in frozen} == {20, 60}
    assert len(finetuned) == 2 * 2 and len(frozen) == 2 * 2 * 2
    assert counts.encoded_items == 60 + 13 + 29
    assert {counted.predicted_items for counted in counts.runs} == {13 + 29}


def test_folds_are_counted_with_their_own_sizes(task: TaskData) -> None:  # noqa: F811
    facts = {"probes": ["linear"], "folds": 5, "grouped": False, "validation_share": 0.25}
    data = TaskData(task.info | facts, {"train": task.splits["train"]})
    settings = EvaluateSettings(linear_probe=PROBE, finetune=FINETUNE)
    params = small_params(grid={"finetune_seeds": [3], "label_counts": ["all"]})
    counts = count_evaluation(data, settings, params, inits=("random",))
    assert len(counts.runs) == 2 * 5
    assert {counted.train_items for counted in counts.runs} == {36}
    assert {counted.validation_items for counted in counts.runs} == {12}
    assert {counted.predicted_items for counted in counts.runs} == {24}


def test_symmetric_items_are_predicted_in_each_order_too(task: TaskData) -> None:  # noqa: F811
    data = TaskData(task.info | {"probes": ["linear"], "symmetric": True}, task.splits)
    settings = EvaluateSettings(linear_probe=PROBE, finetune=FINETUNE)
    counts = count_evaluation(data, settings, small_params(), inits=("random",))
    assert {counted.predicted_items for counted in counts.runs} == {3 * 42}
    assert counts.feature_items == 102 + 2 * 42


def test_seconds_are_the_counts_times_the_costs(task: TaskData) -> None:  # noqa: F811
    """With one cost at a time, the seconds are the count of what it is the cost of."""
    data = TaskData(task.info | {"probes": ["linear"]}, task.splits)
    settings = EvaluateSettings(
        linear_probe=PROBE,
        finetune=dataclasses.replace(FINETUNE, epochs=2, batch_size=8, min_steps=None),
    )
    counts = count_evaluation(data, settings, small_params(), inits=("pretrained", "random"))

    def seconds(scoring_seconds: float = 0.0, **costs: Any) -> float:
        return evaluation_seconds(
            counts,
            EvaluationCosts(load_seconds=0.0, **{"encode_seconds": 0.0, **costs}),
            settings,
            answered_by="head",
            scoring_seconds=scoring_seconds,
        )

    num_runs = 2 * 2 * 2  # inits, label counts, seeds; of each transfer
    assert seconds(encode_seconds=1.0) == 2 * 102
    assert seconds(feature_seconds=1.0) == 2 * 102
    assert seconds(linear_fit=LinearCost(1.0)) == num_runs
    assert seconds(linear_fit=LinearCost(0.0, 1.0)) == 2 * 2 * (20 + 60)
    assert seconds(finetune=HeadCosts(fit_seconds=1.0)) == num_runs
    assert seconds(finetune=HeadCosts(step_seconds=1.0)) == 2 * 2 * 2 * (3 + 8)
    # Each of the few steps is followed by a validation.
    validated_items = 2 * 2 * 2 * (3 + 8) * 13
    expected = num_runs * 42 + validated_items
    assert seconds(finetune=HeadCosts(predict_seconds=1.0)) == expected
    assert seconds(build_seconds=1.0) == num_runs + 2
    assert seconds(scoring_seconds=1.0) == 2 * num_runs * 2


@pytest.mark.parametrize("name", ["gpt", *tiny.mark_slow(["bert", "ulmfit", "elmo"])])
def test_pretraining_takes_the_forecast_number_of_steps(name: str, tmp_path: Path) -> None:
    model = tiny.model_config(name)
    with create_artifact(tmp_path / "tokens" / name, "tokens") as draft:
        tiny.tokenizer(name).save(draft)
        for split in ("train", "valid"):
            tiny.corpus(name).save(draft, split)
    text_bytes = tiny.corpus(name).text_bytes
    budget = {"text_bytes": text_bytes, "body_parameters": tiny.BODY_PARAMETERS}
    params = small_params(budget=budget)
    costs = probe_training(model, params, tmp_path, Path(), tiny.CPU, max_seconds=60.0)
    context = TrainContext(tiny.CPU, MagicMock(), tmp_path / "resume", 99, lambda *_: None)
    output = pretrain(tiny.checkpoint(name), tmp_path / "tokens" / name, params, context)
    steps = output.budget_used.steps
    assert steps == output.curve.points[-1].step
    assert steps == pytest.approx(costs.steps_per_byte * text_bytes, rel=0.02, abs=1)


def test_a_training_validates_as_often_as_its_curve_says() -> None:
    costs = TrainingCosts(
        fixed_seconds=3.0,
        text=LinearCost(seconds_per_unit=0.5),
        steps_per_byte=0.1,
        validation_batch_seconds=1.0,
        validation_batch_bytes=10.0,
        num_validations=7,
        max_validation_batches=4,
        disk_bytes=0,
    )
    assert costs.training_seconds(100, heldout_bytes=20) == 3 + 50 + 7 * 2
    assert costs.training_seconds(100, heldout_bytes=2000) == 3 + 50 + 7 * 4
    params = small_params(adapt={"text_bytes": 300, "max_epochs": 2})
    seconds = costs.adaptation_seconds(params, train_bytes=100, heldout_bytes=2000)
    assert seconds == 3 + 100 + (10 + 2) * 200, "it reads all the held-out text each time"


def test_growing_work_is_extrapolated_along_a_line() -> None:
    sizes: list[int] = []
    measure = measure_growing(sizes.append, first_size=10, full_size=70, max_seconds=60.0)
    assert sizes == [10, 10, 20, 40, 70] and measure.largest_size == 70
    sizes.clear()
    measure_growing(sizes.append, first_size=10, full_size=70, max_seconds=0.0)
    assert sizes == [10, 10, 20], "a line needs two points"
    assert fit_line([(10, 3.0), (20, 5.0)]) == LinearCost(1.0, 0.2)
    assert fit_line([(10, 3.0), (20, 2.0)]) == LinearCost(2.0, 0.0)
    assert fit_line([(10, 1.0), (20, 5.0)]) == LinearCost(0.0, 0.25)


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


def test_the_forecast_is_printed_by_verb_and_by_stage(capsys: pytest.CaptureFixture[str]) -> None:
    nodes = [build_node("sources"), build_node("task@a"), build_node("task@b")]
    forecast = StudyForecast(
        {
            "sources": StageForecast(3.0, 300_000_000, 0),
            "task@a": StageForecast(100.0, 400_000_000, 2_000_000),
            "task@b": StageForecast(740.0, 2_700_000_000, 108_000_000),
        },
        probe_seconds=50.0,
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
    user_project.make_project(folder)
    monkeypatch.chdir(folder)
    small = {
        "architecture": {"num_layers": 2, "num_heads": 2},
        "pretrain": {"seq_len": 64},
        "tokenizer": {"vocab_size": 400},
    }
    params = small_params(
        budget={"body_parameters": 40_000, "text_bytes": 20_000},
        tasks={"mood": {"max_words": 24}},
        models={"gpt": small, "word2vec": {"tokenizer": {"vocab_size": 200}}},
        grid={
            "models": ["gpt", "word2vec"],
            "join_models": ["gpt"],
            "join_tasks": ["mood"],
            "join_static_model": "word2vec",
        },
    )
    check_corpus("general", params, {}, {}, folder)
    check_task_data("mood", params, folder)
    return params


def test_a_study_has_a_forecast_of_every_stage(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    params = prepare_study(tmp_path / "study", monkeypatch)
    reports: list[tuple[float, str]] = []
    forecast = forecast_study(
        params,
        check_study(params),
        tmp_path / "study",
        probe_seconds=2.0,
        on_progress=lambda done, note: reports.append((done, note)),
    )
    names = {"sources", "corpus@general", "ngram", "report", "publish"}
    for verb, instances in params.grid.stage_instances.items():
        names |= {f"{verb}@{instance}" for instance in instances}
    assert set(forecast.stages) == names
    for name, stage in forecast.stages.items():
        assert 0 < stage.seconds < 300, name
        assert 50_000_000 < stage.memory_bytes < 3_000_000_000, name
    assert forecast.stages["pretrain@gpt-0"].disk_bytes > 4 * 40_000
    evaluate = forecast.stages["evaluate@gpt-0-mood"]
    assert evaluate.seconds > forecast.stages["evaluate_adapted@gpt-0-mood"].seconds
    assert reports[-1][0] == 1.0 and "tokenizer gpt" in {note for _, note in reports}


def test_intermediate_checkpoints_are_in_the_forecast(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both seeds are evaluated, frozen and with all labels, at both shares."""
    params = prepare_study(tmp_path / "study", monkeypatch)
    grid = dataclasses.replace(params.grid, text_shares=(0.25, 0.5), target_only_models=("gpt",))
    params = dataclasses.replace(params, grid=grid)
    monkeypatch.setattr(
        "lineage.forecast.study.evaluation_seconds", lambda counts, *_, **__: len(counts.runs)
    )
    stages = forecast_study(
        params, check_study(params), tmp_path / "study", probe_seconds=2.0
    ).stages
    model_bytes = stages["adapt@gpt-0-mood"].disk_bytes
    assert stages["pretrain@gpt-0"].disk_bytes == 3 * model_bytes
    assert stages["target_only@gpt-0-mood"].disk_bytes == model_bytes
    own_runs = stages["evaluate_adapted@gpt-0-mood"].seconds
    assert stages["evaluate@gpt-0-mood"].seconds == 2 * own_runs + 2 * 2
    static_runs = 2 * own_runs  # word2vec has the same runs, pretrained and random-init
    assert stages["evaluate@word2vec-0-mood"].seconds == static_runs


def test_data_that_a_stage_has_taken_are_found_among_the_artifacts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    params = prepare_study(tmp_path / "study", monkeypatch)
    first = find_sizes(params, tmp_path / "first")
    folders = {"corpus/general": "corpora/general", "task/mood": "tasks/mood"}
    for prepared, artifact in folders.items():
        (source,) = (Path(".lineage/prepared") / prepared).iterdir()
        target = Path("artifacts") / artifact
        target.parent.mkdir(parents=True)
        source.rename(target)
        (target / "manifest.json").write_text("{}")
    assert find_sizes(params, tmp_path / "second") == first
    assert not (tmp_path / "second/read").exists(), "nothing was read again"
    for artifact in folders.values():
        (Path("artifacts") / artifact).rename(tmp_path / artifact.replace("/", "-"))
    assert find_sizes(params, tmp_path / "third") == first, "it was read again"


def find_sizes(params: Params, scratch: Path) -> tuple[Any, int]:
    """Return what is measured of the corpus, and the number of training items."""
    corpus = copy_corpus(params, Path.cwd(), scratch)
    folder = copy_task("mood", params, Path.cwd(), scratch)
    sizes = (corpus.train_bytes, corpus.valid_bytes, corpus.sample_bytes)
    return sizes, len(TaskData.load(folder, split="test").splits["train"])


FORECAST_SCRIPT = """
import json
from pathlib import Path
from flows.forecast import measure_overhead, print_forecast, simulate_run
from flows.plan import read_graph
from lineage.study.checks import check_study
from lineage.config.params import read_params
from lineage.data.checks import check_corpus, check_task_data
from lineage.forecast.study import forecast_study
from lineage.runtime.settings import resolve_data_root

params = read_params()
models = check_study(params)
root = resolve_data_root()
check_corpus("general", params, {}, {}, root)
for name in params.grid.tasks:
    check_task_data(name, params, root)
forecast = forecast_study(params, models, root, jobs=2)
nodes = read_graph(Path.cwd())
overhead = measure_overhead(len(nodes), jobs=2)
run = simulate_run(nodes, forecast, jobs=2, overhead_seconds=overhead)
print_forecast(nodes, forecast, run, overhead_seconds=overhead)
seconds = {name: stage.seconds for name, stage in forecast.stages.items()}
memory = {name: stage.memory_bytes for name, stage in forecast.stages.items()}
print(json.dumps({"seconds": seconds, "memory": memory, "overhead": overhead}))
"""


@pytest.mark.slow
def test_a_study_takes_what_was_forecast_within_a_factor_of_one_and_a_half(tmp_path: Path) -> None:
    """Seconds of the processor are compared, since other programs may use this machine."""
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
    forecast = json.loads(run_command(folder, "python", "-c", FORECAST_SCRIPT).splitlines()[-1])
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    run_command(folder, *RUN_STUDY)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    seconds = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    stages = forecast["seconds"]
    forecast_seconds = sum(stages.values()) + len(stages) * forecast["overhead"]
    assert 1 / 1.5 < forecast_seconds / seconds < 1.5, (forecast, seconds)
    for name, memory_bytes in forecast["memory"].items():
        metadata = json.loads((folder / f".lineage/metadata/{name}.json").read_text())
        assert 1 / 1.5 < memory_bytes / metadata["peak_memory_bytes"] < 1.5, name
