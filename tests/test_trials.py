"""Trials of an arm: each is a row of validation, the best one is taken, by the first seed for all, and the test split is read by it alone."""

import dataclasses
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from lineage import artifacts
from lineage.analysis import build
from lineage.analysis.records import TrialCounts
from lineage.data.task_data import TaskData
from lineage.errors import EvaluationError, InputError
from lineage.evaluation.baselines import evaluate_baselines
from lineage.evaluation.evaluate import evaluate_runs, list_runs
from lineage.evaluation.settings import (
    EvaluateSettings,
    FinetuneSettings,
    LinearProbeSettings,
    Trial,
)
from lineage.evaluation.systems import EvalContext, fit_head
from lineage.report import sentences
from lineage.report.notes import format_notes, format_reason
from lineage.results import UNKNOWN_TOKEN_METRIC, results_frame
from lineage.tasks.base import load_kind
from tests import tiny, user_project

FROZEN = LinearProbeSettings(l2=0.001, max_iter=60, trials=(Trial(l2=500.0), Trial(l2=0.001)))
TUNED = FinetuneSettings(epochs=1, batch_size=8, learning_rate=0.01, layer_lr_decay=1.0, cut_frac=0.1, ratio=32.0, gradual_unfreezing=0.0, weight_decay=0.0, dropout=0.0,
                      max_grad_norm=1.0, trials=(Trial(learning_rate=1e-9), Trial(learning_rate=0.02, epochs=12), Trial(learning_rate=1e-8)))  # fmt: skip
FACTS: dict[str, Any] = {"name": "x", "kind": "text_classification", "answer": "label", "labels": ["a", "b"], "language": "en", "probes": ["linear"],
                         "metric": ["accuracy", "macro_f1"]}  # fmt: skip


@pytest.fixture(scope="module")
def data() -> TaskData:
    words = sorted(
        word for word in tiny.reader("ulmfit").backend_tokenizer.get_vocab() if word.isalpha()
    )[:20]
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
    return TaskData(FACTS, splits)


def run(
    data: TaskData, keep: Path, settings: EvaluateSettings, *, seeds: tuple[int, ...] = (3, 5)
) -> tuple[pd.DataFrame, pd.DataFrame]:
    found = EvalContext(tiny.checkpoint("gpt"), data, settings, 0, 1000, "fp32", tiny.CPU)
    keep.mkdir(exist_ok=True)
    rows, predictions = evaluate_runs(
        found,
        [*list_runs(FACTS, ("random",), (40,), seeds)],
        cache_dir=keep,
        report_progress=lambda *_: None,
    )
    return results_frame(rows), predictions


