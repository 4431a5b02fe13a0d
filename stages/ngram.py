"""Stage ngram: language models and counting predict held-out text; rows, predictions, losses.

A 5-gram model of the corpus, and its word frequencies, also score the minimal pairs of every task.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from lineage.artifacts import check_intact, read_manifest, read_table, write_table
from lineage.config.params import Params, read_recorded_params
from lineage.data.task_data import TaskData
from lineage.evaluation.contexts import pretrained_dir
from lineage.evaluation.evaluate import (
    EvaluationOutput,
    concatenate,
    evaluate_untrained,
    sort_predictions,
)
from lineage.evaluation.heldout import MAX_HELDOUT_BYTES, HeldoutText, find_predicted, heldout_part
from lineage.evaluation.ngram import (
    KneserNeyMethod,
    WordFrequencyMethod,
    count_words,
    fit_sentence_model,
    measure_heldout_text,
    select_documents,
)
from lineage.evaluation.ngram_bits import HeldoutLosses, NgramBits, write_ngram_file
from lineage.evaluation.result_rows import empty_curves
from lineage.evaluation.token_counts import CountedTokens
from lineage.language import byte_count
from lineage.methods.base import Method, empty_predictions
from lineage.networks.checkpoint import Checkpoint
from lineage.results import NGRAM_STAGE, results_frame
from lineage.runtime.stage import Stage, run_stage
from lineage.study.models import load_model_config
from lineage.tasks.base import list_sentence_tasks
from lineage.tokenizers.token_ids import TokenizedCorpus
from lineage.training.devices import configure_torch

RESULTS_DIR = Path("artifacts/results")


def work(stage: Stage) -> None:
    """Count, predict and score, unless the study has no model and no task to compare with."""
    params = read_recorded_params()
    configure_torch(params.threads)
    for name in params.grid.models:
        stage.watch_model(name)
    tasks = list_sentence_tasks(params.tasks, params.grid.tasks)
    models = load_models(params)
    bits: list[NgramBits] = []
    losses: list[HeldoutLosses] = []
    output = EvaluationOutput([], empty_predictions(), empty_curves(), {})
    if models or tasks:
        corpus_dir = Path("artifacts/corpora") / params.budget.corpus
        task_dirs = [Path("artifacts/tasks") / name for name in tasks]
        model_dirs = [folder for folders in models.values() for folder in folders]
        tokens_dirs = [Path("artifacts/tokens") / name for name in models]
        for folder in (corpus_dir, *tokens_dirs):
            check_intact(folder)
        parameters = {
            "budget": {"text_bytes": params.budget.text_bytes},
            "split": params.report.split,
        }
        inputs = [corpus_dir, *task_dirs, *model_dirs]
        with stage.track(parameters=parameters, inputs=inputs) as tracker:
            train_texts = _read_texts(corpus_dir, "train")
            documents = select_documents(
                np.array([byte_count(text) for text in train_texts]),
                text_bytes=params.budget.text_bytes,
                seed=params.seed,
            )
            with stage.work.measure("budget", params.budget.text_bytes):
                own_bits, output = score_corpus_ngrams(
                    params,
                    [train_texts[number] for number in documents],
                    _read_texts(corpus_dir, "valid"),
                    tasks,
                )
            bits = [own_bits]
            losses = compare_models(stage, params, models, documents)
            tracker.log_summary(summarize(bits, losses, output))
    file_name = f"{stage.file_name}.parquet"
    write_table(RESULTS_DIR / "rows" / file_name, results_frame(output.rows))
    predictions = sort_predictions([output.predictions])
    write_table(RESULTS_DIR / "predictions" / file_name, predictions)
    write_ngram_file(RESULTS_DIR / NGRAM_STAGE / f"{stage.file_name}.json", bits, losses)


def load_models(params: Params) -> dict[str, list[Path]]:
    """Return the folders of the pretrainings of each model that counting can be compared with."""
    folders: dict[str, list[Path]] = {}
    for name in params.grid.models:
        model = load_model_config(params, name)
        if find_predicted(model.family, model.pretrain) is None:
            continue
        for seed in params.grid.pretrain_seeds:
            folder = pretrained_dir(name, str(seed))
            check_intact(folder)
            if read_manifest(folder, "model")["status"] == "ok":
                folders.setdefault(name, []).append(folder)
    return folders


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


def compare_models(
    stage: Stage, params: Params, models: Mapping[str, Sequence[Path]], documents: np.ndarray
) -> list[HeldoutLosses]:
    """Let each model and counting predict the held-out text in the model's own tokens."""
    counted = CountedTokens(documents)
    found = []
    with stage.show_progress("models", len(models)) as report:
        for number, (name, folders) in enumerate(models.items()):
            report(number, name)
            tokens_dir = Path("artifacts/tokens") / name
            checkpoints = [Checkpoint.load(folder) for folder in folders]
            corpus = TokenizedCorpus.load(tokens_dir, "valid")
            text = HeldoutText.of(checkpoints[0], corpus)
            if text is None:
                continue
            with stage.work.measure("budget", params.budget.text_bytes):
                both_sides = text.predicted == "masked tokens"
                counts = counted.load(tokens_dir, both_sides=both_sides)
            heldout_bytes = min(corpus.text_bytes, MAX_HELDOUT_BYTES)
            with stage.work.measure(heldout_part(name), heldout_bytes):
                losses = text.compare(name, checkpoints, counts)
            if losses is not None:
                found.append(losses)
    return found


def summarize(
    bits: Sequence[NgramBits], losses: Sequence[HeldoutLosses], output: EvaluationOutput
) -> dict[str, float]:
    """Return the values that MLflow shows."""
    summary = {f"{one.model}/{one.metric}": one.bits_per_byte for one in bits}
    for one in losses:
        unit = "byte" if one.predicted == "next tokens" else "masked_token"
        summary[f"{one.model}/bits_per_{unit}"] = one.model_bits
        summary[f"{one.model}/ngram_bits_per_{unit}"] = one.ngram_bits
    for row in output.rows:
        if row.group == "all":
            summary[f"{row.model}/{row.task}/{row.metric}"] = row.value or 0.0
    return summary


if __name__ == "__main__":
    run_stage("ngram", work)
