"""Of several learning rates, the best after five validations goes on to the end."""

import contextlib
import dataclasses
import gc
import math
import weakref
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from torch import nn

from benchmarks.convergence import RESULTS, format_race_table, read_results
from lineage.data.task_data import TaskData
from lineage.errors import EvaluationError
from lineage.evaluation.evaluate import EvaluationOutput, evaluate_runs
from lineage.methods.bilstm_probe import BilstmProbeMethod
from lineage.methods.early_stopping import EarlyStopping, Validation
from lineage.methods.finetuning import FinetuneMethod
from lineage.methods.heads import FittedHead, StartedHead
from lineage.methods.linear_probe import LinearProbeMethod
from lineage.methods.registry import EvaluateSettings
from lineage.methods.saved import read_record
from lineage.methods.trials import (
    AllTrialsFailedError,
    Trial,
    TrialsOutcome,
    TriedMethod,
    fit_best_trial,
    group_races,
)
from lineage.networks.weights import WEIGHTS_FILE
from tests.helpers import tiny
from tests.helpers.first_word import FINETUNE, PROBE
from tests.helpers.walkers import WalkerTraining, start_walker

# A Walker's training loss falls by 5 % after the first step, after nine steps, or never.
FAST = 0.3
SLOW = 0.01
NEVER = 1e-5
FASTS = (0.3, 0.31, 0.32)
TWENTY_STEPS = EarlyStopping(epochs=4, min_steps=None, patience=30)

Script = Sequence[Validation | EvaluationError]


def constant(score: float, loss: float = 1.0) -> list[Validation]:
    return [Validation(score, loss)] * 20


def rising_from(step: int, low: float, high: float) -> list[Validation]:
    """Return validations with a low score before a step, and a high one from it."""
    return [Validation(high if index + 1 >= step else low, 1.0) for index in range(20)]


def failing_at(step: int, score: float) -> list[Validation | EvaluationError]:
    script: list[Validation | EvaluationError] = list(constant(score))
    script[step - 1] = EvaluationError("the predictions are not finite")
    return script


@dataclass
class ScriptedTrials:
    """Trials that train Walkers, whose validations are given by learning rate."""

    scripts: Mapping[float, Script]
    walkers: list[WalkerTraining] = field(default_factory=list)

    def start(self, settings: Any) -> StartedHead:
        rate = settings.learning_rate
        walker = start_walker(self.scripts[rate], TWENTY_STEPS, learning_rate=rate)
        self.walkers.append(walker)
        head = FittedHead(lambda part: (np.zeros(0), None), walker.model.state_dict)
        return StartedHead(head, walker.training)

    def predict_validation(self, head: FittedHead, trial: str) -> pd.DataFrame:
        (point,) = [point for point in head.learning_curve if point.is_kept]
        return pd.DataFrame({"score": [point.validation_score], "trial": trial})

    def run(self, *, patience: int | None = 30) -> TrialsOutcome:
        """Return the outcome of the trials, in the order of the scripts."""
        trials = [Trial(learning_rate=rate) for rate in self.scripts]
        return self.run_trials(trials, patience=patience)

    def run_trials(self, trials: Sequence[Trial], *, patience: int | None = 30) -> TrialsOutcome:
        settings = FinetuneMethod(learning_rate=0.01, trials=tuple(trials), patience=patience)
        return fit_best_trial(
            settings,
            self.start,
            self.predict_validation,
            score=lambda predictions: float(predictions["score"].iloc[0]),
        )


def curve_lengths(outcome: TrialsOutcome) -> dict[str, int]:
    """Return the number of validations of each trial that did not fail."""
    return {curve["trial"].iloc[0]: len(curve) for curve in outcome.curves}


def test_only_the_best_trial_is_trained_beyond_five_validations() -> None:
    scripts = {FASTS[0]: constant(0.5), FASTS[1]: constant(0.6), FASTS[2]: constant(0.55)}
    trials = ScriptedTrials(scripts)
    outcome = trials.run()
    assert outcome.best.number == 1
    assert curve_lengths(outcome) == {"0": 5, "1": 20, "2": 5}
    assert [len(walker.losses) for walker in trials.walkers] == [5, 20, 5]
    scores = {table["trial"].item(): table["score"].item() for table in outcome.predictions}
    assert scores == {"0": 0.5, "1": 0.6, "2": 0.55}
    assert outcome.failed == []


def test_a_dropped_trial_keeps_its_best_weights() -> None:
    falling = [Validation(0.5 - 0.1 * abs(index - 2), 1.0) for index in range(20)]
    trials = ScriptedTrials({FASTS[0]: constant(0.6), FASTS[1]: falling})
    outcome = trials.run()
    assert outcome.curves[1]["is_kept"].tolist() == [False, False, True, False, False]
    dropped = trials.walkers[1]
    assert torch.equal(dropped.model.weight.detach(), dropped.weights[2])


