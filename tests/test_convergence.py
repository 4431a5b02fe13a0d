"""A bag of words that has not finished learning is found by logistic regression on its tokens."""

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from lineage.analysis.convergence import ConvergenceControl, list_controls
from lineage.data.task_data import TaskData
from lineage.evaluation.evaluate import evaluate_runs, list_runs
from lineage.evaluation.settings import EvaluateSettings, FinetuneSettings
from lineage.evaluation.systems import EvalContext
from lineage.evaluation.unigram_control import has_unigram_control, unigram_control_rows
from lineage.report.view import describe_convergence
from lineage.results import results_frame
from tests import tiny
from tests.study_rows import build_analysis

C_VALUES = (0.1, 1.0, 10.0, 100.0)
INFO: dict[str, Any] = {"name": "mood", "kind": "text_classification", "answer": "label", "labels": ["a", "b"], "language": "en", "probes": ["linear"],
                         "metric": ["accuracy"]}  # fmt: skip


@pytest.fixture(scope="module")
def data() -> TaskData:
    """Return texts of five words, of which one tells the label."""
    words = sorted(
        word for word in tiny.tokenizer("word2vec").backend_tokenizer.get_vocab() if word.isalpha()
    )[:30]
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
    settings = EvaluateSettings(finetune=FinetuneSettings(min_steps=None, **finetune))
    checkpoint = tiny.checkpoint("word2vec")
    context = EvalContext(checkpoint, data, settings, 0, 1000, "fp32", tiny.CPU)
    assert has_unigram_control(context)
    runs = [
        run for run in list_runs(INFO, ("random",), ("all",), (0, 1)) if run.transfer == "finetuned"
    ]
    folder.mkdir(exist_ok=True)
    output = evaluate_runs(context, runs, cache_dir=folder, report_progress=lambda *_: None)
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
    assert sentence.startswith("Fine-tuning did not converge here with all labels: ")
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
    settings = EvaluateSettings(finetune=FinetuneSettings(learning_rate=0.01))
    gpt = EvalContext(tiny.checkpoint("gpt"), data, settings, 0, 1000, "fp32", tiny.CPU)
    assert not has_unigram_control(gpt)
