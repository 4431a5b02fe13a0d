"""Compose the params.yaml of a new study from the findings about the user's files."""

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import floor, log10
from pathlib import Path
from typing import Any

from lineage.config.data import Corpus, Task
from lineage.config.params import Params, parse_params
from lineage.config.records import parse_record, parse_yaml
from lineage.data.checks import ENOUGH_PASSES, MIN_BYTES_PER_TOKEN, TOKENS_PER_WORD
from lineage.data.corpus import CorpusMeasures, locate_corpus
from lineage.data.inspection import CorpusFindings, TaskFindings
from lineage.data.prepare_task import TaskMeasures, locate_task
from lineage.errors import InputError, shorten_value
from lineage.language import is_spaceless
from lineage.methods.translation import TranslationMethod
from lineage.study.checks import check_data, check_study
from lineage.study.public_proposal import PublicProposal
from lineage.tasks.base import load_kind
from lineage.tasks.recognition import list_names

CORPUS_NAME = "general"
TRANSFORMERS = ("gpt_modern", "bert_modern", "gpt_bert")
MODELS = ("word2vec", "elmo", *TRANSFORMERS)
ADAPT_MODELS = ("elmo", *TRANSFORMERS)
WRITER = "seq2seq"  # learns to write texts
CONTINUING_MODELS = ("gpt_modern",)  # write on from a text
MAX_VOCAB_SIZE = 8000  # for a body of a million parameters
MIN_VOCAB_SIZE = 500
DEFAULT_VOCAB_SIZE = 16_000  # of word models; with text for so many, the defaults stay
MAX_TEXT_BYTES = 40_000_000  # half a day for five models on one core
# Bytes of text times body parameters that one core trains on in a second, roughly.
TRAINING_RATE = 1.2e10
# Body parameters for a budget of at least so many bytes of text.
BODY_PARAMETERS = ((4_000_000, 1_000_000), (0, 400_000))
MIN_ADAPT_BYTES = 30_000
SUBWORDS_PER_WORD = 1.3
MAX_SUBWORDS_PER_WORD = 3  # in one text
NEW_TOKENS_STEP = 50
DEFAULT_POSITIONS = 136  # enough for 128 words
DEFAULT_MAX_WORDS = 128
TOKENS_PER_BATCH = 1088  # 8 sequences of the default length
FOLDS = 3
FEW_LABELS = 1000  # with fewer, a larger share is for validation
FEW_LABELS_VALIDATION_SHARE = 0.2
MAX_FOLD_ROWS = 2000
MAX_SPLIT_ROWS = 5000
LABEL_COUNTS = (100, 300, 1000)
PLAIN_SCALAR = re.compile(r"[A-Za-z_][\w-]*", re.ASCII)
YAML_WORDS = ("true", "false", "null", "yes", "no", "on", "off", "y", "n")

Comments = dict[str, str]  # by key


@dataclass(frozen=True)
class StudyDraft:
    """The params.yaml of a new study, and lines that tell the user what was inferred."""

    params_text: str
    lines: tuple[str, ...]


@dataclass(frozen=True)
class _TaskPlan:
    """A task as it will stand in params.yaml, with its measures."""

    findings: TaskFindings
    tree: dict[str, Any]
    comments: Comments
    measures: TaskMeasures


