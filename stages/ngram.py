"""Stage ngram: models that only count words -> bits per byte on held-out text, rows, predictions.

For each model that predicts the next token, a 5-gram model of the same tokens predicts the held-out
text of its validation. A 5-gram model of the corpus, and its word frequencies, score the minimal
pairs of every task.
"""

from pathlib import Path

import numpy as np

from lineage.artifacts import check_intact, read_table, write_table
from lineage.config.params import Params, read_recorded_params
from lineage.data.task_data import TaskData
from lineage.evaluation.evaluate import (
    EvaluationOutput,
    concatenate,
    evaluate_untrained,
    sort_predictions,
)
from lineage.evaluation.ngram import (
    KneserNeyMethod,
    ModelNgrams,
    WordFrequencyMethod,
    count_words,
    fit_sentence_model,
    measure_heldout_text,
    select_documents,
)
from lineage.evaluation.ngram_bits import NgramBits, write_ngram_bits
from lineage.evaluation.result_rows import empty_curves
from lineage.language import byte_count
from lineage.methods.base import Method, empty_predictions
from lineage.results import NGRAM_STAGE, results_frame
from lineage.runtime.stage import Stage, run_stage
from lineage.study.models import ModelConfig, load_model_config
from lineage.tasks.base import list_sentence_tasks
from lineage.training.recipes import with_recipe
from lineage.work import Stopwatch

RESULTS_DIR = Path("artifacts/results")


def work(stage: Stage) -> None:
    """Count and score, unless the study has no model and no task to compare with."""
    params = read_recorded_params()
    tasks = list_sentence_tasks(params.tasks, params.grid.tasks)
    models = [with_recipe(load_model_config(params, name), params) for name in params.grid.models]
    models = [model for model in models if model.family.predicts_next_token]
    bits: list[NgramBits] = []
    output = EvaluationOutput([], empty_predictions(), empty_curves(), {})
    if models or tasks:
        corpus_dir = Path("artifacts/corpora") / params.budget.corpus
        inputs = [corpus_dir, *(Path("artifacts/tasks") / name for name in tasks)]
        for folder in (corpus_dir, *(Path("artifacts/tokens") / model.name for model in models)):
            check_intact(folder)
        parameters = {
            "budget": {"text_bytes": params.budget.text_bytes},
            "split": params.report.split,
        }
        with stage.track(parameters=parameters, inputs=inputs) as tracker:
            train_texts = _read_texts(corpus_dir, "train")
            documents = select_documents(
                np.array([byte_count(text) for text in train_texts]),
                text_bytes=params.budget.text_bytes,
                seed=params.seed,
            )
            stopwatch = Stopwatch()
            own_bits, output = score_corpus_ngrams(
                params,
                [train_texts[number] for number in documents],
                _read_texts(corpus_dir, "valid"),
                tasks,
            )
            bits = [own_bits, *measure_models(stage, models, documents)]
            stage.work.add("budget", params.budget.text_bytes, stopwatch.seconds)
            tracker.log_summary({f"{one.model}/{one.metric}": one.bits_per_byte for one in bits})
            for row in output.rows:
                if row.group == "all":
                    tracker.log_summary({f"{row.model}/{row.task}/{row.metric}": row.value or 0.0})
    file_name = f"{stage.file_name}.parquet"
    write_table(RESULTS_DIR / "rows" / file_name, results_frame(output.rows))
    predictions = sort_predictions([output.predictions])
    write_table(RESULTS_DIR / "predictions" / file_name, predictions)
    write_ngram_bits(RESULTS_DIR / NGRAM_STAGE / f"{stage.file_name}.json", bits)


def _read_texts(corpus_dir: Path, split: str) -> list[str]:
    return [*read_table(corpus_dir / f"{split}.parquet", ["text"])["text"]]


def score_corpus_ngrams(
    params: Params, train_texts: list[str], valid_texts: list[str], tasks: list[str]
) -> tuple[NgramBits, EvaluationOutput]:
    """Return the bits per byte of a 5-gram model of the text, and the results on minimal pairs."""
    language = params.corpora[params.budget.corpus].language
    ngrams = fit_sentence_model(train_texts, language)
    bits = measure_heldout_text(ngrams, valid_texts, train_texts)
    methods: list[Method] = [
        KneserNeyMethod(scorer=ngrams),
        WordFrequencyMethod(scorer=count_words(train_texts, language)),
    ]
    outputs = []
    for name in tasks:
        task = TaskData.load(Path("artifacts/tasks") / name, split=params.report.split)
        if params.report.split in task.scored_splits:
            outputs.append(evaluate_untrained(task, methods))
    rows = [row for output in outputs for row in output.rows]
    tables = [output.predictions for output in outputs]
    predictions = concatenate([empty_predictions(), *tables])
    return bits, EvaluationOutput(rows, predictions, empty_curves(), {})


def measure_models(
    stage: Stage, models: list[ModelConfig], documents: np.ndarray
) -> list[NgramBits]:
    """Return the bits per byte of 5-gram models of the models' own tokens."""
    fitted = ModelNgrams(documents)
    bits = []
    with stage.show_progress("models", len(models)) as report:
        for number, model in enumerate(models):
            report(number, model.name)
            tokens_dir = Path("artifacts/tokens") / model.name
            bits.append(fitted.measure(model.name, model.family, model.pretrain, tokens_dir))
    return bits


if __name__ == "__main__":
    run_stage("ngram", work)
