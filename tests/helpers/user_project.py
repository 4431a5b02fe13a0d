"""A small valid user project: a folder of .txt files, a csv task and one family."""

import atexit
import contextlib
import copy
import functools
import io
import shutil
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pandas as pd
from ruamel.yaml import YAML

from lineage.config.resolve import resolve_tree
from lineage.synthetic.grammar import generate_documents

REPOSITORY = Path(__file__).resolve().parents[2]
DOCUMENTS = 40
PARAMS: dict[str, Any] = {
    "corpora": {"general": {"language": "en", "sources": [{"files": "texts/*.txt"}]}},
    "budget": {
        "corpus": "general",
        "text_bytes": 100_000,
        "max_epochs": 4,
        "body_parameters": 600_000,
    },
    "adapt": {"text_bytes": 4_000, "max_epochs": 4, "heldout_share": 0.1},
    "tasks": {
        "mood": {
            "kind": "text_classification",
            "files": {"train": "mood/train.csv", "test": "mood/test.csv"},
            "text": ["review"],
            "label": "stars",
        }
    },
    "grid": {
        "models": ["gpt"],
        "pretrain_seeds": [0],
        "tasks": ["mood"],
        "adapt_models": ["gpt"],
        "adapt_tasks": ["mood"],
        "target_only_models": [],
        "finetune_seeds": [0, 1, 2],
        "label_counts": [20, "all"],
        "tfidf_C": [10.0],
        "join_models": [],
        "join_tasks": [],
        "join_static_model": "word2vec",
    },
}

# The types of the fixtures `run_stage` and `run_stages`.
RunStage = Callable[..., tuple[int, str]]
RunStages = Callable[..., None]
# Few steps, and the learning rate of the family, because most tests run a stage for its files.
SHORT_FINETUNING: dict[str, Any] = {"epochs": 1, "min_steps": 20, "trials": []}


@functools.cache
def corpus_texts() -> tuple[str, ...]:
    """Return the texts of the corpus."""
    return tuple(generate_documents(DOCUMENTS, seed=1))


def make_project(folder: Path) -> dict[str, Any]:
    """Write the data and params.yaml, and return the parameters."""
    (folder / "texts").mkdir(parents=True)
    for number, text in enumerate(corpus_texts()):
        (folder / f"texts/{number:02d}.txt").write_text(text + "\n", encoding="utf-8")
    (folder / "mood").mkdir()
    for split, count, first in (("train", 60, 0), ("test", 20, 1000)):
        mood_reviews(count, first).to_csv(folder / f"mood/{split}.csv", index=False)
    tree = copy.deepcopy(resolve_tree(PARAMS, "params.yaml"))
    tree["models"]["gpt"]["tokenizer"]["vocab_size"] = 400
    tree["models"]["gpt"]["evaluate"]["finetune"] |= SHORT_FINETUNING
    write_params(folder, tree)
    return tree


def mood_reviews(count: int, first: int = 0) -> pd.DataFrame:
    """Return reviews with two labels."""
    rows = [
        (
            f"the {'good' if n % 2 else 'bad'} film number {n} , which was seen by {n % 7} friends of mine .",
            n % 2,
        )
        for n in range(first, first + count)
    ]
    return pd.DataFrame(rows, columns=["review", "stars"])


def write_params(folder: Path, tree: Mapping[str, Any]) -> None:
    """Write params.yaml."""
    yaml = YAML(typ="safe")  # the C writer, because many tests write this file
    yaml.default_flow_style, yaml.sort_base_mapping_type_on_output = False, False
    # Write out what two blocks share in both, or an edit of one would change the other.
    yaml.representer.ignore_aliases = lambda _: True
    with (folder / "params.yaml").open("w", encoding="utf-8") as stream:
        yaml.dump(dict(tree), stream)


@functools.cache
def tracking_uri() -> str:
    """Return one MLflow store for all stages in this process; creating a store is slow."""
    folder = tempfile.mkdtemp(prefix="tracked-")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return f"sqlite:///{folder}/mlflow.db"


def without_repeat_warnings(stderr: str) -> str:
    """Leave out the warnings of repeated texts, which files of a few lines have."""
    lines = stderr.splitlines(keepends=True)
    return "".join(line for line in lines if " texts that train has too" not in line)


def run_stage(folder: Path, name: str, *arguments: str, monkeypatch) -> tuple[int, str]:
    """Run `python -m stages.NAME ARGUMENTS` in this process; return exit code and stderr."""
    import runpy
    import sys

    monkeypatch.chdir(folder)
    monkeypatch.setenv("LINEAGE_TRACKING_URI", tracking_uri())
    monkeypatch.delenv("LINEAGE_STAGE", raising=False)
    monkeypatch.setattr(sys, "argv", [name, *arguments])
    stderr = io.StringIO()
    code: object = None
    try:
        with contextlib.redirect_stderr(stderr):
            runpy.run_module(f"stages.{name}", run_name="__main__")
    except SystemExit as error:
        code = error.code
    assert isinstance(code, int)
    return code, stderr.getvalue()


def run_stages(folder: Path, *commands: str, monkeypatch) -> None:
    """Run stages, each named with its arguments, which must succeed."""
    for command in commands:
        code, message = run_stage(folder, *command.split(), monkeypatch=monkeypatch)
        assert code == 0, (command, message)
