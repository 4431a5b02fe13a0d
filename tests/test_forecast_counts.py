"""The work that methods and trainings announce is the work that they do."""

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest.mock import MagicMock

import pytest

from lineage.artifacts import create_artifact
from lineage.config.params import Grid, parse_params
from lineage.config.resolve import merge_trees
from lineage.data.task_data import TaskData
from lineage.evaluation.evaluate import count_features, count_runs, evaluate_runs
from lineage.evaluation.heldout import MAX_HELDOUT_BYTES, heldout_part
from lineage.evaluation.requested_runs import EVALUATIONS, count_evaluation, list_requested_runs
from lineage.forecast.counts import StageName, count_stage
from lineage.methods import bilstm_probe, early_stopping, finetuning
from lineage.methods.base import RunItems
from lineage.methods.early_stopping import ValidatedTraining, count_training
from lineage.methods.encoder import BaselineContext, EvalContext, EvalRun
from lineage.methods.registry import EvaluateSettings, list_baselines
from lineage.methods.translation import TranslationMethod
from lineage.methods.trials import RACE_VALIDATIONS, Trial
from lineage.study.models import load_model_config
from lineage.tokenizers.token_ids import encode_corpus
from lineage.training.pretrain import pretrain
from lineage.training.train_run import ALL_TEXT_VALIDATIONS, SHORT_VALIDATIONS, TrainContext
from lineage.work import TRAINING_PASSES, Work, WorkLog
from tests.helpers import tiny, user_project
from tests.helpers.first_word import FINETUNE, PROBE

TRIALS = (Trial(learning_rate=0.01), Trial(learning_rate=0.02, epochs=3))
NUM_VALIDATION, NUM_TEST = 13, 29  # items of the task


def record_trainings(monkeypatch: pytest.MonkeyPatch, module: Any) -> Callable[[], float]:
    """Return a function that counts the work of all trainings that a module has started."""
    trainings: list[ValidatedTraining[Any]] = []

    def recording_training(
        state: Any, model: Any, objective: Any, sampler: Any, *rest: Any, **options: Any
    ) -> Any:
        training: Any = ValidatedTraining(state, model, objective, sampler, *rest, **options)
        training.num_items = len(sampler.items)
        trainings.append(training)
        return training

    monkeypatch.setattr(module, "ValidatedTraining", recording_training)

    def count_work() -> float:
        work = 0.0
        for training in trainings:
            items_per_step = training.num_items / training.steps_per_epoch  # type: ignore[attr-defined]
            work += TRAINING_PASSES * items_per_step * training.state.counters.steps
            work += len(training.curve) * NUM_VALIDATION
        return work

    return count_work


def count_by_part(context: EvalContext, runs: list[EvalRun]) -> dict[str, float]:
    """Return the announced work of each part."""
    counted: dict[str, float] = {}
    for work in count_runs(context, runs).values():
        counted[work.part] = counted.get(work.part, 0.0) + work.count
    return counted


def grid(**changes: Any) -> Grid:
    """Return the grid of one model and one task."""
    keys: dict[str, Any] = {
        "models": ("gpt",),
        "tasks": ("toy",),
        "pretrain_seeds": (0,),
        "adapt_models": (),
        "adapt_tasks": (),
        "target_only_models": (),
        "finetune_seeds": (0, 1),
        "label_counts": (20, "all"),
    }
    return Grid(**(keys | changes))


def build_context(data: TaskData, settings: EvaluateSettings) -> EvalContext:
    return tiny.eval_context("gpt", data, settings)