@pytest.mark.parametrize(
    ("validations", "expected"),
    [
        ([(0.5, 1.0), (0.5, 0.9), (0.4, 0.1)], 1),  # the lower loss decides
        ([(0.5, 1.0), (0.5, 1.0), (0.5, 1.0)], 0),
        ([(float("nan"), 0.1), (-0.5, 1.0), (-0.6, 0.1)], 1),
    ],
)
@pytest.mark.parametrize("patience", [30, None])
def test_equal_trials_are_decided_by_the_loss_and_then_go_to_the_first(
    validations: list[tuple[float, float]], expected: int, patience: int | None
) -> None:
    """Without patience no trial is dropped, and the rule is the same."""
    scripts = {rate: constant(*pair) for rate, pair in zip(FASTS, validations, strict=True)}
    outcome = ScriptedTrials(scripts).run(patience=patience)
    assert outcome.best.number == expected


def test_a_trial_that_has_not_begun_to_learn_does_not_win_by_chance() -> None:
    """It leads by its loss, until the other trial's score rises at the seventh validation."""
    trials = ScriptedTrials({NEVER: constant(0.6, 0.9), FAST: rising_from(7, 0.6, 0.7)})
    outcome = trials.run()
    assert outcome.best.number == 1
    assert curve_lengths(outcome) == {"0": 7, "1": 20}


def test_a_trial_that_leads_wins_once_it_has_begun_to_learn() -> None:
    outcome = ScriptedTrials({FAST: constant(0.5), SLOW: constant(0.6)}).run()
    assert outcome.best.number == 1
    # Its training loss has fallen by 5 % at the tenth step.
    assert curve_lengths(outcome) == {"0": 10, "1": 20}


def test_a_slow_trial_that_does_not_lead_is_dropped() -> None:
    """This is what the race may lose: here the slow trial would have been the best."""
    outcome = ScriptedTrials({FAST: constant(0.5), SLOW: rising_from(9, 0.4, 0.9)}).run()
    assert outcome.best.number == 0
    assert curve_lengths(outcome) == {"0": 20, "1": 5}


def test_if_no_trial_begins_to_learn_all_are_trained_to_the_end() -> None:
    scripts = {NEVER: rising_from(19, 0.5, 0.6), 2 * NEVER: rising_from(18, 0.55, 0.58)}
    outcome = ScriptedTrials(scripts).run()
    assert outcome.best.number == 0
    assert curve_lengths(outcome) == {"0": 20, "1": 20}


def test_a_trial_that_fails_before_the_fifth_validation_leaves_the_race() -> None:
    scripts = {FASTS[0]: constant(0.5), FASTS[1]: failing_at(3, 0.9), FASTS[2]: constant(0.4)}
    trials = ScriptedTrials(scripts)
    outcome = trials.run()
    assert outcome.best.number == 0
    assert curve_lengths(outcome) == {"0": 20, "2": 5}
    assert [trial.number for trial in outcome.failed] == [1]
    assert len(trials.walkers) == 3, "no trial is trained twice"


def test_if_the_winner_fails_later_the_others_race_again() -> None:
    scripts = {FASTS[0]: constant(0.5), FASTS[1]: failing_at(8, 0.9), FASTS[2]: constant(0.6)}
    trials = ScriptedTrials(scripts)
    outcome = trials.run()
    assert outcome.best.number == 2
    assert curve_lengths(outcome) == {"0": 5, "2": 20}
    (failed,) = outcome.failed
    assert (failed.number, failed.error) == (1, "the predictions are not finite")
    alone = ScriptedTrials({FASTS[2]: constant(0.6)})
    alone.run()
    assert torch.equal(trials.walkers[-1].model.weight, alone.walkers[0].model.weight)


def test_a_trial_that_fails_in_a_second_race_leaves_nothing_of_the_first() -> None:
    scripts = {FASTS[0]: constant(0.5), FASTS[1]: failing_at(8, 0.9), FASTS[2]: failing_at(9, 0.6)}
    outcome = ScriptedTrials(scripts).run()
    assert outcome.best.number == 0
    assert curve_lengths(outcome) == {"0": 20}
    assert [table["trial"].item() for table in outcome.predictions] == ["0"]
    assert [trial.number for trial in outcome.failed] == [1, 2]


def test_if_all_trials_fail_each_has_its_reason() -> None:
    scripts = {
        FASTS[0]: failing_at(9, 0.5),
        FASTS[1]: failing_at(8, 0.9),
        FAST * 2: failing_at(1, 0),
    }
    with pytest.raises(AllTrialsFailedError) as caught:
        ScriptedTrials(scripts).run()
    assert [note.value["number"] for note in caught.value.notes] == [0, 1, 2]


