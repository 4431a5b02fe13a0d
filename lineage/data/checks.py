"""Check the parameters of corpus and tasks against their data, before anything is trained."""

import sys
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from lineage.config.data import Task
from lineage.config.params import Budget, Params
from lineage.data.corpus import CorpusMeasures, locate_corpus
from lineage.data.prepare_task import TaskMeasures, kind_digest, locate_task
from lineage.errors import InputError
from lineage.language import is_spaceless
from lineage.tasks.base import load_kind

# With fewer bytes of text per token, most of a vocabulary would be seen a few times or never.
MIN_BYTES_PER_TOKEN = 20
# From so many passes over some megabytes of text, models of a million parameters learned more than
# a 5-gram model of the same text (docs/explanation/recipes.md). Less and more was not measured.
ENOUGH_PASSES = 4
# Over 12 MB most of them did so from three. After one, none did.
FEWEST_PASSES = 3
MEASURED_TEXT_BYTES = (400_000, 20_000_000)
FEW_ROWS = 20  # with fewer, scores differ by tens of points from draw to draw
# A subword vocabulary holds whole words, and the intermediate pieces of their merges.
TOKENS_PER_WORD = 4


@dataclass(frozen=True)
class TextLengthLimit:
    """The longest text that a model reads as a whole."""

    max_length: int  # words between spaces
    in_characters: bool = False  # Chinese characters instead
    # Numbers of training items; fewer than there are may leave a long text out.
    label_counts: tuple[int | Literal["all"], ...] = ("all",)


def check_corpus(
    name: str,
    params: Params,
    vocab_sizes: Mapping[str, int],
    languages: Mapping[str, Iterable[str | None]],
    root: Path,
) -> dict[str, Any]:
    """Prepare a corpus, check it, and return its record for the sources stage."""
    corpus = params.corpora[name]
    where = f"params.yaml: corpora.{name}"
    prepared = locate_corpus(name, corpus, seed=params.seed, root=root, where=where)
    measures = CorpusMeasures(**prepared.measure())
    for model, vocab_size in vocab_sizes.items():
        _check_vocab_size(model, vocab_size, measures, corpus.language, where)
    for model, model_languages in languages.items():
        for language in filter(None, model_languages):
            documents = measures.num_documents
            lacking = [one for one in ("train", "valid") if not documents[one].get(language)]
            if lacking:
                hint = ", or raise validation_share" if lacking == ["valid"] else ""
                raise InputError(
                    f"{where}: {lacking[0]} has no document in '{language}', which "
                    f"models.{model}.pretrain reads separately; add text with language: "
                    f"{language}{hint}"
                )
    budget = params.budget
    if budget.text_bytes > budget.max_epochs * measures.train_bytes:
        raise InputError(
            f"params.yaml: budget.text_bytes: {budget.text_bytes:,} are more than "
            f"{budget.max_epochs} passes over the {measures.train_bytes:,} training bytes of "
            f"'{name}'; add text, lower text_bytes or raise max_epochs"
        )
    if not any(source.generated for source in corpus.sources):
        _warn_of_few_passes(budget, measures.train_bytes)
    return {"corpus": name, "sources": prepared.fingerprint, "documents": measures.num_read}


def _warn_of_few_passes(budget: Budget, train_bytes: int) -> None:
    """Print a warning if models read little text too seldom to learn more than counting does."""
    passes = budget.text_bytes / train_bytes
    least, most = MEASURED_TEXT_BYTES
    if not least <= train_bytes <= most:
        return
    if passes > FEWEST_PASSES - 0.5:  # a budget of whole megabytes is seldom a whole pass
        return
    print(
        f"params.yaml: budget.text_bytes: {budget.text_bytes:,} are {passes:.1f} passes over the "
        f"{train_bytes:,} bytes of training text; after so few, models tend to predict text worse "
        f"than a 5-gram model. With max_epochs: {ENOUGH_PASSES} and text_bytes: "
        f"{ENOUGH_PASSES * train_bytes:,} they learn more, and take longer",
        file=sys.stderr,
    )


def _check_vocab_size(
    model: str, vocab_size: int, measures: CorpusMeasures, language: str, where: str
) -> None:
    has_few_words = measures.distinct_words < vocab_size / TOKENS_PER_WORD
    if is_spaceless(language):  # its words are characters
        has_few_words = False
    if has_few_words or measures.train_bytes < MIN_BYTES_PER_TOKEN * vocab_size:
        raise InputError(
            f"{where}: {measures.train_bytes:,} bytes with {measures.distinct_words:,} distinct "
            f"words are too small for the vocabulary of {vocab_size:,} in "
            f"models.{model}.tokenizer; add text, or ask for a smaller vocabulary"
        )


