"""The first seed chooses a trial on validation, and only the chosen trial reads test."""

import dataclasses
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from lineage.analysis.records import TrialCounts
from lineage.analysis.trials import count_trials
from lineage.config.params import parse_params
from lineage.config.resolve import merge_trees
from lineage.data.task_data import TaskData
from lineage.errors import InputError
from lineage.methods.head_method import HeadMethod, HeadStarter
from lineage.methods.linear_probe import LinearProbeMethod
from lineage.methods.registry import EvaluateSettings
from lineage.methods.trials import Trial
from lineage.report.sections.what_to_use import describe_trials
from lineage.results import results_frame
from lineage.study.checks import check_study
from lineage.tasks.base import load_kind
from lineage.tasks.info import TaskInfo
from tests.helpers import tiny, user_project
from tests.helpers.fitting import PLAIN_FINETUNE
from tests.helpers.notes import format_reason

PROBE = LinearProbeMethod(l2=0.001, max_iter=60, trials=(Trial(l2=500.0), Trial(l2=0.001)))
FINETUNE = dataclasses.replace(PLAIN_FINETUNE, epochs=1, trials=(Trial(learning_rate=1e-9), Trial(learning_rate=0.02, epochs=12), Trial(learning_rate=1e-8)))  # fmt: skip
SETTINGS = tiny.eval_settings(PROBE, FINETUNE)
INFO = TaskInfo(name="x", kind="text_classification", labels=["a", "b"], language="en", probes=["linear"], metric=["accuracy", "macro_f1"])  # fmt: skip


@pytest.fixture(scope="module")
def data() -> TaskData:
    """Return texts of two words whose label is the second word."""
    words = tiny.words("ulmfit")[:20]
    rng = np.random.default_rng(4)
    splits = {}
    for split, count in (("train", 60), ("validation", 40), ("test", 40)):
        labels = rng.integers(2, size=count)
        texts = [" ".join([rng.choice(words[2:]), words[label]]) for label in labels]
        splits[split] = pd.DataFrame(
            {
                "id": [f"{split}-{i}" for i in range(count)],
                "text": texts,
                "label": labels,
                "group": "all",
            }
        )
    return TaskData(INFO, splits)


def evaluate_tiny_gpt(
    data: TaskData, cache_dir: Path, settings: EvaluateSettings, *, seeds: tuple[int, ...] = (3, 5)
) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Return the rows and predictions of an untrained tiny GPT."""
    context = tiny.eval_context("gpt", data, settings)
    cache_dir.mkdir(exist_ok=True)
    rows, predictions, *_ = tiny.evaluate_runs(
        context, tiny.list_runs(INFO, ("random",), (40,), seeds), cache_dir
    )
    return results_frame(rows), predictions


@pytest.fixture(scope="module")
def all_trials(
    data: TaskData, tmp_path_factory: pytest.TempPathFactory
) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Return the rows and predictions of both seeds with all trials."""
    return evaluate_tiny_gpt(data, tmp_path_factory.mktemp("whole"), SETTINGS)


def test_the_trial_is_chosen_on_validation_and_only_it_is_tested(
    all_trials: tuple[pd.DataFrame, pd.DataFrame],
) -> None:
    rows, predictions = all_trials
    trial_rows = rows[rows["trial"] != "chosen"]
    assert set(trial_rows["split"]) == {"validation"} and set(trial_rows["finetune_seed"]) == {3}, (
        "the first seed chooses"
    )
    assert trial_rows.groupby(["transfer", "metric"])["trial"].apply(sorted).to_dict() == {
        ("frozen", "accuracy"): ["0", "1"], ("frozen", "macro_f1"): ["0", "1"],
        ("finetuned", "accuracy"): ["0", "1", "2"], ("finetuned", "macro_f1"): ["0", "1", "2"]}  # fmt: skip
    assert set(predictions[predictions["trial"] != "chosen"]["split"]) == {"validation"}
    chosen = rows[(rows["trial"] == "chosen") & (rows["metric"] == "accuracy")]
    assert len(chosen) == 2 * 2 * 2 and set(chosen["split"]) == {"validation", "test"}
    reasons = {
        (row.transfer, row.finetune_seed): format_reason(row.reason) for row in chosen.itertuples()
    }
    probe_reason = "trial 1 (of 2, from 0): l2 0.001"
    finetune_reason = "trial 1 (of 3, from 0): learning_rate 0.02, epochs 12"
    assert reasons == {
        ("frozen", 3): probe_reason,
        ("frozen", 5): probe_reason,
        ("finetuned", 3): finetune_reason,
        ("finetuned", 5): finetune_reason,
    }
    for transfer in ("frozen", "finetuned"):
        trial_values = trial_rows[
            (trial_rows["transfer"] == transfer) & (trial_rows["metric"] == "accuracy")
        ].set_index("trial")["value"]
        chosen_value = chosen[
            (chosen["transfer"] == transfer)
            & (chosen["finetune_seed"] == 3)
            & (chosen["split"] == "validation")
        ]["value"].item()
        assert trial_values["1"] == trial_values.max() == chosen_value > trial_values["0"]


