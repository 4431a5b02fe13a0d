"""Tasks of every kind with labels, and their kept systems: evaluated, exported and packaged."""

import dataclasses
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import mlflow
import numpy as np
import pandas as pd
from mlflow.pyfunc import PyFuncModel

from lineage.config.data import Task
from lineage.config.records import parse_record
from lineage.data.task_data import TaskData
from lineage.evaluation.evaluate import evaluate_runs
from lineage.methods.encoder import EvalContext
from lineage.methods.finetuning import FinetuneMethod
from lineage.methods.linear_probe import LinearProbeMethod
from lineage.methods.registry import EvaluateSettings
from lineage.methods.saved import read_record
from lineage.methods.setfit import SetfitMethod
from lineage.networks.checkpoint import Checkpoint
from lineage.results import ResultRow
from lineage.serving.card import write_card
from lineage.serving.export import export_system
from lineage.serving.mlflow_model import save_system
from lineage.serving.systems import KeptSystem
from lineage.tasks.base import load_kind
from tests.helpers import tiny
from tests.helpers.tasks import build_task_items, write_jsonl

NUM_ITEMS = {"train": 30, "validation": 12, "test": 23}
SETTINGS = EvaluateSettings(
    linear_probe=LinearProbeMethod(trials=(), l2=0.01, max_iter=30),
    bilstm_probe=dataclasses.replace(tiny.BILSTM_PROBE, epochs=2),
    finetune=FinetuneMethod(epochs=1, min_steps=8, patience=None, learning_rate=0.003),
    setfit=SetfitMethod(trials=(), l2=0.01, num_iterations=3),
)
ALL_WORDS = sorted({word for text in tiny.documents() for word in text.split()})
Table = dict[str, list[Any]]


def random_words(rng: np.random.Generator, least: int = 3, most: int = 12) -> list[str]:
    return [str(word) for word in rng.choice(ALL_WORDS[:60], rng.integers(least, most))]


def random_texts(rng: np.random.Generator, count: int) -> list[str]:
    return [" ".join(random_words(rng)) for _ in range(count)]


def make_texts(rng: np.random.Generator, count: int) -> Table:
    labels = [("bad", "good", "odd")[number % 3] for number in range(count)]
    texts = [
        f"{ALL_WORDS[len(label)]} {text}"
        for label, text in zip(labels, random_texts(rng, count), strict=True)
    ]
    return {"review": texts, "stars": labels}


def make_pairs(rng: np.random.Generator, count: int) -> Table:
    return {
        "one": random_texts(rng, count),
        "other": random_texts(rng, count),
        "same": [number % 2 for number in range(count)],
    }


def make_numbers(rng: np.random.Generator, count: int) -> Table:
    return {"review": random_texts(rng, count), "value": rng.normal(size=count).tolist()}


def make_tags(rng: np.random.Generator, count: int) -> Table:
    sentences = [random_words(rng, 2, 60) for _ in range(count)]
    tags = [["B-X" if word in ALL_WORDS[:20] else "O" for word in words] for words in sentences]
    return {"words": sentences, "tags": tags}


def make_spans(rng: np.random.Generator, count: int) -> Table:
    """Return texts, and each word of a few as a span of characters."""
    texts = random_texts(rng, count)
    spans = [
        [
            {"start": found.start(), "end": found.end(), "label": "X"}
            for found in re.finditer(r"\S+", text)
            if found[0] in ALL_WORDS[:20]
        ]
        for text in texts
    ]
    return {"words": texts, "spans": spans}


def make_roles(rng: np.random.Generator, count: int) -> Table:
    table = make_tags(rng, count)
    verbs = [int(rng.integers(len(words))) for words in table["words"]]
    return {**table, "verb": verbs}


def make_choices(rng: np.random.Generator, count: int) -> Table:
    return {
        "passage": random_texts(rng, count),
        "question": random_texts(rng, count),
        "options": [random_texts(rng, 3) for _ in range(count)],
        "right": [number % 3 for number in range(count)],
    }


def make_pronouns(rng: np.random.Generator, count: int) -> Table:
    columns = ("text", "it", "it_start", "one", "one_start", "other", "other_start", "right")
    table: Table = {name: [] for name in columns}
    for number in range(count):
        words = random_words(rng, 6, 40)
        starts = np.cumsum([0, *(len(word) + 1 for word in words)])
        table["text"].append(" ".join(words))
        for name, place in zip(("it", "one", "other"), rng.permutation(6)[:3], strict=True):
            table[name].append(words[place])
            table[f"{name}_start"].append(int(starts[place]))
        table["right"].append(("one", "other", "neither")[number % 3])
    return table


def make_senses(rng: np.random.Generator, count: int) -> Table:
    return {
        "words": [random_words(rng) for _ in range(count)],
        "place": [number % 3 for number in range(count)],
        "sense": [("tool", "animal")[number % 2] for number in range(count)],
    }


def make_questions(rng: np.random.Generator, count: int) -> Table:
    # A word that occurs twice could give two spans with equal scores.
    contexts = [
        rng.choice(ALL_WORDS, rng.integers(5, 40), replace=False).tolist() for _ in range(count)
    ]
    return {
        "q": random_texts(rng, count),
        "context": [" ".join(words) for words in contexts],
        "answers": [[words[3]] for words in contexts],
    }