@pytest.mark.parametrize("trials", [(), TRIALS])
@pytest.mark.parametrize("min_steps", [None, 17])
def test_the_announced_work_of_trainings_is_done(
    task: TaskData,
    trials: tuple[Trial, ...],
    min_steps: int | None,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Trials may differ in their epochs, so a later seed may fit another one than was counted."""
    finetune = dataclasses.replace(FINETUNE, epochs=2, min_steps=min_steps, trials=trials)
    bilstm = dataclasses.replace(tiny.BILSTM_PROBE, epochs=2, min_steps=min_steps)
    settings = EvaluateSettings(linear_probe=PROBE, bilstm_probe=bilstm, finetune=finetune)
    data = TaskData(dataclasses.replace(task.info, probes=["linear", "bilstm"]), task.splits)
    seeds = (0,) if trials else (0, 1)
    context = build_context(data, settings)
    runs = [*tiny.list_runs(data.info, ("random",), (20, "all"), seeds)]
    counted = count_by_part(context, runs)
    finetune_work = record_trainings(monkeypatch, finetuning)
    bilstm_work = record_trainings(monkeypatch, bilstm_probe)
    log = WorkLog()
    evaluate_runs(context, runs, cache_dir=tmp_path, report_progress=lambda *_: None, work=log)
    predicted = len(seeds) * 2 * (NUM_VALIDATION + NUM_TEST)
    tried = len(trials) * 2 * NUM_VALIDATION
    assert counted["random finetune"] == pytest.approx(finetune_work() + predicted + tried)
    assert counted["random bilstm_probe"] == pytest.approx(bilstm_work() + predicted)
    logged = [work for work in log.done if not work.part.endswith("features")]
    announced = count_runs(context, runs).values()
    assert [(one.part, one.count) for one in logged] == [(one.part, one.count) for one in announced]
    assert all(work.seconds > 0 for work in log.done)
    features = [work for work in log.done if work.part.endswith("features")]
    expected = count_features(context, runs)
    assert {one.part: one.count for one in features} == {one.part: one.count for one in expected}
    assert len(features) == 2 and all(work.memory_bytes > 0 for work in features)


def test_the_announced_work_of_a_race_is_done(
    task: TaskData, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The winner of each race takes all its steps, since the patience is never used up."""
    monkeypatch.setattr(early_stopping, "EARLY_STOPPING_SHARE", 1.0)
    rates = (Trial(learning_rate=1e-7), Trial(learning_rate=0.02), Trial(learning_rate=1e-6))
    changes: Any = {"epochs": 20, "min_steps": None, "patience": 99, "trials": rates}
    finetune = dataclasses.replace(FINETUNE, gradual_unfreezing=0.0, **changes)
    bilstm = dataclasses.replace(tiny.BILSTM_PROBE, **changes)
    settings = EvaluateSettings(linear_probe=PROBE, bilstm_probe=bilstm, finetune=finetune)
    data = TaskData(dataclasses.replace(task.info, probes=["bilstm"]), task.splits)
    context = build_context(data, settings)
    runs = [*tiny.list_runs(data.info, ("random",), (30,), (0, 1))]
    counted = count_by_part(context, runs)
    finetune_work = record_trainings(monkeypatch, finetuning)
    bilstm_work = record_trainings(monkeypatch, bilstm_probe)
    tiny.evaluate_runs(context, runs, tmp_path)
    predicted = 2 * (NUM_VALIDATION + NUM_TEST) + 3 * NUM_VALIDATION
    assert counted["random finetune"] == pytest.approx(finetune_work() + predicted)
    assert counted["random bilstm_probe"] == pytest.approx(bilstm_work() + predicted)
    # 30 items in batches of five; the second seed has one training alone.
    validations = 2 * 20 + 2 * RACE_VALIDATIONS
    steps = 2 * 120 + 2 * RACE_VALIDATIONS * 6
    assert finetune_work() == TRAINING_PASSES * 5 * steps + validations * NUM_VALIDATION


def test_a_training_is_expected_to_stop_after_a_part_of_its_epochs() -> None:
    """A hundred items in batches of five are 20 steps in each of 20 epochs."""
    settings = dataclasses.replace(FINETUNE, epochs=20, batch_size=5, min_steps=None)
    assert count_training(settings, 100) == (400, 20)
    stopping = dataclasses.replace(settings, patience=5)
    assert count_training(stopping, 100) == (320, 16)
    assert count_training(stopping, 0) == (0, 0)
    # A trial that loses a race is validated five times, or as often as it is trained.
    losers = [count_training(stopping, items, max_validations=5) for items in (100, 10, 0)]
    assert [steps for steps, _ in losers] == [100, 10, 0]
    # More than 20,000 steps are validated every 1,000 steps.
    assert count_training(stopping, 10_000, max_validations=5) == (5000, 5)
    short = dataclasses.replace(stopping, epochs=1)
    assert count_training(short, 20, max_validations=5) == count_training(short, 20) == (3, 3)


def test_each_method_counts_what_it_reads() -> None:
    items = RunItems(train=20, validation=5, scored=40, chooses_trial=True)
    probe = dataclasses.replace(PROBE, trials=(Trial(l2=0.1), Trial(l2=0.2)))
    assert probe.count_work(items) == 2 * PROBE.count_work(items) - 40 + 2 * 5
    later = dataclasses.replace(items, chooses_trial=False)
    assert probe.count_work(later) == PROBE.count_work(items), "another run has chosen"
    assert TranslationMethod(epochs=3).count_work(items) == TRAINING_PASSES * 60 + 40
    for method in list_baselines((0.1, 1.0)).methods.values():
        assert method.count_work(items) >= 40


def test_label_counts_of_a_method_are_counted(task: TaskData) -> None:
    finetune = dataclasses.replace(FINETUNE, label_counts=(20,))
    settings = EvaluateSettings(linear_probe=PROBE, finetune=finetune)
    data = TaskData(dataclasses.replace(task.info, probes=["linear"]), task.splits)
    context = BaselineContext(data, settings)
    evaluation = EVALUATIONS["evaluate"]
    runs = list_requested_runs(context, grid(), evaluation, "gpt")
    counted = count_evaluation(context, grid(), evaluation, "gpt")
    parts = [one.part for one in counted]
    fine_tuned = {run.label_count for run in runs if run.method == "finetune"}
    assert fine_tuned == {20}
    assert len(runs) == 2 * 2 + 2 * 2 * 2 and parts.count("random finetune") == 2
    assert parts.count("random linear_probe") == 4
    assert "random setfit" not in parts, "the grid does not name the model"
    named = list_requested_runs(context, grid(setfit_models=("gpt",)), evaluation, "gpt")
    assert "setfit" in {run.method for run in named}
    features = next(one for one in counted if one.part == "random linear_probe features")
    assert features.count == 60 + NUM_VALIDATION + NUM_TEST


def test_intermediate_checkpoints_are_counted(task: TaskData) -> None:
    """Both seeds are evaluated again, frozen and with all labels, at both shares."""
    settings = EvaluateSettings(linear_probe=PROBE, finetune=FINETUNE)
    context = BaselineContext(
        TaskData(dataclasses.replace(task.info, probes=["linear"]), task.splits), settings
    )
    shares = grid(text_shares=(0.25, 0.5))
    parts = [one.part for one in count_evaluation(context, shares, EVALUATIONS["evaluate"], "gpt")]
    assert parts.count("intermediate pretrained linear_probe") == 2 * 2
    assert parts.count("intermediate pretrained linear_probe features") == 2
    adapted = count_evaluation(context, shares, EVALUATIONS["evaluate_adapted"], "gpt")
    assert not [one for one in adapted if one.part.startswith("intermediate")]


def test_folds_are_counted_with_their_own_sizes(task: TaskData) -> None:
    info = dataclasses.replace(task.info, folds=5, validation_share=0.25)
    data = TaskData(info, {"train": task.splits["train"]})
    settings = EvaluateSettings(linear_probe=PROBE, finetune=FINETUNE)
    context = BaselineContext(data, settings)
    folds = grid(finetune_seeds=(3,), label_counts=("all",))
    counted = count_evaluation(context, folds, EVALUATIONS["evaluate_adapted"], "gpt")
    probes = [one for one in counted if one.part == "adapted linear_probe"]
    expected = PROBE.count_work(RunItems(train=36, validation=12, scored=24))
    assert [one.count for one in probes] == [expected] * 5


def test_symmetric_items_are_predicted_in_each_order_too(task: TaskData) -> None:
    data = TaskData(dataclasses.replace(task.info, probes=["linear"], symmetric=True), task.splits)
    settings = EvaluateSettings(linear_probe=PROBE, finetune=FINETUNE)
    context = BaselineContext(data, settings)
    run = EvalRun("random", "linear_probe", "all", 0)
    (work,) = count_runs(context, [run]).values()
    (features,) = count_features(context, [run])
    assert work.count == PROBE.count_work(
        RunItems(60, NUM_VALIDATION, 3 * (NUM_VALIDATION + NUM_TEST))
    )
    assert features.count == 102 + 2 * (NUM_VALIDATION + NUM_TEST)


@pytest.mark.parametrize("name", ["gpt", "word2vec", *tiny.mark_slow(["bert", "ulmfit", "elmo"])])
def test_a_rehearsed_pretraining_logs_its_steps(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It ends early, and what it has read, it logs."""
    monkeypatch.setattr("lineage.training.train_run.rehearsal_limit", lambda: 60.0)
    corpus = encode_corpus(tiny.documents()[:4], tiny.tokenizer(name))
    with create_artifact(tmp_path / "tokens", "tokens") as draft:
        tiny.tokenizer(name).save(draft)
        for split in ("train", "valid"):
            corpus.save(draft, split)
    budget = {"text_bytes": 2 * corpus.text_bytes, "body_parameters": tiny.BODY_PARAMETERS}
    params = parse_params(merge_trees(user_project.PARAMS, {"budget": budget}))
    context = TrainContext(tiny.CPU, MagicMock(), tmp_path / "resume", 99, lambda *_: None)
    output = pretrain(tiny.checkpoint(name), tmp_path / "tokens", params, context)
    done = context.work.done
    text_bytes = sum(work.count for work in done if work.part == "training")
    assert text_bytes == output.budget_used.text_bytes
    if name != "word2vec":
        steps = sum(work.count for work in done if work.part == "steps")
        assert steps == output.budget_used.steps
        validations = [work for work in done if work.part == "validation"]
        (planned,) = [work.count for work in done if work.part == SHORT_VALIDATIONS] or [0]
        assert not planned or len(validations) == planned == 10


def test_a_search_is_counted_with_all_its_trials() -> None:
    tree = tiny.demo_params()
    tree["grid"]["sweep"] = ["gpt"]
    params = parse_params(tree)
    models = {name: load_model_config(params, name) for name in ("gpt", "bert")}
    done = [
        Work("training", 4000.0, 1.0),
        Work("steps", 10.0),
        Work(SHORT_VALIDATIONS, 5.0),
        Work(ALL_TEXT_VALIDATIONS, 1.0),
    ]
    rehearsal = MagicMock()
    rehearsal.params = params
    rehearsal.data.corpus = {"train": 1_000_000, "valid": 50_000}

    def count(model: str) -> list[Work]:
        return count_stage(StageName("recipe", model, ""), rehearsal, done, models)

    trainings = [work.count for work in count("gpt") if work.part == "training"]
    # Three rates with three batch sizes; then three weight decays and two dropouts besides its own.
    assert models["gpt"].pretrain.weight_decay == 0.01
    assert len(trainings) == 9 + 3 + 2
    assert set(trainings) == {params.budget.text_bytes / 10}
    validations = {work.count for work in count("gpt") if work.part == "validation"}
    assert validations == {5 * 10 * 400 + 50_000}, "short ones of ten batches, and one of all text"
    assert count("bert") == []


def test_the_stage_ngram_grows_with_both_texts_and_the_pretrainings() -> None:
    """Models and seeds that were not rehearsed take as long as those that represent them."""
    rehearsal = MagicMock()
    rehearsal.params.grid.models = ("gpt", "gpt_again", "bert")
    rehearsal.params.grid.pretrain_seeds = (0, 1, 2)
    rehearsal.params.budget.text_bytes = 12_000_000
    rehearsal.small.budget.text_bytes = 150_000
    rehearsal.stand_ins = {"gpt": "gpt", "gpt_again": "gpt", "bert": "bert"}
    rehearsal.data.corpus = {"train": 6_000_000, "valid": 9_000_000}
    rehearsal.data.sampled_corpus = {"train": 300_000, "valid": 40_000}
    done = [Work("budget", 150_000, 1.0), Work(heldout_part("gpt"), 40_000, 2.0)]
    done.append(Work(heldout_part("bert"), 40_000, 3.0))
    counted = count_stage(StageName("ngram", "", ""), rehearsal, done, {})
    counts = {part: [one.count for one in counted if one.part == part] for part in _parts(done)}
    assert counts["budget"] == [6_000_000]
    assert counts[heldout_part("gpt")] == [MAX_HELDOUT_BYTES] * 6
    assert counts[heldout_part("bert")] == [MAX_HELDOUT_BYTES] * 3


def _parts(done: list[Work]) -> set[str]:
    return {one.part for one in done}