def draft_params(
    corpora: Sequence[CorpusFindings],
    tasks: Sequence[TaskFindings],
    root: Path,
    language: str | None,
    public: PublicProposal | None = None,
) -> StudyDraft:
    """Compose params.yaml, and check it like the stage `sources`. Raises InputError.

    `language` is the user's choice. Relative files are looked up in `root`. Prepared data is kept
    below the current folder, as by a stage.
    """
    is_guessed = language is None
    corpus_language = language or corpora[0].language
    sources = []
    for found in corpora:
        has_other_script = is_guessed and found.language != corpus_language
        sources.append(found.keys | ({"language": found.language} if has_other_script else {}))
    corpus_tree = {"language": corpus_language, "sources": sources}
    corpus = parse_record(Corpus, corpus_tree, "--corpus")
    prepared = locate_corpus(CORPUS_NAME, corpus, seed=Params.seed, root=root, where="--corpus")
    measures = CorpusMeasures(**prepared.measure())
    plans = [_plan_task(found, corpus_language, root, language) for found in tasks]
    lines = [
        "# A study of pretraining methods on this text and these tasks, written by lineage init.",
        "# Comments mark what was guessed. `lineage params` prints all keys.",
        *_corpus_lines(corpora, sources, corpus_language, is_guessed=is_guessed),
        *_budget_lines(measures),
        "tasks:",
    ]
    for plan in plans:
        lines.append(f"  {plan.findings.name}:")
        for key, value in plan.tree.items():
            lines.append(_line(4, key, value, plan.comments.get(key, "")))
    lines += _grid_lines(plans, public)
    lines += _model_lines(measures, corpus_language, plans)
    if public is not None:
        comment = "a public checkpoint, which has read text of its own"
        if not public.is_requested:
            comment = f"it lies in the Hub's cache; add it to {public.grid_lists} to compare it"
        lines.append(_line(2, public.name, public.keys, comment))
    text = "\n".join(lines) + "\n"
    params = parse_params(parse_yaml(text, Path("params.yaml")))
    check_data(params, check_study(params), root)
    summary = _summary(corpora, plans, params, is_guessed=is_guessed)
    if public is not None:
        end = f" lies in the Hub's cache; to compare it, add it to {public.grid_lists}"
        if public.is_requested:
            end = ", compared beside the others; it is not budget-matched"
        summary.append(f"public model {public.name}: {public.keys['from']}{end}")
    return StudyDraft(text, tuple(summary))


def _plan_task(
    found: TaskFindings, corpus_language: str, root: Path, language: str | None
) -> _TaskPlan:
    """Decide on the splits and limits of a task, and measure it. Raises InputError."""
    kind = load_kind(found.kind)
    tree: dict[str, Any] = {"kind": found.kind}
    task_language = language or found.language
    if task_language != corpus_language:
        tree["language"] = task_language
    comments = {"language": "guessed from its letters, which differ from those of the corpus"}
    if kind.has_train_split:
        tree["files"] = found.files
    else:
        tree["files"] = {"test": found.files.get("test", found.files["train"])}
        comments["files"] = "nothing is trained on it, so it is the test"
    tree |= found.keys
    if found.max_words is not None:
        tree["max_words"] = found.max_words
        share = floor(100 * found.covered_share)
        longer = "no text is longer"
        if share < 100:
            longer = f"{share} % of the texts are no longer than this; others are cut"
        comments["max_words"] = f"guessed: {longer}"
    if kind.recognition is not None and kind.recognition.lists_metrics:
        tree["metric"] = list(kind.metrics)
        comments["metric"] = "systems are compared by the first"
    if kind.has_train_split:
        tree |= _plan_splits(found, comments)
    comments |= _comment_columns(found)
    where = f"--task {found.name}"
    defaults = {"language": corpus_language}
    task = parse_record(Task, defaults | tree, where)
    prepared = locate_task(found.name, task, seed=Params.seed, root=root, where=where)
    return _TaskPlan(found, tree, comments, TaskMeasures(**prepared.measure()))


def _plan_splits(found: TaskFindings, comments: Comments) -> dict[str, Any]:
    """Return folds where no test is given, and limits for large data."""
    keys: dict[str, Any] = {}
    num_train = found.num_rows["train"]
    if "test" not in found.files:
        keys["folds"] = FOLDS
        comments["folds"] = (
            "without a test file each row is tested once; or remove this, and add test: to files"
        )
    if num_train < FEW_LABELS and "validation" not in found.files:
        keys["validation_share"] = FEW_LABELS_VALIDATION_SHARE
        comments["validation_share"] = "of the training rows; more than usual, as they are few"
    limit = {}
    most = MAX_SPLIT_ROWS if "test" in found.files else MAX_FOLD_ROWS
    for split in ("train", "test"):
        if found.num_rows.get(split, 0) > most:
            limit[split] = most
    if limit:
        keys["limit"] = limit
        comments["limit"] = "guessed, to save time; remove it to use all rows"
    return keys