def test_the_chosen_trial_predicts_as_if_it_were_the_only_one(
    data: TaskData, all_trials: tuple[pd.DataFrame, pd.DataFrame], tmp_path: Path
) -> None:
    _, alone = evaluate_tiny_gpt(
        data, tmp_path, tiny.eval_settings(PROBE.with_trial(1), FINETUNE.with_trial(1))
    )
    _, with_trials = all_trials
    keys = ["transfer", "finetune_seed", "split", "id"]
    expected, actual = (
        frame[frame["trial"] == "chosen"].sort_values(keys, ignore_index=True)
        for frame in (alone, with_trials)
    )
    pd.testing.assert_frame_equal(expected, actual)


def test_an_evaluation_killed_between_seeds_resumes_with_the_same_choice(
    data: TaskData, all_trials: tuple[pd.DataFrame, pd.DataFrame], tmp_path: Path
) -> None:
    evaluate_tiny_gpt(data, tmp_path, SETTINGS, seeds=(3,))
    pd.testing.assert_frame_equal(evaluate_tiny_gpt(data, tmp_path, SETTINGS)[0], all_trials[0])


def test_a_failed_trial_has_a_row_and_the_others_are_compared(
    data: TaskData, tmp_path: Path
) -> None:
    settings = dataclasses.replace(
        FINETUNE, trials=(Trial(learning_rate=1e30), Trial(learning_rate=0.02, epochs=12))
    )
    for _ in range(2):  # the second time from the cache
        rows, _ = evaluate_tiny_gpt(data, tmp_path, tiny.eval_settings(PROBE, settings), seeds=(3,))
        (failed,) = rows[rows["status"] == "failed"].itertuples()
        assert failed.trial == "0"
        assert format_reason(failed.reason).startswith(
            "trial 0 (of 2, from 0): learning_rate 1e+30: the loss is nan after 1 steps"
        )
        chosen = rows[(rows["trial"] == "chosen") & (rows["transfer"] == "finetuned")]
        assert set(chosen["reason"].map(format_reason)) == {
            "trial 1 (of 2, from 0): learning_rate 0.02, epochs 12"
        }


def test_baselines_choose_trials_on_validation_as_models_do(tmp_path: Path, data: TaskData) -> None:
    """The first seed chooses and each trial has a row; a single penalty is not a trial."""
    info = INFO
    splits = data.splits
    noisy = splits["train"].assign(
        label=np.where(
            np.arange(60) % 5 == 0, 1 - splits["train"]["label"], splits["train"]["label"]
        )
    )
    evaluate = partial(
        tiny.evaluate_baselines,
        load_kind("text_classification"),
        TaskData(info, {**splits, "train": noisy}),
        split="test",
        finetune_seeds=[3, 5],
        label_counts=[40],
    )
    single_rows = [row for result_rows, _ in evaluate(tfidf_C=(10.0,)) for row in result_rows]
    assert {row.trial for row in single_rows} == {"chosen"}
    assert not any(row.reason for row in single_rows)
    results = list(evaluate(tfidf_C=(1e-9, 10.0, 1e-8)))
    rows = results_frame(row for result_rows, _ in results for row in result_rows)
    tfidf_rows = rows[(rows["model"] == "tfidf") & (rows["metric"] == "accuracy")]
    trial_rows = tfidf_rows[tfidf_rows["trial"] != "chosen"]
    assert [*trial_rows["trial"]] == ["0", "1", "2"]
    assert {*trial_rows["split"]} == {"validation"}
    assert {*trial_rows["finetune_seed"]} == {3}
    assert trial_rows["value"].max() == trial_rows["value"].iloc[1] > trial_rows["value"].iloc[0]
    chosen = tfidf_rows[tfidf_rows["trial"] == "chosen"]
    assert {*chosen["reason"].map(format_reason)} == {"trial 1 (of 3, from 0): C 10"}
    assert sorted(chosen["split"]) == ["test", "test", "validation", "validation"]
    assert [*chosen.query("split == 'test'")["value"]] == [
        row.value
        for row in single_rows
        if (row.model, row.metric, row.split) == ("tfidf", "accuracy", "test")
    ]
    counts = count_trials(rows)
    assert counts == (TrialCounts("tfidf", 3, 3),)
    assert "3 configurations of TF-IDF" in describe_trials(counts)
    assert count_trials(results_frame(single_rows)) == (TrialCounts("tfidf", 1, 1),)


