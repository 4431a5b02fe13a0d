"""A study finds the roles that are planted in the synthetic language, and none that are shuffled."""

import math
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from lineage.analysis.records import Analysis, Comparison, read_analysis
from lineage.synthetic.tasks import ROLES, generate_task
from tests.helpers.checkout import RUN_STUDY, run_command
from tests.helpers.tasks import write_jsonl
from tests.helpers.user_project import SHORT_FINETUNING, write_params

pytestmark = pytest.mark.slow

STATIC = "word2vec"
# Of the share of two roles of 400 items that are guessed.
STANDARD_ERROR = 0.5 / math.sqrt(2 * 400)
# The control: the same sentences in the files of a user, with roles in either order by chance.
SHUFFLED: dict[str, Any] = {
    "kind": "semantic_roles",
    "files": {split: f"{split}.jsonl" for split in ("train", "validation", "test")},
    "tokens": "tokens",
    "predicate": "predicate",
    "label": "label",
    "max_words": 24,
}
PARAMS: dict[str, Any] = {
    "corpora": {
        "general": {
            "language": "en",
            "sources": [{"generated": "synthetic", "num_documents": 600}],
        }
    },
    "budget": {
        "corpus": "general",
        "text_bytes": 1_000_000,
        "max_epochs": 1,
        "body_parameters": 200_000,
    },
    "tasks": {
        "roles": {"kind": "semantic_roles", "generated": "synthetic", "max_words": 24},
        "shuffled": SHUFFLED,
    },
    "grid": {
        "models": [STATIC, "elmo"],
        "pretrain_seeds": [0],
        "tasks": ["roles", "shuffled"],
        "adapt_models": [],
        "adapt_tasks": [],
        "target_only_models": [],
        "finetune_seeds": [0, 1, 2],
        "label_counts": ["all"],
        "join_models": [],
        "join_tasks": [],
        "join_static_model": STATIC,
    },
    "defaults": {"evaluate": {"finetune": SHORT_FINETUNING}},
    "models": {
        STATIC: {"tokenizer": {"vocab_size": 2400}},
        "elmo": {"tokenizer": {"vocab_size": 2400}},
    },
}


def shuffle_roles(items: pd.DataFrame, rng: np.random.Generator) -> pd.DataFrame:
    """Return the items with their roles in one of the two orders, by chance."""
    swapped = dict(zip(*ROLES, strict=True))
    labels = [
        [swapped.get(tag, tag) for tag in tags] if rng.integers(2) else tags
        for tags in items["label"]
    ]
    return items.assign(label=labels)


@pytest.fixture(scope="module")
def analysis(tmp_path_factory: pytest.TempPathFactory) -> Analysis:
    # Importing DVC takes a second, which every test file would have to wait for.
    from flows.study import create_study

    folder: Path = tmp_path_factory.mktemp("roles") / "study"
    create_study(folder, "")
    write_params(folder, PARAMS)
    rng = np.random.default_rng(0)
    for split, items in generate_task("roles", seed=1).splits.items():
        write_jsonl(folder / f"{split}.jsonl", shuffle_roles(items, rng))
    run_command(folder, *RUN_STUDY)
    return read_analysis(folder / "reports/results.json")


def compare(analysis: Analysis, task: str, kind: str) -> Comparison:
    """Return what the report says of ELMo's frozen features, compared with others."""
    found = []
    for one in analysis.comparisons:
        if (one.task, one.comparison_type, one.first.transfer) != (task, kind, "frozen"):
            continue
        ordered = one if one.first.model == "elmo" else one.reversed()
        if ordered.first.model == "elmo":
            found.append(ordered)
    (comparison,) = found
    return comparison


def test_a_pretrained_model_finds_the_planted_roles(analysis: Analysis) -> None:
    assert compare(analysis, "roles", "pretraining").second.init == "random"
    assert compare(analysis, "roles", "models").second.model == STATIC
    for kind in ("pretraining", "models", "tfidf"):
        comparison = compare(analysis, "roles", kind)
        assert comparison.verdict == "better" and comparison.ci_low > 0.2, comparison


def test_static_vectors_do_not_find_them(analysis: Analysis) -> None:
    assert find_f1(analysis, "roles", STATIC) < 0.5 + 3 * STANDARD_ERROR


def test_shuffled_roles_are_not_found(analysis: Analysis) -> None:
    """Static vectors are not compared: they are worse at telling arguments from other words."""
    for kind in ("pretraining", "tfidf"):
        comparison = compare(analysis, "shuffled", kind)
        assert comparison.verdict not in ("better", "worse"), comparison
    assert find_f1(analysis, "shuffled", "elmo") < 0.5 + 3 * STANDARD_ERROR


def find_f1(analysis: Analysis, task: str, model: str) -> float:
    """Return the mean over seeds of a pretrained model's frozen features."""
    (score,) = (
        one
        for one in analysis.scores_of_task(task)
        if (one.system.model, one.system.init, one.system.transfer)
        == (model, "pretrained", "frozen")
    )
    assert score.mean is not None
    return score.mean