def test_a_dropped_trial_is_freed_before_the_next_is_built() -> None:
    """Two models are in memory at most: the leader's, and that of the trial that is trained."""
    models: list[weakref.ref[nn.Module]] = []
    num_alive: list[int] = []

    class Counted(ScriptedTrials):
        def start(self, settings: Any) -> StartedHead:
            num_alive.append(sum(model() is not None for model in models))
            started = super().start(settings)
            walker = self.walkers.pop()
            walker.training = None  # a cycle of the test alone
            models.append(weakref.ref(walker.model))
            return started

    scripts = {0.3 + n / 100: constant(score) for n, score in enumerate((0.5, 0.4, 0.6, 0.7))}
    gc.disable()
    try:
        Counted(scripts).run()
    finally:
        gc.enable()
    assert num_alive == [0, 1, 1, 1]


RATES = (Trial(learning_rate=0.1), Trial(learning_rate=0.2))
EPOCHS = (Trial(learning_rate=0.1, epochs=5), Trial(learning_rate=0.2, epochs=5))


@pytest.mark.parametrize(
    ("settings", "races"),
    [
        (FinetuneMethod(learning_rate=0.01, trials=RATES), [[0, 1]]),
        (BilstmProbeMethod(trials=RATES), [[0, 1]]),
        (FinetuneMethod(learning_rate=0.01, trials=EPOCHS), [[0, 1]]),
        (FinetuneMethod(learning_rate=0.01, trials=(RATES[0], EPOCHS[1])), [[0], [1]]),
        (
            FinetuneMethod(
                learning_rate=0.01, trials=(RATES[0], Trial(learning_rate=0.2, pooling="mean"))
            ),
            [[0], [1]],
        ),
        (
            FinetuneMethod(learning_rate=0.01, trials=(RATES[0], Trial(gradual_unfreezing=0.5))),
            [[0], [1]],
        ),
        (
            FinetuneMethod(
                learning_rate=0.01,
                trials=(RATES[0], Trial(learning_rate=0.2, word_layer_norm=True)),
            ),
            [[0], [1]],
        ),
        (FinetuneMethod(learning_rate=0.01, trials=RATES, patience=None), [[0], [1]]),
        (LinearProbeMethod(), [[0], [1], [2], [3], [4], [5]]),
    ],
)
def test_trials_race_if_they_stop_early_and_differ_in_their_learning_rates_alone(
    settings: TriedMethod, races: list[list[int]]
) -> None:
    assert group_races(settings) == races


def test_the_best_of_several_races_is_chosen() -> None:
    """A trial with dropout that learns more slowly does not race with those without."""
    rising = rising_from(10, 0.3, 0.7)
    scripts = {0.3: constant(0.5), 0.31: constant(0.6), 0.32: rising, 0.33: constant(0.2)}
    trials = [Trial(learning_rate=rate) for rate in scripts]
    trials[2:] = [dataclasses.replace(trial, body_dropout=0.25) for trial in trials[2:]]
    scripted = ScriptedTrials(scripts)
    outcome = scripted.run_trials(trials)
    assert outcome.best.number == 2
    assert curve_lengths(outcome) == {"0": 5, "1": 20, "2": 20, "3": 5}
    (better,) = (
        ScriptedTrials(scripts | {0.31: constant(0.8)})
        .run_trials(trials)
        .best.head.learning_curve[:1]
    )
    assert better.validation_score == 0.8


def test_a_race_in_which_all_fail_leaves_the_best_of_the_others() -> None:
    scripts = {0.3: constant(0.5), 0.31: constant(0.6), 0.32: failing_at(2, 0.9)}
    trials = [Trial(learning_rate=rate) for rate in scripts]
    trials[2] = dataclasses.replace(trials[2], body_dropout=0.25)
    outcome = ScriptedTrials(scripts).run_trials(trials)
    assert outcome.best.number == 1
    assert [failed.number for failed in outcome.failed] == [2]
    assert curve_lengths(outcome) == {"0": 5, "1": 20}


def test_trials_that_differ_in_more_are_all_trained_to_the_end() -> None:
    trials = (Trial(learning_rate=0.1), Trial(learning_rate=0.3, layer_lr_decay=0.5))
    outcome = ScriptedTrials({0.1: constant(0.5), 0.3: constant(0.4)}).run_trials(trials)
    assert outcome.best.number == 0
    assert curve_lengths(outcome) == {"0": 20, "1": 20}