def _comment_columns(found: TaskFindings) -> Comments:
    comments: Comments = {}
    if "group" in found.choice.keys:
        comments["group"] = (
            "guessed: rows with the same value stay together in folds and validation; remove it if "
            "rows are independent"
        )
    if found.is_kind_guessed:
        recognition = load_kind(found.kind).recognition
        assert recognition is not None
        comments["kind"] = "guessed from the columns"
        if recognition.comment:
            comments["kind"] = f"guessed; {recognition.comment}"
    if not found.is_guessed:
        return comments
    if "columns" in found.keys:
        comments["columns"] = "guessed names of what stands in a line, in order"
        if len(found.keys["columns"]) > 2:
            comments["label"] = "guessed: another of these columns may be meant"
        return comments
    return comments | {key: f"guessed; {note}" for key, note in found.choice.notes.items()}


def _corpus_lines(
    corpora: Sequence[CorpusFindings],
    sources: Sequence[dict[str, Any]],
    language: str,
    *,
    is_guessed: bool,
) -> list[str]:
    comment = ""
    if is_guessed:
        comment = "guessed from the letters; set the code of your language, such as de"
    lines = [
        "corpora:",
        f"  {CORPUS_NAME}:",
        _line(4, "language", language, comment),
        "    sources:",
    ]
    for found, keys in zip(corpora, sources, strict=True):
        entry = f"      - {to_yaml(keys)}"
        lines.append(f"{entry} # {found.comment}" if found.comment else entry)
    return lines


def _budget_lines(measures: CorpusMeasures) -> list[str]:
    train_bytes = measures.train_bytes
    text_bytes = _round_down(min(MAX_TEXT_BYTES, ENOUGH_PASSES * train_bytes))
    parameters = next(count for least, count in BODY_PARAMETERS if text_bytes >= least)
    passes = f"{text_bytes / train_bytes:.1f}".removesuffix(".0")
    noun = "pass" if passes == "1" else "passes"
    budget = {
        "corpus": CORPUS_NAME,
        "text_bytes": text_bytes,
        "max_epochs": ENOUGH_PASSES,
        "body_parameters": parameters,
    }
    comment = f"{passes} {noun} over the training text"
    if text_bytes < MAX_TEXT_BYTES:
        comment += ", from which models were found to learn more than counting 5-grams does"
    else:
        comment += "; more passes or parameters may teach more, and take longer"
    return [_line(0, "budget", budget, comment)]


def _grid_lines(plans: Sequence[_TaskPlan], public: PublicProposal | None) -> list[str]:
    """Return the grid, with every list that dvc.yaml reads."""
    adaptable = [
        plan.findings.name
        for plan in plans
        if load_kind(plan.findings.kind).trains_head
        # In folds every item is scored, so only unlabelled text counts.
        and ("folds" not in plan.tree or "unlabelled" in plan.findings.files)
        and plan.measures.text_bytes >= MIN_ADAPT_BYTES
    ]
    models = _list_models(plans)
    adapt_models = [*ADAPT_MODELS]
    if public is not None and public.is_requested:
        models.append(public.name)
        if public.has_lm_head:
            adapt_models.append(public.name)
    adapt_comment = "models that go on with the text of the tasks, up to three passes"
    if not adaptable:
        adapt_comment = "to adapt models, give a task unlabelled text, or a test file and more text"
    rows: list[tuple[str, Any, str]] = [
        ("models", models, "or fasttext, ulmfit, gpt and bert of 2018, a public checkpoint, ..."),
        ("tasks", [plan.findings.name for plan in plans], ""),
        ("pretrain_seeds", [0], "more seeds show how much chance matters, and take longer"),
        (
            "finetune_seeds",
            [0, 1, 2],
            "each result is the mean over these; fewer tell nothing about others",
        ),
        ("label_counts", _label_counts(plans), "numbers of training rows to compare with"),
        ("adapt_models", adapt_models if adaptable else [], adapt_comment),
        ("adapt_tasks", adaptable, ""),
        (
            "target_only_models",
            [],
            "adapted models to train on the text of adapt_tasks alone too: does the corpus help?",
        ),
        ("join_models", [], "models whose features are joined with static vectors"),
        ("join_tasks", [], ""),
        ("join_static_model", "word2vec", ""),
    ]
    return ["grid:", *(_line(2, *row) for row in rows)]


