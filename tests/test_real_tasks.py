"""Real tasks of every kind, by configuration alone, through the stages: every family reads them for a few steps."""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from lineage import artifacts
from lineage.tasks.base import load_kind
from tests.user_project import make, stage, write

ASKED = {
    "question": "question",
    "context": "context",
    "answers": "answers",
    "answer_starts": "answer_starts",
}
SICK = {
    "files": {"test": "sick/test.parquet"}, "text": ["sentence1", "sentence2"], "label": "entailment", "limit": {"test": 20},
    "label_map": {"ENTAILMENT": "entailment", "NEUTRAL": "neutral", "CONTRADICTION": "contradiction"},
}  # fmt: skip
FOLDED = {"subj": {"kind": "text_classification", "text": ["text"], "folds": 2}}
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
    "snli": (
        "snli-small",
        {
            "kind": "text_classification",
            "text": ["premise", "hypothesis"],
            "extra_test_sets": {"sick": SICK},
        },
    ),
    "mr": (
        "mr",
        {
            "kind": "text_classification",
            "text": ["text"],
            "extra_test_sets": {
                name: {"files": {"test": f"{name}/test.parquet"}, "limit": {"test": 20}}
                for name in ("cr", "imdb")
            },
        },
    ),
    "qnli": (
        "qnli-dev",
        {"kind": "text_classification", "text": ["question", "sentence"], "max_tokens": 60},
    ),
    "afqmc": (
        "zh-afqmc",
        {
            "kind": "text_classification",
            "text": ["text1", "text2"],
            "language": "zh",
            "symmetric": True,
        },
    ),
    "cola": ("cola", {"kind": "text_classification", "text": ["sentence"], "metric": ["matthews"]}),
    "sst2": ("sst2", {"kind": "text_classification", "text": ["sentence"]}),
    "stsb": (
        "stsb",
        {
            "kind": "text_regression",
            "text": ["sentence1", "sentence2"],
            "label": "score",
            "symmetric": True,
            "metric": ["spearman"],
        },
    ),
    "wnut17": (
        "wnut17",
        {
            "kind": "token_classification",
            "tokens": "tokens",
            "label": "ner",
            "metric": ["token_accuracy"],
        },
    ),
    "conll2000": (
        "conll2000",
        {"kind": "token_classification", "tokens": "tokens", "label": "chunk"},
    ),
    "upos": (
        "ud-english-ewt",
        {"kind": "token_classification", "tokens": "tokens", "label": "upos"},
    ),
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
            **ASKED,
            "label": None,
            "max_tokens": 200,
            "metric": ["exact_match"],
        },
    ),
    "msra": (
        "zh-msra-ner",
        {"kind": "token_classification", "tokens": "tokens", "label": "ner", "language": "zh"},
    ),
}
MORE = {  # the folders beside them that fit a kind
    "mpqa": ("mpqa", {"kind": "text_classification", "text": ["text"]}),
    "cr": ("cr", {"kind": "text_classification", "text": ["text"]}),
    "imdb": ("imdb", {"kind": "text_classification", "text": ["text"]}),
    "dbpedia14": ("dbpedia14", {"kind": "text_classification", "text": ["text"]}),
    "chnsenticorp": (
        "zh-chnsenticorp",
        {"kind": "text_classification", "text": ["text"], "language": "zh"},
    ),
    "sick": (
        "sick",
        {
            "kind": "text_regression",
            "text": ["sentence1", "sentence2"],
            "label": "relatedness",
            "symmetric": True,
        },
    ),
    "pos": ("semcor", {"kind": "token_classification", "tokens": "tokens", "label": "pos"}),
    "blimp": (
        "blimp",
        {"kind": "minimal_pairs", "good": "good", "bad": "bad", "group": "uid", "label": None},
    ),
    "verbs": (
        "agreement-marvin-linzen",
        {
            "kind": "minimal_pairs",
            "good": "good",
            "bad": "bad",
            "group": "construction",
            "label": None,
        },
    ),
}
SPLITS = {"train": "train", "validation": "validation", "test": "test_2016_flickr"}
PAIRS = {"kind": "translation", "files": {split: f"multi30k/{name}.parquet" for split, name in SPLITS.items()}, "source": "en", "target": "de",
         "metric": ["bleu", "chrf"], "max_tokens": 40, "limit": {"train": 60, "validation": 20, "test": 20}}  # fmt: skip
