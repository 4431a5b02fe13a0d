"""Every family runs through all stages on real tasks of every kind, for a few steps."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from lineage import artifacts
from lineage.config.resolve import merge_trees
from lineage.data.dataset_stats import read_dataset_stats
from lineage.tasks.base import load_kind
from tests.helpers.golden import data_folder
from tests.helpers.user_project import RunStage, make_project, write_params

SICK = {
    "files": {"test": "sick/test.parquet"}, "text": ["sentence1", "sentence2"], "label": "entailment", "limit": {"test": 20},
    "label_map": {"ENTAILMENT": "entailment", "NEUTRAL": "neutral", "CONTRADICTION": "contradiction"},
}  # fmt: skip


FOLD_TASKS = {"subj": {"kind": "text_classification", "text": ["text"], "folds": 2}}
Block = tuple[str, dict[str, Any]]  # the folder of the data, and the block of the task


def classify(folder: str, *columns: str, **keys: Any) -> Block:
    return folder, {"kind": "text_classification", "text": [*columns], **keys}


def rate(folder: str, score: str, **keys: Any) -> Block:
    text = ["sentence1", "sentence2"]
    return folder, {
        "kind": "text_regression",
        "text": text,
        "label": score,
        "symmetric": True,
        **keys,
    }


def tag(folder: str, label: str, **keys: Any) -> Block:
    return folder, {"kind": "token_classification", "tokens": "tokens", "label": label, **keys}


def compare_pairs(folder: str, group: str) -> Block:
    return folder, {
        "kind": "minimal_pairs",
        "good": "good",
        "bad": "bad",
        "group": group,
        "label": None,
    }


def twenty_test_items(*folders: str) -> dict[str, Any]:
    """Return a block of extra test sets."""
    return {
        name: {"files": {"test": f"{name}/test.parquet"}, "limit": {"test": 20}} for name in folders
    }


TASKS = {
    "copa": (
        "copa-balanced",
        {
            "kind": "multiple_choice",
            "text": ["premise", "asks_for"],
            "choices": ["choice1", "choice2"],
            "group": "asks_for",
        },
    ),
    "snli": classify("snli-small", "premise", "hypothesis", extra_test_sets={"sick": SICK}),
    "mr": classify("mr", "text", extra_test_sets=twenty_test_items("cr", "imdb")),
    "qnli": classify("qnli-dev", "question", "sentence", max_words=60),
    "afqmc": classify("zh-afqmc", "text1", "text2", language="zh", symmetric=True),
    "cola": classify("cola", "sentence", metric=["matthews"]),
    "sst2": classify("sst2", "sentence"),
    "stsb": rate("stsb", "score", metric=["spearman"]),
    "wnut17": tag("wnut17", "ner", metric=["token_accuracy"]),
    "conll2000": tag("conll2000", "chunk"),
    "upos": tag("ud-english-ewt", "upos"),
    "wordsim": (
        "word-similarity",
        {
            "kind": "word_similarity",
            "words": ["word1", "word2"],
            "label": "score",
            "limit": {"test": 400},
        },
    ),
    "google": (
        "analogies-google",
        {"kind": "word_analogy", "words": ["a", "b", "c", "d"], "label": None, "group": "category"},
    ),
    "squad": (
        "squad",
        {
            "kind": "extractive_qa",
            "question": "question",
            "context": "context",
            "answers": "answers",
            "answer_starts": "answer_starts",
            "label": None,
            "max_words": 200,
            "metric": ["exact_match"],
        },
    ),
    "msra": tag("zh-msra-ner", "ner", language="zh"),
}
MORE_TASKS = {  # the other folders that fit a kind of task
    "mpqa": classify("mpqa", "text"),
    "cr": classify("cr", "text"),
    "imdb": classify("imdb", "text"),
    "dbpedia14": classify("dbpedia14", "text"),
    "chnsenticorp": classify("zh-chnsenticorp", "text", language="zh"),
    "sick": rate("sick", "relatedness"),
    "pos": tag("semcor", "pos"),
    "srl": (
        "srl-up",
        {"kind": "semantic_roles", "tokens": "tokens", "predicate": "predicate", "label": "roles"},
    ),
    "gap": (
        "gap",
        {
            "kind": "pronoun_choice",
            "text": ["text"],
            "pronoun": "pronoun",
            "pronoun_start": "pronoun_start",
            "candidates": ["a", "b"],
            "candidate_starts": ["a_start", "b_start"],
        },
    ),
    "blimp": compare_pairs("blimp", "uid"),
    "verbs": compare_pairs("agreement-marvin-linzen", "construction"),
}
SPLITS = {"train": "train", "validation": "validation", "test": "test_2016_flickr"}
TRANSLATION_TASK = {"kind": "translation", "files": {split: f"multi30k/{name}.parquet" for split, name in SPLITS.items()}, "source": "en", "target": "de",
                    "metric": ["bleu", "chrf"], "max_words": 40, "limit": {"train": 60, "validation": 20, "test": 20}}  # fmt: skip
# Corpora, and a folder that gives wrong verbs without their sentences.
FOLDERS_WITHOUT_TASK = {
    "agreement-gulordava",
    "corpus-small",
    "corpus-medium",
    "corpus-books",
    "zh-corpus",
    # No kind of task reads them yet, or no study does.
    "dialogsum",
    "litbank",
    "molecules",
}
TASKS_WITH_THIRD_BASELINE = [
    name
    for name, (_, task) in TASKS.items()
    if task["kind"] in ("multiple_choice", "text_classification")
]  # these have a third baseline
TASKS_WITHOUT_TRAIN = [
    name for name, (_, task) in TASKS.items() if not load_kind(task["kind"]).has_train_split
]
FAMILIES = ("word2vec", "elmo", "ulmfit", "gpt", "bert")


def check_rows(rows: pd.DataFrame) -> None:
    """Check that every result of every task has a value, except baselines that do not apply."""
    failed = rows[rows["status"] != "ok"]
    assert set(zip(failed["model"], failed["task"], strict=True)) == {
        ("majority", task) for task in ("stsb", *TASKS_WITHOUT_TRAIN)
    }, failed["reason"].tolist()
    first_metrics = {
        "text_regression": "pearson",
        "token_classification": "span_f1",
        "word_similarity": "spearman",
        "extractive_qa": "f1",
    }
    extra_rows = rows[rows["test_set"] != rows["task"]]
    assert set(extra_rows["test_set"]) == {"sick", "cr", "imdb"}
    assert (extra_rows.loc[extra_rows["test_set"] == "sick", "num_examples"] == 20).all()
    folds = rows[rows["fold"].notna()]
    assert set(folds["task"]) == set(FOLD_TASKS)
    assert folds.loc[folds["split"] == "test", "num_examples"].eq(30).all()
    assert set(folds["fold"]) == {0, 1}
    rows = rows[rows["fold"].isna() & (rows["test_set"] == rows["task"])]
    expected_metric = (
        rows["kind"]
        .map(first_metrics)
        .fillna("accuracy")
        .where(rows["task"] != "upos", "token_accuracy")
    )
    results = rows[
        (rows["metric"] == expected_metric)
        & (rows["group"] == "all")
        & (rows["split"] == "test")
        & (rows["layer"] == "none")
    ]
    assert len(results) == len(TASKS) * (2 + 4 * len(FAMILIES)) - len(
        TASKS_WITHOUT_TRAIN
    ) * 2 * len(FAMILIES) + len(TASKS_WITH_THIRD_BASELINE)
    scored = results[results["status"] == "ok"]
    assert set(scored[scored["task"] != "wordsim"]["num_examples"]) == {20}
    assert set(scored[scored["task"] == "wordsim"]["num_examples"]) == {400}
    assert set(rows[(rows["model"] == "gpt") & (rows["transfer"] == "finetuned")]["recipe"]) == {
        "slanted_triangular+lm"
    }


def build_task_blocks(
    data: Path, tasks: dict[str, tuple[str, dict[str, Any]]]
) -> dict[str, dict[str, Any]]:
    """Return the params.yaml blocks of tasks, each limited to a few items."""
    blocks = {}
    for name, (folder, task) in tasks.items():
        files = {
            split: str(data / folder / f"{split}.parquet")
            for split in load_kind(task["kind"]).required_splits
        }
        blocks[name] = {
            "files": files,
            "label": "label",
            "max_words": 40,
            "limit": {"train": 60, "validation": 20, "test": 20},
            **task,
        }
    return blocks


def shrink_study(tree: dict[str, Any]) -> None:
    """Use all tasks and tiny models, and switch on some optional settings."""
    tree["budget"] |= {"text_bytes": 30_000, "body_parameters": 100_000}
    tree["grid"] |= {
        "models": [*FAMILIES],
        "tasks": [*TASKS, *FOLD_TASKS, *MORE_TASKS],
        "adapt_models": [],
        "adapt_tasks": [],
        "label_counts": ["all"],
        "finetune_seeds": [0],
    }
    small = {name: {"tokenizer": {"vocab_size": 600}} for name in FAMILIES}
    optional = {
        "gpt": {
            "tokenizer": {"normalizer": "ftfy", "end_of_word_suffix": True, "lowercase": True},
            "evaluate": {"finetune": {"aux_lm_weight": 0.5}},
        },
        "bert": {
            "pretrain": {"initial_seq_len": 40, "long_seq_share": 0.3},
            "evaluate": {"linear_probe": {"features": "concat_last_4"}},
        },
    }
    tree["models"] = merge_trees(merge_trees(tree["models"], small), optional)


def run_more_tasks(results: Path, run: Callable[..., None]) -> None:
    """Run MORE_TASKS with the baselines and one family, and check the count of blank texts."""
    for task in MORE_TASKS:
        run("task", task)
        run("baselines", task)
        run("evaluate", "gpt", "0", task)
        rows = artifacts.read_table(results / f"evaluate-gpt-0-{task}.parquet")
        assert set(rows["status"]) == {"ok"} and set(rows["init"]) == {"pretrained", "random"}, task
    stats = read_dataset_stats(results.parent / "statistics/baselines-mpqa.json")
    unusable = {split: counts.dropped.get("unusable", 0) for split, counts in stats.splits.items()}
    assert unusable == {"train": 2, "validation": 0, "test": 0}, "two of MPQA's phrases are blank"


def test_every_folder_of_real_data_is_used_here_or_has_no_task() -> None:
    extra_test_sets = {
        name for _, task in TASKS.values() for name in task.get("extra_test_sets", ())
    }
    used = (
        {folder for folder, _ in (TASKS | MORE_TASKS).values()}
        | FOLD_TASKS.keys()
        | extra_test_sets
        | {"multi30k"}
    )
    assert {
        path.name for path in data_folder().iterdir() if path.is_dir()
    } <= used | FOLDERS_WITHOUT_TASK


@pytest.mark.slow
def test_real_sentence_pairs_are_translated(tmp_path: Path, run_stage: RunStage) -> None:
    """Only seq2seq can write text; its language models read both languages of the corpus."""
    tree = make_project(tmp_path)
    data = data_folder()
    (tmp_path / "runtime.yaml").write_text(f"data_root: {data}\n")
    tree["tasks"] = {"mt": TRANSLATION_TASK}
    tree["corpora"]["general"]["sources"] = [
        {"files": "multi30k/test_2017_flickr.parquet", "text": text, "language": text}
        for text in ("en", "de")
    ]
    tree["budget"] |= {"text_bytes": 30_000, "body_parameters": 100_000}
    tree["grid"] |= {
        "models": ["seq2seq"],
        "tasks": ["mt"],
        "adapt_models": [],
        "adapt_tasks": [],
        "label_counts": ["all"],
        "finetune_seeds": [0],
    }
    tree["models"]["seq2seq"] = {
        "tokenizer": {"vocab_size": 600},
        "pretrain": {"source_language": "en", "target_language": "de"},
        "evaluate": {"translation": {"epochs": 1}},
    }
    write_params(tmp_path, tree)
    commands = (
        ("sources",),
        ("corpus", "general"),
        ("task", "mt"),
        ("baselines", "mt"),
        ("tokenizer", "seq2seq"),
        ("pretrain", "seq2seq", "0"),
    )
    for command in (*commands, ("evaluate", "seq2seq", "0", "mt")):
        code, output = run_stage(tmp_path, *command)
        assert code == 0, (command, output)
    rows = artifacts.read_table(tmp_path / "artifacts/results/rows/evaluate-seq2seq-0-mt.parquet")
    assert set(rows["status"]) == {"ok"} and set(rows["init"]) == {"pretrained", "random"}
    scores = rows[(rows["metric"] == "chrf") & (rows["split"] == "test") & (rows["group"] == "all")]
    assert len(scores) == 2 and set(scores["num_examples"]) == {20}


@pytest.mark.slow
def test_every_family_runs_on_real_tasks_of_every_kind(tmp_path: Path, run_stage: RunStage) -> None:
    def run(*command: str) -> None:
        code, output = run_stage(tmp_path, *command)
        assert code == 0, (command, output)

    tree = make_project(tmp_path)
    data = data_folder()
    tree["tasks"] = build_task_blocks(data, TASKS | MORE_TASKS)
    for name, task in FOLD_TASKS.items():
        tree["tasks"][name] = {
            "files": {"train": str(data / name / "train.parquet")},
            "label": "label",
            "limit": {"train": 60},
            **task,
        }
    (tmp_path / "runtime.yaml").write_text(f"data_root: {data}\n")
    tree["corpora"]["general"]["sources"] = [
        {"files": str(data / "corpus-small/validation.parquet"), "text": "text"}
    ]
    shrink_study(tree)
    write_params(tmp_path, tree)
    run("sources")
    run("corpus", "general")
    for task in (*TASKS, *FOLD_TASKS):
        run("task", task)
        run("contamination", task)
        run("baselines", task)
    for family in FAMILIES:
        run("tokenizer", family)
        run("pretrain", family, "0")
        for task in (*TASKS, *FOLD_TASKS):
            run("evaluate", family, "0", task)
    check_rows(
        pd.concat(
            [
                artifacts.read_table(path)
                for path in sorted((tmp_path / "artifacts/results/rows").iterdir())
            ]
        )
    )
    run_more_tasks(tmp_path / "artifacts/results/rows", run)