def _list_models(plans: Sequence[_TaskPlan]) -> list[str]:
    """Return the models that can do something for the tasks: few of them write texts."""
    are_written = [_is_written(plan) for plan in plans]
    models = [*CONTINUING_MODELS] if all(are_written) else [*MODELS]
    return [*models, WRITER] if any(are_written) else models


def _is_written(plan: _TaskPlan) -> bool:
    return load_kind(plan.findings.kind).answer.answered_by == "translator"


def _label_counts(plans: Sequence[_TaskPlan]) -> list[int | str]:
    """Return `all` and a smaller number, if there are labels for it and examples for each class."""
    num_available = 0
    for plan in plans:
        share = 1 - 1 / FOLDS if "folds" in plan.tree else 1.0
        num_available = max(num_available, round(share * plan.measures.num_train))
    num_classes = max((plan.measures.num_classes for plan in plans), default=0)
    for count in LABEL_COUNTS:
        if 2 * num_classes <= count <= num_available / 2:
            return [count, "all"]
    return ["all"]


def _model_lines(measures: CorpusMeasures, language: str, plans: Sequence[_TaskPlan]) -> list[str]:
    """Return vocabularies that the text is enough for, and settings for little text."""
    lines = []
    limit = measures.train_bytes // MIN_BYTES_PER_TOKEN
    if not is_spaceless(language):
        limit = min(limit, TOKENS_PER_WORD * measures.distinct_words)
    if limit < MIN_VOCAB_SIZE:
        raise InputError(
            f"--corpus: {measures.train_bytes:,} bytes of training text with "
            f"{measures.distinct_words:,} distinct words are too few to train a model; give at "
            f"least {MIN_VOCAB_SIZE * MIN_BYTES_PER_TOKEN:,} bytes, better some megabytes"
        )
    if limit < DEFAULT_VOCAB_SIZE:
        vocab = {"tokenizer": {"vocab_size": _round_down(min(MAX_VOCAB_SIZE, limit))}}
        comment = f"a token needs {MIN_BYTES_PER_TOKEN} bytes of training text"
        lines.append(_line(0, "defaults", vocab, comment))
    # They read sequences as long as most texts of the tasks.
    positions = DEFAULT_POSITIONS
    max_words = max((plan.findings.max_words or 0 for plan in plans), default=0)
    if max_words > DEFAULT_MAX_WORDS:
        positions = 8 * -(-round(SUBWORDS_PER_WORD * max_words + 3) // 8)
    keys: dict[str, Any] = {"pretrain": {"seq_len": positions}}
    if positions > DEFAULT_POSITIONS:
        batch_size = max(2, TOKENS_PER_BATCH // positions)
        keys = {
            "architecture": {"max_positions": positions},
            "pretrain": {"seq_len": positions, "batch_size": batch_size},
        }
    models = _list_models(plans)
    lines = [*lines, "models:", *(_line(2, one, keys) for one in TRANSFORMERS if one in models)]
    longest = max((plan.measures.longest_words for plan in plans if _is_written(plan)), default=0)
    max_new_tokens = NEW_TOKENS_STEP * -(-MAX_SUBWORDS_PER_WORD * longest // NEW_TOKENS_STEP)
    if max_new_tokens > TranslationMethod.max_new_tokens:
        writing = {"evaluate": {"translation": {"max_new_tokens": max_new_tokens}}}
        comment = f"the longest training summary has {longest} words"
        lines.append(_line(2, WRITER, writing, comment))
    return lines


def _summary(
    corpora: Sequence[CorpusFindings],
    plans: Sequence[_TaskPlan],
    params: Params,
    *,
    is_guessed: bool,
) -> list[str]:
    corpus = params.corpora[CORPUS_NAME]
    origin = " (guessed from the letters; --language sets another)" if is_guessed else ""
    lines = []
    for found, source in zip(corpora, corpus.sources, strict=True):
        language = source.language or corpus.language
        lines.append(f"corpus: {found.description}, language {language}{origin}")
    for plan in plans:
        lines.append(f"task {plan.findings.name}: {_describe_task(plan)}")
        lines += [f"  {note}" for note in _task_notes(plan)]
    budget = params.budget
    assert budget.body_parameters is not None
    minutes = round(budget.text_bytes * budget.body_parameters / TRAINING_RATE / 60)
    lines.append(
        f"models: {', '.join(_list_models(plans))}; {budget.body_parameters:,} parameters each, "
        f"{budget.text_bytes / 1e6:.1f} MB of text to read, roughly {max(1, minutes)} min each on one "
        "core to pretrain; evaluation often takes longer, and `lineage check` forecasts both"
    )
    return lines


def _describe_task(plan: _TaskPlan) -> str:
    found = plan.findings
    if "train" in plan.tree["files"]:
        parts = [found.kind, f"{found.num_rows['train']:,} rows"]
        others = [split for split in found.num_rows if split != "train"]
        parts += [f"{split}: {found.num_rows[split]:,}" for split in others]
    else:
        num_rows = found.num_rows.get("test", found.num_rows["train"])
        parts = [found.kind, f"{num_rows:,} rows"]
    if "language" in plan.tree:
        parts.append(f"language {plan.tree['language']}")
    columns = [
        f"{key} = {' and '.join(map(shorten_value, value if isinstance(value, list) else [value]))}"
        for key, value in found.choice.keys.items()
    ]
    notes = []
    if plan.measures.num_classes:
        notes.append(f"{plan.measures.num_classes} labels")
    if found.is_guessed:
        notes.append(f"guessed from the columns {list_names(found.columns)}")
    note = f" ({'; '.join(notes)})" if notes else ""
    return ", ".join([*parts, *columns]) + note


def _task_notes(plan: _TaskPlan) -> list[str]:
    notes = []
    if "folds" in plan.tree:
        validation_share = plan.tree.get("validation_share", Task.validation_share)
        num_train = plan.measures.num_train
        num_learned = round((1 - 1 / FOLDS) * (1 - validation_share) * num_train)
        notes.append(
            f"no test file was given, so each row is tested once, in {FOLDS} folds; each fold "
            f"trains on about {num_learned:,} of {num_train:,} rows, since one part is tested and "
            "another is validation; better add test=FILE"
        )
    for split, count in plan.tree.get("limit", {}).items():
        notes.append(f"{count:,} rows of {split} are used, to save time; change 'limit' for more")
    return notes


def _round_down(number: float) -> int:
    """Round down to two significant digits."""
    digits = 10 ** max(0, floor(log10(number)) - 1)
    return int(number // digits) * digits


def _line(indent: int, key: str, value: object, comment: str = "") -> str:
    line = f"{' ' * indent}{key}: {to_yaml(value)}"
    return f"{line} # {comment}" if comment else line


def to_yaml(value: object) -> str:
    """Return a value as YAML on one line."""
    if isinstance(value, Mapping):
        return f"{{{', '.join(f'{to_yaml(key)}: {to_yaml(item)}' for key, item in value.items())}}}"
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(to_yaml, value))}]"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, int):
        return f"{value:_}" if value >= 10_000 else str(value)
    if isinstance(value, str):
        is_plain = PLAIN_SCALAR.fullmatch(value) and value.lower() not in YAML_WORDS
        return value if is_plain else json.dumps(value, ensure_ascii=not value.isprintable())
    return str(value)