# Corpora, and a folder that has no sentence for its wrong verbs.
NO_TASK = {"agreement-gulordava", "corpus-small", "corpus-medium", "corpus-books", "zh-corpus"}
LOTS = [
    name
    for name, (_, task) in TASKS.items()
    if task["kind"] in ("multiple_choice", "text_classification")
]  # which have a third control
UNTRAINED = [
    name for name, (_, task) in TASKS.items() if not load_kind(task["kind"]).has_train_split
]
FAMILIES = ("word2vec", "elmo", "ulmfit", "gpt", "bert")


def check(found: pd.DataFrame) -> None:
    """Every cell of every task has its value, but for a control that a task has no use for."""
    failed = found[found["status"] != "ok"]
    assert set(zip(failed["model"], failed["task"], strict=True)) == {
        ("majority", task) for task in ("stsb", *UNTRAINED)
    }, failed["reason"].tolist()
    first = {"text_regression": "pearson", "tag": "span_f1", "similarity": "spearman", "span": "f1"}
    second = found[found["test_set"] != found["task"]]
    assert (
        set(second["test_set"]) == {"sick", "cr", "imdb"}
        and (second.loc[second["test_set"] == "sick", "num_examples"] == 20).all()
    )
    folds = found[found["fold"].notna()]
    assert (
        set(folds["task"]) == set(FOLDED)
        and folds.loc[folds["split"] == "test", "num_examples"].eq(30).all()
        and set(folds["fold"]) == {0, 1}
    )
    found = found[found["fold"].isna() & (found["test_set"] == found["task"])]
    own = (
        found["kind"].map(first).fillna("accuracy").where(found["task"] != "upos", "token_accuracy")
    )
    cells = found[
        (found["metric"] == own)
        & (found["group"] == "all")
        & (found["split"] == "test")
        & (found["layer"] == "none")
    ]
    assert len(cells) == len(TASKS) * (2 + 4 * len(FAMILIES)) - len(UNTRAINED) * 2 * len(
        FAMILIES
    ) + len(LOTS)
    some = cells[cells["status"] == "ok"]
    assert set(some[some["task"] != "wordsim"]["num_examples"]) == {20} and set(
        some[some["task"] == "wordsim"]["num_examples"]
    ) == {400}
    assert set(found[(found["model"] == "gpt") & (found["transfer"] == "finetuned")]["recipe"]) == {
        "slanted+lm"
    }


def of_files(data: Path, tasks: dict[str, tuple[str, dict[str, Any]]]) -> dict[str, dict[str, Any]]:
    """Their blocks in params.yaml, each limited to some items."""
    found = {}
    for name, (folder, task) in tasks.items():
        files = {
            split: str(data / folder / f"{split}.parquet")
            for split in load_kind(task["kind"]).required_splits
        }
        found[name] = {
            "files": files,
            "label": "label",
            "max_tokens": 40,
            "limit": {"train": 60, "validation": 20, "test": 20},
            **task,
        }
    return found


def settings(tree: dict[str, Any]) -> None:
    """All tasks, tiny models, and of what families may do otherwise a share."""
    tree["budget"] |= {"text_bytes": 30_000, "body_parameters": 100_000}
    tree["grid"] |= {
        "models": [*FAMILIES],
        "tasks": [*TASKS, *FOLDED, *MORE],
        "adapt_models": [],
        "adapt_tasks": [],
        "label_counts": ["all"],
        "finetune_seeds": [0],
    }
    for name in FAMILIES:
        tree["models"][name]["tokenizer"]["vocab_size"] = 600
    tree["models"]["gpt"]["tokenizer"] |= {
        "normalizer": "ftfy",
        "end_of_word_suffix": True,
        "lowercase": True,
    }
    tree["models"]["gpt"]["evaluate"]["finetune"]["aux_lm_weight"] = 0.5
    tree["models"]["bert"]["pretrain"] |= {"initial_seq_len": 40, "long_seq_share": 0.3}
    tree["models"]["bert"]["evaluate"]["linear_probe"]["features"] = "concat4"


