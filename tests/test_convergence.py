"""A bag of words that has not finished learning is found by logistic regression on its tokens."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from lineage.analysis.convergence import (
    ConvergenceControl,
    FinetuneCurve,
    _finite_values,
    list_controls,
)
from lineage.analysis.records import (
    Analysis,
    SeedScore,
    Setting,
    SystemScore,
    read_analysis,
    write_analysis,
)
from lineage.analysis.settings import chance_level, find_collapsed_runs, fine_tuned_scores
from lineage.data.task_data import TaskData
from lineage.evaluation.unigram_control import has_unigram_control, unigram_control_rows
from lineage.methods.finetuning import FinetuneMethod
from lineage.methods.registry import EvaluateSettings
from lineage.report.sections.tasks import draw_finetune_curves
from lineage.report.task_notes import describe_collapsed_runs, describe_convergence
from lineage.results import results_frame
from lineage.tasks.info import TaskInfo
from tests.helpers import tiny
from tests.helpers.study_rows import build_analysis

C_VALUES = (0.1, 1.0, 10.0, 100.0)
INFO = TaskInfo(name="mood", kind="text_classification", labels=["a", "b"], language="en", probes=["linear"], metric=["accuracy"])  # fmt: skip


@pytest.fixture(scope="module")
def data() -> TaskData:
    """Return texts of five words, of which one tells the label."""
    words = tiny.words("word2vec")[:30]
    rng = np.random.default_rng(4)
    splits = {}
    for split, count in (("train", 80), ("validation", 60), ("test", 60)):
        labels = rng.integers(2, size=count)
        texts = [" ".join([*rng.choice(words[2:], 4), words[label]]) for label in labels]
        splits[split] = pd.DataFrame(
            {
                "id": [f"{split}-{i}" for i in range(count)],
                "text": texts,
                "label": labels,
                "group": "all",
            }
        )
    return TaskData(INFO, splits)


def find_control(data: TaskData, folder: Path, **finetune: Any) -> ConvergenceControl:
    """Fine-tune a random-init bag of words, and return its control as the analysis sees it."""
    settings = EvaluateSettings(finetune=FinetuneMethod(min_steps=None, **finetune))
    context = tiny.eval_context("word2vec", data, settings)
    assert has_unigram_control(context)
    runs = [*tiny.list_runs(INFO, ("random",), ("all",), (0, 1), method="finetune")]
    output = tiny.evaluate_runs(context, runs, folder)
    controls = list(unigram_control_rows(context, runs, C_VALUES))
    assert len(controls) == len(runs)
    table = results_frame([*output.rows, *controls])
    (control,) = list_controls(table, "test")
    return control


def test_the_report_says_that_a_short_training_has_not_converged(
    data: TaskData, tmp_path: Path
) -> None:
    control = find_control(data, tmp_path, epochs=1, learning_rate=1e-5)
    assert control.unigrams > 0.9 > 0.8 > control.fine_tuned
    assert not control.has_converged
    analysis = build_analysis(convergence_controls=(control,))
    (sentence,) = describe_convergence(analysis, "mood")
    assert sentence.startswith(
        "Fine-tuning did not converge here with all labels, or it overfits: "
    )
    assert not list(describe_convergence(analysis, "another"))


def test_a_bag_of_words_that_has_finished_learning_is_level_with_its_control(
    data: TaskData, tmp_path: Path
) -> None:
    control = find_control(data, tmp_path, epochs=60, learning_rate=0.02)
    assert control.has_converged
    assert control.fine_tuned > 0.9
    analysis = build_analysis(convergence_controls=(control,))
    assert not list(describe_convergence(analysis, "mood"))


def test_only_bags_of_words_on_labels_of_texts_have_a_control(data: TaskData) -> None:
    settings = EvaluateSettings(finetune=FinetuneMethod(learning_rate=0.01))
    gpt = tiny.eval_context("gpt", data, settings)
    assert not has_unigram_control(gpt)


def with_seed_values(analysis: Analysis, init: str, values: Sequence[float]) -> Analysis:
    """Give fine-tuned systems of elmo with this init on sentiment, all labels, these scores."""

    def change(score: SystemScore) -> SystemScore:
        system = score.system
        is_own = (system.model, system.init, system.transfer) == ("elmo", init, "finetuned")
        if not is_own or score.setting != Setting("sentiment", "all"):
            return score
        seeds = tuple(SeedScore(0, seed, value) for seed, value in enumerate(values))
        return replace(score, seeds=seeds)

    return replace(analysis, scores=tuple(map(change, analysis.scores)))


def test_a_run_at_chance_beside_better_siblings_is_named_and_counted(analysis: Analysis) -> None:
    assert not list(describe_collapsed_runs(analysis, "sentiment"))
    chance = chance_level(analysis, Setting("sentiment", "all"))
    values = [chance + 0.3, chance + 0.02, chance + 0.3]
    planted = with_seed_values(analysis, "pretrained", values)
    (collapsed,) = find_collapsed_runs(planted, "sentiment")
    assert (collapsed.system.model, collapsed.run.finetune_seed) == ("elmo", 1)
    (sentence,) = describe_collapsed_runs(planted, "sentiment")
    num_runs = sum(len(score.seeds) for score in fine_tuned_scores(planted, "sentiment"))
    assert sentence.startswith(f"1 of {num_runs} fine-tuned runs collapsed")
    assert "ELMo, fine-tuned, all labels, fine-tuning seed 1" in sentence
    assert not list(describe_collapsed_runs(planted, "sense"))


@pytest.mark.parametrize(
    "leads", [(0.3, 0.2, 0.3), (0.03, 0.0, 0.02), (0.0, 0.0, 0.0), (0.3,)], ids=str
)
def test_lower_runs_and_runs_that_are_all_at_chance_have_not_collapsed(
    leads: Sequence[float], analysis: Analysis
) -> None:
    chance = chance_level(analysis, Setting("sentiment", "all"))
    values = [chance + lead for lead in leads]
    assert not find_collapsed_runs(with_seed_values(analysis, "random", values), "sentiment")


def test_a_score_that_is_undefined_is_left_out_of_the_curve_and_read_back(tmp_path: Path) -> None:
    """A correlation has no value as long as all predictions are the same."""
    curve = FinetuneCurve(
        task="sense",
        model="gpt",
        init="pretrained",
        transfer="finetuned",
        head="linear",
        metric="pearson",
        kept_epoch=2.0,
        epoch=(1.0, 2.0, 3.0),
        train_loss=(0.9, 0.5, 0.4),
        validation_loss=(0.9, 0.6, None),
        validation_score=_finite_values(pd.Series([float("nan"), 0.4, float("inf")])),
    )
    assert curve.validation_score == (None, 0.4, None)
    analysis = build_analysis(finetune_curves=(curve,))
    write_analysis(tmp_path / "results.json", analysis)
    assert read_analysis(tmp_path / "results.json") == analysis
    assert len(draw_finetune_curves(analysis, "sense")) == 2