@pytest.fixture(scope="module")
def whole(
    data: TaskData, tmp_path_factory: pytest.TempPathFactory
) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Rows and predictions of both seeds with all trials."""
    return run(
        data,
        tmp_path_factory.mktemp("whole"),
        EvaluateSettings(linear_probe=FROZEN, bilstm_probe=tiny.NETWORK, finetune=TUNED),
    )


def test_validation_chooses_and_test_is_read_once(whole: tuple[pd.DataFrame, pd.DataFrame]) -> None:
    rows, predictions = whole
    tried = rows[rows["trial"] != "chosen"]
    assert set(tried["split"]) == {"validation"} and set(tried["finetune_seed"]) == {3}, (
        "the first seed decides"
    )
    assert tried.groupby(["transfer", "metric"])["trial"].apply(sorted).to_dict() == {
        ("frozen", "accuracy"): ["0", "1"], ("frozen", "macro_f1"): ["0", "1"],
        ("finetuned", "accuracy"): ["0", "1", "2"], ("finetuned", "macro_f1"): ["0", "1", "2"]}  # fmt: skip
    assert set(predictions[predictions["trial"] != "chosen"]["split"]) == {"validation"}
    chosen = rows[(rows["trial"] == "chosen") & (rows["metric"] == "accuracy")]
    assert len(chosen) == 2 * 2 * 2 and set(chosen["split"]) == {"validation", "test"}
    said = {
        (row.transfer, row.finetune_seed): format_reason(row.reason) for row in chosen.itertuples()
    }
    first, second = (
        "trial 1 (of 2, from 0): l2 0.001",
        "trial 1 (of 3, from 0): learning_rate 0.02, epochs 12",
    )
    assert said == {
        ("frozen", 3): first,
        ("frozen", 5): first,
        ("finetuned", 3): second,
        ("finetuned", 5): second,
    }
    for transfer in ("frozen", "finetuned"):
        own = tried[(tried["transfer"] == transfer) & (tried["metric"] == "accuracy")].set_index(
            "trial"
        )["value"]
        best = chosen[
            (chosen["transfer"] == transfer)
            & (chosen["finetune_seed"] == 3)
            & (chosen["split"] == "validation")
        ]["value"].item()
        assert own["1"] == own.max() == best > own["0"]


def test_what_is_chosen_is_what_it_would_be_alone(
    data: TaskData, whole: tuple[pd.DataFrame, pd.DataFrame], tmp_path: Path
) -> None:
    _, alone = run(
        data,
        tmp_path,
        EvaluateSettings(
            linear_probe=FROZEN.with_trial(1),
            bilstm_probe=tiny.NETWORK,
            finetune=TUNED.with_trial(1),
        ),
    )
    _, tried = whole
    keys = ["transfer", "finetune_seed", "split", "id"]
    one, other = (
        some[some["trial"] == "chosen"].sort_values(keys, ignore_index=True)
        for some in (alone, tried)
    )
    pd.testing.assert_frame_equal(one, other)


def test_an_evaluation_that_is_killed_between_seeds_goes_on_with_the_same_choice(
    data: TaskData, whole: tuple[pd.DataFrame, pd.DataFrame], tmp_path: Path
) -> None:
    settings = EvaluateSettings(linear_probe=FROZEN, bilstm_probe=tiny.NETWORK, finetune=TUNED)
    run(data, tmp_path, settings, seeds=(3,))
    pd.testing.assert_frame_equal(run(data, tmp_path, settings)[0], whole[0])


def test_a_trial_that_fails_says_so_and_the_others_count(data: TaskData, tmp_path: Path) -> None:
    wild = dataclasses.replace(
        TUNED, trials=(Trial(learning_rate=1e30), Trial(learning_rate=0.02, epochs=12))
    )
    rows, _ = run(
        data,
        tmp_path,
        EvaluateSettings(linear_probe=FROZEN, bilstm_probe=tiny.NETWORK, finetune=wild),
        seeds=(3,),
    )
    (failed,) = rows[rows["status"] == "failed"].itertuples()
    assert failed.trial == "0" and format_reason(failed.reason).startswith(
        "trial 0 (of 2, from 0): learning_rate 1e+30: the loss is nan after 1 steps"
    )
    assert set(
        rows[(rows["trial"] == "chosen") & (rows["transfer"] == "finetuned")]["reason"].map(
            format_reason
        )
    ) == {"trial 1 (of 2, from 0): learning_rate 0.02, epochs 12"}


def test_a_trial_that_fails_says_why_also_when_its_cell_is_read_again(
    data: TaskData, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def learning(subject: Any, cell: Any, how: Any, *rest: Any) -> Any:
        if how.l2 == 500.0:
            raise EvaluationError("the moon was full")
        return fit_head(subject, cell, how, *rest)

    monkeypatch.setattr("lineage.evaluation.evaluate.fit_head", learning)
    found = EvalContext(
        tiny.checkpoint("gpt"),
        data,
        EvaluateSettings(linear_probe=FROZEN, bilstm_probe=tiny.NETWORK, finetune=TUNED),
        0,
        1000,
        "fp32",
        tiny.CPU,
    )
    some = [
        cell for cell in list_runs(FACTS, ("random",), (40,), (3,)) if cell.transfer == "frozen"
    ]
    for _ in range(2):  # the second time from what is kept
        rows, _ = evaluate_runs(found, some, cache_dir=tmp_path, report_progress=lambda *_: None)
        assert [format_notes(row.reason) for row in rows if row.status == "failed"] == [
            "trial 0 (of 2, from 0): l2 500: the moon was full"
        ]


def test_controls_have_trials_as_arms_have(tmp_path: Path, data: TaskData) -> None:
    """Chosen on validation by the first seed, a row each; with one penalty nothing is tried."""
    facts = FACTS | {"counts": {}}
    splits = data.splits
    noisy = splits["train"].assign(
        label=np.where(
            np.arange(60) % 5 == 0, 1 - splits["train"]["label"], splits["train"]["label"]
        )
    )
    told = partial(
        evaluate_baselines,
        load_kind("text_classification"),
        TaskData(facts, {**splits, "train": noisy}),
        split="test",
        finetune_seeds=[3, 5],
        label_counts=[40],
    )
    plain = [row for some, _ in told() for row in some]
    assert {row.trial for row in plain} == {"chosen"} and not any(row.reason for row in plain)
    cells_ = list(told(tfidf_C=(1e-9, 10.0, 1e-8)))
    rows = results_frame(row for some, _ in cells_ for row in some)
    own = rows[(rows["model"] == "tfidf") & (rows["metric"] == "accuracy")]
    tried = own[own["trial"] != "chosen"]
    assert (
        [*tried["trial"]] == ["0", "1", "2"]
        and {*tried["split"]} == {"validation"}
        and {*tried["finetune_seed"]} == {3}
    )
    assert tried["value"].max() == tried["value"].iloc[1] > tried["value"].iloc[0]
    chosen = own[own["trial"] == "chosen"]
    assert (
        {*chosen["reason"].map(format_reason)} == {"trial 1 (of 3, from 0): C 10"}
        and {*chosen["split"]} == {"test"}
        and len(chosen) == 2
    )
    assert [*chosen["value"]] == [
        row.value for row in plain if row.model == "tfidf" and row.metric == "accuracy"
    ]
    assert build.count_trials(rows) == TrialCounts(3, 3)
    assert build.count_trials(results_frame(plain)) == TrialCounts(1, 1)
    assert "TF-IDF too" in sentences.describe_trials(TrialCounts(3, 3))


@pytest.mark.parametrize(("trial", "said"), [
    ({"l2": 0.1}, "models.gpt.evaluate.finetune: trials: 'l2' is not a key of this block"),
    ({}, "models.gpt.evaluate.finetune: trials: one of them is empty"),
    ({"learning_rate": -1.0}, "models.gpt.evaluate.finetune: learning_rate is -1.0; it must be above zero"),
    ({"speed": 1}, "unknown key 'speed'; known: epochs, l2, learning_rate"),
])  # fmt: skip
def test_a_trial_of_no_use_is_refused_before_anything_runs(
    trial: dict[str, float], said: str
) -> None:
    with pytest.raises(InputError) as caught:
        tiny.variant("gpt", evaluate={"finetune": {"trials": [trial]}})
    assert said in str(caught.value)


@pytest.mark.parametrize(("over", "said"), [
    ({"pretrain": {"weight_decay": -0.1}}, "pretrain: weight_decay is -0.1; it must be 0 or more"),
    ({"evaluate": {"finetune": {"weight_decay": -0.1}}}, "evaluate.finetune: weight_decay is -0.1; it must be 0 or more"),
    ({"evaluate": {"finetune": {"ratio": 0.01}}}, "evaluate.finetune: ratio is 0.01; it is the highest learning rate over the lowest, 1 or more"),
    ({"evaluate": {"bilstm_probe": {"ratio": 0.01}}}, "evaluate.bilstm_probe: ratio is 0.01; it is the highest learning rate over the lowest, 1 or more"),
    ({"evaluate": {"bilstm_probe": {"weight_decay": -0.1}}}, "evaluate.bilstm_probe: weight_decay is -0.1; it must be 0 or more"),
])  # fmt: skip
def test_settings_that_would_train_the_wrong_way_round_are_refused(
    over: dict[str, Any], said: str
) -> None:
    with pytest.raises(InputError) as caught:
        tiny.variant("gpt", **over)
    assert said in str(caught.value)


def test_an_arm_learns_from_the_labels_that_it_names_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    tree = user_project.make(tmp_path)
    tree["grid"] |= {
        "label_counts": [20, 40, "all"],
        "finetune_seeds": [0],
        "adapt_models": [],
        "adapt_tasks": [],
    }
    tree["budget"] |= {"text_bytes": 5_000, "body_parameters": 100_000}
    tree["models"]["gpt"]["evaluate"]["finetune"] |= {
        "epochs": 1,
        "min_steps": None,
        "label_counts": [20, "all"],
    }
    user_project.write(tmp_path, tree)
    for command in (
        ("sources",),
        ("corpus", "general"),
        ("task", "mood"),
        ("tokenizer", "gpt"),
        ("pretrain", "gpt", "0"),
        ("evaluate", "gpt", "0", "mood"),
    ):
        code, said = user_project.stage(tmp_path, *command, monkeypatch=monkeypatch, capsys=capsys)
        assert code == 0, said
    rows = artifacts.read_table(tmp_path / "artifacts/results/rows/evaluate-gpt-0-mood.parquet")
    learned = {
        (row.transfer, row.label_count)
        for row in rows.itertuples()
        if row.metric != UNKNOWN_TOKEN_METRIC
    }
    assert learned == {
        ("frozen", "20"),
        ("frozen", "40"),
        ("frozen", "all"),
        ("finetuned", "20"),
        ("finetuned", "all"),
    }
    tree["models"]["gpt"]["evaluate"]["finetune"]["label_counts"] = [20, 30]
    user_project.write(tmp_path, tree)
    code, said = user_project.stage(tmp_path, "sources", monkeypatch=monkeypatch, capsys=capsys)
    assert (
        code == 2
        and "models.gpt.evaluate.finetune.label_counts: 30 is not in grid.label_counts; add it there, or remove it here"
        in said
    )


def test_the_untrained_twin_learns_as_its_pretrained_model_does(
    data: TaskData, tmp_path: Path, never_trained: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same trials of the same steps and rates, from the same labels, and as many rows."""
    asked: dict[str, list[Any]] = {"pretrained": [], "random": []}

    def learning(subject: Any, cell: Any, how: Any, chosen: np.ndarray, *rest: Any) -> Any:
        asked[cell.init].append(
            (cell.transfer, cell.label_count, cell.finetune_seed, how, chosen.tolist())
        )
        return fit_head(subject, cell, how, chosen, *rest)

    monkeypatch.setattr("lineage.evaluation.evaluate.fit_head", learning)
    found = EvalContext(
        tiny.checkpoint("gpt"),
        data,
        EvaluateSettings(linear_probe=FROZEN, bilstm_probe=tiny.NETWORK, finetune=TUNED),
        0,
        1000,
        "fp32",
        tiny.CPU,
    )
    rows: list[Any] = []
    for init in asked:
        (tmp_path / init).mkdir()
        rows += evaluate_runs(
            found,
            [*list_runs(FACTS, (init,), (40,), (3, 5))],
            cache_dir=tmp_path / init,
            report_progress=lambda *_: None,
        )[0]  # type: ignore[arg-type]
    assert asked["pretrained"] == asked["random"] and len(asked["random"]) == (2 + 3) + 2
    one, other = (
        [
            (
                r.transfer,
                r.finetune_seed,
                r.split,
                r.trial,
                r.metric,
                r.label_count,
                r.train_examples,
            )
            for r in rows
            if r.init == init
        ]
        for init in asked
    )
    assert one == other