def check_task_data(
    name: str,
    params: Params,
    root: Path,
    length_limits: Mapping[str, TextLengthLimit] | None = None,
) -> dict[str, Any]:
    """Prepare a task, check it, and return its record for the sources stage.

    `length_limits` has the limit of its texts for each key that sets one. Raises InputError; prints
    a warning where a parameter makes little sense.
    """
    task = params.tasks[name]
    where = f"params.yaml: tasks.{name}"
    kind = load_kind(task.kind, f"{where}.kind")
    if name in params.grid.join_tasks and not kind.trains_head:
        raise InputError(
            f"params.yaml: grid.join_tasks: {name}: a task of kind {kind.name} has no probe of "
            "frozen features; remove it"
        )
    if task.folds and params.report.split != "test":
        raise InputError(
            f"{where}.folds: with folds every item of train is test once, and report.split is "
            f"{params.report.split}; set it to test, or remove folds"
        )
    prepared = locate_task(name, task, seed=params.seed, root=root, where=where)
    measures = TaskMeasures(**prepared.measure())
    for key, limit in (length_limits or {}).items():
        _check_text_length(name, key, limit, measures)
    for warning in _list_warnings(name, params, measures, where):
        print(warning, file=sys.stderr)
    if name in params.grid.adapt_tasks:
        _check_adaptation(task, measures, where)
    return {
        "task": name,
        "kind": kind.name,
        "kind_sha256": kind_digest(kind),
        "language": task.language,
        "data": prepared.fingerprint,
    }


def _list_warnings(name: str, params: Params, measures: TaskMeasures, where: str) -> Iterator[str]:
    """Yield what makes little sense, although it can be run."""
    if 0 < measures.num_train < FEW_ROWS:
        yield (
            f"{where}: {measures.num_train} training rows are too few to compare systems by: "
            "another draw of them could turn any result around; label a hundred or more"
        )
    counts = [count for count in params.grid.label_counts if count != "all"]
    num_classes = measures.num_classes
    fewest = min(counts, default=num_classes)
    if fewest < num_classes:
        yield (
            f"params.yaml: grid.label_counts: with {fewest} labels at least "
            f"{num_classes - fewest} of the {num_classes} classes of '{name}' have no training "
            f"example and are never predicted; use at least {num_classes}"
        )
    largest = max(counts, default=0)
    if 0 < measures.num_train < largest:
        yield (
            f"params.yaml: grid.label_counts: '{name}' has {measures.num_train:,} training "
            f"examples, so {largest:,} means all of them; write all instead, unless another task "
            "has more"
        )
    kind = load_kind(params.tasks[name].kind)
    label_key = (kind.label_columns or kind.required_columns)[0]
    yield from (f"{where}.{label_key}: {warning}" for warning in measures.label_warnings)
    yield from (f"{where}.files: {warning}" for warning in measures.file_warnings)


def _check_adaptation(task: Task, measures: TaskMeasures, where: str) -> None:
    given_splits = task.files or task.splits or {}
    if task.folds and "unlabelled" not in given_splits:
        raise InputError(
            f"{where}: in folds every item is scored, so none can be adapted to; give an "
            "unlabelled split, or remove the task from grid.adapt_tasks"
        )
    if measures.num_texts < 2:
        raise InputError(
            f"{where}: {measures.num_texts} distinct texts are too few to adapt to; add "
            "unlabelled text, or remove the task from grid.adapt_tasks"
        )


def _check_text_length(task: str, key: str, limit: TextLengthLimit, measures: TaskMeasures) -> None:
    uses_all_items = any(
        count == "all" or count >= measures.num_train for count in limit.label_counts
    )
    unit = "characters" if limit.in_characters else "words"
    length = measures.longest_characters if limit.in_characters else measures.longest_words
    if uses_all_items and length > limit.max_length:
        positions = " (and architecture.max_positions)" if key.endswith("pretrain.seq_len") else ""
        raise InputError(
            f"params.yaml: {key}: a text of '{task}' has {length} {unit}, and at most "
            f"{limit.max_length}, special tokens included, are read at once; raise it{positions}, "
            "or remove such texts from the data"
        )