LEARNING_RATES = (Trial(learning_rate=1e-7), Trial(learning_rate=0.02), Trial(learning_rate=3.0))
SETTINGS = EvaluateSettings(
    linear_probe=PROBE,
    bilstm_probe=dataclasses.replace(
        tiny.BILSTM_PROBE, epochs=20, patience=3, dropout=0.2, trials=LEARNING_RATES
    ),
    finetune=dataclasses.replace(
        FINETUNE,
        epochs=20,
        min_steps=None,
        patience=3,
        gradual_unfreezing=0.0,
        trials=LEARNING_RATES,
    ),
)


def evaluate_tiny_gpt(
    task: TaskData,
    cache_dir: Path,
    settings: EvaluateSettings,
    *,
    checkpoint_seconds: float = math.inf,
    report_progress: Callable[[float, str], None] = lambda *_: None,
) -> EvaluationOutput:
    """Evaluate an untrained tiny GPT with a BiLSTM probe and fine-tuning, on all labels."""
    data = TaskData(dataclasses.replace(task.info, probes=["bilstm"]), task.splits)
    context = tiny.eval_context("gpt", data, settings, checkpoint_seconds=checkpoint_seconds)
    cache_dir.mkdir(exist_ok=True)
    return evaluate_runs(
        context,
        [*tiny.list_runs(data.info, ("random",), ("all",), (3,))],
        cache_dir=cache_dir,
        report_progress=report_progress,
    )


@pytest.fixture(scope="module")
def raced_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("race") / "raced"


@pytest.fixture(scope="module")
def raced(task: TaskData, raced_dir: Path) -> EvaluationOutput:
    return evaluate_tiny_gpt(task, raced_dir, SETTINGS)


def test_a_race_that_is_stopped_again_and_again_ends_as_it_does_at_once(
    task: TaskData, raced: EvaluationOutput, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("lineage.methods.early_stopping.MAX_SAVE_SHARE", math.inf)
    num_reports = 0

    def stop_at_times(done: float, note: str) -> None:
        """Every save is reported, and the beginning of each run."""
        nonlocal num_reports
        num_reports += 1
        if num_reports % 11 == 0:
            raise KeyboardInterrupt

    def evaluate() -> EvaluationOutput | None:
        with contextlib.suppress(KeyboardInterrupt):
            return evaluate_tiny_gpt(
                task, tmp_path, SETTINGS, checkpoint_seconds=0.0, report_progress=stop_at_times
            )
        return None

    for _ in range(50):
        output = evaluate()
        if output is not None:
            break
    assert num_reports > 30
    assert output is not None
    assert output.rows == raced.rows
    pd.testing.assert_frame_equal(output.predictions, raced.predictions)
    pd.testing.assert_frame_equal(output.curves, raced.curves)
    assert all(cost.seconds > 0.1 for cost in output.costs.values())
    assert [*tmp_path.glob("*.trainings")] == []


def test_the_chosen_head_is_the_one_that_its_trial_gives_alone(
    task: TaskData, raced: EvaluationOutput, raced_dir: Path, tmp_path: Path
) -> None:
    """The race gives up learning rates that are too low and too high after five points.

    Early stopping may end a learning rate that is too high before that. Its losses are so large
    that this depends on how the processor rounds.
    """
    alone = evaluate_tiny_gpt(
        task,
        tmp_path / "alone",
        dataclasses.replace(
            SETTINGS,
            bilstm_probe=SETTINGS.bilstm_probe.with_trial(1),
            finetune=SETTINGS.finetune.with_trial(1),
        ),
    )
    lengths = raced.curves.groupby(["transfer", "trial"]).size()
    for transfer in ("finetuned", "frozen"):
        assert lengths[transfer, "0"] == 5
        assert lengths[transfer, "2"] <= 5
        assert lengths[transfer, "1"] == lengths[transfer, "chosen"] > 5
    for frame, expected in ((raced.predictions, alone.predictions), (raced.curves, alone.curves)):
        chosen = frame[frame["trial"] == "chosen"].reset_index(drop=True)
        pd.testing.assert_frame_equal(chosen, expected, check_exact=True)
    weights = [
        {
            read_record(path).name: (path / WEIGHTS_FILE).read_bytes()
            for path in folder.glob("*/system")
        }
        for folder in (raced_dir, tmp_path / "alone")
    ]
    assert weights[0] == weights[1]
    assert "gpt-random-finetuned" in weights[0]


@pytest.mark.parametrize("name", ["h200/convergence_23mb", "h200/convergence", "cpu/convergence"])
def test_the_record_shows_the_race_of_the_committed_trainings(name: str) -> None:
    lines = read_results(RESULTS.parent / f"{name}.jsonl")
    record = Path(__file__).parent.parent / "docs/decisions/0026-fine-tuning-to-convergence.md"
    assert format_race_table(lines) in record.read_text(encoding="utf-8")