def test_a_trial_is_at_the_end_of_those_that_differ_in_its_first_key() -> None:
    rates = [Trial(learning_rate=rate) for rate in (0.1, 0.2, 0.3)]
    dropped = [dataclasses.replace(rate, body_dropout=0.25) for rate in rates]
    two = [Trial(learning_rate=rate, epochs=7) for rate in (0.1, 0.2)]
    method = dataclasses.replace(PLAIN_FINETUNE, learning_rate=0.1, trials=(*rates, *dropped, *two))
    is_at_end = [method.describe_trial(number).value["is_at_end"] for number in range(8)]
    assert is_at_end == [True, False, True, True, False, True, False, False], (
        "two values have no middle"
    )


@pytest.mark.parametrize(("trial", "message"), [
    ({"l2": 0.1}, "models.gpt.evaluate.finetune: trials: 'l2' is not a key of this block"),
    ({}, "models.gpt.evaluate.finetune: trials: one of them is empty"),
    ({"learning_rate": -1.0}, "models.gpt.evaluate.finetune: learning_rate is -1.0; it must be above zero"),
    ({"speed": 1}, "unknown key 'speed'; known: body_dropout, epochs, gradual_unfreezing, l2, layer_lr_decay, learning_rate, pooling, word_layer_norm"),
    ({"layer_lr_decay": 2.0}, "models.gpt.evaluate.finetune: layer_lr_decay is 2.0"),
])  # fmt: skip
def test_an_invalid_trial_is_refused_when_the_config_is_read(
    trial: dict[str, float], message: str
) -> None:
    with pytest.raises(InputError) as caught:
        tiny.model_config("gpt", evaluate={"finetune": {"trials": [trial]}})
    assert message in str(caught.value)


@pytest.mark.parametrize(("overrides", "message"), [
    ({"pretrain": {"weight_decay": -0.1}}, "pretrain: weight_decay is -0.1; it must be 0 or more"),
    ({"evaluate": {"finetune": {"weight_decay": -0.1}}}, "evaluate.finetune: weight_decay is -0.1; it must be 0 or more"),
    ({"evaluate": {"finetune": {"ratio": 0.01}}}, "evaluate.finetune: ratio is 0.01; it is the highest learning rate over the lowest, 1 or more"),
    ({"evaluate": {"bilstm_probe": {"ratio": 0.01}}}, "evaluate.bilstm_probe: ratio is 0.01; it is the highest learning rate over the lowest, 1 or more"),
    ({"evaluate": {"bilstm_probe": {"weight_decay": -0.1}}}, "evaluate.bilstm_probe: weight_decay is -0.1; it must be 0 or more"),
])  # fmt: skip
def test_negative_weight_decay_and_inverted_rate_ratios_are_refused(
    overrides: dict[str, Any], message: str
) -> None:
    with pytest.raises(InputError) as caught:
        tiny.model_config("gpt", **overrides)
    assert message in str(caught.value)


def test_label_counts_of_fine_tuning_that_the_grid_lacks_are_refused() -> None:
    finetune = {"evaluate": {"finetune": {"label_counts": [20, 30]}}}
    changes = {"grid": {"label_counts": [20, 40, "all"]}, "models": {"gpt": finetune}}
    with pytest.raises(
        InputError, match=r"finetune\.label_counts: 30 is not in grid\.label_counts"
    ):
        check_study(parse_params(merge_trees(user_project.PARAMS, changes)))


def test_the_random_init_baseline_gets_the_same_trials_as_the_pretrained_model(
    data: TaskData, tmp_path: Path, without_weights: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both use the same trials, steps, learning rates and labels, and have as many rows."""
    rates = (Trial(learning_rate=1e-9), Trial(learning_rate=0.02, epochs=2), FINETUNE.trials[2])
    short = tiny.eval_settings(PROBE, dataclasses.replace(FINETUNE, min_steps=None, trials=rates))
    calls: dict[str, list[Any]] = {"pretrained": [], "random": []}

    def record(starter: HeadStarter, method: HeadMethod) -> None:
        run = starter.run
        train_rows = starter.problem.train_rows.tolist()
        calls[run.init].append((run.method, run.label_count, run.finetune_seed, method, train_rows))

    tiny.record_starts(monkeypatch, record)
    context = tiny.eval_context("gpt", data, short)
    rows: list[Any] = []
    for init in calls:
        (tmp_path / init).mkdir()
        rows += tiny.evaluate_runs(
            context, tiny.list_runs(INFO, (init,), (40,), (3, 5)), tmp_path / init
        )[0]  # type: ignore[arg-type]
    assert calls["pretrained"] == calls["random"] and len(calls["random"]) == (2 + 3) + 2
    pretrained_rows, random_rows = (
        [
            (
                row.transfer,
                row.finetune_seed,
                row.split,
                row.trial,
                row.metric,
                row.label_count,
                row.train_examples,
            )
            for row in rows
            if row.init == init
        ]
        for init in calls
    )
    assert pretrained_rows == random_rows