CASES: dict[str, tuple[Callable[[np.random.Generator, int], Table], dict[str, Any]]] = {
    "texts": (make_texts, {"kind": "text_classification", "text": ["review"], "label": "stars"}),
    "pairs": (
        make_pairs,
        {
            "kind": "text_classification",
            "text": ["one", "other"],
            "label": "same",
            "symmetric": True,
        },
    ),
    "numbers": (make_numbers, {"kind": "text_regression", "text": ["review"], "label": "value"}),
    "tags": (make_tags, {"kind": "token_classification", "tokens": "words", "label": "tags"}),
    "spans": (make_spans, {"kind": "token_classification", "tokens": "words", "label": "spans"}),
    "roles": (
        make_roles,
        {"kind": "semantic_roles", "tokens": "words", "predicate": "verb", "label": "tags"},
    ),
    "choices": (
        make_choices,
        {
            "kind": "multiple_choice",
            "text": ["passage", "question"],
            "choices": ["options"],
            "label": "right",
        },
    ),
    "pronouns": (
        make_pronouns,
        {
            "kind": "pronoun_choice",
            "text": ["text"],
            "pronoun": "it",
            "pronoun_start": "it_start",
            "candidates": ["one", "other"],
            "candidate_starts": ["one_start", "other_start"],
            "label": "right",
            "probes": ["linear"],
        },
    ),
    "senses": (
        make_senses,
        {"kind": "word_sense", "tokens": "words", "target": "place", "label": "sense"},
    ),
    "questions": (
        make_questions,
        {"kind": "extractive_qa", "question": "q", "context": "context", "answers": "answers"},
    ),
}


@dataclasses.dataclass(frozen=True)
class Evaluated:
    """An evaluated task: its systems by name, and their predictions for test."""

    task: Task
    folder: Path
    test: pd.DataFrame
    systems: dict[str, KeptSystem]
    predictions: dict[str, pd.DataFrame]
    rows: list[ResultRow]
    context: EvalContext


def prepare_case(name: str, folder: Path) -> tuple[Task, TaskData, pd.DataFrame]:
    """Write the files of a case; return its task, its items, and the table of its test file."""
    make, keys = CASES[name]
    rng = np.random.default_rng(11)
    tables = {split: pd.DataFrame(make(rng, count)) for split, count in NUM_ITEMS.items()}
    files = {
        split: write_jsonl(folder / f"{split}.jsonl", table).name for split, table in tables.items()
    }
    task = parse_record(
        Task, {"files": files, "max_words": 30, "probes": ["linear", "bilstm"], **keys}, "task"
    )
    items = build_task_items(folder, task)
    return task, TaskData(items.info, items.splits), tables["test"]


def evaluate_tfidf(task: Task, data: TaskData, folder: Path) -> tuple[KeptSystem, pd.DataFrame]:
    """Evaluate TF-IDF and keep it; return it and its predictions."""
    results = [
        *tiny.evaluate_baselines(
            load_kind(task.kind),
            data,
            split="test",
            finetune_seeds=(0,),
            label_counts=("all",),
            tfidf_C=(10.0,),
            cache_dir=folder,
        )
    ]
    (kept,) = folder.glob("*/system")
    predictions = next(table for rows, table in results if rows[0].model == "tfidf")
    return KeptSystem(kept, read_record(kept)), predictions


def evaluate_case(name: str, folder: Path) -> Evaluated:
    """Evaluate and keep all systems of a tiny GPT, and TF-IDF."""
    task, data, test = prepare_case(name, folder)
    model_dir = folder / "model"
    model_dir.mkdir()
    tiny.checkpoint("gpt").save(model_dir, tiny.model("gpt"))
    context = EvalContext(Checkpoint.load(model_dir), data, SETTINGS, 0, 1000, "fp32", tiny.CPU)
    setfit = load_kind(task.kind).suits_setfit(task)
    runs = list(tiny.list_runs(data.info, ("pretrained",), ("all",), (0,), setfit=setfit))
    cache = folder / "cache"
    cache.mkdir()
    output = evaluate_runs(context, runs, cache_dir=cache, report_progress=lambda *_: None)
    assert {row.status for row in output.rows} == {"ok"}
    systems = {}
    predictions = {}
    for path in cache.glob("*/system"):
        record = read_record(path)
        systems[record.name] = KeptSystem(path, record)
        is_own = (output.predictions["transfer"] == record.transfer) & (
            output.predictions["head"] == record.head
        )
        predictions[record.name] = output.predictions[is_own]
    systems["tfidf"], predictions["tfidf"] = evaluate_tfidf(task, data, folder / "tfidf")
    return Evaluated(task, folder, test, systems, predictions, output.rows, context)


@dataclasses.dataclass(frozen=True)
class Packaged:
    """A case with TF-IDF, as an exported folder and as an MLflow model."""

    exported: Path
    folder: Path
    suffixes: set[str]  # of the files as they were saved
    model: PyFuncModel
    test: pd.DataFrame


def package_case(name: str, folder: Path) -> Packaged:
    """Export TF-IDF, and save it as an MLflow model."""
    task, data, test = prepare_case(name, folder)
    kept, _ = evaluate_tfidf(task, data, folder / "kept")
    write_card(kept.folder, kept.record)
    export_system(kept, task, folder / "exported")
    save_system(folder / "exported", folder / "model")
    suffixes = {path.suffix for path in (folder / "model").rglob("*") if path.is_file()}
    model = mlflow.pyfunc.load_model(str(folder / "model"))
    labels = {getattr(task, key) for key in load_kind(task.kind).label_columns} - {None}
    new = test.drop(columns=list(labels))
    return Packaged(folder / "exported", folder / "model", suffixes, model, new)