def read_more(results: Path, run: Callable[..., None]) -> None:
    """MORE by the controls and one family; what is blank is counted."""
    for task in MORE:
        run("task", task)
        run("baselines", task)
        run("evaluate", "gpt", "0", task)
        rows = artifacts.read_table(results / f"evaluate-gpt-0-{task}.parquet")
        assert set(rows["status"]) == {"ok"} and set(rows["init"]) == {"pretrained", "random"}, task
    left_out = artifacts.read_table(results / "baselines-mpqa.parquet").query(
        "metric == 'left_out'"
    )
    assert dict(zip(left_out["split"], left_out["value"], strict=True)) == {"train": 2}, (
        "two of MPQA's phrases are blank"
    )


real_data = pytest.mark.skipif(
    "LINEAGE_DATA" not in os.environ, reason="LINEAGE_DATA names no folder of real data"
)


@real_data
def test_every_folder_of_real_data_is_read_here_or_holds_no_task() -> None:
    sets = {name for _, task in TASKS.values() for name in task.get("extra_test_sets", ())}
    read = {folder for folder, _ in (TASKS | MORE).values()} | FOLDED.keys() | sets | {"multi30k"}
    assert {
        path.name for path in Path(os.environ["LINEAGE_DATA"]).iterdir() if path.is_dir()
    } <= read | NO_TASK


@pytest.mark.slow
@real_data
def test_real_pairs_of_sentences_are_translated(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """By the one family that writes: its language models read the corpus's two languages."""
    tree, data = make(tmp_path), os.environ["LINEAGE_DATA"]
    (tmp_path / "runtime.yaml").write_text(f"data_root: {data}\n")
    tree["tasks"] = {"mt": PAIRS}
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
    tree["models"]["seq2seq"]["tokenizer"]["vocab_size"] = 600
    tree["models"]["seq2seq"]["pretrain"] |= {"source": "en", "target": "de"}
    tree["models"]["seq2seq"]["evaluate"]["translation"] |= {"epochs": 1}
    write(tmp_path, tree)
    commands = (
        ("sources",),
        ("corpus", "general"),
        ("task", "mt"),
        ("baselines", "mt"),
        ("tokenizer", "seq2seq"),
        ("pretrain", "seq2seq", "0"),
    )
    for command in (*commands, ("evaluate", "seq2seq", "0", "mt")):
        code, said = stage(tmp_path, *command, monkeypatch=monkeypatch, capsys=capsys)
        assert code == 0, (command, said)
    rows = artifacts.read_table(tmp_path / "artifacts/results/rows/evaluate-seq2seq-0-mt.parquet")
    assert set(rows["status"]) == {"ok"} and set(rows["init"]) == {"pretrained", "random"}
    scores = rows[(rows["metric"] == "chrf") & (rows["split"] == "test") & (rows["group"] == "all")]
    assert len(scores) == 2 and set(scores["num_examples"]) == {20}


@pytest.mark.slow
@real_data
def test_real_tasks_of_every_input_are_read_by_every_family(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def run(*command: str) -> None:
        code, said = stage(tmp_path, *command, monkeypatch=monkeypatch, capsys=capsys)
        assert code == 0, (command, said)

    tree, data = make(tmp_path), Path(os.environ["LINEAGE_DATA"])
    tree["tasks"] = of_files(data, TASKS | MORE)
    for name, task in FOLDED.items():
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
    settings(tree)
    write(tmp_path, tree)
    run("sources")
    run("corpus", "general")
    for task in (*TASKS, *FOLDED):
        run("task", task)
        run("contamination", task)
        run("baselines", task)
    for family in FAMILIES:
        run("tokenizer", family)
        run("pretrain", family, "0")
        for task in (*TASKS, *FOLDED):
            run("evaluate", family, "0", task)
    check(
        pd.concat(
            [
                artifacts.read_table(path)
                for path in sorted((tmp_path / "artifacts/results/rows").iterdir())
            ]
        )
    )
    read_more(tmp_path / "artifacts/results/rows", run)
